//! `/v1/completions`: text completions, with the log-probabilities that evaluation harnesses ask
//! for.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use octavo_engine::sample::Logprobs;
use octavo_engine::{Event, Request, Task, Timing};
use octavo_text::tokenizer::EncodeOptions;
use serde_json::{Value, json};

use super::chat::Head;
use crate::app::App;
use crate::auth::Caller;
use crate::demand::{self, Demanded};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::json_response;
use crate::params::{self, Dialect, MAX_N, MAX_TOP};
use crate::progress::Progress;
use crate::prompt::{MAX_PROMPTS, check_bytes, check_length, prompts, salt, slot};
use crate::routes::lora;
use crate::server::now;
use crate::sse::{self, Message, Writer};
use crate::wire::{self, LegacyLogprobs, Usage};
use crate::work::{Answer, Choice, Update, Work, keep_best};

/// Default token limit of a completion.
const DEFAULT_TOKENS: usize = 16;

struct Prepared {
    requests: Vec<Request>,
    demanded: Option<Demanded>,
    stream: bool,
    style: Style,
}

/// Format of an answer.
#[derive(Clone)]
struct Style {
    model: String,
    prompts: Arc<Vec<Vec<u32>>>,
    echo: bool,
    logprobs: bool,
    n: usize,
    include_usage: bool,
    return_token_ids: bool,
    /// Whether every piece of a stream includes timings.
    timings_per_token: bool,
    /// Progress of a prompt before it begins, for streams that report it.
    progress: Progress,
    /// Warnings for the client.
    warnings: Vec<String>,
}

/// Answers a request.
pub(crate) async fn handle(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let Prepared {
        mut requests,
        demanded,
        stream,
        mut style,
    } = app.work(move |app| prepare(app, &caller, &body)).await?;
    let compiled = app.compile(demanded).await?;
    style.warnings.extend(compiled.warning);
    if let Some(constraint) = compiled.constraint {
        let constrain = |request: &mut Request| request.constraint = Some(constraint.fork());
        requests.iter_mut().for_each(constrain);
    }
    let mut work = Work::begin(&app, requests)?;
    let head = Head {
        id: app.new_id("cmpl-"),
        created: now(),
    };
    if stream {
        work.has_begun().await?;
        return Ok(sse::response(CompletionWriter::new(app, work, head, style)));
    }
    let answers = work.collect().await?;
    Ok(json_response(&whole(&app, &head, &style, answers)))
}

/// A request for one text.
pub(crate) struct Ready {
    pub(crate) request: Request,
    /// Warnings for the client.
    pub(crate) warnings: Vec<String>,
}

/// Reads a request for one text, and compiles the constraint on it.
pub(crate) async fn ready(app: &Arc<App>, caller: Caller, body: Value) -> Result<Ready, ApiError> {
    let prepared = app.work(move |app| prepare(app, &caller, &body));
    let Prepared {
        mut requests,
        demanded,
        ..
    } = prepared.await?;
    let compiled = app.compile(demanded).await?;
    let request = requests.pop();
    let mut request = request.ok_or_else(|| ApiError::bad_field("prompt", "expected a text"))?;
    request.constraint = compiled.constraint;
    Ok(Ready {
        request,
        warnings: compiled.warning.into_iter().collect(),
    })
}

