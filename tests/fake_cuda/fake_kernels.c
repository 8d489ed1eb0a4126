/* Host implementations of the kernels, under the names and with the parameters of the CUDA ones.
 *
 * They follow the parameters (units, divisors, strides, splits) literally, so that a wrong plan gives a wrong result, and abort where a
 * GPU would fault or leave work out: misaligned accesses, lengths that do not match, a grid without some of the splits.
 */
#include <math.h>
#include <string.h>

#include "fake_evaluate.h"
#include "fake_kernels.h"
#include "kernels/um_kernel_abi.h"
#include "kernels/um_kernel_functions.h"
#include "kernels/um_kernel_forms.h"
#include "kernels/um_random_draws.h"

/* --- elementwise -------------------------------------------------------------------------------------------------------------- */

/* Three inputs always; those an operation lacks are zero. */
typedef void (*apply_function)(void *out, const void *a, const void *b, const void *c);

typedef struct elementwise {
    int inputs;
    size_t first_size, in_size, out_size; /* bytes of an element: the first input, the others, the output */
    uint32_t lanes;                       /* elements of a unit */
    apply_function apply;
    bool scalars; /* the kernel handles scalar operands */
} elementwise;

static const unsigned char zeros[16];

static uint32_t stride_magnitude(uint32_t stride) { return stride >= 0x80000000 ? 0 - stride : stride; }

static char *use_elementwise(const um_elementwise_params *p, const elementwise *kernel, int slot) {
    const size_t size = slot == UM_KERNEL_OUT ? kernel->out_size : slot == 0 ? kernel->first_size : kernel->in_size;
    const bool scalar = kernel->lanes > 1 && (p->scalars >> slot & 1);
    const size_t unit = scalar ? size : size * kernel->lanes;
    const size_t alignment = unit < UM_VECTOR_BYTES ? unit : UM_VECTOR_BYTES;
    /* Strides are modulo 2^32: what lies below the first element is `start`, the rest above. */
    uint64_t reach = 0;
    require(!scalar || kernel->scalars, "scalar operand");
    require_aligned(p->low[slot] + p->start[slot], alignment);
    for (uint32_t d = 0; d < p->ndim; d++) {
        const uint32_t stride = p->strides[d][slot];
        const uint64_t length = p->shape[d].value;
        reach += length == 1 ? 0 : (length - 1) * stride_magnitude(stride);
        if (length > 1) {
            require_aligned((const char *)(uintptr_t)stride, alignment);
        }
    }
    require(reach <= UM_KERNEL_MAX_REACH, "offsets exceed 32 bits");
    return use_operand(p->low[slot], (extent){0, (int64_t)(reach + unit + (scalar ? 0 : p->tail * size))},
                       slot == UM_KERNEL_OUT);
}

static void locate_unit(const um_elementwise_params *p, uint32_t unit, uint32_t offsets[UM_KERNEL_OPERANDS]) {
    memcpy(offsets, p->start, sizeof p->start);
    for (uint32_t d = 0; d < p->ndim; d++) {
        uint32_t index = unit;
        if (d + 1 < p->ndim) {
            unit = um_divide(unit, p->shape[d]);
            index -= unit * p->shape[d].value;
        }
        for (int i = 0; i < UM_KERNEL_OPERANDS; i++) {
            offsets[i] += index * p->strides[d][i];
        }
    }
}

static void run_elementwise(const um_elementwise_params *p, const elementwise *kernel) {
    char *data[UM_KERNEL_OPERANDS] = {NULL};
    uint64_t units = 1;
    require(p->ndim >= 1 && p->ndim <= UM_KERNEL_NDIM && p->units <= UM_KERNEL_MAX_UNITS, "bad shape");
    for (uint32_t d = 0; d < p->ndim; d++) {
        units *= p->shape[d].value;
    }
    require(units == p->units && (p->tail == 0 || (p->ndim == 1 && p->tail < kernel->lanes)), "bad number of units");
    for (int i = 0; i < kernel->inputs; i++) {
        data[i] = p->immediates >> i & 1 ? NULL : use_elementwise(p, kernel, i);
    }
    data[UM_KERNEL_OUT] = use_elementwise(p, kernel, UM_KERNEL_OUT);

    for (uint32_t unit = 0; unit < p->units + (p->tail > 0 ? 1 : 0); unit++) {
        uint32_t offsets[UM_KERNEL_OPERANDS];
        locate_unit(p, unit, offsets);
        const uint32_t lanes = unit < p->units ? kernel->lanes : p->tail;
        for (uint32_t lane = 0; lane < lanes; lane++) {
            const void *in[3] = {zeros, zeros, zeros};
            for (int i = 0; i < kernel->inputs; i++) {
                const uint32_t step = kernel->lanes > 1 && (p->scalars >> i & 1) ? 0 : lane;
                in[i] = p->immediates >> i & 1
                            ? (const char *)p->values[i]
                            : data[i] + offsets[i] + step * (i == 0 ? kernel->first_size : kernel->in_size);
            }
            kernel->apply(data[UM_KERNEL_OUT] + offsets[UM_KERNEL_OUT] + lane * kernel->out_size, in[0], in[1], in[2]);
        }
    }
}

