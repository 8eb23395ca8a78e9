//! Runs the kernels on the CPU for tests: compiled by the system's C++ compiler, run thread by
//! thread.
//!
//! `cuda/host/shim.h` describes what this can and cannot prove.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use libloading::Library;
use octavo_quant::TensorType;

use super::host_compiler::{self, HostCompiler, running};
use super::{
    Device, Error, FORMATS, HEAD_DIMS, HEADERS, Launch, Module, Ptr, Recording, Task, library_error,
};

/// Order in which the threads of a block and the lanes of a warp run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// First thread first.
    Forward,
    /// Last thread first.
    Backward,
    /// A new pseudorandom order each time, from a seed.
    Random(u64),
}

impl Schedule {
    /// One schedule of each kind.
    pub const ALL: [Schedule; 3] = [Schedule::Forward, Schedule::Backward, Schedule::Random(1)];
}

/// Sources of the kernels and the shim, which a test may modify before they are compiled.
#[derive(Clone, Debug)]
pub struct Sources {
    /// File name, relative to `cuda/`, and text.
    pub files: Vec<(String, String)>,
    /// Weight formats to build kernels for; a test may need only a few.
    pub formats: Vec<TensorType>,
}

impl Default for Sources {
    fn default() -> Self {
        let shim = [
            ("host/shim.h", include_str!("../../cuda/host/shim.h")),
            ("host/shim.cpp", include_str!("../../cuda/host/shim.cpp")),
        ];
        let modules = [
            Module::Rows,
            Module::Activations,
            Module::Kv(1),
            Module::Probe,
            Module::Embed(FORMATS[0]),
            Module::Gemv(FORMATS[0]),
            Module::FloatGemv(FORMATS[0]),
            Module::Imma(FORMATS[0], 1),
            Module::ExpertImma(FORMATS[0], 1),
            Module::Gemm(FORMATS[0]),
            Module::WideGemm(FORMATS[0], 1),
            Module::Attention(HEAD_DIMS[0], 1),
            Module::Experts,
            Module::ExpertGemv(FORMATS[0]),
            Module::Recurrence,
        ];
        let headers = HEADERS.iter().copied();
        let files = headers.chain(shim).chain(modules.map(Module::file));
        let files = files
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .collect();
        Sources {
            files,
            formats: FORMATS.to_vec(),
        }
    }
}

impl Sources {
    /// Replaces a text that occurs exactly once in a file.
    ///
    /// # Panics
    /// If it does not.
    pub fn replace(&mut self, file: &str, from: &str, to: &str) {
        let (_, text) = self
            .files
            .iter_mut()
            .find(|f| f.0 == file)
            .expect("no such file");
        assert_eq!(
            text.matches(from).count(),
            1,
            "{file} has this once: {from}"
        );
        *text = text.replace(from, to);
    }
}

/// The modules of one library: all weight formats of a source file, which share its includes, or
/// attention of one head size, which alone takes as long to compile as all formats of most files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Unit {
    file: &'static str,
    head_dim: Option<usize>,
}

impl Unit {
    fn of(module: Module) -> Unit {
        Unit {
            file: module.file().0,
            head_dim: match module {
                Module::Attention(dim, _) => Some(dim),
                _ => None,
            },
        }
    }
}

/// An open library.
struct Built {
    library: Library,
    running: &'static Mutex<()>,
    launch: unsafe extern "C" fn(
        *const c_void,
        *const c_void,
        *const u32,
        u32,
        u32,
        u32,
        u64,
    ) -> *const c_char,
}

/// A device that runs kernels on the CPU.
pub struct Shim {
    compiler: HostCompiler,
    sources: Sources,
    dir: PathBuf,
    built: HashMap<Unit, Built>,
    memory: Vec<Block>,
    recordings: Vec<Vec<Task>>,
    /// Thread order of subsequent launches.
    pub schedule: Schedule,
    /// Total bytes that may be allocated.
    pub capacity: u64,
    /// Whether prefill uses the kernels of a GPU with warpgroup matrix multiply.
    pub wide: bool,
    /// Whether batches are multiplied by integer tensor cores.
    pub fast_imma: bool,
}

/// An allocation between guard regions that nothing may write; initially all NaN.
struct Block {
    bytes: Vec<u8>,
    at: usize,
    len: usize,
}

const FENCE: usize = 512;
const POISON: u8 = 0xff;

