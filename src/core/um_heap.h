/* A heap: memory cut from slabs in constant time, with all bookkeeping outside of that memory.
 *
 * Two-level segregated fit: free chunks lie in lists by size class, 8 classes to a power of two, and two levels of bitmaps
 * find the first list that is not empty. Chunks that become free merge with free neighbours. A heap takes no lock and asks
 * nobody for memory: its owner brings slabs and takes empty ones back.
 */
#ifndef UM_HEAP_H
#define UM_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UM_HEAP_LEVELS  40                 /* powers of two of a granule */
#define UM_HEAP_CLASSES 8                  /* size classes of a power of two: at most 1/8 of a chunk is wasted */
#define UM_HEAP_GROUP   ((size_t)64 << 10) /* bytes that share an entry of a slab's look-up table */

typedef struct um_slab um_slab;
typedef struct um_heap um_heap;

/* A stretch of a slab, free or in use. Neighbouring chunks are never both free. */
typedef struct um_chunk {
    char *ptr;
    size_t size; /* bytes, whole granules */
    um_slab *slab;
    struct um_chunk *before, *after; /* neighbours in the slab */
    struct um_chunk *next;           /* the heap's list of its class while free; the owner's to use otherwise … */
    union {
        struct um_chunk *prev; /* … while free */
        void *owned;           /* … otherwise */
    };
    bool used;
    bool fresh; /* no part of it was in use before, since the slab was added */
} um_chunk;

struct um_slab {
    char *ptr;
    size_t size; /* bytes */
    um_heap *heap;
    um_slab *next, *prev; /* the heap's slabs */
    um_chunk *first;      /* by address */
    size_t used;          /* bytes of chunks in use */
    um_chunk **by_group;  /* the first chunk that starts in each group of UM_HEAP_GROUP bytes, or NULL */
    size_t taken;         /* bytes from ptr on up to the end of the highest chunk that was ever in use */
    void *owner_data;     /* the owner's to use, NULL at first */
};

struct um_heap {
    size_t granule; /* bytes, a power of two: sizes and addresses are multiples of it */
    um_slab *slabs;
    size_t slab_count, reserved, used, free_chunks; /* bytes of slabs, bytes of chunks in use, number of free chunks */
    uint64_t levels;                                /* bit l: some list of level l is not empty */
    uint8_t classes[UM_HEAP_LEVELS];                /* bit c: list [l][c] is not empty */
    um_chunk *lists[UM_HEAP_LEVELS][UM_HEAP_CLASSES];

    /* Memory for chunks, from the owner, who may embed them in something larger. NULL: there is none. */
    um_chunk *(*chunk_new)(void *arg);
    void (*chunk_free)(void *arg, um_chunk *chunk);
    void *arg;
};

void um_heap_init(um_heap *heap, size_t granule, um_chunk *(*chunk_new)(void *), void (*chunk_free)(void *, um_chunk *),
                  void *arg);

/* What a request of `size` > 0 bytes takes: the least size class that holds it, in bytes. 0 when no heap is that large. */
size_t um_heap_class_size(const um_heap *heap, size_t size);
/* Number of that class, below UM_HEAP_LEVELS * UM_HEAP_CLASSES. Larger sizes never have smaller numbers. */
unsigned um_heap_class_of(const um_heap *heap, size_t class_size);

/* A chunk of a class size (um_heap_class_size) at a multiple of `alignment` (a power of two), cut from what is free. NULL when
 * no free chunk will do, or when there is no memory for the bookkeeping (*out_of_memory says which). */
um_chunk *um_heap_take(um_heap *heap, size_t class_size, size_t alignment, bool *out_of_memory);
/* A free chunk of exactly that size class, or NULL; it stays free. */
um_chunk *um_heap_peek(const um_heap *heap, size_t class_size);
/* Takes all of a free chunk. */
void um_heap_use(um_heap *heap, um_chunk *chunk);
/* Gives a chunk back; it merges with free neighbours and must not be used any more. Returns its slab when that has become
 * empty, else NULL. */
um_slab *um_heap_give(um_heap *heap, um_chunk *chunk);

/* Adds [ptr, ptr + size), whole granules, as a free slab. NULL when there is no memory for the bookkeeping. */
um_slab *um_heap_add_slab(um_heap *heap, char *ptr, size_t size);
/* Forgets an empty slab and frees its bookkeeping; the memory is the caller's. */
void um_heap_remove_slab(um_heap *heap, um_slab *slab);
/* Frees a slab's bookkeeping but its chunks, when the heap is not used any more. */
void um_heap_drop_slab(um_slab *slab);

/* The chunk that holds the address, which lies in the slab. */
um_chunk *um_slab_find(const um_slab *slab, const char *address);
static inline bool um_slab_is_empty(const um_slab *slab) { return slab->used == 0; }

/* Bytes of the largest free chunk. */
size_t um_heap_largest_free(const um_heap *heap);
/* Walks everything. NULL, or what is wrong. */
const char *um_heap_check(const um_heap *heap);

#endif
