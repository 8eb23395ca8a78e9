//! llama-server's own routes: `/completion`, `/infill`, `/tokenize`, `/detokenize`, `/props`,
//! `/slots`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use octavo_engine::sequence::Finish;
use octavo_engine::{Event, Request, Timing};
use octavo_text::tokenizer::EncodeOptions;
use serde_json::{Value, json};

use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::grammar::Rule;
use crate::http::json_response;
use crate::images::MAX_IMAGES;
use crate::params::{self, Dialect};
use crate::prompt::{check_bytes, check_length, prompts, salt};
use crate::sse::{self, Message, Writer};
use crate::wire;
use crate::work::{Choice, Update, Work};

struct Prepared {
    request: Request,
    rule: Option<(Rule, &'static str)>,
    stream: bool,
    style: Style,
}

/// How an answer is written.
struct Style {
    model: String,
    /// The stop strings.
    stop: Vec<String>,
}

/// `/completion`: one text, in llama-server's words.
pub(crate) async fn completion(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let prepared = app.work(move |app| {
        let fields = Fields::of(&body)?;
        let mut all = prompts(app, &fields, "prompt", EncodeOptions::PROMPT)?;
        match (all.pop(), all.is_empty()) {
            (Some(prompt), true) => prepare(app, &caller, &fields, prompt),
            _ => Err(fields.wrong("prompt", "one prompt: /v1/completions takes several")),
        }
    });
    answer(&app, prepared.await?).await
}

/// `/infill`: what stands between two texts.
pub(crate) async fn infill_route(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let prepared = app.work(move |app| {
        let fields = Fields::of(&body)?;
        let [prefix, suffix, more] =
            ["input_prefix", "input_suffix", "prompt"].map(|name| -> Result<&str, ApiError> {
                let text = fields.str(name)?.unwrap_or_default();
                check_bytes(app, text).map(|()| text)
            });
        let (prefix, suffix, more) = (prefix?, suffix?, more?);
        let prefix = app
            .tokenizer()
            .encode(prefix.as_bytes(), EncodeOptions::PIECE)?;
        let mut prompt = infill(app, &prefix, suffix)?;
        prompt.extend(
            app.tokenizer()
                .encode(more.as_bytes(), EncodeOptions::PIECE)?,
        );
        prepare(app, &caller, &fields, prompt)
    });
    answer(&app, prepared.await?).await
}

/// A prompt that asks for what stands between a text and a suffix.
pub(crate) fn infill(app: &App, prefix: &[u32], suffix: &str) -> Result<Vec<u32>, ApiError> {
    let special = app.tokenizer().special();
    let (Some(pre), Some(suf), Some(mid)) = (special.fim_pre, special.fim_suf, special.fim_mid)
    else {
        let message = "this model's vocabulary has no tokens to fill in the middle of a text";
        return Err(ApiError::bad_field("suffix", message));
    };
    let suffix = app
        .tokenizer()
        .encode(suffix.as_bytes(), EncodeOptions::PIECE)?;
    let bos = app.tokenizer().bos().filter(|_| app.tokenizer().add_bos());
    let prefix = match (bos, prefix.first()) {
        (Some(bos), Some(first)) if *first == bos => &prefix[1..],
        _ => prefix,
    };
    let mut prompt: Vec<u32> = bos.into_iter().collect();
    prompt.push(pre);
    prompt.extend_from_slice(prefix);
    prompt.push(suf);
    prompt.extend(suffix);
    prompt.push(mid);
    Ok(prompt)
}

fn prepare(
    app: &App,
    caller: &Caller,
    fields: &Fields<'_>,
    prompt: Vec<u32>,
) -> Result<Prepared, ApiError> {
    let model = app.model(fields.str("model")?)?;
    check_length(app, &prompt)?;
    let mut options = params::options(app, fields, Dialect::Native)?;
    let range = -2..=1 << 30;
    let most = match fields.int("n_predict", range.clone())? {
        Some(n) => Some(n),
        None => fields.int("max_tokens", range)?,
    };
    // below 0 there is no limit but the context's
    options.max_tokens = most.and_then(|n| usize::try_from(n).ok());
    options.logprobs = fields.count("n_probs", 0, 100)?.filter(|n| *n > 0);
    Ok(Prepared {
        request: Request {
            salt: salt(fields, caller.salt())?,
            ..Request::new(&prompt, &options)
        },
        rule: params::rule(fields)?,
        stream: fields.bool("stream")?.unwrap_or(false),
        style: Style {
            model,
            stop: options.stop,
        },
    })
}

async fn answer(app: &Arc<App>, mut prepared: Prepared) -> Result<Response<Body>, ApiError> {
    prepared.request.constraint = app.compile(prepared.rule.take()).await?;
    let mut work = Work::begin(app, vec![prepared.request])?;
    if prepared.stream {
        work.has_begun().await?;
        return Ok(sse::response(NativeWriter {
            app: Arc::clone(app),
            work,
            style: prepared.style,
            has_ended: false,
        }));
    }
    let mut answers = work.collect().await?;
    let choice = answers.pop().and_then(|mut answer| answer.choices.pop());
    let choice = choice.ok_or_else(|| ApiError::server("the text is lost"))?;
    Ok(json_response(&whole(app, &prepared.style, &choice)))
}

fn whole(app: &App, style: &Style, choice: &Choice) -> Value {
    let mut object = last(style, choice.finish, choice.stopped_by, &choice.timing);
    object["content"] = json!(choice.text);
    object["tokens"] = json!(choice.tokens);
    if !choice.logprobs.is_empty() {
        let logprobs = wire::chat_logprobs(app.tokenizer(), &choice.logprobs);
        object["completion_probabilities"] = logprobs["content"].clone();
    }
    object
}

/// What is told at the end.
fn last(style: &Style, finish: Finish, stopped_by: Option<usize>, timing: &Timing) -> Value {
    let word = stopped_by.and_then(|place| style.stop.get(place));
    let kind = match finish {
        Finish::Stop if word.is_some() => "word",
        Finish::Stop => "eos",
        Finish::Length | Finish::ContextFull => "limit",
        Finish::Cancelled => "none",
    };
    json!({
        "index": 0,
        "content": "",
        "stop": true,
        "model": style.model,
        "tokens_predicted": timing.generated_tokens,
        "tokens_evaluated": timing.prompt_tokens,
        "tokens_cached": timing.cached,
        "truncated": finish == Finish::ContextFull,
        "stop_type": kind,
        "stopping_word": word.map_or("", String::as_str),
        "timings": wire::timings(timing),
    })
}

struct NativeWriter {
    app: Arc<App>,
    work: Work,
    style: Style,
    has_ended: bool,
}

impl Writer for NativeWriter {
    async fn next(&mut self) -> Option<Vec<Message>> {
        if self.has_ended {
            return None;
        }
        let Some(Update { event, .. }) = self.work.next().await else {
            self.has_ended = true;
            return None;
        };
        let message = match event {
            Event::Delta { delta, .. } => {
                let mut object = json!({
                    "index": 0,
                    "content": delta.text,
                    "tokens": delta.tokens,
                    "stop": false,
                });
                if !delta.logprobs.is_empty() {
                    let logprobs = wire::chat_logprobs(self.app.tokenizer(), &delta.logprobs);
                    object["completion_probabilities"] = logprobs["content"].clone();
                }
                object
            }
            Event::Finished { text, timing, .. } => {
                last(&self.style, text.finish, text.stopped_by, &timing)
            }
            Event::Failed(error) => {
                self.has_ended = true;
                ApiError::from(error).to_json()
            }
            Event::Started { .. }
            | Event::Read { .. }
            | Event::Prompt(_)
            | Event::Found { .. }
            | Event::Embedded { .. } => return Some(Vec::new()),
        };
        Some(vec![Message::Data(message)])
    }
}

/// `/tokenize`: takes llama-server's words and vLLM's, and answers in both.
pub(crate) async fn tokenize(
    app: Arc<App>,
    _caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let answer = app.work(move |app| {
        let fields = Fields::of(&body)?;
        let (text, is_vllm) = match fields.str("content")? {
            Some(text) => (text.to_owned(), false),
            None if fields.get("messages").is_some() => {
                let asked = super::conversation::read(&fields, app.marker())?;
                let conversation = asked.conversation;
                let template = super::chat::template(app)?;
                let continues = fields.bool("continue_final_message")?.unwrap_or(false);
                (
                    super::chat::render(template, &conversation, continues)?,
                    true,
                )
            }
            None => (
                fields.need("content", fields.str("prompt")?)?.to_owned(),
                true,
            ),
        };
        let add_special = match fields.bool("add_special")? {
            Some(add) => Some(add),
            None => fields.bool("add_special_tokens")?,
        };
        let from_template = fields.get("messages").is_some();
        let options = EncodeOptions {
            add_special: add_special.unwrap_or(is_vllm && !from_template),
            parse_special: fields.bool("parse_special")?.unwrap_or(true),
        };
        let ids = app.tokenizer().encode(text.as_bytes(), options)?;
        let with_pieces = fields.bool("with_pieces")?.unwrap_or(false);
        let tokens: Value = match with_pieces {
            false => json!(ids),
            true => ids.iter().map(|&id| piece(app, id)).collect(),
        };
        Ok(json!({
            "tokens": tokens,
            "count": ids.len(),
            "max_model_len": app.n_ctx(),
        }))
    });
    Ok(json_response(&answer.await?))
}

fn piece(app: &App, id: u32) -> Value {
    let bytes = wire::bytes(app.tokenizer(), id);
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({ "id": id, "piece": text }),
        Err(_) => json!({ "id": id, "piece": bytes }),
    }
}

