/* Finds, checks and initialises the CUDA driver library. */
#define _GNU_SOURCE 1 /* RTLD_NOLOAD, RTLD_NODELETE */
#include "driver/um_driver.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cuLibraryLoadData, and kernels that belong to no context, came with 12.0. */
#define OLDEST_DRIVER 12000

enum { NEED_OPTIONAL = 0, NEED_REQUIRED = 1 };

typedef struct call_entry {
    const char *symbol;
    int version;
    int need;
    size_t offset; /* of the pointer in um_driver, bytes */
} call_entry;

static const call_entry call_entries[] = {
#define UM_DRIVER_CALL(field, symbol, version, need, params) {symbol, version, NEED_##need, offsetof(um_driver, field)},
#include "driver/um_driver_calls.h"
#undef UM_DRIVER_CALL
};

const um_driver_names um_driver_call_names = {
#define UM_DRIVER_CALL(field, symbol, version, need, params) .field = (symbol),
#include "driver/um_driver_calls.h"
#undef UM_DRIVER_CALL
};

/* The library's own look-up function; exactly one is set. Version 2 came with CUDA 12.0, version 1 with 11.3. */
typedef struct symbol_finder {
    CUresult (*v2)(const char *symbol, void **out, int version, cuuint64_t flags,
                   CUdriverProcAddressQueryResult *status);
    CUresult (*v1)(const char *symbol, void **out, int version, cuuint64_t flags);
} symbol_finder;

typedef struct init_hint {
    CUresult result;
    const char *text;
} init_hint;

static const init_hint init_hints[] = {
    {CUDA_ERROR_NO_DEVICE, "no CUDA device is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_VISIBLE_DEVICES names no device of this machine"},
    {CUDA_ERROR_STUB_LIBRARY, "this is the toolkit's stub, not a driver: take the toolkit's stubs "
                              "folder out of LD_LIBRARY_PATH"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "the driver library and the kernel module are of different "
                                        "versions: reboot after a driver update, or start the "
                                        "container again"},
    {CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "this forward-compatibility library does not serve "
                                                "this device: take it out of LD_LIBRARY_PATH"},
    {CUDA_ERROR_SYSTEM_NOT_READY, "a system service is not running yet (on NVSwitch machines nvidia-fabricmanager)"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, "the device is in use by another process in exclusive mode"},
    {CUDA_ERROR_OPERATING_SYSTEM, "the operating system refused: check the permissions of /dev/nvidia*"},
    {CUDA_ERROR_MPS_CONNECTION_FAILED, "the CUDA MPS server does not answer: check CUDA_MPS_PIPE_DIRECTORY"},
    {CUDA_ERROR_UNKNOWN, "check that the nvidia_uvm kernel module is loaded and that nvidia-smi works"},
};

static const char *init_hint_text(CUresult result) {
    for (size_t i = 0; i < sizeof(init_hints) / sizeof(init_hints[0]); ++i) {
        if (init_hints[i].result == result) {
            return init_hints[i].text;
        }
    }
    return "check that nvidia-smi works";
}

/* The result's name in `buffer`; its number where the driver has no name or is not loaded that far. */
static void result_name(const um_driver *driver, CUresult result, char *buffer, size_t size) {
    const char *name = NULL;
    if (driver->get_error_name != NULL && driver->get_error_name(result, &name) == CUDA_SUCCESS && name != NULL) {
        (void)snprintf(buffer, size, "%s", name);
    } else {
        (void)snprintf(buffer, size, "CUresult %d", (int)result);
    }
}

um_status um_driver_error(const um_driver *driver, CUresult result, const char *call, um_error *err) {
    um_status status = result == CUDA_ERROR_OUT_OF_MEMORY ? UM_ERR_OUT_OF_MEMORY : UM_ERR_CUDA;
    if (err == NULL) {
        return status;
    }
    char name[sizeof(err->name)];
    result_name(driver, result, name, sizeof(name));
    const char *text = NULL;
    if (driver->get_error_string == NULL || driver->get_error_string(result, &text) != CUDA_SUCCESS || text == NULL) {
        text = "no description";
    }
    (void)um_error_set(err, status, "%s failed: %s (%s)", call, name, text);
    err->cuda_code = status == UM_ERR_CUDA ? (int)result : 0;
    err->call = call;
    memcpy(err->name, name, sizeof(name));
    return status;
}

