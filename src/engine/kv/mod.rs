//! Who owns which page of the KV cache: a free list with reference counts, one page table per
//! sequence, and a tree of the full pages that later texts may begin with.
//!
//! Pure bookkeeping, shared by all backends and tested without a model; where a page's bytes lie
//! and how they are laid out inside is the backend's matter. A page holds [`PAGE`] positions of
//! every layer and head. Pages are shared between sequences with a common beginning and copied when
//! one of them is about to write (copy on write); everything a step needs is reserved before the
//! step, all of it or nothing. Layers with a window have pages of their own, which a sequence gives
//! back when no token to come looks at them.

mod ledger;
mod pool;
mod prefix;
mod states;
mod table;
mod window;

pub use ledger::{GroupCopy, Ledger, PageCounts, Timeline};
pub use pool::{BlockPool, OutOfPages, PageId};
pub use prefix::History;
pub use states::{CHECKPOINTS, Checkpoint, WRITES};
pub use table::{BlockTable, PageCopy};

/// Stands in a table where a page was given back: the number of no page, at which nobody looks.
pub const NO_PAGE: u32 = u32::MAX;

/// Positions in a page: as many as kernels take at a time.
pub use octavo_kernels::PAGE_POSITIONS as PAGE;
