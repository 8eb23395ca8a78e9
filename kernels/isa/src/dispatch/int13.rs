//! Instantiates the kernels of prompts in 13-bit integers, with scales folded into codes.

/// Instantiates the kernels of quantized prompts in 13-bit integers, in tiles of `$width` tokens.
macro_rules! prompt_int13 {
    ($simd:ty, $width:literal, $attributes:tt) => {
        target_fns! { $attributes
            fn pack_int13 [] (
                x: *const f32, m: usize, k: usize, t: usize, width: usize, tile: *mut f32,
            ) = int16::folded::pack_tokens::<$simd>;
            fn int13_panel [F: Format] (strip: *const u8, k0: usize, k1: usize, out: *mut f32) =
                int16::folded::panel::<$simd, F>;
            fn int13_of_codes [] (
                from: *const batch::Panel, form: (usize, i32, usize), unit: *const f32,
                out: *mut f32,
            ) = int16::folded::panel_of_codes::<$simd>;
            fn int13_unit [F: Format] (block: *const u8, unit: *mut f32) =
                int16::folded::store_unit::<$simd, F>;
            fn int13_tiles [const GROUP: usize, const MIN: bool, const MS: usize] (
                a: &gemm::Tiles<'_>, len: usize,
            ) = int16::folded::tiles::<$simd, GROUP, MIN, MS, $width>;
        }
        activations!(INT13, Int13, $width tokens, 4 bytes, pack_int13);

        /// Multiplies `MS` strips by all tokens.
        ///
        /// # Safety
        /// As [`int16::folded::tiles`].
        unsafe fn int13_tiles_of<F: Format, const MS: usize>(a: &gemm::Tiles<'_>) {
            let len = const {
                match int16::folded::sum_length::<F>() {
                    Some(len) => len,
                    None => F::K,
                }
            };
            // SAFETY: passed on.
            unsafe {
                match (F::GROUP, F::MIN) {
                    (16, true) => int13_tiles::<16, true, MS>(a, len),
                    (_, true) => int13_tiles::<32, true, MS>(a, len),
                    (_, false) => int13_tiles::<32, false, MS>(a, len),
                }
            }
        }

        /// Converts k in `k0..k1`, one block, of a packed strip to a panel, by way of its codes.
        ///
        /// # Safety
        /// As [`int16::panel`].
        unsafe fn decoded_int13_panel<F: Format>(
            strip: *const u8,
            k0: usize,
            k1: usize,
            out: *mut f32,
        ) {
            const R: usize = <$simd as Simd>::R;
            let kernels = const { &decoded::<F>() };
            let len = const { int16::folded::sum_length::<F>() };
            let mut unit = [0.0; R];
            // SAFETY: the strip has this block, the panel gets all its codes, and `out` has the
            // room.
            unsafe {
                int13_unit::<F>(strip.add(k0 / F::K * F::BLOCK_BYTES * R), unit.as_mut_ptr());
                batch::converted(kernels, strip, (k0, k1), |panel| {
                    let form = (F::GROUP, F::OFFSET, len.unwrap_or(F::K));
                    int13_of_codes(panel, form, unit.as_ptr(), out);
                });
            }
        }

        /// Collects the kernels of a format with this function for panels, if its scales can be
        /// folded.
        fn prompt_int13<F: Format>(
            panel: unsafe fn(*const u8, usize, usize, *mut f32),
        ) -> Option<PromptKernels> {
            const { int16::folded::sum_length::<F>() }?;
            Some(PromptKernels {
                activations: &INT13,
                panel,
                tiles: [int13_tiles_of::<F, 1>, int13_tiles_of::<F, 2>],
                offset: 0,
            })
        }
    };
}
pub(crate) use prompt_int13;
