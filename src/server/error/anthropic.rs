//! Errors in the format of Anthropic's API.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};

use super::ApiError;
use crate::logging;

/// Anthropic's status for a server that takes no more work for now.
const OVERLOADED: u16 = 529;

impl ApiError {
    /// Returns the object `{"type": "error", "error": …}`.
    pub(crate) fn to_anthropic(&self, request_id: Option<&str>) -> Value {
        json!({
            "type": "error",
            "error": { "type": self.anthropic_kind(), "message": self.anthropic_message() },
            "request_id": request_id,
        })
    }

    /// Returns the response with this error.
    pub(crate) fn into_anthropic(self) -> Response<Body> {
        let request_id = logging::current_id();
        let body = self.to_anthropic(request_id.as_deref());
        let status = match self.0.status {
            StatusCode::SERVICE_UNAVAILABLE => StatusCode::from_u16(OVERLOADED).ok(),
            // what this server cannot do, the client must not ask again
            StatusCode::NOT_IMPLEMENTED => Some(StatusCode::BAD_REQUEST),
            _ => None,
        };
        let status = status.unwrap_or(self.0.status);
        self.response(status, &body)
    }

    fn anthropic_kind(&self) -> &'static str {
        match self.0.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::REQUEST_TIMEOUT => "timeout_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::INTERNAL_SERVER_ERROR => "api_error",
            _ => "invalid_request_error",
        }
    }

    /// Returns the message. That of a prompt which exceeds the context begins as Anthropic's, by
    /// which agents know that they must shorten their conversation.
    fn anthropic_message(&self) -> String {
        let count = |name: &str| self.0.more.get(name).and_then(Value::as_u64);
        match (count("n_prompt_tokens"), count("n_ctx")) {
            (Some(n_prompt), Some(n_ctx)) => {
                format!("prompt is too long: {n_prompt} tokens > {n_ctx} maximum")
            }
            _ => self.0.message.clone(),
        }
    }
}
