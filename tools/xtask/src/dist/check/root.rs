//! Root folders of Debian, and programs that run in them.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Check;
use super::transcript::Transcript;

/// Contents of a root folder.
pub(super) struct Debian {
    /// Name of the root folder.
    pub(super) name: &'static str,
    pub(super) suite: &'static str,
    pub(super) architecture: &'static str,
    /// How much mmdebstrap installs by itself; with `extract` it configures nothing.
    pub(super) variant: &'static str,
    /// Packages besides.
    pub(super) packages: &'static str,
}

/// A root folder.
pub(super) struct Root(PathBuf);

/// Runs a program in the root folder `$1`, with the system's devices and processes, which it alone
/// sees mounted.
const ENTER: &str =
    "mount -t proc proc \"$1/proc\" && mount --rbind /dev \"$1/dev\" && exec chroot \"$@\"";

impl Root {
    /// Makes a root folder anew, from an archive that is kept.
    pub(super) fn make(check: &Check, debian: &Debian) -> Result<Root, String> {
        let kept = check.work.join(format!("{}.tar", debian.name));
        if !kept.is_file() {
            let mut command = Command::new("mmdebstrap");
            command.args(["--quiet", "--variant", debian.variant]);
            command.arg(format!("--architectures={}", debian.architecture));
            if !debian.packages.is_empty() {
                command.arg(format!("--include={}", debian.packages));
            }
            crate::must(command.arg(debian.suite).arg(&kept))?;
        }
        let root = check.empty(debian.name)?;
        let mut command = Command::new("tar");
        command
            .args(["--extract", "--exclude=./dev/*", "--file"])
            .arg(&kept);
        crate::must(command.current_dir(&root))?;
        Ok(Root(root))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns a command that runs a program in it, with nothing of the environment outside.
    pub(super) fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", ENTER, "sh"]);
        command.arg(&self.0).arg(program).env_clear();
        command.env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        );
        command.env("HOME", "/root").env("LC_ALL", "C.UTF-8");
        command
    }

    /// Shows it as `ROOT` in a transcript, and what runs in it as the program alone.
    pub(super) fn shorten(&self, transcript: &mut Transcript) {
        transcript.shorten(
            &format!("unshare --mount sh -c '{ENTER}' sh {} ", self.0.display()),
            "",
        );
        transcript.shorten(&self.0.display().to_string(), "ROOT");
    }
}
