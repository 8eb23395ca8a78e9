//! Packed weight formats: the memory layout of a strip of `R` rows, and decoding of its codes and
//! scales.
//!
//! Every block format of ggml that is `w = scale * (code - offset) - min` over groups of 16 or 32,
//! or whose codes are indices into a table of sixteen values, is a few numbers and one function
//! here. A strip holds, block after block along k, for `R` rows together:
//!
//! ```text
//! meta   the block's scales, transposed so that R rows are neighbours   META   bytes a row
//! low    the low bits of the codes                                      LOW    bits a weight
//! high   the bits above them                                            HIGH   bits a weight
//! top    the bits above those                                           TOP    bits a weight
//! ```
//! In the bit planes the unit is a vector of `4 R` bytes: lane `r` has four consecutive k of row
//! `r`, so that one 4-byte dot product per lane needs no shuffles. 4-bit planes keep k-group `2j`
//! in the low and `2j+1` in the high nibbles of vector `j`; 1- and 2-bit planes keep the following
//! k-groups in ever higher bits of the same bytes. Nothing grows: a packed strip has exactly the
//! bytes of the rows in the file.
//!
//! A format is one row of a family's file, which defines all of it: the numbers and the scales that
//! kernels read, how both are decoded from a block of the file (`unpack`, `transpose`), and the
//! layout of its scales on the GPU. Everything else follows from the list at the end of that file.
#![allow(non_camel_case_types)] // ggml's own names

mod codes;
mod planes;

use crate::simd::Simd;
use codes::{eight, nibbles, nibbles_of_32, spread, spread_more, two_bits};
use octavo_quant::TensorType;
use planes::{largest, plane_codes};

/// One packed format. `R` is always `S::R`.
pub trait Format {
    const TYPE: TensorType;
    /// Weights in a block.
    const K: usize;
    /// Bytes of scales per row and block.
    const META: usize;
    /// Bits in the low plane: 0, 4 or 8.
    const LOW: usize;
    /// Bits in the high plane: 0, 1 or 2.
    const HIGH: usize;
    /// Bits in the top plane: 0 or 1.
    const TOP: usize;
    /// Values of the low plane's codes; `None` if the codes are the values.
    const TABLE: Option<[u8; 16]>;
    /// Weights that share a scale: 16 or 32.
    const GROUP: usize;
    /// Subtracted from every code.
    const OFFSET: i32;
    /// Whether a minimum is subtracted from `scale * code`.
    const MIN: bool;
    /// Layout of its scales for the GPU's kernels; `None` if there are no such kernels.
    const GPU: Option<GpuScales>;
    /// Bytes of a row's codes in a block: of its planes, or of its words if it has no planes.
    const CODE_BYTES: usize = Self::K * (Self::LOW + Self::HIGH + Self::TOP) / 8;
    /// Scales that are whole numbers times a unit of the block; `None` if they are not.
    const FOLD: Option<Fold> = None;
    /// F16 scales of a block, read once per block.
    type BlockScales<S: Simd>: Copy + AsRef<[S::F]>;

