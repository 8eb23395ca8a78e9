// Products of a packed matrix with many rows of activations: prompts.
//
// A block makes a tile of 64 tokens by 64 rows of weights. Two units of 64 weight rows are decoded to halves and laid
// beside as many columns of the tokens' halves in shared memory; four warps, each with a quarter of the tile, multiply
// them on the tensor cores and add up in floats. A token's numbers do not depend on its place in a tile.
//
// Weights are rounded to 11 bits here, activations too, relative to the largest of their token.
#ifndef OCTAVO_GEMM
#define OCTAVO_GEMM

#include "formats.cuh"

struct GemmParams {
    Matrix w;
    const u16* x;         // (tokens, cols padded to two units), halves
    const float* scales;  // (tokens)
    const float* add;     // (tokens, rows), or null: added to the product
    float* out;           // (tokens, rows)
    u32 tokens;
    u32 unused;
};
static_assert(sizeof(GemmParams) == 88, "kernels/src/cuda/params.rs has the same");

constexpr u32 GEMM_THREADS = 128;
constexpr u32 TILE = 64;
constexpr u32 SLICE = 2 * UNIT;
// Eight halves more than a slice: the rows that one `ldmatrix` reads then lie in different banks.
constexpr u32 TILE_STRIDE = SLICE + 8;

template <class F, int HALF>
DEVICE void half_to_shared(u16* to, const Matrix& w, u32 row, u32 unit) {
    float v[16] = {};
    if (row < w.rows && unit < w.units) decode_half<F, HALF>(v, w, row, unit);
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        Words words;
#pragma unroll
        for (u32 j = 0; j < 4; ++j) words.w[j] = pack_halves(v[8 * i + 2 * j], v[8 * i + 2 * j + 1]);
        store16(to + 16 * HALF + 8 * i, words);
    }
}

// Decodes one unit of one row for each thread.
template <class F>
DEVICE void weights_to_shared(u16 (&to)[TILE][TILE_STRIDE], const Matrix& w, u32 first_row, u32 first_unit) {
    const u32 r = threadIdx.x / 2, u = threadIdx.x % 2;
    half_to_shared<F, 0>(&to[r][u * UNIT], w, first_row + r, first_unit + u);
    half_to_shared<F, 1>(&to[r][u * UNIT], w, first_row + r, first_unit + u);
}

DEVICE void tokens_to_shared(u16 (&to)[TILE][TILE_STRIDE], const GemmParams& p, u32 first_token, u32 first_unit) {
    const u32 stride = (p.w.units + 1) / 2 * SLICE;
    for (u32 i = threadIdx.x; i < TILE * SLICE / 8; i += GEMM_THREADS) {
        const u32 t = i / (SLICE / 8), at = i % (SLICE / 8) * 8, token = first_token + t;
        Words words = {};
        if (token < p.tokens) words = load16(p.x + static_cast<u64>(token) * stride + first_unit * UNIT + at);
        store16(&to[t][at], words);
    }
}

template <class F>
DEVICE void gemm(const GemmParams& p) {
    SHARED(u16, tokens, [TILE][TILE_STRIDE]);
    SHARED(u16, weights, [TILE][TILE_STRIDE]);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 first_row = blockIdx.x * TILE, first_token = blockIdx.y * TILE;
    // this warp's quarter
    const u32 t0 = warp / 2 * 32, r0 = warp % 2 * 32;
    float acc[2][4][4] = {};
    for (u32 unit = 0; unit < p.w.units; unit += 2) {
        weights_to_shared<F>(weights, p.w, first_row, unit);
        tokens_to_shared(tokens, p, first_token, unit);
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < SLICE; k += 16) {
            u32 a[2][4], b[2][4];
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                load_matrices(a[i], &tokens[t0 + 16 * i + lane % 16][k + lane / 16 * 8]);
                load_matrices(b[i], &weights[r0 + 16 * i + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
            }
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
#pragma unroll
                for (u32 j = 0; j < 4; ++j) mma_f16(acc[i][j], a[i], b[j / 2][2 * (j % 2)], b[j / 2][2 * (j % 2) + 1]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                const u32 token = first_token + t0 + 16 * i + lane / 4 + e / 2 * 8;
                const u32 row = first_row + r0 + 8 * j + lane % 4 * 2 + e % 2;
                if (token < p.tokens && row < p.w.rows) {
                    const u64 at = static_cast<u64>(token) * p.w.rows + row;
                    const float sum = acc[i][j][e] * p.scales[token];
                    p.out[at] = p.add != nullptr ? p.add[at] + sum : sum;
                }
            }
        }
    }
}

#endif
