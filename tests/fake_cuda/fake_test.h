/* What the two programs of tests/c/test_fake_cuda*.c share: checks that end the program when they fail, the driver's
 * table as umem fills it, and short forms of its calls. */
#ifndef FAKE_TEST_H
#define FAKE_TEST_H

#include <cuda.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_cuda.h"

static _Atomic int checks;
static const char *current_test = "";

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        checks++;                                                                                                      \
        if (!(condition)) fail(__FILE__, __LINE__, #condition);                                                        \
    } while (0)
#define OK(call)          expect(__FILE__, __LINE__, #call, (call), CUDA_SUCCESS)
#define FAILS(call, code) expect(__FILE__, __LINE__, #call, (call), code)

static inline _Noreturn void fail(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, current_test, what);
    exit(1);
}

static inline void expect(const char *file, int line, const char *what, CUresult got, CUresult wanted) {
    checks++;
    if (got == wanted) {
        return;
    }
    fprintf(stderr, "%s:%d: %s: %s is %d, not %d\n", file, line, current_test, what, (int)got, (int)wanted);
    exit(1);
}

/* The table as umem fills it. */
static struct {
#define UM_DRIVER_CALL(field, symbol, version, need, params) CUresult(*field) params;
#include "driver/um_driver_calls.h"
#undef UM_DRIVER_CALL
} cu;

#undef cuGetProcAddress
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status);
CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags);

static inline void fill_table(void) {
#define UM_DRIVER_CALL(field, symbol, version, need, params)                                                           \
    cuGetProcAddress_v2(symbol, (void **)&cu.field, version, CU_GET_PROC_ADDRESS_DEFAULT, NULL);
#include "driver/um_driver_calls.h"
#undef UM_DRIVER_CALL
}

static CUcontext contexts[8];

/* A fresh driver, initialised, with a context on every device and device 0's current. */
static inline void start(int devices) {
    fakecu_shutdown();
    fakecu_set_devices(devices);
    OK(cu.init(0));
    for (int i = 0; i < devices; i++) {
        OK(cu.primary_ctx_retain(&contexts[i], i));
    }
    OK(cu.ctx_push_current(contexts[0]));
    fakecu_reset();
}

static inline char *managed(size_t size) {
    CUdeviceptr ptr = 0;
    OK(cu.mem_alloc_managed(&ptr, size, CU_MEM_ATTACH_GLOBAL));
    return (char *)ptr;
}

static inline CUstream stream_new(unsigned flags) {
    CUstream stream = NULL;
    OK(cu.stream_create(&stream, flags));
    return stream;
}

static inline CUevent event_new(void) {
    CUevent event = NULL;
    OK(cu.event_create(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

static inline CUkernel kernel_new(const char *name) {
    CUlibrary library = NULL;
    CUkernel kernel = NULL;
    OK(cu.library_load_data(&library, "image", NULL, NULL, 0, NULL, NULL, 0));
    OK(cu.library_get_kernel(&kernel, library, name));
    return kernel;
}

static inline CUresult fill(CUkernel kernel, void *ptr, int value, size_t size, CUstream stream) {
    void *params[] = {&ptr, &value, &size};
    return cu.launch_kernel((CUfunction)kernel, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

static inline CUresult sum(CUkernel kernel, void *in, void *out, size_t size, CUstream stream) {
    void *params[] = {&in, &out, &size};
    return cu.launch_kernel((CUfunction)kernel, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

static inline CUmemLocation location(CUmemLocationType type, int id) {
    CUmemLocation where;
    memset(&where, 0, sizeof where);
    where.type = type;
    where.id = id;
    return where;
}

static inline CUmemLocation on_device(int id) { return location(CU_MEM_LOCATION_TYPE_DEVICE, id); }

static inline CUmemLocation on_host(void) { return location(CU_MEM_LOCATION_TYPE_HOST, 0); }

/* Pages of the range that the host's page table has, the way umem's residency code asks. */
static inline size_t pages_on_host(const char *ptr, size_t size) {
    const int file = open("/proc/self/pagemap", O_RDONLY);
    size_t count = 0;
    for (size_t i = 0; i < size / 4096; i++) {
        uint64_t entry = 0;
        CHECK(pread(file, &entry, sizeof entry, (off_t)(((uintptr_t)ptr / 4096 + i) * sizeof entry)) ==
              (ssize_t)sizeof entry);
        count += entry >> 63;
    }
    close(file);
    return count;
}

/* Whether the host may read the byte: the system refuses to write from memory that the caller
 * could not read. */
static inline bool readable(const char *ptr) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    const ssize_t written = write(ends[1], ptr, 1);
    CHECK(written == 1 || errno == EFAULT);
    close(ends[0]);
    close(ends[1]);
    return written == 1;
}

typedef struct test_case {
    const char *name;
    void (*run)(void);
} test_case;

#define TEST(name) {#name, test_##name}

static inline int run_tests(const char *program, const test_case *tests, size_t count) {
    for (size_t i = 0; i < count; i++) {
        current_test = tests[i].name;
        tests[i].run();
    }
    fakecu_shutdown();
    printf("%s: %zu tests, %d checks\n", program, count, checks);
    return 0;
}

#endif
