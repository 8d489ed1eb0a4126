/* Locations as Python writes them. */
#include "py/um_exchange.h"
#include "py/um_state.h"

#include <limits.h>
#include <string.h>

#include "core/um_placement.h"

#define ACCEPTED_FORMS                                                                                                 \
    "'cpu', 'cuda', 'cuda:N', 'numa:N', a device number, a torch.device, or a Device or Host of cuda.core"

/* "cuda:0, cuda:1", or that there are none; new reference. */
static PyObject *describe_devices(um_context *context) {
    if (!um_context_is_cuda(context)) {
        return PyUnicode_FromString("no GPU is in use");
    }
    PyObject *text = PyUnicode_FromString("present: cpu");
    for (int device = 0; text != NULL && device < um_context_backend(context)->device_count; device++) {
        PyObject *longer = PyUnicode_FromFormat("%U, cuda:%d", text, device);
        Py_SETREF(text, longer);
    }
    return text;
}

/* Raises ValueError for an object that no accepted form matches. Always -1. */
static int refuse(um_context *context, PyObject *object, const char *argument) {
    PyObject *devices = describe_devices(context);
    if (devices != NULL) {
        PyErr_Format(PyExc_ValueError, "%s=%R is not a location; accepted: " ACCEPTED_FORMS " (%U)", argument, object,
                     devices);
        Py_DECREF(devices);
    }
    return -1;
}

/* Decimal digits and nothing else, up to INT_MAX. */
static bool parse_number(const char *text, int *out) {
    long value = 0;
    if (*text == '\0') {
        return false;
    }
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9') {
            return false;
        }
        value = value * 10 + (*text - '0');
        if (value > INT_MAX) {
            return false;
        }
    }
    *out = (int)value;
    return true;
}

static bool parse_text(const char *text, int default_device, um_location *out) {
    if (strcmp(text, "cpu") == 0) {
        *out = (um_location){UM_LOCATION_HOST, 0};
        return true;
    }
    if (strcmp(text, "cuda") == 0) {
        *out = (um_location){UM_LOCATION_DEVICE, default_device};
        return true;
    }
    int id;
    if (strncmp(text, "cuda:", 5) == 0 && parse_number(text + 5, &id)) {
        *out = (um_location){UM_LOCATION_DEVICE, id};
        return true;
    }
    if (strncmp(text, "numa:", 5) == 0 && parse_number(text + 5, &id)) {
        *out = (um_location){UM_LOCATION_NUMA, id};
        return true;
    }
    return false;
}

