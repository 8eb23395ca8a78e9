//! A control group with a quota of CPU time, for as long as something runs in it. Also compiled
//! into the tests of the command line.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use octavo_engine::threads::cgroup::{Group, Version};

/// A group of our own, removed when it is dropped; what runs in it must have ended by then.
#[derive(PartialEq)]
pub(crate) struct QuotaGroup {
    folder: PathBuf,
}

impl QuotaGroup {
    /// A group whose programs get so many microseconds of CPU time in every 100 ms, or why there
    /// can be none: not this system, no rights, or groups that do not hand the CPU controller on.
    pub(crate) fn new(time: u64) -> Result<QuotaGroup, String> {
        let mut why = "no control groups with CPU time here".to_owned();
        for group in Group::all(Path::new("/")) {
            // version 2 takes no group below one that has programs, so those above are tried as
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
        // that programs may be moved there is not said by any of that
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

    /// A command that runs a program inside; its arguments are still to be given.
    pub(crate) fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new("sh");
        // the shell moves itself, then becomes the program
        command
            .args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""])
            .arg(&self.folder)
            .arg(program);
        command
    }
}

impl Drop for QuotaGroup {
    fn drop(&mut self) {
        // a program that ended just now may still be counted
        for _ in 0..50 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