/// Returns byte `i` of the guard regions: words that are NaN both as floats and as pairs of halves,
/// each different. Otherwise a kernel that reads one by mistake and writes the result would leave
/// it unchanged.
fn fence(i: usize) -> u8 {
    [(i / 4) as u8, 0x7f, 0xff, 0xff][i % 4]
}

impl Shim {
    /// Creates a device that keeps its libraries in `dir`.
    ///
    /// # Errors
    /// [`Error::NoCompiler`] if there is no C++ compiler.
    pub fn new(dir: &Path, sources: Sources) -> Result<Shim, Error> {
        Ok(Shim {
            compiler: HostCompiler::find()?,
            sources,
            dir: dir.to_owned(),
            built: HashMap::new(),
            memory: Vec::new(),
            recordings: Vec::new(),
            schedule: Schedule::Forward,
            capacity: 1 << 32,
            wide: false,
            fast_imma: true,
        })
    }

    /// Opens the library of a module, unless it is open.
    fn open(&mut self, module: Module) -> Result<(), Error> {
        let unit = Unit::of(module);
        if self.built.contains_key(&unit) {
            return Ok(());
        }
        let path = self.compile(unit)?;
        let wrong = |error: libloading::Error| library_error(&path, &error);
        // SAFETY: `compile` built the library from our sources, and it runs nothing when opened.
        let library = unsafe { Library::new(&path) }.map_err(wrong)?;
        // SAFETY: the type matches the function in shim.cpp.
        let launch = *unsafe { library.get(b"octavo_shim_launch\0") }.map_err(wrong)?;
        self.built.insert(
            unit,
            Built {
                library,
                running: running(&path),
                launch,
            },
        );
        Ok(())
    }

    fn compile(&self, unit: Unit) -> Result<PathBuf, Error> {
        let file = unit.file;
        let mut text = "#include \"host/shim.cpp\"\n".to_owned();
        let is_compiled = |module: &Module| match module {
            Module::Embed(ty)
            | Module::Gemv(ty)
            | Module::FloatGemv(ty)
            | Module::Imma(ty, _)
            | Module::Gemm(ty)
            | Module::WideGemm(ty, _)
            | Module::ExpertImma(ty, _)
            | Module::ExpertGemv(ty) => self.sources.formats.contains(ty),
            _ => true,
        };
        let modules = match unit.head_dim {
            Some(dim) => vec![Module::Attention(dim, 1)],
            None => Module::all(),
        };
        let of_unit = |module: &Module| Unit::of(*module) == unit && is_compiled(module);
        let modules = modules.into_iter().filter(of_unit);
        let mut specializations: Vec<_> = modules.map(Module::specialization).collect();
        // all parts at once
        specializations.dedup();
        for specialization in specializations {
            match specialization {
                Some((name, value)) => {
                    text +=
                        &format!("#define {name} {value}\n#include \"{file}\"\n#undef {name}\n");
                }
                None => text += &format!("#include \"{file}\"\n"),
            }
        }
        let input = host_compiler::Unit {
            name: file,
            text,
            files: &self.sources.files,
            flags: &[],
        };
        self.compiler.library(&self.dir, &input)
    }

    /// Builds the libraries of all modules, one for each CPU at a time, and returns their paths.
    ///
    /// # Errors
    /// If one does not compile.
    pub fn libraries(&self) -> Result<Vec<PathBuf>, Error> {
        let mut units: Vec<Unit> = Module::all().into_iter().map(Unit::of).collect();
        units.sort_unstable_by_key(|unit| (unit.file, unit.head_dim));
        units.dedup();
        let next = AtomicUsize::new(0);
        let work = || -> Result<Vec<(usize, PathBuf)>, Error> {
            let mut built = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(unit) = units.get(at) else {
                    return Ok(built);
                };
                built.push((at, self.compile(*unit)?));
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let mut paths = thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let of_thread = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| resume_unwind(panic))
            };
            threads
                .into_iter()
                .map(of_thread)
                .collect::<Result<Vec<_>, Error>>()
        })?
        .concat();
        paths.sort_unstable();
        Ok(paths.into_iter().map(|(_, path)| path).collect())
    }

    /// Finds the allocation that contains a range, and the offset in it.
    fn find(&mut self, at: Ptr, len: usize) -> Result<(&mut Block, usize), Error> {
        let wrong = || Error::Driver {
            call: "copy",
            message: format!("{len} bytes at {:#x}: not allocated", at.0),
        };
        for block in &mut self.memory {
            let base = block.bytes.as_ptr() as u64 + block.at as u64;
            if at.0 >= base && at.0 + len as u64 <= base + block.len as u64 {
                return Ok((block, (at.0 - base) as usize));
            }
        }
        Err(wrong())
    }

    /// Frees everything.
    pub fn clear(&mut self) {
        self.memory.clear();
    }
}

