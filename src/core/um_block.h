/* A block: one allocation, its owner device, and what is known of its use.
 *
 * Blocks are reference counted and may be released from any thread, with or without the GIL. The address of a
 * block can be looked up, so that memory that comes back through another library's protocol is recognised.
 */
#ifndef UM_BLOCK_H
#define UM_BLOCK_H

#include "core/um_context.h"

typedef struct um_block um_block;

/* Allocates `size` bytes (0 is allowed and takes no memory) owned by `device` (ordinal; ignored on the host
 * backend). `home` may be UM_LOCATION_NONE. Enforces the limits; reclaims what waits and retries before it fails
 * with UM_ERR_OUT_OF_MEMORY. May block while reclaiming. */
UM_MUST_CHECK um_status um_block_new(um_context *ctx, size_t size, int device, um_location home, um_block **out,
                                     um_error *err);

/* Wraps memory that another library owns and that host and device may both touch. `release(owner)` is called once,
 * from any thread and without the GIL, when the block dies. On failure `owner` still belongs to the caller. Other
 * libraries' GPU work may touch it at any time, so host access always waits for the whole device. */
UM_MUST_CHECK um_status um_block_wrap(um_context *ctx, void *ptr, size_t size, int device, void (*release)(void *),
                                      void *owner, um_block **out, um_error *err);

um_block *um_block_ref(um_block *block);
void um_block_unref(um_block *block);

/* The live block that contains all of [ptr, ptr + size), as a reference; NULL when there is none. size > 0. */
um_block *um_block_find(um_context *ctx, const void *ptr, size_t size);

um_context *um_block_context(const um_block *block);
char *um_block_ptr(const um_block *block);   /* a unique non-NULL address for blocks of size 0 */
size_t um_block_size(const um_block *block); /* bytes asked for */
int um_block_device(const um_block *block);  /* ordinal; 0 on the host backend */
um_location um_block_home(const um_block *block);
/* False for wrapped memory, whose placement is its owner's business. */
bool um_block_is_owned(const um_block *block);

#endif
