/* The CUDA backend: opening and closing it, the devices and their primary contexts.
 *
 * umem uses the primary context of each device, the one PyTorch and CuPy use too. It is retained at the device's first
 * use and released by close. Every op makes it current for the call and puts the caller's back; when it is current
 * already, which is the common case, that costs one thread-local read in the driver.
 */
#define _GNU_SOURCE 1 /* pthread and getpid under -std=c11 */
#include "backend/um_backend_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/um_kernel_image.h"

/* CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, which cuda.h names from 12.2 on; an older driver answers INVALID_VALUE. */
#define ATTRIBUTE_HOST_NUMA_ID ((CUdevice_attribute)134)

/* --- contexts --------------------------------------------------------------------------------------------------- */

static um_status retain_context(um_cuda_backend *cuda, um_cuda_device *entry, CUcontext *out, um_error *err) {
    (void)pthread_mutex_lock(&cuda->lock);
    CUcontext context = atomic_load_explicit(&entry->context, memory_order_relaxed);
    um_status status = UM_OK;
    if (context == NULL) {
        status = UM_CUDA_CALL(cuda, err, primary_ctx_retain, &context, entry->handle);
        if (status == UM_OK) {
            atomic_store_explicit(&entry->context, context, memory_order_release);
        }
    }
    (void)pthread_mutex_unlock(&cuda->lock);
    if (status == UM_OK) {
        *out = context;
    }
    return status;
}

um_status um_cuda_enter(um_cuda_backend *cuda, int device, um_cuda_scope *scope, um_error *err) {
    if (device < 0 || device >= cuda->base.device_count) {
        return um_error_set(err, UM_ERR_VALUE, "there is no device cuda:%d; the last one is cuda:%d", device,
                            cuda->base.device_count - 1);
    }
    um_cuda_device *entry = &cuda->devices[device];
    CUcontext context = atomic_load_explicit(&entry->context, memory_order_acquire);
    if (context == NULL) {
        um_status status = retain_context(cuda, entry, &context, err);
        if (status != UM_OK) {
            return status;
        }
    }
    CUcontext current = NULL;
    um_status status = UM_CUDA_CALL(cuda, err, ctx_get_current, &current);
    if (status != UM_OK) {
        return status;
    }
    if (current != context) {
        status = UM_CUDA_CALL(cuda, err, ctx_push_current, context);
        if (status != UM_OK) {
            return status;
        }
    }
    scope->pushed = current != context;
    return UM_OK;
}

um_status um_cuda_enter_to_free(um_cuda_backend *cuda, int device, um_cuda_scope *scope, um_error *err) {
    um_status status = um_cuda_enter(cuda, device, scope, NULL);
    return status == UM_OK ? status : um_cuda_enter(cuda, device, scope, err);
}

um_status um_cuda_leave(const um_cuda_backend *cuda, um_cuda_scope scope, um_status status, um_error *err) {
    if (!scope.pushed) {
        return status;
    }
    CUcontext popped = NULL;
    um_status left = UM_CUDA_CALL(cuda, status == UM_OK ? err : NULL, ctx_pop_current, &popped);
    return status != UM_OK ? status : left;
}

int um_cuda_any_device(const um_cuda_backend *cuda) {
    for (int device = 0; device < cuda->base.device_count; ++device) {
        if (atomic_load_explicit(&cuda->devices[device].context, memory_order_relaxed) != NULL) {
            return device;
        }
    }
    return 0;
}

um_status um_cuda_own_stream(um_cuda_backend *cuda, int device, CUstream *out, um_error *err) {
    um_cuda_device *entry = &cuda->devices[device];
    CUstream stream = atomic_load_explicit(&entry->own_stream, memory_order_acquire);
    um_status status = UM_OK;
    if (stream == NULL) {
        (void)pthread_mutex_lock(&cuda->lock);
        stream = atomic_load_explicit(&entry->own_stream, memory_order_relaxed);
        if (stream == NULL) {
            status = UM_CUDA_CALL(cuda, err, stream_create, &stream, CU_STREAM_NON_BLOCKING);
            if (status == UM_OK) {
                atomic_store_explicit(&entry->own_stream, stream, memory_order_release);
            }
        }
        (void)pthread_mutex_unlock(&cuda->lock);
    }
    if (status == UM_OK) {
        *out = stream;
    }
    return status;
}

