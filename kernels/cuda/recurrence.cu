// What goes from token to token of a sequence: short convolutions, and attention by matrices that
// are written to and read from. Each value has one fixed order of sums, whatever else is in a step
// and however a text is cut into steps.
//
// States lie in slots. A step reads at most one slot of each sequence and writes others, never one
// that is read in the same step; so no block waits for another.
#include "compat.cuh"

constexpr u32 MAX_RETAINED = 8;
constexpr u32 NO_SLOT = 0xffffffffu;

// A sequence of a step.
struct Span {
    u32 first;  // row
    u32 rows;
    u32 from;  // the slot with its state, or NO_SLOT: zeros
    struct {
        u32 after;  // so many rows, or 0: nothing is kept
        u32 slot;
    } to[MAX_RETAINED];
};
static_assert(sizeof(Span) == 76, "kernels/src/cuda/exec/record.rs writes this");

// One part of the states.
struct States {
    float* slots;  // the part in the first slot
    const Span* spans;
    u64 stride;  // floats from slot to slot
};
static_assert(sizeof(States) == 24, "kernels/src/cuda/params.rs has the same");

// Where the part is that a sequence begins with, or null.
DEVICE const float* state_before(const States& states, const Span& span) {
    return span.from == NO_SLOT ? nullptr : states.slots + span.from * states.stride;
}

// Where the part goes that so many rows leave, or null.
DEVICE float* state_after(const States& states, const Span& span, u32 rows) {
    float* kept = nullptr;
#pragma unroll
    for (u32 i = 0; i < MAX_RETAINED; ++i)
        if (span.to[i].after == rows) kept = states.slots + span.to[i].slot * states.stride;
    return kept;
}

struct CausalConvParams {
    const float* x;        // (rows, width)
    const float* weight;   // (kernel, width), the oldest row's first
    float* out;            // (rows, width)
    const u32* sequences;  // (rows)
    States states;         // (kernel - 1, width): the rows before a sequence's next one
    u32 rows;
    u32 width;
    u32 kernel;
    u32 unused;
};
static_assert(sizeof(CausalConvParams) == 72, "kernels/src/cuda/params.rs has the same");

constexpr u32 THREADS = 256;

// A thread for each value. Where the rows up to this one leave a state, that is what the value's
// sum is made of but for the oldest: the same thread keeps it.
KERNEL(causal_conv, CausalConvParams, THREADS) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= static_cast<u64>(p.rows) * p.width) return;
    const u32 row = static_cast<u32>(at / p.width), column = static_cast<u32>(at % p.width);
    const Span& span = p.states.spans[p.sequences[row]];
    const u32 in_sequence = row - span.first, before = p.kernel - 1;
    const float* from = state_before(p.states, span);
    float* kept = state_after(p.states, span, in_sequence + 1);
    float sum = 0.0f;
    for (u32 j = 0; j < p.kernel; ++j) {
        // counted from the first row of the state, which is followed by the sequence's own
        const u32 i = in_sequence + j;
        const float* source = nullptr;
        if (i >= before) {
            source = p.x + static_cast<u64>(span.first + i - before) * p.width;
        } else if (from != nullptr) {
            source = from + static_cast<u64>(i) * p.width;
        }
        const float x = source == nullptr ? 0.0f : source[column];
        if (source != nullptr) sum = fmaf(x, p.weight[static_cast<u64>(j) * p.width + column], sum);
        if (kept != nullptr && j > 0) kept[static_cast<u64>(j - 1) * p.width + column] = x;
    }
    p.out[at] = sum;
}

struct LinearAttentionParams {
    const float* q;      // (rows, keys, key_dim)
    const float* k;      // the same
    const float* v;      // (rows, heads, value_dim)
    const float* decay;  // (rows, heads), or (rows, heads, key_dim): `decay_by_key`
    const float* rate;   // (rows, heads)
    float* out;          // (rows, heads, value_dim)
    // (heads, value_dim / 16, key_dim, 16), the last values of a head with others that are unused
    States states;
    u32 heads;
    u32 keys;
    u32 key_dim;
    u32 value_dim;
    u32 tiled;  // whether keys take turns; otherwise neighbouring heads share one
    u32 delta;  // whether what the matrix answers to a key is taken away first
    float scale;
    u32 decay_by_key;
};
static_assert(sizeof(LinearAttentionParams) == 104, "kernels/src/cuda/params.rs has the same");

