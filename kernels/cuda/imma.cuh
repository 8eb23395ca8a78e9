// Products of a packed matrix of codes with 3 to 16 columns of activations, on tensor cores:
// batches of sequences and drafted tokens. The weights are read once for all columns.
//
// Every result has the bits of `gemv`. Tensor cores multiply integers exactly (mma.sync, signed
// bytes): a unit of 32 columns is one product of the codes with the activations' high bytes and one
// with their low bytes. What follows is float arithmetic, whose order is that of `gemv`: there lane
// l sums the units l, l + 32, ...; here warp w of eight takes units w, w + 8, w + 16 and w + 24 of
// every 32 and keeps a sum for each of the four, and at the end the 32 sums are joined by the tree
// of `lanes_sums`, part by part where rows are long.
//
// A block has 16 MT rows and 8 NT columns. Codes, scales and activations of eight units (a step)
// come to shared memory steps ahead. The columns of a unit can be multiplied in any order, so a
// lane takes words of codes as they lie in memory, and the same words of activations.
#ifndef OCTAVO_IMMA
#define OCTAVO_IMMA

#include "gemv.cuh"

constexpr u32 IMMA_WARPS = 8;
constexpr u32 IMMA_THREADS = IMMA_WARPS * WARP;
// Sums that a warp keeps for a result: those of four lanes of `gemv`.
constexpr u32 IMMA_SUMS = WARP / IMMA_WARPS;
// Bytes of shared memory that a block of any supported GPU can have.
constexpr u32 IMMA_SHARED = 99 * 1024;
constexpr u32 IMMA_MAX_STAGES = 4;

// Sizes of a tile. kernels/src/cuda/launch/products.rs has the same rows, columns and
// `IMMA_SHARED`.
template <class F, u32 MT, u32 NT>
struct ImmaTile {
    static constexpr u32 ROWS = 16 * MT;
    static constexpr u32 COLUMNS = 8 * NT;
    static constexpr u32 STRIPS = ROWS / STRIP;
    // One piece of each unit of a step, padded for banks.
    static constexpr u32 LINE = 16 * IMMA_WARPS + 16;
    static constexpr u32 SCALES = STRIP * F::SCALES;
    static constexpr u32 SUPERS = STRIP * F::SUPERS;
    // Where things are in a stage.
    static constexpr u32 HIGH_AT = STRIPS * F::LOW * LINE;
    static constexpr u32 SCALES_AT = HIGH_AT + STRIPS * F::HIGH * LINE;
    static constexpr u32 SUPERS_AT = SCALES_AT + IMMA_WARPS * STRIPS * SCALES;
    static constexpr u32 X_AT = SUPERS_AT + STRIPS * SUPERS;
    static constexpr u32 COLUMN = INTEGER_PIECES * LINE;
    static constexpr u32 STAGE = X_AT + COLUMNS * COLUMN;
    // Scales and minima of a row's unit, as floats.
    static constexpr u32 FLOATS = F::GROUP == 16 ? (F::MIN ? 4 : 2) : (F::MIN ? 2 : 1);
    // A warp's floats, which later are its sums of 16 rows and 8 columns.
    static constexpr u32 OWN = most<u32>(ROWS * FLOATS, 16 * 8) * 4;
    // Results of one matrix.
    static constexpr u32 RESULTS = ROWS * COLUMNS;
    static constexpr u32 REST = IMMA_WARPS * OWN + 2 * 4 * RESULTS;
    static constexpr u32 STAGES = least<u32>(IMMA_MAX_STAGES, (IMMA_SHARED - REST) / STAGE);
    static constexpr u32 RESULTS_AT = STAGES * STAGE + IMMA_WARPS * OWN;
    static constexpr u32 SHARED = STAGES * STAGE + REST;
    static_assert(STAGES >= 2, "one step is multiplied while another comes");
};

// The steps of a matrix in their order: part by part, and of a part every `parts`-th 32 units.
struct ImmaSteps {
    u32 part;
    u32 unit;  // first of the step; maybe behind the last one of the matrix

    DEVICE void next(u32 units, u32 parts) {
        unit += IMMA_WARPS;
        if (unit % WARP > 0) return;
        unit += WARP * (parts - 1);
        if (unit < units) return;
        part += 1;
        unit = WARP * part;
    }
};

// Brings the steps of a tile to shared memory. Addresses are computed again for each step: the sums
// leave few registers for what stays the same.
//
// Columns are rows of `x`: the first ones, or those that `rows` names if there are names.
template <class F, u32 MT, u32 NT, bool NAMED>
struct ImmaBringer {
    typedef ImmaTile<F, MT, NT> T;
    static constexpr u32 LINES = IMMA_THREADS / IMMA_WARPS;  // brought by all threads at once

