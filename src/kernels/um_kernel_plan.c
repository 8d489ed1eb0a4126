/* Planning of launches: no driver, no context, only arithmetic on shapes and strides. */
#include "kernels/um_kernel_plan.h"

#include <assert.h>
#include <string.h>

#define SLOTS           UM_KERNEL_OPERANDS
#define HAS(mask, slot) (((mask) >> (slot) & 1u) != 0)

int64_t um_plan_count(int ndim, const int64_t *shape) {
    int64_t count = 1;
    for (int d = 0; d < ndim; d++) {
        count *= shape[d];
    }
    return count;
}

unsigned um_plan_alignment(uint64_t x) {
    x |= UM_VECTOR_BYTES;
    return (unsigned)(x & (~x + 1));
}

um_divisor um_plan_divisor(uint32_t value) {
    assert(value > 0 && value <= UM_KERNEL_MAX_UNITS);
    uint32_t shift = 0;
    while (((uint64_t)1 << shift) < value) {
        shift++;
    }
    const uint64_t magic = (((uint64_t)1 << 32) * (((uint64_t)1 << shift) - value)) / value + 1;
    return (um_divisor){.value = value, .magic = (uint32_t)magic, .shift = shift};
}

bool um_kernel_is_aligned(const um_operand *operand, int ndim, const int64_t *shape) {
    if (operand->block == NULL) {
        return true;
    }
    uint64_t bits = (uint64_t)(uintptr_t)operand->data;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] > 1) {
            bits |= (uint64_t)operand->strides[d];
        }
    }
    return (bits & (um_dtype_size(operand->dtype) - 1)) == 0;
}

void um_plan_range(const um_operand *operand, int ndim, const int64_t *shape, size_t itemsize, char **low, size_t *size,
                   bool *dense) {
    int64_t before = 0, after = 0, bytes = (int64_t)itemsize;
    for (int d = 0; d < ndim; d++) {
        const int64_t stride = operand->strides[d];
        if (stride < 0) {
            before += (shape[d] - 1) * stride;
        } else {
            after += (shape[d] - 1) * stride;
        }
        if (stride != 0) {
            bytes *= shape[d];
        }
    }
    *low = operand->data + before;
    *size = (size_t)(after - before) + itemsize;
    *dense = (size_t)bytes == *size;
}

/* --- building ------------------------------------------------------------------------------------------------------ */

static void set_operand(um_plan *plan, int slot, const um_operand *operand) {
    plan->used |= 1u << slot;
    if (operand->block != NULL) {
        plan->memory |= 1u << slot;
        plan->data[slot] = operand->data;
    } else {
        plan->data[slot] = NULL;
    }
}

typedef enum layout { LAYOUT_OTHER, LAYOUT_PACKED, LAYOUT_SINGLE } layout;

static layout find_layout(const um_operand *operand, int ndim, const int64_t *shape, size_t itemsize) {
    if (operand->block == NULL) {
        return LAYOUT_SINGLE;
    }
    bool packed = true, single = true;
    int64_t expected = (int64_t)itemsize;
    for (int d = ndim - 1; d >= 0; d--) {
        if (shape[d] > 1) {
            packed = packed && operand->strides[d] == expected;
            single = single && operand->strides[d] == 0;
            expected *= shape[d];
        }
    }
    return packed ? LAYOUT_PACKED : single ? LAYOUT_SINGLE : LAYOUT_OTHER;
}

bool um_plan_init(um_plan *plan, int ndim, const int64_t *shape, const um_operand *inputs, int input_count,
                  const um_operand *out, const size_t *itemsizes) {
    const um_operand *operands[SLOTS] = {NULL};
    bool flat = true;
    plan->used = plan->memory = 0;
    for (int i = 0; i < SLOTS; i++) {
        const um_operand *operand = i == UM_KERNEL_OUT ? out : i < input_count ? &inputs[i] : NULL;
        if (operand == NULL) {
            continue;
        }
        operands[i] = operand;
        set_operand(plan, i, operand);
        const layout found = flat ? find_layout(operand, ndim, shape, itemsizes[i]) : LAYOUT_OTHER;
        flat = found != LAYOUT_OTHER;
        plan->strides[0][i] = found == LAYOUT_PACKED ? (int64_t)itemsizes[i] : 0;
    }
    if (flat) {
        const int64_t count = um_plan_count(ndim, shape);
        plan->ndim = count > 1 ? 1 : 0;
        plan->shape[0] = count;
        return true;
    }
    plan->ndim = 0;
    for (int d = ndim - 1; d >= 0; d--) {
        if (shape[d] == 1) {
            continue;
        }
        plan->shape[plan->ndim] = shape[d];
        for (int i = 0; i < SLOTS; i++) {
            plan->strides[plan->ndim][i] = HAS(plan->memory, i) ? operands[i]->strides[d] : 0;
        }
        plan->ndim++;
    }
    return false;
}

