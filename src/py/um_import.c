/* Recognising memory that comes in: arrays of other libraries that lie in managed memory become umem arrays over the
 * same bytes.
 *
 * Tried in this order: __cuda_array_interface__, what NumPy can view without a copy (buffer protocol,
 * __array_interface__), DLPack.
 */
#include "py/um_exchange.h"

/* --- the object behind an array --------------------------------------------------------------------------------- */

static void release_object(void *object) {
    if (!um_python_is_alive()) {
        return; /* too late to run any destructor; the process is about to end */
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    Py_DECREF((PyObject *)object);
    PyGILState_Release(gil);
}

/* Shares when the memory is managed, else None. Sets *kind; `keeper` keeps the memory alive. */
static PyObject *share_if_managed(um_state *state, const um_foreign *foreign, um_memory *memory, PyObject *keeper) {
    if (memory->kind != UM_MEMORY_OURS && memory->kind != UM_MEMORY_MANAGED) {
        Py_RETURN_NONE;
    }
    um_owner owner = {.release = release_object, .object = Py_NewRef(keeper)};
    PyObject *result = (PyObject *)um_foreign_share(state, foreign, memory, &owner);
    Py_XDECREF((PyObject *)owner.object);
    return result;
}

/* --- __cuda_array_interface__ ----------------------------------------------------------------------------------- */

#define CAI        "__cuda_array_interface__"
#define CAI_NEWEST 3

typedef struct cai_array {
    um_foreign foreign;
    bool has_stream;
    um_stream_handle stream;
} cai_array;

/* Borrowed; NULL with an exception set only when `needed`. None counts as missing. */
static PyObject *cai_field(PyObject *dict, const char *key, bool needed) {
    PyObject *name = PyUnicode_FromString(key);
    if (name == NULL) {
        return NULL;
    }
    PyObject *value = PyDict_GetItemWithError(dict, name);
    Py_DECREF(name);
    if (value == Py_None) {
        value = NULL;
    }
    if (value == NULL && needed && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, CAI " has no \"%s\"", key);
    }
    return value;
}

static int read_int(PyObject *object, const char *what, long long *out) {
    if (!PyIndex_Check(object)) {
        PyErr_Format(PyExc_TypeError, CAI ": %s must be an int, not %.200s", what, Py_TYPE(object)->tp_name);
        return -1;
    }
    PyObject *number = PyNumber_Index(object);
    if (number == NULL) {
        return -1;
    }
    int overflow;
    *out = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    if (overflow != 0) {
        PyErr_Format(PyExc_ValueError, CAI ": %s is out of range", what);
        return -1;
    }
    return 0;
}

/* The entries of a tuple of ints; their number, or -1. */
static int read_ints(PyObject *object, const char *what, npy_intp out[UM_MAX_NDIM]) {
    if (!PyTuple_Check(object) && !PyList_Check(object)) {
        PyErr_Format(PyExc_TypeError, CAI ": %s must be a tuple of ints, not %.200s", what, Py_TYPE(object)->tp_name);
        return -1;
    }
    if (PySequence_Size(object) > UM_MAX_NDIM) {
        PyErr_Format(PyExc_ValueError, CAI ": %s has more than %d entries", what, UM_MAX_NDIM);
        return -1;
    }
    int count = 0;
    /* __index__ may shrink a list, so its size is asked anew each time. */
    for (; count < PySequence_Size(object) && count < UM_MAX_NDIM; count++) {
        PyObject *entry = PySequence_GetItem(object, count);
        long long value;
        int status = entry == NULL ? -1 : read_int(entry, what, &value);
        Py_XDECREF(entry);
        if (status < 0) {
            return -1;
        }
        out[count] = (npy_intp)value;
    }
    return count;
}

