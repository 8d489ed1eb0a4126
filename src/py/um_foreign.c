/* Arrays in memory that may be anybody's: whose it is, whether it may be shared, and how it is copied.
 *
 * What another library says about its memory is checked before a byte is read: elements have to lie inside the block
 * or the driver's allocation they start in, and host memory has to be readable page for page.
 */
#include "py/um_exchange.h"

#include "core/um_residency.h" /* um_page_size */
#include "py/um_run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

/* --- small things ----------------------------------------------------------------------------------------------- */

bool um_python_is_alive(void) {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsInitialized() && !Py_IsFinalizing();
#else
    return Py_IsInitialized() && !_Py_IsFinalizing();
#endif
}

int um_optional_attribute(PyObject *object, const char *name, PyObject **out) {
    *out = PyObject_GetAttrString(object, name);
    if (*out != NULL) {
        return 0;
    }
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

void um_fill_c_strides(int ndim, const npy_intp *shape, npy_intp itemsize, npy_intp *strides) {
    size_t stride = (size_t)itemsize; /* wraps only for shapes that um_foreign_measure refuses, and for empty ones */
    for (int i = ndim - 1; i >= 0; i--) {
        strides[i] = (npy_intp)stride;
        stride *= shape[i] > 0 ? (size_t)shape[i] : 1;
    }
}

/* --- other libraries' streams ----------------------------------------------------------------------------------- */

static um_status wait_for_stream(um_backend *backend, um_stream *waiter, um_stream_handle handle, um_error *err) {
    int device = um_stream_device(waiter);
    int owner = device;
    unsigned long long id;
    um_event_handle event;
    um_status status = UM_OK;
    if (handle != UM_STREAM_LEGACY && handle != UM_STREAM_PER_THREAD) {
        status = backend->ops->stream_info(backend, handle, &owner, &id, err);
    }
    if (status == UM_OK) {
        owner = owner < 0 ? device : owner;
        status = backend->ops->event_create(backend, owner, &event, err);
    }
    if (status != UM_OK) {
        return status;
    }
    status = backend->ops->event_record(backend, owner, event, handle, err);
    if (status == UM_OK) {
        status = backend->ops->stream_wait_event(backend, device, um_stream_get_handle(waiter), event, err);
    }
    backend->ops->event_destroy(backend, owner, event); /* the wait stays */
    return status;
}

int um_follow_stream(um_state *state, int device, um_stream_handle handle) {
    um_stream *current = um_current_stream(state, device);
    if (current == NULL) {
        return -1;
    }
    um_stream_handle own = um_stream_get_handle(current);
    um_error err;
    um_status status = UM_OK;
    if ((own == 0 ? UM_STREAM_LEGACY : own) != handle) {
        um_backend *backend = um_context_backend(um_state_context(state));
        Py_BEGIN_ALLOW_THREADS
        status = wait_for_stream(backend, current, handle, &err);
        Py_END_ALLOW_THREADS
    }
    um_stream_unref(current);
    if (status != UM_OK) {
        um_raise(state, &err);
        return -1;
    }
    return 0;
}

/* --- extent ----------------------------------------------------------------------------------------------------- */

int um_foreign_measure(um_foreign *foreign) {
    npy_intp nbytes = PyDataType_ELSIZE(foreign->descr);
    npy_intp below = 0,
             above = nbytes; /* bytes from the first element down to the lowest, and up to the end of the highest */
    bool overflow = false;
    foreign->empty = nbytes == 0;
    for (int i = 0; i < foreign->ndim; i++) {
        if (foreign->shape[i] < 0) {
            PyErr_Format(PyExc_BufferError, "axis %d has the negative length %zd", i, (Py_ssize_t)foreign->shape[i]);
            return -1;
        }
        foreign->empty = foreign->empty || foreign->shape[i] == 0;
    }
    if (foreign->empty) {
        return 0;
    }
    for (int i = 0; i < foreign->ndim; i++) {
        npy_intp span;
        overflow |= __builtin_mul_overflow(nbytes, foreign->shape[i], &nbytes);
        overflow |= __builtin_mul_overflow(foreign->shape[i] - 1, foreign->strides[i], &span);
        if (span < 0) {
            overflow |= __builtin_sub_overflow(below, span, &below);
        } else {
            overflow |= __builtin_add_overflow(above, span, &above);
        }
        if (overflow) {
            PyErr_SetString(PyExc_BufferError, "shape and strides describe more bytes than there are addresses");
            return -1;
        }
    }
    if (foreign->data == NULL) {
        PyErr_SetString(PyExc_BufferError, "the data pointer is NULL, but the array has elements");
        return -1;
    }
    uintptr_t first = (uintptr_t)foreign->data;
    uintptr_t end;
    if (first < (uintptr_t)below || __builtin_add_overflow(first, (uintptr_t)above, &end)) {
        PyErr_SetString(PyExc_BufferError, "shape and strides reach past the ends of the address space");
        return -1;
    }
    foreign->low = foreign->data - below;
    foreign->extent = (size_t)below + (size_t)above;
    foreign->nbytes = (size_t)nbytes;
    return 0;
}

/* --- whose memory ----------------------------------------------------------------------------------------------- */

static int refuse_outside(const char *what) {
    PyErr_Format(PyExc_BufferError, "shape and strides reach outside the %s that the data pointer is in", what);
    return -1;
}

/* 1 and *out set when the elements lie in a live block, 0 when they lie in none, -1 when only some do. */
static int find_block(um_context *ctx, const um_foreign *foreign, um_memory *out) {
    um_block *block = um_block_find(ctx, foreign->low, foreign->extent);
    if (block != NULL) {
        *out = (um_memory){.kind = UM_MEMORY_OURS, .device = um_block_device(block), .block = block};
        return 1;
    }
    const char *probes[] = {foreign->data, foreign->low, foreign->low + foreign->extent - 1};
    for (size_t i = 0; i < sizeof probes / sizeof probes[0]; i++) {
        block = um_block_find(ctx, probes[i], 1);
        if (block != NULL) {
            bool owned = um_block_is_owned(block);
            um_block_unref(block);
            if (owned) {
                return refuse_outside("umem block");
            }
        }
    }
    return 0;
}

/* What the driver says about [low, low + extent), which may span several allocations that were mapped side by side. */
static um_status ask_driver(um_backend *backend, const um_foreign *foreign, um_pointer_info *out, bool *whole,
                            um_error *err) {
    const char *end = foreign->low + foreign->extent;
    um_status status = backend->ops->pointer_info(backend, foreign->low, out, err);
    *whole = true;
    if (status == UM_OK && !out->known && foreign->data != foreign->low) {
        /* Strides that go back may leave the managed memory that the first element is in. */
        um_pointer_info first = {0};
        status = backend->ops->pointer_info(backend, foreign->data, &first, err);
        *whole = status != UM_OK || !first.known || !first.managed;
    }
    if (status != UM_OK || !out->known) {
        return status;
    }
    const char *covered = out->base + out->size;
    while (covered < end) {
        um_pointer_info next = {0};
        status = backend->ops->pointer_info(backend, covered, &next, err);
        if (status != UM_OK) {
            return status;
        }
        bool alike = next.known && next.managed == out->managed && next.host == out->host && next.device == out->device;
        if (!alike || next.base + next.size <= covered) {
            *whole = false;
            return UM_OK;
        }
        covered = next.base + next.size;
    }
    return UM_OK;
}

int um_foreign_locate(um_state *state, const um_foreign *foreign, um_memory *out) {
    um_context *ctx = um_state_context(state);
    if (ctx == NULL) {
        return -1;
    }
    int found = find_block(ctx, foreign, out);
    if (found != 0) {
        return found < 0 ? -1 : 0;
    }
    um_backend *backend = um_context_backend(ctx);
    um_pointer_info info = {0};
    if (backend->ops->pointer_info != NULL) {
        um_error err;
        um_status status;
        bool whole = true;
        Py_BEGIN_ALLOW_THREADS
        status = um_context_check(ctx, &err);
        if (status == UM_OK) {
            status = ask_driver(backend, foreign, &info, &whole, &err);
        }
        Py_END_ALLOW_THREADS
        if (status != UM_OK) {
            um_raise(state, &err);
            return -1;
        }
        if (!whole) {
            return refuse_outside("allocation");
        }
    }
    if (!info.known) {
        if (foreign->from_gpu && !foreign->from_host) {
            PyErr_Format(PyExc_BufferError, "the driver does not know the memory at %p, which is said to be a GPU's",
                         (void *)foreign->low);
            return -1;
        }
        *out = (um_memory){.kind = UM_MEMORY_HOST, .device = 0, .block = NULL};
        return 0;
    }
    um_memory_kind kind = info.managed ? UM_MEMORY_MANAGED : info.host ? UM_MEMORY_HOST : UM_MEMORY_DEVICE;
    if (kind == UM_MEMORY_DEVICE && foreign->from_host) {
        /* Managed pools may not say that they are managed. If this is the GPU's after all, reading it is refused
         * later. */
        kind = UM_MEMORY_HOST;
    }
    *out = (um_memory){.kind = kind, .device = info.device > 0 ? info.device : 0, .vouched = info.host, .block = NULL};
    return 0;
}

/* --- sharing ---------------------------------------------------------------------------------------------------- */

/* Tells the coherence rules who else touches the memory, for as long as it lives: when that ends cannot be seen. */
static int note_exporter(um_state *state, const um_foreign *foreign, um_block *block) {
    um_error err;
    if (foreign->from_gpu && um_block_is_owned(block) && um_device_mark(block, &err) != UM_OK) {
        um_raise(state, &err);
        return -1;
    }
    if (foreign->from_host) {
        um_host_view_forever(block, foreign->writeable);
    }
    return 0;
}

um_ndarray *um_foreign_share(um_state *state, const um_foreign *foreign, um_memory *memory, um_owner *owner) {
    um_block *block = memory->block;
    if (memory->kind == UM_MEMORY_OURS) {
        memory->block = NULL;
    } else {
        um_error err;
        if (um_block_wrap(um_state_context(state), foreign->low, foreign->extent, memory->device, owner->release,
                          owner->object, &block, &err) != UM_OK) {
            um_raise(state, &err);
            return NULL;
        }
        owner->object = NULL;
    }
    if (note_exporter(state, foreign, block) < 0) {
        um_block_unref(block);
        return NULL;
    }
    Py_INCREF(foreign->descr);
    return um_ndarray_new(state, block, foreign->data, foreign->descr, foreign->ndim, foreign->shape, foreign->strides,
                          foreign->writeable, NULL);
}

/* --- copying one umem array to another -------------------------------------------------------------------------- */

static bool kernel_can_copy(npy_intp itemsize) {
    return itemsize == 1 || itemsize == 2 || itemsize == 4 || itemsize == 8 || itemsize == 16;
}

static void to_int64(int ndim, const npy_intp *from, int64_t *to) {
    for (int i = 0; i < ndim; i++) {
        to[i] = from[i];
    }
}

static int copy_by_kernel(um_state *state, um_ndarray *source, um_ndarray *copy) {
    um_launch_site site;
    if (um_launch_prepare(state, um_block_device(copy->block), &site) < 0) {
        return -1;
    }
    int64_t shape[UM_MAX_NDIM], source_strides[UM_MAX_NDIM], copy_strides[UM_MAX_NDIM];
    to_int64(source->ndim, source->shape, shape);
    to_int64(source->ndim, source->strides, source_strides);
    to_int64(source->ndim, copy->strides, copy_strides);
    um_operand in = {.block = source->block, .data = source->data, .strides = source_strides};
    um_operand out = {.block = copy->block, .data = copy->data, .strides = copy_strides};
    size_t itemsize = (size_t)PyDataType_ELSIZE(source->descr);
    um_wait wait = UM_WAIT_NONE;
    um_error err;
    um_status status;
    um_launch_begin(state, &site);
    status =
        um_kernel_copy(site.ctx, site.stream, source->ndim, shape, itemsize, &in, &out, site.deferred, &wait, &err);
    return um_launch_finish(state, &site, status, &wait, &err);
}

static int copy_by_host(um_state *state, um_ndarray *source, um_ndarray *copy) {
    PyObject *elements = um_ndarray_read(state, source);
    if (elements == NULL) {
        return -1;
    }
    int result = um_ndarray_host_access(state, copy);
    if (result == 0) {
        const void *bytes = PyArray_DATA((PyArrayObject *)elements);
        size_t nbytes = (size_t)um_ndarray_nbytes(copy);
        um_turn turn;
        um_turn_device(state, um_block_context(copy->block), &turn);
        memcpy(copy->data, bytes, nbytes);
        um_turn_end(&turn);
    }
    Py_DECREF(elements);
    return result;
}

um_ndarray *um_ndarray_duplicate(um_state *state, um_ndarray *source, int device) {
    um_location anywhere = {.kind = UM_LOCATION_NONE, .id = 0};
    Py_INCREF(source->descr);
    um_ndarray *copy = um_ndarray_empty(state, source->descr, source->ndim, source->shape, 'C', device, anywhere);
    if (copy == NULL || um_ndarray_nbytes(copy) == 0) {
        return copy;
    }
    bool kernel =
        um_context_is_cuda(um_block_context(copy->block)) && kernel_can_copy(PyDataType_ELSIZE(source->descr));
    int result = kernel ? copy_by_kernel(state, source, copy) : copy_by_host(state, source, copy);
    if (result < 0) {
        Py_CLEAR(copy);
    }
    return copy;
}

/* --- copying host memory ---------------------------------------------------------------------------------------- */

/* Whether every page of [low, low + size) is mapped: all that can be learnt where process_vm_readv is not allowed. */
static bool range_is_mapped(const char *low, size_t size) {
    size_t page = um_page_size();
    uintptr_t start = (uintptr_t)low & ~(uintptr_t)(page - 1);
    uintptr_t end = (uintptr_t)low + size;
    unsigned char states[1024];
    while (start < end) {
        size_t left = (end - start + page - 1) / page;
        size_t count = left < sizeof states ? left : sizeof states;
        if (mincore((void *)start, count * page, states) != 0 && errno == ENOMEM) {
            return false;
        }
        start += count * page;
    }
    return true;
}

/* Whether [low, low + size) lies in readable mappings of devices. The kernel does not read those for us (CUDA's
 * page-locked memory is one); memory files in /dev/shm it does read, up to their end. */
static bool range_is_device_mapping(const char *low, size_t size) {
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL) {
        return false;
    }
    uintptr_t next = (uintptr_t)low; /* everything before it is covered */
    uintptr_t end = next + size;
    char *line = NULL;
    size_t room = 0;
    while (next < end && getline(&line, &room, maps) > 0) {
        /* from-to, access, offset, device number, inode, path: only the path has a slash */
        char *rest;
        uintptr_t from = strtoul(line, &rest, 16);
        uintptr_t to = *rest == '-' ? strtoul(rest + 1, &rest, 16) : 0;
        if (to <= next) {
            continue;
        }
        bool readable = rest[0] == ' ' && rest[1] == 'r';
        const char *path = strchr(rest, '/');
        bool device = path != NULL && strncmp(path, "/dev/", 5) == 0 && strncmp(path, "/dev/shm/", 9) != 0;
        if (from > next || !readable || !device) {
            break;
        }
        next = to;
    }
    free(line);
    fclose(maps);
    return next >= end;
}

