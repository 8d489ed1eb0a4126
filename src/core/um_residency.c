#define _GNU_SOURCE 1 /* mincore */
#include "core/um_residency.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/um_internal.h"

/* Page-table entries read at a time. */
#define CHUNK 1024

#define PAGEMAP_PRESENT ((uint64_t)1 << 63)
#define PAGEMAP_SWAPPED ((uint64_t)1 << 62)

size_t um_page_size(void) {
    long size = sysconf(_SC_PAGESIZE);
    return size > 0 ? (size_t)size : 4096;
}

static uintptr_t page_index(const char *ptr) { return (uintptr_t)ptr / um_page_size(); }

/* First page of the range, counted from the first page of `base`, and the number of pages it touches. */
static void page_range(const char *base, const char *begin, size_t size, size_t *first, size_t *count) {
    *first = page_index(begin) - page_index(base);
    *count = size ? page_index(begin + size - 1) - page_index(begin) + 1 : 0;
}

size_t um_residency_page_count(const um_block *block, size_t offset, size_t size) {
    size_t first, count;
    page_range(block->chunk.ptr, block->chunk.ptr + offset, size, &first, &count);
    return count;
}

/* --- what umem knows ---------------------------------------------------------------------------------------------------- */

static bool get_bit(const unsigned char *bits, size_t index) { return bits && (bits[index / 8] >> (index % 8) & 1); }

/* Sets count bits; the whole bytes between go at once. */
static void set_bits(unsigned char *bits, size_t first, size_t count) {
    size_t index = first, end = first + count;
    for (; index < end && index % 8; index++) bits[index / 8] |= (unsigned char)(1u << index % 8);
    if (index + 8 <= end) {
        memset(bits + index / 8, 0xFF, (end - index) / 8);
        index += (end - index) / 8 * 8;
    }
    for (; index < end; index++) bits[index / 8] |= (unsigned char)(1u << index % 8);
}

/* Pages outlive blocks: what was in a slab's page before tells about the block that has it now. */
static um_pages *pages_of(const um_block *block) {
    if (block->chunk.slab) return block->chunk.slab->owner_data;
    return block->chunk.owned ? &um_more(block)->pages : NULL;
}

/* Notes pages of the block's range in one of the bitmaps, which is made at first need. Without memory for it pages are unknown rather than
 * guessed. */
static void note_pages(um_pages *pages, unsigned char **bits, const char *begin, size_t size) {
    size_t first, count, all;
    page_range(pages->base, pages->base, pages->size, &first, &all);
    page_range(pages->base, begin, size, &first, &count);
    if (!*bits) *bits = calloc(all / 8 + 1, 1);
    if (*bits)
        set_bits(*bits, first, count);
    else
        pages->lost = true;
}

void um_residency_note_populated_locked(um_block *block, size_t offset, size_t size) {
    um_pages *pages = pages_of(block);
    if (block->pages_known || !size || !pages) return;
    note_pages(pages, &pages->exists, block->chunk.ptr + offset, size);
    if (size == block->size && pages->exists) block->pages_known = true;
}

void um_residency_note_gpu_locked(um_block *block, size_t offset, size_t size, bool all) {
    um_pages *pages = pages_of(block);
    if (!pages || !size) return;
    /* Pages that prefer the host are made there, yet the host's page table does not show them before the host has touched them
     * (seen on an H200): nothing tells them from pages on a GPU. */
    if (all && !um_location_is_host(um_block_home_locked(block)))
        um_residency_note_populated_locked(block, offset, size);
    else
        note_pages(pages, &pages->maybe, block->chunk.ptr + offset, size);
}

void um_residency_note_unseen_locked(um_block *block) {
    um_pages *pages = pages_of(block);
    if (pages && block->size) note_pages(pages, &pages->maybe, block->chunk.ptr, block->size);
}

void um_pages_clear(um_pages *pages) {
    free(pages->exists);
    free(pages->maybe);
    pages->exists = pages->maybe = NULL;
}

/* --- what the host's page table says ----------------------------------------------------------------------------------------- */

/* Reads entries of /proc/self/pagemap: present[i] for count pages from page number `page`. */
static bool read_pagemap(int fd, uintptr_t page, size_t count, bool *present) {
    uint64_t entries[CHUNK];
    ssize_t want = (ssize_t)(count * sizeof entries[0]);
    if (pread(fd, entries, (size_t)want, (off_t)(page * sizeof entries[0])) != want) return false;
    for (size_t i = 0; i < count; i++) present[i] = (entries[i] & (PAGEMAP_PRESENT | PAGEMAP_SWAPPED)) != 0;
    return true;
}

