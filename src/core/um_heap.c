#include "core/um_heap.h"

#include <stdlib.h>
#include <string.h>

#define CLASS_BITS 3 /* log2 of UM_HEAP_CLASSES */

_Static_assert(UM_HEAP_CLASSES == 1 << CLASS_BITS, "CLASS_BITS is the logarithm of UM_HEAP_CLASSES");
_Static_assert(UM_HEAP_LEVELS <= 64, "levels are bits of a word");

/* --- size classes ------------------------------------------------------------------------------------------------------ */

/* Sizes in granules: below 8 each has a class of its own (level 0); above, level l holds 8 << (l - 1) up to twice that, in
 * eight classes. */
typedef struct size_class {
    unsigned level, index;
} size_class;

static unsigned log2_floor(size_t value) { return 63u - (unsigned)__builtin_clzll(value); }

/* The class whose sizes include `units`: the largest that starts at or below it. */
static size_class class_below(size_t units) {
    if (units < UM_HEAP_CLASSES) return (size_class){0, (unsigned)units};
    unsigned log = log2_floor(units);
    return (size_class){log - CLASS_BITS + 1, (unsigned)(units >> (log - CLASS_BITS)) & (UM_HEAP_CLASSES - 1)};
}

static size_t units_of(const um_heap *heap, size_t size) { return size / heap->granule; }

void um_heap_init(um_heap *heap, size_t granule, um_chunk *(*chunk_new)(void *), void (*chunk_free)(void *, um_chunk *),
                  void *arg) {
    memset(heap, 0, sizeof *heap);
    heap->granule = granule;
    heap->chunk_new = chunk_new;
    heap->chunk_free = chunk_free;
    heap->arg = arg;
}

size_t um_heap_class_size(const um_heap *heap, size_t size) {
    size_t units = (size - 1) / heap->granule + 1;
    if (units > UM_HEAP_CLASSES) {
        unsigned log = log2_floor(units);
        size_t step = (size_t)1 << (log - CLASS_BITS);
        units = (units + step - 1) & ~(step - 1);
    }
    if (class_below(units).level >= UM_HEAP_LEVELS || units > SIZE_MAX / heap->granule) return 0;
    return units * heap->granule;
}

unsigned um_heap_class_of(const um_heap *heap, size_t class_size) {
    size_class found = class_below(units_of(heap, class_size));
    return found.level * UM_HEAP_CLASSES + found.index;
}

/* --- lists of free chunks ------------------------------------------------------------------------------------------------ */

static um_chunk **list_of(um_heap *heap, size_class at) { return &heap->lists[at.level][at.index]; }

static void link_free(um_heap *heap, um_chunk *chunk) {
    size_class at = class_below(units_of(heap, chunk->size));
    um_chunk **list = list_of(heap, at);
    chunk->used = false;
    chunk->prev = NULL;
    chunk->next = *list;
    if (*list) (*list)->prev = chunk;
    *list = chunk;
    heap->classes[at.level] |= (uint8_t)(1u << at.index);
    heap->levels |= (uint64_t)1 << at.level;
    heap->free_chunks++;
}

static void unlink_free(um_heap *heap, um_chunk *chunk) {
    size_class at = class_below(units_of(heap, chunk->size));
    um_chunk **list = list_of(heap, at);
    if (chunk->prev)
        chunk->prev->next = chunk->next;
    else
        *list = chunk->next;
    if (chunk->next) chunk->next->prev = chunk->prev;
    if (!*list) {
        heap->classes[at.level] &= (uint8_t)~(1u << at.index);
        if (!heap->classes[at.level]) heap->levels &= ~((uint64_t)1 << at.level);
    }
    heap->free_chunks--;
}

/* First chunk of the first list at or above class `at` that is not empty. */
static um_chunk *first_at_least(const um_heap *heap, size_class at) {
    if (at.level >= UM_HEAP_LEVELS) return NULL;
    unsigned classes = heap->classes[at.level] & (0xFFu << at.index);
    unsigned level = at.level;
    if (!classes) {
        uint64_t levels = level + 1 < 64 ? heap->levels & (~(uint64_t)0 << (level + 1)) : 0;
        if (!levels) return NULL;
        level = (unsigned)__builtin_ctzll(levels);
        classes = heap->classes[level];
    }
    return heap->lists[level][__builtin_ctz(classes)];
}

/* --- the look-up table of a slab ------------------------------------------------------------------------------------------- */

static size_t group_of(const um_slab *slab, const char *ptr) { return (size_t)(ptr - slab->ptr) / UM_HEAP_GROUP; }

static void note_start(um_chunk *chunk) {
    um_chunk **entry = &chunk->slab->by_group[group_of(chunk->slab, chunk->ptr)];
    if (!*entry || (*entry)->ptr > chunk->ptr) *entry = chunk;
}

