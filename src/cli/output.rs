//! Rules of what a command may write to, checked before it works and again when it writes.
//!
//! A new name, an empty file, or an older output of the same kind, recognized by its content, may
//! be written to. Any other file takes `--force`, and an input of this run is refused even then,
//! whatever name or link leads to it. [`gguf_rs_lite::replace_file`] does the writing: links are
//! followed; pipes and devices are written to, never replaced.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, OpenOptions, Value, behind_links, check_replaceable};
use octavo_analysis::eval::{base, is_small};
use octavo_analysis::report::Page;
use octavo_analysis::shards;

use super::failure::Failure;
use super::terminal;

/// Producer's name in files of embeddings, by which these are recognized: see [`Kind::Embeddings`].
pub(super) const EMBEDDINGS_PRODUCER: &str = "octavo embed";
/// Producer's name in an image's files, by which these are recognized: see [`Kind::Image`].
pub(super) const IMAGE_PRODUCER: &str = "octavo inspect";

/// Number of first bytes that are enough to recognize a file.
const BEGINNING: u64 = 4096;

/// Kind of an output; decides which files are older outputs of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A model. Models that were made here look like any others, so none is replaced without
    /// `--force`.
    Model,
    /// An importance matrix in GGUF form.
    Imatrix,
    /// A file as llama-results writes it.
    Logits,
    /// A file of `octavo embed`.
    Embeddings,
    /// An image as `octavo inspect` writes it.
    Image,
    /// A base of log-probabilities.
    Base,
    /// A shard of a measurement.
    Shard,
    /// A page with this title.
    Page(&'static str),
    /// Types of tensors for llama-quantize. Anyone may have written it by hand, so none is replaced
    /// without `--force`.
    Recipe,
    /// One of the files that a comparison with llama.cpp keeps in its folder.
    Kept,
    /// A golden of a suite.
    Golden,
    /// The note of how a golden was made.
    Note,
}

impl Kind {
    fn name(self) -> String {
        match self {
            Kind::Model => "model".to_owned(),
            Kind::Imatrix => "importance matrix".to_owned(),
            Kind::Logits => "file of logits".to_owned(),
            Kind::Embeddings => "file of embeddings".to_owned(),
            Kind::Image => "image's file".to_owned(),
            Kind::Base => "file of log-probabilities".to_owned(),
            Kind::Shard => "shard of a measurement".to_owned(),
            Kind::Page(title) => format!("page of {title}"),
            Kind::Recipe => "file of tensor types".to_owned(),
            Kind::Kept => "comparison with llama.cpp".to_owned(),
            Kind::Golden => "golden".to_owned(),
            Kind::Note => "note of how a golden was made".to_owned(),
        }
    }

    /// Returns whether the file is an older one of this kind; false if it cannot be read.
    fn is_older(self, path: &Path) -> bool {
        let gguf = || Gguf::open(path, &OpenOptions::default()).ok();
        match self {
            Kind::Model | Kind::Recipe => false,
            Kind::Imatrix => gguf().is_some_and(
                |g| matches!(g.get("general.type"), Some(Value::Str(name)) if name == b"imatrix"),
            ),
            Kind::Logits | Kind::Golden => gguf().is_some_and(|g| {
                g.get("path_model").is_some()
                    && ["tokens", "logits"]
                        .iter()
                        .all(|name| g.tensor(name).is_some())
            }),
            Kind::Embeddings => says(path, EMBEDDINGS_PRODUCER),
            Kind::Image => says(path, IMAGE_PRODUCER),
            Kind::Base => beginning(path).starts_with(&base::MAGIC) || is_small(path),
            Kind::Shard => beginning(path).starts_with(shards::MAGIC.as_bytes()),
            Kind::Page(title) => Page::is_beginning(title, &beginning(path)),
            // they are in the same folder as the command line that made them
            Kind::Kept => ran_llama_results(&path.with_file_name("commands.txt")),
            Kind::Note => {
                ran_llama_results(path)
                    || beginning(path).starts_with(b"octavo ")
                        && says(path, "diff --suite SUITE --bless")
            }
        }
    }

