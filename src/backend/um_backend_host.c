/* The host backend: ordinary memory of this process, for machines without a GPU.
 *
 * Small blocks come from the C library. From a page group (64 KiB) on, blocks are anonymous mappings, which start zero,
 * go back to the system when freed, and from 2 MiB on are aligned so that the kernel can use huge pages.
 */
#define _GNU_SOURCE 1 /* madvise and its advice */
#include "backend/um_backend.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALL_ALIGNMENT ((size_t)512)
#define MAPPED_FROM     ((size_t)64 * 1024)
#define HUGE_PAGE       ((size_t)2 * 1024 * 1024)

#ifndef MADV_POPULATE_WRITE /* Linux 5.14; older C libraries do not name it */
#define MADV_POPULATE_WRITE 23
#endif

static size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* `unit` is a power of two. False when the result does not fit. */
static bool round_up(size_t size, size_t unit, size_t *out) {
    if (size > SIZE_MAX - (unit - 1)) {
        return false;
    }
    *out = (size + unit - 1) & ~(unit - 1);
    return true;
}

static um_status out_of_memory(size_t size, um_error *err) {
    um_status status =
        um_error_set(err, UM_ERR_OUT_OF_MEMORY, "out of memory: the system has no room for a block of %zu bytes", size);
    if (err != NULL) {
        err->requested = size;
    }
    return status;
}

/* The pages that touch the range (`whole` false), or those entirely inside it. *size is 0 when there is none. */
static void range_pages(um_range range, bool whole, char **start, size_t *size) {
    uintptr_t mask = (uintptr_t)page_size() - 1;
    uintptr_t first = (uintptr_t)range.ptr;
    uintptr_t last = first + range.size;
    if (whole) {
        first = (first + mask) & ~mask;
        last &= ~mask;
    } else {
        first &= ~mask;
        last = (last + mask) & ~mask;
    }
    *start = (char *)first;
    *size = last > first ? last - first : 0;
}

static void *map_pages(size_t size) {
    void *ptr = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return ptr != MAP_FAILED ? ptr : NULL;
}

/* `size` is whole pages. Maps enough to hold an aligned block anywhere, then gives back both ends. */
static void *map_huge(size_t size) {
    if (size > SIZE_MAX - HUGE_PAGE) {
        return NULL;
    }
    char *raw = map_pages(size + HUGE_PAGE);
    if (raw == NULL) {
        return NULL;
    }
    size_t lead = (HUGE_PAGE - ((uintptr_t)raw & (HUGE_PAGE - 1))) & (HUGE_PAGE - 1);
    char *block = raw + lead;
    /* A failed trim costs address space only: its pages are untouched. */
    if (lead > 0) {
        (void)munmap(raw, lead);
    }
    if (HUGE_PAGE - lead > 0) {
        (void)munmap(block + size, HUGE_PAGE - lead);
    }
    /* A kernel without huge pages refuses; ordinary pages then do. */
    (void)madvise(block, size, MADV_HUGEPAGE);
    return block;
}

static void *alloc_small(size_t size) {
    size_t bytes = 0;
    if (!round_up(size, SMALL_ALIGNMENT, &bytes)) {
        return NULL;
    }
    void *ptr = aligned_alloc(SMALL_ALIGNMENT, bytes);
    if (ptr != NULL) {
        memset(ptr, 0, bytes);
    }
    return ptr;
}

static um_status mem_alloc(um_backend *backend, size_t size, int device, um_location home, void **out, um_error *err) {
    (void)device;
    void *ptr = NULL;
    size_t bytes = 0;
    if (size < MAPPED_FROM) {
        ptr = alloc_small(size);
    } else if (round_up(size, page_size(), &bytes)) {
        ptr = bytes < HUGE_PAGE ? map_pages(bytes) : map_huge(bytes);
    }
    if (ptr == NULL) {
        return out_of_memory(size, err);
    }
    if (home.kind == UM_LOCATION_NUMA && size >= MAPPED_FROM) {
        um_numa_place(&backend->numa, ptr, size, home.id);
    }
    *out = ptr;
    return UM_OK;
}