static int read_shape(PyObject *dict, um_foreign *foreign) {
    PyObject *shape = cai_field(dict, "shape", true);
    if (shape == NULL) {
        return -1;
    }
    foreign->ndim = read_ints(shape, "shape", foreign->shape);
    for (int i = 0; i < foreign->ndim; i++) {
        if (foreign->shape[i] < 0) {
            PyErr_Format(PyExc_ValueError, CAI ": axis %d has the negative length %zd", i,
                         (Py_ssize_t)foreign->shape[i]);
            return -1;
        }
    }
    return foreign->ndim < 0 ? -1 : 0;
}

static int read_strides(PyObject *dict, um_foreign *foreign) {
    PyObject *strides = cai_field(dict, "strides", false);
    if (strides == NULL) {
        um_fill_c_strides(foreign->ndim, foreign->shape, PyDataType_ELSIZE(foreign->descr), foreign->strides);
        return PyErr_Occurred() ? -1 : 0;
    }
    int count = read_ints(strides, "strides", foreign->strides);
    if (count >= 0 && count != foreign->ndim) {
        PyErr_Format(PyExc_ValueError, CAI ": %d strides for %d axes", count, foreign->ndim);
        return -1;
    }
    return count < 0 ? -1 : 0;
}

static int read_data(PyObject *dict, um_foreign *foreign) {
    PyObject *data = cai_field(dict, "data", true);
    if (data == NULL) {
        return -1;
    }
    if (!PyTuple_Check(data) || PyTuple_GET_SIZE(data) != 2) {
        PyErr_SetString(PyExc_TypeError, CAI ": data must be a tuple (pointer, read-only)");
        return -1;
    }
    long long address;
    int read_only = PyObject_IsTrue(PyTuple_GET_ITEM(data, 1));
    if (read_only < 0 || read_int(PyTuple_GET_ITEM(data, 0), "the data pointer", &address) < 0) {
        return -1;
    }
    if (address < 0) {
        PyErr_SetString(PyExc_ValueError, CAI ": the data pointer is negative");
        return -1;
    }
    foreign->data = (char *)(uintptr_t)address;
    foreign->writeable = read_only == 0;
    return 0;
}

/* A new reference. The field list of a record dtype is used when it describes as many bytes as typestr. */
static PyArray_Descr *read_typestr(PyObject *dict) {
    PyObject *typestr = cai_field(dict, "typestr", true);
    if (typestr == NULL) {
        return NULL;
    }
    if (!PyUnicode_Check(typestr)) {
        PyErr_Format(PyExc_TypeError, CAI ": typestr must be a str, not %.200s", Py_TYPE(typestr)->tp_name);
        return NULL;
    }
    PyArray_Descr *descr = NULL;
    if (PyArray_DescrConverter(typestr, &descr) != NPY_SUCCEED) {
        if (PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_ValueError)) {
            PyErr_Format(PyExc_ValueError, CAI ": typestr %R is no dtype", typestr);
        }
        return NULL;
    }
    if (PyDataType_HASSUBARRAY(descr)) {
        PyErr_Format(PyExc_ValueError, CAI ": typestr %R has a shape of its own; put it into `shape`", typestr);
        Py_DECREF(descr);
        return NULL;
    }
    PyObject *fields = descr->kind == 'V' ? cai_field(dict, "descr", false) : NULL;
    if (fields == NULL && PyErr_Occurred()) {
        Py_DECREF(descr);
        return NULL;
    }
    if (fields != NULL && PyList_Check(fields)) {
        PyArray_Descr *record = NULL;
        if (PyArray_DescrConverter(fields, &record) != NPY_SUCCEED) {
            if (PyErr_ExceptionMatches(PyExc_MemoryError)) {
                Py_DECREF(descr);
                return NULL;
            }
            PyErr_Clear(); /* the bytes are right all the same */
        } else if (PyDataType_ELSIZE(record) == PyDataType_ELSIZE(descr)) {
            Py_SETREF(descr, record);
        } else {
            Py_DECREF(record);
        }
    }
    if (um_check_dtype(descr) < 0) {
        Py_CLEAR(descr);
    }
    return descr;
}

