// Brings activations into the forms that the matrix kernels read.
#include "activations.cuh"

struct ArrangeParams {
    const float* x;  // (rows, cols)
    u8* out;
    float* scales;  // (rows), of halves only
    u32 rows;
    u32 cols;
    u32 units;
    u32 unused;
};
static_assert(sizeof(ArrangeParams) == 40, "kernels/src/cuda/params.rs has the same");

// The largest integer: 127 * 256 + 127 fits both planes.
constexpr float LARGEST = 32639.0f;
constexpr float SMALLEST_NORMAL = 1.17549435e-38f;

// One warp for a unit, a lane for a value. What is not finite makes the scale so, and so reaches the logits.
KERNEL(activations_integers, ArrangeParams, 128) {
    const u32 lane = threadIdx.x % WARP;
    const u64 warp = static_cast<u64>(blockIdx.x) * (128 / WARP) + threadIdx.x / WARP;
    if (warp >= static_cast<u64>(p.rows) * p.units) return;
    const u32 row = static_cast<u32>(warp / p.units), unit = static_cast<u32>(warp % p.units);
    const u32 col = unit * UNIT + lane;
    float v = col < p.cols ? p.x[static_cast<u64>(row) * p.cols + col] : 0.0f;
    const bool finite = lanes_sum<32>(v - v) == 0.0f;
    const float scale = lanes_max<32>(fabsf(v)) / LARGEST;
    const float inverse = finite && scale >= SMALLEST_NORMAL ? 1.0f / scale : 0.0f;
    const i32 q = __float2int_rn((finite ? v : 0.0f) * inverse);
    const i32 low = static_cast<i8>(q & 255), high = (q - low) >> 8;
    const u32 half = lane / 16;
    activation_piece(p.out, row, INTEGER_PIECES, half, p.units, unit)[lane % 16] = static_cast<u8>(high);
    activation_piece(p.out, row, INTEGER_PIECES, 2 + half, p.units, unit)[lane % 16] = static_cast<u8>(low);
    const i32 sum = lanes_sum<16>(q);
    const i32 second = __shfl_sync(ALL_LANES, sum, 16);
    if (lane == 0) {
        const UnitSums sums = {finite ? scale : as_float(0x7fc00000u), sum, second, 0};
        store_vector<UnitSums>(activation_piece(p.out, row, INTEGER_PIECES, 4, p.units, unit), sums);
    }
}

KERNEL(activations_floats, ArrangeParams, 128) {
    const u64 at = static_cast<u64>(blockIdx.x) * 128 + threadIdx.x;
    const u32 padded = p.units * UNIT;
    if (at >= static_cast<u64>(p.rows) * padded) return;
    const u32 row = static_cast<u32>(at / padded), col = static_cast<u32>(at % padded);
    u8* piece = activation_piece(p.out, row, FLOAT_PIECES, col % UNIT / 4, p.units, col / UNIT);
    reinterpret_cast<float*>(piece)[col % 4] = col < p.cols ? p.x[static_cast<u64>(row) * p.cols + col] : 0.0f;
}

// Rows of halves, and for each a power of two that multiplies it: the largest value becomes 2^13 to 2^14, so that none
// overflows and those 2^-27 as large still have all their bits. Rows are padded with zeros to whole units, and to an even
// number of them.
KERNEL(activations_halves, ArrangeParams, 256) {
    SHARED(float, largest, [256 / WARP]);
    SHARED(float, wrong, [256 / WARP]);
    const u32 row = blockIdx.x, padded = (p.units + 1) / 2 * 2 * UNIT;
    const float* x = p.x + static_cast<u64>(row) * p.cols;
    float max = 0.0f, bad = 0.0f;
    for (u32 i = threadIdx.x; i < p.cols; i += 256) {
        max = fmaxf(max, fabsf(x[i]));
        bad += x[i] - x[i];
    }
    max = lanes_max<32>(max);
    bad = lanes_sum<32>(bad);
    if (threadIdx.x % WARP == 0) {
        largest[threadIdx.x / WARP] = max;
        wrong[threadIdx.x / WARP] = bad;
    }
    __syncthreads();
    for (u32 i = 0; i < 256 / WARP; ++i) {
        max = fmaxf(max, largest[i]);
        bad += wrong[i];
    }
    const bool finite = bad == 0.0f;
    const u32 exponent = most(as_bits(max) >> 23, 14u);
    const float inverse = finite ? as_float((267u - exponent) << 23) : 0.0f;
    u16* out = reinterpret_cast<u16*>(p.out) + static_cast<u64>(row) * padded;
    for (u32 i = threadIdx.x; i < padded; i += 256) out[i] = i < p.cols && finite ? float_to_half(x[i] * inverse) : 0;
    if (threadIdx.x == 0) p.scales[row] = finite ? as_float((exponent - 13u) << 23) : as_float(0x7fc00000u);
}
