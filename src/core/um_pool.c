#include <stdlib.h>

#include "core/um_internal.h"

#define DRAIN_BYTES  ((size_t)256 << 20) /* memory that waits for a full synchronise beyond this forces one */
#define DRAIN_BLOCKS 4096                /* … and so does this number of blocks */
#define POLL_BLOCKS  4                   /* waiting blocks looked at per allocation */
#define KEEP_LEAST   ((size_t)64 << 20)  /* bytes of empty slabs that are always kept for reuse … */
#define KEEP_SHARE   8                   /* … and beyond that this part of all memory */

void um_pool_init(um_context *ctx) {
    ctx->all.limit = SIZE_MAX;
    for (int device = 0; device < UM_MAX_DEVICES; device++) ctx->devices[device].limit = SIZE_MAX;
    ctx->pool = (um_pool_config){.slab = (size_t)16 << 20,
                                 .large_page = UM_LARGE_PAGE,
                                 .max_split = SIZE_MAX,
                                 .gc_threshold = 0.8,
                                 .keep = SIZE_MAX};
}

static um_account *account(um_context *ctx, int device) {
    return device == UM_ALL_DEVICES ? &ctx->all : &ctx->devices[device];
}

static void raise_peak(uint64_t *peak, uint64_t value) {
    if (*peak < value) *peak = value;
}

/* --- the accounts ------------------------------------------------------------------------------------------------------ */

/* Whether what happens on `device` counts for `asked`, which may be all of them. */
static bool covers(int asked, int device) { return asked == UM_ALL_DEVICES || asked == device; }

/* Adds what a shard has done since it was last published. Its peak counts on top of what the others have now. */
static void publish(um_usage *stats, const um_shard *shard) {
    const um_counts *now = &shard->counts, *then = &shard->published;
    int64_t bytes = (int64_t)stats->allocated_current - (int64_t)(then->allocated - then->freed);
    int64_t blocks = (int64_t)stats->blocks_current - (int64_t)(then->blocks_allocated - then->blocks_freed);
    if (bytes + shard->bytes_peak > 0) raise_peak(&stats->allocated_peak, (uint64_t)(bytes + shard->bytes_peak));
    if (blocks + shard->blocks_peak > 0) raise_peak(&stats->blocks_peak, (uint64_t)(blocks + shard->blocks_peak));
    stats->allocated_current = (uint64_t)bytes + (now->allocated - now->freed);
    stats->blocks_current = (uint64_t)blocks + (now->blocks_allocated - now->blocks_freed);
    stats->allocated_total += now->allocated - then->allocated;
    stats->blocks_total += now->blocks_allocated - then->blocks_allocated;
}

/* The shard is locked. */
static void publish_shard(um_context *ctx, int device, um_shard *shard) {
    publish(&ctx->all.stats.all, shard);
    publish(&ctx->all.stats.small, shard);
    publish(&account(ctx, device)->stats.all, shard);
    publish(&account(ctx, device)->stats.small, shard);
    for (um_scope *scope = ctx->scopes; scope; scope = scope->next)
        if (covers(scope->device, device)) publish(&scope->now, shard);
    shard->published = shard->counts;
    shard->bytes_peak = (int64_t)(shard->counts.allocated - shard->counts.freed);
    shard->blocks_peak = (int64_t)(shard->counts.blocks_allocated - shard->counts.blocks_freed);
}

void um_pool_publish_locked(um_context *ctx, int device, um_shard *shard) {
    um_shard_lock(shard);
    publish_shard(ctx, device, shard);
    um_shard_unlock(shard);
}

/* All at one moment: a block that one shard has counted out was counted in by another before. */
static void publish_all_locked(um_context *ctx) {
    um_cache_lock_all_locked(ctx);
    for (int device = 0; device < UM_MAX_DEVICES; device++) {
        um_shard *shards = atomic_load(&ctx->shards[device]);
        for (int i = 0; shards && i < UM_SHARDS; i++) publish_shard(ctx, device, &shards[i]);
    }
    um_cache_unlock_all_locked(ctx);
}

