//! The program for 64-bit Arm, under qemu, with the libraries of Debian for that architecture.

use super::super::system::{GLIBC, System};
use super::installation::{Installation, check_needs};
use super::root::{Debian, Root};
use super::transcript::Transcript;
use super::{Check, smollm2};

/// The libraries of a Debian for that architecture, unpacked: nothing in it runs by itself.
const ARM: Debian = Debian {
    name: "debian-arm64",
    suite: "bookworm",
    architecture: "arm64",
    variant: "extract",
    packages: "libc6",
};

pub(super) fn prove(check: &Check, transcript: &mut Transcript) -> Result<(), String> {
    let root = Root::make(check, &ARM)?;
    let root = root.path();
    let files = check.unpack(System::LinuxArm, "arm64")?;
    transcript.shorten(&root.display().to_string(), "ROOT");
    transcript.shorten(&files.display().to_string(), "octavo-aarch64");
    let program = files.join("bin/octavo");
    let model = smollm2()?.display().to_string();
    check_needs(
        transcript,
        &System::LinuxArm.binutil("objdump"),
        &program,
        GLIBC,
    )?;
    let place = Installation {
        octavo: &|| System::LinuxArm.runs(&program, root),
        model,
        logs: check.work.clone(),
    };
    place.prove(transcript)
}
