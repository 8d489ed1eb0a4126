#include "core/um_internal.h"

#include <search.h>
#include <stdlib.h>

#include "core/um_placement.h"

/* Orders spans by address; spans that overlap compare equal, so that any address inside a block finds it. */
static int compare_spans(const void *a, const void *b) {
    const um_span *left = a, *right = b;
    if (left->ptr + left->size <= right->ptr) return -1;
    if (left->ptr >= right->ptr + right->size) return 1;
    return 0;
}

/* Makes the block known by address. Wrapped memory that overlaps a known block stays unknown: the first wins. */
static um_status register_block(um_block *block, um_error *err) {
    if (!block->span.size) return UM_OK;
    um_context *ctx = block->ctx;
    pthread_mutex_lock(&ctx->lock);
    void **node = tsearch(block, &ctx->by_address, compare_spans);
    block->registered = node && *node == block;
    pthread_mutex_unlock(&ctx->lock);
    return node ? UM_OK : um_error_set(err, UM_ERR_NO_MEMORY, "no memory for a block's entry");
}

/* Bytes to ask the backend for: whole pages for blocks that own their pages, and those with a home always do. */
static size_t size_to_hold(size_t size, um_location home) {
    if (home.kind != UM_LOCATION_NONE && size < UM_PAGE_GROUP) return UM_PAGE_GROUP;
    size_t unit = size < UM_PAGE_GROUP ? 512 : 4096;
    return um_round_up(size, unit);
}

static um_block *make_block(um_context *ctx, size_t size, int device) {
    um_block *block = calloc(1, sizeof *block);
    if (!block) return NULL;
    block->span.size = size;
    block->device = device;
    block->ctx = um_context_ref(ctx);
    atomic_init(&block->refs, 1);
    return block;
}

static void free_struct(um_block *block) {
    free(block->populated);
    free(block);
}

/* Takes memory within the limits and from the backend; one retry after reclaiming what waits. */
static um_status take_memory(um_block *block, size_t held, um_error *err) {
    um_context *ctx = block->ctx;
    um_backend *backend = ctx->backend;
    for (int attempt = 0;; attempt++) {
        um_status status = um_pool_reserve(ctx, block->device, held, block->span.size, err);
        if (status == UM_OK) {
            void *ptr;
            status = backend->ops->mem_alloc(backend, held, block->device, block->home, &ptr, err);
            if (status == UM_OK) {
                block->span.ptr = ptr;
                block->held = held;
                return UM_OK;
            }
            um_pool_unreserve(ctx, block->device, held, block->span.size);
        }
        if (status != UM_ERR_OUT_OF_MEMORY) return status;
        pthread_mutex_lock(&ctx->lock);
        bool reclaimable = ctx->waiting != NULL;
        ctx->all.stats.retries += attempt == 0 && reclaimable;
        if (err && !err->limit) { /* the backend refused, not a limit */
            err->requested = block->span.size;
            err->in_use = ctx->all.stats.reserved_current;
        }
        pthread_mutex_unlock(&ctx->lock);
        if (attempt > 0 || !reclaimable) return status;
        um_error failed; /* the retry tells whether it helped */
        if (um_pool_reclaim(ctx, &failed) != UM_ERR_INTERRUPTED) continue;
        if (err) *err = failed;
        return UM_ERR_INTERRUPTED;
    }
}

um_status um_block_new(um_context *ctx, size_t size, int device, um_location home, um_block **out, um_error *err) {
    um_status status = um_context_check(ctx, err);
    if (status != UM_OK) return status;
    if (!um_context_is_cuda(ctx)) device = 0;
    if (size > (size_t)PTRDIFF_MAX - UM_PAGE_GROUP) {
        status = um_error_set(err, UM_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes: more than an address space holds",
                              size);
        if (err) err->requested = size;
        return status;
    }
    status = um_pool_poll(ctx, err);
    if (status != UM_OK) return status;
    um_block *block = make_block(ctx, size, device);
    if (!block) return um_error_set(err, UM_ERR_NO_MEMORY, "no memory for a block's bookkeeping");
    block->home = home;
    if (size) {
        status = take_memory(block, size_to_hold(size, home), err);
        if (status == UM_OK && (status = register_block(block, err)) != UM_OK) {
            pthread_mutex_lock(&ctx->lock);
            um_pool_note_free_locked(ctx, device, block->held, size, false);
            pthread_mutex_unlock(&ctx->lock);
            um_block_destroy(ctx, block, false);
            um_context_unref(ctx);
            return status;
        }
        if (status != UM_OK) {
            free_struct(block);
            um_context_unref(ctx);
            return status;
        }
    } else {
        block->span.ptr = (char *)block; /* unique, never NULL, never read */
    }
    *out = block;
    return UM_OK;
}

