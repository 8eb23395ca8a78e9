//! BMP and GIF files give the pixels of stb_image, which llama.cpp uses.

use gif::{Encoder, Frame};
use octavo_vision::pixels::{DecodedImage, Limits, decode};

fn decoded(bytes: &[u8]) -> DecodedImage {
    decode(bytes, &Limits::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// A BMP file, with rows from the bottom up unless `height` is negative.
struct Bmp {
    width: i32,
    height: i32,
    bits: u16,
    compression: u32,
    /// Colour masks, or a palette.
    table: Vec<u8>,
    data: Vec<u8>,
}

impl Bmp {
    fn bytes(&self) -> Vec<u8> {
        let offset = 54 + self.table.len();
        let mut bytes = b"BM".to_vec();
        let mut word = |n: u32| bytes.extend(n.to_le_bytes());
        word((offset + self.data.len()) as u32);
        word(0);
        word(offset as u32);
        word(40);
        word(self.width as u32);
        word(self.height as u32);
        word(1 | u32::from(self.bits) << 16);
        word(self.compression);
        word(self.data.len() as u32);
        [2835, 2835, 0, 0].into_iter().for_each(word);
        [bytes, self.table.clone(), self.data.clone()].concat()
    }
}

/// Returns the colours, of few bits, of a pixel in a 4 x 3 image.
fn colours(row: usize, x: usize) -> [u32; 3] {
    [row * 4 + x, 31 - row * 5 - x, x * 9 + row].map(|n| n as u32)
}

#[test]
fn bitmaps_of_every_depth_are_read() {
    let (width, height) = (5, 3);
    let rgb = |row: usize, x: usize| [(row * 70 + x) as u8, (x * 50) as u8, 255 - row as u8];
    let expected: Vec<u8> = (0..height)
        .flat_map(|row| (0..width).flat_map(move |x| rgb(row, x)))
        .collect();
    let line = |row: usize, bytes: usize| -> Vec<u8> {
        let pixel = |x: usize| {
            let [r, g, b] = rgb(row, x);
            [b, g, r, 7][..bytes].to_vec()
        };
        let mut line: Vec<u8> = (0..width).flat_map(pixel).collect();
        line.resize(line.len().next_multiple_of(4), 0);
        line
    };
    for (bits, from_below) in [(24, true), (24, false), (32, true), (32, false)] {
        let mut rows: Vec<usize> = (0..height).collect();
        if from_below {
            rows.reverse();
        }
        let file = Bmp {
            width: width as i32,
            height: if from_below {
                height as i32
            } else {
                -(height as i32)
            },
            bits,
            compression: 0,
            table: Vec::new(),
            data: rows
                .iter()
                .flat_map(|row| line(*row, usize::from(bits / 8)))
                .collect(),
        };
        let image = decoded(&file.bytes());
        assert_eq!((image.width, image.height), (width, height));
        assert!(image.rgb == expected, "{bits} bits, {from_below}");
    }
    // palette indices of 1, 4 and 8 bits
    for bits in [1_u16, 4, 8] {
        let n = 1_usize << bits;
        let code = |row: usize, x: usize| (row * 3 + x * 7) % n.min(251);
        let entry = |code: usize| [(code * 3) as u8, 255 - code as u8, (code * 5) as u8];
        let line = |row: usize| -> Vec<u8> {
            let of_byte = usize::from(8 / bits);
            let byte = |at: usize| {
                let codes = (0..of_byte)
                    .map(|i| at * of_byte + i)
                    .map(|x| match x < width {
                        true => code(row, x),
                        false => 0,
                    });
                codes.fold(0, |byte: usize, code| byte << bits | code) as u8
            };
            let mut line: Vec<u8> = (0..width.div_ceil(of_byte)).map(byte).collect();
            line.resize(line.len().next_multiple_of(4), 0);
            line
        };
        let file = Bmp {
            width: width as i32,
            height: height as i32,
            bits,
            compression: 0,
            table: (0..n)
                .flat_map(|code| {
                    let [r, g, b] = entry(code);
                    [b, g, r, 0]
                })
                .collect(),
            data: (0..height).rev().flat_map(line).collect(),
        };
        let expected: Vec<u8> = (0..height)
            .flat_map(|row| (0..width).flat_map(move |x| entry(code(row, x))))
            .collect();
        assert!(decoded(&file.bytes()).rgb == expected, "{bits} bits");
    }
}

/// stb_image repeats the upper bits of a colour below it: `v << 3 | v >> 2` for five bits.
#[test]
fn colours_of_few_bits_are_widened_as_stb_image_does() {
    let fields = |masks: [u32; 3]| masks.iter().flat_map(|m| m.to_le_bytes()).collect();
    let (five, six) = ([0x7C00, 0x3E0, 0x1F], [0xF800, 0x7E0, 0x1F]);
    // bits of a pixel, compression, table, masks, widths
    type Case = (u16, u32, Vec<u8>, [u32; 3], [u32; 3]);
    let cases: [Case; 4] = [
        (16, 0, Vec::new(), five, [5, 5, 5]),
        (16, 3, fields(five), five, [5, 5, 5]),
        (16, 3, fields(six), six, [5, 6, 5]),
        (32, 3, fields([0xF800, 0x7E0, 0x1F]), six, [5, 6, 5]),
    ];
    for (bits, compression, table, masks, widths) in cases {
        let value = |row: usize, x: usize| {
            let fields = colours(row, x).into_iter().zip(masks);
            let placed = fields.map(|(v, mask)| (v << mask.trailing_zeros()) & mask);
            placed.fold(0, |all, field| all | field)
        };
        let line = |row: usize| -> Vec<u8> {
            (0..4)
                .flat_map(|x| value(row, x).to_le_bytes()[..usize::from(bits / 8)].to_vec())
                .collect()
        };
        let file = Bmp {
            width: 4,
            height: 3,
            bits,
            compression,
            table,
            data: (0..3).rev().flat_map(line).collect(),
        };
        let widened = |(v, bits): (u32, u32)| {
            let v = v & ((1 << bits) - 1);
            (v << (8 - bits) | v >> (2 * bits - 8)) as u8
        };
        let expected: Vec<u8> = (0..3)
            .flat_map(|row| (0..4).map(move |x| (row, x)))
            .flat_map(|(row, x)| {
                let colours = colours(row, x).into_iter().zip(widths);
                colours.map(widened).collect::<Vec<u8>>()
            })
            .collect();
        assert!(
            decoded(&file.bytes()).rgb == expected,
            "{bits} bits {compression}"
        );
    }
}

/// Five colours: black, red, green, blue, and one with three different values.
const PALETTE: [u8; 15] = [0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255, 10, 20, 30];

fn gif(frames: &[Frame<'_>], background: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, 6, 4, &PALETTE).expect("a header");
    for frame in frames {
        encoder.write_frame(frame).expect("a frame");
    }
    drop(encoder);
    // encoders always write background index 0
    bytes[11] = background;
    bytes
}

fn frame(left: u16, top: u16, width: u16, codes: &[u8]) -> Frame<'static> {
    Frame {
        left,
        top,
        width,
        height: codes.len() as u16 / width,
        buffer: codes.to_vec().into(),
        ..Frame::default()
    }
}

#[test]
fn of_a_moving_image_the_first_is_read() {
    let codes = [1, 2, 3, 4, 4, 3, 2, 1];
    let shown = [255, 0, 0, 0, 255, 0, 0, 0, 255, 10, 20, 30];
    let first = frame(1, 2, 4, &codes);
    let second = frame(0, 0, 6, &[1; 24]);
    let at = |x: usize, y: usize| 3 * (6 * y + x);
    // the rest is black, unless the file names a background: then that colour with red and blue
    // swapped
    for (background, around) in [(0, [0, 0, 0]), (4, [30, 20, 10]), (200, [0, 0, 0])] {
        let image = decoded(&gif(&[first.clone(), second.clone()], background));
        assert_eq!((image.width, image.height), (6, 4));
        assert_eq!(image.rgb[..3], around, "{background}");
        assert_eq!(image.rgb[at(5, 3)..], around);
        assert_eq!(image.rgb[at(1, 2)..at(5, 2)], shown);
        assert_eq!(image.rgb[at(1, 3)..at(2, 3)], [10, 20, 30]);
    }
    // transparent pixels inside the frame are black
    let holes = Frame {
        transparent: Some(4),
        ..first.clone()
    };
    let image = decoded(&gif(&[holes], 1));
    assert_eq!(image.rgb[at(4, 2)..at(5, 2)], [0, 0, 0]);
    assert_eq!(image.rgb[at(5, 2)..at(5, 2) + 3], [0, 0, 255]);
    // a frame with its own palette
    let own = Frame {
        palette: Some(vec![9, 8, 7, 1, 2, 3]),
        ..frame(0, 0, 6, &[[0; 6], [1; 6], [0; 6], [1; 6]].concat())
    };
    let image = decoded(&gif(&[own], 0));
    assert_eq!(image.rgb[at(0, 2)..at(1, 2)], [9, 8, 7]);
    assert_eq!(image.rgb[at(5, 3)..], [1, 2, 3]);
}

#[test]
fn frames_beyond_the_image_and_large_images_are_refused() {
    let outside = gif(&[frame(3, 0, 4, &[1; 16])], 0);
    let error = decode(&outside, &Limits::default()).expect_err("it is refused");
    assert!(
        error.to_string().starts_with("a damaged image: "),
        "{error}"
    );
    let nothing = gif(&[], 0);
    assert!(decode(&nothing, &Limits::default()).is_err());
    let few = Limits {
        pixels: 23,
        ..Limits::default()
    };
    let small = gif(&[frame(0, 0, 6, &[1; 24])], 0);
    let error = decode(&small, &few).expect_err("it is refused").to_string();
    assert_eq!(
        error,
        "an image of 6 x 4 pixels: expected at most 23 pixels"
    );
    // a header that claims 65535 x 65535 pixels
    let mut large = small;
    large[6..10].fill(255);
    let error = decode(&large, &Limits::default()).expect_err("it is refused");
    assert!(error.to_string().contains("65535 x 65535"), "{error}");
}

/// Random files of all kinds, decoded with llama.cpp's copy of stb_image: `stbi_load` with three
/// components requested.
#[test]
fn random_files_have_stb_images_pixels() {
    let bytes = |hex: &str| -> Vec<u8> {
        let pairs = (0..hex.len()).step_by(2).map(|at| &hex[at..at + 2]);
        pairs
            .map(|pair| u8::from_str_radix(pair, 16).expect("a byte"))
            .collect()
    };
    let mut n = 0;
    for line in include_str!("bitmaps.txt").lines().skip(1) {
        let [name, width, height, file, pixels] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let image = decoded(&bytes(file));
        let size = [image.width, image.height].map(|n| n.to_string());
        assert_eq!([width, height], size, "{name}");
        assert!(image.rgb == bytes(pixels), "{name}");
        n += 1;
    }
    assert_eq!(n, 35);
}
