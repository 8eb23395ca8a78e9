// Keys and values in pages of 16 positions: [page][KV head][16][head_dim] for each layer, both
// alike, so that a head's part of a page is one piece of memory.
//
// Everything that changes from step to step is read from device memory: launches that were captured
// once serve for good.
#ifndef OCTAVO_PAGING
#define OCTAVO_PAGING

#include "compat.cuh"

constexpr u32 PAGE = 16;

// The rows of a step.
struct Paging {
    const i32* positions;  // (rows), below zero: the row is padding
    const u32* sequences;  // (rows): line of the table
    const u32* tables;     // (sequences, max_pages): pages by position / 16
    u32* missing;          // a row, counted from 1, whose table lacks a page that it needs
    u32 max_pages;
    u32 rows;
    u32 n_pages;
    u32 first_row;  // of the step, where these are not all of its rows
};
static_assert(sizeof(Paging) == 48, "kernels/src/cuda/params.rs has the same");

DEVICE const u32* table_of(const Paging& p, u32 row) {
    return p.tables + static_cast<u64>(p.sequences[row]) * p.max_pages;
}

// A page of a row's table, which may be none of the cache's: then the row is told, and nothing may
// be read there. So a table from before a page was allocated ends the step with an error, not with
// another page's keys.
DEVICE u32 checked_page(const Paging& p, u32 row, u32 page) {
    if (page >= p.n_pages) *p.missing = p.first_row + row + 1;
    return page;
}
// Page `i` of the table, likewise.
DEVICE u32 page_of(const Paging& p, u32 row, const u32* table, u32 i) {
    return checked_page(p, row, table[i]);
}

// Bytes before a head's part of a page, in a cache of `Kv`.
template <class Kv>
DEVICE u64 page_start(u32 page, u32 heads, u32 head, u32 head_dim) {
    return (static_cast<u64>(page) * heads + head) * Kv::page_bytes(head_dim);
}

// A type of the cache says how large a head's part of a page is, fetches eight neighbouring values
// of a position from it and decodes them, and writes one. Where values share a scale, the 32 lanes
// of a warp write 32 neighbouring values together.

// Types of 16 bits, one behind the other.
template <class Half>
struct KvHalves {
    DEVICE static u64 page_bytes(u32 head_dim) { return static_cast<u64>(PAGE) * head_dim * 2; }
    typedef Words Eight;
    DEVICE static Eight fetch(const u8* page, u32 position, u32 d, u32 head_dim) {
        return load16(page + 2 * (position * head_dim + d));
    }
    DEVICE static void decode(float (&v)[8], const Eight& words) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v[2 * i] = Half::low(words.w[i]);
            v[2 * i + 1] = Half::high(words.w[i]);
        }
    }
    DEVICE static void store(u8* page, u32 position, u32 d, u32 head_dim, float x) {
        store_vector<u16>(page + 2 * (position * head_dim + d), Half::from(x));
    }
};

struct KvF16 : KvHalves<KvF16> {
    DEVICE static float low(u32 pair) { return low_half(pair); }
    DEVICE static float high(u32 pair) { return high_half(pair); }
    DEVICE static u16 from(float x) { return float_to_half(x); }
};

