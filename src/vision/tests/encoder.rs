//! Compares vision encoders with llama.cpp's goldens and with the oracle.

use std::collections::HashMap;

use octavo_engine::EngineOptions;
use octavo_engine::backend::TapView;
use octavo_kernels::{Isa, IsaChoice};
use octavo_reference::{Pixels as OraclePixels, VisionOracle};
use octavo_vision::Encoder;
use octavo_vision::pixels::{DecodedImage, Prepared, Size, Tile, TokenLimits};

use crate::support::{Family, fnv, nmse};

/// Number of sizes in the lists of the folders that have some.
const FEWEST_SIZES: usize = 4 * 130;
/// Tolerance for f32 arithmetic: some thousand roundings, each of 2^-24.
const EXACT: f64 = 1e-11;
/// The same for values inside of a tower: weights of attention have the roundings of scores, times
/// the size of these. AVX2 is at 1.8e-11 in one of them, AVX-512 below 1e-11.
const INSIDE: f64 = 4e-11;

fn encoder(gguf: &std::sync::Arc<gguf_rs_lite::Gguf>, isa: Isa, threads: usize) -> Encoder {
    let options = EngineOptions {
        isa: IsaChoice::Only(isa),
        threads: Some(threads),
        ..EngineOptions::default()
    };
    Encoder::load(gguf, &options, 512, &mut |_| {}).unwrap_or_else(|e| panic!("{e}"))
}

fn for_oracle(tile: &Tile) -> OraclePixels<'_> {
    OraclePixels {
        width: tile.image.width,
        height: tile.image.height,
        values: &tile.planes,
    }
}

#[test]
fn pixels_and_sizes_are_llama_cpps_to_the_bit() {
    let Some(families) = Family::all() else {
        return;
    };
    let mut compared = 0;
    for family in &families {
        for golden in &family.goldens {
            let gguf = family.tower(golden);
            let h = octavo_vision::Tower::load(&gguf).expect("a tower").hparams;
            for (i, tile) in golden.tiles(&h).iter().enumerate() {
                let what = format!("{} {} image {i}", family.model, golden.name);
                let chunks = golden.facts["chunks"].as_array().expect("a list");
                let chunk = chunks.iter().filter(|c| c["image"].is_u64()).nth(i);
                let size = tile.image.size();
                let resized = &chunk.expect("a chunk for each image")["resized"];
                assert_eq!(resized[0], size.width, "{what}");
                assert_eq!(resized[1], size.height, "{what}");
                if let Some(planes) = golden.floats(&format!("image{i}.pixels")) {
                    assert!(planes == tile.planes, "{what}: normalised pixels");
                    compared += 1;
                }
                let plane = |c: usize| tile.image.rgb.iter().skip(c).step_by(3);
                let planes: Vec<u8> = (0..3).flat_map(plane).copied().collect();
                if let Some(hash) = golden.facts["pixels"][i].as_str() {
                    assert_eq!(format!("{:016x}", fnv(&planes)), hash, "{what}: pixels");
                    compared += 1;
                }
                if let Some(bytes) = golden.bytes(&format!("image{i}.pixels_u8")) {
                    assert!(planes == bytes, "{what}: pixels");
                    compared += 1;
                }
            }
        }
    }
    assert_eq!(compared, 93, "goldens with pixels");
}

