/* Sums, products, sums of squares, counts. */
#include "kernels/um_reduce.cuh"

UM_FOR_EACH_TOTAL(UM_DEFINE_REDUCE)
