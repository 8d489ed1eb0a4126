/* The module umem._core: its state, and the lazily opened context. */
#define UM_PY_IMPORTS_NUMPY
#include "py/um_exchange.h"
#include "py/um_ndarray.h"

#include <stdlib.h>
#include <string.h>

#ifndef UM_VERSION
#define UM_VERSION "0+unknown"
#endif

/* --- the context ---------------------------------------------------------------------------------------------------- */

int um_copy_setting(const char *name, char **out) {
    *out = NULL;
    const char *value = getenv(name);
    if (value == NULL || value[0] == '\0') {
        return 0;
    }
    size_t size = strlen(value) + 1;
    char *copy = PyMem_Malloc(size);
    if (copy == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(copy, value, size);
    *out = copy;
    return 0;
}

static void close_context(um_context *context) {
    Py_BEGIN_ALLOW_THREADS
    um_context_unref(context);
    Py_END_ALLOW_THREADS
}

/* A context opened as the environment says; NULL with an exception set. Starting the driver takes up to a second: the GIL is released. */
static um_context *open_from_environment(um_state *state) {
    um_context *opened = NULL;
    char *backend = NULL;
    char *library = NULL;
    if (um_copy_setting("UMEM_BACKEND", &backend) < 0 || um_copy_setting("UMEM_CUDA_LIBRARY", &library) < 0) {
        goto done;
    }
    um_config config = {.backend = backend != NULL ? backend : "auto", .library = library};
    um_error err;
    um_status status;
    Py_BEGIN_ALLOW_THREADS
    status = um_context_open(&config, &opened, &err);
    Py_END_ALLOW_THREADS
    if (status != UM_OK) {
        opened = NULL;
        um_raise(state, &err);
    }
done:
    PyMem_Free(library);
    PyMem_Free(backend);
    return opened;
}

/* UMEM_NUMA_NODES, for tests: nodes that this host does not have. 0, or -1 with an exception set. */
static int set_topology(um_context *opened) {
    char *nodes = NULL;
    if (um_copy_setting("UMEM_NUMA_NODES", &nodes) < 0) {
        return -1;
    }
    if (nodes != NULL) {
        um_numa_read(&um_context_backend(opened)->numa, nodes);
    }
    PyMem_Free(nodes);
    return 0;
}

/* --- Ctrl-C ---------------------------------------------------------------------------------------------------------- */

/* Python runs handlers of signals in its main thread only. */
static bool may_interrupt(void *main_thread) { return PyThread_get_thread_ident() == (unsigned long)main_thread; }

/* Runs the handlers of signals that have come. What one raises stays set until um_raise. */
static bool is_interrupted(void *Py_UNUSED(main_thread)) {
    if (!um_python_is_alive()) {
        return false;
    }
    PyGILState_STATE gil = PyGILState_Ensure(); /* whether this thread has released it for the wait or not */
    bool raised = !PyErr_Occurred() && PyErr_CheckSignals() < 0;
    PyGILState_Release(gil);
    return raised;
}

/* Lets Ctrl-C end waits for a GPU; -1 with an exception set. */
static int allow_interrupts(um_context *context) {
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) { /* signals are the main interpreter's */
        return 0;
    }
    PyObject *threading = PyImport_ImportModule("threading");
    PyObject *thread = threading != NULL ? PyObject_CallMethod(threading, "main_thread", NULL) : NULL;
    PyObject *ident = thread != NULL ? PyObject_GetAttrString(thread, "ident") : NULL;
    unsigned long number = ident != NULL ? PyLong_AsUnsignedLong(ident) : (unsigned long)-1;
    Py_XDECREF(ident);
    Py_XDECREF(thread);
    Py_XDECREF(threading);
    if (number == (unsigned long)-1 && PyErr_Occurred()) {
        return -1;
    }
    um_interrupts interrupts = {.possible = may_interrupt, .wanted = is_interrupted, .arg = (void *)number};
    um_context_set_interrupts(context, interrupts);
    return 0;
}

/* --- the context, once open ----------------------------------------------------------------------------------------- */

um_context *um_state_context(um_state *state) {
    um_context *context = atomic_load_explicit(&state->context, memory_order_acquire);
    if (context != NULL) {
        um_error err;
        if (um_context_check(context, &err) != UM_OK) {
            um_raise(state, &err);
            return NULL;
        }
        return context;
    }
    um_context *opened = open_from_environment(state);
    if (opened == NULL) {
        return NULL;
    }
    if (set_topology(opened) < 0 || um_apply_alloc_conf(state, opened) < 0 || allow_interrupts(opened) < 0) {
        close_context(opened);
        return NULL;
    }
    if (!atomic_compare_exchange_strong(&state->context, &context, opened)) { /* another thread was faster */
        close_context(opened);
        return context;
    }
    return opened;
}

