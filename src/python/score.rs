//! Log-likelihoods of continuations, for evaluation harnesses.

use std::sync::atomic::Ordering;

use octavo_llm::analysis::eval::{Continuation, continuations};
use pyo3::prelude::*;

use crate::call;
use crate::model::Model;

/// Scores continuations: pairs of token ids of a context and of the text after it. Returns the sum
/// of each text's natural log-probabilities, and whether each of its tokens is the most likely.
#[pyfunction]
pub(crate) fn score_continuations(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    pairs: Vec<(Vec<u32>, Vec<u32>)>,
) -> PyResult<Vec<(f64, bool)>> {
    let loaded = model.get().loaded(py)?;
    let scored = call::run(py, move |stop| {
        let pairs = pairs.into_iter();
        let all: Vec<Continuation> = pairs
            .map(|(context, tokens)| Continuation { context, tokens })
            .collect();
        let cancelled = || stop.load(Ordering::Relaxed);
        Ok(continuations(&loaded.engine, &all, &cancelled)?)
    })?;
    Ok(scored
        .iter()
        .map(|one| (one.logprob, one.is_greedy))
        .collect())
}
