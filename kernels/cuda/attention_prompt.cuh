// Paged attention of prompts on the tensor cores: 64 (token, head) rows of one KV head at a time.
//
// Queries are two halves each, the second holding what the first rounded away: scores then have the
// cache's accuracy, where it has halves. Other types of the cache are decoded to halves on their
// way. Probabilities are halves. Keys are taken 64 at a time, counted from position 0 wherever a
// window begins: what a row does not see has weight zero and changes no bit of it. The next keys
// and values are on their way while these are multiplied.
//
// A warp has 16 queries. Of heads of more than 128 values two warps share them: each has half of a
// head's values, so that sums fit in registers, and both add up their scores. There is room for one
// tile of keys and one of values then; keys come while values are multiplied, and the other way.
#ifndef OCTAVO_ATTENTION_PROMPT
#define OCTAVO_ATTENTION_PROMPT

#include "attention.cuh"

constexpr u32 QUERIES = 64;
constexpr u32 KEYS = 64;

// Warps that share queries, the values of a head that each has, and the threads of a block.
// kernels/src/cuda/launch.rs has the same numbers.
template <int DIM>
constexpr u32 PROMPT_PARTS = DIM <= 128 ? 1 : 2;
template <int DIM>
constexpr u32 PROMPT_WIDTH = DIM / PROMPT_PARTS<DIM>;
template <int DIM>
constexpr u32 PROMPT_THREADS = ATTEND_THREADS * PROMPT_PARTS<DIM>;

// Whether keys and values are copied as they are.
template <class Kv>
constexpr bool IS_COPIED = false;
template <>
constexpr bool IS_COPIED<KvF16> = true;

// Keys or values in shared memory; eight more of each, for the banks: see gemm.cuh.
template <int DIM>
using HalfTile = u16[KEYS][DIM + 8];

// What a thread works on. The queries of its block are (row, head of a KV head) in that order, 16
// to a warp, whose part of a head's values is number `part`.
struct PromptPlace {
    u32 lane, warp, part;
    u32 first_row, head_kv, per_kv, n_queries;

    DEVICE u32 row(u32 query) const { return first_row + query / per_kv; }
};

// The queries of a warp as left factors: their leading halves, and the halves of what is left.
template <int DIM>
struct QueryHalves {
    static constexpr u32 WIDTH = PROMPT_WIDTH<DIM>;
    u32 leading[WIDTH / 16][4], rest[WIDTH / 16][4];

    // Through shared memory, all threads together: leading halves through `keys`, the rest through
    // `values`.
    DEVICE void load(const AttentionParams& p, const PromptPlace& place, HalfTile<DIM>& keys,
                     HalfTile<DIM>& values) {
        for (u32 i = threadIdx.x; i < QUERIES * DIM; i += PROMPT_THREADS<DIM>) {
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
        for (u32 k = 0; k < WIDTH / 16; ++k) {
            const u32 query = place.warp * 16 + place.lane % 16;
            const u32 column = place.part * WIDTH + 16 * k + place.lane / 16 * 8;
            load_matrices(leading[k], &keys[query][column]);
            load_matrices(rest[k], &values[query][column]);
        }
        __syncthreads();
    }
};

// Where keys and values come from: the pages of the sequence whose row this is. What is needed are
// those from `first` up to `visible`.
template <class Kv, int DIM>
struct PromptPages {
    static constexpr u32 PIECES = KEYS * DIM / 8 / PROMPT_THREADS<DIM>;

    const AttentionParams& p;
    const u32* table;
    u32 row, head_kv, first, visible;

    // Begins to copy 64 of either.
    DEVICE void bring(HalfTile<DIM>& to, const void* all, u32 first_key) const {
        u32 page[PIECES];
        find(page, first_key);
        copy(to, all, first_key, page);
    }
    // Begins to copy 64 of both.
    DEVICE void bring_both(HalfTile<DIM>& keys, HalfTile<DIM>& values, u32 first_key) const {
        u32 page[PIECES];
        find(page, first_key);
        copy(keys, p.pages_k, first_key, page);
        copy(values, p.pages_v, first_key, page);
    }

