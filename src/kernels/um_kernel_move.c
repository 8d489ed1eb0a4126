/* Copies, fills and casts. */
#include <string.h>

#include "kernels/um_kernel.h"
#include "kernels/um_kernel_call.h"

static const unsigned char no_values[UM_KERNEL_OPERANDS - 1][16] = {{0}};

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

static void set_copy(um_elementwise *work, size_t itemsize, size_t *itemsizes) {
    work->slot = UM_SLOT_COPIES + log2_of(itemsize) * 2;
    work->lanes = UM_VECTOR_BYTES / (unsigned)itemsize;
    for (int i = 0; i < UM_KERNEL_OPERANDS; i++) {
        itemsizes[i] = itemsize;
    }
}

static um_status launch_copy(um_call *call, int ndim, const int64_t *shape, size_t itemsize, const um_operand *in,
                             const um_operand *out, um_error *err) {
    size_t itemsizes[UM_KERNEL_OPERANDS] = {itemsize, 0, 0, itemsize};
    um_plan plan;
    if (!um_plan_init(&plan, ndim, shape, in, 1, out, itemsizes)) {
        um_plan_collapse(&plan, UM_KERNEL_OUT);
    }
    um_elementwise work = {.call = call, .itemsizes = itemsizes, .scalars = false, .values = no_values};
    set_copy(&work, um_plan_resize_items(&plan, itemsize), itemsizes);
    return um_elementwise_launch(&work, &plan, err);
}

/* Elements lie on multiples of `size` only, a fraction of theirs: one pass for each fraction. `value` is what the kernel fills with. */
static um_status fill_fractions(um_elementwise *work, um_plan *plan, size_t itemsize, size_t size,
                                const unsigned char *item, unsigned char *value, um_error *err) {
    for (size_t offset = 0; offset < itemsize; offset += size) {
        memcpy(value, item + offset, size);
        const um_status status = um_elementwise_launch(work, plan, err);
        if (status != UM_OK) {
            return status;
        }
        plan->data[UM_KERNEL_OUT] += size;
    }
    return UM_OK;
}

static um_status launch_fill(um_call *call, int ndim, const int64_t *shape, size_t itemsize, const unsigned char *item,
                             const um_operand *out, um_error *err) {
    const um_operand immediate = {.block = NULL};
    unsigned char values[UM_KERNEL_OPERANDS - 1][16] = {{0}};
    size_t itemsizes[UM_KERNEL_OPERANDS] = {itemsize, 0, 0, itemsize};
    um_plan plan;
    if (!um_plan_init(&plan, ndim, shape, &immediate, 1, out, itemsizes)) {
        um_plan_collapse(&plan, UM_KERNEL_OUT);
    }
    um_elementwise work = {
        .call = call, .itemsizes = itemsizes, .scalars = false, .values = (const unsigned char (*)[16])values};
    uint64_t bits = (uint64_t)(uintptr_t)plan.data[UM_KERNEL_OUT];
    for (int d = 0; d < plan.ndim; d++) {
        bits |= (uint64_t)plan.strides[d][UM_KERNEL_OUT];
    }
    const size_t alignment = um_plan_alignment(bits);
    if (alignment < itemsize) {
        set_copy(&work, alignment, itemsizes);
        return fill_fractions(&work, &plan, itemsize, alignment, item, values[0], err);
    }
    for (size_t offset = 0; offset < UM_VECTOR_BYTES; offset += itemsize) {
        memcpy(values[0] + offset, item, itemsize);
    }
    set_copy(&work, um_plan_resize_items(&plan, itemsize), itemsizes);
    return um_elementwise_launch(&work, &plan, err);
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
    status = um_call_begin(&call, err);
    if (status != UM_OK) {
        return status;
    }
    return um_call_end(&call, launch_copy(&call, ndim, shape, itemsize, in, out, err), deferred, wait, err);
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
    status = um_call_begin(&call, err);
    if (status != UM_OK) {
        return status;
    }
    return um_call_end(&call, launch_fill(&call, ndim, shape, itemsize, item, out, err), deferred, wait, err);
}

/* --- casts ---------------------------------------------------------------------------------------------------------------- */

static bool is_integer(um_dtype dtype) { return dtype >= UM_INT8 && dtype <= UM_UINT64; }

static bool is_complex(um_dtype dtype) { return dtype == UM_COMPLEX64 || dtype == UM_COMPLEX128; }

/* The type of a complex number's parts. */
static um_dtype part_dtype(um_dtype dtype) { return dtype == UM_COMPLEX64 ? UM_FLOAT32 : UM_FLOAT64; }

static um_dtype unsigned_dtype(um_dtype dtype) {
    switch (dtype) {
    case UM_INT8: return UM_UINT8;
    case UM_INT16: return UM_UINT16;
    case UM_INT32: return UM_UINT32;
    case UM_INT64: return UM_UINT64;
    default: return dtype;
    }
}

