//! Slots as llama-server counts them, whose pages can be saved and put back.
//!
//! Requests share one cache here, so a slot is only a number: that of the requests that named it,
//! or the lowest that no running request has. It stands for the text that its last request
//! computed.

use std::sync::Arc;

use super::{Batch, RequestId};
use crate::adapters::AdapterSet;
use crate::kv::{PrefixKey, SlotError, SlotPages};
use crate::scheduler::Asked;

/// The last text of a slot.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    tokens: Vec<u32>,
    salt: Option<String>,
    adapters: Arc<AdapterSet>,
    /// The request that has it now.
    holder: Option<RequestId>,
}

impl Slot {
    fn prefix(&self) -> PrefixKey<'_> {
        PrefixKey {
            tokens: &self.tokens,
            n_prompt: self.tokens.len(),
            salt: self.salt.as_deref(),
            adapters: &self.adapters,
        }
    }
}

impl Batch {
    /// Gives a new request the slot that it names, or else the first that none has.
    pub(super) fn take_slot(&mut self, id: RequestId, named: Option<usize>, asked: &Asked) {
        let free = || self.slots.iter().position(|slot| slot.holder.is_none());
        let Some(at) = named.or_else(free) else {
            return;
        };
        if let Some(slot) = self.slots.get_mut(at) {
            slot.tokens.clear();
            slot.salt = asked.salt.clone();
            slot.adapters = asked.adapters.clone();
            slot.holder = Some(id);
        }
    }

    /// Takes back the slot of a request that has computed these tokens.
    pub(super) fn release_slot(&mut self, id: RequestId, tokens: &[u32]) {
        let mut slots = self.slots.iter_mut();
        if let Some(slot) = slots.find(|slot| slot.holder == Some(id)) {
            slot.tokens = tokens.to_vec();
            slot.holder = None;
        }
    }

    /// Returns the pages of a slot's last text, as far as they are of a prompt; only to the caller
    /// with its salt.
    ///
    /// # Errors
    /// If there are none.
    pub fn slot_pages(&mut self, slot: usize, salt: Option<&str>) -> Result<SlotPages, SlotError> {
        let Some(identity) = self.engine.identity() else {
            return Err(SlotError::Unsupported);
        };
        let own = |slot: &&Slot| slot.salt.as_deref() == salt;
        let slot = self.slots.get(slot).filter(own).ok_or(SlotError::Empty)?;
        self.engine.runner().slot_pages(identity, &slot.prefix())
    }

    /// Puts pages into the prefix cache, as those of a slot and of texts with this salt; returns
    /// how many tokens of them are cached then.
    ///
    /// # Errors
    /// If they are of texts with another salt.
    pub fn put_slot(
        &mut self,
        slot: usize,
        salt: Option<&str>,
        pages: &SlotPages,
    ) -> Result<usize, SlotError> {
        let tokens = pages.tokens();
        let restored = Slot {
            // a file does not name them: pages of others have other digests
            adapters: self.engine.adapter_set(None, &tokens).unwrap_or_default(),
            tokens,
            salt: salt.map(str::to_owned),
            holder: None,
        };
        let n = self.engine.runner().put_slot(pages, &restored.prefix())?;
        if let Some(slot) = self.slots.get_mut(slot) {
            let holder = slot.holder;
            *slot = Slot { holder, ..restored };
        }
        Ok(n)
    }

    /// Forgets a slot's last text and drops its pages from the prefix cache in memory, but for
    /// those that other texts use; returns how many tokens they held.
    pub fn erase_slot(&mut self, slot: usize, salt: Option<&str>) -> usize {
        let own = |slot: &&mut Slot| slot.salt.as_deref() == salt;
        let Some(slot) = self.slots.get_mut(slot).filter(own) else {
            return 0;
        };
        let pages = self.engine.runner().kv_cache.erase(&slot.prefix());
        slot.tokens.clear();
        pages * crate::kv::PAGE
    }
}
