//! State an executor fixes when it is built, and the buffer sizes derived from it for a step.

use std::sync::Arc;

use super::expert_sizes::ExpertSizes;
use super::extent::Extent;
use super::plan::{Plan, Section};
use super::sizes::{PIECE, piece_len};
use super::tiles::MAX_TILE;
use crate::lora::LoraSite;
use crate::matrix::Matrix;
use crate::op::Op;
use crate::program::{Instruction, Phase, Program, Resource, Slot};
use crate::ranks::{Collective, Threads};
use octavo_isa::Isa;
use octavo_simd::table::{PromptAttention, Table};

/// State that is the same for all steps.
pub(super) struct Model {
    pub(super) isa: Isa,
    pub(super) table: &'static Table,
    pub(super) program: Program,
    /// Indexed by `Op::MatMul::w`.
    pub(super) matrices: Vec<Matrix>,
    /// The largest products with experts.
    pub(super) experts: ExpertSizes,
    /// See [`Model::plan`].
    pub(super) plans: [Plan; 4],
    /// Attention kernels for prompts that replace the vector kernels. Models of float weights use
    /// them only where their products are in bf16 as well, so as not to lose accuracy.
    pub(super) prompt_attention: Option<&'static PromptAttention>,
    /// The other ranks, if there are any.
    pub(super) ranks: Option<Arc<dyn Collective>>,
    /// Adapters of each matrix, indexed by `Op::LoraUp::site`.
    pub(super) lora: Vec<LoraSite>,
}

impl Model {
    pub(super) fn plan(&self, phase: Phase, tapped: bool) -> &Plan {
        &self.plans[usize::from(phase == Phase::Decode) + 2 * usize::from(tapped)]
    }

    /// Whether a slot is handed from stage to stage; see [`Stages`](super::plan::Stages).
    pub(super) fn is_kept(&self, slot: Slot) -> bool {
        let stages = self.plan(Phase::Prefill, false).stages.as_ref();
        stages.is_some_and(|stages| stages.retained[slot])
    }

    /// Columns of the widest matrix.
    pub(super) fn widest(&self) -> usize {
        self.matrices.iter().map(|m| m.cols).max().unwrap_or(0)
    }

    /// Values of the widest row that is quantized to integers.
    pub(super) fn widest_input(&self) -> usize {
        self.widest().max(self.experts.width)
    }

    /// Floats of a step's inputs of products in tiles, at most.
    pub(super) fn tile_floats(&self, extent: &Extent) -> usize {
        let rows = extent.most_rows();
        let each = self.matrices.iter().map(Matrix::tile_floats).max();
        let ordinary = (rows + MAX_TILE) * each.unwrap_or(0);
        ordinary.max(self.experts.tile_floats(extent.phase, rows))
    }

    /// Floats of a row of `width` values in tiles, at most.
    fn row_in_tiles(&self, width: usize) -> usize {
        let readers = self.matrices.iter().filter(|matrix| matrix.cols == width);
        readers.map(Matrix::tile_floats).max().unwrap_or(0)
    }

    /// Number of values of a resource carried for a section.
    pub(super) fn carried_values(
        &self,
        extent: &Extent,
        section: &Section,
        resource: Resource,
    ) -> usize {
        let rows = |slot| self.program.rows_of(slot, extent.rows, extent.outputs);
        let width = |slot: Slot| self.program.slots[slot].width;
        // the slot that an earlier section has converted there
        let ready = section.ready.iter().find(|ready| ready.at == resource);
        match (resource, ready) {
            (Resource::Slot(slot), _) => rows(slot) * width(slot),
            (Resource::Codes(_), Some(ready)) => rows(ready.slot) * width(ready.slot),
            (Resource::Tiles, Some(ready)) => match ready.by {
                Some(by) => by.tile_floats(width(by.ids), rows(by.ids)),
                None => (rows(ready.slot) + MAX_TILE) * self.row_in_tiles(width(ready.slot)),
            },
            (Resource::Angles, _) => extent.rows * 2 * self.program.angles(),
            // pieces are joined in the section that makes them; the cache and states are the same
            // in all places
            (Resource::Pieces | Resource::Parts | Resource::Kv(_) | Resource::State(_), _)
            | (Resource::Codes(_) | Resource::Tiles, None) => 0,
        }
    }

    /// The ranks, if their parts of rows are read in place: a prompt's, in one process.
    pub(super) fn ranks_that_show(&self, phase: Phase) -> Option<&Threads> {
        let in_process = self.ranks.as_ref()?.in_process();
        in_process.filter(|_| phase == Phase::Prefill)
    }

    /// Floats of all ranks' parts of the widest rows that they gather; none where these are read in
    /// place.
    pub(super) fn gathered_floats(&self, extent: &Extent) -> usize {
        if self.ranks_that_show(extent.phase).is_some() {
            return 0;
        }
        let of = |i: &Instruction| match i.op {
            Op::AllGather { .. } => {
                let slot = i.result();
                let rows = self.program.rows_of(slot, extent.rows, extent.outputs);
                rows * self.program.slots[slot].width
            }
            _ => 0,
        };
        self.program.ops.iter().map(of).max().unwrap_or(0)
    }

    /// Floats of a row's results of one piece of attention, of all heads, or of a piece's scores.
    pub(super) fn piece_floats(&self) -> usize {
        let of = |i: &Instruction| match i.op {
            Op::Attention { q, cache, .. } => {
                let head_dim = self.program.cache(cache).head_dim;
                self.program.slots[q].width / head_dim * piece_len(head_dim)
            }
            Op::SelectKeys { .. } => PIECE,
            _ => 0,
        };
        self.program.ops.iter().map(of).max().unwrap_or(0)
    }

    /// The most key heads of a layer.
    pub(super) fn most_heads_kv(&self) -> usize {
        let heads = self.program.caches.iter().map(|kv| kv.n_head_kv);
        heads.max().unwrap_or(0)
    }
}
