//! The CUDA backend: the kernels, the code that compiles, finds and launches them, and the executor
//! that runs programs on them.
//!
//! The kernels are `cuda/*.cu`: header-free C++ that NVRTC compiles at run time for the exact
//! device, and that any host compiler builds for the CPU in tests (`shim`). Each launch
//! ([`Launch`]) is determined once, in `launch`, and passed to a [`Device`]: a GPU through cudarc,
//! or the shim. Everything that changes from step to step is read from device memory. [`Executor`]
//! runs programs on either.
//!
//! CUDA is needed neither to build this nor to start the program: libraries are opened on first
//! use.

mod builds;
mod cache;
mod driver;
mod exec;
mod gpus;
mod grids;
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

pub use cache::{Cache, Delivered, inputs_hash};
pub use driver::{Gpu, RESERVED};
pub use exec::{Candidates, Executor, HostExecutor, Limits, MAX_RETAINED, Needs, Setup, Source};
pub use gpus::{GpuInfo, gpus};
pub use launch::Launch;
pub use modules::{FORMATS, HEAD_DIMS, HEADERS, Module, Part};
pub use pinned::HostBuffer;
pub use ranks::Nccl;
pub use ranks::{DeviceCollective, Gather, Task, ThroughHost};
pub use toolkits::toolkits;

use std::path::{Path, PathBuf};

use crate::memory::NoMemory;
use octavo_simd::kv_layout::KvTypes;

/// Address in device memory; 0 is null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Ptr(pub u64);

impl Ptr {
    /// Null address.
    pub const NULL: Ptr = Ptr(0);

    /// Adds `bytes` to the address.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Ptr {
        Ptr(self.0 + bytes)
    }

    /// Adds `bytes`; a null address stays null.
    #[must_use]
    pub fn or_offset(self, bytes: u64) -> Ptr {
        if self == Ptr::NULL {
            self
        } else {
            self.offset(bytes)
        }
    }
}

/// Library of NVIDIA's driver.
const DRIVER: &str = match cfg!(windows) {
    true => "nvcuda.dll",
    false => "libcuda.so.1",
};

/// Reason that a GPU operation failed, in one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// NVIDIA's driver is not installed.
    #[error("NVIDIA's driver ({}) was not found", DRIVER)]
    NoDriver,
    /// No usable GPU or compiler, and the reason.
    #[error("{0}")]
    Unavailable(String),
    /// A kernel failed to compile: a bug, or a compiler too old for it.
    #[error("{module}: {compiler} does not compile it: {log}")]
    Compile {
        /// Module name.
        module: String,
        /// Compiler name and version.
        compiler: String,
        /// Compiler log.
        log: String,
    },
    /// No C++ compiler for the shim.
    #[error("no C++ compiler: none of {tried} runs")]
    NoCompiler {
        /// Names tried.
        tried: &'static str,
    },
    /// A kernel misbehaved.
    #[error("kernel {kernel}: {message}")]
    Kernel {
        /// Name.
        kernel: String,
        /// Description.
        message: String,
    },
    /// A driver call failed.
    #[error("{call}: {message}")]
    Driver {
        /// Function called.
        call: &'static str,
        /// Error message.
        message: String,
    },
    /// A weight that no kernel supports.
    #[error("tensor {name}: expected {expected}, got {got}")]
    Weight {
        /// Name.
        name: String,
        /// Types and shapes that the kernels support.
        expected: String,
        /// Actual shape and type.
        got: String,
    },
    /// A cache type quantized in groups of 32 values, with heads that are no multiple of 32.
    #[error("KV cache of {types}: expected heads of a multiple of 32 values, got {head_dim}")]
    KvType {
        /// Cache types.
        types: KvTypes,
        /// Values per head.
        head_dim: usize,
    },
    /// Unsupported cache types.
    #[error(
        "KV cache of {0} on a GPU: expected the same type for keys and values, of {names}",
        names = launch::kv_type_names()
    )]
    KvTypes(KvTypes),
    /// Unsupported head size.
    #[error("attention heads of {0} values: expected a multiple of 8, at most 256, on a GPU")]
    HeadDim(usize),
    /// Unsupported key size of linear attention, which may have decays by key.
    #[error(
        "linear attention with keys of {0} values: expected at most {max}, on a GPU",
        max = launch::max_key_dim(*.1)
    )]
    KeyDim(usize, bool),
    /// Attention that sees selected keys.
    #[error("attention to keys that an indexer selects: expected attention to all, on a GPU")]
    SelectedKeys,
    /// Unsupported size of the state of a recurrence.
    #[error("{what} with {got} numbers of a value: expected at most {most}, on a GPU")]
    #[allow(missing_docs)] // the fields are what the message says
    StateSize {
        what: &'static str,
        most: usize,
        got: usize,
    },
    /// A page that a step needs is missing from its block table, as detected by the kernels: a bug.
    #[error(
        "sequence {sequence}, position {position}: the block table on the GPU lacks one of its \
         pages"
    )]
    MissingPage {
        /// Index of the sequence in the step.
        sequence: usize,
        /// Position of the token.
        position: usize,
    },
    /// Not enough device memory.
    #[error(
        "{device}: {} {needs}, and {} MiB are free{}",
        takes(*part),
        free >> 20,
        room_for(fitting)
    )]
    TooLarge {
        /// Device description.
        device: String,
        /// Layers, unless it is the whole model.
        part: Option<ModelPart>,
        /// Bytes required.
        needs: Needs,
        /// Bytes free.
        free: u64,
        /// Parts of the model that would fit.
        fitting: Box<Fitting>,
    },
    /// No memory for the buffers of the operations that the host executes.
    #[error("buffers of the CPU's part of a step: {0}")]
    Host(#[from] NoMemory),
    /// A file operation failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A library could not be loaded or used.
    #[error("{library}: {message}")]
    Library {
        /// Path.
        library: String,
        /// Error message.
        message: String,
    },
}

