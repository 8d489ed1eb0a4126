/* Element types and the arithmetic that the kernels (CUDA C++), their stand-ins in the fake driver (C) and the launchers (C) share. */
#ifndef UM_KERNEL_MATH_H
#define UM_KERNEL_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define UM_SHARED_CODE    static __host__ __device__ __forceinline__
#define UM_ALIGNED(bytes) alignas(bytes)
#else
#define UM_SHARED_CODE    static inline
#define UM_ALIGNED(bytes) _Alignas(bytes)
#endif

/* --- types ------------------------------------------------------------------------------------------------------------ */

/* IEEE 754 binary16. It is stored only: arithmetic converts to float and rounds once. */
typedef struct um_f16 {
    uint16_t bits;
} um_f16;

typedef struct um_c64 {
    UM_ALIGNED(8) float re;
    float im;
} um_c64;

typedef struct um_c128 {
    UM_ALIGNED(16) double re;
    double im;
} um_c128;

/* X(token, enumerator of um_dtype, NumPy's name), in the order of um_dtype. Names of kernels are built from the tokens. */
#define UM_FOR_EACH_DTYPE(X)                                                                                           \
    X(b1, UM_BOOL, "bool")                                                                                             \
    X(i8, UM_INT8, "int8")                                                                                             \
    X(u8, UM_UINT8, "uint8")                                                                                           \
    X(i16, UM_INT16, "int16")                                                                                          \
    X(u16, UM_UINT16, "uint16")                                                                                        \
    X(i32, UM_INT32, "int32")                                                                                          \
    X(u32, UM_UINT32, "uint32")                                                                                        \
    X(i64, UM_INT64, "int64")                                                                                          \
    X(u64, UM_UINT64, "uint64")                                                                                        \
    X(f16, UM_FLOAT16, "float16")                                                                                      \
    X(f32, UM_FLOAT32, "float32")                                                                                      \
    X(f64, UM_FLOAT64, "float64")                                                                                      \
    X(c64, UM_COMPLEX64, "complex64")                                                                                  \
    X(c128, UM_COMPLEX128, "complex128")

/* The C type of a token's elements. A bool is a byte, true unless 0. */
#define UM_TYPE(token) UM_TYPE_##token
#define UM_TYPE_b1     uint8_t
#define UM_TYPE_i8     int8_t
#define UM_TYPE_u8     uint8_t
#define UM_TYPE_i16    int16_t
#define UM_TYPE_u16    uint16_t
#define UM_TYPE_i32    int32_t
#define UM_TYPE_u32    uint32_t
#define UM_TYPE_i64    int64_t
#define UM_TYPE_u64    uint64_t
#define UM_TYPE_f16    um_f16
#define UM_TYPE_f32    float
#define UM_TYPE_f64    double
#define UM_TYPE_c64    um_c64
#define UM_TYPE_c128   um_c128

/* --- half precision ----------------------------------------------------------------------------------------------------- */

UM_SHARED_CODE double um_cast_f16_to_f64(um_f16 x) {
#ifdef __CUDA_ARCH__
    double value;
    asm("cvt.f64.f16 %0, %1;" : "=d"(value) : "h"(x.bits));
    return value;
#else
    const uint64_t sign = (uint64_t)(x.bits >> 15) << 63;
    const uint64_t magnitude = x.bits & 0x7fffu;
    uint64_t bits = (magnitude << 42) + ((uint64_t)(1023 - 15) << 52);
    double value;
    if (magnitude < 0x400) { /* zero and the subnormal numbers, multiples of 2^-24 */
        value = (double)magnitude * 0x1p-24;
        memcpy(&bits, &value, sizeof bits);
    } else if (magnitude >= 0x7c00) { /* infinity and NaN */
        bits = (magnitude << 42) | (uint64_t)0x7ff << 52;
    }
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
#endif
}

UM_SHARED_CODE float um_cast_f16_to_f32(um_f16 x) {
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
    return value;
#else
    return (float)um_cast_f16_to_f64(x);
#endif
}

/* Rounds to nearest, ties to even. */
UM_SHARED_CODE um_f16 um_cast_f64_to_f16(double x) {
    um_f16 result;
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(result.bits) : "d"(x));
#else
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint16_t sign = (uint16_t)(bits >> 63 << 15);
    const double magnitude = fabs(x);
    bits &= UINT64_MAX >> 1;
    if (!(magnitude < 65520)) { /* above the middle between the largest number and the next */
        result.bits = (uint16_t)(sign | (magnitude >= 65520 ? 0x7c00 : 0x7e00));
    } else if (magnitude < 0x1p-14) {
        result.bits = (uint16_t)(sign | (uint16_t)(int)nearbyint(magnitude * 0x1p24));
    } else {
        bits += ((uint64_t)1 << 41) - 1 + (bits >> 42 & 1);
        result.bits = (uint16_t)(sign | (uint16_t)((bits >> 42) - ((uint64_t)(1023 - 15) << 10)));
    }
