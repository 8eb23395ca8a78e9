//! A file of the prefix cache: a run of pages.
//!
//! A head with what each page is and where its bytes are, and a checksum of the head; then the
//! bytes, each page's with a checksum of its own, so that a page is read without the others.
//! Numbers are little-endian.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use sha2::{Digest as _, Sha256};

use super::digest::Digest;
use crate::adapters::AdapterKey;
use crate::image_registry::{FIRST_IMAGE_TOKEN, is_image_token};
use crate::kv::PAGE;
use crate::kv::prefix_cache::PageKey;

/// First bytes of a file.
pub(super) const MAGIC: [u8; 8] = *b"OCTAVOKV";

/// Version of the format.
const VERSION: u32 = 1;

/// Bytes before the first page's description: magic, version, number of pages, identity.
const START: usize = 8 + 4 + 4 + 32;

/// Bytes of a page's description: digest, tokens, which are generated, parts, start and number of
/// its bytes, their checksum.
const ENTRY: usize = 32 + 4 * PAGE + 2 + 8 + 8 + 8 + 32;

const CHECKSUM: usize = 32;

/// Parts of a page with the bytes of each.
pub(crate) type PartBytes = Vec<(PageParts, Vec<u8>)>;

/// Parts of a page, as bits: its keys and values in each group of layers, and the state of
/// recurrent layers at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageParts(u64);

impl PageParts {
    /// No part.
    pub(crate) const NONE: PageParts = PageParts(0);
    /// The state of recurrent layers.
    pub(crate) const STATE: PageParts = PageParts(1 << 63);

    /// Returns the part of a group.
    ///
    /// # Panics
    /// If there are more groups than bits.
    pub(crate) fn group(group: usize) -> PageParts {
        assert!(group < 63, "a group of layers without a bit");
        PageParts(1 << group)
    }

    /// Returns the parts of both.
    pub(crate) fn with(self, other: PageParts) -> PageParts {
        PageParts(self.0 | other.0)
    }

    /// Returns the parts that are not in `other`.
    pub(crate) fn without(self, other: PageParts) -> PageParts {
        PageParts(self.0 & !other.0)
    }

    /// Returns whether all parts of `other` are among these.
    pub(crate) fn has(self, other: PageParts) -> bool {
        other.0 & !self.0 == 0
    }

    /// Returns whether there is no part.
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns each part, in the order of their bytes.
    fn each(self) -> impl Iterator<Item = PageParts> {
        let bits = (0..64).map(|bit| PageParts(1 << bit));
        bits.filter(move |bit| self.has(*bit))
    }
}

/// Bytes of the parts of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageSizes {
    /// Keys and values, for each group of layers.
    pub groups: Vec<usize>,
    /// State of recurrent layers; 0 without.
    pub state: usize,
}

impl PageSizes {
    /// Returns the bytes of a part; `None` if a page has none such.
    fn part(&self, part: PageParts) -> Option<usize> {
        match part {
            PageParts::STATE => Some(self.state).filter(|bytes| *bytes > 0),
            PageParts(bits) => self.groups.get(bits.trailing_zeros() as usize).copied(),
        }
    }

    /// Returns the bytes of some parts; `None` if a page has none such.
    pub(crate) fn of(&self, parts: PageParts) -> Option<usize> {
        parts.each().map(|part| self.part(part)).sum()
    }

    /// Cuts bytes into parts.
    pub(super) fn cut<'a>(
        &self,
        parts: PageParts,
        mut bytes: &'a [u8],
    ) -> Option<Vec<(PageParts, &'a [u8])>> {
        let mut cut = Vec::new();
        for part in parts.each() {
            let (own, rest) = bytes.split_at_checked(self.part(part)?)?;
            cut.push((part, own));
            bytes = rest;
        }
        Some(cut)
    }
}

/// A page to write.
#[derive(Clone, Debug)]
pub(crate) struct SavedPage {
    /// Its digest.
    pub digest: Digest,
    /// Its tokens.
    pub key: PageKey,
    /// Parts of the page that are there.
    pub parts: PageParts,
    /// The bytes of these parts, in order.
    pub bytes: Vec<u8>,
}

/// A page of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub digest: Digest,
    pub key: PageKey,
    pub parts: PageParts,
    start: u64,
    bytes: u64,
    checksum: Digest,
}

impl Entry {
    /// Returns whether it has these tokens, as far as a file knows them.
    pub(super) fn is_of(&self, key: &PageKey) -> bool {
        self.key == known(key)
    }
}

/// Reasons why a file, or a page of it, is not used.
#[derive(Debug)]
pub(super) enum Unusable {
    /// It is not what was written.
    Damaged,
    /// It is of another version or model.
    Foreign,
    /// It cannot be read.
    Unreadable,
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Unusable {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Unusable::Damaged,
            _ => Unusable::Unreadable,
        }
    }
}

/// Returns a page's tokens as a file has them: ids of images mean nothing in another program.
fn known(key: &PageKey) -> PageKey {
    let token = |token: u32| match is_image_token(token) {
        true => FIRST_IMAGE_TOKEN,
        false => token,
    };
    PageKey {
        tokens: key.tokens.map(token),
        generated: key.generated,
        adapters: AdapterKey::default(),
    }
}

/// Returns the bytes of a file of these pages.
pub(super) fn size(pages: &[SavedPage]) -> u64 {
    let bytes: usize = pages.iter().map(|page| page.bytes.len()).sum();
    (START + pages.len() * ENTRY + CHECKSUM + bytes) as u64
}

