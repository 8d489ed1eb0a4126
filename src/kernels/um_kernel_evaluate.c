/* Programs of the register machine: checks, the plan of their launches, the launches. */
#include "kernels/um_kernel_evaluate.h"

#include <string.h>

#include "kernels/um_kernel_call.h"

#define SLOTS (UM_EVALUATE_INPUTS + 1)
#define OUT   UM_EVALUATE_OUT

/* --- operations ---------------------------------------------------------------------------------------------------------- */

static const char *const op_names[UM_EVALUATE_OP_COUNT] = {
    [UM_EVALUATE_COPY] = "copy",
    [UM_EVALUATE_WHERE] = "where",
#define X(name, value) [UM_EVALUATE_F32_##name] = "f32_" #name,
    UM_EVALUATE_FLOAT_OPS(X) UM_EVALUATE_FLOAT_TESTS(X)
#undef X
#define X(name, value) [UM_EVALUATE_F64_##name] = "f64_" #name,
        UM_EVALUATE_FLOAT_OPS(X) UM_EVALUATE_FLOAT_TESTS(X)
#undef X
#define X(name, value) [UM_EVALUATE_INT_##name] = "int_" #name,
            UM_EVALUATE_INT_OPS(X) UM_EVALUATE_WIDE_INT_OPS(X)
#undef X
                [UM_EVALUATE_INT_TO_F32] = "int_to_f32",
    [UM_EVALUATE_INT_TO_F64] = "int_to_f64",
    [UM_EVALUATE_F32_TO_F64] = "f32_to_f64",
    [UM_EVALUATE_F64_TO_F32] = "f64_to_f32",
};

int um_evaluate_find(const char *name) {
    for (int op = 0; op < UM_EVALUATE_OP_COUNT; op++) {
        if (op_names[op] != NULL && strcmp(op_names[op], name) == 0) {
            return op;
        }
    }
    return -1;
}

/* --- checks ---------------------------------------------------------------------------------------------------------------- */

static bool is_constant(uint8_t code) { return code >= UM_EVALUATE_CONSTANT && code < UM_EVALUATE_PREVIOUS; }

/* Whether an operand has a value when the step runs. `written`: bit per register. */
static bool has_value(const um_program *program, size_t step, uint8_t code, uint32_t written) {
    if (is_constant(code)) {
        return (size_t)code - UM_EVALUATE_CONSTANT < program->constant_count;
    }
    if (code == UM_EVALUATE_PREVIOUS) {
        return step > 0;
    }
    return code < UM_EVALUATE_REGISTERS && (written >> code & 1) != 0;
}

/* The number of registers in use; -1 for a program that cannot run. */
static int check_steps(const um_program *program, int input_count) {
    uint32_t written = ((uint32_t)1 << input_count) - 1;
    const int ops = program->wide ? UM_EVALUATE_OP_COUNT : UM_EVALUATE_NARROW_COUNT;
    for (size_t s = 0; s < program->step_count; s++) {
        const um_evaluate_step *step = &program->steps[s];
        const bool where = step->op == UM_EVALUATE_WHERE;
        if (step->op >= ops || op_names[step->op] == NULL || !has_value(program, s, step->a, written)) {
            return -1;
        }
        if (!has_value(program, s, step->b, written) && (where || step->b != UM_EVALUATE_NONE)) {
            return -1;
        }
        if (where ? step->c == UM_EVALUATE_PREVIOUS || !has_value(program, s, step->c, written)
                  : step->c != UM_EVALUATE_NONE) {
            return -1;
        }
        if (step->store != UM_EVALUATE_NONE) {
            if (step->store >= UM_EVALUATE_REGISTERS) {
                return -1;
            }
            written |= (uint32_t)1 << step->store;
        }
    }
    int registers = 0;
    while (written >> registers != 0) {
        registers++;
    }
    return registers;
}

