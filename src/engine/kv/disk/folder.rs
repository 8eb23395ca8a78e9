//! The folder of the prefix cache: which pages its files have, and which files to delete first.
//!
//! Other programs write and delete files at any time. A name never gets other contents, so that a
//! list of names that is too old only misses pages, or finds that a file is gone.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use super::digest::Digest;
use super::file::{self, Entry, PageParts, PageSizes, PartBytes, SavedPage, Unusable};
use super::{Counts, PromptCacheOptions, lock};
use crate::kv::prefix_cache::PageKey;

/// Extension of files of pages.
const EXTENSION: &str = "kv";

/// Names of files that are being written.
const TEMPORARY: (&str, &str) = (".octavo-", ".tmp");

/// Age of a file's time of use from which a use changes it.
const TOUCH: Duration = Duration::from_secs(60);

/// Age of a folder's last change from which its time tells all later changes from it.
const SETTLED: Duration = Duration::from_secs(1);

/// Returns digits of a digest that are enough for a name.
pub(super) fn digits(digest: &Digest) -> String {
    digest[..16].iter().map(|b| format!("{b:02x}")).collect()
}

/// A file of the folder.
struct KnownFile {
    bytes: u64,
    used: SystemTime,
    /// Its pages; none if it is of another model.
    pages: Vec<Digest>,
}

/// A page of a file.
#[derive(Clone)]
struct Place {
    file: Arc<str>,
    entry: Entry,
}

/// Index of the folder's files and pages.
pub(super) struct Folder {
    dir: PathBuf,
    max_bytes: u64,
    identity: Digest,
    sizes: PageSizes,
    counts: Arc<Counts>,
    files: HashMap<Arc<str>, KnownFile>,
    /// Size of all files.
    bytes: u64,
    pages: HashMap<Digest, Vec<Place>>,
    /// Parts that wait to be written.
    waiting: HashMap<Digest, PageParts>,
    /// When the folder had changed last, as of the list of its files.
    changed: Option<SystemTime>,
}

impl Folder {
    /// Opens a folder, and creates it if it is missing.
    pub(super) fn open(
        options: &PromptCacheOptions,
        identity: Digest,
        sizes: PageSizes,
        counts: Arc<Counts>,
    ) -> io::Result<Folder> {
        fs::create_dir_all(&options.dir)?;
        let mut folder = Folder {
            dir: options.dir.clone(),
            max_bytes: options.max_bytes,
            identity,
            sizes,
            counts,
            files: HashMap::new(),
            bytes: 0,
            pages: HashMap::new(),
            waiting: HashMap::new(),
            changed: None,
        };
        folder.remove_orphans()?;
        folder.list()?;
        Ok(folder)
    }

    /// Returns the number of files, and their bytes.
    pub(super) fn size(&self) -> (u64, u64) {
        (self.files.len() as u64, self.bytes)
    }

    /// Lists the folder again if it has changed.
    pub(super) fn refresh(&mut self) {
        let changed = fs::metadata(&self.dir).and_then(|data| data.modified());
        let is_settled = |time: SystemTime| time.elapsed().is_ok_and(|age| age > SETTLED);
        let is_known = changed
            .as_ref()
            .is_ok_and(|time| Some(*time) == self.changed && is_settled(*time));
        if is_known {
            return;
        }
        if let Err(error) = self.list() {
            self.counts.fail(&self.dir.display().to_string(), &error);
        }
    }

