// Keys and values in pages of 16 positions: [page][KV head][16][head_dim] for each layer, both alike, so that a head's
// part of a page is one piece of memory.
//
// Everything that changes from step to step is read from device memory: launches that were captured once serve for
// good.
#ifndef OCTAVO_PAGING
#define OCTAVO_PAGING

#include "compat.cuh"

constexpr u32 PAGE = 16;

// The rows of a step.
struct Paging {
    const i32* positions;  // (rows), below zero: the row is padding
    const u32* sequences;  // (rows): line of the table
    const u32* tables;     // (sequences, max_pages): pages by position / 16
    u32 max_pages;
    u32 rows;
};
static_assert(sizeof(Paging) == 32, "kernels/src/cuda/params.rs has the same");

DEVICE u64 page_start(u32 page, u32 heads, u32 head, u32 head_dim) {
    return (static_cast<u64>(page) * heads + head) * PAGE * head_dim;
}

struct KvF16 {
    typedef u16 Element;
    DEVICE static void load8(float (&v)[8], const u16* at) {
        const Words words = load16(at);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v[2 * i] = low_half(words.w[i]);
            v[2 * i + 1] = high_half(words.w[i]);
        }
    }
    DEVICE static u16 from(float x) { return float_to_half(x); }
};

struct KvBF16 {
    typedef u16 Element;
    DEVICE static void load8(float (&v)[8], const u16* at) {
        const Words words = load16(at);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v[2 * i] = as_float(words.w[i] << 16);
            v[2 * i + 1] = as_float(words.w[i] & 0xffff0000u);
        }
    }
    // To the nearest, ties to even; what is not a number stays none.
    DEVICE static u16 from(float x) {
        const u32 bits = as_bits(x);
        if (x != x) return static_cast<u16>(bits >> 16 | 0x40u);
        return static_cast<u16>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
};

struct KvF32 {
    typedef float Element;
    DEVICE static void load8(float (&v)[8], const float* at) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const Words words = load16(at + 4 * i);
#pragma unroll
            for (int j = 0; j < 4; ++j) v[4 * i + j] = as_float(words.w[j]);
        }
    }
    DEVICE static float from(float x) { return x; }
};

#endif
