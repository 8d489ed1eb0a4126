/* The host side of an array: waiting, NumPy arrays over its memory, and reads that move nothing. */
#include "py/um_ndarray.h"

#include "core/um_transfer.h"

_Static_assert(sizeof(npy_intp) == sizeof(int64_t), "umem needs a 64-bit platform");

/* --- waiting ----------------------------------------------------------------------------------------------------------- */

/* Runs a wait that is needed and raises what went wrong. */
static um_status run_wait(um_state *state, um_wait *wait) {
    um_error err;
    um_status status;
    PyThreadState *thread = um_unlock_for_device(wait->ctx);
    status = um_wait_run(wait, &err);
    um_lock_after_device(thread);
    if (status != UM_OK) {
        um_raise(state, &err);
    }
    return status;
}

int um_finish_wait(um_state *state, um_wait *wait) { return !wait->needed || run_wait(state, wait) == UM_OK ? 0 : -1; }

int um_ndarray_host_access(um_state *state, um_ndarray *array) {
    um_wait wait = UM_WAIT_NONE;
    um_error err;
    um_status status;
    if (um_host_access(array->block, &wait, &err) != UM_OK) {
        um_raise(state, &err);
        return -1;
    }
    if (!wait.needed) {
        return 0;
    }
    bool interruptible = um_context_is_interruptible(wait.ctx);
    if (interruptible && um_raise_lost_interruption(state) < 0) {
        um_wait_drop(&wait);
        return -1;
    }
    status = run_wait(state, &wait);
    if (status == UM_ERR_INTERRUPTED && interruptible) {
        um_keep_interruption(state);
    }
    return status == UM_OK ? 0 : -1;
}

/* --- NumPy arrays over the memory ------------------------------------------------------------------------------------------ */

static PyArrayObject *borrow_numpy(um_ndarray *array, bool writeable) {
    PyArray_Descr *descr = array->descr;
    /* NumPy gives strings of no width one character, which would reach past the element. Such an array is made of raw bytes first. */
    bool no_width = PyDataType_ELSIZE(descr) == 0 && PyTypeNum_ISSTRING(descr->type_num);
    PyArray_Descr *used = no_width ? PyArray_DescrNewFromType(NPY_VOID) : descr;
    if (used == NULL) {
        return NULL;
    }
    if (!no_width) {
        Py_INCREF(used);
    }
    PyObject *made = PyArray_NewFromDescr(&PyArray_Type, used, array->ndim, array->shape, array->strides, array->data,
                                          writeable ? NPY_ARRAY_WRITEABLE : 0, NULL);
    if (made != NULL && no_width) {
        Py_INCREF(descr);
        Py_SETREF(((PyArrayObject_fields *)made)->descr, descr);
    }
    return (PyArrayObject *)made;
}

PyArrayObject *um_ndarray_borrow_numpy(um_ndarray *array) {
    return borrow_numpy(array, um_ndarray_is_writeable(array));
}

#define WRITABLE_VIEW ((void *)1)

static void end_host_view(PyObject *capsule) {
    um_ndarray *array = PyCapsule_GetPointer(capsule, UM_HOST_VIEW);
    if (array != NULL) {
        um_host_view_remove(array->block, PyCapsule_GetContext(capsule) == WRITABLE_VIEW);
        Py_DECREF(array);
    }
}

static PyObject *begin_host_view(um_ndarray *array, bool writeable) {
    PyObject *capsule = PyCapsule_New(array, UM_HOST_VIEW, NULL);
    if (capsule == NULL || PyCapsule_SetContext(capsule, writeable ? WRITABLE_VIEW : NULL) < 0 ||
        PyCapsule_SetDestructor(capsule, end_host_view) < 0) {
        Py_XDECREF(capsule);
        return NULL;
    }
    Py_INCREF(array);
    um_host_view_add(array->block, writeable);
    return capsule;
}

