/* Random numbers: a thread makes UM_DRAW_UNROLL units and stores each as a whole. */
#include "kernels/um_random_draws.h"

template <typename T, int Lanes>
struct alignas(sizeof(T) * Lanes < UM_VECTOR_BYTES ? sizeof(T) * Lanes : UM_VECTOR_BYTES) um_unit {
    T at[Lanes];
};

/* Elements one by one: the unit at the end, and any where out is not aligned to units. */
template <typename T, int Lanes>
__device__ __forceinline__ void um_store_elements(const um_draw_params &p, uint64_t unit, const um_unit<T, Lanes> &x) {
    T *out = (T *)p.out + unit * Lanes;
    const uint64_t left = p.count - unit * Lanes;
#pragma unroll
    for (int lane = 0; lane < Lanes; lane++) {
        if (lane < left) {
            out[lane] = x.at[lane];
        }
    }
}

template <typename Draw, typename T, int Lanes> __device__ __forceinline__ void um_draw_units(const um_draw_params &p) {
    const uint64_t first = (uint64_t)blockIdx.x * (UM_KERNEL_BLOCK * UM_DRAW_UNROLL) + threadIdx.x;
    const uint64_t whole = p.count / Lanes; /* a shift */
    um_unit<T, Lanes> x[UM_DRAW_UNROLL];
#pragma unroll
    for (int u = 0; u < UM_DRAW_UNROLL; u++) {
        Draw::draw(&p, first + u * UM_KERNEL_BLOCK, x[u].at);
    }
#pragma unroll
    for (int u = 0; u < UM_DRAW_UNROLL; u++) {
        const uint64_t unit = first + u * UM_KERNEL_BLOCK;
        if (p.vectors && unit < whole) {
            ((um_unit<T, Lanes> *)p.out)[unit] = x[u];
        } else if (unit * Lanes < p.count) {
            um_store_elements<T, Lanes>(p, unit, x[u]);
        }
    }
}

#define UM_DEFINE_DRAW_KERNEL(name, type, lanes)                                                                       \
    struct um_draw_of_##name {                                                                                         \
        static __device__ __forceinline__ void draw(const um_draw_params *p, uint64_t unit, type *out) {               \
            um_draw_##name(p, unit, out);                                                                              \
        }                                                                                                              \
    };                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(UM_KERNEL_BLOCK)                                                      \
        um_draw_##name##_kernel(const __grid_constant__ um_draw_params p) {                                            \
        um_draw_units<um_draw_of_##name, type, lanes>(p);                                                              \
    }
UM_FOR_EACH_DRAW(UM_DEFINE_DRAW_KERNEL)
