/* Host implementations of the reductions; as fake_kernels.c. */
#include <math.h>

#include "fake_kernels.h"
#include "kernels/um_kernel_abi.h"
#include "kernels/um_kernel_functions.h"

/* Whatever one output is reduced to, at least as wide as what the kernels compute in. */
typedef struct state {
    long double re, im;
    uint64_t integer;
    unsigned char best[16]; /* of min and argmin, bits flipped */
    uint64_t place;
    bool any; /* there was an element */
} state;

static const char zeros[16];

typedef struct reducer {
    size_t size;         /* bytes of an element */
    uint32_t along;      /* elements of a reduction unit */
    uint32_t across;     /* outputs of an output unit */
    size_t partial_size; /* bytes of a partial result */
    size_t mean_size;    /* 0: no mean */
    bool places;
    void (*start)(state *total);
    void (*add)(const um_reduce_params *p, state *total, const char *element, const char *mean, uint64_t place);
    void (*store)(const um_reduce_params *p, char *out, const state *total);
} reducer;

static uint64_t reduced_length(const um_reduce_params *p, uint32_t d) {
    return p->wide ? (uint64_t)p->reduced[d].magic << 32 | p->reduced[d].value : p->reduced[d].value;
}

static const char *use_reduce_input(const um_reduce_params *p, const reducer *kernel) {
    const size_t unit = kernel->size * kernel->along * kernel->across;
    extent range = {0, (int64_t)(unit + p->tail * kernel->size)};
    uint64_t units = 1, outputs = 1;
    require_aligned(p->in, unit);
    for (uint32_t d = 0; d < p->kept_ndim; d++) {
        extend(&range, p->kept[d].value, p->kept_in[d]);
        outputs *= p->kept[d].value;
        if (p->kept[d].value > 1) {
            require_aligned((const char *)(uintptr_t)p->kept_in[d], unit);
        }
    }
    for (uint32_t d = 0; d < p->reduced_ndim; d++) {
        extend(&range, reduced_length(p, d), p->reduced_in[d]);
        units *= reduced_length(p, d);
        if (reduced_length(p, d) > 1) {
            require_aligned((const char *)(uintptr_t)p->reduced_in[d], unit);
        }
    }
    require(units == p->units && outputs == p->outputs, "lengths do not match their product");
    require(p->tail == 0 || (kernel->along > p->tail && p->reduced_ndim == 1), "bad tail");
    return use_operand(p->in, range, false);
}

static const char *use_mean(const um_reduce_params *p, const reducer *kernel) {
    extent range = {0, (int64_t)kernel->mean_size};
    require(p->mean != NULL, "no mean");
    extend(&range, kernel->across, p->mean_step);
    for (uint32_t d = 0; d < p->kept_ndim; d++) {
        extend(&range, p->kept[d].value, p->kept_mean[d]);
    }
    require_aligned(p->mean, kernel->mean_size);
    return use_operand(p->mean, range, false);
}

static int64_t *use_positions(const um_reduce_params *p, const reducer *kernel, bool partial) {
    require((p->positions != NULL) >= partial, "no place for places");
    if (p->positions == NULL) {
        return NULL;
    }
    require_aligned((const char *)p->positions, sizeof(int64_t));
    const uint64_t count = (uint64_t)p->outputs * kernel->across * (partial ? p->splits : p->units);
    return (int64_t *)(void *)use_operand((const char *)p->positions, (extent){0, (int64_t)(count * sizeof(int64_t))},
                                          partial);
}

static char *use_reduce_output(const um_reduce_params *p, const reducer *kernel, size_t size) {
    extent range = {0, (int64_t)size};
    if (p->splits > 1) {
        range.high = (int64_t)(p->outputs * (uint64_t)kernel->across * p->splits * size);
    } else {
        extend(&range, kernel->across, p->out_step);
        for (uint32_t d = 0; d < p->kept_ndim; d++) {
            extend(&range, p->kept[d].value, p->kept_out[d]);
        }
    }
    require_aligned(p->out, size);
    return use_operand(p->out, range, true);
}

