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

/// Limits on the number of image tokens; `None` for an encoder's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenLimits {
    /// Minimum; smaller images are enlarged.
    pub min: Option<usize>,
    /// Maximum; larger images are shrunk.
    pub max: Option<usize>,
}

impl TokenLimits {
    /// Returns minimum and maximum, for an encoder whose own are these. Where they contradict each
    /// other, its own give way.
    pub(crate) fn or([min, max]: [usize; 2], asked: TokenLimits) -> [usize; 2] {
        let least = asked.min.unwrap_or(min.min(asked.max.unwrap_or(min)));
        [least, asked.max.unwrap_or(max.max(least))]
    }
}

/// Returns the maximum number of tokens of an image that is resized to `max` of them: long and
/// narrow images get more than asked for when they are enlarged.
pub(crate) fn max_image_tokens(max: usize) -> usize {
    max.max(1024).saturating_add(max / 4)
}

/// Maximum side in pixels; small enough that no area overflows.
const LONGEST_SIDE: f32 = (1u32 << 24) as f32;

impl Size {
    /// Returns the size of a square.
    pub(crate) fn square(side: usize) -> Size {
        Size {
            width: side,
            height: side,
        }
    }

    /// Applies `f` to both sides.
    pub(crate) fn map(self, f: impl Fn(usize) -> usize) -> Size {
        Size {
            width: f(self.width),
            height: f(self.height),
        }
    }

    /// Returns the one of these sizes in which most pixels of this size are left when it is scaled
    /// to fit, and of several the one of which least is wasted; of equals the first.
    pub(crate) fn best_of(self, all: impl Iterator<Item = Size>) -> Option<Size> {
        let (width, height) = (self.width as f32, self.height as f32);
        let (mut best, mut found) = ((0, usize::MAX), None);
        for size in all {
            let scale = (size.width as f32 / width).min(size.height as f32 / height);
            let scaled = (width * scale) as usize * (height * scale) as usize;
            let left = scaled.min(self.width * self.height);
            let wasted = size.width * size.height - left;
            if left > best.0 || (left == best.0 && wasted < best.1) {
                (best, found) = ((left, wasted), Some(size));
            }
        }
        found
    }

    /// Returns the size to resize to: multiples of `unit` pixels on each side, close to the
    /// original, with a number of squares of that side from `min` to `max`; the aspect ratio is
    /// kept as far as rounding allows. Computed in f32 with halves rounded away from zero, as in
    /// llama.cpp.
    ///
    /// # Errors
    /// If a side would exceed 2^24 pixels, for extremely long and narrow images.
    pub fn for_image_tokens(self, unit: usize, [min, max]: [usize; 2]) -> Result<Size, Error> {
        let area = |n: usize| n as f64 * unit as f64 * unit as f64;
        self.aligned(unit, [area(min), area(max)])
    }

    /// As [`Size::for_image_tokens`], with limits in pixels.
    pub(crate) fn aligned(self, unit: usize, areas: [f64; 2]) -> Result<Size, Error> {
        let nearest = |side: usize| {
            let unit = unit as f32;
            ((side as f32 / unit).round() * unit).max(unit)
        };
        self.aligned_from((nearest(self.width), nearest(self.height)), unit, areas)
    }

    /// Returns both sides, scaled until the longer has `longest` pixels, rounded up to multiples of
    /// `unit`.
    pub(crate) fn within(self, longest: usize, unit: usize) -> (f32, f32) {
        let (width, height) = (self.width as f32, self.height as f32);
        let scale = (longest as f32 / width).min(longest as f32 / height);
        let above = |side: f32| (side * scale / unit as f32).ceil() * unit as f32;
        (above(width), above(height))
    }

    /// Does the same, beginning with these sides.
    pub(crate) fn aligned_from(
        self,
        (mut w, mut h): (f32, f32),
        unit: usize,
        [min, max]: [f64; 2],
    ) -> Result<Size, Error> {
        let (width, height, unit) = (self.width as f32, self.height as f32, unit as f32);
        let area = f64::from(w) * f64::from(h);
        if area > max {
            let beta = (height * width / max as f32).sqrt();
            let below = |side: f32| ((side / beta / unit).floor() * unit).max(unit);
            (w, h) = (below(width), below(height));
        } else if area < min {
            let beta = (min as f32 / (height * width)).sqrt();
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
