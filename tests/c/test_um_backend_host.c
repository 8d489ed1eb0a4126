/* The host backend: memory, its alignment and contents, and the hints. */
#define _GNU_SOURCE 1 /* mincore */
#include "backend/um_backend.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "um_test.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static um_backend *backend;
static const um_location nowhere = {UM_LOCATION_NONE, 0};
static const um_location host = {UM_LOCATION_HOST, 0};

static bool all_bytes(const unsigned char *bytes, size_t size, unsigned char value) {
    for (size_t i = 0; i < size; ++i) {
        if (bytes[i] != value) {
            return false;
        }
    }
    return true;
}

/* Whole pages of the range that are in memory. */
static size_t resident_pages(void *ptr, size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t count = size / page;
    unsigned char *flags = malloc(count);
    size_t resident = 0;
    if (flags != NULL && mincore(ptr, count * page, flags) == 0) {
        for (size_t i = 0; i < count; ++i) {
            resident += flags[i] & 1U;
        }
    }
    free(flags);
    return resident;
}

static void opens_as_a_host(void) {
    UM_CHECK(strcmp(backend->ops->name, "host") == 0);
    UM_CHECK(backend->device_count == 0);
    UM_CHECK(backend->driver_version == 0);
    UM_CHECK(backend->concurrent);
    UM_CHECK(backend->driver_path[0] == '\0');
    UM_CHECK(backend->ops->launch == NULL);
    UM_CHECK(backend->ops->synchronize == NULL);
    UM_CHECK(backend->ops->device_info == NULL);
}

static void blocks_are_aligned_and_zero(void) {
    static const size_t sizes[] = {1,           511,          512,         513,         4 * KIB,          64 * KIB - 1,
                                   64 * KIB,    64 * KIB + 1, 2 * MIB - 1, 2 * MIB,     2 * MIB + 1,      5 * MIB,
                                   5 * MIB + 7, 64 * MIB,     100 * KIB,   1 * MIB + 3, 2 * MIB + 4 * KIB};
    um_error err;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
        for (int again = 0; again < 3; ++again) { /* the second may get the memory of the first */
            void *ptr = NULL;
            UM_REQUIRE(backend->ops->mem_alloc(backend, sizes[i], 0, nowhere, &ptr, &err) == UM_OK);
            UM_CHECK((uintptr_t)ptr % 512 == 0);
            UM_CHECK(sizes[i] < 64 * KIB || (uintptr_t)ptr % (size_t)sysconf(_SC_PAGESIZE) == 0);
            UM_CHECK(sizes[i] < 2 * MIB || (uintptr_t)ptr % (2 * MIB) == 0);
            UM_CHECK(all_bytes(ptr, sizes[i], 0));
            memset(ptr, 0xa5, sizes[i]);
            UM_CHECK(backend->ops->mem_free(backend, ptr, sizes[i], 0, &err) == UM_OK);
        }
    }
}

static void home_and_device_are_hints(void) {
    static const um_location homes[] = {{UM_LOCATION_HOST, 0}, {UM_LOCATION_DEVICE, 7}, {UM_LOCATION_NUMA, 99}};
    um_error err;
    for (size_t i = 0; i < sizeof(homes) / sizeof(homes[0]); ++i) {
        void *ptr = NULL;
        UM_REQUIRE(backend->ops->mem_alloc(backend, 100 * KIB, 5, homes[i], &ptr, &err) == UM_OK);
        UM_CHECK(backend->ops->mem_free(backend, ptr, 100 * KIB, 5, &err) == UM_OK);
    }
}

static void too_much_is_out_of_memory(void) {
    static const size_t sizes[] = {SIZE_MAX,           SIZE_MAX - 1,       SIZE_MAX - 511, SIZE_MAX - 4095,
                                   SIZE_MAX - 2 * MIB, SIZE_MAX - 4 * MIB, SIZE_MAX / 2,   (size_t)1 << 55};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
        um_error err;
        void *ptr = &err;
        UM_CHECK(backend->ops->mem_alloc(backend, sizes[i], 0, nowhere, &ptr, &err) == UM_ERR_OUT_OF_MEMORY);
        UM_CHECK(ptr == &err);
        UM_CHECK(err.status == UM_ERR_OUT_OF_MEMORY);
        UM_CHECK(err.requested == sizes[i]);
        UM_CHECK(err.device == -1);
        UM_CHECK(backend->ops->mem_alloc(backend, sizes[i], 0, nowhere, &ptr, NULL) == UM_ERR_OUT_OF_MEMORY);
    }
}

