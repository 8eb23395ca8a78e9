//! A recorded computation of another program, and how far the engine is from it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use gguf_rs_lite::TensorType;
use octavo_reference::golden::{Golden, TopLogits};
use octavo_reference::metrics::log_sum_exp;
use octavo_reference::results::Results;
use serde::Serialize;

use super::Error;
use super::logits::LogitComparison;
use crate::backend::Role;
use crate::engine::{Engine, Wanted};
use crate::model::Model;

/// Which of a golden's two computations is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Against {
    /// llama.cpp on the file itself, with its rounded activations.
    #[default]
    Logits,
    /// llama.cpp on the file dequantized to F32: what a perfect engine computes.
    Exact,
}

/// What a reference file holds.
#[derive(Debug)]
pub enum Recorded {
    /// Logits of all positions, `(n, n_vocab)`.
    All(Vec<f32>),
    /// The most likely tokens of all positions and all logits of the last.
    Top {
        /// Tokens of a position.
        k: usize,
        /// What is kept.
        top: TopLogits,
    },
}

/// A recorded computation.
#[derive(Debug)]
pub struct Reference {
    /// What kind of file it is, for people.
    pub kind: &'static str,
    /// The text, as ids.
    pub tokens: Vec<u32>,
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// Its content.
    pub recorded: Recorded,
}

/// The kinds of files that [`Reference::read`] takes, for messages.
pub const KINDS: &str = "the file of llama-results (a GGUF with tokens and logits), or a golden (safetensors)";

impl Reference {
    /// Reads a reference, recognised by its content.
    ///
    /// # Errors
    /// Names the file, what is wrong, and what was expected.
    pub fn read(path: &Path, against: Against) -> Result<Reference, Error> {
        let mut head = [0; 9];
        let io = |source| octavo_reference::Error::Io { path: path.into(), source };
        let mut got = 0;
        let mut file = File::open(path).map_err(io)?;
        while got < head.len() {
            match file.read(&mut head[got..]).map_err(io)? {
                0 => break,
                n => got += n,
            }
        }
        match &head[..got] {
            [b'G', b'G', b'U', b'F', ..] => Ok(Reference::results(Results::read(path)?)),
            // a header's length, then the header, which is JSON
            [_, _, _, _, 0, 0, 0, 0, b'{'] => Ok(Reference::golden(Golden::read(path)?, against)),
            _ => Err(Error::Unknown { file: path.display().to_string(), expected: KINDS }),
        }
    }

    fn results(results: Results) -> Reference {
        Reference {
            kind: "llama-results",
            tokens: results.tokens,
            n_vocab: results.n_vocab,
            recorded: Recorded::All(results.logits),
        }
    }

    fn golden(golden: Golden, against: Against) -> Reference {
        let (tokens, n_vocab) = (golden.tokens().to_vec(), golden.n_vocab());
        let exact = against == Against::Exact;
        let recorded = match golden {
            Golden::Full(full) => Recorded::All(if exact { full.exact } else { full.logits }),
            Golden::Top(top) => {
                let (k, side) = (top.k, if exact { top.exact } else { top.llama_cpp });
                Recorded::Top { k, top: side }
            }
        };
        Reference { kind: if exact { "golden, exact" } else { "golden" }, tokens, n_vocab, recorded }
    }

    /// Computes the reference's text and compares the logits, position by position.
    ///
    /// # Errors
    /// If the model has another vocabulary, or cannot compute the text.
    pub fn compare(&self, engine: &Engine) -> Result<LogitComparison, Error> {
        let n_vocab = engine.hparams().n_vocab();
        if n_vocab != self.n_vocab {
            let (a, b) = (n_vocab.to_string(), self.n_vocab.to_string());
            return Err(Error::Differ { what: "vocabulary of model (first) and reference (second)", a, b });
        }
        let mut comparison = LogitComparison::new(&self.tokens, n_vocab);
        let mut failed = None;
        let mut sink = |position: usize, ours: &[f32]| {
            let result = match &self.recorded {
                Recorded::All(rows) => {
                    comparison.add(position, ours, &rows[position * n_vocab..(position + 1) * n_vocab])
                }
                Recorded::Top { k, top } => add_top(&mut comparison, position, ours, (*k, top)),
            };
            if let Err(error) = result {
                failed.get_or_insert(error);
            }
        };
        engine.session().eval_with(&self.tokens, Role::Prompt, Wanted::All, None, &mut sink)?;
        failed.map_or(Ok(comparison), Err)
    }
}

fn add_top(
    comparison: &mut LogitComparison,
    position: usize,
    ours: &[f32],
    (k, top): (usize, &TopLogits),
) -> Result<(), Error> {
    let kept = position * k..(position + 1) * k;
    let lse = f64::from(top.lse[position]);
    comparison.add_top(position, (ours, log_sum_exp(ours)), (&top.ids[kept.clone()], &top.logits[kept], lse))
}

/// What is allowed between two computations of the same file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tolerance {
    /// Of the NMSE of all logits.
    pub nmse: f64,
    /// Of the mean KL, if it is judged.
    pub kl: Option<f64>,
    /// Where the first comes from.
    pub reason: String,
}

impl Tolerance {
    /// By the coarsest type of the model's matrices: what programs that round activations differently are apart.
    pub fn of(model: &Model) -> Tolerance {
        let rank = |ty: TensorType| match ty {
            TensorType::F32 | TensorType::F64 => 0,
            TensorType::F16 => 1,
            TensorType::BF16 => 2,
            _ => 3,
        };
        let coarsest = model.weights.matrices.iter().map(|w| w.ty).max_by_key(|ty| rank(*ty));
        let (nmse, reason) = match coarsest.map_or(0, rank) {
            0 => (1e-9, "F32 weights"),
            1 => (1e-6, "F16 weights"),
            2 => (2e-5, "BF16 weights"),
            _ => (5e-3, "quantized weights"),
        };
        Tolerance { nmse, kl: None, reason: format!("the default for {reason}") }
    }

    /// Whether a comparison is within it; what is not a number is not.
    pub fn allows(&self, c: &LogitComparison) -> bool {
        c.nmse <= self.nmse && self.kl.is_none_or(|kl| c.mean_kl <= kl)
    }
}