impl Error {
    /// Says which part of a model does not fit.
    #[must_use]
    pub fn of_part(mut self, of: Option<ModelPart>) -> Error {
        if let Error::TooLarge { part, .. } = &mut self {
            *part = of;
        }
        self
    }
}

/// Parts that would fit of a model that does not; `None` where unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fitting {
    /// Number of last layers.
    pub layers: Option<usize>,
    /// Number of first layers of the model without whose experts everything would.
    pub experts: Option<usize>,
}

/// Error of a library that failed to load, with the loader's message: libloading's own text only
/// names the call that failed.
fn library_error(path: &Path, error: &libloading::Error) -> Error {
    use std::error::Error as _;
    let said = error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string);
    let library = path.display().to_string();
    // the loader's message begins with the path, and so does our error
    let own = said.strip_prefix(&library);
    let own = own.and_then(|own| own.strip_prefix(": "));
    let message = own.unwrap_or(&said).to_owned();
    Error::Library { library, message }
}

/// Part of a model that a device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelPart {
    /// This many last layers and the output.
    Last(usize),
    /// Layers from `first` up to `end`, other ones than the last.
    Layers {
        /// Index of the first one.
        first: usize,
        /// Index after the last one.
        end: usize,
    },
}

/// Subject and verb of a message about memory use: the model, or a part of it.
pub fn takes(part: Option<ModelPart>) -> String {
    match part {
        None => "the model takes".to_owned(),
        Some(ModelPart::Last(1)) => "the last layer and the output take".to_owned(),
        Some(ModelPart::Last(n)) => format!("the last {n} layers and the output take"),
        Some(ModelPart::Layers { first, end }) if end == first + 1 => {
            format!("layer {first} takes")
        }
        Some(ModelPart::Layers { first, end }) => format!("layers {first} to {} take", end - 1),
    }
}

/// Suffix of the message about a model that does not fit: how many layers would, or without whose
/// experts.
fn room_for(fitting: &Fitting) -> String {
    let layers = fitting.layers.map(|n| match n {
        1 => "the last layer".to_owned(),
        n => format!("the last {n} layers"),
    });
    let experts = fitting.experts.map(|n| match n {
        1 => "all without the experts of the first layer".to_owned(),
        n => format!("all without the experts of the first {n} layers"),
    });
    let parts: Vec<String> = layers.into_iter().chain(experts).collect();
    match parts.is_empty() {
        true => String::new(),
        false => format!(", enough for {}", parts.join(", or for ")),
    }
}

/// A captured list of launches and gathers on a device (a CUDA graph), by its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recording(usize);

/// A GPU, or the CPU emulating one: memory and kernel launches.
///
/// Operations run in the order of the calls.
pub trait Device: Send {
    /// Human-readable description.
    fn describe(&self) -> String;

    /// Number of multiprocessors, which determines grid sizes.
    fn multiprocessors(&self) -> u32;

    /// Whether it has warpgroup matrix multiply (Hopper): prefill has separate kernels there.
    fn is_wide(&self) -> bool;

    /// Whether batches are multiplied by integer tensor cores (`imma`) rather than by `dp4a`
    /// instructions (`gemv`). Both give the same bits.
    fn has_fast_imma(&self) -> bool;