/* The chunk is about to lose its start to the chunk before it; its neighbours are still linked. */
static void forget_start(um_chunk *chunk) {
    size_t group = group_of(chunk->slab, chunk->ptr);
    um_chunk **entry = &chunk->slab->by_group[group];
    if (*entry != chunk) return;
    *entry = chunk->after && group_of(chunk->slab, chunk->after->ptr) == group ? chunk->after : NULL;
}

um_chunk *um_slab_find(const um_slab *slab, const char *address) {
    if (!slab->first->after) return slab->first; /* the slab of a large block has a long table of nothing */
    size_t group = group_of(slab, address);
    while (!slab->by_group[group] || slab->by_group[group]->ptr > address) group--;
    um_chunk *chunk = slab->by_group[group];
    while (chunk->after && chunk->after->ptr <= address) chunk = chunk->after;
    return chunk;
}

/* --- taking and giving ------------------------------------------------------------------------------------------------------ */

/* Cuts `chunk`, which is in no list, after `size` bytes; `rest` becomes the second part, in no list either. */
static void split(um_chunk *chunk, size_t size, um_chunk *rest) {
    *rest = (um_chunk){.ptr = chunk->ptr + size,
                       .size = chunk->size - size,
                       .slab = chunk->slab,
                       .before = chunk,
                       .after = chunk->after};
    if (rest->after) rest->after->before = rest;
    chunk->after = rest;
    chunk->size = size;
    note_start(rest);
}

static size_t lead_of(const um_chunk *chunk, size_t alignment) {
    return (alignment - ((uintptr_t)chunk->ptr & (alignment - 1))) & (alignment - 1);
}

/* A free chunk that holds `size` bytes at the alignment. */
static um_chunk *find_free(const um_heap *heap, size_t size, size_t alignment) {
    um_chunk *chunk = first_at_least(heap, class_below(units_of(heap, size)));
    if (!chunk || lead_of(chunk, alignment) + size <= chunk->size) return chunk;
    /* Any chunk this large will do. */
    size_t enough = um_heap_class_size(heap, size + alignment - heap->granule);
    return enough ? first_at_least(heap, class_below(units_of(heap, enough))) : NULL;
}

/* `chunk` is in no list. */
static void mark_used(um_heap *heap, um_chunk *chunk) {
    um_slab *slab = chunk->slab;
    size_t begin = (size_t)(chunk->ptr - slab->ptr), end = begin + chunk->size;
    chunk->used = true;
    chunk->fresh = begin >= slab->taken;
    if (slab->taken < end) slab->taken = end;
    slab->used += chunk->size;
    heap->used += chunk->size;
}

um_chunk *um_heap_take(um_heap *heap, size_t class_size, size_t alignment, bool *out_of_memory) {
    *out_of_memory = false;
    um_chunk *chunk = find_free(heap, class_size, alignment);
    if (!chunk) return NULL;
    size_t lead = lead_of(chunk, alignment);
    bool has_rest = chunk->size - lead > class_size;
    um_chunk *aligned = lead ? heap->chunk_new(heap->arg) : NULL;
    um_chunk *rest = has_rest ? heap->chunk_new(heap->arg) : NULL;
    if ((lead && !aligned) || (has_rest && !rest)) {
        if (aligned) heap->chunk_free(heap->arg, aligned);
        if (rest) heap->chunk_free(heap->arg, rest);
        *out_of_memory = true;
        return NULL;
    }
    unlink_free(heap, chunk);
    if (lead) {
        split(chunk, lead, aligned);
        link_free(heap, chunk);
        chunk = aligned;
    }
    if (has_rest) {
        split(chunk, class_size, rest);
        link_free(heap, rest);
    }
    mark_used(heap, chunk);
    return chunk;
}

um_chunk *um_heap_peek(const um_heap *heap, size_t class_size) {
    size_class at = class_below(units_of(heap, class_size));
    return heap->lists[at.level][at.index];
}

void um_heap_use(um_heap *heap, um_chunk *chunk) {
    unlink_free(heap, chunk);
    mark_used(heap, chunk);
}

/* `left` takes over `right`, which is free and unlinked, as is `left`. */
static void merge(um_heap *heap, um_chunk *left, um_chunk *right) {
    forget_start(right);
    left->size += right->size;
    left->after = right->after;
    if (right->after) right->after->before = left;
    heap->chunk_free(heap->arg, right);
}

um_slab *um_heap_give(um_heap *heap, um_chunk *chunk) {
    um_slab *slab = chunk->slab;
    slab->used -= chunk->size;
    heap->used -= chunk->size;
    um_chunk *before = chunk->before, *after = chunk->after;
    if (after && !after->used) {
        unlink_free(heap, after);
        merge(heap, chunk, after);
    }
    if (before && !before->used) {
        unlink_free(heap, before);
        merge(heap, before, chunk);
        chunk = before;
    }
    link_free(heap, chunk);
    return um_slab_is_empty(slab) ? slab : NULL;
}

/* --- slabs ------------------------------------------------------------------------------------------------------------------- */

