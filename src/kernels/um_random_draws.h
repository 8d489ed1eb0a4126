/* Random numbers as a function of (key, counter): the arithmetic that the CUDA kernels, the host and the fake driver share, bit for bit.
 *
 * Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11) turns a counter of 128 bits into four
 * words. A unit is what is made of the four words of one counter: four elements, or two of 64 random bits. Unit u of a call has the counter
 * (counter + u, attempt); attempts after the first are for numbers that were rejected, so that no element depends on another.
 *
 * Floating-point operations are rounded one by one as IEEE 754 says: what is fused is written as such, and nothing else may be (C files are
 * compiled with -ffp-contract=off).
 */
#ifndef UM_RANDOM_DRAWS_H
#define UM_RANDOM_DRAWS_H

#include <math.h>
#include <string.h>

#include "kernels/um_kernel_abi.h"

#ifdef __CUDACC__
#define UM_DRAW_CODE UM_SHARED_CODE
#else
/* Also where the caller is compiled for a newer processor. */
#define UM_DRAW_CODE __attribute__((always_inline)) static inline
#endif

/* X(name, element type, elements of a unit): kernels um_draw_<name>_kernel. */
#define UM_FOR_EACH_DRAW(X)                                                                                            \
    X(random_f32, float, 4)                                                                                            \
    X(random_f64, double, 2)                                                                                           \
    X(normal_f32, float, 4)                                                                                            \
    X(normal_f64, double, 2)                                                                                           \
    X(integers_1, uint8_t, 4)                                                                                          \
    X(integers_2, uint16_t, 4)                                                                                         \
    X(integers_4, uint32_t, 4)                                                                                         \
    X(integers_8, uint64_t, 4)                                                                                         \
    X(integers_wide, uint64_t, 2)

#define UM_DRAW_UNROLL 4 /* units of a thread in flight */

typedef struct um_draw_params {
    char *out;          /* elements without gaps */
    uint64_t count;     /* of elements */
    uint64_t counter;   /* of the first unit; wraps */
    uint32_t key[2];    /* low word first */
    uint32_t vectors;   /* out is aligned to a unit, or to UM_VECTOR_BYTES if that is less */
    double shift;       /* *_f64: each element is shift + scale * x; *_f32 are x itself */
    double scale;       /* likewise */
    uint64_t low;       /* integers_*: each element is one of `range` numbers from `low` on, modulo its size */
    uint64_t range;     /* 1 to 2^32; integers_wide: any, 0 for 2^64 */
    uint64_t threshold; /* products whose low half is below are rejected: 2^32 % range; integers_wide: 2^64 % range */
} um_draw_params;

/* --- words -------------------------------------------------------------------------------------------------------------- */

