//! Builds shared libraries with the system's C++ compiler, for code that tests run on the CPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::Error;

/// Compilers, in the order tried.
const COMPILERS: [&str; 3] = ["c++", "g++", "clang++"];
const TRIED: &str = "c++, g++, clang++";
/// Floating-point contraction is off, as on the device; all warnings are on except for unknown
/// pragmas, which are meant for NVRTC.
const FLAGS: [&str; 9] = [
    "-std=c++17",
    "-O2",
    "-ffp-contract=off",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
];

/// A working compiler.
pub(super) struct HostCompiler(&'static str);

/// Input of one library.
pub(super) struct Unit<'a> {
    /// Name in errors.
    pub(super) name: &'a str,
    /// Source text to compile, which includes some of the files.
    pub(super) text: String,
    /// Name and text of each file.
    pub(super) files: &'a [(String, String)],
    /// Flags in addition to `FLAGS`.
    pub(super) flags: &'a [&'a str],
}

/// Locks by library path. All use of a library is serialized: it is built once, and the threads of
/// a block are its globals. A library is opened only once, however many devices there are.
static RUNNING: Mutex<Vec<(PathBuf, &'static Mutex<()>)>> = Mutex::new(Vec::new());

/// Returns the lock of a library.
pub(super) fn running(path: &Path) -> &'static Mutex<()> {
    let mut all = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, one)) = all.iter().find(|(p, _)| p == path) {
        return one;
    }
    // leaked, as are the libraries, of which there are only a few
    let one: &'static Mutex<()> = Box::leak(Box::default());
    all.push((path.to_owned(), one));
    one
}

impl HostCompiler {
    /// Finds the first compiler that runs.
    pub(super) fn find() -> Result<HostCompiler, Error> {
        let runs = |name: &&str| {
            Command::new(name)
                .arg("--version")
                .output()
                .is_ok_and(|o| o.status.success())
        };
        let found = COMPILERS.into_iter().find(runs);
        let found = found.ok_or(Error::NoCompiler { tried: TRIED })?;
        Ok(HostCompiler(found))
    }

    /// Returns its name.
    pub(super) fn name(&self) -> &'static str {
        self.0
    }

    /// Returns the library of a unit in `dir`, named by the hash of all its inputs, and compiles it
    /// if it is missing.
    pub(super) fn library(&self, dir: &Path, unit: &Unit<'_>) -> Result<PathBuf, Error> {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(&unit.text);
        for flag in unit.flags {
            hash.update(flag);
        }
        for (name, text) in unit.files {
            hash.update(name);
            hash.update(text);
        }
        let name: String = hash
            .finalize()
            .iter()
            .take(16)
            .map(|b| format!("{b:02x}"))
            .collect();
        let path = dir.join(format!("{name}.so"));
        let _one = running(&path)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !path.exists() {
            self.compile(dir, unit, &path)?;
        }
        Ok(path)
    }

    fn compile(&self, dir: &Path, unit: &Unit<'_>, path: &Path) -> Result<(), Error> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path, source }
        };
        fs::create_dir_all(dir).map_err(io(dir))?;
        let work = tempfile::tempdir_in(dir).map_err(io(dir))?;
        for (name, text) in unit.files {
            let to = work.path().join(name);
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent).map_err(io(parent))?;
            }
            fs::write(&to, text).map_err(io(&to))?;
        }
        let (source, out) = (work.path().join("unit.cpp"), work.path().join("unit.so"));
        fs::write(&source, &unit.text).map_err(io(&source))?;
        let mut command = Command::new(self.0);
        command.args(FLAGS).arg("-o").arg(&out).arg(&source);
        command.args(unit.flags);
        // otherwise every `fmaf` is a function call
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("fma") {
            command.arg("-mfma");
        }
        let output = command.output().map_err(io(Path::new(self.0)))?;
        if !output.status.success() {
            return Err(Error::Compile {
                module: unit.name.to_owned(),
                compiler: self.0.to_owned(),
                log: String::from_utf8_lossy(&output.stderr).into_owned(),
            });
        }
        // renamed, so that concurrent tests see the whole file or none
        fs::rename(&out, path).map_err(io(path))
    }
}