static void freeing_gives_the_mapping_back(void) {
    um_error err;
    void *ptr = NULL;
    UM_REQUIRE(backend->ops->mem_alloc(backend, 6 * MIB, 0, nowhere, &ptr, &err) == UM_OK);
    memset(ptr, 1, 6 * MIB);
    UM_CHECK(backend->ops->mem_free(backend, ptr, 6 * MIB, 0, &err) == UM_OK);
    unsigned char flag;
    UM_CHECK(mincore(ptr, 1, &flag) != 0); /* ENOMEM: not mapped */
}

static void a_large_block_costs_nothing_until_touched(void) {
    um_error err;
    void *ptr = NULL;
    UM_REQUIRE(backend->ops->mem_alloc(backend, 64 * MIB, 0, nowhere, &ptr, &err) == UM_OK);
    UM_CHECK(resident_pages(ptr, 64 * MIB) == 0);
    UM_CHECK(backend->ops->mem_free(backend, ptr, 64 * MIB, 0, &err) == UM_OK);
}

static void prefetch_to_the_host_populates(void) {
    um_error err;
    void *ptr = NULL;
    size_t size = 1 * MIB;
    size_t pages = size / (size_t)sysconf(_SC_PAGESIZE);
    UM_REQUIRE(backend->ops->mem_alloc(backend, size, 0, nowhere, &ptr, &err) == UM_OK);
    char *bytes = ptr;
    bytes[100] = 'x';
    um_range device_range = {ptr, size};
    um_location device = {UM_LOCATION_DEVICE, 3};
    UM_CHECK(backend->ops->prefetch(backend, &device_range, 1, device, 3, UM_STREAM_LEGACY, &err) == UM_OK);
    UM_CHECK(resident_pages(ptr, size) < pages);
    um_range ranges[] = {{bytes + 10, size / 2}, {bytes + size / 2, size / 2 - 1}};
    UM_CHECK(backend->ops->prefetch(backend, ranges, 2, host, 0, 0, &err) == UM_OK);
    UM_CHECK(backend->ops->prefetch(backend, ranges, 0, host, 0, 0, &err) == UM_OK);
    UM_CHECK(bytes[100] == 'x' && bytes[size - 1] == 0);
    size_t resident = resident_pages(ptr, size);
    if (resident != pages) { /* a kernel before Linux 5.14 only takes the hint */
        printf("prefetch: %zu of %zu pages populated\n", resident, pages);
    }
    UM_CHECK(backend->ops->mem_free(backend, ptr, size, 0, &err) == UM_OK);
}

static void prefetch_of_a_small_block_keeps_its_neighbours(void) {
    um_error err;
    void *first = NULL;
    void *second = NULL;
    UM_REQUIRE(backend->ops->mem_alloc(backend, 700, 0, nowhere, &first, &err) == UM_OK);
    UM_REQUIRE(backend->ops->mem_alloc(backend, 700, 0, nowhere, &second, &err) == UM_OK);
    memset(first, 1, 700);
    memset(second, 2, 700);
    um_range range = {first, 700};
    UM_CHECK(backend->ops->prefetch(backend, &range, 1, host, 0, 0, &err) == UM_OK);
    UM_CHECK(backend->ops->discard(backend, range, 0, 0, &err) == UM_OK); /* no whole page inside: nothing happens */
    UM_CHECK(all_bytes(second, 700, 2));
    UM_CHECK(all_bytes(first, 700, 1));
    UM_CHECK(backend->ops->mem_free(backend, first, 700, 0, &err) == UM_OK);
    UM_CHECK(backend->ops->mem_free(backend, second, 700, 0, &err) == UM_OK);
}

static void discard_zeroes_exactly_its_pages(void) {
    um_error err;
    void *ptr = NULL;
    UM_REQUIRE(backend->ops->mem_alloc(backend, 4 * MIB, 0, nowhere, &ptr, &err) == UM_OK);
    unsigned char *bytes = ptr;
    memset(bytes, 7, 4 * MIB);
    um_range range = {bytes + 64 * KIB, 1 * MIB};
    UM_CHECK(backend->ops->discard(backend, range, 0, UM_STREAM_LEGACY, &err) == UM_OK);
    UM_CHECK(all_bytes(bytes, 64 * KIB, 7));
    UM_CHECK(all_bytes(bytes + 64 * KIB, 1 * MIB, 0));
    UM_CHECK(all_bytes(bytes + 64 * KIB + 1 * MIB, 3 * MIB - 64 * KIB, 7));
    UM_CHECK(backend->ops->mem_free(backend, ptr, 4 * MIB, 0, &err) == UM_OK);
}

