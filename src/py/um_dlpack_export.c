/* __dlpack__ and __dlpack_device__: handing an array to another library.
 *
 * A capsule holds a reference to the block and nothing of Python's, so that its deleter can run in any thread,
 * without the GIL and after the interpreter is gone.
 */
#include "py/um_exchange.h"

#include "py/um_dlpack.h"

#include <stdlib.h>
#include <string.h>

/* What the consumer asked for. */
typedef struct dl_request {
    bool stream_given;
    bool stream_none;
    bool stream_unordered; /* -1: the consumer wants no synchronisation */
    um_stream_handle stream;
    bool versioned;
    uint32_t minor;
    bool device_given;
    um_dl_device device;
    bool copy_given;
    bool copy;
} dl_request;

/* One allocation for everything the consumer sees. */
typedef struct dl_export {
    union {
        um_dl_managed legacy;
        um_dl_managed_versioned versioned;
    } managed;
    um_block *block; /* owned */
    int64_t dims[];  /* shape, then strides */
} dl_export;

/* --- arguments -------------------------------------------------------------------------------------------------- */

static int parse_int32_pair(PyObject *object, const char *name, int64_t pair[2]) {
    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != 2) {
        PyErr_Format(PyExc_TypeError, "%s must be None or a tuple of two ints, not %.200s", name,
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    for (Py_ssize_t i = 0; i < 2; i++) {
        PyObject *number = PyNumber_Index(PyTuple_GET_ITEM(object, i));
        if (number == NULL) {
            if (PyErr_ExceptionMatches(PyExc_TypeError)) {
                PyErr_Format(PyExc_TypeError, "%s must be None or a tuple of two ints", name);
            }
            return -1;
        }
        int overflow;
        long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
        Py_DECREF(number);
        if (overflow != 0 || value < INT32_MIN || value > INT32_MAX) {
            PyErr_Format(PyExc_ValueError, "%s holds a number that is out of range", name);
            return -1;
        }
        pair[i] = value;
    }
    return 0;
}

static int parse_stream(PyObject *object, dl_request *request) {
    request->stream_given = true;
    if (object == Py_None) {
        request->stream_none = true;
        request->stream = UM_STREAM_LEGACY;
        return 0;
    }
    if (!PyIndex_Check(object)) {
        PyErr_Format(PyExc_TypeError, "stream must be None or an int, not %.200s", Py_TYPE(object)->tp_name);
        return -1;
    }
    PyObject *number = PyNumber_Index(object);
    if (number == NULL) {
        return -1;
    }
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    if (overflow == 0 && value == -1) {
        request->stream_unordered = true;
        return 0;
    }
    if (overflow == 0 && value == 0) {
        PyErr_SetString(PyExc_ValueError,
                        "stream=0 could mean either default stream: pass 1 (legacy) or 2 (per thread)");
        return -1;
    }
    if (overflow != 0 || value < 0) {
        PyErr_SetString(PyExc_ValueError, "stream must be None, -1, 1, 2 or a CUDA stream handle");
        return -1;
    }
    request->stream = (um_stream_handle)value;
    return 0;
}

static int parse_max_version(PyObject *object, dl_request *request) {
    if (object == Py_None) {
        return 0;
    }
    int64_t version[2];
    if (parse_int32_pair(object, "max_version", version) < 0) {
        return -1;
    }
    request->versioned = version[0] >= UM_DL_MAJOR;
    bool newer = version[0] > UM_DL_MAJOR || version[1] >= UM_DL_MINOR;
    request->minor = newer || version[1] < 0 ? UM_DL_MINOR : (uint32_t)version[1];
    return 0;
}

static int parse_argument(PyObject *name, PyObject *value, dl_request *request) {
    if (PyUnicode_CompareWithASCIIString(name, "stream") == 0) {
        return parse_stream(value, request);
    }
    if (PyUnicode_CompareWithASCIIString(name, "max_version") == 0) {
        return parse_max_version(value, request);
    }
    if (PyUnicode_CompareWithASCIIString(name, "dl_device") == 0) {
        int64_t device[2];
        if (value == Py_None) {
            return 0;
        }
        if (parse_int32_pair(value, "dl_device", device) < 0) {
            return -1;
        }
        request->device_given = true;
        request->device = (um_dl_device){.type = (int32_t)device[0], .id = (int32_t)device[1]};
        return 0;
    }
    if (PyUnicode_CompareWithASCIIString(name, "copy") == 0) {
        if (value == Py_None) {
            return 0;
        }
        int truth = PyObject_IsTrue(value);
        if (truth < 0) {
            return -1;
        }
        request->copy_given = true;
        request->copy = truth != 0;
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "__dlpack__() got an unexpected keyword argument %R", name);
    return -1;
}

static int parse_request(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, dl_request *request) {
    *request = (dl_request){.stream = UM_STREAM_LEGACY};
    if (nargs != 0) {
        PyErr_Format(PyExc_TypeError, "__dlpack__() takes keyword arguments only (%zd positional given)", nargs);
        return -1;
    }
    Py_ssize_t count = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (parse_argument(PyTuple_GET_ITEM(kwnames, i), args[i], request) < 0) {
            return -1;
        }
    }
    return 0;
}

