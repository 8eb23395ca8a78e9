//! Image sizes for a vision encoder.

use crate::Error;

/// Width and height in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Pixels per row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
}

/// Limits on the number of image tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenLimits {
    /// Minimum; smaller images are enlarged.
    pub min: usize,
    /// Maximum; larger images are shrunk.
    pub max: usize,
}

impl Default for TokenLimits {
    /// Returns llama.cpp's limits for these encoders.
    fn default() -> TokenLimits {
        TokenLimits { min: 8, max: 4096 }
    }
}

impl TokenLimits {
    /// Returns the maximum number of image tokens with these limits: long and narrow images get
    /// more than asked for when they are enlarged.
    pub fn max_image_tokens(self) -> usize {
        self.max.max(1024) + self.max / 4
    }
}

/// Maximum side in pixels; small enough that no area overflows.
const LONGEST_SIDE: f32 = (1u32 << 24) as f32;

impl Size {
    /// Returns the size to resize to: multiples of `unit` pixels on each side, close to the
    /// original, with a token count within the limits; the aspect ratio is kept as far as rounding
    /// allows. Computed in f32 with halves rounded away from zero, as in llama.cpp.
    ///
    /// # Errors
    /// If a side would exceed 2^24 pixels, for extremely long and narrow images.
    pub fn for_image_tokens(self, unit: usize, limits: TokenLimits) -> Result<Size, Error> {
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
