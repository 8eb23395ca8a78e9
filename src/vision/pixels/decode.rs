//! Decodes image files to pixels, within limits.

use std::io::Cursor;

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader};

use super::image::{DecodedImage, Limits};
use crate::Error;

/// Decodes a PNG, JPEG, WebP, BMP or GIF file, and of animations the first frame. Transparency is
/// dropped, not blended (in a GIF file it is black); 16-bit values keep their high byte;
/// orientation tags and colour profiles are ignored: all as llama.cpp does.
///
/// # Errors
/// If it has another format, is damaged, or exceeds the limits.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<DecodedImage, Error> {
    if bytes.len() > limits.bytes {
        return Err(Error::TooManyBytes {
            got: bytes.len(),
            most: limits.bytes,
        });
    }
    let format = image::guess_format(bytes).map_err(|_| Error::Format {
        got: first_bytes(bytes),
    })?;
    if !matches!(
        format,
        ImageFormat::Png
            | ImageFormat::Jpeg
            | ImageFormat::WebP
            | ImageFormat::Bmp
            | ImageFormat::Gif
    ) {
        let got = format!("{format:?}");
        return Err(Error::Format { got });
    }
    match format {
        ImageFormat::Jpeg => return super::jpeg::decode(bytes, limits),
        ImageFormat::Gif => return super::gif::decode(bytes, limits),
        _ => {}
    }
    let bad = |error: image::ImageError| Error::Damaged {
        // decoders may return several lines
        why: error.to_string().replace(['\n', '\r'], " "),
    };
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut bounds = image::Limits::no_limits();
    bounds.max_alloc = Some(limits.memory);
    reader.limits(bounds.clone());
    let mut decoder = reader.into_decoder().map_err(bad)?;
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    if width == 0 || height == 0 {
        let why = format!("{width} x {height} pixels");
        return Err(Error::Damaged { why });
    }
    let pixels = width.checked_mul(height);
    if pixels.is_none_or(|n| n > limits.pixels) || decoder.total_bytes() > limits.memory {
        return Err(Error::TooManyPixels {
            width,
            height,
            most: limits.pixels,
        });
    }
    decoder.set_limits(bounds).map_err(bad)?;
    let image = DynamicImage::from_decoder(decoder).map_err(bad)?;
    let mut rgb = rgb(image);
    if format == ImageFormat::Bmp {
        super::bmp::widen(bytes, &mut rgb);
    }
    Ok(DecodedImage { width, height, rgb })
}

/// Converts an image to 8-bit red, green and blue.
fn rgb(image: DynamicImage) -> Vec<u8> {
    let high = |v: u16| (v >> 8) as u8;
    match image {
        DynamicImage::ImageRgb8(image) => image.into_raw(),
        DynamicImage::ImageRgba8(image) => image
            .pixels()
            .flat_map(|p| [p.0[0], p.0[1], p.0[2]])
            .collect(),
        DynamicImage::ImageLuma8(image) => image.pixels().flat_map(|p| [p.0[0]; 3]).collect(),
        DynamicImage::ImageLumaA8(image) => image.pixels().flat_map(|p| [p.0[0]; 3]).collect(),
        DynamicImage::ImageRgb16(image) => image.pixels().flat_map(|p| p.0.map(high)).collect(),
        DynamicImage::ImageRgba16(image) => image
            .pixels()
            .flat_map(|p| [p.0[0], p.0[1], p.0[2]].map(high))
            .collect(),
        DynamicImage::ImageLuma16(image) => {
            image.pixels().flat_map(|p| [high(p.0[0]); 3]).collect()
        }
        DynamicImage::ImageLumaA16(image) => {
            image.pixels().flat_map(|p| [high(p.0[0]); 3]).collect()
        }
        // these formats decode to no other types
        other => other.into_rgb8().into_raw(),
    }
}

/// Describes the first bytes of an unknown file.
fn first_bytes(bytes: &[u8]) -> String {
    match bytes {
        [] => "an empty file".to_owned(),
        _ => {
            let first = bytes.iter().take(8);
            let first: Vec<String> = first.map(|b| format!("{b:02x}")).collect();
            format!("a file that begins with {}", first.join(" "))
        }
    }
}
