//! llama-server's own routes: `/completion`, `/infill`, and in separate files `/tokenize`,
//! `/detokenize`, `/props` and `/slots`.

mod infill;
pub(crate) mod settings;
mod slots;
mod state;
mod tokens;

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use octavo_engine::FinishReason;
use octavo_engine::sample::Logprobs;
use octavo_engine::{Event, Request, Timing};
use serde_json::{Value, json};

use crate::app::App;
use crate::auth::Caller;
use crate::demand::{self, Demanded};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::json_response;
use crate::images;
use crate::params::{self, Dialect};
use crate::progress::Progress;
use crate::prompt::{MAX_PROMPTS, Prompt, check_length, salt, slot};
use crate::routes::lora;
use crate::sse::{self, Message, Writer};
use crate::wire;
use crate::work::{Choice, Update, Work};
pub(crate) use infill::{infill, infill_route};
pub(crate) use slots::act as act_on_slot;
pub(crate) use state::{cache, keep_props, props, slots};
pub(crate) use tokens::{detokenize, tokenize, tokenizer_info};

struct Prepared {
    requests: Vec<Request>,
    demanded: Option<Demanded>,
    stream: bool,
    style: Style,
}

/// Most fields that a request may select.
const MAX_RESPONSE_FIELDS: usize = 100;

/// Format of an answer.
struct Style {
    model: String,
    /// Stop strings.
    stop: Vec<String>,
    /// Generation settings under llama-server's names.
    settings: Value,
    /// Texts of the prompts.
    prompts: Vec<String>,
    /// Paths of the fields to return in a text's last object; all if empty.
    response_fields: Vec<String>,
    /// Whether probabilities are those after sampling.
    after_sampling: bool,
    /// Whether an answer that is not streamed includes the token ids.
    return_tokens: bool,
    /// Whether every piece of a stream includes timings.
    timings_per_token: bool,
    /// Progress of a prompt before it begins, for streams that report it.
    progress: Progress,
    /// Warnings for the client.
    warnings: Vec<String>,
}

impl Style {
    /// Returns `completion_probabilities`.
    fn probabilities(&self, app: &App, all: &[Logprobs]) -> Value {
        wire::native_probabilities(app.tokenizer(), all, self.after_sampling)
    }
}

/// `/completion`: generates a text in llama-server's format, or one for each of several prompts.
pub(crate) async fn completion(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let body = Arc::new(body);
    let images = images::see_prompts(&app, &body, "prompt").await?;
    let prepared = app.work(move |app| {
        let fields = Fields::of(&body)?;
        let prompts = images::prompts(app, &fields, "prompt", MAX_PROMPTS, images)?;
        prepare(app, &caller, &fields, prompts)
    });
    answer(&app, prepared.await?).await
}

fn prepare(
    app: &App,
    caller: &Caller,
    fields: &Fields<'_>,
    prompts: Vec<Prompt>,
) -> Result<Prepared, ApiError> {
    let model = app.model(fields.str("model")?)?;
    let mut options = params::options(app, fields, Dialect::Native)?;
    let range = -2..=1 << 30;
    let most = match fields.int("n_predict", range.clone())? {
        Some(n) => Some(n),
        None => fields.int("max_tokens", range)?,
    };
    // a negative value means limited by the context and the server's options only
    let most = most.and_then(|n| usize::try_from(n).ok());
    options.max_tokens = most.or(app.options.n_predict);
    options.logprobs = fields.count("n_probs", 0, 100)?.filter(|n| *n > 0);
    options.logprobs_after_sampling = fields.bool("post_sampling_probs")?.unwrap_or(false);
    let stream = fields.bool("stream")?.unwrap_or(false);
    let (salt, slot) = (salt(fields, caller.salt())?, slot(fields)?);
    let adapters = lora::named(app, fields)?;
    let request = |prompt: &Prompt| -> Result<Request, ApiError> {
        check_length(app, &prompt.tokens)?;
        Ok(Request {
            salt: salt.clone(),
            adapters: adapters.clone(),
            slot,
            images: prompt.images.clone(),
            ..Request::new(&prompt.tokens, &options)
        })
    };
    let text = |prompt: &Prompt| {
        let is_text = |id: &u32| (*id as usize) < app.n_vocab();
        let ids: Vec<u32> = prompt.tokens.iter().copied().filter(is_text).collect();
        let text = app.tokenizer().decode(&ids, true);
        String::from_utf8_lossy(&text).into_owned()
    };
    Ok(Prepared {
        requests: prompts.iter().map(request).collect::<Result<_, _>>()?,
        demanded: demand::read(fields)?,
        stream,
        style: Style {
            model,
            settings: settings::of(app, &options, stream),
            stop: options.stop,
            prompts: prompts.iter().map(text).collect(),
            response_fields: fields
                .strings("response_fields", MAX_RESPONSE_FIELDS)?
                .unwrap_or_default(),
            after_sampling: options.logprobs_after_sampling,
            return_tokens: fields.bool("return_tokens")?.unwrap_or(false),
            timings_per_token: fields.bool("timings_per_token")?.unwrap_or(false),
            progress: Progress::wanted(fields)?,
            warnings: params::warnings(app, fields, None),
        },
    })
}

