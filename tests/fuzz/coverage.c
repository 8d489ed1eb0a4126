/* Tells libFuzzer what gcc's -fsanitize-coverage=trace-pc sees. libFuzzer wants a counter for each place in the code,
 * which only clang lays out; here each place has the counter that its address hashes to. Loaded before libFuzzer, which
 * has a function of this name that does nothing. */
#include <stddef.h>
#include <stdint.h>

enum { COUNTERS = 1 << 16 };

typedef void announcement(const void *start, const void *stop);

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_cmpf(float a, float b);
void __sanitizer_cov_trace_cmpd(double a, double b);
void coverage_announce(announcement *counters_init, announcement *pcs_init);

static uint8_t counters[COUNTERS];
static uintptr_t places[2 * COUNTERS]; /* address and flags, which libFuzzer wants for reports */

void __sanitizer_cov_trace_pc(void) {
    uint64_t place = (uint64_t)(uintptr_t)__builtin_return_address(0);
    counters[(place * UINT64_C(0x9E3779B97F4A7C15)) >> 48]++;
}

/* libFuzzer learns nothing from comparisons of floats. */
void __sanitizer_cov_trace_cmpf(float a, float b) { (void)a, (void)b; }
void __sanitizer_cov_trace_cmpd(double a, double b) { (void)a, (void)b; }

/* With libFuzzer's __sanitizer_cov_8bit_counters_init and __sanitizer_cov_pcs_init. */
void coverage_announce(announcement *counters_init, announcement *pcs_init) {
    for (size_t i = 0; i < COUNTERS; i++) {
        places[2 * i] = (uintptr_t)&counters[i];
    }
    counters_init(counters, counters + COUNTERS);
    pcs_init(places, places + 2 * COUNTERS);
}
