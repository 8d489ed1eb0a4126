/* The kernels for umem's own Python code, which decides types and shapes; everything is checked again here. */
#include "py/um_run.h"

#include <math.h>
#include <string.h>

#include <numpy/arrayscalars.h>

/* Integers up to here are exact in a double, so that converting one to float32 rounds once. */
#define EXACT_IN_DOUBLE ((int64_t)1 << 53)

/* --- types and operands ------------------------------------------------------------------------------------------- */

bool um_dtype_from_descr(PyArray_Descr *descr, um_dtype *out) {
    static const signed char dtypes[NPY_NTYPES_LEGACY] = {
        /* one more than the enumerator; 0: no kernels */
        [NPY_BOOL] = UM_BOOL + 1,
        [NPY_BYTE] = UM_INT8 + 1,
        [NPY_UBYTE] = UM_UINT8 + 1,
        [NPY_SHORT] = UM_INT16 + 1,
        [NPY_USHORT] = UM_UINT16 + 1,
        [NPY_INT] = UM_INT32 + 1,
        [NPY_UINT] = UM_UINT32 + 1,
        [NPY_LONG] = (sizeof(long) == 4 ? UM_INT32 : UM_INT64) + 1,
        [NPY_ULONG] = (sizeof(long) == 4 ? UM_UINT32 : UM_UINT64) + 1,
        [NPY_LONGLONG] = UM_INT64 + 1,
        [NPY_ULONGLONG] = UM_UINT64 + 1,
        [NPY_HALF] = UM_FLOAT16 + 1,
        [NPY_FLOAT] = UM_FLOAT32 + 1,
        [NPY_DOUBLE] = UM_FLOAT64 + 1,
        [NPY_CFLOAT] = UM_COMPLEX64 + 1,
        [NPY_CDOUBLE] = UM_COMPLEX128 + 1,
    };
    int number = descr->type_num;
    if (number < 0 || number >= NPY_NTYPES_LEGACY || dtypes[number] == 0 || !PyArray_ISNBO(descr->byteorder)) {
        return false;
    }
    *out = (um_dtype)(dtypes[number] - 1);
    return true;
}

PyArray_Descr *um_dtype_to_descr(um_dtype dtype) {
    static const int type_numbers[UM_DTYPE_COUNT] = {
        [UM_BOOL] = NPY_BOOL,           [UM_INT8] = NPY_INT8,
        [UM_UINT8] = NPY_UINT8,         [UM_INT16] = NPY_INT16,
        [UM_UINT16] = NPY_UINT16,       [UM_INT32] = NPY_INT32,
        [UM_UINT32] = NPY_UINT32,       [UM_INT64] = NPY_INT64,
        [UM_UINT64] = NPY_UINT64,       [UM_FLOAT16] = NPY_FLOAT16,
        [UM_FLOAT32] = NPY_FLOAT32,     [UM_FLOAT64] = NPY_FLOAT64,
        [UM_COMPLEX64] = NPY_COMPLEX64, [UM_COMPLEX128] = NPY_COMPLEX128,
    };
    return PyArray_DescrFromType(type_numbers[dtype]);
}

/* --- immediates ------------------------------------------------------------------------------------------------------- */

static bool immediate_from_double(double value, um_dtype dtype, um_value *out) {
    switch ((int)dtype) {
    case UM_FLOAT64: out->f64 = value; return true;
    case UM_FLOAT32:
        out->f32 = (float)value;
        /* NumPy warns when a finite number becomes infinite. */
        return !isfinite(value) || isfinite(out->f32);
    case UM_FLOAT16:
        out->f16 = um_cast_f64_to_f16(value);
        return !isfinite(value) || isfinite(um_cast_f16_to_f32(out->f16));
    default: return false;
    }
}

static bool immediate_from_complex(double re, double im, um_dtype dtype, um_value *out) {
    switch ((int)dtype) {
    case UM_COMPLEX128: out->c128 = (um_c128){re, im}; return true;
    case UM_COMPLEX64:
        out->c64 = (um_c64){(float)re, (float)im};
        return (!isfinite(re) || isfinite(out->c64.re)) && (!isfinite(im) || isfinite(out->c64.im));
    default: return false;
    }
}

