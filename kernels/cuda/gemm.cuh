// Products of a packed matrix with many rows of activations: prompts.
//
// A block makes a tile of tokens by rows of weights. Two units of the weights' rows are decoded to
// halves and laid beside as many columns of the tokens' halves in shared memory; eight warps, each
// with its part of the tile, multiply them on the tensor cores and add up in floats, while the next
// two units are on their way to registers. Large tiles decode less for each product, small ones
// keep a device busy when there are few: a token's numbers depend neither on its place in a tile
// nor on the tile's size.
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

constexpr u32 GEMM_THREADS = 256;
constexpr u32 SLICE = 2 * UNIT;
// Eight halves more than a slice: the rows that one `ldmatrix` reads then lie in different banks.
constexpr u32 TILE_STRIDE = SLICE + 8;

// Blocks of large tiles beside each other: two, but for formats that take too many registers to be
// read.
template <class F>
DEVICE constexpr int blocks_of() {
    if constexpr (F::FLOAT) {
        return 1;
    } else {
        return F::TABLE ? 1 : 2;
    }
}

template <int HALF>
DEVICE void half_to_shared(u16* to, const float (&v)[16]) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        Words words;
#pragma unroll
        for (u32 j = 0; j < 4; ++j)
            words.w[j] = pack_halves(v[8 * i + 2 * j], v[8 * i + 2 * j + 1]);
        store16(to + 16 * HALF + 8 * i, words);
    }
}

// One unit of one row of weights, which a thread reads early and decodes late. Floats are as large
// here as there, so they are read late.
template <class F>
struct WeightUnit {
    const Matrix& w;
    u32 row;
    u32 unit;
    bool there;
    RowUnit<F> raw;

    DEVICE void load(u32 next) {
        unit = next;
        there = row < w.rows && unit < w.units;
        if constexpr (!F::FLOAT) {
            if (there) load_row_unit(raw, w, row, unit);
        }
    }
    template <int HALF>
    DEVICE void store_half(u16* to) const {
        float v[16] = {};
        if (there) {
            if constexpr (F::FLOAT) {
                decode_half<F, HALF>(v, w, row, unit);
            } else {
                decode_codes<F, HALF>(v, raw);
            }
        }
        half_to_shared<HALF>(to, v);
    }
    DEVICE void store(u16* to) const {
        store_half<0>(to);
        store_half<1>(to);
    }
};

// The pieces of tokens that a thread brings, of eight columns each.
template <u32 TOKENS>
struct TokenPieces {
    static constexpr u32 PIECES = TOKENS * SLICE / 8 / GEMM_THREADS;
    Words piece[PIECES];

    DEVICE void load(const GemmParams& p, u32 first_token, u32 stride, u32 unit) {
#pragma unroll
        for (u32 i = 0; i < PIECES; ++i) {
            const u32 at = i * GEMM_THREADS + threadIdx.x, token = first_token + at / (SLICE / 8);
            piece[i] = {};
            if (token < p.tokens)
                piece[i] = load16(p.x + static_cast<u64>(token) * stride + unit * UNIT +
                                  at % (SLICE / 8) * 8);
        }
    }
    DEVICE void store(u16 (&tokens)[TOKENS][TILE_STRIDE]) const {
#pragma unroll
        for (u32 i = 0; i < PIECES; ++i) {
            const u32 at = i * GEMM_THREADS + threadIdx.x;
            store16(&tokens[at / (SLICE / 8)][at % (SLICE / 8) * 8], piece[i]);
        }
    }
};

// `ACROSS` of the eight warps are beside each other along the tokens.
template <class F, u32 TOKENS, u32 ROWS, u32 ACROSS>
DEVICE void gemm(const GemmParams& p) {
    SHARED(u16, tokens, [TOKENS][TILE_STRIDE]);
    SHARED(u16, weights, [ROWS][TILE_STRIDE]);
    constexpr u32 along = GEMM_THREADS / WARP / ACROSS;
    constexpr u32 t_tiles = TOKENS / ACROSS / 16, r_tiles = ROWS / along / 16;
    static_assert(2 * ROWS <= GEMM_THREADS, "a unit for each thread, at most");
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 first_row = blockIdx.x * ROWS, first_token = blockIdx.y * TOKENS;
    // this warp's part
    const u32 t0 = warp / along * (16 * t_tiles), r0 = warp % along * (16 * r_tiles);
    const u32 stride = (p.w.units + 1) / 2 * SLICE;
    // Nothing is there for much of a tile when a prompt is short. Products do not start before a
    // branch that they are behind is decided, so it is asked as seldom as registers allow: once a
    // slice in small tiles; in large ones, of which two blocks leave 128 registers, for two of a
    // warp's four.
    const auto is_there = [&](u32 i) { return first_token + t0 + 16 * i < p.tokens; };
    constexpr bool by_slice = t_tiles <= 2;

    // what this thread brings: one unit of weights, some pieces of tokens
    const u32 weight_row = threadIdx.x / 2, weight_unit = threadIdx.x % 2;
    const u32 row_of_all = weight_row < ROWS ? first_row + weight_row : p.w.rows;
    WeightUnit<F> weight = {p.w, row_of_all, 0, false, {}};
    TokenPieces<TOKENS> pieces;
    const auto load = [&](u32 unit) {
        weight.load(unit + weight_unit);
        pieces.load(p, first_token, stride, unit);
    };

    float acc[t_tiles][2 * r_tiles][4] = {};
    load(0);
    for (u32 unit = 0; unit < p.w.units; unit += 2) {
        if (weight_row < ROWS) weight.store(&weights[weight_row][weight_unit * UNIT]);
        pieces.store(tokens);
        __syncthreads();
        if (unit + 2 < p.w.units) load(unit + 2);
        if (!by_slice || is_there(0)) {
#pragma unroll
            for (u32 k = 0; k < SLICE; k += 16) {
                u32 b[r_tiles][4];
#pragma unroll
                for (u32 j = 0; j < r_tiles; ++j) {
                    const u32 row = r0 + 16 * j + lane / 16 * 8 + lane % 8;
                    load_matrices(b[j], &weights[row][k + lane / 8 % 2 * 8]);
                }
                bool there = true;
#pragma unroll
                for (u32 i = 0; i < t_tiles; ++i) {
                    if (!by_slice && i % 2 == 0) there = is_there(i);
                    if (!there) continue;
                    u32 a[4];
                    load_matrices(a, &tokens[t0 + 16 * i + lane % 16][k + lane / 16 * 8]);
#pragma unroll
                    for (u32 j = 0; j < 2 * r_tiles; ++j)
                        mma_f16(acc[i][j], a, b[j / 2][2 * (j % 2)], b[j / 2][2 * (j % 2) + 1]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < t_tiles; ++i) {
#pragma unroll
        for (u32 j = 0; j < 2 * r_tiles; ++j) {
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
