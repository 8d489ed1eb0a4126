/* What the host implementations of kernels share. */
#ifndef FAKE_KERNELS_H
#define FAKE_KERNELS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"

static inline _Noreturn void fail(const char *what) {
    fprintf(stderr, "fake CUDA driver: kernel: %s\n", what);
    abort();
}

static inline void require(bool condition, const char *what) {
    if (!condition) {
        fail(what);
    }
}

static inline void require_aligned(const char *ptr, size_t size) {
    require(((uintptr_t)ptr & (size - 1)) == 0, "misaligned address");
}

/* Bytes that an operand touches, relative to its data. */
typedef struct extent {
    int64_t low, high;
} extent;

static inline void extend(extent *range, uint64_t length, int64_t stride) {
    const int64_t reach = (int64_t)(length - 1) * stride;
    *(reach < 0 ? &range->low : &range->high) += reach;
}

/* Touches the operand and returns its address for the "GPU". */
static inline char *use_operand(const char *data, extent range, bool write) {
    const char *low = data + range.low;
    fakecu_touch(low, (size_t)(range.high - range.low), write);
    return (char *)fakecu_translate(low) - range.low;
}

#endif
