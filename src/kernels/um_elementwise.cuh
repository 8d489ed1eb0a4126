/* The one elementwise kernel body: units of elements, any strides, up to UM_KERNEL_NDIM dimensions.
 *
 * Memory bandwidth is the limit, so a thread starts all loads of UM_ELEMENTWISE_UNROLL units before it uses the first. Inputs may be the
 * output's memory: hence neither __restrict__ nor the read-only cache.
 */
#ifndef UM_ELEMENTWISE_CUH
#define UM_ELEMENTWISE_CUH

#include "kernels/um_kernel_abi.h"

/* V elements that move as one access (as two when they are wider than 16 bytes). */
template <typename T, int V> struct alignas(sizeof(T) * V < UM_VECTOR_BYTES ? sizeof(T) * V : UM_VECTOR_BYTES) um_pack {
    T at[V];
};

template <typename A, typename B> struct um_pack_width {
    static constexpr int widest = sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B);
    static constexpr int value = UM_VECTOR_BYTES / widest;
};

/* Calls Op::apply with as many arguments as it has inputs. */
template <typename Op, typename First, typename In, int Inputs> struct um_apply;
template <typename Op, typename First, typename In> struct um_apply<Op, First, In, 1> {
    static __device__ __forceinline__ auto call(First first, const In *) { return Op::apply(first, In(), In()); }
};
template <typename Op, typename First, typename In> struct um_apply<Op, First, In, 2> {
    static __device__ __forceinline__ auto call(First first, const In *x) { return Op::apply(first, x[1], In()); }
};
template <typename Op, typename First, typename In> struct um_apply<Op, First, In, 3> {
    static __device__ __forceinline__ auto call(First first, const In *x) { return Op::apply(first, x[1], x[2]); }
};

/* Byte offsets of a thread's units in every operand. */
template <int Inputs, int Unroll>
__device__ __forceinline__ void um_offsets(const um_elementwise_params &p, uint32_t first,
                                           uint32_t (&input)[Inputs][Unroll], uint32_t (&output)[Unroll]) {
    uint32_t rest[Unroll];
#pragma unroll
    for (int u = 0; u < Unroll; u++) {
        rest[u] = first + (uint32_t)u * UM_KERNEL_BLOCK;
        output[u] = p.start[UM_KERNEL_OUT];
#pragma unroll
        for (int i = 0; i < Inputs; i++) {
            input[i][u] = p.start[i];
        }
    }
    const uint32_t outermost = p.ndim - 1;
#pragma unroll 1
    for (uint32_t d = 0; d < outermost; d++) {
        const um_divisor length = p.shape[d];
#pragma unroll
        for (int u = 0; u < Unroll; u++) {
            const uint32_t quotient = um_divide(rest[u], length);
            const uint32_t index = rest[u] - quotient * length.value;
            rest[u] = quotient;
            output[u] += index * p.strides[d][UM_KERNEL_OUT];
#pragma unroll
            for (int i = 0; i < Inputs; i++) {
                input[i][u] += index * p.strides[d][i];
            }
        }
    }
#pragma unroll
    for (int u = 0; u < Unroll; u++) {
        output[u] += rest[u] * p.strides[outermost][UM_KERNEL_OUT];
#pragma unroll
        for (int i = 0; i < Inputs; i++) {
            input[i][u] += rest[u] * p.strides[outermost][i];
        }
    }
}

template <typename In, int V> __device__ __forceinline__ um_pack<In, V> um_splat(In value) {
    um_pack<In, V> pack;
#pragma unroll
    for (int v = 0; v < V; v++) {
        pack.at[v] = value;
    }
    return pack;
}

/* Starts the loads of input i of a thread's units. */
template <typename In, int V, int Unroll, bool Checked>
__device__ __forceinline__ void um_load(const um_elementwise_params &p, int i, uint32_t first,
                                        const uint32_t (&offsets)[Unroll], um_pack<In, V> (&x)[Unroll]) {
    const char *low = p.low[i];
    if (p.immediates >> i & 1) {
        const In value = *(const In *)p.values[i];
#pragma unroll
        for (int u = 0; u < Unroll; u++) {
            x[u] = um_splat<In, V>(value);
        }
    } else if (V > 1 && (p.scalars >> i & 1)) {
#pragma unroll
        for (int u = 0; u < Unroll; u++) {
            if (!Checked || first + (uint32_t)u * UM_KERNEL_BLOCK < p.units) {
                x[u] = um_splat<In, V>(*(const In *)(low + offsets[u]));
            }
        }
    } else {
#pragma unroll
        for (int u = 0; u < Unroll; u++) {
            if (!Checked || first + (uint32_t)u * UM_KERNEL_BLOCK < p.units) {
                x[u] = *(const um_pack<In, V> *)(low + offsets[u]);
            }
        }
    }
}

