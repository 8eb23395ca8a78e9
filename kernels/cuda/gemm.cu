// Compiled once for each FORMAT; the number in a kernel's name is the tokens, and the rows, of a
// tile.
#include "gemm.cuh"

KERNEL_OF(JOIN(gemm, FORMAT, 64), GemmParams, GEMM_THREADS, 2) { gemm<FORMAT, 64, 64, 2>(p); }
KERNEL_OF(JOIN(gemm, FORMAT, 128), GemmParams, GEMM_THREADS, blocks_of<FORMAT>()) {
    gemm<FORMAT, 128, 128, 2>(p);
}