struct KvBF16 : KvHalves<KvBF16> {
    DEVICE static float low(u32 pair) { return as_float(pair << 16); }
    DEVICE static float high(u32 pair) { return as_float(pair & 0xffff0000u); }
    // To the nearest, ties to even; what is not a number stays none.
    DEVICE static u16 from(float x) {
        const u32 bits = as_bits(x);
        if (x != x) return static_cast<u16>(bits >> 16 | 0x40u);
        return static_cast<u16>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
};

struct KvF32 {
    DEVICE static u64 page_bytes(u32 head_dim) { return static_cast<u64>(PAGE) * head_dim * 4; }
    struct Eight {
        Words half[2];
    };
    DEVICE static Eight fetch(const u8* page, u32 position, u32 d, u32 head_dim) {
        const u8* at = page + 4 * (position * head_dim + d);
        return {{load16(at), load16(at + 16)}};
    }
    DEVICE static void decode(float (&v)[8], const Eight& words) {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = as_float(words.half[i / 4].w[i % 4]);
    }
    DEVICE static void store(u8* page, u32 position, u32 d, u32 head_dim, float x) {
        store_vector<float>(page + 4 * (position * head_dim + d), x);
    }
};

// Types of bytes, and behind those of all positions a half for every 32 of them: the scale.
template <class Code>
struct KvBytes {
    DEVICE static u64 page_bytes(u32 head_dim) {
        return static_cast<u64>(PAGE) * (head_dim + head_dim / 32 * 2);
    }
    DEVICE static u32 scale_at(u32 position, u32 d, u32 head_dim) {
        return PAGE * head_dim + 2 * (position * (head_dim / 32) + d / 32);
    }
    struct Eight {
        u64 codes;
        u32 scale;
    };
    DEVICE static Eight fetch(const u8* page, u32 position, u32 d, u32 head_dim) {
        const u64 codes = load_vector<u64>(page + position * head_dim + d);
        return {codes, load_vector<u16>(page + scale_at(position, d, head_dim))};
    }
    DEVICE static void decode(float (&v)[8], const Eight& eight) {
        const float scale = low_half(eight.scale);
#pragma unroll
        for (int i = 0; i < 8; ++i)
            v[i] = scale * Code::value(static_cast<i8>(eight.codes >> (8 * i) & 255));
    }
    // What is not finite makes the scale so.
    DEVICE static void store(u8* page, u32 position, u32 d, u32 head_dim, float x) {
        const bool finite = lanes_sum<32>(x - x) == 0.0f;
        const float scale = Code::scale(lanes_max<32>(fabsf(x)));
        const float inverse = finite && scale > 0.0f ? 1.0f / scale : 0.0f;
        page[position * head_dim + d] = Code::of((finite ? x : 0.0f) * inverse);
        const float stored = finite ? scale : as_float(0x7fc00000u);
        if (d % 32 == 0)
            store_vector<u16>(page + scale_at(position, d, head_dim), float_to_half(stored));
    }
};

// ggml's Q8_0.
struct KvQ8_0 : KvBytes<KvQ8_0> {
    DEVICE static float value(i8 code) { return static_cast<float>(code); }
    DEVICE static float scale(float largest) { return largest / 127.0f; }
    DEVICE static u8 of(float x) { return static_cast<u8>(static_cast<i32>(roundf(x))); }
};

// OCP's E4M3, as kernels/src/kv/codes.rs makes it and octavo-simd's attention/stored.rs reads
// it: arithmetic that every device has, and the same bits.
struct KvF8_E4M3 : KvBytes<KvF8_E4M3> {
    DEVICE static float value(i8 code) {
        const u32 widened = static_cast<u32>(static_cast<i32>(code));
        const float two_to_120 = as_float((127u + 120u) << 23);
        return as_float(widened << 20 & 0x87f00000u) * two_to_120;
    }
    // As it is stored: codes are parts of that.
    DEVICE static float scale(float largest) {
        return half_to_float(float_to_half(largest / 240.0f));
    }
    // The nearest one, of two the even one.
    DEVICE static u8 of(float x) {
        const u32 exponent = most(as_bits(fabsf(x)) >> 23, 127u - 6u);
        const float steps = fabsf(x) * as_float((127u + 127u + 3u - exponent) << 23);
        const u32 size = 8 * (exponent - (127 - 6)) + static_cast<u32>(__float2int_rn(steps));
        return static_cast<u8>(as_bits(x) >> 31 << 7 | size);
    }
};

// ggml's Q4_0: a byte has values i and i + 16 of 32, whose halves lie as those of Q8_0.
struct KvQ4_0 {
    DEVICE static u64 page_bytes(u32 head_dim) {
        return static_cast<u64>(PAGE) * (head_dim / 2 + head_dim / 32 * 2);
    }
    DEVICE static u32 code_at(u32 position, u32 d, u32 head_dim) {
        return position * (head_dim / 2) + d / 32 * 16 + d % 16;
    }
    DEVICE static u32 scale_at(u32 position, u32 d, u32 head_dim) {
        return PAGE * (head_dim / 2) + 2 * (position * (head_dim / 32) + d / 32);
    }
    struct Eight {
        u64 codes;
        u32 scale;
    };
    DEVICE static Eight fetch(const u8* page, u32 position, u32 d, u32 head_dim) {
        const u64 both = load_vector<u64>(page + code_at(position, d, head_dim));
        const u16 scale = load_vector<u16>(page + scale_at(position, d, head_dim));
        return {both >> (d % 32 / 16 * 4), scale};
    }
    DEVICE static void decode(float (&v)[8], const Eight& eight) {
        const float scale = low_half(eight.scale);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            v[i] = scale * static_cast<float>(static_cast<i32>(eight.codes >> (8 * i) & 15) - 8);
        }
    }
    // The value that is farthest from 0, the positive one of two, is -8 of a scale. What is not
    // finite makes the scale so.
    DEVICE static void store(u8* page, u32 position, u32 d, u32 head_dim, float x) {
        const bool finite = lanes_sum<32>(x - x) == 0.0f;
        const float largest = lanes_max<32>(fabsf(x));
        const float farthest = lanes_max<32>(x) == largest ? largest : -largest;
        const float scale = farthest / -8.0f;
        const float inverse = finite && scale != 0.0f ? 1.0f / scale : 0.0f;
        const float from_lowest = (finite ? x : 0.0f) * inverse + 8.5f;
        const i32 code = static_cast<i32>(fminf(fmaxf(from_lowest, 0.0f), 15.0f));
        const i32 other = __shfl_xor_sync(ALL_LANES, code, 16);
        if (d % 32 < 16) page[code_at(position, d, head_dim)] = static_cast<u8>(code | other << 4);
        const float stored = finite ? scale : as_float(0x7fc00000u);
        if (d % 32 == 0)
            store_vector<u16>(page + scale_at(position, d, head_dim), float_to_half(stored));
    }
};

#endif