    const Matrix& w;
    u32 first_strip;
    u32 end_strip;  // the tile ends before it
    const u8* x;
    u32 columns;
    const u32* rows;

    DEVICE void bring(u8* stage, u32 first_unit) const {
        const u32 i = forgotten(threadIdx.x), line = i / IMMA_WARPS, own = i % IMMA_WARPS;
        const u32 unit = first_unit + own;
        const bool there = unit < w.units;
        u8* to = stage + line * T::LINE + 16 * own;
        const u32 strips = end_strip - first_strip;
        const auto codes = [&](u8* to, const u8* plane, u32 bits) {
            const u32 first = first_strip * bits + line;
            lines(to, plane, first, unit, there ? strips * bits - line : 0, T::STRIPS * bits);
        };
        codes(to, w.low, F::LOW);
        if constexpr (F::HIGH > 0) codes(to + T::HIGH_AT, w.high, F::HIGH);
        if constexpr (NAMED) {
            named(to + T::X_AT, line, unit, there);
        } else {
            lines(to + T::X_AT, x, line, unit, there ? columns * INTEGER_PIECES - line : 0,
                  T::COLUMNS * INTEGER_PIECES);
        }
        if constexpr (T::SCALES > 0) {
            if (line < T::STRIPS) {
                const bool any = there && line < strips;
                const u64 at = static_cast<u64>(first_strip + line) * w.units + unit;
                u8* scales_to = stage + T::SCALES_AT + (own * T::STRIPS + line) * T::SCALES;
                copy_small_early<T::SCALES>(scales_to, w.scales + at * T::SCALES, any);
            }
        }
        if constexpr (T::SUPERS > 0) {
            if (i < T::STRIPS) {
                const bool any = first_unit < w.units && i < strips;
                const u32 of_strip = (w.units + SUPER_UNITS - 1) / SUPER_UNITS;
                const u64 at = static_cast<u64>(first_strip + i) * of_strip;
                const u8* from = w.supers + (at + first_unit / SUPER_UNITS) * T::SUPERS;
                copy_small_early<T::SUPERS>(stage + T::SUPERS_AT + i * T::SUPERS, from, any);
            }
        }
    }

   private:
    // Brings a piece of each of the lines `first`, `first + LINES`, ... of a plane, of which
    // shared memory has `all` in the block; those from `there` on, counted from `first`, are zeros.
    DEVICE void lines(u8* to, const u8* plane, u32 first, u32 unit, i32 there, u32 all) const {
        const u8* from = plane + (static_cast<u64>(first) * w.units + unit) * 16;
        const u64 further = static_cast<u64>(w.units) * (16 * LINES);
#pragma unroll
        for (u32 j = 0; j < (all + LINES - 1) / LINES; ++j) {
            const bool whole = (j + 1) * LINES <= all;
            const i32 at = static_cast<i32>(j * LINES);
            if (whole || forgotten(threadIdx.x) / IMMA_WARPS < all - j * LINES)
                copy_early(to + j * LINES * T::LINE, from + j * further, at < there);
        }
    }
    DEVICE void named(u8* to, u32 first, u32 unit, bool there) const {
        constexpr u32 all = T::COLUMNS * INTEGER_PIECES;
#pragma unroll
        for (u32 j = 0; j < (all + LINES - 1) / LINES; ++j) {
            const u32 at = first + j * LINES, column = at / INTEGER_PIECES;
            if ((j + 1) * LINES > all && at >= all) continue;
            const u32 row = rows[least(column, columns - 1)], piece = at % INTEGER_PIECES;
            const u8* from = activation_piece(x, row, INTEGER_PIECES, piece, w.units, unit);
            copy_early(to + j * LINES * T::LINE, from, there && column < columns);
        }
    }
};

// Words of unit `unit` of a stage: of row `row`, counted from the first one of `strip`. Places that
// differ between lanes are the same for all strips.
template <class F, class T>
struct ImmaWords {
    const u8* stage;
    u32 unit, strip, row;

    DEVICE u32 low_word(u32 i) const { return word(0, F::LOW, i); }
    DEVICE u32 high_word(u32 i) const { return word(T::HIGH_AT, F::HIGH, i); }
    DEVICE u32 scale_word() const {
        const u8* of_lane = stage + T::SCALES_AT + (unit * T::ROWS + row) * F::SCALES;
        return load_scale<F::SCALES>(of_lane, strip * STRIP);
    }

