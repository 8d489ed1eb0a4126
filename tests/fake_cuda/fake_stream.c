/* The calls on streams and events. */
#include "fake_internal.h"

#include <stdlib.h>

static fake_event *event_of(fake_guard *call, CUevent handle) {
    if (fake_handle_live(call->call, handle, FAKE_HANDLE_EVENT)) {
        return (fake_event *)handle;
    }
    call->result = CUDA_ERROR_INVALID_HANDLE;
    return NULL;
}

static CUresult answer_query(fake_stream *stream, uint64_t seq) {
    if (fake.held) {
        return CUDA_ERROR_NOT_READY;
    }
    if (fake.query_mode == 1) {
        fake_run_until(stream, seq);
    }
    if (fake.query_mode == 2) {
        fake_run_one(stream);
    }
    return CUDA_ERROR_NOT_READY;
}

/* --- entry points: streams ------------------------------------------- */

CUresult fake_stream_create(CUstream *stream, unsigned int flags) {
    FAKE_CALL(stream_create);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    fake_context *context = fake_current(&call);
    if (context == NULL) {
        return call.result;
    }
    if (stream == NULL || (flags != CU_STREAM_DEFAULT && flags != CU_STREAM_NON_BLOCKING)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake_stream *created = fake_stream_new(FAKE_STREAM_CREATED, context, flags == CU_STREAM_DEFAULT);
    fake_handle_add(created, FAKE_HANDLE_STREAM);
    *stream = (CUstream)created;
    return CUDA_SUCCESS;
}

/* Work that is queued still runs, as on a GPU. */
static void destroy_stream(fake_stream *stream) {
    fake_handle_remove(stream);
    if (stream->head == NULL) {
        fake_stream_unlink(stream);
    } else {
        stream->zombie = true;
    }
}

/* Destroys even when an error is injected. */
CUresult fake_stream_destroy(CUstream handle) {
    FAKE_CALL(stream_destroy);
    if (!call.locked || !fake.initialised) {
        return call.result;
    }
    if (!fake_handle_live(call.call, handle, FAKE_HANDLE_STREAM)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (fake_current(&call) == NULL && fake.sticky == CUDA_SUCCESS) {
        return call.result;
    }
    destroy_stream((fake_stream *)handle);
    return call.result;
}

CUresult fake_stream_synchronize(CUstream handle) {
    FAKE_CALL(stream_synchronize);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    fake_stream *stream = fake_stream_of(&call, handle);
    if (stream == NULL) {
        return call.result;
    }
    fake.counters.waits++;
    fake_run_stream(stream);
    fake_work_finished();
    return CUDA_SUCCESS;
}

CUresult fake_stream_query(CUstream handle) {
    FAKE_CALL(stream_query);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    fake_stream *stream = fake_stream_of(&call, handle);
    if (stream == NULL) {
        return call.result;
    }
    fake.counters.waits++;
    if (stream->head != NULL) {
        return answer_query(stream, UINT64_MAX);
    }
    fake_work_finished();
    return CUDA_SUCCESS;
}

CUresult fake_stream_wait_event(CUstream handle, CUevent event_handle, unsigned int flags) {
    FAKE_CALL(stream_wait_event);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    fake_stream *stream = fake_stream_of(&call, handle);
    if (stream == NULL) {
        return call.result;
    }
    const fake_event *event = event_of(&call, event_handle);
    if (event == NULL) {
        return call.result;
    }
    if (flags != CU_EVENT_WAIT_DEFAULT) {
        fake_unmodelled(call.call, "flags %u", flags);
    }
    if (event->record == NULL || event->record->done) {
        return CUDA_SUCCESS;
    }
    fake_item *item = fake_item_new(FAKE_ITEM_WAIT);
    item->u.record = event->record;
    item->u.record->refs++;
    fake_submit(stream, item);
    return CUDA_SUCCESS;
}

CUresult fake_stream_get_ctx(CUstream handle, CUcontext *context) {
    FAKE_CALL(stream_get_ctx);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (context == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool special = handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
    if (!special && !fake_handle_live(call.call, handle, FAKE_HANDLE_STREAM)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    fake_context *of = special ? fake_current(&call) : ((fake_stream *)handle)->context;
    if (of == NULL) {
        return call.result;
    }
    *context = (CUcontext)of;
    return CUDA_SUCCESS;
}

CUresult fake_stream_get_id(CUstream handle, unsigned long long *id) {
    FAKE_CALL(stream_get_id);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    if (id == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const fake_stream *stream = fake_stream_of(&call, handle);
    if (stream == NULL) {
        return call.result;
    }
    *id = stream->id;
    return CUDA_SUCCESS;
}

/* --- entry points: events -------------------------------------------- */

CUresult fake_event_create(CUevent *event, unsigned int flags) {
    FAKE_CALL(event_create);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    fake_context *context = fake_current(&call);
    if (context == NULL) {
        return call.result;
    }
    if (event == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((flags & ~(unsigned)(CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC)) != 0) {
        fake_unmodelled(call.call, "flags %u", flags);
    }
    fake_event *created = calloc(1, sizeof *created);
    if (created == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    created->context = context;
    created->next = fake.events;
    fake.events = created;
    fake_handle_add(created, FAKE_HANDLE_EVENT);
    *event = (CUevent)created;
    return CUDA_SUCCESS;
}

static void event_unlink(fake_event *event) {
    fake_event **at = &fake.events;
    while (*at != event) {
        at = &(*at)->next;
    }
    *at = event->next;
    fake_handle_remove(event);
    fake_record_unref(event->record);
    free(event);
}

/* Destroys even when an error is injected. */
CUresult fake_event_destroy(CUevent handle) {
    FAKE_CALL(event_destroy);
    if (!call.locked || !fake.initialised) {
        return call.result;
    }
    if (!fake_handle_live(call.call, handle, FAKE_HANDLE_EVENT)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    event_unlink((fake_event *)handle);
    return call.result;
}

CUresult fake_event_record(CUevent handle, CUstream stream_handle) {
    FAKE_CALL(event_record);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    fake_stream *stream = fake_stream_of(&call, stream_handle);
    if (stream == NULL) {
        return call.result;
    }
    fake_event *event = event_of(&call, handle);
    if (event == NULL) {
        return call.result;
    }
    if (event->context != stream->context) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    fake_record *record = calloc(1, sizeof *record);
    if (record == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    record->refs = 2; /* the event's and the item's */
    fake_record_unref(event->record);
    event->record = record;
    fake_item *item = fake_item_new(FAKE_ITEM_RECORD);
    item->u.record = record;
    fake_submit(stream, item);
    return CUDA_SUCCESS;
}

CUresult fake_event_query(CUevent handle) {
    FAKE_CALL(event_query);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    const fake_event *event = event_of(&call, handle);
    if (event == NULL) {
        return call.result;
    }
    if (fake.sticky != CUDA_SUCCESS) {
        return fake.sticky;
    }
    fake.counters.waits++;
    if (event->record != NULL && !event->record->done) {
        return answer_query(event->record->stream, event->record->seq);
    }
    fake_work_finished();
    return CUDA_SUCCESS;
}

CUresult fake_event_synchronize(CUevent handle) {
    FAKE_CALL(event_synchronize);
    if (call.result != CUDA_SUCCESS) {
        return call.result;
    }
    const fake_event *event = event_of(&call, handle);
    if (event == NULL) {
        return call.result;
    }
    if (fake.sticky != CUDA_SUCCESS) {
        return fake.sticky;
    }
    fake.counters.waits++;
    if (event->record != NULL && !event->record->done) {
        fake_run_until(event->record->stream, event->record->seq);
    }
    fake_work_finished();
    return CUDA_SUCCESS;
}

/* --- end of a context, and for the tests ----------------------------- */

void fake_events_release_context(fake_context *context) {
    for (fake_event *e = fake.events, *next = NULL; e != NULL; e = next) {
        next = e->next;
        if (e->context != context) {
            continue;
        }
        fake.leaked++;
        event_unlink(e);
    }
}

void fake_events_clear(void) {
    while (fake.events != NULL) {
        event_unlink(fake.events);
    }
}

uintptr_t fakecu_stream_create(int device, int blocking) {
    fake_lock();
    if (!fake_device_valid(device) || fake.contexts[device].retains == 0) {
        fake_unmodelled("fakecu_stream_create", "device %d has no active context", device);
    }
    fake_stream *stream = fake_stream_new(FAKE_STREAM_CREATED, &fake.contexts[device], blocking != 0);
    fake_handle_add(stream, FAKE_HANDLE_STREAM);
    fake_unlock();
    return (uintptr_t)stream;
}

void fakecu_stream_destroy(uintptr_t stream) {
    fake_lock();
    destroy_stream(fake_stream_for_control("fakecu_stream_destroy", stream, -1));
    fake_unlock();
}

void fakecu_submit_fill(void *ptr, int value, size_t size, uintptr_t stream, int device) {
    fake_lock();
    fake_item *item = fake_item_new(FAKE_ITEM_MEMSET);
    item->u.set.ptr = (CUdeviceptr)ptr;
    item->u.set.size = size;
    item->u.set.value = (unsigned char)value;
    fake_submit(fake_stream_for_control("fakecu_submit_fill", stream, device), item);
    fake_unlock();
}
