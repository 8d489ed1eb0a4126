/* Sums over any axes: um_sum_<type>_{elem,row,col} (um_sum_params says how work is laid out).
 *
 * The order of additions depends on the shape and the grid only. A floating-point thread adds the units it has in flight
 * as a tree and puts the result into a running sum whose rounding errors are summed beside it (Knuth's two-sum), so the error of a sum
 * does not grow with its length. Double precision would do for float32 too, but has 1/64 of the rate on most chips.
 */
#include "kernels/um_kernel_abi.h"

template <typename T, int V> struct alignas(sizeof(T) * V) sum_pack {
    T at[V];
};

/* --- accumulators: add a value, merge another, give the partial sum ------------------------------------------------ */

template <typename Real> struct float_sum {
    Real sum, error;

    __device__ __forceinline__ void clear() { sum = error = 0; }
    __device__ __forceinline__ void add(Real x) {
        const Real total = sum + x;
        const Real part = total - sum;
        error += (sum - (total - part)) + (x - part);
        sum = total;
    }
    __device__ __forceinline__ void merge(float_sum other) {
        add(other.sum);
        error += other.error;
    }
    /* The errors are NaN after an infinity, and the sum then is right without them. */
    __device__ __forceinline__ double partial() const {
        const double corrected = (double)sum + (double)error;
        return isfinite(corrected) ? corrected : (double)sum;
    }
    __device__ __forceinline__ Real result() const {
        const Real corrected = sum + error;
        return isfinite(corrected) ? corrected : sum;
    }
    __device__ __forceinline__ float_sum from_lane(uint32_t distance) const {
        return {__shfl_xor_sync(0xffffffffu, sum, (int)distance), __shfl_xor_sync(0xffffffffu, error, (int)distance)};
    }
};

struct integer_sum {
    uint64_t sum;

    __device__ __forceinline__ void clear() { sum = 0; }
    __device__ __forceinline__ void add(uint64_t x) { sum += x; }
    __device__ __forceinline__ void merge(integer_sum other) { sum += other.sum; }
    __device__ __forceinline__ int64_t partial() const { return (int64_t)sum; }
    __device__ __forceinline__ int64_t result() const { return (int64_t)sum; }
    __device__ __forceinline__ integer_sum from_lane(uint32_t distance) const {
        return {__shfl_xor_sync(0xffffffffu, sum, (int)distance)};
    }
};

template <typename Value> struct accumulator {
    typedef float_sum<Value> type;
};
template <> struct accumulator<uint64_t> {
    typedef integer_sum type;
};

/* --- where things are -------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void locate_output(const um_sum_params &p, uint32_t output, int64_t *in, int64_t *out) {
    int64_t in_offset = 0, out_offset = 0;
    uint32_t d = 0;
    for (; d + 1 < p.kept_ndim; d++) {
        const uint32_t quotient = um_divide(output, p.kept[d]);
        const uint32_t index = output - quotient * p.kept[d].value;
        in_offset += (int64_t)index * p.kept_in[d];
        out_offset += (int64_t)index * p.kept_out[d];
        output = quotient;
    }
    *in = in_offset + (int64_t)output * p.kept_in[d];
    *out = out_offset + (int64_t)output * p.kept_out[d];
}

template <int Unroll>
__device__ __forceinline__ void locate_units(const um_sum_params &p, uint64_t first, uint32_t step,
                                             int64_t (&offset)[Unroll]) {
    const uint32_t outermost = p.reduced_ndim - 1;
    if (outermost == 0) {
#pragma unroll
        for (int u = 0; u < Unroll; u++) {
            offset[u] = (int64_t)(first + (uint64_t)u * step) * p.reduced_in[0];
        }
        return;
    }
#pragma unroll
    for (int u = 0; u < Unroll; u++) {
        offset[u] = 0;
    }
    if (p.wide) {
#pragma unroll
        for (int u = 0; u < Unroll; u++) {
            uint64_t rest = first + (uint64_t)u * step;
#pragma unroll 1
            for (uint32_t d = 0; d < outermost; d++) {
                const uint64_t length = (uint64_t)p.reduced[d].magic << 32 | p.reduced[d].value;
                offset[u] += (int64_t)(rest % length) * p.reduced_in[d];
                rest /= length;
            }
            offset[u] += (int64_t)rest * p.reduced_in[outermost];
        }
        return;
    }
    uint32_t rest[Unroll];
#pragma unroll
    for (int u = 0; u < Unroll; u++) {
        rest[u] = (uint32_t)first + (uint32_t)u * step;
    }
#pragma unroll 1
    for (uint32_t d = 0; d < outermost; d++) {
        const um_divisor length = p.reduced[d];
        const int64_t stride = p.reduced_in[d];
#pragma unroll
        for (int u = 0; u < Unroll; u++) {
            const uint32_t quotient = um_divide(rest[u], length);
            offset[u] += (int64_t)(rest[u] - quotient * length.value) * stride;
            rest[u] = quotient;
        }
    }
#pragma unroll
    for (int u = 0; u < Unroll; u++) {
        offset[u] += (int64_t)rest[u] * p.reduced_in[outermost];
    }
}

/* --- the body: a unit holds Along elements of one output's reduction, or one element of each of Across outputs ------------ */