/* Whether every page of [low, low + size), size > 0, can be read: the kernel reads a byte of each for us and answers
 * with an error where we would get a signal. */
static bool range_is_readable(const char *low, size_t size) {
    enum { BATCH = 256 };
    struct iovec remote[BATCH];
    char bytes[BATCH];
    struct iovec local = {.iov_base = bytes};
    size_t page = um_page_size();
    uintptr_t next = (uintptr_t)low;
    uintptr_t end = next + size;
    while (next < end) {
        uintptr_t first = next;
        size_t count = 0;
        while (count < BATCH && next < end) {
            remote[count++] = (struct iovec){.iov_base = (void *)next, .iov_len = 1};
            next = (next & ~(uintptr_t)(page - 1)) + page;
        }
        local.iov_len = count;
        ssize_t got = process_vm_readv(getpid(), &local, 1, remote, count, 0);
        if (got == (ssize_t)count) {
            continue;
        }
        if (got < 0 && errno != EFAULT) {
            return range_is_mapped(low, size);
        }
        return range_is_device_mapping((const char *)first, end - first);
    }
    return true;
}

static um_ndarray *copy_host_memory(um_state *state, const um_foreign *foreign, bool vouched, int device) {
    bool readable = vouched;
    if (!readable) {
        Py_BEGIN_ALLOW_THREADS
        readable = range_is_readable(foreign->low, foreign->extent);
        Py_END_ALLOW_THREADS
    }
    if (!readable) {
        PyErr_Format(PyExc_BufferError, "%zu bytes at %p are said to be the array's, but not all of them can be read",
                     foreign->extent, (void *)foreign->low);
        return NULL;
    }
    um_location anywhere = {.kind = UM_LOCATION_NONE, .id = 0};
    Py_INCREF(foreign->descr);
    um_ndarray *copy = um_ndarray_empty(state, foreign->descr, foreign->ndim, foreign->shape, 'C', device, anywhere);
    if (copy == NULL) {
        return NULL;
    }
    PyArrayObject *target = NULL;
    PyObject *source = NULL;
    int result = -1;
    um_turn turn;
    um_turn_host(state, um_block_context(copy->block), &turn);
    if (um_ndarray_host_access(state, copy) < 0) {
        goto done;
    }
    target = um_ndarray_borrow_numpy(copy);
    if (target == NULL) {
        goto done;
    }
    Py_INCREF(foreign->descr);
    source = PyArray_NewFromDescr(&PyArray_Type, foreign->descr, foreign->ndim, foreign->shape, foreign->strides,
                                  foreign->data, 0, NULL);
    if (source != NULL) {
        result = PyArray_CopyInto(target, (PyArrayObject *)source);
    }
done:
    um_turn_end(&turn);
    Py_XDECREF(source);
    Py_XDECREF(target);
    if (result < 0) {
        Py_CLEAR(copy);
    }
    return copy;
}

