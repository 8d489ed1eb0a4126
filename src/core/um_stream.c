#include "core/um_internal.h"

#include <stdlib.h>

/* Nanoseconds for which a stream itself is asked, before an event marks where its work ends now. */
#define RECORD_TIME ((uint64_t)100000)

bool um_stream_is_legacy(const um_stream *stream) { return stream->handle == UM_STREAM_LEGACY; }

/* The per-thread default stream is another stream in every thread: give each thread an id of its own. */
static unsigned long long thread_id(void) {
    static _Atomic(unsigned long long) last;
    static _Thread_local unsigned long long id;
    if (!id) id = atomic_fetch_add(&last, 1) + 1;
    return id;
}

static um_stream *find_locked(um_context *ctx, int device, um_stream_handle handle, unsigned long long id) {
    for (um_stream *stream = ctx->streams; stream; stream = stream->next)
        if (stream->handle == handle && stream->id == id && stream->device == device) return stream;
    return NULL;
}

um_status um_stream_get(um_context *ctx, int device, um_stream_handle handle, um_stream **out, um_error *err) {
    if (handle == 0 || handle == UM_STREAM_LEGACY) {
        *out = &ctx->legacy[device];
        return UM_OK;
    }
    unsigned long long id;
    if (handle == UM_STREAM_PER_THREAD) {
        id = thread_id();
    } else {
        int owner;
        um_status status = um_context_check(ctx, err);
        if (status == UM_OK) status = ctx->backend->ops->stream_info(ctx->backend, handle, &owner, &id, err);
        if (status != UM_OK) return status;
        if (owner >= 0 && owner != device)
            return um_error_set(err, UM_ERR_VALUE, "the stream belongs to cuda:%d, the work to cuda:%d", owner, device);
    }
    um_stream *fresh = calloc(1, sizeof *fresh);
    if (!fresh) return um_error_set(err, UM_ERR_NO_MEMORY, "no memory for a stream");
    fresh->ctx = ctx;
    fresh->device = device;
    fresh->handle = handle;
    fresh->id = id;
    fresh->refs = 1;
    pthread_mutex_lock(&ctx->lock);
    um_stream *found = find_locked(ctx, device, handle, id);
    if (found) {
        found->refs++;
    } else {
        fresh->number = ++ctx->stream_count;
        fresh->next = ctx->streams;
        ctx->streams = found = fresh;
        fresh = NULL;
    }
    pthread_mutex_unlock(&ctx->lock);
    free(fresh);
    *out = found;
    return UM_OK;
}

void um_stream_ref_locked(um_stream *stream) {
    if (!um_stream_is_legacy(stream)) stream->refs++;
}

um_stream *um_stream_unref_locked(um_stream *stream) {
    if (um_stream_is_legacy(stream) || --stream->refs) return NULL;
    um_stream **at = &stream->ctx->streams;
    while (*at != stream) at = &(*at)->next;
    *at = stream->next;
    return stream;
}

void um_stream_destroy(um_stream *stream) {
    if (!stream) return;
    um_context *ctx = stream->ctx;
    if (stream->event && !um_context_is_forked(ctx))
        ctx->backend->ops->event_destroy(ctx->backend, stream->device, stream->event);
    free(stream);
}

um_stream *um_stream_ref(um_stream *stream) {
    if (um_stream_is_legacy(stream)) return stream;
    pthread_mutex_lock(&stream->ctx->lock);
    um_stream_ref_locked(stream);
    pthread_mutex_unlock(&stream->ctx->lock);
    return stream;
}

void um_stream_unref(um_stream *stream) {
    if (!stream || um_stream_is_legacy(stream)) return;
    um_context *ctx = stream->ctx;
    pthread_mutex_lock(&ctx->lock);
    um_stream *dead = um_stream_unref_locked(stream);
    pthread_mutex_unlock(&ctx->lock);
    um_stream_destroy(dead);
}

int um_stream_device(const um_stream *stream) { return stream->device; }

um_stream_handle um_stream_get_handle(const um_stream *stream) { return stream->handle; }

