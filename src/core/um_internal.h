/* The structs of core, shared by its own files only. Fields marked [lock] are guarded by um_context.lock. */
#ifndef UM_INTERNAL_H
#define UM_INTERNAL_H

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/um_block.h"
#include "core/um_coherence.h"
#include "core/um_pool.h"
#include "core/um_stream.h"

#define UM_MAX_DEVICES 64

struct um_stream {
    um_context *ctx; /* borrowed: streams never outlive their context */
    um_stream *next; /* [lock] list of explicit streams; NULL for a device's legacy stream */
    size_t refs;     /* [lock] explicit streams only; legacy streams live as long as the context */
    int device;
    um_stream_handle handle;
    unsigned long long id; /* tells a new stream from an old one with the same handle */
    um_event_handle event; /* [lock] created at first use, recorded behind umem's work; 0 before */
    uint64_t issued;       /* [lock] number of the last work put on the stream */
    uint64_t recorded;     /* [lock] work up to this number lies before the event's last recording */
    uint64_t completed;    /* [lock] work up to this number is known to be done */
};

/* Where a block lies; the first member of um_block, so that a stack copy can serve as a look-up key. */
typedef struct um_span {
    char *ptr;
    size_t size;
} um_span;

struct um_block {
    um_span span;
    um_context *ctx; /* owned, except while the block waits to be freed */
    _Atomic(size_t) refs;
    size_t held; /* bytes taken from the backend; 0 for wrapped and empty blocks */
    int device;
    um_location home;             /* [lock] */
    bool registered;              /* [lock] found by um_block_find */
    void (*release)(void *owner); /* wrapped memory only */
    void *owner;

    um_stream *stream;       /* [lock] where umem's last work on the block runs, a reference; NULL: none unfinished */
    uint64_t sequence;       /* [lock] its number there */
    _Atomic(unsigned) views; /* live buffer exports */
    _Atomic(unsigned) writable_views; /* those that may be written through */
    _Atomic(bool) viewed_forever;     /* a host hand-out whose end cannot be seen was made … */
    _Atomic(bool) writable_forever;   /* … and may be written through */
    _Atomic(bool) exported;           /* another GPU library may be using the block */
    _Atomic(bool) prepared;           /* the first hand-out to a GPU consumer has been made */
    _Atomic(bool) gpu_touched;        /* a GPU may have touched the block at all */

    bool populated_all;       /* [lock] every page is known to exist somewhere */
    bool populated_unseen;    /* [lock] a GPU may have populated pages that `populated` does not show */
    unsigned char *populated; /* [lock] one bit per page known to exist; NULL: none. From the page of span.ptr on */

    size_t discarded_offset,
        discarded_size; /* [lock] range whose contents the program has given up and nothing has written since */

    uint64_t freed_epoch; /* [lock] um_context.syncs_started at the time of the free: only a later synchronise counts */
    um_block *next_waiting; /* [lock] */
};

typedef struct um_account {
    um_memory_stats stats; /* limit unused here */
    size_t limit;          /* bytes, SIZE_MAX: none */
} um_account;

struct um_context {
    _Atomic(size_t) refs;
    um_backend *backend;
    char reason[640];
    um_interrupts interrupts; /* all NULL: nobody is interrupted */
    _Atomic(bool) forked;     /* set in a child of the process that opened a CUDA backend */
    um_context *next_context; /* the list that fork handlers walk */

    pthread_mutex_t lock;
    um_stream legacy[UM_MAX_DEVICES]; /* each device's legacy default stream */
    um_stream *streams;               /* [lock] explicit ones */
    void *by_address;                 /* [lock] tsearch tree of live blocks */
    unsigned running;                 /* [lock] launches not known to be done on devices without concurrent access … */
    unsigned host_busy;               /* [lock] … and host accesses that such a launch has to wait for */
    uint64_t waits_failed;            /* [lock] there: waits that ended with work perhaps still running … */
    uint64_t waits_made_good;         /* [lock] … and those that a full synchronise has come after */
    pthread_cond_t host_idle;         /* signalled when host_busy falls to 0 */

    um_account all;                     /* [lock] */
    um_account devices[UM_MAX_DEVICES]; /* [lock] */
    um_block *waiting;                  /* [lock] freed by the program, not yet given back: oldest first */
    um_block *waiting_last;             /* [lock] */
    size_t waiting_count;               /* [lock] */
    uint64_t syncs_started;             /* [lock] full synchronises begun … */
    uint64_t sync_completed;            /* [lock] … and the latest that has ended */

    _Atomic(um_kernel_handle) kernels[UM_KERNEL_SLOTS];
    _Atomic(int) multiprocessors[UM_MAX_DEVICES];

    pthread_mutex_t staging_lock; /* guards the staging fields; may be held while blocking, taken before `lock` */
    char *staging;                /* page-locked, UM_STAGING bytes, NULL before the first use */
    um_stream_handle read_stream[UM_MAX_DEVICES]; /* own streams for reads, 0 before the first use */
};

