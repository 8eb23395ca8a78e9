//! The CUDA backend's foundations: kernels, how they are built, found and launched.
//!
//! The kernels are `cuda/*.cu`: C++ without headers that NVRTC compiles for the very device, at run time, and any host
//! compiler for the CPU, in tests (`shim`). What a launch is ([`Launch`]) is worked out once, in `launch`, and handed to
//! a [`Device`]: a GPU behind cudarc, or the shim. Everything that changes from step to step is read from device memory.
//!
//! Nothing here needs CUDA when it is built, or when the program starts: libraries are opened when they are asked for.

mod cache;
mod driver;
pub mod launch;
mod modules;
pub mod nvrtc;
pub mod pack;
pub mod params;
pub mod shim;

pub use cache::{Cache, Delivered};
pub use driver::{Gpu, GpuInfo, gpus};
pub use launch::Launch;
pub use modules::{FORMATS, HEAD_DIMS, HEADERS, Module};

use std::path::PathBuf;

/// Address in a device's memory; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Ptr(pub u64);

impl Ptr {
    /// No address.
    pub const NULL: Ptr = Ptr(0);

    /// So many bytes further.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Ptr {
        Ptr(self.0 + bytes)
    }
}

/// Why something could not be done on a GPU: one line each.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no usable GPU; says why.
    #[error("{0}")]
    Unavailable(String),
    /// A kernel that does not compile: a fault of the program, or of a compiler too old for it.
    #[error("{module}: {compiler} does not compile it: {log}")]
    Compile {
        /// The module.
        module: String,
        /// Which compiler.
        compiler: String,
        /// What it said.
        log: String,
    },
    /// No C++ compiler, for the shim.
    #[error("no C++ compiler: none of {tried} runs")]
    NoCompiler {
        /// Names that were tried.
        tried: &'static str,
    },
    /// A kernel did what it must not.
    #[error("kernel {kernel}: {message}")]
    Kernel {
        /// Its name.
        kernel: String,
        /// What happened.
        message: String,
    },
    /// The driver refused a call.
    #[error("{call}: {message}")]
    Driver {
        /// What was asked for.
        call: &'static str,
        /// Its answer.
        message: String,
    },
    /// A file.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A library.
    #[error("{library}: {message}")]
    Library {
        /// Which.
        library: String,
        /// The loader's answer.
        message: String,
    },
}

/// Memory and launches: a GPU, or the CPU pretending to be one.
///
/// Operations happen in the order in which they are asked for.
pub trait Device {
    /// Memory of so many bytes at a multiple of 256, with any contents. It lives as long as the device.
    ///
    /// # Errors
    /// [`Error::Driver`] if there is no room.
    fn alloc(&mut self, bytes: usize) -> Result<Ptr, Error>;

    /// Copies to the device.
    ///
    /// # Errors
    /// If the range is not inside an allocation of this device.
    fn upload(&mut self, to: Ptr, bytes: &[u8]) -> Result<(), Error>;

    /// Copies from the device, when everything before has happened.
    ///
    /// # Errors
    /// If the range is not inside an allocation of this device, or something before failed.
    fn download(&mut self, from: Ptr, bytes: &mut [u8]) -> Result<(), Error>;

    /// Runs a kernel.
    ///
    /// # Safety
    /// The addresses in the parameters are allocations of this device and as large as the kernel's comments say for
    /// these sizes, and what is read was written.
    ///
    /// # Errors
    /// If the kernel cannot be built or launched.
    unsafe fn launch(&mut self, launch: &Launch) -> Result<(), Error>;
}