static void note_completed(um_stream *stream, uint64_t sequence) {
    pthread_mutex_lock(&stream->ctx->lock);
    if (stream->completed < sequence) stream->completed = sequence;
    pthread_mutex_unlock(&stream->ctx->lock);
}

/* The stream's event, created at first use. */
static um_status get_event(um_stream *stream, um_event_handle *out, um_error *err) {
    um_context *ctx = stream->ctx;
    pthread_mutex_lock(&ctx->lock);
    um_event_handle event = stream->event;
    pthread_mutex_unlock(&ctx->lock);
    if (!event) {
        um_status status = ctx->backend->ops->event_create(ctx->backend, stream->device, &event, err);
        if (status != UM_OK) return status;
        pthread_mutex_lock(&ctx->lock);
        um_event_handle spare = 0;
        if (stream->event) {
            spare = event;
            event = stream->event;
        } else {
            stream->event = event;
        }
        pthread_mutex_unlock(&ctx->lock);
        if (spare) ctx->backend->ops->event_destroy(ctx->backend, stream->device, spare);
    }
    *out = event;
    return UM_OK;
}

um_status um_stream_record(um_stream *stream, um_error *err) {
    um_context *ctx = stream->ctx;
    um_event_handle event;
    um_status status = get_event(stream, &event, err);
    if (status != UM_OK) return status;
    pthread_mutex_lock(&ctx->lock);
    uint64_t target = stream->issued;
    pthread_mutex_unlock(&ctx->lock);
    status = ctx->backend->ops->event_record(ctx->backend, stream->device, event, stream->handle, err);
    if (status != UM_OK) return status;
    pthread_mutex_lock(&ctx->lock);
    if (stream->recorded < target) stream->recorded = target;
    pthread_mutex_unlock(&ctx->lock);
    return UM_OK;
}

um_status um_stream_issue(um_stream *stream, uint64_t *sequence, um_error *err) {
    um_context *ctx = stream->ctx;
    pthread_mutex_lock(&ctx->lock);
    *sequence = ++stream->issued;
    pthread_mutex_unlock(&ctx->lock);
    /* A foreign stream may be destroyed before anybody waits, so its event is recorded at once; the legacy stream lives on and is
     * recorded only when an event is needed. */
    if (um_stream_is_legacy(stream)) return UM_OK;
    um_status status = um_stream_record(stream, err);
    if (status == UM_OK) return UM_OK;
    /* Without the event nobody could wait for this work later: wait for it now. */
    um_error ignored;
    if (ctx->backend->ops->stream_synchronize(ctx->backend, stream->device, stream->handle, &ignored) == UM_OK)
        note_completed(stream, *sequence);
    return status;
}

/* Waits for the event, recorded behind work number `recorded`; may be interrupted. */
static um_status finish_event(um_stream *stream, um_event_handle event, uint64_t recorded, um_error *err) {
    um_context *ctx = stream->ctx;
    um_backend *backend = ctx->backend;
    bool watched = um_context_is_interruptible(ctx);
    um_watch watch = um_watch_begin(ctx);
    while (watched) {
        bool done;
        um_status status = backend->ops->event_query(backend, stream->device, event, &done, err);
        if (status == UM_OK && !done) status = um_watch_pause(&watch, err);
        if (status != UM_OK || done) return status;
        /* Work that others go on adding moves the event: it might never be found done. The driver waits for it as it is now. */
        pthread_mutex_lock(&ctx->lock);
        watched = stream->recorded == recorded;
        pthread_mutex_unlock(&ctx->lock);
    }
    return backend->ops->event_synchronize(backend, stream->device, event, err);
}

um_status um_stream_finish(um_stream *stream, um_error *err) {
    um_context *ctx = stream->ctx;
    um_backend *backend = ctx->backend;
    if (!um_context_is_interruptible(ctx))
        return backend->ops->stream_synchronize(backend, stream->device, stream->handle, err);
    um_watch watch = um_watch_begin(ctx);
    for (int asked = 0; asked < 2 || um_watch_time(&watch) < RECORD_TIME; asked++) {
        bool done;
        um_status status = backend->ops->stream_query(backend, stream->device, stream->handle, &done, err);
        if (status != UM_OK || done) return status;
    }
    /* Others may go on adding work: the wait is for what there is now. */
    um_status status = um_stream_record(stream, err);
    if (status != UM_OK) return status;
    pthread_mutex_lock(&ctx->lock);
    um_event_handle event = stream->event;
    uint64_t recorded = stream->recorded;
    pthread_mutex_unlock(&ctx->lock);
    return finish_event(stream, event, recorded, err);
}

