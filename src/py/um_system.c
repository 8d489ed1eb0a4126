/* The machine and the memory policy as Python sees them: info, devices, limits, synchronize. */
#include "py/um_alloc_conf.h"

#include "core/um_pool.h"
#include "core/um_residency.h"

/* --- building dictionaries ---------------------------------------------------------------------------------------- */

/* Adds a value (stolen; NULL: an exception is set). -1 with an exception set. */
static int put(PyObject *dict, const char *key, PyObject *value) {
    int result = value == NULL ? -1 : PyDict_SetItemString(dict, key, value);
    Py_XDECREF(value);
    return result;
}

static PyObject *text_or_none(const char *text) {
    /* A path or a device's name may hold any bytes. */
    return text != NULL && text[0] != '\0' ? PyUnicode_DecodeFSDefault(text) : Py_NewRef(Py_None);
}

static PyObject *limit_to_python(size_t limit) {
    return limit == SIZE_MAX ? Py_NewRef(Py_None) : PyLong_FromSize_t(limit);
}

/* --- devices and info --------------------------------------------------------------------------------------------- */

static PyObject *device_to_python(int index, const um_device_info *info) {
    PyObject *dict = PyDict_New();
    if (dict == NULL) {
        return NULL;
    }
    PyObject *node = info->numa_node < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(info->numa_node);
    if (put(dict, "index", PyLong_FromLong(index)) < 0 || put(dict, "name", text_or_none(info->name)) < 0 ||
        put(dict, "uuid", text_or_none(info->uuid)) < 0 ||
        put(dict, "compute_capability", Py_BuildValue("(ii)", info->compute_major, info->compute_minor)) < 0 ||
        put(dict, "total_memory", PyLong_FromSize_t(info->total_memory)) < 0 ||
        put(dict, "multiprocessors", PyLong_FromLong(info->multiprocessors)) < 0 ||
        put(dict, "l2_cache", PyLong_FromLong(info->l2_cache)) < 0 || put(dict, "numa_node", Py_XNewRef(node)) < 0 ||
        put(dict, "managed_memory", PyBool_FromLong(info->managed_memory)) < 0 ||
        put(dict, "concurrent_managed_access", PyBool_FromLong(info->concurrent_managed_access)) < 0 ||
        put(dict, "pageable_memory_access", PyBool_FromLong(info->pageable_memory_access)) < 0 ||
        put(dict, "host_native_atomics", PyBool_FromLong(info->host_native_atomics)) < 0 ||
        put(dict, "direct_host_access", PyBool_FromLong(info->direct_host_access)) < 0 ||
        put(dict, "memory_pools", PyBool_FromLong(info->memory_pools)) < 0) {
        Py_CLEAR(dict);
    }
    Py_XDECREF(node);
    return dict;
}

