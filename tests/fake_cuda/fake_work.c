/* Doing the work that streams hold: copies, memsets, moves and kernels; and the calls that queue
 * copies and memsets. */
#include "fake_internal.h"

#include <stdlib.h>
#include <string.h>

/* --- execution ------------------------------------------------------- */

/* What is written moves as under a kernel's writes; what is read stays. */
static void execute_copy(const fake_item *item, int device) {
    const size_t width = item->u.copy.width;
    size_t touched = 0; /* rows may share a page */
    for (size_t row = 0; row < item->u.copy.height; row++) {
        char *dst = item->u.copy.dst + row * item->u.copy.dst_pitch;
        const char *src = item->u.copy.src + row * item->u.copy.src_pitch;
        fake_memory *memory = fake_memory_find(dst);
        if (memory != NULL && memory->kind == FAKE_MEMORY_MANAGED) {
            const size_t offset = (size_t)(dst - memory->host), end = offset + width;
            const size_t from = offset < touched ? touched : offset;
            if (from < end) {
                fake_pages_touch(memory, from, end - from, device, true);
                touched = (end + FAKE_PAGE - 1) & ~(FAKE_PAGE - 1);
            }
        }
        fake_pages_settle(src, width);
        memmove(fake_memory_gpu(dst), fake_memory_gpu(src), width);
    }
    fake.counters.copied_bytes += width * item->u.copy.height;
}

static void execute_memset(const fake_item *item, int device) {
    char *ptr = (char *)item->u.set.ptr;
    fake_memory *memory = fake_memory_find(ptr);
    if (memory != NULL && memory->kind == FAKE_MEMORY_MANAGED) {
        fake_pages_touch(memory, (size_t)(ptr - memory->host), item->u.set.size, device, true);
    }
    memset(fake_memory_gpu(ptr), item->u.set.value, item->u.set.size);
}

static void execute_move(const fake_item *item) {
    const fake_range range = item->u.move.range;
    fake_memory *memory = fake_memory_range(range.ptr, range.size, FAKE_MEMORY_MANAGED);
    if (memory == NULL) {
        fake_unmodelled(fake.running, "memory %p was freed while it was queued", (void *)range.ptr);
    }
    const size_t offset = (size_t)((char *)range.ptr - memory->host);
    if (item->kind == FAKE_ITEM_DISCARD) {
        fake_pages_discard(memory, offset, range.size);
    } else {
        fake_pages_prefetch(memory, offset, range.size, item->u.move.where);
    }
}

void fake_execute(const fake_stream *stream, fake_item *item) {
    const char *outer = fake.running;
    const int outer_device = fake.running_device;
    fake.running_device = stream->context->device;
    switch (item->kind) {
    case FAKE_ITEM_KERNEL:
        fake.running = item->u.kernel.entry->name;
        item->u.kernel.entry->run(item->u.kernel.grid, item->u.kernel.block, item->u.kernel.params);
        break;
    case FAKE_ITEM_COPY:
        fake.running = "cuMemcpyAsync";
        execute_copy(item, fake.running_device);
        break;
    case FAKE_ITEM_MEMSET:
        fake.running = "cuMemsetD8Async";
        execute_memset(item, fake.running_device);
        break;
    case FAKE_ITEM_PREFETCH:
        fake.running = "cuMemPrefetchAsync";
        execute_move(item);
        break;
    case FAKE_ITEM_DISCARD:
        fake.running = "cuMemDiscardBatchAsync";
        execute_move(item);
        break;
    default: fake_unmodelled("work", "item kind %d", (int)item->kind);
    }
    fake.running = outer;
    fake.running_device = outer_device;
}

/* --- what kernels call ----------------------------------------------- */

static void check_access(const fake_memory *memory, const void *ptr, size_t size) {
    if (fake.running == NULL) {
        fake_unmodelled("kernel", "fakecu_translate or fakecu_touch outside a kernel");
    }
    if (memory == NULL) {
        fake_unmodelled(fake.running, "illegal access to %p, which is not driver memory", ptr);
    }
    const size_t rest = memory->size - (size_t)((const char *)ptr - memory->host);
    if (size > rest) {
        fake_unmodelled(fake.running, "illegal access to %zu bytes at %p, only %zu are allocated", size, ptr, rest);
    }
    if (memory->kind == FAKE_MEMORY_DEVICE && memory->context->device != fake.running_device) {
        fake_unmodelled(fake.running, "device %d accesses plain memory of device %d", fake.running_device,
                        memory->context->device);
    }
}

void *fakecu_translate(const void *ptr) {
    const fake_memory *memory = fake_memory_find(ptr);
    check_access(memory, ptr, 1);
    return memory->gpu + ((const char *)ptr - memory->host);
}

