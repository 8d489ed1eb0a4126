/* A log of allocations and frees, to look at or to replay. */
#ifndef UM_LOG_H
#define UM_LOG_H

#include <stddef.h>
#include <stdint.h>

#include "core/um_block.h"

/* One allocation, or (size 0) one free. Addresses tell live blocks apart, and are used again. */
typedef struct um_log_event {
    uint64_t address;
    uint64_t size; /* bytes asked for */
    int16_t device;
    int16_t home; /* um_location_kind */
    int32_t home_id;
} um_log_event;

typedef struct um_log um_log;

/* Records from now on every block of one byte and more; memory of other libraries is none. UM_ERR_BUSY while that is done already. */
UM_MUST_CHECK um_status um_log_begin(um_context *ctx, um_error *err);
/* Ends it and hands over the events in their order, for free(). *complete is false when there was no memory for the later ones. Nothing
 * when nothing was recorded. */
void um_log_end(um_context *ctx, um_log_event **events, size_t *count, bool *complete);

/* For core: ctx's lock is held. Nothing is done while nothing is recorded. */
void um_log_note_locked(um_context *ctx, const um_block *block, bool is_new);

#endif
