//! The tensors that are quantized together when sensitivities are measured, and the share of each
//! in the divergence measured.
//!
//! Measuring each tensor by itself takes as many passes over the text as there are tensors. Groups
//! take far fewer: each layer as a whole, and each role (`ffn_down` of all layers) as a whole. The
//! share of a tensor in both is found by iterative proportional fitting (Deming and Stephan, 1940):
//! of all tables with these sums of rows and columns, the one nearest to the tensors' own errors.

use std::collections::BTreeMap;

use gguf_rs_lite::TensorType;

use super::losses::FLOOR;
use super::{Candidates, Sensitivities};
use crate::quant_report::role;
use crate::quantize::mix::fallback;

/// Tensors quantized at a time to measure sensitivities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// One tensor.
    #[default]
    Tensor,
    /// All tensors of a layer, then all layers' tensors of a role; a tensor of no layer by itself.
    Group,
}

impl By {
    /// Returns how many chunks of a text of `n` to measure on. What groups cost is divided among
    /// their tensors by an estimate, which is less certain than what a quarter of the chunks says.
    pub fn chunks(self, n: usize) -> usize {
        match self {
            By::Tensor => n,
            By::Group => n.div_ceil(4).max(FEWEST_CHUNKS).min(n),
        }
    }
}

/// Tensors that are quantized together.
pub(super) struct Unit {
    pub(super) name: String,
    /// Indices of their candidates.
    pub(super) members: Vec<usize>,
}

/// Fewest chunks to measure groups on, if the text has as many: the standard error of the mean KL
/// divergence is then some 3 %.
const FEWEST_CHUNKS: usize = 2;

/// Times that rows and columns are scaled: far more than it takes.
const ROUNDS: usize = 100;

/// Returns the name of a layer's group.
fn of_layer(layer: usize) -> String {
    format!("blk.{layer}.*")
}

/// Returns the name of a role's group.
fn of_role(role: &str) -> String {
    format!("blk.*.{role}")
}

/// Returns the tensors quantized at a time: those with a choice, each by itself, or in its layer
/// and in its role.
pub(super) fn units(candidates: &[Candidates], by: By) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let mut groups: BTreeMap<(bool, String), Vec<usize>> = BTreeMap::new();
    for (i, of) in candidates.iter().enumerate() {
        if of.types.len() < 2 {
            continue;
        }
        match (by, role(&of.tensor.name)) {
            (By::Group, (role, Some(layer))) => {
                groups.entry((false, of_layer(layer))).or_default().push(i);
                groups.entry((true, of_role(&role))).or_default().push(i);
            }
            _ => units.push(Unit {
                name: of.tensor.name.clone(),
                members: vec![i],
            }),
        }
    }
    units.extend(
        groups
            .into_iter()
            .map(|((_, name), members)| Unit { name, members }),
    );
    units
}

/// Returns the type that a tensor is measured in for a type asked for: that or its fallback, if it
/// is a candidate; else the middle candidate, neither so fine that its loss drowns, nor so coarse
/// that it is no longer in proportion to the error.
pub(super) fn probe(of: &Candidates, asked: TensorType) -> TensorType {
    let fitting = fallback(asked, of.tensor.dims[0]).and_then(|ty| of.of(ty));
    let fitting = fitting.filter(|c| c.ty != of.tensor.ty);
    fitting.map_or(of.types[(of.types.len() - 1) / 2].ty, |c| c.ty)
}

/// Returns the measurements of each tensor, its shares in those of groups included: the type and
/// the divergence.
pub(super) fn of_tensors(
    candidates: &[Candidates],
    measured: &Sensitivities,
) -> Vec<Vec<(TensorType, f64)>> {
    let single = |of: &Candidates| {
        let own = measured.of(&of.tensor.name);
        own.map(|(asked, kl)| (probe(of, asked), kl)).collect()
    };
    let mut all: Vec<Vec<(TensorType, f64)>> = candidates.iter().map(single).collect();
    for asked in measured.types() {
        for (i, kl) in shares(candidates, measured, asked) {
            let ty = probe(&candidates[i], asked);
            if !all[i].iter().any(|(own, _)| *own == ty) {
                all[i].push((ty, kl));
            }
        }
    }
    all
}

/// Returns the share of every tensor whose layer and role were both measured in a type.
fn shares(
    candidates: &[Candidates],
    measured: &Sensitivities,
    asked: TensorType,
) -> Vec<(usize, f64)> {
    let mut cells: Vec<Cell> = Vec::new();
    for (i, of) in candidates
        .iter()
        .enumerate()
        .filter(|(_, of)| of.types.len() > 1)
    {
        let (role, Some(layer)) = role(&of.tensor.name) else {
            continue;
        };
        let sums = [of_layer(layer), of_role(&role)].map(|name| measured.get(&name, asked));
        if let [Some(row), Some(column)] = sums {
            let error = of.of(probe(of, asked)).map_or(0.0, |c| c.error);
            cells.push(Cell {
                tensor: i,
                groups: [of_layer(layer), of_role(&role)],
                sums: [row.max(FLOOR), column.max(FLOOR)],
                share: error.max(f64::MIN_POSITIVE),
            });
        }
    }
    fit(&mut cells);
    cells
        .into_iter()
        .map(|cell| (cell.tensor, cell.share))
        .collect()
}

/// A tensor in the table of layers and roles.
struct Cell {
    tensor: usize,
    /// Its layer and role.
    groups: [String; 2],
    /// Measurements of these.
    sums: [f64; 2],
    share: f64,
}

/// Scales the shares until those of each group have the sum that was measured of it. Layers and
/// roles need not have the same sum in all: roles, scaled last, decide.
fn fit(cells: &mut [Cell]) {
    for round in 0..2 * ROUNDS {
        let side = round % 2;
        let mut totals: BTreeMap<String, f64> = BTreeMap::new();
        for cell in cells.iter() {
            *totals.entry(cell.groups[side].clone()).or_default() += cell.share;
        }
        for cell in cells.iter_mut() {
            cell.share *= cell.sums[side] / totals[&cell.groups[side]];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that is a product of rows and columns is found from its sums.
    #[test]
    fn shares_are_found_from_sums() {
        let (rows, columns) = ([1.0, 2.0, 5.0], [0.1, 0.7, 0.2]);
        let mut cells = Vec::new();
        for (i, row) in rows.iter().enumerate() {
            for (j, column) in columns.iter().enumerate() {
                cells.push(Cell {
                    tensor: 3 * i + j,
                    groups: [of_layer(i), of_role(&j.to_string())],
                    sums: [*row, column * rows.iter().sum::<f64>()],
                    share: 0.01,
                });
            }
        }
        fit(&mut cells);
        for cell in &cells {
            let expected = rows[cell.tensor / 3] * columns[cell.tensor % 3];
            assert!((cell.share - expected).abs() < 1e-9, "{}", cell.tensor);
        }
    }
}
