/* umem.empty and umem.zeros. */
#include "py/um_ndarray.h"

#include "core/um_transfer.h"

/* What the two functions are told. Objects are borrowed from the call; NULL where nothing was given. */
typedef struct creation {
    PyObject *shape, *dtype, *order, *device, *home;
} creation;

/* Where the value of keyword `name` goes; NULL when there is no such parameter. */
static PyObject **find_parameter(const um_state *state, creation *call, PyObject *name) {
    const um_names *names = &state->names;
    if (name == names->dtype) { /* the commonest; names are interned as a rule */
        return &call->dtype;
    }
    const struct {
        PyObject *name;
        PyObject **value;
    } parameters[] = {
        {names->dtype, &call->dtype}, {names->device, &call->device}, {names->home, &call->home},
        {names->order, &call->order}, {names->shape, &call->shape},
    };
    const size_t count = sizeof(parameters) / sizeof(parameters[0]);
    for (size_t i = 0; i < count; i++) {
        if (parameters[i].name == name) {
            return parameters[i].value;
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (PyUnicode_Compare(parameters[i].name, name) == 0) {
            return parameters[i].value;
        }
    }
    return NULL;
}

static int read_call(const um_state *state, const char *function, PyObject *const *args, Py_ssize_t nargs,
                     PyObject *kwnames, creation *out) {
    *out = (creation){NULL, NULL, NULL, NULL, NULL};
    if (nargs > 3) {
        PyErr_Format(PyExc_TypeError, "%s() takes from 1 to 3 positional arguments but %zd were given", function,
                     nargs);
        return -1;
    }
    out->shape = nargs > 0 ? args[0] : NULL;
    out->dtype = nargs > 1 ? args[1] : NULL;
    out->order = nargs > 2 ? args[2] : NULL;
    Py_ssize_t count = kwnames != NULL ? PyTuple_GET_SIZE(kwnames) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        PyObject **value = find_parameter(state, out, name);
        if (value == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function, name);
            return -1;
        }
        if (*value != NULL) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", function, name);
            return -1;
        }
        *value = args[nargs + i];
    }
    if (out->shape == NULL) {
        PyErr_Format(PyExc_TypeError, "%s() missing required argument 'shape'", function);
        return -1;
    }
    return 0;
}

/* Reads a length or a sequence of them; the number of axes, or -1 with an exception set. */
static int read_shape(PyObject *object, npy_intp *shape) {
    if (PyLong_CheckExact(object)) {
        shape[0] = PyLong_AsSsize_t(object);
        if (shape[0] != -1 || !PyErr_Occurred()) {
            return 1;
        }
        PyErr_Clear(); /* NumPy's message is better */
    }
    PyArray_Dims dims = {NULL, 0};
    if (PyArray_IntpConverter(object, &dims) == NPY_FAIL) {
        return -1;
    }
    for (int i = 0; i < dims.len; i++) {
        shape[i] = dims.ptr[i];
    }
    PyDimMem_FREE(dims.ptr);
    return dims.len;
}

static int read_order(PyObject *object, char *out) {
    *out = 'C';
    NPY_ORDER order = NPY_CORDER;
    if (object == NULL) {
        return 0;
    }
    if (PyArray_OrderConverter(object, &order) == NPY_FAIL) {
        return -1;
    }
    if (order != NPY_CORDER && order != NPY_FORTRANORDER) {
        PyErr_SetString(PyExc_ValueError, "only 'C' or 'F' order is permitted");
        return -1;
    }
    *out = order == NPY_FORTRANORDER ? 'F' : 'C';
    return 0;
}

/* New reference; None is float64. */
static PyArray_Descr *read_dtype(const um_state *state, PyObject *object) {
    PyArray_Descr *descr = NULL;
    if (object == NULL || object == Py_None) {
        return PyArray_DescrFromType(NPY_DOUBLE);
    }
    for (size_t i = 0; i < UM_NUMBER_DTYPES;
         i++) { /* np.float32 and so on: NumPy's own way takes longer than all the rest here */
        if ((PyObject *)state->numbers[i]->typeobj == object) {
            Py_INCREF(state->numbers[i]);
            return state->numbers[i];
        }
    }
    return PyArray_DescrConverter(object, &descr) == NPY_FAIL ? NULL : descr;
}