/* --- synchronising ---------------------------------------------------------------------------------------------- */

static um_status synchronize_ours(um_cuda_backend *cuda, int device, um_error *err) {
    um_cuda_scope scope;
    um_status status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    status = UM_CUDA_CALL(cuda, err, ctx_synchronize);
    return um_cuda_leave(cuda, scope, status, err);
}

/* A context that another library holds and umem does not. It stays that way: umem's hold ends with the call. */
static um_status synchronize_foreign(um_cuda_backend *cuda, CUdevice handle, um_error *err) {
    CUcontext context = NULL;
    um_status status = UM_CUDA_CALL(cuda, err, primary_ctx_retain, &context, handle);
    if (status != UM_OK) {
        return status;
    }
    status = UM_CUDA_CALL(cuda, err, ctx_push_current, context);
    if (status == UM_OK) {
        um_cuda_scope scope = {.pushed = true};
        status = UM_CUDA_CALL(cuda, err, ctx_synchronize);
        status = um_cuda_leave(cuda, scope, status, err);
    }
    um_status released = UM_CUDA_CALL(cuda, status == UM_OK ? err : NULL, primary_ctx_release, handle);
    return status != UM_OK ? status : released;
}

static um_status synchronize_device(um_cuda_backend *cuda, int device, um_error *err) {
    um_cuda_device *entry = &cuda->devices[device];
    if (atomic_load_explicit(&entry->context, memory_order_acquire) != NULL) {
        return synchronize_ours(cuda, device, err);
    }
    unsigned int flags = 0;
    int active = 0;
    um_status status = UM_CUDA_CALL(cuda, err, primary_ctx_get_state, entry->handle, &flags, &active);
    if (status == UM_OK && active != 0) {
        status = synchronize_foreign(cuda, entry->handle, err);
    }
    return status;
}

static bool in_use(um_backend *backend, int device) {
    return atomic_load_explicit(&um_cuda_of(backend)->devices[device].context, memory_order_acquire) != NULL;
}

/* A device that fails does not keep the others from being waited for; the first failure is the one reported. */
um_status um_cuda_synchronize(um_backend *backend, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_status first = UM_OK;
    for (int device = 0; device < cuda->base.device_count; ++device) {
        um_status status = synchronize_device(cuda, device, first == UM_OK ? err : NULL);
        if (first == UM_OK) {
            first = status;
        }
    }
    return first;
}

/* --- device information ----------------------------------------------------------------------------------------- */

static um_status get_attribute(const um_cuda_backend *cuda, CUdevice handle, CUdevice_attribute attribute, int *out,
                               um_error *err) {
    return UM_CUDA_CALL(cuda, err, device_get_attribute, out, attribute, handle);
}

static um_status get_attribute_bool(const um_cuda_backend *cuda, CUdevice handle, CUdevice_attribute attribute,
                                    bool *out, um_error *err) {
    int value = 0;
    um_status status = get_attribute(cuda, handle, attribute, &value, err);
    if (status == UM_OK) {
        *out = value != 0;
    }
    return status;
}

/* -1 when the driver cannot say. */
static int read_numa_node(const um_cuda_backend *cuda, CUdevice handle) {
    int node = -1;
    return cuda->driver->device_get_attribute(&node, ATTRIBUTE_HOST_NUMA_ID, handle) == CUDA_SUCCESS ? node : -1;
}

static void format_uuid(const CUuuid *uuid, char *out, size_t size) {
    unsigned char b[16];
    memcpy(b, uuid->bytes, sizeof(b));
    (void)snprintf(out, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
                   b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static um_status read_numbers(const um_cuda_backend *cuda, CUdevice handle, um_device_info *info, um_error *err) {
    const struct {
        CUdevice_attribute attribute;
        int *out;
    } numbers[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &info->compute_major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &info->compute_minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &info->multiprocessors},
        {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &info->l2_cache},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); ++i) {
        um_status status = get_attribute(cuda, handle, numbers[i].attribute, numbers[i].out, err);
        if (status != UM_OK) {
            return status;
        }
    }
    const struct {
        CUdevice_attribute attribute;
        bool *out;
    } answers[] = {
        {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, &info->managed_memory},
        {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, &info->concurrent_managed_access},
        {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, &info->pageable_memory_access},
        {CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, &info->host_native_atomics},
        {CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, &info->direct_host_access},
        {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, &info->memory_pools},
    };
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); ++i) {
        um_status status = get_attribute_bool(cuda, handle, answers[i].attribute, answers[i].out, err);
        if (status != UM_OK) {
            return status;
        }
    }
    return UM_OK;
}

