/* Where each page of managed memory is, and what moves it.
 *
 * A page leaves the host by MADV_DONTNEED on the host mapping: its bytes stay in the memfd, its
 * page-table entry goes, and the next host touch brings it back, which the books learn from
 * /proc/self/pagemap. A page may belong to the host without being mapped there (evicted, or
 * discarded).
 *
 * What a GPU writes to a discarded page through a mapping that advice keeps goes to a private page in
 * place of the memfd's: there it is lost as soon as the page goes to the host.
 */
#include "fake_internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DISCARDED_BYTE     0xDB
#define DISCARD_FILL_LIMIT ((size_t)64 << 20) /* bytes of one discard that are overwritten */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* --- the books ------------------------------------------------------- */

static size_t page_count(const fake_memory *memory) { return memory->mapped / FAKE_PAGE; }

bool fake_pages_init(fake_memory *memory) {
    const size_t pages = page_count(memory);
    memory->pages = calloc(pages, sizeof *memory->pages);
    memory->blocks = calloc((pages + FAKE_BLOCK_PAGES - 1) / FAKE_BLOCK_PAGES, sizeof *memory->blocks);
    if (memory->pages != NULL && memory->blocks != NULL) {
        return true;
    }
    free(memory->pages);
    free(memory->blocks);
    return false;
}

void fake_pages_destroy(fake_memory *memory) {
    const size_t blocks = (page_count(memory) + FAKE_BLOCK_PAGES - 1) / FAKE_BLOCK_PAGES;
    for (size_t i = 0; i < blocks; i++) {
        for (int device = 0; device < FAKE_MAX_DEVICES; device++) {
            fake.resident_pages[device] -= memory->blocks[i].resident[device];
            fake.held_pages[device] -= memory->blocks[i].held[device];
        }
    }
    if (memory->aside != NULL) {
        munmap(memory->aside, memory->mapped);
    }
    free(memory->pages);
    free(memory->blocks);
}

static uint8_t bit(int device) { return (uint8_t)(1u << device); }

/* Devices that hold the page, owner and replicas. */
static uint8_t holders(const fake_page *page) {
    return FAKE_IS_DEVICE(page->owner) ? (uint8_t)(page->replicas | bit(FAKE_ORDINAL(page->owner))) : page->replicas;
}

static void recount(fake_memory *memory, size_t index, uint8_t before) {
    fake_block *block = &memory->blocks[index / FAKE_BLOCK_PAGES];
    const uint8_t after = holders(&memory->pages[index]);
    for (int device = 0; device < FAKE_MAX_DEVICES && before != after; device++) {
        if ((before & bit(device)) && !(after & bit(device))) {
            block->resident[device]--;
            fake.resident_pages[device]--;
        } else if (!(before & bit(device)) && (after & bit(device))) {
            block->resident[device]++;
            fake.resident_pages[device]++;
            if (block->resident[device] > block->held[device]) {
                block->held[device]++;
                fake.held_pages[device]++;
            }
        }
    }
}

/* --- discarded pages that a device writes to ------------------------- */

static void move_page(char *from, char *to) {
    if (mremap(from, FAKE_PAGE, FAKE_PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED) {
        fake_unmodelled("pages", "mremap failed");
    }
}

static void map_anonymous(char *at, size_t size, int protection) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(at, size, protection, flags, -1, 0) == MAP_FAILED) {
        fake_unmodelled("pages", "mmap failed");
    }
}

/* Gives the devices a copy of the page of their own, and puts the memfd's aside. */
static void keep_unsaved(fake_memory *memory, size_t index) {
    fake_page *page = &memory->pages[index];
    if (page->flags & FAKE_PAGE_UNSAVED) {
        return;
    }
    if (memory->aside == NULL) {
        memory->aside = mmap(NULL, memory->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory->aside == MAP_FAILED) {
            fake_unmodelled("pages", "mmap failed");
        }
    }
    char *gpu = memory->gpu + index * FAKE_PAGE, *aside = memory->aside + index * FAKE_PAGE;
    move_page(gpu, aside);
    map_anonymous(gpu, FAKE_PAGE, PROT_READ | PROT_WRITE);
    memcpy(gpu, aside, FAKE_PAGE);
    page->flags |= FAKE_PAGE_UNSAVED;
    memory->unsaved++;
}

