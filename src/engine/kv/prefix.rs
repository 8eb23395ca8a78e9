//! Which full pages hold which tokens, so that a text that begins like an earlier one need not be
//! computed again.
//!
//! A tree: a node is one full page, and the path to it from its root says every token before it.
//! Nodes are found by token ids, roles and salt, all compared in full. What a page holds depends on
//! these alone, so a page found here has the bits that computing it would give.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::PAGE;
use super::pool::PageId;
use super::states::StatePool;

/// Which page of a prefix: its place in the tree's memory.
pub(super) type NodeId = usize;

/// What one page holds: its tokens, and which of them were generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PageKey {
    tokens: [u32; PAGE],
    /// Bit i: token i was computed as a generated one.
    generated: u16,
}

const _: () = assert!(PAGE == u16::BITS as usize, "one bit for each position");

/// Tokens in order, the first so many of which are a prompt.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// All tokens.
    pub tokens: &'a [u32],
    /// How many of them, from the first, are computed as a prompt.
    pub n_prompt: usize,
    /// Only histories with the same salt share pages.
    pub salt: Option<&'a str>,
}

impl History<'_> {
    /// What page `n` holds when it is full; `None` if the tokens do not fill it.
    pub(crate) fn page(&self, n: usize) -> Option<PageKey> {
        let first = n * PAGE;
        let tokens = self.tokens.get(first..first + PAGE)?.try_into().ok()?;
        let generated = (0..PAGE)
            .filter(|i| first + i >= self.n_prompt)
            .fold(0, |bits, i| bits | 1 << i);
        Some(PageKey { tokens, generated })
    }
}

/// Where a path begins or goes on: a root, which is no page, or a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parent {
    Root,
    Page(NodeId),
}

struct Node {
    parent: Parent,
    salt: Option<Box<str>>,
    key: PageKey,
    /// One for each group of the cache's layers. In groups with a window it may have been given up,
    /// or behind the window before it was kept.
    pages: Box<[Option<PageId>]>,
    /// What recurrent layers have kept up to its end, if that is there.
    state: Option<PageId>,
    children: HashMap<PageKey, NodeId>,
    /// When it was last of use; counts, and is no time.
    used: u64,
}

/// All full pages that are kept.
#[derive(Default)]
pub(super) struct PrefixTree {
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
    roots: BTreeMap<Option<Box<str>>, HashMap<PageKey, NodeId>>,
    /// Nodes without children, the one that was of use longest ago first.
    leaves: BTreeSet<(u64, NodeId)>,
    now: u64,
}

impl PrefixTree {
    /// The node after `at` (from the root if none) that holds this.
    pub(super) fn child(
        &self,
        at: Option<NodeId>,
        salt: Option<&str>,
        key: &PageKey,
    ) -> Option<NodeId> {
        let children = match at {
            Some(node) => Some(&self.node(node).children),
            // a salt is rare, and looked up once a request
            None => self.roots.get(&salt.map(Box::from)),
        };
        children?.get(key).copied()
    }

    /// The pages of a node, one for each group where it has one.
    pub(super) fn pages(&self, node: NodeId) -> &[Option<PageId>] {
        &self.node(node).pages
    }

    /// Gives a node its page of a group where it has none.
    pub(super) fn set_page(&mut self, node: NodeId, group: usize, page: PageId) {
        let before = self.node_mut(node).pages[group].replace(page);
        assert_eq!(before, None, "a node has one page of a group");
    }

    /// Takes the page of a group from the node of use longest ago whose page `is_idle`; the node
    /// stays. None if there is no such node.
    pub(super) fn take_page(
        &mut self,
        group: usize,
        is_idle: impl Fn(PageId) -> bool,
    ) -> Option<PageId> {
        let nodes = self.nodes.iter_mut().flatten();
        let idle = nodes.filter(|node| node.pages[group].is_some_and(&is_idle));
        idle.min_by_key(|node| node.used)?.pages[group].take()
    }

    /// The node `steps` above this one; `None` for the root.
    pub(super) fn ancestor(&self, node: NodeId, steps: usize) -> Option<NodeId> {
        let mut at = Some(node);
        for _ in 0..steps {
            at = match self.node(at?).parent {
                Parent::Root => None,
                Parent::Page(parent) => Some(parent),
            };
        }
        at
    }

