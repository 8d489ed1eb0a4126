/* Sizes as people write them. */
#ifndef UM_ALLOC_CONF_H
#define UM_ALLOC_CONF_H

#include "py/um_state.h"

/* Bytes of a str: a number ("4096", "1.5") with a unit in any case or none: B; kB, MB, GB, TB in thousands; KiB, MiB,
 * GiB, TiB and K, M, G, T in 1024s; "%" of `total`. Rounded down. `name` begins the message of the
 * ValueError. -1 with it set. */
int um_parse_size(PyObject *text, const char *name, size_t total, size_t *out);

/* Memory that a share ("80%") is of: the device's, that of all devices together (UM_ALL_DEVICES), or the system's on
 * the host backend. Starts no device. -1 with an exception set. */
int um_total_memory(um_state *state, um_context *ctx, int device, size_t *out);

#endif
