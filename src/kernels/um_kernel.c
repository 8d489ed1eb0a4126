/* The element types, and calls of the operations of um_kernel_ops.h. */
#include "kernels/um_kernel.h"

#include <string.h>

#include "kernels/um_kernel_call.h"

typedef struct dtype_entry {
    size_t size;
    const char *name;
} dtype_entry;

static const dtype_entry dtype_entries[UM_DTYPE_COUNT] = {
#define UM_ENTRY(token, enumerator, name) [enumerator] = {sizeof(UM_TYPE(token)), name},
    UM_FOR_EACH_DTYPE(UM_ENTRY)
#undef UM_ENTRY
};

size_t um_dtype_size(um_dtype dtype) { return dtype_entries[dtype].size; }

const char *um_dtype_name(um_dtype dtype) { return dtype_entries[dtype].name; }

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
    const bool floating = input == UM_FLOAT32 || input == UM_FLOAT64;
    if (!floating && !((input == UM_INT32 || input == UM_INT64) && op_entries[op].integers)) {
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

/* --- calls ------------------------------------------------------------------------------------------------------ */

um_status um_kernel_elementwise(um_context *ctx, um_stream *stream, um_op op, int ndim, const int64_t *shape,
                                const um_operand *inputs, const um_operand *out, bool deferred, um_wait *wait,
                                um_error *err) {
    *wait = UM_WAIT_NONE;
    if (um_plan_count(ndim, shape) == 0) {
        return UM_OK;
    }
    const int count = op_entries[op].inputs;
    const um_dtype dtype = inputs[0].dtype;
    const size_t size = um_dtype_size(dtype);
    const size_t itemsizes[UM_KERNEL_OPERANDS] = {size, size, size, um_dtype_size(out->dtype)};
    unsigned char values[UM_KERNEL_OPERANDS - 1][16] = {{0}};
    um_dtype result;
    if (!um_op_has_loop(op, dtype, &result)) {
        return um_error_set(err, UM_ERR_TYPE, "%s has no kernel for %s", op_entries[op].name, um_dtype_name(dtype));
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
                                um_dtype_name(operand->dtype), um_dtype_name(i < count ? dtype : result));
        }
        status = um_call_check_aligned(operand, ndim, shape, op_entries[op].name, err);
        if (status != UM_OK) {
            return status;
        }
        if (operand->block == NULL) {
            memcpy(values[i], &operand->value, sizeof operand->value);
        }
        um_call_add_operand(&call, operand, ndim, shape, um_dtype_size(operand->dtype), i == count);
    }
    um_elementwise work = {
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
    return um_call_end(&call, um_elementwise_launch(&work, &plan, err), deferred, wait, err);
}
