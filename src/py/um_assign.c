/* Writing values into arrays: by kernels where they fit, so that no page of GPU-resident data moves, else by NumPy. */
#include "py/um_ndarray.h"

#include "py/um_run.h"

int um_ndarray_check_writeable(const um_ndarray *array) {
    if (!um_ndarray_is_writeable(array)) {
        PyErr_SetString(PyExc_ValueError, "assignment destination is read-only");
        return -1;
    }
    return 0;
}

/* --- what kernels can do ------------------------------------------------------------------------------------------------ */

#define MAX_KERNEL_ITEM 16 /* bytes */

/* Whether kernels that move items of the array's size can reach all of its elements. */
static bool has_movable_items(const um_ndarray *array) {
    size_t size = (size_t)PyDataType_ELSIZE(array->descr);
    bool fits = size == 1 || size == 2 || size == 4 || size == 8 || size == MAX_KERNEL_ITEM;
    return fits && um_ndarray_is_aligned_to(array, size);
}

/* Whether kernels may write the array. */
static bool is_kernel_output(const um_ndarray *array) {
    return um_context_is_cuda(um_block_context(array->block)) && um_ndarray_size(array) > 0 &&
           has_movable_items(array) && !um_ndarray_repeats(array);
}

/* An output's shape and strides as kernels take them. */
typedef struct target {
    um_operand operand;
    int64_t shape[UM_MAX_NDIM];
    int64_t strides[UM_MAX_NDIM];
} target;

static void describe_target(um_ndarray *array, um_dtype dtype, target *out) {
    for (int axis = 0; axis < array->ndim; axis++) {
        out->shape[axis] = array->shape[axis];
        out->strides[axis] = array->strides[axis];
    }
    out->operand = (um_operand){.block = array->block, .data = array->data, .dtype = dtype, .strides = out->strides};
}

static int fill_by_kernel(um_state *state, um_ndarray *array, const void *item) {
    um_launch_site site;
    if (um_launch_prepare(state, um_block_device(array->block), &site) < 0) {
        return -1;
    }
    target out;
    describe_target(array, UM_FLOAT32, &out); /* the type does not matter */
    um_wait wait = UM_WAIT_NONE;
    um_error err;
    um_status status;
    um_launch_begin(state, &site);
    status = um_kernel_fill(site.ctx, site.stream, array->ndim, out.shape, (size_t)PyDataType_ELSIZE(array->descr),
                            item, &out.operand, site.deferred, &wait, &err);
    return um_launch_finish(state, &site, status, &wait, &err);
}

/* --- one value ------------------------------------------------------------------------------------------------------------ */

static int assign_element_on_host(um_state *state, um_ndarray *array, PyObject *value) {
    um_turn turn;
    um_turn_host(state, um_block_context(array->block), &turn);
    int result;
    if (array->ndim == 0) {
        result = um_ndarray_host_access(state, array) < 0 ? -1 : PyArray_Pack(array->descr, array->data, value);
    } else {
        PyArrayObject *host = um_ndarray_use_numpy(state, array);
        result = host != NULL ? PyArray_FillWithScalar(host, value) : -1;
        Py_XDECREF(host);
    }
    um_turn_end(&turn);
    return result;
}

int um_ndarray_assign_element(um_state *state, um_ndarray *array, PyObject *value) {
    PyObject *given = value;
    if (um_ndarray_check(state, value)) { /* one element is read; NumPy refuses more without looking at them */
        um_ndarray *other = (um_ndarray *)value;
        given =
            um_ndarray_size(other) == 1 ? um_ndarray_read(state, other) : (PyObject *)um_ndarray_borrow_numpy(other);
        if (given == NULL) {
            return -1;
        }
    } else {
        Py_INCREF(given);
    }
    int result;
    if (is_kernel_output(array)) {
        _Alignas(MAX_KERNEL_ITEM) char item[MAX_KERNEL_ITEM] = {0};
        result = PyArray_Pack(array->descr, item, given);
        if (result == 0) {
            result = fill_by_kernel(state, array, item);
        }
    } else {
        result = assign_element_on_host(state, array, given);
    }
    Py_DECREF(given);
    return result;
}

