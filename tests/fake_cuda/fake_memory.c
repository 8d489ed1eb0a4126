/* Allocations: managed and plain device memory are memfds mapped twice, once for the host and
 * once for "the GPU". */
#include "fake_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LARGE         ((size_t)2 << 20) /* from here on allocations are aligned to it */
#define POISON_LIMIT  ((size_t)1 << 20) /* fresh allocations up to here are filled */
#define FRESH_MANAGED 0xCD
#define FRESH_HOST    0xCE
#define TAIL          0xCD /* between the requested size and the end of its page */

/* --- mapping --------------------------------------------------------- */

/* Maps the file with a page behind it that nobody may touch; NULL when the system has no room. */
static char *map_guarded(int file, size_t mapped, size_t alignment, int protection) {
    const size_t reserve = mapped + alignment + FAKE_PAGE;
    char *start = mmap(NULL, reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        return NULL;
    }
    char *base = (char *)(((uintptr_t)start + alignment - 1) & ~(uintptr_t)(alignment - 1));
    if (base > start) {
        munmap(start, (size_t)(base - start));
    }
    char *end = base + mapped + FAKE_PAGE;
    if (end < start + reserve) {
        munmap(end, (size_t)(start + reserve - end));
    }
    if (mmap(base, mapped, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0) == MAP_FAILED) {
        munmap(base, mapped + FAKE_PAGE);
        return NULL;
    }
    madvise(base, mapped, MADV_DONTFORK);
    return base;
}

static bool map_twice(fake_memory *memory, int host_protection) {
    const int file = memfd_create("fake_cuda", MFD_CLOEXEC);
    if (file < 0) {
        return false;
    }
    if (ftruncate(file, (off_t)memory->mapped) == 0) {
        memory->host = map_guarded(file, memory->mapped, memory->size >= LARGE ? LARGE : FAKE_PAGE, host_protection);
        if (memory->host != NULL) {
            memory->gpu = map_guarded(file, memory->mapped, FAKE_PAGE, PROT_READ | PROT_WRITE);
        }
        if (memory->host != NULL && memory->gpu == NULL) {
            munmap(memory->host, memory->mapped + FAKE_PAGE);
        }
    }
    close(file); /* the mappings keep it */
    return memory->gpu != NULL;
}

static void unmap(fake_memory *memory) {
    if (memory->kind == FAKE_MEMORY_HOST) {
        free(memory->host);
        return;
    }
    munmap(memory->host, memory->mapped + FAKE_PAGE);
    munmap(memory->gpu, memory->mapped + FAKE_PAGE);
}

/* --- the list, sorted by address ------------------------------------- */

/* Index of the first allocation that starts behind ptr. */
static size_t upper_bound(const void *ptr) {
    size_t low = 0, high = fake.memory_count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if ((uintptr_t)fake.memory[middle]->host <= (uintptr_t)ptr) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

fake_memory *fake_memory_find(const void *ptr) {
    const size_t at = upper_bound(ptr);
    if (at == 0) {
        return NULL;
    }
    fake_memory *memory = fake.memory[at - 1];
    return (uintptr_t)ptr - (uintptr_t)memory->host < memory->size ? memory : NULL;
}

fake_memory *fake_memory_range(CUdeviceptr ptr, size_t size, fake_memory_kind kind) {
    fake_memory *memory = fake_memory_find((const void *)ptr);
    if (memory == NULL || memory->kind != kind) {
        return NULL;
    }
    return size <= memory->size - (size_t)((char *)ptr - memory->host) ? memory : NULL;
}

char *fake_memory_gpu(const void *ptr) {
    const fake_memory *memory = fake_memory_find(ptr);
    if (memory == NULL) {
        return (char *)(uintptr_t)ptr;
    }
    return memory->gpu + ((const char *)ptr - memory->host);
}

static bool list_add(fake_memory *memory) {
    if (fake.memory_count == fake.memory_room) {
        const size_t room = fake.memory_room == 0 ? 64 : fake.memory_room * 2;
        fake_memory **bigger = realloc(fake.memory, room * sizeof *bigger);
        if (bigger == NULL) {
            return false;
        }
        fake.memory = bigger;
        fake.memory_room = room;
    }
    const size_t at = upper_bound(memory->host);
    memmove(fake.memory + at + 1, fake.memory + at, (fake.memory_count - at) * sizeof *fake.memory);
    fake.memory[at] = memory;
    fake.memory_count++;
    return true;
}

long fake_memory_count(fake_memory_kind kind, unsigned long long *bytes) {
    long count = 0;
    unsigned long long sum = 0;
    for (size_t i = 0; i < fake.memory_count; i++) {
        if (fake.memory[i]->kind != kind) {
            continue;
        }
        count++;
        sum += fake.memory[i]->size;
    }
    if (bytes != NULL) {
        *bytes = sum;
    }
    return count;
}

/* --- allocate and free ----------------------------------------------- */

static fake_memory *allocate(fake_memory_kind kind, size_t size, fake_context *context) {
    if (size > (size_t)1 << 46) {
        return NULL;
    }
    fake_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL) {
        return NULL;
    }
    memory->kind = kind;
    memory->size = size;
    memory->mapped = (size + FAKE_PAGE - 1) & ~(FAKE_PAGE - 1);
    memory->context = context;
    bool mapped = false;
    if (kind == FAKE_MEMORY_HOST) {
        memory->host = memory->gpu = aligned_alloc(FAKE_PAGE, memory->mapped);
        mapped = memory->host != NULL;
    } else {
        const bool touchable = kind == FAKE_MEMORY_MANAGED && !fake.host_locked_out;
        mapped = map_twice(memory, touchable ? PROT_READ | PROT_WRITE : PROT_NONE);
    }
    const bool booked = mapped && (kind != FAKE_MEMORY_MANAGED || fake_pages_init(memory));
    if (!booked || !list_add(memory)) {
        if (booked && kind == FAKE_MEMORY_MANAGED) {
            fake_pages_destroy(memory);
        }
        if (mapped) {
            unmap(memory);
        }
        free(memory);
        return NULL;
    }
    const int fresh = kind == FAKE_MEMORY_HOST ? FRESH_HOST : FRESH_MANAGED;
    if (size <= POISON_LIMIT) {
        memset(memory->gpu, fresh, size);
    }
    memset(memory->gpu + size, TAIL, memory->mapped - size);
    return memory;
}

