//! Compares vision encoders with llama.cpp's goldens and with the oracle.

use std::collections::HashMap;

use octavo_engine::EngineOptions;
use octavo_engine::backend::TapView;
use octavo_kernels::{Isa, IsaChoice};
use octavo_reference::{Pixels as OraclePixels, VisionOracle};
use octavo_vision::Encoder;
use octavo_vision::pixels::{Prepared, TokenLimits};

use crate::support::{Family, nmse};

/// Tolerance for f32 arithmetic: some thousand roundings, each of 2^-24.
const EXACT: f64 = 1e-11;

fn encoder(gguf: &std::sync::Arc<gguf_rs_lite::Gguf>, isa: Isa, threads: usize) -> Encoder {
    let options = EngineOptions {
        isa: IsaChoice::Only(isa),
        threads: Some(threads),
        ..EngineOptions::default()
    };
    Encoder::load(gguf, &options, 512, &mut |_| {}).unwrap_or_else(|e| panic!("{e}"))
}

fn for_oracle(prepared: &Prepared) -> OraclePixels<'_> {
    OraclePixels {
        width: prepared.image.width,
        height: prepared.image.height,
        values: &prepared.planes,
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
            for (i, prepared) in golden.images(&h).iter().enumerate() {
                let what = format!("{} {} image {i}", family.model, golden.name);
                let chunks = golden.facts["chunks"].as_array().expect("a list");
                let chunk = chunks.iter().filter(|c| c["image"].is_u64()).nth(i);
                let size = prepared.image.size();
                let resized = &chunk.expect("a chunk for each image")["resized"];
                assert_eq!(resized[0], size.width, "{what}");
                assert_eq!(resized[1], size.height, "{what}");
                if let Some(planes) = golden.floats(&format!("image{i}.pixels")) {
                    assert!(planes == prepared.planes, "{what}: normalised pixels");
                    compared += 1;
                }
                if let Some(bytes) = golden.bytes(&format!("image{i}.pixels_u8")) {
                    let plane = |c: usize| prepared.image.rgb.iter().skip(c).step_by(3);
                    let planes: Vec<u8> = (0..3).flat_map(plane).copied().collect();
                    assert!(planes == bytes, "{what}: pixels");
                    compared += 1;
                }
            }
        }
    }
    assert_eq!(compared, 7 + 4, "goldens with pixels");
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
                let width = encoder.tower().width();
                let images = golden.images(&encoder.tower().hparams);
                for (i, prepared) in images.iter().enumerate() {
                    let what = format!("{} {} image {i}, {isa}", family.model, golden.name);
                    let cells = encoder.encode(prepared.pixels(), None).expect("it runs");
                    let rows = golden.floats(&format!("image{i}.embd"));
                    // some cases have logits alone
                    if let Some(rows) = rows {
                        assert_eq!(cells.nx * cells.ny * width, rows.len(), "{what}");
                        let off = nmse(&cells.rows, &rows);
                        println!("{what}: {off:e} from llama.cpp");
                        let bound = family.bounds.rows;
                        assert!(off <= bound, "{what}: {off:e} from llama.cpp");
                        compared += 1;
                    }
                    let exact = oracle.encode(for_oracle(prepared));
                    let exact = exact.expect("the same image");
                    assert_eq!((exact.nx(), exact.ny()), (cells.nx, cells.ny), "{what}");
                    let off = nmse(&cells.rows, exact.rows());
                    println!("{what}: {off:e} from the oracle");
                    assert!(off <= EXACT, "{what}: {off:e} from the oracle");
                }
            }
        }
    }
    let goldens = 12 + 3 + 8;
    assert_eq!(compared, goldens * Isa::available().len(), "images of goldens");
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
        let prepared = &golden.images(&encoder.tower().hparams)[0];
        let (mut exact, mut counts) = (HashMap::new(), HashMap::new());
        let mut see = |name: &str, layer: Option<usize>, _: usize, values: &mut [f64]| {
            let nth: &mut usize = counts.entry((name.to_owned(), layer)).or_default();
            exact.insert((name.to_owned(), layer, *nth), values.to_vec());
            *nth += 1;
        };
        oracle
            .encode_tapped(for_oracle(prepared), &mut see)
            .expect("it runs");
        let mut seen = 0;
        let mut look = |view: &TapView<'_>| {
            let key = (view.tap.name.to_owned(), view.tap.layer, view.tap.nth);
            let exact = exact.get(&key);
            let exact = exact.unwrap_or_else(|| panic!("the oracle has no {key:?}"));
            let off = nmse(view.data, exact);
            assert!(off <= EXACT, "{} {key:?}: {off:e}", family.model);
            seen += 1;
        };
        encoder
            .encode(prepared.pixels(), Some(&mut look))
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
            let prepared = &golden.images(&encoder.tower().hparams)[0];
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
                .encode(prepared.pixels(), Some(&mut look))
                .expect("it runs");
            assert!(taps.is_empty(), "{}: not seen: {taps:?}", golden.name);
        }
    }
    assert_eq!(compared, 12 + 7, "named values of goldens");
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
            let images = golden.images(&one.tower().hparams);
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
    let enlarged = TokenLimits { min: 400, max: 500 };
    for family in &families {
        let gguf = family.tower(&family.goldens[0]);
        let oracle = VisionOracle::open(&gguf).expect("a tower");
        for isa in Isa::available() {
            let mut one = encoder(&gguf, isa, 1);
            let h = &one.tower().hparams;
            let large = Prepared::new(&family.image("photo"), h, enlarged).expect("a usual image");
            let parts = one.encode(large.pixels(), None).expect("it runs");
            assert!(parts.nx * parts.ny > 400, "several parts of 512 patches");
            let whole = one.encode(large.pixels(), Some(&mut |_| {}));
            let what = format!("{} {isa}", family.model);
            assert!(parts == whole.expect("it runs"), "{what}: all at once");
            let mut three = encoder(&gguf, isa, 3);
            let again = three.encode(large.pixels(), None).expect("it runs");
            assert!(parts == again, "{what}: three threads");
            let exact = oracle.encode(for_oracle(&large)).expect("the same image");
            let off = nmse(&parts.rows, exact.rows());
            println!("{what}: {off:e} from the oracle");
            assert!(off <= EXACT, "{what}: {off:e} from the oracle");
        }
    }
}
