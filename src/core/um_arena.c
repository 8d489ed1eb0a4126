/* Memory by device and home: slabs from the backend, heaps over them, and freed blocks whose work is unfinished. */
#include <stdlib.h>
#include <string.h>

#include "core/um_internal.h"

#define BATCH          63                /* structs made at a time */
#define SMALL_SLAB     ((size_t)2 << 20) /* first slab of small blocks */
#define SMALL_SLAB_MAX ((size_t)32 << 20)
#define LARGE_SLAB_MAX ((size_t)256 << 20)
#define SLAB_UNIT      ((size_t)2 << 20) /* slabs are multiples of it, where the limits allow */

/* --- structs ------------------------------------------------------------------------------------------------------------- */

typedef struct batch {
    struct batch *next;
    um_block blocks[BATCH];
} batch;

um_block *um_arena_new_struct_locked(um_context *ctx) {
    if (!ctx->spare) {
        batch *made = calloc(1, sizeof *made);
        if (!made) return NULL;
        made->next = ctx->batches;
        ctx->batches = made;
        for (size_t i = 0; i < BATCH; i++) um_arena_free_struct_locked(ctx, &made->blocks[i]);
    }
    um_block *block = ctx->spare;
    ctx->spare = um_block_of(block->chunk.next);
    return block;
}

void um_arena_free_struct_locked(um_context *ctx, um_block *block) {
    block->chunk.next = ctx->spare ? &ctx->spare->chunk : NULL;
    ctx->spare = block;
}

static um_chunk *new_chunk(void *arena) {
    um_block *block = um_arena_new_struct_locked(((um_arena *)arena)->ctx);
    return block ? &block->chunk : NULL;
}

static void free_chunk(void *arena, um_chunk *chunk) {
    um_arena_free_struct_locked(((um_arena *)arena)->ctx, um_block_of(chunk));
}

/* --- lists of freed blocks ---------------------------------------------------------------------------------------------- */

um_block *um_list_take_first(um_list *list) {
    um_block *block = list->first;
    if (!block) return NULL;
    list->first = block->chunk.next ? um_block_of(block->chunk.next) : NULL;
    if (!list->first) list->last = NULL;
    return block;
}

void um_list_append(um_list *list, um_block *block) {
    block->chunk.next = NULL;
    if (list->last)
        list->last->chunk.next = &block->chunk;
    else
        list->first = block;
    list->last = block;
}

void um_list_put_first(um_list *list, um_block *block) {
    block->chunk.next = list->first ? &list->first->chunk : NULL;
    if (!list->last) list->last = block;
    list->first = block;
}

/* --- slabs by address ---------------------------------------------------------------------------------------------------- */

