//! Weights as they lie in a file.

use std::ops::Range;

/// Bytes owned elsewhere, usually in a mapped file.
pub trait Bytes: Send + Sync {
    /// Always the same bytes.
    fn bytes(&self) -> &[u8];

    /// How many there are.
    fn n_bytes(&self) -> usize {
        self.bytes().len()
    }

    /// All of them, in `room` where they do not lie side by side: for who needs them once.
    fn once<'a>(&'a self, _room: &'a mut Vec<u8>) -> &'a [u8] {
        self.bytes()
    }

    /// Where they lie, if it is one place: what lies in the same is the same.
    fn lies_at(&self) -> Option<*const [u8]> {
        Some(self.bytes())
    }

    /// The bytes of some whole rows, in `room` where they are made for the occasion: packing needs
    /// each row once.
    fn rows<'a>(&'a self, range: Range<usize>, _room: &'a mut Vec<u8>) -> &'a [u8] {
        &self.bytes()[range]
    }

    /// Says that all from `at` on is going to be read once, in this order.
    fn ahead(&self, _at: usize) {}

    /// Says that these bytes are not needed soon.
    fn passed(&self, _range: Range<usize>) {}
}

impl Bytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}
