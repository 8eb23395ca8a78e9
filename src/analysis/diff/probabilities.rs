//! Log-probabilities reported by another program, against the engine's.

use octavo_reference::formats::server::Completion;
use octavo_reference::metrics::{log_sum_exp, top_k};
use serde::Serialize;

use super::Error;
use octavo_engine::backend::Phase;
use octavo_engine::{Engine, LogitsFor};

/// One generated token on both sides.
#[derive(Clone, Debug, Serialize)]
pub struct TokenComparison {
    /// Position of the preceding token.
    pub position: usize,
    /// Token that the other program generated.
    pub id: u32,
    /// Our log-probability of it.
    pub ours: f64,
    /// The other program's log-probability of it.
    pub theirs: f64,
    /// Our most likely token.
    pub our_top: u32,
    /// KL(theirs, ours) over the tokens they list, with all other tokens counted as one.
    pub kl: f64,
}

/// Prefills a prompt, then feeds the reference's tokens one by one, and compares the
/// log-probability of each.
///
/// # Errors
/// If the tokens cannot be computed.
pub(super) fn generated(
    engine: &Engine,
    prompt: &[u32],
    completion: &Completion,
) -> Result<Vec<TokenComparison>, Error> {
    let n_vocab = engine.hparams().n_vocab();
    let mut session = engine.session();
    let mut row = session.eval(prompt, Phase::Prefill, LogitsFor::Last)?.data;
    let mut all = Vec::new();
    for (i, token) in completion.tokens.iter().enumerate() {
        let lse = log_sum_exp(&row);
        let at = |id: u32| match row.get(id as usize) {
            Some(logit) => Ok(f64::from(*logit) - lse),
            None => Err(Error::Engine(octavo_engine::Error::Token { id, n_vocab })),
        };
        let (mut kl, mut p_rest, mut q_rest) = (0.0, 1.0, 1.0);
        for &(id, ln_p) in &token.top {
            let ln_q = at(id)?;
            // llama.cpp writes the lowest float for a probability of 0
            let p = ln_p.exp();
            if p > 0.0 {
                kl += p * (ln_p - ln_q);
            }
            p_rest -= p;
            q_rest -= ln_q.exp();
        }
        // the remaining probability is not resolved below this by f32 log-probabilities
        let rest = |x: f64| x.max(1e-6);
        kl += rest(p_rest) * (rest(p_rest) / rest(q_rest)).ln();
        let our_top = top_k(&row, 1).first().copied().unwrap_or_default();
        let (ours, theirs) = (at(token.id)?, token.logprob);
        all.push(TokenComparison {
            position: prompt.len() - 1 + i,
            id: token.id,
            ours,
            theirs,
            our_top,
            kl,
        });
        if i + 1 < completion.tokens.len() {
            row = session
                .eval(&[token.id], Phase::Decode, LogitsFor::Last)?
                .data;
        }
    }
    Ok(all)
}