   private:
    // nothing was written behind the last position, and what lies before the first may be gone:
    // zero times that may be no number
    DEVICE bool is_needed(u32 key) const { return key >= first && key < visible; }
    DEVICE static u32 key_of(u32 piece) {
        return (piece * PROMPT_THREADS<DIM> + threadIdx.x) / (DIM / 8);
    }
    // All numbers of pages are asked for before any of them is used.
    DEVICE void find(u32 (&page)[PIECES], u32 first_key) const {
#pragma unroll
        for (u32 i = 0; i < PIECES; ++i) {
            const u32 key = first_key + key_of(i);
            page[i] = is_needed(key) ? table[key / PAGE] : 0;
        }
    }
    DEVICE void copy(HalfTile<DIM>& to, const void* all, u32 first_key,
                     const u32 (&page)[PIECES]) const {
#pragma unroll
        for (u32 i = 0; i < PIECES; ++i) {
            const u32 key = key_of(i), d = (i * PROMPT_THREADS<DIM> + threadIdx.x) % (DIM / 8) * 8;
            const bool there = is_needed(first_key + key) &&
                               checked_page(p.paging, row, page[i]) < p.paging.n_pages;
            const u64 start = page_start<Kv>(there ? page[i] : 0, p.heads_kv, head_kv, DIM);
            const u8* from = static_cast<const u8*>(all) + start;
            const u32 position = (first_key + key) % PAGE;
            if constexpr (IS_COPIED<Kv>) {
                copy_early(&to[key][d], from + 2 * (position * DIM + d), there);
            } else {
                Words words = {};
                if (there) {
                    float v[8];
                    Kv::decode(v, Kv::fetch(from, position, d, DIM));
#pragma unroll
                    for (u32 j = 0; j < 4; ++j)
                        words.w[j] = pack_halves(v[2 * j], v[2 * j + 1]);
                }
                store16(&to[key][d], words);
            }
        }
    }
};

// A lane's scores of 64 keys, two queries of each: elements as `mma_f16` has them.
typedef float PromptScores[KEYS / 8][4];

// Adds what a warp's part of a head's values makes of them.
template <int DIM>
DEVICE void score_keys(PromptScores& score, const QueryHalves<DIM>& q, const HalfTile<DIM>& keys,
                       const PromptPlace& place) {
    const u32 lane = place.lane, first = place.part * PROMPT_WIDTH<DIM>;
#pragma unroll
    for (u32 k = 0; k < PROMPT_WIDTH<DIM> / 16; ++k) {
#pragma unroll
        for (u32 n = 0; n < KEYS / 16; ++n) {
            u32 b[4];
            const u32 key = 16 * n + lane / 16 * 8 + lane % 8;
            load_matrices(b, &keys[key][first + 16 * k + lane / 8 % 2 * 8]);
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                mma_f16(score[2 * n + i], q.leading[k], b[2 * i], b[2 * i + 1]);
                mma_f16(score[2 * n + i], q.rest[k], b[2 * i], b[2 * i + 1]);
            }
        }
    }
}

DEVICE void cap_scores(PromptScores& score, float cap) {
    if (cap == 0.0f) return;
#pragma unroll
    for (u32 n = 0; n < KEYS / 8; ++n) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) score[n][e] = soft_capped(score[n][e], cap);
    }
}

// Scores of a block's warps, each lane's apart: what warps that share queries tell each other.
typedef float SharedScores[ATTEND_THREADS / WARP][2][KEYS / 8][4][WARP];

DEVICE void tell_scores(SharedScores& all, const PromptScores& score, const PromptPlace& place) {
#pragma unroll
    for (u32 n = 0; n < KEYS / 8; ++n) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) all[place.warp][place.part][n][e][place.lane] = score[n][e];
    }
}
DEVICE void add_scores(PromptScores& score, const SharedScores& all, const PromptPlace& place) {
#pragma unroll
    for (u32 n = 0; n < KEYS / 8; ++n) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e)
            score[n][e] += all[place.warp][place.part ^ 1][n][e][place.lane];
    }
}