fn prepare(app: &App, caller: &Caller, body: &Value) -> Result<Prepared, ApiError> {
    let fields = Fields::of(body)?;
    let model = app.model(fields.str("model")?)?;
    let mut options = params::options(app, &fields, Dialect::OpenAi)?;
    let most = params::max_tokens(&fields, &["max_tokens", "n_predict"], 0)?;
    let default = app.options.n_predict;
    options.max_tokens = match most {
        Some(most) => most.or(default),
        None => default.or(Some(DEFAULT_TOKENS)),
    };
    let most = options.max_tokens.unwrap_or(usize::MAX);
    let n = fields.count("n", 1, MAX_N)?.unwrap_or(1);
    let best_of = fields.count("best_of", 1, MAX_N)?.unwrap_or(n);
    let stream = fields.bool("stream")?.unwrap_or(false);
    if best_of < n || (stream && best_of > n) {
        let expected = format!("at least n = {n}, and no more in a stream");
        return Err(fields.wrong("best_of", &expected));
    }
    let task = params::task(&fields, n)?;
    let echo = fields.bool("echo")?.unwrap_or(false);
    // some clients send the chat API's value
    let logprobs = match fields.get("logprobs") {
        Some(Value::Bool(enabled)) => enabled.then_some(0),
        _ => fields.count("logprobs", 0, MAX_TOP)?,
    };
    // always include the most likely token: it shows whether a text is greedy
    let top = logprobs.map(|top| top.max(1));
    // sampled texts are ranked by them
    options.logprobs = match best_of > n && task == Task::Text {
        true => Some(top.unwrap_or(0)),
        false => top,
    };
    let prompts = all_prompts(app, &fields, best_of)?;
    check_size(
        app,
        &fields,
        &prompts,
        Size {
            best_of,
            echo,
            top,
            most,
        },
    )?;
    let demanded = demand::read(&fields)?;
    let (salt, slot) = (salt(&fields, caller.salt())?, slot(&fields)?);
    let adapters = lora::named(app, &fields)?;
    let request = |prompt: &Vec<u32>| -> Result<Request, ApiError> {
        let scores_only = echo && options.max_tokens == Some(0);
        if !scores_only || prompt.len() > app.n_ctx() {
            check_length(app, prompt)?;
        }
        Ok(Request {
            n: if task == Task::Text { best_of } else { n },
            task,
            prompt_logprobs: top.filter(|_| echo && prompt.len() > 1),
            salt: salt.clone(),
            adapters: adapters.clone(),
            slot,
            ..Request::new(prompt, &options)
        })
    };
    Ok(Prepared {
        requests: prompts.iter().map(request).collect::<Result<_, _>>()?,
        demanded,
        stream,
        style: Style {
            model,
            prompts: Arc::new(prompts),
            echo,
            logprobs: logprobs.is_some(),
            n,
            include_usage: params::includes_usage(&fields)?,
            return_token_ids: fields.bool("return_token_ids")?.unwrap_or(false),
            timings_per_token: fields.bool("timings_per_token")?.unwrap_or(false),
            progress: Progress::wanted(&fields)?,
            warnings: params::warnings(app, &fields, None),
        },
    })
}

/// Reads the prompts, each with the optional suffix; refuses too many texts (`best_of` per prompt).
fn all_prompts(app: &App, fields: &Fields<'_>, best_of: usize) -> Result<Vec<Vec<u32>>, ApiError> {
    let add_special = fields.bool("add_special_tokens")?.unwrap_or(true);
    let encode = EncodeOptions {
        add_special,
        ..EncodeOptions::PROMPT
    };
    let mut prompts = prompts(app, fields, "prompt", MAX_PROMPTS, encode)?;
    if let Some(suffix) = fields.str("suffix")?.filter(|suffix| !suffix.is_empty()) {
        check_bytes(app, suffix)?;
        for prompt in &mut prompts {
            *prompt = super::native::infill(app, prompt, suffix)?;
        }
    }
    if prompts.len() * best_of > MAX_PROMPTS * 4 {
        return Err(fields.wrong("n", "fewer texts over all prompts"));
    }
    Ok(prompts)
}

/// Quantities that bound the length of an answer.
struct Size {
    best_of: usize,
    echo: bool,
    top: Option<usize>,
    /// Most tokens generated for each prompt.
    most: usize,
}

/// Refuses a request whose answer could have an absurd number of log-probabilities.
fn check_size(
    app: &App,
    fields: &Fields<'_>,
    prompts: &[Vec<u32>],
    size: Size,
) -> Result<(), ApiError> {
    const MAX_LOGPROBS: usize = 1 << 20;
    let Some(top) = size.top else {
        return Ok(());
    };
    let n_ctx = app.n_ctx();
    let generated = size.most.min(n_ctx) * prompts.len();
    let echoed: usize = if size.echo {
        prompts.iter().map(Vec::len).sum()
    } else {
        0
    };
    let all = (generated + echoed) * size.best_of * (top + 1);
    match all <= MAX_LOGPROBS {
        true => Ok(()),
        false => Err(fields.wrong("logprobs", "fewer: the answer could have millions of them")),
    }
}