    /// The codes of one block of a row as it lies in the file, in the order of k, unsigned; its
    /// words, if it has no planes.
    fn unpack(raw: &[u8], codes: &mut [u8]);
    /// Writes the scales of one block of a row as it lies in the file to where
    /// [`Format::block_scales`] and [`Format::scales`] read them.
    fn transpose(raw: &[u8], meta: &mut Transposed<'_>);

    /// # Safety
    /// `meta` points to `META * S::R` readable bytes; see simd.rs for the instruction set.
    unsafe fn block_scales<S: Simd>(meta: *const u8) -> Self::BlockScales<S>;
    /// Scale and minimum of group `g` of the block.
    ///
    /// # Safety
    /// As [`Format::block_scales`].
    unsafe fn scales<S: Simd>(
        block_scales: Self::BlockScales<S>,
        meta: *const u8,
        g: usize,
    ) -> (S::F, S::F);

    /// Whether a signed byte holds every code: none is above 127.
    const FITS_I8: bool = Self::LARGEST < 128;

    /// The largest code.
    const LARGEST: u8 = largest(Self::TABLE, Self::LOW + Self::HIGH + Self::TOP);

    /// Bytes of one block of one row, packed or not.
    const BLOCK_BYTES: usize = Self::META + Self::CODE_BYTES;

    /// Codes of 16 consecutive k: half `H` (0 or 1) of the block's 32-group `g`, four k to a
    /// vector.
    ///
    /// # Safety
    /// `block` points to `BLOCK_BYTES * S::R` readable bytes and `g < K / 32`.
    #[inline(always)]
    unsafe fn codes<S: Simd, const H: usize>(block: *const u8, g: usize) -> [S::I; 4] {
        // SAFETY: passed on.
        unsafe { plane_codes::<S, Self, H>(block, g) }
    }
}

/// Whole numbers by which codes may be multiplied in place of their scales.
#[derive(Clone, Copy)]
pub struct Fold {
    /// The largest of them, without sign.
    pub largest: i32,
    /// The unit is this times the first block scale: a power of two.
    pub unit: f32,
}

/// Defines a format: its numbers, the places of the f16 vectors its blocks start with (its block
/// scales), how its scales are folded into codes if they can be ([`Fold`]), the body of
/// [`Format::scales`], which has these, the block and the group's number, and may read `meta` bytes
/// a row; then the decoding of a block of the file, and the GPU's scales. A format whose codes are
/// not those of its planes has a body of [`Format::codes`], with the bytes of a row's codes in a
/// block and the largest code.
macro_rules! format {
    ($(#[$doc:meta])* $name:ident: $k:literal weights, meta $meta:literal, low $low:literal,
        high $high:literal, top $top:literal, group $group:literal, offset $offset:literal,
        min $min:literal, table $table:expr,
        block_scales [$($half:literal),*],
        $(fold up to $fold:literal times $unit:literal,)?
        scales $simd:ident($block_scales:pat, $at:ident, $g:pat) $scales:block
        unpack($raw:ident, $codes:ident) $unpack:block
        transpose($block:ident, $to:ident) $transpose:block
        gpu $gpu:expr
        $(, codes $of_codes:ident, $half_of:ident($code_block:ident, $code_group:ident)
            in $code_bytes:literal bytes, up to $largest:literal $body:block)?) => {
        $(#[$doc])*
        pub struct $name;

        impl Format for $name {
            const TYPE: TensorType = TensorType::$name;
            const K: usize = $k;
            const META: usize = $meta;
            const LOW: usize = $low;
            const HIGH: usize = $high;
            const TOP: usize = $top;
            const TABLE: Option<[u8; 16]> = $table;
            const GROUP: usize = $group;
            const OFFSET: i32 = $offset;
            const MIN: bool = $min;
            const GPU: Option<GpuScales> = $gpu;
            $(const FOLD: Option<Fold> = Some(Fold { largest: $fold, unit: $unit });)?
            $(
                const CODE_BYTES: usize = $code_bytes;
                const LARGEST: u8 = $largest;
                #[inline(always)]
                unsafe fn codes<$of_codes: Simd, const $half_of: usize>(
                    $code_block: *const u8,
                    $code_group: usize,
                ) -> [$of_codes::I; 4] {
                    // SAFETY: with g < K / 32 every read stays inside the block.
                    unsafe { $body }
                }
            )?
            type BlockScales<S: Simd> = [S::F; <[usize]>::len(&[$($half),*])];

            #[inline(always)]
            fn unpack($raw: &[u8], $codes: &mut [u8]) $unpack

            #[inline(always)]
            fn transpose($block: &[u8], $to: &mut Transposed<'_>) $transpose

            #[inline(always)]
            unsafe fn block_scales<S: Simd>(_meta: *const u8) -> Self::BlockScales<S> {
                // SAFETY: rows of R halves start the block, as many as it has block scales.
                [$(unsafe { S::load_f16(_meta.add(2 * $half * S::R).cast()) }),*]
            }
            #[inline(always)]
            unsafe fn scales<$simd: Simd>(
                $block_scales: Self::BlockScales<$simd>,
                $at: *const u8,
                $g: usize,
            ) -> ($simd::F, $simd::F) {
                // SAFETY: with g < K / GROUP every read stays inside the META * R bytes the block
                // starts with.
                unsafe { $scales }
            }
        }
    };
}

/// Ends a family's file: its formats, of which [`visit`] finds the one of a type.
macro_rules! family {
    ($($row:ident($name:ident)),*) => {
        /// The rows of this family.
        pub(super) static ROWS: &[FormatInfo] = &[$(FormatInfo::$row::<$name>()),*];

        /// Visits the format of `ty`, if it is one of this family.
        pub(super) fn visit<V: Visitor>(ty: TensorType, visitor: &V) -> Option<V::Out> {
            match ty {
                $(TensorType::$name => Some(visitor.$row::<$name>()),)*
                _ => None,
            }
        }
    };
}

/// The families, each a file.
macro_rules! families {
    ($($family:ident),*) => {
        $(pub mod $family;)*

        static FAMILIES: [&[FormatInfo]; [$(stringify!($family)),*].len()] = [$($family::ROWS),*];

        /// Visits the packed form of `ty`, if it has one.
        pub fn visit<V: Visitor>(ty: TensorType, visitor: &V) -> Option<V::Out> {
            None$(.or_else(|| $family::visit(ty, visitor)))*
        }
    };
}

families!(floats, legacy, kquants, iq4, fp4, awq, indexed, ternary);

/// A generic function over formats: it needs a format's type at compile time.
pub trait Visitor {
    type Out;
    fn blocks<F: Format>(&self) -> Self::Out;
    /// A format that takes long to decode: kernels of several rows and of prompts read its codes
    /// from a panel, to which one function decodes them.
    fn decoded<F: Format>(&self) -> Self::Out;
    fn floats<E: Float>(&self) -> Self::Out;
}

/// A plain float type, packed as `[k][R]`.
pub trait Float {
    const TYPE: TensorType;
    const BYTES: usize;
    /// Significant bits.
    const BITS: usize;
    /// # Safety
    /// `S::R` elements are readable at `p`.
    unsafe fn load<S: Simd>(p: *const u8) -> S::F;
}

/// Properties of a format whose type is known only at run time, as [`Format`] describes them.
pub struct FormatInfo {
    pub ty: TensorType,
    pub weights: Weights,
}

/// The layout of a type's weights in a strip.
pub enum Weights {
    /// Plain floats, as `[k][R]`.
    Floats,
    /// Codes in bit planes.
    Planes(Blocks),
    /// Codes in words.
    Words(Blocks),
}

/// The numbers of a [`Format`], and the functions that decode a block of the file.
pub struct Blocks {
    pub ty: TensorType,
    pub k: usize,
    pub meta: usize,
    pub low: usize,
    pub high: usize,
    pub top: usize,
    pub offset: i32,
    pub min: bool,
    /// Bytes that `unpack` writes: a code each, or words.
    pub unpacked_bytes: usize,
    pub unpack: fn(&[u8], &mut [u8]),
    pub transpose: fn(&[u8], &mut Transposed<'_>),
    pub gpu: Option<GpuScales>,
}

impl FormatInfo {
    const fn blocks<F: Format>() -> FormatInfo {
        FormatInfo {
            ty: F::TYPE,
            weights: Weights::Planes(Blocks::of::<F>()),
        }
    }

    const fn decoded<F: Format>() -> FormatInfo {
        FormatInfo {
            ty: F::TYPE,
            weights: if F::LOW + F::HIGH + F::TOP == 0 {
                Weights::Words(Blocks::of::<F>())
            } else {
                Weights::Planes(Blocks::of::<F>())
            },
        }
    }

    const fn floats<E: Float>() -> FormatInfo {
        FormatInfo {
            ty: E::TYPE,
            weights: Weights::Floats,
        }
    }

    /// Its bit planes; `None` if it has none.
    pub fn planes(&self) -> Option<&Blocks> {
        match &self.weights {
            Weights::Planes(blocks) => Some(blocks),
            Weights::Floats | Weights::Words(_) => None,
        }
    }

    /// Its numbers, with planes or without; `None` for floats.
    pub fn block_format(&self) -> Option<&Blocks> {
        match &self.weights {
            Weights::Planes(blocks) | Weights::Words(blocks) => Some(blocks),
            Weights::Floats => None,
        }
    }
}

impl Blocks {
    pub const fn of<F: Format>() -> Blocks {
        Blocks {
            ty: F::TYPE,
            k: F::K,
            meta: F::META,
            low: F::LOW,
            high: F::HIGH,
            top: F::TOP,
            offset: F::OFFSET,
            min: F::MIN,
            unpacked_bytes: match F::LOW + F::HIGH + F::TOP {
                0 => F::CODE_BYTES,
                _ => F::K,
            },
            unpack: F::unpack,
            transpose: F::transpose,
            gpu: F::GPU,
        }
    }
}

/// Layout of a format's scales for the GPU's kernels: those of `kernels/cuda/formats.cuh`, in the
/// layout of `kernels/src/cuda/pack.rs`.
pub struct GpuScales {
    /// The type whose kernels read it: itself, unless both lie in memory alike.
    pub kernels: TensorType,
    /// The codes of a block.
    pub codes: GpuCodes,
    /// Bytes of scales for each row and 32 columns.
    pub bytes: usize,
    /// Writes them, from a block as it lies in the file: of its columns from `32 u` on, the block
    /// being number `which` of those that share 256 columns.
    pub of: fn(raw: &[u8], u: usize, which: usize, out: &mut [u8]),
    /// Bytes of the halves of a block that multiply its scales, or are its scales.
    pub super_bytes: usize,
    /// Writes them, from a block as it lies in the file.
    pub supers: fn(raw: &[u8], out: &mut [u8]),
}

/// The codes that the GPU's kernels read.
pub enum GpuCodes {
    /// Those of [`Format::unpack`]: codes of its planes, or its words.
    Own,
    /// Codes of two bits, which this writes from a block as it lies in the file, in the order of k.
    TwoBits(fn(raw: &[u8], codes: &mut [u8])),
}

impl GpuScales {
    /// Scales that are the first `bytes` bytes of a block of 32, which has no others.
    const fn first(ty: TensorType, bytes: usize) -> Option<GpuScales> {
        Some(GpuScales {
            kernels: ty,
            codes: GpuCodes::Own,
            bytes,
            of: |raw, _, _, out| {
                let n = out.len();
                out.copy_from_slice(&raw[..n]);
            },
            super_bytes: 0,
            supers: |_, _| {},
        })
    }
}

/// All rows.
pub fn rows() -> impl Iterator<Item = &'static FormatInfo> {
    FAMILIES.into_iter().flatten()
}

/// The row of a type; `None` if it has no packed form.
pub fn row(ty: TensorType) -> Option<&'static FormatInfo> {
    rows().find(|row| row.ty == ty)
}

/// The types that have a packed form on CPUs.
pub fn packed_types() -> impl Iterator<Item = TensorType> {
    rows().map(|row| row.ty)
}

/// Whether the packed form of a type subtracts a minimum from scale times code. Both are larger
/// than their difference, and so are their rounding errors.
pub fn has_minimum(ty: TensorType) -> bool {
    row(ty).is_some_and(|row| row.planes().is_some_and(|blocks| blocks.min))
}

/// Row `i` of the scales of `r` rows: rows are neighbours.
pub struct Transposed<'a> {
    pub meta: &'a mut [u8],
    pub i: usize,
    pub r: usize,
}

impl Transposed<'_> {
    /// Writes a half float; `at` rows of halves precede it.
    #[inline(always)]
    fn half(&mut self, at: usize, half: &[u8]) {
        let place = (at * self.r + self.i) * 2;
        self.meta[place..place + 2].copy_from_slice(half);
    }

    /// Writes bytes; `at` rows of bytes precede the first.
    #[inline(always)]
    fn bytes(&mut self, at: usize, bytes: &[u8]) {
        for (g, byte) in bytes.iter().enumerate() {
            *self.byte(at + g) = *byte;
        }
    }

    /// The byte that `at` rows of bytes precede.
    #[inline(always)]
    fn byte(&mut self, at: usize) -> &mut u8 {
        &mut self.meta[at * self.r + self.i]
    }
}

/// The scale, less 32, whose lower four and upper two bits are the lowest of `low` and `high`.
#[inline(always)]
unsafe fn six_bits<S: Simd>(low: S::I, high: S::I) -> S::F {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        let scale = S::or(
            S::and(low, S::iset1(15)),
            S::shl(S::and(high, S::iset1(3)), 4),
        );
        S::to_f(S::isub(scale, S::iset1(32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_blocks_do_not_grow_and_every_type_is_found_once() {
        struct Sizes;
        impl Visitor for Sizes {
            type Out = (TensorType, usize, usize);
            fn blocks<F: Format>(&self) -> Self::Out {
                (F::TYPE, F::K, F::BLOCK_BYTES)
            }
            fn decoded<F: Format>(&self) -> Self::Out {
                self.blocks::<F>()
            }
            fn floats<E: Float>(&self) -> Self::Out {
                (E::TYPE, 1, E::BYTES)
            }
        }
        for ty in TensorType::all().chain(TensorType::AWQ) {
            let rows = rows().filter(|row| row.ty == ty).count();
            let sizes = visit(ty, &Sizes);
            assert_eq!(rows, usize::from(sizes.is_some()), "{ty}");
            if let Some(sizes) = sizes {
                assert_eq!(sizes, (ty, ty.block_len(), ty.block_bytes()));
            }
        }
    }
}
