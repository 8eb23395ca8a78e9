// Products of a packed matrix with many rows of activations on GPUs whose warps multiply in groups
// of four (Hopper): prompts there.
//
// The weights are the left factor and never see shared memory: a lane reads its unit of two rows as
// it lies in memory, decodes it to halves in registers, and multiplies them as they are. That takes
// the columns in an order of its own, in which the tokens' halves are written (`wide_place`): of
// four units a lane has one, and every product takes four columns of each. The tokens' halves are
// brought to shared memory two slices ahead, and a slice of weights is decoded while the one before
// is multiplied.
//
// A token's numbers depend neither on its place in a tile nor on the tile's size. Weights are
// rounded to 11 bits here, activations too, relative to the largest of their token.
#ifndef OCTAVO_WIDE_GEMM
#define OCTAVO_WIDE_GEMM

#include "gemm.cuh"
#include "wide.cuh"

constexpr u32 WIDE_STAGES = 3;
// Tokens of one product of four warps.
constexpr u32 WIDE_COLUMNS = 128;
constexpr u32 WIDE_PRODUCTS = WIDE_SLICE / 16;

// One unit of two rows of weights, eight apart, which a lane reads early and decodes late. Floats
// are as large here as there, so they are read late.
template <class F>
struct WideUnits {
    const Matrix& w;
    u32 row;
    u32 unit;
    RowUnit<F> raw[2];

    DEVICE u32 row_of(u32 i) const { return least(row + 8 * i, w.rows - 1); }
    // What lies behind the last row and the last unit is that one again: it meets zeros, or nobody
    // asks for it.
    DEVICE void load(u32 next) {
        unit = least(next, w.units - 1);
        if constexpr (!F::FLOAT) {
#pragma unroll
            for (u32 i = 0; i < 2; ++i) load_row_unit(raw[i], w, row_of(i), unit);
        }
    }
    // The left factors of all products of a slice.
    DEVICE void decode(u32 (&a)[WIDE_PRODUCTS][4]) const {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float v[16];
            columns<0>(v, i);
            pack<0>(a, v, i);
            columns<1>(v, i);
            pack<1>(a, v, i);
        }
    }

   private:
    template <int HALF>
    DEVICE void columns(float (&v)[16], u32 i) const {
        if constexpr (F::FLOAT) {
            decode_half<F, HALF>(v, w, row_of(i), unit);
        } else {
            decode_codes<F, HALF>(v, raw[i]);
        }
    }
    template <int HALF>
    DEVICE static void pack(u32 (&a)[WIDE_PRODUCTS][4], const float (&v)[16], u32 i) {
#pragma unroll
        for (u32 s = 0; s < 4; ++s) {
            a[4 * HALF + s][i] = pack_halves(v[4 * s], v[4 * s + 1]);
            a[4 * HALF + s][2 + i] = pack_halves(v[4 * s + 2], v[4 * s + 3]);
        }
    }
};

// A block has `GROUPS` times 64 rows of weights, and `TOKENS` tokens.
template <class F, u32 GROUPS, u32 TOKENS>
DEVICE void wide_gemm(const GemmParams& p) {
    constexpr u32 threads = 4 * WARP * GROUPS, parts = TOKENS / WIDE_COLUMNS;
    // of a slice: its first 64 columns of all tokens, then the others
    constexpr u32 stage_half = TOKENS * 128, stage_bytes = 2 * stage_half;
    LAUNCHED_SHARED(tokens, WIDE_STAGES * stage_bytes);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 first_token = blockIdx.y * TOKENS, first_row = blockIdx.x * 64 * GROUPS + 16 * warp;
    const u32 slices = (p.w.units + WIDE_UNITS - 1) / WIDE_UNITS;
    const auto bring_piece = [&](u32 slice, u32 i) {
        u8* stage = tokens + slice % WIDE_STAGES * stage_bytes;
        const u32 row = i / (WIDE_SLICE / 8), eighth = i % (WIDE_SLICE / 8);
        const u32 token = first_token + row;
        const bool there = token < p.tokens;
        const u64 from =
            (static_cast<u64>(there ? token : 0) * slices + slice) * WIDE_SLICE + 8 * eighth;
        copy_early(stage + eighth / 8 * stage_half + swizzled(row, eighth % 8), p.x + from, there);
    };
    const auto bring = [&](u32 slice) {
        constexpr u32 pieces = TOKENS * WIDE_SLICE / 8;
        if (slice < slices) {
            if constexpr (F::LOW == 8) {
                // codes of eight bits leave no registers for all addresses at once
#pragma unroll 4
                for (u32 i = threadIdx.x; i < pieces; i += threads) bring_piece(slice, i);
            } else {
#pragma unroll
                for (u32 i = threadIdx.x; i < pieces; i += threads) bring_piece(slice, i);
            }
        }
        copies_begun();
    };

    WideUnits<F> weights = {p.w, first_row + lane / 4, 0, {}};
    float acc[parts][64] = {};
    u32 a[2][WIDE_PRODUCTS][4];
    const auto step = [&](u32 slice, u32 (&now)[WIDE_PRODUCTS][4], u32 (&next)[WIDE_PRODUCTS][4]) {
        copied<1>();
        written_for_products();
        __syncthreads();
        // where the slice before the last one was, which all warps are done with
        bring(slice + 2);
        const u8* stage = tokens + slice % WIDE_STAGES * stage_bytes;
        registers_written_for_products();
#pragma unroll
        for (u32 k = 0; k < WIDE_PRODUCTS; ++k) {
#pragma unroll
            for (u32 i = 0; i < parts; ++i) {
                const u8* b = stage + k / 4 * stage_half + i * WIDE_COLUMNS * 128;
                multiply_wide(acc[i], now[k], b, k % 4);
            }
        }
        products_committed();
        weights.decode(next);
        weights.load(WIDE_UNITS * (slice + 2) + lane % 4);
        products_done();
    };

    weights.load(lane % 4);
    bring(0);
    bring(1);
    weights.decode(a[0]);
    weights.load(WIDE_UNITS + lane % 4);
    for (u32 slice = 0; slice < slices; slice += 2) {
        step(slice, a[0], a[1]);
        if (slice + 1 < slices) step(slice + 1, a[1], a[0]);
    }
#pragma unroll
    for (u32 i = 0; i < parts; ++i) {
#pragma unroll
        for (u32 j = 0; j < 64; ++j) {
            const u32 token = first_token + i * WIDE_COLUMNS + j / 4 * 8 + lane % 4 * 2 + j % 2;
            const u32 row = first_row + lane / 4 + j % 4 / 2 * 8;
            if (token < p.tokens && row < p.w.rows) {
                const u64 at = static_cast<u64>(token) * p.w.rows + row;
                const float sum = acc[i][j] * p.scales[token];
                p.out[at] = p.add != nullptr ? p.add[at] + sum : sum;
            }
        }
    }
}

#endif
