//! JPEG files give the pixels of stb_image, which llama.cpp uses.

use octavo_fixtures::breaking::Rng;
use octavo_fixtures::workspace_root;
use octavo_vision::pixels::{DecodedImage, Limits, decode};
use sha2::{Digest, Sha256};

/// Files in `tests/jpeg`, their sides, and the SHA-256 of the pixels that `stbi_load` of llama.cpp
/// 0.3.36 gives (three components, on x86): all chroma subsamplings, sides that are not whole
/// blocks, and all colour spaces.
const FILES: [(&str, [usize; 2], &str); 16] = [
    (
        "444",
        [21, 19],
        "13fbe43c968c0a8c4e84b27f3406127c6af1726881dbc6ed2fbf3c2e0724c51b",
    ),
    (
        "422",
        [21, 19],
        "6e96239cddecd30feb39feedda361a6ec644c36045157cc81b48f674b2a95b87",
    ),
    (
        "420",
        [21, 19],
        "46e7abcae0924f7a0bce777f64473460240d6b2224dcdaeaa42307f0537f32b8",
    ),
    (
        "420-even",
        [32, 16],
        "2ced4747305bcdb0576654c46e9b1699d3c15c29edaffe1148d709b46b820996",
    ),
    (
        "420-one-pixel",
        [1, 1],
        "047c0a2887493b531bd79880b7d0e6d31aed6854c43fad62053c20bbc4a6a579",
    ),
    (
        "440",
        [21, 19],
        "8d1aa04c16a08026e483ff83fe07725aca08b031a294b8a7e90e0e11f8526947",
    ),
    (
        "411",
        [21, 19],
        "a982e71e1801a4c638a8beaa0f106b083d78c3ae68918e1bf3ba0b5a54a3b7b3",
    ),
    (
        "progressive",
        [21, 19],
        "46e7abcae0924f7a0bce777f64473460240d6b2224dcdaeaa42307f0537f32b8",
    ),
    (
        "progressive-422-restarts",
        [21, 19],
        "6e96239cddecd30feb39feedda361a6ec644c36045157cc81b48f674b2a95b87",
    ),
    (
        "restarts",
        [21, 19],
        "46e7abcae0924f7a0bce777f64473460240d6b2224dcdaeaa42307f0537f32b8",
    ),
    (
        "three-scans",
        [21, 19],
        "2e65813297a835381f899ae209e44049851cbc527604acc39d175986df532570",
    ),
    (
        "finer-colours",
        [21, 19],
        "b9974b15d741216a02ccab8d02f0559c8a316ff380f5794eafc686a07e1677c8",
    ),
    (
        "grey",
        [21, 19],
        "178d619c3f9525c72fc4555fc29b025d177bb10400d0cdb57e2ca5defad10481",
    ),
    (
        "rgb",
        [21, 19],
        "f9e044aacbea8943137dddbfd5b365dde14558c0dea445c267758b630906f132",
    ),
    (
        "cmyk",
        [21, 19],
        "f6e5c9c20d1004a067fc25d19fd674d1f473811e9cb15e1390581785c6198aef",
    ),
    (
        "ycck",
        [21, 19],
        "a2836b917d2a777443908dc738c676c9ee98aa73cb20fc53afc3f1b47f756e98",
    ),
];

