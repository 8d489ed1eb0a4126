/* What umem's memory holds and did, as Python sees it: memory_stats, scopes, and the log of allocations. */
#include "py/um_state.h"

#include <stdlib.h>

#include "core/um_log.h"
#include "core/um_pool.h"

/* --- memory_stats ------------------------------------------------------------------------------------------------- */

static int put_count(PyObject *dict, PyObject *key, uint64_t value) { /* steals the key; NULL: an exception is set */
    PyObject *number = key == NULL ? NULL : PyLong_FromUnsignedLongLong(value);
    int result = number == NULL ? -1 : PyDict_SetItem(dict, key, number);
    Py_XDECREF(key);
    Py_XDECREF(number);
    return result;
}

/* The four figures of one thing: `name`.`pool`.current and so on. */
static int put_figures(PyObject *dict, const char *name, const char *pool, uint64_t current, uint64_t peak,
                       uint64_t total) {
    const struct {
        const char *part;
        uint64_t value;
    } parts[] = {{"current", current}, {"peak", peak}, {"allocated", total}, {"freed", total - current}};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); ++i) {
        if (put_count(dict, PyUnicode_FromFormat("%s.%s.%s", name, pool, parts[i].part), parts[i].value) < 0) {
            return -1;
        }
    }
    return 0;
}

static int put_usage(PyObject *dict, const char *pool, const um_usage *usage) {
    static const char *const bytes[] = {"allocated_bytes", "requested_bytes"};
    static const char *const counts[] = {"allocation", "active"};
    for (int i = 0; i < 2; ++i) {
        if (put_figures(dict, bytes[i], pool, usage->allocated_current, usage->allocated_peak, usage->allocated_total) <
                0 ||
            put_figures(dict, counts[i], pool, usage->blocks_current, usage->blocks_peak, usage->blocks_total) < 0) {
            return -1;
        }
    }
    return put_figures(dict, "reserved_bytes", pool, usage->reserved_current, usage->reserved_peak,
                       usage->reserved_total) < 0
               ? -1
               : put_figures(dict, "segment", pool, usage->slabs_current, usage->slabs_peak, usage->slabs_total);
}

#define MAX_HOMES 256

static int put_homes(PyObject *dict, um_context *ctx, int device) {
    um_home_stats homes[MAX_HOMES];
    size_t count = um_pool_homes(ctx, device, homes, MAX_HOMES);
    for (size_t i = 0; i < count; ++i) {
        PyObject *home = um_location_to_python(homes[i].home);
        int result = home == NULL ? -1
                                  : put_count(dict, PyUnicode_FromFormat("allocated_bytes.home.%S.current", home),
                                              homes[i].allocated_current);
        if (result == 0) {
            result = put_count(dict, PyUnicode_FromFormat("reserved_bytes.home.%S.current", home),
                               homes[i].reserved_current);
        }
        Py_XDECREF(home);
        if (result < 0) {
            return -1;
        }
    }
    return 0;
}

/* Values that may be None or negative. The value is stolen; NULL: an exception is set. */
static int put_value(PyObject *dict, const char *key, PyObject *value) {
    int result = value == NULL ? -1 : PyDict_SetItemString(dict, key, value);
    Py_XDECREF(value);
    return result;
}

static int put_all(PyObject *dict, um_context *ctx, int device) {
    um_memory_stats stats;
    um_pool_config config;
    um_pool_stats(ctx, device, &stats);
    um_pool_get_config(ctx, &config);
    size_t limit = um_pool_get_limit(ctx, device);
    const struct {
        const char *key;
        uint64_t value;
    } counters[] = {
        {"block_bytes.all.current", stats.in_blocks},
        {"inactive_split_bytes.all.current", stats.split},
        {"idle_bytes", stats.idle},
        {"waiting_bytes", stats.waiting_current},
        {"num_alloc_retries", stats.retries},
        {"num_ooms", stats.out_of_memory},
        {"num_device_alloc", stats.slabs_total},
        {"num_device_free", stats.slabs_total - stats.slabs_current},
    };
    if (put_usage(dict, "all", &stats.all) < 0 || put_usage(dict, "small_pool", &stats.small) < 0 ||
        put_usage(dict, "large_pool", &stats.large) < 0) {
        return -1;
    }
    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); ++i) {
        if (put_count(dict, PyUnicode_FromString(counters[i].key), counters[i].value) < 0) {
            return -1;
        }
    }
    if (put_homes(dict, ctx, device) < 0 ||
        put_value(dict, "max_split_size",
                  config.max_split == SIZE_MAX ? PyLong_FromLong(-1) : PyLong_FromSize_t(config.max_split)) < 0) {
        return -1;
    }
    return put_value(dict, "limit_bytes", limit == SIZE_MAX ? Py_NewRef(Py_None) : PyLong_FromSize_t(limit));
}

