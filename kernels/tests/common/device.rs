//! The device that CUDA tests run on: the CPU as a GPU, or a GPU where `OCTAVO_TEST_DEVICE=gpu`
//! asks for one.
#![allow(dead_code)] // every test program uses a part

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use octavo_fixtures::{Lacks, skip};
use octavo_kernels::cuda::shim::{Schedule, Shim, Sources};
use octavo_kernels::cuda::{Cache, Device, Gpu};

/// One of the two.
pub(crate) enum Machine {
    Shim(Box<Shim>),
    Gpu(Box<Gpu>),
}

impl Machine {
    pub(crate) fn device(&mut self) -> &mut dyn Device {
        match self {
            Machine::Shim(shim) => &mut **shim,
            Machine::Gpu(gpu) => gpu,
        }
    }

    pub(crate) fn boxed(self) -> Box<dyn Device> {
        match self {
            Machine::Shim(shim) => shim,
            Machine::Gpu(gpu) => gpu,
        }
    }

    /// Whether there are kernels for warps that multiply in groups.
    pub(crate) fn has_wide_kernels(&self) -> bool {
        match self {
            Machine::Shim(_) => true,
            Machine::Gpu(gpu) => gpu.is_wide(),
        }
    }

    /// Every order of threads that there is to choose from: a GPU has its own.
    pub(crate) fn schedules(&self) -> &'static [Schedule] {
        match self {
            Machine::Shim(_) => &Schedule::ALL,
            Machine::Gpu(_) => &Schedule::ALL[..1],
        }
    }

    /// The order of threads, where it can be chosen.
    pub(crate) fn schedule(&mut self, schedule: Schedule) {
        if let Machine::Shim(shim) = self {
            shim.schedule = schedule;
        }
    }

    /// Frees everything.
    pub(crate) fn clear(&mut self) {
        match self {
            Machine::Shim(shim) => shim.clear(),
            Machine::Gpu(gpu) => gpu.clear().expect("it is freed"),
        }
    }
}

/// Where libraries and code are kept: Cargo's folder, unless whoever runs the tests without Cargo
/// names another.
pub(super) fn kept(dir: &str) -> PathBuf {
    std::env::var_os("CARGO_TARGET_TMPDIR").map_or_else(|| dir.into(), PathBuf::from)
}

/// The CPU as a GPU, if there is a C++ compiler; libraries are kept in `dir`.
pub(crate) fn shim(dir: &str, sources: Sources) -> Option<Shim> {
    match Shim::new(&kept(dir).join("shim"), sources) {
        Ok(shim) => Some(shim),
        Err(error) => {
            let required = std::env::var_os("OCTAVO_REQUIRE_CXX").is_some_and(|v| v == "1");
            assert!(!required, "{error}");
            skip(Lacks::Compiler, error);
            None
        }
    }
}

/// A GPU that stays open and does nothing: as long as it is there the others share its context,
/// which would otherwise be made anew for almost every test.
static FIRST: OnceLock<Mutex<Gpu>> = OnceLock::new();

/// What tests run on, if there is any. A GPU that is asked for and missing is a failure.
pub(crate) fn machine(dir: &str) -> Option<Machine> {
    match std::env::var("OCTAVO_TEST_DEVICE").as_deref() {
        Ok("gpu") => {
            let open = || {
                let cache = Cache::new(kept(dir).join("cubins"));
                Gpu::open(0, Some(cache))
                    .unwrap_or_else(|error| panic!("OCTAVO_TEST_DEVICE=gpu: {error}"))
            };
            // a stand-in's context costs nothing, and is looked at when it ends
            if std::env::var_os("OCTAVO_STANDIN").is_none() {
                FIRST.get_or_init(|| Mutex::new(open()));
            }
            Some(Machine::Gpu(Box::new(open())))
        }
        Ok(other) => panic!("OCTAVO_TEST_DEVICE={other}: expected gpu, or nothing"),
        Err(_) => shim(dir, Sources::default()).map(|shim| Machine::Shim(Box::new(shim))),
    }
}
