/* The pool over the host backend and over the CUDA backend with the fake driver: how requests are placed, limits, reuse, threads, failures,
 * and a long random trace with every invariant checked after each step. */
#define _GNU_SOURCE 1 /* RTLD_NEXT */
#include <dlfcn.h>
#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "um_core_test.h"

#define GIB ((size_t)1 << 30)

static const um_location gpu1 = {UM_LOCATION_DEVICE, 1};

/* --- memory for the bookkeeping that runs out ------------------------------------------------------------------------------ */

static _Thread_local long calls_until_failure; /* 0: never */
static _Thread_local bool call_failed;
extern char __executable_start, etext;

/* A new thread calls these before ThreadSanitizer knows of it. */
#define UNWATCHED __attribute__((no_sanitize_thread))

/* Whether this call, which returns to `caller`, is the one that fails. What libraries allocate never does. */
UNWATCHED static bool fails(const void *caller) {
    if (!calls_until_failure || (const char *)caller < &__executable_start || (const char *)caller >= &etext)
        return false;
    if (--calls_until_failure) return false;
    return call_failed = true;
}

UNWATCHED void *calloc(size_t count, size_t size) {
    static void *(*real)(size_t, size_t);
    if (!real) real = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc");
    return fails(__builtin_return_address(0)) ? NULL : real(count, size);
}

UNWATCHED void *realloc(void *ptr, size_t size) {
    static void *(*real)(void *, size_t);
    if (!real) real = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    return fails(__builtin_return_address(0)) ? NULL : real(ptr, size);
}

UNWATCHED void *aligned_alloc(size_t alignment, size_t size) {
    static void *(*real)(size_t, size_t);
    if (!real) real = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "aligned_alloc");
    return fails(__builtin_return_address(0)) ? NULL : real(alignment, size);
}

/* Valgrind puts its own functions in place of these. */
static bool calls_can_fail(void) {
    calls_until_failure = 1;
    call_failed = false;
    void *volatile ptr = calloc(1, 1);
    free(ptr);
    calls_until_failure = 0;
    return call_failed;
}

/* --- membarrier(2), as systems have it or not ------------------------------------------------------------------------------ */

static _Atomic(unsigned) refused;        /* bits: MEMBARRIER_CMD_ that fail */
static _Atomic(bool) registering_allows; /* and a registration ends that */
static _Atomic(int) fences;              /* those that the pool asked for */

long syscall(long number, ...) {
    static long (*real)(long, ...);
    if (!real) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    va_list list;
    va_start(list, number);
    long args[6];
    for (int i = 0; i < 6; i++) args[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_membarrier) {
        int command = (int)args[0];
        fences += command == MEMBARRIER_CMD_PRIVATE_EXPEDITED;
        if (command == MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED && registering_allows) refused = 0;
        if (refused & (unsigned)command) {
            errno = EPERM;
            return -1;
        }
    }
    return real(number, args[0], args[1], args[2], args[3], args[4], args[5]);
}

/* --- helpers ------------------------------------------------------------------------------------------------------------------ */

static um_status try_new(size_t size, int device, um_location home, um_block **out) {
    um_error err = {0};
    return um_block_new(ctx, size, device, home, out, &err);
}

static um_block *new_at(size_t size, int device, um_location home) {
    um_block *block = NULL;
    UM_CHECK(try_new(size, device, home, &block) == UM_OK);
    return block;
}

static um_block *new_block(size_t size) { return new_at(size, 0, nowhere); }

static um_memory_stats stats_of(int device) {
    um_memory_stats stats;
    um_pool_stats(ctx, device, &stats);
    return stats;
}

static size_t trim(void) {
    um_error err = {0};
    size_t released = 0;
    UM_CHECK(ok(um_pool_trim(ctx, &released, &err), &err));
    return released;
}

static void synchronize(void) {
    um_error err = {0};
    UM_CHECK(ok(um_context_synchronize(ctx, &err), &err));
}

/* Work that nobody waits for. */
static void put_fill(um_block *block, um_stream *stream, unsigned char value) {
    UM_CHECK(!fill(block, stream, value, true).needed);
}

static void export_block(um_block *block) {
    um_error err = {0};
    um_wait wait;
    UM_CHECK(ok(um_device_export(block, NULL, &wait, &err), &err));
    UM_CHECK(ok(um_wait_run(&wait, &err), &err));
}

static unsigned next_random(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static size_t held(const um_block *block) { return um_block_held(block); }

static bool is_aligned(const um_block *block, size_t alignment) {
    return ((uintptr_t)um_block_ptr(block) & (alignment - 1)) == 0;
}

/* --- how requests are placed ------------------------------------------------------------------------------------------------- */

static void check_classes(void) {
    unsigned seed = 5;
    for (int i = 0; i < 2000; i += um_test_step()) {
        size_t size = 1 + (((size_t)next_random(&seed) << 8) >> next_random(&seed) % 30) % (140 * MIB);
        um_block *block = new_block(size);
        UM_REQUIRE(block);
        UM_CHECK(held(block) >= size);
        UM_CHECK(size <= 2 * KIB ? held(block) - size < 256 : (held(block) - size) * 8 <= held(block));
        UM_CHECK(is_aligned(block, size >= 2 * MIB ? 2 * MIB : size >= 64 * KIB ? 4 * KIB : 256));
        um_block_unref(block);
    }
    UM_CHECK(healthy());
    (void)trim();
    UM_CHECK(stats_of(UM_ALL_DEVICES).reserved_current == 0);
}

static void check_extremes(void) {
    um_block *empty = new_block(0), *other = new_at(0, 0, host), *block = NULL;
    UM_CHECK(um_block_ptr(empty) != um_block_ptr(other) && um_location_equal(um_block_home(other), host));
    UM_CHECK(stats_of(UM_ALL_DEVICES).reserved_current == 0 && um_block_find(ctx, um_block_ptr(empty), 1) == NULL);
    um_block_unref(empty);
    um_block_unref(other);
    for (size_t size = SIZE_MAX; size > (size_t)1 << 47; size /= 2)
        for (size_t less = 0; less < 6; less++) {
            um_error err = {0};
            const size_t wanted = size - less * (less < 3 ? 1 : 2 * MIB - 1);
            UM_CHECK(um_block_new(ctx, wanted, 0, nowhere, &block, &err) == UM_ERR_OUT_OF_MEMORY);
            UM_CHECK(err.requested == wanted);
        }
    UM_CHECK(block == NULL && stats_of(UM_ALL_DEVICES).reserved_current == 0 && healthy());
}

static void check_slabs(void) {
    enum { COUNT = 3000 };
    um_block *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) blocks[i] = new_block(4 * KIB); /* 12 MB in slabs of 2, 2, 4 and 8 MiB */
    um_memory_stats stats = stats_of(UM_ALL_DEVICES);
    UM_CHECK(stats.slabs_current == 4 && stats.reserved_current == 16 * MIB);
    UM_CHECK(healthy());
    for (int i = 0; i < COUNT; i += 2) um_block_unref(blocks[i]);
    UM_CHECK(healthy() && trim() == 0); /* a hole in every page, and none is empty */
    for (int i = 1; i < COUNT; i += 2) um_block_unref(blocks[i]);
    UM_CHECK(healthy() && trim() == 16 * MIB && healthy());

    for (int i = 0; i < 100; i++) blocks[i] = new_block(MIB); /* 16, 16, 32 and 64 MiB */
    stats = stats_of(UM_ALL_DEVICES);
    UM_CHECK(stats.slabs_current == 4 && stats.reserved_current == 128 * MIB);
    for (int i = 0; i < 100; i++) um_block_unref(blocks[99 - i]);
    UM_CHECK(stats_of(UM_ALL_DEVICES).reserved_current >= 64 * MIB); /* some is kept … */
    um_block *large = new_block(60 * MIB);                           /* … as whole slabs again */
    UM_CHECK(stats_of(UM_ALL_DEVICES).slabs_total == stats.slabs_total);
    um_block_unref(large);
    (void)trim();

    um_pool_config config;
    um_pool_get_config(ctx, &config);
    const um_pool_config before = config;
    config.keep = 0;
    um_pool_set_config(ctx, &config);
    for (int i = 0; i < 100; i++) blocks[i] = new_block(MIB);
    for (int i = 0; i < 100; i++) um_block_unref(blocks[i]);
    UM_CHECK(stats_of(UM_ALL_DEVICES).reserved_current <= 128 * MIB); /* 64 MiB or less are always kept */
    (void)trim();
    config.keep = before.keep;
    config.max_split = MIB; /* from here on each block has its slab, and is reused whole */
    um_pool_set_config(ctx, &config);
    large = new_block(3 * MIB);
    const char *where = um_block_ptr(large);
    UM_CHECK(stats_of(UM_ALL_DEVICES).reserved_current == 3 * MIB);
    um_block_unref(large);
    um_block *smaller = new_block(2 * MIB);
    UM_CHECK(stats_of(UM_ALL_DEVICES).reserved_current == 5 * MIB);
    large = new_block(3 * MIB - 5);
    UM_CHECK(um_block_ptr(large) == where && um_block_find(ctx, where + 2 * MIB, 1) == large);
    um_block_unref(large);
    um_block_unref(large);
    um_block_unref(smaller);
    um_pool_set_config(ctx, &before);
    (void)trim();
}

