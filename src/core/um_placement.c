#include "core/um_placement.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/um_internal.h"

um_status um_location_check(um_context *ctx, um_location where, um_error *err) {
    if (where.kind == UM_LOCATION_NUMA && !um_numa_has(&ctx->backend->numa, where.id))
        return um_error_set(err, UM_ERR_VALUE, "there is no NUMA node %d on this machine", where.id);
    if (where.kind != UM_LOCATION_DEVICE || !um_context_is_cuda(ctx)) return UM_OK;
    int count = ctx->backend->device_count;
    if (where.id >= 0 && where.id < count) return UM_OK;
    char present[UM_MAX_DEVICES * 12] = "";
    size_t used = 0;
    for (int device = 0; device < count; device++)
        used += (size_t)snprintf(present + used, sizeof present - used, "%scuda:%d", device ? ", " : "", device);
    return um_error_set(err, UM_ERR_VALUE, "there is no device cuda:%d; present: cpu, %s", where.id, present);
}

/* The legacy stream of `device` when the caller names none. */
static um_stream *stream_or_legacy(um_context *ctx, um_stream *stream, int device) {
    return stream ? stream : &ctx->legacy[device];
}

/* Takes the part of a range whose contents the program has given up; size 0 when there is none. */
static um_range take_discarded(const um_access *range) {
    um_block *block = range->block;
    um_range taken = {0};
    pthread_mutex_lock(&block->ctx->lock);
    um_block_more *more = block->chunk.owned;
    if (more && more->discarded_size) {
        size_t begin = range->offset > more->discarded_offset ? range->offset : more->discarded_offset;
        size_t end = range->offset + range->size;
        size_t discarded_end = more->discarded_offset + more->discarded_size;
        if (end > discarded_end) end = discarded_end;
        if (begin < end) {
            more->discarded_size = 0;
            taken = (um_range){block->chunk.ptr + begin, end - begin};
        }
    }
    pthread_mutex_unlock(&block->ctx->lock);
    return taken;
}

/* Whether a prefetch to `where` will move every page of the range. Only then does it undo a discard. */
static bool will_move(um_range range, um_location where) {
    return um_location_is_host(where) ? !um_host_resident_at_all(range.ptr, range.size)
                                      : um_host_resident(range.ptr, range.size);
}

/* Discards what of the range may be discarded, so that the prefetch that follows on the same stream moves nothing for it. */
static um_status discard_before_prefetch(const um_access *range, um_location where, um_stream *on, um_error *err) {
    um_block *block = range->block;
    um_range discarded = take_discarded(range);
    if (!discarded.size || um_block_has_unseen_writers(block)) return UM_OK;
    um_status status =
        um_context_wait_everything(block->ctx, true, err); /* a move under way would hide where the pages will be */
    if (status != UM_OK || !will_move(discarded, where)) return status;
    um_access access = {.block = block, .offset = range->offset, .size = range->size};
    status = um_work_begin(on, &access, 1, err);
    if (status != UM_OK) return status;
    status = block->ctx->backend->ops->discard(block->ctx->backend, discarded, on->device, on->handle, err);
    um_work_abandon(on); /* it is the prefetch that the program asked for, and nobody waits for that */
    return status;
}

um_status um_prefetch(um_context *ctx, const um_access *ranges, size_t count, um_location where, um_stream *stream,
                      um_error *err) {
    um_status status = um_context_check(ctx, err);
    if (status == UM_OK) status = um_location_check(ctx, where, err);
    if (status != UM_OK || !count) return status;
    um_range *parts = malloc(count * sizeof *parts);
    if (!parts) return um_error_set(err, UM_ERR_NO_MEMORY, "no memory for %zu ranges", count);
    bool cuda = um_context_is_cuda(ctx);
    size_t used = 0;
    int device = 0;
    for (size_t i = 0; i < count; i++) {
        if (!ranges[i].size) continue;
        if (!used) device = where.kind == UM_LOCATION_DEVICE && cuda ? where.id : ranges[i].block->device;
        parts[used++] = (um_range){ranges[i].block->chunk.ptr + ranges[i].offset, ranges[i].size};
    }
    /* A device without concurrent access takes whole allocations at each launch: there is nothing to start early. */
    if (used && ctx->backend->concurrent) {
        um_stream *on = stream_or_legacy(ctx, stream, device);
        for (size_t i = 0; i < count && status == UM_OK && cuda; i++)
            if (ranges[i].size) status = discard_before_prefetch(&ranges[i], where, on, err);
        if (status == UM_OK)
            status = ctx->backend->ops->prefetch(ctx->backend, parts, used, where, on->device, on->handle, err);
        for (size_t i = 0; i < count && status == UM_OK && cuda; i++) {
            um_block *block = ranges[i].block;
            pthread_mutex_lock(&ctx->lock);
            um_residency_note_populated_locked(block, ranges[i].offset, ranges[i].size);
            pthread_mutex_unlock(&ctx->lock);
            if (where.kind == UM_LOCATION_DEVICE) um_block_note_gpu(block);
        }
    }
    free(parts);
    return status;
}

/* UM_ERR_VALUE for memory that cannot be advised on its own. */
static um_status check_owns_pages(const um_block *block, const char *what, um_error *err) {
    if (!um_block_is_owned(block))
        return um_error_set(err, UM_ERR_VALUE,
                            "cannot set the %s of memory that another library owns: copy it with umem.array first",
                            what);
    if (um_block_owns_pages(block) || !block->size) return UM_OK;
    return um_error_set(
        err, UM_ERR_VALUE,
        "cannot set the %s of an array of %zu bytes, which shares its pages with others: create it with home=, which "
        "gives it pages of its own",
        what, block->size);
}

