/* Arrays that go to other libraries and come from them: what the files about it share. */
#ifndef UM_EXCHANGE_H
#define UM_EXCHANGE_H

#include "py/um_ndarray.h"

#include "core/um_transfer.h" /* UM_MAX_NDIM */

/* --- um_foreign.c: arrays in memory that may be anybody's ------------------------------------------------------- */

/* An array as another library describes it. Nothing in it is believed before um_foreign_measure and
 * um_foreign_locate. */
typedef struct um_foreign {
    char *data;           /* first element */
    PyArray_Descr *descr; /* owned by whoever filled the struct */
    int ndim;             /* 0 to UM_MAX_NDIM */
    npy_intp shape[UM_MAX_NDIM];
    npy_intp strides[UM_MAX_NDIM]; /* bytes */
    bool writeable;
    bool from_host; /* the exporter reads and writes the memory with the CPU */
    bool from_gpu;  /* the exporter reads and writes the memory with a GPU */
    /* set by um_foreign_measure */
    bool empty;    /* no elements: nothing below is set */
    char *low;     /* lowest byte of any element */
    size_t extent; /* bytes from there to the end of the highest element */
    size_t nbytes; /* bytes of all elements */
} um_foreign;

typedef enum um_memory_kind {
    UM_MEMORY_OURS,    /* inside a block */
    UM_MEMORY_MANAGED, /* managed memory of another library */
    UM_MEMORY_DEVICE,  /* only a GPU may touch it */
    UM_MEMORY_HOST,    /* ordinary or page-locked host memory */
} um_memory_kind;

typedef struct um_memory {
    um_memory_kind kind;
    int device;      /* owner; 0 for host memory */
    bool vouched;    /* the driver knows all of it, and it is no GPU's: readable for sure */
    um_block *block; /* UM_MEMORY_OURS: a reference to release, or NULL once it was given away */
} um_memory;

/* What keeps the memory alive: `release(object)` is called once, from any thread, with or without the GIL. */
typedef struct um_owner {
    void (*release)(void *object);
    void *object; /* NULL once it was given away */
} um_owner;

/* Strides of C order. */
void um_fill_c_strides(int ndim, const npy_intp *shape, npy_intp itemsize, npy_intp *strides);
/* Computes which bytes the elements touch. -1 with BufferError set when that overflows or memory is missing. */
int um_foreign_measure(um_foreign *foreign);
/* Finds out whose memory it is. -1 with BufferError set when the elements reach out of its allocation, or when
 * memory that is said to be the GPU's is not known to the driver. Not for arrays with no elements. */
int um_foreign_locate(um_state *state, const um_foreign *foreign, um_memory *out);
/* An array over the memory itself (kind OURS or MANAGED). Takes the block out of *memory, and the object out of
 * *owner when the result needs it. */
um_ndarray *um_foreign_share(um_state *state, const um_foreign *foreign, um_memory *memory, um_owner *owner);
/* A copy in new memory of `device`, finished when this returns. Memory that cannot be read is a BufferError. */
um_ndarray *um_foreign_copy(um_state *state, const um_foreign *foreign, um_memory *memory, um_owner *owner, int device);
/* A writable copy, C order, in new memory of `device`; the copying may still be under way. New reference. */
um_ndarray *um_ndarray_duplicate(um_state *state, um_ndarray *source, int device);
/* Makes umem's current stream for `device` wait for all that is on the stream `handle` now, umem's work and others';
 * -1 on error. */
int um_follow_stream(um_state *state, int device, um_stream_handle handle);
/* Whether objects may still be released: false once the interpreter is going away. */
bool um_python_is_alive(void);
/* Attribute, or NULL without an exception when there is none; -1 on error. */
int um_optional_attribute(PyObject *object, const char *name, PyObject **out);

/* --- um_dlpack_export.c ----------------------------------------------------------------------------------------- */

/* __dlpack__ and __dlpack_device__. `fixed` is UM_LOCATION_NONE for the array itself, which is CUDA to those who can
 * say so and managed memory to those who cannot; else the one device the caller stands for. */
PyObject *um_dlpack_export(um_state *state, um_ndarray *array, um_location fixed, PyObject *const *args,
                           Py_ssize_t nargs, PyObject *kwnames);
PyObject *um_dlpack_device(um_ndarray *array, um_location fixed);
/* Refuses what DLPack cannot say: -1 with BufferError. */
int um_dlpack_check(um_ndarray *array);

/* --- um_dlpack_import.c ----------------------------------------------------------------------------------------- */

/* umem.from_dlpack(x, /, *, device=None, copy=None) */
PyObject *um_from_dlpack(PyObject *module, PyObject *args, PyObject *kwargs);
/* An array over the memory of x, which has __dlpack__; None when it cannot be shared. */
PyObject *um_dlpack_alias(um_state *state, PyObject *x);

/* --- um_exporter.c ---------------------------------------------------------------------------------------------- */

/* The array behind an umem array or a DeviceView, borrowed; NULL for any other object. */
um_ndarray *um_array_behind(const um_state *state, PyObject *object);

#endif