static bool is_aligned(const um_evaluate_array *array, int ndim, const int64_t *shape) {
    uint64_t bits = (uint64_t)(uintptr_t)array->memory.data;
    for (int d = 0; d < ndim; d++) {
        bits |= shape[d] > 1 ? (uint64_t)array->memory.strides[d] : 0;
    }
    return (bits & (um_evaluate_kind_size(array->kind) - 1)) == 0;
}

static bool fits(const um_program *program, const um_evaluate_array *array, int ndim, const int64_t *shape) {
    const uint32_t widest = program->wide ? UM_EVALUATE_KIND_COUNT : UM_EVALUATE_B64;
    return (uint32_t)array->kind < widest && is_aligned(array, ndim, shape);
}

/* --- the plan ---------------------------------------------------------------------------------------------------------------- */

/* As um_plan, for more operands: dimensions innermost first. */
typedef struct plan {
    int ndim;
    int64_t shape[UM_MAX_NDIM];
    int64_t strides[UM_MAX_NDIM][SLOTS];
    char *data[SLOTS];
} plan;

typedef struct work {
    um_call call;
    const um_program *program;
    int slots[SLOTS]; /* in use, the output's last */
    int slot_count;
    uint32_t kinds[SLOTS];
    int kernel;        /* number of the machine */
    unsigned elements; /* of a thread */
    unsigned cell_size;
} work;

static uint64_t magnitude(int64_t stride) { return stride < 0 ? (uint64_t)0 - (uint64_t)stride : (uint64_t)stride; }

/* Small strides of the output innermost, equal ones by those of the inputs. */
static bool belongs_inside(const work *w, const int64_t *a, const int64_t *b) {
    for (int k = w->slot_count - 1; k >= 0; k--) {
        const int i = w->slots[k];
        if (magnitude(a[i]) != magnitude(b[i])) {
            return magnitude(a[i]) < magnitude(b[i]);
        }
    }
    return false;
}

static void turn_axis(const work *w, plan *p, int d) {
    if (p->strides[d][OUT] >= 0) {
        return;
    }
    for (int k = 0; k < w->slot_count; k++) {
        const int i = w->slots[k];
        p->data[i] += (p->shape[d] - 1) * p->strides[d][i];
        p->strides[d][i] = -p->strides[d][i];
    }
}

static bool can_join(const work *w, const plan *p, int inner, int outer) {
    for (int k = 0; k < w->slot_count; k++) {
        const int i = w->slots[k];
        if (p->strides[outer][i] != p->strides[inner][i] * p->shape[inner]) {
            return false;
        }
    }
    return true;
}

static void make_plan(const work *w, plan *p, int ndim, const int64_t *shape, const um_operand *const operands[SLOTS]) {
    p->ndim = 0;
    for (int k = 0; k < w->slot_count; k++) {
        p->data[w->slots[k]] = operands[w->slots[k]]->data;
    }
    for (int axis = ndim - 1; axis >= 0; axis--) {
        if (shape[axis] == 1) {
            continue;
        }
        int64_t strides[SLOTS] = {0};
        for (int k = 0; k < w->slot_count; k++) {
            strides[w->slots[k]] = operands[w->slots[k]]->strides[axis];
        }
        int to = p->ndim++;
        for (; to > 0 && belongs_inside(w, strides, p->strides[to - 1]); to--) {
            p->shape[to] = p->shape[to - 1];
            memcpy(p->strides[to], p->strides[to - 1], sizeof strides);
        }
        p->shape[to] = shape[axis];
        memcpy(p->strides[to], strides, sizeof strides);
    }
    int last = 0;
    for (int d = 0; d < p->ndim; d++) {
        turn_axis(w, p, d);
        if (d > 0 && can_join(w, p, last, d)) {
            p->shape[last] *= p->shape[d];
        } else if (d > 0) {
            last++;
            p->shape[last] = p->shape[d];
            memcpy(p->strides[last], p->strides[d], sizeof p->strides[d]);
        }
    }
    p->ndim = p->ndim > 0 ? last + 1 : 0;
}

/* --- launches ---------------------------------------------------------------------------------------------------------------- */