/* --- copying device memory -------------------------------------------------------------------------------------- */

/* Whether the elements fill their extent without gap or overlap, in some order of the axes, all strides forward. */
static bool is_dense(const um_foreign *foreign) {
    npy_intp expected = PyDataType_ELSIZE(foreign->descr);
    bool used[UM_MAX_NDIM] = {false};
    for (int step = 0; step < foreign->ndim; step++) {
        int axis = -1;
        for (int i = 0; i < foreign->ndim && axis < 0; i++) {
            if (!used[i] && (foreign->shape[i] == 1 || foreign->strides[i] == expected)) {
                axis = i;
            }
        }
        if (axis < 0) {
            return false;
        }
        used[axis] = true;
        expected *= foreign->shape[axis];
    }
    return true;
}

/* Copies the extent byte for byte into `bytes`, in order on the stream of the memory's device, and waits. */
static um_status copy_extent(const um_foreign *foreign, um_stream *stream, um_ndarray *bytes, um_error *err) {
    um_backend *backend = um_context_backend(um_block_context(bytes->block));
    um_access access = {.block = bytes->block, .offset = 0, .size = foreign->extent, .write = true, .dense = true};
    um_status status = um_work_begin(stream, &access, 1, err);
    if (status != UM_OK) {
        return status;
    }
    status = backend->ops->copy(backend, um_stream_device(stream), bytes->data, foreign->low, foreign->extent,
                                um_stream_get_handle(stream), err);
    if (status != UM_OK) {
        um_work_failed(stream);
        return status;
    }
    um_wait wait = UM_WAIT_NONE;
    status = um_work_end(stream, &access, 1, true, &wait, err);
    if (status != UM_OK) {
        return status;
    }
    /* The memory is its owner's again as soon as we return: this wait is not given up, and leaves nothing to the second. */
    status = um_stream_synchronize(stream, false, err);
    um_status waited = um_wait_run(&wait, status == UM_OK ? err : NULL);
    return status == UM_OK ? waited : status;
}

