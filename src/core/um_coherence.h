/* The coherence rules (docs/coherence.md numbers them): who must wait for whom, in one place.
 *
 * Nothing here blocks except um_wait_run. A caller that holds the GIL asks first (um_wait.needed) and releases
 * the GIL around um_wait_run only when it has to.
 */
#ifndef UM_COHERENCE_H
#define UM_COHERENCE_H

#include <stdint.h>

#include "core/um_block.h"
#include "core/um_stream.h"

/* Something that has to finish. Zero-initialise (UM_WAIT_NONE); um_wait_run or um_wait_drop ends it. */
typedef struct um_wait {
    bool needed;
    bool everything;   /* the whole device set, since other libraries' work cannot be seen */
    um_stream *stream; /* owned; NULL when everything */
    uint64_t sequence; /* number of the last work on stream that has to be done */
    um_context *ctx;   /* owned when needed */
    bool running;      /* counts in the context's number of unfinished launches (rule 6) */
} um_wait;

#define UM_WAIT_NONE ((um_wait){0})

UM_MUST_CHECK um_status um_wait_run(um_wait *wait, um_error *err); /* blocks; ends the wait in any case */
void um_wait_drop(um_wait *wait);

/* --- the host side ---------------------------------------------------------------------------------------- */

/* Rule 2: what has to finish before the host may touch the block. Rule 6: UM_ERR_BUSY while a kernel runs on a
 * device without concurrent access. Rule 7: UM_ERR_FORKED. Call it again after waiting only if new work may have come. */
UM_MUST_CHECK um_status um_host_access(um_block *block, um_wait *wait, um_error *err);

/* Rule 3: a host view whose end can be seen (a buffer export). Pairs must match. */
void um_host_view_add(um_block *block, bool writable);
void um_host_view_remove(um_block *block, bool writable);
/* Rule 3: a host view whose end cannot be seen; it counts for the rest of the block's life. */
void um_host_view_forever(um_block *block, bool writable);

/* --- the device side: umem's own work ------------------------------------------------------------------------ */

typedef struct um_access {
    um_block *block;
    size_t offset, size; /* bytes of the block that may be touched */
    bool write;
    bool dense; /* every byte of the range is touched */
} um_access;

/* Before a launch on `stream`: orders it behind unfinished work on other streams that uses the same blocks. */
UM_MUST_CHECK um_status um_work_begin(um_stream *stream, const um_access *accesses, size_t count, um_error *err);
/* After a launch that succeeded: notes the use. *wait is needed when the work must complete before the caller returns:
 * rule 3 (it writes a block with a host view, or reads one with a writable host view; `deferred` opts out) and rule 6. */
UM_MUST_CHECK um_status um_work_end(um_stream *stream, const um_access *accesses, size_t count, bool deferred,
                                    um_wait *wait, um_error *err);
/* After um_work_begin when nothing was launched, or nothing that has to be waited for. */
void um_work_abandon(um_stream *stream);
/* After um_work_begin when the launch failed: it may run all the same, for the driver's error can be of what came after it (may block). */
void um_work_failed(um_stream *stream);

/* --- the device side: other libraries -------------------------------------------------------------------------- */

/* Hands the block to a GPU consumer that orders its work behind `consumer` (rule 4): makes that stream wait for pending
 * work on others. consumer NULL: the consumer's stream is not known; pending work on any stream but the device's legacy
 * default stream must be waited for (*wait). Marks the block as handed out. At the first hand-out of a large host-resident
 * block without a home it is prefetched and accessed-by is dropped (this can block for milliseconds). */
UM_MUST_CHECK um_status um_device_export(um_block *block, um_stream *consumer, um_wait *wait, um_error *err);
/* Whether the first hand-out, the one that can block for milliseconds, has been made. */
bool um_block_was_handed_out(const um_block *block);
/* Marks the block as one that another GPU library may use, where it has the block already or is more likely a host library (NumPy takes
 * managed memory, too): moves nothing and orders nothing. The first um_device_export after it still is the first hand-out. */
UM_MUST_CHECK um_status um_device_mark(um_block *block, um_error *err);

#endif
