//! Manages the pages of the KV cache: the pools of its groups of layers, the block tables of
//! sequences, and the prefix cache of pages that a later text may begin with.

use super::PAGE;
use super::pool::{BlockPool, OutOfPages, PageId};
use super::prefix::{History, NodeId, PrefixTree};
use super::states::{Checkpoint, StatePool, Trail};
use super::table::{BlockTable, PageCopy};
use super::window::Window;

/// Positions of one sequence, and the pages that hold them. Only [`Ledger::truncate`] frees pages:
/// dropping a timeline does not.
#[derive(Debug, Default)]
pub struct Timeline {
    /// One for each group of the cache's layers; none before pages are first reserved.
    tables: Vec<BlockTable>,
    len: usize,
    /// Its last page that is in the prefix tree, and how many are.
    at: Option<NodeId>,
    kept: usize,
    /// Its states of recurrent layers.
    trail: Trail,
}

impl Timeline {
    /// Returns the number of positions written.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no position is written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns its number of pages in the group where it has most.
    pub fn n_pages(&self) -> usize {
        let pages = self.tables.iter().map(|table| table.pages().len());
        pages.max().unwrap_or(0)
    }

    /// Returns its block table in each group of layers.
    pub fn tables(&self) -> &[BlockTable] {
        &self.tables
    }

    /// Returns the states of recurrent layers that a step reads and writes: the slot of the one
    /// after [`Timeline::len`] positions, and the checkpoints that the step writes.
    pub fn states(&self) -> (Option<PageId>, &[Checkpoint]) {
        (self.trail.current(), self.trail.next())
    }

    /// Marks positions up to `end` as written.
    ///
    /// # Panics
    /// If they were not reserved.
    pub fn advance(&mut self, end: usize) {
        self.trail.advance(end);
        self.len = end;
        self.tables.iter_mut().for_each(|table| table.advance(end));
    }
}

/// A page of a group that must be copied before the step that writes to the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupCopy {
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
pub struct Ledger {
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

impl Ledger {
    /// Creates a manager with `n_pages` free pages for each group of layers. `windows` has the
    /// number of positions that a token attends to in each group, its own included; `None` for all.
    pub fn new(windows: &[Option<usize>], n_pages: u32) -> Ledger {
        Ledger {
            pools: windows.iter().map(|_| BlockPool::new(n_pages)).collect(),
            windows: windows.iter().copied().map(Window).collect(),
            states: None,
            tree: PrefixTree::default(),
            evicted: 0,
        }
    }

    /// Adds slots for states of recurrent layers; 0 for models without such layers.
    pub fn with_states(self, slots: u32) -> Ledger {
        Ledger {
            states: (slots > 0).then(|| StatePool::new(slots)),
            ..self
        }
    }

    /// Returns the number of free slots for states; `None` for models without recurrent layers.
    pub fn free_states(&self) -> Option<usize> {
        Some(self.states.as_ref()?.free())
    }

    /// Returns the number of pages in each group.
    pub fn capacity(&self) -> usize {
        self.pools.first().map_or(0, BlockPool::capacity)
    }

