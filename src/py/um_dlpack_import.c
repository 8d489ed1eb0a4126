/* umem.from_dlpack: taking an array from another library, without a copy where the memory is managed.
 *
 * A capsule's content becomes ours when we rename the capsule; from then on the deleter is called exactly once,
 * whatever fails.
 */
#include "py/um_exchange.h"

#include "py/um_dlpack.h"

#include <stdlib.h>

/* A tensor we took out of its capsule. */
typedef struct dl_import {
    um_dl_managed *legacy; /* one of the two is NULL */
    um_dl_managed_versioned *versioned;
} dl_import;

/* What the caller of from_dlpack wants. */
typedef struct dl_wish {
    int device;      /* ordinal that must own the array, -1: any */
    int copy;        /* -1: when needed, 0: never, 1: always */
    bool share_only; /* None instead of a copy, or of an error about what the exporter cannot do */
} dl_wish;

/* --- ownership -------------------------------------------------------------------------------------------------- */

static void call_deleter(dl_import *import) {
    if (import->versioned != NULL && import->versioned->deleter != NULL) {
        import->versioned->deleter(import->versioned);
    }
    if (import->legacy != NULL && import->legacy->deleter != NULL) {
        import->legacy->deleter(import->legacy);
    }
    *import = (dl_import){0};
}

/* A deleter may run code of Python's; it must neither see nor disturb an exception that is on its way. The GIL is
 * held. */
static void drop_import(dl_import *import) {
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *raised = PyErr_GetRaisedException();
    call_deleter(import);
    PyErr_SetRaisedException(raised);
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    call_deleter(import);
    PyErr_Restore(type, value, traceback);
#endif
}

/* um_owner's release. Deleters of Python extensions take the GIL themselves, which cannot be had any more at the
 * very end. */
static void release_import(void *object) {
    dl_import *import = object;
    if (um_python_is_alive()) {
        if (PyGILState_Check()) {
            drop_import(import);
        } else {
            call_deleter(import);
        }
    }
    free(import);
}

/* Takes the tensor out of the capsule. -1 with an exception set, and the capsule as it was. In a critical section on the capsule: an exporter
 * may give one to two threads. */
static int take_tensor(PyObject *capsule, dl_import *out) {
    dl_import import = {0};
    const char *used;
    if (PyCapsule_IsValid(capsule, UM_DL_NAME_VERSIONED)) {
        import.versioned = PyCapsule_GetPointer(capsule, UM_DL_NAME_VERSIONED);
        used = UM_DL_NAME_VERSIONED_USED;
    } else if (PyCapsule_IsValid(capsule, UM_DL_NAME)) {
        import.legacy = PyCapsule_GetPointer(capsule, UM_DL_NAME);
        used = UM_DL_NAME_USED;
    } else {
        const char *name = PyCapsule_GetName(capsule);
        if (PyErr_Occurred()) {
            return -1;
        }
        PyErr_Format(PyExc_ValueError,
                     "__dlpack__() returned a capsule named \"%.100s\", not one that holds a DLPack tensor",
                     name == NULL ? "" : name);
        return -1;
    }
    if (PyCapsule_SetName(capsule, used) < 0) {
        return -1;
    }
    *out = import;
    return 0;
}

static int open_capsule(PyObject *capsule, dl_import *out) {
    if (!PyCapsule_CheckExact(capsule)) {
        PyErr_Format(PyExc_TypeError, "__dlpack__() returned %.200s, not a capsule", Py_TYPE(capsule)->tp_name);
        return -1;
    }
    int result;
    Py_BEGIN_CRITICAL_SECTION(capsule);
    result = take_tensor(capsule, out);
    Py_END_CRITICAL_SECTION();
    return result;
}

/* --- asking the exporter ---------------------------------------------------------------------------------------- */

/* x.__dlpack_device__() */
static int query_device(PyObject *x, um_dl_device *out) {
    PyObject *answer = PyObject_CallMethod(x, "__dlpack_device__", NULL);
    if (answer == NULL) {
        return -1;
    }
    int64_t pair[2] = {0, 0};
    bool good = PyTuple_Check(answer) && PyTuple_GET_SIZE(answer) == 2;
    for (Py_ssize_t i = 0; good && i < 2; i++) {
        PyObject *number = PyNumber_Index(PyTuple_GET_ITEM(answer, i));
        if (number == NULL) {
            if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
                Py_DECREF(answer);
                return -1;
            }
            PyErr_Clear();
            good = false;
            break;
        }
        int overflow;
        pair[i] = PyLong_AsLongLongAndOverflow(number, &overflow);
        good = overflow == 0 && pair[i] >= INT32_MIN && pair[i] <= INT32_MAX;
        Py_DECREF(number);
    }
    Py_DECREF(answer);
    if (!good) {
        PyErr_SetString(PyExc_TypeError,
                        "__dlpack_device__() must return a tuple of two ints, (device type, device id)");
        return -1;
    }
    *out = (um_dl_device){.type = (int32_t)pair[0], .id = (int32_t)pair[1]};
    return 0;
}

