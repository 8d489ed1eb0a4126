#include "core/um_internal.h"

#include <search.h>
#include <stdlib.h>

#include "core/um_placement.h"

#define REFILL_BYTES ((size_t)64 << 10) /* a bin that has run out is given about as much */
#define REFILL_MOST  32u

/* --- wrapped memory by address -------------------------------------------------------------------------------------------- */

/* Orders blocks by address; those that overlap compare equal, so that any address inside a block finds it. */
static int compare_blocks(const void *a, const void *b) {
    const um_block *left = a, *right = b;
    if (left->chunk.ptr + left->chunk.size <= right->chunk.ptr) return -1;
    if (left->chunk.ptr >= right->chunk.ptr + right->chunk.size) return 1;
    return 0;
}

static um_block *find_wrapped_locked(um_context *ctx, const char *ptr, size_t size) {
    um_block key = {.chunk = {.ptr = (char *)(uintptr_t)ptr, .size = size}};
    um_block **node = tfind(&key, &ctx->wrapped, compare_blocks);
    return node ? *node : NULL;
}

/* Takes the block out of the tree. Memory that overlapped known memory never was in it: the first wins. */
static void forget_wrapped_locked(um_context *ctx, um_block *block) {
    if (block->size && find_wrapped_locked(ctx, block->chunk.ptr, block->chunk.size) == block)
        tdelete(block, &ctx->wrapped, compare_blocks);
}

/* --- new blocks ---------------------------------------------------------------------------------------------------------------- */

static um_status no_bookkeeping(um_error *err) {
    return um_error_set(err, UM_ERR_NO_MEMORY, "no memory for a block's bookkeeping");
}

/* A struct that is no part of a slab, with one reference, holding one to the context. NULL: no memory. */
static um_block *new_struct(um_context *ctx, int device) {
    pthread_mutex_lock(&ctx->lock);
    um_block *block = um_arena_new_struct_locked(ctx);
    pthread_mutex_unlock(&ctx->lock);
    if (!block) return NULL;
    block->chunk = (um_chunk){.used = true};
    block->size = 0;
    block->ctx = um_context_ref(ctx);
    block->device = (unsigned char)device;
    block->bin = -1;
    block->stream = NULL;
    block->chunk.owned = NULL;
    block->advised = block->pages_known = false;
    atomic_store(&block->viewed_forever, false);
    atomic_store(&block->writable_forever, false);
    atomic_store(&block->exported, false);
    atomic_store(&block->prepared, false);
    atomic_store(&block->gpu_touched, false);
    atomic_store(&block->refs, 1);
    return block;
}

static void free_struct(um_context *ctx, um_block *block) {
    pthread_mutex_lock(&ctx->lock);
    um_arena_free_struct_locked(ctx, block);
    pthread_mutex_unlock(&ctx->lock);
}

/* A block of `size` > 0 bytes from what is at hand, and a few more for the thread's shard when it is small. */
static um_block *take_at_hand(um_context *ctx, um_arena *arena, um_shard *shard, size_t size) {
    pthread_mutex_lock(&ctx->lock);
    um_block *block = um_arena_take_locked(arena, size);
    um_list more = {0};
    if (block && block->bin >= 0) {
        size_t count = REFILL_BYTES / block->chunk.size;
        for (size_t i = 0; i < count && i < REFILL_MOST; i++) {
            um_block *another = um_arena_take_locked(arena, size);
            if (!another) break;
            um_list_append(&more, another);
        }
        um_cache_fill(shard, (unsigned)block->bin, more);
    }
    pthread_mutex_unlock(&ctx->lock);
    return block;
}

/* What is at hand, what has become free meanwhile, or more memory. */
static um_status take_or_grow(um_context *ctx, um_arena *arena, um_shard *shard, size_t size, um_block **out,
                              um_error *err) {
    um_status status = um_pool_admit(ctx, arena->device, size, err);
    if (status != UM_OK) return status;
    *out = take_at_hand(ctx, arena, shard, size);
    if (*out) return UM_OK;
    um_arena_poll(ctx);
    *out = take_at_hand(ctx, arena, shard, size);
    return *out ? UM_OK : um_arena_grow(arena, size, out, err);
}

/* Once more after giving back what is not in use, when there is no memory otherwise. */
static um_status take_memory(um_context *ctx, um_arena *arena, um_shard *shard, size_t size, um_block **out,
                             um_error *err) {
    um_status status = take_or_grow(ctx, arena, shard, size, out, err);
    if (status != UM_ERR_OUT_OF_MEMORY) return status;
    if (!um_pool_may_retry(ctx, arena->device)) return status;
    um_error failed; /* the retry tells whether it helped */
    if (um_pool_reclaim(ctx, &failed) == UM_ERR_INTERRUPTED) {
        if (err) *err = failed;
        return UM_ERR_INTERRUPTED;
    }
    return take_or_grow(ctx, arena, shard, size, out, err);
}

