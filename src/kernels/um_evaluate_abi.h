/* The register machine of um_evaluate.cu: its instructions and parameters, shared with the launcher and with the fake driver.
 *
 * A register holds one cell for each element. Cells are 32 bits in narrow machines (bool, integers up to int32, float32) and 64 bits in
 * wide ones (these, uint32, int64 and float64): integers as int32 or int64, bool as 0 or 1, floats as their bits in the low part.
 */
#ifndef UM_EVALUATE_ABI_H
#define UM_EVALUATE_ABI_H

#include "kernels/um_kernel_abi.h"

/* --- instructions ------------------------------------------------------------------------------------------------------ */

/* X(name, value): a and b are operands of the type T, FN(x) is C's function x for T (sinf or sin), HELP(x) one of um_evaluate_math.h,
 * U the unsigned type in which integers wrap. Names are those of NumPy's ufuncs. */

/* clang-format off */
#define UM_EVALUATE_FLOAT_OPS(X)                                                                                       \
    X(add, a + b)                        X(subtract, a - b)                                                            \
    X(multiply, a * b)                   X(true_divide, a / b)                                                         \
    X(floor_divide, HELP(floor_divide)(a, b)) X(remainder, HELP(remainder)(a, b))                                      \
    X(fmod, FN(fmod)(a, b))              X(power, FN(pow)(a, b))                                                       \
    X(minimum, a <= b || a != a ? a : b) X(maximum, a >= b || a != a ? a : b)                                          \
    X(arctan2, FN(atan2)(a, b))          X(hypot, FN(hypot)(a, b))                                                     \
    X(negative, -a)                      X(absolute, FN(fabs)(a))                                                      \
    X(square, a * a)                     X(sqrt, FN(sqrt)(a))                                                          \
    X(floor, FN(floor)(a))               X(ceil, FN(ceil)(a))                                                          \
    X(trunc, FN(trunc)(a))               X(rint, FN(rint)(a))                                                          \
    X(exp, FN(exp)(a))                   X(exp2, FN(exp2)(a))                                                          \
    X(expm1, FN(expm1)(a))               X(log, FN(log)(a))                                                            \
    X(log2, FN(log2)(a))                 X(log10, FN(log10)(a))                                                        \
    X(log1p, FN(log1p)(a))               X(sin, HELP(sin)(a))                                                          \
    X(cos, HELP(cos)(a))                 X(tan, HELP(tan)(a))                                                          \
    X(arcsin, FN(asin)(a))               X(arccos, FN(acos)(a))                                                        \
    X(arctan, FN(atan)(a))               X(sinh, FN(sinh)(a))                                                          \
    X(cosh, FN(cosh)(a))                 X(tanh, FN(tanh)(a))                                                          \
    X(arcsinh, FN(asinh)(a))             X(arccosh, FN(acosh)(a))                                                      \
    X(arctanh, FN(atanh)(a))

/* Results are bool. */
#define UM_EVALUATE_FLOAT_TESTS(X)                                                                                     \
    X(equal, a == b)      X(not_equal, a != b)        X(less, a < b)                                                   \
    X(less_equal, a <= b) X(greater, a > b)           X(greater_equal, a >= b)                                         \
    X(isnan, a != a)      X(isfinite, a - a == 0)     X(isinf, a == a && a - a != 0)                                   \
    X(nonzero, a != 0)

#define UM_EVALUATE_INT_OPS(X)                                                                                         \
    X(add, (T)((U)a + (U)b))                  X(subtract, (T)((U)a - (U)b))                                            \
    X(multiply, (T)((U)a * (U)b))             X(floor_divide, HELP(floor_divide)(a, b))                                \
    X(remainder, HELP(remainder)(a, b))       X(fmod, HELP(fmod)(a, b))                                                \
    X(bitwise_and, a & b)                     X(bitwise_or, a | b)                                                     \
    X(bitwise_xor, a ^ b)                     X(left_shift, HELP(left_shift)(a, b))                                    \
    X(right_shift, HELP(right_shift)(a, b))   X(minimum, a < b ? a : b)                                                \
    X(maximum, a > b ? a : b)                 X(negative, (T)(0 - (U)a))                                               \
    X(absolute, a < 0 ? (T)(0 - (U)a) : a)    X(invert, ~a)                                                            \
    X(equal, a == b)                          X(not_equal, a != b)                                                     \
    X(less, a < b)                            X(less_equal, a <= b)                                                    \
    X(greater, a > b)                         X(greater_equal, a >= b)                                                 \
    X(logical_not, a == 0)                    X(nonzero, a != 0)                                                       \
    X(to_int8, (int8_t)a)                     X(to_uint8, (uint8_t)a)                                                  \
    X(to_int16, (int16_t)a)                   X(to_uint16, (uint16_t)a)

/* Wide machines only. */
#define UM_EVALUATE_WIDE_INT_OPS(X)                                                                                    \
    X(to_int32, (int32_t)(uint32_t)(U)a)      X(to_uint32, (uint32_t)(U)a)
/* clang-format on */