    /// Returns whether the output is read again, so that it cannot be a pipe or a device.
    fn is_read_again(self) -> bool {
        matches!(self, Kind::Kept | Kind::Golden | Kind::Note)
    }
}

fn beginning(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BEGINNING).read_to_end(&mut bytes));
    if read.is_ok() { bytes } else { Vec::new() }
}

fn says(path: &Path, words: &str) -> bool {
    String::from_utf8_lossy(&beginning(path)).contains(words)
}

/// Returns whether the file contains the command line of a comparison with llama.cpp.
fn ran_llama_results(path: &Path) -> bool {
    says(path, "llama-results") && says(path, " -ctk f32 -ctv f32 -fa off ")
}

/// Identity of a file, independent of the name or link that leads to it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    #[cfg(unix)]
    numbers: (u64, u64),
    #[cfg(not(unix))]
    path: PathBuf,
}

impl Identity {
    /// Returns the identity of a file; `None` if it does not exist.
    #[cfg(unix)]
    fn of(path: &Path) -> Option<Identity> {
        use std::os::unix::fs::MetadataExt;
        path.metadata().ok().map(|m| Identity {
            numbers: (m.dev(), m.ino()),
        })
    }

    #[cfg(not(unix))]
    fn of(path: &Path) -> Option<Identity> {
        path.canonicalize().ok().map(|path| Identity { path })
    }
}

/// Input files of a run.
#[derive(Debug, Default)]
pub(super) struct Inputs(Vec<Identity>);

impl Inputs {
    /// Adds a file, or stdin for `-`. A missing file is ignored here; the code that opens it
    /// reports it.
    pub(super) fn file(mut self, path: Option<&Path>) -> Inputs {
        let path = path.map(|path| {
            if path.as_os_str() == "-" {
                Path::new("/dev/stdin")
            } else {
                path
            }
        });
        self.0.extend(path.and_then(Identity::of));
        self
    }

    /// Adds a model: a file, all parts of a split one, or all files of a folder.
    pub(super) fn model(mut self, path: Option<&Path>) -> Inputs {
        let Some(path) = path else { return self };
        self.0
            .extend(parts(path).iter().filter_map(|part| Identity::of(part)));
        self.file(Some(path))
    }

    /// Adds several files.
    pub(super) fn files<'p>(self, paths: impl IntoIterator<Item = &'p PathBuf>) -> Inputs {
        paths
            .into_iter()
            .fold(self, |inputs, path| inputs.file(Some(path)))
    }

    fn has(&self, path: &Path) -> bool {
        Identity::of(path).is_some_and(|identity| self.0.contains(&identity))
    }
}

/// Returns the files that a model is made of, in the order of their names.
pub(super) fn files_of(path: &Path) -> Vec<PathBuf> {
    let mut files = parts(path);
    files.retain(|file| file.is_file());
    files.sort();
    match files.is_empty() {
        true => vec![path.to_owned()],
        false => files,
    }
}

/// Returns the files beside the first part that are named like parts of the same model, or those in
/// a folder.
fn parts(path: &Path) -> Vec<PathBuf> {
    let listed = |folder: &Path| {
        fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    if path.is_dir() {
        return listed(path).collect();
    }
    let name = |path: &Path| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    // NAME-00001-of-00003.gguf
    let own = name(path);
    let Some((stem, of)) = own.rsplit_once("-of-") else {
        return Vec::new();
    };
    let Some((stem, _)) = stem.rsplit_once('-') else {
        return Vec::new();
    };
    let folder = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let is_part = |path: &PathBuf| {
        let name = name(path);
        name.starts_with(&format!("{stem}-")) && name.ends_with(&format!("-of-{of}"))
    };
    listed(folder).filter(is_part).collect()
}

/// An output of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output<'a> {
    pub(super) path: &'a Path,
    pub(super) kind: Kind,
    /// Whether any file may be replaced that this run does not read.
    pub(super) force: bool,
    pub(super) inputs: &'a Inputs,
}

