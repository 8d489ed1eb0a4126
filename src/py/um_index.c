/* array[key]: views by NumPy's rules, computed without looking at the data. */
#include "py/um_ndarray.h"

#include "core/um_transfer.h" /* UM_MAX_NDIM */

/* --- keys of integers, slices, None and an Ellipsis, without NumPy --------------------------------------------------------- */

typedef struct window {
    char *data;
    bool scalar; /* one element, if that is what is selected, is a scalar */
    int ndim;
    npy_intp shape[UM_MAX_NDIM];
    npy_intp strides[UM_MAX_NDIM];
} window;

static void append_axis(window *out, npy_intp length, npy_intp stride) {
    out->shape[out->ndim] = length;
    out->strides[out->ndim++] = stride;
}

/* Applies one part of a key to an axis: 1 done, 0 not an integer within bounds or a slice (NumPy knows what to do or say), -1 exception. */
static int narrow(window *out, PyObject *part, npy_intp length, npy_intp stride) {
    npy_intp index;
    if (PySlice_Check(part)) {
        npy_intp start, stop, step;
        if (PySlice_Unpack(part, &start, &stop, &step) < 0) {
            return -1;
        }
        npy_intp count = PySlice_AdjustIndices(length, &start, &stop, step);
        if (count <= 0) { /* as in NumPy: an empty slice keeps the stride */
            count = 0;
            start = 0;
            step = 1;
        }
        out->data += start * stride;
        /* Wraps only for steps longer than the axis, of which none is taken. */
        append_axis(out, count, (npy_intp)((size_t)step * (size_t)stride));
        return 1;
    }
    if (PyLong_CheckExact(part) || PyArray_IsScalar(part, Integer)) {
        index = PyNumber_AsSsize_t(part, NULL);
        if (index == -1 && PyErr_Occurred()) {
            return -1;
        }
        index += index < 0 ? length : 0;
        if (index < 0 || index >= length) {
            return 0;
        }
        out->data += index * stride;
        return 1;
    }
    return 0;
}

/* Counts the axes that a key's parts use up and the axes of the result before integers take some away. False for a key that NumPy has to
 * look at. */
static bool count_axes(const um_ndarray *array, PyObject *const *parts, Py_ssize_t count, int *used) {
    int ellipses = 0;
    int added = 0;
    *used = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (parts[i] == Py_Ellipsis) {
            ellipses++;
        } else if (parts[i] == Py_None) {
            added++;
        } else {
            (*used)++;
        }
    }
    return ellipses <= 1 && *used <= array->ndim && array->ndim + added <= UM_MAX_NDIM;
}

/* 1: the key is a simple one, and *out is what it selects. 0: it is not, or it is wrong. -1: exception. */
static int select_simple(const um_ndarray *array, PyObject *key, window *out) {
    PyObject *const *parts = &key;
    Py_ssize_t count = 1;
    if (PyTuple_Check(key)) {
        parts = &PyTuple_GET_ITEM(key, 0);
        count = PyTuple_GET_SIZE(key);
    }
    int used;
    if (count > UM_MAX_NDIM + 1 || !count_axes(array, parts, count, &used)) {
        return 0;
    }
    out->data = array->data;
    out->scalar = true;
    out->ndim = 0;
    int axis = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (parts[i] == Py_None) {
            append_axis(out, 1, 0);
        } else if (parts[i] == Py_Ellipsis) {
            out->scalar = false;
            for (int left = array->ndim - used; left > 0; left--, axis++) {
                append_axis(out, array->shape[axis], array->strides[axis]);
            }
        } else {
            int result = narrow(out, parts[i], array->shape[axis], array->strides[axis]);
            if (result != 1) {
                return result;
            }
            axis++;
        }
    }
    for (; axis < array->ndim; axis++) {
        append_axis(out, array->shape[axis], array->strides[axis]);
    }
    return 1;
}

static um_ndarray *view_of_window(um_state *state, um_ndarray *array, const window *seen) {
    return um_ndarray_view(state, array, seen->data, seen->ndim, seen->shape, seen->strides);
}

/* --- any other key ------------------------------------------------------------------------------------------------------------- */

/* A key as NumPy is to see it. */
typedef struct numpy_key {
    PyObject *object; /* owned */
    bool basic;  /* selects a view, whatever the data are. An Ellipsis was added, so that one element is a view too */
    bool scalar; /* one element, if that is what it selects, is a scalar */
} numpy_key;

/* Whether a list names fields of a record. */
static bool is_list_of_names(PyObject *object) {
    if (!PyList_Check(object)) {
        return false;
    }
    bool names;
    Py_BEGIN_CRITICAL_SECTION(object);
    names = PyList_GET_SIZE(object) > 0;
    for (Py_ssize_t i = 0; names && i < PyList_GET_SIZE(object); i++) {
        names = PyUnicode_Check(PyList_GET_ITEM(object, i));
    }
    Py_END_CRITICAL_SECTION();
    return names;
}

