#include "core/um_internal.h"

#include "core/um_placement.h"

/* Blocks from this size on are moved to the GPU when they are handed to another GPU library for the first time. */
#define EXPORT_PREFETCH_SIZE ((size_t)1 << 20)

/* --- waiting --------------------------------------------------------------------------------------------------------- */

void um_wait_drop(um_wait *wait) {
    if (!wait->needed) return;
    um_context *ctx = wait->ctx;
    if (wait->running) {
        pthread_mutex_lock(&ctx->lock);
        ctx->running--;
        pthread_mutex_unlock(&ctx->lock);
    }
    um_stream_unref(wait->stream);
    *wait = UM_WAIT_NONE;
    um_context_unref(ctx);
}

/* On a device without concurrent access: the call will return while work may still run. The next host access waits for it. */
static void note_unfinished(um_context *ctx) {
    pthread_mutex_lock(&ctx->lock);
    ctx->waits_failed++;
    pthread_mutex_unlock(&ctx->lock);
}

/* After work or a wait has failed on a device without concurrent access, where rule 6 lets nothing run once the call has returned.
 * What cannot be waited for now either is noted, and the next host access waits for it. */
static void make_idle(um_context *ctx) {
    um_error ignored; /* the failure before this one is reported */
    if (um_context_wait_everything(ctx, false, &ignored) != UM_OK) note_unfinished(ctx);
}

um_status um_wait_run(um_wait *wait, um_error *err) {
    if (!wait->needed) return UM_OK;
    um_status status = wait->everything ? um_context_wait_everything(wait->ctx, true, err)
                                        : um_stream_wait(wait->stream, wait->sequence, err);
    if (status == UM_ERR_INTERRUPTED && wait->running)
        note_unfinished(wait->ctx);
    else if (status != UM_OK && wait->running)
        make_idle(wait->ctx);
    um_wait_drop(wait);
    return status;
}

/* What has to finish for the block's last umem work to be done. [lock] held. */
static um_wait wait_for_block_locked(um_block *block) {
    if (!block->stream || um_stream_has_done_locked(block->stream, block->sequence)) return UM_WAIT_NONE;
    um_stream_ref_locked(block->stream);
    return (um_wait){
        .needed = true, .stream = block->stream, .sequence = block->sequence, .ctx = um_context_ref(block->ctx)};
}

/* --- the host side ----------------------------------------------------------------------------------------------------- */

static um_status refuse_busy(um_error *err) {
    return um_error_set(
        err, UM_ERR_BUSY,
        "a kernel is running on a GPU without concurrent managed access, and the host may not touch managed memory until "
        "it has finished: call umem.synchronize() first");
}

um_status um_host_hold(um_context *ctx, um_error *err) {
    if (ctx->backend->concurrent) return UM_OK;
    pthread_mutex_lock(&ctx->lock);
    bool running = ctx->running > 0 || ctx->waits_failed > ctx->waits_made_good;
    if (!running) ctx->host_busy++;
    pthread_mutex_unlock(&ctx->lock);
    return running ? refuse_busy(err) : UM_OK;
}

void um_host_release(um_context *ctx) {
    if (ctx->backend->concurrent) return;
    pthread_mutex_lock(&ctx->lock);
    if (--ctx->host_busy == 0) pthread_cond_broadcast(&ctx->host_idle);
    pthread_mutex_unlock(&ctx->lock);
}

um_status um_host_access(um_block *block, um_wait *wait, um_error *err) {
    um_context *ctx = block->ctx;
    *wait = UM_WAIT_NONE;
    if (!um_context_is_cuda(ctx)) return UM_OK;
    um_status status = um_context_check(ctx, err);
    if (status != UM_OK) return status;
    pthread_mutex_lock(&ctx->lock);
    if (ctx->running) {
        pthread_mutex_unlock(&ctx->lock);
        return refuse_busy(err);
    }
    um_block_keep_contents_locked(block); /* the host may write from now on */
    bool everything = atomic_load(&block->exported) || ctx->waits_failed > ctx->waits_made_good;
    if (!everything) *wait = wait_for_block_locked(block);
    pthread_mutex_unlock(&ctx->lock);
    if (everything) *wait = (um_wait){.needed = true, .everything = true, .ctx = um_context_ref(ctx)};
    return UM_OK;
}

void um_host_view_add(um_block *block, bool writable) {
    atomic_fetch_add(&block->views, 1u);
    if (writable) atomic_fetch_add(&block->writable_views, 1u);
}

