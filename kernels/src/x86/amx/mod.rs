//! AMX: prompts in bf16, on a matrix unit with 16 x 16 products of 32 k at a time; and many tokens
//! that are generated together, with the same bits as each alone.
//!
//! ```text
//! panel   per strip and 32 k: [16 pairs of k][16 rows][2]      1 KiB, a "B" tile
//! tile    per 16 tokens and 32 k: [16 tokens][32]              1 KiB, an "A" tile
//! sums    [16 tokens][16 rows] f32, stored to y as they are    a "C" tile
//! ```
//! `tile` has the unit's own instructions, `products` those with quantized weights, `generated` the
//! products of tokens generated together, `prompt_attention` the attention of prompts; everything
//! else is AVX-512's.

mod detect;
mod generated;
mod products;
mod prompt_attention;
mod tile;

use super::avx512::Avx512;
use crate::simd::Simd;
use crate::stamp::instantiate;
use detect::is_available;

/// Quantized prompts in bf16 on the matrix unit.
macro_rules! by_tiles {
    (kernels $($rest:tt)*) => {};
    (prompt $format:ident) => {
        PromptKernels {
            activations: &products::BF16_TILES,
            panel: products::panel::<$format>,
            tiles: [products::tiles_bf16::<1>, products::tiles_bf16::<2>],
            offset: 0,
        }
    };
    (generated $format:ident) => {
        Some(const { generated::kernels::<$format>() })
    };
    (rows) => {
        UnpackedKernels {
            activations: &products::BF16_TILES,
            convert: Some(products::narrow),
            tiles: [products::tiles_bf16::<1>, products::tiles_bf16::<2>],
        }
    };
    (attention) => {
        Some(PromptAttention {
            takes: prompt_attention::takes,
            rows: prompt_attention::ROWS,
            scratch: prompt_attention::scratch_bytes,
            keys: |ty| by_kv_type!(ty, prompt_attention::pack_keys),
            values: |ty| by_kv_type!(ty, prompt_attention::pack_values),
            attend: prompt_attention::attend,
        })
    };
    (busy) => {
        Some((tile::busy, tile::BUSY))
    };
    (enter) => {
        tile::configure
    };
    (leave) => {
        tile::release
    };
}

instantiate!(kernels, Avx512, floats 12, queries [8, 4, 2, 1], prompts by_tiles,
    features ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"],
    and is_available);
