/* umem.DeviceView, what array.on(where) returns: the same memory for consumers that cannot say which side they want.
 *
 * It always says CPU, or always one GPU. It is no array: it has the protocols of that side and nothing else.
 */
#include "py/um_exchange.h"

typedef struct device_view {
    PyObject_HEAD um_ndarray *array; /* owned */
    um_location where;               /* UM_LOCATION_HOST or UM_LOCATION_DEVICE */
} device_view;

um_ndarray *um_array_behind(const um_state *state, PyObject *object) {
    if (um_ndarray_check(state, object)) {
        return (um_ndarray *)object;
    }
    return Py_IS_TYPE(object, state->exporter_type) ? ((device_view *)object)->array : NULL;
}

static bool is_cpu(const device_view *self) { return self->where.kind == UM_LOCATION_HOST; }

/* --- protocols -------------------------------------------------------------------------------------------------- */

static PyObject *view_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    device_view *view = (device_view *)self;
    return um_dlpack_export(um_state_of(self), view->array, view->where, args, nargs, kwnames);
}

static PyObject *view_dlpack_device(PyObject *self, PyObject *unused) {
    (void)unused;
    device_view *view = (device_view *)self;
    return um_dlpack_device(view->array, view->where);
}

static PyObject *refuse_attribute(const char *name, const char *where) {
    PyErr_Format(PyExc_AttributeError, "a view on(\"%s\") has no %s", where, name);
    return NULL;
}

static PyObject *view_get_cuda_array_interface(PyObject *self, void *closure) {
    device_view *view = (device_view *)self;
    if (is_cpu(view)) {
        return refuse_attribute("__cuda_array_interface__", "cpu");
    }
    return um_ndarray_get_cuda_array_interface((PyObject *)view->array, closure);
}

static PyObject *view_get_array_interface(PyObject *self, void *closure) {
    device_view *view = (device_view *)self;
    if (!is_cpu(view)) {
        return refuse_attribute("__array_interface__", "cuda");
    }
    return um_ndarray_get_array_interface((PyObject *)view->array, closure);
}

/* The array is the exporter, so that it also gets the release. */
static int view_getbuffer(PyObject *self, Py_buffer *buffer, int flags) {
    device_view *view = (device_view *)self;
    if (!is_cpu(view)) {
        buffer->obj = NULL;
        PyErr_SetString(PyExc_BufferError,
                        "a view on(\"cuda\") has no buffer for the CPU: use the array itself, or on(\"cpu\")");
        return -1;
    }
    return um_ndarray_getbuffer((PyObject *)view->array, buffer, flags);
}

/* NumPy asks for this last; without it an array on("cuda") would become an array of one object. */
static PyObject *view_array(PyObject *self, PyObject *args, PyObject *kwargs) {
    device_view *view = (device_view *)self;
    if (!is_cpu(view)) {
        PyErr_SetString(PyExc_TypeError, "a view on(\"cuda\") is not for NumPy: use the array itself, or on(\"cpu\")");
        return NULL;
    }
    PyObject *method = PyObject_GetAttrString((PyObject *)view->array, "__array__");
    PyObject *result = method == NULL ? NULL : PyObject_Call(method, args, kwargs);
    Py_XDECREF(method);
    return result;
}

/* --- attributes ------------------------------------------------------------------------------------------------- */

static PyObject *view_get_array(PyObject *self, void *closure) {
    (void)closure;
    return Py_NewRef((PyObject *)((device_view *)self)->array);
}

static PyObject *view_get_device(PyObject *self, void *closure) {
    (void)closure;
    return um_location_to_python(((device_view *)self)->where);
}

static PyObject *view_get_shape(PyObject *self, void *closure) {
    (void)closure;
    const um_ndarray *array = ((device_view *)self)->array;
    return PyArray_IntTupleFromIntp(array->ndim, array->shape);
}

static PyObject *view_get_dtype(PyObject *self, void *closure) {
    (void)closure;
    return Py_NewRef((PyObject *)((device_view *)self)->array->descr);
}

