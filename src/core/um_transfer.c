#include "core/um_transfer.h"

#include <stdlib.h>
#include <string.h>

#include "core/um_internal.h"
#include "core/um_placement.h"

#define STAGING       ((size_t)8 << 20) /* page-locked bytes a context keeps for reads, in two halves */
#define GPU_ZERO_SIZE ((size_t)1 << 20) /* new blocks from this size on are zeroed on the GPU */

#define MAX_PITCH ((size_t)INT32_MAX) /* bytes between the rows of one rectangle, the driver's limit */

/* A strided region in its simplest form: no axis of length 1 or stride 0, strides positive and falling, the last `run` bytes of every
 * row contiguous. What was changed for that is undone when the gathered bytes are spread into the result. */
typedef struct region {
    const char *ptr;
    int ndim;
    int kept; /* axes before the innermost ones were merged into `run`: entries of the arrays below */
    int64_t shape[UM_MAX_NDIM];
    int64_t strides[UM_MAX_NDIM];
    int axis[UM_MAX_NDIM]; /* the array's axis that this one is */
    size_t run;            /* contiguous bytes at each index */
} region;

static size_t region_rows(const region *from) {
    size_t rows = 1;
    for (int axis = 0; axis < from->ndim; axis++) rows *= (size_t)from->shape[axis];
    return rows;
}

/* --- host to host -------------------------------------------------------------------------------------------------- */

/* Copies a strided array into contiguous memory in C order. */
static char *gather_on_host(const char *src, int ndim, const int64_t *shape, const int64_t *strides, size_t itemsize,
                            char *dst) {
    if (ndim == 0) {
        memcpy(dst, src, itemsize);
        return dst + itemsize;
    }
    if (ndim == 1 && strides[0] == (int64_t)itemsize) {
        memcpy(dst, src, (size_t)shape[0] * itemsize);
        return dst + (size_t)shape[0] * itemsize;
    }
    for (int64_t i = 0; i < shape[0]; i++)
        dst = gather_on_host(src + i * strides[0], ndim - 1, shape + 1, strides + 1, itemsize, dst);
    return dst;
}

/* --- device to host -------------------------------------------------------------------------------------------------- */

/* Puts an axis where its stride belongs, largest first. Returns whether it stays behind all axes before it. */
static bool insert_axis(region *into, int axis, int64_t length, int64_t stride) {
    int at = into->kept++;
    for (; at > 0 && into->strides[at - 1] < stride; at--) {
        into->shape[at] = into->shape[at - 1];
        into->strides[at] = into->strides[at - 1];
        into->axis[at] = into->axis[at - 1];
    }
    into->shape[at] = length;
    into->strides[at] = stride;
    into->axis[at] = axis;
    return at == into->kept - 1;
}

/* Reduces the array to a region. Returns whether the region's bytes in order are already the result. */
static bool simplify(const char *ptr, int ndim, const int64_t *shape, const int64_t *strides, size_t itemsize,
                     region *out) {
    bool same = true;
    *out = (region){.ptr = ptr, .run = itemsize};
    for (int axis = 0; axis < ndim; axis++) {
        if (shape[axis] == 1) continue;
        if (strides[axis] <= 0) same = false;
        if (strides[axis] == 0) continue;
        if (strides[axis] < 0) out->ptr += strides[axis] * (shape[axis] - 1);
        if (!insert_axis(out, axis, shape[axis], strides[axis] < 0 ? -strides[axis] : strides[axis])) same = false;
    }
    out->ndim = out->kept;
    while (out->ndim && out->strides[out->ndim - 1] == (int64_t)out->run) out->run *= (size_t)out->shape[--out->ndim];
    return same;
}

/* Strides over the gathered bytes that give the array back, axis for axis, and the element it starts with. */
static const char *spread_strides(const char *gathered, const region *from, int ndim, const int64_t *strides,
                                  size_t itemsize, int64_t *out) {
    for (int axis = 0; axis < ndim; axis++) out[axis] = 0;
    int64_t step = (int64_t)itemsize;
    for (int i = from->kept - 1; i >= 0; i--) {
        bool backwards = strides[from->axis[i]] < 0;
        out[from->axis[i]] = backwards ? -step : step;
        if (backwards) gathered += step * (from->shape[i] - 1);
        step *= from->shape[i];
    }
    return gathered;
}

