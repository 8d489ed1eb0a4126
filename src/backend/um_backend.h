/* The ops contract between core and the two kinds of memory: CUDA managed and ordinary host memory.
 *
 * Every op may be called from any thread. Ops that can block say so; core never calls one of those
 * while it holds its mutex. `device` is always a device ordinal in [0, device_count); the backend
 * makes that device's primary context current for the call and restores the caller's. Streams and
 * events are the driver's own handles. On the host backend device_count is 0, nothing is ever
 * pending, and the ops of the lower half are NULL: test `ops->launch` before use.
 */
#ifndef UM_BACKEND_H
#define UM_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/um_numa.h"
#include "core/um_location.h"
#include "core/um_status.h"

typedef struct um_backend um_backend;

/* Driver handles, opaque above the backend. 0 is never a valid event. */
typedef uintptr_t um_stream_handle;
typedef uintptr_t um_event_handle;
typedef uintptr_t um_kernel_handle;

#define UM_STREAM_LEGACY     ((um_stream_handle)1) /* CU_STREAM_LEGACY */
#define UM_STREAM_PER_THREAD ((um_stream_handle)2) /* CU_STREAM_PER_THREAD */

typedef struct um_device_info {
    char name[256];
    char uuid[48]; /* "GPU-xxxxxxxx-…", empty when the driver cannot say */
    int compute_major, compute_minor;
    size_t total_memory; /* bytes */
    int multiprocessors;
    int l2_cache;  /* bytes */
    int numa_node; /* host NUMA node next to the device, -1 when unknown */
    bool managed_memory;
    bool concurrent_managed_access;
    bool pageable_memory_access;
    bool host_native_atomics;
    bool direct_host_access; /* directManagedMemAccessFromHost */
    bool memory_pools;
} um_device_info;

typedef struct um_range {
    void *ptr;
    size_t size; /* bytes, > 0 */
} um_range;

typedef enum um_advice {
    UM_ADVICE_READ_MOSTLY,
    UM_ADVICE_UNSET_READ_MOSTLY,
    UM_ADVICE_PREFERRED_LOCATION,
    UM_ADVICE_UNSET_PREFERRED_LOCATION,
    UM_ADVICE_ACCESSED_BY,
    UM_ADVICE_UNSET_ACCESSED_BY,
} um_advice;

typedef struct um_pointer_info {
    bool known;   /* the driver knows the pointer; everything else is meaningless otherwise */
    bool managed; /* managed memory: valid on host and device */
    bool host;    /* page-locked or registered host memory */
    int device;   /* ordinal it was allocated on; -1 for host memory */
    char *base;   /* first byte of its allocation */
    size_t size;  /* bytes of its allocation */
} um_pointer_info;

typedef struct um_launch {
    um_kernel_handle kernel;
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x;
    unsigned shared_bytes;
    void **params; /* one pointer per kernel parameter */
} um_launch;