/// Writes a file; returns its pages and its bytes.
pub(super) fn write(
    out: &mut dyn Write,
    identity: &Digest,
    pages: &[SavedPage],
) -> io::Result<(Vec<Entry>, u64)> {
    let mut start = (START + pages.len() * ENTRY + CHECKSUM) as u64;
    let mut entries = Vec::with_capacity(pages.len());
    for page in pages {
        let bytes = page.bytes.len() as u64;
        entries.push(Entry {
            digest: page.digest,
            key: known(&page.key),
            parts: page.parts,
            start,
            bytes,
            checksum: Sha256::digest(&page.bytes).into(),
        });
        start += bytes;
    }
    let head = head(identity, &entries);
    out.write_all(&head)?;
    for page in pages {
        out.write_all(&page.bytes)?;
    }
    Ok((entries, start))
}

/// Returns the name of a file's contents, without its model's.
pub(super) fn content_name(pages: &[SavedPage]) -> Digest {
    let mut hash = Sha256::new();
    for page in pages {
        hash.update(page.digest);
        hash.update(page.parts.0.to_le_bytes());
    }
    hash.finalize().into()
}

fn head(identity: &Digest, entries: &[Entry]) -> Vec<u8> {
    let mut head = Vec::with_capacity(START + entries.len() * ENTRY + CHECKSUM);
    head.extend_from_slice(&MAGIC);
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&(entries.len() as u32).to_le_bytes());
    head.extend_from_slice(identity);
    for entry in entries {
        head.extend_from_slice(&entry.digest);
        let tokens = entry.key.tokens.iter();
        tokens.for_each(|token| head.extend_from_slice(&token.to_le_bytes()));
        head.extend_from_slice(&entry.key.generated.to_le_bytes());
        for n in [entry.parts.0, entry.start, entry.bytes] {
            head.extend_from_slice(&n.to_le_bytes());
        }
        head.extend_from_slice(&entry.checksum);
    }
    let checksum: Digest = Sha256::digest(&head).into();
    head.extend_from_slice(&checksum);
    head
}

/// Takes the next bytes of a head.
fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Unusable> {
    let (own, rest) = bytes.split_first_chunk().ok_or(Unusable::Damaged)?;
    *bytes = rest;
    Ok(*own)
}

/// Reads and checks what a file of `len` bytes has.
pub(super) fn read_head(
    file: &mut File,
    len: u64,
    identity: &Digest,
    sizes: &PageSizes,
) -> Result<Vec<Entry>, Unusable> {
    let mut start = [0; START];
    file.read_exact(&mut start)?;
    let rest = &mut &start[..];
    if take(rest)? != MAGIC {
        return Err(Unusable::Damaged);
    }
    if u32::from_le_bytes(take(rest)?) != VERSION {
        return Err(Unusable::Foreign);
    }
    let n = u32::from_le_bytes(take(rest)?) as usize;
    // checked before anything of that size is read
    if n == 0 || (START + CHECKSUM) as u64 + n as u64 * ENTRY as u64 > len {
        return Err(Unusable::Damaged);
    }
    let mut all = start.to_vec();
    all.resize(START + n * ENTRY + CHECKSUM, 0);
    file.read_exact(&mut all[START..])?;
    let (head, checksum) = all.split_at(all.len() - CHECKSUM);
    if Sha256::digest(head).as_slice() != checksum {
        return Err(Unusable::Damaged);
    }
    if take(rest)? != *identity {
        return Err(Unusable::Foreign);
    }
    let (mut rest, mut end) = (&head[START..], all.len() as u64);
    let entries = (0..n).map(|_| entry(&mut rest, sizes, &mut end));
    let entries = entries.collect::<Result<Vec<Entry>, Unusable>>()?;
    match end == len {
        true => Ok(entries),
        false => Err(Unusable::Damaged),
    }
}

/// Reads the description of a page whose bytes start at `end`, and moves that behind them.
fn entry(rest: &mut &[u8], sizes: &PageSizes, end: &mut u64) -> Result<Entry, Unusable> {
    let digest = take(rest)?;
    let mut tokens = [0; PAGE];
    for token in &mut tokens {
        *token = u32::from_le_bytes(take(rest)?);
    }
    let generated = u16::from_le_bytes(take(rest)?);
    let parts = PageParts(u64::from_le_bytes(take(rest)?));
    let start = u64::from_le_bytes(take(rest)?);
    let bytes = u64::from_le_bytes(take(rest)?);
    // pages of a model that is recurrent alone have no bytes
    let expected = sizes.of(parts).filter(|_| !parts.is_empty());
    if start != *end || expected.map(|n| n as u64) != Some(bytes) {
        return Err(Unusable::Damaged);
    }
    *end += bytes;
    Ok(Entry {
        digest,
        key: PageKey {
            tokens,
            generated,
            // the digest tells pages of different adapters apart
            adapters: AdapterKey::default(),
        },
        parts,
        start,
        bytes,
        checksum: take(rest)?,
    })
}

/// Reads and checks the bytes of a page.
pub(super) fn read_page(file: &mut File, entry: &Entry) -> Result<Vec<u8>, Unusable> {
    file.seek(SeekFrom::Start(entry.start))?;
    // as many as the file's size was checked for
    let mut bytes = vec![0; entry.bytes as usize];
    file.read_exact(&mut bytes)?;
    match Sha256::digest(&bytes).as_slice() == entry.checksum {
        true => Ok(bytes),
        false => Err(Unusable::Damaged),
    }
}
