/* Running the kernels of um_kernel_ops.h over strided arrays.
 *
 * Operands are described by their memory; types have been decided (by NumPy) and shapes broadcast before. Work is
 * asynchronous on `stream` and follows the coherence rules; *wait says whether the caller must wait before it
 * returns to the user.
 */
#ifndef UM_KERNEL_H
#define UM_KERNEL_H

#include "core/um_coherence.h"
#include "core/um_transfer.h" /* UM_MAX_NDIM */
#include "kernels/um_kernel_math.h"

/* Element types that have kernels: UM_BOOL, UM_INT8, … */
typedef enum um_dtype {
#define UM_ENUMERATOR(token, enumerator, name) enumerator,
    UM_FOR_EACH_DTYPE(UM_ENUMERATOR)
#undef UM_ENUMERATOR
        UM_DTYPE_COUNT,
} um_dtype;

size_t um_dtype_size(um_dtype dtype);
const char *um_dtype_name(um_dtype dtype); /* NumPy's */

/* One element of any type. */
typedef union um_value {
    uint8_t b1;
    int8_t i8;
    uint8_t u8;
    int16_t i16;
    uint16_t u16;
    int32_t i32;
    uint32_t u32;
    int64_t i64;
    uint64_t u64;
    um_f16 f16;
    float f32;
    double f64;
    um_c64 c64;
    um_c128 c128;
} um_value;

/* Operations, one enumerator per line of um_kernel_ops.h. */
typedef enum um_op {
#define UM_OP(weight, name, ...) UM_OP_##name,
#include "kernels/um_kernel_ops.h"
#undef UM_OP
    UM_OP_COUNT,
} um_op;

/* An input or output of a call. Strides are bytes, any sign, 0 where broadcast (never in outputs). */
typedef struct um_operand {
    um_block *block; /* NULL: an immediate value */
    char *data;      /* first element, inside the block */
    um_dtype dtype;
    const int64_t *strides; /* ndim entries */
    um_value value;         /* the immediate, when block is NULL, as `dtype` */
} um_operand;

#define UM_MAX_INPUTS 3

/* Whether every element lies on a multiple of its size, as the typed functions below need (the GPU faults otherwise): they refuse
 * other operands with UM_ERR_VALUE. Immediates are aligned. um_kernel_copy and um_kernel_fill take any address. */
bool um_kernel_is_aligned(const um_operand *operand, int ndim, const int64_t *shape);

/* Name as Python sees it ("add"); number of inputs; whether it has a loop for the type (result type in *result). */
const char *um_op_name(um_op op);
int um_op_input_count(um_op op);
bool um_op_has_loop(um_op op, um_dtype input, um_dtype *result);
bool um_op_find(const char *name, um_op *out);

/* Elementwise: out[i] = op(inputs...[i]). All inputs have the loop's input dtype, out the loop's result dtype; shape has ndim
 * entries. Inputs may be the same memory as out element for element; other overlap is the caller's to resolve. Nothing happens for an
 * array with no elements. */
UM_MUST_CHECK um_status um_kernel_elementwise(um_context *ctx, um_stream *stream, um_op op, int ndim,
                                              const int64_t *shape, const um_operand *inputs, const um_operand *out,
                                              bool deferred, um_wait *wait, um_error *err);

/* out[i] = inputs[0][i] ? inputs[1][i] : inputs[2][i]; a bool, and two of out's type. Overlap as above. */
UM_MUST_CHECK um_status um_kernel_where(um_context *ctx, um_stream *stream, int ndim, const int64_t *shape,
                                        const um_operand *inputs, const um_operand *out, bool deferred, um_wait *wait,
                                        um_error *err);

/* out[i] = in[i] converted as C (and so NumPy's unsafe casting) converts; of a complex number a real type takes the real part. An
 * immediate input fills. The two may be the same memory element for element if their sizes are the same. */
UM_MUST_CHECK um_status um_kernel_cast(um_context *ctx, um_stream *stream, int ndim, const int64_t *shape,
                                       const um_operand *in, const um_operand *out, bool deferred, um_wait *wait,
                                       um_error *err);

/* Copies elements of any type whose size is 1, 2, 4, 8 or 16 bytes; dtype of the operands is ignored. in may not be an immediate. */
UM_MUST_CHECK um_status um_kernel_copy(um_context *ctx, um_stream *stream, int ndim, const int64_t *shape,
                                       size_t itemsize, const um_operand *in, const um_operand *out, bool deferred,
                                       um_wait *wait, um_error *err);

/* Sets elements of any type whose size is 1, 2, 4, 8 or 16 bytes to the bytes at `item`. */
UM_MUST_CHECK um_status um_kernel_fill(um_context *ctx, um_stream *stream, int ndim, const int64_t *shape,
                                       size_t itemsize, const void *item, const um_operand *out, bool deferred,
                                       um_wait *wait, um_error *err);

/* Reductions. Those before `min` have a result for no elements. squares: the sum of |x - mean|^2. */
#define UM_FOR_EACH_REDUCTION(X) X(sum) X(prod) X(squares) X(count) X(any) X(all) X(min) X(max) X(argmin) X(argmax)
typedef enum um_reduction {
#define UM_ENUMERATOR(name) UM_REDUCE_##name,
    UM_FOR_EACH_REDUCTION(UM_ENUMERATOR)
#undef UM_ENUMERATOR
        UM_REDUCTION_COUNT,
} um_reduction;

const char *um_reduction_name(um_reduction reduction);
/* Whether there is a kernel for elements of the type, and which type its result has. */
bool um_reduce_result(um_reduction reduction, um_dtype dtype, um_dtype *result);

/* Reduces the axes where reduced[axis] is true. inputs[0] has the input's shape and strides; `out`, and for squares the mean inputs[1], have
 * strides for the same ndim, ignored on reduced axes. Types are as um_reduce_result says; sum, prod and squares of floats are stored as any
 * float (complex numbers as any complex), the mean has the input's type or is float32 for float16. Sums of floats are at least as accurate as
 * NumPy's pairwise sum, integers wrap in 64 bits. min and max are NaN where an element is, argmin and argmax the first place in C order. The order
 * of operations is fixed: results repeat exactly. */
UM_MUST_CHECK um_status um_kernel_reduce(um_context *ctx, um_stream *stream, um_reduction reduction, int ndim,
                                         const int64_t *shape, const bool *reduced, const um_operand *inputs,
                                         const um_operand *out, bool deferred, um_wait *wait, um_error *err);

#endif
