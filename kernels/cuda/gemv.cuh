// Products of a packed matrix with up to eight rows of activations, or sixteen where weights are
// floats: what generation spends its time in, which is the time it takes to read the weights once.
//
// A warp has a strip of four rows, or a part of one where rows are long, its lanes neighbouring
// units. For a unit a lane issues all of the strip's 16-byte reads before it uses any of them,
// decodes once, and multiplies with every column of activations, which L1 holds. Sums stay in the
// lane until the end of its part; then one fixed tree over the lanes, and the parts in their order.
// Nothing in a column's arithmetic depends on how many columns there are, nor on who computes it.
//
// Nothing is read ahead: as many warps as registers allow hide more than each of them could.
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
    u32 tiles;  // of all matrices that are one beside the other; each matrix begins a new one
    u32 columns;
    u32 gated;  // a GateKind: parts[0].out = gate(parts[0].w x) * parts[1].w x; 0: products alone
    // strips that a block takes at a time: one for each warp, or for its parts of strips
    u32 tile;
};
static_assert(sizeof(GemvParams) == 224, "kernels/src/cuda/params.rs has the same");

constexpr u32 GEMV_WARPS = 8;
constexpr u32 GEMV_THREADS = GEMV_WARPS * WARP;
static_assert(GEMV_WARPS * STRIP == UNIT, "a block makes a unit");

// Parts of a row of so many units, which are dealt to them in turn, 32 at a time: by the length of
// a row alone, so that its numbers depend on nothing else. The matrices with long rows have few of
// them for a large device. kernels/src/cuda/launch/products.rs has the same numbers.
constexpr u32 MAX_PARTS = 4;
DEVICE u32 parts_of(u32 units) { return units < 256 ? 1 : MAX_PARTS; }

// What a lane reads of one unit of a strip.
template <class F>
struct Raw {
    u32 low[4 * F::LOW];
    u32 high[4 * (F::HIGH > 0 ? F::HIGH : 1)];
    u32 scales[F::SCALES > 0 ? F::SCALES : 1];
    u32 supers[F::SUPERS > 0 ? F::SUPERS : 1];
};

template <class F>
DEVICE void load_unit(Raw<F>& raw, const Matrix& w, u32 strip, u32 unit) {
#pragma unroll
    for (int i = 0; i < F::LOW; ++i)
        load_words<4>(raw.low + 4 * i, piece_at(w.low, strip, F::LOW, i, w.units, unit));
#pragma unroll
    for (int i = 0; i < F::HIGH; ++i)
        load_words<4>(raw.high + 4 * i, piece_at(w.high, strip, F::HIGH, i, w.units, unit));
    load_scales<F::SCALES>(raw.scales, w.scales, static_cast<u64>(strip) * w.units + unit);
    const u32 supers = (w.units + SUPER_UNITS - 1) / SUPER_UNITS;
    load_scales<F::SUPERS>(raw.supers, w.supers,
                           static_cast<u64>(strip) * supers + unit / SUPER_UNITS);
}

// A unit of a column of integer activations.
struct UnitOfX {
    u32 w[16];
    UnitSums sums;
};

DEVICE void load_unit_of_x(UnitOfX& to, const u8* x, u32 column, u32 units, u32 unit) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Words v = load16(activation_piece(x, column, INTEGER_PIECES, i, units, unit));
#pragma unroll
        for (int j = 0; j < 4; ++j) to.w[4 * i + j] = v.w[j];
    }
    to.sums = load_vector<UnitSums>(activation_piece(x, column, INTEGER_PIECES, 4, units, unit));
}

