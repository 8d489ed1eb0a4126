/* From Python's arrays and scalars to the operands of a kernel, and the launch itself. CUDA backend only. */
#ifndef UM_RUN_H
#define UM_RUN_H

#include "py/um_ndarray.h"

#include "kernels/um_kernel.h"

/* True when the descriptor is one of the kernels' types in native byte order. */
bool um_dtype_from_descr(PyArray_Descr *descr, um_dtype *out);
/* New reference, or NULL with an exception set. */
PyArray_Descr *um_dtype_to_descr(um_dtype dtype);

/* A Python number that NEP 50 lets take the type, or a NumPy scalar of exactly the type. False, with no exception
 * set, for anything else: a value that does not fit, another type. */
bool um_immediate_from_object(PyObject *object, um_dtype dtype, um_operand *out);

/* Describes the array as broadcast to `shape`; `strides` (ndim entries) is filled and must outlive the operand. False
 * when it cannot be broadcast. */
bool um_operand_from_array(um_ndarray *array, um_dtype dtype, int ndim, const int64_t *shape, int64_t *strides,
                           um_operand *out);
/* Whether address and strides are multiples of `unit` bytes (a power of two), as kernels with such accesses need. */
bool um_ndarray_is_aligned_to(const um_ndarray *array, size_t unit);
/* Whether elements may share memory with others of the array: a stride of 0, windows that overlap. No is certain, yes nearly. */
bool um_ndarray_repeats(const um_ndarray *array);

/* What a launch needs besides its operands. */
typedef struct um_launch_site {
    um_context *ctx;   /* borrowed */
    um_stream *stream; /* owned until um_launch_finish */
    bool deferred;
    um_turn turn; /* begun by um_launch_begin, ended by um_launch_finish */
} um_launch_site;

/* The stream for work on `device`. -1 with an exception set. */
int um_launch_prepare(um_state *state, int device, um_launch_site *site);
/* Goes before the launch, which blocks when the driver's queue is full and when it loads the kernel: releases the GIL, or takes the turn. */
void um_launch_begin(um_state *state, um_launch_site *site);
/* Takes the GIL back, turns the launch's status into an exception or waits as rule 3 asks, and releases the site. -1 with an exception set. */
int um_launch_finish(um_state *state, um_launch_site *site, um_status status, um_wait *wait, const um_error *err);
/* um_kernel_elementwise on `device` with all of that, the GIL released. -1 with an exception set. */
int um_run_elementwise(um_state *state, int device, um_op op, int ndim, const int64_t *shape, const um_operand *inputs,
                       const um_operand *out);

/* Arguments of the functions of um_run.c and um_reduce.c; `argument` is its name. -1 or NULL with an exception set. */
int um_check_nargs(const char *function, Py_ssize_t nargs, Py_ssize_t expected);
um_ndarray *um_array_argument(um_state *state, PyObject *object, const char *argument); /* borrowed */
int um_check_operand_dtype(um_ndarray *array, const char *argument, um_dtype *out);
int um_check_writable(const um_ndarray *array, const char *argument);

int um_reduce_add(PyObject *module);               /* called by um_run_add */
int um_run_add(PyObject *module, um_state *state); /* called by um_functions_add */

#endif
