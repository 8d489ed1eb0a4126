/* Core over the host backend and over the CUDA backend with the fake driver that UMEM_CUDA_LIBRARY names: blocks, limits, waiting,
 * reading, residency. */
#define _GNU_SOURCE 1
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/um_transfer.h"
#include "um_core_test.h"

static um_block *new_block(size_t size) {
    um_error err = {0};
    um_block *block = NULL;
    UM_CHECK(ok(um_block_new(ctx, size, 0, nowhere, &block, &err), &err));
    return block;
}

static um_stream *get_stream(um_stream_handle handle) { return get_stream_of(0, handle); }

static um_stream_handle make_handle(void) {
    um_error err = {0};
    um_stream_handle handle = 0;
    UM_CHECK(ok(um_context_backend(ctx)->ops->stream_create(um_context_backend(ctx), 0, &handle, &err), &err));
    return handle;
}

static void drop_handle(um_stream_handle handle) {
    um_error err = {0};
    UM_CHECK(ok(um_context_backend(ctx)->ops->stream_destroy(um_context_backend(ctx), 0, handle, &err), &err));
}

/* --- both backends --------------------------------------------------------------------------------------------------- */

static void check_blocks(void) {
    um_block *small = new_block(100), *large = new_block(3 * MIB + 5), *empty = new_block(0);
    UM_REQUIRE(small && large && empty);
    UM_CHECK(um_block_ptr(empty) != NULL);
    UM_CHECK(um_block_find(ctx, um_block_ptr(large) + 3 * MIB, 5) == large);
    UM_CHECK(um_block_find(ctx, um_block_ptr(large) + 3 * MIB, 6) == NULL);
    UM_CHECK(um_block_find(ctx, um_block_ptr(large) - 1, 2) == NULL);
    UM_CHECK(um_block_find(ctx, &ctx, 1) == NULL);
    um_block_unref(large);
    um_memory_stats stats;
    um_pool_stats(ctx, UM_ALL_DEVICES, &stats);
    UM_CHECK(stats.allocated_current == 100 + 3 * MIB + 5);
    UM_CHECK(stats.blocks_current == 2);
    const char *gone = um_block_ptr(large);
    um_block_unref(large);
    UM_CHECK(um_block_find(ctx, gone, 1) == NULL);
    um_block_unref(small);
    um_block_unref(empty);
    um_pool_stats(ctx, UM_ALL_DEVICES, &stats);
    UM_CHECK(stats.allocated_current == 0 && stats.blocks_current == 0 && stats.waiting_current == 0);
    size_t released;
    um_error err = {0};
    uint64_t reserved = stats.reserved_current;
    UM_CHECK(ok(um_pool_trim(ctx, &released, &err), &err) && released == reserved && reserved > 3 * MIB);
    um_pool_stats(ctx, UM_ALL_DEVICES, &stats);
    UM_CHECK(stats.reserved_current == 0 && stats.slabs_current == 0);
    UM_CHECK(stats.allocated_total == stats.freed_total);
    UM_CHECK(stats.allocated_peak == 100 + 3 * MIB + 5);
}

static void check_limit(void) {
    um_error err = {0};
    um_block *block = NULL;
    um_pool_set_limit(ctx, UM_ALL_DEVICES, MIB);
    um_block *half = new_block(MIB / 2);
    UM_CHECK(um_block_new(ctx, MIB / 2 + 4096, 0, nowhere, &block, &err) == UM_ERR_OUT_OF_MEMORY);
    UM_CHECK(block == NULL && err.limit == MIB && err.in_use == MIB / 2 && err.requested == MIB / 2 + 4096);
    UM_CHECK_CONTAINS(err.message, "limit");
    um_block *rest = new_block(MIB / 2);
    um_block_unref(half);
    um_block_unref(rest);
    um_pool_set_limit(ctx, UM_ALL_DEVICES, SIZE_MAX);
    UM_CHECK(um_block_new(ctx, SIZE_MAX, 0, nowhere, &block, &err) == UM_ERR_OUT_OF_MEMORY);
    UM_CHECK(um_block_new(ctx, SIZE_MAX / 2 - 100, 0, nowhere, &block, &err) == UM_ERR_OUT_OF_MEMORY);
    um_memory_stats stats;
    um_pool_stats(ctx, UM_ALL_DEVICES, &stats);
    UM_CHECK(stats.reserved_current == 0 && stats.allocated_current == 0); /* a refused request frees what it can */
}

static unsigned next_random(unsigned *state) { return *state = *state * 1664525u + 1013904223u; }

/* Reads random strided windows of a block and compares with a walk by hand over `truth`, a copy of its bytes. */
static void check_reads(um_block *block, const char *truth) {
    int64_t size = (int64_t)um_block_size(block);
    unsigned seed = 7;
    for (int round = 0; round < 300; round++) {
        int ndim = (int)(next_random(&seed) >> 16) % 5;
        size_t itemsize = (size_t)1 << (next_random(&seed) >> 16) % 5;
        int64_t shape[4], strides[4], low = 0, high = 0;
        size_t count = 1;
        for (int axis = 0; axis < ndim; axis++) {
            shape[axis] = (next_random(&seed) >> 16) % 7;
            strides[axis] = (int64_t)((next_random(&seed) >> 16) % 40) * (int64_t)itemsize *
                            ((next_random(&seed) >> 16) % 3 ? 1 : -1);
            count *= (size_t)shape[axis];
            int64_t reach = strides[axis] * (shape[axis] ? shape[axis] - 1 : 0);
            if (reach < 0)
                low += reach;
            else
                high += reach;
        }
        int64_t room = size - (int64_t)itemsize - (high - low);
        if (room < 0) continue;
        int64_t first = (int64_t)(next_random(&seed) % (unsigned)(room + 1)) - low;
        char got[2401 * 16], want[2401 * 16];
        UM_REQUIRE(count * itemsize <= sizeof got);
        for (size_t i = 0; i < count; i++) {
            size_t rest = i;
            int64_t at = first;
            for (int axis = ndim - 1; axis >= 0; axis--) {
                at += (int64_t)(rest % (size_t)shape[axis]) * strides[axis];
                rest /= (size_t)shape[axis];
            }
            memcpy(want + i * itemsize, truth + at, itemsize);
        }
        um_error err = {0};
        memset(got, 0xEE, sizeof got);
        UM_REQUIRE(ok(um_read(block, um_block_ptr(block) + first, ndim, shape, strides, itemsize, got, &err), &err));
        UM_REQUIRE(memcmp(got, want, count * itemsize) == 0);
    }
}

