//! Downloads one file: goes on where an earlier attempt was cut, and checks size and content before
//! the file gets its name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use reqwest::StatusCode;
use reqwest::blocking::Response;
use reqwest::header::{ACCEPT_RANGES, HeaderValue};
use sha1::Digest;

use crate::Error;
use crate::client::{ByteRange, Client, Subject, etag_of, innermost};
use crate::segments::Segments;

/// Bytes read at a time.
const PIECE: usize = 1 << 18;

/// Pieces on their way to the file and to its hash.
const PIECES: usize = 16;

/// Hash that a file's content must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hash {
    /// SHA-256 of a file in large file storage.
    Sha256(String),
    /// SHA-1 that Git names a small file by: of `blob SIZE`, a zero byte and the content.
    Git(String),
    /// None was announced.
    Unknown,
}

/// A file to download.
#[derive(Clone, Debug)]
pub(crate) struct RemoteFile<'a> {
    /// Name for messages.
    pub(crate) name: &'a str,
    pub(crate) url: &'a str,
    /// Size in bytes, if it was announced.
    pub(crate) size: Option<u64>,
    pub(crate) hash: Hash,
    /// Where the ETag is kept of a file that has no hash: its parts are parts of one file only if
    /// they have the same.
    pub(crate) etag: Option<&'a Path>,
}

impl RemoteFile<'_> {
    /// Returns the ETag of the part that is there.
    fn known_etag(&self) -> Option<String> {
        fs::read_to_string(self.etag?).ok()
    }
}

