//! Operations that a product applies to its results while they are still in the cache, instead of
//! running them separately.

use crate::fuse::{Group, Kind};
use crate::matrix::Matrix;
use crate::program::{Phase, Slot};
use octavo_simd::act::Form;
use octavo_simd::function::Activation;

/// Operations whose inputs are read by nothing else, done by the product that makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Epilogue {
    /// This product is a gate: `out = act(this) * up`, where the up projection has the same input.
    Gate {
        /// Index of the up matrix.
        up: usize,
        act: Activation,
        out: Slot,
    },
    /// Adds the product to `to`.
    Add { to: Slot, out: Slot },
}

impl Epilogue {
    pub(super) fn out(self) -> Slot {
        match self {
            Epilogue::Gate { out, .. } | Epilogue::Add { out, .. } => out,
        }
    }
}

/// The epilogue of a group's first product, if this executor fuses the group.
pub(super) fn epilogue(group: &Group, matrices: &[Matrix], phase: Phase) -> Option<Epilogue> {
    // the epilogue may overwrite the input, unless products of other rows still read it
    let apart = |x: Slot, w: usize, out: Slot| x != out || matrices[w].reads(phase) != Form::Floats;
    // both go through one kernel
    let like = |w: usize| {
        let matrix = &matrices[w];
        (
            matrix.ty,
            matrix.rows,
            matrix.is_packed(),
            matrix.reads(phase),
        )
    };
    match group.kind {
        Kind::Gated {
            x,
            gate,
            up,
            act,
            out,
            ..
        } => (like(gate) == like(up) && apart(x, gate, out)).then_some(Epilogue::Gate {
            up,
            act,
            out,
        }),
        Kind::AddInto { x, w, to, out } => apart(x, w, out).then_some(Epilogue::Add { to, out }),
        // the thread that has the rows normalizes, rotates, stores and converts them, without a
        // barrier between: `plan.rs`
        Kind::AddSelected { .. }
        | Kind::NormInto { .. }
        | Kind::AttentionInto { .. }
        | Kind::Heads(_) => None,
    }
}
