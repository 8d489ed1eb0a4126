/* Functions behind um_evaluate_abi.h's instructions, the same on the GPU and in the fake driver. */
#ifndef UM_EVALUATE_MATH_H
#define UM_EVALUATE_MATH_H

#ifndef __CUDACC__
#include <math.h>
#endif

#include "kernels/um_kernel_abi.h"

/* --- division as NumPy defines it -------------------------------------------------------------------------------------- */

UM_SHARED_CODE float um_f32_remainder(float a, float b) {
    float rest = fmodf(a, b);
    if (b == 0) {
        return rest; /* NaN */
    }
    if (rest == 0) {
        return copysignf(0.0f, b);
    }
    return (b < 0) != (rest < 0) ? rest + b : rest;
}

UM_SHARED_CODE float um_f32_floor_divide(float a, float b) {
    if (b == 0) {
        return a / b;
    }
    const float rest = fmodf(a, b);
    float quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) {
        quotient -= 1;
    }
    if (quotient == 0) {
        return copysignf(0.0f, a / b);
    }
    const float whole = floorf(quotient);
    return quotient - whole > 0.5f ? whole + 1 : whole;
}

UM_SHARED_CODE double um_f64_remainder(double a, double b) {
    double rest = fmod(a, b);
    if (b == 0) {
        return rest;
    }
    if (rest == 0) {
        return copysign(0.0, b);
    }
    return (b < 0) != (rest < 0) ? rest + b : rest;
}

UM_SHARED_CODE double um_f64_floor_divide(double a, double b) {
    if (b == 0) {
        return a / b;
    }
    const double rest = fmod(a, b);
    double quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) {
        quotient -= 1;
    }
    if (quotient == 0) {
        return copysign(0.0, a / b);
    }
    const double whole = floor(quotient);
    return quotient - whole > 0.5 ? whole + 1 : whole;
}

/* --- integers: division by zero is 0, and nothing overflows ------------------------------------------------------------- */

UM_SHARED_CODE int32_t um_i32_fmod(int32_t a, int32_t b) { return b == 0 || b == -1 ? 0 : a % b; }
UM_SHARED_CODE int64_t um_i64_fmod(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }

UM_SHARED_CODE int32_t um_i32_remainder(int32_t a, int32_t b) {
    const int32_t rest = um_i32_fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
UM_SHARED_CODE int64_t um_i64_remainder(int64_t a, int64_t b) {
    const int64_t rest = um_i64_fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

UM_SHARED_CODE int32_t um_i32_floor_divide(int32_t a, int32_t b) {
    if (b == 0 || b == -1) {
        return b == 0 ? 0 : (int32_t)(0 - (uint32_t)a);
    }
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
UM_SHARED_CODE int64_t um_i64_floor_divide(int64_t a, int64_t b) {
    if (b == 0 || b == -1) {
        return b == 0 ? 0 : (int64_t)(0 - (uint64_t)a);
    }
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* Shifts by a negative number or by all bits and more leave nothing but the sign of a right shift. Of types smaller than a cell the
 * conversion after it, or the sign before it, makes the same of shifts by the bits in between. */
UM_SHARED_CODE int32_t um_i32_left_shift(int32_t a, int32_t b) {
    return (uint32_t)b < 32 ? (int32_t)((uint32_t)a << (uint32_t)b) : 0;
}
UM_SHARED_CODE int32_t um_i32_right_shift(int32_t a, int32_t b) { return a >> ((uint32_t)b < 32 ? b : 31); }
UM_SHARED_CODE int64_t um_i64_left_shift(int64_t a, int64_t b) {
    return (uint64_t)b < 64 ? (int64_t)((uint64_t)a << (uint64_t)b) : 0;
}
UM_SHARED_CODE int64_t um_i64_right_shift(int64_t a, int64_t b) { return a >> ((uint64_t)b < 64 ? b : 63); }

#endif