um_status um_advise(um_block *block, size_t offset, size_t size, um_advice advice, um_location where, um_error *err) {
    um_context *ctx = block->ctx;
    um_status status = um_context_check(ctx, err);
    if (status == UM_OK) status = um_location_check(ctx, where, err);
    if (status == UM_OK) status = check_owns_pages(block, "advice", err);
    if (status != UM_OK || !size) return status;
    um_range range = {block->chunk.ptr + offset, size};
    status = ctx->backend->ops->advise(ctx->backend, range, advice, where, err);
    pthread_mutex_lock(&ctx->lock);
    block->advised = true;
    pthread_mutex_unlock(&ctx->lock);
    return status;
}

/* Gives the driver the advice that makes up a home. */
static um_status advise_home(um_block *block, um_location home, um_error *err) {
    um_context *ctx = block->ctx;
    um_backend *backend = ctx->backend;
    um_range range = {block->chunk.ptr, um_block_held(block)};
    um_location host = {UM_LOCATION_HOST, 0};
    if (home.kind == UM_LOCATION_NONE)
        return backend->ops->advise(backend, range, UM_ADVICE_UNSET_PREFERRED_LOCATION, host, err);
    /* Host-resident pages that a device may not access directly would be migrated at its first touch, which is slower than no
     * advice at all; so access comes first. */
    for (int device = 0; um_location_is_host(home) && device < backend->device_count; device++) {
        um_location by = {UM_LOCATION_DEVICE, device};
        um_status status = backend->ops->advise(backend, range, UM_ADVICE_ACCESSED_BY, by, err);
        if (status != UM_OK) return status;
    }
    return backend->ops->advise(backend, range, UM_ADVICE_PREFERRED_LOCATION, home, err);
}

um_status um_set_home(um_block *block, um_location home, um_error *err) {
    um_context *ctx = block->ctx;
    um_status status = um_context_check(ctx, err);
    if (status == UM_OK) status = um_location_check(ctx, home, err);
    if (status != UM_OK || um_location_equal(um_block_home(block), home)) return status;
    status = check_owns_pages(block, "home", err);
    if (status != UM_OK) return status;
    pthread_mutex_lock(&ctx->lock);
    um_block_more *more = um_block_more_locked(block);
    pthread_mutex_unlock(&ctx->lock);
    if (!more) return um_error_set(err, UM_ERR_NO_MEMORY, "no memory for a block's home");
    if (block->size) status = advise_home(block, home, err);
    pthread_mutex_lock(&ctx->lock);
    block->advised = true;
    if (status == UM_OK) {
        more->home = home;
        more->has_home = true;
    }
    pthread_mutex_unlock(&ctx->lock);
    return status;
}

void um_placement_restore(um_block *block) {
    um_context *ctx = block->ctx;
    um_backend *backend = ctx->backend;
    if (!block->advised) return;
    um_range range = {block->chunk.ptr, um_block_held(block)};
    um_location home = ((um_arena *)block->chunk.slab->heap->arg)->home, host = {UM_LOCATION_HOST, 0};
    um_error ignored; /* wrong advice costs speed only */
    (void)!backend->ops->advise(backend, range, UM_ADVICE_UNSET_READ_MOSTLY, host, &ignored);
    if (home.kind == UM_LOCATION_NONE)
        (void)!backend->ops->advise(backend, range, UM_ADVICE_UNSET_PREFERRED_LOCATION, host, &ignored);
    else
        (void)!backend->ops->advise(backend, range, UM_ADVICE_PREFERRED_LOCATION, home, &ignored);
    for (int device = 0; device < backend->device_count; device++) {
        um_location by = {UM_LOCATION_DEVICE, device};
        bool from_birth = device == block->device || um_location_is_host(home);
        um_advice advice = from_birth ? UM_ADVICE_ACCESSED_BY : UM_ADVICE_UNSET_ACCESSED_BY;
        (void)!backend->ops->advise(backend, range, advice, by, &ignored);
    }
}

um_status um_discard(um_block *block, size_t offset, size_t size, um_error *err) {
    um_context *ctx = block->ctx;
    um_status status = um_context_check(ctx, err);
    if (status != UM_OK || !um_block_owns_pages(block)) return status;
    uintptr_t base = (uintptr_t)block->chunk.ptr;
    uintptr_t begin = um_round_up(base + offset, UM_PAGE_GROUP);
    uintptr_t end = (base + offset + size) / UM_PAGE_GROUP * UM_PAGE_GROUP;
    if (end <= begin) return UM_OK;
    if (!um_context_is_cuda(ctx)) {
        um_range range = {block->chunk.ptr + (begin - base), end - begin};
        return ctx->backend->ops->discard(ctx->backend, range, 0, UM_STREAM_LEGACY, err);
    }
    if (um_block_has_unseen_writers(block)) return UM_OK;
    pthread_mutex_lock(&ctx->lock);
    um_block_more *more =
        um_block_more_locked(block); /* without memory for it the contents are kept, which is as right */
    if (more) {
        more->discarded_offset = begin - base;
        more->discarded_size = end - begin;
    }
    pthread_mutex_unlock(&ctx->lock);
    return UM_OK;
}
