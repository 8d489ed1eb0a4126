/* The structs of core, shared by its own files only. Fields marked [lock] are guarded by um_context.lock. */
#ifndef UM_INTERNAL_H
#define UM_INTERNAL_H

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/um_block.h"
#include "core/um_coherence.h"
#include "core/um_heap.h"
#include "core/um_log.h"
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
    uint64_t number;       /* of all streams the context ever had, its own */
    uint64_t behind;       /* [lock] number of the stream that this one was last made to wait for … */
    uint64_t behind_done;  /* [lock] … up to this work there … */
    uint64_t behind_since; /* [lock] … with all that was issued here after this work */
};

/* What is known of the pages of a stretch of memory, one bit a page; see um_residency.c. */
typedef struct um_pages {
    char *base;
    size_t size;               /* bytes */
    unsigned char *exists;     /* [lock] known to exist somewhere; NULL: none */
    unsigned char *maybe;      /* [lock] a GPU may have made them; NULL: none */
    bool lost;                 /* [lock] there was no memory for the bits: any page may exist */
    _Atomic(bool) gpu_touched; /* a GPU may have touched some of it */
} um_pages;

/* What few blocks need; made at first need. */
typedef struct um_block_more {
    void (*release)(void *owner); /* wrapped memory only */
    void *owner;
    um_pages pages;   /* of wrapped memory; other pages are known by slab */
    um_location home; /* [lock] set by the program after the block was made … */
    bool has_home;    /* [lock] … if it was */
    size_t discarded_offset,
        discarded_size; /* [lock] range whose contents the program has given up and nothing has written since */
} um_block_more;

/* A block, live or freed: while the memory of a freed one is in use or kept for the next of its class, the struct stays with it. */
struct um_block {
    /* First member. slab NULL: wrapped memory, or none. owned: a um_block_more, or NULL. next: of the list that a freed block is in, [lock]
     * or the shard's. */
    um_chunk chunk;
    union {
        size_t size; /* bytes asked for */
        /* [lock] Of a block in um_context.waiting: um_context.syncs_started at the time of the free. Only a later synchronise counts. */
        uint64_t freed_epoch;
    };
    um_context *ctx;
    um_stream *stream; /* [lock] where umem's last work on the block runs, a reference; NULL: none unfinished */
    uint64_t sequence; /* [lock] its number there */
    _Atomic(unsigned) refs;
    _Atomic(unsigned) views;          /* live buffer exports */
    _Atomic(unsigned) writable_views; /* those that may be written through */
    _Atomic(bool) viewed_forever;     /* a host hand-out whose end cannot be seen was made … */
    _Atomic(bool) writable_forever;   /* … and may be written through */
    _Atomic(bool) exported;           /* another GPU library may be using the block */
    _Atomic(bool) prepared;           /* the first hand-out to a GPU consumer has been made */
    _Atomic(bool) gpu_touched;        /* a GPU may have touched the memory at all */
    bool advised;                     /* [lock] the driver was given advice that the slab does not have */
    bool pages_known;                 /* [lock] every page is known to exist somewhere */
    signed char bin;                  /* of a shard, for small blocks without a home; else -1 */
    unsigned char device;             /* ordinal; 0 on the host backend */
};

_Static_assert(sizeof(um_block) <= 120,
               "a block's bookkeeping is at most 128 bytes, with its share of what slabs have");

static inline um_block_more *um_more(const um_block *block) { return block->chunk.owned; }

/* --- freed blocks kept at hand (um_cache.c) -------------------------------------------------------------------------------- */

#define UM_SMALL_GRANULE ((size_t)256)
#define UM_LARGE_GRANULE ((size_t)4096)
#define UM_SMALL_LIMIT   ((size_t)64 << 10) /* bytes; requests from here on own their pages */
#define UM_SMALL_CLASSES 49 /* size classes that such requests take, the last being UM_SMALL_LIMIT itself */
#define UM_SHARDS        16

/* Allocations and frees, in bytes asked for and in number. */
typedef struct um_counts {
    uint64_t allocated, freed;
    uint64_t blocks_allocated, blocks_freed;
} um_counts;

#define UM_SHARED UINT64_MAX /* um_shard.owner: no thread's, for good */

/* Threads are spread over shards, so that they seldom meet. A lock of its own, since it is held for a few instructions only and taken
 * twice in the life of every small array: biased to one thread (um_cache.c). Taken after um_context.lock where both are. */
