//! NVRTC, NVIDIA's compiler as a library: found, opened and called when there is a kernel to build,
//! never before.
//!
//! Our own binding of eight functions, and not cudarc's, because NVRTC lies in many places (a
//! toolkit, a wheel of a Python environment, beside the program) of which cudarc looks in none, and
//! because cubins are wanted: code for the very device, which no driver has to translate or can be
//! too old for.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

use super::{Error, HEADERS, Module};

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
}

/// An opened NVRTC.
pub struct Nvrtc {
    functions: Functions,
    version: (i32, i32),
    path: PathBuf,
    /// Kept open: the compiler, and its library of built-in functions.
    _libraries: Vec<Library>,
}

/// What came out of a compilation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Code for one architecture.
    pub cubin: Vec<u8>,
    /// What the compiler said: warnings, and what registers each kernel takes.
    pub log: String,
}

impl Nvrtc {
    /// Opens this library.
    ///
    /// # Errors
    /// [`Error::Library`] if it is not an NVRTC.
    pub fn open(path: &Path) -> Result<Nvrtc, Error> {
        let mut libraries = Vec::new();
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
                libraries.extend(load(&entry.path()).ok());
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
        libraries.push(library);
        Ok(Nvrtc {
            functions,
            version,
            path: path.to_owned(),
            _libraries: libraries,
        })
    }

