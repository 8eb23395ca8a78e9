//! Pages and states as bytes, to keep them elsewhere and to bring them back.

use super::KvStore;
use crate::state::StateStore;

impl KvStore {
    /// Returns the bytes of a page of all layers of a group.
    pub fn page_bytes(&self, group: usize) -> usize {
        let group = &self.groups[group];
        let halves = group.halves.iter();
        let page = halves.map(|half| half.shape.page_stride());
        page.sum::<usize>() * group.shape.n_layer
    }

    /// Returns the bytes of a state; 0 without recurrent layers.
    pub fn state_bytes(&self) -> usize {
        self.states.bytes()
    }

    /// Appends a page of every layer of a group to `out`, [`KvStore::page_bytes`] of them.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn read_page(&self, group: usize, page: u32, out: &mut Vec<u8>) {
        assert!((page as usize) < self.n_pages, "a page that does not exist");
        let group = &self.groups[group];
        for half in &group.halves {
            let stride = half.shape.page_stride();
            for layer in 0..group.shape.n_layer {
                let at = (layer * half.layer_pages + page as usize) * stride;
                out.extend_from_slice(&half.memory.bytes()[at..at + stride]);
            }
        }
    }

    /// Writes what [`KvStore::read_page`] has read to a page that nobody reads.
    ///
    /// # Panics
    /// If there is no such page, or the bytes are not as many as it has.
    pub fn write_page(&mut self, group: usize, page: u32, bytes: &[u8]) {
        assert!((page as usize) < self.n_pages, "a page that does not exist");
        assert_eq!(bytes.len(), self.page_bytes(group), "bytes of a page");
        self.wait_for_readers();
        let group = &mut self.groups[group];
        let mut bytes = bytes;
        for half in &mut group.halves {
            let stride = half.shape.page_stride();
            for layer in 0..group.shape.n_layer {
                let at = (layer * half.layer_pages + page as usize) * stride;
                let (own, rest) = bytes.split_at(stride);
                half.memory.bytes_mut()[at..at + stride].copy_from_slice(own);
                bytes = rest;
            }
        }
    }

    /// Appends a state to `out`, [`KvStore::state_bytes`] of it.
    ///
    /// # Panics
    /// If there is no such state.
    pub fn read_state(&self, slot: u32, out: &mut Vec<u8>) {
        let range = self.states.range(slot);
        let memory = self.states.memory.as_ref();
        out.extend_from_slice(memory.map_or(&[][..], |memory| &memory.bytes()[range]));
    }

    /// Writes what [`KvStore::read_state`] has read to a slot that nobody reads.
    ///
    /// # Panics
    /// If there is no such slot, or the bytes are not as many as it has.
    pub fn write_state(&mut self, slot: u32, bytes: &[u8]) {
        self.wait_for_readers();
        let range = self.states.range(slot);
        assert_eq!(bytes.len(), range.len(), "bytes of a state");
        if let Some(memory) = &mut self.states.memory {
            memory.bytes_mut()[range].copy_from_slice(bytes);
        }
    }
}

impl StateStore {
    /// Returns the bytes of a state.
    fn bytes(&self) -> usize {
        self.parts.iter().sum::<usize>() * size_of::<f32>()
    }

    /// Returns where the bytes of a state are.
    fn range(&self, slot: u32) -> std::ops::Range<usize> {
        let (slot, bytes) = (slot as usize, self.bytes());
        assert!(slot < self.slots, "a state that does not exist");
        slot * bytes..(slot + 1) * bytes
    }
}
