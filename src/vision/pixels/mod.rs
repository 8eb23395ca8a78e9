//! From the bytes of an image file to what a tower reads, equal to llama.cpp's libmtmd to the bit
//! for PNG, JPEG, BMP and GIF files: decoded, scaled, padded and normalised.

mod bmp;
mod decode;
mod gif;
mod jpeg;
mod resample;
mod size;

pub use decode::{Limits, Picture, decode};
pub use resample::fit;
pub use size::{Size, TokenLimits};

use crate::tower::Hparams;

/// A picture as a tower reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// As it was in the file.
    pub source: Size,
    /// Scaled and padded.
    pub picture: Picture,
    /// Normalised planes of red, green and blue, `[3][height][width]`.
    pub planes: Vec<f32>,
}

/// Normalised pixels, as an encoder takes them.
#[derive(Clone, Copy, Debug)]
pub struct Pixels<'a> {
    /// Of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Planes of red, green and blue, `[3][height][width]`.
    pub planes: &'a [f32],
}

impl Prepared {
    /// Scales and normalises a picture for a tower.
    ///
    /// # Errors
    /// If the picture is so long and narrow that its sides would be beyond all limits.
    pub fn new(
        picture: &Picture,
        h: &Hparams,
        limits: TokenLimits,
    ) -> Result<Prepared, crate::Error> {
        let source = picture.size();
        let to = source.for_cells(h.unit(), limits)?;
        let picture = fit(picture, to);
        Ok(Prepared {
            source,
            planes: picture.normalised(h.mean, h.std),
            picture,
        })
    }

    /// What an encoder takes.
    pub fn pixels(&self) -> Pixels<'_> {
        Pixels {
            width: self.picture.width,
            height: self.picture.height,
            planes: &self.planes,
        }
    }
}

impl Picture {
    /// Width and height.
    pub fn size(&self) -> Size {
        Size {
            width: self.width,
            height: self.height,
        }
    }

    /// Planes of red, green and blue, `[3][height][width]`: every byte as a part of 255, less the
    /// mean of its colour, divided by its deviation.
    pub fn normalised(&self, mean: [f32; 3], std: [f32; 3]) -> Vec<f32> {
        let colour = |c: usize| {
            let bytes = self.rgb.iter().skip(c).step_by(3);
            bytes.map(move |byte| (f32::from(*byte) / 255.0 - mean[c]) / std[c])
        };
        (0..3).flat_map(colour).collect()
    }
}
