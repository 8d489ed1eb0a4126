/* The fake CUDA driver does what its README says: versions, devices, contexts, the order of work, copies, launches, faults,
 * and what it refuses. tests/fake_cuda/build.py --test builds and runs this; test_fake_cuda_memory.c is about memory. */
#include <cuda.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_cuda.h"
#include "fake_test.h"

/* --- the door -------------------------------------------------------- */

static void test_proc_address(void) {
    void *old_form = NULL, *new_form = NULL, *function = NULL;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    fakecu_shutdown();
    OK(cuGetProcAddress_v2("cuMemPrefetchAsync", &old_form, 8000, 0, &status));
    CHECK(old_form != NULL && status == CU_GET_PROC_ADDRESS_SUCCESS);
    OK(cuGetProcAddress_v2("cuMemPrefetchAsync", &function, 12010, 0, NULL));
    CHECK(function == old_form);
    OK(cuGetProcAddress_v2("cuMemPrefetchAsync", &new_form, 12020, 0, NULL));
    CHECK(new_form != NULL && new_form != old_form);
    OK(cuGetProcAddress_v2("cuMemPrefetchAsync", &function, 13000, 0, NULL));
    CHECK(function == new_form);
    OK(cuGetProcAddress_v2("cuMemPrefetchAsync", &function, 7000, 0, &status));
    CHECK(function == NULL && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    OK(cuGetProcAddress_v2("cuNoSuchCall", &function, 12000, 0, &status));
    CHECK(function == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    FAILS(cuGetProcAddress_v2("cuInit", &function, 13010, 0, NULL), CUDA_ERROR_INVALID_VALUE);

    fakecu_set_version(11080);
    int version = 0;
    OK(cu.driver_get_version(&version));
    CHECK(version == 11080);
    FAILS(cuGetProcAddress("cuMemPrefetchAsync", &function, 12020, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuGetProcAddress("cuMemPrefetchAsync", &function, 11080, 0));
    CHECK(function == old_form);
    OK(cuGetProcAddress_v2("cuLibraryLoadData", &function, 11080, 0, &status));
    CHECK(function == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);

    fakecu_set_version(13000);
    fakecu_set_missing("cuStreamGetId,cuMemDiscardBatchAsync");
    OK(cuGetProcAddress_v2("cuMemDiscardBatchAsync", &function, 13000, 0, &status));
    CHECK(function == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    OK(cuGetProcAddress_v2("cuStreamGetId", &function, 12000, 0, NULL));
    CHECK(function == NULL);
    OK(cuGetProcAddress_v2("cuMemDiscard", &function, 13000, 0, NULL));
    OK(cuGetProcAddress_v2("cuStreamGetCtx", &function, 9020, 0, NULL));
    CHECK(function != NULL);
}

static void test_devices(void) {
    int value = 0;
    CUdevice device = -1;
    size_t bytes = 0;
    char name[32];
    CUuuid uuids[2];
    fakecu_shutdown();
    FAILS(cu.device_get_count(&value), CUDA_ERROR_NOT_INITIALIZED);
    fakecu_set_devices(0);
    FAILS(cu.init(0), CUDA_ERROR_NO_DEVICE);
    fakecu_set_devices(2);
    fakecu_set_memory((size_t)3 << 30);
    FAILS(cu.init(1), CUDA_ERROR_INVALID_VALUE);
    OK(cu.init(0));
    OK(cu.init(0));
    OK(cu.device_get_count(&value));
    CHECK(value == 2);
    OK(cu.device_get(&device, 1));
    CHECK(device == 1);
    FAILS(cu.device_get(&device, 2), CUDA_ERROR_INVALID_DEVICE);
    OK(cu.device_get_name(name, sizeof name, 1));
    CHECK(strcmp(name, "Fake GPU 1") == 0);
    OK(cu.device_total_mem(&bytes, 1));
    CHECK(bytes == (size_t)3 << 30);
    OK(cu.device_get_uuid(&uuids[0], 0));
    OK(cu.device_get_uuid(&uuids[1], 1));
    CHECK(memcmp(&uuids[0], &uuids[1], sizeof uuids[0]) != 0);
    OK(cu.device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1));
    CHECK(value == 1);
    fakecu_set_attribute(1, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 7);
    OK(cu.device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 1));
    CHECK(value == 7);

    const char *text = NULL;
    OK(cu.get_error_name(CUDA_ERROR_NOT_READY, &text));
    CHECK(strcmp(text, "CUDA_ERROR_NOT_READY") == 0);
    FAILS(cu.get_error_string((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
    CHECK(text == NULL);
}

static void test_contexts(void) {
    CUcontext current = NULL, popped = NULL;
    CUdeviceptr ptr = 0;
    CUdevice device = -1;
    unsigned flags = 0;
    int active = -1;
    fakecu_shutdown();
    fakecu_set_devices(2);
    OK(cu.init(0));
    FAILS(cu.mem_alloc_managed(&ptr, 64, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_CONTEXT);
    FAILS(cu.ctx_synchronize(), CUDA_ERROR_INVALID_CONTEXT);
    FAILS(cu.ctx_pop_current(&popped), CUDA_ERROR_INVALID_CONTEXT);
    FAILS(cu.ctx_push_current(NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cu.primary_ctx_get_state(0, &flags, &active));
    CHECK(active == 0);
    FAILS(cu.primary_ctx_release(0), CUDA_ERROR_INVALID_CONTEXT);

    OK(cu.primary_ctx_retain(&contexts[0], 0));
    OK(cu.primary_ctx_retain(&contexts[1], 1));
    OK(cu.primary_ctx_retain(&current, 0));
    CHECK(current == contexts[0] && contexts[0] != contexts[1]);
    OK(cu.primary_ctx_get_state(0, &flags, &active));
    CHECK(active == 1 && fakecu_live("context") == 3);
    OK(cu.ctx_push_current(contexts[0]));
    OK(cu.ctx_push_current(contexts[1]));
    OK(cu.ctx_get_device(&device));
    CHECK(device == 1);
    OK(cu.ctx_pop_current(&popped));
    OK(cu.ctx_get_current(&current));
    CHECK(popped == contexts[1] && current == contexts[0]);

    managed(100);
    stream_new(CU_STREAM_DEFAULT);
    OK(cu.primary_ctx_release(0));
    CHECK(fakecu_leaked() == 0);
    OK(cu.primary_ctx_release(0)); /* the last one takes everything with it */
    CHECK(fakecu_leaked() == 2 && fakecu_live("managed") == 0 && fakecu_live("stream") == 0);
    FAILS(cu.ctx_synchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cu.ctx_push_current(contexts[0])); /* pushing does not look */
    FAILS(cu.ctx_synchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cu.ctx_pop_current(NULL));
    OK(cu.ctx_pop_current(NULL));
    OK(cu.primary_ctx_release(1));
    CHECK(fakecu_live("all") == 0);
}

/* --- work ------------------------------------------------------------ */

static void test_work_waits_to_be_waited_for(void) {
    start(1);
    CUkernel set = kernel_new("fakecu_test_fill");
    CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
    CUevent event = event_new();
    char *a = managed(4096);
    int value = 1;
    size_t n = 4096;
    memset(a, 0, n);

    void *params[] = {&a, &value, &n};
    OK(cu.launch_kernel((CUfunction)set, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    value = 77; /* parameters are taken at the launch */
    CHECK(a[0] == 0 && fakecu_pending((uintptr_t)stream) == 1);
    OK(cu.stream_synchronize(stream));
    CHECK(a[0] == 1 && fakecu_pending(FAKECU_ALL_STREAMS) == 0);

    OK(fill(set, a, 2, n, stream));
    FAILS(cu.stream_query(stream), CUDA_ERROR_NOT_READY);
    OK(cu.stream_query(stream));
    CHECK(a[0] == 2);

    OK(cu.event_query(event)); /* never recorded */
    OK(fill(set, a, 3, n, stream));
    OK(cu.event_record(event, stream));
    OK(fill(set, a, 4, n, stream));
    OK(cu.event_synchronize(event));
    CHECK(a[0] == 3 && fakecu_pending((uintptr_t)stream) == 1); /* what came after the event still waits */
    OK(cu.event_record(event, stream));
    FAILS(cu.event_query(event), CUDA_ERROR_NOT_READY);
    OK(cu.event_query(event));
    CHECK(a[0] == 4);

    fakecu_set_query_mode(0);
    OK(fill(set, a, 5, n, stream));
    FAILS(cu.stream_query(stream), CUDA_ERROR_NOT_READY);
    FAILS(cu.stream_query(stream), CUDA_ERROR_NOT_READY);
    CHECK(a[0] == 4 && fakecu_step((uintptr_t)stream) == 1 && a[0] == 5 && fakecu_step(FAKECU_ALL_STREAMS) == 0);
    fakecu_set_query_mode(2);
    OK(fill(set, a, 6, n, stream));
    OK(fill(set, a, 7, n, stream));
    FAILS(cu.stream_query(stream), CUDA_ERROR_NOT_READY);
    CHECK(a[0] == 6);

    OK(cu.ctx_synchronize());
    OK(fill(set, a, 8, n, stream));
    OK(cu.stream_destroy(stream)); /* its work still runs */
    CHECK(a[0] == 7 && fakecu_live("stream") == 0);
    OK(cu.ctx_synchronize());
    CHECK(a[0] == 8);
    OK(fill(set, a, 9, n, CU_STREAM_PER_THREAD));
    char *b = managed(64);
    OK(cu.mem_free((CUdeviceptr)b)); /* waits */
    CHECK(a[0] == 9 && fakecu_counter("launches") == 9 && fakecu_calls("cuStreamSynchronize") == 1);
    for (int i = 0; i < 3000; i++) {
        OK(fill(set, a, i % 100, 1, NULL)); /* the queue is bounded */
    }
    CHECK(fakecu_pending(0) == 1024);
}

static void *release_soon(void *released) {
    usleep(50000);
    *(bool *)released = true;
    fakecu_hold(0);
    return NULL;
}

static void test_held_work_takes_until_it_is_released(void) {
    start(1);
    CUkernel set = kernel_new("fakecu_test_fill");
    CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
    CUevent event = event_new();
    char *a = managed(4096);
    memset(a, 0, 4096);
    for (int way = 0; way < 4; way++) {
        fakecu_hold(1);
        OK(cu.stream_query(stream)); /* nothing is queued: nothing takes long */
        OK(cu.ctx_synchronize());
        OK(fill(set, a, way + 1, 4096, stream));
        OK(cu.event_record(event, stream));
        for (int i = 0; i < 3; i++) {
            FAILS(cu.stream_query(stream), CUDA_ERROR_NOT_READY);
            FAILS(cu.event_query(event), CUDA_ERROR_NOT_READY);
        }
        CHECK(a[0] == way && fakecu_pending((uintptr_t)stream) == 2);
        bool released = false;
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, release_soon, &released) == 0);
        char *b = managed(64);
        OK(way == 0   ? cu.stream_synchronize(stream)
           : way == 1 ? cu.event_synchronize(event)
           : way == 2 ? cu.ctx_synchronize()
                      : cu.mem_free((CUdeviceptr)b));
        CHECK(released && a[0] == way + 1);
        CHECK(pthread_join(thread, NULL) == 0);
    }
}

static void test_streams_and_events_order_work(void) {
    start(2);
    CUkernel set = kernel_new("fakecu_test_fill");
    CUstream blocking = stream_new(CU_STREAM_DEFAULT), other = stream_new(CU_STREAM_DEFAULT),
             free_running = stream_new(CU_STREAM_NON_BLOCKING);
    CUevent event = event_new();
    char *a = managed(4096);
    memset(a, 0, 4096);

    OK(fill(set, a, 1, 1, blocking)); /* the legacy stream waits for blocking streams, and they for it */
    OK(fill(set, a + 1, 1, 1, free_running));
    OK(fill(set, a + 2, 1, 1, NULL));
    OK(fill(set, a + 3, 1, 1, other));
    OK(cu.stream_synchronize(other));
    CHECK(a[0] == 1 && a[1] == 0 && a[2] == 1 && a[3] == 1);
    OK(cu.ctx_synchronize());
    CHECK(a[1] == 1);

    OK(fill(set, a + 10, 1, 1, blocking)); /* who synchronises with it waits for them too */
    OK(fill(set, a + 11, 1, 1, CU_STREAM_PER_THREAD));
    OK(fill(set, a + 12, 1, 1, free_running));
    OK(cu.stream_synchronize(CU_STREAM_LEGACY));
    CHECK(a[10] == 1 && a[11] == 1 && a[12] == 0 && fakecu_pending((uintptr_t)free_running) == 1);
    OK(fill(set, a + 10, 2, 1, blocking));
    OK(cu.stream_synchronize(other)); /* blocking streams do not wait for each other */
    CHECK(a[10] == 1);
    OK(cu.ctx_synchronize());

    OK(fill(set, a, 2, 1, free_running)); /* an event carries over */
    OK(cu.event_record(event, free_running));
    OK(fill(set, a + 1, 2, 1, free_running));
    OK(cu.stream_wait_event(other, event, 0));
    OK(cu.event_record(event, free_running)); /* recording again does not change what `other` waits for */
    OK(fill(set, a + 2, 2, 1, other));
    OK(cu.event_destroy(event));
    OK(cu.stream_synchronize(other));
    CHECK(a[0] == 2 && a[1] == 1 && a[2] == 2);
    OK(cu.stream_synchronize(free_running));

    CUcontext context = NULL;
    unsigned long long ids[3] = {0};
    OK(cu.stream_get_ctx(blocking, &context));
    CHECK(context == contexts[0]);
    OK(cu.stream_get_id(blocking, &ids[0]));
    OK(cu.stream_get_id(other, &ids[1]));
    OK(cu.stream_get_id(CU_STREAM_LEGACY, &ids[2]));
    CHECK(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    event = event_new();
    OK(cu.ctx_push_current(contexts[1]));
    OK(cu.stream_get_ctx(NULL, &context));
    CHECK(context == contexts[1]);
    CUstream elsewhere = stream_new(CU_STREAM_DEFAULT);
    FAILS(cu.event_record(event, elsewhere), CUDA_ERROR_INVALID_HANDLE); /* another device's event */
    OK(cu.ctx_pop_current(NULL));
    OK(cu.event_record(event, blocking));
    OK(cu.stream_wait_event(elsewhere, event, 0));
    FAILS(cu.stream_query((CUstream)&context), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cu.event_query((CUevent)&context), CUDA_ERROR_INVALID_HANDLE);
}

static void test_copies(void) {
    const size_t size = 65536;
    start(1);
    char *a = managed(size), *b = managed(size), *pageable = malloc(size), *plain = fakecu_device_alloc(size, 0);
    void *pinned = NULL;
    CHECK(pageable != NULL);
    OK(cu.mem_host_alloc(&pinned, size, 0));
    memset(a, 1, size);
    OK(cu.mem_prefetch_device((CUdeviceptr)a, size, 0, NULL));
    OK(cu.memcpy_async((CUdeviceptr)pageable, (CUdeviceptr)a, size,
                       NULL)); /* in order, done on return, no page moves */
    CHECK(pageable[size - 1] == 1 && pages_on_host(a, size) == 0);

    memset(pageable, 2, size); /* the source is free again on return */
    OK(cu.memcpy_async((CUdeviceptr)plain, (CUdeviceptr)pageable, size, NULL));
    memset(pageable, 3, size);
    OK(cu.memcpy_async((CUdeviceptr)b, (CUdeviceptr)plain, size, NULL));
    memset(pinned, 0, size);
    OK(cu.memcpy_async((CUdeviceptr)pinned, (CUdeviceptr)b, size, NULL)); /* page-locked: only queued */
    CHECK(((char *)pinned)[7] == 0);
    OK(cu.ctx_synchronize());
    CHECK(((char *)pinned)[7] == 2 && pages_on_host(b, size) == 0 && fakecu_page_location(b) == 0);
    FAILS(cu.memcpy_async((CUdeviceptr)a + 1, (CUdeviceptr)pinned, size, NULL), CUDA_ERROR_INVALID_VALUE);

    OK(cu.memset_d8_async((CUdeviceptr)b, 9, size, NULL));
    FAILS(cu.memset_d8_async((CUdeviceptr)pageable, 9, 1, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cu.ctx_synchronize());
    char peeked = 0;
    fakecu_peek(&peeked, b + 5, 1);
    CHECK(peeked == 9 && pages_on_host(b, size) == 0);

    for (size_t i = 0; i < size; i++) {
        a[i] = (char)(i % 251);
    }
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = (CUdeviceptr)a,
                          .srcPitch = 1000,
                          .srcXInBytes = 3,
                          .srcY = 2,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = pageable,
                          .dstPitch = 16,
                          .WidthInBytes = 8,
                          .Height = 4};
    OK(cu.memcpy_2d_async(&copy, NULL));
    for (size_t row = 0; row < 4; row++) {
        CHECK(memcmp(pageable + row * 16, a + (row + 2) * 1000 + 3, 8) == 0 && pageable[row * 16 + 8] == 3);
    }
    copy.dstPitch = 7;
    FAILS(cu.memcpy_2d_async(&copy, NULL), CUDA_ERROR_INVALID_VALUE);
    copy.dstPitch = 16;
    copy.Height = 65;
    FAILS(cu.memcpy_2d_async(&copy, NULL), CUDA_ERROR_INVALID_VALUE);
    fakecu_device_free(plain);
    OK(cu.mem_free_host(pinned));
    free(pageable);
}

static void test_launch_arguments(void) {
    start(1);
    CUlibrary library = NULL;
    CUkernel kernel = NULL;
    FAILS(cu.library_load_data(&library, NULL, NULL, NULL, 0, NULL, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cu.library_load_data(&library, "", NULL, NULL, 0, NULL, NULL, 0));
    FAILS(cu.library_get_kernel(&kernel, library, "no such kernel"), CUDA_ERROR_NOT_FOUND);
    OK(cu.library_get_kernel(&kernel, library, "fakecu_test_fill"));
    char *a = managed(16);
    size_t n = 16;
    int value = 0;
    void *params[] = {&a, &value, &n};
    CUfunction f = (CUfunction)kernel;
    FAILS(cu.launch_kernel(f, 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cu.launch_kernel(f, 1, 65536, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cu.launch_kernel(f, 1, 1, 1, 1025, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cu.launch_kernel(f, 1, 1, 1, 1, 1, 1, 49153, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cu.launch_kernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK(fakecu_counter("launches") == 0);
    OK(cu.launch_kernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    OK(cu.library_unload(library));
    CHECK(fakecu_live("library") == 0);
}

/* --- faults ---------------------------------------------------------- */

static void test_faults(void) {
    start(1);
    CUdeviceptr ptr = 0;
    fakecu_fail("cuMemAllocManaged", 2, CUDA_ERROR_OUT_OF_MEMORY, 0);
    OK(cu.mem_alloc_managed(&ptr, 64, CU_MEM_ATTACH_GLOBAL));
    OK(cu.mem_free(ptr));
    FAILS(cu.mem_alloc_managed(&ptr, 64, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(strcmp(fakecu_last_failed(), "cuMemAllocManaged") == 0 && fakecu_live("managed") == 0);
    OK(cu.mem_alloc_managed(&ptr, 64, CU_MEM_ATTACH_GLOBAL));
    fakecu_fail("cuStreamSynchronize", 1, CUDA_ERROR_LAUNCH_FAILED, 1);
    FAILS(cu.stream_synchronize(NULL), CUDA_ERROR_LAUNCH_FAILED);
    FAILS(cu.stream_synchronize(NULL), CUDA_ERROR_LAUNCH_FAILED);
    fakecu_reset();
    OK(cu.stream_synchronize(NULL));

    const char *text = NULL;
    fakecu_fail_nth_call(2, CUDA_ERROR_UNKNOWN); /* of any kind */
    OK(cu.get_error_name(CUDA_SUCCESS, &text));  /* not counted */
    OK(cu.ctx_synchronize());
    FAILS(cu.mem_free(ptr), CUDA_ERROR_UNKNOWN); /* what releases does so, and reports */
    CHECK(strcmp(fakecu_last_failed(), "cuMemFree") == 0 && fakecu_live("managed") == 0);
    OK(cu.ctx_synchronize());

    CUstream stream = stream_new(CU_STREAM_DEFAULT);
    CUevent event = event_new();
    ptr = (CUdeviceptr)managed(64);
    fakecu_set_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
    CUdeviceptr more = 0;
    FAILS(cu.mem_alloc_managed(&more, 64, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_ILLEGAL_ADDRESS);
    FAILS(cu.ctx_synchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    FAILS(cu.event_query(event), CUDA_ERROR_ILLEGAL_ADDRESS);
    FAILS(cu.mem_free(ptr), CUDA_ERROR_ILLEGAL_ADDRESS);
    FAILS(cu.stream_destroy(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cu.event_destroy(event));
    CHECK(fakecu_live("managed") == 0 && fakecu_live("stream") == 0 && fakecu_live("event") == 0);
    fakecu_set_sticky(0);
    OK(cu.ctx_synchronize());
    CHECK(fakecu_live("all") == 1); /* the context */
}

static void test_without_concurrent_access(void) {
    fakecu_shutdown();
    fakecu_set_concurrent(0);
    OK(cu.init(0));
    OK(cu.primary_ctx_retain(&contexts[0], 0));
    OK(cu.ctx_push_current(contexts[0]));
    CUkernel set = kernel_new("fakecu_test_fill");
    char *a = managed(4096), *b = managed(4096);
    int value = -1;
    OK(cu.device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0));
    CHECK(value == 0 && readable(b));
    OK(fill(set, a, 1, 4096, NULL));
    CHECK(!readable(a) && !readable(b) && !readable(managed(64)));
    fakecu_run_all();
    CHECK(!readable(a)); /* nobody has waited */
    OK(cu.stream_synchronize(NULL));
    CHECK(readable(a) && readable(b) && a[0] == 1);
    OK(fill(set, a, 2, 4096, NULL));
    FAILS(cu.stream_query(NULL), CUDA_ERROR_NOT_READY);
    CHECK(!readable(a));
    OK(cu.stream_query(NULL));
    CHECK(readable(a) && a[0] == 2);
    FAILS(cu.mem_prefetch_device((CUdeviceptr)a, 4096, 0, NULL), CUDA_ERROR_INVALID_DEVICE);
    FAILS(cu.mem_advise_device((CUdeviceptr)a, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, 0), CUDA_ERROR_INVALID_DEVICE);

    fakecu_shutdown();
    fakecu_set_managed(0);
    OK(cu.init(0));
    OK(cu.primary_ctx_retain(&contexts[0], 0));
    OK(cu.ctx_push_current(contexts[0]));
    CUdeviceptr ptr = 0;
    FAILS(cu.mem_alloc_managed(&ptr, 64, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_NOT_SUPPORTED);
}

static void test_fork(void) {
    start(1);
    char *a = managed(4096);
    a[0] = 1;
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        const bool dead = cu.ctx_synchronize() == CUDA_ERROR_NOT_INITIALIZED &&
                          cu.init(0) == CUDA_ERROR_NOT_INITIALIZED &&
                          cu.mem_free((CUdeviceptr)a) == CUDA_ERROR_NOT_INITIALIZED;
        _exit(dead && !readable(a) ? 0 : 1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(a[0] == 1);
}

static void *hammer(void *argument) {
    CUkernel set = argument;
    OK(cu.ctx_push_current(contexts[0]));
    CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 200; i++) {
        char *a = managed(8192);
        OK(fill(set, a, i, 8192, i % 2 ? stream : CU_STREAM_PER_THREAD));
        OK(cu.stream_synchronize(i % 2 ? stream : CU_STREAM_PER_THREAD));
        CHECK(a[8191] == (char)i);
        OK(cu.mem_free((CUdeviceptr)a));
    }
    OK(cu.stream_destroy(stream));
    OK(cu.ctx_pop_current(NULL));
    return NULL;
}

static void test_threads(void) {
    start(1);
    pthread_t threads[4];
    CUkernel set = kernel_new("fakecu_test_fill");
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, hammer, set) == 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(fakecu_live("managed") == 0 && fakecu_live("stream") == 0 && fakecu_counter("launches") == 800);
}

static void test_other_libraries(void) {
    start(2);
    char *a = managed(4096);
    memset(a, 1, 4096);
    CHECK(fakecu_context_depth() == 1);
    OK(cu.ctx_pop_current(NULL));
    CHECK(fakecu_context_depth() == 0);
    const uintptr_t stream = fakecu_stream_create(1, 0);
    CHECK(fakecu_live("stream") == 1);
    fakecu_submit_fill(a, 2, 4096, stream, 1);
    fakecu_submit_fill(a, 3, 100, 0, 0);
    CHECK(fakecu_pending(stream) == 1 && fakecu_pending(0) == 1 && a[0] == 1);
    CHECK(fakecu_step(stream) == 1 && fakecu_page_location(a) == 1 && a[0] == 2);
    fakecu_submit_fill(a, 2, 4096, stream, 1);
    fakecu_stream_destroy(stream);
    CHECK(fakecu_live("stream") == 0 && fakecu_pending(FAKECU_ALL_STREAMS) == 2);
    fakecu_run_all();
    CHECK(a[0] == 2 && fakecu_pending(FAKECU_ALL_STREAMS) == 0);
}

/* --- what is not modelled aborts, in a process of its own ------------ */

static void abort_attribute(void) {
    int value = 0;
    cu.device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 0);
}

static void abort_flags(void) {
    CUdeviceptr ptr = 0;
    cu.mem_alloc_managed(&ptr, 64, CU_MEM_ATTACH_HOST);
}

static void abort_dead_stream(void) {
    CUstream stream = stream_new(CU_STREAM_DEFAULT);
    OK(cu.stream_destroy(stream));
    cu.stream_synchronize(stream);
}

static void abort_illegal_access(void) {
    static char pageable[64];
    OK(fill(kernel_new("fakecu_test_fill"), pageable, 0, 64, NULL));
    cu.ctx_synchronize();
}

static void abort_overrun(void) {
    char *a = managed(100);
    OK(fill(kernel_new("fakecu_test_fill"), a, 0, 101, NULL));
    cu.ctx_synchronize();
}

static void abort_tail(void) {
    char *a = managed(100);
    a[100] = 0;
    cu.mem_free((CUdeviceptr)a);
}

static const struct {
    const char *name, *message;
    void (*run)(void);
} aborts[] = {
    {"attribute", "cuDeviceGetAttribute: attribute 32", abort_attribute},
    {"flags", "cuMemAllocManaged: flags 2", abort_flags},
    {"dead-stream", "cuStreamSynchronize: handle", abort_dead_stream},
    {"illegal-access", "fakecu_test_fill: illegal access", abort_illegal_access},
    {"overrun", "fakecu_test_fill: illegal access to 101 bytes", abort_overrun},
    {"tail", "past the end of 100 bytes", abort_tail},
};

static void test_unmodelled_aborts(void) {
    char program[4096] = ""; /* read, not executed as a link: under Valgrind the link is another program */
    CHECK(readlink("/proc/self/exe", program, sizeof program - 1) > 0);
    for (size_t i = 0; i < sizeof aborts / sizeof aborts[0]; i++) {
        int ends[2];
        CHECK(pipe(ends) == 0);
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            dup2(ends[1], STDERR_FILENO);
            execl(program, "test_fake_cuda", "--abort", aborts[i].name, (char *)NULL);
            _exit(1);
        }
        close(ends[1]);
        char text[4096] = "";
        size_t length = 0;
        for (ssize_t got;
             length < sizeof text - 1 && (got = read(ends[0], text + length, sizeof text - 1 - length)) > 0;) {
            length += (size_t)got;
        }
        close(ends[0]);
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        if (strstr(text, aborts[i].message) == NULL) {
            fail(__FILE__, __LINE__, text);
        }
    }
}

int main(int argc, char **argv) {
    fill_table();
    if (argc == 3 && strcmp(argv[1], "--abort") == 0) {
        for (size_t i = 0; i < sizeof aborts / sizeof aborts[0]; i++) {
            if (strcmp(aborts[i].name, argv[2]) != 0) {
                continue;
            }
            start(1);
            aborts[i].run();
        }
        return 0;
    }
    static const test_case tests[] = {
        TEST(proc_address),
        TEST(devices),
        TEST(contexts),
        TEST(work_waits_to_be_waited_for),
        TEST(held_work_takes_until_it_is_released),
        TEST(streams_and_events_order_work),
        TEST(copies),
        TEST(launch_arguments),
        TEST(faults),
        TEST(without_concurrent_access),
        TEST(fork),
        TEST(threads),
        TEST(other_libraries),
        TEST(unmodelled_aborts),
    };
    return run_tests("fake_cuda", tests, sizeof tests / sizeof tests[0]);
}
