//! Free list and reference counts of pages.

/// Number of a page, below the pool's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PageId(pub u32);

/// Not as many free pages as asked for; nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the KV cache is full: {needed} pages needed, {free} of {capacity} free")]
pub struct OutOfPages {
    /// Pages asked for.
    pub needed: usize,
    /// Pages that were free.
    pub free: usize,
    /// Pages in the pool.
    pub capacity: usize,
}

/// All pages of a cache. A page is free, or has as many owners as its reference count says.
#[derive(Clone, Debug)]
pub(crate) struct BlockPool {
    /// Free pages; the one freed last is reused first, while its memory is warm.
    free: Vec<PageId>,
    /// Owners of each page; 0 = free.
    refs: Vec<u32>,
    /// Cached pages: one of their owners is the prefix tree.
    retained: Vec<bool>,
    /// Cached pages without another owner.
    n_cached: usize,
}

impl BlockPool {
    /// Creates a pool of `capacity` free pages, numbered from 0.
    pub(crate) fn new(capacity: u32) -> BlockPool {
        BlockPool {
            free: (0..capacity).rev().map(PageId).collect(),
            refs: vec![0; capacity as usize],
            retained: vec![false; capacity as usize],
            n_cached: 0,
        }
    }

    /// Returns the number of pages in the pool.
    pub(crate) fn capacity(&self) -> usize {
        self.refs.len()
    }

    /// Returns the number of pages without an owner.
    pub(crate) fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of pages with an owner.
    pub(crate) fn used_pages(&self) -> usize {
        self.capacity() - self.free_pages()
    }

    /// Returns the number of cached pages that only the prefix tree owns.
    pub(crate) fn cached_pages(&self) -> usize {
        self.n_cached
    }

    /// Adds the prefix tree as an owner of a page that has one.
    ///
    /// # Panics
    /// If the prefix tree owns the page already, or it is free.
    pub(super) fn keep(&mut self, page: PageId) {
        self.retain(page);
        let retained = &mut self.retained[page.0 as usize];
        assert!(!*retained, "page {} is kept already", page.0);
        *retained = true;
    }

    /// Removes the prefix tree as the owner of a page, which is free then.
    ///
    /// # Panics
    /// If the prefix tree does not own the page, or it has other owners.
    pub(super) fn drop_cached(&mut self, page: PageId) {
        let i = page.0 as usize;
        assert!(
            self.retained[i] && self.refs[i] == 1,
            "page {} is not kept, or in use",
            page.0
        );
        self.retained[i] = false;
        self.n_cached -= 1;
        self.release(page);
    }

    /// Returns the number of owners of a page; 0 if it is free.
    ///
    /// # Panics
    /// If the page is not of this pool.
    pub(crate) fn ref_count(&self, page: PageId) -> u32 {
        self.refs[page.0 as usize]
    }

    /// Returns whether another owner would see what is written to the page, so that it must be
    /// copied first.
    pub(crate) fn is_shared(&self, page: PageId) -> bool {
        self.ref_count(page) > 1
    }

    /// Takes `n` pages with one owner each, or none at all.
    pub(crate) fn alloc(&mut self, n: usize) -> Result<Vec<PageId>, OutOfPages> {
        self.check(n)?;
        let pages: Vec<PageId> = self.free.drain(self.free.len() - n..).rev().collect();
        for page in &pages {
            self.refs[page.0 as usize] = 1;
        }
        Ok(pages)
    }

    /// Checks that `n` pages could be taken.
    pub(crate) fn check(&self, n: usize) -> Result<(), OutOfPages> {
        if n <= self.free.len() {
            return Ok(());
        }
        Err(OutOfPages {
            needed: n,
            free: self.free.len(),
            capacity: self.capacity(),
        })
    }

    /// Adds an owner.
    ///
    /// # Panics
    /// If the page is free: its contents have no owner.
    pub(crate) fn retain(&mut self, page: PageId) {
        let refs = &mut self.refs[page.0 as usize];
        assert!(*refs > 0, "page {} is free and cannot be shared", page.0);
        *refs += 1;
        if self.retained[page.0 as usize] && *refs == 2 {
            self.n_cached -= 1;
        }
    }

    /// Removes an owner; the page is free when it was the last one. Returns whether it was.
    ///
    /// # Panics
    /// If the page is free already.
    pub(crate) fn release(&mut self, page: PageId) -> bool {
        let refs = &mut self.refs[page.0 as usize];
        assert!(*refs > 0, "page {} is free already", page.0);
        *refs -= 1;
        if self.retained[page.0 as usize] && *refs == 1 {
            self.n_cached += 1;
        }
        let last = *refs == 0;
        if last {
            self.free.push(page);
        }
        last
    }
}
