//! The KV cache manager: owns the pools of pages of each group of layers, the block tables of
//! sequences, and the prefix cache of pages that a later text may begin with.

mod persist;

use super::PAGE;
use super::block_pool::{BlockPool, OutOfPages, PageId};
use super::block_table::{BlockTable, PageCopy};
use super::prefix_cache::{NodeId, PrefixKey, PrefixTree};
use super::sliding_window::Window;
use super::state_checkpoints::{Checkpoint, StateCheckpoints, StatePool};

pub(crate) use persist::CachedPage;

/// Positions of one sequence, and the pages that hold them. Only [`KvCacheManager::truncate`] frees
/// pages: dropping a sequence does not.
#[derive(Debug, Default)]
pub(crate) struct SequenceKv {
    /// One for each group of the cache's layers; none before pages are first reserved.
    tables: Vec<BlockTable>,
    len: usize,
    /// Its last page that is in the prefix tree, and how many are.
    node: Option<NodeId>,
    n_cached_pages: usize,
    /// Its states of recurrent layers.
    checkpoints: StateCheckpoints,
}

impl SequenceKv {
    /// Returns the number of positions written.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns its number of pages in the group where it has most.
    pub(crate) fn n_pages(&self) -> usize {
        let pages = self.tables.iter().map(|table| table.pages().len());
        pages.max().unwrap_or(0)
    }

    /// Returns its block table in each group of layers.
    pub(crate) fn tables(&self) -> &[BlockTable] {
        &self.tables
    }

    /// Returns the states of recurrent layers that a step reads and writes: the slot of the one
    /// after [`SequenceKv::len`] positions, and the checkpoints that the step writes.
    pub(crate) fn states(&self) -> (Option<PageId>, &[Checkpoint]) {
        (self.checkpoints.current(), self.checkpoints.next())
    }

    /// Makes it keep the recurrent layers' state after `len` positions, so that
    /// [`KvCacheManager::truncate`] can go back to there however many positions follow. `len` is a
    /// multiple of [`PAGE`]: other states are not kept.
    pub(crate) fn pin_state(&mut self, len: usize) {
        self.checkpoints.pin(len);
    }

    /// Announces that the next step has draft tokens, the first of them after `from` positions, so
    /// that [`KvCacheManager::truncate`] can go back to after any of them.
    pub(crate) fn expect_drafts(&mut self, from: usize) {
        self.checkpoints.expect_drafts(from);
    }

    /// Marks positions up to `end` as written.
    ///
    /// # Panics
    /// If they were not reserved.
    pub(crate) fn advance(&mut self, end: usize) {
        self.checkpoints.advance(end);
        self.len = end;
        self.tables.iter_mut().for_each(|table| table.advance(end));
    }
}

/// A page of a group that must be copied before the step that writes to the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupCopy {
    /// Index of the group of layers.
    pub group: usize,
    /// Source and destination.
    pub copy: PageCopy,
}

/// Pages of a group: `free + cached + used = capacity`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Without an owner.
    pub free: usize,
    /// Kept for later texts (prefix cache); evicted when pages run out.
    pub cached: usize,
    /// In use by sequences.
    pub used: usize,
}

/// Manager of the KV cache: which sequence has which pages.
pub(crate) struct KvCacheManager {
    /// One for each group of the cache's layers: pages of different shapes cannot replace each
    /// other.
    pools: Vec<BlockPool>,
    /// Sliding window of each group.
    windows: Vec<Window>,
    /// Slots for states of recurrent layers; `None` if the model has no such layers.
    states: Option<StatePool>,
    tree: PrefixTree,
    evicted: u64,
}

impl KvCacheManager {
    /// Creates a manager with `n_pages` free pages for each group of layers. `windows` has the
    /// number of positions that a token attends to in each group, its own included; `None` for all.
    pub(crate) fn new(windows: &[Option<usize>], n_pages: u32) -> KvCacheManager {
        KvCacheManager {
            pools: windows.iter().map(|_| BlockPool::new(n_pages)).collect(),
            windows: windows.iter().copied().map(Window).collect(),
            states: None,
            tree: PrefixTree::default(),
            evicted: 0,
        }
    }

    /// Adds slots for states of recurrent layers; 0 for models without such layers.
    pub(crate) fn with_states(self, slots: u32) -> KvCacheManager {
        KvCacheManager {
            states: (slots > 0).then(|| StatePool::new(slots)),
            ..self
        }
    }

