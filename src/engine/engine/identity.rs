//! The identity of a model as a program computes it: equal where every page has equal bits.
//!
//! Bits depend on the weights, on what the graph does with them, on the types of the KV cache, on
//! the instruction set, and on the program: another version may add in another order. Weights are
//! hashed whole, and so is the program. What that gave is remembered beside the pages under the
//! files' sizes and times, so that a large model is not read for it at each start.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
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

/// Extension of files that remember a digest.
const EXTENSION: &str = "digest";

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
    hash.update(program(dir)?);
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
    let made = model.weights.tensors.vectors.iter();
    for vector in made.filter(|vector| vector.is_made) {
        hash.update(format!("{}\n", vector.name));
        vector
            .data
            .iter()
            .for_each(|x| hash.update(x.to_le_bytes()));
    }
    hash.update(weights(gguf, dir)?);
    Ok(hash.finalize().into())
}

/// Returns a digest of the running program, which is read once.
fn program(dir: &Path) -> io::Result<Digest> {
    static KNOWN: OnceLock<Digest> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let path = std::env::current_exe()?;
    let digest = remember(dir, stamp(&[&path]), || hash_file(&path))?;
    Ok(*KNOWN.get_or_init(|| digest))
}

fn hash_file(path: &Path) -> io::Result<Digest> {
    let mut file = File::open(path)?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finalize().into()),
            n => hash.update(&buffer[..n]),
        }
    }
}

/// Returns a digest of the tensors.
fn weights(gguf: &Gguf, dir: &Path) -> io::Result<Digest> {
    let files: Vec<&Path> = gguf.part_names().map(Path::new).collect();
    // a view has more files than it names
    let stamp = stamp(&files).filter(|_| !gguf.is_view());
    remember(dir, stamp, || Ok(hash_tensors(gguf)))
}

/// Returns a digest that the folder remembers of files with this stamp; `hash` computes it the
/// first time.
fn remember(
    dir: &Path,
    stamp: Option<Digest>,
    hash: impl FnOnce() -> io::Result<Digest>,
) -> io::Result<Digest> {
    let Some(stamp) = stamp else {
        return hash();
    };
    let name = stamp[..16].iter().map(|b| format!("{b:02x}"));
    let path = dir.join(format!("{}.{EXTENSION}", name.collect::<String>()));
    if let Some(known) = remembered(&path, &stamp) {
        return Ok(known);
    }
    let digest = hash()?;
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

/// Returns a digest of the names, sizes and times of files; `None` if these do not tell whether the
/// files are the same.
fn stamp(files: &[&Path]) -> Option<Digest> {
    let mut hash = Sha256::new();
    for file in files {
        let path = fs::canonicalize(file).ok()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_of_the_same_files_and_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let of = |stamp, fresh: u8| {
            let found = remember(dir.path(), Some([stamp; 32]), || Ok([fresh; 32]));
            found.expect("it is writable")[0]
        };
        assert_eq!([of(1, 2), of(1, 3), of(4, 5)], [2, 2, 5]);
        for file in fs::read_dir(dir.path()).expect("a folder") {
            let path = file.expect("a file").path();
            let mut bytes = fs::read(&path).expect("it is readable");
            bytes[40] ^= 1;
            fs::write(path, bytes).expect("it is writable");
        }
        assert_eq!([of(1, 6), of(4, 7)], [6, 7]);
    }

    #[test]
    fn a_file_that_has_just_changed_has_no_stamp() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(stamp(&[file.path()]), None);
        let old = SystemTime::now() - Duration::from_secs(100);
        file.as_file().set_modified(old).expect("a time");
        let before = stamp(&[file.path()]);
        assert!(before.is_some() && before == stamp(&[file.path()]));
        fs::write(file.path(), "changed").expect("it is writable");
        file.as_file().set_modified(old).expect("a time");
        assert_ne!(stamp(&[file.path()]), before);
        assert_eq!(stamp(&[&file.path().join("none")]), None);
    }
}