/* A number of a device or NUMA node: 1, 0 when the object is not one, -1 with an exception set. */
static int read_number(PyObject *object, int *out) {
    if (!PyIndex_Check(object) || PyBool_Check(object)) {
        return 0;
    }
    int overflow;
    PyObject *number = PyNumber_Index(object);
    if (number == NULL) {
        return -1;
    }
    long value = PyLong_AsLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    if (value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (overflow != 0 || value < 0 || value > INT_MAX) {
        return 0;
    }
    *out = (int)value;
    return 1;
}

/* A torch.device: a `type` that is a str, and an `index` that is a number or None. 1 found, 0 not one, -1 exception. */
static int parse_torch_device(PyObject *object, int default_device, um_location *out) {
    PyObject *type = NULL;
    PyObject *index = NULL;
    int id = default_device;
    int result = um_optional_attribute(object, "type", &type);
    if (result == 0 && type != NULL && PyUnicode_Check(type)) {
        result = um_optional_attribute(object, "index", &index);
    }
    if (result == 0 && index != NULL) {
        result = index == Py_None ? 1 : read_number(index, &id);
    }
    if (result == 1) {
        if (PyUnicode_CompareWithASCIIString(type, "cpu") == 0) {
            *out = (um_location){UM_LOCATION_HOST, 0};
        } else if (PyUnicode_CompareWithASCIIString(type, "cuda") == 0) {
            *out = (um_location){UM_LOCATION_DEVICE, id};
        } else {
            result = 0;
        }
    }
    Py_XDECREF(type);
    Py_XDECREF(index);
    return result;
}

/* An object whose attribute `name` is the number of a device or node. 1 found, 0 not one, -1 exception. */
static int parse_numbered(PyObject *object, const char *name, um_location_kind kind, um_location *out) {
    PyObject *value = NULL;
    int result = um_optional_attribute(object, name, &value);
    if (result < 0 || value == NULL) {
        return result;
    }
    int id = 0;
    if (value == Py_None && kind == UM_LOCATION_NUMA) { /* cuda.core's Host() for any node */
        *out = (um_location){UM_LOCATION_HOST, 0};
        result = 1;
    } else {
        result = read_number(value, &id);
        if (result == 1) {
            *out = (um_location){kind, id};
        }
    }
    Py_DECREF(value);
    return result;
}

/* Any accepted form: 1 found, 0 none fits, -1 exception. */
static int parse_any(PyObject *object, int default_device, um_location *out) {
    if (PyUnicode_Check(object)) {
        const char *text = PyUnicode_AsUTF8(object);
        if (text == NULL) {
            if (!PyErr_ExceptionMatches(PyExc_UnicodeError)) {
                return -1;
            }
            PyErr_Clear(); /* a lone surrogate */
            return 0;
        }
        return parse_text(text, default_device, out) ? 1 : 0;
    }
    if (PyType_Check(object) || PyBool_Check(object)) {
        return 0;
    }
    int result = parse_numbered(object, "device_id", UM_LOCATION_DEVICE, out);
    if (result == 0 && PyIndex_Check(object)) {
        int id;
        result = read_number(object, &id);
        if (result == 1) {
            *out = (um_location){UM_LOCATION_DEVICE, id};
        }
        return result;
    }
    if (result == 0) {
        result = parse_numbered(object, "numa_id", UM_LOCATION_NUMA, out);
    }
    if (result == 0) {
        result = parse_torch_device(object, default_device, out);
    }
    return result;
}

/* Whether the location exists: 0, or -1 with an exception that begins with the argument's name. */
static int check_present(um_state *state, um_context *context, um_location where, const char *argument) {
    um_error err;
    if (um_location_check(context, where, &err) == UM_OK) {
        return 0;
    }
    um_error named = err;
    (void)um_error_set(&named, err.status, "%s: %.400s", argument, err.message);
    um_raise(state, &named);
    return -1;
}

int um_parse_location(um_state *state, PyObject *object, const char *argument, int default_device, bool allow_none,
                      um_location *out) {
    um_context *context = um_state_context(state);
    if (context == NULL) {
        return -1;
    }
    if (object == Py_None && allow_none) {
        *out = (um_location){UM_LOCATION_NONE, 0};
        return 0;
    }
    um_location where = {UM_LOCATION_NONE, 0};
    int found = parse_any(object, default_device, &where);
    if (found < 0) {
        return -1;
    }
    if (found == 0) {
        return refuse(context, object, argument);
    }
    if (check_present(state, context, where, argument) < 0) {
        return -1;
    }
    *out = where;
    return 0;
}

PyObject *um_location_to_python(um_location where) {
    switch (where.kind) {
    case UM_LOCATION_HOST: return PyUnicode_FromString("cpu");
    case UM_LOCATION_DEVICE: return PyUnicode_FromFormat("cuda:%d", where.id);
    case UM_LOCATION_NUMA: return PyUnicode_FromFormat("numa:%d", where.id);
    case UM_LOCATION_NONE: break;
    }
    Py_RETURN_NONE;
}

int um_parse_device(um_state *state, PyObject *object, int *out) {
    if (object == Py_None) {
        *out = 0;
        return 0;
    }
    um_location where = {UM_LOCATION_NONE, 0};
    if (um_parse_location(state, object, "device", 0, false, &where) < 0) {
        return -1;
    }
    if (!um_context_is_cuda(atomic_load(&state->context))) {
        *out = 0;
        return 0;
    }
    if (where.kind != UM_LOCATION_DEVICE) {
        PyErr_Format(PyExc_ValueError,
                     "device=%R is not a GPU: device= says which GPU an array belongs to; "
                     "use home=\"cpu\" to keep its pages in host memory",
                     object);
        return -1;
    }
    *out = where.id;
    return 0;
}
