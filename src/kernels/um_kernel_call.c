#include "kernels/um_kernel_call.h"

#include "kernels/um_kernel_forms.h"

#include <assert.h>
#include <string.h>

_Static_assert((int)UM_SLOT_COUNT <= UM_KERNEL_SLOTS, "the context has no room for this many kernels");

#define PAIR(name) "um_" name "_elem", "um_" name "_vec"

/* In the order of the slots. */
static const char *const kernel_names[UM_SLOT_COUNT] = {
#define UM_DEFINE_LOOP(weight, name, token, inputs, result, expression)                                                \
    [UM_SLOT_OP((int)UM_OP_##name, (int)UM_DTYPE_##token)] = "um_" #name "_" #token "_elem",                           \
                                   UM_IF_VEC(weight, token,                                                            \
                                             [UM_SLOT_OP((int)UM_OP_##name, (int)UM_DTYPE_##token) + 1] =              \
                                                 "um_" #name "_" #token "_vec", )
#define UM_OP UM_FOR_EACH_LOOP
#include "kernels/um_kernel_ops.h"
#undef UM_OP

#define CAST(from, to)                                                                                                 \
    [UM_SLOT_CASTS + (UM_DTYPE_##from * UM_DTYPE_COUNT + UM_DTYPE_##to) * 2] = PAIR("cast_" #from "_" #to),
    UM_FOR_EACH_CAST(CAST)

#define COPY(size) PAIR("copy_" #size),
        [UM_SLOT_COPIES] = UM_FOR_EACH_COPY(COPY)

#define WHERE(size) "um_where_" #size "_elem", size == 16 ? NULL : "um_where_" #size "_vec",
            [UM_SLOT_WHERES] = UM_FOR_EACH_COPY(WHERE)

#define REDUCE_SLOT(name, token) UM_SLOT_REDUCE((int)UM_REDUCER_##name, (int)UM_DTYPE_##token)
#define REDUCE(name, token)                                                                                            \
    [REDUCE_SLOT(name, token)] = "um_" #name "_" #token "_elem",                                                       \
                       UM_IF_PACKS(token, [REDUCE_SLOT(name, token) + 1] = "um_" #name "_" #token "_row",              \
                                   [REDUCE_SLOT(name, token) + 2] = "um_" #name "_" #token "_col", )
                UM_FOR_EACH_REDUCE(REDUCE)

#define DRAW(name, type, lanes) "um_draw_" #name "_kernel",
                    [UM_SLOT_RANDOM] = UM_FOR_EACH_DRAW(DRAW)

#define EVALUATE(name, cell, elements) "um_evaluate_" #name,
                        [UM_SLOT_EVALUATE] = UM_FOR_EACH_EVALUATE(EVALUATE)};

const char *um_kernel_name(int slot) { return kernel_names[slot]; }

um_status um_call_init(um_call *call, um_context *ctx, um_stream *stream, um_error *err) {
    call->ctx = ctx;
    call->stream = stream;
    call->backend = um_context_backend(ctx);
    call->launched = false;
    call->shared_bytes = 0;
    call->access_count = 0;
    if (call->backend->ops->launch == NULL) {
        return um_error_set(err, UM_ERR_UNSUPPORTED, "the %s backend has no kernels", call->backend->ops->name);
    }
    call->device = um_stream_device(stream);
    call->handle = um_stream_get_handle(stream);
    return UM_OK;
}

void um_call_add_operand(um_call *call, const um_operand *operand, int ndim, const int64_t *shape, size_t itemsize,
                         bool write) {
    if (operand->block == NULL) {
        return;
    }
    assert(call->access_count < UM_CALL_ACCESSES);
    um_access *access = &call->accesses[call->access_count++];
    char *low;
    um_plan_range(operand, ndim, shape, itemsize, &low, &access->size, &access->dense);
    access->block = operand->block;
    access->offset = (size_t)(low - um_block_ptr(operand->block));
    access->write = write;
    assert(access->offset + access->size <= um_block_size(operand->block));
}

void um_call_add_block(um_call *call, um_block *block, bool write) {
    assert(call->access_count < UM_CALL_ACCESSES);
    call->accesses[call->access_count++] =
        (um_access){.block = block, .offset = 0, .size = um_block_size(block), .write = write, .dense = true};
}

um_status um_call_check_aligned(const um_operand *operand, int ndim, const int64_t *shape, const char *what,
                                um_error *err) {
    if (um_kernel_is_aligned(operand, ndim, shape)) {
        return UM_OK;
    }
    return um_error_set(err, UM_ERR_VALUE, "%s: %s elements do not lie on multiples of their size", what,
                        um_dtype_name(operand->dtype));
}

um_status um_call_begin(um_call *call, um_error *err) {
    return um_work_begin(call->stream, call->accesses, call->access_count, err);
}

um_status um_call_launch(um_call *call, int slot, void *params, unsigned grid_x, unsigned grid_y, um_error *err) {
    const um_backend_ops *ops = call->backend->ops;
    _Atomic(um_kernel_handle) *cached = &um_context_kernel_slots(call->ctx)[slot];
    um_kernel_handle kernel = atomic_load_explicit(cached, memory_order_acquire);
    if (kernel == 0) {
        assert(kernel_names[slot] != NULL);
        /* Two threads may both ask; they get the same handle. */
        const um_status status = ops->kernel_get(call->backend, kernel_names[slot], &kernel, err);
        if (status != UM_OK) {
            return status;
        }
        atomic_store_explicit(cached, kernel, memory_order_release);
    }
    void *pointers[1] = {params};
    const um_launch launch = {
        .kernel = kernel,
        .grid_x = grid_x,
        .grid_y = grid_y,
        .grid_z = 1,
        .block_x = UM_KERNEL_BLOCK,
        .shared_bytes = call->shared_bytes,
        .params = pointers,
    };
    const um_status status = ops->launch(call->backend, call->device, call->handle, &launch, err);
    call->launched = call->launched || status == UM_OK;
    return status;
}

um_status um_call_end(um_call *call, um_status status, bool deferred, um_wait *wait, um_error *err) {
    if (status == UM_OK) {
        return um_work_end(call->stream, call->accesses, call->access_count, deferred, wait, err);
    }
    if (!call->launched) {
        um_work_failed(call->stream);
        return status;
    }
    /* The first failure is the one to report. */
    um_wait unfinished = UM_WAIT_NONE;
    if (um_work_end(call->stream, call->accesses, call->access_count, deferred, &unfinished, NULL) == UM_OK) {
        um_error failed;
        if (um_wait_run(&unfinished, &failed) == UM_ERR_INTERRUPTED) {
            if (err != NULL) {
                *err = failed;
            }
            return UM_ERR_INTERRUPTED;
        }
    }
    return status;
}

/* --- elementwise plans -------------------------------------------------------------------------------------------- */

static um_status launch_part(void *arg, um_plan *part, um_error *err) {
    const um_elementwise *work = arg;
    um_elementwise_params params;
    const bool vectors = um_plan_elementwise(part, work->itemsizes, work->lanes, work->scalars, &params);
    memcpy(params.values, work->values, sizeof params.values);
    const uint32_t tile = UM_KERNEL_BLOCK * UM_ELEMENTWISE_UNROLL;
    return um_call_launch(work->call, work->slot + (vectors ? 1 : 0), &params, (params.units - 1) / tile + 1, 1, err);
}

static um_status launch_parts(um_elementwise *work, um_plan *plan, um_error *err) {
    static const um_plan_limits limits = {.ndim = UM_KERNEL_NDIM, .reach = UM_KERNEL_MAX_REACH};
    return um_plan_for_each_part(plan, &limits, launch_part, work, err);
}

static um_status launch_tiled(um_elementwise *work, const um_plan *plan, int axis, um_error *err) {
    um_plan tiled[3];
    const int count = um_plan_tile(plan, axis, work->itemsizes[UM_KERNEL_OUT], tiled);
    um_status status = UM_OK;
    for (int i = 0; i < count && status == UM_OK; i++) {
        status = launch_parts(work, &tiled[i], err);
    }
    return status;
}

um_status um_elementwise_launch(um_elementwise *work, um_plan *plan, um_error *err) {
    const int axis = um_plan_find_transposed(plan);
    return axis > 0 ? launch_tiled(work, plan, axis, err) : launch_parts(work, plan, err);
}
