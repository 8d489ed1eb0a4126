/* From the lines of um_kernel_ops.h to one macro per element type and form.
 *
 * UM_FOR_EACH_LOOP(weight, name, inputs, bool, signed, …), which takes what UM_OP takes, becomes for each of the 14 types the expansion of
 * UM_FORM_<form>(weight, name, inputs, token, argument), where the form is the entry's (NONE, SAME, …) and the argument is in its
 * parentheses. Whoever includes this defines those macros.
 */
#ifndef UM_KERNEL_LOOPS_H
#define UM_KERNEL_LOOPS_H

#define UM_FOR_EACH_LOOP(weight, name, inputs, bool_, signed_, unsigned_, float_, complex_)                            \
    UM_LOOP_OF(weight, name, inputs, b1, bool_)                                                                        \
    UM_LOOP_OF(weight, name, inputs, i8, signed_)                                                                      \
    UM_LOOP_OF(weight, name, inputs, u8, unsigned_)                                                                    \
    UM_LOOP_OF(weight, name, inputs, i16, signed_)                                                                     \
    UM_LOOP_OF(weight, name, inputs, u16, unsigned_)                                                                   \
    UM_LOOP_OF(weight, name, inputs, i32, signed_)                                                                     \
    UM_LOOP_OF(weight, name, inputs, u32, unsigned_)                                                                   \
    UM_LOOP_OF(weight, name, inputs, i64, signed_)                                                                     \
    UM_LOOP_OF(weight, name, inputs, u64, unsigned_)                                                                   \
    UM_LOOP_OF(weight, name, inputs, f16, float_)                                                                      \
    UM_LOOP_OF(weight, name, inputs, f32, float_)                                                                      \
    UM_LOOP_OF(weight, name, inputs, f64, float_)                                                                      \
    UM_LOOP_OF(weight, name, inputs, c64, complex_)                                                                    \
    UM_LOOP_OF(weight, name, inputs, c128, complex_)

#define UM_LOOP_OF(weight, name, inputs, token, entry) UM_LOOP_FORM(weight, name, inputs, token, UM_ENTRY_##entry)
#define UM_LOOP_FORM(weight, name, inputs, token, ...) UM_LOOP_EXPAND(weight, name, inputs, token, __VA_ARGS__)
#define UM_LOOP_EXPAND(weight, name, inputs, token, form, argument)                                                    \
    UM_FORM_##form(weight, name, inputs, token, argument)

#define UM_ENTRY_NONE         NONE,
#define UM_ENTRY_SAME(...)    SAME, (__VA_ARGS__)
#define UM_ENTRY_WIDE(...)    WIDE, (__VA_ARGS__)
#define UM_ENTRY_TRUTH(...)   TRUTH, (__VA_ARGS__)
#define UM_ENTRY_REAL(...)    REAL, (__VA_ARGS__)
#define UM_ENTRY_UNSIGNED     UNSIGNED,
#define UM_ENTRY_AS(name)     AS, name
#define UM_ENTRY_SWAP(name)   SWAP, name
#define UM_ENTRY_ROTATE(name) ROTATE, name
#define UM_ENTRY_COPY         COPY,
#define UM_ENTRY_YES          YES,
#define UM_ENTRY_NO           NO,

/* The argument (tokens) where the loop has a *_vec kernel, else nothing: light ones have one when several elements fit 16 bytes, heavy ones
 * of float32 only, since the others compute for longer than their memory takes. */
