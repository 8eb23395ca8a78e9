// Which experts of a mixture a row is given to, with which weights, and what comes of them.
#include "experts.cuh"

constexpr u32 THREADS = 256;

struct SoftmaxParams {
    const float* x;  // (rows, n)
    float* out;      // (rows, n)
    u32 n;
    u32 unused;
};
static_assert(sizeof(SoftmaxParams) == 24, "kernels/src/cuda/params.rs has the same");

// A warp for each row. The largest value is taken from all, so that nothing overflows; what is not
// a number passes it by, and the sum has it.
KERNEL(softmax, SoftmaxParams, WARP) {
    const u64 base = static_cast<u64>(blockIdx.x) * p.n;
    float largest = minus_infinity();
    for (u32 i = threadIdx.x; i < p.n; i += WARP) largest = fmaxf(largest, p.x[base + i]);
    largest = lanes_max<32>(largest);
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < p.n; i += WARP) {
        const float e = expf(p.x[base + i] - largest);
        p.out[base + i] = e;
        sum += e;
    }
    sum = lanes_sum<32>(sum);
    for (u32 i = threadIdx.x; i < p.n; i += WARP) p.out[base + i] = p.out[base + i] / sum;
}

struct TopKParams {
    const float* x;  // (rows, width)
    float* out;      // (rows, n)
    u32 width;
    u32 n;
    u32 groups;  // as many as values, where there are none
    u32 used;
};
static_assert(sizeof(TopKParams) == 32, "kernels/src/cuda/params.rs has the same");

// A number for a value that is larger where the value is: the same for both zeros, the largest for
// what is not a number.
DEVICE u32 key(float x) {
    if (x != x) return 0xff800001u;
    const u32 bits = as_bits(x + 0.0f);
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// A value and its place: larger where the value is, and of equal ones where the place is lower.
DEVICE u64 ranked(float x, u32 at) {
    return static_cast<u64>(key(x)) << 32 | static_cast<u32>(~at);
}

constexpr u64 ABOVE_ALL = 0xffffffffffffffffull;

// The largest of all lanes' numbers, in every lane.
DEVICE u64 lanes_best(u64 best) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) {
        const u64 other = __shfl_xor_sync(ALL_LANES, best, o);
        if (other > best) best = other;
    }
    return best;
}

// The sum of a group's two best values.
DEVICE float score(const float* x, u32 n) {
    float best = minus_infinity(), second = minus_infinity();
    for (u32 i = 0; i < n; ++i) {
        const float v = x[i];
        if (key(v) > key(best)) {
            second = best;
            best = v;
        } else if (key(v) > key(second)) {
            second = v;
        }
    }
    return best + second;
}

// A warp for each row, a lane for each group. Each round finds the best that is not as good as the
// one before, so that nothing has to be crossed out.
KERNEL(top_k, TopKParams, WARP) {
    const float* x = p.x + static_cast<u64>(blockIdx.x) * p.width;
    const u32 of_group = p.width / p.groups;
    u64 last = 0;  // the worst group that counts
    if (p.used < p.groups) {
        last = ABOVE_ALL;
        for (u32 round = 0; round < p.used; ++round) {
            u64 best = 0;
            for (u32 g = threadIdx.x; g < p.groups; g += WARP) {
                const u64 mine = ranked(score(x + g * of_group, of_group), g);
                if (mine < last && mine > best) best = mine;
            }
            last = lanes_best(best);
        }
    }
    u64 before = ABOVE_ALL;
    for (u32 round = 0; round < p.n; ++round) {
        u64 best = 0;
        for (u32 g = threadIdx.x; g < p.groups; g += WARP) {
            if (last != 0 && ranked(score(x + g * of_group, of_group), g) < last) continue;
            for (u32 at = g * of_group; at < (g + 1) * of_group; ++at) {
                const u64 mine = ranked(x[at], at);
                if (mine < before && mine > best) best = mine;
            }
        }
        before = lanes_best(best);
        if (threadIdx.x == 0)
            p.out[static_cast<u64>(blockIdx.x) * p.n + round] =
                static_cast<float>(~static_cast<u32>(before));
    }
}

struct GatherParams {
    const float* x;    // (rows, width)
    const float* ids;  // (rows, n)
    float* out;        // (rows, n)
    u64 total;
    u32 width;
    u32 n;
};
static_assert(sizeof(GatherParams) == 40, "kernels/src/cuda/params.rs has the same");

KERNEL(gather, GatherParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at < p.total) p.out[at] = p.x[at / p.n * p.width + place(p.ids[at], p.width)];
}