static void check_limits(void) {
    um_block *block = NULL, *one, *two;
    um_pool_set_limit(ctx, UM_ALL_DEVICES, 100 * KIB); /* less than any slab: just enough is taken */
    one = new_block(60 * KIB);
    UM_CHECK(stats_of(UM_ALL_DEVICES).reserved_current <= 100 * KIB && healthy());
    UM_CHECK(try_new(64 * KIB, 0, nowhere, &block) == UM_ERR_OUT_OF_MEMORY);
    um_block_unref(one);
    two = new_block(99 * KIB); /* what the shard kept has gone back */
    UM_CHECK(stats_of(UM_ALL_DEVICES).reserved_current <= 100 * KIB && healthy());
    um_block_unref(two);
    um_pool_set_limit(ctx, UM_ALL_DEVICES,
                      4 * KIB); /* as much as the only block that was given: it is found where it is kept */
    um_block_unref(new_block(4 * KIB));
    um_block_unref(new_block(3 * KIB));
    UM_CHECK(stats_of(UM_ALL_DEVICES).reserved_current <= 4 * KIB && healthy());

    um_pool_set_limit(ctx, UM_ALL_DEVICES, SIZE_MAX);
    (void)trim();
    um_block *many[16];
    for (int i = 0; i < 16; i++) many[i] = new_block(1000); /* of a slab of 2 MiB */
    um_pool_set_limit(ctx, UM_ALL_DEVICES, 20000);          /* less than is held: what is in use counts instead */
    for (int i = 0; i < 16; i += 2) um_block_unref(many[i]);
    for (int i = 0; i < 16; i += 2) many[i] = new_block(1000);
    um_block *more[5] = {0};
    int granted = 0;
    while (granted < 5 && try_new(1000, 0, nowhere, &more[granted]) == UM_OK) granted++;
    UM_CHECK(granted == 4);
    for (int i = 0; i < granted; i++) um_block_unref(more[i]);
    for (int i = 0; i < 16; i++) um_block_unref(many[i]);
    um_pool_set_limit(ctx, 0, 0); /* of the device */
    UM_CHECK(try_new(1, 0, nowhere, &block) == UM_ERR_OUT_OF_MEMORY && block == NULL);
    UM_CHECK(stats_of(UM_ALL_DEVICES).reserved_current == 0 && healthy());
    um_pool_set_limit(ctx, 0, SIZE_MAX);
    um_pool_set_limit(ctx, UM_ALL_DEVICES, SIZE_MAX);
    um_block_unref(new_block(1));
    (void)trim();
}

static void host_requests(void) {
    UM_REQUIRE(start("host"));
    check_classes();
    check_extremes();
    check_slabs();
    check_limits();
    stop();
}

static void fake_requests(void) {
    UM_REQUIRE(start_fake(1));
    check_classes();
    check_extremes();
    check_slabs();
    check_limits();
    stop_fake();
}

static void host_reused_memory_is_not_taken_for_fresh(void) {
    UM_REQUIRE(start("host"));
    um_block *block = new_block(MIB);
    UM_CHECK(block->chunk.fresh);
    um_block_unref(block);
    block = new_block(MIB);
    UM_CHECK(!block->chunk.fresh);
    um_block_unref(block);
    block = new_block(100);
    UM_CHECK(block->chunk.fresh);
    um_block_unref(block);
    block = new_block(200);
    UM_CHECK(!block->chunk.fresh);
    um_block_unref(block);
    stop();
}

static void fake_homes_share_no_pages(void) {
    enum { COUNT = 400 };
    UM_REQUIRE(start_fake(2));
    const um_location homes[] = {nowhere, host, gpu0, gpu1};
    um_block *blocks[COUNT];
    for (int tight = 0; tight < 2; tight++) {
        if (tight) um_pool_set_limit(ctx, UM_ALL_DEVICES, 64 * KIB); /* slabs are one block then */
        for (int i = 0; i < COUNT; i++) {
            blocks[i] = NULL;
            (void)try_new(1 + (size_t)i * 7 % 1500, i / 4 % 2, homes[i % 4], &blocks[i]);
        }
        UM_CHECK(healthy());
        for (int i = 0; i < COUNT; i++)
            for (int j = 0; j < i; j++) {
                if (!blocks[i] || !blocks[j] || (i % 4 == j % 4 && i / 4 % 2 == j / 4 % 2)) continue;
                uintptr_t a = (uintptr_t)um_block_ptr(blocks[i]), b = (uintptr_t)um_block_ptr(blocks[j]);
                const size_t page =
                    tight ? 4 * KIB : 64 * KIB; /* the fake driver does not align less than a slab to 64 KiB */
                bool apart = (a + held(blocks[i]) - 1) / page < b / page || (b + held(blocks[j]) - 1) / page < a / page;
                UM_CHECK(apart ||
                         (tight && i % 4 == 0 && j % 4 == 0)); /* those without a home are the driver's to place */
            }
        for (int i = 0; i < COUNT; i++) um_block_unref(blocks[i]);
        (void)trim();
    }
    stop_fake();
}

static void fake_advice_is_for_blocks_with_pages_of_their_own(void) {
    UM_REQUIRE(start_fake(1));
    um_error err = {0};
    um_block *block = new_block(63 * KIB); /* takes 64 KiB between other small blocks */
    UM_CHECK(held(block) == 64 * KIB);
    UM_CHECK(um_set_home(block, host, &err) == UM_ERR_VALUE);
    UM_CHECK(um_advise(block, 0, 63 * KIB, UM_ADVICE_READ_MOSTLY, gpu0, &err) == UM_ERR_VALUE);
    um_block_unref(block);
    block = new_block(64 * KIB);
    UM_CHECK(ok(um_set_home(block, host, &err), &err));
    char *where = um_block_ptr(block);
    UM_CHECK(FAKE(fakecu_page_preferred)(where) == -1);
    um_block_unref(block); /* the advice goes with the block */
    UM_CHECK(FAKE(fakecu_page_preferred)(where) == -2 && FAKE(fakecu_page_accessed_by)(where) == 1);
    stop_fake();
}

