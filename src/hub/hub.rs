//! The hub: lists repositories, chooses files and keeps them in the cache.

use std::env;
use std::path::PathBuf;

use serde::Deserialize;

use crate::Error;
use crate::cache::{self, Cache, create_folder_of, is_commit};
use crate::choice;
use crate::client::{Client, Retries, Subject};
use crate::download::{Hash, RemoteFile};
use crate::name::{FileSelector, RemoteModel, is_path};
use crate::segments::Connections;

/// Address of the hub, unless the environment names another one.
const ENDPOINT: &str = "https://huggingface.co";

/// Most pages of a listing that are read: each has some 1,000 files.
const MAX_PAGES: usize = 1000;

/// Progress of fetching a model.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The hub, or the server of a file, does not answer; the cache is used as it is.
    HubIsAway {
        /// The reason.
        error: &'a Error,
    },
    /// A file is downloaded.
    Downloading {
        /// Its name.
        file: &'a str,
        /// Bytes that are there.
        done: u64,
        /// Bytes of all of it, if known.
        total: Option<u64>,
    },
}

/// Receives events.
pub type EventSink<'a> = dyn FnMut(Event<'_>) + 'a;

/// The hub and its cache.
pub struct Hub {
    pub(crate) client: Client,
    pub(crate) cache: Cache,
    pub(crate) is_offline: bool,
}

/// Files of a repository at a commit.
struct Listing {
    commit: String,
    files: Vec<ListedFile>,
}

struct ListedFile {
    path: String,
    /// Size and hash; `None` for a file that is only known to the cache.
    about: Option<(u64, Hash)>,
}

#[derive(Deserialize)]
struct ModelInfo {
    sha: String,
}

#[derive(Deserialize)]
struct TreeEntry {
    r#type: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

impl Hash {
    /// Returns the name of a blob with this hash.
    fn id(&self) -> Option<&str> {
        match self {
            Hash::Sha256(id) | Hash::Git(id) => Some(id),
            Hash::Unknown => None,
        }
    }
}

impl Hub {
    /// Takes the hub, the token and the cache that the environment names: `HF_ENDPOINT`, `HF_TOKEN`
    /// or the token that `hf auth login` keeps, `HF_HUB_CACHE` or `HF_HOME`. `HF_HUB_OFFLINE` makes
    /// it offline.
    ///
    /// # Errors
    /// If nothing names a folder for the cache.
    pub fn from_env() -> Result<Hub, Error> {
        let endpoint = env::var("HF_ENDPOINT").ok().filter(|url| !url.is_empty());
        let is_set =
            |value: String| matches!(&*value.to_ascii_lowercase(), "1" | "on" | "yes" | "true");
        let hub = Hub::new(
            endpoint.as_deref().unwrap_or(ENDPOINT),
            cache::token(),
            Cache::from_env()?,
            Retries::default(),
        )?;
        Ok(hub.offline(env::var("HF_HUB_OFFLINE").is_ok_and(is_set)))
    }

    /// Takes a hub at an address.
    ///
    /// # Errors
    /// If the system's certificates cannot be read.
    pub fn new(
        endpoint: &str,
        token: Option<String>,
        cache: Cache,
        retries: Retries,
    ) -> Result<Hub, Error> {
        Ok(Hub {
            client: Client::new(endpoint, token, retries)?,
            cache,
            is_offline: false,
        })
    }

    /// Uses another token.
    #[must_use]
    pub fn token(mut self, token: String) -> Hub {
        self.client.token = Some(token);
        self
    }

    /// Uses other numbers of connections.
    #[must_use]
    pub fn connections(mut self, connections: Connections) -> Hub {
        self.client.connections = connections;
        self
    }

    /// Makes no request if `is_offline`: only cached models can be had.
    #[must_use]
    pub fn offline(mut self, is_offline: bool) -> Hub {
        self.is_offline |= is_offline;
        self
    }

    /// Returns the cache.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Returns the path of a model on disk: of a GGUF file, of a split model its first part, or of
    /// a folder with safetensors. Files that the cache lacks are downloaded.
    ///
    /// # Errors
    /// If there is no such model, or it cannot be downloaded.
    pub fn model(&self, model: &RemoteModel, sink: &mut EventSink<'_>) -> Result<PathBuf, Error> {
        match model {
            RemoteModel::Url(url) => self.file_at(url, sink),
            RemoteModel::Repository {
                repo,
                revision,
                file,
            } => {
                let listing = self.list(repo, revision.as_deref(), sink)?;
                self.listed_model(repo, &listing, file, sink)
            }
        }
    }

