//! Processes that find a stand-in where NVIDIA's driver would be, and NVIDIA's own compilers.
#![allow(dead_code)] // every test program uses a part

use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use octavo_fixtures::{Lacks, skip, workspace_root};
use octavo_kernels::cuda::standin::StandIn;

use super::machine::kept;

/// NVIDIA's compilers, as `tools/get_nvrtc.sh` names them, and the folder inside that is like a
/// toolkit's.
pub(crate) const COMPILERS: [(&str, &str); 2] =
    [("12.9", "nvidia/cuda_nvrtc"), ("13.0", "nvidia/cu13")];

/// No process of a test takes so long.
const LIMIT: Duration = Duration::from_secs(600);

/// The folder of a compiler, if it was fetched: `OCTAVO_NVRTC` names the folder of both.
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

/// A stand-in, with a compiler for it.
pub(crate) struct Driver {
    standin: StandIn,
    nvrtc: PathBuf,
    /// Where kernels' code is kept.
    pub(crate) cache: PathBuf,
}

/// How a process ended, and what it said on both streams.
pub(crate) struct Ended {
    pub(crate) ok: bool,
    pub(crate) how: String,
    pub(crate) text: String,
}

impl Ended {
    /// What it said, if it ended well.
    pub(crate) fn text(self, what: &str) -> String {
        assert!(self.ok, "{what}: {}\n{}", self.how, self.text);
        self.text
    }
}

impl Driver {
    /// With the newest compiler, if there are both it and a C++ compiler.
    pub(crate) fn new(dir: &str) -> Option<Driver> {
        Driver::with(dir, "13.0")
    }

    pub(crate) fn with(dir: &str, version: &str) -> Option<Driver> {
        let nvrtc = nvrtc(version)?;
        match StandIn::build(&kept(dir).join("shim")) {
            Ok(standin) => Some(Driver {
                standin,
                nvrtc,
                cache: kept(dir).join("cubins"),
            }),
            Err(error) => {
                let required = std::env::var_os("OCTAVO_REQUIRE_CXX").is_some_and(|v| v == "1");
                assert!(!required, "{error}");
                skip(Lacks::Compiler, error);
                None
            }
        }
    }

    /// The stand-in's folder.
    pub(crate) fn dir(&self) -> &Path {
        self.standin.dir()
    }

    /// Readies a program to find it, set up in these words.
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

    /// Tests of this very program, by the arguments that choose them, on the stand-in.
    pub(crate) fn tests(&self, arguments: &[&str], settings: &str) -> Ended {
        let this = std::env::current_exe().expect("a program");
        let mut command = self.command(&this, settings);
        command.args(arguments).env("OCTAVO_TEST_DEVICE", "gpu");
        run(&mut command)
    }

    /// A test that is ignored everywhere else.
    pub(crate) fn inside(&self, test: &str, settings: &str) -> Ended {
        self.tests(&["--ignored", "--exact", "--nocapture", test], settings)
    }

    /// As [`Driver::inside`], of a test that does what `OCTAVO_FAULT` names.
    pub(crate) fn fault(&self, test: &str, name: &str) -> Ended {
        let this = std::env::current_exe().expect("a program");
        let mut command = self.command(&this, "execute=late");
        command.args(["--ignored", "--exact", "--nocapture", test]);
        run(command.env("OCTAVO_FAULT", name))
    }
}

/// Runs a program to its end; stops it, as a failure, where that takes too long.
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
