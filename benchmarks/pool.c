/* Times the allocator with no Python around it; pool.py compiles and runs this. Each line of output is one figure of one turn, as JSON:
 * {"name": ..., "ns": nanoseconds of an allocation and a free} or {"name": ..., "value": ...}.
 *
 *     pool [TURNS [SCALE]]     SCALE divides the number of blocks and of repeats
 */
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/um_block.h"
#include "core/um_pool.h"

#define KIB     ((size_t)1 << 10)
#define MIB     ((size_t)1 << 20)
#define HOLES   ((size_t)65536)
#define LIVE    ((size_t)1000000)
#define WINDOW  ((size_t)1024) /* live blocks of which one after the other is replaced */
#define THREADS 8

typedef struct allocator {
    const char *name;
    void *(*take)(size_t size);
    void (*give)(void *);
} allocator;

static um_context *context;

static void open_context(void) {
    um_config config = {"host", NULL};
    um_error err;
    if (um_context_open(&config, &context, &err) == UM_OK) return;
    fprintf(stderr, "pool: %s\n", err.message);
    exit(1);
}

static void *pool_take(size_t size) {
    um_block *block;
    um_error err;
    if (um_block_new(context, size, 0, (um_location){UM_LOCATION_NONE, 0}, &block, &err) == UM_OK) return block;
    fprintf(stderr, "pool: %s\n", err.message);
    exit(1);
}

static void pool_give(void *block) { um_block_unref(block); }

static void *system_take(size_t size) {
    void *volatile ptr = malloc(size); /* volatile: or the compiler leaves the pair out */
    if (ptr) return ptr;
    fprintf(stderr, "pool: malloc refused %zu bytes\n", size);
    exit(1);
}

static void system_give(void *ptr) { free(ptr); }

static const allocator pool = {"umem", pool_take, pool_give}, system_malloc = {"malloc", system_take, system_give};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void put(const char *name, const char *who, const char *kind, double value) {
    printf("{\"name\": \"%s\", \"who\": \"%s\", \"%s\": %.6g}\n", name, who, kind, value);
    fflush(stdout);
}

static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* 256 bytes to 64 KiB, each power of two as often as any other. */
static size_t random_size(void) {
    size_t base = (size_t)256 << next_random() % 8;
    return base + next_random() % base;
}

/* --- what is measured ------------------------------------------------------------------------------------------------------ */

static void pairs(const char *name, const allocator *with, size_t size, size_t repeats) {
    for (size_t i = 0; i < 100; i++) with->give(with->take(size));
    double start = now();
    for (size_t i = 0; i < repeats; i++) with->give(with->take(size));
    put(name, with->name, "ns", (now() - start) / (double)repeats);
}

/* Sizes differ from one request to the next, and blocks are freed in another order than they were made. */
static void replacing(const char *name, const allocator *with, size_t repeats) {
    void *live[WINDOW];
    for (size_t i = 0; i < WINDOW; i++) live[i] = with->take(random_size());
    double start = now();
    for (size_t i = 0; i < repeats; i++) {
        size_t at = next_random() % WINDOW;
        with->give(live[at]);
        live[at] = with->take(random_size());
    }
    put(name, with->name, "ns", (now() - start) / (double)repeats);
    for (size_t i = 0; i < WINDOW; i++) with->give(live[i]);
}

static void **array_of(size_t count) {
    void **made = malloc(count * sizeof(void *));
    if (made) return made;
    fprintf(stderr, "pool: no memory\n");
    exit(1);
}

static void with_holes(size_t holes, size_t repeats) {
    size_t count = 2 * holes;
    void **blocks = array_of(count);
    for (size_t i = 0; i < count; i++) blocks[i] = pool_take(random_size());
    for (size_t i = 0; i < count; i += 2) pool_give(blocks[i]);
    pairs("4 KiB, holes", &pool, 4 * KIB, repeats);
    replacing("random sizes, holes", &pool, repeats / 8);
    um_memory_stats stats;
    um_pool_stats(context, UM_ALL_DEVICES, &stats);
    put("share of the held memory that is in use, holes", "umem", "value",
        (double)stats.allocated_current / (double)stats.reserved_current);
    for (size_t i = 1; i < count; i += 2) pool_give(blocks[i]);
    free(blocks);
}

