/* Reductions: which kernels make them, which threads combine what, and how many partial results an output is made of. */
#include <string.h>

#include "kernels/um_kernel_call.h"

/* Blocks that keep a multiprocessor busy; an output's reduction is split until there are about that many. */
#define BLOCKS_PER_MULTIPROCESSOR     8
/* Most blocks along the outputs; more outputs are a loop. */
#define MAX_BLOCKS_PER_MULTIPROCESSOR 32
/* A split has at least this many rounds of a thread's loop, or it would not be worth its second pass. */
#define ROUNDS_PER_SPLIT              4
#define MAX_SPLITS                    65535 /* grid_y */

/* --- which kernel ---------------------------------------------------------------------------------------------------------- */

/* Reads elements as `dtype`, with partial results of partial_size bytes that `last` combines. */
typedef struct recipe {
    int reducer;
    um_dtype dtype;
    uint64_t bits;
    um_reduce_store store; /* of the result */
    size_t partial_size;
    int last_reducer;
    um_dtype last_dtype;
} recipe;

static bool is_integer(um_dtype dtype) { return dtype >= UM_INT8 && dtype <= UM_UINT64; }
static bool is_signed(um_dtype dtype) { return is_integer(dtype) && (dtype - UM_INT8) % 2 == 0; }
static bool is_float(um_dtype dtype) { return dtype >= UM_FLOAT16 && dtype <= UM_FLOAT64; }
static bool is_complex(um_dtype dtype) { return dtype >= UM_COMPLEX64; }

static um_dtype real_part(um_dtype dtype) {
    return dtype == UM_COMPLEX64 ? UM_FLOAT32 : dtype == UM_COMPLEX128 ? UM_FLOAT64 : dtype;
}

static um_dtype as_unsigned(um_dtype dtype) {
    return dtype == UM_BOOL ? UM_UINT8 : is_signed(dtype) ? dtype + 1 : dtype;
}

/* The sign bit of each number in 8 bytes. */
static uint64_t sign_bits(um_dtype dtype) {
    switch ((int)um_dtype_size(real_part(dtype))) {
    case 1: return 0x8080808080808080;
    case 2: return 0x8000800080008000;
    case 4: return 0x8000000080000000;
    default: return 0x8000000000000000;
    }
}

static bool has_total(um_reduction reduction, um_dtype dtype) {
    switch ((int)reduction) {
    case UM_REDUCE_prod: return dtype == UM_INT64 || dtype == UM_UINT64 || dtype > UM_FLOAT16;
    case UM_REDUCE_squares: return !is_integer(dtype) && dtype != UM_BOOL;
    default: return true;
    }
}

bool um_reduce_result(um_reduction reduction, um_dtype dtype, um_dtype *result) {
    if (!has_total(reduction, dtype)) {
        return false;
    }
    switch ((int)reduction) {
    case UM_REDUCE_any:
    case UM_REDUCE_all: *result = UM_BOOL; break;
    case UM_REDUCE_argmin:
    case UM_REDUCE_argmax:
    case UM_REDUCE_count: *result = UM_INT64; break;
    case UM_REDUCE_squares: *result = real_part(dtype); break;
    case UM_REDUCE_sum:
    case UM_REDUCE_prod:
        *result = is_float(dtype) || is_complex(dtype)   ? dtype
                  : is_signed(dtype) || dtype == UM_BOOL ? UM_INT64
                                                         : UM_UINT64;
        break;
    default: *result = dtype; break;
    }
    return true;
}

/* The bits of elements that are not 0. */
static uint64_t truth_bits(um_dtype dtype) {
    return is_float(dtype) || is_complex(dtype) ? ~sign_bits(dtype) : UINT64_MAX;
}

