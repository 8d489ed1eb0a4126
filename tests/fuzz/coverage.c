/* Tells libFuzzer what gcc's -fsanitize-coverage=trace-pc,trace-cmp sees.
 *
 * libFuzzer wants a counter for each place in the code, which only clang lays out; here each place has the counter
 * that its address hashes to. Comparisons go on to libFuzzer, which atheris loads as a module of Python's that nobody
 * else can link to. */
#include <stddef.h>
#include <stdint.h>

enum { COUNTERS = 1 << 16 };

static uint8_t counters[COUNTERS];
static uintptr_t places[2 * COUNTERS]; /* address and flags, which libFuzzer wants for reports */

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
    uint64_t place = (uint64_t)(uintptr_t)__builtin_return_address(0);
    counters[(place * UINT64_C(0x9E3779B97F4A7C15)) >> 48]++;
}

/* A jump, so that libFuzzer sees the place of the comparison as its caller: compile with optimisation. */
#define FORWARD(NAME, TYPE, OTHER)                                                                                     \
    void (*coverage_##NAME)(TYPE, OTHER) = NULL;                                                                       \
    void __sanitizer_cov_trace_##NAME(TYPE a, OTHER b);                                                                \
    void __sanitizer_cov_trace_##NAME(TYPE a, OTHER b) {                                                               \
        if (coverage_##NAME != NULL) {                                                                                 \
            coverage_##NAME(a, b);                                                                                     \
        }                                                                                                              \
    }

FORWARD(cmp1, uint8_t, uint8_t)
FORWARD(cmp2, uint16_t, uint16_t)
FORWARD(cmp4, uint32_t, uint32_t)
FORWARD(cmp8, uint64_t, uint64_t)
FORWARD(const_cmp1, uint8_t, uint8_t)
FORWARD(const_cmp2, uint16_t, uint16_t)
FORWARD(const_cmp4, uint32_t, uint32_t)
FORWARD(const_cmp8, uint64_t, uint64_t)
FORWARD(switch, uint64_t, uint64_t *)
/* These libFuzzer does not have. */
FORWARD(cmpf, float, float)
FORWARD(cmpd, double, double)

/* With libFuzzer's __sanitizer_cov_8bit_counters_init and __sanitizer_cov_pcs_init. */
void coverage_announce(void (*counters_init)(uint8_t *, uint8_t *), void (*pcs_init)(uintptr_t *, uintptr_t *));
void coverage_announce(void (*counters_init)(uint8_t *, uint8_t *), void (*pcs_init)(uintptr_t *, uintptr_t *)) {
    for (size_t i = 0; i < COUNTERS; i++) {
        places[2 * i] = (uintptr_t)&counters[i];
    }
    counters_init(counters, counters + COUNTERS);
    pcs_init(places, places + 2 * COUNTERS);
}
