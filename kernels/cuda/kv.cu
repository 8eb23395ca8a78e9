// Compiled once for each PART, a type of the cache: stores keys and values at their rows'
// positions, one token's or a whole prompt's in one launch: as they are, or with everything that is
// done to queries, keys and values between their products and attention.
#include "norm.cuh"
#include "paging.cuh"
#include "rope.cuh"

struct KvWriteParams {
    const float* k;  // (rows, heads, head_dim)
    const float* v;
    void* pages_k;  // of this layer
    void* pages_v;
    Paging paging;
    u32 heads;
    u32 head_dim;
};
static_assert(sizeof(KvWriteParams) == 88, "kernels/src/cuda/params.rs has the same");

constexpr u32 THREADS = 256;

template <class Kv>
DEVICE void kv_write(const KvWriteParams& p) {
    const u32 width = p.heads * p.head_dim;
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= static_cast<u64>(p.paging.rows) * width) return;
    const u32 row = static_cast<u32>(at / width), head = static_cast<u32>(at % width) / p.head_dim;
    const i32 position = p.paging.positions[row];
    if (position < 0) return;
    const u32 page = page_of(p.paging, row, table_of(p.paging, row), position / PAGE);
    if (page >= p.paging.n_pages) return;
    const u64 to = page_start<Kv>(page, p.heads, head, p.head_dim);
    const u32 d = static_cast<u32>(at % p.head_dim);
    Kv::store(static_cast<u8*>(p.pages_k) + to, position % PAGE, d, p.head_dim, p.k[at]);
    Kv::store(static_cast<u8*>(p.pages_v) + to, position % PAGE, d, p.head_dim, p.v[at]);
}

// Queries, keys or values.
struct HeadGroup {
    const float* x;     // (rows, n, head_dim)
    const float* bias;  // (n, head_dim), or null
    const float* norm;  // (head_dim), or null
    u32 n;
    float eps;
};
static_assert(sizeof(HeadGroup) == 32, "kernels/src/cuda/params.rs has the same");

struct HeadsParams {
    HeadGroup q;
    HeadGroup k;
    HeadGroup v;
    float* out;     // (rows, q.n, head_dim): queries
    void* pages_k;  // of this layer
    void* pages_v;
    Rotation rotation;  // of queries and keys
    Paging paging;
    u32 head_dim;
    u32 unused;
};
static_assert(sizeof(HeadsParams) == 216, "kernels/src/cuda/params.rs has the same");

constexpr u32 LARGEST_HEAD = 256;
constexpr u32 HEADS_WARPS = 4;

// Bias, norm, rotation, and where a head goes. Blocks are (rows, head), a warp for each row. Every
// value is what `add`, `rms_norm`, `rope` and `kv_write` make of it.
template <class Kv>
DEVICE void heads(const HeadsParams& p) {
    SHARED(float, all, [HEADS_WARPS][LARGEST_HEAD]);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 padded = blockIdx.x * (blockDim.x / WARP) + warp;
    const u32 row = least(padded, p.paging.rows - 1);
    float* head = all[warp];
    u32 h = blockIdx.y;
    const bool query = h < p.q.n, value = h >= p.q.n + p.k.n;
    const HeadGroup& from = query ? p.q : value ? p.v : p.k;
    if (!query) h -= value ? p.q.n + p.k.n : p.q.n;
    const float* x = from.x + (static_cast<u64>(row) * from.n + h) * p.head_dim;
    for (u32 i = lane; i < p.head_dim; i += WARP)
        head[i] = from.bias == nullptr ? x[i] : x[i] + from.bias[h * p.head_dim + i];
    __syncthreads();
    if (from.norm != nullptr) {
        const float scale = norm_scale_by_warp(head, p.head_dim, from.eps);
        for (u32 i = lane; i < p.head_dim; i += WARP) head[i] = head[i] * scale * from.norm[i];
        __syncthreads();
    }
    if (padded != row) return;
    if (query) {
        float* out = p.out + (static_cast<u64>(row) * p.q.n + h) * p.head_dim;
        for (u32 i = lane; i < p.head_dim; i += WARP) out[i] = rotated(head, i, row, p.rotation);
        return;
    }
    const i32 position = p.paging.positions[row];
    if (position < 0) return;
    const u32 page = page_of(p.paging, row, table_of(p.paging, row), position / PAGE);
    if (page >= p.paging.n_pages) return;
    u8* pages = static_cast<u8*>(value ? p.pages_v : p.pages_k);
    u8* to = pages + page_start<Kv>(page, p.k.n, h, p.head_dim);
    for (u32 i = lane; i < p.head_dim; i += WARP) {
        const float x = value ? head[i] : rotated(head, i, row, p.rotation);
        Kv::store(to, position % PAGE, i, p.head_dim, x);
    }
}

#define KV_KERNELS(TYPE)                                                       \
    KERNEL(kv_write_##TYPE, KvWriteParams, THREADS) { kv_write<Kv##TYPE>(p); } \
    KERNEL(heads_##TYPE, HeadsParams, HEADS_WARPS * WARP) { heads<Kv##TYPE>(p); }

#if TAKES(1)
KV_KERNELS(F16)
#endif
#if TAKES(2)
KV_KERNELS(F32)
#endif
#if TAKES(3)
KV_KERNELS(BF16)
#endif
#if TAKES(4)
KV_KERNELS(Q8_0)
#endif
#if TAKES(5)
KV_KERNELS(F8_E4M3)
#endif
#if TAKES(6)
KV_KERNELS(Q4_0)
#endif
