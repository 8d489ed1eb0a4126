/* A register machine: all instructions of a program for the elements of a tile, so that memory is passed over once.
 *
 * A thread takes V elements through the whole program. The result of an instruction stays in hardware registers (acc) for the next one;
 * the machine's own registers, of which the first hold the inputs, are in shared memory, since hardware registers have no number at run
 * time. A thread reads what it wrote itself, 16 bytes at a time and without bank conflicts, so that there are no barriers. All inputs
 * are on their way (cp.async, straight to shared memory) before the first instruction waits.
 *
 * The estimate, for an H200 (132 multiprocessors, 1.75 GHz, 4 instructions of a warp and 128 bytes of shared memory a clock, 4.1 TB/s of
 * device memory) and 2*a + b*sin(c): 4 steps, three float32 inputs, V = 8. Instructions are counted in what nvcc 13 makes for sm_90:
 *   memory       16 bytes an element: 0.90 clocks of a multiprocessor
 *   shared       3 inputs written and read, one intermediate result likewise: 32 bytes, 0.25 clocks
 *   issue        a thread: loads and store 110; a step 75, of which 8 compute, 20 fetch operands, 12 choose the operation and the rest
 *                decode and move; sin 20 an element more. 110 + 4 * 75 + 160 = 570, 71 an element: 71 / (4 * 32) = 0.56 clocks
 *   occupancy    3 registers of the machine, 24 KiB a block, and 48 hardware registers: 5 blocks, 1,280 threads with 96 bytes each under
 *                way, 120 KiB, where 25 KiB cover the latency
 * So the memory is the limit, as long as an expression has no more than about 8 operations, or 3 functions such as sin, per 16 bytes.
 * No operation uses local memory (um_evaluate_trig.h says how), nor does any need more registers than these.
 */
#include "kernels/um_elementwise.cuh"
#include "kernels/um_evaluate_abi.h"
#include "kernels/um_evaluate_math.h"
#include "kernels/um_evaluate_trig.h"

struct um_narrow {
    using cell = uint32_t;
    using T = int32_t;
    using U = uint32_t;
    static constexpr bool wide = false;
    static __device__ __forceinline__ T floor_divide(T a, T b) { return um_i32_floor_divide(a, b); }
    static __device__ __forceinline__ T remainder(T a, T b) { return um_i32_remainder(a, b); }
    static __device__ __forceinline__ T fmod(T a, T b) { return um_i32_fmod(a, b); }
    static __device__ __forceinline__ T left_shift(T a, T b) { return um_i32_left_shift(a, b); }
    static __device__ __forceinline__ T right_shift(T a, T b) { return um_i32_right_shift(a, b); }
};

struct um_wide {
    using cell = uint64_t;
    using T = int64_t;
    using U = uint64_t;
    static constexpr bool wide = true;
    static __device__ __forceinline__ T floor_divide(T a, T b) { return um_i64_floor_divide(a, b); }
    static __device__ __forceinline__ T remainder(T a, T b) { return um_i64_remainder(a, b); }
    static __device__ __forceinline__ T fmod(T a, T b) { return um_i64_fmod(a, b); }
    static __device__ __forceinline__ T left_shift(T a, T b) { return um_i64_left_shift(a, b); }
    static __device__ __forceinline__ T right_shift(T a, T b) { return um_i64_right_shift(a, b); }
};

extern __shared__ uint4 um_evaluate_registers[]; /* [register][vector of a thread][thread] */

template <typename Vector> __device__ __forceinline__ Vector um_read_shared(uint32_t address) {
    uint4 words;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(address)
                 : "memory");
    return *(const Vector *)&words;
}

template <typename Vector> __device__ __forceinline__ void um_write_shared(uint32_t address, const Vector &vector) {
    const uint4 words = *(const uint4 *)&vector;
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words.x), "r"(words.y), "r"(words.z),
                 "r"(words.w)
                 : "memory");
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <int Bytes> __device__ __forceinline__ void um_copy_async(uint32_t to, const void *from) {
    if constexpr (Bytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(Bytes) : "memory");
    }
}
__device__ __forceinline__ void um_wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
template <int Bytes> __device__ __forceinline__ void um_copy_async(uint32_t to, const void *from) {
    if constexpr (Bytes == 16) {
        um_write_shared(to, *(const uint4 *)from);
    } else if constexpr (Bytes == 8) {
        asm volatile("st.shared.u64 [%0], %1;" ::"r"(to), "l"(*(const uint64_t *)from) : "memory");
    } else {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(*(const uint32_t *)from) : "memory");
    }
}
__device__ __forceinline__ void um_wait_for_copies() {}
#endif

