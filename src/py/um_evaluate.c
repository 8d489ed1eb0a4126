/* Programs of the register machine for umem/_evaluate.py, which compiles them; everything is checked again here. */
#include "py/um_run.h"

#include <string.h>

#include "kernels/um_kernel_evaluate.h"

/* False for dtypes that no cell holds. */
static bool kind_of(PyArray_Descr *descr, um_evaluate_kind *out) {
    if (!PyArray_ISNBO(descr->byteorder)) {
        return false;
    }
    const bool eight = PyDataType_ELSIZE(descr) == 8;
    switch (descr->type_num) {
    case NPY_BOOL:
    case NPY_UBYTE: *out = UM_EVALUATE_U8; return true;
    case NPY_BYTE: *out = UM_EVALUATE_I8; return true;
    case NPY_USHORT: *out = UM_EVALUATE_U16; return true;
    case NPY_SHORT: *out = UM_EVALUATE_I16; return true;
    case NPY_FLOAT: *out = UM_EVALUATE_U32; return true;
    case NPY_UINT:
    case NPY_ULONG: *out = UM_EVALUATE_U32; return !eight;
    case NPY_INT:
    case NPY_LONG:
    case NPY_LONGLONG: *out = eight ? UM_EVALUATE_B64 : UM_EVALUATE_I32; return true;
    case NPY_DOUBLE: *out = UM_EVALUATE_B64; return true;
    default: return false;
    }
}

/* The array as broadcast to `shape`; -1 with an exception set. */
static int read_array(um_state *state, PyObject *object, const char *argument, int ndim, const int64_t *shape,
                      int64_t *strides, um_evaluate_array *out) {
    if (!um_ndarray_check(state, object)) {
        PyErr_Format(PyExc_TypeError, "%s must be umem.ndarray, not '%.100s'", argument, Py_TYPE(object)->tp_name);
        return -1;
    }
    um_ndarray *array = (um_ndarray *)object;
    if (!kind_of(array->descr, &out->kind)) {
        PyErr_Format(PyExc_TypeError, "%s: the register machine has no dtype %R", argument, (PyObject *)array->descr);
        return -1;
    }
    if (!um_operand_from_array(array, (um_dtype)0, ndim, shape, strides, &out->memory)) {
        PyErr_Format(PyExc_ValueError, "%s does not broadcast to the shape of out", argument);
        return -1;
    }
    return 0;
}

static int read_program(PyObject *const *args, um_program *program) {
    if (!PyBytes_Check(args[0]) || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "steps and constants must be bytes");
        return -1;
    }
    const int wide = PyObject_IsTrue(args[2]);
    if (wide < 0) {
        return -1;
    }
    program->wide = wide != 0;
    program->step_count = (size_t)PyBytes_GET_SIZE(args[0]) / sizeof(um_evaluate_step);
    program->constant_count = (size_t)PyBytes_GET_SIZE(args[1]) / sizeof(uint64_t);
    if (program->step_count > UM_EVALUATE_STEPS || program->constant_count > UM_EVALUATE_CONSTANTS) {
        PyErr_SetString(PyExc_ValueError, "the program has too many steps or constants");
        return -1;
    }
    return 0;
}

static int run_program(um_state *state, const um_program *program, um_ndarray *target, const int64_t *shape,
                       const um_evaluate_array *inputs, int count, const um_evaluate_array *out) {
    um_launch_site site;
    if (um_launch_prepare(state, um_block_device(target->block), &site) < 0) {
        return -1;
    }
    um_wait wait = UM_WAIT_NONE;
    um_error err;
    um_launch_begin(state, &site);
    um_status status = um_kernel_evaluate(site.ctx, site.stream, program, target->ndim, shape, inputs, count, out,
                                          site.deferred, &wait, &err);
    return um_launch_finish(state, &site, status, &wait, &err);
}

PyDoc_STRVAR(
    evaluate_doc,
    "evaluate($module, steps, constants, wide, inputs, out, /)\n--\n\n"
    "Run a program of the register machine: no types, no analysis of overlap.\n\n"
    "`steps` are its instructions and `constants` its cells, as src/kernels/um_evaluate_abi.h lays them out. `inputs` is a\n"
    "tuple of arrays that broadcast to the shape of `out`. They may be the same memory as `out` element for element.");

