/* umem.on_out_of_memory: the program's own way of making room. */
#include "py/um_state.h"

#define MOST_CALLS 100 /* of the function, for one request */

PyDoc_STRVAR(
    on_out_of_memory_doc,
    "on_out_of_memory($module, f, /)\n--\n\n"
    "Register a function that makes room when there is no memory for an array.\n\n"
    "It is called when collecting garbage and giving back what no array uses have not helped. The allocation is tried again\n"
    "for as long as it returns a true value, at most 100 times; then `OutOfMemoryError` is raised. An exception in it ends\n"
    "the allocation instead. It may free arrays and allocate; an allocation in it that finds no memory raises at once. Several\n"
    "threads may be in it at the same time.\n\n"
    "Parameters\n----------\n"
    "f : callable or None\n"
    "    Called as f(requested_bytes, device), where device is the number of the GPU, or None without one. None removes what\n"
    "    is registered.\n\n"
    "Returns\n-------\n"
    "callable or None\n    What was registered before.\n\n"
    "Raises\n------\n"
    "TypeError\n    `f` is not callable.\n\n"
    "Examples\n--------\n"
    ">>> cache = {}\n"
    ">>> def drop_one(requested_bytes, device):\n"
    "...     return bool(cache) and cache.popitem() is not None\n"
    ">>> umem.on_out_of_memory(drop_one)");

static PyObject *on_out_of_memory(PyObject *module, PyObject *f) {
    if (!Py_IsNone(f) && !PyCallable_Check(f)) {
        return PyErr_Format(PyExc_TypeError, "f must be callable, or None to remove what is registered, not '%.100s'",
                            Py_TYPE(f)->tp_name);
    }
    um_state *state = um_state_of_module(module);
    PyObject *before;
    Py_BEGIN_CRITICAL_SECTION(module);
    before = state->hook_out_of_memory;
    state->hook_out_of_memory = Py_IsNone(f) ? NULL : Py_NewRef(f);
    Py_END_CRITICAL_SECTION();
    return before != NULL ? before : Py_NewRef(Py_None);
}

/* A thread that is in the function. */
typedef struct um_asker {
    unsigned long thread;
    struct um_asker *next;
} um_asker;

/* Notes the thread and gives the function, a new reference; NULL when there is none, or the thread is in it. */
static PyObject *begin(um_state *state, um_asker *asker) {
    PyObject *hook;
    asker->thread = PyThread_get_thread_ident();
    Py_BEGIN_CRITICAL_SECTION(PyType_GetModule(state->ndarray_type));
    const um_asker *other = state->askers;
    while (other != NULL && other->thread != asker->thread) {
        other = other->next;
    }
    hook = other == NULL ? Py_XNewRef(state->hook_out_of_memory) : NULL;
    if (hook != NULL) {
        asker->next = state->askers;
        state->askers = asker;
    }
    Py_END_CRITICAL_SECTION();
    return hook;
}

static void end(um_state *state, const um_asker *asker) {
    Py_BEGIN_CRITICAL_SECTION(PyType_GetModule(state->ndarray_type));
    um_asker **at = &state->askers;
    while (*at != asker) {
        at = &(*at)->next;
    }
    *at = asker->next;
    Py_END_CRITICAL_SECTION();
}

static int call_hook(PyObject *hook, const um_context *context, size_t size, int device) {
    PyObject *bytes = PyLong_FromSize_t(size);
    PyObject *where = um_context_is_cuda(context) ? PyLong_FromLong(device) : Py_NewRef(Py_None);
    PyObject *const args[] = {bytes, where};
    PyObject *answer = bytes != NULL && where != NULL ? PyObject_Vectorcall(hook, args, 2, NULL) : NULL;
    int again = answer != NULL ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    Py_XDECREF(where);
    Py_XDECREF(bytes);
    return again;
}

/* 1 when the function asks for another try, 0 when not or when this is called from within it, -1 with an exception set. */
static int ask_for_room(um_state *state, const um_context *context, size_t size, int device) {
    um_asker *asker = PyMem_Malloc(sizeof(*asker));
    if (asker == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int again = 0;
    PyObject *hook = begin(state, asker);
    if (hook != NULL) {
        again = call_hook(hook, context, size, device);
        end(state, asker);
        Py_DECREF(hook);
    }
    PyMem_Free(asker);
    return again;
}

int um_make_room(um_state *state, const um_context *context, size_t size, int device, unsigned *tries) {
    if (*tries > MOST_CALLS) {
        return 0;
    }
    *tries += 1;
    if (*tries == 1) {
        PyGC_Collect(); /* arrays caught in reference cycles still hold memory */
        return 1;
    }
    return ask_for_room(state, context, size, device);
}

static PyMethodDef functions[] = {
    {"on_out_of_memory", on_out_of_memory, METH_O, on_out_of_memory_doc},
    {NULL, NULL, 0, NULL},
};

int um_out_of_memory_add(PyObject *module, um_state *Py_UNUSED(state)) {
    return PyModule_AddFunctions(module, functions);
}
