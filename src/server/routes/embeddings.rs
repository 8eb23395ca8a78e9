//! `/v1/embeddings` and llama-server's `/embeddings`: one vector for each text, or for each token.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use octavo_engine::{Embed, Pooling, Request};
use serde_json::{Value, json};

use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::json_response;
use crate::images;
use crate::prompt::{Prompt, salt};
use crate::routes::lora;
use crate::wire::Usage;
use crate::work::Work;

/// Most texts in one request, as for OpenAI.
const MAX_TEXTS: usize = 2048;

/// Answers a request.
pub(crate) async fn handle(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let prepared = prepared(&app, caller, body, Form::OpenAi, false).await?;
    let (model, in_base64) = (prepared.model.clone(), prepared.in_base64);
    let Vectors { vectors, n_prompt } = prepared.vectors(&app).await?;
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        let vector = match in_base64 {
            false => json!(vector),
            true => {
                let bytes = vector.iter().flat_map(|x| x.to_le_bytes());
                json!(BASE64_STANDARD.encode(bytes.collect::<Vec<u8>>()))
            }
        };
        json!({ "object": "embedding", "index": index, "embedding": vector })
    });
    let usage = Usage {
        prompt: n_prompt,
        ..Usage::default()
    };
    Ok(json_response(&json!({
        "object": "list",
        "data": data.collect::<Vec<_>>(),
        "model": model,
        "usage": usage.to_json(),
    })))
}

/// The vectors of a request's texts.
pub(crate) struct Vectors {
    pub(crate) vectors: Vec<Vec<f32>>,
    /// Tokens of all texts.
    pub(crate) n_prompt: usize,
}

/// Computes the vectors of a request's texts, which are cut to the context if `truncate` is set.
pub(crate) async fn vectors(
    app: &Arc<App>,
    caller: Caller,
    body: Value,
    truncate: bool,
) -> Result<Vectors, ApiError> {
    let prepared = prepared(app, caller, body, Form::OpenAi, truncate).await?;
    prepared.vectors(app).await
}

/// Format of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    OpenAi,
    /// llama-server's, which has vectors for all tokens if the pooling is none.
    Native,
}

/// Answers a request in llama-server's format: a list with a list of vectors for each text.
pub(crate) async fn native(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let prepared = prepared(&app, caller, body, Form::Native, false);
    let Prepared {
        requests, pooling, ..
    } = prepared.await?;
    let answers = Work::begin(&app, requests)?.collect().await?;
    let width = app.engine.embedding_width(pooling).max(1);
    let all = answers.iter().enumerate().map(|(index, answer)| {
        let vectors: Vec<&[f32]> = answer.vector.chunks(width).collect();
        json!({ "index": index, "embedding": vectors })
    });
    Ok(json_response(&all.collect()))
}

/// Requests, and the format of their answer.
struct Prepared {
    model: String,
    requests: Vec<Request>,
    pooling: Pooling,
    in_base64: bool,
    /// Number of components to return, if not all.
    dimensions: Option<usize>,
}

impl Prepared {
    /// Computes the vectors.
    async fn vectors(self, app: &Arc<App>) -> Result<Vectors, ApiError> {
        let n_prompt = self.requests.iter().map(|request| request.prompt.len());
        let n_prompt = n_prompt.sum();
        let answers = Work::begin(app, self.requests)?.collect().await?;
        let vectors = answers.into_iter().map(|answer| answer.vector);
        let mut vectors: Vec<Vec<f32>> = vectors.collect();
        if let Some(dimensions) = self.dimensions {
            let shorten = |vector: &mut Vec<f32>| shorten(vector, dimensions);
            vectors.iter_mut().for_each(shorten);
        }
        Ok(Vectors { vectors, n_prompt })
    }
}

/// Truncates a vector and rescales it to length 1: Matryoshka models have most of the meaning in
/// the first components.
fn shorten(vector: &mut Vec<f32>, dimensions: usize) {
    vector.truncate(dimensions);
    let length = vector
        .iter()
        .map(|x| f64::from(*x).powi(2))
        .sum::<f64>()
        .sqrt();
    if length > 0.0 {
        vector
            .iter_mut()
            .for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}

/// Returns the pooling for requests that do not say: the server's option, or else the model's.
fn default_pooling(app: &App, form: Form) -> Result<Pooling, ApiError> {
    match (app.options.pooling, app.engine.pooling()) {
        (Some(Pooling::None), _) if form == Form::OpenAi => {
            let message = "expected last, mean or cls: the server's own pooling is none, and this \
                           answer has one vector for each text";
            Err(ApiError::bad_field("pooling", message))
        }
        (Some(pooling), _) => Ok(pooling),
        // the answer has one vector for each text
        (None, Pooling::None) => Ok(Pooling::Mean),
        (None, own) => Ok(own),
    }
}

/// Encodes a request's images, then reads all of it.
async fn prepared(
    app: &Arc<App>,
    caller: Caller,
    body: Value,
    form: Form,
    truncate: bool,
) -> Result<Prepared, ApiError> {
    let name = if body["input"].is_null() {
        "content"
    } else {
        "input"
    };
    let body = Arc::new(body);
    let images = images::see_prompts(app, &body, name).await?;
    app.work(move |app| {
        let fields = Fields::of(&body)?;
        let mut prompts = images::prompts(app, &fields, name, MAX_TEXTS, images)?;
        if truncate {
            prompts.iter_mut().for_each(|prompt| cut(app, prompt));
        }
        prepare(app, &caller, &fields, prompts, form)
    })
    .await
}

/// Cuts a prompt to the context. The token that ends each text remains.
fn cut(app: &App, prompt: &mut Prompt) {
    let tokenizer = app.tokenizer();
    let ends = tokenizer.add_eos() || tokenizer.add_sep();
    let last = prompt.tokens.last().copied().filter(|_| ends);
    prompt.tokens.truncate(app.n_ctx());
    if let (Some(last), Some(end)) = (last, prompt.tokens.last_mut()) {
        *end = last;
    }
}

fn prepare(
    app: &App,
    caller: &Caller,
    fields: &Fields<'_>,
    prompts: Vec<Prompt>,
    form: Form,
) -> Result<Prepared, ApiError> {
    let model = app.model(fields.str("model")?)?;
    let in_base64 = match fields.str("encoding_format")? {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(fields.wrong("encoding_format", "float or base64")),
    };
    let dimensions = fields.count("dimensions", 1, app.engine.hparams().n_embd())?;
    let pooling = match fields.str("pooling")? {
        None => default_pooling(app, form)?,
        Some("last") => Pooling::Last,
        Some("mean") => Pooling::Mean,
        Some("cls" | "first") => Pooling::First,
        Some("rank") => Pooling::Rank,
        Some("none") if form == Form::Native => Pooling::None,
        Some(_) => return Err(fields.wrong("pooling", "last, mean, cls or rank")),
    };
    let salt = salt(fields, caller.salt())?;
    let adapters = lora::named(app, fields)?;
    let request = |Prompt { tokens, images }: Prompt| {
        if tokens.len() > app.n_ctx() {
            return Err(ApiError::too_long(tokens.len(), app.n_ctx()));
        }
        let embed = Embed {
            pooling,
            normalize: pooling != Pooling::None,
        };
        Ok(Request {
            salt: salt.clone(),
            adapters: adapters.clone(),
            images,
            ..Request::embedding(tokens, embed)
        })
    };
    Ok(Prepared {
        model,
        requests: prompts.into_iter().map(request).collect::<Result<_, _>>()?,
        pooling,
        in_base64,
        dimensions,
    })
}
