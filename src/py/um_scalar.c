/* Single elements of an array, as NumPy scalars and as Python objects. */
#include "py/um_ndarray.h"

/* --- elements as NumPy scalars ----------------------------------------------------------------------------------------- */

/* A umem view of the element at `data`, with no axes. */
static um_ndarray *element_view(um_state *state, um_ndarray *array, char *data) {
    return um_ndarray_view(state, array, data, 0, NULL, NULL);
}

/* NumPy's scalar of a record shows the array's own memory, so that `a[0]["x"] = 1` sets it. */
static PyObject *record_element(um_state *state, um_ndarray *array, char *data) {
    um_ndarray *view = element_view(state, array, data);
    if (view == NULL) {
        return NULL;
    }
    PyObject *numpy = um_ndarray_to_numpy(state, view);
    Py_DECREF(view);
    if (numpy == NULL) {
        return NULL;
    }
    PyObject *scalar =
        PyArray_Scalar(PyArray_DATA((PyArrayObject *)numpy), PyArray_DESCR((PyArrayObject *)numpy), numpy);
    Py_DECREF(numpy);
    return scalar;
}

PyObject *um_ndarray_element(um_state *state, um_ndarray *array, char *data) {
    if (PyDataType_HASFIELDS(array->descr)) {
        return record_element(state, array, data);
    }
    _Alignas(16) char small[64];
    size_t size = (size_t)PyDataType_ELSIZE(array->descr);
    char *bytes = size <= sizeof(small) ? small : PyMem_Malloc(size);
    if (bytes == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *scalar = NULL;
    if (um_ndarray_read_bytes(state, array, data, size, bytes) == 0) {
        scalar = PyArray_Scalar(bytes, array->descr, NULL);
    }
    if (bytes != small) {
        PyMem_Free(bytes);
    }
    return scalar;
}

PyObject *um_ndarray_item_scalar(um_state *state, um_ndarray *array) {
    return um_ndarray_element(state, array, array->data);
}

/* --- item() --------------------------------------------------------------------------------------------------------------- */

static int out_of_bounds(npy_intp index, int axis, npy_intp length) {
    if (axis < 0) {
        PyErr_Format(PyExc_IndexError, "index %zd is out of bounds for size %zd", index, length);
    } else {
        PyErr_Format(PyExc_IndexError, "index %zd is out of bounds for axis %d with size %zd", index, axis, length);
    }
    return -1;
}

/* Reads an index for `length` positions, counted from the end when negative. axis -1: of the flattened array. */
static int read_index(PyObject *object, int axis, npy_intp length, npy_intp *out) {
    npy_intp given = PyNumber_AsSsize_t(object, PyExc_IndexError);
    if (given == -1 && PyErr_Occurred()) {
        return -1;
    }
    npy_intp index = given < 0 ? given + length : given;
    if (index < 0 || index >= length) {
        return out_of_bounds(given, axis, length);
    }
    *out = index;
    return 0;
}

static int locate_flat(const um_ndarray *array, PyObject *object, char **data) {
    npy_intp index;
    if (read_index(object, -1, um_ndarray_size(array), &index) < 0) {
        return -1;
    }
    for (int axis = array->ndim - 1; axis >= 0; axis--) {
        *data += index % array->shape[axis] * array->strides[axis];
        index /= array->shape[axis];
    }
    return 0;
}

/* Address of the element that item()'s arguments name. */
static int locate_item(const um_ndarray *array, PyObject *const *indices, Py_ssize_t count, char **data) {
    *data = array->data;
    if (count == 0) {
        if (um_ndarray_size(array) != 1) {
            PyErr_SetString(PyExc_ValueError, "can only convert an array of size 1 to a Python scalar");
            return -1;
        }
        return 0;
    }
    if (count == 1 && array->ndim != 1) {
        return locate_flat(array, indices[0], data);
    }
    if (count != array->ndim) {
        PyErr_SetString(PyExc_ValueError, "incorrect number of indices for array");
        return -1;
    }
    for (int axis = 0; axis < array->ndim; axis++) {
        npy_intp index;
        if (read_index(indices[axis], axis, array->shape[axis], &index) < 0) {
            return -1;
        }
        *data += index * array->strides[axis];
    }
    return 0;
}

PyObject *um_ndarray_item(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    um_ndarray *array = (um_ndarray *)self;
    um_state *state = um_state_of(self);
    if (nargs == 1 && PyTuple_Check(args[0])) {
        nargs = PyTuple_GET_SIZE(args[0]);
        args = &PyTuple_GET_ITEM(args[0], 0);
    }
    char *data;
    if (locate_item(array, args, nargs, &data) < 0) {
        return NULL;
    }
    um_ndarray *element = element_view(state, array, data);
    if (element == NULL) {
        return NULL;
    }
    PyObject *copy = um_ndarray_read(state, element);
    Py_DECREF(element);
    PyObject *item = NULL;
    if (copy != NULL) {
        item = PyArray_GETITEM((PyArrayObject *)copy, PyArray_BYTES((PyArrayObject *)copy));
        Py_DECREF(copy);
    }
    return item;
}

/* --- conversions ------------------------------------------------------------------------------------------------------------- */

/* A NumPy array whose conversion gives what the array's own would: the element, or the error for having more than one or none. NumPy
 * refuses before it looks at any element, so that larger arrays need not be read. */
static PyObject *stand_in(PyObject *self) {
    um_ndarray *array = (um_ndarray *)self;
    if (um_ndarray_size(array) == 1) {
        return um_ndarray_read(um_state_of(self), array);
    }
    return (PyObject *)um_ndarray_borrow_numpy(array);
}

int um_ndarray_bool(PyObject *self) {
    PyObject *numpy = stand_in(self);
    if (numpy == NULL) {
        return -1;
    }
    int truth = PyObject_IsTrue(numpy);
    Py_DECREF(numpy);
    return truth;
}

static PyObject *convert(PyObject *self, PyObject *(*conversion)(PyObject *)) {
    PyObject *numpy = stand_in(self);
    if (numpy == NULL) {
        return NULL;
    }
    PyObject *result = conversion(numpy);
    Py_DECREF(numpy);
    return result;
}

PyObject *um_ndarray_int(PyObject *self) { return convert(self, PyNumber_Long); }

PyObject *um_ndarray_float(PyObject *self) { return convert(self, PyNumber_Float); }

PyObject *um_ndarray_index(PyObject *self) { return convert(self, PyNumber_Index); }

static PyObject *number_complex(PyObject *numpy) { return PyObject_CallMethod(numpy, "__complex__", NULL); }

PyObject *um_ndarray_complex(PyObject *self, PyObject *unused) {
    (void)unused;
    return convert(self, number_complex);
}