static void count_block(um_usage *stats, size_t size, bool is_new) {
    if (is_new) {
        stats->allocated_current += size;
        stats->allocated_total += size;
        stats->blocks_current++;
        stats->blocks_total++;
        raise_peak(&stats->allocated_peak, stats->allocated_current);
        raise_peak(&stats->blocks_peak, stats->blocks_current);
    } else {
        stats->allocated_current -= size;
        stats->blocks_current--;
    }
}

void um_pool_count_block_locked(um_context *ctx, um_shard *shard, const um_block *block, bool is_new) {
    size_t size = block->size;
    int device = block->device;
    bool small = size < UM_SMALL_LIMIT;
    if (small) {
        um_shard_lock(shard);
        if (is_new)
            um_shard_count_new_locked(shard, size);
        else
            um_shard_count_free_locked(shard, size);
        um_shard_unlock(shard);
    }
    um_pool_publish_locked(ctx, device, shard);
    if (!small) {
        count_block(&ctx->all.stats.all, size, is_new);
        count_block(&ctx->all.stats.large, size, is_new);
        count_block(&ctx->devices[device].stats.all, size, is_new);
        count_block(&ctx->devices[device].stats.large, size, is_new);
        for (um_scope *scope = ctx->scopes; scope; scope = scope->next)
            if (covers(scope->device, device)) count_block(&scope->now, size, is_new);
    }
    um_arena *arena = block->chunk.slab->heap->arg;
    if (arena->home.kind != UM_LOCATION_NONE) arena->homed += is_new ? size : -size;
    um_log_note_locked(ctx, block, is_new);
}

static bool is_small_heap(const um_heap *heap) {
    return heap == &((const um_arena *)heap->arg)->stores[UM_STORE_SMALL].heap;
}

/* A slab more or less. */
static void count_slab(um_usage *stats, size_t size, bool is_new) {
    stats->reserved_current += is_new ? size : -size;
    stats->slabs_current += is_new ? 1 : UINT64_MAX;
    if (!is_new) return;
    stats->slabs_total++;
    stats->reserved_total += size;
    raise_peak(&stats->slabs_peak, stats->slabs_current);
    raise_peak(&stats->reserved_peak, stats->reserved_current);
}

void um_pool_count_slab_locked(um_context *ctx, const um_slab *slab, bool is_new) {
    bool small = is_small_heap(slab->heap);
    um_memory_stats *both[2] = {&ctx->all.stats, &ctx->devices[((um_arena *)slab->heap->arg)->device].stats};
    for (int i = 0; i < 2; i++) {
        count_slab(small ? &both[i]->small : &both[i]->large, slab->size, is_new);
        count_slab(&both[i]->all, slab->size, is_new);
    }
}

/* Whether `size` bytes fit under the limit beside `used`. */
static bool has_room(const um_account *account, uint64_t used, size_t size) {
    return account->limit == SIZE_MAX || (size <= account->limit && used <= account->limit - size);
}

static void compare_with_limits_locked(um_context *ctx) {
    bool over = ctx->all.held > ctx->all.limit;
    for (int device = 0; device < UM_MAX_DEVICES && !over; device++)
        over = ctx->devices[device].held > ctx->devices[device].limit;
    if (over)
        atomic_fetch_or(&ctx->detours, UM_DETOUR_LIMIT);
    else
        atomic_fetch_and(&ctx->detours, ~UM_DETOUR_LIMIT);
}

static um_status refuse(const um_account *refused, int device, size_t size, um_error *err) {
    um_status status = um_error_set(
        err, UM_ERR_OUT_OF_MEMORY,
        "cannot allocate %zu bytes: umem holds %llu of the limit%s of %zu bytes. Free arrays, "
        "or raise the limit with umem.set_limit or UMEM_ALLOC_CONF=limit:<size>",
        size, (unsigned long long)refused->held, device == UM_ALL_DEVICES ? "" : " of this device", refused->limit);
    if (err) {
        err->requested = size;
        err->in_use = refused->held;
        err->limit = refused->limit;
        err->device = device;
    }
    return status;
}

