/* The type umem.ndarray: its life, its attributes, and the table of its parts. */
#include "py/um_ndarray.h"

#include <structmember.h>

#include "core/um_transfer.h" /* UM_MAX_NDIM */

/* Blocks from this size on are allocated and freed with the GIL released: the driver takes a millisecond and more for them. */
#define LARGE_BLOCK ((size_t)1 << 20)

#define SPARE_ARRAYS 64 /* dead arrays whose structs are kept for reuse */

/* --- creation ------------------------------------------------------------------------------------------------------------ */

/* Strides of a new array. As in NumPy, those of an array with no elements are 0. */
static void fill_strides(int ndim, const npy_intp *shape, npy_intp itemsize, char order, npy_intp *strides) {
    npy_intp step = itemsize;
    for (int axis = 0; axis < ndim; axis++) {
        step = shape[axis] != 0 ? step : 0;
    }
    for (int i = 0; i < ndim; i++) {
        int axis = order == 'F' ? i : ndim - 1 - i;
        strides[axis] = step;
        step *= shape[axis];
    }
}

/* Room for shape and strides; 0, or -1 with MemoryError set. */
static int make_room(um_ndarray *array, int ndim) {
    array->ndim = ndim;
    array->shape = array->inline_dims;
    if (ndim > UM_INLINE_NDIM) {
        array->shape = PyMem_New(npy_intp, 2 * (size_t)ndim);
        if (array->shape == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    array->strides = array->shape + ndim;
    return 0;
}

/* A struct to fill, of those that are kept if there is one. */
static um_ndarray *allocate_array(um_state *state) {
    um_ndarray *array = state->spare_arrays;
    if (array == NULL) {
        return PyObject_GC_New(um_ndarray, state->ndarray_type);
    }
    state->spare_arrays = (um_ndarray *)array->base;
    state->spare_count--;
    return (um_ndarray *)PyObject_Init((PyObject *)array, state->ndarray_type);
}

static void free_array(PyTypeObject *type, um_ndarray *array) {
#ifndef Py_GIL_DISABLED
    /* At the end of the interpreter the collector may have taken the type's module away. */
    PyObject *module = ((PyHeapTypeObject *)type)->ht_module;
    um_state *state = module != NULL ? um_state_of_module(module) : NULL;
    if (state != NULL && state->spare_count < SPARE_ARRAYS) {
        array->base = (PyObject *)state->spare_arrays;
        state->spare_arrays = array;
        state->spare_count++;
        return;
    }
#else
    (void)type;
#endif
    PyObject_GC_Del(array);
}

void um_ndarray_free_spares(um_state *state) {
    while (state->spare_arrays != NULL) {
        um_ndarray *array = state->spare_arrays;
        state->spare_arrays = (um_ndarray *)array->base;
        PyObject_GC_Del(array);
    }
}

um_ndarray *um_ndarray_new(um_state *state, um_block *block, char *data, PyArray_Descr *descr, int ndim,
                           const npy_intp *shape, const npy_intp *strides, bool writeable, PyObject *base) {
    um_ndarray *array = allocate_array(state);
    if (array == NULL) {
        um_block_unref(block);
        Py_DECREF(descr);
        return NULL;
    }
    array->block = block;
    array->data = data;
    array->descr = descr;
    array->base = Py_XNewRef(base);
    array->weakrefs = NULL;
    atomic_init(&array->writeable, writeable);
    array->may_write = writeable;
    array->owns_data = false;
    array->cuda_interface = NULL;
    if (make_room(array, ndim) < 0) {
        array->shape = array->inline_dims;
        Py_DECREF(array);
        return NULL;
    }
    um_copy_dims(array->shape, shape, ndim);
    if (strides != NULL) {
        um_copy_dims(array->strides, strides, ndim);
    } else {
        fill_strides(ndim, shape, PyDataType_ELSIZE(descr), 'C', array->strides);
    }
    if (um_ndarray_size(array) == 0) {
        array->data = um_block_ptr(block);
    }
    PyObject_GC_Track((PyObject *)array);
    return array;
}

PyObject *um_ndarray_root(um_state *state, um_ndarray *array) {
    return array->base != NULL && um_ndarray_check(state, array->base) ? array->base : (PyObject *)array;
}

um_ndarray *um_ndarray_view(um_state *state, um_ndarray *array, char *data, int ndim, const npy_intp *shape,
                            const npy_intp *strides) {
    Py_INCREF(array->descr);
    return um_ndarray_new(state, um_block_ref(array->block), data, array->descr, ndim, shape, strides,
                          um_ndarray_is_writeable(array), um_ndarray_root(state, array));
}

int um_check_dtype(PyArray_Descr *descr) {
    if (PyDataType_FLAGCHK(descr, NPY_ITEM_REFCOUNT) || PyDataType_FLAGCHK(descr, NPY_ITEM_IS_POINTER) ||
        descr->type_num == NPY_VSTRING) {
        PyErr_Format(
            PyExc_TypeError,
            "umem arrays cannot hold Python objects or strings of variable width (dtype %S): their items are pointers into "
            "the interpreter's own memory. Convert to a numeric or fixed-width dtype first, or keep them in a NumPy array",
            descr);
        return -1;
    }
    return 0;
}

/* What a new array looks like after NumPy's rules for dtypes have been applied. */
typedef struct layout {
    PyArray_Descr *descr; /* owned */
    int ndim;
    npy_intp shape[UM_MAX_NDIM];
    size_t nbytes;
} layout;

static int too_many_dimensions(int ndim) {
    PyErr_Format(PyExc_ValueError, "maximum supported dimension for an ndarray is currently %d, found %d", UM_MAX_NDIM,
                 ndim);
    return -1;
}

/* A dtype with a shape of its own, such as '(2,3)f4', adds its axes to the array's. */
static int expand_subarray(layout *out) {
    while (PyDataType_HASSUBARRAY(out->descr)) {
        PyArray_ArrayDescr *sub = PyDataType_SUBARRAY(out->descr);
        if (PyTuple_Check(sub->shape)) {
            for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sub->shape); i++) {
                if (out->ndim == UM_MAX_NDIM) {
                    return too_many_dimensions(UM_MAX_NDIM + 1);
                }
                npy_intp length = PyNumber_AsSsize_t(PyTuple_GET_ITEM(sub->shape, i), PyExc_OverflowError);
                if (length == -1 && PyErr_Occurred()) {
                    return -1;
                }
                out->shape[out->ndim++] = length;
            }
        }
        PyArray_Descr *element = sub->base;
        Py_INCREF(element);
        Py_SETREF(out->descr, element);
    }
    return 0;
}

