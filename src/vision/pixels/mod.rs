//! Image preprocessing: decoded, resized, padded and normalised, equal to llama.cpp's libmtmd to
//! the bit for PNG, JPEG, BMP and GIF files.

mod bmp;
mod decode;
mod gif;
mod image;
mod jpeg;
mod resample;
mod size;
mod tiles;

pub use self::image::{DecodedImage, Limits};
pub use decode::decode;
pub use resample::{Filter, fit};
pub(crate) use resample::{fit_on, resample};
pub(crate) use size::max_image_tokens;
pub use size::{Size, TokenLimits};
pub use tiles::Tiles;

use crate::tower::Hparams;
use crate::tower::arch::Images;

/// An image ready for a vision encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// Size in the file.
    pub source: Size,
    /// Pictures that the encoder computes one after the other: at least one.
    pub tiles: Vec<Tile>,
    /// Columns and rows of tiles; an overview, which is the last tile, is in none.
    pub grid: [usize; 2],
}

/// A picture of the size that a vision encoder computes at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Tile {
    /// Resized and padded image, or a part of it.
    pub image: DecodedImage,
    /// Normalised planes of red, green and blue, `[3][height][width]`.
    pub planes: Vec<f32>,
}

/// Normalised pixels, the input of an encoder.
#[derive(Clone, Copy, Debug)]
pub struct Pixels<'a> {
    /// Pixels per row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// Planes of red, green and blue, `[3][height][width]`.
    pub planes: &'a [f32],
}

impl Prepared {
    /// Resizes and normalises an image for a vision encoder.
    ///
    /// # Errors
    /// If the image is so long and narrow that its resized sides would exceed all limits.
    pub fn new(
        image: &DecodedImage,
        h: &Hparams,
        limits: TokenLimits,
    ) -> Result<Prepared, crate::Error> {
        let source = image.size();
        let tiles = match h.projector.spec().images {
            Images::Dynamic { min, max, cut } => {
                let limits = TokenLimits::or([min, max], limits);
                match cut {
                    Some(cut) => (cut.tiles)(image, h, limits)?,
                    None => {
                        let to = source.for_image_tokens(h.unit(), limits)?;
                        Tiles::one(fit(image, to, Filter::Bicubic))
                    }
                }
            }
            Images::Square => {
                let to = Size::square(h.image_size);
                Tiles::one(fit(image, to, Filter::Bilinear))
            }
            Images::Tiles(tiles) => tiles(image, h, limits)?,
        };
        let tile = |image: DecodedImage| Tile {
            planes: image.normalised(h.mean, h.std),
            image,
        };
        Ok(Prepared {
            source,
            grid: tiles.grid,
            tiles: tiles.images.into_iter().map(tile).collect(),
        })
    }
}

impl Tile {
    /// Returns the encoder's input.
    pub fn pixels(&self) -> Pixels<'_> {
        Pixels {
            width: self.image.width,
            height: self.image.height,
            planes: &self.planes,
        }
    }
}

impl DecodedImage {
    /// Returns width and height.
    pub fn size(&self) -> Size {
        Size {
            width: self.width,
            height: self.height,
        }
    }

    /// Normalises to planes of red, green and blue, `[3][height][width]`: `(byte / 255 - mean) /
    /// std` per colour.
    pub fn normalised(&self, mean: [f32; 3], std: [f32; 3]) -> Vec<f32> {
        let colour = |c: usize| {
            let bytes = self.rgb.iter().skip(c).step_by(3);
            bytes.map(move |byte| (f32::from(*byte) / 255.0 - mean[c]) / std[c])
        };
        (0..3).flat_map(colour).collect()
    }
}
