//! Log-likelihoods of continuations: what evaluation harnesses ask about multiple choices.

use octavo_engine::backend::Phase;
use octavo_engine::sample::logprobs;
use octavo_engine::{Engine, GenerationError, LogitsFor};

use super::Error;

/// A text to score after another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// Token ids of the context, at least one.
    pub context: Vec<u32>,
    /// Token ids of the text to score.
    pub tokens: Vec<u32>,
}

/// Log-likelihood of a continuation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Likelihood {
    /// Sum of the natural log-probabilities of its tokens.
    pub logprob: f64,
    /// Whether each of its tokens is the most likely one.
    pub is_greedy: bool,
}

/// Scores continuations; the results are in their order. Texts that begin alike are computed one
/// after the other, and what they have in common once. `cancelled` is asked before each.
///
/// # Errors
/// [`Error::NoContext`], tokens that do not fit the context, a failure of the engine, or
/// [`Error::Cancelled`].
pub fn continuations(
    engine: &Engine,
    all: &[Continuation],
    cancelled: &dyn Fn() -> bool,
) -> Result<Vec<Likelihood>, Error> {
    if all.iter().any(|one| one.context.is_empty()) {
        return Err(Error::NoContext);
    }
    let mut results = vec![Likelihood::default(); all.len()];
    let texts: Vec<Vec<u32>> = all
        .iter()
        .map(|one| [&one.context[..], &one.tokens].concat())
        .collect();
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by(|i, j| texts[*i].cmp(&texts[*j]));
    let mut session = engine.session();
    for at in order {
        if cancelled() {
            return Err(Error::Cancelled);
        }
        let (text, first) = (&texts[at], all[at].context.len());
        // the last token is not computed: nothing after it is scored
        let computed = &text[..text.len() - 1];
        // the context's last token is computed in any case: what follows it is scored
        let cached = session.truncate_to_prefix(&all[at].context);
        let mut scored = Likelihood {
            logprob: 0.0,
            is_greedy: true,
        };
        let mut failed = None;
        let logits_for = LogitsFor::Tail(text.len() - first);
        session.eval_with(
            &computed[cached..],
            Phase::Prefill,
            logits_for,
            None,
            &mut |p, row| match logprobs(row, text[p + 1], 1) {
                Ok(token) => {
                    scored.logprob += token.logprob;
                    scored.is_greedy &= token.top.iter().all(|best| best.1 <= token.logprob);
                }
                Err(error) => failed = Some(error),
            },
        )?;
        if let Some(error) = failed {
            return Err(Error::Sample(GenerationError::from(error)));
        }
        results[at] = scored;
    }
    Ok(results)
}
