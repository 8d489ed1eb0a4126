/* Random numbers: the launch, and the same loop for the host. */
#include "kernels/um_kernel_random.h"

#include <assert.h>

#include "kernels/um_kernel_call.h"

typedef struct draw_entry {
    size_t itemsize;
    unsigned lanes; /* elements of a unit */
} draw_entry;

static const draw_entry draw_entries[UM_DRAW_COUNT] = {
#define ENTRY(name, type, lanes) {sizeof(type), lanes},
    UM_FOR_EACH_DRAW(ENTRY)
#undef ENTRY
};

size_t um_draw_itemsize(um_draw draw) { return draw_entries[draw].itemsize; }

void um_draw_set_range(um_draw_params *params, um_draw draw, uint64_t range) {
    params->range = range;
    if (draw != UM_DRAW_integers_wide) {
        params->threshold = ((uint64_t)1 << 32) % range;
    } else {
        params->threshold = range == 0 ? 0 : (0 - range) % range;
    }
}

/* --- the GPU ---------------------------------------------------------------------------------------------------------------- */

um_status um_kernel_random(um_context *ctx, um_stream *stream, um_draw draw, um_draw_params *params, um_block *block,
                           bool deferred, um_wait *wait, um_error *err) {
    *wait = UM_WAIT_NONE;
    if (params->count == 0) {
        return UM_OK;
    }
    um_call call;
    um_status status = um_call_init(&call, ctx, stream, err);
    if (status != UM_OK) {
        return status;
    }
    const size_t itemsize = draw_entries[draw].itemsize, unit = itemsize * draw_entries[draw].lanes;
    const int64_t shape[1] = {(int64_t)params->count}, strides[1] = {(int64_t)itemsize};
    const um_operand out = {.block = block, .data = params->out, .strides = strides};
    um_call_add_operand(&call, &out, 1, shape, itemsize, true);
    params->vectors = (uintptr_t)params->out % (unit < UM_VECTOR_BYTES ? unit : UM_VECTOR_BYTES) == 0;
    /* One launch does for any memory there is: 2^31 blocks, of 4096 bytes at least. */
    const uint64_t tile = (uint64_t)draw_entries[draw].lanes * UM_KERNEL_BLOCK * UM_DRAW_UNROLL;
    const uint64_t grid = (params->count - 1) / tile + 1;
    assert(grid <= INT32_MAX);
    status = um_call_begin(&call, err);
    if (status != UM_OK) {
        return status;
    }
    status = um_call_launch(&call, UM_SLOT_RANDOM + (int)draw, params, (unsigned)grid, 1, err);
    return um_call_end(&call, status, deferred, wait, err);
}

/* --- the host --------------------------------------------------------------------------------------------------------------- */

/* Compilers make vectors of these loops, given that memory and parameters cannot be the same. */
#define DEFINE_LOOP(name, type, lanes)                                                                                 \
    UM_DRAW_CODE void loop_##name(const um_draw_params *params) {                                                      \
        const um_draw_params p = *params;                                                                              \
        type x[lanes];                                                                                                 \
        const uint64_t whole = p.count / (lanes);                                                                      \
        for (uint64_t unit = 0; unit < whole; unit++) {                                                                \
            um_draw_##name(&p, unit, x);                                                                               \
            memcpy(p.out + unit * sizeof x, x, sizeof x);                                                              \
        }                                                                                                              \
        um_draw_##name(&p, whole, x);                                                                                  \
        memcpy(p.out + whole * sizeof x, x, p.count % (lanes) * sizeof(type));                                         \
    }
UM_FOR_EACH_DRAW(DEFINE_LOOP)

#define DEFINE_FILL(name, type, lanes)                                                                                 \
    static void fill_##name(const um_draw_params *p) { loop_##name(p); }
UM_FOR_EACH_DRAW(DEFINE_FILL)

#define FILL_ENTRY(name, type, lanes) fill_##name,
static void (*const fills[UM_DRAW_COUNT])(const um_draw_params *) = {UM_FOR_EACH_DRAW(FILL_ENTRY)};

#ifdef __x86_64__
/* The same for processors of the last ten years: without these instructions fma() is a function, and a slow one. */
#define DEFINE_FILL_AVX2(name, type, lanes)                                                                            \
    __attribute__((target("avx2,fma"))) static void fill_avx2_##name(const um_draw_params *p) { loop_##name(p); }
UM_FOR_EACH_DRAW(DEFINE_FILL_AVX2)

#define FILL_AVX2_ENTRY(name, type, lanes) fill_avx2_##name,
static void (*const fills_avx2[UM_DRAW_COUNT])(const um_draw_params *) = {UM_FOR_EACH_DRAW(FILL_AVX2_ENTRY)};
#endif

void um_random_fill_plainly(um_draw draw, const um_draw_params *params) { fills[draw](params); }

void um_random_fill(um_draw draw, const um_draw_params *params) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        fills_avx2[draw](params);
        return;
    }
#endif
    um_random_fill_plainly(draw, params);
}