/* Adds units first, first + step, … below end. */
template <typename T, typename Value, int Along, int Across, typename Sum>
__device__ __forceinline__ void add_units(const um_sum_params &p, const char *in, uint64_t first, uint64_t end,
                                          uint32_t step, Sum (&sums)[Across]) {
    constexpr int Width = Along * Across;
    constexpr int Unroll = Width > 1 ? UM_SUM_UNROLL_VEC : UM_SUM_UNROLL_ELEM;
    for (; first < end; first += (uint64_t)step * Unroll) {
        int64_t offset[Unroll];
        locate_units<Unroll>(p, first, step, offset);
        sum_pack<T, Width> x[Unroll];
#pragma unroll
        for (int u = 0; u < Unroll; u++) {
            if (first + (uint64_t)u * step < end) {
                x[u] = *(const sum_pack<T, Width> *)(in + offset[u]);
            } else {
#pragma unroll
                for (int v = 0; v < Width; v++) {
                    x[u].at[v] = 0;
                }
            }
        }
#pragma unroll
        for (int a = 0; a < Across; a++) {
            Value tree[Unroll];
#pragma unroll
            for (int u = 0; u < Unroll; u++) {
                tree[u] = (Value)x[u].at[a];
                if constexpr (Along == 2) {
                    tree[u] += (Value)x[u].at[1];
                } else if constexpr (Along == 4) {
                    tree[u] = (tree[u] + (Value)x[u].at[1]) + ((Value)x[u].at[2] + (Value)x[u].at[3]);
                }
            }
#pragma unroll
            for (int half = Unroll / 2; half > 0; half /= 2) {
#pragma unroll
                for (int u = 0; u < half; u++) {
                    tree[u] += tree[u + half];
                }
            }
            sums[a].add(tree[0]);
        }
    }
}

/* Adds up what the threads of each output have; thread y = 0 holds the result. */
template <int Across, typename Sum>
__device__ __forceinline__ void merge_threads(const um_sum_params &p, uint32_t y, uint32_t y_width,
                                              Sum (&sums)[Across]) {
    if (!p.x_fast && y_width <= 32) { /* neighbours in a warp */
        for (uint32_t distance = y_width / 2; distance > 0; distance /= 2) {
#pragma unroll
            for (int a = 0; a < Across; a++) {
                sums[a].merge(sums[a].from_lane(distance));
            }
        }
        return;
    }
    __shared__ Sum shared[Across][UM_KERNEL_BLOCK];
    const uint32_t below = p.x_fast ? 1u << p.x_shift : 1; /* threads from y to y + 1 */
    __syncthreads();                                       /* the last outputs' sums have been read */
    for (uint32_t distance = y_width / 2; distance > 0; distance /= 2) {
        if (y >= distance && y < 2 * distance) {
#pragma unroll
            for (int a = 0; a < Across; a++) {
                shared[a][threadIdx.x] = sums[a];
            }
        }
        __syncthreads();
        if (y < distance) {
#pragma unroll
            for (int a = 0; a < Across; a++) {
                sums[a].merge(shared[a][threadIdx.x + distance * below]);
            }
        }
    }
}