/* 'S' and 'U' without a length mean one character, as in NumPy. */
static int give_width(layout *out) {
    if (PyDataType_ELSIZE(out->descr) != 0 || !PyTypeNum_ISSTRING(out->descr->type_num)) {
        return 0;
    }
    PyArray_Descr *sized = PyArray_DescrNew(out->descr);
    if (sized == NULL) {
        return -1;
    }
    PyDataType_SET_ELSIZE(sized, sized->type_num == NPY_UNICODE ? 4 : 1);
    Py_SETREF(out->descr, sized);
    return 0;
}

static int measure(layout *out) {
    size_t nbytes = (size_t)PyDataType_ELSIZE(out->descr);
    bool empty = false;
    for (int axis = 0; axis < out->ndim; axis++) {
        npy_intp length = out->shape[axis];
        if (length < 0) {
            PyErr_SetString(PyExc_ValueError, "negative dimensions are not allowed");
            return -1;
        }
        if (length == 0) {
            empty = true;
        } else if (__builtin_mul_overflow(nbytes, (size_t)length, &nbytes) || nbytes > (size_t)PY_SSIZE_T_MAX) {
            PyErr_SetString(
                PyExc_ValueError,
                "array is too big; `arr.size * arr.dtype.itemsize` is larger than the maximum possible size.");
            return -1;
        }
    }
    out->nbytes = empty ? 0 : nbytes;
    return 0;
}

/* Fills *out; takes over a reference to `descr` in any case (out->descr). */
static int plan_layout(PyArray_Descr *descr, int ndim, const npy_intp *shape, layout *out) {
    out->descr = descr;
    if (ndim > UM_MAX_NDIM) {
        return too_many_dimensions(ndim);
    }
    out->ndim = ndim;
    um_copy_dims(out->shape, shape, ndim);
    bool ok = expand_subarray(out) == 0 && um_check_dtype(out->descr) == 0 && give_width(out) == 0 && measure(out) == 0;
    return ok ? 0 : -1;
}