    /// Notes that a node is of use now.
    pub(super) fn touch(&mut self, node: NodeId) {
        self.now += 1;
        let now = self.now;
        let entry = self.node_mut(node);
        let before = std::mem::replace(&mut entry.used, now);
        if self.leaves.remove(&(before, node)) {
            self.leaves.insert((now, node));
        }
    }

    /// Adds a page after `at`. There is none with this key there.
    pub(super) fn insert(
        &mut self,
        at: Option<NodeId>,
        salt: Option<&str>,
        key: PageKey,
        pages: &[Option<PageId>],
    ) -> NodeId {
        self.now += 1;
        let node = Node {
            parent: at.map_or(Parent::Root, Parent::Page),
            salt: salt.map(Box::from),
            key,
            pages: pages.into(),
            state: None,
            children: HashMap::new(),
            used: self.now,
        };
        let id = self.vacant.pop().unwrap_or(self.nodes.len());
        match self.nodes.get_mut(id) {
            Some(slot) => *slot = Some(node),
            None => self.nodes.push(Some(node)),
        }
        let before = self.siblings(at, salt).insert(key, id);
        assert!(before.is_none(), "a page of these tokens is in the tree");
        if let Some(parent) = at {
            let used = self.node(parent).used;
            self.leaves.remove(&(used, parent));
        }
        self.leaves.insert((self.now, id));
        id
    }

    /// What recurrent layers have kept up to the end of a node.
    pub(super) fn state(&self, id: NodeId) -> Option<PageId> {
        self.node(id).state
    }

    /// Keeps a state with a node, which owns it from then on.
    pub(super) fn set_state(&mut self, id: NodeId, slot: PageId) {
        self.node_mut(id).state = Some(slot);
    }

    /// Gives up the state of use longest ago that nobody else has; false if there is none.
    pub(super) fn give_up_state(&mut self, pool: &mut StatePool) -> bool {
        let idle = self.nodes.iter_mut().flatten().filter(|node| {
            let state = node.state;
            state.is_some_and(|slot| !pool.is_shared(slot))
        });
        let Some(node) = idle.min_by_key(|node| node.used) else {
            return false;
        };
        node.state.take().is_some_and(|slot| {
            pool.release(slot);
            true
        })
    }

    /// The node to give up first among those that `is_idle` says nobody uses: one without children,
    /// of use longest ago. Who uses a node uses all above it, so few are passed over.
    pub(super) fn oldest(&self, is_idle: impl Fn(&[Option<PageId>]) -> bool) -> Option<NodeId> {
        let mut leaves = self.leaves.iter().map(|&(_, node)| node);
        leaves.find(|&node| is_idle(self.pages(node)))
    }

    /// Takes a node without children out; answers its pages.
    pub(super) fn remove(&mut self, id: NodeId) -> Box<[Option<PageId>]> {
        let node = self.nodes[id].take().expect("a node of the tree");
        assert!(node.children.is_empty(), "pages follow this one");
        self.vacant.push(id);
        self.leaves.remove(&(node.used, id));
        match node.parent {
            Parent::Root => {
                let children = self.siblings(None, node.salt.as_deref());
                children.remove(&node.key);
                if children.is_empty() {
                    self.roots.remove(&node.salt);
                }
            }
            Parent::Page(parent) => {
                let above = self.node_mut(parent);
                above.children.remove(&node.key);
                above.used = above.used.max(node.used);
                if above.children.is_empty() {
                    let used = above.used;
                    self.leaves.insert((used, parent));
                }
            }
        }
        node.pages
    }

    /// Pages of a group that it keeps.
    pub(super) fn kept(&self, group: usize) -> usize {
        let nodes = self.nodes.iter().flatten();
        nodes.filter(|node| node.pages[group].is_some()).count()
    }

    fn siblings(
        &mut self,
        at: Option<NodeId>,
        salt: Option<&str>,
    ) -> &mut HashMap<PageKey, NodeId> {
        match at {
            Some(parent) => &mut self.node_mut(parent).children,
            None => self.roots.entry(salt.map(Box::from)).or_default(),
        }
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id].as_ref().expect("a node of the tree")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id].as_mut().expect("a node of the tree")
    }
}
