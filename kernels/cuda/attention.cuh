// Paged attention.
//
// `attend_split`: any rows, float arithmetic, pages of any type. Blocks take (KV head, row, split):
// a fixed number of splits shares a row's pages by the length that is read from device memory, so
// that few rows keep the whole device busy and a captured launch serves every length. A warp takes
// a page at a time; neighbouring lanes have a position's values, eight each, and every group of
// lanes keeps its own softmax until the end. Partial sums are joined in the order of warps and
// lanes, then of splits: never by who is first.
//
// A row in a window takes none of the pages that lie wholly outside of it: the others are shared
// among its splits.
//
// `attend_prompt`: 64 (token, head) rows of one KV head on the tensor cores, pages of halves.
// Queries are two halves each, the second holding what the first rounded away: scores then have the
// cache's accuracy. Probabilities are halves. Keys are taken 64 at a time, counted from position 0
// wherever a window begins: what a row does not see has weight zero and changes no bit of it. The
// next keys and values are on their way while these are multiplied.
#ifndef OCTAVO_ATTENTION
#define OCTAVO_ATTENTION

#include "activations.cuh"
#include "paging.cuh"
#include "softcap.cuh"

struct AttentionParams {
    const float* q;       // (rows, heads, head_dim)
    const void* pages_k;  // of this layer
    const void* pages_v;
    float* sums;    // (rows, heads, splits, head_dim): of split rows only
    float* states;  // (rows, heads, splits, 2): maximum and sum
    float* out;     // (rows, heads, head_dim)
    u8* integers;      // instead of `out` if not null: (rows, units), see activations.cuh
    const u32* tiles;  // (tiles, 2): first row and number of rows, of prompts only
    const float* sinks;  // (heads), or null: scores that count in the sum of weights alone
    const u32* firsts;  // (rows), or null: the first position of what the row sees
    // (rows): what is behind that, then; else the positions of the row's sequence, this step's with
    // them; 0 of padding
    const u32* ends;
    Paging paging;
    u32 heads;     // of queries
    u32 heads_kv;
    u32 splits;
    float scale;
    float cap;   // of scaled scores; 0: none
    u32 window;  // positions that a row sees up to its own, with this; 0: all
    u32 after;   // positions that it sees behind its own, if there are so many; below 2^31
    u32 unused;
};
static_assert(sizeof(AttentionParams) == 168, "kernels/src/cuda/params.rs has the same");

constexpr u32 ATTEND_THREADS = 128;
constexpr u32 ATTEND_WARPS = ATTEND_THREADS / WARP;
constexpr u32 MOST_SPLITS = 16;

// The positions that a row sees: from `first` up to `end`. Padding sees none.
struct Seen {
    u32 first, end;
};

DEVICE Seen seen_by(const AttentionParams& p, u32 row) {
    if (p.firsts != nullptr) return {p.firsts[row], p.ends[row]};
    const u32 own = static_cast<u32>(p.paging.positions[row] + 1);
    const u32 first = p.window != 0 && own > p.window ? own - p.window : 0;
    return {first, least(own + p.after, p.ends[row])};
}

// The sink of a query head; where there are none, what adds nothing.
DEVICE float sink_of(const AttentionParams& p, u32 head) {
    return p.sinks == nullptr ? minus_infinity() : p.sinks[head];
}

DEVICE constexpr int power_of_two(int n) {
    int p = 2;
    while (p < n) p *= 2;
    return p;
}

