//! How a folder's tensor lies in a GGUF file.

use super::Error;
use super::config::Config;
use super::files::{Source, bad, show};
use super::rows::{HeadOrder, Order};
use super::types::Cut;

/// What happens to a module's rows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    Same,
    /// Rows of a head change places.
    Heads(HeadOrder),
    /// Heads do: Falcon's queries, keys and values, `rows` of them.
    Groups {
        order: Order,
        rows: usize,
    },
    /// Some are left, of each expert.
    Cut(Cut),
    /// A matrix of each expert becomes one tensor.
    Stacked,
}

impl Rule {
    /// The order inside of heads, if they have one.
    pub(super) fn heads(self) -> Option<HeadOrder> {
        match self {
            Rule::Heads(order) => Some(order),
            _ => None,
        }
    }

    /// What is left of so many rows, and in which order, or what their number should be.
    pub(super) fn rows(self, rows: usize) -> Result<(usize, Order), String> {
        let whole = |fits: bool, left: usize, order: Order, expected: &str| {
            let fits = fits.then_some((left, order));
            fits.ok_or_else(|| expected.to_owned())
        };
        match self {
            Rule::Same | Rule::Stacked => Ok((rows, Order::Same)),
            Rule::Heads(order) => {
                let fits = rows.is_multiple_of(order.head_dim);
                whole(fits, rows, Order::Heads(order), "rows of whole heads")
            }
            Rule::Groups { order, rows: all } => {
                whole(rows == all, rows, order, &format!("{all} rows"))
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

/// How a plain tensor lies in a GGUF file.
pub(super) struct Layout {
    /// Its shape there, in ggml's order.
    pub(super) dims: Vec<u64>,
    pub(super) order: Order,
    /// As F32, whatever it is in the folder.
    pub(super) in_f32: bool,
    /// What is added to each value of such a tensor.
    pub(super) plus: f32,
    /// The shape of a matrix in the folder whose columns become rows.
    pub(super) transposed: Option<[usize; 2]>,
    /// Rows in the folder.
    pub(super) source_rows: usize,
}

impl Layout {
    /// What becomes of a tensor under this name.
    pub(super) fn of(
        from: &str,
        source: &Source,
        name: &str,
        rule: Rule,
        config: &Config,
    ) -> Result<Layout, Error> {
        let refuse = |expected: String| bad(from, source, expected, show(source));
        let is_bias = !name.ends_with(".weight");
        let mut shape = source.shape.clone();
        // ERNIE keeps a vector as a matrix of one row
        if is_bias && shape.len() == 2 && shape[0] == 1 {
            shape.remove(0);
        }
        let most = match rule {
            Rule::Same | Rule::Cut(_) => 3,
            Rule::Heads(_) | Rule::Groups { .. } | Rule::Stacked => 2,
        };
        if !(1..=most).contains(&shape.len()) || shape.contains(&0) {
            return Err(refuse(format!("one to {most} dimensions, none of them 0")));
        }
        let in_f32 = stays_f32(name, shape.len());
        if is_bias && shape.len() > 2 || matches!(rule, Rule::Stacked) && in_f32 {
            return Err(refuse("a matrix".to_owned()));
        }
        let transposed = match shape[..] {
            [_, rows, cols] if config.row.transposed => {
                shape.swap(1, 2);
                Some([rows, cols])
            }
            _ => None,
        };
        let source_rows = shape[..shape.len() - 1].iter().product();
        // where there are no rows, values change places
        let at = shape.len().saturating_sub(if is_bias { 1 } else { 2 });
        let (rows, order) = rule.rows(shape[at]).map_err(refuse)?;
        shape[at] = rows;
        let is_norm = name.ends_with("_norm.weight");
        Ok(Layout {
            dims: shape.iter().rev().map(|d| *d as u64).collect(),
            order,
            in_f32,
            plus: if is_norm { config.row.norm_plus } else { 0.0 },
            transposed,
            source_rows,
        })
    }
}

/// Whether llama.cpp's converter keeps a tensor in F32 whatever the type of matrices: vectors,
/// norms, biases and routers.
pub fn stays_f32(name: &str, dimensions: usize) -> bool {
    let ends = [
        "_norm.weight",
        ".ffn_gate_inp.weight",
        ".ffn_gate_inp_shexp.weight",
    ];
    dimensions < 2 || !name.ends_with(".weight") || ends.iter().any(|end| name.ends_with(end))
}