static void fake_limits_of_devices(void) {
    UM_REQUIRE(start_fake(2));
    um_block *block = NULL, *first, *second;
    um_pool_set_limit(ctx, 1, 10 * MIB);
    um_pool_set_limit(ctx, UM_ALL_DEVICES, 40 * MIB);
    first = new_at(9 * MIB, 1, nowhere);
    UM_CHECK(try_new(2 * MIB, 1, nowhere, &block) == UM_ERR_OUT_OF_MEMORY);
    second = new_at(30 * MIB, 0, nowhere);
    UM_CHECK(try_new(2 * MIB, 0, nowhere, &block) == UM_ERR_OUT_OF_MEMORY);
    UM_CHECK(stats_of(1).reserved_peak <= 10 * MIB && stats_of(UM_ALL_DEVICES).reserved_peak <= 40 * MIB);
    UM_CHECK(stats_of(0).allocated_current == 30 * MIB && stats_of(1).allocated_current == 9 * MIB && healthy());
    um_block_unref(first);
    um_block_unref(second);
    stop_fake();
}

static void fake_slabs_go_back_past_the_threshold(void) {
    UM_REQUIRE(start_fake(1));
    um_pool_set_limit(ctx, UM_ALL_DEVICES, 100 * MIB);
    um_block_unref(new_block(40 * MIB));
    um_block *block = new_at(30 * MIB, 0, host); /* 70 of 100: what is empty stays */
    UM_CHECK(stats_of(0).reserved_current == 70 * MIB && stats_of(0).retries == 0);
    um_block *other = new_at(20 * MIB, 0, gpu0); /* past 80 */
    UM_CHECK(stats_of(0).reserved_current == 50 * MIB && stats_of(0).retries == 0);
    um_block_unref(block);
    um_block_unref(other);
    stop_fake();
}

/* --- reuse (rule 5) --------------------------------------------------------------------------------------------------------------- */

static void fake_reuse_is_in_order(void) {
    UM_REQUIRE(start_fake(1));
    um_error err = {0};
    um_backend *backend = um_context_backend(ctx);
    um_stream_handle handle = 0;
    um_stream *legacy = get_stream_of(0, UM_STREAM_LEGACY);
    UM_CHECK(ok(backend->ops->stream_create(backend, 0, &handle, &err), &err));
    um_stream *side = get_stream_of(0, handle);
    const size_t sizes[] = {100, 60 * KIB, MIB, 3 * MIB, 130 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        um_block *block = new_block(sizes[i]);
        const char *where = um_block_ptr(block);
        put_fill(block, legacy, 1);
        um_block_unref(block);
        const unsigned long records = FAKE(fakecu_calls)("event_record"),
                            orders = FAKE(fakecu_calls)("stream_wait_event");
        block = new_block(sizes[i]); /* on the same stream: nothing has to be recorded */
        UM_CHECK(um_block_ptr(block) == where);
        put_fill(block, legacy, 2);
        UM_CHECK(FAKE(fakecu_calls)("event_record") == records && FAKE(fakecu_calls)("stream_wait_event") == orders);
        um_block_unref(block);
        block = new_block(sizes[i]); /* on another: behind an event */
        UM_CHECK(um_block_ptr(block) == where);
        put_fill(block, side, 3);
        UM_CHECK(FAKE(fakecu_calls)("stream_wait_event") == orders + 1);
        um_block_unref(block);
        block = new_block(sizes[i]); /* the host waits */
        UM_CHECK(um_block_ptr(block) == where);
        wait_host(block);
        memset(um_block_ptr(block), 4, 100);
        FAKE(fakecu_run_all)();
        UM_CHECK(um_block_ptr(block)[0] == 4 && um_block_ptr(block)[99] == 4);
        um_block_unref(block);
        UM_CHECK(healthy());
    }
    um_stream_unref(side);
    UM_CHECK(ok(backend->ops->stream_destroy(backend, 0, handle, &err), &err));
    stop_fake();
}

static void fake_exported_memory_waits_for_a_synchronise(void) {
    UM_REQUIRE(start_fake(1));
    const size_t sizes[] = {100, 60 * KIB, MIB, 130 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        um_block *block = new_block(sizes[i]), *others[40];
        const char *where = um_block_ptr(block);
        put_fill(block, get_stream_of(0, UM_STREAM_LEGACY), 1);
        export_block(block);
        um_block_unref(block);
        UM_CHECK(stats_of(0).waiting_current >= sizes[i] && healthy());
        FAKE(fakecu_run_all)(); /* that umem's own work is done says nothing */
        for (int j = 0; j < (i < 3 ? 40 : 1); j++) {
            others[j] = new_block(sizes[i]);
            UM_CHECK(um_block_ptr(others[j]) != where);
        }
        for (int j = 0; j < (i < 3 ? 40 : 1); j++) um_block_unref(others[j]);
        synchronize();
        UM_CHECK(stats_of(0).waiting_current == 0 && healthy());
        (void)trim();
    }
    UM_CHECK(stats_of(0).reserved_current == 0);
    stop_fake();
}

static void fake_pending_memory_forces_no_synchronise(void) {
    UM_REQUIRE(start_fake(1));
    um_stream *legacy = get_stream_of(0, UM_STREAM_LEGACY);
    um_block *block = new_block(MIB), *large[3];
    for (int i = 0; i < 3; i++) large[i] = new_block(128 * MIB);
    for (int i = 0; i < 3; i++) put_fill(large[i], legacy, 1);
    for (int i = 0; i < 3; i++) um_block_unref(large[i]); /* pending, and much of it; only the block below waits */
    export_block(block);
    um_block_unref(block);
    const unsigned long synchronised = FAKE(fakecu_calls)("ctx_synchronize");
    um_block_unref(new_block(2 * MIB));
    UM_CHECK(FAKE(fakecu_calls)("ctx_synchronize") == synchronised && FAKE(fakecu_pending)(FAKECU_ALL_STREAMS) > 0);
    stop_fake();
}

static int released;
static void count_release(void *owner) { released += owner == &released; }

static void fake_wrapped_memory_is_released_once(void) {
    UM_REQUIRE(start_fake(1));
    um_error err = {0};
    um_block_unref(new_block(1)); /* starts the device's context */
    char *memory = FAKE(fakecu_device_alloc)(4096, 0);
    released = 0;
    for (int round = 1; round <= 3; round++) {
        um_block *block = NULL;
        UM_REQUIRE(ok(um_block_wrap(ctx, memory, 4096, 0, count_release, &released, &block, &err), &err));
        UM_CHECK(um_block_find(ctx, memory + 5, 5) == block && um_block_find(ctx, memory + 4000, 97) == NULL);
        um_block_unref(block);
        put_fill(block, get_stream_of(0, UM_STREAM_LEGACY), 1);
        um_block_unref(block);
        UM_CHECK(released == round - 1 && um_block_find(ctx, memory, 1) == NULL && healthy());
        synchronize();
        UM_CHECK(released == round && healthy());
        synchronize();
        (void)trim();
        UM_CHECK(released == round);
    }
    FAKE(fakecu_device_free)(memory);
    stop_fake();
}

