//! Expert choices printed by another program: those of the first and the last tokens, and for each
//! token the first and the last experts.

use std::collections::{BTreeMap, HashMap};

use octavo_kernels::TopGroups;
use octavo_reference::formats::eval_callback::Printed;
use octavo_reference::metrics::Nmse;

use super::near_tie::{Tie, tie};
use super::routing::{Cause, Pair, Routing};
use super::tensor_comparison::TensorComparison;
use octavo_engine::backend::TapView;
use octavo_model::taps::{FFN_MOE_TOPK, Tap};
use octavo_model::{Graph, Op};

/// Known experts by position, best first; `None` where not printed.
type Rows = BTreeMap<usize, Vec<Option<f32>>>;

/// Recorded choices of one layer.
struct Layer {
    rows: Rows,
    /// Positions whose choice was made but not printed.
    unrecorded: usize,
    /// Tap of the engine's router scores, if it has a name.
    scores: Option<Tap>,
    groups: Option<TopGroups>,
}

impl Layer {
    /// Returns the gap, in our scores of `rows` positions, between experts that differ from a
    /// recorded choice, with the gap that the tolerance allows. `None` if it is not a valid choice.
    fn tie(&self, scores: Option<&[f32]>, rows: usize, pair: &Pair<'_>, nmse: f64) -> Option<Tie> {
        let Some(scores) = scores else {
            return Some(Tie::UNSEEN);
        };
        let width = scores.len() / rows.max(1);
        let row = &scores[pair.position * width..(pair.position + 1) * width];
        let energy: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
        tie(row, self.groups, pair.b, (nmse * energy).sqrt())
    }
}

/// Recorded expert choices, to be compared with the engine's.
pub(super) struct RecordedRouting {
    layers: HashMap<Tap, Layer>,
    /// The engine's router scores, for layers whose choice is still to come.
    scores: HashMap<Tap, Option<Vec<f32>>>,
    /// Allowed NMSE of the scores.
    nmse: f64,
    found: Routing,
}

impl RecordedRouting {
    /// Starts without any layer.
    pub(super) fn new(same_routing: bool, nmse: f64) -> RecordedRouting {
        RecordedRouting {
            layers: HashMap::new(),
            scores: HashMap::new(),
            nmse,
            found: Routing::new(same_routing),
        }
    }

    /// Returns the allowed NMSE of the scores.
    pub(super) fn nmse(&self) -> f64 {
        self.nmse
    }

    /// Adds a printed tensor, if it holds expert choices; `place` maps an index to position and
    /// channel.
    pub(super) fn add(
        &mut self,
        graph: &Graph,
        tap: Tap,
        printed: &Printed,
        place: &dyn Fn(&[usize; 4]) -> (usize, usize),
    ) -> bool {
        let Some((_, node)) = graph.taps().find(|(t, _)| *t == tap) else {
            return false;
        };
        let Op::TopK { x, n, groups } = node.op else {
            return false;
        };
        if printed.dims[0] != n {
            return false;
        }
        let mut rows = Rows::new();
        for (index, id) in &printed.values {
            let (position, channel) = place(index);
            let row = rows.entry(position).or_insert_with(|| vec![None; n]);
            if let Some(known) = row.get_mut(channel) {
                *known = Some(*id as f32);
            }
        }
        let scores = graph.taps().find(|(_, node)| node.out == x);
        let scores = scores.map(|(scores, _)| scores);
        self.scores.extend(scores.map(|scores| (scores, None)));
        let all = printed.dims.iter().product::<usize>() / n.max(1);
        let layer = Layer {
            unrecorded: all.saturating_sub(rows.len()),
            rows,
            scores,
            groups,
        };
        self.layers.insert(tap, layer);
        true
    }

