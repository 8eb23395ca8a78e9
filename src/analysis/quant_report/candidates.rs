//! The models of a report: made, opened and scored. Where they take less room than a base of the
//! model itself, all of them are open at once and scored beside it, in one pass of the text; else
//! they are made and scored one after the other, against a base in a file. The figures of both have
//! the same digits, because both round the model's own predictions in the same way.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gguf_rs_lite::{Gguf, TensorInfo};
use octavo_engine::{Engine, EngineOptions, ModelSource, fits};

use super::{
    Base, BaseScores, Error, Facts, Failed, ModelScores, Pace, Scoring, Setup, Watch, base_of,
    generation, score,
};
use crate::eval::base::Shape;
use crate::eval::{self, Compared, Divergence, Text};
use crate::quantize::{Plan, Target};

/// Bytes of memory that an open model takes at most for each byte of its file (2.4 measured with
/// SmolLM2): the file, which is mapped, its weights in the kernels' layout, caches and logits.
const BYTES_IN_MEMORY: u64 = 3;

/// A model to score.
pub struct Candidate<'a> {
    /// Name in the report.
    name: String,
    /// Name in messages.
    label: String,
    source: Source<'a>,
}

enum Source<'a> {
    /// A quantization of the model itself, to be made.
    Plan(Plan<'a>),
    /// A GGUF file or a folder.
    Path(PathBuf),
}

/// A candidate that is loaded.
struct Opened {
    name: String,
    label: String,
    engine: Engine,
    bytes: u64,
    bits: f64,
}

impl<'a> Candidate<'a> {
    /// Plans a quantization of the model as by `quantize`.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn quantized(
        gguf: &'a Gguf,
        setup: &'a Setup<'_>,
        target: Target,
    ) -> Result<Candidate<'a>, Error> {
        let plan = Plan::new(gguf, setup.importance, &setup.quantizing(target))?;
        Ok(Candidate::planned(target.name(), plan))
    }

    /// Names a planned quantization of the model.
    pub fn planned(name: &str, plan: Plan<'a>) -> Candidate<'a> {
        Candidate {
            name: name.to_owned(),
            label: name.to_owned(),
            source: Source::Plan(plan),
        }
    }

    /// Names a model with the same vocabulary: a GGUF file or a folder.
    pub fn existing(path: &Path) -> Candidate<'a> {
        let label = path.display().to_string();
        let name = path.file_name();
        Candidate {
            name: name.map_or_else(|| label.clone(), |name| name.to_string_lossy().into_owned()),
            label,
            source: Source::Path(path.to_owned()),
        }
    }

    /// Makes the model, if it is to be made, and loads it.
    fn open(
        &self,
        setup: &Setup<'_>,
        file: &str,
        options: &EngineOptions,
    ) -> Result<Opened, Error> {
        let (path, (bytes, bits)) = match &self.source {
            Source::Plan(plan) => {
                let (path, totals) = (setup.folder.join(file), plan.totals());
                plan.write(&path, &mut |_| {})?;
                (path, (totals.after, totals.bits_per_weight().1))
            }
            Source::Path(path) => {
                let gguf = ModelSource::Path(path.clone()).open(true)?;
                (path.clone(), size(&gguf))
            }
        };
        Ok(Opened {
            name: self.name.clone(),
            label: self.label.clone(),
            engine: Engine::load(&ModelSource::Path(path), options, &mut |_| {})?,
            bytes,
            bits,
        })
    }

    /// Returns the bytes of the tensors of a model to be made.
    fn bytes_to_make(&self) -> u64 {
        match &self.source {
            Source::Plan(plan) => plan.totals().after,
            Source::Path(_) => 0,
        }
    }

    /// Returns the bytes of the tensors in memory; 0 for a file that cannot be opened.
    fn bytes(&self) -> u64 {
        match &self.source {
            Source::Plan(plan) => plan.totals().after,
            Source::Path(path) => {
                let gguf = ModelSource::Path(path.clone()).open(true);
                gguf.map_or(0, |gguf| size(&gguf).0)
            }
        }
    }
}

impl Opened {
    /// Returns the scores of a model that took `time` for its divergence.
    fn scores(
        self,
        setup: &Setup<'_>,
        d: &Divergence,
        time: Duration,
    ) -> Result<ModelScores, Error> {
        Ok(ModelScores {
            name: self.name,
            facts: Facts {
                bytes: self.bytes,
                bits: self.bits,
                prompts: Pace::of(d.chunks() * setup.n_ctx, time),
                generation: generation(&self.engine)?,
            },
            chunks: d.by_chunk().to_vec(),
        })
    }
}

/// Returns the bytes of all tensors, and bits per weight.
pub(super) fn size(gguf: &Gguf) -> (u64, f64) {
    let sum = |(bytes, n): (u64, u64), t: &TensorInfo| (bytes + t.bytes, n + t.n_elements());
    let (bytes, n) = gguf.tensors().iter().fold((0, 0), sum);
    (bytes, bytes as f64 * 8.0 / (n as f64).max(1.0))
}

