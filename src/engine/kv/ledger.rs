//! All that is known of a cache's pages: the pools of its groups of layers, the tables of its
//! timelines, and the pages that are kept because a later text may begin alike.

use super::PAGE;
use super::pool::{BlockPool, OutOfPages, PageId};
use super::prefix::{History, NodeId, PrefixTree};
use super::states::{Checkpoint, StatePool, Trail};
use super::table::{BlockTable, PageCopy};

/// Positions of one sequence, and the pages that hold them. Pages go back by [`Ledger::truncate`]
/// alone: a timeline cannot free them when dropped.
#[derive(Debug, Default)]
pub struct Timeline {
    /// For each group of the cache's layers; none before pages are first asked for.
    tables: Vec<BlockTable>,
    len: usize,
    /// The last of its pages that is in the tree, and how many are.
    at: Option<NodeId>,
    kept: usize,
    /// What recurrent layers have kept of it.
    trail: Trail,
}

impl Timeline {
    /// Positions written.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Pages it has in each group.
    pub fn n_pages(&self) -> usize {
        self.tables.first().map_or(0, |table| table.pages().len())
    }

    /// Its pages in each group of layers, in order of position.
    pub fn tables(&self) -> &[BlockTable] {
        &self.tables
    }

    /// States that a step reads and writes, of models with recurrent layers: where the one after
    /// [`Timeline::len`] positions is, and where those go that the step leaves.
    pub fn states(&self) -> (Option<PageId>, &[Checkpoint]) {
        (self.trail.current(), self.trail.next())
    }

    /// Declares positions up to `end` written.
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
    /// Which group of layers.
    pub group: usize,
    /// From where to where.
    pub copy: PageCopy,
}

/// Pages of a group: `free + cached + used = capacity`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Without an owner.
    pub free: usize,
    /// Kept for later texts; given up when pages are short.
    pub cached: usize,
    /// Of timelines.
    pub used: usize,
}

/// Who owns which page.
pub struct Ledger {
    /// For each group of the cache's layers: pages of different shapes cannot stand in for each
    /// other.
    pools: Vec<BlockPool>,
    /// Room for states of recurrent layers, of models with some.
    states: Option<StatePool>,
    tree: PrefixTree,
    evicted: u64,
}

impl Ledger {
    /// So many free pages for each of so many groups of layers.
    pub fn new(groups: usize, n_pages: u32) -> Ledger {
        Ledger {
            pools: (0..groups).map(|_| BlockPool::new(n_pages)).collect(),
            states: None,
            tree: PrefixTree::default(),
            evicted: 0,
        }
    }

    /// With room for so many states of recurrent layers; none if 0, for models without such.
    pub fn with_states(self, slots: u32) -> Ledger {
        Ledger {
            states: (slots > 0).then(|| StatePool::new(slots)),
            ..self
        }
    }

    /// Room for states that nobody uses; none for models without.
    pub fn free_states(&self) -> Option<usize> {
        Some(self.states.as_ref()?.free())
    }

    /// Pages of each group.
    pub fn capacity(&self) -> usize {
        self.pools.first().map_or(0, BlockPool::capacity)
    }

    /// What became of the pages of a group; groups differ only where their pages do.
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

    /// Pages that could be had in each group, the kept ones given up.
    pub fn available(&self) -> usize {
        let counts = self.counts();
        counts.free + counts.cached
    }

    /// Kept pages given up so far, in each group.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The pools, one for each group.
    pub fn pools(&self) -> &[BlockPool] {
        &self.pools
    }

    /// Makes positions up to `end` writable by this timeline alone, giving up kept pages if need
    /// be; answers what must be copied first. All or nothing.
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
            while self.pools[group].check(needed).is_err() && self.evict() {}
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