/* One context's means of reading, locked for the time of a read. */
typedef struct reader {
    um_context *ctx;
    int device;
    um_stream_handle stream;
    char *staging;
} reader;

static um_status open_reader_locked(um_context *ctx, int device, reader *out, um_error *err) {
    um_backend *backend = ctx->backend;
    um_status status = UM_OK;
    if (!ctx->staging) {
        void *staging;
        status = backend->ops->staging_alloc(backend, device, STAGING, &staging, err);
        if (status != UM_OK) return status;
        ctx->staging = staging;
    }
    if (!ctx->read_stream[device])
        status = backend->ops->stream_create(backend, device, &ctx->read_stream[device], err);
    if (status == UM_OK) *out = (reader){ctx, device, ctx->read_stream[device], ctx->staging};
    return status;
}

static um_status finish(const reader *with, um_error *err) {
    um_backend *backend = with->ctx->backend;
    return backend->ops->stream_synchronize(backend, with->device, with->stream, err);
}

/* Reads one contiguous piece through both halves of the staging memory: one is filled by the device while the host empties the other. */
static um_status read_contiguous(const reader *with, const char *src, size_t size, char *dst, um_error *err) {
    um_backend *backend = with->ctx->backend;
    size_t half = STAGING / 2;
    size_t in_flight = 0; /* bytes the device is copying into half (turn - 1) % 2 */
    size_t started = 0;
    um_status status = UM_OK;
    for (unsigned turn = 0; status == UM_OK && (started < size || in_flight); turn++) {
        if (in_flight) status = finish(with, err);
        if (status != UM_OK) break;
        size_t arrived = in_flight;
        const char *full = with->staging + (turn + 1) % 2 * half;
        in_flight = size - started < half ? size - started : half;
        if (in_flight)
            status = backend->ops->copy(backend, with->device, with->staging + turn % 2 * half, src + started,
                                        in_flight, with->stream, err);
        if (arrived) memcpy(dst + started - arrived, full, arrived);
        started += in_flight;
    }
    return status;
}

/* Queues the copies of rows [first, first + count) of the region to dst, in staging memory, two axes per driver call where they allow it. */
static um_status queue_rows(const reader *with, const region *from, size_t first, size_t count, char *dst,
                            um_error *err) {
    um_backend *backend = with->ctx->backend;
    int inner = from->ndim - 1;
    size_t inner_length = (size_t)from->shape[inner];
    size_t pitch = (size_t)from->strides[inner];
    um_status status = UM_OK;
    for (size_t row = first; row < first + count && status == UM_OK;) {
        size_t rest = row / inner_length, start = row % inner_length;
        const char *src = from->ptr + (size_t)start * pitch;
        for (int axis = inner - 1; axis >= 0; axis--) {
            src += (int64_t)(rest % (size_t)from->shape[axis]) * from->strides[axis];
            rest /= (size_t)from->shape[axis];
        }
        size_t rows = inner_length - start;
        if (rows > first + count - row) rows = first + count - row;
        bool rectangle = pitch >= from->run && pitch <= MAX_PITCH; /* rows may overlap, or lie too far apart */
        if (!rectangle) rows = 1;
        status = backend->ops->copy_2d_to_host(backend, with->device, dst, from->run, src,
                                               rectangle ? pitch : from->run, from->run, rows, with->stream, err);
        dst += rows * from->run;
        row += rows;
    }
    return status;
}

static um_status read_region(const reader *with, const region *from, char *dst, um_error *err) {
    if (from->ndim == 0) return read_contiguous(with, from->ptr, from->run, dst, err);
    size_t rows = region_rows(from);
    um_status status = UM_OK;
    if (from->run > STAGING) { /* few, long rows */
        region row = *from;
        for (size_t i = 0; i < rows && status == UM_OK; i++) {
            size_t rest = i;
            row.ptr = from->ptr;
            for (int axis = from->ndim - 1; axis >= 0; axis--) {
                row.ptr += (int64_t)(rest % (size_t)from->shape[axis]) * from->strides[axis];
                rest /= (size_t)from->shape[axis];
            }
            status = read_contiguous(with, row.ptr, from->run, dst + i * from->run, err);
        }
        return status;
    }
    size_t at_once = STAGING / from->run;
    for (size_t first = 0; first < rows && status == UM_OK; first += at_once) {
        size_t count = rows - first < at_once ? rows - first : at_once;
        status = queue_rows(with, from, first, count, with->staging, err);
        um_error ignored;
        um_status finished =
            finish(with, status == UM_OK ? err : &ignored); /* nothing may be in flight when the lock goes */
        if (status == UM_OK) status = finished;
        if (status == UM_OK) memcpy(dst + first * from->run, with->staging, count * from->run);
    }
    return status;
}