/* --- collapsing ------------------------------------------------------------------------------------------------------ */

static uint64_t magnitude(int64_t stride) { return stride < 0 ? (uint64_t)0 - (uint64_t)stride : (uint64_t)stride; }

/* Turns an axis around if no operand walks it forwards and one walks it backwards. */
static void turn_axis(um_plan *plan, int d) {
    bool backwards = false;
    for (int i = 0; i < SLOTS; i++) {
        if (HAS(plan->memory, i)) {
            if (plan->strides[d][i] > 0) {
                return;
            }
            backwards = backwards || plan->strides[d][i] < 0;
        }
    }
    if (!backwards) {
        return;
    }
    for (int i = 0; i < SLOTS; i++) {
        if (HAS(plan->memory, i)) {
            plan->data[i] += (plan->shape[d] - 1) * plan->strides[d][i];
            plan->strides[d][i] = -plan->strides[d][i];
        }
    }
}

static bool belongs_inside(const um_plan *plan, const int64_t *a, const int64_t *b, int primary) {
    const int order[SLOTS + 1] = {primary, UM_KERNEL_OUT, 0, 1, 2};
    for (int k = 0; k < SLOTS + 1; k++) {
        const int i = order[k];
        if (HAS(plan->memory, i) && magnitude(a[i]) != magnitude(b[i])) {
            return magnitude(a[i]) < magnitude(b[i]);
        }
    }
    return false;
}

static void sort_axes(um_plan *plan, int primary) {
    for (int d = 1; d < plan->ndim; d++) { /* insertion: few axes, mostly in order */
        const int64_t length = plan->shape[d];
        int64_t strides[SLOTS];
        memcpy(strides, plan->strides[d], sizeof strides);
        int to = d;
        while (to > 0 && belongs_inside(plan, strides, plan->strides[to - 1], primary)) {
            plan->shape[to] = plan->shape[to - 1];
            memcpy(plan->strides[to], plan->strides[to - 1], sizeof strides);
            to--;
        }
        plan->shape[to] = length;
        memcpy(plan->strides[to], strides, sizeof strides);
    }
}

static bool can_join(const um_plan *plan, int inner, int outer) {
    for (int i = 0; i < SLOTS; i++) {
        if (HAS(plan->memory, i) && plan->strides[outer][i] != plan->strides[inner][i] * plan->shape[inner]) {
            return false;
        }
    }
    return true;
}

void um_plan_collapse(um_plan *plan, int primary) {
    for (int d = 0; d < plan->ndim; d++) {
        turn_axis(plan, d);
    }
    sort_axes(plan, primary);
    int last = 0;
    for (int d = 1; d < plan->ndim; d++) {
        if (can_join(plan, last, d)) {
            plan->shape[last] *= plan->shape[d];
        } else {
            last++;
            plan->shape[last] = plan->shape[d];
            memcpy(plan->strides[last], plan->strides[d], sizeof plan->strides[d]);
        }
    }
    if (plan->ndim > 0) {
        plan->ndim = last + 1;
    }
}

static void insert_axis(um_plan *plan, int d, int64_t length, const int64_t strides[SLOTS]) {
    const size_t after = (size_t)(plan->ndim - d);
    assert(plan->ndim < UM_PLAN_NDIM);
    memmove(plan->shape + d + 1, plan->shape + d, after * sizeof plan->shape[0]);
    memmove(plan->strides + d + 1, plan->strides + d, after * sizeof plan->strides[0]);
    plan->shape[d] = length;
    memcpy(plan->strides[d], strides, SLOTS * sizeof strides[0]);
    plan->ndim++;
}

