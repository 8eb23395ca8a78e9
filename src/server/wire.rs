//! Pieces of answers as JSON.

use octavo_engine::Timing;
use octavo_engine::sample::Logprobs;
use octavo_engine::{FinishReason, Vocabulary};
use octavo_text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// Returns the bytes of a token; for a control token, its name.
pub(crate) fn bytes(tokenizer: &Tokenizer, id: u32) -> &[u8] {
    if tokenizer.is_special(id) {
        tokenizer.token_text(id)
    } else {
        Vocabulary::piece(tokenizer, id)
    }
}

/// Adds warnings to an answer, if there are any.
pub(crate) fn warn(answer: &mut Value, warnings: &[String]) {
    if !warnings.is_empty() {
        answer["warnings"] = json!(warnings);
    }
}

/// Returns a token as text; invalid UTF-8 becomes U+FFFD.
pub(crate) fn text(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(bytes(tokenizer, id)).into_owned()
}

/// Returns a token as a key: one that is not valid UTF-8 is spelled byte by byte, so that distinct
/// tokens have distinct keys.
fn key(tokenizer: &Tokenizer, id: u32) -> String {
    let bytes = bytes(tokenizer, id);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let hex = bytes.iter().map(|byte| format!("\\x{byte:02x}"));
            format!("bytes:{}", hex.collect::<String>())
        }
    }
}

/// Returns log-probabilities in the format of chat answers: `{"content": [...]}`.
pub(crate) fn chat_logprobs(tokenizer: &Tokenizer, all: &[Logprobs]) -> Value {
    let content = each_token(tokenizer, all, ["logprob", "top_logprobs"], |logprob| {
        logprob
    });
    json!({ "content": content, "refusal": null })
}

/// Returns llama-server's `completion_probabilities`: probabilities if they are those
/// `after_sampling`, or else log-probabilities.
pub(crate) fn native_probabilities(
    tokenizer: &Tokenizer,
    all: &[Logprobs],
    after_sampling: bool,
) -> Value {
    match after_sampling {
        true => each_token(tokenizer, all, ["prob", "top_probs"], f64::exp),
        false => chat_logprobs(tokenizer, all)["content"].take(),
    }
}

/// Returns an object for each token with its `value`, and the most likely tokens with theirs;
/// `names` are those of the value and of the list.
fn each_token(
    tokenizer: &Tokenizer,
    all: &[Logprobs],
    names: [&str; 2],
    value: impl Fn(f64) -> f64,
) -> Value {
    let one = |id: u32, logprob: f64| {
        let mut object = json!({
            "token": text(tokenizer, id),
            "id": id,
            "bytes": bytes(tokenizer, id),
        });
        object[names[0]] = json!(value(logprob));
        object
    };
    let tokens = all.iter().map(|token| {
        let mut object = one(token.id, token.logprob);
        let top = token.top.iter().map(|&(id, logprob)| one(id, logprob));
        object[names[1]] = top.collect();
        object
    });
    tokens.collect()
}

/// Log-probabilities in the format of completions, token by token.
#[derive(Default)]
pub(crate) struct LegacyLogprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
    /// Characters of the text so far.
    offset: usize,
}

impl LegacyLogprobs {
    /// Starts at an offset: the characters of the text already sent.
    pub(crate) fn at(offset: usize) -> LegacyLogprobs {
        LegacyLogprobs {
            offset,
            ..LegacyLogprobs::default()
        }
    }

    /// Adds a token without a probability: the first of a prompt.
    pub(crate) fn push_first(&mut self, tokenizer: &Tokenizer, id: u32) {
        self.push_token(tokenizer, id, Value::Null, Value::Null);
    }

    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, token: &Logprobs) {
        let mut top = Map::new();
        for &(id, logprob) in token.top.iter().chain([&(token.id, token.logprob)]) {
            let entry = top.entry(key(tokenizer, id)).or_insert(json!(logprob));
            if entry.as_f64() < Some(logprob) {
                *entry = json!(logprob);
            }
        }
        self.push_token(
            tokenizer,
            token.id,
            json!(token.logprob),
            Value::Object(top),
        );
    }

    fn push_token(&mut self, tokenizer: &Tokenizer, id: u32, logprob: Value, top: Value) {
        self.tokens.push(json!(key(tokenizer, id)));
        self.token_logprobs.push(logprob);
        self.top_logprobs.push(top);
        self.text_offset.push(json!(self.offset));
        // count the bytes that start a character
        let begins = |byte: &&u8| **byte & 0xc0 != 0x80;
        self.offset += bytes(tokenizer, id).iter().filter(begins).count();
    }

    /// Returns the offset of the next token.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn into_json(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}

/// Token counts over all texts of an answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) completion: usize,
    pub(crate) cached: usize,
}

impl Usage {
    pub(crate) fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }
}

/// Returns llama-server's `timings` of a text.
pub(crate) fn timings(timing: &Timing) -> Value {
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let rate = |n: usize, time: std::time::Duration| {
        let seconds = time.as_secs_f64();
        if seconds > 0.0 {
            n as f64 / seconds
        } else {
            0.0
        }
    };
    let read = timing.prompt_tokens - timing.cached.min(timing.prompt_tokens);
    let after_first = timing.generated_tokens.saturating_sub(1);
    let each = |n: usize, time: std::time::Duration| match n {
        0 => 0.0,
        n => ms(time) / n as f64,
    };
    let mut timings = json!({
        "cache_n": timing.cached,
        "prompt_n": read,
        "prompt_ms": ms(timing.prompt),
        "prompt_per_token_ms": each(read, timing.prompt),
        "prompt_per_second": rate(read, timing.prompt),
        "predicted_n": timing.generated_tokens,
        "predicted_ms": ms(timing.generation),
        "predicted_per_token_ms": each(after_first, timing.generation),
        "predicted_per_second": rate(after_first, timing.generation),
        "queue_ms": ms(timing.queued),
        "recomputed_n": timing.recomputed,
    });
    if timing.discarded > 0 {
        timings["discarded_n"] = timing.discarded.into();
    }
    if let Some(first) = timing.first_token {
        timings["first_token_ms"] = json!(ms(first));
    }
    // llama-server's names, omitted there too if nothing was drafted
    if timing.drafts.drafted > 0 {
        timings["draft_n"] = timing.drafts.drafted.into();
        timings["draft_n_accepted"] = timing.drafts.accepted.into();
    }
    timings
}

/// Returns OpenAI's finish reason.
pub(crate) fn finish_reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::Length | FinishReason::ContextFull => "length",
        FinishReason::Cancelled => "stop",
    }
}
