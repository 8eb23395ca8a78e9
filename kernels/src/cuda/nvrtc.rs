//! NVRTC, NVIDIA's compiler as a library: found, opened and called when there is a kernel to build,
//! never before.
//!
//! Our own binding of twelve functions, and not cudarc's, because NVRTC lies in many places (a
//! toolkit, a wheel of a Python environment, beside the program) of which cudarc looks in none, and
//! because cubins are wanted: code for the very device, which no driver has to translate or can be
//! too old for.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use std::sync::{Mutex, PoisonError};

use libloading::Library;

use super::toolkits::Places;
use super::{Error, HEADERS, Module, library_error};

/// Why it is the default: see `cuda/compat.cuh`. Contraction is off, so that every instantiation
/// rounds alike.
const OPTIONS: [&str; 3] = ["--std=c++17", "--fmad=false", "--ptxas-options=-v"];

type Program = *mut c_void;

/// The functions, which live as long as the library beside them.
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

/// Oldest major version that the kernels are compiled with in tests.
const OLDEST: i32 = 12;

/// An opened NVRTC. It stays open: what unloading a compiler with threads and handlers of its own
/// does, nobody tests.
pub struct Nvrtc {
    functions: Functions,
    version: (i32, i32),
    /// Architectures that it compiles for: 90.
    archs: Vec<i32>,
    path: PathBuf,
}

/// What [`Nvrtc::find`] found in this process, for a driver's version and an architecture.
static FOUND: Mutex<Vec<((i32, i32), &'static Nvrtc)>> = Mutex::new(Vec::new());

/// What came out of a compilation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Code for one architecture.
    pub cubin: Vec<u8>,
    /// The assembler text that it was made of, in which a test can see what the compiler did with
    /// the source.
    pub ptx: String,
    /// What the compiler said: warnings, and what registers each kernel takes.
    pub log: String,
}

impl Nvrtc {
    /// Opens this library.
    ///
    /// # Errors
    /// [`Error::Library`] if it is not an NVRTC.
    pub fn open(path: &Path) -> Result<Nvrtc, Error> {
        // NVRTC 13.0 looks for its built-in functions by name alone, and finds them only if they
        // are loaded already
        for entry in path
            .parent()
            .and_then(|dir| dir.read_dir().ok())
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with("libnvrtc-builtins.so") && !name.contains("alt") {
                // one that does not open is missed when something is compiled
                load(&entry.path()).ok();
            }
        }
        let library = load(path)?;
        let wrong = |error: libloading::Error| library_error(path, &error);
        let (functions, version) = {
            macro_rules! symbol {
                ($name:literal) => {{
                    // SAFETY: the types are those of nvrtc.h, unchanged since CUDA 11.1.
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
            // SAFETY: two addresses of integers, as nvrtc.h wants.
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

    /// Opens the first one that is found beside the program, in a toolkit or a Python environment
    /// that the environment names, under `/usr/local`, near `nvcc` or `python3`, or where the
    /// loader looks, and that compiles for this capability. A driver of CUDA `newest` runs code of
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
                // one may be found by several names
                Some(why) if others.iter().any(|other: &String| other.ends_with(&why)) => {}
                Some(why) => others.push(format!("{}: {why}", path.display())),
            }
        }
        let others = match others.is_empty() {
            true => String::new(),
            false => format!(" ({})", others.join("; ")),
        };
        Err(Error::Unavailable(format!(
            "NVRTC (libnvrtc.so, part of CUDA; also in the Python package nvidia-cuda-nvrtc) of \
             version {OLDEST} to {newest} that compiles for sm_{arch} was not found{others}"
        )))
    }

    /// Why its code is of no use to a driver of CUDA `newest` with a GPU of this architecture.
    fn unfit(&self, newest: i32, arch: i32) -> Option<String> {
        let (major, minor) = self.version;
        if !(OLDEST..=newest).contains(&major) {
            return Some(format!("version {major}.{minor}"));
        }
        let knows = self.archs.contains(&arch);
        (!knows).then(|| format!("version {major}.{minor} does not compile for sm_{arch}"))
    }

    /// Major and minor.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Where it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Everything that decides what comes out, apart from the sources.
    pub fn key(&self, arch: &str) -> String {
        format!(
            "nvrtc {}.{} {arch} {}",
            self.version.0,
            self.version.1,
            OPTIONS.join(" ")
        )
    }

    /// Compiles a module for an architecture: `sm_90`.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's words.
    pub fn compile(&self, module: Module, arch: &str) -> Result<Compiled, Error> {
        let mut options = vec![format!("--gpu-architecture={arch}")];
        options.extend(OPTIONS.map(str::to_owned));
        options.extend(
            module
                .define()
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

    /// Compiles a text that may include our headers; what went wrong as the compiler put it.
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
        // SAFETY: strings that end in zero and live to the end of this function, and as many as is
        // said.
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

/// A program that is destroyed in the end.
struct Owned {
    program: Program,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
}

impl Owned {
    /// A text that ends in zero; empty if there is none.
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

    /// What a pair of functions of size and contents gives.
    fn text(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        text: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Option<Vec<u8>> {
        let mut n = 0;
        // SAFETY: the program was created, and lives.
        if unsafe { size(self.program, &raw mut n) } != 0 {
            return None;
        }
        let mut bytes = vec![0u8; n];
        // SAFETY: as above, with room for what was announced.
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

/// Opens a library for good.
fn load(path: &Path) -> Result<&'static Library, Error> {
    // SAFETY: what runs when NVIDIA's library is opened is NVIDIA's; the caller named it, or a
    // system's path does.
    let library = unsafe { Library::new(path) }.map_err(|error| library_error(path, &error))?;
    Ok(Box::leak(Box::new(library)))
}

/// The architectures that a compiler knows; none before CUDA 11.2, which is too old in any case.
fn architectures(library: &Library) -> Vec<i32> {
    type Ask = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: the types are those of nvrtc.h, unchanged since CUDA 11.2.
    let both = unsafe {
        let count = library.get::<Ask>(b"nvrtcGetNumSupportedArchs\0");
        count.and_then(|count| Ok((*count, *library.get::<Ask>(b"nvrtcGetSupportedArchs\0")?)))
    };
    let Ok((count, list)) = both else {
        return Vec::new();
    };
    let mut n = 0;
    // SAFETY: the address of an integer, as nvrtc.h wants.
    if unsafe { count(&raw mut n) } != 0 {
        return Vec::new();
    }
    let mut all = vec![0; usize::try_from(n).unwrap_or(0)];
    // SAFETY: room for as many as were announced.
    match unsafe { list(all.as_mut_ptr()) } {
        0 => all,
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
