//! `/props`, `/slots` and `/cache`: configuration and current state of the server.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use octavo_engine::{GenerationParams, Lookup};
use serde_json::{Map, Value, json};

use super::settings;
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::json_response;
use crate::images::{MAX_IMAGES, MEDIA_MARKER};
use crate::params::{self, Dialect};
use crate::registry::{Facts, Hold};
use crate::routes::Query;
use crate::server::Server;
use crate::wire;

/// `/props`: returns properties for llama-server's clients and its page: of the model that the
/// query names, or of the server, if it has several models. A model that was unloaded while
/// it was idle stays so.
pub(crate) async fn props(server: Arc<Server>, query: Query) -> Result<Response<Body>, ApiError> {
    let name = query.field("model").filter(|name| !name.is_empty());
    let registry = &server.registry;
    if name.is_none() && registry.status(|_| ()).len() != 1 {
        return Ok(json_response(&of_router(&server)));
    }
    let i = registry.find(name.as_deref(), |name| name)?;
    let loads = query.autoload();
    let kept = registry.entry(i).props();
    let kept = kept.filter(|_| registry.is_sleeping(i) && loads != Some(true));
    if let Some(mut props) = kept {
        props["is_sleeping"] = json!(true);
        return Ok(json_response(&props));
    }
    let hold = Hold {
        loads: loads.unwrap_or(registry.limits.autoload),
        uses: false,
    };
    let app = server.hold(i, hold).await?;
    keep_props(&app, i)?;
    Ok(json_response(&of_model(&app)?))
}

/// Keeps a model's properties, if it may be unloaded before it is asked for them.
pub(crate) fn keep_props(app: &App, i: usize) -> Result<(), ApiError> {
    let registry = &app.server.registry;
    let entry = registry.entry(i);
    if registry.limits.idle.is_some() && entry.props().is_none() {
        entry.keep_props(&of_model(app)?);
    }
    Ok(())
}

/// Returns the properties of a server with several models.
fn of_router(server: &Server) -> Value {
    let limits = &server.registry.limits;
    json!({
        "role": "router",
        "max_instances": limits.models.unwrap_or(0),
        "models_autoload": limits.autoload,
        "default_generation_settings": { "params": {}, "n_ctx": 0 },
        "limits": { "body_bytes": server.options.max_body, "images": MAX_IMAGES },
        "ui": true,
        "ui_settings": {},
        "build_info": crate::FINGERPRINT,
    })
}

/// Returns the properties of a model.
fn of_model(app: &App) -> Result<Value, ApiError> {
    let nothing = Value::Object(Map::new());
    let options = params::options(app, &Fields::of(&nothing)?, Dialect::Native)?;
    let options = GenerationParams {
        max_tokens: app.options.n_predict,
        ..options
    };
    let mut defaults = settings::of(app, &options, true);
    if let (Value::Object(all), Value::Object(sampling)) =
        (&mut defaults, params::defaults(app.sampling.clone()))
    {
        all.extend(sampling);
        // of a request; nothing here can be adapted or sampled elsewhere
        all.insert("timings_per_token".to_owned(), json!(false));
        all.insert("lora".to_owned(), json!([]));
        all.insert("backend_sampling".to_owned(), json!(false));
    }
    let special = |id: Option<u32>| id.map_or(String::new(), |id| wire::text(app.tokenizer(), id));
    let source = |has_tools: bool| {
        let template = app.template.as_ref();
        template.map(|template| template.variant(has_tools).source())
    };
    let mut props = json!({
        "default_generation_settings": { "params": defaults, "n_ctx": app.n_ctx() },
        "total_slots": app.engine.sequences(),
        "model_alias": app.name(),
        "model_ftype": Facts::of(app.engine.gguf()).quantization,
        "model_path": app.engine.gguf().name(),
        "chat_template": source(false),
        "bos_token": special(app.tokenizer().bos()),
        "eos_token": special(app.tokenizer().eos()),
        "modalities": {
            "vision": app.options.encoder_cache.is_some(), "audio": false, "video": false,
        },
        "media_marker": MEDIA_MARKER,
        "limits": { "body_bytes": app.server.options.max_body, "images": MAX_IMAGES },
        "endpoint_slots": app.server.options.slots,
        "endpoint_props": false,
        "endpoint_metrics": true,
        "ui": true,
        "ui_settings": {},
        "cors_proxy_enabled": false,
        "is_sleeping": false,
        "build_info": crate::FINGERPRINT,
    });
    if source(true) != source(false) {
        props["chat_template_tool_use"] = json!(source(true));
    }
    Ok(props)
}

/// `/slots`: returns the slots for requests and the state of each, in llama-server's format. No
/// texts, and no settings. With `fail_on_no_slot`, it is an error that all of them are taken.
pub(crate) async fn slots(app: Arc<App>, query: Query) -> Result<Response<Body>, ApiError> {
    if !app.server.options.slots {
        let message = "this server was started without its list of slots";
        return Err(ApiError::not_supported(message));
    }
    let snapshot = app.handle.snapshot();
    let running = snapshot.requests.iter();
    let running = running.filter(|request| request.state == "running");
    if query
        .field("fail_on_no_slot")
        .is_some_and(|value| !value.is_empty())
        && running.clone().count() >= app.engine.sequences()
    {
        return Err(ApiError::unavailable("no slot available"));
    }
    let mut running = running;
    let n_ctx = app.n_ctx();
    let slots = (0..app.engine.sequences()).map(|id| {
        let mut slot = json!({
            "id": id,
            "n_ctx": n_ctx,
            "speculative": app.options.lookup != Lookup::Off,
            "is_processing": false,
        });
        if let Some(request) = running.next() {
            let left = n_ctx.saturating_sub(request.prompt_tokens + request.generated);
            slot["is_processing"] = json!(true);
            slot["id_task"] = json!(request.id);
            slot["n_prompt_tokens"] = json!(request.prompt_tokens);
            let computed = request.tokens.min(request.prompt_tokens);
            slot["n_prompt_tokens_processed"] = json!(computed.saturating_sub(request.cached));
            slot["n_prompt_tokens_cache"] = json!(request.cached);
            slot["next_token"] = json!([{
                "has_next_token": true,
                "n_remain": left,
                "n_decoded": request.generated,
            }]);
        }
        slot
    });
    Ok(json_response(&Value::Array(slots.collect())))
}

/// `/cache`: returns the cache use of each request. No texts.
pub(crate) async fn cache(app: Arc<App>, _: Query) -> Result<Response<Body>, ApiError> {
    let snapshot = app.handle.snapshot();
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
    let mut state = json!({
        "pages_total": pages.free + pages.cached + pages.used,
        "pages_free": pages.free,
        "pages_cached": pages.cached,
        "page_positions": octavo_engine::PAGE_POSITIONS,
        "requests": requests.collect::<Vec<_>>(),
    });
    if let Some(disk) = snapshot.disk {
        state["disk"] = json!({
            "files": disk.files,
            "bytes": disk.bytes,
            "restored_tokens": disk.restored_tokens,
            "saved_pages": disk.saved_pages,
            "dropped_pages": disk.dropped_pages,
            "damaged_files": disk.damaged_files,
            "failures": disk.failures,
            "last_failure": disk.last_failure,
        });
    }
    Ok(json_response(&state))
}