um_status um_pool_reserve(um_context *ctx, int device, size_t bytes, size_t size, um_error *err) {
    um_status status = UM_OK;
    um_account *both[2] = {&ctx->all, account(ctx, device)};
    pthread_mutex_lock(&ctx->lock);
    if (!has_room(both[0], both[0]->held, bytes)) {
        status = refuse(both[0], UM_ALL_DEVICES, size, err);
    } else if (!has_room(both[1], both[1]->held, bytes)) {
        status = refuse(both[1], device, size, err);
    }
    for (int i = 0; i < 2 && status == UM_OK; i++) both[i]->held += bytes;
    pthread_mutex_unlock(&ctx->lock);
    return status;
}

void um_pool_unreserve(um_context *ctx, int device, size_t bytes) {
    pthread_mutex_lock(&ctx->lock);
    ctx->all.held -= bytes;
    ctx->devices[device].held -= bytes;
    compare_with_limits_locked(ctx);
    pthread_mutex_unlock(&ctx->lock);
}

um_status um_pool_admit(um_context *ctx, int device, size_t size, um_error *err) {
    if (!um_takes_detour(ctx, UM_DETOUR_LIMIT)) return UM_OK;
    um_status status = UM_OK;
    pthread_mutex_lock(&ctx->lock);
    publish_all_locked(ctx);
    for (int i = 0; i < 2 && status == UM_OK; i++) {
        const um_account *one = account(ctx, i ? device : UM_ALL_DEVICES);
        if (one->held > one->limit && !has_room(one, one->stats.allocated_current, size))
            status = refuse(one, i ? device : UM_ALL_DEVICES, size, err);
    }
    pthread_mutex_unlock(&ctx->lock);
    return status;
}

/* --- waiting ------------------------------------------------------------------------------------------------------------ */

void um_pool_note_waiting_locked(um_context *ctx, const um_block *block, bool waits) {
    uint64_t change = waits ? um_block_held(block) : -(uint64_t)um_block_held(block);
    ctx->all.stats.waiting_current += change;
    account(ctx, block->device)->stats.waiting_current += change;
}

/* The block has come into the waiting list, or is out of it. */
static void count_waiting_locked(um_context *ctx, const um_block *block, bool waits) {
    ctx->waiting_count += waits ? 1 : -(size_t)1;
    ctx->waiting_bytes += waits ? um_block_held(block) : -um_block_held(block);
    um_pool_note_waiting_locked(ctx, block, waits);
}

void um_pool_add_waiting_locked(um_context *ctx, um_block *block) {
    um_list_append(&ctx->waiting, block);
    count_waiting_locked(ctx, block, true);
}

/* Takes the oldest waiting block out of the list; *done says whether it is known to be done. */
static um_block *take_waiting(um_context *ctx, bool *done) {
    pthread_mutex_lock(&ctx->lock);
    um_block *block = um_list_take_first(&ctx->waiting);
    if (block) {
        count_waiting_locked(ctx, block, false);
        *done = um_arena_is_done_locked(ctx, block);
    }
    pthread_mutex_unlock(&ctx->lock);
    return block;
}

static void put_back(um_context *ctx, um_block *block) {
    pthread_mutex_lock(&ctx->lock);
    um_list_put_first(&ctx->waiting, block);
    count_waiting_locked(ctx, block, true);
    pthread_mutex_unlock(&ctx->lock);
}

/* Whether nothing can be using the memory any more. */
static bool ask_whether_done(um_block *block) {
    if (um_block_held(block) && atomic_load(&block->exported)) return false; /* until the next full synchronise */
    bool done = false;
    um_error ignored; /* a driver that cannot say leaves the block waiting */
    return um_stream_poll(block->stream, block->sequence, &done, &ignored) == UM_OK && done;
}

static void give_back(um_context *ctx, um_block *block) {
    if (!block->chunk.slab) {
        um_block_end_wrapped(ctx, block);
        return;
    }
    pthread_mutex_lock(&ctx->lock);
    um_stream *dead = um_arena_settle_locked(ctx, block);
    pthread_mutex_unlock(&ctx->lock);
    um_stream_destroy(dead);
}