/* What a thread has to do with memory. Vectors: units are 16 bytes of cells, else elements. */
template <typename W, int V> struct um_tile {
    using cell = typename W::cell;
    static constexpr int Lanes = 16 / sizeof(cell);
    using vector = um_pack<cell, Lanes>;

    const um_evaluate_params &p;
    const uint32_t first; /* unit; the others follow in steps of a block */
    const uint32_t mine;  /* address in shared memory of the thread's part of register 0 */

    __device__ __forceinline__ bool has(int unit) const { return first + (uint32_t)unit * UM_KERNEL_BLOCK < p.units; }

    /* A 32-bit address: of generic ones each access would find out where shared memory begins. */
    __device__ __forceinline__ uint32_t at(uint32_t number, int k) const {
        return mine + (number * (V / Lanes) + (uint32_t)k) * (UM_KERNEL_BLOCK * 16);
    }

    __device__ __forceinline__ char *locate(uint32_t operand, int unit) const {
        const um_evaluate_operand &o = p.operands[operand];
        const uint32_t outermost = p.ndim - 1;
        uint32_t rest = first + (uint32_t)unit * UM_KERNEL_BLOCK;
        int64_t offset = 0;
#pragma unroll 1
        for (uint32_t d = 0; d < outermost; d++) {
            const uint32_t quotient = um_divide(rest, p.shape[d]);
            offset += (int64_t)(rest - quotient * p.shape[d].value) * o.strides[d];
            rest = quotient;
        }
        return o.data + offset + (int64_t)rest * o.strides[outermost];
    }

    /* Whole cells: nothing to convert, and nobody waits. */
    __device__ __forceinline__ void copy(uint32_t input, bool repeated) const {
        if (p.lanes == 1 || repeated) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                const int unit = p.lanes == 1 ? v : v / Lanes;
                if (has(unit)) {
                    um_copy_async<sizeof(cell)>(at(input, v / Lanes) + v % Lanes * sizeof(cell), locate(input, unit));
                }
            }
        } else {
#pragma unroll
            for (int k = 0; k < V / Lanes; k++) {
                if (has(k)) {
                    um_copy_async<16>(at(input, k), locate(input, k));
                }
            }
        }
    }

    template <typename S> __device__ __forceinline__ void load(uint32_t input, bool repeated) const {
        S values[V];
        if (p.lanes == 1 || repeated) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                const int unit = p.lanes == 1 ? v : v / Lanes;
                if (has(unit)) {
                    values[v] = *(const S *)locate(input, unit);
                }
            }
        } else {
#pragma unroll
            for (int k = 0; k < V / Lanes; k++) {
                if (has(k)) {
                    *(um_pack<S, Lanes> *)&values[k * Lanes] = *(const um_pack<S, Lanes> *)locate(input, k);
                }
            }
        }