   private:
    DEVICE u32 word(u32 plane, u32 bits, u32 index) const {
        const u32 at = row % STRIP * bits + index, line = row / STRIP * bits + at / 4;
        const u8* of_lane = stage + 16 * unit + line * T::LINE + 4 * (at % 4);
        return load_vector<u32>(of_lane + (plane + strip * bits * T::LINE));
    }
};

// Leaves the scales of a warp's unit as floats in its own memory, a row to a lane.
template <class F, class T>
DEVICE void imma_scales(float* own, const u8* stage, u32 lane, u32 unit) {
#pragma unroll
    for (u32 row = lane; row < T::ROWS; row += WARP) {
        const u32 scale = load_scale<F::SCALES>(stage + T::SCALES_AT, unit * T::ROWS + row);
        const u32 super = load_scale<F::SUPERS>(stage + T::SUPERS_AT, row);
        const Scales s = scales_of<F>(ImmaWords<F, T>{stage, unit, 0, row}, &scale, &super, 0);
        float* to = own + row * T::FLOATS;
        if constexpr (T::FLOATS == 1) {
            to[0] = s.scale[0];
        } else if constexpr (T::FLOATS == 2) {
            const float second = F::MIN ? s.min[0] : s.scale[1];
            store_vector<u64>(to, static_cast<u64>(as_bits(second)) << 32 | as_bits(s.scale[0]));
        } else {
            const Words all = {{as_bits(s.scale[0]), as_bits(s.scale[1]), as_bits(s.min[0]),
                                as_bits(s.min[1])}};
            store16(to, all);
        }
    }
}

template <class F, class T>
DEVICE Scales imma_scales_of(const float* own, u32 row) {
    const float* at = own + row * T::FLOATS;
    if constexpr (T::FLOATS == 1) return {{at[0], at[0]}, {0, 0}};
    if constexpr (T::FLOATS == 2) {
        const u64 both = load_vector<u64>(at);
        const float first = as_float(static_cast<u32>(both));
        const float second = as_float(static_cast<u32>(both >> 32));
        if constexpr (F::MIN) return {{first, first}, {second, second}};
        return {{first, second}, {0, 0}};
    }
    const Words all = load16(at);
    return {{as_float(all.w[0]), as_float(all.w[1])}, {as_float(all.w[2]), as_float(all.w[3])}};
}

// Two words of each plane of eight columns of activations, and the sums of two of them.
struct ImmaColumns {
    u32 high[2];
    u32 low[2];
    UnitSums sums[2];
};

// Which words of a unit a lane multiplies: two neighbours, or one of each half where a half has its
// own scale.
template <class F>
DEVICE u32 imma_word(u32 lane, u32 i) {
    return F::GROUP == 32 ? lane % 4 * 2 + i : lane % 4 + 4 * i;
}

template <class F, class T>
DEVICE void imma_load_columns(ImmaColumns& to, const u8* unit, u32 lane, u32 n) {
    const u32 t = lane % 4, first = T::X_AT + 8 * n * T::COLUMN;
    const u8* x = unit + lane / 4 * T::COLUMN;
    if constexpr (F::GROUP == 32) {
        x += t / 2 * T::LINE + t % 2 * 8;
        const u64 high = load_vector<u64>(x + first);
        const u64 low = load_vector<u64>(x + (first + 2 * T::LINE));
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            to.high[i] = static_cast<u32>(high >> (32 * i));
            to.low[i] = static_cast<u32>(low >> (32 * i));
        }
    } else {
        x += 4 * t;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            to.high[i] = load_vector<u32>(x + (first + i * T::LINE));
            to.low[i] = load_vector<u32>(x + (first + (2 + i) * T::LINE));
        }
    }
    const u8* sums = unit + 2 * t * T::COLUMN;
#pragma unroll
    for (u32 i = 0; i < 2; ++i)
        to.sums[i] = load_vector<UnitSums>(sums + (first + i * T::COLUMN + 4 * T::LINE));
}

// Makes the high bytes' products part of the whole ones: less the codes' offset times the sum of
// the activations, which is `even` and `odd` in a lane's two columns.
template <class F>
DEVICE void imma_lift(i32 (&d)[4], i32 even, i32 odd) {
#pragma unroll
    for (u32 e = 0; e < 4; ++e) d[e] = d[e] * 256 - F::OFFSET * (e % 2 == 0 ? even : odd);
}

