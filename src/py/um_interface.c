/* __array_interface__ and __cuda_array_interface__, version 3 of each. */
#include "py/um_ndarray.h"

#define STREAM_LEGACY 1 /* the CUDA array interface's number for the legacy default stream */

/* --- entries of the dicts --------------------------------------------------------------------------------------------------- */

/* Puts value (stolen; NULL: an exception is set) into the dict. */
static int put(PyObject *dict, PyObject *key, PyObject *value) {
    if (value == NULL) {
        return -1;
    }
    int result = PyDict_SetItem(dict, key, value);
    Py_DECREF(value);
    return result;
}

static PyObject *strides_or_none(const um_ndarray *array) {
    return um_ndarray_is_c_contiguous(array) ? Py_NewRef(Py_None) : um_tuple_of_dims(array->ndim, array->strides);
}

/* (address, read-only) */
static PyObject *data_pair(const void *address, bool writeable) {
    PyObject *number = PyLong_FromVoidPtr((void *)(uintptr_t)address);
    PyObject *pair = number != NULL ? PyTuple_New(2) : NULL;
    if (pair == NULL) {
        Py_XDECREF(number);
        return NULL;
    }
    PyTuple_SET_ITEM(pair, 0, number);
    PyTuple_SET_ITEM(pair, 1, Py_NewRef(writeable ? Py_False : Py_True));
    return pair;
}

static bool is_simple_type(int number) { return PyTypeNum_ISNUMBER(number) || PyTypeNum_ISBOOL(number); }

/* dtype.str, known in advance for native simple dtypes. */
static PyObject *typestr_of(um_state *state, const um_ndarray *array) {
    int number = array->descr->type_num;
    bool simple = PyArray_ISNBO(array->descr->byteorder) && is_simple_type(number);
    PyObject *known = simple ? state->typestrs[number] : NULL;
    return known != NULL ? Py_NewRef(known) : PyObject_GetAttrString((PyObject *)array->descr, "str");
}

int um_interface_add(PyObject *module, um_state *state) {
    (void)module;
    for (int number = 0; number < NPY_NTYPES_LEGACY; number++) {
        PyArray_Descr *descr = is_simple_type(number) ? PyArray_DescrFromType(number) : NULL;
        if (descr != NULL) {
            state->typestrs[number] = PyObject_GetAttrString((PyObject *)descr, "str");
            Py_DECREF(descr);
        }
        if (is_simple_type(number) && state->typestrs[number] == NULL) {
            return -1;
        }
    }
    return 0;
}

/* dtype.descr, which says more than typestr for records only. Where NumPy has none (fields that overlap) it gives the bytes, as here. */
static PyObject *descr_of(um_state *state, const um_ndarray *array) {
    PyObject *descr = PyObject_GetAttr((PyObject *)array->descr, state->names.descr);
    if (descr != NULL || !PyErr_ExceptionMatches(PyExc_ValueError)) {
        return descr;
    }
    PyErr_Clear();
    PyObject *typestr = typestr_of(state, array);
    return typestr != NULL ? Py_BuildValue("[(sN)]", "", typestr) : NULL;
}

/* --- NumPy's ------------------------------------------------------------------------------------------------------------------- */

PyObject *um_ndarray_get_array_interface(PyObject *self, void *closure) {
    (void)closure;
    um_ndarray *array = (um_ndarray *)self;
    um_state *state = um_state_of(self);
    const um_names *names = &state->names;
    bool writeable = um_ndarray_is_writeable(array);
    PyObject *dict = PyDict_New();
    if (dict == NULL) {
        return NULL;
    }
    if (put(dict, names->data, data_pair(array->data, writeable)) < 0 ||
        put(dict, names->strides, strides_or_none(array)) < 0 || put(dict, names->descr, descr_of(state, array)) < 0 ||
        put(dict, names->typestr, typestr_of(state, array)) < 0 ||
        put(dict, names->shape, um_tuple_of_dims(array->ndim, array->shape)) < 0 ||
        put(dict, names->version, PyLong_FromLong(3)) < 0) {
        Py_DECREF(dict);
        return NULL;
    }
    /* Nobody says when the address is no longer used. */
    um_host_view_forever(array->block, writeable);
    if (um_ndarray_host_access(state, array) < 0) {
        Py_DECREF(dict);
        return NULL;
    }
    return dict;
}

/* --- CUDA's ---------------------------------------------------------------------------------------------------------------------- */

/* Rule 4: a consumer may honour the `stream` entry or, as PyTorch does, ignore it and use the legacy default stream. With an explicit
 * stream both must see finished work: the stream waits for the others, and the host for work that the legacy stream does not follow.
 * `given` is NULL without an explicit stream. -1 with an exception set. */
