/* umem.Stream: a GPU stream of any library, and which stream umem's own work goes to. */
#include "py/um_exchange.h"

#define EACH_DEVICE (-1)

typedef struct stream_object {
    PyObject_HEAD um_stream_handle handle; /* as it was given: 0 and UM_STREAM_LEGACY are the same stream */
    int device;                            /* ordinal; EACH_DEVICE: the stream of that kind of each array's device */
    um_stream *stream;                     /* owned; NULL when it depends on the array's device or on the thread */
    um_context *ctx;                       /* owned when stream is set: core's streams do not outlive their context */
    PyObject *source;                      /* owned: keeps a foreign stream alive; NULL for a bare handle */
} stream_object;

#define ACCEPTED_FORMS                                                                                                 \
    "an integer handle (0 or 1 is the legacy default stream, 2 the per-thread one), an object with __cuda_stream__, "  \
    "a stream of PyTorch, CuPy or Numba, or a umem.Stream"

static um_stream_handle canonical_handle(um_stream_handle handle) { return handle == 0 ? UM_STREAM_LEGACY : handle; }

static bool is_implicit(um_stream_handle handle) {
    um_stream_handle canonical = canonical_handle(handle);
    return canonical == UM_STREAM_LEGACY || canonical == UM_STREAM_PER_THREAD;
}

/* --- reading handles out of other libraries' objects -------------------------------------------------------------- */

/* `object` is what `source` says its handle is: an integer, or something that converts to one. */
static int read_handle(PyObject *object, PyObject *source, um_stream_handle *out) {
    if (PyBool_Check(object)) {
        PyErr_Format(PyExc_TypeError, "stream must be %s, not a bool", ACCEPTED_FORMS);
        return -1;
    }
    PyNumberMethods *methods = Py_TYPE(object)->tp_as_number;
    PyObject *number = NULL;
    if (!PyIndex_Check(object) && !PyFloat_Check(object) && methods != NULL && methods->nb_int != NULL) {
        number = PyNumber_Long(object); /* handles of cuda-python define only __int__ */
    } else {
        number = PyNumber_Index(object);
    }
    if (number == NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "stream must be %s; the handle %R of '%.100s' is no integer", ACCEPTED_FORMS,
                         object, Py_TYPE(source)->tp_name);
        }
        return -1;
    }
    size_t value = PyLong_AsSize_t(number);
    Py_DECREF(number);
    if (value == (size_t)-1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Format(PyExc_TypeError, "stream must be %s; the handle %R of '%.100s' is negative or too large",
                         ACCEPTED_FORMS, object, Py_TYPE(source)->tp_name);
        }
        return -1;
    }
    *out = (um_stream_handle)value;
    return 0;
}

/* __cuda_stream__ is a method (cuda.core) or an attribute (its first draft) that gives (0, handle). */
static int read_protocol(PyObject *attribute, PyObject *source, um_stream_handle *out) {
    PyObject *pair = PyCallable_Check(attribute) ? PyObject_CallNoArgs(attribute) : Py_NewRef(attribute);
    if (pair == NULL) {
        return -1;
    }
    int result = -1;
    bool is_pair = PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2 && PyLong_Check(PyTuple_GET_ITEM(pair, 0));
    int version = is_pair ? PyObject_IsTrue(PyTuple_GET_ITEM(pair, 0)) : 1;
    if (version == 0) {
        result = read_handle(PyTuple_GET_ITEM(pair, 1), source, out);
    } else if (version > 0) {
        PyErr_Format(PyExc_TypeError, "stream: '%.100s'.__cuda_stream__ must give (0, handle), not %R",
                     Py_TYPE(source)->tp_name, pair);
    }
    Py_DECREF(pair);
    return result;
}

/* Numba's handle is a ctypes pointer, whose value is None when null; PyCUDA's is an integer. */
static int read_pointer(PyObject *object, PyObject *source, um_stream_handle *out) {
    PyObject *value = NULL;
    if (um_optional_attribute(object, "value", &value) < 0) {
        return -1;
    }
    int result = 0;
    if (value == NULL) {
        result = read_handle(object, source, out);
    } else if (Py_IsNone(value)) {
        *out = 0;
    } else {
        result = read_handle(value, source, out);
    }
    Py_XDECREF(value);
    return result;
}

/* Reads the handle out of one attribute with `reader`. 1 read, 0 no such attribute, -1 with an exception set. */
static int try_attribute(PyObject *source, const char *name, int (*reader)(PyObject *, PyObject *, um_stream_handle *),
                         um_stream_handle *out) {
    PyObject *attribute = NULL;
    if (um_optional_attribute(source, name, &attribute) < 0) {
        return -1;
    }
    if (attribute == NULL) {
        return 0;
    }
    int result = reader(attribute, source, out);
    Py_DECREF(attribute);
    return result < 0 ? -1 : 1;
}