/* Puts gathered bytes where the array's elements belong in dst; `direct` when they are in order already. */
static void place(const char *gathered, const region *from, bool direct, int ndim, const um_read_part *part,
                  size_t itemsize) {
    if (direct) {
        memcpy(part->dst, gathered, region_rows(from) * from->run);
        return;
    }
    int64_t spread[UM_MAX_NDIM];
    const char *start = spread_strides(gathered, from, ndim, part->strides, itemsize, spread);
    gather_on_host(start, ndim, part->shape, spread, itemsize, part->dst);
}

/* Reads parts that fit into staging memory together: all copies are queued, then waited for once. */
static um_status read_small_parts(const reader *with, const um_read_part *parts, size_t count, int ndim,
                                  size_t itemsize, um_error *err) {
    um_backend *backend = with->ctx->backend;
    um_status status = UM_OK;
    region from;
    char *at = with->staging;
    for (size_t i = 0; i < count && status == UM_OK; i++) {
        (void)simplify(parts[i].ptr, ndim, parts[i].shape, parts[i].strides, itemsize, &from);
        size_t rows = region_rows(&from);
        status = from.ndim == 0 ? backend->ops->copy(backend, with->device, at, from.ptr, from.run, with->stream, err)
                                : queue_rows(with, &from, 0, rows, at, err);
        at += rows * from.run;
    }
    um_error ignored;
    um_status finished =
        finish(with, status == UM_OK ? err : &ignored); /* nothing may be in flight when the lock goes */
    if (status == UM_OK) status = finished;
    at = with->staging;
    for (size_t i = 0; i < count && status == UM_OK; i++) {
        bool direct = simplify(parts[i].ptr, ndim, parts[i].shape, parts[i].strides, itemsize, &from);
        place(at, &from, direct, ndim, &parts[i], itemsize);
        at += region_rows(&from) * from.run;
    }
    return status;
}

static um_status read_large_part(const reader *with, const um_read_part *part, int ndim, size_t itemsize,
                                 um_error *err) {
    region from;
    bool direct = simplify(part->ptr, ndim, part->shape, part->strides, itemsize, &from);
    if (direct) return read_region(with, &from, part->dst, err);
    size_t bytes = region_rows(&from) * from.run;
    char *gathered = malloc(bytes);
    if (!gathered) return um_error_set(err, UM_ERR_NO_MEMORY, "no memory for a copy of %zu bytes", bytes);
    um_status status = read_region(with, &from, gathered, err);
    if (status == UM_OK) place(gathered, &from, false, ndim, part, itemsize);
    free(gathered);
    return status;
}

static size_t part_bytes(const um_read_part *part, int ndim, size_t itemsize) {
    size_t bytes = itemsize;
    for (int axis = 0; axis < ndim; axis++) bytes *= (size_t)part->shape[axis];
    return bytes;
}

static um_status read_from_device(um_block *block, const um_read_part *parts, size_t count, int ndim, size_t itemsize,
                                  um_error *err) {
    um_context *ctx = block->ctx;
    size_t total = 0;
    for (size_t i = 0; i < count; i++) total += part_bytes(&parts[i], ndim, itemsize);
    reader with;
    pthread_mutex_lock(&ctx->staging_lock);
    um_status status = open_reader_locked(ctx, block->device, &with, err);
    if (total <= STAGING && status == UM_OK) {
        status = read_small_parts(&with, parts, count, ndim, itemsize, err);
    } else {
        for (size_t i = 0; i < count && status == UM_OK; i++)
            status = read_large_part(&with, &parts[i], ndim, itemsize, err);
    }
    pthread_mutex_unlock(&ctx->staging_lock);
    return status;
}

