//! The prefix cache on disk: pages of prompts that outlive the program, and memory.
//!
//! A page is named by a digest of everything that decides its bits: the model, how the program
//! computes, and every token up to its end ([`digest`]). Runs of pages are files
//! ([`file`](mod@file)) of a folder ([`folder`]) that several programs may share. A thread writes
//! them; whatever cannot be read is not in the cache.

mod digest;
mod file;
mod folder;
mod slot;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use digest::{Digest, page_digest, root};
pub(crate) use file::{PageParts, PageSizes, PartBytes, SavedPage};
use folder::Folder;
pub use slot::{SlotError, SlotPages};
use writer::Writer;

use super::prefix_cache::PageKey;

/// Maximum number of pages in a file.
pub(crate) const MAX_RUN: usize = 64;

/// Pages of a prompt that is not computed whole to write at once: fewer would be many small files.
pub(crate) const MIN_RUN: usize = 32;

/// Where to keep the prefix cache, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptCacheOptions {
    /// Folder, which several programs may share; created if it is missing.
    pub dir: PathBuf,
    /// Maximum size of its files in bytes, whatever models they are of.
    pub max_bytes: u64,
}

/// State of the prefix cache on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptCacheStats {
    /// Files in the folder, of all models.
    pub files: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// Tokens whose pages were read from disk.
    pub restored_tokens: u64,
    /// Pages written.
    pub saved_pages: u64,
    /// Pages that were not written because too many were waiting for the disk.
    pub dropped_pages: u64,
    /// Damaged files that were removed.
    pub damaged_files: u64,
    /// Failures to write a file, or to remove one.
    pub failures: u64,
    /// The last of these failures.
    pub last_failure: Option<String>,
}

/// Counts that grow.
#[derive(Debug, Default)]
struct Counts {
    restored_tokens: AtomicU64,
    saved_pages: AtomicU64,
    dropped_pages: AtomicU64,
    damaged_files: AtomicU64,
    failures: AtomicU64,
    last_failure: Mutex<Option<String>>,
}

impl Counts {
    fn fail(&self, what: &str, error: &io::Error) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        *lock(&self.last_failure) = Some(format!("{what}: {error}"));
    }
}

/// The prefix cache on disk, of one model. Dropping it writes what is waiting.
pub(crate) struct DiskCache {
    identity: Digest,
    folder: Arc<Mutex<Folder>>,
    counts: Arc<Counts>,
    writer: Writer,
}

impl DiskCache {
    /// Opens a folder for a model of this identity, whose pages have these sizes.
    ///
    /// # Errors
    /// If the folder cannot be created or listed, or a thread cannot be started.
    pub(crate) fn open(
        options: &PromptCacheOptions,
        identity: Digest,
        sizes: PageSizes,
    ) -> io::Result<DiskCache> {
        let counts = Arc::new(Counts::default());
        let folder = Folder::open(options, identity, sizes, Arc::clone(&counts))?;
        let folder = Arc::new(Mutex::new(folder));
        let writer = Writer::start(Arc::clone(&folder), Arc::clone(&counts))?;
        Ok(DiskCache {
            identity,
            folder,
            counts,
            writer,
        })
    }

    /// Returns the digest before the first page of texts with this salt.
    pub(crate) fn root(&self, salt: Option<&str>) -> Digest {
        root(&self.identity, salt)
    }

    /// Looks for files that other programs have written or deleted.
    pub(crate) fn refresh(&self) {
        lock(&self.folder).refresh();
    }

    /// Returns what is stored of a page, or will be: what waits to be written counts only if
    /// `with_waiting`.
    pub(crate) fn parts(&self, page: &Digest, with_waiting: bool) -> PageParts {
        lock(&self.folder).parts(page, with_waiting)
    }

    /// Marks the files of a page as just used.
    pub(crate) fn touch(&self, page: &Digest) {
        lock(&self.folder).touch(page);
    }

    /// Reads parts of a page, each with its bytes; `None` if one of them cannot be read. A file
    /// that was damaged is gone then.
    pub(crate) fn read(
        &self,
        page: &Digest,
        key: &PageKey,
        wanted: PageParts,
    ) -> Option<PartBytes> {
        lock(&self.folder).read(page, key, wanted)
    }

    /// Counts tokens whose pages were read.
    pub(crate) fn count_restored(&self, tokens: usize) {
        let restored = &self.counts.restored_tokens;
        restored.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// Returns whether the thread that writes can take more pages.
    pub(crate) fn has_room(&self) -> bool {
        self.writer.has_room()
    }

    /// Counts pages that are not written for lack of room.
    pub(crate) fn count_dropped(&self, pages: usize) {
        let dropped = &self.counts.dropped_pages;
        dropped.fetch_add(pages as u64, Ordering::Relaxed);
    }

    /// Hands pages to the thread that writes, at most [`MAX_RUN`].
    pub(crate) fn write(&self, pages: Vec<SavedPage>) {
        lock(&self.folder).expect(&pages);
        self.writer.write(pages);
    }

    /// Returns the counts, and what the folder has.
    pub(crate) fn stats(&self) -> PromptCacheStats {
        let (files, bytes) = lock(&self.folder).size();
        let counts = &self.counts;
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
        PromptCacheStats {
            files,
            bytes,
            restored_tokens: count(&counts.restored_tokens),
            saved_pages: count(&counts.saved_pages),
            dropped_pages: count(&counts.dropped_pages),
            damaged_files: count(&counts.damaged_files),
            failures: count(&counts.failures),
            last_failure: lock(&counts.last_failure).clone(),
        }
    }
}

/// Locks a mutex, even a poisoned one: a panic while a folder is listed leaves a shorter list.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
