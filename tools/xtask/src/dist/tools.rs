//! Programs that build and pack: Debian's must be there, the others are fetched.

use std::path::{Path, PathBuf};
use std::process::Command;

use octavo_fixtures::workspace_root;

/// Python's packages: a C compiler and linker for every system, and its use by Cargo.
const PYTHON: [&str; 2] = ["ziglang==0.17.1", "cargo-zigbuild==0.24.1"];

/// Version of the program that makes Debian's packages.
const CARGO_DEB: &str = "3.8.0";

/// Fails unless these programs, or files with absolute paths, are installed; each stands before
/// Debian's package of it.
pub(super) fn require(programs: &[(&str, &str)]) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &str| std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
    let missing: Vec<_> = programs
        .iter()
        .filter(|(name, _)| !is_there(name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = |part: fn(&(&str, &str)) -> String| {
        let all: Vec<String> = missing.iter().map(|both| part(both)).collect();
        all.join(" ")
    };
    Err(format!(
        "{}: not found; Debian has it: apt-get install {}",
        list(|(name, _)| (*name).to_owned()),
        list(|(_, package)| (*package).to_owned())
    ))
}

/// Installs Rust's standard library of a target, unless it is there.
pub(super) fn add_target(triple: &str) -> Result<(), String> {
    crate::must(Command::new("rustup").args(["--quiet", "target", "add", triple]))
}

/// Fetched programs.
pub(super) struct Tools(PathBuf);

impl Tools {
    /// Fetches Zig and cargo-zigbuild, unless they are there.
    pub(super) fn zig() -> Result<Tools, String> {
        let dir = workspace_root().join("target/dist-tools");
        // build scripts of other folders call them
        let dir =
            std::path::absolute(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let tools = Tools(dir.clone());
        let note = dir.join("installed.txt");
        let packages = PYTHON.join("\n");
        if std::fs::read_to_string(&note).is_ok_and(|found| found == packages) {
            return Ok(tools);
        }
        let pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"];
        crate::must(
            Command::new("python3")
                .args(pip)
                .arg("--target")
                .arg(&dir)
                .args(PYTHON),
        )?;
        std::fs::write(&note, packages).map_err(|error| format!("{}: {error}", note.display()))?;
        Ok(tools)
    }

    /// Returns Cargo's command with Zig as the C compiler and linker.
    pub(super) fn cargo_zigbuild(&self) -> Command {
        let mut command = Command::new(self.0.join("bin/cargo-zigbuild"));
        command.env("CARGO_ZIGBUILD_ZIG_PATH", self.0.join("ziglang/zig"));
        command
    }

    /// Returns the program that makes Debian's packages; builds it the first time.
    pub(super) fn cargo_deb(&self) -> Result<Command, String> {
        let root = self.0.join("cargo");
        let program = root.join("bin/cargo-deb");
        if !program.is_file() {
            let version = ["install", "--quiet", "--locked", "--version", CARGO_DEB];
            let mut command = crate::cargo();
            command.args(version).arg("--root").arg(root);
            // not with this workspace's build
            command.arg("cargo-deb").env_remove("CARGO_TARGET_DIR");
            crate::must(command.current_dir(Path::new("/")))?;
        }
        Ok(Command::new(program))
    }
}
