// Brings activations into the forms that the matrix kernels read.
#include "activations.cuh"
#include "norm.cuh"
#include "wide.cuh"

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
DEVICE Plain plain(const ArrangeParams& p, u32 row) {
    return {p.x + static_cast<u64>(row) * p.cols};
}
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

// Blocks are (row, eight units). Each works out the norm of the whole row: one after the other
// would take longer than reading a row many times. A value and its weight, which come from far
// away, are on their way meanwhile.
KERNEL(norm_integers, ArrangeParams, NORM_PART) {
    const u32 row = blockIdx.x, unit = blockIdx.y * (NORM_PART / WARP) + threadIdx.x / WARP;
    const u32 col = unit * UNIT + threadIdx.x % WARP;
    const float* x = p.x + static_cast<u64>(row) * p.cols;
    const bool there = col < p.cols;
    const float v = there ? x[col] : 0.0f, weight = there ? p.weight[col] : 0.0f;
    const float scale = norm_scale_by_part(x, p.cols, p.eps);
    store_integers(p.out, row, p.units, unit, v * scale * weight);
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

struct Four {
    float v[4];
};

// Columns `col` and the three behind it, of which those behind the row are zero.
DEVICE Four four_at(const float* x, u32 col, u32 cols) {
    Four four = {};
    if (cols % 4 == 0) {
        if (col >= cols) return four;
        const Words words = load16(x + col);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) four.v[i] = as_float(words.w[i]);
        return four;
    }
#pragma unroll
    for (u32 i = 0; i < 4; ++i) four.v[i] = col + i < cols ? x[col + i] : 0.0f;
    return four;
}
DEVICE Four four_of(const Plain& row, u32 col, u32 cols) { return four_at(row.x, col, cols); }
DEVICE Four four_of(const Normed& row, u32 col, u32 cols) {
    Four four = four_at(row.x, col, cols);
    const Four weight = four_at(row.weight, col, cols);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) four.v[i] = four.v[i] * row.scale * weight.v[i];
    return four;
}

// Where four neighbouring columns go among a row's halves: in their order for `gemm`, of which a
// slice has two units,
struct GemmSlices {
    static constexpr u32 UNITS = 2;
    DEVICE static void store(u16* out, u32 col, u32 first, u32 second) {
        store_vector<u64>(out + col, static_cast<u64>(second) << 32 | first);
    }
};
// and in its own for `wide_gemm`.
struct WideSlices {
    static constexpr u32 UNITS = WIDE_UNITS;
    DEVICE static void store(u16* out, u32 col, u32 first, u32 second) {
        store_vector<u32>(out + wide_place(col), first);
        store_vector<u32>(out + wide_place(col + 2), second);
    }
};

// Rows of halves, and for each a power of two that multiplies it: the largest value becomes 2^13 to
// 2^14, so that none overflows and those 2^-27 as large still have all their bits. Rows are padded
// with zeros to whole slices. Values that are few enough stay in registers while the largest is
// looked for.
constexpr u32 KEPT = 12;
template <class Slices, class Row>
DEVICE void store_halves(const ArrangeParams& p, u32 row, const Row& x) {
    constexpr u32 at_once = 4 * NORM_PART;
    SHARED(float, largest, [NORM_PART / WARP]);
    SHARED(float, wrong, [NORM_PART / WARP]);
    const u32 padded = (p.units + Slices::UNITS - 1) / Slices::UNITS * Slices::UNITS * UNIT;
    Four kept[KEPT];
    float max = 0.0f, bad = 0.0f;
    const auto see = [&](const Four& four) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            max = fmaxf(max, fabsf(four.v[i]));
            bad += four.v[i] - four.v[i];
        }
    };
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) kept[i] = four_of(x, i * at_once + 4 * threadIdx.x, p.cols);
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) see(kept[i]);
    for (u32 col = KEPT * at_once + 4 * threadIdx.x; col < p.cols; col += at_once)
        see(four_of(x, col, p.cols));
    max = lanes_max<32>(max);
    bad = lanes_sum<32>(bad);
    if (threadIdx.x % WARP == 0) {
        largest[threadIdx.x / WARP] = max;
        wrong[threadIdx.x / WARP] = bad;
    }
    __syncthreads();
    for (u32 i = 0; i < NORM_PART / WARP; ++i) {
        max = fmaxf(max, largest[i]);
        bad += wrong[i];
    }
    const bool finite = bad == 0.0f;
    const u32 exponent = most(as_bits(max) >> 23, 14u);
    const float inverse = finite ? as_float((267u - exponent) << 23) : 0.0f;
    u16* out = reinterpret_cast<u16*>(p.out) + static_cast<u64>(row) * padded;
    const auto store = [&](u32 col, const Four& four) {
        if (col >= padded) return;
        u32 pairs[2] = {};
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            if (finite)
                pairs[i] = pack_halves(four.v[2 * i] * inverse, four.v[2 * i + 1] * inverse);
        }
        Slices::store(out, col, pairs[0], pairs[1]);
    };
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) store(i * at_once + 4 * threadIdx.x, kept[i]);
    for (u32 col = KEPT * at_once + 4 * threadIdx.x; col < padded; col += at_once)
        store(col, four_of(x, col, p.cols));
    if (threadIdx.x == 0)
        p.scales[row] = finite ? as_float((exponent - 13u) << 23) : as_float(0x7fc00000u);
}

// A row, normed by the threads of `store_halves`.
DEVICE Normed normed_in_parts(const ArrangeParams& p, u32 row) {
    const float* x = p.x + static_cast<u64>(row) * p.cols;
    return {x, p.weight, norm_scale_by_part(x, p.cols, p.eps)};
}

KERNEL(activations_halves, ArrangeParams, NORM_PART) {
    store_halves<GemmSlices>(p, blockIdx.x, plain(p, blockIdx.x));
}
KERNEL(activations_wide, ArrangeParams, NORM_PART) {
    store_halves<WideSlices>(p, blockIdx.x, plain(p, blockIdx.x));
}
KERNEL(norm_halves, ArrangeParams, NORM_PART) {
    store_halves<GemmSlices>(p, blockIdx.x, normed_in_parts(p, blockIdx.x));
}
KERNEL(norm_wide, ArrangeParams, NORM_PART) {
    store_halves<WideSlices>(p, blockIdx.x, normed_in_parts(p, blockIdx.x));
}