/* Gives back the oldest waiting blocks, `most` of them, up to the first that is not done. */
static void drain(um_context *ctx, size_t most) {
    for (size_t count = 0; count < most; count++) {
        bool done = false;
        um_block *block = take_waiting(ctx, &done);
        if (!block) return;
        if (!done && !ask_whether_done(block)) {
            put_back(ctx, block);
            return;
        }
        give_back(ctx, block);
    }
}

um_status um_pool_poll(um_context *ctx, um_error *err) {
    pthread_mutex_lock(&ctx->lock);
    um_block *oldest = ctx->waiting.first;
    bool pressing = ctx->waiting_bytes > DRAIN_BYTES || ctx->waiting_count > DRAIN_BLOCKS;
    bool synchronised = oldest && ctx->sync_completed > oldest->freed_epoch;
    pthread_mutex_unlock(&ctx->lock);
    if (!oldest) return UM_OK;
    if (pressing && !synchronised) {
        /* What fails leaves the memory waiting, and is no matter of the caller's. */
        um_error failed;
        um_status status = um_context_wait_everything(ctx, true, &failed);
        if (status == UM_ERR_INTERRUPTED && err) *err = failed;
        if (status == UM_ERR_INTERRUPTED) return status;
        synchronised = status == UM_OK;
    }
    drain(ctx, synchronised ? SIZE_MAX : POLL_BLOCKS);
    return UM_OK;
}

/* --- giving back ----------------------------------------------------------------------------------------------------------- */

/* Takes the blocks that shards keep. */
static void empty_shards(um_context *ctx) {
    for (int device = 0; device < UM_MAX_DEVICES; device++) {
        um_shard *shards = atomic_load(&ctx->shards[device]);
        for (int i = 0; shards && i < UM_SHARDS; i++) um_cache_empty(ctx, &shards[i]);
    }
}

void um_pool_close(um_context *ctx) {
    pthread_mutex_lock(&ctx->lock);
    ctx->sync_completed = UINT64_MAX; /* nobody is left who could be using anything */
    pthread_mutex_unlock(&ctx->lock);
    empty_shards(ctx);
    drain(ctx, SIZE_MAX);
    um_arena_poll(ctx);
}

um_status um_pool_reclaim(um_context *ctx, um_error *err) {
    empty_shards(ctx);
    um_status status = um_context_wait_everything(ctx, true, err);
    if (status != UM_OK) return status;
    drain(ctx, SIZE_MAX);
    um_arena_poll(ctx);
    um_arena_release(ctx, 0);
    return UM_OK;
}

/* Bytes of memory that a limit would be a share of, asked for once; 0 when that cannot be known. */
static size_t total_memory(um_context *ctx, int device) {
    um_backend *backend = ctx->backend;
    size_t total = atomic_load_explicit(&ctx->total_memory[device], memory_order_relaxed);
    if (total) return total;
    um_error ignored;
    if (um_context_is_cuda(ctx)) {
        um_device_info info;
        if (backend->ops->device_info(backend, device, &info, &ignored) == UM_OK) total = info.total_memory;
    } else {
        size_t free_bytes, found;
        if (backend->ops->mem_info(backend, device, &free_bytes, &found, &ignored) == UM_OK) total = found;
    }
    atomic_store_explicit(&ctx->total_memory[device], total, memory_order_relaxed);
    return total;
}

void um_pool_after_free(um_context *ctx) {
    pthread_mutex_lock(&ctx->lock);
    size_t idle = ctx->idle, keep = ctx->pool.keep;
    pthread_mutex_unlock(&ctx->lock);
    if (idle <= KEEP_LEAST) return;
    if (keep == SIZE_MAX) {
        keep = total_memory(ctx, 0) / KEEP_SHARE;
        if (keep < KEEP_LEAST) keep = KEEP_LEAST;
        pthread_mutex_lock(&ctx->lock);
        if (ctx->pool.keep == SIZE_MAX) ctx->pool.keep = keep;
        keep = ctx->pool.keep;
        pthread_mutex_unlock(&ctx->lock);
    }
    if (idle > keep) um_arena_release(ctx, keep);
}

static bool is_past(double threshold, size_t limit, uint64_t held, size_t bytes) {
    return (double)held + (double)bytes > threshold * (double)limit;
}

