/* The CUDA backend's placement: prefetch, advice and discard of managed memory.
 *
 * Devices without concurrent managed access have none of these: there the driver moves whole allocations at each
 * launch. On them the ops succeed without effect, as on the host backend, so that a program runs unchanged.
 */
#define _GNU_SOURCE 1 /* pthread types in the private header */
#include "backend/um_backend_cuda.h"

#include <stdlib.h>

/* cuda.h names these from 12.2 on. */
#define LOCATION_TYPE_HOST      ((CUmemLocationType)2)
#define LOCATION_TYPE_HOST_NUMA ((CUmemLocationType)3)

/* --- locations -------------------------------------------------------------------------------------------------- */

um_status um_cuda_check_location(const um_cuda_backend *cuda, um_location where, um_error *err) {
    if (where.kind == UM_LOCATION_DEVICE && (where.id < 0 || where.id >= cuda->base.device_count)) {
        return um_error_set(err, UM_ERR_VALUE, "there is no device cuda:%d; the last one is cuda:%d", where.id,
                            cuda->base.device_count - 1);
    }
    return UM_OK;
}

/* NONE is given for advice that ignores its location; the driver then wants some valid one. */
static CUmemLocation to_location(const um_cuda_backend *cuda, um_location where) {
    CUmemLocation location = {.type = LOCATION_TYPE_HOST};
    if (where.kind == UM_LOCATION_DEVICE) {
        location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        location.id = cuda->devices[where.id].handle;
    } else if (where.kind == UM_LOCATION_NUMA) {
        location.type = LOCATION_TYPE_HOST_NUMA;
        location.id = where.id;
    }
    return location;
}

static um_status to_device(const um_cuda_backend *cuda, um_location where, CUdevice *out, um_error *err) {
    if (where.kind == UM_LOCATION_NUMA) {
        return um_error_set(err, UM_ERR_UNSUPPORTED,
                            "this driver (CUDA %d.%d) cannot place memory on one NUMA node: that needs CUDA 12.2",
                            cuda->base.driver_version / 1000, cuda->base.driver_version % 1000 / 10);
    }
    *out = where.kind == UM_LOCATION_DEVICE ? cuda->devices[where.id].handle : CU_DEVICE_CPU;
    return UM_OK;
}

/* --- advice ----------------------------------------------------------------------------------------------------- */

static CUmem_advise to_advice(um_advice advice) {
    switch (advice) {
    case UM_ADVICE_READ_MOSTLY: return CU_MEM_ADVISE_SET_READ_MOSTLY;
    case UM_ADVICE_UNSET_READ_MOSTLY: return CU_MEM_ADVISE_UNSET_READ_MOSTLY;
    case UM_ADVICE_PREFERRED_LOCATION: return CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
    case UM_ADVICE_UNSET_PREFERRED_LOCATION: return CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
    case UM_ADVICE_ACCESSED_BY: return CU_MEM_ADVISE_SET_ACCESSED_BY;
    case UM_ADVICE_UNSET_ACCESSED_BY: break;
    }
    return CU_MEM_ADVISE_UNSET_ACCESSED_BY;
}

static bool uses_location(um_advice advice) {
    return advice == UM_ADVICE_PREFERRED_LOCATION || advice == UM_ADVICE_ACCESSED_BY ||
           advice == UM_ADVICE_UNSET_ACCESSED_BY;
}

um_status um_cuda_advise_range(const um_cuda_backend *cuda, um_range range, um_advice advice, um_location where,
                               um_error *err) {
    CUdeviceptr ptr = (CUdeviceptr)(uintptr_t)range.ptr;
    CUmem_advise code = to_advice(advice);
    if (cuda->driver->mem_advise_location != NULL) {
        return UM_CUDA_CALL(cuda, err, mem_advise_location, ptr, range.size, code, to_location(cuda, where));
    }
    CUdevice device = CU_DEVICE_CPU;
    um_status status = to_device(cuda, where, &device, err);
    if (status != UM_OK) {
        return status;
    }
    return UM_CUDA_CALL(cuda, err, mem_advise_device, ptr, range.size, code, device);
}

