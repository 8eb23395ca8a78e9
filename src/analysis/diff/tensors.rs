//! Named tensors that another program printed or saved, against the engine's.

use std::collections::HashMap;

use octavo_reference::formats::eval_callback::{PRINTED, Printed};
use octavo_reference::formats::session::Session as Cache;
use octavo_reference::metrics::Nmse;
use serde::Serialize;

use super::Error;
use super::lockstep::Options;
use super::recorded_routing::RecordedRouting;
use super::routing::Routing;
use super::tensor_comparison::TensorComparison;
use octavo_engine::Engine;
use octavo_engine::backend::{TapSink, TapView};
use octavo_kernels::ValueShape;
use octavo_model::taps::{self, Tap};
use octavo_model::{Graph, LayerHparams, ValueId};
use octavo_vision::Encoder;
use octavo_vision::pixels::Prepared;

/// Tensors that both the reference and the engine have, in graph order.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Tensors {
    /// Comparison of each tensor.
    pub all: Vec<TensorComparison>,
    /// Comparison of the expert choices among them, if the reference has any.
    #[serde(skip)]
    pub routing: Option<Routing>,
}

impl From<Vec<TensorComparison>> for Tensors {
    fn from(all: Vec<TensorComparison>) -> Tensors {
        Tensors { all, routing: None }
    }
}

/// A value of a reference: position, channel, value.
type Value = (usize, usize, f64);

/// Data that a reference has for one tensor.
struct Known {
    values: Vec<Value>,
    /// Largest rounding error of a printed value.
    rounding: f64,
    /// Values per row.
    width: usize,
    /// Rows computed; not all of them need be in the reference.
    rows: usize,
    sum: Option<f64>,
}

/// Compares the engine's tensors as they arrive, in graph order.
struct Comparing<'a> {
    known: HashMap<Tap, Known>,
    routing: RecordedRouting,
    nmse: f64,
    n_tokens: usize,
    found: &'a mut Vec<TensorComparison>,
}

impl Comparing<'_> {
    fn look(&mut self, view: &TapView<'_>) {
        if view.rows == self.n_tokens {
            let diverged = self.found.iter().any(|tensor| tensor.outside);
            self.found.extend(self.routing.look(view, diverged));
        }
        let Some(known) = self.known.remove(&view.tap) else {
            return;
        };
        if (known.width, known.rows) != (view.width, view.rows) {
            return;
        }
        let (mut nmse, mut worst, mut at) = (Nmse::default(), -1.0, (0, 0, 0.0));
        for &(position, channel, theirs) in &known.values {
            let Some(ours) = view.data.get(position * view.width + channel) else {
                continue;
            };
            let difference = ((f64::from(*ours) - theirs).abs() - known.rounding).max(0.0);
            nmse.add_difference(difference, theirs);
            if difference > worst || difference.is_nan() && !f64::is_nan(worst) {
                (worst, at) = (difference, (position, channel, theirs));
            }
        }
        let nmse = nmse.value();
        let sum_outside = known
            .sum
            .is_some_and(|sum| self.sum_is_outside(sum, view.data));
        self.found.push(TensorComparison {
            name: view.tap.to_string(),
            layer: view.tap.layer,
            occurrence: view.tap.nth,
            values: known.values.len(),
            nmse,
            position: at.0,
            channel: at.1,
            a: view
                .data
                .get(at.0 * view.width + at.1)
                .copied()
                .unwrap_or_default(),
            b: at.2 as f32,
            outside: nmse > self.nmse || nmse.is_nan() || sum_outside,
        });
    }

    /// Returns whether the sums differ too much. llama.cpp adds up in f32, one value after another:
    /// `n` roundings of partial sums, a random walk of up to 2 sqrt(n) steps; differences of single
    /// values within the tolerance add up like a random walk too.
    fn sum_is_outside(&self, theirs: f64, data: &[f32]) -> bool {
        let n = data.len() as f64;
        let ours: f64 = data.iter().map(|x| f64::from(*x)).sum();
        let size: f64 = data.iter().map(|x| f64::from(x.abs())).sum();
        let energy: f64 = data.iter().map(|x| f64::from(*x).powi(2)).sum();
        let own = size * f64::from(f32::EPSILON) * 2.0 * n.sqrt();
        let difference = (ours - theirs).abs();
        difference > own + 8.0 * (self.nmse * energy).sqrt() + 1e-6 || difference.is_nan()
    }
}