/* Whether NumPy may take the object for one integer. */
static bool may_be_integer(PyObject *part) {
    return PyIndex_Check(part) && !PyBool_Check(part) && !PyArray_IsScalar(part, Bool) && !PyArray_Check(part);
}

/* Converts one part of a key, a new reference in *out: umem arrays to NumPy's, objects that stand for an integer to that integer. Clears
 * *basic when the part makes the key an advanced one. -1 with an exception set. */
static int convert_part(um_state *state, PyObject *part, PyObject **out, bool *basic) {
    if (part == Py_None || part == Py_Ellipsis || PySlice_Check(part) || PyLong_CheckExact(part)) {
        *out = Py_NewRef(part);
        return 0;
    }
    if (um_ndarray_check(state, part)) {
        *basic = false;
        *out = um_ndarray_to_numpy(state, (um_ndarray *)part);
        return *out == NULL ? -1 : 0;
    }
    if (may_be_integer(part)) {
        *out = PyNumber_Index(part);
        if (*out != NULL) {
            return 0;
        }
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return -1;
        }
        PyErr_Clear(); /* as in NumPy: an array of another library, say */
    }
    *basic = false;
    *out = Py_NewRef(part);
    return 0;
}

/* Converts the parts of a key into a tuple with room for an Ellipsis; -1 with an exception set. */
static int convert_parts(um_state *state, PyObject *const *parts, Py_ssize_t count, numpy_key *out) {
    PyObject *tuple = PyTuple_New(count + 1);
    if (tuple == NULL) {
        return -1;
    }
    out->basic = true;
    out->scalar = true;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *converted;
        if (convert_part(state, parts[i], &converted, &out->basic) < 0) {
            Py_DECREF(tuple);
            return -1;
        }
        PyTuple_SET_ITEM(tuple, i, converted);
        out->scalar = out->scalar && converted != Py_Ellipsis;
    }
    if (out->basic && out->scalar) {
        PyTuple_SET_ITEM(tuple, count, Py_NewRef(Py_Ellipsis));
    } else if (_PyTuple_Resize(&tuple, count) < 0) {
        return -1;
    }
    out->object = tuple;
    return 0;
}

static int convert_key(um_state *state, PyObject *key, numpy_key *out) {
    if (PyUnicode_Check(key) || is_list_of_names(key)) {
        *out = (numpy_key){.object = Py_NewRef(key), .basic = true, .scalar = false};
        return 0;
    }
    if (PyTuple_Check(key)) {
        return convert_parts(state, &PyTuple_GET_ITEM(key, 0), PyTuple_GET_SIZE(key), out);
    }
    return convert_parts(state, &key, 1, out);
}

/* The view that a basic key selects. */
static um_ndarray *select_basic(um_state *state, um_ndarray *array, const numpy_key *key) {
    PyArrayObject *whole = um_ndarray_borrow_numpy(array);
    PyObject *part = whole != NULL ? PyObject_GetItem((PyObject *)whole, key->object) : NULL;
    um_ndarray *view = NULL;
    if (part != NULL && PyArray_Check(part)) {
        view = um_ndarray_from_view(state, array, (PyArrayObject *)part);
    } else if (part != NULL) {
        PyErr_Format(PyExc_SystemError, "NumPy gave a '%.100s' for a view", Py_TYPE(part)->tp_name);
    }
    Py_XDECREF(part);
    Py_XDECREF(whole);
    return view;
}

/* --- reading ---------------------------------------------------------------------------------------------------------------------- */

/* A NumPy array that owns its elements, as a new umem array on the device of `like`. */
static PyObject *adopt_copy(um_state *state, um_ndarray *like, PyArrayObject *values) {
    PyArray_Descr *descr = PyArray_DESCR(values);
    char order = PyArray_IS_F_CONTIGUOUS(values) && !PyArray_IS_C_CONTIGUOUS(values) ? 'F' : 'C';
    Py_INCREF(descr);
    um_ndarray *copy = um_ndarray_empty(state, descr, PyArray_NDIM(values), PyArray_DIMS(values), order,
                                        um_block_device(like->block), (um_location){UM_LOCATION_NONE, 0});
    PyArrayObject *into = copy != NULL ? um_ndarray_borrow_numpy(copy) : NULL;
    um_turn turn;
    um_turn_host(state, um_block_context(like->block), &turn);
    if (into == NULL || um_ndarray_host_access(state, copy) < 0 || PyArray_CopyInto(into, values) < 0) {
        Py_CLEAR(copy);
    }
    um_turn_end(&turn);
    Py_XDECREF(into);
    return (PyObject *)copy;
}

