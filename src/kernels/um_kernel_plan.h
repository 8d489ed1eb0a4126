/* From NumPy-style operands to what a kernel takes: fewer dimensions, in the best order, cut to what one launch covers. */
#ifndef UM_KERNEL_PLAN_H
#define UM_KERNEL_PLAN_H

#include "kernels/um_kernel.h"
#include "kernels/um_kernel_abi.h"

#define UM_PLAN_NDIM (UM_MAX_NDIM + 1) /* um_plan_as_bytes adds a dimension */

/* Dimensions innermost first, lengths > 0, strides in bytes. Operand slots are those of the kernels' parameters: inputs from 0,
 * the output at UM_KERNEL_OUT. Slots that are not in `used` have no meaning. */
typedef struct um_plan {
    unsigned used;   /* bit per slot */
    unsigned memory; /* the used slots that are no immediates */
    int ndim;        /* 0: one element */
    int64_t shape[UM_PLAN_NDIM];
    int64_t strides[UM_PLAN_NDIM][UM_KERNEL_OPERANDS];
    char *data[UM_KERNEL_OPERANDS]; /* first element; NULL for immediates */
} um_plan;

/* Number of elements; 0 when an axis is empty. */
int64_t um_plan_count(int ndim, const int64_t *shape);

/* Bytes between the first and the last byte that an operand touches; no axis is empty. *dense: none in between is left out (assuming
 * that elements do not overlap except by a stride of 0). */
void um_plan_range(const um_operand *operand, int ndim, const int64_t *shape, size_t itemsize, char **low, size_t *size,
                   bool *dense);

/* Starts a plan without empty axes. inputs may be NULL when input_count is 0. itemsizes has one entry per slot. When every operand is
 * in C order without gaps, or one value, the plan has one dimension (or none), at little cost. Else axes of length 1 are left out, and
 * um_plan_collapse makes the best of the others. Returns whether it is finished. */
bool um_plan_init(um_plan *plan, int ndim, const int64_t *shape, const um_operand *inputs, int input_count,
                  const um_operand *out, const size_t *itemsizes);

/* Turns axes that run backwards in every operand, puts small strides innermost (those of `primary` decide, then of the output, then of
 * the inputs), and joins axes that every operand walks through as one. */
void um_plan_collapse(um_plan *plan, int primary);

/* For copies: rewrites a plan of elements of `itemsize` bytes (a power of two) as one of elements as large as contiguity and alignment
 * allow, up to 16 bytes, and returns their size. All operands have this itemsize. A one-dimensional plan that can be moved 16
 * bytes at a time keeps its itemsize. */
size_t um_plan_resize_items(um_plan *plan, size_t itemsize);

/* Where an operand's contiguous axis is not the innermost one, as in a transposition, threads in the order of the output would use a
 * few bytes of each sector that they read. um_plan_find_transposed gives that axis, or 0 when there is none (or it would not pay);
 * um_plan_tile then makes up to three plans that together do the work of this one: the first visits tiles of UM_PLAN_TILE elements that use
 * whole sectors of every operand, the others do the borders. The plan has been collapsed. Returns the number of plans. */
#define UM_PLAN_TILE (UM_KERNEL_BLOCK * UM_ELEMENTWISE_UNROLL)
int um_plan_find_transposed(const um_plan *plan);
int um_plan_tile(const um_plan *plan, int axis, size_t itemsize, um_plan parts[3]);

/* What one launch covers. */
typedef struct um_plan_limits {
    int ndim;
    uint64_t reach; /* bytes between the first bytes of the lowest and the highest element, in every operand */
} um_plan_limits;

/* Calls `each` with parts of the plan that are within the limits and have at most UM_KERNEL_MAX_UNITS elements. Stops at the first
 * failure. `each` may alter its part. */
typedef um_status (*um_plan_part)(void *arg, um_plan *part, um_error *err);
UM_MUST_CHECK um_status um_plan_for_each_part(um_plan *plan, const um_plan_limits *limits, um_plan_part each, void *arg,
                                              um_error *err);

/* Fills the parameters for one part; immediates are left to the caller. `lanes` is the number of elements of a *_vec unit, 1 for none;
 * `scalars` allows operands that have one value per unit. Returns whether the *_vec kernel is to be used. */
bool um_plan_elementwise(const um_plan *part, const size_t *itemsizes, unsigned lanes, bool scalars,
                         um_elementwise_params *params);

/* Largest power of two that divides x, at most 16; 16 for 0. */
unsigned um_plan_alignment(uint64_t x);
um_divisor um_plan_divisor(uint32_t value); /* 1 to UM_KERNEL_MAX_UNITS */

#endif
