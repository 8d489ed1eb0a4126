/* Planning of launches, with no driver: random shapes and strides, and whether the plan still visits the same elements. */
#include <stdint.h>
#include <stdlib.h>

#include "kernels/um_kernel_plan.h"
#include "um_test.h"

static uint64_t random_state = 88172645463325252u;

static uint64_t random_bits(void) { /* xorshift64 */
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static int64_t random_below(int64_t n) { return (int64_t)(random_bits() >> 1) % n; }

/* --- division ------------------------------------------------------------------------------------------------------------------- */

static void test_divide(void) {
    const uint32_t edges[] = {1,     2,     3,     5,          7,          255,        256,        257,
                              65535, 65536, 65537, 0x3fffffff, 0x40000000, 0x40000001, 0x7ffffffe, 0x7fffffff};
    const size_t count = sizeof edges / sizeof edges[0];
    for (size_t i = 0; i < 200000; i++) {
        const uint32_t d = i < count ? edges[i] : (uint32_t)(random_bits() & 0x7fffffff) >> (random_bits() % 31);
        if (d == 0) {
            continue;
        }
        const um_divisor divisor = um_plan_divisor(d);
        const uint32_t n = (uint32_t)(random_bits() & 0x7fffffff) >> (random_bits() % 31);
        const uint32_t near = n / d * d;
        if (um_divide(n, divisor) != n / d || um_divide(near, divisor) != near / d ||
            (near > 0 && um_divide(near - 1, divisor) != (near - 1) / d) ||
            um_divide(0x7fffffff, divisor) != 0x7fffffff / d) {
            printf("dividing by %u\n", d);
            UM_CHECK(false);
            return;
        }
    }
}

/* --- visiting the same elements --------------------------------------------------------------------------------------------------- */

#define MAX_ELEMENTS 4096

typedef struct visit {
    intptr_t at[UM_KERNEL_OPERANDS];
} visit;

static int compare_visits(const void *a, const void *b) {
    const visit *x = a, *y = b;
    for (int i = UM_KERNEL_OPERANDS - 1; i >= 0; i--) {
        if (x->at[i] != y->at[i]) {
            return x->at[i] < y->at[i] ? -1 : 1;
        }
    }
    return 0;
}

typedef struct visits {
    size_t count;
    visit list[MAX_ELEMENTS];
} visits;

static void add_visits(visits *all, int ndim, const int64_t *shape, const int64_t (*strides)[UM_KERNEL_OPERANDS],
                       visit at) {
    if (ndim == 0) {
        UM_REQUIRE(all->count < MAX_ELEMENTS);
        all->list[all->count++] = at;
        return;
    }
    for (int64_t i = 0; i < shape[ndim - 1]; i++) {
        add_visits(all, ndim - 1, shape, strides, at);
        for (int k = 0; k < UM_KERNEL_OPERANDS; k++) {
            at.at[k] += strides[ndim - 1][k];
        }
    }
}

static void visit_plan(visits *all, const um_plan *plan) {
    visit start = {{0}};
    int64_t strides[UM_PLAN_NDIM][UM_KERNEL_OPERANDS] = {{0}};
    for (int k = 0; k < UM_KERNEL_OPERANDS; k++) {
        if (plan->memory >> k & 1) {
            start.at[k] = (intptr_t)plan->data[k];
            for (int d = 0; d < plan->ndim; d++) {
                strides[d][k] = plan->strides[d][k];
            }
        }
    }
    add_visits(all, plan->ndim, plan->shape, (const int64_t (*)[UM_KERNEL_OPERANDS])strides, start);
}

static um_status visit_part(void *arg, um_plan *part, um_error *err) {
    (void)err;
    UM_CHECK(part->ndim <= 2);
    for (int k = 0; k < UM_KERNEL_OPERANDS; k++) {
        int64_t reach = 0;
        for (int d = 0; d < part->ndim && (part->memory >> k & 1) != 0; d++) {
            reach += (part->shape[d] - 1) * llabs(part->strides[d][k]);
        }
        UM_CHECK(reach <= 1000);
    }
    visit_plan(arg, part);
    return UM_OK;
}

/* Operands of one random call: inputs and, last, the output. */
typedef struct problem {
    int ndim, inputs;
    int64_t shape[UM_MAX_NDIM];
    int64_t strides[UM_KERNEL_OPERANDS][UM_MAX_NDIM];
    um_operand operands[UM_KERNEL_OPERANDS];
    size_t itemsizes[UM_KERNEL_OPERANDS];
} problem;

static void *fake_block = &random_state; /* operands only need to have one */

/* Memory in a random axis order, with random gaps and directions; inputs may be broadcast. */
static void make_operand(problem *p, int slot, bool output) {
    int order[UM_MAX_NDIM];
    for (int d = 0; d < p->ndim; d++) {
        order[d] = p->ndim - 1 - d;
    }
    const bool plain = random_below(3) != 0;
    for (int d = p->ndim - 1; d > 0 && !plain; d--) {
        const int other = (int)random_below(d + 1), swap = order[d];
        order[d] = order[other];
        order[other] = swap;
    }
    int64_t step = (int64_t)p->itemsizes[slot];
    for (int k = 0; k < p->ndim; k++) {
        const int d = order[k];
        step *= random_below(6) == 0 ? 2 : 1;
        p->strides[slot][d] = step * (random_below(8) == 0 ? -1 : 1);
        step *= p->shape[d];
        if (!output && random_below(8) == 0) {
            p->strides[slot][d] = 0;
        }
    }
    p->operands[slot] = (um_operand){
        .block = fake_block,
        .data = (char *)((uintptr_t)(slot + 1) << 40) + 16 * random_below(2) + (random_below(4) == 0 ? 8 : 0),
        .dtype = p->itemsizes[slot] == 4 ? UM_FLOAT32 : UM_FLOAT64,
        .strides = p->strides[slot],
    };
    if (!output && random_below(6) == 0) {
        p->operands[slot].block = NULL;
    }
}

static void make_problem(problem *p) {
    p->ndim = (int)random_below(7);
    p->inputs = (int)random_below(3) + 1;
    int64_t count = 1;
    for (int d = 0; d < p->ndim; d++) {
        p->shape[d] = random_below(4) == 0 ? 1 : random_below(9) + 1;
        if (count * p->shape[d] > MAX_ELEMENTS / 2) {
            p->shape[d] = 1;
        }
        count *= p->shape[d];
    }
    for (int i = 0; i <= p->inputs; i++) {
        const int slot = i < p->inputs ? i : UM_KERNEL_OUT;
        p->itemsizes[slot] = random_below(2) == 0 ? 4 : 8;
        make_operand(p, slot, slot == UM_KERNEL_OUT);
    }
}

static void visit_problem(visits *all, const problem *p) {
    visit start = {{0}};
    int64_t shape[UM_MAX_NDIM];
    int64_t strides[UM_MAX_NDIM][UM_KERNEL_OPERANDS] = {{0}};
    for (int i = 0; i <= p->inputs; i++) {
        const int slot = i < p->inputs ? i : UM_KERNEL_OUT;
        if (p->operands[slot].block != NULL) {
            start.at[slot] = (intptr_t)p->operands[slot].data;
            for (int d = 0; d < p->ndim; d++) {
                strides[p->ndim - 1 - d][slot] = p->strides[slot][d];
            }
        }
    }
    for (int d = 0; d < p->ndim; d++) {
        shape[p->ndim - 1 - d] = p->shape[d];
    }
    add_visits(all, p->ndim, shape, (const int64_t (*)[UM_KERNEL_OPERANDS])strides, start);
}

static bool same_visits(visits *a, visits *b) {
    if (a->count != b->count) {
        return false;
    }
    qsort(a->list, a->count, sizeof a->list[0], compare_visits);
    qsort(b->list, b->count, sizeof b->list[0], compare_visits);
    return memcmp(a->list, b->list, a->count * sizeof a->list[0]) == 0;
}

/* Whether consecutive axes that remain could have been joined. */
static bool is_minimal(const um_plan *plan) {
    for (int d = 0; d + 1 < plan->ndim; d++) {
        bool joins = true;
        for (int k = 0; k < UM_KERNEL_OPERANDS; k++) {
            joins =
                joins && (!(plan->memory >> k & 1) || plan->strides[d + 1][k] == plan->strides[d][k] * plan->shape[d]);
        }
        if (joins) {
            return false;
        }
    }
    return true;
}

static void test_collapse(void) {
    static visits expected, found;
    for (int round = 0; round < 5000; round += um_test_step()) {
        problem p;
        make_problem(&p);
        expected.count = found.count = 0;
        visit_problem(&expected, &p);
        um_plan plan;
        const bool finished =
            um_plan_init(&plan, p.ndim, p.shape, p.operands, p.inputs, &p.operands[UM_KERNEL_OUT], p.itemsizes);
        UM_CHECK(!finished || plan.ndim <= 1);
        um_plan_collapse(&plan, UM_KERNEL_OUT);
        UM_CHECK(is_minimal(&plan));
        visit_plan(&found, &plan);
        UM_REQUIRE(same_visits(&expected, &found));

        found.count = 0; /* cut into parts */
        const um_plan_limits limits = {.ndim = 2, .reach = 1000};
        UM_CHECK(um_plan_for_each_part(&plan, &limits, visit_part, &found, NULL) == UM_OK);
        UM_REQUIRE(same_visits(&expected, &found));
    }
}

static void test_collapses_fully(void) {
    /* A transposed, reversed array with the same layout everywhere is one line. */
    problem p = {.ndim = 3, .inputs = 1, .shape = {4, 5, 6}, .itemsizes = {4, 0, 0, 4}};
    for (int slot = 0; slot <= UM_KERNEL_OUT; slot += UM_KERNEL_OUT) {
        const int64_t strides[3] = {-4, -96, -16};
        memcpy(p.strides[slot], strides, sizeof strides);
        p.operands[slot] =
            (um_operand){.block = fake_block, .data = (char *)0x100000 + 476, .strides = p.strides[slot]};
    }
    um_plan plan;
    UM_CHECK(!um_plan_init(&plan, p.ndim, p.shape, p.operands, 1, &p.operands[UM_KERNEL_OUT], p.itemsizes));
    um_plan_collapse(&plan, UM_KERNEL_OUT);
    UM_CHECK(plan.ndim == 1 && plan.shape[0] == 120 && plan.strides[0][0] == 4 && plan.strides[0][UM_KERNEL_OUT] == 4);
    UM_CHECK(plan.data[0] == (char *)0x100000 && plan.data[UM_KERNEL_OUT] == (char *)0x100000);

    um_elementwise_params params;
    UM_CHECK(um_plan_elementwise(&plan, p.itemsizes, 4, true, &params));
    UM_CHECK(params.ndim == 1 && params.units == 30 && params.tail == 0 && params.strides[0][0] == 16);
    plan.data[0] += 4; /* a GPU faults on misaligned vectors */
    UM_CHECK(!um_plan_elementwise(&plan, p.itemsizes, 4, true, &params));
    UM_CHECK(params.units == 120 && params.strides[0][0] == 4);
}

static void test_row_and_scalar(void) {
    /* matrix + row + scalar in memory: rows of vectors, the scalar read once a unit */
    const int64_t shape[2] = {100, 64}, matrix[2] = {256, 4}, row[2] = {0, 4}, scalar[2] = {0, 0};
    const um_operand inputs[3] = {{.block = fake_block, .data = (char *)0x10000, .strides = matrix},
                                  {.block = fake_block, .data = (char *)0x20000, .strides = row},
                                  {.block = fake_block, .data = (char *)0x30004, .strides = scalar}};
    const um_operand out = {.block = fake_block, .data = (char *)0x40000, .strides = matrix};
    const size_t itemsizes[UM_KERNEL_OPERANDS] = {4, 4, 4, 4};
    um_plan plan;
    UM_CHECK(!um_plan_init(&plan, 2, shape, inputs, 3, &out, itemsizes));
    um_plan_collapse(&plan, UM_KERNEL_OUT);
    um_elementwise_params params;
    UM_CHECK(um_plan_elementwise(&plan, itemsizes, 4, true, &params));
    UM_CHECK(params.ndim == 2 && params.units == 1600 && params.shape[0].value == 16 && params.scalars == 4);
    UM_CHECK(params.strides[0][1] == 16 && params.strides[1][1] == 0 && params.strides[1][0] == 256);
    UM_CHECK(!um_plan_elementwise(&plan, itemsizes, 4, false, &params)); /* for copies */
}

/* --- tiles ------------------------------------------------------------------------------------------------------------------------------ */

/* A transposition of some axis of every length; small plans are not worth tiles, so um_plan_find_transposed only sees the large one. */
static void test_tiles(void) {
    static visits expected, found;
    for (int64_t rows = 1; rows < 70; rows += 3) {
        for (int64_t columns = 1; columns < 40; columns++) {
            for (int axis = 1; axis <= 2; axis++) {
                um_plan plan = {
                    .used = 9, .memory = 9, .ndim = 3, .data = {(char *)0x1000000, NULL, NULL, (char *)0x2000000}};
                const int other = 3 - axis;
                plan.shape[0] = rows;
                plan.shape[axis] = columns;
                plan.shape[other] = 1;
                plan.strides[0][0] = 4 * columns;
                plan.strides[axis][0] = 4;
                plan.strides[other][0] = 4 * rows * columns;
                plan.strides[0][UM_KERNEL_OUT] = 4;
                plan.strides[1][UM_KERNEL_OUT] = 4 * rows;
                plan.strides[2][UM_KERNEL_OUT] = 4 * rows * plan.shape[1];
                um_plan parts[3];
                expected.count = found.count = 0;
                visit_plan(&expected, &plan);
                const int count = um_plan_tile(&plan, axis, 4, parts);
                for (int i = 0; i < count; i++) {
                    visit_plan(&found, &parts[i]);
                }
                UM_REQUIRE(same_visits(&expected, &found));
                UM_CHECK(um_plan_find_transposed(&plan) == 0);
                plan.shape[other] = 1 << 20;
                UM_CHECK(um_plan_find_transposed(&plan) == (rows >= 8 && columns >= 8 ? axis : 0));
            }
        }
    }
}

/* --- copies by bytes ------------------------------------------------------------------------------------------------------------------- */

static void test_resize_items(void) {
    static visits expected, found;
    for (int round = 0; round < 3000; round += um_test_step()) {
        problem p;
        make_problem(&p);
        p.inputs = 1;
        for (int slot = 0; slot <= UM_KERNEL_OUT; slot += UM_KERNEL_OUT) {
            p.itemsizes[slot] = 4;
            make_operand(&p, slot, slot == UM_KERNEL_OUT);
            p.operands[slot].block = fake_block;
            p.operands[slot].data += random_below(4) == 0 ? random_below(16) : 0;
        }
        um_plan plan;
        if (!um_plan_init(&plan, p.ndim, p.shape, p.operands, 1, &p.operands[UM_KERNEL_OUT], p.itemsizes)) {
            um_plan_collapse(&plan, UM_KERNEL_OUT);
        }
        um_plan before = plan;
        const size_t size = um_plan_resize_items(&plan, 4);
        for (int slot = 0; slot <= UM_KERNEL_OUT; slot += UM_KERNEL_OUT) {
            UM_CHECK((uintptr_t)plan.data[slot] % size == 0 || (plan.ndim == 1 && size == 4));
            for (int d = 0; d < plan.ndim; d++) {
                UM_CHECK(plan.strides[d][slot] % (int64_t)size == 0);
            }
        }
        if (um_plan_count(before.ndim, before.shape) * 4 > MAX_ELEMENTS) {
            continue;
        }
        /* byte for byte */
        um_plan *both[2] = {&before, &plan};
        const size_t sizes[2] = {4, size};
        visits *lists[2] = {&expected, &found};
        for (int k = 0; k < 2; k++) {
            um_plan *bytes = both[k];
            bytes->shape[bytes->ndim] = (int64_t)sizes[k];
            for (int i = 0; i < UM_KERNEL_OPERANDS; i++) {
                bytes->strides[bytes->ndim][i] = 1;
            }
            bytes->ndim++;
            lists[k]->count = 0;
            visit_plan(lists[k], bytes);
        }
        UM_REQUIRE(same_visits(&expected, &found));
    }
}

/* --- more elements than one launch takes --------------------------------------------------------------------------------------------- */

typedef struct cover {
    char *next;
    int64_t elements;
    int parts;
} cover;

static um_status cover_part(void *arg, um_plan *part, um_error *err) {
    cover *all = arg;
    (void)err;
    const int64_t count = um_plan_count(part->ndim, part->shape);
    UM_CHECK(count <= UM_KERNEL_MAX_UNITS && (uint64_t)count * 4 <= UM_KERNEL_MAX_REACH + 4 && part->ndim == 1 &&
             part->data[UM_KERNEL_OUT] == all->next);
    UM_CHECK(((uintptr_t)all->next & 15) == 0);
    all->next += count * 4;
    all->elements += count;
    all->parts++;
    return UM_OK;
}

static void test_many_elements(void) {
    const int64_t count = 5000000001, stride = 4;
    const size_t itemsizes[UM_KERNEL_OPERANDS] = {4, 0, 0, 4};
    const um_operand in = {.block = NULL},
                     out = {.block = fake_block, .data = (char *)0x1000000000, .strides = &stride};
    um_plan plan;
    UM_CHECK(um_plan_init(&plan, 1, &count, &in, 1, &out, itemsizes));
    cover all = {.next = out.data};
    const um_plan_limits limits = {.ndim = UM_KERNEL_NDIM, .reach = UM_KERNEL_MAX_REACH};
    UM_CHECK(um_plan_for_each_part(&plan, &limits, cover_part, &all, NULL) == UM_OK);
    UM_CHECK(all.elements == count && all.parts == 8);
}

/* --- ranges and alignment ------------------------------------------------------------------------------------------------------------- */

static void test_range(void) {
    const int64_t shape[2] = {3, 5}, strides[2] = {-40, 8};
    const um_operand operand = {.block = fake_block, .data = (char *)0x1000, .dtype = UM_FLOAT64, .strides = strides};
    char *low;
    size_t size;
    bool dense;
    um_plan_range(&operand, 2, shape, 8, &low, &size, &dense);
    UM_CHECK(low == (char *)0x1000 - 80 && size == 120 && dense);
    const int64_t gaps[2] = {0, 16};
    const um_operand sparse = {.block = fake_block, .data = (char *)0x1000, .dtype = UM_FLOAT64, .strides = gaps};
    um_plan_range(&sparse, 2, shape, 8, &low, &size, &dense);
    UM_CHECK(low == (char *)0x1000 && size == 72 && !dense);
    um_plan_range(&sparse, 0, shape, 8, &low, &size, &dense);
    UM_CHECK(size == 8 && dense);
}

static void test_alignment(void) {
    const int64_t shape[2] = {1, 5}, strides[2] = {3, 8};
    um_operand operand = {.block = fake_block, .data = (char *)0x1000, .dtype = UM_FLOAT64, .strides = strides};
    UM_CHECK(um_kernel_is_aligned(&operand, 2, shape)); /* the odd stride is never walked */
    operand.data += 4;
    UM_CHECK(!um_kernel_is_aligned(&operand, 2, shape));
    operand.dtype = UM_INT32;
    UM_CHECK(um_kernel_is_aligned(&operand, 2, shape));
    const int64_t two[2] = {2, 5};
    UM_CHECK(!um_kernel_is_aligned(&operand, 2, two));
    operand.block = NULL;
    UM_CHECK(um_kernel_is_aligned(&operand, 2, two));
    UM_CHECK(um_plan_alignment(0) == 16 && um_plan_alignment(48) == 16 && um_plan_alignment(6) == 2 &&
             um_plan_alignment(7) == 1);
}

int main(void) {
    UM_RUN(test_divide);
    UM_RUN(test_collapse);
    UM_RUN(test_collapses_fully);
    UM_RUN(test_row_and_scalar);
    UM_RUN(test_tiles);
    UM_RUN(test_resize_items);
    UM_RUN(test_many_elements);
    UM_RUN(test_range);
    UM_RUN(test_alignment);
    return um_test_result();
}
