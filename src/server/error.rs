//! Errors, in the format of OpenAI's API.

mod anthropic;
mod ollama;

use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;
use octavo_engine::GenerationError;
use octavo_engine::{BatchError, Unavailable};
use serde_json::{Map, Value, json};

use crate::logging::Refusal;

/// OpenAI's error code of a prompt that exceeds the context.
const LENGTH: &str = "context_length_exceeded";

/// llama-server's error type of the same.
const EXCEEDED: &str = "exceed_context_size_error";

/// An error object with its HTTP status.
#[derive(Debug)]
pub(crate) struct ApiError(Box<Fault>);

#[derive(Debug)]
struct Fault {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    /// Seconds after which the client may retry.
    retry_after: Option<u32>,
    /// Additional fields of the error object.
    more: Map<String, Value>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        ApiError(Box::new(Fault {
            status,
            kind,
            message: message.into(),
            param: None,
            code: None,
            retry_after: None,
            more: Map::new(),
        }))
    }

    fn about(mut self, param: impl Into<String>) -> ApiError {
        self.0.param = Some(param.into());
        self
    }

    fn coded(mut self, code: &'static str) -> ApiError {
        self.0.code = Some(code);
        self
    }

    fn again_after(mut self, seconds: u32) -> ApiError {
        self.0.retry_after = Some(seconds);
        self
    }

    /// Reports that the request as a whole is invalid.
    pub(crate) fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// Reports an invalid field.
    pub(crate) fn bad_field(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        let param = param.into();
        let message = format!("{param}: {}", message.into());
        ApiError::bad_request(message).about(param)
    }

    /// Reports a constraint that cannot be compiled.
    pub(crate) fn of_rule(error: &octavo_grammar::Error, param: &str) -> ApiError {
        match error {
            octavo_grammar::Error::Rule(message) => ApiError::bad_field(param, message.clone()),
            octavo_grammar::Error::Vocabulary(_) => ApiError::not_supported(error.to_string()),
            octavo_grammar::Error::Thread(_) => ApiError::unavailable(error.to_string()),
        }
    }

    /// Reports a prompt with more tokens than the context.
    pub(crate) fn too_long(n_prompt: usize, n_ctx: usize) -> ApiError {
        // agents look for llama-server's words, and then shorten their conversation
        let message = format!(
            "the prompt of {n_prompt} tokens exceeds the available context size ({n_ctx} tokens): \
             expected fewer"
        );
        let status = StatusCode::BAD_REQUEST;
        let mut error = ApiError::new(status, EXCEEDED, message).coded(LENGTH);
        let more = &mut error.0.more;
        more.insert("n_prompt_tokens".to_owned(), json!(n_prompt));
        more.insert("n_ctx".to_owned(), json!(n_ctx));
        error
    }

    /// Returns whether the error is a prompt that exceeds the context.
    pub(crate) fn is_of_length(&self) -> bool {
        self.0.code == Some(LENGTH)
    }

    /// Reports a prompt with too many bytes to fit in the context.
    pub(crate) fn too_many_bytes(bytes: usize, most: usize, n_ctx: usize) -> ApiError {
        let message = format!(
            "the prompt of {bytes} bytes exceeds the available context size ({n_ctx} tokens): \
             expected at most {most} bytes"
        );
        let status = StatusCode::BAD_REQUEST;
        let mut error = ApiError::new(status, EXCEEDED, message).coded(LENGTH);
        // it was not tokenized: at least so many
        let least = (bytes as u128 * n_ctx as u128).div_ceil(most.max(1) as u128);
        let more = &mut error.0.more;
        let least = u64::try_from(least).unwrap_or(u64::MAX);
        more.insert("n_prompt_tokens".to_owned(), json!(least));
        more.insert("n_ctx".to_owned(), json!(n_ctx));
        error
    }

    /// Renames the field, for a request that was converted to this one.
    pub(crate) fn renamed(mut self, rename: impl Fn(&str) -> String) -> ApiError {
        if let Some(param) = self.0.param.take() {
            let name = rename(&param);
            if let Some(rest) = self.0.message.strip_prefix(&param) {
                self.0.message = format!("{name}{rest}");
            }
            self.0.param = Some(name);
        }
        self
    }

    /// Reports a missing or wrong key.
    pub(crate) fn unauthorized(message: &str) -> ApiError {
        let status = StatusCode::UNAUTHORIZED;
        ApiError::new(status, "authentication_error", message).coded("invalid_api_key")
    }

    /// Reports a request from a disallowed origin.
    pub(crate) fn forbidden(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// Reports that something does not exist.
    pub(crate) fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// Reports that no model has this name.
    pub(crate) fn no_model(name: &str) -> ApiError {
        let error = ApiError::not_found(format!("the model {name:?} is not served here"));
        error.about("model").coded("model_not_found")
    }

    /// Reports that a model is not loaded, and is not loaded by this request.
    pub(crate) fn not_loaded(name: &str) -> ApiError {
        let error = ApiError::bad_request(format!("the model {name:?} is not loaded"));
        error.about("model").coded("model_not_loaded")
    }

    /// Reports that the route accepts other methods.
    pub(crate) fn method() -> ApiError {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        ApiError::new(
            status,
            "invalid_request_error",
            "the route takes another method",
        )
    }

    /// Reports a body that arrived too slowly.
    pub(crate) fn slow() -> ApiError {
        let message = "the request did not arrive in time";
        ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "invalid_request_error",
            message,
        )
    }

    /// Reports a body that is too long.
    pub(crate) fn too_large(limit: usize) -> ApiError {
        let message = format!("the body is too long: expected at most {limit} bytes");
        ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            message,
        )
    }

    /// Reports that the request queue is full.
    pub(crate) fn busy(message: impl Into<String>) -> ApiError {
        let status = StatusCode::TOO_MANY_REQUESTS;
        let error = ApiError::new(status, "rate_limit_error", message);
        error.coded("queue_full").again_after(5)
    }

    /// Reports a temporary failure.
    pub(crate) fn unavailable(message: impl Into<String>) -> ApiError {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        ApiError::new(status, "unavailable_error", message).again_after(10)
    }

    /// Reports something that the model or the server does not support.
    pub(crate) fn not_supported(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// Reports a fault of the program, or of the device.
    pub(crate) fn server(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// Returns the message and the field that is to blame.
    pub(crate) fn into_parts(self) -> (String, Option<String>) {
        (self.0.message, self.0.param)
    }

    /// Returns the object `{"error": …}`.
    pub(crate) fn to_json(&self) -> Value {
        let mut error = self.0.more.clone();
        error.insert("message".to_owned(), json!(self.0.message));
        error.insert("type".to_owned(), json!(self.0.kind));
        error.insert("param".to_owned(), json!(self.0.param));
        error.insert("code".to_owned(), json!(self.0.code));
        json!({ "error": error })
    }
}

impl ApiError {
    /// Returns the response with this error, in the format of `body`.
    fn response(self, status: StatusCode, body: &Value) -> Response<Body> {
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        let json = header::HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        if let Some(seconds) = self.0.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if status == StatusCode::UNAUTHORIZED {
            let bearer = header::HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, bearer);
        }
        response.extensions_mut().insert(Refusal(self.0.message));
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let (status, body) = (self.0.status, self.to_json());
        self.response(status, &body)
    }
}