void um_host_view_remove(um_block *block, bool writable) {
    atomic_fetch_sub(&block->views, 1u);
    if (writable) atomic_fetch_sub(&block->writable_views, 1u);
}

void um_host_view_forever(um_block *block, bool writable) {
    atomic_store(&block->viewed_forever, true);
    if (writable) atomic_store(&block->writable_forever, true);
}

bool um_block_has_unseen_writers(const um_block *block) {
    return atomic_load(&block->writable_views) || atomic_load(&block->writable_forever) ||
           atomic_load(&block->exported);
}

/* --- the device side: umem's own work -------------------------------------------------------------------------------------- */

/* Orders `stream` behind unfinished umem work on the block that runs on another stream. */
static um_status order_behind_block(um_stream *stream, um_block *block, um_error *err) {
    um_context *ctx = block->ctx;
    pthread_mutex_lock(&ctx->lock);
    um_wait pending = block->stream == stream ? UM_WAIT_NONE : wait_for_block_locked(block);
    pthread_mutex_unlock(&ctx->lock);
    if (!pending.needed) return UM_OK;
    um_status status = um_stream_wait_stream(stream, pending.stream, err);
    um_wait_drop(&pending);
    return status;
}

um_status um_work_begin(um_stream *stream, const um_access *accesses, size_t count, um_error *err) {
    um_context *ctx = stream->ctx;
    um_status status = um_context_check(ctx, err);
    for (size_t i = 0; i < count && status == UM_OK; i++) status = order_behind_block(stream, accesses[i].block, err);
    if (status == UM_OK && !ctx->backend->concurrent) {
        pthread_mutex_lock(&ctx->lock);
        while (ctx->host_busy) pthread_cond_wait(&ctx->host_idle, &ctx->lock);
        ctx->running++;
        pthread_mutex_unlock(&ctx->lock);
    }
    return status;
}

void um_work_abandon(um_stream *stream) {
    um_context *ctx = stream->ctx;
    if (ctx->backend->concurrent) return;
    pthread_mutex_lock(&ctx->lock);
    ctx->running--;
    pthread_mutex_unlock(&ctx->lock);
}

void um_work_failed(um_stream *stream) {
    if (!stream->ctx->backend->concurrent) make_idle(stream->ctx);
    um_work_abandon(stream);
}

/* Rule 3: whether the host could see the work half-done, or change what it reads. */
static bool host_may_watch(const um_access *access) {
    const um_block *block = access->block;
    if (access->write) return atomic_load(&block->views) || atomic_load(&block->viewed_forever);
    return atomic_load(&block->writable_views) || atomic_load(&block->writable_forever);
}

/* Makes `stream` the place of the block's last work. Returns a stream to destroy after unlocking, or NULL. [lock] held. */
static um_stream *set_last_use_locked(um_block *block, um_stream *stream, uint64_t sequence) {
    um_stream *dead = NULL;
    if (block->stream != stream) {
        um_stream_ref_locked(stream);
        if (block->stream) dead = um_stream_unref_locked(block->stream);
        block->stream = stream;
        block->sequence = sequence;
    }
    /* Work that another thread has put there meanwhile comes after this. */
    if (block->sequence < sequence) block->sequence = sequence;
    return dead;
}

/* Another thread may have put work on the block on another stream since um_work_begin looked. Then this stream goes behind that one, and
 * *sequence becomes a number given after that: one stream and number always stand for all unfinished work. */
static um_status go_behind_others(um_block *block, um_stream *stream, uint64_t *sequence, um_error *err) {
    um_wait other = wait_for_block_locked(block);
    pthread_mutex_unlock(&block->ctx->lock);
    um_status status = um_stream_wait_stream(stream, other.stream, err);
    if (status != UM_OK) { /* the host can wait, too */
        um_error ignored;
        if (um_stream_wait(other.stream, other.sequence, &ignored) == UM_OK) status = UM_OK;
    }
    um_wait_drop(&other);
    if (status == UM_OK) status = um_stream_issue(stream, sequence, err);
    pthread_mutex_lock(&block->ctx->lock);
    return status;
}

/* Whether the block's last use is unfinished work that `sequence` of `stream` does not lie behind. [lock] held. */
static bool is_used_beside_locked(const um_block *block, const um_stream *stream, uint64_t sequence) {
    return block->stream && block->stream != stream && !um_stream_has_done_locked(block->stream, block->sequence) &&
           !um_stream_is_behind_locked(stream, sequence, block->stream, block->sequence);
}

