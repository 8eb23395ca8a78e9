//! Decoding, sizes and scaling.

use std::io::Cursor;

use image::{DynamicImage, ImageFormat};
use octavo_fixtures::breaking::Rng;
use octavo_fixtures::shared;
use octavo_vision::pixels::{DecodedImage, Filter, Limits, Size, decode, fit};
use proptest::prelude::*;

/// Encodes an image as a file.
fn file(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).expect("it is written");
    bytes.into_inner()
}

fn decoded(bytes: &[u8]) -> DecodedImage {
    decode(bytes, &Limits::default()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn sizes_are_llama_cpps() {
    let mut compared = 0;
    for name in ["sizes-default", "sizes-limits"] {
        let Some(path) = shared(&format!("vision/goldens/{name}.json")) else {
            return;
        };
        let text = std::fs::read(path).expect("a file");
        let all: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let limit = |key: &str, usual| all[key].as_u64().map_or(usual, |n| n as usize);
        let limits = [limit("min_tokens", 8), limit("max_tokens", 4096)];
        let sizes = all["sizes"].as_array().expect("a list");
        compared += sizes.len();
        for case in sizes {
            let pair = |key: &str| {
                let side = |i: usize| case[key][i].as_u64().expect("a side") as usize;
                [side(0), side(1)]
            };
            let [width, height] = pair("source");
            let got = Size { width, height }
                .for_image_tokens(32, limits)
                .expect("usual");
            let cells = [got.width / 32, got.height / 32];
            assert_eq!(cells, pair("tokens"), "{name}: {width} x {height}");
        }
    }
    assert_eq!(compared, 202, "sizes");
}

#[test]
fn sizes_at_the_edge_of_what_can_be_are_sizes_or_errors() {
    let sides = [1, 2, 31, 32, 65_535, 1 << 24, 1 << 31, usize::MAX];
    for width in sides {
        for height in sides {
            for (min, max) in [(8, 4096), (1, 1), (4096, 4096), (8, usize::MAX)] {
                match (Size { width, height }).for_image_tokens(28, [min, max]) {
                    Ok(size) => {
                        let is_whole = |side: usize| side > 0 && side.is_multiple_of(28);
                        assert!(is_whole(size.width) && is_whole(size.height), "{size:?}");
                    }
                    Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
                }
            }
        }
    }
}

/// Returns images of 5 x 3 pixels of all pixel types, each with its 8-bit RGB equivalent.
fn kinds_of_pixels() -> Vec<(DynamicImage, Vec<u8>)> {
    let mut rng = Rng(5);
    let (w, h) = (5u32, 3u32);
    let mut bytes = |n: usize| -> Vec<u8> { (0..n).map(|_| rng.below(256) as u8).collect() };
    let n = (w * h) as usize;
    let rgb = bytes(3 * n);
    let rgba = bytes(4 * n);
    let gray = bytes(n);
    let gray_alpha = bytes(2 * n);
    let wide: Vec<u16> = bytes(8 * n)
        .chunks(2)
        .map(|b| u16::from_le_bytes([b[0], b[1]]))
        .collect();
    let high = |v: &u16| (v >> 8) as u8;
    let of = |image: Option<DynamicImage>| image.expect("as many values as pixels");
    vec![
        (
            of(image::RgbImage::from_raw(w, h, rgb.clone()).map(Into::into)),
            rgb.clone(),
        ),
        (
            of(image::RgbaImage::from_raw(w, h, rgba.clone()).map(Into::into)),
            rgba.chunks(4).flat_map(|p| p[..3].to_vec()).collect(),
        ),
        (
            of(image::GrayImage::from_raw(w, h, gray.clone()).map(Into::into)),
            gray.iter().flat_map(|v| [*v; 3]).collect(),
        ),
        (
            of(image::GrayAlphaImage::from_raw(w, h, gray_alpha.clone()).map(Into::into)),
            gray_alpha.chunks(2).flat_map(|p| [p[0]; 3]).collect(),
        ),
        (
            of(image::ImageBuffer::from_raw(w, h, wide[..3 * n].to_vec())
                .map(DynamicImage::ImageRgb16)),
            wide[..3 * n].iter().map(high).collect(),
        ),
        (
            of(image::ImageBuffer::from_raw(w, h, wide.clone()).map(DynamicImage::ImageRgba16)),
            wide.chunks(4)
                .flat_map(|p| [high(&p[0]), high(&p[1]), high(&p[2])])
                .collect(),
        ),
        (
            of(image::ImageBuffer::from_raw(w, h, wide[..n].to_vec())
                .map(DynamicImage::ImageLuma16)),
            wide[..n].iter().flat_map(|v| [high(v); 3]).collect(),
        ),
    ]
}

#[test]
fn every_kind_of_pixel_is_read_as_llama_cpp_does() {
    for (image, expected) in kinds_of_pixels() {
        let got = decoded(&file(&image, ImageFormat::Png));
        assert_eq!((got.width, got.height), (5, 3));
        assert_eq!(got.rgb, expected, "{:?}", image.color());
        if matches!(
            image,
            DynamicImage::ImageRgb8(_) | DynamicImage::ImageRgba8(_)
        ) {
            let webp = decoded(&file(&image, ImageFormat::WebP));
            // lossless, except where fully transparent
            let seen = |i: usize| {
                image
                    .as_rgba8()
                    .is_none_or(|p| p.as_raw()[4 * (i / 3) + 3] > 0)
            };
            let same = webp.rgb.iter().zip(&expected).enumerate();
            assert!(
                same.into_iter().all(|(i, (a, b))| a == b || !seen(i)),
                "WebP"
            );
        }
    }
}

#[test]
fn other_files_and_too_large_ones_are_refused_in_a_line() {
    let small = file(&DynamicImage::new_rgb8(40, 30), ImageFormat::Png);
    let says = |bytes: &[u8], limits: &Limits, parts: &[&str]| {
        let error = decode(bytes, limits)
            .expect_err("it is refused")
            .to_string();
        assert!(!error.contains('\n'), "{error}");
        for part in parts {
            assert!(error.contains(part), "{error}: expected {part}");
        }
    };
    let usual = Limits::default();
    says(
        b"",
        &usual,
        &["PNG, JPEG, WebP, BMP or GIF", "an empty file"],
    );
    says(
        b"hello, this is text",
        &usual,
        &["begins with 68 65 6c 6c 6f"],
    );
    says(
        b"II*\x00\x08\x00\x00\x00",
        &usual,
        &["PNG, JPEG, WebP, BMP or GIF", "Tiff"],
    );
    says(
        &small,
        &Limits { bytes: 20, ..usual },
        &[&format!("{} bytes", small.len()), "at most 20"],
    );
    says(
        &small,
        &Limits {
            pixels: 1199,
            ..usual
        },
        &["40 x 30 pixels", "at most 1199"],
    );
    // a header that claims 65535 x 65535 pixels
    let mut large = small.clone();
    large[16..24].copy_from_slice(&[0, 0, 255, 255, 0, 0, 255, 255]);
    assert!(decode(&large, &usual).is_err());
}

/// Files that are cut short or have altered bytes either decode or give a one-line error.
#[test]
fn damaged_files_are_refused_or_read() {
    let mut rng = Rng(11);
    let image = image::RgbImage::from_fn(37, 23, |x, y| {
        image::Rgb([(7 * x + y) as u8, (x * y) as u8, (3 * y) as u8])
    });
    let image = DynamicImage::ImageRgb8(image);
    let (mut refused, mut read) = (0, 0);
    for format in [ImageFormat::Png, ImageFormat::WebP, ImageFormat::Bmp] {
        let whole = file(&image, format);
        for round in 0..140 {
            let mut bytes = whole.clone();
            match round % 4 {
                0 => bytes.truncate(rng.below(whole.len())),
                1 => {
                    let at = rng.below(whole.len());
                    bytes[at] ^= 1 << rng.below(8);
                }
                // near the start, where sizes are stored
                2 => {
                    let at = rng.below(whole.len().min(64));
                    bytes[at] = [0, 255, 127, 128][rng.below(4)];
                }
                _ => {
                    for _ in 0..20 {
                        let at = rng.below(whole.len());
                        bytes[at] = rng.below(256) as u8;
                    }
                }
            }
            match decode(&bytes, &Limits::default()) {
                Ok(image) => {
                    assert_eq!(image.rgb.len(), 3 * image.width * image.height);
                    read += 1;
                }
                Err(error) => {
                    assert!(!error.to_string().contains('\n'), "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 100 && read > 20, "{refused} refused, {read} read");
}

/// Computes a single pixel of Pillow's resampling: both passes by the formula.
fn slow(image: &DecodedImage, to: Size, x: usize, y: usize, filter: Filter) -> [u8; 3] {
    let (support, kernel): (f64, fn(f64) -> f64) = match filter {
        Filter::Bilinear => (1.0, |t| (1.0 - t.abs()).max(0.0)),
        Filter::Bicubic => (2.0, cubic),
        Filter::Lanczos => (3.0, |t| {
            let sinc = |t: f64| if t == 0.0 { 1.0 } else { t.sin() / t };
            let t = t * std::f64::consts::PI;
            if t.abs() < 3.0 * std::f64::consts::PI {
                sinc(t) * sinc(t / 3.0)
            } else {
                0.0
            }
        }),
    };
    let weights = |from: usize, to: usize, out: usize| -> Vec<(usize, i64)> {
        if from == to {
            return vec![(out, 1 << 22)];
        }
        let scale = from as f64 / to as f64;
        let fs = scale.max(1.0);
        let centre = (out as f64 + 0.5) * scale;
        let first = (centre - support * fs + 0.5).trunc().max(0.0) as usize;
        let end = ((centre + support * fs + 0.5).trunc() as usize).min(from);
        let all: Vec<f64> = (first..end)
            .map(|i| kernel((i as f64 - centre + 0.5) / fs))
            .collect();
        let sum: f64 = all.iter().sum();
        let fixed = all.iter().map(|w| (w / sum * 4_194_304.0).round() as i64);
        (first..end).zip(fixed).collect()
    };
    let pass = |terms: &[(usize, i64)], value: &dyn Fn(usize) -> u8| {
        let sum: i64 = terms.iter().map(|(i, w)| w * i64::from(value(*i))).sum();
        ((sum + (1 << 21)) >> 22).clamp(0, 255) as u8
    };
    let across = weights(image.width, to.width, x);
    let down = weights(image.height, to.height, y);
    [0, 1, 2].map(|c| {
        let line = |y: usize| pass(&across, &|x| image.rgb[3 * (y * image.width + x) + c]);
        pass(&down, &line)
    })
}

/// Evaluates Keys' cubic convolution.
fn cubic(t: f64) -> f64 {
    match t.abs() {
        t if t < 1.0 => 1.5 * t * t * t - 2.5 * t * t + 1.0,
        t if t < 2.0 => -0.5 * (t * t * t - 5.0 * t * t + 8.0 * t - 4.0),
        _ => 0.0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn scaling_is_the_formula_and_the_rest_is_black(
        (w, h) in (1usize..70, 1usize..70),
        (tw, th) in (1usize..70, 1usize..70),
        filter in prop_oneof![
            Just(Filter::Bicubic), Just(Filter::Bilinear), Just(Filter::Lanczos)
        ],
        seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed | 1);
        let rgb = (0..3 * w * h).map(|_| rng.below(256) as u8).collect();
        let image = DecodedImage { width: w, height: h, rgb };
        let to = Size { width: tw, height: th };
        let got = fit(&image, to, filter);
        prop_assert_eq!((got.width, got.height), (tw, th));
        let scale = (tw as f32 / w as f32).min(th as f32 / h as f32);
        let side = |from: usize, to: usize| ((from as f32 * scale).ceil() as usize).clamp(1, to);
        let inner = Size { width: side(w, tw), height: side(h, th) };
        let (left, top) = ((tw - inner.width) / 2, (th - inner.height) / 2);
        for y in 0..th {
            for x in 0..tw {
                let at = 3 * (y * tw + x);
                let inside = (left..left + inner.width).contains(&x)
                    && (top..top + inner.height).contains(&y);
                let same = || image.rgb[at..at + 3].try_into().expect("three");
                let expected = match inside {
                    true if (w, h) == (tw, th) => same(),
                    true => slow(&image, inner, x - left, y - top, filter),
                    false => [0; 3],
                };
                for (got, expected) in got.rgb[at..at + 3].iter().zip(expected) {
                    // weights exactly between two integers may round either way
                    prop_assert!(got.abs_diff(expected) <= 1, "{x} {y}: {got}, {expected}");
                }
            }
        }
    }
}
