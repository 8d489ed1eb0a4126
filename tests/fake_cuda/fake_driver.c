/* The door: cuGetProcAddress and the table behind it, cuInit, versions, error names, and what
 * every call does first. */
#include "fake_internal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

fake_state fake;

static pthread_mutex_t lock;
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;
static pthread_once_t loaded = PTHREAD_ONCE_INIT;

typedef void (*entry_point)(void);

typedef struct table_line {
    const char *field;
    const char *symbol;
    int version; /* CUDA version that brought this ABI of the symbol */
    entry_point function;
} table_line;

/* A line of um_driver_calls.h without a fake_<field> does not compile. */
static const table_line table[] = {
#define UM_DRIVER_CALL(field, symbol, version, need, params) {#field, symbol, version, (entry_point)fake_##field},
#include "driver/um_driver_calls.h"
#undef UM_DRIVER_CALL
};
#define TABLE_SIZE (sizeof table / sizeof table[0])

const char *fake_call_symbol(fake_call_id id) {
    return id == FAKE_CALL_get_proc_address ? "cuGetProcAddress" : table[id].symbol;
}

const char *fake_call_field(fake_call_id id) {
    return id == FAKE_CALL_get_proc_address ? "get_proc_address" : table[id].field;
}

static void initialise(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    fake.pid = getpid();
    fake.query_mode = 1;
    fake_config_from_environment(&fake.config);
}

/* When the library is loaded; and whoever comes later says that it comes later, in a way that ThreadSanitizer sees: it does not
 * know the dynamic loader's own lock. */
__attribute__((constructor)) static void load(void) { pthread_once(&loaded, initialise); }

void fake_lock(void) {
    load();
    pthread_mutex_lock(&lock);
}

void fake_unlock(void) { pthread_mutex_unlock(&lock); }

void fake_wait_until_released(void) {
    while (fake.held) {
        pthread_cond_wait(&released, &lock);
    }
}

void fake_set_held(bool held) {
    fake.held = held;
    pthread_cond_broadcast(&released);
}

_Noreturn void fake_unmodelled(const char *call, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "fake CUDA driver: %s: ", call);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

static bool needs_init(fake_call_id id) {
    return id != FAKE_CALL_init && id != FAKE_CALL_driver_get_version && id != FAKE_CALL_get_error_name &&
           id != FAKE_CALL_get_error_string && id != FAKE_CALL_get_proc_address;
}

fake_guard fake_enter(fake_call_id id, const void *from) {
    fake_guard guard = {CUDA_SUCCESS, fake_call_symbol(id), false};
    load();
    if (getpid() != fake.pid) { /* the lock may be held by a thread that this process does not have */
        guard.result = CUDA_ERROR_NOT_INITIALIZED;
        return guard;
    }
    fake_lock();
    guard.locked = true;
    fake.calls[id]++;
    fake.counters.calls++;
    guard.result = fake_fault_next(id, from);
    if (guard.result == CUDA_SUCCESS && needs_init(id) && !fake.initialised) {
        guard.result = CUDA_ERROR_NOT_INITIALIZED;
    }
    return guard;
}

void fake_leave(fake_guard *guard) {
    if (guard->locked) {
        fake_unlock();
    }
}

/* --- entry points of the library ------------------------------------- */

/* Inlined, so that the return address in it is that of the exported function. */
__attribute__((always_inline)) static inline CUresult proc_address(const char *symbol, void **function, int version,
                                                                   cuuint64_t flags,
                                                                   CUdriverProcAddressQueryResult *status) {
    FAKE_CALL(get_proc_address);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (symbol == NULL || function == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (flags != CU_GET_PROC_ADDRESS_DEFAULT && flags != CU_GET_PROC_ADDRESS_LEGACY_STREAM) {
        fake_unmodelled(call.call, "flags %llu (symbol %s)", (unsigned long long)flags, symbol);
    }
    if (version > fake.config.version) {
        return CUDA_ERROR_INVALID_VALUE;
    }

    *function = NULL;
    const table_line *best = NULL;
    bool known = false;
    for (size_t i = 0; i < TABLE_SIZE; i++) {
        const table_line *line = &table[i];
        if (strcmp(line->symbol, symbol) != 0 || fake_config_lacks(symbol)) {
            continue;
        }
        if (line->version > fake.config.version) {
            continue;
        }
        known = true;
        if (line->version <= version && (best == NULL || line->version > best->version)) {
            best = line;
        }
    }
    if (best != NULL) {
        memcpy(function, &best->function, sizeof *function);
    }
    if (status != NULL) {
        *status = best != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known      ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                               : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return CUDA_SUCCESS;
}

/* Under their exported names; cuda.h's macros would turn the first into the second. */
#undef cuGetProcAddress
FAKECU_API CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags);
FAKECU_API CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
    return proc_address(symbol, function, version, flags, NULL);
}

#ifndef FAKECU_DRIVER_11 /* drivers older than CUDA 12 do not export it */
FAKECU_API CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                        CUdriverProcAddressQueryResult *status);
FAKECU_API CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                        CUdriverProcAddressQueryResult *status) {
    return proc_address(symbol, function, version, flags, status);
}
#endif

FAKECU_API CUresult cuInit(unsigned int flags) { return fake_init(flags); }

FAKECU_API CUresult cuDriverGetVersion(int *version) { return fake_driver_get_version(version); }

CUresult fake_init(unsigned int flags) {
    FAKE_CALL(init);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (fake.config.device_count == 0) {
        return CUDA_ERROR_NO_DEVICE;
    }
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        fake.contexts[i].device = i;
    }
    fake.initialised = true;
    return CUDA_SUCCESS;
}

CUresult fake_driver_get_version(int *version) {
    FAKE_CALL(driver_get_version);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (version == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *version = fake.config.version;
    return CUDA_SUCCESS;
}

/* --- error names ----------------------------------------------------- */

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {CUDA_ERROR_LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult error_line(CUresult error, size_t *line) {
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code == error) {
            *line = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult fake_get_error_name(CUresult error, const char **name) {
    FAKE_CALL(get_error_name);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    size_t line = 0;
    const CUresult result = error_line(error, &line);
    *name = result == CUDA_SUCCESS ? errors[line].name : NULL;
    return result;
}

CUresult fake_get_error_string(CUresult error, const char **text) {
    FAKE_CALL(get_error_string);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    size_t line = 0;
    const CUresult result = error_line(error, &line);
    *text = result == CUDA_SUCCESS ? errors[line].text : NULL;
    return result;
}
