//! Conversion of a folder's tensor to its layout in a GGUF file.

use std::sync::Arc;

use gguf_rs_lite::View;

use super::Error;
use super::awq::FileRange;
use super::config::Config;
use super::files::{Source, bad, show};
use super::order::{HeadOrder, Order};
use super::rows::{
    Change, Factors, Matrices, Plain, Reordered, Retyped, Scaled, Shuffled, Transposed,
};
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
    /// Makes a matrix of this many rows of a vector.
    Matrix {
        rows: usize,
    },
    /// Makes a matrix for each head, of some rows of it.
    OfHeads(OfHeads),
}

/// Rows of each head that become a matrix of their own.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfHeads {
    /// Number of heads.
    pub(super) heads: usize,
    /// Rows of a head in the folder.
    pub(super) of: usize,
    /// First row that is taken,
    pub(super) start: usize,
    /// and number of rows that are.
    pub(super) take: usize,
    /// Whether the matrix is transposed.
    pub(super) transposed: bool,
}

impl OfHeads {
    /// Returns the number of rows that are taken and their order; the rows of transposed matrices
    /// are columns of the folder's, in order.
    fn rows(self) -> (usize, Order) {
        let order = match self.transposed {
            true => Order::Same,
            false => Order::Cut {
                of: self.of,
                take: self.take,
                start: self.start,
                step: 1,
            },
        };
        (self.heads.saturating_mul(self.take), order)
    }

    /// Returns the shape of the matrices, in Hugging Face's order.
    fn shape(self, cols: usize) -> Vec<usize> {
        match self.transposed {
            true => vec![self.heads, cols, self.take],
            false => vec![self.heads, self.take, cols],
        }
    }

    /// Returns the places of matrices that are transposed.
    fn matrices(self, cols: usize) -> Option<Matrices> {
        let OfHeads {
            of, start, take, ..
        } = self;
        self.transposed.then_some(Matrices {
            of,
            start,
            rows: take,
            cols,
        })
    }
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
            Rule::Matrix { rows: of } => {
                let fits = rows.is_multiple_of(of);
                whole(
                    fits,
                    rows,
                    Order::Same,
                    &format!("{of} rows of equal length"),
                )
            }
            Rule::OfHeads(heads) => {
                let all = heads.heads.saturating_mul(heads.of);
                let (left, order) = heads.rows();
                whole(rows == all, left, order, &format!("{all} rows"))
            }
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
    /// Type that it is converted to, whatever the type in the folder.
    pub(super) to: Option<Plain>,
    /// Number of values of such a tensor that are permuted together.
    pub(super) unit: usize,
    /// Change of each value.
    pub(super) change: Change,
    /// Permutation of its columns, if there is one.
    pub(super) columns: Option<Order>,
    /// Matrices in the folder that are transposed.
    pub(super) transposed: Option<Matrices>,
    /// Factors of the rows, if they have any.
    pub(super) factors: Vec<Factors>,
    /// Rows in the folder.
    pub(super) source_rows: usize,
    /// It is the first of the matrices of all experts, to be stacked.
    pub(super) stacked: bool,
}

