// Paged attention: what its kernels share. Any rows, in pages of any type, are those of
// attention_split.cuh; prompts in pages of halves, of attention_prompt.cuh.
#ifndef OCTAVO_ATTENTION
#define OCTAVO_ATTENTION

#include "activations.cuh"
#include "paging.cuh"
#include "softcap.cuh"

struct AttentionParams {
    const float* q;       // (rows, heads, head_dim)
    const void* pages_k;  // of this layer
    const void* pages_v;
    float* sums;    // (rows, heads, splits, head_dim): of split rows only
    float* states;  // (rows, heads, splits, 2): maximum and sum
    float* out;     // (rows, heads, head_dim)
    u8* integers;      // instead of `out` if not null: (rows, units), see activations.cuh
    const u32* tiles;  // (tiles, 2): first row and number of rows, of prompts only
    const float* sinks;  // (heads), or null: scores that count in the sum of weights alone
    const float* slopes;  // (heads), or null: by which scores fall with each position of distance
    const u32* firsts;  // (rows), or null: the first position of what the row sees
    // (rows): what is behind that, then; else the positions of the row's sequence, this step's with
    // them; 0 of padding
    const u32* ends;
    Paging paging;
    u32 heads;     // of queries
    u32 heads_kv;
    u32 splits;
    float scale;
    float cap;   // of scaled scores; 0: none
    u32 window;  // positions that a row sees up to its own, with this; 0: all
    u32 after;   // positions that it sees behind its own, if there are so many; below 2^31
    u32 chunked;  // whether a row sees what is from the last multiple of `window` on, instead
};
static_assert(sizeof(AttentionParams) == 176, "kernels/src/cuda/params.rs has the same");

constexpr u32 ATTEND_THREADS = 128;

// The positions that a row sees: from `first` up to `end`. Padding sees none.
struct Seen {
    u32 first, end;
};

DEVICE Seen seen_by(const AttentionParams& p, u32 row) {
    if (p.firsts != nullptr) return {p.firsts[row], p.ends[row]};
    const u32 own = static_cast<u32>(p.paging.positions[row] + 1);
    if (p.window == 0) return {0, least(own + p.after, p.ends[row])};
    const u32 back = p.chunked != 0 ? (own - 1) % p.window + 1 : p.window;
    return {own > back ? own - back : 0, least(own + p.after, p.ends[row])};
}

// The sink of a query head; where there are none, what adds nothing.
DEVICE float sink_of(const AttentionParams& p, u32 head) {
    return p.sinks == nullptr ? minus_infinity() : p.sinks[head];
}

#endif
