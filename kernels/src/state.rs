//! Storage of recurrent state: slots of one size, one sequence's state each. Ownership of slots is
//! decided elsewhere.

use std::sync::Arc;

use memmap2::MmapRaw;

use crate::memory::{Memory, NoMemory};

/// State slots, each with the parts of a sequence's state one after the other.
#[derive(Default)]
pub(crate) struct StateStore {
    /// Floats of each part.
    pub(crate) parts: Vec<usize>,
    pub(crate) slots: usize,
    pub(crate) memory: Option<Memory>,
}

impl StateStore {
    /// Reserves room for `slots` states. The system hands out memory as slots are first written.
    pub(crate) fn new(parts: &[usize], slots: usize) -> Result<StateStore, NoMemory> {
        let floats = parts.iter().try_fold(0usize, |sum, n| sum.checked_add(*n));
        let bytes = floats
            .and_then(|n| n.checked_mul(size_of::<f32>()))
            .and_then(|n| n.checked_mul(slots));
        let no_memory = NoMemory {
            bytes: bytes.unwrap_or(usize::MAX),
        };
        let memory = match bytes {
            Some(0) => None,
            Some(bytes) => Some(Memory::zeroed(bytes).ok_or(no_memory)?),
            None => return Err(no_memory),
        };
        Ok(StateStore {
            parts: parts.to_vec(),
            slots,
            memory,
        })
    }

    /// Whether it was made for states of these parts.
    pub(crate) fn is_of(&self, parts: &[usize]) -> bool {
        self.parts == parts
    }

    /// Whether another store is for states of the same parts.
    pub(crate) fn is_like(&self, other: &StateStore) -> bool {
        self.is_of(&other.parts)
    }

    /// The slots in a form that threads share.
    pub(crate) fn shared(&mut self) -> States {
        let memory = self.memory.as_mut();
        let (base, keep) = memory.map_or((std::ptr::null_mut(), None), |memory| {
            (memory.as_mut_ptr().cast(), memory.keep())
        });
        States {
            base,
            parts: self.parts.clone(),
            slots: self.slots,
            _keep: keep,
        }
    }
}

/// A pointer into a [`StateStore`] for concurrent readers, and writers of different floats.
pub(crate) struct States {
    base: *mut f32,
    parts: Vec<usize>,
    slots: usize,
    _keep: Option<Arc<MmapRaw>>,
}

// SAFETY: only a pointer; callers that dereference the result of `part` say which floats are whose.
unsafe impl Sync for States {}
// SAFETY: as for `Sync`: the pointer belongs to no thread.
unsafe impl Send for States {}

impl States {
    /// The first of a part's floats in a slot.
    pub(crate) fn part(&self, slot: u32, part: usize) -> *mut f32 {
        let slot = slot as usize;
        assert!(slot < self.slots, "a state that does not exist");
        let whole: usize = self.parts.iter().sum();
        let before: usize = self.parts[..part].iter().sum();
        self.base.wrapping_add(slot * whole + before)
    }
}