/* mincore agrees with the page table for anonymous and for managed memory; for use where /proc is not mounted. */
static bool read_mincore(uintptr_t page, size_t count, bool *present) {
    unsigned char entries[CHUNK];
    size_t page_size = um_page_size();
    if (mincore((void *)(page * page_size), count * page_size, entries)) return false;
    for (size_t i = 0; i < count; i++) present[i] = entries[i] & 1;
    return true;
}

/* Calls visit(arg, index, present) for each page; false when the kernel does not tell. visit returns false to stop early. */
static bool walk_pages(uintptr_t page, size_t count, bool (*visit)(void *, size_t, bool), void *arg) {
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    bool known = true;
    bool present[CHUNK];
    size_t chunk = 1; /* grows, since a visitor often has seen enough after the first page */
    for (size_t done = 0; done < count && known; done += chunk) {
        if (done) chunk = chunk * 32 < CHUNK ? chunk * 32 : CHUNK;
        if (chunk > count - done) chunk = count - done;
        known = (fd >= 0 && read_pagemap(fd, page + done, chunk, present)) || read_mincore(page + done, chunk, present);
        for (size_t i = 0; known && i < chunk; i++)
            if (!visit(arg, done + i, present[i])) goto stop;
    }
stop:
    if (fd >= 0) close(fd);
    return known;
}

static bool note_present(void *states, size_t index, bool present) {
    ((unsigned char *)states)[index] = present;
    return true;
}

/* State of a page that the host does not map. [lock] held. */
static um_page_state absent_page(const um_block *block, const um_pages *pages, size_t index) {
    if (!um_context_is_cuda(block->ctx)) return um_block_held(block) ? UM_PAGE_UNTOUCHED : UM_PAGE_UNKNOWN;
    if (!pages) return UM_PAGE_UNKNOWN;
    if (get_bit(pages->exists, index)) return UM_PAGE_DEVICE;
    return pages->lost || get_bit(pages->maybe, index) ? UM_PAGE_UNKNOWN : UM_PAGE_UNTOUCHED;
}

um_status um_residency_scan(um_block *block, size_t offset, size_t size, unsigned char *states, um_error *err) {
    um_status status = um_context_check(block->ctx, err);
    if (status != UM_OK || !size) return status;
    const char *begin = block->chunk.ptr + offset;
    size_t count = um_residency_page_count(block, offset, size);
    bool known = walk_pages(page_index(begin), count, note_present, states);
    bool cuda = um_context_is_cuda(block->ctx);
    pthread_mutex_lock(&block->ctx->lock);
    um_pages *pages = pages_of(block);
    size_t first = pages ? page_index(begin) - page_index(pages->base) : 0;
    for (size_t i = 0; i < count; i++) {
        bool present = known && states[i];
        states[i] = (unsigned char)(!known    ? UM_PAGE_UNKNOWN
                                    : present ? UM_PAGE_HOST
                                              : absent_page(block, pages, first + i));
        if (present && cuda && pages && !get_bit(pages->exists, first + i))
            note_pages(pages, &pages->exists, begin + i * um_page_size(), 1);
    }
    pthread_mutex_unlock(&block->ctx->lock);
    return UM_OK;
}

double um_residency_host_share(um_block *block) {
    size_t count = um_residency_page_count(block, 0, block->size), present = 0;
    unsigned char *states = malloc(count ? count : 1);
    if (!states) return -1;
    um_error ignored; /* a share that cannot be known moves nothing */
    um_status status = um_residency_scan(block, 0, block->size, states, &ignored);
    for (size_t i = 0; i < count && status == UM_OK; i++) present += states[i] == UM_PAGE_HOST;
    free(states);
    return status == UM_OK && count ? (double)present / (double)count : -1;
}

static bool stop_when_absent(void *all, size_t index, bool present) {
    (void)index;
    return *(bool *)all = present;
}

static bool stop_when_present(void *any, size_t index, bool present) {
    (void)index;
    return !(*(bool *)any = present);
}

/* Walks the pages of [ptr, ptr + size) until `visit` has seen enough. */
static bool walk_range(const char *ptr, size_t size, bool (*visit)(void *, size_t, bool), bool *answer) {
    uintptr_t first = page_index(ptr);
    return walk_pages(first, page_index(ptr + size - 1) - first + 1, visit, answer);
}

bool um_host_resident(const char *ptr, size_t size) {
    bool all = true;
    return !size || (walk_range(ptr, size, stop_when_absent, &all) && all);
}

bool um_host_resident_at_all(const char *ptr, size_t size) {
    bool any = false;
    return size && (!walk_range(ptr, size, stop_when_present, &any) || any);
}