static um_ndarray *create(PyObject *module, const char *function, PyObject *const *args, Py_ssize_t nargs,
                          PyObject *kwnames) {
    um_state *state = um_state_of_module(module);
    creation call;
    npy_intp shape[UM_MAX_NDIM];
    int device = 0;
    um_location home = {UM_LOCATION_NONE, 0};
    char order;
    if (read_call(state, function, args, nargs, kwnames, &call) < 0) {
        return NULL;
    }
    int ndim = read_shape(call.shape, shape);
    if (ndim < 0 || read_order(call.order, &order) < 0) {
        return NULL;
    }
    if (call.device != NULL && um_parse_device(state, call.device, &device) < 0) {
        return NULL;
    }
    if (call.home != NULL && um_parse_location(state, call.home, "home", device, true, &home) < 0) {
        return NULL;
    }
    PyArray_Descr *descr = read_dtype(state, call.dtype);
    return descr != NULL ? um_ndarray_empty(state, descr, ndim, shape, order, device, home) : NULL;
}

static PyObject *core_empty(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    return (PyObject *)create(module, "empty", args, nargs, kwnames);
}

static PyObject *core_zeros(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    um_ndarray *array = create(module, "zeros", args, nargs, kwnames);
    if (array == NULL || um_ndarray_nbytes(array) == 0) {
        return (PyObject *)array;
    }
    um_state *state = um_state_of_module(module);
    um_error err;
    um_status status;
    um_turn turn;
    um_turn_device(state, um_block_context(array->block), &turn);
    status = um_zero_new(array->block, &err);
    um_turn_end(&turn);
    if (status != UM_OK) {
        Py_DECREF(array);
        return um_raise(state, &err);
    }
    return (PyObject *)array;
}

PyDoc_STRVAR(as_owner_doc,
             "_as_owner($module, view, /)\n"
             "--\n"
             "\n"
             "The same array with no base: for a new array that was made through a view, and that nobody else has.");

static PyObject *core_as_owner(PyObject *module, PyObject *object) {
    um_state *state = um_state_of_module(module);
    if (!um_ndarray_check(state, object)) {
        return PyErr_Format(PyExc_TypeError, "view must be a umem.ndarray, not '%.100s'", Py_TYPE(object)->tp_name);
    }
    um_ndarray *view = (um_ndarray *)object;
    Py_INCREF(view->descr);
    um_ndarray *owner = um_ndarray_new(state, um_block_ref(view->block), view->data, view->descr, view->ndim,
                                       view->shape, view->strides, um_ndarray_is_writeable(view), NULL);
    if (owner != NULL) {
        owner->owns_data = true;
    }
    return (PyObject *)owner;
}

#define PARAMETERS_DOC                                                                                                 \
    "shape   a length, or a tuple of them\n"                                                                           \
    "dtype   any NumPy dtype without Python objects; None is float64\n"                                                \
    "order   'C' or 'F', the order of the elements in memory\n"                                                        \
    "device  the GPU the array belongs to: 'cuda', 'cuda:1', 1; None is the first one\n"                               \
    "home    where its pages prefer to live: 'cpu', 'cuda:0', 'numa:0'; None is no preference\n"                       \
    "\n"                                                                                                               \
    "Raises OutOfMemoryError when there is no room or a limit set with umem.set_limit forbids it."

PyDoc_STRVAR(empty_doc, "empty($module, /, shape, dtype=None, order='C', *, device=None, home=None)\n"
                        "--\n"
                        "\n"
                        "A new array whose contents are undefined.\n"
                        "\n" PARAMETERS_DOC);
PyDoc_STRVAR(zeros_doc, "zeros($module, /, shape, dtype=None, order='C', *, device=None, home=None)\n"
                        "--\n"
                        "\n"
                        "A new array of zeros.\n"
                        "\n" PARAMETERS_DOC);

static PyMethodDef create_methods[] = {
    {"empty", UM_METHOD(core_empty), METH_FASTCALL | METH_KEYWORDS, empty_doc},
    {"zeros", UM_METHOD(core_zeros), METH_FASTCALL | METH_KEYWORDS, zeros_doc},
    {"_as_owner", core_as_owner, METH_O, as_owner_doc},
    {NULL, NULL, 0, NULL},
};

int um_create_add(PyObject *module, um_state *state) {
    static const int numbers[UM_NUMBER_DTYPES] = {
        NPY_FLOAT32, NPY_FLOAT64, NPY_INT64,  NPY_UINT8,  NPY_INT32,  NPY_BOOL,      NPY_FLOAT16,
        NPY_INT8,    NPY_INT16,   NPY_UINT16, NPY_UINT32, NPY_UINT64, NPY_COMPLEX64, NPY_COMPLEX128,
    };
    for (size_t i = 0; i < UM_NUMBER_DTYPES; i++) {
        state->numbers[i] = PyArray_DescrFromType(numbers[i]);
        if (state->numbers[i] == NULL) {
            return -1;
        }
    }
    return PyModule_AddFunctions(module, create_methods);
}