/* Whether umem can take memory of this kind: 0, or -1 with BufferError. */
static int check_device(um_context *ctx, um_dl_device device) {
    bool gpu = device.type == UM_DL_CUDA || device.type == UM_DL_CUDA_MANAGED;
    bool host = device.type == UM_DL_CPU || device.type == UM_DL_CUDA_HOST || device.type == UM_DL_ROCM_HOST;
    if (host || (device.type == UM_DL_CUDA_MANAGED && !um_context_is_cuda(ctx))) {
        return 0;
    }
    if (!gpu) {
        PyErr_Format(PyExc_BufferError,
                     "DLPack device type %d is not one that umem can take: CPU (1), CUDA (2), page-locked (3, 11) or "
                     "managed memory (13)",
                     (int)device.type);
        return -1;
    }
    if (!um_context_is_cuda(ctx)) {
        PyErr_Format(PyExc_BufferError, "the array is on CUDA device %d, and umem runs without a GPU: %s",
                     (int)device.id, um_context_reason(ctx));
        return -1;
    }
    int count = um_context_backend(ctx)->device_count;
    if (device.id < 0 || device.id >= count) {
        PyErr_Format(PyExc_BufferError, "the array is said to be on CUDA device %d, but there are %d, numbered from 0",
                     (int)device.id, count);
        return -1;
    }
    return 0;
}

/* x.__dlpack__(**kwargs) for what is not NULL. */
static PyObject *call_dlpack(PyObject *x, PyObject *stream, PyObject *max_version) {
    PyObject *method = PyObject_GetAttrString(x, "__dlpack__");
    PyObject *kwargs = method == NULL ? NULL : PyDict_New();
    PyObject *capsule = NULL;
    if (kwargs != NULL && (stream == NULL || PyDict_SetItemString(kwargs, "stream", stream) == 0) &&
        (max_version == NULL || PyDict_SetItemString(kwargs, "max_version", max_version) == 0)) {
        capsule = PyObject_VectorcallDict(method, NULL, 0, kwargs);
    }
    Py_XDECREF(kwargs);
    Py_XDECREF(method);
    return capsule;
}

/* The stream that x has to order its work before: ours. New reference. */
static PyObject *consumer_stream(um_state *state, int device) {
    um_stream *stream = um_current_stream(state, device);
    if (stream == NULL) {
        return NULL;
    }
    um_stream_handle handle = um_stream_get_handle(stream);
    um_stream_unref(stream);
    return PyLong_FromUnsignedLongLong(handle == 0 ? UM_STREAM_LEGACY : handle);
}

static PyObject *request_capsule(um_state *state, um_context *ctx, PyObject *x, um_dl_device device) {
    PyObject *stream = NULL;
    /* Exporters of managed memory that are host libraries take no stream (NumPy). */
    if (device.type == UM_DL_CUDA && um_context_is_cuda(ctx)) {
        stream = consumer_stream(state, device.id);
        if (stream == NULL) {
            return NULL;
        }
    }
    PyObject *capsule = NULL;
    PyObject *max_version = Py_BuildValue("(ii)", UM_DL_MAJOR, UM_DL_MINOR);
    if (max_version != NULL) {
        capsule = call_dlpack(x, stream, max_version);
        if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear(); /* exporters older than DLPack 1.0 do not know max_version */
            capsule = call_dlpack(x, stream, NULL);
        }
        Py_DECREF(max_version);
    }
    Py_XDECREF(stream);
    return capsule;
}

/* --- understanding the tensor ----------------------------------------------------------------------------------- */

static PyArray_Descr *bfloat16_descr(void) {
    PyObject *module = PyImport_ImportModule("ml_dtypes");
    if (module == NULL) {
        if (PyErr_ExceptionMatches(PyExc_ImportError)) {
            PyErr_SetString(PyExc_BufferError,
                            "the array is bfloat16, which NumPy knows only through the package ml_dtypes: install it");
        }
        return NULL;
    }
    PyArray_Descr *descr = NULL;
    PyObject *type = PyObject_GetAttrString(module, "bfloat16");
    Py_DECREF(module);
    if (type != NULL && PyArray_DescrConverter(type, &descr) != NPY_SUCCEED) {
        descr = NULL;
    }
    Py_XDECREF(type);
    return descr;
}

