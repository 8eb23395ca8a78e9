// Operations over rows of floats: norms, rotations, activations, sums, the place of the largest
// value, and the largest values in order.
#include "candidates.cuh"
#include "gate.cuh"
#include "norm.cuh"
#include "softcap.cuh"
#include "rope.cuh"

struct NormParams {
    const float* x;       // (groups, n)
    const float* weight;  // (n)
    float* out;           // (groups, n)
    float eps;
    u32 n;
};
static_assert(sizeof(NormParams) == 32, "kernels/src/cuda/params.rs has the same");

// x / rms(x) * weight, a block for each group of n: a row, or a head of it.
KERNEL(rms_norm, NormParams, NORM_THREADS) {
    const u64 base = static_cast<u64>(blockIdx.x) * p.n;
    const float scale = norm_scale(p.x + base, p.n, p.eps);
    for (u32 i = threadIdx.x; i < p.n; i += blockDim.x)
        p.out[base + i] = p.x[base + i] * scale * p.weight[i];
}

// (x - mean) / sqrt(var) * weight, likewise: the mean first, because the mean of the squares less
// its square would cancel.
KERNEL(layer_norm, NormParams, NORM_THREADS) {
    SHARED(float, sums, [NORM_THREADS / WARP]);
    const float* x = p.x + static_cast<u64>(blockIdx.x) * p.n;
    float* out = p.out + static_cast<u64>(blockIdx.x) * p.n;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < p.n; i += blockDim.x) sum += x[i];
    sum = lanes_sum<32>(sum);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    float mean = 0.0f;
    for (u32 i = 0; i < blockDim.x / WARP; ++i) mean += sums[i];
    mean /= static_cast<float>(p.n);
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < p.n; i += blockDim.x)
        squares = fmaf(x[i] - mean, x[i] - mean, squares);
    const float scale = norm_scale_of(squares, p.n, p.eps);
    for (u32 i = threadIdx.x; i < p.n; i += blockDim.x)
        out[i] = (x[i] - mean) * scale * p.weight[i];
}

struct RopeParams {
    const float* x;  // (rows, heads, head_dim)
    float* out;      // the same, elsewhere
    Rotation rotation;
    u32 rows;
    u32 heads;
    u32 head_dim;
    u32 unused;
};
static_assert(sizeof(RopeParams) == 72, "kernels/src/cuda/params.rs has the same");

constexpr u32 THREADS = 256;

// A thread for each value. The angles are a table, computed in f64 where there is time for that.
KERNEL(rope, RopeParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    const u32 width = p.heads * p.head_dim;
    if (at >= static_cast<u64>(p.rows) * width) return;
    const u32 i = static_cast<u32>(at % p.head_dim);
    p.out[at] = rotated(p.x + (at - i), i, at / width, p.rotation);
}

struct EmbeddingInputsParams {
    const float* x;       // (rows, width); null: rows without an input stay as they are
    const float* inputs;  // (inputs, stride)
    const u32* indices;   // (rows): the input of each row, or NO_EMBEDDING
    float* out;           // (rows, width)
    u32 rows;
    u32 width;
    u32 stride;
    u32 from;  // of an input
};
static_assert(sizeof(EmbeddingInputsParams) == 48, "kernels/src/cuda/params.rs has the same");

constexpr u32 NO_EMBEDDING = 0xffffffffu;

// x + input, or the input where there is no x.
KERNEL(embedding_inputs, EmbeddingInputsParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= static_cast<u64>(p.rows) * p.width) return;
    const u32 index = p.indices[at / p.width];
    if (index == NO_EMBEDDING) {
        if (p.x != nullptr) p.out[at] = p.x[at];
        return;
    }
    const float input = p.inputs[static_cast<u64>(index) * p.stride + p.from + at % p.width];
    p.out[at] = p.x == nullptr ? input : p.x[at] + input;
}

