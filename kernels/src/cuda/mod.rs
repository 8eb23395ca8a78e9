//! The CUDA backend: kernels, how they are built, found and launched, and programs that run on
//! them.
//!
//! The kernels are `cuda/*.cu`: C++ without headers that NVRTC compiles for the very device, at run
//! time, and any host compiler for the CPU, in tests (`shim`). What a launch is ([`Launch`]) is
//! worked out once, in `launch`, and handed to a [`Device`]: a GPU behind cudarc, or the shim.
//! Everything that changes from step to step is read from device memory. [`Executor`] runs programs
//! on either.
//!
//! Nothing here needs CUDA when it is built, or when the program starts: libraries are opened when
//! they are asked for.

mod cache;
mod driver;
mod exec;
mod gpus;
mod host_compiler;
pub mod launch;
mod modules;
pub mod nvrtc;
pub mod pack;
pub mod params;
mod pinned;
pub mod probe;
mod ranks;
pub mod shim;
pub mod standin;
mod toolkits;

pub use cache::{Cache, Delivered};
pub use driver::Gpu;
pub use exec::{Executor, Limits, MOST_KEPT, Needs, Setup, Source};
pub use gpus::{GpuInfo, gpus};
pub use launch::Launch;
pub use modules::{FORMATS, HEAD_DIMS, HEADERS, Module};
pub use pinned::HostBuffer;
#[cfg(feature = "nccl")]
pub use ranks::Nccl;
pub use ranks::{DeviceCollective, Gather, Task, ThroughHost};
pub use toolkits::toolkits;

use std::path::{Path, PathBuf};

use crate::kv::KvTypes;

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

    /// So many bytes further, or none if it is none.
    #[must_use]
    pub fn or_offset(self, bytes: u64) -> Ptr {
        if self == Ptr::NULL {
            self
        } else {
            self.offset(bytes)
        }
    }
}

/// Why something could not be done on a GPU: one line each.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine has nothing of NVIDIA's.
    #[error("NVIDIA's driver (libcuda.so.1) was not found")]
    NoDriver,
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
    /// A weight that no kernel takes.
    #[error("tensor {name}: expected {expected}, got {got}")]
    Weight {
        /// Its name.
        name: String,
        /// What the kernels take.
        expected: String,
        /// Its shape and type.
        got: String,
    },
    /// A cache type that comes in groups of values.
    #[error("KV cache of {types}: expected heads of a multiple of 32 values, got {head_dim}")]
    KvType {
        /// The types.
        types: KvTypes,
        /// Values of the model's heads.
        head_dim: usize,
    },
    /// Cache types without kernels.
    #[error(
        "KV cache of {0} on a GPU: expected the same type for keys and values, of {names}",
        names = launch::kv_type_names()
    )]
    KvTypes(KvTypes),
    /// Heads without kernels.
    #[error("attention heads of {0} values: expected a multiple of 8, at most 256, on a GPU")]
    HeadDim(usize),
    /// Keys without kernels.
    #[error(
        "linear attention with keys of {0} values: expected at most {max}, on a GPU",
        max = launch::MOST_KEY_DIM
    )]
    KeyDim(usize),
    /// A block table without a page that a step needs, as kernels saw it: a bug.
    #[error(
        "sequence {sequence}, position {position}: the block table on the GPU lacks one of its \
         pages"
    )]
    MissingPage {
        /// Which of the step's sequences.
        sequence: usize,
        /// Of the token.
        position: usize,
    },
    /// No room.
    #[error(
        "{device}: {} {needs}, and {} MiB are free{}",
        takes(*part),
        free >> 20,
        room_for(*fitting)
    )]
    TooLarge {
        /// Which device.
        device: String,
        /// How many of the model's layers, if not the whole.
        part: Option<usize>,
        /// What they take.
        needs: Needs,
        /// What there is, in bytes.
        free: u64,
        /// How many layers would fit, as far as that is known.
        fitting: Option<usize>,
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

/// What the loader says of a library: libloading's own words are no more than the call that failed.
fn library_error(path: &Path, error: &libloading::Error) -> Error {
    use std::error::Error as _;
    let said = error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string);
    let library = path.display().to_string();
    // the loader names the library first, as the error does
    let own = said.strip_prefix(&library);
    let own = own.and_then(|own| own.strip_prefix(": "));
    let message = own.unwrap_or(&said).to_owned();
    Error::Library { library, message }
}

/// Who takes memory, to be followed by how much: the model, or so many of its layers.
pub fn takes(layers: Option<usize>) -> String {
    match layers {
        None => "the model takes".to_owned(),
        Some(1) => "the last layer and the output take".to_owned(),
        Some(n) => format!("the last {n} layers and the output take"),
    }
}

/// How many layers there would be room for, where a model does not fit.
fn room_for(fitting: Option<usize>) -> String {
    match fitting {
        Some(1) => ", enough for the last layer".to_owned(),
        Some(n) => format!(", enough for the last {n} layers"),
        None => String::new(),
    }
}

/// A list of launches and gathers that a device keeps, by its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recording(usize);

/// Memory and launches: a GPU, or the CPU pretending to be one.
///
/// Operations happen in the order in which they are asked for.
pub trait Device: Send {
    /// What it is, for people.
    fn describe(&self) -> String;

