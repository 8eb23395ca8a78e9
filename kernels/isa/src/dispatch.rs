//! Instantiates the kernels of one instruction set: the outermost functions, which alone carry
//! target features, and the table of them.
//!
//! `instantiate!` stands at the end of the file of an instruction set. The features are named once:
//! those that the functions are compiled with are those that the CPU is checked for. An instruction
//! set that extends another by dot products takes over all kernels that have none (`extends`).

mod int13;
mod int8;

pub(crate) use int8::prompt_int8;
pub(crate) use int13::prompt_int13;

/// Names that the instantiated functions use.
pub(crate) mod prelude {
    pub(crate) use crate::dispatch::{
        activations, by_kv_type, code_kernels, float_kernels, nothing, prompt_int8, prompt_int13,
        target_fn, target_fns,
    };
    pub(crate) use octavo_simd::act::{ActRow, Form, Tiled};
    pub(crate) use octavo_simd::formats::floats::{BF16, F16, F32};
    pub(crate) use octavo_simd::formats::{self, Float, Format, Visitor};
    pub(crate) use octavo_simd::function::{Activation, Function};
    pub(crate) use octavo_simd::generic::elementwise::{Activate, Combine};
    pub(crate) use octavo_simd::generic::{
        attention, batch, elementwise, float_rows, gemm, gemv, int8, int16, logits, probe,
        recurrence, routing,
    };
    pub(crate) use octavo_simd::kv_layout::KvType;
    pub(crate) use octavo_simd::pack;
    pub(crate) use octavo_simd::simd::Simd;
    pub(crate) use octavo_simd::table::{
        ActivationForm, CodeKernel, CodeKernels, FloatKernels, Gemv, LogitKernels, Packed,
        PromptAttention, PromptKernels, Table, UnpackedKernels,
    };
}