typedef struct um_backend_ops {
    const char *name; /* "cuda" or "host" */

    void (*close)(um_backend *backend);

    /* --- memory: both backends ------------------------------------------------------------ */

    /* At least `size` > 0 bytes, 512-byte aligned. From 2 MiB on 2 MiB aligned: promised by the host backend, what
     * CUDA's driver does in practice but promises nowhere, so only speed may depend on it. CUDA: managed memory of
     * `device`, unmapped in forked children, accessed-by `device` from birth when size is a page group (64 KiB) or
     * more, and given the preferred location `home` when that is set (the block then is at least a page group);
     * a device without concurrent access takes no advice. On hosts with several NUMA nodes, pages that the host has are
     * made on the node next to `device`, or the one that `home` names. Fresh host memory is zero; fresh CUDA memory is not.
     * Fails with UM_ERR_OUT_OF_MEMORY, UM_ERR_VALUE for a home that is not there, or UM_ERR_UNSUPPORTED for a NUMA
     * home on a driver before CUDA 12.2. */
    UM_MUST_CHECK um_status (*mem_alloc)(um_backend *backend, size_t size, int device, um_location home, void **out,
                                         um_error *err);
    /* Frees what mem_alloc returned; `size` and `device` as given there. May block until work that uses
     * the memory is done. The memory is gone even when an error is returned. */
    UM_MUST_CHECK um_status (*mem_free)(um_backend *backend, void *ptr, size_t size, int device, um_error *err);

    /* Starts moving the ranges to `where` in order on `stream` of `device`: one driver call where the
     * driver has the batch form (which refuses the legacy stream: the backend then orders an own stream
     * before and after it). Can block for milliseconds. No effect on devices without concurrent access. Host
     * backend: no effect for devices; for the host, populates the pages. On failure some ranges may be on their way. */
    UM_MUST_CHECK um_status (*prefetch)(um_backend *backend, const um_range *ranges, size_t count, um_location where,
                                        int device, um_stream_handle stream, um_error *err);
    /* `where` counts for preferred location and (unset) accessed-by only. UM_ERR_UNSUPPORTED for a NUMA node on a
     * driver before CUDA 12.2. No effect on devices without concurrent access, and on the host backend. */
    UM_MUST_CHECK um_status (*advise)(um_backend *backend, um_range range, um_advice advice, um_location where,
                                      um_error *err);
    /* The contents no longer matter. Ordered on `stream`. Does nothing where the driver has no discard.
     * The range has been shrunk by the caller to whole pages of um_page_group(). Host backend:
     * MADV_DONTNEED, so contents become zero. */
    UM_MUST_CHECK um_status (*discard)(um_backend *backend, um_range range, int device, um_stream_handle stream,
                                       um_error *err);

    /* Bytes of the system's memory, free and in all; `device` is ignored. Host backend only: NULL on CUDA, where device_info has the total. */
    UM_MUST_CHECK um_status (*mem_info)(um_backend *backend, int device, size_t *free_bytes, size_t *total_bytes,
                                        um_error *err);

    /* --- devices: CUDA only (NULL on the host backend) ------------------------------------- */

    UM_MUST_CHECK um_status (*device_info)(um_backend *backend, int device, um_device_info *out, um_error *err);
    /* Whether umem has started the device: its context is retained. */
    bool (*in_use)(um_backend *backend, int device);
    /* Blocks until every context of this process that umem or another library has active is idle. */
    UM_MUST_CHECK um_status (*synchronize)(um_backend *backend, um_error *err);
    UM_MUST_CHECK um_status (*pointer_info)(um_backend *backend, const void *ptr, um_pointer_info *out, um_error *err);

    /* Device the stream belongs to; -1 for the legacy, per-thread and null streams. `id` is unique over the process's
     * life where the driver can tell, else the handle. */
    UM_MUST_CHECK um_status (*stream_info)(um_backend *backend, um_stream_handle stream, int *device,
                                           unsigned long long *id, um_error *err);
    /* A stream that does not wait for the legacy stream, nor that for it. */
    UM_MUST_CHECK um_status (*stream_create)(um_backend *backend, int device, um_stream_handle *out, um_error *err);
    UM_MUST_CHECK um_status (*stream_destroy)(um_backend *backend, int device, um_stream_handle stream, um_error *err);
    /* *done says whether the work on the stream itself is finished; unfinished is not an error. */
    UM_MUST_CHECK um_status (*stream_query)(um_backend *backend, int device, um_stream_handle stream, bool *done,
                                            um_error *err);
    UM_MUST_CHECK um_status (*stream_synchronize)(um_backend *backend, int device, um_stream_handle stream,
                                                  um_error *err); /* blocks */
    UM_MUST_CHECK um_status (*event_create)(um_backend *backend, int device, um_event_handle *out, um_error *err);
    void (*event_destroy)(um_backend *backend, int device, um_event_handle event);
    UM_MUST_CHECK um_status (*event_record)(um_backend *backend, int device, um_event_handle event,
                                            um_stream_handle stream, um_error *err);
    /* *done says whether the work before the event is finished; unfinished is not an error. */
    UM_MUST_CHECK um_status (*event_query)(um_backend *backend, int device, um_event_handle event, bool *done,
                                           um_error *err);
    UM_MUST_CHECK um_status (*event_synchronize)(um_backend *backend, int device, um_event_handle event,
                                                 um_error *err); /* blocks */
    /* Work put on `stream` from now on waits for the event. */
    UM_MUST_CHECK um_status (*stream_wait_event)(um_backend *backend, int device, um_stream_handle stream,
                                                 um_event_handle event, um_error *err);

    /* Copies of any mix of managed, device and page-locked memory; no managed page moves. Asynchronous on
     * page-locked memory; with pageable memory on one side they return when that side may be reused. */
    UM_MUST_CHECK um_status (*copy)(um_backend *backend, int device, void *dst, const void *src, size_t size,
                                    um_stream_handle stream, um_error *err);
    /* `height` rows of `width` bytes, `dst_pitch` and `src_pitch` bytes apart (pitch >= width). dst is host memory. */
    UM_MUST_CHECK um_status (*copy_2d_to_host)(um_backend *backend, int device, void *dst, size_t dst_pitch,
                                               const void *src, size_t src_pitch, size_t width, size_t height,
                                               um_stream_handle stream, um_error *err);
    UM_MUST_CHECK um_status (*fill_bytes)(um_backend *backend, int device, void *ptr, unsigned char value, size_t size,
                                          um_stream_handle stream, um_error *err);
    /* Page-locked host memory, usable from every device. */
    UM_MUST_CHECK um_status (*staging_alloc)(um_backend *backend, int device, size_t size, void **out, um_error *err);
    void (*staging_free)(um_backend *backend, void *ptr);

    /* The kernel called `name` in the embedded images. Loading happens at first use. Valid on every device, until close. */
    UM_MUST_CHECK um_status (*kernel_get)(um_backend *backend, const char *name, um_kernel_handle *out, um_error *err);
    UM_MUST_CHECK um_status (*launch)(um_backend *backend, int device, um_stream_handle stream, const um_launch *launch,
                                      um_error *err);
} um_backend_ops;

/* Common head of both implementations; each embeds it as its first member. */
struct um_backend {
    const um_backend_ops *ops;
    int device_count;
    int driver_version; /* e.g. 13000; 0 on the host backend */
    bool concurrent;    /* every device has concurrentManagedAccess (true on the host backend) */
    um_numa numa;       /* changed by nobody once the context is in use */
    char driver_path[512];
};

UM_MUST_CHECK um_status um_backend_host_open(um_backend **out, um_error *err);

/* Opens the driver at `library` (NULL: the system's). Fails with UM_ERR_NO_DRIVER when there is no driver, no
 * device, or no device with managed memory. Starts no context: a device's primary context is retained at its first use. */
UM_MUST_CHECK um_status um_backend_cuda_open(const char *library, um_backend **out, um_error *err);

#endif
