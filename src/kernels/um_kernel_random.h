/* Filling memory with random numbers, which are a function of um_draw_params and of nothing else: on a GPU or on the host. */
#ifndef UM_KERNEL_RANDOM_H
#define UM_KERNEL_RANDOM_H

#include "kernels/um_kernel.h"
#include "kernels/um_random_draws.h"

typedef enum um_draw {
#define UM_DRAW_ENUMERATOR(name, type, lanes) UM_DRAW_##name,
    UM_FOR_EACH_DRAW(UM_DRAW_ENUMERATOR)
#undef UM_DRAW_ENUMERATOR
        UM_DRAW_COUNT,
} um_draw;

size_t um_draw_itemsize(um_draw draw);
/* Sets `range`, and the threshold that follows from it: 1 to 2^32 numbers; UM_DRAW_integers_wide: any, 0 for 2^64. */
void um_draw_set_range(um_draw_params *params, um_draw draw, uint64_t range);

/* On the GPU. params->out, aligned to the itemsize, and the elements behind it are in `block`. `vectors` is set here. */
UM_MUST_CHECK um_status um_kernel_random(um_context *ctx, um_stream *stream, um_draw draw, um_draw_params *params,
                                         um_block *block, bool deferred, um_wait *wait, um_error *err);
/* On the host, in this thread. */
void um_random_fill(um_draw draw, const um_draw_params *params);
/* The same with instructions that every processor has: what um_random_fill comes to where there are no better ones. */
void um_random_fill_plainly(um_draw draw, const um_draw_params *params);

#endif