static int can_synchronize(PyObject *source) {
    PyObject *attribute = NULL;
    int result = um_optional_attribute(source, "synchronize", &attribute);
    if (result == 0 && attribute != NULL) {
        result = 1;
    }
    Py_XDECREF(attribute);
    return result;
}

/* The handle of a stream given by integer or by any library's object. 0, or -1 with an exception set. */
static int handle_from_object(PyObject *source, um_stream_handle *out) {
    if (PyLong_Check(source)) {
        return read_handle(source, source, out);
    }
    int found = PyType_Check(source) ? 0 : try_attribute(source, "__cuda_stream__", read_protocol, out);
    if (found == 0) {
        found = try_attribute(source, "cuda_stream", read_handle, out); /* torch.cuda.Stream */
    }
    if (found == 0 && (found = can_synchronize(source)) > 0) {  /* a CuPy pointer has .ptr too, but cannot */
        found = try_attribute(source, "ptr", read_handle, out); /* cupy.cuda.Stream */
        if (found == 0) {
            found = try_attribute(source, "handle", read_pointer, out); /* Numba's and PyCUDA's streams */
        }
    }
    if (found == 0) {
        PyErr_Format(PyExc_TypeError, "stream must be %s, not '%.100s'", ACCEPTED_FORMS, Py_TYPE(source)->tp_name);
    }
    return found > 0 ? 0 : -1;
}

/* --- the type ----------------------------------------------------------------------------------------------------- */

/* Finds the device of self->handle and the stream as core sees it. `wanted` is an ordinal or EACH_DEVICE. */
static int bind_stream(um_state *state, um_context *ctx, stream_object *self, int wanted) {
    if (!um_context_is_cuda(ctx)) {
        return 0;
    }
    um_error err;
    int device = wanted;
    if (!is_implicit(self->handle)) {
        um_backend *backend = um_context_backend(ctx);
        unsigned long long id = 0;
        um_status status = backend->ops->stream_info(backend, self->handle, &device, &id, &err);
        if (status != UM_OK) {
            um_raise(state, &err);
            return -1;
        }
        if (wanted != EACH_DEVICE && device != wanted) {
            PyErr_Format(PyExc_ValueError, "device: the stream belongs to cuda:%d, not to cuda:%d", device, wanted);
            return -1;
        }
    }
    self->device = device;
    if (device == EACH_DEVICE || canonical_handle(self->handle) == UM_STREAM_PER_THREAD) {
        return 0;
    }
    if (um_stream_get(ctx, device, self->handle, &self->stream, &err) != UM_OK) {
        um_raise(state, &err);
        return -1;
    }
    self->ctx = um_context_ref(ctx);
    return 0;
}

/* The stream as core sees it, for work on `device`: a new reference, or NULL with an exception set. */
static um_stream *core_stream(um_state *state, um_context *ctx, const stream_object *self, int device) {
    if (self->stream != NULL) {
        return um_stream_ref(self->stream);
    }
    um_error err;
    um_stream *stream = NULL;
    int owner = self->device == EACH_DEVICE ? device : self->device;
    if (um_stream_get(ctx, owner, self->handle, &stream, &err) != UM_OK) {
        um_raise(state, &err);
        return NULL;
    }
    return stream;
}

static PyObject *stream_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"", "device", NULL};
    PyObject *source = NULL;
    PyObject *device = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:Stream", names, &source, &device)) {
        return NULL;
    }
    um_state *state = um_state_of_type(type);
    um_context *ctx = um_state_context(state);
    if (ctx == NULL) {
        return NULL;
    }
    int wanted = EACH_DEVICE;
    if (!Py_IsNone(device) && um_parse_device(state, device, &wanted) < 0) {
        return NULL;
    }
    um_stream_handle handle = 0;
    if (handle_from_object(source, &handle) < 0) {
        return NULL;
    }
    stream_object *self = (stream_object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->handle = handle;
    self->device = EACH_DEVICE;
    self->source = PyLong_Check(source) ? NULL : Py_NewRef(source);
    if (wanted == EACH_DEVICE && Py_IS_TYPE(source, type)) {
        wanted = ((stream_object *)source)->device;
    }
    if (bind_stream(state, ctx, self, wanted) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int stream_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((stream_object *)object)->source);
    return 0;
}

