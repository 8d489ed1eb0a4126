/* Trigonometric and hyperbolic functions: part 4 of um_kernel_ops.h. */
#define UM_OPS_PART 4
#include "kernels/um_ops.cuh"
