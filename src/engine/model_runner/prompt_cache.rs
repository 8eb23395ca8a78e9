//! The prefix cache on disk: hands pages of prompts to it, and brings them back.

use std::sync::Arc;

use octavo_kernels::KvStore;

use super::ModelRunner;
use crate::kv::{
    CachedPage, Digest, DiskCache, MAX_RUN, MIN_RUN, PAGE, PageParts, PageSizes, PartBytes,
    PrefixKey, SavedPage, SequenceKv, SlotError, SlotPages, page_digest, root,
};

/// A page of a prompt, and its digest.
type Named = (CachedPage, Digest);

impl ModelRunner {
    /// Keeps the prefix cache on disk too.
    pub(crate) fn set_disk(&mut self, disk: Arc<DiskCache>) {
        self.disk = Some(disk);
    }

    /// Returns the prefix cache on disk, if there is one.
    pub(crate) fn disk(&self) -> Option<&Arc<DiskCache>> {
        self.disk.as_ref()
    }

    /// Hands the cached pages of a sequence that are not on disk to the thread that writes them:
    /// all of them if its prompt is computed (`is_whole`), otherwise once they are many. Pages with
    /// generated tokens are not kept: no prompt begins with them.
    pub(crate) fn save(&mut self, kv: &SequenceKv, prefix: &PrefixKey<'_>, is_whole: bool) {
        let Some(disk) = self.disk.clone() else {
            return;
        };
        let named = self.named(disk.root(prefix.salt), kv);
        let n = named.len();
        let (mut missing, mut there) = (Vec::new(), Vec::new());
        for (i, (page, digest)) in named.into_iter().enumerate() {
            let parts = parts(&page, i + 1 == n).without(disk.parts(&digest, true));
            match parts.is_empty() {
                true => there.push(digest),
                false => missing.push((page, digest, parts)),
            }
        }
        if missing.is_empty() || (!is_whole && missing.len() < MIN_RUN) {
            return;
        }
        there.iter().rev().for_each(|digest| disk.touch(digest));
        for run in missing.chunks(MAX_RUN) {
            if !disk.has_room() {
                disk.count_dropped(run.len());
                continue;
            }
            let pages = run.iter().map(|page| self.saved(page));
            disk.write(pages.collect());
        }
    }

    /// Returns the pages of a text that are cached, or on disk, with all that there is of them.
    ///
    /// # Errors
    /// If there are none, or the pages are not in the CPU's memory.
    pub(crate) fn slot_pages(
        &mut self,
        (identity, sizes): (Digest, PageSizes),
        prefix: &PrefixKey<'_>,
    ) -> Result<SlotPages, SlotError> {
        if self.backend.kv_store().is_none() {
            return Err(SlotError::Unsupported);
        }
        self.restore(prefix, prefix.tokens.len());
        let mut kv = SequenceKv::default();
        self.kv_cache.adopt(&mut kv, prefix, prefix.tokens.len());
        let named = self.named(root(&identity, prefix.salt), &kv);
        let n = named.len();
        let all = named.into_iter().enumerate().map(|(i, (page, digest))| {
            let parts = parts(&page, i + 1 == n);
            (page, digest, parts)
        });
        let pages: Vec<_> = all.collect();
        let pages: Vec<SavedPage> = pages.iter().map(|page| self.saved(page)).collect();
        self.kv_cache.truncate(&mut kv, 0);
        match pages.is_empty() {
            true => Err(SlotError::Empty),
            false => Ok(SlotPages {
                identity,
                sizes,
                pages,
            }),
        }
    }

    /// Puts the pages of a slot into the prefix cache, for texts with this salt; returns how many
    /// tokens of them are there then.
    ///
    /// # Errors
    /// If they belong to texts with another salt.
    pub(crate) fn put_slot(
        &mut self,
        slot: &SlotPages,
        prefix: &PrefixKey<'_>,
    ) -> Result<usize, SlotError> {
        let end = prefix.tokens.len();
        let digests = self.digests(root(&slot.identity, prefix.salt), prefix, end);
        let own = slot.pages.iter().map(|page| page.digest);
        if !digests.into_iter().eq(own) {
            return Err(SlotError::Foreign);
        }
        let mut kv = SequenceKv::default();
        self.kv_cache.adopt(&mut kv, prefix, end);
        let before = kv.len() / PAGE;
        let mut parts: Vec<PageParts> = (before..slot.pages.len())
            .map(|place| slot.parts(place))
            .collect();
        parts.truncate(self.kv_cache.restorable(&kv, &parts));
        if !parts.is_empty() {
            let mut read = |place, wanted| slot.cut(place, wanted);
            if let Some(parts) = self.fill(&mut kv, &parts, &mut read) {
                self.kv_cache.keep_restored(&mut kv, prefix, &parts);
            }
        }
        let restored = kv.len();
        self.kv_cache.truncate(&mut kv, 0);
        Ok(restored)
    }

    /// Returns the cached pages of a sequence with their digests, after the one of its salt, up to
    /// the first with a generated token or an image that is known no more.
    fn named(&mut self, mut digest: Digest, kv: &SequenceKv) -> Vec<Named> {
        let mut named = Vec::new();
        for page in self.kv_cache.cached_pages(kv) {
            if page.key.has_generated() {
                break;
            }
            let own = page.digest;
            let Some(next) = own.or_else(|| page_digest(&digest, &page.key, &self.images)) else {
                break;
            };
            digest = next;
            if own.is_none() {
                self.kv_cache.set_digest(&page, digest);
            }
            named.push((page, digest));
        }
        named
    }

