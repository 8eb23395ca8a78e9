// CUDA's words for a host compiler: the kernels' own sources run on the CPU, a block at a time, a
// fiber for each thread.
//
// What this shows: that a kernel's logic is right, that no thread is missing at a barrier, that
// shared memory is written before it is read (it is NaN when a block starts) and that no order of
// threads matters (three schedules). What it cannot show: speed, races between blocks, how memory
// is ordered without a barrier, and the last bit of `expf`.
//
// Shared memory of a block, its barriers and the exchanges of a warp are in shim.cpp. One launch at
// a time.
#ifndef OCTAVO_SHIM
#define OCTAVO_SHIM

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __device__

namespace shim {

struct Index {
    unsigned x, y, z;
};

// The thread that runs, its block, and the launch.
const Index& thread();
extern Index block, block_size, grid_size;

void barrier(const char* file, int line);
// Gives 32 bytes to the warp and waits for all of its lanes; afterwards every lane may read what
// each gave, until the exchange after the next.
typedef unsigned char Gift[32];
const Gift* exchange(const char* file, int line, const void* gift, size_t bytes);
void* shared(const void* key, size_t bytes);
// Some bytes, zeros if there is no source: NaN until a wait for their group copies them, as late as
// that may be.
void begin_copy(void* to, const void* from, size_t bytes);
void end_group_of_copies();
// Waits for all of a thread's groups but the last `later`.
void wait_for_copies(size_t later);
// What a launch asked for; a kernel may use no more.
void* launched_shared(size_t bytes);
unsigned lane();
// Ends the launch with this message; does not return.
[[noreturn]] void fail(const char* format, ...);

template <class To, class From>
inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

inline void check_aligned(const void* at, size_t bytes) {
    if (reinterpret_cast<uintptr_t>(at) % bytes != 0) fail("misaligned access of %zu bytes", bytes);
}

inline float half_to_float(u16 h) {
    const u32 sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, mantissa = h & 1023u;
    if (exponent == 31) return bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0) return bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
    const float v = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -v : v;
}

// To the nearest, ties to even, as `cvt.rn`.
inline u16 float_to_half(float x) {
    const u32 bits = bit_cast<u32>(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return 0x7fff;
    if (size >= 0x47800000u) return static_cast<u16>(sign | 0x7c00u);
    // multiples of 2^-24: the last place of 0.5, so that the adder rounds
    if (size < 0x38800000u) {
        const float sum = bit_cast<float>(size) + 0.5f;
        return static_cast<u16>(sign | (bit_cast<u32>(sum) - 0x3f000000u));
    }
    const u32 rounded = size + 0xfffu + (size >> 13 & 1u);
    return static_cast<u16>(sign | (rounded - 0x38000000u) >> 13);
}

template <class T>
inline T shuffle(const char* file, int line, T value, unsigned from) {
    const Gift* gifts = exchange(file, line, &value, sizeof value);
    memcpy(&value, gifts[from % 32], sizeof value);
    return value;
}

inline int dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i)
        c += static_cast<signed char>(a >> (8 * i) & 255) *
             static_cast<signed char>(b >> (8 * i) & 255);
    return c;
}

inline unsigned byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long all = static_cast<unsigned long long>(b) << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned place = selector >> (4 * i) & 7;
        r |= static_cast<unsigned>(all >> (8 * place) & 255) << (8 * i);
    }
    return r;
}

inline u16 half_of(const u32* words, unsigned i) {
    return static_cast<u16>(words[i / 2] >> (16 * (i % 2)));
}

inline void load_matrices(u32 (&m)[4], const void* row, bool transposed) {
    check_aligned(row, 16);
    const Gift* rows = exchange("ldmatrix", 0, &row, sizeof row);
    for (unsigned i = 0; i < 4; ++i) {
        u16 pair[2];
        for (unsigned e = 0; e < 2; ++e) {
            const unsigned r = transposed ? lane() % 4 * 2 + e : lane() / 4;
            const unsigned c = transposed ? lane() / 4 : lane() % 4 * 2 + e;
            const u16* at;
            memcpy(&at, rows[8 * i + r], sizeof at);
            pair[e] = at[c];
        }
        m[i] = pair[0] | static_cast<u32>(pair[1]) << 16;
    }
}

