//! The identity of a model as a program computes it: equal where every page has equal bits.
//!
//! Bits depend on the weights, on what the graph does with them, on the types of the KV cache, on
//! the instruction set, and on the program: another version may add in another order. Weights are
//! hashed whole. What that gave is remembered beside the pages under the files' sizes and times, so
//! that a large model is not read for it at each start.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use gguf_rs_lite::Gguf;
use octavo_kernels::Isa;
use octavo_model::Model;
use sha2::{Digest as _, Sha256};

use crate::kv::Digest;
use crate::options::EngineOptions;

/// Bytes hashed at a time; part of what a digest is.
const PIECE: usize = 16 << 20;

/// Age of a file from which its time of change says that it has not changed since.
const SETTLED: Duration = Duration::from_secs(2);

/// Extension of files that remember the digest of a model's weights.
const EXTENSION: &str = "model";

/// Returns the identity of a model under these options. `dir` remembers what takes long.
///
/// # Errors
/// If the program itself or the folder cannot be read or written.
pub(super) fn identity(
    gguf: &Gguf,
    model: &Model,
    (options, isa): (&EngineOptions, Isa),
    dir: &Path,
) -> io::Result<Digest> {
    let mut hash = Sha256::new();
    hash.update(program()?);
    for (key, value) in gguf.keys() {
        hash.update(format!("{key} {value:?}\n"));
    }
    hash.update(format!("{:?} {:?}\n", model.graph, model.ropes));
    let EngineOptions {
        kv_type,
        prompt_bits,
        repack,
        keep_hidden,
        ..
    } = options;
    hash.update(format!(
        "{kv_type:?} {isa:?} {prompt_bits:?} {repack} {keep_hidden}\n"
    ));
    hash.update(weights(gguf, dir)?);
    Ok(hash.finalize().into())
}

/// Returns a digest of the running program, which is read once.
fn program() -> io::Result<Digest> {
    static KNOWN: OnceLock<Digest> = OnceLock::new();
    match KNOWN.get() {
        Some(known) => Ok(*known),
        None => Ok(*KNOWN.get_or_init({
            let digest = hash_program()?;
            move || digest
        })),
    }
}

fn hash_program() -> io::Result<Digest> {
    let mut file = File::open(std::env::current_exe()?)?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finalize().into()),
            n => hash.update(&buffer[..n]),
        }
    }
}

/// Returns a digest of the tensors, remembered if the files are as they were.
fn weights(gguf: &Gguf, dir: &Path) -> io::Result<Digest> {
    let Some(stamp) = stamp(gguf) else {
        return Ok(hash_tensors(gguf));
    };
    let name = stamp[..16].iter().map(|b| format!("{b:02x}"));
    let path = dir.join(format!("{}.{EXTENSION}", name.collect::<String>()));
    if let Some(known) = remembered(&path, &stamp) {
        return Ok(known);
    }
    let digest = hash_tensors(gguf);
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(&stamp)?;
    file.write_all(&digest)?;
    file.write_all(&Sha256::digest([stamp, digest].concat()))?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(digest)
}

/// Reads a remembered digest; `None` if there is none, or it is damaged.
fn remembered(path: &Path, stamp: &Digest) -> Option<Digest> {
    let bytes = fs::read(path).ok()?;
    let (known, checksum) = bytes.split_at_checked(64)?;
    let (own, digest) = known.split_at(32);
    let is_whole = Sha256::digest(known).as_slice() == checksum && own == stamp;
    digest.try_into().ok().filter(|_| is_whole)
}

/// Returns a digest of the names, sizes and times of a model's files; `None` if these do not tell
/// whether the files are the same.
fn stamp(gguf: &Gguf) -> Option<Digest> {
    if gguf.is_view() {
        return None;
    }
    let mut hash = Sha256::new();
    for name in gguf.part_names() {
        let path: PathBuf = fs::canonicalize(name).ok()?;
        let data = fs::metadata(&path).ok()?;
        let modified = data.modified().ok()?;
        if !modified.elapsed().is_ok_and(|age| age > SETTLED) {
            return None;
        }
        let modified = modified.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        hash.update(format!(
            "{path:?} {} {modified:?} {:?}\n",
            data.len(),
            changed(&data)
        ));
    }
    Some(hash.finalize().into())
}

/// Returns the number of a file and when it was changed last, which no program can set back.
#[cfg(unix)]
fn changed(data: &fs::Metadata) -> (u64, i64, i64) {
    use std::os::unix::fs::MetadataExt;
    (data.ino(), data.ctime(), data.ctime_nsec())
}

#[cfg(not(unix))]
fn changed(_: &fs::Metadata) {}

/// Returns a digest of every tensor, computed by several threads.
fn hash_tensors(gguf: &Gguf) -> Digest {
    let mut pieces = Vec::new();
    for tensor in gguf.tensors() {
        let row = tensor.dims.first().and_then(|n| tensor.ty.row_bytes(*n));
        let row = row
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(1)
            .max(1);
        let step = (PIECE / row).max(1) * row;
        let bytes = usize::try_from(tensor.bytes).unwrap_or(0);
        pieces.extend(
            (0..bytes)
                .step_by(step)
                .map(|at| (tensor, at, step.min(bytes - at))),
        );
    }
    let digests = Mutex::new(vec![[0; 32]; pieces.len()]);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut buffer = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(&(tensor, at, n)) = pieces.get(i) else {
                return;
            };
            buffer.resize(n, 0);
            gguf.read(tensor, at, &mut buffer);
            let digest: Digest = Sha256::digest(&buffer).into();
            digests.lock().unwrap_or_else(PoisonError::into_inner)[i] = digest;
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        (0..threads.min(pieces.len())).for_each(|_| drop(scope.spawn(work)));
    });
    let mut hash = Sha256::new();
    for tensor in gguf.tensors() {
        hash.update(format!("{} {} {:?}\n", tensor.name, tensor.ty, tensor.dims));
    }
    let digests = digests.into_inner().unwrap_or_else(PoisonError::into_inner);
    digests.iter().for_each(|digest| hash.update(digest));
    hash.finalize().into()
}