    /// Reads what the disk has of a text, beyond what memory has and up to position `end`, into the
    /// prefix cache. What cannot be read is not there.
    pub(crate) fn restore(&mut self, prefix: &PrefixKey<'_>, end: usize) {
        let Some(disk) = self.disk.clone() else {
            return;
        };
        disk.refresh();
        let mut kv = SequenceKv::default();
        self.kv_cache.adopt(&mut kv, prefix, end);
        let before = kv.len() / PAGE;
        let digests = self.digests(disk.root(prefix.salt), prefix, end);
        let digests = digests.get(before..).unwrap_or_default();
        let mut tried = Vec::new();
        loop {
            let parts = digests.iter().map(|digest| disk.parts(digest, false));
            let mut parts: Vec<PageParts> = parts.take_while(|parts| !parts.is_empty()).collect();
            parts.truncate(self.kv_cache.restorable(&kv, &parts));
            if parts.is_empty() || parts == tried {
                break;
            }
            let mut read = |place: usize, wanted| {
                disk.read(&digests[place - before], &prefix.page(place)?, wanted)
            };
            if let Some(parts) = self.fill(&mut kv, &parts, &mut read) {
                self.kv_cache.keep_restored(&mut kv, prefix, &parts);
                disk.count_restored(parts.len() * PAGE);
                let read = digests[..parts.len()].iter().rev();
                read.for_each(|digest| disk.touch(digest));
                break;
            }
            // a file is gone, so there is less to read; or there is no room
            self.kv_cache.truncate(&mut kv, before * PAGE);
            tried = parts;
        }
        self.kv_cache.truncate(&mut kv, 0);
    }

    /// Returns the digests of a text's full pages up to position `end`, after the one of its salt.
    fn digests(&self, mut digest: Digest, prefix: &PrefixKey<'_>, end: usize) -> Vec<Digest> {
        let mut digests = Vec::new();
        for place in 0..end / PAGE {
            let key = prefix.page(place).filter(|key| !key.has_generated());
            let Some(next) = key.and_then(|key| page_digest(&digest, &key, &self.images)) else {
                break;
            };
            digest = next;
            digests.push(digest);
        }
        digests
    }

    /// Reserves pages after a sequence's last one, of which there is what `parts` says, and has
    /// `read` get what the sequence keeps of each; returns what that is, or `None` if there is no
    /// room or a page cannot be read.
    fn fill(
        &mut self,
        kv: &mut SequenceKv,
        parts: &[PageParts],
        read: &mut dyn FnMut(usize, PageParts) -> Option<PartBytes>,
    ) -> Option<Vec<PageParts>> {
        let before = kv.len() / PAGE;
        let end = (before + parts.len()) * PAGE;
        // without a slot for the state there may be none for shorter texts either
        self.kv_cache.reserve(kv, end).ok()?;
        let mut filled = Vec::with_capacity(parts.len());
        for (place, parts) in (before..).zip(parts) {
            let kept = self.kv_cache.kept_parts(place, end);
            let wanted = kept.without(kept.without(*parts));
            let store = self.backend.kv_store()?;
            for (part, bytes) in read(place, wanted)? {
                put(store, kv, place, part, &bytes);
            }
            filled.push(wanted);
        }
        Some(filled)
    }

    /// Copies what is to be written of a page out of memory.
    fn saved(&mut self, (page, digest, parts): &(CachedPage, Digest, PageParts)) -> SavedPage {
        let store = self.backend.kv_store();
        let store = store.expect("pages in the CPU's memory, as for any that are saved");
        let mut bytes = Vec::new();
        for (group, page) in page.pages.iter().enumerate() {
            if let Some(page) = page.filter(|_| parts.has(PageParts::group(group))) {
                store.read_page(group, page.0, &mut bytes);
            }
        }
        if let Some(slot) = page.state.filter(|_| parts.has(PageParts::STATE)) {
            store.read_state(slot.0, &mut bytes);
        }
        SavedPage {
            digest: *digest,
            key: page.key,
            parts: *parts,
            bytes,
        }
    }
}

/// Returns what is cached of a page; of states, the one after the last page of a text alone.
fn parts(page: &CachedPage, is_last: bool) -> PageParts {
    let groups = page.pages.iter().enumerate();
    let cached = groups.filter(|(_, page)| page.is_some());
    let pages = cached.fold(PageParts::NONE, |parts, (group, _)| {
        parts.with(PageParts::group(group))
    });
    match is_last && page.state.is_some() {
        true => pages.with(PageParts::STATE),
        false => pages,
    }
}

/// Writes a part of the page at a place to the memory reserved for it.
fn put(store: &mut KvStore, kv: &SequenceKv, place: usize, part: PageParts, bytes: &[u8]) {
    if part == PageParts::STATE {
        let len = (place + 1) * PAGE;
        let (_, next) = kv.states();
        let state = next.iter().find(|state| state.len == len);
        let state = state.expect("a slot for the state after the last page");
        store.write_state(state.slot.0, bytes);
        return;
    }
    for (group, table) in kv.tables().iter().enumerate() {
        if part == PageParts::group(group) {
            let page = table.page(place).expect("a page that was reserved");
            store.write_page(group, page.0, bytes);
        }
    }
}