/* --- where to --------------------------------------------------------------------------------------------------- */

static int refuse_device(const dl_request *request, bool cuda, int device) {
    if (cuda) {
        PyErr_Format(
            PyExc_BufferError,
            "cannot export to DLPack device (%d, %d): this array can be had as (1, 0) for the CPU, (2, %d) for CUDA or "
            "(13, %d) for CUDA managed memory",
            (int)request->device.type, (int)request->device.id, device, device);
    } else {
        PyErr_Format(PyExc_BufferError,
                     "cannot export to DLPack device (%d, %d): this array can be had as (1, 0), the CPU, only",
                     (int)request->device.type, (int)request->device.id);
    }
    return -1;
}

/* The device of the capsule, from what was asked and from what the exporter stands for. */
static int choose_target(const dl_request *request, um_location fixed, bool cuda, int owner, um_dl_device *out) {
    int device = fixed.kind == UM_LOCATION_DEVICE ? fixed.id : owner;
    if (!cuda || (fixed.kind == UM_LOCATION_HOST && !request->device_given)) {
        if (request->device_given && (request->device.type != UM_DL_CPU || request->device.id != 0)) {
            return refuse_device(request, cuda, device);
        }
        if (request->stream_given && !request->stream_none) {
            PyErr_SetString(PyExc_ValueError, "stream must be None for an array on the CPU");
            return -1;
        }
        *out = (um_dl_device){.type = UM_DL_CPU, .id = 0};
        return 0;
    }
    if (!request->device_given) {
        /* NumPy's call: it names neither a stream nor a device, and takes managed memory. */
        bool managed = fixed.kind == UM_LOCATION_NONE && !request->stream_given;
        *out = (um_dl_device){.type = managed ? UM_DL_CUDA_MANAGED : UM_DL_CUDA, .id = device};
        return 0;
    }
    bool host = request->device.type == UM_DL_CPU && request->device.id == 0;
    bool gpu = request->device.type == UM_DL_CUDA && request->device.id == device;
    bool managed = request->device.type == UM_DL_CUDA_MANAGED && request->device.id == device;
    if (!host && !gpu && !(managed && fixed.kind == UM_LOCATION_NONE)) {
        return refuse_device(request, cuda, device);
    }
    *out = request->device;
    return 0;
}

/* --- what DLPack can say ---------------------------------------------------------------------------------------- */

/* bfloat16 comes to NumPy from the package ml_dtypes. 1 yes, 0 no, -1 error. */
static int is_bfloat16(PyArray_Descr *descr) {
    if (!PyTypeNum_ISUSERDEF(descr->type_num) || PyDataType_ELSIZE(descr) != 2) {
        return 0;
    }
    PyObject *name = PyObject_GetAttrString((PyObject *)descr, "name");
    if (name == NULL) {
        return -1;
    }
    int result = PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "bfloat16") == 0;
    Py_DECREF(name);
    return result;
}

static int refuse_dtype(PyArray_Descr *descr, const char *why) {
    PyErr_Format(PyExc_BufferError, "DLPack cannot say dtype %R%s", (PyObject *)descr, why);
    return -1;
}

