//! Pieces of answers as JSON.

use octavo_engine::Timing;
use octavo_engine::sample::Logprobs;
use octavo_engine::sequence::{Finish, Vocabulary};
use octavo_text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// The bytes of a token; of a control token, its name.
pub(crate) fn bytes(tokenizer: &Tokenizer, id: u32) -> &[u8] {
    if tokenizer.is_special(id) {
        tokenizer.token_text(id)
    } else {
        Vocabulary::piece(tokenizer, id)
    }
}

/// Adds what the client should know about an answer, if there is anything.
pub(crate) fn warn(answer: &mut Value, warnings: &[String]) {
    if !warnings.is_empty() {
        answer["warnings"] = json!(warnings);
    }
}

/// A token as text; what is not UTF-8 by itself is shown as U+FFFD.
pub(crate) fn text(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(bytes(tokenizer, id)).into_owned()
}

/// A token as a key: what is not UTF-8 by itself is spelled byte by byte, so that no two tokens
/// are called the same because of that.
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

/// Log-probabilities as chat answers have them: `{"content": [...]}`.
pub(crate) fn chat_logprobs(tokenizer: &Tokenizer, all: &[Logprobs]) -> Value {
    let one = |id: u32, logprob: f64| {
        json!({
            "token": text(tokenizer, id),
            "id": id,
            "logprob": logprob,
            "bytes": bytes(tokenizer, id),
        })
    };
    let content = all.iter().map(|token| {
        let mut object = one(token.id, token.logprob);
        let top = token.top.iter().map(|&(id, logprob)| one(id, logprob));
        object["top_logprobs"] = top.collect();
        object
    });
    json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
}

/// Log-probabilities as completions have them, token by token.
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
    /// Begins where so many characters of the text have been told already.
    pub(crate) fn at(offset: usize) -> LegacyLogprobs {
        LegacyLogprobs {
            offset,
            ..LegacyLogprobs::default()
        }
    }

    /// A token without a probability: the first of a prompt.
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
        // characters begin with bytes that do not continue one
        let begins = |byte: &&u8| **byte & 0xc0 != 0x80;
        self.offset += bytes(tokenizer, id).iter().filter(begins).count();
    }

    /// Where the next token begins.
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

/// Tokens counted over all texts of an answer.
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

/// llama-server's account of the time a text took.
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
        "first_token_ms": timing.first_token.map(ms),
        "recomputed_n": timing.recomputed,
    });
    // llama-server's names, which it leaves out as well where nothing was guessed
    if timing.guessed.tokens > 0 {
        timings["draft_n"] = timing.guessed.tokens.into();
        timings["draft_n_accepted"] = timing.guessed.accepted.into();
    }
    timings
}

/// Why a text ended, as OpenAI's interface says it.
pub(crate) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length | Finish::ContextFull => "length",
        Finish::Cancelled => "stop",
    }
}
