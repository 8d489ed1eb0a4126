/* Freed small blocks, kept by groups of threads: what most allocations take and most frees give, in a few nanoseconds. */
#define _GNU_SOURCE 1 /* syscall */
#include <linux/membarrier.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/um_internal.h"

#define BIN_BYTES ((size_t)256 << 10) /* a bin keeps about as much … */
#define BIN_MIN   4u
#define BIN_MAX   64u
#define SPINS     64       /* looks at a taken lock before the thread lets others run */
#define PAUSE     10000000 /* nanoseconds: thousands of times what a write takes to get from one processor to another */

/* --- the lock -------------------------------------------------------------------------------------------------------------- */

/* A shard's lock is biased to the first thread whose shard it is, the owner:
 *
 *   owner    busy = true; then looks at `locked`: inside when that is false and the lock still its own. Out: busy = false.
 *   others   locked = true, by exchange; then, while the lock is biased, make every thread pass a full fence and wait until busy is false.
 *
 * Both write one flag and then look at the other's. The processor may let the owner's look overtake its write; membarrier(2) makes up for
 * that: when it returns, each thread has been at a point where all accesses before in program order are done and none after is begun. An
 * owner that missed `locked` looked before that point, so that busy, written before the look, is seen. One that looks later sees `locked`,
 * and backs off. So the owner's half needs to be kept from the compiler only. What was done inside is seen by whoever comes next through
 * busy or locked, each released on the way out and acquired on the way in.
 *
 * Whoever holds `locked` may change the owner: from none to a thread, and from a thread to UM_SHARED when a second thread has the same
 * shard. The old owner finds that out by its second look at `owner`, which comes after the one at `locked`; it may still write busy for a
 * moment, but nobody looks at that any more. That is why no shard has a second owner. */

#ifdef __SANITIZE_THREAD__ /* knows nothing of membarrier */
static bool fence_threads(void) { return false; }
static bool can_fence_threads(void) { return false; }
#else
static bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

/* Once per process. With several threads it lasts until all processors have been through the scheduler, which is milliseconds. */
static bool can_fence_threads(void) { return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED); }

/* A full fence in every thread of the process. What was possible once can be refused later only to a process that was restored from a
 * checkpoint, which has to register again, and to one that has put a filter over its system calls. False: it was, and this took the time
 * in which any processor has finished its writes. */
static bool fence_threads(void) {
    if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return true;
    if (can_fence_threads() && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return true;
    nanosleep(&(struct timespec){.tv_nsec = PAUSE}, NULL);
    return false;
}
#endif

/* The calling thread's number, which no other thread ever has; 0 before it needs one. At a fixed place of the thread's: a look-up of it
 * would be a tenth of an allocation. */
static _Thread_local uint64_t this_thread __attribute__((tls_model("initial-exec")));

/* A thread's shard is its number modulo UM_SHARDS. The first thread, in which most programs do most of their work, shares its own with no
 * later one. */
static uint64_t number_thread(void) {
    static _Atomic(uint64_t) threads;
    uint64_t before = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);
    return this_thread = UM_SHARDS + (before ? before + (before - 1) / (UM_SHARDS - 1) : 0);
}

static inline uint64_t thread_number(void) { return this_thread ? this_thread : number_thread(); }

static void wait_while(const _Atomic(bool) *flag) {
    for (unsigned tries = 1; atomic_load_explicit(flag, memory_order_acquire); tries++)
        if (tries % SPINS == 0) sched_yield();
}

static uint64_t owner_of(const um_shard *shard) { return atomic_load_explicit(&shard->owner, memory_order_relaxed); }

static bool is_anothers(const um_shard *shard) {
    uint64_t owner = owner_of(shard);
    return owner && owner != UM_SHARED && owner != this_thread;
}

/* Takes `locked`. Returns whether an owner may still be inside. */
static bool shut(um_shard *shard) {
    while (atomic_exchange_explicit(&shard->locked, true, memory_order_acquire)) wait_while(&shard->locked);
    return is_anothers(shard);
}