/* Defines the two kernels of an operation, run_<kernel>_elem and _vec (which not every one has), around apply_<kernel>. */
#define DEFINE_ELEMENTWISE(kernel_, inputs_, first_bytes, in_bytes, out_bytes, lanes_, scalars_)                       \
    static void run_##kernel_##_elem(const unsigned grid[3], unsigned block, void **params) {                          \
        (void)grid;                                                                                                    \
        require(block == UM_KERNEL_BLOCK, "block size");                                                               \
        run_elementwise(                                                                                               \
            params[0], &(const elementwise){inputs_, first_bytes, in_bytes, out_bytes, 1, apply_##kernel_, scalars_}); \
    }                                                                                                                  \
    __attribute__((unused)) static void run_##kernel_##_vec(const unsigned grid[3], unsigned block, void **params) {   \
        (void)grid;                                                                                                    \
        require(block == UM_KERNEL_BLOCK, "block size");                                                               \
        run_elementwise(params[0], &(const elementwise){inputs_, first_bytes, in_bytes, out_bytes, lanes_,             \
                                                        apply_##kernel_, scalars_});                                   \
    }

#define UM_DEFINE_LOOP(weight, name, token, inputs, result, expression)                                                \
    UM_DEFINE_LOOP_(weight, name, token, inputs, result, expression, UM_COMPUTE_##token)
#define UM_DEFINE_LOOP_(weight, name, token, inputs, result, expression, ...)                                          \
    UM_DEFINE_LOOP__(weight, name, token, inputs, result, expression, __VA_ARGS__)
#define UM_DEFINE_LOOP__(weight, name, token, inputs, result_, expression, T_, U_)                                     \
    static void apply_##name##_##token(void *out, const void *in_a, const void *in_b, const void *in_c) {              \
        typedef T_ T;                                                                                                  \
        typedef U_ U;                                                                                                  \
        UM_TYPE(token) x, y, z;                                                                                        \
        memcpy(&x, in_a, sizeof x);                                                                                    \
        memcpy(&y, in_b, sizeof y);                                                                                    \
        memcpy(&z, in_c, sizeof z);                                                                                    \
        const T a = UM_LOADED_##token(x), b = UM_LOADED_##token(y), c = UM_LOADED_##token(z);                          \
        (void)sizeof(U), (void)a, (void)b, (void)c;                                                                    \
        const UM_TYPE(result_) result = UM_STORED_##result_(expression);                                               \
        memcpy(out, &result, sizeof result);                                                                           \
    }                                                                                                                  \
    DEFINE_ELEMENTWISE(name##_##token, inputs, sizeof(UM_TYPE(token)), sizeof(UM_TYPE(token)),                         \
                       sizeof(UM_TYPE(result_)), UM_VECTOR_BYTES / sizeof(UM_TYPE(token)), true)
#define UM_OP UM_FOR_EACH_LOOP
#include "kernels/um_kernel_ops.h"
#undef UM_OP
#undef UM_DEFINE_LOOP

#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define DEFINE_CAST(from, to)                                                                                          \
    static void apply_cast_##from##_##to(void *out, const void *in, const void *b, const void *c) {                    \
        UM_TYPE(from) x;                                                                                               \
        (void)b, (void)c;                                                                                              \
        memcpy(&x, in, sizeof x);                                                                                      \
        const UM_TYPE(to) result = um_cast_##from##_to_##to(x);                                                        \
        memcpy(out, &result, sizeof result);                                                                           \
    }                                                                                                                  \
    DEFINE_ELEMENTWISE(cast_##from##_##to, 1, sizeof(UM_TYPE(from)), 1, sizeof(UM_TYPE(to)),                           \
                       UM_VECTOR_BYTES / LARGER(sizeof(UM_TYPE(from)), sizeof(UM_TYPE(to))), true)
UM_FOR_EACH_CAST(DEFINE_CAST)

#define DEFINE_COPY(size)                                                                                              \
    static void apply_copy_##size(void *out, const void *in, const void *b, const void *c) {                           \
        (void)b, (void)c;                                                                                              \
        memmove(out, in, size);                                                                                        \
    }                                                                                                                  \
    DEFINE_ELEMENTWISE(copy_##size, 1, size, size, size, UM_VECTOR_BYTES / size, false)
UM_FOR_EACH_COPY(DEFINE_COPY)

#define DEFINE_WHERE(size)                                                                                             \
    static void apply_where_##size(void *out, const void *condition, const void *b, const void *c) {                   \
        memmove(out, *(const unsigned char *)condition != 0 ? b : c, size);                                            \
    }                                                                                                                  \
    DEFINE_ELEMENTWISE(where_##size, 3, 1, size, size, UM_VECTOR_BYTES / size, true)
UM_FOR_EACH_COPY(DEFINE_WHERE)

/* --- reductions: fake_reduce.c ------------------------------------------------------------------------------------------------ */

#define DECLARE_REDUCE(name, token)                                                                                    \
    void fakecu_##name##_##token##_elem(const unsigned grid[3], unsigned block, void **params);                        \
    void fakecu_##name##_##token##_row(const unsigned grid[3], unsigned block, void **params);                         \
    void fakecu_##name##_##token##_col(const unsigned grid[3], unsigned block, void **params);
UM_FOR_EACH_REDUCE(DECLARE_REDUCE)

/* --- random numbers -------------------------------------------------------------------------------------------------------------- */

static char *use_draw_output(const unsigned grid[3], unsigned block, const um_draw_params *p, size_t size,
                             uint64_t lanes) {
    const size_t unit = size * lanes;
    require(block == UM_KERNEL_BLOCK, "block size");
    require(p->count > 0 && grid[0] * lanes * UM_KERNEL_BLOCK * UM_DRAW_UNROLL >= p->count, "the grid misses elements");
    require_aligned(p->out, !p->vectors ? size : unit < UM_VECTOR_BYTES ? unit : UM_VECTOR_BYTES);
    return use_operand(p->out, (extent){0, (int64_t)(p->count * size)}, true);
}

#define DEFINE_DRAW(name, type, lanes)                                                                                 \
    static void run_draw_##name##_kernel(const unsigned grid[3], unsigned block, void **params) {                      \
        const um_draw_params *p = params[0];                                                                           \
        char *out = use_draw_output(grid, block, p, sizeof(type), lanes);                                              \
        for (uint64_t first = 0; first < p->count; first += (lanes)) {                                                 \
            type x[lanes];                                                                                             \
            um_draw_##name(p, first / (lanes), x);                                                                     \
            memcpy(out + first * sizeof(type), x,                                                                      \
                   sizeof(type) * (p->count - first < (lanes) ? p->count - first : (lanes)));                          \
        }                                                                                                              \
    }
