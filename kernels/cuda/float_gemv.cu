// Compiled once for each FORMAT of floats; those of codes have `imma` for so many columns.
#include "gemv.cuh"

KERNEL_OF(JOIN(gemv, FORMAT, 16), GemvParams, GEMV_THREADS, 2) { gemv<FORMAT, 16>(p); }
