// Rotary position embedding of one value of a head.
#ifndef OCTAVO_ROPE
#define OCTAVO_ROPE

#include "compat.cuh"

struct Rotation {
    const float* cosines;  // (positions, pairs)
    const float* sines;    // (positions, pairs)
    const i32* positions;  // (rows, 3): positions along the axes, below zero: the row is padding
    const u32* axes;       // (pairs): along which of them each rotates; null: all along the first
    u32 pairs;
    u32 neox;  // pairs are (i, i + pairs), otherwise (2 i, 2 i + 1)
};
static_assert(sizeof(Rotation) == 40, "kernels/src/cuda/params.rs has the same");

// Value `i` of a head of a row, rotated. Rows of padding and what is behind the pairs stay.
DEVICE float rotated(const float* head, u32 i, u64 row, const Rotation& rotation) {
    const float x = head[i];
    const i32* positions = rotation.positions + 3 * row;
    if (positions[0] < 0 || i >= 2 * rotation.pairs) return x;
    const u32 pair = rotation.neox ? i % rotation.pairs : i / 2;
    const i32 position = positions[rotation.axes == nullptr ? 0 : rotation.axes[pair]];
    const bool second = rotation.neox ? i >= rotation.pairs : i % 2 == 1;
    const u32 apart = rotation.neox ? rotation.pairs : 1;
    const float other = head[second ? i - apart : i + apart];
    const u64 angle = static_cast<u64>(position) * rotation.pairs + pair;
    const float c = rotation.cosines[angle], s = rotation.sines[angle];
    return second ? other * s + x * c : x * c - other * s;
}

#endif