static int read_stream(PyObject *dict, cai_array *array) {
    PyObject *stream = cai_field(dict, "stream", false);
    array->has_stream = false;
    if (stream == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    long long handle;
    if (read_int(stream, "stream", &handle) < 0) {
        return -1;
    }
    if (handle <= 0) {
        PyErr_Format(PyExc_ValueError, CAI ": stream must be None, 1, 2 or a CUDA stream handle, not %lld", handle);
        return -1;
    }
    array->has_stream = true;
    array->stream = (um_stream_handle)handle;
    return 0;
}

static int check_version_and_mask(PyObject *dict) {
    PyObject *version = cai_field(dict, "version", true);
    long long number;
    if (version == NULL || read_int(version, "version", &number) < 0) {
        return -1;
    }
    if (number < 0 || number > CAI_NEWEST) {
        PyErr_Format(PyExc_ValueError, CAI " of version %lld is not understood; %d is the newest that is", number,
                     CAI_NEWEST);
        return -1;
    }
    if (cai_field(dict, "mask", false) != NULL) {
        PyErr_SetString(PyExc_ValueError, CAI ": arrays with a mask are not supported");
        return -1;
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int read_fields(PyObject *interface, cai_array *array) {
    um_foreign *foreign = &array->foreign;
    *array = (cai_array){.foreign = {.from_gpu = true}};
    if (check_version_and_mask(interface) < 0 || read_shape(interface, foreign) < 0 ||
        read_data(interface, foreign) < 0 || read_stream(interface, array) < 0) {
        return -1;
    }
    foreign->descr = read_typestr(interface);
    if (foreign->descr == NULL) {
        return -1;
    }
    if (read_strides(interface, foreign) < 0 || um_foreign_measure(foreign) < 0) {
        Py_CLEAR(foreign->descr);
        return -1;
    }
    return 0;
}

/* Fills *array, with a new reference in its descr. */
static int read_interface(PyObject *interface, cai_array *array) {
    if (!PyDict_Check(interface)) {
        PyErr_Format(PyExc_TypeError, CAI " must be a dict, not %.200s", Py_TYPE(interface)->tp_name);
        return -1;
    }
    /* Read from a copy, which keeps the entries alive: code of theirs, or another thread, may change the dict meanwhile. */
    PyObject *copy = PyDict_Copy(interface);
    int result = copy != NULL ? read_fields(copy, array) : -1;
    Py_XDECREF(copy);
    return result;
}

/* --- arrays with __cuda_array_interface__ ----------------------------------------------------------------------- */

static int follow_exporter(um_state *state, const cai_array *array, int device) {
    return array->has_stream ? um_follow_stream(state, device, array->stream) : 0;
}

static PyObject *alias_interface(um_state *state, PyObject *x, PyObject *interface) {
    cai_array array;
    um_memory memory = {0};
    if (read_interface(interface, &array) < 0) {
        return NULL;
    }
    um_context *ctx = um_state_context(state);
    PyObject *result = NULL;
    if (ctx == NULL) {
        goto done;
    }
    if (array.foreign.empty || !um_context_is_cuda(ctx)) {
        result = Py_NewRef(Py_None);
        goto done;
    }
    if (um_foreign_locate(state, &array.foreign, &memory) < 0 || follow_exporter(state, &array, memory.device) < 0) {
        goto done;
    }
    result = share_if_managed(state, &array.foreign, &memory, x);
done:
    if (memory.block != NULL) {
        um_block_unref(memory.block);
    }
    Py_DECREF(array.foreign.descr);
    return result;
}

static um_ndarray *copy_interface(um_state *state, const cai_array *array, PyObject *x) {
    const um_foreign *foreign = &array->foreign;
    um_memory memory = {0};
    if (foreign->empty) {
        um_location anywhere = {.kind = UM_LOCATION_NONE, .id = 0};
        Py_INCREF(foreign->descr);
        return um_ndarray_empty(state, foreign->descr, foreign->ndim, foreign->shape, 'C', 0, anywhere);
    }
    um_ndarray *result = NULL;
    if (um_foreign_locate(state, foreign, &memory) == 0 && follow_exporter(state, array, memory.device) == 0) {
        um_owner owner = {.release = release_object, .object = Py_NewRef(x)};
        result = um_foreign_copy(state, foreign, &memory, &owner, memory.device);
        Py_XDECREF((PyObject *)owner.object);
    }
    if (memory.block != NULL) {
        um_block_unref(memory.block);
    }
    return result;
}

PyDoc_STRVAR(copy_device_doc, "copy_device(x, /)\n--\n\n"
                              "A new array with the elements of x, an object with __cuda_array_interface__.\n\n"
                              "Waits until the copy is done. BufferError where umem runs without a GPU.");

static PyObject *copy_device(PyObject *module, PyObject *x) {
    um_state *state = um_state_of_module(module);
    um_context *ctx = um_state_context(state);
    PyObject *interface;
    if (ctx == NULL || um_optional_attribute(x, CAI, &interface) < 0) {
        return NULL;
    }
    if (interface == NULL) {
        PyErr_Format(PyExc_TypeError, "%.200s has no " CAI, Py_TYPE(x)->tp_name);
        return NULL;
    }
    cai_array array;
    um_ndarray *result = NULL;
    if (!um_context_is_cuda(ctx)) {
        PyErr_Format(PyExc_BufferError, "the array is on a GPU, and umem runs without one: %s", um_context_reason(ctx));
    } else if (read_interface(interface, &array) == 0) {
        result = copy_interface(state, &array, x);
        Py_DECREF(array.foreign.descr);
    }
    Py_DECREF(interface);
    return (PyObject *)result;
}

/* --- what NumPy can view ---------------------------------------------------------------------------------------- */

/* Whether the array got its memory from umem in a way that counts as a host view while it lives: numpy(), or the
 * buffer protocol. */
static bool is_counted_view(const um_state *state, PyArrayObject *array) {
    PyObject *base = PyArray_BASE(array);
    while (base != NULL && PyArray_Check(base)) {
        base = PyArray_BASE((PyArrayObject *)base);
    }
    if (base == NULL || !PyMemoryView_Check(base)) {
        return base != NULL && PyCapsule_IsValid(base, UM_HOST_VIEW);
    }
    PyObject *exporter = PyMemoryView_GET_BUFFER(base)->obj;
    return exporter != NULL && um_ndarray_check(state, exporter);
}

static PyObject *alias_numpy(um_state *state, PyArrayObject *array) {
    um_foreign foreign = {
        .data = PyArray_BYTES(array),
        .descr = PyArray_DESCR(array),
        .ndim = PyArray_NDIM(array),
        .writeable = PyArray_ISWRITEABLE(array) != 0,
        .from_host = !is_counted_view(state, array),
    };
    if (PyDataType_REFCHK(foreign.descr) || foreign.ndim > UM_MAX_NDIM) {
        Py_RETURN_NONE;
    }
    for (int i = 0; i < foreign.ndim; i++) {
        foreign.shape[i] = PyArray_DIM(array, i);
        foreign.strides[i] = PyArray_STRIDE(array, i);
    }
    um_memory memory = {0};
    if (um_foreign_measure(&foreign) < 0) {
        return NULL;
    }
    if (foreign.empty) {
        Py_RETURN_NONE;
    }
    if (um_foreign_locate(state, &foreign, &memory) < 0) {
        return NULL;
    }
    PyObject *result = share_if_managed(state, &foreign, &memory, (PyObject *)array);
    if (memory.block != NULL) {
        um_block_unref(memory.block);
    }
    return result;
}

/* 1 when NumPy makes an array over the memory of x, 0 when it would build one from values. */
static int numpy_can_view(PyObject *x) {
    static const char *const attributes[] = {"__array_struct__", "__array_interface__"};
    if (PyObject_CheckBuffer(x)) {
        return 1;
    }
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        PyObject *found;
        if (um_optional_attribute(x, attributes[i], &found) < 0) {
            return -1;
        }
        if (found != NULL) {
            Py_DECREF(found);
            return 1;
        }
    }
    return 0;
}

/* --- alias ------------------------------------------------------------------------------------------------------ */

/* Builtins that have no memory of their own to offer, and NumPy scalars: the common case, without looking for
 * protocols. */
static bool is_plain_value(PyObject *x) {
    return x == Py_None || PyLong_Check(x) || PyFloat_Check(x) || PyComplex_Check(x) || PyUnicode_Check(x) ||
           PyBytes_Check(x) || PyList_Check(x) || PyTuple_Check(x) || PyDict_Check(x) || PyArray_CheckScalar(x);
}

static PyObject *alias_other(um_state *state, PyObject *x) {
    PyObject *found;
    if (um_optional_attribute(x, CAI, &found) < 0) {
        return NULL;
    }
    if (found != NULL) {
        PyObject *result = alias_interface(state, x, found);
        Py_DECREF(found);
        return result;
    }
    int viewable = numpy_can_view(x);
    if (viewable < 0) {
        return NULL;
    }
    if (viewable) {
        PyObject *array = PyArray_FromAny(x, NULL, 0, 0, 0, NULL);
        PyObject *result = array == NULL ? NULL : alias_numpy(state, (PyArrayObject *)array);
        Py_XDECREF(array);
        return result;
    }
    if (um_optional_attribute(x, "__dlpack__", &found) < 0) {
        return NULL;
    }
    if (found != NULL) {
        Py_DECREF(found);
        if (um_optional_attribute(x, "__dlpack_device__", &found) < 0) {
            return NULL;
        }
    }
    if (found != NULL) {
        Py_DECREF(found);
        return um_dlpack_alias(state, x);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    alias_doc,
    "alias(x, /)\n--\n\n"
    "An array over the memory of x, if that is managed memory or a block of umem's; else None.\n\n"
    "x may have __cuda_array_interface__, the buffer protocol, __array_interface__ or __dlpack__. Dtype, strides\n"
    "and read-only-ness are kept. A umem array is returned as it is.");

static PyObject *alias(PyObject *module, PyObject *x) {
    um_state *state = um_state_of_module(module);
    if (um_ndarray_check(state, x)) {
        return Py_NewRef(x);
    }
    if (PyArray_Check(x)) {
        return alias_numpy(state, (PyArrayObject *)x);
    }
    um_ndarray *behind = um_array_behind(state, x);
    if (behind != NULL) {
        return Py_NewRef((PyObject *)behind);
    }
    if (is_plain_value(x) || PyType_Check(x)) {
        Py_RETURN_NONE;
    }
    return alias_other(state, x);
}

PyDoc_STRVAR(
    from_dlpack_doc,
    "from_dlpack(x, /, *, device=None, copy=None)\n--\n\n"
    "An array with the elements of x, an object with __dlpack__ and __dlpack_device__.\n\n"
    "Memory that is managed is shared, other memory is copied into managed memory. copy=True always copies;\n"
    "copy=False raises ValueError where a copy would be needed. device= says who must be able to use the result:\n"
    "managed memory serves \"cpu\" and \"cuda\" alike; with \"cuda:1\" an array that another GPU owns is copied.\n"
    "Legacy capsules are writable. BufferError for what x cannot export and for tensors that umem cannot take.");

static PyMethodDef import_functions[] = {
    {"alias", alias, METH_O, alias_doc},
    {"copy_device", copy_device, METH_O, copy_device_doc},
    {"from_dlpack", (PyCFunction)(void (*)(void))um_from_dlpack, METH_VARARGS | METH_KEYWORDS, from_dlpack_doc},
    {NULL, NULL, 0, NULL},
};

int um_import_add(PyObject *module, um_state *state) {
    (void)state;
    return PyModule_AddFunctions(module, import_functions);
}
