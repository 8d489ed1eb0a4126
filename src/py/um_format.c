/* How the buffer protocol (PEP 3118) names dtypes. NumPy does most of it; what its own reader would not read back is written here. */
#include "py/um_ndarray.h"

#include <string.h>

static const char *const number_formats[NPY_NTYPES_LEGACY] = {
    [NPY_BOOL] = "?",      [NPY_BYTE] = "b",     [NPY_UBYTE] = "B",        [NPY_SHORT] = "h",  [NPY_USHORT] = "H",
    [NPY_INT] = "i",       [NPY_UINT] = "I",     [NPY_LONG] = "l",         [NPY_ULONG] = "L",  [NPY_LONGLONG] = "q",
    [NPY_ULONGLONG] = "Q", [NPY_HALF] = "e",     [NPY_FLOAT] = "f",        [NPY_DOUBLE] = "d", [NPY_LONGDOUBLE] = "g",
    [NPY_CFLOAT] = "Zf",   [NPY_CDOUBLE] = "Zd", [NPY_CLONGDOUBLE] = "Zg",
};

static const char *number_format(const PyArray_Descr *descr) {
    return descr->type_num >= 0 && descr->type_num < NPY_NTYPES_LEGACY ? number_formats[descr->type_num] : NULL;
}

const char *um_ndarray_simple_format(const um_ndarray *array) {
    return PyArray_ISNBO(array->descr->byteorder) && um_ndarray_is_aligned(array) ? number_format(array->descr) : NULL;
}

/* --- records --------------------------------------------------------------------------------------------------------------
 *
 * NumPy's formats of records leave out the bytes behind the last field, and use alignment rules for an array that happens to be aligned
 * though its dtype is not. Read back, such formats have another itemsize, which is an error. Here every byte order is explicit, without
 * alignment, and all padding is written out. */

static PyObject *element_format(PyArray_Descr *descr);

/* Puts more (stolen; NULL: an exception is set) behind *text. False when that failed. */
static bool append(PyObject **text, PyObject *more) {
    PyUnicode_AppendAndDel(text, more);
    return *text != NULL;
}

static PyObject *padding_format(npy_intp count) {
    return count > 0 ? PyUnicode_FromFormat("%zdx", count) : PyUnicode_FromString("");
}

/* One field behind the `position` bytes that are written; *end is where it ends. New reference. */
static PyObject *field_format(PyArray_Descr *record, PyObject *name, npy_intp position, npy_intp *end) {
    PyObject *field = PyDict_GetItemWithError(PyDataType_FIELDS(record), name);
    if (field == NULL) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_SystemError, "the dtype has no field %R", name);
    }
    PyArray_Descr *descr = (PyArray_Descr *)PyTuple_GET_ITEM(field, 0);
    npy_intp offset = PyLong_AsSsize_t(PyTuple_GET_ITEM(field, 1));
    if (offset == -1 && PyErr_Occurred()) {
        return NULL;
    }
    *end = offset + PyDataType_ELSIZE(descr);
    PyObject *text = padding_format(offset - position);
    if (text == NULL || !append(&text, element_format(descr)) || !append(&text, PyUnicode_FromFormat(":%U:", name))) {
        return NULL;
    }
    return text;
}

static PyObject *record_format(PyArray_Descr *descr) {
    PyObject *names = PyDataType_NAMES(descr);
    PyObject *text = PyUnicode_FromString("T{");
    npy_intp position = 0;
    for (Py_ssize_t i = 0; text != NULL && i < PyTuple_GET_SIZE(names); i++) {
        npy_intp end = position;
        if (append(&text, field_format(descr, PyTuple_GET_ITEM(names, i), position, &end))) {
            position = end;
        }
    }
    if (text == NULL || !append(&text, padding_format(PyDataType_ELSIZE(descr) - position)) ||
        !append(&text, PyUnicode_FromString("}"))) {
        return NULL;
    }
    return text;
}

