//! Instantiates the kernels of one instruction set: the outermost functions, which alone carry
//! target features, and the table of them.
//!
//! `instantiate!` stands at the end of the file of an instruction set. The features are named once:
//! those that the functions are compiled with are those that the CPU is checked for.

mod prompts;

pub(crate) use prompts::{by_bytes, by_pairs};

/// Names that the stamped functions use.
pub(crate) mod prelude {
    pub(crate) use crate::act::{ActRow, Form};
    pub(crate) use crate::formats::floats::{BF16, F16, F32};
    pub(crate) use crate::formats::{self, Float, Format, Visitor};
    pub(crate) use crate::generic::elementwise::{Activate, Combine};
    pub(crate) use crate::generic::{
        attention, batch, bytes, elementwise, gemm, gemv, pairs, probe, recurrence, routing,
    };
    pub(crate) use crate::kv::KvType;
    pub(crate) use crate::op::{Activation, Function};
    pub(crate) use crate::pack;
    pub(crate) use crate::stamp::{by_bytes, by_kv_type, by_pairs, nothing};
    pub(crate) use crate::table::{
        ActivationForm, CodeKernels, FloatKernels, Gemv, Packed, PromptAttention, PromptKernels,
        Table, UnpackedKernels,
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

/// Instantiates the outermost functions of one instruction set. They alone carry target features.
macro_rules! instantiate {
    ($module:ident, $simd:ty, floats $nt:literal, queries [$($nq:literal),*],
        prompts $prompts:ident $($width:literal)? $(, bytes $bytes:literal)?
        $(, features [$($feature:tt),+])? $(, and $detect:path)?) => {
        pub(crate) mod $module {
            use super::*;
            use $crate::stamp::prelude::*;

            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn pack_strip<F: Format>(rows: &[&[u8]], out: &mut [u8]) {
                // SAFETY: as gemv.
                unsafe { pack::strip::<$simd, F>(rows, out) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn pack_float_strip<E: Float>(rows: &[&[u8]], out: &mut [u8]) {
                pack::strip_float::<E>(rows, <$simd as Simd>::R, out);
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn gemv<F: Format, const N: usize, const M: usize>(
                strips: *const u8,
                k: usize,
                x: &ActRow,
                out: (*mut f32, usize),
            ) {
                // SAFETY: passed on from the caller, who took this function from the table of a CPU
                // that has it.
                unsafe { gemv::strips::<$simd, F, N, M>(strips, k, x, out) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn unpack<F: Format>(
                block: *const u8,
                blocks: usize,
                panel: *mut batch::Panel,
                strip: usize,
            ) {
                // SAFETY: as gemv.
                unsafe { batch::unpack::<$simd, F>(block, blocks, panel, strip) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn multiply_rows<const GROUP: usize, const MIN: bool>(a: &batch::Chunk) {
                // SAFETY: as gemv.
                unsafe { batch::multiply::<$simd, GROUP, MIN>(a) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn gemv_float<E: Float, const M: usize>(
                strip: *const u8,
                k: usize,
                x: (*const f32, usize),
                out: (*mut f32, usize),
            ) {
                // SAFETY: as gemv.
                unsafe { gemv::strip_float::<$simd, E, M>(strip, k, x, out) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn panel_float<E: Float>(strip: *const u8, k0: usize, k1: usize, out: *mut f32) {
                // SAFETY: as gemv.
                unsafe { gemm::panel_float::<$simd, E>(strip, k0, k1, out) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn quantize(x: *const f32, k: usize, out: &ActRow) {
                // SAFETY: as gemv.
                unsafe { gemv::quantize::<$simd>(x, k, out) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn pack_floats(
                x: *const f32,
                m: usize,
                k: usize,
                t: usize,
                width: usize,
                tile: *mut f32,
            ) {
                // SAFETY: as gemv.
                unsafe { gemm::pack_tokens(x, m, k, t, width, tile) }
            }
            $prompts!(kernels $simd, $($width)? $(, [$($feature),+])?);
            by_bytes!($simd, [$($bytes)?] $(, [$($feature),+])?);
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn tiles<const MS: usize>(a: &gemm::Tiles<'_>) {
                // SAFETY: as gemv.
                unsafe { gemm::tiles::<$simd, MS, $nt>(a) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn score<E: attention::Stored, const NQ: usize>(
                a: &mut attention::QueryRows<'_>,
                span: attention::Span,
            ) {
                // SAFETY: as gemv.
                unsafe { attention::score::<$simd, E, NQ>(a, span) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn weigh<E: attention::Stored, const NQ: usize>(
                a: &mut attention::QueryRows<'_>,
                span: attention::Span,
            ) {
                // SAFETY: as gemv.
                unsafe { attention::weigh_span::<$simd, E, NQ>(a, span) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn rms_norm(x: *const f32, weight: *const f32, eps: f32, n: usize, y: *mut f32) {
                // SAFETY: as gemv.
                unsafe { elementwise::rms_norm::<$simd>(x, weight, eps, n, y) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn layer_norm(
                x: *const f32,
                weight: *const f32,
                eps: f32,
                n: usize,
                y: *mut f32,
            ) {
                // SAFETY: as gemv.
                unsafe { elementwise::layer_norm::<$simd>(x, weight, eps, n, y) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn unary(f: Function, x: *const f32, n: usize, y: *mut f32) {
                // SAFETY: as gemv.
                unsafe { elementwise::unary::<$simd>(f, x, n, y) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn gate<A: Activate>(rows: &elementwise::Operands) {
                // SAFETY: as gemv.
                unsafe { elementwise::gate::<$simd, A>(rows) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn combine<C: Combine>(rows: &elementwise::Operands) {
                // SAFETY: as gemv.
                unsafe { elementwise::combine::<$simd, C>(rows) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn convolve(columns: &recurrence::Columns) {
                // SAFETY: as gemv.
                unsafe { recurrence::convolve::<$simd>(columns) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn linear_attention(lanes: &recurrence::Lanes) {
                // SAFETY: as gemv.
                unsafe { recurrence::linear_attention::<$simd>(lanes) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn softmax(x: *const f32, n: usize, y: *mut f32) {
                // SAFETY: as gemv.
                unsafe { routing::softmax::<$simd>(x, n, y) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn weighted_sum(parts: &routing::Parts) {
                // SAFETY: as gemv.
                unsafe { routing::weighted_sum::<$simd>(parts) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn read<const PREFETCH: bool>(p: *const f32, n: usize) -> f32 {
                // SAFETY: as gemv.
                unsafe { probe::read::<$simd, PREFETCH>(p, n) }
            }
            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn multiply<const ACCS: usize>(turns: usize) -> f32 {
                // SAFETY: as gemv.
                unsafe { probe::multiply::<$simd, ACCS>(turns) }
            }

            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn to_f16(x: *const f32, n: usize, y: *mut u16) {
                // SAFETY: as gemv.
                unsafe { elementwise::to_f16::<$simd>(x, n, y) }
            }

            $(#[target_feature($(enable = $feature),+)])?
            unsafe fn rotate(
                x: *const f32,
                cos: *const f32,
                sin: *const f32,
                n: usize,
                y: *mut f32,
            ) {
                // SAFETY: as gemv.
                unsafe { elementwise::rotate::<$simd>(x, cos, sin, n, y) }
            }

            static FLOATS: ActivationForm =
                ActivationForm {
                    form: Form::Tiles,
                    tile: $nt,
                    slice: gemm::KC,
                    bytes: 4,
                    narrow: true,
                    pack: pack_floats,
                };
            static FLOAT_ROWS: UnpackedKernels = UnpackedKernels {
                activations: &FLOATS,
                convert: None,
                tiles: [tiles::<1>, tiles::<2>],
            };

            /// Packs the functions of a format into its row of the table.
            struct Stamped;

            impl Visitor for Stamped {
                type Out = Packed;
                fn blocks<F: Format>(&self) -> Packed {
                    Packed {
                        pack: pack_strip::<F>,
                        gemv: Gemv::Codes(CodeKernels {
                            row: [gemv::<F, 1, 1>, gemv::<F, 2, 1>],
                            batch: batch::BatchKernels {
                                few: [gemv::<F, 2, 2>, gemv::<F, 2, 3>],
                                unpack: unpack::<F>,
                                multiply: match (F::GROUP, F::MIN) {
                                    (16, false) => multiply_rows::<16, false>,
                                    (16, true) => multiply_rows::<16, true>,
                                    (_, false) => multiply_rows::<32, false>,
                                    (_, true) => multiply_rows::<32, true>,
                                },
                                block: (F::K, F::BLOCK_BYTES * <$simd as Simd>::R),
                                offset: const { batch::offset::<$simd, F>() },
                            },
                            tiled: $prompts!(generated F),
                        }),
                        prompt: $prompts!(prompt F),
                        prompt_bytes: prompt_bytes::<F>(),
                    }
                }
                fn floats<E: Float>(&self) -> Packed {
                    Packed {
                        pack: pack_float_strip::<E>,
                        gemv: Gemv::Float(FloatKernels {
                            row: gemv_float::<E, 1>,
                            rows: gemv_float::<E, { gemv::float_rows::<$simd>() }>,
                            at_once: gemv::float_rows::<$simd>(),
                        }),
                        prompt: PromptKernels {
                            activations: &FLOATS,
                            panel: panel_float::<E>,
                            tiles: [tiles::<1>, tiles::<2>],
                            offset: 0,
                        },
                        prompt_bytes: None,
                    }
                }
            }

            fn detect() -> bool {
                true $($(&& $crate::stamp::detected!($feature))+)? $(&& $detect())?
            }

            pub(crate) static TABLE: Table = Table {
                detect,
                strip: <$simd as Simd>::R,
                packed: |ty| formats::visit(ty, &Stamped),
                float_rows: FLOAT_ROWS,
                quantized_rows: $prompts!(rows),
                quantize,
                enter: $prompts!(enter),
                leave: $prompts!(leave),
                queries: &[$($nq),*],
                attention: |rows, types| match rows {
                    $($nq => attention::SpanKernels {
                        keys: by_kv_type!(types.k, score, $nq),
                        values: by_kv_type!(types.v, weigh, $nq),
                    },)*
                    _ => unreachable!("{rows} query rows: not one of `queries`"),
                },
                prompt_attention: $prompts!(attention),
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
                softmax,
                weighted_sum,
                to_f16,
                rotate,
                read: [read::<false>, read::<true>],
                multiply: [multiply::<{ probe::FEW }>, multiply::<{ probe::MANY }>],
                busy_unit: $prompts!(busy),
                #[cfg(test)]
                agrees: $crate::simd::tests::agrees::<$simd>,
            };
        }
    };
}
pub(crate) use instantiate;
