//! Perplexity, divergence and quantization.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use octavo_llm::analysis::eval::base::{Reader, Writer};
use octavo_llm::analysis::eval::{self, Divergence, Estimate, Observer, Options, Perplexity, Text};
use octavo_llm::analysis::imatrix::Importance;
use octavo_llm::analysis::quantize::{self, Plan, Target};
use octavo_llm::engine::default_threads;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::call::{self, Stop};
use crate::error::{BadArgument, Failure};
use crate::load::{self, Loaded};
use crate::model::Model;

/// Ends an evaluation when it is asked to.
struct Watch(Stop);

impl Observer<Perplexity> for Watch {
    fn cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Observer<Divergence> for Watch {
    fn cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Tokenizes a text as the command line does, which drops a line feed at its end.
fn encode(loaded: &Loaded, text: &[u8]) -> Result<Vec<u32>, Failure> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    Ok(eval::encode(loaded.engine.tokenizer(), text)?)
}

/// Cuts a text into chunks.
fn cut(loaded: &Loaded, text: &[u8], chunk: usize, chunks: Option<usize>) -> Result<Text, Failure> {
    let n_vocab = loaded.engine.tokenizer().n_vocab();
    Ok(Text::new(encode(loaded, text)?, n_vocab, chunk, chunks)?)
}

fn options(loaded: &Loaded) -> Options {
    Options {
        threads: loaded.options.threads.unwrap_or_else(default_threads),
        batch: loaded.engine.batch(),
    }
}

/// Figures by name: value and uncertainty.
fn figures<'py>(
    py: Python<'py>,
    all: &[(&str, Estimate)],
    scored: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    for (name, estimate) in all {
        figures.set_item(name, (estimate.value, estimate.uncertainty))?;
    }
    figures.set_item("tokens", scored)?;
    Ok(figures)
}

/// Scores a text.
#[pyfunction]
pub(crate) fn measure_perplexity<'py>(
    py: Python<'py>,
    model: &Bound<'py, Model>,
    text: Vec<u8>,
    chunk: usize,
    chunks: Option<usize>,
) -> PyResult<Bound<'py, PyDict>> {
    let loaded = model.get().loaded(py)?;
    let result = call::run(py, move |stop| {
        let text = cut(&loaded, &text, chunk, chunks)?;
        let mut watch = Watch(Arc::clone(stop));
        Ok(eval::perplexity(
            &loaded.engine,
            &text,
            &options(&loaded),
            &mut watch,
        )?)
    })?;
    let all = [("perplexity", result.ppl()), ("nll", result.mean_nll())];
    figures(py, &all, result.scored())
}

/// Compares the predictions of a model with those of a base.
#[pyfunction]
pub(crate) fn measure_divergence<'py>(
    py: Python<'py>,
    base: &Bound<'py, Model>,
    model: &Bound<'py, Model>,
    text: Vec<u8>,
    chunk: usize,
    chunks: Option<usize>,
) -> PyResult<Bound<'py, PyDict>> {
    let (base, model) = (base.get().loaded(py)?, model.get().loaded(py)?);
    let result = call::run(py, move |stop| {
        let own = encode(&model, &text)?;
        let text = cut(&base, &text, chunk, chunks)?;
        let mut watch = Watch(Arc::clone(stop));
        let file = tempfile::tempfile()?;
        let name = base.engine.gguf().name();
        let mut writer = Writer::new(file, name, text.shape(), text.tokens())?;
        let of_base = options(&base);
        eval::perplexity_with_base(&base.engine, &text, &of_base, &mut watch, &mut writer)?;
        let mut reader = Reader::new(writer.finish()?, name)?;
        // both must read the same tokens
        eval::check_text(&mut reader, &own)?;
        Ok(eval::divergence(
            &model.engine,
            &mut reader,
            None,
            &options(&model),
            &mut watch,
        )?)
    })?;
    let (klds, dps) = (result.klds(), result.dps());
    let all = [
        ("perplexity", result.ppl()),
        ("base_perplexity", result.ppl_base()),
        ("ln_ratio", result.ln_ratio()),
        ("mean", result.kld()),
        ("dp", result.dp()),
        ("rms_dp", result.rms_dp()),
        ("same_top", result.same_top()),
    ];
    let figures = figures(py, &all, result.scored())?;
    figures.set_item("maximum", klds.maximum())?;
    figures.set_item("median", klds.median())?;
    figures.set_item("percentile_99", klds.percentile(0.99))?;
    figures.set_item("dp_median", dps.median())?;
    Ok(figures)
}

/// Writes a model file of another type; returns bytes and bits per weight before and after.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // one for each of Python's
pub(crate) fn quantize_file<'py>(
    py: Python<'py>,
    source: Option<PathBuf>,
    target: PathBuf,
    type_name: &str,
    imatrix: Option<PathBuf>,
    threads: Option<usize>,
    allow_requantize: bool,
    pure: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let parsed = type_name.parse::<Target>();
    let to = parsed.map_err(|error| Failure::from(error).into_py(py))?;
    let totals = call::run(py, move |_| {
        let importance = imatrix.as_deref().map(Importance::open).transpose()?;
        let gguf = load::source(source.as_deref(), false)?.open(true)?;
        let mut options = quantize::Options::new(to);
        options.threads = threads.unwrap_or(options.threads);
        options.allow_requantize = allow_requantize;
        options.choices.pure = pure;
        let plan = Plan::new(&gguf, importance.as_ref(), &options)?;
        if source.as_deref() == Some(&*target) {
            return Err(Failure::from(BadArgument {
                name: "target",
                expected: "another file than the source".to_owned(),
                got: target.display().to_string(),
            }));
        }
        plan.write(&target, &mut |_| {})?;
        Ok(plan.totals())
    })?;
    let (before, after) = totals.bits_per_weight();
    let result = PyDict::new(py);
    result.set_item("bytes_before", totals.before)?;
    result.set_item("bytes_after", totals.after)?;
    result.set_item("bits_before", before)?;
    result.set_item("bits_after", after)?;
    Ok(result)
}