static um_status new_block(um_context *ctx, size_t size, int device, um_location home, um_block **out, um_error *err) {
    um_status status = um_pool_poll(ctx, err);
    if (status != UM_OK) return status;
    um_shard *shard = um_cache_shard(ctx, device);
    pthread_mutex_lock(&ctx->lock);
    um_arena *arena = um_arena_get_locked(ctx, device, home);
    pthread_mutex_unlock(&ctx->lock);
    if (!shard || !arena) return no_bookkeeping(err);
    um_block *block;
    status = take_memory(ctx, arena, shard, size, &block, err);
    if (status != UM_OK) return status;
    block->size = size;
    pthread_mutex_lock(&ctx->lock);
    um_pool_count_block_locked(ctx, shard, block, true);
    pthread_mutex_unlock(&ctx->lock);
    atomic_store_explicit(&block->refs, 1, memory_order_release); /* from here on um_block_find may see it */
    *out = block;
    return UM_OK;
}

/* A block of no bytes, which remembers its home. */
static um_status new_empty(um_context *ctx, int device, um_location home, um_block **out, um_error *err) {
    um_block *block = new_struct(ctx, device);
    if (!block) return no_bookkeeping(err);
    block->chunk.ptr = (char *)block; /* unique, never NULL, never read */
    *out = block;
    if (home.kind == UM_LOCATION_NONE) return UM_OK;
    pthread_mutex_lock(&ctx->lock);
    um_block_more *more = um_block_more_locked(block);
    if (more) {
        more->home = home;
        more->has_home = true;
    }
    pthread_mutex_unlock(&ctx->lock);
    if (more) return UM_OK;
    um_block_unref(block);
    return no_bookkeeping(err);
}

um_status um_block_new(um_context *ctx, size_t size, int device, um_location home, um_block **out, um_error *err) {
    if (!ctx->backend->device_count) device = 0;
    if (size - 1 < UM_SMALL_LIMIT - 1 && home.kind == UM_LOCATION_NONE &&
        !um_takes_detour(ctx, UM_DETOUR_LIMIT | UM_DETOUR_LOG | UM_DETOUR_FORKED)) {
        um_block *block = um_cache_take(ctx, size, device);
        if (block) {
            *out = block;
            return UM_OK;
        }
    }
    um_status status = um_context_check(ctx, err);
    if (status != UM_OK) return status;
    if (size) return new_block(ctx, size, device, home, out, err);
    return new_empty(ctx, device, home, out, err);
}

um_block_more *um_block_more_locked(um_block *block) {
    if (!block->chunk.owned) block->chunk.owned = calloc(1, sizeof(um_block_more));
    return block->chunk.owned;
}

um_status um_block_wrap(um_context *ctx, void *ptr, size_t size, int device, void (*release)(void *), void *owner,
                        um_block **out, um_error *err) {
    um_status status = um_context_check(ctx, err);
    if (status == UM_OK) status = um_pool_poll(ctx, err); /* other libraries' memory is waiting, perhaps */
    if (status != UM_OK) return status;
    um_block *block = new_struct(ctx, um_context_is_cuda(ctx) ? device : 0);
    if (!block) return no_bookkeeping(err);
    pthread_mutex_lock(&ctx->lock);
    um_block_more *more = um_block_more_locked(block);
    bool known = false;
    if (more) {
        block->size = block->chunk.size = size;
        block->chunk.ptr = size ? ptr : (char *)block;
        known = !size || tsearch(block, &ctx->wrapped, compare_blocks);
    }
    if (known) {
        *more = (um_block_more){.release = release, .owner = owner, .pages = {.base = ptr, .size = size, .lost = true}};
        if (um_context_is_cuda(ctx)) {
            atomic_store(&block->exported, true);
            atomic_store(&block->gpu_touched, true);
        }
    }
    pthread_mutex_unlock(&ctx->lock);
    if (!known) {
        free(more);
        free_struct(ctx, block);
        um_context_unref(ctx);
        return no_bookkeeping(err);
    }
    *out = block;
    return UM_OK;
}

/* --- the end of a block ------------------------------------------------------------------------------------------------------- */

um_block *um_block_ref(um_block *block) {
    atomic_fetch_add_explicit(&block->refs, 1, memory_order_relaxed);
    return block;
}

static void free_more(um_block_more *more) {
    if (!more) return;
    um_pages_clear(&more->pages);
    free(more);
}

void um_block_end_wrapped(um_context *ctx, um_block *block) {
    um_block_more *more = block->chunk.owned;
    pthread_mutex_lock(&ctx->lock);
    um_stream *dead = block->stream ? um_stream_unref_locked(block->stream) : NULL;
    um_arena_free_struct_locked(ctx, block);
    pthread_mutex_unlock(&ctx->lock);
    um_stream_destroy(dead);
    if (more && more->release) more->release(more->owner);
    free_more(more);
}

/* A block that is not part of a slab. Memory of others that umem's work still uses is kept until that is done; it is the owner's to order
 * with the owner's own work. */