UM_DRAW_CODE void um_philox(const uint32_t key[2], uint64_t low, uint64_t high, uint32_t words[4]) {
    uint32_t c0 = (uint32_t)low, c1 = (uint32_t)(low >> 32), c2 = (uint32_t)high, c3 = (uint32_t)(high >> 32);
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53 * c0, b = (uint64_t)0xcd9e8d57 * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

UM_DRAW_CODE void um_draw_words(const um_draw_params *p, uint64_t unit, uint64_t attempt, uint32_t words[4]) {
    um_philox(p->key, p->counter + unit, attempt, words);
}

/* --- operations that round once ------------------------------------------------------------------------------------------- */

#ifdef __CUDA_ARCH__
#define UM_ROUND_ONCE(device, host) device
#else
#define UM_ROUND_ONCE(device, host) host
#endif

UM_DRAW_CODE float um_add_f32(float a, float b) { return UM_ROUND_ONCE(__fadd_rn(a, b), a + b); }
UM_DRAW_CODE float um_mul_f32(float a, float b) { return UM_ROUND_ONCE(__fmul_rn(a, b), a * b); }
UM_DRAW_CODE float um_fma_f32(float a, float b, float c) { return UM_ROUND_ONCE(__fmaf_rn(a, b, c), fmaf(a, b, c)); }
UM_DRAW_CODE float um_sqrt_f32(float a) { return UM_ROUND_ONCE(__fsqrt_rn(a), sqrtf(a)); }
UM_DRAW_CODE double um_add_f64(double a, double b) { return UM_ROUND_ONCE(__dadd_rn(a, b), a + b); }
UM_DRAW_CODE double um_mul_f64(double a, double b) { return UM_ROUND_ONCE(__dmul_rn(a, b), a * b); }
UM_DRAW_CODE double um_fma_f64(double a, double b, double c) { return UM_ROUND_ONCE(__fma_rn(a, b, c), fma(a, b, c)); }
UM_DRAW_CODE double um_div_f64(double a, double b) { return UM_ROUND_ONCE(__ddiv_rn(a, b), a / b); }
UM_DRAW_CODE double um_sqrt_f64(double a) { return UM_ROUND_ONCE(__dsqrt_rn(a), sqrt(a)); }

UM_DRAW_CODE uint32_t um_bits_f32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
UM_DRAW_CODE float um_float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
UM_DRAW_CODE uint64_t um_bits_f64(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
UM_DRAW_CODE double um_double_of_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* --- uniform numbers ------------------------------------------------------------------------------------------------------- */

/* 27 bits of a and 26 of b as a whole number below 2^53. (Conversions from int32 are what every processor has.) */
UM_DRAW_CODE double um_whole_f64(uint32_t a, uint32_t b) {
    return um_fma_f64((double)(int32_t)(a >> 5), 0x1p26, (double)(int32_t)(b >> 6));
}

UM_DRAW_CODE void um_draw_random_f32(const um_draw_params *p, uint64_t unit, float *out) {
    uint32_t words[4];
    um_draw_words(p, unit, 0, words);
    out[0] = um_mul_f32((float)(int32_t)(words[0] >> 8), 0x1p-24f);
    out[1] = um_mul_f32((float)(int32_t)(words[1] >> 8), 0x1p-24f);
    out[2] = um_mul_f32((float)(int32_t)(words[2] >> 8), 0x1p-24f);
    out[3] = um_mul_f32((float)(int32_t)(words[3] >> 8), 0x1p-24f);
}

UM_DRAW_CODE double um_scaled_f64(const um_draw_params *p, double x) {
    return um_add_f64(p->shift, um_mul_f64(p->scale, x));
}

UM_DRAW_CODE void um_draw_random_f64(const um_draw_params *p, uint64_t unit, double *out) {
    uint32_t words[4];
    um_draw_words(p, unit, 0, words);
    out[0] = um_scaled_f64(p, um_mul_f64(um_whole_f64(words[0], words[1]), 0x1p-53));
    out[1] = um_scaled_f64(p, um_mul_f64(um_whole_f64(words[2], words[3]), 0x1p-53));
}

/* --- normal numbers: Box and Muller ------------------------------------------------------------------------------------------
 *
 * A pair is (r cos t, r sin t), r = sqrt(-2 log u), t uniform on the circle: t is in [-pi/4, pi/4), and two more random bits
 * choose the sign of the cosine and which of the two comes first. u = (whole number + 1/2) / 2^bits is split as 2^e m with m from sqrt(1/2)
 * to sqrt(2). Polynomials are minimax ones for the relative error, which is below 4e-8 and 2e-17.
 */

/* -2 log u, u * 2^31 - 1/2 = whole: at most 44.4, so that r is at most 6.66. */
UM_DRAW_CODE float um_minus_two_log_f32(uint32_t whole) {
    const uint32_t root = 0x3f3504f3; /* the bits of sqrt(1/2) */
    const uint32_t above = um_bits_f32(um_add_f32((float)(int32_t)whole, 0.5f)) - root;
    const float e = (float)(((int32_t)above >> 23) - 31);
    const float f = um_add_f32(um_float_of_bits((above & 0x7fffff) + root), -1.0f);
    float q = -0x1.6544a8p-3f; /* -2 log(1 + f) / f */
    q = um_fma_f32(q, f, 0x1.263baep-2f);
    q = um_fma_f32(q, f, -0x1.3238eep-2f);
    q = um_fma_f32(q, f, 0x1.5332a0p-2f);
    q = um_fma_f32(q, f, -0x1.98b748p-2f);
    q = um_fma_f32(q, f, 0x1.000570p-1f);
    q = um_fma_f32(q, f, -0x1.555792p-1f);
    q = um_fma_f32(q, f, 0x1.fffff8p-1f);
    q = um_fma_f32(q, f, -2.0f);
    return um_fma_f32(e, -0x1.62e430p+0f, um_mul_f32(q, f));
}

UM_DRAW_CODE void um_box_muller_f32(uint32_t a, uint32_t b, float *out) {
    const float r = um_sqrt_f32(um_minus_two_log_f32(a >> 1));
    const float t = um_mul_f32((float)((int32_t)b >> 1), 0x1p-30f); /* in units of pi/4 */
    const float z = um_mul_f32(t, t);
    float s = -0x1.2d9302p-15f; /* sin(pi/4 t) / t */
    s = um_fma_f32(s, z, 0x1.465e92p-9f);
    s = um_fma_f32(s, z, -0x1.4abbbap-4f);
    s = um_fma_f32(s, z, 0x1.921fb6p-1f);
    float c = -0x1.4e35dap-12f;
    c = um_fma_f32(c, z, 0x1.03ae64p-6f);
    c = um_fma_f32(c, z, -0x1.3bd38cp-2f);
    c = um_fma_f32(c, z, 0x1.fffffep-1f);
    const float x = um_float_of_bits(um_bits_f32(um_mul_f32(r, c)) ^ a << 31);
    const float y = um_mul_f32(r, um_mul_f32(s, t));
    out[0] = b & 1 ? y : x;
    out[1] = b & 1 ? x : y;
}

UM_DRAW_CODE void um_draw_normal_f32(const um_draw_params *p, uint64_t unit, float *out) {
    uint32_t words[4];
    um_draw_words(p, unit, 0, words);
    um_box_muller_f32(words[0], words[1], out);
    um_box_muller_f32(words[2], words[3], out + 2);
}

/* -2 log u, u * 2^53 - 1/2 = whole: at most 74.9, so that r is at most 8.65. */
UM_DRAW_CODE double um_minus_two_log_f64(double whole) {
    const uint64_t root = 0x3fe6a09e667f3bcd, one = (uint64_t)1 << 52;
    const uint64_t above = um_bits_f64(um_add_f64(whole, 0.5)) - root + one;
    const double e = um_add_f64(um_double_of_bits(0x4330000000000000 | above >> 52), -0x1.0000000000036p52);
    const double f = um_add_f64(um_double_of_bits((above & (one - 1)) + root), -1.0);
    const double s = um_div_f64(f, um_add_f64(f, 2.0));
    const double z = um_mul_f64(s, s);
    double q = -0x1.2f51d4a64f4fbp-2; /* -2 log(1 + f) / s = -4 atanh(s) / s */
    q = um_fma_f64(q, z, -0x1.39994e1fe8b0cp-2);
    q = um_fma_f64(q, z, -0x1.74669de3de2f3p-2);
    q = um_fma_f64(q, z, -0x1.c71c4fe8cb3b5p-2);
    q = um_fma_f64(q, z, -0x1.2492494532f38p-1);
    q = um_fma_f64(q, z, -0x1.999999997ac3cp-1);
    q = um_fma_f64(q, z, -0x1.55555555555aep+0);
    q = um_fma_f64(q, z, -4.0);
    return um_fma_f64(e, -0x1.62e42fefa39efp+0, um_mul_f64(q, s));
}

UM_DRAW_CODE void um_draw_normal_f64(const um_draw_params *p, uint64_t unit, double *out) {
    uint32_t words[4];
    um_draw_words(p, unit, 0, words);
    const double r = um_sqrt_f64(um_minus_two_log_f64(um_whole_f64(words[0], words[1])));
    const double t = um_fma_f64((double)(int32_t)words[2], 0x1p-31,
                                um_mul_f64((double)(int32_t)(words[3] >> 10), 0x1p-53)); /* in units of pi/4 */
    const double z = um_mul_f64(t, t);
    double s = 0x1.e3eed4eff207bp-38; /* sin(pi/4 t) / t */
    s = um_fma_f64(s, z, -0x1.e300639dd9336p-30);
    s = um_fma_f64(s, z, 0x1.50782fca3694ap-22);
    s = um_fma_f64(s, z, -0x1.32d2cce2d5348p-15);
    s = um_fma_f64(s, z, 0x1.466bc67758700p-9);
    s = um_fma_f64(s, z, -0x1.4abbce625be41p-4);
    s = um_fma_f64(s, z, 0x1.921fb54442d18p-1);
    double c = -0x1.b2586b221403ap-42;
    c = um_fma_f64(c, z, 0x1.f9cc15d33f2f4p-34);
    c = um_fma_f64(c, z, -0x1.a6d1ec3d45276p-26);
    c = um_fma_f64(c, z, 0x1.e1f5068303eddp-19);
    c = um_fma_f64(c, z, -0x1.55d3c7e3c8d5cp-12);
    c = um_fma_f64(c, z, 0x1.03c1f081b5aaap-6);
    c = um_fma_f64(c, z, -0x1.3bd3cc9be45dep-2);
    c = um_fma_f64(c, z, 1.0);
    /* The lowest bits of words[1] are in nothing else. */
    const double x = um_double_of_bits(um_bits_f64(um_mul_f64(r, c)) ^ (uint64_t)words[1] << 63);
    const double y = um_mul_f64(r, um_mul_f64(s, t));
    out[0] = um_scaled_f64(p, words[1] & 2 ? y : x);
    out[1] = um_scaled_f64(p, words[1] & 2 ? x : y);
}

/* --- whole numbers: Lemire, "Fast random integer generation in an interval" (2019) ------------------------------------------------ */

/* The number that `word` stands for, or the first of later attempts that is not rejected. */
UM_DRAW_CODE uint64_t um_draw_below(const um_draw_params *p, uint64_t unit, int lane, uint32_t word) {
    uint64_t product = word * p->range;
    for (uint64_t attempt = 1; (uint32_t)product < (uint32_t)p->threshold; attempt++) {
        uint32_t words[4];
        um_draw_words(p, unit, attempt, words);
        product = words[lane] * p->range;
    }
    return p->low + (product >> 32);
}

#define UM_DEFINE_DRAW_INTEGERS(name, type)                                                                            \
    UM_DRAW_CODE void um_draw_##name(const um_draw_params *p, uint64_t unit, type *out) {                              \
        uint32_t words[4];                                                                                             \
        um_draw_words(p, unit, 0, words);                                                                              \
        out[0] = (type)um_draw_below(p, unit, 0, words[0]);                                                            \
        out[1] = (type)um_draw_below(p, unit, 1, words[1]);                                                            \
        out[2] = (type)um_draw_below(p, unit, 2, words[2]);                                                            \
        out[3] = (type)um_draw_below(p, unit, 3, words[3]);                                                            \
    }
UM_DEFINE_DRAW_INTEGERS(integers_1, uint8_t)
UM_DEFINE_DRAW_INTEGERS(integers_2, uint16_t)
UM_DEFINE_DRAW_INTEGERS(integers_4, uint32_t)
UM_DEFINE_DRAW_INTEGERS(integers_8, uint64_t)

UM_DRAW_CODE uint64_t um_multiply_high(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
    return __umul64hi(a, b);
#else
    return (uint64_t)((unsigned __int128)a * b >> 64);
#endif
}

UM_DRAW_CODE uint64_t um_draw_below_wide(const um_draw_params *p, uint64_t unit, int lane, const uint32_t first[4]) {
    const size_t at = (size_t)lane * 2;
    uint64_t word = (uint64_t)first[at] << 32 | first[at + 1];
    if (p->range == 0) {
        return p->low + word;
    }
    for (uint64_t attempt = 1; word * p->range < p->threshold; attempt++) {
        uint32_t words[4];
        um_draw_words(p, unit, attempt, words);
        word = (uint64_t)words[at] << 32 | words[at + 1];
    }
    return p->low + um_multiply_high(word, p->range);
}

UM_DRAW_CODE void um_draw_integers_wide(const um_draw_params *p, uint64_t unit, uint64_t *out) {
    uint32_t words[4];
    um_draw_words(p, unit, 0, words);
    out[0] = um_draw_below_wide(p, unit, 0, words);
    out[1] = um_draw_below_wide(p, unit, 1, words);
}

#endif
