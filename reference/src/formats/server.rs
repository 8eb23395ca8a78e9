//! Answers of llama-server with probabilities: `/completion` with `n_probs`, `/v1/chat/completions`
//! with `logprobs`.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{bad, whole};
use crate::Error;

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// Token id.
    pub id: u32,
    /// Its natural log-probability over the whole vocabulary, before samplers.
    pub logprob: f64,
    /// The most likely tokens and their log-probabilities.
    pub top: Vec<(u32, f64)>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Prompt as text, where the answer repeats it.
    pub prompt: Option<String>,
    /// Number of prompt tokens, where the answer states it.
    pub n_prompt: Option<usize>,
    /// Generated tokens in order.
    pub tokens: Vec<Generated>,
}

#[derive(Deserialize)]
struct Entry {
    id: u32,
    logprob: Option<f64>,
    #[serde(default)]
    top_logprobs: Vec<Entry>,
}

/// Reads an answer.
///
/// # Errors
/// Names the file and the field that is missing or wrong.
pub fn read(path: &Path) -> Result<Completion, Error> {
    let bytes = whole(path)?;
    let answer: Value = serde_json::from_slice(&bytes)
        .map_err(|error| bad(path, "text", "one JSON object", error.to_string()))?;
    let places = [
        "/completion_probabilities",
        "/probs",
        "/choices/0/logprobs/content",
    ];
    let Some(list) = places.iter().find_map(|place| answer.pointer(place)) else {
        let expected =
            "completion_probabilities (ask with n_probs) or choices[0].logprobs.content (logprobs)";
        return Err(bad(path, "answer", expected, "neither"));
    };
    let entries = Vec::<Entry>::deserialize(list).map_err(|error| {
        bad(
            path,
            "probabilities",
            "objects with id, logprob and top_logprobs",
            error.to_string(),
        )
    })?;
    if entries.is_empty() {
        return Err(bad(path, "probabilities", "at least one token", "none"));
    }
    let logprob = |entry: &Entry| {
        let missing = || {
            bad(
                path,
                "logprob",
                "a number (post_sampling_probs must be off)",
                "nothing",
            )
        };
        entry.logprob.ok_or_else(missing)
    };
    let mut tokens = Vec::new();
    for entry in &entries {
        let top = entry
            .top_logprobs
            .iter()
            .map(|t| Ok((t.id, logprob(t)?)))
            .collect::<Result<_, Error>>()?;
        tokens.push(Generated {
            id: entry.id,
            logprob: logprob(entry)?,
            top,
        });
    }
    let prompt = answer
        .get("prompt")
        .and_then(Value::as_str)
        .map(str::to_owned);
    let n_prompt = ["/tokens_evaluated", "/usage/prompt_tokens"]
        .iter()
        .find_map(|p| answer.pointer(p));
    let n_prompt = n_prompt
        .and_then(Value::as_u64)
        .and_then(|n| usize::try_from(n).ok());
    Ok(Completion {
        prompt,
        n_prompt,
        tokens,
    })
}
