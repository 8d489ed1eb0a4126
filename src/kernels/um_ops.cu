/* The operations of um_kernel_ops.h as CUDA kernels: um_<op>_<type>_{elem,vec}. */
#include "kernels/um_elementwise.cuh"

#define UM_FMA(a, b, c) fma(a, b, c)

/* T is the element type, U the unsigned type in which integers wrap (T itself for floating point). */
#define UM_APPLY(T_, U_, expression)                                                                                   \
    static __device__ __forceinline__ T_ apply(T_ a, T_ b, T_ c) {                                                     \
        using T = T_;                                                                                                  \
        using U = U_;                                                                                                  \
        (void)sizeof(U);                                                                                               \
        (void)a, (void)b, (void)c;                                                                                     \
        return (T)(expression);                                                                                        \
    }

/* Operations as types: one overload of apply for every element type. */
#define UM_OP_INT_SAME(int_expr) UM_APPLY(int32_t, uint32_t, int_expr) UM_APPLY(int64_t, uint64_t, int_expr)
#define UM_OP_INT_NONE(int_expr)
#define UM_OP(name, inputs, float_expr, int_expr, int_result)                                                          \
    struct um_op_##name {                                                                                              \
        UM_APPLY(float, float, float_expr)                                                                             \
        UM_APPLY(double, double, float_expr)                                                                           \
        UM_OP_INT_##int_result(int_expr)                                                                               \
    };
#include "kernels/um_kernel_ops.h"
#undef UM_OP

#define UM_KERNELS_INT_SAME(name, inputs)                                                                              \
    UM_DEFINE_ELEMENTWISE(name##_i32, um_op_##name, int32_t, int32_t, inputs)                                          \
    UM_DEFINE_ELEMENTWISE(name##_i64, um_op_##name, int64_t, int64_t, inputs)
#define UM_KERNELS_INT_NONE(name, inputs)
#define UM_OP(name, inputs, float_expr, int_expr, int_result)                                                          \
    UM_DEFINE_ELEMENTWISE(name##_f32, um_op_##name, float, float, inputs)                                              \
    UM_DEFINE_ELEMENTWISE(name##_f64, um_op_##name, double, double, inputs)                                            \
    UM_KERNELS_INT_##int_result(name, inputs)
#include "kernels/um_kernel_ops.h"
#undef UM_OP
