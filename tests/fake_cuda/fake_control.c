/* The tests' view of the whole: counters, the ledger of live objects, and starting over. */
#include "fake_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

unsigned long fakecu_calls(const char *name) {
    unsigned long sum = 0;
    bool found = false;
    fake_lock();
    for (int id = 0; id < FAKE_CALL_COUNT; id++) {
        const bool symbol = strcmp(fake_call_symbol((fake_call_id)id), name) == 0;
        if (!symbol && strcmp(fake_call_field((fake_call_id)id), name) != 0) {
            continue;
        }
        found = true;
        sum += fake.calls[id];
    }
    fake_unlock();
    if (!found) {
        fake_unmodelled("fakecu_calls", "name %s", name);
    }
    return sum;
}

unsigned long long fakecu_counter(const char *name) {
    const fake_counters *c = &fake.counters;
    const struct {
        const char *name;
        const unsigned long long *value;
    } counters[] = {
        {"calls", &c->calls},
        {"launches", &c->launches},
        {"waits", &c->waits},
        {"executed", &c->executed},
        {"to_device_bytes", &c->to_device_bytes},
        {"to_host_bytes", &c->to_host_bytes},
        {"host_fault_bytes", &c->host_fault_bytes},
        {"link_bytes", &c->link_bytes},
        {"peer_bytes", &c->peer_bytes},
        {"peer_link_bytes", &c->peer_link_bytes},
        {"evicted_bytes", &c->evicted_bytes},
        {"copied_bytes", &c->copied_bytes},
    };
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        if (strcmp(counters[i].name, name) != 0) {
            continue;
        }
        fake_lock();
        const unsigned long long value = *counters[i].value;
        fake_unlock();
        return value;
    }
    fake_unmodelled("fakecu_counter", "name %s", name);
}

/* Count, and bytes for memory kinds (*bytes may be NULL). */
static long live(const char *kind, unsigned long long *bytes) {
    if (bytes != NULL) {
        *bytes = 0;
    }
    if (strcmp(kind, "managed") == 0) {
        return fake_memory_count(FAKE_MEMORY_MANAGED, bytes);
    }
    if (strcmp(kind, "device") == 0) {
        return fake_memory_count(FAKE_MEMORY_DEVICE, bytes);
    }
    if (strcmp(kind, "host") == 0) {
        return fake_memory_count(FAKE_MEMORY_HOST, bytes);
    }
    if (strcmp(kind, "stream") == 0) {
        return fake_handle_count(FAKE_HANDLE_STREAM);
    }
    if (strcmp(kind, "event") == 0) {
        return fake_handle_count(FAKE_HANDLE_EVENT);
    }
    if (strcmp(kind, "library") == 0) {
        return fake_handle_count(FAKE_HANDLE_LIBRARY);
    }
    if (strcmp(kind, "context") == 0) {
        long retains = 0;
        for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
            retains += fake.contexts[i].retains;
        }
        return retains;
    }
    if (strcmp(kind, "all") == 0) {
        static const char *const kinds[] = {"managed", "device", "host", "stream", "event", "library", "context"};
        long sum = 0;
        unsigned long long total = 0;
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
            unsigned long long part = 0;
            sum += live(kinds[i], &part);
            total += part;
        }
        if (bytes != NULL) {
            *bytes = total;
        }
        return sum;
    }
    fake_unmodelled("fakecu_live", "kind %s", kind);
}

long fakecu_live(const char *kind) {
    fake_lock();
    const long count = live(kind, NULL);
    fake_unlock();
    return count;
}

unsigned long long fakecu_live_bytes(const char *kind) {
    unsigned long long bytes = 0;
    fake_lock();
    live(kind, &bytes);
    fake_unlock();
    return bytes;
}

unsigned long fakecu_leaked(void) { return fake.leaked; }

static void require(bool holds, const char *what) {
    if (!holds) {
        fake_unmodelled("fakecu_check", "%s", what);
    }
}

