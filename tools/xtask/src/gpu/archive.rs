//! A packed folder as one archive, and a script that runs a plan out of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Most bytes of an archive.
const MOST: u64 = 50 << 20;

/// Appends to a path's name.
fn with_suffix(dir: &Path, suffix: &str) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    dir.with_file_name(name)
}

/// Writes the archive of a folder and its script beside the folder, under its name.
///
/// # Errors
/// If the archive is too large to travel, or cannot be written.
pub(super) fn write(dir: &Path) -> Result<(), String> {
    let (archive, script) = (with_suffix(dir, ".tar.xz"), with_suffix(dir, ".sh"));
    crate::must(
        Command::new("tar")
            .args(["--exclude", "./target", "-cJf"])
            .arg(&archive)
            .arg("-C")
            .arg(dir)
            .arg("."),
    )?;
    let wrong = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let bytes = fs::metadata(&archive)
        .map_err(|error| wrong(&archive, error))?
        .len();
    let mib = bytes as f64 / f64::from(1 << 20);
    fs::write(&script, runner(&archive)).map_err(|error| wrong(&script, error))?;
    println!(
        "{}: {mib:.1} MiB; sh {} PLAN SECONDS OUT",
        archive.display(),
        script.display()
    );
    match bytes <= MOST {
        true => Ok(()),
        false => Err(format!(
            "{}: expected at most {} MiB, got {mib:.1}",
            archive.display(),
            MOST >> 20
        )),
    }
}

/// Returns the script for an archive beside it.
fn runner(archive: &Path) -> String {
    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    format!(
        "#!/bin/sh\n\
         # PLAN SECONDS OUT: runs a plan of `xtask gpu`; figures go to \
         OUT/gpu-measured.csv\n\
         set -eu\n\
         plan=$1 seconds=$2 out=$3\n\
         from=$(cd \"$(dirname \"$0\")\" && pwd)/{name}\n\
         to=${{TMPDIR:-/tmp}}/octavo-gpu\n\
         mkdir -p \"$to\" \"$out\"\n\
         tar -xJf \"$from\" -C \"$to\"\n\
         \"$to/xtask\" gpu --packed \"$to\" --dir \"$to/target/gpu\" --plan \"$plan\" \\\n\
         \x20 --budget \"$seconds\" --figures \"$out/gpu-measured.csv\"\n"
    )
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// The script unpacks the archive and starts the plan with what it is given.
    #[test]
    fn the_script_runs_what_is_in_the_archive() {
        let work = tempfile::tempdir().expect("a folder");
        let dir = work.path().join("pack");
        fs::create_dir_all(dir.join("target")).expect("a folder");
        fs::write(dir.join("target/large"), "models are made there").expect("a file");
        let says = "#!/bin/sh\necho \"$@\" | sed s,$TMPDIR,TMP,g\n";
        fs::write(dir.join("xtask"), says).expect("a file");
        crate::must(Command::new("chmod").arg("+x").arg(dir.join("xtask"))).expect("chmod");
        write(&dir).expect("it is small");
        let unpacked = tempfile::tempdir().expect("a folder");
        let out = work.path().join("out");
        let ran = Command::new("sh")
            .arg(with_suffix(&dir, ".sh"))
            .args(["check", "60"])
            .arg(&out)
            .env("TMPDIR", unpacked.path())
            .output()
            .expect("sh");
        let expected = format!(
            "gpu --packed TMP/octavo-gpu --dir TMP/octavo-gpu/target/gpu --plan check \
             --budget 60 --figures {}/gpu-measured.csv\n",
            out.display()
        );
        assert_eq!(String::from_utf8_lossy(&ran.stdout), expected);
        assert!(out.is_dir() && !unpacked.path().join("octavo-gpu/target").exists());
    }
}
