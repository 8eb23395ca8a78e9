//! The programs that run on a GPU: built here, or built elsewhere and packed in a folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{archive, cubins};
use octavo_fixtures::workspace_root;
use serde_json::Value;

/// Test programs with tests that run on a device; the kernels' own first.
const TESTS: [Suite; 2] = [
    Suite {
        package: "octavo-kernels",
        program: "kernels",
        packed: "kernels-tests",
        module: "cuda_shim::",
    },
    Suite {
        package: "octavo-llm",
        program: "octavo",
        packed: "octavo-tests",
        module: "cuda::",
    },
];
/// Files that tests read: below the repository's root here, below the packed folder there. Tests
/// find the root by the first one.
const FILES: [&str; 4] = [
    "Cargo.lock",
    "src/engine/demo",
    "reference/models",
    "reference/goldens",
];

/// Folder of compiled kernels in a packed folder, as a user's cache.
const CACHE: &str = "cache";

/// A test program, one module of which has the device tests.
struct Suite {
    package: &'static str,
    /// Cargo's name of the test program. The root package's has the name of the program that it
    /// tests.
    program: &'static str,
    /// Its file name in a packed folder, beside the other programs.
    packed: &'static str,
    /// Name prefix of the tests that run on a device.
    module: &'static str,
}

/// Tests to run: a program, and the prefix of their names.
#[derive(Clone)]
pub(super) struct Tests {
    pub(super) program: PathBuf,
    pub(super) module: &'static str,
}

/// Programs to run.
pub(super) struct Programs {
    octavo: PathBuf,
    /// Folder of compiled kernels that came with the programs, in place of the user's.
    cache: Option<PathBuf>,
    /// Test programs, in the order of [`TESTS`].
    pub(super) tests: [Tests; 2],
    /// Root folder of the tests' files.
    root: PathBuf,
}

impl Programs {
    /// Builds the programs.
    pub(super) fn built() -> Result<Programs, String> {
        let octavo = built(&["build", "--package", "octavo-llm", "--bin", "octavo"])?;
        let test = |suite: &Suite| {
            let (package, program) = (suite.package, suite.program);
            let arguments = ["test", "--no-run", "--package", package, "--test", program];
            Ok::<_, String>(Tests {
                program: built(&arguments)?,
                module: suite.module,
            })
        };
        let tests = [test(&TESTS[0])?, test(&TESTS[1])?];
        Ok(Programs {
            octavo,
            cache: None,
            tests,
            root: workspace_root(),
        })
    }

    /// Prepares a command of the program.
    pub(super) fn octavo(&self) -> Command {
        let mut command = Command::new(&self.octavo);
        if let Some(cache) = &self.cache {
            command.env("XDG_CACHE_HOME", cache);
        }
        command
    }

    /// Finds the programs that [`pack`] put into a folder.
    pub(super) fn packed(dir: &Path) -> Result<Programs, String> {
        let root = dir
            .canonicalize()
            .map_err(|error| format!("{}: {error}", dir.display()))?;
        let program = |name: &str| match root.join(name) {
            path if path.is_file() => Ok(path),
            path => Err(format!(
                "{}: expected a program that cargo xtask gpu --pack leaves",
                path.display()
            )),
        };
        let test = |suite: &Suite| {
            Ok::<_, String>(Tests {
                program: program(suite.packed)?,
                module: suite.module,
            })
        };
        let tests = [test(&TESTS[0])?, test(&TESTS[1])?];
        Ok(Programs {
            octavo: program("octavo")?,
            cache: Some(root.join(CACHE)).filter(|cache| cache.is_dir()),
            tests,
            root,
        })
    }

    /// Prepares the command of a test program, or its wrapper, for the GPU. Cubins are cached in a
    /// folder of `dir`.
    pub(super) fn on_gpu<'a>(&self, command: &'a mut Command, dir: &Path) -> &'a mut Command {
        command
            .env("OCTAVO_TEST_DEVICE", "gpu")
            .env("CARGO_MANIFEST_DIR", &self.root)
            .env("CARGO_TARGET_TMPDIR", dir.join("tests"))
    }
}

/// Builds a program with these Cargo arguments; returns its path.
fn built(arguments: &[&str]) -> Result<PathBuf, String> {
    let mut command = crate::cargo();
    command
        .args(arguments)
        .args(["--release", "--quiet"])
        .args(["--message-format", "json-render-diagnostics"]);
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| error.to_string())?;
    let wrong = |what: &str| format!("cargo {}: {what}", arguments.join(" "));
    if !output.status.success() {
        return Err(wrong(&output.status.to_string()));
    }
    let kind = if arguments[0] == "test" {
        "test"
    } else {
        "bin"
    };
    let name = arguments.last().copied().unwrap_or_default();
    executable(&String::from_utf8_lossy(&output.stdout), kind, name)
        .ok_or_else(|| wrong("it did not say where the program is"))
}

