// Paged attention of any rows, in float arithmetic, with pages of any type.
//
// Blocks take (KV head, row, split): a fixed number of splits shares a row's pages by the length
// that is read from device memory, so that few rows keep the whole device busy and a captured
// launch serves every length. A warp takes a page at a time; neighbouring lanes have a position's
// values, eight each, and every group of lanes keeps its own softmax until the end. Partial sums
// are joined in the order of warps and lanes, then of splits: never by who is first.
//
// A row in a window takes none of the pages that lie wholly outside of it: the others are shared
// among its splits. A split takes a page for each of its warps at least, so that a row that sees
// little leaves few partial sums; blocks of the other splits have nothing to do.
#ifndef OCTAVO_ATTENTION_SPLIT
#define OCTAVO_ATTENTION_SPLIT

#include "attention.cuh"

constexpr u32 ATTEND_WARPS = ATTEND_THREADS / WARP;
constexpr u32 MAX_SPLITS = 32;

DEVICE constexpr int power_of_two(int n) {
    int p = 2;
    while (p < n) p *= 2;
    return p;
}

// How a warp divides a page: neighbouring lanes have a position's values.
template <class Kv, int DIM>
struct SplitShape {
    static_assert(DIM % 8 == 0 && DIM <= 256, "a lane has eight values");
    static constexpr int LANES = power_of_two(DIM / 8);
    static constexpr u32 GROUPS = WARP / LANES;  // positions at a time
    static constexpr int STEPS = PAGE / GROUPS;
    // whether a page's values fit in 32 registers: then they are fetched while its scores are made,
    // and the keys of the warp's next page while its values are added
    static constexpr bool EARLY = STEPS * sizeof(typename Kv::Eight) <= 128;
    static constexpr u32 PARTS = ATTEND_WARPS * GROUPS;
};

// The pages that a row sees, and how its splits share them.
struct Shares {
    u32 begin, end;
    u32 of_split;  // pages of a split, but that the last may have fewer

    // Splits that have pages.
    DEVICE u32 splits() const { return (end - begin + of_split - 1) / of_split; }
};

DEVICE Shares shares_of(const AttentionParams& p, const Seen& seen) {
    const u32 begin = seen.first / PAGE, end = (seen.end + PAGE - 1) / PAGE;
    const u32 rounds = (end - begin + ATTEND_WARPS - 1) / ATTEND_WARPS;
    const u32 of_split = most((rounds + p.splits - 1) / p.splits, 1u) * ATTEND_WARPS;
    return {begin, end, of_split};
}

// What a thread works on: eight values from `8 * piece` on, of every position `step * GROUPS +
// group` of a page, for some query heads of a row.
struct SplitPlace {
    u32 warp, piece, group;
    u32 row, split, head_kv, first_head, n_heads;
};

// The softmax of some heads over the positions that a lane has seen: the largest score, the sum of
// weights, and the lane's eight values of the weighted sum.
template <int HEADS>
struct SplitSums {
    float max[HEADS], total[HEADS], sum[HEADS][8];
};

DEVICE float dot(const float (&q)[8], const float (&k)[8]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(q[i], k[i], sum);
    return sum;
}

template <int HEADS, int STEPS>
DEVICE void cap_scores(float (&score)[HEADS][STEPS], float cap) {
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s) score[h][s] = soft_capped(score[h][s], cap);
    }
}

// Lowers scores of a page with the distance of its positions from the row's own. Distances are
// exact in floats, and need no registers of their own in this form.
template <int HEADS, int STEPS, u32 GROUPS>
DEVICE void lower_scores(float (&score)[HEADS][STEPS], const AttentionParams& p,
                         const SplitPlace& place, u32 page) {
    const int first = static_cast<int>(page * PAGE + place.group);
    const float own = static_cast<float>(static_cast<int>(p.paging.positions[place.row]) - first);
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        const bool there = static_cast<u32>(h) < place.n_heads;
        const float slope = there ? p.slopes[place.first_head + h] : 0.0f;
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            const float fall = fabsf(own - static_cast<float>(s * static_cast<int>(GROUPS)));
            score[h][s] = fmaf(-slope, fall, score[h][s]);
        }
    }
}

// Makes weights of a head's scores of the positions that are seen.
template <int STEPS>
DEVICE void weigh(float (&score)[STEPS], const bool (&seen)[STEPS], float& max, float& total,
                  float (&sum)[8]) {
    float top = max;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) top = seen[s] ? fmaxf(top, score[s]) : top;
    const float shrink = total == 0.0f ? 0.0f : expf(max - top);
    max = top;
    total *= shrink;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] *= shrink;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        // `top` is no number to subtract where a lane has seen nothing yet
        score[s] = seen[s] ? expf(score[s] - top) : 0.0f;
        total += score[s];
    }
}