static void host_blocks(void) {
    UM_REQUIRE(start("host"));
    check_blocks();
    check_limit();
    stop();
}

static char *fill_with_noise(um_block *block) {
    size_t size = um_block_size(block);
    char *truth = malloc(size);
    unsigned seed = 3;
    for (size_t i = 0; i < size; i++) truth[i] = (char)(next_random(&seed) >> 24);
    memcpy(um_block_ptr(block), truth, size);
    return truth;
}

static void host_reads(void) {
    UM_REQUIRE(start("host"));
    um_block *block = new_block(64 * KIB);
    char *truth = fill_with_noise(block);
    check_reads(block, truth);
    free(truth);
    um_block_unref(block);
    stop();
}

static int released;
static void count_release(void *owner) { released += owner == &released; }

static void host_wrapped(void) {
    UM_REQUIRE(start("host"));
    static char memory[64];
    um_error err = {0};
    um_block *block = NULL;
    UM_REQUIRE(ok(um_block_wrap(ctx, memory, sizeof memory, 0, count_release, &released, &block, &err), &err));
    UM_CHECK(um_block_find(ctx, memory + 63, 1) == block);
    um_block_unref(block);
    UM_CHECK(released == 0 && !um_block_is_owned(block));
    UM_CHECK(um_set_home(block, host, &err) == UM_ERR_VALUE);
    um_context *last = ctx;
    ctx = NULL;
    um_context_unref(last); /* the block keeps the context alive */
    um_block_unref(block);
    UM_CHECK(released == 1);
}

static void host_fork_keeps_a_copy(void) {
    UM_REQUIRE(start("host"));
    um_block *block = new_block(100);
    um_block_ptr(block)[0] = 5;
    pid_t child = fork();
    if (child == 0) {
        um_block *mine = new_block(100);
        bool fine = um_block_ptr(block)[0] == 5 && mine != NULL;
        um_block_unref(mine);
        um_block_unref(block);
        um_test_exit(fine ? 0 : 1);
    }
    int result = -1;
    UM_CHECK(waitpid(child, &result, 0) == child && WIFEXITED(result) && WEXITSTATUS(result) == 0);
    um_block_unref(block);
    stop();
}

static void *churn(void *seed_value) {
    unsigned seed = (unsigned)(uintptr_t)seed_value;
    for (int i = 0; i < 2000; i++) {
        um_block *block = new_block(next_random(&seed) >> 20);
        um_block *found =
            um_block_size(block) ? um_block_find(ctx, um_block_ptr(block), um_block_size(block)) : um_block_ref(block);
        if (found != block) return (void *)1;
        um_block_unref(found);
        um_block_unref(block);
    }
    return NULL;
}

static void host_threads(void) {
    UM_REQUIRE(start("host"));
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) UM_CHECK(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)) == 0);
    for (int i = 0; i < 4; i++) {
        void *result = NULL;
        UM_CHECK(pthread_join(threads[i], &result) == 0 && result == NULL);
    }
    um_memory_stats stats;
    um_pool_stats(ctx, UM_ALL_DEVICES, &stats);
    UM_CHECK(stats.allocated_current == 0 && stats.blocks_current == 0);
    stop();
}

/* --- the fake driver ---------------------------------------------------------------------------------------------------- */

static void fake_blocks(void) {
    UM_REQUIRE(start_fake(1));
    check_blocks();
    check_limit();
    stop_fake();
}

static void fake_reads_move_nothing(void) {
    UM_REQUIRE(start_fake(1));
    um_error err = {0};
    um_block *block = new_block(64 * KIB);
    char *truth = fill_with_noise(block);
    check_reads(block, truth);
    um_access whole = {.block = block, .size = um_block_size(block)};
    UM_CHECK(ok(um_prefetch(ctx, &whole, 1, gpu0, NULL, &err), &err));
    UM_CHECK(ok(um_context_synchronize(ctx, &err), &err));
    check_reads(block, truth);
    unsigned char states[17];
    UM_CHECK(um_residency_page_count(block, 0, 64 * KIB) == 16);
    UM_CHECK(ok(um_residency_scan(block, 0, 64 * KIB, states, &err), &err));
    for (int i = 0; i < 16; i++) UM_CHECK(states[i] == UM_PAGE_DEVICE);
    free(truth);
    um_block_unref(block);
    /* one contiguous piece longer than the staging memory */
    um_block *large = new_block(21 * MIB + 3);
    truth = fill_with_noise(large);
    whole = (um_access){.block = large, .size = um_block_size(large)};
    UM_CHECK(ok(um_prefetch(ctx, &whole, 1, gpu0, NULL, &err), &err));
    UM_CHECK(ok(um_context_synchronize(ctx, &err), &err));
    char *got = malloc(um_block_size(large));
    int64_t shape = (int64_t)um_block_size(large), stride = 1;
    UM_CHECK(ok(um_read(large, um_block_ptr(large), 1, &shape, &stride, 1, got, &err), &err));
    UM_CHECK(memcmp(got, truth, um_block_size(large)) == 0);
    free(got);
    free(truth);
    um_block_unref(large);
    stop_fake();
}

typedef struct strided {
    int ndim;
    int64_t shape[3], strides[3];
    size_t offset; /* of the first element */
} strided;

