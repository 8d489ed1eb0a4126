/* The CUDA backend's memory: managed blocks, page-locked staging memory, and what the driver knows of a pointer. */
#define _GNU_SOURCE 1 /* madvise */
#include "backend/um_backend_cuda.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT  ((size_t)512)
/* The driver's unit of migration and advice. A smaller block shares its pages with others. */
#define PAGE_GROUP ((size_t)64 * 1024)

/* Reports a failed allocation; for OUT_OF_MEMORY with the figures of the device. Its context is current. */
static um_status alloc_error(const um_cuda_backend *cuda, CUresult result, const char *call, const char *what,
                             int device, size_t size, um_error *err) {
    if (result == CUDA_SUCCESS) {
        return UM_OK;
    }
    um_status status = um_driver_error(cuda->driver, result, call, err);
    if (status != UM_ERR_OUT_OF_MEMORY || err == NULL) {
        return status;
    }
    char name[sizeof(err->name)];
    memcpy(name, err->name, sizeof(name));
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    if (cuda->driver->mem_get_info(&free_bytes, &total_bytes) == CUDA_SUCCESS) {
        (void)um_error_set(err, status,
                           "out of memory: %s has no room for %zu bytes of %s; cuda:%d has %zu of %zu bytes free", call,
                           size, what, device, free_bytes, total_bytes);
    } else {
        (void)um_error_set(err, status, "out of memory: %s has no room for %zu bytes of %s on cuda:%d", call, size,
                           what, device);
    }
    err->call = call;
    memcpy(err->name, name, sizeof(name));
    err->requested = size;
    err->device = device;
    return status;
}

/* A forked child would die on a touch of managed memory; not having the pages, it does not even share them by chance.
 * The check of the process in the layers above is what guards; so a system that does not know the advice will do. */
static um_status keep_from_children(um_range range, um_error *err) {
    uintptr_t mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
    uintptr_t first = (uintptr_t)range.ptr & ~mask;
    uintptr_t last = ((uintptr_t)range.ptr + range.size + mask) & ~mask;
    if (madvise((void *)first, last - first, MADV_DONTFORK) == 0 || errno == EINVAL || errno == ENOSYS) {
        return UM_OK;
    }
    if (errno == ENOMEM) { /* the mapping would be split, and the process has vm.max_map_count of them */
        um_status status = um_error_set(err, UM_ERR_OUT_OF_MEMORY,
                                        "out of memory: no room for another memory mapping (vm.max_map_count)");
        if (err != NULL) {
            err->requested = range.size;
        }
        return status;
    }
    return um_error_set(err, UM_ERR_UNSUPPORTED, "madvise(MADV_DONTFORK) of managed memory failed: %s",
                        strerror(errno));
}

/* Pages that the host will have. Where a home is to be on one node, the driver is told too. */
static void choose_node(const um_cuda_backend *cuda, um_range range, int device, um_location home) {
    if (home.kind == UM_LOCATION_NUMA) {
        um_numa_place(&cuda->base.numa, range.ptr, range.size, home.id);
    } else if (!cuda->base.numa.off) {
        um_numa_place(&cuda->base.numa, range.ptr, range.size, cuda->devices[device].numa_node);
    }
}

/* Advice is nearly free now and costs up to 36 ms per GiB once pages exist (src/README.md). Accessed-by goes
 * with every home: preferring the host without it makes the first kernel 30 times slower. */
static um_status prepare_block(const um_cuda_backend *cuda, um_range range, int device, um_location home,
                               um_error *err) {
    um_status status = keep_from_children(range, err);
    if (status != UM_OK || range.size < PAGE_GROUP) {
        return status;
    }
    choose_node(cuda, range, device, home);
    if (!cuda->devices[device].concurrent) {
        return UM_OK;
    }
    um_location owner = {.kind = UM_LOCATION_DEVICE, .id = device};
    status = um_cuda_advise_range(cuda, range, UM_ADVICE_ACCESSED_BY, owner, err);
    if (status != UM_OK || home.kind == UM_LOCATION_NONE) {
        return status;
    }
    if (home.kind == UM_LOCATION_DEVICE && !cuda->devices[home.id].concurrent) {
        return UM_OK;
    }
    return um_cuda_advise_range(cuda, range, UM_ADVICE_PREFERRED_LOCATION, home, err);
}

um_status um_cuda_mem_alloc(um_backend *backend, size_t size, int device, um_location home, void **out, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_status status = um_cuda_check_location(cuda, home, err);
    if (status != UM_OK) {
        return status;
    }
    size_t least = home.kind != UM_LOCATION_NONE && size < PAGE_GROUP ? PAGE_GROUP : size;
    /* What cannot be rounded is passed on as it is: the driver has no room for it either. */
    size_t bytes = least <= SIZE_MAX - ALIGNMENT ? (least + ALIGNMENT - 1) & ~(ALIGNMENT - 1) : least;
    um_cuda_scope scope;
    status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    CUdeviceptr ptr = 0;
    CUresult result = cuda->driver->mem_alloc_managed(&ptr, bytes, CU_MEM_ATTACH_GLOBAL);
    status = alloc_error(cuda, result, um_driver_call_names.mem_alloc_managed, "managed memory", device, size, err);
    if (status != UM_OK) {
        return um_cuda_leave(cuda, scope, status, err);
    }
    um_range range = {.ptr = (void *)(uintptr_t)ptr, .size = bytes};
    status = prepare_block(cuda, range, device, home, err);
    if (status != UM_OK) {
        (void)cuda->driver->mem_free(ptr);
        return um_cuda_leave(cuda, scope, status, err);
    }
    status = um_cuda_leave(cuda, scope, UM_OK, err);
    if (status != UM_OK) {
        um_status freed = um_cuda_mem_free(backend, range.ptr, bytes, device, NULL);
        (void)freed;
        return status;
    }
    *out = range.ptr;
    return UM_OK;
}

