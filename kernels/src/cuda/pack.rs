//! Repacks weight rows from the file's layout to the planes that the kernels read; the layout is
//! described in `cuda/formats.cuh`.
//!
//! Only scales grow: those of K-quants from 6 to 8 bits (by 3 % of a Q4_K tensor), because
//! unpacking them in every thread would cost more than reading them, and those of two units or more
//! that have one in the file (by 11 % of a Q2_0 tensor, a third of a Q1_0 tensor). Ternary digits
//! take two bits each (TQ1_0 grows by 22 %). No value changes.

use super::Ptr;
use super::params::Matrix;
use octavo_quant::TensorType;
use octavo_simd::formats::{self, Blocks, GpuCodes, GpuScales};

/// Columns per unit.
pub const UNIT: usize = 32;
/// Rows per strip.
pub const STRIP: usize = 4;
/// Units that share a super scale, which multiplies their scales.
const SUPER_UNITS: usize = 8;

/// Plane sizes of a format, as in `cuda/formats.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Bits per weight in the low plane.
    low: usize,
    /// Bits per weight in the high plane.
    high: usize,
    /// Bytes of scales per row and unit.
    scales: usize,
    /// Bytes of super scales per row and 8 units.
    supers: usize,
}

fn shape(ty: TensorType) -> Option<Shape> {
    let Some(format) = formats::row(ty)?.block_format() else {
        return Some(Shape {
            low: 8 * ty.block_bytes(),
            high: 0,
            scales: 0,
            supers: 0,
        });
    };
    let scales = format.gpu.as_ref()?;
    let [low, high] = planes_of(format, scales);
    Some(Shape {
        low,
        high,
        scales: scales.bytes,
        supers: scales.super_bytes * (SUPER_UNITS * UNIT / format.k),
    })
}

/// Whether a format's codes are words, as the CPU's kernels read them.
fn has_words(format: &Blocks, scales: &GpuScales) -> bool {
    format.low + format.high + format.top == 0 && matches!(scales.codes, GpuCodes::Own)
}

/// Returns the bits per weight of both planes.
fn planes_of(format: &Blocks, scales: &GpuScales) -> [usize; 2] {
    if matches!(scales.codes, GpuCodes::TwoBits(_)) {
        return [2, 0];
    }
    if has_words(format, scales) {
        // a word for every 32 weights is a bit a weight; three of them are in both planes
        let words = format.unpacked_bytes / 4 / (format.k / UNIT);
        return [words.min(2), words.saturating_sub(2)];
    }
    // the CPU's planes without empty ones; no format has three
    let planes = [format.low, format.high, format.top].into_iter();
    let mut planes = planes.filter(|bits| *bits > 0);
    [planes.next(), planes.next()].map(|bits| bits.unwrap_or(0))
}

/// Whether the kernels support this type.
pub fn is_packed(ty: TensorType) -> bool {
    shape(ty).is_some()
}

/// Returns the type whose kernels a type uses.
pub(super) fn kernels_of(ty: TensorType) -> TensorType {
    let blocks = formats::row(ty).and_then(|row| row.block_format());
    blocks
        .and_then(|blocks| blocks.gpu.as_ref())
        .map_or(ty, |scales| scales.kernels)
}

/// Whether it is multiplied with integer rather than float activations.
pub fn has_codes(ty: TensorType) -> bool {
    shape(ty).is_some_and(|s| s.low < 16)
}

/// Layout of a matrix in planes, each aligned to 256 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    shape: Shape,
    /// Byte offsets of the high plane, the scales and the super scales.
    at: [usize; 3],
    /// Total bytes of all planes.
    pub bytes: usize,
    rows: usize,
    cols: usize,
    units: usize,
    /// Rows per expert; each expert begins a new strip.
    expert_rows: usize,
    strips: usize,
}

impl Layout {
    /// Lays out a tensor of `rows` rows of `cols` values; `None` if no kernel supports the type, a
    /// row is not whole blocks, or there are 2^31 rows or columns or more.
    pub fn new(ty: TensorType, rows: usize, cols: usize) -> Option<Layout> {
        Layout::of_experts(ty, 1, rows, cols)
    }

    /// Lays out `experts` stacked matrices with `rows` rows in total; also `None` if the rows do
    /// not divide evenly among the experts.
    pub fn of_experts(ty: TensorType, experts: usize, rows: usize, cols: usize) -> Option<Layout> {
        let shape = shape(ty)?;
        if cols == 0 || !cols.is_multiple_of(ty.block_len()) || rows.max(cols) >= 1 << 31 {
            return None;
        }
        if experts == 0 || !rows.is_multiple_of(experts) {
            return None;
        }
        let expert_rows = rows / experts;
        let (units, strips) = (
            cols.div_ceil(UNIT),
            expert_rows.div_ceil(STRIP).checked_mul(experts)?,
        );
        let supers = units.div_ceil(SUPER_UNITS);
        let plane = |n: usize, bytes: usize| {
            n.checked_mul(strips)?
                .checked_mul(bytes)?
                .checked_next_multiple_of(256)
        };
        let high = plane(units, 16 * shape.low)?;
        let scales = high.checked_add(plane(units, 16 * shape.high)?)?;
        let super_plane = scales.checked_add(plane(units, STRIP * shape.scales)?)?;
        let bytes = super_plane.checked_add(plane(supers, STRIP * shape.supers)?)?;
        Some(Layout {
            shape,
            at: [high, scales, super_plane],
            bytes,
            rows,
            cols,
            units,
            expert_rows,
            strips,
        })
    }