/* Rows that the staging memory does not hold all at once, or not even one of; each call of the driver that it takes fails in turn. */
static void fake_reads_of_large_regions(void) {
    const strided regions[] = {
        {2, {2, 9 * MIB}, {12 * MIB, 1}, 5},         {3, {2, 1, 9 * MIB}, {12 * MIB, 1, 1}, 0},
        {3, {2, 5, MIB}, {12 * MIB, 2 * MIB, 1}, 0}, {2, {20, MIB}, {-(int64_t)(MIB + 4096), 1}, 19 * (MIB + 4096)},
        {3, {3, 2, 3 * MIB}, {0, 12 * MIB, 1}, 0},
    };
    UM_REQUIRE(start_fake(1));
    um_block *block = new_block(24 * MIB);
    char *truth = fill_with_noise(block);
    char *got = malloc(20 * MIB);
    UM_REQUIRE(truth && got);
    for (size_t i = 0; i < sizeof regions / sizeof *regions; i++) {
        const strided *part = &regions[i];
        unsigned long n = 0;
        bool failed = true;
        while (failed && n < 100) {
            um_error err = {0};
            um_access whole = {.block = block, .size = um_block_size(block)};
            UM_CHECK(ok(um_prefetch(ctx, &whole, 1, gpu0, NULL, &err), &err));
            UM_CHECK(ok(um_context_synchronize(ctx, &err), &err));
            memset(got, 0, 20 * MIB);
            FAKE(fakecu_fail_nth_call)(++n, 999);
            um_status status = um_read(block, um_block_ptr(block) + part->offset, part->ndim, part->shape,
                                       part->strides, 1, got, &err);
            failed = FAKE(fakecu_last_failed)() != NULL;
            FAKE(fakecu_reset_faults)();
            UM_CHECK(failed ? status == UM_OK || status == UM_ERR_CUDA : status == UM_OK);
            const char *at = got;
            bool same = true;
            int64_t outer = part->ndim == 3 ? part->shape[0] : 1;
            int64_t inner = part->shape[part->ndim - 2], run = part->shape[part->ndim - 1];
            for (int64_t row = 0; row < outer * inner; row++, at += run) {
                int64_t from = (int64_t)part->offset + row % inner * part->strides[part->ndim - 2] +
                               (part->ndim == 3 ? row / inner * part->strides[0] : 0);
                same = same && memcmp(at, truth + from, (size_t)run) == 0;
            }
            UM_CHECK(same || status != UM_OK);
        }
        UM_CHECK(!failed && n > 2);
    }
    free(got);
    free(truth);
    um_block_unref(block);
    stop_fake();
}

static void fake_host_access_waits(void) { /* rule 2 */
    UM_REQUIRE(start_fake(1));
    um_block *block = new_block(4096);
    um_wait wait = fill(block, get_stream(UM_STREAM_LEGACY), 7, false);
    UM_CHECK(!wait.needed);
    UM_CHECK(um_block_ptr(block)[0] != 7);
    wait_host(block);
    UM_CHECK(um_block_ptr(block)[0] == 7);
    um_block_unref(block);
    stop_fake();
}

static void fake_views_make_work_complete(void) { /* rule 3 */
    UM_REQUIRE(start_fake(1));
    um_error err = {0};
    um_block *block = new_block(4096);
    um_stream *legacy = get_stream(UM_STREAM_LEGACY);
    um_host_view_add(block, false);
    um_wait wait = fill(block, legacy, 1, false);
    UM_CHECK(wait.needed);
    UM_CHECK(ok(um_wait_run(&wait, &err), &err));
    UM_CHECK(um_block_ptr(block)[0] == 1);
    wait = fill(block, legacy, 2, true); /* deferred */
    UM_CHECK(!wait.needed);
    um_host_view_remove(block, false);
    wait = fill(block, legacy, 3, false);
    UM_CHECK(!wait.needed);
    um_host_view_forever(block, true);
    wait = fill(block, legacy, 4, false);
    UM_CHECK(wait.needed);
    UM_CHECK(ok(um_wait_run(&wait, &err), &err));
    UM_CHECK(um_block_ptr(block)[4095] == 4);
    um_block_unref(block);
    stop_fake();
}

static void fake_streams_are_ordered(void) {
    UM_REQUIRE(start_fake(1));
    um_block *block = new_block(4096);
    um_stream_handle a = make_handle(), b = make_handle();
    um_stream *first = get_stream(a), *second = get_stream(b);
    UM_CHECK(first != second && get_stream(a) == first);
    um_stream_unref(first);
    um_wait wait = fill(block, first, 1, false);
    wait = fill(block, second, 2, false); /* must run behind the first */
    UM_CHECK(!wait.needed);
    drop_handle(a); /* umem waits through its own events */
    drop_handle(b);
    wait_host(block);
    UM_CHECK(um_block_ptr(block)[0] == 2);
    um_stream_unref(first);
    um_stream_unref(second);
    um_block_unref(block);
    stop_fake();
}

static void fake_freed_memory_waits(void) { /* rule 5 */
    UM_REQUIRE(start_fake(1));
    um_error err = {0};
    um_block *block = new_block(MIB);
    um_wait wait = fill(block, get_stream(UM_STREAM_LEGACY), 7, false);
    UM_CHECK(!wait.needed);
    um_block_unref(block);
    um_memory_stats stats;
    um_pool_stats(ctx, UM_ALL_DEVICES, &stats);
    UM_CHECK(stats.waiting_current == MIB && stats.allocated_current == 0 && stats.reserved_current >= MIB);
    um_block *again = new_block(MIB - 1000); /* of the same class: at once, in order behind the work */
    UM_CHECK(again == block && um_block_size(again) == MIB - 1000);
    wait_host(again);
    UM_CHECK(um_block_ptr(again)[5] == 7);
    um_block_unref(again);
    um_pool_stats(ctx, UM_ALL_DEVICES, &stats);
    UM_CHECK(stats.waiting_current == 0);

    block = new_block(MIB);
    char *where = um_block_ptr(block);
    UM_CHECK(ok(um_device_export(block, NULL, &wait, &err), &err));
    um_block_unref(block); /* the other library may still be at it */
    um_block *other = new_block(MIB);
    UM_CHECK(um_block_ptr(other) != where);
    um_block_unref(other);
    um_pool_stats(ctx, UM_ALL_DEVICES, &stats);
    UM_CHECK(stats.waiting_current == MIB);
    UM_CHECK(ok(um_context_synchronize(ctx, &err), &err));
    um_pool_stats(ctx, UM_ALL_DEVICES, &stats);
    UM_CHECK(stats.waiting_current == 0);

    um_pool_set_limit(ctx, UM_ALL_DEVICES, MIB); /* memory that waits is reclaimed before a request is refused */
    block = new_block(MIB);
    UM_CHECK(ok(um_device_export(block, NULL, &wait, &err), &err));
    um_block_unref(block);
    other = new_block(MIB);
    UM_CHECK(other != NULL);
    um_block_unref(other);
    stop_fake();
}

