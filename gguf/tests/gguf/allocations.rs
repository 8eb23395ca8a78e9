//! Counts the allocations of one thread.
#![allow(unsafe_code)] // a global allocator cannot be written without it

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Bytes counted by [`measure`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    live: usize,
    /// Peak of live bytes.
    pub(crate) peak: usize,
    /// Largest single allocation.
    pub(crate) largest: usize,
}

thread_local! {
    static USED: Cell<Used> = const { Cell::new(Used { live: 0, peak: 0, largest: 0 }) };
}

fn note(change: impl FnOnce(&mut Used)) {
    // fails only while a thread ends, when nothing is measured any more
    let _ = USED.try_with(|cell| {
        let mut used = cell.get();
        change(&mut used);
        cell.set(used);
    });
}

fn add(size: usize) {
    note(|u| {
        u.live += size;
        u.peak = u.peak.max(u.live);
        u.largest = u.largest.max(size);
    });
}

struct Counting;

// SAFETY: every call is passed unchanged to the system's allocator; the counting touches a
// thread-local cell only and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        note(|u| u.live = u.live.saturating_sub(layout.size()));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // the old and the new allocation may exist side by side for a moment
        add(size);
        note(|u| u.live = u.live.saturating_sub(layout.size()));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `f` and returns its allocations in this thread.
pub(crate) fn measure<T>(f: impl FnOnce() -> T) -> (T, Used) {
    USED.set(Used::default());
    let result = f();
    (result, USED.get())
}

#[test]
fn the_counter_counts() {
    let (_, used) = measure(|| {
        drop(std::hint::black_box(vec![1u8; 1000]));
        std::hint::black_box(vec![0u8; 500])
    });
    assert_eq!((used.peak, used.largest), (1000, 1000));
}
