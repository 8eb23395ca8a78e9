//! The layout of a group of the cache's layers: sizes and strides of its pages.

use super::{KvType, KvTypes, PAGE};

/// Numbers that fix the layout of a group of the cache's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers.
    pub n_layer: usize,
    /// KV heads.
    pub n_head_kv: usize,
    /// Values of a head; even, at most 1024.
    pub head_dim: usize,
    /// Element types.
    pub types: KvTypes,
}

/// Numbers that fix the layout of the keys of a group's layers, or of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfShape {
    n_head_kv: usize,
    head_dim: usize,
    pub ty: KvType,
}

/// The golden section: the whole is to the part as the part is to the rest.
const GOLDEN_SECTION: f64 = 0.618_033_988_749_894_9;

/// Bytes after the last page for kernels that read a whole vector.
const SLACK: usize = 64;

impl KvShape {
    /// Keys and values.
    pub fn halves(&self) -> [HalfShape; 2] {
        [self.types.k, self.types.v].map(|ty| HalfShape {
            n_head_kv: self.n_head_kv,
            head_dim: self.head_dim,
            ty,
        })
    }

    /// Bytes of one page of every layer and head, keys and values; `None` if that overflows.
    pub fn page_bytes(&self) -> Option<usize> {
        self.types
            .bytes(self.head_dim)?
            .checked_mul(PAGE)?
            .checked_mul(self.n_head_kv)?
            .checked_mul(self.n_layer)
    }
}

impl HalfShape {
    /// Bytes of one head's part of a page.
    pub fn head_bytes(&self) -> usize {
        PAGE * self.ty.bytes(self.head_dim).expect("pages of it were made")
    }

    /// Bytes from a page to the next one of the same layer.
    pub fn page_stride(&self) -> usize {
        self.n_head_kv * self.head_bytes()
    }

    /// Bytes of `n_pages` pages of `n_layer` layers; `None` if that overflows.
    pub fn bytes(&self, n_layer: usize, n_pages: usize) -> Option<usize> {
        let pages = n_layer.checked_mul(n_pages)?;
        self.ty
            .bytes(self.head_dim)?
            .checked_mul(PAGE)?
            .checked_mul(self.n_head_kv)?
            .checked_mul(pages)?
            .checked_add(SLACK)
    }

    /// Stride between layers in pages, of which `n_pages` are used, where large pages of the system
    /// have `large` bytes.
    ///
    /// Every layer writes the same pages in a step. If all layers began at the same offset in a
    /// large page of the system, all would touch a new one in the same step, which then waits until
    /// all of them are zeroed: 112 MiB for 28 layers, a quarter of a second on one virtual machine.
    /// The golden section spreads their beginnings, however many there are.
    pub fn layer_pages(&self, n_pages: usize, large: usize) -> usize {
        let in_large = large.checked_div(self.page_stride()).unwrap_or(0);
        if in_large < 2 || n_pages < in_large {
            return n_pages;
        }
        let step = (in_large as f64 * GOLDEN_SECTION) as usize;
        n_pages + (step + in_large - n_pages % in_large) % in_large
    }
}
