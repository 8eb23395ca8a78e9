//! Choices of experts that another program printed: of the first and the last tokens, and of each
//! the first and the last experts.

use std::collections::{BTreeMap, HashMap};

use octavo_kernels::TopGroups;
use octavo_reference::formats::eval_callback::Printed;
use octavo_reference::metrics::Nmse;

use super::near_tie::{Tie, tie};
use super::routing::{Cause, Pair, Routing};
use super::tensors::TensorComparison;
use octavo_engine::backend::TapView;
use octavo_model::taps::{FFN_MOE_TOPK, Tap};
use octavo_model::{Graph, Op};

/// Of each position the experts that are known, best first.
type Rows = BTreeMap<usize, Vec<Option<f32>>>;

/// A layer's choices.
struct Layer {
    rows: Rows,
    /// Positions whose choice was made and not printed.
    unrecorded: usize,
    /// What the engine chooses by, where that has a name.
    scores: Option<Tap>,
    groups: Option<TopGroups>,
}

impl Layer {
    /// What changed places in a recorded choice, by our scores of so many positions, which the
    /// tolerance lets differ. `None` if it is no choice.
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

/// The choices of a recording, to be held against those of the engine.
pub(super) struct RecordedRouting {
    layers: HashMap<Tap, Layer>,
    /// The engine's values that it chooses by, of layers to come.
    scores: HashMap<Tap, Option<Vec<f32>>>,
    /// NMSE that scores may have.
    nmse: f64,
    found: Routing,
}

impl RecordedRouting {
    /// Of no layer so far.
    pub(super) fn new(same_routing: bool, nmse: f64) -> RecordedRouting {
        RecordedRouting {
            layers: HashMap::new(),
            scores: HashMap::new(),
            nmse,
            found: Routing::new(same_routing),
        }
    }

    /// NMSE that scores may have.
    pub(super) fn nmse(&self) -> f64 {
        self.nmse
    }

    /// Takes in what was printed of a tensor, if it is of choices; `place` finds position and
    /// channel of an index.
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

    /// Looks at a tensor of the engine's, and lets it go on with recorded choices if it is to;
    /// compares it, if it is of choices. `diverged`: something before is beyond the tolerance.
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

    /// What was found; nothing of a recording without choices.
    pub(super) fn finish(self) -> Option<Routing> {
        (self.found.choices > 0).then_some(self.found)
    }
}

/// Whether a tensor was printed of choices.
pub(super) fn is_printed_choice(printed: &Printed) -> bool {
    let layer = printed.name.strip_prefix(FFN_MOE_TOPK);
    layer.is_some_and(|rest| rest.starts_with('-'))
}

/// Puts known experts in their places. The others follow in the order of our own: which ones they
/// are is known where both chose the same, and of one that fell out the next one takes the place.
fn complete(row: &mut [f32], known: &[Option<f32>]) {
    let ours = row.to_vec();
    let mut rest = ours.iter().filter(|id| !known.contains(&Some(**id)));
    for (place, known) in row.iter_mut().zip(known) {
        if let Some(id) = known.or_else(|| rest.next().copied()) {
            *place = id;
        }
    }
}

/// As of any tensor; it is outside the tolerance if a choice is `wrong`.
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
            // all the same
            (
                [4.0, 1.0, 7.0, 3.0, 2.0, 6.0],
                [4.0, 1.0, 7.0, 3.0, 2.0, 6.0],
            ),
            // the first two the other way round, another last one
            (
                [1.0, 4.0, 7.0, 3.0, 2.0, 5.0],
                [4.0, 1.0, 7.0, 3.0, 2.0, 6.0],
            ),
            // one of the middle has moved to the end
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
