/* Freed small blocks, kept by groups of threads: what most allocations take and most frees give, in a few nanoseconds. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "core/um_internal.h"

#define BIN_BYTES ((size_t)256 << 10) /* a bin keeps about as much … */
#define BIN_MIN   4u
#define BIN_MAX   64u
#define SPINS     64 /* looks at a taken lock before the thread lets others run */

/* --- the lock -------------------------------------------------------------------------------------------------------------- */

void um_shard_lock_slowly(um_shard *shard) {
    unsigned tries = 0;
    do {
        while (atomic_load_explicit(&shard->locked, memory_order_relaxed))
            if (++tries % SPINS == 0) sched_yield();
    } while (atomic_exchange_explicit(&shard->locked, true, memory_order_acquire));
}

/* --- shards ----------------------------------------------------------------------------------------------------------------- */

static unsigned thread_number(void) {
    static _Atomic(unsigned) last;
    /* At a fixed place of the thread's: a look-up of it would be a tenth of an allocation. */
    static _Thread_local unsigned number __attribute__((tls_model("initial-exec")));
    if (!number) number = atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) % UM_SHARDS + 1;
    return number - 1;
}

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
    for (int i = 0; i < UM_SHARDS; i++) set_limits(&made[i]);
    pthread_mutex_lock(&ctx->lock); /* who holds it finds the same shards when it lets them go */
    um_shard *first = atomic_load(&ctx->shards[device]);
    if (!first) atomic_store(&ctx->shards[device], made);
    pthread_mutex_unlock(&ctx->lock);
    if (!first) return made;
    free(made);
    return first;
}

static void for_each_shard(um_context *ctx, void (*call)(um_shard *)) {
    for (int device = 0; device < UM_MAX_DEVICES; device++) {
        um_shard *shards = atomic_load(&ctx->shards[device]);
        for (int i = 0; shards && i < UM_SHARDS; i++) call(&shards[i]);
    }
}

static void unlock_shard(um_shard *shard) { um_shard_unlock(shard); }

void um_cache_lock_all_locked(um_context *ctx) { for_each_shard(ctx, um_shard_lock); }
void um_cache_unlock_all_locked(um_context *ctx) { for_each_shard(ctx, unlock_shard); }

um_shard *um_cache_shard(um_context *ctx, int device) {
    um_shard *shards = atomic_load_explicit(&ctx->shards[device], memory_order_acquire);
    if (!shards) shards = make_shards(ctx, device);
    return shards ? &shards[thread_number()] : NULL;
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
    um_shard *shard = &shards[thread_number()];
    unsigned bin = bin_of(size);
    um_shard_lock(shard);
    um_block *block = shard->bins[bin].first;
    if (block) {
        shard->bins[bin].first = (um_block *)block->chunk.next;
        shard->bins[bin].count--;
        um_shard_count_new_locked(shard, size);
    }
    um_shard_unlock(shard);
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
    um_shard *shard = &shards[thread_number()];
    unsigned bin = (unsigned)block->bin;
    bool kept = false;
    atomic_store_explicit(&block->viewed_forever, false, memory_order_relaxed);
    atomic_store_explicit(&block->writable_forever, false, memory_order_relaxed);
    um_shard_lock(shard);
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
    um_shard_unlock(shard);
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

/* All but the first `keep` blocks of a bin, as a list by chunk.next. */
static um_block *take_rest(um_shard *shard, unsigned bin, unsigned keep) {
    um_shard_lock(shard);
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
    um_shard_unlock(shard);
    return rest;
}

void um_cache_spill(um_context *ctx, um_shard *shard, unsigned bin, unsigned keep) {
    for (um_block *block = take_rest(shard, bin, keep), *next; block; block = next) {
        next = (um_block *)block->chunk.next;
        pthread_mutex_lock(&ctx->lock);
        block->freed_epoch = ctx->syncs_started;
        um_stream *dead = um_arena_settle_locked(ctx, block);
        pthread_mutex_unlock(&ctx->lock);
        um_stream_destroy(dead);
    }
}
