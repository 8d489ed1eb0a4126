/* Host reads of a block that move none of its pages, and bulk fills. */
#ifndef UM_TRANSFER_H
#define UM_TRANSFER_H

#include <stdint.h>

#include "core/um_block.h"

#define UM_MAX_NDIM 64 /* NumPy's limit */

/* Copies elements at ptr (inside the block) to contiguous host memory in C order, after waiting for pending work. Shape and
 * byte strides (any sign) have ndim entries; the caller has checked that all elements lie inside the block. GPU-resident
 * pages are copied, not moved. Blocks. */
UM_MUST_CHECK um_status um_read(um_block *block, const char *ptr, int ndim, const int64_t *shape,
                                const int64_t *strides, size_t itemsize, void *dst, um_error *err);

/* One of several strided pieces of a block that are read together. */
typedef struct um_read_part {
    const char *ptr;        /* first element, inside the block */
    const int64_t *shape;   /* ndim entries */
    const int64_t *strides; /* bytes, any sign */
    void *dst;              /* contiguous, in C order */
} um_read_part;

/* um_read for several pieces with the same number of axes, which wait for the device once between them. Either all have elements, or none
 * has. */
UM_MUST_CHECK um_status um_read_parts(um_block *block, const um_read_part *parts, size_t count, int ndim,
                                      size_t itemsize, um_error *err);

/* Sets every byte of a block that is new (nobody else has seen it) to zero, where it is cheapest: large blocks on the GPU unless their
 * home is the host. Blocks or leaves the work pending on the device's legacy stream. */
UM_MUST_CHECK um_status um_zero_new(um_block *block, um_error *err);

#endif
