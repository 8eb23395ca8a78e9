//! Transfers of values to a device and back.

use super::Executor;
use crate::cuda::{Device, Error};

impl<D: Device> Executor<D> {
    /// Writes rows to a slot, padded with zero rows to `rows`: the padding rows of a bucket are
    /// computed like the others and must be finite. An upload and not a launch, so that replayed
    /// launches read new rows.
    pub(super) fn put(&mut self, slot: usize, input: &[f32], rows: usize) -> Result<(), Error> {
        let mut padded = Vec::new();
        let n = rows * self.program.slots[slot].width;
        let input = if input.len() == n {
            input
        } else {
            padded.extend_from_slice(input);
            padded.resize(n, 0.0);
            &padded
        };
        let slot = self.base.offset(self.plan.slots[slot]);
        self.device.upload_floats(slot, input)
    }

    /// Reads the first rows of a slot, and the first words of the step record, where kernels report
    /// results.
    pub(super) fn read(&mut self, slot: usize, rows: usize, words: usize) -> Result<(), Error> {
        let n = rows * self.program.slots[slot].width;
        if n > self.values.len() {
            self.values = self.device.host_buffer(n)?;
        }
        let slot = self.base.offset(self.plan.slots[slot]);
        let record = self.base.offset(self.plan.record);
        let mut copies = [
            (slot, self.values.bytes_mut(n)),
            (record, self.status.bytes_mut(words)),
        ];
        match (n, words) {
            (0, 0) => Ok(()),
            (0, _) => self.device.download_all(&mut copies[1..]),
            (_, 0) => self.device.download_all(&mut copies[..1]),
            _ => self.device.download_all(&mut copies),
        }
    }

    /// Returns the rows of [`Program::kept`](crate::Program::kept) in the last step,
    /// `[rows][width]`; none if the program keeps none.
    ///
    /// # Errors
    /// If the device fails.
    pub fn kept(&mut self) -> Result<&[f32], Error> {
        let Some(slot) = self.program.kept else {
            return Ok(&[]);
        };
        let [rows, outputs] = self.last;
        let n = self.program.rows_of(slot, rows, outputs);
        self.read(slot, n, 0)?;
        Ok(&self.values.floats()[..n * self.program.slots[slot].width])
    }

    /// Copies a page's keys and values in every layer of a group.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If a page does not exist.
    pub fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<(), Error> {
        let n_pages = self.limits.n_pages;
        assert!(
            (from as usize) < n_pages && (to as usize) < n_pages,
            "a page that does not exist"
        );
        let kv = self.program.caches[group];
        let mut start = self.plan.pages[group];
        for _ in 0..kv.n_layer {
            for bytes in kv.halves().map(|half| half.page_stride()) {
                let at = |page: u32| self.base.offset(start + bytes as u64 * u64::from(page));
                self.device.copy(at(from), at(to), bytes)?;
                start += (bytes * n_pages) as u64;
            }
        }
        Ok(())
    }
}