/* The page is the memfd's again, with the bytes that it had when it was discarded. */
static void drop_unsaved(fake_memory *memory, size_t index) {
    fake_page *page = &memory->pages[index];
    if (!(page->flags & FAKE_PAGE_UNSAVED)) {
        return;
    }
    char *aside = memory->aside + index * FAKE_PAGE;
    move_page(aside, memory->gpu + index * FAKE_PAGE);
    map_anonymous(aside, FAKE_PAGE, PROT_NONE); /* nobody else's mapping may take the place */
    page->flags &= (uint8_t)~FAKE_PAGE_UNSAVED;
    memory->unsaved--;
}

/* The page holds from now on what the devices see in it. */
static void undo_discard(fake_memory *memory, size_t index) {
    fake_page *page = &memory->pages[index];
    if (page->flags & FAKE_PAGE_UNSAVED) {
        char *gpu = memory->gpu + index * FAKE_PAGE, bytes[FAKE_PAGE];
        memcpy(bytes, gpu, FAKE_PAGE);
        drop_unsaved(memory, index);
        memcpy(gpu, bytes, FAKE_PAGE);
    }
    page->flags &= (uint8_t)~FAKE_PAGE_DISCARDED;
}

/* --- owners and replicas --------------------------------------------- */

void fake_pages_set_owner(fake_memory *memory, size_t index, fake_place owner) {
    const uint8_t before = holders(&memory->pages[index]);
    if (memory->pages[index].owner != owner) {
        drop_unsaved(memory, index); /* a discarded page goes without its bytes */
    }
    memory->pages[index].owner = owner;
    recount(memory, index, before);
}

void fake_pages_set_replicas(fake_memory *memory, size_t index, uint8_t replicas) {
    const uint8_t before = holders(&memory->pages[index]);
    memory->pages[index].replicas = replicas;
    recount(memory, index, before);
}

static void read_pagemap(const char *address, uint64_t *entries, size_t count) {
    static int file = -1;
    static int file_pid;
    if (file < 0 || file_pid != fake.pid) {
        file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
        file_pid = fake.pid;
    }
    const ssize_t bytes = (ssize_t)(count * sizeof *entries);
    if (pread(file, entries, (size_t)bytes, (off_t)((uintptr_t)address / FAKE_PAGE * sizeof *entries)) != bytes) {
        fake_unmodelled("pages", "cannot read /proc/self/pagemap");
    }
}

/* present[i] says whether the host maps page first + i; count is at most FAKE_BLOCK_PAGES. */
void fake_pages_reconcile(fake_memory *memory, size_t first, size_t count, uint8_t *present) {
    uint64_t entries[FAKE_BLOCK_PAGES];
    read_pagemap(memory->host + first * FAKE_PAGE, entries, count);
    for (size_t i = 0; i < count; i++) {
        present[i] = (uint8_t)(entries[i] >> 63);
        fake_page *page = &memory->pages[first + i];
        if (!present[i]) {
            continue;
        }
        if (page->flags & FAKE_PAGE_DISCARDED) { /* which took it out of the page table: this is a new touch */
            drop_unsaved(memory, first + i);
            undo_discard(memory, first + i);
        }
        if (page->owner == FAKE_HOST) {
            continue;
        }
        if (FAKE_IS_DEVICE(page->owner)) {
            fake.counters.host_fault_bytes += FAKE_PAGE;
            if (page->flags & FAKE_PAGE_READ_MOSTLY) {
                fake_pages_set_replicas(memory, first + i, (uint8_t)(page->replicas | bit(FAKE_ORDINAL(page->owner))));
            }
        }
        fake_pages_set_owner(memory, first + i, FAKE_HOST);
    }
}

