// Weight formats whose codes are points of a grid, found by index: eight weights to an index, or
// four.
//
// A unit has words instead of bit planes, as kernels/simd/src/formats/indexed.rs makes them of the
// file's: the lower eight bits of its indices, and for IQ2 and IQ3 a word of signs, of which bit i
// of byte b is that of column 4 i + b. Upper bits of indices and the scales of a unit are bytes
// beside it. Codes are signed bytes, and the grids are tables of levels, a nibble each, which
// select a byte of a word (kernels/src/cuda/grids.rs writes them).
#ifndef OCTAVO_GRID_FORMATS
#define OCTAVO_GRID_FORMATS

#include "compat.cuh"
#include "grids.cuh"

// Scales and minima of a unit's two halves of 16 columns.
struct Scales {
    float scale[2];
    float min[2];
};

// One row of a unit: words of both planes, and its bytes of scales.
struct RowWords {
    const u32* low;
    const u32* high;
    u32 scale;

    DEVICE u32 low_word(u32 i) const { return low[i]; }
    DEVICE u32 high_word(u32 i) const { return high[i]; }
    DEVICE u32 scale_word() const { return scale; }
};

// Where the eighth sign of eight weights is, number `l` of a unit.
DEVICE constexpr u32 eighth_sign(u32 l) { return 25 + 2 * l; }

// Puts eighth signs in their places, in which other bits are: minus signs of eight are even.
DEVICE u32 even_signs(u32 plane) {
    u32 parity = plane ^ plane >> 16;
    parity ^= parity >> 8;
    parity ^= parity >> 1;
    return plane ^ (parity & 0x55u) << eighth_sign(0);
}

// The four bits in the places of eighth signs.
DEVICE u32 bits_of_eighth_signs(u32 plane) {
    const u32 apart = plane >> eighth_sign(0) & 0x55u;
    const u32 pairs = (apart | apart >> 1) & 0x33u;
    return (pairs | pairs >> 2) & 15u;
}

// Word `i` of magnitudes with their signs. None is 0, so that no byte carries.
DEVICE u32 with_signs(u32 magnitudes, u32 plane, u32 i) {
    const u32 minus = plane >> i & 0x01010101u;
    return (magnitudes ^ minus * 255u) + minus;
}

// Index `l` of four in a word that has their bytes in the order 0, 2, 1, 3.
DEVICE u32 index_of_four(u32 word, u32 l) { return word >> (l % 2 * 16 + l / 2 * 8) & 255u; }

// The odd number 2 scale + 1 that a scale stands for, times the block's scale and a power of two.
DEVICE float odd_scale(float d, u32 scale, float unit) {
    return d * static_cast<float>(2 * scale + 1) * unit;
}

// Formats of words; a half for every 256 columns.
template <int low, int high, int group, int scales>
struct Grid {
    static constexpr bool FLOAT = false;
    static constexpr bool WORDS = true;
    static constexpr bool TABLE = true;
    static constexpr int LOW = low;
    static constexpr int HIGH = high;
    static constexpr int GROUP = group;
    static constexpr int OFFSET = 0;
    static constexpr bool MIN = false;
    static constexpr int SCALES = scales;
    static constexpr int SUPERS = 2;
    DEVICE static Scales one_scale(float scale) { return {{scale, scale}, {0, 0}}; }
    // Of both nibbles of a byte.
    DEVICE static Scales nibbles(float d, u32 byte) {
        return {{odd_scale(d, byte & 15, 0.125f), odd_scale(d, byte >> 4 & 15, 0.125f)}, {0, 0}};
    }
};

// Word `i` of IQ2: magnitudes 8, 25 and 43.
DEVICE u32 iq2_magnitudes(u32 point, u32 i) {
    return __byte_perm(0x002b1908u, 0, point >> (i % 2 * 16) & 0xffffu);
}

struct IQ2_XXS : Grid<2, 0, 32, 0> {
    template <class W>
    DEVICE static u32 codes(const W& w, u32 i) {
        const u32 point = IQ2_XXS_GRID[index_of_four(w.low_word(0), i / 2)];
        return with_signs(iq2_magnitudes(point, i), even_signs(w.low_word(1)), i);
    }
    template <class W>
    DEVICE static Scales scales(const W& w, float d) {
        return one_scale(odd_scale(d, bits_of_eighth_signs(w.low_word(1)), 0.125f));
    }
};

