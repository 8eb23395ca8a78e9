//! `/api/tags`, `/api/ps`, `/api/show` and `/api/version`: the models that are
//! served.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::body::Body;
use axum::http::Response;
use gguf_rs_lite as gguf;
use octavo_text::chat::answer::Thoughts;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{tagged, untagged};
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::json_response;
use crate::params;
use crate::registry::Facts;
use crate::server::{Server, now};

/// Version of Ollama whose interface this is: clients refuse versions that lack what they use.
const VERSION: &str = "0.12.11";

/// Far date: models without a time limit are not unloaded by themselves.
const NEVER: &str = "2318-01-01T00:00:00Z";

/// `/api/version`.
pub(crate) async fn version(_: Arc<Server>) -> Result<Response<Body>, ApiError> {
    let server = crate::FINGERPRINT;
    Ok(json_response(
        &json!({ "version": VERSION, "server": server }),
    ))
}

/// `/api/tags`: lists the models, each under all of its names.
pub(crate) async fn tags(server: Arc<Server>) -> Result<Response<Body>, ApiError> {
    let states = server.registry.status(|_| ());
    let facts = server.facts(states.iter().map(|state| state.i).collect());
    let facts = facts.await?;
    let models = states.iter().zip(&facts).flat_map(|(state, facts)| {
        let names = state.entry.names.iter();
        names.map(|name| listed(&server, name, facts))
    });
    Ok(json_response(
        &json!({ "models": models.collect::<Vec<_>>() }),
    ))
}

/// `/api/ps`: lists the loaded models.
pub(crate) async fn loaded(server: Arc<Server>) -> Result<Response<Body>, ApiError> {
    let states = server.registry.status(|model| model.n_ctx());
    let facts = server.facts(states.iter().map(|state| state.i).collect());
    let facts = facts.await?;
    let mut models = Vec::new();
    for (state, facts) in states.iter().zip(&facts) {
        let Some(n_ctx) = state.loaded else {
            continue;
        };
        let mut model = listed(&server, state.entry.name(), facts);
        let idle = server.registry.limits.idle.filter(|_| !state.is_fixed);
        model["expires_at"] = match idle {
            Some(idle) => json!(date(
                now() + idle.saturating_sub(state.last_used.elapsed()).as_secs()
            )),
            None => json!(NEVER),
        };
        model["size_vram"] = json!(0);
        model["context_length"] = json!(n_ctx);
        models.push(model);
    }
    Ok(json_response(&json!({ "models": models })))
}

/// `/api/show`: describes the model.
pub(crate) async fn show(
    app: Arc<App>,
    _: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let fields = Fields::of(&body)?;
    // the older name of the field
    let name = match fields.str("model")? {
        Some(name) => name,
        None => fields.need("model", fields.str("name")?)?,
    };
    let name = untagged(&app, name);
    if !app.names.iter().any(|own| own == name) {
        return Err(ApiError::no_model(name));
    }
    let verbose = fields.bool("verbose")?.unwrap_or(false);
    let template = app.template.as_ref().map(|template| template.source());
    Ok(json_response(&json!({
        "modelfile": format!("FROM {name}\n"),
        "parameters": parameters(&app),
        "template": template.unwrap_or_default(),
        "details": details(&Facts::of(app.engine.gguf())),
        "model_info": metadata(app.engine.gguf(), verbose),
        "capabilities": capabilities(&app),
        "modified_at": date(app.server.created),
    })))
}

fn listed(server: &Server, name: &str, facts: &Facts) -> Value {
    let mut hash = Sha256::new();
    hash.update(name);
    hash.update(facts.bytes.to_le_bytes());
    let digest = hash.finalize();
    json!({
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": date(server.created),
        "size": facts.bytes,
        // an id of the entry: reading the whole file for its hash would take long
        "digest": digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
        "details": details(facts),
    })
}

/// Formats a time in seconds since 1970.
fn date(seconds: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(seconds);
    humantime::format_rfc3339_seconds(time).to_string()
}

fn details(facts: &Facts) -> Value {
    let size = match facts.parameters as f64 {
        n if n >= 1e9 => format!("{:.1}B", n / 1e9),
        n => format!("{:.2}M", n / 1e6),
    };
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": facts.family,
        "families": [facts.family],
        "parameter_size": size,
        "quantization_level": facts.quantization,
    })
}

/// Returns the default sampling settings as lines of a Modelfile.
fn parameters(app: &App) -> String {
    let defaults = params::defaults(app.sampling.clone());
    let names = ["temperature", "top_k", "top_p", "min_p", "repeat_penalty"];
    let line = |name: &str| format!("{name} {}", defaults[name]);
    names.map(line).join("\n")
}

fn capabilities(app: &App) -> Vec<&'static str> {
    let hparams = app.engine.hparams();
    let special = app.tokenizer().special();
    let template = app.template.as_ref();
    let thinks = |source: &str| Thoughts::of(source).is_shown();
    let all = [
        ("completion", app.engine.check_logits().is_ok()),
        ("embedding", !hparams.is_causal()),
        (
            "tools",
            template.is_some_and(|template| template.takes_tools()),
        ),
        (
            "thinking",
            template.is_some_and(|template| thinks(template.source())),
        ),
        ("vision", app.options.encoder_cache.is_some()),
        (
            "insert",
            special.fim_pre.is_some() && special.fim_suf.is_some(),
        ),
    ];
    let given = all.into_iter().filter(|(_, is_given)| *is_given);
    given.map(|(name, _)| name).collect()
}

/// Returns the keys of a file. Lists, which may be as long as a vocabulary, are null unless asked
/// for.
fn metadata(gguf: &gguf::Gguf, verbose: bool) -> Value {
    let keys = gguf.keys().map(|(key, value)| {
        let value = match value {
            gguf::Value::Array(_) if !verbose => Value::Null,
            value => to_json(&value),
        };
        (key.to_owned(), value)
    });
    let mut all: Map<String, Value> = keys.collect();
    let tensors = gguf.tensors().iter();
    let parameters: u64 = tensors.map(|tensor| tensor.n_elements()).sum();
    all.entry("general.parameter_count")
        .or_insert(json!(parameters));
    Value::Object(all)
}

fn to_json(value: &gguf::Value<'_>) -> Value {
    match value {
        gguf::Value::F32(x) => float(&x.to_string()),
        gguf::Value::F64(x) => float(&x.to_string()),
        gguf::Value::Bool(x) => json!(x),
        gguf::Value::Str(text) => json!(String::from_utf8_lossy(text)),
        gguf::Value::Array(list) => list.iter().map(|value| to_json(&value)).collect(),
        gguf::Value::U64(n) => json!(n),
        // every other integer type fits
        other => json!(other.as_int().and_then(|n| i64::try_from(n).ok())),
    }
}

/// Parses a decimal, so that an f32 prints with its own digits; null for NaN and infinities.
fn float(decimal: &str) -> Value {
    json!(decimal.parse::<f64>().ok().filter(|x| x.is_finite()))
}
