/* The CUDA backend's streams, events, copies and fills. */
#define _GNU_SOURCE 1 /* pthread types in the private header */
#include "backend/um_backend_cuda.h"

#include <string.h>

/* --- streams ---------------------------------------------------------------------------------------------------- */

static int ordinal_of(const um_cuda_backend *cuda, CUdevice handle) {
    for (int device = 0; device < cuda->base.device_count; ++device) {
        if (cuda->devices[device].handle == handle) {
            return device;
        }
    }
    return -1;
}

/* Whether the stream's context is a primary one or, as with older libraries, not: it is asked itself. */
static um_status ask_context(const um_cuda_backend *cuda, CUcontext context, CUstream stream, int *device,
                             unsigned long long *id, um_error *err) {
    CUcontext current = NULL;
    um_status status = UM_CUDA_CALL(cuda, err, ctx_get_current, &current);
    um_cuda_scope scope = {.pushed = false};
    if (status == UM_OK && current != context) {
        status = UM_CUDA_CALL(cuda, err, ctx_push_current, context);
        scope.pushed = status == UM_OK;
    }
    if (status != UM_OK) {
        return status;
    }
    CUdevice handle = 0;
    unsigned long long found_id = (um_stream_handle)stream;
    status = UM_CUDA_CALL(cuda, err, ctx_get_device, &handle);
    if (status == UM_OK && cuda->driver->stream_get_id != NULL) {
        status = UM_CUDA_CALL(cuda, err, stream_get_id, stream, &found_id);
    }
    status = um_cuda_leave(cuda, scope, status, err);
    if (status == UM_OK) {
        *device = ordinal_of(cuda, handle);
        *id = found_id;
    }
    return status;
}

um_status um_cuda_stream_info(um_backend *backend, um_stream_handle stream, int *device, unsigned long long *id,
                              um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    if (stream == 0 || stream == UM_STREAM_LEGACY || stream == UM_STREAM_PER_THREAD) {
        *device = -1;
        *id = stream;
        return UM_OK;
    }
    CUcontext context = NULL;
    um_status status = UM_CUDA_CALL(cuda, err, stream_get_ctx, (CUstream)stream, &context);
    if (status != UM_OK) {
        return status;
    }
    return ask_context(cuda, context, (CUstream)stream, device, id, err);
}

/* Ends a call that has asked `call` whether work is finished. */
static um_status leave_query(const um_cuda_backend *cuda, um_cuda_scope scope, CUresult result, const char *call,
                             bool *done, um_error *err) {
    bool unfinished = result == CUDA_ERROR_NOT_READY; /* an answer, not a failure */
    um_status status = um_cuda_check(cuda, unfinished ? CUDA_SUCCESS : result, call, err);
    status = um_cuda_leave(cuda, scope, status, err);
    if (status == UM_OK) {
        *done = !unfinished;
    }
    return status;
}

um_status um_cuda_stream_create(um_backend *backend, int device, um_stream_handle *out, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_cuda_scope scope;
    um_status status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    CUstream stream = NULL;
    status = UM_CUDA_CALL(cuda, err, stream_create, &stream, CU_STREAM_NON_BLOCKING);
    status = um_cuda_leave(cuda, scope, status, err);
    if (status == UM_OK) {
        *out = (um_stream_handle)stream;
    } else if (stream != NULL) {
        um_status destroyed = um_cuda_stream_destroy(backend, device, (um_stream_handle)stream, NULL);
        (void)destroyed;
    }
    return status;
}

