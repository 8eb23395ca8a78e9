//! Storage of keys and values in pages of 16 positions, and of what recurrent layers keep. Who owns
//! which page or state is decided elsewhere.

mod codes;
mod types;

use crate::memory::{LARGE, Memory, NoMemory, Size};
use crate::state::{StateStore, States};
use codes::{Encode, f8_e4m3, q4_0, q8_0};
use memmap2::MmapRaw;
use std::sync::Arc;
use std::time::Duration;

pub use types::KvType;
pub(crate) use types::SCALE_GROUP;

/// Positions in a page.
pub const PAGE_POSITIONS: usize = 16;
pub(crate) use PAGE_POSITIONS as PAGE;

/// Longest head: kernels' scratch is sized by it.
pub(crate) const MAX_HEAD_DIM: usize = 1024;

/// Numbers that fix the layout of a group of the cache's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers.
    pub n_layer: usize,
    /// KV heads.
    pub n_head_kv: usize,
    /// Values of a head; even, at most 1024.
    pub head_dim: usize,
    /// Element type.
    pub ty: KvType,
}

impl KvShape {
    /// Bytes of one head's part of a page.
    pub(crate) fn head_bytes(&self) -> usize {
        PAGE * self.ty.bytes(self.head_dim).expect("pages of it were made")
    }

    /// Bytes from a page to the next one of the same layer, of keys or of values.
    pub(crate) fn page_stride(&self) -> usize {
        self.n_head_kv * self.head_bytes()
    }

    /// Pages from a layer to the next one, of which `n_pages` are used.
    ///
    /// Every layer writes the same pages in a step. If all layers began at the same distance from a
    /// large page of the system's, all would ask for another one in the same step, which then waits
    /// until all of them are zeroed: 112 MiB for 28 layers, a quarter of a second on one virtual
    /// machine. The golden section spreads their beginnings, however many there are.
    fn layer_pages(&self, n_pages: usize) -> usize {
        let in_large = LARGE.checked_div(self.page_stride()).unwrap_or(0);
        if in_large < 2 || n_pages < in_large {
            return n_pages;
        }
        let step = (in_large as f64 * GOLDEN_SECTION) as usize;
        n_pages + (step + in_large - n_pages % in_large) % in_large
    }

    /// Bytes of one page of every layer and head, keys and values; `None` if that overflows.
    pub fn page_bytes(&self) -> Option<usize> {
        let per_head = self
            .ty
            .bytes(self.head_dim)?
            .checked_mul(PAGE)?
            .checked_mul(2)?;
        per_head
            .checked_mul(self.n_head_kv)?
            .checked_mul(self.n_layer)
    }
}

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
/// `[head_dim][16]`, values `[16][head_dim]`; of codes, scales follow in f16,
/// `[head_dim / 32][16]`. Of four bits, a byte holds values `i` and `i + 16` of those that share a
/// scale, so that rows have half as many bytes.
pub(crate) struct KvGroup {
    pub(crate) shape: KvShape,
    /// From a layer to the next one.
    layer_pages: usize,
    k: Memory,
    v: Memory,
}

/// The system has no room for a cache of this size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("KV cache of {positions} positions: no memory for {}", Size(*bytes))]
pub struct KvTooLarge {
    /// Positions asked for.
    pub positions: usize,
    /// Bytes that takes, if that can be counted.
    pub bytes: Option<usize>,
}

/// The part of the whole that is to it as the rest is to the part.
const GOLDEN_SECTION: f64 = 0.618_033_988_749_894_9;

/// Room behind the last page for kernels that read a whole vector.
const SLACK: usize = 64;