static void remove_axis(um_plan *plan, int d) {
    const size_t after = (size_t)(plan->ndim - d - 1);
    memmove(plan->shape + d, plan->shape + d + 1, after * sizeof plan->shape[0]);
    memmove(plan->strides + d, plan->strides + d + 1, after * sizeof plan->strides[0]);
    plan->ndim--;
}

size_t um_plan_resize_items(um_plan *plan, size_t itemsize) {
    bool contiguous = plan->ndim > 0;
    uint64_t bits = 0; /* or of all that the size must divide */
    for (int i = 0; i < SLOTS; i++) {
        if (HAS(plan->memory, i)) {
            contiguous = contiguous && plan->strides[0][i] == (int64_t)itemsize;
            bits |= (uint64_t)(uintptr_t)plan->data[i];
        }
    }
    if (contiguous && plan->ndim == 1 && um_plan_alignment(bits) == UM_VECTOR_BYTES) {
        return itemsize;
    }
    for (int d = contiguous ? 1 : 0; d < plan->ndim; d++) {
        for (int i = 0; i < SLOTS; i++) {
            bits |= HAS(plan->memory, i) ? (uint64_t)plan->strides[d][i] : 0;
        }
    }
    /* From here on the innermost axis is made of bytes. */
    const int64_t bytes = (int64_t)itemsize * (contiguous ? plan->shape[0] : 1);
    const size_t size = um_plan_alignment(bits | (uint64_t)bytes);
    if (contiguous) {
        remove_axis(plan, 0);
    }
    if (bytes > (int64_t)size) {
        int64_t strides[SLOTS];
        for (int i = 0; i < SLOTS; i++) {
            strides[i] = HAS(plan->memory, i) ? (int64_t)size : 0;
        }
        insert_axis(plan, 0, bytes / (int64_t)size, strides);
    }
    return size;
}

/* --- tiles ---------------------------------------------------------------------------------------------------------------- */

static void move_data(um_plan *plan, int d, int64_t steps) {
    for (int i = 0; i < SLOTS; i++) {
        if (HAS(plan->memory, i)) {
            plan->data[i] += steps * plan->strides[d][i];
        }
    }
}

#define SECTOR     32 /* bytes that memory moves at least */
#define TILE_BYTES 64 /* of a tile along the output's contiguous axis; of 16, 32, 64 and 128 the fastest on an H200 */
#define TILE_FROM  (1 << 16) /* elements; below, launching costs more than reading */

int um_plan_find_transposed(const um_plan *plan) {
    if (plan->ndim < 2 || plan->ndim + 2 > UM_KERNEL_NDIM || um_plan_count(plan->ndim, plan->shape) < TILE_FROM) {
        return 0;
    }
    for (int i = 0; i < UM_KERNEL_OUT; i++) {
        if (!HAS(plan->memory, i) || magnitude(plan->strides[0][i]) < SECTOR) {
            continue;
        }
        for (int d = 1; d < plan->ndim; d++) {
            const uint64_t stride = magnitude(plan->strides[d][i]);
            if (stride > 0 && stride < SECTOR && plan->shape[d] >= 8 && plan->shape[0] >= 8) {
                return d;
            }
        }
    }
    return 0;
}

/* Replaces axis d by two: the inner one, of `length`, at position `to` <= d. */
static void split_axis(um_plan *plan, int d, int to, int64_t length) {
    const int64_t outer = plan->shape[d] / length;
    int64_t inner_strides[SLOTS];
    memcpy(inner_strides, plan->strides[d], sizeof inner_strides);
    if (outer > 1) {
        plan->shape[d] = outer;
        for (int i = 0; i < SLOTS; i++) {
            plan->strides[d][i] = HAS(plan->memory, i) ? inner_strides[i] * length : 0;
        }
    } else {
        remove_axis(plan, d);
    }
    insert_axis(plan, to, length, inner_strides);
}

static int64_t power_at_most(int64_t power, int64_t n) {
    while (power > n) {
        power /= 2;
    }
    return power;
}