/* After the fence. Without one the shard is shared from then on, so that this is waited for once. */
static bool let_owner_out(um_shard *shard) {
    if (is_anothers(shard)) wait_while(&shard->busy);
    return false;
}
static bool end_bias(um_shard *shard) {
    if (!is_anothers(shard)) return false;
    wait_while(&shard->busy);
    atomic_store_explicit(&shard->owner, UM_SHARED, memory_order_relaxed);
    return false;
}

void um_shard_lock(um_shard *shard) {
    if (shut(shard)) (void)(fence_threads() ? let_owner_out : end_bias)(shard);
}

void um_shard_unlock(um_shard *shard) { atomic_store_explicit(&shard->locked, false, memory_order_release); }

/* Makes the shard, which is the calling thread's by number, its own or shared. */
static void claim(um_shard *shard, uint64_t me) {
    um_shard_lock(shard);
    atomic_store_explicit(&shard->owner, owner_of(shard) ? UM_SHARED : me, memory_order_relaxed);
    um_shard_unlock(shard);
}

static bool is_claimed(const um_shard *shard, uint64_t me) {
    return owner_of(shard) == me || owner_of(shard) == UM_SHARED;
}

/* Not inlined, for the sake of those that call it: the registers that it needs would be saved there each time. */
__attribute__((noinline)) static void enter_slowly(um_shard *shard, uint64_t me) {
    if (!is_claimed(shard, me)) claim(shard, me);
    um_shard_lock(shard);
}

/* Locks the calling thread's shard. Returns whether as its owner. */
static inline bool enter(um_shard *shard, uint64_t me) {
    if (owner_of(shard) == me) {
        atomic_store_explicit(&shard->busy, true, memory_order_relaxed);
        atomic_signal_fence(memory_order_seq_cst); /* the other half is fence_threads */
        if (!atomic_load_explicit(&shard->locked, memory_order_acquire) && owner_of(shard) == me) return true;
        atomic_store_explicit(&shard->busy, false, memory_order_release);
    }
    bool shared = owner_of(shard) == UM_SHARED; /* and stays so: there is nobody to wait for but who has `locked` */
    if (!shared || atomic_exchange_explicit(&shard->locked, true, memory_order_acquire)) enter_slowly(shard, me);
    return false;
}

static inline void leave(um_shard *shard, bool as_owner) {
    atomic_store_explicit(as_owner ? &shard->busy : &shard->locked, false, memory_order_release);
}

static void init_lock(const um_context *ctx, um_shard *shard) {
    atomic_store_explicit(&shard->owner, ctx->biased ? 0 : UM_SHARED, memory_order_relaxed);
    atomic_store_explicit(&shard->busy, false, memory_order_relaxed);
    um_shard_unlock(shard);
}

/* --- shards ----------------------------------------------------------------------------------------------------------------- */

void um_cache_init(um_context *ctx) { ctx->biased = can_fence_threads(); }

/* Bytes of the blocks in a bin: the size of its class. */
static size_t bin_size(unsigned bin) {
    unsigned level = bin / UM_HEAP_CLASSES, index = bin % UM_HEAP_CLASSES;
    return (level ? (size_t)(UM_HEAP_CLASSES + index) << (level - 1) : index) * UM_SMALL_GRANULE;
}

static void set_limits(um_shard *shard) {
    for (unsigned bin = 1; bin < UM_SMALL_CLASSES; bin++) {
        size_t count = BIN_BYTES / bin_size(bin);
        shard->bins[bin].limit = count < BIN_MIN ? BIN_MIN : count > BIN_MAX ? BIN_MAX : (unsigned)count;
    }
}

