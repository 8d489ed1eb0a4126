/* Every driver entry point umem uses: one line each, expanded by the driver table (um_driver.h),
 * its loader, the call-name strings and the fake driver of the tests.
 *
 *   UM_DRIVER_CALL(field, symbol, version, need, (parameters))
 *
 * field    name of the function pointer in um_driver
 * symbol   name passed to cuGetProcAddress
 * version  CUDA version passed to cuGetProcAddress: it selects the ABI of the symbol
 * need     REQUIRED: a driver without it is too old; OPTIONAL: the pointer may be NULL
 *
 * All return CUresult. Parameters are those of cuda.h for that ABI version.
 */
/* clang-format off */
#ifndef UM_DRIVER_CALL
#error "define UM_DRIVER_CALL before including um_driver_calls.h"
#endif

UM_DRIVER_CALL(init, "cuInit", 2000, REQUIRED, (unsigned int flags))
UM_DRIVER_CALL(driver_get_version, "cuDriverGetVersion", 2020, REQUIRED, (int *version))
UM_DRIVER_CALL(get_error_name, "cuGetErrorName", 6000, REQUIRED, (CUresult error, const char **name))
UM_DRIVER_CALL(get_error_string, "cuGetErrorString", 6000, REQUIRED, (CUresult error, const char **text))

UM_DRIVER_CALL(device_get_count, "cuDeviceGetCount", 2000, REQUIRED, (int *count))
UM_DRIVER_CALL(device_get, "cuDeviceGet", 2000, REQUIRED, (CUdevice *device, int ordinal))
UM_DRIVER_CALL(device_get_name, "cuDeviceGetName", 2000, REQUIRED, (char *name, int len, CUdevice device))
UM_DRIVER_CALL(device_get_uuid, "cuDeviceGetUuid", 11040, OPTIONAL, (CUuuid *uuid, CUdevice device))
UM_DRIVER_CALL(device_get_attribute, "cuDeviceGetAttribute", 2000, REQUIRED, (int *value, CUdevice_attribute attribute, CUdevice device))
UM_DRIVER_CALL(device_total_mem, "cuDeviceTotalMem", 3020, REQUIRED, (size_t *bytes, CUdevice device))
UM_DRIVER_CALL(primary_ctx_retain, "cuDevicePrimaryCtxRetain", 7000, REQUIRED, (CUcontext *context, CUdevice device))
UM_DRIVER_CALL(primary_ctx_release, "cuDevicePrimaryCtxRelease", 11000, REQUIRED, (CUdevice device))
UM_DRIVER_CALL(primary_ctx_get_state, "cuDevicePrimaryCtxGetState", 7000, REQUIRED, (CUdevice device, unsigned int *flags, int *active))

UM_DRIVER_CALL(ctx_get_current, "cuCtxGetCurrent", 4000, REQUIRED, (CUcontext *context))
UM_DRIVER_CALL(ctx_push_current, "cuCtxPushCurrent", 4000, REQUIRED, (CUcontext context))
UM_DRIVER_CALL(ctx_pop_current, "cuCtxPopCurrent", 4000, REQUIRED, (CUcontext *context))
UM_DRIVER_CALL(ctx_get_device, "cuCtxGetDevice", 2000, REQUIRED, (CUdevice *device))
UM_DRIVER_CALL(ctx_synchronize, "cuCtxSynchronize", 2000, REQUIRED, (void))