    /// Returns the path of a model's image encoder: of a repository the one beside its model, as
    /// [`Hub::sibling`] finds it, else the file itself.
    ///
    /// # Errors
    /// As [`Hub::model`], and [`Error::NoFile`] if there is none.
    pub fn image_encoder(
        &self,
        model: &RemoteModel,
        sink: &mut EventSink<'_>,
    ) -> Result<PathBuf, Error> {
        let RemoteModel::Repository {
            repo,
            file: FileSelector::Quantization(_),
            ..
        } = model
        else {
            return self.model(model, sink);
        };
        let missing = || Error::NoFile {
            repo: repo.clone(),
            requested: "image encoder (mmproj)".to_owned(),
            there: "expected one beside the model".to_owned(),
        };
        self.sibling(model, "mmproj", sink)?.ok_or_else(missing)
    }

    /// Does the same, and fetches the model's sibling as [`Hub::sibling`] does, if it has one.
    ///
    /// # Errors
    /// As [`Hub::model`].
    pub fn model_and_sibling(
        &self,
        model: &RemoteModel,
        word: &str,
        sink: &mut EventSink<'_>,
    ) -> Result<(PathBuf, Option<PathBuf>), Error> {
        let RemoteModel::Repository {
            repo,
            revision,
            file,
        } = model
        else {
            return Ok((self.model(model, sink)?, None));
        };
        let listing = self.list(repo, revision.as_deref(), sink)?;
        let path = self.listed_model(repo, &listing, file, sink)?;
        let sibling = self.listed_sibling(repo, &listing, (file, word), sink)?;
        Ok((path, sibling))
    }

    fn listed_model(
        &self,
        repo: &str,
        listing: &Listing,
        file: &FileSelector,
        sink: &mut EventSink<'_>,
    ) -> Result<PathBuf, Error> {
        let paths = listing.paths();
        match choice::model(&paths, file) {
            Some(chosen) => self.fetch_all(repo, listing, &choice::parts(&paths, chosen), sink),
            None if *file == FileSelector::Quantization(None) && is_folder(&paths) => {
                self.folder(repo, listing, sink)
            }
            None => Err(no_file(repo, &paths, file)),
        }
    }

    fn listed_sibling(
        &self,
        repo: &str,
        listing: &Listing,
        (file, word): (&FileSelector, &str),
        sink: &mut EventSink<'_>,
    ) -> Result<Option<PathBuf>, Error> {
        let paths = listing.paths();
        let chosen = choice::model(&paths, file);
        let sibling = chosen.and_then(|chosen| choice::sibling(&paths, chosen, word));
        let path = sibling.map(|path| self.fetch_all(repo, listing, &[path], sink));
        path.transpose()
    }

    /// Returns the path of a model's sibling, such as its image encoder (`mmproj`): of those whose
    /// names contain `word`, the one in the nearest folder with the nearest quantization.
    ///
    /// # Errors
    /// As [`Hub::model`].
    pub fn sibling(
        &self,
        model: &RemoteModel,
        word: &str,
        sink: &mut EventSink<'_>,
    ) -> Result<Option<PathBuf>, Error> {
        let RemoteModel::Repository {
            repo,
            revision,
            file,
        } = model
        else {
            return Ok(None);
        };
        let listing = self.list(repo, revision.as_deref(), sink)?;
        self.listed_sibling(repo, &listing, (file, word), sink)
    }