/* Adds the pages that the allocation has and holds on each device, page by page. */
static void count_pages(const fake_memory *memory, size_t *resident, size_t *held) {
    const size_t pages = memory->mapped / FAKE_PAGE;
    size_t unsaved = 0;
    for (size_t first = 0; first < pages; first += FAKE_BLOCK_PAGES) {
        size_t here[FAKE_MAX_DEVICES] = {0};
        for (size_t i = first; i < pages && i < first + FAKE_BLOCK_PAGES; i++) {
            const fake_page *page = &memory->pages[i];
            for (int device = 0; device < FAKE_MAX_DEVICES; device++) {
                const bool owns = page->owner == FAKE_DEVICE(device);
                here[device] += owns || (page->replicas & (1u << device)) != 0;
            }
            require(page->owner != FAKE_NOWHERE || page->replicas == 0, "replicas of nothing");
            require(!(page->flags & FAKE_PAGE_UNSAVED) || (page->flags & FAKE_PAGE_DISCARDED),
                    "unsaved, yet not discarded");
            unsaved += (page->flags & FAKE_PAGE_UNSAVED) != 0;
        }
        for (int device = 0; device < FAKE_MAX_DEVICES; device++) {
            const fake_block *block = &memory->blocks[first / FAKE_BLOCK_PAGES];
            require(block->resident[device] == here[device], "a block's resident pages");
            require(block->held[device] >= here[device], "a block's held pages");
            resident[device] += here[device];
            held[device] += block->held[device];
        }
    }
    require(unsaved == memory->unsaved, "an allocation's unsaved pages");
}

void fakecu_check(void) {
    fake_lock();
    size_t resident[FAKE_MAX_DEVICES] = {0}, held[FAKE_MAX_DEVICES] = {0}, plain[FAKE_MAX_DEVICES] = {0};
    size_t managed = 0;
    for (size_t i = 0; i < fake.memory_count; i++) {
        const fake_memory *memory = fake.memory[i];
        require(i == 0 || fake.memory[i - 1]->host + fake.memory[i - 1]->size <= memory->host,
                "allocations out of order");
        if (memory->kind == FAKE_MEMORY_MANAGED) {
            managed += memory->size;
            count_pages(memory, resident, held);
        } else if (memory->kind == FAKE_MEMORY_DEVICE) {
            plain[memory->context->device] += memory->mapped;
        }
    }
    require(managed == fake.managed_bytes, "managed bytes");
    for (int device = 0; device < FAKE_MAX_DEVICES; device++) {
        require(resident[device] == fake.resident_pages[device], "a device's resident pages");
        require(plain[device] == fake.plain_bytes[device], "a device's plain bytes");
        require(held[device] == fake.held_pages[device], "a device's held pages");
        require(plain[device] + held[device] * FAKE_PAGE <= fake.config.memory, "capacity");
    }
    long work = 0;
    for (const fake_stream *s = fake.streams; s != NULL; s = s->next) {
        long count = 0;
        for (const fake_item *item = s->head; item != NULL; item = item->next) {
            count++;
            work += item->kind != FAKE_ITEM_RECORD && item->kind != FAKE_ITEM_WAIT;
            require(item->next == NULL || item->next->seq > item->seq, "order of a queue");
        }
        require(count == s->count, "length of a queue");
    }
    require(work == fake.pending_work, "pending work");
    fake_unlock();
}

static void clear_counters(void) {
    memset(&fake.counters, 0, sizeof fake.counters);
    memset(fake.calls, 0, sizeof fake.calls);
}

void fakecu_reset_faults(void) {
    fake_lock();
    fake_fault_reset();
    fake.query_mode = 1;
    fake_set_held(false);
    fake.managed_limit = 0;
    fake_unlock();
}

void fakecu_reset(void) {
    fake_lock();
    fake_set_held(false);
    fake_run_all_work();
    fake_work_finished();
    fakecu_reset_faults();
    clear_counters();
    fake_unlock();
}

void fakecu_shutdown(void) {
    fake_lock();
    fake_fault_reset();
    fake_attributes_reset();
    fake_events_clear();
    fake_streams_clear();
    fake_libraries_clear();
    while (fake.memory_count > 0) {
        fake_memory_release(fake.memory[fake.memory_count - 1]);
    }
    free(fake.memory);
    fake.memory = NULL;
    fake.memory_room = 0;
    fake.host_locked_out = false;
    fake_handle_clear();
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        fake.contexts[i].retains = 0;
    }
    fake_stack_reset();
    fake.initialised = false;
    fake.query_mode = 1;
    fake_set_held(false);
    fake.managed_limit = 0;
    fake.leaked = 0;
    clear_counters();
    fake_config_from_environment(&fake.config);
    fake_unlock();
}

/* The ledger at the end of the process, for tests of how it ends: one "kind count" a line. A forked child has none. */
__attribute__((destructor)) static void report_at_exit(void) {
    const char *path = getenv("FAKECU_EXIT_REPORT");
    if (path == NULL || *path == '\0' || getpid() != fake.pid) {
        return;
    }
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        fake_unmodelled("FAKECU_EXIT_REPORT", "cannot write %s", path);
    }
    static const char *const kinds[] = {"managed", "device", "host", "stream", "event", "library", "context"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        fprintf(file, "%s %ld\n", kinds[i], fakecu_live(kinds[i]));
    }
    fprintf(file, "leaked %lu\n", fakecu_leaked());
    fclose(file);
    fakecu_check();
}
