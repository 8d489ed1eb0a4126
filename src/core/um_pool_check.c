/* The invariant walker of builds with UM_DEBUG: what the heaps, lists, indices and counts say of each other. */
#include "core/um_internal.h"

#if UM_DEBUG

/* What the walk has come across. */
typedef struct tally {
    size_t live, cached, pending, waiting; /* blocks of slabs */
    uint64_t live_bytes[UM_MAX_DEVICES];   /* asked for */
    uint64_t waiting_bytes[UM_MAX_DEVICES];
    uint64_t slab_bytes[UM_MAX_DEVICES];
    size_t live_blocks[UM_MAX_DEVICES], slabs[UM_MAX_DEVICES];
    size_t used_chunks, slab_count, idle;
    const char *wrong; /* the first thing that is */
} tally;

static void expect(tally *sum, bool holds, const char *otherwise) {
    if (!holds && !sum->wrong) sum->wrong = otherwise;
}

static void walk_slab(um_context *ctx, const um_arena *arena, const um_slab *slab, tally *sum) {
    const um_pages *pages = slab->owner_data;
    sum->slab_count++;
    sum->slabs[arena->device]++;
    sum->slab_bytes[arena->device] += slab->size;
    if (um_slab_is_empty(slab)) sum->idle += slab->size;
    expect(sum, um_arena_find_slab_locked(ctx, slab->ptr) == slab, "a slab is not in the index");
    expect(sum, pages && pages->base == slab->ptr && pages->size == slab->size, "a slab's pages are another's");
    for (um_chunk *chunk = slab->first; chunk; chunk = chunk->after) {
        const um_block *block = um_block_of(chunk);
        bool live = atomic_load(&block->refs) > 0;
        expect(sum, chunk->used || !live, "a live block's memory is free");
        if (!chunk->used) continue;
        sum->used_chunks++;
        expect(sum, block->ctx == ctx && block->device == arena->device, "a block is in a slab of another device");
        if (!live) continue;
        sum->live++;
        sum->live_blocks[arena->device]++;
        sum->live_bytes[arena->device] += block->size;
        expect(sum, block->size && block->size <= chunk->size, "a block is larger than its memory");
    }
}

static void walk_pending(const um_arena *arena, const um_store *store, tally *sum) {
    size_t count = 0;
    for (unsigned class = 0; class < UM_STORE_CLASSES; class++) {
        const um_block *last = NULL;
        for (um_block *block = store->pending[class].first; block; block = (um_block *)block->chunk.next) {
            expect(sum, block->chunk.used && !atomic_load(&block->refs), "a block in use is pending");
            expect(sum, !atomic_load(&block->exported), "memory that others may use is kept for reuse");
            expect(sum, block->stream && block->chunk.slab->heap == &store->heap,
                   "a pending block is in the wrong store");
            expect(sum, um_heap_class_of(&store->heap, block->chunk.size) == class,
                   "a pending block is in the wrong class");
            sum->waiting_bytes[arena->device] += block->chunk.size;
            last = block;
            count++;
        }
        expect(sum, store->pending[class].last == last, "a list's end is wrong");
    }
    expect(sum, count == store->pending_count, "pending blocks are miscounted");
    sum->pending += count;
}

static void walk_shard(const um_shard *shard, int device, tally *sum) {
    for (unsigned bin = 0; bin < UM_SMALL_CLASSES; bin++) {
        size_t count = 0;
        for (um_block *block = shard->bins[bin].first; block; block = (um_block *)block->chunk.next) {
            expect(sum, block->chunk.used && !atomic_load(&block->refs), "a block in use is kept by a shard");
            expect(sum, block->bin == (int)bin && block->device == device, "a shard keeps a block in the wrong bin");
            expect(sum, !block->chunk.owned && !atomic_load(&block->exported),
                   "a shard keeps a block that others may use");
            count++;
        }
        expect(sum, count == shard->bins[bin].count, "a shard's blocks are miscounted");
        sum->cached += count;
    }
}

