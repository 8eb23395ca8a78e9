//! Conversion of a folder's tensor to its layout in a GGUF file.

use std::sync::Arc;

use gguf_rs_lite::{TensorType, View};

use super::Error;
use super::awq::FileRange;
use super::config::Config;
use super::files::{Source, bad, show};
use super::order::{HeadOrder, Order};
use super::rows::{Change, Plain, Reordered, Shuffled, Transposed, Widened};
use super::types::Cut;

/// Rule for the rows of a module.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    Same,
    /// Permutes the rows of each head.
    Heads(HeadOrder),
    /// Permutes the rows, of exactly `from`, and leaves `left` of them.
    Rows {
        order: Order,
        from: usize,
        left: usize,
    },
    /// Permutes the columns, of exactly `columns`.
    Columns {
        order: Order,
        columns: usize,
    },
    /// Leaves some rows, of each expert.
    Cut(Cut),
    /// Stacks the matrices of all experts into one tensor.
    Stacked,
}

impl Rule {
    /// Returns the row order inside of heads, if the rule has one.
    pub(super) fn heads(self) -> Option<HeadOrder> {
        match self {
            Rule::Heads(order) => Some(order),
            _ => None,
        }
    }

    /// Returns how many of `rows` rows are left and in which order, or the expected number of rows.
    pub(super) fn rows(self, rows: usize) -> Result<(usize, Order), String> {
        let whole = |fits: bool, left: usize, order: Order, expected: &str| {
            let fits = fits.then_some((left, order));
            fits.ok_or_else(|| expected.to_owned())
        };
        match self {
            Rule::Same | Rule::Stacked | Rule::Columns { .. } => Ok((rows, Order::Same)),
            Rule::Heads(order) => {
                let fits = rows.is_multiple_of(order.head_dim);
                whole(fits, rows, Order::Heads(order), "rows of whole heads")
            }
            Rule::Rows { order, from, left } => {
                whole(rows == from, left, order, &format!("{from} rows"))
            }
            Rule::Cut(cut) => {
                let fits = rows.is_multiple_of(2);
                whole(
                    fits,
                    rows / 2,
                    Order::cut(cut, rows),
                    "an even number of rows",
                )
            }
        }
    }
}

/// Layout of a plain tensor in a GGUF file.
pub(super) struct Layout {
    /// Element type in the folder.
    pub(super) plain: Plain,
    /// Shape in the GGUF file, in ggml's order.
    pub(super) dims: Vec<u64>,
    pub(super) order: Order,
    /// Converted to F32, whatever the type in the folder.
    pub(super) in_f32: bool,
    /// Number of values of such a tensor that are permuted together.
    pub(super) unit: usize,
    /// Change of each value.
    pub(super) change: Change,
    /// Permutation of its columns, if there is one.
    pub(super) columns: Option<Order>,
    /// Shape of a matrix in the folder that is transposed.
    pub(super) transposed: Option<[usize; 2]>,
    /// Rows in the folder.
    pub(super) source_rows: usize,
    /// It is the first of the matrices of all experts, to be stacked.
    pub(super) stacked: bool,
}

impl Layout {
    /// Returns the layout of a tensor under this name.
    pub(super) fn of(
        from: &str,
        source: &Source,
        name: &str,
        rule: Rule,
        config: &Config,
    ) -> Result<Layout, Error> {
        let refuse = |expected: String| bad(from, source, expected, show(source));
        let plain = Plain::of(from, source)?;
        let is_vector = !name.ends_with(".weight");
        let mut shape = source.shape.clone();
        // ERNIE stores a vector as a matrix of one row
        if is_vector && shape.len() == 2 && shape[0] == 1 {
            shape.remove(0);
        }
        // and convolutions store a matrix of one row for each channel
        if name.ends_with(CONVOLUTION) && shape.len() == 3 && shape[1] == 1 {
            shape.remove(1);
        }
        let most = match rule {
            Rule::Same | Rule::Cut(_) => 3,
            Rule::Heads(_) | Rule::Rows { .. } | Rule::Columns { .. } | Rule::Stacked => 2,
        };
        if !(1..=most).contains(&shape.len()) || shape.contains(&0) {
            return Err(refuse(format!("one to {most} dimensions, none of them 0")));
        }
        let change = config.row.change(from);
        let in_f32 = stays_f32(name, shape.len()) || change != Change::Nothing;
        let of_matrices = matches!(rule, Rule::Stacked | Rule::Columns { .. });
        if is_vector && shape.len() > 2 || of_matrices && in_f32 {
            return Err(refuse("a matrix".to_owned()));
        }
        let columns = match rule {
            Rule::Columns { order, columns } if shape[1] == columns => Some(order),
            Rule::Columns { columns, .. } => {
                return Err(refuse(format!("{columns} columns")));
            }
            _ => None,
        };
        let transposed = match shape[..] {
            [_, rows, cols] if config.row.transposed => {
                shape.swap(1, 2);
                Some([rows, cols])
            }
            _ => None,
        };
        let source_rows = shape[..shape.len() - 1].iter().product();
        // in tensors without rows, values are permuted
        let of_values = is_vector || shape.len() == 1;
        let at = shape.len() - if of_values { 1 } else { 2 };
        let (rows, order) = rule.rows(shape[at]).map_err(refuse)?;
        shape[at] = rows;
        Ok(Layout {
            plain,
            unit: if of_values { 1 } else { shape[at + 1] },
            dims: shape.iter().rev().map(|d| *d as u64).collect(),
            order,
            in_f32,
            change,
            columns,
            transposed,
            source_rows,
            stacked: matches!(rule, Rule::Stacked),
        })
    }

