/* Functions in the expressions of um_kernel_ops.h, for CUDA C++ and C. */
#ifndef UM_KERNEL_FUNCTIONS_H
#define UM_KERNEL_FUNCTIONS_H

#include <stdbool.h>

#include "kernels/um_kernel_math.h"

/* C++ overloads by type; C picks by it among names that end in the token. */
#ifdef __cplusplus
#define UM_OVERLOAD(name, token) um_##name
#define F(name)                  name
#define HF(name)                 um_##name
#define HC(name)                 um_##name
#define HU(name)                 um_##name
#else
#define UM_OVERLOAD(name, token) um_##name##_##token
#define F(name)                  _Generic((a), float: name##f, double: name)
#define HF(name)                 _Generic((a), float: um_##name##_f32, double: um_##name##_f64)
#define HC(name)                 _Generic((a), um_c64: um_##name##_c64, um_c128: um_##name##_c128)
#define HU(name)                                                                                                       \
    _Generic((a),                                                                                                      \
        uint8_t: um_##name##_u8,                                                                                       \
        uint16_t: um_##name##_u16,                                                                                     \
        uint32_t: um_##name##_u32,                                                                                     \
        uint64_t: um_##name##_u64)
#endif

/* By squaring, modulo 2^bits. */
#define UM_UNSIGNED_FUNCTIONS(token, T)                                                                                \
    UM_SHARED_CODE T UM_OVERLOAD(power, token)(T base, T exponent) {                                                   \
        T result = 1;                                                                                                  \
        while (exponent != 0) {                                                                                        \
            if (exponent & 1u) {                                                                                       \
                result = (T)(1u * result * base);                                                                      \
            }                                                                                                          \
            base = (T)(1u * base * base);                                                                              \
            exponent = (T)(exponent >> 1);                                                                             \
        }                                                                                                              \
        return result;                                                                                                 \
    }
UM_UNSIGNED_FUNCTIONS(u8, uint8_t)
UM_UNSIGNED_FUNCTIONS(u16, uint16_t)
UM_UNSIGNED_FUNCTIONS(u32, uint32_t)
UM_UNSIGNED_FUNCTIONS(u64, uint64_t)

/* As Python's divmod, which NumPy follows: the remainder has the sign of b, and the quotient is the integer nearest to (a - remainder) / b. */
#define UM_REAL_FUNCTIONS(token, T)                                                                                    \
    UM_SHARED_CODE T UM_OVERLOAD(remainder, token)(T a, T b) {                                                         \
        const T rest = F(fmod)(a, b);                                                                                  \
        if (b == 0) {                                                                                                  \
            return rest;                                                                                               \
        }                                                                                                              \
        return rest == 0 ? F(copysign)((T)0, b) : (b < 0) != (rest < 0) ? rest + b : rest;                             \
    }                                                                                                                  \
    UM_SHARED_CODE T UM_OVERLOAD(floor_divide, token)(T a, T b) {                                                      \
        const T rest = F(fmod)(a, b);                                                                                  \
        if (b == 0) {                                                                                                  \
            return a / b;                                                                                              \
        }                                                                                                              \
        T quotient = (a - rest) / b;                                                                                   \
        if (rest != 0 && (b < 0) != (rest < 0)) {                                                                      \
            quotient -= (T)1;                                                                                          \
        }                                                                                                              \
        if (quotient == 0) {                                                                                           \
            return F(copysign)((T)0, a / b);                                                                           \
        }                                                                                                              \
        const T below = F(floor)(quotient);                                                                            \
        return quotient - below > (T)0.5 ? below + (T)1 : below;                                                       \
    }                                                                                                                  \
    UM_SHARED_CODE T UM_OVERLOAD(clip, token)(T a, T low, T high) {                                                    \
        const T raised = a != a || a > low ? a : low;                                                                  \
        return raised != raised || raised < high ? raised : high;                                                      \
    }                                                                                                                  \
    UM_SHARED_CODE T UM_OVERLOAD(logaddexp, token)(T a, T b) {                                                         \
        const T difference = a - b;                                                                                    \
        if (a == b) { /* infinities of one sign too */                                                                 \
            return a + (T)0x1.62e42fefa39efp-1;                                                                        \
        }                                                                                                              \
        return difference > 0    ? a + F(log1p)(F(exp)(-difference))                                                   \
               : difference <= 0 ? b + F(log1p)(F(exp)(difference))                                                    \
                                 : difference;                                                                         \
    }                                                                                                                  \
    UM_SHARED_CODE T UM_OVERLOAD(logaddexp2, token)(T a, T b) {                                                        \
        const T difference = a - b;                                                                                    \
        const T log2_e = (T)0x1.71547652b82fep+0;                                                                      \
        if (a == b) {                                                                                                  \
            return a + (T)1;                                                                                           \
        }                                                                                                              \
        return difference > 0    ? a + log2_e * F(log1p)(F(exp2)(-difference))                                         \
               : difference <= 0 ? b + log2_e * F(log1p)(F(exp2)(difference))                                          \
                                 : difference;                                                                         \
    }
UM_REAL_FUNCTIONS(f32, float)
UM_REAL_FUNCTIONS(f64, double)

/* Complex numbers, operation by operation as NumPy's loops. They are ordered by real part, then by imaginary part; NaN is what has a NaN in
 * either part. */
#define UM_COMPLEX_FUNCTIONS(token, T, C, ABS, HYPOT, FMA)                                                             \
    UM_SHARED_CODE C UM_OVERLOAD(make, token)(T re, T im) {                                                            \
        C result;                                                                                                      \
        result.re = re;                                                                                                \
        result.im = im;                                                                                                \
        return result;                                                                                                 \
    }                                                                                                                  \
    UM_SHARED_CODE bool UM_OVERLOAD(is_true, token)(C a) { return a.re != 0 || a.im != 0; }                            \
    UM_SHARED_CODE bool UM_OVERLOAD(is_nan, token)(C a) { return a.re != a.re || a.im != a.im; }                       \
    UM_SHARED_CODE bool UM_OVERLOAD(isinf, token)(C a) {                                                               \
        return ABS(a.re) == (T)INFINITY || ABS(a.im) == (T)INFINITY;                                                   \
    }                                                                                                                  \
    UM_SHARED_CODE bool UM_OVERLOAD(less, token)(C a, C b) {                                                           \
        return (a.re < b.re && a.im == a.im && b.im == b.im) || (a.re == b.re && a.im < b.im);                         \
    }                                                                                                                  \
    UM_SHARED_CODE bool UM_OVERLOAD(less_equal, token)(C a, C b) {                                                     \
        return (a.re < b.re && a.im == a.im && b.im == b.im) || (a.re == b.re && a.im <= b.im);                        \
    }                                                                                                                  \
    UM_SHARED_CODE C UM_OVERLOAD(maximum, token)(C a, C b) {                                                           \
        return UM_OVERLOAD(is_nan, token)(a) || UM_OVERLOAD(less_equal, token)(b, a) ? a : b;                          \
    }                                                                                                                  \
    UM_SHARED_CODE C UM_OVERLOAD(minimum, token)(C a, C b) {                                                           \
        return UM_OVERLOAD(is_nan, token)(a) || UM_OVERLOAD(less_equal, token)(a, b) ? a : b;                          \
    }                                                                                                                  \
    UM_SHARED_CODE C UM_OVERLOAD(fmax, token)(C a, C b) {                                                              \
        return UM_OVERLOAD(is_nan, token)(b) || UM_OVERLOAD(less_equal, token)(b, a) ? a : b;                          \
    }                                                                                                                  \
    UM_SHARED_CODE C UM_OVERLOAD(fmin, token)(C a, C b) {                                                              \
        return UM_OVERLOAD(is_nan, token)(b) || UM_OVERLOAD(less_equal, token)(a, b) ? a : b;                          \
    }                                                                                                                  \
    UM_SHARED_CODE C UM_OVERLOAD(add, token)(C a, C b) { return UM_OVERLOAD(make, token)(a.re + b.re, a.im + b.im); }  \
    UM_SHARED_CODE C UM_OVERLOAD(subtract, token)(C a, C b) {                                                          \
        return UM_OVERLOAD(make, token)(a.re - b.re, a.im - b.im);                                                     \
    }                                                                                                                  \
    UM_SHARED_CODE C UM_OVERLOAD(multiply, token)(C a, C b) {                                                          \
        return UM_OVERLOAD(make, token)(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);                         \
    }                                                                                                                  \
    UM_SHARED_CODE C UM_OVERLOAD(fma, token)(C a, C b, C c) {                                                          \
        const T re = FMA(-a.im, b.im, c.re), im = FMA(a.im, b.re, c.im);                                               \
        return UM_OVERLOAD(make, token)(FMA(a.re, b.re, re), FMA(a.re, b.im, im));                                     \
    }                                                                                                                  \
    UM_SHARED_CODE C UM_OVERLOAD(divide, token)(C a, C b) { /* Smith's method */                                       \
        if (ABS(b.re) >= ABS(b.im)) {                                                                                  \
            if (b.re == 0 && b.im == 0) {                                                                              \
                return UM_OVERLOAD(make, token)(a.re / ABS(b.re), a.im / ABS(b.re));                                   \
            }                                                                                                          \
            const T ratio = b.im / b.re, scale = (T)1 / (b.re + b.im * ratio);                                         \
            return UM_OVERLOAD(make, token)((a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale);             \
        }                                                                                                              \
        const T ratio = b.re / b.im, scale = (T)1 / (b.im + b.re * ratio);                                             \
        return UM_OVERLOAD(make, token)((a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale);                 \
    }                                                                                                                  \
    UM_SHARED_CODE C UM_OVERLOAD(reciprocal, token)(C a) {                                                             \
        if (ABS(a.im) <= ABS(a.re)) {                                                                                  \
            const T ratio = a.im / a.re, scale = a.re + a.im * ratio;                                                  \
            return UM_OVERLOAD(make, token)((T)1 / scale, -ratio / scale);                                             \
        }                                                                                                              \
        const T ratio = a.re / a.im, scale = a.re * ratio + a.im;                                                      \
        return UM_OVERLOAD(make, token)(ratio / scale, (T) - 1 / scale);                                               \
    }                                                                                                                  \
    UM_SHARED_CODE T UM_OVERLOAD(absolute, token)(C a) { return HYPOT(a.re, a.im); }                                   \
    UM_SHARED_CODE C UM_OVERLOAD(sign, token)(C a) {                                                                   \
        const T size = HYPOT(a.re, a.im), infinity = (T)INFINITY;                                                      \
        const bool re = ABS(a.re) == infinity, im = ABS(a.im) == infinity;                                             \
        if (size != size || (re && im)) {                                                                              \
            return UM_OVERLOAD(make, token)((T)NAN, (T)NAN);                                                           \
        }                                                                                                              \
        if (re) {                                                                                                      \
            return UM_OVERLOAD(make, token)(a.re > 0 ? (T)1 : (T) - 1, (T)0);                                          \
        }                                                                                                              \
        if (im) {                                                                                                      \
            return UM_OVERLOAD(make, token)((T)0, a.im > 0 ? (T)1 : (T) - 1);                                          \
        }                                                                                                              \
        return size == 0 ? UM_OVERLOAD(make, token)((T)0, (T)0) : UM_OVERLOAD(make, token)(a.re / size, a.im / size);  \
    }
UM_COMPLEX_FUNCTIONS(c64, float, um_c64, fabsf, hypotf, fmaf)
UM_COMPLEX_FUNCTIONS(c128, double, um_c128, fabs, hypot, fma)

#undef UM_OVERLOAD
#undef UM_UNSIGNED_FUNCTIONS
#undef UM_REAL_FUNCTIONS
#undef UM_COMPLEX_FUNCTIONS

#endif