#endif
    return result;
}

UM_SHARED_CODE um_f16 um_cast_f32_to_f16(float x) {
#ifdef __CUDA_ARCH__
    um_f16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
#else
    return um_cast_f64_to_f16((double)x);
#endif
}

/* --- conversions as C makes them on x86-64, which NumPy shows -------------------------------------------------------------- */

/* A float that does not fit an integer, or is NaN, becomes the least int32 or int64. Narrower integers are cut from int32, uint32 from
 * int64. (NumPy's own vector code differs for uint32, from element to element.) */
UM_SHARED_CODE int32_t um_cast_f32_to_i32(float x) { return x >= -0x1p31f && x < 0x1p31f ? (int32_t)x : INT32_MIN; }
UM_SHARED_CODE int32_t um_cast_f64_to_i32(double x) {
    return x > -0x1.00000002p31 && x < 0x1p31 ? (int32_t)x : INT32_MIN;
}
UM_SHARED_CODE int64_t um_cast_f32_to_i64(float x) { return x >= -0x1p63f && x < 0x1p63f ? (int64_t)x : INT64_MIN; }
UM_SHARED_CODE int64_t um_cast_f64_to_i64(double x) { return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN; }
UM_SHARED_CODE uint64_t um_cast_f64_to_u64(double x) {
    return x >= 0x1p63 ? (uint64_t)um_cast_f64_to_i64(x - 0x1p63) ^ (uint64_t)1 << 63 : (uint64_t)um_cast_f64_to_i64(x);
}
UM_SHARED_CODE uint64_t um_cast_f32_to_u64(float x) {
    return x >= 0x1p63f ? (uint64_t)um_cast_f32_to_i64(x - 0x1p63f) ^ (uint64_t)1 << 63
                        : (uint64_t)um_cast_f32_to_i64(x);
}
UM_SHARED_CODE uint32_t um_cast_f32_to_u32(float x) { return (uint32_t)(uint64_t)um_cast_f32_to_i64(x); }
UM_SHARED_CODE uint32_t um_cast_f64_to_u32(double x) { return (uint32_t)(uint64_t)um_cast_f64_to_i64(x); }
UM_SHARED_CODE uint16_t um_cast_f32_to_u16(float x) { return (uint16_t)(uint32_t)um_cast_f32_to_i32(x); }
UM_SHARED_CODE uint16_t um_cast_f64_to_u16(double x) { return (uint16_t)(uint32_t)um_cast_f64_to_i32(x); }
UM_SHARED_CODE uint8_t um_cast_f32_to_u8(float x) { return (uint8_t)(uint32_t)um_cast_f32_to_i32(x); }
UM_SHARED_CODE uint8_t um_cast_f64_to_u8(double x) { return (uint8_t)(uint32_t)um_cast_f64_to_i32(x); }
UM_SHARED_CODE double um_cast_f32_to_f64(float x) { return (double)x; }
UM_SHARED_CODE float um_cast_f64_to_f32(double x) { return (float)x; }
UM_SHARED_CODE uint8_t um_cast_f32_to_b1(float x) { return x != 0; }
UM_SHARED_CODE uint8_t um_cast_f64_to_b1(double x) { return x != 0; }
UM_SHARED_CODE uint8_t um_cast_c64_to_b1(um_c64 x) { return x.re != 0 || x.im != 0; }
UM_SHARED_CODE uint8_t um_cast_c128_to_b1(um_c128 x) { return x.re != 0 || x.im != 0; }
UM_SHARED_CODE um_c128 um_cast_c64_to_c128(um_c64 x) {
    const um_c128 result = {(double)x.re, (double)x.im};
    return result;
}
UM_SHARED_CODE um_c64 um_cast_c128_to_c64(um_c128 x) {
    const um_c64 result = {(float)x.re, (float)x.im};
    return result;
}

/* The casts that have a kernel, X(from, to). um_kernel_cast.c makes all others from these: integers of one size share them where the
 * bits do, a bool is read as a uint8, a complex number's parts are moved on their own. */
