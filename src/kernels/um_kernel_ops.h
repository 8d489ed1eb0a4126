/* Every elementwise operation, once. Expanded by the CUDA kernels, the launch table, the Python functions and the fake driver.
 *
 *   UM_OP(weight, name, inputs, bool, signed, unsigned, float, complex)
 *
 * weight   LIGHT, or HEAVY when computing takes longer than moving 16 bytes a time would gain (see UM_HAS_VEC)
 * name     NumPy's ufunc name, or the name of a fused form NumPy lacks
 * inputs   number of inputs: a, b, c of the loop's type T (a bool is 0 or 1; float16 computes as float and rounds the result once)
 * and what it does for each kind of element type, where NumPy has a loop of its own:
 *   NONE            no kernel
 *   SAME(expr)      a kernel whose result has the type of the inputs
 *   WIDE(expr)      likewise, but none for float16
 *   TRUTH(expr)     a kernel whose result is a bool
 *   REAL(expr)      a kernel whose result is the real type of T's parts
 *   UNSIGNED        the kernel of the unsigned type: the bits are the same
 *   AS(name)        the kernel of another operation
 *   SWAP(name)      likewise, with a and b exchanged
 *   ROTATE(name)    likewise, with the inputs b, c, a
 *   COPY, YES, NO   the input itself; true; false
 *
 * U is the unsigned type of T's size. F(x) is the C library's function x for float or double, HF(x) and HC(x) are um_kernel_math.h's for
 * floats and complex numbers, HU(x) those for unsigned integers. 1u * a keeps small integers from becoming (signed) int.
 * UM_OPS_PART, if defined, selects one part of the list.
 */