impl Client {
    /// Downloads a file to `to`, by way of `to` with `.incomplete` at its end; `progress` gets the
    /// bytes that are there, and of all.
    ///
    /// # Errors
    /// If it cannot be had, or has another size or content than announced. The bytes that came
    /// stay for the next attempt, unless they are wrong.
    pub(crate) fn download(
        &self,
        file: &RemoteFile<'_>,
        to: &Path,
        subject: Subject<'_>,
        progress: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<(), Error> {
        let incomplete = incomplete(to);
        let mut hashing = Hashing::new(file);
        let mut failures = 0;
        loop {
            let mut have = fs::metadata(&incomplete).map_or(0, |about| about.len());
            if file.size == Some(have) && have > 0 {
                break;
            }
            let etag = file.known_etag();
            if have > 0 && file.etag.is_some() && etag.is_none() {
                // nothing tells which file this is the beginning of
                remove(&incomplete)?;
                have = 0;
            }
            let part = ByteRange {
                from: have,
                to: None,
                etag: etag.as_deref(),
            };
            let answer = self.get(file.url, part, subject)?;
            let Some((answer, size)) = self.begin(file, answer, have, &incomplete)? else {
                // what was there is dropped, because the server cannot go on from it
                continue;
            };
            let mut to = Destination {
                path: &incomplete,
                hashing: &mut hashing,
                progress: &mut *progress,
            };
            match self.receive(answer, file, size, &mut to) {
                Ok(Ended::Whole) => break,
                Ok(Ended::Cut(reason)) => {
                    let now = fs::metadata(&incomplete).map_or(0, |about| about.len());
                    failures = if now > have { 1 } else { failures + 1 };
                    if failures >= self.retries.attempts {
                        return Err(Error::Connection {
                            url: file.url.to_owned(),
                            reason,
                            attempts: failures,
                        });
                    }
                    self.retries.pause(failures);
                }
                Err(error) => {
                    let path = incomplete;
                    return Err(Error::File { path, error });
                }
            }
        }
        check(file, &incomplete, hashing)?;
        fs::rename(&incomplete, to).map_err(failed(to))
    }

    /// Prepares to receive an answer; returns it with the whole size, or `None` to ask again from
    /// the beginning.
    fn begin(
        &self,
        file: &RemoteFile<'_>,
        answer: Response,
        have: u64,
        incomplete: &Path,
    ) -> Result<Option<(Response, Option<u64>)>, Error> {
        let header = |name: &str| answer.headers().get(name)?.to_str().ok().map(str::to_owned);
        let length = header("content-length").and_then(|n| n.parse::<u64>().ok());
        let goes_on = answer.status() == StatusCode::PARTIAL_CONTENT
            && header("content-range")
                .is_some_and(|range| range.starts_with(&format!("bytes {have}-")));
        let is_new = answer.status() == StatusCode::OK;
        if !goes_on && have > 0 {
            remove(incomplete)?;
        }
        if !goes_on && !is_new {
            return match have {
                0 => Err(Error::Status {
                    url: file.url.to_owned(),
                    status: answer.status().as_u16(),
                    message: "expected the file".to_owned(),
                }),
                _ => Ok(None),
            };
        }
        let before = if goes_on { have } else { 0 };
        let size = file.size.or(length.map(|length| before + length));
        if let (Some(expected), Some(length)) = (file.size, length)
            && before + length != expected
        {
            return Err(Error::Content {
                file: file.name.to_owned(),
                what: "size",
                expected: expected.to_string(),
                got: (before + length).to_string(),
            });
        }
        if let Some(path) = file.etag.filter(|_| !goes_on) {
            match etag_of(answer.headers()) {
                Some(etag) => fs::write(path, etag).map_err(failed(path))?,
                None if path.exists() => remove(path)?,
                None => {}
            }
        }
        Ok(Some((answer, size)))
    }

    /// Appends an answer's content to a file. One thread receives while another writes and hashes.
    /// Several connections receive the rest of a large file that comes fast.
    fn receive(
        &self,
        mut answer: Response,
        file: &RemoteFile<'_>,
        size: Option<u64>,
        to: &mut Destination<'_>,
    ) -> io::Result<Ended> {
        let out = OpenOptions::new().create(true).append(true).open(to.path)?;
        let before = out.metadata()?.len();
        let mut done = before;
        to.hashing.catch_up(to.path, done)?;
        (to.progress)(done, size);
        let etag = file.known_etag();
        let url = answer.url().to_string();
        let segments = size.filter(|_| has_ranges(&answer)).map(|size| Segments {
            client: self,
            url: &url,
            etag: etag.as_deref(),
            size,
        });
        let (start, buffers) = (Instant::now(), Buffers::default());
        thread::scope(|scope| {
            let (send, pieces) = sync_channel::<Piece>(PIECES);
            let (hashing, buffers) = (&mut *to.hashing, &buffers);
            let writer = scope.spawn(move || write_all(out, &pieces, hashing, buffers));
            let ended = loop {
                if let Some(segments) = &segments
                    && segments.pays(done - before, done, start.elapsed())
                {
                    drop(answer);
                    break segments.receive(done, &send, buffers, to.progress);
                }
                let mut piece = buffers.take(PIECE);
                match answer.read(&mut piece) {
                    Ok(0) if size.is_none_or(|size| done == size) => break Ended::Whole,
                    Ok(0) => break Ended::Cut("the connection ended early".to_owned()),
                    Ok(n) => {
                        done += n as u64;
                        if send.send((piece, n)).is_err() {
                            // the writer has failed and says why
                            break Ended::Whole;
                        }
                        (to.progress)(done, size);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => break Ended::Cut(reason(&error)),
                }
                if size.is_some_and(|size| done > size) {
                    break Ended::Whole;
                }
            };
            drop(send);
            writer.join().expect("writing does not panic")?;
            Ok(ended)
        })
    }
}

/// A file that is being written.
struct Destination<'a> {
    path: &'a Path,
    /// Hash of what is there.
    hashing: &'a mut Hashing,
    /// Receives the bytes that are there, and of all.
    progress: &'a mut dyn FnMut(u64, Option<u64>),
}

/// Returns whether a server sends parts of a file when it is asked for them.
fn has_ranges(answer: &Response) -> bool {
    let is_bytes = |value: &HeaderValue| value == "bytes";
    answer.status() == StatusCode::PARTIAL_CONTENT
        || answer.headers().get(ACCEPT_RANGES).is_some_and(is_bytes)
}

/// Returns the error of a file.
fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    move |error| Error::File {
        path: path.to_owned(),
        error,
    }
}

fn remove(path: &Path) -> Result<(), Error> {
    fs::remove_file(path).map_err(failed(path))
}