struct PairParams {
    const float* a;
    const float* b;
    float* out;
    u64 n;
    u64 period;  // b starts again after so many
};
static_assert(sizeof(PairParams) == 40, "kernels/src/cuda/params.rs has the same");

// a + b, where b may be one row for all.
KERNEL(add, PairParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at < p.n) p.out[at] = p.a[at] + p.b[at % p.period];
}

// a * b
KERNEL(mul, PairParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at < p.n) p.out[at] = p.a[at] * p.b[at % p.period];
}

struct MulVectorParams {
    const float* a;
    const float* b;  // (period)
    float* out;
    u64 n;
    u32 neighbours;  // of a, for which each value of b is
    u32 period;
};
static_assert(sizeof(MulVectorParams) == 40, "kernels/src/cuda/params.rs has the same");

KERNEL(mul_vector, MulVectorParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at < p.n) p.out[at] = p.a[at] * p.b[at / p.neighbours % p.period];
}

// a / (1 + e^-a) * b, and the other kinds of gates.
KERNEL(swiglu, PairParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at < p.n) p.out[at] = gated(GATE_SILU, p.a[at], p.b[at]);
}
KERNEL(geglu, PairParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at < p.n) p.out[at] = gated(GATE_GELU, p.a[at], p.b[at]);
}
KERNEL(swiglu_oai, PairParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at < p.n) p.out[at] = gated(GATE_SWIGLU_OAI, p.a[at], p.b[at]);
}

struct UnaryParams {
    const float* x;
    float* out;
    u64 n;
    float a, b, c, d;  // parameters of the function, if it has any
};
static_assert(sizeof(UnaryParams) == 40, "kernels/src/cuda/params.rs has the same");

// cap * tanh(x / cap)
KERNEL(soft_cap, UnaryParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at < p.n) p.out[at] = soft_capped(p.x[at], p.a);
}

// factor * x
KERNEL(scale, UnaryParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at < p.n) p.out[at] = p.a * p.x[at];
}

// x, at least a and at most b
KERNEL(clamp, UnaryParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= p.n) return;
    const float x = p.x[at];
    p.out[at] = x != x ? x : fmaxf(p.a, fminf(p.b, x));
}

// x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
KERNEL(gelu_tanh, UnaryParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at < p.n) p.out[at] = gelu(p.x[at]);
}

// max(x, 0)^2
KERNEL(squared_relu, UnaryParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= p.n) return;
    const float x = p.x[at] > 0.0f || p.x[at] != p.x[at] ? p.x[at] : 0.0f;
    p.out[at] = x * x;
}

// 1 / (1 + e^-x)
KERNEL(sigmoid, UnaryParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at < p.n) p.out[at] = 1.0f / (1.0f + expf(-p.x[at]));
}

// x / (1 + e^-x)
KERNEL(silu, UnaryParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at < p.n) p.out[at] = p.x[at] / (1.0f + expf(-p.x[at]));
}

// ln(1 + e^x), which does not overflow so
KERNEL(softplus, UnaryParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= p.n) return;
    const float x = p.x[at];
    p.out[at] = x > 0.0f ? x + log1pf(expf(-x)) : log1pf(expf(x));
}

// e^x, clamped as on the CPU
KERNEL(exponential, UnaryParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= p.n) return;
    const float x = p.x[at];
    p.out[at] = x != x ? x : expf(fmaxf(-87.3f, fminf(88.3f, x)));
}

// a x^2 + c x above 0, else b (e^min(x, d) - 1 - x) + c x
KERNEL(xielu, UnaryParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= p.n) return;
    const float x = p.x[at];
    const float curve = x > 0.0f ? p.a * x * x : p.b * (expm1f(fminf(x, p.d)) - x);
    p.out[at] = fmaf(p.c, x, curve);
}

