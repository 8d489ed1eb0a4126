/* The fake CUDA driver's memory does what its README says: where pages are and what moves them, advice, discards, capacity,
 * what is known of a pointer. tests/fake_cuda/build.py --test builds and runs this. */
#include <cuda.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "fake_test.h"

/* --- pages ----------------------------------------------------------- */

static void test_migration_shows_in_pagemap(void) {
    const size_t size = (size_t)4 << 20;
    start(1);
    char *a = managed(size);
    CHECK((uintptr_t)a % ((size_t)2 << 20) == 0);
    CHECK(pages_on_host(a, size) == 0 && fakecu_page_location(a) == -2);
    memset(a, 1, size);
    CHECK(pages_on_host(a, size) == size / 4096 && fakecu_page_location(a) == -1);

    OK(cu.mem_prefetch_location((CUdeviceptr)a, size / 2, on_device(0), 0, NULL));
    CHECK(pages_on_host(a, size) == size / 4096); /* only queued */
    OK(cu.ctx_synchronize());
    CHECK(pages_on_host(a, size) == size / 8192 && pages_on_host(a, size / 2) == 0);
    CHECK(fakecu_page_location(a) == 0 && fakecu_page_location(a + size / 2) == -1);
    CHECK(fakecu_counter("to_device_bytes") == size / 2 && fakecu_resident(0) == size / 2);

    OK(cu.mem_prefetch_device((CUdeviceptr)a, size, CU_DEVICE_CPU, NULL));
    OK(cu.ctx_synchronize());
    CHECK(pages_on_host(a, size) == size / 4096 && fakecu_counter("to_host_bytes") == size / 2);
    CHECK(fakecu_resident(0) == 0);

    OK(cu.mem_prefetch_device((CUdeviceptr)a, size, 0, NULL));
    OK(cu.ctx_synchronize());
    CHECK(pages_on_host(a, size) == 0);
    CHECK(a[5000] == 1); /* the host takes the page back; the bytes are the same */
    CHECK(pages_on_host(a, size) >= 1 && pages_on_host(a, size) <= 16);
    a[size - 1] = 2;
    CHECK(pages_on_host(a + size - 4096, 4096) == 1 && fakecu_page_location(a + size - 1) == -1);
    fakecu_resident(0);
    CHECK(fakecu_counter("host_fault_bytes") >= 8192);
    OK(cu.mem_free((CUdeviceptr)a));
    CHECK(fakecu_live("managed") == 0 && fakecu_resident(0) == 0);
}