typedef struct um_shard {
    _Alignas(64) _Atomic(uint64_t) owner; /* number of a thread, 0: none yet. Changed under `locked` */
    _Atomic(bool) busy;                   /* the owner is inside, or about to look whether it may be */
    _Atomic(bool) locked;                 /* somebody else is, or about to be once the owner is out */
    um_counts counts;                     /* since the context was opened */
    int64_t bytes_peak;                   /* highest counts.allocated - counts.freed since the last publishing … */
    int64_t blocks_peak; /* … and of blocks; negative where other shards allocated what this one freed */
    um_counts published; /* the part of counts that the accounts have */
    struct {
        um_block *first;
        unsigned count, limit; /* blocks, and how many there may be */
    } bins[UM_SMALL_CLASSES];
} um_shard;

/* --- memory by device and home (um_arena.c) ---------------------------------------------------------------------------------- */

typedef struct um_list {
    um_block *first, *last;
} um_list;

#define UM_STORE_CLASSES ((size_t)UM_HEAP_LEVELS * UM_HEAP_CLASSES)

/* A heap and the freed blocks of it whose memory umem's unfinished work still uses: by size class, oldest first. */
typedef struct um_store {
    um_heap heap;                      /* [lock] first member; its arg is the arena */
    um_list pending[UM_STORE_CLASSES]; /* [lock] */
    size_t pending_count;              /* [lock] blocks in those lists */
    size_t idle;                       /* [lock] bytes of slabs with no block in use */
} um_store;

typedef enum um_store_kind {
    UM_STORE_SMALL, /* requests below UM_SMALL_LIMIT */
    UM_STORE_LARGE,
    UM_STORE_WHOLE, /* too large to share a slab: each has its own, and is reused whole */
    UM_STORE_KINDS
} um_store_kind;

typedef struct um_arena {
    struct um_arena *next;
    um_context *ctx;
    int device;
    um_location home;
    um_store stores[UM_STORE_KINDS];
    size_t homed; /* [lock] with a home: bytes asked for by live blocks */
} um_arena;

typedef struct um_account {
    um_memory_stats stats; /* from freed_total on, only what is not known elsewhere */
    size_t limit;          /* bytes, SIZE_MAX: none */
    uint64_t held;         /* bytes that limits count: of slabs, and of memory on its way from or to the backend */
} um_account;

struct um_scope {
    um_context *ctx; /* a reference */
    um_scope *next;  /* [lock] the open ones */
    int device;
    bool open;           /* [lock] */
    um_usage begin, now; /* [lock] of the device's account, the peaks anew */
};

/* Why allocations or frees do not take the short way through um_cache.c, as bits. */
#define UM_DETOUR_LIMIT  1u /* a limit is below what is held: each request is checked */
#define UM_DETOUR_LOG    2u /* each allocation and free is recorded */
#define UM_DETOUR_CLOSES 4u /* um_context.refs have been 0: the last block closes the context */
#define UM_DETOUR_FORKED 8u /* this is a child of the process that opened a CUDA backend: nothing is to be had */

struct um_context {
    _Atomic(size_t) refs;      /* those of owners and of blocks outside slabs */
    _Atomic(unsigned) detours; /* UM_DETOUR_ bits */
    um_backend *backend;
    char reason[640];
    um_interrupts interrupts; /* all NULL: nobody is interrupted */
    um_context *next_context; /* the list that fork handlers walk */

    pthread_mutex_t lock;
    um_stream legacy[UM_MAX_DEVICES]; /* each device's legacy default stream */
    um_stream *streams;               /* [lock] explicit ones */
    uint64_t stream_count;            /* [lock] streams that there ever were */
    void *wrapped;                    /* [lock] tsearch tree of live blocks outside slabs */
    unsigned running;                 /* [lock] launches not known to be done on devices without concurrent access … */
    unsigned host_busy;               /* [lock] … and host accesses that such a launch has to wait for */
    uint64_t waits_failed;            /* [lock] there: waits that ended with work perhaps still running … */
    uint64_t waits_made_good;         /* [lock] … and those that a full synchronise has come after */
    pthread_cond_t host_idle;         /* signalled when host_busy falls to 0 */

    um_account all;                             /* [lock] */
    um_account devices[UM_MAX_DEVICES];         /* [lock] */
    _Atomic(um_shard *) shards[UM_MAX_DEVICES]; /* UM_SHARDS of each device, NULL before its first use */
    bool biased;                                /* shards are biased to threads: the system can fence those */
    um_arena *arenas;                           /* [lock] */
    um_slab **slabs;                            /* [lock] of all arenas, by address */
    size_t slab_count, slab_room;               /* [lock] */
    size_t idle;                                /* [lock] bytes of slabs with no block in use */
    um_scope *scopes;                           /* [lock] open ones */
    um_log *log;                                /* [lock] NULL while nothing is recorded */
    um_block *spare;                            /* [lock] unused structs, by chunk.next */
    void *batches;                              /* [lock] what the structs were cut from, a list */
    um_pool_config pool;                        /* [lock] */
    um_list waiting;                     /* [lock] freed by the program, waiting for a full synchronise: oldest first */
    size_t waiting_count, waiting_bytes; /* [lock] blocks in that list, bytes of slabs that they take */
    uint64_t syncs_started;              /* [lock] full synchronises begun … */
    uint64_t sync_completed;             /* [lock] … and the latest that has ended */

