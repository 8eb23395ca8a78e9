//! Buffers of a step. There are several sets of them, one per place of the pool: a thread left
//! behind finishes its work in the old set while the others have moved on to another.

mod shared;

use std::cell::UnsafeCell;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::extent::Extent;
use super::frame::Frame;
use super::items::Items;
use super::model::Model;
use super::plan::{CODES, Section, Stage};
use crate::memory::{Floats, NoMemory, with_memory};
use crate::pool::PLACES;
use crate::program::{Phase, Resource};
use octavo_simd::act::{ACT_GROUP, Act4, ActRow};
pub(super) use shared::Shared;

/// Inputs of products as integers; see [`ActRow`].
#[derive(Default)]
pub(super) struct Codes {
    q: Vec<Act4>,
    scale: Vec<f32>,
    isum: Vec<i32>,
    fsum: Vec<f32>,
    isum32: Vec<i32>,
    fsum32: Vec<f32>,
}

impl Codes {
    pub(super) fn reserve(&mut self, groups: usize) {
        grow(&mut self.q, groups * ACT_GROUP / 4);
        grow(&mut self.scale, groups);
        grow(&mut self.isum, groups * ACT_GROUP / 16);
        grow(&mut self.fsum, groups * ACT_GROUP / 16);
        grow(&mut self.isum32, groups);
        grow(&mut self.fsum32, groups);
    }

    pub(super) fn view(&mut self) -> ActRow {
        ActRow {
            q: self.q.as_mut_ptr(),
            scale: self.scale.as_mut_ptr(),
            isum: self.isum.as_mut_ptr(),
            fsum: self.fsum.as_mut_ptr(),
            isum32: self.isum32.as_mut_ptr(),
            fsum32: self.fsum32.as_mut_ptr(),
        }
    }
}

/// One set of buffers.
#[derive(Default)]
struct Arena {
    buffers: Vec<Floats>,
    codes: [Codes; CODES],
    tiles: Floats,
    pieces: Vec<f32>,
    /// Cosines, then sines, of each row.
    angles: Vec<f32>,
    /// Parts of rows from all ranks.
    parts: Floats,
    progress: Progress,
    /// The extent this has room for, and the view of the buffers.
    extent: Option<Extent>,
    view: View,
}

/// Progress of the members of a place.
#[derive(Default)]
pub(super) struct Progress {
    /// By item of a section's tasks, see [`Items`]: the [mark](mark_of) of the last section in
    /// which it was finished.
    pub(super) done: Vec<AtomicU32>,
    /// The mark of the section that continues here with items already done: it was carried here
    /// from another place, or begun here by fewer members.
    pub(super) resumed: u32,
    /// Pieces of attention finished in this step, of all layers, by row and KV head.
    pub(super) pieces: Vec<AtomicU32>,
}

impl Progress {
    /// Makes room. All items are marked as not done.
    fn reserve(&mut self, items: usize, groups: usize) {
        self.resumed = 0;
        for (counts, len) in [(&mut self.done, items), (&mut self.pieces, groups)] {
            counts.iter_mut().for_each(|count| *count.get_mut() = 0);
            if counts.len() < len {
                counts.resize_with(len, AtomicU32::default);
            }
        }
    }
}

/// Addresses of an arena's buffers.
#[derive(Clone)]
pub(super) struct View {
    /// By slot.
    pub(super) buffers: Vec<Shared<f32>>,
    /// Inputs of products, as integers.
    pub(super) codes: [ActRow; CODES],
    /// Inputs of products, in tiles.
    pub(super) tiles: Shared<f32>,
    /// Partial results of attention.
    pub(super) pieces: Shared<f32>,
    pub(super) angles: Shared<f32>,
    /// Parts of rows from all ranks, rank by rank.
    pub(super) parts: Shared<f32>,
}

// SAFETY: pointers into an arena, which the executor and all frames keep; every use says which part
// is whose.
unsafe impl Sync for View {}
// SAFETY: as for `Sync`: the pointers belong to no thread.
unsafe impl Send for View {}

impl Default for View {
    fn default() -> View {
        let none = Shared(std::ptr::null_mut());
        let codes = ActRow {
            q: std::ptr::null(),
            scale: std::ptr::null(),
            isum: std::ptr::null(),
            fsum: std::ptr::null(),
            isum32: std::ptr::null(),
            fsum32: std::ptr::null(),
        };
        View {
            buffers: Vec::new(),
            codes: [codes; CODES],
            tiles: none,
            pieces: none,
            angles: none,
            parts: none,
        }
    }
}

