//! Vision towers: files equal llama-quantize's byte for byte, and the loss is bounded.

use std::path::PathBuf;
use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_analysis::quantize::{Options, Plan, Target};
use octavo_engine::EngineOptions;
use octavo_fixtures::shared;
use octavo_reference::metrics::nmse;
use octavo_vision::Encoder;
use octavo_vision::pixels::{Limits, Prepared, TokenLimits, decode};
use sha2::{Digest, Sha256};

/// llama-quantize's results for the shared towers: file, target, SHA-256. It aborts at the targets
/// missing here, except Q1_0, whose blocks are longer than the rows of these towers.
const RECORDED: &str = include_str!("towers.txt");

/// Returns the file of a tower, `None` if the shared folder is absent.
fn tower(name: &str) -> Option<PathBuf> {
    let folder = if name.starts_with("vl-q25") {
        "q25/"
    } else {
        ""
    };
    shared(&format!("vision/{folder}{name}.gguf"))
}

/// Types that towers are commonly stored in, and one per kernel family.
const TARGETS: [&str; 9] = [
    "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "IQ4_XS", "Q3_K_M",
];

/// Largest NMSE of the rows for each target: 1.5 times the measured one. Rows of `vl-q25` are so
/// short that many matrices fall back to blocks of 32.
const BOUNDS: [(&str, [f64; 9]); 2] = [
    (
        "vl-a-mmproj-F32",
        [7e-7, 5e-5, 6e-4, 1.5e-3, 0.025, 0.04, 0.13, 0.1, 0.12],
    ),
    (
        "vl-q25-mmproj-F32",
        [7e-7, 4e-5, 4e-4, 4e-4, 0.02, 0.025, 0.09, 0.09, 0.08],
    ),
];

fn open(path: &std::path::Path) -> Arc<Gguf> {
    let gguf = Gguf::open(path, &OpenOptions::default());
    Arc::new(gguf.unwrap_or_else(|e| panic!("{e}")))
}

fn quantize(source: &Gguf, target: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    let options = Options {
        threads: 2,
        ..Options::new(target.parse::<Target>().unwrap())
    };
    let plan = Plan::new(source, None, &options).unwrap_or_else(|e| panic!("{e}"));
    let written = plan.write(&path, &mut |_| {});
    written.unwrap_or_else(|e| panic!("{target}: {e}"));
    (folder, path)
}

#[test]
fn files_are_llama_quantizes() {
    let mut compared = 0;
    for line in RECORDED.lines() {
        let [name, target, expected] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}: expected three words");
        };
        let Some(source) = tower(name) else {
            return;
        };
        let (_folder, path) = quantize(&open(&source), target);
        let digest = Sha256::digest(std::fs::read(path).unwrap());
        let got: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(got, expected, "{name} {target}");
        compared += 1;
    }
    assert_eq!(compared, 63, "recorded files");
}

/// Encodes an image and returns its rows.
fn rows(gguf: &Arc<Gguf>) -> Vec<f32> {
    let options = EngineOptions {
        threads: Some(2),
        ..EngineOptions::default()
    };
    let encoder = Encoder::load(gguf, &options, 128, &mut |_| {});
    let mut encoder = encoder.unwrap_or_else(|e| panic!("{e}"));
    let image = shared("vision/images/photo.png").expect("its towers are there");
    let image = decode(&std::fs::read(image).unwrap(), &Limits::default()).unwrap();
    let prepared = Prepared::new(&image, &encoder.tower().hparams, TokenLimits::default()).unwrap();
    encoder
        .encode(prepared.tiles[0].pixels(), None)
        .unwrap()
        .rows
}

#[test]
fn quantized_towers_see_the_same() {
    for (name, bounds) in BOUNDS {
        let Some(source) = tower(name) else {
            return;
        };
        let source = open(&source);
        let expected = rows(&source);
        for (target, bound) in TARGETS.iter().zip(bounds) {
            let (_folder, path) = quantize(&source, target);
            let got = rows(&open(&path));
            let off = nmse(&got, &expected).unwrap();
            println!("{name} {target}: {off:e}");
            assert!(off <= bound, "{name} {target}: NMSE {off:e}");
        }
    }
}