/* As um_driver_error, for a call without whose success there is no usable driver. */
static um_status unusable(const um_driver *driver, CUresult result, const char *call, um_error *err) {
    char name[64];
    result_name(driver, result, name, sizeof(name));
    (void)um_error_set(err, UM_ERR_NO_DRIVER, "the CUDA driver %s cannot be used: %s returned %s; %s", driver->path,
                       call, name, init_hint_text(result));
    if (err != NULL) {
        err->call = call;
        memcpy(err->name, name, sizeof(name));
    }
    return UM_ERR_NO_DRIVER;
}

static void *open_library(const char *path) {
    (void)dlerror();
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static const char *open_failure(void) {
    const char *text = dlerror();
    return text != NULL ? text : "unknown reason";
}

static um_status load_library(um_driver *driver, const char *path, um_error *err) {
    const char *opened = path != NULL ? path : "libcuda.so.1";
    driver->library = open_library(opened);
    if (driver->library == NULL && path == NULL) {
        char first[200];
        (void)snprintf(first, sizeof(first), "%s", open_failure());
        opened = "libcuda.so";
        driver->library = open_library(opened);
        if (driver->library == NULL) {
            return um_error_set(err, UM_ERR_NO_DRIVER,
                                "no CUDA driver: tried libcuda.so.1 (%s) and libcuda.so (%.200s); "
                                "install the NVIDIA "
                                "driver, or name its library in UMEM_CUDA_LIBRARY",
                                first, open_failure());
        }
    } else if (driver->library == NULL) {
        return um_error_set(err, UM_ERR_NO_DRIVER, "no CUDA driver: tried %s (%.200s)", path, open_failure());
    }
    (void)snprintf(driver->path, sizeof(driver->path), "%s", opened);
    return UM_OK;
}

/* Keeps the code mapped from now on: a library whose cuInit has run may have threads and exit handlers in it, so a
 * dlclose that really unmapped it would crash the process later. RTLD_NODELETE does that without an open handle. */
static void pin_library(const um_driver *driver) {
    void *again = dlopen(driver->path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD | RTLD_NODELETE);
    if (again != NULL) {
        (void)dlclose(again);
    }
}

static bool find_finder(void *library, symbol_finder *out) {
    void *v2 = dlsym(library, "cuGetProcAddress_v2");
    void *v1 = v2 == NULL ? dlsym(library, "cuGetProcAddress") : NULL;
    /* POSIX lets dlsym's result be a function; C has no cast for it. */
    memcpy(&out->v2, &v2, sizeof(v2));
    memcpy(&out->v1, &v1, sizeof(v1));
    return v2 != NULL || v1 != NULL;
}

/* *out is the symbol's address, NULL when the driver has none for this version. The result says why. */
static CUresult find_symbol(const symbol_finder *finder, const char *symbol, int version, void **out) {
    const cuuint64_t flags = CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    void *address = NULL;
    CUresult result;
    if (finder->v2 != NULL) {
        CUdriverProcAddressQueryResult query = CU_GET_PROC_ADDRESS_SUCCESS;
        result = finder->v2(symbol, &address, version, flags, &query);
    } else {
        result = finder->v1(symbol, &address, version, flags);
    }
    *out = result == CUDA_SUCCESS ? address : NULL;
    return result;
}

/* Before anything else is asked of it: an old driver lacks calls, and "too old" says more than "lacks cuX". */
static um_status check_version(um_driver *driver, const symbol_finder *finder, um_error *err) {
    void *address = NULL;
    CUresult result = CUDA_ERROR_NOT_FOUND;
    if (finder != NULL) {
        result = find_symbol(finder, um_driver_call_names.driver_get_version, 2020, &address);
        if (result == CUDA_ERROR_STUB_LIBRARY) {
            return unusable(driver, result, "cuGetProcAddress", err);
        }
    }
    if (address == NULL) {
        address = dlsym(driver->library, um_driver_call_names.driver_get_version);
    }
    if (address == NULL) {
        return um_error_set(err, UM_ERR_NO_DRIVER, "%s is not a CUDA driver: it has no cuDriverGetVersion",
                            driver->path);
    }
    memcpy(&driver->driver_get_version, &address, sizeof(address));
    int version = 0;
    result = driver->driver_get_version(&version);
    if (result != CUDA_SUCCESS) {
        return unusable(driver, result, um_driver_call_names.driver_get_version, err);
    }
    if (version < OLDEST_DRIVER) {
        return um_error_set(err, UM_ERR_NO_DRIVER,
                            "the CUDA driver %s is too old: it supports CUDA %d.%d, umem needs %d.%d; update the "
                            "NVIDIA driver",
                            driver->path, version / 1000, version % 1000 / 10, OLDEST_DRIVER / 1000,
                            OLDEST_DRIVER % 1000 / 10);
    }
    driver->version = version;
    return UM_OK;
}

static um_status fill_table(um_driver *driver, const symbol_finder *finder, um_error *err) {
    for (size_t i = 0; i < sizeof(call_entries) / sizeof(call_entries[0]); ++i) {
        const call_entry *entry = &call_entries[i];
        void *address = NULL;
        CUresult result = find_symbol(finder, entry->symbol, entry->version, &address);
        if (address == NULL && entry->need == NEED_REQUIRED) {
            return um_error_set(err, UM_ERR_NO_DRIVER,
                                "the CUDA driver %s (CUDA %d.%d) lacks %s "
                                "(cuGetProcAddress for CUDA %d.%d returned %d)",
                                driver->path, driver->version / 1000, driver->version % 1000 / 10, entry->symbol,
                                entry->version / 1000, entry->version % 1000 / 10, (int)result);
        }
        memcpy((char *)driver + entry->offset, &address, sizeof(address));
    }
    return UM_OK;
}

static um_status initialise(um_driver *driver, um_error *err) {
    pin_library(driver);
    CUresult result = driver->init(0);
    if (result != CUDA_SUCCESS) {
        return unusable(driver, result, um_driver_call_names.init, err);
    }
    int count = 0;
    result = driver->device_get_count(&count);
    if (result == CUDA_SUCCESS && count == 0) {
        result = CUDA_ERROR_NO_DEVICE;
    }
    if (result != CUDA_SUCCESS) {
        return unusable(driver, result, um_driver_call_names.device_get_count, err);
    }
    driver->device_count = count;
    return UM_OK;
}

um_status um_driver_open(const char *path, um_driver **out, um_error *err) {
    um_driver *driver = calloc(1, sizeof(*driver));
    if (driver == NULL) {
        return um_error_set(err, UM_ERR_NO_MEMORY, "no memory for the driver table");
    }
    symbol_finder finder;
    um_status status = load_library(driver, path, err);
    if (status != UM_OK) {
        goto fail;
    }
    bool has_finder = find_finder(driver->library, &finder);
    status = check_version(driver, has_finder ? &finder : NULL, err);
    if (status != UM_OK) {
        goto fail;
    }
    if (!has_finder) {
        status = um_error_set(err, UM_ERR_NO_DRIVER, "the CUDA driver %s lacks cuGetProcAddress", driver->path);
        goto fail;
    }
    status = fill_table(driver, &finder, err);
    if (status != UM_OK) {
        goto fail;
    }
    status = initialise(driver, err);
    if (status != UM_OK) {
        goto fail;
    }
    *out = driver;
    return UM_OK;

fail:
    um_driver_close(driver);
    return status;
}

void um_driver_close(um_driver *driver) {
    if (driver == NULL) {
        return;
    }
    if (driver->library != NULL) {
        (void)dlclose(driver->library);
    }
    free(driver);
}
