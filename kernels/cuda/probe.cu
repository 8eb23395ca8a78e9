// What the tensor cores reach when nothing keeps them waiting: products of registers alone.
#include "compat.cuh"

struct PeakParams {
    float* out;  // (blocks, threads)
    u32 rounds;
    u32 unused;
};
static_assert(sizeof(PeakParams) == 16, "kernels/src/cuda/params.rs has the same");

constexpr u32 PEAK_THREADS = 256;
// Independent sums, so that no product waits for the one before.
constexpr u32 SUMS = 8;

// Factors are ones: a thread's sum is 16 for each round, sum and element of it, and what the sums
// begin with: each with another number, or a compiler might make one product of all, which have the
// same factors.
KERNEL(mma_peak, PeakParams, PEAK_THREADS) {
    const u32 ones = 0x3c003c00u, a[4] = {ones, ones, ones, ones};
    float sums[SUMS][4];
#pragma unroll
    for (u32 i = 0; i < SUMS; ++i) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) sums[i][e] = static_cast<float>(i);
    }
    for (u32 round = 0; round < p.rounds; ++round) {
#pragma unroll
        for (u32 i = 0; i < SUMS; ++i) mma_f16(sums[i], a, ones, ones);
    }
    float total = 0.0f;
#pragma unroll
    for (u32 i = 0; i < SUMS; ++i) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) total += sums[i][e];
    }
    p.out[blockIdx.x * PEAK_THREADS + threadIdx.x] = total;
}
