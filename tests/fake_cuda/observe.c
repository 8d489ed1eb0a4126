/* Asks a CUDA driver the questions that the fake had to answer somehow, one line of output each.
 * Run on a GPU's driver and on the fake (build.py --compare libcuda.so.1): lines that differ are the
 * fake's mistakes, or belong into README.md's list of what is not modelled.
 */
#include <cuda.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

/* One thread does all the work: kernels over megabytes are slow on purpose. */
static const char image[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
                            ".visible .entry fakecu_test_fill(.param .u64 p, .param .u32 v, .param .u64 n)\n{\n"
                            "  .reg .pred %q; .reg .b32 %v; .reg .b64 %p, %n, %i, %a;\n"
                            "  ld.param.u64 %p, [p]; ld.param.u32 %v, [v]; ld.param.u64 %n, [n];\n"
                            "  cvta.to.global.u64 %p, %p; mov.u64 %i, 0;\n"
                            "L: setp.ge.u64 %q, %i, %n; @%q bra E; add.u64 %a, %p, %i;\n"
                            "  st.global.u8 [%a], %v; add.u64 %i, %i, 1; bra L;\n"
                            "E: ret;\n}\n"
                            ".visible .entry fakecu_test_sum(.param .u64 p, .param .u64 o, .param .u64 n)\n{\n"
                            "  .reg .pred %q; .reg .b64 %p, %o, %n, %i, %a, %s, %t;\n"
                            "  ld.param.u64 %p, [p]; ld.param.u64 %o, [o]; ld.param.u64 %n, [n];\n"
                            "  cvta.to.global.u64 %p, %p; cvta.to.global.u64 %o, %o; mov.u64 %i, 0; mov.u64 %s, 0;\n"
                            "L: setp.ge.u64 %q, %i, %n; @%q bra E; add.u64 %a, %p, %i;\n"
                            "  ld.global.u8 %t, [%a]; add.u64 %s, %s, %t; add.u64 %i, %i, 1; bra L;\n"
                            "E: st.global.u64 [%o], %s; ret;\n}\n";

static struct {
#define UM_DRIVER_CALL(field, symbol, version, need, params) CUresult(*field) params;
#include "driver/um_driver_calls.h"
#undef UM_DRIVER_CALL
} cu;

typedef CUresult (*proc_address)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
static proc_address get_address;
static CUcontext context;
static CUfunction fill_kernel, sum_kernel;

#define SAY(call) printf("%s = %d\n", #call, (int)(call))

static void must(CUresult result, const char *what) {
    if (result != CUDA_SUCCESS) {
        printf("%s failed: %d\n", what, (int)result);
        exit(1);
    }
}
#define MUST(call) must((call), #call)

static char *managed(size_t size) {
    CUdeviceptr ptr = 0;
    MUST(cu.mem_alloc_managed(&ptr, size, CU_MEM_ATTACH_GLOBAL));
    return (char *)ptr;
}

static void fill(void *ptr, int value, size_t size, CUstream stream) {
    void *params[] = {&ptr, &value, &size};
    MUST(cu.launch_kernel(fill_kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

static void add_up(void *in, void *out, size_t size, CUstream stream) {
    void *params[] = {&in, &out, &size};
    MUST(cu.launch_kernel(sum_kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

/* Percent of the range's pages that the host maps. */
static int on_host(const char *ptr, size_t size) {
    const int file = open("/proc/self/pagemap", O_RDONLY);
    size_t count = 0;
    for (size_t i = 0; i < size / 4096; i++) {
        uint64_t entry = 0;
        const off_t at = (off_t)(((uintptr_t)ptr / 4096 + i) * sizeof entry);
        if (pread(file, &entry, sizeof entry, at) != (ssize_t)sizeof entry) {
            return -1;
        }
        count += entry >> 63;
    }
    close(file);
    return (int)(count * 100 / (size / 4096));
}

static CUmemLocation at(CUmemLocationType type, int id) {
    CUmemLocation where;
    memset(&where, 0, sizeof where);
    where.type = type;
    where.id = id;
    return where;
}

#define GPU  at(CU_MEM_LOCATION_TYPE_DEVICE, 0)
#define HOST at(CU_MEM_LOCATION_TYPE_HOST, 0)

static void prefetch(char *ptr, size_t size, CUmemLocation where) {
    MUST(cu.mem_prefetch_location((CUdeviceptr)ptr, size, where, 0, NULL));
    MUST(cu.ctx_synchronize());
}

static void advise(char *ptr, size_t size, CUmem_advise advice, CUmemLocation where) {
    MUST(cu.mem_advise_location((CUdeviceptr)ptr, size, advice, where));
}

/* --- questions ------------------------------------------------------- */

static void ask_the_door(void) {
    void *f = NULL;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    SAY(get_address("cuMemPrefetchAsync", &f, 7000, 0, &status));
    printf("too old for the symbol: %s, status %d\n", f != NULL ? "found" : "NULL", (int)status);
    SAY(get_address("cuNoSuchCall", &f, 12000, 0, &status));
    printf("no such symbol: %s, status %d\n", f != NULL ? "found" : "NULL", (int)status);
    SAY(get_address("cuInit", &f, 99000, 0, &status));
}

static void ask_without_context(void) {
    CUdeviceptr ptr = 0;
    CUcontext popped = NULL;
    CUdevice device = 0;
    unsigned managed_flag = 7;
    int local = 0;
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_IS_MANAGED;
    void *data = &managed_flag;
    SAY(cu.mem_alloc_managed(&ptr, 64, CU_MEM_ATTACH_GLOBAL));
    SAY(cu.ctx_synchronize());
    SAY(cu.ctx_pop_current(&popped));
    SAY(cu.ctx_push_current(NULL));
    SAY(cu.ctx_get_device(&device));
    SAY(cu.primary_ctx_release(0));
    SAY(cu.stream_query(NULL));
    SAY(cu.pointer_get_attributes(1, &attribute, &data, (CUdeviceptr)&local));
}

static void ask_about_pointer(const char *name, CUdeviceptr ptr, const void *base) {
    unsigned managed_flag = 7, type = 7, mapped = 7;
    int ordinal = 7;
    void *const unwritten = (void *)7;
    void *start = unwritten, *host = unwritten;
    size_t size = 7;
    CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_IS_MANAGED,   CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    CU_POINTER_ATTRIBUTE_MAPPED,       CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                    CU_POINTER_ATTRIBUTE_HOST_POINTER, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                    CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void *data[] = {&managed_flag, &type, &mapped, &ordinal, &host, &start, &size};
    const CUresult result = cu.pointer_get_attributes(7, wanted, data, ptr);
    printf("%s pointer: %d, managed %u, type %u, mapped %u, device %d, host %s, start %s, size %zu\n", name,
           (int)result, managed_flag, type, mapped, ordinal, host == (void *)ptr ? "same" : "other",
           start == unwritten ? "unwritten"
           : start == base    ? "base"
                              : "other",
           size);
}

static void ask_about_memory(void) {
    CUdeviceptr ptr = 0;
    void *pinned = NULL;
    size_t before = 0, after = 0, total = 0;
    SAY(cu.mem_alloc_managed(&ptr, 0, CU_MEM_ATTACH_GLOBAL));
    SAY(cu.mem_alloc_managed(&ptr, (size_t)-4096, CU_MEM_ATTACH_GLOBAL));
    SAY(cu.mem_alloc_managed(&ptr, 64, 3));
    SAY(cu.mem_host_alloc(&pinned, 0, 0));
    SAY(cu.mem_free(0));
    MUST(cu.mem_host_alloc(&pinned, 1000, CU_MEMHOSTALLOC_PORTABLE));
    char *a = managed(1000), *b = managed(4 * MIB);
    printf("alignment: small %d, 4 MiB %d\n", (uintptr_t)a % 512 == 0, (uintptr_t)b % (2 * MIB) == 0);
    ask_about_pointer("managed", (CUdeviceptr)a + 10, a);
    ask_about_pointer("large managed", (CUdeviceptr)b, b);
    ask_about_pointer("page-locked", (CUdeviceptr)pinned, pinned);
    ask_about_pointer("unknown", (CUdeviceptr)&ptr, NULL);
    prefetch(b, 4 * MIB, GPU);
    MUST(cu.mem_get_info(&before, &total));
    ask_about_pointer("GPU-resident", (CUdeviceptr)b, b);
    prefetch(b, 4 * MIB, HOST);
    MUST(cu.mem_get_info(&after, &total));
    printf("free memory tells of managed pages: %d\n", after > before);
    SAY(cu.mem_free((CUdeviceptr)b + 4096));
    SAY(cu.mem_free((CUdeviceptr)b));
    SAY(cu.mem_free_host(a));
    SAY(cu.mem_free((CUdeviceptr)a));
    SAY(cu.mem_free_host(pinned));
}

static void ask_about_arguments(void) {
    char *a = managed(64 * KIB);
    const CUdeviceptr p = (CUdeviceptr)a;
    static char local[4096];
    CUstream stream = NULL;
    MUST(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING));
    SAY(cu.mem_prefetch_device(p, 0, 0, stream));
    SAY(cu.mem_prefetch_device(p, 64 * MIB, 0, stream));
    SAY(cu.mem_prefetch_device((CUdeviceptr)local, 4096, 0, stream));
    SAY(cu.mem_prefetch_device(p, 4096, 99, stream));
    SAY(cu.mem_prefetch_location(p, 4096, GPU, 1, stream));
    SAY(cu.mem_prefetch_location(p, 4096, at(CU_MEM_LOCATION_TYPE_DEVICE, 99), 0, stream));
    SAY(cu.mem_prefetch_location(p, 4096, at(CU_MEM_LOCATION_TYPE_HOST_NUMA, 99), 0, stream));
    SAY(cu.mem_prefetch_location(p, 4096, at(CU_MEM_LOCATION_TYPE_INVALID, 0), 0, stream));
    SAY(cu.mem_advise_device(p, 0, CU_MEM_ADVISE_SET_ACCESSED_BY, 0));
    SAY(cu.mem_advise_device(p, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, 99));
    SAY(cu.mem_advise_device(p, 4096, (CUmem_advise)99, 0));
    SAY(cu.mem_advise_device((CUdeviceptr)local, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, 0));
    SAY(cu.mem_advise_location(p, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, at(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0)));
    SAY(cu.mem_advise_location(p, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, at(CU_MEM_LOCATION_TYPE_DEVICE, 99)));
    if (cu.mem_prefetch_batch != NULL) {
        CUdeviceptr ptrs[] = {p, p + 8192};
        size_t sizes[] = {4096, 4096}, zero[] = {4096, 0}, starts[] = {0, 1}, wrong[] = {1, 0};
        CUmemLocation places[] = {GPU, HOST};
        SAY(cu.mem_prefetch_batch(ptrs, sizes, 2, places, starts, 2, 0, stream));
        SAY(cu.mem_prefetch_batch(ptrs, sizes, 2, places, starts, 2, 0, NULL));
        SAY(cu.mem_prefetch_batch(ptrs, sizes, 2, places, starts, 2, 0, CU_STREAM_LEGACY));
        SAY(cu.mem_prefetch_batch(ptrs, sizes, 2, places, starts, 2, 0, CU_STREAM_PER_THREAD));
        SAY(cu.mem_prefetch_batch(ptrs, sizes, 2, places, starts, 2, 1, stream));
        SAY(cu.mem_prefetch_batch(ptrs, sizes, 2, places, wrong, 2, 0, stream));
        SAY(cu.mem_prefetch_batch(ptrs, zero, 2, places, starts, 2, 0, stream));
        SAY(cu.mem_prefetch_batch(ptrs, sizes, 0, places, starts, 2, 0, stream));
        SAY(cu.mem_discard_batch(ptrs, sizes, 2, 0, stream));
        SAY(cu.mem_discard_batch(ptrs, sizes, 2, 0, NULL));
        SAY(cu.mem_discard_batch(ptrs, sizes, 2, 1, stream));
    }
    SAY(cu.memcpy_async(p, p + 32 * KIB, 0, stream));
    SAY(cu.memset_d8_async(p, 1, 0, stream));
    SAY(cu.memset_d8_async((CUdeviceptr)local, 1, 64, stream));
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                          .srcDevice = p,
                          .srcPitch = 100,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = local,
                          .dstPitch = 8,
                          .WidthInBytes = 16,
                          .Height = 2};
    SAY(cu.memcpy_2d_async(&copy, stream));
    int value = 0;
    size_t size = 1;
    void *params[] = {&a, &value, &size};
    const CUfunction f = fill_kernel;
    SAY(cu.launch_kernel(f, 0, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    SAY(cu.launch_kernel(f, 1, 65536, 1, 1, 1, 1, 0, stream, params, NULL));
    SAY(cu.launch_kernel(f, 1, 1, 1, 1025, 1, 1, 0, stream, params, NULL));
    SAY(cu.launch_kernel(f, 1, 1, 1, 1, 1, 1, 1 << 20, stream, params, NULL));
    SAY(cu.stream_synchronize(stream));
    MUST(cu.stream_destroy(stream));
    MUST(cu.mem_free(p));
}

static void ask_where_pages_go(void) {
    const size_t size = MIB;
    char *out = managed(4096);
    char *a = managed(size);
    printf("fresh: %d %%\n", on_host(a, size));
    memset(a, 1, size);
    printf("host wrote: %d %%\n", on_host(a, size));
    prefetch(a, size / 2, GPU);
    printf("half prefetched to the GPU: %d %%\n", on_host(a, size));
    fill(a, 2, size, NULL);
    MUST(cu.ctx_synchronize());
    printf("kernel wrote all: %d %%\n", on_host(a, size));
    prefetch(a, size, HOST);
    printf("prefetched to the host: %d %%\n", on_host(a, size));
    MUST(cu.memset_d8_async((CUdeviceptr)a, 3, size, NULL));
    MUST(cu.ctx_synchronize());
    printf("memset of host-resident pages: %d %%\n", on_host(a, size));
    char *b = malloc(size);
    prefetch(a, size, GPU);
    MUST(cu.memcpy_async((CUdeviceptr)b, (CUdeviceptr)a, size, NULL));
    MUST(cu.ctx_synchronize());
    printf("copied from GPU-resident pages: %d %%, right %d\n", on_host(a, size), b[size - 1] == 3);
    prefetch(a, size, HOST);
    MUST(cu.memcpy_async((CUdeviceptr)a, (CUdeviceptr)b, size, NULL));
    MUST(cu.ctx_synchronize());
    printf("copied to host-resident pages: %d %%\n", on_host(a, size));
    MUST(cu.mem_free((CUdeviceptr)a));

    a = managed(size);
    MUST(cu.memcpy_async((CUdeviceptr)a, (CUdeviceptr)b, size, NULL));
    MUST(cu.ctx_synchronize());
    printf("copied to untouched pages: %d %%\n", on_host(a, size));
    MUST(cu.mem_free((CUdeviceptr)a));

    a = managed(size);
    advise(a, size, CU_MEM_ADVISE_SET_ACCESSED_BY, GPU);
    fill(a, 1, size / 2, NULL);
    MUST(cu.ctx_synchronize());
    printf("accessed-by, untouched, kernel wrote half: %d %%\n", on_host(a, size));
    memset(a, 1, size);
    fill(a, 2, size, NULL);
    MUST(cu.ctx_synchronize());
    printf("accessed-by, host-resident, kernel wrote: %d %%\n", on_host(a, size));
    MUST(cu.mem_free((CUdeviceptr)a));

    a = managed(size);
    advise(a, size, CU_MEM_ADVISE_SET_ACCESSED_BY, GPU);
    advise(a, size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, HOST);
    fill(a, 1, size, NULL);
    MUST(cu.ctx_synchronize());
    printf("home host, untouched, kernel wrote: %d %%\n", on_host(a, size));
    MUST(cu.mem_free((CUdeviceptr)a));

    a = managed(size);
    advise(a, size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, HOST);
    fill(a, 1, size, NULL);
    MUST(cu.ctx_synchronize());
    printf("preferred host only, untouched, kernel wrote: %d %%\n", on_host(a, size));
    memset(a, 1, size);
    fill(a, 1, size, NULL);
    MUST(cu.ctx_synchronize());
    printf("preferred host only, host-resident, kernel wrote: %d %%\n", on_host(a, size));
    MUST(cu.mem_free((CUdeviceptr)a));

    a = managed(size);
    memset(a, 1, size);
    advise(a, size, CU_MEM_ADVISE_SET_READ_MOSTLY, GPU);
    prefetch(a, size, GPU);
    printf("read-mostly, prefetched to the GPU: %d %%\n", on_host(a, size));
    fill(a, 1, size, NULL);
    MUST(cu.ctx_synchronize());
    printf("read-mostly, kernel wrote: %d %%\n", on_host(a, size));
    memset(a, 1, size);
    add_up(a, out, size, NULL);
    MUST(cu.ctx_synchronize());
    printf("read-mostly, kernel read: %d %%\n", on_host(a, size));
    MUST(cu.mem_free((CUdeviceptr)a));

    if (cu.mem_discard_batch != NULL) {
        a = managed(4 * MIB);
        memset(a, 1, 4 * MIB);
        CUstream stream = NULL;
        CUdeviceptr ptrs[] = {(CUdeviceptr)a};
        size_t sizes[] = {4 * MIB};
        MUST(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING));
        MUST(cu.mem_discard_batch(ptrs, sizes, 1, 0, stream));
        MUST(cu.stream_synchronize(stream));
        printf("discarded host-resident pages: %d %%\n", on_host(a, 4 * MIB));
        prefetch(a, 4 * MIB, GPU);
        printf("and prefetched to the GPU: %d %%\n", on_host(a, 4 * MIB));
        prefetch(a, 4 * MIB, HOST);
        printf("and to the host: %d %%\n", on_host(a, 4 * MIB));
        MUST(cu.stream_destroy(stream));
        MUST(cu.mem_free((CUdeviceptr)a));
    }
    MUST(cu.mem_free((CUdeviceptr)out));
    free(b);
}

/* Whether what a kernel wrote to discarded memory of the GPU is there afterwards. */
static void ask_about_writes_after_a_discard(const char *name, bool advised, bool prefetched, bool by_prefetch) {
    const size_t size = 4 * MIB;
    char *a = managed(size);
    CUstream stream = NULL;
    CUdeviceptr ptrs[] = {(CUdeviceptr)a};
    size_t sizes[] = {size};
    MUST(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING));
    memset(a, 1, size);
    if (advised) {
        advise(a, size, CU_MEM_ADVISE_SET_ACCESSED_BY, GPU);
    }
    prefetch(a, size, GPU);
    MUST(cu.mem_discard_batch(ptrs, sizes, 1, 0, stream));
    MUST(cu.stream_synchronize(stream));
    if (prefetched) {
        prefetch(a, size, GPU);
    }
    fill(a, 2, size, NULL);
    MUST(cu.ctx_synchronize());
    if (by_prefetch) {
        prefetch(a, size, HOST);
    }
    printf("written after a discard, %s: first byte kept %d, last byte kept %d\n", name, a[0] == 2, a[size - 1] == 2);
    MUST(cu.stream_destroy(stream));
    MUST(cu.mem_free((CUdeviceptr)a));
}

static void ask_about_streams(void) {
    CUstream blocking = NULL, other = NULL;
    CUevent event = NULL;
    CUcontext of = NULL;
    unsigned long long ids[2] = {0};
    char *slow = managed(32 * MIB), *a = managed(4096);
    prefetch(slow, 32 * MIB, GPU);
    MUST(cu.stream_create(&blocking, CU_STREAM_DEFAULT));
    MUST(cu.stream_create(&other, CU_STREAM_NON_BLOCKING));
    MUST(cu.event_create(&event, CU_EVENT_DISABLE_TIMING));
    SAY(cu.event_query(event));
    SAY(cu.event_synchronize(event));
    SAY(cu.stream_wait_event(other, event, 0));
    SAY(cu.stream_get_ctx(NULL, &of));
    printf("context of NULL is the current one: %d\n", of == context);
    if (cu.stream_get_id != NULL) {
        SAY(cu.stream_get_id(NULL, &ids[0]));
        SAY(cu.stream_get_id(CU_STREAM_LEGACY, &ids[1]));
        printf("ids of NULL and the legacy stream are equal: %d\n", ids[0] == ids[1]);
    }
    fill(slow, 1, 32 * MIB, blocking); /* busy for a while */
    MUST(cu.event_record(event, blocking));
    SAY(cu.stream_query(blocking));
    MUST(cu.ctx_synchronize());
    SAY(cu.event_query(event));
    fill(slow, 2, 32 * MIB, other);
    MUST(cu.stream_destroy(other));
    MUST(cu.ctx_synchronize());
    printf("work of a destroyed stream is done after a context's synchronise: %d\n", slow[32 * MIB - 1] == 2);
    fill(slow, 3, 32 * MIB, blocking);
    MUST(cu.mem_free((CUdeviceptr)a));
    printf("cuMemFree waits for other work: %d\n", cu.stream_query(blocking) == CUDA_SUCCESS);
    fill(slow, 4, 32 * MIB, blocking);
    MUST(cu.stream_synchronize(CU_STREAM_LEGACY));
    printf("synchronising the legacy stream waits for blocking ones: %d\n", cu.stream_query(blocking) == CUDA_SUCCESS);
    MUST(cu.ctx_synchronize());
    MUST(cu.stream_destroy(blocking));
    MUST(cu.event_destroy(event));
    MUST(cu.mem_free((CUdeviceptr)slow));
}

static void ask_in_a_child(void) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        int count = 0;
        SAY(cu.ctx_synchronize());
        SAY(cu.init(0));
        SAY(cu.device_get_count(&count));
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv) {
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    void *symbol = library != NULL ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (symbol == NULL) {
        fprintf(stderr, "usage: observe LIBRARY (%s)\n", argc == 2 ? dlerror() : "no library");
        return 2;
    }
    memcpy(&get_address, &symbol, sizeof symbol);
    setvbuf(stdout, NULL, _IOLBF, 0);
#define UM_DRIVER_CALL(field, symbol, version, need, params)                                                           \
    get_address(symbol, (void **)&cu.field, version, CU_GET_PROC_ADDRESS_DEFAULT, NULL);
#include "driver/um_driver_calls.h"
#undef UM_DRIVER_CALL
    ask_the_door();
    int count = 0;
    SAY(cu.device_get_count(&count));
    MUST(cu.init(0));
    ask_without_context();
    MUST(cu.primary_ctx_retain(&context, 0));
    MUST(cu.ctx_push_current(context));
    CUlibrary kernels = NULL;
    CUkernel kernel = NULL;
    MUST(cu.library_load_data(&kernels, image, NULL, NULL, 0, NULL, NULL, 0));
    SAY(cu.library_get_kernel(&kernel, kernels, "no_such_kernel"));
    MUST(cu.library_get_kernel(&kernel, kernels, "fakecu_test_fill"));
    fill_kernel = (CUfunction)kernel;
    MUST(cu.library_get_kernel(&kernel, kernels, "fakecu_test_sum"));
    sum_kernel = (CUfunction)kernel;
    ask_about_memory();
    ask_about_arguments();
    ask_where_pages_go();
    if (cu.mem_discard_batch != NULL) {
        ask_about_writes_after_a_discard("plain", false, false, false);
        ask_about_writes_after_a_discard("accessed-by, host touches", true, false, false);
        ask_about_writes_after_a_discard("accessed-by, prefetched to the host", true, false, true);
        ask_about_writes_after_a_discard("accessed-by, prefetched before", true, true, false);
    }
    ask_about_streams();
    ask_in_a_child();
    MUST(cu.library_unload(kernels));
    MUST(cu.primary_ctx_release(0));
    SAY(cu.ctx_synchronize());
    SAY(cu.ctx_push_current(context));
    return 0;
}
