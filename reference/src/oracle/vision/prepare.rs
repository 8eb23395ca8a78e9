//! Image preprocessing, from bytes to normalised pixels: size, resampling as in Pillow, and black
//! padding. It uses f32 or integers exactly where llama.cpp does, so that the pixels of both are
//! bit-identical.

use super::super::hparams::Keys;
use super::hparams::Kind;
use super::tiles::{LFM2_TILE, best_size, lfm2_size};
use super::{Pixels, VisionOracle};
use crate::Error;

/// A decoded image.
#[derive(Debug, Clone, Copy)]
pub struct Rgb<'p> {
    /// Pixels per row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// `(height, width, 3)`: red, green and blue.
    pub bytes: &'p [u8],
}

/// An image resized and normalised.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// Pixels per row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// `(3, height, width)`: planes of red, green and blue.
    pub values: Vec<f32>,
}

impl Prepared {
    /// Returns the encoder's input.
    pub fn pixels(&self) -> Pixels<'_> {
        Pixels {
            width: self.width,
            height: self.height,
            values: &self.values,
        }
    }
}

/// Most tiles that a file may ask for.
const MOST_TILES: usize = 256;

/// How an image becomes an encoder's.
struct Resized {
    /// Sizes, one after the other.
    steps: Vec<Resizing>,
    /// Size of the upper left part that is kept.
    size: [usize; 2],
    /// Colour around a padded image.
    around: [u8; 3],
}

/// A change of size.
#[derive(Clone, Copy)]
enum Resizing {
    /// Scaled until it fits, and padded.
    Fitted([usize; 2], Filter),
    /// Stretched.
    Stretched([usize; 2], Filter),
}

impl Resized {
    fn whole(size: [usize; 2], filter: Filter) -> Resized {
        Resized {
            steps: vec![Resizing::Fitted(size, filter)],
            size,
            around: [0; 3],
        }
    }
}

/// Kernel of a resampling.
#[derive(Clone, Copy)]
enum Filter {
    Bilinear,
    Bicubic,
    Lanczos,
}

impl Filter {
    fn radius(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn at(self, x: f64) -> f64 {
        let sinc = |x: f64| match x * std::f64::consts::PI {
            0.0 => 1.0,
            x => x.sin() / x,
        };
        match self {
            Self::Bilinear => (1.0 - x.abs()).max(0.0),
            Self::Bicubic => bicubic(x),
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Self::Lanczos => 0.0,
        }
    }
}

/// Returns the sides of an image whose longer one has `longest` pixels, the other an even number.
fn at_longest([width, height]: [usize; 2], longest: usize) -> [usize; 2] {
    let aspect = width as f64 / height as f64;
    let even = |side: f64| (side as usize).div_ceil(2) * 2;
    match width >= height {
        true => [longest, even(longest as f64 / aspect)],
        false => [even(longest as f64 * aspect), longest],
    }
}

/// One colour plane of bytes.
struct Plane {
    width: usize,
    height: usize,
    bytes: Vec<u8>,
}

impl VisionOracle<'_> {
    /// Resizes an image to whole image tokens, with their number within `limits`, or to the size
    /// that all images have, and normalises it by the file's mean and standard deviation. Of an
    /// image that is cut into tiles this is the first tile, where no limits are asked for.
    ///
    /// # Errors
    /// The number of bytes contradicts the sides, a side vanishes, or the file lacks a key.
    pub fn prepare(&self, image: Rgb<'_>, limits: [usize; 2]) -> Result<Prepared, Error> {
        let expected = image.width.saturating_mul(image.height).saturating_mul(3);
        if image.bytes.len() != expected || expected == 0 {
            return Err(Error::Length {
                what: "bytes of an image",
                expected,
                got: image.bytes.len(),
            });
        }
        let mean = self.of_colours("image_mean")?;
        let deviation = self.of_colours("image_std")?;
        let resized = self.resized([image.width, image.height], limits)?;
        let [width, height] = resized.size;
        let mut values = Vec::with_capacity(3 * width * height);
        for colour in 0..3 {
            let plane = Plane {
                width: image.width,
                height: image.height,
                bytes: image
                    .bytes
                    .iter()
                    .skip(colour)
                    .step_by(3)
                    .copied()
                    .collect(),
            };
            let change = |plane: Plane, step: &Resizing| match *step {
                Resizing::Fitted(to, filter) => plane.fitted(to, filter, resized.around[colour]),
                Resizing::Stretched(to, filter) => plane.stretched(to, filter),
            };
            let plane = resized.steps.iter().fold(plane, change);
            let plane = plane.cropped(resized.size);
            let normalised =
                |byte: &u8| (f32::from(*byte) / 255.0 - mean[colour]) / deviation[colour];
            values.extend(plane.bytes.iter().map(normalised));
        }
        Ok(Prepared {
            width,
            height,
            values,
        })
    }

