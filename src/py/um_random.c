/* Filling an array with random numbers, for umem/random.py, which keeps the state and decides types and shapes. */
#include "py/um_run.h"

#include "kernels/um_kernel_random.h"

/* --- arguments ------------------------------------------------------------------------------------------------------- */

static int refuse_out(PyArray_Descr *descr, const char *allowed) {
    PyErr_Format(PyExc_TypeError, "out has dtype %R; it must be %s", (PyObject *)descr, allowed);
    return -1;
}

static int read_word(PyObject *object, uint64_t *out) {
    *out = PyLong_AsSize_t(object);
    return *out == UINT64_MAX && PyErr_Occurred() ? -1 : 0;
}

static int read_real(PyObject *object, double *out) {
    PyObject *number = PyNumber_Float(object);
    if (number == NULL) {
        return -1;
    }
    *out = PyFloat_AS_DOUBLE(number);
    Py_DECREF(number);
    return 0;
}

/* -1 with an exception set. `first` and `second`: see the documentation of the function. */
static int read_reals(PyArray_Descr *descr, bool normal, PyObject *first, PyObject *second, um_draw *draw,
                      um_draw_params *params) {
    if (read_real(first, &params->shift) < 0 || read_real(second, &params->scale) < 0) {
        return -1;
    }
    if (PyArray_ISNBO(descr->byteorder) && descr->type_num == NPY_DOUBLE) {
        *draw = normal ? UM_DRAW_normal_f64 : UM_DRAW_random_f64;
        return 0;
    }
    if (PyArray_ISNBO(descr->byteorder) && descr->type_num == NPY_FLOAT) {
        *draw = normal ? UM_DRAW_normal_f32 : UM_DRAW_random_f32;
        return 0;
    }
    return refuse_out(descr, "float32 or float64 in native byte order");
}

static int read_integers(PyArray_Descr *descr, PyObject *first, PyObject *second, um_draw *draw,
                         um_draw_params *params) {
    uint64_t most;
    if (read_word(first, &params->low) < 0 || read_word(second, &most) < 0) {
        return -1;
    }
    if (!PyArray_ISNBO(descr->byteorder) ||
        !(PyTypeNum_ISINTEGER(descr->type_num) || PyTypeNum_ISBOOL(descr->type_num))) {
        return refuse_out(descr, "bool or integers in native byte order");
    }
    switch (PyDataType_ELSIZE(descr)) {
    case 1: *draw = UM_DRAW_integers_1; break;
    case 2: *draw = UM_DRAW_integers_2; break;
    case 4: *draw = UM_DRAW_integers_4; break;
    default: *draw = most > UINT32_MAX ? UM_DRAW_integers_wide : UM_DRAW_integers_8; break;
    }
    if (most > UINT32_MAX && *draw != UM_DRAW_integers_wide) {
        PyErr_SetString(PyExc_ValueError, "second is too large for the dtype of out");
        return -1;
    }
    um_draw_set_range(params, *draw, most + 1);
    return 0;
}

static int read_kind(PyObject *kind, PyArray_Descr *descr, PyObject *first, PyObject *second, um_draw *draw,
                     um_draw_params *params) {
    if (PyUnicode_Check(kind) && PyUnicode_CompareWithASCIIString(kind, "integers") == 0) {
        return read_integers(descr, first, second, draw, params);
    }
    bool normal = PyUnicode_Check(kind) && PyUnicode_CompareWithASCIIString(kind, "normal") == 0;
    if (!normal && !(PyUnicode_Check(kind) && PyUnicode_CompareWithASCIIString(kind, "random") == 0)) {
        PyErr_Format(PyExc_ValueError, "kind must be 'random', 'normal' or 'integers', not %R", kind);
        return -1;
    }
    return read_reals(descr, normal, first, second, draw, params);
}

static int check_out(bool contiguous, bool aligned, bool writeable) {
    if (!contiguous || !aligned) {
        PyErr_SetString(PyExc_ValueError, "out must be in C order without gaps and aligned to its element size");
        return -1;
    }
    if (!writeable) {
        PyErr_SetString(PyExc_ValueError, "out is read-only");
        return -1;
    }
    return 0;
}

