//! The pointer through which threads access shared buffers.

/// A pointer that threads share; every use says which part is whose.
pub(in crate::exec) struct Shared<T>(pub(in crate::exec) *mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: only a pointer; each dereference has its own reason.
unsafe impl<T> Sync for Shared<T> {}

// SAFETY: only a pointer, which belongs to no thread.
unsafe impl<T> Send for Shared<T> {}

impl<T> Shared<T> {
    /// `len` values from `at` on, to be read.
    ///
    /// # Safety
    /// - They are inside the allocation.
    /// - No thread writes any of them while the result is used.
    pub(in crate::exec) unsafe fn read<'a>(self, at: usize, len: usize) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.0.add(at), len) }
    }

    /// `len` values from `at` on, to be written.
    ///
    /// # Safety
    /// - They are inside the allocation.
    /// - No other thread reads or writes any of them while the result is used. To borrow more than
    ///   these, a whole row of which this thread has a part, would already count as access to the
    ///   others.
    pub(in crate::exec) unsafe fn write<'a>(self, at: usize, len: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Runs `one` and `other` on a row of eight values at the same time: both threads are there
    /// before either begins, so that nothing orders what they do.
    fn at_once(
        one: impl FnOnce(Shared<f32>) + Send,
        other: impl FnOnce(Shared<f32>) + Send,
    ) -> Vec<f32> {
        let mut row = vec![0.0; 8];
        let shared = Shared(row.as_mut_ptr());
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                one(shared);
            });
            scope.spawn(|| {
                both.wait();
                other(shared);
            });
        });
        row
    }

    fn fill(row: Shared<f32>, at: usize, value: f32) {
        // SAFETY: four of the eight values; each test says which thread uses which.
        unsafe { row.write(at, 4) }.fill(value);
    }

    #[test]
    fn each_thread_writes_its_own_part() {
        let row = at_once(|row| fill(row, 0, 1.0), |row| fill(row, 4, 2.0));
        assert_eq!(row, [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]);
    }

    #[test]
    #[ignore = "a planted fault: Miri must see it (tools/miri.sh)"]
    fn planted_parts_that_overlap() {
        at_once(|row| fill(row, 0, 1.0), |row| fill(row, 3, 2.0));
    }

    #[test]
    #[ignore = "a planted fault: Miri must see it (tools/miri.sh)"]
    fn planted_read_of_a_whole_row() {
        let first_of_whole = |row: Shared<f32>| {
            // SAFETY: none: the other thread writes values that this borrows along with the one it
            // reads.
            let whole = unsafe { row.read(0, 8) };
            std::hint::black_box(whole[0]);
        };
        at_once(first_of_whole, |row| fill(row, 4, 2.0));
    }
}
