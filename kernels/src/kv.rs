//! Storage of keys and values in pages of 16 positions. Who owns which page is decided elsewhere.

use crate::generic::attention::{MAX_HEAD_DIM, PAGE};
use crate::memory::Memory;
use std::fmt;
use std::str::FromStr;

/// Positions in a page.
pub const PAGE_POSITIONS: usize = PAGE;

/// Element type of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// IEEE half: what llama.cpp uses unless told otherwise.
    #[default]
    F16,
    /// Exact.
    F32,
}

impl KvType {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            KvType::F16 => 2,
            KvType::F32 => 4,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
        })
    }
}

impl FromStr for KvType {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "f16" => Ok(KvType::F16),
            "f32" => Ok(KvType::F32),
            other => Err(format!("KV type {other}: unknown; expected f16 or f32")),
        }
    }
}

/// Numbers that fix the cache's layout.
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
    /// Bytes of one page of every layer and head, keys and values; `None` if that overflows.
    pub fn page_bytes(&self) -> Option<usize> {
        let per_head = self.head_dim.checked_mul(PAGE * self.ty.bytes())?.checked_mul(2)?;
        per_head.checked_mul(self.n_head_kv)?.checked_mul(self.n_layer)
    }
}

/// The pages of all layers.
///
/// `[layer][page][KV head]`, and in each 16 positions: keys `[head_dim][16]`, values `[16][head_dim]`.
pub struct KvStore {
    pub(crate) shape: KvShape,
    pub(crate) n_pages: usize,
    k: Memory,
    v: Memory,
}

/// The system has no room for a cache of this size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("KV cache of {positions} positions: {} do not fit in memory", bytes.map_or("more bytes than can be counted".to_owned(), |b| format!("{} MiB", b >> 20)))]
pub struct KvTooLarge {
    /// Positions asked for.
    pub positions: usize,
    /// Bytes that takes, if that can be counted.
    pub bytes: Option<usize>,
}

/// Room behind the last page for kernels that read a whole vector.
const SLACK: usize = 64;

impl KvStore {
    /// Zeroed pages. The system hands out memory as pages are first written.
    ///
    /// # Errors
    /// [`KvTooLarge`] if the system does not have that much.
    pub fn new(shape: KvShape, n_pages: usize) -> Result<KvStore, KvTooLarge> {
        let bytes = shape.page_bytes().and_then(|b| (b / 2).checked_mul(n_pages)).and_then(|b| b.checked_add(SLACK));
        let too_large =
            KvTooLarge { positions: n_pages.saturating_mul(PAGE), bytes: bytes.map(|b| b.saturating_mul(2)) };
        let store = || bytes.and_then(Memory::zeroed);
        let (Some(k), Some(v)) = (store(), store()) else { return Err(too_large) };
        Ok(KvStore { shape, n_pages, k, v })
    }

    /// Pages.
    pub fn n_pages(&self) -> usize {
        self.n_pages
    }

    /// Copies a page of every layer, for copy-on-write.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        let (from, to) = (from as usize, to as usize);
        assert!(from < self.n_pages && to < self.n_pages);
        let stride = self.page_stride();
        for layer in 0..self.shape.n_layer {
            let base = layer * self.n_pages * stride;
            for store in [&mut self.k, &mut self.v] {
                store.bytes_mut().copy_within(base + from * stride..base + (from + 1) * stride, base + to * stride);
            }
        }
    }

    /// Bytes from a page to the next one of the same layer.
    pub(crate) fn page_stride(&self) -> usize {
        self.shape.n_head_kv * self.head_bytes()
    }

    /// Bytes of one head's part of a page.
    pub(crate) fn head_bytes(&self) -> usize {
        PAGE * self.shape.head_dim * self.shape.ty.bytes()
    }

    /// Page 0 of a layer and head: keys, values.
    pub(crate) fn base(&self, layer: usize, head: usize) -> (*const u8, *const u8) {
        let at = layer * self.n_pages * self.page_stride() + head * self.head_bytes();
        assert!(at <= self.k.len());
        (self.k.as_ptr().wrapping_add(at), self.v.as_ptr().wrapping_add(at))
    }

    /// Pointers for concurrent writers of different positions or heads.
    pub(crate) fn writer(&mut self) -> KvWriter {
        KvWriter { k: self.k.as_mut_ptr(), v: self.v.as_mut_ptr(), shape: self.shape, n_pages: self.n_pages }
    }
}

/// See [`KvStore::writer`].
#[derive(Clone, Copy)]
pub(crate) struct KvWriter {
    k: *mut u8,
    v: *mut u8,
    shape: KvShape,
    n_pages: usize,
}

// SAFETY: the pointers are used only through `write`, whose callers write disjoint elements.
unsafe impl Sync for KvWriter {}

impl KvWriter {
    /// Stores one head's key and value at a position.
    ///
    /// # Safety
    /// The store outlives the writer and nobody else reads or writes this layer, head, page and slot meanwhile.
    /// `to_f16` rounds so many floats to halves.
    pub(crate) unsafe fn write(
        &self,
        (layer, head, page, slot): (usize, usize, u32, usize),
        (k, v): (&[f32], &[f32]),
        to_f16: unsafe fn(*const f32, usize, *mut u16),
    ) {
        let s = &self.shape;
        let (d, page) = (s.head_dim, page as usize);
        assert!(layer < s.n_layer && head < s.n_head_kv && page < self.n_pages && slot < PAGE);
        assert!(k.len() == d && v.len() == d);
        let base = ((layer * self.n_pages + page) * s.n_head_kv + head) * PAGE * d;
        // SAFETY: keys go to elements `base + i * PAGE + slot`, values to those from `base + slot * d` on, all inside
        // the stores by the asserts; the elements belong to the caller.
        unsafe {
            match s.ty {
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
                    std::ptr::copy_nonoverlapping(v.as_ptr(), self.v.cast::<f32>().add(base + slot * d), d);
                }
            }
        }
    }
}
