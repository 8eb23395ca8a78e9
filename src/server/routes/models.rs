//! `/v1/models`: lists the models, and loads and unloads them.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json};

use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::json_response;
use crate::model::Model;
use crate::registry::{Changes, Entry, Status};
use crate::routes::Named;
use crate::server::Server;
use crate::sse;

/// Facts that a loaded model alone tells.
struct Loaded {
    more: Value,
    takes_images: bool,
    family: &'static str,
}

impl Loaded {
    fn of(model: &Model) -> Loaded {
        let hparams = model.engine.hparams();
        Loaded {
            more: json!({
                "max_model_len": model.n_ctx(),
                "meta": {
                    "n_vocab": hparams.n_vocab(),
                    "n_ctx_train": hparams.n_ctx_train(),
                    "n_embd": hparams.n_embd(),
                    "size": model.engine.memory().file,
                },
            }),
            takes_images: model.options.encoder_cache.is_some(),
            family: hparams.arch.name(),
        }
    }
}

/// Describes a model, and says whether it is loaded as llama-server does.
fn described(server: &Server, entry: &Entry, name: &str, state: &Status<Loaded>) -> Value {
    let mut model = json!({
        "id": name,
        "object": "model",
        "created": server.created,
        "owned_by": "octavo",
        "aliases": entry.names,
        "tags": [],
        "status": { "value": state.value },
    });
    if state.has_failed {
        model["status"]["failed"] = json!(true);
    }
    if let (
        Value::Object(model),
        Some(Loaded {
            more: Value::Object(more),
            ..
        }),
    ) = (&mut model, &state.loaded)
    {
        model.extend(more.clone());
    }
    model
}

/// Lists each model once, under its first name, so that clients do not offer it once per name; in
/// `models` also with what it can do, as llama-server does.
pub(crate) async fn list(server: Arc<Server>) -> Result<Response<Body>, ApiError> {
    let states = server.registry.status(Loaded::of);
    let (mut data, mut models) = (Vec::new(), Vec::new());
    for (entry, state) in server.registry.entries.iter().zip(&states) {
        let name = entry.name();
        data.push(described(&server, entry, name, state));
        let mut capabilities = vec!["completion"];
        if state
            .loaded
            .as_ref()
            .is_some_and(|loaded| loaded.takes_images)
        {
            capabilities.push("multimodal");
        }
        let mut details = json!({ "format": "gguf" });
        if let Some(loaded) = &state.loaded {
            details["family"] = json!(loaded.family);
        }
        models.push(json!({
            "name": name,
            "model": name,
            "type": "model",
            "capabilities": capabilities,
            "details": details,
        }));
    }
    Ok(json_response(
        &json!({ "object": "list", "data": data, "models": models }),
    ))
}

/// Returns a model, under any of its names.
pub(crate) async fn get(
    server: Arc<Server>,
    _: Caller,
    Named { name, .. }: Named,
) -> Result<Response<Body>, ApiError> {
    let found = server.registry.named(&name);
    let i = found.ok_or_else(|| ApiError::no_model(&name))?;
    let states = server.registry.status(Loaded::of);
    let entry = &server.registry.entries[i];
    Ok(json_response(&described(&server, entry, &name, &states[i])))
}

/// `/models/sse`: streams the changes of the models' states.
pub(crate) async fn changes(server: Arc<Server>) -> Result<Response<Body>, ApiError> {
    Ok(sse::response(Changes::of(&server.registry)))
}

/// `/models/load`: loads a model, and answers when it is loaded.
pub(crate) async fn load(server: Arc<Server>, body: Value) -> Result<Response<Body>, ApiError> {
    let i = named(&server, &body)?;
    server.registry.load_by_order(i).await?;
    Ok(json_response(&json!({ "success": true })))
}

/// `/models/unload`: unloads a model, and answers when its memory is free.
pub(crate) async fn unload(server: Arc<Server>, body: Value) -> Result<Response<Body>, ApiError> {
    let i = named(&server, &body)?;
    server.registry.unload(i)?;
    server.registry.is_unloaded(i).await;
    Ok(json_response(&json!({ "success": true })))
}

/// Returns the model that a request names.
fn named(server: &Server, body: &Value) -> Result<usize, ApiError> {
    let fields = Fields::of(body)?;
    let name = fields.need("model", fields.str("model")?)?;
    let found = server.registry.named(name);
    found.ok_or_else(|| ApiError::no_model(name))
}
