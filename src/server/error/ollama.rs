//! Errors in the format of Ollama's API.

use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json};

use super::ApiError;

impl ApiError {
    /// Returns the object `{"error": message}`.
    pub(crate) fn to_ollama(&self) -> Value {
        json!({ "error": self.0.message })
    }

    /// Returns the response with this error.
    pub(crate) fn into_ollama(self) -> Response<Body> {
        let (status, body) = (self.0.status, self.to_ollama());
        self.response(status, &body)
    }
}
