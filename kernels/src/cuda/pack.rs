//! From rows as they lie in a file to planes as the kernels read them; the layout is described in
//! `cuda/formats.cuh`.
//!
//! Only the scales of K-quants grow, from 6 bits to 8 (by 3 % of a Q4_K tensor): unpacking them
//! would cost every thread more than reading them. No value changes.

use super::Ptr;
use super::params::Matrix;
use crate::pack;
use octavo_quant::TensorType;

/// Columns of a unit.
pub const UNIT: usize = 32;
/// Rows of a strip.
pub const STRIP: usize = 4;
/// Units that share what multiplies their scales.
const SUPER_UNITS: usize = 8;

/// The numbers of a format in `cuda/formats.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Bits a weight in the low plane.
    low: usize,
    /// And in the high plane.
    high: usize,
    /// Bytes of scales for each row and unit.
    scales: usize,
    /// Bytes for each row and 8 units.
    supers: usize,
}

fn shape(ty: TensorType) -> Option<Shape> {
    let (low, high, scales, supers) = match ty {
        TensorType::F32 => (32, 0, 0, 0),
        TensorType::F16 | TensorType::BF16 => (16, 0, 0, 0),
        TensorType::Q4_0 => (4, 0, 2, 0),
        TensorType::Q5_0 => (4, 1, 2, 0),
        TensorType::Q8_0 => (8, 0, 2, 0),
        TensorType::Q4_1 => (4, 0, 4, 0),
        TensorType::Q5_1 => (4, 1, 4, 0),
        TensorType::Q2_K => (2, 0, 2, 4),
        TensorType::Q3_K => (2, 1, 2, 2),
        TensorType::Q4_K => (4, 0, 2, 4),
        TensorType::Q5_K => (4, 1, 2, 4),
        TensorType::Q6_K => (4, 2, 2, 2),
        TensorType::IQ4_XS => (4, 0, 1, 2),
        TensorType::AWQ_G32 | TensorType::AWQ_G64 => (4, 0, 4, 0),
        TensorType::AWQ_G128 => (4, 0, 1, 4),
        _ => return None,
    };
    Some(Shape {
        low,
        high,
        scales,
        supers,
    })
}

/// Whether the kernels read this type.
pub fn is_packed(ty: TensorType) -> bool {
    shape(ty).is_some()
}

/// Whether it is multiplied with integer activations, not floats.
pub fn has_codes(ty: TensorType) -> bool {
    shape(ty).is_some_and(|s| s.low < 16)
}

/// Where the planes of a matrix are, each from a multiple of 256 bytes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    shape: Shape,
    /// Where the high plane, the scales and the supers begin.
    at: [usize; 3],
    /// Bytes of all planes.
    pub bytes: usize,
    rows: usize,
    cols: usize,
    units: usize,
}

impl Layout {
    /// Of a tensor of `rows` rows of `cols` values; `None` if no kernel reads the type, a row is
    /// not whole blocks, or there are 2^31 rows or columns.
    pub fn new(ty: TensorType, rows: usize, cols: usize) -> Option<Layout> {
        let shape = shape(ty)?;
        if cols == 0 || !cols.is_multiple_of(ty.block_len()) || rows.max(cols) >= 1 << 31 {
            return None;
        }
        let (units, strips) = (cols.div_ceil(UNIT), rows.div_ceil(STRIP));
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
        })
    }

    /// As the kernels take it, when the planes are at `base`.
    pub fn matrix(&self, base: Ptr) -> Matrix {
        let at = |i: usize| base.offset(self.at[i] as u64);
        // every length was checked to be far below this
        let n = |n: usize| u32::try_from(n).expect("dimensions were checked");
        Matrix {
            low: base,
            high: at(0),
            scales: at(1),
            supers: at(2),
            rows: n(self.rows),
            cols: n(self.cols),
            units: n(self.units),
            strips: n(self.rows.div_ceil(STRIP)),
        }
    }
}

