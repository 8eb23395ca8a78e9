//! Files of slots: all pages of one text, written and read when somebody asks for it.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use super::digest::Digest;
use super::file::{self, PageParts, PageSizes, PartBytes, SavedPage, Unusable};
use crate::kv::PAGE;

/// Reasons why a file of a slot is refused.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A file that holds something else is not written over.
    #[error("a file of that name is there, and is not one of a slot")]
    Exists,
    /// Not a file of a slot, or not as it was written.
    #[error("it is no file of a slot, or is damaged")]
    Damaged,
    /// Pages that this model would not compute.
    #[error("its pages are of another model, KV cache type, instruction set, program or API key")]
    Foreign,
    /// Nothing to save.
    #[error("the slot has no full page of {PAGE} tokens")]
    Empty,
    /// The pages are not in the memory of one CPU process, or were not to be saved.
    #[error("this model was loaded without a folder for slots")]
    Unsupported,
}

/// The pages of a slot.
#[derive(Clone, Debug)]
pub struct SlotPages {
    pub(crate) identity: Digest,
    pub(crate) sizes: PageSizes,
    pub(crate) pages: Vec<SavedPage>,
}

impl SlotPages {
    /// Returns the number of tokens that they hold.
    pub fn n_tokens(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// Returns the tokens that they hold.
    pub(crate) fn tokens(&self) -> Vec<u32> {
        let pages = self.pages.iter();
        pages.flat_map(|page| page.key.tokens).collect()
    }

    /// Writes them to a file, whole or not at all; returns its bytes.
    ///
    /// # Errors
    /// If it cannot be written, or another file has that name.
    pub fn write(&self, path: &Path) -> Result<u64, SlotError> {
        let is_other = match File::open(path) {
            Ok(mut old) => {
                let mut start = [0; file::MAGIC.len()];
                old.read_exact(&mut start).is_err() || start != file::MAGIC
            }
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        };
        if is_other {
            return Err(SlotError::Exists);
        }
        let temporary = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
        let mut out = BufWriter::new(temporary.as_file());
        let (_, bytes) = file::write(&mut out, &self.identity, &self.pages)?;
        out.flush()?;
        drop(out);
        temporary.persist(path).map_err(|error| error.error)?;
        Ok(bytes)
    }

    /// Reads and checks a file, for a model of this identity; returns its bytes too.
    pub(crate) fn read(
        path: &Path,
        identity: Digest,
        sizes: PageSizes,
    ) -> Result<(SlotPages, u64), SlotError> {
        let mut opened = File::open(path)?;
        let bytes = opened.metadata()?.len();
        let refused = |error| match error {
            Unusable::Foreign => SlotError::Foreign,
            Unusable::Damaged => SlotError::Damaged,
            Unusable::Unreadable => SlotError::Io(io::ErrorKind::Other.into()),
        };
        let entries = file::read_head(&mut opened, bytes, &identity, &sizes).map_err(refused)?;
        let page = |entry: &file::Entry| {
            Ok(SavedPage {
                digest: entry.digest,
                key: entry.key,
                parts: entry.parts,
                bytes: file::read_page(&mut opened, entry).map_err(refused)?,
            })
        };
        let pages = entries.iter().map(page).collect::<Result<_, SlotError>>()?;
        let slot = SlotPages {
            identity,
            sizes,
            pages,
        };
        Ok((slot, bytes))
    }

    /// Returns what there is of page `place`.
    pub(crate) fn parts(&self, place: usize) -> PageParts {
        self.pages
            .get(place)
            .map_or(PageParts::NONE, |page| page.parts)
    }

    /// Returns parts of page `place`, each with its bytes.
    pub(crate) fn cut(&self, place: usize, wanted: PageParts) -> Option<PartBytes> {
        let page = self.pages.get(place)?;
        let parts = self.sizes.cut(page.parts, &page.bytes)?.into_iter();
        let wanted = parts.filter(|(part, _)| wanted.has(*part));
        Some(wanted.map(|(part, bytes)| (part, bytes.to_vec())).collect())
    }
}
