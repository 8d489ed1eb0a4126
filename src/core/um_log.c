#include "core/um_internal.h"

#include <stdlib.h>

#define FIRST_ROOM ((size_t)4096) /* events */

struct um_log {
    um_log_event *events;
    size_t count, room;
    bool complete;
};

um_status um_log_begin(um_context *ctx, um_error *err) {
    um_log *log = calloc(1, sizeof *log);
    if (!log) return um_error_set(err, UM_ERR_NO_MEMORY, "no memory for a log");
    log->complete = true;
    pthread_mutex_lock(&ctx->lock);
    if (!ctx->log) {
        ctx->log = log;
        log = NULL;
        atomic_fetch_or(&ctx->detours, UM_DETOUR_LOG);
    }
    pthread_mutex_unlock(&ctx->lock);
    if (!log) return UM_OK;
    free(log);
    return um_error_set(err, UM_ERR_BUSY, "allocations are being recorded already: one recording at a time");
}

void um_log_end(um_context *ctx, um_log_event **events, size_t *count, bool *complete) {
    pthread_mutex_lock(&ctx->lock);
    um_log *log = ctx->log;
    ctx->log = NULL;
    atomic_fetch_and(&ctx->detours, ~UM_DETOUR_LOG);
    pthread_mutex_unlock(&ctx->lock);
    *events = log ? log->events : NULL;
    *count = log ? log->count : 0;
    *complete = !log || log->complete;
    free(log);
}

static bool make_room(um_log *log) {
    if (log->count < log->room) return true;
    size_t room = log->room ? 2 * log->room : FIRST_ROOM;
    um_log_event *grown = realloc(log->events, room * sizeof *grown);
    if (!grown) return false;
    log->events = grown;
    log->room = room;
    return true;
}

void um_log_note_locked(um_context *ctx, const um_block *block, bool is_new) {
    um_log *log = ctx->log;
    if (!log || !log->complete) return;
    log->complete = make_room(log); /* a gap would make nonsense of what follows it */
    if (!log->complete) return;
    um_location home = um_block_home_locked(block);
    log->events[log->count++] = (um_log_event){.address = (uint64_t)(uintptr_t)block->chunk.ptr,
                                               .size = is_new ? block->size : 0,
                                               .device = block->device,
                                               .home = (int16_t)home.kind,
                                               .home_id = home.id};
}
