/* The buffer protocol (PEP 3118). */
#include "py/um_ndarray.h"

#include <string.h>

#include "core/um_transfer.h" /* UM_MAX_NDIM */

/* --- exports ------------------------------------------------------------------------------------------------------------------ */

/* What Py_buffer.internal points to: how the view is counted, and what the array itself has no place for. */
typedef struct buffer_export {
    bool counted; /* as a live host view; false for one whose end cannot be seen */
    bool writable;
    char *format; /* owned, or NULL */
    npy_intp strides[];
} buffer_export;

/* The usual cases need no memory of their own. */
static buffer_export plain_exports[2][2] = {
    {{.counted = false, .writable = false}, {.counted = false, .writable = true}},
    {{.counted = true, .writable = false}, {.counted = true, .writable = true}},
};

static bool is_plain(const buffer_export *export) {
    return export >= &plain_exports[0][0] && export <= &plain_exports[1][1];
}

static void free_export(buffer_export *export) {
    if (!is_plain(export)) {
        PyMem_Free(export->format);
        PyMem_Free(export);
    }
}

static bool asks(int flags, int wanted) { return (flags & wanted) == wanted; }

/* Whether the array is what the request needs: 0, or -1 with BufferError set. */
static int check_request(const um_ndarray *array, int flags, bool writable) {
    bool c = um_ndarray_is_c_contiguous(array);
    const char *problem = NULL;
    if (asks(flags, PyBUF_C_CONTIGUOUS) && !c) {
        problem = "the array is not C-contiguous";
    } else if (asks(flags, PyBUF_F_CONTIGUOUS) && !um_ndarray_is_f_contiguous(array)) {
        problem = "the array is not Fortran contiguous";
    } else if (asks(flags, PyBUF_ANY_CONTIGUOUS) && !c && !um_ndarray_is_f_contiguous(array)) {
        problem = "the array is not contiguous";
    } else if (!asks(flags, PyBUF_STRIDES) && !c) {
        problem = "the array is not C-contiguous, and the consumer takes no strides: copy it first";
    } else if (asks(flags, PyBUF_WRITABLE) && !writable) {
        problem = "the array is read-only";
    }
    if (problem != NULL) {
        PyErr_SetString(PyExc_BufferError, problem);
        return -1;
    }
    return 0;
}

/* Strides for consumers that compare them with those of a packed array. NumPy lets axes of length 1, and arrays with no elements, have any
 * strides. False when the array's own will do. */
static bool needs_packed_strides(const um_ndarray *array, int flags, npy_intp *packed) {
    bool fortran;
    if (um_ndarray_is_c_contiguous(array) && !asks(flags, PyBUF_F_CONTIGUOUS)) {
        fortran = false;
    } else if (um_ndarray_is_f_contiguous(array)) {
        fortran = true;
    } else {
        return false;
    }
    npy_intp step = PyDataType_ELSIZE(array->descr);
    bool differ = false;
    for (int i = 0; i < array->ndim; i++) {
        int axis = fortran ? i : array->ndim - 1 - i;
        packed[axis] = step;
        differ = differ || array->strides[axis] != step;
        step *= array->shape[axis];
    }
    return differ;
}

/* The export for a request, with *format and *strides for the view; NULL with an exception set. */
static buffer_export *make_export(um_ndarray *array, int flags, bool writable, const char **format,
                                  npy_intp **strides) {
    bool counted = asks(flags, PyBUF_ND);
    npy_intp packed[UM_MAX_NDIM];
    bool own_strides = asks(flags, PyBUF_STRIDES) && needs_packed_strides(array, flags, packed);
    bool own_format = false;
    *format = NULL;
    if (asks(flags, PyBUF_FORMAT)) {
        *format = um_ndarray_simple_format(array);
        own_format = *format == NULL;
    }
    *strides = array->strides;
    if (!own_strides && !own_format) {
        return &plain_exports[counted][writable];
    }
    size_t count = own_strides ? (size_t)array->ndim : 0;
    buffer_export *export = PyMem_Malloc(sizeof(buffer_export) + count * sizeof(npy_intp));
    if (export == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *export = (buffer_export){.counted = counted, .writable = writable};
    if (own_format) {
        export->format = um_ndarray_format(array);
        if (export->format == NULL) {
            free_export(export);
            return NULL;
        }
        *format = export->format;
    }
    if (own_strides) {
        memcpy(export->strides, packed, count * sizeof(npy_intp));
        *strides = export->strides;
    }
    return export;
}

/* Counts the view and waits for the GPU. Counted first: work that another thread launches during the wait is complete when its launch
 * returns. -1 with an exception set. */
static int begin_view(um_ndarray *array, const buffer_export *export) {
    um_host_view_add(array->block, export->writable);
    int result = um_ndarray_host_access(um_state_of((PyObject *)array), array);
    if (result == 0 && !export->counted) {
        um_host_view_forever(array->block, export->writable);
    }
    if (result < 0 || !export->counted) {
        um_host_view_remove(array->block, export->writable);
    }
    return result;
}

int um_ndarray_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    um_ndarray *array = (um_ndarray *)self;
    if (view == NULL) {
        PyErr_SetString(PyExc_BufferError, "there is no buffer request without a view to fill");
        return -1;
    }
    view->obj = NULL;
    const char *format;
    npy_intp *strides;
    bool writable = um_ndarray_is_writeable(array);
    if (check_request(array, flags, writable) < 0) {
        return -1;
    }
    buffer_export *export = make_export(array, flags, writable, &format, &strides);
    if (export == NULL) {
        return -1;
    }
    if (begin_view(array, export) < 0) {
        free_export(export);
        return -1;
    }
    bool shaped = asks(flags, PyBUF_ND);
    view->buf = array->data;
    view->obj = Py_NewRef(self);
    view->len = um_ndarray_nbytes(array);
    view->itemsize = PyDataType_ELSIZE(array->descr);
    view->readonly = !writable;
    view->ndim = shaped ? array->ndim : 1;
    view->format = (char *)(uintptr_t)format;
    view->shape = shaped && array->ndim > 0 ? array->shape : NULL;
    view->strides = asks(flags, PyBUF_STRIDES) && array->ndim > 0 ? strides : NULL;
    view->suboffsets = NULL;
    view->internal = export;
    return 0;
}

void um_ndarray_releasebuffer(PyObject *self, Py_buffer *view) {
    buffer_export *export = view->internal;
    if (export->counted) {
        um_host_view_remove(((um_ndarray *)self)->block, export->writable);
    }
    free_export(export);
}
