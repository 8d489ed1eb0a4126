/* The heap alone, over addresses that nobody touches: size classes, alignment, merging, and a long random trace held against a model. */
#include <stdlib.h>
#include <string.h>

#include "core/um_heap.h"
#include "kernels/um_kernel_image.h"
#include "um_test.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

const um_kernel_image um_kernel_images[] = {{"none", NULL, 0}};
const size_t um_kernel_image_count = 0;

static size_t live_chunks;
static size_t chunks_until_failure; /* 0: never */

static um_chunk *new_chunk(void *arg) {
    UM_CHECK(arg == &live_chunks);
    if (chunks_until_failure && --chunks_until_failure == 0) return NULL;
    live_chunks++;
    return malloc(sizeof(um_chunk));
}

static void free_chunk(void *arg, um_chunk *chunk) {
    (void)arg;
    live_chunks--;
    free(chunk);
}

static void start(um_heap *heap, size_t granule) {
    live_chunks = 0;
    chunks_until_failure = 0;
    um_heap_init(heap, granule, new_chunk, free_chunk, &live_chunks);
}

static void stop(um_heap *heap) {
    while (heap->slabs) {
        UM_CHECK(um_slab_is_empty(heap->slabs));
        um_heap_remove_slab(heap, heap->slabs);
    }
    UM_CHECK(live_chunks == 0 && heap->reserved == 0 && heap->used == 0 && heap->levels == 0);
}

static bool healthy(const um_heap *heap) {
    const char *wrong = um_heap_check(heap);
    if (wrong) printf("%s: %s\n", um_test_name, wrong);
    return !wrong;
}

static char *address(size_t offset) { return (char *)(uintptr_t)(64 * GIB + offset); }

static um_chunk *take(um_heap *heap, size_t size, size_t alignment) {
    bool out_of_memory;
    um_chunk *chunk = um_heap_take(heap, um_heap_class_size(heap, size), alignment, &out_of_memory);
    UM_CHECK(!out_of_memory);
    return chunk;
}

static void classes_waste_an_eighth_at_most(void) {
    um_heap heap;
    start(&heap, 256);
    UM_CHECK(um_heap_class_size(&heap, 1) == 256);
    UM_CHECK(um_heap_class_size(&heap, 256) == 256);
    UM_CHECK(um_heap_class_size(&heap, 257) == 512);
    UM_CHECK(um_heap_class_size(&heap, 4096) == 4096);
    size_t last_size = 0;
    unsigned last_class = 0;
    for (size_t size = 1; size < 8 * GIB; size += size / 37 + 1) {
        size_t held = um_heap_class_size(&heap, size);
        UM_CHECK(held >= size && held % 256 == 0);
        UM_CHECK(held - size < 256 || (held - size) * 8 <= held);
        UM_CHECK(um_heap_class_size(&heap, held) == held);
        unsigned number = um_heap_class_of(&heap, held);
        UM_CHECK(number < UM_HEAP_LEVELS * UM_HEAP_CLASSES);
        UM_CHECK(held == last_size ? number == last_class : number > last_class);
        last_size = held;
        last_class = number;
    }
    UM_CHECK(um_heap_class_size(&heap, SIZE_MAX) == 0);
    UM_CHECK(um_heap_class_size(&heap, SIZE_MAX - 255) == 0);
    UM_CHECK(um_heap_class_size(&heap, (size_t)1 << 62) == 0);
    stop(&heap);
}

static void an_empty_heap_has_nothing(void) {
    um_heap heap;
    start(&heap, 4096);
    UM_CHECK(take(&heap, 1, 4096) == NULL);
    UM_CHECK(um_heap_largest_free(&heap) == 0);
    UM_CHECK(healthy(&heap));
    stop(&heap);
}