    /// Lists a repository; falls back to what is cached of it if the hub does not answer.
    fn list(
        &self,
        repo: &str,
        revision: Option<&str>,
        sink: &mut EventSink<'_>,
    ) -> Result<Listing, Error> {
        let revision = revision.unwrap_or("main");
        let cached = || {
            let commit = self.cache.commit(repo, revision)?;
            let files = self.cache.files(repo, &commit);
            let listed = |path| ListedFile { path, about: None };
            (!files.is_empty()).then(|| Listing {
                commit,
                files: files.into_iter().map(listed).collect(),
            })
        };
        if self.is_offline {
            return cached().ok_or_else(|| Error::NotCached {
                repo: repo.to_owned(),
                cache: self.cache.path().to_owned(),
            });
        }
        match self.list_online(repo, revision) {
            Ok(listing) => {
                self.cache.note_commit(repo, revision, &listing.commit)?;
                Ok(listing)
            }
            Err(error) if is_away(&error) => match cached() {
                Some(listing) => {
                    sink(Event::HubIsAway { error: &error });
                    Ok(listing)
                }
                None => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    fn list_online(&self, repo: &str, revision: &str) -> Result<Listing, Error> {
        let endpoint = &self.client.endpoint;
        let subject = Subject::Repository(repo, revision);
        let in_url = revision.replace('/', "%2F");
        let url = format!("{endpoint}/api/models/{repo}/revision/{in_url}");
        let (ModelInfo { sha: commit }, _) = self.client.json(&url, subject)?;
        if !is_commit(&commit) {
            let expected = "the id of a commit as `sha`";
            return Err(Error::Answer { url, expected });
        }
        let mut files = Vec::new();
        let mut next = Some(format!(
            "{endpoint}/api/models/{repo}/tree/{commit}?recursive=true"
        ));
        for _ in 0..MAX_PAGES {
            let Some(url) = next else { break };
            let (entries, more): (Vec<TreeEntry>, _) = self.client.json(&url, subject)?;
            let is_file = |entry: &TreeEntry| entry.r#type == "file" && is_path(&entry.path);
            files.extend(entries.into_iter().filter(is_file).map(ListedFile::of));
            next = more;
        }
        Ok(Listing { commit, files })
    }

    /// Fetches files of a repository; returns the path of the first.
    fn fetch_all(
        &self,
        repo: &str,
        listing: &Listing,
        paths: &[&str],
        sink: &mut EventSink<'_>,
    ) -> Result<PathBuf, Error> {
        for path in paths {
            let file = listing.files.iter().find(|file| file.path == **path);
            self.fetch(
                repo,
                &listing.commit,
                file.expect("a file of the listing"),
                sink,
            )?;
        }
        Ok(self.cache.snapshot(repo, &listing.commit).join(paths[0]))
    }

    fn fetch(
        &self,
        repo: &str,
        commit: &str,
        file: &ListedFile,
        sink: &mut EventSink<'_>,
    ) -> Result<(), Error> {
        let path = self.cache.snapshot(repo, commit).join(&file.path);
        let Some((size, hash)) = file.about.as_ref().filter(|_| !path.is_file()) else {
            return Ok(());
        };
        let id = hash.id().unwrap_or_default();
        let blob = self.cache.blob(repo, id);
        create_folder_of(&blob)?;
        let _lock = self.cache.lock(repo, id)?;
        // another process may have downloaded it meanwhile; without links there is no blob then
        if path.is_file() {
            return Ok(());
        }
        if !blob.is_file() {
            let endpoint = &self.client.endpoint;
            let url = format!("{endpoint}/{repo}/resolve/{commit}/{}", encoded(&file.path));
            let remote = RemoteFile {
                name: &file.path,
                url: &url,
                size: Some(*size),
                hash: hash.clone(),
                etag: None,
            };
            let name = file.path.rsplit('/').next().unwrap_or(&file.path);
            let subject = Subject::Repository(repo, commit);
            self.client
                .download(&remote, &blob, subject, &mut progress(name, sink))?;
        }
        self.cache.link(repo, commit, &file.path, id)
    }

    /// Fetches a repository with safetensors; returns its folder.
    fn folder(
        &self,
        repo: &str,
        listing: &Listing,
        sink: &mut EventSink<'_>,
    ) -> Result<PathBuf, Error> {
        let paths: Vec<&str> = listing
            .paths()
            .into_iter()
            .filter(|path| choice::is_of_folder(path))
            .collect();
        self.fetch_all(repo, listing, &paths, sink)?;
        Ok(self.cache.snapshot(repo, &listing.commit))
    }
}

impl Listing {
    fn paths(&self) -> Vec<&str> {
        self.files.iter().map(|file| &*file.path).collect()
    }
}

impl ListedFile {
    fn of(entry: TreeEntry) -> ListedFile {
        let is_hex = |id: &str| !id.is_empty() && id.chars().all(|c| c.is_ascii_hexdigit());
        let about = match entry.lfs {
            Some(lfs) if is_hex(&lfs.oid) => Some((lfs.size, Hash::Sha256(lfs.oid))),
            None if is_hex(&entry.oid) => Some((entry.size, Hash::Git(entry.oid))),
            _ => None,
        };
        ListedFile {
            path: entry.path,
            about,
        }
    }
}

/// Returns the receiver of a file's progress, which makes events of it.
pub(crate) fn progress(file: &str, sink: &mut EventSink<'_>) -> impl FnMut(u64, Option<u64>) {
    move |done, total| sink(Event::Downloading { file, done, total })
}

/// Returns whether an error says that the hub does not answer, rather than that it refuses.
fn is_away(error: &Error) -> bool {
    match error {
        Error::Connection { .. } | Error::TooMany { .. } => true,
        Error::Status { status, .. } => *status >= 500,
        _ => false,
    }
}

/// Returns whether these are the files of a model folder.
fn is_folder(paths: &[&str]) -> bool {
    paths.contains(&"config.json") && paths.iter().any(|path| path.ends_with(".safetensors"))
}

fn no_file(repo: &str, paths: &[&str], selector: &FileSelector) -> Error {
    let models: Vec<&str> = paths
        .iter()
        .filter(|path| choice::is_model(path))
        .copied()
        .collect();
    let there = match &models[..] {
        [] => "it has no GGUF file and is no model folder".to_owned(),
        models => format!("it has {}", models.join(", ")),
    };
    Error::NoFile {
        repo: repo.to_owned(),
        requested: match selector {
            FileSelector::Path(path) => format!("file {path}"),
            FileSelector::Quantization(Some(tag)) => format!("GGUF file of type {tag}"),
            FileSelector::Quantization(None) => "model".to_owned(),
        },
        there,
    }
}

/// Returns a path as part of an address.
fn encoded(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    let one = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    path.bytes().map(one).collect()
}