static int64_t locate_reduced(const um_reduce_params *p, uint64_t unit) {
    int64_t offset = 0;
    for (uint32_t d = 0; d < p->reduced_ndim; d++) {
        uint64_t index = unit;
        if (d + 1 < p->reduced_ndim) {
            const uint64_t length = reduced_length(p, d);
            unit = p->wide ? unit / length : um_divide((uint32_t)unit, p->reduced[d]);
            index -= unit * length;
        }
        offset += (int64_t)index * p->reduced_in[d];
    }
    return offset;
}

/* One output unit, one split. */
static void run_reduce_split(const um_reduce_params *p, const reducer *kernel, const char *in, const char *mean,
                             int64_t *positions, char *out, uint32_t output, uint32_t split) {
    int64_t in_offset = 0, mean_offset = 0, out_offset = 0;
    uint32_t rest = output;
    for (uint32_t d = 0; d < p->kept_ndim; d++) {
        uint32_t index = rest;
        if (d + 1 < p->kept_ndim) {
            rest = um_divide(rest, p->kept[d]);
            index -= rest * p->kept[d].value;
        }
        in_offset += index * p->kept_in[d];
        mean_offset += index * p->kept_mean[d];
        out_offset += index * p->kept_out[d];
    }
    const uint64_t begin = split * p->chunk;
    const uint64_t end = begin + p->chunk < p->units ? begin + p->chunk : p->units;
    for (uint32_t a = 0; a < kernel->across; a++) {
        const char *own_mean = mean + mean_offset + a * p->mean_step;
        state total;
        memset(&total, 0, sizeof total);
        kernel->start(&total);
        for (uint64_t unit = begin; unit < end; unit++) {
            const char *from = in + in_offset + locate_reduced(p, unit) + a * kernel->size;
            for (uint32_t lane = 0; lane < kernel->along; lane++) {
                kernel->add(p, &total, from + lane * kernel->size, own_mean, unit * kernel->along + lane);
            }
        }
        if (split + 1 == p->splits) {
            const char *from = in + in_offset + (int64_t)p->units * p->reduced_in[0];
            for (uint32_t lane = 0; lane < p->tail; lane++) {
                kernel->add(p, &total, from + lane * kernel->size, own_mean, p->units * kernel->along + lane);
            }
        }
        const uint64_t element = (uint64_t)output * kernel->across + a;
        if (p->store == UM_STORE_PARTIAL) {
            const uint64_t slot = element * p->splits + split;
            kernel->store(p, out + slot * kernel->partial_size, &total);
            if (kernel->places) {
                positions[slot] = (int64_t)total.place;
            }
        } else if (kernel->places) {
            const int64_t place =
                positions != NULL ? positions[element * p->units + total.place] : (int64_t)total.place;
            memcpy(out + out_offset + a * p->out_step, &place, sizeof place);
        } else {
            kernel->store(p, out + out_offset + a * p->out_step, &total);
        }
    }
}

/* Bytes of what is stored. */
static size_t stored_size(const um_reduce_params *p, const reducer *kernel) {
    const bool complex = kernel->partial_size == 16;
    switch (p->store) {
    case UM_STORE_PARTIAL: return kernel->partial_size;
    case UM_STORE_SAME: return kernel->places ? sizeof(int64_t) : kernel->partial_size;
    case UM_STORE_F16: return 2;
    case UM_STORE_F32: return complex ? 8 : 4;
    case UM_STORE_F64: return complex ? 16 : 8;
    case UM_STORE_ANY:
    case UM_STORE_ALL: return 1;
    default: fail("kind of result");
    }
}