static void end_outside(um_context *ctx, um_block *block) {
    if (um_context_is_forked(ctx)) { /* a child owns nothing of this but the struct */
        free_more(block->chunk.owned);
        free_struct(ctx, block);
        um_context_unref(ctx);
        return;
    }
    pthread_mutex_lock(&ctx->lock);
    forget_wrapped_locked(ctx, block);
    block->freed_epoch = ctx->syncs_started;
    bool waits = !um_arena_is_done_locked(ctx, block);
    if (waits) um_pool_add_waiting_locked(ctx, block);
    pthread_mutex_unlock(&ctx->lock);
    if (!waits) um_block_end_wrapped(ctx, block);
    um_context_unref(ctx);
}

/* Rule 5: memory that umem's work still uses is reused in order behind that work, or once it is done; memory that another GPU library may
 * still use waits for the next full synchronise. */
static void end_pooled(um_context *ctx, um_block *block) {
    um_shard *shard = um_cache_shard(ctx, block->device); /* there since the block was made */
    um_block_more *more = block->chunk.owned;
    if (um_context_is_forked(
            ctx)) { /* a forked child owns nothing of this, but the context is to see that it is gone */
        pthread_mutex_lock(&ctx->lock);
        um_pool_count_block_locked(ctx, shard, block, false);
        pthread_mutex_unlock(&ctx->lock);
        free_more(more);
        return;
    }
    if (block->bin >= 0) um_cache_spill(ctx, shard, (unsigned)block->bin, shard->bins[block->bin].limit / 2);
    um_placement_restore(block);
    um_stream *dead = NULL;
    pthread_mutex_lock(&ctx->lock);
    um_pool_count_block_locked(ctx, shard, block, false);
    block->chunk.owned = NULL;
    block->freed_epoch = ctx->syncs_started;
    if (atomic_load(&block->exported))
        um_pool_add_waiting_locked(ctx, block);
    else
        dead = um_arena_settle_locked(ctx, block);
    pthread_mutex_unlock(&ctx->lock);
    um_stream_destroy(dead);
    free_more(more);
    um_pool_after_free(ctx);
}

void um_block_unref(um_block *block) {
    if (!block || atomic_fetch_sub_explicit(&block->refs, 1, memory_order_acq_rel) != 1) return;
    um_context *ctx = block->ctx;
    if (!block->chunk.slab) {
        end_outside(ctx, block);
        return;
    }
    if (block->bin >= 0 && !block->chunk.owned && !atomic_load_explicit(&block->exported, memory_order_relaxed) &&
        um_cache_put(block))
        return;
    um_context_ref(ctx); /* that was the last use of the context, perhaps */
    end_pooled(ctx, block);
    um_context_unref(ctx);
}

/* --- looking ------------------------------------------------------------------------------------------------------------------- */

/* A reference to a block that may be dying, or be dead: it must not come back to life. */
static bool try_ref(um_block *block) {
    unsigned refs = atomic_load(&block->refs);
    while (refs && !atomic_compare_exchange_weak(&block->refs, &refs, refs + 1)) {
    }
    return refs != 0;
}

um_block *um_block_find(um_context *ctx, const void *ptr, size_t size) {
    const char *first = ptr;
    pthread_mutex_lock(&ctx->lock);
    um_slab *slab = um_arena_find_slab_locked(ctx, first);
    um_chunk *chunk = slab ? um_slab_find(slab, first) : NULL;
    um_block *block = NULL;
    if (chunk)
        block = chunk->used ? um_block_of(chunk) : NULL;
    else
        block = find_wrapped_locked(ctx, first, size);
    if (block && !try_ref(block)) block = NULL;
    pthread_mutex_unlock(&ctx->lock);
    if (!block) return NULL;
    if (first >= block->chunk.ptr && (size_t)(first - block->chunk.ptr) <= block->size &&
        size <= block->size - (size_t)(first - block->chunk.ptr))
        return block;
    um_block_unref(block);
    return NULL;
}

void um_block_note_gpu(um_block *block) {
    if (atomic_load_explicit(&block->gpu_touched, memory_order_relaxed)) return;
    atomic_store_explicit(&block->gpu_touched, true, memory_order_release);
    if (!block->chunk.slab) return;
    um_pages *pages = block->chunk.slab->owner_data;
    atomic_store_explicit(&pages->gpu_touched, true, memory_order_release);
}

um_context *um_block_context(const um_block *block) { return block->ctx; }
char *um_block_ptr(const um_block *block) { return block->chunk.ptr; }
size_t um_block_size(const um_block *block) { return block->size; }
int um_block_device(const um_block *block) { return block->device; }
bool um_block_is_owned(const um_block *block) { return !block->chunk.owned || !um_more(block)->release; }

um_location um_block_home_locked(const um_block *block) {
    if (block->chunk.owned && um_more(block)->has_home) return um_more(block)->home;
    if (!block->chunk.slab) return (um_location){UM_LOCATION_NONE, 0};
    return ((const um_arena *)block->chunk.slab->heap->arg)->home;
}

um_location um_block_home(const um_block *block) {
    pthread_mutex_lock(&block->ctx->lock);
    um_location home = um_block_home_locked(block);
    pthread_mutex_unlock(&block->ctx->lock);
    return home;
}
