// Compiled once for each FORMAT.
#include "gemm.cuh"

KERNEL(JOIN(gemm, FORMAT, f16), GemmParams, GEMM_THREADS) { gemm<FORMAT>(p); }