/// Returns the text of a prompt, for `echo`.
fn prompt_text(app: &App, prompt: &[u32]) -> String {
    String::from_utf8_lossy(&app.tokenizer().decode(prompt, true)).into_owned()
}

/// Returns the log-probabilities of a prompt: the first token has none.
fn prompt_logprobs(app: &App, prompt: &[u32], all: &[Logprobs]) -> LegacyLogprobs {
    let mut logprobs = LegacyLogprobs::default();
    if let Some(&first) = prompt.first() {
        logprobs.push_first(app.tokenizer(), first);
    }
    all.iter()
        .for_each(|token| logprobs.push(app.tokenizer(), token));
    logprobs
}

fn whole(app: &App, head: &Head, style: &Style, answers: Vec<Answer>) -> Value {
    let mut usage = Usage::default();
    let mut choices = Vec::new();
    let mut timings = Value::Null;
    for (at, mut answer) in answers.into_iter().enumerate() {
        let generated = answer
            .choices
            .iter()
            .map(|choice| choice.timing.generated_tokens);
        usage.completion += generated.sum::<usize>();
        usage.prompt += style.prompts[at].len();
        if let Some(first) = answer.choices.first() {
            usage.cached += first.timing.cached;
            timings = wire::timings(&first.timing);
        }
        keep_best(&mut answer.choices, style.n);
        for choice in &answer.choices {
            choices.push(one(app, style, at, &answer.prompt, choice));
        }
    }
    let mut object = json!({
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": style.model,
        "system_fingerprint": crate::FINGERPRINT,
        "choices": choices,
        "usage": usage.to_json(),
        "timings": timings,
    });
    wire::warn(&mut object, &style.warnings);
    object
}

fn one(app: &App, style: &Style, at: usize, of_prompt: &[Logprobs], choice: &Choice) -> Value {
    let prompt = &style.prompts[at];
    let mut text = if style.echo {
        prompt_text(app, prompt)
    } else {
        String::new()
    };
    text.push_str(&choice.text);
    let logprobs = style.logprobs.then(|| {
        let mut logprobs = match style.echo {
            true => prompt_logprobs(app, prompt, of_prompt),
            false => LegacyLogprobs::default(),
        };
        let own = choice.logprobs.iter();
        own.for_each(|token| logprobs.push(app.tokenizer(), token));
        logprobs.into_json()
    });
    let mut object = json!({
        "index": at * style.n + choice.index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": wire::finish_reason(choice.finish),
    });
    if style.return_token_ids {
        object["token_ids"] = json!(choice.tokens);
        object["prompt_token_ids"] = json!(prompt);
    }
    object
}

/// Writes a streamed answer.
struct CompletionWriter {
    app: Arc<App>,
    work: Work,
    head: Head,
    style: Style,
    /// Characters sent of each text, and whether its prompt was sent.
    reported: Vec<(usize, bool)>,
    /// Progress of each prompt.
    progress: Vec<Progress>,
    usage: Usage,
    has_ended: bool,
}

impl CompletionWriter {
    fn new(app: Arc<App>, work: Work, head: Head, style: Style) -> CompletionWriter {
        let usage = Usage {
            prompt: style.prompts.iter().map(Vec::len).sum(),
            ..Usage::default()
        };
        CompletionWriter {
            reported: vec![(0, !style.echo); style.prompts.len() * style.n],
            progress: vec![style.progress.clone(); style.prompts.len()],
            app,
            work,
            head,
            style,
            usage,
            has_ended: false,
        }
    }

    fn chunk(&self, choices: Value) -> Value {
        json!({
            "id": self.head.id,
            "object": "text_completion",
            "created": self.head.created,
            "model": self.style.model,
            "system_fingerprint": crate::FINGERPRINT,
            "choices": choices,
        })
    }