static void fake_exports(void) { /* rule 4, and the prefetch at the first hand-out */
    UM_REQUIRE(start_fake(1));
    um_error err = {0};
    um_wait wait;
    um_block *block = new_block(4 * MIB);
    memset(um_block_ptr(block), 1, 4 * MIB);
    um_stream_handle handle = make_handle();
    um_stream *side = get_stream(handle), *legacy = get_stream(UM_STREAM_LEGACY);
    UM_CHECK(ok(um_device_export(block, NULL, &wait, &err), &err));
    UM_CHECK(!wait.needed);
    UM_CHECK(FAKE(fakecu_calls)("mem_prefetch_location") == 1);
    wait = fill(block, legacy, 2, false);
    UM_CHECK(ok(um_device_export(block, NULL, &wait, &err), &err));
    UM_CHECK(!wait.needed); /* the consumer is ordered with the legacy stream */
    wait = fill(block, side, 3, false);
    UM_CHECK(ok(um_device_export(block, NULL, &wait, &err), &err));
    UM_CHECK(wait.needed);
    UM_CHECK(ok(um_wait_run(&wait, &err), &err));
    wait = fill(block, side, 4, false);
    unsigned long orders = FAKE(fakecu_calls)("stream_wait_event");
    UM_CHECK(ok(um_device_export(block, legacy, &wait, &err), &err));
    UM_CHECK(!wait.needed && FAKE(fakecu_calls)("stream_wait_event") == orders + 1);
    UM_CHECK(FAKE(fakecu_calls)("mem_prefetch_location") == 1);
    wait_host(block); /* waits for everything: the block is in other hands */
    UM_CHECK(um_block_ptr(block)[0] == 4);
    um_stream_unref(side);
    drop_handle(handle);
    um_block_unref(block);
    stop_fake();
}

static void fake_homes(void) {
    UM_REQUIRE(start_fake(2));
    um_error err = {0};
    um_block *small = new_block(1000), *large = new_block(MIB), *homed = NULL;
    UM_CHECK(um_set_home(small, host, &err) == UM_ERR_VALUE);
    UM_CHECK_CONTAINS(err.message, "home=");
    UM_CHECK(um_set_home(large, (um_location){UM_LOCATION_DEVICE, 2}, &err) == UM_ERR_VALUE);
    UM_CHECK_CONTAINS(err.message, "cuda:1");
    UM_CHECK(ok(um_set_home(large, host, &err), &err));
    unsigned long advice = FAKE(fakecu_calls)("mem_advise_location");
    UM_CHECK(ok(um_set_home(large, host, &err), &err));
    UM_CHECK(FAKE(fakecu_calls)("mem_advise_location") == advice);
    UM_CHECK(ok(um_block_new(ctx, 100, 1, host, &homed, &err), &err));
    UM_CHECK(um_location_equal(um_block_home(homed), host) && um_block_device(homed) == 1);
    UM_CHECK(um_set_home(homed, gpu0, &err) == UM_ERR_VALUE); /* it shares its pages with others of its home */
    UM_CHECK(ok(um_set_home(homed, host, &err), &err));       /* which it has already */
    um_block_unref(small);
    um_block_unref(large);
    um_block_unref(homed);
    stop_fake();
}

static void fake_residency(void) {
    UM_REQUIRE(start_fake(1));
    um_error err = {0};
    unsigned char states[64];
    um_block *block = new_block(256 * KIB);
    size_t pages = um_residency_page_count(block, 0, 256 * KIB);
    UM_REQUIRE(pages == 64);
    UM_CHECK(ok(um_residency_scan(block, 0, 256 * KIB, states, &err), &err));
    UM_CHECK(states[0] == UM_PAGE_UNTOUCHED && states[63] == UM_PAGE_UNTOUCHED);
    um_block_ptr(block)[0] = 1;
    um_access half = {.block = block, .offset = 128 * KIB, .size = 128 * KIB};
    UM_CHECK(ok(um_prefetch(ctx, &half, 1, gpu0, NULL, &err), &err));
    UM_CHECK(ok(um_context_synchronize(ctx, &err), &err));
    UM_CHECK(ok(um_residency_scan(block, 0, 256 * KIB, states, &err), &err));
    UM_CHECK(states[0] == UM_PAGE_HOST && states[20] == UM_PAGE_UNTOUCHED && states[32] == UM_PAGE_DEVICE &&
             states[63] == UM_PAGE_DEVICE);
    um_wait wait;
    UM_CHECK(ok(um_device_export(block, NULL, &wait, &err), &err));
    UM_CHECK(ok(um_residency_scan(block, 0, 256 * KIB, states, &err), &err));
    UM_CHECK(states[0] == UM_PAGE_HOST && states[20] == UM_PAGE_UNKNOWN && states[63] == UM_PAGE_DEVICE);
    um_block_unref(block);
    stop_fake();
}

static void prefetch_whole(um_block *block, um_location where) {
    um_error err = {0};
    um_access whole = {.block = block, .size = um_block_size(block)};
    UM_CHECK(ok(um_prefetch(ctx, &whole, 1, where, NULL, &err), &err));
    UM_CHECK(ok(um_context_synchronize(ctx, &err), &err));
}

