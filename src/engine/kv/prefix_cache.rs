//! Prefix cache: finds the full pages that hold given tokens, so that a text that begins like an
//! earlier one need not be computed again.
//!
//! A tree: a node is one full page, and the path to it from its root gives every token before it.
//! Nodes are found by token ids, phases and salt, all compared in full, and by a digest of the
//! adapters. The contents of a page depend on these alone, so a page found here has the bits that
//! computing it would give.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::PAGE;
use super::block_pool::PageId;
use super::disk::Digest;
use super::state_checkpoints::StatePool;
use crate::adapters::{AdapterKey, AdapterSet};

/// Index of a node in the tree's memory.
pub(super) type NodeId = usize;

/// Contents of one page: its tokens, and which of them were generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PageKey {
    pub(super) tokens: [u32; PAGE],
    /// Bit i: token i was computed as a generated one.
    pub(super) generated: u16,
    /// Digest of the adapters that its tokens use; 0 for none.
    pub(super) adapters: AdapterKey,
}

impl PageKey {
    /// Returns whether one of its tokens was computed as a generated one.
    pub(crate) fn has_generated(&self) -> bool {
        self.generated != 0
    }
}

const _: () = assert!(PAGE == u16::BITS as usize, "one bit for each position");

/// Tokens in order, the first of which are a prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefixKey<'a> {
    /// All tokens.
    pub tokens: &'a [u32],
    /// How many of them, from the first, are computed as a prompt.
    pub n_prompt: usize,
    /// Only texts with the same salt share pages.
    pub salt: Option<&'a str>,
    /// Adapters that the text uses.
    pub adapters: &'a AdapterSet,
}

impl PrefixKey<'_> {
    /// Returns the contents of page `n` when it is full; `None` if the tokens do not fill it.
    pub(crate) fn page(&self, n: usize) -> Option<PageKey> {
        let first = n * PAGE;
        let tokens = self.tokens.get(first..first + PAGE)?.try_into().ok()?;
        let generated = (0..PAGE)
            .filter(|i| first + i >= self.n_prompt)
            .fold(0, |bits, i| bits | 1 << i);
        Some(PageKey {
            tokens,
            generated,
            adapters: self.adapters.key(first..first + PAGE),
        })
    }
}

/// Parent of a node: a root, which is no page, or a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parent {
    Root,
    Page(NodeId),
}

struct Node {
    parent: Parent,
    salt: Option<Box<str>>,
    key: PageKey,
    /// One for each group of the cache's layers. In groups with a window it may have been evicted,
    /// or freed behind the window before it could be cached.
    pages: Box<[Option<PageId>]>,
    /// State of recurrent layers at its end, if that is cached.
    state: Option<PageId>,
    /// Digest that names it on disk, once it is known.
    digest: Option<Box<Digest>>,
    children: HashMap<PageKey, NodeId>,
    /// Time of its last use, as a count of uses in the tree.
    used: u64,
}

/// All cached pages.
#[derive(Default)]
pub(super) struct PrefixTree {
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
    roots: BTreeMap<Option<Box<str>>, HashMap<PageKey, NodeId>>,
    /// Nodes without children, the least recently used first.
    leaves: BTreeSet<(u64, NodeId)>,
    now: u64,
}

impl PrefixTree {
    /// Returns the node after `at` (from the root if `None`) with these contents.
    pub(super) fn child(
        &self,
        at: Option<NodeId>,
        salt: Option<&str>,
        key: &PageKey,
    ) -> Option<NodeId> {
        let children = match at {
            Some(node) => Some(&self.node(node).children),
            // salts are rare, and looked up only once per request
            None => self.roots.get(&salt.map(Box::from)),
        };
        children?.get(key).copied()
    }

    /// Returns the pages of a node, one for each group where it has one.
    pub(super) fn pages(&self, node: NodeId) -> &[Option<PageId>] {
        &self.node(node).pages
    }

    /// Gives a node its page of a group where it has none.
    pub(super) fn set_page(&mut self, node: NodeId, group: usize, page: PageId) {
        let before = self.node_mut(node).pages[group].replace(page);
        assert_eq!(before, None, "a node has one page of a group");
    }

    /// Takes the page of a group from the least recently used node whose page `is_idle`; the node
    /// stays. `None` if there is no such node.
    pub(super) fn take_page(
        &mut self,
        group: usize,
        is_idle: impl Fn(PageId) -> bool,
    ) -> Option<PageId> {
        let nodes = self.nodes.iter_mut().flatten();
        let idle = nodes.filter(|node| node.pages[group].is_some_and(&is_idle));
        idle.min_by_key(|node| node.used)?.pages[group].take()
    }

    /// Returns the node `steps` above this one; `None` for the root.
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

    /// Marks a node as just used.
    pub(super) fn touch(&mut self, node: NodeId) {
        self.now += 1;
        let now = self.now;
        let entry = self.node_mut(node);
        let before = std::mem::replace(&mut entry.used, now);
        if self.leaves.remove(&(before, node)) {
            self.leaves.insert((now, node));
        }
    }

    /// Adds a page after `at`, where there is none with this key.
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
            digest: None,
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

    /// Returns the tokens of a node, and its digest if that is known.
    pub(super) fn contents(&self, id: NodeId) -> (&PageKey, Option<&Digest>) {
        let node = self.node(id);
        (&node.key, node.digest.as_deref())
    }

    /// Records the digest of a node.
    pub(super) fn set_digest(&mut self, id: NodeId, digest: Digest) {
        self.node_mut(id).digest = Some(Box::new(digest));
    }

    /// Returns the state of recurrent layers at the end of a node.
    pub(super) fn state(&self, id: NodeId) -> Option<PageId> {
        self.node(id).state
    }

    /// Caches a state with a node, which owns it from then on.
    pub(super) fn set_state(&mut self, id: NodeId, slot: PageId) {
        self.node_mut(id).state = Some(slot);
    }

    /// Evicts the least recently used state that has no other owner; returns false if there is
    /// none.
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

    /// Returns the node to evict first among those that `is_idle` finds unused: the least recently
    /// used one without children. A user of a node uses all above it too, so few are skipped.
    pub(super) fn oldest(&self, is_idle: impl Fn(&[Option<PageId>]) -> bool) -> Option<NodeId> {
        let mut leaves = self.leaves.iter().map(|&(_, node)| node);
        leaves.find(|&node| is_idle(self.pages(node)))
    }

    /// Returns whether pages follow a node.
    pub(super) fn has_children(&self, id: NodeId) -> bool {
        !self.node(id).children.is_empty()
    }

    /// Returns the pages after a node that have generated tokens.
    pub(super) fn generated_children(&self, id: NodeId) -> Vec<NodeId> {
        let children = self.node(id).children.iter();
        let generated = children.filter(|(key, _)| key.has_generated());
        generated.map(|(_, &child)| child).collect()
    }

    /// Removes a node without children; returns its pages.
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

    /// Returns the number of cached pages of a group.
    #[cfg(test)]
    pub(super) fn n_cached(&self, group: usize) -> usize {
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