#define UM_IF_VEC(weight, token, ...) UM_IF_VEC_##weight##_##token(__VA_ARGS__)
#define UM_IF_VEC_LIGHT_b1(...)       __VA_ARGS__
#define UM_IF_VEC_LIGHT_i8(...)       __VA_ARGS__
#define UM_IF_VEC_LIGHT_u8(...)       __VA_ARGS__
#define UM_IF_VEC_LIGHT_i16(...)      __VA_ARGS__
#define UM_IF_VEC_LIGHT_u16(...)      __VA_ARGS__
#define UM_IF_VEC_LIGHT_i32(...)      __VA_ARGS__
#define UM_IF_VEC_LIGHT_u32(...)      __VA_ARGS__
#define UM_IF_VEC_LIGHT_i64(...)      __VA_ARGS__
#define UM_IF_VEC_LIGHT_u64(...)      __VA_ARGS__
#define UM_IF_VEC_LIGHT_f16(...)      __VA_ARGS__
#define UM_IF_VEC_LIGHT_f32(...)      __VA_ARGS__
#define UM_IF_VEC_LIGHT_f64(...)      __VA_ARGS__
#define UM_IF_VEC_LIGHT_c64(...)      __VA_ARGS__
#define UM_IF_VEC_LIGHT_c128(...)
#define UM_IF_VEC_HEAVY_i8(...)
#define UM_IF_VEC_HEAVY_u8(...)
#define UM_IF_VEC_HEAVY_i16(...)
#define UM_IF_VEC_HEAVY_u16(...)
#define UM_IF_VEC_HEAVY_i32(...)
#define UM_IF_VEC_HEAVY_u32(...)
#define UM_IF_VEC_HEAVY_i64(...)
#define UM_IF_VEC_HEAVY_u64(...)
#define UM_IF_VEC_HEAVY_f16(...)
#define UM_IF_VEC_HEAVY_f32(...) __VA_ARGS__
#define UM_IF_VEC_HEAVY_f64(...)

/* What kernels compute with for a token: T, U, the element as T, the result as an element. */
#define UM_COMPUTE_b1     uint8_t, uint8_t
#define UM_COMPUTE_i8     int8_t, uint8_t
#define UM_COMPUTE_u8     uint8_t, uint8_t
#define UM_COMPUTE_i16    int16_t, uint16_t
#define UM_COMPUTE_u16    uint16_t, uint16_t
#define UM_COMPUTE_i32    int32_t, uint32_t
#define UM_COMPUTE_u32    uint32_t, uint32_t
#define UM_COMPUTE_i64    int64_t, uint64_t
#define UM_COMPUTE_u64    uint64_t, uint64_t
#define UM_COMPUTE_f16    float, float
#define UM_COMPUTE_f32    float, float
#define UM_COMPUTE_f64    double, double
#define UM_COMPUTE_c64    um_c64, um_c64
#define UM_COMPUTE_c128   um_c128, um_c128
#define UM_LOADED_b1(x)   (uint8_t)((x) != 0)
#define UM_LOADED_i8(x)   (x)
#define UM_LOADED_u8(x)   (x)
#define UM_LOADED_i16(x)  (x)
#define UM_LOADED_u16(x)  (x)
#define UM_LOADED_i32(x)  (x)
#define UM_LOADED_u32(x)  (x)
#define UM_LOADED_i64(x)  (x)
#define UM_LOADED_u64(x)  (x)
#define UM_LOADED_f16(x)  um_cast_f16_to_f32(x)
#define UM_LOADED_f32(x)  (x)
#define UM_LOADED_f64(x)  (x)
#define UM_LOADED_c64(x)  (x)
#define UM_LOADED_c128(x) (x)
#define UM_STORED_b1(x)   (uint8_t)(x)
#define UM_STORED_i8(x)   (int8_t)(x)
#define UM_STORED_u8(x)   (uint8_t)(x)
#define UM_STORED_i16(x)  (int16_t)(x)
#define UM_STORED_u16(x)  (uint16_t)(x)
#define UM_STORED_i32(x)  (int32_t)(x)
#define UM_STORED_u32(x)  (uint32_t)(x)
#define UM_STORED_i64(x)  (int64_t)(x)
#define UM_STORED_u64(x)  (uint64_t)(x)
#define UM_STORED_f16(x)  um_cast_f32_to_f16(x)
#define UM_STORED_f32(x)  (x)
#define UM_STORED_f64(x)  (x)
#define UM_STORED_c64(x)  (x)
#define UM_STORED_c128(x) (x)
#define UM_REAL_c64       f32
#define UM_REAL_c128      f64

/* The argument (tokens) where WIDE means a kernel: float32 and float64. */
#define UM_WIDE_f16(...)
#define UM_WIDE_f32(...) __VA_ARGS__
#define UM_WIDE_f64(...) __VA_ARGS__

#endif