/* The extent as an array of bytes in new memory. */
static um_ndarray *fetch_extent(um_state *state, const um_foreign *foreign, int source_device, int device) {
    um_location anywhere = {.kind = UM_LOCATION_NONE, .id = 0};
    npy_intp extent = (npy_intp)foreign->extent;
    um_stream *stream = um_current_stream(state, source_device);
    if (stream == NULL) {
        return NULL;
    }
    um_ndarray *bytes = um_ndarray_empty(state, PyArray_DescrFromType(NPY_UINT8), 1, &extent, 'C', device, anywhere);
    if (bytes != NULL) {
        um_error err;
        um_status status;
        um_turn turn;
        um_turn_device(state, um_block_context(bytes->block), &turn);
        status = copy_extent(foreign, stream, bytes, &err);
        um_turn_end(&turn);
        if (status != UM_OK) {
            um_raise(state, &err);
            Py_CLEAR(bytes);
        }
    }
    um_stream_unref(stream);
    return bytes;
}

static um_ndarray *copy_device_memory(um_state *state, const um_foreign *foreign, int source_device, int device) {
    um_ndarray *bytes = fetch_extent(state, foreign, source_device, device);
    if (bytes == NULL) {
        return NULL;
    }
    Py_INCREF(foreign->descr);
    um_ndarray *array = um_ndarray_new(state, um_block_ref(bytes->block), bytes->data + (foreign->data - foreign->low),
                                       foreign->descr, foreign->ndim, foreign->shape, foreign->strides, true, NULL);
    Py_DECREF(bytes);
    if (array == NULL || is_dense(foreign)) {
        return array;
    }
    um_ndarray *copy = um_ndarray_duplicate(state, array, device);
    Py_DECREF(array);
    return copy;
}

/* --- copying anything ------------------------------------------------------------------------------------------- */

um_ndarray *um_foreign_copy(um_state *state, const um_foreign *foreign, um_memory *memory, um_owner *owner,
                            int device) {
    if (memory->kind == UM_MEMORY_HOST) {
        return copy_host_memory(state, foreign, memory->vouched, device);
    }
    if (memory->kind == UM_MEMORY_DEVICE) {
        return copy_device_memory(state, foreign, memory->device, device);
    }
    um_ndarray *shared = um_foreign_share(state, foreign, memory, owner);
    if (shared == NULL) {
        return NULL;
    }
    um_ndarray *copy = um_ndarray_duplicate(state, shared, device);
    /* The memory may be its owner's again as soon as `shared` is gone. */
    if (copy != NULL && um_ndarray_host_access(state, copy) < 0) {
        Py_CLEAR(copy);
    }
    Py_DECREF(shared);
    return copy;
}
