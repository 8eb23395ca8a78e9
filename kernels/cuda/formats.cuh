// Weight formats, as kernels/src/cuda/pack.rs lays them out for the device.
//
// Rows go in strips of four, columns in units of 32. A strip has, for each unit, in four planes,
//
//   low     LOW bits a weight      the low bits of the codes, or whole floats
//   high    HIGH bits a weight     the bits above them
//   scales  SCALES bytes a row     the scales of the unit's group, or of its two groups
//   supers  SUPERS bytes a row     what multiplies the scales of 256 columns
//
// and a plane keeps the four rows' bytes of a unit together, cut to pieces of 16:
// [strip][piece][unit][16]. So 32 lanes with 32 neighbouring units read 512 neighbouring bytes each
// time, and in one such read there are scales of four rows. Missing rows and columns are zero.
//
// In words of code bits, byte b has column b of a group of four: of eight such groups in a unit, 4
// bits keep group 2 j in the low and 2 j + 1 in the high nibbles of word j; 1 and 2 bits keep
// following groups in ever higher bits of a word.
//
// A format says what its numbers are and turns scale bytes into floats; everything else is here
// once. The floats are the oracle's (quant/), operation by operation: scale * (code - OFFSET) -
// minimum.
#ifndef OCTAVO_FORMATS
#define OCTAVO_FORMATS

#include "activations.cuh"
#include "grid_formats.cuh"

constexpr u32 STRIP = 4;
constexpr u32 SUPER_UNITS = 8;

// A packed matrix; the planes are 256-byte aligned.
struct Matrix {
    const u8* low;
    const u8* high;
    const u8* scales;
    const u8* supers;
    u32 rows;
    u32 cols;
    u32 units;
    u32 strips;
};
static_assert(sizeof(Matrix) == 48, "kernels/src/cuda/params.rs has the same");

template <int n>
struct Bytes {
    u32 w[n > 0 ? n : 1];
};

// `n` words that one thread reads together.
template <int n>
DEVICE void load_words(u32* to, const u8* at) {
    if constexpr (n == 1) {
        to[0] = load_vector<u32>(at);
    } else if constexpr (n == 2) {
        const u64 v = load_vector<u64>(at);
        to[0] = static_cast<u32>(v);
        to[1] = static_cast<u32>(v >> 32);
    } else if constexpr (n == 4) {
        const Words v = load16_once(at);
#pragma unroll
        for (int i = 0; i < 4; ++i) to[i] = v.w[i];
    }
}

// Piece `piece` of `pieces` of a unit.
DEVICE const u8* piece_at(const u8* plane, u32 strip, int pieces, int piece, u32 units, u32 unit) {
    return plane + ((static_cast<u64>(strip) * pieces + piece) * units + unit) * 16;
}

// The words of one row out of a plane of `bits` bits a weight: word j of row r is word r * bits + j
// of the unit.
template <int bits>
DEVICE void load_row(u32* to, const u8* plane, u32 strip, u32 row, u32 units, u32 unit) {
    constexpr int at_once = bits < 4 ? bits : 4;
#pragma unroll
    for (int j = 0; j < bits; j += at_once) {
        const u32 word = row * bits + j;
        const u8* piece = piece_at(plane, strip, bits, word / 4, units, unit);
        load_words<at_once>(to + j, piece + word % 4 * 4);
    }
}

// The bytes of four rows, of `bytes` bytes each, in a plane of scales.
template <int bytes>
DEVICE void load_scales(u32* to, const u8* plane, u64 at) {
    if constexpr (bytes > 0) load_words<bytes>(to, plane + at * STRIP * bytes);
}

// The bytes of one row, as those of row 0.
template <int bytes>
DEVICE u32 load_scale(const u8* plane, u64 at) {
    if constexpr (bytes == 4) return load_vector<u32>(plane + at * bytes);
    if constexpr (bytes == 2) return load_vector<u16>(plane + at * bytes);
    if constexpr (bytes == 1) return plane[at];
    return 0;
}