static void fake_residency_of_a_longer_life(void) {
    UM_REQUIRE(start_fake(1));
    um_error err = {0};
    unsigned char states[32];
    um_stream *legacy = get_stream_of(0, UM_STREAM_LEGACY);
    um_block *first = new_block(1); /* and others of its size beside it: what follows does not begin a page */
    for (int small = 0; small < 2; small++) {
        const size_t shorter = small ? 61441 : 8 * 4096 * 8 + 1, longer = small ? 65500 : 9 * 4096 * 8 - 1;
        um_block *block = new_block(shorter);
        const char *where = um_block_ptr(block);
        put_fill(block, legacy, 1);
        um_block_unref(block);
        block = new_block(longer);
        UM_CHECK(um_block_ptr(block) == where);
        put_fill(block, legacy, 2);
        FAKE(fakecu_run_all)();
        const size_t last = longer - 1;
        UM_CHECK(ok(um_residency_scan(block, last, 1, states, &err), &err));
        UM_CHECK(states[0] == UM_PAGE_DEVICE);
        um_block_unref(block);
    }
    um_block_unref(first);
    stop_fake();
}

/* --- what runs out ----------------------------------------------------------------------------------------------------------------- */

static um_backend_ops spied;
static const um_backend_ops *plain;
static long allocs_until_failure;
static long live_slabs, pending_at_free;
static _Atomic(bool) frees_fail;

static um_status spied_mem_alloc(um_backend *backend, size_t size, int device, um_location home, void **out,
                                 um_error *err) {
    if (allocs_until_failure && --allocs_until_failure == 0)
        return um_error_set(err, UM_ERR_CUDA, "no memory for a test");
    um_status status = plain->mem_alloc(backend, size, device, home, out, err);
    live_slabs += status == UM_OK;
    return status;
}

static um_status spied_mem_free(um_backend *backend, void *ptr, size_t size, int device, um_error *err) {
    live_slabs--;
    if (um_context_is_cuda(ctx)) pending_at_free = FAKE(fakecu_pending)(FAKECU_ALL_STREAMS);
    um_status status = plain->mem_free(backend, ptr, size, device, err);
    return frees_fail ? um_error_set(err, UM_ERR_CUDA, "a free that fails for a test") : status;
}

static void spy(void) {
    plain = um_context_backend(ctx)->ops;
    spied = *plain;
    spied.mem_alloc = spied_mem_alloc;
    spied.mem_free = spied_mem_free;
    um_context_backend(ctx)->ops = &spied;
    allocs_until_failure = live_slabs = 0;
}

/* Something of everything; stops at the first failure. */
static um_status use_everything(int devices, um_block **blocks, int count) {
    const size_t sizes[] = {0, 100, 3000, 60 * KIB, 64 * KIB, MIB, 3 * MIB, 130 * MIB};
    const um_location homes[] = {nowhere, host};
    static char memory[64];
    um_error err = {0};
    for (int i = 0; i < count; i++) {
        um_status status = i % 17 == 16 ? um_block_wrap(ctx, memory, sizeof memory, 0, NULL, NULL, &blocks[i], &err)
                                        : try_new(sizes[i % 8], i / 8 % devices, homes[i / 16 % 2], &blocks[i]);
        if (status != UM_OK) return status;
    }
    return UM_OK;
}

static void check_failures(const char *backend, bool of_backend) {
    enum { COUNT = 40 };
    long n = 0;
    bool failed = of_backend || calls_can_fail();
    if (!failed) return;
    while (failed && n < 400) {
        if (strcmp(backend, "cuda") == 0)
            UM_REQUIRE(start_fake(2));
        else
            UM_REQUIRE(start(backend));
        spy();
        um_block *blocks[COUNT] = {0};
        n++;
        call_failed = false;
        if (of_backend)
            allocs_until_failure = n;
        else
            calls_until_failure = n;
        um_status status = use_everything(2, blocks, COUNT);
        failed = of_backend ? !allocs_until_failure : call_failed;
        allocs_until_failure = calls_until_failure = 0;
        UM_CHECK(status == UM_OK || failed);
        UM_CHECK(status == UM_OK || status == (of_backend ? UM_ERR_CUDA : UM_ERR_NO_MEMORY));
        UM_CHECK(healthy());
        for (int i = 0; i < COUNT; i++) um_block_unref(blocks[i]);
        UM_CHECK(stats_of(UM_ALL_DEVICES).allocated_current == 0 && stats_of(UM_ALL_DEVICES).blocks_current == 0);
        memset(blocks, 0, sizeof blocks);
        UM_CHECK(use_everything(2, blocks, COUNT) == UM_OK); /* as if nothing had happened */
        for (int i = 0; i < COUNT; i++) um_block_unref(blocks[i]);
        frees_fail = n % 3 == 0;
        (void)trim();
        frees_fail = false;
        UM_CHECK(live_slabs == 0 && stats_of(UM_ALL_DEVICES).reserved_current == 0);
        stop();
        if (strcmp(backend, "cuda") == 0) UM_CHECK(FAKE(fakecu_live)("all") == 0);
    }
    UM_CHECK(!failed && n > 5);
}

static void host_bookkeeping_runs_out(void) { check_failures("host", false); }

/* A slab has come, and then there is no struct left to cut a block from it. */
static void host_bookkeeping_of_a_slab_runs_out(void) {
    for (int left = 0; left < 63; left++)
        for (long n = 1; n < 8; n++) {
            UM_REQUIRE(start("host"));
            spy();
            um_block *empty[63], *block = NULL;
            for (int i = left; i < 63; i++) empty[i] = new_block(0); /* of 63 structs that are made at a time */
            calls_until_failure = n;
            um_status status = try_new(100, 0, nowhere, &block);
            calls_until_failure = 0;
            UM_CHECK(status == UM_OK || (status == UM_ERR_NO_MEMORY && live_slabs == 0));
            UM_CHECK(stats_of(UM_ALL_DEVICES).slabs_current == (uint64_t)live_slabs && healthy());
            if (status == UM_OK) um_block_unref(block);
            for (int i = left; i < 63; i++) um_block_unref(empty[i]);
            stop();
        }
}

static void fake_bookkeeping_runs_out(void) { check_failures("cuda", false); }
static void fake_work_is_done_at_close(void) {
    UM_REQUIRE(start_fake(1));
    spy();
    um_block *block = new_block(100);
    put_fill(block, get_stream_of(0, UM_STREAM_LEGACY), 1);
    um_block_unref(block); /* kept by a shard, its work pending */
    UM_CHECK(FAKE(fakecu_pending)(FAKECU_ALL_STREAMS) == 1);
    pending_at_free = -1;
    um_context_unref(ctx);
    UM_CHECK(pending_at_free == 0 && FAKE(fakecu_live)("all") == 0);
    FAKE(fakecu_shutdown)();
}

static void host_memory_runs_out(void) { check_failures("host", true); }
static void fake_memory_runs_out(void) { check_failures("cuda", true); }

/* The driver refuses a whole slab, and has room for the block. */
static void fake_little_memory_is_enough(void) {
    FAKE(fakecu_shutdown)();
    FAKE(fakecu_set_managed_limit)(3 * MIB);
    UM_REQUIRE(start("cuda"));
    um_block *block = new_block(2 * MIB + 100 * KIB), *small = new_block(100), *other = NULL;
    UM_CHECK(healthy());
    UM_CHECK(try_new(MIB, 0, nowhere, &other) == UM_ERR_OUT_OF_MEMORY);
    um_block_unref(block);
    other = new_block(MIB);
    um_block_unref(other);
    um_block_unref(small);
    stop_fake();
}