um_status um_cuda_device_info(um_backend *backend, int device, um_device_info *out, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    if (device < 0 || device >= cuda->base.device_count) {
        return um_error_set(err, UM_ERR_VALUE, "there is no device cuda:%d; the last one is cuda:%d", device,
                            cuda->base.device_count - 1);
    }
    CUdevice handle = cuda->devices[device].handle;
    um_device_info info;
    memset(&info, 0, sizeof(info));
    um_status status = UM_CUDA_CALL(cuda, err, device_get_name, info.name, (int)sizeof(info.name), handle);
    if (status == UM_OK) {
        status = UM_CUDA_CALL(cuda, err, device_total_mem, &info.total_memory, handle);
    }
    if (status == UM_OK) {
        status = read_numbers(cuda, handle, &info, err);
    }
    if (status == UM_OK && cuda->driver->device_get_uuid != NULL) {
        CUuuid uuid;
        status = UM_CUDA_CALL(cuda, err, device_get_uuid, &uuid, handle);
        if (status == UM_OK) {
            format_uuid(&uuid, info.uuid, sizeof(info.uuid));
        }
    }
    if (status != UM_OK) {
        return status;
    }
    info.numa_node = read_numa_node(cuda, handle);
    *out = info;
    return UM_OK;
}

/* --- open and close --------------------------------------------------------------------------------------------- */

static um_status read_device(um_cuda_backend *cuda, int device, um_error *err) {
    um_cuda_device *entry = &cuda->devices[device];
    um_status status = UM_CUDA_CALL(cuda, err, device_get, &entry->handle, device);
    if (status == UM_OK) {
        status = get_attribute_bool(cuda, entry->handle, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, &entry->managed, err);
    }
    if (status == UM_OK) {
        status = get_attribute_bool(cuda, entry->handle, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
                                    &entry->concurrent, err);
    }
    if (status == UM_OK) {
        entry->numa_node = read_numa_node(cuda, entry->handle);
    }
    return status;
}

static um_status read_devices(um_cuda_backend *cuda, um_error *err) {
    bool managed = false;
    cuda->base.concurrent = true;
    for (int device = 0; device < cuda->base.device_count; ++device) {
        um_status status = read_device(cuda, device, err);
        if (status != UM_OK) {
            return status;
        }
        managed = managed || cuda->devices[device].managed;
        cuda->base.concurrent = cuda->base.concurrent && cuda->devices[device].concurrent;
    }
    if (!managed) {
        return um_error_set(err, UM_ERR_NO_DRIVER, "none of the %d CUDA devices has managed memory",
                            cuda->base.device_count);
    }
    return UM_OK;
}

static void free_memory(um_cuda_backend *cuda) {
    free(cuda->libraries);
    um_driver_close(cuda->driver);
    free(cuda);
}

static void free_backend(um_cuda_backend *cuda) {
    (void)pthread_mutex_destroy(&cuda->lock);
    free_memory(cuda);
}

static void release_device(um_cuda_backend *cuda, int device) {
    um_cuda_device *entry = &cuda->devices[device];
    if (atomic_load_explicit(&entry->context, memory_order_acquire) == NULL) {
        return;
    }
    CUstream stream = atomic_load_explicit(&entry->own_stream, memory_order_acquire);
    CUevent event = atomic_load_explicit(&entry->spare_event, memory_order_acquire);
    um_cuda_scope scope;
    if (stream != NULL &&
        um_cuda_enter_to_free(cuda, device, &scope, NULL) == UM_OK) { /* an event implies the stream */
        if (event != NULL) {
            (void)cuda->driver->event_destroy(event);
        }
        (void)cuda->driver->stream_destroy(stream);
        um_status left = um_cuda_leave(cuda, scope, UM_OK, NULL);
        (void)left;
    }
    (void)cuda->driver->primary_ctx_release(entry->handle);
}

