#include "core/um_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECOND       ((uint64_t)1000000000) /* in nanoseconds, as all below */
#define SPIN_TIME    (SECOND / 1000)        /* from then on a watched wait sleeps between its questions … */
#define SLEEP_SHARE  64                     /* … for this share of the time that it has taken … */
#define MAX_SLEEP    (SECOND / 1000)        /* … and no longer than that */
#define ASK_INTERVAL (SECOND / 50)          /* between two questions whether to give up */

#define MAX_WATCHED 16 /* explicit streams that a wait for everything watches; it blocks for the work of others */

/* Contexts of this process, so that a fork finds every lock in a known state and every child marked. The only process-wide state
 * of core. */
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static um_context *contexts;
static pthread_once_t fork_handlers_once = PTHREAD_ONCE_INIT;

static void before_fork(void) {
    pthread_mutex_lock(&contexts_lock);
    for (um_context *ctx = contexts; ctx; ctx = ctx->next_context) {
        pthread_mutex_lock(&ctx->staging_lock);
        pthread_mutex_lock(&ctx->lock);
        um_cache_lock_all_locked(ctx);
    }
}

static void unlock_all(void (*unlock_shards)(um_context *)) {
    for (um_context *ctx = contexts; ctx; ctx = ctx->next_context) {
        unlock_shards(ctx);
        pthread_mutex_unlock(&ctx->lock);
        pthread_mutex_unlock(&ctx->staging_lock);
    }
    pthread_mutex_unlock(&contexts_lock);
}

static void after_fork_in_parent(void) { unlock_all(um_cache_unlock_all_locked); }

static void after_fork_in_child(void) {
    for (um_context *ctx = contexts; ctx; ctx = ctx->next_context)
        if (um_context_is_cuda(ctx)) atomic_fetch_or(&ctx->detours, UM_DETOUR_FORKED);
    unlock_all(um_cache_unlock_all_in_child_locked);
}