/// Sizes of images and tiles, from the folder's lists.
#[test]
fn sizes_and_tiles_are_llama_cpps() {
    let Some(families) = Family::all() else {
        return;
    };
    let mut compared = 0;
    for family in &families {
        let gguf = family.tower(&family.goldens[0]);
        let h = octavo_vision::Tower::load(&gguf).expect("a tower").hparams;
        for list in family.sizes() {
            let limit = |key: &str| list[key].as_u64().map(|n| n as usize);
            let limits = TokenLimits {
                min: limit("min_tokens"),
                max: limit("max_tokens"),
            };
            for case in list["sizes"].as_array().expect("a list") {
                let side =
                    |of: &serde_json::Value, i: usize| of[i].as_u64().expect("a side") as usize;
                let (width, height) = (side(&case["source"], 0), side(&case["source"], 1));
                let what = format!("{} {width} x {height}", family.model);
                let image = DecodedImage {
                    width,
                    height,
                    rgb: vec![0; 3 * width * height],
                };
                let grid = [side(&case["grid"], 0), side(&case["grid"], 1)];
                let pixels = case["pixels"].as_array().expect("a list");
                compared += 1;
                let Ok(prepared) = Prepared::new(&image, &h, limits) else {
                    // llama.cpp refuses these when it has real pixels
                    assert!(grid.contains(&0) && grid != [0, 0], "{what}: refused");
                    continue;
                };
                let got: Vec<Size> = prepared.tiles.iter().map(|t| t.image.size()).collect();
                let size = |of| Size {
                    width: side(of, 0),
                    height: side(of, 1),
                };
                let mut expected: Vec<Size> = pixels.iter().map(size).collect();
                if side(&case["overview"], 0) > 0 {
                    assert_eq!(prepared.grid, grid, "{what}");
                    expected.push(size(&case["overview"]));
                }
                assert_eq!(got, expected, "{what}");
            }
        }
    }
    println!("{compared} sizes");
    assert!(compared >= FEWEST_SIZES, "{compared} sizes");
}

#[test]
fn rows_are_llama_cpps_and_nearer_to_the_oracles() {
    let Some(families) = Family::all() else {
        return;
    };
    let mut compared = 0;
    for family in &families {
        for golden in &family.goldens {
            let gguf = family.tower(golden);
            let oracle = VisionOracle::open(&gguf).expect("a tower");
            for isa in Isa::available() {
                let mut encoder = encoder(&gguf, isa, 2);
                let tiles = golden.tiles(&encoder.tower().hparams);
                for (i, tile) in tiles.iter().enumerate() {
                    let what = format!("{} {} image {i}, {isa}", family.model, golden.name);
                    let cells = encoder.encode(tile.pixels(), None).expect("it runs");
                    let rows = golden.floats(&format!("image{i}.embd"));
                    // some cases have logits alone
                    if let Some(rows) = rows {
                        let off = nmse(&cells.rows, &rows);
                        println!("{what}: {off:e} from llama.cpp");
                        let bound = family.bounds.rows;
                        assert!(off <= bound, "{what}: {off:e} from llama.cpp");
                        compared += 1;
                    }
                    let exact = oracle.encode(for_oracle(tile));
                    let exact = exact.expect("the same image");
                    assert_eq!(exact.rows().len(), cells.rows.len(), "{what}");
                    let off = nmse(&cells.rows, exact.rows());
                    println!("{what}: {off:e} from the oracle");
                    assert!(off <= EXACT, "{what}: {off:e} from the oracle");
                }
            }
        }
    }
    assert_eq!(compared, 185 * Isa::available().len(), "tiles of goldens");
}

#[test]
fn every_named_value_is_the_oracles() {
    let Some(families) = Family::all() else {
        return;
    };
    for family in &families {
        let golden = family.golden("two");
        let gguf = family.tower(golden);
        let oracle = VisionOracle::open(&gguf).expect("a tower");
        let mut encoder = encoder(&gguf, Isa::best(), 2);
        let tile = &golden.tiles(&encoder.tower().hparams)[0];
        let (mut exact, mut counts) = (HashMap::new(), HashMap::new());
        let mut see = |name: &str, layer: Option<usize>, _: usize, values: &mut [f64]| {
            let nth: &mut usize = counts.entry((name.to_owned(), layer)).or_default();
            exact.insert((name.to_owned(), layer, *nth), values.to_vec());
            *nth += 1;
        };
        oracle
            .encode_tapped(for_oracle(tile), &mut see)
            .expect("it runs");
        let mut seen = 0;
        let mut look = |view: &TapView<'_>| {
            let key = (view.tap.name.to_owned(), view.tap.layer, view.tap.nth);
            let exact = exact.get(&key);
            let exact = exact.unwrap_or_else(|| panic!("the oracle has no {key:?}"));
            let off = nmse(view.data, exact);
            assert!(off <= INSIDE, "{} {key:?}: {off:e}", family.model);
            seen += 1;
        };
        encoder
            .encode(tile.pixels(), Some(&mut look))
            .expect("it runs");
        assert_eq!(seen, exact.len(), "{}: named values", family.model);
    }
}

