//! Cached pages as the prefix cache on disk sees them, and pages that come back from it.

use super::{KvCacheManager, SequenceKv};
use crate::kv::PAGE;
use crate::kv::block_pool::PageId;
use crate::kv::disk::{Digest, PageParts};
use crate::kv::prefix_cache::{NodeId, PageKey, PrefixKey};

/// A page of the prefix cache in memory.
#[derive(Debug)]
pub(crate) struct CachedPage {
    node: NodeId,
    /// Its tokens.
    pub key: PageKey,
    /// Its page in each group of layers, where it has one.
    pub pages: Vec<Option<PageId>>,
    /// State of recurrent layers at its end, if that is cached.
    pub state: Option<PageId>,
    /// Its digest, if that is known.
    pub digest: Option<Digest>,
}

impl KvCacheManager {
    /// Returns the cached pages of a sequence, in order.
    pub(crate) fn cached_pages(&self, kv: &SequenceKv) -> Vec<CachedPage> {
        let nodes = std::iter::successors(kv.node, |&node| self.tree.ancestor(node, 1));
        let page = |node| {
            let (key, digest) = self.tree.contents(node);
            CachedPage {
                node,
                key: *key,
                pages: self.tree.pages(node).to_vec(),
                state: self.tree.state(node),
                digest: digest.copied(),
            }
        };
        let mut pages: Vec<CachedPage> = nodes.map(page).collect();
        pages.reverse();
        pages
    }

    /// Records the digest of a page that [`KvCacheManager::cached_pages`] has just returned.
    pub(crate) fn set_digest(&mut self, page: &CachedPage, digest: Digest) {
        self.tree.set_digest(page.node, digest);
    }

    /// Returns how many pages can follow a sequence's last one, where `parts` is what there is of
    /// each: up to one after which there are a state and all pages that the next token attends to,
    /// and no more than there is room for.
    pub(crate) fn restorable(&self, kv: &SequenceKv, parts: &[PageParts]) -> usize {
        let mut from = self.first_places(kv);
        let (before, room) = (kv.len / PAGE, self.available());
        let mut restorable = 0;
        for (i, parts) in parts.iter().enumerate().take(room) {
            let places = before + i + 1;
            self.pass_missing(&mut from, *parts, places);
            let mut both = from.iter().zip(&self.windows);
            let has_pages = both.all(|(from, window)| *from <= window.first_needed(places * PAGE));
            if has_pages && (self.states.is_none() || parts.has(PageParts::STATE)) {
                restorable = i + 1;
            }
        }
        restorable
    }

    /// Returns the parts of page `place` that a sequence of `len` positions keeps.
    pub(crate) fn kept_parts(&self, place: usize, len: usize) -> PageParts {
        let groups = self.windows.iter().enumerate();
        let kept = groups.filter(|(_, window)| place >= window.first_kept(len));
        let pages = kept.fold(PageParts::NONE, |parts, (group, _)| {
            parts.with(PageParts::group(group))
        });
        match self.states.is_some() && (place + 1) * PAGE == len {
            true => pages.with(PageParts::STATE),
            false => pages,
        }
    }

    /// Adds pages that were reserved and filled after a sequence's last one to the prefix cache,
    /// where `parts` is what there is of each.
    pub(crate) fn keep_restored(
        &mut self,
        kv: &mut SequenceKv,
        prefix: &PrefixKey<'_>,
        parts: &[PageParts],
    ) {
        let mut from = self.first_places(kv);
        let before = kv.len / PAGE;
        for (i, parts) in parts.iter().enumerate() {
            self.pass_missing(&mut from, *parts, before + i + 1);
        }
        kv.advance((before + parts.len()) * PAGE);
        let both = kv.tables.iter_mut().zip(&mut self.pools);
        for ((table, pool), from) in both.zip(from) {
            table.pass(pool, from);
        }
        self.keep(kv, prefix);
    }

    /// Evicts the cached pages of a text that no sequence uses and no other text shares; returns
    /// how many.
    pub(crate) fn erase(&mut self, prefix: &PrefixKey<'_>) -> usize {
        let mut kv = SequenceKv::default();
        self.adopt(&mut kv, prefix, prefix.tokens.len());
        let nodes = std::iter::successors(kv.node, |&node| self.tree.ancestor(node, 1));
        let nodes: Vec<NodeId> = nodes.collect();
        self.truncate(&mut kv, 0);
        let mut erased = 0;
        for node in nodes {
            self.erase_answers(node);
            if self.tree.has_children(node) || !self.is_idle(self.tree.pages(node)) {
                break;
            }
            self.remove(node);
            erased += 1;
        }
        erased
    }

    /// Evicts the pages after a node that have generated tokens and no user.
    fn erase_answers(&mut self, node: NodeId) {
        for child in self.tree.generated_children(node) {
            self.erase_answers(child);
            if !self.tree.has_children(child) && self.is_idle(self.tree.pages(child)) {
                self.remove(child);
            }
        }
    }

    /// Returns for each group the place from which on a sequence has all pages.
    fn first_places(&self, kv: &SequenceKv) -> Vec<usize> {
        let passed = |group| kv.tables.get(group).map_or(0, super::BlockTable::passed);
        (0..self.pools.len()).map(passed).collect()
    }

    /// Moves these places behind a page that is missing, the last of `places`.
    fn pass_missing(&self, from: &mut [usize], parts: PageParts, places: usize) {
        for (group, from) in from.iter_mut().enumerate() {
            if !parts.has(PageParts::group(group)) {
                *from = places;
            }
        }
    }
}
