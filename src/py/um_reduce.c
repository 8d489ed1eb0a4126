/* The reductions for umem's own Python code, which decides types and shapes; everything is checked again here. */
#include "py/um_run.h"

#include <string.h>

static int read_axes(PyObject *axes, int ndim, bool *reduced) {
    if (!PyTuple_Check(axes)) {
        PyErr_Format(PyExc_TypeError, "axes must be a tuple of int, not '%.100s'", Py_TYPE(axes)->tp_name);
        return -1;
    }
    for (int axis = 0; axis < ndim; ++axis) {
        reduced[axis] = false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(axes); ++i) {
        Py_ssize_t axis = PyNumber_AsSsize_t(PyTuple_GET_ITEM(axes, i), PyExc_ValueError);
        if (axis == -1 && PyErr_Occurred()) {
            return -1;
        }
        Py_ssize_t index = axis < 0 ? axis + ndim : axis;
        if (index < 0 || index >= ndim) {
            PyErr_Format(PyExc_ValueError, "axes: %zd is out of bounds for an array of dimension %d", axis, ndim);
            return -1;
        }
        if (reduced[index]) {
            PyErr_Format(PyExc_ValueError, "axes: %zd is given twice", axis);
            return -1;
        }
        reduced[index] = true;
    }
    return 0;
}

/* Strides of out over the axes of src, 0 where reduced. False when its shape is neither that of src without the axes
 * nor with 1 in their place. */
static bool result_strides(const um_ndarray *src, const bool *reduced, const um_ndarray *out, int64_t *strides) {
    bool keeps = out->ndim == src->ndim;
    int own = 0;
    for (int axis = 0; axis < src->ndim; ++axis) {
        strides[axis] = 0;
        if (reduced[axis] && !keeps) {
            continue;
        }
        npy_intp length = reduced[axis] ? 1 : src->shape[axis];
        if (own >= out->ndim || out->shape[own] != length) {
            return false;
        }
        if (!reduced[axis]) {
            strides[axis] = out->strides[own];
        }
        own += 1;
    }
    return own == out->ndim;
}

/* Partial results need memory, so that there may be too little. -1 with an exception set. */
static int run_reduce(um_state *state, um_reduction reduction, int ndim, const int64_t *shape, const bool *reduced,
                      const um_operand *inputs, const um_operand *target) {
    int device = um_block_device(target->block);
    unsigned tries = 0;
    for (;;) {
        um_launch_site site;
        if (um_launch_prepare(state, device, &site) < 0) {
            return -1;
        }
        um_wait wait = UM_WAIT_NONE;
        um_error err;
        um_launch_begin(state, &site);
        um_status status = um_kernel_reduce(site.ctx, site.stream, reduction, ndim, shape, reduced, inputs, target,
                                            site.deferred, &wait, &err);
        if (status != UM_ERR_OUT_OF_MEMORY) {
            return um_launch_finish(state, &site, status, &wait, &err);
        }
        (void)um_launch_finish(state, &site, UM_OK, &wait, NULL); /* what was launched is launched again, as a whole */
        int again = um_make_room(state, site.ctx, err.requested, device, &tries);
        if (again <= 0) {
            if (again == 0) {
                um_raise(state, &err);
            }
            return -1;
        }
    }
}

