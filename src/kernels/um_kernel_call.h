/* The frame of every call: announce the memory, launch kernels by slot, note the use. */
#ifndef UM_KERNEL_CALL_H
#define UM_KERNEL_CALL_H

#include "kernels/um_evaluate_abi.h"
#include "kernels/um_kernel_plan.h"
#include "kernels/um_kernel_random.h"

enum {
#define UM_ENUMERATOR(name) UM_REDUCER_##name,
    UM_FOR_EACH_REDUCER(UM_ENUMERATOR)
#undef UM_ENUMERATOR
        UM_REDUCER_COUNT,
};

/* Kernels by number: um_kernel_name(slot) is the symbol, and the context keeps the loaded handle under the same number. */
enum {
    UM_SLOT_OPS = 0,                                                           /* op, dtype, {elem, vec} */
    UM_SLOT_CASTS = UM_SLOT_OPS + UM_OP_COUNT * UM_DTYPE_COUNT * 2,            /* from, to, {elem, vec} */
    UM_SLOT_COPIES = UM_SLOT_CASTS + UM_DTYPE_COUNT * UM_DTYPE_COUNT * 2,      /* log2 of itemsize, {elem, vec} */
    UM_SLOT_WHERES = UM_SLOT_COPIES + 5 * 2,                                   /* log2 of itemsize, {elem, vec} */
    UM_SLOT_REDUCERS = UM_SLOT_WHERES + 5 * 2,                                 /* reducer, dtype, {elem, row, col} */
    UM_SLOT_RANDOM = UM_SLOT_REDUCERS + UM_REDUCER_COUNT * UM_DTYPE_COUNT * 3, /* um_draw */
    UM_SLOT_EVALUATE = UM_SLOT_RANDOM + UM_DRAW_COUNT,                         /* machines of UM_FOR_EACH_EVALUATE */
    UM_SLOT_COUNT = UM_SLOT_EVALUATE + 3,
};

#define UM_SLOT_OP(op, dtype)          (UM_SLOT_OPS + ((op) * UM_DTYPE_COUNT + (dtype)) * 2)
#define UM_SLOT_REDUCE(reducer, dtype) (UM_SLOT_REDUCERS + ((reducer) * UM_DTYPE_COUNT + (dtype)) * 3)

/* The enumerators of um_dtype by token. */
enum {
#define UM_ENUMERATOR(token, enumerator, name) UM_DTYPE_##token = enumerator,
    UM_FOR_EACH_DTYPE(UM_ENUMERATOR)
#undef UM_ENUMERATOR
};

/* NULL for slots without a kernel. */
const char *um_kernel_name(int slot);

/* Most accesses of a call: the inputs of a program, its output. */
#define UM_CALL_ACCESSES (UM_EVALUATE_INPUTS + 1)

typedef struct um_call {
    um_context *ctx;
    um_stream *stream; /* borrowed */
    um_backend *backend;
    int device;
    um_stream_handle handle;
    bool launched;         /* at least one kernel is on the stream */
    unsigned shared_bytes; /* dynamic shared memory of its kernels, at first 0 */
    size_t access_count;
    um_access accesses[UM_CALL_ACCESSES];
} um_call;

/* Fails with UM_ERR_UNSUPPORTED on a backend without kernels. */
UM_MUST_CHECK um_status um_call_init(um_call *call, um_context *ctx, um_stream *stream, um_error *err);
/* Notes the memory of an operand; immediates are skipped. */
void um_call_add_operand(um_call *call, const um_operand *operand, int ndim, const int64_t *shape, size_t itemsize,
                         bool write);
/* UM_ERR_VALUE unless um_kernel_is_aligned; `what` goes into the message. */
UM_MUST_CHECK um_status um_call_check_aligned(const um_operand *operand, int ndim, const int64_t *shape,
                                              const char *what, um_error *err);
void um_call_add_block(um_call *call, um_block *block, bool write);

/* Orders the stream behind other users of the memory. um_call_end must follow if it succeeds. */
UM_MUST_CHECK um_status um_call_begin(um_call *call, um_error *err);
/* `params` is the kernel's one parameter. */
UM_MUST_CHECK um_status um_call_launch(um_call *call, int slot, void *params, unsigned grid_x, unsigned grid_y,
                                       um_error *err);
/* Ends the call; `status` is that of what was done since um_call_begin, and is returned if it is a failure. If kernels had been
 * launched before the failure, the memory is noted as in use, and waited for where the caller would have had to. */
UM_MUST_CHECK um_status um_call_end(um_call *call, um_status status, bool deferred, um_wait *wait, um_error *err);

/* An elementwise kernel to run over a plan. */
typedef struct um_elementwise {
    um_call *call;
    int slot; /* of *_elem; *_vec follows it */
    const size_t *itemsizes;
    unsigned lanes; /* elements of a *_vec unit; 1: there is no *_vec */
    bool scalars;   /* *_vec takes operands that have one value per unit */
    const unsigned char (*values)[16];
} um_elementwise;

/* Launches as often as the plan needs. */
UM_MUST_CHECK um_status um_elementwise_launch(um_elementwise *work, um_plan *plan, um_error *err);

#endif
