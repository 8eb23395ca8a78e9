//! The package and the archive in a Debian that has nothing else: no compiler, no Python.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::super::VERSION;
use super::super::system::{GLIBC, System};
use super::installation::{Installation, check_needs};
use super::root::{Debian, Root};
use super::transcript::Transcript;
use super::{Check, copy, expect, smollm2};

/// The oldest Debian that is maintained, without anything that is not essential.
const BARE: Debian = Debian {
    name: "debian",
    suite: "bookworm",
    architecture: "amd64",
    variant: "minbase",
    packages: "",
};

/// Programs that a bare system must not have, or the proof would show less.
const ABSENT: &str = "command -v cc gcc c++ clang rustc cargo python3 xz curl";

/// Files that the package installs, besides the program.
const INSTALLED: [&str; 5] = [
    "/usr/share/man/man1/octavo.1.gz",
    "/usr/share/man/man1/octavo-serve.1.gz",
    "/usr/share/bash-completion/completions/octavo",
    "/usr/share/zsh/vendor-completions/_octavo",
    "/usr/share/fish/vendor_completions.d/octavo.fish",
];

pub(super) fn prove(check: &Check, transcript: &mut Transcript) -> Result<(), String> {
    let root = Root::make(check, &BARE)?;
    root.shorten(transcript);
    transcript.shorten(&check.dir.display().to_string(), "DIST");
    let inside = |program: &str| root.inside(program);
    let root = root.path();
    copy(&smollm2()?, &root.join("model.gguf"))?;
    let found = transcript.run(inside("sh").args(["-c", ABSENT]))?;
    if !found.out.is_empty() {
        return Err(format!("the root is not bare: {}", found.out.trim()));
    }

    let package = format!("octavo_{VERSION}_amd64.deb");
    fs::create_dir_all(root.join("dist")).map_err(|error| error.to_string())?;
    copy(&check.dir.join(&package), &root.join("dist").join(&package))?;
    prove_container_line(check, transcript, &inside)?;
    prove_place(transcript, &|| inside("octavo"), &check.work)?;
    for file in INSTALLED {
        transcript.succeed(inside("ls").arg(file))?;
    }
    let page = "gzip -dc /usr/share/man/man1/octavo-serve.1.gz | head -n 5";
    expect(&transcript.succeed(inside("sh").args(["-c", page]))?, ".TH")?;
    transcript.succeed(inside("dpkg").args(["--purge", "octavo"]))?;
    if transcript
        .run(inside("sh").args(["-c", "command -v octavo"]))?
        .code
        == Some(0)
    {
        return Err("the package left its program behind".to_owned());
    }

    // a bare Debian has no xz either: the archive is unpacked from outside, by the installer
    let mut install = Command::new("sh");
    install
        .arg(check.dir.join("install.sh"))
        .arg("--from")
        .arg(&check.dir);
    install.arg("--prefix").arg(root.join("usr/local"));
    expect(
        &transcript.succeed(&mut install)?,
        &format!("octavo {VERSION}"),
    )?;
    let program = root.join("usr/local/bin/octavo");
    check_needs(transcript, "objdump", &program, GLIBC)?;
    prove_place(transcript, &|| inside("/usr/local/bin/octavo"), &check.work)?;
    prove_damage_is_found(check, transcript)
}

fn prove_place(
    transcript: &mut Transcript,
    octavo: &dyn Fn() -> Command,
    logs: &Path,
) -> Result<(), String> {
    let place = Installation {
        octavo,
        model: "/model.gguf".to_owned(),
        logs: logs.to_owned(),
    };
    place.prove(transcript)
}

/// Runs the container file's second line in the root, which is what the first line names.
fn prove_container_line(
    check: &Check,
    transcript: &mut Transcript,
    inside: &dyn Fn(&str) -> Command,
) -> Result<(), String> {
    let path = check.dir.join("Dockerfile");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let [from, run] = text.lines().collect::<Vec<_>>()[..] else {
        return Err("Dockerfile: expected two lines".to_owned());
    };
    expect(from, "debian:bookworm")?;
    let line = run.split_once("target=/dist ").map(|(_, line)| line);
    let line = line.ok_or("Dockerfile: expected a folder at /dist")?;
    transcript
        .succeed(inside("sh").args(["-c", line]))
        .map(drop)
}

/// An archive that differs from its hash must not be installed.
fn prove_damage_is_found(check: &Check, transcript: &mut Transcript) -> Result<(), String> {
    let dir = check.empty("damaged")?;
    let archive = format!("{}.tar.xz", super::name(System::Linux));
    copy(&check.dir.join("SHA256SUMS"), &dir.join("SHA256SUMS"))?;
    fs::write(dir.join(archive), "damaged").map_err(|error| error.to_string())?;
    let mut install = Command::new("sh");
    install
        .arg(check.dir.join("install.sh"))
        .arg("--from")
        .arg(&dir);
    let printed = transcript.run(install.arg("--prefix").arg(dir.join("prefix")))?;
    match printed.code {
        Some(0) => Err("install.sh installed a damaged archive".to_owned()),
        _ => expect(&printed.err, "is damaged"),
    }
}