/* NumPy's type number, or -1. */
static int find_type_num(um_dl_dtype dtype) {
    static const struct {
        uint8_t code, bits;
        int type_num;
    } types[] = {
        {UM_DL_BOOL, 8, NPY_BOOL},          {UM_DL_INT, 8, NPY_INT8},
        {UM_DL_INT, 16, NPY_INT16},         {UM_DL_INT, 32, NPY_INT32},
        {UM_DL_INT, 64, NPY_INT64},         {UM_DL_UINT, 8, NPY_UINT8},
        {UM_DL_UINT, 16, NPY_UINT16},       {UM_DL_UINT, 32, NPY_UINT32},
        {UM_DL_UINT, 64, NPY_UINT64},       {UM_DL_FLOAT, 16, NPY_FLOAT16},
        {UM_DL_FLOAT, 32, NPY_FLOAT32},     {UM_DL_FLOAT, 64, NPY_FLOAT64},
        {UM_DL_COMPLEX, 64, NPY_COMPLEX64}, {UM_DL_COMPLEX, 128, NPY_COMPLEX128},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (types[i].code == dtype.code && types[i].bits == dtype.bits) {
            return types[i].type_num;
        }
    }
    return -1;
}

/* New reference; NULL with BufferError set. */
static PyArray_Descr *read_dtype(um_dl_dtype dtype) {
    static const char *const names[] = {
        "int",
        "uint",
        "float",
        "opaque handle",
        "bfloat",
        "complex",
        "bool",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float6_e2m3fn",
        "float6_e3m2fn",
        "float4_e2m1fn",
    };
    if (dtype.lanes != 1) {
        PyErr_Format(PyExc_BufferError, "the array has vector elements of %d lanes, which NumPy has no dtype for",
                     (int)dtype.lanes);
        return NULL;
    }
    if (dtype.code == UM_DL_BFLOAT && dtype.bits == 16) {
        return bfloat16_descr();
    }
    int type_num = find_type_num(dtype);
    if (type_num >= 0) {
        return PyArray_DescrFromType(type_num);
    }
    PyErr_Format(PyExc_BufferError, "umem has no dtype for DLPack's type code %d (%s) of %d bits", (int)dtype.code,
                 dtype.code < sizeof names / sizeof names[0] ? names[dtype.code] : "unknown", (int)dtype.bits);
    return NULL;
}

static int read_dims(const um_dl_tensor *tensor, um_foreign *foreign) {
    if (tensor->ndim < 0 || tensor->ndim > UM_MAX_NDIM) {
        PyErr_Format(PyExc_BufferError, "the array has %d dimensions; 0 to %d are possible", (int)tensor->ndim,
                     UM_MAX_NDIM);
        return -1;
    }
    if (tensor->ndim > 0 && tensor->shape == NULL) {
        PyErr_SetString(PyExc_BufferError, "the array has dimensions but no shape");
        return -1;
    }
    npy_intp itemsize = PyDataType_ELSIZE(foreign->descr);
    bool empty = false;
    foreign->ndim = tensor->ndim;
    for (int i = 0; i < foreign->ndim; i++) {
        foreign->shape[i] = (npy_intp)tensor->shape[i];
        empty = empty || foreign->shape[i] == 0;
    }
    if (tensor->strides == NULL || empty) {
        um_fill_c_strides(foreign->ndim, foreign->shape, itemsize, foreign->strides);
        return 0;
    }
    for (int i = 0; i < foreign->ndim; i++) {
        if (__builtin_mul_overflow(tensor->strides[i], itemsize, &foreign->strides[i])) {
            PyErr_Format(PyExc_BufferError, "the stride of axis %d is too large", i);
            return -1;
        }
    }
    return 0;
}

