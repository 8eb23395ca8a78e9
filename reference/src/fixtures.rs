//! Where tests find fixtures. Small ones are in the repository; the large ones are looked for in
//! the folder named by `OCTAVO_SHARED`, else in `../shared` beside the workspace. Without them a
//! test says "skipped" and passes, unless `OCTAVO_REQUIRE_SHARED=1` asks for a failure. Meant for
//! tests only: paths follow Cargo's environment at run time.

use std::path::{Path, PathBuf};

/// The workspace root: the nearest folder at or above the package under test that has a
/// `Cargo.lock`.
pub fn workspace_root() -> PathBuf {
    let start =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("."), PathBuf::from);
    start
        .ancestors()
        .find(|dir| dir.join("Cargo.lock").is_file())
        .unwrap_or(&start)
        .to_path_buf()
}

/// The folder of goldens and models that are part of the repository.
pub fn committed_goldens() -> PathBuf {
    workspace_root().join("reference/goldens")
}

/// The folder of large fixtures, or `None` (said on stderr) where there is none.
///
/// # Panics
/// There is none and `OCTAVO_REQUIRE_SHARED=1`.
pub fn shared_dir() -> Option<PathBuf> {
    shared("models").and_then(|models| models.parent().map(Path::to_path_buf))
}

/// A file or folder of the large fixtures, such as `vocabs`, or `None` (said on stderr) where it is
/// absent.
///
/// # Panics
/// It is absent and `OCTAVO_REQUIRE_SHARED=1`.
pub fn shared(part: &str) -> Option<PathBuf> {
    let dir = std::env::var_os("OCTAVO_SHARED")
        .map_or_else(|| workspace_root().join("../shared"), PathBuf::from);
    let required = std::env::var_os("OCTAVO_REQUIRE_SHARED").is_some_and(|value| value == "1");
    found(&dir, part, required).then(|| dir.join(part))
}

fn found(dir: &Path, part: &str, required: bool) -> bool {
    if dir.join(part).exists() {
        return true;
    }
    let message = format!("the large fixture {part} is not in {}", dir.display());
    assert!(!required, "{message}, and OCTAVO_REQUIRE_SHARED=1");
    eprintln!("skipped: {message}");
    false
}

/// A program of the reference llama.cpp, such as `llama-results`: from the folder named by
/// `OCTAVO_LLAMA_CPP`, else from where `tools/llama_cpp.sh` puts it. `None` (said on stderr) where
/// it is not built.
pub fn llama_cpp(program: &str) -> Option<PathBuf> {
    let dir = match std::env::var_os("OCTAVO_LLAMA_CPP") {
        Some(dir) => Some(PathBuf::from(dir)),
        None => std::env::home_dir()
            .map(|home| home.join(".cache/octavo-reference/llama.cpp-0.3.36/build-native/bin")),
    };
    let path = dir
        .map(|dir| dir.join(program))
        .filter(|path| path.is_file());
    if path.is_none() {
        eprintln!("skipped: the reference llama.cpp's {program} is not built");
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_has_the_workspace_manifest() {
        let manifest = std::fs::read_to_string(workspace_root().join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[workspace]"));
        assert!(committed_goldens().is_dir());
    }

    #[test]
    fn an_absent_folder_is_none() {
        assert!(!found(Path::new("/nonexistent"), "models", false));
    }

    #[test]
    #[should_panic(expected = "OCTAVO_REQUIRE_SHARED=1")]
    fn an_absent_folder_fails_where_it_is_required() {
        found(Path::new("/nonexistent"), "models", true);
    }
}
