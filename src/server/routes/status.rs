//! `/health`, `/ready`, `/live`, `/metrics`: for monitoring.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Response, header};
use octavo_engine::Health;
use serde_json::json;

use crate::app::App;
use crate::error::ApiError;
use crate::http::json_response;

/// Duration of a step from which the engine counts as stuck.
const STUCK: Duration = Duration::from_secs(120);

/// Returns whether requests should be sent here: the engine works, and is not shutting down.
pub(crate) async fn health(app: Arc<App>) -> Result<Response<Body>, ApiError> {
    ready(Arc::clone(&app)).await?;
    live(app).await
}

/// Returns whether the engine works, even while shutting down. If not, only a restart helps.
pub(crate) async fn live(app: Arc<App>) -> Result<Response<Body>, ApiError> {
    if let Health::Broken(why) = app.handle.health() {
        return Err(ApiError::unavailable(why));
    }
    if app.handle.step_time().is_some_and(|time| time > STUCK) {
        return Err(ApiError::unavailable("a step does not end"));
    }
    let uptime = app.started.elapsed().as_secs();
    Ok(json_response(
        &json!({ "status": "ok", "uptime_seconds": uptime }),
    ))
}

/// Returns whether new requests are accepted.
pub(crate) async fn ready(app: Arc<App>) -> Result<Response<Body>, ApiError> {
    match app.handle.health() {
        Health::Well => Ok(json_response(&json!({ "status": "ready" }))),
        Health::Closing => Err(ApiError::unavailable("it is shutting down")),
        Health::Broken(why) => Err(ApiError::unavailable(why)),
    }
}

/// Returns the metrics for Prometheus.
pub(crate) async fn metrics(app: Arc<App>) -> Result<Response<Body>, ApiError> {
    let text = app.metrics.encode(&app.handle.snapshot());
    let text = text.map_err(|_| ApiError::server("the numbers cannot be written"))?;
    let mut response = Response::new(Body::from(text));
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let kind = header::HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}