/// Finds a program in Cargo's messages, which also list its dependencies: a test may have the same
/// name as the program it tests.
fn executable(messages: &str, kind: &str, name: &str) -> Option<PathBuf> {
    let all = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut named = all.filter(|message| {
        message["target"]["name"] == name && message["target"]["kind"][0] == kind
    });
    named.find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

/// Builds everything and puts it into a folder, with compiled kernels, the files that tests read
/// and instructions; beside it an archive of that, and a script that runs a plan out of it.
pub(super) fn pack(dir: &Path) -> Result<(), String> {
    let programs = Programs::built()?;
    let xtask = built(&["build", "--package", "xtask"])?;
    let wrong = |error: std::io::Error| format!("{}: {error}", dir.display());
    fs::create_dir_all(dir).map_err(wrong)?;
    let [kernels, backend] = &programs.tests;
    for (name, program) in [
        ("octavo", &programs.octavo),
        ("xtask", &xtask),
        (TESTS[0].packed, &kernels.program),
        (TESTS[1].packed, &backend.program),
    ] {
        crate::must(
            Command::new("strip")
                .arg("-o")
                .arg(dir.join(name))
                .arg(program),
        )?;
    }
    for file in FILES {
        copy(&programs.root.join(file), &dir.join(file))?;
    }
    cubins::compile(&dir.join(CACHE))?;
    fs::write(dir.join("README.md"), readme()).map_err(wrong)?;
    let mib = bytes(dir).map_err(wrong)? as f64 / f64::from(1 << 20);
    println!(
        "{}: {mib:.1} MiB; on a machine with a GPU: {0}/xtask gpu --packed {0}",
        dir.display()
    );
    archive::write(dir)
}

fn readme() -> String {
    let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
    format!(
        "Octavo's programs and tests for a machine with an NVIDIA GPU ({arch}, {os}) and without\n\
         Rust. In this folder,\n\
         \n\
         \x20   ./xtask gpu --packed .\n\
         \n\
         runs all that only a GPU can show, and `./xtask gpu --help` says how to run a part. \
         Models\n\
         and code go to `target/gpu` (17 GiB; `--presets 0.6b` 1 GiB). NVIDIA's driver is needed,\n\
         and NVRTC of CUDA 12 or 13, which is looked for beside these programs, in toolkits, and\n\
         near `nvcc` and `python3`.\n"
    )
}

/// Copies a file, or a folder with all its contents.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", from.display());
    if !from.is_dir() {
        return fs::copy(from, to).map(drop).map_err(wrong);
    }
    fs::create_dir_all(to).map_err(wrong)?;
    for entry in from.read_dir().map_err(wrong)? {
        let name = entry.map_err(wrong)?.file_name();
        copy(&from.join(&name), &to.join(&name))?;
    }
    Ok(())
}

/// Returns the bytes of a file, or of all files in a folder.
fn bytes(path: &Path) -> std::io::Result<u64> {
    match path.is_dir() {
        true => path.read_dir()?.map(|entry| bytes(&entry?.path())).sum(),
        false => Ok(path.metadata()?.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn programs_are_known_by_their_names() {
        let line = |kind: &str, name: &str, path: Value| {
            json!({"target": {"kind": [kind], "name": name}, "executable": path}).to_string()
        };
        let lines = [
            line("test", "octavo", Value::Null),
            "not json".to_owned(),
            // the program that the tests run
            line("bin", "octavo", json!("/b")),
            line("test", "octavo", json!("/a")),
            "{\"reason\":\"build-finished\"}".to_owned(),
        ]
        .join("\n");
        let octavo = |kind| executable(&lines, kind, "octavo");
        assert_eq!(octavo("test"), Some("/a".into()));
        assert_eq!(octavo("bin"), Some("/b".into()));
        assert_eq!(executable(&lines, "bin", "xtask"), None);
    }

    #[test]
    fn a_folder_without_programs_says_which_is_missing() {
        let dir = tempfile::tempdir().expect("a folder");
        let error = Programs::packed(dir.path())
            .err()
            .expect("nothing is there");
        assert!(
            error.contains("/kernels-tests: expected a program that"),
            "{error}"
        );
        assert!(Programs::packed(&dir.path().join("absent")).is_err());
    }

    #[test]
    fn folders_are_copied_with_what_is_in_them() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(dir.path().join("a/b")).expect("a folder");
        fs::write(dir.path().join("a/b/c"), "text").expect("a file");
        copy(&dir.path().join("a"), &dir.path().join("x")).expect("it is copied");
        assert_eq!(
            fs::read_to_string(dir.path().join("x/b/c")).expect("it is there"),
            "text"
        );
        assert_eq!(bytes(dir.path()).expect("files"), 8);
    }

    #[test]
    fn what_tests_read_is_in_the_repository() {
        assert!(
            FILES
                .iter()
                .all(|file| workspace_root().join(file).exists())
        );
    }
}
