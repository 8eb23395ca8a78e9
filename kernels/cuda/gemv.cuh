// Products of a packed matrix with up to eight rows of activations: what generation spends its time
// in, which is the time it takes to read the weights once.
//
// A warp takes a strip of four rows, its lanes neighbouring units. For a unit a lane issues all of
// the strip's 16-byte reads before it uses any of them (with few columns, those of its next unit
// too), decodes once, and multiplies with every column of activations, which L1 holds. Sums stay in
// the lane until the end of the rows; then one fixed tree over the lanes. Nothing in a column's
// arithmetic depends on how many columns there are.
//
// One launch has up to three matrices of the same type and input, one beside the other; or two of
// the same shape, a gate and what it gates. Eight strips are a unit of the next product's input: a
// block can leave it in that form.
#ifndef OCTAVO_GEMV
#define OCTAVO_GEMV

#include "formats.cuh"
#include "gate.cuh"

struct GemvPart {
    Matrix w;
    const float* add;  // (columns, rows), or null: added to the product
    float* out;        // (columns, rows)
};
struct GemvParams {
    GemvPart parts[3];
    const u8* x;
    u8* integers;  // instead of `out` if not null: (columns, units of rows), see activations.cuh
    u32 strips;    // of all parts that are one beside the other
    u32 columns;
    u32 gated;  // a GateKind: parts[0].out = gate(parts[0].w x) * parts[1].w x; 0: products alone
    u32 unused;
};
static_assert(sizeof(GemvParams) == 224, "kernels/src/cuda/params.rs has the same");

constexpr u32 GEMV_WARPS = 8;
constexpr u32 GEMV_THREADS = GEMV_WARPS * WARP;
constexpr u32 GEMV_COLUMNS = 8;
static_assert(GEMV_WARPS * STRIP == UNIT, "a block makes a unit");

// What a lane reads of one unit of a strip.
template <class F>
struct Raw {
    u32 low[4 * F::LOW];
    u32 high[4 * (F::HIGH > 0 ? F::HIGH : 1)];
    u32 scales[F::SCALES];
    u32 supers[F::SUPERS > 0 ? F::SUPERS : 1];
};

template <class F>
DEVICE void load_unit(Raw<F>& raw, const Matrix& w, u32 strip, u32 unit) {
#pragma unroll
    for (int i = 0; i < F::LOW; ++i) load_words<4>(raw.low + 4 * i, piece_at(w.low, strip, F::LOW, i, w.units, unit));
#pragma unroll
    for (int i = 0; i < F::HIGH; ++i)
        load_words<4>(raw.high + 4 * i, piece_at(w.high, strip, F::HIGH, i, w.units, unit));
    load_scales<F::SCALES>(raw.scales, w.scales, static_cast<u64>(strip) * w.units + unit);
    const u32 supers = (w.units + SUPER_UNITS - 1) / SUPER_UNITS;
    load_scales<F::SUPERS>(raw.supers, w.supers, static_cast<u64>(strip) * supers + unit / SUPER_UNITS);
}