DEVICE void add_weighted(float (&sum)[8], float weight, const float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = fmaf(weight, v[i], sum[i]);
}

// Eight values of a position, which were fetched early or are fetched now.
template <class Kv, int DIM, class Shape, int KEPT>
DEVICE void eight_of(float (&to)[8], const typename Kv::Eight (&early)[KEPT], int step,
                     const u8* page, const SplitPlace& place) {
    if constexpr (Shape::EARLY) {
        Kv::decode(to, early[step]);
    } else {
        const u32 position = step * Shape::GROUPS + place.group;
        Kv::decode(to, Kv::fetch(page, position, 8 * place.piece, DIM));
    }
}

// Fetches a lane's part of a page, of the positions from `before` up to `end`.
template <class Kv, int DIM, class Shape, int KEPT>
DEVICE void fetch_early(typename Kv::Eight (&early)[KEPT], const u8* page, u32 before, u32 end,
                        const SplitPlace& place) {
    if constexpr (Shape::EARLY) {
#pragma unroll
        for (int s = 0; s < Shape::STEPS; ++s) {
            const u32 at = s * Shape::GROUPS + place.group;
            early[s] = {};
            if (place.piece < DIM / 8 && at >= before && at < end)
                early[s] = Kv::fetch(page, at, 8 * place.piece, DIM);
        }
    }
}

// Takes the pages of a split into the sums, a warp one at a time.
template <class Kv, int DIM, int HEADS>
DEVICE void take_pages(SplitSums<HEADS>& sums, const AttentionParams& p, const SplitPlace& place,
                       const Seen& visible, const Shares& shares) {
    typedef SplitShape<Kv, DIM> Shape;
    constexpr int steps = Shape::STEPS, kept = Shape::EARLY ? steps : 1;
    const bool active = place.piece < DIM / 8;
    const u32 begin = shares.begin + place.split * shares.of_split;
    const u32 end = least(begin + shares.of_split, shares.end);
    const u32* table = table_of(p.paging, place.row);
    const u8* all_k = static_cast<const u8*>(p.pages_k);
    const u8* all_v = static_cast<const u8*>(p.pages_v);

    float q[HEADS][8];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const u64 head = static_cast<u64>(place.row) * p.heads + place.first_head + h;
            const u64 at = head * DIM + 8 * place.piece + i;
            q[h][i] = active && static_cast<u32>(h) < place.n_heads ? p.q[at] * p.scale : 0.0f;
        }
    }
#pragma unroll
    for (int h = 0; h < HEADS; ++h) sums.max[h] = minus_infinity();

    // behind the last page stands none of the cache's; so does where the table lacks one, and then
    // the step has failed, whatever comes behind it
    const auto number_of = [&](u32 page) {
        return page < end ? page_of(p.paging, place.row, table, page) : p.paging.n_pages;
    };
    const auto start_of = [&](u32 number) {
        return page_start<Kv>(number, p.heads_kv, place.head_kv, DIM);
    };
    u32 page = begin + place.warp, number = number_of(page);
    typename Kv::Eight keys[kept] = {}, values[kept] = {};
    if (number < p.paging.n_pages)
        fetch_early<Kv, DIM, Shape>(keys, all_k + start_of(number), 0, PAGE, place);
    for (; number < p.paging.n_pages; page += ATTEND_WARPS) {
        const u64 base = start_of(number);
        // what is seen of the page: from `before` up to `in_page`, at least one position
        const u32 before = most(visible.first, page * PAGE) - page * PAGE;
        const u32 in_page = least(visible.end - page * PAGE, PAGE);
        // what lies behind the last position was never written: zero times that may be no number
        fetch_early<Kv, DIM, Shape>(values, all_v + base, before, in_page, place);
        number = number_of(page + ATTEND_WARPS);
        float score[HEADS][steps];
#pragma unroll
        for (int s = 0; s < steps; ++s) {
            float k[8] = {};
            if (active) eight_of<Kv, DIM, Shape>(k, keys, s, all_k + base, place);
#pragma unroll
            for (int h = 0; h < HEADS; ++h) score[h][s] = lanes_sum<Shape::LANES>(dot(q[h], k));
        }
        if (p.cap != 0.0f) cap_scores(score, p.cap);
        // four large heads leave no registers for it: `launch::attend` takes one at a time then
        if (HEADS * DIM <= 512 && p.slopes != nullptr)
            lower_scores<HEADS, steps, Shape::GROUPS>(score, p, place, page);
        if (number < p.paging.n_pages)
            fetch_early<Kv, DIM, Shape>(keys, all_k + start_of(number), 0, PAGE, place);
        if (place.group >= in_page) continue;
        bool seen[steps];
#pragma unroll
        for (int s = 0; s < steps; ++s) {
            const u32 at = s * Shape::GROUPS + place.group;
            seen[s] = at >= before && at < in_page;
        }
#pragma unroll
        for (int h = 0; h < HEADS; ++h)
            weigh(score[h], seen, sums.max[h], sums.total[h], sums.sum[h]);
#pragma unroll
        for (int s = 0; s < steps; ++s) {
            float v[8] = {};
            if (active && seen[s]) eight_of<Kv, DIM, Shape>(v, values, s, all_v + base, place);
#pragma unroll
            for (int h = 0; h < HEADS; ++h) add_weighted(sums.sum[h], score[h][s], v);
        }
    }
}