/* clang-format off */
#ifndef UM_OP
#error "define UM_OP before including um_kernel_ops.h"
#endif
#if !defined(UM_OPS_PART) || UM_OPS_PART == 1
UM_OP(LIGHT, add,           2, AS(logical_or),  UNSIGNED, SAME(a + b), SAME(a + b), SAME(HC(add)(a, b)))
UM_OP(LIGHT, subtract,      2, NONE,            UNSIGNED, SAME(a - b), SAME(a - b), SAME(HC(subtract)(a, b)))
UM_OP(LIGHT, multiply,      2, AS(logical_and), UNSIGNED, SAME(1u * a * b), SAME(a * b), SAME(HC(multiply)(a, b)))
UM_OP(LIGHT, true_divide,   2, NONE, NONE, NONE, SAME(a / b), SAME(HC(divide)(a, b)))
UM_OP(LIGHT, negative,      1, NONE, UNSIGNED, SAME(0u - a), SAME(-a), SAME(HC(make)(-a.re, -a.im)))
UM_OP(LIGHT, positive,      1, NONE, COPY, COPY, COPY, COPY)
UM_OP(LIGHT, absolute,      1, COPY, SAME(a < 0 ? (T)(0u - (U)a) : a), COPY, SAME(F(fabs)(a)), REAL(HC(absolute)(a)))
UM_OP(LIGHT, fabs,          1, NONE, NONE, NONE, AS(absolute), NONE)
UM_OP(LIGHT, conjugate,     1, NONE, COPY, COPY, COPY, SAME(HC(make)(a.re, -a.im)))
UM_OP(LIGHT, sign,          1, NONE, SAME((a > 0) - (a < 0)), SAME(a > 0), SAME(a > 0 ? (T)1 : a < 0 ? (T)-1 : a == 0 ? (T)0 : a), SAME(HC(sign)(a)))
UM_OP(LIGHT, reciprocal,    1, NONE, SAME(a == 0 ? (sizeof(T) < 4 ? (T)0 : (T)((U)1 << (8 * sizeof(T) - 1))) : a == 1 || a == -1 ? a : (T)0), SAME(a == 1), SAME((T)1 / a), SAME(HC(reciprocal)(a)))
UM_OP(LIGHT, square,        1, NONE, UNSIGNED, SAME(1u * a * a), SAME(a * a), SAME(HC(multiply)(a, a)))
UM_OP(LIGHT, sqrt,          1, NONE, NONE, NONE, SAME(F(sqrt)(a)), NONE)
UM_OP(LIGHT, axpy,          3, NONE, UNSIGNED, SAME(1u * a * b + c), SAME(F(fma)(a, b, c)), SAME(HC(fma)(a, b, c)))
UM_OP(LIGHT, addcmul,       3, NONE, ROTATE(axpy), ROTATE(axpy), ROTATE(axpy), ROTATE(axpy))
UM_OP(LIGHT, lerp,          3, NONE, NONE, NONE, SAME(c < (T)0.5 ? F(fma)(c, b - a, a) : F(fma)(c - (T)1, b - a, b)), NONE)
UM_OP(LIGHT, copysign,      2, NONE, NONE, NONE, SAME(F(copysign)(a, b)), NONE)
UM_OP(LIGHT, heaviside,     2, NONE, NONE, NONE, SAME(a > 0 ? (T)1 : a < 0 ? (T)0 : a == 0 ? b : a), NONE)
UM_OP(LIGHT, deg2rad,       1, NONE, NONE, NONE, SAME(a * (T)0x1.1df46a2529d39p-6), NONE)
UM_OP(LIGHT, rad2deg,       1, NONE, NONE, NONE, SAME(a * (T)0x1.ca5dc1a63c1f8p+5), NONE)
UM_OP(LIGHT, radians,       1, NONE, NONE, NONE, AS(deg2rad), NONE)
UM_OP(LIGHT, degrees,       1, NONE, NONE, NONE, AS(rad2deg), NONE)
UM_OP(LIGHT, rint,          1, NONE, NONE, NONE, SAME(F(rint)(a)), NONE)
UM_OP(LIGHT, floor,         1, COPY, COPY, COPY, SAME(F(floor)(a)), NONE)
UM_OP(LIGHT, ceil,          1, COPY, COPY, COPY, SAME(F(ceil)(a)), NONE)
UM_OP(LIGHT, trunc,         1, COPY, COPY, COPY, SAME(F(trunc)(a)), NONE)
#endif
#if !defined(UM_OPS_PART) || UM_OPS_PART == 2
UM_OP(LIGHT, equal,         2, TRUTH(a == b), UNSIGNED, TRUTH(a == b), TRUTH(a == b), TRUTH(a.re == b.re && a.im == b.im))
UM_OP(LIGHT, not_equal,     2, TRUTH(a != b), UNSIGNED, TRUTH(a != b), TRUTH(a != b), TRUTH(a.re != b.re || a.im != b.im))
UM_OP(LIGHT, less,          2, TRUTH(a < b), TRUTH(a < b), TRUTH(a < b), TRUTH(a < b), TRUTH(HC(less)(a, b)))
UM_OP(LIGHT, less_equal,    2, TRUTH(a <= b), TRUTH(a <= b), TRUTH(a <= b), TRUTH(a <= b), TRUTH(HC(less_equal)(a, b)))
UM_OP(LIGHT, greater,       2, SWAP(less), SWAP(less), SWAP(less), SWAP(less), SWAP(less))
UM_OP(LIGHT, greater_equal, 2, SWAP(less_equal), SWAP(less_equal), SWAP(less_equal), SWAP(less_equal), SWAP(less_equal))
UM_OP(LIGHT, logical_and,   2, TRUTH(a & b), UNSIGNED, TRUTH(a && b), TRUTH(a != 0 && b != 0), TRUTH(HC(is_true)(a) && HC(is_true)(b)))
UM_OP(LIGHT, logical_or,    2, TRUTH(a | b), UNSIGNED, TRUTH(a || b), TRUTH(a != 0 || b != 0), TRUTH(HC(is_true)(a) || HC(is_true)(b)))
UM_OP(LIGHT, logical_xor,   2, AS(not_equal), UNSIGNED, TRUTH(!a != !b), TRUTH((a != 0) != (b != 0)), TRUTH(HC(is_true)(a) != HC(is_true)(b)))
UM_OP(LIGHT, logical_not,   1, TRUTH(!a), UNSIGNED, TRUTH(!a), TRUTH(a == 0), TRUTH(!HC(is_true)(a)))
UM_OP(LIGHT, isnan,         1, NO, NO, NO, TRUTH(a != a), TRUTH(a.re != a.re || a.im != a.im))
UM_OP(LIGHT, isinf,         1, NO, NO, NO, TRUTH(F(fabs)(a) == (T)INFINITY), TRUTH(HC(isinf)(a)))
UM_OP(LIGHT, isfinite,      1, YES, YES, YES, TRUTH(a - a == 0), TRUTH(a.re - a.re == 0 && a.im - a.im == 0))
UM_OP(LIGHT, signbit,       1, NONE, NONE, NONE, TRUTH(F(copysign)((T)1, a) < 0), NONE)
UM_OP(LIGHT, maximum,       2, AS(logical_or), SAME(a > b ? a : b), SAME(a > b ? a : b), SAME(a >= b || a != a ? a : b), SAME(HC(maximum)(a, b)))
UM_OP(LIGHT, minimum,       2, AS(logical_and), SAME(a < b ? a : b), SAME(a < b ? a : b), SAME(a <= b || a != a ? a : b), SAME(HC(minimum)(a, b)))
UM_OP(LIGHT, fmax,          2, AS(logical_or), AS(maximum), AS(maximum), SAME(a >= b || b != b ? a : b), SAME(HC(fmax)(a, b)))
UM_OP(LIGHT, fmin,          2, AS(logical_and), AS(minimum), AS(minimum), SAME(a <= b || b != b ? a : b), SAME(HC(fmin)(a, b)))
UM_OP(LIGHT, clip,          3, SAME((a | b) & c), SAME((a > b ? a : b) < c ? (a > b ? a : b) : c), SAME((a > b ? a : b) < c ? (a > b ? a : b) : c), SAME(HF(clip)(a, b, c)), NONE)
UM_OP(LIGHT, bitwise_and,   2, AS(logical_and), UNSIGNED, SAME(a & b), NONE, NONE)
UM_OP(LIGHT, bitwise_or,    2, AS(logical_or), UNSIGNED, SAME(a | b), NONE, NONE)
UM_OP(LIGHT, bitwise_xor,   2, AS(not_equal), UNSIGNED, SAME(a ^ b), NONE, NONE)
UM_OP(LIGHT, invert,        1, AS(logical_not), UNSIGNED, SAME(~a), NONE, NONE)
UM_OP(LIGHT, left_shift,    2, NONE, UNSIGNED, SAME(b < 8 * sizeof(T) ? (1u * a) << b : 0), NONE, NONE)
UM_OP(LIGHT, right_shift,   2, NONE, SAME((U)b < 8 * sizeof(T) ? a >> b : a < 0 ? -1 : 0), SAME(b < 8 * sizeof(T) ? a >> b : 0), NONE, NONE)
#endif
#if !defined(UM_OPS_PART) || UM_OPS_PART == 3
UM_OP(HEAVY, floor_divide,  2, NONE, SAME(b == 0 ? (T)0 : b == -1 ? (T)(0u - (U)a) : a / b - (a % b != 0 && (a % b < 0) != (b < 0))), SAME(b == 0 ? 0 : a / b), SAME(HF(floor_divide)(a, b)), NONE)
UM_OP(HEAVY, remainder,     2, NONE, SAME(b == 0 || b == -1 ? 0 : a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0)), SAME(b == 0 ? 0 : a % b), SAME(HF(remainder)(a, b)), NONE)
UM_OP(HEAVY, fmod,          2, NONE, SAME(b == 0 || b == -1 ? 0 : a % b), SAME(b == 0 ? 0 : a % b), SAME(F(fmod)(a, b)), NONE)
UM_OP(HEAVY, power,         2, NONE, UNSIGNED, SAME(HU(power)(a, b)), SAME(F(pow)(a, b)), NONE)
UM_OP(HEAVY, cbrt,          1, NONE, NONE, NONE, SAME(F(cbrt)(a)), NONE)
UM_OP(LIGHT, exp,           1, NONE, NONE, NONE, SAME(F(exp)(a)), NONE)
UM_OP(LIGHT, exp2,          1, NONE, NONE, NONE, SAME(F(exp2)(a)), NONE)
UM_OP(HEAVY, expm1,         1, NONE, NONE, NONE, SAME(F(expm1)(a)), NONE)
UM_OP(HEAVY, log,           1, NONE, NONE, NONE, SAME(F(log)(a)), NONE)
UM_OP(HEAVY, log2,          1, NONE, NONE, NONE, SAME(F(log2)(a)), NONE)
UM_OP(HEAVY, log10,         1, NONE, NONE, NONE, SAME(F(log10)(a)), NONE)
UM_OP(HEAVY, log1p,         1, NONE, NONE, NONE, SAME(F(log1p)(a)), NONE)
UM_OP(HEAVY, logaddexp,     2, NONE, NONE, NONE, SAME(HF(logaddexp)(a, b)), NONE)
UM_OP(HEAVY, logaddexp2,    2, NONE, NONE, NONE, SAME(HF(logaddexp2)(a, b)), NONE)
UM_OP(HEAVY, nextafter,     2, NONE, NONE, NONE, WIDE(F(nextafter)(a, b)), NONE)
#endif
#if !defined(UM_OPS_PART) || UM_OPS_PART == 4
UM_OP(HEAVY, sin,           1, NONE, NONE, NONE, SAME(F(sin)(a)), NONE)
UM_OP(HEAVY, cos,           1, NONE, NONE, NONE, SAME(F(cos)(a)), NONE)
UM_OP(HEAVY, tan,           1, NONE, NONE, NONE, SAME(F(tan)(a)), NONE)
UM_OP(HEAVY, arcsin,        1, NONE, NONE, NONE, SAME(F(asin)(a)), NONE)
UM_OP(HEAVY, arccos,        1, NONE, NONE, NONE, SAME(F(acos)(a)), NONE)
UM_OP(HEAVY, arctan,        1, NONE, NONE, NONE, SAME(F(atan)(a)), NONE)
UM_OP(HEAVY, arctan2,       2, NONE, NONE, NONE, SAME(F(atan2)(a, b)), NONE)
UM_OP(HEAVY, hypot,         2, NONE, NONE, NONE, SAME(F(hypot)(a, b)), NONE)
UM_OP(HEAVY, sinh,          1, NONE, NONE, NONE, SAME(F(sinh)(a)), NONE)
UM_OP(HEAVY, cosh,          1, NONE, NONE, NONE, SAME(F(cosh)(a)), NONE)
UM_OP(HEAVY, tanh,          1, NONE, NONE, NONE, SAME(F(tanh)(a)), NONE)
UM_OP(HEAVY, arcsinh,       1, NONE, NONE, NONE, SAME(F(asinh)(a)), NONE)
UM_OP(HEAVY, arccosh,       1, NONE, NONE, NONE, SAME(F(acosh)(a)), NONE)
UM_OP(HEAVY, arctanh,       1, NONE, NONE, NONE, SAME(F(atanh)(a)), NONE)
#endif
/* clang-format on */