static bool can_use_vectors(const work *w, const plan *p, unsigned lanes) {
    if (p->ndim == 0 || p->shape[0] < (int64_t)lanes || (p->ndim > 1 && p->shape[0] % (int64_t)lanes != 0)) {
        return false;
    }
    for (int k = 0; k < w->slot_count; k++) {
        const int i = w->slots[k];
        const uint32_t size = um_evaluate_kind_size(w->kinds[i]);
        if (p->strides[0][i] == 0 && i != OUT) {
            continue;
        }
        uint64_t bits = (uint64_t)(uintptr_t)p->data[i];
        for (int d = 1; d < p->ndim; d++) {
            bits |= (uint64_t)p->strides[d][i];
        }
        if (p->strides[0][i] != (int64_t)size || (bits & (size * lanes - 1)) != 0) {
            return false;
        }
    }
    return true;
}

static um_status launch(work *w, um_evaluate_params *params, const plan *p, unsigned lanes, um_error *err) {
    int64_t units = 1;
    params->lanes = lanes;
    params->ndim = p->ndim > 0 ? (uint32_t)p->ndim : 1;
    params->shape[0] = (um_divisor){.value = 1};
    for (int d = 0; d < p->ndim; d++) {
        const int64_t length = d == 0 ? p->shape[0] / (int64_t)lanes : p->shape[d];
        units *= length;
        params->shape[d] =
            d + 1 < p->ndim ? um_plan_divisor((uint32_t)length) : (um_divisor){.value = (uint32_t)length};
    }
    for (int k = 0; k < w->slot_count; k++) {
        um_evaluate_operand *operand = &params->operands[w->slots[k]];
        operand->data = p->data[w->slots[k]];
        operand->strides[0] = 0;
        for (int d = 0; d < p->ndim; d++) {
            operand->strides[d] = p->strides[d][w->slots[k]] * (d == 0 ? (int64_t)lanes : 1);
        }
    }
    params->units = (uint32_t)units;
    const uint32_t tile = UM_KERNEL_BLOCK * w->elements / lanes;
    return um_call_launch(&w->call, UM_SLOT_EVALUATE + w->kernel, params, (params->units - 1) / tile + 1, 1, err);
}

static um_status launch_flat(work *w, um_evaluate_params *params, plan *p, um_error *err) {
    const unsigned lanes = UM_VECTOR_BYTES / w->cell_size;
    if (!can_use_vectors(w, p, lanes)) {
        return launch(w, params, p, 1, err);
    }
    um_status status = launch(w, params, p, lanes, err);
    const int64_t rest = p->shape[0] % (int64_t)lanes; /* of one dimension: its last elements */
    if (status != UM_OK || rest == 0) {
        return status;
    }
    for (int k = 0; k < w->slot_count; k++) {
        p->data[w->slots[k]] += (p->shape[0] - rest) * p->strides[0][w->slots[k]];
    }
    p->shape[0] = rest;
    return launch(w, params, p, 1, err);
}

static um_status launch_parts(work *w, um_evaluate_params *params, const plan *whole, um_error *err) {
    const bool deep = whole->ndim > UM_EVALUATE_NDIM;
    plan part = *whole;
    if (!deep && um_plan_count(whole->ndim, whole->shape) <= UM_KERNEL_MAX_UNITS) {
        return launch_flat(w, params, &part, err);
    }
    /* The outermost axis one by one, or the longest in pieces whose length keeps alignment. */
    int axis = whole->ndim - 1;
    for (int d = 0; d < whole->ndim && !deep; d++) {
        axis = whole->shape[d] > whole->shape[axis] ? d : axis;
    }
    const int64_t length = whole->shape[axis];
    const int64_t step = deep ? 1 : (length / 2 + 15) / 16 * 16;
    for (int64_t first = 0; first < length; first += step) {
        part = *whole;
        part.shape[axis] = length - first < step ? length - first : step;
        for (int k = 0; k < w->slot_count; k++) {
            part.data[w->slots[k]] += first * whole->strides[axis][w->slots[k]];
        }
        part.ndim -= deep ? 1 : 0;
        const um_status status = launch_parts(w, params, &part, err);
        if (status != UM_OK) {
            return status;
        }
    }
    return UM_OK;
}

