/* Sums: which threads add what, and how many partial sums an output is made of. */
#include <string.h>

#include "kernels/um_kernel_call.h"

/* Blocks that keep a multiprocessor busy; an output's reduction is split until there are about that many. */
#define BLOCKS_PER_MULTIPROCESSOR     8
/* Most blocks along the outputs; more outputs are a loop. */
#define MAX_BLOCKS_PER_MULTIPROCESSOR 32
/* A split has at least this many rounds of a thread's loop, or it would not be worth its second pass. */
#define ROUNDS_PER_SPLIT              4
#define MAX_SPLITS                    65535 /* grid_y */
#define PARTIAL_SIZE                  8     /* bytes of a partial sum */

/* The sums that have kernels, in the order of their slots. */
static const um_dtype sum_dtypes[UM_SUM_DTYPES] = {
#define UM_SUM(token, enumerator, type, value, partial) enumerator,
    UM_FOR_EACH_SUM(UM_SUM)
#undef UM_SUM
};

/* -1 when the type has no sum. */
static int sum_index(um_dtype dtype) {
    for (int i = 0; i < UM_SUM_DTYPES; i++) {
        if (sum_dtypes[i] == dtype) {
            return i;
        }
    }
    return -1;
}

static um_dtype result_dtype(um_dtype dtype) { return dtype == UM_INT32 ? UM_INT64 : dtype; }

enum { KERNEL_ELEM, KERNEL_ROW, KERNEL_COL };

typedef struct reduction {
    um_call *call;
    um_dtype dtype;
    size_t itemsize;
    um_plan reduced;    /* of the input; its data is where the kept axes start */
    um_block *partials; /* owned; NULL until needed */
    bool may_split;     /* kept axes make one part, so that a buffer of partial sums has one layout */
} reduction;

