// Products of each row with the experts that it is given to: a block for as many strips of one
// expert of one row as its warps have parts of. A strip's arithmetic is that of `gemv`, bit for
// bit. Which expert it is stands in device memory, so that launches do not depend on it.
#ifndef OCTAVO_EXPERT_GEMV
#define OCTAVO_EXPERT_GEMV

#include "experts.cuh"
#include "gemv.cuh"

struct ExpertGemvParams {
    Matrix w;          // experts one below the other, each beginning with a strip
    const u8* x;       // (inputs) in gemv's form
    const float* ids;  // (rows, used)
    float* out;        // (rows, used, n)
    u32 n;             // rows of an expert
    u32 experts;
    u32 sharing;  // neighbours in `ids` that have one input
    u32 unused;
};
static_assert(sizeof(ExpertGemvParams) == 88, "kernels/src/cuda/params.rs has the same");

template <class F>
DEVICE void expert_gemv(const ExpertGemvParams& p) {
    SHARED(float, sums, [MAX_PARTS][GEMV_WARPS][STRIP]);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 parts = parts_of(p.w.units), across = GEMV_WARPS / parts;
    const u32 strips = (p.n + STRIP - 1) / STRIP;
    const u32 choice = blockIdx.x, first = blockIdx.y * across;
    const u32 expert = place(p.ids[choice], p.experts);
    constexpr int pieces = F::FLOAT ? FLOAT_PIECES : INTEGER_PIECES;
    const u8* x = activation_piece(p.x, choice / p.sharing, pieces, 0, p.w.units, 0);
    const u32 part = warp % parts, strip = least(first + warp / parts, strips - 1);
    float mine[1];
    strip_part<F, 1>(mine, p.w, x, 1, expert * strips + strip, part, parts);
    constexpr u32 lanes = WARP / STRIP;
    if (lane % lanes == 0) sums[part][warp / parts][lane / lanes] = mine[0];
    __syncthreads();
    const u32 row = first * STRIP + threadIdx.x;
    if (threadIdx.x >= across * STRIP || row >= p.n) return;
    float value = sums[0][threadIdx.x / STRIP][threadIdx.x % STRIP];
    for (u32 i = 1; i < parts; ++i) value += sums[i][threadIdx.x / STRIP][threadIdx.x % STRIP];
    p.out[static_cast<u64>(choice) * p.n + row] = value;
}

#endif