um_status um_cuda_stream_destroy(um_backend *backend, int device, um_stream_handle stream, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_cuda_scope scope;
    um_status status = um_cuda_enter_to_free(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    status = UM_CUDA_CALL(cuda, err, stream_destroy, (CUstream)stream);
    return um_cuda_leave(cuda, scope, status, err);
}

um_status um_cuda_stream_query(um_backend *backend, int device, um_stream_handle stream, bool *done, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_cuda_scope scope;
    um_status status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    CUresult result = cuda->driver->stream_query((CUstream)stream);
    return leave_query(cuda, scope, result, um_driver_call_names.stream_query, done, err);
}

um_status um_cuda_stream_synchronize(um_backend *backend, int device, um_stream_handle stream, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_cuda_scope scope;
    um_status status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    status = UM_CUDA_CALL(cuda, err, stream_synchronize, (CUstream)stream);
    return um_cuda_leave(cuda, scope, status, err);
}

/* --- events ----------------------------------------------------------------------------------------------------- */

um_status um_cuda_event_create(um_backend *backend, int device, um_event_handle *out, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_cuda_scope scope;
    um_status status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    CUevent event = NULL;
    status = UM_CUDA_CALL(cuda, err, event_create, &event, CU_EVENT_DISABLE_TIMING);
    status = um_cuda_leave(cuda, scope, status, err);
    if (status == UM_OK) {
        *out = (um_event_handle)event;
    } else if (event != NULL) {
        um_cuda_event_destroy(backend, device, (um_event_handle)event);
    }
    return status;
}

void um_cuda_event_destroy(um_backend *backend, int device, um_event_handle event) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_cuda_scope scope = {.pushed = false};
    um_status entered = um_cuda_enter_to_free(cuda, device, &scope, NULL);
    (void)cuda->driver->event_destroy((CUevent)event);
    if (entered == UM_OK) {
        um_status left = um_cuda_leave(cuda, scope, UM_OK, NULL);
        (void)left;
    }
}

um_status um_cuda_event_record(um_backend *backend, int device, um_event_handle event, um_stream_handle stream,
                               um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_cuda_scope scope;
    um_status status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    status = UM_CUDA_CALL(cuda, err, event_record, (CUevent)event, (CUstream)stream);
    return um_cuda_leave(cuda, scope, status, err);
}

um_status um_cuda_event_query(um_backend *backend, int device, um_event_handle event, bool *done, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_cuda_scope scope;
    um_status status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    CUresult result = cuda->driver->event_query((CUevent)event);
    return leave_query(cuda, scope, result, um_driver_call_names.event_query, done, err);
}

um_status um_cuda_event_synchronize(um_backend *backend, int device, um_event_handle event, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_cuda_scope scope;
    um_status status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    status = UM_CUDA_CALL(cuda, err, event_synchronize, (CUevent)event);
    return um_cuda_leave(cuda, scope, status, err);
}

um_status um_cuda_stream_wait_event(um_backend *backend, int device, um_stream_handle stream, um_event_handle event,
                                    um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_cuda_scope scope;
    um_status status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    status = UM_CUDA_CALL(cuda, err, stream_wait_event, (CUstream)stream, (CUevent)event, CU_EVENT_WAIT_DEFAULT);
    return um_cuda_leave(cuda, scope, status, err);
}

/* --- copies and fills ------------------------------------------------------------------------------------------- */

um_status um_cuda_copy(um_backend *backend, int device, void *dst, const void *src, size_t size,
                       um_stream_handle stream, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_cuda_scope scope;
    um_status status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    status = UM_CUDA_CALL(cuda, err, memcpy_async, (CUdeviceptr)(uintptr_t)dst, (CUdeviceptr)(uintptr_t)src, size,
                          (CUstream)stream);
    return um_cuda_leave(cuda, scope, status, err);
}

um_status um_cuda_copy_2d_to_host(um_backend *backend, int device, void *dst, size_t dst_pitch, const void *src,
                                  size_t src_pitch, size_t width, size_t height, um_stream_handle stream,
                                  um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    CUDA_MEMCPY2D copy;
    memset(&copy, 0, sizeof(copy));
    copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.srcDevice = (CUdeviceptr)(uintptr_t)src;
    copy.srcPitch = src_pitch;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = dst;
    copy.dstPitch = dst_pitch;
    copy.WidthInBytes = width;
    copy.Height = height;
    um_cuda_scope scope;
    um_status status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    status = UM_CUDA_CALL(cuda, err, memcpy_2d_async, &copy, (CUstream)stream);
    return um_cuda_leave(cuda, scope, status, err);
}

um_status um_cuda_fill_bytes(um_backend *backend, int device, void *ptr, unsigned char value, size_t size,
                             um_stream_handle stream, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_cuda_scope scope;
    um_status status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    status = UM_CUDA_CALL(cuda, err, memset_d8_async, (CUdeviceptr)(uintptr_t)ptr, value, size, (CUstream)stream);
    return um_cuda_leave(cuda, scope, status, err);
}