/* --- a long random trace ----------------------------------------------------------------------------------------------------------- */

enum { MOST = 600 };

typedef struct item {
    um_block *block;
    int device;
    int byte; /* what all of it holds, as the last work on it wrote; -1: nothing certain */
} item;

typedef struct trace {
    unsigned seed;
    item items[MOST];
    int count, devices;
    um_stream *streams[4]; /* 0, 1: legacy ones of the devices; 2, 3: others of device 0 */
    size_t limits[3];      /* of all, of device 0, of device 1 */
    bool below[3];         /* what is held has been within that since it was set */
} trace;

static size_t random_size(trace *t) {
    unsigned choice = next_random(&t->seed) % 100, value = next_random(&t->seed);
    if (choice < 2) return 0;
    if (choice < 55) return 1 + value % 4096;
    if (choice < 75) return 1 + value % (70 * KIB);
    if (choice < 92) return 1 + value % MIB;
    if (choice < 98) return 1 + value % (6 * MIB);
    return 1 + (size_t)value * 16 % (150 * MIB);
}

static void *unref_elsewhere(void *block) {
    um_block_unref(block);
    return NULL;
}

static void check_contents(item *at) {
    size_t size = um_block_size(at->block);
    if (at->byte < 0 || !size) return;
    wait_host(at->block);
    const char *bytes = um_block_ptr(at->block);
    UM_CHECK(bytes[0] == (char)at->byte && bytes[size / 2] == (char)at->byte && bytes[size - 1] == (char)at->byte);
}

static void step_new(trace *t) {
    const um_location homes[] = {nowhere, nowhere, nowhere, host, gpu0, gpu1};
    if (t->count == MOST) return;
    item *at = &t->items[t->count];
    at->device = (int)(next_random(&t->seed) % (unsigned)t->devices);
    size_t size = random_size(t);
    um_status status = try_new(size, at->device, homes[next_random(&t->seed) % 6], &at->block);
    UM_CHECK(status == UM_OK ||
             (status == UM_ERR_OUT_OF_MEMORY && (t->limits[0] & t->limits[1] & t->limits[2]) != SIZE_MAX));
    if (status != UM_OK) return;
    at->byte = -1;
    t->count++;
    um_memory_stats all = stats_of(UM_ALL_DEVICES);
    UM_CHECK(all.reserved_current <= t->limits[0] || all.allocated_current <= t->limits[0] || !size);
    if (next_random(&t->seed) % 4 || size > MIB) return;
    wait_host(at->block); /* what an earlier life of the memory still had to do must not come after this */
    at->byte = (int)(next_random(&t->seed) % 256);
    memset(um_block_ptr(at->block), at->byte, size);
}

static void step_free(trace *t) {
    if (!t->count) return;
    int index = (int)(next_random(&t->seed) % (unsigned)t->count);
    item *at = &t->items[index];
    check_contents(at);
    if (next_random(&t->seed) % 60) {
        um_block_unref(at->block);
    } else {
        pthread_t thread;
        UM_REQUIRE(pthread_create(&thread, NULL, unref_elsewhere, at->block) == 0);
        UM_CHECK(pthread_join(thread, NULL) == 0);
    }
    *at = t->items[--t->count];
}

/* Work, hand-outs and look-ups. */
static void step_use(trace *t) {
    if (!t->count) return;
    item *at = &t->items[next_random(&t->seed) % (unsigned)t->count];
    size_t size = um_block_size(at->block);
    unsigned what = next_random(&t->seed) % 10;
    if (size) {
        um_block *found = um_block_find(ctx, um_block_ptr(at->block) + next_random(&t->seed) % size, 1);
        UM_CHECK(found == at->block);
        um_block_unref(found);
    }
    if (t->devices == 1 || !size || size > 2 * MIB) return;
    if (what == 0) {
        export_block(at->block);
    } else if (what < 8) {
        const int of_first[] = {0, 2, 3};
        at->byte = (int)(next_random(&t->seed) % 256);
        put_fill(at->block, t->streams[at->device ? 1 : of_first[what % 3]], (unsigned char)at->byte);
    } else {
        (void)FAKE(fakecu_step)(FAKECU_ALL_STREAMS);
    }
}

static void set_limit(trace *t) {
    int which = (int)(next_random(&t->seed) % (unsigned)(t->devices + 1));
    int device = which ? which - 1 : UM_ALL_DEVICES;
    size_t limit = SIZE_MAX;
    if (next_random(&t->seed) % 2)
        limit = (size_t)stats_of(device).reserved_current / 64 * (32 + next_random(&t->seed) % 64);
    um_pool_set_limit(ctx, device, limit);
    t->limits[which] = limit;
    t->below[which] = false;
}

static void step_rarely(trace *t) {
    switch (next_random(&t->seed) % 4) {
    case 0: (void)trim(); break;
    case 1: synchronize(); break;
    case 2: set_limit(t); break;
    default:
        for (int half = t->count / 2; t->count > half;) step_free(t);
    }
}

static void check_step(trace *t) {
    UM_REQUIRE(healthy());
    for (int which = 0; which <= t->devices; which++) {
        bool within = stats_of(which ? which - 1 : UM_ALL_DEVICES).reserved_current <= t->limits[which];
        UM_CHECK(within || !t->below[which]);
        t->below[which] = t->below[which] || within;
    }
}

static void run_trace(trace *t) {
    const char *text = getenv("UMEM_TEST_OPERATIONS"); /* a million takes minutes */
    long operations = (text ? atol(text) : 30000) / um_test_step();
    for (int i = 0; i < 3; i++) t->limits[i] = SIZE_MAX;
    const int failures = um_test_failures;
    for (long i = 0; i < operations && um_test_failures == failures; i++) {
        unsigned what = next_random(&t->seed) % 1000, more = i / 1000 % 2 ? 480 : 400;
        if (what < more)
            step_new(t);
        else if (what < 850)
            step_free(t);
        else if (what < 996)
            step_use(t);
        else
            step_rarely(t);
        check_step(t);
        if (um_test_failures != failures) printf("%s: at step %ld\n", um_test_name, i);
    }
    while (t->count) step_free(t);
    for (int device = UM_ALL_DEVICES; device < t->devices; device++) um_pool_set_limit(ctx, device, SIZE_MAX);
    (void)trim();
    um_memory_stats stats = stats_of(UM_ALL_DEVICES);
    UM_CHECK(stats.reserved_current == 0 && stats.allocated_current == 0 && stats.waiting_current == 0);
}

static void host_trace(void) {
    UM_REQUIRE(start("host"));
    static trace t = {.seed = 11, .devices = 1};
    run_trace(&t);
    stop();
}

static void fake_trace(void) {
    UM_REQUIRE(start_fake(2));
    um_error err = {0};
    um_backend *backend = um_context_backend(ctx);
    static trace t = {.seed = 12, .devices = 2};
    um_stream_handle handles[2];
    for (int i = 0; i < 2; i++) {
        t.streams[i] = get_stream_of(i, UM_STREAM_LEGACY);
        UM_CHECK(ok(backend->ops->stream_create(backend, 0, &handles[i], &err), &err));
        t.streams[i + 2] = get_stream_of(0, handles[i]);
    }
    run_trace(&t);
    for (int i = 0; i < 2; i++) {
        um_stream_unref(t.streams[i + 2]);
        UM_CHECK(ok(backend->ops->stream_destroy(backend, 0, handles[i], &err), &err));
    }
    stop_fake();
}