/// `/detokenize`.
pub(crate) async fn detokenize(
    app: Arc<App>,
    _caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let answer = app.work(move |app| {
        let fields = Fields::of(&body)?;
        let ids = fields.ids("tokens", 1 << 22, app.n_vocab())?;
        let ids = fields.need("tokens", ids)?;
        let text = app.tokenizer().decode(&ids, true);
        let text = String::from_utf8_lossy(&text);
        Ok(json!({ "content": text, "prompt": text }))
    });
    Ok(json_response(&answer.await?))
}

/// `/tokenizer_info`: what evaluation harnesses ask of a tokenizer that they do not have.
pub(crate) async fn tokenizer_info(app: Arc<App>) -> Result<Response<Body>, ApiError> {
    let name = |id: Option<u32>| id.map(|id| wire::text(app.tokenizer(), id));
    let tokenizer = app.tokenizer();
    Ok(json_response(&json!({
        "bos_token": name(tokenizer.bos()),
        "eos_token": name(tokenizer.eos()),
        "pad_token": name(tokenizer.pad()),
        "unk_token": name(tokenizer.unk()),
        "chat_template": app.template.as_ref().map(|template| template.source()),
        "vocab_size": app.n_vocab(),
        "tokenizer_class": tokenizer.model_name(),
    })))
}

