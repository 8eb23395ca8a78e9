//! Dependencies that the crates may have on each other and on others, as Cargo sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Returns what `cargo tree` prints of each crate, with these arguments.
fn tree(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .current_dir(octavo_fixtures::workspace_root())
        .args(["tree", "--prefix", "none"])
        .args(arguments)
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns everything that a crate needs to be built, itself included.
fn needs(package: &str) -> BTreeSet<String> {
    tree(&["--edges", "normal", "--format", "{p}", "--package", package])
        .lines()
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect()
}

/// Returns every crate that is built for these packages, with the features it is built with.
fn features(edges: &str, packages: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let format = ["--format", "{p}|{f}", "--edges", edges];
    let lines = tree(&[&format, packages].concat());
    // packages are separated by an empty line
    for line in lines.lines().filter(|line| !line.is_empty()) {
        let (name, features) = line.split_once('|').expect("a crate and its features");
        // the features are followed by a mark if the crate was shown before
        let features = features.split(' ').next().unwrap_or_default();
        let names = features.split(',').filter(|feature| !feature.is_empty());
        all.entry(name.to_owned())
            .or_default()
            .extend(names.map(str::to_owned));
    }
    all
}

#[test]
fn the_engine_needs_nothing_of_a_command_line() {
    let engine = needs("octavo-engine");
    for foreign in ["clap", "rustyline", "indicatif", "ctrlc", "plotters"] {
        assert!(!engine.contains(foreign), "octavo-engine needs {foreign}");
    }
    // and the test would see a violation
    assert!(needs("octavo-cli").contains("clap") && engine.contains("octavo-kernels"));
}

#[test]
fn nothing_flows_backwards() {
    let ours = |package: &str| -> BTreeSet<String> {
        let of_ours = |name: &String| name.starts_with("octavo-") || name == "gguf-rs-lite";
        let mut all: BTreeSet<String> = needs(package).into_iter().filter(of_ours).collect();
        assert!(all.remove(package), "{package} itself");
        all
    };
    let set = |names: &[&str]| -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    };
    assert_eq!(ours("octavo-quant"), set(&["gguf-rs-lite"]));
    assert_eq!(ours("octavo-text"), set(&["gguf-rs-lite"]));
    // what is compiled for each instruction set is apart from what runs it, and from vectors' tests
    let simd = ["gguf-rs-lite", "octavo-quant"];
    assert_eq!(ours("octavo-simd"), set(&simd));
    let isa = [&simd[..], &["octavo-simd"]].concat();
    assert_eq!(ours("octavo-isa"), set(&isa));
    assert_eq!(
        ours("octavo-kernels"),
        set(&[&isa[..], &["octavo-isa"]].concat())
    );
    // the reference that the engine is compared with shares only the formats with it
    assert_eq!(
        ours("octavo-reference"),
        set(&["gguf-rs-lite", "octavo-quant"])
    );
    assert!(!ours("octavo-model").contains("octavo-engine"));
    assert!(!ours("octavo-hf").contains("octavo-engine"));
    assert!(!ours("octavo-engine").contains("octavo-analysis"));
    // the engine knows embeddings in place of tokens, and no pixels
    assert!(!ours("octavo-engine").contains("octavo-vision"));
    assert!(!ours("octavo-server").contains("octavo-analysis"));
    assert!(!needs("octavo-server").contains("clap"));
    // the command line uses grammars too, without the server
    assert!(!ours("octavo-grammar").contains("octavo-server"));
    assert!(!ours("octavo-engine").contains("octavo-grammar"));
    // models are downloaded before they are opened, and by nothing else
    assert_eq!(ours("octavo-hub"), set(&[]));
    assert!(!ours("octavo-engine").contains("octavo-hub"));
    assert!(!ours("octavo-server").contains("octavo-hub"));
    assert!(
        !needs("octavo-engine").contains("tokio"),
        "the engine knows nothing of async"
    );
}

/// A crate with other features is another build of it, and of everything above it.
#[test]
fn running_and_testing_share_one_build() {
    let tests = features("normal,build,dev", &["--workspace"]);
    for package in ["octavo-llm", "octavo-python", "xtask"] {
        let alone = features("normal,build", &["--package", package]);
        assert!(alone.len() > 50, "{} crates", alone.len());
        for (name, features) in alone {
            let missing: Vec<_> = tests[&name].difference(&features).collect();
            assert!(
                missing.is_empty(),
                "{name}: tests build it with {missing:?}, {package} without: see Cargo.toml"
            );
        }
    }
}
