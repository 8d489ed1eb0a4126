/* The CUDA driver, loaded at run time: a value owned by a backend, never a global. */
#ifndef UM_DRIVER_H
#define UM_DRIVER_H

#include <cuda.h>

#include "core/um_status.h"

typedef struct um_driver {
#define UM_DRIVER_CALL(field, symbol, version, need, params) CUresult(*field) params;
#include "driver/um_driver_calls.h"
#undef UM_DRIVER_CALL
    void *library; /* dlopen handle, owned */
    int version;   /* cuDriverGetVersion, e.g. 13000 */
    int device_count;
    char path[512]; /* what dlopen was given */
} um_driver;

/* The symbol of each call, by the field's name: um_driver_call_names.mem_free is "cuMemFree". For error messages. */
typedef struct um_driver_names {
#define UM_DRIVER_CALL(field, symbol, version, need, params) const char *field;
#include "driver/um_driver_calls.h"
#undef UM_DRIVER_CALL
} um_driver_names;

extern const um_driver_names um_driver_call_names;

/* Loads the driver library and calls cuInit.
 *
 * path  library to open; NULL tries libcuda.so.1 and, failing that, libcuda.so.
 * Fails with UM_ERR_NO_DRIVER, saying what was tried, when the library cannot be opened, lacks a
 * required call, is older than CUDA 12.0, or has no device (cuInit's NO_DEVICE included).
 */
UM_MUST_CHECK um_status um_driver_open(const char *path, um_driver **out, um_error *err);

/* Closes our reference to the library. The caller has released everything it created through the table. The library's
 * code stays mapped until the process ends: cuInit may have left threads and exit handlers that run in it. */
void um_driver_close(um_driver *driver);

/* Fills *err from a failed call's result and returns UM_ERR_CUDA (UM_ERR_OUT_OF_MEMORY for
 * CUDA_ERROR_OUT_OF_MEMORY, with the figures left 0 and cuda_code 0). `call` is static storage. */
um_status um_driver_error(const um_driver *driver, CUresult result, const char *call, um_error *err);

#endif
