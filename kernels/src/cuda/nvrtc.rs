//! NVRTC, NVIDIA's runtime compiler library: found, opened and called only when there is a kernel
//! to build.
//!
//! This has its own binding of twelve functions instead of cudarc's, because NVRTC may be in many
//! places (a toolkit, a wheel of a Python environment, next to the program) that cudarc does not
//! search, and because cubins are needed: code for the exact device, which no driver has to
//! translate or can be too old for.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use std::sync::{Mutex, PoisonError};

use libloading::Library;

use super::toolkits::{NVRTC, NVRTC_BUILTINS, Places};
use super::{Error, HEADERS, Module, library_error};

/// Compiler options; see `cuda/compat.cuh` for the reasons. Contraction is off, so that every
/// instantiation rounds alike.
const OPTIONS: [&str; 3] = ["--std=c++17", "--fmad=false", "--ptxas-options=-v"];

type Program = *mut c_void;

/// NVRTC's functions, valid as long as the library is open.
struct Functions {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ptx_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    ptx: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
}

/// Oldest major version that tests compile the kernels with.
const OLDEST: i32 = 12;

/// An opened NVRTC. It is never closed: unloading a compiler with threads and handlers of its own
/// is untested.
pub struct Nvrtc {
    functions: Functions,
    version: (i32, i32),
    /// Architectures that it compiles for, such as 90.
    archs: Vec<i32>,
    path: PathBuf,
}

/// Results of [`Nvrtc::find`] in this process, by the driver's CUDA version and the architecture.
static FOUND: Mutex<Vec<((i32, i32), &'static Nvrtc)>> = Mutex::new(Vec::new());

/// Result of a compilation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Machine code for one architecture.
    pub cubin: Vec<u8>,
    /// PTX that it was assembled from, in which tests can see how the source was compiled.
    pub ptx: String,
    /// Compiler log: warnings, and the registers of each kernel.
    pub log: String,
}