/* --- threads --------------------------------------------------------------------------------------------------------------------- */

enum { THREADS = 8, SLOTS = 64 };

static _Atomic(um_block *) slots[SLOTS]; /* blocks on their way to whoever frees them */
static _Atomic(long) handed_out;

static void *share(void *seed_value) {
    unsigned seed = (unsigned)(uintptr_t)seed_value;
    const um_location homes[] = {nowhere, nowhere, nowhere, host};
    const int devices = um_context_is_cuda(ctx) ? 2 : 1;
    for (int i = 0; i < 4000; i += um_test_step()) {
        unsigned choice = next_random(&seed) % 100;
        size_t size =
            choice < 70 ? 1 + next_random(&seed) % 3000 : 1 + next_random(&seed) % (choice < 97 ? 70 * KIB : 3 * MIB);
        int device = (int)(next_random(&seed) % (unsigned)devices);
        um_block *block = NULL;
        if (try_new(size, device, homes[next_random(&seed) % 4], &block) != UM_OK) return (void *)1;
        handed_out++;
        um_block *found = um_block_find(ctx, um_block_ptr(block) + size / 2, 1);
        if (found != block) return (void *)2;
        um_block_unref(found);
        if (devices == 2 && choice % 8 == 0) put_fill(block, get_stream_of(device, UM_STREAM_LEGACY), 1);
        if (devices == 2 && choice % 32 == 1) export_block(block);
        block = atomic_exchange(&slots[next_random(&seed) % SLOTS], block);
        if (block && um_block_size(block) == 0) return (void *)3;
        um_block_unref(block);
        if (next_random(&seed) % 500 == 0) (void)trim();
        if (next_random(&seed) % 100 == 0) {
            um_memory_stats stats = stats_of(UM_ALL_DEVICES);
            if (stats.allocated_current > stats.reserved_current ||
                stats.blocks_current > (uint64_t)handed_out + THREADS)
                return (void *)4;
        }
    }
    return NULL;
}

static void run_many_threads(int count, void *(*body)(void *)) {
    pthread_t threads[4 * UM_SHARDS];
    for (int i = 0; i < count; i++)
        UM_REQUIRE(pthread_create(&threads[i], NULL, body, (void *)(uintptr_t)(i + 1)) == 0);
    for (int i = 0; i < count; i++) {
        void *result = NULL;
        UM_CHECK(pthread_join(threads[i], &result) == 0 && result == NULL);
        if (result) printf("%s: thread %d: %zu\n", um_test_name, i, (size_t)(uintptr_t)result);
    }
}

static void run_threads(void *(*body)(void *)) { run_many_threads(THREADS, body); }

static void check_threads(void) {
    handed_out = 0;
    run_threads(share);
    UM_CHECK(healthy());
    uint64_t left = 0;
    for (int i = 0; i < SLOTS; i++) left += slots[i] != NULL;
    um_memory_stats stats = stats_of(UM_ALL_DEVICES);
    UM_CHECK(stats.blocks_current == left && stats.blocks_total == (uint64_t)handed_out);
}

static void *drop_slots(void *from) {
    for (uintptr_t i = (uintptr_t)from - 1; i < SLOTS; i += THREADS) um_block_unref(atomic_exchange(&slots[i], NULL));
    return NULL;
}

static void host_threads(void) {
    UM_REQUIRE(start("host"));
    check_threads();
    um_context_unref(ctx); /* blocks live on, and the last free closes */
    run_threads(drop_slots);
    ctx = NULL;
}

static void fake_threads(void) {
    UM_REQUIRE(start_fake(2));
    check_threads();
    um_context_unref(ctx);
    run_threads(drop_slots);
    ctx = NULL;
    UM_CHECK(FAKE(fakecu_live)("all") == 0);
    FAKE(fakecu_shutdown)();
}

/* The context closes once, when the last of several threads that free at the same time is done. */
static pthread_barrier_t barrier;
static void *free_at_once(void *from) {
    (void)pthread_barrier_wait(&barrier);
    if ((uintptr_t)from == THREADS) um_context_unref(ctx);
    return drop_slots(from);
}