impl Output<'_> {
    /// Refuses to write where that would destroy something or cannot work. Changes nothing.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let refused = |what: &str| Err(Failure::Input(format!("{}: {what}", self.path.display())));
        if self.inputs.has(self.path) {
            return refused("is the input itself: expected another file");
        }
        if let Ok(there) = self.path.metadata() {
            if there.is_file() {
                self.check_file(&there)?;
            } else if self.kind.is_read_again() && !there.is_dir() {
                return refused(
                    "expected a file, which is read again, got a device, a pipe or a socket",
                );
            }
        }
        check_replaceable(self.path)?;
        tell_of_left_overs();
        Ok(())
    }

    fn check_file(&self, there: &Metadata) -> Result<(), Failure> {
        let refused = |what: &str| Err(Failure::Input(format!("{}: {what}", self.path.display())));
        if Identity::of(Path::new("/dev/stdout")) == Identity::of(self.path) && cfg!(unix) {
            // the text would go to the old file, which no name leads to any more
            return refused("is where the text goes that is printed: expected another file");
        }
        if self.force {
            return Ok(());
        }
        if there.permissions().readonly() {
            return refused("is write-protected: --force replaces it all the same");
        }
        if there.len() == 0 || self.kind.is_older(self.path) {
            return Ok(());
        }
        match self.kind {
            Kind::Model => refused("is there already: --force replaces it"),
            kind => refused(&format!(
                "expected a new name or that of an older {}, got a file of another kind: --force \
                 replaces it",
                kind.name()
            )),
        }
    }

    /// Checks once more and writes all bytes.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.write_with(|out| out.write_all(bytes))
    }

    /// Checks once more and writes by calling `write`.
    pub(super) fn write_with(
        &self,
        write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
    ) -> Result<(), Failure> {
        self.check()?;
        let file = || self.path.display().to_string();
        gguf_rs_lite::replace_file(self.path, |out| {
            write(out).map_err(|source| gguf_rs_lite::Error::Io {
                file: file(),
                action: "write it",
                source,
            })
        })?;
        Ok(())
    }
}

/// Reports the files left by killed runs that this run has removed.
pub(super) fn tell_of_left_overs() {
    let removed = gguf_rs_lite::removed_left_overs();
    terminal::warn(removed.iter().map(|path| {
        format!(
            "{}: removed: a run that was ended before it could do so had left it",
            path.display()
        )
    }));
}

/// Returns the place that a path leads to, however it is written.
pub(super) fn place(path: &Path) -> Result<PathBuf, Failure> {
    let path = behind_links(path)?;
    let folder = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    // a folder that does not exist yet holds no links
    let folder = folder
        .canonicalize()
        .or_else(|_| std::path::absolute(folder))?;
    Ok(folder.join(path.file_name().unwrap_or_default()))
}

/// Refuses outputs that would overwrite each other.
pub(super) fn all_different(paths: &[&Path]) -> Result<(), Failure> {
    let places = paths
        .iter()
        .map(|path| place(path))
        .collect::<Result<Vec<_>, _>>()?;
    for (i, path) in paths.iter().enumerate() {
        if places[..i].contains(&places[i]) {
            return Err(Failure::Input(format!(
                "{}: is another output of this run: expected two",
                path.display()
            )));
        }
    }
    Ok(())
}

/// Refuses a folder that exists: folders are created, never replaced.
pub(super) fn check_new_folder(path: &Path) -> Result<(), Failure> {
    if path.exists() {
        return Err(Failure::Input(format!(
            "{}: is there already: expected a new folder",
            path.display()
        )));
    }
    Ok(check_replaceable(path)?)
}
