/* sin, cos and tan for um_evaluate.cu. CUDA's own reduce large arguments with an array in local memory; these need none.
 *
 * The argument is a = q * pi/2 + r with |r| <= pi/4 and some more. Up to a limit, three FMAs take q times pi/2, in three parts, away.
 * Beyond, q mod 4 and r are read off the fraction of a * 2/pi in fixed point (Payne and Hanek, "Radian Reduction for Trigonometric
 * Functions", 1983), for which a window of the bits of 2/pi is enough: those before it make whole turns. Polynomials interpolate sine and
 * cosine at Chebyshev nodes.
 */
#ifndef UM_EVALUATE_TRIG_H
#define UM_EVALUATE_TRIG_H

#ifndef __CUDACC__
#include <math.h>
#include <stdbool.h>
#include <string.h>
#endif

#include "kernels/um_kernel_abi.h"

#ifdef __CUDACC__
#define UM_TRIG_TABLE static __constant__ const
#else
#define UM_TRIG_TABLE static const
#endif

/* --- float32 ----------------------------------------------------------------------------------------------------------------- */

#define UM_TRIG_F32_LIMIT 65536.0f

UM_SHARED_CODE uint32_t um_f32_bits(float x) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(x);
#else
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
#endif
}

/* 32 bits of 2/pi from bit `at` on, where bit 32 has the weight of a half. */
UM_SHARED_CODE uint32_t um_two_over_pi_32(uint32_t at) {
    UM_TRIG_TABLE uint32_t words[] = {0,          0xa2f9836e, 0x4e441529, 0xfc2757d1,
                                      0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab};
    const uint32_t word = at >> 5;
    const uint64_t both = (uint64_t)words[word] << 32 | words[word + 1];
    return (uint32_t)(both << (at & 31) >> 32);
}

/* For finite |a| >= 256. */
UM_SHARED_CODE uint32_t um_f32_reduce_large(float a, float *rest) {
    const uint32_t bits = um_f32_bits(a);
    const uint32_t mantissa = (bits & 0x7fffff) | 0x800000;
    /* |a| = mantissa * 2^e. The window of 96 bits begins with the bit whose weight makes a two of 2^e. */
    const uint32_t at = (bits >> 23 & 0xff) - 150 + 30;
    const uint64_t low = (uint64_t)mantissa * um_two_over_pi_32(at + 64);
    const uint64_t middle = (uint64_t)mantissa * um_two_over_pi_32(at + 32) + (low >> 32);
    const uint32_t high = mantissa * um_two_over_pi_32(at) + (uint32_t)(middle >> 32);
    const uint64_t turns = (uint64_t)high << 32 | (uint32_t)middle; /* two bits of quarters, 62 of their fraction */
    const uint32_t quarters = (uint32_t)((turns + ((uint64_t)1 << 61)) >> 62);
    const int64_t fraction = (int64_t)(turns - ((uint64_t)quarters << 62));
    const float r = (float)((double)fraction * 0x1.921fb54442d18p-62);
    *rest = a < 0 ? -r : r;
    return a < 0 ? 0 - quarters : quarters;
}

UM_SHARED_CODE uint32_t um_f32_reduce(float a, float *rest) {
    if (fabsf(a) < UM_TRIG_F32_LIMIT) {
        const float quarters = rintf(a * 0x1.45f306p-1f);
        float r = fmaf(quarters, -0x1.921fb6p+0f, a);
        r = fmaf(quarters, 0x1.777a5cp-25f, r);
        *rest = fmaf(quarters, 0x1.ee59dap-50f, r);
        return (uint32_t)(int32_t)quarters;
    }
    if (fabsf(a) <= 0x1.fffffep127f) {
        return um_f32_reduce_large(a, rest);
    }
    *rest = a - a; /* NaN */
    return 0;
}

UM_SHARED_CODE float um_f32_sin_near_0(float r) {
    const float z = r * r;
    float p = fmaf(z, 2.72491468e-6f, -1.98400807e-4f);
    p = fmaf(z, p, 8.33333186e-3f);
    p = fmaf(z, p, -1.66666667e-1f);
    return fmaf(r * z, p, r);
}

UM_SHARED_CODE float um_f32_cos_near_0(float r) {
    const float z = r * r;
    float p = fmaf(z, 2.45472992e-5f, -1.38883001e-3f);
    p = fmaf(z, p, 4.16666646e-2f);
    p = fmaf(z, p, -0.5f);
    return fmaf(z, p, 1.0f);
}

UM_SHARED_CODE float um_f32_sin(float a) {
    float r;
    const uint32_t quarters = um_f32_reduce(a, &r);
    const float x = quarters & 1 ? um_f32_cos_near_0(r) : um_f32_sin_near_0(r);
    return a == 0 ? a : quarters & 2 ? -x : x; /* -0 stays */
}

UM_SHARED_CODE float um_f32_cos(float a) {
    float r;
    const uint32_t quarters = um_f32_reduce(a, &r);
    const float x = quarters & 1 ? um_f32_sin_near_0(r) : um_f32_cos_near_0(r);
    return (quarters + 1) & 2 ? -x : x;
}

UM_SHARED_CODE float um_f32_tan(float a) {
    float r;
    const uint32_t quarters = um_f32_reduce(a, &r);
    const float s = um_f32_sin_near_0(r), c = um_f32_cos_near_0(r);
    return a == 0 ? a : quarters & 1 ? -c / s : s / c;
}

/* --- float64 ----------------------------------------------------------------------------------------------------------------- */

#define UM_TRIG_F64_LIMIT 262144.0

UM_SHARED_CODE uint64_t um_f64_bits(double x) {
#ifdef __CUDA_ARCH__
    return (uint64_t)__double_as_longlong(x);
#else
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
#endif
}

