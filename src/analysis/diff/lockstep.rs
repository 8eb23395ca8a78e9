//! Lockstep comparison of two executions: each tensor is compared as soon as both have computed it,
//! so that memory holds a few tensors and not two whole passes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use octavo_reference::metrics::Nmse;
use serde::Serialize;

use super::Error;
use super::bounds::Bounds;
use super::execution::{Execution, Rounding, TapAction, TapOut};
use super::logits::LogitComparison;
use super::routing::{Cause, Pair, Routing, is_choice};
use super::target::{GraphInputs, Input, Target};
use octavo_model::OwnedTap;
use octavo_model::taps::RESULT_OUTPUT;

/// Outcome of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Every tensor has the same bits.
    Identical,
    /// Every tensor is within its bound.
    Within,
    /// At least one tensor is outside its bound.
    Diverged,
}

/// Comparison of one tensor.
#[derive(Clone, Debug, Serialize)]
pub struct TapReport {
    /// Name with the layer: `ffn_up-1`.
    pub name: String,
    /// Layer number.
    pub layer: Option<usize>,
    /// Number of earlier tensors of this name.
    pub occurrence: usize,
    /// Position with the largest error relative to its bound.
    pub position: usize,
    /// Channel of the largest difference at `position`.
    pub channel: usize,
    /// The first execution's value there.
    pub a: f32,
    /// The second execution's value there.
    pub b: f32,
    /// Normalised mean squared error of the whole tensor, relative to the first's energy.
    pub nmse: f64,
    /// Largest absolute difference.
    pub max_abs: f64,
    /// rms error as a fraction of the bound, at `position`; `None` where there is no bound.
    pub of_bound: Option<f64>,
    /// Whether it is outside its bound, or only one side is NaN.
    pub outside: bool,
}

/// A tensor that only one of the two executions reports.
#[derive(Clone, Debug, Serialize)]
pub struct Absent {
    /// Name with the layer.
    pub name: String,
    /// Number of earlier tensors of this name.
    pub occurrence: usize,
    /// Side that lacks it: `a` or `b`.
    pub absent_in: &'static str,
}

/// Comparison of two executions of one input.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// Overall outcome.
    pub verdict: Verdict,
    /// First tensor, in graph order, outside its bound.
    pub first_divergence: Option<TapReport>,
    /// All compared tensors, in graph order.
    pub taps: Vec<TapReport>,
    /// Tensors that only one of the two reports.
    pub absent: Vec<Absent>,
    /// Comparison of expert choices; `None` for a model without experts.
    pub routing: Option<Routing>,
    /// Comparison of the logits; `None` for a model without any.
    pub logits: Option<LogitComparison>,
}

/// Comparison options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Let the second execution continue with the first's expert choices, so that a different
    /// choice does not make everything after it differ. The choices are still compared.
    pub same_routing: bool,
}

/// Tensors that one side may be ahead of the other: more than a layer has.
const AHEAD: usize = 64;

