// Activations as the matrix kernels read them, arranged so that 32 lanes with neighbouring units of
// 32 columns read neighbouring pieces of 16 bytes: [row][piece][unit][16].
//
// For integer codes: 32 integers of 15 bits and a sign, x = 256 high + low in two planes of signed
// bytes (two pieces each), and a piece with their scale and the sums of both halves. About a
// hundred times finer than llama.cpp's 8 bits, and the same numbers as on the CPU. For float
// weights: the floats, in eight pieces.
#ifndef OCTAVO_ACTIVATIONS
#define OCTAVO_ACTIVATIONS

#include "compat.cuh"

constexpr u32 UNIT = 32;
constexpr int INTEGER_PIECES = 5;
constexpr int FLOAT_PIECES = 8;

// Aligned as a piece is, so that it is stored by one instruction.
struct alignas(16) UnitSums {
    float scale;
    i32 first;
    i32 second;
    u32 unused;
};
static_assert(sizeof(UnitSums) == 16, "a piece");

DEVICE u8* activation_piece(u8* x, u32 row, int pieces, int piece, u32 units, u32 unit) {
    return x + ((static_cast<u64>(row) * pieces + piece) * units + unit) * 16;
}
DEVICE const u8* activation_piece(const u8* x, u32 row, int pieces, int piece, u32 units,
                                  u32 unit) {
    return x + ((static_cast<u64>(row) * pieces + piece) * units + unit) * 16;
}

// The largest integer: 127 * 256 + 127 fits both planes.
constexpr float LARGEST = 32639.0f;
constexpr float SMALLEST_NORMAL = 1.17549435e-38f;

// Stores a unit of integers, of which every lane of a warp has one value; there are `units`, and
// one beyond is left out. What is not finite makes the scale so, and so reaches the logits.
DEVICE void store_integers(u8* to, u32 row, u32 units, u32 unit, float v) {
    const u32 lane = threadIdx.x % WARP, half = lane / 16;
    float odd = v - v, largest = fabsf(v);
#pragma unroll
    for (int o = 16; o > 0; o /= 2) {
        odd += __shfl_xor_sync(ALL_LANES, odd, o);
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, o));
    }
    const bool finite = odd == 0.0f;
    const float scale = largest / LARGEST;
    const float inverse = finite && scale >= SMALLEST_NORMAL ? 1.0f / scale : 0.0f;
    const i32 q = __float2int_rn((finite ? v : 0.0f) * inverse);
    const i32 sum = lanes_sum<16>(q), second = __shfl_sync(ALL_LANES, sum, 16);
    if (unit >= units) return;
    const i32 low = static_cast<i8>(q & 255), high = (q - low) >> 8;
    activation_piece(to, row, INTEGER_PIECES, half, units, unit)[lane % 16] = static_cast<u8>(high);
    activation_piece(to, row, INTEGER_PIECES, 2 + half, units, unit)[lane % 16] =
        static_cast<u8>(low);
    if (lane == 0) {
        const UnitSums sums = {finite ? scale : as_float(0x7fc00000u), sum, second, 0};
        store_vector<UnitSums>(activation_piece(to, row, INTEGER_PIECES, 4, units, unit), sums);
    }
}

#endif