static void fake_discard_goes_with_a_prefetch(void) {
    UM_REQUIRE(start_fake(1));
    um_error err = {0};
    um_wait wait;
    unsigned long discards = 0;
    um_stream *legacy = get_stream(UM_STREAM_LEGACY);
    um_block *block = new_block(4 * MIB);
    memset(um_block_ptr(block), 1, 4 * MIB);
    UM_CHECK(ok(um_discard(block, 0, 4 * MIB, &err), &err));
    UM_CHECK(FAKE(fakecu_calls)("mem_discard_batch") == discards); /* not before the prefetch */
    prefetch_whole(block, gpu0);
    UM_CHECK(FAKE(fakecu_calls)("mem_discard_batch") == ++discards);
    prefetch_whole(block, host); /* once */
    UM_CHECK(FAKE(fakecu_calls)("mem_discard_batch") == discards);
    UM_CHECK(ok(um_discard(block, 0, 4 * MIB, &err), &err)); /* not when the pages are there already */
    prefetch_whole(block, host);
    UM_CHECK(FAKE(fakecu_calls)("mem_discard_batch") == discards);

    UM_CHECK(ok(um_discard(block, 0, 4 * MIB, &err), &err)); /* a kernel writes in between */
    wait = fill(block, legacy, 5, false);
    UM_CHECK(!wait.needed);
    prefetch_whole(block, gpu0);
    wait_host(block);
    UM_CHECK(um_block_ptr(block)[0] == 5 && um_block_ptr(block)[4 * MIB - 1] == 5);

    UM_CHECK(ok(um_discard(block, 0, 4 * MIB, &err), &err)); /* the host does */
    wait_host(block);
    memset(um_block_ptr(block), 6, 4 * MIB);
    prefetch_whole(block, gpu0);
    wait_host(block);
    UM_CHECK(um_block_ptr(block)[MIB] == 6);

    um_host_view_add(block, true); /* somebody whose writes are not seen */
    UM_CHECK(ok(um_discard(block, 0, 4 * MIB, &err), &err));
    um_block_ptr(block)[MIB] = 7;
    prefetch_whole(block, gpu0);
    UM_CHECK(um_block_ptr(block)[MIB] == 7);
    um_host_view_remove(block, true);
    UM_CHECK(FAKE(fakecu_calls)("mem_discard_batch") == discards);
    um_block_unref(block);

    for (int writer = 0; writer < 5; writer++) {
        block = new_block(4 * MIB);
        memset(um_block_ptr(block), 1, 4 * MIB);
        if (writer == 0) um_host_view_add(block, true); /* ends before the prefetch */
        if (writer == 1) um_host_view_forever(block, true);
        if (writer == 2) UM_CHECK(ok(um_device_mark(block, &err), &err));
        UM_CHECK(ok(um_discard(block, 0, 4 * MIB, &err), &err));
        if (writer == 0) um_host_view_remove(block, true);
        if (writer == 3) um_host_view_add(block, true); /* begins before it */
        if (writer == 4) prefetch_whole(block, gpu0);   /* nobody: the prefetch discards */
        if (writer == 4) um_block_ptr(block)[0] = 1;
        prefetch_whole(block, gpu0);
        UM_CHECK(FAKE(fakecu_calls)("mem_discard_batch") == discards + (writer == 4));
        if (writer == 3) um_host_view_remove(block, true);
        um_block_unref(block);
    }

    block = new_block(4 * MIB); /* on its way there already, with bytes that count from now on */
    memset(um_block_ptr(block), 1, 4 * MIB);
    um_access whole = {.block = block, .size = 4 * MIB};
    discards = FAKE(fakecu_calls)("mem_discard_batch");
    UM_CHECK(ok(um_prefetch(ctx, &whole, 1, gpu0, NULL, &err), &err));
    UM_CHECK(ok(um_discard(block, 0, 4 * MIB, &err), &err));
    UM_CHECK(ok(um_prefetch(ctx, &whole, 1, gpu0, NULL, &err), &err));
    UM_CHECK(FAKE(fakecu_calls)("mem_discard_batch") == discards);
    um_block_unref(block);
    stop_fake();
}

static void fake_zero(void) {
    UM_REQUIRE(start_fake(1));
    um_error err = {0};
    for (size_t size = 1000; size <= 4 * MIB; size *= 64) {
        um_block *block = new_block(size);
        UM_CHECK(ok(um_zero_new(block, &err), &err));
        wait_host(block);
        for (size_t i = 0; i < size; i++) UM_REQUIRE(um_block_ptr(block)[i] == 0);
        um_block_unref(block);
    }
    stop_fake();
}

static int destroyed; /* events, by a child that has none of its own */
static void count_destroyed(um_backend *backend, int device, um_event_handle event) {
    (void)backend;
    (void)device;
    destroyed += event != 0;
}

/* Whether everything that core offers says no in a forked child, which leaves all that the parent has alone. */
static bool all_refuse(um_block *block, um_block *wrapped, um_stream *side, um_wait *before) {
    um_error err = {0};
    um_wait wait = UM_WAIT_NONE;
    um_block *mine;
    um_stream *legacy = get_stream(UM_STREAM_LEGACY);
    um_access access = {.block = block, .size = um_block_size(block)};
    static unsigned char states[MIB / 4096];
    size_t bytes;
    char byte;
    int64_t none = 0, one = 1;
    um_status answers[] = {
        um_block_new(ctx, 1, 0, nowhere, &mine, &err), /* one is at hand */
        um_host_access(block, &wait, &err),
        um_wait_run(before, &err),
        um_work_begin(legacy, &access, 1, &err),
        um_device_export(wrapped, NULL, &wait, &err),
        um_device_mark(block, &err),
        um_stream_synchronize(legacy, true, &err),
        um_context_synchronize(ctx, &err),
        um_pool_trim(ctx, &bytes, &err),
        um_block_new(ctx, MIB, 0, nowhere, &mine, &err),
        um_block_wrap(ctx, &byte, 1, 0, count_release, NULL, &mine, &err),
        um_read(block, um_block_ptr(block), 1, &one, &one, 1, &byte, &err),
        um_read(block, um_block_ptr(block), 1, &none, &one, 1, &byte, &err),
        um_prefetch(ctx, &access, 1, gpu0, NULL, &err),
        um_advise(block, 0, MIB, UM_ADVICE_READ_MOSTLY, gpu0, &err),
        um_set_home(block, gpu0, &err),
        um_discard(block, 0, MIB, &err),
        um_residency_scan(block, 0, MIB, states, &err),
    };
    bool fine = true;
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        if (answers[i] != UM_ERR_FORKED) printf("fake_fork_refuses: call %zu is not refused\n", i);
        fine = fine && answers[i] == UM_ERR_FORKED;
    }
    static um_backend_ops watched;
    watched = *um_context_backend(ctx)->ops;
    watched.event_destroy = count_destroyed;
    um_context_backend(ctx)->ops = &watched;
    released = 0;
    um_block_unref(block);
    um_block_unref(wrapped);
    um_stream_unref(side);
    UM_CHECK(released == 0 && destroyed == 0);
    um_context_unref(ctx);
    UM_CHECK(released == 0 && destroyed == 0);
    return fine && um_test_failures == 0;
}

static void fake_fork_refuses(void) { /* rule 7 */
    UM_REQUIRE(start_fake(1));
    um_error err = {0};
    um_block *block = new_block(MIB), *wrapped = NULL;
    um_block_unref(new_block(1));
    um_stream_handle handle = make_handle();
    um_stream *side = get_stream(handle);
    void *memory = FAKE(fakecu_device_alloc)(4096, 0);
    UM_REQUIRE(ok(um_block_wrap(ctx, memory, 4096, 0, count_release, &released, &wrapped, &err), &err));
    um_wait wait = fill(wrapped, side, 7, false);
    UM_CHECK(ok(um_stream_synchronize(side, true, &err), &err));
    wait = fill(block, get_stream(UM_STREAM_LEGACY), 7, false);
    UM_CHECK(ok(um_stream_wait_stream(side, get_stream(UM_STREAM_LEGACY), &err), &err)); /* makes its event */
    um_wait before;
    UM_CHECK(ok(um_host_access(block, &before, &err), &err));
    (void)fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        bool fine = all_refuse(block, wrapped, side, &before);
        (void)fflush(stdout);
        um_test_exit(fine ? 0 : 1);
    }
    int result = -1;
    UM_CHECK(waitpid(child, &result, 0) == child && WIFEXITED(result) && WEXITSTATUS(result) == 0);
    UM_CHECK(ok(um_wait_run(&before, &err), &err));
    wait_host(block);
    UM_CHECK(!wait.needed && um_block_ptr(block)[0] == 7);
    um_block_unref(block);
    um_block_unref(wrapped);
    um_stream_unref(side);
    drop_handle(handle);
    FAKE(fakecu_device_free)(memory);
    stop_fake();
}