    /// Opens the first one that is found beside the program, in a toolkit or a Python environment
    /// that the environment names, under `/usr/local`, near `nvcc` or `python3`, or where the
    /// loader looks. A driver of CUDA `newest` runs code of that major version and of older ones.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is none.
    pub fn find(newest: i32) -> Result<Nvrtc, Error> {
        let usable = |path: &PathBuf| Nvrtc::open(path).ok().filter(|n| n.version.0 <= newest);
        Places::of_process().candidates().iter().find_map(usable).ok_or_else(|| {
            Error::Unavailable(format!(
                "NVRTC (libnvrtc.so, part of CUDA; also in the Python package nvidia-cuda-nvrtc) of version {newest} or \
                 older was not found"
            ))
        })
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
        let log = program.text(f.log_size, f.log).unwrap_or_default();
        let log = CStr::from_bytes_until_nul(&log)
            .map(|s| s.to_string_lossy().into_owned())
            .unwrap_or_default();
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

fn load(path: &Path) -> Result<Library, Error> {
    // SAFETY: what runs when NVIDIA's library is opened is NVIDIA's; the caller named it, or a
    // system's path does.
    unsafe { Library::new(path) }.map_err(|error| library_error(path, &error))
}

fn library_error(path: &Path, error: &libloading::Error) -> Error {
    Error::Library {
        library: path.display().to_string(),
        message: error.to_string(),
    }
}

/// Where an NVRTC may lie, before it is looked for.
struct Places {
    /// The program's own folder.
    beside: Option<PathBuf>,
    /// Toolkits that the environment names.
    toolkits: Vec<PathBuf>,
    /// Python environments that it names.
    environments: Vec<PathBuf>,
    /// Where toolkits are installed: `cuda`, `cuda-12.9`.
    local: PathBuf,
    /// Folders of programs.
    path: Vec<PathBuf>,
}

impl Places {
    fn of_process() -> Places {
        let environment = |names: [&str; 2]| {
            names
                .into_iter()
                .filter_map(std::env::var_os)
                .map(PathBuf::from)
                .collect::<Vec<_>>()
        };
        Places {
            beside: std::env::current_exe()
                .ok()
                .and_then(|p| p.parent().map(Path::to_owned)),
            toolkits: environment(["CUDA_HOME", "CUDA_PATH"]),
            environments: environment(["VIRTUAL_ENV", "CONDA_PREFIX"]),
            local: "/usr/local".into(),
            path: std::env::var_os("PATH")
                .iter()
                .flat_map(std::env::split_paths)
                .collect(),
        }
    }

    /// Toolkits that were installed, the default first, then the newest; and the one whose compiler
    /// is on the path.
    fn installed(&self) -> Vec<PathBuf> {
        let mut versions: Vec<(Vec<u32>, PathBuf)> = entries(&self.local)
            .filter_map(|path| {
                let version = path.file_name()?.to_str()?.strip_prefix("cuda-")?;
                Some((
                    version
                        .split('.')
                        .map(str::parse)
                        .collect::<Result<_, _>>()
                        .ok()?,
                    path,
                ))
            })
            .collect();
        versions.sort_unstable_by(|a, b| b.cmp(a));
        let mut all = vec![self.local.join("cuda")];
        all.extend(versions.into_iter().map(|(_, path)| path));
        all.extend(self.prefixes("nvcc"));
        all
    }

    /// What a program on the path belongs to, the folder above its own: of the program, and of what
    /// it is a link to. The programs of a Python environment are links to those of another.
    fn prefixes(&self, program: &str) -> Vec<PathBuf> {
        const LINKS: usize = 8;
        let found = self
            .path
            .iter()
            .map(|dir| dir.join(program))
            .find(|path| path.is_file());
        let next = |path: &PathBuf| Some(path.parent()?.join(std::fs::read_link(path).ok()?));
        let links = std::iter::successors(found, next).take(LINKS);
        // a link may lead up and down again, through folders that are links themselves
        let above = |path: PathBuf| Some(path.parent()?.canonicalize().ok()?.parent()?.to_owned());
        links.filter_map(above).collect()
    }

    /// In the order in which they are tried.
    fn candidates(&self) -> Vec<PathBuf> {
        const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
        let mut dirs: Vec<PathBuf> = self.beside.iter().cloned().collect();
        dirs.extend(self.toolkits.iter().flat_map(|root| of_toolkit(root)));
        dirs.extend(self.environments.iter().flat_map(|root| of_python(root)));
        dirs.extend(self.installed().iter().flat_map(|root| of_toolkit(root)));
        dirs.extend(
            self.prefixes("python3")
                .iter()
                .flat_map(|root| of_python(root)),
        );
        let mut all: Vec<PathBuf> = dirs
            .iter()
            .flat_map(|dir| NAMES.map(|name| dir.join(name)))
            .collect();
        all.retain(|path| path.exists());
        // by name alone: wherever the loader looks
        all.extend(NAMES.map(PathBuf::from));
        all
    }
}

/// Folders that may be those of CUDA toolkits, in the order in which they are tried.
pub fn toolkits() -> Vec<PathBuf> {
    let places = Places::of_process();
    let installed = places.installed();
    places.toolkits.into_iter().chain(installed).collect()
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    dir.read_dir()
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

/// The libraries of a toolkit.
fn of_toolkit(root: &Path) -> [PathBuf; 5] {
    [
        "lib64",
        "lib",
        "targets/x86_64-linux/lib",
        "targets/aarch64-linux/lib",
        "targets/sbsa-linux/lib",
    ]
    .map(|lib| root.join(lib))
}

/// NVIDIA's libraries among a Python's packages, for Debian's Python also where it puts what the
/// system does not own.
fn of_python(root: &Path) -> Vec<PathBuf> {
    let packages = |python: PathBuf| {
        ["site-packages", "dist-packages"].map(|name| python.join(name).join("nvidia"))
    };
    let pythons = ["lib", "local/lib"]
        .into_iter()
        .flat_map(|lib| entries(&root.join(lib)));
    pythons
        .flat_map(packages)
        .flat_map(|nvidia| [nvidia.join("cu13/lib"), nvidia.join("cuda_nvrtc/lib")])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn what_is_named_comes_before_what_is_found() {
        use std::os::unix::fs::symlink;
        let folders = [
            "beside",
            "named/lib64",
            "active/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib",
            "local/cuda/lib64",
            "local/cuda-12.10/targets/sbsa-linux/lib",
            "local/cuda-12.9/lib64",
            "local/cuda-9.2/lib64",
            "opt/cuda/lib64",
            "opt/env/lib/python3.12/site-packages/nvidia/cu13/lib",
            "usr/local/lib/python3.11/dist-packages/nvidia/cuda_nvrtc/lib",
        ];
        let dir = tempfile::tempdir().expect("a folder");
        let root = dir.path().canonicalize().expect("it is there");
        let libraries = folders.map(|folder| (folder, "libnvrtc.so.12"));
        for (dir, file) in libraries
            .into_iter()
            .chain([("opt/cuda/bin", "nvcc"), ("usr/bin", "python3.11")])
        {
            std::fs::create_dir_all(root.join(dir)).expect("a folder");
            std::fs::write(root.join(dir).join(file), "").expect("a file");
        }
        for dir in ["bin", "opt/env/bin", "local/cuda-old"] {
            std::fs::create_dir_all(root.join(dir)).expect("a folder");
        }
        let link = |to: &str, from: &str| symlink(to, root.join(from)).expect("a link");
        link("../opt/cuda/bin/nvcc", "bin/nvcc");
        link("../opt/env/bin/python3", "bin/python3");
        link("python", "opt/env/bin/python3");
        link("../../../usr/bin/python3.11", "opt/env/bin/python");

        let places = Places {
            beside: Some(root.join("beside")),
            toolkits: vec![root.join("named"), root.join("absent")],
            environments: vec![root.join("active")],
            local: root.join("local"),
            path: vec![root.join("absent"), root.join("bin")],
        };
        let mut got = places.candidates();
        let by_name = got.split_off(got.len() - 3);
        assert!(
            by_name.iter().all(|name| name.components().count() == 1),
            "{by_name:?}"
        );
        let mut relative: Vec<String> = Vec::new();
        for path in &got {
            let folder = path
                .parent()
                .and_then(|dir| dir.strip_prefix(&root).ok())
                .expect("in the tree");
            relative.push(folder.to_str().expect("text").to_owned());
        }
        // python3 and python are programs of one environment
        relative.dedup();
        assert_eq!(relative, folders);
    }
}
