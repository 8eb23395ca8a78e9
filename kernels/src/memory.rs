//! Memory that starts at a cache line: a vector load that straddles two costs two.

use memmap2::MmapMut;
use std::ops::{Deref, DerefMut};

/// Bytes from which on the system is asked for large pages.
const LARGE: usize = 2 << 20;

/// Zeroed memory at the start of a page. The system hands pages out as they are first written.
pub(crate) struct Memory {
    map: Option<MmapMut>,
}

impl Memory {
    /// `None` if the system does not have that much.
    pub(crate) fn zeroed(bytes: usize) -> Option<Memory> {
        if bytes == 0 {
            return Some(Memory { map: None });
        }
        let map = MmapMut::map_anon(bytes).ok()?;
        #[cfg(target_os = "linux")]
        if bytes >= LARGE {
            // only a wish: streams over many small pages wait for their addresses
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Some(Memory { map: Some(map) })
    }

    pub(crate) fn len(&self) -> usize {
        self.map.as_ref().map_or(0, |m| m.len())
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.map.as_ref().map_or(std::ptr::null(), |m| m.as_ptr())
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.map.as_mut().map_or(std::ptr::null_mut(), |m| m.as_mut_ptr())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.map.as_deref_mut().unwrap_or_default()
    }
}

/// Floats that grow and never shrink; what they held is lost when they grow.
#[derive(Default)]
pub(crate) struct Floats(Option<Memory>);

impl Floats {
    pub(crate) fn new(len: usize) -> Floats {
        let mut floats = Floats(None);
        floats.grow(len);
        floats
    }

    /// Makes room for `len` floats.
    ///
    /// # Panics
    /// If there is no memory, as any growing collection.
    pub(crate) fn grow(&mut self, len: usize) {
        if self.len() < len {
            // the old ones first, so that both are never there together
            self.0 = None;
            let memory = len.checked_mul(4).and_then(Memory::zeroed);
            self.0 = Some(memory.unwrap_or_else(|| panic!("no memory for a buffer of {len} floats")));
        }
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        let Some(m) = self.0.as_ref().filter(|m| m.len() > 0) else { return &[] };
        // SAFETY: that many initialised floats, aligned, borrowed from their owner.
        unsafe { std::slice::from_raw_parts(m.as_ptr().cast(), m.len() / 4) }
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        let Some(m) = self.0.as_mut().filter(|m| m.len() > 0) else { return &mut [] };
        let len = m.len() / 4;
        // SAFETY: that many initialised floats, aligned, borrowed from their only owner.
        unsafe { std::slice::from_raw_parts_mut(m.as_mut_ptr().cast(), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_aligned_and_refused_when_there_is_none() {
        for bytes in [0, 1, 63, 64, 65, 1 << 20] {
            let mut m = Memory::zeroed(bytes).expect("a megabyte at most");
            assert!(m.as_ptr().addr().is_multiple_of(64) && m.len() == bytes);
            assert!(m.bytes_mut().iter().all(|b| *b == 0));
            m.bytes_mut().fill(1);
        }
        assert!(Memory::zeroed(usize::MAX).is_none() && Memory::zeroed(isize::MAX as usize).is_none());
    }

    #[test]
    fn floats_only_grow() {
        let mut f = Floats::default();
        assert!(f.is_empty());
        f.grow(3);
        f[2] = 1.0;
        f.grow(2);
        assert_eq!(f[..], [0.0, 0.0, 1.0]);
    }
}
