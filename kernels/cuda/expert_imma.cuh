// Products of rows with the experts that they are given to, for three rows and more: prompts and
// batches. Choices of one expert are multiplied together, 8 or 16 at a time, so that its weights
// are read once for all of them. The results have the bits of `expert_gemv`, those of `gemv`.
#ifndef OCTAVO_EXPERT_IMMA
#define OCTAVO_EXPERT_IMMA

#include "experts.cuh"
#include "imma.cuh"

struct ExpertImmaParams {
    Matrix w;                 // experts one below the other, each beginning with a strip
    const u8* x;              // (inputs) in gemv's form
    const u32* order;         // (choices), see `sort_experts`
    const ExpertTile* tiles;  // a block for each, and for each tile of an expert's rows
    float* out;               // (choices, n)
    u32 n;                    // rows of an expert
    u32 sharing;              // neighbouring choices that have one input
};
static_assert(sizeof(ExpertImmaParams) == 88, "kernels/src/cuda/params.rs has the same");

template <class F, u32 MT, u32 NT>
DEVICE void expert_imma(const ExpertImmaParams& p) {
    typedef ImmaTile<F, MT, NT> T;
    LAUNCHED_SHARED(room, T::SHARED);
    const ExpertTile tile = load_vector<ExpertTile>(p.tiles + blockIdx.x);
    if (tile.choices == 0) return;
    float* const results = reinterpret_cast<float*>(room + T::RESULTS_AT);
    // where a gate would have its results
    u32* const choices = reinterpret_cast<u32*>(results + T::RESULTS);
    u32* const rows = choices + T::COLUMNS;
    if (threadIdx.x < tile.choices) {
        const u32 choice = p.order[tile.first + threadIdx.x];
        choices[threadIdx.x] = choice;
        rows[threadIdx.x] = choice / p.sharing;
    }
    __syncthreads();
    const u32 strips = (p.n + STRIP - 1) / STRIP, before = tile.expert * strips;
    imma_tile<F, MT, NT, true>(results, room, p.w, before + blockIdx.y * T::STRIPS, before + strips,
                               p.x, tile.choices, rows);
    __syncthreads();
    for (u32 i = threadIdx.x; i < T::ROWS * tile.choices; i += IMMA_THREADS) {
        const u32 column = i / T::ROWS, row = blockIdx.y * T::ROWS + i % T::ROWS;
        if (row < p.n) p.out[static_cast<u64>(choices[column]) * p.n + row] = results[i];
    }
}

#endif