// What a unit of a row adds to its product with a column.
template <class F>
DEVICE float add_unit(float acc, const u32 (&codes)[8], const Scales& g, const UnitOfX& x) {
    i32 dot[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        i32 a = 0, b = 0;
#pragma unroll
        for (int i = 4 * half; i < 4 * half + 4; ++i) {
            a = __dp4a(static_cast<i32>(codes[i]), static_cast<i32>(x.w[i]), a);
            b = __dp4a(static_cast<i32>(codes[i]), static_cast<i32>(x.w[8 + i]), b);
        }
        dot[half] = a * 256 + b;
    }
    const UnitSums& sums = x.sums;
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
        if constexpr (F::MIN)
            sum = fmaf(-g.min[0], static_cast<float>(sums.first + sums.second), sum);
    }
    return fmaf(sums.scale, sum, acc);
}

// One unit of four rows of codes.
template <class F, int N>
DEVICE void gemv_codes(float (&acc)[N][STRIP], const Matrix& w, const u8* x, u32 columns, u32 strip,
                       u32 unit) {
    Raw<F> raw;
    load_unit(raw, w, strip, unit);
    u32 codes[STRIP][8];
    Scales scales[STRIP];
#pragma unroll
    for (u32 r = 0; r < STRIP; ++r) {
        const u32 scale = scale_of_row<F::SCALES>(raw.scales, r);
        const RowWords words = {raw.low + r * F::LOW, raw.high + r * F::HIGH, scale};
#pragma unroll
        for (u32 i = 0; i < 8; ++i) codes[r][i] = code_word<F>(words, i);
        scales[r] = scales_of<F>(words, raw.scales, raw.supers, r);
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
        if (n >= static_cast<int>(columns)) continue;
        UnitOfX of_x;
        load_unit_of_x(of_x, x, n, w.units, unit);
#pragma unroll
        for (u32 r = 0; r < STRIP; ++r)
            acc[n][r] = add_unit<F>(acc[n][r], codes[r], scales[r], of_x);
    }
}

// One unit of four rows of floats. A piece of 16 bytes at a time: whole units would not fit in
// registers.
template <class F, int N>
DEVICE void gemv_floats(float (&acc)[N][STRIP], const Matrix& w, const u8* x, u32 columns,
                        u32 strip, u32 unit) {
    constexpr int pieces = F::LOW / 4, values = 4 * F::IN_WORD;
#pragma unroll 2
    for (int piece = 0; piece < pieces; ++piece) {
        Words words[STRIP];
#pragma unroll
        for (u32 r = 0; r < STRIP; ++r) {
            const u8* at = piece_at(w.low, strip, F::LOW, r * pieces + piece, w.units, unit);
            words[r] = load16_once(at);
        }
#pragma unroll
        for (int n = 0; n < N; ++n) {
            if (n >= static_cast<int>(columns)) continue;
#pragma unroll
            for (int j = 0; j < values; j += 4) {
                const int at = (piece * values + j) / 4;
                const Words of_x = load16(activation_piece(x, n, FLOAT_PIECES, at, w.units, unit));
#pragma unroll
                for (int i = 0; i < 4; ++i) {
#pragma unroll
                    for (u32 r = 0; r < STRIP; ++r) {
                        const u32 word = words[r].w[(j + i) / F::IN_WORD];
                        const float v = F::value(word, (j + i) % F::IN_WORD);
                        acc[n][r] = fmaf(v, as_float(of_x.w[i]), acc[n][r]);
                    }
                }
            }
        }
    }
}

// Results of a strip that all lanes have at once, and how often.
template <int N>
constexpr u32 RESULTS_AT_ONCE = least<u32>(N* STRIP, WARP);
template <int N>
constexpr u32 ROUNDS_OF_RESULTS = N * STRIP / RESULTS_AT_ONCE<N>;

