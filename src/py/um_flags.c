/* ndarray.flags: what NumPy's flags object shows, for a umem array. */
#include "py/um_ndarray.h"

typedef struct flags_object {
    PyObject_HEAD um_ndarray *array; /* owned */
} flags_object;

PyObject *um_ndarray_get_flags(PyObject *self, void *closure) {
    (void)closure;
    flags_object *flags = PyObject_GC_New(flags_object, um_state_of(self)->flags_type);
    if (flags != NULL) {
        flags->array = (um_ndarray *)Py_NewRef(self);
        PyObject_GC_Track((PyObject *)flags);
    }
    return (PyObject *)flags;
}

static int flags_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((flags_object *)self)->array);
    return 0;
}

static int flags_clear(PyObject *self) {
    Py_CLEAR(((flags_object *)self)->array);
    return 0;
}

static void flags_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)flags_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* --- the flags ----------------------------------------------------------------------------------------------------------- */

typedef bool (*flag_reader)(const um_ndarray *array);

static bool is_c(const um_ndarray *array) { return um_ndarray_is_c_contiguous(array); }

static bool is_f(const um_ndarray *array) { return um_ndarray_is_f_contiguous(array); }

static bool is_forc(const um_ndarray *array) { return is_c(array) || is_f(array); }

static bool is_fnc(const um_ndarray *array) { return is_f(array) && !is_c(array); }

static bool owns_data(const um_ndarray *array) { return array->owns_data; }

static bool is_writeable(const um_ndarray *array) { return um_ndarray_is_writeable(array); }

static bool is_aligned(const um_ndarray *array) { return um_ndarray_is_aligned(array); }

static bool is_behaved(const um_ndarray *array) { return is_writeable(array) && is_aligned(array); }

static bool is_carray(const um_ndarray *array) { return is_c(array) && is_behaved(array); }

static bool is_farray(const um_ndarray *array) { return is_fnc(array) && is_behaved(array); }

static bool never(const um_ndarray *array) {
    (void)array;
    return false;
}

static int set_writeable(PyObject *self, PyObject *value, void *closure);

/* attribute, how it is read, how it is set, the keys of `flags[...]` that NumPy has for it. The first six are printed, in this order. */
#define EACH_FLAG(FLAG)                                                                                                \
    FLAG(c_contiguous, is_c, NULL, "C_CONTIGUOUS", "C", "CONTIGUOUS")                                                  \
    FLAG(f_contiguous, is_f, NULL, "F_CONTIGUOUS", "F", "FORTRAN")                                                     \
    FLAG(owndata, owns_data, NULL, "OWNDATA", "O", NULL)                                                               \
    FLAG(writeable, is_writeable, set_writeable, "WRITEABLE", "W", NULL)                                               \
    FLAG(aligned, is_aligned, NULL, "ALIGNED", "A", NULL)                                                              \
    FLAG(writebackifcopy, never, NULL, "WRITEBACKIFCOPY", "X", NULL)                                                   \
    FLAG(contiguous, is_c, NULL, NULL, NULL, NULL)                                                                     \
    FLAG(fnc, is_fnc, NULL, "FNC", NULL, NULL)                                                                         \
    FLAG(forc, is_forc, NULL, "FORC", NULL, NULL)                                                                      \
    FLAG(behaved, is_behaved, NULL, "BEHAVED", "B", NULL)                                                              \
    FLAG(carray, is_carray, NULL, "CARRAY", "CA", NULL)                                                                \
    FLAG(farray, is_farray, NULL, "FARRAY", "FA", NULL)
#define PRINTED_FLAGS 6

typedef struct flag {
    flag_reader read;
    const char *keys[3];
} flag;

enum flag_number {
#define FLAG_NUMBER(name, read, set, key1, key2, key3) FLAG_##name,
    EACH_FLAG(FLAG_NUMBER)
#undef FLAG_NUMBER
        FLAG_COUNT,
};

static const flag all_flags[] = {
#define FLAG_ENTRY(name, read, set, key1, key2, key3) {read, {key1, key2, key3}},
    EACH_FLAG(FLAG_ENTRY)
#undef FLAG_ENTRY
};

static const flag *find_key(PyObject *key) {
    for (size_t i = 0; PyUnicode_Check(key) && i < FLAG_COUNT; i++) {
        for (size_t k = 0; k < 3 && all_flags[i].keys[k] != NULL; k++) {
            if (PyUnicode_CompareWithASCIIString(key, all_flags[i].keys[k]) == 0) {
                return &all_flags[i];
            }
        }
    }
    return NULL;
}

