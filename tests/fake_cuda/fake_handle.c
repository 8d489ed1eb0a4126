/* Which handles are alive, so that use after destroy is caught. A dead address stays known until
 * it is handed out again. */
#include "fake_internal.h"

#include <stdlib.h>

typedef struct slot {
    const void *handle; /* NULL: empty */
    fake_handle_kind kind;
    bool live;
} slot;

static slot *slots;
static size_t room, used; /* room is a power of two, never more than half used */
static long live_count[FAKE_HANDLE_KERNEL + 1];

static slot *place(slot *in, size_t size, const void *handle) {
    size_t at = (size_t)(((uintptr_t)handle >> 4) * 0x9E3779B97F4A7C15u) & (size - 1);
    while (in[at].handle != NULL && in[at].handle != handle) {
        at = (at + 1) & (size - 1);
    }
    return &in[at];
}

static void grow(void) {
    const size_t bigger = room == 0 ? 256 : room * 2;
    slot *fresh = calloc(bigger, sizeof *fresh);
    if (fresh == NULL) {
        fake_unmodelled("handles", "out of memory");
    }
    for (size_t i = 0; i < room; i++) {
        if (slots[i].handle != NULL) {
            *place(fresh, bigger, slots[i].handle) = slots[i];
        }
    }
    free(slots);
    slots = fresh;
    room = bigger;
}

void fake_handle_add(const void *handle, fake_handle_kind kind) {
    if (used * 2 >= room) {
        grow();
    }
    slot *s = place(slots, room, handle);
    if (s->handle == NULL) {
        used++;
    }
    *s = (slot){handle, kind, true};
    live_count[kind]++;
}

void fake_handle_remove(const void *handle) {
    if (room == 0) {
        return;
    }
    slot *s = place(slots, room, handle);
    if (s->handle == NULL || !s->live) {
        return;
    }
    s->live = false;
    live_count[s->kind]--;
}

bool fake_handle_live(const char *call, const void *handle, fake_handle_kind kind) {
    if (handle == NULL || room == 0) {
        return false;
    }
    const slot *s = place(slots, room, handle);
    if (s->handle == NULL || s->kind != kind) {
        return false;
    }
    if (!s->live) {
        fake_unmodelled(call, "handle %p was destroyed before", handle);
    }
    return true;
}

long fake_handle_count(fake_handle_kind kind) { return live_count[kind]; }

void fake_handle_clear(void) {
    free(slots);
    slots = NULL;
    room = used = 0;
    for (int kind = 0; kind <= FAKE_HANDLE_KERNEL; kind++) {
        live_count[kind] = 0;
    }
}
