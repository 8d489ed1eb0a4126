/* Kernels of fake_evaluate.c, for the table in fake_kernels.c. */
#ifndef FAKE_EVALUATE_H
#define FAKE_EVALUATE_H

#include "kernels/um_evaluate_abi.h"

#define FAKE_EVALUATE(name, cell, elements)                                                                            \
    void fake_evaluate_##name(const unsigned grid[3], unsigned block, void **params);
UM_FOR_EACH_EVALUATE(FAKE_EVALUATE)

#endif