/* --- um_stream.c ------------------------------------------------------------------------------------------------- */
bool um_stream_is_legacy(const um_stream *stream);
/* Whether work number `sequence` is known to be done. [lock] held. */
static inline bool um_stream_has_done_locked(const um_stream *stream, uint64_t sequence) {
    return stream->completed >= sequence;
}
void um_stream_ref_locked(um_stream *stream);
/* Drops a reference; a stream that has lost its last is unlinked and returned for um_stream_destroy after unlocking, else NULL. */
um_stream *um_stream_unref_locked(um_stream *stream);
void um_stream_destroy(um_stream *stream);
/* Records the event behind all work issued so far (does not block). */
UM_MUST_CHECK um_status um_stream_record(um_stream *stream, um_error *err);
/* Notes work just launched and gives its number. */
UM_MUST_CHECK um_status um_stream_issue(um_stream *stream, uint64_t *sequence, um_error *err);
/* Blocks until work number `sequence` is done; may be interrupted. */
UM_MUST_CHECK um_status um_stream_wait(um_stream *stream, uint64_t sequence, um_error *err);
/* Asks without blocking; *done is a snapshot. */
UM_MUST_CHECK um_status um_stream_poll(um_stream *stream, uint64_t sequence, bool *done, um_error *err);
/* Blocks until what is queued on the stream itself is done, umem's work and others'; may be interrupted. The handle must be alive. */
UM_MUST_CHECK um_status um_stream_finish(um_stream *stream, um_error *err);

/* --- um_context.c ------------------------------------------------------------------------------------------------ */
/* Full synchronise with its bookkeeping, freeing nothing (blocks). */
UM_MUST_CHECK um_status um_context_wait_everything(um_context *ctx, bool interruptible, um_error *err);

/* A wait that asks the driver again and again, so that it can be interrupted. */
typedef struct um_watch {
    um_context *ctx;
    uint64_t began, asked; /* nanoseconds: when it began, when somebody last was asked whether to give up */
} um_watch;

um_watch um_watch_begin(um_context *ctx);
/* Nanoseconds since the beginning. */
uint64_t um_watch_time(const um_watch *watch);
/* Between two questions: returns at once in the first millisecond, then sleeps a little. UM_ERR_INTERRUPTED when the wait is to end. */
UM_MUST_CHECK um_status um_watch_pause(um_watch *watch, um_error *err);

/* --- um_pool.c ---------------------------------------------------------------------------------------------------- */
void um_pool_init(um_context *ctx);
/* Counts `held` bytes for a block of `size` bytes against the limits. UM_ERR_OUT_OF_MEMORY with the figures when one refuses. */
UM_MUST_CHECK um_status um_pool_reserve(um_context *ctx, int device, size_t held, size_t size, um_error *err);
void um_pool_unreserve(um_context *ctx, int device, size_t held, size_t size); /* the allocation failed after all */
/* Accounts the program's free; the bytes stay held. [lock] held. */
void um_pool_note_free_locked(um_context *ctx, int device, size_t held, size_t size, bool waits);
void um_pool_note_given_back(um_context *ctx, int device, size_t held, bool waited);
/* Puts a dead block at the end of the waiting list. [lock] held. */
void um_pool_add_waiting_locked(um_context *ctx, um_block *block);
/* Gives back waiting blocks that are done, looking at a few of the oldest only. Blocks only when so much waits that it synchronises
 * first. Fails only when that is interrupted. */
UM_MUST_CHECK um_status um_pool_poll(um_context *ctx, um_error *err);
/* Synchronises and gives back everything that waits (blocks; may be interrupted). */
UM_MUST_CHECK um_status um_pool_reclaim(um_context *ctx, um_error *err);
/* Gives back all waiting blocks without asking; the caller has synchronised or is closing. */
void um_pool_drain(um_context *ctx);

/* --- um_block.c ---------------------------------------------------------------------------------------------------- */
/* Returns a dead block's memory and frees the struct. Its work must be done. */
void um_block_destroy(um_context *ctx, um_block *block, bool waited);
static inline size_t um_round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

/* --- um_coherence.c ------------------------------------------------------------------------------------------------ */
/* Whether something that umem cannot see may write the block at any time: a writable host view, or another GPU library. */
bool um_block_has_unseen_writers(const um_block *block);
/* Rule 6: between these the host touches managed memory and no launch begins. For stretches of C that need no lock of Python's. UM_ERR_BUSY
 * while a kernel runs. Nothing to do on devices with concurrent access. */
UM_MUST_CHECK um_status um_host_hold(um_context *ctx, um_error *err);
void um_host_release(um_context *ctx);

/* --- um_residency.c -------------------------------------------------------------------------------------------------- */
/* A GPU has touched [offset, offset + size); `all` says every page of it. [lock] held. */
void um_residency_note_gpu_locked(um_block *block, size_t offset, size_t size, bool all);
/* Pages of the range exist (a prefetch made them). [lock] held. */
void um_residency_note_populated_locked(um_block *block, size_t offset, size_t size);
/* Whether the host maps every page of [ptr, ptr + size). False when that cannot be known. */
bool um_host_resident(const char *ptr, size_t size);
/* Whether the host maps any page of it. True when that cannot be known. */
bool um_host_resident_at_all(const char *ptr, size_t size);
/* Share of pages that the host maps, 0 to 1, noting them as populated; negative when that cannot be known. */
double um_residency_host_share(um_block *block);

#endif
