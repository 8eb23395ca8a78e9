// Stores keys and values at their rows' positions: one token's or a whole prompt's in one launch.
#include "paging.cuh"

struct KvWriteParams {
    const float* k;  // (rows, heads, head_dim)
    const float* v;
    void* pages_k;  // of this layer
    void* pages_v;
    Paging paging;
    u32 heads;
    u32 head_dim;
};
static_assert(sizeof(KvWriteParams) == 72, "kernels/src/cuda/params.rs has the same");

constexpr u32 THREADS = 256;

template <class Kv>
DEVICE void kv_write(const KvWriteParams& p) {
    const u32 width = p.heads * p.head_dim;
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= static_cast<u64>(p.paging.rows) * width) return;
    const u32 row = static_cast<u32>(at / width), head = static_cast<u32>(at % width) / p.head_dim;
    const i32 position = p.paging.positions[row];
    if (position < 0) return;
    const u64 line = static_cast<u64>(p.paging.sequences[row]) * p.paging.max_pages;
    const u32 page = p.paging.tables[line + position / PAGE];
    const u64 to = page_start<Kv>(page, p.heads, head, p.head_dim);
    const u32 d = static_cast<u32>(at % p.head_dim);
    Kv::store(static_cast<u8*>(p.pages_k) + to, position % PAGE, d, p.head_dim, p.k[at]);
    Kv::store(static_cast<u8*>(p.pages_v) + to, position % PAGE, d, p.head_dim, p.v[at]);
}

KERNEL(kv_write_F16, KvWriteParams, THREADS) { kv_write<KvF16>(p); }
KERNEL(kv_write_BF16, KvWriteParams, THREADS) { kv_write<KvBF16>(p); }
KERNEL(kv_write_F32, KvWriteParams, THREADS) { kv_write<KvF32>(p); }
KERNEL(kv_write_Q8_0, KvWriteParams, THREADS) { kv_write<KvQ8_0>(p); }
