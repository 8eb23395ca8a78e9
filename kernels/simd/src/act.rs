//! Activations as kernels read them; those of generated tokens in detail.
//!
//! A row of `k` floats becomes, per 32 values, one scale and 32 integers of 15 bits and a sign:
//! about a hundred times finer than the 8 bits of llama.cpp's Q8 activations, at no cost in time
//! where memory is the limit.

/// Four activations, 8 bytes, arranged as one instruction set's `dot4` reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Act4(pub [u8; 8]);

impl Act4 {
    /// In order: for plain Rust.
    #[inline(always)]
    pub fn from_i16(x: [i16; 4]) -> Act4 {
        let mut b = [0; 8];
        for (d, s) in b.chunks_exact_mut(2).zip(x) {
            d.copy_from_slice(&s.to_le_bytes());
        }
        Act4(b)
    }

    #[inline(always)]
    pub fn as_i16(self) -> [i16; 4] {
        std::array::from_fn(|i| i16::from_le_bytes([self.0[2 * i], self.0[2 * i + 1]]))
    }

    /// Even and odd positions apart, as 16-bit multiply-adds of split bytes want them (AVX2).
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn even_odd(x: [i16; 4]) -> Act4 {
        Act4::from_i16([x[0], x[2], x[1], x[3]])
    }

    /// Two planes of signed bytes, `x = 256 high + low` (VNNI, Arm's dot products).
    #[cfg(any(test, target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline(always)]
    pub fn planes(x: [i16; 4]) -> Act4 {
        let mut b = [0; 8];
        for (i, v) in x.into_iter().enumerate() {
            let low = v as i8;
            let high = ((i32::from(v) - i32::from(low)) >> 8) as i8;
            b[i] = high as u8;
            b[4 + i] = low as u8;
        }
        Act4(b)
    }
}

/// Largest integer activation: 127 * 256 + 127 fits both signed-byte planes.
pub const ACT_MAX: f32 = 32_639.0;

/// Values that share a scale.
pub const ACT_GROUP: usize = 32;

/// Rows of quantized activations, borrowed: one pointer per part, so that kernels index without
/// bounds checks.
#[derive(Clone, Copy)]
pub struct ActRow {
    /// k / 4 groups of four integers.
    pub q: *const Act4,
    /// k / 32 scales.
    pub scale: *const f32,
    /// k / 16 sums of the integers.
    pub isum: *const i32,
    /// k / 16 sums of the dequantized values.
    pub fsum: *const f32,
    /// k / 32 sums of the integers.
    pub isum32: *const i32,
    /// k / 32 sums of two of `fsum`.
    pub fsum32: *const f32,
}

/// Scale and sums of the activations that share a scale with `GROUP` codes.
#[derive(Clone, Copy)]
pub struct GroupSums {
    pub scale: f32,
    /// Sum of the integers.
    pub isum: i32,
    /// Sum of the values.
    pub fsum: f32,
}

impl ActRow {
    /// Scale and sums of group `g` of `GROUP` values, 16 or 32.
    ///
    /// # Safety
    /// The row has that group, and no thread writes it.
    #[inline(always)]
    pub unsafe fn group<const GROUP: usize>(&self, g: usize) -> GroupSums {
        let (isum, fsum) = if GROUP == ACT_GROUP {
            (self.isum32, self.fsum32)
        } else {
            (self.isum, self.fsum)
        };
        // SAFETY: the caller's promise.
        unsafe {
            GroupSums {
                scale: self.scale.add(g * GROUP / ACT_GROUP).read(),
                isum: isum.add(g).read(),
                fsum: fsum.add(g).read(),
            }
        }
    }

    /// The activations from group `group` on.
    pub fn at_group(&self, group: usize) -> ActRow {
        ActRow {
            q: self.q.wrapping_add(group * ACT_GROUP / 4),
            scale: self.scale.wrapping_add(group),
            isum: self.isum.wrapping_add(group * ACT_GROUP / 16),
            fsum: self.fsum.wrapping_add(group * ACT_GROUP / 16),
            isum32: self.isum32.wrapping_add(group),
            fsum32: self.fsum32.wrapping_add(group),
        }
    }

    /// Copies `groups` groups from another row.
    ///
    /// # Safety
    /// Both have at least `groups` groups; no thread writes the source or touches the destination
    /// meanwhile.
    pub unsafe fn copy_from(&self, from: &ActRow, groups: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(from.q, self.q.cast_mut(), groups * ACT_GROUP / 4);
            std::ptr::copy_nonoverlapping(from.scale, self.scale.cast_mut(), groups);
            std::ptr::copy_nonoverlapping(from.isum, self.isum.cast_mut(), groups * ACT_GROUP / 16);
            std::ptr::copy_nonoverlapping(from.fsum, self.fsum.cast_mut(), groups * ACT_GROUP / 16);
            std::ptr::copy_nonoverlapping(from.isum32, self.isum32.cast_mut(), groups);
            std::ptr::copy_nonoverlapping(from.fsum32, self.fsum32.cast_mut(), groups);
        }
    }
}

/// Form that activations are converted to before a product reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Integers with scales.
    Codes,
    /// The row itself.
    Floats,
    /// Tiles of tokens.
    Tiles(Tiled),
}

/// Values in tiles of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiled {
    F32,
    /// Pairs of 16-bit integers.
    Int16,
    /// The same with thirteen significant bits.
    Int13,
    /// Bytes.
    Int8,
    Bf16,
    /// Three bf16 whose sum is the f32.
    Bf16x3,
}

impl Tiled {
    /// Whether values are rounded more coarsely than to f32.
    pub fn rounds(self) -> bool {
        !matches!(self, Tiled::F32 | Tiled::Bf16x3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_hold_every_activation() {
        for v in -32_639..=32_639i16 {
            let p = Act4::planes([v; 4]).0;
            assert_eq!(
                i32::from(p[1] as i8) * 256 + i32::from(p[6] as i8),
                i32::from(v)
            );
        }
    }
}