    fn list(&mut self) -> io::Result<()> {
        self.changed = fs::metadata(&self.dir)
            .and_then(|data| data.modified())
            .ok();
        let mut gone: Vec<Arc<str>> = self.files.keys().cloned().collect();
        gone.sort_unstable();
        let mut new = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let name = path.file_name().and_then(OsStr::to_str);
            let (Some(name), true) = (name, path.extension() == Some(OsStr::new(EXTENSION))) else {
                continue;
            };
            match gone.binary_search_by(|known| (**known).cmp(name)) {
                Ok(at) => drop(gone.remove(at)),
                Err(_) => new.push(Arc::from(name)),
            }
        }
        gone.iter().for_each(|name| self.forget(name));
        new.into_iter().for_each(|name| self.discover(name));
        Ok(())
    }

    /// Reads the head of a new file.
    fn discover(&mut self, name: Arc<str>) {
        // one that is gone again, or that nobody may read, has no pages
        let Ok(mut opened) = File::open(self.dir.join(&*name)) else {
            return;
        };
        let Ok(data) = opened.metadata() else {
            return;
        };
        let bytes = data.len();
        let used = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let is_own = name.starts_with(&digits(&self.identity));
        let entries = match is_own {
            true => file::read_head(&mut opened, bytes, &self.identity, &self.sizes),
            false => Err(Unusable::Foreign),
        };
        match entries {
            Ok(entries) => self.add(name, entries, bytes, used),
            Err(Unusable::Damaged) => self.remove_damaged(&name),
            Err(Unusable::Foreign | Unusable::Unreadable) => {
                self.add(name, Vec::new(), bytes, used);
            }
        }
    }

    fn add(&mut self, name: Arc<str>, entries: Vec<Entry>, bytes: u64, used: SystemTime) {
        let pages = entries.iter().map(|entry| entry.digest).collect();
        let file = KnownFile { bytes, used, pages };
        if self.files.insert(Arc::clone(&name), file).is_some() {
            // written by another program too: the contents are the same
            return;
        }
        self.bytes += bytes;
        for entry in entries {
            let places = self.pages.entry(entry.digest).or_default();
            let file = Arc::clone(&name);
            places.push(Place { file, entry });
        }
    }

    fn forget(&mut self, name: &str) {
        let Some(file) = self.files.remove(name) else {
            return;
        };
        self.bytes -= file.bytes;
        for page in file.pages {
            if let Some(places) = self.pages.get_mut(&page) {
                places.retain(|place| &*place.file != name);
                if places.is_empty() {
                    self.pages.remove(&page);
                }
            }
        }
    }

    fn remove(&mut self, name: &str) {
        self.forget(name);
        match fs::remove_file(self.dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => self.counts.fail(name, &error),
            _ => {}
        }
    }

    fn remove_damaged(&mut self, name: &str) {
        self.counts.damaged_files.fetch_add(1, Ordering::Relaxed);
        self.remove(name);
    }

    /// Removes files that programs were writing when they ended: nobody holds their locks.
    fn remove_orphans(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_temporary = name
                .to_str()
                .is_some_and(|name| name.starts_with(TEMPORARY.0) && name.ends_with(TEMPORARY.1));
            if !is_temporary {
                continue;
            }
            // where it cannot be opened or locked, it is in use, or not ours to remove
            let is_left = File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
            if is_left && let Err(error) = fs::remove_file(entry.path()) {
                self.counts
                    .fail(&entry.path().display().to_string(), &error);
            }
        }
        Ok(())
    }

    /// Returns what is stored of a page, and, if asked, what waits to be written.
    pub(super) fn parts(&self, page: &Digest, with_waiting: bool) -> PageParts {
        let places = self.pages.get(page).into_iter().flatten();
        let stored = places.fold(PageParts::NONE, |parts, place| {
            parts.with(place.entry.parts)
        });
        match self.waiting.get(page) {
            Some(waiting) if with_waiting => stored.with(*waiting),
            _ => stored,
        }
    }

    /// Records pages that will be written.
    pub(super) fn expect(&mut self, pages: &[SavedPage]) {
        for page in pages {
            let parts = self.waiting.entry(page.digest).or_default();
            *parts = parts.with(page.parts);
        }
    }

    /// Marks the files of a page as just used.
    pub(super) fn touch(&mut self, page: &Digest) {
        for place in self.pages.get(page).into_iter().flatten() {
            let Some(file) = self.files.get_mut(&place.file) else {
                continue;
            };
            if file.used.elapsed().is_ok_and(|age| age < TOUCH) {
                continue;
            }
            file.used = SystemTime::now();
            let opened = File::options()
                .append(true)
                .open(self.dir.join(&*place.file));
            // for other programs; where the folder cannot be written, nothing is deleted either
            if let Ok(opened) = opened {
                let _ = opened.set_modified(file.used);
            }
        }
    }

    /// Reads parts of a page; `None` if one of them cannot be read.
    pub(super) fn read(
        &mut self,
        page: &Digest,
        key: &PageKey,
        wanted: PageParts,
    ) -> Option<PartBytes> {
        let (mut missing, mut found) = (wanted, Vec::new());
        while !missing.is_empty() {
            let has_one = |place: &&Place| place.entry.parts.without(missing) != place.entry.parts;
            let place = self.pages.get(page)?.iter().find(has_one)?.clone();
            match self.read_place(&place, key) {
                Ok(parts) => {
                    found.extend(parts.into_iter().filter(|(part, _)| missing.has(*part)));
                    missing = missing.without(place.entry.parts);
                }
                Err(Unusable::Damaged) => self.remove_damaged(&place.file),
                Err(Unusable::Foreign | Unusable::Unreadable) => self.forget(&place.file),
            }
        }
        Some(found)
    }

    fn read_place(&self, place: &Place, key: &PageKey) -> Result<PartBytes, Unusable> {
        if !place.entry.is_of(key) {
            return Err(Unusable::Damaged);
        }
        let mut opened = File::open(self.dir.join(&*place.file))?;
        let bytes = file::read_page(&mut opened, &place.entry)?;
        let parts = self.sizes.cut(place.entry.parts, &bytes);
        let parts = parts.ok_or(Unusable::Damaged)?.into_iter();
        Ok(parts.map(|(part, own)| (part, own.to_vec())).collect())
    }

    /// Deletes the least recently used files until `bytes` more fit; returns false if they never
    /// do.
    fn make_room(&mut self, bytes: u64) -> bool {
        if bytes > self.max_bytes {
            return false;
        }
        let fits = |folder: &Folder| folder.size().1 + bytes <= folder.max_bytes;
        if fits(self) {
            return true;
        }
        // other programs may have used them since
        for (name, file) in &mut self.files {
            let data = fs::metadata(self.dir.join(&**name));
            if let Ok(used) = data.and_then(|data| data.modified()) {
                file.used = used;
            }
        }
        while !fits(self) {
            let oldest = self.files.iter().min_by_key(|(_, file)| file.used);
            let Some(name) = oldest.map(|(name, _)| Arc::clone(name)) else {
                return false;
            };
            self.remove(&name);
        }
        true
    }
}