/// Compares the tensors that `llama-eval-callback` printed for a text with the engine's for the
/// same text, in graph order.
///
/// # Errors
/// If the text cannot be computed.
pub(super) fn printed(
    engine: &Engine,
    tokens: &[u32],
    all: &[Printed],
    nmse: f64,
    options: Options,
) -> Result<Tensors, Error> {
    let routing = RecordedRouting::new(options.same_routing, nmse);
    let graph = &engine.model().graph;
    compare_printed(graph, tokens.len(), all, routing, |tap| {
        Ok(engine.run_with_taps(tokens, tap)?)
    })
}

/// Compares the tower tensors that `llama-mtmd-cli` printed for an image with the encoder's for the
/// same image, or its first tile, in graph order.
///
/// # Errors
/// If the image cannot be encoded.
pub(super) fn printed_of_image(
    encoder: &mut Encoder,
    prepared: &Prepared,
    all: &[Printed],
    nmse: f64,
) -> Result<Tensors, Error> {
    let tower = encoder.tower();
    let (graph, pixels) = (tower.graph.clone(), prepared.tiles[0].pixels());
    let layout = tower.layout(pixels.width, pixels.height);
    let rows = layout.map_or(0, |layout| layout.attended_rows());
    let (n, width) = (rows, tower.hparams.n_embd);
    let of_patches = |t: &&Printed| t.name.starts_with(taps::LAYER_OUT);
    if let Some(t) = all.iter().find(of_patches) {
        let theirs = t.dims.iter().product::<usize>() / width;
        if theirs != n {
            return Err(Error::Differ {
                what: "patches of the image, here and in the reference",
                a: n.to_string(),
                b: theirs.to_string(),
            });
        }
    }
    let routing = RecordedRouting::new(false, nmse);
    compare_printed(&graph, n, all, routing, |tap| {
        encoder.encode_in_raster_order(pixels, tap)?;
        Ok(())
    })
}

