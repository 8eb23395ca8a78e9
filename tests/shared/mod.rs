//! The shared data folder: models, vocabularies, goldens.

use std::path::PathBuf;

/// `OCTAVO_SHARED`, by default `../shared` beside the workspace. Where `part` is absent the caller's test is skipped,
/// which `OCTAVO_REQUIRE_SHARED=1` turns into a failure.
pub(crate) fn folder(part: &str) -> Option<PathBuf> {
    let root = std::env::var_os("OCTAVO_SHARED")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    let folder = root.join(part);
    if folder.exists() {
        return Some(folder);
    }
    let required = std::env::var_os("OCTAVO_REQUIRE_SHARED").is_some_and(|value| value == "1");
    assert!(!required, "{} is required and absent", folder.display());
    println!("skipped: {} is absent", folder.display());
    None
}