/* The details of a failure may be none of the caller's business. */
static void fake_errors_may_be_ignored(void) {
    FAKE(fakecu_shutdown)();
    FAKE(fakecu_set_memory)(MIB);
    UM_REQUIRE(start("cuda"));
    um_block *block = NULL;
    UM_CHECK(um_block_new(ctx, SIZE_MAX, 0, nowhere, &block, NULL) == UM_ERR_OUT_OF_MEMORY);
    UM_CHECK(um_block_new(ctx, (size_t)1 << 46, 0, nowhere, &block, NULL) == UM_ERR_OUT_OF_MEMORY);
    um_pool_set_limit(ctx, 0, MIB);
    UM_CHECK(um_block_new(ctx, 2 * MIB, 0, nowhere, &block, NULL) == UM_ERR_OUT_OF_MEMORY);
    um_context *other = NULL;
    um_config config = {"cuda", "/nowhere/libcuda.so"};
    UM_CHECK(um_context_open(&config, &other, NULL) == UM_ERR_NO_DRIVER);
    config.backend = "vulkan";
    UM_CHECK(um_context_open(&config, &other, NULL) == UM_ERR_VALUE);
    UM_CHECK(block == NULL && other == NULL);
    um_block_unref(NULL);
    um_context_unref(NULL);
    stop_fake();
}

static void fake_without_concurrent_access(void) { /* rule 6 */
    FAKE(fakecu_shutdown)();
    FAKE(fakecu_set_concurrent)(0);
    UM_REQUIRE(start("cuda"));
    um_error err = {0};
    um_block *block = new_block(4096);
    um_wait access, wait = fill(block, get_stream(UM_STREAM_LEGACY), 7, true);
    UM_CHECK(wait.needed);
    UM_CHECK(um_host_access(block, &access, &err) == UM_ERR_BUSY);
    UM_CHECK(ok(um_wait_run(&wait, &err), &err));
    wait_host(block);
    UM_CHECK(um_block_ptr(block)[0] == 7);
    um_block_unref(block);
    stop_fake();
}

/* --- what comes in between ---------------------------------------------------------------------------------------- */

/* The backend's calls with a step of the test's own at the end of one of them, as another thread would take it there. */
static um_backend_ops spied;
static const um_backend_ops *plain;
static void (*meanwhile)(void);

static void once(void) {
    void (*step)(void) = meanwhile;
    meanwhile = NULL;
    if (step) step();
}

static um_status spied_synchronize(um_backend *backend, um_error *err) {
    um_status status = plain->synchronize(backend, err);
    once();
    return status;
}

static um_status spied_stream_synchronize(um_backend *backend, int device, um_stream_handle stream, um_error *err) {
    um_status status = plain->stream_synchronize(backend, device, stream, err);
    once();
    return status;
}

static um_status spied_event_record(um_backend *backend, int device, um_event_handle event, um_stream_handle stream,
                                    um_error *err) {
    um_status status = plain->event_record(backend, device, event, stream, err);
    once();
    return status;
}

static void spy(void) {
    plain = um_context_backend(ctx)->ops;
    spied = *plain;
    spied.synchronize = spied_synchronize;
    spied.stream_synchronize = spied_stream_synchronize;
    spied.event_record = spied_event_record;
    um_context_backend(ctx)->ops = &spied;
}

static um_block *late; /* what the step works on */

static void fill_late(void) {
    um_wait wait = fill(late, get_stream(UM_STREAM_LEGACY), 9, false);
    UM_CHECK(!wait.needed);
}

static void check_late_is_pending(void) {
    UM_CHECK(meanwhile == NULL);
    UM_CHECK(um_block_ptr(late)[0] != 9);
    wait_host(late);
    UM_CHECK(um_block_ptr(late)[0] == 9);
    memset(um_block_ptr(late), 0, um_block_size(late));
}

static void fake_work_during_a_wait_is_not_done(void) { /* rule 2 */
    UM_REQUIRE(start_fake(1));
    spy();
    um_error err = {0};
    um_stream *legacy = get_stream(UM_STREAM_LEGACY);
    um_block *block = new_block(4096);
    late = new_block(4096);
    um_wait wait = fill(block, legacy, 1, false);

    meanwhile = fill_late;
    wait_host(block);
    check_late_is_pending();

    meanwhile = fill_late;
    UM_CHECK(ok(um_context_synchronize(ctx, &err), &err));
    check_late_is_pending();

    wait = fill(block, legacy, 2, false);
    meanwhile = fill_late;
    UM_CHECK(ok(um_stream_synchronize(legacy, true, &err), &err));
    check_late_is_pending();

    um_stream_handle handle = make_handle();
    um_stream *side = get_stream(handle);
    wait = fill(block, legacy, 3, false);
    meanwhile = fill_late; /* while the legacy stream's event is recorded */
    wait = fill(block, side, 4, false);
    UM_CHECK(!wait.needed && meanwhile == NULL);
    wait = fill(late, side, 5, false); /* has to lie behind the late work, which the event does not cover */
    wait_host(late);
    UM_CHECK(um_block_ptr(late)[0] == 5);
    FAKE(fakecu_run_all)();
    UM_CHECK(um_block_ptr(late)[0] == 5);

    um_stream_unref(side);
    drop_handle(handle);
    um_block_unref(block);
    um_block_unref(late);
    stop_fake();
}

static um_stream *late_stream;
static void fill_late_on_another_stream(void) {
    um_wait wait = fill(late, late_stream, 9, false);
    UM_CHECK(!wait.needed);
}