/// Returns the path of a file that is not whole yet.
pub(crate) fn incomplete(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".incomplete");
    PathBuf::from(name)
}

/// How receiving ended.
pub(crate) enum Ended {
    Whole,
    /// Before the end, for this reason.
    Cut(String),
}

/// A part of a file: a buffer, and the number of its bytes that are filled.
pub(crate) type Piece = (Vec<u8>, usize);

/// Buffers that are used again: new ones of this size are new pages of memory each time.
#[derive(Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// Returns a buffer of `n` bytes, with any content.
    pub(crate) fn take(&self, n: usize) -> Vec<u8> {
        let mut buffer = self.free().pop().unwrap_or_default();
        buffer.resize(n, 0);
        buffer
    }

    fn put(&self, buffer: Vec<u8>) {
        self.free().push(buffer);
    }

    fn free(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write_all(
    mut file: File,
    pieces: &Receiver<Piece>,
    hashing: &mut Hashing,
    buffers: &Buffers,
) -> io::Result<()> {
    for (buffer, n) in pieces {
        file.write_all(&buffer[..n])?;
        hashing.add(&buffer[..n]);
        buffers.put(buffer);
    }
    file.flush()
}

/// A hash of what is there of a file.
struct Hashing {
    hasher: Hasher,
    /// The hasher before the first byte.
    new: Hasher,
    /// Bytes hashed.
    n: u64,
}

#[derive(Clone)]
enum Hasher {
    Sha256(Box<sha2::Sha256>),
    Git(Box<sha1::Sha1>),
    None,
}

impl Hashing {
    fn new(file: &RemoteFile<'_>) -> Hashing {
        let new = match (&file.hash, file.size) {
            (Hash::Sha256(_), _) => Hasher::Sha256(Box::default()),
            (Hash::Git(_), Some(size)) => {
                let mut hasher = sha1::Sha1::default();
                hasher.update(format!("blob {size}\0"));
                Hasher::Git(Box::new(hasher))
            }
            (Hash::Git(_), None) | (Hash::Unknown, _) => Hasher::None,
        };
        Hashing {
            hasher: new.clone(),
            new,
            n: 0,
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.n += bytes.len() as u64;
        match &mut self.hasher {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Git(hasher) => hasher.update(bytes),
            Hasher::None => {}
        }
    }

    /// Hashes the first `n` bytes of a file, unless it has just hashed them.
    fn catch_up(&mut self, path: &Path, n: u64) -> io::Result<()> {
        if self.n == n {
            return Ok(());
        }
        (self.hasher, self.n) = (self.new.clone(), 0);
        let mut file = File::open(path)?.take(n);
        let mut piece = vec![0; PIECE];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(()),
                n => self.add(&piece[..n]),
            }
        }
    }

    /// Returns the hash in hexadecimal; `None` without one.
    fn finish(self) -> Option<String> {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self.hasher {
            Hasher::Sha256(hasher) => Some(hex(&hasher.finalize())),
            Hasher::Git(hasher) => Some(hex(&hasher.finalize())),
            Hasher::None => None,
        }
    }
}

/// Returns the reason that nothing more comes.
pub(crate) fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => "nothing came for too long".to_owned(),
        _ => format!("the connection ended early: {}", innermost(error)),
    }
}

/// Checks size and content of a file; removes it if they are wrong.
fn check(file: &RemoteFile<'_>, path: &Path, mut hashing: Hashing) -> Result<(), Error> {
    let size = fs::metadata(path).map_err(failed(path))?.len();
    hashing.catch_up(path, size).map_err(failed(path))?;
    let expected_size = file.size.unwrap_or(size);
    let (what, expected, got) = match (&file.hash, hashing.finish()) {
        _ if size != expected_size => ("size", expected_size.to_string(), size.to_string()),
        (Hash::Sha256(expected), Some(got)) => ("sha256", expected.to_ascii_lowercase(), got),
        (Hash::Git(expected), Some(got)) => ("sha1", expected.to_ascii_lowercase(), got),
        _ => return Ok(()),
    };
    if got == expected {
        return Ok(());
    }
    remove(path)?;
    let file = file.name.to_owned();
    Err(Error::Content {
        file,
        what,
        expected,
        got,
    })
}
