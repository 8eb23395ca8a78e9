//! Translates a program's operations to a list of launches, which depends on a step's shape alone.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::plan::Plan;
use super::record::{Addresses, Shape};
use crate::cuda::launch::Form;
use crate::cuda::params::{Argmax, Candidates, Matrix, Rotation};
use crate::cuda::{DeviceCollective, Gather, Launch, Ptr, Task, launch};
use crate::fuse::Group;
use crate::op::CacheLayer;
use crate::program::{Program, Slot};
use crate::rope::Pairing;
use octavo_quant::TensorType;
use octavo_simd::kv_layout::{KvShape, KvType};

/// Everything that the list of launches depends on.
pub(super) struct LaunchContext<'a> {
    pub(super) program: &'a Program,
    /// Groups to fuse, by their first operation.
    pub(super) groups: &'a [Option<Group>],
    pub(super) plan: &'a Plan,
    /// Communication with the other ranks, for programs that gather.
    pub(super) ranks: Option<&'a Arc<dyn DeviceCollective>>,
    /// Address of the arena.
    pub(super) base: Ptr,
    pub(super) n_pages: usize,
    pub(super) multiprocessors: u32,
    /// Whether the device has warpgroup matrix multiply.
    pub(super) wide: bool,
    /// Whether the device multiplies batches by integer tensor cores.
    pub(super) imma: bool,
    pub(super) shape: Shape,
    pub(super) record: Addresses,
}

/// Launches of one operation or fused group, or a block of the host.
pub(super) struct OpLaunches {
    /// The operation, or the last of a fused group.
    pub(super) op: usize,
    /// All-gather that precedes the launches.
    pub(super) gather: Option<Gather>,
    pub(super) launches: Vec<Launch>,
    /// Number of the block that the host runs in place of launches.
    pub(super) host: Option<usize>,
}

impl OpLaunches {
    /// Returns a block of the host that ends with operation `op`.
    fn on_host(block: usize, op: usize) -> OpLaunches {
        OpLaunches {
            op,
            gather: None,
            launches: Vec::new(),
            host: Some(block),
        }
    }

    /// Returns all tasks in order.
    pub(super) fn tasks(self) -> impl Iterator<Item = Task> {
        let launches = self.launches.into_iter().map(Task::Launch);
        self.gather.map(Task::Gather).into_iter().chain(launches)
    }
}

/// An input of products that was already converted to their form.
#[derive(Clone, Copy)]
pub(super) struct Ready {
    pub(super) slot: Slot,
    pub(super) form: Form,
    pub(super) at: Ptr,
    /// Whether the operations now being translated also write the slot.
    pub(super) new: bool,
}

/// Launches of some operations, under construction.
pub(super) struct List {
    /// All-gather that precedes the launches.
    pub(super) gather: Option<Gather>,
    pub(super) launches: Vec<Launch>,
    pub(super) ready: Option<Ready>,
    /// The slot of chosen experts of which the order and the tiles are up to date.
    pub(super) sorted: Option<Slot>,
}

