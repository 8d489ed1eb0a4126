/* What the launchers (C), the kernels (CUDA) and their stand-ins in the fake driver (C) agree on: names, parameters, and
 * the index arithmetic that all of them need.
 *
 * A kernel takes one parameter, a struct by value. Dimensions are innermost first. Strides are bytes and signed.
 */
#ifndef UM_KERNEL_ABI_H
#define UM_KERNEL_ABI_H

#include "kernels/um_kernel_math.h"

/* --- lists: names of kernels are built from these tokens ---------------------------------------------------------- */

/* UM_FOR_EACH_CAST(X), X(from, to): kernels um_cast_<from>_<to>_{elem,vec}. */

/* X(itemsize): kernels um_copy_<itemsize>_{elem,vec}, which fill if the input is an immediate, and um_where_<itemsize>_{elem,vec}. */
#define UM_FOR_EACH_COPY(X) X(1) X(2) X(4) X(8) X(16)

/* X(token, enumerator, element type, type in which values are added, type of a partial sum): kernels um_sum_<token>_{elem,row,col}. */
#define UM_FOR_EACH_SUM(X)                                                                                             \
    X(f32, UM_FLOAT32, float, float, double)                                                                           \
    X(f64, UM_FLOAT64, double, double, double)                                                                         \
    X(i32, UM_INT32, int32_t, uint64_t, int64_t)                                                                       \
    X(i64, UM_INT64, int64_t, uint64_t, int64_t)
#define UM_SUM_DTYPES 4

/* --- shapes --------------------------------------------------------------------------------------------------------- */

#define UM_KERNEL_BLOCK 256 /* threads of every block */
#define UM_VECTOR_BYTES 16  /* widest memory access of a thread */

/* A launch covers at most this many units (index arithmetic is 32-bit, and um_divide needs one spare bit). */
#define UM_KERNEL_MAX_UNITS ((uint32_t)0x7fffffff)

/* Division by a number in [1, 2^31) as a multiplication: floor(n / value) for n < 2^31. Granlund and Montgomery, "Division by
 * Invariant Integers using Multiplication" (1994), figure 4.1. */
typedef struct um_divisor {
    uint32_t value;
    uint32_t magic;
    uint32_t shift;
} um_divisor;

UM_SHARED_CODE uint32_t um_divide(uint32_t n, um_divisor divisor) {
#ifdef __CUDA_ARCH__
    return (__umulhi(n, divisor.magic) + n) >> divisor.shift;
#else
    return ((uint32_t)(((uint64_t)n * divisor.magic) >> 32) + n) >> divisor.shift;
#endif
}

/* --- elementwise kernels: operations, casts, copies and fills --------------------------------------------------------- */

#define UM_KERNEL_NDIM        8
#define UM_KERNEL_OPERANDS    4 /* inputs from 0 on, the output always last */
#define UM_KERNEL_OUT         3
#define UM_ELEMENTWISE_UNROLL 4 /* units of a thread in flight */

/* Offsets are 32-bit, half the registers and a third of the instructions of 64-bit ones. A launch therefore covers elements whose first
 * bytes are at most this far apart in every operand. */
#define UM_KERNEL_MAX_REACH ((uint64_t)0xfffff000)

/* A unit is one element (kernels *_elem) or, in kernels *_vec, as many elements as fill 16 bytes of the widest operand, contiguous
 * along the innermost dimension in every operand but the scalars, and aligned to their size.
 * `shape` counts units. Operand i of the unit with index (x0, x1, …) is at low[i] + (uint32_t)(start[i] + x0 * strides[0][i] + …): strides
 * are bytes modulo 2^32, low the lowest address in use, so that the sum fits even if strides are negative. */
typedef struct um_elementwise_params {
    uint32_t units;                   /* in all, at most UM_KERNEL_MAX_UNITS */
    uint32_t tail;                    /* *_vec, one dimension: elements that follow the last unit */
    uint32_t ndim;                    /* 1 to UM_KERNEL_NDIM */
    uint32_t scalars;                 /* *_vec: bit i: operand i has one value for a whole unit */
    uint32_t immediates;              /* bit i: input i is values[i] and has no memory */
    um_divisor shape[UM_KERNEL_NDIM]; /* of the outermost only `value` is set */
    char *low[UM_KERNEL_OPERANDS];
    uint32_t start[UM_KERNEL_OPERANDS];
    uint32_t strides[UM_KERNEL_NDIM][UM_KERNEL_OPERANDS];
    UM_ALIGNED(16) unsigned char values[UM_KERNEL_OPERANDS - 1][16];
} um_elementwise_params;

/* --- sums ------------------------------------------------------------------------------------------------------------- */

#define UM_SUM_KEPT_NDIM    8
#define UM_SUM_REDUCED_NDIM 32
#define UM_SUM_UNROLL_VEC   4 /* units of a thread in flight, kernels *_row and *_col */
#define UM_SUM_UNROLL_ELEM  8 /* likewise, *_elem */

typedef enum um_sum_store {
    UM_SUM_RESULT,  /* the type that sums of this type have: float32, float64 or int64 */
    UM_SUM_PARTIAL, /* a partial sum: float64 or int64 */
    UM_SUM_FLOAT32, /* um_sum_f64_*: the second pass over partial sums of float32 */
} um_sum_store;

/* Block (bx, by) computes outputs [bx * x_width, ...), and so on in steps of the grid, over units [by * chunk, ...) of their reduction;
 * y_width threads share an output's units. A reduction unit is one element, in *_row 16 bytes of them along the innermost reduced dimension. An output
 * unit is one output, in *_col the 16 bytes of input that are consecutive along the innermost kept dimension.
 * Split s of output o (counted in elements) is stored at out[o * splits + s] when splits > 1. */
typedef struct um_sum_params {
    const char *in;
    char *out;
    uint64_t units;   /* of each output's reduction */
    uint64_t chunk;   /* units of one split, > 0 */
    uint32_t tail;    /* *_row, one reduced dimension: elements that follow the last unit */
    uint32_t outputs; /* output units, at most UM_KERNEL_MAX_UNITS */
    uint32_t splits;  /* grid_y */
    uint32_t x_shift; /* x_width is 1 << x_shift, y_width UM_KERNEL_BLOCK >> x_shift */
    uint32_t x_fast;  /* neighbouring threads have neighbouring outputs; else neighbouring units of one output */
    uint32_t store;   /* um_sum_store */
    uint32_t pack;    /* *_col, UM_SUM_RESULT: a unit's outputs are consecutive and aligned to their size together */
    uint32_t wide;    /* units exceed UM_KERNEL_MAX_UNITS: reduced[] holds 64-bit lengths, (magic << 32) | value */
    uint32_t kept_ndim, reduced_ndim; /* at least 1 */
    um_divisor kept[UM_SUM_KEPT_NDIM];
    um_divisor reduced[UM_SUM_REDUCED_NDIM];
    int64_t kept_in[UM_SUM_KEPT_NDIM];  /* strides for output units */
    int64_t kept_out[UM_SUM_KEPT_NDIM]; /* likewise, of the output */
    int64_t reduced_in[UM_SUM_REDUCED_NDIM];
    int64_t out_step; /* *_col: from output to output inside a unit */
} um_sum_params;

#endif
