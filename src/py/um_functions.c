/* umem.add, umem.multiply, …: one callable per line of um_kernel_ops.h.
 *
 * A call whose operands need nothing but a kernel goes straight to it. Every other call, right or wrong, is handed to
 * umem._ufunc.call, which knows NumPy's rules and raises NumPy's errors.
 */
#include "py/um_run.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>

typedef struct function_object {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *module; /* owned; NULL once the garbage collector has cleared it */
    um_state *state;  /* the module's */
    um_op op;
    int nin;
    PyObject *name; /* owned */
} function_object;

/* --- the fast path ------------------------------------------------------------------------------------------------ */

typedef enum verdict {
    GENERAL = 0, /* for umem._ufunc.call */
    FAST = 1,
    FAILED = -1, /* an exception is set */
} verdict;

typedef struct call_plan {
    um_ndarray *arrays[UM_MAX_INPUTS]; /* borrowed; NULL for a scalar */
    um_ndarray *out;                   /* owned; NULL until it is known or made */
    um_dtype dtype, result;
    int ndim;
    int64_t shape[UM_MAX_NDIM];
    int64_t strides[UM_MAX_INPUTS + 1][UM_MAX_NDIM];
    um_operand inputs[UM_MAX_INPUTS];
    um_operand target;
} call_plan;

/* The `out` of a call: borrowed, NULL for none. False when the arguments are not those of a plain call. */
static bool find_out(const function_object *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                     PyObject **out) {
    Py_ssize_t nkeywords = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    if (nargs < self->nin || nargs + nkeywords > self->nin + 1) {
        return false;
    }
    if (nkeywords == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "out") != 0) {
        return false;
    }
    PyObject *found = nargs + nkeywords > self->nin ? args[self->nin] : NULL;
    if (found != NULL && PyTuple_CheckExact(found) && PyTuple_GET_SIZE(found) == 1) {
        found = PyTuple_GET_ITEM(found, 0); /* out=(c,), as NumPy has it */
    }
    *out = found == NULL || Py_IsNone(found) ? NULL : found;
    return true;
}

static bool is_kernel_array(um_ndarray *array, um_dtype *dtype) {
    return um_dtype_from_descr(array->descr, dtype) &&
           um_ndarray_is_aligned_to(array, (size_t)PyDataType_ELSIZE(array->descr));
}

/* NumPy raises for a negative power of an integer, which only the general path can tell of an array. */
static bool has_power(const call_plan *plan) {
    switch ((int)plan->dtype) {
    case UM_INT8: return plan->arrays[1] == NULL && plan->inputs[1].value.i8 >= 0;
    case UM_INT16: return plan->arrays[1] == NULL && plan->inputs[1].value.i16 >= 0;
    case UM_INT32: return plan->arrays[1] == NULL && plan->inputs[1].value.i32 >= 0;
    case UM_INT64: return plan->arrays[1] == NULL && plan->inputs[1].value.i64 >= 0;
    default: return true;
    }
}

/* Finds the loop: all arrays have one type, and the operation has a kernel for it. */
static bool find_loop(const function_object *self, PyObject *const *args, call_plan *plan) {
    bool known = false;
    for (int i = 0; i < self->nin; ++i) {
        plan->arrays[i] = NULL;
        if (!um_ndarray_check(self->state, args[i])) {
            continue;
        }
        um_ndarray *array = (um_ndarray *)args[i];
        um_dtype dtype;
        if (!is_kernel_array(array, &dtype) || (known && dtype != plan->dtype)) {
            return false;
        }
        plan->arrays[i] = array;
        plan->dtype = dtype;
        known = true;
    }
    if (!known || !um_op_has_loop(self->op, plan->dtype, &plan->result)) {
        return false;
    }
    for (int i = 0; i < self->nin; ++i) {
        if (plan->arrays[i] == NULL && !um_immediate_from_object(args[i], plan->dtype, &plan->inputs[i])) {
            return false;
        }
    }
    return self->op != UM_OP_power || has_power(plan);
}