PyObject *um_ndarray_fill(PyObject *self, PyObject *value) {
    um_ndarray *array = (um_ndarray *)self;
    if (um_ndarray_check_writeable(array) < 0 || um_ndarray_assign_element(um_state_of(self), array, value) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* --- arrays of values -------------------------------------------------------------------------------------------------------- */

static int assign_on_host(um_state *state, um_ndarray *array, PyObject *value) {
    um_turn turn;
    um_turn_host(state, um_block_context(array->block), &turn);
    PyArrayObject *host = um_ndarray_use_numpy(state, array);
    PyObject *given = NULL;
    if (host != NULL) {
        given = um_ndarray_check(state, value) ? (PyObject *)um_ndarray_use_numpy(state, (um_ndarray *)value)
                                               : Py_NewRef(value);
    }
    int result = given != NULL ? PyArray_CopyObject(host, given) : -1;
    Py_XDECREF(given);
    Py_XDECREF(host);
    um_turn_end(&turn);
    return result;
}

static bool is_same_window(const um_ndarray *a, const um_ndarray *b) {
    bool same = a->data == b->data && a->ndim == b->ndim;
    for (int axis = 0; same && axis < a->ndim; axis++) {
        same = a->shape[axis] == b->shape[axis] && a->strides[axis] == b->strides[axis];
    }
    return same;
}

static bool may_overlap(const um_ndarray *a, const um_ndarray *b) {
    size_t a_offset, a_size, b_offset, b_size;
    um_ndarray_extent(a, &a_offset, &a_size);
    um_ndarray_extent(b, &b_offset, &b_size);
    uintptr_t a_first = (uintptr_t)um_block_ptr(a->block) + a_offset;
    uintptr_t b_first = (uintptr_t)um_block_ptr(b->block) + b_offset;
    return a_first < b_first + b_size && b_first < a_first + a_size;
}

/* array[...] = source by a kernel: 1 done, 0 kernels cannot do this, -1 exception. */
static int copy_by_kernel(um_state *state, um_ndarray *array, um_ndarray *source) {
    if (!is_kernel_output(array) || !um_context_is_cuda(um_block_context(source->block)) ||
        !has_movable_items(source)) {
        return 0;
    }
    bool same_type = PyArray_EquivTypes(array->descr, source->descr);
    um_dtype from = UM_FLOAT32, to = UM_FLOAT32;
    if (!same_type && (!um_dtype_from_descr(source->descr, &from) || !um_dtype_from_descr(array->descr, &to))) {
        return 0;
    }
    if (!same_type && from >= UM_COMPLEX64 && to != UM_BOOL && to < UM_COMPLEX64) {
        return 0; /* NumPy warns that it drops imaginary parts */
    }
    target out;
    um_operand in;
    int64_t in_strides[UM_MAX_NDIM];
    describe_target(array, to, &out);
    if (!um_operand_from_array(source, from, array->ndim, out.shape, in_strides, &in)) {
        return 0;
    }
    um_launch_site site;
    if (um_launch_prepare(state, um_block_device(array->block), &site) < 0) {
        return -1;
    }
    um_wait wait = UM_WAIT_NONE;
    um_error err;
    um_status status;
    um_launch_begin(state, &site);
    if (same_type) {
        status = um_kernel_copy(site.ctx, site.stream, array->ndim, out.shape, (size_t)PyDataType_ELSIZE(array->descr),
                                &in, &out.operand, site.deferred, &wait, &err);
    } else {
        status = um_kernel_cast(site.ctx, site.stream, array->ndim, out.shape, &in, &out.operand, site.deferred, &wait,
                                &err);
    }
    return um_launch_finish(state, &site, status, &wait, &err) < 0 ? -1 : 1;
}

static int assign_array(um_state *state, um_ndarray *array, um_ndarray *source) {
    bool same_type = PyArray_EquivTypes(array->descr, source->descr);
    if (same_type && is_same_window(array, source)) {
        return 0;
    }
    um_ndarray *apart = source;
    if (is_kernel_output(array) && may_overlap(array, source)) {
        apart = um_ndarray_copy(state, source, 'C');
        if (apart == NULL) {
            return -1;
        }
    } else {
        Py_INCREF(apart);
    }
    int result = copy_by_kernel(state, array, apart);
    if (result == 0) {
        result = assign_on_host(state, array, (PyObject *)apart);
    }
    Py_DECREF(apart);
    return result < 0 ? -1 : 0;
}

/* Whether NumPy takes the object for one element of any dtype. */
static bool is_scalar(PyObject *value) {
    return PyLong_Check(value) || PyFloat_Check(value) || PyComplex_Check(value) || PyUnicode_Check(value) ||
           PyBytes_Check(value) || PyArray_CheckScalar(value);
}

int um_ndarray_assign(um_state *state, um_ndarray *array, PyObject *value) {
    if (um_ndarray_check(state, value)) {
        return assign_array(state, array, (um_ndarray *)value);
    }
    if (is_scalar(value) && is_kernel_output(array)) {
        return um_ndarray_assign_element(state, array, value);
    }
    return assign_on_host(state, array, value);
}

um_ndarray *um_ndarray_copy(um_state *state, um_ndarray *array, char order) {
    Py_INCREF(array->descr);
    um_ndarray *copy = um_ndarray_empty(state, array->descr, array->ndim, array->shape, order,
                                        um_block_device(array->block), (um_location){UM_LOCATION_NONE, 0});
    if (copy != NULL && um_ndarray_assign(state, copy, (PyObject *)array) < 0) {
        Py_CLEAR(copy);
    }
    return copy;
}
