//! Resampling as in Pillow, with a kernel that widens when an image shrinks; in integers, so that
//! all machines agree to the bit.

use super::image::DecodedImage;
use super::size::Size;

/// Fraction bits of weights.
const BITS: u32 = 22;
/// Parameter of Keys' cubic convolution.
const A: f64 = -0.5;

/// Kernel of a resampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Triangle.
    Bilinear,
    /// Keys' cubic convolution.
    Bicubic,
    /// Lanczos, of three lobes.
    Lanczos,
}

impl Filter {
    /// Returns the radius in pixels.
    fn support(self) -> f64 {
        match self {
            Filter::Bilinear => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        match self {
            Filter::Bilinear => (1.0 - x.abs()).max(0.0),
            Filter::Bicubic => cubic(x),
            Filter::Lanczos => lanczos(x),
        }
    }
}

/// Resizes an image until one of its sides fits, and pads it evenly with black, preserving the
/// aspect ratio. An image of the target size is returned unchanged.
pub fn fit(image: &DecodedImage, to: Size, filter: Filter) -> DecodedImage {
    fit_on(image, to, filter, [0; 3])
}

/// As [`fit`], with another colour around the image: red, green and blue.
pub(crate) fn fit_on(
    image: &DecodedImage,
    to: Size,
    filter: Filter,
    around: [u8; 3],
) -> DecodedImage {
    let from = image.size();
    if from == to {
        return image.clone();
    }
    let scale = (to.width as f32 / from.width as f32).min(to.height as f32 / from.height as f32);
    let side = |from: usize, to: usize| ((from as f32 * scale).ceil() as usize).clamp(1, to);
    let inner = Size {
        width: side(from.width, to.width),
        height: side(from.height, to.height),
    };
    let scaled = resample(image, inner, filter);
    let mut rgb = around.repeat(to.width * to.height);
    let (left, top) = (
        (to.width - scaled.width) / 2,
        (to.height - scaled.height) / 2,
    );
    for (y, line) in scaled.rgb.chunks_exact(3 * scaled.width).enumerate() {
        let at = 3 * ((top + y) * to.width + left);
        rgb[at..at + line.len()].copy_from_slice(line);
    }
    DecodedImage {
        width: to.width,
        height: to.height,
        rgb,
    }
}

/// Resamples horizontally, then vertically; a side of the target size is skipped. Between the two
/// passes values are rounded to bytes.
pub(crate) fn resample(image: &DecodedImage, to: Size, filter: Filter) -> DecodedImage {
    let DecodedImage { width, height, .. } = *image;
    let mut rgb = image.rgb.clone();
    if to.width != width {
        let taps = Taps::all(width, to.width, filter);
        let mut out = Vec::with_capacity(3 * to.width * height);
        for line in rgb.chunks_exact(3 * width) {
            for taps in &taps {
                out.extend((0..3).map(|c| taps.apply(|i| line[3 * i + c])));
            }
        }
        rgb = out;
    }
    if to.height != height {
        let (taps, stride) = (Taps::all(height, to.height, filter), 3 * to.width);
        let mut out = Vec::with_capacity(stride * to.height);
        let mut sums = vec![0i32; stride];
        for taps in &taps {
            // line by line, so that memory is read in order
            sums.fill(1 << (BITS - 1));
            for (i, weight) in taps.weights.iter().enumerate() {
                let line = &rgb[(taps.first + i) * stride..][..stride];
                let add = |(sum, x): (&mut i32, &u8)| *sum += i32::from(*x) * weight;
                sums.iter_mut().zip(line).for_each(add);
            }
            out.extend(sums.iter().map(|sum| clamped(*sum)));
        }
        rgb = out;
    }
    DecodedImage {
        width: to.width,
        height: to.height,
        rgb,
    }
}

fn clamped(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

/// Input pixels of one output pixel, and their weights.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

impl Taps {
    /// Returns the taps of all `to` pixels of a line resized from `from` pixels.
    fn all(from: usize, to: usize, filter: Filter) -> Vec<Taps> {
        let scale = from as f64 / to as f64;
        // when an image shrinks, the kernel covers all input pixels of an output pixel
        let stretch = scale.max(1.0);
        let reach = filter.support() * stretch;
        let tap = |out: usize| {
            let centre = (out as f64 + 0.5) * scale;
            // truncates towards zero
            let first = ((centre - reach + 0.5) as i64).max(0) as usize;
            let end = ((centre + reach + 0.5) as i64).min(from as i64) as usize;
            let weight = |i: usize| filter.weight((i as f64 - centre + 0.5) * (1.0 / stretch));
            let weights: Vec<f64> = (first..end).map(weight).collect();
            let sum: f64 = weights.iter().sum();
            let fixed = |w: &f64| {
                let w = if sum == 0.0 { *w } else { w / sum };
                let half = if w < 0.0 { -0.5 } else { 0.5 };
                (w * f64::from(1u32 << BITS) + half) as i32
            };
            Taps {
                first,
                weights: weights.iter().map(fixed).collect(),
            }
        };
        (0..to).map(tap).collect()
    }

    fn apply(&self, pixel: impl Fn(usize) -> u8) -> u8 {
        let terms = self.weights.iter().enumerate();
        let sum = terms.fold(1 << (BITS - 1), |sum, (i, weight)| {
            sum + i32::from(pixel(self.first + i)) * weight
        });
        clamped(sum)
    }
}

/// Evaluates the Lanczos kernel.
fn lanczos(x: f64) -> f64 {
    let sinc = |x: f64| {
        let x = x * std::f64::consts::PI;
        if x == 0.0 { 1.0 } else { x.sin() / x }
    };
    match (-3.0..3.0).contains(&x) {
        true => sinc(x) * sinc(x / 3.0),
        false => 0.0,
    }
}

/// Evaluates Keys' cubic convolution kernel.
fn cubic(x: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}