static um_status allocate(um_context *context, size_t size, int device, um_location home, um_block **out,
                          um_error *err) {
    if (size < LARGE_BLOCK) {
        return um_block_new(context, size, device, home, out, err);
    }
    um_status status;
    Py_BEGIN_ALLOW_THREADS
    status = um_block_new(context, size, device, home, out, err);
    Py_END_ALLOW_THREADS
    return status;
}

/* Memory for an array; -1 with an exception set. */
static int allocate_or_raise(um_state *state, um_context *context, size_t size, int device, um_location home,
                             um_block **out) {
    um_error err;
    unsigned tries = 0;
    int again = 0;
    um_status status;
    do {
        status = allocate(context, size, device, home, out, &err);
        again = status == UM_ERR_OUT_OF_MEMORY ? um_make_room(state, context, size, device, &tries) : 0;
    } while (again > 0);
    if (status != UM_OK && again == 0) {
        um_raise(state, &err);
    }
    return status == UM_OK ? 0 : -1;
}

um_ndarray *um_ndarray_empty(um_state *state, PyArray_Descr *descr, int ndim, const npy_intp *shape, char order,
                             int device, um_location home) {
    layout plan;
    um_context *context;
    if (plan_layout(descr, ndim, shape, &plan) < 0 || (context = um_state_context(state)) == NULL) {
        Py_DECREF(plan.descr);
        return NULL;
    }
    um_block *block = NULL;
    if (allocate_or_raise(state, context, plan.nbytes, device, home, &block) < 0) {
        Py_DECREF(plan.descr);
        return NULL;
    }
    um_ndarray *array =
        um_ndarray_new(state, block, um_block_ptr(block), plan.descr, plan.ndim, plan.shape, NULL, true, NULL);
    if (array == NULL) {
        return NULL;
    }
    array->owns_data = true;
    if (order == 'F') {
        fill_strides(array->ndim, array->shape, PyDataType_ELSIZE(array->descr), 'F', array->strides);
    }
    return array;
}

static PyObject *ndarray_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args;
    (void)kwargs;
    return PyErr_Format(PyExc_TypeError, "%s is not made by calling it: use umem.empty, umem.zeros or umem.array",
                        type->tp_name);
}

/* --- end ---------------------------------------------------------------------------------------------------------------------- */