/// As [`Floats::grow`], for other values.
fn grow<T: Clone + Default>(v: &mut Vec<T>, len: usize) {
    if v.len() < len {
        v.clear();
        if v.try_reserve_exact(len).is_err() {
            resume_unwind(Box::new(NoMemory {
                bytes: len.saturating_mul(size_of::<T>()),
            }));
        }
        v.resize(len, T::default());
    }
}

impl Arena {
    /// Makes room for a step of which nothing is done yet. Earlier contents may be lost.
    fn reserve(&mut self, model: &Model, extent: &Extent) {
        if self.extent == Some(*extent) {
            self.progress.reserve(0, 0);
            return;
        }
        // if there is no memory for one of them, the arena has no valid extent
        self.extent = None;
        let program = &model.program;
        self.buffers
            .resize_with(program.slots.len(), Floats::default);
        let step = extent.step;
        let is_kept = |slot: usize| extent.is_part() && model.is_kept(slot);
        for (slot, buffer) in self.buffers.iter_mut().enumerate() {
            let rows = match is_kept(slot) {
                true => program.rows_of(slot, step.rows, step.outputs),
                false => program.rows_of(slot, extent.rows, extent.outputs),
            };
            buffer.grow(rows * program.slots[slot].width);
        }
        let (most, widest) = (extent.most_rows(), model.widest_input());
        if extent.phase == Phase::Decode {
            self.codes
                .iter_mut()
                .for_each(|codes| codes.reserve(most * widest.div_ceil(ACT_GROUP)));
            grow(
                &mut self.pieces,
                extent.rows * model.piece_floats() * extent.pieces,
            );
        }
        self.progress.reserve(
            Items::most(model, extent),
            extent.rows * model.most_heads_kv(),
        );
        self.tiles.grow(model.tile_floats(extent));
        self.parts.grow(model.gathered_floats(extent));
        let angles = 2 * program.angles();
        grow(&mut self.angles, step.rows * angles);
        // address of these rows, in slots that have room for all rows of the step
        let first = |slot: usize| match is_kept(slot) {
            true => {
                let before = program.rows_of(slot, step.before, step.outputs_before);
                before * program.slots[slot].width
            }
            false => 0,
        };
        let buffers = self.buffers.iter_mut().enumerate();
        self.view = View {
            buffers: buffers
                .map(|(slot, b)| Shared(b[first(slot)..].as_mut_ptr()))
                .collect(),
            codes: self.codes.each_mut().map(Codes::view),
            tiles: Shared(self.tiles.as_mut_ptr()),
            pieces: Shared(self.pieces.as_mut_ptr()),
            angles: Shared(self.angles[step.before * angles..].as_mut_ptr()),
            parts: Shared(self.parts.as_mut_ptr()),
        };
        self.extent = Some(*extent);
    }
}

/// All sets, and for each the counters by which tasks are handed out.
pub(super) struct Arenas {
    arenas: [UnsafeCell<Arena>; PLACES],
    /// By operation.
    counters: [Box<[AtomicUsize]>; PLACES],
}

// SAFETY: an arena is only changed by a thread that is alone in its place, see `reserve`; the
// buffers it points to are divided among the members of the team.
unsafe impl Sync for Arenas {}

impl Arenas {
    pub(super) fn new(n_ops: usize) -> Arenas {
        Arenas {
            arenas: std::array::from_fn(|_| UnsafeCell::new(Arena::default())),
            counters: std::array::from_fn(|_| (0..n_ops).map(|_| AtomicUsize::new(0)).collect()),
        }
    }

