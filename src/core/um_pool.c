#include "core/um_internal.h"

#define DRAIN_BYTES  ((uint64_t)256 << 20) /* memory that waits for a full synchronise beyond this forces one */
#define DRAIN_BLOCKS 4096                  /* … and so does this number of blocks */
#define POLL_BLOCKS  4                     /* waiting blocks looked at per allocation */

void um_pool_init(um_context *ctx) {
    ctx->all.limit = SIZE_MAX;
    for (int device = 0; device < UM_MAX_DEVICES; device++) ctx->devices[device].limit = SIZE_MAX;
}

static um_account *account(um_context *ctx, int device) {
    return device == UM_ALL_DEVICES ? &ctx->all : &ctx->devices[device];
}

static void raise_peak(uint64_t *peak, uint64_t value) {
    if (*peak < value) *peak = value;
}

static void count_allocation(um_memory_stats *stats, size_t held, size_t size) {
    stats->reserved_current += held;
    raise_peak(&stats->reserved_peak, stats->reserved_current);
    stats->allocated_current += size;
    stats->allocated_total += size;
    raise_peak(&stats->allocated_peak, stats->allocated_current);
    stats->blocks_current++;
    stats->blocks_total++;
    raise_peak(&stats->blocks_peak, stats->blocks_current);
}

static void uncount_allocation(um_memory_stats *stats, size_t held, size_t size) {
    stats->reserved_current -= held;
    stats->allocated_current -= size;
    stats->allocated_total -= size;
    stats->blocks_current--;
    stats->blocks_total--;
}

static bool fits(const um_account *account, size_t held) {
    return account->limit == SIZE_MAX ||
           (held <= account->limit && account->stats.reserved_current <= account->limit - held);
}

static um_status refuse(const um_account *refused, int device, size_t size, um_error *err) {
    um_status status =
        um_error_set(err, UM_ERR_OUT_OF_MEMORY,
                     "cannot allocate %zu bytes: umem holds %llu of the limit%s of %zu bytes. Free arrays, "
                     "or raise the limit with umem.set_limit or UMEM_ALLOC_CONF=limit:<size>",
                     size, (unsigned long long)refused->stats.reserved_current,
                     device == UM_ALL_DEVICES ? "" : " of this device", refused->limit);
    if (err) {
        err->requested = size;
        err->in_use = refused->stats.reserved_current;
        err->limit = refused->limit;
        err->device = device;
    }
    return status;
}

um_status um_pool_reserve(um_context *ctx, int device, size_t held, size_t size, um_error *err) {
    um_status status = UM_OK;
    um_account *own = account(ctx, device);
    pthread_mutex_lock(&ctx->lock);
    if (!fits(&ctx->all, held)) {
        status = refuse(&ctx->all, UM_ALL_DEVICES, size, err);
    } else if (!fits(own, held)) {
        status = refuse(own, device, size, err);
    } else {
        count_allocation(&ctx->all.stats, held, size);
        count_allocation(&own->stats, held, size);
    }
    pthread_mutex_unlock(&ctx->lock);
    return status;
}

void um_pool_unreserve(um_context *ctx, int device, size_t held, size_t size) {
    pthread_mutex_lock(&ctx->lock);
    uncount_allocation(&ctx->all.stats, held, size);
    uncount_allocation(&account(ctx, device)->stats, held, size);
    pthread_mutex_unlock(&ctx->lock);
}

void um_pool_note_free_locked(um_context *ctx, int device, size_t held, size_t size, bool waits) {
    um_memory_stats *both[2] = {&ctx->all.stats, &account(ctx, device)->stats};
    for (int i = 0; i < 2; i++) {
        both[i]->allocated_current -= size;
        both[i]->freed_total += size;
        both[i]->blocks_current--;
        if (waits) both[i]->waiting_current += held;
    }
}

void um_pool_note_given_back(um_context *ctx, int device, size_t held, bool waited) {
    pthread_mutex_lock(&ctx->lock);
    um_memory_stats *both[2] = {&ctx->all.stats, &account(ctx, device)->stats};
    for (int i = 0; i < 2; i++) {
        both[i]->reserved_current -= held;
        if (waited) both[i]->waiting_current -= held;
    }
    pthread_mutex_unlock(&ctx->lock);
}

void um_pool_add_waiting_locked(um_context *ctx, um_block *block) {
    block->freed_epoch = ctx->syncs_started;
    block->next_waiting = NULL;
    if (ctx->waiting)
        ctx->waiting_last->next_waiting = block;
    else
        ctx->waiting = block;
    ctx->waiting_last = block;
    ctx->waiting_count++;
}

/* Unlinks the oldest waiting block, or NULL. */
static um_block *take_waiting(um_context *ctx) {
    pthread_mutex_lock(&ctx->lock);
    um_block *block = ctx->waiting;
    if (block) {
        ctx->waiting = block->next_waiting;
        if (!ctx->waiting) ctx->waiting_last = NULL;
        ctx->waiting_count--;
    }
    pthread_mutex_unlock(&ctx->lock);
    return block;
}