    /// Returns how an image of these sides becomes the encoder's.
    fn resized(&self, sides: [usize; 2], limits: [usize; 2]) -> Result<Resized, Error> {
        let side = self.side_unit();
        let first_tile = |steps| Resized {
            steps,
            size: [side; 2],
            around: [0; 3],
        };
        match self.hparams.kind {
            Kind::Gemma3 => Ok(Resized::whole([side; 2], Filter::Bilinear)),
            Kind::Llava => {
                let sizes = self.listed_sizes(&self.keys())?;
                let large = sides.iter().any(|length| *length > side);
                match best_size(sides, &sizes).filter(|_| large) {
                    Some(whole) => Ok(first_tile(vec![Resizing::Fitted(whole, Filter::Bicubic)])),
                    None if sizes.is_empty() => Ok(Resized {
                        around: [122, 116, 104],
                        ..Resized::whole([side; 2], Filter::Bicubic)
                    }),
                    None => {
                        let overview = Resizing::Stretched([side; 2], Filter::Bicubic);
                        Ok(first_tile(vec![overview]))
                    }
                }
            }
            Kind::Lfm2 => {
                let to = size(sides, side, limits);
                Ok(
                    match lfm2_size(sides, [self.hparams.patch, side], limits[1]) {
                        Some(whole) => Resized {
                            size: [LFM2_TILE; 2],
                            ..Resized::whole(whole, Filter::Bilinear)
                        },
                        None => Resized {
                            steps: vec![Resizing::Stretched(to, Filter::Bilinear)],
                            ..Resized::whole(to, Filter::Bilinear)
                        },
                    },
                )
            }
            Kind::InternVl if sides.iter().all(|length| *length <= side) => {
                let overview = Resizing::Stretched([side; 2], Filter::Bicubic);
                Ok(first_tile(vec![overview]))
            }
            Kind::InternVl => {
                let whole = self.best_grid(sides, side)?;
                Ok(first_tile(vec![Resizing::Fitted(whole, Filter::Bicubic)]))
            }
            Kind::Idefics3 => {
                const LONGEST: &str = "preproc_image_size";
                let keys = self.keys();
                let longest = keys.count(LONGEST)?;
                let first = at_longest(sides, longest);
                if first.contains(&0) {
                    return Err(keys.bad(LONGEST, "sides of at least a pixel", longest));
                }
                let whole = first.map(|length| length.div_ceil(side) * side);
                let steps = [first, whole].map(|to| Resizing::Stretched(to, Filter::Lanczos));
                Ok(first_tile(steps.to_vec()))
            }
            _ => Ok(Resized::whole(size(sides, side, limits), Filter::Bicubic)),
        }
    }

    /// Returns the size of the tiles that InternVL cuts an image into.
    fn best_grid(&self, sides: [usize; 2], side: usize) -> Result<[usize; 2], Error> {
        let keys = self.keys();
        let number = |key, without| keys.integer(key).map(|n| n.unwrap_or(without));
        let min = number("preproc_min_tiles", 1)?;
        let max = number("preproc_max_tiles", 12)?;
        if max > MOST_TILES {
            let expected = format!("at most {MOST_TILES}");
            return Err(keys.bad("preproc_max_tiles", expected, max));
        }
        let grids = (1..=max).flat_map(|columns| (1..=max).map(move |rows| [columns, rows]));
        let is_allowed = |[columns, rows]: &[usize; 2]| {
            let n = columns * rows;
            (min..=max).contains(&n) && *columns >= min && *rows >= min
        };
        let sizes = grids.filter(is_allowed).map(|grid| grid.map(|n| n * side));
        let best = best_size(sides, &sizes.collect::<Vec<_>>());
        best.ok_or_else(|| keys.bad("preproc_max_tiles", format!("at least {min}"), max))
    }

    fn keys(&self) -> Keys<'_> {
        Keys {
            gguf: self.gguf,
            prefix: "clip.vision",
        }
    }

    fn of_colours(&self, key: &str) -> Result<[f32; 3], Error> {
        let keys = self.keys();
        let name = keys.name(key);
        let values = match self.gguf.get(&name) {
            Some(gguf_rs_lite::Value::Array(array)) => array.f32s(),
            _ => None,
        };
        let three = values.and_then(|values| values.collect::<Vec<_>>().try_into().ok());
        three.ok_or_else(|| keys.missing(key))
    }
}

