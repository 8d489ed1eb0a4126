/* Arithmetic and rounding: part 1 of um_kernel_ops.h. */
#define UM_OPS_PART 1
#include "kernels/um_ops.cuh"
