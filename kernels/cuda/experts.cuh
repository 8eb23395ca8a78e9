// Numbers of experts, as floats hold them.
#ifndef OCTAVO_EXPERTS
#define OCTAVO_EXPERTS

#include "compat.cuh"

// A place of `n` that there are. Whatever stands there, also what is not a number: nothing is ever
// read behind the end.
DEVICE u32 place(float id, u32 n) {
    if (!(id > 0.0f)) return 0;
    return id < static_cast<float>(n) ? static_cast<u32>(id) : n - 1;
}

// Choices of one expert that are multiplied together: these many of the order, from `first` on.
struct alignas(16) ExpertTile {
    u32 expert;
    u32 first;
    u32 choices;  // 0: none are left for it
    u32 unused;
};

#endif
