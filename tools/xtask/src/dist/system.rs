//! Systems that there are programs for.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use octavo_fixtures::workspace_root;

/// Oldest glibc that programs for Linux need.
pub(super) const GLIBC: &str = "2.17";

/// A system that a program is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum System {
    /// Windows, x86-64
    Windows,
    /// Linux, x86-64
    Linux,
    /// Linux, 64-bit Arm
    LinuxArm,
}

impl System {
    /// Every system.
    pub(super) const ALL: [System; 3] = [System::Windows, System::Linux, System::LinuxArm];

    /// Returns Rust's name of it, which archives bear.
    pub(super) fn triple(self) -> &'static str {
        match self {
            System::Windows => "x86_64-pc-windows-gnu",
            System::Linux => "x86_64-unknown-linux-gnu",
            System::LinuxArm => "aarch64-unknown-linux-gnu",
        }
    }

    /// Returns Debian's name of the architecture, if it is one of Debian's.
    pub(super) fn debian(self) -> Option<&'static str> {
        match self {
            System::Windows => None,
            System::Linux => Some("amd64"),
            System::LinuxArm => Some("arm64"),
        }
    }

    /// Returns the program's file name.
    pub(super) fn program(self) -> &'static str {
        match self {
            System::Windows => "octavo.exe",
            System::Linux | System::LinuxArm => "octavo",
        }
    }

    /// Returns Cargo's path of the built program.
    pub(super) fn built(self) -> PathBuf {
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| workspace_root().join("target"), PathBuf::from);
        target
            .join(self.triple())
            .join("release")
            .join(self.program())
    }

    /// Returns the name of a program of binutils for this system.
    pub(super) fn binutil(self, name: &str) -> String {
        match self {
            System::Windows => format!("x86_64-w64-mingw32-{name}"),
            System::Linux => name.to_owned(),
            System::LinuxArm => format!("aarch64-linux-gnu-{name}"),
        }
    }

    /// Returns programs that building for it takes, with Debian's packages of them.
    pub(super) fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            System::Windows => &[("x86_64-w64-mingw32-gcc", "gcc-mingw-w64-x86-64")],
            System::Linux => &[("objcopy", "binutils")],
            System::LinuxArm => &[
                ("aarch64-linux-gnu-objcopy", "binutils-aarch64-linux-gnu"),
                ("qemu-aarch64", "qemu-user"),
                ("/usr/aarch64-linux-gnu/lib/libc.so.6", "libc6-arm64-cross"),
            ],
        }
    }

    /// Returns a command that runs a program here, if need be emulated, with libraries in `root`.
    pub(super) fn runs(self, program: &Path, root: &Path) -> Command {
        match self {
            System::Windows | System::Linux => Command::new(program),
            System::LinuxArm => {
                let mut command = Command::new("qemu-aarch64");
                command.arg("-L").arg(root).arg(program);
                command
            }
        }
    }
}
