/* Exceptions, and the one place where a status becomes one. */
#include "py/um_state.h"

#include <string.h>

#include "core/um_pool.h"

PyDoc_STRVAR(cuda_error_doc, "A call of the CUDA driver failed.\n"
                             "\n"
                             "code  CUresult, an int\n"
                             "name  the name of the code, such as 'CUDA_ERROR_INVALID_VALUE'\n"
                             "call  the driver's function that failed");
PyDoc_STRVAR(out_of_memory_error_doc,
             "No room for an array.\n"
             "\n"
             "requested  bytes asked for\n"
             "in_use     bytes that umem holds\n"
             "limit      the limit in bytes that refused the request; None when the memory itself ran out\n"
             "device     number of the GPU that the figures speak of; None for all together");
PyDoc_STRVAR(driver_not_found_error_doc, "There is no usable CUDA driver. The message says what was tried.");

/* Creates `umem.<name>` with attributes (stolen; NULL for none) that instances not raised by umem fall back on. */
static int add_exception(PyObject *module, const char *name, const char *doc, PyObject *base, PyObject *attributes,
                         PyObject **out) {
    char qualified[64];
    PyOS_snprintf(qualified, sizeof(qualified), "umem.%s", name);
    *out = PyErr_NewExceptionWithDoc(qualified, doc, base, attributes);
    Py_XDECREF(attributes);
    return *out == NULL ? -1 : PyModule_AddObjectRef(module, name, *out);
}

int um_errors_add(PyObject *module, um_state *state) {
    PyObject *cuda_attributes = Py_BuildValue("{s:i,s:s,s:s}", "code", 0, "name", "", "call", "");
    if (cuda_attributes == NULL || add_exception(module, "CudaError", cuda_error_doc, PyExc_RuntimeError,
                                                 cuda_attributes, &state->cuda_error) < 0) {
        return -1;
    }
    PyObject *memory_attributes =
        Py_BuildValue("{s:i,s:i,s:O,s:O}", "requested", 0, "in_use", 0, "limit", Py_None, "device", Py_None);
    if (memory_attributes == NULL ||
        add_exception(module, "OutOfMemoryError", out_of_memory_error_doc, PyExc_MemoryError, memory_attributes,
                      &state->out_of_memory_error) < 0) {
        return -1;
    }
    return add_exception(module, "DriverNotFoundError", driver_not_found_error_doc, PyExc_RuntimeError, NULL,
                         &state->driver_not_found_error);
}

/* Raises `type` with the message and the attributes of a dict (stolen; NULL: an exception is set already). */
static PyObject *raise_with_attributes(PyObject *type, PyObject *message, PyObject *attributes) {
    if (attributes == NULL) {
        return NULL;
    }
    PyObject *exception = PyObject_CallOneArg(type, message);
    if (exception != NULL) {
        PyObject *key;
        PyObject *value;
        Py_ssize_t position = 0;
        bool complete = true;
        while (complete && PyDict_Next(attributes, &position, &key, &value)) {
            complete = PyObject_SetAttr(exception, key, value) == 0;
        }
        if (complete) {
            PyErr_SetObject(type, exception);
        }
        Py_DECREF(exception);
    }
    Py_DECREF(attributes);
    return NULL;
}

static PyObject *cuda_error_attributes(const um_error *err) {
    return Py_BuildValue("{s:i,s:s,s:s}", "code", err->cuda_code, "name", err->name, "call",
                         err->call != NULL ? err->call : "");
}

static PyObject *out_of_memory_attributes(const um_error *err) {
    PyObject *limit = err->limit != SIZE_MAX ? PyLong_FromSize_t(err->limit) : Py_NewRef(Py_None);
    PyObject *device = err->device >= 0 ? PyLong_FromLong(err->device) : Py_NewRef(Py_None);
    if (limit == NULL || device == NULL) {
        Py_XDECREF(limit);
        Py_XDECREF(device);
        return NULL;
    }
    return Py_BuildValue("{s:n,s:n,s:N,s:N}", "requested", (Py_ssize_t)err->requested, "in_use",
                         (Py_ssize_t)err->in_use, "limit", limit, "device", device);
}

static PyObject *plain_type(const um_state *state, um_status status) {
    switch (status) {
    case UM_ERR_VALUE: return PyExc_ValueError;
    case UM_ERR_TYPE: return PyExc_TypeError;
    case UM_ERR_BUFFER: return PyExc_BufferError;
    case UM_ERR_NO_DRIVER: return state->driver_not_found_error;
    case UM_ERR_FORKED:
    case UM_ERR_BUSY:
    case UM_ERR_UNSUPPORTED: return PyExc_RuntimeError;
    case UM_ERR_INTERRUPTED: return PyExc_KeyboardInterrupt;
    case UM_OK:
    case UM_ERR_NO_MEMORY:
    case UM_ERR_OUT_OF_MEMORY:
    case UM_ERR_CUDA: break;
    }
    return PyExc_SystemError;
}

PyObject *um_raise(um_state *state, const um_error *err) {
    if (err->status == UM_ERR_NO_MEMORY) {
        return PyErr_NoMemory();
    }
    if (err->status == UM_ERR_INTERRUPTED && PyErr_Occurred()) { /* by a handler of a signal */
        return NULL;
    }
    /* A path or a device's name in the message may be cut in the middle of a character. */
    PyObject *message = PyUnicode_DecodeUTF8(err->message, (Py_ssize_t)strlen(err->message), "replace");
    if (message == NULL) {
        return NULL;
    }
    if (err->status == UM_ERR_CUDA) {
        raise_with_attributes(state->cuda_error, message, cuda_error_attributes(err));
    } else if (err->status == UM_ERR_OUT_OF_MEMORY) {
        um_context *context = atomic_load(&state->context);
        if (context != NULL) {
            um_pool_note_out_of_memory(context, err->device);
        }
        raise_with_attributes(state->out_of_memory_error, message, out_of_memory_attributes(err));
    } else {
        PyErr_SetObject(plain_type(state, err->status), message);
    }
    Py_DECREF(message);
    return NULL;
}

/* --- interrupted accesses ------------------------------------------------------------------------------------------- */

static int forget_interruption(void *module) {
    Py_CLEAR(um_state_of_module(module)->interruption);
    Py_DECREF(module);
    return 0;
}

void um_keep_interruption(um_state *state) {
    PyObject *type;
    PyObject *value;
    PyObject *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        (void)PyException_SetTraceback(value, traceback);
    }
    /* The interpreter makes the call when it goes on with Python code: the exception keeps nothing alive for longer. */
    PyObject *module = PyType_GetModule(state->ndarray_type);
    if (Py_AddPendingCall(forget_interruption, Py_NewRef(module)) == 0) {
        Py_XSETREF(state->interruption, Py_NewRef(value));
        state->interruption_traceback = traceback;
    } else {
        Py_DECREF(module);
    }
    PyErr_Restore(type, value, traceback);
}

int um_raise_lost_interruption(um_state *state) {
    PyObject *lost = state->interruption;
    if (lost == NULL) {
        return 0;
    }
    PyObject *traceback = PyException_GetTraceback(lost);
    Py_XDECREF(traceback);
    if (traceback != state->interruption_traceback) { /* it has gone through a frame of Python */
        return 0;
    }
    PyErr_SetObject((PyObject *)Py_TYPE(lost), lost);
    return -1;
}