// `HEADS`: query heads of a KV head that a block takes at a time.
template <class Kv, int DIM, int HEADS>
DEVICE void attend_split(const AttentionParams& p) {
    static_assert(DIM % 8 == 0 && DIM <= 256, "a lane has eight values");
    constexpr int lanes = power_of_two(DIM / 8);
    constexpr u32 groups = WARP / lanes;  // positions at a time
    constexpr int steps = PAGE / groups;
    // whether a page's values fit in 32 registers: then they are fetched while its keys are on
    // their way
    constexpr bool early = steps * sizeof(typename Kv::Eight) <= 128;
    constexpr u32 parts = ATTEND_WARPS * groups;
    SHARED(float, part_sums, [parts][HEADS][DIM]);
    SHARED(float, part_states, [parts][HEADS][2]);

    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 piece = lane % lanes, group = lane / lanes;
    const bool active = piece < DIM / 8;
    const u32 per_kv = p.heads / p.heads_kv, chunks = (per_kv + HEADS - 1) / HEADS;
    const u32 head_kv = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
    const u32 first_head = head_kv * per_kv + chunk * HEADS;
    const u32 n_heads = least<u32>(HEADS, per_kv - chunk * HEADS);
    const u32 row = blockIdx.y, split = blockIdx.z;

    const Seen of_row = seen_by(p, row);
    const u32 first = of_row.first, visible = of_row.end, first_page = first / PAGE;
    const u32 pages = (visible + PAGE - 1) / PAGE - first_page;
    const u32 begin = first_page + split * pages / p.splits;
    const u32 end = first_page + (split + 1) * pages / p.splits;
    const u32* table = table_of(p.paging, row);
    const u8* all_k = static_cast<const u8*>(p.pages_k);
    const u8* all_v = static_cast<const u8*>(p.pages_v);

    float q[HEADS][8];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const u64 at = (static_cast<u64>(row) * p.heads + first_head + h) * DIM + 8 * piece + i;
            q[h][i] = active && static_cast<u32>(h) < n_heads ? p.q[at] * p.scale : 0.0f;
        }
    }
    float max[HEADS], total[HEADS], sum[HEADS][8] = {};
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        max[h] = minus_infinity();
        total[h] = 0.0f;
    }

    for (u32 page = begin + warp; page < end; page += ATTEND_WARPS) {
        const u32 number = page_of(p.paging, row, table, page);
        if (number >= p.paging.n_pages) continue;
        const u64 base = page_start<Kv>(number, p.heads_kv, head_kv, DIM);
        // what is seen of the page: from `before` up to `in_page`, at least one position
        const u32 before = most(first, page * PAGE) - page * PAGE;
        const u32 in_page = least(visible - page * PAGE, PAGE);
        typename Kv::Eight keys[early ? steps : 1] = {}, values[early ? steps : 1] = {};
        if constexpr (early) {
#pragma unroll
            for (int s = 0; s < steps; ++s) {
                const u32 at = s * groups + group;
                if (active) keys[s] = Kv::fetch(all_k + base, at, 8 * piece, DIM);
                // what lies behind the last position was never written: zero times that may be no
                // number
                if (active && at >= before && at < in_page)
                    values[s] = Kv::fetch(all_v + base, at, 8 * piece, DIM);
            }
        }
        float score[HEADS][steps];
#pragma unroll
        for (int s = 0; s < steps; ++s) {
            float k[8] = {};
            if (active) {
                if constexpr (early) {
                    Kv::decode(k, keys[s]);
                } else {
                    Kv::decode(k, Kv::fetch(all_k + base, s * groups + group, 8 * piece, DIM));
                }
            }
#pragma unroll
            for (int h = 0; h < HEADS; ++h) {
                float dot = 0.0f;
#pragma unroll
                for (int i = 0; i < 8; ++i) dot = fmaf(q[h][i], k[i], dot);
                score[h][s] = lanes_sum<lanes>(dot);
            }
        }
        if (group >= in_page) continue;
        if (p.cap != 0.0f) {
#pragma unroll
            for (int h = 0; h < HEADS; ++h) {
#pragma unroll
                for (int s = 0; s < steps; ++s) score[h][s] = soft_capped(score[h][s], p.cap);
            }
        }
        bool seen[steps];
#pragma unroll
        for (int s = 0; s < steps; ++s) {
            const u32 at = s * groups + group;
            seen[s] = at >= before && at < in_page;
        }
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            float top = max[h];
#pragma unroll
            for (int s = 0; s < steps; ++s) top = seen[s] ? fmaxf(top, score[h][s]) : top;
            const float shrink = total[h] == 0.0f ? 0.0f : expf(max[h] - top);
            max[h] = top;
            total[h] *= shrink;
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[h][i] *= shrink;
#pragma unroll
            for (int s = 0; s < steps; ++s) {
                // `top` is no number to subtract where a lane has seen nothing yet
                score[h][s] = seen[s] ? expf(score[h][s] - top) : 0.0f;
                total[h] += score[h][s];
            }
        }