    /// Returns the page counts of the group with the fewest available pages.
    pub fn counts(&self) -> PageCounts {
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
    pub fn available(&self) -> usize {
        let counts = self.counts();
        counts.free + counts.cached
    }

    /// Returns the number of pages evicted so far, in each group.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Returns the pools, one for each group.
    pub fn pools(&self) -> &[BlockPool] {
        &self.pools
    }

    /// Makes positions up to `end` writable by this sequence alone, evicting cached pages if need
    /// be; returns the pages to copy first. All or nothing.
    ///
    /// # Errors
    /// If there are not enough pages.
    pub fn reserve(
        &mut self,
        timeline: &mut Timeline,
        end: usize,
    ) -> Result<Vec<GroupCopy>, OutOfPages> {
        timeline
            .tables
            .resize_with(self.pools.len(), BlockTable::new);
        for (group, table) in timeline.tables.iter().enumerate() {
            let needed = table.pages_needed(&self.pools[group], end);
            let is_short = |ledger: &Ledger| ledger.pools[group].check(needed).is_err();
            while is_short(self) && (self.evict() || self.give_up_page(group)) {}
            self.pools[group].check(needed)?;
        }
        if let Some(states) = &mut self.states {
            let mut give_up = |states: &mut StatePool| self.tree.give_up_state(states);
            timeline
                .trail
                .reserve(states, timeline.len, end, &mut give_up)?;
        }
        let mut copies = Vec::new();
        let both = timeline.tables.iter_mut().zip(&mut self.pools);
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
    pub fn truncate(&mut self, timeline: &mut Timeline, n: usize) -> usize {
        timeline.len = self.has_state(timeline, timeline.len.min(n));
        if !self.has_windows(timeline, timeline.len) {
            timeline.len = self.has_state(timeline, 0);
        }
        let whole = timeline.len / PAGE;
        if let Some(node) = timeline.at.filter(|_| whole < timeline.kept) {
            timeline.at = self.tree.ancestor(node, timeline.kept - whole);
            timeline.kept = whole;
        }
        for (table, pool) in timeline.tables.iter_mut().zip(&mut self.pools) {
            table.truncate(pool, timeline.len);
        }
        timeline.len
    }

    /// Goes back to the last state after at most `n` positions; returns after how many it is. That
    /// is `n` without recurrent layers.
    fn has_state(&mut self, timeline: &mut Timeline, n: usize) -> usize {
        match &mut self.states {
            Some(states) => timeline.trail.truncate(states, n),
            None => n,
        }
    }

    /// Returns whether a sequence has all pages that a token after `n` positions attends to.
    fn has_windows(&self, timeline: &Timeline, n: usize) -> bool {
        let mut both = timeline.tables.iter().zip(&self.windows);
        both.all(|(table, window)| table.passed() <= window.first_needed(n))
    }

    /// Frees the pages behind the windows of all tokens to come, but for a few, so that the
    /// sequence can go back a little. Those that are cached stay in the prefix tree.
    pub fn pass(&mut self, timeline: &mut Timeline) {
        let both = timeline.tables.iter_mut().zip(&mut self.pools);
        for ((table, pool), window) in both.zip(&self.windows) {
            table.pass(pool, window.first_kept(timeline.len));
        }
    }

    /// Creates a second sequence with the same positions; the two share pages until one of them
    /// writes.
    pub fn fork(&mut self, timeline: &Timeline) -> Timeline {
        let both = timeline.tables.iter().zip(&mut self.pools);
        Timeline {
            tables: both.map(|(table, pool)| table.fork(pool)).collect(),
            len: timeline.len,
            at: timeline.at,
            kept: timeline.kept,
            trail: match &mut self.states {
                Some(states) => timeline.trail.fork(states),
                None => Trail::default(),
            },
        }
    }

    /// Adopts cached pages that hold the next tokens of a history, up to position `end` at most;
    /// returns the number of positions adopted. Only for a sequence whose pages are all full and
    /// cached. With recurrent layers, the adopted prefix ends at a page whose state is cached; with
    /// windows, at one for which the window's pages are cached. Pages behind a window are not
    /// adopted.
    pub fn adopt(&mut self, timeline: &mut Timeline, history: &History<'_>, end: usize) -> usize {
        let before = timeline.len;
        let nodes = self.adoptable(timeline, history, end);
        let len = before + nodes.len() * PAGE;
        for node in nodes {
            self.tree.touch(node);
            timeline
                .tables
                .resize_with(self.pools.len(), BlockTable::new);
            let of_groups = self.pools.iter_mut().zip(&self.windows);
            let of_node = of_groups.zip(self.tree.pages(node));
            for (table, ((pool, window), page)) in timeline.tables.iter_mut().zip(of_node) {
                let is_kept = table.places() >= window.first_kept(len);
                table.adopt(pool, page.filter(|_| is_kept));
            }
            timeline.at = Some(node);
            timeline.kept += 1;
            timeline.len += PAGE;
        }
        if let (Some(states), Some(node)) = (&mut self.states, timeline.at) {
            let state = self.tree.state(node).filter(|_| timeline.len > before);
            if let Some(slot) = state {
                timeline.trail.adopt(states, timeline.len, slot);
            }
        }
        timeline.len - before
    }

    /// Returns the cached pages that a sequence can adopt, in order.
    fn adoptable(&self, timeline: &Timeline, history: &History<'_>, end: usize) -> Vec<NodeId> {
        let (mut nodes, mut at) = (Vec::new(), timeline.at);
        if timeline.len != timeline.kept * PAGE {
            return nodes;
        }
        while timeline.len + (nodes.len() + 1) * PAGE <= end {
            let Some(key) = history.page(timeline.kept + nodes.len()) else {
                break;
            };
            let Some(node) = self.tree.child(at, history.salt, &key) else {
                break;
            };
            nodes.push(node);
            at = Some(node);
        }
        nodes.truncate(self.complete(timeline, &nodes));
        nodes
    }

    /// Returns how many of the nodes after a sequence's last one it can adopt: up to one after
    /// which there are a state and all pages that the next token attends to.
    fn complete(&self, timeline: &Timeline, nodes: &[NodeId]) -> usize {
        let passed = |group| timeline.tables.get(group).map_or(0, BlockTable::passed);
        // for each group the place from which on no page is missing
        let mut from: Vec<usize> = (0..self.pools.len()).map(passed).collect();
        let mut complete = 0;
        for (i, &node) in nodes.iter().enumerate() {
            let places = timeline.kept + i + 1;
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
    pub fn keep(&mut self, timeline: &mut Timeline, history: &History<'_>) {
        while (timeline.kept + 1) * PAGE <= timeline.len {
            let Some(key) = history.page(timeline.kept) else {
                break;
            };
            let node = match self.next(timeline, history) {
                Some(node) => {
                    self.share(timeline, node);
                    self.tree.touch(node);
                    node
                }
                None => self.enter(timeline, history, key),
            };
            timeline.at = Some(node);
            timeline.kept += 1;
            if let Some(states) = &mut self.states {
                let state = timeline.trail.at(timeline.kept * PAGE);
                if let Some(slot) = state.filter(|_| self.tree.state(node).is_none()) {
                    states.retain(slot);
                    self.tree.set_state(node, slot);
                }
            }
        }
    }

    /// Returns whether two sequences stand after the same cached page, or both at the beginning.
    pub(crate) fn is_at_same_page(a: &Timeline, b: &Timeline) -> bool {
        a.at == b.at && a.kept == b.kept
    }

    /// Evicts all cached pages that no sequence uses.
    pub fn clear(&mut self) {
        while self.evict() {}
    }

    /// Returns the cached page that follows a sequence's last one.
    fn next(&self, timeline: &Timeline, history: &History<'_>) -> Option<NodeId> {
        let key = history.page(timeline.kept)?;
        self.tree.child(timeline.at, history.salt, &key)
    }

    /// Makes the pages of a sequence's next place and those of a node the same ones: the node's,
    /// and the sequence's where the node has none.
    fn share(&mut self, timeline: &mut Timeline, node: NodeId) {
        let place = timeline.kept;
        let both = timeline.tables.iter_mut().zip(&mut self.pools);
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
        timeline: &Timeline,
        history: &History<'_>,
        key: super::prefix::PageKey,
    ) -> NodeId {
        let page = |table: &BlockTable| table.page(timeline.kept);
        let pages: Vec<Option<PageId>> = timeline.tables.iter().map(page).collect();
        for (pool, page) in self.pools.iter_mut().zip(&pages) {
            page.iter().for_each(|&page| pool.keep(page));
        }
        self.tree.insert(timeline.at, history.salt, key, &pages)
    }

    /// Evicts the least recently used node that has no user and no child, with its pages of all
    /// groups; returns false if there is none.
    fn evict(&mut self) -> bool {
        let pools = &self.pools;
        let is_idle = |pages: &[Option<PageId>]| {
            let mut both = pools.iter().zip(pages);
            both.all(|(pool, page)| page.is_none_or(|page| pool.ref_count(page) == 1))
        };
        let Some(node) = self.tree.oldest(is_idle) else {
            return false;
        };
        let state = self.tree.state(node);
        if let (Some(states), Some(slot)) = (&mut self.states, state) {
            states.release(slot);
        }
        let pages = self.tree.remove(node);
        for (pool, page) in self.pools.iter_mut().zip(&pages) {
            page.iter().for_each(|&page| pool.drop_kept(page));
        }
        self.evicted += u64::from(pages.iter().any(Option::is_some));
        true
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
        pool.drop_kept(page);
        self.evicted += 1;
        true
    }

    /// Returns the number of cached pages of a group, in use or not.
    pub fn kept_pages(&self, group: usize) -> usize {
        self.tree.kept(group)
    }
}
