// What an RMS norm multiplies a group of values with, by all threads of a block: how many those are
// follows from the group's size (`norm_threads` in kernels/src/cuda/launch.rs), so that a group's
// numbers are the same wherever it is normed.
#ifndef OCTAVO_NORM
#define OCTAVO_NORM

#include "compat.cuh"

constexpr u32 NORM_THREADS = 1024;
// Threads of blocks that norm a row each, and do a part of what comes behind it.
constexpr u32 NORM_PART = 256;

DEVICE float norm_scale_of_sum(float sum, u32 n, float eps) {
    return 1.0f / sqrtf(sum / static_cast<float>(n) + eps);
}

// From what each thread has of the sum of squares: those of values threadIdx.x, threadIdx.x +
// blockDim.x and so on.
DEVICE float norm_scale_of(float sum, u32 n, float eps) {
    SHARED(float, sums, [NORM_THREADS / WARP]);
    sum = lanes_sum<32>(sum);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = 0.0f;
    for (u32 i = 0; i < blockDim.x / WARP; ++i) sum += sums[i];
    return norm_scale_of_sum(sum, n, eps);
}

// The same number by one warp, of a group that is short enough for it.
DEVICE float norm_scale_by_warp(const float* x, u32 n, float eps) {
    float sum = 0.0f;
    for (u32 i = threadIdx.x % WARP; i < n; i += WARP) sum = fmaf(x[i], x[i], sum);
    return norm_scale_of_sum(lanes_sum<32>(sum), n, eps);
}

// Threads that norm a group of `n` values: a warp for the short ones, the heads.
DEVICE u32 norm_threads(u32 n) { return n <= 256 ? WARP : n <= 2048 ? 256 : NORM_THREADS; }

// The same number by a block of NORM_PART threads, each of which stands for several.
DEVICE float norm_scale_by_part(const float* x, u32 n, float eps) {
    constexpr u32 places = NORM_THREADS / NORM_PART;
    SHARED(float, sums, [NORM_THREADS / WARP]);
    const u32 threads = norm_threads(n);
    float sum[places] = {};
    for (u32 first = threadIdx.x; first < n; first += threads) {
#pragma unroll
        for (u32 i = 0; i < places; ++i) {
            const u32 at = first + i * NORM_PART;
            const bool mine = threadIdx.x + i * NORM_PART < threads && at < n;
            if (mine) sum[i] = fmaf(x[at], x[at], sum[i]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < places; ++i) {
        sum[i] = lanes_sum<32>(sum[i]);
        if (threadIdx.x % WARP == 0) sums[(threadIdx.x + i * NORM_PART) / WARP] = sum[i];
    }
    __syncthreads();
    float all = 0.0f;
    for (u32 i = 0; i < threads / WARP; ++i) all += sums[i];
    return norm_scale_of_sum(all, n, eps);
}

DEVICE float norm_scale(const float* x, u32 n, float eps) {
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
    return norm_scale_of(sum, n, eps);
}

#endif