/* The driver's free is tried once and whatever happens before it: it also returns errors of earlier asynchronous work,
 * and then the memory is gone, so a second try could hit a block that another thread has just been given. */
um_status um_cuda_mem_free(um_backend *backend, void *ptr, size_t size, int device, um_error *err) {
    (void)size;
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_cuda_scope scope = {.pushed = false};
    um_status entered = um_cuda_enter_to_free(cuda, device, &scope, err);
    um_status freed = UM_CUDA_CALL(cuda, entered == UM_OK ? err : NULL, mem_free, (CUdeviceptr)(uintptr_t)ptr);
    if (entered != UM_OK) {
        return entered;
    }
    return um_cuda_leave(cuda, scope, freed, err);
}

/* --- pointers --------------------------------------------------------------------------------------------------- */

typedef struct pointer_answers {
    unsigned int memory_type; /* CUmemorytype, 0 when the driver does not know the pointer */
    unsigned int managed;
    int device;
    CUdeviceptr start;
    size_t size;
} pointer_answers;

static CUresult ask_pointer(const um_cuda_backend *cuda, const void *ptr, pointer_answers *answers) {
    CUpointer_attribute attributes[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    };
    void *data[] = {&answers->memory_type, &answers->managed, &answers->device, &answers->start, &answers->size};
    memset(answers, 0, sizeof(*answers));
    return cuda->driver->pointer_get_attributes(sizeof(attributes) / sizeof(attributes[0]), attributes, data,
                                                (CUdeviceptr)(uintptr_t)ptr);
}

static CUresult ask_pointer_in_context(um_cuda_backend *cuda, const void *ptr, pointer_answers *answers,
                                       um_status *status, um_error *err) {
    um_cuda_scope scope;
    *status = um_cuda_enter(cuda, um_cuda_any_device(cuda), &scope, err);
    if (*status != UM_OK) {
        return CUDA_SUCCESS;
    }
    CUresult result = ask_pointer(cuda, ptr, answers);
    *status = um_cuda_leave(cuda, scope, UM_OK, err);
    return result;
}

um_status um_cuda_pointer_info(um_backend *backend, const void *ptr, um_pointer_info *out, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    pointer_answers answers;
    um_status status = UM_OK;
    CUresult result = ask_pointer(cuda, ptr, &answers);
    if (result == CUDA_ERROR_INVALID_CONTEXT) {
        result = ask_pointer_in_context(cuda, ptr, &answers, &status, err);
        if (status != UM_OK) {
            return status;
        }
    }
    um_pointer_info info = {.known = false, .device = -1};
    if (result == CUDA_ERROR_INVALID_VALUE) { /* how some drivers say that they do not know it */
        *out = info;
        return UM_OK;
    }
    status = um_cuda_check(cuda, result, um_driver_call_names.pointer_get_attributes, err);
    if (status != UM_OK) {
        return status;
    }
    info.known = answers.memory_type != 0 || answers.managed != 0;
    if (info.known) {
        info.managed = answers.managed != 0;
        info.host = !info.managed && answers.memory_type == CU_MEMORYTYPE_HOST;
        info.device = info.host ? -1 : answers.device;
        info.base = (char *)(uintptr_t)answers.start;
        info.size = answers.size;
    }
    *out = info;
    return UM_OK;
}

/* --- staging memory --------------------------------------------------------------------------------------------- */

um_status um_cuda_staging_alloc(um_backend *backend, int device, size_t size, void **out, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_cuda_scope scope;
    um_status status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    void *ptr = NULL;
    CUresult result = cuda->driver->mem_host_alloc(&ptr, size, CU_MEMHOSTALLOC_PORTABLE);
    status = alloc_error(cuda, result, um_driver_call_names.mem_host_alloc, "page-locked memory", device, size, err);
    if (status != UM_OK) {
        return um_cuda_leave(cuda, scope, status, err);
    }
    status = um_cuda_leave(cuda, scope, UM_OK, err);
    if (status != UM_OK) {
        um_cuda_staging_free(backend, ptr);
        return status;
    }
    *out = ptr;
    return UM_OK;
}

void um_cuda_staging_free(um_backend *backend, void *ptr) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_cuda_scope scope = {.pushed = false};
    um_status entered = um_cuda_enter_to_free(cuda, um_cuda_any_device(cuda), &scope, NULL);
    (void)cuda->driver->mem_free_host(ptr);
    if (entered == UM_OK) {
        um_status left = um_cuda_leave(cuda, scope, UM_OK, NULL);
        (void)left;
    }
}