um_status um_block_wrap(um_context *ctx, void *ptr, size_t size, int device, void (*release)(void *), void *owner,
                        um_block **out, um_error *err) {
    um_status status = um_context_check(ctx, err);
    if (status != UM_OK) return status;
    um_block *block = make_block(ctx, size, um_context_is_cuda(ctx) ? device : 0);
    if (!block) return um_error_set(err, UM_ERR_NO_MEMORY, "no memory for a block's bookkeeping");
    block->span.ptr = size ? ptr : (char *)block;
    status = register_block(block, err);
    if (status != UM_OK) {
        free_struct(block);
        um_context_unref(ctx);
        return status;
    }
    block->release = release;
    block->owner = owner;
    block->populated_unseen = true;
    if (um_context_is_cuda(ctx)) {
        atomic_store(&block->exported, true);
        atomic_store(&block->gpu_touched, true);
    }
    *out = block;
    return UM_OK;
}

um_block *um_block_ref(um_block *block) {
    atomic_fetch_add_explicit(&block->refs, 1, memory_order_relaxed);
    return block;
}

void um_block_destroy(um_context *ctx, um_block *block, bool waited) {
    if (block->release) {
        block->release(block->owner);
    } else if (block->held) {
        um_error ignored; /* the backend has given the memory up whatever it reports, and nobody is left to tell */
        (void)!ctx->backend->ops->mem_free(ctx->backend, block->span.ptr, block->held, block->device, &ignored);
        um_pool_note_given_back(ctx, block->device, block->held, waited);
    }
    free_struct(block);
}

void um_block_unref(um_block *block) {
    if (!block || atomic_fetch_sub_explicit(&block->refs, 1, memory_order_acq_rel) != 1) return;
    um_context *ctx = block->ctx;
    um_stream *dead_stream = NULL;
    pthread_mutex_lock(&ctx->lock);
    if (block->registered) tdelete(block, &ctx->by_address, compare_spans);
    block->registered = false;
    /* Rule 5: memory that umem's work still uses waits for that work; memory that another GPU library may still use waits for the next
     * full synchronise. Wrapped memory is its owner's to order with the owner's work. */
    bool owned_memory = block->held > 0;
    bool pending = block->stream && !um_stream_has_done_locked(block->stream, block->sequence);
    if (block->stream && !pending) {
        dead_stream = um_stream_unref_locked(block->stream);
        block->stream = NULL;
    }
    bool waits = pending || (owned_memory && atomic_load(&block->exported));
    bool lost = um_context_is_forked(ctx); /* a forked child owns nothing of this */
    if (owned_memory && !lost) um_pool_note_free_locked(ctx, block->device, block->held, block->span.size, waits);
    if (waits && !lost) um_pool_add_waiting_locked(ctx, block);
    pthread_mutex_unlock(&ctx->lock);
    um_stream_destroy(dead_stream);
    if (lost)
        free_struct(block);
    else if (!waits)
        um_block_destroy(ctx, block, false);
    um_context_unref(ctx);
}

um_block *um_block_find(um_context *ctx, const void *ptr, size_t size) {
    um_span key = {(char *)(uintptr_t)ptr, size};
    um_block *found = NULL;
    pthread_mutex_lock(&ctx->lock);
    um_block **node = tfind(&key, &ctx->by_address, compare_spans);
    if (node) {
        um_block *block = *node;
        bool inside = key.ptr >= block->span.ptr && size <= block->span.size - (size_t)(key.ptr - block->span.ptr);
        /* A block whose last reference is being dropped is still in the tree: it must not come back to life. */
        size_t refs = atomic_load(&block->refs);
        while (inside && refs && !atomic_compare_exchange_weak(&block->refs, &refs, refs + 1)) {
        }
        if (inside && refs) found = block;
    }
    pthread_mutex_unlock(&ctx->lock);
    return found;
}

um_context *um_block_context(const um_block *block) { return block->ctx; }
char *um_block_ptr(const um_block *block) { return block->span.ptr; }
size_t um_block_size(const um_block *block) { return block->span.size; }
int um_block_device(const um_block *block) { return block->device; }
bool um_block_is_owned(const um_block *block) { return block->release == NULL; }

um_location um_block_home(const um_block *block) {
    pthread_mutex_lock(&block->ctx->lock);
    um_location home = block->home;
    pthread_mutex_unlock(&block->ctx->lock);
    return home;
}
