/* Elementwise calls: operations, casts, copies and fills. */
#include "kernels/um_kernel.h"

#include <string.h>

#include "kernels/um_kernel_call.h"

static const size_t dtype_sizes[UM_DTYPE_COUNT] = {4, 8, 4, 8};
static const char *const dtype_names[UM_DTYPE_COUNT] = {"float32", "float64", "int32", "int64"};

typedef struct op_entry {
    const char *name;
    int inputs;
    bool integers; /* int32 and int64 have loops, with results of the same type */
} op_entry;

static const op_entry op_entries[UM_OP_COUNT] = {
#define SAME                                                  true
#define NONE                                                  false
#define UM_OP(name, inputs, float_expr, int_expr, int_result) [UM_OP_##name] = {#name, inputs, int_result},
#include "kernels/um_kernel_ops.h"
#undef UM_OP
#undef SAME
#undef NONE
};

#define UM_OP(name, inputs, float_expr, int_expr, int_result)                                                          \
    _Static_assert((inputs) >= 1 && (inputs) <= UM_MAX_INPUTS, #name " has too many inputs");
#include "kernels/um_kernel_ops.h"
#undef UM_OP

const char *um_op_name(um_op op) { return op_entries[op].name; }

int um_op_input_count(um_op op) { return op_entries[op].inputs; }

bool um_op_has_loop(um_op op, um_dtype input, um_dtype *result) {
    if ((input == UM_INT32 || input == UM_INT64) && !op_entries[op].integers) {
        return false;
    }
    *result = input;
    return true;
}

bool um_op_find(const char *name, um_op *out) {
    for (int op = 0; op < UM_OP_COUNT; op++) {
        if (strcmp(op_entries[op].name, name) == 0) {
            *out = (um_op)op;
            return true;
        }
    }
    return false;
}

/* --- launching a plan -------------------------------------------------------------------------------------------------- */

/* What the parts of one call have in common. */
typedef struct elementwise {
    um_call *call;
    int slot; /* of *_elem; *_vec follows it */
    const size_t *itemsizes;
    unsigned lanes;
    bool scalars;
    const unsigned char (*values)[16];
} elementwise;

static um_status launch_part(void *arg, um_plan *part, um_error *err) {
    const elementwise *work = arg;
    um_elementwise_params params;
    const bool vectors = um_plan_elementwise(part, work->itemsizes, work->lanes, work->scalars, &params);
    memcpy(params.values, work->values, sizeof params.values);
    const uint32_t tile = UM_KERNEL_BLOCK * UM_ELEMENTWISE_UNROLL;
    return um_call_launch(work->call, work->slot + (vectors ? 1 : 0), &params, (params.units - 1) / tile + 1, 1, err);
}

static um_status launch_parts(elementwise *work, um_plan *plan, um_error *err) {
    static const um_plan_limits limits = {.ndim = UM_KERNEL_NDIM, .reach = UM_KERNEL_MAX_REACH};
    return um_plan_for_each_part(plan, &limits, launch_part, work, err);
}

static um_status launch_tiled(elementwise *work, const um_plan *plan, int axis, um_error *err) {
    um_plan tiled[3];
    const int count = um_plan_tile(plan, axis, work->itemsizes[UM_KERNEL_OUT], tiled);
    um_status status = UM_OK;
    for (int i = 0; i < count && status == UM_OK; i++) {
        status = launch_parts(work, &tiled[i], err);
    }
    return status;
}

static um_status launch_plan(elementwise *work, um_plan *plan, um_error *err) {
    const int axis = um_plan_find_transposed(plan);
    return axis > 0 ? launch_tiled(work, plan, axis, err) : launch_parts(work, plan, err);
}

static um_status check_aligned(const um_operand *operand, int ndim, const int64_t *shape, const char *what,
                               um_error *err) {
    if (um_kernel_is_aligned(operand, ndim, shape)) {
        return UM_OK;
    }
    return um_error_set(err, UM_ERR_VALUE, "%s: %s elements do not lie on multiples of their size", what,
                        dtype_names[operand->dtype]);
}

um_status um_kernel_elementwise(um_context *ctx, um_stream *stream, um_op op, int ndim, const int64_t *shape,
                                const um_operand *inputs, const um_operand *out, bool deferred, um_wait *wait,
                                um_error *err) {
    *wait = UM_WAIT_NONE;
    if (um_plan_count(ndim, shape) == 0) {
        return UM_OK;
    }
    const int count = op_entries[op].inputs;
    const um_dtype dtype = inputs[0].dtype;
    const size_t size = dtype_sizes[dtype];
    const size_t itemsizes[UM_KERNEL_OPERANDS] = {size, size, size, dtype_sizes[out->dtype]};
    unsigned char values[UM_KERNEL_OPERANDS - 1][16] = {{0}};
    um_dtype result;
    if (!um_op_has_loop(op, dtype, &result)) {
        return um_error_set(err, UM_ERR_TYPE, "%s has no kernel for %s", op_entries[op].name, dtype_names[dtype]);
    }
    um_call call;
    um_status status = um_call_init(&call, ctx, stream, err);
    if (status != UM_OK) {
        return status;
    }
    for (int i = 0; i <= count; i++) {
        const um_operand *operand = i < count ? &inputs[i] : out;
        if (operand->dtype != (i < count ? dtype : result)) {
            return um_error_set(err, UM_ERR_TYPE, "%s: operand %d is %s, the loop's type is %s", op_entries[op].name, i,
                                dtype_names[operand->dtype], dtype_names[i < count ? dtype : result]);
        }
        status = check_aligned(operand, ndim, shape, op_entries[op].name, err);
        if (status != UM_OK) {
            return status;
        }
        if (operand->block == NULL) {
            memcpy(values[i], &operand->value, sizeof operand->value);
        }
        um_call_add_operand(&call, operand, ndim, shape, size, i == count);
    }
    elementwise work = {
        .call = &call,
        .slot = UM_SLOT_OPS + ((int)op * UM_DTYPE_COUNT + (int)dtype) * 2,
        .itemsizes = itemsizes,
        .lanes = UM_VECTOR_BYTES / (unsigned)size,
        .scalars = true,
        .values = (const unsigned char (*)[16])values,
    };
    um_plan plan;
    if (!um_plan_init(&plan, ndim, shape, inputs, count, out, itemsizes)) {
        um_plan_collapse(&plan, UM_KERNEL_OUT);
    }
    status = um_call_begin(&call, err);
    if (status != UM_OK) {
        return status;
    }
    return um_call_end(&call, launch_plan(&work, &plan, err), deferred, wait, err);
}

/* --- copies and fills ---------------------------------------------------------------------------------------------------- */

static um_status check_itemsize(size_t itemsize, um_error *err) {
    if (itemsize >= 1 && itemsize <= 16 && (itemsize & (itemsize - 1)) == 0) {
        return UM_OK;
    }
    return um_error_set(err, UM_ERR_VALUE, "no kernel for elements of %zu bytes", itemsize);
}

static int log2_of(size_t power) {
    int log2 = 0;
    while (((size_t)1 << log2) < power) {
        log2++;
    }
    return log2;
}

static void set_copy(elementwise *work, size_t itemsize, size_t *itemsizes) {
    work->slot = UM_SLOT_COPIES + log2_of(itemsize) * 2;
    work->lanes = UM_VECTOR_BYTES / (unsigned)itemsize;
    for (int i = 0; i < UM_KERNEL_OPERANDS; i++) {
        itemsizes[i] = itemsize;
    }
}

um_status um_kernel_copy(um_context *ctx, um_stream *stream, int ndim, const int64_t *shape, size_t itemsize,
                         const um_operand *in, const um_operand *out, bool deferred, um_wait *wait, um_error *err) {
    *wait = UM_WAIT_NONE;
    um_status status = check_itemsize(itemsize, err);
    if (status != UM_OK || um_plan_count(ndim, shape) == 0) {
        return status;
    }
    um_call call;
    status = um_call_init(&call, ctx, stream, err);
    if (status != UM_OK) {
        return status;
    }
    um_call_add_operand(&call, in, ndim, shape, itemsize, false);
    um_call_add_operand(&call, out, ndim, shape, itemsize, true);

    static const unsigned char no_values[UM_KERNEL_OPERANDS - 1][16] = {{0}};
    size_t itemsizes[UM_KERNEL_OPERANDS] = {itemsize, 0, 0, itemsize};
    um_plan plan;
    if (!um_plan_init(&plan, ndim, shape, in, 1, out, itemsizes)) {
        um_plan_collapse(&plan, UM_KERNEL_OUT);
    }
    elementwise work = {.call = &call, .itemsizes = itemsizes, .scalars = false, .values = no_values};
    set_copy(&work, um_plan_resize_items(&plan, itemsize), itemsizes);
    status = um_call_begin(&call, err);
    if (status != UM_OK) {
        return status;
    }
    return um_call_end(&call, launch_plan(&work, &plan, err), deferred, wait, err);
}

/* Elements lie on multiples of `size` only, a fraction of theirs: one pass for each fraction. `value` is what the kernel fills with. */
static um_status fill_fractions(elementwise *work, um_plan *plan, size_t itemsize, size_t size,
                                const unsigned char *item, unsigned char *value, um_error *err) {
    for (size_t offset = 0; offset < itemsize; offset += size) {
        memcpy(value, item + offset, size);
        const um_status status = launch_plan(work, plan, err);
        if (status != UM_OK) {
            return status;
        }
        plan->data[UM_KERNEL_OUT] += size;
    }
    return UM_OK;
}

static um_status fill_plan(um_call *call, um_plan *plan, size_t itemsize, const unsigned char *item, um_error *err) {
    unsigned char values[UM_KERNEL_OPERANDS - 1][16] = {{0}};
    size_t itemsizes[UM_KERNEL_OPERANDS];
    elementwise work = {
        .call = call, .itemsizes = itemsizes, .scalars = false, .values = (const unsigned char (*)[16])values};
    uint64_t bits = (uint64_t)(uintptr_t)plan->data[UM_KERNEL_OUT];
    for (int d = 0; d < plan->ndim; d++) {
        bits |= (uint64_t)plan->strides[d][UM_KERNEL_OUT];
    }
    const size_t alignment = um_plan_alignment(bits);
    if (alignment < itemsize) {
        set_copy(&work, alignment, itemsizes);
        return fill_fractions(&work, plan, itemsize, alignment, item, values[0], err);
    }
    for (size_t offset = 0; offset < UM_VECTOR_BYTES; offset += itemsize) {
        memcpy(values[0] + offset, item, itemsize);
    }
    set_copy(&work, um_plan_resize_items(plan, itemsize), itemsizes);
    return launch_plan(&work, plan, err);
}

um_status um_kernel_fill(um_context *ctx, um_stream *stream, int ndim, const int64_t *shape, size_t itemsize,
                         const void *item, const um_operand *out, bool deferred, um_wait *wait, um_error *err) {
    *wait = UM_WAIT_NONE;
    um_status status = check_itemsize(itemsize, err);
    if (status != UM_OK || um_plan_count(ndim, shape) == 0) {
        return status;
    }
    um_call call;
    status = um_call_init(&call, ctx, stream, err);
    if (status != UM_OK) {
        return status;
    }
    um_call_add_operand(&call, out, ndim, shape, itemsize, true);
    const um_operand immediate = {.block = NULL};
    const size_t itemsizes[UM_KERNEL_OPERANDS] = {itemsize, 0, 0, itemsize};
    um_plan plan;
    if (!um_plan_init(&plan, ndim, shape, &immediate, 1, out, itemsizes)) {
        um_plan_collapse(&plan, UM_KERNEL_OUT);
    }
    status = um_call_begin(&call, err);
    if (status != UM_OK) {
        return status;
    }
    return um_call_end(&call, fill_plan(&call, &plan, itemsize, item, err), deferred, wait, err);
}

/* --- casts ---------------------------------------------------------------------------------------------------------------- */

/* The immediate as `to`, at *result. */
static void convert_immediate(const um_operand *in, um_dtype to, unsigned char result[8]) {
    union {
        float f32;
        double f64;
        int32_t i32;
        int64_t i64;
    } value = {.i64 = 0};
    memcpy(&value, &in->value, dtype_sizes[in->dtype]);
    switch ((int)in->dtype * UM_DTYPE_COUNT + (int)to) {
#define DTYPE_f32 UM_FLOAT32
#define DTYPE_f64 UM_FLOAT64
#define DTYPE_i32 UM_INT32
#define DTYPE_i64 UM_INT64
#define CAST(from, from_type, to_, to_type)                                                                            \
    case (int)DTYPE_##from *UM_DTYPE_COUNT + (int)DTYPE_##to_: value.to_ = um_cast_##from##_to_##to_(value.from); break;
        UM_FOR_EACH_CAST(CAST)
    default: /* the same type */ break;
    }
    memcpy(result, &value, 8);
}

um_status um_kernel_cast(um_context *ctx, um_stream *stream, int ndim, const int64_t *shape, const um_operand *in,
                         const um_operand *out, bool deferred, um_wait *wait, um_error *err) {
    const size_t itemsizes[UM_KERNEL_OPERANDS] = {dtype_sizes[in->dtype], 0, 0, dtype_sizes[out->dtype]};
    if (in->block == NULL) {
        unsigned char item[8];
        convert_immediate(in, out->dtype, item);
        return um_kernel_fill(ctx, stream, ndim, shape, itemsizes[UM_KERNEL_OUT], item, out, deferred, wait, err);
    }
    if (in->dtype == out->dtype) {
        return um_kernel_copy(ctx, stream, ndim, shape, itemsizes[0], in, out, deferred, wait, err);
    }
    *wait = UM_WAIT_NONE;
    if (um_plan_count(ndim, shape) == 0) {
        return UM_OK;
    }
    um_call call;
    um_status status = um_call_init(&call, ctx, stream, err);
    if (status == UM_OK) {
        status = check_aligned(in, ndim, shape, "cast", err);
    }
    if (status == UM_OK) {
        status = check_aligned(out, ndim, shape, "cast", err);
    }
    if (status != UM_OK) {
        return status;
    }
    um_call_add_operand(&call, in, ndim, shape, itemsizes[0], false);
    um_call_add_operand(&call, out, ndim, shape, itemsizes[UM_KERNEL_OUT], true);
    static const unsigned char no_values[UM_KERNEL_OPERANDS - 1][16] = {{0}};
    const size_t widest = itemsizes[0] > itemsizes[UM_KERNEL_OUT] ? itemsizes[0] : itemsizes[UM_KERNEL_OUT];
    elementwise work = {
        .call = &call,
        .slot = UM_SLOT_CASTS + ((int)in->dtype * UM_DTYPE_COUNT + (int)out->dtype) * 2,
        .itemsizes = itemsizes,
        .lanes = UM_VECTOR_BYTES / (unsigned)widest,
        .scalars = true,
        .values = no_values,
    };
    um_plan plan;
    if (!um_plan_init(&plan, ndim, shape, in, 1, out, itemsizes)) {
        um_plan_collapse(&plan, UM_KERNEL_OUT);
    }
    status = um_call_begin(&call, err);
    if (status != UM_OK) {
        return status;
    }
    return um_call_end(&call, launch_plan(&work, &plan, err), deferred, wait, err);
}
