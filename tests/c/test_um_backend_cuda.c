/* The CUDA backend against the fake driver that UMEM_CUDA_LIBRARY names. Every driver call is also failed once. */
#define _GNU_SOURCE 1 /* fork, pthread */
#include "backend/um_backend.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver/um_driver.h"
#include "kernels/um_kernel_image.h"
#include "um_fake.h"
#include "um_test.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

/* The fake takes its kernels from a table of its own, whatever the image holds; the head is a fat binary's. */
static const unsigned char image_bytes[64] __attribute__((aligned(8))) = {0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0};
const um_kernel_image um_kernel_images[] = {{"first", image_bytes, sizeof(image_bytes)},
                                            {"second", image_bytes, sizeof(image_bytes)}};
const size_t um_kernel_image_count = 2;

static const um_location nowhere = {UM_LOCATION_NONE, 0};
static const um_location host = {UM_LOCATION_HOST, 0};
static const um_location gpu0 = {UM_LOCATION_DEVICE, 0};
static const um_location gpu1 = {UM_LOCATION_DEVICE, 1};
static const um_location gpu9 = {UM_LOCATION_DEVICE, 9};
static const um_location node0 = {UM_LOCATION_NUMA, 0};

static um_backend *backend; /* of the running test */

static void start(int version, int devices) {
    FAKE(fakecu_shutdown)();
    FAKE(fakecu_set_version)(version);
    FAKE(fakecu_set_devices)(devices);
}

static bool open_backend(void) {
    um_error err;
    backend = NULL;
    um_status status = um_backend_cuda_open(getenv("UMEM_CUDA_LIBRARY"), &backend, &err);
    if (status != UM_OK) {
        printf("open: %s\n", err.message);
    }
    return status == UM_OK;
}

static void finish(void) {
    if (backend != NULL) {
        backend->ops->close(backend);
        backend = NULL;
    }
    UM_CHECK(FAKE(fakecu_live)("all") == 0);
    FAKE(fakecu_shutdown)();
}

static bool ok(um_status status, const um_error *err) {
    if (status != UM_OK) {
        printf("%s: %s\n", um_test_name, err->message);
    }
    return status == UM_OK;
}

static unsigned long calls(const char *name) { return FAKE(fakecu_calls)(name); }

/* --- opening, contexts, devices --------------------------------------------------------------------------------- */

static void opening_starts_no_context(void) {
    start(13000, 2);
    UM_REQUIRE(open_backend());
    UM_CHECK(strcmp(backend->ops->name, "cuda") == 0);
    UM_CHECK(backend->device_count == 2);
    UM_CHECK(backend->driver_version == 13000);
    UM_CHECK(backend->concurrent);
    UM_CHECK(strcmp(backend->driver_path, getenv("UMEM_CUDA_LIBRARY")) == 0);
    UM_CHECK(backend->ops->launch != NULL);
    um_error err;
    um_device_info info;
    UM_CHECK(ok(backend->ops->device_info(backend, 1, &info, &err), &err));
    UM_CHECK(ok(backend->ops->synchronize(backend, &err), &err));
    UM_CHECK(calls("cuDevicePrimaryCtxRetain") == 0);
    UM_CHECK(FAKE(fakecu_live)("context") == 0);
    UM_CHECK(info.name[0] != '\0');
    UM_CHECK(info.compute_major > 0 && info.total_memory > 0 && info.multiprocessors > 0);
    UM_CHECK(info.managed_memory && info.concurrent_managed_access);
    UM_CHECK(strncmp(info.uuid, "GPU-", 4) == 0 && strlen(info.uuid) == 40);
    UM_CHECK(backend->ops->device_info(backend, 2, &info, &err) == UM_ERR_VALUE);
    UM_CHECK_CONTAINS(err.message, "cuda:2");
    finish();
}

static void no_managed_memory_is_no_driver(void) {
    start(13000, 1);
    FAKE(fakecu_set_managed)(0);
    um_error err;
    UM_CHECK(um_backend_cuda_open(getenv("UMEM_CUDA_LIBRARY"), &backend, &err) == UM_ERR_NO_DRIVER);
    UM_CHECK_CONTAINS(err.message, "managed memory");
    FAKE(fakecu_shutdown)();
}

/* One retain a device, however many calls; the caller's own context comes back. */
static void contexts_are_retained_once_and_restored(void) {
    start(13000, 2);
    UM_REQUIRE(open_backend());
    um_error err;
    for (int i = 0; i < 3; ++i) {
        for (int device = 0; device < 2; ++device) {
            void *ptr = NULL;
            UM_REQUIRE(ok(backend->ops->mem_alloc(backend, 1 * MIB, device, nowhere, &ptr, &err), &err));
            UM_CHECK(ok(backend->ops->mem_free(backend, ptr, 1 * MIB, device, &err), &err));
        }
    }
    UM_CHECK(calls("cuDevicePrimaryCtxRetain") == 2);
    UM_CHECK(calls("cuCtxPushCurrent") == calls("cuCtxPopCurrent"));
    void *ptr = NULL;
    UM_CHECK(backend->ops->mem_alloc(backend, 1, 2, nowhere, &ptr, &err) == UM_ERR_VALUE);
    UM_CHECK(backend->ops->mem_alloc(backend, 1, -1, nowhere, &ptr, &err) == UM_ERR_VALUE);
    UM_CHECK(ptr == NULL);
    finish();
}

