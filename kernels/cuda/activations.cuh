// Activations as the matrix kernels read them, arranged so that 32 lanes with neighbouring units of 32 columns read
// neighbouring pieces of 16 bytes: [row][piece][unit][16].
//
// For integer codes: 32 integers of 15 bits and a sign, x = 256 high + low in two planes of signed bytes (two pieces
// each), and a piece with their scale and the sums of both halves. About a hundred times finer than llama.cpp's 8 bits,
// and the same numbers as on the CPU. For float weights: the floats, in eight pieces.
#ifndef OCTAVO_ACTIVATIONS
#define OCTAVO_ACTIVATIONS

#include "formats.cuh"

constexpr int INTEGER_PIECES = 5;
constexpr int FLOAT_PIECES = 8;

struct UnitSums {
    float scale;
    i32 first;
    i32 second;
    u32 unused;
};
static_assert(sizeof(UnitSums) == 16, "a piece");

DEVICE u8* activation_piece(u8* x, u32 row, int pieces, int piece, u32 units, u32 unit) {
    return x + ((static_cast<u64>(row) * pieces + piece) * units + unit) * 16;
}
DEVICE const u8* activation_piece(const u8* x, u32 row, int pieces, int piece, u32 units, u32 unit) {
    return x + ((static_cast<u64>(row) * pieces + piece) * units + unit) * 16;
}

#endif
