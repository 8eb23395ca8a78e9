// Rows of a packed matrix by number, as floats: token embeddings. The values are the oracle's, bit
// for bit.
#ifndef OCTAVO_EMBED
#define OCTAVO_EMBED

#include "formats.cuh"

struct EmbedParams {
    Matrix table;
    const u32* tokens;  // (columns)
    float* out;         // (columns, cols)
    u32 columns;
    u32 placeholder;  // read in place of NO_TOKEN; if it is that too, the row is left as it is
};
static_assert(sizeof(EmbedParams) == 72, "kernels/src/cuda/params.rs has the same");

constexpr u32 EMBED_THREADS = 128;
constexpr u32 NO_TOKEN = 0xffffffffu;

template <class F>
DEVICE void embed(const EmbedParams& p) {
    const u32 half = blockIdx.y * EMBED_THREADS + threadIdx.x, asked = p.tokens[blockIdx.x];
    const u32 token = asked == NO_TOKEN ? p.placeholder : asked;
    if (half >= 2 * p.table.units || token >= p.table.rows) return;
    float v[16];
    if (half % 2 == 0) {
        decode_half<F, 0>(v, p.table, token, half / 2);
    } else {
        decode_half<F, 1>(v, p.table, token, half / 2);
    }
    float* out = p.out + static_cast<u64>(blockIdx.x) * p.table.cols;
#pragma unroll
    for (u32 i = 0; i < 16; ++i)
        if (half * 16 + i < p.table.cols) out[half * 16 + i] = v[i];
}

#endif
