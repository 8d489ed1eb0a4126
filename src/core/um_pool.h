/* Memory policy: limits, accounting, and when freed memory goes back. For now every block is an allocation of its own. */
#ifndef UM_POOL_H
#define UM_POOL_H

#include <stdint.h>

#include "core/um_context.h"

#define UM_ALL_DEVICES (-1)

typedef struct um_memory_stats {
    /* bytes asked for by live blocks / held from the driver or system, waiting-to-be-freed included */
    uint64_t allocated_current, allocated_peak, allocated_total, freed_total;
    uint64_t reserved_current, reserved_peak;
    uint64_t blocks_current, blocks_peak, blocks_total;
    uint64_t waiting_current; /* bytes freed by the program, waiting for the GPU */
    uint64_t retries, out_of_memory;
    uint64_t limit; /* bytes, 0: none */
} um_memory_stats;

/* device: an ordinal or UM_ALL_DEVICES. limit in bytes; SIZE_MAX takes the limit off. */
void um_pool_set_limit(um_context *ctx, int device, size_t limit);
size_t um_pool_get_limit(um_context *ctx, int device); /* SIZE_MAX: none */
void um_pool_stats(um_context *ctx, int device, um_memory_stats *out);
void um_pool_reset_peak(um_context *ctx, int device);
/* Counts a request that nothing could satisfy in the end. */
void um_pool_note_out_of_memory(um_context *ctx);
/* Frees whatever waits and is done; *released is in bytes. May block. */
UM_MUST_CHECK um_status um_pool_trim(um_context *ctx, size_t *released, um_error *err);

#endif