UM_SHARED_CODE uint64_t um_multiply_high(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
    return __umul64hi(a, b);
#else
    const uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    const uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
    return a1 * b1 + (middle >> 32) + ((a0 * b1 + (uint32_t)middle) >> 32);
#endif
}

/* 64 bits of 2/pi from bit `at` on, where bit 64 has the weight of a half. */
UM_SHARED_CODE uint64_t um_two_over_pi_64(uint32_t at) {
    UM_TRIG_TABLE uint64_t words[] = {
        0,
        0xa2f9836e4e441529,
        0xfc2757d1f534ddc0,
        0xdb6295993c439041,
        0xfe5163abdebbc561,
        0xb7246e3a424dd2e0,
        0x06492eea09d1921c,
        0xfe1deb1cb129a73e,
        0xe88235f52ebb4484,
        0xe99c7026b45f7e41,
        0x3991d639835339f4,
        0x9c845f8bbdf9283b,
        0x1ff897ffde05980f,
        0xef2f118b5a0a6d1f,
        0x6d367ecf27cb09b7,
        0x4f463f669e5fea2d,
        0x7527bac7ebe5f17b,
        0x3d0739f78a5292ea,
        0x6bfb5fb11f8d5d08,
        0x56033046fc7b6bab,
    };
    const uint32_t word = at >> 6, shift = at & 63;
    return words[word] << shift | words[word + 1] >> 1 >> (63 - shift);
}

/* For finite |a| >= 2^17. */
UM_SHARED_CODE uint32_t um_f64_reduce_large(double a, double *rest) {
    const uint64_t bits = um_f64_bits(a);
    const uint64_t mantissa = (bits & 0xfffffffffffff) | 0x10000000000000;
    const uint32_t at = (uint32_t)(bits >> 52 & 0x7ff) - 1075 + 62; /* a window of 192 bits */
    const uint64_t first = um_two_over_pi_64(at), second = um_two_over_pi_64(at + 64);
    const uint64_t carry = um_multiply_high(mantissa, um_two_over_pi_64(at + 128));
    uint64_t low = mantissa * second + carry;
    uint64_t high = mantissa * first + um_multiply_high(mantissa, second) + (low < carry ? 1 : 0);
    const uint32_t quarters = (uint32_t)((high + ((uint64_t)1 << 61)) >> 62);
    high -=
        (uint64_t)quarters << 62; /* with `low` the fraction of a quarter, signed, 126 bits of it behind the point */
    bool negative = (int64_t)high < 0;
    if (negative) {
        high = ~high + (low == 0 ? 1 : 0);
        low = 0 - low;
    }
    double scale = 0x1.921fb54442d18p-62;
    for (; high < (uint64_t)1 << 56 && scale > 0x1p-190; scale *= 0x1p-8) { /* no more than eight times, rarely once */
        high = high << 8 | low >> 56;
        low <<= 8;
    }
    const double r = (double)high * scale;
    negative = negative != (a < 0);
    *rest = negative ? -r : r;
    return a < 0 ? 0 - quarters : quarters;
}

UM_SHARED_CODE uint32_t um_f64_reduce(double a, double *rest) {
    if (fabs(a) < UM_TRIG_F64_LIMIT) {
        const double quarters = rint(a * 0x1.45f306dc9c883p-1);
        double r = fma(quarters, -0x1.921fb54442d18p+0, a);
        r = fma(quarters, -0x1.1a62633145c07p-54, r);
        *rest = fma(quarters, 0x1.f1976b7ed8fbcp-110, r);
        return (uint32_t)(int32_t)quarters;
    }
    if (fabs(a) <= 0x1.fffffffffffffp1023) {
        return um_f64_reduce_large(a, rest);
    }
    *rest = a - a; /* NaN */
    return 0;
}

UM_SHARED_CODE double um_f64_sin_near_0(double r) {
    const double z = r * r;
    double p = fma(z, -7.5865436341019028834e-13, 1.6058529011960856764e-10);
    p = fma(z, p, -2.5052106215978872603e-8);
    p = fma(z, p, 2.7557319219291695824e-6);
    p = fma(z, p, -1.9841269841265003859e-4);
    p = fma(z, p, 8.3333333333333314638e-3);
    p = fma(z, p, -1.6666666666666666665e-1);
    return fma(r * z, p, r);
}

UM_SHARED_CODE double um_f64_cos_near_0(double r) {
    const double z = r * r;
    double p = fma(z, -1.138240875415325456e-11, 2.0876143159909438675e-9);
    p = fma(z, p, -2.7557317256796040563e-7);
    p = fma(z, p, 2.4801587298736861467e-5);
    p = fma(z, p, -1.3888888888887378158e-3);
    p = fma(z, p, 4.1666666666666665369e-2);
    p = fma(z, p, -0.5);
    return fma(z, p, 1.0);
}

UM_SHARED_CODE double um_f64_sin(double a) {
    double r;
    const uint32_t quarters = um_f64_reduce(a, &r);
    const double x = quarters & 1 ? um_f64_cos_near_0(r) : um_f64_sin_near_0(r);
    return a == 0 ? a : quarters & 2 ? -x : x;
}

UM_SHARED_CODE double um_f64_cos(double a) {
    double r;
    const uint32_t quarters = um_f64_reduce(a, &r);
    const double x = quarters & 1 ? um_f64_sin_near_0(r) : um_f64_cos_near_0(r);
    return (quarters + 1) & 2 ? -x : x;
}

UM_SHARED_CODE double um_f64_tan(double a) {
    double r;
    const uint32_t quarters = um_f64_reduce(a, &r);
    const double s = um_f64_sin_near_0(r), c = um_f64_cos_near_0(r);
    return a == 0 ? a : quarters & 1 ? -c / s : s / c;
}

#endif