static bool immediate_from_int64(long long value, um_dtype dtype, um_value *out) {
    switch ((int)dtype) {
    case UM_INT8: out->i8 = (int8_t)value; return value >= INT8_MIN && value <= INT8_MAX;
    case UM_UINT8: out->u8 = (uint8_t)value; return value >= 0 && value <= UINT8_MAX;
    case UM_INT16: out->i16 = (int16_t)value; return value >= INT16_MIN && value <= INT16_MAX;
    case UM_UINT16: out->u16 = (uint16_t)value; return value >= 0 && value <= UINT16_MAX;
    case UM_INT32: out->i32 = (int32_t)value; return value >= INT32_MIN && value <= INT32_MAX;
    case UM_UINT32: out->u32 = (uint32_t)value; return value >= 0 && value <= UINT32_MAX;
    case UM_INT64: out->i64 = value; return true;
    case UM_UINT64: out->u64 = (uint64_t)value; return value >= 0;
    default: break;
    }
    if (value < -EXACT_IN_DOUBLE || value > EXACT_IN_DOUBLE) {
        return false;
    }
    return immediate_from_double((double)value, dtype, out) || immediate_from_complex((double)value, 0, dtype, out);
}

static bool immediate_from_int(PyObject *object, um_dtype dtype, um_value *out) {
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0 && immediate_from_int64(value, dtype, out); /* the general path makes the largest uint64 */
}

/* A Python bool has the dtype bool, which any other takes in. */
static bool immediate_from_bool(bool value, um_dtype dtype, um_value *out) {
    if (dtype == UM_BOOL) {
        out->b1 = value;
        return true;
    }
    return immediate_from_int64(value, dtype, out);
}