/* First byte and number of bytes that all parts together touch. */
static const char *extent(const um_read_part *parts, size_t count, int ndim, size_t itemsize, size_t *size) {
    const char *first = parts[0].ptr, *last = parts[0].ptr;
    for (size_t i = 0; i < count; i++) {
        const char *low = parts[i].ptr, *high = parts[i].ptr;
        for (int axis = 0; axis < ndim; axis++) {
            int64_t reach = parts[i].strides[axis] * (parts[i].shape[axis] - 1);
            if (reach < 0)
                low += reach;
            else
                high += reach;
        }
        if (low < first) first = low;
        if (high > last) last = high;
    }
    *size = (size_t)(last - first) + itemsize;
    return first;
}

um_status um_read_parts(um_block *block, const um_read_part *parts, size_t count, int ndim, size_t itemsize,
                        um_error *err) {
    if (!count || !itemsize || !part_bytes(&parts[0], ndim, itemsize)) return um_context_check(block->ctx, err);
    um_wait wait;
    um_status status = um_host_access(block, &wait, err);
    if (status == UM_OK) status = um_wait_run(&wait, err);
    if (status != UM_OK) return status;
    if (atomic_load_explicit(&block->gpu_touched, memory_order_acquire) && block->ctx->backend->concurrent) {
        size_t size;
        const char *first = extent(parts, count, ndim, itemsize, &size);
        if (!um_host_resident(first, size)) return read_from_device(block, parts, count, ndim, itemsize, err);
    }
    status = um_host_hold(block->ctx, err);
    if (status != UM_OK) return status;
    for (size_t i = 0; i < count; i++)
        gather_on_host(parts[i].ptr, ndim, parts[i].shape, parts[i].strides, itemsize, parts[i].dst);
    um_host_release(block->ctx);
    return UM_OK;
}

um_status um_read(um_block *block, const char *ptr, int ndim, const int64_t *shape, const int64_t *strides,
                  size_t itemsize, void *dst, um_error *err) {
    um_read_part part = {ptr, shape, strides, dst};
    return um_read_parts(block, &part, 1, ndim, itemsize, err);
}

/* --- new memory ----------------------------------------------------------------------------------------------------- */

/* Whether the host should write a new block: nothing is pending on it, and its pages are on the host or nowhere. */
static bool host_should_zero(um_block *block) {
    um_context *ctx = block->ctx;
    if (!um_context_is_cuda(ctx)) return true;
    /* Without concurrent access the host may not touch memory while any kernel runs: the device zeroes it, in order. */
    if (!ctx->backend->concurrent || block->stream) return false;
    if (um_location_is_host(um_block_home(block))) return true;
    return block->size < GPU_ZERO_SIZE && (!atomic_load_explicit(&block->gpu_touched, memory_order_relaxed) ||
                                           um_host_resident(block->chunk.ptr, block->size));
}

um_status um_zero_new(um_block *block, um_error *err) {
    um_context *ctx = block->ctx;
    um_backend *backend = ctx->backend;
    size_t size = block->size;
    if (!size || (block->chunk.fresh && !um_context_is_cuda(ctx))) return UM_OK; /* the host's memory is born zero */
    if (host_should_zero(block)) {
        memset(block->chunk.ptr, 0, size);
        return UM_OK;
    }
    /* Pages made by a prefetch cost a fifteenth of pages made by faults. */
    um_stream *stream = &ctx->legacy[block->device];
    um_access access = {.block = block, .offset = 0, .size = size, .write = true, .dense = true};
    um_location device = {UM_LOCATION_DEVICE, block->device};
    um_status status = size < GPU_ZERO_SIZE ? UM_OK : um_prefetch(ctx, &access, 1, device, stream, err);
    if (status == UM_OK) status = um_work_begin(stream, &access, 1, err);
    if (status != UM_OK) return status;
    status = backend->ops->fill_bytes(backend, stream->device, block->chunk.ptr, 0, size, stream->handle, err);
    if (status != UM_OK) {
        um_work_failed(stream);
        return status;
    }
    um_wait wait;
    status = um_work_end(stream, &access, 1, false, &wait, err);
    return status == UM_OK ? um_wait_run(&wait, err) : status; /* needed by rule 6 only: nobody has seen the block */
}