static void fake_closes_among_threads(void) {
    UM_REQUIRE(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
    for (int round = 0; round < 60; round += um_test_step()) {
        UM_REQUIRE(start_fake(1));
        for (int i = 0; i < SLOTS; i++)
            slots[i] = new_at(i % 9 ? (size_t)i : 64 * KIB + (size_t)i, 0, i % 5 ? nowhere : host);
        run_threads(free_at_once);
        UM_CHECK(FAKE(fakecu_live)("all") == 0);
        FAKE(fakecu_shutdown)();
    }
    (void)pthread_barrier_destroy(&barrier);
}

/* --- shards that are biased to a thread -------------------------------------------------------------------------------------------- */

enum { PAIRS = 100000 };

/* Shards of a device whose owner is a thread. */
static int owned_shards(int device) {
    const um_shard *shards = ctx->shards[device];
    int count = 0;
    for (int i = 0; shards && i < UM_SHARDS; i++) count += shards[i].owner && shards[i].owner != UM_SHARED;
    return count;
}

static _Atomic(int) working;

/* Allocates and frees in its shard as fast as it can, in two bins. */
static void *work(void *arg) {
    (void)arg;
    um_block *blocks[8] = {0};
    void *result = NULL;
    for (int i = 0; i < PAIRS; i += um_test_step()) {
        um_block **at = &blocks[i % 8];
        um_block_unref(*at);
        if (try_new(i % 3 ? 4 * KIB : 100, 0, nowhere, at) != UM_OK) result = (void *)1;
        handed_out++;
        if (*at) um_block_ptr(*at)[0] = (char)i;
    }
    for (int i = 0; i < 8; i++) um_block_unref(blocks[i]);
    working--;
    return result;
}

/* Visits all shards while others work in theirs. */
static void *visit(void *number) {
    for (unsigned i = (unsigned)(uintptr_t)number; working; i++) {
        um_memory_stats stats = stats_of(UM_ALL_DEVICES);
        if (stats.blocks_current > 8 * THREADS) return (void *)1;
        if (stats.blocks_current != stats.small.blocks_current) return (void *)2;
        if (i % 4 == 0) (void)trim();
    }
    return NULL;
}

static void *work_or_visit(void *number) { return (uintptr_t)number <= 2 ? work(number) : visit(number); }

static void check_visitors(int rounds) {
    for (int round = 0; round < rounds; round += um_test_step()) {
        UM_REQUIRE(start("host"));
        working = 2;
        handed_out = 0;
        run_many_threads(4, work_or_visit);
        UM_CHECK(healthy());
        UM_CHECK(owned_shards(0) == (ctx->biased ? 2 : 0)); /* visitors take no shard away */
        um_memory_stats stats = stats_of(UM_ALL_DEVICES);
        UM_CHECK(stats.blocks_current == 0 && stats.blocks_total == (uint64_t)handed_out);
        stop();
    }
}

static void host_visitors_among_owners(void) { check_visitors(8); }

/* Each with a shard by number that others have, too. */
static void host_more_threads_than_shards(void) {
    UM_REQUIRE(start("host"));
    handed_out = 0;
    run_many_threads(3 * UM_SHARDS, share);
    UM_CHECK(owned_shards(0) == 0); /* but for the first thread's of all, which the main thread has not taken here */
    UM_CHECK(healthy() && stats_of(UM_ALL_DEVICES).blocks_total == (uint64_t)handed_out);
    run_threads(drop_slots);
    UM_CHECK(stats_of(UM_ALL_DEVICES).blocks_current == 0);
    stop();
}

static void *allocate_a_few(void *arg) {
    (void)arg;
    um_block *blocks[10];
    for (int i = 0; i < 10; i++)
        if (try_new(4 * KIB, 0, nowhere, &blocks[i]) != UM_OK) return (void *)1;
    for (int i = 0; i < 10; i++) um_block_unref(blocks[i]);
    return NULL;
}

static void *allocate_large(void *arg) {
    (void)arg;
    um_block *block = NULL;
    if (try_new(MIB, 0, nowhere, &block) != UM_OK) return (void *)1;
    um_block_unref(block);
    return NULL;
}

static void host_a_shard_outlives_its_owner(void) {
    UM_REQUIRE(start("host"));
    um_block_unref(new_block(100)); /* the main thread's */
    const um_shard *shards = ctx->shards[0];
    const uint64_t mine = shards[0].owner;
    UM_CHECK(mine == (ctx->biased ? UM_SHARDS : UM_SHARED));
    for (int i = 1; i < UM_SHARDS; i++) run_many_threads(1, allocate_a_few);
    UM_CHECK(owned_shards(0) == (ctx->biased ? UM_SHARDS : 0));
    for (int i = 1; i < UM_SHARDS; i++) {
        UM_CHECK(owned_shards(0) == (ctx->biased ? UM_SHARDS + 1 - i : 0));
        run_many_threads(1, i % 2 ? allocate_a_few : allocate_large); /* takes over the shard of one that has ended */
    }
    UM_CHECK(owned_shards(0) == (ctx->biased ? 1 : 0) && shards[0].owner == mine);
    run_many_threads(UM_SHARDS, allocate_a_few);
    UM_CHECK(shards[0].owner == mine); /* the first thread's is nobody else's */
    UM_CHECK(healthy() && stats_of(UM_ALL_DEVICES).small.blocks_total == 1 + 10 * (2 * UM_SHARDS - 1 + UM_SHARDS / 2));
    stop();
}

static void *look(void *arg) {
    (void)stats_of(UM_ALL_DEVICES);
    working--;
    return arg;
}
static void *take_all(void *arg) {
    (void)trim();
    working--;
    return arg;
}
static void *take_over(void *arg) {
    for (int i = 0; i < UM_SHARDS - 1; i++) run_many_threads(1, allocate_a_few);
    working--;
    return arg;
}

static void host_visitors_wait_for_the_owner(void) {
    UM_REQUIRE(start("host"));
    run_many_threads(1, allocate_a_few);
    void *(*const visits[])(void *) = {look, take_all, take_over};
    for (int i = 0; i < 3 && ctx->biased; i++) {
        UM_CHECK(owned_shards(0) == 1);
        um_shard *shard = ctx->shards[0];
        while (!shard->owner) shard++;
        shard->busy = true; /* as if the system had stopped the owner inside */
        working = 1;
        pthread_t thread;
        UM_REQUIRE(pthread_create(&thread, NULL, visits[i], NULL) == 0);
        (void)usleep(50000);
        UM_CHECK(working == 1);
        shard->busy = false;
        UM_CHECK(pthread_join(thread, NULL) == 0 && working == 0);
    }
    stop();
}

static void fake_visits_fence_seldom(void) {
    UM_REQUIRE(start_fake(2));
    um_block *blocks[2] = {new_at(100, 0, nowhere), new_at(100, 1, nowhere)};
    fences = 0;
    (void)stats_of(UM_ALL_DEVICES);
    (void)trim();
    UM_CHECK(fences == 0); /* nobody else is there */
    for (int i = 0; i < 3; i++) run_many_threads(1, allocate_a_few);
    fences = 0;
    (void)stats_of(UM_ALL_DEVICES);
    UM_CHECK(fences == (ctx->biased ? 1 : 0)); /* for all shards */
    fences = 0;
    um_block_unref(blocks[0]);
    um_block_unref(blocks[1]);
    um_block_unref(new_block(MIB));
    UM_CHECK(fences == 0);
    UM_CHECK(trim() > 0);
    UM_CHECK(fences <= (ctx->biased ? 3 + 2 : 0)); /* one for each shard, and those for the figures */
    stop_fake();
}

static void host_membarrier_is_not_there(void) {
    refused = MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED | MEMBARRIER_CMD_PRIVATE_EXPEDITED;
    fences = 0;
    check_visitors(1);
    UM_REQUIRE(start("host"));
    UM_CHECK(!ctx->biased);
    check_threads();
    run_threads(drop_slots);
    UM_CHECK(fences == 0 && owned_shards(0) == 0);
    stop();
    refused = 0;
}

/* A sandbox forbids it when it has been used for a while. */
static void host_membarrier_comes_to_be_refused(void) {
    for (int again = 0; again < 2; again++) { /* once it is allowed when the process registers again */
        UM_REQUIRE(start("host"));
        run_many_threads(2, allocate_a_few);
        UM_CHECK(owned_shards(0) == (ctx->biased ? 2 : 0));
        registering_allows = again;
        refused = MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED | MEMBARRIER_CMD_PRIVATE_EXPEDITED;
        for (int i = 0; i < UM_SHARDS; i++) { /* one after the other */
            um_shard_lock(&ctx->shards[0][i]);
            um_shard_unlock(&ctx->shards[0][i]);
        }
        UM_CHECK(owned_shards(0) == (again && ctx->biased ? 2 : 0));
        refused = MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED | MEMBARRIER_CMD_PRIVATE_EXPEDITED;
        working = 1;
        pthread_t thread;
        UM_REQUIRE(pthread_create(&thread, NULL, work, NULL) == 0);
        void *result = visit(NULL); /* and all at once */
        UM_CHECK(!result);
        UM_CHECK(pthread_join(thread, &result) == 0 && !result);
        (void)stats_of(UM_ALL_DEVICES);
        UM_CHECK(owned_shards(0) == (again && ctx->biased ? 3 : 0));
        UM_CHECK(refused == 0 || !again || !ctx->biased);
        run_many_threads(2, allocate_a_few);
        stop();
        refused = 0;
        registering_allows = false;
    }
}

static pthread_barrier_t turn;

static void *allocate_twice(void *arg) {
    (void)arg;
    void *result = allocate_a_few(NULL);
    (void)pthread_barrier_wait(&turn);
    (void)pthread_barrier_wait(&turn);
    if (allocate_a_few(NULL)) result = (void *)1;
    working--;
    return result;
}

static void host_an_owner_waits_for_a_visitor(void) {
    UM_REQUIRE(start("host"));
    UM_REQUIRE(pthread_barrier_init(&turn, NULL, 2) == 0);
    working = 1;
    pthread_t thread;
    UM_REQUIRE(pthread_create(&thread, NULL, allocate_twice, NULL) == 0);
    (void)pthread_barrier_wait(&turn);
    for (int i = 0; i < UM_SHARDS; i++) um_shard_lock(&ctx->shards[0][i]);
    (void)pthread_barrier_wait(&turn);
    (void)usleep(50000);
    UM_CHECK(working == 1);
    for (int i = 0; i < UM_SHARDS; i++) um_shard_unlock(&ctx->shards[0][i]);
    void *result = NULL;
    UM_CHECK(pthread_join(thread, &result) == 0 && result == NULL && working == 0);
    (void)pthread_barrier_destroy(&turn);
    stop();
}

/* --- forks ------------------------------------------------------------------------------------------------------------------------- */

static _Atomic(bool) stopping;

/* Makes what a fork has to find in a known state. */
static void *allocate_on_all_devices(void *arg) {
    (void)arg;
    unsigned seed = 9;
    while (!stopping) {
        um_block *block = NULL;
        if (try_new(1 + next_random(&seed) % 100000, (int)(next_random(&seed) % 2), nowhere, &block) != UM_OK)
            return (void *)1;
        um_block_unref(block);
    }
    return NULL;
}

static void host_forks_among_threads(void) {
    UM_REQUIRE(start("host"));
    pthread_t thread;
    stopping = false;
    UM_REQUIRE(pthread_create(&thread, NULL, allocate_on_all_devices, NULL) == 0);
    um_block *block = new_block(100);
    um_block_ptr(block)[0] = 5;
    for (int i = 0; i < 50; i += um_test_step()) {
        pid_t child = fork();
        if (child == 0) {
            um_block *mine = new_block(100);
            bool fine = um_block_ptr(block)[0] == 5 && mine;
            um_block_unref(mine);
            um_block_unref(block);
            um_test_exit(fine ? 0 : 1);
        }
        int result = -1;
        UM_CHECK(waitpid(child, &result, 0) == child && WIFEXITED(result) && WEXITSTATUS(result) == 0);
    }
    stopping = true;
    void *result = NULL;
    UM_CHECK(pthread_join(thread, &result) == 0 && result == NULL);
    um_block_unref(block);
    stop();
}

static _Atomic(bool) *about_to_look; /* um_shard.busy of a thread that a fork catches between its write and its look */
static void catch_thread(void) {
    if (about_to_look) *about_to_look = true;
}
static void let_thread_go(void) {
    if (about_to_look) *about_to_look = false;
}

/* All that a thread can do with shards of threads that are not here, some of which held blocks that nobody has now. */
static bool child_can_work(void) {
    bool fine = true;
    (void)alarm(60); /* rather than to wait for them for ever */
    const uint64_t before = stats_of(UM_ALL_DEVICES).blocks_total;
#ifdef __SANITIZE_THREAD__
    enum { NEW_THREADS = 0 }; /* which would be the end of such a child */
#else
    enum { NEW_THREADS = UM_SHARDS };
#endif
    for (int i = 0; i < 3; i++) {
        fine = fine && !allocate_a_few(NULL);
        (void)trim();
        run_many_threads(NEW_THREADS, allocate_a_few);
    }
    const um_memory_stats stats = stats_of(UM_ALL_DEVICES);
    return fine && um_test_failures == 0 && stats.blocks_total == before + 3 * 10 * (1 + NEW_THREADS);
}

static void check_child(void) {
    pid_t child = fork();
    if (child == 0) um_test_exit(child_can_work() ? 0 : 1);
    int result = -1;
    UM_CHECK(waitpid(child, &result, 0) == child && WIFEXITED(result) && WEXITSTATUS(result) == 0);
}

static void host_forks_while_threads_are_in_their_shards(void) {
    enum { WORKERS = 3 };
    UM_REQUIRE(start("host"));
    run_many_threads(1, allocate_a_few);
    for (int i = 0; i < UM_SHARDS && ctx->biased; i++)
        if (ctx->shards[0][i].owner && ctx->shards[0][i].owner != UM_SHARED) about_to_look = &ctx->shards[0][i].busy;
    UM_CHECK(about_to_look || !ctx->biased);
    check_child();
    about_to_look = NULL;
    pthread_t threads[WORKERS];
    stopping = false;
    for (int i = 0; i < WORKERS; i++) UM_REQUIRE(pthread_create(&threads[i], NULL, allocate_on_all_devices, NULL) == 0);
    for (int i = 0; i < 20; i += um_test_step()) check_child();
    stopping = true;
    for (int i = 0; i < WORKERS; i++) {
        void *result = NULL;
        UM_CHECK(pthread_join(threads[i], &result) == 0 && result == NULL);
    }
    stop();
}

static int closed;
static void (*plain_close)(um_backend *);
static void count_close(um_backend *backend) {
    closed++;
    plain_close(backend);
}

static void fake_a_child_lets_go_of_everything(void) {
    UM_REQUIRE(start_fake(1));
    um_block *small = new_block(100), *large = new_block(MIB), *exported = new_block(200);
    export_block(exported);
    spy();
    plain_close = plain->close;
    spied.close = count_close;
    pid_t child = fork();
    if (child == 0) {
        um_context_unref(ctx);
        um_block_unref(small);
        um_block_unref(exported);
        bool early = closed > 0;
        um_block_unref(large);
        um_test_exit(!early && closed == 1 && live_slabs == 0 ? 0 : 1);
    }
    int result = -1;
    UM_CHECK(waitpid(child, &result, 0) == child && WIFEXITED(result) && WEXITSTATUS(result) == 0);
    um_block_unref(small);
    um_block_unref(large);
    um_block_unref(exported);
    stop_fake();
}

int main(void) {
    /* Before the pool's own, so that those of a fork are called while the pool has its locks. */
    if (pthread_atfork(catch_thread, let_thread_go, NULL) != 0) return 1;
    UM_RUN(host_requests);
    UM_RUN(host_reused_memory_is_not_taken_for_fresh);
    UM_RUN(host_bookkeeping_runs_out);
    UM_RUN(host_bookkeeping_of_a_slab_runs_out);
    UM_RUN(host_memory_runs_out);
    UM_RUN(host_trace);
    UM_RUN(host_threads);
    UM_RUN(host_visitors_among_owners);
    UM_RUN(host_more_threads_than_shards);
    UM_RUN(host_a_shard_outlives_its_owner);
    UM_RUN(host_visitors_wait_for_the_owner);
    UM_RUN(host_an_owner_waits_for_a_visitor);
    UM_RUN(host_membarrier_is_not_there);
    UM_RUN(host_membarrier_comes_to_be_refused);
    UM_RUN(host_forks_among_threads);
    UM_RUN(host_forks_while_threads_are_in_their_shards);
    if (!um_fake_open()) {
        printf("UMEM_CUDA_LIBRARY does not name the fake driver\n");
        return um_test_failures ? 1 : UM_TEST_SKIPPED;
    }
    UM_RUN(fake_requests);
    UM_RUN(fake_homes_share_no_pages);
    UM_RUN(fake_advice_is_for_blocks_with_pages_of_their_own);
    UM_RUN(fake_limits_of_devices);
    UM_RUN(fake_slabs_go_back_past_the_threshold);
    UM_RUN(fake_reuse_is_in_order);
    UM_RUN(fake_exported_memory_waits_for_a_synchronise);
    UM_RUN(fake_pending_memory_forces_no_synchronise);
    UM_RUN(fake_wrapped_memory_is_released_once);
    UM_RUN(fake_residency_of_a_longer_life);
    UM_RUN(fake_work_is_done_at_close);
    UM_RUN(fake_bookkeeping_runs_out);
    UM_RUN(fake_memory_runs_out);
    UM_RUN(fake_little_memory_is_enough);
    UM_RUN(fake_trace);
    UM_RUN(fake_threads);
    UM_RUN(fake_closes_among_threads);
    UM_RUN(fake_visits_fence_seldom);
    UM_RUN(fake_a_child_lets_go_of_everything);
    um_fake_close();
    return um_test_result();
}
