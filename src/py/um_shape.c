/* reshape, ravel, transpose, squeeze, view and T. */
#include "py/um_ndarray.h"

#include <string.h>

#include "core/um_transfer.h" /* UM_MAX_NDIM */

/* --- views that NumPy computes -------------------------------------------------------------------------------------------- */

/* The view that NumPy's method of this name gives; these methods never look at the data. */
static PyObject *view_by_numpy(PyObject *self, const char *method, PyObject *args, PyObject *kwargs) {
    um_ndarray *array = (um_ndarray *)self;
    PyArrayObject *whole = um_ndarray_borrow_numpy(array);
    PyObject *function = whole != NULL ? PyObject_GetAttrString((PyObject *)whole, method) : NULL;
    PyObject *made = function != NULL ? PyObject_Call(function, args, kwargs) : NULL;
    PyObject *view = NULL;
    if (made != NULL && PyArray_CheckExact(made)) {
        view = (PyObject *)um_ndarray_from_view(um_state_of(self), array, (PyArrayObject *)made);
    } else if (made != NULL) {
        PyErr_Format(PyExc_TypeError, "a umem array has no view of type '%.100s': use a.numpy().%s(...)",
                     Py_TYPE(made)->tp_name, method);
    }
    Py_XDECREF(made);
    Py_XDECREF(function);
    Py_XDECREF(whole);
    return view;
}

static PyObject *ndarray_transpose(PyObject *self, PyObject *args) {
    return view_by_numpy(self, "transpose", args, NULL);
}

static PyObject *ndarray_squeeze(PyObject *self, PyObject *args, PyObject *kwargs) {
    return view_by_numpy(self, "squeeze", args, kwargs);
}

static PyObject *ndarray_view(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"dtype", NULL};
    PyObject *dtype = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:view", keywords, &dtype)) {
        return NULL;
    }
    if (dtype != NULL && PyType_Check(dtype) && PyType_IsSubtype((PyTypeObject *)dtype, &PyArray_Type)) {
        return PyErr_Format(PyExc_TypeError, "a umem array has no view of type '%.100s': use a.numpy().view(...)",
                            ((PyTypeObject *)dtype)->tp_name);
    }
    return view_by_numpy(self, "view", args, kwargs);
}

PyObject *um_ndarray_get_T(PyObject *self, void *closure) {
    (void)closure;
    um_ndarray *array = (um_ndarray *)self;
    npy_intp shape[UM_MAX_NDIM];
    npy_intp strides[UM_MAX_NDIM];
    for (int axis = 0; axis < array->ndim; axis++) {
        shape[axis] = array->shape[array->ndim - 1 - axis];
        strides[axis] = array->strides[array->ndim - 1 - axis];
    }
    return (PyObject *)um_ndarray_view(um_state_of(self), array, array->data, array->ndim, shape, strides);
}

/* --- reshape ------------------------------------------------------------------------------------------------------------------ */

typedef struct new_shape {
    int ndim;
    npy_intp shape[UM_MAX_NDIM];
    npy_intp strides[UM_MAX_NDIM];
} new_shape;

static int refuse_shape(npy_intp size, const new_shape *wanted) {
    PyObject *shape = um_tuple_of_dims(wanted->ndim, wanted->shape);
    if (shape != NULL) {
        PyErr_Format(PyExc_ValueError, "cannot reshape array of size %zd into shape %R", size, shape);
        Py_DECREF(shape);
    }
    return -1;
}

/* Puts a length where the shape has a negative one, and checks that the sizes agree. */
static int complete_shape(npy_intp size, new_shape *wanted) {
    int unknown = -1;
    npy_intp known = 1;
    for (int axis = 0; axis < wanted->ndim; axis++) {
        npy_intp length = wanted->shape[axis];
        if (length < 0 && unknown >= 0) {
            PyErr_SetString(PyExc_ValueError, "can only specify one unknown dimension");
            return -1;
        }
        if (length < 0) {
            unknown = axis;
        } else if (__builtin_mul_overflow(known, length, &known)) {
            return refuse_shape(size, wanted);
        }
    }
    if (unknown >= 0) {
        if (known == 0 || size % known != 0) {
            return refuse_shape(size, wanted);
        }
        wanted->shape[unknown] = size / known;
        return 0;
    }
    return known == size ? 0 : refuse_shape(size, wanted);
}

/* Finds strides that show the elements, taken in `order`, in the new shape. False when there are none. The array has elements.
 *
 * Axes of both shapes are matched in groups of equal size, the slowest first in C order, the fastest first in Fortran order. Within a group
 * the old axes have to be steps of one walk through memory. */