// What all parts of a block have of one value of a head.
struct Joined {
    float max, total, value;
};

// Joins them, in their order.
template <u32 PARTS, int HEADS, int DIM>
DEVICE Joined join_parts(const float (&sums)[PARTS][HEADS][DIM],
                         const float (&states)[PARTS][HEADS][2], u32 h, u32 d) {
    float top = minus_infinity(), joined = 0.0f, value = 0.0f;
    for (u32 i = 0; i < PARTS; ++i) top = fmaxf(top, states[i][h][0]);
    for (u32 i = 0; i < PARTS; ++i) {
        // parts without positions have no maximum
        const float n = states[i][h][1];
        const float weight = n == 0.0f ? 0.0f : expf(states[i][h][0] - top);
        joined = fmaf(n, weight, joined);
        value = fmaf(sums[i][h][d], weight, value);
    }
    return {top, joined, value};
}

// `HEADS`: query heads of a KV head that a block takes at a time.
template <class Kv, int DIM, int HEADS>
DEVICE void attend_split(const AttentionParams& p) {
    typedef SplitShape<Kv, DIM> Shape;
    SHARED(float, part_sums, [Shape::PARTS][HEADS][DIM]);
    SHARED(float, part_states, [Shape::PARTS][HEADS][2]);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 piece = lane % Shape::LANES, group = lane / Shape::LANES;
    const u32 per_kv = p.heads / p.heads_kv, chunks = (per_kv + HEADS - 1) / HEADS;
    const u32 head_kv = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
    const u32 first_head = head_kv * per_kv + chunk * HEADS;
    const u32 n_heads = least<u32>(HEADS, per_kv - chunk * HEADS);
    const u32 row = blockIdx.y, split = blockIdx.z;
    const Seen seen = seen_by(p, row);
    const Shares shares = shares_of(p, seen);
    if (split >= shares.splits()) return;
    SplitSums<HEADS> sums = {};
    const SplitPlace place = {warp, piece, group, row, split, head_kv, first_head, n_heads};
    take_pages<Kv, DIM>(sums, p, place, seen, shares);

    const u32 part = warp * Shape::GROUPS + group;
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        if (piece < DIM / 8) {
#pragma unroll
            for (int i = 0; i < 8; ++i) part_sums[part][h][8 * piece + i] = sums.sum[h][i];
        }
        if (piece == 0) {
            part_states[part][h][0] = sums.max[h];
            part_states[part][h][1] = sums.total[h];
        }
    }
    __syncthreads();
    for (u32 e = threadIdx.x; e < n_heads * DIM; e += ATTEND_THREADS) {
        const u32 h = e / DIM, d = e % DIM;
        const Joined all = join_parts(part_sums, part_states, h, d);
        const u64 to = (static_cast<u64>(row) * p.heads + first_head + h) * p.splits + split;
        p.sums[to * DIM + d] = all.value;
        if (d == 0) {
            p.states[2 * to] = all.max;
            p.states[2 * to + 1] = all.total;
        }
    }
}

// Joins the splits of one row and head (blockIdx.x), in their order.
template <int DIM>
DEVICE void attend_merge(const AttentionParams& p) {
    const u64 first = static_cast<u64>(blockIdx.x) * p.splits;
    const u32 splits = shares_of(p, seen_by(p, blockIdx.x / p.heads)).splits();
    for (u32 d = threadIdx.x; d < DIM; d += ATTEND_THREADS) {
        // all reads at once, then the sums in their order
        float tops[MAX_SPLITS], totals[MAX_SPLITS], sums[MAX_SPLITS];
#pragma unroll
        for (u32 i = 0; i < MAX_SPLITS; ++i) {
            const bool there = i < splits;
            tops[i] = there ? p.states[2 * (first + i)] : minus_infinity();
            totals[i] = there ? p.states[2 * (first + i) + 1] : 0.0f;
            sums[i] = there ? p.sums[(first + i) * DIM + d] : 0.0f;
        }
        float top = minus_infinity(), joined = 0.0f, value = 0.0f;
#pragma unroll
        for (u32 i = 0; i < MAX_SPLITS; ++i) top = fmaxf(top, tops[i]);
        const float sink = sink_of(p, blockIdx.x % p.heads);
        top = fmaxf(top, sink);
#pragma unroll
        for (u32 i = 0; i < MAX_SPLITS; ++i) {
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

#endif