static int describe_dtype(PyArray_Descr *descr, um_dl_dtype *out) {
    int type_num = descr->type_num;
    npy_intp itemsize = PyDataType_ELSIZE(descr);
    int code;
    if (!PyArray_ISNBO(descr->byteorder)) {
        return refuse_dtype(descr, ": its byte order is not this machine's; convert with astype first");
    }
    if (PyTypeNum_ISBOOL(type_num)) {
        code = UM_DL_BOOL;
    } else if (PyTypeNum_ISSIGNED(type_num)) {
        code = UM_DL_INT;
    } else if (PyTypeNum_ISUNSIGNED(type_num)) {
        code = UM_DL_UINT;
    } else if (type_num == NPY_HALF || type_num == NPY_FLOAT || type_num == NPY_DOUBLE) {
        code = UM_DL_FLOAT;
    } else if (type_num == NPY_CFLOAT || type_num == NPY_CDOUBLE) {
        code = UM_DL_COMPLEX;
    } else {
        int bfloat = is_bfloat16(descr);
        if (bfloat <= 0) {
            return bfloat < 0 ? -1 : refuse_dtype(descr, "");
        }
        code = UM_DL_BFLOAT;
    }
    *out = (um_dl_dtype){.code = (uint8_t)code, .bits = (uint8_t)(itemsize * 8), .lanes = 1};
    return 0;
}

/* Shape and strides in elements. Axes of length 1 are never walked, so theirs may be made to fit. */
static int describe_dims(um_ndarray *array, int64_t *shape, int64_t *strides) {
    npy_intp itemsize = PyDataType_ELSIZE(array->descr);
    bool empty = um_ndarray_size(array) == 0;
    uint64_t c_order = 1; /* wraps only for arrays with no elements, which have nothing to stride over */
    for (int i = array->ndim - 1; i >= 0; i--) {
        npy_intp stride = array->strides[i];
        shape[i] = array->shape[i];
        if (empty || array->shape[i] == 1) {
            strides[i] = (int64_t)c_order;
        } else if (stride < 0) {
            PyErr_SetString(PyExc_BufferError, "DLPack consumers do not take negative strides: copy() the array first");
            return -1;
        } else if (stride % itemsize != 0) {
            PyErr_Format(
                PyExc_BufferError,
                "the stride of axis %d, %zd bytes, is no multiple of the item size, %zd bytes, as DLPack needs: "
                "copy() the array first",
                i, (Py_ssize_t)stride, (Py_ssize_t)itemsize);
            return -1;
        } else {
            strides[i] = stride / itemsize;
        }
        c_order *= shape[i] > 0 ? (uint64_t)shape[i] : 1;
    }
    return 0;
}

int um_dlpack_check(um_ndarray *array) {
    um_dl_dtype dtype;
    int64_t shape[UM_MAX_NDIM], strides[UM_MAX_NDIM];
    if (describe_dtype(array->descr, &dtype) < 0) {
        return -1;
    }
    return describe_dims(array, shape, strides);
}

/* --- the capsule ------------------------------------------------------------------------------------------------ */

static void free_export(dl_export *record) {
    um_block_unref(record->block);
    free(record);
}

static void delete_legacy(um_dl_managed *managed) { free_export(managed->context); }
static void delete_versioned(um_dl_managed_versioned *managed) { free_export(managed->context); }

/* Runs the deleter if nobody took the tensor out: consumers rename the capsule when they do. */
static void capsule_destroy(PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, UM_DL_NAME_VERSIONED)) {
        um_dl_managed_versioned *managed = PyCapsule_GetPointer(capsule, UM_DL_NAME_VERSIONED);
        managed->deleter(managed);
    } else if (PyCapsule_IsValid(capsule, UM_DL_NAME)) {
        um_dl_managed *managed = PyCapsule_GetPointer(capsule, UM_DL_NAME);
        managed->deleter(managed);
    }
}

static PyObject *make_capsule(um_ndarray *array, bool writeable, const dl_request *request, um_dl_device target,
                              bool copied) {
    if (!writeable && !request->versioned) {
        PyErr_SetString(PyExc_BufferError, "the array is read-only, which only DLPack 1.0 and later can say: ask with "
                                           "max_version=(1, 0), or copy() the array first");
        return NULL;
    }
    size_t ndim = (size_t)array->ndim;
    dl_export *record = calloc(1, sizeof(dl_export) + 2 * ndim * sizeof(int64_t));
    if (record == NULL) {
        return PyErr_NoMemory();
    }
    um_dl_tensor tensor = {
        .device = target, .ndim = array->ndim, .shape = record->dims, .strides = record->dims + ndim};
    if (describe_dtype(array->descr, &tensor.dtype) < 0 || describe_dims(array, tensor.shape, tensor.strides) < 0) {
        free(record);
        return NULL;
    }
    tensor.data = um_ndarray_size(array) == 0 ? NULL : array->data;
    record->block = um_block_ref(array->block);

    const char *name;
    if (request->versioned) {
        uint64_t flags = (writeable ? 0 : UM_DL_FLAG_READ_ONLY) | (copied ? UM_DL_FLAG_IS_COPIED : 0);
        record->managed.versioned = (um_dl_managed_versioned){
            .version = {.major = UM_DL_MAJOR, .minor = request->minor},
            .context = record,
            .deleter = delete_versioned,
            .flags = flags,
            .tensor = tensor,
        };
        name = UM_DL_NAME_VERSIONED;
    } else {
        record->managed.legacy = (um_dl_managed){.tensor = tensor, .context = record, .deleter = delete_legacy};
        name = UM_DL_NAME;
    }
    PyObject *capsule = PyCapsule_New(&record->managed, name, capsule_destroy);
    if (capsule == NULL) {
        free_export(record);
    }
    return capsule;
}