/// `/props`: what llama-server's page wants to know.
pub(crate) async fn props(app: Arc<App>) -> Result<Response<Body>, ApiError> {
    let sequences = app.engine.sequences();
    Ok(json_response(&json!({
        "default_generation_settings": {
            "n_ctx": app.n_ctx(),
            "params": params::defaults(app.sampling.clone()),
        },
        "total_slots": sequences,
        "model_alias": app.name(),
        "chat_template": app.template.as_ref().map(|template| template.source()),
        "bos_token": app.tokenizer().bos().map(|id| wire::text(app.tokenizer(), id)),
        "eos_token": app.tokenizer().eos().map(|id| wire::text(app.tokenizer(), id)),
        "modalities": { "vision": app.options.sight.is_some(), "audio": false },
        "limits": { "body_bytes": app.options.max_body, "images": MAX_IMAGES },
        "build_info": crate::FINGERPRINT,
    })))
}

/// `/slots`: who uses which part of the cache. No texts.
pub(crate) async fn slots(app: Arc<App>) -> Result<Response<Body>, ApiError> {
    let snapshot = app.front.snapshot();
    let pages = snapshot.pages;
    let requests = snapshot.requests.iter().map(|request| {
        json!({
            "id": request.id,
            "choice": request.choice,
            "state": request.state,
            "pages": request.pages,
            "tokens": request.tokens,
            "prompt_tokens": request.prompt_tokens,
            "generated": request.generated,
        })
    });
    Ok(json_response(&json!({
        "pages_total": pages.free + pages.cached + pages.used,
        "pages_free": pages.free,
        "pages_cached": pages.cached,
        "page_positions": octavo_engine::kv::PAGE,
        "requests": requests.collect::<Vec<_>>(),
    })))
}
