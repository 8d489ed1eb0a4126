/* What the programs that test core have in common: a context, opened over either backend, and work put on streams with the backend's own
 * fills, so that no kernel is needed. */
#ifndef UM_CORE_TEST_H
#define UM_CORE_TEST_H

#include <stdlib.h>

#include "core/um_block.h"
#include "core/um_coherence.h"
#include "core/um_internal.h"
#include "core/um_placement.h"
#include "core/um_pool.h"
#include "core/um_residency.h"
#include "core/um_stream.h"
#include "kernels/um_kernel_image.h"
#include "um_fake.h"
#include "um_test.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

const um_kernel_image um_kernel_images[] = {{"none", NULL, 0}};
const size_t um_kernel_image_count = 0;

static um_context *ctx; /* of the running test */
static const um_location nowhere = {UM_LOCATION_NONE, 0};
static const um_location host = {UM_LOCATION_HOST, 0};
static const um_location gpu0 = {UM_LOCATION_DEVICE, 0};

static inline bool ok(um_status status, const um_error *err) {
    if (status != UM_OK) printf("%s: %s\n", um_test_name, err->message);
    return status == UM_OK;
}

/* Whether the pool's books agree. */
static inline bool healthy(void) {
    const char *wrong = um_pool_check(ctx);
    if (wrong) printf("%s: %s\n", um_test_name, wrong);
    return !wrong;
}

static inline bool start(const char *backend) {
    um_error err = {0};
    um_config config = {backend, getenv("UMEM_CUDA_LIBRARY")};
    ctx = NULL;
    return ok(um_context_open(&config, &ctx, &err), &err);
}

static inline bool start_fake(int devices) {
    FAKE(fakecu_shutdown)();
    FAKE(fakecu_set_devices)(devices);
    return start("cuda");
}

static inline void stop(void) {
    UM_CHECK(healthy());
    um_context_unref(ctx);
    ctx = NULL;
}

static inline void stop_fake(void) {
    stop();
    UM_CHECK(FAKE(fakecu_live)("all") == 0);
    FAKE(fakecu_shutdown)();
}

static inline um_stream *get_stream_of(int device, um_stream_handle handle) {
    um_error err = {0};
    um_stream *stream = NULL;
    UM_CHECK(ok(um_stream_get(ctx, device, handle, &stream, &err), &err));
    return stream;
}

/* Queues a fill of the whole block on `stream`, as a kernel would be. Returns what the caller has to wait for. */
static inline um_wait fill(um_block *block, um_stream *stream, unsigned char value, bool deferred) {
    um_error err = {0};
    um_wait wait = UM_WAIT_NONE;
    um_access access = {.block = block, .size = um_block_size(block), .write = true, .dense = true};
    um_backend *backend = um_context_backend(ctx);
    UM_CHECK(ok(um_work_begin(stream, &access, 1, &err), &err));
    UM_CHECK(ok(backend->ops->fill_bytes(backend, um_stream_device(stream), um_block_ptr(block), value, access.size,
                                         um_stream_get_handle(stream), &err),
                &err));
    UM_CHECK(ok(um_work_end(stream, &access, 1, deferred, &wait, &err), &err));
    return wait;
}

static inline void wait_host(um_block *block) {
    um_error err = {0};
    um_wait wait;
    UM_CHECK(ok(um_host_access(block, &wait, &err), &err));
    UM_CHECK(ok(um_wait_run(&wait, &err), &err));
}

#endif
