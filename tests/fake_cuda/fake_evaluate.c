/* The register machine of um_evaluate.cu on the host, element by element, as literally as fake_kernels.c. Its operations are those of the
 * header that the CUDA kernel uses. */
#include "fake_evaluate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "kernels/um_evaluate_math.h"
#include "kernels/um_evaluate_trig.h"

typedef struct machine {
    uint32_t cell, elements, registers;
} machine;

static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "fake CUDA driver: evaluate: %s\n", what);
        abort();
    }
}

/* --- operations -------------------------------------------------------------------------------------------------------------- */

static float as_f32(uint64_t cell) {
    const uint32_t bits = (uint32_t)cell;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double as_f64(uint64_t cell) {
    double x;
    memcpy(&x, &cell, sizeof x);
    return x;
}

static uint64_t of_f32(float x) { return um_f32_bits(x); }
static uint64_t of_f64(double x) { return um_f64_bits(x); }

/* Integers are signed, and a narrow machine's fill the low half of the cell. */
static uint64_t of_i32(int32_t x) { return (uint32_t)x; }
static uint64_t of_i64(int64_t x) { return (uint64_t)x; }
static int32_t as_i32(uint64_t cell) { return (int32_t)(uint32_t)cell; }
static int64_t as_i64(uint64_t cell) { return (int64_t)cell; }

#define CASE(op, from, to, value)                                                                                      \
    case op: {                                                                                                         \
        const T a = from(x), b = from(y);                                                                              \
        (void)a, (void)b;                                                                                              \
        *result = to(value);                                                                                           \
        break;                                                                                                         \
    }

static bool apply_f32(uint32_t op, uint64_t x, uint64_t y, uint64_t *result) {
    typedef float T;
    switch (op) {
#define FN(name)          name##f
#define HELP(name)        um_f32_##name
#define OP(name, value)   CASE(UM_EVALUATE_F32_##name, as_f32, of_f32, value)
#define TEST(name, value) CASE(UM_EVALUATE_F32_##name, as_f32, of_i64, value)
        UM_EVALUATE_FLOAT_OPS(OP)
        UM_EVALUATE_FLOAT_TESTS(TEST)
#undef FN
#undef HELP
#undef OP
#undef TEST
        CASE(UM_EVALUATE_F32_TO_F64, as_f32, of_f64, (double)a)
    default: return false;
    }
    return true;
}

static bool apply_f64(uint32_t op, uint64_t x, uint64_t y, uint64_t *result) {
    typedef double T;
    switch (op) {
#define FN(name)          name
#define HELP(name)        um_f64_##name
#define OP(name, value)   CASE(UM_EVALUATE_F64_##name, as_f64, of_f64, value)
#define TEST(name, value) CASE(UM_EVALUATE_F64_##name, as_f64, of_i64, value)
        UM_EVALUATE_FLOAT_OPS(OP)
        UM_EVALUATE_FLOAT_TESTS(TEST)
#undef FN
#undef HELP
#undef OP
#undef TEST
        CASE(UM_EVALUATE_F64_TO_F32, as_f64, of_f32, (float)a)
    default: return false;
    }
    return true;
}

#define OP(name, value) CASE(UM_EVALUATE_INT_##name, AS, OF, value)

static bool apply_i32(uint32_t op, uint64_t x, uint64_t y, uint64_t *result) {
    typedef int32_t T;
    typedef uint32_t U;
    switch (op) {
#define AS         as_i32
#define OF         of_i32
#define HELP(name) um_i32_##name
        UM_EVALUATE_INT_OPS(OP)
        CASE(UM_EVALUATE_INT_TO_F32, as_i32, of_f32, (float)a)
#undef AS
#undef OF
#undef HELP
    default: return false;
    }
    return true;
}

static bool apply_i64(uint32_t op, uint64_t x, uint64_t y, uint64_t *result) {
    typedef int64_t T;
    typedef uint64_t U;
    switch (op) {
#define AS         as_i64
#define OF         of_i64
#define HELP(name) um_i64_##name
        UM_EVALUATE_INT_OPS(OP)
        UM_EVALUATE_WIDE_INT_OPS(OP)
        CASE(UM_EVALUATE_INT_TO_F32, as_i64, of_f32, (float)a)
        CASE(UM_EVALUATE_INT_TO_F64, as_i64, of_f64, (double)a)
#undef AS
#undef OF
#undef HELP
    default: return false;
    }
    return true;
}

/* --- running ------------------------------------------------------------------------------------------------------------------ */

/* What the element's memory and registers are. */
typedef struct element {
    uint64_t registers[UM_EVALUATE_REGISTERS];
    bool written[UM_EVALUATE_REGISTERS];
    uint64_t previous;
} element;

static uint64_t fetch(const um_evaluate_params *p, const element *e, uint32_t code) {
    if (code == UM_EVALUATE_PREVIOUS) {
        return e->previous;
    }
    if (code >= UM_EVALUATE_CONSTANT) {
        require(code - UM_EVALUATE_CONSTANT < UM_EVALUATE_CONSTANTS, "no such constant");
        return p->constants[code - UM_EVALUATE_CONSTANT];
    }
    require(code < UM_EVALUATE_REGISTERS && e->written[code], "a register is read before it is written");
    return e->registers[code];
}

static void run_step(const um_evaluate_params *p, const machine *m, element *e, const um_evaluate_step *step) {
    const uint64_t b = step->b == UM_EVALUATE_NONE ? 0 : fetch(p, e, step->b), a = fetch(p, e, step->a);
    if (step->op == UM_EVALUATE_COPY) {
        e->previous = a;
    } else if (step->op == UM_EVALUATE_WHERE) {
        require(step->c != UM_EVALUATE_PREVIOUS, "where: third operand");
        e->previous = a != 0 ? b : fetch(p, e, step->c);
    } else {
        require(m->cell == 8 || step->op < UM_EVALUATE_NARROW_COUNT, "an operation of wide machines");
        require(apply_f32(step->op, a, b, &e->previous) || apply_f64(step->op, a, b, &e->previous) ||
                    (m->cell == 8 ? apply_i64 : apply_i32)(step->op, a, b, &e->previous),
                "no such operation");
    }
    if (step->store != UM_EVALUATE_NONE) {
        require(step->store < m->registers, "more registers than the machine has");
        e->registers[step->store] = e->previous;
        e->written[step->store] = true;
    }
}

static uint64_t load(const char *from, uint32_t kind) {
    uint64_t bits = 0;
    memcpy(&bits, from, um_evaluate_kind_size(kind)); /* little-endian */
    switch (kind) {
    case UM_EVALUATE_I8: return (uint64_t)(int64_t)(int8_t)bits;
    case UM_EVALUATE_I16: return (uint64_t)(int64_t)(int16_t)bits;
    case UM_EVALUATE_I32: return (uint64_t)(int64_t)(int32_t)bits;
    default: return bits;
    }
}

/* Touches an operand and checks its addresses; what its address is for the "GPU". */
static char *use(const um_evaluate_params *p, uint32_t slot) {
    const uint32_t size = um_evaluate_kind_size(p->kinds[slot]);
    const um_evaluate_operand *o = &p->operands[slot];
    const uint32_t unit = o->strides[0] == 0 && slot != UM_EVALUATE_OUT ? size : size * p->lanes;
    int64_t low = 0, high = unit;
    uint64_t bits = (uint64_t)(uintptr_t)o->data;
    for (uint32_t d = 0; d < p->ndim; d++) {
        const int64_t reach = (int64_t)(p->shape[d].value - 1) * o->strides[d];
        *(reach < 0 ? &low : &high) += reach;
        bits |= p->shape[d].value > 1 ? (uint64_t)o->strides[d] : 0;
    }
    require((bits & (unit - 1)) == 0, "misaligned address");
    require(p->lanes == 1 || p->shape[0].value == 1 || o->strides[0] == unit || o->strides[0] == 0, "gaps in a vector");
    fakecu_touch(o->data + low, (size_t)(high - low), slot == UM_EVALUATE_OUT);
    return (char *)fakecu_translate(o->data + low) - low;
}

static int64_t locate(const um_evaluate_params *p, uint32_t slot, uint32_t unit) {
    int64_t offset = 0;
    for (uint32_t d = 0; d < p->ndim; d++) {
        uint32_t index = unit;
        if (d + 1 < p->ndim) {
            unit = um_divide(unit, p->shape[d]);
            index -= unit * p->shape[d].value;
        }
        offset += (int64_t)index * p->operands[slot].strides[d];
    }
    return offset;
}

static void run(const um_evaluate_params *p, const machine *m, const unsigned grid[3], unsigned block) {
    char *data[UM_EVALUATE_INPUTS + 1];
    uint64_t units = 1;
    require(block == UM_KERNEL_BLOCK, "block size");
    require(p->inputs <= UM_EVALUATE_INPUTS && p->steps >= 1 && p->steps <= UM_EVALUATE_STEPS, "bad program");
    require(p->ndim >= 1 && p->ndim <= UM_EVALUATE_NDIM && p->units <= UM_KERNEL_MAX_UNITS, "bad shape");
    require(p->lanes == 1 || p->lanes == UM_VECTOR_BYTES / m->cell, "lanes");
    for (uint32_t d = 0; d < p->ndim; d++) {
        units *= p->shape[d].value;
    }
    require(units == p->units && (uint64_t)grid[0] * m->elements * block >= units * p->lanes, "bad number of units");
    for (uint32_t i = 0; i <= UM_EVALUATE_INPUTS; i++) {
        if (i < p->inputs || i == UM_EVALUATE_OUT) {
            require(p->kinds[i] < (m->cell == 8 ? UM_EVALUATE_KIND_COUNT : UM_EVALUATE_B64), "kind of an operand");
            data[i] = use(p, i);
        }
    }
    for (uint32_t unit = 0; unit < p->units; unit++) {
        for (uint32_t lane = 0; lane < p->lanes; lane++) {
            element e = {.previous = 0};
            for (uint32_t i = 0; i < p->inputs; i++) {
                const bool repeated = p->operands[i].strides[0] == 0;
                const uint32_t size = um_evaluate_kind_size(p->kinds[i]);
                e.registers[i] = load(data[i] + locate(p, i, unit) + (repeated ? 0 : lane * size), p->kinds[i]);
                e.written[i] = true;
            }
            for (uint32_t s = 0; s < p->steps; s++) {
                run_step(p, m, &e, &p->program[s]);
            }
            const uint32_t size = um_evaluate_kind_size(p->kinds[UM_EVALUATE_OUT]);
            memcpy(data[UM_EVALUATE_OUT] + locate(p, UM_EVALUATE_OUT, unit) + lane * size, &e.previous, size);
        }
    }
}

#define DEFINE(name, cell, elements)                                                                                   \
    void fake_evaluate_##name(const unsigned grid[3], unsigned block, void **params) {                                 \
        const machine m = {cell, elements, UM_EVALUATE_MACHINE_REGISTERS(cell, elements)};                             \
        run(params[0], &m, grid, block);                                                                               \
    }
UM_FOR_EACH_EVALUATE(DEFINE)
