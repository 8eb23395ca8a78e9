//! All that is known of a cache's pages: the pools of its groups of layers, the tables of its
//! timelines, and the pages that are kept because a later text may begin alike.

use super::PAGE;
use super::pool::{BlockPool, OutOfPages, PageId};
use super::prefix::{History, NodeId, PrefixTree};
use super::states::{Checkpoint, StatePool, Trail};
use super::table::{BlockTable, PageCopy};
use super::window::Window;

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

    /// Pages it has in the group where it has most.
    pub fn n_pages(&self) -> usize {
        let pages = self.tables.iter().map(|table| table.pages().len());
        pages.max().unwrap_or(0)
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
    /// How far each group looks back.
    windows: Vec<Window>,
    /// Room for states of recurrent layers, of models with some.
    states: Option<StatePool>,
    tree: PrefixTree,
    evicted: u64,
}

impl Ledger {
    /// So many free pages for each group of layers, of which is said at how many positions a token
    /// looks back, its own with them; at all if nothing is said.
    pub fn new(windows: &[Option<usize>], n_pages: u32) -> Ledger {
        Ledger {
            pools: windows.iter().map(|_| BlockPool::new(n_pages)).collect(),
            windows: windows.iter().copied().map(Window).collect(),
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

    /// Forgets all but the first `n` positions and gives back the pages that then hold none;
    /// answers how many are left. These may be fewer. With recurrent layers the timeline stands
    /// where it has a state, which cannot be taken back. And where it has given back a page that
    /// the next token looks at, it begins anew.
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

    /// Goes back to the last state that is not after more than `n` positions; answers after how
    /// many it is. That is `n` without recurrent layers.
    fn has_state(&mut self, timeline: &mut Timeline, n: usize) -> usize {
        match &mut self.states {
            Some(states) => timeline.trail.truncate(states, n),
            None => n,
        }
    }

    /// Whether a timeline has all pages that a token after `n` positions looks at.
    fn has_windows(&self, timeline: &Timeline, n: usize) -> bool {
        let mut both = timeline.tables.iter().zip(&self.windows);
        both.all(|(table, window)| table.passed() <= window.first_needed(n))
    }

    /// Gives back the pages that are behind the windows of all tokens to come, but for a few, so
    /// that the timeline can go back a little. Those that are kept stay with the tree.
    pub fn pass(&mut self, timeline: &mut Timeline) {
        let both = timeline.tables.iter_mut().zip(&mut self.pools);
        for ((table, pool), window) in both.zip(&self.windows) {
            table.pass(pool, window.first_kept(timeline.len));
        }
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
    /// kept. With recurrent layers, it ends at a page after which their state is kept; with
    /// windows, where their pages are. Those that are behind a window are not taken.
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
        nodes.truncate(self.complete(timeline, &nodes));
        nodes
    }

    /// Of nodes that follow a timeline's last one, how many it can take over: up to one after which
    /// there are a state and all pages that the next token looks at.
    fn complete(&self, timeline: &Timeline, nodes: &[NodeId]) -> usize {
        let passed = |group| timeline.tables.get(group).map_or(0, BlockTable::passed);
        // of each group the place from which on no page is missing
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

    /// Keeps the pages of a timeline that are full. Where a page with the same tokens is kept
    /// already, the timeline goes on with that one and gives its own back: their bits are equal.
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

    /// Makes the pages of a timeline's next place and those of a node the same ones: the node's,
    /// and the timeline's where the node has none.
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

    /// Gives up the node that was of use longest ago, of those that nobody uses and that nothing
    /// follows, with its pages of all groups; false if there is none.
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

    /// Gives up one page of a group with a window that nobody uses, of a node that stays for what
    /// follows it; false if there is none. Without a window, who uses what follows uses this too.
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

    /// Pages of a group that are kept, in use or not.
    pub fn kept_pages(&self, group: usize) -> usize {
        self.tree.kept(group)
    }
}