static PyObject *get_flag(PyObject *self, void *closure) {
    const flag *wanted = closure;
    return PyBool_FromLong(wanted->read(((flags_object *)self)->array));
}

static PyObject *get_num(PyObject *self, void *closure) {
    (void)closure;
    const um_ndarray *array = ((flags_object *)self)->array;
    return PyLong_FromLong((is_c(array) ? NPY_ARRAY_C_CONTIGUOUS : 0) | (is_f(array) ? NPY_ARRAY_F_CONTIGUOUS : 0) |
                           (owns_data(array) ? NPY_ARRAY_OWNDATA : 0) | (is_aligned(array) ? NPY_ARRAY_ALIGNED : 0) |
                           (is_writeable(array) ? NPY_ARRAY_WRITEABLE : 0));
}

/* Whether an array that was made read-only may be written again: it came writeable, or the array it is a view of is. */
static bool may_be_writeable(const um_ndarray *array) {
    if (array->base != NULL && Py_IS_TYPE(array->base, Py_TYPE((PyObject *)array))) {
        return is_writeable(array) || is_writeable((um_ndarray *)array->base);
    }
    return array->may_write;
}

static int set_writeable(PyObject *self, PyObject *value, void *closure) {
    (void)closure;
    um_ndarray *array = ((flags_object *)self)->array;
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "Cannot delete flags writeable attribute");
        return -1;
    }
    int writeable = PyObject_IsTrue(value);
    if (writeable < 0) {
        return -1;
    }
    bool allowed;
    PyObject *stale = NULL;
    Py_BEGIN_CRITICAL_SECTION(array);
    allowed = !writeable || may_be_writeable(array);
    if (allowed) {
        um_ndarray_set_writeable(array, writeable != 0);
        stale = array->cuda_interface; /* it says so too */
        array->cuda_interface = NULL;
    }
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(stale);
    if (!allowed) {
        PyErr_SetString(PyExc_ValueError, "cannot set WRITEABLE flag to True of this array");
        return -1;
    }
    return 0;
}

static PyObject *flags_subscript(PyObject *self, PyObject *key) {
    const flag *wanted = find_key(key);
    if (wanted == NULL) {
        PyErr_SetString(PyExc_KeyError, "Unknown flag");
        return NULL;
    }
    return PyBool_FromLong(wanted->read(((flags_object *)self)->array));
}

static int flags_ass_subscript(PyObject *self, PyObject *key, PyObject *value) {
    const flag *wanted = find_key(key);
    if (wanted == NULL || wanted->read != is_writeable) {
        PyErr_SetString(PyExc_KeyError,
                        wanted == NULL ? "Unknown flag" : "Only the WRITEABLE flag of a umem array can be set");
        return -1;
    }
    return set_writeable(self, value, NULL);
}

static PyObject *flags_repr(PyObject *self) {
    const um_ndarray *array = ((flags_object *)self)->array;
    PyObject *text = PyUnicode_FromString("");
    for (size_t i = 0; text != NULL && i < PRINTED_FLAGS; i++) {
        PyObject *longer = PyUnicode_FromFormat("%U  %s : %s\n", text, all_flags[i].keys[0],
                                                all_flags[i].read(array) ? "True" : "False");
        Py_SETREF(text, longer);
    }
    return text;
}

/* --- the type --------------------------------------------------------------------------------------------------------------- */

static PyGetSetDef flags_getset[] = {
#define FLAG_GETSET(name, read, set, key1, key2, key3) {#name, get_flag, set, NULL, (void *)&all_flags[FLAG_##name]},
    EACH_FLAG(FLAG_GETSET)
#undef FLAG_GETSET
        {"num", get_num, NULL, "The flags as NumPy's bit mask.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(flags_doc, "Memory layout of an array, read as attributes or by key as NumPy's flags.");

static PyType_Slot flags_slots[] = {
    {Py_tp_doc, (void *)flags_doc},
    {Py_tp_dealloc, (void *)flags_dealloc},
    {Py_tp_traverse, (void *)flags_traverse},
    {Py_tp_clear, (void *)flags_clear},
    {Py_tp_repr, (void *)flags_repr},
    {Py_tp_getset, flags_getset},
    {Py_mp_subscript, (void *)flags_subscript},
    {Py_mp_ass_subscript, (void *)flags_ass_subscript},
    {0, NULL},
};

static PyType_Spec flags_spec = {
    .name = "umem._core.Flags",
    .basicsize = sizeof(flags_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = flags_slots,
};

int um_flags_add(PyObject *module, um_state *state) {
    state->flags_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &flags_spec, NULL);
    return state->flags_type == NULL ? -1 : PyModule_AddType(module, state->flags_type);
}