struct HadamardParams {
    const float* x;  // whole groups of `order`, a power of two
    float* out;
    u64 n;  // values
    u32 order;
    float factor;  // 1 / sqrt(order)
};
static_assert(sizeof(HadamardParams) == 32, "kernels/src/cuda/params.rs has the same");
constexpr u32 HADAMARD_ORDER = 256;  // the largest: kernels/src/hadamard.rs has the same

// A group for each warp. Sums are those of the CPU, in the same order.
KERNEL(hadamard, HadamardParams, WARP) {
    SHARED(float, v, [HADAMARD_ORDER]);
    const u64 first = static_cast<u64>(blockIdx.x) * p.order;
    for (u32 i = threadIdx.x; i < p.order; i += WARP) v[i] = p.x[first + i];
    __syncthreads();
    for (u32 half = 1; half < p.order; half *= 2) {
        for (u32 i = threadIdx.x; i < p.order / 2; i += WARP) {
            const u32 at = i / half * 2 * half + i % half;
            const float a = v[at], b = v[at + half];
            v[at] = a + b;
            v[at + half] = a - b;
        }
        __syncthreads();
    }
    for (u32 i = threadIdx.x; i < p.order; i += WARP) p.out[first + i] = v[i] * p.factor;
}

struct ScaleByPositionParams {
    const float* x;        // (rows, width)
    const float* factors;  // by position
    const i32* positions;  // (rows), below zero: the row is padding
    float* out;            // (rows, width)
    u32 rows;
    u32 width;
};
static_assert(sizeof(ScaleByPositionParams) == 40, "kernels/src/cuda/params.rs has the same");

KERNEL(scale_by_position, ScaleByPositionParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= static_cast<u64>(p.rows) * p.width) return;
    const i32 position = p.positions[at / p.width];
    p.out[at] = position < 0 ? p.x[at] : p.factors[position] * p.x[at];
}

struct SliceParams {
    const float* x;  // (rows, width), which is whole pieces of `each`
    float* out;      // (rows, width / each * part)
    u64 n;           // values of out
    u32 each;
    u32 from;
    u32 part;
    u32 unused;
};
static_assert(sizeof(SliceParams) == 40, "kernels/src/cuda/params.rs has the same");

// Rows are whole pieces, so that their pieces follow each other through all of them.
KERNEL(slice, SliceParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at < p.n) p.out[at] = p.x[at / p.part * p.each + p.from + at % p.part];
}

struct JoinPartsParams {
    const float* parts;  // (ranks, pieces of rows, the rank's values of a piece)
    float* out;          // (pieces of rows, width)
    u64 n;               // values of out
    u32 width;
    u32 grain;   // values that stay together
    u32 grains;  // of a piece, the last of which may be shorter
    u32 ranks;
};
static_assert(sizeof(JoinPartsParams) == 40, "kernels/src/cuda/params.rs has the same");

// The first value of a rank: `Cut::of` in kernels/src/ranks.rs says the same.
DEVICE u32 first_of(u64 rank, const JoinPartsParams& p) {
    const u64 first = p.grains * rank / p.ranks * p.grain;
    return first < p.width ? static_cast<u32>(first) : p.width;
}

KERNEL(join_parts, JoinPartsParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= p.n) return;
    const u64 piece = at / p.width, pieces = p.n / p.width;
    const u32 i = static_cast<u32>(at % p.width);
    // the last rank whose first grain is not behind this one
    const u64 rank = (static_cast<u64>(i / p.grain + 1) * p.ranks - 1) / p.grains;
    const u32 first = first_of(rank, p), len = first_of(rank + 1, p) - first;
    p.out[at] = p.parts[pieces * first + piece * len + (i - first)];
}

struct ConstantParams {
    const float* values;  // (width)
    float* out;           // (rows, width)
    u64 n;                // values of out
    u32 width;
    u32 unused;
};
static_assert(sizeof(ConstantParams) == 32, "kernels/src/cuda/params.rs has the same");

