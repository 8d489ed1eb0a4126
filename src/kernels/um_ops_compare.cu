/* Comparison, logic, bits, and the larger and the smaller: part 2 of um_kernel_ops.h. */
#define UM_OPS_PART 2
#include "kernels/um_ops.cuh"