/* How one launch is laid out. Units: see um_sum_params. */
typedef struct sum_layout {
    int kernel;
    int64_t along, across; /* elements of a reduction unit and outputs of an output unit */
    uint64_t outputs;      /* units */
    uint64_t units;
    bool x_fast;
    uint32_t x_shift;
    uint32_t splits;
    uint64_t chunk;
} sum_layout;

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
    if (inner->ndim == 0 || inner->strides[0][0] != (int64_t)itemsize || inner->shape[0] < lanes ||
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

static uint64_t units_in_flight(const sum_layout *layout) {
    return layout->kernel == KERNEL_ELEM ? UM_SUM_UNROLL_ELEM : UM_SUM_UNROLL_VEC;
}

/* Threads of an output, a power of two; the rest of the block works on other outputs. */
static uint32_t choose_y_width(const sum_layout *layout, size_t itemsize, int multiprocessors) {
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

static void choose_splits(sum_layout *layout, uint32_t y_width, bool may_split, int multiprocessors) {
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

static void choose_layout(const reduction *work, const um_plan *kept, const char *base, int multiprocessors,
                          sum_layout *layout) {
    const um_plan *reduced = &work->reduced;
    const int64_t lanes = UM_VECTOR_BYTES / (int64_t)work->itemsize;
    const uint64_t step_kept = kept->ndim > 0 ? magnitude(kept->strides[0][0]) : UINT64_MAX;
    const uint64_t step_reduced = reduced->ndim > 0 ? magnitude(reduced->strides[0][0]) : UINT64_MAX;
    *layout = (sum_layout){.kernel = KERNEL_ELEM, .along = 1, .across = 1, .x_fast = step_kept < step_reduced};
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

static void set_kept(um_sum_params *params, const um_plan *kept, int64_t across) {
    params->kept_ndim = kept->ndim > 0 ? (uint32_t)kept->ndim : 1;
    params->kept_in[0] = params->kept_out[0] = 0;
    params->kept[0] = um_plan_divisor(1);
    for (int d = 0; d < kept->ndim; d++) {
        const int64_t unit = d == 0 ? across : 1;
        params->kept[d] = um_plan_divisor((uint32_t)(kept->shape[d] / unit));
        params->kept_in[d] = kept->strides[d][0] * unit;
        params->kept_out[d] = kept->strides[d][UM_KERNEL_OUT] * unit;
    }
    params->out_step = kept->ndim > 0 ? kept->strides[0][UM_KERNEL_OUT] : 0;
}

/* Whether the outputs of a unit can be stored at once. */
static bool can_pack_outputs(const um_plan *kept, const sum_layout *layout, um_dtype dtype) {
    const int64_t itemsize = (int64_t)um_dtype_size(result_dtype(dtype));
    if (layout->kernel != KERNEL_COL || layout->splits > 1 || kept->strides[0][UM_KERNEL_OUT] != itemsize) {
        return false;
    }
    uint64_t bits = (uint64_t)(uintptr_t)kept->data[UM_KERNEL_OUT];
    for (int d = 1; d < kept->ndim; d++) {
        bits |= (uint64_t)kept->strides[d][UM_KERNEL_OUT];
    }
    return (bits & (uint64_t)(itemsize * layout->across - 1)) == 0;
}

static void set_reduced(um_sum_params *params, const um_plan *reduced, const sum_layout *layout) {
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

static um_status launch_sum(um_call *call, um_dtype dtype, um_sum_params *params, const sum_layout *layout,
                            um_error *err) {
    params->outputs = (uint32_t)layout->outputs;
    params->splits = layout->splits;
    params->x_shift = layout->x_shift;
    params->x_fast = layout->x_fast;
    const uint64_t blocks = ((layout->outputs - 1) >> layout->x_shift) + 1;
    const uint64_t most = (uint64_t)um_context_multiprocessors(call->ctx, call->device) * MAX_BLOCKS_PER_MULTIPROCESSOR;
    const int slot = UM_SLOT_SUMS + sum_index(dtype) * 3 + layout->kernel;
    return um_call_launch(call, slot, params, (unsigned)at_most(blocks, most), layout->splits, err);
}

/* Adds the partial sums of every output. They lie together, in the order of the outputs. */
static um_status launch_second_pass(reduction *work, um_plan *kept, const char *partials, uint32_t splits,
                                    int multiprocessors, um_error *err) {
    int64_t stride = (int64_t)splits * PARTIAL_SIZE;
    for (int d = 0; d < kept->ndim; d++) {
        kept->strides[d][0] = stride;
        stride *= kept->shape[d];
    }
    um_plan reduced = {.used = 1, .memory = 1, .ndim = 1, .shape = {splits}, .strides = {{PARTIAL_SIZE}}};
    sum_layout layout = {
        .kernel = KERNEL_ELEM,
        .along = 1,
        .across = 1,
        .outputs = (uint64_t)um_plan_count(kept->ndim, kept->shape),
        .units = splits,
        .splits = 1,
        .chunk = splits,
    };
    const uint32_t y_width = choose_y_width(&layout, PARTIAL_SIZE, multiprocessors);
    while ((uint32_t)UM_KERNEL_BLOCK >> layout.x_shift > y_width) {
        layout.x_shift++;
    }
    um_sum_params params;
    params.in = partials;
    params.out = kept->data[UM_KERNEL_OUT];
    params.store = work->dtype == UM_FLOAT32 ? UM_SUM_FLOAT32 : UM_SUM_RESULT;
    set_kept(&params, kept, 1);
    params.pack = 0;
    set_reduced(&params, &reduced, &layout);
    const um_dtype dtype = work->dtype == UM_FLOAT32 || work->dtype == UM_FLOAT64 ? UM_FLOAT64 : UM_INT64;
    return launch_sum(work->call, dtype, &params, &layout, err);
}

/* Sums for one part of the outputs. Parts with partial sums are the only part. */
static um_status launch_part(void *arg, um_plan *kept, um_error *err) {
    reduction *work = arg;
    const int multiprocessors = um_context_multiprocessors(work->call->ctx, work->call->device);
    const char *base = kept->data[0];
    sum_layout layout;
    choose_layout(work, kept, base, multiprocessors, &layout);
    um_sum_params params;
    params.in = base;
    params.out = work->partials != NULL ? um_block_ptr(work->partials) : kept->data[UM_KERNEL_OUT];
    params.store = layout.splits > 1 ? UM_SUM_PARTIAL : UM_SUM_RESULT;
    set_kept(&params, kept, layout.across);
    params.pack = can_pack_outputs(kept, &layout, work->dtype);
    set_reduced(&params, &work->reduced, &layout);
    const um_status status = launch_sum(work->call, work->dtype, &params, &layout, err);
    if (status != UM_OK || layout.splits == 1) {
        return status;
    }
    return launch_second_pass(work, kept, um_block_ptr(work->partials), layout.splits, multiprocessors, err);
}

/* --- the call ---------------------------------------------------------------------------------------------------------------- */

/* Sorts the axes into those that stay and those that go; *kept and work->reduced hold the input at slot 0. False: too many go. */
static bool make_plans(reduction *work, int ndim, const int64_t *shape, const bool *reduced, const um_operand *in,
                       const um_operand *out, um_plan *kept) {
    um_plan *gone = &work->reduced;
    kept->used = kept->memory = 1u | 1u << UM_KERNEL_OUT;
    gone->used = gone->memory = 1u;
    kept->ndim = gone->ndim = 0;
    memset(kept->data, 0, sizeof kept->data);
    memset(gone->data, 0, sizeof gone->data);
    gone->data[0] = in->data;
    kept->data[UM_KERNEL_OUT] = out->data;
    for (int d = ndim - 1; d >= 0; d--) {
        if (shape[d] == 1) {
            continue;
        }
        um_plan *plan = reduced[d] ? gone : kept;
        plan->shape[plan->ndim] = shape[d];
        memset(plan->strides[plan->ndim], 0, sizeof plan->strides[0]);
        plan->strides[plan->ndim][0] = in->strides[d];
        if (!reduced[d]) {
            plan->strides[plan->ndim][UM_KERNEL_OUT] = out->strides[d];
        }
        plan->ndim++;
    }
    um_plan_collapse(gone, 0);
    kept->data[0] = gone->data[0]; /* moved where axes have been turned around */
    um_plan_collapse(kept, 0);
    return gone->ndim <= UM_SUM_REDUCED_NDIM;
}

/* The buffer of partial sums, if the first pass will want one. Outside the call's frame, since it may block. */
static um_status make_partials(reduction *work, const um_plan *kept, um_error *err) {
    work->may_split = kept->ndim <= UM_SUM_KEPT_NDIM && um_plan_count(kept->ndim, kept->shape) <= UM_KERNEL_MAX_UNITS;
    if (!work->may_split) {
        return UM_OK;
    }
    const int device = work->call->device;
    sum_layout layout;
    choose_layout(work, kept, kept->data[0], um_context_multiprocessors(work->call->ctx, device), &layout);
    if (layout.splits == 1) {
        return UM_OK;
    }
    const size_t size = (size_t)layout.outputs * (size_t)layout.across * layout.splits * PARTIAL_SIZE;
    /* Only the GPU uses it: its pages should not be those of arrays that the host has touched. */
    const um_location home = {.kind = UM_LOCATION_DEVICE, .id = device};
    const um_status status = um_block_new(work->call->ctx, size, device, home, &work->partials, err);
    if (status == UM_OK) {
        um_call_add_block(work->call, work->partials, true);
    }
    return status;
}

/* The sum of nothing. */
static um_status fill_zero(um_context *ctx, um_stream *stream, int ndim, const int64_t *shape, const bool *reduced,
                           size_t itemsize, const um_operand *out, bool deferred, um_wait *wait, um_error *err) {
    static const unsigned char zero[8] = {0};
    int64_t kept_shape[UM_MAX_NDIM];
    for (int d = 0; d < ndim; d++) {
        kept_shape[d] = reduced[d] ? 1 : shape[d];
    }
    return um_kernel_fill(ctx, stream, ndim, kept_shape, itemsize, zero, out, deferred, wait, err);
}

static um_status check_operands(um_dtype result, int ndim, const int64_t *shape, const int64_t *out_shape,
                                const um_operand *in, const um_operand *out, um_error *err) {
    if (sum_index(in->dtype) < 0) {
        return um_error_set(err, UM_ERR_TYPE, "sum has no kernel for %s", um_dtype_name(in->dtype));
    }
    if (in->block == NULL || out->block == NULL) {
        return um_error_set(err, UM_ERR_VALUE, "sum: operands must be in memory");
    }
    if (out->dtype != result) {
        return um_error_set(err, UM_ERR_TYPE, "sum: the output does not have the type of the sum");
    }
    if (!um_kernel_is_aligned(in, ndim, shape) || !um_kernel_is_aligned(out, ndim, out_shape)) {
        return um_error_set(err, UM_ERR_VALUE, "sum: elements do not lie on multiples of their size");
    }
    return UM_OK;
}

um_status um_kernel_sum(um_context *ctx, um_stream *stream, int ndim, const int64_t *shape, const bool *reduced,
                        const um_operand *in, const um_operand *out, bool deferred, um_wait *wait, um_error *err) {
    *wait = UM_WAIT_NONE;
    int64_t out_shape[UM_MAX_NDIM], outputs = 1, inputs = 1;
    for (int d = 0; d < ndim; d++) {
        out_shape[d] = reduced[d] ? 1 : shape[d];
        outputs *= out_shape[d];
        inputs *= shape[d];
    }
    if (outputs == 0) {
        return UM_OK;
    }
    const um_dtype result = result_dtype(in->dtype);
    um_status status = check_operands(result, ndim, shape, out_shape, in, out, err);
    if (status != UM_OK) {
        return status;
    }
    if (inputs == 0) {
        return fill_zero(ctx, stream, ndim, shape, reduced, um_dtype_size(result), out, deferred, wait, err);
    }
    um_call call;
    status = um_call_init(&call, ctx, stream, err);
    if (status != UM_OK) {
        return status;
    }
    um_call_add_operand(&call, in, ndim, shape, um_dtype_size(in->dtype), false);
    um_call_add_operand(&call, out, ndim, out_shape, um_dtype_size(result), true);
    reduction work = {.call = &call, .dtype = in->dtype, .itemsize = um_dtype_size(in->dtype)};
    um_plan kept;
    if (!make_plans(&work, ndim, shape, reduced, in, out, &kept)) {
        return um_error_set(err, UM_ERR_VALUE, "sum: more than %d axes that cannot be joined are reduced",
                            UM_SUM_REDUCED_NDIM);
    }
    status = make_partials(&work, &kept, err);
    if (status != UM_OK) {
        return status;
    }
    status = um_call_begin(&call, err);
    if (status == UM_OK) {
        static const um_plan_limits limits = {.ndim = UM_SUM_KEPT_NDIM, .reach = UINT64_MAX};
        status =
            um_call_end(&call, um_plan_for_each_part(&kept, &limits, launch_part, &work, err), deferred, wait, err);
    }
    if (work.partials != NULL) {
        um_block_unref(work.partials); /* its memory is reused when the stream is done with it */
    }
    return status;
}
