// Compiled once for each HEAD_DIM and PART: a type of the cache, what no type has of its own, and
// prompts by the types again. The numbers in the names are query heads that a block takes at a
// time.
#include "attention_prompt.cuh"
#include "attention_split.cuh"

#define ATTEND_SPLIT(TYPE, HEADS)                                                   \
    KERNEL(JOIN(attend_##TYPE, HEAD_DIM, HEADS), AttentionParams, ATTEND_THREADS) { \
        attend_split<Kv##TYPE, HEAD_DIM, HEADS>(p);                                 \
    }

#if TAKES(1)
ATTEND_SPLIT(F16, 1)
ATTEND_SPLIT(F16, 4)
#endif
#if TAKES(2)
ATTEND_SPLIT(F32, 1)
ATTEND_SPLIT(F32, 4)
#endif
#if TAKES(3)
ATTEND_SPLIT(BF16, 1)
ATTEND_SPLIT(BF16, 4)
#endif
#if HEAD_DIM % 32 == 0 && TAKES(4)
ATTEND_SPLIT(Q8_0, 1)
ATTEND_SPLIT(Q8_0, 4)
#endif
#if HEAD_DIM % 32 == 0 && TAKES(5)
ATTEND_SPLIT(F8_E4M3, 1)
ATTEND_SPLIT(F8_E4M3, 4)
#endif
#if HEAD_DIM % 32 == 0 && TAKES(6)
ATTEND_SPLIT(Q4_0, 1)
ATTEND_SPLIT(Q4_0, 4)
#endif
#if TAKES(7)
KERNEL(JOIN(attend, HEAD_DIM, merge), AttentionParams, ATTEND_THREADS) {
    attend_merge<HEAD_DIM>(p);
}
#endif

// Halves of larger heads are multiples of 16 too. There is none for floats of 32 bits, which halves
// would round.
#if HEAD_DIM <= 128 ? HEAD_DIM % 16 == 0 : HEAD_DIM % 32 == 0
#define ATTEND_PROMPT(TYPE)                                                                     \
    KERNEL(JOIN(attend_prompt, HEAD_DIM, TYPE), AttentionParams, PROMPT_THREADS<HEAD_DIM>) {    \
        attend_prompt<Kv##TYPE, HEAD_DIM>(p);                                                   \
    }
#if TAKES(8)
ATTEND_PROMPT(F16)
#endif
#if TAKES(9)
ATTEND_PROMPT(BF16)
#endif
#if HEAD_DIM % 32 == 0 && TAKES(10)
ATTEND_PROMPT(Q8_0)
#endif
#if HEAD_DIM % 32 == 0 && TAKES(11)
ATTEND_PROMPT(F8_E4M3)
#endif
#if HEAD_DIM % 32 == 0 && TAKES(12)
ATTEND_PROMPT(Q4_0)
#endif
#undef ATTEND_PROMPT
#endif
#undef ATTEND_SPLIT