#pragma unroll
        for (int k = 0; k < V / Lanes; k++) {
            vector cells;
#pragma unroll
            for (int lane = 0; lane < Lanes; lane++) {
                cells.at[lane] = (cell)(typename W::T)values[k * Lanes + lane];
            }
            um_write_shared(at(input, k), cells);
        }
    }

    __device__ __forceinline__ void load_any(uint32_t input) const {
        const bool repeated = p.operands[input].strides[0] == 0; /* only in a vector: one element for all lanes */
        switch (p.kinds[input]) {
        case UM_EVALUATE_U8: load<uint8_t>(input, repeated); break;
        case UM_EVALUATE_I8: load<int8_t>(input, repeated); break;
        case UM_EVALUATE_U16: load<uint16_t>(input, repeated); break;
        case UM_EVALUATE_I16: load<int16_t>(input, repeated); break;
        case UM_EVALUATE_U32:
            if constexpr (W::wide) {
                load<uint32_t>(input, repeated);
                break;
            } else {
                copy(input, repeated);
                break;
            }
        case UM_EVALUATE_I32:
            if constexpr (W::wide) {
                load<int32_t>(input, repeated);
                break;
            } else {
                copy(input, repeated);
                break;
            }
        default: copy(input, repeated); break;
        }
    }

    template <typename S> __device__ __forceinline__ void store(const cell (&cells)[V]) const {
        if (p.lanes == 1) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                if (has(v)) {
                    *(S *)locate(UM_EVALUATE_OUT, v) = (S)cells[v];
                }
            }
        } else {
#pragma unroll
            for (int k = 0; k < V / Lanes; k++) {
                um_pack<S, Lanes> values;
#pragma unroll
                for (int lane = 0; lane < Lanes; lane++) {
                    values.at[lane] = (S)cells[k * Lanes + lane];
                }
                if (has(k)) {
                    *(um_pack<S, Lanes> *)locate(UM_EVALUATE_OUT, k) = values;
                }
            }
        }
    }

    __device__ __forceinline__ void store_any(const cell (&cells)[V]) const {
        switch (um_evaluate_kind_size(p.kinds[UM_EVALUATE_OUT])) {
        case 1: store<uint8_t>(cells); break;
        case 2: store<uint16_t>(cells); break;
        case 4: store<uint32_t>(cells); break;
        default: store<cell>(cells); break;
        }
    }

    __device__ __forceinline__ void fetch(cell (&cells)[V], uint32_t code) const {
        if (code & UM_EVALUATE_CONSTANT) {
            const cell value = (cell)p.constants[code - UM_EVALUATE_CONSTANT];
#pragma unroll
            for (int v = 0; v < V; v++) {
                cells[v] = value;
            }
        } else {
#pragma unroll
            for (int k = 0; k < V / Lanes; k++) {
                const vector read = um_read_shared<vector>(at(code, k));
#pragma unroll
                for (int lane = 0; lane < Lanes; lane++) {
                    cells[k * Lanes + lane] = read.at[lane];
                }
            }
        }
    }

    __device__ __forceinline__ void keep(uint32_t number, const cell (&cells)[V]) const {
#pragma unroll
        for (int k = 0; k < V / Lanes; k++) {
            vector written;
#pragma unroll
            for (int lane = 0; lane < Lanes; lane++) {
                written.at[lane] = cells[k * Lanes + lane];
            }
            um_write_shared(at(number, k), written);
        }
    }
};

/* One instruction for all of a thread's elements. acc is operand a and becomes the result; y is b. */
#define UM_CASE(op, T_, from, to, value)                                                                               \
    case op:                                                                                                           \
        _Pragma("unroll") for (int v = 0; v < V; v++) {                                                                \
            using T = T_;                                                                                              \
            const T a = from(acc[v]), b = from(y[v]);                                                                  \
            (void)a, (void)b;                                                                                          \
            acc[v] = to(value);                                                                                        \
        }                                                                                                              \
        break;
#define UM_F32(cell_) __uint_as_float((uint32_t)(cell_))
#define UM_F64(cell_) __longlong_as_double((int64_t)(cell_))
#define UM_INT(cell_) (typename W::T)(cell_)
#define UM_OF_F32(x)  __float_as_uint(x)
#define UM_OF_F64(x)  (cell) __double_as_longlong(x)
#define UM_OF_INT(x)  (cell)(typename W::T)(x)

#define UM_CASE_F32(name, value)      UM_CASE(UM_EVALUATE_F32_##name, float, UM_F32, UM_OF_F32, value)
#define UM_CASE_F32_TEST(name, value) UM_CASE(UM_EVALUATE_F32_##name, float, UM_F32, UM_OF_INT, value)
#define UM_CASE_F64(name, value)      UM_CASE(UM_EVALUATE_F64_##name, double, UM_F64, UM_OF_F64, value)
#define UM_CASE_F64_TEST(name, value) UM_CASE(UM_EVALUATE_F64_##name, double, UM_F64, UM_OF_INT, value)
#define UM_CASE_INT(name, value)      UM_CASE(UM_EVALUATE_INT_##name, typename W::T, UM_INT, UM_OF_INT, value)