    /// Makes room for a step in a place.
    ///
    /// # Safety
    /// No other thread is in that place.
    pub(super) unsafe fn reserve(&self, place: usize, model: &Model, extent: &Extent) {
        let (arena, counters) = (&self.arenas[place], &self.counters[place]);
        for counter in counters.iter() {
            counter.store(0, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { (*arena.get()).reserve(model, extent) }
    }

    /// The addresses of a place's buffers.
    ///
    /// # Safety
    /// No thread reserves room in that place while the result is used: this thread is in it.
    pub(super) unsafe fn view(&self, place: usize) -> &View {
        let arena = &self.arenas[place];
        // SAFETY: the caller's promise.
        unsafe { &(*arena.get()).view }
    }

    /// The progress of a place's members.
    ///
    /// # Safety
    /// As [`Arenas::view`].
    pub(super) unsafe fn progress(&self, place: usize) -> &Progress {
        let arena = &self.arenas[place];
        // SAFETY: the caller's promise.
        unsafe { &(*arena.get()).progress }
    }

    /// Prepares a section, part of which was done in this place, to be run here once more.
    ///
    /// # Safety
    /// No thread is in that place but this.
    pub(super) unsafe fn resume(&self, place: usize, number: usize, section: &Section) {
        for task in &section.tasks {
            self.counters[place][task.op].store(0, Ordering::Relaxed);
        }
        // SAFETY: no other thread is in this place, so no other thread has a reference to its
        // progress.
        let progress = unsafe { &mut (*self.arenas[place].get()).progress };
        progress.resumed = mark_of(number);
        // those that are complete are counted, and joined, once more
        progress
            .pieces
            .iter_mut()
            .for_each(|count| *count.get_mut() = 0);
    }

    pub(super) fn counters(&self, place: usize) -> &[AtomicUsize] {
        &self.counters[place]
    }

    /// Copies the inputs of a frame's section that earlier ones wrote from one place to another.
    /// `false` if there is no memory for that.
    ///
    /// # Safety
    /// No other thread is in the place `to`. Threads in `from` write only the section's outputs,
    /// and none of the items already done; the section can be repeated.
    pub(super) unsafe fn carry(
        &self,
        frame: &Frame,
        number: usize,
        from: usize,
        to: usize,
    ) -> bool {
        let (model, extent, section) = (&*frame.model, &frame.extent, frame.section(number));
        // SAFETY: the caller's promise: this thread is alone there.
        if with_memory(|| unsafe { self.reserve(to, model, extent) }).is_err() {
            return false;
        }
        // SAFETY: the caller's promise: this thread is alone there, and reads from the other place
        // only values that no thread writes. Both have room for the whole step.
        unsafe {
            self.carry_items(frame, number, from, to);
            let (from, to) = (self.view(from), self.view(to));
            let copy = |from: Shared<f32>, to: Shared<f32>, len: usize| {
                to.write(0, len).copy_from_slice(from.read(0, len))
            };
            for resource in &section.carried {
                let values = model.carried_values(extent, section, *resource);
                match *resource {
                    Resource::Slot(slot) => copy(from.buffers[slot], to.buffers[slot], values),
                    Resource::Angles => copy(from.angles, to.angles, values),
                    Resource::Codes(i) => to.codes[i].copy_from(&from.codes[i], values / ACT_GROUP),
                    Resource::Tiles => copy(from.tiles, to.tiles, values),
                    // pieces are joined in the section that makes them, parts are for a section
                    // that is never repeated; the cache and states are the same in all places
                    Resource::Pieces | Resource::Parts | Resource::Kv(_) | Resource::State(_) => {}
                }
            }
        }
        true
    }
}

impl Arenas {
    /// Copies the finished items of a section from one place to another, and marks them as done
    /// there.
    ///
    /// # Safety
    /// As [`Arenas::carry`]; the place `to` has room.
    unsafe fn carry_items(&self, frame: &Frame, number: usize, from: usize, to: usize) {
        let mark = mark_of(number);
        // SAFETY: the caller's promise: no thread writes finished items, or anything in the other
        // place.
        unsafe {
            (*self.arenas[to].get()).progress.resumed = mark;
            let (done, now_done) = (&self.progress(from).done, &self.progress(to).done);
            let (from, to) = (self.view(from), self.view(to));
            let mut first = 0;
            for task in &frame.section(number).tasks {
                let Some(items) = Items::of(&frame.model, &frame.extent, task) else {
                    continue;
                };
                for item in (0..items.count)
                    .filter(|item| done[first + item].load(Ordering::Acquire) == mark)
                {
                    let region = items.region(item);
                    let buffers =
                        |view: &View| region.slot.map_or(view.pieces, |slot| view.buffers[slot]);
                    for row in 0..region.rows {
                        let at = region.first + row * region.stride;
                        buffers(to)
                            .write(at, region.len)
                            .copy_from_slice(buffers(from).read(at, region.len));
                        if let (Some(codes), Stage::Whole(_)) = (task.codes, task.stage) {
                            let (from, to) =
                                (from.codes[codes].at_group(at / ACT_GROUP), &to.codes[codes]);
                            to.at_group(at / ACT_GROUP)
                                .copy_from(&from, region.len / ACT_GROUP);
                        }
                    }
                    now_done[first + item].store(mark, Ordering::Release);
                }
                first += items.count;
            }
        }
    }
}

/// Mark of a section, stored for each of its items that is done.
pub(super) fn mark_of(section: usize) -> u32 {
    section as u32 + 1
}