impl Device for Shim {
    fn describe(&self) -> String {
        format!("the CPU as a GPU ({})", self.compiler.name())
    }

    fn multiprocessors(&self) -> u32 {
        2
    }

    fn is_wide(&self) -> bool {
        self.wide
    }

    fn has_fast_imma(&self) -> bool {
        self.fast_imma
    }

    fn free_bytes(&self) -> Result<u64, Error> {
        Ok(self
            .capacity
            .saturating_sub(self.memory.iter().map(|block| block.len as u64).sum()))
    }

    fn alloc(&mut self, bytes: usize) -> Result<Ptr, Error> {
        let mut all: Vec<u8> = (0..bytes + 2 * FENCE + 256).map(fence).collect();
        let start = all.as_ptr() as usize;
        let at = (start + FENCE).next_multiple_of(256) - start;
        all[at..at + bytes].fill(POISON);
        let ptr = Ptr((start + at) as u64);
        self.memory.push(Block {
            bytes: all,
            at,
            len: bytes,
        });
        Ok(ptr)
    }

    fn upload(&mut self, to: Ptr, bytes: &[u8]) -> Result<(), Error> {
        let (block, offset) = self.find(to, bytes.len())?;
        let at = block.at + offset;
        block.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn download_all(&mut self, copies: &mut [(Ptr, &mut [u8])]) -> Result<(), Error> {
        for (from, bytes) in copies {
            let (block, offset) = self.find(*from, bytes.len())?;
            let at = block.at + offset;
            bytes.copy_from_slice(&block.bytes[at..at + bytes.len()]);
        }
        Ok(())
    }

    fn copy(&mut self, from: Ptr, to: Ptr, bytes: usize) -> Result<(), Error> {
        let mut copied = vec![0; bytes];
        self.download(from, &mut copied)?;
        self.upload(to, &copied)
    }

    fn build(&mut self, module: Module) -> Result<(), Error> {
        self.open(module)
    }

    unsafe fn record(&mut self, tasks: Vec<Task>) -> Result<Recording, Error> {
        self.recordings.push(tasks);
        Ok(Recording(self.recordings.len() - 1))
    }

    unsafe fn replay(&mut self, recording: Recording) -> Result<(), Error> {
        let tasks = std::mem::take(&mut self.recordings[recording.0]);
        // SAFETY: guaranteed by the caller.
        let result = tasks
            .iter()
            .try_for_each(|task| unsafe { task.start(self) });
        self.recordings[recording.0] = tasks;
        result
    }

    unsafe fn launch(&mut self, launch: &Launch) -> Result<(), Error> {
        self.open(launch.module)?;
        let built = &self.built[&Unit::of(launch.module)];
        let failed = |message: String| Error::Kernel {
            kernel: launch.kernel.clone(),
            message,
        };
        let name = format!("{}\0", launch.kernel);
        // SAFETY: only its address is used, and passed to the shim, which knows its type.
        let kernel: libloading::Symbol<'_, *const c_void> =
            unsafe { built.library.get(name.as_bytes()) }
                .map_err(|error| failed(error.to_string()))?;
        let (schedule, seed) = match self.schedule {
            Schedule::Forward => (0, 0),
            Schedule::Backward => (1, 0),
            Schedule::Random(seed) => (2, seed),
        };
        let message = {
            let _one = built.running.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: by the launch table, the kernel is in this library and the parameters are its
            // own struct; the caller guarantees the addresses in them.
            unsafe {
                let params = launch.params.as_ptr().cast();
                let message = (built.launch)(
                    *kernel,
                    params,
                    launch.grid.as_ptr(),
                    launch.threads,
                    launch.shared,
                    schedule,
                    seed,
                );
                (!message.is_null()).then(|| CStr::from_ptr(message).to_string_lossy().into_owned())
            }
        };
        if let Some(message) = message {
            return Err(failed(message));
        }
        for block in &self.memory {
            let mut around = (0..block.at).chain(block.at + block.len..block.bytes.len());
            if around.any(|i| block.bytes[i] != fence(i)) {
                return Err(failed(
                    "memory was written outside of an allocation".to_owned(),
                ));
            }
        }
        Ok(())
    }
}
