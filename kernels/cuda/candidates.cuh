// The largest values of rows of a vocabulary, in order: what tokens are drawn from.
//
// Blocks sort a part of a row each and keep the first ones, then one block sorts what they kept. A
// value and its place are one integer, larger for larger values and, of equals, for lower places:
// no two are the same, so that the order is that of the CPU's sampler.
#ifndef OCTAVO_CANDIDATES
#define OCTAVO_CANDIDATES

#include "compat.cuh"

struct CandidatesParams {
    const float* x;  // (rows, n)
    u64* parts;      // (rows, parts of CANDIDATES_PART, most)
    u64* out;        // (rows, most); 0 is none
    u32 n;
    u32 most;  // at most CANDIDATES_PART / parts
};
static_assert(sizeof(CandidatesParams) == 32, "kernels/src/cuda/params.rs has the same");

constexpr u32 CANDIDATES_THREADS = 256;
// Values that a block sorts. kernels/src/cuda/launch.rs has the same.
constexpr u32 CANDIDATES_PART = 4096;
typedef u64 CandidateKeys[CANDIDATES_PART];

// The total order of floats, that of the CPU's `total_cmp`.
DEVICE u64 candidate_key(float value, u32 place) {
    const u32 bits = as_bits(value);
    const u32 ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
    return static_cast<u64>(ordered) << 32 | ~place;
}

// Sorts `n` keys of a block, the largest first, by a bitonic network: those behind them become 0.
DEVICE void sort_keys(CandidateKeys& keys, u32 n) {
    u32 size = 2;
    while (size < n) size *= 2;
    for (u32 i = n + threadIdx.x; i < size; i += CANDIDATES_THREADS) keys[i] = 0;
    __syncthreads();
    for (u32 run = 2; run <= size; run *= 2) {
        for (u32 apart = run / 2; apart > 0; apart /= 2) {
            for (u32 pair = threadIdx.x; pair < size / 2; pair += CANDIDATES_THREADS) {
                const u32 first = pair / apart * (2 * apart) + pair % apart, second = first + apart;
                const u64 a = keys[first], b = keys[second];
                // runs fall and rise in turn, and the last one falls
                if ((a < b) == ((first & run) == 0)) {
                    keys[first] = b;
                    keys[second] = a;
                }
            }
            __syncthreads();
        }
    }
}

KERNEL(candidates_parts, CandidatesParams, CANDIDATES_THREADS) {
    SHARED(u64, keys, [CANDIDATES_PART]);
    const u32 part = blockIdx.x, row = blockIdx.y, start = part * CANDIDATES_PART;
    const u32 n = least(p.n - start, CANDIDATES_PART);
    const float* x = p.x + static_cast<u64>(row) * p.n + start;
    for (u32 i = threadIdx.x; i < n; i += CANDIDATES_THREADS)
        keys[i] = candidate_key(x[i], start + i);
    sort_keys(keys, n);
    u64* out = p.parts + (static_cast<u64>(row) * gridDim.x + part) * p.most;
    for (u32 i = threadIdx.x; i < p.most; i += CANDIDATES_THREADS) out[i] = i < n ? keys[i] : 0;
}

KERNEL(candidates_merge, CandidatesParams, CANDIDATES_THREADS) {
    SHARED(u64, keys, [CANDIDATES_PART]);
    const u32 row = blockIdx.x, parts = (p.n + CANDIDATES_PART - 1) / CANDIDATES_PART;
    const u32 n = parts * p.most;
    const u64* from = p.parts + static_cast<u64>(row) * n;
    for (u32 i = threadIdx.x; i < n; i += CANDIDATES_THREADS) keys[i] = from[i];
    sort_keys(keys, n);
    for (u32 i = threadIdx.x; i < p.most; i += CANDIDATES_THREADS)
        p.out[static_cast<u64>(row) * p.most + i] = keys[i];
}

#endif