    /// Returns the number of free slots for states; `None` for models without recurrent layers.
    #[cfg(test)]
    pub(crate) fn free_states(&self) -> Option<usize> {
        Some(self.states.as_ref()?.free())
    }

    /// Returns the number of pages in each group.
    pub(crate) fn capacity(&self) -> usize {
        self.pools.first().map_or(0, BlockPool::capacity)
    }

    /// Returns the page counts of the group with the fewest available pages.
    pub(crate) fn counts(&self) -> PageCounts {
        let count = |pool: &BlockPool| PageCounts {
            free: pool.free_pages(),
            cached: pool.cached_pages(),
            used: pool.used_pages() - pool.cached_pages(),
        };
        let tightest = self
            .pools
            .iter()
            .map(count)
            .min_by_key(|c| c.free + c.cached);
        tightest.unwrap_or_default()
    }

    /// Returns the number of pages available in each group, counting cached ones that can be
    /// evicted.
    pub(crate) fn available(&self) -> usize {
        let counts = self.counts();
        counts.free + counts.cached
    }

    /// Returns the number of pages evicted so far, in each group.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Returns the pools, one for each group.
    #[cfg(test)]
    pub(crate) fn pools(&self) -> &[BlockPool] {
        &self.pools
    }

    /// Makes positions up to `end` writable by this sequence alone, evicting cached pages if need
    /// be; returns the pages to copy first. All or nothing.
    ///
    /// # Errors
    /// If there are not enough pages.
    pub(crate) fn reserve(
        &mut self,
        kv: &mut SequenceKv,
        end: usize,
    ) -> Result<Vec<GroupCopy>, OutOfPages> {
        kv.tables.resize_with(self.pools.len(), BlockTable::new);
        for (group, table) in kv.tables.iter().enumerate() {
            let needed = table.pages_needed(&self.pools[group], end);
            let is_short = |kv_cache: &KvCacheManager| kv_cache.pools[group].check(needed).is_err();
            while is_short(self) && (self.evict() || self.give_up_page(group)) {}
            self.pools[group].check(needed)?;
        }
        if let Some(states) = &mut self.states {
            let mut give_up = |states: &mut StatePool| self.tree.give_up_state(states);
            kv.checkpoints.reserve(states, kv.len, end, &mut give_up)?;
        }
        let mut copies = Vec::new();
        let both = kv.tables.iter_mut().zip(&mut self.pools);
        for (group, (table, pool)) in both.enumerate() {
            let of_table = table.reserve(pool, end)?;
            copies.extend(of_table.into_iter().map(|copy| GroupCopy { group, copy }));
        }
        Ok(copies)
    }

    /// Drops all but the first `n` positions and frees the pages that then hold none; returns how
    /// many positions are left. These may be fewer: with recurrent layers the sequence goes back to
    /// a checkpoint, because states cannot be undone, and if it has freed a page that the next
    /// token attends to, it begins anew.
    pub(crate) fn truncate(&mut self, kv: &mut SequenceKv, n: usize) -> usize {
        kv.len = self.has_state(kv, kv.len.min(n));
        if !self.has_windows(kv, kv.len) {
            kv.len = self.has_state(kv, 0);
        }
        let whole = kv.len / PAGE;
        if let Some(node) = kv.node.filter(|_| whole < kv.n_cached_pages) {
            kv.node = self.tree.ancestor(node, kv.n_cached_pages - whole);
            kv.n_cached_pages = whole;
        }
        for (table, pool) in kv.tables.iter_mut().zip(&mut self.pools) {
            table.truncate(pool, kv.len);
        }
        kv.len
    }

    /// Goes back to the last state after at most `n` positions; returns after how many it is. That
    /// is `n` without recurrent layers.
    fn has_state(&mut self, kv: &mut SequenceKv, n: usize) -> usize {
        match &mut self.states {
            Some(states) => kv.checkpoints.truncate(states, n),
            None => n,
        }
    }

    /// Returns whether a sequence has all pages that a token after `n` positions attends to.
    fn has_windows(&self, kv: &SequenceKv, n: usize) -> bool {
        let mut both = kv.tables.iter().zip(&self.windows);
        both.all(|(table, window)| table.passed() <= window.first_needed(n))
    }

    /// Frees the pages behind the windows of all tokens to come, but for a few, so that the
    /// sequence can go back a little. Those that are cached stay in the prefix tree.
    pub(crate) fn pass(&mut self, kv: &mut SequenceKv) {
        let both = kv.tables.iter_mut().zip(&mut self.pools);
        for ((table, pool), window) in both.zip(&self.windows) {
            table.pass(pool, window.first_kept(kv.len));
        }
    }