um_status um_cuda_advise(um_backend *backend, um_range range, um_advice advice, um_location where, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_location used = {.kind = UM_LOCATION_NONE};
    if (uses_location(advice)) {
        um_status status = um_cuda_check_location(cuda, where, err);
        if (status != UM_OK) {
            return status;
        }
        if (where.kind == UM_LOCATION_NONE) {
            return um_error_set(err, UM_ERR_VALUE, "this advice needs a location");
        }
        used = where;
    }
    bool able = used.kind == UM_LOCATION_DEVICE ? cuda->devices[used.id].concurrent : cuda->base.concurrent;
    if (!able) {
        return UM_OK;
    }
    um_cuda_scope scope;
    um_status status = um_cuda_enter(cuda, um_cuda_any_device(cuda), &scope, err);
    if (status != UM_OK) {
        return status;
    }
    status = um_cuda_advise_range(cuda, range, advice, used, err);
    return um_cuda_leave(cuda, scope, status, err);
}

/* --- a stream for the batch calls ------------------------------------------------------------------------------- */

/* The batch calls refuse the legacy stream. They then go on the device's own stream, which an event orders after the
 * caller's stream and the caller's stream after it. */
typedef struct detour {
    CUstream caller;
    CUstream use;  /* where the call goes */
    CUevent event; /* NULL when `use` is the caller's stream */
} detour;

static um_status take_event(um_cuda_backend *cuda, int device, CUevent *out, um_error *err) {
    CUevent event = atomic_exchange(&cuda->devices[device].spare_event, NULL);
    if (event == NULL) {
        um_status status = UM_CUDA_CALL(cuda, err, event_create, &event, CU_EVENT_DISABLE_TIMING);
        if (status != UM_OK) {
            return status;
        }
    }
    *out = event;
    return UM_OK;
}

/* Work may still wait for the event: a wait keeps the record that it was made for, so the next user may record anew. */
static void put_event(um_cuda_backend *cuda, int device, CUevent event) {
    CUevent other = atomic_exchange(&cuda->devices[device].spare_event, event);
    if (other != NULL) {
        (void)cuda->driver->event_destroy(other);
    }
}

static um_status detour_begin(um_cuda_backend *cuda, int device, um_stream_handle stream, detour *out, um_error *err) {
    detour path = {.caller = (CUstream)stream, .use = (CUstream)stream, .event = NULL};
    if (stream != 0 && stream != UM_STREAM_LEGACY && stream != UM_STREAM_PER_THREAD) {
        *out = path;
        return UM_OK;
    }
    um_status status = um_cuda_own_stream(cuda, device, &path.use, err);
    if (status != UM_OK) {
        return status;
    }
    status = take_event(cuda, device, &path.event, err);
    if (status != UM_OK) {
        return status;
    }
    status = UM_CUDA_CALL(cuda, err, event_record, path.event, path.caller);
    if (status == UM_OK) {
        status = UM_CUDA_CALL(cuda, err, stream_wait_event, path.use, path.event, CU_EVENT_WAIT_DEFAULT);
    }
    if (status != UM_OK) {
        put_event(cuda, device, path.event);
        return status;
    }
    *out = path;
    return UM_OK;
}

/* `status` is that of the call on path.use. */
static um_status detour_end(um_cuda_backend *cuda, int device, detour path, um_status status, um_error *err) {
    if (path.event == NULL) {
        return status;
    }
    if (status == UM_OK) {
        status = UM_CUDA_CALL(cuda, err, event_record, path.event, path.use);
        if (status == UM_OK) {
            status = UM_CUDA_CALL(cuda, err, stream_wait_event, path.caller, path.event, CU_EVENT_WAIT_DEFAULT);
        }
        if (status != UM_OK) {
            (void)cuda->driver->stream_synchronize(path.use); /* under way and unordered: let it end before we return */
        }
    }
    put_event(cuda, device, path.event);
    return status;
}

/* --- prefetch --------------------------------------------------------------------------------------------------- */

static um_status prefetch_one(const um_cuda_backend *cuda, um_range range, um_location where, CUstream stream,
                              um_error *err) {
    CUdeviceptr ptr = (CUdeviceptr)(uintptr_t)range.ptr;
    if (cuda->driver->mem_prefetch_location != NULL) {
        return UM_CUDA_CALL(cuda, err, mem_prefetch_location, ptr, range.size, to_location(cuda, where), 0, stream);
    }
    CUdevice device = CU_DEVICE_CPU;
    um_status status = to_device(cuda, where, &device, err);
    if (status != UM_OK) {
        return status;
    }
    return UM_CUDA_CALL(cuda, err, mem_prefetch_device, ptr, range.size, device, stream);
}