/* plan->shape: the one that the input arrays broadcast to. */
static bool broadcast_shape(const function_object *self, call_plan *plan) {
    plan->ndim = 0;
    for (int i = 0; i < self->nin; ++i) {
        if (plan->arrays[i] != NULL && plan->arrays[i]->ndim > plan->ndim) {
            plan->ndim = plan->arrays[i]->ndim;
        }
    }
    for (int axis = 0; axis < plan->ndim; ++axis) {
        plan->shape[axis] = 1;
    }
    for (int i = 0; i < self->nin; ++i) {
        if (plan->arrays[i] == NULL) {
            continue;
        }
        const um_ndarray *array = plan->arrays[i];
        int64_t *shape = plan->shape + (plan->ndim - array->ndim);
        for (int axis = 0; axis < array->ndim; ++axis) {
            if (shape[axis] == 1) {
                shape[axis] = array->shape[axis];
            } else if (array->shape[axis] != shape[axis] && array->shape[axis] != 1) {
                return false;
            }
        }
    }
    return true;
}

/* Bytes that an array goes on by along an axis of the result; 0 when it is not walked along it. */
static npy_intp step_along(const um_ndarray *array, int ndim, int axis) {
    int own = axis - (ndim - array->ndim);
    if (own < 0 || array->shape[own] == 1) {
        return 0;
    }
    return array->strides[own] < 0 ? -array->strides[own] : array->strides[own];
}

/* Which of two axes is outside of the other in a result, as NumPy's iterator has it: 1 the first, also when the inputs disagree, -1 the
 * second, 0 none of them says. */
static int outer_axis(const function_object *self, const call_plan *plan, int first, int second) {
    int outer = 0;
    for (int i = 0; i < self->nin; ++i) {
        if (plan->arrays[i] == NULL) {
            continue;
        }
        npy_intp a = step_along(plan->arrays[i], plan->ndim, first);
        npy_intp b = step_along(plan->arrays[i], plan->ndim, second);
        if (a != 0 && b != 0) {
            outer = a >= b || outer > 0 ? 1 : -1;
        }
    }
    return outer;
}

/* Memory order of a new result, as NumPy's 'K': C's, Fortran's, or 0 for any other, which the general path can make
 * (_layout.empty_result). */
static char result_order(const function_object *self, const call_plan *plan) {
    int axes[UM_MAX_NDIM]; /* from the innermost */
    bool falling = true, rising = true;
    for (int count = 0; count < plan->ndim; ++count) {
        int axis = plan->ndim - 1 - count, at = count;
        for (int i = count - 1; i >= 0; --i) {
            int outer = outer_axis(self, plan, axis, axes[i]);
            if (outer > 0) {
                break;
            }
            at = outer < 0 ? i : at;
        }
        memmove(axes + at + 1, axes + at, (size_t)(count - at) * sizeof(axes[0]));
        axes[at] = axis;
    }
    for (int i = 0, last = -1; i < plan->ndim; ++i) {
        if (plan->shape[axes[i]] != 1) {
            falling = falling && (last < 0 || axes[i] < last);
            rising = rising && axes[i] > last;
            last = axes[i];
        }
    }
    return falling ? 'C' : rising ? 'F' : 0;
}

static bool same_view(const um_ndarray *a, const um_ndarray *b) {
    if (a->data != b->data || a->ndim != b->ndim) {
        return false;
    }
    for (int axis = 0; axis < a->ndim; ++axis) {
        if (a->shape[axis] != b->shape[axis] || (a->strides[axis] != b->strides[axis] && a->shape[axis] > 1)) {
            return false;
        }
    }
    return true;
}

/* First byte an array touches and the one past the last; both 0 when it has no elements. */
static void address_range(const um_ndarray *array, uintptr_t *first, uintptr_t *end) {
    uintptr_t low = (uintptr_t)array->data;
    uintptr_t high = low + (uintptr_t)PyDataType_ELSIZE(array->descr);
    for (int axis = 0; axis < array->ndim; ++axis) {
        if (array->shape[axis] == 0) {
            *first = *end = 0;
            return;
        }
        uintptr_t reach = (uintptr_t)((array->shape[axis] - 1) * array->strides[axis]);
        if (array->strides[axis] < 0) {
            low += reach;
        } else {
            high += reach;
        }
    }
    *first = low;
    *end = high;
}