static PyObject *core_evaluate(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    um_state *state = um_state_of_module(module);
    um_program program;
    if (nargs != 5) {
        return PyErr_Format(PyExc_TypeError, "evaluate() takes exactly 5 arguments (%zd given)", nargs);
    }
    if (read_program(args, &program) < 0) {
        return NULL;
    }
    if (!PyTuple_Check(args[3]) || PyTuple_GET_SIZE(args[3]) > UM_EVALUATE_INPUTS) {
        return PyErr_Format(PyExc_TypeError, "inputs must be a tuple of at most %d arrays", UM_EVALUATE_INPUTS);
    }
    if (!um_ndarray_check(state, args[4])) {
        return PyErr_Format(PyExc_TypeError, "out must be umem.ndarray, not '%.100s'", Py_TYPE(args[4])->tp_name);
    }
    um_ndarray *target = (um_ndarray *)args[4];
    if (!um_ndarray_is_writeable(target) || um_ndarray_repeats(target)) {
        PyErr_SetString(PyExc_ValueError, "out is read-only, or has elements that share memory with others of its own");
        return NULL;
    }
    int64_t shape[UM_MAX_NDIM];
    int64_t strides[UM_EVALUATE_INPUTS + 1][UM_MAX_NDIM];
    um_evaluate_array inputs[UM_EVALUATE_INPUTS];
    um_evaluate_array out;
    for (int axis = 0; axis < target->ndim; ++axis) {
        shape[axis] = target->shape[axis];
    }
    if (read_array(state, args[4], "out", target->ndim, shape, strides[UM_EVALUATE_INPUTS], &out) < 0) {
        return NULL;
    }
    const int count = (int)PyTuple_GET_SIZE(args[3]);
    for (int i = 0; i < count; ++i) {
        char argument[32];
        PyOS_snprintf(argument, sizeof(argument), "inputs[%d]", i);
        if (read_array(state, PyTuple_GET_ITEM(args[3], i), argument, target->ndim, shape, strides[i], &inputs[i]) <
            0) {
            return NULL;
        }
    }
    um_evaluate_step steps[UM_EVALUATE_STEPS];
    uint64_t constants[UM_EVALUATE_CONSTANTS];
    memcpy(steps, PyBytes_AS_STRING(args[0]), program.step_count * sizeof(steps[0]));
    memcpy(constants, PyBytes_AS_STRING(args[1]), program.constant_count * sizeof(constants[0]));
    program.steps = steps;
    program.constants = constants;
    if (run_program(state, &program, target, shape, inputs, count, &out) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(evaluate_op_doc,
             "evaluate_op($module, name, /)\n--\n\n"
             "Number of an operation of the register machine, such as \"f32_add\"; -1 when it has none.");

static PyObject *core_evaluate_op(PyObject *Py_UNUSED(module), PyObject *name) {
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    if (text == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_TypeError, "name must be a str, not '%.100s'", Py_TYPE(name)->tp_name);
        }
        return NULL;
    }
    return PyLong_FromLong(um_evaluate_find(text));
}

static PyMethodDef evaluate_functions[] = {
    {"evaluate", UM_METHOD(core_evaluate), METH_FASTCALL, evaluate_doc},
    {"evaluate_op", core_evaluate_op, METH_O, evaluate_op_doc},
    {NULL, NULL, 0, NULL},
};

int um_evaluate_add(PyObject *module, um_state *Py_UNUSED(state)) {
    PyObject *limits =
        Py_BuildValue("(iiii)", UM_EVALUATE_INPUTS, UM_EVALUATE_REGISTERS, UM_EVALUATE_STEPS, UM_EVALUATE_CONSTANTS);
    const int result = limits == NULL ? -1 : PyModule_AddObjectRef(module, "evaluate_limits", limits);
    Py_XDECREF(limits);
    return result < 0 ? -1 : PyModule_AddFunctions(module, evaluate_functions);
}
