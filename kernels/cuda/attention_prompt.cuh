// Paged attention of prompts on the tensor cores, with pages of halves: 64 (token, head) rows of
// one KV head at a time.
//
// Queries are two halves each, the second holding what the first rounded away: scores then have the
// cache's accuracy. Probabilities are halves. Keys are taken 64 at a time, counted from position 0
// wherever a window begins: what a row does not see has weight zero and changes no bit of it. The
// next keys and values are on their way while these are multiplied.
#ifndef OCTAVO_ATTENTION_PROMPT
#define OCTAVO_ATTENTION_PROMPT

#include "attention.cuh"

constexpr u32 QUERIES = 64;
constexpr u32 KEYS = 64;

// Keys or values in shared memory; eight more of each, for the banks: see gemm.cuh.
template <int DIM>
using HalfTile = u16[KEYS][DIM + 8];

// What a thread works on. The queries of its block are (row, head of a KV head) in that order, 16
// to a warp.
struct PromptPlace {
    u32 lane, warp;
    u32 first_row, head_kv, per_kv, n_queries;

    DEVICE u32 row(u32 query) const { return first_row + query / per_kv; }
};

// The queries of a warp as left factors: their leading halves, and the halves of what is left.
template <int DIM>
struct QueryHalves {
    u32 leading[DIM / 16][4], rest[DIM / 16][4];

    // Through shared memory, all threads together: leading halves through `keys`, the rest through
    // `values`.
    DEVICE void load(const AttentionParams& p, const PromptPlace& place, HalfTile<DIM>& keys,
                     HalfTile<DIM>& values) {
        for (u32 i = threadIdx.x; i < QUERIES * DIM; i += ATTEND_THREADS) {
            const u32 query = i / DIM, d = i % DIM;
            float x = 0.0f;
            if (query < place.n_queries) {
                const u64 head = static_cast<u64>(place.row(query)) * p.heads +
                                 place.head_kv * place.per_kv + query % place.per_kv;
                x = p.q[head * DIM + d] * p.scale;
            }
            const u16 half = float_to_half(x);
            keys[query][d] = half;
            values[query][d] = float_to_half(x - half_to_float(half));
        }
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < DIM / 16; ++k) {
            const u32 query = place.warp * 16 + place.lane % 16;
            const u32 column = 16 * k + place.lane / 16 * 8;
            load_matrices(leading[k], &keys[query][column]);
            load_matrices(rest[k], &values[query][column]);
        }
        __syncthreads();
    }
};

// Where keys and values come from: the pages of the sequence whose row this is. What is needed are
// those from `first` up to `visible`.
template <int DIM>
struct PromptPages {
    const AttentionParams& p;
    const u8* all_k;
    const u8* all_v;
    const u32* table;
    u32 row, head_kv, first, visible;

    // Begins to copy 64 of both.
    DEVICE void bring(HalfTile<DIM>* keys, HalfTile<DIM>* values, u32 first_key, u32 tile) const {
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
                is_needed(key) && checked_page(p.paging, row, page[i]) < p.paging.n_pages;
            const u64 start = page_start<KvF16>(there ? page[i] : 0, p.heads_kv, head_kv, DIM);
            const u64 from = start + 2 * ((first_key + key) % PAGE * DIM + d);
            copy_early(&keys[tile][key][d], all_k + from, there);
            copy_early(&values[tile][key][d], all_v + from, there);
        }
    }
};

// A lane's scores of 64 keys, two queries of each: elements as `mma_f16` has them.
typedef float PromptScores[KEYS / 8][4];

