/* The operations of one part of um_kernel_ops.h as CUDA kernels, um_<op>_<type>_{elem,vec}; UM_OPS_PART says which. */
#ifndef UM_OPS_CUH
#define UM_OPS_CUH

#include "kernels/um_elementwise.cuh"
#include "kernels/um_kernel_functions.h"
#include "kernels/um_kernel_forms.h"

/* Code without checks for whole tiles is worth compiling where a thread has few elements. */
#define UM_UNCHECKED_LIGHT(type) (sizeof(type) >= 4)
#define UM_UNCHECKED_HEAVY(type) false

#define UM_DEFINE_LOOP(weight, name, token, inputs, result, expression)                                                \
    UM_DEFINE_LOOP_(weight, name, token, inputs, result, expression, UM_COMPUTE_##token)
#define UM_DEFINE_LOOP_(weight, name, token, inputs, result, expression, ...)                                          \
    UM_DEFINE_LOOP__(weight, name, token, inputs, result, expression, __VA_ARGS__)
#define UM_DEFINE_LOOP__(weight, name, token, inputs, result, expression, T_, U_)                                      \
    struct um_op_##name##_##token {                                                                                    \
        typedef T_ T;                                                                                                  \
        typedef U_ U;                                                                                                  \
        static __device__ __forceinline__ UM_TYPE(result)                                                              \
            apply(UM_TYPE(token) x, UM_TYPE(token) y, UM_TYPE(token) z) {                                              \
            const T a = UM_LOADED_##token(x), b = UM_LOADED_##token(y), c = UM_LOADED_##token(z);                      \
            (void)a, (void)b, (void)c;                                                                                 \
            return UM_STORED_##result(expression);                                                                     \
        }                                                                                                              \
    };                                                                                                                 \
    UM_DEFINE_ELEM(name##_##token, um_op_##name##_##token, UM_TYPE(token), UM_TYPE(token), UM_TYPE(result), inputs)    \
    UM_IF_VEC(weight, token,                                                                                           \
              UM_DEFINE_VEC(name##_##token, um_op_##name##_##token, UM_TYPE(token), UM_TYPE(token), UM_TYPE(result),   \
                            inputs, UM_UNCHECKED_##weight(UM_TYPE(token))))

#define UM_OP UM_FOR_EACH_LOOP
#include "kernels/um_kernel_ops.h"
#undef UM_OP

#endif
