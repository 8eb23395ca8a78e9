//! `/api/embed`, and the older `/api/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::Response;
use serde_json::{Map, Value, json};

use super::{name, untagged};
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::json_response;
use crate::routes::embeddings::{self, Vectors};

/// `/api/embed`: one vector of length 1 for each text.
pub(crate) async fn embed(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let start = Instant::now();
    let fields = Fields::of(&body)?;
    let model = name(&fields)?;
    let input = fields.need("input", fields.get("input"))?.clone();
    if matches!(&input, Value::Array(texts) if texts.is_empty()) {
        return Ok(json_response(&json!({ "model": model, "embeddings": [] })));
    }
    let Vectors { vectors, n_prompt } = vectors(&app, caller, &fields, input).await?;
    Ok(json_response(&json!({
        "model": model,
        "embeddings": vectors,
        "total_duration": u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
        "load_duration": 0,
        "prompt_eval_count": n_prompt,
    })))
}

/// `/api/embeddings`: the vector of one text.
pub(crate) async fn embeddings(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let fields = Fields::of(&body)?;
    let prompt = fields.need("prompt", fields.str("prompt")?)?;
    if prompt.is_empty() {
        return Ok(json_response(&json!({ "embedding": [] })));
    }
    let vectors = vectors(&app, caller, &fields, json!(prompt)).await;
    let vectors = vectors.map_err(|error| {
        error.renamed(|name| match name {
            "input" => "prompt".to_owned(),
            name => name.to_owned(),
        })
    })?;
    Ok(json_response(
        &json!({ "embedding": vectors.vectors.first() }),
    ))
}

/// Computes the vectors of texts, which are cut to the context unless the client says otherwise.
async fn vectors(
    app: &Arc<App>,
    caller: Caller,
    fields: &Fields<'_>,
    input: Value,
) -> Result<Vectors, ApiError> {
    let mut request = Map::new();
    let model = name(fields)?;
    request.insert("model".to_owned(), json!(untagged(app, model)));
    request.insert("input".to_owned(), input);
    if let Some(dimensions) = fields.get("dimensions") {
        request.insert("dimensions".to_owned(), dimensions.clone());
    }
    let truncate = fields.bool("truncate")?.unwrap_or(true);
    if truncate && let Some(most) = app.most_bytes() {
        cut(&mut request["input"], most);
    }
    embeddings::vectors(app, caller, Value::Object(request), truncate).await
}

/// Cuts texts to a length in bytes from which they certainly exceed the context: longer ones are
/// refused before they are tokenized.
fn cut(input: &mut Value, most: usize) {
    match input {
        Value::String(text) => text.truncate(text.floor_char_boundary(most)),
        Value::Array(texts) => texts.iter_mut().for_each(|text| cut(text, most)),
        _ => {}
    }
}