template <int DIM>
DEVICE void score_keys(PromptScores& score, const QueryHalves<DIM>& q, const HalfTile<DIM>& keys,
                       const AttentionParams& p, u32 lane) {
#pragma unroll
    for (u32 k = 0; k < DIM / 16; ++k) {
#pragma unroll
        for (u32 n = 0; n < KEYS / 16; ++n) {
            u32 b[4];
            const u32 key = 16 * n + lane / 16 * 8 + lane % 8;
            load_matrices(b, &keys[key][16 * k + lane / 8 % 2 * 8]);
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                mma_f16(score[2 * n + i], q.leading[k], b[2 * i], b[2 * i + 1]);
                mma_f16(score[2 * n + i], q.rest[k], b[2 * i], b[2 * i + 1]);
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
}

// The softmax of the two queries of which a lane has scores, over the keys up to now: the largest
// score, the sum of weights, and the lane's values of the weighted sum.
template <int DIM>
struct PromptSums {
    float max[2], total[2], sum[DIM / 8][4];

    // Makes weights of the scores of the keys from `first_key` on that query `i` sees.
    DEVICE void weigh(PromptScores& score, const Seen& seen, u32 first_key, u32 i, u32 lane) {
        float top = max[i];
#pragma unroll
        for (u32 n = 0; n < KEYS / 8; ++n) {
#pragma unroll
            for (u32 e = 0; e < 2; ++e) {
                const u32 key = first_key + 8 * n + lane % 4 * 2 + e;
                float& s = score[n][2 * i + e];
                if (key < seen.first || key >= seen.end) s = minus_infinity();
                top = fmaxf(top, s);
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
                s = key < seen.first || key >= seen.end ? 0.0f : expf(s - top);
                added += s;
            }
        }
        total[i] += lanes_sum<4>(added);
    }
    // Adds the values by their weights.
    DEVICE void add(const PromptScores& weights, const HalfTile<DIM>& values, u32 lane) {
#pragma unroll
        for (u32 n = 0; n < KEYS / 16; ++n) {
            // what a lane has of two tiles of scores is what it needs of a left factor
            const u32 a[4] = {pack_halves(weights[2 * n][0], weights[2 * n][1]),
                              pack_halves(weights[2 * n][2], weights[2 * n][3]),
                              pack_halves(weights[2 * n + 1][0], weights[2 * n + 1][1]),
                              pack_halves(weights[2 * n + 1][2], weights[2 * n + 1][3])};
#pragma unroll
            for (u32 d = 0; d < DIM / 16; ++d) {
                u32 b[4];
                const u32 key = 16 * n + lane % 16;
                load_matrices_transposed(b, &values[key][16 * d + lane / 16 * 8]);
                mma_f16(sum[2 * d], a, b[0], b[1]);
                mma_f16(sum[2 * d + 1], a, b[2], b[3]);
            }
        }
    }
    // Writes the result of query `i`, which is this one of its block's.
    DEVICE void store(const AttentionParams& p, const PromptPlace& place, u32 query, u32 i) const {
        const u32 of_row = place.head_kv * place.per_kv + query % place.per_kv;
        const u64 head = static_cast<u64>(place.row(query)) * p.heads + of_row;
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
                p.out[head * DIM + 8 * d + place.lane % 4 * 2 + e] =
                    all == 0.0f ? 0.0f : sum[d][2 * i + e] * weight / all;
        }
    }
};

// Blocks are (tile of rows, KV head). A tile's rows are neighbours in one sequence, at most QUERIES
// / (heads of a KV head).
template <int DIM>
DEVICE void attend_prompt(const AttentionParams& p) {
    static_assert(DIM % 16 == 0 && DIM <= 128,
                  "the tensor cores take 16 values at a time, and registers are few");
    LAUNCHED_SHARED(tiles, 4 * sizeof(HalfTile<DIM>));
    // two tiles of keys, and two of values
    HalfTile<DIM>* const keys = reinterpret_cast<HalfTile<DIM>*>(tiles);
    HalfTile<DIM>* const values = keys + 2;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 first_row = p.tiles[2 * blockIdx.x], n_rows = p.tiles[2 * blockIdx.x + 1];
    const u32 head_kv = blockIdx.y, per_kv = p.heads / p.heads_kv;
    const PromptPlace place = {lane, warp, first_row, head_kv, per_kv, n_rows * per_kv};
    const u32* table = table_of(p.paging, first_row);
    const u8* all_k = static_cast<const u8*>(p.pages_k);
    const u8* all_v = static_cast<const u8*>(p.pages_v);
    QueryHalves<DIM> q;
    q.load(p, place, keys[0], values[0]);

    // the two queries of which this lane has scores
    Seen seen[2] = {};  // none of those that there are not
    u32 query[2];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        query[i] = warp * 16 + lane / 4 + 8 * i;
        if (query[i] < place.n_queries) seen[i] = seen_by(p, place.row(query[i]));
    }
    PromptSums<DIM> sums = {{minus_infinity(), minus_infinity()}, {}, {}};
    // of all rows, the first one sees the first keys, and the last one the last
    const u32 first = seen_by(p, first_row).first, visible = seen_by(p, first_row + n_rows - 1).end;
    const PromptPages<DIM> pages = {p, all_k, all_v, table, first_row, head_kv, first, visible};
    const u32 begin = first / KEYS * KEYS;
    if (begin < visible) pages.bring(keys, values, begin, 0);
    copies_begun();
    for (u32 first_key = begin, tile = 0; first_key < visible; first_key += KEYS, tile ^= 1) {
        if (first_key + KEYS < visible) pages.bring(keys, values, first_key + KEYS, tile ^ 1);
        copies_begun();
        copied<1>();
        __syncthreads();
        PromptScores score = {};
        score_keys<DIM>(score, q, keys[tile], p, lane);
#pragma unroll
        for (u32 i = 0; i < 2; ++i) sums.weigh(score, seen[i], first_key, i, lane);
        sums.add(score, values[tile], lane);
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        if (query[i] < place.n_queries) sums.store(p, place, query[i], i);
    }
}

#endif