um_status um_stream_wait(um_stream *stream, uint64_t sequence, um_error *err) {
    um_context *ctx = stream->ctx;
    um_status status = um_context_check(ctx, err);
    if (status != UM_OK) return status;
    pthread_mutex_lock(&ctx->lock);
    bool done = um_stream_has_done_locked(stream, sequence);
    uint64_t issued = stream->issued, recorded = stream->recorded;
    um_event_handle event = stream->event;
    pthread_mutex_unlock(&ctx->lock);
    if (done) return UM_OK;
    if (recorded >= sequence) {
        status = finish_event(stream, event, recorded, err);
        if (status == UM_OK) note_completed(stream, recorded);
    } else {
        status = um_stream_finish(stream, err);
        if (status == UM_OK) note_completed(stream, issued);
    }
    return status;
}

um_status um_stream_poll(um_stream *stream, uint64_t sequence, bool *done, um_error *err) {
    um_context *ctx = stream->ctx;
    pthread_mutex_lock(&ctx->lock);
    bool known = um_stream_has_done_locked(stream, sequence);
    uint64_t recorded = stream->recorded;
    um_event_handle event = stream->event;
    pthread_mutex_unlock(&ctx->lock);
    *done = known;
    if (known) return UM_OK;
    if (recorded < sequence) return um_stream_record(stream, err); /* the next poll will tell */
    um_status status = ctx->backend->ops->event_query(ctx->backend, stream->device, event, done, err);
    if (status == UM_OK && *done) note_completed(stream, recorded);
    return status;
}

um_status um_stream_synchronize(um_stream *stream, bool interruptible, um_error *err) {
    um_context *ctx = stream->ctx;
    um_status status = um_context_check(ctx, err);
    if (status != UM_OK || !um_context_is_cuda(ctx)) return status;
    pthread_mutex_lock(&ctx->lock);
    uint64_t issued = stream->issued;
    pthread_mutex_unlock(&ctx->lock);
    bool watched = interruptible && um_context_is_interruptible(ctx);
    if (watched) status = um_stream_finish(stream, err);
    /* The legacy stream's synchronise also waits for streams that block with it. */
    if (status == UM_OK && (!watched || um_stream_is_legacy(stream)))
        status = ctx->backend->ops->stream_synchronize(ctx->backend, stream->device, stream->handle, err);
    if (status == UM_OK) note_completed(stream, issued);
    return status;
}

um_status um_stream_wait_stream(um_stream *stream, um_stream *other, um_error *err) {
    um_context *ctx = stream->ctx;
    pthread_mutex_lock(&ctx->lock);
    bool idle = um_stream_has_done_locked(other, other->issued);
    bool recorded = other->recorded >= other->issued;
    pthread_mutex_unlock(&ctx->lock);
    if (stream == other || idle) return UM_OK;
    um_status status = recorded ? UM_OK : um_stream_record(other, err);
    if (status != UM_OK) return status;
    pthread_mutex_lock(&ctx->lock);
    um_event_handle event = other->event;
    uint64_t covered = other->recorded;
    pthread_mutex_unlock(&ctx->lock);
    status = ctx->backend->ops->stream_wait_event(ctx->backend, stream->device, stream->handle, event, err);
    if (status != UM_OK) return status;
    pthread_mutex_lock(&ctx->lock);
    stream->behind = other->number;
    stream->behind_done = covered;
    stream->behind_since = stream->issued;
    pthread_mutex_unlock(&ctx->lock);
    return UM_OK;
}

bool um_stream_is_behind_locked(const um_stream *stream, uint64_t sequence, const um_stream *other, uint64_t behind) {
    return stream->behind == other->number && stream->behind_done >= behind && stream->behind_since < sequence;
}