#pragma unroll
        for (int s = 0; s < steps; ++s) {
            float v[8] = {};
            if (active && seen[s]) {
                if constexpr (early) {
                    Kv::decode(v, values[s]);
                } else {
                    Kv::decode(v, Kv::fetch(all_v + base, s * groups + group, 8 * piece, DIM));
                }
            }
#pragma unroll
            for (int h = 0; h < HEADS; ++h) {
#pragma unroll
                for (int i = 0; i < 8; ++i) sum[h][i] = fmaf(score[h][s], v[i], sum[h][i]);
            }
        }
    }

    const u32 part = warp * groups + group;
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        if (active) {
#pragma unroll
            for (int i = 0; i < 8; ++i) part_sums[part][h][8 * piece + i] = sum[h][i];
        }
        if (piece == 0) {
            part_states[part][h][0] = max[h];
            part_states[part][h][1] = total[h];
        }
    }
    __syncthreads();
    for (u32 e = threadIdx.x; e < n_heads * DIM; e += ATTEND_THREADS) {
        const u32 h = e / DIM, d = e % DIM;
        float top = minus_infinity(), joined = 0.0f, value = 0.0f;
        for (u32 i = 0; i < parts; ++i) top = fmaxf(top, part_states[i][h][0]);
        for (u32 i = 0; i < parts; ++i) {
            // parts without positions have no maximum
            const float n = part_states[i][h][1];
            const float weight = n == 0.0f ? 0.0f : expf(part_states[i][h][0] - top);
            joined = fmaf(n, weight, joined);
            value = fmaf(part_sums[i][h][d], weight, value);
        }
        const u64 to = (static_cast<u64>(row) * p.heads + first_head + h) * p.splits + split;
        p.sums[to * DIM + d] = value;
        if (d == 0) {
            p.states[2 * to] = top;
            p.states[2 * to + 1] = joined;
        }
    }
}

// Joins the splits of one row and head (blockIdx.x), in their order.
template <int DIM>
DEVICE void attend_merge(const AttentionParams& p) {
    const u64 first = static_cast<u64>(blockIdx.x) * p.splits;
    for (u32 d = threadIdx.x; d < DIM; d += ATTEND_THREADS) {
        // all reads at once, then the sums in their order
        float tops[MOST_SPLITS], totals[MOST_SPLITS], sums[MOST_SPLITS];
#pragma unroll
        for (u32 i = 0; i < MOST_SPLITS; ++i) {
            const bool there = i < p.splits;
            tops[i] = there ? p.states[2 * (first + i)] : minus_infinity();
            totals[i] = there ? p.states[2 * (first + i) + 1] : 0.0f;
            sums[i] = there ? p.sums[(first + i) * DIM + d] : 0.0f;
        }
        float top = minus_infinity(), joined = 0.0f, value = 0.0f;
#pragma unroll
        for (u32 i = 0; i < MOST_SPLITS; ++i) top = fmaxf(top, tops[i]);
        const float sink = sink_of(p, blockIdx.x % p.heads);
        top = fmaxf(top, sink);
#pragma unroll
        for (u32 i = 0; i < MOST_SPLITS; ++i) {
            const float weight = totals[i] == 0.0f ? 0.0f : expf(tops[i] - top);
            joined = fmaf(totals[i], weight, joined);
            value = fmaf(sums[i], weight, value);
        }
        if (p.sinks != nullptr) joined += expf(sink - top);
        value = joined == 0.0f ? 0.0f : value / joined;
        if constexpr (DIM % UNIT == 0) {
            if (p.integers != nullptr) {
                const u32 units = p.heads * (DIM / UNIT);
                const u32 unit = blockIdx.x % p.heads * (DIM / UNIT) + d / UNIT;
                store_integers(p.integers, blockIdx.x / p.heads, units, unit, value);
                continue;
            }
        }
        p.out[static_cast<u64>(blockIdx.x) * DIM + d] = value;
    }
}

constexpr u32 QUERIES = 64;
constexpr u32 KEYS = 64;

