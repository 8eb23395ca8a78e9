//! Runs processes with the stand-in in place of NVIDIA's driver, and with NVIDIA's own compilers.
#![allow(dead_code)] // every test program uses a part

use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use octavo_fixtures::{Lacks, skip, workspace_root};
use octavo_kernels::cuda::standin::StandIn;

use super::machine::scratch_dir;

/// NVIDIA's compilers, as named by `tools/get_nvrtc.sh`, and the folder inside that is laid out
/// like a toolkit.
pub(crate) const COMPILERS: [(&str, &str); 2] =
    [("12.9", "nvidia/cuda_nvrtc"), ("13.0", "nvidia/cu13")];

/// Time limit of a test process.
const LIMIT: Duration = Duration::from_secs(600);

/// Returns the folder of a compiler, if fetched; `OCTAVO_NVRTC` names the parent folder.
pub(crate) fn nvrtc(version: &str) -> Option<PathBuf> {
    let named = std::env::var_os("OCTAVO_NVRTC").map(PathBuf::from);
    let dir = named.unwrap_or_else(|| workspace_root().join("target/nvrtc"));
    let (_, inside) = COMPILERS
        .into_iter()
        .find(|(name, _)| *name == version)
        .expect("one of both");
    let root = dir.join(version).join(inside);
    if root.is_dir() {
        return Some(root);
    }
    skip(
        Lacks::Nvrtc,
        format_args!("NVRTC {version} is not in {}", dir.display()),
    );
    None
}

/// The stand-in driver, with a compiler for it.
pub(crate) struct Driver {
    standin: StandIn,
    nvrtc: PathBuf,
    /// Folder of the kernel cache.
    pub(crate) cache: PathBuf,
}

/// Exit status of a process, and its output on both streams.
pub(crate) struct Ended {
    pub(crate) ok: bool,
    pub(crate) how: String,
    pub(crate) text: String,
}

impl Ended {
    /// Returns the output, if the process succeeded.
    pub(crate) fn text(self, what: &str) -> String {
        assert!(self.ok, "{what}: {}\n{}", self.how, self.text);
        self.text
    }
}

impl Driver {
    /// Sets it up with the newest compiler, if that and a C++ compiler are available.
    pub(crate) fn new(dir: &str) -> Option<Driver> {
        Driver::with(dir, "13.0")
    }

    pub(crate) fn with(dir: &str, version: &str) -> Option<Driver> {
        let nvrtc = nvrtc(version)?;
        match StandIn::build(&scratch_dir(dir).join("shim")) {
            Ok(standin) => Some(Driver {
                standin,
                nvrtc,
                cache: scratch_dir(dir).join("cubins"),
            }),
            Err(error) => {
                let required = std::env::var_os("OCTAVO_REQUIRE_CXX").is_some_and(|v| v == "1");
                assert!(!required, "{error}");
                skip(Lacks::Compiler, error);
                None
            }
        }
    }

    /// Returns the stand-in's folder.
    pub(crate) fn dir(&self) -> &Path {
        self.standin.dir()
    }

    /// Prepares a program to load the stand-in with these settings.
    pub(crate) fn command(&self, program: &Path, settings: &str) -> Command {
        let mut command = Command::new(program);
        command
            .envs(self.standin.environment())
            .env("OCTAVO_STANDIN", settings)
            .env("CUDA_HOME", &self.nvrtc)
            .env("XDG_CACHE_HOME", &self.cache)
            .env_remove("CUDA_PATH")
            .env_remove("VIRTUAL_ENV")
            .env_remove("CONDA_PREFIX");
        command
    }

    /// Runs tests of this executable, selected by arguments, on the stand-in.
    pub(crate) fn tests(&self, arguments: &[&str], settings: &str) -> Ended {
        let this = std::env::current_exe().expect("a program");
        let mut command = self.command(&this, settings);
        command.args(arguments).env("OCTAVO_TEST_DEVICE", "gpu");
        run(&mut command)
    }

    /// Runs a test that is otherwise ignored.
    pub(crate) fn inside(&self, test: &str, settings: &str) -> Ended {
        self.tests(&["--ignored", "--exact", "--nocapture", test], settings)
    }

    /// As [`Driver::inside`], for a test that commits the fault named by `OCTAVO_FAULT`.
    pub(crate) fn fault(&self, test: &str, name: &str) -> Ended {
        let this = std::env::current_exe().expect("a program");
        let mut command = self.command(&this, "execute=late");
        command.args(["--ignored", "--exact", "--nocapture", test]);
        run(command.env("OCTAVO_FAULT", name))
    }
}

/// Runs a program to its end; on timeout, stops it and fails.
pub(crate) fn run(command: &mut Command) -> Ended {
    let end = Instant::now() + LIMIT;
    let mut said = tempfile::tempfile().expect("a file");
    let both = || said.try_clone().expect("a handle");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(both())
        .stderr(both())
        .spawn()
        .expect("it starts");
    let how = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break Ok(status);
        }
        if Instant::now() > end {
            child.kill().expect("it is stopped");
            child.wait().expect("it ends");
            break Err(format!("stopped after {} s", LIMIT.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut bytes = Vec::new();
    said.rewind().expect("a file");
    said.read_to_end(&mut bytes).expect("a file");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match how {
        Ok(status) => Ended {
            ok: status.success(),
            how: status.to_string(),
            text,
        },
        Err(how) => Ended {
            ok: false,
            how,
            text,
        },
    }
}
