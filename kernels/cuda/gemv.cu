// Compiled once for each FORMAT; the number in a kernel's name is the most columns it takes.
#include "gemv.cuh"

KERNEL(JOIN(gemv, FORMAT, 1), GemvParams, GEMV_THREADS) { gemv<FORMAT, 1>(p); }
KERNEL(JOIN(gemv, FORMAT, 2), GemvParams, GEMV_THREADS) { gemv<FORMAT, 2>(p); }
KERNEL(JOIN(gemv, FORMAT, 4), GemvParams, GEMV_THREADS) { gemv<FORMAT, 4>(p); }
KERNEL(JOIN(gemv, FORMAT, 8), GemvParams, GEMV_THREADS) { gemv<FORMAT, 8>(p); }