static um_status mem_free(um_backend *backend, void *ptr, size_t size, int device, um_error *err) {
    (void)backend;
    (void)device;
    if (size < MAPPED_FROM) {
        free(ptr);
        return UM_OK;
    }
    size_t bytes = 0;
    if (!round_up(size, page_size(), &bytes) || munmap(ptr, bytes) != 0) {
        return um_error_set(err, UM_ERR_VALUE, "cannot free %zu bytes at %p: %s", size, ptr, strerror(errno));
    }
    return UM_OK;
}

static um_status populate(um_range range, um_error *err) {
    char *start = NULL;
    size_t size = 0;
    range_pages(range, false, &start, &size);
    if (size == 0 || madvise(start, size, MADV_POPULATE_WRITE) == 0) {
        return UM_OK;
    }
    if (errno == EINVAL) {
        (void)madvise(start, size, MADV_WILLNEED); /* a hint is all an older kernel offers */
        return UM_OK;
    }
    if (errno == ENOMEM) {
        return out_of_memory(range.size, err);
    }
    return um_error_set(err, UM_ERR_UNSUPPORTED, "cannot populate %zu bytes at %p: %s", range.size, range.ptr,
                        strerror(errno));
}

static um_status prefetch(um_backend *backend, const um_range *ranges, size_t count, um_location where, int device,
                          um_stream_handle stream, um_error *err) {
    (void)backend;
    (void)device;
    (void)stream;
    if (!um_location_is_host(where)) {
        return UM_OK;
    }
    for (size_t i = 0; i < count; ++i) {
        um_status status = populate(ranges[i], err);
        if (status != UM_OK) {
            return status;
        }
    }
    return UM_OK;
}

static um_status advise(um_backend *backend, um_range range, um_advice advice, um_location where, um_error *err) {
    (void)backend;
    (void)range;
    (void)advice;
    (void)where;
    (void)err;
    return UM_OK;
}

static um_status discard(um_backend *backend, um_range range, int device, um_stream_handle stream, um_error *err) {
    (void)backend;
    (void)device;
    (void)stream;
    (void)err;
    char *start = NULL;
    size_t size = 0;
    range_pages(range, true, &start, &size);
    if (size > 0 && madvise(start, size, MADV_DONTNEED) != 0) {
        memset(start, 0, size); /* locked pages (mlockall) cannot be dropped */
    }
    return UM_OK;
}

/* The kernel's estimate of what can be had without swapping, bytes; 0 when /proc does not say. */
static size_t available_memory(void) {
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL) {
        return 0;
    }
    char line[128];
    static const char label[] = "MemAvailable:";
    unsigned long long kib = 0;
    while (fgets(line, (int)sizeof(line), file) != NULL) {
        if (strncmp(line, label, sizeof(label) - 1) == 0) {
            kib = strtoull(line + sizeof(label) - 1, NULL, 10);
            break;
        }
    }
    (void)fclose(file);
    return (size_t)kib * 1024;
}

static um_status mem_info(um_backend *backend, int device, size_t *free_bytes, size_t *total_bytes, um_error *err) {
    (void)backend;
    (void)device;
    long pages = sysconf(_SC_PHYS_PAGES);
    long free_pages = sysconf(_SC_AVPHYS_PAGES);
    if (pages <= 0 || free_pages < 0) {
        return um_error_set(err, UM_ERR_UNSUPPORTED, "the system does not say how much memory it has");
    }
    size_t available = available_memory();
    *free_bytes = available > 0 ? available : (size_t)free_pages * page_size();
    *total_bytes = (size_t)pages * page_size();
    return UM_OK;
}

static void close_backend(um_backend *backend) { free(backend); }

static const um_backend_ops host_ops = {
    .name = "host",
    .close = close_backend,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .prefetch = prefetch,
    .advise = advise,
    .discard = discard,
    .mem_info = mem_info,
};

um_status um_backend_host_open(um_backend **out, um_error *err) {
    um_backend *backend = calloc(1, sizeof(*backend));
    if (backend == NULL) {
        return um_error_set(err, UM_ERR_NO_MEMORY, "no memory for the host backend");
    }
    backend->ops = &host_ops;
    backend->concurrent = true;
    um_numa_read(&backend->numa, NULL);
    *out = backend;
    return UM_OK;
}