// The bytes of row `row`, out of those that `load_scales` has read.
template <int bytes>
DEVICE u32 scale_of_row(const u32* s, u32 row) {
    if constexpr (bytes == 4) return s[row];
    if constexpr (bytes == 2) return s[row / 2] >> (16 * (row % 2)) & 0xffffu;
    if constexpr (bytes == 1) return s[0] >> (8 * row) & 255u;
    return 0;
}

// Codes 4 i to 4 i + 3 of a row of a unit, in the order of columns, whose words are `w`'s.
template <class F, class W>
DEVICE u32 code_word(const W& w, u32 i) {
    if constexpr (F::WORDS) {
        return F::codes(w, i);
    } else {
        u32 codes;
        if constexpr (F::LOW == 8) {
            codes = w.low_word(i);
        } else if constexpr (F::LOW == 4) {
            codes = w.low_word(i / 2) >> (4 * (i % 2)) & 0x0f0f0f0fu;
        } else if constexpr (F::LOW == 2) {
            codes = w.low_word(i / 4) >> (2 * (i % 4)) & 0x03030303u;
        } else {
            codes = w.low_word(0) >> i & 0x01010101u;
        }
        if constexpr (F::HIGH == 1) {
            codes |= (w.high_word(0) >> i & 0x01010101u) << F::LOW;
        } else if constexpr (F::HIGH == 2) {
            codes |= (w.high_word(i / 4) >> (2 * (i % 4)) & 0x03030303u) << F::LOW;
        }
        if constexpr (F::TABLE) codes = F::lookup(codes);
        return codes;
    }
}

// The scales of a row of a unit, whose words are `w`'s: row `row` of those in `s` and `d`.
template <class F, class W>
DEVICE Scales scales_of(const W& w, const u32* s, const u32* d, u32 row) {
    if constexpr (F::WORDS) {
        return F::scales(w, low_half(scale_of_row<F::SUPERS>(d, row)));
    } else {
        return F::scales(s, d, row);
    }
}

// Formats of integer codes.
template <int low, int high, int group, int offset>
struct Codes {
    static constexpr bool FLOAT = false;
    static constexpr bool WORDS = false;
    static constexpr bool TABLE = false;
    static constexpr int LOW = low;
    static constexpr int HIGH = high;
    static constexpr int GROUP = group;
    static constexpr int OFFSET = offset;
    static constexpr bool MIN = false;
    DEVICE static u32 lookup(u32 codes) { return codes; }
};

// A half for every unit.
template <int low, int high, int offset>
struct Halves : Codes<low, high, 32, offset> {
    static constexpr int SCALES = 2;
    static constexpr int SUPERS = 0;
    DEVICE static Scales scales(const u32* s, const u32*, u32 row) {
        const float d = half_to_float(static_cast<u16>(s[row / 2] >> (16 * (row % 2))));
        return {{d, d}, {0, 0}};
    }
};
typedef Halves<4, 0, 8> Q4_0;
typedef Halves<4, 1, 16> Q5_0;
typedef Halves<8, 0, 0> Q8_0;
typedef Halves<2, 0, 1> Q2_0;

// Bits that stand for -1 and 1.
struct Q1_0 : Halves<1, 0, 0> {
    static constexpr bool TABLE = true;
    DEVICE static u32 lookup(u32 codes) { return ~(codes * 0xfeu); }
};

// Ternary digits in two bits, with a half for every 256 columns.
struct TQ2_0 : Codes<2, 0, 32, 1> {
    static constexpr int SCALES = 0;
    static constexpr int SUPERS = 2;
    DEVICE static Scales scales(const u32*, const u32* d, u32 row) {
        const float scale = low_half(scale_of_row<SUPERS>(d, row));
        return {{scale, scale}, {0, 0}};
    }
};

// A scale and what is added, halves both.
template <int low, int high>
struct HalfPairs : Codes<low, high, 32, 0> {
    static constexpr int SCALES = 4;
    static constexpr int SUPERS = 0;
    static constexpr bool MIN = true;
    DEVICE static Scales scales(const u32* s, const u32*, u32 row) {
        const float d = low_half(s[row]), m = -high_half(s[row]);
        return {{d, d}, {m, m}};
    }
};
typedef HalfPairs<4, 0> Q4_1;
typedef HalfPairs<4, 1> Q5_1;