/* --- walking a range, one block at a time ---------------------------- */

typedef struct walk {
    fake_memory *memory;
    fake_block *block;
    size_t first, count; /* pages of this step */
    size_t end;          /* page behind the range */
    uint8_t present[FAKE_BLOCK_PAGES];
    uint8_t leave[FAKE_BLOCK_PAGES]; /* pages to take out of the host's page table */
    uint8_t enter[FAKE_BLOCK_PAGES]; /* and to put into it */
} walk;

static walk walk_start(fake_memory *memory, size_t offset, size_t size) {
    return (walk){.memory = memory, .first = offset / FAKE_PAGE, .end = (offset + size + FAKE_PAGE - 1) / FAKE_PAGE};
}

static bool walk_next(walk *w) {
    w->first += w->count;
    if (w->first >= w->end) {
        return false;
    }
    const size_t block_end = (w->first / FAKE_BLOCK_PAGES + 1) * FAKE_BLOCK_PAGES;
    w->count = (block_end < w->end ? block_end : w->end) - w->first;
    w->block = &w->memory->blocks[w->first / FAKE_BLOCK_PAGES];
    fake_pages_reconcile(w->memory, w->first, w->count, w->present);
    memset(w->leave, 0, sizeof w->leave);
    memset(w->enter, 0, sizeof w->enter);
    return true;
}

static void unmap_from_host(char *start, size_t size) {
    if (madvise(start, size, MADV_DONTNEED) != 0) {
        fake_unmodelled("pages", "MADV_DONTNEED failed");
    }
}

static void map_to_host(char *start, size_t size) {
    if (fake.host_locked_out || madvise(start, size, MADV_POPULATE_WRITE) == 0) {
        return;
    }
    for (size_t i = 0; i < size; i += FAKE_PAGE) {
        (void)*(volatile char *)(start + i); /* Linux before 5.14 */
    }
}

static void for_each_run(const walk *w, const uint8_t *chosen, void (*change)(char *start, size_t size)) {
    for (size_t i = 0; i < w->count;) {
        size_t run = 0;
        while (i + run < w->count && chosen[i + run]) {
            run++;
        }
        if (run > 0) {
            change(w->memory->host + (w->first + i) * FAKE_PAGE, run * FAKE_PAGE);
        }
        i += run + 1;
    }
}

static void change_page_table(const walk *w) {
    for_each_run(w, w->leave, unmap_from_host);
    for_each_run(w, w->enter, map_to_host);
}

static void count_move(const fake_page *page, fake_place where) {
    if (page->owner == where || page->owner == FAKE_NOWHERE || (page->flags & FAKE_PAGE_DISCARDED)) {
        return;
    }
    if (where == FAKE_HOST) {
        fake.counters.to_host_bytes += FAKE_PAGE;
    } else if (page->owner == FAKE_HOST) {
        fake.counters.to_device_bytes += FAKE_PAGE;
    } else {
        fake.counters.peer_bytes += FAKE_PAGE;
    }
}

/* Makes `device` the page's only holder; false (and nothing happens) when the device is full of
 * other things. */
static bool move_to_device(walk *w, size_t i, int device) {
    fake_page *page = &w->memory->pages[w->first + i];
    if (!(holders(page) & bit(device))) {
        if (!fake_evict(device, 1, w->block)) {
            return false;
        }
        count_move(page, FAKE_DEVICE(device));
    }
    w->leave[i] = w->present[i];
    fake_pages_set_replicas(w->memory, w->first + i, 0);
    fake_pages_set_owner(w->memory, w->first + i, FAKE_DEVICE(device));
    return true;
}

static bool add_replica(walk *w, size_t i, int device) {
    fake_page *page = &w->memory->pages[w->first + i];
    if (holders(page) & bit(device)) {
        return true;
    }
    if (!fake_evict(device, 1, w->block)) {
        return false;
    }
    count_move(page, FAKE_DEVICE(device));
    fake_pages_set_replicas(w->memory, w->first + i, (uint8_t)(page->replicas | bit(device)));
    return true;
}