    /// Observes a tensor of the engine; compares it if it holds expert choices, and replaces it
    /// with the recorded ones under `same_routing`. `diverged`: an earlier tensor is outside its
    /// tolerance.
    pub(super) fn look(&mut self, view: &TapView<'_>, diverged: bool) -> Option<TensorComparison> {
        if let Some(scores) = self.scores.get_mut(&view.tap) {
            *scores = Some(view.data.to_vec());
        }
        let layer = self.layers.remove(&view.tap)?;
        let mut data = view.data.to_vec();
        for (position, known) in &layer.rows {
            let at = position * view.width;
            complete(data.get_mut(at..at + view.width)?, known);
        }
        let scores = layer.scores.and_then(|tap| self.scores.remove(&tap)?);
        let nmse = self.nmse;
        let differs = diverged || !self.found.same_routing && self.found.differing > 0;
        let mut wrong = None;
        let pairs = layer.rows.keys().map(|position| {
            let row = position * view.width..(position + 1) * view.width;
            Pair {
                position: *position,
                a: &view.data[row.clone()],
                b: &data[row],
            }
        });
        self.found.unrecorded += layer.unrecorded;
        self.found.add(&view.tap.owned(), pairs, &mut |pair| {
            let tie = layer.tie(scores.as_deref(), view.rows, pair, nmse);
            let cause = Cause::of(tie.as_ref(), differs);
            if cause == Cause::Unexplained {
                wrong.get_or_insert(pair.position);
            }
            (cause, tie)
        });
        let compared = compared(view, &data, &layer.rows, wrong);
        if self.found.same_routing {
            view.go_on_with(data);
        }
        Some(compared)
    }

    /// Returns the comparison; `None` if the recording has no choices.
    pub(super) fn finish(self) -> Option<Routing> {
        (self.found.choices > 0).then_some(self.found)
    }
}

/// Returns whether a printed tensor holds expert choices.
pub(super) fn is_printed_choice(printed: &Printed) -> bool {
    let layer = printed.name.strip_prefix(FFN_MOE_TOPK);
    layer.is_some_and(|rest| rest.starts_with('-'))
}

/// Puts the known experts in their places. The gaps are filled with our other experts in their
/// order: exact where both chose the same, and the next one moves up where one is missing.
fn complete(row: &mut [f32], known: &[Option<f32>]) {
    let ours = row.to_vec();
    let mut rest = ours.iter().filter(|id| !known.contains(&Some(**id)));
    for (place, known) in row.iter_mut().zip(known) {
        if let Some(id) = known.or_else(|| rest.next().copied()) {
            *place = id;
        }
    }
}

/// Compares as for any tensor; it is outside the tolerance if a choice is `wrong`.
fn compared(
    view: &TapView<'_>,
    data: &[f32],
    rows: &Rows,
    wrong: Option<usize>,
) -> TensorComparison {
    let mut nmse = Nmse::default();
    let mut first = None;
    for position in rows.keys() {
        let at = position * view.width;
        let row = at..at + view.width;
        let pairs = view.data[row.clone()].iter().zip(&data[row]);
        for (i, (ours, theirs)) in (at..).zip(pairs) {
            nmse.add((*ours).into(), (*theirs).into());
            if ours != theirs && wrong.is_none_or(|wrong| wrong == *position) {
                first.get_or_insert(i);
            }
        }
    }
    let at = first.unwrap_or_else(|| rows.keys().next().map_or(0, |first| first * view.width));
    let known = rows.values().flatten().flatten();
    TensorComparison {
        name: view.tap.to_string(),
        layer: view.tap.layer,
        occurrence: view.tap.nth,
        values: known.count(),
        nmse: nmse.value(),
        position: at / view.width,
        channel: at % view.width,
        a: view.data[at],
        b: data[at],
        outside: wrong.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_that_were_not_printed_are_our_own() {
        let known = [Some(4.0), Some(1.0), None, None, Some(2.0), Some(6.0)];
        for (ours, completed) in [
            // the same choice
            (
                [4.0, 1.0, 7.0, 3.0, 2.0, 6.0],
                [4.0, 1.0, 7.0, 3.0, 2.0, 6.0],
            ),
            // the first two swapped, another last one
            (
                [1.0, 4.0, 7.0, 3.0, 2.0, 5.0],
                [4.0, 1.0, 7.0, 3.0, 2.0, 6.0],
            ),
            // one from the middle has moved to the end
            (
                [4.0, 1.0, 7.0, 2.0, 3.0, 6.0],
                [4.0, 1.0, 7.0, 3.0, 2.0, 6.0],
            ),
        ] {
            let mut row = ours;
            complete(&mut row, &known);
            assert_eq!(row, completed, "{ours:?}");
        }
    }
}