int um_plan_tile(const um_plan *plan, int axis, size_t itemsize, um_plan parts[3]) {
    const int64_t inner = power_at_most(TILE_BYTES / (int64_t)itemsize, plan->shape[0]);
    const int64_t across = power_at_most((int64_t)UM_PLAN_TILE / inner, plan->shape[axis]);
    const int64_t whole_inner = plan->shape[0] / inner * inner, whole_across = plan->shape[axis] / across * across;
    int count = 1;
    parts[0] = *plan;
    parts[0].shape[0] = whole_inner;
    parts[0].shape[axis] = whole_across;
    split_axis(&parts[0], axis, axis, across);
    if (axis > 1) { /* the tile's axes become the innermost two */
        int64_t strides[SLOTS];
        /* cppcheck-suppress arrayIndexOutOfBoundsCond ; it takes split_axis's loop bound for a value of axis */
        memcpy(strides, parts[0].strides[axis], sizeof strides);
        remove_axis(&parts[0], axis);
        insert_axis(&parts[0], 1, across, strides);
    }
    split_axis(&parts[0], 0, 0, inner);
    if (whole_inner > inner) { /* order: inner, across, what is left of the innermost axis, the others */
        int64_t strides[SLOTS];
        const int64_t length = parts[0].shape[1];
        memcpy(strides, parts[0].strides[1], sizeof strides);
        remove_axis(&parts[0], 1);
        insert_axis(&parts[0], 2, length, strides);
    }
    if (whole_inner < plan->shape[0]) {
        parts[count] = *plan;
        parts[count].shape[0] -= whole_inner;
        move_data(&parts[count], 0, whole_inner);
        count++;
    }
    if (whole_across < plan->shape[axis]) {
        parts[count] = *plan;
        parts[count].shape[0] = whole_inner;
        parts[count].shape[axis] -= whole_across;
        move_data(&parts[count], axis, whole_across);
        count++;
    }
    return count;
}

/* --- cutting ----------------------------------------------------------------------------------------------------------- */

static int find_shortest(const um_plan *plan) {
    int found = plan->ndim - 1;
    for (int d = plan->ndim - 2; d >= 0; d--) {
        found = plan->shape[d] < plan->shape[found] ? d : found;
    }
    return found;
}

static int find_longest(const um_plan *plan) {
    int found = plan->ndim - 1;
    for (int d = plan->ndim - 2; d >= 0; d--) {
        found = plan->shape[d] > plan->shape[found] ? d : found;
    }
    return found;
}

static uint64_t axis_reach(const um_plan *plan, int d, int slot) {
    return (uint64_t)(plan->shape[d] - 1) * magnitude(plan->strides[d][slot]);
}

/* The axis along which an operand that exceeds `reach` extends most; -1 when none does. */
static int find_farthest(const um_plan *plan, uint64_t reach) {
    for (int i = 0; i < SLOTS; i++) {
        uint64_t sum = 0;
        int found = 0;
        for (int d = 0; d < plan->ndim && HAS(plan->memory, i); d++) {
            sum += axis_reach(plan, d, i);
            found = axis_reach(plan, d, i) > axis_reach(plan, found, i) ? d : found;
        }
        if (sum > reach) {
            return found;
        }
    }
    return -1;
}

/* The axis to cut, and the length of the pieces; false when the plan is within the limits. */
static bool find_cut(const um_plan *plan, const um_plan_limits *limits, int *axis, int64_t *step) {
    if (plan->ndim > limits->ndim) {
        *axis = find_shortest(plan); /* the fewest launches */
        *step = 1;
        return true;
    }
    *axis = find_farthest(plan, limits->reach);
    if (*axis < 0) {
        if (um_plan_count(plan->ndim, plan->shape) <= UM_KERNEL_MAX_UNITS) {
            return false;
        }
        *axis = find_longest(plan);
    }
    /* Halves, the first of a length that keeps alignment where that is possible. */
    const int64_t length = plan->shape[*axis];
    const int64_t half = (length / 2 + (1 << 20)) >> 20 << 20;
    *step = half < length ? half : length / 2;
    return true;
}