/* --- prefetch and discard -------------------------------------------- */

static void prefetch_to_device(fake_memory *memory, size_t offset, size_t size, int device) {
    for (walk w = walk_start(memory, offset, size); walk_next(&w);) {
        w.block->tick = ++fake.tick;
        for (size_t i = 0; i < w.count; i++) {
            fake_page *page = &memory->pages[w.first + i];
            if ((page->flags & FAKE_PAGE_READ_MOSTLY) && page->owner != FAKE_NOWHERE) {
                add_replica(&w, i, device);
            } else {
                move_to_device(&w, i, device);
            }
            undo_discard(memory, w.first + i);
        }
        change_page_table(&w);
    }
}

static void prefetch_to_host(fake_memory *memory, size_t offset, size_t size) {
    for (walk w = walk_start(memory, offset, size); walk_next(&w);) {
        for (size_t i = 0; i < w.count; i++) {
            fake_page *page = &memory->pages[w.first + i];
            uint8_t replicas = 0;
            if (page->flags & FAKE_PAGE_READ_MOSTLY) {
                replicas = holders(page);
            }
            count_move(page, FAKE_HOST);
            fake_pages_set_owner(memory, w.first + i, FAKE_HOST);
            fake_pages_set_replicas(memory, w.first + i, replicas);
            drop_unsaved(memory, w.first + i);
            undo_discard(memory, w.first + i);
            w.enter[i] = true;
        }
        change_page_table(&w);
    }
}

void fake_pages_prefetch(fake_memory *memory, size_t offset, size_t size, fake_place where) {
    if (where == FAKE_HOST) {
        prefetch_to_host(memory, offset, size);
    } else {
        prefetch_to_device(memory, offset, size, FAKE_ORDINAL(where));
    }
}

/* Whole pages leave the host's page table and lose their bytes; of the others only the bytes are gone. */
void fake_pages_discard(fake_memory *memory, size_t offset, size_t size) {
    const size_t end = offset + size == memory->size ? memory->mapped : offset + size;
    for (walk w = walk_start(memory, offset, size); walk_next(&w);) {
        for (size_t i = 0; i < w.count; i++) {
            const size_t start = (w.first + i) * FAKE_PAGE;
            if (start < offset || start + FAKE_PAGE > end) {
                continue;
            }
            drop_unsaved(memory, w.first + i);
            memory->pages[w.first + i].flags |= FAKE_PAGE_DISCARDED;
            w.leave[i] = w.present[i];
        }
        change_page_table(&w);
    }
    if (size <= DISCARD_FILL_LIMIT) {
        memset(memory->gpu + offset, DISCARDED_BYTE, size);
    } else {
        memset(memory->gpu + offset, DISCARDED_BYTE, DISCARD_FILL_LIMIT / 2);
        memset(memory->gpu + offset + size - DISCARD_FILL_LIMIT / 2, DISCARDED_BYTE, DISCARD_FILL_LIMIT / 2);
    }
}

/* --- a kernel's access ----------------------------------------------- */

static void first_touch(walk *w, size_t i, int device) {
    fake_page *page = &w->memory->pages[w->first + i];
    int target = device;
    if (page->preferred == FAKE_HOST) {
        target = -1;
    } else if (FAKE_IS_DEVICE(page->preferred) && (page->accessed_by & bit(device))) {
        target = FAKE_ORDINAL(page->preferred);
    }
    if (target < 0 || !move_to_device(w, i, target)) {
        fake_pages_set_owner(w->memory, w->first + i, FAKE_HOST);
        w->enter[i] = target < 0;
    }
}