#[test]
fn values_inside_of_towers_are_llama_cpps() {
    let Some(families) = Family::all() else {
        return;
    };
    let mut compared = 0;
    for family in &families {
        for golden in &family.goldens {
            let taps = golden.names().into_iter().filter_map(|name| {
                let tap = name.strip_prefix("image0.")?.to_owned();
                let is_tap = !["embd", "pixels", "pixels_u8"].contains(&&*tap);
                is_tap.then(|| golden.floats(&name).map(|values| (tap, values)))?
            });
            let mut taps: HashMap<String, Vec<f32>> = taps.collect();
            if taps.is_empty() {
                continue;
            }
            let gguf = family.tower(golden);
            let mut encoder = encoder(&gguf, Isa::best(), 2);
            let tile = &golden.tiles(&encoder.tower().hparams)[0];
            let mut look = |view: &TapView<'_>| {
                if view.tap.nth > 0 {
                    return;
                }
                if let Some(expected) = taps.remove(&view.tap.to_string()) {
                    let off = nmse(view.data, &expected);
                    let what = format!("{} {} {}", family.model, golden.name, view.tap);
                    assert!(off <= family.bounds.rows, "{what}: {off:e} from llama.cpp");
                    compared += 1;
                }
            };
            encoder
                .encode_in_raster_order(tile.pixels(), &mut look)
                .expect("it runs");
            assert!(taps.is_empty(), "{}: not seen: {taps:?}", golden.name);
        }
    }
    assert_eq!(compared, 61, "named values of goldens");
}

#[test]
fn rows_do_not_depend_on_threads_or_on_images_before() {
    let Some(families) = Family::all() else {
        return;
    };
    for family in &families {
        let golden = family.golden("two");
        let gguf = family.tower(golden);
        for isa in Isa::available() {
            let mut one = encoder(&gguf, isa, 1);
            let images = golden.tiles(&one.tower().hparams);
            let mut rows = |i: usize| one.encode(images[i].pixels(), None).expect("it runs");
            let expected = [rows(0), rows(1)];
            assert!(rows(0) == expected[0], "{isa}: again, after another");
            for threads in [2, 3] {
                let mut several = encoder(&gguf, isa, threads);
                for (image, expected) in images.iter().zip(&expected) {
                    let got = several.encode(image.pixels(), None).expect("it runs");
                    assert!(got == *expected, "{isa}, {threads} threads");
                }
            }
        }
    }
}

/// A large image is processed in chunks of rows, unless its values are tapped; both give the same
/// rows.
#[test]
fn rows_of_large_images_are_those_of_all_at_once() {
    let Some(families) = Family::all() else {
        return;
    };
    let enlarged = TokenLimits {
        min: Some(400),
        max: Some(500),
    };
    for family in &families {
        let gguf = family.tower(&family.goldens[0]);
        let tower = octavo_vision::Tower::load(&gguf).expect("a tower");
        if tower.hparams.image_size > 0 {
            // all images have one size, or tiles have
            continue;
        }
        let oracle = VisionOracle::open(&gguf).expect("a tower");
        for isa in Isa::available() {
            let mut one = encoder(&gguf, isa, 1);
            let h = &one.tower().hparams;
            let large = Prepared::new(&family.image("photo"), h, enlarged);
            let large = &large.expect("a usual image").tiles[0];
            let parts = one.encode(large.pixels(), None).expect("it runs");
            assert!(parts.nx * parts.ny > 400, "several parts of 512 patches");
            let whole = one.encode(large.pixels(), Some(&mut |_| {}));
            let what = format!("{} {isa}", family.model);
            assert!(parts == whole.expect("it runs"), "{what}: all at once");
            let mut three = encoder(&gguf, isa, 3);
            let again = three.encode(large.pixels(), None).expect("it runs");
            assert!(parts == again, "{what}: three threads");
            let exact = oracle.encode(for_oracle(large)).expect("the same image");
            let off = nmse(&parts.rows, exact.rows());
            println!("{what}: {off:e} from the oracle");
            assert!(off <= EXACT, "{what}: {off:e} from the oracle");
        }
    }
}