#define TAKE(object, field, Name)                                                                                      \
    (Py_IS_TYPE(object, &Py##Name##ArrType_Type) &&                                                                    \
     (memcpy(&out->field, &PyArrayScalar_VAL(object, Name), sizeof out->field), true))

static bool immediate_from_numpy(PyObject *object, um_dtype dtype, um_value *out) {
    switch ((int)dtype) {
    case UM_BOOL: return TAKE(object, b1, Bool);
    case UM_INT8: return TAKE(object, i8, Int8);
    case UM_UINT8: return TAKE(object, u8, UInt8);
    case UM_INT16: return TAKE(object, i16, Int16);
    case UM_UINT16: return TAKE(object, u16, UInt16);
    case UM_INT32: return TAKE(object, i32, Int32);
    case UM_UINT32: return TAKE(object, u32, UInt32);
    case UM_INT64: return TAKE(object, i64, Int64) || TAKE(object, i64, LongLong);
    case UM_UINT64: return TAKE(object, u64, UInt64) || TAKE(object, u64, ULongLong);
    case UM_FLOAT16: return TAKE(object, f16, Half);
    case UM_FLOAT32: return TAKE(object, f32, Float32);
    case UM_FLOAT64: return TAKE(object, f64, Float64);
    case UM_COMPLEX64: return TAKE(object, c64, Complex64);
    case UM_COMPLEX128: return TAKE(object, c128, Complex128);
    default: return false;
    }
}

bool um_immediate_from_object(PyObject *object, um_dtype dtype, um_operand *out) {
    out->block = NULL;
    out->data = NULL;
    out->strides = NULL;
    out->dtype = dtype;
    if (PyFloat_CheckExact(object)) {
        double value = PyFloat_AS_DOUBLE(object);
        return immediate_from_double(value, dtype, &out->value) || immediate_from_complex(value, 0, dtype, &out->value);
    }
    if (PyLong_CheckExact(object)) {
        return immediate_from_int(object, dtype, &out->value);
    }
    if (PyBool_Check(object)) {
        return immediate_from_bool(Py_IsTrue(object), dtype, &out->value);
    }
    if (PyComplex_CheckExact(object)) {
        Py_complex value = ((PyComplexObject *)object)->cval;
        return immediate_from_complex(value.real, value.imag, dtype, &out->value);
    }
    return immediate_from_numpy(object, dtype, &out->value);
}

bool um_operand_from_array(um_ndarray *array, um_dtype dtype, int ndim, const int64_t *shape, int64_t *strides,
                           um_operand *out) {
    int missing = ndim - array->ndim;
    if (missing < 0) {
        return false;
    }
    for (int axis = 0; axis < missing; ++axis) {
        strides[axis] = 0;
    }
    for (int axis = missing; axis < ndim; ++axis) {
        npy_intp length = array->shape[axis - missing];
        if (length != shape[axis] && length != 1) {
            return false;
        }
        strides[axis] = length == 1 ? 0 : array->strides[axis - missing];
    }
    out->block = array->block;
    out->data = array->data;
    out->dtype = dtype;
    out->strides = strides;
    return true;
}

bool um_ndarray_is_aligned_to(const um_ndarray *array, size_t unit) {
    uintptr_t bits = (uintptr_t)array->data;
    for (int axis = 0; axis < array->ndim; ++axis) {
        if (array->shape[axis] == 0) {
            return true; /* nothing is there to be reached */
        }
        if (array->shape[axis] > 1) {
            bits |= (uintptr_t)array->strides[axis];
        }
    }
    return (bits & (unit - 1)) == 0;
}

static npy_intp magnitude(npy_intp stride) { return stride < 0 ? -stride : stride; }

bool um_ndarray_repeats(const um_ndarray *array) {
    npy_intp reach = PyDataType_ELSIZE(array->descr); /* bytes from the first element to the end of the last, so far */
    if (reach == 0 || um_ndarray_size(array) == 0) {
        return false;
    }
    bool taken[UM_MAX_NDIM] = {false};
    for (;;) { /* the axes by rising stride: each has to step over all that the ones before it reach */
        int next = -1;
        for (int axis = array->ndim - 1; axis >= 0; --axis) {
            bool shorter = next < 0 || magnitude(array->strides[axis]) < magnitude(array->strides[next]);
            if (!taken[axis] && array->shape[axis] > 1 && shorter) {
                next = axis;
            }
        }
        if (next < 0) {
            return false;
        }
        if (magnitude(array->strides[next]) < reach) {
            return true;
        }
        taken[next] = true;
        reach += (array->shape[next] - 1) * magnitude(array->strides[next]);
    }
}

/* --- launching ---------------------------------------------------------------------------------------------------- */

int um_launch_prepare(um_state *state, int device, um_launch_site *site) {
    site->ctx = um_state_context(state);
    if (site->ctx == NULL) {
        return -1;
    }
    if (!um_context_is_cuda(site->ctx)) {
        PyErr_SetString(PyExc_RuntimeError, "no kernels on the host backend: NumPy computes there");
        return -1;
    }
    int deferred = um_is_deferred(state);
    if (deferred < 0) {
        return -1;
    }
    site->deferred = deferred;
    site->stream = um_current_stream(state, device);
    return site->stream != NULL ? 0 : -1;
}

void um_launch_begin(um_state *state, um_launch_site *site) { um_turn_device(state, site->ctx, &site->turn); }

int um_launch_finish(um_state *state, um_launch_site *site, um_status status, um_wait *wait, const um_error *err) {
    um_turn_relock(&site->turn);
    um_stream_unref(site->stream);
    site->stream = NULL;
    int result = 0;
    if (status != UM_OK) {
        um_raise(state, err);
        result = -1;
    } else if (wait->needed) {
        result = um_finish_wait(state, wait);
    }
    um_turn_end(&site->turn);
    return result;
}

int um_run_elementwise(um_state *state, int device, um_op op, int ndim, const int64_t *shape, const um_operand *inputs,
                       const um_operand *out) {
    um_launch_site site;
    if (um_launch_prepare(state, device, &site) < 0) {
        return -1;
    }
    um_wait wait = UM_WAIT_NONE;
    um_error err;
    um_status status = UM_OK;
    um_launch_begin(state, &site);
    status = um_kernel_elementwise(site.ctx, site.stream, op, ndim, shape, inputs, out, site.deferred, &wait, &err);
    return um_launch_finish(state, &site, status, &wait, &err);
}

/* --- checking arguments ------------------------------------------------------------------------------------------- */

int um_check_nargs(const char *function, Py_ssize_t nargs, Py_ssize_t expected) {
    if (nargs == expected) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "%s() takes exactly %zd arguments (%zd given)", function, expected, nargs);
    return -1;
}