// A block has some values of a head of a sequence, and four neighbouring lanes each value's row of
// the matrix: every fourth piece of so many keys, in registers from the first token to the last. A
// warp reads whole sectors of a state, eight neighbouring floats of them.
constexpr u32 LINEAR_THREADS = 128;
constexpr u32 PARTS = 4;
constexpr u32 VALUES = LINEAR_THREADS / PARTS;
constexpr u32 PIECE = 4;
// Tokens that are brought to shared memory at a time.
constexpr u32 TOKENS = 16;
// Values that stand side by side in a state.
constexpr u32 STATE_LANES = 16;

// Inputs of a block; keys end with zeros. A token has one decay, or one for each dimension of keys.
template <u32 KEYS, bool BY_KEY>
struct Tokens {
    static constexpr u32 DECAYS = BY_KEY ? KEYS : 1;

    float q[TOKENS][KEYS];
    float k[TOKENS][KEYS];
    float v[TOKENS][VALUES];
    float decay[TOKENS][DECAYS];
    float rate[TOKENS];
};

// Which part of a head a thread works on.
struct Place {
    u32 head;
    u32 key;  // the head's
    u32 first_value;  // of the block
    u32 value;
    u32 part;
};

DEVICE Place place_of(const LinearAttentionParams& p) {
    Place place;
    place.head = blockIdx.x % p.heads;
    place.key = p.tiled != 0 ? place.head % p.keys : place.head / (p.heads / p.keys);
    place.first_value = blockIdx.y * VALUES;
    place.value = place.first_value + threadIdx.x / PARTS;
    place.part = threadIdx.x % PARTS;
    return place;
}

// Which key a thread's number `i` is.
DEVICE u32 key_at(u32 i, u32 part) { return (i / PIECE * PARTS + part) * PIECE + i % PIECE; }

// Brings `n` tokens from `row` on, all threads together.
template <u32 KEYS, bool BY_KEY>
DEVICE void bring(Tokens<KEYS, BY_KEY>& tokens, const LinearAttentionParams& p, const Place& place,
                  u64 row, u32 n) {
    constexpr u32 DECAYS = Tokens<KEYS, BY_KEY>::DECAYS;
    const u32 decays = BY_KEY ? p.key_dim : 1;
    for (u32 i = threadIdx.x; i < n * DECAYS; i += LINEAR_THREADS) {
        const u32 t = i / DECAYS, j = i % DECAYS;
        const u64 from = ((row + t) * p.heads + place.head) * decays + j;
        tokens.decay[t][j] = j < decays ? p.decay[from] : 0.0f;
    }
    for (u32 i = threadIdx.x; i < n * KEYS; i += LINEAR_THREADS) {
        const u32 t = i / KEYS, j = i % KEYS;
        const u64 from = ((row + t) * p.keys + place.key) * p.key_dim + j;
        tokens.q[t][j] = j < p.key_dim ? p.q[from] : 0.0f;
        tokens.k[t][j] = j < p.key_dim ? p.k[from] : 0.0f;
    }
    for (u32 i = threadIdx.x; i < n * VALUES; i += LINEAR_THREADS) {
        const u32 t = i / VALUES, value = place.first_value + i % VALUES;
        const u64 from = ((row + t) * p.heads + place.head) * p.value_dim + value;
        tokens.v[t][i % VALUES] = value < p.value_dim ? p.v[from] : 0.0f;
    }
    for (u32 t = threadIdx.x; t < n; t += LINEAR_THREADS) {
        tokens.rate[t] = p.rate[(row + t) * p.heads + place.head];
    }
}

// A thread's part of a row of the matrix.
template <u32 KEYS>
struct Row {
    static constexpr u32 OWN = KEYS / PARTS;
    float m[OWN];

    DEVICE void load(const float* state, u32 key_dim, u32 part) {
#pragma unroll
        for (u32 i = 0; i < OWN; ++i) {
            const u32 key = key_at(i, part);
            m[i] = state != nullptr && key < key_dim ? state[key * STATE_LANES] : 0.0f;
        }
    }

    DEVICE void store(float* state, u32 key_dim, u32 part) const {
#pragma unroll
        for (u32 i = 0; i < OWN; ++i) {
            const u32 key = key_at(i, part);
            if (key < key_dim) state[key * STATE_LANES] = m[i];
        }
    }

    // Its product with a key, in all lanes that share the row.
    DEVICE float answer(const float* key, u32 part) const {
        float sums[PIECE] = {};
#pragma unroll
        for (u32 i = 0; i < OWN; i += PIECE) {
            const Words piece = load16(key + key_at(i, part));
#pragma unroll
            for (u32 j = 0; j < PIECE; ++j) sums[j] = fmaf(m[i + j], as_float(piece.w[j]), sums[j]);
        }
        return lanes_sum<PARTS>(sums[0] + sums[1] + (sums[2] + sums[3]));
    }

