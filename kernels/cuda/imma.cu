// Compiled once for each FORMAT of codes and PART, the most columns of a block; the numbers in a
// kernel's name are the rows and the most columns of a block.
#include "imma.cuh"

#if TAKES(1)
KERNEL(JOIN(imma, FORMAT, 32_8), GemvParams, IMMA_THREADS) { imma<FORMAT, 2, 1>(p); }
KERNEL(JOIN(imma, FORMAT, 64_8), GemvParams, IMMA_THREADS) { imma<FORMAT, 4, 1>(p); }
#endif
#if TAKES(2)
KERNEL(JOIN(imma, FORMAT, 32_16), GemvParams, IMMA_THREADS) { imma<FORMAT, 2, 2>(p); }
KERNEL(JOIN(imma, FORMAT, 64_16), GemvParams, IMMA_THREADS) { imma<FORMAT, 4, 2>(p); }
#endif