/* Fills *foreign, with a new reference in its descr; -1 with BufferError set. */
static int read_tensor(const dl_import *import, um_context *ctx, um_foreign *foreign) {
    if (import->versioned != NULL && import->versioned->version.major != UM_DL_MAJOR) {
        PyErr_Format(
            PyExc_BufferError, "the array comes as DLPack %u.%u; umem understands version %d and the form before it",
            (unsigned)import->versioned->version.major, (unsigned)import->versioned->version.minor, UM_DL_MAJOR);
        return -1;
    }
    const um_dl_tensor *tensor = import->versioned != NULL ? &import->versioned->tensor : &import->legacy->tensor;
    bool read_only = import->versioned != NULL && (import->versioned->flags & UM_DL_FLAG_READ_ONLY) != 0;
    if (check_device(ctx, tensor->device) < 0) {
        return -1;
    }
    PyArray_Descr *descr = read_dtype(tensor->dtype);
    if (descr == NULL) {
        return -1;
    }
    foreign->descr = descr;
    foreign->writeable = !read_only;
    foreign->from_gpu = tensor->device.type == UM_DL_CUDA || tensor->device.type == UM_DL_CUDA_MANAGED;
    foreign->from_host = tensor->device.type != UM_DL_CUDA;
    uintptr_t data;
    if (__builtin_add_overflow((uintptr_t)tensor->data, tensor->byte_offset, &data)) {
        PyErr_SetString(PyExc_BufferError, "the byte offset reaches past the end of the address space");
        goto fail;
    }
    foreign->data = tensor->data == NULL ? NULL : (char *)data;
    if (read_dims(tensor, foreign) < 0 || um_foreign_measure(foreign) < 0) {
        goto fail;
    }
    return 0;
fail:
    Py_DECREF(descr);
    return -1;
}

/* --- the result ------------------------------------------------------------------------------------------------- */

static PyObject *refuse_copy(void) {
    PyErr_SetString(PyExc_ValueError, "the array's memory cannot be shared as asked, and copy=False forbids a copy");
    return NULL;
}

static PyObject *share_or_copy(um_state *state, const um_foreign *foreign, um_memory *memory, um_owner *owner,
                               const dl_wish *wish) {
    um_context *ctx = um_state_context(state);
    bool cuda = um_context_is_cuda(ctx);
    bool shareable = memory->kind == UM_MEMORY_OURS || memory->kind == UM_MEMORY_MANAGED;
    if (cuda && wish->device >= 0 && wish->device != memory->device) {
        shareable = false;
    }
    if (wish->share_only && !shareable) {
        Py_RETURN_NONE;
    }
    if (wish->copy == 0 && !shareable) {
        return refuse_copy();
    }
    /* Exporters of managed memory were given no stream, so they have ordered their work before the legacy default
     * stream. */
    if (cuda && foreign->from_gpu && foreign->from_host &&
        um_follow_stream(state, memory->device, UM_STREAM_LEGACY) < 0) {
        return NULL;
    }
    if (shareable && wish->copy != 1) {
        return (PyObject *)um_foreign_share(state, foreign, memory, owner);
    }
    return (PyObject *)um_foreign_copy(state, foreign, memory, owner,
                                       wish->device >= 0 ? wish->device : memory->device);
}

/* No elements, so nothing to share and nothing to copy. */
static PyObject *make_empty(um_state *state, const um_foreign *foreign, const dl_wish *wish) {
    um_location anywhere = {.kind = UM_LOCATION_NONE, .id = 0};
    Py_INCREF(foreign->descr);
    um_ndarray *array = um_ndarray_empty(state, foreign->descr, foreign->ndim, foreign->shape, 'C',
                                         wish->device >= 0 ? wish->device : 0, anywhere);
    if (array != NULL) {
        um_ndarray_set_writeable(array, foreign->writeable || wish->copy == 1);
    }
    return (PyObject *)array;
}

