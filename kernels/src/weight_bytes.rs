//! Weights in the layout of a file.

use std::ops::Range;

/// Bytes owned elsewhere, usually in a mapped file.
pub trait WeightBytes: Send + Sync {
    /// Always the same bytes.
    fn bytes(&self) -> &[u8];

    /// Number of bytes.
    fn n_bytes(&self) -> usize {
        self.bytes().len()
    }

    /// All bytes, copied to `room` where they are not contiguous: for callers that need them once.
    fn once<'a>(&'a self, _room: &'a mut Vec<u8>) -> &'a [u8] {
        self.bytes()
    }

    /// Their address, if they are contiguous: equal addresses mean equal bytes.
    fn lies_at(&self) -> Option<*const [u8]> {
        Some(self.bytes())
    }

    /// The bytes of some whole rows, in `room` where they must be made on request: packing needs
    /// each row once.
    fn rows<'a>(&'a self, range: Range<usize>, _room: &'a mut Vec<u8>) -> &'a [u8] {
        &self.bytes()[range]
    }

    /// Hints that all bytes from `at` on are going to be read once, in this order.
    fn ahead(&self, _at: usize) {}

    /// Hints that these bytes are not needed soon.
    fn passed(&self, _range: Range<usize>) {}
}

impl WeightBytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}