/* Nobody is left to tell of a failure: at the end of a process the driver may be gone already (DEINITIALIZED). */
static void close_backend(um_backend *backend) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    if (cuda->owner != getpid()) {
        /* A forked child: the driver is the parent's, and the lock may be held by a thread that is not here. */
        free_memory(cuda);
        return;
    }
    for (int device = 0; device < cuda->base.device_count; ++device) {
        if (atomic_load_explicit(&cuda->devices[device].context, memory_order_acquire) != NULL) {
            um_status idle = synchronize_ours(cuda, device, NULL); /* a running kernel needs its code */
            (void)idle;
        }
    }
    um_cuda_unload_images(cuda);
    for (int device = 0; device < cuda->base.device_count; ++device) {
        release_device(cuda, device);
    }
    free_backend(cuda);
}

static const um_backend_ops cuda_ops = {
    .name = "cuda",
    .close = close_backend,
    .mem_alloc = um_cuda_mem_alloc,
    .mem_free = um_cuda_mem_free,
    .prefetch = um_cuda_prefetch,
    .advise = um_cuda_advise,
    .discard = um_cuda_discard,
    .device_info = um_cuda_device_info,
    .in_use = in_use,
    .synchronize = um_cuda_synchronize,
    .pointer_info = um_cuda_pointer_info,
    .stream_info = um_cuda_stream_info,
    .stream_create = um_cuda_stream_create,
    .stream_destroy = um_cuda_stream_destroy,
    .stream_query = um_cuda_stream_query,
    .stream_synchronize = um_cuda_stream_synchronize,
    .event_create = um_cuda_event_create,
    .event_destroy = um_cuda_event_destroy,
    .event_record = um_cuda_event_record,
    .event_query = um_cuda_event_query,
    .event_synchronize = um_cuda_event_synchronize,
    .stream_wait_event = um_cuda_stream_wait_event,
    .copy = um_cuda_copy,
    .copy_2d_to_host = um_cuda_copy_2d_to_host,
    .fill_bytes = um_cuda_fill_bytes,
    .staging_alloc = um_cuda_staging_alloc,
    .staging_free = um_cuda_staging_free,
    .kernel_get = um_cuda_kernel_get,
    .launch = um_cuda_launch,
};

/* Takes over `driver`, also on failure. */
static um_status make_backend(um_driver *driver, um_cuda_backend **out, um_error *err) {
    size_t devices = (size_t)driver->device_count * sizeof(um_cuda_device);
    um_cuda_backend *cuda = calloc(1, sizeof(*cuda) + devices);
    if (cuda == NULL) {
        um_driver_close(driver);
        return um_error_set(err, UM_ERR_NO_MEMORY, "no memory for the CUDA backend");
    }
    if (pthread_mutex_init(&cuda->lock, NULL) != 0) {
        um_driver_close(driver);
        free(cuda);
        return um_error_set(err, UM_ERR_NO_MEMORY, "no memory for the CUDA backend's lock");
    }
    cuda->driver = driver;
    cuda->owner = getpid();
    cuda->libraries = calloc(um_kernel_image_count + 1, sizeof(cuda->libraries[0])); /* + 1: calloc(0) may be NULL */
    if (cuda->libraries == NULL) {
        free_backend(cuda);
        return um_error_set(err, UM_ERR_NO_MEMORY, "no memory for the table of kernel images");
    }
    cuda->base.ops = &cuda_ops;
    cuda->base.device_count = driver->device_count;
    cuda->base.driver_version = driver->version;
    um_numa_read(&cuda->base.numa, NULL);
    memcpy(cuda->base.driver_path, driver->path, sizeof(cuda->base.driver_path));
    *out = cuda;
    return UM_OK;
}

um_status um_backend_cuda_open(const char *library, um_backend **out, um_error *err) {
    um_driver *driver = NULL;
    um_status status = um_driver_open(library, &driver, err);
    if (status != UM_OK) {
        return status;
    }
    um_cuda_backend *cuda = NULL;
    status = make_backend(driver, &cuda, err);
    if (status != UM_OK) {
        return status;
    }
    status = read_devices(cuda, err);
    if (status != UM_OK) {
        free_backend(cuda);
        return status;
    }
    *out = &cuda->base;
    return UM_OK;
}
