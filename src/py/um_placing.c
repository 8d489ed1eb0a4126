/* Where arrays live: prefetch, advise, discard, home and residency, of arrays and of views. */
#include "py/um_ndarray.h"

#include <string.h>

#include "core/um_placement.h"
#include "core/um_residency.h"

/* --- arguments ---------------------------------------------------------------------------------------------------- */

/* Reads a call's arguments, positional or by keyword, into out[]; missing ones stay NULL. -1 with TypeError set. */
static int read_arguments(const char *function, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                          const char *const *names, Py_ssize_t required, Py_ssize_t count, PyObject **out) {
    if (nargs > count) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %zd arguments (%zd given)", function, count, nargs);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
        out[i] = i < nargs ? args[i] : NULL;
    }
    for (Py_ssize_t k = 0; kwnames != NULL && k < PyTuple_GET_SIZE(kwnames); ++k) {
        PyObject *keyword = PyTuple_GET_ITEM(kwnames, k);
        Py_ssize_t i = 0;
        while (i < count && PyUnicode_CompareWithASCIIString(keyword, names[i]) != 0) {
            ++i;
        }
        if (i == count) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function, keyword);
            return -1;
        }
        if (out[i] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", function, keyword);
            return -1;
        }
        out[i] = args[nargs + k];
    }
    for (Py_ssize_t i = 0; i < required; ++i) {
        if (out[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s'", function, names[i]);
            return -1;
        }
    }
    return 0;
}

static um_access extent_of(const um_ndarray *array) {
    um_access access = {.block = array->block};
    um_ndarray_extent(array, &access.offset, &access.size);
    return access;
}

/* --- prefetch ----------------------------------------------------------------------------------------------------- */

/* Starts moving the ranges on the stream of the active umem.stream context. -1 with an exception set. */
static int prefetch_ranges(um_state *state, um_context *ctx, const um_access *ranges, size_t count, um_location where) {
    um_stream *stream = NULL;
    if (um_explicit_stream(state, &stream) < 0) {
        return -1;
    }
    um_error err;
    um_status status = UM_OK;
    Py_BEGIN_ALLOW_THREADS
    status = um_prefetch(ctx, ranges, count, where, stream, &err);
    um_stream_unref(stream);
    Py_END_ALLOW_THREADS
    if (status != UM_OK) {
        um_raise(state, &err);
        return -1;
    }
    return 0;
}

