/* __array_struct__: NumPy's array interface as a C structure. NumPy asks for it when the buffer protocol has no word for a dtype, and
 * takes the dtype itself from it, where __array_interface__ can only spell it out. */
#include "py/um_ndarray.h"

/* The capsule's structure and what it points to. */
typedef struct exported_struct {
    PyArrayInterface interface;
    npy_intp dims[]; /* shape, then strides */
} exported_struct;

static void free_struct(PyObject *capsule) {
    exported_struct *exported = PyCapsule_GetPointer(capsule, NULL);
    if (exported != NULL) {
        Py_XDECREF(exported->interface.descr);
        PyMem_Free(exported);
    }
}

static int interface_flags(const um_ndarray *array, bool writeable) {
    return NPY_ARR_HAS_DESCR | (um_ndarray_is_c_contiguous(array) ? NPY_ARRAY_C_CONTIGUOUS : 0) |
           (um_ndarray_is_f_contiguous(array) ? NPY_ARRAY_F_CONTIGUOUS : 0) |
           (um_ndarray_is_aligned(array) ? NPY_ARRAY_ALIGNED : 0) |
           (PyArray_ISNBO(array->descr->byteorder) ? NPY_ARRAY_NOTSWAPPED : 0) | (writeable ? NPY_ARRAY_WRITEABLE : 0);
}

PyObject *um_ndarray_get_array_struct(PyObject *self, void *closure) {
    (void)closure;
    um_ndarray *array = (um_ndarray *)self;
    bool writeable = um_ndarray_is_writeable(array);
    exported_struct *exported = PyMem_Malloc(sizeof(exported_struct) + 2 * (size_t)array->ndim * sizeof(npy_intp));
    if (exported == NULL) {
        return PyErr_NoMemory();
    }
    um_copy_dims(exported->dims, array->shape, array->ndim);
    um_copy_dims(exported->dims + array->ndim, array->strides, array->ndim);
    exported->interface = (PyArrayInterface){
        .two = 2,
        .nd = array->ndim,
        .typekind = array->descr->kind,
        .itemsize = (int)PyDataType_ELSIZE(array->descr),
        .flags = interface_flags(array, writeable),
        .shape = exported->dims,
        .strides = exported->dims + array->ndim,
        .data = array->data,
        .descr = Py_NewRef((PyObject *)array->descr),
    };
    PyObject *capsule = PyCapsule_New(exported, NULL, free_struct);
    if (capsule == NULL) {
        Py_DECREF(exported->interface.descr);
        PyMem_Free(exported);
        return NULL;
    }
    /* Nobody says when the address is no longer used. */
    um_host_view_forever(array->block, writeable);
    if (um_ndarray_host_access(um_state_of(self), array) < 0) {
        Py_DECREF(capsule);
        return NULL;
    }
    return capsule;
}