um_status um_work_end(um_stream *stream, const um_access *accesses, size_t count, bool deferred, um_wait *wait,
                      um_error *err) {
    um_context *ctx = stream->ctx;
    bool must_wait = !ctx->backend->concurrent;
    uint64_t sequence;
    um_status status = um_stream_issue(stream, &sequence, err);
    for (size_t i = 0; i < count; i++) {
        um_block *block = accesses[i].block;
        pthread_mutex_lock(&ctx->lock);
        while (status == UM_OK && is_used_beside_locked(block, stream, sequence))
            status = go_behind_others(block, stream, &sequence, err);
        um_stream *dead = set_last_use_locked(block, stream, sequence);
        if (accesses[i].write) um_block_keep_contents_locked(block);
        if (!block->pages_known)
            um_residency_note_gpu_locked(block, accesses[i].offset, accesses[i].size, accesses[i].dense);
        pthread_mutex_unlock(&ctx->lock);
        um_stream_destroy(dead);
        um_block_note_gpu(block);
        must_wait = must_wait || (!deferred && host_may_watch(&accesses[i]));
    }
    *wait = UM_WAIT_NONE;
    if (status != UM_OK) {
        um_work_failed(stream);
        return status;
    }
    if (must_wait)
        *wait = (um_wait){.needed = true,
                          .stream = um_stream_ref(stream),
                          .sequence = sequence,
                          .ctx = um_context_ref(ctx),
                          .running = !ctx->backend->concurrent};
    return UM_OK;
}

/* --- the device side: other libraries ------------------------------------------------------------------------------------------ */

/* At the first hand-out umem stops seeing the block's use: learn where its pages are while that can still be told, and, for a large block
 * without a home that lies on the host, let CUDA's migration serve the consumer's repeated passes instead of the link. */
static um_status prepare_export(um_block *block, um_stream *consumer, um_error *err) {
    um_context *ctx = block->ctx;
    double host_share = um_residency_host_share(block);
    bool movable = ctx->backend->concurrent && um_block_held(block) >= EXPORT_PREFETCH_SIZE &&
                   um_block_home(block).kind == UM_LOCATION_NONE;
    if (!movable) return UM_OK;
    um_location device = {UM_LOCATION_DEVICE, block->device};
    um_status status = um_advise(block, 0, block->size, UM_ADVICE_UNSET_ACCESSED_BY, device, err);
    if (status != UM_OK || host_share < 0.5) return status;
    um_access whole = {.block = block, .offset = 0, .size = block->size};
    return um_prefetch(ctx, &whole, 1, device, consumer, err);
}

bool um_block_was_handed_out(const um_block *block) {
    return atomic_load_explicit(&block->prepared, memory_order_acquire);
}

/* From now on work on the block may be unseen. */
static void mark_exported(um_block *block) {
    pthread_mutex_lock(&block->ctx->lock);
    um_residency_note_unseen_locked(block);
    um_block_keep_contents_locked(block);
    pthread_mutex_unlock(&block->ctx->lock);
    um_block_note_gpu(block);
    atomic_store(&block->exported, true);
}

um_status um_device_export(um_block *block, um_stream *consumer, um_wait *wait, um_error *err) {
    um_context *ctx = block->ctx;
    *wait = UM_WAIT_NONE;
    um_status status = um_context_check(ctx, err);
    if (status != UM_OK) return status;
    if (um_block_held(block) && !atomic_load(&block->prepared)) status = prepare_export(block, consumer, err);
    if (status == UM_OK && consumer) status = order_behind_block(consumer, block, err);
    if (status != UM_OK) return status;
    atomic_store(&block->prepared, true);
    pthread_mutex_lock(&ctx->lock);
    if (!consumer && block->stream != &ctx->legacy[block->device]) *wait = wait_for_block_locked(block);
    pthread_mutex_unlock(&ctx->lock);
    mark_exported(block);
    return UM_OK;
}

um_status um_device_mark(um_block *block, um_error *err) {
    um_status status = um_context_check(block->ctx, err);
    if (status != UM_OK || !um_context_is_cuda(block->ctx)) return status; /* without a GPU nobody can be using it */
    if (um_block_held(block) && !atomic_load(&block->exported)) (void)um_residency_host_share(block);
    mark_exported(block);
    return UM_OK;
}