static void run_reduce(const unsigned grid[3], unsigned block, const um_reduce_params *p, const reducer *kernel) {
    require(block == UM_KERNEL_BLOCK, "block size");
    require(grid[0] > 0 && grid[1] == p->splits, "the grid misses splits");
    require(UM_KERNEL_BLOCK >> p->x_shift > 0 && p->chunk * p->splits >= p->units, "the splits miss units");
    require((p->store == UM_STORE_PARTIAL) == (p->splits > 1), "kind of result");
    const size_t size = stored_size(p, kernel);
    if (p->pack) {
        const size_t unit = kernel->across * size;
        require(kernel->across > 1 && p->splits == 1 && p->out_step == (int64_t)size, "packed outputs");
        require_aligned(p->out, unit);
        for (uint32_t d = 0; d < p->kept_ndim; d++) {
            require(p->kept[d].value == 1 || p->kept_out[d] % (int64_t)unit == 0, "misaligned outputs");
        }
    }
    const char *in = use_reduce_input(p, kernel);
    const char *mean = kernel->mean_size > 0 ? use_mean(p, kernel) : zeros;
    int64_t *positions = kernel->places ? use_positions(p, kernel, p->store == UM_STORE_PARTIAL) : NULL;
    char *out = use_reduce_output(p, kernel, size);
    for (uint32_t output = 0; output < p->outputs; output++) {
        for (uint32_t split = 0; split < p->splits; split++) {
            run_reduce_split(p, kernel, in, mean, positions, out, output, split);
        }
    }
}

/* --- values ---------------------------------------------------------------------------------------------------------------------- */

/* Bits of an element under the mask, which repeats every 8 bytes. */
static void change_bits(unsigned char *x, size_t size, uint64_t bits, bool keep) {
    for (size_t i = 0; i < size; i++) {
        const unsigned char mask = (unsigned char)(bits >> (i % 8 * 8));
        x[i] = keep ? x[i] & mask : x[i] ^ mask;
    }
}

/* Any element as numbers. */
#define PARTS_integer(x, re_, im_, integer_) (*(integer_) = (uint64_t)(int64_t)(x), *(re_) = *(im_) = 0)
#define PARTS_i8                             PARTS_integer
#define PARTS_u8                             PARTS_integer
#define PARTS_i16                            PARTS_integer
#define PARTS_u16                            PARTS_integer
#define PARTS_i32                            PARTS_integer
#define PARTS_u32                            PARTS_integer
#define PARTS_u64                            PARTS_integer
#define PARTS_f16(x, re_, im_, integer_)     (*(re_) = (long double)um_cast_f16_to_f32(x), *(im_) = 0, *(integer_) = 0)
#define PARTS_f32(x, re_, im_, integer_)     (*(re_) = (long double)(x), *(im_) = 0, *(integer_) = 0)
#define PARTS_f64                            PARTS_f32
#define PARTS_c64(x, re_, im_, integer_) (*(re_) = (long double)(x).re, *(im_) = (long double)(x).im, *(integer_) = 0)
#define PARTS_c128                       PARTS_c64

static void start_sum(state *total) { (void)total; }

static void start_prod(state *total) {
    total->re = 1;
    total->integer = 1;
}

static void store_parts(const um_reduce_params *p, char *out, const state *total, bool complex) {
    const long double parts[2] = {total->re, total->im};
    const size_t size = p->store == UM_STORE_F16 ? 2 : p->store == UM_STORE_F32 ? 4 : 8;
    for (int i = 0; i < (complex ? 2 : 1); i++) {
        const double wide = (double)parts[i];
        const float single = (float)parts[i];
        const um_f16 half = um_cast_f64_to_f16(wide);
        memcpy(out + (size_t)i * size,
               size == 2   ? (const void *)&half
               : size == 4 ? (const void *)&single
                           : &wide,
               size);
    }
}

static void store_integer(const um_reduce_params *p, char *out, const state *total) {
    if (p->store == UM_STORE_ANY || p->store == UM_STORE_ALL) {
        *out = p->store == UM_STORE_ANY ? total->integer != 0 : total->integer == p->total;
    } else {
        memcpy(out, &total->integer, sizeof total->integer);
    }
}

static void store_real(const um_reduce_params *p, char *out, const state *total) { store_parts(p, out, total, false); }
static void store_complex(const um_reduce_params *p, char *out, const state *total) {
    store_parts(p, out, total, true);
}