    /// Returns the free memory in bytes.
    ///
    /// # Errors
    /// If the device fails.
    fn free_bytes(&self) -> Result<u64, Error>;

    /// Allocates uninitialized memory of `bytes` bytes, aligned to 256 bytes. It lives as long as
    /// the device.
    ///
    /// # Errors
    /// [`Error::Driver`] if memory is exhausted.
    fn alloc(&mut self, bytes: usize) -> Result<Ptr, Error>;

    /// Copies to the device. The caller may reuse `bytes` when this returns.
    ///
    /// # Errors
    /// If the range is not inside an allocation of this device.
    fn upload(&mut self, to: Ptr, bytes: &[u8]) -> Result<(), Error>;

    /// Copies floats to the device, as [`Device::upload`].
    ///
    /// # Errors
    /// As [`Device::upload`].
    fn upload_floats(&mut self, to: Ptr, floats: &[f32]) -> Result<(), Error> {
        let (start, len) = (floats.as_ptr().cast::<u8>(), size_of_val(floats));
        // SAFETY: these are the bytes of the floats; bytes need no alignment.
        let bytes = unsafe { std::slice::from_raw_parts(start, len) };
        self.upload(to, bytes)
    }

    /// Copies from the device after all earlier operations, filling each slice from its address.
    /// Synchronizes once for all copies.
    ///
    /// # Errors
    /// If a range is not inside an allocation of this device, or earlier work failed.
    fn download_all(&mut self, copies: &mut [(Ptr, &mut [u8])]) -> Result<(), Error>;

    /// Copies one range from the device, as [`Device::download_all`].
    ///
    /// # Errors
    /// As [`Device::download_all`].
    fn download(&mut self, from: Ptr, bytes: &mut [u8]) -> Result<(), Error> {
        self.download_all(&mut [(from, bytes)])
    }

    /// Allocates host memory for `floats` floats that downloads into fast (pinned on a GPU).
    ///
    /// # Errors
    /// If the driver cannot allocate it.
    fn host_buffer(&mut self, floats: usize) -> Result<HostBuffer, Error> {
        Ok(HostBuffer::plain(floats))
    }

    /// Copies within the device, between ranges that do not overlap.
    ///
    /// # Errors
    /// If a range is not inside an allocation of this device.
    fn copy(&mut self, from: Ptr, to: Ptr, bytes: usize) -> Result<(), Error>;

    /// Starts to compile modules, if it can do so beside other work; [`Device::build`] waits for
    /// each of them, and has its error.
    fn start_building(&mut self, _modules: &[Module]) {}

    /// Compiles and loads a module's kernels, instead of on their first launch.
    ///
    /// # Errors
    /// If the module cannot be built.
    fn build(&mut self, module: Module) -> Result<(), Error>;

    /// Launches a kernel.
    ///
    /// # Safety
    /// The addresses in the parameters must point into allocations of this device that are as large
    /// as the kernel's comments require for these sizes, and all that is read must have been
    /// written.
    ///
    /// # Errors
    /// If the kernel cannot be built or launched.
    unsafe fn launch(&mut self, launch: &Launch) -> Result<(), Error>;

    /// Captures tasks, to be replayed with one call, without running them.
    ///
    /// # Safety
    /// As [`Task::start`] for each of them, at every replay.
    ///
    /// # Errors
    /// If a kernel cannot be built, or the capture fails.
    unsafe fn record(&mut self, tasks: Vec<Task>) -> Result<Recording, Error>;

    /// Replays captured tasks in order.
    ///
    /// # Safety
    /// As for [`Device::record`], at this time.
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

    fn has_fast_imma(&self) -> bool {
        (**self).has_fast_imma()
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

    fn start_building(&mut self, modules: &[Module]) {
        (**self).start_building(modules);
    }

    fn build(&mut self, module: Module) -> Result<(), Error> {
        (**self).build(module)
    }

    unsafe fn launch(&mut self, launch: &Launch) -> Result<(), Error> {
        // SAFETY: guaranteed by the caller.
        unsafe { (**self).launch(launch) }
    }

    unsafe fn record(&mut self, tasks: Vec<Task>) -> Result<Recording, Error> {
        // SAFETY: guaranteed by the caller.
        unsafe { (**self).record(tasks) }
    }

    unsafe fn replay(&mut self, recording: Recording) -> Result<(), Error> {
        // SAFETY: guaranteed by the caller.
        unsafe { (**self).replay(recording) }
    }
}