// The softmax of the two queries of which a lane has scores, over the keys up to now: the largest
// score, the sum of weights, and the lane's values of the weighted sum.
template <int DIM>
struct PromptSums {
    static constexpr u32 WIDTH = PROMPT_WIDTH<DIM>;
    float max[2], total[2], sum[WIDTH / 8][4];

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
        for (u32 d = 0; d < WIDTH / 8; ++d) {
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
    DEVICE void add(const PromptScores& weights, const HalfTile<DIM>& values,
                    const PromptPlace& place) {
        const u32 lane = place.lane, first = place.part * WIDTH;
#pragma unroll
        for (u32 n = 0; n < KEYS / 16; ++n) {
            // what a lane has of two tiles of scores is what it needs of a left factor
            const u32 a[4] = {pack_halves(weights[2 * n][0], weights[2 * n][1]),
                              pack_halves(weights[2 * n][2], weights[2 * n][3]),
                              pack_halves(weights[2 * n + 1][0], weights[2 * n + 1][1]),
                              pack_halves(weights[2 * n + 1][2], weights[2 * n + 1][3])};
#pragma unroll
            for (u32 d = 0; d < WIDTH / 16; ++d) {
                u32 b[4];
                const u32 key = 16 * n + lane % 16;
                load_matrices_transposed(b, &values[key][first + 16 * d + lane / 16 * 8]);
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
        for (u32 d = 0; d < WIDTH / 8; ++d) {
#pragma unroll
            for (u32 e = 0; e < 2; ++e)
                p.out[head * DIM + place.part * WIDTH + 8 * d + place.lane % 4 * 2 + e] =
                    all == 0.0f ? 0.0f : sum[d][2 * i + e] * weight / all;
        }
    }
};

// The tile that a block computes, and the two of its queries that a lane has scores of.
template <class Kv, int DIM>
struct PromptBlock {
    const AttentionParams& p;
    const PromptPlace& place;
    const PromptPages<Kv, DIM>& pages;
    const QueryHalves<DIM>& q;
    const Seen (&seen)[2];
    PromptSums<DIM>& sums;

    DEVICE void weigh(PromptScores& score, u32 first_key) const {
        cap_scores(score, p.cap);
#pragma unroll
        for (u32 i = 0; i < 2; ++i) sums.weigh(score, seen[i], first_key, i, place.lane);
    }
    // Two tiles of keys, and two of values.
    DEVICE void attend_tile_ahead(u8* shared, u32 begin, u32 end) const {
        HalfTile<DIM>* const keys = reinterpret_cast<HalfTile<DIM>*>(shared);
        HalfTile<DIM>* const values = keys + 2;
        if (begin < end) pages.bring_both(keys[0], values[0], begin);
        copies_begun();
        for (u32 first_key = begin, tile = 0; first_key < end; first_key += KEYS, tile ^= 1) {
            const u32 next = first_key + KEYS;
            if (next < end) pages.bring_both(keys[tile ^ 1], values[tile ^ 1], next);
            copies_begun();
            copied<1>();
            __syncthreads();
            PromptScores score = {};
            score_keys<DIM>(score, q, keys[tile], place);
            weigh(score, first_key);
            sums.add(score, values[tile], place);
            __syncthreads();
        }
    }
    // One of each, and the scores of warps that share queries.
    DEVICE void attend_in_parts(u8* shared, u32 begin, u32 end) const {
        HalfTile<DIM>& keys = *reinterpret_cast<HalfTile<DIM>*>(shared);
        HalfTile<DIM>& values = *(&keys + 1);
        SharedScores& scores = *reinterpret_cast<SharedScores*>(&keys + 2);
        const auto bring = [&](HalfTile<DIM>& to, const void* all, u32 first_key) {
            if (first_key < end) pages.bring(to, all, first_key);
            copies_begun();
        };
        bring(keys, p.pages_k, begin);
        bring(values, p.pages_v, begin);
        for (u32 first_key = begin; first_key < end; first_key += KEYS) {
            copied<1>();  // the keys
            __syncthreads();
            PromptScores score = {};
            score_keys<DIM>(score, q, keys, place);
            tell_scores(scores, score, place);
            __syncthreads();
            bring(keys, p.pages_k, first_key + KEYS);
            add_scores(score, scores, place);
            weigh(score, first_key);
            copied<1>();  // the values
            __syncthreads();
            sums.add(score, values, place);
            __syncthreads();
            bring(values, p.pages_v, first_key + KEYS);
        }
    }
};

// Bytes of shared memory.
template <int DIM>
constexpr u32 PROMPT_SHARED =
    PROMPT_PARTS<DIM> == 1 ? 4 * sizeof(HalfTile<DIM>)
                           : 2 * sizeof(HalfTile<DIM>) + sizeof(SharedScores);

// Blocks are (tile of rows, KV head). A tile's rows are neighbours in one sequence, at most QUERIES
// / (heads of a KV head).
template <class Kv, int DIM>
DEVICE void attend_prompt(const AttentionParams& p) {
    static_assert(PROMPT_WIDTH<DIM> % 16 == 0 && PROMPT_WIDTH<DIM> <= 128,
                  "the tensor cores take 16 values at a time, and registers are few");
    static_assert(PROMPT_SHARED<DIM> <= 99 * 1024, "a block of any supported GPU can have it");
    LAUNCHED_SHARED(shared, PROMPT_SHARED<DIM>);
    HalfTile<DIM>* const tiles = reinterpret_cast<HalfTile<DIM>*>(shared);
    constexpr u32 warps = ATTEND_THREADS / WARP;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP % warps;
    const u32 first_row = p.tiles[2 * blockIdx.x], n_rows = p.tiles[2 * blockIdx.x + 1];
    const u32 head_kv = blockIdx.y, per_kv = p.heads / p.heads_kv;
    const PromptPlace place = {
        lane, warp, threadIdx.x / ATTEND_THREADS, first_row, head_kv, per_kv, n_rows * per_kv};
    QueryHalves<DIM> q;
    q.load(p, place, tiles[0], tiles[1]);

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
    const PromptPages<Kv, DIM> pages = {p,       table_of(p.paging, first_row), first_row, head_kv,
                                        first, visible};
    const PromptBlock<Kv, DIM> block = {p, place, pages, q, seen, sums};
    const u32 begin = first / KEYS * KEYS;
    if constexpr (PROMPT_PARTS<DIM> == 1) {
        block.attend_tile_ahead(shared, begin, visible);
    } else {
        block.attend_in_parts(shared, begin, visible);
    }
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        if (query[i] < place.n_queries) sums.store(p, place, query[i], i);
    }
}

#endif
