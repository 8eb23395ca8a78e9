//! `/v1/models`: lists the served model.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json};

use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::http::json_response;

fn model(app: &App, name: &str) -> Value {
    let hparams = app.engine.hparams();
    json!({
        "id": name,
        "object": "model",
        "created": app.created,
        "owned_by": "octavo",
        "aliases": app.options.names,
        "tags": [],
        "max_model_len": app.n_ctx(),
        "meta": {
            "n_vocab": hparams.n_vocab(),
            "n_ctx_train": hparams.n_ctx_train(),
            "n_embd": hparams.n_embd(),
            "size": app.engine.memory().file,
        },
    })
}

/// Lists the model once, under its first name, so that clients do not offer it once per name; in
/// `models` also with what it can do, as llama-server does.
pub(crate) async fn list(app: Arc<App>) -> Result<Response<Body>, ApiError> {
    let name = app.name();
    let mut capabilities = vec!["completion"];
    if app.options.encoder_cache.is_some() {
        capabilities.push("multimodal");
    }
    Ok(json_response(&json!({
        "object": "list",
        "data": [model(&app, name)],
        "models": [{
            "name": name,
            "model": name,
            "type": "model",
            "capabilities": capabilities,
            "details": { "format": "gguf", "family": app.engine.hparams().arch.name() },
        }],
    })))
}

/// Returns the model, under any of its names.
pub(crate) async fn get(
    app: Arc<App>,
    _: Caller,
    name: String,
) -> Result<Response<Body>, ApiError> {
    if !app.options.names.contains(&name) {
        return Err(ApiError::no_model(&name));
    }
    Ok(json_response(&model(&app, &name)))
}