static recipe count_recipe(um_dtype dtype, um_reduce_store store) {
    static const um_dtype by_size[] = {
        [1] = UM_UINT8, [2] = UM_UINT16, [4] = UM_UINT32, [8] = UM_UINT64, [16] = UM_COMPLEX128};
    return (recipe){.reducer = UM_REDUCER_count,
                    .dtype = by_size[um_dtype_size(dtype)],
                    .bits = truth_bits(dtype),
                    .store = store,
                    .partial_size = 8,
                    .last_reducer = UM_REDUCER_sum,
                    .last_dtype = UM_UINT64};
}

/* Signed integers become unsigned ones by their sign bit, and the order turns around when all bits do (of floats the sign). */
static recipe min_recipe(um_dtype dtype, bool place, bool max) {
    const bool integer = is_integer(dtype) || dtype == UM_BOOL;
    const int reducer = place ? UM_REDUCER_argmin : UM_REDUCER_min;
    recipe result = {.reducer = reducer, .last_reducer = reducer, .store = UM_STORE_SAME};
    result.dtype = result.last_dtype = as_unsigned(dtype);
    result.bits = (is_signed(dtype) ? sign_bits(dtype) : 0) ^ (!max ? 0 : integer ? UINT64_MAX : sign_bits(dtype));
    result.partial_size = um_dtype_size(dtype);
    return result;
}

/* Integers as 64-bit numbers; floats by what they are stored as. */
static recipe total_recipe(int reducer, um_dtype dtype, um_dtype result) {
    static const um_reduce_store stores[] = {UM_STORE_F16, UM_STORE_F32, UM_STORE_F64};
    if (is_integer(dtype)) {
        return (recipe){.reducer = reducer,
                        .dtype = um_dtype_size(dtype) == 8 ? UM_UINT64 : dtype,
                        .store = UM_STORE_SAME,
                        .partial_size = 8,
                        .last_reducer = reducer,
                        .last_dtype = UM_UINT64};
    }
    const bool parts = is_complex(result);
    return (recipe){.reducer = reducer,
                    .dtype = dtype,
                    .store = stores[real_part(result) - UM_FLOAT16],
                    .partial_size = parts ? 16 : 8,
                    .last_reducer = reducer == UM_REDUCER_prod ? UM_REDUCER_prod : UM_REDUCER_sum,
                    .last_dtype = parts ? UM_COMPLEX128 : UM_FLOAT64};
}

static recipe choose_recipe(um_reduction reduction, um_dtype dtype, um_dtype result) {
    switch ((int)reduction) {
    case UM_REDUCE_prod: return total_recipe(UM_REDUCER_prod, dtype, result);
    case UM_REDUCE_squares: return total_recipe(UM_REDUCER_squares, dtype, result);
    case UM_REDUCE_count: return count_recipe(dtype, UM_STORE_SAME);
    case UM_REDUCE_any: return count_recipe(dtype, UM_STORE_ANY);
    case UM_REDUCE_all: return count_recipe(dtype, UM_STORE_ALL);
    case UM_REDUCE_argmin: return min_recipe(dtype, true, false);
    case UM_REDUCE_argmax: return min_recipe(dtype, true, true);
    case UM_REDUCE_min: return dtype == UM_BOOL ? count_recipe(dtype, UM_STORE_ALL) : min_recipe(dtype, false, false);
    case UM_REDUCE_max: return dtype == UM_BOOL ? count_recipe(dtype, UM_STORE_ANY) : min_recipe(dtype, false, true);
    default: return dtype == UM_BOOL ? count_recipe(dtype, UM_STORE_SAME) : total_recipe(UM_REDUCER_sum, dtype, result);
    }
}

/* --- a call's state ---------------------------------------------------------------------------------------------------------- */

enum { KERNEL_ELEM, KERNEL_ROW, KERNEL_COL };

#define MEAN 1 /* operand slot */

typedef struct reduce_work {
    um_call *call;
    recipe recipe;
    size_t itemsize;
    size_t result_size;
    bool in_order; /* elements are numbered in C order */
    bool has_mean;
    um_plan reduced;    /* of the input; its data is where the kept axes start */
    um_block *partials; /* owned; NULL until needed */
    size_t positions;   /* offset of the places in `partials` */
    bool may_split;     /* kept axes make one part, so that a buffer of partial results has one layout */
} reduce_work;