KERNEL(constant, ConstantParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at < p.n) p.out[at] = p.values[at % p.width];
}

struct ConcatParams {
    const float* a;  // (rows, pieces, first)
    const float* b;  // (rows, pieces, second), or (rows, second) if not `each`
    float* out;      // (rows, pieces, first + second)
    u64 n;           // values of out
    u32 first;
    u32 second;
    u32 pieces;
    u32 each;
};
static_assert(sizeof(ConcatParams) == 48, "kernels/src/cuda/params.rs has the same");

KERNEL(concat, ConcatParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= p.n) return;
    const u64 piece = at / (p.first + p.second);
    const u32 i = static_cast<u32>(at % (p.first + p.second));
    const u64 of_b = p.each ? piece : piece / p.pieces;
    p.out[at] = i < p.first ? p.a[piece * p.first + i] : p.b[of_b * p.second + (i - p.first)];
}

struct SelectParams {
    const float* x;      // (any, width)
    const u32* indices;  // (rows)
    float* out;          // (rows, width)
    u32 rows;
    u32 width;
};
static_assert(sizeof(SelectParams) == 32, "kernels/src/cuda/params.rs has the same");

KERNEL(select_rows, SelectParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= static_cast<u64>(p.rows) * p.width) return;
    p.out[at] = p.x[static_cast<u64>(p.indices[at / p.width]) * p.width + at % p.width];
}

struct Best {
    float value;
    u32 at;
    u32 odd;  // how many values are not finite
    u32 unused;
};

struct ArgmaxParams {
    const float* x;  // (rows, n)
    Best* parts;     // (rows, parts)
    u32* out;        // (rows): the place, or NOT_FINITE
    u32 n;
    u32 parts_n;
};
static_assert(sizeof(ArgmaxParams) == 32, "kernels/src/cuda/params.rs has the same");

constexpr u32 NOT_FINITE = 0xffffffffu;

// The larger value, of equal ones the first. No order of comparing changes the outcome.
DEVICE Best better(Best a, Best b) {
    Best best = b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
    best.odd = a.odd + b.odd;
    return best;
}

// The best of a block's values, in its first thread.
DEVICE Best block_best(Best best) {
    SHARED(Best, warps, [THREADS / WARP]);
#pragma unroll
    for (int o = 16; o > 0; o /= 2) {
        Best other = {};
        other.value = __shfl_xor_sync(ALL_LANES, best.value, o);
        other.at = __shfl_xor_sync(ALL_LANES, best.at, o);
        other.odd = __shfl_xor_sync(ALL_LANES, best.odd, o);
        best = better(best, other);
    }
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = best;
    __syncthreads();
    best = warps[0];
    for (u32 i = 1; i < THREADS / WARP; ++i) best = better(best, warps[i]);
    return best;
}

// Rows of a vocabulary are long: blocks (x) take parts of a row (y), then one block takes the
// parts.
KERNEL(argmax_parts, ArgmaxParams, THREADS) {
    const u32 row = blockIdx.y;
    Best best = {minus_infinity(), p.n, 0, 0};
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < p.n; i += gridDim.x * THREADS) {
        const float v = p.x[static_cast<u64>(row) * p.n + i];
        best = better(best, Best{v, i, v - v == 0.0f ? 0u : 1u, 0});
    }
    best = block_best(best);
    if (threadIdx.x == 0) p.parts[static_cast<u64>(row) * p.parts_n + blockIdx.x] = best;
}

KERNEL(argmax_merge, ArgmaxParams, THREADS) {
    const u32 row = blockIdx.x;
    Best best = {minus_infinity(), p.n, 0, 0};
    for (u32 i = threadIdx.x; i < p.parts_n; i += THREADS)
        best = better(best, p.parts[static_cast<u64>(row) * p.parts_n + i]);
    best = block_best(best);
    if (threadIdx.x == 0) p.out[row] = best.odd == 0 ? best.at : NOT_FINITE;
}