// Adds a unit of 16 rows and 8 columns to their sums; `add_unit` of gemv.cuh has the same numbers.
template <class F>
DEVICE void imma_add(float (&acc)[4], const u32 (&codes)[4], const Scales (&scales)[2],
                     const ImmaColumns& x) {
    const i32 zero[4] = {0, 0, 0, 0};
    const UnitSums &even = x.sums[0], &odd = x.sums[1];
    i32 dot[2][4];
    if constexpr (F::GROUP == 32) {
        mma_s8(dot[0], codes, x.high[0], x.high[1], zero);
        imma_lift<F>(dot[0], even.first + even.second, odd.first + odd.second);
        mma_s8(dot[0], codes, x.low[0], x.low[1], dot[0]);
    } else {
        mma_s8_half(dot[0], codes[0], codes[1], x.high[0], zero);
        imma_lift<F>(dot[0], even.first, odd.first);
        mma_s8_half(dot[0], codes[0], codes[1], x.low[0], dot[0]);
        mma_s8_half(dot[1], codes[2], codes[3], x.high[1], zero);
        imma_lift<F>(dot[1], even.second, odd.second);
        mma_s8_half(dot[1], codes[2], codes[3], x.low[1], dot[1]);
    }
#pragma unroll
    for (u32 e = 0; e < 4; ++e) {
        const Scales& g = scales[e / 2];
        const UnitSums& sums = x.sums[e % 2];
        float sum;
        if constexpr (F::GROUP == 16) {
            sum = fmaf(g.scale[1], static_cast<float>(dot[1][e]),
                       g.scale[0] * static_cast<float>(dot[0][e]));
            if constexpr (F::MIN) {
                sum = fmaf(-g.min[0], static_cast<float>(sums.first), sum);
                sum = fmaf(-g.min[1], static_cast<float>(sums.second), sum);
            }
        } else {
            sum = g.scale[0] * static_cast<float>(dot[0][e]);
            if constexpr (F::MIN)
                sum = fmaf(-g.min[0], static_cast<float>(sums.first + sums.second), sum);
        }
        acc[e] = fmaf(sums.scale, sum, acc[e]);
    }
}

// Adds unit `i` of a step to all of a warp's sums.
template <class F, u32 MT, u32 NT>
DEVICE void imma_unit(float (&acc)[MT][NT][4], float* own, const u8* stage, u32 i) {
    typedef ImmaTile<F, MT, NT> T;
    const u32 lane = forgotten(threadIdx.x) % WARP;
    imma_scales<F, T>(own, stage, lane, i);
    __syncwarp();
    const u8* unit = stage + 16 * i;
    ImmaColumns x[NT];
#pragma unroll
    for (u32 n = 0; n < NT; ++n) imma_load_columns<F, T>(x[n], unit, lane, n);
#pragma unroll
    for (u32 m = 0; m < MT; ++m) {
        u32 codes[4];
        Scales scales[2];
#pragma unroll
        for (u32 r = 0; r < 2; ++r) {
            const u32 eight = 2 * m + r, strip = 8 / STRIP * eight;
            const ImmaWords<F, T> words = {stage, i, strip, lane / 4};
            codes[r] = code_word<F>(words, imma_word<F>(lane, 0));
            codes[2 + r] = code_word<F>(words, imma_word<F>(lane, 1));
            scales[r] = imma_scales_of<F, T>(own + lane / 4 * T::FLOATS, 8 * eight);
        }
#pragma unroll
        for (u32 n = 0; n < NT; ++n) imma_add<F>(acc[m][n], codes, scales, x[n]);
    }
}

// Joins the warps' sums of a part, and adds them to the results of the parts before it:
// [column][row].
template <u32 MT, u32 NT>
DEVICE void imma_join(float* results, const float (&acc)[IMMA_SUMS][MT][NT][4], float* all_own,
                      u32 own_floats, u32 part) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (u32 m = 0; m < MT; ++m) {
#pragma unroll
        for (u32 n = 0; n < NT; ++n) {
            __syncthreads();
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                const u32 row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
                const float sum = (acc[0][m][n][e] + acc[2][m][n][e]) +
                                  (acc[1][m][n][e] + acc[3][m][n][e]);
                all_own[warp * own_floats + 16 * column + row] = sum;
            }
            __syncthreads();
            if (threadIdx.x >= 16 * 8) continue;
            float z[IMMA_WARPS];
#pragma unroll
            for (u32 i = 0; i < IMMA_WARPS; ++i) z[i] = all_own[i * own_floats + threadIdx.x];
            const float sum =
                ((z[0] + z[4]) + (z[2] + z[6])) + ((z[1] + z[5]) + (z[3] + z[7]));
            const u32 row = 16 * m + threadIdx.x % 16, column = 8 * n + threadIdx.x / 16;
            float& result = results[column * 16 * MT + row];
            result = part == 0 ? sum : result + sum;
        }
    }
}