static void check_tail(const fake_memory *memory) {
    for (size_t i = memory->size; i < memory->mapped; i++) {
        if ((unsigned char)memory->gpu[i] == TAIL) {
            continue;
        }
        fake_unmodelled("memory", "somebody wrote %zu bytes past the end of %zu bytes at %p", i - memory->size,
                        memory->size, (void *)memory->host);
    }
}

void fake_memory_release(fake_memory *memory) {
    fake_pages_settle(memory->host, memory->size);
    check_tail(memory);
    const size_t at = upper_bound(memory->host) - 1;
    memmove(fake.memory + at, fake.memory + at + 1, (fake.memory_count - at - 1) * sizeof *fake.memory);
    fake.memory_count--;
    if (memory->kind == FAKE_MEMORY_MANAGED) {
        fake.managed_bytes -= memory->size;
        fake_pages_destroy(memory);
    } else if (memory->kind == FAKE_MEMORY_DEVICE) {
        fake.plain_bytes[memory->context->device] -= memory->mapped;
    }
    unmap(memory);
    free(memory);
}

void fake_memory_release_context(fake_context *context) {
    for (size_t i = fake.memory_count; i-- > 0;) {
        if (fake.memory[i]->context != context) {
            continue;
        }
        fake.leaked++;
        fake_memory_release(fake.memory[i]);
    }
}

void fake_memory_lock_host(bool locked) {
    if (fake.host_locked_out == locked) {
        return;
    }
    fake.host_locked_out = locked;
    for (size_t i = 0; i < fake.memory_count; i++) {
        const fake_memory *memory = fake.memory[i];
        if (memory->kind != FAKE_MEMORY_MANAGED) {
            continue;
        }
        if (mprotect(memory->host, memory->mapped, locked ? PROT_NONE : PROT_READ | PROT_WRITE) != 0) {
            fake_unmodelled("memory", "mprotect failed");
        }
    }
}

/* --- entry points ---------------------------------------------------- */