um_slab *um_heap_add_slab(um_heap *heap, char *ptr, size_t size) {
    um_slab *slab = calloc(1, sizeof *slab);
    um_chunk **table = calloc((size - 1) / UM_HEAP_GROUP + 1, sizeof *table);
    um_chunk *chunk = slab && table ? heap->chunk_new(heap->arg) : NULL;
    if (!chunk) {
        free(slab);
        free(table);
        return NULL;
    }
    *slab = (um_slab){.size = size, .heap = heap, .next = heap->slabs, .first = chunk, .by_group = table};
    *chunk = (um_chunk){.size = size, .slab = slab};
    slab->ptr = chunk->ptr = ptr;
    if (heap->slabs) heap->slabs->prev = slab;
    heap->slabs = slab;
    heap->slab_count++;
    heap->reserved += size;
    note_start(chunk);
    link_free(heap, chunk);
    return slab;
}

void um_heap_remove_slab(um_heap *heap, um_slab *slab) {
    unlink_free(heap, slab->first);
    heap->chunk_free(heap->arg, slab->first);
    if (slab->prev)
        slab->prev->next = slab->next;
    else
        heap->slabs = slab->next;
    if (slab->next) slab->next->prev = slab->prev;
    heap->slab_count--;
    heap->reserved -= slab->size;
    um_heap_drop_slab(slab);
}

void um_heap_drop_slab(um_slab *slab) {
    free(slab->by_group);
    free(slab);
}

/* --- looking ------------------------------------------------------------------------------------------------------------------ */

size_t um_heap_largest_free(const um_heap *heap) {
    if (!heap->levels) return 0;
    unsigned level = log2_floor(heap->levels);
    size_t largest = 0; /* sizes of one class differ by less than an eighth: the topmost list is walked */
    const um_chunk *chunk = heap->lists[level][log2_floor(heap->classes[level])];
    for (; chunk; chunk = chunk->next)
        if (chunk->size > largest) largest = chunk->size;
    return largest;
}

static const char *check_slab(const um_heap *heap, const um_slab *slab, size_t *free_chunks) {
    size_t used = 0, size = 0, group = 0;
    const um_chunk *before = NULL;
    for (const um_chunk *chunk = slab->first; chunk; before = chunk, chunk = chunk->after) {
        if (chunk->slab != slab || chunk->before != before) return "a chunk is linked wrongly";
        if (chunk->ptr != slab->ptr + size) return "chunks overlap or leave a gap";
        if (!chunk->size || chunk->size % heap->granule) return "a chunk is not whole granules";
        if (before && !before->used && !chunk->used) return "free neighbours were not merged";
        if (!before || group_of(slab, before->ptr) != group_of(slab, chunk->ptr)) {
            for (; group < group_of(slab, chunk->ptr); group++)
                if (slab->by_group[group]) return "the look-up table has an entry where no chunk starts";
            if (slab->by_group[group++] != chunk) return "the look-up table misses a chunk";
        }
        size += chunk->size;
        if (chunk->used)
            used += chunk->size;
        else
            ++*free_chunks;
    }
    for (; group * UM_HEAP_GROUP < slab->size; group++)
        if (slab->by_group[group]) return "the look-up table has an entry where no chunk starts";
    if (size != slab->size) return "chunks do not fill their slab";
    return used != slab->used ? "a slab's bytes in use are miscounted" : NULL;
}

static const char *check_list(const um_heap *heap, unsigned level, unsigned index, size_t *listed) {
    const um_chunk *list = heap->lists[level][index], *prev = NULL;
    if (!list != !(heap->classes[level] >> index & 1)) return "the bitmap of a level is wrong";
    for (const um_chunk *chunk = list; chunk; prev = chunk, chunk = chunk->next) {
        size_class at = class_below(units_of(heap, chunk->size));
        if (chunk->used) return "a chunk in use is listed as free";
        if (chunk->prev != prev) return "a list is linked wrongly";
        if (at.level != level || at.index != index) return "a chunk is in the wrong list";
        ++*listed;
    }
    return NULL;
}

const char *um_heap_check(const um_heap *heap) {
    size_t reserved = 0, used = 0, count = 0, free_chunks = 0, listed = 0;
    const char *wrong = NULL;
    for (const um_slab *slab = heap->slabs; slab && !wrong; slab = slab->next) {
        wrong = check_slab(heap, slab, &free_chunks);
        reserved += slab->size;
        used += slab->used;
        count++;
    }
    for (unsigned level = 0; level < UM_HEAP_LEVELS && !wrong; level++) {
        if (!heap->classes[level] != !(heap->levels >> level & 1)) wrong = "the bitmap of levels is wrong";
        for (unsigned index = 0; index < UM_HEAP_CLASSES && !wrong; index++)
            wrong = check_list(heap, level, index, &listed);
    }
    if (wrong) return wrong;
    if (listed != free_chunks || listed != heap->free_chunks) return "a free chunk is in no list";
    if (reserved != heap->reserved || used != heap->used || count != heap->slab_count) return "the heap is miscounted";
    return NULL;
}