    // Fades, each dimension of keys by its own decay.
    DEVICE void fade(const float* decay, u32 part) {
#pragma unroll
        for (u32 i = 0; i < OWN; i += PIECE) {
            const Words piece = load16(decay + key_at(i, part));
#pragma unroll
            for (u32 j = 0; j < PIECE; ++j) m[i + j] *= as_float(piece.w[j]);
        }
    }

    // Fades and takes a key times `change`.
    DEVICE void write(const float* key, float decay, float change, u32 part) {
#pragma unroll
        for (u32 i = 0; i < OWN; i += PIECE) {
            const Words piece = load16(key + key_at(i, part));
#pragma unroll
            for (u32 j = 0; j < PIECE; ++j)
                m[i + j] = fmaf(change, as_float(piece.w[j]), decay * m[i + j]);
        }
    }
};

template <u32 KEYS, bool BY_KEY>
DEVICE void linear_attention(const LinearAttentionParams& p) {
    using Inputs = Tokens<KEYS, BY_KEY>;
    SHARED(Inputs, tokens, );
    const Place place = place_of(p);
    const Span span = p.states.spans[blockIdx.x / p.heads];
    const bool exists = place.value < p.value_dim;
    const u64 groups = (p.value_dim + STATE_LANES - 1) / STATE_LANES;
    const u64 of_row = (place.head * groups + place.value / STATE_LANES) * p.key_dim * STATE_LANES +
                       place.value % STATE_LANES;
    const float* from = state_before(p.states, span);
    Row<KEYS> row;
    row.load(exists && from != nullptr ? from + of_row : nullptr, p.key_dim, place.part);
    for (u32 done = 0; done < span.rows; done += TOKENS) {
        const u32 n = least(TOKENS, span.rows - done);
        __syncthreads();
        bring(tokens, p, place, static_cast<u64>(span.first) + done, n);
        __syncthreads();
        for (u32 t = 0; t < n; ++t) {
            // a row that has faded already decays no more
            const float decay = BY_KEY ? 1.0f : tokens.decay[t][0];
            if (BY_KEY) row.fade(tokens.decay[t], place.part);
            float value = tokens.v[t][threadIdx.x / PARTS];
            if (p.delta != 0) value = value - decay * row.answer(tokens.k[t], place.part);
            row.write(tokens.k[t], decay, tokens.rate[t] * value, place.part);
            const float result = p.scale * row.answer(tokens.q[t], place.part);
            const u64 at = static_cast<u64>(span.first) + done + t;
            if (exists && place.part == 0)
                p.out[(at * p.heads + place.head) * p.value_dim + place.value] = result;
            float* kept = state_after(p.states, span, done + t + 1);
            if (exists && kept != nullptr) row.store(kept + of_row, p.key_dim, place.part);
        }
    }
}

KERNEL(linear_attention_64, LinearAttentionParams, LINEAR_THREADS) {
    linear_attention<64, false>(p);
}
KERNEL(linear_attention_128, LinearAttentionParams, LINEAR_THREADS) {
    linear_attention<128, false>(p);
}
KERNEL(linear_attention_256, LinearAttentionParams, LINEAR_THREADS) {
    linear_attention<256, false>(p);
}
KERNEL(linear_attention_by_key_64, LinearAttentionParams, LINEAR_THREADS) {
    linear_attention<64, true>(p);
}
KERNEL(linear_attention_by_key_128, LinearAttentionParams, LINEAR_THREADS) {
    linear_attention<128, true>(p);
}

struct SelectiveScanParams {
    const float* x;      // (rows, width)
    const float* steps;  // (rows, width)
    const float* b;      // (rows, size)
    const float* c;      // (rows, size)
    const float* a;      // (size, width)
    float* out;          // (rows, width)
    // (width / 16, size, 16), the last values with others that are unused
    States states;
    u32 width;
    u32 size;
};
static_assert(sizeof(SelectiveScanParams) == 80, "kernels/src/cuda/params.rs has the same");

constexpr u32 SCAN_THREADS = 128;