    /// Returns the layout of a tensor whose rows (or values, if it has no rows) are taken from
    /// another one of shape `whole`; both shapes are in Hugging Face's order.
    pub(super) fn of_rows(
        plain: Plain,
        whole: &[usize],
        shape: &[usize],
        order: Order,
        in_f32: bool,
    ) -> Layout {
        let row_len = shape.last().copied().unwrap_or(1);
        Layout {
            plain,
            dims: shape.iter().rev().map(|d| *d as u64).collect(),
            order,
            in_f32,
            unit: if shape.len() == 1 { 1 } else { row_len },
            change: Change::Nothing,
            columns: None,
            transposed: None,
            source_rows: whole.iter().product::<usize>() / row_len,
            stacked: false,
        }
    }

    /// Adds the tensor under this name, stacked from several of one shape if each expert has one.
    pub(super) fn declare(
        self,
        view: &mut View,
        name: &str,
        sources: &[&Source],
    ) -> Result<(), Error> {
        let part = sources[0].part.clone();
        let file = part.file.name().to_owned();
        let (plain, order, mut dims) = (self.plain, self.order, self.dims);
        let (bytes, ty, row_len) = (plain.bytes(), plain.ty(), dims[0] as usize);
        if self.in_f32 {
            let rows = Arc::new(Widened {
                part,
                plain,
                order,
                unit: self.unit,
                row_len,
                change: self.change,
            });
            view.made(name, &dims, TensorType::F32, &file, rows)?;
        } else if let Some(order) = self.columns {
            let rows = Arc::new(Shuffled {
                part,
                bytes,
                row_len,
                order,
            });
            view.made(name, &dims, ty, &file, rows)?;
        } else if let Some(shape) = self.transposed {
            let rows = Arc::new(Transposed {
                part,
                bytes,
                shape,
                order,
            });
            view.made(name, &dims, ty, &file, rows)?;
        } else if matches!(order, Order::Same) && !self.stacked {
            let FileRange { file, range } = part;
            view.tensor(name, &dims, ty, &file, range)?;
        } else {
            if self.stacked {
                dims.push(sources.len() as u64);
            }
            let rows = Arc::new(Reordered {
                parts: sources.iter().map(|s| s.part.clone()).collect(),
                part_rows: self.source_rows,
                row_bytes: row_len * bytes,
                order,
            });
            view.made(name, &dims, ty, &file, rows)?;
        }
        Ok(())
    }
}

/// End of the names of convolutions along tokens.
const CONVOLUTION: &str = ".ssm_conv1d.weight";

/// Returns whether llama.cpp's converter keeps a tensor in F32 whatever the type of matrices:
/// vectors, norms, biases, routers, convolutions and position embeddings of patches.
pub fn stays_f32(name: &str, dimensions: usize) -> bool {
    let ends = [
        "v.position_embd.weight",
        "_norm.weight",
        ".ffn_gate_inp.weight",
        ".ffn_gate_inp_shexp.weight",
        CONVOLUTION,
    ];
    dimensions < 2 || !name.ends_with(".weight") || ends.iter().any(|end| name.ends_with(end))
}