static void walk_waiting(um_context *ctx, tally *sum) {
    size_t count = 0, bytes = 0;
    const um_block *last = NULL;
    for (um_block *block = ctx->waiting.first; block; block = (um_block *)block->chunk.next) {
        expect(sum, !atomic_load(&block->refs), "a live block waits to be freed");
        sum->waiting += block->chunk.slab != NULL;
        sum->waiting_bytes[block->device] += um_block_held(block);
        bytes += um_block_held(block);
        last = block;
        count++;
    }
    expect(sum, ctx->waiting.last == last, "a list's end is wrong");
    expect(sum, count == ctx->waiting_count && bytes == ctx->waiting_bytes, "waiting blocks are miscounted");
}

static void walk_arenas(um_context *ctx, tally *sum) {
    for (const um_arena *arena = ctx->arenas; arena; arena = arena->next)
        for (int kind = 0; kind < UM_STORE_KINDS; kind++) {
            const um_store *store = &arena->stores[kind];
            const char *wrong = um_heap_check(&store->heap);
            expect(sum, !wrong, wrong);
            for (const um_slab *slab = store->heap.slabs; slab; slab = slab->next) walk_slab(ctx, arena, slab, sum);
            walk_pending(arena, store, sum);
        }
}

static void check_account(const um_account *account, const tally *sum, int first, int end, tally *all) {
    uint64_t live_bytes = 0, live_blocks = 0, waiting = 0, reserved = 0, slabs = 0;
    for (int device = first; device < end; device++) {
        live_bytes += sum->live_bytes[device];
        live_blocks += sum->live_blocks[device];
        waiting += sum->waiting_bytes[device];
        reserved += sum->slab_bytes[device];
        slabs += sum->slabs[device];
    }
    const um_memory_stats *stats = &account->stats;
    expect(all, stats->allocated_current == live_bytes && stats->blocks_current == live_blocks,
           "live blocks are miscounted");
    expect(all,
           stats->small.allocated_current + stats->large.allocated_current == live_bytes &&
               stats->small.blocks_current + stats->large.blocks_current == live_blocks,
           "live blocks of one kind are miscounted");
    expect(all, stats->allocated_total >= live_bytes && stats->blocks_total >= live_blocks,
           "the totals are miscounted");
    expect(all, stats->waiting_current == waiting, "bytes that wait are miscounted");
    expect(all, stats->reserved_current == reserved && stats->slabs_current == slabs, "slabs are miscounted");
    expect(all,
           stats->small.reserved_current + stats->large.reserved_current == reserved &&
               stats->small.slabs_current + stats->large.slabs_current == slabs,
           "slabs of one kind are miscounted");
    expect(all, stats->allocated_peak >= live_bytes && stats->reserved_peak >= reserved, "a peak is too low");
}

const char *um_pool_check(um_context *ctx) {
    um_memory_stats published;
    um_pool_stats(ctx, UM_ALL_DEVICES, &published);
    tally sum = {0};
    pthread_mutex_lock(&ctx->lock);
    walk_arenas(ctx, &sum);
    walk_waiting(ctx, &sum);
    for (int device = 0; device < UM_MAX_DEVICES; device++) {
        um_shard *shards = atomic_load(&ctx->shards[device]);
        for (int i = 0; shards && i < UM_SHARDS; i++) walk_shard(&shards[i], device, &sum);
        check_account(&ctx->devices[device], &sum, device, device + 1, &sum);
    }
    check_account(&ctx->all, &sum, 0, UM_MAX_DEVICES, &sum);
    for (size_t i = 1; i < ctx->slab_count; i++)
        expect(&sum, ctx->slabs[i - 1]->ptr + ctx->slabs[i - 1]->size <= ctx->slabs[i]->ptr,
               "slabs overlap, or are out of order");
    expect(&sum, sum.slab_count == ctx->slab_count, "the index has slabs that no arena has");
    expect(&sum, sum.idle == ctx->idle, "empty slabs are miscounted");
    expect(&sum, sum.used_chunks == sum.live + sum.cached + sum.pending + sum.waiting,
           "a block is lost, or in two lists");
    pthread_mutex_unlock(&ctx->lock);
    return sum.wrong;
}

#endif