// A thread for each value of a sequence, with its state in registers.
template <u32 SIZE>
DEVICE void selective_scan(const SelectiveScanParams& p) {
    const u32 value = blockIdx.y * SCAN_THREADS + threadIdx.x;
    if (value >= p.width) return;
    const Span& span = p.states.spans[blockIdx.x];
    const u64 of_value =
        static_cast<u64>(value / STATE_LANES) * p.size * STATE_LANES + value % STATE_LANES;
    const float* from = state_before(p.states, span);
    float h[SIZE];
#pragma unroll
    for (u32 i = 0; i < SIZE; ++i) {
        const bool there = from != nullptr && i < p.size;
        h[i] = there ? from[of_value + i * STATE_LANES] : 0.0f;
    }
    for (u32 t = 0; t < span.rows; ++t) {
        const u64 row = static_cast<u64>(span.first) + t;
        const float step = p.steps[row * p.width + value];
        const float change = step * p.x[row * p.width + value];
        const float* b = p.b + row * p.size;
        const float* c = p.c + row * p.size;
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < SIZE; ++i) {
            if (i >= p.size) continue;
            const float decay = expf(step * p.a[static_cast<u64>(i) * p.width + value]);
            h[i] = fmaf(change, b[i], decay * h[i]);
            sum = fmaf(h[i], c[i], sum);
        }
        p.out[row * p.width + value] = sum;
        float* kept = state_after(p.states, span, t + 1);
        if (kept == nullptr) continue;
#pragma unroll
        for (u32 i = 0; i < SIZE; ++i) {
            if (i < p.size) kept[of_value + i * STATE_LANES] = h[i];
        }
    }
}

KERNEL(selective_scan_16, SelectiveScanParams, SCAN_THREADS) { selective_scan<16>(p); }
KERNEL(selective_scan_64, SelectiveScanParams, SCAN_THREADS) { selective_scan<64>(p); }

struct Wkv7Params {
    const float* r;         // (rows, heads, key_dim)
    const float* decay;     // the same, as are the next but v
    const float* k;
    const float* v;         // (rows, heads, value_dim)
    const float* removed;
    const float* replaced;
    float* out;             // (rows, heads, value_dim)
    States states;          // as those of linear attention
    u32 heads;
    u32 key_dim;
    u32 value_dim;
    u32 unused;
};
static_assert(sizeof(Wkv7Params) == 96, "kernels/src/cuda/params.rs has the same");

constexpr u32 WKV_KEYS = 64;

// A block has 64 values of a head of a sequence, and a thread each value's row of the matrix.
KERNEL(wkv7, Wkv7Params, WKV_KEYS) {
    SHARED(float, keys, [5][WKV_KEYS]);
    const u32 head = blockIdx.x % p.heads, value = blockIdx.y * WKV_KEYS + threadIdx.x;
    const Span& span = p.states.spans[blockIdx.x / p.heads];
    const bool exists = value < p.value_dim;
    const u64 groups = (p.value_dim + STATE_LANES - 1) / STATE_LANES;
    const u64 of_row = (head * groups + value / STATE_LANES) * p.key_dim * STATE_LANES +
                       value % STATE_LANES;
    const float* from = state_before(p.states, span);
    float m[WKV_KEYS];
#pragma unroll
    for (u32 i = 0; i < WKV_KEYS; ++i) {
        const bool there = exists && from != nullptr && i < p.key_dim;
        m[i] = there ? from[of_row + i * STATE_LANES] : 0.0f;
    }
    for (u32 t = 0; t < span.rows; ++t) {
        const u64 at = (static_cast<u64>(span.first) + t) * p.heads + head;
        __syncthreads();
        const bool is_key = threadIdx.x < p.key_dim;
        const u64 key = at * p.key_dim + threadIdx.x;
        keys[0][threadIdx.x] = is_key ? p.r[key] : 0.0f;
        keys[1][threadIdx.x] = is_key ? p.decay[key] : 0.0f;
        keys[2][threadIdx.x] = is_key ? p.k[key] : 0.0f;
        keys[3][threadIdx.x] = is_key ? p.removed[key] : 0.0f;
        keys[4][threadIdx.x] = is_key ? p.replaced[key] : 0.0f;
        __syncthreads();
        const float v = exists ? p.v[at * p.value_dim + value] : 0.0f;
        float held = 0.0f, sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < WKV_KEYS; ++i) held = fmaf(m[i], keys[3][i], held);
#pragma unroll
        for (u32 i = 0; i < WKV_KEYS; ++i) {
            m[i] = fmaf(v, keys[2][i], keys[1][i] * m[i] - held * keys[4][i]);
            sum = fmaf(m[i], keys[0][i], sum);
        }
        if (exists) p.out[at * p.value_dim + value] = sum;
        float* kept = state_after(p.states, span, t + 1);
        if (!exists || kept == nullptr) continue;
#pragma unroll
        for (u32 i = 0; i < WKV_KEYS; ++i) {
            if (i < p.key_dim) kept[of_row + i * STATE_LANES] = m[i];
        }
    }
}