    /// How many blocks run at a time, as far as grids follow from it.
    fn multiprocessors(&self) -> u32;

    /// Whether its warps multiply in groups: prompts have kernels of their own there.
    fn is_wide(&self) -> bool;

    /// Bytes of memory that are free.
    ///
    /// # Errors
    /// If the device fails.
    fn free_bytes(&self) -> Result<u64, Error>;

    /// Memory of so many bytes at a multiple of 256, with any contents. It lives as long as the
    /// device.
    ///
    /// # Errors
    /// [`Error::Driver`] if there is no room.
    fn alloc(&mut self, bytes: usize) -> Result<Ptr, Error>;

    /// Copies to the device. The bytes may change when this returns.
    ///
    /// # Errors
    /// If the range is not inside an allocation of this device.
    fn upload(&mut self, to: Ptr, bytes: &[u8]) -> Result<(), Error>;

    /// As [`Device::upload`], of floats.
    ///
    /// # Errors
    /// As there.
    fn upload_floats(&mut self, to: Ptr, floats: &[f32]) -> Result<(), Error> {
        let (start, len) = (floats.as_ptr().cast::<u8>(), size_of_val(floats));
        // SAFETY: the bytes of these floats; bytes have no alignment.
        let bytes = unsafe { std::slice::from_raw_parts(start, len) };
        self.upload(to, bytes)
    }

    /// Copies from the device, when everything before has happened: from each address as many bytes
    /// as there is room for. Waits once for all of them.
    ///
    /// # Errors
    /// If a range is not inside an allocation of this device, or something before failed.
    fn download_all(&mut self, copies: &mut [(Ptr, &mut [u8])]) -> Result<(), Error>;

    /// As [`Device::download_all`], of one range.
    ///
    /// # Errors
    /// As there.
    fn download(&mut self, from: Ptr, bytes: &mut [u8]) -> Result<(), Error> {
        self.download_all(&mut [(from, bytes)])
    }

    /// Memory of the host for so many floats that downloads are fast into.
    ///
    /// # Errors
    /// If the driver has none.
    fn host_buffer(&mut self, floats: usize) -> Result<HostBuffer, Error> {
        Ok(HostBuffer::plain(floats))
    }

    /// Copies inside of the device, between ranges that do not overlap.
    ///
    /// # Errors
    /// If a range is not inside an allocation of this device.
    fn copy(&mut self, from: Ptr, to: Ptr, bytes: usize) -> Result<(), Error>;

    /// Builds a module's kernels, which otherwise happens when one of them is launched.
    ///
    /// # Errors
    /// If the module cannot be built.
    fn build(&mut self, module: Module) -> Result<(), Error>;

    /// Runs a kernel.
    ///
    /// # Safety
    /// The addresses in the parameters are allocations of this device and as large as the kernel's
    /// comments say for these sizes, and what is read was written.
    ///
    /// # Errors
    /// If the kernel cannot be built or launched.
    unsafe fn launch(&mut self, launch: &Launch) -> Result<(), Error>;

    /// Keeps what it is to do, to be replayed with one call. Nothing runs.
    ///
    /// # Safety
    /// As [`Task::start`] for each of them, whenever they are replayed.
    ///
    /// # Errors
    /// If a kernel cannot be built, or the device cannot keep the list.
    unsafe fn record(&mut self, tasks: Vec<Task>) -> Result<Recording, Error>;

    /// Does what this device keeps, in its order.
    ///
    /// # Safety
    /// As for [`Device::record`], now.
    ///
    /// # Errors
    /// If the device fails.
    unsafe fn replay(&mut self, recording: Recording) -> Result<(), Error>;
}

impl<D: Device + ?Sized> Device for Box<D> {
    fn describe(&self) -> String {
        (**self).describe()
    }

    fn multiprocessors(&self) -> u32 {
        (**self).multiprocessors()
    }

    fn is_wide(&self) -> bool {
        (**self).is_wide()
    }

    fn free_bytes(&self) -> Result<u64, Error> {
        (**self).free_bytes()
    }

    fn alloc(&mut self, bytes: usize) -> Result<Ptr, Error> {
        (**self).alloc(bytes)
    }

    fn upload(&mut self, to: Ptr, bytes: &[u8]) -> Result<(), Error> {
        (**self).upload(to, bytes)
    }

    fn download_all(&mut self, copies: &mut [(Ptr, &mut [u8])]) -> Result<(), Error> {
        (**self).download_all(copies)
    }

    fn host_buffer(&mut self, floats: usize) -> Result<HostBuffer, Error> {
        (**self).host_buffer(floats)
    }

    fn copy(&mut self, from: Ptr, to: Ptr, bytes: usize) -> Result<(), Error> {
        (**self).copy(from, to, bytes)
    }

    fn build(&mut self, module: Module) -> Result<(), Error> {
        (**self).build(module)
    }

    unsafe fn launch(&mut self, launch: &Launch) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { (**self).launch(launch) }
    }

    unsafe fn record(&mut self, tasks: Vec<Task>) -> Result<Recording, Error> {
        // SAFETY: the caller's promise.
        unsafe { (**self).record(tasks) }
    }

    unsafe fn replay(&mut self, recording: Recording) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { (**self).replay(recording) }
    }
}
