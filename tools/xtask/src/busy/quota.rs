//! A control group (cgroup) with a quota of CPU time. Also compiled into the tests of the command
//! line.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use octavo_engine::threads::cgroup::{Group, Version};

/// A control group of our own, removed when dropped; programs in it must have ended by then.
#[derive(PartialEq)]
pub(crate) struct QuotaGroup {
    folder: PathBuf,
}

impl QuotaGroup {
    /// Creates a group whose programs get `time` microseconds of CPU time in every 100 ms. Fails on
    /// other systems, without the rights, or if parent groups do not delegate the CPU controller.
    pub(crate) fn new(time: u64) -> Result<QuotaGroup, String> {
        let mut why = "no control groups with CPU time here".to_owned();
        for group in Group::all(Path::new("/")) {
            // version 2 allows no group below one that has programs, so its ancestors are tried as
            // well
            for above in group
                .folder
                .ancestors()
                .take_while(|folder| folder.starts_with(&group.mount))
            {
                match QuotaGroup::below(above, group.version, time) {
                    Ok(made) => return Ok(made),
                    Err(error) => why = format!("{}: {error}", above.display()),
                }
            }
        }
        Err(why)
    }

    fn below(above: &Path, version: Version, time: u64) -> std::io::Result<QuotaGroup> {
        let folder = above.join(format!("octavo-{}-{time}", std::process::id()));
        std::fs::create_dir(&folder)?;
        let made = QuotaGroup { folder };
        match version {
            Version::V1 => {
                std::fs::write(made.folder.join("cpu.cfs_period_us"), "100000")?;
                std::fs::write(made.folder.join("cpu.cfs_quota_us"), time.to_string())?;
            }
            Version::V2 => std::fs::write(made.folder.join("cpu.max"), format!("{time} 100000"))?,
        }
        // only a test shows whether programs may be moved there
        let status = made
            .command(OsStr::new("true"))
            .stderr(std::process::Stdio::null())
            .status()?;
        if status.success() {
            Ok(made)
        } else {
            Err(std::io::Error::other("no program can be moved there"))
        }
    }

    /// Returns a command that runs a program in the group; its arguments are still to be added.
    pub(crate) fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new("sh");
        // the shell moves itself into the group, then replaces itself by the program
        command
            .args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""])
            .arg(&self.folder)
            .arg(program);
        command
    }
}

impl Drop for QuotaGroup {
    fn drop(&mut self) {
        // a program that has just ended may still be counted
        for _ in 0..50 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