/// Runs both on the same text or image and compares all named tensors, with bounds from the first's
/// graph. `progress` receives (tensors compared, tensors in all).
///
/// # Errors
/// If one of the two fails, or they are models of different shape.
pub fn compare(
    a: &mut dyn Execution,
    b: &mut dyn Execution,
    input: Input<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Comparison, Error> {
    compare_with(a, b, input, Options::default(), progress)
}

/// As [`compare`], with options.
///
/// # Errors
/// As [`compare`].
pub fn compare_with(
    a: &mut dyn Execution,
    b: &mut dyn Execution,
    input: Input<'_>,
    options: Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Comparison, Error> {
    same_shape(a, b)?;
    let (gguf, subjects) = (a.gguf().clone(), [a.target().clone(), b.target().clone()]);
    let [of_a, of_b] = &subjects;
    let rounding = sum(a.rounding(), b.rounding());
    let graph_inputs = of_a.graph_inputs(gguf.name(), input)?;
    let networks = [of_a.network(), of_b.network()];
    let bounds = Bounds::new(&gguf, networks, rounding, &graph_inputs);
    let total = networks[0].graph().taps().count() as u64;
    let (send_a, receive_a) = sync_channel::<TapOut>(1);
    let (send_b, receive_b) = sync_channel::<TapOut>(1);
    let (choices, of_first) = options.same_routing.then(channel::<TapOut>).unzip();
    std::thread::scope(|scope| {
        let first = scope.spawn(move || a.run(input, &mut |tap| shown(&send_a, tap)));
        let second = scope.spawn(move || {
            let mut sink = move |tap| match &of_first {
                Some(choices) => routed(&send_b, tap, choices),
                None => shown(&send_b, tap),
            };
            b.run(input, &mut sink)
        });
        let mut pairing = Pairing::new(bounds, of_a, (input, &graph_inputs), options);
        let streams = Streams::new(receive_a, receive_b, choices);
        let compared = pairing.pair(streams, &mut |done| progress(done, total));
        for thread in [first, second] {
            match thread.join() {
                Ok(result) => result?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        compared?;
        Ok(pairing.finish())
    })
}

/// Hands a tensor over. The receiver hangs up when the comparison has failed; the pass then stops
/// reporting.
fn shown(to: &SyncSender<TapOut>, tap: TapOut) -> TapAction {
    match to.send(tap) {
        Ok(()) => TapAction::Continue,
        Err(_) => TapAction::Stop,
    }
}

/// As [`shown`], but replaces an expert choice by the first execution's.
fn routed(to: &SyncSender<TapOut>, tap: TapOut, choices: &Receiver<TapOut>) -> TapAction {
    if !is_choice(&tap.tap) {
        return shown(to, tap);
    }
    let (which, len) = (tap.tap.clone(), tap.data.len());
    if shown(to, tap) == TapAction::Stop {
        return TapAction::Stop;
    }
    // if there is no choice of the same shape (an error reported elsewhere), keep its own
    match choices.iter().find(|choice| choice.tap == which) {
        Some(choice) if choice.data.len() == len => TapAction::Replace(choice.data),
        _ => TapAction::Continue,
    }
}

/// Tensors of both executions as they arrive. While the second execution waits for an expert choice
/// of the first, the first's tensors are read ahead up to that choice.
struct Streams {
    a: Receiver<TapOut>,
    b: Receiver<TapOut>,
    /// Tensors of the first, read ahead.
    ahead: VecDeque<TapOut>,
    /// Channel on which the second execution waits for choices, while more can come.
    choices: Option<Sender<TapOut>>,
    /// Choices already sent, or that never will be.
    decided: HashSet<OwnedTap>,
}

impl Streams {
    fn new(a: Receiver<TapOut>, b: Receiver<TapOut>, choices: Option<Sender<TapOut>>) -> Streams {
        Streams {
            a,
            b,
            ahead: VecDeque::new(),
            choices,
            decided: HashSet::new(),
        }
    }

    /// Returns the first execution's next tensor.
    fn next_of_a(&mut self) -> Option<TapOut> {
        self.ahead.pop_front().or_else(|| self.receive_a())
    }

    /// Returns the second execution's next tensor.
    fn next_of_b(&mut self) -> Option<TapOut> {
        let theirs = self.b.recv().ok()?;
        let waits = is_choice(&theirs.tap) && self.choices.is_some();
        while waits && !self.decided.contains(&theirs.tap) {
            let Some(ours) = self.receive_a() else { break };
            self.ahead.push_back(ours);
        }
        Some(theirs)
    }

    /// Receives a tensor from the first execution, and passes expert choices on to the second.
    fn receive_a(&mut self) -> Option<TapOut> {
        let Ok(tap) = self.a.recv() else {
            // closing the channel ends the second's wait for choices that will not come
            self.choices = None;
            return None;
        };
        if is_choice(&tap.tap)
            && let Some(choices) = &self.choices
        {
            self.decided.insert(tap.tap.clone());
            if choices.send(tap.clone()).is_err() {
                // the second has ended, and its thread reports the reason
                self.choices = None;
            }
        }
        Some(tap)
    }
}

fn sum(a: Rounding, b: Rounding) -> Rounding {
    Rounding {
        keys: a.keys + b.keys,
        values: a.values + b.values,
        kernels: a.kernels.with(b.kernels, |a, b| a + b),
    }
}

fn same_shape(a: &dyn Execution, b: &dyn Execution) -> Result<(), Error> {
    let differ = |what, a: String, b: String| {
        if a == b {
            Ok(())
        } else {
            Err(Error::Differ { what, a, b })
        }
    };
    let (x, y) = (a.target().shape(), b.target().shape());
    for ((what, x), (other, y)) in x.into_iter().zip(y) {
        let what = if what == other { what } else { "kind" };
        differ(what, x, y)?;
    }
    Ok(())
}

/// Matches the two versions of each tensor.
struct Pairing<'a> {
    bounds: Bounds<'a>,
    n_tokens: usize,
    options: Options,
    report: Comparison,
    identical: bool,
    /// Whether positions depend on earlier positions only.
    causal: bool,
    /// First position with a difference that others may follow from: a tensor outside its bound, or
    /// an expert choice that each side keeps to itself.
    differs_from: Option<usize>,
}

impl<'a> Pairing<'a> {
    fn new(
        bounds: Bounds<'a>,
        target: &Target,
        (input, graph_inputs): (Input<'_>, &GraphInputs),
        options: Options,
    ) -> Self {
        let n_vocab = target.n_vocab();
        let logits = n_vocab.map(|n_vocab| LogitComparison::new(input.tokens(), n_vocab));
        let report = Comparison {
            verdict: Verdict::Identical,
            first_divergence: None,
            taps: Vec::new(),
            absent: Vec::new(),
            routing: None,
            logits,
        };
        Pairing {
            bounds,
            n_tokens: graph_inputs.n,
            options,
            report,
            identical: true,
            causal: target.is_causal(),
            differs_from: None,
        }
    }

    fn pair(&mut self, mut streams: Streams, progress: &mut dyn FnMut(u64)) -> Result<(), Error> {
        let mut waiting: HashMap<OwnedTap, TapOut> = HashMap::new();
        let mut order: Vec<OwnedTap> = Vec::new();
        while let Some(ours) = streams.next_of_a() {
            while !waiting.contains_key(&ours.tap) && waiting.len() < AHEAD {
                let Some(theirs) = streams.next_of_b() else {
                    break;
                };
                order.push(theirs.tap.clone());
                waiting.insert(theirs.tap.clone(), theirs);
            }
            match waiting.remove(&ours.tap) {
                Some(theirs) => self.compare(&ours, &theirs)?,
                None => self.absent(&ours.tap, "b"),
            }
            progress(self.report.taps.len() as u64);
        }
        while let Some(theirs) = streams.next_of_b() {
            order.push(theirs.tap.clone());
            waiting.insert(theirs.tap.clone(), theirs);
        }
        for tap in order.iter().filter(|tap| waiting.contains_key(tap)) {
            self.absent(tap, "a");
        }
        Ok(())
    }

    fn absent(&mut self, tap: &OwnedTap, absent_in: &'static str) {
        self.report.absent.push(Absent {
            name: tap.to_string(),
            occurrence: tap.nth,
            absent_in,
        });
    }

    fn compare(&mut self, a: &TapOut, b: &TapOut) -> Result<(), Error> {
        if a.width != b.width || a.data.len() != b.data.len() {
            let shape = |t: &TapOut| {
                format!(
                    "{} of {} x {}",
                    t.tap,
                    t.data.len() / t.width.max(1),
                    t.width
                )
            };
            return Err(Error::Differ {
                what: "tensor",
                a: shape(a),
                b: shape(b),
            });
        }
        let allowed = self.bounds.observe(&a.tap, a.width, &a.data, &b.data)?;
        if is_choice(&a.tap) {
            self.compare_choices(a, b);
        }
        let (tap, outside_from) = report(a, b, allowed.as_deref());
        self.identical &= a
            .data
            .iter()
            .zip(&b.data)
            .all(|(a, b)| a.to_bits() == b.to_bits());
        if let Some(row) = outside_from {
            if !is_choice(&a.tap) {
                self.may_differ_from(row);
            }
            let first = &mut self.report.first_divergence;
            first.get_or_insert_with(|| tap.clone());
        }
        self.report.taps.push(tap);
        let all = a.tap.name == RESULT_OUTPUT && a.data.len() == a.width * self.n_tokens;
        if let Some(logits) = self.report.logits.as_mut().filter(|_| all) {
            for (position, (a, b)) in a
                .data
                .chunks_exact(a.width)
                .zip(b.data.chunks_exact(a.width))
                .enumerate()
            {
                // the first is the reference that the second is compared with
                logits.add(position, b, a)?;
            }
        }
        Ok(())
    }

    /// Compares expert choices. If both continue with the first's, later tensors have no error from
    /// the choice; otherwise they may differ.
    fn compare_choices(&mut self, a: &TapOut, b: &TapOut) {
        let same_routing = self.options.same_routing;
        let routing = self.report.routing.as_mut();
        let mut routing = routing.map_or_else(|| Routing::new(same_routing), std::mem::take);
        let width = a.width.max(1);
        let rows = a.data.chunks_exact(width).zip(b.data.chunks_exact(width));
        let pairs = rows.enumerate();
        let pairs = pairs.map(|(position, (a, b))| Pair { position, a, b });
        routing.add(&a.tap, pairs, &mut |pair| {
            let tie = self.bounds.tie(&a.tap, pair.position, [pair.a, pair.b]);
            let differs = self.differs_from.is_some_and(|from| from <= pair.position);
            (Cause::of(tie.as_ref(), differs), tie)
        });
        self.report.routing = Some(routing);
        let mut rows = a.data.chunks_exact(width).zip(b.data.chunks_exact(width));
        if same_routing {
            self.bounds.agree(&a.tap);
        } else if let Some(row) = rows.position(|(a, b)| a != b) {
            self.may_differ_from(row);
        }
    }

    /// Marks that tensors may differ from this position on, or everywhere if the model is not
    /// causal.
    fn may_differ_from(&mut self, position: usize) {
        let position = if self.causal { position } else { 0 };
        let before = self.differs_from.unwrap_or(position);
        self.differs_from = Some(before.min(position));
    }

    fn finish(self) -> Comparison {
        let verdict = match (&self.report.first_divergence, self.identical) {
            (Some(_), _) => Verdict::Diverged,
            (None, true) => Verdict::Identical,
            (None, false) => Verdict::Within,
        };
        Comparison {
            verdict,
            ..self.report
        }
    }
}

/// Compares one tensor, and finds the first position outside its bound; `allowed` is the rms error
/// allowed at each position.
fn report(a: &TapOut, b: &TapOut, allowed: Option<&[f64]>) -> (TapReport, Option<usize>) {
    let width = a.width.max(1);
    let (mut nmse, mut max_abs) = (Nmse::default(), 0.0f64);
    let (mut worst, mut position, mut outside_from) = (-1.0, 0, None);
    for (row, (x, y)) in a
        .data
        .chunks_exact(width)
        .zip(b.data.chunks_exact(width))
        .enumerate()
    {
        let mut of_row = Nmse::default();
        for (x, y) in x.iter().zip(y) {
            of_row.add(f64::from(*y), f64::from(*x));
        }
        nmse.merge(of_row);
        let rms = (of_row.squares() / width as f64).sqrt();
        let part = match allowed.and_then(|a| a.get(row)) {
            // equal values are within any bound, also a bound of 0
            _ if rms == 0.0 => 0.0,
            Some(allowed) => rms / allowed,
            None => rms,
        };
        let unlike = x.iter().zip(y).any(|(x, y)| x.is_finite() != y.is_finite());
        if unlike || allowed.is_some() && (part > 1.0 || part.is_nan()) {
            outside_from.get_or_insert(row);
        }
        if part > worst || part.is_nan() && !f64::is_nan(worst) {
            (worst, position) = (part, row);
        }
    }
    let row = position * width..(position + 1) * width;
    let difference = |i: usize| {
        let d = (f64::from(a.data[i]) - f64::from(b.data[i])).abs();
        if d.is_nan() { f64::INFINITY } else { d }
    };
    for i in 0..a.data.len() {
        max_abs = max_abs.max(difference(i));
    }
    let at = row
        .max_by(|i, j| difference(*i).total_cmp(&difference(*j)))
        .unwrap_or(0);
    let value = |x: &[f32]| x.get(at).copied().unwrap_or_default();
    let report = TapReport {
        name: a.tap.to_string(),
        layer: a.tap.layer,
        occurrence: a.tap.nth,
        position,
        channel: at % width,
        a: value(&a.data),
        b: value(&b.data),
        nmse: nmse.value(),
        max_abs,
        of_bound: allowed.map(|_| worst.max(0.0)),
        outside: outside_from.is_some(),
    };
    (report, outside_from)
}