static void neighbours_merge(void) {
    um_heap heap;
    start(&heap, 256);
    UM_REQUIRE(um_heap_add_slab(&heap, address(0), 2 * MIB));
    um_chunk *chunks[4];
    for (int i = 0; i < 4; i++) {
        chunks[i] = take(&heap, 4096, 256);
        UM_REQUIRE(chunks[i]);
        UM_CHECK(chunks[i]->ptr == address((size_t)i * 4096));
    }
    UM_CHECK(um_heap_largest_free(&heap) == 2 * MIB - 4 * 4096);
    UM_CHECK(um_heap_give(&heap, chunks[1]) == NULL);
    UM_CHECK(um_heap_give(&heap, chunks[2]) == NULL);
    UM_CHECK(heap.free_chunks == 2 && healthy(&heap));
    um_chunk *both = take(&heap, 8192, 256); /* exactly what the two left */
    UM_REQUIRE(both);
    UM_CHECK(both->ptr == address(4096) && both->size == 8192);
    UM_CHECK(um_heap_give(&heap, both) == NULL);
    UM_CHECK(um_heap_give(&heap, chunks[3]) == NULL);
    UM_CHECK(heap.free_chunks == 1 && healthy(&heap));
    UM_CHECK(um_heap_give(&heap, chunks[0]) == heap.slabs);
    UM_CHECK(heap.free_chunks == 1 && um_heap_largest_free(&heap) == 2 * MIB && healthy(&heap));
    stop(&heap);
}

static void a_slab_can_be_used_up(void) {
    um_heap heap;
    start(&heap, 256);
    UM_REQUIRE(um_heap_add_slab(&heap, address(0), 2 * MIB));
    um_chunk *whole = take(&heap, 2 * MIB, 256);
    UM_REQUIRE(whole);
    UM_CHECK(take(&heap, 1, 256) == NULL && heap.levels == 0 && healthy(&heap));
    UM_CHECK(um_heap_give(&heap, whole) == heap.slabs);
    size_t count = 0;
    um_chunk *chunk, *list = NULL;
    while ((chunk = take(&heap, 256, 256))) {
        chunk->next = list;
        list = chunk;
        count++;
    }
    UM_CHECK(count == 2 * MIB / 256 && healthy(&heap));
    for (; list; list = chunk) {
        chunk = list->next;
        um_slab *empty = um_heap_give(&heap, list);
        UM_CHECK((empty != NULL) == (chunk == NULL));
    }
    UM_CHECK(heap.free_chunks == 1 && healthy(&heap));
    stop(&heap);
}

static void alignment_is_kept_and_loses_nothing(void) {
    um_heap heap;
    start(&heap, 4096);
    UM_REQUIRE(um_heap_add_slab(&heap, address(12 * KIB), 16 * MIB));
    um_chunk *small = take(&heap, 64 * KIB, 4096);
    um_chunk *large = take(&heap, 3 * MIB, 2 * MIB);
    UM_REQUIRE(small && large);
    UM_CHECK((uintptr_t)large->ptr % (2 * MIB) == 0 && healthy(&heap));
    um_chunk *between = take(&heap, MIB, 4096); /* fits in what the alignment left */
    UM_REQUIRE(between);
    UM_CHECK(between->ptr < large->ptr && healthy(&heap));
    UM_CHECK(take(&heap, 15 * MIB, 2 * MIB) == NULL);
    UM_CHECK(um_heap_give(&heap, large) == NULL && um_heap_give(&heap, small) == NULL);
    UM_CHECK(um_heap_give(&heap, between) == heap.slabs && healthy(&heap));
    stop(&heap);
}

static void a_chunk_is_found_by_any_address_in_it(void) {
    um_heap heap;
    start(&heap, 256);
    um_slab *slab = um_heap_add_slab(&heap, address(0), 2 * MIB);
    UM_REQUIRE(slab);
    um_chunk *small = take(&heap, 700, 256), *large = take(&heap, 300 * KIB, 256), *last = take(&heap, 256, 256);
    UM_REQUIRE(small && large && last);
    UM_CHECK(um_slab_find(slab, small->ptr) == small && um_slab_find(slab, small->ptr + 700) == small);
    for (size_t offset = 0; offset < large->size; offset += 999)
        UM_CHECK(um_slab_find(slab, large->ptr + offset) == large);
    UM_CHECK(um_slab_find(slab, last->ptr + 255) == last);
    UM_CHECK(!um_slab_find(slab, address(2 * MIB - 1))->used);
    UM_CHECK(um_heap_give(&heap, small) == NULL && um_heap_give(&heap, last) == NULL);
    UM_CHECK(um_slab_find(slab, large->ptr + large->size - 1) == large);
    UM_CHECK(um_heap_give(&heap, large) == slab);
    UM_CHECK(um_slab_find(slab, address(MIB)) == slab->first);
    stop(&heap);
}

