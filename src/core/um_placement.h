/* Moving blocks and advising the driver about them. Offsets and sizes are bytes of the block, size > 0. */
#ifndef UM_PLACEMENT_H
#define UM_PLACEMENT_H

#include "core/um_coherence.h"

/* Memory from this size on owns its pages; smaller blocks share them and cannot be advised alone. */
#define UM_PAGE_GROUP ((size_t)64 * 1024)

/* A location is checked here: UM_ERR_VALUE, naming the devices present, for one that is not there (on the host backend
 * devices are accepted and ignored). */
UM_MUST_CHECK um_status um_location_check(um_context *ctx, um_location where, um_error *err);

/* Starts moving the ranges (only block, offset and size of each access are read) to `where`, in order on `stream`
 * (NULL: the legacy stream of each block's device). All in one driver call where the driver can. Can block for milliseconds. Empty
 * accesses are skipped. */
UM_MUST_CHECK um_status um_prefetch(um_context *ctx, const um_access *ranges, size_t count, um_location where,
                                    um_stream *stream, um_error *err);
UM_MUST_CHECK um_status um_advise(um_block *block, size_t offset, size_t size, um_advice advice, um_location where,
                                  um_error *err);
/* Sets where the pages of the whole block prefer to live; UM_LOCATION_NONE takes the preference back. UM_ERR_VALUE for a block
 * that shares its pages. Setting what is set does nothing. */
UM_MUST_CHECK um_status um_set_home(um_block *block, um_location home, um_error *err);
/* The contents of the whole page groups within the range no longer matter: a prefetch moves nothing for them, unless something has
 * written them by then. The host backend gives the pages back at once. No effect while a writable host view is alive or after the
 * block was handed to another GPU library, whose writes cannot be seen.
 *
 * The driver's own discard is made only together with a prefetch that moves all of the range to the other side. Alone, or with a
 * prefetch to where the pages are already, it is not safe: though the documentation says that writes undo it, most of what a kernel wrote
 * afterwards was lost at the next migration (seen on an H200, driver 580.159). */
UM_MUST_CHECK um_status um_discard(um_block *block, size_t offset, size_t size, um_error *err);

#endif