/* Whether writing b could change what is read of a: they overlap and are not the same elements in the same order. */
static bool overlaps_badly(const um_ndarray *a, const um_ndarray *b) {
    uintptr_t first_a = 0, end_a = 0, first_b = 0, end_b = 0;
    address_range(a, &first_a, &end_a);
    address_range(b, &first_b, &end_b);
    return first_a < end_b && first_b < end_a && !same_view(a, b);
}

/* Takes the given `out` when a kernel can write the result straight into it. */
static bool take_out(const function_object *self, PyObject *given, call_plan *plan) {
    if (!um_ndarray_check(self->state, given)) {
        return false;
    }
    um_ndarray *out = (um_ndarray *)given;
    um_dtype dtype;
    if (!um_ndarray_is_writeable(out) || !is_kernel_array(out, &dtype) || dtype != plan->result ||
        um_ndarray_repeats(out)) {
        return false;
    }
    plan->ndim = out->ndim;
    for (int axis = 0; axis < out->ndim; ++axis) {
        plan->shape[axis] = out->shape[axis];
    }
    for (int i = 0; i < self->nin; ++i) {
        if (plan->arrays[i] != NULL && overlaps_badly(plan->arrays[i], out)) {
            return false;
        }
    }
    plan->out = (um_ndarray *)Py_NewRef(given);
    return true;
}

static bool describe_inputs(const function_object *self, call_plan *plan) {
    for (int i = 0; i < self->nin; ++i) {
        if (plan->arrays[i] != NULL && !um_operand_from_array(plan->arrays[i], plan->dtype, plan->ndim, plan->shape,
                                                              plan->strides[i], &plan->inputs[i])) {
            return false;
        }
    }
    return true;
}

/* A new array of the broadcast shape, on the device that will compute it. */
static um_ndarray *make_out(const function_object *self, const call_plan *plan) {
    int device = 0;
    for (int i = self->nin - 1; i >= 0; --i) {
        if (plan->arrays[i] != NULL) {
            device = um_block_device(plan->arrays[i]->block);
        }
    }
    um_stream *stream = NULL;
    int found = um_explicit_stream(self->state, &stream);
    if (found < 0) {
        return NULL;
    }
    if (found > 0) {
        device = um_stream_device(stream);
        um_stream_unref(stream);
    }
    PyArray_Descr *descr = um_dtype_to_descr(plan->result);
    if (descr == NULL) {
        return NULL;
    }
    npy_intp shape[UM_MAX_NDIM];
    for (int axis = 0; axis < plan->ndim; ++axis) {
        shape[axis] = (npy_intp)plan->shape[axis];
    }
    return um_ndarray_empty(self->state, descr, plan->ndim, shape, result_order(self, plan), device,
                            (um_location){.kind = UM_LOCATION_NONE});
}

/* Plans the call; plan->out is set when the verdict is FAST. */
static verdict plan_call(const function_object *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                         call_plan *plan) {
    PyObject *given = NULL;
    plan->out = NULL;
    if (!find_out(self, args, nargs, kwnames, &given) || !find_loop(self, args, plan)) {
        return GENERAL;
    }
    um_context *ctx = um_state_context(self->state);
    if (ctx == NULL) {
        return FAILED;
    }
    if (!um_context_is_cuda(ctx)) {
        return GENERAL;
    }
    if (given != NULL) {
        if (!take_out(self, given, plan)) {
            return GENERAL;
        }
    } else if (!broadcast_shape(self, plan) || plan->ndim == 0 || result_order(self, plan) == 0) {
        return GENERAL; /* no axes: a scalar result is a NumPy scalar */
    }
    if (!describe_inputs(self, plan)) {
        Py_CLEAR(plan->out);
        return GENERAL;
    }
    if (given == NULL) {
        plan->out = make_out(self, plan);
        if (plan->out == NULL) {
            return FAILED;
        }
    }
    (void)um_operand_from_array(plan->out, plan->result, plan->ndim, plan->shape, plan->strides[UM_MAX_INPUTS],
                                &plan->target);
    return FAST;
}

/* --- the call ----------------------------------------------------------------------------------------------------- */