// Blocks are (tile of rows, KV head). A tile's rows are neighbours in one sequence, at most QUERIES
// / (heads of a KV head); its 64 queries are (row, head) in that order, 16 to a warp.
template <int DIM>
DEVICE void attend_prompt(const AttentionParams& p) {
    static_assert(DIM % 16 == 0 && DIM <= 128,
                  "the tensor cores take 16 values at a time, and registers are few");
    constexpr u32 stride = DIM + 8;  // eight more, for the banks: see gemm.cuh
    typedef u16 Tile[KEYS][stride];
    LAUNCHED_SHARED(tiles, 4 * sizeof(Tile));
    // two tiles of keys, and two of values
    Tile* const keys = reinterpret_cast<Tile*>(tiles);
    Tile* const values = keys + 2;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 first_row = p.tiles[2 * blockIdx.x], n_rows = p.tiles[2 * blockIdx.x + 1];
    const u32 head_kv = blockIdx.y, per_kv = p.heads / p.heads_kv, n_queries = n_rows * per_kv;
    const u32* table = table_of(p.paging, first_row);
    const u8* all_k = static_cast<const u8*>(p.pages_k);
    const u8* all_v = static_cast<const u8*>(p.pages_v);

    // queries through shared memory into registers: their leading halves through `keys`, the rest
    // through `values`
    for (u32 i = threadIdx.x; i < QUERIES * DIM; i += ATTEND_THREADS) {
        const u32 query = i / DIM, d = i % DIM;
        float x = 0.0f;
        if (query < n_queries) {
            const u64 head = static_cast<u64>(first_row + query / per_kv) * p.heads +
                             head_kv * per_kv + query % per_kv;
            x = p.q[head * DIM + d] * p.scale;
        }
        const u16 leading = float_to_half(x);
        keys[0][query][d] = leading;
        values[0][query][d] = float_to_half(x - half_to_float(leading));
    }
    __syncthreads();
    u32 q[DIM / 16][4], rest[DIM / 16][4];
#pragma unroll
    for (u32 k = 0; k < DIM / 16; ++k) {
        load_matrices(q[k], &keys[0][warp * 16 + lane % 16][16 * k + lane / 16 * 8]);
        load_matrices(rest[k], &values[0][warp * 16 + lane % 16][16 * k + lane / 16 * 8]);
    }
    __syncthreads();

    // the two queries of which this lane has scores
    Seen seen[2] = {};  // none of those that there are not
    u32 query[2];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        query[i] = warp * 16 + lane / 4 + 8 * i;
        if (query[i] < n_queries) seen[i] = seen_by(p, first_row + query[i] / per_kv);
    }
    float max[2] = {minus_infinity(), minus_infinity()}, total[2] = {}, sum[DIM / 8][4] = {};
    // of all rows, the first one sees the first keys, and the last one the last
    const u32 first = seen_by(p, first_row).first, visible = seen_by(p, first_row + n_rows - 1).end;
    const auto bring = [&](u32 first_key, u32 tile) {
        constexpr u32 pieces = KEYS * DIM / 8 / ATTEND_THREADS;
        // nothing was written behind the last position, and what lies before the first may be gone:
        // zero times that may be no number
        const auto is_needed = [&](u32 key) {
            return first_key + key >= first && first_key + key < visible;
        };
        // all numbers of pages are asked for before any of them is used
        u32 page[pieces];
#pragma unroll
        for (u32 i = 0; i < pieces; ++i) {
            const u32 key = (i * ATTEND_THREADS + threadIdx.x) / (DIM / 8);
            page[i] = is_needed(key) ? table[(first_key + key) / PAGE] : 0;
        }
#pragma unroll
        for (u32 i = 0; i < pieces; ++i) {
            const u32 piece = i * ATTEND_THREADS + threadIdx.x;
            const u32 key = piece / (DIM / 8), d = piece % (DIM / 8) * 8;
            const bool there =
                is_needed(key) && checked_page(p.paging, first_row, page[i]) < p.paging.n_pages;
            const u64 start = page_start<KvF16>(there ? page[i] : 0, p.heads_kv, head_kv, DIM);
            const u64 from = start + 2 * ((first_key + key) % PAGE * DIM + d);
            copy_early(&keys[tile][key][d], all_k + from, there);
            copy_early(&values[tile][key][d], all_v + from, there);
        }
    };
    const u32 begin = first / KEYS * KEYS;
    if (begin < visible) bring(begin, 0);
    copies_begun();
    for (u32 first_key = begin, tile = 0; first_key < visible; first_key += KEYS, tile ^= 1) {
        if (first_key + KEYS < visible) bring(first_key + KEYS, tile ^ 1);
        copies_begun();
        copied<1>();
        __syncthreads();

        float score[KEYS / 8][4] = {};
#pragma unroll
        for (u32 k = 0; k < DIM / 16; ++k) {
#pragma unroll
            for (u32 n = 0; n < KEYS / 16; ++n) {
                u32 b[4];
                load_matrices(
                    b, &keys[tile][16 * n + lane / 16 * 8 + lane % 8][16 * k + lane / 8 % 2 * 8]);
#pragma unroll
                for (u32 i = 0; i < 2; ++i) {
                    mma_f16(score[2 * n + i], q[k], b[2 * i], b[2 * i + 1]);
                    mma_f16(score[2 * n + i], rest[k], b[2 * i], b[2 * i + 1]);
                }
            }
        }
        if (p.cap != 0.0f) {
#pragma unroll
            for (u32 n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                for (u32 e = 0; e < 4; ++e) score[n][e] = soft_capped(score[n][e], p.cap);
            }
        }
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float top = max[i];
#pragma unroll
            for (u32 n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                for (u32 e = 0; e < 2; ++e) {
                    const u32 key = first_key + 8 * n + lane % 4 * 2 + e;
                    if (key < seen[i].first || key >= seen[i].end)
                        score[n][2 * i + e] = minus_infinity();
                    top = fmaxf(top, score[n][2 * i + e]);
                }
            }
            top = lanes_max<4>(top);
            const float shrink = total[i] == 0.0f ? 0.0f : expf(max[i] - top);
            max[i] = top;
            total[i] *= shrink;
#pragma unroll
            for (u32 d = 0; d < DIM / 8; ++d) {
                sum[d][2 * i] *= shrink;
                sum[d][2 * i + 1] *= shrink;
            }
            float added = 0.0f;
#pragma unroll
            for (u32 n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                for (u32 e = 0; e < 2; ++e) {
                    const u32 key = first_key + 8 * n + lane % 4 * 2 + e;
                    float& s = score[n][2 * i + e];
                    s = key < seen[i].first || key >= seen[i].end ? 0.0f : expf(s - top);
                    added += s;
                }
            }
            total[i] += lanes_sum<4>(added);
        }
