//! Tests of the search for NVRTC and of its errors.

use super::*;
use crate::cuda::host_compiler::{HostCompiler, Unit};
use octavo_fixtures::{Lacks, skip};

/// Responses of a fake NVRTC: error codes, function names and texts.
#[derive(Clone, Copy)]
struct Answers {
    version: i32,
    archs_are_called: &'static str,
    count: i32,
    list: i32,
    create: i32,
    compile_is_called: &'static str,
    compile: i32,
    log: &'static str,
    cubin: i32,
    code: &'static str,
}

/// Responses without an error.
const RIGHT: Answers = Answers {
    version: 0,
    archs_are_called: "nvrtcGetNumSupportedArchs",
    count: 0,
    list: 0,
    create: 0,
    compile_is_called: "nvrtcCompileProgram",
    compile: 0,
    log: "",
    cubin: 0,
    code: "code",
};

impl Answers {
    /// Builds a library with these responses, if there is a C++ compiler.
    fn library(&self, dir: &Path) -> Option<PathBuf> {
        let macros = [
            format!("VERSION_ANSWERS {}", self.version),
            format!("ARCHS_ARE_CALLED {}", self.archs_are_called),
            format!("COUNT_ANSWERS {}", self.count),
            format!("LIST_ANSWERS {}", self.list),
            format!("CREATE_ANSWERS {}", self.create),
            format!("COMPILE_IS_CALLED {}", self.compile_is_called),
            format!("COMPILE_ANSWERS {}", self.compile),
            format!("LOG {:?}", self.log),
            format!("CUBIN_ANSWERS {}", self.cubin),
            format!("CUBIN {:?}", self.code),
        ];
        let macros = macros.map(|text| format!("#define {text}\n")).concat();
        let compiler = match HostCompiler::find() {
            Ok(compiler) => compiler,
            Err(error) => {
                let required = std::env::var_os("OCTAVO_REQUIRE_CXX").is_some_and(|v| v == "1");
                assert!(!required, "{error}");
                skip(Lacks::Compiler, error);
                return None;
            }
        };
        let unit = Unit {
            name: "nvrtc.cpp",
            text: macros + include_str!("../../../cuda/standin/nvrtc.cpp"),
            files: &[],
            flags: &[],
        };
        let path = compiler.library(dir, &unit).expect("it compiles");
        assert!(path.is_file(), "{} is not there", path.display());
        Some(path)
    }
}

/// Creates a temporary folder next to this executable: some systems forbid loading code from the
/// folder for temporary files.
fn folder() -> tempfile::TempDir {
    let this = std::env::current_exe().expect("this program");
    let dir = tempfile::tempdir_in(this.parent().expect("its folder"));
    dir.expect("a folder")
}

#[test]
fn what_is_not_an_nvrtc_is_refused_by_name() {
    let dir = folder();
    let refused = |path: &Path| {
        let error = Nvrtc::open(path).err().expect("it is refused").to_string();
        let (file, why) = error.split_once(": ").expect("a file, and why");
        assert_eq!(Path::new(file), path, "{error}");
        why.to_owned()
    };
    let text = dir.path().join("libnvrtc.so");
    std::fs::write(&text, "no library").expect("it is written");
    let why = refused(&text);
    // the loader's message, in one line
    let own = !why.is_empty() && why != "dlopen failed";
    assert!(own && !why.contains('\n'), "{why}");
    for (answers, says) in [
        (
            Answers {
                compile_is_called: "nvrtcCompileNothing",
                ..RIGHT
            },
            "undefined symbol: nvrtcCompileProgram",
        ),
        (
            Answers {
                version: 3,
                ..RIGHT
            },
            "nvrtcVersion: error 3",
        ),
    ] {
        let Some(path) = answers.library(dir.path()) else {
            return;
        };
        let why = refused(&path);
        assert!(why.contains(says), "{why}");
    }
}

/// A missing list, as before CUDA 11.2, or one that cannot be read counts as empty: better no
/// compiler than one whose code does not run.
#[test]
fn a_compiler_that_does_not_list_an_architecture_does_not_fit() {
    let dir = folder();
    let fits = |answers: Answers| {
        let nvrtc = Nvrtc::open(&answers.library(dir.path())?).expect("it is opened");
        assert_eq!(nvrtc.version(), (12, 9));
        Some([90, 100].map(|arch| nvrtc.unfit(13, arch)))
    };
    let unlisted = |arch| Some(format!("version 12.9 does not compile for sm_{arch}"));
    let Some(right) = fits(RIGHT) else { return };
    assert_eq!(right, [None, unlisted(100)]);
    let archs_are_called = "nvrtcGetNumArchs";
    for answers in [
        Answers {
            archs_are_called,
            ..RIGHT
        },
        Answers { count: 2, ..RIGHT },
        Answers { list: 2, ..RIGHT },
    ] {
        assert_eq!(fits(answers), Some([unlisted(90), unlisted(100)]));
    }
}

#[test]
fn a_compiler_that_fails_is_heard_and_keeps_nothing() {
    let dir = folder();
    let log = "rows.cu(7): error";
    for (answers, expected) in [
        (RIGHT, Ok("code")),
        (
            Answers { create: 7, ..RIGHT },
            Err("nvrtcCreateProgram: error 7"),
        ),
        (
            Answers {
                compile: 6,
                ..RIGHT
            },
            Err("nvrtcCompileProgram: error 6"),
        ),
        (
            Answers {
                compile: 6,
                log,
                ..RIGHT
            },
            Err(log),
        ),
        (Answers { cubin: 4, ..RIGHT }, Err("no code came out")),
        (Answers { code: "", ..RIGHT }, Err("no code came out")),
    ] {
        let Some(path) = answers.library(dir.path()) else {
            return;
        };
        let nvrtc = Nvrtc::open(&path).expect("it is opened");
        assert_eq!(nvrtc.path(), path);
        let got = nvrtc.compile(Module::Rows, "sm_90");
        let got = got.map(|c| c.cubin).map_err(|e| e.to_string());
        let line = |why| format!("rows.cu: NVRTC 12.9 for sm_90 does not compile it: {why}");
        assert_eq!(got, expected.map(|code| code.into()).map_err(line));
        // SAFETY: the type matches the function in nvrtc.cpp; the library is open.
        let left = unsafe {
            let library = Library::new(&path).expect("it is open");
            let programs =
                library.get::<unsafe extern "C" fn() -> c_int>(b"octavo_standin_programs\0");
            programs.expect("a function")()
        };
        assert_eq!(left, 0, "programs are left");
    }
}