UM_DRIVER_CALL(mem_get_info, "cuMemGetInfo", 3020, REQUIRED, (size_t *free, size_t *total))
UM_DRIVER_CALL(mem_alloc_managed, "cuMemAllocManaged", 6000, REQUIRED, (CUdeviceptr *ptr, size_t size, unsigned int flags))
UM_DRIVER_CALL(mem_free, "cuMemFree", 3020, REQUIRED, (CUdeviceptr ptr))
UM_DRIVER_CALL(mem_host_alloc, "cuMemHostAlloc", 2020, REQUIRED, (void **ptr, size_t size, unsigned int flags))
UM_DRIVER_CALL(mem_free_host, "cuMemFreeHost", 2000, REQUIRED, (void *ptr))
UM_DRIVER_CALL(mem_prefetch_device, "cuMemPrefetchAsync", 8000, REQUIRED, (CUdeviceptr ptr, size_t size, CUdevice device, CUstream stream))
UM_DRIVER_CALL(mem_prefetch_location, "cuMemPrefetchAsync", 12020, OPTIONAL, (CUdeviceptr ptr, size_t size, CUmemLocation location, unsigned int flags, CUstream stream))
UM_DRIVER_CALL(mem_prefetch_batch, "cuMemPrefetchBatchAsync", 13000, OPTIONAL, (CUdeviceptr *ptrs, size_t *sizes, size_t count, CUmemLocation *locations, size_t *location_indices, size_t location_count, unsigned long long flags, CUstream stream))
UM_DRIVER_CALL(mem_discard_batch, "cuMemDiscardBatchAsync", 13000, OPTIONAL, (CUdeviceptr *ptrs, size_t *sizes, size_t count, unsigned long long flags, CUstream stream))
UM_DRIVER_CALL(mem_advise_device, "cuMemAdvise", 8000, REQUIRED, (CUdeviceptr ptr, size_t size, CUmem_advise advice, CUdevice device))
UM_DRIVER_CALL(mem_advise_location, "cuMemAdvise", 12020, OPTIONAL, (CUdeviceptr ptr, size_t size, CUmem_advise advice, CUmemLocation location))
UM_DRIVER_CALL(pointer_get_attributes, "cuPointerGetAttributes", 7000, REQUIRED, (unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr))

UM_DRIVER_CALL(memcpy_async, "cuMemcpyAsync", 4000, REQUIRED, (CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream))
UM_DRIVER_CALL(memcpy_2d_async, "cuMemcpy2DAsync", 3020, REQUIRED, (const CUDA_MEMCPY2D *copy, CUstream stream))
UM_DRIVER_CALL(memset_d8_async, "cuMemsetD8Async", 3020, REQUIRED, (CUdeviceptr ptr, unsigned char value, size_t size, CUstream stream))

UM_DRIVER_CALL(stream_create, "cuStreamCreate", 2000, REQUIRED, (CUstream *stream, unsigned int flags))
UM_DRIVER_CALL(stream_destroy, "cuStreamDestroy", 4000, REQUIRED, (CUstream stream))
UM_DRIVER_CALL(stream_synchronize, "cuStreamSynchronize", 2000, REQUIRED, (CUstream stream))
UM_DRIVER_CALL(stream_query, "cuStreamQuery", 2000, REQUIRED, (CUstream stream))
UM_DRIVER_CALL(stream_wait_event, "cuStreamWaitEvent", 3020, REQUIRED, (CUstream stream, CUevent event, unsigned int flags))
UM_DRIVER_CALL(stream_get_ctx, "cuStreamGetCtx", 9020, REQUIRED, (CUstream stream, CUcontext *context))
UM_DRIVER_CALL(stream_get_id, "cuStreamGetId", 12000, OPTIONAL, (CUstream stream, unsigned long long *id))

UM_DRIVER_CALL(event_create, "cuEventCreate", 2000, REQUIRED, (CUevent *event, unsigned int flags))
UM_DRIVER_CALL(event_destroy, "cuEventDestroy", 4000, REQUIRED, (CUevent event))
UM_DRIVER_CALL(event_record, "cuEventRecord", 2000, REQUIRED, (CUevent event, CUstream stream))
UM_DRIVER_CALL(event_query, "cuEventQuery", 2000, REQUIRED, (CUevent event))
UM_DRIVER_CALL(event_synchronize, "cuEventSynchronize", 2000, REQUIRED, (CUevent event))

UM_DRIVER_CALL(library_load_data, "cuLibraryLoadData", 12000, REQUIRED, (CUlibrary *library, const void *code, CUjit_option *jit_options, void **jit_values, unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count))
UM_DRIVER_CALL(library_unload, "cuLibraryUnload", 12000, REQUIRED, (CUlibrary library))
UM_DRIVER_CALL(library_get_kernel, "cuLibraryGetKernel", 12000, REQUIRED, (CUkernel *kernel, CUlibrary library, const char *name))
UM_DRIVER_CALL(launch_kernel, "cuLaunchKernel", 4000, REQUIRED, (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **params, void **extra))
/* clang-format on */
