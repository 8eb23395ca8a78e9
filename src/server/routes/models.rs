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
use crate::registry::{Changes, Registry, Status};
use crate::routes::{Named, Query};
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
fn described(server: &Server, name: &str, state: &Status<Loaded>) -> Value {
    let mut model = json!({
        "id": name,
        "object": "model",
        "created": server.created,
        "owned_by": "octavo",
        "aliases": state.entry.names,
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
/// `models` also with what it can do, as llama-server does. With `reload`, the models are found
/// again first, if they may change.
pub(crate) async fn list(server: Arc<Server>, query: Query) -> Result<Response<Body>, ApiError> {
    let reloads = query.field("reload").is_some_and(|value| value == "1");
    if reloads && server.registry.may_change() {
        blocking(&server, |registry| registry.reload()).await?;
    }
    let states = server.registry.status(Loaded::of);
    let (mut data, mut models) = (Vec::new(), Vec::new());
    for state in &states {
        let name = state.entry.name();
        data.push(described(&server, name, state));
        let mut capabilities = vec!["completion"];
        let loaded = state.loaded.as_ref();
        if loaded.is_some_and(|loaded| loaded.takes_images) {
            capabilities.push("multimodal");
        }
        let mut details = json!({ "format": "gguf" });
        if let Some(loaded) = loaded {
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
    let coming = server.registry.transfers.progress().into_iter();
    data.extend(coming.map(|(name, progress)| {
        json!({
            "id": name,
            "object": "model",
            "owned_by": "octavo",
            "status": { "value": "downloading", "progress": progress },
        })
    }));
    Ok(json_response(
        &json!({ "object": "list", "data": data, "models": models }),
    ))
}

/// `POST /models`: begins to download a model of the hub.
pub(crate) async fn download(server: Arc<Server>, body: Value) -> Result<Response<Body>, ApiError> {
    let fields = Fields::of(&body)?;
    let name = fields.need("model", fields.str("model")?)?.to_owned();
    server.registry.download(&name)?;
    Ok(json_response(&json!({ "success": true })))
}

/// `DELETE /models`: deletes the model that the query names from the hub's cache.
pub(crate) async fn delete(server: Arc<Server>, query: Query) -> Result<Response<Body>, ApiError> {
    let name = query.field("model");
    let name = name.ok_or_else(|| ApiError::bad_field("model", "expected a model's name"))?;
    blocking(&server, move |registry| registry.delete(&name)).await?;
    Ok(json_response(&json!({ "success": true })))
}

/// Runs work on the models that may wait for files.
async fn blocking(
    server: &Server,
    work: impl FnOnce(&Arc<Registry>) -> Result<(), ApiError> + Send + 'static,
) -> Result<(), ApiError> {
    let registry = Arc::clone(&server.registry);
    let done = tokio::task::spawn_blocking(move || work(&registry)).await;
    done.unwrap_or_else(|_| Err(ApiError::server("a fault of the program")))
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
    let state = states.iter().find(|state| state.i == i);
    let state = state.ok_or_else(|| ApiError::no_model(&name))?;
    Ok(json_response(&described(&server, &name, state)))
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