void um_pool_make_room(um_context *ctx, int device, size_t bytes) {
    bool limited = false, past = false;
    pthread_mutex_lock(&ctx->lock);
    double threshold = ctx->pool.gc_threshold;
    uint64_t held = account(ctx, device)->held;
    for (int i = 0; i < 2; i++) {
        const um_account *one = account(ctx, i ? device : UM_ALL_DEVICES);
        if (one->limit == SIZE_MAX) continue;
        limited = true;
        past = past || is_past(threshold, one->limit, one->held, bytes);
    }
    pthread_mutex_unlock(&ctx->lock);
    if (!limited) {
        size_t total = total_memory(ctx, device);
        past = total && is_past(threshold, total, held, bytes);
    }
    if (!past) return;
    um_arena_poll(ctx);
    um_arena_release(ctx, 0);
}

bool um_pool_may_retry(um_context *ctx, int device) {
    pthread_mutex_lock(&ctx->lock);
    publish_all_locked(ctx);
    bool may = ctx->waiting.first || ctx->all.held > ctx->all.stats.allocated_current;
    ctx->all.stats.retries += may;
    ctx->devices[device].stats.retries += may;
    pthread_mutex_unlock(&ctx->lock);
    return may;
}

void um_pool_note_out_of_memory(um_context *ctx, int device) {
    pthread_mutex_lock(&ctx->lock);
    ctx->all.stats.out_of_memory++;
    if (device != UM_ALL_DEVICES) ctx->devices[device].stats.out_of_memory++;
    pthread_mutex_unlock(&ctx->lock);
}

void um_pool_set_limit(um_context *ctx, int device, size_t limit) {
    pthread_mutex_lock(&ctx->lock);
    account(ctx, device)->limit = limit;
    compare_with_limits_locked(ctx);
    pthread_mutex_unlock(&ctx->lock);
    um_error ignored; /* what cannot be given back now still counts */
    if (um_takes_detour(ctx, UM_DETOUR_LIMIT)) (void)!um_pool_reclaim(ctx, &ignored);
}

size_t um_pool_get_limit(um_context *ctx, int device) {
    pthread_mutex_lock(&ctx->lock);
    size_t limit = account(ctx, device)->limit;
    pthread_mutex_unlock(&ctx->lock);
    return limit;
}

void um_pool_get_config(um_context *ctx, um_pool_config *out) {
    pthread_mutex_lock(&ctx->lock);
    *out = ctx->pool;
    pthread_mutex_unlock(&ctx->lock);
}

void um_pool_set_config(um_context *ctx, const um_pool_config *config) {
    pthread_mutex_lock(&ctx->lock);
    ctx->pool = *config;
    pthread_mutex_unlock(&ctx->lock);
}

void um_pool_stats(um_context *ctx, int device, um_memory_stats *out) {
    pthread_mutex_lock(&ctx->lock);
    publish_all_locked(ctx);
    const um_account *from = account(ctx, device);
    *out = from->stats;
    out->freed_total = out->allocated_total - out->allocated_current;
    out->limit = from->limit == SIZE_MAX ? 0 : from->limit;
    for (const um_arena *arena = ctx->arenas; arena; arena = arena->next)
        for (int kind = 0; kind < UM_STORE_KINDS && covers(device, arena->device); kind++) {
            const um_store *store = &arena->stores[kind];
            out->in_blocks += store->heap.used;
            out->idle += store->idle;
            out->split += store->heap.reserved - store->heap.used - store->idle;
        }
    pthread_mutex_unlock(&ctx->lock);
}

static size_t arena_reserved(const um_arena *arena) {
    size_t reserved = 0;
    for (int kind = 0; kind < UM_STORE_KINDS; kind++) reserved += arena->stores[kind].heap.reserved;
    return reserved;
}

