//! Files at addresses: kept by the parts of their address, and fetched again when they change.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::cache::create_folder_of;
use crate::choice;
use crate::client::Subject;
use crate::download::{Hash, RemoteFile, incomplete};
use crate::hub::{Event, EventSink, Hub, progress};

impl Hub {
    /// Fetches the file at an address, of a split model all parts; returns the path of the first.
    pub(crate) fn file_at(&self, url: &str, sink: &mut EventSink<'_>) -> Result<PathBuf, Error> {
        let parts = choice::parts_at(url).into_iter();
        let paths = parts.map(|url| self.part_at(&url, sink));
        let mut paths: Vec<PathBuf> = paths.collect::<Result<_, Error>>()?;
        Ok(paths.swap_remove(0))
    }

    fn part_at(&self, url: &str, sink: &mut EventSink<'_>) -> Result<PathBuf, Error> {
        let path = self.place_of(url)?;
        let etag = etag_path(&path);
        if path.is_file() {
            // a server that names no version is not asked
            let known = fs::read_to_string(&etag).ok();
            let Some(known) = known.filter(|_| !self.is_offline) else {
                return Ok(path);
            };
            match self.client.is_unchanged(url, &known) {
                Ok(true) => return Ok(path),
                Ok(false) => {}
                Err(error) => {
                    sink(Event::HubIsAway { error: &error });
                    return Ok(path);
                }
            }
        } else if self.is_offline {
            let (repo, cache) = (url.to_owned(), self.cache.path().to_owned());
            return Err(Error::NotCached { repo, cache });
        }
        create_folder_of(&path)?;
        let name = file_name(url);
        let new_etag = etag_path(&incomplete(&path));
        let remote = RemoteFile {
            name: &name,
            url,
            size: None,
            hash: Hash::Unknown,
            etag: Some(&new_etag),
        };
        self.client
            .download(&remote, &path, Subject::File, &mut progress(&name, sink))?;
        let renamed = match new_etag.exists() {
            true => fs::rename(&new_etag, &etag),
            false => Ok(()),
        };
        renamed.map_err(|error| Error::File { path: etag, error })?;
        Ok(path)
    }

    /// Returns where the file at an address is kept: in a folder `octavo-urls` of the cache, by the
    /// parts of its address.
    fn place_of(&self, url: &str) -> Result<PathBuf, Error> {
        let (_, rest) = url.split_once("://").unwrap_or(("", url));
        let rest = rest.split(['?', '#']).next().unwrap_or(rest);
        let mut path = self.cache.path().join("octavo-urls");
        for part in rest.split('/') {
            let is_kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            let part: String = part
                .chars()
                .map(|c| if is_kept(c) { c } else { '_' })
                .collect();
            match &*part {
                "" | "." | ".." => {}
                part => path.push(part),
            }
        }
        match path.extension().is_some_and(|ending| ending == "gguf") {
            true => Ok(path),
            false => Err(Error::Name {
                name: url.to_owned(),
            }),
        }
    }
}

/// Returns where the ETag of the file at an address is kept.
fn etag_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".etag");
    PathBuf::from(name)
}

/// Returns the name of the file at an address.
fn file_name(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    Path::new(path).file_name().map_or_else(
        || url.to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}