#define KIND_i8         integer
#define KIND_u8         integer
#define KIND_i16        integer
#define KIND_u16        integer
#define KIND_i32        integer
#define KIND_u32        integer
#define KIND_u64        integer
#define KIND_f16        real
#define KIND_f32        real
#define KIND_f64        real
#define KIND_c64        complex
#define KIND_c128       complex
#define PARTIAL_integer 8
#define PARTIAL_real    8
#define PARTIAL_complex 16
#define JOIN(a, b)      JOIN_(a, b)
#define JOIN_(a, b)     a##b

#define DEFINE_KERNEL_(name, token, suffix, ...)                                                                       \
    void fakecu_##name##_##token##_##suffix(const unsigned grid[3], unsigned block, void **params);                    \
    void fakecu_##name##_##token##_##suffix(const unsigned grid[3], unsigned block, void **params) {                   \
        run_reduce(grid, block, params[0], &(const reducer){sizeof(UM_TYPE(token)), __VA_ARGS__});                     \
    }
#define LANES(token) (UM_VECTOR_BYTES / sizeof(UM_TYPE(token)))
#define DEFINE_KERNELS(name, token, ...)                                                                               \
    DEFINE_KERNEL_(name, token, elem, 1, 1, __VA_ARGS__)                                                               \
    UM_IF_PACKS(token, DEFINE_KERNEL_(name, token, row, LANES(token), 1, __VA_ARGS__)                                  \
                           DEFINE_KERNEL_(name, token, col, 1, LANES(token), __VA_ARGS__))
#define READ(token, x, from)                                                                                           \
    UM_TYPE(token) x;                                                                                                  \
    memcpy(&x, from, sizeof x);
#define PARTS(token, x, re, im, integer)                                                                               \
    long double re, im;                                                                                                \
    uint64_t integer;                                                                                                  \
    PARTS_##token(x, &re, &im, &integer)

