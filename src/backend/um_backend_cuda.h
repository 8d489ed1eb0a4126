/* What the files of the CUDA backend share. Private to src/backend/um_backend_cuda*.c. */
#ifndef UM_BACKEND_CUDA_H
#define UM_BACKEND_CUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "backend/um_backend.h"
#include "driver/um_driver.h"

typedef struct um_cuda_device {
    CUdevice handle;
    bool managed;    /* has managed memory */
    bool concurrent; /* host and device may use managed memory at once; advice and prefetch need it */
    int numa_node;   /* of the host, next to the device; -1 when unknown */
    /* Primary context, retained at first use and released by close; NULL before. Written under lock. */
    _Atomic(CUcontext) context;
    /* Non-blocking, for the calls that refuse the legacy stream; made at first use, NULL before. Written under lock. */
    _Atomic(CUstream) own_stream;
    /* One event that no call uses at the moment, or NULL: whoever swaps it out owns it. */
    _Atomic(CUevent) spare_event;
} um_cuda_device;

typedef struct um_cuda_backend {
    um_backend base;
    um_driver *driver; /* owned */
    pid_t owner;       /* process that opened the backend: a forked child must not call the driver */
    /* Held while a context is retained, an own stream made or a kernel image loaded. Innermost: nothing is called under
     * it but the driver. */
    pthread_mutex_t lock;
    CUlibrary *libraries;     /* um_kernel_image_count entries, NULL until loaded; guarded by lock; owned */
    um_cuda_device devices[]; /* base.device_count entries */
} um_cuda_backend;

/* Whether this call made a context current that has to be taken off again. */
typedef struct um_cuda_scope {
    bool pushed;
} um_cuda_scope;

static inline um_cuda_backend *um_cuda_of(um_backend *backend) {
    return (um_cuda_backend *)backend; /* base is the first member */
}

static inline um_status um_cuda_check(const um_cuda_backend *cuda, CUresult result, const char *call, um_error *err) {
    return result == CUDA_SUCCESS ? UM_OK : um_driver_error(cuda->driver, result, call, err);
}

/* Calls the driver; a um_status. `field` names the call as in um_driver_calls.h. */
#define UM_CUDA_CALL(cuda, err, field, ...)                                                                            \
    um_cuda_check((cuda), (cuda)->driver->field(__VA_ARGS__), um_driver_call_names.field, (err))

/* --- um_backend_cuda.c: contexts -------------------------------------------------------------------------------- */

/* Makes the device's primary context current, retaining it at first use. UM_ERR_VALUE when there is no such device. */
UM_MUST_CHECK um_status um_cuda_enter(um_cuda_backend *cuda, int device, um_cuda_scope *scope, um_error *err);
/* As um_cuda_enter, for giving something back: that is not given up for a failure that passes, so it tries twice. */
UM_MUST_CHECK um_status um_cuda_enter_to_free(um_cuda_backend *cuda, int device, um_cuda_scope *scope, um_error *err);
/* Ends what um_cuda_enter began. Returns `status` when that is a failure, else whether the caller's context is back. */
UM_MUST_CHECK um_status um_cuda_leave(const um_cuda_backend *cuda, um_cuda_scope scope, um_status status,
                                      um_error *err);
/* A device whose context is already retained, else 0: for calls that need some context, whichever. */
int um_cuda_any_device(const um_cuda_backend *cuda);
/* The device's own stream, made at first use. Its context is current. */
UM_MUST_CHECK um_status um_cuda_own_stream(um_cuda_backend *cuda, int device, CUstream *out, um_error *err);

um_status um_cuda_synchronize(um_backend *backend, um_error *err);
um_status um_cuda_device_info(um_backend *backend, int device, um_device_info *out, um_error *err);

/* --- um_backend_cuda_memory.c ----------------------------------------------------------------------------------- */

um_status um_cuda_mem_alloc(um_backend *backend, size_t size, int device, um_location home, void **out, um_error *err);
um_status um_cuda_mem_free(um_backend *backend, void *ptr, size_t size, int device, um_error *err);
um_status um_cuda_pointer_info(um_backend *backend, const void *ptr, um_pointer_info *out, um_error *err);
um_status um_cuda_staging_alloc(um_backend *backend, int device, size_t size, void **out, um_error *err);
void um_cuda_staging_free(um_backend *backend, void *ptr);

/* --- um_backend_cuda_placement.c -------------------------------------------------------------------------------- */

/* UM_ERR_VALUE when `where` names a device that is not there. */
UM_MUST_CHECK um_status um_cuda_check_location(const um_cuda_backend *cuda, um_location where, um_error *err);
/* cuMemAdvise in the form this driver has. A context is current. */
UM_MUST_CHECK um_status um_cuda_advise_range(const um_cuda_backend *cuda, um_range range, um_advice advice,
                                             um_location where, um_error *err);

um_status um_cuda_prefetch(um_backend *backend, const um_range *ranges, size_t count, um_location where, int device,
                           um_stream_handle stream, um_error *err);
um_status um_cuda_advise(um_backend *backend, um_range range, um_advice advice, um_location where, um_error *err);
um_status um_cuda_discard(um_backend *backend, um_range range, int device, um_stream_handle stream, um_error *err);

/* --- um_backend_cuda_streams.c ---------------------------------------------------------------------------------- */

um_status um_cuda_stream_info(um_backend *backend, um_stream_handle stream, int *device, unsigned long long *id,
                              um_error *err);
um_status um_cuda_stream_create(um_backend *backend, int device, um_stream_handle *out, um_error *err);
um_status um_cuda_stream_destroy(um_backend *backend, int device, um_stream_handle stream, um_error *err);
um_status um_cuda_stream_query(um_backend *backend, int device, um_stream_handle stream, bool *done, um_error *err);
um_status um_cuda_stream_synchronize(um_backend *backend, int device, um_stream_handle stream, um_error *err);
um_status um_cuda_event_create(um_backend *backend, int device, um_event_handle *out, um_error *err);
void um_cuda_event_destroy(um_backend *backend, int device, um_event_handle event);
um_status um_cuda_event_record(um_backend *backend, int device, um_event_handle event, um_stream_handle stream,
                               um_error *err);
um_status um_cuda_event_query(um_backend *backend, int device, um_event_handle event, bool *done, um_error *err);
um_status um_cuda_event_synchronize(um_backend *backend, int device, um_event_handle event, um_error *err);
um_status um_cuda_stream_wait_event(um_backend *backend, int device, um_stream_handle stream, um_event_handle event,
                                    um_error *err);
um_status um_cuda_copy(um_backend *backend, int device, void *dst, const void *src, size_t size,
                       um_stream_handle stream, um_error *err);
um_status um_cuda_copy_2d_to_host(um_backend *backend, int device, void *dst, size_t dst_pitch, const void *src,
                                  size_t src_pitch, size_t width, size_t height, um_stream_handle stream,
                                  um_error *err);
um_status um_cuda_fill_bytes(um_backend *backend, int device, void *ptr, unsigned char value, size_t size,
                             um_stream_handle stream, um_error *err);

/* --- um_backend_cuda_kernels.c ---------------------------------------------------------------------------------- */

um_status um_cuda_kernel_get(um_backend *backend, const char *name, um_kernel_handle *out, um_error *err);
um_status um_cuda_launch(um_backend *backend, int device, um_stream_handle stream, const um_launch *launch,
                         um_error *err);
/* Unloads what kernel_get loaded. Only close calls it, with every context idle. */
void um_cuda_unload_images(um_cuda_backend *cuda);

#endif
