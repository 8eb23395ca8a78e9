//! Instantiates the kernels of prompts in 8-bit integers.

/// Instantiates the kernels of quantized prompts in 8-bit integers, where vectors have
/// [`ByteDots`](octavo_simd::simd::ByteDots): in tiles of `$width` tokens.
macro_rules! prompt_int8 {
    ($simd:ty, [], $attributes:tt) => {
        fn prompt_int8<F: Format>() -> Option<PromptKernels> {
            None
        }
    };
    ($simd:ty, [$width:literal], $attributes:tt) => {
        target_fns! { $attributes
            fn pack_int8 [] (
                x: *const f32, m: usize, k: usize, t: usize, width: usize, tile: *mut f32,
            ) = int8::pack_tokens::<$simd>;
            fn int8_panel [F: Format] (strip: *const u8, k0: usize, k1: usize, out: *mut f32) =
                int8::panel::<$simd, F>;
            fn int8_tiles [
                const GROUP: usize, const MIN: bool, const DOTS: usize, const MS: usize
            ] (a: &gemm::Tiles<'_>) = int8::tiles::<$simd, GROUP, MIN, DOTS, MS, $width>;
        }
        activations!(INT8, Int8, $width tokens, 2 bytes, pack_int8);

        fn prompt_int8<F: Format>() -> Option<PromptKernels> {
            macro_rules! tiles {
                ($group:literal, $min:literal, $dots:literal) => {
                    [int8_tiles::<$group, $min, $dots, 1>, int8_tiles::<$group, $min, $dots, 2>]
                };
            }
            let dots = const { int8::pairs_at_once::<$simd>(F::LARGEST, F::GROUP) };
            Some(PromptKernels {
                activations: &INT8,
                panel: int8_panel::<F>,
                tiles: match (F::GROUP, F::MIN, dots) {
                    (16, false, 4) => tiles!(16, false, 4),
                    (16, false, 2) => tiles!(16, false, 2),
                    (16, true, 4) => tiles!(16, true, 4),
                    (32, false, 8) => tiles!(32, false, 8),
                    (32, false, 4) => tiles!(32, false, 4),
                    (32, true, 8) => tiles!(32, true, 8),
                    (32, true, 4) => tiles!(32, true, 4),
                    _ => return None,
                },
                offset: F::OFFSET,
            })
        }
    };
}
pub(crate) use prompt_int8;
