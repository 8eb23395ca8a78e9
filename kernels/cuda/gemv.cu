// Compiled once for each FORMAT; the number in a kernel's name is the most columns it takes. Of
// those for one column three blocks run beside each other: on an H200 a gate and what it gates of
// 12,288 rows of 4,096 take 15.8 us so, 22.4 with two blocks that read ahead, and 18.8 with four.
#include "gemv.cuh"

KERNEL_OF(JOIN(gemv, FORMAT, 1), GemvParams, GEMV_THREADS, 3) { gemv<FORMAT, 1>(p); }
KERNEL_OF(JOIN(gemv, FORMAT, 2), GemvParams, GEMV_THREADS, 2) { gemv<FORMAT, 2>(p); }
KERNEL_OF(JOIN(gemv, FORMAT, 4), GemvParams, GEMV_THREADS, 2) { gemv<FORMAT, 4>(p); }
KERNEL_OF(JOIN(gemv, FORMAT, 8), GemvParams, GEMV_THREADS, 2) { gemv<FORMAT, 8>(p); }
