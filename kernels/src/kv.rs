//! Storage of keys and values in pages of 16 positions, and of the states of recurrent layers.
//! Ownership of pages and states is decided elsewhere.

mod access;
mod cells;
mod codes;

use crate::memory::{LARGE, Memory, NoMemory, Size};
use crate::state::{StateStore, States};
pub(crate) use cells::Cell;
use memmap2::MmapRaw;
use octavo_simd::kv_layout::{Base, HalfShape, KvShape, PAGE};
use std::sync::Arc;
use std::time::Duration;

/// The pages of all groups of layers.
pub struct KvStore {
    pub(crate) groups: Vec<KvGroup>,
    pub(crate) n_pages: usize,
    states: StateStore,
    /// Shared by all [`KvPages`] of this store.
    users: Arc<()>,
}

/// The pages of a group's layers.
///
/// `[layer][page][KV head]`, with unused pages between layers, and in each 16 positions: keys
/// `[head_dim][16]`, values `[16][head_dim]`; for codes, scales follow in f16, `[head_dim /
/// 32][16]`. With four bits, a byte holds values `i` and `i + 16` of those that share a scale, so
/// that rows have half as many bytes.
pub(crate) struct KvGroup {
    pub(crate) shape: KvShape,
    /// Keys and values.
    halves: [Half; 2],
}

/// The keys of a group's layers, or the values.
struct Half {
    shape: HalfShape,
    /// Pages from a layer to the next one.
    layer_pages: usize,
    memory: Memory,
}

impl Half {
    /// `None` if the system does not have that much memory.
    fn new(shape: HalfShape, n_layer: usize, n_pages: usize) -> Option<Half> {
        // an overflowing size is too large; checked before anything is added to it
        shape.bytes(n_layer, n_pages)?;
        let layer_pages = shape.layer_pages(n_pages, LARGE);
        Some(Half {
            shape,
            layer_pages,
            memory: Memory::zeroed(shape.bytes(n_layer, layer_pages)?)?,
        })
    }
}

/// The system has no room for a cache of this size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("KV cache of {positions} positions: no memory for {}", Size(*bytes))]
pub struct KvTooLarge {
    /// Requested positions.
    pub positions: usize,
    /// Bytes that they take, unless that overflows.
    pub bytes: Option<usize>,
}

impl KvStore {
    /// Zeroed pages. The system hands out memory as pages are first written.
    ///
    /// # Errors
    /// [`KvTooLarge`] if the system does not have that much.
    ///
    /// # Panics
    /// If a type does not [take](octavo_simd::kv_layout::KvType::takes) such heads.
    pub fn new(shapes: &[KvShape], n_pages: usize) -> Result<KvStore, KvTooLarge> {
        let bytes_of = |shape: &KvShape| {
            let [k, v] = shape
                .halves()
                .map(|half| half.bytes(shape.n_layer, n_pages));
            k?.checked_add(v?)
        };
        let too_large = || KvTooLarge {
            positions: n_pages.saturating_mul(PAGE),
            bytes: shapes
                .iter()
                .try_fold(0usize, |sum, shape| sum.checked_add(bytes_of(shape)?)),
        };
        let group = |shape: &KvShape| {
            assert!(
                shape.types.takes(shape.head_dim),
                "{} keys and values of heads of {}",
                shape.types,
                shape.head_dim
            );
            let [k, v] = shape
                .halves()
                .map(|half| Half::new(half, shape.n_layer, n_pages));
            Some(KvGroup {
                shape: *shape,
                halves: [k?, v?],
            })
        };
        let groups: Option<Vec<KvGroup>> = shapes.iter().map(group).collect();
        Ok(KvStore {
            groups: groups.ok_or_else(too_large)?,
            n_pages,
            states: StateStore::default(),
            users: Arc::new(()),
        })
    }

    /// Adds room for `slots` states, each with parts of these lengths in floats.
    ///
    /// # Errors
    /// If the system does not have that much memory.
    pub fn with_states(self, parts: &[usize], slots: usize) -> Result<KvStore, NoMemory> {
        Ok(KvStore {
            states: StateStore::new(parts, slots)?,
            ..self
        })
    }