/// Whether this CPU has a feature.
#[cfg(target_arch = "x86_64")]
macro_rules! detected {
    ($feature:tt) => {
        std::arch::is_x86_feature_detected!($feature)
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! detected {
    ($feature:tt) => {
        std::arch::is_aarch64_feature_detected!($feature)
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use detected;

/// Selects a kernel for a type of the cache, and a number of rows if the kernel is generic over it.
macro_rules! by_kv_type {
    ($ty:expr, $($kernel:ident)::+ $(, $rows:literal)?) => {
        match $ty {
            KvType::F16 => $($kernel)::+::<F16 $(, $rows)?>,
            KvType::F32 => $($kernel)::+::<F32 $(, $rows)?>,
            KvType::Bf16 => $($kernel)::+::<BF16 $(, $rows)?>,
            KvType::Q8_0 => $($kernel)::+::<attention::Q8 $(, $rows)?>,
            KvType::F8E4M3 => $($kernel)::+::<attention::F8E4M3 $(, $rows)?>,
            KvType::Q4_0 => $($kernel)::+::<attention::Q4 $(, $rows)?>,
            KvType::Q5_0 => $($kernel)::+::<attention::Q5 $(, $rows)?>,
            KvType::Q5_1 => $($kernel)::+::<attention::Q5Min $(, $rows)?>,
            KvType::Iq4Nl => $($kernel)::+::<attention::Iq4 $(, $rows)?>,
        }
    };
}
pub(crate) use by_kv_type;

/// Does nothing, before and after a step, for instruction sets that need no setup.
pub(crate) unsafe fn nothing() {}

/// Defines functions with these attributes (a bracketed list). Each inlines a generic function, and
/// is never inlined itself, so that there is one copy of it. Type parameters stand in brackets.
macro_rules! target_fns {
    ($attributes:tt $(fn $name:ident $types:tt $arguments:tt $(-> $out:ty)? = $to:expr;)*) => {
        $(target_fn!($attributes fn $name $types $arguments $(-> $out)? = $to);)*
    };
}
pub(crate) use target_fns;

/// Defines one of [`target_fns`].
macro_rules! target_fn {
    ([$($attribute:tt)*] fn $name:ident [$($types:tt)*] ($($argument:ident: $ty:ty),* $(,)?)
        $(-> $out:ty)? = $to:expr) => {
        $($attribute)*
        #[inline(never)]
        #[allow(unused_unsafe, reason = "some of the functions called are safe")]
        unsafe fn $name<$($types)*>($($argument: $ty),*) $(-> $out)? {
            // SAFETY: passed on from the caller, who took this function from the table of a CPU
            // that has its features.
            unsafe { $to($($argument),*) }
        }
    };
}
pub(crate) use target_fn;

/// Defines a form of prompt activations: tiles of `$tile` tokens.
macro_rules! activations {
    ($name:ident, $form:ident, $tile:literal tokens, $bytes:literal bytes, $pack:ident) => {
        static $name: ActivationForm = ActivationForm {
            form: Form::Tiles(Tiled::$form),
            tile: $tile,
            slice: gemm::KC,
            granule: 1,
            bytes: $bytes,
            narrow: true,
            pack: $pack,
        };
    };
}
pub(crate) use activations;

/// Instantiates the kernels that have no dot products of integers.
macro_rules! float_kernels {
    ($simd:ty, floats $nt:literal, $attributes:tt) => {
        target_fns! { $attributes
            fn pack_strip [F: Format] (rows: &[&[u8]], out: &mut [u8]) = pack::strip::<$simd, F>;
            fn pack_float_strip [E: Float] (rows: &[&[u8]], out: &mut [u8]) =
                pack::strip_float::<$simd, E>;
            fn gemv_float [E: Float, const N: usize] (
                strips: *const u8, k: usize, x: *const f32, out: *mut f32,
            ) = gemv::strips_float::<$simd, E, N>;
            fn float_rows [E: Float, const N: usize] (
                strips: *const u8, k: usize, x: &[*const f32], out: (*mut f32, usize),
            ) = float_rows::strips::<$simd, E, N>;
            fn panel_float [E: Float] (strip: *const u8, k0: usize, k1: usize, out: *mut f32) =
                gemm::panel_float::<$simd, E>;
            fn pack_floats [] (
                x: *const f32, m: usize, k: usize, t: usize, width: usize, tile: *mut f32,
            ) = gemm::pack_tokens;
            fn tiles [const MS: usize] (a: &gemm::Tiles<'_>) = gemm::tiles::<$simd, MS, $nt>;
            fn score [E: attention::Stored, const NQ: usize] (
                a: &mut attention::QueryRows<'_>, span: attention::Span,
            ) = attention::score::<$simd, E, NQ>;
            fn weigh [E: attention::Stored, const NQ: usize] (
                a: &mut attention::QueryRows<'_>, span: attention::Span,
            ) = attention::weigh_span::<$simd, E, NQ>;
            fn rms_norm [] (x: *const f32, weight: *const f32, eps: f32, n: usize, y: *mut f32) =
                elementwise::rms_norm::<$simd>;
            fn layer_norm [] (x: *const f32, weight: *const f32, eps: f32, n: usize, y: *mut f32) =
                elementwise::layer_norm::<$simd>;
            fn unary [] (f: Function, x: *const f32, n: usize, y: *mut f32) =
                elementwise::unary::<$simd>;
            fn gate [A: Activate] (rows: &elementwise::Operands) = elementwise::gate::<$simd, A>;
            fn combine [C: Combine] (rows: &elementwise::Operands) =
                elementwise::combine::<$simd, C>;
            fn convolve [] (columns: &recurrence::Columns) = recurrence::convolve::<$simd>;
            fn linear_attention [] (a: &recurrence::Lanes) = recurrence::linear_attention::<$simd>;
            fn selective_scan [] (s: &recurrence::ScanLanes) = recurrence::selective_scan::<$simd>;
            fn wkv7 [] (w: &recurrence::WkvLanes) = recurrence::wkv7::<$simd>;
            fn softmax [] (x: *const f32, n: usize, y: *mut f32) = routing::softmax::<$simd>;
            fn weighted_sum [] (parts: &routing::Parts) = routing::weighted_sum::<$simd>;
            fn to_f16 [] (x: *const f32, n: usize, y: *mut u16) = elementwise::to_f16::<$simd>;
            fn rotate [] (
                x: *const f32, cos: *const f32, sin: *const f32, n: usize, y: *mut f32,
            ) = elementwise::rotate::<$simd>;
            fn widen [] (x: *const f32, n: usize, y: *mut f64, maxima: *mut f64) -> bool =
                logits::widen::<$simd>;
            fn maxima [] (x: *const f64, n: usize, maxima: *mut f64) = logits::maxima::<$simd>;
            fn exp_sums [T: logits::Logit] (
                x: *const T, n: usize, max: f64, sums: *mut [f64; 2],
            ) = logits::exp_sums::<$simd, T>;
            fn exps [] (x: *const f64, n: usize, max: f64, y: *mut f64) = logits::exps::<$simd>;
            fn read [const PREFETCH: bool] (p: *const f32, n: usize) -> f32 =
                probe::read::<$simd, PREFETCH>;
            fn multiply [const ACCS: usize] (turns: usize) -> f32 =
                probe::multiply::<$simd, ACCS>;
        }
        activations!(FLOATS, F32, $nt tokens, 4 bytes, pack_floats);
        const FLOAT_ROWS: UnpackedKernels = UnpackedKernels {
            activations: &FLOATS,
            tiles: [tiles::<1>, tiles::<2>],
        };

        /// Collects the kernels of a plain float type.
        fn packed_floats<E: Float>() -> Packed {
            Packed {
                pack: pack_float_strip::<E>,
                gemv: Gemv::Float(FloatKernels {
                    row: [gemv_float::<E, 1>, gemv_float::<E, 2>],
                    rows: [float_rows::<E, 1>, float_rows::<E, 2>],
                }),
                prompt: PromptKernels {
                    activations: &FLOATS,
                    panel: panel_float::<E>,
                    tiles: [tiles::<1>, tiles::<2>],
                    offset: 0,
                },
                prompt_int13: None,
                prompt_int8: None,
            }
        }
    };
}
pub(crate) use float_kernels;

/// Instantiates the kernels that have dot products of integers: of quantized weights, of one row
/// and of several, and of prompts, also in attention.
macro_rules! code_kernels {
    ($simd:ty, prompts $width:literal, $attributes:tt) => {
        target_fns! { $attributes
            fn gemv [F: Format, const N: usize, const M: usize] (
                strips: *const u8, k: usize, x: &ActRow, out: (*mut f32, usize),
            ) = gemv::strips::<$simd, F, N, M>;
            fn unpack [F: Format] (
                block: *const u8, blocks: usize, panel: *mut batch::Panel, strip: usize,
            ) = batch::unpack::<$simd, F>;
            fn multiply_rows [const GROUP: usize, const MIN: bool] (a: &batch::Chunk) =
                batch::multiply::<$simd, GROUP, MIN>;
            fn quantize [] (x: *const f32, k: usize, out: &ActRow) = gemv::quantize::<$simd>;
            fn pack_int16 [] (
                x: *const f32, m: usize, k: usize, t: usize, width: usize, tile: *mut f32,
            ) = int16::pack_tokens::<$simd>;
            fn int16_panel [F: Format] (strip: *const u8, k0: usize, k1: usize, out: *mut f32) =
                int16::panel::<$simd, F>;
            fn int16_of_codes [] (
                from: *const batch::Panel, k: usize, group: usize, offset: i32, out: *mut f32,
            ) = int16::panel_of_codes::<$simd>;
            fn int16_tiles [const GROUP: usize, const MIN: bool, const MS: usize] (
                a: &gemm::Tiles<'_>,
            ) = int16::tiles::<$simd, GROUP, MIN, MS, $width>;
            fn pack_keys [E: attention::Stored] (
                pages: &attention::Pages<'_>, at: usize, visible: attention::VisibleRange,
                scratch: *mut u8,
            ) = attention::int16::pack_keys::<$simd, E>;
            fn pack_values [E: attention::Stored] (
                pages: &attention::Pages<'_>, at: usize, visible: attention::VisibleRange,
                scratch: *mut u8,
            ) = attention::int16::pack_values::<$simd, E>;
            fn attend_prompt [] (
                a: &attention::Block<'_>, pack: [attention::PackSpan; 2], scratch: *mut u8,
            ) = attention::int16::attend::<$simd, $width>;
        }
        activations!(INT16, Int16, $width tokens, 4 bytes, pack_int16);

        /// Collects the kernels of a format, to whose strips `pack` packs.
        fn packed_blocks<F: Format>(pack: unsafe fn(&[&[u8]], &mut [u8])) -> Packed {
            packed::<F>(
                pack,
                CodeKernels {
                    row: row::<F>(),
                    batch: few::<F>(),
                    tiled: None,
                },
                int16_panel::<F>,
                (prompt_int13::<F>(int13_panel::<F>), prompt_int8::<F>()),
            )
        }

        /// Collects the kernels of a format whose codes are read from panels, but for one row.
        fn packed_decoded<F: Format>(pack: unsafe fn(&[&[u8]], &mut [u8])) -> Packed {
            packed::<F>(
                pack,
                CodeKernels {
                    row: row::<F>(),
                    batch: decoded::<F>(),
                    tiled: None,
                },
                decoded_int16_panel::<F>,
                (prompt_int13::<F>(decoded_int13_panel::<F>), None),
            )
        }

        /// Collects the kernels of one row.
        fn row<F: Format>() -> [CodeKernel; 2] {
            let pair = if <$simd as Simd>::IN_REGISTERS {
                gemv::<F, 2, 1>
            } else {
                gemv_in_turn::<F>
            };
            [gemv::<F, 1, 1>, pair]
        }

        /// Collects the kernels of several rows; codes of a few are multiplied as they are decoded.
        fn few<F: Format>() -> batch::BatchKernels {
            let (few, few_rows): (&'static [CodeKernel], u32) = match <$simd as Simd>::FEW_ROWS {
                0 => (&[], 0),
                3 => (const { &[gemv::<F, 2, 2>, gemv::<F, 2, 3>] }, 3),
                n => (const { &[gemv::<F, 2, 2>, gemv::<F, 2, 3>, gemv::<F, 2, 4>] }, n),
            };
            batch::BatchKernels { few, few_rows, ..decoded::<F>() }
        }

        /// Multiplies two strips by one row, one after the other.
        ///
        /// # Safety
        /// As [`gemv::strips`].
        unsafe fn gemv_in_turn<F: Format>(
            strips: *const u8,
            k: usize,
            x: &ActRow,
            (out, stride): (*mut f32, usize),
        ) {
            const R: usize = <$simd as Simd>::R;
            let strip_bytes = k / F::K * F::BLOCK_BYTES * R;
            for strip in 0..2 {
                // SAFETY: the caller has two strips, and R results of each.
                unsafe {
                    let out = (out.add(strip * R), stride);
                    gemv::<F, 1, 1>(strips.add(strip * strip_bytes), k, x, out);
                }
            }
        }

        /// Collects the kernels that multiply codes from panels.
        pub(crate) const fn decoded<F: Format>() -> batch::BatchKernels {
            batch::BatchKernels {
                few: &[], few_rows: 0, unpack: unpack::<F>,
                multiply: match (F::GROUP, F::MIN) {
                    (16, false) => multiply_rows::<16, false>,
                    (16, true) => multiply_rows::<16, true>,
                    (_, false) => multiply_rows::<32, false>,
                    (_, true) => multiply_rows::<32, true>,
                },
                block: (F::K, F::BLOCK_BYTES * <$simd as Simd>::R),
                offset: batch::offset::<$simd, F>(),
            }
        }

        /// Converts k in `k0..k1` of a packed strip to a panel of pairs, by way of its codes.
        ///
        /// # Safety
        /// As [`int16::panel`].
        unsafe fn decoded_int16_panel<F: Format>(
            strip: *const u8,
            k0: usize,
            k1: usize,
            out: *mut f32,
        ) {
            let kernels = const { &decoded::<F>() };
            // SAFETY: the strip has these blocks, the panel gets all their codes, and `out` has the
            // room.
            unsafe {
                batch::converted(kernels, strip, (k0, k1), |panel| {
                    int16_of_codes(panel, k1 - k0, F::GROUP, F::OFFSET, out);
                });
            }
        }

        /// Collects the kernels of a format from those of its codes and panels.
        fn packed<F: Format>(
            pack: unsafe fn(&[&[u8]], &mut [u8]),
            codes: CodeKernels,
            panel: unsafe fn(*const u8, usize, usize, *mut f32),
            (prompt_int13, prompt_int8): (Option<PromptKernels>, Option<PromptKernels>),
        ) -> Packed {
            Packed {
                pack,
                gemv: Gemv::Codes(codes),
                prompt: PromptKernels {
                    activations: &INT16,
                    panel,
                    tiles: match (F::GROUP, F::MIN) {
                        (16, false) => [int16_tiles::<16, false, 1>, int16_tiles::<16, false, 2>],
                        (16, true) => [int16_tiles::<16, true, 1>, int16_tiles::<16, true, 2>],
                        (_, false) => [int16_tiles::<32, false, 1>, int16_tiles::<32, false, 2>],
                        (_, true) => [int16_tiles::<32, true, 1>, int16_tiles::<32, true, 2>],
                    },
                    offset: 0,
                },
                prompt_int13,
                prompt_int8,
            }
        }

        // no faster than in f32, it would only be less exact
        const PROMPT_ATTENTION: Option<PromptAttention> = if <$simd as Simd>::TWO_AT_ONCE {
            Some(PromptAttention {
                takes: attention::int16::takes,
                rows: attention::int16::ROWS,
                scratch: attention::int16::scratch_bytes,
                keys: |ty| by_kv_type!(ty, pack_keys),
                values: |ty| by_kv_type!(ty, pack_values),
                attend: attend_prompt,
            })
        } else {
            None
        };
    };
}
pub(crate) use code_kernels;

/// Instantiates the outermost functions of one instruction set. They alone carry target features.
macro_rules! instantiate {
    ($module:ident, $simd:ty, floats $nt:literal, queries [$($nq:literal),*],
        prompts $width:literal $(, bytes $bytes:literal)? $(, features [$($feature:tt),+])?) => {
        pub(crate) mod $module {
            use super::*;
            use $crate::dispatch::prelude::*;

            float_kernels!($simd, floats $nt, [$(#[target_feature($(enable = $feature),+)])?]);
            code_kernels!($simd, prompts $width, [$(#[target_feature($(enable = $feature),+)])?]);
            prompt_int13!($simd, $width, [$(#[target_feature($(enable = $feature),+)])?]);
            prompt_int8!($simd, [$($bytes)?], [$(#[target_feature($(enable = $feature),+)])?]);

            /// Collects the functions of a format into its row of the table.
            struct Rows;

            impl Visitor for Rows {
                type Out = Packed;
                fn blocks<F: Format>(&self) -> Packed {
                    packed_blocks::<F>(pack_strip::<F>)
                }
                fn decoded<F: Format>(&self) -> Packed {
                    packed_decoded::<F>(pack_strip::<F>)
                }
                fn floats<E: Float>(&self) -> Packed {
                    packed_floats::<E>()
                }
            }

            pub(crate) const KERNELS: Table = Table {
                detect: || true $($(&& $crate::dispatch::detected!($feature))+)?,
                strip: <$simd as Simd>::R,
                packed: |ty| formats::visit(ty, &Rows),
                float_rows: FLOAT_ROWS,
                quantize,
                enter: nothing,
                leave: nothing,
                queries: &[$($nq),*],
                attention: |rows, types| match rows {
                    $($nq => attention::SpanKernels {
                        keys: by_kv_type!(types.k, score, $nq),
                        values: by_kv_type!(types.v, weigh, $nq),
                    },)*
                    _ => unreachable!("{rows} query rows: not one of `queries`"),
                },
                prompt_attention: PROMPT_ATTENTION,
                rms_norm,
                layer_norm,
                unary,
                gate: |act| match act {
                    Activation::Silu => gate::<elementwise::Silu>,
                    Activation::Gelu => gate::<elementwise::Gelu>,
                    Activation::SwigluOai => gate::<elementwise::SwigluOai>,
                },
                add: combine::<elementwise::Sum>,
                mul: combine::<elementwise::Product>,
                convolve,
                linear_attention,
                selective_scan,
                wkv7,
                softmax,
                weighted_sum,
                to_f16,
                rotate,
                logits: LogitKernels {
                    widen,
                    maxima,
                    exp_sums: exp_sums::<f64>,
                    exp_sums_f32: exp_sums::<f32>,
                    exps,
                },
                read: [read::<false>, read::<true>],
                multiply: [multiply::<{ probe::FEW }>, multiply::<{ probe::MANY }>],
                busy_unit: None,
            };
            pub(crate) static TABLE: Table = KERNELS;
        }
    };
    ($module:ident, $simd:ty, extends $base:ident, prompts $width:literal
        $(, bytes $bytes:literal)?, features [$($feature:tt),+]) => {
        pub(crate) mod $module {
            use super::*;
            use $crate::dispatch::prelude::*;

            code_kernels!($simd, prompts $width, [#[target_feature($(enable = $feature),+)]]);
            prompt_int13!($simd, $width, [#[target_feature($(enable = $feature),+)]]);
            prompt_int8!($simd, [$($bytes)?], [#[target_feature($(enable = $feature),+)]]);

            /// Replaces the functions of a format that have dot products.
            struct Rows(Packed);

            impl Visitor for Rows {
                type Out = Packed;
                fn blocks<F: Format>(&self) -> Packed {
                    packed_blocks::<F>(self.0.pack)
                }
                fn decoded<F: Format>(&self) -> Packed {
                    packed_decoded::<F>(self.0.pack)
                }
                fn floats<E: Float>(&self) -> Packed {
                    self.0
                }
            }

            pub(crate) static TABLE: Table = Table {
                detect: || ($base::KERNELS.detect)() $(&& $crate::dispatch::detected!($feature))+,
                packed: |ty| formats::visit(ty, &Rows(($base::KERNELS.packed)(ty)?)),
                quantize,
                prompt_attention: PROMPT_ATTENTION,
                ..$base::KERNELS
            };
        }
    };
}
pub(crate) use instantiate;
