/* State of one imported module: types, exceptions, the lazily opened context. No statics elsewhere in src/py. */
#ifndef UM_STATE_H
#define UM_STATE_H

#include "py/um_py.h"

#include <stdatomic.h>

#include "core/um_context.h"
#include "core/um_stream.h"

/* Strings that the C code looks up or hands out often, interned once per module. */
#define UM_NAMES(NAME)                                                                                                 \
    NAME(copy)                                                                                                         \
    NAME(data)                                                                                                         \
    NAME(descr)                                                                                                        \
    NAME(device)                                                                                                       \
    NAME(dtype)                                                                                                        \
    NAME(home)                                                                                                         \
    NAME(order)                                                                                                        \
    NAME(shape)                                                                                                        \
    NAME(stream)                                                                                                       \
    NAME(strides)                                                                                                      \
    NAME(typestr)                                                                                                      \
    NAME(version)

typedef struct um_names {
#define UM_NAME_FIELD(name) PyObject *name;
    UM_NAMES(UM_NAME_FIELD)
#undef UM_NAME_FIELD
} um_names;

#define UM_NUMBER_DTYPES 14

typedef struct um_state {
    _Atomic(um_context *) context; /* owned; NULL until first use, then the same for good */

    PyTypeObject *ndarray_type;  /* umem.ndarray */
    PyTypeObject *flags_type;    /* ndarray.flags */
    PyTypeObject *exporter_type; /* ndarray.on(...) */
    PyTypeObject *stream_type;   /* umem.Stream */
    PyTypeObject *function_type; /* umem.add, … */

    PyObject *cuda_error;             /* CudaError(RuntimeError) */
    PyObject *out_of_memory_error;    /* OutOfMemoryError(MemoryError) */
    PyObject *driver_not_found_error; /* DriverNotFoundError(RuntimeError) */

    PyObject *current_stream; /* contextvars.ContextVar holding a Stream; unset: the legacy default stream */
    PyObject *deferred;       /* contextvars.ContextVar holding True inside umem.deferred() */

    struct um_ndarray
        *spare_arrays; /* dead ones kept for reuse, by their base; guarded by the GIL, unused without one */
    int spare_count;

    PyArray_Descr *numbers[UM_NUMBER_DTYPES]; /* dtypes of NumPy's numbers, the commonest first */
    um_names names;
    PyObject *typestrs[NPY_NTYPES_LEGACY]; /* by type number: '<f8' and so on for simple dtypes, else NULL */

#ifdef Py_GIL_DISABLED
    PyObject *turn; /* any object: a critical section on it is a turn (um_turn) */
#endif

    /* Python functions that the C code calls, set by umem/__init__.py through _core._set_hooks(name=function). Used in critical sections on
     * the module. */
    PyObject *hook_ufunc;         /* umem._ufunc.call(name, args, kwargs): the general path behind umem.add, … */
    PyObject *hook_out_of_memory; /* the program's, of umem.on_out_of_memory; NULL: none. In critical sections too … */
    struct um_asker *askers;      /* … as the threads that are in it */

    /* What the last interrupted host access raised, with its traceback then (borrowed, for comparison), until Python code goes on; else
     * NULL. The main thread's. */
    PyObject *interruption;
    void *interruption_traceback;
} um_state;

extern PyModuleDef um_core_module;

/* State of the module an object of one of our types belongs to, or of the module itself. */
static inline um_state *um_state_of_module(PyObject *module) { return (um_state *)PyModule_GetState(module); }
static inline um_state *um_state_of_type(PyTypeObject *type) { return (um_state *)PyType_GetModuleState(type); }
static inline um_state *um_state_of(PyObject *self) { return um_state_of_type(Py_TYPE(self)); }

/* The context, opened at first use from UMEM_BACKEND, UMEM_CUDA_LIBRARY and UMEM_ALLOC_CONF. Borrowed; NULL with an exception set. Raises
 * RuntimeError in a forked child of a process that used a GPU. */
um_context *um_state_context(um_state *state);
/* Copies an environment variable into *out, for PyMem_Free; NULL when it is unset or empty. -1 with MemoryError set. */
int um_copy_setting(const char *name, char **out);
/* um_alloc_conf.c: applies UMEM_ALLOC_CONF to a context that was just opened; -1 with ValueError set. */
int um_apply_alloc_conf(um_state *state, um_context *context);

/* Releases the GIL around a wait, as Py_BEGIN_ALLOW_THREADS does, but not on devices without concurrent access: there no thread may touch
 * managed memory meanwhile, and what umem does on the host it does with the GIL held (rule 6). */
static inline PyThreadState *um_unlock_for_device(const um_context *ctx) {
    return um_context_is_concurrent(ctx) ? PyEval_SaveThread() : NULL;
}
static inline void um_lock_after_device(PyThreadState *thread) {
    if (thread != NULL) {
        PyEval_RestoreThread(thread);
    }
}

/* Rule 6: on devices without concurrent access umem's kernels and what it does on the host take turns. Where there is a GIL, holding it is
 * the turn; without one, a critical section on state->turn is. On other devices there are no turns. A um_turn stays where it is and ends
 * in the thread that began it. */
typedef struct um_turn {
    PyThreadState *unlocked;
#ifdef Py_GIL_DISABLED
    bool taken;
    PyCriticalSection section;
#endif
} um_turn;