    /// Forgets all but the first `n` positions and gives back the pages that then hold none;
    /// answers how many are left. With recurrent layers these may be fewer: a state cannot be
    /// taken back, so that the timeline stands where it has one.
    pub fn truncate(&mut self, timeline: &mut Timeline, n: usize) -> usize {
        timeline.len = timeline.len.min(n);
        if let Some(states) = &mut self.states {
            timeline.len = timeline.trail.truncate(states, timeline.len);
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

    /// A second timeline with the same positions; their pages are shared until one of the two
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

    /// Takes over kept pages that hold what follows in a history, up to position `end` at most;
    /// answers how many positions that are. Only for a timeline all of whose pages are full and
    /// kept. With recurrent layers, it ends at a page after which their state is kept.
    pub fn adopt(&mut self, timeline: &mut Timeline, history: &History<'_>, end: usize) -> usize {
        let before = timeline.len;
        for node in self.adoptable(timeline, history, end) {
            self.tree.touch(node);
            timeline
                .tables
                .resize_with(self.pools.len(), BlockTable::new);
            let tables = timeline.tables.iter_mut().zip(&mut self.pools);
            for ((table, pool), &page) in tables.zip(self.tree.pages(node)) {
                table.adopt(pool, page);
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

    /// The kept pages that a timeline can take over, in order.
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
        if self.states.is_some() {
            let has_state = |node: &NodeId| self.tree.state(*node).is_some();
            let n = nodes.iter().rposition(has_state).map_or(0, |last| last + 1);
            nodes.truncate(n);
        }
        nodes
    }

    /// Keeps the pages of a timeline that are full. Where a page with the same tokens is kept
    /// already, the timeline goes on with that one and gives its own back: their bits are equal.
    pub fn keep(&mut self, timeline: &mut Timeline, history: &History<'_>) {
        while (timeline.kept + 1) * PAGE <= timeline.len {
            let Some(key) = history.page(timeline.kept) else {
                break;
            };
            let node = match self.next(timeline, history) {
                Some(node) => {
                    self.swap(timeline, node);
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

    /// Whether two timelines stand after the same kept page, or both at the beginning.
    pub(crate) fn is_at_same_page(a: &Timeline, b: &Timeline) -> bool {
        a.at == b.at && a.kept == b.kept
    }

    /// Gives up all kept pages that no timeline uses.
    pub fn clear(&mut self) {
        while self.evict() {}
    }

    /// The kept page that follows a timeline's last one.
    fn next(&self, timeline: &Timeline, history: &History<'_>) -> Option<NodeId> {
        let key = history.page(timeline.kept)?;
        self.tree.child(timeline.at, history.salt, &key)
    }

    fn swap(&mut self, timeline: &mut Timeline, node: NodeId) {
        let tables = timeline.tables.iter_mut().zip(&mut self.pools);
        for ((table, pool), &page) in tables.zip(self.tree.pages(node)) {
            table.replace(pool, timeline.kept, page);
        }
    }

    fn enter(
        &mut self,
        timeline: &Timeline,
        history: &History<'_>,
        key: super::prefix::PageKey,
    ) -> NodeId {
        let page = |table: &BlockTable| table.pages()[timeline.kept];
        let pages: Vec<PageId> = timeline.tables.iter().map(page).collect();
        for (pool, &page) in self.pools.iter_mut().zip(&pages) {
            pool.keep(page);
        }
        self.tree.insert(timeline.at, history.salt, key, &pages)
    }

    /// Gives up the kept page that was of use longest ago; false if all are in use.
    fn evict(&mut self) -> bool {
        let pools = &self.pools;
        let is_idle = |pages: &[PageId]| {
            let mut both = pools.iter().zip(pages);
            both.all(|(pool, &page)| pool.ref_count(page) == 1)
        };
        let Some(node) = self.tree.oldest(is_idle) else {
            return false;
        };
        let state = self.tree.state(node);
        if let (Some(states), Some(slot)) = (&mut self.states, state) {
            states.release(slot);
        }
        let pages = self.tree.remove(node);
        for (pool, &page) in self.pools.iter_mut().zip(&pages) {
            pool.drop_kept(page);
        }
        self.evicted += 1;
        true
    }

    /// Pages of each group that are kept, in use or not.
    pub fn kept_pages(&self) -> usize {
        self.tree.len()
    }
}