#define UM_FOR_EACH_INT_CAST(X)                                                                                        \
    X(u16, u8)                                                                                                         \
    X(u32, u8)                                                                                                         \
    X(u32, u16)                                                                                                        \
    X(u64, u8)                                                                                                         \
    X(u64, u16)                                                                                                        \
    X(u64, u32)                                                                                                        \
    X(u8, u16)                                                                                                         \
    X(u8, u32)                                                                                                         \
    X(u8, u64)                                                                                                         \
    X(u16, u32)                                                                                                        \
    X(u16, u64)                                                                                                        \
    X(u32, u64)                                                                                                        \
    X(i8, u16)                                                                                                         \
    X(i8, u32)                                                                                                         \
    X(i8, u64)                                                                                                         \
    X(i16, u32)                                                                                                        \
    X(i16, u64)                                                                                                        \
    X(i32, u64)
#define UM_FOR_EACH_INT(X)      X(i8) X(u8) X(i16) X(u16) X(i32) X(u32) X(i64) X(u64)
#define UM_FOR_EACH_UNSIGNED(X) X(u8) X(u16) X(u32) X(u64)
/* clang-format off */
#define UM_FOR_EACH_CAST(X) \
    UM_FOR_EACH_INT_CAST(X) \
    X(i8, f16) X(i8, f32) X(i8, f64) \
    X(u8, f16) X(u8, f32) X(u8, f64) \
    X(i16, f16) X(i16, f32) X(i16, f64) \
    X(u16, f16) X(u16, f32) X(u16, f64) \
    X(i32, f16) X(i32, f32) X(i32, f64) \
    X(u32, f16) X(u32, f32) X(u32, f64) \
    X(i64, f16) X(i64, f32) X(i64, f64) \
    X(u64, f16) X(u64, f32) X(u64, f64) \
    X(f16, u8) X(f16, u16) X(f16, i32) X(f16, u32) X(f16, i64) X(f16, u64) \
    X(f32, u8) X(f32, u16) X(f32, i32) X(f32, u32) X(f32, i64) X(f32, u64) \
    X(f64, u8) X(f64, u16) X(f64, i32) X(f64, u32) X(f64, i64) X(f64, u64) \
    X(f16, f32) X(f16, f64) \
    X(f32, f16) X(f32, f64) \
    X(f64, f16) X(f64, f32) \
    X(u8, b1) \
    X(u16, b1) \
    X(u32, b1) \
    X(u64, b1) \
    X(f16, b1) \
    X(f32, b1) \
    X(f64, b1) \
    X(c64, b1) \
    X(c128, b1) \
    X(c64, c128) \
    X(c128, c64)
/* clang-format on */

#define UM_CAST_INT(from, to)                                                                                          \
    UM_SHARED_CODE UM_TYPE(to) um_cast_##from##_to_##to(UM_TYPE(from) x) { return (UM_TYPE(to))x; }
UM_FOR_EACH_INT_CAST(UM_CAST_INT)
#define UM_CAST_INT_TO_FLOAT(from)                                                                                     \
    UM_SHARED_CODE float um_cast_##from##_to_f32(UM_TYPE(from) x) { return (float)x; }                                 \
    UM_SHARED_CODE double um_cast_##from##_to_f64(UM_TYPE(from) x) { return (double)x; }                               \
    UM_SHARED_CODE um_f16 um_cast_##from##_to_f16(UM_TYPE(from) x) { return um_cast_f32_to_f16((float)x); }
UM_FOR_EACH_INT(UM_CAST_INT_TO_FLOAT)
#define UM_CAST_INT_TO_BOOL(from)                                                                                      \
    UM_SHARED_CODE uint8_t um_cast_##from##_to_b1(UM_TYPE(from) x) { return x != 0; }
UM_FOR_EACH_UNSIGNED(UM_CAST_INT_TO_BOOL)
#define UM_CAST_F16(to)                                                                                                \
    UM_SHARED_CODE UM_TYPE(to) um_cast_f16_to_##to(um_f16 x) { return um_cast_f32_to_##to(um_cast_f16_to_f32(x)); }
UM_CAST_F16(u8)
UM_CAST_F16(u16)
UM_CAST_F16(i32)
UM_CAST_F16(u32)
UM_CAST_F16(i64)
UM_CAST_F16(u64)
UM_CAST_F16(b1)
#undef UM_CAST_INT
#undef UM_CAST_INT_TO_FLOAT
#undef UM_CAST_INT_TO_BOOL
#undef UM_CAST_F16

#endif