// Two bytes for every unit, and halves for every 256 columns.
template <int low, int high, int group, int offset>
struct Supers : Codes<low, high, group, offset> {
    static constexpr int SCALES = 2;
    DEVICE static u32 first(const u32* s, u32 row) { return s[row / 2] >> (16 * (row % 2)) & 255; }
    DEVICE static u32 second(const u32* s, u32 row) {
        return s[row / 2] >> (16 * (row % 2) + 8) & 255;
    }
};

// The bytes are a scale and a minimum, each with its own half.
template <int high>
struct ScaleAndMinimum : Supers<4, high, 32, 0> {
    static constexpr int SUPERS = 4;
    static constexpr bool MIN = true;
    DEVICE static Scales scales(const u32* s, const u32* d, u32 row) {
        typedef ScaleAndMinimum F;
        const float scale = low_half(d[row]) * static_cast<float>(F::first(s, row));
        const float min = high_half(d[row]) * static_cast<float>(F::second(s, row));
        return {{scale, scale}, {min, min}};
    }
};
typedef ScaleAndMinimum<0> Q4_K;
typedef ScaleAndMinimum<1> Q5_K;

// The bytes are signed scales of 16 columns each.
template <int low, int high, int offset>
struct SignedPairs : Supers<low, high, 16, offset> {
    static constexpr int SUPERS = 2;
    DEVICE static Scales scales(const u32* s, const u32* d, u32 row) {
        typedef SignedPairs F;
        const float super = half_to_float(static_cast<u16>(d[row / 2] >> (16 * (row % 2))));
        return {{super * static_cast<float>(static_cast<i8>(F::first(s, row))),
                 super * static_cast<float>(static_cast<i8>(F::second(s, row)))},
                {0, 0}};
    }
};
typedef SignedPairs<2, 1, 4> Q3_K;
typedef SignedPairs<4, 2, 32> Q6_K;

// The bytes are a scale and a minimum of 4 bits for 16 columns each.
struct Q2_K : Supers<2, 0, 16, 0> {
    static constexpr int SUPERS = 4;
    static constexpr bool MIN = true;
    DEVICE static Scales scales(const u32* s, const u32* d, u32 row) {
        const float scale = low_half(d[row]), min = high_half(d[row]);
        const u32 a = first(s, row), b = second(s, row);
        return {{scale * static_cast<float>(a & 15), scale * static_cast<float>(b & 15)},
                {min * static_cast<float>(a >> 4), min * static_cast<float>(b >> 4)}};
    }
};

// Looks up four bytes in a table of eight, which two words hold: bits 0 to 2 of each byte of
// `places` are an index.
DEVICE u32 lookup_eight(u32 places, u32 first, u32 last) {
    const u32 picks = places & 0x07070707u;
    const u32 selector = (picks | picks >> 4) & 0x00ff00ffu;
    return __byte_perm(first, last, (selector | selector >> 8) & 0xffffu);
}

// The bytes of 255 where bit 3 of a place is set.
DEVICE u32 upper_places(u32 places) { return (places >> 3 & 0x01010101u) * 255u; }

// The values of IQ4: the negative half of the table or the positive one, by bit 3 of each place.
DEVICE u32 lookup_iq4(u32 places) {
    // -127 -104 -83 -65, -49 -35 -22 -10, 1 13 25 38, 53 69 89 113
    const u32 negative = lookup_eight(places, 0xbfad9881u, 0xf6eaddcfu);
    const u32 positive = lookup_eight(places, 0x26190d01u, 0x71594535u);
    const u32 upper = upper_places(places);
    return (negative & ~upper) | (positive & upper);
}