/// Returns the sides to resize to, both multiples of `unit`.
fn size(sides: [usize; 2], unit: usize, [least, most]: [usize; 2]) -> [usize; 2] {
    let unit = unit as f32;
    let [w, h] = sides.map(|side| side as f32);
    let rounded = sides.map(|side| ((side as f32 / unit).round() * unit).max(unit));
    let pixels = |cells: usize| cells as f64 * f64::from(unit).powi(2);
    let area = f64::from(rounded[0]) * f64::from(rounded[1]);
    let [width, height] = if area > pixels(most) {
        let beta = (h * w / pixels(most) as f32).sqrt();
        [w, h].map(|side| ((side / beta / unit).floor() * unit).max(unit))
    } else if area < pixels(least) {
        let beta = (pixels(least) as f32 / (h * w)).sqrt();
        [w, h].map(|side| (side * beta / unit).ceil() * unit)
    } else {
        rounded
    };
    [width as usize, height as usize]
}

impl Plane {
    /// Scales by one factor until the image fits, and centres it on a colour.
    fn fitted(self, [width, height]: [usize; 2], filter: Filter, around: u8) -> Plane {
        if (self.width, self.height) == (width, height) {
            return self;
        }
        let across = width as f32 / self.width as f32;
        let factor = across.min(height as f32 / self.height as f32);
        let scaled =
            |side: usize, most: usize| (((side as f32) * factor).ceil() as usize).min(most);
        let inner = [scaled(self.width, width), scaled(self.height, height)];
        let inner = inner.map(|side| side.max(1));
        let image = self.stretched(inner, filter);
        let (left, top) = ((width - inner[0]) / 2, (height - inner[1]) / 2);
        let mut bytes = vec![around; width * height];
        for (y, row) in image.bytes.chunks(inner[0]).enumerate() {
            bytes[(top + y) * width + left..][..inner[0]].copy_from_slice(row);
        }
        Plane {
            width,
            height,
            bytes,
        }
    }

    /// Resamples both sides.
    fn stretched(self, [width, height]: [usize; 2], filter: Filter) -> Plane {
        let across = self.across(width, filter).turned();
        across.across(height, filter).turned()
    }

    /// Returns the upper left part.
    fn cropped(self, [width, height]: [usize; 2]) -> Plane {
        let rows = self.bytes.chunks(self.width).take(height);
        Plane {
            width,
            height,
            bytes: rows.flat_map(|row| &row[..width]).copied().collect(),
        }
    }

    /// Transposes the plane.
    fn turned(&self) -> Plane {
        let (width, height) = (self.height, self.width);
        let at = |i: usize| self.bytes[i % width * self.width + i / width];
        Plane {
            width,
            height,
            bytes: (0..width * height).map(at).collect(),
        }
    }

    /// Resamples its rows to `to` pixels.
    fn across(self, to: usize, filter: Filter) -> Plane {
        if to == self.width {
            return self;
        }
        let kernels: Vec<_> = (0..to)
            .map(|out| kernel(out, self.width, to, filter))
            .collect();
        let mut bytes = Vec::with_capacity(to * self.height);
        for row in self.bytes.chunks(self.width) {
            bytes.extend(kernels.iter().map(|(first, weights)| {
                let terms = weights.iter().zip(&row[*first..]);
                let sum: i64 = terms.map(|(weight, x)| weight * i64::from(*x)).sum();
                ((sum + (ONE >> 1)) >> FRACTION).clamp(0, 255) as u8
            }));
        }
        Plane {
            width: to,
            height: self.height,
            bytes,
        }
    }
}

/// Fraction bits of a weight.
const FRACTION: u32 = 22;
const ONE: i64 = 1 << FRACTION;

/// Returns the first input pixel of output pixel `out`, and the weights from there on.
fn kernel(out: usize, from: usize, to: usize, filter: Filter) -> (usize, Vec<i64>) {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0);
    let centre = (out as f64 + 0.5) * scale;
    let reach = filter.radius() * stretch;
    let first = (centre - reach + 0.5).trunc().max(0.0) as usize;
    let end = ((centre + reach + 0.5).trunc() as usize).min(from);
    let weights: Vec<f64> = (first..end)
        .map(|i| filter.at((i as f64 - centre + 0.5) * (1.0 / stretch)))
        .collect();
    let sum: f64 = weights.iter().sum();
    let fixed = |w: &f64| {
        let w = if sum == 0.0 { *w } else { w / sum } * ONE as f64;
        (w + 0.5f64.copysign(w)).trunc() as i64
    };
    (first, weights.iter().map(fixed).collect())
}

/// Evaluates Keys' cubic convolution with a = -1/2.
fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    match x.abs() {
        x if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
        _ => 0.0,
    }
}
