/* Philox's published answers, and the loops of the host against one element at a time as this file's own compiler flags make it. */
#include "kernels/um_kernel_random.h"
#include "um_test.h"

static bool is_philox(uint64_t key, uint64_t low, uint64_t high, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    const uint32_t words[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    uint32_t out[4];
    um_philox(words, low, high, out);
    return out[0] == a && out[1] == b && out[2] == c && out[3] == d;
}

static void known_answers(void) {
    UM_CHECK(is_philox(0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
    UM_CHECK(is_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
    UM_CHECK(is_philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
                       0x24126ea1));
}

#define MOST 1001

#define DEFINE_ELEMENTWISE(name, type, lanes)                                                                          \
    static void make_##name(const um_draw_params *p) {                                                                 \
        for (uint64_t i = 0; i < p->count; i++) {                                                                      \
            type x[lanes];                                                                                             \
            um_draw_##name(p, i / (lanes), x);                                                                         \
            memcpy(p->out + i * sizeof(type), &x[i % (lanes)], sizeof(type));                                          \
        }                                                                                                              \
    }
UM_FOR_EACH_DRAW(DEFINE_ELEMENTWISE)

#define ENTRY(name, type, lanes) make_##name,
static void (*const makers[UM_DRAW_COUNT])(const um_draw_params *) = {UM_FOR_EACH_DRAW(ENTRY)};

static bool fills_alike(um_draw draw, uint64_t count, uint64_t counter, uint64_t range) {
    static char filled[(MOST + 2) * 8], plain[(MOST + 2) * 8], made[(MOST + 2) * 8];
    const size_t itemsize = um_draw_itemsize(draw);
    um_draw_params params = {.count = count, .counter = counter, .key = {7, 8}, .shift = 0.1, .scale = 3, .low = 5};
    um_draw_set_range(&params, draw, range);
    memset(filled, 0x55, sizeof filled);
    memset(plain, 0x55, sizeof plain);
    memset(made, 0x55, sizeof made);
    params.out = filled + itemsize;
    um_random_fill(draw, &params);
    params.out = plain + itemsize;
    um_random_fill_plainly(draw, &params);
    params.out = made + itemsize;
    makers[draw](&params);
    return memcmp(filled, made, sizeof filled) == 0 && memcmp(plain, made, sizeof plain) == 0;
}

static void host_loops(void) {
    const uint64_t counts[] = {0, 1, 2, 3, 4, 5, 63, 64, MOST}, counters[] = {0, UINT32_MAX - 1, UINT64_MAX - 1};
    const uint64_t ranges[] = {1, 3, ((uint64_t)1 << 31) + 1, (uint64_t)1 << 32};
    const uint64_t wide[] = {0, 3, ((uint64_t)1 << 63) + 1, UINT64_MAX};
    for (int draw = 0; draw < UM_DRAW_COUNT; draw++) {
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            for (size_t j = 0; j < 3 * 4; j++) {
                const uint64_t range = draw == UM_DRAW_integers_wide ? wide[j % 4] : ranges[j % 4];
                UM_CHECK(fills_alike((um_draw)draw, counts[i], counters[j / 4], range));
            }
        }
    }
}

/* Steps of the logarithm's and the square root's splitting, where a wrong exponent would show. */
static void radii(void) {
    UM_CHECK(um_minus_two_log_f32(0x7fffffff) == 0 && um_minus_two_log_f64(0x1p53 - 1) == 0);
    UM_CHECK(fabs(um_minus_two_log_f32(0) - 64 * log(2)) < 1e-5);
    UM_CHECK(fabs(um_minus_two_log_f64(0) - 108 * log(2)) < 1e-13);
    for (double u = 0x1p-31; u < 1; u *= 1.0001) {
        const uint32_t whole = (uint32_t)(u * 0x1p31);
        const double expected = -2 * log((float)((float)whole + 0.5f) * 0x1p-31), found = um_minus_two_log_f32(whole);
        UM_CHECK(found >= 0 && fabs(found - expected) <= 3e-7 * expected);
    }
    for (double u = 0x1p-53; u < 1; u *= 1.0001) {
        const double whole = floor(u * 0x1p53), expected = -2 * log((whole + 0.5) * 0x1p-53);
        const double found = um_minus_two_log_f64(whole);
        UM_CHECK(found >= 0 && fabs(found - expected) <= 6e-16 * expected);
    }
}

int main(void) {
    UM_RUN(known_answers);
    UM_RUN(host_loops);
    UM_RUN(radii);
    return um_test_result();
}
