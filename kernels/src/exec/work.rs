//! A step as the pool runs it: the sections of its plan, by all threads.

use std::time::Duration;

use super::arena::mark_of;
use super::frame::Frame;
use super::items::Items;
use super::section_part::SectionPart;
use crate::pool::{Member, Work};
use crate::program::Resource;

impl Work for Frame {
    fn sections(&self) -> usize {
        self.sections.len()
    }

    fn run(&self, member: &Member<'_>) {
        // SAFETY: this thread is in that place, where no thread reserves room before it has left;
        // and the scratch of its number is its own.
        let (view, progress) = unsafe {
            self.scratches
                .of(member.thread)
                .reserve(&self.model, &self.extent);
            (
                self.arenas.view(member.place),
                self.arenas.progress(member.place),
            )
        };
        let counters = self.arenas.counters(member.place);
        let mark = mark_of(member.section);
        let resumed = progress.resumed == mark;
        let mut rest = &progress.done[..];
        for task in &self.section(member.section).tasks {
            let n_items = Items::of(&self.model, &self.extent, task).map_or(0, |items| items.count);
            let done;
            (done, rest) = if self.tapped {
                (&rest[..0], rest)
            } else {
                rest.split_at(n_items)
            };
            let finished_pieces = &progress.pieces[..];
            let part = SectionPart {
                frame: self,
                view,
                counters,
                finished_pieces,
                done,
                resumed,
                mark,
                w: member,
            };
            // SAFETY: the place has room for this step, and all members run the same sections with
            // the same shares, one after the other.
            unsafe { part.run(task) }
            if member.has_stopped() {
                return;
            }
        }
    }

    fn can_repeat(&self, section: usize) -> bool {
        // values of other rows that stages hand on exist in one place only
        !self.extent.is_part() && self.section(section).can_repeat
    }

    fn patience(&self, section: usize) -> Duration {
        let section = self.section(section);
        let values =
            |resource: &Resource| self.model.carried_values(&self.extent, section, *resource);
        let bytes: usize = section
            .carried
            .iter()
            .map(|resource| 4 * values(resource))
            .sum();
        // 4 GB/s: the values are copied, then read again from cache lines that are not close by.
        // Waiting longer costs more than it saves where two programs take turns: each spins in the
        // time that the other's late thread needs.
        Duration::from_nanos(bytes as u64 / 4)
    }

    fn carry(&self, section: usize, from: usize, to: usize) -> bool {
        // SAFETY: the pool has found that no thread is in `to`, and that the section is being
        // worked on in `from`; it writes nothing that it reads, or it could not be repeated.
        unsafe { self.arenas.carry(self, section, from, to) }
    }

    fn resume(&self, section: usize, place: usize) {
        // SAFETY: the pool has found that this thread is alone there.
        unsafe { self.arenas.resume(place, section, self.section(section)) }
    }

    fn enter(&self) {
        // SAFETY: the table is one of this CPU; `leave` follows on this thread.
        unsafe { (self.model.table.enter)() }
    }

    fn leave(&self) {
        // SAFETY: the table is one of this CPU, and this thread has entered.
        unsafe { (self.model.table.leave)() }
    }
}