/* What a key with arrays in it selects: a copy. */
static PyObject *select_advanced(um_state *state, um_ndarray *array, const numpy_key *key) {
    um_turn turn;
    um_turn_host(state, um_block_context(array->block), &turn);
    PyObject *host = (PyObject *)um_ndarray_use_numpy(state, array);
    PyObject *picked = host != NULL ? PyObject_GetItem(host, key->object) : NULL;
    um_turn_end(&turn);
    Py_XDECREF(host);
    if (picked != NULL && PyArray_Check(picked)) {
        PyObject *copy = adopt_copy(state, array, (PyArrayObject *)picked);
        Py_SETREF(picked, copy);
    }
    return picked;
}

static PyObject *select_any(um_state *state, um_ndarray *array, PyObject *given) {
    numpy_key key;
    if (convert_key(state, given, &key) < 0) {
        return NULL;
    }
    PyObject *result = NULL;
    if (key.basic) {
        um_ndarray *view = select_basic(state, array, &key);
        if (view != NULL && view->ndim == 0 && key.scalar) {
            result = um_ndarray_element(state, array, view->data);
            Py_DECREF(view);
        } else {
            result = (PyObject *)view;
        }
    } else {
        result = select_advanced(state, array, &key);
    }
    Py_DECREF(key.object);
    return result;
}

PyObject *um_ndarray_subscript(PyObject *self, PyObject *key) {
    um_ndarray *array = (um_ndarray *)self;
    um_state *state = um_state_of(self);
    window seen;
    int simple = select_simple(array, key, &seen);
    if (simple < 0) {
        return NULL;
    }
    if (simple == 0) {
        return select_any(state, array, key);
    }
    if (seen.ndim == 0 && seen.scalar) {
        return um_ndarray_element(state, array, seen.data);
    }
    return (PyObject *)view_of_window(state, array, &seen);
}

PyObject *um_ndarray_sq_item(PyObject *self, Py_ssize_t index) {
    PyObject *key = PyLong_FromSsize_t(index);
    if (key == NULL) {
        return NULL;
    }
    PyObject *result = um_ndarray_subscript(self, key);
    Py_DECREF(key);
    return result;
}

/* An operand for NumPy: a umem array as one of NumPy's, anything else as it is. New reference. */
static PyObject *numpy_operand(um_state *state, PyObject *value) {
    if (um_ndarray_check(state, value)) {
        return (PyObject *)um_ndarray_use_numpy(state, (um_ndarray *)value);
    }
    return Py_NewRef(value);
}

int um_ndarray_sq_contains(PyObject *self, PyObject *value) {
    um_state *state = um_state_of(self);
    um_turn turn;
    um_turn_host(state, um_block_context(((um_ndarray *)self)->block), &turn);
    PyObject *host = numpy_operand(state, self);
    PyObject *wanted = host != NULL ? numpy_operand(state, value) : NULL;
    int found = wanted != NULL ? PySequence_Contains(host, wanted) : -1;
    um_turn_end(&turn);
    Py_XDECREF(wanted);
    Py_XDECREF(host);
    return found;
}

/* --- writing ----------------------------------------------------------------------------------------------------------------------- */

/* array[key] = value through NumPy. */
static int set_on_host(um_state *state, um_ndarray *array, PyObject *key, PyObject *value) {
    um_turn turn;
    um_turn_host(state, um_block_context(array->block), &turn);
    PyObject *host = (PyObject *)um_ndarray_use_numpy(state, array);
    PyObject *given = host != NULL ? numpy_operand(state, value) : NULL;
    int result = given != NULL ? PyObject_SetItem(host, key, given) : -1;
    um_turn_end(&turn);
    Py_XDECREF(given);
    Py_XDECREF(host);
    return result;
}

static int set_any(um_state *state, um_ndarray *array, PyObject *given, PyObject *value) {
    numpy_key key;
    if (convert_key(state, given, &key) < 0) {
        return -1;
    }
    int result = -1;
    if (key.basic) {
        um_ndarray *part = select_basic(state, array, &key);
        if (part != NULL) {
            result = part->ndim == 0 && key.scalar ? um_ndarray_assign_element(state, part, value)
                                                   : um_ndarray_assign(state, part, value);
            Py_DECREF(part);
        }
    } else {
        result = set_on_host(state, array, key.object, value);
    }
    Py_DECREF(key.object);
    return result;
}

int um_ndarray_ass_subscript(PyObject *self, PyObject *key, PyObject *value) {
    um_ndarray *array = (um_ndarray *)self;
    um_state *state = um_state_of(self);
    if (value == NULL) {
        PyErr_SetString(PyExc_ValueError, "cannot delete array elements");
        return -1;
    }
    if (um_ndarray_check_writeable(array) < 0) {
        return -1;
    }
    window seen;
    int simple = select_simple(array, key, &seen);
    if (simple < 0) {
        return -1;
    }
    if (simple == 0) {
        return set_any(state, array, key, value);
    }
    um_ndarray *part = view_of_window(state, array, &seen);
    if (part == NULL) {
        return -1;
    }
    int result = part->ndim == 0 && seen.scalar ? um_ndarray_assign_element(state, part, value)
                                                : um_ndarray_assign(state, part, value);
    Py_DECREF(part);
    return result;
}
