/* Libraries, kernels by name, and launches. An image's bytes do not matter: names are looked up
 * in the table of host kernels. */
#include "fake_internal.h"

#include <stdlib.h>
#include <string.h>

#define SHARED_LIMIT 49152u /* bytes of dynamic shared memory without asking for more */

typedef struct library library;

/* One handle for a name in one library. */
typedef struct kernel {
    struct kernel *next;
    const fakecu_kernel_entry *entry;
} kernel;

struct library {
    library *next;
    kernel *kernels;
};

static library *libraries;

static const fakecu_kernel_entry *find_in(const fakecu_kernel_entry *table, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(table[i].name, name) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

static void library_free(library *lib) {
    library **at = &libraries;
    while (*at != lib) {
        at = &(*at)->next;
    }
    *at = lib->next;
    for (kernel *k = lib->kernels, *next = NULL; k != NULL; k = next) {
        next = k->next;
        fake_handle_remove(k);
        free(k);
    }
    fake_handle_remove(lib);
    free(lib);
}

void fake_libraries_clear(void) {
    while (libraries != NULL) {
        library_free(libraries);
    }
}

CUresult fake_library_load_data(CUlibrary *handle, const void *code, CUjit_option *jit_options, void **jit_values,
                                unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count) {
    FAKE_CALL(library_load_data);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (handle == NULL || code == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    (void)jit_options;
    (void)jit_values;
    (void)options;
    (void)values;
    if (jit_count != 0 || count != 0) {
        fake_unmodelled(call.call, "%u JIT options, %u library options", jit_count, count);
    }
    library *lib = calloc(1, sizeof *lib);
    if (lib == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    lib->next = libraries;
    libraries = lib;
    fake_handle_add(lib, FAKE_HANDLE_LIBRARY);
    *handle = (CUlibrary)lib;
    return CUDA_SUCCESS;
}

/* Unloads even when an error is injected. */
CUresult fake_library_unload(CUlibrary handle) {
    FAKE_CALL(library_unload);
    if (!call.locked || !fake.initialised) {
        return call.result;
    }
    if (!fake_handle_live(call.call, handle, FAKE_HANDLE_LIBRARY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    fake_run_all_work();
    fake_work_finished();
    library_free((library *)handle);
    return call.result;
}

CUresult fake_library_get_kernel(CUkernel *handle, CUlibrary library_handle, const char *name) {
    FAKE_CALL(library_get_kernel);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (handle == NULL || name == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!fake_handle_live(call.call, library_handle, FAKE_HANDLE_LIBRARY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    library *lib = (library *)library_handle;
    const fakecu_kernel_entry *entry = find_in(fakecu_kernels, fakecu_kernel_count, name);
    if (entry == NULL) {
        entry = find_in(fake_test_kernels, fake_test_kernel_count, name);
    }
    if (entry == NULL) {
        return CUDA_ERROR_NOT_FOUND;
    }
    kernel *k = lib->kernels;
    while (k != NULL && k->entry != entry) {
        k = k->next;
    }
    if (k == NULL) {
        k = calloc(1, sizeof *k);
        if (k == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *k = (kernel){lib->kernels, entry};
        lib->kernels = k;
        fake_handle_add(k, FAKE_HANDLE_KERNEL);
    }
    *handle = (CUkernel)k;
    return CUDA_SUCCESS;
}

/* Parameters as the launch saw them: pointers first, then the values, each aligned for any type. */
static void copy_parameters(fake_item *item, const fakecu_kernel_entry *entry, void **params) {
    const size_t alignment = _Alignof(max_align_t);
    size_t offset = (entry->param_count * sizeof(void *) + alignment - 1) / alignment * alignment;
    size_t total = offset;
    for (unsigned i = 0; i < entry->param_count; i++) {
        total += (entry->param_sizes[i] + alignment - 1) / alignment * alignment;
    }
    char *owned = calloc(1, total > 0 ? total : 1);
    if (owned == NULL) {
        fake_unmodelled("cuLaunchKernel", "out of memory");
    }
    void **copies = (void **)owned;
    for (unsigned i = 0; i < entry->param_count; i++) {
        copies[i] = owned + offset;
        memcpy(copies[i], params[i], entry->param_sizes[i]);
        offset += (entry->param_sizes[i] + alignment - 1) / alignment * alignment;
    }
    item->owned = owned;
    item->u.kernel.params = copies;
}

CUresult fake_launch_kernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                            unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                            CUstream stream_handle, void **params, void **extra) {
    FAKE_CALL(launch_kernel);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (fake_current(&call) == NULL) {
        return call.result;
    }
    if (!fake_handle_live(call.call, function, FAKE_HANDLE_KERNEL)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    fake_stream *stream = fake_stream_of(&call, stream_handle);
    if (stream == NULL) {
        return call.result;
    }
    const fakecu_kernel_entry *entry = ((const kernel *)function)->entry;
    if (extra != NULL) {
        fake_unmodelled(call.call, "parameters in `extra` (kernel %s)", entry->name);
    }
    if (block_y > 1 || block_z > 1) {
        fake_unmodelled(call.call, "block of %ux%ux%u (kernel %s)", block_x, block_y, block_z, entry->name);
    }
    if (grid_x == 0 || grid_y == 0 || grid_z == 0 || block_x == 0 || block_y == 0 || block_z == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (grid_x > 0x7fffffffu || grid_y > 65535 || grid_z > 65535 || block_x > 1024 || shared_bytes > SHARED_LIMIT) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (params == NULL && entry->param_count > 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }

    fake_item *item = fake_item_new(FAKE_ITEM_KERNEL);
    item->u.kernel.entry = entry;
    item->u.kernel.grid[0] = grid_x;
    item->u.kernel.grid[1] = grid_y;
    item->u.kernel.grid[2] = grid_z;
    item->u.kernel.block = block_x;
    copy_parameters(item, entry, params);
    fake_submit(stream, item);
    fake.counters.launches++;
    return CUDA_SUCCESS;
}
