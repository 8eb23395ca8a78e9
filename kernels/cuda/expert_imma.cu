// Compiled once for each FORMAT of codes and PART, the most choices of a block; the numbers in a
// kernel's name are the rows and the most choices of a block.
#include "expert_imma.cuh"

#if TAKES(1)
KERNEL(JOIN(expert_imma, FORMAT, 32_8), ExpertImmaParams, IMMA_THREADS) {
    expert_imma<FORMAT, 2, 1>(p);
}
KERNEL(JOIN(expert_imma, FORMAT, 64_8), ExpertImmaParams, IMMA_THREADS) {
    expert_imma<FORMAT, 4, 1>(p);
}
#endif
#if TAKES(2)
KERNEL(JOIN(expert_imma, FORMAT, 32_16), ExpertImmaParams, IMMA_THREADS) {
    expert_imma<FORMAT, 2, 2>(p);
}
KERNEL(JOIN(expert_imma, FORMAT, 64_16), ExpertImmaParams, IMMA_THREADS) {
    expert_imma<FORMAT, 4, 2>(p);
}
#endif