static PyObject *list_devices(um_state *state, um_context *ctx) {
    um_backend *backend = um_context_backend(ctx);
    PyObject *list = PyList_New(0);
    for (int index = 0; list != NULL && index < backend->device_count; ++index) {
        um_device_info info;
        um_error err;
        um_status status = UM_OK;
        Py_BEGIN_ALLOW_THREADS
        status = backend->ops->device_info(backend, index, &info, &err);
        Py_END_ALLOW_THREADS
        if (status != UM_OK) {
            um_raise(state, &err);
            Py_CLEAR(list);
            break;
        }
        PyObject *device = device_to_python(index, &info);
        if (device == NULL || PyList_Append(list, device) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(device);
    }
    return list;
}

PyDoc_STRVAR(
    devices_doc,
    "devices($module, /)\n--\n\n"
    "The GPUs in use: a list of dicts, empty without one.\n\n"
    "Keys: index, name, uuid, compute_capability, total_memory and l2_cache (bytes), multiprocessors, numa_node (of the\n"
    "host, next to the GPU; None when unknown), managed_memory, concurrent_managed_access, pageable_memory_access,\n"
    "host_native_atomics, direct_host_access, memory_pools.");

static PyObject *core_devices(PyObject *module, PyObject *Py_UNUSED(unused)) {
    um_state *state = um_state_of_module(module);
    um_context *ctx = um_state_context(state);
    return ctx != NULL ? list_devices(state, ctx) : NULL;
}

/* 13020 is CUDA 13.2. */
static PyObject *version_to_python(int version) {
    return version > 0 ? PyUnicode_FromFormat("%d.%d", version / 1000, version % 1000 / 10) : Py_NewRef(Py_None);
}

static PyObject *list_nodes(const um_numa *numa) {
    PyObject *list = PyList_New(0);
    for (int node = 0; list != NULL && node < UM_NUMA_MOST; ++node) {
        if (!um_numa_has(numa, node)) {
            continue;
        }
        PyObject *number = PyLong_FromLong(node);
        if (number == NULL || PyList_Append(list, number) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(number);
    }
    return list;
}

PyDoc_STRVAR(
    info_doc,
    "info($module, /)\n--\n\n"
    "What umem runs on, as a dict.\n\n"
    "Keys: version, backend ('cuda' or 'host'), reason (why that one), driver (its CUDA version as a number, like 13000, or\n"
    "None), driver_version (like '13.0', or None), library (path of the driver, or None), devices (as `devices`), kernels\n"
    "(whether this build has CUDA kernels), page_size (of the host, bytes), numa_nodes (of the host), numa (whether pages on\n"
    "the host are made on the node next to their GPU: where there are several, unless UMEM_ALLOC_CONF says numa:off), limit\n"
    "(bytes, or None).");

static PyObject *core_info(PyObject *module, PyObject *Py_UNUSED(unused)) {
    um_state *state = um_state_of_module(module);
    um_context *ctx = um_state_context(state);
    PyObject *dict = ctx != NULL ? PyDict_New() : NULL;
    if (dict == NULL) {
        return NULL;
    }
    const um_backend *backend = um_context_backend(ctx);
    int version = backend->driver_version;
    bool cuda = um_context_is_cuda(ctx);
    if (put(dict, "version", PyUnicode_FromString(UM_VERSION)) < 0 ||
        put(dict, "backend", PyUnicode_FromString(backend->ops->name)) < 0 ||
        put(dict, "reason", text_or_none(um_context_reason(ctx))) < 0 ||
        put(dict, "driver", version > 0 ? PyLong_FromLong(version) : Py_NewRef(Py_None)) < 0 ||
        put(dict, "driver_version", version_to_python(version)) < 0 ||
        put(dict, "library", text_or_none(cuda ? backend->driver_path : NULL)) < 0 ||
        put(dict, "devices", list_devices(state, ctx)) < 0 || put(dict, "kernels", PyBool_FromLong(UM_HAVE_CUDA)) < 0 ||
        put(dict, "page_size", PyLong_FromSize_t(um_page_size())) < 0 ||
        put(dict, "numa_nodes", list_nodes(&backend->numa)) < 0 ||
        put(dict, "numa", PyBool_FromLong(backend->numa.count > 1 && !backend->numa.off)) < 0 ||
        put(dict, "limit", limit_to_python(um_pool_get_limit(ctx, UM_ALL_DEVICES))) < 0) {
        Py_CLEAR(dict);
    }
    return dict;
}

PyDoc_STRVAR(synchronize_doc,
             "synchronize($module, /)\n--\n\n"
             "Wait until every GPU in use is idle: umem's work and that of other libraries in this process.");

static PyObject *core_synchronize(PyObject *module, PyObject *Py_UNUSED(unused)) {
    um_state *state = um_state_of_module(module);
    um_context *ctx = um_state_context(state);
    if (ctx == NULL) {
        return NULL;
    }
    um_error err;
    um_status status = UM_OK;
    Py_BEGIN_ALLOW_THREADS
    status = um_context_synchronize(ctx, &err);
    Py_END_ALLOW_THREADS
    if (status != UM_OK) {
        return um_raise(state, &err);
    }
    Py_RETURN_NONE;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

um_context *um_read_device(um_state *state, PyObject *args, PyObject *kwargs, const char *format, int *device) {
    static char *names[] = {"device", NULL};
    PyObject *given = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, names, &given)) {
        return NULL;
    }
    um_context *ctx = um_state_context(state);
    *device = UM_ALL_DEVICES;
    if (ctx == NULL || (!Py_IsNone(given) && um_parse_device(state, given, device) < 0)) {
        return NULL;
    }
    return ctx;
}

/* A limit as an int, as text, or None. */
static int read_limit(um_state *state, um_context *ctx, PyObject *object, int device, size_t *out) {
    if (Py_IsNone(object)) {
        *out = SIZE_MAX;
        return 0;
    }
    if (PyUnicode_Check(object)) {
        size_t total = 0;
        return um_total_memory(state, ctx, device, &total) < 0 ? -1 : um_parse_size(object, "limit", total, out);
    }
    if (!PyIndex_Check(object) || PyBool_Check(object)) {
        PyErr_Format(PyExc_TypeError,
                     "limit must be bytes as an int, a str like '4GiB' or '80%%', or None, not '%.100s'",
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    PyObject *number = PyNumber_Index(object);
    if (number == NULL) {
        return -1;
    }
    size_t limit = PyLong_AsSize_t(number);
    if (limit == (size_t)-1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Format(PyExc_ValueError,
                         "limit=%R must be 0 or more bytes, and fit an address space; None takes the limit off",
                         number);
        }
        Py_DECREF(number);
        return -1;
    }
    Py_DECREF(number);
    *out = limit;
    return 0;
}

PyDoc_STRVAR(
    set_limit_doc,
    "set_limit($module, limit, device=None)\n--\n\n"
    "Limit the bytes that umem holds from the driver or system in this process.\n\n"
    "Parameters\n----------\n"
    "limit : int, str or None\n"
    "    Bytes, or a size like \"4GiB\", \"500 MB\" or \"80%\" (of the device's memory; of that of all devices together\n"
    "    when `device` is None; of the system's without a GPU). None takes the limit off. Where more is held than the\n"
    "    limit, what no array uses is given back; arrays stay, and new ones are refused.\n"
    "device : optional\n"
    "    The GPU to limit. None: all together.\n\n"
    "Raises\n------\n"
    "ValueError\n    `limit` is negative or no size, or there is no such device.\n"
    "TypeError\n    `limit` is of another type.");

static PyObject *core_set_limit(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"limit", "device", NULL};
    um_state *state = um_state_of_module(module);
    PyObject *given = NULL;
    PyObject *where = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:set_limit", names, &given, &where)) {
        return NULL;
    }
    um_context *ctx = um_state_context(state);
    int device = UM_ALL_DEVICES;
    size_t limit = 0;
    if (ctx == NULL || (!Py_IsNone(where) && um_parse_device(state, where, &device) < 0) ||
        read_limit(state, ctx, given, device, &limit) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS /* waits for the GPU when memory has to go back */
    um_pool_set_limit(ctx, device, limit);
    Py_END_ALLOW_THREADS
    if (PyErr_Occurred()) { /* Ctrl-C in that wait; the limit is set */
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(get_limit_doc, "get_limit($module, /, device=None)\n--\n\n"
                            "The limit of a device, or of all together, in bytes; None when there is none.");

static PyObject *core_get_limit(PyObject *module, PyObject *args, PyObject *kwargs) {
    int device = 0;
    um_context *ctx = um_read_device(um_state_of_module(module), args, kwargs, "|O:get_limit", &device);
    return ctx != NULL ? limit_to_python(um_pool_get_limit(ctx, device)) : NULL;
}

PyDoc_STRVAR(
    trim_doc,
    "trim($module, /)\n--\n\n"
    "Give all memory back to the driver or system that no array uses, waiting for the GPU's work; returns the bytes.");

static PyObject *core_trim(PyObject *module, PyObject *Py_UNUSED(unused)) {
    um_state *state = um_state_of_module(module);
    um_context *ctx = um_state_context(state);
    if (ctx == NULL) {
        return NULL;
    }
    um_error err;
    um_status status = UM_OK;
    size_t released = 0;
    Py_BEGIN_ALLOW_THREADS
    status = um_pool_trim(ctx, &released, &err);
    Py_END_ALLOW_THREADS
    return status == UM_OK ? PyLong_FromSize_t(released) : um_raise(state, &err);
}

PyDoc_STRVAR(reset_peak_doc, "reset_peak($module, /, device=None)\n--\n\n"
                             "Start the peaks of `memory_stats` anew from what is current.\n\n"
                             "Parameters\n----------\n"
                             "device : optional\n"
                             "    The GPU whose peaks. None: those of all together, and of each.");

static PyObject *core_reset_peak(PyObject *module, PyObject *args, PyObject *kwargs) {
    int device = 0;
    um_context *ctx = um_read_device(um_state_of_module(module), args, kwargs, "|O:reset_peak", &device);
    if (ctx == NULL) {
        return NULL;
    }
    um_pool_reset_peak(ctx, device);
    Py_RETURN_NONE;
}

static PyMethodDef system_functions[] = {
    {"devices", core_devices, METH_NOARGS, devices_doc},
    {"info", core_info, METH_NOARGS, info_doc},
    {"synchronize", core_synchronize, METH_NOARGS, synchronize_doc},
    {"set_limit", UM_METHOD(core_set_limit), METH_VARARGS | METH_KEYWORDS, set_limit_doc},
    {"get_limit", UM_METHOD(core_get_limit), METH_VARARGS | METH_KEYWORDS, get_limit_doc},
    {"trim", core_trim, METH_NOARGS, trim_doc},
    {"reset_peak", UM_METHOD(core_reset_peak), METH_VARARGS | METH_KEYWORDS, reset_peak_doc},
    {NULL, NULL, 0, NULL},
};

int um_system_add(PyObject *module, um_state *Py_UNUSED(state)) {
    return PyModule_AddFunctions(module, system_functions);
}