static inline void um_turn_take(um_state *state, const um_context *ctx, um_turn *turn) {
#ifdef Py_GIL_DISABLED
    turn->taken = !um_context_is_concurrent(ctx);
    if (turn->taken) {
        PyCriticalSection_Begin(&turn->section, state->turn);
    }
#else
    (void)state;
    (void)ctx;
    (void)turn;
#endif
}
/* The host's: while NumPy works on the elements with the GIL held. */
static inline void um_turn_host(um_state *state, const um_context *ctx, um_turn *turn) {
    um_turn_take(state, ctx, turn);
    turn->unlocked = NULL;
}
/* A device's, or that of a long stretch of C that touches managed memory: where there are no turns it releases the GIL. */
static inline void um_turn_device(um_state *state, const um_context *ctx, um_turn *turn) {
    um_turn_take(state, ctx, turn);
    turn->unlocked = um_unlock_for_device(ctx);
}
/* Takes the GIL back; the turn goes on. */
static inline void um_turn_relock(um_turn *turn) {
    um_lock_after_device(turn->unlocked);
    turn->unlocked = NULL;
}
static inline void um_turn_end(um_turn *turn) {
    um_turn_relock(turn);
#ifdef Py_GIL_DISABLED
    if (turn->taken) {
        PyCriticalSection_End(&turn->section);
    }
#endif
}

/* --- um_errors.c -------------------------------------------------------------------------------------------------- */

/* Sets the exception for a failed status. Always returns NULL. */
PyObject *um_raise(um_state *state, const um_error *err);
/* NumPy tries other ways to an array's memory when one fails, for whatever reason. Ctrl-C is meant for all of them: the exception of an
 * interrupted access is kept for the next, which raises it again if no Python code has seen it. */
void um_keep_interruption(um_state *state);
/* Raises such an exception, -1; else 0. */
int um_raise_lost_interruption(um_state *state);
int um_errors_add(PyObject *module, um_state *state); /* creates the exception types; -1 on error */

/* --- um_out_of_memory.c -------------------------------------------------------------------------------------------- */

/* After a request of `size` bytes that found no memory: 1 when it is to be tried again, 0 when not, -1 with an exception set. The first
 * time collects garbage, later ones call what umem.on_out_of_memory registered. *tries is 0 before the first. */
int um_make_room(um_state *state, const um_context *context, size_t size, int device, unsigned *tries);
int um_out_of_memory_add(PyObject *module, um_state *state);

/* --- um_streams.c ------------------------------------------------------------------------------------------------- */

/* The stream umem's work goes to for arrays of `device`: the one of the active umem.stream context, else the device's legacy
 * default stream. A new reference to release with um_stream_unref; NULL with an exception set. CUDA backend only. */
um_stream *um_current_stream(um_state *state, int device);
/* Whether an umem.stream context with an explicit stream is active; *out is then a new reference. 0 no, 1 yes, -1 exception. */
int um_explicit_stream(um_state *state, um_stream **out);
/* 1 inside umem.deferred(), 0 outside, -1 with an exception set. */
int um_is_deferred(um_state *state);
int um_streams_add(PyObject *module, um_state *state);

/* --- um_locations.c ------------------------------------------------------------------------------------------------ */

/* Parses what is accepted where a location is: "cpu", "cuda", "cuda:1", "numa:0", a device number, torch.device, cuda.core Device/Host.
 * `argument` names it in messages ("where"). "cuda" is the device given by `default_device`. None is allowed when `allow_none`, giving
 * UM_LOCATION_NONE. -1 with ValueError (listing accepted forms and devices present) or TypeError set. Opens the context. */
int um_parse_location(um_state *state, PyObject *object, const char *argument, int default_device, bool allow_none,
                      um_location *out);
/* Canonical string ("cpu", "cuda:0", "numa:1") or None; new reference. */
PyObject *um_location_to_python(um_location where);
/* `device=`: None (device 0), "cuda", "cuda:1", 1, …: an ordinal (0 on the host backend for any accepted GPU hint; "cpu" is a ValueError that
 * says to use home="cpu" on the CUDA backend, and accepted on the host backend). -1 on error. */
int um_parse_device(um_state *state, PyObject *object, int *out);
/* um_system.c: the only argument of a call, device=None; `format` is for PyArg_ParseTupleAndKeywords. UM_ALL_DEVICES for None. NULL with an
 * exception set, else the context. */
um_context *um_read_device(um_state *state, PyObject *args, PyObject *kwargs, const char *format, int *device);

/* --- parts of the module, each registering itself: 0, or -1 with an exception set --------------------------------------- */

int um_ndarray_add(PyObject *module, um_state *state);   /* um_ndarray.c: the type, flags */
int um_create_add(PyObject *module, um_state *state);    /* um_create.c: empty, zeros */
int um_exporter_add(PyObject *module, um_state *state);  /* um_exporter.c: ndarray.on */
int um_interface_add(PyObject *module, um_state *state); /* um_interface.c: what it knows of dtypes */
int um_read_add(PyObject *module, um_state *state);      /* um_read.c: reading several arrays at once */
int um_import_add(PyObject *module,
                  um_state *state); /* um_import.c, um_dlpack_import.c: asarray's aliases, from_dlpack */
int um_functions_add(PyObject *module, um_state *state);  /* um_functions.c: kernels */
int um_random_add(PyObject *module, um_state *state);     /* um_random.c: random_fill */
int um_evaluate_add(PyObject *module, um_state *state);   /* um_evaluate.c: programs of the register machine */
int um_placing_add(PyObject *module, um_state *state);    /* um_placing.c: batch prefetch, residency */
int um_system_add(PyObject *module, um_state *state);     /* um_system.c: info, devices, limits, synchronize */
int um_statistics_add(PyObject *module, um_state *state); /* um_statistics.c: memory_stats, scopes, the log */

#endif
