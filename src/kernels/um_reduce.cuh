/* Reductions over any axes: um_<name>_<type>_{elem,row,col} (um_reduce_params says how work is laid out).
 *
 * The order of operations depends on the shape and the grid only. A thread combines the units it has in flight as a tree, and
 * that with its accumulator. Sums of floats have their rounding errors summed beside them (Knuth's two-sum), so the error
 * does not grow with the length. Double precision would do for float32 too, but has 1/64 of the rate on most chips.
 */
#include "kernels/um_kernel_abi.h"
#include "kernels/um_kernel_functions.h"

/* 16 bytes or one element, as elements and as what their bits are changed by. */
template <int Bytes> struct word_of {
    typedef uint32_t type;
};
template <> struct word_of<1> {
    typedef uint8_t type;
};
template <> struct word_of<2> {
    typedef uint16_t type;
};

template <typename T, int V> union alignas(sizeof(T) * V) reduce_pack {
    typedef typename word_of<sizeof(T) * V>::type word;
    T at[V];
    word words[sizeof(T) * V / sizeof(word)];
};

enum bits_use { BITS_UNUSED, BITS_FLIPPED, BITS_KEPT };

template <bits_use Use, typename T, int V>
__device__ __forceinline__ void change_bits(reduce_pack<T, V> &x, uint64_t bits) {
    typedef typename reduce_pack<T, V>::word word;
    if constexpr (Use != BITS_UNUSED) {
#pragma unroll
        for (int i = 0; i < (int)(sizeof x.words / sizeof(word)); i++) {
            const word mask = (word)(i % 2 == 0 ? bits : bits >> 32);
            x.words[i] = Use == BITS_KEPT ? x.words[i] & mask : x.words[i] ^ mask;
        }
    }
}

/* --- values: what elements are computed with ----------------------------------------------------------------------- */

__device__ __forceinline__ int32_t value_of(int8_t x) { return x; } /* 64 of them fit together */
__device__ __forceinline__ uint32_t value_of(uint8_t x) { return x; }
__device__ __forceinline__ int32_t value_of(int16_t x) { return x; }
__device__ __forceinline__ uint32_t value_of(uint16_t x) { return x; }
__device__ __forceinline__ uint64_t value_of(int32_t x) { return (uint64_t)(int64_t)x; }
__device__ __forceinline__ uint64_t value_of(uint32_t x) { return x; }
__device__ __forceinline__ uint64_t value_of(uint64_t x) { return x; }
__device__ __forceinline__ float value_of(um_f16 x) { return um_cast_f16_to_f32(x); }
__device__ __forceinline__ float value_of(float x) { return x; }
__device__ __forceinline__ double value_of(double x) { return x; }
__device__ __forceinline__ um_c64 value_of(um_c64 x) { return x; }
__device__ __forceinline__ um_c128 value_of(um_c128 x) { return x; }

template <typename T> struct value_type {
    typedef decltype(value_of(T())) type;
};