static bool find_strides(const um_ndarray *array, char order, new_shape *wanted) {
    int old_count = 0;
    npy_intp old_shape[UM_MAX_NDIM], old_strides[UM_MAX_NDIM];
    bool fortran = order == 'F';
    for (int i = array->ndim - 1; i >= 0; i--) { /* the fastest axis first */
        int axis = fortran ? array->ndim - 1 - i : i;
        if (array->shape[axis] != 1) {
            old_shape[old_count] = array->shape[axis];
            old_strides[old_count++] = array->strides[axis];
        }
    }
    int old = 0;
    npy_intp left = 1; /* elements of the current walk not used up */
    npy_intp step = old_count > 0 ? old_strides[0] : PyDataType_ELSIZE(array->descr); /* bytes to the next of them */
    for (int i = wanted->ndim - 1; i >= 0; i--) {
        int axis = fortran ? wanted->ndim - 1 - i : i;
        npy_intp length = wanted->shape[axis];
        if (length != 1 && left == 1 && old < old_count) {
            left = old_shape[old];
            step = old_strides[old++];
        }
        while (left % length != 0) { /* the axis reaches into the next old one, which must go on where this one ends */
            if (old == old_count || old_strides[old] != left * step) {
                return false;
            }
            left *= old_shape[old++];
        }
        wanted->strides[axis] = step;
        left /= length;
        step *= length;
    }
    return true;
}

/* Whether the array already has the wanted shape. */
static bool has_shape(const um_ndarray *array, const new_shape *wanted) {
    return array->ndim == wanted->ndim &&
           memcmp(array->shape, wanted->shape, (size_t)wanted->ndim * sizeof(npy_intp)) == 0;
}

/* The array's elements, taken in `order` ('C' or 'F'), in the wanted shape. may_copy and must_copy as NumPy's copy=. */
static PyObject *reshape_to(um_state *state, um_ndarray *array, char order, bool may_copy, bool must_copy,
                            new_shape *wanted) {
    if (!must_copy) {
        if (has_shape(array, wanted)) {
            return (PyObject *)um_ndarray_view(state, array, array->data, array->ndim, array->shape, array->strides);
        }
        if (um_ndarray_size(array) == 0) {
            return (PyObject *)um_ndarray_view(state, array, array->data, wanted->ndim, wanted->shape, NULL);
        }
        if (find_strides(array, order, wanted)) {
            return (PyObject *)um_ndarray_view(state, array, array->data, wanted->ndim, wanted->shape, wanted->strides);
        }
        if (!may_copy) {
            PyErr_SetString(PyExc_ValueError, "Unable to avoid creating a copy while reshaping.");
            return NULL;
        }
    }
    um_ndarray *copy = um_ndarray_copy(state, array, order);
    if (copy == NULL) {
        return NULL;
    }
    PyObject *view = reshape_to(state, copy, order, false, false, wanted);
    Py_DECREF(copy);
    return view;
}

/* 'A' is the order that the array has. -1 with NumPy's error for an order that makes no sense here. */
static int resolve_order(const um_ndarray *array, PyObject *object, bool allow_k, char *out) {
    NPY_ORDER order = NPY_CORDER;
    if (object != NULL && PyArray_OrderConverter(object, &order) == NPY_FAIL) {
        return -1;
    }
    switch (order) {
    case NPY_KEEPORDER:
        if (!allow_k) {
            PyErr_SetString(PyExc_ValueError, "order 'K' is not permitted for reshaping");
            return -1;
        }
        *out = 'K';
        return 0;
    case NPY_FORTRANORDER: *out = 'F'; return 0;
    case NPY_ANYORDER:
        *out = um_ndarray_is_f_contiguous(array) && !um_ndarray_is_c_contiguous(array) ? 'F' : 'C';
        return 0;
    case NPY_CORDER: break;
    }
    *out = 'C';
    return 0;
}

/* Reads the shape from reshape's positional arguments: one shape, or its lengths. */
static int read_shape(PyObject *args, new_shape *out) {
    PyObject *shape = args;
    if (PyTuple_GET_SIZE(args) == 0) {
        PyErr_SetString(PyExc_TypeError, "reshape() takes exactly 1 argument (0 given)");
        return -1;
    }
    if (PyTuple_GET_SIZE(args) == 1) {
        shape = PyTuple_GET_ITEM(args, 0);
    }
    PyArray_Dims dims = {NULL, 0};
    if (PyArray_IntpConverter(shape, &dims) == NPY_FAIL) {
        return -1;
    }
    out->ndim = dims.len;
    um_copy_dims(out->shape, dims.ptr, dims.len);
    PyDimMem_FREE(dims.ptr);
    return 0;
}

