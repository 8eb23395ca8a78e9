//! `/health`, `/ready`, `/live`, `/metrics`: for monitoring.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Response, header};
use serde_json::json;

use crate::error::ApiError;
use crate::http::json_response;
use crate::metrics::in_text_format;
use crate::model::Model;
use crate::server::Server;

/// Duration of a step from which the engine counts as stuck.
const STUCK: Duration = Duration::from_secs(120);

/// Returns whether requests should be sent here: the engine works, and is not shutting down.
pub(crate) async fn health(server: Arc<Server>) -> Result<Response<Body>, ApiError> {
    ready(Arc::clone(&server)).await?;
    live(server).await
}

/// Returns whether every loaded model's engine works, even while shutting down. If not, only a
/// restart helps; but a model that can be loaded again is, with the next request for it.
pub(crate) async fn live(server: Arc<Server>) -> Result<Response<Body>, ApiError> {
    if let Some(why) = fault(&server) {
        return Err(ApiError::unavailable(why));
    }
    let is_stuck = |model: &Model| model.handle.step_time().is_some_and(|time| time > STUCK);
    let states = server.registry.status(is_stuck);
    if states.iter().any(|state| state.loaded == Some(true)) {
        return Err(ApiError::unavailable("a step does not end"));
    }
    let uptime = server.started.elapsed().as_secs();
    Ok(json_response(
        &json!({ "status": "ok", "uptime_seconds": uptime }),
    ))
}

/// Returns whether new requests are accepted.
pub(crate) async fn ready(server: Arc<Server>) -> Result<Response<Body>, ApiError> {
    if let Some(why) = fault(&server) {
        return Err(ApiError::unavailable(why));
    }
    match server.registry.is_closing() {
        true => Err(ApiError::unavailable("it is shutting down")),
        false => Ok(json_response(&json!({ "status": "ready" }))),
    }
}

/// Returns why a model that cannot be loaded again takes no further step, if there is one.
fn fault(server: &Server) -> Option<String> {
    let states = server.registry.status(Model::fault);
    let fixed = states.into_iter().filter(|state| state.is_fixed);
    fixed.filter_map(|state| state.loaded.flatten()).next()
}

/// Returns the metrics for Prometheus: as OpenMetrics if the client accepts it, as Prometheus does,
/// or else in Prometheus' own text format.
pub(crate) fn metrics(server: &Server, asked: &HeaderMap) -> Result<Response<Body>, ApiError> {
    let accepts = asked.get_all(header::ACCEPT).iter();
    let mut accepts = accepts.filter_map(|value| value.to_str().ok());
    let is_open = accepts.any(|value| value.contains("application/openmetrics-text"));
    let text = server.metrics.encode(&server.registry);
    let text = text.map_err(|_| ApiError::server("the numbers cannot be written"))?;
    let (text, kind) = match is_open {
        true => (
            text,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
        false => (
            in_text_format(&text),
            "text/plain; version=0.0.4; charset=utf-8",
        ),
    };
    let mut response = Response::new(Body::from(text));
    let kind = header::HeaderValue::from_static(kind);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, kind);
    // llama-server's
    headers.insert("process-start-time-unix", server.created.into());
    Ok(response)
}