static PyObject *call_general(const function_object *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    PyObject *hook;
    Py_BEGIN_CRITICAL_SECTION(self->module);
    hook = Py_XNewRef(self->state->hook_ufunc);
    Py_END_CRITICAL_SECTION();
    if (hook == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "umem._core is not set up: import umem first");
        return NULL;
    }
    PyObject *result = NULL;
    PyObject *keywords = PyDict_New();
    PyObject *positional = PyTuple_New(nargs);
    if (keywords == NULL || positional == NULL) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < nargs; ++i) {
        PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
    }
    for (Py_ssize_t i = 0; kwnames != NULL && i < PyTuple_GET_SIZE(kwnames); ++i) {
        if (PyDict_SetItem(keywords, PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) < 0) {
            goto done;
        }
    }
    PyObject *const hook_args[] = {self->name, positional, keywords};
    result = PyObject_Vectorcall(hook, hook_args, 3, NULL);
done:
    Py_XDECREF(keywords);
    Py_XDECREF(positional);
    Py_DECREF(hook);
    return result;
}

static PyObject *function_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    const function_object *self = (const function_object *)object;
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    call_plan plan;
    if (self->module == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "umem has been unloaded");
        return NULL;
    }
    switch (plan_call(self, args, nargs, kwnames, &plan)) {
    case FAILED: return NULL;
    case GENERAL: return call_general(self, args, nargs, kwnames);
    case FAST: break;
    }
    int device = um_block_device(plan.out->block);
    if (um_run_elementwise(self->state, device, self->op, plan.ndim, plan.shape, plan.inputs, &plan.target) < 0) {
        Py_DECREF(plan.out);
        return NULL;
    }
    return (PyObject *)plan.out;
}

/* --- documentation ------------------------------------------------------------------------------------------------ */

typedef struct function_doc {
    const char *name;
    const char *summary;
    const char *inputs[UM_MAX_INPUTS]; /* names; "a", "b", "c" when NULL */
} function_doc;

/* Operations without a line here are documented as NumPy's function of that name. */
static const function_doc docs[] = {
    {"add", "Sum, element by element.", {NULL}},
    {"subtract", "Difference, element by element.", {NULL}},
    {"multiply", "Product, element by element.", {NULL}},
    {"true_divide", "Quotient, element by element; integers give float64.", {NULL}},
    {"negative", "The negative of each element; integers wrap.", {NULL}},
    {"axpy",
     "alpha * x + y in one pass: in floating point the product is not rounded before it is added.",
     {"alpha", "x", "y"}},
    {"addcmul",
     "x + a * b in one pass: in floating point the product is not rounded before it is added.",
     {"x", "a", "b"}},
    {"lerp", "a + t * (b - a), which is a at t = 0 and b at t = 1; floating point only.", {"a", "b", "t"}},
    {"clip", "Each element of a, raised to low and lowered to high.", {"a", "low", "high"}},
};

static const function_doc *find_doc(um_op op) {
    const char *name = um_op_name(op);
    for (size_t i = 0; i < sizeof(docs) / sizeof(docs[0]); ++i) {
        if (strcmp(docs[i].name, name) == 0) {
            return &docs[i];
        }
    }
    return NULL;
}

static const char *input_name(um_op op, int index) {
    static const char *const letters[UM_MAX_INPUTS] = {"a", "b", "c"};
    const function_doc *doc = find_doc(op);
    return doc != NULL && doc->inputs[index] != NULL ? doc->inputs[index] : letters[index];
}

/* "a, b": new reference. */
static PyObject *input_names(const function_object *self) {
    PyObject *names = PyUnicode_FromString(input_name(self->op, 0));
    for (int i = 1; names != NULL && i < self->nin; ++i) {
        PyObject *longer = PyUnicode_FromFormat("%U, %s", names, input_name(self->op, i));
        Py_SETREF(names, longer);
    }
    return names;
}