static um_shard *make_shards(um_context *ctx, int device) {
    um_shard *made = aligned_alloc(_Alignof(um_shard), UM_SHARDS * sizeof(um_shard));
    if (!made) return NULL;
    memset((void *)made, 0, UM_SHARDS * sizeof(um_shard));
    for (int i = 0; i < UM_SHARDS; i++) {
        init_lock(ctx, &made[i]);
        set_limits(&made[i]);
    }
    pthread_mutex_lock(&ctx->lock); /* who holds it finds the same shards when it lets them go */
    um_shard *first = atomic_load(&ctx->shards[device]);
    if (!first) atomic_store(&ctx->shards[device], made);
    pthread_mutex_unlock(&ctx->lock);
    if (!first) return made;
    free(made);
    return first;
}

/* Whether any of the calls returned true. */
static bool for_each_shard(um_context *ctx, bool (*call)(um_shard *)) {
    bool any = false;
    for (int device = 0; device < UM_MAX_DEVICES; device++) {
        um_shard *shards = atomic_load(&ctx->shards[device]);
        for (int i = 0; shards && i < UM_SHARDS; i++) any |= call(&shards[i]);
    }
    return any;
}

void um_cache_lock_all_locked(um_context *ctx) {
    if (for_each_shard(ctx, shut)) (void)for_each_shard(ctx, fence_threads() ? let_owner_out : end_bias);
}

static bool unlock(um_shard *shard) {
    um_shard_unlock(shard);
    return false;
}

void um_cache_unlock_all_locked(um_context *ctx) { (void)for_each_shard(ctx, unlock); }

/* A thread of the parent may have been about to look at `locked`, and so may have left busy true. */
void um_cache_unlock_all_in_child_locked(um_context *ctx) {
    um_cache_init(ctx);
    for (int device = 0; device < UM_MAX_DEVICES; device++) {
        um_shard *shards = atomic_load(&ctx->shards[device]);
        for (int i = 0; shards && i < UM_SHARDS; i++) init_lock(ctx, &shards[i]);
    }
}

um_shard *um_cache_shard(um_context *ctx, int device) {
    um_shard *shards = atomic_load_explicit(&ctx->shards[device], memory_order_acquire);
    if (!shards) shards = make_shards(ctx, device);
    if (!shards) return NULL;
    uint64_t me = thread_number();
    um_shard *shard = &shards[me % UM_SHARDS];
    if (!is_claimed(shard, me)) claim(shard, me);
    return shard;
}

void um_shard_count_new_locked(um_shard *shard, size_t size) {
    um_counts *counts = &shard->counts;
    counts->allocated += size;
    counts->blocks_allocated++;
    int64_t bytes = (int64_t)(counts->allocated - counts->freed);
    int64_t blocks = (int64_t)(counts->blocks_allocated - counts->blocks_freed);
    if (bytes > shard->bytes_peak) shard->bytes_peak = bytes;
    if (blocks > shard->blocks_peak) shard->blocks_peak = blocks;
}

void um_shard_count_free_locked(um_shard *shard, size_t size) {
    shard->counts.freed += size;
    shard->counts.blocks_freed++;
}

/* --- bins --------------------------------------------------------------------------------------------------------------------- */

/* Number of the size class, as um_heap_class_of counts them for the small heaps, of a request of 0 < size < UM_SMALL_LIMIT. */
static unsigned bin_of(size_t size) {
    size_t units = (size - 1) / UM_SMALL_GRANULE + 1;
    if (units <= UM_HEAP_CLASSES) return (unsigned)units;
    unsigned log = 63u - (unsigned)__builtin_clzll(units - 1); /* units - 1 lies in [2^log, 2^(log + 1)) */
    return (log - 3) * UM_HEAP_CLASSES + (unsigned)((units - 1) >> (log - 3)) + 1;
}