/// Compares printed tensors with those of `n` rows that `look` reports.
fn compare_printed(
    graph: &Graph,
    n: usize,
    all: &[Printed],
    mut routing: RecordedRouting,
    look: impl FnOnce(&mut TapSink<'_>) -> Result<(), Error>,
) -> Result<Tensors, Error> {
    let ours: HashMap<(String, usize), (Tap, ValueId)> = graph
        .taps()
        .map(|(tap, node)| ((tap.to_string(), tap.nth), (tap, node.out)))
        .collect();
    let mut known = HashMap::new();
    for t in all {
        // the name of this tensor depends on the llama.cpp version
        let name = if t.name == "embd" {
            taps::INP_EMBD
        } else {
            &t.name
        };
        let Some(&(tap, value)) = ours.get(&(name.to_owned(), t.occurrence)) else {
            continue;
        };
        let ValueShape { width, rows } = graph.values[value.index()];
        let (computed, rows) = (
            rows.count(n, n),
            t.dims.iter().product::<usize>() / width.max(1),
        );
        // after the last layer's attention llama.cpp computes the last position only
        let first = if rows == 1 { computed - 1 } else { 0 };
        // a per-head product has the heads outermost, every other tensor the positions
        let by_head = t.op == "MUL_MAT" && t.dims[2] > 1;
        let place = |&[i, j, k, l]: &[usize; 4]| {
            if by_head {
                return (first + j, i + t.dims[0] * k);
            }
            let flat = i + t.dims[0] * (j + t.dims[1] * (k + t.dims[2] * l));
            (first + flat / width, flat % width)
        };
        if routing.add(graph, tap, t, &place) {
            continue;
        }
        let values = t.values.iter().map(|(index, value)| {
            let (position, channel) = place(index);
            (position, channel, *value)
        });
        let sum = if rows == computed { t.sum } else { None };
        known.insert(
            tap,
            Known {
                values: values.collect(),
                rounding: PRINTED,
                width,
                rows: computed,
                sum,
            },
        );
    }
    run(n, known, routing, look)
}

/// Compares the keys and values of a prompt cache with the engine's.
///
/// # Errors
/// If the text cannot be computed, or the cache is for a model of another shape.
pub(super) fn cached(engine: &Engine, cache: &Cache, nmse: f64) -> Result<Tensors, Error> {
    let h = engine.hparams();
    let differ = |what, a: String, b: String| {
        if a == b {
            Ok(())
        } else {
            Err(Error::Differ { what, a, b })
        }
    };
    differ(
        "architecture",
        h.arch.name().to_owned(),
        cache.architecture.clone(),
    )?;
    differ(
        "layers",
        h.n_layer().to_string(),
        cache.layers.len().to_string(),
    )?;
    // the file states one width for all layers
    let width = h
        .layers
        .iter()
        .map(LayerHparams::kv_width)
        .max()
        .unwrap_or(0);
    differ(
        "width of keys",
        width.to_string(),
        cache.widths.0.to_string(),
    )?;
    differ(
        "width of values",
        width.to_string(),
        cache.widths.1.to_string(),
    )?;
    // the last tensor of a name is the one stored in the KV cache
    let last: HashMap<(&str, Option<usize>), Tap> = engine
        .model()
        .graph
        .taps()
        .map(|(tap, _)| ((tap.name, tap.layer), tap))
        .collect();
    let mut known = HashMap::new();
    for (layer, (keys, values)) in cache.layers.iter().enumerate() {
        for (name, data) in [(taps::K_CUR, keys), (taps::V_CUR, values)] {
            let Some(&tap) = last.get(&(name, Some(layer))) else {
                continue;
            };
            let values = data
                .iter()
                .enumerate()
                .map(|(i, x)| (i / width, i % width, f64::from(*x)))
                .collect();
            known.insert(
                tap,
                Known {
                    values,
                    rounding: 0.0,
                    width,
                    rows: cache.tokens.len(),
                    sum: None,
                },
            );
        }
    }
    let routing = RecordedRouting::new(false, nmse);
    run(cache.tokens.len(), known, routing, |tap| {
        Ok(engine.run_with_taps(&cache.tokens, tap)?)
    })
}

/// Compares rows of `result_norm`, of all positions.
///
/// # Errors
/// If the text cannot be computed, or the number or width of rows is not the model's.
pub(super) fn hidden(
    engine: &Engine,
    tokens: &[u32],
    values: &[f32],
    nmse: f64,
) -> Result<Tensors, Error> {
    let width = engine.hparams().n_embd();
    if values.len() != width * tokens.len() {
        return Err(Error::Row {
            expected: width * tokens.len(),
            got: values.len(),
        });
    }
    let values = values
        .iter()
        .enumerate()
        .map(|(i, x)| (i / width, i % width, f64::from(*x)))
        .collect();
    let known = Known {
        values,
        rounding: 0.0,
        width,
        rows: tokens.len(),
        sum: None,
    };
    let tap = Tap {
        name: taps::RESULT_NORM,
        layer: None,
        nth: 0,
    };
    let known = HashMap::from([(tap, known)]);
    let routing = RecordedRouting::new(false, nmse);
    run(tokens.len(), known, routing, |tap| {
        Ok(engine.run_with_taps(tokens, tap)?)
    })
}

/// Compares known tensors with those of `n` rows that `look` reports.
fn run(
    n: usize,
    known: HashMap<Tap, Known>,
    routing: RecordedRouting,
    look: impl FnOnce(&mut TapSink<'_>) -> Result<(), Error>,
) -> Result<Tensors, Error> {
    let mut found = Vec::new();
    let mut comparing = Comparing {
        known,
        nmse: routing.nmse(),
        routing,
        n_tokens: n,
        found: &mut found,
    };
    look(&mut |view| comparing.look(view))?;
    let routing = comparing.routing.finish();
    Ok(Tensors {
        all: found,
        routing,
    })
}
