//! Operands of the operations of a program that keep a state, with the slots of their results.

use super::{ProgramOp, Slot};
use crate::op::{Op, Recurrence};

/// Makes a struct of the fields of an operation, and of its result.
macro_rules! operands {
    ($(#[$doc:meta])* $name:ident of $op:ident { $($field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name {
            $(pub(crate) $field: $ty,)*
            pub(crate) out: Slot,
        }

        impl $name {
            /// The operands of such an operation, with the result in `out`.
            pub(crate) fn of(op: &ProgramOp, out: Slot) -> $name {
                match *op {
                    Op::$op { $($field,)* .. } => $name { $($field,)* out },
                    _ => unreachable!("the caller has seen which operation it is"),
                }
            }
        }
    };
}

operands! {
    /// Those of [`Op::LinearAttention`].
    Recurrent of LinearAttention {
        q: Slot, k: Slot, v: Slot, decay: Slot, rate: Slot, how: Recurrence, state: usize,
    }
}

operands! {
    /// Those of [`Op::SelectiveScan`], but for its rates.
    Scan of SelectiveScan { x: Slot, steps: Slot, b: Slot, c: Slot, state: usize }
}

operands! {
    /// Those of [`Op::Wkv7`].
    Wkv7 of Wkv7 {
        r: Slot, decay: Slot, k: Slot, v: Slot, removed: Slot, replaced: Slot, key_dim: usize,
        state: usize,
    }
}