/// Writes a file of pages, whole or not at all.
pub(super) fn store(folder: &Mutex<Folder>, counts: &Counts, pages: &[SavedPage]) {
    let written = store_file(folder, pages);
    let mut folder = lock(folder);
    match written {
        Ok(Some((name, entries, bytes))) => {
            let saved = &counts.saved_pages;
            saved.fetch_add(entries.len() as u64, Ordering::Relaxed);
            folder.add(name, entries, bytes, SystemTime::now());
        }
        Ok(None) => {
            let dropped = &counts.dropped_pages;
            dropped.fetch_add(pages.len() as u64, Ordering::Relaxed);
        }
        Err(error) => counts.fail(&folder.dir.display().to_string(), &error),
    }
    for page in pages {
        folder.waiting.remove(&page.digest);
    }
}

/// Returns the file's name, pages and size; `None` if it is larger than the folder may be.
#[expect(clippy::type_complexity, reason = "used once, above")]
fn store_file(
    folder: &Mutex<Folder>,
    pages: &[SavedPage],
) -> io::Result<Option<(Arc<str>, Vec<Entry>, u64)>> {
    let (dir, identity) = {
        let mut folder = lock(folder);
        folder.refresh();
        if !folder.make_room(file::size(pages)) {
            return Ok(None);
        }
        (folder.dir.clone(), folder.identity)
    };
    let name = format!(
        "{}-{}",
        digits(&identity),
        digits(&file::content_name(pages))
    );
    let name = format!("{name}.{EXTENSION}");
    let mut builder = tempfile::Builder::new();
    builder.prefix(TEMPORARY.0).suffix(TEMPORARY.1);
    let temporary = builder.tempfile_in(&dir)?;
    // while it is locked, no other program takes it for left over; without locks, none removes it
    let _ = temporary.as_file().try_lock();
    let mut out = BufWriter::new(temporary.as_file());
    let (entries, bytes) = file::write(&mut out, &identity, pages)?;
    out.flush()?;
    drop(out);
    publish(temporary, &dir.join(&name))?;
    Ok(Some((Arc::from(name), entries, bytes)))
}

fn publish(temporary: tempfile::NamedTempFile, path: &Path) -> io::Result<()> {
    temporary
        .persist(path)
        .map(drop)
        .map_err(|error| error.error)
}
