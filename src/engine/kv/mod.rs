//! Manages the pages of the KV cache: a free list with reference counts, one page table per
//! sequence, and a prefix tree of the full pages that later texts may begin with.
//!
//! Pure bookkeeping, shared by all backends and tested without a model; where a page's bytes lie
//! and how they are laid out inside is the backend's matter. A page holds [`PAGE`] positions of
//! every layer and head. Sequences with a common prefix share pages, which are copied when one of
//! them is about to write (copy on write); everything a step needs is reserved before the step, all
//! of it or nothing. Layers with a sliding window have pages of their own, which a sequence frees
//! when no token to come attends to them.

mod block_pool;
mod block_table;
mod cache_manager;
mod disk;
mod prefix_cache;
mod sliding_window;
mod state_checkpoints;
#[cfg(test)]
mod tests;

pub use block_pool::OutOfPages;
pub(crate) use block_pool::PageId;
pub(crate) use block_table::BlockTable;
pub use cache_manager::PageCounts;
pub(crate) use cache_manager::{CachedPage, GroupCopy, KvCacheManager, SequenceKv};
pub(crate) use disk::{
    Digest, DiskCache, MAX_RUN, MIN_RUN, PageParts, PageSizes, PartBytes, SavedPage, page_digest,
    root,
};
pub use disk::{PromptCacheOptions, PromptCacheStats, SlotError, SlotPages};
pub(crate) use prefix_cache::PrefixKey;
pub(crate) use state_checkpoints::{CHECKPOINTS, Checkpoint, DRAFT_WRITES, WRITES};

/// Page number in a table where the page was freed: the number of no page, never read.
pub(crate) const NO_PAGE: u32 = u32::MAX;

/// Positions per page: as many as kernels take at a time.
pub use octavo_kernels::PAGE_POSITIONS as PAGE;
