// Products of each row with the experts that it is given to: a block for eight strips of one expert
// of one row, a warp for each. A strip's arithmetic is that of `gemv`, bit for bit. Which expert it
// is stands in device memory, so that launches do not depend on it.
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
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 choice = blockIdx.x, strip = blockIdx.y * GEMV_WARPS + warp;
    const u32 strips = (p.n + STRIP - 1) / STRIP;
    // whole warps, and nobody waits for them
    if (strip >= strips) return;
    const u32 expert = place(p.ids[choice], p.experts);
    GemvParams one = {};
    constexpr int pieces = F::FLOAT ? FLOAT_PIECES : INTEGER_PIECES;
    one.x = activation_piece(p.x, choice / p.sharing, pieces, 0, p.w.units, 0);
    one.columns = 1;
    const float value = strip_product<F, 1>(p.w, one, expert * strips + strip);
    const u32 row = strip * STRIP + lane;
    if (lane < STRIP && row < p.n) p.out[static_cast<u64>(choice) * p.n + row] = value;
}

#endif