// A part of a strip's products with all columns: a lane gets the sums of value lane / (32 / n) of
// every round of n results. Value i of all is that of row i % 4 and column i / 4.
template <class F, int N>
DEVICE void strip_part(float (&mine)[ROUNDS_OF_RESULTS<N>], const Matrix& w, const u8* x,
                       u32 columns, u32 strip, u32 part, u32 parts) {
    constexpr u32 at_once = RESULTS_AT_ONCE<N>;
    float acc[N][STRIP] = {};
    for (u32 unit = part * WARP + threadIdx.x % WARP; unit < w.units; unit += parts * WARP) {
        if constexpr (F::FLOAT) {
            gemv_floats<F, N>(acc, w, x, columns, strip, unit);
        } else {
            gemv_codes<F, N>(acc, w, x, columns, strip, unit);
        }
    }
#pragma unroll
    for (u32 round = 0; round < ROUNDS_OF_RESULTS<N>; ++round) {
        float sums[at_once];
#pragma unroll
        for (u32 i = 0; i < at_once; ++i)
            sums[i] = acc[(round * at_once + i) / STRIP][i % STRIP];
        mine[round] = lanes_sums(sums);
    }
}

template <class F, int N>
DEVICE void gemv(const GemvParams& p) {
    constexpr u32 at_once = RESULTS_AT_ONCE<N>, lanes = WARP / at_once;
    SHARED(float, sums, [2][MAX_PARTS][GEMV_WARPS][N * STRIP]);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 parts = parts_of(p.parts[0].w.units), across = GEMV_WARPS / parts;
    const u32 part = warp % parts, matrices = p.gated != 0 ? 2 : 1;
    for (u32 at = blockIdx.x; at < p.tiles; at += gridDim.x) {
        u32 tile = at, of = 0;
        if (p.gated == 0) {
            for (; of < 2; ++of) {
                const u32 tiles = (p.parts[of].w.strips + p.tile - 1) / p.tile;
                if (tile < tiles) break;
                tile -= tiles;
            }
        }
        const u32 first = tile * p.tile;
#pragma unroll 1
        for (u32 m = 0; m < matrices; ++m) {
            const Matrix& w = p.parts[of + m].w;
#pragma unroll 1
            for (u32 i = warp / parts; i < p.tile; i += across) {
                // behind the last strip it is that one again, which nobody asks for
                const u32 strip = least(first + i, w.strips - 1);
                float mine[ROUNDS_OF_RESULTS<N>];
                strip_part<F, N>(mine, w, p.x, p.columns, strip, part, parts);
#pragma unroll
                for (u32 round = 0; round < ROUNDS_OF_RESULTS<N>; ++round) {
                    if (lane % lanes == 0)
                        sums[m][part][i][round * at_once + lane / lanes] = mine[round];
                }
            }
        }
        __syncthreads();
        const GemvPart& to = p.parts[of];
        const auto sum_of = [&](u32 m, u32 column, u32 in_tile) {
            const u32 strip = in_tile / STRIP, value = column * STRIP + in_tile % STRIP;
            float sum = sums[m][0][strip][value];
            for (u32 i = 1; i < parts; ++i) sum += sums[m][i][strip][value];
            return sum;
        };
        const auto product = [&](u32 column, u32 in_tile) {
            const float first = sum_of(0, column, in_tile);
            return p.gated != 0 ? gated(p.gated, first, sum_of(1, column, in_tile)) : first;
        };
        if (p.integers == nullptr) {
            const u32 rows = p.tile * STRIP;
            for (u32 i = threadIdx.x; i < rows * p.columns; i += GEMV_THREADS) {
                const u32 column = i / rows, row = first * STRIP + i % rows;
                if (row >= to.w.rows) continue;
                const u64 place = static_cast<u64>(column) * to.w.rows + row;
                const float value = product(column, i % rows);
                to.out[place] = to.add != nullptr ? to.add[place] + value : value;
            }
        } else {
            // column by column, so that all lanes of a warp are there
            for (u32 column = warp; column < p.columns; column += GEMV_WARPS) {
                const float value = first * STRIP + lane < to.w.rows ? product(column, lane) : 0.0f;
                store_integers(p.integers, column, p.tiles, tile, value);
            }
        }
        __syncthreads();
    }
}

#endif
