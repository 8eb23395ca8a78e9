// Products of a packed matrix with up to eight rows of activations: what generation spends its time in, which is the time
// it takes to read the weights once.
//
// A warp takes a strip of four rows, its lanes neighbouring units. For a unit a lane issues all of the strip's 16-byte
// reads before it uses any of them, decodes once, and multiplies with every column of activations, which L1 holds. Sums
// stay in the lane until the end of the rows; then one fixed tree over the lanes. Nothing in a column's arithmetic
// depends on how many columns there are.
#ifndef OCTAVO_GEMV
#define OCTAVO_GEMV

#include "activations.cuh"

struct GemvParams {
    Matrix w;
    const u8* x;
    const float* add;  // (columns, rows), or null: added to the product
    float* out;        // (columns, rows)
    u32 columns;
    u32 unused;
};
static_assert(sizeof(GemvParams) == 80, "kernels/src/cuda/params.rs has the same");

constexpr u32 GEMV_THREADS = 128;

// One unit of four rows against the integer activations of all columns.
template <class F, int N>
DEVICE void gemv_codes(float (&acc)[STRIP][N], const GemvParams& p, u32 strip, u32 unit) {
    const u32 units = p.w.units;
    u32 low[4 * F::LOW], high[4 * (F::HIGH > 0 ? F::HIGH : 1)], s[F::SCALES], d[F::SUPERS > 0 ? F::SUPERS : 1];
#pragma unroll
    for (int i = 0; i < F::LOW; ++i) load_words<4>(low + 4 * i, piece_at(p.w.low, strip, F::LOW, i, units, unit));
#pragma unroll
    for (int i = 0; i < F::HIGH; ++i) load_words<4>(high + 4 * i, piece_at(p.w.high, strip, F::HIGH, i, units, unit));
    load_scales<F::SCALES>(s, p.w.scales, static_cast<u64>(strip) * units + unit);
    const u32 supers = (units + SUPER_UNITS - 1) / SUPER_UNITS;
    load_scales<F::SUPERS>(d, p.w.supers, static_cast<u64>(strip) * supers + unit / SUPER_UNITS);

    u32 codes[STRIP][8];
    Scales scales[STRIP];
#pragma unroll
    for (u32 r = 0; r < STRIP; ++r) {
        unit_codes<F>(codes[r], low + r * F::LOW, high + r * F::HIGH);
        scales[r] = F::scales(s, d, r);
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
        if (n >= static_cast<int>(p.columns)) continue;
        u32 x[16];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const Words v = load16(activation_piece(p.x, n, INTEGER_PIECES, i, units, unit));
#pragma unroll
            for (int j = 0; j < 4; ++j) x[4 * i + j] = v.w[j];
        }
        const UnitSums sums = load_vector<UnitSums>(activation_piece(p.x, n, INTEGER_PIECES, 4, units, unit));
#pragma unroll
        for (u32 r = 0; r < STRIP; ++r) {
            i32 dot[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                i32 a = 0, b = 0;
#pragma unroll
                for (int i = 4 * half; i < 4 * half + 4; ++i) {
                    a = __dp4a(static_cast<i32>(codes[r][i]), static_cast<i32>(x[i]), a);
                    b = __dp4a(static_cast<i32>(codes[r][i]), static_cast<i32>(x[8 + i]), b);
                }
                dot[half] = a * 256 + b;
            }
            const Scales& g = scales[r];
            const i32 first = dot[0] - F::OFFSET * sums.first, second = dot[1] - F::OFFSET * sums.second;
            float sum;
            if constexpr (F::GROUP == 16) {
                sum = fmaf(g.scale[1], static_cast<float>(second), g.scale[0] * static_cast<float>(first));
                if constexpr (F::MIN) {
                    sum = fmaf(-g.min[0], static_cast<float>(sums.first), sum);
                    sum = fmaf(-g.min[1], static_cast<float>(sums.second), sum);
                }
            } else {
                sum = g.scale[0] * static_cast<float>(first + second);
                if constexpr (F::MIN) sum = fmaf(-g.min[0], static_cast<float>(sums.first + sums.second), sum);
            }
            acc[r][n] = fmaf(sums.scale, sum, acc[r][n]);
        }
    }
}

// One unit of four rows of floats. A piece of 16 bytes at a time: whole units would not fit in registers.
template <class F, int N>
DEVICE void gemv_floats(float (&acc)[STRIP][N], const GemvParams& p, u32 strip, u32 unit) {
    constexpr int pieces = F::LOW / 4, values = 4 * F::IN_WORD;
#pragma unroll 2
    for (int piece = 0; piece < pieces; ++piece) {
        Words w[STRIP];
#pragma unroll
        for (u32 r = 0; r < STRIP; ++r)
            w[r] = load16_once(piece_at(p.w.low, strip, F::LOW, r * pieces + piece, p.w.units, unit));
#pragma unroll
        for (int n = 0; n < N; ++n) {
            if (n >= static_cast<int>(p.columns)) continue;
#pragma unroll
            for (int j = 0; j < values; j += 4) {
                const int at = (piece * values + j) / 4;
                const Words x = load16(activation_piece(p.x, n, FLOAT_PIECES, at, p.w.units, unit));
#pragma unroll
                for (int i = 0; i < 4; ++i) {
#pragma unroll
                    for (u32 r = 0; r < STRIP; ++r) {
                        const float v = F::value(w[r].w[(j + i) / F::IN_WORD], (j + i) % F::IN_WORD);
                        acc[r][n] = fmaf(v, as_float(x.w[i]), acc[r][n]);
                    }
                }
            }
        }
    }
}

template <class F, int N>
DEVICE void gemv(const GemvParams& p) {
    constexpr u32 warps = GEMV_THREADS / WARP;
    const u32 lane = threadIdx.x % WARP;
    for (u32 strip = blockIdx.x * warps + threadIdx.x / WARP; strip < p.w.strips; strip += gridDim.x * warps) {
        float acc[STRIP][N] = {};
        for (u32 unit = lane; unit < p.w.units; unit += WARP) {
            if constexpr (F::FLOAT) {
                gemv_floats<F, N>(acc, p, strip, unit);
            } else {
                gemv_codes<F, N>(acc, p, strip, unit);
            }
        }
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
            for (u32 r = 0; r < STRIP; ++r) {
                const float sum = lanes_sum<32>(acc[r][n]);
                const u32 row = strip * STRIP + r;
                if (lane == 0 && row < p.w.rows && n < static_cast<int>(p.columns)) {
                    const u64 at = static_cast<u64>(n) * p.w.rows + row;
                    p.out[at] = p.add != nullptr ? p.add[at] + sum : sum;
                }
            }
        }
    }
}

#endif