static int export_to_device(um_state *state, um_block *block, um_stream *given) {
    um_error err;
    um_wait wait = UM_WAIT_NONE;
    um_status status = UM_OK;
    PyThreadState *unlocked =
        um_block_was_handed_out(block) ? NULL : PyEval_SaveThread(); /* the first hand-out may prefetch */
    if (given != NULL) {
        status = um_device_export(block, given, &wait, &err);
    }
    if (status == UM_OK) {
        status = um_device_export(block, NULL, &wait, &err);
    }
    if (unlocked != NULL) {
        PyEval_RestoreThread(unlocked);
    }
    if (status != UM_OK) {
        um_raise(state, &err);
        return -1;
    }
    return um_finish_wait(state, &wait);
}

static int refuse_negative_strides(const um_ndarray *array, bool empty) {
    for (int axis = 0; axis < array->ndim && !empty; axis++) {
        if (array->strides[axis] < 0 && array->shape[axis] > 1) {
            PyErr_SetString(
                PyExc_BufferError,
                "an array with negative strides cannot be handed to a GPU library (PyTorch would abort the process): "
                "copy it first, a.copy()");
            return -1;
        }
    }
    return 0;
}

static int fill_cuda_interface(um_state *state, um_ndarray *array, bool empty, bool writeable, PyObject *dict) {
    const um_names *names = &state->names;
    if (put(dict, names->shape, um_tuple_of_dims(array->ndim, array->shape)) < 0 ||
        put(dict, names->typestr, typestr_of(state, array)) < 0 ||
        put(dict, names->data, data_pair(empty ? NULL : array->data, writeable)) < 0 ||
        put(dict, names->strides, strides_or_none(array)) < 0 || put(dict, names->version, PyLong_FromLong(3)) < 0 ||
        put(dict, names->stream, PyLong_FromLong(STREAM_LEGACY)) < 0) {
        return -1;
    }
    return PyDataType_HASFIELDS(array->descr) ? put(dict, names->descr, descr_of(state, array)) : 0;
}

/* Makes what all later reads copy: nothing in it changes but the stream. A new reference, or NULL with an exception set. */
static PyObject *make_cuda_interface(um_state *state, um_ndarray *array, bool writeable) {
    bool empty = um_ndarray_nbytes(array) == 0;
    if (refuse_negative_strides(array, empty) < 0) {
        return NULL;
    }
    PyObject *dict = PyDict_New();
    if (dict == NULL || fill_cuda_interface(state, array, empty, writeable, dict) < 0) {
        Py_XDECREF(dict);
        return NULL;
    }
    PyObject *before = NULL;
    Py_BEGIN_CRITICAL_SECTION(array);
    if (um_ndarray_is_writeable(array) == writeable) { /* else another thread has changed it meanwhile */
        before = array->cuda_interface;
        array->cuda_interface = Py_NewRef(dict);
    }
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(before);
    return dict;
}

/* The dict to copy. A new reference, or NULL with an exception set. */
static PyObject *get_cuda_interface(um_state *state, um_ndarray *array) {
    PyObject *known;
    bool writeable;
    Py_BEGIN_CRITICAL_SECTION(array);
    known = Py_XNewRef(array->cuda_interface);
    writeable = um_ndarray_is_writeable(array);
    Py_END_CRITICAL_SECTION();
    return known != NULL ? known : make_cuda_interface(state, array, writeable);
}

PyObject *um_ndarray_get_cuda_array_interface(PyObject *self, void *closure) {
    (void)closure;
    um_ndarray *array = (um_ndarray *)self;
    um_state *state = um_state_of(self);
    um_context *context = um_block_context(array->block);
    if (!um_context_is_cuda(context)) {
        PyErr_SetString(PyExc_AttributeError, "__cuda_array_interface__: no GPU is in use, the memory is the host's");
        return NULL;
    }
    um_error err;
    if (um_context_check(context, &err) != UM_OK) {
        return um_raise(state, &err);
    }
    PyObject *known = get_cuda_interface(state, array);
    um_stream *given = NULL;
    if (known == NULL || um_explicit_stream(state, &given) < 0) {
        Py_XDECREF(known);
        return NULL;
    }
    PyObject *dict = export_to_device(state, array->block, given) < 0 ? NULL : PyDict_Copy(known);
    Py_DECREF(known);
    if (dict != NULL && given != NULL && um_stream_get_handle(given) != 0 &&
        put(dict, state->names.stream, PyLong_FromSize_t((size_t)um_stream_get_handle(given))) < 0) {
        Py_CLEAR(dict);
    }
    um_stream_unref(given);
    return dict;
}