    /// Creates a second sequence with the same positions; the two share pages until one of them
    /// writes.
    pub(crate) fn fork(&mut self, kv: &SequenceKv) -> SequenceKv {
        let both = kv.tables.iter().zip(&mut self.pools);
        SequenceKv {
            tables: both.map(|(table, pool)| table.fork(pool)).collect(),
            len: kv.len,
            node: kv.node,
            n_cached_pages: kv.n_cached_pages,
            checkpoints: match &mut self.states {
                Some(states) => kv.checkpoints.fork(states),
                None => StateCheckpoints::default(),
            },
        }
    }

    /// Adopts cached pages that hold the next tokens of a text, up to position `end` at most;
    /// returns the number of positions adopted. Only for a sequence whose pages are all full and
    /// cached. With recurrent layers, the adopted prefix ends at a page whose state is cached; with
    /// windows, at one for which the window's pages are cached. Pages behind a window are not
    /// adopted.
    pub(crate) fn adopt(
        &mut self,
        kv: &mut SequenceKv,
        prefix: &PrefixKey<'_>,
        end: usize,
    ) -> usize {
        let before = kv.len;
        let nodes = self.adoptable(kv, prefix, end);
        let len = before + nodes.len() * PAGE;
        for node in nodes {
            self.tree.touch(node);
            kv.tables.resize_with(self.pools.len(), BlockTable::new);
            let of_groups = self.pools.iter_mut().zip(&self.windows);
            let of_node = of_groups.zip(self.tree.pages(node));
            for (table, ((pool, window), page)) in kv.tables.iter_mut().zip(of_node) {
                let is_kept = table.places() >= window.first_kept(len);
                table.adopt(pool, page.filter(|_| is_kept));
            }
            kv.node = Some(node);
            kv.n_cached_pages += 1;
            kv.len += PAGE;
        }
        if let (Some(states), Some(node)) = (&mut self.states, kv.node) {
            let state = self.tree.state(node).filter(|_| kv.len > before);
            if let Some(slot) = state {
                kv.checkpoints.adopt(states, kv.len, slot);
            }
        }
        kv.len - before
    }

    /// Returns the cached pages that a sequence can adopt, in order.
    fn adoptable(&self, kv: &SequenceKv, prefix: &PrefixKey<'_>, end: usize) -> Vec<NodeId> {
        let (mut nodes, mut at) = (Vec::new(), kv.node);
        if kv.len != kv.n_cached_pages * PAGE {
            return nodes;
        }
        while kv.len + (nodes.len() + 1) * PAGE <= end {
            let Some(key) = prefix.page(kv.n_cached_pages + nodes.len()) else {
                break;
            };
            let Some(node) = self.tree.child(at, prefix.salt, &key) else {
                break;
            };
            nodes.push(node);
            at = Some(node);
        }
        nodes.truncate(self.complete(kv, &nodes));
        nodes
    }

    /// Returns how many of the nodes after a sequence's last one it can adopt: up to one after
    /// which there are a state and all pages that the next token attends to.
    fn complete(&self, kv: &SequenceKv, nodes: &[NodeId]) -> usize {
        let passed = |group| kv.tables.get(group).map_or(0, BlockTable::passed);
        // for each group the place from which on no page is missing
        let mut from: Vec<usize> = (0..self.pools.len()).map(passed).collect();
        let mut complete = 0;
        for (i, &node) in nodes.iter().enumerate() {
            let places = kv.n_cached_pages + i + 1;
            for (from, page) in from.iter_mut().zip(self.tree.pages(node)) {
                *from = if page.is_some() { *from } else { places };
            }
            let mut both = from.iter().zip(&self.windows);
            let has_pages = both.all(|(from, window)| *from <= window.first_needed(places * PAGE));
            if has_pages && (self.states.is_none() || self.tree.state(node).is_some()) {
                complete = i + 1;
            }
        }
        complete
    }