um_status um_plan_for_each_part(um_plan *plan, const um_plan_limits *limits, um_plan_part each, void *arg,
                                um_error *err) {
    int axis;
    int64_t step;
    if (!find_cut(plan, limits, &axis, &step)) {
        return each(arg, plan, err);
    }
    const int64_t length = plan->shape[axis];
    for (int64_t first = 0; first < length; first += step) {
        um_plan part = *plan;
        move_data(&part, axis, first);
        part.shape[axis] = length - first < step ? length - first : step;
        if (part.shape[axis] == 1) {
            remove_axis(&part, axis);
        }
        const um_status status = um_plan_for_each_part(&part, limits, each, arg, err);
        if (status != UM_OK) {
            return status;
        }
    }
    return UM_OK;
}

/* --- parameters of elementwise kernels ------------------------------------------------------------------------------------ */

static bool can_use_vectors(const um_plan *part, const size_t *itemsizes, unsigned lanes, bool scalars,
                            uint32_t *scalar_mask) {
    if (lanes <= 1 || part->ndim == 0 || part->shape[0] < (int64_t)lanes ||
        (part->ndim > 1 && part->shape[0] % (int64_t)lanes != 0)) {
        return false;
    }
    for (int i = 0; i < SLOTS; i++) {
        if (!HAS(part->memory, i)) {
            continue;
        }
        if (part->strides[0][i] == 0 && scalars && i != UM_KERNEL_OUT) {
            *scalar_mask |= 1u << i;
            continue;
        }
        if (part->strides[0][i] != (int64_t)itemsizes[i]) {
            return false;
        }
        uint64_t bits = (uint64_t)(uintptr_t)part->data[i];
        for (int d = 1; d < part->ndim; d++) {
            bits |= (uint64_t)part->strides[d][i];
        }
        const uint64_t unit = itemsizes[i] * lanes;
        if ((bits & ((unit < UM_VECTOR_BYTES ? unit : UM_VECTOR_BYTES) - 1)) != 0) {
            return false;
        }
    }
    return true;
}

/* Where an operand starts, and how far below its first element it goes. */
static void set_start(um_elementwise_params *params, const um_plan *part, int slot) {
    uint64_t below = 0;
    for (int d = 0; d < part->ndim; d++) {
        if (part->strides[d][slot] < 0) {
            below += axis_reach(part, d, slot);
        }
    }
    params->low[slot] = part->data[slot] - below;
    params->start[slot] = (uint32_t)below;
}

bool um_plan_elementwise(const um_plan *part, const size_t *itemsizes, unsigned lanes, bool scalars,
                         um_elementwise_params *params) {
    uint32_t scalar_mask = 0;
    const bool vectors = can_use_vectors(part, itemsizes, lanes, scalars, &scalar_mask);
    const int64_t unit = vectors ? (int64_t)lanes : 1;
    params->scalars = vectors ? scalar_mask : 0;
    params->immediates = part->used & ~part->memory;
    params->ndim = part->ndim > 0 ? (uint32_t)part->ndim : 1;
    params->tail = part->ndim > 0 ? (uint32_t)(part->shape[0] % unit) : 0;
    params->shape[0] = (um_divisor){.value = 1};
    memset(params->strides[0], 0, sizeof params->strides[0]);
    int64_t units = 1;
    for (int d = 0; d < part->ndim; d++) {
        const int64_t length = d == 0 ? part->shape[0] / unit : part->shape[d];
        units *= length;
        /* The outermost axis is what is left after the divisions by the others. */
        params->shape[d] =
            d + 1 < part->ndim ? um_plan_divisor((uint32_t)length) : (um_divisor){.value = (uint32_t)length};
        for (int i = 0; i < SLOTS; i++) {
            const int64_t stride = HAS(part->memory, i) ? part->strides[d][i] : 0;
            params->strides[d][i] = (uint32_t)(uint64_t)(d == 0 ? stride * unit : stride);
        }
    }
    params->units = (uint32_t)units;
    for (int i = 0; i < SLOTS; i++) {
        if (HAS(part->memory, i)) {
            set_start(params, part, i);
        } else {
            params->low[i] = NULL;
            params->start[i] = 0;
        }
    }
    return vectors;
}
