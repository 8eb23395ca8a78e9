// Compiled once for each FORMAT and PART, a size of tiles; the numbers in a kernel's name are the
// rows and the tokens of a tile. Empty for GPUs whose warps multiply by themselves.
#include "wide_gemm.cuh"

#if !defined(__CUDACC_RTC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#if TAKES(1)
KERNEL(JOIN(wide_gemm, FORMAT, 128_256), GemmParams, 256) { wide_gemm<FORMAT, 2, 256>(p); }
#endif
#if TAKES(2)
KERNEL(JOIN(wide_gemm, FORMAT, 128_128), GemmParams, 256) { wide_gemm<FORMAT, 2, 128>(p); }
#endif
#if TAKES(3)
KERNEL(JOIN(wide_gemm, FORMAT, 64_128), GemmParams, 128) { wide_gemm<FORMAT, 1, 128>(p); }
#endif
#endif