/* --- functions of the module -------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(set_hooks_doc, "_set_hooks($module, /, *, ufunc)\n"
                            "--\n"
                            "\n"
                            "Register the Python functions that the C code calls. For umem's own use.");

static PyObject *set_hooks(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"ufunc", NULL};
    PyObject *ufunc;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O:_set_hooks", keywords, &ufunc)) {
        return NULL;
    }
    if (!PyCallable_Check(ufunc)) {
        return PyErr_Format(PyExc_TypeError, "ufunc must be callable, not '%.100s'", Py_TYPE(ufunc)->tp_name);
    }
    um_state *state = um_state_of_module(module);
    PyObject *before;
    Py_BEGIN_CRITICAL_SECTION(module);
    before = state->hook_ufunc;
    state->hook_ufunc = Py_NewRef(ufunc);
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"_set_hooks", UM_METHOD(set_hooks), METH_VARARGS | METH_KEYWORDS, set_hooks_doc},
    {NULL, NULL, 0, NULL},
};

/* --- life of the module ---------------------------------------------------------------------------------------------------- */

static int intern_names(um_names *names) {
#define UM_NAME_INTERN(name)                                                                                           \
    names->name = PyUnicode_InternFromString(#name);                                                                   \
    if (names->name == NULL) {                                                                                         \
        return -1;                                                                                                     \
    }
    UM_NAMES(UM_NAME_INTERN)
#undef UM_NAME_INTERN
    return 0;
}

/* What the first use needs. Imported then, it would be half there for a signal's handler that uses umem meanwhile. */
static int import_early(void) {
    PyObject *threading = PyImport_ImportModule("threading");
    Py_XDECREF(threading);
    return threading != NULL ? 0 : -1;
}

static int module_exec(PyObject *module) {
    um_state *state = um_state_of_module(module);
    if (PyArray_ImportNumPyAPI() < 0 || import_early() < 0 || intern_names(&state->names) < 0) {
        return -1;
    }
#ifdef Py_GIL_DISABLED
    state->turn = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    if (state->turn == NULL) {
        return -1;
    }
#endif
    int (*const parts[])(PyObject *, um_state *) = {
        um_errors_add, um_ndarray_add,    um_create_add,        um_interface_add, um_exporter_add,
        um_import_add, um_read_add,       um_streams_add,       um_functions_add, um_placing_add,
        um_system_add, um_statistics_add, um_out_of_memory_add, um_random_add,    um_evaluate_add,
    };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (parts[i](module, state) < 0) {
            return -1;
        }
    }
    return PyModule_AddStringConstant(module, "__version__", UM_VERSION);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    um_state *state = um_state_of_module(module);
    Py_VISIT(state->ndarray_type);
    Py_VISIT(state->flags_type);
    Py_VISIT(state->exporter_type);
    Py_VISIT(state->stream_type);
    Py_VISIT(state->function_type);
    Py_VISIT(state->cuda_error);
    Py_VISIT(state->out_of_memory_error);
    Py_VISIT(state->driver_not_found_error);
    Py_VISIT(state->current_stream);
    Py_VISIT(state->deferred);
    Py_VISIT(state->hook_ufunc);
    Py_VISIT(state->hook_out_of_memory);
    Py_VISIT(state->interruption);
    return 0;
}

static int module_clear(PyObject *module) {
    um_state *state = um_state_of_module(module);
    Py_CLEAR(state->ndarray_type);
    Py_CLEAR(state->flags_type);
    Py_CLEAR(state->exporter_type);
    Py_CLEAR(state->stream_type);
    Py_CLEAR(state->function_type);
    Py_CLEAR(state->cuda_error);
    Py_CLEAR(state->out_of_memory_error);
    Py_CLEAR(state->driver_not_found_error);
    Py_CLEAR(state->current_stream);
    Py_CLEAR(state->deferred);
    Py_CLEAR(state->hook_ufunc);
    Py_CLEAR(state->hook_out_of_memory);
    for (size_t i = 0; i < UM_NUMBER_DTYPES; i++) {
        Py_CLEAR(state->numbers[i]);
    }
    Py_CLEAR(state->interruption);
    for (size_t i = 0; i < sizeof(state->typestrs) / sizeof(state->typestrs[0]); i++) {
        Py_CLEAR(state->typestrs[i]);
    }
#define UM_NAME_CLEAR(name) Py_CLEAR(state->names.name);
    UM_NAMES(UM_NAME_CLEAR)
#undef UM_NAME_CLEAR
    return 0;
}

static void module_free(void *pointer) {
    PyObject *module = pointer;
    (void)module_clear(module);
    um_state *state = um_state_of_module(module);
    um_ndarray_free_spares(state);
#ifdef Py_GIL_DISABLED
    Py_CLEAR(state->turn);
#endif
    um_context *context = atomic_exchange(&state->context, NULL);
    if (context != NULL) {
        close_context(context);
    }
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, (void *)module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED}, /* NumPy does not support them */
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

PyModuleDef um_core_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "umem._core",
    .m_doc = "The C part of umem. Its names are re-exported by the package.",
    .m_size = sizeof(um_state),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&um_core_module); }
