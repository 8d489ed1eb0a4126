/* _core.read_all: copies of several arrays at the price of one wait. Printing a large array reads its corners this way. */
#include "py/um_ndarray.h"

#include "core/um_transfer.h"

/* Whether the arrays can be read together: elements in all, one block, one number of axes. */
static bool belong_together(um_ndarray *const *arrays, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        if (arrays[i]->block != arrays[0]->block || arrays[i]->ndim != arrays[0]->ndim ||
            PyDataType_ELSIZE(arrays[i]->descr) != PyDataType_ELSIZE(arrays[0]->descr) ||
            um_ndarray_nbytes(arrays[i]) == 0) {
            return false;
        }
    }
    return count > 1;
}

_Static_assert(sizeof(npy_intp) == sizeof(int64_t), "shapes are handed to core as they are");

/* Reads into copies, a list of `count` NumPy arrays. -1 with an exception set. */
static int read_together(um_state *state, um_ndarray *const *arrays, Py_ssize_t count, PyObject *copies) {
    um_read_part *parts = PyMem_New(um_read_part, (size_t)count);
    if (parts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        parts[i] = (um_read_part){
            .ptr = arrays[i]->data,
            .shape = (const int64_t *)arrays[i]->shape,
            .strides = (const int64_t *)arrays[i]->strides,
            .dst = PyArray_DATA((PyArrayObject *)PyList_GET_ITEM(copies, i)),
        };
    }
    um_error err;
    um_status status;
    Py_BEGIN_ALLOW_THREADS
    status = um_read_parts(arrays[0]->block, parts, (size_t)count, arrays[0]->ndim,
                           (size_t)PyDataType_ELSIZE(arrays[0]->descr), &err);
    Py_END_ALLOW_THREADS
    PyMem_Free(parts);
    if (status != UM_OK) {
        um_raise(state, &err);
        return -1;
    }
    return 0;
}

/* A NumPy array to read the elements into. New reference. */
static PyObject *make_copy(um_ndarray *array) {
    Py_INCREF(array->descr);
    return PyArray_NewFromDescr(&PyArray_Type, array->descr, array->ndim, array->shape, NULL, NULL, 0, NULL);
}

static PyObject *read_all(PyObject *module, PyObject *sequence) {
    um_state *state = um_state_of_module(module);
    PyObject *tuple = PySequence_Tuple(sequence);
    if (tuple == NULL) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    um_ndarray **arrays = (um_ndarray **)((PyTupleObject *)tuple)->ob_item;
    PyObject *copies = PyList_New(count);
    bool together = false;
    for (Py_ssize_t i = 0; copies != NULL && i < count; i++) {
        if (!um_ndarray_check(state, (PyObject *)arrays[i])) {
            PyErr_Format(PyExc_TypeError, "arrays[%zd] is a %.200s, not a umem.ndarray", i,
                         Py_TYPE(arrays[i])->tp_name);
            Py_CLEAR(copies);
        }
    }
    together = copies != NULL && belong_together(arrays, count);
    for (Py_ssize_t i = 0; copies != NULL && i < count; i++) {
        PyObject *copy = together ? make_copy(arrays[i]) : um_ndarray_read(state, arrays[i]);
        if (copy == NULL) {
            Py_CLEAR(copies);
        } else {
            PyList_SET_ITEM(copies, i, copy);
        }
    }
    if (together && copies != NULL && read_together(state, arrays, count, copies) < 0) {
        Py_CLEAR(copies);
    }
    Py_DECREF(tuple);
    return copies;
}

PyDoc_STRVAR(
    read_all_doc,
    "read_all(arrays, /)\n--\n\nNumPy copies of several arrays, in a list. Views of one array are read together, waiting for the\n"
    "GPU once. No page moves.");

static PyMethodDef read_functions[] = {
    {"read_all", read_all, METH_O, read_all_doc},
    {NULL, NULL, 0, NULL},
};

int um_read_add(PyObject *module, um_state *Py_UNUSED(state)) { return PyModule_AddFunctions(module, read_functions); }