CUresult fake_mem_get_info(size_t *free_bytes, size_t *total) {
    FAKE_CALL(mem_get_info);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    const fake_context *context = fake_current(&call);
    if (context == NULL) {
        return call.result;
    }
    if (free_bytes == NULL || total == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const size_t used = fake.plain_bytes[context->device] + fake.held_pages[context->device] * FAKE_PAGE;
    *total = fake.config.memory;
    *free_bytes = used < fake.config.memory ? fake.config.memory - used : 0;
    return CUDA_SUCCESS;
}

static size_t managed_limit(void) {
    if (fake.managed_limit != 0) {
        return fake.managed_limit;
    }
    return fake.config.memory * (size_t)fake.config.device_count + fake.config.host_memory;
}

CUresult fake_mem_alloc_managed(CUdeviceptr *ptr, size_t size, unsigned int flags) {
    FAKE_CALL(mem_alloc_managed);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    fake_context *context = fake_current(&call);
    if (context == NULL) {
        return call.result;
    }
    if (ptr == NULL || size == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!fake.config.managed) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (flags == CU_MEM_ATTACH_HOST) {
        fake_unmodelled(call.call, "flags %u", flags);
    }
    if (flags != CU_MEM_ATTACH_GLOBAL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (size > managed_limit() || fake.managed_bytes > managed_limit() - size) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const fake_memory *memory = allocate(FAKE_MEMORY_MANAGED, size, context);
    if (memory == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fake.managed_bytes += size;
    *ptr = (CUdeviceptr)memory->host;
    return CUDA_SUCCESS;
}

/* Waits for all work first, and frees even when an error is injected. */
CUresult fake_mem_free(CUdeviceptr ptr) {
    FAKE_CALL(mem_free);
    if (!call.locked || !fake.initialised) {
        return call.result;
    }
    if (fake_current(&call) == NULL && fake.sticky == CUDA_SUCCESS) {
        return call.result;
    }
    if (ptr == 0) {
        return call.result;
    }
    fake_memory *memory = fake_memory_find((const void *)ptr);
    if (memory == NULL || memory->host != (char *)ptr || memory->kind == FAKE_MEMORY_HOST) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake_run_all_work();
    fake_work_finished();
    fake_memory_release(memory);
    return call.result;
}

CUresult fake_mem_host_alloc(void **ptr, size_t size, unsigned int flags) {
    FAKE_CALL(mem_host_alloc);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    fake_context *context = fake_current(&call);
    if (context == NULL) {
        return call.result;
    }
    if (ptr == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((flags & ~(unsigned)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)) != 0) {
        fake_unmodelled(call.call, "flags %u", flags);
    }
    if (size == 0) {
        *ptr = NULL;
        return CUDA_SUCCESS;
    }
    const fake_memory *memory = allocate(FAKE_MEMORY_HOST, size, context);
    if (memory == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ptr = memory->host;
    return CUDA_SUCCESS;
}

CUresult fake_mem_free_host(void *ptr) {
    FAKE_CALL(mem_free_host);
    if (!call.locked || !fake.initialised) {
        return call.result;
    }
    if (fake_current(&call) == NULL && fake.sticky == CUDA_SUCCESS) {
        return call.result;
    }
    fake_memory *memory = fake_memory_find(ptr);
    if (memory == NULL || memory->host != (char *)ptr || memory->kind != FAKE_MEMORY_HOST) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake_run_all_work();
    fake_work_finished();
    fake_memory_release(memory);
    return call.result;
}

/* --- what a pointer is ----------------------------------------------- */

/* Of a pointer that it does not know the driver says that the host may use it, and leaves the caller's range as it
 * was. */
static void pointer_attribute(const char *call, CUpointer_attribute attribute, void *data, const char *ptr,
                              const fake_memory *memory) {
    const bool known = memory != NULL;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = known ? (CUcontext)memory->context : NULL; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = !known ? 0 : memory->kind == FAKE_MEMORY_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = known ? (CUdeviceptr)ptr : 0; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(const void **)data = known && memory->kind == FAKE_MEMORY_DEVICE ? NULL : ptr;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)data = known && memory->kind == FAKE_MEMORY_MANAGED; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = known ? memory->context->device : CU_DEVICE_INVALID; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        if (known) *(void **)data = memory->host;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        if (known) *(size_t *)data = memory->size;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned *)data = known; break;
    default: fake_unmodelled(call, "attribute %d", (int)attribute);
    }
}

CUresult fake_pointer_get_attributes(unsigned int count, CUpointer_attribute *wanted, void **data, CUdeviceptr ptr) {
    FAKE_CALL(pointer_get_attributes);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (count == 0 || wanted == NULL || data == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const fake_memory *memory = fake_memory_find((const void *)ptr);
    for (unsigned i = 0; i < count; i++) {
        pointer_attribute(call.call, wanted[i], data[i], (const char *)ptr, memory);
    }
    return CUDA_SUCCESS;
}

/* --- for the tests --------------------------------------------------- */

void *fakecu_device_alloc(size_t size, int device) {
    void *ptr = NULL;
    fake_lock();
    if (!fake.initialised || !fake_device_valid(device)) {
        fake_unmodelled("fakecu_device_alloc", "device %d", device);
    }
    const size_t pages = (size + FAKE_PAGE - 1) / FAKE_PAGE;
    if (size > 0 && fake_evict(device, pages, NULL)) {
        const fake_memory *memory = allocate(FAKE_MEMORY_DEVICE, size, &fake.contexts[device]);
        if (memory != NULL) {
            fake.plain_bytes[device] += memory->mapped;
            ptr = memory->host;
        }
    }
    fake_unlock();
    return ptr;
}

void fakecu_device_free(void *ptr) {
    fake_lock();
    fake_memory *memory = fake_memory_find(ptr);
    if (memory == NULL || memory->kind != FAKE_MEMORY_DEVICE || memory->host != (char *)ptr) {
        fake_unmodelled("fakecu_device_free", "pointer %p", ptr);
    }
    fake_run_all_work();
    fake_work_finished();
    fake_memory_release(memory);
    fake_unlock();
}

void fakecu_peek(void *dst, const void *src, size_t size) {
    fake_lock();
    fake_pages_settle(src, size);
    memcpy(dst, fake_memory_gpu(src), size);
    fake_unlock();
}

void fakecu_poke(void *dst, const void *src, size_t size) {
    fake_lock();
    fake_pages_settle(dst, size);
    memcpy(fake_memory_gpu(dst), src, size);
    fake_unlock();
}
