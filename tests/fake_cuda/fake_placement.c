/* Prefetch, discard and advice: what the calls check before anything moves. */
#include "fake_internal.h"

#include <string.h>

static bool device_is_concurrent(int device) {
    return fake_device_valid(device) && fake.config.managed && fake.config.concurrent;
}

/* FAKE_NOWHERE, with the code in call->result, when the driver refuses the location. */
static fake_place place_of_device(fake_guard *call, CUdevice device) {
    if (device == CU_DEVICE_CPU) {
        return FAKE_HOST;
    }
    if (device_is_concurrent(device)) {
        return FAKE_DEVICE(device);
    }
    call->result = CUDA_ERROR_INVALID_DEVICE;
    return FAKE_NOWHERE;
}

static fake_place place_of_location(fake_guard *call, CUmemLocation location) {
    switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        if (location.id >= 0) {
            return place_of_device(call, location.id);
        }
        call->result = CUDA_ERROR_INVALID_DEVICE;
        return FAKE_NOWHERE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return FAKE_HOST;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        if (location.id >= 0 && location.id < fake.config.numa_nodes) {
            return FAKE_HOST;
        }
        call->result = CUDA_ERROR_INVALID_VALUE;
        return FAKE_NOWHERE;
    default: call->result = CUDA_ERROR_INVALID_VALUE; return FAKE_NOWHERE;
    }
}

/* --- stream-ordered: prefetch and discard ---------------------------- */

static void submit_move(fake_stream *stream, fake_item_kind kind, CUdeviceptr ptr, size_t size, fake_place where) {
    fake_item *item = fake_item_new(kind);
    item->u.move.range = (fake_range){ptr, size};
    item->u.move.where = where;
    fake_submit(stream, item);
}

static CUresult prefetch(fake_guard *call, CUdeviceptr ptr, size_t size, fake_place where, CUstream handle) {
    if (where == FAKE_NOWHERE) {
        return call->result;
    }
    fake_stream *stream = fake_stream_of(call, handle);
    if (stream == NULL) {
        return call->result;
    }
    if (size == 0 || fake_memory_range(ptr, size, FAKE_MEMORY_MANAGED) == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!device_is_concurrent(stream->context->device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    submit_move(stream, FAKE_ITEM_PREFETCH, ptr, size, where);
    return CUDA_SUCCESS;
}

CUresult fake_mem_prefetch_device(CUdeviceptr ptr, size_t size, CUdevice device, CUstream stream) {
    FAKE_CALL(mem_prefetch_device);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (fake_current(&call) == NULL) {
        return call.result;
    }
    return prefetch(&call, ptr, size, place_of_device(&call, device), stream);
}

CUresult fake_mem_prefetch_location(CUdeviceptr ptr, size_t size, CUmemLocation location, unsigned int flags,
                                    CUstream stream) {
    FAKE_CALL(mem_prefetch_location);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (fake_current(&call) == NULL) {
        return call.result;
    }
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return prefetch(&call, ptr, size, place_of_location(&call, location), stream);
}

/* The stream for a batch call; NULL, with the code in call->result, when the batch as a whole is
 * refused. */
static fake_stream *batch_stream(fake_guard *call, const CUdeviceptr *ptrs, const size_t *sizes, size_t count,
                                 unsigned long long flags, CUstream handle) {
    call->result = CUDA_ERROR_INVALID_VALUE;
    if (ptrs == NULL || sizes == NULL || count == 0 || flags != 0) {
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        if (sizes[i] == 0 || fake_memory_range(ptrs[i], sizes[i], FAKE_MEMORY_MANAGED) == NULL) {
            return NULL;
        }
    }
    if (handle == NULL || handle == CU_STREAM_LEGACY) {
        return NULL;
    }
    call->result = CUDA_ERROR_NOT_SUPPORTED;
    if (!fake.config.managed || !fake.config.concurrent) {
        return NULL;
    }
    call->result = CUDA_SUCCESS;
    return fake_stream_of(call, handle);
}

CUresult fake_mem_prefetch_batch(CUdeviceptr *ptrs, size_t *sizes, size_t count, CUmemLocation *locations,
                                 size_t *location_indices, size_t location_count, unsigned long long flags,
                                 CUstream handle) {
    FAKE_CALL(mem_prefetch_batch);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (fake_current(&call) == NULL) {
        return call.result;
    }
    fake_stream *stream = batch_stream(&call, ptrs, sizes, count, flags, handle);
    if (stream == NULL) {
        return call.result;
    }
    if (locations == NULL || location_indices == NULL || location_count == 0 || location_count > count) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < location_count; i++) {
        const bool in_order = i == 0 ? location_indices[0] == 0 : location_indices[i] > location_indices[i - 1];
        if (!in_order || location_indices[i] >= count) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (place_of_location(&call, locations[i]) == FAKE_NOWHERE) {
            return call.result;
        }
    }
    size_t location = 0;
    for (size_t i = 0; i < count; i++) {
        if (location + 1 < location_count && location_indices[location + 1] == i) {
            location++;
        }
        submit_move(stream, FAKE_ITEM_PREFETCH, ptrs[i], sizes[i], place_of_location(&call, locations[location]));
    }
    return CUDA_SUCCESS;
}

CUresult fake_mem_discard_batch(CUdeviceptr *ptrs, size_t *sizes, size_t count, unsigned long long flags,
                                CUstream handle) {
    FAKE_CALL(mem_discard_batch);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (fake_current(&call) == NULL) {
        return call.result;
    }
    fake_stream *stream = batch_stream(&call, ptrs, sizes, count, flags, handle);
    if (stream == NULL) {
        return call.result;
    }
    for (size_t i = 0; i < count; i++) {
        submit_move(stream, FAKE_ITEM_DISCARD, ptrs[i], sizes[i], FAKE_NOWHERE);
    }
    return CUDA_SUCCESS;
}

/* --- at once: advice ------------------------------------------------- */

static bool advice_uses_location(CUmem_advise advice) {
    return advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
           advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
}

static CUresult advise(CUdeviceptr ptr, size_t size, CUmem_advise advice, fake_place where) {
    if ((int)advice < CU_MEM_ADVISE_SET_READ_MOSTLY || (int)advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake_memory *memory = fake_memory_range(ptr, size, FAKE_MEMORY_MANAGED);
    if (size == 0 || memory == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake_pages_advise(memory, (size_t)((char *)ptr - memory->host), size, advice, where);
    return CUDA_SUCCESS;
}

CUresult fake_mem_advise_device(CUdeviceptr ptr, size_t size, CUmem_advise advice, CUdevice device) {
    FAKE_CALL(mem_advise_device);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (fake_current(&call) == NULL) {
        return call.result;
    }
    fake_place where = FAKE_NOWHERE;
    if (advice_uses_location(advice)) {
        where = place_of_device(&call, device);
        if (where == FAKE_NOWHERE) {
            return call.result;
        }
    }
    return advise(ptr, size, advice, where);
}

CUresult fake_mem_advise_location(CUdeviceptr ptr, size_t size, CUmem_advise advice, CUmemLocation location) {
    FAKE_CALL(mem_advise_location);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (fake_current(&call) == NULL) {
        return call.result;
    }
    fake_place where = FAKE_NOWHERE;
    if (advice_uses_location(advice)) {
        const bool any_place = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
                               location.type == CU_MEM_LOCATION_TYPE_DEVICE ||
                               location.type == CU_MEM_LOCATION_TYPE_HOST;
        if (!any_place) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        where = place_of_location(&call, location);
        if (where == FAKE_NOWHERE) {
            return call.result;
        }
    }
    return advise(ptr, size, advice, where);
}