impl Nvrtc {
    /// Opens the library at `path`.
    ///
    /// # Errors
    /// [`Error::Library`] if it is not an NVRTC.
    pub fn open(path: &Path) -> Result<Nvrtc, Error> {
        // NVRTC 13.0 looks up its built-in functions' library by bare name, and finds it only if it
        // is already loaded
        for entry in path
            .parent()
            .and_then(|dir| dir.read_dir().ok())
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(NVRTC_BUILTINS) && !name.contains("alt") {
                // a failure to open it shows when something is compiled
                load(&entry.path()).ok();
            }
        }
        let library = load(path)?;
        let wrong = |error: libloading::Error| library_error(path, &error);
        let (functions, version) = {
            macro_rules! symbol {
                ($name:literal) => {{
                    // SAFETY: the types match nvrtc.h, unchanged since CUDA 11.1.
                    *unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(wrong)?
                }};
            }
            let functions = Functions {
                create: symbol!("nvrtcCreateProgram"),
                destroy: symbol!("nvrtcDestroyProgram"),
                compile: symbol!("nvrtcCompileProgram"),
                log_size: symbol!("nvrtcGetProgramLogSize"),
                log: symbol!("nvrtcGetProgramLog"),
                cubin_size: symbol!("nvrtcGetCUBINSize"),
                cubin: symbol!("nvrtcGetCUBIN"),
                ptx_size: symbol!("nvrtcGetPTXSize"),
                ptx: symbol!("nvrtcGetPTX"),
            };
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int =
                symbol!("nvrtcVersion");
            let (mut major, mut minor) = (0, 0);
            // SAFETY: two pointers to integers, as nvrtc.h requires.
            let code = unsafe { version(&raw mut major, &raw mut minor) };
            if code != 0 {
                return Err(Error::Library {
                    library: path.display().to_string(),
                    message: format!("nvrtcVersion: error {code}"),
                });
            }
            (functions, (major, minor))
        };
        Ok(Nvrtc {
            functions,
            version,
            archs: architectures(library),
            path: path.to_owned(),
        })
    }

    /// Opens the first NVRTC that compiles for this capability, found next to the program, in a
    /// toolkit or Python environment named by an environment variable, under `/usr/local`, near
    /// `nvcc` or `python3`, or on the loader's search path. A driver of CUDA `newest` runs code of
    /// that major version and of older ones.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is none.
    pub fn find(newest: i32, (major, minor): (i32, i32)) -> Result<&'static Nvrtc, Error> {
        let arch = 10 * major + minor;
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, nvrtc)) = found.iter().find(|(key, _)| *key == (newest, arch)) {
            return Ok(nvrtc);
        }
        let mut others = Vec::new();
        for path in Places::of_process().candidates() {
            let Ok(nvrtc) = Nvrtc::open(&path) else {
                continue;
            };
            match nvrtc.unfit(newest, arch) {
                None => {
                    let nvrtc: &'static Nvrtc = Box::leak(Box::new(nvrtc));
                    found.push(((newest, arch), nvrtc));
                    return Ok(nvrtc);
                }
                // the same library may be found by several names
                Some(why) if others.iter().any(|other: &String| other.ends_with(&why)) => {}
                Some(why) => others.push(format!("{}: {why}", path.display())),
            }
        }
        let others = match others.is_empty() {
            true => String::new(),
            false => format!(" ({})", others.join("; ")),
        };
        Err(Error::Unavailable(format!(
            "NVRTC ({}, part of CUDA; also in the Python package nvidia-cuda-nvrtc) of version \
             {OLDEST} to {newest} that compiles for sm_{arch} was not found{others}",
            NVRTC[2]
        )))
    }

    /// Returns the reason that its code cannot run with a driver of CUDA `newest` on a GPU of this
    /// architecture.
    fn unfit(&self, newest: i32, arch: i32) -> Option<String> {
        let (major, minor) = self.version;
        if !(OLDEST..=newest).contains(&major) {
            return Some(format!("version {major}.{minor}"));
        }
        let knows = self.archs.contains(&arch);
        (!knows).then(|| format!("version {major}.{minor} does not compile for sm_{arch}"))
    }

    /// Returns the major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the cache key: everything except the sources that determines the compiled code.
    pub fn key(&self, arch: &str) -> String {
        format!(
            "nvrtc {}.{} {arch} {}",
            self.version.0,
            self.version.1,
            OPTIONS.join(" ")
        )
    }

    /// Compiles a module for an architecture, such as `sm_90`.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's log.
    pub fn compile(&self, module: Module, arch: &str) -> Result<Compiled, Error> {
        let mut options = vec![format!("--gpu-architecture={arch}")];
        options.extend(OPTIONS.map(str::to_owned));
        options.extend(
            module
                .defines()
                .into_iter()
                .map(|(name, value)| format!("-D{name}={value}")),
        );
        let failed = |log: String| Error::Compile {
            module: module.to_string(),
            compiler: format!("NVRTC {}.{} for {arch}", self.version.0, self.version.1),
            log,
        };
        let (name, text) = module.file();
        self.compile_source(name, text, &options).map_err(failed)
    }

    /// Compiles source text that may include our headers; errors are the compiler's log.
    fn compile_source(
        &self,
        name: &str,
        text: &str,
        options: &[String],
    ) -> Result<Compiled, String> {
        let c = |s: &str| CString::new(s).map_err(|_| "a zero byte in a source".to_owned());
        let (name, text) = (c(name)?, c(text)?);
        let names = HEADERS
            .iter()
            .map(|h| c(h.0))
            .collect::<Result<Vec<_>, _>>()?;
        let texts = HEADERS
            .iter()
            .map(|h| c(h.1))
            .collect::<Result<Vec<_>, _>>()?;
        let options = options
            .iter()
            .map(|o| c(o))
            .collect::<Result<Vec<_>, _>>()?;
        let pointers = |all: &[CString]| all.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (names, texts, option_pointers) =
            (pointers(&names), pointers(&texts), pointers(&options));
        let f = &self.functions;
        let mut program = Owned {
            program: std::ptr::null_mut(),
            destroy: f.destroy,
        };
        // SAFETY: the strings are null-terminated and live to the end of this function, and the
        // counts are right.
        let created = unsafe {
            let count = names.len() as c_int;
            let program = &raw mut program.program;
            (f.create)(
                program,
                text.as_ptr(),
                name.as_ptr(),
                count,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        if created != 0 {
            return Err(format!("nvrtcCreateProgram: error {created}"));
        }
        // SAFETY: as above; the program was created.
        let code = unsafe {
            (f.compile)(
                program.program,
                option_pointers.len() as c_int,
                option_pointers.as_ptr(),
            )
        };
        let log = program.string(f.log_size, f.log);
        if code != 0 {
            return Err(if log.is_empty() {
                format!("nvrtcCompileProgram: error {code}")
            } else {
                log
            });
        }
        let cubin = program
            .text(f.cubin_size, f.cubin)
            .filter(|c| !c.is_empty());
        Ok(Compiled {
            cubin: cubin.ok_or("no code came out")?,
            ptx: program.string(f.ptx_size, f.ptx),
            log,
        })
    }
}

/// A program that is destroyed on drop.
struct Owned {
    program: Program,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
}

impl Owned {
    /// Reads a null-terminated text; empty if there is none.
    fn string(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        text: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> String {
        let bytes = self.text(size, text).unwrap_or_default();
        CStr::from_bytes_until_nul(&bytes)
            .map(|s| s.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    /// Reads bytes by a pair of functions for size and contents.
    fn text(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        text: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Option<Vec<u8>> {
        let mut n = 0;
        // SAFETY: the program was created and is alive.
        if unsafe { size(self.program, &raw mut n) } != 0 {
            return None;
        }
        let mut bytes = vec![0u8; n];
        // SAFETY: as above, with room for the announced size.
        (unsafe { text(self.program, bytes.as_mut_ptr().cast()) } == 0).then_some(bytes)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: created once, destroyed once.
            unsafe { (self.destroy)(&raw mut self.program) };
        }
    }
}

/// Opens a library and leaks it.
fn load(path: &Path) -> Result<&'static Library, Error> {
    // SAFETY: opening runs the initialization code of NVIDIA's library, which the caller named or
    // which is on a system path.
    let library = unsafe { Library::new(path) }.map_err(|error| library_error(path, &error))?;
    Ok(Box::leak(Box::new(library)))
}

/// Lists the architectures that a compiler supports; none before CUDA 11.2, which is too old in any
/// case.
fn architectures(library: &Library) -> Vec<i32> {
    type Ask = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: the types match nvrtc.h, unchanged since CUDA 11.2.
    let both = unsafe {
        let count = library.get::<Ask>(b"nvrtcGetNumSupportedArchs\0");
        count.and_then(|count| Ok((*count, *library.get::<Ask>(b"nvrtcGetSupportedArchs\0")?)))
    };
    let Ok((count, list)) = both else {
        return Vec::new();
    };
    let mut n = 0;
    // SAFETY: a pointer to an integer, as nvrtc.h requires.
    if unsafe { count(&raw mut n) } != 0 {
        return Vec::new();
    }
    let mut all = vec![0; usize::try_from(n).unwrap_or(0)];
    // SAFETY: room for the announced number of entries.
    match unsafe { list(all.as_mut_ptr()) } {
        0 => all,
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
