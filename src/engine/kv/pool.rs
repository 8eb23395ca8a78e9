//! The free list and the reference counts.

/// A page's number: 0 up to the pool's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// There are not as many free pages as asked for; nothing was taken.
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
pub struct BlockPool {
    /// Free pages; the one freed last is given out first, while its memory is warm.
    free: Vec<PageId>,
    /// Owners of each page; 0 = free.
    refs: Vec<u32>,
    /// Pages that are kept for later texts: one owner of theirs is the tree of prefixes.
    kept: Vec<bool>,
    /// Kept pages without another owner.
    n_cached: usize,
}

impl BlockPool {
    /// A pool of `capacity` free pages, numbered from 0.
    pub fn new(capacity: u32) -> BlockPool {
        BlockPool {
            free: (0..capacity).rev().map(PageId).collect(),
            refs: vec![0; capacity as usize],
            kept: vec![false; capacity as usize],
            n_cached: 0,
        }
    }

    /// Pages in the pool.
    pub fn capacity(&self) -> usize {
        self.refs.len()
    }

    /// Pages without an owner.
    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// Pages with an owner.
    pub fn used_pages(&self) -> usize {
        self.capacity() - self.free_pages()
    }

    /// Pages that are kept for later texts and have no other owner.
    pub fn cached_pages(&self) -> usize {
        self.n_cached
    }

    /// Keeps a page that has an owner: adds the tree of prefixes as another.
    ///
    /// # Panics
    /// If the page is kept already, or free.
    pub(super) fn keep(&mut self, page: PageId) {
        self.retain(page);
        let kept = &mut self.kept[page.0 as usize];
        assert!(!*kept, "page {} is kept already", page.0);
        *kept = true;
    }

    /// Keeps a page no longer.
    ///
    /// # Panics
    /// If the page is not kept, or has other owners.
    pub(super) fn drop_kept(&mut self, page: PageId) {
        let i = page.0 as usize;
        assert!(
            self.kept[i] && self.refs[i] == 1,
            "page {} is not kept, or in use",
            page.0
        );
        self.kept[i] = false;
        self.n_cached -= 1;
        self.release(page);
    }

    /// Owners of a page; 0 if it is free.
    ///
    /// # Panics
    /// If the page is not of this pool.
    pub fn ref_count(&self, page: PageId) -> u32 {
        self.refs[page.0 as usize]
    }

    /// Whether writing to the page would be seen by another owner, so that it must be copied first.
    pub fn is_shared(&self, page: PageId) -> bool {
        self.ref_count(page) > 1
    }

    /// Takes `n` pages with one owner each, or none at all.
    pub fn alloc(&mut self, n: usize) -> Result<Vec<PageId>, OutOfPages> {
        self.check(n)?;
        let pages: Vec<PageId> = self.free.drain(self.free.len() - n..).rev().collect();
        for page in &pages {
            self.refs[page.0 as usize] = 1;
        }
        Ok(pages)
    }

    /// Whether `n` pages could be taken.
    pub fn check(&self, n: usize) -> Result<(), OutOfPages> {
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
    /// If the page is free: its contents belong to nobody.
    pub fn retain(&mut self, page: PageId) {
        let refs = &mut self.refs[page.0 as usize];
        assert!(*refs > 0, "page {} is free and cannot be shared", page.0);
        *refs += 1;
        if self.kept[page.0 as usize] && *refs == 2 {
            self.n_cached -= 1;
        }
    }

    /// Removes an owner; the page is free when it was the last one. Returns whether it was.
    ///
    /// # Panics
    /// If the page is free already.
    pub fn release(&mut self, page: PageId) -> bool {
        let refs = &mut self.refs[page.0 as usize];
        assert!(*refs > 0, "page {} is free already", page.0);
        *refs -= 1;
        if self.kept[page.0 as usize] && *refs == 1 {
            self.n_cached += 1;
        }
        let last = *refs == 0;
        if last {
            self.free.push(page);
        }
        last
    }
}
