/* Compile-time checks that every fake has the signature, the symbol and the version of cuda.h's
 * own typedef for its ABI.
 *
 * A line of um_driver_calls.h without a line here, or that differs from it, does not compile.
 */
#include "fake_internal.h"

#include <cudaTypedefs.h>

/* clang-format off */
#define ABI(field, symbol, number)                                        \
    typedef PFN_##symbol##_v##number abi_##field;                         \
    enum { version_##field = number };                                    \
    static const char symbol_##field[] __attribute__((unused)) = #symbol;

#if CUDA_VERSION >= 13000
#define ABI_13 ABI
#else /* cuda.h does not declare it: only symbol and version are checked */
#define ABI_13(field, symbol, number)                                     \
    typedef __typeof__(&fake_##field) abi_##field;                        \
    enum { version_##field = number };                                    \
    static const char symbol_##field[] __attribute__((unused)) = #symbol;
#endif

ABI(init, cuInit, 2000)
ABI(driver_get_version, cuDriverGetVersion, 2020)
ABI(get_error_name, cuGetErrorName, 6000)
ABI(get_error_string, cuGetErrorString, 6000)

ABI(device_get_count, cuDeviceGetCount, 2000)
ABI(device_get, cuDeviceGet, 2000)
ABI(device_get_name, cuDeviceGetName, 2000)
ABI(device_get_uuid, cuDeviceGetUuid, 11040)
ABI(device_get_attribute, cuDeviceGetAttribute, 2000)
ABI(device_total_mem, cuDeviceTotalMem, 3020)
ABI(primary_ctx_retain, cuDevicePrimaryCtxRetain, 7000)
ABI(primary_ctx_release, cuDevicePrimaryCtxRelease, 11000)
ABI(primary_ctx_get_state, cuDevicePrimaryCtxGetState, 7000)

ABI(ctx_get_current, cuCtxGetCurrent, 4000)
ABI(ctx_push_current, cuCtxPushCurrent, 4000)
ABI(ctx_pop_current, cuCtxPopCurrent, 4000)
ABI(ctx_get_device, cuCtxGetDevice, 2000)
ABI(ctx_synchronize, cuCtxSynchronize, 2000)

ABI(mem_get_info, cuMemGetInfo, 3020)
ABI(mem_alloc_managed, cuMemAllocManaged, 6000)
ABI(mem_free, cuMemFree, 3020)
ABI(mem_host_alloc, cuMemHostAlloc, 2020)
ABI(mem_free_host, cuMemFreeHost, 2000)
ABI(mem_prefetch_device, cuMemPrefetchAsync, 8000)
ABI(mem_prefetch_location, cuMemPrefetchAsync, 12020)
ABI_13(mem_prefetch_batch, cuMemPrefetchBatchAsync, 13000)
ABI_13(mem_discard_batch, cuMemDiscardBatchAsync, 13000)
ABI(mem_advise_device, cuMemAdvise, 8000)
ABI(mem_advise_location, cuMemAdvise, 12020)
ABI(pointer_get_attributes, cuPointerGetAttributes, 7000)

ABI(memcpy_async, cuMemcpyAsync, 4000)
ABI(memcpy_2d_async, cuMemcpy2DAsync, 3020)
ABI(memset_d8_async, cuMemsetD8Async, 3020)

ABI(stream_create, cuStreamCreate, 2000)
ABI(stream_destroy, cuStreamDestroy, 4000)
ABI(stream_synchronize, cuStreamSynchronize, 2000)
ABI(stream_query, cuStreamQuery, 2000)
ABI(stream_wait_event, cuStreamWaitEvent, 3020)
ABI(stream_get_ctx, cuStreamGetCtx, 9020)
ABI(stream_get_id, cuStreamGetId, 12000)

ABI(event_create, cuEventCreate, 2000)
ABI(event_destroy, cuEventDestroy, 4000)
ABI(event_record, cuEventRecord, 2000)
ABI(event_query, cuEventQuery, 2000)
ABI(event_synchronize, cuEventSynchronize, 2000)

ABI(library_load_data, cuLibraryLoadData, 12000)
ABI(library_unload, cuLibraryUnload, 12000)
ABI(library_get_kernel, cuLibraryGetKernel, 12000)
ABI(launch_kernel, cuLaunchKernel, 4000)
/* clang-format on */

#define UM_DRIVER_CALL(field, symbol, version, need, params)                                                           \
    _Static_assert((version) == version_##field, #field ": version differs from its ABI line");                        \
    _Static_assert(__builtin_strcmp(symbol, symbol_##field) == 0, #field ": symbol differs from its ABI line");        \
    _Static_assert(__builtin_types_compatible_p(abi_##field, __typeof__(&fake_##field)),                               \
                   #field ": parameters differ from cuda.h");
#include "driver/um_driver_calls.h"
#undef UM_DRIVER_CALL