/// A matrix in planes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// All planes.
    pub bytes: Vec<u8>,
    /// Where they are.
    pub layout: Layout,
}

/// Packs a tensor of `rows` rows of `cols` values; `None` where [`Layout::new`] has none, or the
/// source is not as long.
pub fn pack(ty: TensorType, rows: usize, cols: usize, source: &[u8]) -> Option<Packed> {
    let layout = Layout::new(ty, rows, cols)?;
    let Layout {
        shape,
        at: [at_high, at_scales, at_supers],
        units,
        ..
    } = layout;
    let (len, block) = (ty.block_len(), ty.block_bytes());
    let row_bytes = (cols / len).checked_mul(block)?;
    if row_bytes.checked_mul(rows)? != source.len() {
        return None;
    }
    let supers = units.div_ceil(SUPER_UNITS);
    let mut bytes = vec![0; layout.bytes];
    let (low, rest) = bytes.split_at_mut(at_high);
    let (high, rest) = rest.split_at_mut(at_scales - at_high);
    let (scales, super_plane) = rest.split_at_mut(at_supers - at_scales);
    for (row, raw) in source.chunks_exact(row_bytes).enumerate() {
        let place = |unit: usize| Place {
            strip: row / STRIP,
            row: row % STRIP,
            unit,
            units,
        };
        if shape.low >= 16 {
            // a unit of floats is as many words as a float has bits
            for (unit, raw) in raw.chunks(4 * shape.low).enumerate() {
                for (j, word) in raw.chunks(4).enumerate() {
                    place(unit).put(low, shape.low, j, word);
                }
            }
            continue;
        }
        let mut codes = [0u8; 256];
        for (b, raw) in raw.chunks_exact(block).enumerate() {
            pack::unpack_codes(ty, raw, &mut codes[..len]);
            // blocks that are in a super together, and which of them this one is
            let (together, which) = (SUPER_UNITS * UNIT / len, b % (SUPER_UNITS * UNIT / len));
            for (u, codes) in codes[..len].chunks_exact(UNIT).enumerate() {
                let place = place(b * len / UNIT + u);
                put_codes(place, ty, shape, codes, low, high);
                let at = ((place.strip * units + place.unit) * STRIP + place.row) * shape.scales;
                unit_scales(ty, raw, (u, which), &mut scales[at..at + shape.scales]);
            }
            if shape.supers > 0 {
                let halves = super_scales(ty, raw);
                let at =
                    ((row / STRIP * supers + b / together) * STRIP + row % STRIP) * shape.supers;
                super_plane[at + which * halves.len()..][..halves.len()].copy_from_slice(halves);
            }
        }
    }
    Some(Packed { bytes, layout })
}

/// A unit of a row.
#[derive(Clone, Copy)]
struct Place {
    strip: usize,
    row: usize,
    unit: usize,
    units: usize,
}

impl Place {
    /// Word `j` of this row in a plane of `bits` bits a weight.
    fn put(self, plane: &mut [u8], bits: usize, j: usize, word: &[u8]) {
        let word_at = self.row * bits + j;
        let at =
            ((self.strip * bits + word_at / 4) * self.units + self.unit) * 16 + word_at % 4 * 4;
        plane[at..at + word.len()].copy_from_slice(word);
    }
}

fn put_codes(
    place: Place,
    ty: TensorType,
    shape: Shape,
    codes: &[u8],
    low: &mut [u8],
    high: &mut [u8],
) {
    match shape.low {
        8 => {
            for (j, c) in codes.chunks_exact(4).enumerate() {
                // the CPU's kernels want Q8_0 offset by 128, these want it signed
                let flip = if ty == TensorType::Q8_0 { 0x80 } else { 0 };
                place.put(
                    low,
                    8,
                    j,
                    &[c[0] ^ flip, c[1] ^ flip, c[2] ^ flip, c[3] ^ flip],
                );
            }
        }
        4 => {
            for (j, c) in codes.chunks_exact(8).enumerate() {
                place.put(
                    low,
                    4,
                    j,
                    &std::array::from_fn::<u8, 4, _>(|b| (c[b] & 15) | (c[4 + b] & 15) << 4),
                );
            }
        }
        bits => put_bits(place, low, bits, 0, codes),
    }
    if shape.high > 0 {
        put_bits(place, high, shape.high, shape.low, codes);
    }
}