size_t um_pool_homes(um_context *ctx, int device, um_home_stats *out, size_t room) {
    size_t count = 0, none = SIZE_MAX;
    uint64_t homed = 0;
    pthread_mutex_lock(&ctx->lock);
    publish_all_locked(ctx);
    for (const um_arena *arena = ctx->arenas; arena; arena = arena->next) {
        size_t reserved = arena_reserved(arena);
        if (!covers(device, arena->device) || !reserved) continue;
        size_t at = 0;
        while (at < count && !um_location_equal(out[at].home, arena->home)) at++;
        if (at == room) continue;
        if (at == count) out[count++] = (um_home_stats){.home = arena->home};
        out[at].reserved_current += reserved;
        out[at].allocated_current += arena->homed;
        homed += arena->homed;
        if (arena->home.kind == UM_LOCATION_NONE) none = at;
    }
    /* Blocks without a home are not counted by arena: they are all the others. */
    if (none != SIZE_MAX) out[none].allocated_current = account(ctx, device)->stats.allocated_current - homed;
    pthread_mutex_unlock(&ctx->lock);
    return count;
}

size_t um_pool_largest_free(um_context *ctx, int device) {
    size_t largest = 0;
    pthread_mutex_lock(&ctx->lock);
    for (const um_arena *arena = ctx->arenas; arena; arena = arena->next)
        for (int kind = 0; kind < UM_STORE_KINDS && covers(device, arena->device); kind++) {
            size_t found = um_heap_largest_free(&arena->stores[kind].heap);
            if (found > largest) largest = found;
        }
    pthread_mutex_unlock(&ctx->lock);
    return largest;
}

static void reset_usage_peaks(um_usage *stats) {
    stats->allocated_peak = stats->allocated_current;
    stats->blocks_peak = stats->blocks_current;
    stats->reserved_peak = stats->reserved_current;
    stats->slabs_peak = stats->slabs_current;
}

static void reset_peaks(um_account *of) {
    reset_usage_peaks(&of->stats.all);
    reset_usage_peaks(&of->stats.small);
    reset_usage_peaks(&of->stats.large);
}

void um_pool_reset_peak(um_context *ctx, int device) {
    pthread_mutex_lock(&ctx->lock);
    publish_all_locked(ctx);
    reset_peaks(account(ctx, device));
    for (int one = 0; one < UM_MAX_DEVICES && device == UM_ALL_DEVICES; one++) reset_peaks(account(ctx, one));
    pthread_mutex_unlock(&ctx->lock);
}

/* --- scopes ------------------------------------------------------------------------------------------------------------------ */

um_scope *um_pool_scope_new(um_context *ctx, int device) {
    um_scope *scope = calloc(1, sizeof *scope);
    if (!scope) return NULL;
    scope->ctx = um_context_ref(ctx);
    scope->device = device;
    scope->open = true;
    pthread_mutex_lock(&ctx->lock);
    publish_all_locked(ctx);
    scope->begin = scope->now = account(ctx, device)->stats.all;
    reset_usage_peaks(&scope->now);
    scope->next = ctx->scopes;
    ctx->scopes = scope;
    pthread_mutex_unlock(&ctx->lock);
    return scope;
}

void um_pool_scope_read(um_scope *scope, um_scope_stats *out) {
    um_context *ctx = scope->ctx;
    pthread_mutex_lock(&ctx->lock);
    if (scope->open) publish_all_locked(ctx);
    const um_usage *begin = &scope->begin, *now = &scope->now;
    out->allocated = now->allocated_total - begin->allocated_total;
    out->freed = out->allocated + begin->allocated_current - now->allocated_current;
    out->blocks_allocated = now->blocks_total - begin->blocks_total;
    out->blocks_freed = out->blocks_allocated + begin->blocks_current - now->blocks_current;
    out->peak = now->allocated_peak - begin->allocated_current;
    out->blocks_peak = now->blocks_peak - begin->blocks_current;
    pthread_mutex_unlock(&ctx->lock);
}

void um_pool_scope_end(um_scope *scope) {
    um_context *ctx = scope->ctx;
    pthread_mutex_lock(&ctx->lock);
    if (scope->open) {
        publish_all_locked(ctx);
        um_scope **at = &ctx->scopes;
        while (*at != scope) at = &(*at)->next;
        *at = scope->next;
        scope->open = false;
    }
    pthread_mutex_unlock(&ctx->lock);
}

void um_pool_scope_free(um_scope *scope) {
    um_pool_scope_end(scope);
    um_context_unref(scope->ctx);
    free(scope);
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