/* Makes the array. Afterwards *import is empty: its deleter was called, or the array's block will call it. */
static PyObject *finish_import(um_state *state, um_context *ctx, dl_import *import, const dl_wish *wish) {
    PyObject *result = NULL;
    um_foreign foreign;
    um_memory memory = {0};
    dl_import *kept = NULL;
    if (read_tensor(import, ctx, &foreign) < 0) {
        goto drop;
    }
    if (foreign.empty) {
        result = make_empty(state, &foreign, wish);
        goto done;
    }
    if (um_foreign_locate(state, &foreign, &memory) < 0) {
        goto done;
    }
    kept = malloc(sizeof *kept);
    if (kept == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    *kept = *import;
    um_owner owner = {.release = release_import, .object = kept};
    result = share_or_copy(state, &foreign, &memory, &owner, wish);
    if (owner.object == NULL) {
        kept = NULL; /* the block's now */
        *import = (dl_import){0};
    }
done:
    free(kept);
    if (memory.block != NULL) {
        um_block_unref(memory.block);
    }
    Py_DECREF(foreign.descr);
drop:
    drop_import(import);
    return result;
}

/* x has said that it is on `device`, which was checked. */
static PyObject *import_array(um_state *state, um_context *ctx, PyObject *x, um_dl_device device, const dl_wish *wish) {
    PyObject *capsule = request_capsule(state, ctx, x, device);
    if (capsule == NULL) {
        return NULL;
    }
    dl_import import;
    PyObject *result = open_capsule(capsule, &import) < 0 ? NULL : finish_import(state, ctx, &import, wish);
    Py_DECREF(capsule);
    return result;
}

PyObject *um_dlpack_alias(um_state *state, PyObject *x) {
    dl_wish wish = {.device = -1, .copy = -1, .share_only = true};
    um_context *ctx = um_state_context(state);
    um_dl_device device;
    if (ctx == NULL || query_device(x, &device) < 0) {
        return NULL;
    }
    PyObject *result = check_device(ctx, device) < 0 ? NULL : import_array(state, ctx, x, device, &wish);
    if (result == NULL && PyErr_ExceptionMatches(PyExc_BufferError)) {
        PyErr_Clear(); /* how exporters say that DLPack is no way to this array; there may be others */
        Py_RETURN_NONE;
    }
    return result;
}

/* --- from_dlpack ------------------------------------------------------------------------------------------------ */

/* umem's own arrays need no capsule, but are refused what a capsule would refuse. */
static PyObject *import_own(um_state *state, um_ndarray *array, const dl_wish *wish) {
    if (wish->copy != 1 && um_dlpack_check(array) < 0) {
        return NULL;
    }
    bool cuda = um_context_is_cuda(um_block_context(array->block));
    int owner = um_block_device(array->block);
    bool moves = cuda && wish->device >= 0 && wish->device != owner;
    if (moves && wish->copy == 0) {
        return refuse_copy();
    }
    if (moves || wish->copy == 1) {
        return (PyObject *)um_ndarray_duplicate(state, array, moves ? wish->device : owner);
    }
    Py_INCREF(array->descr);
    return (PyObject *)um_ndarray_new(state, um_block_ref(array->block), array->data, array->descr, array->ndim,
                                      array->shape, array->strides, um_ndarray_is_writeable(array), (PyObject *)array);
}

/* `device=` names who must be able to use the array. Managed memory serves the CPU and any GPU, so that only one GPU
 * by number is a wish; "cuda" from an object that keeps no number (torch.device) is `default_device`. */
static int parse_wish(um_state *state, bool cuda, PyObject *device, PyObject *copy, int default_device, dl_wish *out) {
    um_location where;
    *out = (dl_wish){.device = -1, .copy = -1};
    if (um_parse_location(state, device, "device", default_device, true, &where) < 0) {
        return -1;
    }
    bool any_gpu = PyUnicode_Check(device) && PyUnicode_CompareWithASCIIString(device, "cuda") == 0;
    if (cuda && where.kind == UM_LOCATION_DEVICE && !any_gpu) {
        out->device = where.id;
    }
    if (copy != Py_None) {
        out->copy = PyObject_IsTrue(copy);
        if (out->copy < 0) {
            return -1;
        }
    }
    return 0;
}

static int check_exporter(PyObject *x) {
    static const char *const methods[] = {"__dlpack__", "__dlpack_device__"};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        PyObject *method;
        if (um_optional_attribute(x, methods[i], &method) < 0) {
            return -1;
        }
        if (method == NULL) {
            PyErr_Format(PyExc_TypeError, "x must be an array with __dlpack__ and __dlpack_device__; %.200s has no %s",
                         Py_TYPE(x)->tp_name, methods[i]);
            return -1;
        }
        Py_DECREF(method);
    }
    return 0;
}

PyObject *um_from_dlpack(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"", "device", "copy", NULL};
    um_state *state = um_state_of_module(module);
    PyObject *x, *device = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OO:from_dlpack", names, &x, &device, &copy)) {
        return NULL;
    }
    um_context *ctx = um_state_context(state);
    if (ctx == NULL) {
        return NULL;
    }
    dl_wish wish;
    bool cuda = um_context_is_cuda(ctx);
    um_ndarray *own = um_array_behind(state, x);
    if (own != NULL) {
        int wished = parse_wish(state, cuda, device, copy, um_block_device(own->block), &wish);
        return wished < 0 ? NULL : import_own(state, own, &wish);
    }
    um_dl_device says;
    if (check_exporter(x) < 0 || query_device(x, &says) < 0 || check_device(ctx, says) < 0) {
        return NULL;
    }
    bool gpu = says.type == UM_DL_CUDA || says.type == UM_DL_CUDA_MANAGED;
    if (parse_wish(state, cuda, device, copy, cuda && gpu ? says.id : 0, &wish) < 0) {
        return NULL;
    }
    return import_array(state, ctx, x, says, &wish);
}