um_block *um_cache_take(um_context *ctx, size_t size, int device) {
    um_shard *shards = atomic_load_explicit(&ctx->shards[device], memory_order_acquire);
    if (!shards) return NULL;
    uint64_t me = thread_number();
    um_shard *shard = &shards[me % UM_SHARDS];
    unsigned bin = bin_of(size);
    bool as_owner = enter(shard, me);
    um_block *block = shard->bins[bin].first;
    if (block) {
        shard->bins[bin].first = (um_block *)block->chunk.next;
        shard->bins[bin].count--;
        um_shard_count_new_locked(shard, size);
    }
    leave(shard, as_owner);
    if (!block) return NULL;
    if (size > block->size) block->pages_known = false;
    block->size = size;
    atomic_store_explicit(&block->refs, 1, memory_order_release); /* from here on um_block_find may see it */
    return block;
}

bool um_cache_put(um_block *block) {
    um_context *ctx = block->ctx;
    um_shard *shards = atomic_load_explicit(&ctx->shards[block->device], memory_order_acquire);
    if (!shards) return false;
    uint64_t me = thread_number();
    um_shard *shard = &shards[me % UM_SHARDS];
    unsigned bin = (unsigned)block->bin;
    bool kept = false;
    atomic_store_explicit(&block->viewed_forever, false, memory_order_relaxed);
    atomic_store_explicit(&block->writable_forever, false, memory_order_relaxed);
    bool as_owner = enter(shard, me);
    /* Once nobody holds the context the last free has to close it, which is not done here. After the lock is let go, the context may be
     * gone. */
    if (shard->bins[bin].count < shard->bins[bin].limit && !um_takes_detour(ctx, UM_DETOUR_CLOSES | UM_DETOUR_LOG)) {
        um_shard_count_free_locked(shard, block->size);
        block->chunk.fresh = false;
        block->chunk.next = (um_chunk *)shard->bins[bin].first;
        shard->bins[bin].first = block;
        shard->bins[bin].count++;
        kept = true;
    }
    leave(shard, as_owner);
    return kept;
}

void um_cache_fill(um_shard *shard, unsigned bin, um_list list) {
    um_shard_lock(shard);
    for (um_block *block; (block = um_list_take_first(&list));) {
        block->chunk.next = (um_chunk *)shard->bins[bin].first;
        shard->bins[bin].first = block;
        shard->bins[bin].count++;
    }
    um_shard_unlock(shard);
}

/* Takes all but the first `keep` blocks of a bin, as a list by chunk.next. The shard is locked. */
static um_block *take_rest(um_shard *shard, unsigned bin, unsigned keep) {
    um_block *rest = shard->bins[bin].first, *last = NULL;
    for (unsigned kept = 0; kept < keep && rest; kept++) {
        last = rest;
        rest = (um_block *)rest->chunk.next;
    }
    if (last)
        last->chunk.next = NULL;
    else
        shard->bins[bin].first = NULL;
    if (shard->bins[bin].count > keep) shard->bins[bin].count = keep;
    return rest;
}

static void settle(um_context *ctx, um_block *blocks) {
    for (um_block *block = blocks, *next; block; block = next) {
        next = (um_block *)block->chunk.next;
        pthread_mutex_lock(&ctx->lock);
        block->freed_epoch = ctx->syncs_started;
        um_stream *dead = um_arena_settle_locked(ctx, block);
        pthread_mutex_unlock(&ctx->lock);
        um_stream_destroy(dead);
    }
}

void um_cache_spill(um_context *ctx, um_shard *shard, unsigned bin, unsigned keep) {
    um_shard_lock(shard);
    um_block *rest = take_rest(shard, bin, keep);
    um_shard_unlock(shard);
    settle(ctx, rest);
}

void um_cache_empty(um_context *ctx, um_shard *shard) {
    um_block *blocks[UM_SMALL_CLASSES];
    um_shard_lock(shard); /* once: a fence of all threads, perhaps */
    for (unsigned bin = 0; bin < UM_SMALL_CLASSES; bin++) blocks[bin] = take_rest(shard, bin, 0);
    um_shard_unlock(shard);
    for (unsigned bin = 0; bin < UM_SMALL_CLASSES; bin++) settle(ctx, blocks[bin]);
}
