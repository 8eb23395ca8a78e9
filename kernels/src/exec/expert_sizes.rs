//! Sizes of a program's products with experts.

use super::tiles::tile_floats;
use crate::matrix::Matrix;
use crate::op::Op;
use crate::program::{Phase, Program};
use octavo_simd::act::Form;

/// Maximal sizes needed by a program's products with experts.
#[derive(Clone, Copy, Default)]
pub(super) struct ExpertSizes {
    /// ExpertSizes of a row; 0 without such products.
    pub(super) used: usize,
    pub(super) count: usize,
    /// Values of an expert's input, and of the inputs of all experts of a row.
    pub(super) cols: usize,
    pub(super) width: usize,
    /// Floats of an expert's input in tiles, of prompts and of generated tokens; 0 if none is
    /// arranged in tiles.
    tiled: [usize; 2],
}

impl ExpertSizes {
    pub(super) fn of(program: &Program, matrices: &[Matrix]) -> ExpertSizes {
        let mut most = ExpertSizes::default();
        for instruction in &program.ops {
            if let Op::ExpertMatMul { x, w, ids, experts } = instruction.op {
                most.used = most.used.max(program.slots[ids].width);
                most.count = most.count.max(experts);
                most.cols = most.cols.max(matrices[w].cols);
                most.width = most.width.max(program.slots[x].width);
                for (tiled, phase) in most.tiled.iter_mut().zip([Phase::Prefill, Phase::Decode]) {
                    if let Form::Tiles(_) = matrices[w].reads(phase) {
                        *tiled = (*tiled).max(matrices[w].tile_floats());
                    }
                }
            }
        }
        most
    }

    /// Floats that the inputs of `rows` rows take in tiles.
    pub(super) fn tile_floats(&self, phase: Phase, rows: usize) -> usize {
        let each = self.tiled[usize::from(phase == Phase::Decode)];
        tile_floats(rows, self.used, self.count, each)
    }
}
