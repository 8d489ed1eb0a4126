/* Kernels for the driver's own tests; always there, beside those of fake_kernels.c. */
#include "fake_internal.h"

#include <string.h>

/* fakecu_test_fill(void *ptr, int value, size_t n): sets n bytes. */
static void test_fill(const unsigned grid[3], unsigned block, void **params) {
    (void)grid;
    (void)block;
    void *ptr = *(void **)params[0];
    const int value = *(const int *)params[1];
    const size_t n = *(const size_t *)params[2];
    fakecu_touch(ptr, n, true);
    memset(fakecu_translate(ptr), value, n);
}

/* fakecu_test_sum(const unsigned char *in, unsigned long long *out, size_t n): *out = sum of n
 * bytes. */
static void test_sum(const unsigned grid[3], unsigned block, void **params) {
    (void)grid;
    (void)block;
    const void *in = *(void **)params[0];
    void *out = *(void **)params[1];
    const size_t n = *(const size_t *)params[2];
    fakecu_touch(in, n, false);
    fakecu_touch(out, sizeof(unsigned long long), true);
    const unsigned char *bytes = fakecu_translate(in);
    unsigned long long sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += bytes[i];
    }
    memcpy(fakecu_translate(out), &sum, sizeof sum);
}

static const size_t fill_sizes[] = {sizeof(void *), sizeof(int), sizeof(size_t)};
static const size_t sum_sizes[] = {sizeof(void *), sizeof(void *), sizeof(size_t)};

const fakecu_kernel_entry fake_test_kernels[] = {
    {"fakecu_test_fill", test_fill, 3, fill_sizes},
    {"fakecu_test_sum", test_sum, 3, sum_sizes},
};
const size_t fake_test_kernel_count = sizeof fake_test_kernels / sizeof fake_test_kernels[0];