PyDoc_STRVAR(
    memory_stats_doc,
    "memory_stats($module, /, device=None)\n--\n\n"
    "Counters of umem's memory as a flat dict, named as in torch.cuda.memory_stats where the meaning is the same.\n\n"
    "Parameters\n----------\n"
    "device : optional\n"
    "    A GPU. None: all together.\n\n"
    "Returns\n-------\n"
    "dict\n"
    "    Keys of the form `name.pool.part`. Parts: current; peak (since `reset_peak`); allocated and freed (ever).\n"
    "    Pools: all; small_pool (arrays below 64 KiB); large_pool. Names:\n\n"
    "    * allocated_bytes: bytes that live arrays asked for. PyTorch counts what they take, rounded up; this is its\n"
    "      requested_bytes, which is here too.\n"
    "    * allocation: the number of those; also as active.\n"
    "    * reserved_bytes: held from the driver or system, whether in use or not; of `segment` slabs.\n\n"
    "    Of reserved_bytes are, now:\n\n"
    "    * block_bytes.all.current: in blocks. They take up to an eighth more than was asked for, and freed ones stay\n"
    "      blocks while they wait or are kept at hand.\n"
    "    * inactive_split_bytes.all.current: free parts of slabs that are partly in use (external fragmentation).\n"
    "    * idle_bytes: slabs with no block in use, kept for reuse.\n"
    "    * waiting_bytes: of the blocks, those freed by the program that the GPU may still use.\n\n"
    "    allocated_bytes.home.H.current and reserved_bytes.home.H.current, for each home H that arrays were made with\n"
    "    and that holds memory: cpu, cuda:0, ..., None for arrays made without one.\n\n"
    "    num_alloc_retries, num_ooms (of a device: those that it or its limit refused), num_device_alloc and\n"
    "    num_device_free (of slabs, from and to the driver or system), max_split_size (-1: none) and limit_bytes\n"
    "    (None: none).");

static PyObject *core_memory_stats(PyObject *module, PyObject *args, PyObject *kwargs) {
    int device = 0;
    um_context *ctx = um_read_device(um_state_of_module(module), args, kwargs, "|O:memory_stats", &device);
    PyObject *dict = ctx != NULL ? PyDict_New() : NULL;
    if (dict != NULL && put_all(dict, ctx, device) < 0) {
        Py_CLEAR(dict);
    }
    return dict;
}

PyDoc_STRVAR(largest_free_doc, "largest_free($module, /, device=None)\n--\n\n"
                               "Bytes of the largest free part of a slab.");

static PyObject *core_largest_free(PyObject *module, PyObject *args, PyObject *kwargs) {
    int device = 0;
    um_context *ctx = um_read_device(um_state_of_module(module), args, kwargs, "|O:largest_free", &device);
    return ctx != NULL ? PyLong_FromSize_t(um_pool_largest_free(ctx, device)) : NULL;
}

/* --- scopes: a capsule each, whose end ends it ------------------------------------------------------------------------ */

#define SCOPE_NAME "umem.scope"

static void free_scope(PyObject *capsule) {
    um_scope *scope = PyCapsule_GetPointer(capsule, SCOPE_NAME);
    if (scope != NULL) {
        um_pool_scope_free(scope);
    }
}

PyDoc_STRVAR(scope_begin_doc, "scope_begin($module, /, device=None)\n--\n\n"
                              "Begin to count allocations; the handle is for scope_read and scope_end.");

