// Rotary position embedding of one value of a head.
#ifndef OCTAVO_TURN
#define OCTAVO_TURN

#include "compat.cuh"

struct Turn {
    const float* cosines;  // (positions, pairs)
    const float* sines;    // (positions, pairs)
    const i32* turns;      // (rows, 3): positions along the axes, below zero: the row is padding
    const u32* axes;       // (pairs): along which of them each turns; null: all along the first
    u32 pairs;
    u32 neox;  // pairs are (i, i + pairs), otherwise (2 i, 2 i + 1)
};
static_assert(sizeof(Turn) == 40, "kernels/src/cuda/params.rs has the same");

// Value `i` of a head of a row, turned. Rows of padding and what is behind the pairs stay.
DEVICE float rotated(const float* head, u32 i, u64 row, const Turn& turn) {
    const float x = head[i];
    const i32* turns = turn.turns + 3 * row;
    if (turns[0] < 0 || i >= 2 * turn.pairs) return x;
    const u32 pair = turn.neox ? i % turn.pairs : i / 2;
    const i32 position = turns[turn.axes == nullptr ? 0 : turn.axes[pair]];
    const bool second = turn.neox ? i >= turn.pairs : i % 2 == 1;
    const u32 apart = turn.neox ? turn.pairs : 1;
    const float other = head[second ? i - apart : i + apart];
    const u64 angle = static_cast<u64>(position) * turn.pairs + pair;
    const float c = turn.cosines[angle], s = turn.sines[angle];
    return second ? other * s + x * c : x * c - other * s;
}

#endif