PyObject *um_ndarray_prefetch(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    static const char *const names[] = {"where"};
    um_state *state = um_state_of(self);
    um_ndarray *array = (um_ndarray *)self;
    PyObject *where = NULL;
    um_location location;
    if (read_arguments("prefetch", args, nargs, kwnames, names, 1, 1, &where) < 0 ||
        um_parse_location(state, where, "where", um_block_device(array->block), false, &location) < 0) {
        return NULL;
    }
    um_access range = extent_of(array);
    if (prefetch_ranges(state, um_block_context(array->block), &range, 1, location) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* What a batch moves where; "cuda" may be another device for each array. */
typedef struct batch {
    size_t count;
    um_access *ranges;
    um_location *targets;
} batch;

static void free_batch(batch *moves) {
    PyMem_Free(moves->ranges);
    PyMem_Free(moves->targets);
}

/* Checks every array and reads the location for it. `items` are borrowed for the life of the batch. */
static int fill_batch(um_state *state, PyObject *const *items, size_t count, PyObject *where, batch *out) {
    *out = (batch){.count = count};
    out->ranges = PyMem_New(um_access, count);
    out->targets = PyMem_New(um_location, count);
    if (out->ranges == NULL || out->targets == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int device = 0;
    um_location target;
    if (um_parse_location(state, where, "where", device, false, &target) < 0) {
        return -1;
    }
    for (size_t i = 0; i < count; ++i) {
        if (!um_ndarray_check(state, items[i])) {
            PyErr_Format(PyExc_TypeError, "arrays[%zu] must be a umem.ndarray, not '%.100s'", i,
                         Py_TYPE(items[i])->tp_name);
            return -1;
        }
        const um_ndarray *array = (const um_ndarray *)items[i];
        if (um_block_device(array->block) != device) {
            device = um_block_device(array->block);
            if (um_parse_location(state, where, "where", device, false, &target) < 0) {
                return -1;
            }
        }
        out->ranges[i] = extent_of(array);
        out->targets[i] = target;
    }
    return 0;
}

/* Moves the ranges that go to one place together, place by place. */
static int run_batch(um_state *state, um_context *ctx, batch *moves) {
    size_t begin = 0;
    while (begin < moves->count) {
        um_location target = moves->targets[begin];
        size_t end = begin + 1;
        for (size_t i = end; i < moves->count; ++i) {
            if (um_location_equal(moves->targets[i], target)) {
                um_access range = moves->ranges[end];
                um_location other = moves->targets[end];
                moves->ranges[end] = moves->ranges[i];
                moves->targets[end] = target;
                moves->ranges[i] = range;
                moves->targets[i] = other;
                ++end;
            }
        }
        if (prefetch_ranges(state, ctx, moves->ranges + begin, end - begin, target) < 0) {
            return -1;
        }
        begin = end;
    }
    return 0;
}

PyDoc_STRVAR(
    prefetch_doc,
    "prefetch($module, arrays, where)\n--\n\n"
    "Start moving several arrays to one place, in one call of the driver where it has one.\n\n"
    "Parameters\n----------\n"
    "arrays : iterable of umem.ndarray\n"
    "    Arrays or views; a view moves the range of memory from its first to its last byte. One array is accepted too.\n"
    "where : location\n"
    "    \"cpu\", \"cuda\" (each array's own GPU), \"cuda:1\", \"numa:0\", …\n\n"
    "Raises\n------\n"
    "TypeError\n    Something in `arrays` is not a umem.ndarray. Nothing has been moved then.\n"
    "ValueError\n    `where` is no location, or there is no such device.\n\n"
    "Notes\n-----\n"
    "Returns before the move is done, on the stream of ``umem.stream``; later work is ordered after it. Without a GPU, GPUs\n"
    "are accepted and have no effect.");

static PyObject *core_prefetch(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"arrays", "where", NULL};
    um_state *state = um_state_of_module(module);
    PyObject *arrays = NULL;
    PyObject *where = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:prefetch", names, &arrays, &where)) {
        return NULL;
    }
    PyObject *items = NULL; /* a tuple of our own: the caller's list may change while the GIL is released */
    if (um_ndarray_check(state, arrays)) {
        items = PyTuple_Pack(1, arrays);
    } else {
        items = PySequence_Tuple(arrays);
    }
    if (items == NULL) {
        return NULL;
    }
    PyObject *result = NULL;
    batch moves = {.count = 0};
    um_context *ctx = um_state_context(state);
    if (ctx != NULL &&
        fill_batch(state, PySequence_Fast_ITEMS(items), (size_t)PyTuple_GET_SIZE(items), where, &moves) == 0 &&
        run_batch(state, ctx, &moves) == 0) {
        result = Py_NewRef(Py_None);
    }
    free_batch(&moves);
    Py_DECREF(items);
    return result;
}

/* --- advise ------------------------------------------------------------------------------------------------------- */

typedef struct advice_entry {
    const char *name;
    um_advice advice;
    bool takes_location;
} advice_entry;

static const advice_entry advices[] = {
    {"read_mostly", UM_ADVICE_READ_MOSTLY, false},
    {"unset_read_mostly", UM_ADVICE_UNSET_READ_MOSTLY, false},
    {"preferred_location", UM_ADVICE_PREFERRED_LOCATION, true},
    {"unset_preferred_location", UM_ADVICE_UNSET_PREFERRED_LOCATION, false},
    {"accessed_by", UM_ADVICE_ACCESSED_BY, true},
    {"unset_accessed_by", UM_ADVICE_UNSET_ACCESSED_BY, true},
};

static const advice_entry *find_advice(PyObject *advice) {
    if (!PyUnicode_Check(advice)) {
        PyErr_Format(PyExc_TypeError, "advice must be a str, not '%.100s'", Py_TYPE(advice)->tp_name);
        return NULL;
    }
    for (size_t i = 0; i < sizeof(advices) / sizeof(advices[0]); ++i) {
        if (PyUnicode_CompareWithASCIIString(advice, advices[i].name) == 0) {
            return &advices[i];
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "advice=%R is unknown; valid are 'read_mostly', 'unset_read_mostly', 'preferred_location', "
                 "'unset_preferred_location', 'accessed_by' and 'unset_accessed_by'",
                 advice);
    return NULL;
}

PyObject *um_ndarray_advise(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    static const char *const names[] = {"advice", "where"};
    um_state *state = um_state_of(self);
    um_ndarray *array = (um_ndarray *)self;
    PyObject *given[2];
    if (read_arguments("advise", args, nargs, kwnames, names, 1, 2, given) < 0) {
        return NULL;
    }
    const advice_entry *entry = find_advice(given[0]);
    if (entry == NULL) {
        return NULL;
    }
    bool has_location = given[1] != NULL && !Py_IsNone(given[1]);
    if (has_location != entry->takes_location) {
        PyErr_Format(PyExc_ValueError,
                     has_location ? "where: the advice '%s' takes no location"
                                  : "where: the advice '%s' needs a location",
                     entry->name);
        return NULL;
    }
    um_location where = {.kind = UM_LOCATION_NONE};
    if (has_location && um_parse_location(state, given[1], "where", um_block_device(array->block), false, &where) < 0) {
        return NULL;
    }
    if (um_state_context(state) == NULL) {
        return NULL;
    }
    um_access range = extent_of(array);
    um_error err;
    um_status status = UM_OK;
    Py_BEGIN_ALLOW_THREADS /* advice on populated memory takes milliseconds per GiB */
    status = um_advise(range.block, range.offset, range.size, entry->advice, where, &err);
    Py_END_ALLOW_THREADS
    if (status != UM_OK) {
        return um_raise(state, &err);
    }
    Py_RETURN_NONE;
}

/* --- discard ------------------------------------------------------------------------------------------------------ */

PyObject *um_ndarray_discard(PyObject *self, PyObject *Py_UNUSED(unused)) {
    um_state *state = um_state_of(self);
    um_ndarray *array = (um_ndarray *)self;
    if (um_state_context(state) == NULL) {
        return NULL;
    }
    if (!um_ndarray_is_writeable(array)) {
        PyErr_SetString(PyExc_ValueError, "cannot discard a read-only array: its contents would be lost");
        return NULL;
    }
    um_access range = extent_of(array);
    if (range.size != (size_t)um_ndarray_nbytes(array)) {
        PyErr_SetString(
            PyExc_ValueError,
            "discard needs a contiguous view: what lies between the elements of this one would be lost too");
        return NULL;
    }
    if (range.size == 0) {
        Py_RETURN_NONE;
    }
    um_error err;
    um_status status = UM_OK;
    Py_BEGIN_ALLOW_THREADS /* giving pages back takes a while on the host backend */
    status = um_discard(range.block, range.offset, range.size, &err);
    Py_END_ALLOW_THREADS
    if (status != UM_OK) {
        return um_raise(state, &err);
    }
    Py_RETURN_NONE;
}

/* --- home --------------------------------------------------------------------------------------------------------- */

PyObject *um_ndarray_get_home(PyObject *self, void *Py_UNUSED(closure)) {
    return um_location_to_python(um_block_home(((um_ndarray *)self)->block));
}

int um_ndarray_set_home(PyObject *self, PyObject *value, void *Py_UNUSED(closure)) {
    um_state *state = um_state_of(self);
    um_ndarray *array = (um_ndarray *)self;
    um_location home;
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "cannot delete home: set it to None");
        return -1;
    }
    if (um_parse_location(state, value, "home", um_block_device(array->block), true, &home) < 0) {
        return -1;
    }
    um_error err;
    um_status status = UM_OK;
    Py_BEGIN_ALLOW_THREADS
    status = um_set_home(array->block, home, &err);
    Py_END_ALLOW_THREADS
    if (status != UM_OK) {
        um_raise(state, &err);
        return -1;
    }
    return 0;
}

