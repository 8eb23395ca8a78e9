//! One sequence's pages in order of position.

use super::PAGE;
use super::pool::{BlockPool, OutOfPages, PageId};

/// The contents of `from` must be copied to `to` before the step writes: `from` is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// The shared page.
    pub from: PageId,
    /// The sequence's own new page.
    pub to: PageId,
}

/// The page table of a sequence: positions `0..len` are written, and pages may be reserved beyond
/// them. The first pages may have been given back because nobody looks at them any more; the others
/// keep their places.
///
/// A step goes `reserve(end)`, do the copies, write positions `len..end`, `advance(end)`. A table
/// must be given back with
/// [`BlockTable::clear`]: it cannot free its pages when dropped, for the pool is not its own.
#[derive(Debug, Default)]
pub struct BlockTable {
    /// Places at the beginning whose pages were given back.
    passed: usize,
    /// The pages behind these.
    pages: Vec<PageId>,
    len: usize,
}

impl BlockTable {
    /// A table without positions.
    pub fn new() -> BlockTable {
        BlockTable::default()
    }

    /// Positions written.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Places of pages, those of pages given back with them.
    pub fn places(&self) -> usize {
        self.passed + self.pages.len()
    }

    /// Places at the beginning whose pages were given back.
    pub fn passed(&self) -> usize {
        self.passed
    }

    /// Positions that have or had a page.
    pub fn capacity(&self) -> usize {
        self.places() * PAGE
    }

    /// The pages that it has, in order of position: that of place [`BlockTable::passed`] first.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// The page of a place, if it has one there.
    pub fn page(&self, place: usize) -> Option<PageId> {
        self.pages.get(place.checked_sub(self.passed)?).copied()
    }

    /// Page and place inside it of a position that has a page.
    pub fn locate(&self, position: usize) -> Option<(PageId, usize)> {
        let page = self.page(position / PAGE)?;
        Some((page, position % PAGE))
    }

    /// Pages that [`BlockTable::reserve`] would take for positions up to `end`: new ones, and
    /// copies of shared ones.
    pub fn pages_needed(&self, pool: &BlockPool, end: usize) -> usize {
        let new = end.div_ceil(PAGE).saturating_sub(self.places());
        new + self.shared(pool, end).count()
    }

    /// Which of its pages would be written by positions `len..end` but have other owners.
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
    /// shared pages among them by new ones whose contents must first be copied as the result says.
    /// All or nothing: on an error nothing has changed.
    ///
    /// To be called before every step, also when pages were reserved long before: a fork may have
    /// shared them since.
    pub fn reserve(
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

    /// Appends a full page of another owner's, with what it holds; or no page, where nobody will
    /// look at it nor at those before it. Every page here is full.
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

    /// Goes on with another page that holds the same as that of a place, and gives up its own.
    pub(super) fn replace(&mut self, pool: &mut BlockPool, place: usize, page: PageId) {
        pool.retain(page);
        let own = std::mem::replace(&mut self.pages[place - self.passed], page);
        pool.release(own);
    }

    /// Gives back the pages of the first so many places, which keep their numbers.
    ///
    /// # Panics
    /// If these are not all written.
    pub fn pass(&mut self, pool: &mut BlockPool, places: usize) {
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

    /// Declares positions up to `end` written.
    ///
    /// # Panics
    /// If they were not reserved, or `end` is before `len`.
    pub fn advance(&mut self, end: usize) {
        assert!(
            (self.len..=self.capacity()).contains(&end),
            "positions up to {end} are not reserved (written {}, reserved {})",
            self.len,
            self.capacity()
        );
        self.len = end;
    }

    /// Forgets positions from `n` on and gives back every page that then holds none, reserved ones
    /// too.
    ///
    /// # Panics
    /// If a position that is left, and not all are forgotten, would be written to a page that was
    /// given back.
    pub fn truncate(&mut self, pool: &mut BlockPool, n: usize) {
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

    /// Gives back every page.
    pub fn clear(&mut self, pool: &mut BlockPool) {
        self.truncate(pool, 0);
    }

    /// A second sequence with the same positions; their pages are shared until one of the two
    /// writes.
    pub fn fork(&self, pool: &mut BlockPool) -> BlockTable {
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
