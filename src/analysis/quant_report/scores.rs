//! Scores of a report's models, chunk by chunk, and the figures computed from them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::QuantRow;
use crate::eval::{ChunkDivergence, ChunkLikelihood, Divergence, Perplexity};

/// Number of tokens, and the time they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    tokens: usize,
    seconds: f64,
}

impl Pace {
    pub(super) fn of(tokens: usize, time: Duration) -> Pace {
        let seconds = time.as_secs_f64();
        Pace { tokens, seconds }
    }

    /// Returns tokens per second.
    fn rate(self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    fn add(&mut self, more: Pace) {
        self.tokens = self.tokens.saturating_add(more.tokens);
        self.seconds += more.seconds;
    }
}

/// Size and speed of a model.
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

/// Scores of the model itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BaseScores {
    pub(super) facts: Facts,
    pub(super) chunks: Vec<ChunkLikelihood>,
}

/// Scores of another model, such as a quantization.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelScores {
    pub(super) name: String,
    pub(super) facts: Facts,
    pub(super) chunks: Vec<ChunkDivergence>,
}

/// Scores of the model with one tensor quantized, or all tensors of a role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorScores {
    pub(super) name: String,
    pub(super) layer: Option<usize>,
    pub(super) role: String,
    pub(super) weights: u64,
    pub(super) chunks: Vec<ChunkDivergence>,
}

/// A model that could not be made or scored, with the reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// Target type, or file name.
    pub name: String,
    /// Error in one line.
    pub error: String,
}

/// All measurements of a report, or of a part of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Scores of the model itself.
    pub base: BaseScores,
    /// Scores of the others, in the order requested.
    pub models: Vec<Result<ModelScores, Failed>>,
    /// Scores of the mixes that lose least in the sizes of the others.
    #[serde(default)]
    pub mixes: Vec<Result<ModelScores, Failed>>,
    /// Scores with one tensor at a time quantized to the named type.
    pub ranking: Option<(String, Result<Vec<TensorScores>, Failed>)>,
}

/// Figures of the model itself.
#[derive(Clone, Copy, Debug)]
pub struct BaseRow {
    /// Perplexity of the text.
    pub ppl: f64,
    /// Prompt tokens per second while scoring.
    pub prompt_rate: f64,
    /// Generated tokens per second.
    pub generation_rate: f64,
    /// Bytes of all tensors.
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
    /// Computes the figures of all chunks.
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
    /// Computes the figures of all chunks, relative to the model itself.
    pub fn row(&self, base: &BaseRow) -> QuantRow {
        let d = all(&self.chunks);
        let klds = d.klds();
        QuantRow {
            name: self.name.clone(),
            bytes: self.facts.bytes,
            bits_per_weight: self.facts.bits,
            ppl: d.ppl().value,
            // the base's rows leave out very unlikely tokens; the base's own perplexity includes
            // them
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

/// Loss when only one tensor (or group) is quantized.
#[derive(Clone, Debug, Serialize)]
pub struct Sensitivity {
    /// Name of the tensor, or the pattern of a group such as `attn_v`.
    pub name: String,
    /// Layer number, for a tensor of a layer.
    pub layer: Option<usize>,
    /// Tensor name without layer and `.weight`.
    pub role: String,
    /// Number of weights.
    pub weights: u64,
    /// Mean KL divergence from the base, in nats.
    pub mean_kl: f64,
    /// Share of tokens whose most likely token is the same as the base's.
    pub same_top: f64,
}

impl TensorScores {
    /// Sorts by the KL divergence that each causes, largest first.
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

/// Joins two successes by `join`; a failure of either is the result.
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
    /// Appends the chunks that follow; `None` if they are from another report.
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

    /// Returns the number of chunks scored; `None` if no report can produce this: data from a file
    /// is untrusted.
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