template <typename W, int V>
__device__ __forceinline__ void um_evaluate_wide_step(uint32_t op, typename W::cell (&acc)[V],
                                                      const typename W::cell (&y)[V]) {
    using cell = typename W::cell;
    using U = typename W::U;
    switch (op) {
        UM_EVALUATE_WIDE_INT_OPS(UM_CASE_INT)
#define FN(name)   name
#define HELP(name) um_f64_##name
        UM_EVALUATE_FLOAT_OPS(UM_CASE_F64)
        UM_EVALUATE_FLOAT_TESTS(UM_CASE_F64_TEST)
#undef FN
#undef HELP
        UM_CASE(UM_EVALUATE_INT_TO_F64, typename W::T, UM_INT, UM_OF_F64, (double)a)
        UM_CASE(UM_EVALUATE_F32_TO_F64, float, UM_F32, UM_OF_F64, (double)a)
        UM_CASE(UM_EVALUATE_F64_TO_F32, double, UM_F64, UM_OF_F32, (float)a)
    default: __builtin_unreachable();
    }
}

template <typename W, int V>
__device__ __forceinline__ void um_evaluate_step_of(const um_tile<W, V> &tile, const um_evaluate_step &step,
                                                    typename W::cell (&acc)[V], typename W::cell (&y)[V]) {
    using cell = typename W::cell;
    using U = typename W::U;
    switch (step.op) {
    case UM_EVALUATE_COPY: break;
    case UM_EVALUATE_WHERE: {
        cell z[V];
        tile.fetch(z, step.c);
#pragma unroll
        for (int v = 0; v < V; v++) {
            acc[v] = acc[v] != 0 ? y[v] : z[v];
        }
        break;
    }
#define FN(name)   name##f
#define HELP(name) um_f32_##name
        UM_EVALUATE_FLOAT_OPS(UM_CASE_F32)
        UM_EVALUATE_FLOAT_TESTS(UM_CASE_F32_TEST)
#undef FN
#undef HELP
#define HELP(name) W::name
        UM_EVALUATE_INT_OPS(UM_CASE_INT)
#undef HELP
        UM_CASE(UM_EVALUATE_INT_TO_F32, typename W::T, UM_INT, UM_OF_F32, (float)a)
    default:
        if constexpr (W::wide) {
            um_evaluate_wide_step<W, V>(step.op, acc, y);
            break;
        }
        __builtin_unreachable(); /* the launcher has checked the program */
    }
}

template <typename W, int V> __device__ __forceinline__ void um_evaluate(const um_evaluate_params &p) {
    using cell = typename W::cell;
    using tile_type = um_tile<W, V>;
    const uint32_t units = p.lanes == 1 ? V : V / tile_type::Lanes;
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(um_evaluate_registers);
    const tile_type tile = {p, blockIdx.x * units * UM_KERNEL_BLOCK + threadIdx.x, shared + threadIdx.x * 16};
#pragma unroll 1
    for (uint32_t i = 0; i < p.inputs; i++) {
        tile.load_any(i);
    }
    um_wait_for_copies();

    cell acc[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        acc[v] = 0;
    }
#pragma unroll 1
    for (uint32_t s = 0; s < p.steps; s++) {
        const um_evaluate_step step = p.program[s];
        cell y[V]; /* anything where the operation has one operand */
        if (step.b < UM_EVALUATE_PREVIOUS) {
            tile.fetch(y, step.b);
        } else {
#pragma unroll
            for (int v = 0; v < V; v++) {
                y[v] = acc[v];
            }
        }
        if (step.a != UM_EVALUATE_PREVIOUS) {
            tile.fetch(acc, step.a);
        }
        um_evaluate_step_of<W, V>(tile, step, acc, y);
        if (step.store != UM_EVALUATE_NONE) {
            tile.keep(step.store, acc);
        }
    }
    tile.store_any(acc);
}

/* blocks: of a multiprocessor at least, where it holds as many. */
#define UM_DEFINE_EVALUATE(name, width, v, blocks)                                                                     \
    extern "C" __global__ void __launch_bounds__(                                                                      \
        UM_KERNEL_BLOCK, (blocks) < UM_MULTIPROCESSOR_BLOCKS ? (blocks) : UM_MULTIPROCESSOR_BLOCKS)                    \
        um_evaluate_##name(const __grid_constant__ um_evaluate_params p) {                                             \
        um_evaluate<width, v>(p);                                                                                      \
    }
UM_DEFINE_EVALUATE(n8, um_narrow, 8, 5)
UM_DEFINE_EVALUATE(n4, um_narrow, 4, 6)
UM_DEFINE_EVALUATE(w2, um_wide, 2, 4)