static PyObject *ndarray_reshape(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"order", "copy", NULL};
    um_ndarray *array = (um_ndarray *)self;
    um_state *state = um_state_of(self);
    PyObject *order_object = NULL;
    PyObject *copy = Py_None;
    PyObject *none = PyTuple_New(0);
    if (none == NULL) {
        return NULL;
    }
    int parsed = PyArg_ParseTupleAndKeywords(none, kwargs, "|$OO:reshape", keywords, &order_object, &copy);
    Py_DECREF(none);
    char order;
    if (!parsed || resolve_order(array, order_object, false, &order) < 0) {
        return NULL;
    }
    int must_copy = copy == Py_None ? 0 : PyObject_IsTrue(copy);
    if (must_copy < 0) {
        return NULL;
    }
    new_shape wanted;
    if (PyTuple_GET_SIZE(args) == 1 && PyTuple_GET_ITEM(args, 0) == Py_None) { /* as in NumPy: the shape it has */
        wanted.ndim = array->ndim;
        um_copy_dims(wanted.shape, array->shape, array->ndim);
    } else if (read_shape(args, &wanted) < 0 || complete_shape(um_ndarray_size(array), &wanted) < 0) {
        return NULL;
    }
    return reshape_to(state, array, order, copy == Py_None, must_copy != 0, &wanted);
}

/* --- ravel ----------------------------------------------------------------------------------------------------------------------- */

/* The array with its axes in the order of memory, the slowest first. New reference. */
static um_ndarray *in_memory_order(um_state *state, um_ndarray *array) {
    npy_stride_sort_item sorted[UM_MAX_NDIM];
    npy_intp shape[UM_MAX_NDIM], strides[UM_MAX_NDIM];
    PyArray_CreateSortedStridePerm(array->ndim, array->strides, sorted);
    for (int i = 0; i < array->ndim; i++) {
        shape[i] = array->shape[sorted[i].perm];
        strides[i] = sorted[i].stride;
    }
    return um_ndarray_view(state, array, array->data, array->ndim, shape, strides);
}

static PyObject *ndarray_ravel(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"order", NULL};
    um_ndarray *array = (um_ndarray *)self;
    um_state *state = um_state_of(self);
    PyObject *order_object = NULL;
    char order;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:ravel", keywords, &order_object) ||
        resolve_order(array, order_object, true, &order) < 0) {
        return NULL;
    }
    um_ndarray *source = NULL;
    if (order != 'K') {
        source = (um_ndarray *)Py_NewRef(self);
    } else {
        order = 'C';
        source = in_memory_order(state, array);
        if (source == NULL) {
            return NULL;
        }
    }
    /* Unlike reshape, ravel gives a view only of elements that lie next to each other. */
    bool packed = order == 'F' ? um_ndarray_is_f_contiguous(source) : um_ndarray_is_c_contiguous(source);
    new_shape flat = {.ndim = 1, .shape = {um_ndarray_size(array)}};
    PyObject *result = reshape_to(state, source, order, true, !packed, &flat);
    Py_DECREF(source);
    return result;
}

/* --- the table ---------------------------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(reshape_doc,
             "reshape($self, /, *shape, order='C', copy=None)\n"
             "--\n"
             "\n"
             "The elements in another shape: a view where the layout allows it, else a copy. One length may be -1.\n"
             "\n"
             "copy  True always copies; False raises ValueError instead of copying.");
PyDoc_STRVAR(ravel_doc,
             "ravel($self, /, order='C')\n"
             "--\n"
             "\n"
             "The elements along one axis: a view where they lie next to each other in `order`, else a copy.");
PyDoc_STRVAR(transpose_doc, "transpose($self, /, *axes)\n"
                            "--\n"
                            "\n"
                            "View with the axes in the given order, or reversed.");
PyDoc_STRVAR(squeeze_doc, "squeeze($self, /, axis=None)\n"
                          "--\n"
                          "\n"
                          "View without the axes of length 1.");
PyDoc_STRVAR(view_doc, "view($self, /, dtype=None)\n"
                       "--\n"
                       "\n"
                       "View of the same bytes as another dtype.");

PyMethodDef um_ndarray_shape_methods[] = {
    {"reshape", UM_METHOD(ndarray_reshape), METH_VARARGS | METH_KEYWORDS, reshape_doc},
    {"ravel", UM_METHOD(ndarray_ravel), METH_VARARGS | METH_KEYWORDS, ravel_doc},
    {"transpose", ndarray_transpose, METH_VARARGS, transpose_doc},
    {"squeeze", UM_METHOD(ndarray_squeeze), METH_VARARGS | METH_KEYWORDS, squeeze_doc},
    {"view", UM_METHOD(ndarray_view), METH_VARARGS | METH_KEYWORDS, view_doc},
    {NULL, NULL, 0, NULL},
};
