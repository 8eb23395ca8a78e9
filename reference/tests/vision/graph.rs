//! Compares every named value of the vision encoders with the graph that stock llama.cpp prints
//! during the test. Skipped where llama.cpp is not built.

use super::golden::Case;
use octavo_fixtures as fixtures;
use octavo_reference::VisionOracle;
use octavo_reference::formats::eval_callback::{self, PRINTED, Printed};
use octavo_reference::metrics::Nmse;
use std::path::Path;
use std::process::{Command, Stdio};

/// Names of views of other values, without printed numbers of their own.
const VIEWS: &[&str] = &["Qcur", "Kcur", "Vcur"];

/// Tolerance of a block's addition, which may be smaller than the stream whose errors it carries:
/// measured up to 2.2e-6 of the few values that are printed.
const BRANCH: f64 = 1e-5;

/// Runs llama.cpp on an image and returns the named values it prints of the encoder.
fn printed(program: &Path, folder: &Path, model: [&str; 2], image: &str) -> Vec<Printed> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("graph.txt");
    let images = fixtures::shared("vision/images").unwrap();
    let status = Command::new(program)
        .arg("-m")
        .arg(folder.join(model[0]))
        .arg("--mmproj")
        .arg(folder.join(model[1]))
        .arg("--image")
        .arg(images.join(format!("{image}.png")))
        .args(["-p", "?", "-n", "1", "-fa", "off", "-t", "1"])
        .env("MTMD_DEBUG_GRAPH", "1")
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&path).unwrap())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    let mut tensors = eval_callback::read(&path).unwrap().tensors;
    // unnamed values have the name of their source, or a number
    tensors.retain(|tensor| !tensor.name.starts_with("node_") && !tensor.name.contains('('));
    tensors
}

/// Returns the NMSE of the printed values, minus the effect of rounding to decimals.
fn error(ours: &[f64], theirs: &Printed) -> f64 {
    let mut nmse = Nmse::default();
    for ([a, b, c, _], value) in &theirs.values {
        let [across, down, ..] = theirs.dims;
        let difference = ours[a + across * (b + down * c)] - value;
        let unexplained = (difference.abs() - PRINTED).max(0.0);
        nmse.add_difference(unexplained, *value);
    }
    nmse.value()
}

#[test]
fn values_are_those_of_llama_cpp_s_graph_in_its_order() {
    let Some(program) = fixtures::llama_cpp("llama-mtmd-cli") else {
        return;
    };
    for (folder, files, name, image) in [
        (
            "vision",
            ["vl-a-text-F32.gguf", "vl-a-mmproj-F32.gguf"],
            "one",
            "wide",
        ),
        (
            "vision/q25",
            ["vl-q25-text-F16.gguf", "vl-q25-mmproj-F32.gguf"],
            "two",
            "photo",
        ),
    ] {
        let Some(folder) = fixtures::shared(folder) else {
            return;
        };
        let case = Case::read(&folder, name);
        let [_, mmproj] = case.models();
        let mut ours: Vec<(String, Vec<f64>)> = Vec::new();
        VisionOracle::open(&mmproj)
            .unwrap()
            .encode_tapped(case.image(0).pixels(), &mut |name, block, _, x| {
                if !VIEWS.contains(&name) {
                    let name = block.map_or(name.into(), |block| format!("{name}-{block}"));
                    ours.push((name, x.to_vec()));
                }
            })
            .unwrap();
        // the program may exit before all of its output is written
        let mut runs = (0..5).map(|_| printed(&program, &folder, files, image));
        let theirs = runs.find(|all| all.len() >= ours.len());
        let theirs = theirs.unwrap_or_else(|| printed(&program, &folder, files, image));
        let our_names: Vec<&str> = ours.iter().map(|(name, _)| &**name).collect();
        let names: Vec<&str> = theirs.iter().map(|tensor| &*tensor.name).collect();
        assert_eq!(our_names, names, "{name}");
        let mut worst: f64 = 0.0;
        for ((name, x), theirs) in ours.iter().zip(&theirs) {
            assert_eq!(x.len(), theirs.dims.iter().product::<usize>(), "{name}");
            let error = error(x, theirs);
            assert!(error <= BRANCH, "{name}: NMSE {error:e}");
            worst = worst.max(error);
        }
        println!("{}: {} values, NMSE {worst:.1e}", files[1], ours.len());
    }
}