#define DEFINE_sum(token)                                                                                              \
    static void add_sum_##token(const um_reduce_params *p, state *total, const char *element, const char *mean,        \
                                uint64_t place) {                                                                      \
        (void)p, (void)mean, (void)place;                                                                              \
        READ(token, x, element)                                                                                        \
        PARTS(token, x, re, im, integer);                                                                              \
        total->re += re;                                                                                               \
        total->im += im;                                                                                               \
        total->integer += integer;                                                                                     \
    }                                                                                                                  \
    DEFINE_KERNELS(sum, token, JOIN(PARTIAL_, KIND_##token), 0, false, start_sum, add_sum_##token,                     \
                   JOIN(store_, KIND_##token))

/* In the type itself, where infinities and zeros of overflowing products come about. */
#define DEFINE_prod(token)                                                                                             \
    static void add_prod_##token(const um_reduce_params *p, state *total, const char *element, const char *mean,       \
                                 uint64_t place) {                                                                     \
        (void)p, (void)mean, (void)place;                                                                              \
        READ(token, x, element)                                                                                        \
        PARTS(token, x, re, im, integer);                                                                              \
        const long double old = total->re;                                                                             \
        total->re = ROUND_##token(IS_COMPLEX_##token ? old * re - total->im * im : old * re);                          \
        total->im = ROUND_##token(IS_COMPLEX_##token ? old * im + total->im * re : 0);                                 \
        total->integer *= integer;                                                                                     \
    }                                                                                                                  \
    DEFINE_KERNELS(prod, token, JOIN(PARTIAL_, KIND_##token), 0, false, start_prod, add_prod_##token,                  \
                   JOIN(store_, KIND_##token))
#define IS_COMPLEX_u64  false
#define IS_COMPLEX_f32  false
#define IS_COMPLEX_f64  false
#define IS_COMPLEX_c64  true
#define IS_COMPLEX_c128 true
#define ROUND_u64(x)    (x)
#define ROUND_f32(x)    ((long double)(float)(x))
#define ROUND_f64(x)    ((long double)(double)(x))
#define ROUND_c64(x)    ROUND_f32(x)
#define ROUND_c128(x)   ROUND_f64(x)

#define MEAN_f16                           f32
#define MEAN_f32                           f32
#define MEAN_f64                           f64
#define MEAN_c64                           c64
#define MEAN_c128                          c128
#define DEFINE_squares(token)              DEFINE_squares_(token, MEAN_##token)
#define DEFINE_squares_(token, mean_token) DEFINE_squares__(token, mean_token)
#define DEFINE_squares__(token, mean_token)                                                                            \
    static void add_squares_##token(const um_reduce_params *p, state *total, const char *element, const char *mean,    \
                                    uint64_t place) {                                                                  \
        (void)p, (void)place;                                                                                          \
        READ(token, x, element)                                                                                        \
        READ(mean_token, m, mean)                                                                                      \
        PARTS(token, x, re, im, unused);                                                                               \
        PARTS(mean_token, m, mean_re, mean_im, unused_too);                                                            \
        (void)unused, (void)unused_too;                                                                                \
        total->re += (re - mean_re) * (re - mean_re) + (im - mean_im) * (im - mean_im);                                \
    }                                                                                                                  \
    DEFINE_KERNELS(squares, token, 8, sizeof(UM_TYPE(mean_token)), false, start_sum, add_squares_##token, store_real)

#define DEFINE_count(token)                                                                                            \
    static void add_count_##token(const um_reduce_params *p, state *total, const char *element, const char *mean,      \
                                  uint64_t place) {                                                                    \
        (void)mean, (void)place;                                                                                       \
        unsigned char x[sizeof(UM_TYPE(token))];                                                                       \
        memcpy(x, element, sizeof x);                                                                                  \
        change_bits(x, sizeof x, p->bits, true);                                                                       \
        total->integer += memcmp(x, zeros, sizeof x) != 0;                                                             \
    }                                                                                                                  \
    DEFINE_KERNELS(count, token, 8, 0, false, start_sum, add_count_##token, store_integer)

/* Whether a comes before b: NaN before all, complex numbers by real part, then by imaginary part. */
static bool comes_before(const long double a[2], const long double b[2]) {
    const bool a_is_nan = isnan(a[0]) || isnan(a[1]), b_is_nan = isnan(b[0]) || isnan(b[1]);
    if (a_is_nan || b_is_nan) {
        return a_is_nan && !b_is_nan;
    }
    return a[0] < b[0] || (a[0] == b[0] && a[1] < b[1]);
}

#define DEFINE_min_(name, token, places)                                                                               \
    static void add_##name##_##token(const um_reduce_params *p, state *total, const char *element, const char *mean,   \
                                     uint64_t place) {                                                                 \
        (void)mean;                                                                                                    \
        unsigned char bytes[sizeof(UM_TYPE(token))];                                                                   \
        memcpy(bytes, element, sizeof bytes);                                                                          \
        change_bits(bytes, sizeof bytes, p->bits, false);                                                              \
        READ(token, x, bytes)                                                                                          \
        READ(token, best, total->best)                                                                                 \
        PARTS(token, x, re, im, integer_);                                                                             \
        PARTS(token, best, best_re, best_im, best_integer);                                                            \
        if (!total->any || integer_ < best_integer ||                                                                  \
            comes_before((const long double[2]){re, im}, (const long double[2]){best_re, best_im})) {                  \
            total->any = true;                                                                                         \
            memcpy(total->best, bytes, sizeof bytes);                                                                  \
            total->place = place;                                                                                      \
        }                                                                                                              \
    }                                                                                                                  \
    static void store_##name##_##token(const um_reduce_params *p, char *out, const state *total) {                     \
        unsigned char bytes[sizeof(UM_TYPE(token))];                                                                   \
        memcpy(bytes, total->best, sizeof bytes);                                                                      \
        change_bits(bytes, sizeof bytes, p->bits, false);                                                              \
        memcpy(out, bytes, sizeof bytes);                                                                              \
    }                                                                                                                  \
    DEFINE_KERNELS(name, token, sizeof(UM_TYPE(token)), 0, places, start_sum, add_##name##_##token,                    \
                   store_##name##_##token)
#define DEFINE_min(token)    DEFINE_min_(min, token, false)
#define DEFINE_argmin(token) DEFINE_min_(argmin, token, true)

#define DEFINE_REDUCE(name, token) DEFINE_##name(token)
UM_FOR_EACH_REDUCE(DEFINE_REDUCE)
