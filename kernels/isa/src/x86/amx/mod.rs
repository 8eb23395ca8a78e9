//! AMX: prompts in bf16, on a matrix unit with 16 x 16 products of 32 k at a time; and many tokens
//! that are generated together, with the same bits as each alone.
//!
//! ```text
//! panel   per strip and 32 k: [16 pairs of k][16 rows][2]      1 KiB, a "B" tile
//! tile    per 16 tokens and 32 k: [16 tokens][32]              1 KiB, an "A" tile
//! sums    [16 tokens][16 rows] f32, stored to y as they are    a "C" tile
//! ```
//! `tile` has the unit's own instructions, `products` those with quantized weights, `floats` those
//! with float weights, `decode` the products of tokens generated together, `prompt_attention` the
//! attention of prompts; everything else is AVX-512's.

mod decode;
mod detect;
mod floats;
mod products;
mod prompt_attention;
mod tile;

use super::avx512::KERNELS;
use crate::dispatch::by_kv_type;
use octavo_simd::formats::floats::{BF16, F16, F32};
use octavo_simd::formats::{self, Float, Format, Visitor};
use octavo_simd::generic::{attention, batch};
use octavo_simd::kv_layout::KvType;
use octavo_simd::table::{CodeKernels, Gemv, Packed, PromptAttention, PromptKernels, Table};

/// Replaces the prompt kernels of a format, and adds those of its products in tiles.
struct Rows(Packed);

impl Rows {
    /// The kernels of generated tokens, with those of many on the matrix unit.
    fn with_tiles<F: Format>(&self) -> Gemv {
        match self.0.gemv {
            Gemv::Codes(vectors) => Gemv::Codes(CodeKernels {
                tiled: const { decode::kernels::<F>() },
                ..vectors
            }),
            floats @ Gemv::Float(_) => floats,
        }
    }

    /// The same kernels, with prompts on the matrix unit.
    fn with_panel(&self, panel: unsafe fn(*const u8, usize, usize, *mut f32)) -> Packed {
        Packed {
            prompt: PromptKernels {
                activations: &products::BF16_TILES,
                panel,
                tiles: [products::tiles_bf16::<1>, products::tiles_bf16::<2>],
                offset: 0,
            },
            prompt_int13: None,
            prompt_int8: None,
            ..self.0
        }
    }
}

/// Converts k in `k0..k1` of a packed strip to B tiles, by way of a panel of codes.
///
/// # Safety
/// As [`products::panel`].
unsafe fn decoded_panel<F: Format>(strip: *const u8, k0: usize, k1: usize, out: *mut f32) {
    let kernels = const { &super::avx512::decoded::<F>() };
    // SAFETY: the strip has these blocks, the panel gets all their codes, and `out` has the room.
    unsafe {
        batch::converted(kernels, strip, (k0, k1), |panel| {
            products::panel_of_codes(panel, k1 - k0, F::GROUP, F::OFFSET, out);
        });
    }
}

impl Visitor for Rows {
    type Out = Packed;
    fn blocks<F: Format>(&self) -> Packed {
        Packed {
            gemv: self.with_tiles::<F>(),
            ..self.with_panel(products::panel::<F>)
        }
    }
    fn decoded<F: Format>(&self) -> Packed {
        Packed {
            gemv: self.with_tiles::<F>(),
            ..self.with_panel(decoded_panel::<F>)
        }
    }
    fn floats<E: Float>(&self) -> Packed {
        Packed {
            prompt: const { floats::kernels::<E>() },
            ..self.0
        }
    }
}

/// Kernels of AVX-512, with prompts and tokens decoded together on the matrix unit.
pub(crate) static TABLE: Table = Table {
    detect: || (KERNELS.detect)() && detect::is_available(),
    packed: |ty| formats::visit(ty, &Rows((KERNELS.packed)(ty)?)),
    enter: tile::configure,
    leave: tile::release,
    prompt_attention: Some(PromptAttention {
        takes: prompt_attention::takes,
        rows: prompt_attention::ROWS,
        scratch: prompt_attention::scratch_bytes,
        keys: |ty| by_kv_type!(ty, prompt_attention::pack_keys),
        values: |ty| by_kv_type!(ty, prompt_attention::pack_values),
        attend: prompt_attention::attend,
    }),
    busy_unit: Some((tile::busy, tile::BUSY)),
    ..KERNELS
};