impl From<BatchError> for ApiError {
    fn from(error: BatchError) -> ApiError {
        match error {
            BatchError::Sequence(GenerationError::PromptTooLong { prompt, n_ctx }) => {
                ApiError::too_long(prompt, n_ctx)
            }
            BatchError::Sequence(error) => ApiError::bad_request(error.to_string()),
            BatchError::QueueFull { .. } => ApiError::busy(error.to_string()),
            BatchError::ImageLogprobs => ApiError::bad_field("logprobs", error.to_string()),
            BatchError::Choices { .. } => ApiError::bad_field("n", error.to_string()),
            BatchError::Beams { .. } => ApiError::bad_field("best_of", error.to_string()),
            BatchError::Engine(octavo_engine::Error::KvPages(_)) | BatchError::Step(_) => {
                ApiError::unavailable(error.to_string())
            }
            BatchError::Engine(
                octavo_engine::Error::NoLogits { .. }
                | octavo_engine::Error::NoClassifier { .. }
                | octavo_engine::Error::Whole { .. },
            ) => ApiError::bad_request(error.to_string()),
            BatchError::Engine(_) | BatchError::Draft(_) => ApiError::server(error.to_string()),
        }
    }
}

impl From<Unavailable> for ApiError {
    fn from(error: Unavailable) -> ApiError {
        ApiError::unavailable(error.0)
    }
}

impl From<octavo_text::chat::Error> for ApiError {
    fn from(error: octavo_text::chat::Error) -> ApiError {
        use octavo_text::chat::Error;
        // do not reveal the path of the file
        match error {
            Error::Reserved { name, .. } => {
                let message = format!("the variable {name} cannot be set");
                ApiError::bad_field("chat_template_kwargs", message)
            }
            Error::Refused { message, .. } => {
                let message = format!("the chat template refuses this conversation: {message}");
                ApiError::bad_field("messages", message)
            }
            Error::Part { kind, .. } => {
                let message = format!("the chat template takes text alone, found {kind}");
                ApiError::bad_field("messages", message)
            }
            Error::Limit { limit, .. } => {
                ApiError::bad_field("messages", format!("the chat template: {limit}"))
            }
            Error::Template { what, .. } => {
                ApiError::bad_field("messages", format!("the chat template: {what}"))
            }
            Error::Gguf(_) | Error::TooLong { .. } => {
                ApiError::bad_request("the model's chat template cannot be used")
            }
            Error::Thread { source } => ApiError::unavailable(source.to_string()),
        }
    }
}

impl From<octavo_text::tokenizer::Error> for ApiError {
    fn from(error: octavo_text::tokenizer::Error) -> ApiError {
        ApiError::bad_request(error.to_string())
    }
}