static void install_fork_handlers(void) {
    /* Can fail for lack of memory only; a child would then find the locks as they were. */
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void link_context(um_context *ctx) {
    pthread_once(&fork_handlers_once, install_fork_handlers);
    pthread_mutex_lock(&contexts_lock);
    ctx->next_context = contexts;
    contexts = ctx;
    pthread_mutex_unlock(&contexts_lock);
}

static void unlink_context(um_context *ctx) {
    pthread_mutex_lock(&contexts_lock);
    um_context **at = &contexts;
    while (*at != ctx) at = &(*at)->next_context;
    *at = ctx->next_context;
    pthread_mutex_unlock(&contexts_lock);
}

/* Opens the backend that `config` asks for and says in `reason` why it is that one. */
static um_status open_backend(const um_config *config, um_backend **out, char *reason, size_t reason_size,
                              um_error *err) {
    bool automatic = strcmp(config->backend, "auto") == 0;
    bool want_cuda = automatic || strcmp(config->backend, "cuda") == 0;
    if (!want_cuda && strcmp(config->backend, "host") != 0)
        return um_error_set(err, UM_ERR_VALUE, "UMEM_BACKEND is \"%s\"; valid values are auto, cuda and host",
                            config->backend);
    if (!want_cuda) {
        snprintf(reason, reason_size, "UMEM_BACKEND=host asks for it");
        return um_backend_host_open(out, err);
    }
    um_error why = {0};
#if UM_HAVE_CUDA
    um_status status = um_backend_cuda_open(config->library, out, &why);
    if (status == UM_OK) {
        snprintf(reason, reason_size,
                 automatic ? "a CUDA driver and a device with managed memory are present"
                           : "UMEM_BACKEND=cuda asks for it");
        return UM_OK;
    }
#else
    um_status status = um_error_set(&why, UM_ERR_NO_DRIVER, "this build of umem has no CUDA support (UMEM_CUDA=0)");
#endif
    if (!automatic || status != UM_ERR_NO_DRIVER) {
        if (err) *err = why;
        return status;
    }
    snprintf(reason, reason_size, "%.*s", (int)reason_size - 1, why.message);
    return um_backend_host_open(out, err);
}

um_status um_context_open(const um_config *config, um_context **out, um_error *err) {
    um_context *ctx = calloc(1, sizeof *ctx);
    if (!ctx) return um_error_set(err, UM_ERR_NO_MEMORY, "no memory for a context");
    um_status status = open_backend(config, &ctx->backend, ctx->reason, sizeof ctx->reason, err);
    if (status != UM_OK) {
        free(ctx);
        return status;
    }
    if (ctx->backend->device_count > UM_MAX_DEVICES) ctx->backend->device_count = UM_MAX_DEVICES;
    atomic_init(&ctx->refs, 1);
    pthread_mutex_init(&ctx->lock, NULL);
    pthread_mutex_init(&ctx->staging_lock, NULL);
    pthread_cond_init(&ctx->host_idle, NULL);
    for (int device = 0; device < UM_MAX_DEVICES; device++) {
        um_stream *stream = &ctx->legacy[device];
        stream->ctx = ctx;
        stream->device = device;
        stream->handle = UM_STREAM_LEGACY;
        stream->number = ++ctx->stream_count;
    }
    um_pool_init(ctx);
    um_cache_init(ctx);
    link_context(ctx);
    *out = ctx;
    return UM_OK;
}

static void close_context(um_context *ctx) {
    unlink_context(ctx);
    um_backend *backend = ctx->backend;
    const um_backend_ops *ops = backend->ops;
    if (!um_context_is_forked(ctx)) {
        if (ctx->slab_count || ctx->waiting.first) { /* freed blocks may be in use, those that shards keep too */
            um_error ignored; /* at close the driver may be gone already; what it holds goes with the process */
            (void)!um_context_wait_everything(ctx, false, &ignored);
        }
        um_pool_close(ctx);
        for (int device = 0; device < backend->device_count; device++) {
            if (ctx->legacy[device].event) ops->event_destroy(backend, device, ctx->legacy[device].event);
            um_error ignored;
            if (ctx->read_stream[device])
                (void)!ops->stream_destroy(backend, device, ctx->read_stream[device], &ignored);
        }
        if (ctx->staging) ops->staging_free(backend, ctx->staging);
    }
    um_log_event *events; /* of a recording that nobody ended */
    size_t count;
    bool complete;
    um_log_end(ctx, &events, &count, &complete);
    free(events);
    um_arena_close(ctx);
    ops->close(backend);
    for (int device = 0; device < UM_MAX_DEVICES; device++) free(atomic_load(&ctx->shards[device]));
    pthread_mutex_destroy(&ctx->lock);
    pthread_mutex_destroy(&ctx->staging_lock);
    pthread_cond_destroy(&ctx->host_idle);
    free(ctx);
}

um_context *um_context_ref(um_context *ctx) {
    atomic_fetch_add(&ctx->refs, 1);
    return ctx;
}

/* Blocks of slabs live: allocated, and not yet freed. [lock] held, and shards are locked. */
static uint64_t live_blocks(um_context *ctx) {
    uint64_t live = ctx->all.stats.large.blocks_current;
    for (int device = 0; device < UM_MAX_DEVICES; device++) {
        um_shard *shards = atomic_load(&ctx->shards[device]);
        for (int i = 0; shards && i < UM_SHARDS; i++)
            live += shards[i].counts.blocks_allocated - shards[i].counts.blocks_freed;
    }
    return live;
}

/* The last reference has gone, and closes the context unless blocks live: small ones hold no reference, since two more atomic operations
 * would double what they cost. Whoever frees one after this takes a reference for it, so that the last comes here again. */
void um_context_unref(um_context *ctx) {
    size_t refs = ctx ? atomic_load(&ctx->refs) : 0;
    while (refs > 1)
        if (atomic_compare_exchange_weak(&ctx->refs, &refs, refs - 1)) return;
    if (!ctx) return;
    /* The count reaches 0 under the lock only: whoever waits for it here still holds a reference, and so the context is there. */
    pthread_mutex_lock(&ctx->lock);
    bool close = false;
    if (atomic_fetch_sub(&ctx->refs, 1) == 1) {
        atomic_fetch_or(&ctx->detours, UM_DETOUR_CLOSES);
        um_cache_lock_all_locked(ctx);
        close = live_blocks(ctx) == 0;
        um_cache_unlock_all_locked(ctx);
    }
    pthread_mutex_unlock(&ctx->lock);
    if (close) close_context(ctx);
}

um_backend *um_context_backend(um_context *ctx) { return ctx->backend; }

bool um_context_is_cuda(const um_context *ctx) { return ctx->backend->device_count > 0; }

bool um_context_is_concurrent(const um_context *ctx) { return ctx->backend->concurrent; }

const char *um_context_reason(const um_context *ctx) { return ctx->reason; }

bool um_context_is_forked(const um_context *ctx) { return um_takes_detour(ctx, UM_DETOUR_FORKED); }

um_status um_context_check(const um_context *ctx, um_error *err) {
    if (!um_context_is_forked(ctx)) return UM_OK;
    return um_error_set(
        err, UM_ERR_FORKED,
        "umem cannot be used in a child forked from a process that uses a GPU: CUDA's memory is not mapped here. Start "
        "workers with the \"spawn\" or \"forkserver\" method, or copy what they need with a.read() first");
}

_Atomic(um_kernel_handle) *um_context_kernel_slots(um_context *ctx) { return ctx->kernels; }

int um_context_multiprocessors(um_context *ctx, int device) {
    int count = atomic_load_explicit(&ctx->multiprocessors[device], memory_order_relaxed);
    if (count > 0) return count;
    um_device_info info;
    um_error ignored; /* a wrong guess costs speed only */
    count = ctx->backend->ops->device_info(ctx->backend, device, &info, &ignored) == UM_OK ? info.multiprocessors : 1;
    if (count < 1) count = 1;
    atomic_store_explicit(&ctx->multiprocessors[device], count, memory_order_relaxed);
    return count;
}

/* --- waits that can be interrupted ------------------------------------------------------------------------------------ */

void um_context_set_interrupts(um_context *ctx, um_interrupts interrupts) { ctx->interrupts = interrupts; }

bool um_context_is_interruptible(const um_context *ctx) {
    return ctx->interrupts.possible && ctx->interrupts.possible(ctx->interrupts.arg);
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

um_watch um_watch_begin(um_context *ctx) {
    uint64_t began = now();
    return (um_watch){.ctx = ctx, .began = began, .asked = began};
}

uint64_t um_watch_time(const um_watch *watch) { return now() - watch->began; }

um_status um_watch_pause(um_watch *watch, um_error *err) {
    uint64_t time = um_watch_time(watch);
    if (time < SPIN_TIME) return UM_OK; /* as the driver does: most waits end here, and a sleep would lengthen them */
    const um_interrupts *interrupts = &watch->ctx->interrupts;
    if (watch->began + time - watch->asked >= ASK_INTERVAL) {
        if (interrupts->wanted(interrupts->arg))
            return um_error_set(err, UM_ERR_INTERRUPTED, "interrupted while waiting for a GPU, which goes on");
        watch->asked = now();
    }
    uint64_t sleep = time / SLEEP_SHARE < MAX_SLEEP ? time / SLEEP_SHARE : MAX_SLEEP;
    nanosleep(&(struct timespec){.tv_nsec = (long)sleep}, NULL);
    return UM_OK;
}

/* Takes references to explicit streams with unfinished work of umem that has been recorded; sequences[i] is the number of its last. */
static size_t take_busy_streams(um_context *ctx, um_stream **streams, uint64_t *sequences) {
    size_t count = 0;
    pthread_mutex_lock(&ctx->lock);
    for (um_stream *stream = ctx->streams; stream && count < MAX_WATCHED; stream = stream->next) {
        if (um_stream_has_done_locked(stream, stream->recorded)) continue;
        um_stream_ref_locked(stream);
        sequences[count] = stream->recorded;
        streams[count++] = stream;
    }
    pthread_mutex_unlock(&ctx->lock);
    return count;
}

/* Waits for what can be watched: the legacy streams of the devices that umem uses, and its own work on explicit streams. */
static um_status watch_everything(um_context *ctx, um_error *err) {
    um_backend *backend = ctx->backend;
    um_stream *streams[MAX_WATCHED];
    uint64_t sequences[MAX_WATCHED];
    size_t count = take_busy_streams(ctx, streams, sequences);
    um_status status = UM_OK;
    for (int device = 0; device < backend->device_count && status == UM_OK; device++)
        if (backend->ops->in_use(backend, device)) status = um_stream_finish(&ctx->legacy[device], err);
    for (size_t i = 0; i < count; i++) {
        if (status == UM_OK) status = um_stream_wait(streams[i], sequences[i], err);
        um_stream_unref(streams[i]);
    }
    return status;
}

um_status um_context_wait_everything(um_context *ctx, bool interruptible, um_error *err) {
    um_status status = um_context_check(ctx, err);
    if (status != UM_OK || !um_context_is_cuda(ctx)) return status;
    uint64_t issued[UM_MAX_DEVICES];
    int count = ctx->backend->device_count;
    pthread_mutex_lock(&ctx->lock);
    uint64_t epoch = ++ctx->syncs_started;
    for (int device = 0; device < count; device++) issued[device] = ctx->legacy[device].issued;
    uint64_t waits_failed = ctx->waits_failed;
    pthread_mutex_unlock(&ctx->lock);
    if (interruptible && um_context_is_interruptible(ctx)) status = watch_everything(ctx, err);
    if (status == UM_ERR_INTERRUPTED) return status;
    um_status watched = status;
    status = ctx->backend->ops->synchronize(ctx->backend, watched == UM_OK ? err : NULL); /* the rest */
    if (watched != UM_OK) status = watched;
    if (status != UM_OK) return status;
    pthread_mutex_lock(&ctx->lock);
    if (ctx->waits_made_good < waits_failed) ctx->waits_made_good = waits_failed;
    if (ctx->sync_completed < epoch) ctx->sync_completed = epoch;
    for (int device = 0; device < count; device++)
        if (ctx->legacy[device].completed < issued[device]) ctx->legacy[device].completed = issued[device];
    pthread_mutex_unlock(&ctx->lock);
    return UM_OK;
}

um_status um_context_synchronize(um_context *ctx, um_error *err) {
    um_status status = um_context_wait_everything(ctx, true, err);
    if (status == UM_OK) status = um_pool_poll(ctx, err);
    if (status == UM_OK) um_arena_poll(ctx);
    return status;
}
