//! The system's C++ compiler, which makes libraries of what runs on the CPU in tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::Error;

/// Compilers in the order in which they are tried.
const COMPILERS: [&str; 3] = ["c++", "g++", "clang++"];
const TRIED: &str = "c++, g++, clang++";
/// Contraction off as on the device; every warning but the one about pragmas, which are NVRTC's.
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

/// A compiler that runs.
pub(super) struct HostCompiler(&'static str);

/// What becomes one library.
pub(super) struct Unit<'a> {
    /// For errors.
    pub(super) name: &'a str,
    /// The text that is compiled, which includes some of the files.
    pub(super) text: String,
    /// Name and text of each.
    pub(super) files: &'a [(String, String)],
    /// Beside those that everything is compiled with.
    pub(super) flags: &'a [&'a str],
}

/// What is done with a library happens one at a time: it is built once, and the threads of a block
/// are its globals. A library is opened once, however many devices there are.
static RUNNING: Mutex<Vec<(PathBuf, &'static Mutex<()>)>> = Mutex::new(Vec::new());

/// The lock of a library.
pub(super) fn running(path: &Path) -> &'static Mutex<()> {
    let mut all = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, one)) = all.iter().find(|(p, _)| p == path) {
        return one;
    }
    // as long-lived as the library, of which there are a handful
    let one: &'static Mutex<()> = Box::leak(Box::default());
    all.push((path.to_owned(), one));
    one
}

impl HostCompiler {
    /// The first that there is.
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

    /// Its name.
    pub(super) fn name(&self) -> &'static str {
        self.0
    }

    /// The library of a unit, in `dir`: named after all that it is made from, and compiled if it is
    /// not there.
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
        // or every `fmaf` is a call
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
        // renamed, so that tests that run beside this one see all of it or nothing
        fs::rename(&out, path).map_err(io(path))
    }
}
