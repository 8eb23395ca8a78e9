//! The hub's cache on disk, as `huggingface_hub` lays it out: a folder for each repository, with
//! contents by their hashes (blobs), the commits of branches (refs) and links by name (snapshots).

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::choice::quantization;
use crate::name::is_repository;

/// A folder with downloaded models.
#[derive(Clone, Debug)]
pub struct Cache(PathBuf);

/// A model file in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// Repository, its user before a slash.
    pub repo: String,
    /// Path in the repository.
    pub file: String,
    /// Path on disk.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// Quantization, as its name says.
    pub quantization: Option<String>,
}

/// Returns the path in an environment variable, if it is set and not empty.
fn folder(variable: &str) -> Option<PathBuf> {
    let value = env::var_os(variable).filter(|value| !value.is_empty())?;
    Some(PathBuf::from(value))
}

/// Returns the user's folder.
fn home() -> Option<PathBuf> {
    folder(if cfg!(windows) { "USERPROFILE" } else { "HOME" })
}

/// Returns the folder of the hub's programs.
fn hub_home() -> Option<PathBuf> {
    folder("HF_HOME")
        .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("huggingface")))
        .or_else(|| Some(home()?.join(".cache").join("huggingface")))
}

/// Returns the token of the environment, or the one that the hub's programs keep.
pub(crate) fn token() -> Option<String> {
    let stored = || {
        let path = folder("HF_TOKEN_PATH").or_else(|| Some(hub_home()?.join("token")))?;
        fs::read_to_string(path).ok()
    };
    let token = env::var("HF_TOKEN").ok().or_else(stored)?;
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

impl Cache {
    /// Takes a folder.
    pub fn at(folder: impl Into<PathBuf>) -> Cache {
        Cache(folder.into())
    }

    /// Takes the folder that the environment names: `HF_HUB_CACHE`, or `hub` in `HF_HOME`.
    ///
    /// # Errors
    /// If nothing names one.
    pub fn from_env() -> Result<Cache, Error> {
        let named = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE"));
        let cache = named.or_else(|| Some(hub_home()?.join("hub")));
        cache.map(Cache).ok_or(Error::NoCache)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn repository(&self, repo: &str) -> PathBuf {
        self.0.join(folder_name(repo))
    }

    pub(crate) fn blob(&self, repo: &str, id: &str) -> PathBuf {
        self.repository(repo).join("blobs").join(id)
    }

    pub(crate) fn snapshot(&self, repo: &str, commit: &str) -> PathBuf {
        self.repository(repo).join("snapshots").join(commit)
    }

    /// Returns the commit that a revision was at when it was last asked for.
    pub(crate) fn commit(&self, repo: &str, revision: &str) -> Option<String> {
        if is_commit(revision) && self.snapshot(repo, revision).is_dir() {
            return Some(revision.to_owned());
        }
        let path = self.repository(repo).join("refs").join(revision);
        let commit = fs::read_to_string(path).ok()?.trim().to_owned();
        is_commit(&commit).then_some(commit)
    }

    /// Notes the commit of a revision.
    pub(crate) fn note_commit(
        &self,
        repo: &str,
        revision: &str,
        commit: &str,
    ) -> Result<(), Error> {
        if is_commit(revision) {
            return Ok(());
        }
        let path = self.repository(repo).join("refs").join(revision);
        create_folder_of(&path)?;
        fs::write(&path, commit).map_err(|error| Error::File { path, error })
    }

    /// Returns the paths of all files of a snapshot, in order.
    pub(crate) fn files(&self, repo: &str, commit: &str) -> Vec<String> {
        let root = self.snapshot(repo, commit);
        let mut files = Vec::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                // a link to nothing is no file
                if is_folder {
                    folders.push(path);
                } else if path.is_file()
                    && let Ok(relative) = path.strip_prefix(&root)
                {
                    let parts = relative.iter().map(|part| part.to_string_lossy());
                    files.push(parts.collect::<Vec<_>>().join("/"));
                }
            }
        }
        files.sort();
        files
    }

    /// Makes a blob a file of a snapshot: a link to it, or where there are no links the blob
    /// itself.
    pub(crate) fn link(&self, repo: &str, commit: &str, file: &str, id: &str) -> Result<(), Error> {
        let path = self.snapshot(repo, commit).join(file);
        if path.is_file() {
            return Ok(());
        }
        create_folder_of(&path)?;
        let up = "../".repeat(2 + file.matches('/').count());
        // one that points to nothing
        let _ = fs::remove_file(&path);
        match link_to(Path::new(&format!("{up}blobs/{id}")), &path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            // Wine makes no link and reports that it did
            Ok(()) if path.is_file() => Ok(()),
            _ => {
                fs::rename(self.blob(repo, id), &path).map_err(|error| Error::File { path, error })
            }
        }
    }

    /// Locks a blob as `huggingface_hub` does, and waits while another process has it.
    pub(crate) fn lock(&self, repo: &str, id: &str) -> Result<File, Error> {
        let folder = self.0.join(".locks").join(folder_name(repo));
        let path = folder.join(format!("{id}.lock"));
        create_folder_of(&path)?;
        // not emptied: on Windows, nothing may be written to a file that another process has locked
        let mut options = OpenOptions::new();
        let opened = options.create(true).truncate(false).write(true).open(&path);
        let lock = opened.and_then(|file| file.lock().map(|()| file));
        lock.map_err(|error| Error::File { path, error })
    }

    /// Returns all GGUF models in the cache, by repository and name.
    pub fn models(&self) -> Vec<CachedModel> {
        let mut models = Vec::new();
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(repo) = repository_name(&name) else {
                continue;
            };
            let snapshots = entry.path().join("snapshots");
            for snapshot in fs::read_dir(snapshots).into_iter().flatten().flatten() {
                let commit = snapshot.file_name().to_string_lossy().into_owned();
                for file in self.files(&repo, &commit) {
                    let path = snapshot.path().join(&file);
                    let bytes = path.metadata().map_or(0, |about| about.len());
                    if file.ends_with(".gguf") {
                        models.push(CachedModel {
                            repo: repo.clone(),
                            quantization: quantization(&file),
                            file,
                            path,
                            bytes,
                        });
                    }
                }
            }
        }
        models.sort_by(|a, b| (&a.repo, &a.file, &a.path).cmp(&(&b.repo, &b.file, &b.path)));
        models.dedup_by(|a, b| (&a.repo, &a.file) == (&b.repo, &b.file));
        models
    }

    /// Removes a file of a repository from all its snapshots, with the blobs that no other file
    /// needs; returns the bytes that this freed.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn remove_file(&self, repo: &str, file: &str) -> Result<u64, Error> {
        let snapshots = self.repository(repo).join("snapshots");
        let mut blobs = Vec::new();
        let mut freed = 0;
        for snapshot in fs::read_dir(&snapshots).into_iter().flatten().flatten() {
            let path = snapshot.path().join(file);
            let Ok(about) = path.symlink_metadata() else {
                continue;
            };
            match about.is_symlink() {
                true => blobs.extend(path.canonicalize().ok()),
                false => freed += about.len(),
            }
            fs::remove_file(&path).map_err(|error| Error::File { path, error })?;
        }
        for blob in blobs {
            if !self.is_linked(repo, &blob) && blob.starts_with(self.canonical(repo)) {
                freed += blob.metadata().map_or(0, |about| about.len());
                match fs::remove_file(&blob) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(Error::File { path: blob, error });
                    }
                    _ => {}
                }
            }
        }
        Ok(freed)
    }

    /// Removes a repository with all its files; returns whether there was one.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(&self, repo: &str) -> Result<bool, Error> {
        let path = self.repository(repo);
        match is_repository(repo).then(|| fs::remove_dir_all(&path)) {
            Some(Ok(())) => Ok(true),
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::File { path, error })
            }
            _ => Ok(false),
        }
    }

    fn canonical(&self, repo: &str) -> PathBuf {
        let path = self.repository(repo);
        path.canonicalize().unwrap_or(path)
    }

    /// Returns whether a file of any snapshot is this blob.
    fn is_linked(&self, repo: &str, blob: &Path) -> bool {
        let snapshots = self.repository(repo).join("snapshots");
        let snapshots = fs::read_dir(snapshots).into_iter().flatten().flatten();
        snapshots.into_iter().any(|snapshot| {
            let commit = snapshot.file_name().to_string_lossy().into_owned();
            let mut files = self.files(repo, &commit).into_iter();
            files.any(|file| {
                let path = snapshot.path().join(file);
                path.canonicalize().is_ok_and(|path| path == *blob)
            })
        })
    }
}

/// Returns the name of a repository's folder.
fn folder_name(repo: &str) -> String {
    format!("models--{}", repo.replace('/', "--"))
}

/// Returns the repository of a folder's name.
fn repository_name(folder: &str) -> Option<String> {
    let repo = folder.strip_prefix("models--")?.replacen("--", "/", 1);
    is_repository(&repo).then_some(repo)
}

/// Returns whether this is the id of a commit.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.chars().all(|c| c.is_ascii_hexdigit())
}

/// Creates the folder of a file.
pub(crate) fn create_folder_of(path: &Path) -> Result<(), Error> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|error| Error::File {
        path: folder.to_owned(),
        error,
    })
}

#[cfg(unix)]
fn link_to(target: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

#[cfg(windows)]
fn link_to(target: &Path, path: &Path) -> io::Result<()> {
    // a relative target of a link needs the system's separators
    let target: PathBuf = target.iter().collect();
    std::os::windows::fs::symlink_file(target, path)
}