/* f32_*: float32, f64_*: float64 (wide machines only), int_*: integers of a cell's width. */
typedef enum um_evaluate_op {
    UM_EVALUATE_COPY,  /* a */
    UM_EVALUATE_WHERE, /* a ? b : c; a is an integer */
#define X(name, value) UM_EVALUATE_F32_##name,
    UM_EVALUATE_FLOAT_OPS(X) UM_EVALUATE_FLOAT_TESTS(X)
#undef X
#define X(name, value) UM_EVALUATE_INT_##name,
        UM_EVALUATE_INT_OPS(X)
#undef X
            UM_EVALUATE_INT_TO_F32,
    UM_EVALUATE_NARROW_COUNT, /* what follows is for wide machines */
#define X(name, value) UM_EVALUATE_INT_##name,
    UM_EVALUATE_WIDE_INT_OPS(X)
#undef X
#define X(name, value) UM_EVALUATE_F64_##name,
        UM_EVALUATE_FLOAT_OPS(X) UM_EVALUATE_FLOAT_TESTS(X)
#undef X
            UM_EVALUATE_INT_TO_F64,
    UM_EVALUATE_F32_TO_F64,
    UM_EVALUATE_F64_TO_F32,
    UM_EVALUATE_OP_COUNT,
} um_evaluate_op;

/* What an operand code means: a register, a constant, the result of the step before, or nothing. */
#define UM_EVALUATE_CONSTANT 0x80 /* + number of the constant */
#define UM_EVALUATE_PREVIOUS 0xfe
#define UM_EVALUATE_NONE     0xff

/* One instruction. Operations with fewer operands have NONE for the others. The result stays at hand for the next step, and goes to the
 * register `store` too unless that is NONE. */
typedef struct um_evaluate_step {
    uint8_t op; /* um_evaluate_op */
    uint8_t a, b, c;
    uint8_t store;
    uint8_t unused[3];
} um_evaluate_step;

/* --- parameters --------------------------------------------------------------------------------------------------------- */

#define UM_EVALUATE_INPUTS    8
#define UM_EVALUATE_OUT       UM_EVALUATE_INPUTS /* slot of the output */
#define UM_EVALUATE_STEPS     128
#define UM_EVALUATE_CONSTANTS 64
#define UM_EVALUATE_NDIM      8

/* Machines: registers are in shared memory, of which a block has 48 KiB: X(name, bytes of a cell, elements of a thread). */
#define UM_FOR_EACH_EVALUATE(X)                                                                                        \
    X(n8, 4, 8)                                                                                                        \
    X(n4, 4, 4)                                                                                                        \
    X(w2, 8, 2)
#define UM_EVALUATE_SHARED_BYTES            49152u
#define UM_EVALUATE_REGISTER_BYTES(c, v)    ((uint32_t)(c) * (v) * UM_KERNEL_BLOCK) /* of one register of a block */
#define UM_EVALUATE_MACHINE_REGISTERS(c, v) (UM_EVALUATE_SHARED_BYTES / UM_EVALUATE_REGISTER_BYTES(c, v))
#define UM_EVALUATE_REGISTERS               12u /* of n4 and w2; n8 has half of it */

/* How an element becomes a cell. Stores need the size only. */
typedef enum um_evaluate_kind {
    UM_EVALUATE_U8,
    UM_EVALUATE_I8,
    UM_EVALUATE_U16,
    UM_EVALUATE_I16,
    UM_EVALUATE_U32, /* uint32 and float32 */
    UM_EVALUATE_I32,
    UM_EVALUATE_B64, /* int64 and float64 */
    UM_EVALUATE_KIND_COUNT,
} um_evaluate_kind;

UM_SHARED_CODE uint32_t um_evaluate_kind_size(uint32_t kind) { return kind >= UM_EVALUATE_B64 ? 8 : 1u << (kind >> 1); }

/* A unit is one element, or `lanes` elements that lie side by side along the innermost dimension in every operand (or are one and the
 * same, with a stride of 0) and are aligned to their size together. An operand's unit (x0, x1, …) is at data + x0 * strides[0] + …. */
typedef struct um_evaluate_operand {
    char *data;
    int64_t strides[UM_EVALUATE_NDIM]; /* bytes; of units */
} um_evaluate_operand;

typedef struct um_evaluate_params {
    uint32_t units; /* at most UM_KERNEL_MAX_UNITS */
    uint32_t lanes; /* 1, or 16 bytes of cells */
    uint32_t ndim;  /* 1 to UM_EVALUATE_NDIM */
    uint32_t inputs;
    uint32_t steps;
    uint8_t kinds[UM_EVALUATE_INPUTS + 4];
    um_divisor shape[UM_EVALUATE_NDIM]; /* units; of the outermost only `value` is set */
    um_evaluate_operand operands[UM_EVALUATE_INPUTS + 1];
    uint64_t constants[UM_EVALUATE_CONSTANTS];
    UM_ALIGNED(8) um_evaluate_step program[UM_EVALUATE_STEPS];
} um_evaluate_params;

#endif