async fn answer(app: &Arc<App>, mut prepared: Prepared) -> Result<Response<Body>, ApiError> {
    let compiled = app.compile(prepared.demanded.take()).await?;
    if let Some(constraint) = compiled.constraint {
        let constrain = |request: &mut Request| request.constraint = Some(constraint.fork());
        prepared.requests.iter_mut().for_each(constrain);
    }
    prepared.style.warnings.extend(compiled.warning);
    let n = prepared.requests.len();
    let mut work = Work::begin(app, prepared.requests)?;
    if prepared.stream {
        work.has_begun().await?;
        return Ok(sse::response(NativeWriter {
            app: Arc::clone(app),
            work,
            generated: vec![0; n],
            progress: vec![prepared.style.progress.clone(); n],
            style: prepared.style,
            has_ended: false,
        }));
    }
    let mut texts = Vec::with_capacity(n);
    for (index, mut answer) in work.collect().await?.into_iter().enumerate() {
        let choice = answer.choices.pop();
        let choice = choice.ok_or_else(|| ApiError::server("the text is lost"))?;
        texts.push(whole(app, &prepared.style, index, &choice));
    }
    Ok(json_response(&match texts.len() {
        1 => texts.remove(0),
        _ => Value::Array(texts),
    }))
}

fn whole(app: &App, style: &Style, index: usize, choice: &Choice) -> Value {
    let end = End {
        finish: choice.finish,
        stopped_by: choice.stopped_by,
        has_new_line: choice.text.contains('\n'),
    };
    let mut object = last(style, index, &end, &choice.timing);
    object["content"] = json!(choice.text);
    if style.return_tokens {
        object["tokens"] = json!(choice.tokens);
    }
    if !choice.logprobs.is_empty() {
        object["completion_probabilities"] = style.probabilities(app, &choice.logprobs);
    }
    chosen(object, &style.response_fields)
}

/// Selects fields of an object by paths, such as n_predict of `generation_settings` with a slash
/// between them; the paths are the keys of the result.
fn chosen(object: Value, paths: &[String]) -> Value {
    if paths.is_empty() {
        return object;
    }
    let found = paths.iter().filter_map(|path| {
        let mut keys = path.split('/');
        let value = keys.try_fold(&object, |inner, key| inner.as_object()?.get(key))?;
        Some((path.clone(), value.clone()))
    });
    Value::Object(found.collect())
}

/// End of a text.
struct End {
    finish: FinishReason,
    stopped_by: Option<usize>,
    has_new_line: bool,
}

/// Returns the object sent at the end of a text.
fn last(style: &Style, index: usize, end: &End, timing: &Timing) -> Value {
    let word = end.stopped_by.and_then(|place| style.stop.get(place));
    let kind = match end.finish {
        FinishReason::Stop if word.is_some() => "word",
        FinishReason::Stop => "eos",
        FinishReason::Length | FinishReason::ContextFull => "limit",
        FinishReason::Cancelled => "none",
    };
    let mut object = json!({
        "index": index,
        "content": "",
        "tokens": [],
        // there are no numbered slots
        "id_slot": -1,
        "stop": true,
        "model": style.model,
        "tokens_predicted": timing.generated_tokens,
        "tokens_evaluated": timing.prompt_tokens,
        "tokens_cached": timing.cached,
        "generation_settings": style.settings,
        "prompt": style.prompts.get(index),
        "has_new_line": end.has_new_line,
        "truncated": end.finish == FinishReason::ContextFull || timing.discarded > 0,
        "stop_type": kind,
        "stopping_word": word.map_or("", String::as_str),
        "timings": wire::timings(timing),
    });
    wire::warn(&mut object, &style.warnings);
    object
}

struct NativeWriter {
    app: Arc<App>,
    work: Work,
    style: Style,
    /// Number of tokens generated for each text so far.
    generated: Vec<usize>,
    /// Progress of each prompt.
    progress: Vec<Progress>,
    has_ended: bool,
}

impl Writer for NativeWriter {
    async fn next(&mut self) -> Option<Vec<Message>> {
        if self.has_ended {
            return None;
        }
        let Some(Update { prompt, event }) = self.work.next().await else {
            self.has_ended = true;
            return None;
        };
        if self.progress[prompt].note(&event) {
            let piece = json!({
                "index": prompt,
                "content": "",
                "tokens": [],
                "id_slot": -1,
                "stop": false,
                "tokens_predicted": 0,
            });
            let piece = self.progress[prompt].reported_in(piece);
            return Some(vec![Message::Data(piece)]);
        }
        let message = match event {
            Event::Delta { delta, timing, .. } => {
                self.generated[prompt] += delta.tokens.len();
                let mut object = json!({
                    "index": prompt,
                    "content": delta.text,
                    "tokens": delta.tokens,
                    "id_slot": -1,
                    "stop": false,
                    "tokens_predicted": self.generated[prompt],
                });
                if !delta.logprobs.is_empty() {
                    let probabilities = self.style.probabilities(&self.app, &delta.logprobs);
                    object["completion_probabilities"] = probabilities;
                }
                if self.style.timings_per_token {
                    object["timings"] = wire::timings(&timing);
                }
                object
            }
            Event::Finished { text, timing, .. } => {
                let end = End {
                    finish: text.finish,
                    stopped_by: text.stopped_by,
                    has_new_line: text.text.contains('\n'),
                };
                let object = last(&self.style, prompt, &end, &timing);
                chosen(object, &self.style.response_fields)
            }
            Event::Failed(error) => {
                self.has_ended = true;
                ApiError::from(error).to_json()
            }
            Event::Started { .. }
            | Event::Read { .. }
            | Event::Prompt(_)
            | Event::Beams { .. }
            | Event::Embedded { .. } => return Some(Vec::new()),
        };
        Some(vec![Message::Data(message)])
    }
}