struct NormalizeParams {
    const float* x;  // (rows, n)
    float* out;      // (rows, n)
    u32 rows;
    u32 n;
    float least;
    u32 unused;
};
static_assert(sizeof(NormalizeParams) == 32, "kernels/src/cuda/params.rs has the same");

// A thread for each row: there are few values, which are added in order.
KERNEL(normalize, NormalizeParams, THREADS) {
    const u64 row = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (row >= p.rows) return;
    float sum = 0.0f;
    for (u32 i = 0; i < p.n; ++i) sum += p.x[row * p.n + i];
    // a sum that is not a number stays one
    const float by = p.least > sum ? p.least : sum;
    for (u32 i = 0; i < p.n; ++i) p.out[row * p.n + i] = p.x[row * p.n + i] / by;
}

struct WeightedSumParams {
    const float* x;        // (rows, count, n)
    const float* weights;  // (rows, count)
    float* out;            // (rows, n)
    u64 total;
    u32 n;
    u32 count;
};
static_assert(sizeof(WeightedSumParams) == 40, "kernels/src/cuda/params.rs has the same");

KERNEL(weighted_sum, WeightedSumParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= p.total) return;
    const u64 row = at / p.n;
    const float* x = p.x + row * p.count * p.n + at % p.n;
    const float* weights = p.weights + row * p.count;
    float sum = x[0] * weights[0];
    for (u32 i = 1; i < p.count; ++i) sum = fmaf(x[static_cast<u64>(i) * p.n], weights[i], sum);
    p.out[at] = sum;
}

struct ExpertBiasParams {
    const float* x;     // (rows, used, n)
    const float* bias;  // (experts, n)
    const float* ids;   // (rows, used)
    float* out;         // (rows, used, n)
    u64 total;
    u32 n;
    u32 experts;
};
static_assert(sizeof(ExpertBiasParams) == 48, "kernels/src/cuda/params.rs has the same");

KERNEL(expert_bias, ExpertBiasParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= p.total) return;
    const u64 expert = place(p.ids[at / p.n], p.experts);
    p.out[at] = p.x[at] + p.bias[expert * p.n + at % p.n];
}

struct SortExpertsParams {
    const float* ids;  // (choices)
    u32* order;        // (choices): expert by expert, of one in the order of `ids`
    ExpertTile* tiles; // (choices / width + experts)
    u32 choices;
    u32 experts;
    u32 width;  // most choices of a tile
    u32 unused;
};
static_assert(sizeof(SortExpertsParams) == 40, "kernels/src/cuda/params.rs has the same");

// A block for each expert: it counts the choices of those before it and its own, so that it knows
// where its own belong. Its tiles begin with number before / width + expert, which leaves enough
// for all experts before it whatever they have.
KERNEL(sort_experts, SortExpertsParams, THREADS) {
    SHARED(u32, before_of, [THREADS / WARP]);
    SHARED(u32, own_of, [THREADS / WARP]);
    const u32 expert = blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 each = (p.choices + THREADS - 1) / THREADS;
    const u32 first = threadIdx.x * each, end = least(first + each, p.choices);
    u32 before = 0, own = 0;
    for (u32 i = first; i < end; ++i) {
        const u32 other = place(p.ids[i], p.experts);
        before += other < expert ? 1u : 0u;
        own += other == expert ? 1u : 0u;
    }
    u32 up_to = own;
#pragma unroll
    for (u32 o = 1; o < WARP; o *= 2) {
        const u32 left = __shfl_sync(ALL_LANES, up_to, (lane - o) % WARP);
        if (lane >= o) up_to += left;
    }
    const u32 all_before = static_cast<u32>(lanes_sum<WARP>(static_cast<i32>(before)));
    if (lane == WARP - 1) {
        before_of[warp] = all_before;
        own_of[warp] = up_to;
    }
    __syncthreads();
    u32 start = 0, earlier = 0, all = 0;
    for (u32 i = 0; i < THREADS / WARP; ++i) {
        start += before_of[i];
        earlier += i < warp ? own_of[i] : 0u;
        all += own_of[i];
    }
    u32 at = start + earlier + up_to - own;
    for (u32 i = first; i < end; ++i) {
        if (place(p.ids[i], p.experts) == expert) p.order[at++] = i;
    }
    const u32 tile = start / p.width + expert, tiles = (start + all) / p.width + 1 + expert - tile;
    for (u32 i = threadIdx.x; i < tiles; i += THREADS) {
        const u32 done = least(i * p.width, all);
        store_vector<ExpertTile>(p.tiles + tile + i,
                                 {expert, start + done, least(p.width, all - done), 0});
    }
}