/* Index of the first slab above the address. */
static size_t slab_above(const um_context *ctx, const char *address) {
    size_t low = 0, high = ctx->slab_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ctx->slabs[middle]->ptr > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

um_slab *um_arena_find_slab_locked(const um_context *ctx, const char *address) {
    size_t above = slab_above(ctx, address);
    if (!above) return NULL;
    um_slab *slab = ctx->slabs[above - 1];
    return (size_t)(address - slab->ptr) < slab->size ? slab : NULL;
}

/* Room for one more entry; false when there is no memory. */
static bool make_slab_room(um_context *ctx) {
    if (ctx->slab_count < ctx->slab_room) return true;
    size_t room = ctx->slab_room ? 2 * ctx->slab_room : 64;
    um_slab **grown = realloc(ctx->slabs, room * sizeof(um_slab *));
    if (!grown) return false;
    ctx->slabs = grown;
    ctx->slab_room = room;
    return true;
}

static void index_slab(um_context *ctx, um_slab *slab) {
    size_t at = slab_above(ctx, slab->ptr);
    memmove(ctx->slabs + at + 1, ctx->slabs + at, (ctx->slab_count - at) * sizeof(um_slab *));
    ctx->slabs[at] = slab;
    ctx->slab_count++;
}

static void unindex_slab(um_context *ctx, const um_slab *slab) {
    size_t at = slab_above(ctx, slab->ptr) - 1;
    ctx->slab_count--;
    memmove(ctx->slabs + at, ctx->slabs + at + 1, (ctx->slab_count - at) * sizeof(um_slab *));
}

/* --- arenas ----------------------------------------------------------------------------------------------------------------- */

um_arena *um_arena_get_locked(um_context *ctx, int device, um_location home) {
    for (um_arena *arena = ctx->arenas; arena; arena = arena->next)
        if (arena->device == device && um_location_equal(arena->home, home)) return arena;
    um_arena *arena = calloc(1, sizeof *arena);
    if (!arena) return NULL;
    arena->ctx = ctx;
    arena->device = device;
    arena->home = home;
    for (int kind = 0; kind < UM_STORE_KINDS; kind++)
        um_heap_init(&arena->stores[kind].heap, kind == UM_STORE_SMALL ? UM_SMALL_GRANULE : UM_LARGE_GRANULE, new_chunk,
                     free_chunk, arena);
    arena->next = ctx->arenas;
    ctx->arenas = arena;
    return arena;
}

/* Where a request is served, and how. */
typedef struct request {
    um_store *store;
    um_store_kind kind;
    size_t size;       /* bytes asked for */
    size_t class_size; /* bytes it takes; 0: more than there can be */
    size_t alignment;
} request;

static request plan_request(um_arena *arena, size_t size) {
    const um_pool_config *config = &arena->ctx->pool;
    size_t most = LARGE_SLAB_MAX / 2;
    if (config->max_split < most) most = config->max_split;
    request plan = {.size = size, .kind = UM_STORE_SMALL, .alignment = UM_SMALL_GRANULE};
    if (size >= UM_SMALL_LIMIT) {
        plan.kind = size > most ? UM_STORE_WHOLE : UM_STORE_LARGE;
    }
    plan.store = &arena->stores[plan.kind];
    plan.class_size = um_heap_class_size(&plan.store->heap, size);
    /* Of a class all or none, since freed blocks of a class serve any request of it. */
    if (size >= UM_SMALL_LIMIT)
        plan.alignment = plan.class_size >= config->large_page ? UM_LARGE_PAGE : UM_LARGE_GRANULE;
    return plan;
}

static um_store *store_of(const um_block *block) { return (um_store *)block->chunk.slab->heap; }

/* Takes a freed block whose work is unfinished; the newest goes to the end. */
static void add_pending(um_block *block, bool newest) {
    um_store *store = store_of(block);
    um_list *list = &store->pending[um_heap_class_of(&store->heap, block->chunk.size)];
    if (newest)
        um_list_append(list, block);
    else
        um_list_put_first(list, block);
    store->pending_count++;
    um_pool_note_waiting_locked(block->ctx, block, true);
}

/* The oldest of a class, or NULL. */
static um_block *take_pending(um_store *store, size_t class) {
    um_block *block = um_list_take_first(&store->pending[class]);
    if (!block) return NULL;
    store->pending_count--;
    um_pool_note_waiting_locked(block->ctx, block, false);
    return block;
}

/* A slab begins or ends to be empty. */
static void note_idle(um_context *ctx, const um_slab *slab, bool idle) {
    size_t change = idle ? slab->size : -slab->size;
    ctx->idle += change;
    ((um_store *)slab->heap)->idle += change;
}

/* Makes a block of a chunk that has just been taken. */
static um_block *start_block(um_arena *arena, um_chunk *chunk) {
    um_block *block = um_block_of(chunk);
    um_slab *slab = chunk->slab;
    um_context *ctx = arena->ctx;
    const um_pages *pages = slab->owner_data;
    bool small = slab->heap == &arena->stores[UM_STORE_SMALL].heap;
    if (slab->used == chunk->size) note_idle(ctx, slab, false);
    block->ctx = ctx;
    block->device = (unsigned char)arena->device;
    block->stream = NULL;
    block->chunk.owned = NULL;
    block->bin = small && arena->home.kind == UM_LOCATION_NONE ? (signed char)um_heap_class_of(slab->heap, chunk->size)
                                                               : (signed char)-1;
    atomic_store(&block->gpu_touched, atomic_load(&pages->gpu_touched));
    return block;
}

/* What a new life begins with. Views have ended with the old one. */
static um_block *reset_block(um_block *block) {
    block->advised = false;
    block->pages_known = false; /* it may be longer than before */
    atomic_store(&block->viewed_forever, false);
    atomic_store(&block->writable_forever, false);
    atomic_store(&block->exported, false);
    atomic_store(&block->prepared, false);
    return block;
}

/* A slab that a block of the class fills as a whole. */
static um_chunk *take_whole(um_heap *heap, size_t class_size) {
    um_chunk *chunk = um_heap_peek(heap, class_size);
    if (chunk) um_heap_use(heap, chunk);
    return chunk;
}

static um_chunk *take_chunk(const request *plan) {
    um_heap *heap = &plan->store->heap;
    if (plan->kind == UM_STORE_WHOLE) return take_whole(heap, plan->class_size);
    bool out_of_memory; /* for the bookkeeping: as good as nothing at hand, and asking for more will say so */
    return um_heap_take(heap, plan->class_size, plan->alignment, &out_of_memory);
}

um_block *um_arena_take_locked(um_arena *arena, size_t size) {
    request plan = plan_request(arena, size);
    if (!plan.class_size) return NULL;
    /* Memory in use first: work on the same stream may use it at once, and its pages exist. */
    um_block *block = take_pending(plan.store, um_heap_class_of(&plan.store->heap, plan.class_size));
    if (block) return reset_block(block);
    um_chunk *chunk = take_chunk(&plan);
    return chunk ? reset_block(start_block(arena, chunk)) : NULL;
}

/* --- growing ---------------------------------------------------------------------------------------------------------------- */

/* Bytes of the next slab: as much again as the store has, within bounds. */
static size_t next_slab(const um_arena *arena, const request *plan) {
    if (plan->kind == UM_STORE_WHOLE) return plan->class_size;
    size_t size = plan->store->heap.reserved;
    size_t least = plan->kind == UM_STORE_SMALL ? SMALL_SLAB : arena->ctx->pool.slab;
    size_t most = plan->kind == UM_STORE_SMALL ? SMALL_SLAB_MAX : LARGE_SLAB_MAX;
    if (size > most) size = most;
    if (size < least) size = least;
    if (size < plan->class_size) size = plan->class_size;
    return um_round_up(size, SLAB_UNIT);
}

/* Takes an empty slab out of the books; its memory is the caller's. */
static void forget_slab(um_context *ctx, um_slab *slab) {
    note_idle(ctx, slab, false);
    unindex_slab(ctx, slab);
    um_heap_remove_slab(slab->heap, slab);
}

/* Makes the memory known and takes a block of it: all of it when `exact`. NULL when there is no memory for the bookkeeping. */
static um_block *add_slab(um_arena *arena, const request *plan, char *ptr, size_t size, bool exact) {
    um_context *ctx = arena->ctx;
    um_heap *heap = &plan->store->heap;
    um_pages *pages = calloc(1, sizeof *pages);
    if (!pages) return NULL;
    pages->base = ptr;
    pages->size = size;
    um_block *block = NULL;
    pthread_mutex_lock(&ctx->lock);
    um_slab *slab = make_slab_room(ctx) ? um_heap_add_slab(heap, ptr, size) : NULL;
    if (slab) {
        slab->owner_data = pages;
        index_slab(ctx, slab);
        note_idle(ctx, slab, true);
        um_chunk *chunk = NULL;
        bool out_of_memory = false;
        if (exact || plan->kind == UM_STORE_WHOLE)
            um_heap_use(heap, chunk = slab->first);
        else
            chunk = um_heap_take(heap, plan->class_size, plan->alignment, &out_of_memory);
        /* A backend that does not align its memory costs speed only. */
        if (!chunk && !out_of_memory) chunk = um_heap_take(heap, plan->class_size, heap->granule, &out_of_memory);
        if (chunk) {
            um_pool_count_slab_locked(ctx, slab, true);
            block = reset_block(start_block(arena, chunk));
        } else {
            forget_slab(ctx, slab);
        }
    }
    pthread_mutex_unlock(&ctx->lock);
    if (!block) free(pages);
    return block;
}

/* The backend's refusal of a slab as that of a request of `size` bytes. */
static void explain_refusal(um_context *ctx, size_t size, um_error *err) {
    um_error why = *err;
    pthread_mutex_lock(&ctx->lock);
    size_t in_use = ctx->all.stats.reserved_current;
    pthread_mutex_unlock(&ctx->lock);
    (void)um_error_set(err, UM_ERR_OUT_OF_MEMORY,
                       "cannot allocate %zu bytes: %s. umem holds %zu bytes. Free arrays, end other programs that use "
                       "the memory, or make room in a function given to umem.on_out_of_memory",
                       size, why.message, in_use);
    err->call = why.call;
    memcpy(err->name, why.name, sizeof(err->name));
    err->device = why.device;
    err->requested = size;
    err->in_use = in_use;
}

static um_status grow_by(um_arena *arena, const request *plan, size_t size, bool exact, um_block **out, um_error *err) {
    um_context *ctx = arena->ctx;
    um_backend *backend = ctx->backend;
    um_status status = um_pool_reserve(ctx, arena->device, size, plan->size, err);
    if (status != UM_OK) return status;
    void *ptr;
    status = backend->ops->mem_alloc(backend, size, arena->device, arena->home, &ptr, err);
    if (status == UM_OK) {
        *out = add_slab(arena, plan, ptr, size, exact);
        if (*out) return UM_OK;
        status = um_error_set(err, UM_ERR_NO_MEMORY, "no memory for a block's bookkeeping");
        um_error ignored;
        (void)!backend->ops->mem_free(backend, ptr, size, arena->device, &ignored);
    }
    um_pool_unreserve(ctx, arena->device, size);
    if (status == UM_ERR_OUT_OF_MEMORY && err) explain_refusal(ctx, plan->size, err);
    return status;
}

um_status um_arena_grow(um_arena *arena, size_t size, um_block **out, um_error *err) {
    um_context *ctx = arena->ctx;
    pthread_mutex_lock(&ctx->lock);
    request plan = plan_request(arena, size);
    size_t wanted = plan.class_size ? next_slab(arena, &plan) : 0;
    pthread_mutex_unlock(&ctx->lock);
    if (!plan.class_size) {
        um_status status = um_error_set(err, UM_ERR_OUT_OF_MEMORY,
                                        "cannot allocate %zu bytes: more than an address space holds", size);
        if (err) err->requested = size;
        return status;
    }
    um_pool_make_room(ctx, arena->device, wanted);
    um_status status = grow_by(arena, &plan, wanted, false, out, err);
    size_t enough = plan.kind == UM_STORE_SMALL ? plan.class_size : um_round_up(size, UM_LARGE_GRANULE);
    if (status == UM_ERR_OUT_OF_MEMORY && enough < wanted) status = grow_by(arena, &plan, enough, true, out, err);
    return status;
}

/* --- shrinking ----------------------------------------------------------------------------------------------------------------- */

bool um_arena_is_done_locked(const um_context *ctx, const um_block *block) {
    if (ctx->sync_completed > block->freed_epoch) return true;
    if (um_block_held(block) && atomic_load(&block->exported)) return false;
    return !block->stream || um_stream_has_done_locked(block->stream, block->sequence);
}

um_stream *um_arena_settle_locked(um_context *ctx, um_block *block) {
    block->chunk.fresh = false;
    if (!um_arena_is_done_locked(ctx, block)) {
        add_pending(block, true);
        return NULL;
    }
    um_stream *dead = block->stream ? um_stream_unref_locked(block->stream) : NULL;
    block->stream = NULL;
    um_slab *empty = um_heap_give(block->chunk.slab->heap, &block->chunk);
    if (empty) note_idle(ctx, empty, true);
    return dead;
}

/* Takes the oldest pending block of the next class that has one, from *class on; NULL when there is none. *done says whether its work is
 * known to be done. */
static um_block *take_next_pending(um_context *ctx, um_store *store, size_t *class, bool *done) {
    um_block *block = NULL;
    pthread_mutex_lock(&ctx->lock);
    for (; store->pending_count && *class < UM_STORE_CLASSES && !block; ++*class) block = take_pending(store, *class);
    if (block) *done = um_arena_is_done_locked(ctx, block);
    pthread_mutex_unlock(&ctx->lock);
    if (block) --*class; /* it may have more */
    return block;
}

/* Settles what is done, class by class from the oldest to the first that is not. */
static void poll_store(um_context *ctx, um_store *store) {
    bool done = false;
    for (size_t class = 0; class < UM_STORE_CLASSES; class += !done) {
        um_block *block = take_next_pending(ctx, store, &class, &done);
        if (!block) return;
        um_error ignored; /* a driver that cannot say leaves the block waiting */
        if (!done && um_stream_poll(block->stream, block->sequence, &done, &ignored) != UM_OK) done = false;
        pthread_mutex_lock(&ctx->lock);
        um_stream *dead = NULL;
        if (done)
            dead = um_arena_settle_locked(ctx, block);
        else
            add_pending(block, false);
        pthread_mutex_unlock(&ctx->lock);
        um_stream_destroy(dead);
    }
}

void um_arena_poll(um_context *ctx) {
    pthread_mutex_lock(&ctx->lock);
    um_arena *arena = ctx->arenas; /* arenas come in front and stay */
    pthread_mutex_unlock(&ctx->lock);
    for (; arena; arena = arena->next)
        for (int kind = 0; kind < UM_STORE_KINDS; kind++) poll_store(ctx, &arena->stores[kind]);
}

/* Takes one empty slab out of the books, or returns false. */
static bool take_empty_slab(um_context *ctx, size_t keep, um_range *range, int *device) {
    pthread_mutex_lock(&ctx->lock);
    um_slab *found = NULL;
    for (size_t i = 0; i < ctx->slab_count && ctx->idle > keep && !found; i++)
        if (um_slab_is_empty(ctx->slabs[i])) found = ctx->slabs[i];
    if (found) {
        um_pages *pages = found->owner_data;
        *range = (um_range){found->ptr, found->size};
        *device = ((um_arena *)found->heap->arg)->device;
        um_pool_count_slab_locked(ctx, found, false);
        forget_slab(ctx, found);
        um_pages_clear(pages);
        free(pages);
    }
    pthread_mutex_unlock(&ctx->lock);
    return found != NULL;
}

void um_arena_release(um_context *ctx, size_t keep) {
    um_range range;
    int device;
    um_backend *backend = ctx->backend;
    while (take_empty_slab(ctx, keep, &range, &device)) {
        um_error ignored; /* the backend has given the memory up whatever it reports, and nobody is left to tell */
        (void)!backend->ops->mem_free(backend, range.ptr, range.size, device, &ignored);
        um_pool_unreserve(ctx, device, range.size);
    }
}

void um_arena_close(um_context *ctx) {
    bool lost = um_context_is_forked(ctx); /* a forked child owns nothing of this */
    for (size_t i = 0; i < ctx->slab_count; i++) {
        um_slab *slab = ctx->slabs[i];
        um_error ignored;
        int device = ((um_arena *)slab->heap->arg)->device;
        if (!lost) (void)!ctx->backend->ops->mem_free(ctx->backend, slab->ptr, slab->size, device, &ignored);
        um_pages_clear(slab->owner_data);
        free(slab->owner_data);
        um_heap_drop_slab(slab);
    }
    free(ctx->slabs);
    while (ctx->arenas) {
        um_arena *next = ctx->arenas->next;
        free(ctx->arenas);
        ctx->arenas = next;
    }
    while (ctx->batches) {
        batch *next = ((batch *)ctx->batches)->next;
        free(ctx->batches);
        ctx->batches = next;
    }
}
