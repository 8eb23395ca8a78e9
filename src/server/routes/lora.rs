//! `/lora-adapters`: the adapters of a model and their default scales, as in llama-server; and the
//! field `lora` of requests.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::Response;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get};
use octavo_engine::{LoraInfo, LoraScale};
use serde_json::{Value, json};

use super::{Guard, Query, check};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::{json_response, read_json};
use crate::registry::Hold;
use crate::server::Server;

/// Largest absolute value of a scale.
const MAX_SCALE: f64 = 1e6;

/// Most adapters that a list names.
const MAX_NAMED: usize = 1024;

/// Routes requests about the adapters of the model that the query names.
pub(super) fn adapters(server: &Arc<Server>) -> MethodRouter {
    let (shown, changed) = (Arc::clone(server), Arc::clone(server));
    get(move |request: Request| async move {
        let answer = async move {
            check(&shown, Guard::Key, &request)?;
            let app = app(&shown, &Query::of(&request), false).await?;
            let all = app.engine.adapters();
            let all: Vec<Value> = all.iter().map(|one| shown_one(&app, one)).collect();
            Ok(json_response(&Value::Array(all)))
        };
        answer.await.unwrap_or_else(ApiError::into_response)
    })
    .post(move |request: Request| async move {
        let answer = async {
            check(&changed, Guard::Key, &request)?;
            let app = app(&changed, &Query::of(&request), true).await?;
            let body = read_json(request, changed.options.max_body).await?;
            set(&app, &body)
        };
        answer.await.unwrap_or_else(ApiError::into_response)
    })
}

/// Returns the model that a query names.
async fn app(server: &Arc<Server>, query: &Query, uses: bool) -> Result<Arc<App>, ApiError> {
    let hold = Hold {
        loads: query.autoload().unwrap_or(server.registry.limits.autoload),
        uses,
    };
    let name = query.field("model");
    let place = server.registry.find(name.as_deref(), |name| name)?;
    server.hold(place, hold).await
}

fn shown_one(app: &App, one: &LoraInfo) -> Value {
    let mut object = json!({
        "id": one.id,
        "path": one.path.display().to_string(),
        "scale": one.scale,
        "task_name": one.task_name,
        "prompt_prefix": one.prompt_prefix,
    });
    if !one.invocation_tokens.is_empty() {
        let text = app.tokenizer().decode(&one.invocation_tokens, true);
        object["alora_invocation_string"] = json!(String::from_utf8_lossy(&text));
        object["alora_invocation_tokens"] = json!(one.invocation_tokens);
    }
    object
}

/// Sets the scales for requests that name none.
fn set(app: &App, body: &Value) -> Result<Response<Body>, ApiError> {
    if !body.is_array() {
        return Err(ApiError::bad_request("Request body must be an array"));
    }
    let wrong = || {
        let expected = "an array of objects with 'id' and 'scale' fields";
        ApiError::bad_request(format!("Request body must be {expected}"))
    };
    app.engine
        .set_adapter_scales(&scales(body).ok_or_else(wrong)?);
    Ok(json_response(&json!({ "success": true })))
}

/// Reads the adapters that a request names; `None` where it names none, or the model has none.
pub(crate) fn named(app: &App, fields: &Fields<'_>) -> Result<Option<Vec<LoraScale>>, ApiError> {
    let Some(value) = fields.get("lora") else {
        return Ok(None);
    };
    if app.engine.adapters().is_empty() {
        // a warning of the answer says that it has no effect
        return Ok(None);
    }
    let wrong = || {
        let expected = "'lora' must be an array of objects with 'id' and 'scale' fields";
        ApiError::bad_request(format!("Field 'lora': Error: {expected}"))
    };
    scales(value).ok_or_else(wrong).map(Some)
}

/// Reads `[{id, scale}]`.
fn scales(value: &Value) -> Option<Vec<LoraScale>> {
    let list = value.as_array().filter(|list| list.len() <= MAX_NAMED)?;
    let scale = |one: &Value| {
        let scale = one["scale"].as_f64()?;
        Some(LoraScale {
            // no adapter has a number below 0, and unknown ones are passed over
            id: usize::try_from(one["id"].as_i64()?).unwrap_or(usize::MAX),
            scale: (scale.abs() <= MAX_SCALE).then_some(scale as f32)?,
        })
    };
    list.iter().map(scale).collect()
}