void fakecu_touch(const void *ptr, size_t size, bool write) {
    if (size == 0) {
        return;
    }
    fake_memory *memory = fake_memory_find(ptr);
    check_access(memory, ptr, size);
    if (memory->kind != FAKE_MEMORY_MANAGED) {
        return;
    }
    fake_pages_touch(memory, (size_t)((const char *)ptr - memory->host), size, fake.running_device, write);
}

/* --- copies ---------------------------------------------------------- */

typedef struct plane { /* one side of a copy */
    const char *start;
    size_t pitch;
    bool must_be_driver_memory;
} plane;

/* False when a driver allocation that the side starts in ends before the side does. */
static bool fits(const plane *side, size_t width, size_t height, bool *pageable) {
    const size_t extent = (height - 1) * side->pitch + width;
    const fake_memory *memory = fake_memory_find(side->start);
    *pageable = memory == NULL;
    if (memory == NULL) {
        return !side->must_be_driver_memory && side->start != NULL;
    }
    return extent <= memory->size - (size_t)(side->start - memory->host);
}

/* Pageable memory is read before the call returns, and has been written when it returns. */
static CUresult submit_copy(fake_stream *stream, plane dst, plane src, size_t width, size_t height) {
    bool dst_pageable = false, src_pageable = false;
    if (width == 0 || height == 0) {
        return CUDA_SUCCESS;
    }
    if (!fits(&dst, width, height, &dst_pageable) || !fits(&src, width, height, &src_pageable)) {
        return CUDA_ERROR_INVALID_VALUE;
    }

    fake_item *item = fake_item_new(FAKE_ITEM_COPY);
    if (src_pageable && !dst_pageable) {
        char *staged = malloc(width * height);
        if (staged == NULL) {
            fake_unmodelled("cuMemcpyAsync", "out of memory for %zu staged bytes", width * height);
        }
        for (size_t row = 0; row < height; row++) {
            memcpy(staged + row * width, src.start + row * src.pitch, width);
        }
        item->owned = staged;
        src = (plane){staged, width, false};
    }
    item->u.copy.dst = (char *)(uintptr_t)dst.start;
    item->u.copy.src = src.start;
    item->u.copy.dst_pitch = dst.pitch;
    item->u.copy.src_pitch = src.pitch;
    item->u.copy.width = width;
    item->u.copy.height = height;
    fake_submit(stream, item);
    if (dst_pageable) {
        fake_run_until(stream, UINT64_MAX);
        fake_work_finished();
    }
    return CUDA_SUCCESS;
}

CUresult fake_memcpy_async(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream handle) {
    FAKE_CALL(memcpy_async);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (fake_current(&call) == NULL) {
        return call.result;
    }
    fake_stream *stream = fake_stream_of(&call, handle);
    if (stream == NULL) {
        return call.result;
    }
    return submit_copy(stream, (plane){(const char *)dst, size, false}, (plane){(const char *)src, size, false}, size,
                       1);
}

static bool plane_of(const char *call, plane *out, CUmemorytype type, const void *host, CUdeviceptr device,
                     size_t pitch, size_t x, size_t y, size_t width, size_t height) {
    if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED) {
        fake_unmodelled(call, "memory type %d", (int)type);
    }
    const char *start = type == CU_MEMORYTYPE_HOST ? host : (const char *)device;
    *out = (plane){start + y * pitch + x, pitch, type == CU_MEMORYTYPE_DEVICE};
    return height <= 1 || (pitch >= width && pitch - width >= x);
}

CUresult fake_memcpy_2d_async(const CUDA_MEMCPY2D *copy, CUstream handle) {
    FAKE_CALL(memcpy_2d_async);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (fake_current(&call) == NULL) {
        return call.result;
    }
    if (copy == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake_stream *stream = fake_stream_of(&call, handle);
    if (stream == NULL) {
        return call.result;
    }
    plane dst, src;
    if (!plane_of(call.call, &dst, copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstPitch,
                  copy->dstXInBytes, copy->dstY, copy->WidthInBytes, copy->Height)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!plane_of(call.call, &src, copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcPitch,
                  copy->srcXInBytes, copy->srcY, copy->WidthInBytes, copy->Height)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return submit_copy(stream, dst, src, copy->WidthInBytes, copy->Height);
}

CUresult fake_memset_d8_async(CUdeviceptr ptr, unsigned char value, size_t size, CUstream handle) {
    FAKE_CALL(memset_d8_async);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (fake_current(&call) == NULL) {
        return call.result;
    }
    fake_stream *stream = fake_stream_of(&call, handle);
    if (stream == NULL) {
        return call.result;
    }
    if (size == 0) {
        return CUDA_SUCCESS;
    }
    const fake_memory *memory = fake_memory_find((const void *)ptr);
    if (memory == NULL || size > memory->size - (size_t)((char *)ptr - memory->host)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake_item *item = fake_item_new(FAKE_ITEM_MEMSET);
    item->u.set.ptr = ptr;
    item->u.set.size = size;
    item->u.set.value = value;
    fake_submit(stream, item);
    return CUDA_SUCCESS;
}