static PyObject *view_repr(PyObject *self) {
    device_view *view = (device_view *)self;
    PyObject *shape = view_get_shape(self, NULL);
    PyObject *where = view_get_device(self, NULL);
    PyObject *result = NULL;
    if (shape != NULL && where != NULL) {
        result = PyUnicode_FromFormat("<umem.DeviceView on %R: shape=%R, dtype=%S>", where, shape,
                                      (PyObject *)view->array->descr);
    }
    Py_XDECREF(where);
    Py_XDECREF(shape);
    return result;
}

/* --- the type --------------------------------------------------------------------------------------------------- */

static int view_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((device_view *)self)->array);
    return 0;
}

static void view_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(((device_view *)self)->array);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef view_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))view_dlpack, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
               "A DLPack capsule over the same memory, for this view's device.")},
    {"__dlpack_device__", view_dlpack_device, METH_NOARGS,
     PyDoc_STR("__dlpack_device__($self, /)\n--\n\n(1, 0) for the CPU, (2, n) for GPU n.")},
    {"__array__", (PyCFunction)(void (*)(void))view_array, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("__array__($self, dtype=None, /, *, copy=None)\n--\n\n"
               "The array for NumPy; TypeError unless the view is the CPU's.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef view_getset[] = {
    {"array", view_get_array, NULL, PyDoc_STR("The array this is a view of."), NULL},
    {"device", view_get_device, NULL, PyDoc_STR("\"cpu\" or \"cuda:n\"."), NULL},
    {"shape", view_get_shape, NULL, PyDoc_STR("Length of each axis."), NULL},
    {"dtype", view_get_dtype, NULL, PyDoc_STR("Type of the elements."), NULL},
    {"__cuda_array_interface__", view_get_cuda_array_interface, NULL,
     PyDoc_STR("Version 3; AttributeError for the CPU."), NULL},
    {"__array_interface__", view_get_array_interface, NULL, PyDoc_STR("Version 3; AttributeError for a GPU."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(view_doc,
             "An array's memory for consumers that cannot say which side they want: made by ndarray.on(where).\n\n"
             "It always says CPU, or always one GPU, through DLPack and the array interfaces.");

static PyType_Slot view_slots[] = {
    {Py_tp_doc, (void *)view_doc},     {Py_tp_dealloc, view_dealloc},
    {Py_tp_traverse, view_traverse},   {Py_tp_repr, view_repr},
    {Py_tp_methods, view_methods},     {Py_tp_getset, view_getset},
    {Py_bf_getbuffer, view_getbuffer}, {0, NULL},
};

static PyType_Spec view_spec = {
    .name = "umem.DeviceView",
    .basicsize = sizeof(device_view),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = view_slots,
};

PyObject *um_ndarray_on(PyObject *self, PyObject *where) {
    um_state *state = um_state_of(self);
    um_ndarray *array = (um_ndarray *)self;
    um_location location;
    if (um_parse_location(state, where, "where", um_block_device(array->block), false, &location) < 0) {
        return NULL;
    }
    if (location.kind != UM_LOCATION_HOST && location.kind != UM_LOCATION_DEVICE) {
        PyErr_SetString(PyExc_ValueError, "where must be \"cpu\" or a GPU: consumers do not know NUMA nodes");
        return NULL;
    }
    if (location.kind == UM_LOCATION_DEVICE && !um_context_is_cuda(um_block_context(array->block))) {
        PyErr_Format(PyExc_BufferError, "there is no GPU to show the array to: %s",
                     um_context_reason(um_block_context(array->block)));
        return NULL;
    }
    device_view *view = (device_view *)state->exporter_type->tp_alloc(state->exporter_type, 0);
    if (view != NULL) {
        view->array = (um_ndarray *)Py_NewRef(self);
        view->where = location;
    }
    return (PyObject *)view;
}

int um_exporter_add(PyObject *module, um_state *state) {
    state->exporter_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &view_spec, NULL);
    return state->exporter_type == NULL ? -1
                                        : PyModule_AddObjectRef(module, "DeviceView", (PyObject *)state->exporter_type);
}
