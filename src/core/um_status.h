/* Status codes and error details shared by every layer.
 *
 * A function that can fail returns um_status (must be checked) and takes a `um_error *` as its last
 * parameter, which is filled only on failure. On failure outputs are untouched and inputs still
 * belong to the caller. Nothing below src/py logs or raises; src/py/um_errors.c turns an um_error
 * into an exception.
 */
#ifndef UM_STATUS_H
#define UM_STATUS_H

#include <stddef.h>

#if defined(__GNUC__)
#define UM_MUST_CHECK        __attribute__((warn_unused_result))
#define UM_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define UM_MUST_CHECK
#define UM_PRINTF(fmt, args)
#endif

typedef enum um_status {
    UM_OK = 0,
    UM_ERR_NO_MEMORY,     /* malloc of our own bookkeeping failed: MemoryError */
    UM_ERR_OUT_OF_MEMORY, /* device, system or limit has no room for the block: OutOfMemoryError */
    UM_ERR_VALUE,         /* bad argument value: ValueError */
    UM_ERR_TYPE,          /* bad argument type: TypeError */
    UM_ERR_BUFFER,        /* memory cannot be shared as asked: BufferError */
    UM_ERR_FORKED,        /* inherited across fork: RuntimeError */
    UM_ERR_BUSY,          /* the GPU uses the block and the host may not touch it: RuntimeError */
    UM_ERR_UNSUPPORTED,   /* the driver or device lacks the operation: RuntimeError */
    UM_ERR_CUDA,          /* a driver call failed: CudaError */
    UM_ERR_NO_DRIVER,     /* no usable driver: DriverNotFoundError */
    UM_ERR_INTERRUPTED,   /* the caller gave up a wait: what the signal's handler raised */
} um_status;

typedef struct um_error {
    um_status status;
    int cuda_code;    /* CUresult of the failed call, 0 when status is not UM_ERR_CUDA */
    const char *call; /* driver entry point that failed, static storage, or NULL */
    char name[64];    /* CUresult's name, e.g. "CUDA_ERROR_INVALID_VALUE" */
    /* UM_ERR_OUT_OF_MEMORY: figures in bytes. limit is SIZE_MAX when no limit refused the request. */
    size_t requested;
    size_t in_use;
    size_t limit;
    int device; /* device ordinal the figures speak of, -1 for all together or host */
    char message[512];
} um_error;

/* um_error_set(err, status, format, ...) fills *err (which may be NULL) with a formatted message and returns `status`.
 * A macro, so that compilers and analysers see that what comes back is the status given, and never UM_OK. */
#define um_error_set(err, status, ...) (um_error_format((err), (status), __VA_ARGS__), um_error_status(status))

void um_error_format(um_error *err, um_status status, const char *format, ...) UM_PRINTF(3, 4);

static inline um_status um_error_status(um_status status) { return status; }

#endif
