//! Cache of compiled kernels on disk: compiling them all takes seconds, reading them almost none.

use std::path::{Path, PathBuf};
use std::{fs, io};

use sha2::{Digest, Sha256};

use super::{Error, Module};

/// Source of a kernel image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// Read from the cache.
    Cached,
    /// Compiled now.
    Compiled,
}

/// A folder of kernel images, each named by the hash of all its inputs, and followed by its own
/// hash.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

/// Bytes of a SHA-256 hash.
const HASH: usize = 32;

impl Cache {
    /// Creates a cache in a folder, which need not exist.
    pub fn new(dir: impl Into<PathBuf>) -> Cache {
        Cache { dir: dir.into() }
    }

    /// Returns the user's cache: `$XDG_CACHE_HOME/octavo/kernels`, or `~/.cache/octavo/kernels`, on
    /// Windows `%LOCALAPPDATA%\octavo\kernels`; none without a home folder.
    pub fn of_user() -> Option<Cache> {
        let absolute = |name: &str| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|p| p.is_absolute())
        };
        let base = absolute("XDG_CACHE_HOME").or_else(|| match cfg!(windows) {
            true => absolute("LOCALAPPDATA"),
            false => absolute("HOME").map(|home| home.join(".cache")),
        })?;
        Some(Cache::new(base.join("octavo").join("kernels")))
    }

    /// Returns the file of a module compiled by this compiler with its options.
    pub fn path(&self, module: Module, compiler: &str) -> PathBuf {
        let name = inputs_hash(module, compiler);
        self.dir.join(format!("{name}.cubin"))
    }

    /// Whether there is an undamaged image at `path`.
    pub fn has(path: &Path) -> bool {
        read(path).is_some()
    }

    /// Loads the image at `path`, or compiles it and stores it there. A file that is damaged, or
    /// that `load` rejects, is replaced. If the folder is not writable, only time is lost.
    ///
    /// # Errors
    /// If `compile` fails, or `load` of a newly compiled image.
    pub fn get<T>(
        path: &Path,
        compile: impl FnOnce() -> Result<Vec<u8>, Error>,
        mut load: impl FnMut(&[u8]) -> Result<T, Error>,
    ) -> Result<(T, Delivered), Error> {
        if let Some(loaded) = read(path).and_then(|image| load(&image).ok()) {
            return Ok((loaded, Delivered::Cached));
        }
        let image = compile()?;
        let loaded = load(&image)?;
        // on failure, the next start compiles again
        let _ = write(path, &image);
        Ok((loaded, Delivered::Compiled))
    }
}

/// Returns the SHA-256 hash, in hexadecimal digits, of all that a module's code is made from: its
/// sources and macros, and the compiler with its options, as [`Nvrtc::key`] gives it.
///
/// [`Nvrtc::key`]: super::nvrtc::Nvrtc::key
pub fn inputs_hash(module: Module, compiler: &str) -> String {
    let mut hash = Sha256::new();
    let defines = module.defines().into_iter();
    let defines: Vec<String> = defines
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let defines = defines.join(" ");
    let sources = module.sources().into_iter();
    let parts = [compiler, &defines].into_iter();
    for part in parts.chain(sources.flat_map(|(name, text)| [name, text])) {
        // hash the length too, so that no two lists of parts collide
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// Reads an image, if it is undamaged.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(path).ok()?;
    let at = bytes.len().checked_sub(HASH)?;
    let hash = bytes.split_off(at);
    (Sha256::digest(&bytes).as_slice() == hash).then_some(bytes)
}

/// Writes an image under a temporary name first, so that concurrent readers see the whole file or
/// none.
fn write(path: &Path, image: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    io::Write::write_all(&mut file, image)?;
    io::Write::write_all(&mut file, &Sha256::digest(image))?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Result<Vec<u8>, Error> {
        Ok(b"code".to_vec())
    }

    fn any(image: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(image.to_vec())
    }

    #[test]
    fn what_was_compiled_is_there_the_next_time() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = Cache::new(dir.path().join("new")).path(Module::Rows, "compiler");
        for expected in [Delivered::Compiled, Delivered::Cached] {
            assert_eq!(
                Cache::get(&path, image, any).expect("loads"),
                (b"code".to_vec(), expected)
            );
        }
        let files: Vec<_> = fs::read_dir(path.parent().expect("a folder"))
            .expect("readable")
            .collect();
        assert_eq!(files.len(), 1, "no temporary file stays");
    }

    #[test]
    fn damaged_and_refused_files_are_replaced() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = Cache::new(dir.path()).path(Module::Rows, "compiler");
        for damage in [&b""[..], b"short", &[7; 36], &[0; 500]] {
            fs::write(&path, damage).expect("writable");
            assert_eq!(
                Cache::get(&path, image, any).expect("loads").1,
                Delivered::Compiled
            );
            assert_eq!(
                Cache::get(&path, image, any).expect("loads").1,
                Delivered::Cached
            );
        }
        let refuse = || Error::Unavailable("not for this driver".to_owned());
        let mut calls = 0;
        let once = |image: &[u8]| {
            calls += 1;
            if calls == 1 {
                Err(refuse())
            } else {
                any(image)
            }
        };
        assert_eq!(
            Cache::get(&path, image, once).expect("loads").1,
            Delivered::Compiled
        );
        assert!(
            Cache::get(
                &path,
                || Err(refuse()),
                |_| -> Result<(), Error> { Err(refuse()) }
            )
            .is_err()
        );
    }

    #[test]
    fn a_folder_that_cannot_be_written_hinders_nothing() {
        let path = Cache::new("/proc/nowhere").path(Module::Kv(1), "compiler");
        assert_eq!(
            Cache::get(&path, image, any).expect("loads").1,
            Delivered::Compiled
        );
    }

    #[test]
    fn everything_that_code_is_made_from_is_in_its_name() {
        let cache = Cache::new("");
        let mut paths: Vec<PathBuf> = Module::all()
            .into_iter()
            .map(|m| cache.path(m, "a"))
            .collect();
        paths.extend(Module::all().into_iter().map(|m| cache.path(m, "b")));
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), 2 * Module::all().len());
    }
}