/// `bits` bits of every code, from bit `from` on: following groups of four codes in ever higher
/// bits of a word.
fn put_bits(place: Place, plane: &mut [u8], bits: usize, from: usize, codes: &[u8]) {
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

/// The bytes that `scales` of the format in `cuda/formats.cuh` takes for unit `u` of a block, which
/// is number `which` of those in its super.
fn unit_scales(ty: TensorType, raw: &[u8], (u, which): (usize, usize), out: &mut [u8]) {
    match ty {
        TensorType::AWQ_G32 | TensorType::AWQ_G64 => out[..3].copy_from_slice(&raw[..3]),
        TensorType::AWQ_G128 => out[0] = raw[2] & 15 | (which as u8) << 7,
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => out.copy_from_slice(&raw[..2]),
        TensorType::Q4_1 | TensorType::Q5_1 => out.copy_from_slice(&raw[..4]),
        TensorType::Q4_K | TensorType::Q5_K => (out[0], out[1]) = pack::scale_min(&raw[4..16], u),
        TensorType::Q6_K => out.copy_from_slice(&raw[192 + 2 * u..194 + 2 * u]),
        TensorType::Q2_K => out.copy_from_slice(&raw[2 * u..2 * u + 2]),
        TensorType::Q3_K => {
            let s = &raw[96..108];
            for (j, out) in (2 * u..2 * u + 2).zip(out) {
                let scale =
                    (s[j % 8] >> (4 * (j / 8)) & 15) | (s[8 + j % 4] >> (2 * (j / 4)) & 3) << 4;
                *out = scale.wrapping_sub(32);
            }
        }
        TensorType::IQ4_XS => {
            let high = u16::from_le_bytes([raw[2], raw[3]]);
            let scale = (raw[4 + u / 2] >> (4 * (u % 2)) & 15) | ((high >> (2 * u) & 3) as u8) << 4;
            out[0] = scale.wrapping_sub(32);
        }
        other => unreachable!("no scales of {other}"),
    }
}

/// The halves that multiply the scales of a block.
fn super_scales(ty: TensorType, raw: &[u8]) -> &[u8] {
    match ty {
        TensorType::Q4_K | TensorType::Q5_K => &raw[..4],
        TensorType::Q6_K => &raw[208..210],
        TensorType::Q2_K => &raw[80..84],
        TensorType::Q3_K => &raw[108..110],
        TensorType::IQ4_XS | TensorType::AWQ_G128 => &raw[..2],
        other => unreachable!("no scales of scales of {other}"),
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
        assert_eq!(pack(TensorType::IQ1_S, 1, 256, &[0; 50]), None);
        assert!(pack(TensorType::Q4_K, 0, 256, &[]).is_some_and(|p| p.bytes.is_empty()));
    }

    /// What stays is bits: no plane is larger than the file's rows by more than the wider scales.
    #[test]
    fn tensors_grow_by_their_scales_alone() {
        for ty in FORMATS {
            let (rows, cols) = (64, 4096);
            let file = cols / ty.block_len() * ty.block_bytes() * rows;
            let packed = pack(ty, rows, cols, &vec![0; file])
                .expect("whole blocks")
                .bytes
                .len();
            // a zero point stands beside each unit of 32, not of 128, and an odd byte beside each
            // of AWQ's smallest groups
            let most = if TensorType::AWQ.contains(&ty) {
                1.06
            } else {
                1.04
            };
            assert!(
                packed >= file && packed as f64 <= file as f64 * most,
                "{ty}: {file} bytes became {packed}"
            );
        }
    }
}