/* The types whose kernel makes this cast. They are the same where a copy does. Of complex types only those that both are. */
static void kernel_dtypes(um_dtype *from, um_dtype *to) {
    if (*from == *to) {
        return;
    }
    *from = *from == UM_BOOL ? UM_UINT8 : *from;
    if (*to == UM_BOOL) {
        *from = unsigned_dtype(*from);
    } else if (is_integer(*to) && (is_integer(*from) || um_dtype_size(*to) < 4)) {
        *to = unsigned_dtype(*to);
        if (is_integer(*from) && um_dtype_size(*from) >= um_dtype_size(*to)) {
            *from = unsigned_dtype(*from);
        }
    }
}

static um_value convert(um_dtype from, um_dtype to, um_value in) {
    um_value out = {.c128 = {0, 0}};
    if (is_complex(from) && !is_complex(to) && to != UM_BOOL) { /* the real part is first */
        return convert(part_dtype(from), to, in);
    }
    if (is_complex(to) && !is_complex(from)) {
        const um_value real = convert(from, part_dtype(to), in);
        memcpy(&out, &real, um_dtype_size(part_dtype(to)));
        return out;
    }
    kernel_dtypes(&from, &to);
    switch ((int)from * UM_DTYPE_COUNT + (int)to) {
#define CAST(from_, to_)                                                                                               \
    case (int)UM_DTYPE_##from_ *UM_DTYPE_COUNT + (int)UM_DTYPE_##to_:                                                  \
        out.to_ = um_cast_##from_##_to_##to_(in.from_);                                                                \
        return out;
        UM_FOR_EACH_CAST(CAST)
#undef CAST
    default: return in; /* the same type */
    }
}

static um_status launch_cast(um_call *call, int ndim, const int64_t *shape, const um_operand *in, const um_operand *out,
                             um_error *err) {
    um_dtype from = in->dtype, to = out->dtype;
    um_operand part;
    if (in->block == NULL) {
        const um_value value = convert(from, to, in->value);
        return launch_fill(call, ndim, shape, um_dtype_size(to), (const unsigned char *)&value, out, err);
    }
    if (is_complex(from) && !is_complex(to) && to != UM_BOOL) { /* the real part */
        part = *in;
        part.dtype = part_dtype(from);
        return launch_cast(call, ndim, shape, &part, out, err);
    }
    if (is_complex(to) && !is_complex(from)) {
        static const unsigned char zero[8] = {0};
        part = *out;
        part.dtype = part_dtype(to);
        const um_status status = launch_cast(call, ndim, shape, in, &part, err);
        if (status != UM_OK) {
            return status;
        }
        part.data += um_dtype_size(part.dtype);
        return launch_fill(call, ndim, shape, um_dtype_size(part.dtype), zero, &part, err);
    }
    kernel_dtypes(&from, &to);
    if (from == to) {
        return launch_copy(call, ndim, shape, um_dtype_size(from), in, out, err);
    }
    const size_t in_size = um_dtype_size(from), out_size = um_dtype_size(to);
    const size_t itemsizes[UM_KERNEL_OPERANDS] = {in_size, 0, 0, out_size};
    um_elementwise work = {
        .call = call,
        .slot = UM_SLOT_CASTS + ((int)from * UM_DTYPE_COUNT + (int)to) * 2,
        .itemsizes = itemsizes,
        .lanes = UM_VECTOR_BYTES / (unsigned)(in_size > out_size ? in_size : out_size),
        .scalars = true,
        .values = no_values,
    };
    um_plan plan;
    if (!um_plan_init(&plan, ndim, shape, in, 1, out, itemsizes)) {
        um_plan_collapse(&plan, UM_KERNEL_OUT);
    }
    return um_elementwise_launch(&work, &plan, err);
}

um_status um_kernel_cast(um_context *ctx, um_stream *stream, int ndim, const int64_t *shape, const um_operand *in,
                         const um_operand *out, bool deferred, um_wait *wait, um_error *err) {
    *wait = UM_WAIT_NONE;
    if (um_plan_count(ndim, shape) == 0) {
        return UM_OK;
    }
    um_call call;
    um_status status = um_call_init(&call, ctx, stream, err);
    /* Copies and fills take any address, and parts of complex numbers lie on multiples of theirs if these do. */
    if (status == UM_OK && in->block != NULL && in->dtype != out->dtype) {
        status = um_call_check_aligned(in, ndim, shape, "cast", err);
        if (status == UM_OK) {
            status = um_call_check_aligned(out, ndim, shape, "cast", err);
        }
    }
    if (status != UM_OK) {
        return status;
    }
    um_call_add_operand(&call, in, ndim, shape, um_dtype_size(in->dtype), false);
    um_call_add_operand(&call, out, ndim, shape, um_dtype_size(out->dtype), true);
    status = um_call_begin(&call, err);
    if (status != UM_OK) {
        return status;
    }
    return um_call_end(&call, launch_cast(&call, ndim, shape, in, out, err), deferred, wait, err);
}