um_ndarray *um_array_argument(um_state *state, PyObject *object, const char *argument) {
    if (um_ndarray_check(state, object)) {
        return (um_ndarray *)object;
    }
    PyErr_Format(PyExc_TypeError, "%s must be a umem.ndarray, not '%.100s'", argument, Py_TYPE(object)->tp_name);
    return NULL;
}

static int refuse_dtype(const char *argument, PyArray_Descr *descr, const char *allowed) {
    PyErr_Format(PyExc_TypeError, "%s has dtype %R; it must be %s", argument, (PyObject *)descr, allowed);
    return -1;
}

int um_check_operand_dtype(um_ndarray *array, const char *argument, um_dtype *out) {
    um_dtype dtype;
    if (!um_dtype_from_descr(array->descr, &dtype)) {
        return refuse_dtype(argument, array->descr,
                            "a bool, integer, float or complex dtype of up to 64 bits a part, in native byte order");
    }
    if (!um_ndarray_is_aligned_to(array, (size_t)PyDataType_ELSIZE(array->descr))) {
        PyErr_Format(PyExc_ValueError, "%s is not aligned to its element size", argument);
        return -1;
    }
    *out = dtype;
    return 0;
}

int um_check_writable(const um_ndarray *array, const char *argument) {
    if (!um_ndarray_is_writeable(array)) {
        PyErr_Format(PyExc_ValueError, "%s is read-only", argument);
        return -1;
    }
    if (um_ndarray_repeats(array)) {
        PyErr_Format(PyExc_ValueError, "%s has elements that share memory with others of its own", argument);
        return -1;
    }
    return 0;
}

/* The array as an output of its own shape. */
static int output_operand(um_ndarray *array, const char *argument, um_dtype *dtype, int64_t *shape, int64_t *strides,
                          um_operand *out) {
    if (um_check_operand_dtype(array, argument, dtype) < 0 || um_check_writable(array, argument) < 0) {
        return -1;
    }
    for (int axis = 0; axis < array->ndim; ++axis) {
        shape[axis] = array->shape[axis];
    }
    (void)um_operand_from_array(array, *dtype, array->ndim, shape, strides, out);
    return 0;
}

static PyObject *shape_tuple(int ndim, const npy_intp *shape) {
    PyObject *tuple = PyTuple_New(ndim);
    for (int axis = 0; tuple != NULL && axis < ndim; ++axis) {
        PyObject *length = PyLong_FromSsize_t(shape[axis]);
        if (length == NULL) {
            Py_CLEAR(tuple);
        } else {
            PyTuple_SET_ITEM(tuple, axis, length);
        }
    }
    return tuple;
}

static int refuse_shapes(const char *argument, const um_ndarray *array, const um_ndarray *out) {
    PyObject *from = shape_tuple(array->ndim, array->shape);
    PyObject *to = shape_tuple(out->ndim, out->shape);
    if (from != NULL && to != NULL) {
        PyErr_Format(PyExc_ValueError, "%s of shape %R does not broadcast to the shape %R of out", argument, from, to);
    }
    Py_XDECREF(from);
    Py_XDECREF(to);
    return -1;
}

static int find_op(PyObject *name, um_op *out) {
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    if (text == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_TypeError, "name must be a str, not '%.100s'", Py_TYPE(name)->tp_name);
        }
        return -1;
    }
    if (!um_op_find(text, out)) {
        PyErr_Format(PyExc_ValueError, "name: there is no kernel called %R", name);
        return -1;
    }
    return 0;
}

/* --- run(name, inputs, out) --------------------------------------------------------------------------------------- */