/* How one launch is laid out. Units: see um_reduce_params. */
typedef struct reduce_layout {
    int kernel;
    int64_t along, across; /* elements of a reduction unit and outputs of an output unit */
    uint64_t outputs;      /* units */
    uint64_t units;
    bool x_fast;
    uint32_t x_shift;
    uint32_t splits;
    uint64_t chunk;
} reduce_layout;

static uint64_t at_most(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint64_t at_least(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t power_below(uint64_t x) { /* x > 0 */
    uint64_t power = 1;
    while (power <= x / 2) {
        power *= 2;
    }
    return power;
}

static uint64_t power_above(uint64_t x) {
    const uint64_t power = power_below(x);
    return power < x ? power * 2 : power;
}

static uint64_t magnitude(int64_t stride) { return stride < 0 ? (uint64_t)0 - (uint64_t)stride : (uint64_t)stride; }

/* --- layout -------------------------------------------------------------------------------------------------------------- */

/* Whether `inner` is contiguous and can be read 16 bytes at a time while all other axes and the base keep that alignment. */
static bool can_use_vectors(const um_plan *inner, const um_plan *other, const char *base, size_t itemsize,
                            bool tail_allowed) {
    const int64_t lanes = UM_VECTOR_BYTES / (int64_t)itemsize;
    if (lanes == 1 || inner->ndim == 0 || inner->strides[0][0] != (int64_t)itemsize || inner->shape[0] < lanes ||
        (inner->shape[0] % lanes != 0 && !(tail_allowed && inner->ndim == 1))) {
        return false;
    }
    uint64_t bits = (uint64_t)(uintptr_t)base;
    for (int d = 1; d < inner->ndim; d++) {
        bits |= (uint64_t)inner->strides[d][0];
    }
    for (int d = 0; d < other->ndim; d++) {
        bits |= (uint64_t)other->strides[d][0];
    }
    return um_plan_alignment(bits) == UM_VECTOR_BYTES;
}

static uint64_t units_in_flight(const reduce_layout *layout) {
    return layout->kernel == KERNEL_ELEM ? UM_REDUCE_UNROLL_ELEM : UM_REDUCE_UNROLL_VEC;
}

/* Threads of an output, a power of two; the rest of the block works on other outputs. */
static uint32_t choose_y_width(const reduce_layout *layout, size_t itemsize, int multiprocessors) {
    const uint64_t block = UM_KERNEL_BLOCK, chip = (uint64_t)multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    /* Every thread should have its loads in flight, and more than a warp for an output needs barriers; but few outputs must still
     * fill the chip. */
    uint64_t width = at_most(power_below(at_least(layout->units / units_in_flight(layout), 1)), 32);
    if (layout->outputs < chip * block / 32) {
        width = layout->outputs <= chip ? power_above(layout->units)
                                        : power_below(at_least(layout->units / units_in_flight(layout), 1));
    }
    if (layout->x_fast) {
        /* Neighbours read neighbouring outputs: a warp's worth of them where there are as many. */
        width = at_most(width, block / at_most(power_above(layout->outputs), 32));
    } else if (layout->units > units_in_flight(layout)) {
        /* Neighbours read one output's units: at least a sector of 32 bytes. */
        const uint64_t sector = 32 / ((uint64_t)layout->along * itemsize);
        width = at_least(width, sector);
    }
    return (uint32_t)at_most(width, block);
}

static void choose_splits(reduce_layout *layout, uint32_t y_width, bool may_split, int multiprocessors) {
    const uint64_t x_width = UM_KERNEL_BLOCK / y_width;
    const uint64_t blocks = (layout->outputs - 1) / x_width + 1;
    const uint64_t wanted = (uint64_t)multiprocessors * BLOCKS_PER_MULTIPROCESSOR / blocks;
    const uint64_t round = (uint64_t)y_width * units_in_flight(layout);
    uint64_t splits = at_most(at_most(wanted, layout->units / (round * ROUNDS_PER_SPLIT)), MAX_SPLITS);
    if (!may_split || splits < 2) {
        splits = 1;
    }
    layout->chunk = ((layout->units - 1) / splits / round + 1) * round;
    layout->splits = (uint32_t)((layout->units - 1) / layout->chunk + 1);
}

static void choose_layout(const reduce_work *work, const um_plan *kept, const char *base, int multiprocessors,
                          reduce_layout *layout) {
    const um_plan *reduced = &work->reduced;
    const int64_t lanes = UM_VECTOR_BYTES / (int64_t)work->itemsize;
    const uint64_t step_kept = kept->ndim > 0 ? magnitude(kept->strides[0][0]) : UINT64_MAX;
    const uint64_t step_reduced = reduced->ndim > 0 ? magnitude(reduced->strides[0][0]) : UINT64_MAX;
    *layout = (reduce_layout){.kernel = KERNEL_ELEM, .along = 1, .across = 1, .x_fast = step_kept < step_reduced};
    if (!layout->x_fast && can_use_vectors(reduced, kept, base, work->itemsize, true)) {
        layout->kernel = KERNEL_ROW;
        layout->along = lanes;
    } else if (layout->x_fast && can_use_vectors(kept, reduced, base, work->itemsize, false)) {
        layout->kernel = KERNEL_COL;
        layout->across = lanes;
    }
    layout->outputs = (uint64_t)(um_plan_count(kept->ndim, kept->shape) / layout->across);
    /* A tail of less than a unit is left out by this division, and only there. */
    layout->units = (uint64_t)um_plan_count(reduced->ndim, reduced->shape) / (uint64_t)layout->along;
    const uint32_t y_width = choose_y_width(layout, work->itemsize, multiprocessors);
    while ((uint32_t)UM_KERNEL_BLOCK >> layout->x_shift > y_width) {
        layout->x_shift++;
    }
    choose_splits(layout, y_width, work->may_split, multiprocessors);
}

/* --- parameters ------------------------------------------------------------------------------------------------------------ */

static void set_kept(um_reduce_params *params, const um_plan *kept, int64_t across) {
    params->kept_ndim = kept->ndim > 0 ? (uint32_t)kept->ndim : 1;
    params->kept_in[0] = params->kept_mean[0] = params->kept_out[0] = 0;
    params->kept[0] = um_plan_divisor(1);
    for (int d = 0; d < kept->ndim; d++) {
        const int64_t unit = d == 0 ? across : 1;
        params->kept[d] = um_plan_divisor((uint32_t)(kept->shape[d] / unit));
        params->kept_in[d] = kept->strides[d][0] * unit;
        params->kept_mean[d] = kept->strides[d][MEAN] * unit;
        params->kept_out[d] = kept->strides[d][UM_KERNEL_OUT] * unit;
    }
    params->mean_step = kept->ndim > 0 ? kept->strides[0][MEAN] : 0;
    params->out_step = kept->ndim > 0 ? kept->strides[0][UM_KERNEL_OUT] : 0;
}

/* Whether the outputs of a unit can be stored at once: totals in the type that the kernel itself gives. */
static bool can_pack_outputs(const reduce_work *work, const um_plan *kept, const reduce_layout *layout) {
    static const um_reduce_store floats[] = {UM_STORE_F16, UM_STORE_F32, UM_STORE_F64};
    const recipe *how = &work->recipe;
    const int64_t itemsize = (int64_t)work->result_size;
    const um_dtype real = real_part(how->dtype);
    const bool floating = is_float(real) && how->reducer != UM_REDUCER_count;
    const um_reduce_store own = floating ? floats[real - UM_FLOAT16] : UM_STORE_SAME;
    if (layout->kernel != KERNEL_COL || layout->splits > 1 || how->reducer == UM_REDUCER_min ||
        how->reducer == UM_REDUCER_argmin || how->store != own || kept->strides[0][UM_KERNEL_OUT] != itemsize) {
        return false;
    }
    uint64_t bits = (uint64_t)(uintptr_t)kept->data[UM_KERNEL_OUT];
    for (int d = 1; d < kept->ndim; d++) {
        bits |= (uint64_t)kept->strides[d][UM_KERNEL_OUT];
    }
    return (bits & (uint64_t)(itemsize * layout->across - 1)) == 0;
}

static void set_reduced(um_reduce_params *params, const um_plan *reduced, const reduce_layout *layout) {
    params->units = layout->units;
    params->chunk = layout->chunk;
    params->wide = layout->units > UM_KERNEL_MAX_UNITS;
    params->reduced_ndim = reduced->ndim > 0 ? (uint32_t)reduced->ndim : 1;
    params->reduced[0] = (um_divisor){.value = 1};
    params->reduced_in[0] = 0;
    params->tail = reduced->ndim > 0 ? (uint32_t)(reduced->shape[0] % layout->along) : 0;
    for (int d = 0; d < reduced->ndim; d++) {
        const int64_t unit = d == 0 ? layout->along : 1;
        const uint64_t length = (uint64_t)(reduced->shape[d] / unit);
        params->reduced_in[d] = reduced->strides[d][0] * unit;
        if (params->wide) {
            params->reduced[d] = (um_divisor){.value = (uint32_t)length, .magic = (uint32_t)(length >> 32)};
        } else {
            params->reduced[d] = um_plan_divisor((uint32_t)length);
        }
    }
}

static um_status launch(um_call *call, int reducer, um_dtype dtype, um_reduce_params *params,
                        const reduce_layout *layout, um_error *err) {
    params->outputs = (uint32_t)layout->outputs;
    params->splits = layout->splits;
    params->x_shift = layout->x_shift;
    params->x_fast = layout->x_fast;
    const uint64_t blocks = ((layout->outputs - 1) >> layout->x_shift) + 1;
    const uint64_t most = (uint64_t)um_context_multiprocessors(call->ctx, call->device) * MAX_BLOCKS_PER_MULTIPROCESSOR;
    const int slot = UM_SLOT_REDUCE(reducer, (int)dtype) + layout->kernel;
    return um_call_launch(call, slot, params, (unsigned)at_most(blocks, most), layout->splits, err);
}

static int64_t *positions_of(const reduce_work *work) {
    const bool wanted = work->partials != NULL && work->recipe.reducer == UM_REDUCER_argmin;
    return wanted ? (int64_t *)(void *)((char *)um_block_ptr(work->partials) + work->positions) : NULL;
}

/* Combines the partial results of every output. They lie together, in the order of the outputs. */
static um_status launch_second_pass(reduce_work *work, um_plan *kept, uint32_t splits, int multiprocessors,
                                    um_error *err) {
    const recipe *how = &work->recipe;
    int64_t stride = (int64_t)(splits * how->partial_size);
    for (int d = 0; d < kept->ndim; d++) {
        kept->strides[d][0] = stride;
        stride *= kept->shape[d];
    }
    um_plan reduced = {.used = 1, .memory = 1, .ndim = 1, .shape = {splits}, .strides = {{(int64_t)how->partial_size}}};
    reduce_layout layout = {
        .kernel = KERNEL_ELEM,
        .along = 1,
        .across = 1,
        .outputs = (uint64_t)um_plan_count(kept->ndim, kept->shape),
        .units = splits,
        .splits = 1,
        .chunk = splits,
    };
    const uint32_t y_width = choose_y_width(&layout, how->partial_size, multiprocessors);
    while ((uint32_t)UM_KERNEL_BLOCK >> layout.x_shift > y_width) {
        layout.x_shift++;
    }
    um_reduce_params params;
    memset(&params, 0, sizeof params);
    params.in = um_block_ptr(work->partials);
    params.out = kept->data[UM_KERNEL_OUT];
    params.positions = positions_of(work);
    params.bits = how->bits;
    params.total = (uint64_t)um_plan_count(work->reduced.ndim, work->reduced.shape);
    params.store = how->store;
    set_kept(&params, kept, 1);
    set_reduced(&params, &reduced, &layout);
    return launch(work->call, how->last_reducer, how->last_dtype, &params, &layout, err);
}

/* The results of one part of the outputs. Parts with partial results are the only part. */
static um_status launch_part(void *arg, um_plan *kept, um_error *err) {
    reduce_work *work = arg;
    const int multiprocessors = um_context_multiprocessors(work->call->ctx, work->call->device);
    const char *base = kept->data[0];
    reduce_layout layout;
    choose_layout(work, kept, base, multiprocessors, &layout);
    um_reduce_params params;
    memset(&params, 0, sizeof params);
    params.in = base;
    params.out = work->partials != NULL ? um_block_ptr(work->partials) : kept->data[UM_KERNEL_OUT];
    params.mean = work->has_mean ? kept->data[MEAN] : NULL;
    params.positions = positions_of(work);
    params.bits = work->recipe.bits;
    params.total = (uint64_t)um_plan_count(work->reduced.ndim, work->reduced.shape);
    params.store = layout.splits > 1 ? UM_STORE_PARTIAL : work->recipe.store;
    set_kept(&params, kept, layout.across);
    params.pack = can_pack_outputs(work, kept, &layout);
    set_reduced(&params, &work->reduced, &layout);
    const um_status status = launch(work->call, work->recipe.reducer, work->recipe.dtype, &params, &layout, err);
    if (status != UM_OK || layout.splits == 1) {
        return status;
    }
    return launch_second_pass(work, kept, layout.splits, multiprocessors, err);
}

/* --- the call ---------------------------------------------------------------------------------------------------------------- */

/* Joins neighbouring axes that one stride walks through, without changing the order of the elements. */
static void join_in_order(um_plan *plan) {
    int last = 0;
    for (int d = 1; d < plan->ndim; d++) {
        if (plan->strides[d][0] == plan->shape[last] * plan->strides[last][0]) {
            plan->shape[last] *= plan->shape[d];
        } else {
            last++;
            plan->shape[last] = plan->shape[d];
            memcpy(plan->strides[last], plan->strides[d], sizeof plan->strides[d]);
        }
    }
    plan->ndim = plan->ndim > 0 ? last + 1 : 0;
}

/* Sorts the axes into those that stay and those that go; *kept and work->reduced hold the input at slot 0. False: too many go. */
static bool make_plans(reduce_work *work, int ndim, const int64_t *shape, const bool *reduced, const um_operand *inputs,
                       const um_operand *out, um_plan *kept) {
    um_plan *gone = &work->reduced;
    kept->used = kept->memory = 1u | 1u << UM_KERNEL_OUT | (work->has_mean ? 1u << MEAN : 0);
    gone->used = gone->memory = 1u;
    kept->ndim = gone->ndim = 0;
    memset(kept->data, 0, sizeof kept->data);
    memset(gone->data, 0, sizeof gone->data);
    gone->data[0] = inputs[0].data;
    kept->data[MEAN] = work->has_mean ? inputs[MEAN].data : NULL;
    kept->data[UM_KERNEL_OUT] = out->data;
    for (int d = ndim - 1; d >= 0; d--) {
        if (shape[d] == 1) {
            continue;
        }
        um_plan *plan = reduced[d] ? gone : kept;
        plan->shape[plan->ndim] = shape[d];
        memset(plan->strides[plan->ndim], 0, sizeof plan->strides[0]);
        plan->strides[plan->ndim][0] = inputs[0].strides[d];
        if (!reduced[d]) {
            plan->strides[plan->ndim][MEAN] = work->has_mean ? inputs[MEAN].strides[d] : 0;
            plan->strides[plan->ndim][UM_KERNEL_OUT] = out->strides[d];
        }
        plan->ndim++;
    }
    if (work->in_order) {
        join_in_order(gone);
    } else {
        um_plan_collapse(gone, 0);
    }
    kept->data[0] = gone->data[0]; /* moved where axes have been turned around */
    um_plan_collapse(kept, 0);
    return gone->ndim <= UM_REDUCE_REDUCED_NDIM;
}

/* The buffer of partial results, if the first pass will want one. Outside the call's frame, since it may block. */
static um_status make_partials(reduce_work *work, const um_plan *kept, um_error *err) {
    work->may_split =
        kept->ndim <= UM_REDUCE_KEPT_NDIM && um_plan_count(kept->ndim, kept->shape) <= UM_KERNEL_MAX_UNITS;
    if (!work->may_split) {
        return UM_OK;
    }
    const int device = work->call->device;
    reduce_layout layout;
    choose_layout(work, kept, kept->data[0], um_context_multiprocessors(work->call->ctx, device), &layout);
    if (layout.splits == 1) {
        return UM_OK;
    }
    const size_t count = (size_t)layout.outputs * (size_t)layout.across * layout.splits;
    work->positions = (count * work->recipe.partial_size + 7) & ~(size_t)7;
    const size_t size = work->positions + (work->recipe.reducer == UM_REDUCER_argmin ? count * sizeof(int64_t) : 0);
    /* Only the GPU uses it: its pages should not be those of arrays that the host has touched. */
    const um_location home = {.kind = UM_LOCATION_DEVICE, .id = device};
    const um_status status = um_block_new(work->call->ctx, size, device, home, &work->partials, err);
    if (status == UM_OK) {
        um_call_add_block(work->call, work->partials, true);
    }
    return status;
}

/* The result of reducing nothing: 0, or 1 of a product or `all`. */
static um_status fill_identity(um_context *ctx, um_stream *stream, um_reduction reduction, int ndim,
                               const int64_t *out_shape, const um_operand *out, bool deferred, um_wait *wait,
                               um_error *err) {
    um_value one = {.u64 = reduction == UM_REDUCE_prod || reduction == UM_REDUCE_all};
    if (reduction == UM_REDUCE_prod) {
        switch ((int)out->dtype) {
        case UM_FLOAT16: one.f16 = um_cast_f32_to_f16(1); break;
        case UM_FLOAT32: one.f32 = 1; break;
        case UM_FLOAT64: one.f64 = 1; break;
        case UM_COMPLEX64: one.c64 = (um_c64){1, 0}; break;
        case UM_COMPLEX128: one.c128 = (um_c128){1, 0}; break;
        default: break;
        }
    }
    return um_kernel_fill(ctx, stream, ndim, out_shape, um_dtype_size(out->dtype), &one, out, deferred, wait, err);
}

const char *um_reduction_name(um_reduction reduction) {
    static const char *const names[UM_REDUCTION_COUNT] = {
#define UM_NAME(name) #name,
        UM_FOR_EACH_REDUCTION(UM_NAME)
#undef UM_NAME
    };
    return names[reduction];
}

/* Totals of floats can be stored as any float. */
static bool can_store(um_dtype own, um_dtype wanted) {
    return own == wanted || (is_float(own) && is_float(wanted)) || (is_complex(own) && is_complex(wanted));
}

static um_status check_operands(um_reduction reduction, int ndim, const int64_t *shape, const int64_t *out_shape,
                                const um_operand *inputs, const um_operand *out, um_error *err) {
    const char *name = um_reduction_name(reduction);
    const um_dtype dtype = inputs[0].dtype;
    const bool has_mean = reduction == UM_REDUCE_squares;
    const bool total = has_mean || reduction == UM_REDUCE_sum || reduction == UM_REDUCE_prod;
    um_dtype result;
    if (!um_reduce_result(reduction, dtype, &result)) {
        return um_error_set(err, UM_ERR_TYPE, "%s has no kernel for %s", name, um_dtype_name(dtype));
    }
    if (inputs[0].block == NULL || out->block == NULL || (has_mean && inputs[MEAN].block == NULL)) {
        return um_error_set(err, UM_ERR_VALUE, "%s: operands must be in memory", name);
    }
    if (out->dtype != result && !(total && can_store(result, out->dtype))) {
        return um_error_set(err, UM_ERR_TYPE, "%s: the output does not have the type of the result", name);
    }
    if (has_mean && inputs[MEAN].dtype != (dtype == UM_FLOAT16 ? UM_FLOAT32 : dtype)) {
        return um_error_set(err, UM_ERR_TYPE, "%s: the mean does not have the type that is computed with", name);
    }
    if (!um_kernel_is_aligned(&inputs[0], ndim, shape) || !um_kernel_is_aligned(out, ndim, out_shape) ||
        (has_mean && !um_kernel_is_aligned(&inputs[MEAN], ndim, out_shape))) {
        return um_error_set(err, UM_ERR_VALUE, "%s: elements do not lie on multiples of their size", name);
    }
    return UM_OK;
}

um_status um_kernel_reduce(um_context *ctx, um_stream *stream, um_reduction which, int ndim, const int64_t *shape,
                           const bool *reduced, const um_operand *inputs, const um_operand *out, bool deferred,
                           um_wait *wait, um_error *err) {
    *wait = UM_WAIT_NONE;
    int64_t out_shape[UM_MAX_NDIM], outputs = 1, elements = 1;
    for (int d = 0; d < ndim; d++) {
        out_shape[d] = reduced[d] ? 1 : shape[d];
        outputs *= out_shape[d];
        elements *= shape[d];
    }
    if (outputs == 0) {
        return UM_OK;
    }
    um_status status = check_operands(which, ndim, shape, out_shape, inputs, out, err);
    if (status != UM_OK) {
        return status;
    }
    const bool has_identity = which < UM_REDUCE_min;
    if (elements == 0 && !has_identity) {
        return um_error_set(err, UM_ERR_VALUE, "%s of nothing", um_reduction_name(which));
    }
    if (elements == 0) {
        return fill_identity(ctx, stream, which, ndim, out_shape, out, deferred, wait, err);
    }
    um_call call;
    status = um_call_init(&call, ctx, stream, err);
    if (status != UM_OK) {
        return status;
    }
    const size_t itemsize = um_dtype_size(inputs[0].dtype), result_size = um_dtype_size(out->dtype);
    reduce_work work = {.call = &call,
                        .recipe = choose_recipe(which, inputs[0].dtype, out->dtype),
                        .itemsize = itemsize,
                        .result_size = result_size,
                        .in_order = which == UM_REDUCE_argmin || which == UM_REDUCE_argmax,
                        .has_mean = which == UM_REDUCE_squares};
    um_call_add_operand(&call, &inputs[0], ndim, shape, itemsize, false);
    um_call_add_operand(&call, out, ndim, out_shape, result_size, true);
    if (work.has_mean) {
        um_call_add_operand(&call, &inputs[MEAN], ndim, out_shape, um_dtype_size(inputs[MEAN].dtype), false);
    }
    um_plan kept;
    if (!make_plans(&work, ndim, shape, reduced, inputs, out, &kept)) {
        return um_error_set(err, UM_ERR_VALUE, "%s: more than %d axes that cannot be joined are reduced",
                            um_reduction_name(which), UM_REDUCE_REDUCED_NDIM);
    }
    status = make_partials(&work, &kept, err);
    if (status != UM_OK) {
        return status;
    }
    status = um_call_begin(&call, err);
    if (status == UM_OK) {
        static const um_plan_limits limits = {.ndim = UM_REDUCE_KEPT_NDIM, .reach = UINT64_MAX};
        status =
            um_call_end(&call, um_plan_for_each_part(&kept, &limits, launch_part, &work, err), deferred, wait, err);
    }
    if (work.partials != NULL) {
        um_block_unref(work.partials); /* its memory is reused when the stream is done with it */
    }
    return status;
}
