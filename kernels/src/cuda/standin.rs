//! A stand-in for NVIDIA's driver (`libcuda.so.1`), for tests: code that calls the driver runs
//! without a GPU in a process that loads this library instead, also under the name of NCCL
//! (`libnccl.so`). `cuda/standin/standin.h` describes what it checks and what it cannot show.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::Error;
use super::host_compiler::{HostCompiler, Unit, running};
use super::shim::{Shim, Sources};

/// Sources: file name, relative to `cuda/`, and text.
static FILES: [(&str, &str); 11] = [
    (
        "standin/standin.h",
        include_str!("../../cuda/standin/standin.h"),
    ),
    (
        "standin/standin.cpp",
        include_str!("../../cuda/standin/standin.cpp"),
    ),
    (
        "standin/cubin.cpp",
        include_str!("../../cuda/standin/cubin.cpp"),
    ),
    (
        "standin/gather.cpp",
        include_str!("../../cuda/standin/gather.cpp"),
    ),
    (
        "standin/nccl.cpp",
        include_str!("../../cuda/standin/nccl.cpp"),
    ),
    (
        "standin/device.cpp",
        include_str!("../../cuda/standin/device.cpp"),
    ),
    (
        "standin/memory.cpp",
        include_str!("../../cuda/standin/memory.cpp"),
    ),
    (
        "standin/objects.cpp",
        include_str!("../../cuda/standin/objects.cpp"),
    ),
    (
        "standin/queue.cpp",
        include_str!("../../cuda/standin/queue.cpp"),
    ),
    (
        "standin/settings.cpp",
        include_str!("../../cuda/standin/settings.cpp"),
    ),
    (
        "standin/stream.cpp",
        include_str!("../../cuda/standin/stream.cpp"),
    ),
];

/// Compiler flags. The library stays loaded once opened, because callers that only check for its
/// presence close it again.
const FLAGS: [&str; 5] = [
    "-fvisibility=hidden",
    "-Wl,-soname,libcuda.so.1",
    "-Wl,-z,nodelete",
    "-pthread",
    "-ldl",
];

/// A built stand-in and the kernels that it runs.
pub struct StandIn {
    dir: PathBuf,
    kernels: Vec<PathBuf>,
}

impl StandIn {
    /// Builds it and all kernels, unless they are already in `dir`.
    ///
    /// # Errors
    /// [`Error::NoCompiler`] if there is no C++ compiler.
    pub fn build(dir: &Path) -> Result<StandIn, Error> {
        let compiler = HostCompiler::find()?;
        let files = FILES.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let library = compiler.library(
            dir,
            &Unit {
                name: "standin.cpp",
                text: "#include \"standin/standin.cpp\"\n".to_owned(),
                files: &files,
                flags: &FLAGS,
            },
        )?;
        let own = library.with_extension("driver");
        named(&library, &own)?;
        let kernels = Shim::new(dir, Sources::default())?.libraries()?;
        Ok(StandIn { dir: own, kernels })
    }

    /// Returns the folder to add to the loader's search path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the environment variables for a process to find it.
    ///
    /// # Panics
    /// If a path contains a colon.
    pub fn environment(&self) -> [(&'static str, OsString); 2] {
        let listed = |paths: &mut dyn Iterator<Item = PathBuf>| {
            std::env::join_paths(paths).expect("a path without a colon")
        };
        let others = std::env::var_os("LD_LIBRARY_PATH");
        let others = others.iter().flat_map(std::env::split_paths);
        let mut all = std::iter::once(self.dir.clone()).chain(others);
        [
            ("LD_LIBRARY_PATH", listed(&mut all)),
            (
                "OCTAVO_STANDIN_KERNELS",
                listed(&mut self.kernels.iter().cloned()),
            ),
        ]
    }
}

/// Links a library under the driver's and NCCL's names in a folder of its own.
fn named(library: &Path, dir: &Path) -> Result<(), Error> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { path, source }
    };
    let _one = running(dir)
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let (path, nccl) = (dir.join("libcuda.so.1"), dir.join("libnccl.so"));
    if nccl.exists() {
        return Ok(());
    }
    fs::create_dir_all(dir).map_err(io(dir))?;
    // under a temporary name first, for concurrent processes; the first one's file stays
    let part = dir.join(format!("part-{}", std::process::id()));
    fs::copy(library, &part).map_err(io(&part))?;
    // one file, so that it is one library under both names
    let named = link(&part, &path)
        .and_then(|()| link(&path, &nccl))
        .map_err(io(&nccl));
    fs::remove_file(&part).map_err(io(&part))?;
    named
}

/// Creates a hard link, unless the name exists.
fn link(file: &Path, name: &Path) -> std::io::Result<()> {
    match fs::hard_link(file, name) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