/* --- filling --------------------------------------------------------------------------------------------------------- */

static int launch(um_state *state, um_ndarray *out, um_draw draw, um_draw_params *params) {
    um_launch_site site;
    if (um_launch_prepare(state, um_block_device(out->block), &site) < 0) {
        return -1;
    }
    um_wait wait = UM_WAIT_NONE;
    um_error err;
    um_status status;
    um_launch_begin(state, &site);
    status = um_kernel_random(site.ctx, site.stream, draw, params, out->block, site.deferred, &wait, &err);
    return um_launch_finish(state, &site, status, &wait, &err);
}

static int fill_array(um_state *state, um_ndarray *out, um_draw draw, um_draw_params *params) {
    um_context *ctx = um_block_context(out->block);
    if (um_context_is_cuda(ctx)) {
        return launch(state, out, draw, params);
    }
    if (um_ndarray_host_access(state, out) < 0) {
        return -1;
    }
    um_turn turn;
    um_turn_device(state, ctx, &turn);
    um_random_fill(draw, params);
    um_turn_end(&turn);
    return 0;
}

PyDoc_STRVAR(
    random_fill_doc,
    "random_fill($module, out, kind, key, counter, first, second, /)\n--\n\n"
    "Fill `out` with the random numbers that `key` and `counter` (below 2**64) stand for, in C order.\n\n"
    "kind 'random' (in [0, 1)) or 'normal': float32, or float64 as first + second * x. 'integers': from first to\n"
    "first + second, modulo 2**64. `out` is a umem.ndarray, or a NumPy array for numbers made here and now; in C order without\n"
    "gaps. A step of the counter makes 4 elements, or 2 of float64 and of integers whose second is 2**32 or more.");

static PyObject *core_random_fill(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 6) {
        return PyErr_Format(PyExc_TypeError, "random_fill() takes exactly 6 arguments (%zd given)", nargs);
    }
    um_state *state = um_state_of_module(module);
    um_ndarray *array = um_ndarray_check(state, args[0]) ? (um_ndarray *)args[0] : NULL;
    PyArrayObject *numpy = array == NULL && PyArray_Check(args[0]) ? (PyArrayObject *)args[0] : NULL;
    if (array == NULL && numpy == NULL) {
        return PyErr_Format(PyExc_TypeError, "out must be a umem.ndarray or a NumPy array, not '%.100s'",
                            Py_TYPE(args[0])->tp_name);
    }
    um_draw draw;
    um_draw_params params = {.out = NULL};
    uint64_t key;
    PyArray_Descr *descr = array != NULL ? array->descr : PyArray_DESCR(numpy);
    if (read_word(args[2], &key) < 0 || read_word(args[3], &params.counter) < 0 ||
        read_kind(args[1], descr, args[4], args[5], &draw, &params) < 0) {
        return NULL;
    }
    params.key[0] = (uint32_t)key;
    params.key[1] = (uint32_t)(key >> 32);
    if (numpy != NULL) {
        if (check_out(PyArray_IS_C_CONTIGUOUS(numpy), PyArray_ISALIGNED(numpy), PyArray_ISWRITEABLE(numpy)) < 0) {
            return NULL;
        }
        params.out = PyArray_BYTES(numpy);
        params.count = (uint64_t)PyArray_SIZE(numpy);
        um_random_fill(draw, &params);
        Py_RETURN_NONE;
    }
    if (check_out(um_ndarray_is_c_contiguous(array), um_ndarray_is_aligned_to(array, um_draw_itemsize(draw)),
                  um_ndarray_is_writeable(array)) < 0) {
        return NULL;
    }
    params.out = array->data;
    params.count = (uint64_t)um_ndarray_size(array);
    if (params.count > 0 && fill_array(state, array, draw, &params) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef random_functions[] = {
    {"random_fill", UM_METHOD(core_random_fill), METH_FASTCALL, random_fill_doc},
    {NULL, NULL, 0, NULL},
};

int um_random_add(PyObject *module, um_state *Py_UNUSED(state)) {
    return PyModule_AddFunctions(module, random_functions);
}
