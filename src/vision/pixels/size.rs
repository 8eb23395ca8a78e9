//! How large a picture is for a tower.

use crate::Error;

/// Pixels across and down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Across.
    pub width: usize,
    /// Down.
    pub height: usize,
}

/// How many cells a picture has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenLimits {
    /// At least; smaller pictures are enlarged.
    pub min: usize,
    /// At most; larger ones are shrunk.
    pub max: usize,
}

impl Default for TokenLimits {
    /// llama.cpp's for these towers.
    fn default() -> TokenLimits {
        TokenLimits { min: 8, max: 4096 }
    }
}

/// The largest number that fits a picture's sides, so that no area overflows.
const LONGEST_SIDE: f32 = (1u32 << 24) as f32;

impl Size {
    /// The size that a picture gets: whole cells of `unit` pixels along each side, about as many as
    /// it has, and as many in all as the limits say; its shape stays as far as cells allow. All in
    /// f32, and halves away from zero, as llama.cpp does.
    ///
    /// # Errors
    /// If a side would have more than 2^24 pixels: of pictures that are extremely long and narrow.
    pub fn for_cells(self, unit: usize, limits: TokenLimits) -> Result<Size, Error> {
        let (width, height, unit) = (self.width as f32, self.height as f32, unit as f32);
        let area = |w: f32, h: f32| f64::from(w) * f64::from(h);
        let cells = |n: usize| n as f64 * f64::from(unit) * f64::from(unit);
        let nearest = |side: f32| ((side / unit).round() * unit).max(unit);
        let (mut w, mut h) = (nearest(width), nearest(height));
        if area(w, h) > cells(limits.max) {
            let beta = (height * width / cells(limits.max) as f32).sqrt();
            let below = |side: f32| ((side / beta / unit).floor() * unit).max(unit);
            (w, h) = (below(width), below(height));
        } else if area(w, h) < cells(limits.min) {
            let beta = (cells(limits.min) as f32 / (height * width)).sqrt();
            let above = |side: f32| (side * beta / unit).ceil() * unit;
            (w, h) = (above(width), above(height));
        }
        if !(w <= LONGEST_SIDE && h <= LONGEST_SIDE) {
            return Err(Error::TooNarrow {
                width: self.width,
                height: self.height,
            });
        }
        Ok(Size {
            width: w as usize,
            height: h as usize,
        })
    }
}
