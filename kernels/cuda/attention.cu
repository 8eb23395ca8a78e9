// Compiled once for each HEAD_DIM; the numbers in the names are query heads that a block takes at a
// time.
#include "attention.cuh"

KERNEL(JOIN(attend_F16, HEAD_DIM, 1), AttentionParams, ATTEND_THREADS) { attend_split<KvF16, HEAD_DIM, 1>(p); }
KERNEL(JOIN(attend_F16, HEAD_DIM, 4), AttentionParams, ATTEND_THREADS) { attend_split<KvF16, HEAD_DIM, 4>(p); }
KERNEL(JOIN(attend_BF16, HEAD_DIM, 1), AttentionParams, ATTEND_THREADS) { attend_split<KvBF16, HEAD_DIM, 1>(p); }
KERNEL(JOIN(attend_BF16, HEAD_DIM, 4), AttentionParams, ATTEND_THREADS) { attend_split<KvBF16, HEAD_DIM, 4>(p); }
KERNEL(JOIN(attend_F32, HEAD_DIM, 1), AttentionParams, ATTEND_THREADS) { attend_split<KvF32, HEAD_DIM, 1>(p); }
KERNEL(JOIN(attend_F32, HEAD_DIM, 4), AttentionParams, ATTEND_THREADS) { attend_split<KvF32, HEAD_DIM, 4>(p); }
#if HEAD_DIM % 32 == 0
KERNEL(JOIN(attend_Q8_0, HEAD_DIM, 1), AttentionParams, ATTEND_THREADS) { attend_split<KvQ8_0, HEAD_DIM, 1>(p); }
KERNEL(JOIN(attend_Q8_0, HEAD_DIM, 4), AttentionParams, ATTEND_THREADS) { attend_split<KvQ8_0, HEAD_DIM, 4>(p); }
KERNEL(JOIN(attend_Q4_0, HEAD_DIM, 1), AttentionParams, ATTEND_THREADS) { attend_split<KvQ4_0, HEAD_DIM, 1>(p); }
KERNEL(JOIN(attend_Q4_0, HEAD_DIM, 4), AttentionParams, ATTEND_THREADS) { attend_split<KvQ4_0, HEAD_DIM, 4>(p); }
#endif
KERNEL(JOIN(attend, HEAD_DIM, merge), AttentionParams, ATTEND_THREADS) { attend_merge<HEAD_DIM>(p); }
#if HEAD_DIM % 16 == 0 && HEAD_DIM <= 128
KERNEL(JOIN(attend_prompt, HEAD_DIM, F16), AttentionParams, ATTEND_THREADS) { attend_prompt<HEAD_DIM>(p); }
#endif