/* --- the call ---------------------------------------------------------------------------------------------------------------- */

/* The machine with the most elements a thread that has as many registers. */
static void choose_machine(work *w, int registers) {
    static const struct {
        unsigned cell_size, elements;
    } machines[] = {
#define X(name, cell, count) {cell, count},
        UM_FOR_EACH_EVALUATE(X)
#undef X
    };
    w->cell_size = w->program->wide ? 8 : 4;
    for (int i = 0; i < (int)(sizeof machines / sizeof machines[0]); i++) {
        const uint32_t size = UM_EVALUATE_REGISTER_BYTES(machines[i].cell_size, machines[i].elements);
        if (machines[i].cell_size == w->cell_size && (uint32_t)registers * size <= UM_EVALUATE_SHARED_BYTES) {
            w->kernel = i;
            w->elements = machines[i].elements;
            w->call.shared_bytes = (uint32_t)registers * size;
            return;
        }
    }
}

static um_status refuse(um_error *err, const char *what) {
    return um_error_set(err, UM_ERR_VALUE, "evaluate: %s", what);
}

um_status um_kernel_evaluate(um_context *ctx, um_stream *stream, const um_program *program, int ndim,
                             const int64_t *shape, const um_evaluate_array *inputs, int input_count,
                             const um_evaluate_array *out, bool deferred, um_wait *wait, um_error *err) {
    *wait = UM_WAIT_NONE;
    if (program->step_count == 0 || program->step_count > UM_EVALUATE_STEPS ||
        program->constant_count > UM_EVALUATE_CONSTANTS || input_count < 0 || input_count > UM_EVALUATE_INPUTS) {
        return refuse(err, "too many steps, constants or inputs, or no step");
    }
    const int registers = check_steps(program, input_count);
    if (registers < 0) {
        return refuse(err, "a step that the machine cannot run");
    }
    work w = {.program = program};
    const um_operand *operands[SLOTS] = {NULL};
    um_status status = um_call_init(&w.call, ctx, stream, err);
    if (status != UM_OK) {
        return status;
    }
    for (int i = 0; i <= input_count; i++) {
        const um_evaluate_array *array = i < input_count ? &inputs[i] : out;
        const int slot = i < input_count ? i : OUT;
        if (!fits(program, array, ndim, shape)) {
            return refuse(err, "an operand of a type that the machine lacks, or not aligned to its size");
        }
        operands[slot] = &array->memory;
        w.slots[w.slot_count++] = slot;
        w.kinds[slot] = array->kind;
    }
    if (um_plan_count(ndim, shape) == 0) {
        return UM_OK;
    }
    for (int k = 0; k < w.slot_count; k++) {
        const int slot = w.slots[k];
        um_call_add_operand(&w.call, operands[slot], ndim, shape, um_evaluate_kind_size(w.kinds[slot]), slot == OUT);
    }
    choose_machine(&w, registers);
    um_evaluate_params params = {.inputs = (uint32_t)input_count, .steps = (uint32_t)program->step_count};
    for (int k = 0; k < w.slot_count; k++) {
        params.kinds[w.slots[k]] = (uint8_t)w.kinds[w.slots[k]];
    }
    memcpy(params.program, program->steps, program->step_count * sizeof program->steps[0]);
    if (program->constant_count > 0) {
        memcpy(params.constants, program->constants, program->constant_count * sizeof program->constants[0]);
    }
    plan p;
    make_plan(&w, &p, ndim, shape, operands);
    status = um_call_begin(&w.call, err);
    if (status != UM_OK) {
        return status;
    }
    return um_call_end(&w.call, launch_parts(&w, &params, &p, err), deferred, wait, err);
}