/* Launches of two threads on one block at the same time: each has looked for the other's work before that was noted. */
static void fake_work_of_two_threads_on_a_block(void) { /* rules 2 and 5 */
    UM_REQUIRE(start_fake(1));
    FAKE(fakecu_set_query_mode)(0); /* a query starts nothing */
    spy();
    um_error err = {0};
    um_stream *legacy = get_stream(UM_STREAM_LEGACY);
    um_stream_handle handles[2] = {make_handle(), make_handle()};
    um_stream *sides[2] = {get_stream(handles[0]), get_stream(handles[1])};
    for (int again = 0; again < 3; again++) {
        um_backend *backend = um_context_backend(ctx);
        late = new_block(MIB);
        um_access access = {.block = late, .size = MIB / 2, .write = true, .dense = true};
        um_wait wait;
        /* this thread begins and launches; the other begins, launches and ends on another stream; then this one ends */
        UM_CHECK(ok(um_work_begin(sides[0], &access, 1, &err), &err));
        UM_CHECK(ok(backend->ops->fill_bytes(backend, 0, um_block_ptr(late), 1, MIB / 2, handles[0], &err), &err));
        late_stream = sides[1];
        um_access rest = {.block = late, .offset = MIB / 2, .size = MIB / 2, .write = true, .dense = true};
        UM_CHECK(ok(um_work_begin(late_stream, &rest, 1, &err), &err));
        UM_CHECK(
            ok(backend->ops->fill_bytes(backend, 0, um_block_ptr(late) + MIB / 2, 2, MIB / 2, handles[1], &err), &err));
        UM_CHECK(ok(um_work_end(late_stream, &rest, 1, false, &wait, &err), &err));
        if (again == 1) FAKE(fakecu_fail)("cuStreamWaitEvent", 1, 999, 0); /* then the host waits */
        UM_CHECK(ok(um_work_end(sides[0], &access, 1, false, &wait, &err), &err));
        UM_CHECK(!wait.needed && (again == 1) == (FAKE(fakecu_pending)(handles[1]) == 0));
        if (again == 2) {
            um_block_unref(late); /* whoever gets the memory is behind both */
            late = new_block(MIB);
            wait = fill(late, legacy, 3, false);
            FAKE(fakecu_run_all)();
            UM_CHECK(um_block_ptr(late)[0] == 3 && um_block_ptr(late)[MIB - 1] == 3);
        } else {
            wait_host(late);
            UM_CHECK(um_block_ptr(late)[0] == 1 && um_block_ptr(late)[MIB - 1] == 2);
        }
        wait_host(late);
        um_block_unref(late);
    }
    /* with nobody in between one order is enough */
    late = new_block(4096);
    um_wait wait = fill(late, sides[0], 1, false);
    unsigned long orders = FAKE(fakecu_calls)("stream_wait_event"), records = FAKE(fakecu_calls)("event_record");
    wait = fill(late, sides[1], 2, false);
    UM_CHECK(FAKE(fakecu_calls)("stream_wait_event") == orders + 1 &&
             FAKE(fakecu_calls)("event_record") == records + 1);
    /* the same stream: numbers do not go back */
    late_stream = sides[1];
    meanwhile = fill_late_on_another_stream; /* while the event behind this work is recorded */
    wait = fill(late, sides[1], 3, false);
    UM_CHECK(!wait.needed && meanwhile == NULL && late->sequence == sides[1]->issued);
    um_block_unref(late);
    for (int i = 0; i < 2; i++) {
        um_stream_unref(sides[i]);
        drop_handle(handles[i]);
    }
    stop_fake();
}

static void free_late(void) {
    um_error err = {0};
    um_wait wait;
    UM_CHECK(ok(um_device_export(late, NULL, &wait, &err), &err));
    um_block_unref(late);
}

/* Bytes freed by the program that something may still use. */
static uint64_t waiting(void) {
    um_memory_stats stats;
    um_pool_stats(ctx, UM_ALL_DEVICES, &stats);
    return stats.waiting_current;
}

static void fake_memory_freed_during_a_synchronise_waits_for_the_next(void) { /* rule 5 */
    UM_REQUIRE(start_fake(1));
    spy();
    um_error err = {0};
    size_t bytes;
    late = new_block(MIB);
    meanwhile = free_late;
    UM_CHECK(ok(um_context_synchronize(ctx, &err), &err));
    UM_CHECK(meanwhile == NULL && waiting() == MIB);
    UM_CHECK(ok(um_context_synchronize(ctx, &err), &err));
    UM_CHECK(waiting() == 0);

    late = new_block(MIB);
    meanwhile = free_late;
    UM_CHECK(ok(um_pool_trim(ctx, &bytes, &err), &err));
    UM_CHECK(meanwhile == NULL && waiting() == MIB && FAKE(fakecu_live)("managed") == 1);
    UM_CHECK(ok(um_pool_trim(ctx, &bytes, &err), &err));
    UM_CHECK(bytes >= MIB && FAKE(fakecu_live)("managed") == 0);
    stop_fake();
}

/* A request that what is at hand cannot serve looks whether freed memory has become free. */
static um_block *grow(void) {
    static size_t size = 20 * MIB;
    return new_block(size += 20 * MIB);
}

static void fake_freed_memory_is_polled(void) { /* rule 5 */
    UM_REQUIRE(start_fake(1));
    FAKE(fakecu_set_query_mode)(0); /* a query starts nothing */
    um_error err = {0};
    um_stream *legacy = get_stream(UM_STREAM_LEGACY);
    um_block *block = new_block(MIB), *other = new_block(MIB), *spares[5];
    um_wait wait = fill(block, legacy, 1, false);
    um_block_unref(block);
    spares[0] = grow(); /* records the event */
    UM_CHECK(waiting() == MIB);
    wait = fill(other, legacy, 2, false);
    spares[1] = grow();
    UM_CHECK(waiting() == MIB);
    while (FAKE(fakecu_pending)(1) > 1) FAKE(fakecu_step)(1); /* up to the event, and no more */
    spares[2] = grow();
    UM_CHECK(waiting() == 0);
    UM_CHECK(FAKE(fakecu_pending)(1) == 1);

    /* memory that umem does not free itself: an event that is done says nothing of later work */
    void *memory = FAKE(fakecu_device_alloc)(4096, 0);
    released = 0;
    UM_REQUIRE(ok(um_block_wrap(ctx, memory, 4096, 0, count_release, &released, &block, &err), &err));
    wait = fill(block, legacy, 3, false);
    um_block_unref(block);
    spares[3] = new_block(MIB);
    UM_CHECK(released == 0);
    wait = fill(other, legacy, 4, false);
    while (FAKE(fakecu_pending)(1) > 1) FAKE(fakecu_step)(1);
    spares[4] = new_block(MIB);
    UM_CHECK(released == 1 && !wait.needed);
    wait_host(other);
    UM_CHECK(um_block_ptr(other)[0] == 4);
    um_block_unref(other);
    for (int i = 0; i < 5; i++) um_block_unref(spares[i]);
    FAKE(fakecu_device_free)(memory);
    stop_fake();
}