/* The loop's input type: that of the first array or NumPy scalar. */
static int loop_dtype(um_state *state, PyObject *inputs, um_dtype *out) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) {
        PyObject *input = PyTuple_GET_ITEM(inputs, i);
        if (um_ndarray_check(state, input)) {
            char argument[32];
            PyOS_snprintf(argument, sizeof(argument), "inputs[%zd]", i);
            return um_check_operand_dtype((um_ndarray *)input, argument, out);
        }
        um_value ignored;
        for (int dtype = 0; dtype < UM_DTYPE_COUNT; ++dtype) {
            if (PyArray_CheckScalar(input) && immediate_from_numpy(input, (um_dtype)dtype, &ignored)) {
                *out = (um_dtype)dtype;
                return 0;
            }
        }
    }
    PyErr_SetString(PyExc_TypeError,
                    "inputs: at least one must be a umem.ndarray or a NumPy scalar of a kernel's dtype");
    return -1;
}

static int run_input(um_state *state, PyObject *input, Py_ssize_t index, um_dtype dtype, um_ndarray *out,
                     const int64_t *shape, int64_t *strides, um_operand *operand) {
    char argument[32];
    PyOS_snprintf(argument, sizeof(argument), "inputs[%zd]", index);
    if (!um_ndarray_check(state, input)) {
        if (um_immediate_from_object(input, dtype, operand)) {
            return 0;
        }
        PyErr_Format(PyExc_TypeError, "%s must be a umem.ndarray or a scalar of the loop's dtype, not %R", argument,
                     input);
        return -1;
    }
    um_ndarray *array = (um_ndarray *)input;
    um_dtype own;
    if (um_check_operand_dtype(array, argument, &own) < 0) {
        return -1;
    }
    if (own != dtype) {
        return refuse_dtype(argument, array->descr, "that of the other inputs");
    }
    if (!um_operand_from_array(array, dtype, out->ndim, shape, strides, operand)) {
        return refuse_shapes(argument, array, out);
    }
    return 0;
}

PyDoc_STRVAR(
    run_doc,
    "run($module, name, inputs, out, /)\n--\n\n"
    "Run the kernel `name`: no type resolution and no analysis of overlap.\n\n"
    "`inputs` is a tuple of arrays and scalars of one dtype that broadcast to the shape of `out`; `out` has the loop's\n"
    "result dtype. Inputs may be the same memory as `out` element for element.");

