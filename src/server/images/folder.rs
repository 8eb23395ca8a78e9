//! Images that are files of the server's own folder (`--media-path`).

use std::fs::File;
use std::io::Read as _;
use std::path::{Component, Path};

/// Beginning of the URL of such a file.
pub(super) const SCHEME: &str = "file://";

/// Reads the file that a URL names, of at most `most` bytes. It is inside the folder: its path may
/// leave that neither by `..` nor by a link. What is outside is not told from what is missing.
pub(super) fn file(folder: &Path, url: &str, most: usize) -> Result<Vec<u8>, String> {
    let name = url.strip_prefix(SCHEME).unwrap_or(url);
    let missing = || format!("expected a file in the server's folder, found none at {name:?}");
    // as in llama-server, slashes at the beginning mean nothing
    let path = Path::new(name.trim_start_matches('/'));
    let is_inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if !path.components().all(is_inside) {
        return Err(missing());
    }
    let root = folder.canonicalize().map_err(|_| missing())?;
    let path = root.join(path).canonicalize().map_err(|_| missing())?;
    // a pipe or a device could be read for ever
    if !path.starts_with(&root) || !path.is_file() {
        return Err(missing());
    }
    let file = File::open(path).map_err(|_| missing())?;
    let mut bytes = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("{name}: {error}"))?;
    match bytes.len() > most {
        true => Err(format!("{name}: expected at most {most} bytes, found more")),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_folder_are_read() {
        let outer = tempfile::tempdir().expect("a folder");
        let folder = outer.path().join("media");
        std::fs::create_dir_all(folder.join("sub")).expect("a folder");
        std::fs::write(outer.path().join("secret"), "secret").expect("a file");
        std::fs::write(folder.join("sub/a.png"), "image").expect("a file");
        #[cfg(unix)]
        std::os::unix::fs::symlink(outer.path().join("secret"), folder.join("link"))
            .expect("a link");
        let read = |url: &str| file(&folder, url, 5);
        for url in [
            "file://sub/a.png",
            "file:////sub//a.png",
            "file://./sub/a.png",
        ] {
            assert_eq!(read(url), Ok(b"image".to_vec()), "{url}");
        }
        for url in [
            "file://",
            "file://sub",
            "file://a.png",
            "file://link",
            "file://../secret",
            "file://sub/../../secret",
            "file:///etc/passwd",
            "file://sub/a\0.png",
        ] {
            let error = read(url).expect_err("not in the folder");
            assert!(error.contains("found none at"), "{url}: {error}");
        }
        let error = file(&folder, "file://sub/a.png", 4).expect_err("too long");
        assert!(error.contains("at most 4 bytes"), "{error}");
    }
}
