//! What a product does with its results while they are near, instead of operations of their own.

use super::{Matrix, Op, Program, Reads, Role, Slot};

/// An operation whose inputs nobody else reads, done by the product that makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Epilogue {
    /// SwiGLU of this product, the gate, and the product of the same input with another matrix.
    SwiGlu {
        /// Which of the matrices.
        up: usize,
        out: Slot,
    },
    /// Adds what is in `to`.
    Add { to: Slot, out: Slot },
}

impl Epilogue {
    pub(super) fn out(self) -> Slot {
        match self {
            Epilogue::SwiGlu { out, .. } | Epilogue::Add { out, .. } => out,
        }
    }
}

/// What can be done by the product at `at`, and how many operations after it that is.
pub(super) fn epilogue(
    program: &Program,
    matrices: &[Matrix],
    role: Role,
    at: usize,
) -> (Option<Epilogue>, usize) {
    // what follows may be written over the input, unless products of other rows still read it as it
    // is
    let apart = |x: Slot, w: usize, out: Slot| {
        x != out || matrices[w].reads(role == Role::Generated) != Reads::Floats
    };
    // both go through one kernel
    let like = |w: usize| {
        let matrix = &matrices[w];
        (matrix.ty, matrix.rows, matrix.is_packed())
    };
    match program.ops[at..] {
        [
            Op::MatMul { x, w, out: a },
            Op::MatMul {
                x: same,
                w: up,
                out: b,
            },
            Op::SwiGlu {
                gate,
                up: other,
                out,
            },
            ..,
        ] if x == same
            && (a, b) == (gate, other)
            && a != b
            && [a, b]
                .iter()
                .all(|slot| *slot == out || program.unread(*slot, at + 3))
            && like(w) == like(up)
            && apart(x, w, out) =>
        {
            (Some(Epilogue::SwiGlu { up, out }), 2)
        }
        [Op::MatMul { x, w, out: y }, Op::Add { a, b, out }, ..]
            if (a == y) != (b == y)
                && (y == out || program.unread(y, at + 2))
                && apart(x, w, out) =>
        {
            (
                Some(Epilogue::Add {
                    to: if a == y { b } else { a },
                    out,
                }),
                1,
            )
        }
        _ => (None, 0),
    }
}