// Multiplies a tile of strips, from `first_strip` and before `end_strip`, with `columns` rows of
// `x`, the first or those named. The results are in shared memory after a barrier: [column][row].
template <class F, u32 MT, u32 NT, bool NAMED>
DEVICE void imma_tile(float* results, u8* room, const Matrix& w, u32 first_strip, u32 end_strip,
                      const u8* x, u32 columns, const u32* rows) {
    typedef ImmaTile<F, MT, NT> T;
    float* const all_own = reinterpret_cast<float*>(room + T::STAGES * T::STAGE);
    const ImmaBringer<F, MT, NT, NAMED> bringer = {w, first_strip, end_strip, x, columns, rows};
    const u32 parts = parts_of(w.units);
    ImmaSteps coming = {0, 0};
    u32 stage = 0;
    const auto bring = [&](u32 to) {
        if (coming.part < parts) {
            bringer.bring(room + to * T::STAGE, coming.unit);
            coming.next(w.units, parts);
        }
        copies_begun();
    };
#pragma unroll
    for (u32 i = 0; i + 1 < T::STAGES; ++i) bring(i);
#pragma unroll 1
    for (u32 part = 0; part < parts; ++part) {
        float acc[IMMA_SUMS][MT][NT][4] = {};
#pragma unroll 1
        for (u32 group = WARP * part; group < w.units; group += WARP * parts) {
#pragma unroll
            for (u32 k = 0; k < IMMA_SUMS; ++k) {
                copied<T::STAGES - 2>();
                __syncthreads();
                // to where the step before this one was, which all warps are done with
                bring(stage == 0 ? T::STAGES - 1 : stage - 1);
                const u32 warp = forgotten(threadIdx.x) / WARP;
                if (group + IMMA_WARPS * k + warp < w.units) {
                    float* own = all_own + warp * (T::OWN / 4);
                    imma_unit<F, MT, NT>(acc[k], own, room + stage * T::STAGE, warp);
                }
                stage = stage + 1 == T::STAGES ? 0 : stage + 1;
            }
        }
        imma_join<MT, NT>(results, acc, all_own, T::OWN / 4, part);
    }
}

// As `gemv`, a tile to a block.
template <class F, u32 MT, u32 NT>
DEVICE void imma(const GemvParams& p) {
    typedef ImmaTile<F, MT, NT> T;
    LAUNCHED_SHARED(room, T::SHARED);
    float* const results = reinterpret_cast<float*>(room + T::RESULTS_AT);
    u32 tile = blockIdx.x, of = 0;
    if (p.gated == 0) {
        for (; of < 2; ++of) {
            const u32 tiles = (p.parts[of].w.strips + T::STRIPS - 1) / T::STRIPS;
            if (tile < tiles) break;
            tile -= tiles;
        }
    }
    const u32 first = tile * T::STRIPS, matrices = p.gated != 0 ? 2 : 1;
#pragma unroll 1
    for (u32 m = 0; m < matrices; ++m) {
        const Matrix& w = p.parts[of + m].w;
        imma_tile<F, MT, NT, false>(results + m * T::RESULTS, room, w, first, w.strips, p.x,
                                    p.columns, nullptr);
        __syncthreads();
    }
    const GemvPart& to = p.parts[of];
    const auto product = [&](u32 column, u32 row) {
        const float* at = results + column * T::ROWS + row;
        return p.gated != 0 ? gated(p.gated, at[0], at[T::RESULTS]) : at[0];
    };
    const u32 first_row = first * STRIP;
    if (p.integers == nullptr) {
        for (u32 i = threadIdx.x; i < T::ROWS * p.columns; i += IMMA_THREADS) {
            const u32 column = i / T::ROWS, row = first_row + i % T::ROWS;
            if (row >= to.w.rows) continue;
            const u64 place = static_cast<u64>(column) * to.w.rows + row;
            const float value = product(column, i % T::ROWS);
            to.out[place] = to.add != nullptr ? to.add[place] + value : value;
        }
        return;
    }
    const u32 units = (to.w.rows + UNIT - 1) / UNIT, in_tile = T::ROWS / UNIT;
    for (u32 i = threadIdx.x / WARP; i < in_tile * p.columns; i += IMMA_WARPS) {
        const u32 column = i / in_tile, row = i % in_tile * UNIT + threadIdx.x % WARP;
        const float value = first_row + row < to.w.rows ? product(column, row) : 0.0f;
        store_integers(p.integers, column, units, tile * in_tile + i % in_tile, value);
    }
}

#endif