/* --- residency ---------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(
    residency_doc,
    "residency($module, array, /)\n--\n\n"
    "Where the pages of an array are, as a tuple (page_size, head, states).\n\n"
    "`page_size` is in bytes. `states` has one byte for each page from the array's first byte to its last: 0 never touched,\n"
    "1 on the host, 2 on a GPU, 3 unknown. `head` is the number of bytes of the first page before the array's first byte.");

static PyObject *core_residency(PyObject *module, PyObject *object) {
    um_state *state = um_state_of_module(module);
    if (!um_ndarray_check(state, object)) {
        return PyErr_Format(PyExc_TypeError, "array must be a umem.ndarray, not '%.100s'", Py_TYPE(object)->tp_name);
    }
    if (um_state_context(state) == NULL) {
        return NULL;
    }
    um_access range = extent_of((um_ndarray *)object);
    size_t pages = range.size == 0 ? 0 : um_residency_page_count(range.block, range.offset, range.size);
    PyObject *states = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)pages);
    if (states == NULL) {
        return NULL;
    }
    size_t page_size = um_page_size();
    size_t head = range.size == 0 ? 0 : ((uintptr_t)um_block_ptr(range.block) + range.offset) % page_size;
    um_error err;
    um_status status = UM_OK;
    if (range.size > 0) {
        unsigned char *bytes = (unsigned char *)PyBytes_AS_STRING(states);
        Py_BEGIN_ALLOW_THREADS
        status = um_residency_scan(range.block, range.offset, range.size, bytes, &err);
        Py_END_ALLOW_THREADS
    }
    if (status != UM_OK) {
        Py_DECREF(states);
        return um_raise(state, &err);
    }
    return Py_BuildValue("(nnN)", (Py_ssize_t)page_size, (Py_ssize_t)head, states);
}

static PyMethodDef placing_functions[] = {
    {"prefetch", UM_METHOD(core_prefetch), METH_VARARGS | METH_KEYWORDS, prefetch_doc},
    {"residency", core_residency, METH_O, residency_doc},
    {NULL, NULL, 0, NULL},
};

int um_placing_add(PyObject *module, um_state *Py_UNUSED(state)) {
    return PyModule_AddFunctions(module, placing_functions);
}
