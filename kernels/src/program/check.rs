//! Consistency checks of a program's numbers.

use super::{Instruction, Program, RowTable, Slot};
use crate::op::{CacheShape, MatrixShape, Op, Shapes, ValueShape};
use octavo_simd::kv_layout::KvShape;
use std::sync::Arc;

impl Program {
    /// Checks that its numbers are consistent with each other and with matrices of these shapes.
    ///
    /// # Panics
    /// If they do not: a bug in the program's compiler.
    pub(crate) fn check(&self, matrices: &[MatrixShape]) {
        let sound = |kv: &KvShape| kv.head_dim > 0 && kv.head_dim.is_multiple_of(2);
        assert!(self.caches.iter().all(sound), "heads of an even width");
        let widths = self.ops.iter().filter(|i| matches!(i.op, Op::Input));
        let mut widths = widths.map(|i| self.slots[i.result()].width);
        let first = widths.next();
        assert!(
            widths.all(|width| Some(width) == first),
            "inputs of one width"
        );
        for (at, Instruction { op, out }) in self.ops.iter().enumerate() {
            let shapes = Operands {
                program: self,
                matrices,
                out: *out,
            };
            let fits = op.shape(&shapes).and_then(|shape| match out {
                Some(out) => shape.expect(self.slots[*out]),
                None => Ok(()),
            });
            if let Err(error) = fits {
                panic!("operation {at}: {error}");
            }
            assert_eq!(
                out.is_none(),
                matches!(op, Op::KvWrite { .. }),
                "operation {at}: everything but what goes to the cache has a result"
            );
            if let Op::Attention { scores, .. } = op {
                assert!(
                    scores.window != Some(0) && scores.cap.is_none_or(|cap| cap > 0.0),
                    "operation {at}: a window of no positions, or a cap that is not positive"
                );
            }
            assert!(
                op.is_by_element() || op.inputs().all(|input| Some(input) != *out),
                "operation {at} writes over its input"
            );
        }
    }
}

/// Shapes of an operation's operands in a program.
struct Operands<'a> {
    program: &'a Program,
    matrices: &'a [MatrixShape],
    /// Slot of the result.
    out: Option<Slot>,
}

impl Shapes<Slot, usize, Arc<[f32]>, RowTable> for Operands<'_> {
    fn value(&self, slot: Slot) -> ValueShape {
        self.program.slots[slot]
    }

    fn matrix(&self, w: &usize) -> Option<MatrixShape> {
        self.matrices.get(*w).copied()
    }

    fn vector(&self, values: &Arc<[f32]>) -> Option<usize> {
        Some(values.len())
    }

    fn table(&self, table: &RowTable) -> Option<MatrixShape> {
        let RowTable { rows, cols, .. } = *table;
        Some(MatrixShape { rows, cols })
    }

    fn input(&self) -> Option<usize> {
        // a step brings rows as wide as the slot
        self.out.map(|out| self.program.slots[out].width)
    }

    fn embedding_input_width(&self) -> usize {
        self.program.embedding_input_width
    }

    fn rope(&self, rope: usize) -> Option<usize> {
        let rope = self.program.ropes.get(rope)?;
        Some(rope.frequencies.len())
    }

    fn state(&self, state: usize) -> Option<usize> {
        self.program.states.get(state).copied()
    }

    fn cache(&self, group: usize) -> Option<CacheShape> {
        let kv = self.program.caches.get(group)?;
        Some(CacheShape {
            layers: kv.n_layer,
            head_dim: kv.head_dim,
            width: kv.n_head_kv * kv.head_dim,
        })
    }
}
