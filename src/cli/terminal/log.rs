//! Log file of all messages, each line with its time.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::OnceLock;

use octavo_text::time::{now, strftime};

use super::super::failure::Failure;

static LOG: OnceLock<File> = OnceLock::new();

/// First line of a log, by which an older one is recognized.
const HEAD: &str = "# messages of octavo\n";

/// Opens the log: a new file, an empty one, or an older log to append to. Pipes and devices are
/// written to.
pub(super) fn open(path: &Path) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::Input(format!("--log-file {}: {error}", path.display()));
    let is_file = path.metadata().map_or(true, |there| there.is_file());
    let mut beginning = Vec::new();
    if is_file && path.exists() {
        let file = File::open(path).map_err(failed)?;
        let most = HEAD.len() as u64;
        file.take(most)
            .read_to_end(&mut beginning)
            .map_err(failed)?;
        if !beginning.is_empty() && beginning != HEAD.as_bytes() {
            return Err(Failure::Input(format!(
                "--log-file {}: expected a new name or that of an older log, got another file",
                path.display()
            )));
        }
    }
    let mut options = OpenOptions::new();
    let mut file = options
        .append(true)
        .create(true)
        .open(path)
        .map_err(failed)?;
    if is_file && beginning.is_empty() {
        file.write_all(HEAD.as_bytes()).map_err(failed)?;
    }
    // set only once per process
    let _ = LOG.set(file);
    Ok(())
}

/// Adds a line with its time.
pub(super) fn add(line: &str) {
    if LOG.get().is_some() {
        let time = strftime("%Y-%m-%dT%H:%M:%SZ", now());
        add_timed(&format!("{time} {line}"));
    }
}

/// Adds a line that has a time already. A failing log does not end the work that it is about.
pub(super) fn add_timed(line: &str) {
    if let Some(mut file) = LOG.get() {
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}