PyObject *um_ndarray_to_numpy(um_state *state, um_ndarray *array) {
    /* Counted before the wait: work that another thread launches meanwhile is complete when its launch returns. */
    bool writeable = um_ndarray_is_writeable(array);
    PyObject *view = begin_host_view(array, writeable);
    if (view == NULL) {
        return NULL;
    }
    PyArrayObject *numpy = NULL;
    if (um_ndarray_host_access(state, array) == 0) {
        numpy = borrow_numpy(array, writeable);
    }
    if (numpy == NULL) {
        Py_DECREF(view);
        return NULL;
    }
    if (PyArray_SetBaseObject(numpy, view) < 0) { /* steals view, also on failure */
        Py_DECREF(numpy);
        return NULL;
    }
    return (PyObject *)numpy;
}

PyArrayObject *um_ndarray_use_numpy(um_state *state, um_ndarray *array) {
    if (um_context_is_cuda(um_block_context(array->block))) {
        return (PyArrayObject *)um_ndarray_to_numpy(state, array);
    }
    return um_ndarray_host_access(state, array) < 0 ? NULL : um_ndarray_borrow_numpy(array);
}

/* --- reads that move no page -------------------------------------------------------------------------------------------------- */

/* um_read of a block on the GPU may wait for the GPU. On the host it is a copy, for which the GIL is given up only when it is long. */
#define LONG_COPY ((size_t)1 << 18) /* bytes */

static int read_into(um_state *state, um_ndarray *array, const char *data, int ndim, const npy_intp *shape,
                     const npy_intp *strides, size_t itemsize, size_t nbytes, void *out) {
    if (nbytes == 0) {
        return 0;
    }
    int64_t lengths[UM_MAX_NDIM];
    int64_t steps[UM_MAX_NDIM];
    for (int axis = 0; axis < ndim; axis++) {
        lengths[axis] = shape[axis];
        steps[axis] = strides[axis];
    }
    um_error err;
    um_status status;
    if (nbytes < LONG_COPY && !um_context_is_cuda(um_block_context(array->block))) {
        status = um_read(array->block, data, ndim, lengths, steps, itemsize, out, &err);
    } else {
        Py_BEGIN_ALLOW_THREADS
        status = um_read(array->block, data, ndim, lengths, steps, itemsize, out, &err);
        Py_END_ALLOW_THREADS
    }
    if (status != UM_OK) {
        um_raise(state, &err);
        return -1;
    }
    return 0;
}

int um_ndarray_read_bytes(um_state *state, um_ndarray *array, const char *data, size_t size, void *out) {
    return read_into(state, array, data, 0, NULL, NULL, size, size, out);
}

PyObject *um_ndarray_read(um_state *state, um_ndarray *array) {
    npy_intp itemsize = PyDataType_ELSIZE(array->descr);
    npy_intp nbytes = um_ndarray_nbytes(array);
    if (nbytes == 0) { /* nothing to read, and NumPy keeps the dtype as it is when it is given the layout */
        PyArrayObject *view = um_ndarray_borrow_numpy(array);
        PyObject *copy = view != NULL ? PyArray_NewCopy(view, NPY_CORDER) : NULL;
        Py_XDECREF(view);
        return copy;
    }
    Py_INCREF(array->descr);
    PyObject *copy = PyArray_NewFromDescr(&PyArray_Type, array->descr, array->ndim, array->shape, NULL, NULL, 0, NULL);
    if (copy == NULL) {
        return NULL;
    }
    if (read_into(state, array, array->data, array->ndim, array->shape, array->strides, (size_t)itemsize,
                  (size_t)nbytes, PyArray_DATA((PyArrayObject *)copy)) < 0) {
        Py_DECREF(copy);
        return NULL;
    }
    return copy;
}

/* --- umem views from NumPy's --------------------------------------------------------------------------------------------------- */

um_ndarray *um_ndarray_from_view(um_state *state, um_ndarray *parent, PyArrayObject *view) {
    PyArray_Descr *descr = PyArray_DESCR(view);
    if (um_check_dtype(descr) < 0) {
        return NULL;
    }
    Py_INCREF(descr);
    return um_ndarray_new(state, um_block_ref(parent->block), PyArray_BYTES(view), descr, PyArray_NDIM(view),
                          PyArray_DIMS(view), PyArray_STRIDES(view),
                          um_ndarray_is_writeable(parent) && PyArray_ISWRITEABLE(view), um_ndarray_root(state, parent));
}