/* "float32, float64, …": the types that have a kernel. New reference. */
static PyObject *kernel_types(const function_object *self) {
    PyObject *text = PyUnicode_FromString("");
    for (int dtype = 0; text != NULL && dtype < UM_DTYPE_COUNT; ++dtype) {
        um_dtype result;
        if (um_op_has_loop(self->op, (um_dtype)dtype, &result)) {
            const char *separator = PyUnicode_GET_LENGTH(text) > 0 ? ", " : "";
            PyObject *longer = PyUnicode_FromFormat("%U%s%s", text, separator, um_dtype_name((um_dtype)dtype));
            Py_SETREF(text, longer);
        }
    }
    return text;
}

static PyObject *function_get_doc(PyObject *object, void *Py_UNUSED(closure)) {
    const function_object *self = (const function_object *)object;
    const function_doc *doc = find_doc(self->op);
    PyObject *names = input_names(self);
    PyObject *types = kernel_types(self);
    PyObject *summary =
        doc != NULL ? PyUnicode_FromString(doc->summary) : PyUnicode_FromFormat("As numpy.%U.", self->name);
    PyObject *text = NULL;
    if (names != NULL && types != NULL && summary != NULL) {
        text = PyUnicode_FromFormat(
            "%U\n\n"
            "Parameters\n----------\n"
            "%U : array_like\n"
            "    Arrays and scalars whose shapes broadcast together.\n"
            "out : umem.ndarray, optional\n"
            "    Array that the inputs broadcast to; receives the result and is returned. It may be one of the inputs.\n\n"
            "Returns\n-------\n"
            "umem.ndarray\n"
            "    `out`, or a new array of the broadcast shape with the dtype that NumPy gives. A NumPy scalar when there is\n"
            "    no `out` and every input is a scalar or has no dimensions.\n\n"
            "Raises\n------\n"
            "ValueError\n"
            "    Shapes do not broadcast, or `out` has another shape or is read-only.\n"
            "TypeError\n"
            "    The dtypes do not work together, or the result does not cast to that of `out`.\n\n"
            "Notes\n-----\n"
            "Arrays of %U are computed by the GPU, on the stream of\n"
            "``umem.stream``; every access through umem waits for it. NumPy computes the others, and all of them on a\n"
            "machine with no GPU, in the same memory.",
            summary, names, types);
    }
    Py_XDECREF(names);
    Py_XDECREF(types);
    Py_XDECREF(summary);
    return text;
}

static PyObject *function_get_text_signature(PyObject *object, void *Py_UNUSED(closure)) {
    PyObject *names = input_names((const function_object *)object);
    PyObject *text = names == NULL ? NULL : PyUnicode_FromFormat("(%U, /, out=None)", names);
    Py_XDECREF(names);
    return text;
}

/* inspect.Parameter(name, kind[, default=None]). */
static PyObject *make_parameter(PyObject *type, const char *name, const char *kind, bool optional) {
    PyObject *kind_value = PyObject_GetAttrString(type, kind);
    PyObject *args = kind_value == NULL ? NULL : Py_BuildValue("(sO)", name, kind_value);
    PyObject *kwargs = optional ? Py_BuildValue("{sO}", "default", Py_None) : PyDict_New();
    PyObject *parameter = args == NULL || kwargs == NULL ? NULL : PyObject_Call(type, args, kwargs);
    Py_XDECREF(kind_value);
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    return parameter;
}

/* inspect.signature() looks for this; it reads __text_signature__ only from CPython's own function types. */
static PyObject *function_get_signature(PyObject *object, void *Py_UNUSED(closure)) {
    const function_object *self = (const function_object *)object;
    PyObject *result = NULL;
    PyObject *parameters = PyList_New(0);
    PyObject *inspect = parameters == NULL ? NULL : PyImport_ImportModule("inspect");
    PyObject *type = inspect == NULL ? NULL : PyObject_GetAttrString(inspect, "Parameter");
    if (type == NULL) {
        goto done;
    }
    for (int i = 0; i <= self->nin; ++i) {
        bool is_out = i == self->nin;
        PyObject *parameter = make_parameter(type, is_out ? "out" : input_name(self->op, i),
                                             is_out ? "POSITIONAL_OR_KEYWORD" : "POSITIONAL_ONLY", is_out);
        int appended = parameter == NULL ? -1 : PyList_Append(parameters, parameter);
        Py_XDECREF(parameter);
        if (appended < 0) {
            goto done;
        }
    }
    result = PyObject_CallMethod(inspect, "Signature", "O", parameters);
done:
    Py_XDECREF(type);
    Py_XDECREF(inspect);
    Py_XDECREF(parameters);
    return result;
}