static void put_back(um_context *ctx, um_block *block) {
    pthread_mutex_lock(&ctx->lock);
    block->next_waiting = ctx->waiting;
    ctx->waiting = block;
    if (!ctx->waiting_last) ctx->waiting_last = block;
    ctx->waiting_count++;
    pthread_mutex_unlock(&ctx->lock);
}

/* Whether nothing can use the block's memory any more. */
static bool is_done(um_context *ctx, um_block *block) {
    pthread_mutex_lock(&ctx->lock);
    bool synchronised = ctx->sync_completed > block->freed_epoch;
    um_stream *stream = block->stream;
    pthread_mutex_unlock(&ctx->lock);
    if (synchronised) return true;
    if (block->held && atomic_load(&block->exported)) return false;
    if (!stream) return true;
    bool done = false;
    um_error ignored; /* a driver that cannot say leaves the block waiting */
    return um_stream_poll(stream, block->sequence, &done, &ignored) == UM_OK && done;
}

static void give_back(um_context *ctx, um_block *block) {
    um_stream *dead = NULL;
    pthread_mutex_lock(&ctx->lock);
    if (block->stream) dead = um_stream_unref_locked(block->stream);
    block->stream = NULL;
    pthread_mutex_unlock(&ctx->lock);
    um_stream_destroy(dead);
    um_block_destroy(ctx, block, true);
}

um_status um_pool_poll(um_context *ctx, um_error *err) {
    pthread_mutex_lock(&ctx->lock);
    bool any = ctx->waiting != NULL;
    bool pressing = ctx->all.stats.waiting_current > DRAIN_BYTES || ctx->waiting_count > DRAIN_BLOCKS;
    bool synchronised = any && ctx->sync_completed > ctx->waiting->freed_epoch;
    pthread_mutex_unlock(&ctx->lock);
    if (!any) return UM_OK;
    if (pressing && !synchronised) {
        /* What fails leaves the memory waiting, and is no matter of the caller's. */
        um_error failed;
        um_status status = um_pool_reclaim(ctx, &failed);
        if (status != UM_ERR_INTERRUPTED) return UM_OK;
        if (err) *err = failed;
        return status;
    }
    for (int looked = 0; looked < POLL_BLOCKS || synchronised; looked++) {
        um_block *block = take_waiting(ctx);
        if (!block) return UM_OK;
        if (!is_done(ctx, block)) {
            put_back(ctx, block);
            return UM_OK;
        }
        give_back(ctx, block);
    }
    return UM_OK;
}

void um_pool_drain(um_context *ctx) {
    for (um_block *block = take_waiting(ctx); block; block = take_waiting(ctx)) give_back(ctx, block);
}

um_status um_pool_reclaim(um_context *ctx, um_error *err) {
    um_status status = um_context_wait_everything(ctx, true, err);
    if (status != UM_OK) return status;
    for (um_block *block = take_waiting(ctx); block; block = take_waiting(ctx)) {
        if (!is_done(ctx, block)) { /* freed by another thread since the synchronise */
            put_back(ctx, block);
            break;
        }
        give_back(ctx, block);
    }
    return UM_OK;
}

void um_pool_note_out_of_memory(um_context *ctx) {
    pthread_mutex_lock(&ctx->lock);
    ctx->all.stats.out_of_memory++;
    pthread_mutex_unlock(&ctx->lock);
}

void um_pool_set_limit(um_context *ctx, int device, size_t limit) {
    pthread_mutex_lock(&ctx->lock);
    account(ctx, device)->limit = limit;
    pthread_mutex_unlock(&ctx->lock);
}

size_t um_pool_get_limit(um_context *ctx, int device) {
    pthread_mutex_lock(&ctx->lock);
    size_t limit = account(ctx, device)->limit;
    pthread_mutex_unlock(&ctx->lock);
    return limit;
}

void um_pool_stats(um_context *ctx, int device, um_memory_stats *out) {
    pthread_mutex_lock(&ctx->lock);
    const um_account *from = account(ctx, device);
    *out = from->stats;
    out->limit = from->limit == SIZE_MAX ? 0 : from->limit;
    pthread_mutex_unlock(&ctx->lock);
}

void um_pool_reset_peak(um_context *ctx, int device) {
    pthread_mutex_lock(&ctx->lock);
    um_memory_stats *stats = &account(ctx, device)->stats;
    stats->allocated_peak = stats->allocated_current;
    stats->reserved_peak = stats->reserved_current;
    stats->blocks_peak = stats->blocks_current;
    pthread_mutex_unlock(&ctx->lock);
}

um_status um_pool_trim(um_context *ctx, size_t *released, um_error *err) {
    um_memory_stats before, after;
    um_pool_stats(ctx, UM_ALL_DEVICES, &before);
    um_status status = um_pool_reclaim(ctx, err);
    if (status != UM_OK) return status;
    um_pool_stats(ctx, UM_ALL_DEVICES, &after);
    *released = before.reserved_current > after.reserved_current
                    ? (size_t)(before.reserved_current - after.reserved_current)
                    : 0;
    return UM_OK;
}
