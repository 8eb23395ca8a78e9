//! Converts a file's components to red, green and blue, with the rounding of stb_image.

use super::Tables;
use super::frame::Frame;
use super::upsample::Rows;

/// Colour space of the components.
#[derive(Clone, Copy)]
enum Kind {
    Grey,
    Rgb,
    /// YCbCr. A fourth component is ignored.
    Ycc,
    /// CMYK, inverted, as Adobe writes it.
    Cmyk,
    /// YCbCr and black, inverted.
    Ycck,
}

fn kind(frame: &Frame, tables: &Tables) -> Kind {
    let ids: Vec<u8> = frame.components.iter().map(|c| c.id).collect();
    match (ids.len(), tables.adobe) {
        (1, _) => Kind::Grey,
        (3, _) if ids == *b"RGB" => Kind::Rgb,
        (3, Some(0)) if !tables.jfif => Kind::Rgb,
        (4, Some(0)) => Kind::Cmyk,
        (4, Some(2)) => Kind::Ycck,
        _ => Kind::Ycc,
    }
}

/// Returns red, green and blue of every pixel.
pub(super) fn rgb(frame: &Frame, tables: &Tables) -> Vec<u8> {
    let kind = kind(frame, tables);
    let mut components: Vec<Rows<'_>> = frame
        .components
        .iter()
        .map(|c| Rows::new(frame, c))
        .collect();
    let mut rgb = vec![0; 3 * frame.width * frame.height];
    for (y, row) in rgb.chunks_exact_mut(3 * frame.width).enumerate() {
        let rows: Vec<&[u8]> = components.iter_mut().map(|rows| rows.get(y)).collect();
        let pixels = row.as_chunks_mut::<3>().0.iter_mut().enumerate();
        match (kind, &rows[..]) {
            (Kind::Grey, [grey]) => pixels.for_each(|(x, to)| *to = [grey[x]; 3]),
            (Kind::Rgb, [r, g, b]) => pixels.for_each(|(x, to)| *to = [r[x], g[x], b[x]]),
            (Kind::Cmyk, [c, m, y, k]) => {
                pixels.for_each(|(x, to)| *to = [c[x], m[x], y[x]].map(|v| product(v, k[x])));
            }
            (Kind::Ycck, [y, cb, cr, k]) => pixels.for_each(|(x, to)| {
                *to = from_ycc(y[x], cb[x], cr[x]).map(|v| product(255 - v, k[x]));
            }),
            (_, [y, cb, cr, ..]) => {
                pixels.for_each(|(x, to)| *to = from_ycc(y[x], cb[x], cr[x]));
            }
            // a frame has one, three or four components
            _ => {}
        }
    }
    rgb
}

/// Converts YCbCr to RGB in fixed point with 20 fraction bits: factors have 12 bits, shifted by 8.
fn from_ycc(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    let y = (i32::from(y) << 20) + (1 << 19);
    let (cb, cr) = (i32::from(cb) - 128, i32::from(cr) - 128);
    // stb_image's SIMD code drops the lower bits of the blue term of green
    let green = y - cr * (2925 << 8) + ((-cb * (1410 << 8)) & !0xffff);
    let all = [y + cr * (5743 << 8), green, y + cb * (7258 << 8)];
    all.map(|value| (value >> 20).clamp(0, 255) as u8)
}

/// Returns `a * b / 255`, rounded.
fn product(a: u8, b: u8) -> u8 {
    let product = u32::from(a) * u32::from(b) + 128;
    ((product + (product >> 8)) >> 8) as u8
}