static PyObject *core_scope_begin(PyObject *module, PyObject *args, PyObject *kwargs) {
    int device = 0;
    um_context *ctx = um_read_device(um_state_of_module(module), args, kwargs, "|O:scope_begin", &device);
    if (ctx == NULL) {
        return NULL;
    }
    um_scope *scope = um_pool_scope_new(ctx, device);
    if (scope == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *capsule = PyCapsule_New(scope, SCOPE_NAME, free_scope);
    if (capsule == NULL) {
        um_pool_scope_free(scope);
    }
    return capsule;
}

PyDoc_STRVAR(scope_read_doc, "scope_read($module, scope, /)\n--\n\n"
                             "Bytes allocated, freed and at the peak, then the same in blocks.");

static PyObject *core_scope_read(PyObject *Py_UNUSED(module), PyObject *capsule) {
    um_scope *scope = PyCapsule_GetPointer(capsule, SCOPE_NAME);
    if (scope == NULL) {
        return NULL;
    }
    um_scope_stats stats;
    um_pool_scope_read(scope, &stats);
    return Py_BuildValue("(KKKKKK)", (unsigned long long)stats.allocated, (unsigned long long)stats.freed,
                         (unsigned long long)stats.peak, (unsigned long long)stats.blocks_allocated,
                         (unsigned long long)stats.blocks_freed, (unsigned long long)stats.blocks_peak);
}

PyDoc_STRVAR(scope_end_doc, "scope_end($module, scope, /)\n--\n\n"
                            "Stop counting; what was counted stays.");

static PyObject *core_scope_end(PyObject *Py_UNUSED(module), PyObject *capsule) {
    um_scope *scope = PyCapsule_GetPointer(capsule, SCOPE_NAME);
    if (scope == NULL) {
        return NULL;
    }
    um_pool_scope_end(scope);
    Py_RETURN_NONE;
}

/* --- the log ------------------------------------------------------------------------------------------------------------ */

PyDoc_STRVAR(log_begin_doc, "log_begin($module, /)\n--\n\n"
                            "Record allocations and frees from now on. RuntimeError while that is done already.");

static PyObject *core_log_begin(PyObject *module, PyObject *Py_UNUSED(unused)) {
    um_state *state = um_state_of_module(module);
    um_context *ctx = um_state_context(state);
    um_error err;
    if (ctx == NULL) {
        return NULL;
    }
    if (um_log_begin(ctx, &err) != UM_OK) {
        return um_raise(state, &err);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    log_end_doc,
    "log_end($module, /)\n--\n\n"
    "End the recording: the events as bytes, each a struct of format \"QQhhi\" (address, size or 0 for a free,\n"
    "device, kind and number of the home), and whether they are all there.");

static PyObject *core_log_end(PyObject *module, PyObject *Py_UNUSED(unused)) {
    um_context *ctx = um_state_context(um_state_of_module(module));
    if (ctx == NULL) {
        return NULL;
    }
    um_log_event *events = NULL;
    size_t count = 0;
    bool complete = true;
    um_log_end(ctx, &events, &count, &complete);
    PyObject *result = Py_BuildValue("(y#O)", events != NULL ? (const char *)events : "",
                                     (Py_ssize_t)(count * sizeof(um_log_event)), complete ? Py_True : Py_False);
    free(events);
    return result;
}

static PyMethodDef statistics_functions[] = {
    {"memory_stats", UM_METHOD(core_memory_stats), METH_VARARGS | METH_KEYWORDS, memory_stats_doc},
    {"largest_free", UM_METHOD(core_largest_free), METH_VARARGS | METH_KEYWORDS, largest_free_doc},
    {"scope_begin", UM_METHOD(core_scope_begin), METH_VARARGS | METH_KEYWORDS, scope_begin_doc},
    {"scope_read", core_scope_read, METH_O, scope_read_doc},
    {"scope_end", core_scope_end, METH_O, scope_end_doc},
    {"log_begin", core_log_begin, METH_NOARGS, log_begin_doc},
    {"log_end", core_log_end, METH_NOARGS, log_end_doc},
    {NULL, NULL, 0, NULL},
};

int um_statistics_add(PyObject *module, um_state *Py_UNUSED(state)) {
    return PyModule_AddFunctions(module, statistics_functions);
}