static int ndarray_traverse(PyObject *self, visitproc visit, void *arg) {
    um_ndarray *array = (um_ndarray *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(array->descr);
    Py_VISIT(array->base);
    return 0;
}

static int ndarray_clear(PyObject *self) {
    Py_CLEAR(((um_ndarray *)self)->base);
    return 0;
}

/* Frees what a large block holds without the GIL. A view never is the last user of a block: the array it is a view of lives. */
static void release_block(um_ndarray *array) {
    bool is_view = array->base != NULL && Py_IS_TYPE(array->base, Py_TYPE(array));
    um_block *block = array->block;
    if (is_view || um_block_size(block) < LARGE_BLOCK) {
        um_block_unref(block);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    um_block_unref(block);
    Py_END_ALLOW_THREADS
}

static void ndarray_dealloc(PyObject *self) {
    um_ndarray *array = (um_ndarray *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
#ifndef Py_GIL_DISABLED /* without the GIL the list may be read by its own functions only */
    if (array->weakrefs != NULL)
#endif
    {
        PyObject_ClearWeakRefs(self);
    }
    release_block(array);
    Py_XDECREF(array->cuda_interface);
    Py_XDECREF(array->base);
    Py_DECREF(array->descr);
    if (array->shape != array->inline_dims) {
        PyMem_Free(array->shape);
    }
    free_array(type, array);
    Py_DECREF(type);
}

/* --- measures ------------------------------------------------------------------------------------------------------------------ */

npy_intp um_ndarray_size(const um_ndarray *array) {
    npy_intp size = 1;
    for (int axis = 0; axis < array->ndim; axis++) {
        size *= array->shape[axis];
    }
    return size;
}

npy_intp um_ndarray_nbytes(const um_ndarray *array) { return um_ndarray_size(array) * PyDataType_ELSIZE(array->descr); }

/* Whether strides are what an array packed in C ('C') or Fortran ('F') order has. An axis of length 1 may have any, and so may an array
 * with no elements. */
static bool is_contiguous(const um_ndarray *array, char order) {
    npy_intp expected = PyDataType_ELSIZE(array->descr);
    bool packed = true;
    for (int i = 0; i < array->ndim; i++) {
        int axis = order == 'F' ? i : array->ndim - 1 - i;
        npy_intp length = array->shape[axis];
        if (length == 0) {
            return true;
        }
        if (length != 1) {
            packed = packed && array->strides[axis] == expected;
            expected *= length;
        }
    }
    return packed;
}

bool um_ndarray_is_c_contiguous(const um_ndarray *array) { return is_contiguous(array, 'C'); }

bool um_ndarray_is_f_contiguous(const um_ndarray *array) { return is_contiguous(array, 'F'); }

bool um_ndarray_is_aligned(const um_ndarray *array) {
    npy_intp alignment = PyDataType_ALIGNMENT(array->descr);
    if (alignment <= 1) {
        return true;
    }
    uintptr_t bits = (uintptr_t)array->data;
    for (int axis = 0; axis < array->ndim; axis++) {
        if (array->shape[axis] == 0) {
            return true;
        }
        if (array->shape[axis] > 1) {
            bits |= (uintptr_t)array->strides[axis];
        }
    }
    return (bits & ((uintptr_t)alignment - 1)) == 0;
}

void um_ndarray_extent(const um_ndarray *array, size_t *offset, size_t *size) {
    *offset = 0;
    *size = 0;
    npy_intp itemsize = PyDataType_ELSIZE(array->descr);
    if (itemsize == 0 || um_ndarray_size(array) == 0) {
        return;
    }
    const char *low = array->data;
    const char *high = array->data + itemsize;
    for (int axis = 0; axis < array->ndim; axis++) {
        npy_intp span = (array->shape[axis] - 1) * array->strides[axis];
        if (span < 0) {
            low += span;
        } else {
            high += span;
        }
    }
    *offset = (size_t)(low - um_block_ptr(array->block));
    *size = (size_t)(high - low);
}

/* --- attributes ---------------------------------------------------------------------------------------------------------------- */

PyObject *um_tuple_of_dims(int count, const npy_intp *dims) {
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple != NULL && i < count; i++) {
        PyObject *value = PyLong_FromSsize_t(dims[i]);
        if (value == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, value);
    }
    return tuple;
}

static PyObject *get_shape(PyObject *self, void *closure) {
    (void)closure;
    um_ndarray *array = (um_ndarray *)self;
    return um_tuple_of_dims(array->ndim, array->shape);
}

static PyObject *get_strides(PyObject *self, void *closure) {
    (void)closure;
    um_ndarray *array = (um_ndarray *)self;
    return um_tuple_of_dims(array->ndim, array->strides);
}

static PyObject *get_dtype(PyObject *self, void *closure) {
    (void)closure;
    return Py_NewRef((PyObject *)((um_ndarray *)self)->descr);
}

/* Setter of what is fixed; `closure` says what to use instead. */
static int refuse_change(PyObject *self, PyObject *value, void *closure) {
    (void)self;
    (void)value;
    PyErr_SetString(PyExc_AttributeError, (const char *)closure);
    return -1;
}

static PyObject *get_ndim(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromLong(((um_ndarray *)self)->ndim);
}

static PyObject *get_size(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromSsize_t(um_ndarray_size((um_ndarray *)self));
}

static PyObject *get_nbytes(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromSsize_t(um_ndarray_nbytes((um_ndarray *)self));
}

static PyObject *get_itemsize(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromSsize_t(PyDataType_ELSIZE(((um_ndarray *)self)->descr));
}

static PyObject *get_base(PyObject *self, void *closure) {
    (void)closure;
    PyObject *base = ((um_ndarray *)self)->base;
    return Py_NewRef(base != NULL ? base : Py_None);
}

static PyObject *get_device(PyObject *self, void *closure) {
    (void)closure;
    um_block *block = ((um_ndarray *)self)->block;
    um_location device = {UM_LOCATION_HOST, 0};
    if (um_context_is_cuda(um_block_context(block))) {
        device = (um_location){UM_LOCATION_DEVICE, um_block_device(block)};
    }
    return um_location_to_python(device);
}

#define FIXED(what, instead) (void *)"the " what " of a umem array cannot be changed: " instead

static PyGetSetDef ndarray_getset[] = {
    {"shape", get_shape, refuse_change, "Length of each axis.", FIXED("shape", "use a.reshape(...)")},
    {"dtype", get_dtype, refuse_change, "NumPy data type of the elements.",
     FIXED("dtype", "use a.view(dtype) or a.astype(dtype)")},
    {"strides", get_strides, refuse_change, "Bytes from one element to the next along each axis.",
     FIXED("strides", "index the array or use a.transpose(...)")},
    {"ndim", get_ndim, NULL, "Number of axes.", NULL},
    {"size", get_size, NULL, "Number of elements.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of all elements.", NULL},
    {"itemsize", get_itemsize, NULL, "Bytes of one element.", NULL},
    {"T", um_ndarray_get_T, NULL, "View with the axes in reverse order.", NULL},
    {"base", get_base, NULL, "The object whose memory this array is a view of, or None.", NULL},
    {"flags", um_ndarray_get_flags, NULL, "Memory layout, as the flags of a NumPy array.", NULL},
    {"device", get_device, NULL, "The GPU the array belongs to, such as 'cuda:0'; 'cpu' where no GPU is used.", NULL},
    {"home", um_ndarray_get_home, um_ndarray_set_home,
     "Where the array's pages prefer to live: 'cpu', 'cuda:0', 'numa:0', or None for no preference.", NULL},
    {"__array_interface__", um_ndarray_get_array_interface, NULL, "NumPy's array interface, version 3.", NULL},
    {"__array_struct__", um_ndarray_get_array_struct, NULL, "NumPy's array interface as a C structure.", NULL},
    {"__cuda_array_interface__", um_ndarray_get_cuda_array_interface, NULL, "CUDA array interface, version 3.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* --- methods --------------------------------------------------------------------------------------------------------------------- */

static PyObject *ndarray_numpy(PyObject *self, PyObject *unused) {
    (void)unused;
    return um_ndarray_to_numpy(um_state_of(self), (um_ndarray *)self);
}

static PyObject *ndarray_read(PyObject *self, PyObject *unused) {
    (void)unused;
    return um_ndarray_read(um_state_of(self), (um_ndarray *)self);
}

PyDoc_STRVAR(numpy_doc, "numpy($self, /)\n"
                        "--\n"
                        "\n"
                        "A NumPy array over the same memory, once the GPU's work on it is done.\n"
                        "\n"
                        "While it lives, GPU work of umem that writes the memory completes before it returns.");
PyDoc_STRVAR(read_doc,
             "read($self, /)\n"
             "--\n"
             "\n"
             "A NumPy copy of the elements in C order. No page of the array moves: what is on the GPU stays there.");
PyDoc_STRVAR(fill_doc, "fill($self, value, /)\n"
                       "--\n"
                       "\n"
                       "Set every element to `value`, which is converted to the array's dtype.");
PyDoc_STRVAR(
    item_doc,
    "item($self, /, *index)\n"
    "--\n"
    "\n"
    "One element as a Python object. `index` is nothing for an array of size 1, a position in C order, or one\n"
    "index per axis. Only the bytes of the element are read.");
PyDoc_STRVAR(complex_doc, "__complex__($self, /)\n--\n\n");
PyDoc_STRVAR(dlpack_doc, "__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)\n"
                         "--\n"
                         "\n"
                         "The array as a DLPack capsule. Raises BufferError where DLPack cannot describe it.");
PyDoc_STRVAR(dlpack_device_doc, "__dlpack_device__($self, /)\n"
                                "--\n"
                                "\n"
                                "(device type, device number) as DLPack counts them.");
PyDoc_STRVAR(on_doc,
             "on($self, where, /)\n"
             "--\n"
             "\n"
             "A light view that always says 'cpu' or 'cuda' to other libraries, for those that cannot ask for one.");
PyDoc_STRVAR(prefetch_doc, "prefetch($self, /, where)\n"
                           "--\n"
                           "\n"
                           "Start moving the array's pages to `where`.");
PyDoc_STRVAR(advise_doc, "advise($self, /, advice, where=None)\n"
                         "--\n"
                         "\n"
                         "Tell the driver how the array will be used.");
PyDoc_STRVAR(discard_doc,
             "discard($self, /)\n"
             "--\n"
             "\n"
             "Declare the contents worthless: moving the array afterwards costs nothing. Reading it before writing it\n"
             "gives undefined values.");

static PyMethodDef ndarray_methods[] = {
    {"numpy", ndarray_numpy, METH_NOARGS, numpy_doc},
    {"read", ndarray_read, METH_NOARGS, read_doc},
    {"fill", um_ndarray_fill, METH_O, fill_doc},
    {"item", UM_METHOD(um_ndarray_item), METH_FASTCALL, item_doc},
    {"__complex__", um_ndarray_complex, METH_NOARGS, complex_doc},
    {"__dlpack__", UM_METHOD(um_ndarray_dlpack), METH_FASTCALL | METH_KEYWORDS, dlpack_doc},
    {"__dlpack_device__", um_ndarray_dlpack_device, METH_NOARGS, dlpack_device_doc},
    {"on", um_ndarray_on, METH_O, on_doc},
    {"prefetch", UM_METHOD(um_ndarray_prefetch), METH_FASTCALL | METH_KEYWORDS, prefetch_doc},
    {"advise", UM_METHOD(um_ndarray_advise), METH_FASTCALL | METH_KEYWORDS, advise_doc},
    {"discard", um_ndarray_discard, METH_NOARGS, discard_doc},
    {NULL, NULL, 0, NULL},
};

static Py_ssize_t ndarray_length(PyObject *self) {
    um_ndarray *array = (um_ndarray *)self;
    if (array->ndim == 0) {
        PyErr_SetString(PyExc_TypeError, "len() of unsized object");
        return -1;
    }
    return array->shape[0];
}

static PyObject *ndarray_iter(PyObject *self) {
    if (((um_ndarray *)self)->ndim == 0) {
        PyErr_SetString(PyExc_TypeError, "iteration over a 0-d array");
        return NULL;
    }
    return PySeqIter_New(self);
}

/* --- the type ----------------------------------------------------------------------------------------------------------------------- */

static PyMemberDef ndarray_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(um_ndarray, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(
    ndarray_doc,
    "An array in memory that the CPU and the GPUs share at one address.\n"
    "\n"
    "It is made by umem.empty, umem.zeros, umem.array and the like, and does what a NumPy array does for the same\n"
    "call. Shape, dtype and strides never change.");

static PyType_Slot ndarray_slots[] = {
    {Py_tp_doc, (void *)ndarray_doc},
    {Py_tp_new, (void *)ndarray_tp_new},
    {Py_tp_dealloc, (void *)ndarray_dealloc},
    {Py_tp_traverse, (void *)ndarray_traverse},
    {Py_tp_clear, (void *)ndarray_clear},
    {Py_tp_hash, (void *)PyObject_HashNotImplemented},
    {Py_tp_iter, (void *)ndarray_iter},
    {Py_tp_methods, ndarray_methods},
    {Py_tp_getset, ndarray_getset},
    {Py_tp_members, ndarray_members},
    {Py_nb_bool, (void *)um_ndarray_bool},
    {Py_nb_int, (void *)um_ndarray_int},
    {Py_nb_float, (void *)um_ndarray_float},
    {Py_nb_index, (void *)um_ndarray_index},
    {Py_mp_length, (void *)ndarray_length},
    {Py_mp_subscript, (void *)um_ndarray_subscript},
    {Py_mp_ass_subscript, (void *)um_ndarray_ass_subscript},
    {Py_sq_length, (void *)ndarray_length},
    {Py_sq_item, (void *)um_ndarray_sq_item},
    {Py_sq_contains, (void *)um_ndarray_sq_contains},
    {Py_bf_getbuffer, (void *)um_ndarray_getbuffer},
    {Py_bf_releasebuffer, (void *)um_ndarray_releasebuffer},
    {0, NULL},
};

/* Not immutable: umem/_methods.py adds the methods that are written in Python. */
static PyType_Spec ndarray_spec = {
    .name = "umem.ndarray",
    .basicsize = sizeof(um_ndarray),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = ndarray_slots,
};

/* Adds the methods that another file lists. */
static int add_methods(PyTypeObject *type, PyMethodDef *methods) {
    for (PyMethodDef *method = methods; method->ml_name != NULL; method++) {
        PyObject *descriptor = PyDescr_NewMethod(type, method);
        if (descriptor == NULL) {
            return -1;
        }
        int result = PyObject_SetAttrString((PyObject *)type, method->ml_name, descriptor);
        Py_DECREF(descriptor);
        if (result < 0) {
            return -1;
        }
    }
    return 0;
}

int um_ndarray_add(PyObject *module, um_state *state) {
    state->ndarray_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &ndarray_spec, NULL);
    if (state->ndarray_type == NULL || add_methods(state->ndarray_type, um_ndarray_shape_methods) < 0 ||
        um_flags_add(module, state) < 0) {
        return -1;
    }
    return PyModule_AddType(module, state->ndarray_type);
}
