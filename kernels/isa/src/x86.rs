//! Kernels of x86-64.

pub(crate) mod amx;

use octavo_simd::x86::avx2::Avx2;
use octavo_simd::x86::avx512::Avx512;

use crate::dispatch::instantiate;

instantiate!(avx2, Avx2<false>, floats 6, queries [4, 2, 1], prompts 4,
    bytes 4, features ["avx2", "fma", "f16c"]);
instantiate!(avxvnni, Avx2<true>, extends avx2, prompts 5, bytes 6,
    features ["avx2", "fma", "f16c", "avxvnni"]);
instantiate!(avx512, Avx512, floats 12, queries [8, 4, 2, 1], prompts 6,
bytes 6, features [
    "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"
]);