__device__ __forceinline__ uint64_t widen(int32_t x) { return (uint64_t)(int64_t)x; }
__device__ __forceinline__ uint64_t widen(uint32_t x) { return x; }
__device__ __forceinline__ uint64_t widen(uint64_t x) { return x; }
__device__ __forceinline__ double widen(float x) { return (double)x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ um_c128 widen(um_c64 x) { return um_cast_c64_to_c128(x); }
__device__ __forceinline__ um_c128 widen(um_c128 x) { return x; }

template <typename Value> __device__ __forceinline__ Value plus(Value a, Value b) { return a + b; }
template <> __device__ __forceinline__ um_c64 plus(um_c64 a, um_c64 b) { return um_add(a, b); }
template <> __device__ __forceinline__ um_c128 plus(um_c128 a, um_c128 b) { return um_add(a, b); }

template <typename Value> __device__ __forceinline__ Value times(Value a, Value b) { return a * b; }
template <> __device__ __forceinline__ um_c64 times(um_c64 a, um_c64 b) { return um_multiply(a, b); }
template <> __device__ __forceinline__ um_c128 times(um_c128 a, um_c128 b) { return um_multiply(a, b); }

template <typename Value> __device__ __forceinline__ Value from_real(int x) { return (Value)x; }
template <> __device__ __forceinline__ um_c64 from_real(int x) { return {(float)x, 0}; }
template <> __device__ __forceinline__ um_c128 from_real(int x) { return {(double)x, 0}; }

template <typename Value> __device__ __forceinline__ bool is_nan(Value x) { return x != x; }
template <> __device__ __forceinline__ bool is_nan(um_c64 x) { return um_is_nan(x); }
template <> __device__ __forceinline__ bool is_nan(um_c128 x) { return um_is_nan(x); }

template <typename Value> __device__ __forceinline__ bool is_less(Value a, Value b) { return a < b; }
template <> __device__ __forceinline__ bool is_less(um_c64 a, um_c64 b) { return um_less(a, b); }
template <> __device__ __forceinline__ bool is_less(um_c128 a, um_c128 b) { return um_less(a, b); }

/* NaN comes before all numbers. */
template <typename Value> __device__ __forceinline__ bool is_before(Value a, Value b) {
    return is_less(a, b) || (is_nan(a) && !is_nan(b));
}

template <typename Value> __device__ __forceinline__ bool is_same(Value a, Value b) {
    return !is_before(a, b) && !is_before(b, a);
}

template <typename Value> __device__ __forceinline__ Value smaller(Value a, Value b) {
    return is_nan(a) || is_less(a, b) ? a : b; /* b if that is NaN */
}
#if __CUDA_ARCH__ >= 800
template <> __device__ __forceinline__ float smaller(float a, float b) {
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}
#endif

/* No element is larger. */
template <typename T> __device__ __forceinline__ T largest() { return (T) ~(T)0; }
template <> __device__ __forceinline__ um_f16 largest() { return {0x7c00}; }
template <> __device__ __forceinline__ float largest() { return INFINITY; }
template <> __device__ __forceinline__ double largest() { return INFINITY; }
template <> __device__ __forceinline__ um_c64 largest() { return {INFINITY, INFINITY}; }
template <> __device__ __forceinline__ um_c128 largest() { return {INFINITY, INFINITY}; }

/* --- results --------------------------------------------------------------------------------------------------------- */

/* Values in the kernel's own result type: as float as the input, else 64-bit integers. */
template <typename T> struct own_type {
    typedef uint64_t type;
    static __device__ __forceinline__ type from(uint64_t x) { return x; }
};
template <> struct own_type<um_f16> {
    typedef um_f16 type;
    static __device__ __forceinline__ type from(double x) { return um_cast_f64_to_f16(x); }
};
template <> struct own_type<float> {
    typedef float type;
    static __device__ __forceinline__ type from(double x) { return (float)x; }
};
template <> struct own_type<double> {
    typedef double type;
    static __device__ __forceinline__ type from(double x) { return x; }
};
template <> struct own_type<um_c64> {
    typedef um_c64 type;
    static __device__ __forceinline__ type from(um_c128 x) { return um_cast_c128_to_c64(x); }
};
template <> struct own_type<um_c128> {
    typedef um_c128 type;
    static __device__ __forceinline__ type from(um_c128 x) { return x; }
};

__device__ __forceinline__ void store_total(const um_reduce_params &p, char *out, uint64_t x) {
    if (p.store == UM_STORE_ANY) {
        *(uint8_t *)out = x != 0;
    } else if (p.store == UM_STORE_ALL) {
        *(uint8_t *)out = x == p.total;
    } else {
        *(uint64_t *)out = x;
    }
}

__device__ __forceinline__ void store_total(const um_reduce_params &p, char *out, double x) {
    if (p.store == UM_STORE_F32) {
        *(float *)out = (float)x;
    } else if (p.store == UM_STORE_F16) {
        *(um_f16 *)out = um_cast_f64_to_f16(x);
    } else {
        *(double *)out = x;
    }
}

__device__ __forceinline__ void store_total(const um_reduce_params &p, char *out, um_c128 x) {
    if (p.store == UM_STORE_F32) {
        *(um_c64 *)out = um_cast_c128_to_c64(x);
    } else {
        *(um_c128 *)out = x;
    }
}

template <typename A> __device__ __forceinline__ A from_lane(const A &mine, uint32_t distance) {
    union {
        A at;
        uint32_t words[(sizeof(A) + 3) / 4];
    } x = {mine};
#pragma unroll
    for (int i = 0; i < (int)((sizeof(A) + 3) / 4); i++) {
        x.words[i] = __shfl_xor_sync(0xffffffffu, x.words[i], (int)distance);
    }
    return x.at;
}

/* --- accumulators: add a batch's value, merge another thread's, give the result (a partial one too: widened) ------------ */

template <typename Value> struct sum_of { /* integers */
    uint64_t sum;

    __device__ __forceinline__ void clear() { sum = 0; }
    __device__ __forceinline__ void add(Value x) { sum += widen(x); }
    __device__ __forceinline__ void merge(const sum_of &other) { sum += other.sum; }
    __device__ __forceinline__ uint64_t total() const { return sum; }
};

template <typename Real> struct float_sum {
    Real sum, error;

    __device__ __forceinline__ void clear() { sum = error = 0; }
    __device__ __forceinline__ void add(Real x) {
        const Real total = sum + x;
        const Real part = total - sum;
        error += (sum - (total - part)) + (x - part);
        sum = total;
    }
    __device__ __forceinline__ void merge(const float_sum &other) {
        add(other.sum);
        error += other.error;
    }
    /* The errors are NaN after an infinity, and the sum then is right without them. */
    __device__ __forceinline__ double total() const {
        const double corrected = (double)sum + (double)error;
        return isfinite(corrected) ? corrected : (double)sum;
    }
};
template <> struct sum_of<float> : float_sum<float> {};
template <> struct sum_of<double> : float_sum<double> {};

template <typename Complex, typename Real> struct complex_sum {
    float_sum<Real> re, im;

    __device__ __forceinline__ void clear() {
        re.clear();
        im.clear();
    }
    __device__ __forceinline__ void add(Complex x) {
        re.add(x.re);
        im.add(x.im);
    }
    __device__ __forceinline__ void merge(const complex_sum &other) {
        re.merge(other.re);
        im.merge(other.im);
    }
    __device__ __forceinline__ um_c128 total() const { return {re.total(), im.total()}; }
};
template <> struct sum_of<um_c64> : complex_sum<um_c64, float> {};
template <> struct sum_of<um_c128> : complex_sum<um_c128, double> {};

template <typename Value> struct product_of {
    Value product;

    __device__ __forceinline__ void clear() { product = from_real<Value>(1); }
    __device__ __forceinline__ void add(Value x) { product = times(product, x); }
    __device__ __forceinline__ void merge(const product_of &other) { add(other.product); }
    __device__ __forceinline__ auto total() const { return widen(product); }
};

/* --- reductions -------------------------------------------------------------------------------------------------------- */

/* Each has: the accumulator, the value of an element, how two values combine, what stands for elements that do not exist. */
template <typename T> struct reduce_base {
    typedef T Element;
    typedef typename value_type<T>::type Value;
    typedef Value Mean;
    typedef typename own_type<T>::type Own;
    static constexpr bits_use bits = BITS_UNUSED;
    static constexpr bool has_mean = false, is_extreme = false, has_place = false;
    static __device__ __forceinline__ T filler() { return from_real<T>(0); }
    static __device__ __forceinline__ Value load(T x, Mean) { return value_of(x); }
    template <typename A> static __device__ __forceinline__ Own own(const A &a) { return own_type<T>::from(a.total()); }
};
template <> __device__ __forceinline__ um_f16 from_real(int x) { return um_cast_f32_to_f16((float)x); }

template <typename T> struct reduce_sum : reduce_base<T> {
    typedef typename reduce_base<T>::Value Value;
    typedef sum_of<Value> Accumulator;
    static __device__ __forceinline__ Value combine(Value a, Value b) { return plus(a, b); }
};

template <typename T> struct reduce_prod : reduce_base<T> {
    typedef typename reduce_base<T>::Value Value;
    typedef product_of<Value> Accumulator;
    static __device__ __forceinline__ T filler() { return from_real<T>(1); }
    static __device__ __forceinline__ Value combine(Value a, Value b) { return times(a, b); }
};

template <typename T> __device__ __forceinline__ bool is_true(T x) { return x != 0; }
template <> __device__ __forceinline__ bool is_true(um_c128 x) { /* bits that may be those of any number */
    return (__double_as_longlong(x.re) | __double_as_longlong(x.im)) != 0;
}

template <typename T> struct reduce_count : reduce_base<T> {
    typedef uint32_t Value;
    typedef uint64_t Own;
    typedef sum_of<uint32_t> Accumulator;
    static constexpr bits_use bits = BITS_KEPT;
    static __device__ __forceinline__ Value load(T x, typename reduce_base<T>::Mean) { return is_true(x) ? 1 : 0; }
    static __device__ __forceinline__ Value combine(Value a, Value b) { return a + b; }
    static __device__ __forceinline__ Own own(const Accumulator &a) { return a.total(); }
};

template <typename Value> struct square_of {
    static __device__ __forceinline__ Value distance(Value x, Value mean) { return (x - mean) * (x - mean); }
    typedef Value type;
};
template <> struct square_of<um_c64> {
    static __device__ __forceinline__ float distance(um_c64 x, um_c64 mean) {
        return (x.re - mean.re) * (x.re - mean.re) + (x.im - mean.im) * (x.im - mean.im);
    }
    typedef float type;
};
template <> struct square_of<um_c128> {
    static __device__ __forceinline__ double distance(um_c128 x, um_c128 mean) {
        return (x.re - mean.re) * (x.re - mean.re) + (x.im - mean.im) * (x.im - mean.im);
    }
    typedef double type;
};

template <typename T> struct squares_type {
    typedef T type;
};
template <> struct squares_type<um_c64> {
    typedef float type;
};
template <> struct squares_type<um_c128> {
    typedef double type;
};

template <typename T> struct reduce_squares : reduce_base<T> {
    typedef typename value_type<T>::type Mean;
    typedef typename square_of<Mean>::type Value;
    typedef sum_of<Value> Accumulator;
    typedef typename squares_type<T>::type Own;
    static constexpr bool has_mean = true;
    static __device__ __forceinline__ Value load(T x, Mean mean) {
        return square_of<Mean>::distance(value_of(x), mean);
    }
    static __device__ __forceinline__ Value combine(Value a, Value b) { return a + b; }
    static __device__ __forceinline__ Own own(const Accumulator &a) { return own_type<Own>::from(a.total()); }
};

/* Accumulator of min: the least value, as an element again, with its bits back. */
template <typename T> __device__ __forceinline__ T narrow(typename value_type<T>::type x) { return (T)x; }
template <> __device__ __forceinline__ um_f16 narrow(float x) { return um_cast_f32_to_f16(x); }

template <typename T> struct least_of {
    typedef typename value_type<T>::type Value;
    Value best;

    __device__ __forceinline__ void clear() { best = value_of(largest<T>()); }
    __device__ __forceinline__ void add(Value x) { best = smaller(best, x); }
    __device__ __forceinline__ void merge(const least_of &other) { add(other.best); }
    __device__ __forceinline__ T element(const um_reduce_params &p) const {
        reduce_pack<T, 1> x = {{narrow<T>(best)}};
        change_bits<BITS_FLIPPED>(x, p.bits);
        return x.at[0];
    }
};

template <typename T> struct reduce_min : reduce_base<T> {
    typedef typename value_type<T>::type Value;
    typedef least_of<T> Accumulator;
    static constexpr bits_use bits = BITS_FLIPPED;
    static constexpr bool is_extreme = true;
    static __device__ __forceinline__ T filler() { return largest<T>(); }
    static __device__ __forceinline__ Value combine(Value a, Value b) { return smaller(a, b); }
};

/* Accumulator of argmin. The loop notes the round in which the least value came up; its place is looked up there afterwards. */
template <typename T> struct place_of {
    typedef typename value_type<T>::type Value;
    Value best;
    uint64_t place; /* UINT64_MAX: none */

    __device__ __forceinline__ void clear() {
        best = value_of(largest<T>());
        place = UINT64_MAX;
    }
    __device__ __forceinline__ void add(Value x, uint64_t at) {
        if (is_before(x, best)) {
            best = x;
            place = at;
        }
    }
    __device__ __forceinline__ void merge(const place_of &other) {
        if (is_before(other.best, best) || (other.place < place && is_same(other.best, best))) {
            *this = other;
        }
    }
};

template <typename T> struct reduce_argmin : reduce_min<T> {
    typedef place_of<T> Accumulator;
    typedef uint64_t Own;
    static constexpr bool has_place = true;
};

/* --- where things are -------------------------------------------------------------------------------------------------- */

struct output_offsets {
    int64_t in, mean, out;
};

template <bool HasMean>
__device__ __forceinline__ output_offsets locate_output(const um_reduce_params &p, uint32_t output) {
    output_offsets at = {0, 0, 0};
    uint32_t d = 0;
    for (;; d++) {
        const bool outermost = d + 1 >= p.kept_ndim;
        const uint32_t quotient = outermost ? 0 : um_divide(output, p.kept[d]);
        const uint32_t index = output - quotient * p.kept[d].value;
        at.in += (int64_t)index * p.kept_in[d];
        at.out += (int64_t)index * p.kept_out[d];
        if (HasMean) {
            at.mean += (int64_t)index * p.kept_mean[d];
        }
        if (outermost) {
            return at;
        }
        output = quotient;
    }
}

template <int Unroll>
__device__ __forceinline__ void locate_units(const um_reduce_params &p, uint64_t first, uint32_t step,
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

template <int Along, int Across> struct units_in_flight {
    static constexpr int count = Along * Across > 1 ? UM_REDUCE_UNROLL_VEC : UM_REDUCE_UNROLL_ELEM;
};

template <int Count, typename Reduce, typename Value> __device__ __forceinline__ Value combine_all(Value (&x)[Count]) {
#pragma unroll
    for (int count = Count / 2; count > 0; count /= 2) {
#pragma unroll
        for (int i = 0; i < count; i++) {
            x[i] = Reduce::combine(x[2 * i], x[2 * i + 1]);
        }
    }
    return x[0];
}

/* Reduces units first, first + step, … below end. */
template <typename Reduce, int Along, int Across>
__device__ __forceinline__ void add_units(const um_reduce_params &p, const char *in, uint64_t first, uint64_t end,
                                          uint32_t step, const typename Reduce::Mean (&mean)[Across],
                                          typename Reduce::Accumulator (&totals)[Across]) {
    typedef typename Reduce::Element T;
    typedef typename Reduce::Value Value;
    typedef reduce_pack<T, Along * Across> pack;
    constexpr int Unroll = units_in_flight<Along, Across>::count;
    uint64_t round = 0;
#pragma unroll 1
    for (; first < end; first += (uint64_t)step * Unroll, round++) {
        int64_t offset[Unroll];
        locate_units<Unroll>(p, first, step, offset);
        pack x[Unroll];
#pragma unroll
        for (int u = 0; u < Unroll; u++) {
            if (first + (uint64_t)u * step < end) {
                x[u] = *(const pack *)(in + offset[u]);
            } else {
#pragma unroll
                for (int v = 0; v < Along * Across; v++) {
                    x[u].at[v] = Reduce::filler();
                }
                if (Reduce::bits == BITS_FLIPPED) {
                    change_bits<BITS_FLIPPED>(x[u], p.bits); /* and back below */
                }
            }
        }
#pragma unroll
        for (int u = 0; u < Unroll; u++) {
            change_bits<Reduce::bits>(x[u], p.bits);
        }
#pragma unroll
        for (int a = 0; a < Across; a++) {
            Value units[Unroll];
#pragma unroll
            for (int u = 0; u < Unroll; u++) {
                Value along[Along];
#pragma unroll
                for (int v = 0; v < Along; v++) {
                    along[v] = Reduce::load(x[u].at[a + v], mean[a]);
                }
                units[u] = combine_all<Along, Reduce>(along);
                if constexpr (Reduce::has_mean) {
                    units[u] = first + (uint64_t)u * step < end ? units[u] : 0;
                }
            }
            const Value batch = combine_all<Unroll, Reduce>(units);
            if constexpr (Reduce::has_place) {
                if (round == 0) {
                    totals[a].best = batch;
                    totals[a].place = 0;
                } else {
                    totals[a].add(batch, round);
                }
            } else {
                totals[a].add(batch);
            }
        }
    }
}

/* From the round of the least value to its place, the first that has it. */
template <typename Reduce, int Along, int Across>
__device__ __forceinline__ void find_places(const um_reduce_params &p, const char *in, uint64_t first, uint64_t end,
                                            uint32_t step, typename Reduce::Accumulator (&totals)[Across]) {
    typedef typename Reduce::Element T;
    constexpr int Unroll = units_in_flight<Along, Across>::count;
    if (first >= end) {
        return;
    }
#pragma unroll
    for (int a = 0; a < Across; a++) {
        const uint64_t begin = first + totals[a].place * step * Unroll;
        bool found = false;
#pragma unroll 1
        for (uint64_t unit = begin; unit < end && !found; unit += step) {
            int64_t offset[1];
            locate_units<1>(p, unit, step, offset);
#pragma unroll 1
            for (int v = 0; v < Along && !found; v++) {
                reduce_pack<T, 1> x = *(const reduce_pack<T, 1> *)(in + offset[0] + (a + v) * (int)sizeof(T));
                change_bits<Reduce::bits>(x, p.bits);
                if (is_same(value_of(x.at[0]), totals[a].best)) {
                    totals[a].place = unit * Along + (uint32_t)v;
                    found = true;
                }
            }
        }
    }
}

/* The elements of *_row that follow the last unit. */
template <typename Reduce, int Along, int Across>
__device__ __forceinline__ void add_tail(const um_reduce_params &p, const char *in, uint32_t y, uint32_t y_width,
                                         typename Reduce::Mean mean, typename Reduce::Accumulator &total) {
    typedef typename Reduce::Element T;
    const char *rest = in + (int64_t)p.units * p.reduced_in[0];
#pragma unroll 1
    for (uint32_t element = y; element < p.tail; element += y_width) {
        reduce_pack<T, 1> x = *(const reduce_pack<T, 1> *)(rest + element * sizeof(T));
        change_bits<Reduce::bits>(x, p.bits);
        const typename Reduce::Value value = Reduce::load(x.at[0], mean);
        if constexpr (Reduce::has_place) {
            total.merge({value, p.units * Along + element});
        } else {
            total.add(value);
        }
    }
}

/* Merges what the threads of each output have; thread y = 0 holds the result. */
template <int Across, typename A>
__device__ __forceinline__ void merge_threads(const um_reduce_params &p, uint32_t y, uint32_t y_width,
                                              A (&totals)[Across]) {
    if (!p.x_fast && y_width <= 32) { /* neighbours in a warp */
#pragma unroll 1                      /* half the registers */
        for (uint32_t distance = y_width / 2; distance > 0; distance /= 2) {
#pragma unroll
            for (int a = 0; a < Across; a++) {
                totals[a].merge(from_lane(totals[a], distance));
            }
        }
        return;
    }
    /* As many at a time as leave room for other blocks. */
    constexpr int Fit = 8192 / (UM_KERNEL_BLOCK * (int)sizeof(A));
    constexpr int Group = Fit < 1 ? 1 : Fit < Across ? Fit : Across;
    __shared__ __align__(16) unsigned char memory[Group * UM_KERNEL_BLOCK * sizeof(A)];
    A(&shared)[Group][UM_KERNEL_BLOCK] = *(A(*)[Group][UM_KERNEL_BLOCK])memory;
    const uint32_t below = p.x_fast ? 1u << p.x_shift : 1; /* threads from y to y + 1 */
#pragma unroll
    for (int group = 0; group < Across; group += Group) {
        __syncthreads(); /* the last group's totals have been read */
#pragma unroll 1
        for (uint32_t distance = y_width / 2; distance > 0; distance /= 2) {
            if (y >= distance && y < 2 * distance) {
#pragma unroll
                for (int a = 0; a < Group; a++) {
                    shared[a][threadIdx.x] = totals[group + a];
                }
            }
            __syncthreads();
            if (y < distance) {
#pragma unroll
                for (int a = 0; a < Group; a++) {
                    totals[group + a].merge(shared[a][threadIdx.x + distance * below]);
                }
            }
        }
    }
}

/* Stores one output, or a partial result as number `slot` of all. */
template <typename Reduce>
__device__ __forceinline__ void store_result(const um_reduce_params &p, uint64_t output, char *out, uint64_t slot,
                                             const typename Reduce::Accumulator &total) {
    typedef typename Reduce::Element T;
    if constexpr (Reduce::has_place) {
        if (p.store == UM_STORE_PARTIAL) {
            const least_of<T> least = {total.best};
            ((T *)p.out)[slot] = least.element(p);
            p.positions[slot] = (int64_t)total.place;
        } else {
            *(int64_t *)out = p.positions != NULL ? p.positions[output * p.units + total.place] : (int64_t)total.place;
        }
    } else if constexpr (Reduce::is_extreme) {
        *(p.store == UM_STORE_PARTIAL ? (T *)p.out + slot : (T *)out) = total.element(p);
    } else {
        const auto result = total.total();
        store_total(p, p.store == UM_STORE_PARTIAL ? p.out + slot * sizeof result : out, result);
    }
}

/* Stores the results of one output unit's split. */
template <typename Reduce, int Across>
__device__ __forceinline__ void store_results(const um_reduce_params &p, uint32_t output, int64_t out_offset,
                                              const typename Reduce::Accumulator (&totals)[Across]) {
    if constexpr (Across > 1 && !Reduce::is_extreme) {
        if (p.pack) { /* one store, or several of 16 bytes */
            typedef typename Reduce::Own Own;
            struct alignas(sizeof(Own) * Across) result_pack {
                Own at[Across];
            } results;
#pragma unroll
            for (int a = 0; a < Across; a++) {
                results.at[a] = Reduce::own(totals[a]);
            }
            *(result_pack *)(p.out + out_offset) = results;
            return;
        }
    }
#pragma unroll
    for (int a = 0; a < Across; a++) {
        const uint64_t element = (uint64_t)output * Across + (uint32_t)a;
        store_result<Reduce>(p, element, p.out + out_offset + a * p.out_step, element * p.splits + blockIdx.y,
                             totals[a]);
    }
}

template <typename Reduce, int Along, int Across>
__device__ __forceinline__ void reduce_body(const um_reduce_params &p) {
    typedef typename Reduce::Mean Mean;
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
        typename Reduce::Accumulator totals[Across];
        Mean mean[Across];
#pragma unroll
        for (int a = 0; a < Across; a++) {
            totals[a].clear();
        }
        output_offsets at = {0, 0, 0};
        if (live) {
            at = locate_output<Reduce::has_mean>(p, output);
            if constexpr (Reduce::has_mean) {
#pragma unroll
                for (int a = 0; a < Across; a++) {
                    mean[a] = *(const Mean *)(p.mean + at.mean + a * p.mean_step);
                }
            }
            add_units<Reduce, Along, Across>(p, p.in + at.in, begin + y, end, y_width, mean, totals);
            if constexpr (Reduce::has_place) {
                find_places<Reduce, Along, Across>(p, p.in + at.in, begin + y, end, y_width, totals);
            }
            if (Along > 1 && blockIdx.y == p.splits - 1) {
                add_tail<Reduce, Along, Across>(p, p.in + at.in, y, y_width, mean[0], totals[0]);
            }
        }
        merge_threads<Across>(p, y, y_width, totals);
        if (live && y == 0) {
            store_results<Reduce, Across>(p, output, at.out, totals);
        }
    }
}

#define UM_DEFINE_REDUCE_KERNEL(name, token, suffix, along, across)                                                    \
    extern "C" __global__ void __launch_bounds__(UM_KERNEL_BLOCK)                                                      \
        um_##name##_##token##_##suffix(const __grid_constant__ um_reduce_params p) {                                   \
        reduce_body<reduce_##name<UM_TYPE(token)>, along, across>(p);                                                  \
    }
#define UM_DEFINE_REDUCE(name, token)                                                                                  \
    UM_DEFINE_REDUCE_KERNEL(name, token, elem, 1, 1)                                                                   \
    UM_IF_PACKS(token, UM_DEFINE_REDUCE_KERNEL(name, token, row, UM_VECTOR_BYTES / (int)sizeof(UM_TYPE(token)), 1))    \
    UM_IF_PACKS(token, UM_DEFINE_REDUCE_KERNEL(name, token, col, 1, UM_VECTOR_BYTES / (int)sizeof(UM_TYPE(token))))
