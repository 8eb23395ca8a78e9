//! Byte strings stored end to end, numbered, and found by content: the vocabulary without one
//! allocation per token.

use std::hash::{BuildHasher, RandomState};

/// Mark of an empty slot.
const FREE: u32 = u32::MAX;

/// An append-only list of byte strings; those added by `insert` can be looked up.
pub(super) struct Texts {
    bytes: Vec<u8>,
    /// End of each string; it starts at the end of the one before.
    ends: Vec<usize>,
    /// Open addressing: (id, part of the hash). The keyed hash keeps a hostile file from making
    /// this quadratic.
    slots: Vec<(u32, u32)>,
    used: usize,
    hasher: RandomState,
}

impl Texts {
    /// Creates an empty list with room for `n` strings.
    pub(super) fn with_capacity(n: usize) -> Texts {
        let slots = (n.max(8) * 2).next_power_of_two();
        Texts {
            bytes: Vec::with_capacity(n * 6),
            ends: Vec::with_capacity(n),
            slots: vec![(FREE, 0); slots],
            used: 0,
            hasher: RandomState::new(),
        }
    }

    /// Returns the number of strings.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the string with this number; empty if there is none.
    pub(super) fn text(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = if id == 0 {
            0
        } else {
            self.ends.get(id - 1).copied().unwrap_or(0)
        };
        self.ends
            .get(id)
            .and_then(|end| self.bytes.get(start..*end))
            .unwrap_or_default()
    }

    /// Appends a string that look-ups do not find.
    pub(super) fn push_hidden(&mut self, text: &[u8]) -> u32 {
        // Callers bound the count: each token and merge occupies at least a length in the file.
        let id = u32::try_from(self.ends.len()).expect("fewer than 2^32 strings");
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
        id
    }

    /// Appends a string, or returns (as an error) the number of an equal one.
    pub(super) fn insert(&mut self, text: &[u8]) -> Result<u32, u32> {
        if self.used * 4 >= self.slots.len() * 3 {
            self.grow();
        }
        let tag = self.tag(text);
        match self.find(text, tag) {
            Ok(id) => Err(id),
            Err(slot) => {
                let id = self.push_hidden(text);
                self.slots[slot] = (id, tag);
                self.used += 1;
                Ok(id)
            }
        }
    }

    /// Appends a string that look-ups find from now on, even if there is an equal one, whose number
    /// is returned.
    pub(super) fn insert_again(&mut self, text: &[u8]) -> Option<u32> {
        let first = self.insert(text).err()?;
        let tag = self.tag(text);
        let id = self.push_hidden(text);
        let mask = self.slots.len() - 1;
        let mut slot = tag as usize & mask;
        // it is there: `insert` has found it
        while self.slots[slot] != (first, tag) {
            slot = (slot + 1) & mask;
        }
        self.slots[slot].0 = id;
        Some(first)
    }

    /// Returns the number of an inserted string.
    pub(super) fn get(&self, text: &[u8]) -> Option<u32> {
        self.find(text, self.tag(text)).ok()
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "32 bits of hash are what is kept"
    )]
    fn tag(&self, text: &[u8]) -> u32 {
        self.hasher.hash_one(text) as u32
    }

    /// Returns the id of `text`, or the free slot for it.
    fn find(&self, text: &[u8], tag: u32) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        let mut slot = tag as usize & mask;
        loop {
            match self.slots[slot] {
                (FREE, _) => return Err(slot),
                (id, t) if t == tag && self.text(id) == text => return Ok(id),
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    fn grow(&mut self) {
        let mask = self.slots.len() * 2 - 1;
        let old = std::mem::replace(&mut self.slots, vec![(FREE, 0); mask + 1]);
        for entry in old.into_iter().filter(|(id, _)| *id != FREE) {
            let mut slot = entry.1 as usize & mask;
            while self.slots[slot].0 != FREE {
                slot = (slot + 1) & mask;
            }
            self.slots[slot] = entry;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserted_strings_are_found_and_hidden_ones_are_not() {
        let mut texts = Texts::with_capacity(0);
        for i in 0..5000_u32 {
            assert_eq!(texts.insert(format!("t{i}").as_bytes()), Ok(i));
        }
        assert_eq!(texts.insert(b"t7"), Err(7));
        assert_eq!(texts.push_hidden(b"hidden"), 5000);
        assert_eq!(texts.get(b"hidden"), None);
        assert_eq!(texts.text(5000), b"hidden");
        assert_eq!(texts.get(b"t4999"), Some(4999));
        assert_eq!(texts.get(b"t5000"), None);
        assert_eq!(texts.get(b""), None);
        assert_eq!(texts.text(0), b"t0");
        assert_eq!(texts.text(9999), b"");
        assert_eq!(texts.len(), 5001);
    }

    #[test]
    fn the_last_of_equal_strings_is_found() {
        let mut texts = Texts::with_capacity(0);
        for i in 0..100_u32 {
            assert_eq!(texts.insert_again(format!("t{i}").as_bytes()), None);
        }
        assert_eq!(texts.insert_again(b"t7"), Some(7));
        assert_eq!(texts.insert_again(b"t7"), Some(100));
        assert_eq!(texts.get(b"t7"), Some(101));
        assert_eq!(texts.insert(b"new"), Ok(102));
        for id in [7, 100, 101] {
            assert_eq!(texts.text(id), b"t7");
        }
        assert_eq!(texts.get(b"t99"), Some(99));
    }
}