static void test_fresh_and_discarded_memory(void) {
    start(1);
    unsigned char *a = (unsigned char *)managed(1 << 20);
    CHECK(pages_on_host((char *)a, 1 << 20) == 0);
    CHECK(a[0] == 0xCD && a[(1 << 20) - 1] == 0xCD);
    memset(a, 7, 1 << 20);
    CUdeviceptr ptrs[] = {(CUdeviceptr)a};
    size_t sizes[] = {1 << 19};
    CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
    OK(cu.mem_discard_batch(ptrs, sizes, 1, 0, stream));
    CHECK(a[0] == 7);
    OK(cu.stream_synchronize(stream));
    CHECK(pages_on_host((char *)a, 1 << 19) == 0 && fakecu_page_location(a) == -1); /* out of the page table at once */
    CHECK(pages_on_host((char *)a, 1 << 20) == (1 << 19) / 4096 && fakecu_page_discarded(a) == 1);
    unsigned char byte = 0;
    fakecu_peek(&byte, a, 1);
    CHECK(byte == 0xDB && a[1 << 19] == 7);
    OK(cu.mem_prefetch_location(ptrs[0], 1 << 20, on_device(0), 0, stream));
    OK(cu.stream_synchronize(stream));
    CHECK(fakecu_counter("to_device_bytes") == 1 << 19); /* what was discarded did not have to move */
    CHECK(fakecu_page_discarded(a) == 0 && fakecu_page_location(a) == 0);
    OK(cu.mem_prefetch_location(ptrs[0], 1 << 20, on_host(), 0, stream));
    OK(cu.mem_discard_batch(ptrs, sizes, 1, 0, stream));
    OK(cu.stream_synchronize(stream));
    CHECK(a[0] == 0xDB && fakecu_page_discarded(a) == 0); /* the host's touch undoes it */
    CHECK(fakecu_page_discarded(a + (1 << 18)) == 1);
    FAILS(cu.mem_discard_batch(ptrs, sizes, 1, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cu.mem_discard_batch(ptrs, sizes, 1, 1, stream), CUDA_ERROR_INVALID_VALUE);
    FAILS(cu.mem_discard_batch(ptrs, sizes, 0, 0, stream), CUDA_ERROR_INVALID_VALUE);
}

static void discard(const char *ptr, size_t size) {
    CUdeviceptr ptrs[] = {(CUdeviceptr)ptr};
    size_t sizes[] = {size};
    OK(cu.mem_discard_batch(ptrs, sizes, 1, 0, CU_STREAM_PER_THREAD));
    OK(cu.stream_synchronize(CU_STREAM_PER_THREAD));
}

static unsigned char peek(const char *ptr) {
    unsigned char byte = 0;
    fakecu_peek(&byte, ptr, 1);
    return byte;
}

static void test_writes_to_discarded_memory(void) {
    const size_t size = 65536;
    start(2);
    CUkernel set = kernel_new("fakecu_test_fill"), add = kernel_new("fakecu_test_sum");
    char *a = managed(size), *out = managed(4096);
    const CUdeviceptr p = (CUdeviceptr)a;
    unsigned long long total = 0;

    memset(a, 1, size); /* plain: the write faults, and the driver sees it */
    OK(cu.mem_prefetch_device(p, size, 0, NULL));
    OK(cu.ctx_synchronize());
    discard(a, size);
    OK(fill(set, a, 2, size, NULL));
    OK(cu.ctx_synchronize());
    CHECK(fakecu_page_discarded(a) == 0 && fakecu_page_location(a) == 0 && a[0] == 2 && a[size - 1] == 2);

    OK(cu.mem_advise_device(p, size, CU_MEM_ADVISE_SET_ACCESSED_BY, 0)); /* the mapping stays: no fault */
    OK(cu.mem_prefetch_device(p, size, 0, NULL));
    OK(cu.ctx_synchronize());
    discard(a, size);
    OK(fill(set, a, 3, size, NULL));
    OK(sum(add, a, out, size, NULL));
    OK(cu.ctx_synchronize());
    fakecu_check();
    fakecu_peek(&total, out, sizeof total);
    CHECK(total == 3 * size && fakecu_page_discarded(a) == 1 && fakecu_page_location(a) == 0); /* the device has it */
    CHECK((unsigned char)a[0] == 0xDB && (unsigned char)a[size - 1] == 0xDB);                  /* the host does not */
    CHECK(fakecu_page_location(a) == -1 && fakecu_page_discarded(a) == 0 && peek(a) == 0xDB);
    fakecu_check();

    memset(a, 4, size); /* nor by a prefetch, though the write was a copy's */
    OK(cu.mem_prefetch_device(p, size, 0, NULL));
    OK(cu.ctx_synchronize());
    discard(a, size);
    OK(cu.memcpy_async(p, (CUdeviceptr)out, 4096, NULL));
    OK(cu.ctx_synchronize());
    CHECK(peek(a + 1) != 0xDB);
    OK(cu.mem_prefetch_device(p, size, CU_DEVICE_CPU, NULL));
    OK(cu.ctx_synchronize());
    CHECK((unsigned char)a[1] == 0xDB && fakecu_page_discarded(a) == 0);

    memset(a, 5, size); /* a prefetch in between undoes the discard */
    OK(cu.mem_prefetch_device(p, size, 0, NULL));
    OK(cu.ctx_synchronize());
    discard(a, size);
    OK(cu.mem_prefetch_device(p, size, 0, NULL));
    OK(fill(set, a, 6, size, NULL));
    OK(cu.ctx_synchronize());
    CHECK(fakecu_page_discarded(a) == 0 && a[0] == 6 && a[size - 1] == 6);

    OK(cu.mem_prefetch_device(p, size, 0, NULL)); /* a device that nothing was advised for faults, and finds nothing */
    OK(cu.ctx_synchronize());
    discard(a, size);
    OK(fill(set, a, 7, size, NULL));
    OK(cu.ctx_synchronize());
    OK(cu.ctx_push_current(contexts[1]));
    OK(fill(set, a, 8, 10, NULL));
    OK(cu.ctx_synchronize());
    OK(cu.ctx_pop_current(NULL));
    CHECK(fakecu_page_location(a) == 1 && fakecu_page_discarded(a) == 0 && fakecu_page_discarded(a + 4096) == 1);
    CHECK(peek(a + 9) == 8 && peek(a + 10) == 0xDB && peek(a + 4096) == 7 && a[9] == 8);
    OK(cu.mem_free(p)); /* with a page that only the device has */
    fakecu_check();
}

static void test_discards_of_parts_of_pages(void) {
    start(1);
    char *a = managed(3 * 4096 + 100);
    memset(a, 1, 3 * 4096 + 100);
    discard(a + 100, 3 * 4096); /* to the end */
    CHECK(fakecu_page_discarded(a) == 0 && fakecu_page_discarded(a + 4096) == 1);
    CHECK(fakecu_page_discarded(a + 3 * 4096) == 1 && pages_on_host(a, 4 * 4096) == 1);
    CHECK(a[99] == 1 && (unsigned char)a[100] == 0xDB);
    OK(cu.mem_free((CUdeviceptr)a));
}

static void test_prefetch_arguments(void) {
    start(2);
    char *a = managed(65536), *b = managed(65536);
    const CUdeviceptr p = (CUdeviceptr)a;
    CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
    FAILS(cu.mem_prefetch_device(p, 0, 0, stream), CUDA_ERROR_INVALID_VALUE);
    FAILS(cu.mem_prefetch_device(p, 65537, 0, stream), CUDA_ERROR_INVALID_VALUE);
    FAILS(cu.mem_prefetch_device((CUdeviceptr)&checks, 4, 0, stream), CUDA_ERROR_INVALID_VALUE);
    FAILS(cu.mem_prefetch_device(p, 64, 2, stream), CUDA_ERROR_INVALID_DEVICE);
    FAILS(cu.mem_prefetch_location(p, 64, on_device(0), 1, stream), CUDA_ERROR_INVALID_VALUE);
    FAILS(cu.mem_prefetch_location(p, 64, location(CU_MEM_LOCATION_TYPE_HOST_NUMA, 9), 0, stream),
          CUDA_ERROR_INVALID_VALUE);
    OK(cu.mem_prefetch_location(p, 64, location(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0), 0, stream));

    CUdeviceptr ptrs[] = {(CUdeviceptr)a, (CUdeviceptr)b, (CUdeviceptr)a + 32768};
    size_t sizes[] = {4096, 65536, 4096};
    CUmemLocation places[] = {on_device(1), on_device(0)};
    size_t starts[] = {0, 1};
    OK(cu.mem_prefetch_batch(ptrs, sizes, 3, places, starts, 2, 0, stream));
    OK(cu.stream_synchronize(stream));
    CHECK(fakecu_page_location(a) == 1 && fakecu_page_location(b) == 0 && fakecu_page_location(a + 32768) == 0);
    FAILS(cu.mem_prefetch_batch(ptrs, sizes, 3, places, starts, 2, 0, CU_STREAM_LEGACY), CUDA_ERROR_INVALID_VALUE);
    FAILS(cu.mem_prefetch_batch(ptrs, sizes, 3, places, starts, 2, 1, stream), CUDA_ERROR_INVALID_VALUE);
    starts[0] = 1;
    FAILS(cu.mem_prefetch_batch(ptrs, sizes, 3, places, starts, 2, 0, stream), CUDA_ERROR_INVALID_VALUE);
    starts[0] = 0;
    starts[1] = 3;
    FAILS(cu.mem_prefetch_batch(ptrs, sizes, 3, places, starts, 2, 0, stream), CUDA_ERROR_INVALID_VALUE);
    CHECK(fakecu_pending(FAKECU_ALL_STREAMS) == 0);

    FAILS(cu.mem_advise_location(p, 64, CU_MEM_ADVISE_SET_ACCESSED_BY, location(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0)),
          CUDA_ERROR_INVALID_VALUE);
    FAILS(cu.mem_advise_device(p, 64, CU_MEM_ADVISE_SET_ACCESSED_BY, 5), CUDA_ERROR_INVALID_DEVICE);
    FAILS(cu.mem_advise_device(p, 64, (CUmem_advise)99, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cu.mem_advise_device(p, 64, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU));
    CHECK(fakecu_page_preferred(a) == -1 && fakecu_page_preferred(a + 4096) == -2);
    OK(cu.mem_advise_device(p, 64, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, 0));
    CHECK(fakecu_page_preferred(a) == -2);
}

static void test_kernels_move_pages_by_the_rules(void) {
    const size_t size = 65536;
    start(2);
    CUkernel set = kernel_new("fakecu_test_fill"), add = kernel_new("fakecu_test_sum");
    char *a = managed(size), *out = managed(4096);
    const CUdeviceptr p = (CUdeviceptr)a;

    memset(a, 1, size); /* plain: the GPU's touch migrates */
    OK(fill(set, a, 3, size / 2, NULL));
    OK(cu.ctx_synchronize());
    CHECK(pages_on_host(a, size) == size / 8192 && fakecu_counter("to_device_bytes") == size / 2 && a[0] == 3 &&
          a[size - 1] == 1);

    fakecu_reset();
    memset(a, 1, size); /* accessed-by: over the link, pages stay */
    OK(cu.mem_advise_location(p, size, CU_MEM_ADVISE_SET_ACCESSED_BY, on_device(0)));
    CHECK(fakecu_page_accessed_by(a) == 1);
    OK(fill(set, a, 4, size, NULL));
    OK(cu.ctx_synchronize());
    CHECK(pages_on_host(a, size) == size / 4096 && fakecu_counter("link_bytes") == size && a[9] == 4);
    CHECK(fakecu_counter("to_device_bytes") == 0);
    OK(cu.ctx_push_current(contexts[1])); /* it was said for device 0 only */
    OK(fill(set, a, 5, 4096, NULL));
    OK(cu.ctx_synchronize());
    OK(cu.ctx_pop_current(NULL));
    CHECK(fakecu_page_location(a) == 1 && fakecu_page_location(a + 4096) == -1);
    OK(fill(set, a, 6, 4096, NULL)); /* device 0 has the mapping: it reaches into device 1 */
    OK(cu.ctx_synchronize());
    CHECK(fakecu_page_location(a) == 1 && fakecu_counter("peer_link_bytes") == 4096);
    OK(cu.mem_advise_location(p, size, CU_MEM_ADVISE_UNSET_ACCESSED_BY, on_device(0)));
    OK(fill(set, a, 6, 4096, NULL));
    OK(cu.ctx_synchronize());
    CHECK(fakecu_page_location(a) == 0 && fakecu_counter("peer_bytes") == 4096);

    memset(a, 1, size); /* home on the host */
    OK(cu.mem_advise_location(p, size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, on_host()));
    OK(fill(set, a, 7, size, NULL));
    OK(cu.ctx_synchronize());
    CHECK(pages_on_host(a, size) == size / 4096);
    OK(cu.mem_advise_location(p, size, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, on_host()));

    OK(cu.mem_advise_location(p, size, CU_MEM_ADVISE_SET_READ_MOSTLY, on_host())); /* replicas */
    memset(a, 1, size);
    OK(sum(add, a, out, size, NULL));
    OK(cu.ctx_synchronize());
    CHECK(pages_on_host(a, size) == size / 4096 && fakecu_resident(0) == size + 4096);
    unsigned long long total = 0;
    memcpy(&total, out, sizeof total);
    CHECK(total == size);
    OK(fill(set, a, 2, size, NULL)); /* a write leaves one copy */
    OK(cu.ctx_synchronize());
    CHECK(pages_on_host(a, size) == 0 && fakecu_resident(0) == size);
}

static void test_pages_that_are_at_home_on_the_host(void) {
    const size_t size = 65536;
    start(1);
    CUkernel set = kernel_new("fakecu_test_fill");
    for (int advised = 0; advised < 2; advised++) {
        char *a = managed(size);
        OK(cu.mem_advise_location((CUdeviceptr)a, size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, on_host()));
        if (advised) {
            OK(cu.mem_advise_location((CUdeviceptr)a, size, CU_MEM_ADVISE_SET_ACCESSED_BY, on_device(0)));
        }
        OK(fill(set, a, 1, size / 2, NULL)); /* made there, and in the host's page table */
        OK(cu.ctx_synchronize());
        CHECK(pages_on_host(a, size) == size / 8192 && fakecu_page_location(a) == -1 && fakecu_resident(0) == 0);
        CHECK(a[0] == 1 && a[size / 2 - 1] == 1 && fakecu_page_location(a + size / 2) == -2);
        OK(cu.mem_free((CUdeviceptr)a));
    }
}

static void test_copies_move_their_destination(void) {
    const size_t size = 65536;
    start(1);
    char *a = managed(size), *b = managed(size), *pageable = malloc(size);
    CHECK(pageable != NULL);
    memset(pageable, 2, size);
    memset(a, 1, size);
    OK(cu.memcpy_async((CUdeviceptr)a, (CUdeviceptr)pageable, size / 2, NULL));
    OK(cu.ctx_synchronize());
    CHECK(pages_on_host(a, size) == size / 8192 && fakecu_page_location(a) == 0 &&
          fakecu_counter("to_device_bytes") == size / 2);
    CHECK(a[0] == 2 && a[size - 1] == 1);

    memset(a, 1, size); /* what is read stays */
    OK(cu.memcpy_async((CUdeviceptr)b, (CUdeviceptr)a, size, NULL));
    OK(cu.ctx_synchronize());
    CHECK(pages_on_host(a, size) == size / 4096 && pages_on_host(b, size) == 0 && b[size - 1] == 1);

    fakecu_reset(); /* so does what the device reaches by advice; rows that share a page count once */
    OK(cu.mem_advise_device((CUdeviceptr)a, size, CU_MEM_ADVISE_SET_ACCESSED_BY, 0));
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                          .srcHost = pageable,
                          .srcPitch = 16,
                          .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                          .dstDevice = (CUdeviceptr)a,
                          .dstPitch = 64,
                          .WidthInBytes = 16,
                          .Height = 128};
    OK(cu.memcpy_2d_async(&copy, NULL));
    OK(cu.ctx_synchronize());
    CHECK(pages_on_host(a, size) == size / 4096 && fakecu_counter("link_bytes") == 8192 && a[64] == 2 && a[16] == 1);
    free(pageable);
}

static void test_eviction(void) {
    const size_t size = (size_t)8 << 20;
    fakecu_shutdown();
    fakecu_set_memory((size_t)16 << 20);
    OK(cu.init(0));
    OK(cu.primary_ctx_retain(&contexts[0], 0));
    OK(cu.ctx_push_current(contexts[0]));
    size_t free_bytes = 0, total = 0;
    char *a = managed(size), *b = managed(size), *c = managed(2 * size);
    memset(a, 1, size);
    OK(cu.mem_prefetch_device((CUdeviceptr)a, size, 0, NULL));
    OK(cu.mem_prefetch_device((CUdeviceptr)b, size, 0, NULL));
    OK(cu.ctx_synchronize());
    OK(cu.mem_get_info(&free_bytes, &total));
    CHECK(free_bytes == 0 && total == (size_t)16 << 20 && fakecu_counter("evicted_bytes") == 0);
    OK(cu.mem_prefetch_device((CUdeviceptr)c, size / 2, 0, NULL));
    OK(cu.ctx_synchronize());
    CHECK(fakecu_counter("evicted_bytes") == size / 2 && fakecu_page_location(a) == -1 &&
          fakecu_page_location(a + size - 1) == 0);
    CHECK(pages_on_host(a, size) == 0 && a[0] == 1);
    OK(cu.mem_prefetch_device((CUdeviceptr)c, 2 * size, 0, NULL));
    OK(cu.ctx_synchronize());
    CHECK(fakecu_page_location(a + size - 1) == -1 && fakecu_page_location(b) == -1 &&
          fakecu_resident(0) == (size_t)16 << 20);
    CHECK(a[size - 1] == 1);

    fakecu_set_managed_limit(5 * size);
    CUdeviceptr ptr = 42;
    FAILS(cu.mem_alloc_managed(&ptr, size + 1, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
    FAILS(cu.mem_alloc_managed(&ptr, SIZE_MAX - 5, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
    FAILS(cu.mem_alloc_managed(&ptr, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
    CHECK(ptr == 42);
    managed(size);
}

static void test_free_memory(void) {
    const size_t size = (size_t)4 << 20;
    fakecu_shutdown();
    fakecu_set_memory(2 * size);
    OK(cu.init(0));
    OK(cu.primary_ctx_retain(&contexts[0], 0));
    OK(cu.ctx_push_current(contexts[0]));
    size_t free_bytes = 0, total = 0;
    char *a = managed(size), *b = managed(2 * size);
    OK(cu.mem_prefetch_device((CUdeviceptr)a, size, 0, NULL));
    OK(cu.ctx_synchronize());
    OK(cu.mem_get_info(&free_bytes, &total));
    CHECK(free_bytes == size);
    OK(cu.mem_prefetch_device((CUdeviceptr)a, size, CU_DEVICE_CPU, NULL)); /* leaves its room set aside */
    OK(cu.ctx_synchronize());
    OK(cu.mem_get_info(&free_bytes, &total));
    CHECK(free_bytes == size && fakecu_resident(0) == 0);
    OK(cu.mem_prefetch_device((CUdeviceptr)b, 2 * size, 0, NULL)); /* until others need it */
    OK(cu.ctx_synchronize());
    CHECK(fakecu_resident(0) == 2 * size && fakecu_counter("evicted_bytes") == 0);
    fakecu_check();
    OK(cu.mem_free((CUdeviceptr)b));
    OK(cu.mem_get_info(&free_bytes, &total));
    CHECK(free_bytes == total);
}

static void test_pointers(void) {
    start(2);
    OK(cu.ctx_push_current(contexts[1]));
    char *a = managed(1000);
    OK(cu.ctx_pop_current(NULL));
    void *pinned = NULL;
    OK(cu.mem_host_alloc(&pinned, 100, CU_MEMHOSTALLOC_PORTABLE));
    char *plain = fakecu_device_alloc(5000, 1);
    CHECK(plain != NULL && fakecu_live("device") == 1 && !readable(plain));

    int ordinal = 0;
    unsigned is_managed = 9, type = 9;
    char *base = NULL;
    size_t size = 0;
    CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                    CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                    CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void *data[] = {&ordinal, &is_managed, &type, &base, &size};
    OK(cu.pointer_get_attributes(5, wanted, data, (CUdeviceptr)a + 999));
    CHECK(ordinal == 1 && is_managed == 1 && type == CU_MEMORYTYPE_DEVICE && base == a && size == 1000);
    OK(cu.pointer_get_attributes(5, wanted, data, (CUdeviceptr)plain + 1));
    CHECK(ordinal == 1 && is_managed == 0 && type == CU_MEMORYTYPE_DEVICE && base == plain && size == 5000);
    OK(cu.pointer_get_attributes(5, wanted, data, (CUdeviceptr)pinned));
    CHECK(is_managed == 0 && type == CU_MEMORYTYPE_HOST && base == pinned && size == 100);
    OK(cu.pointer_get_attributes(5, wanted, data, (CUdeviceptr)&size)); /* unknown: the range is not written */
    CHECK(ordinal == -2 && is_managed == 0 && type == 0 && base == pinned && size == 100);
    void *where = NULL;
    unsigned mapped = 9;
    void *more_data[] = {&where, &mapped};
    CUpointer_attribute more[] = {CU_POINTER_ATTRIBUTE_HOST_POINTER, CU_POINTER_ATTRIBUTE_MAPPED};
    OK(cu.pointer_get_attributes(2, more, more_data, (CUdeviceptr)&size));
    CHECK(where == &size && mapped == 0);
    OK(cu.pointer_get_attributes(2, more, more_data, (CUdeviceptr)plain));
    CHECK(where == NULL && mapped == 1);
    FAILS(cu.mem_free((CUdeviceptr)a + 8), CUDA_ERROR_INVALID_VALUE);
    FAILS(cu.mem_free((CUdeviceptr)pinned), CUDA_ERROR_INVALID_VALUE);
    FAILS(cu.mem_free_host(a), CUDA_ERROR_INVALID_VALUE);
    OK(cu.mem_free_host(pinned));
    OK(cu.mem_free((CUdeviceptr)a));
    fakecu_device_free(plain);
    CHECK(fakecu_live_bytes("all") == 0);
}

static void test_nothing_allocated(void) {
    start(1);
    void *pinned = &pinned;
    OK(cu.mem_host_alloc(&pinned, 0, CU_MEMHOSTALLOC_PORTABLE));
    CHECK(pinned == NULL && fakecu_live("host") == 0);
    FAILS(cu.mem_host_alloc(NULL, 0, CU_MEMHOSTALLOC_PORTABLE), CUDA_ERROR_INVALID_VALUE);
    OK(cu.mem_free(0));
}

/* Random work against a plain copy of the bytes: whatever moves, nothing is lost. */
static uint64_t random_state = 88172645463325252u;

static size_t random_below(size_t limit) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (size_t)(random_state % limit);
}

#define ARENA ((size_t)3 << 20)

static void random_advice(char *ptr, size_t size) {
    static const CUmem_advise advice[] = {
        CU_MEM_ADVISE_SET_READ_MOSTLY,          CU_MEM_ADVISE_UNSET_READ_MOSTLY, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
        CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, CU_MEM_ADVISE_SET_ACCESSED_BY,   CU_MEM_ADVISE_UNSET_ACCESSED_BY,
    };
    const CUmemLocation where = random_below(3) == 0 ? on_host() : on_device((int)random_below(2));
    OK(cu.mem_advise_location((CUdeviceptr)ptr, size, advice[random_below(6)], where));
}

static void random_step(char *arena, unsigned char *model, const CUkernel *kernels, const CUstream *streams,
                        unsigned long long *out) {
    const size_t offset = random_below(ARENA - 1), size = 1 + random_below(ARENA - offset);
    const int device = (int)random_below(2), value = (int)random_below(256);
    char *ptr = arena + offset;
    CUstream stream = streams[device];
    OK(cu.ctx_push_current(contexts[device]));
    switch (random_below(7)) {
    case 0: /* the host writes: it has waited */
        fakecu_run_all();
        memset(ptr, value, size);
        memset(model + offset, value, size);
        break;
    case 1:
        OK(fill(kernels[0], ptr, value, size, stream));
        memset(model + offset, value, size);
        break;
    case 2:
        OK(cu.memset_d8_async((CUdeviceptr)ptr, (unsigned char)value, size, stream));
        memset(model + offset, value, size);
        break;
    case 3: OK(cu.mem_prefetch_location((CUdeviceptr)ptr, size, on_device((int)random_below(2)), 0, stream)); break;
    case 4: OK(cu.mem_prefetch_location((CUdeviceptr)ptr, size, on_host(), 0, stream)); break;
    case 5: random_advice(ptr, size); break;
    default: { /* a kernel reads */
        unsigned long long sum_of_model = 0;
        OK(sum(kernels[1], ptr, out, size, stream));
        OK(cu.stream_synchronize(stream));
        for (size_t i = 0; i < size; i++) {
            sum_of_model += model[offset + i];
        }
        unsigned long long got = 0;
        fakecu_peek(&got, out, sizeof got);
        CHECK(got == sum_of_model);
        break;
    }
    }
    /* Two streams without an order between them would race. */
    CUevent event = event_new();
    OK(cu.event_record(event, stream));
    OK(cu.stream_wait_event(streams[1 - device], event, 0));
    OK(cu.event_destroy(event));
    OK(cu.ctx_pop_current(NULL));
    fakecu_check();
}

static void test_random_work(void) {
    fakecu_shutdown();
    fakecu_set_devices(2);
    fakecu_set_memory((size_t)5 << 19); /* less than the arena: devices evict */
    OK(cu.init(0));
    CUstream streams[2];
    for (int i = 0; i < 2; i++) {
        OK(cu.primary_ctx_retain(&contexts[i], i));
        OK(cu.ctx_push_current(contexts[i]));
        streams[i] = stream_new(CU_STREAM_NON_BLOCKING);
    }
    OK(cu.ctx_pop_current(NULL));
    const CUkernel kernels[] = {kernel_new("fakecu_test_fill"), kernel_new("fakecu_test_sum")};
    char *arena = managed(ARENA);
    unsigned char *model = malloc(ARENA);
    void *out = NULL;
    CHECK(model != NULL);
    OK(cu.mem_host_alloc(&out, sizeof(unsigned long long), CU_MEMHOSTALLOC_PORTABLE));
    memset(arena, 0, ARENA);
    memset(model, 0, ARENA);
    for (int i = 0; i < 400; i++) {
        random_step(arena, model, kernels, streams, out);
    }
    fakecu_run_all();
    CHECK(fakecu_counter("evicted_bytes") > 0 && memcmp(arena, model, ARENA) == 0);
    free(model);
}

int main(void) {
    fill_table();
    static const test_case tests[] = {
        TEST(migration_shows_in_pagemap),
        TEST(fresh_and_discarded_memory),
        TEST(writes_to_discarded_memory),
        TEST(discards_of_parts_of_pages),
        TEST(prefetch_arguments),
        TEST(kernels_move_pages_by_the_rules),
        TEST(pages_that_are_at_home_on_the_host),
        TEST(copies_move_their_destination),
        TEST(eviction),
        TEST(free_memory),
        TEST(pointers),
        TEST(nothing_allocated),
        TEST(random_work),
    };
    return run_tests("fake_cuda_memory", tests, sizeof tests / sizeof tests[0]);
}