    /// Returns the kernels' description of the matrix with its planes at `base`.
    pub fn matrix(&self, base: Ptr) -> Matrix {
        let at = |i: usize| base.offset(self.at[i] as u64);
        // all lengths were checked to be far below 2^32
        let n = |n: usize| u32::try_from(n).expect("dimensions were checked");
        Matrix {
            low: base,
            high: at(0),
            scales: at(1),
            supers: at(2),
            rows: n(self.rows),
            cols: n(self.cols),
            units: n(self.units),
            strips: n(self.strips),
        }
    }
}

/// A matrix packed in planes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// All planes.
    pub bytes: Vec<u8>,
    /// Layout of the planes.
    pub layout: Layout,
}

/// Packs a tensor of `rows` rows of `cols` values; `None` where [`Layout::new`] returns it, or if
/// the source has another length.
pub fn pack(ty: TensorType, rows: usize, cols: usize, source: &[u8]) -> Option<Packed> {
    pack_experts(ty, 1, rows, cols, source)
}

/// Packs `experts` stacked matrices, `rows` rows in total.
pub fn pack_experts(
    ty: TensorType,
    experts: usize,
    rows: usize,
    cols: usize,
    source: &[u8],
) -> Option<Packed> {
    let layout = Layout::of_experts(ty, experts, rows, cols)?;
    let Layout {
        shape,
        at: [at_high, at_scales, at_supers],
        units,
        expert_rows,
        ..
    } = layout;
    let (len, block) = (ty.block_len(), ty.block_bytes());
    let row_bytes = (cols / len).checked_mul(block)?;
    if row_bytes.checked_mul(rows)? != source.len() {
        return None;
    }
    let mut bytes = vec![0; layout.bytes];
    let (low, rest) = bytes.split_at_mut(at_high);
    let (high, rest) = rest.split_at_mut(at_scales - at_high);
    let (scales, supers) = rest.split_at_mut(at_supers - at_scales);
    let mut planes = Planes {
        low,
        high,
        scales,
        supers,
    };
    let format = formats::row(ty)?.block_format();
    for (row, raw) in source.chunks_exact(row_bytes).enumerate() {
        let (expert, row) = (row / expert_rows, row % expert_rows);
        let place = UnitPosition {
            strip: expert * expert_rows.div_ceil(STRIP) + row / STRIP,
            row: row % STRIP,
            unit: 0,
            units,
        };
        match format {
            Some(format) => planes.put_blocks(format, shape, place, raw),
            None => {
                // a unit of floats has as many words per row as a float has bits
                for (unit, raw) in raw.chunks(4 * shape.low).enumerate() {
                    for (j, word) in raw.chunks(4).enumerate() {
                        UnitPosition { unit, ..place }.put(planes.low, shape.low, j, word);
                    }
                }
            }
        }
    }
    Some(Packed { bytes, layout })
}

/// The planes of a matrix.
struct Planes<'a> {
    low: &'a mut [u8],
    high: &'a mut [u8],
    scales: &'a mut [u8],
    supers: &'a mut [u8],
}

