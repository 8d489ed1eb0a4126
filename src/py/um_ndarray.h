/* umem.ndarray: a strided, typed window onto a block. Shape, dtype and strides never change; contents and placement do. */
#ifndef UM_NDARRAY_H
#define UM_NDARRAY_H

#include "py/um_state.h"

#include "core/um_coherence.h"

#define UM_INLINE_NDIM 4

typedef struct um_ndarray {
    PyObject_HEAD um_block *block; /* owned */
    char *data;                    /* first element; inside the block, or its address when there are no elements */
    PyArray_Descr *descr;          /* owned */
    PyObject *base;                /* owned: the array this is a view of, or the foreign owner, or NULL */
    PyObject *weakrefs;
    /* Owned: what is copied for __cuda_array_interface__, or NULL before. Used in critical sections on the array. */
    PyObject *cuda_interface;
    int ndim;
    _Atomic(bool) writeable; /* changes at any time: a function that needs it twice reads it once */
    bool owns_data;          /* the block was made for this array */
    bool may_write;          /* what writeable was at first: the memory may be written, whatever the array says now */
    npy_intp *shape;         /* ndim entries; points into inline_dims or to one PyMem block with strides behind it */
    npy_intp *strides;       /* bytes */
    npy_intp inline_dims[2 * UM_INLINE_NDIM];
} um_ndarray;

static inline bool um_ndarray_check(const um_state *state, PyObject *object) {
    return Py_IS_TYPE(object, state->ndarray_type);
}

static inline bool um_ndarray_is_writeable(const um_ndarray *array) {
    return atomic_load_explicit(&array->writeable, memory_order_relaxed);
}
static inline void um_ndarray_set_writeable(um_ndarray *array, bool writeable) {
    atomic_store_explicit(&array->writeable, writeable, memory_order_relaxed);
}

/* Lengths or strides; unlike memcpy it takes NULL for none. The first few one by one: compilers make a block copy of the plain loop, which
 * takes longer to begin than the rest of a new array's bookkeeping. */
static inline void um_copy_dims(npy_intp *to, const npy_intp *from, int count) {
    for (int i = 0; i < UM_INLINE_NDIM; i++) {
        if (i == count) {
            return;
        }
        to[i] = from[i];
    }
    for (int i = UM_INLINE_NDIM; i < count; i++) {
        to[i] = from[i];
    }
}

/* --- um_ndarray.c ----------------------------------------------------------------------------------------------------- */

/* A new array over memory. Steals `block` and `descr`, also on failure; `base` (may be NULL) is borrowed. strides NULL: C order. */
um_ndarray *um_ndarray_new(um_state *state, um_block *block, char *data, PyArray_Descr *descr, int ndim,
                           const npy_intp *shape, const npy_intp *strides, bool writeable, PyObject *base);
void um_ndarray_free_spares(um_state *state);
/* A view of the same memory with the same dtype; its base is the array, or the array that this one is a view of. */
um_ndarray *um_ndarray_view(um_state *state, um_ndarray *array, char *data, int ndim, const npy_intp *shape,
                            const npy_intp *strides);
/* New memory, contents undefined. Steals `descr`, also on failure. order: 'C' or 'F'. When out of memory it
 * collects garbage, then calls what umem.on_out_of_memory registered, and tries again. */
um_ndarray *um_ndarray_empty(um_state *state, PyArray_Descr *descr, int ndim, const npy_intp *shape, char order,
                             int device, um_location home);
/* What is the base of views of the array. Borrowed. */
PyObject *um_ndarray_root(um_state *state, um_ndarray *array);
npy_intp um_ndarray_size(const um_ndarray *array);   /* elements */
npy_intp um_ndarray_nbytes(const um_ndarray *array); /* elements * itemsize */
bool um_ndarray_is_c_contiguous(const um_ndarray *array);
bool um_ndarray_is_f_contiguous(const um_ndarray *array);
bool um_ndarray_is_aligned(const um_ndarray *array);
/* Lowest and one past the highest byte an array touches, as offset and size within its block (size 0 when empty). */
void um_ndarray_extent(const um_ndarray *array, size_t *offset, size_t *size);
PyObject *um_tuple_of_dims(int count, const npy_intp *dims); /* new reference */
/* Refuses dtypes umem cannot store (Python objects, variable-width strings): -1 with TypeError. */
int um_check_dtype(PyArray_Descr *descr);

/* --- um_host.c: the host side -------------------------------------------------------------------------------------------- */

/* Waits until the host may touch the memory (rule 2), the GIL released while it blocks. -1 with an exception set. */
int um_ndarray_host_access(um_state *state, um_ndarray *array);
/* Ends a wait that a kernel or export call returned; -1 with an exception set. */
int um_finish_wait(um_state *state, um_wait *wait);
/* A NumPy array over the same memory for use inside one C call: neither waits nor counts as a host view, keeps nothing alive and must not
 * escape. New reference. */