static PyObject *core_run(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    um_state *state = um_state_of_module(module);
    um_op op;
    if (um_check_nargs("run", nargs, 3) < 0 || find_op(args[0], &op) < 0) {
        return NULL;
    }
    PyObject *inputs = args[1];
    int count = um_op_input_count(op);
    if (!PyTuple_Check(inputs) || PyTuple_GET_SIZE(inputs) != count) {
        PyErr_Format(PyExc_TypeError, "inputs must be a tuple of %d for %s", count, um_op_name(op));
        return NULL;
    }
    um_ndarray *out = um_array_argument(state, args[2], "out");
    um_dtype dtype;
    um_dtype result;
    um_dtype own;
    if (out == NULL || loop_dtype(state, inputs, &dtype) < 0) {
        return NULL;
    }
    if (!um_op_has_loop(op, dtype, &result)) {
        PyErr_Format(PyExc_TypeError, "inputs: %s has no kernel for their dtype", um_op_name(op));
        return NULL;
    }
    int64_t shape[UM_MAX_NDIM];
    int64_t strides[UM_MAX_INPUTS + 1][UM_MAX_NDIM];
    um_operand operands[UM_MAX_INPUTS];
    um_operand target;
    if (output_operand(out, "out", &own, shape, strides[UM_MAX_INPUTS], &target) < 0) {
        return NULL;
    }
    if (own != result) {
        refuse_dtype("out", out->descr, "the result dtype of the loop");
        return NULL;
    }
    for (int i = 0; i < count; ++i) {
        if (run_input(state, PyTuple_GET_ITEM(inputs, i), i, dtype, out, shape, strides[i], &operands[i]) < 0) {
            return NULL;
        }
    }
    if (um_run_elementwise(state, um_block_device(out->block), op, out->ndim, shape, operands, &target) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* --- where(condition, a, b, out) ------------------------------------------------------------------------------------- */

PyDoc_STRVAR(
    run_where_doc,
    "run_where($module, condition, a, b, out, /)\n--\n\n"
    "Elements of `a` where `condition` is True, of `b` elsewhere. The condition is a bool array, `a` and `b` are arrays or\n"
    "scalars of the dtype of `out`; all broadcast to its shape, and may be the same memory element for element.");

static PyObject *core_run_where(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    um_state *state = um_state_of_module(module);
    um_ndarray *out = um_check_nargs("run_where", nargs, 4) < 0 ? NULL : um_array_argument(state, args[3], "out");
    int64_t shape[UM_MAX_NDIM];
    int64_t strides[4][UM_MAX_NDIM];
    um_operand operands[3];
    um_operand target;
    um_dtype dtype;
    um_launch_site site;
    if (out == NULL || output_operand(out, "out", &dtype, shape, strides[3], &target) < 0) {
        return NULL;
    }
    for (int i = 0; i < 3; ++i) {
        if (run_input(state, args[i], i, i == 0 ? UM_BOOL : dtype, out, shape, strides[i], &operands[i]) < 0) {
            return NULL;
        }
    }
    if (um_launch_prepare(state, um_block_device(out->block), &site) < 0) {
        return NULL;
    }
    um_wait wait = UM_WAIT_NONE;
    um_error err;
    um_status status = UM_OK;
    um_launch_begin(state, &site);
    status = um_kernel_where(site.ctx, site.stream, out->ndim, shape, operands, &target, site.deferred, &wait, &err);
    if (um_launch_finish(state, &site, status, &wait, &err) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* --- cast(src, out) ----------------------------------------------------------------------------------------------- */

/* Source of a cast: an array broadcast to out's shape, or a NumPy scalar. */
static int cast_source(um_state *state, PyObject *source, um_ndarray *out, const int64_t *shape, int64_t *strides,
                       um_operand *operand) {
    if (um_ndarray_check(state, source)) {
        um_ndarray *array = (um_ndarray *)source;
        um_dtype dtype;
        if (um_check_operand_dtype(array, "src", &dtype) < 0) {
            return -1;
        }
        return um_operand_from_array(array, dtype, out->ndim, shape, strides, operand)
                   ? 0
                   : refuse_shapes("src", array, out);
    }
    for (int dtype = 0; dtype < UM_DTYPE_COUNT; ++dtype) {
        if (PyArray_CheckScalar(source) && um_immediate_from_object(source, (um_dtype)dtype, operand)) {
            return 0;
        }
    }
    PyErr_Format(PyExc_TypeError, "src must be a umem.ndarray or a NumPy scalar of a kernel's dtype, not '%.100s'",
                 Py_TYPE(source)->tp_name);
    return -1;
}

PyDoc_STRVAR(
    cast_doc,
    "cast($module, src, out, /)\n--\n\n"
    "Convert `src` (an array that broadcasts to the shape of `out`, or a NumPy scalar) to the dtype of `out`, as C does.\n\n"
    "The two may not overlap, except element for element with elements of one size.");

static PyObject *core_cast(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    um_state *state = um_state_of_module(module);
    um_ndarray *out = um_check_nargs("cast", nargs, 2) < 0 ? NULL : um_array_argument(state, args[1], "out");
    if (out == NULL) {
        return NULL;
    }
    int64_t shape[UM_MAX_NDIM];
    int64_t strides[2][UM_MAX_NDIM];
    um_operand source;
    um_operand target;
    um_dtype dtype;
    um_launch_site site;
    if (output_operand(out, "out", &dtype, shape, strides[1], &target) < 0 ||
        cast_source(state, args[0], out, shape, strides[0], &source) < 0 ||
        um_launch_prepare(state, um_block_device(out->block), &site) < 0) {
        return NULL;
    }
    um_wait wait = UM_WAIT_NONE;
    um_error err;
    um_status status = UM_OK;
    um_launch_begin(state, &site);
    status = um_kernel_cast(site.ctx, site.stream, out->ndim, shape, &source, &target, site.deferred, &wait, &err);
    if (um_launch_finish(state, &site, status, &wait, &err) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* --- what there is ------------------------------------------------------------------------------------------------ */

PyDoc_STRVAR(op_loops_doc, "op_loops($module, name, /)\n--\n\n"
                           "(input dtype, result dtype) of each kernel of the operation, a tuple of tuples.");

static PyObject *core_op_loops(PyObject *Py_UNUSED(module), PyObject *name) {
    um_op op;
    if (find_op(name, &op) < 0) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    for (int dtype = 0; list != NULL && dtype < UM_DTYPE_COUNT; ++dtype) {
        um_dtype result;
        if (!um_op_has_loop(op, (um_dtype)dtype, &result)) {
            continue;
        }
        PyObject *pair = Py_BuildValue("(NN)", um_dtype_to_descr((um_dtype)dtype), um_dtype_to_descr(result));
        if (pair == NULL || PyList_Append(list, pair) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(pair);
    }
    if (list == NULL) {
        return NULL;
    }
    PyObject *tuple = PyList_AsTuple(list);
    Py_DECREF(list);
    return tuple;
}

PyDoc_STRVAR(
    extent_doc,
    "extent($module, array, /)\n--\n\n"
    "(address, size) of the bytes from the first to the last that the array touches; (0, 0) without elements.\n\n"
    "For comparing arrays: it waits for nothing, and the address is no leave to read there.");

static PyObject *core_extent(PyObject *module, PyObject *object) {
    um_ndarray *array = um_array_argument(um_state_of_module(module), object, "array");
    if (array == NULL) {
        return NULL;
    }
    size_t offset = 0;
    size_t size = 0;
    um_ndarray_extent(array, &offset, &size);
    uintptr_t address = size == 0 ? 0 : (uintptr_t)um_block_ptr(array->block) + offset;
    return Py_BuildValue("(NN)", PyLong_FromSize_t(address), PyLong_FromSize_t(size));
}

PyDoc_STRVAR(has_kernels_doc, "has_kernels($module, /)\n--\n\n"
                              "Whether the backend in use runs kernels: True on CUDA.");

static PyObject *core_has_kernels(PyObject *module, PyObject *Py_UNUSED(unused)) {
    um_context *ctx = um_state_context(um_state_of_module(module));
    return ctx != NULL ? PyBool_FromLong(um_context_is_cuda(ctx)) : NULL;
}

static PyMethodDef run_functions[] = {
    {"run", UM_METHOD(core_run), METH_FASTCALL, run_doc},
    {"run_where", UM_METHOD(core_run_where), METH_FASTCALL, run_where_doc},
    {"cast", UM_METHOD(core_cast), METH_FASTCALL, cast_doc},
    {"op_loops", core_op_loops, METH_O, op_loops_doc},
    {"extent", core_extent, METH_O, extent_doc},
    {"has_kernels", core_has_kernels, METH_NOARGS, has_kernels_doc},
    {NULL, NULL, 0, NULL},
};

static PyObject *kernel_dtypes(void) {
    PyObject *tuple = PyTuple_New(UM_DTYPE_COUNT);
    for (int dtype = 0; tuple != NULL && dtype < UM_DTYPE_COUNT; ++dtype) {
        PyArray_Descr *descr = um_dtype_to_descr((um_dtype)dtype);
        if (descr == NULL) {
            Py_CLEAR(tuple);
        } else {
            PyTuple_SET_ITEM(tuple, dtype, (PyObject *)descr);
        }
    }
    return tuple;
}

int um_run_add(PyObject *module, um_state *Py_UNUSED(state)) {
    PyObject *dtypes = kernel_dtypes();
    int result = dtypes == NULL ? -1 : PyModule_AddObjectRef(module, "kernel_dtypes", dtypes);
    Py_XDECREF(dtypes);
    if (result < 0 || PyModule_AddFunctions(module, run_functions) < 0) {
        return -1;
    }
    return um_reduce_add(module);
}
