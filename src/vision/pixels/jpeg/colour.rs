//! From a file's components to red, green and blue, by the rounding of stb_image.

use super::Tables;
use super::frame::Frame;
use super::upsample::Rows;

/// What the components are.
#[derive(Clone, Copy)]
enum Kind {
    Grey,
    Rgb,
    /// Brightness, and how far blue and red are from it. A fourth component is not looked at.
    Ycc,
    /// Inverted, as Adobe writes them.
    Cmyk,
    /// As brightness and colours, and black, which is inverted.
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

/// Red, green and blue of every pixel.
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
            // a frame has one, three or four
            _ => {}
        }
    }
    rgb
}

/// In fixed point with 20 bits behind it: factors of 12 bits, shifted by 8.
fn from_ycc(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    let y = (i32::from(y) << 20) + (1 << 19);
    let (cb, cr) = (i32::from(cb) - 128, i32::from(cr) - 128);
    // blue's part of green loses its lower bits, as in stb_image's vector code
    let green = y - cr * (2925 << 8) + ((-cb * (1410 << 8)) & !0xffff);
    let all = [y + cr * (5743 << 8), green, y + cb * (7258 << 8)];
    all.map(|value| (value >> 20).clamp(0, 255) as u8)
}

/// The product of two parts of 255, rounded.
fn product(a: u8, b: u8) -> u8 {
    let product = u32::from(a) * u32::from(b) + 128;
    ((product + (product >> 8)) >> 8) as u8
}
