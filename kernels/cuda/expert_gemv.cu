// Compiled once for each FORMAT.
#include "expert_gemv.cuh"

KERNEL(JOIN(expert_gemv, FORMAT, 1), ExpertGemvParams, GEMV_THREADS) { expert_gemv<FORMAT>(p); }
