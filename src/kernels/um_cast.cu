/* Conversions between the types that have kernels; copies and choices of elements of any type by size. */
#include "kernels/um_elementwise.cuh"

#define UM_DEFINE_CAST(from, to)                                                                                       \
    struct um_op_cast_##from##_##to {                                                                                  \
        static __device__ __forceinline__ UM_TYPE(to) apply(UM_TYPE(from) a, UM_TYPE(from), UM_TYPE(from)) {           \
            return um_cast_##from##_to_##to(a);                                                                        \
        }                                                                                                              \
    };                                                                                                                 \
    UM_DEFINE_ELEM(cast_##from##_##to, um_op_cast_##from##_##to, UM_TYPE(from), UM_TYPE(from), UM_TYPE(to), 1)         \
    UM_DEFINE_VEC(cast_##from##_##to, um_op_cast_##from##_##to, UM_TYPE(from), UM_TYPE(from), UM_TYPE(to), 1,          \
                  sizeof(UM_TYPE(from)) >= 4 || sizeof(UM_TYPE(to)) >= 4)
UM_FOR_EACH_CAST(UM_DEFINE_CAST)

struct um_op_copy {
    template <typename T> static __device__ __forceinline__ T apply(T a, T, T) { return a; }
};

typedef unsigned char um_bytes_1;
typedef uint16_t um_bytes_2;
typedef uint32_t um_bytes_4;
typedef uint64_t um_bytes_8;
typedef uint4 um_bytes_16;

/* *_vec moves 16 bytes whatever the item is, so its one input is never a scalar; a fill's item is repeated in values[0]. */
#define UM_DEFINE_COPY(size)                                                                                           \
    UM_DEFINE_ELEM(copy_##size, um_op_copy, um_bytes_##size, um_bytes_##size, um_bytes_##size, 1)                      \
    extern "C" __global__ void __launch_bounds__(UM_KERNEL_BLOCK)                                                      \
        um_copy_##size##_vec(const __grid_constant__ um_elementwise_params p) {                                        \
        um_elementwise<um_op_copy, um_bytes_16, um_bytes_16, um_bytes_16, 1, 1, true>(p);                              \
        um_elementwise_tail<um_op_copy, um_bytes_##size, um_bytes_##size, um_bytes_##size, 1>(p);                      \
    }
UM_FOR_EACH_COPY(UM_DEFINE_COPY)

/* Elements of one array or another, by a bool. */
struct um_op_where {
    template <typename T> static __device__ __forceinline__ T apply(uint8_t condition, T a, T b) {
        return condition != 0 ? a : b;
    }
};

#define UM_DEFINE_WHERE(size)                                                                                          \
    UM_DEFINE_ELEM(where_##size, um_op_where, uint8_t, um_bytes_##size, um_bytes_##size, 3)                            \
    UM_DEFINE_VEC(where_##size, um_op_where, uint8_t, um_bytes_##size, um_bytes_##size, 3, size >= 4)
UM_FOR_EACH_COPY(UM_DEFINE_WHERE)
