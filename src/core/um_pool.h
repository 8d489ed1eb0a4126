/* Memory policy: limits, accounting, and when memory that is not in use goes back. How memory is cut up: um_heap.h. */
#ifndef UM_POOL_H
#define UM_POOL_H

#include <stdint.h>

#include "core/um_context.h"
#include "core/um_location.h"

#define UM_ALL_DEVICES (-1)
#define UM_LARGE_PAGE  ((size_t)2 << 20) /* bytes of the GPU's large pages, and of the host's huge pages */

/* allocated: bytes asked for by live blocks. reserved: bytes held from the driver or system, whether in use or not, of so many slabs. What
 * was freed or given back ever is total - current. */
#define UM_USAGE_COUNTERS                                                                                              \
    uint64_t allocated_current, allocated_peak, allocated_total;                                                       \
    uint64_t blocks_current, blocks_peak, blocks_total;                                                                \
    uint64_t reserved_current, reserved_peak, reserved_total;                                                          \
    uint64_t slabs_current, slabs_peak, slabs_total;

typedef struct um_usage {
    UM_USAGE_COUNTERS
} um_usage;

typedef struct um_memory_stats {
    union {
        um_usage all;
        struct {
            UM_USAGE_COUNTERS
        };
    };
    um_usage small, large;    /* blocks below 64 KiB, which share slabs of their own, and the others */
    uint64_t freed_total;     /* bytes */
    uint64_t waiting_current; /* bytes freed by the program that unfinished work may use */
    uint64_t retries, out_of_memory;
    uint64_t limit; /* bytes, 0: none */
    /* reserved = in_blocks + split + idle, in bytes. Blocks take up to an eighth more than was asked for, and freed ones stay blocks while
     * they wait or are kept at hand. */
    uint64_t in_blocks;
    uint64_t split; /* free parts of slabs that are partly in use: external fragmentation */
    uint64_t idle;  /* slabs with no block in use */
} um_memory_stats;

/* Memory of one home, as it was given when the blocks were made. */
typedef struct um_home_stats {
    um_location home;
    uint64_t allocated_current, reserved_current; /* bytes, as above */
} um_home_stats;

/* What was allocated and freed between two points of a program. */
typedef struct um_scope um_scope;
typedef struct um_scope_stats {
    uint64_t allocated, freed;               /* bytes asked for */
    uint64_t blocks_allocated, blocks_freed; /* in number */
    uint64_t peak, blocks_peak;              /* highest in use above what was at the beginning */
} um_scope_stats;

typedef struct um_pool_config {
    size_t slab;       /* bytes of the first slab of blocks from 64 KiB on; later ones grow */
    size_t large_page; /* blocks of this size and more are aligned to UM_LARGE_PAGE */
    size_t max_split;  /* larger blocks are never cut from slabs that others share; SIZE_MAX: none */
    double
        gc_threshold; /* share of the limit (of all memory, without one) past which empty slabs are given back first */
    size_t keep;      /* bytes of empty slabs that are kept for reuse */
} um_pool_config;

/* device: an ordinal or UM_ALL_DEVICES. limit in bytes; SIZE_MAX takes the limit off. Where more is held than that, what is not in use is
 * given back (blocks). */
void um_pool_set_limit(um_context *ctx, int device, size_t limit);
size_t um_pool_get_limit(um_context *ctx, int device); /* SIZE_MAX: none */
void um_pool_get_config(um_context *ctx, um_pool_config *out);
/* Holds for what is allocated from now on. */
void um_pool_set_config(um_context *ctx, const um_pool_config *config);
void um_pool_stats(um_context *ctx, int device, um_memory_stats *out);
/* Homes that hold memory now, at most `room` of them; returns their number. */
size_t um_pool_homes(um_context *ctx, int device, um_home_stats *out, size_t room);
/* Bytes of the largest free part of a slab. Looks through free parts of about that size. */
size_t um_pool_largest_free(um_context *ctx, int device);
/* Those of each device too, for UM_ALL_DEVICES. */
void um_pool_reset_peak(um_context *ctx, int device);
/* Counts a request that nothing could satisfy in the end; `device` is the one that refused, or UM_ALL_DEVICES. */
void um_pool_note_out_of_memory(um_context *ctx, int device);
/* Begins to count; NULL when there is no memory. um_pool_scope_free ends it, and um_pool_scope_end before that. Figures can be read while it
 * is open, and stay after. */
um_scope *um_pool_scope_new(um_context *ctx, int device);
void um_pool_scope_read(um_scope *scope, um_scope_stats *out);
void um_pool_scope_end(um_scope *scope);
void um_pool_scope_free(um_scope *scope);
/* Gives everything back that is not in use; *released is in bytes. May block. */
UM_MUST_CHECK um_status um_pool_trim(um_context *ctx, size_t *released, um_error *err);

#endif