/* Another library's work is waited for, on a device that umem never used and still does not hold afterwards. */
static void synchronize_waits_for_other_libraries(void) {
    start(13000, 2);
    UM_REQUIRE(open_backend());
    um_error err;
    um_driver *other = NULL;
    UM_REQUIRE(ok(um_driver_open(getenv("UMEM_CUDA_LIBRARY"), &other, &err), &err));
    CUcontext context = NULL;
    CUcontext popped = NULL;
    CUstream stream = NULL;
    CUdeviceptr ptr = 0;
    UM_CHECK(other->primary_ctx_retain(&context, 1) == CUDA_SUCCESS);
    UM_CHECK(other->ctx_push_current(context) == CUDA_SUCCESS);
    UM_CHECK(other->stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    UM_CHECK(other->mem_alloc_managed(&ptr, 4 * KIB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
    UM_CHECK(other->memset_d8_async(ptr, 1, 4 * KIB, stream) == CUDA_SUCCESS);
    UM_CHECK(other->ctx_pop_current(&popped) == CUDA_SUCCESS);
    UM_CHECK(FAKE(fakecu_pending)(FAKECU_ALL_STREAMS) == 1);
    UM_CHECK(ok(backend->ops->synchronize(backend, &err), &err));
    UM_CHECK(FAKE(fakecu_pending)(FAKECU_ALL_STREAMS) == 0);
    UM_CHECK(FAKE(fakecu_live)("context") == 1);
    int device = -1;
    unsigned long long id = 0;
    UM_CHECK(ok(backend->ops->stream_info(backend, (um_stream_handle)stream, &device, &id, &err), &err));
    UM_CHECK(device == 1);
    UM_CHECK(other->ctx_get_current(&popped) == CUDA_SUCCESS && popped == NULL);
    UM_CHECK(other->ctx_push_current(context) == CUDA_SUCCESS);
    UM_CHECK(other->mem_free(ptr) == CUDA_SUCCESS);
    UM_CHECK(other->stream_destroy(stream) == CUDA_SUCCESS);
    UM_CHECK(other->ctx_pop_current(&popped) == CUDA_SUCCESS);
    UM_CHECK(other->primary_ctx_release(1) == CUDA_SUCCESS);
    um_driver_close(other);
    finish();
}

static void *use_device(void *argument) {
    (void)argument;
    size_t failures = 0;
    for (int i = 0; i < 50; ++i) {
        void *ptr = NULL;
        if (backend->ops->mem_alloc(backend, 64 * KIB, i % 2, nowhere, &ptr, NULL) != UM_OK) {
            ++failures;
            continue;
        }
        um_range ranges[] = {{ptr, 4 * KIB}, {(char *)ptr + 8 * KIB, 4 * KIB}};
        um_kernel_handle kernel = 0;
        um_location where = i % 2 == 0 ? gpu0 : gpu1;
        failures += backend->ops->prefetch(backend, ranges, 2, where, i % 2, UM_STREAM_LEGACY, NULL) != UM_OK;
        failures += backend->ops->kernel_get(backend, "fakecu_test_fill", &kernel, NULL) != UM_OK;
        failures += backend->ops->mem_free(backend, ptr, 64 * KIB, i % 2, NULL) != UM_OK;
    }
    return (void *)(uintptr_t)failures;
}

static void threads_share_contexts_streams_and_images(void) {
    start(13000, 2);
    UM_REQUIRE(open_backend());
    pthread_t threads[4];
    for (size_t i = 0; i < 4; ++i) {
        UM_REQUIRE(pthread_create(&threads[i], NULL, use_device, NULL) == 0);
    }
    for (size_t i = 0; i < 4; ++i) {
        void *failures = NULL;
        UM_CHECK(pthread_join(threads[i], &failures) == 0 && failures == NULL);
    }
    UM_CHECK(calls("cuDevicePrimaryCtxRetain") == 2);
    UM_CHECK(calls("cuStreamCreate") == 2);
    UM_CHECK(calls("cuLibraryLoadData") <= 2);
    UM_CHECK(FAKE(fakecu_live)("event") <= 2); /* the spare of each device */
    finish();
}

static void a_forked_child_does_not_touch_the_driver(void) {
    start(13000, 1);
    UM_REQUIRE(open_backend());
    um_error err;
    void *ptr = NULL;
    UM_REQUIRE(ok(backend->ops->mem_alloc(backend, 64 * KIB, 0, nowhere, &ptr, &err), &err));
    unsigned long before = calls("cuDevicePrimaryCtxRelease");
    pid_t child = fork();
    if (child == 0) {
        backend->ops->close(backend);
        um_test_exit(calls("cuDevicePrimaryCtxRelease") == before ? 0 : 1);
    }
    int status = 0;
    UM_CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    UM_CHECK(ok(backend->ops->mem_free(backend, ptr, 64 * KIB, 0, &err), &err));
    finish();
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static void blocks_have_advice_from_birth(void) {
    static const int versions[] = {12000, 13000}; /* the old form of cuMemAdvise, and the one with locations */
    for (size_t i = 0; i < 2; ++i) {
        start(versions[i], 2);
        UM_REQUIRE(open_backend());
        um_error err;
        void *plain = NULL;
        void *on_host = NULL;
        void *on_gpu = NULL;
        void *small = NULL;
        UM_REQUIRE(ok(backend->ops->mem_alloc(backend, 4 * MIB, 1, nowhere, &plain, &err), &err));
        UM_REQUIRE(ok(backend->ops->mem_alloc(backend, 64 * KIB, 0, host, &on_host, &err), &err));
        UM_REQUIRE(ok(backend->ops->mem_alloc(backend, 100, 0, gpu1, &on_gpu, &err), &err));
        UM_REQUIRE(ok(backend->ops->mem_alloc(backend, 100, 0, nowhere, &small, &err), &err));
        UM_CHECK(FAKE(fakecu_page_accessed_by)(plain) == 2 && FAKE(fakecu_page_preferred)(plain) == -2);
        UM_CHECK(FAKE(fakecu_page_accessed_by)(on_host) == 1 && FAKE(fakecu_page_preferred)(on_host) == -1);
        UM_CHECK(FAKE(fakecu_page_accessed_by)(on_gpu) == 1 && FAKE(fakecu_page_preferred)(on_gpu) == 1);
        UM_CHECK(FAKE(fakecu_page_accessed_by)(small) == 0);
        UM_CHECK((uintptr_t)plain % 512 == 0 && (uintptr_t)small % 512 == 0);
        UM_CHECK((calls("mem_advise_device") > 0) == (versions[i] == 12000));
        UM_CHECK(ok(backend->ops->mem_free(backend, plain, 4 * MIB, 1, &err), &err));
        UM_CHECK(ok(backend->ops->mem_free(backend, on_host, 64 * KIB, 0, &err), &err));
        UM_CHECK(ok(backend->ops->mem_free(backend, on_gpu, 100, 0, &err), &err));
        UM_CHECK(ok(backend->ops->mem_free(backend, small, 100, 0, &err), &err));
        void *ptr = NULL;
        UM_CHECK(backend->ops->mem_alloc(backend, 64 * KIB, 0, gpu9, &ptr, &err) == UM_ERR_VALUE);
        if (versions[i] == 12000) {
            UM_CHECK(backend->ops->mem_alloc(backend, 64 * KIB, 0, node0, &ptr, &err) == UM_ERR_UNSUPPORTED);
            UM_CHECK_CONTAINS(err.message, "12.2");
        }
        UM_CHECK(ptr == NULL);
        finish();
    }
}

#define HOST_NUMA_ID 134 /* CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID */

static struct {
    int count, node;
    char *ptr;
    size_t size;
} bound;

static int note_binding(void *ptr, size_t size, int node) {
    ++bound.count;
    bound.ptr = ptr;
    bound.size = size;
    bound.node = node;
    return -1; /* as a system that refuses: nobody minds */
}

/* The node that is asked for when memory is allocated; -1: none. */
static int node_asked(size_t size, int device, um_location home) {
    um_error err;
    void *ptr = NULL;
    memset(&bound, 0, sizeof(bound));
    if (!ok(backend->ops->mem_alloc(backend, size, device, home, &ptr, &err), &err)) {
        return -2;
    }
    bool whole = bound.count == 0 || (bound.count == 1 && bound.ptr == ptr && bound.size == size);
    UM_CHECK(whole);
    UM_CHECK(ok(backend->ops->mem_free(backend, ptr, size, device, &err), &err));
    return bound.count == 0 ? -1 : bound.node;
}

static void host_pages_go_next_to_the_gpu(void) {
    for (int concurrent = 0; concurrent < 2; ++concurrent) {
        start(13000, 3);
        FAKE(fakecu_set_concurrent)(concurrent);
        FAKE(fakecu_set_attribute)(0, HOST_NUMA_ID, 1);
        FAKE(fakecu_set_attribute)(1, HOST_NUMA_ID, 5);
        FAKE(fakecu_set_attribute)(2, HOST_NUMA_ID, -1);
        UM_REQUIRE(open_backend());
        um_device_info info;
        um_error err;
        UM_CHECK(ok(backend->ops->device_info(backend, 1, &info, &err), &err) && info.numa_node == 5);
        um_numa_read(&backend->numa, "0-1,5");
        backend->numa.bind = note_binding;
        UM_CHECK(node_asked(2 * MIB, 0, nowhere) == 1);
        UM_CHECK(node_asked(64 * KIB, 1, nowhere) == 5);
        UM_CHECK(node_asked(2 * MIB, 2, nowhere) == -1); /* nobody knows */
        UM_CHECK(node_asked(4 * KIB, 0, nowhere) == -1); /* its pages may be others' too */
        UM_CHECK(node_asked(2 * MIB, 1, host) == 5);
        UM_CHECK(node_asked(2 * MIB, 0, gpu1) == 1);
        UM_CHECK(node_asked(2 * MIB, 1, node0) == 0); /* a home says where */
        backend->numa.off = true;
        UM_CHECK(node_asked(2 * MIB, 0, nowhere) == -1);
        UM_CHECK(node_asked(2 * MIB, 1, node0) == 0);
        um_numa_read(&backend->numa, "0-1");
        backend->numa.bind = note_binding;
        UM_CHECK(node_asked(2 * MIB, 1, nowhere) == -1); /* no such node */
        um_numa_read(&backend->numa, "1");
        backend->numa.bind = note_binding;
        UM_CHECK(node_asked(2 * MIB, 0, nowhere) == -1); /* there is no other */
        finish();
    }
    start(12000, 1); /* a driver that does not know the attribute */
    UM_REQUIRE(open_backend());
    um_numa_read(&backend->numa, "0-1");
    backend->numa.bind = note_binding;
    UM_CHECK(node_asked(2 * MIB, 0, nowhere) == -1);
    finish();
}

static void too_much_is_out_of_memory(void) {
    start(13000, 1);
    FAKE(fakecu_set_managed_limit)(8 * MIB);
    UM_REQUIRE(open_backend());
    static const size_t sizes[] = {64 * MIB, SIZE_MAX, SIZE_MAX - 100};
    for (size_t i = 0; i < 3; ++i) {
        um_error err;
        void *ptr = NULL;
        UM_CHECK(backend->ops->mem_alloc(backend, sizes[i], 0, nowhere, &ptr, &err) == UM_ERR_OUT_OF_MEMORY);
        UM_CHECK(ptr == NULL);
        UM_CHECK(err.requested == sizes[i] && err.device == 0 && err.cuda_code == 0);
        UM_CHECK_CONTAINS(err.message, "cuMemAllocManaged");
    }
    finish();
}

static void pointers_are_known(void) {
    start(13000, 2);
    UM_REQUIRE(open_backend());
    um_error err;
    um_pointer_info info;
    int local = 0;
    UM_CHECK(ok(backend->ops->pointer_info(backend, &local, &info, &err), &err) && !info.known);
    char *managed = NULL;
    char *staging = NULL;
    UM_REQUIRE(ok(backend->ops->mem_alloc(backend, 1 * MIB, 1, nowhere, (void **)&managed, &err), &err));
    UM_REQUIRE(ok(backend->ops->staging_alloc(backend, 0, 8 * KIB, (void **)&staging, &err), &err));
    char *device = FAKE(fakecu_device_alloc)(64 * KIB, 1);
    UM_REQUIRE(device != NULL);
    UM_CHECK(ok(backend->ops->pointer_info(backend, managed + 1000, &info, &err), &err));
    UM_CHECK(info.known && info.managed && !info.host && info.device == 1);
    UM_CHECK(info.base == managed && info.size == 1 * MIB);
    UM_CHECK(ok(backend->ops->pointer_info(backend, device + 4, &info, &err), &err));
    UM_CHECK(info.known && !info.managed && !info.host && info.device == 1);
    UM_CHECK(info.base == device && info.size == 64 * KIB);
    UM_CHECK(ok(backend->ops->pointer_info(backend, staging + 4, &info, &err), &err));
    UM_CHECK(info.known && !info.managed && info.host && info.device == -1);
    UM_CHECK(ok(backend->ops->pointer_info(backend, &local, &info, &err), &err) && !info.known);
    FAKE(fakecu_device_free)(device);
    backend->ops->staging_free(backend, staging);
    UM_CHECK(ok(backend->ops->mem_free(backend, managed, 1 * MIB, 1, &err), &err));
    finish();
}

/* --- placement -------------------------------------------------------------------------------------------------- */

static void prefetch_moves(void) {
    static const int versions[] = {12000, 12020, 13000};
    static const um_stream_handle streams[] = {0, UM_STREAM_LEGACY, UM_STREAM_PER_THREAD, 99};
    for (size_t i = 0; i < 3; ++i) {
        start(versions[i], 2);
        UM_REQUIRE(open_backend());
        um_error err;
        char *ptr = NULL;
        um_stream_handle own = 0;
        UM_REQUIRE(ok(backend->ops->stream_create(backend, 0, &own, &err), &err));
        UM_REQUIRE(ok(backend->ops->mem_alloc(backend, 1 * MIB, 0, nowhere, (void **)&ptr, &err), &err));
        memset(ptr, 5, 1 * MIB);
        um_range ranges[] = {{ptr, 64 * KIB}, {ptr + 128 * KIB, 64 * KIB}};
        for (size_t k = 0; k < 4; ++k) {
            um_stream_handle stream = streams[k] == 99 ? own : streams[k];
            UM_CHECK(ok(backend->ops->prefetch(backend, ranges, 2, gpu0, 0, stream, &err), &err));
            UM_CHECK(ok(backend->ops->stream_synchronize(backend, 0, stream, &err), &err));
            UM_CHECK(FAKE(fakecu_page_location)(ptr) == 0);
            UM_CHECK(FAKE(fakecu_page_location)(ptr + 64 * KIB) == -1);
            UM_CHECK(FAKE(fakecu_page_location)(ptr + 128 * KIB) == 0);
            UM_CHECK(ok(backend->ops->prefetch(backend, ranges, 1, host, 0, stream, &err), &err));
            UM_CHECK(ok(backend->ops->stream_synchronize(backend, 0, stream, &err), &err));
            UM_CHECK(FAKE(fakecu_page_location)(ptr) == -1);
            UM_CHECK(FAKE(fakecu_page_location)(ptr + 128 * KIB) == 0);
        }
        UM_CHECK(calls("mem_prefetch_batch") == (versions[i] >= 13000 ? 4u : 0u));
        UM_CHECK((calls("mem_prefetch_device") > 0) == (versions[i] == 12000));
        UM_CHECK(backend->ops->prefetch(backend, ranges, 2, gpu9, 0, 0, &err) == UM_ERR_VALUE);
        UM_CHECK(backend->ops->prefetch(backend, ranges, 2, nowhere, 0, 0, &err) == UM_ERR_VALUE);
        if (versions[i] == 12000) {
            UM_CHECK(backend->ops->prefetch(backend, ranges, 2, node0, 0, 0, &err) == UM_ERR_UNSUPPORTED);
        }
        UM_CHECK(ptr[0] == 5 && ptr[128 * KIB] == 5);
        UM_CHECK(ok(backend->ops->mem_free(backend, ptr, 1 * MIB, 0, &err), &err));
        UM_CHECK(ok(backend->ops->stream_destroy(backend, 0, own, &err), &err));
        finish();
    }
}

static bool get_fill(um_kernel_handle *kernel, um_error *err) {
    return ok(backend->ops->kernel_get(backend, "fakecu_test_fill", kernel, err), err);
}

static bool fill(um_stream_handle stream, void *ptr, int value, size_t size, um_error *err) {
    um_kernel_handle kernel = 0;
    void *params[] = {&ptr, &value, &size};
    if (!get_fill(&kernel, err)) {
        return false;
    }
    um_launch launch = {.kernel = kernel, .grid_x = 1, .grid_y = 1, .grid_z = 1, .block_x = 32, .params = params};
    return ok(backend->ops->launch(backend, 0, stream, &launch, err), err);
}

/* The batch call runs on another stream: nothing before it may be missed, and nothing after it may overtake it. */
static void a_batch_keeps_the_order_of_the_legacy_stream(void) {
    start(13000, 1);
    UM_REQUIRE(open_backend());
    um_error err;
    char *ptr = NULL;
    UM_REQUIRE(ok(backend->ops->mem_alloc(backend, 1 * MIB, 0, nowhere, (void **)&ptr, &err), &err));
    um_range ranges[] = {{ptr, 64 * KIB}, {ptr + 64 * KIB, 64 * KIB}};
    um_event_handle before = 0;
    um_event_handle after = 0;
    bool done = false;
    UM_REQUIRE(ok(backend->ops->event_create(backend, 0, &before, &err), &err));
    UM_REQUIRE(ok(backend->ops->event_create(backend, 0, &after, &err), &err));
    FAKE(fakecu_set_query_mode)(0);
    UM_CHECK(fill(UM_STREAM_LEGACY, ptr, 3, 1 * MIB, &err));
    UM_CHECK(ok(backend->ops->event_record(backend, 0, before, UM_STREAM_LEGACY, &err), &err));
    UM_CHECK(ok(backend->ops->prefetch(backend, ranges, 2, host, 0, UM_STREAM_LEGACY, &err), &err));
    UM_CHECK(ok(backend->ops->event_record(backend, 0, after, UM_STREAM_LEGACY, &err), &err));
    UM_CHECK(ok(backend->ops->event_query(backend, 0, before, &done, &err), &err) && !done);
    UM_CHECK(ok(backend->ops->event_synchronize(backend, 0, after, &err), &err));
    UM_CHECK(ok(backend->ops->event_query(backend, 0, before, &done, &err), &err) && done);
    UM_CHECK(FAKE(fakecu_page_location)(ptr) == -1 && FAKE(fakecu_page_location)(ptr + 64 * KIB) == -1);
    UM_CHECK(ptr[0] == 3 && ptr[64 * KIB] == 3);
    UM_CHECK(ok(backend->ops->discard(backend, ranges[0], 0, UM_STREAM_LEGACY, &err), &err));
    UM_CHECK(ok(backend->ops->stream_synchronize(backend, 0, UM_STREAM_LEGACY, &err), &err));
    UM_CHECK(FAKE(fakecu_page_discarded)(ptr) == 1 && FAKE(fakecu_page_discarded)(ptr + 64 * KIB) == 0);
    UM_CHECK(FAKE(fakecu_live)("event") == 3); /* with the spare */
    backend->ops->event_destroy(backend, 0, before);
    backend->ops->event_destroy(backend, 0, after);
    UM_CHECK(ok(backend->ops->mem_free(backend, ptr, 1 * MIB, 0, &err), &err));
    finish();
}

static void advice_is_given_and_taken(void) {
    static const int versions[] = {12000, 13000};
    for (size_t i = 0; i < 2; ++i) {
        start(versions[i], 2);
        UM_REQUIRE(open_backend());
        um_error err;
        void *ptr = NULL;
        UM_REQUIRE(ok(backend->ops->mem_alloc(backend, 1 * MIB, 0, nowhere, &ptr, &err), &err));
        um_range range = {ptr, 1 * MIB};
        UM_CHECK(ok(backend->ops->advise(backend, range, UM_ADVICE_READ_MOSTLY, nowhere, &err), &err));
        UM_CHECK(FAKE(fakecu_page_read_mostly)(ptr) == 1);
        UM_CHECK(ok(backend->ops->advise(backend, range, UM_ADVICE_UNSET_READ_MOSTLY, gpu9, &err), &err));
        UM_CHECK(FAKE(fakecu_page_read_mostly)(ptr) == 0);
        UM_CHECK(ok(backend->ops->advise(backend, range, UM_ADVICE_PREFERRED_LOCATION, gpu1, &err), &err));
        UM_CHECK(FAKE(fakecu_page_preferred)(ptr) == 1);
        UM_CHECK(ok(backend->ops->advise(backend, range, UM_ADVICE_PREFERRED_LOCATION, host, &err), &err));
        UM_CHECK(FAKE(fakecu_page_preferred)(ptr) == -1);
        UM_CHECK(ok(backend->ops->advise(backend, range, UM_ADVICE_UNSET_PREFERRED_LOCATION, nowhere, &err), &err));
        UM_CHECK(FAKE(fakecu_page_preferred)(ptr) == -2);
        UM_CHECK(ok(backend->ops->advise(backend, range, UM_ADVICE_ACCESSED_BY, gpu1, &err), &err));
        UM_CHECK(FAKE(fakecu_page_accessed_by)(ptr) == 3);
        UM_CHECK(ok(backend->ops->advise(backend, range, UM_ADVICE_UNSET_ACCESSED_BY, gpu0, &err), &err));
        UM_CHECK(FAKE(fakecu_page_accessed_by)(ptr) == 2);
        UM_CHECK(backend->ops->advise(backend, range, UM_ADVICE_ACCESSED_BY, nowhere, &err) == UM_ERR_VALUE);
        UM_CHECK(backend->ops->advise(backend, range, UM_ADVICE_ACCESSED_BY, gpu9, &err) == UM_ERR_VALUE);
        UM_CHECK(ok(backend->ops->mem_free(backend, ptr, 1 * MIB, 0, &err), &err));
        finish();
    }
}

static void devices_without_concurrent_access_take_no_placement(void) {
    start(13000, 1);
    FAKE(fakecu_set_concurrent)(0);
    UM_REQUIRE(open_backend());
    UM_CHECK(!backend->concurrent);
    um_error err;
    char *ptr = NULL;
    UM_REQUIRE(ok(backend->ops->mem_alloc(backend, 1 * MIB, 0, host, (void **)&ptr, &err), &err));
    um_range ranges[] = {{ptr, 64 * KIB}, {ptr + 128 * KIB, 64 * KIB}};
    UM_CHECK(ok(backend->ops->prefetch(backend, ranges, 2, gpu0, 0, 0, &err), &err));
    UM_CHECK(ok(backend->ops->advise(backend, ranges[0], UM_ADVICE_READ_MOSTLY, nowhere, &err), &err));
    UM_CHECK(ok(backend->ops->advise(backend, ranges[0], UM_ADVICE_PREFERRED_LOCATION, gpu0, &err), &err));
    UM_CHECK(ok(backend->ops->discard(backend, ranges[0], 0, 0, &err), &err));
    UM_CHECK(calls("cuMemAdvise") == 0 && calls("cuMemPrefetchAsync") == 0);
    UM_CHECK(calls("cuMemPrefetchBatchAsync") == 0 && calls("cuMemDiscardBatchAsync") == 0);
    UM_CHECK(ok(backend->ops->mem_free(backend, ptr, 1 * MIB, 0, &err), &err));
    finish();
}

/* --- streams, copies, kernels ---------------------------------------------------------------------------------- */

static void streams_know_their_device(void) {
    start(13000, 2);
    UM_REQUIRE(open_backend());
    um_error err;
    static const um_stream_handle special[] = {0, UM_STREAM_LEGACY, UM_STREAM_PER_THREAD};
    int device = 7;
    unsigned long long id = 7;
    for (size_t i = 0; i < 3; ++i) {
        UM_CHECK(ok(backend->ops->stream_info(backend, special[i], &device, &id, &err), &err));
        UM_CHECK(device == -1 && id == special[i]);
    }
    um_stream_handle streams[2] = {0, 0};
    unsigned long long ids[2] = {0, 0};
    for (int i = 0; i < 2; ++i) {
        UM_REQUIRE(ok(backend->ops->stream_create(backend, i, &streams[i], &err), &err));
        UM_CHECK(ok(backend->ops->stream_info(backend, streams[i], &device, &ids[i], &err), &err));
        UM_CHECK(device == i);
    }
    UM_CHECK(ids[0] != ids[1]);
    for (int i = 0; i < 2; ++i) {
        UM_CHECK(ok(backend->ops->stream_destroy(backend, i, streams[i], &err), &err));
    }
    finish();
}

static void kernels_copies_and_fills_run(void) {
    start(13000, 1);
    UM_REQUIRE(open_backend());
    um_error err;
    unsigned char *ptr = NULL;
    unsigned char *staging = NULL;
    unsigned char pageable[64];
    UM_REQUIRE(ok(backend->ops->mem_alloc(backend, 64 * KIB, 0, nowhere, (void **)&ptr, &err), &err));
    UM_REQUIRE(ok(backend->ops->staging_alloc(backend, 0, 4 * KIB, (void **)&staging, &err), &err));
    um_stream_handle stream = UM_STREAM_LEGACY;
    UM_CHECK(ok(backend->ops->fill_bytes(backend, 0, ptr, 1, 64 * KIB, stream, &err), &err));
    UM_CHECK(fill(stream, ptr + 100, 2, 100, &err));
    UM_CHECK(ok(backend->ops->copy(backend, 0, staging, ptr, 4 * KIB, stream, &err), &err));
    unsigned char *out = staging + 1 * KIB;
    UM_CHECK(ok(backend->ops->copy_2d_to_host(backend, 0, out, 8, ptr + 96, 50, 8, 4, stream, &err), &err));
    UM_CHECK(ok(backend->ops->stream_synchronize(backend, 0, stream, &err), &err));
    UM_CHECK(staging[99] == 1 && staging[100] == 2 && staging[199] == 2 && staging[200] == 1);
    static const unsigned char rows[32] = {1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,
                                           2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    UM_CHECK(memcmp(out, rows, sizeof(rows)) == 0);
    UM_CHECK(ok(backend->ops->copy(backend, 0, pageable, ptr + 90, sizeof(pageable), stream, &err), &err));
    UM_CHECK(pageable[9] == 1 && pageable[10] == 2);
    um_kernel_handle kernel = 12345;
    UM_CHECK(backend->ops->kernel_get(backend, "no_such_kernel", &kernel, &err) == UM_ERR_UNSUPPORTED);
    UM_CHECK_CONTAINS(err.message, "no_such_kernel");
    UM_CHECK(kernel == 12345);
    UM_CHECK(calls("cuLibraryLoadData") == 2);
    backend->ops->staging_free(backend, staging);
    UM_CHECK(ok(backend->ops->mem_free(backend, ptr, 64 * KIB, 0, &err), &err));
    finish();
}

static void images_that_do_not_fit_say_how_to_rebuild(void) {
    static const int codes[] = {CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
                                CUDA_ERROR_INVALID_PTX};
    for (size_t i = 0; i < 3; ++i) {
        start(13000, 1);
        UM_REQUIRE(open_backend());
        FAKE(fakecu_fail)("cuLibraryLoadData", 1, codes[i], 1);
        um_error err;
        um_kernel_handle kernel = 0;
        UM_CHECK(backend->ops->kernel_get(backend, "fakecu_test_fill", &kernel, &err) == UM_ERR_CUDA);
        UM_CHECK(err.cuda_code == codes[i] && err.call != NULL && strcmp(err.call, "cuLibraryLoadData") == 0);
        UM_CHECK_CONTAINS(err.message, "UMEM_CUDA_ARCHS");
        UM_CHECK_CONTAINS(err.message, "CUDA 12 nvcc");
        FAKE(fakecu_reset)();
        UM_CHECK(get_fill(&kernel, &err)); /* the failure is not remembered */
        finish();
        start(13000, 1);
        UM_REQUIRE(open_backend());
        FAKE(fakecu_fail)("cuLibraryGetKernel", 1, codes[i], 0);
        UM_CHECK(get_fill(&kernel, &err)); /* the other image has it */
        FAKE(fakecu_fail)("cuLibraryGetKernel", 1, codes[i], 1);
        UM_CHECK(backend->ops->kernel_get(backend, "fakecu_test_sum", &kernel, &err) == UM_ERR_CUDA);
        UM_CHECK_CONTAINS(err.message, "cuLibraryGetKernel");
        FAKE(fakecu_fail)("cuLaunchKernel", 1, codes[i], 1);
        um_launch launch = {.kernel = kernel, .grid_x = 1, .grid_y = 1, .grid_z = 1, .block_x = 1};
        UM_CHECK(backend->ops->launch(backend, 0, UM_STREAM_LEGACY, &launch, &err) == UM_ERR_CUDA);
        UM_CHECK_CONTAINS(err.message, "UMEM_CUDA_ARCHS");
        FAKE(fakecu_reset)();
        finish();
    }
}

/* --- every call fails once ------------------------------------------------------------------------------------- */

/* What a scenario holds, for clean_up. */
typedef struct holdings {
    void *ptr;
    void *staging;
    um_stream_handle stream;
    um_event_handle event;
} holdings;

static um_status acquire(holdings *held, um_error *err) {
    const um_backend_ops *ops = backend->ops;
    um_device_info info;
    um_pointer_info pointer;
    int device = 0;
    unsigned long long id = 0;
    um_status status = ops->device_info(backend, 0, &info, err);
    status = status != UM_OK ? status : ops->mem_alloc(backend, 64 * KIB, 0, host, &held->ptr, err);
    status = status != UM_OK ? status : ops->pointer_info(backend, held->ptr, &pointer, err);
    status = status != UM_OK ? status : ops->staging_alloc(backend, 0, 4 * KIB, &held->staging, err);
    status = status != UM_OK ? status : ops->stream_create(backend, 0, &held->stream, err);
    status = status != UM_OK ? status : ops->stream_info(backend, held->stream, &device, &id, err);
    return status != UM_OK ? status : ops->event_create(backend, 0, &held->event, err);
}

static um_status place(const holdings *held, um_error *err) {
    const um_backend_ops *ops = backend->ops;
    um_range ranges[] = {{held->ptr, 4 * KIB}, {(char *)held->ptr + 8 * KIB, 4 * KIB}};
    um_status status = ops->prefetch(backend, ranges, 2, gpu0, 0, UM_STREAM_LEGACY, err);
    status = status != UM_OK ? status : ops->prefetch(backend, ranges, 1, host, 0, held->stream, err);
    status = status != UM_OK ? status : ops->advise(backend, ranges[0], UM_ADVICE_READ_MOSTLY, nowhere, err);
    return status != UM_OK ? status : ops->discard(backend, ranges[0], 0, UM_STREAM_LEGACY, err);
}

static um_status compute(const holdings *held, um_error *err) {
    const um_backend_ops *ops = backend->ops;
    um_kernel_handle kernel = 0;
    um_status status = ops->kernel_get(backend, "fakecu_test_fill", &kernel, err);
    if (status != UM_OK) {
        return status;
    }
    void *ptr = held->ptr;
    int value = 1;
    size_t size = 4 * KIB;
    bool done = false;
    void *params[] = {&ptr, &value, &size};
    um_launch launch = {.kernel = kernel, .grid_x = 1, .grid_y = 1, .grid_z = 1, .block_x = 1, .params = params};
    um_stream_handle stream = held->stream;
    status = ops->launch(backend, 0, stream, &launch, err);
    status = status != UM_OK ? status : ops->event_record(backend, 0, held->event, stream, err);
    status = status != UM_OK ? status : ops->stream_wait_event(backend, 0, UM_STREAM_LEGACY, held->event, err);
    status = status != UM_OK ? status : ops->fill_bytes(backend, 0, ptr, 1, size, UM_STREAM_LEGACY, err);
    status = status != UM_OK ? status : ops->copy(backend, 0, held->staging, ptr, size, stream, err);
    status = status != UM_OK ? status : ops->copy_2d_to_host(backend, 0, held->staging, 8, ptr, 8, 8, 2, stream, err);
    status = status != UM_OK ? status : ops->event_query(backend, 0, held->event, &done, err);
    status = status != UM_OK ? status : ops->event_synchronize(backend, 0, held->event, err);
    status = status != UM_OK ? status : ops->stream_synchronize(backend, 0, stream, err);
    return status != UM_OK ? status : ops->synchronize(backend, err);
}

static void clean_up(const holdings *held) {
    um_error err;
    if (backend == NULL) {
        return;
    }
    UM_CHECK(ok(backend->ops->synchronize(backend, &err), &err)); /* still usable */
    if (held->event != 0) {
        backend->ops->event_destroy(backend, 0, held->event);
    }
    if (held->stream != 0) {
        UM_CHECK(ok(backend->ops->stream_destroy(backend, 0, held->stream, &err), &err));
    }
    if (held->staging != NULL) {
        backend->ops->staging_free(backend, held->staging);
    }
    if (held->ptr != NULL) {
        UM_CHECK(ok(backend->ops->mem_free(backend, held->ptr, 64 * KIB, 0, &err), &err));
    }
}

/* An optional call that is not found, the NUMA node of a device, an image that fails while the other has the kernel. */
static bool may_pass_unnoticed(const char *call) {
    static const char *const calls_without_notice[] = {"cuGetProcAddress", "cuDeviceGetAttribute", "cuLibraryLoadData",
                                                       "cuLibraryGetKernel"};
    for (size_t i = 0; i < sizeof(calls_without_notice) / sizeof(calls_without_notice[0]); ++i) {
        if (strcmp(call, calls_without_notice[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Lets the nth driver call fail, for every n that a run through all ops reaches. Each time the error is the driver's,
 * nothing is left behind, and the backend still works. */
static void every_call_may_fail(int version, int code) {
    for (unsigned long n = 1; n < 1000; ++n) {
        start(version, 1);
        FAKE(fakecu_fail_nth_call)(n, code);
        um_error err;
        holdings held = {NULL, NULL, 0, 0};
        unsigned long leaked = FAKE(fakecu_leaked)();
        backend = NULL;
        um_status status = um_backend_cuda_open(getenv("UMEM_CUDA_LIBRARY"), &backend, &err);
        status = status != UM_OK ? status : acquire(&held, &err);
        status = status != UM_OK ? status : place(&held, &err);
        status = status != UM_OK ? status : compute(&held, &err);
        const char *failed = FAKE(fakecu_last_failed)();
        FAKE(fakecu_fail_nth_call)(0, 0);
        clean_up(&held);
        if (backend != NULL) {
            backend->ops->close(backend);
            backend = NULL;
        }
        if (FAKE(fakecu_live)("all") != 0 || FAKE(fakecu_leaked)() != leaked) {
            printf("call %lu (%s): %ld objects left\n", n, failed != NULL ? failed : "none", FAKE(fakecu_live)("all"));
            UM_CHECK(!"leak");
        }
        FAKE(fakecu_shutdown)();
        if (failed == NULL) {
            UM_CHECK(ok(status, &err));
            UM_CHECK(n > 100);
            return;
        }
        if (status != UM_OK && status != UM_ERR_NO_DRIVER) {
            UM_CHECK(status == (code == CUDA_ERROR_OUT_OF_MEMORY ? UM_ERR_OUT_OF_MEMORY : UM_ERR_CUDA));
            UM_CHECK(err.call != NULL && strcmp(err.call, failed) == 0);
            UM_CHECK_CONTAINS(err.message, failed);
        }
        if (status == UM_OK && !may_pass_unnoticed(failed)) {
            printf("call %lu: the failure of %s went unnoticed\n", n, failed);
            UM_CHECK(!"unnoticed");
        }
    }
    UM_CHECK(!"the run never got through");
}

static void every_call_fails_once(void) {
    every_call_may_fail(13000, CUDA_ERROR_UNKNOWN);
    every_call_may_fail(13000, CUDA_ERROR_OUT_OF_MEMORY);
    every_call_may_fail(12000, CUDA_ERROR_LAUNCH_FAILED);
}

int main(void) {
    if (!um_fake_open()) {
        printf("skipped: UMEM_CUDA_LIBRARY does not name the fake driver\n");
        return UM_TEST_SKIPPED;
    }
    UM_RUN(opening_starts_no_context);
    UM_RUN(no_managed_memory_is_no_driver);
    UM_RUN(contexts_are_retained_once_and_restored);
    UM_RUN(synchronize_waits_for_other_libraries);
    UM_RUN(threads_share_contexts_streams_and_images);
    UM_RUN(a_forked_child_does_not_touch_the_driver);
    UM_RUN(blocks_have_advice_from_birth);
    UM_RUN(host_pages_go_next_to_the_gpu);
    UM_RUN(too_much_is_out_of_memory);
    UM_RUN(pointers_are_known);
    UM_RUN(prefetch_moves);
    UM_RUN(a_batch_keeps_the_order_of_the_legacy_stream);
    UM_RUN(advice_is_given_and_taken);
    UM_RUN(devices_without_concurrent_access_take_no_placement);
    UM_RUN(streams_know_their_device);
    UM_RUN(kernels_copies_and_fills_run);
    UM_RUN(images_that_do_not_fit_say_how_to_rebuild);
    UM_RUN(every_call_fails_once);
    um_fake_close();
    return um_test_result();
}
