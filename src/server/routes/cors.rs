//! Pages of other origins that may use the server.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, Response, StatusCode, header};
use axum::middleware::Next;
use axum::response::IntoResponse;

use crate::auth;
use crate::server::Server;

/// Adds CORS headers for the pages of allowed origins.
pub(super) async fn share(server: Arc<Server>, request: Request, next: Next) -> Response<Body> {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let allowed = |origin: &HeaderValue| {
        let origin = origin.to_str();
        origin.is_ok_and(|origin| auth::is_allowed(&server.options, origin))
    };
    let is_preflight = *request.method() == Method::OPTIONS && origin.is_some();
    let Some(origin) = origin.filter(allowed) else {
        return match is_preflight {
            // without the headers a browser goes no further, and says why
            true => StatusCode::OK.into_response(),
            false => next.run(request).await,
        };
    };
    // clients send their own headers, and a browser asks for each by name
    let asked = request
        .headers()
        .get(header::ACCESS_CONTROL_REQUEST_HEADERS);
    let usual = HeaderValue::from_static("authorization, content-type, x-api-key");
    let named = asked.cloned().unwrap_or(usual);
    let mut response = match is_preflight {
        true => StatusCode::OK.into_response(),
        false => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    let vary = HeaderValue::from_static("origin, access-control-request-headers");
    headers.append(header::VARY, vary);
    let methods = HeaderValue::from_static("GET, POST, DELETE");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, named);
    response
}
