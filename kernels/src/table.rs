//! Which kernel runs for (operation, format, instruction set): one table of functions per instruction set.

#[cfg(target_arch = "aarch64")]
use crate::aarch64::neon::{MixedDot, Neon, SignedDot, Widening};
use crate::act::ActRow;
use crate::formats::{self, Format};
use crate::generic::{attention, elementwise, gemm, gemv};
use crate::isa::Isa;
use crate::pack::Shape;
use crate::simd::{Portable, Simd};
use octavo_quant::TensorType;

/// The kernels of one packed weight format.
#[derive(Clone, Copy)]
pub(crate) struct Packed {
    /// `None`: float weights, `[k][R]`.
    pub(crate) shape: Option<Shape>,
    /// One strip times one row of activations.
    pub(crate) gemv: Gemv,
    /// Slice of a strip as floats.
    pub(crate) panel: unsafe fn(*const u8, usize, usize, *mut f32),
}

/// Generation kernels differ in what they read.
#[derive(Clone, Copy)]
pub(crate) enum Gemv {
    /// Integer activations.
    Codes(unsafe fn(*const u8, usize, &ActRow, *mut f32)),
    /// Activations as they are.
    Float(unsafe fn(*const u8, usize, *const f32, *mut f32)),
}

/// One run of `NQ` query rows over pages.
pub(crate) type AttentionRun = unsafe fn(&mut attention::Rows<'_>, usize);

/// Every kernel of one instruction set.
pub(crate) struct Table {
    pub(crate) isa: Isa,
    /// Rows of a strip.
    pub(crate) strip: usize,
    /// Tokens of a full tile.
    pub(crate) tile: usize,
    pub(crate) packed: fn(TensorType) -> Option<Packed>,
    pub(crate) quantize: unsafe fn(*const f32, usize, &ActRow),
    pub(crate) pack_tokens: unsafe fn(*const f32, usize, usize, usize, usize, *mut f32),
    /// One strip, and a pair of them.
    pub(crate) tiles: [unsafe fn(&gemm::Tiles); 2],
    /// Most query rows first: (rows, f16 pages, f32 pages).
    pub(crate) attention: &'static [(usize, AttentionRun, AttentionRun)],
    pub(crate) rms_norm: unsafe fn(*const f32, *const f32, f32, usize, *mut f32),
    pub(crate) swiglu: unsafe fn(*const f32, *const f32, usize, *mut f32),
    pub(crate) add: unsafe fn(*const f32, *const f32, usize, *mut f32),
}

/// The kernels of `isa`, which the caller got from [`Isa::available`].
pub(crate) fn table(isa: Isa) -> &'static Table {
    assert!(isa.is_available(), "kernels of {isa} asked for on a CPU without it");
    match isa {
        Isa::Scalar => &portable::TABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2::TABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &avx512::TABLE,
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
    assert_eq!(F::BLOCK_BYTES, F::TYPE.block_bytes(), "{}: packed blocks must not grow", F::TYPE);
    Some(Shape { ty: F::TYPE, k: F::K, meta: F::META, low: F::LOW, high: F::HIGH })
}

/// Stamps the outermost functions of one instruction set. They alone carry target features.
macro_rules! instantiate {
    ($module:ident, $isa:expr, $simd:ty, tile $nt:literal, queries [$($nq:literal),*] $(, features $features:literal)?) => {
        mod $module {
            use super::*;

            $(#[target_feature(enable = $features)])?
            unsafe fn gemv<F: Format>(strip: *const u8, k: usize, x: &ActRow, out: *mut f32) {
                // SAFETY: passed on from the caller, who took this function from the table of a CPU that has it.
                unsafe { gemv::strip::<$simd, F>(strip, k, x, out) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn gemv_float<E: formats::Float>(strip: *const u8, k: usize, x: *const f32, out: *mut f32) {
                // SAFETY: as gemv.
                unsafe { gemv::strip_float::<$simd, E>(strip, k, x, out) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn panel<F: Format>(strip: *const u8, k0: usize, k1: usize, out: *mut f32) {
                // SAFETY: as gemv.
                unsafe { gemm::panel::<$simd, F>(strip, k0, k1, out) }
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
            unsafe fn pack_tokens(x: *const f32, m: usize, k: usize, t: usize, width: usize, tile: *mut f32) {
                // SAFETY: as gemv.
                unsafe { gemm::pack_tokens(x, m, k, t, width, tile) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn tiles<const MS: usize>(a: &gemm::Tiles) {
                // SAFETY: as gemv.
                unsafe { gemm::tiles::<$simd, MS, $nt>(a) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn attend<E: formats::Float, const NQ: usize>(a: &mut attention::Rows<'_>, end: usize) {
                // SAFETY: as gemv.
                unsafe { attention::run::<$simd, E, NQ>(a, end) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn rms_norm(x: *const f32, weight: *const f32, eps: f32, n: usize, y: *mut f32) {
                // SAFETY: as gemv.
                unsafe { elementwise::rms_norm::<$simd>(x, weight, eps, n, y) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn swiglu(gate: *const f32, up: *const f32, n: usize, y: *mut f32) {
                // SAFETY: as gemv.
                unsafe { elementwise::swiglu::<$simd>(gate, up, n, y) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn add(a: *const f32, b: *const f32, n: usize, y: *mut f32) {
                // SAFETY: as gemv.
                unsafe { elementwise::add::<$simd>(a, b, n, y) }
            }

            fn codes<F: Format>() -> Packed {
                Packed { shape: shape::<F>(), gemv: Gemv::Codes(gemv::<F>), panel: panel::<F> }
            }
            fn float<E: formats::Float>() -> Packed {
                Packed { shape: None, gemv: Gemv::Float(gemv_float::<E>), panel: panel_float::<E> }
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
                    TensorType::Q4_K => codes::<formats::Q4_K>(),
                    TensorType::Q5_K => codes::<formats::Q5_K>(),
                    TensorType::Q6_K => codes::<formats::Q6_K>(),
                    _ => return None,
                })
            }

            pub(super) static TABLE: Table = Table {
                isa: $isa,
                strip: <$simd as Simd>::R,
                tile: $nt,
                packed,
                quantize,
                pack_tokens,
                tiles: [tiles::<1>, tiles::<2>],
                attention: &[$(($nq, attend::<formats::F16, $nq>, attend::<formats::F32, $nq>)),*],
                rms_norm,
                swiglu,
                add,
            };
        }
    };
}

instantiate!(portable, Isa::Scalar, Portable, tile 2, queries [2, 1]);
#[cfg(target_arch = "x86_64")]
instantiate!(avx2, Isa::Avx2, crate::x86::avx2::Avx2, tile 6, queries [4, 2, 1], features "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
instantiate!(avx512, Isa::Avx512, crate::x86::avx512::Avx512, tile 12, queries [8, 4, 2, 1],
    features "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");
// two strips of six tokens are 24 of the 32 registers
#[cfg(target_arch = "aarch64")]
instantiate!(neon, Isa::Neon, Neon<Widening>, tile 6, queries [8, 4, 2, 1], features "neon");
#[cfg(target_arch = "aarch64")]
instantiate!(neon_dot, Isa::NeonDot, Neon<SignedDot>, tile 6, queries [8, 4, 2, 1], features "neon,dotprod");
#[cfg(target_arch = "aarch64")]
instantiate!(neon_i8mm, Isa::NeonI8mm, Neon<MixedDot>, tile 6, queries [8, 4, 2, 1], features "neon,dotprod,i8mm");
