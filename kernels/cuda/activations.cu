// Brings activations into the forms that the matrix kernels read.
#include "activations.cuh"
#include "norm.cuh"

struct ArrangeParams {
    const float* x;       // (rows, cols)
    const float* weight;  // (cols) of an RMS norm that comes first, in the kernels that have one
    u8* out;
    float* scales;  // (rows), of halves only
    u32 rows;
    u32 cols;
    u32 units;
    float eps;
};
static_assert(sizeof(ArrangeParams) == 48, "kernels/src/cuda/params.rs has the same");

// A row as it is, or normed; zero behind its end. A value is what `rms_norm` writes.
struct Plain {
    const float* x;
    DEVICE float operator[](u32 i) const { return x[i]; }
};
struct Normed {
    const float* x;
    const float* weight;
    float scale;
    DEVICE float operator[](u32 i) const { return x[i] * scale * weight[i]; }
};
DEVICE Plain plain(const ArrangeParams& p, u32 row) { return {p.x + static_cast<u64>(row) * p.cols}; }
DEVICE Normed normed(const ArrangeParams& p, u32 row) {
    const float* x = p.x + static_cast<u64>(row) * p.cols;
    return {x, p.weight, norm_scale(x, p.cols, p.eps)};
}

// A warp for each unit.
KERNEL(activations_integers, ArrangeParams, 128) {
    const u64 warp = static_cast<u64>(blockIdx.x) * (128 / WARP) + threadIdx.x / WARP;
    if (warp >= static_cast<u64>(p.rows) * p.units) return;
    const u32 row = static_cast<u32>(warp / p.units), unit = static_cast<u32>(warp % p.units);
    const u32 col = unit * UNIT + threadIdx.x % WARP;
    store_integers(p.out, row, p.units, unit, col < p.cols ? plain(p, row)[col] : 0.0f);
}

// A block for each row. Values that are few enough stay in registers between the norm and their
// units, with the weights, which come from far away, on their way while the norm is worked out.
constexpr int KEPT = 4;
KERNEL(norm_integers, ArrangeParams, NORM_THREADS) {
    const u32 row = blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    if (p.cols > KEPT * blockDim.x) {
        const Normed x = normed(p, row);
        for (u32 unit = warp; unit < p.units; unit += warps) {
            const u32 col = unit * UNIT + lane;
            store_integers(p.out, row, p.units, unit, col < p.cols ? x[col] : 0.0f);
        }
        return;
    }
    const float* x = p.x + static_cast<u64>(row) * p.cols;
    float v[KEPT], weight[KEPT], sum = 0.0f;
    u32 unit[KEPT];
#pragma unroll
    for (int i = 0; i < KEPT; ++i) {
        unit[i] = i * warps + warp;
        const u32 col = unit[i] * UNIT + lane;
        v[i] = col < p.cols ? x[col] : 0.0f;
        weight[i] = col < p.cols ? p.weight[col] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < KEPT; ++i) sum = fmaf(v[i], v[i], sum);
    const float scale = norm_scale_of(sum, p.cols, p.eps);
#pragma unroll
    for (int i = 0; i < KEPT; ++i) v[i] = unit[i] * UNIT + lane < p.cols ? v[i] * scale * weight[i] : 0.0f;
    store_integers<KEPT>(p.out, row, p.units, unit, v);
}

DEVICE void store_float(const ArrangeParams& p, u32 row, u32 col, float v) {
    u8* piece = activation_piece(p.out, row, FLOAT_PIECES, col % UNIT / 4, p.units, col / UNIT);
    reinterpret_cast<float*>(piece)[col % 4] = v;
}

KERNEL(activations_floats, ArrangeParams, 128) {
    const u64 at = static_cast<u64>(blockIdx.x) * 128 + threadIdx.x;
    const u32 padded = p.units * UNIT;
    if (at >= static_cast<u64>(p.rows) * padded) return;
    const u32 row = static_cast<u32>(at / padded), col = static_cast<u32>(at % padded);
    store_float(p, row, col, col < p.cols ? plain(p, row)[col] : 0.0f);
}

KERNEL(norm_floats, ArrangeParams, NORM_THREADS) {
    const u32 row = blockIdx.x;
    const Normed x = normed(p, row);
    for (u32 col = threadIdx.x; col < p.units * UNIT; col += blockDim.x)
        store_float(p, row, col, col < p.cols ? x[col] : 0.0f);
}

// Rows of halves, and for each a power of two that multiplies it: the largest value becomes 2^13 to
// 2^14, so that none overflows and those 2^-27 as large still have all their bits. Rows are padded
// with zeros to whole units, and to an even number of them.
template <class Row>
DEVICE void store_halves(const ArrangeParams& p, u32 row, const Row& x) {
    SHARED(float, largest, [NORM_THREADS / WARP]);
    SHARED(float, wrong, [NORM_THREADS / WARP]);
    const u32 padded = (p.units + 1) / 2 * 2 * UNIT;
    float max = 0.0f, bad = 0.0f;
    for (u32 i = threadIdx.x; i < p.cols; i += blockDim.x) {
        const float v = x[i];
        max = fmaxf(max, fabsf(v));
        bad += v - v;
    }
    max = lanes_max<32>(max);
    bad = lanes_sum<32>(bad);
    if (threadIdx.x % WARP == 0) {
        largest[threadIdx.x / WARP] = max;
        wrong[threadIdx.x / WARP] = bad;
    }
    __syncthreads();
    for (u32 i = 0; i < blockDim.x / WARP; ++i) {
        max = fmaxf(max, largest[i]);
        bad += wrong[i];
    }
    const bool finite = bad == 0.0f;
    const u32 exponent = most(as_bits(max) >> 23, 14u);
    const float inverse = finite ? as_float((267u - exponent) << 23) : 0.0f;
    u16* out = reinterpret_cast<u16*>(p.out) + static_cast<u64>(row) * padded;
    for (u32 i = threadIdx.x; i < padded; i += blockDim.x)
        out[i] = i < p.cols && finite ? float_to_half(x[i] * inverse) : 0;
    if (threadIdx.x == 0) p.scales[row] = finite ? as_float((exponent - 13u) << 23) : as_float(0x7fc00000u);
}

KERNEL(activations_halves, ArrangeParams, NORM_THREADS) { store_halves(p, blockIdx.x, plain(p, blockIdx.x)); }
KERNEL(norm_halves, ArrangeParams, NORM_THREADS) { store_halves(p, blockIdx.x, normed(p, blockIdx.x)); }
