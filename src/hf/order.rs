//! Permutations: which rows of a folder's tensor become which rows of GGUF's.

use super::types::Cut;

/// Row order of LLaMA's queries and keys: Hugging Face's RoPE rotates pairs from the two halves of
/// a head, GGUF's rotates pairs of neighbours.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadOrder {
    /// Rows per head; even.
    pub(super) head_dim: usize,
}

impl HeadOrder {
    /// Returns the row of the file that becomes row `row` of the tensor.
    pub(super) fn source(self, row: usize) -> usize {
        let (head, at) = (row / self.head_dim, row % self.head_dim);
        head * self.head_dim + at % 2 * (self.head_dim / 2) + at / 2
    }

    /// Returns the row of the tensor that row `row` of the file becomes.
    pub(super) fn target(self, row: usize) -> usize {
        let (head, at) = (row / self.head_dim, row % self.head_dim);
        let half = self.head_dim / 2;
        head * self.head_dim + 2 * (at % half) + at / half
    }
}

/// Regroups rows: fused per KV head in the file, they become separate queries, keys and values of
/// all heads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// Rows of one KV head in the file.
    pub(super) of: usize,
    /// Number of KV heads.
    pub(super) heads: usize,
    /// Start of the first part among a head's rows,
    pub(super) start: usize,
    /// and number of a head's rows in each part, one after the other.
    pub(super) lens: [usize; 3],
}

impl Parts {
    /// Returns the number of rows in the file, and of those that are left.
    pub(super) fn rows(self) -> [usize; 2] {
        let of_head = self
            .lens
            .iter()
            .fold(0, |n: usize, len| n.saturating_add(*len));
        [self.of, of_head].map(|n| n.saturating_mul(self.heads))
    }

    fn source(self, mut row: usize) -> usize {
        let mut start = self.start;
        for len in self.lens {
            let all = len * self.heads;
            if row < all {
                return row / len * self.of + start + row % len;
            }
            (row, start) = (row - all, start + len);
        }
        panic!("{row} rows more than there are in {self:?}")
    }
}

/// Interleaves value heads: grouped by key head in the file, [0 0 1 1], they alternate in GGUF, [0
/// 1 0 1], as ggml repeats key heads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turns {
    /// Rows before them, which stay in place.
    pub(super) before: usize,
    /// Number of key heads.
    pub(super) keys: usize,
    /// Value heads per key head.
    pub(super) values: usize,
    /// Rows per value head.
    pub(super) width: usize,
}

impl Turns {
    fn source(self, row: usize) -> usize {
        let Some(row) = row.checked_sub(self.before) else {
            return row;
        };
        let (head, at) = (row / self.width, row % self.width);
        let (value, key) = (head / self.keys, head % self.keys);
        self.before + (key * self.values + value) * self.width + at
    }
}

/// Permutation from the rows of the folder's tensor to those of GGUF's.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// Unchanged.
    Same,
    /// Heads whose halves are rotated together become heads whose neighbours are.
    Heads(HeadOrder),
    /// Of every `of` rows, `take` are left: those from `start` on in steps of `step`.
    Cut {
        /// Rows before the cut, per group.
        of: usize,
        /// Rows after the cut, per group.
        take: usize,
        start: usize,
        step: usize,
    },
    Parts(Parts),
    Turns(Turns),
}

impl Order {
    /// Returns the permutation of a cut that leaves half of every `of` rows.
    pub(super) fn cut(cut: Cut, of: usize) -> Order {
        let take = of / 2;
        let (start, step) = match cut {
            Cut::FirstHalf => (0, 1),
            Cut::SecondHalf => (take, 1),
            Cut::Even => (0, 2),
            Cut::Odd => (1, 2),
            Cut::Ordered => panic!("no cut of every so many rows"),
        };
        Order::Cut {
            of,
            take,
            start,
            step,
        }
    }

    /// Returns the row of the file that becomes row `row` of the tensor.
    pub(super) fn source(self, row: usize) -> usize {
        match self {
            Order::Same => row,
            Order::Heads(heads) => heads.source(row),
            Order::Cut {
                of,
                take,
                start,
                step,
            } => row / take * of + start + row % take * step,
            Order::Parts(parts) => parts.source(row),
            Order::Turns(turns) => turns.source(row),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_ordered_as_llama_cpp_converts_them() {
        // reshape(n_head, 2, head_dim / 2).swapaxes(1, 2): of two heads of 6 rows
        let order = HeadOrder { head_dim: 6 };
        let rows: Vec<usize> = (0..12).map(|row| order.source(row)).collect();
        assert_eq!(rows, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
        assert!((0..12).all(|row| order.target(order.source(row)) == row));
    }

    #[test]
    fn parts_of_heads_are_gathered() {
        // two key heads, each with two queries, a key, a value and one more
        let parts = |start, lens| {
            Order::Parts(Parts {
                of: 5,
                heads: 2,
                start,
                lens,
            })
        };
        let rows = |order: Order, n| (0..n).map(|row| order.source(row)).collect::<Vec<_>>();
        assert_eq!(rows(parts(0, [2, 1, 1]), 8), [0, 1, 5, 6, 2, 7, 3, 8]);
        assert_eq!(rows(parts(4, [1, 0, 0]), 2), [4, 9]);
    }

    #[test]
    fn value_heads_take_turns() {
        let (before, keys, values, width) = (1, 2, 3, 2);
        let turns = Order::Turns(Turns {
            before,
            keys,
            values,
            width,
        });
        let rows: Vec<usize> = (0..13).map(|row| turns.source(row)).collect();
        assert_eq!(rows, [0, 1, 2, 7, 8, 3, 4, 9, 10, 5, 6, 11, 12]);
    }
}