impl Layout {
    /// Returns the layout of a tensor under this name; `transposed` says whether experts' matrices
    /// have inputs in rows.
    pub(super) fn of(
        from: &str,
        source: &Source,
        name: &str,
        rule: Rule,
        config: &Config,
        transposed: bool,
    ) -> Result<Layout, Error> {
        let refuse = |expected: String| bad(from, source, expected, show(source));
        let plain = Plain::of(from, source)?;
        let is_vector = !name.ends_with(".weight");
        let mut shape = shape_of(source, name);
        let most = match rule {
            Rule::Same | Rule::Cut(_) => 3,
            Rule::Matrix { .. } => 1,
            _ => 2,
        };
        if !(1..=most).contains(&shape.len()) || shape.contains(&0) {
            return Err(refuse(format!("one to {most} dimensions, none of them 0")));
        }
        let change = config.row.change(from);
        let in_f32 = stays_f32(name, shape.len()) || change != Change::Nothing;
        let of_matrices = matches!(
            rule,
            Rule::Stacked | Rule::Columns { .. } | Rule::OfHeads(_)
        );
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
        let transposed = match (rule, &shape[..]) {
            (_, &[_, rows, cols]) if transposed => {
                shape.swap(1, 2);
                Some(Matrices {
                    of: rows,
                    start: 0,
                    rows,
                    cols,
                })
            }
            (Rule::OfHeads(heads), &[_, cols]) => heads.matrices(cols),
            _ => None,
        };
        let source_rows = shape[..shape.len() - 1].iter().product();
        // in tensors without rows, values are permuted
        let of_values = is_vector || shape.len() == 1;
        let at = shape.len() - if of_values { 1 } else { 2 };
        let (rows, order) = rule.rows(shape[at]).map_err(refuse)?;
        shape[at] = rows;
        let unit = if of_values { 1 } else { shape[at + 1] };
        match rule {
            Rule::Matrix { rows } => shape = vec![rows, shape[0] / rows],
            Rule::OfHeads(heads) => shape = heads.shape(shape[1]),
            _ => {}
        }
        let stem = name.strip_suffix(".weight");
        let factors = stem.map_or(Ok(Vec::new()), |stem| (config.row.factors)(config, stem))?;
        if !factors.is_empty() && (in_f32 || shape.len() != 2) {
            return Err(refuse("a matrix".to_owned()));
        }
        Ok(Layout {
            plain,
            unit,
            factors,
            dims: shape.iter().rev().map(|d| *d as u64).collect(),
            order,
            to: in_f32.then_some(Plain::F32),
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
        to: Option<Plain>,
    ) -> Layout {
        let row_len = shape.last().copied().unwrap_or(1);
        Layout {
            plain,
            dims: shape.iter().rev().map(|d| *d as u64).collect(),
            order,
            to,
            unit: if shape.len() == 1 { 1 } else { row_len },
            change: Change::Nothing,
            columns: None,
            transposed: None,
            factors: Vec::new(),
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
        if let Some(to) = self.to {
            let rows = Arc::new(Retyped {
                part,
                plain,
                to,
                order,
                unit: self.unit,
                row_len,
                change: self.change,
            });
            view.made(name, &dims, to.ty(), &file, rows)?;
        } else if !self.factors.is_empty() {
            let rows = Arc::new(Scaled {
                part,
                plain,
                row_len,
                factors: self.factors,
            });
            view.made(name, &dims, ty, &file, rows)?;
        } else if let Some(order) = self.columns {
            let rows = Arc::new(Shuffled {
                part,
                bytes,
                row_len,
                order,
            });
            view.made(name, &dims, ty, &file, rows)?;
        } else if let Some(matrices) = self.transposed {
            let rows = Arc::new(Transposed {
                part,
                bytes,
                matrices,
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

/// Returns the shape of a tensor in the folder, without dimensions that mean nothing.
fn shape_of(source: &Source, name: &str) -> Vec<usize> {
    let mut shape = source.shape.clone();
    // ERNIE stores a vector as a matrix of one row
    if !name.ends_with(".weight") && shape.len() == 2 && shape[0] == 1 {
        shape.remove(0);
    }
    // and convolutions store a matrix of one row for each channel
    if is_convolution(name) && shape.len() == 3 && shape[1] == 1 {
        shape.remove(1);
    }
    shape
}

/// Returns whether a name is that of a convolution along tokens.
fn is_convolution(name: &str) -> bool {
    let ends = [".ssm_conv1d.weight", ".shortconv.conv.weight"];
    ends.iter().any(|end| name.ends_with(end))
}

/// Returns whether llama.cpp's converter keeps a tensor in F32 whatever the type of matrices:
/// vectors, norms, biases, routers, convolutions, and embeddings of positions and token types.
pub(super) fn stays_f32(name: &str, dimensions: usize) -> bool {
    let ends = [
        "position_embd.weight",
        "token_types.weight",
        "_norm.weight",
        ".ffn_gate_inp.weight",
        ".ffn_gate_inp_shexp.weight",
    ];
    dimensions < 2
        || !name.ends_with(".weight")
        || is_convolution(name)
        || ends.iter().any(|end| name.ends_with(end))
}
