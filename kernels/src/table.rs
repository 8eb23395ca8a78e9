//! Which kernel runs for (operation, format, instruction set): one table of functions per
//! instruction set.

use crate::act::ActRow;
use crate::formats::{self, Format};
use crate::generic::elementwise::Activate;
use crate::generic::{attention, elementwise, gemm, gemv, pairs};
use crate::isa::Isa;
use crate::kv::KvType;
use crate::matrix::Reads;
use crate::op::Activation;
use crate::pack::Shape;
use crate::probe;
use crate::simd::{Portable, Simd};
use octavo_quant::TensorType;

/// The kernels of one packed weight format.
#[derive(Clone, Copy)]
pub(crate) struct Packed {
    /// `None`: float weights, `[k][R]`.
    pub(crate) shape: Option<Shape>,
    /// One strip, or a pair of them, times one row of activations.
    pub(crate) gemv: Gemv,
    /// Many rows of activations.
    pub(crate) prompt: Prompt,
}

/// How prompts are multiplied with one weight format.
#[derive(Clone, Copy)]
pub(crate) struct Prompt {
    /// What activations are brought into.
    pub(crate) tokens: &'static Tokens,
    /// Slice of a strip as a panel.
    pub(crate) panel: unsafe fn(*const u8, usize, usize, *mut f32),
    /// One strip, and a pair of them, against all tokens.
    pub(crate) tiles: [unsafe fn(&gemm::Tiles<'_>); 2],
}

/// A form of prompt activations.
pub(crate) struct Tokens {
    pub(crate) form: Reads,
    /// Tokens of a full tile.
    pub(crate) tile: usize,
    /// k of a panel; a multiple of every block length.
    pub(crate) slice: usize,
    /// Bytes of a tile for each value, and of a panel for each weight.
    pub(crate) bytes: usize,
    /// Narrower tiles for the last tokens.
    pub(crate) narrow: bool,
    pub(crate) pack: unsafe fn(*const f32, usize, usize, usize, usize, *mut f32),
}

/// How weights are multiplied that have no packed form: their rows become a panel of floats.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) tokens: &'static Tokens,
    /// From `[kc][R]` floats to the panel, if that is another form.
    pub(crate) convert: Option<unsafe fn(*const f32, usize, *mut f32)>,
    pub(crate) tiles: [unsafe fn(&gemm::Tiles<'_>); 2],
}

/// Generation kernels differ in what they read.
#[derive(Clone, Copy)]
pub(crate) enum Gemv {
    /// Integer activations.
    Codes([unsafe fn(*const u8, usize, &ActRow, *mut f32); 2]),
    /// Activations as they are.
    Float(unsafe fn(*const u8, usize, *const f32, *mut f32)),
}

/// Rows of the widest strip.
pub(crate) const MAX_R: usize = 16;

/// Attention of prompts on a matrix unit.
pub(crate) struct Unit {
    /// Whether it takes heads of so many values.
    pub(crate) takes: fn(usize) -> bool,
    /// Bytes of scratch, for heads of so many values.
    pub(crate) scratch: fn(usize) -> usize,
    /// By [`KvType`].
    pub(crate) attend: fn(KvType) -> unsafe fn(&attention::Block<'_>, *mut u8),
    /// Measures arithmetic, and the multiply-adds of a turn of it.
    pub(crate) busy: (unsafe fn(usize), usize),
}

/// One run of `NQ` query rows over pages.
pub(crate) type AttentionRun = unsafe fn(&mut attention::Rows<'_>, usize);

/// Every kernel of one instruction set.
pub(crate) struct Table {
    pub(crate) isa: Isa,
    /// Rows of a strip.
    pub(crate) strip: usize,
    pub(crate) packed: fn(TensorType) -> Option<Packed>,
    /// Weights read as floats, whatever their type.
    pub(crate) float_rows: Rows,
    /// Quantized weights without a packed form, for prompts.
    pub(crate) quantized_rows: Rows,
    pub(crate) quantize: unsafe fn(*const f32, usize, &ActRow),
    /// Sets the calling thread up before its first kernel of a step, and tidies up after the last.
    pub(crate) enter: unsafe fn(),
    pub(crate) leave: unsafe fn(),
    /// Query rows taken at a time, most first.
    pub(crate) queries: &'static [usize],
    /// For so many query rows, one of `queries`, of pages of a type.
    pub(crate) attention: fn(usize, KvType) -> AttentionRun,
    /// Instead of the former, for prompts.
    pub(crate) unit: Option<Unit>,
    pub(crate) rms_norm: unsafe fn(*const f32, *const f32, f32, usize, *mut f32),
    /// Of an activation.
    pub(crate) gate: fn(Activation) -> unsafe fn(&elementwise::Operands),
    pub(crate) add: unsafe fn(&elementwise::Operands),
    pub(crate) to_f16: unsafe fn(*const f32, usize, *mut u16),
    pub(crate) rotate: unsafe fn(*const f32, *const f32, *const f32, usize, *mut f32),
    /// Measures memory: without and with prefetch.
    pub(crate) read: [unsafe fn(*const f32, usize) -> f32; 2],
    /// Measures arithmetic: with few and with many accumulators.
    pub(crate) multiply: [unsafe fn(usize) -> f32; 2],
}

/// The kernels of `isa`, which the caller got from [`Isa::available`].
pub(crate) fn table(isa: Isa) -> &'static Table {
    assert!(
        isa.is_available(),
        "kernels of {isa} asked for on a CPU without it"
    );
    match isa {
        Isa::Scalar => &portable::TABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2::TABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => &avxvnni::TABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &avx512::TABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => &amx::TABLE,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => &neon::TABLE,
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot => &neon_dot::TABLE,
        #[cfg(target_arch = "aarch64")]
        Isa::NeonI8mm => &neon_i8mm::TABLE,
        other => unreachable!("{other} is never available here"),
    }
}

fn shape<F: Format>() -> Option<Shape> {
    assert_eq!(
        F::BLOCK_BYTES,
        F::TYPE.block_bytes(),
        "{}: packed blocks must not grow",
        F::TYPE
    );
    Some(Shape {
        ty: F::TYPE,
        k: F::K,
        meta: F::META,
        low: F::LOW,
        high: F::HIGH,
        top: F::TOP,
    })
}

/// What a thread does before and after a step where nothing needs doing.
unsafe fn nothing() {}

/// Quantized prompts in 16-bit integers: what vectors do best.
macro_rules! by_pairs {
    (kernels $simd:ty, $width:literal $(, $features:literal)?) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn pack_pairs(x: *const f32, m: usize, k: usize, t: usize, width: usize, tile: *mut f32) {
            // SAFETY: as gemv.
            unsafe { pairs::pack_tokens::<$simd>(x, m, k, t, width, tile) }
        }
        $(#[target_feature(enable = $features)])?
        unsafe fn pair_panel<F: Format>(strip: *const u8, k0: usize, k1: usize, out: *mut f32) {
            // SAFETY: as gemv.
            unsafe { pairs::panel::<$simd, F>(strip, k0, k1, out) }
        }
        $(#[target_feature(enable = $features)])?
        unsafe fn pair_tiles<const GROUP: usize, const MIN: bool, const MS: usize>(a: &gemm::Tiles<'_>) {
            // SAFETY: as gemv.
            unsafe { pairs::tiles::<$simd, GROUP, MIN, MS, $width>(a) }
        }
        static PAIRS: Tokens =
            Tokens { form: Reads::Pairs, tile: $width, slice: gemm::KC, bytes: 4, narrow: true, pack: pack_pairs };
    };
    (prompt $format:ident) => {
        Prompt {
            tokens: &PAIRS,
            panel: pair_panel::<$format>,
            tiles: match ($format::GROUP, $format::MIN) {
                (16, false) => [pair_tiles::<16, false, 1>, pair_tiles::<16, false, 2>],
                (16, true) => [pair_tiles::<16, true, 1>, pair_tiles::<16, true, 2>],
                (_, false) => [pair_tiles::<32, false, 1>, pair_tiles::<32, false, 2>],
                (_, true) => [pair_tiles::<32, true, 1>, pair_tiles::<32, true, 2>],
            },
        }
    };
    (rows) => {
        FLOAT_ROWS
    };
    (attention) => {
        None
    };
    ($enter_or_leave:ident) => {
        nothing
    };
}

/// Quantized prompts in bf16 on the matrix unit.
#[cfg(target_arch = "x86_64")]
macro_rules! by_tiles {
    (kernels $($rest:tt)*) => {};
    (prompt $format:ident) => {
        Prompt {
            tokens: &unit::BF16,
            panel: unit::panel::<$format>,
            tiles: [unit::tiles_bf16::<1>, unit::tiles_bf16::<2>],
        }
    };
    (rows) => {
        Rows {
            tokens: &unit::BF16,
            convert: Some(unit::narrow),
            tiles: [unit::tiles_bf16::<1>, unit::tiles_bf16::<2>],
        }
    };
    (attention) => {
        Some(Unit {
            takes: unit_attention::takes,
            scratch: unit_attention::scratch_bytes,
            attend: |ty| match ty {
                KvType::F16 => unit_attention::attend::<formats::F16>,
                KvType::F32 => unit_attention::attend::<formats::F32>,
                KvType::Bf16 => unit_attention::attend::<formats::BF16>,
                KvType::Q8_0 => unit_attention::attend::<attention::Q8>,
            },
            busy: (unit::busy, unit::BUSY),
        })
    };
    (enter) => {
        unit::configure
    };
    (leave) => {
        unit::release
    };
}

/// Stamps the outermost functions of one instruction set. They alone carry target features.
macro_rules! instantiate {
    ($module:ident, $isa:expr, $simd:ty, floats $nt:literal, queries [$($nq:literal),*],
        prompts $prompts:ident $($width:literal)? $(, features $features:literal)?) => {
        mod $module {
            use super::*;

            $(#[target_feature(enable = $features)])?
            unsafe fn gemv<F: Format, const N: usize>(strips: *const u8, k: usize, x: &ActRow, out: *mut f32) {
                // SAFETY: passed on from the caller, who took this function from the table of a CPU
                // that has it.
                unsafe { gemv::strips::<$simd, F, N>(strips, k, x, out) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn gemv_float<E: formats::Float>(strip: *const u8, k: usize, x: *const f32, out: *mut f32) {
                // SAFETY: as gemv.
                unsafe { gemv::strip_float::<$simd, E>(strip, k, x, out) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn panel_float<E: formats::Float>(strip: *const u8, k0: usize, k1: usize, out: *mut f32) {
                // SAFETY: as gemv.
                unsafe { gemm::panel_float::<$simd, E>(strip, k0, k1, out) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn quantize(x: *const f32, k: usize, out: &ActRow) {
                // SAFETY: as gemv.
                unsafe { gemv::quantize::<$simd>(x, k, out) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn pack_floats(x: *const f32, m: usize, k: usize, t: usize, width: usize, tile: *mut f32) {
                // SAFETY: as gemv.
                unsafe { gemm::pack_tokens(x, m, k, t, width, tile) }
            }
            $prompts!(kernels $simd, $($width)? $(, $features)?);
            $(#[target_feature(enable = $features)])?
            unsafe fn tiles<const MS: usize>(a: &gemm::Tiles<'_>) {
                // SAFETY: as gemv.
                unsafe { gemm::tiles::<$simd, MS, $nt>(a) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn attend<E: attention::Stored, const NQ: usize>(a: &mut attention::Rows<'_>, end: usize) {
                // SAFETY: as gemv.
                unsafe { attention::run::<$simd, E, NQ>(a, end) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn rms_norm(x: *const f32, weight: *const f32, eps: f32, n: usize, y: *mut f32) {
                // SAFETY: as gemv.
                unsafe { elementwise::rms_norm::<$simd>(x, weight, eps, n, y) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn gate<A: Activate>(rows: &elementwise::Operands) {
                // SAFETY: as gemv.
                unsafe { elementwise::gate::<$simd, A>(rows) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn add(rows: &elementwise::Operands) {
                // SAFETY: as gemv.
                unsafe { elementwise::add::<$simd>(rows) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn read<const PREFETCH: bool>(p: *const f32, n: usize) -> f32 {
                // SAFETY: as gemv.
                unsafe { probe::read::<$simd, PREFETCH>(p, n) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn multiply<const ACCS: usize>(turns: usize) -> f32 {
                // SAFETY: as gemv.
                unsafe { probe::multiply::<$simd, ACCS>(turns) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn to_f16(x: *const f32, n: usize, y: *mut u16) {
                // SAFETY: as gemv.
                unsafe { elementwise::to_f16::<$simd>(x, n, y) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn rotate(x: *const f32, cos: *const f32, sin: *const f32, n: usize, y: *mut f32) {
                // SAFETY: as gemv.
                unsafe { elementwise::rotate::<$simd>(x, cos, sin, n, y) }
            }

            static FLOATS: Tokens =
                Tokens { form: Reads::Tiles, tile: $nt, slice: gemm::KC, bytes: 4, narrow: true, pack: pack_floats };
            static FLOAT_ROWS: Rows = Rows { tokens: &FLOATS, convert: None, tiles: [tiles::<1>, tiles::<2>] };

            fn codes<F: Format>() -> Packed {
                Packed { shape: shape::<F>(), gemv: Gemv::Codes([gemv::<F, 1>, gemv::<F, 2>]), prompt: $prompts!(prompt F) }
            }
            fn float<E: formats::Float>() -> Packed {
                let prompt = Prompt { tokens: &FLOATS, panel: panel_float::<E>, tiles: [tiles::<1>, tiles::<2>] };
                Packed { shape: None, gemv: Gemv::Float(gemv_float::<E>), prompt }
            }
            fn packed(ty: TensorType) -> Option<Packed> {
                Some(match ty {
                    TensorType::F32 => float::<formats::F32>(),
                    TensorType::F16 => float::<formats::F16>(),
                    TensorType::BF16 => float::<formats::BF16>(),
                    TensorType::Q4_0 => codes::<formats::Q4_0>(),
                    TensorType::Q4_1 => codes::<formats::Q4_1>(),
                    TensorType::Q5_0 => codes::<formats::Q5_0>(),
                    TensorType::Q5_1 => codes::<formats::Q5_1>(),
                    TensorType::Q8_0 => codes::<formats::Q8_0>(),
                    TensorType::Q2_K => codes::<formats::Q2_K>(),
                    TensorType::Q3_K => codes::<formats::Q3_K>(),
                    TensorType::IQ4_NL => codes::<formats::IQ4_NL>(),
                    TensorType::IQ4_XS => codes::<formats::IQ4_XS>(),
                    TensorType::MXFP4 => codes::<formats::MXFP4>(),
                    TensorType::Q4_K => codes::<formats::Q4_K>(),
                    TensorType::Q5_K => codes::<formats::Q5_K>(),
                    TensorType::Q6_K => codes::<formats::Q6_K>(),
                    TensorType::AWQ_G32 => codes::<formats::AWQ_G32>(),
                    TensorType::AWQ_G64 => codes::<formats::AWQ_G64>(),
                    TensorType::AWQ_G128 => codes::<formats::AWQ_G128>(),
                    _ => return None,
                })
            }

            pub(super) static TABLE: Table = Table {
                isa: $isa,
                strip: <$simd as Simd>::R,
                packed,
                float_rows: FLOAT_ROWS,
                quantized_rows: $prompts!(rows),
                quantize,
                enter: $prompts!(enter),
                leave: $prompts!(leave),
                queries: &[$($nq),*],
                attention: |rows, ty| match (rows, ty) {
                    $(($nq, KvType::F16) => attend::<formats::F16, $nq>,
                    ($nq, KvType::F32) => attend::<formats::F32, $nq>,
                    ($nq, KvType::Bf16) => attend::<formats::BF16, $nq>,
                    ($nq, KvType::Q8_0) => attend::<attention::Q8, $nq>,)*
                    _ => unreachable!("{rows} query rows: not one of `queries`"),
                },
                unit: $prompts!(attention),
                rms_norm,
                gate: |act| match act {
                    Activation::Silu => gate::<elementwise::Silu>,
                },
                add,
                to_f16,
                rotate,
                read: [read::<false>, read::<true>],
                multiply: [multiply::<{ probe::FEW }>, multiply::<{ probe::MANY }>],
            };
        }
    };
}

instantiate!(portable, Isa::Scalar, Portable, floats 2, queries [2, 1], prompts by_pairs 2);
#[cfg(target_arch = "x86_64")]
use crate::x86::{amx as unit, amx_attention as unit_attention, avx2::Avx2, avx512::Avx512};
#[cfg(target_arch = "x86_64")]
instantiate!(avx2, Isa::Avx2, Avx2<false>, floats 6, queries [4, 2, 1], prompts by_pairs 4,
    features "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
instantiate!(avxvnni, Isa::AvxVnni, Avx2<true>, floats 6, queries [4, 2, 1], prompts by_pairs 5,
    features "avx2,fma,f16c,avxvnni");
#[cfg(target_arch = "x86_64")]
instantiate!(avx512, Isa::Avx512, Avx512, floats 12, queries [8, 4, 2, 1], prompts by_pairs 10,
    features "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");
#[cfg(target_arch = "x86_64")]
instantiate!(amx, Isa::Amx, Avx512, floats 12, queries [8, 4, 2, 1], prompts by_tiles,
    features "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");
// two strips of six tokens are 24 of the 32 registers; weights and tokens take the others
#[cfg(target_arch = "aarch64")]
use crate::aarch64::neon::{MixedDot, Neon, SignedDot, Widening};
#[cfg(target_arch = "aarch64")]
instantiate!(neon, Isa::Neon, Neon<Widening>, floats 6, queries [8, 4, 2, 1], prompts by_pairs 6, features "neon");
#[cfg(target_arch = "aarch64")]
instantiate!(neon_dot, Isa::NeonDot, Neon<SignedDot>, floats 6, queries [8, 4, 2, 1], prompts by_pairs 6,
    features "neon,dotprod");
#[cfg(target_arch = "aarch64")]
instantiate!(neon_i8mm, Isa::NeonI8mm, Neon<MixedDot>, floats 6, queries [8, 4, 2, 1], prompts by_pairs 6,
    features "neon,dotprod,i8mm");