#pragma unroll
        for (u32 n = 0; n < KEYS / 16; ++n) {
            // what a lane has of two tiles of scores is what it needs of a left factor
            const u32 a[4] = {pack_halves(score[2 * n][0], score[2 * n][1]),
                              pack_halves(score[2 * n][2], score[2 * n][3]),
                              pack_halves(score[2 * n + 1][0], score[2 * n + 1][1]),
                              pack_halves(score[2 * n + 1][2], score[2 * n + 1][3])};
#pragma unroll
            for (u32 d = 0; d < DIM / 16; ++d) {
                u32 b[4];
                load_matrices_transposed(b,
                                         &values[tile][16 * n + lane % 16][16 * d + lane / 16 * 8]);
                mma_f16(sum[2 * d], a, b[0], b[1]);
                mma_f16(sum[2 * d + 1], a, b[2], b[3]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        if (query[i] >= n_queries) continue;
        const u32 of_row = head_kv * per_kv + query[i] % per_kv;
        const u64 head = static_cast<u64>(first_row + query[i] / per_kv) * p.heads + of_row;
        float weight = 1.0f, all = total[i];
        if (p.sinks != nullptr) {
            const float sink = sink_of(p, of_row), top = fmaxf(max[i], sink);
            weight = all == 0.0f ? 0.0f : expf(max[i] - top);
            all = fmaf(all, weight, expf(sink - top));
        }
#pragma unroll
        for (u32 d = 0; d < DIM / 8; ++d) {
#pragma unroll
            for (u32 e = 0; e < 2; ++e)
                p.out[head * DIM + 8 * d + lane % 4 * 2 + e] =
                    all == 0.0f ? 0.0f : sum[d][2 * i + e] * weight / all;
        }
    }
}

#endif