    fn piece(&self, index: usize, text: String, logprobs: Option<Value>) -> Value {
        self.chunk(json!([{
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": null,
        }]))
    }

    /// Sends the prompt for all texts that belong to it.
    fn echo(&mut self, prompt: usize, all: &[Logprobs], messages: &mut Vec<Message>) {
        for choice in 0..self.style.n {
            let index = prompt * self.style.n + choice;
            if std::mem::replace(&mut self.reported[index].1, true) {
                continue;
            }
            let tokens = &self.style.prompts[prompt];
            let text = prompt_text(&self.app, tokens);
            let logprobs = prompt_logprobs(&self.app, tokens, all);
            self.reported[index].0 = logprobs.offset();
            let logprobs = self.style.logprobs.then(|| logprobs.into_json());
            let mut chunk = self.piece(index, text, logprobs);
            if self.style.return_token_ids {
                chunk["choices"][0]["prompt_token_ids"] = json!(tokens);
            }
            messages.push(Message::Data(chunk));
        }
    }

    fn grow(
        &mut self,
        (prompt, choice): (usize, usize),
        delta: &octavo_engine::Delta,
        timing: &Timing,
        messages: &mut Vec<Message>,
    ) {
        self.echo(prompt, &[], messages);
        let index = prompt * self.style.n + choice;
        let has_more = self.style.logprobs || self.style.return_token_ids;
        if delta.text.is_empty() && !has_more {
            return;
        }
        let mut logprobs = LegacyLogprobs::at(self.reported[index].0);
        delta
            .logprobs
            .iter()
            .for_each(|token| logprobs.push(self.app.tokenizer(), token));
        self.reported[index].0 = logprobs.offset();
        let logprobs = self.style.logprobs.then(|| logprobs.into_json());
        let mut chunk = self.piece(index, delta.text.clone(), logprobs);
        if self.style.return_token_ids {
            chunk["choices"][0]["token_ids"] = json!(delta.tokens);
        }
        if self.style.timings_per_token {
            chunk["timings"] = wire::timings(timing);
        }
        messages.push(Message::Data(chunk));
    }
}

impl Writer for CompletionWriter {
    async fn next(&mut self) -> Option<Vec<Message>> {
        if self.has_ended {
            return None;
        }
        let mut messages = Vec::new();
        match self.work.next().await {
            None => {
                self.has_ended = true;
                if self.style.include_usage {
                    let mut chunk = self.chunk(json!([]));
                    chunk["usage"] = self.usage.to_json();
                    messages.push(Message::Data(chunk));
                }
                messages.push(Message::Done);
            }
            Some(Update { prompt, event }) => match event {
                Event::Prompt(all) => self.echo(prompt, &all, &mut messages),
                Event::Delta {
                    choice,
                    delta,
                    timing,
                } => {
                    self.grow((prompt, choice), &delta, &timing, &mut messages);
                }
                Event::Finished {
                    choice,
                    text,
                    timing,
                } => {
                    self.echo(prompt, &[], &mut messages);
                    self.usage.completion += timing.generated_tokens;
                    if choice == 0 {
                        self.usage.cached += timing.cached;
                    }
                    let index = prompt * self.style.n + choice;
                    let reason = wire::finish_reason(text.finish);
                    let mut chunk = self.piece(index, String::new(), None);
                    chunk["choices"][0]["finish_reason"] = json!(reason);
                    chunk["timings"] = wire::timings(&timing);
                    wire::warn(&mut chunk, &self.style.warnings);
                    messages.push(Message::Data(chunk));
                }
                Event::Failed(error) => {
                    self.has_ended = true;
                    messages.push(Message::Data(ApiError::from(error).to_json()));
                }
                Event::Started { .. } | Event::Read { .. } => {
                    if self.progress[prompt].note(&event) {
                        let piece = self.piece(prompt * self.style.n, String::new(), None);
                        let piece = self.progress[prompt].reported_in(piece);
                        messages.push(Message::Data(piece));
                    }
                }
                Event::Beams { .. } | Event::Embedded { .. } => {}
            },
        }
        Some(messages)
    }
}