impl Planes<'_> {
    /// Writes the blocks of a row that begins at `place`.
    fn put_blocks(&mut self, format: &Blocks, shape: Shape, place: UnitPosition, raw: &[u8]) {
        let Some(gpu) = &format.gpu else {
            unreachable!("{}: there is a layout for it", format.ty)
        };
        let len = format.k;
        // blocks that share a super scale
        let together = SUPER_UNITS * UNIT / len;
        let (unpack, n) = match gpu.codes {
            GpuCodes::Own => (format.unpack, format.unpacked_bytes),
            GpuCodes::TwoBits(unpack) => (unpack, len),
        };
        let has_words = has_words(format, gpu);
        let mut codes = [0u8; 256];
        let codes = &mut codes[..n];
        for (b, raw) in raw.chunks_exact(format.ty.block_bytes()).enumerate() {
            unpack(raw, codes);
            let which = b % together;
            for (u, codes) in codes.chunks_exact(n * UNIT / len).enumerate() {
                let unit = b * len / UNIT + u;
                let at = UnitPosition { unit, ..place };
                match has_words {
                    true => self.put_words(at, shape, codes),
                    false => self.put_codes(at, format, shape, codes),
                }
                let at = ((place.strip * place.units + unit) * STRIP + place.row) * shape.scales;
                (gpu.of)(raw, u, which, &mut self.scales[at..at + shape.scales]);
            }
            if shape.supers > 0 {
                let supers = place.units.div_ceil(SUPER_UNITS);
                let at = (place.strip * supers + b / together) * STRIP + place.row;
                let at = at * shape.supers + which * gpu.super_bytes;
                (gpu.supers)(raw, &mut self.supers[at..at + gpu.super_bytes]);
            }
        }
    }

    /// Writes the words of a unit: as many to the low plane as it has bits, the others to the high
    /// one.
    fn put_words(&mut self, place: UnitPosition, shape: Shape, words: &[u8]) {
        let (low, high) = words.split_at(4 * shape.low);
        for (j, word) in low.chunks_exact(4).enumerate() {
            place.put(self.low, shape.low, j, word);
        }
        for (j, word) in high.chunks_exact(4).enumerate() {
            place.put(self.high, shape.high, j, word);
        }
    }

    fn put_codes(&mut self, place: UnitPosition, format: &Blocks, shape: Shape, codes: &[u8]) {
        match shape.low {
            8 => {
                // the CPU's kernels need bytes offset by 128, these need them signed
                let flip = if format.offset == 128 { 0x80 } else { 0 };
                for (j, c) in codes.chunks_exact(4).enumerate() {
                    let word = [c[0] ^ flip, c[1] ^ flip, c[2] ^ flip, c[3] ^ flip];
                    place.put(self.low, 8, j, &word);
                }
            }
            4 => {
                for (j, c) in codes.chunks_exact(8).enumerate() {
                    let word: [u8; 4] = std::array::from_fn(|b| (c[b] & 15) | (c[4 + b] & 15) << 4);
                    place.put(self.low, 4, j, &word);
                }
            }
            bits => put_bits(place, self.low, bits, 0, codes),
        }
        if shape.high > 0 {
            put_bits(place, self.high, shape.high, shape.low, codes);
        }
    }
}

/// A unit of a row.
#[derive(Clone, Copy)]
struct UnitPosition {
    strip: usize,
    row: usize,
    unit: usize,
    units: usize,
}

impl UnitPosition {
    /// Writes word `j` of this row to a plane of `bits` bits per weight.
    fn put(self, plane: &mut [u8], bits: usize, j: usize, word: &[u8]) {
        let word_at = self.row * bits + j;
        let at =
            ((self.strip * bits + word_at / 4) * self.units + self.unit) * 16 + word_at % 4 * 4;
        plane[at..at + word.len()].copy_from_slice(word);
    }
}

/// Packs `bits` bits of every code, starting at bit `from`: successive groups of four codes fill
/// successively higher bits of a word.
fn put_bits(place: UnitPosition, plane: &mut [u8], bits: usize, from: usize, codes: &[u8]) {
    let (groups, mask) = (8 / bits, (1u8 << bits) - 1);
    for (j, codes) in codes.chunks_exact(4 * groups).enumerate() {
        let mut word = [0u8; 4];
        for (g, c) in codes.chunks_exact(4).enumerate() {
            for (byte, c) in word.iter_mut().zip(c) {
                *byte |= ((c >> from) & mask) << (g * bits);
            }
        }
        place.put(plane, bits, j, &word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::FORMATS;

    #[test]
    fn sizes_that_are_not_whole_are_refused() {
        assert_eq!(pack(TensorType::Q4_K, 1, 255, &[0; 144]), None);
        assert_eq!(pack(TensorType::Q4_K, 1, 256, &[0; 143]), None);
        assert_eq!(pack(TensorType::Q4_K, 2, 256, &[0; 144]), None);
        assert_eq!(pack(TensorType::Q4_K, 1, 0, &[]), None);
        assert_eq!(pack(TensorType::Q8_K, 1, 256, &[0; 292]), None);
        assert!(pack(TensorType::Q4_K, 0, 256, &[]).is_some_and(|p| p.bytes.is_empty()));
    }

    /// Packing only rearranges bits: planes exceed the file's rows by no more than the wider
    /// scales.
    #[test]
    fn tensors_grow_by_their_scales_alone() {
        for &ty in FORMATS.iter() {
            let (rows, cols) = (64, 4096);
            let file = cols / ty.block_len() * ty.block_bytes() * rows;
            let packed = pack(ty, rows, cols, &vec![0; file])
                .expect("whole blocks")
                .bytes
                .len();
            let most = match ty {
                // a zero point for each unit of 32 instead of 128, and an extra byte for each of
                // the smallest groups
                ty if TensorType::AWQ.contains(&ty) => 1.06,
                // a scale for each unit instead of two, and instead of four
                TensorType::Q2_0 => 1.12,
                TensorType::Q1_0 => 1.34,
                // two bits for each digit
                TensorType::TQ1_0 => 1.23,
                // whole bytes for scales of three bits
                TensorType::IQ1_M => 1.18,
                _ => 1.04,
            };
            assert!(
                packed >= file && packed as f64 <= file as f64 * most,
                "{ty}: {file} bytes became {packed}"
            );
        }
    }
}
