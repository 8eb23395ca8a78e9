// What an RMS norm multiplies a group of values with, by all threads of a block: how many those are
// follows from the group's size (`norm_threads` in kernels/src/cuda/launch.rs), so that a group's
// numbers are the same wherever it is normed.
#ifndef OCTAVO_NORM
#define OCTAVO_NORM

#include "compat.cuh"

constexpr u32 NORM_THREADS = 1024;

// From what each thread has of the sum of squares: those of values threadIdx.x, threadIdx.x +
// blockDim.x and so on.
DEVICE float norm_scale_of(float sum, u32 n, float eps) {
    SHARED(float, sums, [NORM_THREADS / WARP]);
    sum = lanes_sum<32>(sum);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = 0.0f;
    for (u32 i = 0; i < blockDim.x / WARP; ++i) sum += sums[i];
    return 1.0f / sqrtf(sum / static_cast<float>(n) + eps);
}

DEVICE float norm_scale(const float* x, u32 n, float eps) {
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
    return norm_scale_of(sum, n, eps);
}

#endif
