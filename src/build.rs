//! Records the commit that `octavo bench` reports, where it is known: in a clone. Builds from
//! archives can set `OCTAVO_BUILD_COMMIT` and `OCTAVO_BUILD_NUMBER`.

use std::path::Path;
use std::process::Command;

/// Sources of the program; uncommitted changes to them mark the build as changed.
const SOURCES: [&str; 7] = [
    "Cargo.toml",
    "Cargo.lock",
    "src",
    "gguf/src",
    "quant/src",
    "kernels/src",
    "reference/src",
];

/// Runs git and returns its output; `None` if that fails or there is no git.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Returns the commit and the number of commits up to it, if this folder is a clone of its own, not
/// a part of another repository.
fn built_from() -> Option<(String, String)> {
    let top = git(&["rev-parse", "--show-toplevel"])?;
    let here = std::env::var("CARGO_MANIFEST_DIR").ok()?;
    let same = Path::new(&top).canonicalize().ok()? == Path::new(&here).canonicalize().ok()?;
    if !same {
        return None;
    }
    let mut commit = git(&["rev-parse", "--short=9", "HEAD"])?;
    let changes = [
        &["status", "--porcelain", "--untracked-files=no", "--"],
        &SOURCES[..],
    ]
    .concat();
    if !git(&changes)?.is_empty() {
        commit += "-changed";
    }
    Some((commit, git(&["rev-list", "--count", "HEAD"])?))
}

fn main() {
    // these two change with every commit and every switch of branches
    let of_git = ["HEAD", "logs/HEAD"].map(|file| git(&["rev-parse", "--git-path", file]));
    let sources = SOURCES.iter().map(|path| (*path).to_owned());
    for path in sources.chain(of_git.into_iter().flatten()) {
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    println!("cargo::rerun-if-env-changed=OCTAVO_BUILD_COMMIT");
    println!("cargo::rerun-if-env-changed=OCTAVO_BUILD_NUMBER");
    if std::env::var_os("OCTAVO_BUILD_COMMIT").is_some() {
        return;
    }
    if let Some((commit, number)) = built_from() {
        println!("cargo::rustc-env=OCTAVO_BUILD_COMMIT={commit}");
        println!("cargo::rustc-env=OCTAVO_BUILD_NUMBER={number}");
    }
}