template <typename Value, typename Sum>
__device__ __forceinline__ void store_sum(const um_sum_params &p, char *out, Sum sum) {
    if (p.store == UM_SUM_PARTIAL) {
        *(decltype(sum.partial()) *)out = sum.partial();
    } else if (sizeof(Value) == 8 && p.store == UM_SUM_FLOAT32) {
        *(float *)out = (float)sum.result();
    } else {
        *(decltype(sum.result()) *)out = sum.result();
    }
}

template <int Across, typename T> struct alignas(sizeof(T) * Across) result_pack {
    T at[Across];
};

/* Stores the sums of one output unit's split. */
template <typename Value, int Across, typename Sum>
__device__ __forceinline__ void store_sums(const um_sum_params &p, uint32_t output, int64_t out_offset,
                                           const Sum (&sums)[Across]) {
    typedef decltype(sums[0].result()) Result;
    if (p.pack) { /* consecutive and aligned, one store */
        result_pack<Across, Result> results;
#pragma unroll
        for (int a = 0; a < Across; a++) {
            results.at[a] = sums[a].result();
        }
        *(result_pack<Across, Result> *)(p.out + out_offset) = results;
        return;
    }
#pragma unroll
    for (int a = 0; a < Across; a++) {
        if (p.splits > 1) {
            const uint64_t slot = ((uint64_t)output * Across + (uint32_t)a) * p.splits + blockIdx.y;
            store_sum<Value>(p, p.out + slot * 8, sums[a]);
        } else {
            store_sum<Value>(p, p.out + out_offset + a * p.out_step, sums[a]);
        }
    }
}

template <typename T, typename Value, int Along, int Across>
__device__ __forceinline__ void sum_body(const um_sum_params &p) {
    typedef typename accumulator<Value>::type Sum;
    const uint32_t y_width = UM_KERNEL_BLOCK >> p.x_shift;
    uint32_t x, y;
    if (p.x_fast) {
        x = threadIdx.x & ((1u << p.x_shift) - 1);
        y = threadIdx.x >> p.x_shift;
    } else {
        y = threadIdx.x & (y_width - 1);
        x = threadIdx.x / y_width; /* once */
    }
    const uint64_t begin = blockIdx.y * p.chunk;
    const uint64_t end = begin + p.chunk < p.units ? begin + p.chunk : p.units;

    /* All threads of a block go round together, for the barriers. outputs < 2^31, so nothing wraps. */
    for (uint32_t first = blockIdx.x << p.x_shift; first < p.outputs; first += gridDim.x << p.x_shift) {
        const uint32_t output = first + x;
        const bool live = output < p.outputs;
        Sum sums[Across];
#pragma unroll
        for (int a = 0; a < Across; a++) {
            sums[a].clear();
        }
        int64_t in_offset = 0, out_offset = 0;
        if (live) {
            locate_output(p, output, &in_offset, &out_offset);
            add_units<T, Value, Along, Across>(p, p.in + in_offset, begin + y, end, y_width, sums);
            if (Along > 1 && blockIdx.y == p.splits - 1) {
                const T *rest = (const T *)(p.in + in_offset + (int64_t)p.units * p.reduced_in[0]);
                for (uint32_t element = y; element < p.tail; element += y_width) {
                    sums[0].add((Value)rest[element]);
                }
            }
        }
        merge_threads<Across>(p, y, y_width, sums);
        if (live && y == 0) {
            store_sums<Value, Across>(p, output, out_offset, sums);
        }
    }
}

#define UM_DEFINE_SUM(token, enumerator, type, value, partial)                                                         \
    extern "C" __global__ void __launch_bounds__(UM_KERNEL_BLOCK)                                                      \
        um_sum_##token##_elem(const __grid_constant__ um_sum_params p) {                                               \
        sum_body<type, value, 1, 1>(p);                                                                                \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(UM_KERNEL_BLOCK)                                                      \
        um_sum_##token##_row(const __grid_constant__ um_sum_params p) {                                                \
        sum_body<type, value, UM_VECTOR_BYTES / (int)sizeof(type), 1>(p);                                              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(UM_KERNEL_BLOCK)                                                      \
        um_sum_##token##_col(const __grid_constant__ um_sum_params p) {                                                \
        sum_body<type, value, 1, UM_VECTOR_BYTES / (int)sizeof(type)>(p);                                              \
    }
UM_FOR_EACH_SUM(UM_DEFINE_SUM)