// One unit of four rows against the integer activations of all columns.
template <class F, int N>
DEVICE void gemv_codes(float (&acc)[STRIP][N], const Raw<F>& raw, const GemvParams& p, u32 units, u32 unit) {
    u32 codes[STRIP][8];
    Scales scales[STRIP];
#pragma unroll
    for (u32 r = 0; r < STRIP; ++r) {
        unit_codes<F>(codes[r], raw.low + r * F::LOW, raw.high + r * F::HIGH);
        scales[r] = F::scales(raw.scales, raw.supers, r);
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

// One unit of four rows of floats. A piece of 16 bytes at a time: whole units would not fit in
// registers.
template <class F, int N>
DEVICE void gemv_floats(float (&acc)[STRIP][N], const Matrix& w, const GemvParams& p, u32 strip, u32 unit) {
    constexpr int pieces = F::LOW / 4, values = 4 * F::IN_WORD;
#pragma unroll 2
    for (int piece = 0; piece < pieces; ++piece) {
        Words words[STRIP];
#pragma unroll
        for (u32 r = 0; r < STRIP; ++r)
            words[r] = load16_once(piece_at(w.low, strip, F::LOW, r * pieces + piece, w.units, unit));
#pragma unroll
        for (int n = 0; n < N; ++n) {
            if (n >= static_cast<int>(p.columns)) continue;
#pragma unroll
            for (int j = 0; j < values; j += 4) {
                const int at = (piece * values + j) / 4;
                const Words x = load16(activation_piece(p.x, n, FLOAT_PIECES, at, w.units, unit));
#pragma unroll
                for (int i = 0; i < 4; ++i) {
#pragma unroll
                    for (u32 r = 0; r < STRIP; ++r) {
                        const float v = F::value(words[r].w[(j + i) / F::IN_WORD], (j + i) % F::IN_WORD);
                        acc[r][n] = fmaf(v, as_float(x.w[i]), acc[r][n]);
                    }
                }
            }
        }
    }
}

// A strip's product with all columns: lane 4 n + r of the warp gets that of row r and column n.
template <class F, int N>
DEVICE float strip_product(const Matrix& w, const GemvParams& p, u32 strip) {
    const u32 lane = threadIdx.x % WARP;
    float acc[STRIP][N] = {};
    u32 unit = lane;
    if constexpr (F::FLOAT) {
        for (; unit < w.units; unit += WARP) gemv_floats<F, N>(acc, w, p, strip, unit);
    } else if constexpr (N > 2) {
        for (; unit < w.units; unit += WARP) {
            Raw<F> raw;
            load_unit(raw, w, strip, unit);
            gemv_codes<F, N>(acc, raw, p, w.units, unit);
        }
    } else {
        Raw<F> raw;
        if (unit < w.units) load_unit(raw, w, strip, unit);
        while (unit < w.units) {
            Raw<F> next;
            if (unit + WARP < w.units) load_unit(next, w, strip, unit + WARP);
            gemv_codes<F, N>(acc, raw, p, w.units, unit);
            raw = next;
            unit += WARP;
        }
    }
    float mine = 0.0f;
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
        for (u32 r = 0; r < STRIP; ++r) {
            const float sum = lanes_sum<32>(acc[r][n]);
            if (lane == n * STRIP + r) mine = sum;
        }
    }
    return mine;
}

template <class F, int N>
DEVICE void gemv(const GemvParams& p) {
    static_assert(N * STRIP <= WARP, "a lane for each result");
    SHARED(float, results, [N][UNIT]);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 column = lane / STRIP, in_strip = lane % STRIP;
    for (u32 first = blockIdx.x * GEMV_WARPS; first < p.strips; first += gridDim.x * GEMV_WARPS) {
        u32 strip = first + warp, part = 0;
        const bool there = strip < p.strips;
        if (p.gated == 0) {
            while (part < 2 && strip >= p.parts[part].w.strips && there) strip -= p.parts[part++].w.strips;
        }
        float value = 0.0f, gate = 0.0f;
        if (there) {
#pragma unroll 1
            for (u32 round = 0; round <= (p.gated != 0 ? 1u : 0u); ++round) {
                gate = value;
                value = strip_product<F, N>(p.parts[part + round].w, p, strip);
            }
            if (p.gated != 0) value = gated(p.gated, gate, value);
        }
        const GemvPart& to = p.parts[part];
        const u32 row = strip * STRIP + in_strip;
        if (p.integers == nullptr) {
            if (there && row < to.w.rows && column < p.columns) {
                const u64 at = static_cast<u64>(column) * to.w.rows + row;
                to.out[at] = to.add != nullptr ? to.add[at] + value : value;
            }
            continue;
        }
        if (column < N) results[column][warp * STRIP + in_strip] = there && row < to.w.rows ? value : 0.0f;
        __syncthreads();
        // column by column, so that all lanes of a warp are there
        if (warp < p.columns)
            store_integers(p.integers, warp, (p.strips + GEMV_WARPS - 1) / GEMV_WARPS, first / GEMV_WARPS, results[warp][lane]);
        __syncthreads();
    }
}

#endif
