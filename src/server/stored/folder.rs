//! Stored responses in a folder, so that they survive the server: a file for each, written under
//! another name and renamed. A thread does it, so that no answer waits for the disk.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::{MAX_BYTES, MAX_RESPONSES, Stored};
use crate::LogSink;
use crate::logging;

/// Version of the files.
const VERSION: u64 = 1;

/// Beginning of the ids of responses.
const PREFIX: &str = "resp_";

/// Most characters of an id.
const MAX_ID: usize = 64;

const ENDING: &str = "json";

/// Ending of a file until it is written.
const UNFINISHED: &str = "unfinished";

/// Jobs that wait before an answer does.
const WAITING: usize = 256;

enum Job {
    Write(String, Box<Stored>),
    Remove(String),
}

/// Writes responses to a folder.
pub(super) struct Folder {
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Folder {
    /// Opens a folder, made if it is not there; returns the responses in it, the oldest first.
    ///
    /// # Errors
    /// If it cannot be made, read or written.
    pub(super) fn open(
        path: &Path,
        log: LogSink,
        warn: &mut dyn FnMut(&str),
    ) -> io::Result<(Folder, Vec<(String, Stored)>)> {
        fs::create_dir_all(path)?;
        // before anything depends on it
        let probe = path.join(format!("{PREFIX}.{UNFINISHED}"));
        create(&probe)?;
        fs::remove_file(&probe)?;
        let found = read(path, warn)?;
        let (jobs, receiver) = sync_channel(WAITING);
        let path = path.to_owned();
        let thread = std::thread::Builder::new()
            .name("responses".to_owned())
            .spawn(move || work(&path, &receiver, &log))?;
        let folder = Folder {
            jobs: Some(jobs),
            thread: Some(thread),
        };
        Ok((folder, found))
    }

    pub(super) fn write(&self, id: &str, stored: &Stored) {
        self.order(Job::Write(id.to_owned(), Box::new(stored.clone())));
    }

    pub(super) fn remove(&self, id: &str) {
        self.order(Job::Remove(id.to_owned()));
    }

    fn order(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // the thread ends after its sender only
            let _ = jobs.send(job);
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // it has nothing to return
            let _ = thread.join();
        }
    }
}

fn work(folder: &Path, jobs: &Receiver<Job>, log: &LogSink) {
    for job in jobs {
        let (id, done) = match job {
            Job::Write(id, stored) => {
                let written = write(folder, &id, &stored);
                (id, written)
            }
            Job::Remove(id) => {
                let removed = fs::remove_file(place(folder, &id));
                let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
                (
                    id,
                    removed.or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) }),
                )
            }
        };
        if let Err(error) = done {
            logging::warn(log, &format!("{}: {error}", place(folder, &id).display()));
        }
    }
}

/// Returns the file of a response, whose id [`is_id`].
fn place(folder: &Path, id: &str) -> PathBuf {
    folder.join(id).with_extension(ENDING)
}

/// Returns whether a text has the form of a response's id: no such text leads elsewhere as a name.
fn is_id(text: &str) -> bool {
    let rest = text.strip_prefix(PREFIX).unwrap_or_default();
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    !rest.is_empty() && text.len() <= MAX_ID && rest.bytes().all(is_digit)
}

/// Creates a file that only the server's user may read.
fn create(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn write(folder: &Path, id: &str, stored: &Stored) -> io::Result<()> {
    let path = place(folder, id);
    let unfinished = path.with_extension(UNFINISHED);
    let written = (|| {
        let mut file = create(&unfinished)?;
        // the texts are JSON already
        let owner = json!(stored.owner.as_deref());
        let head = format!("{{\"version\":{VERSION},\"owner\":{owner},\"input\":");
        for part in [
            &head,
            &*stored.input,
            ",\"response\":",
            &*stored.response,
            "}\n",
        ] {
            file.write_all(part.as_bytes())?;
        }
        file.sync_data()?;
        fs::rename(&unfinished, &path)
    })();
    if written.is_err() {
        // so that a full disk gets its space back
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Reads the responses of a folder, the oldest first, and removes what was not finished and what is
/// beyond the limits.
fn read(folder: &Path, warn: &mut dyn FnMut(&str)) -> io::Result<Vec<(String, Stored)>> {
    let mut files: Vec<(SystemTime, u64, String, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let stem = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or_default();
        let ending = path.extension().and_then(|ending| ending.to_str());
        // whatever else is there is not ours
        if !is_id(stem) || !entry.file_type()?.is_file() {
            continue;
        }
        match ending {
            Some(UNFINISHED) => fs::remove_file(&path)?,
            Some(ENDING) => {
                let facts = entry.metadata()?;
                let stem = stem.to_owned();
                files.push((facts.modified()?, facts.len(), stem, path));
            }
            _ => {}
        }
    }
    files.sort();
    let (mut bytes, mut n) = (0, 0);
    let mut found = Vec::new();
    for (_, size, id, path) in files.into_iter().rev() {
        bytes += usize::try_from(size).unwrap_or(usize::MAX / 2);
        n += 1;
        if n > MAX_RESPONSES || bytes > MAX_BYTES {
            fs::remove_file(&path)?;
            continue;
        }
        match of_file(&fs::read(&path)?) {
            Ok(stored) => found.push((id, stored)),
            Err(what) => warn(&format!(
                "{}: expected a stored response, found {what}; it is left alone",
                path.display()
            )),
        }
    }
    found.reverse();
    Ok(found)
}

fn of_file(bytes: &[u8]) -> Result<Stored, String> {
    let mut file: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if file["version"] != VERSION {
        return Err(format!("version {}", file["version"]));
    }
    let owner = match &file["owner"] {
        Value::Null => None,
        Value::String(owner) => Some(Arc::from(owner.as_str())),
        other => return Err(format!("the owner {other}")),
    };
    let mut response = file["response"].take();
    let Value::Array(input) = file["input"].take() else {
        return Err("no list of items".to_owned());
    };
    if !response.is_object() {
        return Err("no response".to_owned());
    }
    if response["status"] == "in_progress" {
        let message = "the server ended before the response did";
        response["status"] = json!("failed");
        response["error"] = json!({ "code": "server_error", "message": message });
    }
    let stored = Stored {
        owner,
        ..Stored::new(&input, None)
    };
    Ok(stored.with(&response))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_lead_nowhere_else() {
        assert!(is_id("resp_0123456789abcdef"));
        for text in [
            "",
            "resp_",
            "resp_..",
            "resp_/a",
            "../resp_a",
            "resp_A",
            "resp_a.json",
            "resp_a/../b",
            "resp_\u{0}",
            "resp_é",
            &format!("resp_{}", "a".repeat(60)),
        ] {
            assert!(!is_id(text), "{text}");
        }
    }
}
