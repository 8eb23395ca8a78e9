//! The pages of one sequence, in order of position.

use super::PAGE;
use super::block_pool::{BlockPool, OutOfPages, PageId};

/// The contents of `from` must be copied to `to` before the step writes: `from` is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageCopy {
    /// The shared page.
    pub from: PageId,
    /// The sequence's own new page.
    pub to: PageId,
}

/// The page table of a sequence: positions `0..len` are written, and pages may be reserved beyond
/// them. The first pages may have been freed because no token attends to them any more; the others
/// keep their places.
///
/// A step calls `reserve(end)`, copies pages, writes positions `len..end` and calls `advance(end)`.
/// A table must be freed with [`BlockTable::clear`]: dropping it does not free its pages, because
/// it does not own the pool.
#[derive(Debug, Default)]
pub(crate) struct BlockTable {
    /// Places at the beginning whose pages were freed.
    passed: usize,
    /// The pages after these.
    pages: Vec<PageId>,
    len: usize,
}

impl BlockTable {
    /// Creates a table without positions.
    pub(crate) fn new() -> BlockTable {
        BlockTable::default()
    }

    /// Returns the number of positions written.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of places of pages, including freed ones.
    pub(crate) fn places(&self) -> usize {
        self.passed + self.pages.len()
    }

    /// Returns the number of places at the beginning whose pages were freed.
    pub(crate) fn passed(&self) -> usize {
        self.passed
    }

    /// Returns the number of positions that have or had a page.
    pub(crate) fn capacity(&self) -> usize {
        self.places() * PAGE
    }

    /// Returns its pages in order of position, the one at place [`BlockTable::passed`] first.
    pub(crate) fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// Returns the page of a place, if it has one there.
    pub(crate) fn page(&self, place: usize) -> Option<PageId> {
        self.pages.get(place.checked_sub(self.passed)?).copied()
    }

    /// Returns the page of a position, and the place inside it; `None` if it has no page.
    #[cfg(test)]
    pub(crate) fn locate(&self, position: usize) -> Option<(PageId, usize)> {
        let page = self.page(position / PAGE)?;
        Some((page, position % PAGE))
    }

    /// Returns the number of pages that [`BlockTable::reserve`] would take for positions up to
    /// `end`: new ones, and copies of shared ones.
    pub(crate) fn pages_needed(&self, pool: &BlockPool, end: usize) -> usize {
        let new = end.div_ceil(PAGE).saturating_sub(self.places());
        new + self.shared(pool, end).count()
    }

    /// Returns which of its pages positions `len..end` would write although they have other owners.
    fn shared<'a>(&'a self, pool: &'a BlockPool, end: usize) -> impl Iterator<Item = usize> + 'a {
        let last = end.div_ceil(PAGE).min(self.places());
        let first = if end > self.len {
            (self.len / PAGE).min(last)
        } else {
            last
        };
        let pages = first - self.passed..last - self.passed;
        pages.filter(|&i| pool.is_shared(self.pages[i]))
    }

    /// Makes positions `len..end` writable by this sequence alone: takes new pages, and replaces
    /// shared pages among them by new ones. The contents of these must first be copied as the
    /// result says. All or nothing: on an error nothing has changed.
    ///
    /// Call it before every step, also if pages were reserved long before: a fork may have shared
    /// them since.
    pub(crate) fn reserve(
        &mut self,
        pool: &mut BlockPool,
        end: usize,
    ) -> Result<Vec<PageCopy>, OutOfPages> {
        let shared: Vec<usize> = self.shared(pool, end).collect();
        let mut fresh = pool.alloc(self.pages_needed(pool, end))?.into_iter();
        let mut copies = Vec::new();
        for (i, to) in shared.into_iter().zip(fresh.by_ref()) {
            let from = std::mem::replace(&mut self.pages[i], to);
            pool.release(from);
            // a page that starts at or after len holds nothing of this sequence
            if (self.passed + i) * PAGE < self.len {
                copies.push(PageCopy { from, to });
            }
        }
        self.pages.extend(fresh);
        Ok(copies)
    }

    /// Appends a full page of another owner, with its contents; or no page, where no token will
    /// attend to it nor to those before it. Every page here is full.
    pub(super) fn adopt(&mut self, pool: &mut BlockPool, page: Option<PageId>) {
        assert_eq!(
            self.len,
            self.capacity(),
            "a page before this one is not full"
        );
        self.len += PAGE;
        if let Some(page) = page {
            pool.retain(page);
            self.pages.push(page);
        } else {
            self.pass(pool, self.places());
            self.passed += 1;
        }
    }

    /// Replaces the page of a place by another with the same contents, and releases its own.
    pub(super) fn replace(&mut self, pool: &mut BlockPool, place: usize, page: PageId) {
        pool.retain(page);
        let own = std::mem::replace(&mut self.pages[place - self.passed], page);
        pool.release(own);
    }

    /// Frees the pages of the first `places` places; the others keep their places.
    ///
    /// # Panics
    /// If these are not all written.
    pub(crate) fn pass(&mut self, pool: &mut BlockPool, places: usize) {
        assert!(
            places * PAGE <= self.len,
            "a page that is still to be written"
        );
        let n = places.saturating_sub(self.passed);
        for page in self.pages.drain(..n) {
            pool.release(page);
        }
        self.passed += n;
    }

    /// Marks positions up to `end` as written.
    ///
    /// # Panics
    /// If they were not reserved, or `end` is before `len`.
    pub(crate) fn advance(&mut self, end: usize) {
        assert!(
            (self.len..=self.capacity()).contains(&end),
            "positions up to {end} are not reserved (written {}, reserved {})",
            self.len,
            self.capacity()
        );
        self.len = end;
    }

    /// Drops positions from `n` on and frees every page that then holds none, reserved ones too.
    ///
    /// # Panics
    /// If a freed page would be written: one that holds a position that is left, unless none is
    /// left.
    pub(crate) fn truncate(&mut self, pool: &mut BlockPool, n: usize) {
        self.len = self.len.min(n);
        if self.len == 0 {
            self.passed = 0;
            self.pages.drain(..).for_each(|page| {
                pool.release(page);
            });
            return;
        }
        assert!(
            self.passed <= self.len / PAGE,
            "a page that was given back would be written"
        );
        let left = self.len.div_ceil(PAGE) - self.passed;
        for page in self.pages.drain(left..) {
            pool.release(page);
        }
    }

    /// Frees every page.
    #[cfg(test)]
    pub(crate) fn clear(&mut self, pool: &mut BlockPool) {
        self.truncate(pool, 0);
    }

    /// Creates a second table with the same positions; the two share pages until one of them
    /// writes.
    pub(crate) fn fork(&self, pool: &mut BlockPool) -> BlockTable {
        let pages = self.pages[..self.len.div_ceil(PAGE) - self.passed].to_vec();
        for &page in &pages {
            pool.retain(page);
        }
        BlockTable {
            passed: self.passed,
            pages,
            len: self.len,
        }
    }
}