    /// Whether it was made for groups of these shapes, and states of these parts.
    pub(crate) fn is_of(&self, shapes: &[KvShape], parts: &[usize]) -> bool {
        let groups = self.groups.iter().map(|group| &group.shape);
        groups.eq(shapes) && self.states.is_of(parts)
    }

    /// Whether pages and states of another store have the same shapes, whatever their numbers.
    pub fn is_like(&self, other: &KvStore) -> bool {
        let shapes = |store: &KvStore| -> Vec<KvShape> {
            store.groups.iter().map(|group| group.shape).collect()
        };
        shapes(self) == shapes(other) && self.states.is_like(&other.states)
    }

    /// Number of states that there is room for.
    pub fn n_states(&self) -> usize {
        self.states.slots
    }

    /// Number of groups of layers.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Pages of each group.
    pub fn n_pages(&self) -> usize {
        self.n_pages
    }

    /// Copies a page of every layer of a group, for copy-on-write.
    pub fn copy_page(&mut self, group: usize, from: u32, to: u32) {
        self.wait_for_readers();
        let (from, to) = (from as usize, to as usize);
        assert!(from < self.n_pages && to < self.n_pages);
        let group = &mut self.groups[group];
        for half in &mut group.halves {
            let stride = half.shape.page_stride();
            for layer in 0..group.shape.n_layer {
                let base = layer * half.layer_pages * stride;
                half.memory.bytes_mut().copy_within(
                    base + from * stride..base + (from + 1) * stride,
                    base + to * stride,
                );
            }
        }
    }

    /// Waits for threads that were left behind in a step and may still read, until they get back to
    /// their CPUs.
    fn wait_for_readers(&mut self) {
        while Arc::get_mut(&mut self.users).is_none() {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// The pages in a form that threads share.
    pub(crate) fn pages(&mut self) -> KvPages {
        let n_pages = self.n_pages;
        let half = |half: &mut Half| HalfPages {
            start: half.memory.as_mut_ptr(),
            shape: half.shape,
            layer_pages: half.layer_pages,
            _keep: half.memory.keep(),
        };
        let pages = |group: &mut KvGroup| GroupPages {
            halves: group.halves.each_mut().map(half),
            shape: group.shape,
            n_pages,
        };
        KvPages {
            groups: self.groups.iter_mut().map(pages).collect(),
            states: self.states.shared(),
            _user: self.users.clone(),
        }
    }
}

/// All groups of a [`KvStore`], whose memory stays for as long as this does.
pub(crate) struct KvPages {
    groups: Vec<GroupPages>,
    pub(crate) states: States,
    _user: Arc<()>,
}

impl std::ops::Deref for KvPages {
    type Target = [GroupPages];

    fn deref(&self) -> &[GroupPages] {
        &self.groups
    }
}

/// Pointers into a [`KvGroup`] for concurrent readers, and writers of different positions or heads.
pub(crate) struct GroupPages {
    /// Keys and values.
    halves: [HalfPages; 2],
    shape: KvShape,
    n_pages: usize,
}

/// Pointers into a [`Half`].
struct HalfPages {
    start: *mut u8,
    shape: HalfShape,
    layer_pages: usize,
    _keep: Option<Arc<MmapRaw>>,
}

// SAFETY: pages are accessed only by kernels that get pointers from `bases`, and by `write`, whose
// callers write elements that no other thread touches.
unsafe impl Sync for GroupPages {}
// SAFETY: as for `Sync`: the pointers belong to no thread.
unsafe impl Send for GroupPages {}

impl GroupPages {
    /// Base addresses of the keys and values of a layer and head.
    pub(crate) fn bases(&self, layer: usize, head: usize) -> [Base; 2] {
        assert!(layer < self.shape.n_layer && head < self.shape.n_head_kv);
        self.halves.each_ref().map(|half| {
            let stride = half.shape.page_stride();
            let at = layer * half.layer_pages * stride + head * half.shape.head_bytes();
            Base {
                start: half.start.wrapping_add(at),
                stride,
                row_bytes: PAGE * half.shape.ty.bits() / 8,
            }
        })
    }
}

#[cfg(test)]
mod tests;
