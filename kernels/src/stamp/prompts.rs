//! Instantiates the prompt kernels of one instruction set, in integers of 16 bits and of 8.

/// Quantized prompts in 16-bit integers, the fastest form on vectors.
macro_rules! by_pairs {
    (kernels $simd:ty, $width:literal $(, [$($feature:tt),+])?) => {
        $(#[target_feature($(enable = $feature),+)])?
        unsafe fn pack_pairs(
            x: *const f32,
            m: usize,
            k: usize,
            t: usize,
            width: usize,
            tile: *mut f32,
        ) {
            // SAFETY: as gemv.
            unsafe { pairs::pack_tokens::<$simd>(x, m, k, t, width, tile) }
        }
        $(#[target_feature($(enable = $feature),+)])?
        unsafe fn pair_panel<F: Format>(strip: *const u8, k0: usize, k1: usize, out: *mut f32) {
            // SAFETY: as gemv.
            unsafe { pairs::panel::<$simd, F>(strip, k0, k1, out) }
        }
        $(#[target_feature($(enable = $feature),+)])?
        unsafe fn pair_tiles<const GROUP: usize, const MIN: bool, const MS: usize>(
            a: &gemm::Tiles<'_>,
        ) {
            // SAFETY: as gemv.
            unsafe { pairs::tiles::<$simd, GROUP, MIN, MS, $width>(a) }
        }
        $(#[target_feature($(enable = $feature),+)])?
        unsafe fn pack_keys<E: attention::Stored>(
            pages: &attention::Pages<'_>,
            at: usize,
            seen: attention::Seen,
            scratch: *mut u8,
        ) {
            // SAFETY: as gemv.
            unsafe { attention::pairs::pack_keys::<$simd, E>(pages, at, seen, scratch) }
        }
        $(#[target_feature($(enable = $feature),+)])?
        unsafe fn pack_values<E: attention::Stored>(
            pages: &attention::Pages<'_>,
            at: usize,
            seen: attention::Seen,
            scratch: *mut u8,
        ) {
            // SAFETY: as gemv.
            unsafe { attention::pairs::pack_values::<$simd, E>(pages, at, seen, scratch) }
        }
        $(#[target_feature($(enable = $feature),+)])?
        unsafe fn attend_prompt(
            a: &attention::Block<'_>,
            pack: [attention::PackSpan; 2],
            scratch: *mut u8,
        ) {
            // SAFETY: as gemv.
            unsafe { attention::pairs::attend::<$simd, $width>(a, pack, scratch) }
        }
        const PROMPT_ATTENTION: PromptAttention = PromptAttention {
            takes: attention::pairs::takes,
            rows: attention::pairs::ROWS,
            scratch: attention::pairs::scratch_bytes,
            keys: |ty| by_kv_type!(ty, pack_keys),
            values: |ty| by_kv_type!(ty, pack_values),
            attend: attend_prompt,
        };
        const TWO_AT_ONCE: bool = <$simd as Simd>::TWO_AT_ONCE;
        static PAIRS: ActivationForm =
            ActivationForm {
                form: Form::Pairs,
                tile: $width,
                slice: gemm::KC,
                bytes: 4,
                narrow: true,
                pack: pack_pairs,
            };
    };
    (prompt $format:ident) => {
        PromptKernels {
            activations: &PAIRS,
            panel: pair_panel::<$format>,
            tiles: match ($format::GROUP, $format::MIN) {
                (16, false) => [pair_tiles::<16, false, 1>, pair_tiles::<16, false, 2>],
                (16, true) => [pair_tiles::<16, true, 1>, pair_tiles::<16, true, 2>],
                (_, false) => [pair_tiles::<32, false, 1>, pair_tiles::<32, false, 2>],
                (_, true) => [pair_tiles::<32, true, 1>, pair_tiles::<32, true, 2>],
            },
            offset: 0,
        }
    };
    (generated $format:ident) => {
        None
    };
    (rows) => {
        FLOAT_ROWS
    };
    (attention) => {
        // no faster than in f32, it would only be less exact
        if TWO_AT_ONCE { Some(PROMPT_ATTENTION) } else { None }
    };
    (busy) => {
        None
    };
    ($enter_or_leave:ident) => {
        nothing
    };
}
pub(crate) use by_pairs;

/// Quantized prompts in 8-bit integers, where vectors have [`ByteDots`](crate::simd::ByteDots): in
/// tiles of `$width` tokens.
macro_rules! by_bytes {
    ($simd:ty, [] $(, [$($feature:tt),+])?) => {
        fn prompt_bytes<F: Format>() -> Option<PromptKernels> {
            None
        }
    };
    ($simd:ty, [$width:literal] $(, [$($feature:tt),+])?) => {
        $(#[target_feature($(enable = $feature),+)])?
        unsafe fn pack_bytes(
            x: *const f32,
            m: usize,
            k: usize,
            t: usize,
            width: usize,
            tile: *mut f32,
        ) {
            // SAFETY: as gemv.
            unsafe { bytes::pack_tokens::<$simd>(x, m, k, t, width, tile) }
        }
        $(#[target_feature($(enable = $feature),+)])?
        unsafe fn byte_panel<F: Format>(strip: *const u8, k0: usize, k1: usize, out: *mut f32) {
            // SAFETY: as gemv.
            unsafe { bytes::panel::<$simd, F>(strip, k0, k1, out) }
        }
        $(#[target_feature($(enable = $feature),+)])?
        unsafe fn byte_tiles<
            const GROUP: usize,
            const MIN: bool,
            const DOTS: usize,
            const MS: usize,
        >(
            a: &gemm::Tiles<'_>,
        ) {
            // SAFETY: as gemv.
            unsafe { bytes::tiles::<$simd, GROUP, MIN, DOTS, MS, $width>(a) }
        }
        static BYTES: ActivationForm =
            ActivationForm {
                form: Form::Bytes,
                tile: $width,
                slice: gemm::KC,
                bytes: 2,
                narrow: true,
                pack: pack_bytes,
            };
        fn prompt_bytes<F: Format>() -> Option<PromptKernels> {
            macro_rules! tiles {
                ($group:literal, $min:literal, $dots:literal) => {
                    [byte_tiles::<$group, $min, $dots, 1>, byte_tiles::<$group, $min, $dots, 2>]
                };
            }
            let dots = const { bytes::pairs_at_once::<$simd>(F::LARGEST, F::GROUP) };
            Some(PromptKernels {
                activations: &BYTES,
                panel: byte_panel::<F>,
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
pub(crate) use by_bytes;
