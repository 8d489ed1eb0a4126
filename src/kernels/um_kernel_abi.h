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

/* X(name, token): kernels um_<name>_<token>_{elem,row,col}. um_kernel_reduce.c makes all reductions from these:
 * sum, prod; squares, the sum of |x - mean|^2; count, of elements that are not 0 under a mask; min and argmin, of elements whose bits have been
 * flipped by a mask, which makes maxima of minima and unsigned integers of signed ones. */
#define UM_FOR_EACH_REDUCER(X) X(sum) X(prod) X(squares) X(count) X(min) X(argmin)
#define UM_FOR_EACH_REDUCE(X)  UM_FOR_EACH_TOTAL(X) UM_FOR_EACH_MIN(X, min) UM_FOR_EACH_MIN(X, argmin)
/* clang-format off */
#define UM_FOR_EACH_TOTAL(X) \
    X(sum, i8) X(sum, u8) X(sum, i16) X(sum, u16) X(sum, i32) X(sum, u32) X(sum, u64) X(sum, f16) X(sum, f32) X(sum, f64) X(sum, c64) X(sum, c128) \
    X(prod, u64) X(prod, f32) X(prod, f64) X(prod, c64) X(prod, c128) \
    X(squares, f16) X(squares, f32) X(squares, f64) X(squares, c64) X(squares, c128) \
    X(count, u8) X(count, u16) X(count, u32) X(count, u64) X(count, c128)
/* clang-format on */
#define UM_FOR_EACH_MIN(X, name)                                                                                       \
    X(name, u8) X(name, u16) X(name, u32) X(name, u64) X(name, f16) X(name, f32) X(name, f64) X(name, c64) X(name, c128)

/* The argument where several elements of the token's type fit UM_VECTOR_BYTES. Others have *_elem kernels only. */
#define UM_IF_PACKS(token, ...) UM_IF_PACKS_##token(__VA_ARGS__)
#define UM_IF_PACKS_i8(...)     __VA_ARGS__
#define UM_IF_PACKS_u8(...)     __VA_ARGS__
#define UM_IF_PACKS_i16(...)    __VA_ARGS__
#define UM_IF_PACKS_u16(...)    __VA_ARGS__
#define UM_IF_PACKS_i32(...)    __VA_ARGS__
#define UM_IF_PACKS_u32(...)    __VA_ARGS__
#define UM_IF_PACKS_u64(...)    __VA_ARGS__
#define UM_IF_PACKS_f16(...)    __VA_ARGS__
#define UM_IF_PACKS_f32(...)    __VA_ARGS__
#define UM_IF_PACKS_f64(...)    __VA_ARGS__
#define UM_IF_PACKS_c64(...)    __VA_ARGS__
#define UM_IF_PACKS_c128(...)

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

/* --- reductions ----------------------------------------------------------------------------------------------------- */

#define UM_REDUCE_KEPT_NDIM    8
#define UM_REDUCE_REDUCED_NDIM 32
#define UM_REDUCE_UNROLL_VEC   4 /* units of a thread in flight, kernels *_row and *_col */
#define UM_REDUCE_UNROLL_ELEM  8 /* likewise, *_elem */

/* How a result is stored. A partial result is a float64 (of complex numbers a complex128) for sum, prod and squares of such types, a uint64 for
 * those of integers and for count, an element for min, and for argmin an element and, in `positions`, its place. */
typedef enum um_reduce_store {
    UM_STORE_PARTIAL,
    UM_STORE_SAME, /* as a partial result; of argmin the place, as int64 */
    UM_STORE_F16,  /* sum, prod and squares of float types; of complex numbers each part */
    UM_STORE_F32,
    UM_STORE_F64,
    UM_STORE_ANY, /* integers: a bool, whether the sum is not 0 */
    UM_STORE_ALL, /* likewise, whether it is `total` */
} um_reduce_store;

/* Block (bx, by) computes outputs [bx * x_width, ...), and so on in steps of the grid, over units [by * chunk, ...) of their reduction;
 * y_width threads share an output's units. A reduction unit is one element, in *_row 16 bytes of them along the innermost reduced dimension. An output
 * unit is one output, in *_col the 16 bytes of input that are consecutive along the innermost kept dimension.
 * Split s of output o (counted in elements) is stored at out[o * splits + s] when splits > 1.
 * The place that argmin finds is the number of the element in the order of `reduced`. When the input is partial results, positions[o * units + place]
 * stands for it. */
typedef struct um_reduce_params {
    const char *in;
    char *out;
    const char *mean;   /* squares: one for each output, float32 or float64 (parts) */
    int64_t *positions; /* argmin: of partial results, written or read; else NULL */
    uint64_t bits;      /* min, argmin: flipped in each 8 bytes of input; count: kept */
    uint64_t total;     /* UM_STORE_ALL */
    uint64_t units;     /* of each output's reduction */
    uint64_t chunk;     /* units of one split, > 0 */
    uint32_t tail;      /* *_row, one reduced dimension: elements that follow the last unit */
    uint32_t outputs;   /* output units, at most UM_KERNEL_MAX_UNITS */
    uint32_t splits;    /* grid_y */
    uint32_t x_shift;   /* x_width is 1 << x_shift, y_width UM_KERNEL_BLOCK >> x_shift */
    uint32_t x_fast;    /* neighbouring threads have neighbouring outputs; else neighbouring units of one output */
    uint32_t store;     /* um_reduce_store */
    uint32_t
        pack; /* *_col, splits is 1, `store` gives the kernel's own type (UM_STORE_SAME, or as float as the input): a unit's
                         * outputs are consecutive and aligned to their size together */
    uint32_t wide; /* units exceed UM_KERNEL_MAX_UNITS: reduced[] holds 64-bit lengths, (magic << 32) | value */
    uint32_t kept_ndim, reduced_ndim; /* at least 1 */
    um_divisor kept[UM_REDUCE_KEPT_NDIM];
    um_divisor reduced[UM_REDUCE_REDUCED_NDIM];
    int64_t kept_in[UM_REDUCE_KEPT_NDIM];   /* strides for output units */
    int64_t kept_mean[UM_REDUCE_KEPT_NDIM]; /* likewise, of the mean */
    int64_t kept_out[UM_REDUCE_KEPT_NDIM];  /* likewise, of the output */
    int64_t reduced_in[UM_REDUCE_REDUCED_NDIM];
    int64_t mean_step, out_step; /* *_col: from output to output inside a unit */
} um_reduce_params;

#endif