static void without_memory_for_bookkeeping_nothing_changes(void) {
    um_heap heap;
    start(&heap, 4096);
    chunks_until_failure = 1;
    UM_CHECK(um_heap_add_slab(&heap, address(4096), 8 * MIB) == NULL && heap.reserved == 0);
    UM_REQUIRE(um_heap_add_slab(&heap, address(4096), 8 * MIB));
    for (size_t nth = 1; nth <= 2; nth++) { /* one for the part before the alignment, one for the rest */
        bool out_of_memory = false;
        chunks_until_failure = nth;
        UM_CHECK(um_heap_take(&heap, 2 * MIB, 2 * MIB, &out_of_memory) == NULL && out_of_memory);
        UM_CHECK(live_chunks == 1 && heap.used == 0 && healthy(&heap));
    }
    chunks_until_failure = 0;
    um_chunk *chunk = take(&heap, 2 * MIB, 2 * MIB);
    UM_REQUIRE(chunk);
    UM_CHECK(um_heap_give(&heap, chunk) != NULL);
    stop(&heap);
}

/* --- a random trace ------------------------------------------------------------------------------------------------------- */

#define SLOTS 128

static uint64_t random_state;

static uint64_t next_random(void) { /* xorshift64* */
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 2685821657736338717u;
}

static size_t random_size(void) {
    unsigned bits = 1 + (unsigned)(next_random() % 18);
    return 1 + next_random() % ((size_t)1 << bits);
}

/* Walks the whole heap after each operation. */
static void random_trace(size_t operations, size_t granule) {
    um_heap heap;
    start(&heap, granule);
    random_state = 88172645463325252u;
    um_chunk *slots[SLOTS] = {0};
    size_t in_use = 0, slab_count = 0;
    for (size_t step = 0; step < operations; step++) {
        um_chunk **slot = &slots[next_random() % SLOTS];
        if (*slot) {
            in_use -= (*slot)->size;
            um_slab *empty = um_heap_give(&heap, *slot);
            *slot = NULL;
            if (empty && next_random() % 2) um_heap_remove_slab(&heap, empty);
        } else {
            size_t size = random_size(), alignment = next_random() % 4 ? granule : granule << next_random() % 6;
            um_chunk *chunk = take(&heap, size, alignment);
            if (!chunk) {
                size_t slab = um_heap_class_size(&heap, (size + alignment > MIB ? size + alignment : MIB) * 2);
                UM_REQUIRE(um_heap_add_slab(&heap, address(slab_count++ * 4 * MIB), slab));
                chunk = take(&heap, size, alignment);
            }
            UM_REQUIRE(chunk);
            UM_CHECK(chunk->used && chunk->size == um_heap_class_size(&heap, size));
            UM_CHECK((uintptr_t)chunk->ptr % alignment == 0);
            UM_CHECK(um_slab_find(chunk->slab, chunk->ptr + next_random() % chunk->size) == chunk);
            in_use += chunk->size;
            *slot = chunk;
        }
        UM_CHECK(heap.used == in_use);
        UM_REQUIRE(healthy(&heap));
    }
    for (size_t i = 0; i < SLOTS; i++)
        if (slots[i]) (void)um_heap_give(&heap, slots[i]);
    UM_CHECK(healthy(&heap) && heap.used == 0);
    stop(&heap);
}

static void a_million_random_operations(void) { random_trace(1000000, 256); }

static void random_operations_on_pages(void) { random_trace(100000, 4096); }

int main(void) {
    UM_RUN(classes_waste_an_eighth_at_most);
    UM_RUN(an_empty_heap_has_nothing);
    UM_RUN(neighbours_merge);
    UM_RUN(a_slab_can_be_used_up);
    UM_RUN(alignment_is_kept_and_loses_nothing);
    UM_RUN(a_chunk_is_found_by_any_address_in_it);
    UM_RUN(without_memory_for_bookkeeping_nothing_changes);
    UM_RUN(a_million_random_operations);
    UM_RUN(random_operations_on_pages);
    return um_test_result();
}