// Which lane has which element is PTX's: of a, row lane / 4 (+ 8 in words 1 and 3), columns 2 (lane
// % 4), + 1 (+ 8 in words 2 and 3); of b, the same with its column for the row; of d, row lane / 4
// (+ 8 in 2 and 3).
inline void mma_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const u32 mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const Gift* gifts = exchange("mma", 0, mine, sizeof mine);
    for (unsigned e = 0; e < 4; ++e) {
        const unsigned row = lane() / 4 + e / 2 * 8, column = lane() % 4 * 2 + e % 2;
        float sum = 0;
        for (unsigned k = 0; k < 16; ++k) {
            u32 left[6], right[6];
            const unsigned holder = k % 8 / 2;
            memcpy(left, gifts[row % 8 * 4 + holder], sizeof left);
            memcpy(right, gifts[column * 4 + holder], sizeof right);
            const float x = half_to_float(half_of(&left[row / 8 + k / 8 * 2], k % 2));
            const float y = half_to_float(half_of(&right[4 + k / 8], k % 2));
            sum += x * y;
        }
        d[e] += sum;
    }
}

// Of signed bytes, `n` times sixteen columns of a. Which lane has which element is as in `mma_f16`,
// four columns to a word.
template <unsigned n>
inline void mma_s8(i32 (&d)[4], const u32 (&a)[2 * n], const u32 (&b)[n], const i32 (&c)[4]) {
    u32 mine[3 * n];
    memcpy(mine, a, sizeof a);
    memcpy(mine + 2 * n, b, sizeof b);
    const Gift* gifts = exchange("mma_s8", n, mine, sizeof mine);
    for (unsigned e = 0; e < 4; ++e) {
        const unsigned row = lane() / 4 + e / 2 * 8, column = lane() % 4 * 2 + e % 2;
        i32 sum = c[e];
        for (unsigned holder = 0; holder < 4; ++holder) {
            u32 left[3 * n], right[3 * n];
            memcpy(left, gifts[row % 8 * 4 + holder], sizeof left);
            memcpy(right, gifts[column * 4 + holder], sizeof right);
            for (unsigned k = 0; k < n; ++k)
                sum = dp4a(static_cast<i32>(left[row / 8 + 2 * k]),
                           static_cast<i32>(right[2 * n + k]), sum);
        }
        d[e] = sum;
    }
}

// See compat.cuh, whose `swizzled` says where an eighth is: here once more, since a GPU knows it by
// itself.
inline void multiply_wide(float (&d)[64], const u32 (&a)[4], const void* b, u32 k) {
    const Gift* gifts = exchange("wgmma", 0, a, sizeof a);
    const u8* rows = static_cast<const u8*>(b);
    float left[2][16];
    for (unsigned i = 0; i < 16; ++i) {
        u32 words[4];
        memcpy(words, gifts[lane() / 4 * 4 + i % 8 / 2], sizeof words);
        for (unsigned r = 0; r < 2; ++r)
            left[r][i] = half_to_float(half_of(&words[r + i / 8 * 2], i % 2));
    }
    for (unsigned j = 0; j < 64; j += 4) {
        for (unsigned e = 0; e < 2; ++e) {
            const unsigned column = j * 2 + lane() % 4 * 2 + e;
            float sums[2] = {};
            for (unsigned i = 0; i < 16; ++i) {
                const unsigned eighth = (2 * k + i / 8) ^ column % 8;
                u16 half;
                memcpy(&half, rows + 128 * column + 16 * eighth + 2 * (i % 8), sizeof half);
                const float right = half_to_float(half);
                for (unsigned r = 0; r < 2; ++r) sums[r] += left[r][i] * right;
            }
            for (unsigned r = 0; r < 2; ++r) d[j + 2 * r + e] += sums[r];
        }
    }
}

}  // namespace shim

#define threadIdx (shim::thread())
#define blockIdx (shim::block)
#define blockDim (shim::block_size)
#define gridDim (shim::grid_size)
#define __syncthreads() shim::barrier(__FILE__, __LINE__)
#define __syncwarp() static_cast<void>(shim::exchange(__FILE__, __LINE__, nullptr, 0))
#define __shfl_sync(mask, value, from) shim::shuffle(__FILE__, __LINE__, value, from)
#define __shfl_xor_sync(mask, value, o) shim::shuffle(__FILE__, __LINE__, value, shim::lane() ^ (o))
#define __dp4a shim::dp4a
#define __byte_perm shim::byte_perm
#define __float2int_rn(x) static_cast<int>(lrintf(x))

#endif