    _Atomic(um_kernel_handle) kernels[UM_KERNEL_SLOTS];
    _Atomic(int) multiprocessors[UM_MAX_DEVICES];
    _Atomic(size_t) total_memory[UM_MAX_DEVICES]; /* bytes, 0 before the first use */

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
/* Whether work `sequence` of `stream` was put there after the stream was made to wait for work `behind` of `other`. [lock] held. */
bool um_stream_is_behind_locked(const um_stream *stream, uint64_t sequence, const um_stream *other, uint64_t behind);
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

/* --- um_cache.c -------------------------------------------------------------------------------------------------- */
void um_cache_init(um_context *ctx);
void um_shard_lock(um_shard *shard);
void um_shard_unlock(um_shard *shard);
/* All shards of all devices, for a look at them together. [lock] held, so that none is added in between. */
void um_cache_lock_all_locked(um_context *ctx);
void um_cache_unlock_all_locked(um_context *ctx);
/* The same in a child of a fork, whose only thread has them all since before: the owners of others are gone. */
void um_cache_unlock_all_in_child_locked(um_context *ctx);
/* The calling thread's; NULL when there is no memory for the device's. */
um_shard *um_cache_shard(um_context *ctx, int device);
/* A freed block of size's class, now with one reference; NULL when there is none. */
um_block *um_cache_take(um_context *ctx, size_t size, int device);
/* Keeps a block whose last reference is gone; false when it cannot be kept here. */
bool um_cache_put(um_block *block);
/* Adds freed blocks to a bin. */
void um_cache_fill(um_shard *shard, unsigned bin, um_list list);
/* Takes all but `keep` blocks out of a bin and settles them. */
void um_cache_spill(um_context *ctx, um_shard *shard, unsigned bin, unsigned keep);
/* Takes all blocks out of a shard and settles them. */
void um_cache_empty(um_context *ctx, um_shard *shard);
void um_shard_count_new_locked(um_shard *shard, size_t size); /* the shard is locked */
void um_shard_count_free_locked(um_shard *shard, size_t size);

/* --- um_arena.c -------------------------------------------------------------------------------------------------- */
/* Where blocks of the device and home are taken from; NULL when there is no memory for the bookkeeping. [lock] held. */
um_arena *um_arena_get_locked(um_context *ctx, int device, um_location home);
/* A block for `size` > 0 bytes from what is at hand, without references: a freed one of its class or a part of a slab. NULL when there is
 * nothing of it. Work that used the memory may be pending. [lock] held. */
um_block *um_arena_take_locked(um_arena *arena, size_t size);
/* More memory from the backend and a block of it, without references: as much as many such blocks need, or just enough where the limits or
 * the backend allow no more. */
UM_MUST_CHECK um_status um_arena_grow(um_arena *arena, size_t size, um_block **out, um_error *err);
/* Whether the work of a freed block is known to be done. [lock] held. */
bool um_arena_is_done_locked(const um_context *ctx, const um_block *block);
/* Takes a freed block: its memory goes back to its slab, or waits for umem's unfinished work. Returns a stream to destroy after unlocking,
 * or NULL. [lock] held. */
um_stream *um_arena_settle_locked(um_context *ctx, um_block *block);
/* Settles freed blocks whose work is done by now. */
void um_arena_poll(um_context *ctx);
/* Gives empty slabs back to the backend while more than `keep` bytes of them are left. */
void um_arena_release(um_context *ctx, size_t keep);
/* A struct for wrapped memory or a block of size 0; NULL when there is no memory. [lock] held. */
um_block *um_arena_new_struct_locked(um_context *ctx);
void um_arena_free_struct_locked(um_context *ctx, um_block *block);
/* The slab that holds the address, or NULL. [lock] held. */
um_slab *um_arena_find_slab_locked(const um_context *ctx, const char *address);
/* At the end of the context: gives all memory back, whatever its state. */
void um_arena_close(um_context *ctx);

/* Lists of freed blocks, by chunk.next. */
void um_list_append(um_list *list, um_block *block);
void um_list_put_first(um_list *list, um_block *block);
um_block *um_list_take_first(um_list *list);

/* --- um_pool.c ---------------------------------------------------------------------------------------------------- */
void um_pool_init(um_context *ctx);
/* Counts `bytes` to be taken from the backend against the limits. UM_ERR_OUT_OF_MEMORY with the figures, for a request of `size` bytes, when one
 * refuses. */
UM_MUST_CHECK um_status um_pool_reserve(um_context *ctx, int device, size_t bytes, size_t size, um_error *err);
void um_pool_unreserve(um_context *ctx, int device, size_t bytes); /* they have gone back, or never came */
/* A slab begins or ends to exist. [lock] held. */
void um_pool_count_slab_locked(um_context *ctx, const um_slab *slab, bool is_new);
/* A block begins or ends its life. [lock] held. */
void um_pool_count_block_locked(um_context *ctx, um_shard *shard, const um_block *block, bool is_new);
static inline bool um_takes_detour(const um_context *ctx, unsigned reasons) {
    return (atomic_load_explicit(&ctx->detours, memory_order_relaxed) & reasons) != 0;
}
/* While more is held than a limit allows, since it was lowered: whether `size` bytes more may be in use. UM_ERR_OUT_OF_MEMORY when not. */
UM_MUST_CHECK um_status um_pool_admit(um_context *ctx, int device, size_t size, um_error *err);
/* After frees: gives empty slabs back of which there are more than shall be kept. */
void um_pool_after_free(um_context *ctx);
/* Past gc_threshold: gives empty slabs back before the backend is asked for `bytes` more. */
void um_pool_make_room(um_context *ctx, int device, size_t bytes);
/* Brings the accounts up to date with a shard of the device. [lock] held. */
void um_pool_publish_locked(um_context *ctx, int device, um_shard *shard);
/* A freed block begins or ends to wait for unfinished work. [lock] held. */
void um_pool_note_waiting_locked(um_context *ctx, const um_block *block, bool waits);
/* Takes a freed block that another GPU library may still use, or wrapped memory that umem's work does. [lock] held. */
void um_pool_add_waiting_locked(um_context *ctx, um_block *block);
/* Whether anything is held that is not in use, after memory was refused; a retry is counted then. */
bool um_pool_may_retry(um_context *ctx, int device);
/* Gives back waiting blocks that are done, looking at a few of the oldest only. Blocks only when so much waits that it synchronises
 * first. Fails only when that is interrupted. */
UM_MUST_CHECK um_status um_pool_poll(um_context *ctx, um_error *err);
/* Synchronises and gives back everything that is not in use (blocks; may be interrupted). */
UM_MUST_CHECK um_status um_pool_reclaim(um_context *ctx, um_error *err);
/* At the end of the context, after a synchronise: ends all waiting. */
void um_pool_close(um_context *ctx);
#if UM_DEBUG
/* Walks everything that the pool has, which no other thread may be using. NULL, or what is wrong. */
const char *um_pool_check(um_context *ctx);
#endif

/* --- um_block.c ---------------------------------------------------------------------------------------------------- */
static inline um_block *um_block_of(um_chunk *chunk) { return (um_block *)chunk; }
/* Bytes taken from a slab; 0 for wrapped and empty blocks. */
static inline size_t um_block_held(const um_block *block) { return block->chunk.slab ? block->chunk.size : 0; }
/* Whether no other block is in its pages. The largest class of small blocks has the size for it, but not the alignment. */
static inline bool um_block_owns_pages(const um_block *block) {
    return block->chunk.slab && block->chunk.slab->heap->granule >= UM_LARGE_GRANULE;
}
um_location um_block_home_locked(const um_block *block);
/* Forgets a range whose contents the program gave up. [lock] held. */
static inline void um_block_keep_contents_locked(um_block *block) {
    if (block->chunk.owned) um_more(block)->discarded_size = 0;
}
/* The block's `more`, made at first need; NULL when there is no memory for it. [lock] held. */
um_block_more *um_block_more_locked(um_block *block);
/* Ends a wrapped block whose work is done: releases its memory and frees the struct. */
void um_block_end_wrapped(um_context *ctx, um_block *block);
/* A GPU may have touched the memory. */
void um_block_note_gpu(um_block *block);
static inline size_t um_round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

/* --- um_placement.c ------------------------------------------------------------------------------------------------ */
/* Gives the block's memory the advice again that its slab was born with. */
void um_placement_restore(um_block *block);

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
/* Work that umem cannot see may make pages of the block. [lock] held. */
void um_residency_note_unseen_locked(um_block *block);
void um_pages_clear(um_pages *pages);
/* Whether the host maps every page of [ptr, ptr + size). False when that cannot be known. */
bool um_host_resident(const char *ptr, size_t size);
/* Whether the host maps any page of it. True when that cannot be known. */
bool um_host_resident_at_all(const char *ptr, size_t size);
/* Share of pages that the host maps, 0 to 1, noting them as populated; negative when that cannot be known. */
double um_residency_host_share(um_block *block);

#endif