static long pending_at_release;
static void note_pending(void *owner) {
    (void)owner;
    pending_at_release = FAKE(fakecu_pending)(FAKECU_ALL_STREAMS);
}

static void fake_other_memory_goes_back_when_work_on_it_is_done(void) { /* rule 5 */
    UM_REQUIRE(start_fake(1));
    um_error err = {0};
    um_block *block = NULL;
    um_block_unref(new_block(1)); /* starts the device's context; a free later would wait for all work */
    void *memory = FAKE(fakecu_device_alloc)(4096, 0);
    pending_at_release = -1;
    UM_REQUIRE(ok(um_block_wrap(ctx, memory, 4096, 0, note_pending, NULL, &block, &err), &err));
    um_wait wait = fill(block, get_stream(UM_STREAM_LEGACY), 1, false);
    um_block_unref(block);
    UM_CHECK(!wait.needed && pending_at_release == -1);
    stop(); /* the last chance */
    UM_CHECK(pending_at_release == 0);
    FAKE(fakecu_shutdown)();
}

/* --- rule 6 between threads --------------------------------------------------------------------------------------- */

static _Atomic(int) stage;

static void nap(void) { (void)usleep(1000); }

static void *launch(void *block) {
    um_error err = {0};
    stage = 1;
    um_wait wait = fill(block, get_stream(UM_STREAM_LEGACY), 7, false);
    stage = 2;
    UM_CHECK(ok(um_wait_run(&wait, &err), &err));
    return NULL;
}

static void fake_a_kernel_waits_for_the_host(void) { /* rule 6 */
    FAKE(fakecu_shutdown)();
    FAKE(fakecu_set_concurrent)(0);
    UM_REQUIRE(start("cuda"));
    um_error err = {0};
    um_block *block = new_block(4096);
    stage = 0;
    UM_REQUIRE(ok(um_host_hold(ctx, &err), &err));
    pthread_t thread;
    UM_REQUIRE(pthread_create(&thread, NULL, launch, block) == 0);
    while (stage == 0) nap();
    for (int i = 0; i < 50; i++) nap();
    UM_CHECK(stage == 1 && FAKE(fakecu_pending)(FAKECU_ALL_STREAMS) == 0);
    um_host_release(ctx);
    UM_CHECK(pthread_join(thread, NULL) == 0 && stage == 2);

    um_wait wait = fill(block, get_stream(UM_STREAM_LEGACY), 8, true);
    UM_CHECK(um_host_hold(ctx, &err) == UM_ERR_BUSY);
    UM_CHECK(ok(um_wait_run(&wait, &err), &err));
    UM_CHECK(ok(um_host_hold(ctx, &err), &err));
    um_host_release(ctx);
    um_block_unref(block);
    stop_fake();
}

static void *read_slowly(void *block) {
    um_error err = {0};
    int64_t shape = 16 * (int64_t)MIB, stride = 2;
    char *got = malloc((size_t)shape);
    stage = 1;
    UM_CHECK(ok(um_read(block, um_block_ptr(block), 1, &shape, &stride, 1, got, &err), &err));
    stage = 2;
    free(got);
    return NULL;
}

static void fake_a_kernel_waits_for_a_read(void) { /* rule 6: a touch of the memory during the fill would be a crash */
    FAKE(fakecu_shutdown)();
    FAKE(fakecu_set_concurrent)(0);
    UM_REQUIRE(start("cuda"));
    um_error err = {0};
    um_block *block = new_block(32 * MIB), *other = new_block(4096);
    memset(um_block_ptr(block), 1, 32 * MIB);
    stage = 0;
    pthread_t thread;
    UM_REQUIRE(pthread_create(&thread, NULL, read_slowly, block) == 0);
    while (stage == 0) nap();
    for (int i = 0; i < 3; i++) nap();
    um_wait wait = fill(other, get_stream(UM_STREAM_LEGACY), 7, false);
    for (int i = 0; i < 3; i++) nap();
    UM_CHECK(ok(um_wait_run(&wait, &err), &err));
    UM_CHECK(pthread_join(thread, NULL) == 0 && stage == 2);
    um_block_unref(block);
    um_block_unref(other);
    stop_fake();
}

int main(void) {
    UM_RUN(host_blocks);
    UM_RUN(host_reads);
    UM_RUN(host_wrapped);
    UM_RUN(host_fork_keeps_a_copy);
    UM_RUN(host_threads);
    if (!um_fake_open()) {
        printf("UMEM_CUDA_LIBRARY does not name the fake driver\n");
        return um_test_failures ? 1 : UM_TEST_SKIPPED;
    }
    UM_RUN(fake_blocks);
    UM_RUN(fake_reads_move_nothing);
    UM_RUN(fake_reads_of_large_regions);
    UM_RUN(fake_host_access_waits);
    UM_RUN(fake_views_make_work_complete);
    UM_RUN(fake_streams_are_ordered);
    UM_RUN(fake_freed_memory_waits);
    UM_RUN(fake_exports);
    UM_RUN(fake_homes);
    UM_RUN(fake_residency);
    UM_RUN(fake_discard_goes_with_a_prefetch);
    UM_RUN(fake_zero);
    UM_RUN(fake_fork_refuses);
    UM_RUN(fake_errors_may_be_ignored);
    UM_RUN(fake_without_concurrent_access);
    UM_RUN(fake_work_during_a_wait_is_not_done);
    UM_RUN(fake_work_of_two_threads_on_a_block);
    UM_RUN(fake_memory_freed_during_a_synchronise_waits_for_the_next);
    UM_RUN(fake_freed_memory_is_polled);
    UM_RUN(fake_other_memory_goes_back_when_work_on_it_is_done);
    UM_RUN(fake_a_kernel_waits_for_the_host);
    UM_RUN(fake_a_kernel_waits_for_a_read);
    um_fake_close();
    return um_test_result();
}
