/* Streams as queues: work is put in and runs when somebody waits for it, asks for it, or steps. */
#include "fake_internal.h"

#include <stdlib.h>

#define QUEUE_LIMIT 1024 /* items; as on a GPU, a full queue lets its oldest item run first */

/* --- finding streams ------------------------------------------------- */

fake_stream *fake_stream_new(fake_stream_kind kind, fake_context *context, bool blocking) {
    fake_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        fake_unmodelled("streams", "out of memory");
    }
    stream->kind = kind;
    stream->context = context;
    stream->blocking = blocking;
    stream->thread = kind == FAKE_STREAM_PER_THREAD ? fake_thread_number() : 0;
    stream->id = ++fake.next_stream_id;
    stream->next = fake.streams;
    fake.streams = stream;
    return stream;
}

static fake_stream *special_stream(fake_context *context, fake_stream_kind kind) {
    const unsigned long thread = kind == FAKE_STREAM_PER_THREAD ? fake_thread_number() : 0;
    for (fake_stream *s = fake.streams; s != NULL; s = s->next) {
        if (s->context == context && s->kind == kind && s->thread == thread) {
            return s;
        }
    }
    return fake_stream_new(kind, context, kind == FAKE_STREAM_PER_THREAD);
}

fake_stream *fake_stream_of(fake_guard *call, CUstream handle) {
    fake_context *context = fake_current(call);
    if (context == NULL) {
        return NULL;
    }
    if (handle == NULL || handle == CU_STREAM_LEGACY) {
        return special_stream(context, FAKE_STREAM_LEGACY);
    }
    if (handle == CU_STREAM_PER_THREAD) {
        return special_stream(context, FAKE_STREAM_PER_THREAD);
    }
    if (fake_handle_live(call->call, handle, FAKE_HANDLE_STREAM)) {
        return (fake_stream *)handle;
    }
    call->result = CUDA_ERROR_INVALID_HANDLE;
    return NULL;
}

void fake_stream_unlink(fake_stream *stream) {
    fake_stream **at = &fake.streams;
    while (*at != stream) {
        at = &(*at)->next;
    }
    *at = stream->next;
    free(stream);
}

/* --- items ----------------------------------------------------------- */

fake_item *fake_item_new(fake_item_kind kind) {
    fake_item *item = calloc(1, sizeof *item);
    if (item == NULL) {
        fake_unmodelled("streams", "out of memory");
    }
    item->kind = kind;
    return item;
}

static bool is_mark(const fake_item *item) { return item->kind == FAKE_ITEM_RECORD || item->kind == FAKE_ITEM_WAIT; }

void fake_record_unref(fake_record *record) {
    if (record != NULL && --record->refs == 0) {
        free(record);
    }
}

void fake_item_free(fake_item *item) {
    if (is_mark(item)) {
        fake_record_unref(item->u.record);
    }
    free(item->owned);
    free(item);
}

void fake_submit(fake_stream *stream, fake_item *item) {
    if (stream->count >= QUEUE_LIMIT) {
        fake_wait_until_released();
        fake_run_one(stream);
    }
    item->seq = ++fake.next_seq;
    if (stream->tail != NULL) {
        stream->tail->next = item;
    } else {
        stream->head = item;
    }
    stream->tail = item;
    stream->count++;
    if (item->kind == FAKE_ITEM_RECORD) {
        item->u.record->stream = stream;
        item->u.record->seq = item->seq;
    }
    if (is_mark(item)) {
        return;
    }
    fake.pending_work++;
    if (!fake.config.concurrent) {
        fake_memory_lock_host(true);
    }
}

/* --- running --------------------------------------------------------- */

/* Work of the same context that has to be done before an item at `seq`: the legacy stream and
 * blocking streams wait for each other. */
static void run_implicit_dependencies(const fake_stream *stream, uint64_t seq) {
    for (fake_stream *other = fake.streams; other != NULL; other = other->next) {
        if (other == stream || other->context != stream->context || other->head == NULL || other->head->seq >= seq) {
            continue;
        }
        const bool ordered = stream->kind == FAKE_STREAM_LEGACY ? other->blocking
                                                                : stream->blocking && other->kind == FAKE_STREAM_LEGACY;
        if (ordered) {
            fake_run_until(other, seq - 1);
        }
    }
}

bool fake_run_one(fake_stream *stream) {
    fake_item *item = stream->head;
    if (item == NULL) {
        return false;
    }
    run_implicit_dependencies(stream, item->seq);
    if (item->kind == FAKE_ITEM_WAIT && !item->u.record->done) {
        fake_run_until(item->u.record->stream, item->u.record->seq);
    }

    stream->head = item->next;
    if (stream->head == NULL) {
        stream->tail = NULL;
    }
    stream->count--;
    if (item->kind == FAKE_ITEM_RECORD) {
        item->u.record->done = true;
    } else if (item->kind != FAKE_ITEM_WAIT) {
        fake_execute(stream, item);
        fake.pending_work--;
        fake.counters.executed++;
    }
    fake_item_free(item);
    return true;
}

