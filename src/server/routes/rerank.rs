//! `/v1/rerank` and llama-server's `/rerank`: scores documents by how well they answer a query.
//! With `texts` in place of `documents`, the answer has the form of Hugging Face's text-embeddings
//! inference.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use octavo_engine::{Embed, Request};
use octavo_text::pair::PairFormat;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::json_response;
use crate::prompt::salt;
use crate::work::Work;

/// Most documents in one request.
const MAX_DOCUMENTS: usize = 2048;

/// Answers a request.
pub(crate) async fn handle(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let prepared = app.work(move |app| prepare(app, &caller, &body));
    let Prepared { requests, form } = prepared.await?;
    let n_prompt: usize = requests.iter().map(|request| request.prompt.len()).sum();
    let answers = Work::begin(&app, requests)?.collect().await?;
    let scores = answers.iter().map(|answer| answer.vector.first().copied());
    let scores: Vec<f32> = scores.map(Option::unwrap_or_default).collect();
    Ok(json_response(&form.answer(&scores, n_prompt)))
}

/// Requests, and the form of their answer.
struct Prepared {
    requests: Vec<Request>,
    form: Form,
}

/// The form of an answer.
struct Form {
    model: String,
    /// The bare list of text-embeddings inference.
    is_bare: bool,
    /// The documents, if they are returned.
    documents: Option<Vec<String>>,
    /// Most results.
    top_n: usize,
}

impl Form {
    fn answer(&self, scores: &[f32], n_prompt: usize) -> Value {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        // equal scores stay in the order of the documents
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        order.truncate(self.top_n);
        let results: Vec<Value> = order
            .iter()
            .map(|at| self.result(*at, scores[*at]))
            .collect();
        match self.is_bare {
            true => json!(results),
            false => json!({
                "model": self.model,
                "object": "list",
                "usage": { "prompt_tokens": n_prompt, "total_tokens": n_prompt },
                "results": results,
            }),
        }
    }

    fn result(&self, index: usize, score: f32) -> Value {
        let mut result = Map::new();
        let name = if self.is_bare {
            "score"
        } else {
            "relevance_score"
        };
        result.insert("index".to_owned(), json!(index));
        result.insert(name.to_owned(), json!(score));
        if let Some(text) = self.documents.as_ref().and_then(|all| all.get(index)) {
            let (name, value) = match self.is_bare {
                true => ("text", json!(text)),
                false => ("document", json!({ "text": text })),
            };
            result.insert(name.to_owned(), value);
        }
        Value::Object(result)
    }
}

fn prepare(app: &App, caller: &Caller, body: &Value) -> Result<Prepared, ApiError> {
    let fields = Fields::of(body)?;
    if app.engine.classifier().is_none() {
        let message = "this server does not support reranking: its model has no classifier";
        return Err(ApiError::not_supported(message));
    }
    let model = app.model(fields.str("model")?)?;
    let query = match fields.get("query") {
        None => return Err(ApiError::bad_request("\"query\" must be provided")),
        Some(query) => query.as_str(),
    };
    let query = query.ok_or_else(|| ApiError::bad_request("\"query\" must be a string"))?;
    let is_bare = fields.get("documents").is_none() && fields.get("texts").is_some();
    let name = if is_bare { "texts" } else { "documents" };
    let documents = documents(&fields, name)?;
    let returns = match is_bare {
        true => fields.bool("return_text")?,
        false => fields.bool("return_documents")?,
    };
    // -1 stands for all
    let top_n = fields.int("top_n", -1..=i64::from(u32::MAX))?;
    let format = PairFormat::from_gguf(app.engine.gguf(), app.tokenizer())?;
    let salt = salt(&fields, caller.salt())?;
    let request = |document: &String| {
        let prompt = format.encode(app.tokenizer(), query, document)?;
        if prompt.len() > app.n_ctx() {
            return Err(ApiError::too_long(prompt.len(), app.n_ctx()));
        }
        Ok(Request {
            salt: salt.clone(),
            ..Request::embedding(prompt, Embed::RANK)
        })
    };
    let requests: Result<Vec<Request>, ApiError> = documents.iter().map(request).collect();
    Ok(Prepared {
        requests: requests?,
        form: Form {
            model,
            is_bare,
            documents: returns.unwrap_or(false).then_some(documents),
            top_n: top_n.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX)),
        },
    })
}

/// Reads the documents: texts, or objects with a text.
fn documents(fields: &Fields<'_>, name: &str) -> Result<Vec<String>, ApiError> {
    let wrong = || ApiError::bad_request(format!("\"{name}\" must be a non-empty string array"));
    let Some(Value::Array(list)) = fields.get(name) else {
        return Err(wrong());
    };
    if list.len() > MAX_DOCUMENTS {
        return Err(fields.wrong(name, &format!("at most {MAX_DOCUMENTS} documents")));
    }
    let text = |one: &Value| {
        one.as_str()
            .or_else(|| one["text"].as_str())
            .map(str::to_owned)
    };
    let all: Option<Vec<String>> = list.iter().map(text).collect();
    all.filter(|all| !all.is_empty()).ok_or_else(wrong)
}
