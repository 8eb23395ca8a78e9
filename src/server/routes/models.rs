//! `/v1/models`: lists the served models.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::http::json_response;

fn model(app: &App, name: &str) -> Value {
    let hparams = app.engine.hparams();
    json!({
        "id": name,
        "object": "model",
        "created": app.created,
        "owned_by": "octavo",
        "max_model_len": app.n_ctx(),
        "meta": {
            "n_vocab": hparams.n_vocab(),
            "n_ctx_train": hparams.n_ctx_train(),
            "n_embd": hparams.n_embd(),
            "size": app.engine.memory().file,
        },
    })
}

/// Lists all of them.
pub(crate) async fn list(app: Arc<App>) -> Result<Response<Body>, ApiError> {
    let all = app.options.names.iter().map(|name| model(&app, name));
    let all = all.collect::<Vec<_>>();
    Ok(json_response(&json!({ "object": "list", "data": all })))
}

/// Returns one of them.
pub(crate) async fn get(app: Arc<App>, name: String) -> Result<Response<Body>, ApiError> {
    if !app.options.names.contains(&name) {
        return Err(ApiError::no_model(&name));
    }
    Ok(json_response(&model(&app, &name)))
}