PyArrayObject *um_ndarray_borrow_numpy(um_ndarray *array);
/* Name of the capsule that a NumPy array which may escape has as its base: it holds the umem array and counts as a host view. */
#define UM_HOST_VIEW "umem.host_view"
/* As um_ndarray_borrow_numpy, for use inside one C call in which NumPy reads or writes the elements: waited for, and a live host view while
 * the call lasts, since NumPy may let other threads run. New reference. */
PyArrayObject *um_ndarray_use_numpy(um_state *state, um_ndarray *array);
/* A NumPy array over the same memory that may escape: waited for, counted as a live host view until it dies. New reference. */
PyObject *um_ndarray_to_numpy(um_state *state, um_ndarray *array);
/* A NumPy copy of the elements (C order) that moves no page of GPU-resident data. New reference. */
PyObject *um_ndarray_read(um_state *state, um_ndarray *array);
/* A umem view from a NumPy view made over um_ndarray_borrow_numpy(parent): shares the block, base is the parent. */
um_ndarray *um_ndarray_from_view(um_state *state, um_ndarray *parent, PyArrayObject *view);

/* Copies `size` bytes at `data` (inside the array's block) to host memory after waiting, moving no page of GPU-resident data. -1 with an
 * exception set. */
int um_ndarray_read_bytes(um_state *state, um_ndarray *array, const char *data, size_t size, void *out);

/* --- um_assign.c: writing values into arrays ------------------------------------------------------------------------------ */

/* array[...] = value, on the GPU where kernels can do it. The array is known to be writeable. -1 with an exception set. */
int um_ndarray_assign(um_state *state, um_ndarray *array, PyObject *value);
/* array[...] = the one element that `value` is. */
int um_ndarray_assign_element(um_state *state, um_ndarray *array, PyObject *value);
/* A contiguous copy in new memory of the same device. order: 'C' or 'F'. New reference. */
um_ndarray *um_ndarray_copy(um_state *state, um_ndarray *array, char order);
PyObject *um_ndarray_fill(PyObject *self, PyObject *value);
/* -1 with NumPy's ValueError when the array is read-only. */
int um_ndarray_check_writeable(const um_ndarray *array);

/* --- um_scalar.c: single elements ------------------------------------------------------------------------------------------ */

PyObject *um_ndarray_element(um_state *state, um_ndarray *array,
                             char *data); /* NumPy scalar of the element at `data` */
PyObject *um_ndarray_item(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
int um_ndarray_bool(PyObject *self);
PyObject *um_ndarray_int(PyObject *self);
PyObject *um_ndarray_float(PyObject *self);
PyObject *um_ndarray_index(PyObject *self);
PyObject *um_ndarray_complex(PyObject *self, PyObject *unused);

/* --- um_flags.c ------------------------------------------------------------------------------------------------------------ */

int um_flags_add(PyObject *module, um_state *state);
PyObject *um_ndarray_get_flags(PyObject *self, void *closure);

/* --- um_format.c: how the buffer protocol names dtypes ---------------------------------------------------------------------- */

/* Format of aligned native numbers; NULL for other dtypes. */
const char *um_ndarray_simple_format(const um_ndarray *array);
/* Format of any dtype that has one, to be freed with PyMem_Free; NULL with an exception set. */
char *um_ndarray_format(um_ndarray *array);

/* --- um_index.c ------------------------------------------------------------------------------------------------------------ */

PyObject *um_ndarray_subscript(PyObject *self, PyObject *key);
int um_ndarray_ass_subscript(PyObject *self, PyObject *key, PyObject *value);
PyObject *um_ndarray_sq_item(PyObject *self, Py_ssize_t index);
int um_ndarray_sq_contains(PyObject *self, PyObject *value);

/* Parts of the type that live in files of their own. */
int um_ndarray_getbuffer(PyObject *self, Py_buffer *view, int flags); /* um_buffer.c */
void um_ndarray_releasebuffer(PyObject *self, Py_buffer *view);       /* um_buffer.c */
PyObject *um_ndarray_item_scalar(um_state *state,
                                 um_ndarray *array); /* um_scalar.c: 0-d → NumPy scalar, reading only its bytes */
PyObject *um_ndarray_get_array_interface(PyObject *self, void *closure);      /* um_interface.c */
PyObject *um_ndarray_get_cuda_array_interface(PyObject *self, void *closure); /* um_interface.c */
PyObject *um_ndarray_get_array_struct(PyObject *self, void *closure);         /* um_array_struct.c */
PyObject *um_ndarray_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames);                       /* um_dlpack_export.c */
PyObject *um_ndarray_dlpack_device(PyObject *self, PyObject *unused); /* um_dlpack_export.c */
PyObject *um_ndarray_on(PyObject *self, PyObject *where);             /* um_exporter.c */
/* um_placing.c */
PyObject *um_ndarray_prefetch(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *um_ndarray_advise(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *um_ndarray_discard(PyObject *self, PyObject *unused);
PyObject *um_ndarray_get_home(PyObject *self, void *closure);
int um_ndarray_set_home(PyObject *self, PyObject *value, void *closure);
/* um_shape.c: reshape, ravel, transpose, squeeze, view, T as NumPy has them */
extern PyMethodDef um_ndarray_shape_methods[];
PyObject *um_ndarray_get_T(PyObject *self, void *closure);

#endif
