/* Running a program of the register machine (um_evaluate_abi.h) over strided arrays. */
#ifndef UM_KERNEL_EVALUATE_H
#define UM_KERNEL_EVALUATE_H

#include "kernels/um_evaluate_abi.h"
#include "kernels/um_kernel.h"

/* Registers 0, 1, … hold the inputs when the first step runs; the result is that of the last step. */
typedef struct um_program {
    const um_evaluate_step *steps;
    size_t step_count;
    const uint64_t *constants; /* as cells */
    size_t constant_count;
    bool wide;
} um_program;

/* Number of an operation by name: "copy", "where", "f32_sin", "int_to_f32". -1 when there is none. */
int um_evaluate_find(const char *name);

/* An operand of a program: dtype and value of `memory` have no meaning, and it is no immediate. */
typedef struct um_evaluate_array {
    um_operand memory;
    um_evaluate_kind kind;
} um_evaluate_array;

/* out[i] = program(inputs[i]...). Elements are aligned to their size. Inputs may be the same memory as out element for element; other
 * overlap is the caller's to resolve. UM_ERR_VALUE for a program that no machine can run: more inputs, steps, constants or registers
 * than there are, operations and kinds that a narrow one lacks, operands that have no value yet. */
UM_MUST_CHECK um_status um_kernel_evaluate(um_context *ctx, um_stream *stream, const um_program *program, int ndim,
                                           const int64_t *shape, const um_evaluate_array *inputs, int input_count,
                                           const um_evaluate_array *out, bool deferred, um_wait *wait, um_error *err);

#endif