// Twice the values of floats of 4 bits (E2M1), of which bit 3 is the sign.
DEVICE u32 lookup_fp4(u32 places) {
    // 0 1 2 3, 4 6 8 12, and the same less than 0
    const u32 positive = lookup_eight(places, 0x03020100u, 0x0c080604u);
    const u32 negative = lookup_eight(places, 0xfdfeff00u, 0xf4f8fafcu);
    const u32 upper = upper_places(places);
    return (positive & ~upper) | (negative & upper);
}

struct IQ4_NL : Halves<4, 0, 0> {
    static constexpr bool TABLE = true;
    DEVICE static u32 lookup(u32 codes) { return lookup_iq4(codes); }
};

// A power of two for every unit, as its exponent.
struct MXFP4 : Codes<4, 0, 32, 0> {
    static constexpr int SCALES = 1;
    static constexpr int SUPERS = 0;
    static constexpr bool TABLE = true;
    DEVICE static u32 lookup(u32 codes) { return lookup_fp4(codes); }
    DEVICE static Scales scales(const u32* s, const u32*, u32 row) {
        const u32 e = s[0] >> (8 * row) & 255;
        // 2^(e - 128), half of the power, since the table is doubled; the least two are subnormal
        const float power = as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        return {{power, power}, {0, 0}};
    }
};

// An unsigned float of 8 bits (E4M3) for 16 columns.
struct NVFP4 : Codes<4, 0, 16, 0> {
    static constexpr int SCALES = 2;
    static constexpr int SUPERS = 0;
    static constexpr bool TABLE = true;
    DEVICE static u32 lookup(u32 codes) { return lookup_fp4(codes); }
    // Half of the float, since the table is doubled; 0x7f is 0.
    DEVICE static float half_scale(u32 bits) {
        const u32 exponent = bits >> 3 & 15, normal = exponent > 0 ? 1 : 0;
        const u32 mantissa = bits == 0x7f ? 0 : (bits & 7) | normal << 3;
        const u32 power = exponent + (127 - 11) + (1 - normal);
        return static_cast<float>(mantissa) * as_float(power << 23);
    }
    DEVICE static Scales scales(const u32* s, const u32*, u32 row) {
        const u32 both = s[row / 2] >> (16 * (row % 2));
        return {{half_scale(both & 255), half_scale(both >> 8 & 255)}, {0, 0}};
    }
};

// A signed byte for every unit; codes are places in a table.
struct IQ4_XS : Codes<4, 0, 32, 0> {
    static constexpr int SCALES = 1;
    static constexpr int SUPERS = 2;
    static constexpr bool TABLE = true;
    DEVICE static u32 lookup(u32 codes) { return lookup_iq4(codes); }
    DEVICE static Scales scales(const u32* s, const u32* d, u32 row) {
        const float super = half_to_float(static_cast<u16>(d[row / 2] >> (16 * (row % 2))));
        const float scale = super * static_cast<float>(static_cast<i8>(s[0] >> (8 * row) & 255));
        return {{scale, scale}, {0, 0}};
    }
};

// A scale and a zero point for all of a unit's group: a half and a byte.
struct AWQ_G32 : Codes<4, 0, 32, 0> {
    static constexpr int SCALES = 4;
    static constexpr int SUPERS = 0;
    static constexpr bool MIN = true;
    DEVICE static Scales scales(const u32* s, const u32*, u32 row) {
        const float d = low_half(s[row]), min = d * static_cast<float>(s[row] >> 16 & 15);
        return {{d, d}, {min, min}};
    }
};

// Groups of 128: the byte is the zero point, and its highest bit says which of two halves is the
// scale.
struct AWQ_G128 : Codes<4, 0, 32, 0> {
    static constexpr int SCALES = 1;
    static constexpr int SUPERS = 4;
    static constexpr bool MIN = true;
    DEVICE static Scales scales(const u32* s, const u32* d, u32 row) {
        const u32 byte = s[0] >> (8 * row) & 255;
        const float scale = byte & 128 ? high_half(d[row]) : low_half(d[row]);
        const float min = scale * static_cast<float>(byte & 15);
        return {{scale, scale}, {min, min}};
    }
};

