/* The CUDA backend's kernels: loading the embedded images, finding a kernel by name, launching it. */
#define _GNU_SOURCE 1 /* pthread */
#include "backend/um_backend_cuda.h"

#include <stdio.h>
#include <string.h>

#include "kernels/um_kernel_image.h"

/* True for the results that mean: this image has no code for this device and driver. Loading is lazy in the driver, so
 * they can come from the launch too. */
static bool is_image_problem(CUresult result) {
    switch (result) {
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_JIT_COMPILATION_DISABLED:
    case CUDA_ERROR_INVALID_SOURCE: return true;
    default: return false;
    }
}

/* The devices' compute capabilities as UMEM_CUDA_ARCHS takes them, e.g. "90;80". */
static void list_archs(const um_cuda_backend *cuda, char *out, size_t size) {
    size_t used = 0;
    out[0] = '\0';
    for (int device = 0; device < cuda->base.device_count && used < size; ++device) {
        int major = 0;
        int minor = 0;
        CUdevice handle = cuda->devices[device].handle;
        if (cuda->driver->device_get_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle) !=
                CUDA_SUCCESS ||
            cuda->driver->device_get_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle) !=
                CUDA_SUCCESS) {
            continue;
        }
        char arch[16];
        (void)snprintf(arch, sizeof(arch), "%d%d", major, minor);
        if (strstr(out, arch) != NULL) {
            continue;
        }
        int wrote = snprintf(out + used, size - used, "%s%s", used > 0 ? ";" : "", arch);
        if (wrote < 0) {
            return;
        }
        used += (size_t)wrote;
    }
}

static um_status kernel_error(const um_cuda_backend *cuda, CUresult result, const char *call, const char *image,
                              um_error *err) {
    um_status status = um_driver_error(cuda->driver, result, call, err);
    if (err == NULL || !is_image_problem(result)) {
        return status;
    }
    um_error plain = *err;
    char archs[128];
    list_archs(cuda, archs, sizeof(archs));
    (void)um_error_set(err, status,
                       "umem's kernels%s%s were not built for this GPU and driver (compute capability %s, CUDA "
                       "%d.%d): "
                       "%s returned %s; rebuild umem with UMEM_CUDA_ARCHS=\"%s\", or with a CUDA 12 nvcc when the "
                       "driver is older than CUDA 13",
                       image[0] != '\0' ? " of " : "", image, archs, cuda->base.driver_version / 1000,
                       cuda->base.driver_version % 1000 / 10, call, plain.name, archs);
    err->cuda_code = plain.cuda_code;
    err->call = plain.call;
    memcpy(err->name, plain.name, sizeof(err->name));
    return status;
}

/* Loads image `index` unless it is loaded. The lock is held. A failure is not remembered: it may have been for want of
 * memory, and the next kernel_get may fare better. */
static um_status load_image_locked(um_cuda_backend *cuda, size_t index, um_error *err) {
    if (cuda->libraries[index] != NULL) {
        return UM_OK;
    }
    CUlibrary library = NULL;
    CUresult result =
        cuda->driver->library_load_data(&library, um_kernel_images[index].data, NULL, NULL, 0, NULL, NULL, 0);
    if (result != CUDA_SUCCESS) {
        return kernel_error(cuda, result, um_driver_call_names.library_load_data, um_kernel_images[index].name, err);
    }
    cuda->libraries[index] = library;
    return UM_OK;
}

/* *out stays NULL when image `index` has no kernel of that name. The lock is held. */
static um_status find_in_image_locked(um_cuda_backend *cuda, size_t index, const char *name, CUkernel *out,
                                      um_error *err) {
    um_status status = load_image_locked(cuda, index, err);
    if (status != UM_OK) {
        return status;
    }
    CUkernel kernel = NULL;
    CUresult result = cuda->driver->library_get_kernel(&kernel, cuda->libraries[index], name);
    if (result == CUDA_SUCCESS) {
        *out = kernel;
    } else if (result != CUDA_ERROR_NOT_FOUND) {
        return kernel_error(cuda, result, um_driver_call_names.library_get_kernel, um_kernel_images[index].name, err);
    }
    return UM_OK;
}

um_status um_cuda_kernel_get(um_backend *backend, const char *name, um_kernel_handle *out, um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    CUkernel kernel = NULL;
    um_status first = UM_OK; /* of an image that failed: the kernel may be in another one all the same */
    (void)pthread_mutex_lock(&cuda->lock);
    for (size_t i = 0; i < um_kernel_image_count && kernel == NULL; ++i) {
        um_status status = find_in_image_locked(cuda, i, name, &kernel, first == UM_OK ? err : NULL);
        if (first == UM_OK) {
            first = status;
        }
    }
    (void)pthread_mutex_unlock(&cuda->lock);
    if (kernel != NULL) {
        *out = (um_kernel_handle)kernel;
        return UM_OK;
    }
    if (first != UM_OK) {
        return first;
    }
    if (um_kernel_image_count == 0) {
        return um_error_set(err, UM_ERR_UNSUPPORTED,
                            "umem was built without CUDA kernels: build it where nvcc is found");
    }
    return um_error_set(err, UM_ERR_UNSUPPORTED, "umem has no kernel named %s", name);
}

um_status um_cuda_launch(um_backend *backend, int device, um_stream_handle stream, const um_launch *launch,
                         um_error *err) {
    um_cuda_backend *cuda = um_cuda_of(backend);
    um_cuda_scope scope;
    um_status status = um_cuda_enter(cuda, device, &scope, err);
    if (status != UM_OK) {
        return status;
    }
    /* cuLaunchKernel takes a CUkernel cast to CUfunction, and runs it in the current context. */
    CUresult result = cuda->driver->launch_kernel((CUfunction)launch->kernel, launch->grid_x, launch->grid_y,
                                                  launch->grid_z, launch->block_x, 1, 1, launch->shared_bytes,
                                                  (CUstream)stream, launch->params, NULL);
    if (result != CUDA_SUCCESS) {
        status = kernel_error(cuda, result, um_driver_call_names.launch_kernel, "", err);
    }
    return um_cuda_leave(cuda, scope, status, err);
}

void um_cuda_unload_images(um_cuda_backend *cuda) {
    for (size_t i = 0; i < um_kernel_image_count; ++i) {
        if (cuda->libraries[i] != NULL) {
            (void)cuda->driver->library_unload(cuda->libraries[i]);
            cuda->libraries[i] = NULL;
        }
    }
}