impl KvStore {
    /// Zeroed pages. The system hands out memory as pages are first written.
    ///
    /// # Errors
    /// [`KvTooLarge`] if the system does not have that much.
    ///
    /// # Panics
    /// If a type does not [take](KvType::takes) such heads.
    pub fn new(shapes: &[KvShape], n_pages: usize) -> Result<KvStore, KvTooLarge> {
        let half_of = |shape: &KvShape, n_pages: usize| {
            (shape.page_bytes()? / 2)
                .checked_mul(n_pages)?
                .checked_add(SLACK)
        };
        let too_large = || KvTooLarge {
            positions: n_pages.saturating_mul(PAGE),
            bytes: shapes.iter().try_fold(0usize, |sum, shape| {
                sum.checked_add(2 * half_of(shape, n_pages)?)
            }),
        };
        let group = |shape: &KvShape| {
            assert!(
                shape.ty.takes(shape.head_dim),
                "{} keys and values of heads of {}",
                shape.ty,
                shape.head_dim
            );
            // more than can be counted is too much, before anything is added to it
            half_of(shape, n_pages)?;
            let layer_pages = shape.layer_pages(n_pages);
            let half = || half_of(shape, layer_pages).and_then(Memory::zeroed);
            let (k, v) = (half()?, half()?);
            Some(KvGroup {
                shape: *shape,
                layer_pages,
                k,
                v,
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

    /// With room for so many states of parts of these lengths.
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

    /// States that there is room for.
    pub fn n_states(&self) -> usize {
        self.states.slots
    }

    /// Groups of layers.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Pages of each group.
    pub fn n_pages(&self) -> usize {
        self.n_pages
    }

    /// Copies a page of every layer of a group, for copy-on-write.
    pub fn copy_page(&mut self, group: usize, from: u32, to: u32) {
        // a thread that was left behind in a step may still read, for as long as it takes to get
        // back to its CPU
        while Arc::get_mut(&mut self.users).is_none() {
            std::thread::sleep(Duration::from_micros(50));
        }
        let (from, to) = (from as usize, to as usize);
        assert!(from < self.n_pages && to < self.n_pages);
        let group = &mut self.groups[group];
        let stride = group.shape.page_stride();
        for layer in 0..group.shape.n_layer {
            let base = layer * group.layer_pages * stride;
            for store in [&mut group.k, &mut group.v] {
                store.bytes_mut().copy_within(
                    base + from * stride..base + (from + 1) * stride,
                    base + to * stride,
                );
            }
        }
    }

    /// The pages as threads share them.
    pub(crate) fn pages(&mut self) -> KvPages {
        let n_pages = self.n_pages;
        let pages = |group: &mut KvGroup| GroupPages {
            k: group.k.as_mut_ptr(),
            v: group.v.as_mut_ptr(),
            shape: group.shape,
            n_pages,
            layer_pages: group.layer_pages,
            _keep: [group.k.keep(), group.v.keep()],
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
    k: *mut u8,
    v: *mut u8,
    shape: KvShape,
    n_pages: usize,
    layer_pages: usize,
    _keep: [Option<Arc<MmapRaw>>; 2],
}

/// Where one head's key and value go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    /// Of the group.
    pub(crate) layer: usize,
    pub(crate) head: usize,
    pub(crate) page: u32,
    /// Position in the page.
    pub(crate) slot: usize,
}

// SAFETY: nothing is read or written but by kernels that get pointers from `base`, and by `write`,
// whose callers write elements that nobody else touches.
unsafe impl Sync for GroupPages {}
// SAFETY: as for `Sync`: the pointers belong to no thread.
unsafe impl Send for GroupPages {}

impl GroupPages {
    /// Bytes from a page to the next one of the same layer.
    pub(crate) fn page_stride(&self) -> usize {
        self.shape.page_stride()
    }

    /// Page 0 of a layer and head: keys, values.
    pub(crate) fn base(&self, layer: usize, head: usize) -> (*const u8, *const u8) {
        assert!(layer < self.shape.n_layer && head < self.shape.n_head_kv);
        let at = layer * self.layer_pages * self.page_stride() + head * self.shape.head_bytes();
        (self.k.wrapping_add(at), self.v.wrapping_add(at))
    }

    /// Stores one head's key and value at a position.
    ///
    /// # Safety
    /// Nobody else reads or writes this layer, head, page and slot meanwhile.
    /// `to_f16` rounds so many floats to halves.
    pub(crate) unsafe fn write(
        &self,
        cell: Cell,
        (k, v): (&[f32], &[f32]),
        to_f16: unsafe fn(*const f32, usize, *mut u16),
    ) {
        let s = &self.shape;
        let Cell {
            layer, head, slot, ..
        } = cell;
        let (d, page) = (s.head_dim, cell.page as usize);
        assert!(layer < s.n_layer && head < s.n_head_kv && page < self.n_pages && slot < PAGE);
        assert!(k.len() == d && v.len() == d);
        let of = (layer * self.layer_pages + page) * s.n_head_kv + head;
        let base = of * PAGE * d;
        // SAFETY: keys go to elements `base + i * PAGE + slot`, values to those from
        // `base + slot * d` on, all inside the stores by the asserts; codes are these too; the
        // elements belong to the caller.
        unsafe {
            match s.ty {
                KvType::Bf16 => {
                    let (to_k, to_v) = (
                        self.k.cast::<u16>().add(base + slot),
                        self.v.cast::<u16>().add(base + slot * d),
                    );
                    for (i, (k, v)) in k.iter().zip(v).enumerate() {
                        to_k.add(i * PAGE).write(half::bf16::from_f32(*k).to_bits());
                        to_v.add(i).write(half::bf16::from_f32(*v).to_bits());
                    }
                }
                KvType::Q8_0 => self.write_codes(of, slot, (k, v), q8_0),
                KvType::F8E4M3 => self.write_codes(of, slot, (k, v), f8_e4m3),
                KvType::Q4_0 => self.write_codes(of, slot, (k, v), q4_0),
                KvType::F16 => {
                    let mut halves = [0u16; MAX_HEAD_DIM];
                    to_f16(k.as_ptr(), d, halves.as_mut_ptr());
                    let to = self.k.cast::<u16>().add(base + slot);
                    for (i, h) in halves[..d].iter().enumerate() {
                        to.add(i * PAGE).write(*h);
                    }
                    to_f16(v.as_ptr(), d, self.v.cast::<u16>().add(base + slot * d));
                }
                KvType::F32 => {
                    let to = self.k.cast::<f32>().add(base + slot);
                    for (i, x) in k.iter().enumerate() {
                        to.add(i * PAGE).write(*x);
                    }
                    std::ptr::copy_nonoverlapping(
                        v.as_ptr(),
                        self.v.cast::<f32>().add(base + slot * d),
                        d,
                    );
                }
            }
        }
    }

    /// Stores one head's key and value, coded with scales, at a position of the `of`th part of the
    /// store.
    ///
    /// # Safety
    /// As [`GroupPages::write`], whose asserts hold.
    unsafe fn write_codes(&self, of: usize, slot: usize, (k, v): (&[f32], &[f32]), encode: Encode) {
        let bytes = self.shape.ty.group_bytes().expect("a type of codes");
        let groups = self.shape.head_dim / SCALE_GROUP;
        let part = of * self.shape.head_bytes();
        let scales = PAGE * groups * bytes;
        let mut codes = [0; SCALE_GROUP];
        // SAFETY: a part is as long as the codes and scales of a page's positions; those of this
        // one belong to the caller.
        unsafe {
            let (to_k, to_v) = (self.k.add(part), self.v.add(part));
            let scale_at =
                |to: *mut u8, g: usize| to.add(scales).cast::<u16>().add(g * PAGE + slot);
            for g in 0..groups {
                let values = g * SCALE_GROUP..(g + 1) * SCALE_GROUP;
                scale_at(to_k, g).write(encode(&k[values.clone()], &mut codes));
                for (i, code) in codes[..bytes].iter().enumerate() {
                    to_k.add((g * bytes + i) * PAGE + slot).write(*code);
                }
                scale_at(to_v, g).write(encode(&v[values], &mut codes));
                let to = to_v.add((slot * groups + g) * bytes);
                std::ptr::copy_nonoverlapping(codes.as_ptr(), to, bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests;
