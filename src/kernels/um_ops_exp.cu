/* Division of integers, powers, exponentials and logarithms: part 3 of um_kernel_ops.h. */
#define UM_OPS_PART 3
#include "kernels/um_ops.cuh"
