/* Minima, and their places. */
#include "kernels/um_reduce.cuh"

UM_FOR_EACH_MIN(UM_DEFINE_REDUCE, min)
UM_FOR_EACH_MIN(UM_DEFINE_REDUCE, argmin)
