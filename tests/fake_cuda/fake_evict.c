/* Room on a device, made by moving the least recently used blocks of managed memory to the host;
 * and what tests may ask of a page. */
#include "fake_internal.h"

/* Host touches since the last look have given pages back. */
static void reconcile_everything(void) {
    uint8_t present[FAKE_BLOCK_PAGES];
    for (size_t m = 0; m < fake.memory_count; m++) {
        fake_memory *memory = fake.memory[m];
        if (memory->kind != FAKE_MEMORY_MANAGED) {
            continue;
        }
        const size_t pages = memory->mapped / FAKE_PAGE;
        for (size_t first = 0; first < pages; first += FAKE_BLOCK_PAGES) {
            const size_t rest = pages - first;
            fake_pages_reconcile(memory, first, rest < FAKE_BLOCK_PAGES ? rest : FAKE_BLOCK_PAGES, present);
        }
    }
}

static bool has_room(int device, size_t pages) {
    const size_t used = fake.plain_bytes[device] + fake.held_pages[device] * FAKE_PAGE;
    return used + pages * FAKE_PAGE <= fake.config.memory;
}

static size_t block_count(const fake_memory *memory) {
    return (memory->mapped / FAKE_PAGE + FAKE_BLOCK_PAGES - 1) / FAKE_BLOCK_PAGES;
}

static void release_unused(int device, fake_block *block) {
    fake.held_pages[device] -= (size_t)(block->held[device] - block->resident[device]);
    block->held[device] = block->resident[device];
}

/* Pages that have left a device stay set aside for their block until the device is short of memory. */
static void release_everything_unused(int device) {
    for (size_t m = 0; m < fake.memory_count; m++) {
        fake_memory *memory = fake.memory[m];
        for (size_t b = 0; memory->kind == FAKE_MEMORY_MANAGED && b < block_count(memory); b++) {
            release_unused(device, &memory->blocks[b]);
        }
    }
}

/* Block of the device that was used longest ago, NULL when only `keep` is left. */
static fake_block *oldest(int device, const fake_block *keep, fake_memory **owner, size_t *index) {
    fake_block *found = NULL;
    for (size_t m = 0; m < fake.memory_count; m++) {
        fake_memory *memory = fake.memory[m];
        if (memory->kind != FAKE_MEMORY_MANAGED) {
            continue;
        }
        for (size_t b = 0; b < block_count(memory); b++) {
            fake_block *block = &memory->blocks[b];
            if (block == keep || block->resident[device] == 0) {
                continue;
            }
            if (found != NULL && found->tick <= block->tick) {
                continue;
            }
            found = block;
            *owner = memory;
            *index = b;
        }
    }
    return found;
}

static void evict_block(int device, fake_memory *memory, size_t block) {
    const size_t first = block * FAKE_BLOCK_PAGES;
    size_t end = first + FAKE_BLOCK_PAGES;
    if (end > memory->mapped / FAKE_PAGE) {
        end = memory->mapped / FAKE_PAGE;
    }
    for (size_t page = first; page < end; page++) {
        const uint8_t others = (uint8_t)(memory->pages[page].replicas & ~(1u << device));
        if (memory->pages[page].owner == FAKE_DEVICE(device)) {
            fake_pages_set_owner(memory, page, FAKE_HOST);
            if (!(memory->pages[page].flags & FAKE_PAGE_DISCARDED)) {
                fake.counters.evicted_bytes += FAKE_PAGE;
            }
        }
        fake_pages_set_replicas(memory, page, others);
    }
    release_unused(device, &memory->blocks[block]);
}

bool fake_evict(int device, size_t pages, const fake_block *keep) {
    if (has_room(device, pages)) {
        return true;
    }
    reconcile_everything();
    release_everything_unused(device);
    while (!has_room(device, pages)) {
        fake_memory *memory = NULL;
        size_t block = 0;
        if (oldest(device, keep, &memory, &block) == NULL) {
            return false;
        }
        evict_block(device, memory, block);
    }
    return true;
}

/* --- for the tests --------------------------------------------------- */

static const fake_page *look_up(const void *ptr) {
    fake_memory *memory = fake_memory_find(ptr);
    if (memory == NULL || memory->kind != FAKE_MEMORY_MANAGED) {
        return NULL;
    }
    uint8_t present[1];
    const size_t index = (size_t)((const char *)ptr - memory->host) / FAKE_PAGE;
    fake_pages_reconcile(memory, index, 1, present);
    return &memory->pages[index];
}

static int place_number(fake_place place) {
    return place == FAKE_NOWHERE ? -2 : FAKE_IS_DEVICE(place) ? FAKE_ORDINAL(place) : -1;
}

int fakecu_page_location(const void *ptr) {
    fake_lock();
    const fake_page *page = look_up(ptr);
    const int location = page == NULL ? -3 : place_number(page->owner);
    fake_unlock();
    return location;
}

int fakecu_page_preferred(const void *ptr) {
    fake_lock();
    const fake_page *page = look_up(ptr);
    const int location = page == NULL ? -3 : place_number(page->preferred);
    fake_unlock();
    return location;
}

int fakecu_page_accessed_by(const void *ptr) {
    fake_lock();
    const fake_page *page = look_up(ptr);
    const int mask = page == NULL ? -3 : page->accessed_by;
    fake_unlock();
    return mask;
}

static int page_flag(const void *ptr, unsigned flag) {
    fake_lock();
    const fake_page *page = look_up(ptr);
    const int set = page == NULL ? -3 : (page->flags & flag) != 0;
    fake_unlock();
    return set;
}

int fakecu_page_read_mostly(const void *ptr) { return page_flag(ptr, FAKE_PAGE_READ_MOSTLY); }

int fakecu_page_discarded(const void *ptr) { return page_flag(ptr, FAKE_PAGE_DISCARDED); }

unsigned long long fakecu_resident(int device) {
    fake_lock();
    if (!fake_device_valid(device)) {
        fake_unmodelled("fakecu_resident", "device %d", device);
    }
    reconcile_everything();
    const unsigned long long bytes = (unsigned long long)fake.resident_pages[device] * FAKE_PAGE;
    fake_unlock();
    return bytes;
}
