//! Layout of the KV cache: its element types, and sizes and strides of its pages.

mod shape;
mod types;

pub use shape::{HalfShape, KvShape};
pub use types::{KvType, KvTypes, SCALE_GROUP};

/// Positions in a page.
pub const PAGE_POSITIONS: usize = 16;
pub use PAGE_POSITIONS as PAGE;

/// Longest head, in values: kernels' scratch is sized by it.
pub const MAX_HEAD_DIM: usize = 1024;

/// Base address of the pages of keys, or of values, of one layer and head.
#[derive(Clone, Copy)]
pub struct Base {
    /// Page 0.
    pub start: *const u8,
    /// Bytes between pages.
    pub stride: usize,
    /// Bytes of an element of all of a page's positions, on average, scales left out.
    pub row_bytes: usize,
}