/* Units first, first + UM_KERNEL_BLOCK, …; Checked: those below p.units. The first input is of type First, the others are of type In. */
template <typename Op, typename First, typename In, typename Out, int Inputs, int V, bool Checked>
__device__ __forceinline__ void um_elementwise_tile(const um_elementwise_params &p, uint32_t first) {
    constexpr int Unroll = UM_ELEMENTWISE_UNROLL;
    uint32_t input[Inputs][Unroll], output[Unroll];
    um_offsets<Inputs, Unroll>(p, first, input, output);

    um_pack<First, V> x0[Unroll];
    um_pack<In, V> x[Inputs][Unroll]; /* but for the first */
    um_load<First, V, Unroll, Checked>(p, 0, first, input[0], x0);
#pragma unroll
    for (int i = 1; i < Inputs; i++) {
        um_load<In, V, Unroll, Checked>(p, i, first, input[i], x[i]);
    }
#pragma unroll
    for (int u = 0; u < Unroll; u++) {
        um_pack<Out, V> result;
#pragma unroll
        for (int v = 0; v < V; v++) {
            In arguments[Inputs];
#pragma unroll
            for (int i = 1; i < Inputs; i++) {
                arguments[i] = x[i][u].at[v];
            }
            result.at[v] = um_apply<Op, First, In, Inputs>::call(x0[u].at[v], arguments);
        }
        if (!Checked || first + (uint32_t)u * UM_KERNEL_BLOCK < p.units) {
            *(um_pack<Out, V> *)(p.low[UM_KERNEL_OUT] + output[u]) = result;
        }
    }
}

/* A block computes one tile. (Blocks that loop over tiles, as many as the chip holds, gave 3 % less bandwidth on an H200.) Whole tiles have
 * code without checks of their own where moving 16 bytes at a time is all there is to do. */
template <typename Op, typename First, typename In, typename Out, int Inputs, int V, bool Unchecked>
__device__ __forceinline__ void um_elementwise(const um_elementwise_params &p) {
    constexpr uint32_t Tile = UM_KERNEL_BLOCK * UM_ELEMENTWISE_UNROLL;
    const uint32_t start = blockIdx.x * Tile;
    if (Unchecked && p.units - start >= Tile) {
        um_elementwise_tile<Op, First, In, Out, Inputs, V, false>(p, start + threadIdx.x);
    } else {
        um_elementwise_tile<Op, First, In, Out, Inputs, V, true>(p, start + threadIdx.x);
    }
}

/* Input i of the element that follows the last unit by `element`. */
template <typename In>
__device__ __forceinline__ In um_tail_input(const um_elementwise_params &p, int i, uint32_t element) {
    if (p.immediates >> i & 1) {
        return *(const In *)p.values[i];
    }
    const In *after = (const In *)(p.low[i] + (uint32_t)(p.start[i] + p.units * p.strides[0][i]));
    return after[p.scalars >> i & 1 ? 0 : element];
}

/* The elements after the last unit, fewer than a unit has. */
template <typename Op, typename First, typename In, typename Out, int Inputs>
__device__ __forceinline__ void um_elementwise_tail(const um_elementwise_params &p) {
    if (blockIdx.x != 0 || threadIdx.x >= p.tail) {
        return;
    }
    In arguments[Inputs];
#pragma unroll
    for (int i = 1; i < Inputs; i++) {
        arguments[i] = um_tail_input<In>(p, i, threadIdx.x);
    }
    Out *out =
        (Out *)(p.low[UM_KERNEL_OUT] + (uint32_t)(p.start[UM_KERNEL_OUT] + p.units * p.strides[0][UM_KERNEL_OUT]));
    out[threadIdx.x] = um_apply<Op, First, In, Inputs>::call(um_tail_input<First>(p, 0, threadIdx.x), arguments);
}

/* Blocks that a multiprocessor can hold (CUDA C++ Programming Guide, technical specifications per compute capability: threads per
 * multiprocessor). Asking for more is ignored with a warning, so unknown ones count as 1,536 threads. */
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
#define UM_MULTIPROCESSOR_BLOCKS (2048 / UM_KERNEL_BLOCK)
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define UM_MULTIPROCESSOR_BLOCKS (1024 / UM_KERNEL_BLOCK)
#else
#define UM_MULTIPROCESSOR_BLOCKS (1536 / UM_KERNEL_BLOCK)
#endif

/* For *_elem kernels: as many blocks as fit at once, if that costs no spilled registers. */
#define UM_ELEM_BLOCKS(in, inputs) (sizeof(in) <= 4 && (inputs) <= 2 ? UM_MULTIPROCESSOR_BLOCKS : 1)

/* Define the kernels of an operation: um_<kernel>_elem, um_<kernel>_vec. */
#define UM_DEFINE_ELEM(kernel, op, first, in, out, inputs)                                                             \
    extern "C" __global__ void __launch_bounds__(UM_KERNEL_BLOCK, UM_ELEM_BLOCKS(in, inputs))                          \
        um_##kernel##_elem(const __grid_constant__ um_elementwise_params p) {                                          \
        um_elementwise<op, first, in, out, inputs, 1, false>(p);                                                       \
    }
#define UM_DEFINE_VEC(kernel, op, first, in, out, inputs, unchecked)                                                   \
    extern "C" __global__ void __launch_bounds__(UM_KERNEL_BLOCK)                                                      \
        um_##kernel##_vec(const __grid_constant__ um_elementwise_params p) {                                           \
        um_elementwise<op, first, in, out, inputs, um_pack_width<in, out>::value, unchecked>(p);                       \
        um_elementwise_tail<op, first, in, out, inputs>(p);                                                            \
    }

#endif
