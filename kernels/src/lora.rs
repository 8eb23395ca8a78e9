//! Low-rank adapters (LoRA) of the matrices of a program.
//!
//! An adapter changes a product `W x` to `W x + scale B (A x)`, with few rows in `A` and as many
//! columns in `B`. A sequence names the adapters that it uses
//! ([`StepSequence::adapters`](crate::StepSequence::adapters)); others have no part in its rows.

use crate::matrix::Matrix;
use crate::op::Op;
use crate::program::{Phase, Program, RowTable};
use octavo_simd::act::Form;

/// All adapters of one matrix.
#[derive(Clone)]
pub struct LoraSite {
    /// One for each adapter that changes the matrix, in ascending order of the adapters.
    pub parts: Vec<LoraPart>,
}

/// One adapter's part in a matrix.
#[derive(Clone)]
pub struct LoraPart {
    /// Number of the adapter.
    pub adapter: usize,
    /// The matrix or table `A`.
    pub a: LoraInput,
    /// (rows of the matrix, rank), with as many experts as the matrix has.
    pub b: Matrix,
    /// Place of its values among those of [`Op::LoraDown`]; of an expert's, with experts.
    pub first: usize,
    /// Factor of the product: `alpha / rank`.
    pub scale: f32,
}

/// The first matrix of an adapter.
#[derive(Clone)]
pub enum LoraInput {
    /// (rank, columns of the matrix), with as many experts as the matrix has.
    Matrix(Box<Matrix>),
    /// (tokens, rank), for a table of embeddings.
    Rows(RowTable),
}

impl LoraPart {
    /// Values between its two matrices.
    pub(crate) fn rank(&self) -> usize {
        self.b.cols
    }
}

impl LoraSite {
    /// The part of an adapter, if it has one here.
    pub(crate) fn part(&self, adapter: usize) -> Option<&LoraPart> {
        self.parts.iter().find(|part| part.adapter == adapter)
    }
}

/// Checks that adapters fit the places of a program.
///
/// # Panics
/// If they do not: a bug in the program's compiler.
pub(crate) fn check(program: &Program, sites: &[LoraSite]) {
    for instruction in &program.ops {
        match instruction.op {
            Op::LoraDown {
                x,
                ids,
                site,
                width,
            } => {
                let used = ids.map_or(1, |ids| program.slots[ids].width);
                let cols = x.map(|x| program.slots[x].width);
                for part in &sites[site].parts {
                    check_down(part, cols, used);
                    let end = part.first + part.rank();
                    assert!(end * used <= width, "adapter {}: width", part.adapter);
                }
            }
            Op::LoraUp { y, ids, site, .. } => {
                let used = ids.map_or(1, |ids| program.slots[ids].width);
                for part in &sites[site].parts {
                    let rows = part.b.expert_rows() * used;
                    assert_eq!(rows, program.slots[y].width, "rows of B");
                    assert!(is_float(&part.b), "B of floats");
                }
            }
            _ => {}
        }
    }
}

fn check_down(part: &LoraPart, cols: Option<usize>, used: usize) {
    match &part.a {
        LoraInput::Matrix(a) => {
            let fits = |cols: usize| cols == a.cols || cols == a.cols * used;
            assert!(cols.is_some_and(fits), "columns of A");
            assert_eq!(a.expert_rows(), part.rank(), "rank");
            assert_eq!(a.experts(), part.b.experts(), "experts");
            assert!(is_float(a), "A of floats");
        }
        LoraInput::Rows(table) => {
            assert!(cols.is_none(), "a table has no input");
            assert_eq!(table.cols, part.rank(), "rank");
        }
    }
}

fn is_float(matrix: &Matrix) -> bool {
    matrix.reads(Phase::Decode) == Form::Floats
}
