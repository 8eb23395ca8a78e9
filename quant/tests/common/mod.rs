//! Where the shared test data is.

use std::path::{Path, PathBuf};

/// The path of a file of shared test data, or `None` (said on stderr) when there is none.
///
/// `OCTAVO_SHARED` names the folder, by default `shared` beside the workspace. With
/// `OCTAVO_REQUIRE_SHARED=1` a missing file fails the test.
pub(crate) fn shared(file: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder =
        std::env::var_os("OCTAVO_SHARED").map_or_else(|| "../shared".into(), PathBuf::from);
    let path = root.join(folder).join(file);
    if path.exists() {
        return Some(path);
    }
    let required = std::env::var_os("OCTAVO_REQUIRE_SHARED").is_some_and(|v| v == "1");
    assert!(
        !required,
        "{} is missing and OCTAVO_REQUIRE_SHARED=1",
        path.display()
    );
    eprintln!("skipped: {} is missing", path.display());
    None
}
