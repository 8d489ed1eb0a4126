/* The buffer protocol (PEP 3118). */
#include "py/um_ndarray.h"

#include <string.h>

#include "core/um_transfer.h" /* UM_MAX_NDIM */

/* --- formats ----------------------------------------------------------------------------------------------------------------- */

/* Format of native simple dtypes; NULL for others, which NumPy describes. */
static const char *simple_format(int type_num) {
    static const char *const formats[NPY_NTYPES_LEGACY] = {
        [NPY_BOOL] = "?",     [NPY_BYTE] = "b",        [NPY_UBYTE] = "B",    [NPY_SHORT] = "h",      [NPY_USHORT] = "H",
        [NPY_INT] = "i",      [NPY_UINT] = "I",        [NPY_LONG] = "l",     [NPY_ULONG] = "L",      [NPY_LONGLONG] = "q",
        [NPY_ULONGLONG] = "Q", [NPY_HALF] = "e",       [NPY_FLOAT] = "f",    [NPY_DOUBLE] = "d",     [NPY_LONGDOUBLE] = "g",
        [NPY_CFLOAT] = "Zf",  [NPY_CDOUBLE] = "Zd",    [NPY_CLONGDOUBLE] = "Zg",
    };
    return type_num >= 0 && type_num < NPY_NTYPES_LEGACY ? formats[type_num] : NULL;
}

/* NumPy's own reader of formats makes a dtype without fields of raw bytes, and copies of it without contents; a string of no width becomes one
 * of width 1. It then asks for __array_interface__, which says both right. */
static int refuse_unreadable(const um_ndarray *array) {
    PyArray_Descr *descr = array->descr;
    bool raw = descr->type_num == NPY_VOID && !PyDataType_HASFIELDS(descr);
    if (raw || (PyDataType_ELSIZE(descr) == 0 && PyTypeNum_ISSTRING(descr->type_num))) {
        PyErr_Format(PyExc_BufferError, "%R has no buffer format that is read as the same dtype: use a.view('u1') or a.numpy()", descr);
        return -1;
    }
    return 0;
}

/* Bytes behind the last field of a record, which NumPy's formats leave out; -1 with an exception set. */
static npy_intp trailing_bytes(PyArray_Descr *descr) {
    npy_intp end = 0;
    PyObject *fields = PyDataType_FIELDS(descr);
    PyObject *name;
    PyObject *field;
    Py_ssize_t position = 0;
    while (fields != NULL && PyDict_Next(fields, &position, &name, &field)) {
        npy_intp offset = PyLong_AsSsize_t(PyTuple_GET_ITEM(field, 1));
        if (offset == -1 && PyErr_Occurred()) {
            return -1;
        }
        npy_intp field_end = offset + PyDataType_ELSIZE((PyArray_Descr *)PyTuple_GET_ITEM(field, 0));
        end = field_end > end ? field_end : end;
    }
    return PyDataType_ELSIZE(descr) - end;
}

/* NumPy's format, from PyMem, with the padding at the end of a record written out; NULL with an exception set. */
static char *complete_format(PyArray_Descr *descr, const char *numpy_format) {
    npy_intp missing = PyDataType_HASFIELDS(descr) ? trailing_bytes(descr) : 0;
    if (missing < 0) {
        return NULL;
    }
    size_t length = strlen(numpy_format);
    size_t size = length + 32;
    char *format = PyMem_Malloc(size);
    if (format == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (missing > 0 && length > 0 && numpy_format[length - 1] == '}') {
        PyOS_snprintf(format, size, "%.*s%zdx}", (int)(length - 1), numpy_format, missing);
    } else {
        memcpy(format, numpy_format, length + 1);
    }
    return format;
}

/* The format of a dtype that is not a simple one, from PyMem; NULL with an exception set, NumPy's for a dtype that has none. */
static char *describe_format(um_ndarray *array) {
    PyArrayObject *numpy = refuse_unreadable(array) < 0 ? NULL : um_ndarray_borrow_numpy(array);
    if (numpy == NULL) {
        return NULL;
    }
    Py_buffer view;
    char *format = NULL;
    if (PyObject_GetBuffer((PyObject *)numpy, &view, PyBUF_RECORDS_RO) == 0) {
        format = complete_format(array->descr, view.format);
        PyBuffer_Release(&view);
    }
    Py_DECREF(numpy);
    return format;
}

/* --- exports ------------------------------------------------------------------------------------------------------------------ */

/* What Py_buffer.internal points to: how the view is counted, and what the array itself has no place for. */
typedef struct buffer_export {
    bool counted;  /* as a live host view; false for one whose end cannot be seen */
    bool writable;
    char *format;  /* owned, or NULL */
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

static bool asks(int flags, int wanted) {
    return (flags & wanted) == wanted;
}

/* Whether the array is what the request needs: 0, or -1 with BufferError set. */
static int check_request(const um_ndarray *array, int flags) {
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
    } else if (asks(flags, PyBUF_WRITABLE) && !array->writeable) {
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
        step *= array->shape[axis] != 0 ? array->shape[axis] : 1;
    }
    return differ;
}

/* The export for a request, with *format and *strides for the view; NULL with an exception set. */
static buffer_export *make_export(um_ndarray *array, int flags, const char **format, npy_intp **strides) {
    bool counted = asks(flags, PyBUF_ND);
    npy_intp packed[UM_MAX_NDIM];
    bool own_strides = asks(flags, PyBUF_STRIDES) && needs_packed_strides(array, flags, packed);
    bool own_format = false;
    *format = NULL;
    if (asks(flags, PyBUF_FORMAT)) {
        bool native = PyArray_ISNBO(array->descr->byteorder) && um_ndarray_is_aligned(array);
        *format = native ? simple_format(array->descr->type_num) : NULL;
        own_format = *format == NULL;
    }
    *strides = array->strides;
    if (!own_strides && !own_format) {
        return &plain_exports[counted][array->writeable];
    }
    size_t count = own_strides ? (size_t)array->ndim : 0;
    buffer_export *export = PyMem_Malloc(sizeof(buffer_export) + count * sizeof(npy_intp));
    if (export == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *export = (buffer_export){.counted = counted, .writable = array->writeable};
    if (own_format) {
        export->format = describe_format(array);
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
    if (check_request(array, flags) < 0) {
        return -1;
    }
    buffer_export *export = make_export(array, flags, &format, &strides);
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
    view->readonly = !array->writeable;
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