void fake_run_until(fake_stream *stream, uint64_t seq) {
    while (stream->head != NULL && stream->head->seq <= seq) {
        fake_wait_until_released();
        fake_run_one(stream);
    }
}

void fake_run_stream(fake_stream *stream) {
    fake_run_until(stream, UINT64_MAX);
    if (stream->kind == FAKE_STREAM_LEGACY) {
        run_implicit_dependencies(stream, UINT64_MAX);
    }
}

static fake_stream *oldest_pending(void) {
    fake_stream *found = NULL;
    for (fake_stream *s = fake.streams; s != NULL; s = s->next) {
        if (s->head != NULL && (found == NULL || s->head->seq < found->head->seq)) {
            found = s;
        }
    }
    return found;
}

void fake_run_context(fake_context *context) {
    for (fake_stream *s = fake.streams, *next = NULL; s != NULL; s = next) {
        if (s->context == context) {
            fake_run_until(s, UINT64_MAX);
        }
        next = s->next;
        if (s->zombie && s->head == NULL) {
            fake_stream_unlink(s);
        }
    }
}

void fake_run_all_work(void) {
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        fake_run_context(&fake.contexts[i]);
    }
}

/* After a wait: without concurrent access the host may touch managed memory again once the
 * devices are idle. */
void fake_work_finished(void) {
    if (fake.pending_work == 0) {
        fake_memory_lock_host(false);
    }
}

/* --- end of a context ------------------------------------------------ */

void fake_streams_release_context(fake_context *context) {
    for (fake_stream *s = fake.streams, *next = NULL; s != NULL; s = next) {
        next = s->next;
        if (s->context != context) {
            continue;
        }
        if (s->kind == FAKE_STREAM_CREATED && !s->zombie) {
            fake.leaked++;
            fake_handle_remove(s);
        }
        fake_stream_unlink(s);
    }
}

/* Drops everything, queued work included. */
void fake_streams_clear(void) {
    for (fake_stream *s = fake.streams, *next = NULL; s != NULL; s = next) {
        next = s->next;
        for (fake_item *item = s->head, *after = NULL; item != NULL; item = after) {
            after = item->next;
            fake_item_free(item);
        }
        free(s);
    }
    fake.streams = NULL;
    fake.pending_work = 0;
}

/* --- for the tests --------------------------------------------------- */

void fakecu_hold(int on) {
    fake_lock();
    fake_set_held(on != 0);
    fake_unlock();
}

fake_stream *fake_stream_for_control(const char *name, uintptr_t stream, int device) {
    if (stream <= 2) {
        if (!fake_device_valid(device)) {
            fake_unmodelled(name, "device %d", device);
        }
        const fake_stream_kind kind = stream == 2 ? FAKE_STREAM_PER_THREAD : FAKE_STREAM_LEGACY;
        return special_stream(&fake.contexts[device], kind);
    }
    if (fake_handle_live(name, (const void *)stream, FAKE_HANDLE_STREAM)) {
        return (fake_stream *)stream;
    }
    fake_unmodelled(name, "%p is no stream", (void *)stream);
}

static int current_device(void) {
    fake_guard call = {CUDA_SUCCESS, "fakecu", true};
    const fake_context *context = fake_current(&call);
    return context != NULL ? context->device : 0;
}

long fakecu_pending(uintptr_t stream) {
    fake_lock();
    long count = 0;
    if (stream != FAKECU_ALL_STREAMS) {
        count = fake_stream_for_control("fakecu_pending", stream, current_device())->count;
    } else {
        for (const fake_stream *s = fake.streams; s != NULL; s = s->next) {
            count += s->count;
        }
    }
    fake_unlock();
    return count;
}

static void refuse_when_held(const char *name) {
    if (fake.held) {
        fake_unmodelled(name, "work is held");
    }
}

int fakecu_step(uintptr_t stream) {
    fake_lock();
    refuse_when_held("fakecu_step");
    fake_stream *s = stream == FAKECU_ALL_STREAMS ? oldest_pending()
                                                  : fake_stream_for_control("fakecu_step", stream, current_device());
    const bool ran = s != NULL && fake_run_one(s);
    fake_unlock();
    return ran;
}

void fakecu_run_all(void) {
    fake_lock();
    refuse_when_held("fakecu_run_all");
    fake_run_all_work();
    fake_unlock();
}
