/* Streams as umem sees them: a driver handle plus how far the work umem put on it has come.
 *
 * Work is numbered per stream. umem never touches a foreign handle again after it has launched on it (the
 * owner may destroy the stream): it waits through an event that it records behind its own work.
 */
#ifndef UM_STREAM_H
#define UM_STREAM_H

#include <stdint.h>

#include "core/um_context.h"

typedef struct um_stream um_stream;

/* The stream of `handle` for work on `device` (0 and UM_STREAM_LEGACY are the device's legacy default stream).
 * An explicit handle must belong to `device`. The result is a reference. */
UM_MUST_CHECK um_status um_stream_get(um_context *ctx, int device, um_stream_handle handle, um_stream **out,
                                      um_error *err);
um_stream *um_stream_ref(um_stream *stream);
void um_stream_unref(um_stream *stream);

int um_stream_device(const um_stream *stream);
um_stream_handle um_stream_get_handle(const um_stream *stream);

/* Waits for all work on the stream, umem's and others' (blocks). The handle must still be alive. */
UM_MUST_CHECK um_status um_stream_synchronize(um_stream *stream, bool interruptible, um_error *err);

/* Makes work put on `stream` from now on wait for the work of `other`; does not block. */
UM_MUST_CHECK um_status um_stream_wait_stream(um_stream *stream, um_stream *other, um_error *err);

#endif
