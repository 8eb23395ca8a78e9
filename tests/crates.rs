//! What the crates may need of each other and of others, as Cargo sees it.

use std::collections::BTreeSet;
use std::process::Command;

/// Everything that a crate needs to be built, itself included.
fn needs(package: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .current_dir(octavo_fixtures::workspace_root())
        .args(["tree", "--edges", "normal", "--prefix", "none"])
        .args(["--format", "{p}", "--package", package])
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines()
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_engine_needs_nothing_of_a_command_line() {
    let engine = needs("octavo-engine");
    for foreign in ["clap", "rustyline", "indicatif", "ctrlc", "plotters"] {
        assert!(!engine.contains(foreign), "octavo-engine needs {foreign}");
    }
    // and the test would see it
    assert!(needs("octavo-llm").contains("clap") && engine.contains("octavo-kernels"));
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
    assert_eq!(
        ours("octavo-kernels"),
        set(&["gguf-rs-lite", "octavo-quant"])
    );
    // what the engine is held against shares nothing with it but the formats
    assert_eq!(
        ours("octavo-reference"),
        set(&["gguf-rs-lite", "octavo-quant"])
    );
    assert!(!ours("octavo-model").contains("octavo-engine"));
    assert!(!ours("octavo-engine").contains("octavo-lab"));
    // the engine knows rows in the place of tokens, and no pixel
    assert!(!ours("octavo-engine").contains("octavo-vision"));
    assert!(!ours("octavo-server").contains("octavo-lab"));
    assert!(!needs("octavo-server").contains("clap"));
    assert!(
        !needs("octavo-engine").contains("tokio"),
        "the engine knows nothing of async"
    );
}