static um_status prefetch_each(const um_cuda_backend *cuda, const um_range *ranges, size_t count, um_location where,
                               CUstream stream, um_error *err) {
    for (size_t i = 0; i < count; ++i) {
        um_status status = prefetch_one(cuda, ranges[i], where, stream, err);
        if (status != UM_OK) {
            return status;
        }
    }
    return UM_OK;
}

/* The driver's two parallel arrays, in one allocation: `count` pointers, then `count` sizes. */
typedef struct batch_arrays {
    CUdeviceptr *ptrs; /* owned */
    size_t *sizes;     /* part of the same allocation */
} batch_arrays;

static um_status make_batch(const um_range *ranges, size_t count, batch_arrays *out, um_error *err) {
    const size_t each = sizeof(CUdeviceptr) + sizeof(size_t);
    char *memory = count <= SIZE_MAX / each ? malloc(count * each) : NULL;
    if (memory == NULL) {
        return um_error_set(err, UM_ERR_NO_MEMORY, "no memory for a prefetch of %zu ranges", count);
    }
    out->ptrs = (CUdeviceptr *)(void *)memory;
    out->sizes = (size_t *)(void *)(memory + count * sizeof(CUdeviceptr));
    for (size_t i = 0; i < count; ++i) {
        out->ptrs[i] = (CUdeviceptr)(uintptr_t)ranges[i].ptr;
        out->sizes[i] = ranges[i].size;
    }
    return UM_OK;
}

static um_status prefetch_batch(um_cuda_backend *cuda, const um_range *ranges, size_t count, um_location where,
                                int device, um_stream_handle stream, um_error *err) {
    batch_arrays batch = {NULL, NULL};
    um_status status = make_batch(ranges, count, &batch, err);
    if (status != UM_OK) {
        return status;
    }
    detour path;
    status = detour_begin(cuda, device, stream, &path, err);
    if (status == UM_OK) {
        CUmemLocation location = to_location(cuda, where);
        size_t first = 0; /* the one location serves from the first range on */
        status = UM_CUDA_CALL(cuda, err, mem_prefetch_batch, batch.ptrs, batch.sizes, count, &location, &first, 1, 0,
                              path.use);
        status = detour_end(cuda, device, path, status, err);
    }
    free(batch.ptrs);
    return status;
}

um_status um_cuda_prefetch(um_backend *backend, const um_range *ranges, size_t count, um_location where, int device,
                           um_stream_handle stream, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_status status = um_cuda_check_location(cuda, where, err);
    if (status != UM_OK) {
        return status;
    }
    if (where.kind == UM_LOCATION_NONE) {
        return um_error_set(err, UM_ERR_VALUE, "prefetch needs a location");
    }
    um_cuda_scope scope;
    status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    bool able =
        cuda->devices[device].concurrent && (where.kind != UM_LOCATION_DEVICE || cuda->devices[where.id].concurrent);
    if (able && count > 1 && cuda->base.concurrent && cuda->driver->mem_prefetch_batch != NULL) {
        status = prefetch_batch(cuda, ranges, count, where, device, stream, err);
    } else if (able) {
        status = prefetch_each(cuda, ranges, count, where, (CUstream)stream, err);
    }
    return um_cuda_leave(cuda, scope, status, err);
}

/* --- discard ---------------------------------------------------------------------------------------------------- */

um_status um_cuda_discard(um_backend *backend, um_range range, int device, um_stream_handle stream, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    if (cuda->driver->mem_discard_batch == NULL || !cuda->base.concurrent) {
        return UM_OK;
    }
    um_cuda_scope scope;
    um_status status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    detour path;
    status = detour_begin(cuda, device, stream, &path, err);
    if (status == UM_OK) {
        CUdeviceptr ptr = (CUdeviceptr)(uintptr_t)range.ptr;
        size_t size = range.size;
        status = UM_CUDA_CALL(cuda, err, mem_discard_batch, &ptr, &size, 1, 0, path.use);
        status = detour_end(cuda, device, path, status, err);
    }
    return um_cuda_leave(cuda, scope, status, err);
}
