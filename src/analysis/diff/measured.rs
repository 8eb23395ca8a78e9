//! Measurements of a comparison with a reference.

use serde::Serialize;

use super::logits::LogitComparison;
use super::probabilities::TokenComparison;
use super::tensors::Tensors;

/// Distance of the engine from a reference, by kind of reference.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    /// Logits, position by position.
    Logits(LogitComparison),
    /// Tensors, in graph order.
    Tensors(Tensors),
    /// Generated tokens.
    Generated(Vec<TokenComparison>),
    /// Predictions of a long text.
    Divergence {
        /// Mean KL(theirs, ours), in nats.
        mean_kl: f64,
        /// Largest KL, in nats.
        max_kl: f64,
        /// Share of tokens with the same most likely token.
        same_top: f64,
        /// Tokens compared.
        scored: usize,
    },
}

/// Returns the mean KL of generated tokens.
pub fn mean_kl(all: &[TokenComparison]) -> f64 {
    all.iter().map(|t| t.kl).sum::<f64>() / all.len().max(1) as f64
}