/* "(2,3)" and the format of the element. */
static PyObject *subarray_format(PyArray_Descr *descr) {
    PyArray_ArrayDescr *sub = PyDataType_SUBARRAY(descr);
    Py_ssize_t count = PyTuple_GET_SIZE(sub->shape);
    PyObject *text = PyUnicode_FromString("(");
    for (Py_ssize_t i = 0; text != NULL && i < count; i++) {
        (void)append(&text, PyUnicode_FromFormat(i == 0 ? "%S" : ",%S", PyTuple_GET_ITEM(sub->shape, i)));
    }
    if (text == NULL || !append(&text, PyUnicode_FromString(")")) || !append(&text, element_format(sub->base))) {
        return NULL;
    }
    return text;
}

/* Numbers that are not in native byte order have standard sizes, in which a long has 4 bytes. */
static const char *swapped_format(const PyArray_Descr *descr) {
    bool is_long = (descr->type_num == NPY_LONG || descr->type_num == NPY_ULONG) && PyDataType_ELSIZE(descr) == 8;
    if (is_long) {
        return descr->type_num == NPY_LONG ? "q" : "Q";
    }
    return number_format(descr);
}

static PyObject *element_format(PyArray_Descr *descr) {
    if (PyDataType_HASSUBARRAY(descr)) {
        return subarray_format(descr);
    }
    if (PyDataType_HASFIELDS(descr)) {
        return record_format(descr);
    }
    npy_intp size = PyDataType_ELSIZE(descr);
    bool swapped = !PyArray_ISNBO(descr->byteorder);
    char order = swapped ? descr->byteorder : '^';
    const char *number = swapped ? swapped_format(descr) : number_format(descr);
    if (number != NULL) {
        return PyUnicode_FromFormat("%c%s", order, number);
    }
    switch (descr->type_num) {
    case NPY_STRING: return PyUnicode_FromFormat("%zds", size);
    case NPY_UNICODE: return PyUnicode_FromFormat("%c%zdw", order, size / 4);
    case NPY_VOID: return PyUnicode_FromFormat("%zdx", size);
    default: return PyErr_Format(PyExc_ValueError, "cannot include dtype %S in a buffer", descr);
    }
}

/* --- any dtype -------------------------------------------------------------------------------------------------------------------- */

/* NumPy's reader makes a dtype without fields of raw bytes, and copies of it without contents; a string of no width becomes one of width 1.
 * Refused, it asks for __array_interface__, which says both right. */
static int refuse_unreadable(const um_ndarray *array) {
    PyArray_Descr *descr = array->descr;
    bool raw = descr->type_num == NPY_VOID && !PyDataType_HASFIELDS(descr);
    if (raw || (PyDataType_ELSIZE(descr) == 0 && PyTypeNum_ISSTRING(descr->type_num))) {
        PyErr_Format(PyExc_BufferError,
                     "%R has no buffer format that is read as the same dtype: use a.view('u1') or a.numpy()", descr);
        return -1;
    }
    return 0;
}

static char *copy_text(const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = PyMem_Malloc(size);
    if (copy == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    memcpy(copy, text, size);
    return copy;
}

static char *copy_record_format(PyArray_Descr *descr) {
    PyObject *text = record_format(descr);
    const char *bytes = text != NULL ? PyUnicode_AsUTF8(text) : NULL;
    char *copy = bytes != NULL ? copy_text(bytes) : NULL;
    Py_XDECREF(text);
    return copy;
}

char *um_ndarray_format(um_ndarray *array) {
    PyArrayObject *numpy = refuse_unreadable(array) < 0 ? NULL : um_ndarray_borrow_numpy(array);
    if (numpy == NULL) {
        return NULL;
    }
    char *format = NULL;
    Py_buffer view;
    /* NumPy also says which dtypes have no format. */
    if (PyObject_GetBuffer((PyObject *)numpy, &view, PyBUF_RECORDS_RO) == 0) {
        format = PyDataType_HASFIELDS(array->descr) ? copy_record_format(array->descr) : copy_text(view.format);
        PyBuffer_Release(&view);
    }
    Py_DECREF(numpy);
    return format;
}
