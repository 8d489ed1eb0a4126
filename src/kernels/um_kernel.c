/* The element types, and calls of the operations of um_kernel_ops.h. */
#include "kernels/um_kernel.h"

#include <string.h>

#include "kernels/um_kernel_call.h"
#include "kernels/um_kernel_loops.h"

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

/* What an operation does with a type: entries of um_kernel_ops.h. */
typedef enum loop_form {
    LOOP_NONE,
    LOOP_KERNEL,
    LOOP_UNSIGNED,
    LOOP_AS,
    LOOP_SWAP,
    LOOP_ROTATE,
    LOOP_COPY,
    LOOP_FILL
} loop_form;

typedef struct loop_entry {
    uint8_t form;
    uint8_t argument; /* AS, SWAP, ROTATE: the other operation; FILL: the value */
    uint8_t result;   /* um_dtype; KERNEL, COPY, FILL */
} loop_entry;

_Static_assert((int)UM_OP_COUNT <= UINT8_MAX, "operations have numbers of 8 bits");

static const loop_entry loop_entries[UM_OP_COUNT][UM_DTYPE_COUNT] = {
#define UM_FORM_NONE(weight, name, inputs, token, none)
#define UM_LOOP(name, token, ...)                             [UM_OP_##name][UM_DTYPE_##token] = {__VA_ARGS__},
#define UM_FORM_SAME(weight, name, inputs, token, expression) UM_LOOP(name, token, LOOP_KERNEL, 0, UM_DTYPE_##token)
#define UM_FORM_WIDE(weight, name, inputs, token, expression)                                                          \
    UM_WIDE_##token(UM_FORM_SAME(weight, name, inputs, token, 0))
#define UM_FORM_TRUTH(weight, name, inputs, token, expression) UM_LOOP(name, token, LOOP_KERNEL, 0, UM_BOOL)
#define UM_FORM_REAL(weight, name, inputs, token, expression)                                                          \
    UM_LOOP(name, token, LOOP_KERNEL, 0, (int)UM_DTYPE_##token == (int)UM_COMPLEX64 ? UM_FLOAT32 : UM_FLOAT64)
#define UM_FORM_UNSIGNED(weight, name, inputs, token, none) UM_LOOP(name, token, LOOP_UNSIGNED, 0, 0)
#define UM_FORM_AS(weight, name, inputs, token, other)      UM_LOOP(name, token, LOOP_AS, UM_OP_##other, 0)
#define UM_FORM_SWAP(weight, name, inputs, token, other)    UM_LOOP(name, token, LOOP_SWAP, UM_OP_##other, 0)
#define UM_FORM_ROTATE(weight, name, inputs, token, other)  UM_LOOP(name, token, LOOP_ROTATE, UM_OP_##other, 0)
#define UM_FORM_COPY(weight, name, inputs, token, none)     UM_LOOP(name, token, LOOP_COPY, 0, UM_DTYPE_##token)
#define UM_FORM_YES(weight, name, inputs, token, none)      UM_LOOP(name, token, LOOP_FILL, 1, UM_BOOL)
#define UM_FORM_NO(weight, name, inputs, token, none)       UM_LOOP(name, token, LOOP_FILL, 0, UM_BOOL)
#define UM_OP                                               UM_FOR_EACH_LOOP
#include "kernels/um_kernel_ops.h"
#undef UM_OP
};

typedef struct op_entry {
    const char *name;
    int inputs;
} op_entry;

static const op_entry op_entries[UM_OP_COUNT] = {
#define UM_OP(weight, name, inputs, ...) [UM_OP_##name] = {#name, inputs},
#include "kernels/um_kernel_ops.h"
#undef UM_OP
};

#define UM_OP(weight, name, inputs, ...)                                                                               \
    _Static_assert((inputs) >= 1 && (inputs) <= UM_MAX_INPUTS, #name " has too many inputs");
#include "kernels/um_kernel_ops.h"
#undef UM_OP

const char *um_op_name(um_op op) { return op_entries[op].name; }

int um_op_input_count(um_op op) { return op_entries[op].inputs; }

/* A loop as what runs it: another operation's kernel, perhaps, or that of the unsigned type. */
typedef struct loop {
    loop_form form; /* NONE, KERNEL, COPY or FILL */
    um_op op;       /* whose kernel */
    um_dtype dtype; /* of the kernel */
    um_dtype result;
    bool fill;
    int order[UM_MAX_INPUTS]; /* input i of the kernel is the operation's input order[i] */
} loop;

static void find_loop(um_op op, um_dtype input, loop *out) {
    static const int orders[][UM_MAX_INPUTS] = {{0, 1, 2}, {1, 0, 2}, {1, 2, 0}};
    const int *order = orders[0];
    um_dtype dtype = input;
    const loop_entry *entry = &loop_entries[op][dtype];
    for (;;) {
        if (entry->form == LOOP_UNSIGNED) {
            dtype = (um_dtype)(dtype + 1); /* follows the signed one */
        } else if (entry->form == LOOP_AS || entry->form == LOOP_SWAP || entry->form == LOOP_ROTATE) {
            order = entry->form == LOOP_SWAP ? orders[1] : entry->form == LOOP_ROTATE ? orders[2] : order;
            op = (um_op)entry->argument;
        } else {
            break;
        }
        entry = &loop_entries[op][dtype];
    }
    out->form = (loop_form)entry->form;
    out->op = op;
    out->dtype = dtype;
    out->result = entry->result == dtype ? input : (um_dtype)entry->result;
    out->fill = entry->argument != 0;
    memcpy(out->order, order, sizeof out->order);
}

bool um_op_has_loop(um_op op, um_dtype input, um_dtype *result) {
    loop found;
    find_loop(op, input, &found);
    *result = found.result;
    return found.form != LOOP_NONE;
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

static um_status check_operands(um_op op, int ndim, const int64_t *shape, const um_operand *inputs,
                                const um_operand *out, const um_dtype *dtypes, um_error *err) {
    const int count = op_entries[op].inputs;
    for (int i = 0; i <= count; i++) {
        const um_operand *operand = i < count ? &inputs[i] : out;
        const um_dtype dtype = dtypes[i < count ? i : UM_KERNEL_OUT];
        if (operand->dtype != dtype) {
            return um_error_set(err, UM_ERR_TYPE, "%s: operand %d is %s, the loop's type is %s", op_entries[op].name, i,
                                um_dtype_name(operand->dtype), um_dtype_name(dtype));
        }
        const um_status status = um_call_check_aligned(operand, ndim, shape, op_entries[op].name, err);
        if (status != UM_OK) {
            return status;
        }
    }
    return UM_OK;
}

/* Runs the kernel `slot` on `count` inputs. */
static um_status run_kernel(um_call *call, int slot, int count, int ndim, const int64_t *shape,
                            const um_operand *inputs, const um_operand *out, bool deferred, um_wait *wait,
                            um_error *err) {
    size_t itemsizes[UM_KERNEL_OPERANDS] = {0};
    size_t widest = itemsizes[UM_KERNEL_OUT] = um_dtype_size(out->dtype);
    unsigned char values[UM_KERNEL_OPERANDS - 1][16] = {{0}};
    for (int i = 0; i < count; i++) {
        itemsizes[i] = um_dtype_size(inputs[i].dtype);
        widest = itemsizes[i] > widest ? itemsizes[i] : widest;
        if (inputs[i].block == NULL) {
            memcpy(values[i], &inputs[i].value, sizeof inputs[i].value);
        }
        um_call_add_operand(call, &inputs[i], ndim, shape, itemsizes[i], false);
    }
    um_call_add_operand(call, out, ndim, shape, itemsizes[UM_KERNEL_OUT], true);
    um_elementwise work = {
        .call = call,
        .slot = slot,
        .itemsizes = itemsizes,
        .lanes = um_kernel_name(slot + 1) != NULL ? UM_VECTOR_BYTES / (unsigned)widest : 1,
        .scalars = true,
        .values = (const unsigned char (*)[16])values,
    };
    um_plan plan;
    if (!um_plan_init(&plan, ndim, shape, inputs, count, out, itemsizes)) {
        um_plan_collapse(&plan, UM_KERNEL_OUT);
    }
    const um_status status = um_call_begin(call, err);
    if (status != UM_OK) {
        return status;
    }
    return um_call_end(call, um_elementwise_launch(&work, &plan, err), deferred, wait, err);
}

um_status um_kernel_elementwise(um_context *ctx, um_stream *stream, um_op op, int ndim, const int64_t *shape,
                                const um_operand *inputs, const um_operand *out, bool deferred, um_wait *wait,
                                um_error *err) {
    *wait = UM_WAIT_NONE;
    if (um_plan_count(ndim, shape) == 0) {
        return UM_OK;
    }
    const um_dtype dtype = inputs[0].dtype;
    loop found;
    find_loop(op, dtype, &found);
    if (found.form == LOOP_NONE) {
        return um_error_set(err, UM_ERR_TYPE, "%s has no kernel for %s", op_entries[op].name, um_dtype_name(dtype));
    }
    const um_dtype dtypes[UM_KERNEL_OPERANDS] = {dtype, dtype, dtype, found.result};
    um_call call;
    um_status status = um_call_init(&call, ctx, stream, err);
    if (status == UM_OK) {
        status = check_operands(op, ndim, shape, inputs, out, dtypes, err);
    }
    if (status != UM_OK) {
        return status;
    }
    if (found.form == LOOP_COPY) {
        return um_kernel_cast(ctx, stream, ndim, shape, &inputs[0], out, deferred, wait, err);
    }
    if (found.form == LOOP_FILL) {
        const unsigned char item = found.fill ? 1 : 0;
        return um_kernel_fill(ctx, stream, ndim, shape, 1, &item, out, deferred, wait, err);
    }
    um_operand ordered[UM_MAX_INPUTS];
    for (int i = 0; i < op_entries[op].inputs; i++) {
        ordered[i] = inputs[found.order[i]];
    }
    return run_kernel(&call, UM_SLOT_OP((int)found.op, (int)found.dtype), op_entries[op].inputs, ndim, shape, ordered,
                      out, deferred, wait, err);
}

um_status um_kernel_where(um_context *ctx, um_stream *stream, int ndim, const int64_t *shape, const um_operand *inputs,
                          const um_operand *out, bool deferred, um_wait *wait, um_error *err) {
    *wait = UM_WAIT_NONE;
    if (um_plan_count(ndim, shape) == 0) {
        return UM_OK;
    }
    um_call call;
    um_status status = um_call_init(&call, ctx, stream, err);
    const um_operand *operands[] = {&inputs[0], &inputs[1], &inputs[2], out};
    for (int i = 0; i < 4 && status == UM_OK; i++) {
        const um_dtype dtype = i == 0 ? UM_BOOL : out->dtype;
        if (operands[i]->dtype != dtype) {
            status = um_error_set(err, UM_ERR_TYPE, "where: operand %d is %s, not %s", i,
                                  um_dtype_name(operands[i]->dtype), um_dtype_name(dtype));
        } else {
            status = um_call_check_aligned(operands[i], ndim, shape, "where", err);
        }
    }
    if (status != UM_OK) {
        return status;
    }
    int log2 = 0;
    while ((size_t)1 << log2 < um_dtype_size(out->dtype)) {
        log2++;
    }
    return run_kernel(&call, UM_SLOT_WHERES + log2 * 2, 3, ndim, shape, inputs, out, deferred, wait, err);
}