/// Reads a JPEG file, of 21 x 19 pixels unless its name says otherwise.
pub(crate) fn file(name: &str) -> Vec<u8> {
    let path = workspace_root().join(format!("src/vision/tests/jpeg/{name}.jpg"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn decoded(bytes: &[u8]) -> DecodedImage {
    decode(bytes, &Limits::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// Returns the one-line error of a file that must be refused.
fn refusal(bytes: &[u8], limits: &Limits) -> String {
    let error = decode(bytes, limits).expect_err("it is refused");
    let error = error.to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

fn says(bytes: &[u8], part: &str) {
    let error = refusal(bytes, &Limits::default());
    assert!(error.contains(part), "{error}: expected {part}");
}

/// Returns the offset of the segment with this code.
fn segment(bytes: &[u8], code: u8) -> usize {
    let at = bytes.windows(2).position(|pair| pair == [0xff, code]);
    at.unwrap_or_else(|| panic!("a segment {code:02x}"))
}

/// Reads a file and replaces the byte at offset `behind` in a segment.
fn with(name: &str, code: u8, behind: usize, byte: u8) -> Vec<u8> {
    let mut bytes = file(name);
    let at = segment(&bytes, code) + behind;
    bytes[at] = byte;
    bytes
}

#[test]
fn pixels_are_those_of_stb_image() {
    for (name, size, expected) in FILES {
        let got = decoded(&file(name));
        assert_eq!([got.width, got.height], size, "{name}");
        assert_eq!(
            format!("{:x}", Sha256::digest(&got.rgb)),
            expected,
            "{name}"
        );
    }
}

#[test]
fn what_stands_around_the_image_changes_nothing() {
    let plain = file("420");
    let expected = decoded(&plain);
    let mut more = plain.clone();
    // an orientation tag of 90 degrees, a comment, fill bytes, and data after the end
    let exif =
        b"\xff\xe1\x00\x22Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    more.splice(2..2, exif.iter().copied());
    more.splice(2..2, *b"\xff\xfe\x00\x05\xff\xd9\x00\xff\xff\xff");
    let end = more.len() - 2;
    more.splice(end..end, *b"\x00\x00\xff\xd3");
    more.extend(b"\xff\xd8 more");
    assert_eq!(decoded(&more), expected);
}

/// Removes a segment; returns it with its marker.
fn take(bytes: &mut Vec<u8>, code: u8) -> Vec<u8> {
    let at = segment(bytes, code);
    let length = u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]);
    bytes.drain(at..at + 2 + usize::from(length)).collect()
}

#[test]
fn colours_are_what_names_or_adobes_segment_say() {
    let named = file("rgb");
    let expected = decoded(&named);
    let mut alone = named.clone();
    let adobe = take(&mut alone, 0xee);
    assert_eq!(decoded(&alone), expected);
    // other component ids in the frame and in the scan
    let numbered = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        let (frame, scan) = (segment(&bytes, 0xc0), segment(&bytes, 0xda));
        for i in 0..3 {
            bytes[frame + 10 + 3 * i] = i as u8;
            bytes[scan + 5 + 2 * i] = i as u8;
        }
        bytes
    };
    assert_eq!(decoded(&numbered(&named)), expected);
    assert_ne!(decoded(&numbered(&alone)), expected);
    // these ids are not allowed in JFIF
    let mut both = numbered(&named);
    both.splice(2..2, *b"\xff\xe0\x00\x07JFIF\0");
    assert_eq!(decoded(&both), decoded(&numbered(&alone)));
    both.splice(2..2, adobe);
    assert_eq!(decoded(&both), decoded(&numbered(&alone)));
}

#[test]
fn steps_of_16_bits_are_read() {
    let narrow = file("grey");
    let mut wide = narrow.clone();
    let steps = take(&mut wide, 0xdb);
    let mut table = b"\xff\xdb\x00\x83\x10".to_vec();
    table.extend(steps[5..69].iter().flat_map(|step| [0, *step]));
    wide.splice(2..2, table);
    assert_eq!(decoded(&wide), decoded(&narrow));
}

#[test]
fn a_file_that_is_cut_short_is_refused() {
    for name in ["420", "progressive", "grey", "restarts", "three-scans"] {
        let whole = file(name);
        for end in 3..whole.len() {
            let error = refusal(&whole[..end], &Limits::default());
            assert!(
                error.contains("a damaged image: the JPEG"),
                "{name}: {error}"
            );
        }
    }
    let mut ended = file("420");
    let data = segment(&ended, 0xda) + 40;
    ended.splice(data.., *b"\xff\xd9");
    says(&ended, "the JPEG's data ends before its image");
    let two = file("three-scans");
    let last = two.windows(2).rposition(|pair| pair == [0xff, 0xda]);
    let two = [&two[..last.expect("a scan")], b"\xff\xd9"].concat();
    says(&two, "no data for one of its components");
}

#[test]
fn other_kinds_are_refused_by_name() {
    says(
        &with("420", 0xc0, 1, 0xc9),
        "got a lossless, hierarchical or arithmetic-coded JPEG",
    );
    says(&with("420", 0xc0, 4, 12), "got a JPEG of 12 bits a colour");
    says(&with("420", 0xc0, 9, 2), "got a JPEG of 2 components");
    says(
        &with("420", 0xc0, 14, 0x33),
        "got a JPEG whose colours have fractional scales",
    );
    says(&with("420", 0xc0, 8, 0), "0 x 19 pixels");
    says(&with("420", 0xdb, 1, 0xcc), "an unexpected JPEG segment cc");
    says(&with("420", 0xdb, 4, 3), "lacks a table of steps");
    says(&with("420", 0xc4, 4, 3), "lacks a table of codes");
    says(&with("420", 0xdb, 3, 10), "a segment that is too short");
    // refines coefficients that have no first bits
    says(
        &with("progressive", 0xda, 13, 0x10),
        "an order that cannot be",
    );
}

#[test]
fn no_more_is_asked_for_than_the_limits() {
    let usual = Limits::default();
    let pixels = 21 * 19;
    let few = Limits {
        pixels: pixels - 1,
        ..usual
    };
    let error = refusal(&file("420"), &few);
    assert!(
        error.contains("21 x 19 pixels") && error.contains("at most 398"),
        "{error}"
    );
    assert!(decode(&file("420"), &Limits { pixels, ..usual }).is_ok());
    // whole blocks of all components, and three bytes per pixel
    for (name, memory) in [
        ("420", 32 * 32 * 3 / 2 + 1197),
        ("progressive", 32 * 32 * 9 / 2 + 1197),
    ] {
        assert!(
            decode(&file(name), &Limits { memory, ..usual }).is_ok(),
            "{name}"
        );
        let error = refusal(
            &file(name),
            &Limits {
                memory: memory - 1,
                ..usual
            },
        );
        assert!(error.contains("at most 398"), "{name}: {error}");
    }
    let mut large = file("420");
    let at = segment(&large, 0xc0) + 5;
    large[at..at + 4].fill(255);
    says(&large, "65535 x 65535 pixels");
    // every scan takes time, however short it is
    let one = file("grey");
    let (start, end) = (segment(&one, 0xda), one.len() - 2);
    let scans = |n: usize| [&one[..start], &one[start..end].repeat(n), &one[end..]].concat();
    assert_eq!(decoded(&scans(100)), decoded(&one));
    says(&scans(101), "more than 100 scans");
}

/// Files with altered bytes either decode or give a one-line error.
#[test]
fn damaged_files_are_refused_or_read() {
    let mut rng = Rng(13);
    let (mut refused, mut read) = (0, 0);
    for (name, ..) in FILES {
        let whole = file(name);
        for round in 0..200 {
            let mut bytes = whole.clone();
            for _ in 0..[1, 1, 4][round % 3] {
                let at = rng.below(bytes.len());
                bytes[at] = [0, 255, bytes[at] ^ (1 << rng.below(8))][rng.below(3)];
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
    assert!(
        refused > 500 && read > 500,
        "{refused} refused, {read} read"
    );
}