/// Candidates, and those that could not even be planned.
type Candidates<'a> = [Result<Candidate<'a>, Failed>];

/// Scores the model itself and the candidates. A candidate that cannot be made or scored does not
/// stop the others.
///
/// # Errors
/// [`enum@Error`] of the model itself.
pub fn compared(
    setup: &Setup<'_>,
    candidates: &Candidates<'_>,
    watch: &mut dyn Watch,
) -> Result<(BaseScores, Vec<Result<ModelScores, Failed>>), Error> {
    let engine = setup.load(setup.model)?;
    let text = setup.text(engine.hparams().n_vocab())?;
    if fit_beside(setup, &engine, text.shape(), candidates) {
        return beside(setup, &engine, &text, candidates, watch);
    }
    let base = base_of(setup, &engine, &text, watch)?;
    drop(engine);
    let models = against(setup, &base, candidates, watch);
    Ok((base.scores, models))
}

/// Makes and scores the candidates one after the other, against a base.
pub fn against(
    setup: &Setup<'_>,
    base: &Base,
    candidates: &Candidates<'_>,
    watch: &mut dyn Watch,
) -> Vec<Result<ModelScores, Failed>> {
    let mut one = |candidate: &Candidate<'_>| {
        watch.begin(&candidate.name);
        let opened = candidate.open(setup, "quantized.gguf", &setup.engine);
        let scores = opened.and_then(|opened| {
            let start = Instant::now();
            let d = score(setup, base, &opened.engine, watch)?;
            opened.scores(setup, &d, start.elapsed())
        });
        scores.map_err(|error| watch.failed(&candidate.label, &error))
    };
    let each = candidates.iter();
    each.map(|candidate| candidate.as_ref().map_err(Clone::clone).and_then(&mut one))
        .collect()
}

/// Returns whether to have all candidates at once: they take no more room in the temporary folder
/// than a base and the largest of them, and fit into the free memory. A GPU's is not counted, so
/// there they are loaded one after the other.
fn fit_beside(
    setup: &Setup<'_>,
    engine: &Engine,
    shape: Shape,
    candidates: &Candidates<'_>,
) -> bool {
    let on_cpu = engine.pool().is_some()
        && setup.engine.gpu_layers.is_none_or(|layers| layers == 0)
        && setup.engine.cpu_experts.is_empty();
    let base = (shape.rows() * shape.n_chunks) as u64 * shape.row_bytes() as u64;
    let each = || candidates.iter().flatten();
    let made: u64 = each().map(Candidate::bytes_to_make).sum();
    let largest = each().map(Candidate::bytes_to_make).max().unwrap_or(0);
    let all: u64 = each().map(Candidate::bytes).sum();
    let in_memory = BYTES_IN_MEMORY.saturating_mul(all);
    on_cpu && made - largest <= base && fits(engine.gguf(), in_memory) == Some(true)
}

/// Opens all candidates and scores them beside the model itself.
fn beside(
    setup: &Setup<'_>,
    engine: &Engine,
    text: &Text,
    candidates: &Candidates<'_>,
    watch: &mut dyn Watch,
) -> Result<(BaseScores, Vec<Result<ModelScores, Failed>>), Error> {
    let options = EngineOptions {
        pool: engine.pool(),
        ..setup.engine.clone()
    };
    let mut opened = Vec::new();
    for (number, candidate) in candidates.iter().enumerate() {
        let file = format!("quantized-{number}.gguf");
        opened.push(
            candidate
                .as_ref()
                .map_err(Clone::clone)
                .and_then(|candidate| {
                    let opened = candidate.open(setup, &file, &options);
                    opened.map_err(|error| watch.failed(&candidate.label, &error))
                }),
        );
    }
    let engines: Vec<Engine> = opened.iter().flatten().map(|o| o.engine.clone()).collect();
    watch.begin(&format!("the model itself and {} beside", engines.len()));
    let start = Instant::now();
    let (perplexity, compared) = eval::rounded_divergence_beside(
        engine,
        &engines,
        text,
        &setup.options(),
        &mut Scoring(watch),
    )?;
    let others: Duration = compared.iter().map(|one| one.time).sum();
    let time = start.elapsed().saturating_sub(others);
    let mut compared = compared.into_iter();
    let each = opened.into_iter().map(|opened| {
        let opened = opened?;
        let label = opened.label.clone();
        let Compared { divergence, time } = compared.next().expect("one for each open model");
        let scores = divergence.map_err(Error::from);
        let scores = scores.and_then(|d| opened.scores(setup, &d, time));
        scores.map_err(|error| watch.failed(&label, &error))
    });
    let models = each.collect();
    Ok((BaseScores::of(engine, &perplexity, text, time)?, models))
}