// The highest bits of indices are in the places of eighth signs.
struct IQ2_XS : Grid<2, 0, 16, 1> {
    template <class W>
    DEVICE static u32 codes(const W& w, u32 i) {
        const u32 l = i / 2, plane = w.low_word(1);
        const u32 above = (plane >> eighth_sign(l) & 1u) << 8;
        const u32 point = IQ2_XS_GRID[index_of_four(w.low_word(0), l) | above];
        return with_signs(iq2_magnitudes(point, i), even_signs(plane), i);
    }
    template <class W>
    DEVICE static Scales scales(const W& w, float d) {
        return nibbles(d, w.scale_word());
    }
};

struct IQ2_S : Grid<2, 0, 16, 2> {
    template <class W>
    DEVICE static u32 codes(const W& w, u32 i) {
        const u32 l = i / 2, above = (w.scale_word() >> (2 * l) & 3u) << 8;
        const u32 point = IQ2_S_GRID[index_of_four(w.low_word(0), l) | above];
        return with_signs(iq2_magnitudes(point, i), w.low_word(1), i);
    }
    template <class W>
    DEVICE static Scales scales(const W& w, float d) {
        return nibbles(d, w.scale_word() >> 8);
    }
};

// An index for every word of codes.
struct IQ3_XXS : Grid<2, 1, 32, 0> {
    template <class W>
    DEVICE static u32 codes(const W& w, u32 i) {
        const u32 point = IQ3_XXS_GRID[w.low_word(i / 4) >> (i % 4 * 8) & 255u];
        // 4 12 20 28, 36 44 52 62
        const u32 magnitudes = __byte_perm(0x1c140c04u, 0x3e342c24u, point);
        return with_signs(magnitudes, even_signs(w.high_word(0)), i);
    }
    template <class W>
    DEVICE static Scales scales(const W& w, float d) {
        return one_scale(odd_scale(d, bits_of_eighth_signs(w.high_word(0)), 0.25f));
    }
};

struct IQ3_S : Grid<2, 1, 32, 2> {
    template <class W>
    DEVICE static u32 codes(const W& w, u32 i) {
        const u32 above = (w.scale_word() >> i & 1u) << 8;
        const u32 point = IQ3_S_GRID[(w.low_word(i / 4) >> (i % 4 * 8) & 255u) | above];
        // odd numbers
        const u32 magnitudes = __byte_perm(0x07050301u, 0x0f0d0b09u, point);
        return with_signs(magnitudes, w.high_word(0), i);
    }
    template <class W>
    DEVICE static Scales scales(const W& w, float d) {
        return one_scale(odd_scale(d, w.scale_word() >> 8 & 15, 1.0f));
    }
};

// Word `i` of IQ1, in eighths: -1, 0 or 1, and a shift of an eighth up or, with `minus`, down.
DEVICE u32 iq1_codes(u32 index, u32 minus, u32 i) {
    const u32 levels = minus != 0 ? 0x0007fff7u : 0x000901f9u;
    return __byte_perm(levels, 0, IQ1_GRID[index] >> (i % 2 * 16) & 0xffffu);
}

struct IQ1_S : Grid<1, 0, 32, 2> {
    template <class W>
    DEVICE static u32 codes(const W& w, u32 i) {
        const u32 l = i / 2, high = w.scale_word();
        const u32 index = (w.low_word(0) >> (8 * l) & 255u) | (high >> (3 * l) & 7u) << 8;
        return iq1_codes(index, high >> 15 & 1u, i);
    }
    template <class W>
    DEVICE static Scales scales(const W& w, float d) {
        return one_scale(odd_scale(d, w.scale_word() >> 12 & 7, 0.125f));
    }
};

// A shift for every eight columns.
struct IQ1_M : Grid<1, 0, 16, 4> {
    template <class W>
    DEVICE static u32 codes(const W& w, u32 i) {
        const u32 l = i / 2, high = w.scale_word() >> (4 * l);
        return iq1_codes((w.low_word(0) >> (8 * l) & 255u) | (high & 7u) << 8, high >> 3 & 1u, i);
    }
    template <class W>
    DEVICE static Scales scales(const W& w, float d) {
        const u32 both = w.scale_word() >> 16;
        return {{odd_scale(d, both & 7, 0.125f), odd_scale(d, both >> 8 & 7, 0.125f)}, {0, 0}};
    }
};

#endif