static int stream_clear(PyObject *object) {
    Py_CLEAR(((stream_object *)object)->source);
    return 0;
}

static void stream_dealloc(PyObject *object) {
    stream_object *self = (stream_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->stream != NULL) {
        um_stream_unref(self->stream);
        um_context_unref(self->ctx);
    }
    Py_XDECREF(self->source);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *stream_repr(PyObject *object) {
    stream_object *self = (stream_object *)object;
    um_stream_handle handle = canonical_handle(self->handle);
    char name[40];
    if (handle == UM_STREAM_LEGACY) {
        PyOS_snprintf(name, sizeof(name), "legacy default");
    } else if (handle == UM_STREAM_PER_THREAD) {
        PyOS_snprintf(name, sizeof(name), "per-thread default");
    } else {
        PyOS_snprintf(name, sizeof(name), "0x%zx", (size_t)handle);
    }
    if (self->device == EACH_DEVICE) {
        return PyUnicode_FromFormat("<umem.Stream %s>", name);
    }
    return PyUnicode_FromFormat("<umem.Stream %s of cuda:%d>", name, self->device);
}

static PyObject *stream_richcompare(PyObject *left, PyObject *right, int operation) {
    if ((operation != Py_EQ && operation != Py_NE) || !Py_IS_TYPE(right, Py_TYPE(left))) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    stream_object *a = (stream_object *)left;
    stream_object *b = (stream_object *)right;
    bool equal = canonical_handle(a->handle) == canonical_handle(b->handle) && a->device == b->device;
    return PyBool_FromLong(equal == (operation == Py_EQ));
}

static Py_hash_t stream_hash(PyObject *object) {
    stream_object *self = (stream_object *)object;
    Py_hash_t hash = (Py_hash_t)((canonical_handle(self->handle) >> 4) * 31u + (um_stream_handle)(self->device + 1));
    return hash == -1 ? -2 : hash;
}

static PyObject *stream_synchronize(PyObject *object, PyObject *Py_UNUSED(unused)) {
    stream_object *self = (stream_object *)object;
    um_state *state = um_state_of(object);
    um_context *ctx = um_state_context(state);
    if (ctx == NULL) {
        return NULL;
    }
    if (!um_context_is_cuda(ctx)) {
        Py_RETURN_NONE;
    }
    /* One default stream per device: waiting for all devices in use starts none of the others. */
    um_stream *stream = NULL;
    if (self->device != EACH_DEVICE && (stream = core_stream(state, ctx, self, self->device)) == NULL) {
        return NULL;
    }
    um_error err;
    um_status status = UM_OK;
    Py_BEGIN_ALLOW_THREADS
    status = stream != NULL ? um_stream_synchronize(stream, true, &err) : um_context_synchronize(ctx, &err);
    um_stream_unref(stream);
    Py_END_ALLOW_THREADS
    if (status != UM_OK) {
        return um_raise(state, &err);
    }
    Py_RETURN_NONE;
}

static PyObject *stream_protocol(PyObject *object, PyObject *Py_UNUSED(unused)) {
    return Py_BuildValue("(iN)", 0, PyLong_FromSize_t((size_t)((stream_object *)object)->handle));
}

static PyObject *stream_get_handle(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromSize_t((size_t)((stream_object *)object)->handle);
}

static PyObject *stream_get_device(PyObject *object, void *Py_UNUSED(closure)) {
    int device = ((stream_object *)object)->device;
    um_location where = {.kind = device == EACH_DEVICE ? UM_LOCATION_NONE : UM_LOCATION_DEVICE};
    where.id = device == EACH_DEVICE ? 0 : device;
    return um_location_to_python(where);
}

static PyMethodDef stream_methods[] = {
    {"synchronize", stream_synchronize, METH_NOARGS,
     PyDoc_STR("synchronize($self, /)\n--\n\n"
               "Wait until all work on the stream is done, that of other libraries included.\n\n"
               "A default stream without a device waits for every device in use. Nothing happens without a GPU.")},
    {"__cuda_stream__", stream_protocol, METH_NOARGS,
     PyDoc_STR("__cuda_stream__($self, /)\n--\n\n"
               "(0, handle): version and handle, as cuda.core and others take a stream.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef stream_getset[] = {
    {"handle", stream_get_handle, NULL, PyDoc_STR("The driver's handle, an int."), NULL},
    {"device", stream_get_device, NULL,
     PyDoc_STR("Device the stream belongs to, like 'cuda:0'; None for a default stream of each array's own device."),
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(
    stream_doc,
    "Stream(stream, /, device=None)\n--\n\n"
    "A GPU stream, whoever created it.\n\n"
    "Parameters\n----------\n"
    "stream : int or object\n"
    "    A driver handle (0 or 1: the legacy default stream, 2: the per-thread one), an object with\n"
    "    ``__cuda_stream__``, a stream of PyTorch, CuPy or Numba, or another Stream. An object is kept alive;\n"
    "    the owner of a bare handle keeps the stream alive.\n"
    "device : optional\n"
    "    The device of a default stream. By default it is each array's own; other streams know theirs.\n\n"
    "Raises\n------\n"
    "TypeError\n    `stream` is none of these.\n"
    "ValueError\n    The stream belongs to another device, or there is no such device.\n\n"
    "Notes\n-----\nWithout a GPU every stream is accepted and has no effect.");

static PyType_Slot stream_slots[] = {
    {Py_tp_doc, (void *)stream_doc},
    {Py_tp_new, stream_new},
    {Py_tp_dealloc, stream_dealloc},
    {Py_tp_traverse, stream_traverse},
    {Py_tp_clear, stream_clear},
    {Py_tp_repr, stream_repr},
    {Py_tp_richcompare, stream_richcompare},
    {Py_tp_hash, stream_hash},
    {Py_tp_methods, stream_methods},
    {Py_tp_getset, stream_getset},
    {0, NULL},
};

static PyType_Spec stream_spec = {
    .name = "umem.Stream",
    .basicsize = sizeof(stream_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = stream_slots,
};

/* --- what the rest of the module asks ----------------------------------------------------------------------------- */

/* The Stream of the active umem.stream context: 1 with a new reference, 0 for none, -1 with an exception set. */
static int find_active(um_state *state, stream_object **out) {
    PyObject *value = NULL;
    if (PyContextVar_Get(state->current_stream, NULL, &value) < 0) {
        return -1;
    }
    if (value == NULL || Py_IsNone(value)) {
        Py_XDECREF(value);
        return 0;
    }
    if (!Py_IS_TYPE(value, state->stream_type)) {
        PyErr_Format(PyExc_TypeError, "the current stream must be a umem.Stream, not '%.100s': use umem.stream(...)",
                     Py_TYPE(value)->tp_name);
        Py_DECREF(value);
        return -1;
    }
    *out = (stream_object *)value;
    return 1;
}

um_stream *um_current_stream(um_state *state, int device) {
    um_context *ctx = um_state_context(state);
    if (ctx == NULL) {
        return NULL;
    }
    stream_object *active = NULL;
    int found = find_active(state, &active);
    if (found < 0) {
        return NULL;
    }
    um_stream *stream = NULL;
    if (found > 0) {
        stream = core_stream(state, ctx, active, device);
        Py_DECREF(active);
        return stream;
    }
    um_error err;
    if (um_stream_get(ctx, device, UM_STREAM_LEGACY, &stream, &err) != UM_OK) {
        um_raise(state, &err);
        return NULL;
    }
    return stream;
}

int um_explicit_stream(um_state *state, um_stream **out) {
    stream_object *active = NULL;
    int found = find_active(state, &active);
    if (found <= 0) {
        return found;
    }
    /* Without a device it stands for the default streams: the legacy one is ordered with the per-thread ones. */
    int result = 0;
    if (active->device != EACH_DEVICE) {
        um_context *ctx = um_state_context(state);
        um_stream *stream = ctx != NULL ? core_stream(state, ctx, active, active->device) : NULL;
        result = stream != NULL ? 1 : -1;
        if (stream != NULL) {
            *out = stream;
        }
    }
    Py_DECREF(active);
    return result;
}

int um_is_deferred(um_state *state) {
    PyObject *value = NULL;
    if (PyContextVar_Get(state->deferred, NULL, &value) < 0) {
        return -1;
    }
    if (value == NULL) {
        return 0;
    }
    int deferred = PyObject_IsTrue(value);
    Py_DECREF(value);
    return deferred;
}

int um_streams_add(PyObject *module, um_state *state) {
    state->stream_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &stream_spec, NULL);
    if (state->stream_type == NULL || PyModule_AddObjectRef(module, "Stream", (PyObject *)state->stream_type) < 0) {
        return -1;
    }
    state->current_stream = PyContextVar_New("umem.current_stream", NULL);
    if (state->current_stream == NULL || PyModule_AddObjectRef(module, "current_stream", state->current_stream) < 0) {
        return -1;
    }
    state->deferred = PyContextVar_New("umem.deferred", NULL);
    if (state->deferred == NULL || PyModule_AddObjectRef(module, "deferred_var", state->deferred) < 0) {
        return -1;
    }
    return 0;
}