/* reduce_into without the name: `exact` asks for the type that the reduction itself gives. */
static PyObject *reduce_into(um_state *state, um_reduction reduction, PyObject *const *args, Py_ssize_t nargs,
                             bool exact) {
    um_ndarray *src = um_array_argument(state, args[0], "src");
    um_ndarray *out = src == NULL ? NULL : um_array_argument(state, args[2], "out");
    um_ndarray *mean = NULL;
    bool reduced[UM_MAX_NDIM];
    um_dtype from;
    um_dtype to;
    um_dtype own;
    if (out == NULL || read_axes(args[1], src->ndim, reduced) < 0 || um_check_operand_dtype(src, "src", &from) < 0 ||
        um_check_operand_dtype(out, "out", &to) < 0 || um_check_writable(out, "out") < 0) {
        return NULL;
    }
    if (exact && um_reduce_result(reduction, from, &own) && to != own) { /* um_kernel_reduce refuses the others */
        PyErr_Format(PyExc_TypeError, "out has dtype %R; it must be %s", (PyObject *)out->descr, um_dtype_name(own));
        return NULL;
    }
    if ((reduction == UM_REDUCE_squares) != (nargs == 4)) {
        PyErr_SetString(PyExc_TypeError, "mean is an argument of squares");
        return NULL;
    }
    int64_t shape[UM_MAX_NDIM];
    int64_t strides[3][UM_MAX_NDIM];
    um_operand inputs[2];
    memset(inputs, 0, sizeof inputs);
    for (int axis = 0; axis < src->ndim; ++axis) {
        shape[axis] = src->shape[axis];
    }
    (void)um_operand_from_array(src, from, src->ndim, shape, strides[0], &inputs[0]);
    if (!result_strides(src, reduced, out, strides[2])) {
        PyErr_SetString(PyExc_ValueError, "out must have the shape of src without the axes, or with 1 in their place");
        return NULL;
    }
    if (nargs == 4) {
        um_dtype dtype;
        mean = um_array_argument(state, args[3], "mean");
        if (mean == NULL || um_check_operand_dtype(mean, "mean", &dtype) < 0) {
            return NULL;
        }
        if (!result_strides(src, reduced, mean, strides[1])) {
            PyErr_SetString(PyExc_ValueError,
                            "mean must have the shape of src without the axes, or with 1 in their place");
            return NULL;
        }
        inputs[1] = (um_operand){.block = mean->block, .data = mean->data, .dtype = dtype, .strides = strides[1]};
    }
    um_operand target = {.block = out->block, .data = out->data, .dtype = to, .strides = strides[2]};
    if (run_reduce(state, reduction, src->ndim, shape, reduced, inputs, &target) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    reduce_into_doc,
    "reduce_into($module, name, src, axes, out, mean=None, /)\n--\n\n"
    "Reduce `src` over the tuple `axes` into `out`, whose shape is that of `src` without the axes, or with 1 in "
    "their place.\n\n"
    "`out` has the dtype that `reduce_dtype` gives; sum, prod and squares of floats can have any of the kind. "
    "squares is the sum of abs(src - mean)**2, `mean` an array like `out` in the dtype that is computed with. "
    "`out` may not overlap the others.");

static int find_reduction(PyObject *name, um_reduction *out) {
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    if (text == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_TypeError, "name must be a str, not '%.100s'", Py_TYPE(name)->tp_name);
        }
        return -1;
    }
    for (int i = 0; i < UM_REDUCTION_COUNT; ++i) {
        if (strcmp(text, um_reduction_name((um_reduction)i)) == 0) {
            *out = (um_reduction)i;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "name: there is no reduction called %R", name);
    return -1;
}

static PyObject *core_reduce_into(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    um_reduction reduction;
    if (nargs != 5 && um_check_nargs("reduce_into", nargs, 4) < 0) {
        return NULL;
    }
    if (find_reduction(args[0], &reduction) < 0) {
        return NULL;
    }
    return reduce_into(um_state_of_module(module), reduction, args + 1, nargs - 1, false);
}

PyDoc_STRVAR(sum_into_doc, "sum_into($module, src, axes, out, /)\n--\n\n"
                           "reduce_into(\"sum\", src, axes, out) in the type that the sum itself has.");

static PyObject *core_sum_into(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    if (um_check_nargs("sum_into", nargs, 3) < 0) {
        return NULL;
    }
    return reduce_into(um_state_of_module(module), UM_REDUCE_sum, args, nargs, true);
}

PyDoc_STRVAR(reduce_dtype_doc, "reduce_dtype($module, name, dtype, /)\n--\n\n"
                               "The dtype that a reduction's kernel gives for elements of `dtype`; None without one.");

static PyObject *core_reduce_dtype(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs) {
    um_reduction reduction;
    um_dtype from;
    um_dtype result;
    if (um_check_nargs("reduce_dtype", nargs, 2) < 0 || find_reduction(args[0], &reduction) < 0) {
        return NULL;
    }
    if (!PyArray_DescrCheck(args[1])) {
        PyErr_Format(PyExc_TypeError, "dtype must be a numpy.dtype, not '%.100s'", Py_TYPE(args[1])->tp_name);
        return NULL;
    }
    if (!um_dtype_from_descr((PyArray_Descr *)args[1], &from) || !um_reduce_result(reduction, from, &result)) {
        Py_RETURN_NONE;
    }
    return (PyObject *)um_dtype_to_descr(result);
}

static PyMethodDef reduce_functions[] = {
    {"reduce_into", UM_METHOD(core_reduce_into), METH_FASTCALL, reduce_into_doc},
    {"sum_into", UM_METHOD(core_sum_into), METH_FASTCALL, sum_into_doc},
    {"reduce_dtype", UM_METHOD(core_reduce_dtype), METH_FASTCALL, reduce_dtype_doc},
    {NULL, NULL, 0, NULL},
};

int um_reduce_add(PyObject *module) { return PyModule_AddFunctions(module, reduce_functions); }