    /// Adds the full pages of a sequence to the prefix cache. Where a page with the same tokens is
    /// cached already, the sequence goes on with that one and frees its own: their bits are equal.
    pub(crate) fn keep(&mut self, kv: &mut SequenceKv, prefix: &PrefixKey<'_>) {
        while (kv.n_cached_pages + 1) * PAGE <= kv.len {
            let Some(key) = prefix.page(kv.n_cached_pages) else {
                break;
            };
            let node = match self.next(kv, prefix) {
                Some(node) => {
                    self.share(kv, node);
                    self.tree.touch(node);
                    node
                }
                None => self.enter(kv, prefix, key),
            };
            kv.node = Some(node);
            kv.n_cached_pages += 1;
            if let Some(states) = &mut self.states {
                let state = kv.checkpoints.at(kv.n_cached_pages * PAGE);
                if let Some(slot) = state.filter(|_| self.tree.state(node).is_none()) {
                    states.retain(slot);
                    self.tree.set_state(node, slot);
                }
            }
        }
    }

    /// Returns whether two sequences stand after the same cached page, or both at the beginning.
    pub(crate) fn is_at_same_page(a: &SequenceKv, b: &SequenceKv) -> bool {
        a.node == b.node && a.n_cached_pages == b.n_cached_pages
    }

    /// Evicts all cached pages that no sequence uses.
    pub(crate) fn clear(&mut self) {
        while self.evict() {}
    }

    /// Returns the cached page that follows a sequence's last one.
    fn next(&self, kv: &SequenceKv, prefix: &PrefixKey<'_>) -> Option<NodeId> {
        let key = prefix.page(kv.n_cached_pages)?;
        self.tree.child(kv.node, prefix.salt, &key)
    }

    /// Makes the pages of a sequence's next place and those of a node the same ones: the node's,
    /// and the sequence's where the node has none.
    fn share(&mut self, kv: &mut SequenceKv, node: NodeId) {
        let place = kv.n_cached_pages;
        let both = kv.tables.iter_mut().zip(&mut self.pools);
        for (group, (table, pool)) in both.enumerate() {
            let Some(own) = table.page(place) else {
                continue;
            };
            if let Some(page) = self.tree.pages(node)[group] {
                table.replace(pool, place, page);
            } else {
                pool.keep(own);
                self.tree.set_page(node, group, own);
            }
        }
    }

    fn enter(
        &mut self,
        kv: &SequenceKv,
        prefix: &PrefixKey<'_>,
        key: super::prefix_cache::PageKey,
    ) -> NodeId {
        let page = |table: &BlockTable| table.page(kv.n_cached_pages);
        let pages: Vec<Option<PageId>> = kv.tables.iter().map(page).collect();
        for (pool, page) in self.pools.iter_mut().zip(&pages) {
            page.iter().for_each(|&page| pool.keep(page));
        }
        self.tree.insert(kv.node, prefix.salt, key, &pages)
    }

    /// Evicts the least recently used node that has no user and no child, with its pages of all
    /// groups; returns false if there is none.
    fn evict(&mut self) -> bool {
        let Some(node) = self.tree.oldest(|pages| self.is_idle(pages)) else {
            return false;
        };
        self.evicted += u64::from(self.tree.pages(node).iter().any(Option::is_some));
        self.remove(node);
        true
    }

    /// Returns whether no sequence uses these pages of a node.
    fn is_idle(&self, pages: &[Option<PageId>]) -> bool {
        let mut both = self.pools.iter().zip(pages);
        both.all(|(pool, page)| page.is_none_or(|page| pool.ref_count(page) == 1))
    }

    /// Removes a node without children that no sequence uses, and frees its pages.
    fn remove(&mut self, node: NodeId) {
        let state = self.tree.state(node);
        if let (Some(states), Some(slot)) = (&mut self.states, state) {
            states.release(slot);
        }
        let pages = self.tree.remove(node);
        for (pool, page) in self.pools.iter_mut().zip(&pages) {
            page.iter().for_each(|&page| pool.drop_cached(page));
        }
    }

    /// Evicts one unused page of a group with a window, from a node that stays for its children;
    /// returns false if there is none. Without a window, a user of the children uses this page too.
    fn give_up_page(&mut self, group: usize) -> bool {
        if self.windows[group] == Window(None) {
            return false;
        }
        let pool = &mut self.pools[group];
        let is_idle = |page| pool.ref_count(page) == 1;
        let Some(page) = self.tree.take_page(group, is_idle) else {
            return false;
        };
        pool.drop_cached(page);
        self.evicted += 1;
        true
    }

    /// Returns the number of cached pages of a group, in use or not.
    #[cfg(test)]
    pub(crate) fn n_cached_pages(&self, group: usize) -> usize {
        self.tree.n_cached(group)
    }
}
