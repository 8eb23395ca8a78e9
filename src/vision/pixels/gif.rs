//! Decodes the first frame of a GIF file to the pixels of stb_image, which llama.cpp uses.

use std::num::NonZeroU64;

use gif::{ColorOutput, DecodeOptions, Frame, MemoryLimit};

use super::{DecodedImage, Limits};
use crate::Error;

/// Decodes the first frame of a GIF file.
///
/// # Errors
/// If it is damaged, or exceeds the limits.
pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<DecodedImage, Error> {
    let damaged = |why: String| Error::Damaged { why };
    let bad = |error: gif::DecodingError| damaged(error.to_string().replace(['\n', '\r'], " "));
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    options.check_frame_consistency(true);
    if let Some(most) = NonZeroU64::new(limits.memory) {
        options.set_memory_limit(MemoryLimit::Bytes(most));
    }
    let mut decoder = options.read_info(bytes).map_err(bad)?;
    let (width, height) = (usize::from(decoder.width()), usize::from(decoder.height()));
    if width == 0 || height == 0 {
        return Err(damaged(format!("{width} x {height} pixels")));
    }
    // three bytes and a palette index per pixel
    let memory = 4 * (width * height) as u64;
    if width * height > limits.pixels || memory > limits.memory {
        return Err(Error::TooManyPixels {
            width,
            height,
            most: limits.pixels,
        });
    }
    let global = decoder.global_palette().map(<[u8]>::to_vec);
    let background = decoder.bg_color().filter(|index| *index > 0);
    let frame = decoder.read_next_frame().map_err(bad)?;
    let frame = frame.ok_or_else(|| damaged("no image".to_owned()))?;
    let palette = frame.palette.as_deref().or(global.as_deref());
    let palette = palette.ok_or_else(|| damaged("no table of colours".to_owned()))?;
    let colour = |index: usize| palette.get(3 * index..3 * index + 3);
    // stb_image swaps red and blue of the background colour
    let around = background
        .and_then(|index| global.as_deref()?.get(3 * index..3 * index + 3))
        .map_or([0; 3], |rgb| [rgb[2], rgb[1], rgb[0]]);
    let mut rgb = around.repeat(width * height);
    draw(frame, colour, &mut rgb, width);
    Ok(DecodedImage { width, height, rgb })
}

/// Draws a frame, which lies inside the image. Transparent pixels, and indices beyond the palette,
/// become black.
fn draw<'p>(
    frame: &Frame<'_>,
    colour: impl Fn(usize) -> Option<&'p [u8]>,
    rgb: &mut [u8],
    width: usize,
) {
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let of_row = usize::from(frame.width).max(1);
    for (y, codes) in frame.buffer.chunks_exact(of_row).enumerate() {
        let at = 3 * ((top + y) * width + left);
        let pixels = rgb[at..].as_chunks_mut().0;
        for (pixel, code) in pixels.iter_mut().zip(codes) {
            let seen = colour(usize::from(*code)).filter(|_| frame.transparent != Some(*code));
            *pixel = seen.map_or([0; 3], |c| [c[0], c[1], c[2]]);
        }
    }
}
