//! JSON object of a text, the same for one text and for one of many.

use octavo_engine::FinishReason;
use octavo_engine::is_image_token;
use octavo_engine::sample::Logprobs;
use octavo_text::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::metrics::Metrics;

/// Version of the objects that `--json` prints; it increases when a field is renamed, removed or
/// changes its type. docs/json.md lists the fields.
pub(super) const VERSION: u32 = 1;

/// A generated text with its prompt and metrics.
pub(super) struct Answer<'a> {
    /// Line number of its prompt, from 0; empty lines count.
    pub(super) line: usize,
    /// Index among the texts of its prompt, from 0.
    pub(super) choice: usize,
    pub(super) text: &'a str,
    /// Reasoning before the text, in conversations.
    pub(super) reasoning: Option<&'a str>,
    pub(super) prompt: &'a [u32],
    /// All sampled tokens, including one that ended the text.
    pub(super) tokens: &'a [u32],
    pub(super) finish: FinishReason,
    /// Log-probabilities of each token, if they are wanted.
    pub(super) logprobs: Option<&'a [Logprobs]>,
    pub(super) metrics: &'a Metrics,
}

impl Answer<'_> {
    /// Makes the object.
    pub(super) fn to_json(&self, tokenizer: &Tokenizer) -> Result<Value, serde_json::Error> {
        let mut object = json!({
            "version": VERSION,
            "line": self.line,
            "choice": self.choice,
            "text": self.text,
            "prompt_tokens": shown_ids(self.prompt),
            "tokens": self.tokens,
            "finish_reason": self.finish.name(),
        });
        if let Some(reasoning) = self.reasoning {
            object["reasoning"] = json!(reasoning);
        }
        if let Some(detail) = self.finish.detail() {
            object["finish_detail"] = json!(detail);
        }
        if let Some(all) = self.logprobs {
            object["logprobs"] = all.iter().map(|l| logprobs(l, tokenizer)).collect();
        }
        object["metrics"] = serde_json::to_value(self.metrics)?;
        Ok(object)
    }
}

/// Makes the object of a line without an answer.
pub(super) fn error(line: usize, message: &str) -> Value {
    json!({ "version": VERSION, "line": line, "error": message })
}

fn logprobs(l: &Logprobs, tokenizer: &Tokenizer) -> Value {
    let one = |id: u32, logprob: f64| {
        let piece = piece(tokenizer, id);
        json!({"id": id, "piece": piece, "logprob": logprob})
    };
    let mut object = one(l.id, l.logprob);
    object["top"] = l
        .top
        .iter()
        .map(|&(id, logprob)| one(id, logprob))
        .collect();
    object
}

/// Returns a token's id for output; -1 for an image token.
pub(super) fn shown_id(id: u32) -> i32 {
    match is_image_token(id) {
        true => -1,
        false => id as i32,
    }
}

/// Returns token ids for output; see [`shown_id`].
pub(super) fn shown_ids(ids: &[u32]) -> Vec<i32> {
    ids.iter().map(|id| shown_id(*id)).collect()
}

/// Returns a token as text; bytes that are not UTF-8 by themselves become U+FFFD.
pub(super) fn piece(tokenizer: &Tokenizer, id: u32) -> String {
    match is_image_token(id) {
        true => "<image>".to_owned(),
        false => String::from_utf8_lossy(tokenizer.piece(id).unwrap_or_default()).into_owned(),
    }
}