static void touch_page(walk *w, size_t i, int device, bool write) {
    fake_page *page = &w->memory->pages[w->first + i];
    const bool advised = page->owner != FAKE_NOWHERE && (page->accessed_by & bit(device)); /* no access faults */
    const bool read_mostly = (page->flags & FAKE_PAGE_READ_MOSTLY) != 0;
    if (page->owner == FAKE_NOWHERE) {
        first_touch(w, i, device);
    } else if (page->owner == FAKE_DEVICE(device)) {
        if (write) {
            move_to_device(w, i, device); /* drops replicas */
        }
    } else if (!write && (page->replicas & bit(device))) {
        ; /* a copy of its own */
    } else if (advised || page->preferred == page->owner) {
        if (page->owner == FAKE_HOST) {
            fake.counters.link_bytes += FAKE_PAGE;
        } else {
            fake.counters.peer_link_bytes += FAKE_PAGE;
        }
        if (write) {
            fake_pages_set_replicas(w->memory, w->first + i, 0);
        }
    } else if (read_mostly && !write) {
        add_replica(w, i, device);
    } else if (!move_to_device(w, i, device) && page->owner == FAKE_HOST) {
        fake.counters.link_bytes += FAKE_PAGE; /* a full device leaves it where it is */
    }
    if (!write || !(page->flags & FAKE_PAGE_DISCARDED)) {
        return;
    }
    if (advised) {
        keep_unsaved(w->memory, w->first + i); /* the driver does not learn of it */
    } else {
        undo_discard(w->memory, w->first + i);
    }
}

void fake_pages_touch(fake_memory *memory, size_t offset, size_t size, int device, bool write) {
    for (walk w = walk_start(memory, offset, size); walk_next(&w);) {
        w.block->tick = ++fake.tick;
        for (size_t i = 0; i < w.count; i++) {
            touch_page(&w, i, device, write);
        }
        change_page_table(&w);
    }
}

void fake_pages_settle(const void *ptr, size_t size) {
    fake_memory *memory = fake_memory_find(ptr);
    if (memory == NULL || memory->unsaved == 0) {
        return;
    }
    for (walk w = walk_start(memory, (size_t)((const char *)ptr - memory->host), size); walk_next(&w);) {
    }
}

/* --- advice ---------------------------------------------------------- */

static void unset_read_mostly(walk *w, size_t i) {
    fake_page *page = &w->memory->pages[w->first + i];
    page->flags &= (uint8_t)~FAKE_PAGE_READ_MOSTLY;
    if (FAKE_IS_DEVICE(page->preferred) && (holders(page) & bit(FAKE_ORDINAL(page->preferred)))) {
        move_to_device(w, i, FAKE_ORDINAL(page->preferred));
    }
    fake_pages_set_replicas(w->memory, w->first + i, 0);
}

void fake_pages_advise(fake_memory *memory, size_t offset, size_t size, CUmem_advise advice, fake_place where) {
    for (walk w = walk_start(memory, offset, size); walk_next(&w);) {
        for (size_t i = 0; i < w.count; i++) {
            fake_page *page = &memory->pages[w.first + i];
            const uint8_t device_bit = FAKE_IS_DEVICE(where) ? bit(FAKE_ORDINAL(where)) : 0;
            switch (advice) {
            case CU_MEM_ADVISE_SET_READ_MOSTLY: page->flags |= FAKE_PAGE_READ_MOSTLY; break;
            case CU_MEM_ADVISE_UNSET_READ_MOSTLY: unset_read_mostly(&w, i); break;
            case CU_MEM_ADVISE_SET_PREFERRED_LOCATION: page->preferred = where; break;
            case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: page->preferred = FAKE_NOWHERE; break;
            case CU_MEM_ADVISE_SET_ACCESSED_BY: page->accessed_by |= device_bit; break;
            case CU_MEM_ADVISE_UNSET_ACCESSED_BY: page->accessed_by &= (uint8_t)~device_bit; break;
            default: fake_unmodelled("cuMemAdvise", "advice %d", (int)advice);
            }
        }
        change_page_table(&w);
    }
}