static void discard_of_locked_pages_zeroes_too(void) {
    um_error err;
    void *ptr = NULL;
    UM_REQUIRE(backend->ops->mem_alloc(backend, 128 * KIB, 0, nowhere, &ptr, &err) == UM_OK);
    memset(ptr, 7, 128 * KIB);
    if (mlock(ptr, 64 * KIB) == 0) {
        um_range range = {ptr, 128 * KIB};
        UM_CHECK(backend->ops->discard(backend, range, 0, 0, &err) == UM_OK);
        UM_CHECK(all_bytes(ptr, 128 * KIB, 0));
    }
    UM_CHECK(backend->ops->mem_free(backend, ptr, 128 * KIB, 0, &err) == UM_OK);
}

static void advice_has_no_effect(void) {
    um_error err;
    void *ptr = NULL;
    UM_REQUIRE(backend->ops->mem_alloc(backend, 64 * KIB, 0, nowhere, &ptr, &err) == UM_OK);
    um_range range = {ptr, 64 * KIB};
    for (int advice = UM_ADVICE_READ_MOSTLY; advice <= UM_ADVICE_UNSET_ACCESSED_BY; ++advice) {
        UM_CHECK(backend->ops->advise(backend, range, (um_advice)advice, host, &err) == UM_OK);
    }
    UM_CHECK(backend->ops->mem_free(backend, ptr, 64 * KIB, 0, &err) == UM_OK);
}

static void memory_is_counted(void) {
    um_error err;
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    UM_REQUIRE(backend->ops->mem_info(backend, 0, &free_bytes, &total_bytes, &err) == UM_OK);
    UM_CHECK(free_bytes > 0);
    UM_CHECK(free_bytes <= total_bytes);
    UM_CHECK(total_bytes > 16 * MIB);
}

static void *hammer(void *argument) {
    size_t seed = (size_t)(uintptr_t)argument;
    size_t failures = 0;
    for (size_t i = 0; i < 200; ++i) {
        seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
        size_t size = 1 + (seed >> 33) % (3 * MIB);
        void *ptr = NULL;
        if (backend->ops->mem_alloc(backend, size, 0, nowhere, &ptr, NULL) != UM_OK) {
            ++failures;
            continue;
        }
        memset(ptr, 1, size < 4 * KIB ? size : 4 * KIB);
        failures += backend->ops->mem_free(backend, ptr, size, 0, NULL) != UM_OK;
    }
    return (void *)(uintptr_t)failures;
}

static void threads_do_not_disturb_each_other(void) {
    pthread_t threads[4];
    for (size_t i = 0; i < 4; ++i) {
        UM_REQUIRE(pthread_create(&threads[i], NULL, hammer, (void *)(uintptr_t)(i + 1)) == 0);
    }
    for (size_t i = 0; i < 4; ++i) {
        void *failures = NULL;
        UM_CHECK(pthread_join(threads[i], &failures) == 0);
        UM_CHECK(failures == NULL);
    }
}

int main(void) {
    um_error err;
    if (um_backend_host_open(&backend, &err) != UM_OK) {
        printf("cannot open the host backend: %s\n", err.message);
        return 1;
    }
    UM_RUN(opens_as_a_host);
    UM_RUN(blocks_are_aligned_and_zero);
    UM_RUN(home_and_device_are_hints);
    UM_RUN(too_much_is_out_of_memory);
    UM_RUN(freeing_gives_the_mapping_back);
    UM_RUN(a_large_block_costs_nothing_until_touched);
    UM_RUN(prefetch_to_the_host_populates);
    UM_RUN(prefetch_of_a_small_block_keeps_its_neighbours);
    UM_RUN(discard_zeroes_exactly_its_pages);
    UM_RUN(discard_of_locked_pages_zeroes_too);
    UM_RUN(advice_has_no_effect);
    UM_RUN(memory_is_counted);
    UM_RUN(threads_do_not_disturb_each_other);
    backend->ops->close(backend);
    return um_test_result();
}