// Formats of floats: `LOW` bits each, `in_word` of them in a word.
template <int low>
struct Floats {
    static constexpr bool FLOAT = true;
    static constexpr int LOW = low;
    static constexpr int HIGH = 0;
    static constexpr int SCALES = 0;
    static constexpr int SUPERS = 0;
    static constexpr int IN_WORD = 32 / low;
};
struct F16 : Floats<16> {
    DEVICE static float value(u32 word, int i) { return i == 0 ? low_half(word) : high_half(word); }
};
struct BF16 : Floats<16> {
    DEVICE static float value(u32 word, int i) {
        return as_float(i == 0 ? word << 16 : word & 0xffff0000u);
    }
};
struct F32 : Floats<32> {
    DEVICE static float value(u32 word, int) { return as_float(word); }
};

// One unit of one row of codes, as it lies in memory.
template <class F>
struct RowUnit {
    u32 low[F::LOW];
    u32 high[F::HIGH > 0 ? F::HIGH : 1];
    u32 scale;
    u32 super;
};

template <class F>
DEVICE void load_row_unit(RowUnit<F>& u, const Matrix& w, u32 row, u32 unit) {
    const u32 strip = row / STRIP, r = row % STRIP;
    load_row<F::LOW>(u.low, w.low, strip, r, w.units, unit);
    if constexpr (F::HIGH > 0) load_row<F::HIGH>(u.high, w.high, strip, r, w.units, unit);
    const u32 supers = (w.units + SUPER_UNITS - 1) / SUPER_UNITS;
    const u64 scale = (static_cast<u64>(strip) * w.units + unit) * STRIP + r;
    u.scale = load_scale<F::SCALES>(w.scales, scale);
    const u64 super = (static_cast<u64>(strip) * supers + unit / SUPER_UNITS) * STRIP + r;
    u.super = load_scale<F::SUPERS>(w.supers, super);
}

// Byte `i` of a word of codes, less the offset. Unsigned ones become the last bits of 2^23, which
// is a permutation of bytes and a subtraction of small integers where a conversion would take
// longer.
template <class F>
DEVICE float code_value(u32 word, int i) {
    constexpr int bits = F::LOW + F::HIGH;
    if constexpr (F::TABLE || bits == 8) {
        return static_cast<float>(static_cast<i8>(word >> (8 * i) & 255) - F::OFFSET);
    } else {
        const u32 bits = __byte_perm(word, 0x4b000000u, 0x7440u | static_cast<u32>(i));
        return as_float(bits) - (8388608.0f + static_cast<float>(F::OFFSET));
    }
}

// Sixteen columns of it as floats: one half. Which one is known to the compiler, or registers that
// are picked by it would be memory.
template <class F, int HALF>
DEVICE void decode_codes(float (&v)[16], const RowUnit<F>& u) {
    const RowWords w = {u.low, u.high, u.scale};
    const Scales scales = scales_of<F>(w, &u.scale, &u.super, 0);
    const float scale = scales.scale[HALF], min = scales.min[HALF];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const u32 codes = code_word<F>(w, 4 * HALF + j);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float& x = v[4 * j + i];
            x = scale * code_value<F>(codes, i);
            if constexpr (F::MIN) x = x - min;
        }
    }
}

// The same out of memory, of any format.
template <class F, int HALF>
DEVICE void decode_half(float (&v)[16], const Matrix& w, u32 row, u32 unit) {
    if constexpr (F::FLOAT) {
        constexpr int words = F::LOW / 2;
#pragma unroll
        for (int j = 0; j < words; j += 4) {
            const u32 word = row % STRIP * F::LOW + HALF * words + j;
            const u8* at = piece_at(w.low, row / STRIP, F::LOW, word / 4, w.units, unit);
            const Words piece = load16_once(at);
#pragma unroll
            for (int i = 0; i < 4 * F::IN_WORD; ++i)
                v[j * F::IN_WORD + i] = F::value(piece.w[i / F::IN_WORD], i % F::IN_WORD);
        }
    } else {
        RowUnit<F> u;
        load_row_unit(u, w, row, unit);
        decode_codes<F, HALF>(v, u);
    }
}

#endif
