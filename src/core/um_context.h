/* One process's use of umem: a backend, its streams, its blocks and its memory policy.
 *
 * A context is reference counted: whoever opened it holds one reference, each block another, so that
 * arrays held by other libraries outlive the interpreter's module. `lock` guards every field marked
 * [lock] in this directory and is never held across a call that can block.
 */
#ifndef UM_CONTEXT_H
#define UM_CONTEXT_H

#include <stdatomic.h>

#include "backend/um_backend.h"

typedef struct um_context um_context;

/* Room for loaded kernels: the kernel layer numbers its kernels and caches their handles here, 0 for not loaded. */
#define UM_KERNEL_SLOTS 4096

typedef struct um_config {
    const char *backend; /* "auto", "cuda" or "host" */
    const char *library; /* driver library, NULL for the system's */
} um_config;

/* Opens the backend. With "auto" a missing or unusable driver gives the host backend, and
 * um_context_reason says why; with "cuda" it is an error. The new context has one reference. */
UM_MUST_CHECK um_status um_context_open(const um_config *config, um_context **out, um_error *err);
um_context *um_context_ref(um_context *ctx);
void um_context_unref(um_context *ctx);

um_backend *um_context_backend(um_context *ctx);
bool um_context_is_cuda(const um_context *ctx);
/* Whether host and devices may touch managed memory at the same time (rule 6); true on the host backend. */
bool um_context_is_concurrent(const um_context *ctx);
/* Why this backend was chosen, one sentence, valid for the context's life. */
const char *um_context_reason(const um_context *ctx);
/* True in a child forked after a CUDA context was opened: nothing of it may be used there. Always false on
 * the host backend, whose memory a child owns a copy of. */
bool um_context_is_forked(const um_context *ctx);
/* UM_ERR_FORKED with the explanation when um_context_is_forked. */
UM_MUST_CHECK um_status um_context_check(const um_context *ctx, um_error *err);

/* How long waits for a GPU are given up. Both are called in the waiting thread, without locks of core. */
typedef struct um_interrupts {
    /* Whether waits of the calling thread may be given up. They ask the driver now and then; others block in it. */
    bool (*possible)(void *arg);
    /* Whether the caller wants to give up: the wait then ends with UM_ERR_INTERRUPTED. Called every 20 ms or so in long waits. */
    bool (*wanted)(void *arg);
    void *arg;
} um_interrupts;

/* Before the context is used by anyone else. Without it nobody is ever interrupted. */
void um_context_set_interrupts(um_context *ctx, um_interrupts interrupts);
/* Whether waits of this thread may be interrupted. */
bool um_context_is_interruptible(const um_context *ctx);

_Atomic(um_kernel_handle) *um_context_kernel_slots(um_context *ctx);
/* Multiprocessors of a device, at least 1; read once and kept. */
int um_context_multiprocessors(um_context *ctx, int device);

/* Waits for everything on every device, umem's work and other libraries' (blocks; may be interrupted), then frees what
 * waited for that. */
UM_MUST_CHECK um_status um_context_synchronize(um_context *ctx, um_error *err);

#endif