impl LaunchContext<'_> {
    /// Returns all launches. With `fuse`, consecutive operations are fused where there is a kernel
    /// for it; no result changes.
    pub(super) fn all(&self, fuse: bool) -> Vec<OpLaunches> {
        let mut parts = Vec::with_capacity(self.program.ops.len());
        let (mut ready, mut sorted) = (None, None);
        let mut at = 0;
        while at < self.program.ops.len() {
            if let Some((block, ops)) = self.program.host_block_at(at) {
                let last = ops.end - 1;
                ready = self.still_ready(ready, at..=last);
                sorted = sorted.filter(|slot| !self.is_written(*slot, at..=last));
                parts.push(OpLaunches::on_host(block, last));
                at = last + 1;
                continue;
            }
            let mut list = List {
                gather: None,
                launches: Vec::new(),
                ready,
                sorted,
            };
            let group = self.groups[at].as_ref().filter(|_| fuse);
            let fused = group.filter(|group| self.fused(at, group, &mut list));
            let last = fused.map_or(at, |group| group.last);
            if fused.is_none() {
                self.single(at, &mut list);
            }
            ready = self.still_ready(list.ready, at..=last);
            sorted = list
                .sorted
                .filter(|slot| !self.is_written(*slot, at..=last));
            parts.push(OpLaunches {
                op: last,
                gather: list.gather,
                launches: list.launches,
                host: None,
            });
            at = last + 1;
        }
        parts
    }

    /// Returns the converted input that later operations may read, after these operations.
    fn still_ready(&self, ready: Option<Ready>, ops: RangeInclusive<usize>) -> Option<Ready> {
        let kept = ready.filter(|r| r.new || !self.is_written(r.slot, ops));
        kept.map(|r| Ready { new: false, ..r })
    }

    /// Whether one of these operations writes a slot.
    fn is_written(&self, slot: Slot, ops: RangeInclusive<usize>) -> bool {
        self.program.ops[ops].iter().any(|i| i.out == Some(slot))
    }

    /// Returns the launches that compute each row's argmax.
    pub(super) fn argmax(&self) -> Vec<Launch> {
        let (slot, rows) = (self.program.output, self.shape.outputs);
        if rows == 0 {
            return Vec::new();
        }
        let (parts, out, n) = (
            self.at(self.plan.parts),
            self.record.best,
            small(self.width(slot)),
        );
        let p = Argmax {
            x: self.slot(slot),
            parts,
            out,
            n,
            parts_n: launch::ARGMAX_PARTS,
        };
        launch::argmax(&p, small(rows)).into()
    }

    /// Returns the launches that find each row's largest outputs.
    pub(super) fn candidates(&self) -> Vec<Launch> {
        let (slot, rows) = (self.program.output, self.shape.outputs);
        let n = self.width(slot);
        let p = Candidates {
            x: self.slot(slot),
            parts: self.at(self.plan.candidate_parts),
            out: self.at(self.plan.candidates),
            n: small(n),
            most: small(launch::max_candidates(n)),
        };
        launch::candidates(&p, small(rows)).into()
    }

    pub(super) fn form(&self, ty: TensorType) -> Form {
        if self.shape.generated {
            Form::of_gemv(ty)
        } else if self.wide {
            Form::WideHalves
        } else {
            Form::Halves
        }
    }

    pub(super) fn at(&self, offset: u64) -> Ptr {
        self.base.offset(offset)
    }

    pub(super) fn slot(&self, slot: Slot) -> Ptr {
        self.at(self.plan.slots[slot])
    }

    pub(super) fn width(&self, slot: Slot) -> usize {
        self.program.slots[slot].width
    }

    pub(super) fn rows(&self, slot: Slot) -> usize {
        self.program
            .rows_of(slot, self.shape.rows, self.shape.outputs)
    }

    pub(super) fn matrix(&self, placed: usize) -> (TensorType, Matrix) {
        let placed = &self.plan.placed[placed];
        (
            placed.source.stored(),
            placed.layout.matrix(self.at(placed.at)),
        )
    }

    /// Returns the type in which a product's weight is stored.
    pub(super) fn stored(&self, w: usize) -> TensorType {
        self.plan.placed[self.plan.weights[w]].source.stored()
    }

    pub(super) fn rotation(&self, rope: usize) -> Rotation {
        let (angles, rope) = (self.plan.angles[rope], &self.program.ropes[rope]);
        Rotation {
            cosines: self.at(angles.cosines),
            sines: self.at(angles.sines),
            rope_positions: self.record.rope_positions,
            axes: angles.axes.map_or(Ptr::NULL, |axes| self.at(axes)),
            pairs: small(rope.frequencies.len()),
            neox: (rope.pairing == Pairing::Neox).into(),
        }
    }

    /// Returns the addresses of a layer's keys and values.
    pub(super) fn pages(&self, cache: CacheLayer) -> (Ptr, Ptr) {
        let start = self.plan.pages[cache.group];
        let halves = self.program.cache(cache).halves();
        let [k, v] = halves.map(|half| half.page_stride() * self.n_pages);
        let at = |bytes: usize| self.at(start + bytes as u64);
        let layer = cache.layer * (k + v);
        (at(layer), at(layer + k))
    }
}

/// Returns a cache's type for the choice of kernels.
pub(super) fn kernels_of(kv: KvShape) -> KvType {
    launch::kv_type(kv.types).expect("a plan is made of caches that there are kernels for")
}

pub(super) fn small(n: usize) -> u32 {
    u32::try_from(n).expect("far below the largest grid")
}
