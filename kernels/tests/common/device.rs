//! The device that CUDA tests run on: the CPU shim, or a GPU if `OCTAVO_TEST_DEVICE=gpu`.
#![allow(dead_code)] // every test program uses a part

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use octavo_fixtures::{Lacks, skip};
use octavo_kernels::cuda::shim::{Schedule, Shim, Sources};
use octavo_kernels::cuda::{Cache, Device, Gpu};

/// The test device.
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

    /// Whether the kernels with warpgroup matrix multiply can run.
    pub(crate) fn has_wide_kernels(&self) -> bool {
        match self {
            Machine::Shim(_) => true,
            Machine::Gpu(gpu) => gpu.is_wide(),
        }
    }

    /// Lists the thread orders to test; a GPU has only its own.
    pub(crate) fn schedules(&self) -> &'static [Schedule] {
        match self {
            Machine::Shim(_) => &Schedule::ALL,
            Machine::Gpu(_) => &Schedule::ALL[..1],
        }
    }

    /// Sets the thread order, where possible.
    pub(crate) fn schedule(&mut self, schedule: Schedule) {
        if let Machine::Shim(shim) = self {
            shim.schedule = schedule;
        }
    }

    /// Frees all allocations.
    pub(crate) fn clear(&mut self) {
        match self {
            Machine::Shim(shim) => shim.clear(),
            Machine::Gpu(gpu) => gpu.clear().expect("it is freed"),
        }
    }
}

/// Returns the folder for libraries and cubins: `dir`, which is Cargo's, unless the environment
/// names another for runs without Cargo.
pub(super) fn scratch_dir(dir: &str) -> PathBuf {
    std::env::var_os("CARGO_TARGET_TMPDIR").map_or_else(|| dir.into(), PathBuf::from)
}

/// Creates the CPU shim, if there is a C++ compiler; its libraries are kept in `dir`.
pub(crate) fn shim(dir: &str, sources: Sources) -> Option<Shim> {
    match Shim::new(&scratch_dir(dir).join("shim"), sources) {
        Ok(shim) => Some(shim),
        Err(error) => {
            let required = std::env::var_os("OCTAVO_REQUIRE_CXX").is_some_and(|v| v == "1");
            assert!(!required, "{error}");
            skip(Lacks::Compiler, error);
            None
        }
    }
}

/// A GPU kept open but unused, so that others share its context, which would otherwise be created
/// anew for almost every test.
static FIRST: OnceLock<Mutex<Gpu>> = OnceLock::new();

/// Opens the test device, if there is one. A GPU that is requested but missing is a failure.
pub(crate) fn machine(dir: &str) -> Option<Machine> {
    match std::env::var("OCTAVO_TEST_DEVICE").as_deref() {
        Ok("gpu") => {
            let open = || {
                let cache = Cache::new(scratch_dir(dir).join("cubins"));
                Gpu::open(0, Some(cache))
                    .unwrap_or_else(|error| panic!("OCTAVO_TEST_DEVICE=gpu: {error}"))
            };
            // a stand-in's context is cheap, and is checked for leaks when destroyed
            if std::env::var_os("OCTAVO_STANDIN").is_none() {
                FIRST.get_or_init(|| Mutex::new(open()));
            }
            Some(Machine::Gpu(Box::new(open())))
        }
        Ok(other) => panic!("OCTAVO_TEST_DEVICE={other}: expected gpu, or nothing"),
        Err(_) => shim(dir, Sources::default()).map(|shim| Machine::Shim(Box::new(shim))),
    }
}