static void with_live(size_t live, size_t repeats) {
    void **blocks = array_of(live);
    for (size_t i = 0; i < live; i++) blocks[i] = pool_take(KIB);
    pairs("4 KiB, live", &pool, 4 * KIB, repeats);
    for (size_t i = 0; i < live; i++) pool_give(blocks[i]);
    free(blocks);
}

/* Bytes that malloc has handed out. */
static double handed_out(void) {
    struct mallinfo2 info = mallinfo2();
    return (double)info.uordblks + (double)info.hblkhd;
}

/* A new context, since one keeps its bookkeeping for reuse. */
static void bookkeeping(size_t live) {
    open_context();
    pool_give(pool_take(KIB));
    void **blocks = array_of(live);
    double before = handed_out();
    for (size_t i = 0; i < live; i++) blocks[i] = pool_take(KIB);
    put("bookkeeping bytes of a live block", "umem", "value", (handed_out() - before) / (double)live);
    for (size_t i = 0; i < live; i++) pool_give(blocks[i]);
    free(blocks);
    um_context_unref(context);
}

/* --- threads --------------------------------------------------------------------------------------------------------------- */

typedef struct work {
    const allocator *with;
    size_t repeats;
    pthread_barrier_t *gate;
} work;

static void *work_main(void *arg) {
    work *mine = arg;
    mine->with->give(mine->with->take(4 * KIB));
    pthread_barrier_wait(mine->gate);
    for (size_t i = 0; i < mine->repeats; i++) mine->with->give(mine->with->take(4 * KIB));
    return NULL;
}

static void with_threads(const char *name, const allocator *with, unsigned count, size_t repeats) {
    pthread_t threads[THREADS];
    pthread_barrier_t gate;
    pthread_barrier_init(&gate, NULL, count + 1);
    work each = {with, repeats, &gate};
    um_memory_stats before, after;
    um_pool_stats(context, UM_ALL_DEVICES, &before);
    for (unsigned i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, work_main, &each) != 0) exit(1);
    pthread_barrier_wait(&gate);
    double start = now();
    for (unsigned i = 0; i < count; i++) pthread_join(threads[i], NULL);
    put(name, with->name, "ns", (now() - start) / (double)(count * repeats));
    pthread_barrier_destroy(&gate);
    um_pool_stats(context, UM_ALL_DEVICES, &after);
    if (with != &pool) return;
    uint64_t made = after.blocks_total - before.blocks_total;
    double lost = (double)after.blocks_current - (double)before.blocks_current +
                  (double)((uint64_t)count * (repeats + 1)) - (double)made;
    put("blocks lost by threads", "umem", "value", lost);
}

int main(int argc, char **argv) {
    int turns = argc > 1 ? atoi(argv[1]) : 5;
    size_t scale = argc > 2 ? (size_t)atoi(argv[2]) : 1;
    if (turns < 1 || scale < 1) return 2;
    bookkeeping(LIVE / scale);
    open_context();
    const allocator *both[] = {&pool, &system_malloc};
    for (int turn = 0; turn < turns; turn++) {
        for (int i = 0; i < 2; i++) {
            pairs("4 KiB", both[i], 4 * KIB, 1000000 / scale);
            pairs("1 MiB", both[i], MIB, 100000 / scale);
            pairs("64 MiB", both[i], 64 * MIB, 10000 / scale);
            replacing("random sizes", both[i], 200000 / scale);
            with_threads("4 KiB, one thread", both[i], 1, 1000000 / scale);
            with_threads("4 KiB, eight threads", both[i], THREADS, 500000 / scale);
        }
        with_holes(HOLES / scale, 1000000 / scale);
        with_live(LIVE / scale, 1000000 / scale);
    }
    um_context_unref(context);
    return 0;
}