/* --- the type ----------------------------------------------------------------------------------------------------- */

static PyObject *function_get_name(PyObject *object, void *Py_UNUSED(closure)) {
    return Py_NewRef(((const function_object *)object)->name);
}

static PyObject *function_get_nin(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromLong(((const function_object *)object)->nin);
}

static PyObject *function_repr(PyObject *object) {
    return PyUnicode_FromFormat("<umem function %U>", ((const function_object *)object)->name);
}

/* Pickled as the global umem.<name>. */
static PyObject *function_reduce(PyObject *object, PyObject *Py_UNUSED(unused)) {
    return Py_NewRef(((const function_object *)object)->name);
}

/* Binds to nothing. That it is there makes inspect and help() take the object for a routine. */
static PyObject *function_descr_get(PyObject *object, PyObject *Py_UNUSED(instance), PyObject *Py_UNUSED(owner)) {
    return Py_NewRef(object);
}

static int function_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((function_object *)object)->module);
    return 0;
}

static int function_clear(PyObject *object) {
    Py_CLEAR(((function_object *)object)->module);
    return 0;
}

static void function_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_XDECREF(((function_object *)object)->name);
    (void)function_clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef function_methods[] = {
    {"__reduce__", function_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef function_getset[] = {
    {"__name__", function_get_name, NULL, NULL, NULL},
    {"__qualname__", function_get_name, NULL, NULL, NULL},
    {"__doc__", function_get_doc, NULL, NULL, NULL},
    {"__text_signature__", function_get_text_signature, NULL, NULL, NULL},
    {"__signature__", function_get_signature, NULL, NULL, NULL},
    {"nin", function_get_nin, NULL, PyDoc_STR("Number of inputs."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef function_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(function_object, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot function_slots[] = {
    {Py_tp_call, PyVectorcall_Call},   {Py_tp_descr_get, function_descr_get},
    {Py_tp_dealloc, function_dealloc}, {Py_tp_traverse, function_traverse},
    {Py_tp_clear, function_clear},     {Py_tp_repr, function_repr},
    {Py_tp_methods, function_methods}, {Py_tp_getset, function_getset},
    {Py_tp_members, function_members}, {0, NULL},
};

static PyType_Spec function_spec = {
    .name = "umem.function",
    .basicsize = sizeof(function_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = function_slots,
};

static PyObject *new_function(PyObject *module, um_state *state, um_op op) {
    function_object *self = PyObject_GC_New(function_object, state->function_type);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = function_call;
    self->module = Py_NewRef(module);
    self->state = state;
    self->op = op;
    self->nin = um_op_input_count(op);
    self->name = PyUnicode_InternFromString(um_op_name(op));
    PyObject_GC_Track((PyObject *)self);
    if (self->name == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

int um_functions_add(PyObject *module, um_state *state) {
    state->function_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &function_spec, NULL);
    if (state->function_type == NULL) {
        return -1;
    }
    PyObject *names = PyTuple_New(UM_OP_COUNT);
    for (int op = 0; names != NULL && op < UM_OP_COUNT; ++op) {
        PyObject *name = PyUnicode_InternFromString(um_op_name((um_op)op));
        if (name == NULL) {
            Py_CLEAR(names);
        } else {
            PyTuple_SET_ITEM(names, op, name);
        }
    }
    int named = names == NULL ? -1 : PyModule_AddObjectRef(module, "ops", names);
    Py_XDECREF(names);
    if (named < 0) {
        return -1;
    }
    for (int op = 0; op < UM_OP_COUNT; ++op) {
        PyObject *function = new_function(module, state, (um_op)op);
        int added = function == NULL ? -1 : PyModule_AddObjectRef(module, um_op_name((um_op)op), function);
        Py_XDECREF(function);
        if (added < 0) {
            return -1;
        }
    }
    return um_run_add(module, state);
}