/* --- ordering --------------------------------------------------------------------------------------------------- */

/* Hands the block to a GPU library. A consumer that asked for no synchronisation orders its work itself. */
static int hand_to_gpu(um_state *state, um_block *block, const dl_request *request, int device) {
    um_context *ctx = um_block_context(block);
    um_stream *consumer = NULL;
    um_wait wait = UM_WAIT_NONE;
    um_error err;
    um_status status = UM_OK;
    if (!request->stream_unordered) {
        status = um_stream_get(ctx, device, request->stream, &consumer, &err);
    }
    if (status == UM_OK) {
        Py_BEGIN_ALLOW_THREADS
        status = um_device_export(block, consumer, &wait, &err);
        Py_END_ALLOW_THREADS
        um_stream_unref(consumer);
    }
    if (status != UM_OK) {
        um_raise(state, &err);
        return -1;
    }
    if (request->stream_unordered) {
        um_wait_drop(&wait);
        return 0;
    }
    return um_finish_wait(state, &wait);
}

static int prepare(um_state *state, um_ndarray *array, bool writeable, const dl_request *request, um_dl_device target) {
    um_error err;
    if (target.type == UM_DL_CUDA) {
        return hand_to_gpu(state, array->block, request, target.id);
    }
    /* Marked before the wait: work that another thread launches meanwhile is complete when its launch returns. */
    um_host_view_forever(array->block, writeable);
    if (target.type == UM_DL_CUDA_MANAGED && um_device_mark(array->block, &err) != UM_OK) {
        um_raise(state, &err);
        return -1;
    }
    return um_ndarray_host_access(state, array);
}

PyObject *um_dlpack_export(um_state *state, um_ndarray *array, um_location fixed, PyObject *const *args,
                           Py_ssize_t nargs, PyObject *kwnames) {
    dl_request request;
    um_dl_device target = {0};
    bool cuda = um_context_is_cuda(um_block_context(array->block));
    if (parse_request(args, nargs, kwnames, &request) < 0 ||
        choose_target(&request, fixed, cuda, um_block_device(array->block), &target) < 0) {
        return NULL;
    }
    bool copied = request.copy_given && request.copy;
    if (copied) {
        um_dl_dtype dtype;
        if (describe_dtype(array->descr, &dtype) < 0) {
            return NULL;
        }
        array = um_ndarray_duplicate(state, array, um_block_device(array->block));
        if (array == NULL) {
            return NULL;
        }
    } else {
        Py_INCREF(array);
    }
    bool writeable = um_ndarray_is_writeable(array);
    PyObject *capsule = make_capsule(array, writeable, &request, target, copied);
    if (capsule != NULL && prepare(state, array, writeable, &request, target) < 0) {
        Py_CLEAR(capsule);
    }
    Py_DECREF(array);
    return capsule;
}

PyObject *um_dlpack_device(um_ndarray *array, um_location fixed) {
    bool cuda = um_context_is_cuda(um_block_context(array->block));
    if (!cuda || um_location_is_host(fixed)) {
        return Py_BuildValue("(ii)", UM_DL_CPU, 0);
    }
    return Py_BuildValue("(ii)", UM_DL_CUDA,
                         fixed.kind == UM_LOCATION_DEVICE ? fixed.id : um_block_device(array->block));
}

PyObject *um_ndarray_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    um_location any = {.kind = UM_LOCATION_NONE, .id = 0};
    return um_dlpack_export(um_state_of(self), (um_ndarray *)self, any, args, nargs, kwnames);
}

PyObject *um_ndarray_dlpack_device(PyObject *self, PyObject *unused) {
    (void)unused;
    return um_dlpack_device((um_ndarray *)self, (um_location){.kind = UM_LOCATION_NONE, .id = 0});
}
