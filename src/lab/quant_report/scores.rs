//! What the models of a report gave, chunk by chunk, and the figures that follow from it.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{Row, Sensitivity};
use crate::eval::{ChunkDivergence, ChunkLikelihood, Divergence, Perplexity};

/// Tokens, and the time that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    tokens: usize,
    seconds: f64,
}

impl Pace {
    pub(super) fn since(start: Instant, tokens: usize) -> Pace {
        let seconds = start.elapsed().as_secs_f64();
        Pace { tokens, seconds }
    }

    /// Tokens per second.
    fn rate(self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    fn add(&mut self, more: Pace) {
        self.tokens = self.tokens.saturating_add(more.tokens);
        self.seconds += more.seconds;
    }
}

/// How large and how fast a model is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    pub(super) bytes: u64,
    pub(super) bits: f64,
    pub(super) prompts: Pace,
    pub(super) generation: Pace,
}

impl Facts {
    fn add(&mut self, more: &Facts) {
        self.prompts.add(more.prompts);
        self.generation.add(more.generation);
    }
}

/// What the model itself gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BaseScores {
    pub(super) facts: Facts,
    pub(super) chunks: Vec<ChunkLikelihood>,
}

/// What another model gave, such as a quantization.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelScores {
    pub(super) name: String,
    pub(super) facts: Facts,
    pub(super) chunks: Vec<ChunkDivergence>,
}

/// What the model gave with one tensor quantized, or all tensors of a role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorScores {
    pub(super) name: String,
    pub(super) layer: Option<usize>,
    pub(super) role: String,
    pub(super) weights: u64,
    pub(super) chunks: Vec<ChunkDivergence>,
}

/// What could not be made or scored, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// The type, or the file.
    pub name: String,
    /// The error, in a line.
    pub error: String,
}

/// All that a report, or a part of it, has measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// The model itself.
    pub base: BaseScores,
    /// The others, in the order in which they were asked for.
    pub models: Vec<Result<ModelScores, Failed>>,
    /// One tensor at a time, in this type.
    pub ranking: Option<(String, Result<Vec<TensorScores>, Failed>)>,
}

/// The model's own figures.
#[derive(Clone, Copy, Debug)]
pub struct BaseRow {
    /// Perplexity of the text.
    pub ppl: f64,
    /// Prompt tokens per second while scoring.
    pub prompt_rate: f64,
    /// Generated tokens per second.
    pub generation_rate: f64,
    /// Bytes of tensors.
    pub bytes: u64,
    /// Bits per weight.
    pub bits: f64,
}

fn all(chunks: &[ChunkDivergence]) -> Divergence {
    let mut all = Divergence::default();
    chunks.iter().for_each(|chunk| all.push(chunk.clone()));
    all
}

impl BaseScores {
    /// The figures of all chunks.
    pub fn row(&self) -> BaseRow {
        let mut ppl = Perplexity::default();
        self.chunks.iter().for_each(|chunk| ppl.push(*chunk));
        BaseRow {
            ppl: ppl.ppl().value,
            prompt_rate: self.facts.prompts.rate(),
            generation_rate: self.facts.generation.rate(),
            bytes: self.facts.bytes,
            bits: self.facts.bits,
        }
    }
}

impl ModelScores {
    /// The figures of all chunks, beside those of the model itself.
    pub fn row(&self, base: &BaseRow) -> Row {
        let d = all(&self.chunks);
        let klds = d.klds();
        Row {
            name: self.name.clone(),
            bytes: self.facts.bytes,
            bits_per_weight: self.facts.bits,
            ppl: d.ppl().value,
            // the base's rows are cut off where tokens are hopeless; its own perplexity is not
            ln_ppl_ratio: ((d.ppl().value / base.ppl).ln(), d.ln_ratio().uncertainty),
            mean_kl: (d.kld().value, d.kld().uncertainty),
            kl_99: klds.percentile(0.99),
            max_kl: klds.maximum(),
            same_top: d.same_top().value,
            prompt_rate: self.facts.prompts.rate(),
            generation_rate: self.facts.generation.rate(),
        }
    }
}

impl TensorScores {
    /// By the KL divergence that each causes, largest first.
    pub fn ranked(tensors: &[TensorScores]) -> Vec<Sensitivity> {
        let figures = |t: &TensorScores| {
            let d = all(&t.chunks);
            Sensitivity {
                name: t.name.clone(),
                layer: t.layer,
                role: t.role.clone(),
                weights: t.weights,
                mean_kl: d.kld().value,
                same_top: d.same_top().value,
            }
        };
        let mut ranked: Vec<Sensitivity> = tensors.iter().map(figures).collect();
        ranked.sort_by(|a, b| b.mean_kl.total_cmp(&a.mean_kl));
        ranked
    }
}

/// What both have, joined by `join`; what failed in a part has failed.
fn both<T>(
    first: &mut Result<T, Failed>,
    next: Result<T, Failed>,
    join: impl FnOnce(&mut T, T) -> Option<()>,
) -> Option<()> {
    match (first, next) {
        (Ok(first), Ok(next)) => join(first, next),
        (first @ Ok(_), Err(failed)) => {
            *first = Err(failed);
            Some(())
        }
        (Err(_), _) => Some(()),
    }
}

impl Scores {
    /// Adds the chunks that follow; `None` if they are of another report.
    pub(crate) fn append(&mut self, next: Scores) -> Option<()> {
        self.base.facts.add(&next.base.facts);
        self.base.chunks.extend(next.base.chunks);
        if self.models.len() != next.models.len() {
            return None;
        }
        for (own, next) in self.models.iter_mut().zip(next.models) {
            both(own, next, |own, next| {
                own.facts.add(&next.facts);
                own.chunks.extend(next.chunks);
                (own.name == next.name).then_some(())
            })?;
        }
        match (&mut self.ranking, next.ranking) {
            (Some((_, own)), Some((_, next))) => {
                both(own, next, |own, next| join_tensors(own, next))
            }
            (None, None) => Some(()),
            _ => None,
        }
    }

    /// Chunks scored; `None` if it is not what any report gives: one that was read from a file may
    /// be anything.
    pub(crate) fn chunks(&self, n_ctx: usize) -> Option<usize> {
        let n = self.base.chunks.len();
        let is_sound = |chunks: &[ChunkDivergence]| {
            chunks.len() == n && chunks.iter().all(|chunk| chunk.is_sound(n_ctx))
        };
        let ranking = self
            .ranking
            .as_ref()
            .and_then(|(_, ranking)| ranking.as_ref().ok());
        let sound = self.base.chunks.iter().all(|chunk| chunk.is_sound(n_ctx))
            && self
                .models
                .iter()
                .flatten()
                .all(|model| is_sound(&model.chunks))
            && ranking
                .into_iter()
                .flatten()
                .all(|tensor| is_sound(&tensor.chunks));
        sound.then_some(n)
    }
}

fn join_tensors(own: &mut [TensorScores], next: Vec<TensorScores>) -> Option<()> {
    if own.len() != next.len() {
        return None;
    }
    for (own, next) in own.iter_mut().zip(next) {
        own.chunks.extend(next.chunks);
        if own.name != next.name {
            return None;
        }
    }
    Some(())
}