UM_FOR_EACH_DRAW(DEFINE_DRAW)

/* --- the table ---------------------------------------------------------------------------------------------------------------- */

static const size_t elementwise_sizes[] = {sizeof(um_elementwise_params)};
static const size_t reduce_sizes[] = {sizeof(um_reduce_params)};
static const size_t draw_sizes[] = {sizeof(um_draw_params)};
static const size_t evaluate_sizes[] = {sizeof(um_evaluate_params)};

#define ENTRY(name, sizes) {"um_" #name, run_##name, 1, sizes},
#define PAIR(name)         ENTRY(name##_elem, elementwise_sizes) ENTRY(name##_vec, elementwise_sizes)

const fakecu_kernel_entry fakecu_kernels[] = {
#define UM_DEFINE_LOOP(weight, name, token, inputs, result, expression)                                                \
    ENTRY(name##_##token##_elem, elementwise_sizes)                                                                    \
    UM_IF_VEC(weight, token, ENTRY(name##_##token##_vec, elementwise_sizes))
#define UM_OP UM_FOR_EACH_LOOP
#include "kernels/um_kernel_ops.h"
#undef UM_OP

#define CAST_PAIR(from, to) PAIR(cast_##from##_##to)
    UM_FOR_EACH_CAST(CAST_PAIR)

#define COPY_PAIR(size) PAIR(copy_##size)
        UM_FOR_EACH_COPY(COPY_PAIR)

#define WHERE_PAIR(size) PAIR(where_##size)
            UM_FOR_EACH_COPY(WHERE_PAIR)

#define REDUCE_ENTRY(name, token, suffix)                                                                              \
    {"um_" #name "_" #token "_" #suffix, fakecu_##name##_##token##_##suffix, 1, reduce_sizes},
#define REDUCE_ENTRIES(name, token)                                                                                    \
    REDUCE_ENTRY(name, token, elem)                                                                                    \
    UM_IF_PACKS(token, REDUCE_ENTRY(name, token, row) REDUCE_ENTRY(name, token, col))
                UM_FOR_EACH_REDUCE(REDUCE_ENTRIES)

#define DRAW_ENTRY(name, type, lanes) ENTRY(draw_##name##_kernel, draw_sizes)
                    UM_FOR_EACH_DRAW(DRAW_ENTRY)

#define EVALUATE_ENTRY(name, cell, elements) {"um_evaluate_" #name, fake_evaluate_##name, 1, evaluate_sizes},
                        UM_FOR_EACH_EVALUATE(EVALUATE_ENTRY)};
const size_t fakecu_kernel_count = sizeof fakecu_kernels / sizeof fakecu_kernels[0];
