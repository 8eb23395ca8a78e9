//! Routes: one file for each group.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod conversation;
pub(crate) mod converted;
pub(crate) mod embeddings;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod native;
pub(crate) mod ollama;
pub(crate) mod rerank;
pub(crate) mod responses;
mod status;

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get, post};
use serde_json::Value;

use crate::app::App;
use crate::auth::{self, Caller};
use crate::error::ApiError;
use crate::http::{read_json, read_out};
use crate::logging;
use crate::page;

/// Access rule of a route.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// Requires a key, if there are keys.
    Key,
    /// Open to all.
    Open,
}

/// Returns the router of the routes with several paths that take a request of the model.
fn questions(app: &Arc<App>) -> Router {
    let mut router = Router::new();
    for path in [
        "/v1/chat/completions",
        "/chat/completions",
        "/api/v1/chat/completions",
    ] {
        router = router.route(path, asks(app, chat::handle));
    }
    for path in ["/completion", "/completions"] {
        router = router.route(path, asks(app, native::completion));
    }
    for path in ["/embedding", "/embeddings"] {
        router = router.route(path, asks(app, embeddings::native));
    }
    for path in ["/v1/rerank", "/v1/reranking", "/rerank", "/reranking"] {
        router = router.route(path, asks(app, rerank::handle));
    }
    for path in ["/v1/responses", "/responses"] {
        router = router.route(path, asks(app, responses::handle));
    }
    for path in [
        "/v1/chat/completions/input_tokens",
        "/chat/completions/input_tokens",
    ] {
        router = router.route(path, asks(app, chat::input_tokens));
    }
    for path in ["/v1/responses/input_tokens", "/responses/input_tokens"] {
        router = router.route(path, asks(app, responses::input_tokens));
    }
    router
        .route("/v1/messages", asks_as_anthropic(app, messages::handle))
        .route(
            "/v1/messages/count_tokens",
            asks_as_anthropic(app, messages::count_tokens),
        )
}

/// Adds the routes of Ollama's interface.
fn as_ollama(app: &Arc<App>, router: Router) -> Router {
    let mut router = router
        .route("/api/chat", asks_as_ollama(app, ollama::chat))
        .route("/api/generate", asks_as_ollama(app, ollama::generate))
        .route("/api/embed", asks_as_ollama(app, ollama::embed))
        .route("/api/embeddings", asks_as_ollama(app, ollama::embeddings))
        .route("/api/show", asks_as_ollama(app, ollama::show))
        .route("/api/tags", shows(app, Guard::Key, ollama::tags))
        .route("/api/ps", shows(app, Guard::Key, ollama::loaded))
        .route("/api/version", shows(app, Guard::Open, ollama::version));
    for path in ["/api/pull", "/api/push", "/api/create", "/api/copy"] {
        router = router.route(path, asks_as_ollama(app, ollama::unchanging));
    }
    router
}

/// Returns the router of all routes.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let mut router = questions(app);
    for path in ["/v1/models", "/models"] {
        router = router.route(path, shows(app, Guard::Key, models::list));
    }
    for path in ["/health", "/v1/health"] {
        router = router.route(path, shows(app, Guard::Open, status::health));
    }
    let router = as_ollama(app, router)
        .route("/v1/models/{*name}", get(named(app, models::get)))
        .route(
            "/v1/responses/{id}",
            get(named(app, responses::get)).delete(named(app, responses::delete)),
        )
        .route(
            "/v1/responses/{id}/input_items",
            get(named(app, responses::input_items)),
        )
        .route(
            "/v1/responses/{id}/cancel",
            post(named(app, responses::cancel)),
        )
        .route("/v1/completions", asks(app, completions::handle))
        .route("/v1/embeddings", asks(app, embeddings::handle))
        .route("/infill", asks(app, native::infill_route))
        .route("/tokenize", asks(app, native::tokenize))
        .route("/detokenize", asks(app, native::detokenize))
        .route("/apply-template", asks(app, chat::apply_template))
        .route(
            "/tokenizer_info",
            shows(app, Guard::Key, native::tokenizer_info),
        )
        .route("/props", shows(app, Guard::Key, native::props))
        .route("/slots", shows(app, Guard::Key, native::slots))
        .route("/cache", shows(app, Guard::Key, native::cache))
        .route("/ready", shows(app, Guard::Open, status::ready))
        .route("/live", shows(app, Guard::Open, status::live))
        .route("/metrics", shows(app, Guard::Key, status::metrics))
        .route(
            "/",
            get(|asked: HeaderMap| async move { page::index(&asked) }),
        )
        .route(
            "/manifest.webmanifest",
            get(|asked: HeaderMap| async move { page::manifest(&asked) }),
        )
        .route("/page/{version}/{*name}", get(page_file))
        .fallback(|| async { ApiError::not_found("there is no such route") })
        .method_not_allowed_fallback(|| async { ApiError::method() })
        .layer(from_fn({
            let app = Arc::clone(app);
            move |request, next| share(Arc::clone(&app), request, next)
        }))
        .layer(from_fn({
            let app = Arc::clone(app);
            move |request, next| part(Arc::clone(&app), request, next)
        }))
        .layer(from_fn(read_out));
    let router = match app.options.prefix.as_str() {
        "" => router,
        prefix => behind(prefix, router),
    };
    router.layer(from_fn({
        let app = Arc::clone(app);
        move |request, next| record(Arc::clone(&app), request, next)
    }))
}

/// Logs a request once its answer has ended.
async fn record(app: Arc<App>, request: Request, next: Next) -> Response<Body> {
    let (sink, prefix) = (&app.options.log, &app.options.prefix);
    logging::record(sink, prefix, || app.new_id("req-"), request, next).await
}

/// Returns all routes under a prefix. Redirects the prefix without a final slash, from which the
/// page's relative addresses would lead elsewhere.
fn behind(prefix: &str, router: Router) -> Router {
    let page = HeaderValue::try_from(format!("{prefix}/"));
    let page = page.unwrap_or_else(|_| HeaderValue::from_static("/"));
    let lead = move || {
        let headers = [(header::LOCATION, page.clone())];
        std::future::ready((StatusCode::PERMANENT_REDIRECT, headers))
    };
    Router::new()
        .route(prefix, get(lead))
        .nest_service(&format!("{prefix}/"), router)
        .fallback(|| async { ApiError::not_found("there is no such route") })
}

/// Handles requests for a file of the page.
async fn page_file(
    path: Result<Path<(String, String)>, PathRejection>,
    asked: HeaderMap,
) -> Response<Body> {
    let (version, name) = path.map_or_else(|_| Default::default(), |Path(both)| both);
    page::file(&version, &name, &asked).into_response()
}

/// Adds CORS headers for the pages of allowed origins.
async fn share(app: Arc<App>, request: Request, next: Next) -> Response<Body> {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let allowed = |origin: &HeaderValue| {
        let origin = origin.to_str();
        origin.is_ok_and(|origin| auth::is_allowed(&app.options, origin))
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

/// Closes the connection after an answer during shutdown. A client that reused the connection for
/// its next request might send it just when it is closed, and would get no answer.
async fn part(app: Arc<App>, request: Request, next: Next) -> Response<Body> {
    let mut response = next.run(request).await;
    if app.is_closing() {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

/// Routes POST requests with a JSON object.
fn asks<F, R>(app: &Arc<App>, handler: F) -> MethodRouter
where
    F: Fn(Arc<App>, Caller, Value) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, ApiError>> + Send,
{
    asks_with(app, handler, ApiError::into_response)
}

/// Routes POST requests with a JSON object; errors have Anthropic's format.
fn asks_as_anthropic<F, R>(app: &Arc<App>, handler: F) -> MethodRouter
where
    F: Fn(Arc<App>, Caller, Value) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, ApiError>> + Send,
{
    asks_with(app, handler, ApiError::into_anthropic)
        .fallback(|| async { ApiError::method().into_anthropic() })
        .layer(map_response(logging::with_anthropic_id))
}

/// Routes POST requests with a JSON object; errors have Ollama's format.
fn asks_as_ollama<F, R>(app: &Arc<App>, handler: F) -> MethodRouter
where
    F: Fn(Arc<App>, Caller, Value) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, ApiError>> + Send,
{
    asks_with(app, handler, ApiError::into_ollama)
        .fallback(|| async { ApiError::method().into_ollama() })
}

/// Routes POST requests with a JSON object; `refuse` writes errors.
fn asks_with<F, R>(
    app: &Arc<App>,
    handler: F,
    refuse: fn(ApiError) -> Response<Body>,
) -> MethodRouter
where
    F: Fn(Arc<App>, Caller, Value) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, ApiError>> + Send,
{
    let app = Arc::clone(app);
    post(move |request: Request| async move {
        let answer = async {
            let caller = check(&app, Guard::Key, &request)?;
            let body = read_json(request, app.options.max_body).await?;
            handler(app, caller, body).await
        };
        answer.await.unwrap_or_else(refuse)
    })
}

/// Routes GET requests.
fn shows<F, R>(app: &Arc<App>, guard: Guard, handler: F) -> MethodRouter
where
    F: Fn(Arc<App>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, ApiError>> + Send,
{
    let app = Arc::clone(app);
    get(move |request: Request| async move {
        let answer = match check(&app, guard, &request) {
            Ok(_) => handler(app).await,
            Err(error) => Err(error),
        };
        answer.into_response()
    })
}

/// Handles requests about what the path names.
fn named<F, R>(
    app: &Arc<App>,
    handler: F,
) -> impl Fn(Result<Path<String>, PathRejection>, Request) -> Answer + Clone + Send + Sync + 'static
where
    F: Fn(Arc<App>, Caller, String) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, ApiError>> + Send,
{
    let app = Arc::clone(app);
    move |name, request| {
        let (app, handler) = (Arc::clone(&app), handler.clone());
        Box::pin(async move {
            // bytes that are not UTF-8 name nothing, which the handler reports as of any name
            let name = name.map_or_else(
                |_| char::REPLACEMENT_CHARACTER.to_string(),
                |Path(name)| name,
            );
            let answer = match check(&app, Guard::Key, &request) {
                Ok(caller) => handler(app, caller, name).await,
                Err(error) => Err(error),
            };
            answer.into_response()
        })
    }
}

/// The answer to a request, once it is there.
type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

fn check(app: &App, guard: Guard, request: &Request) -> Result<Caller, ApiError> {
    match guard {
        // health checks may use any host name: they see nothing worth protecting
        Guard::Open => Ok(Caller::default()),
        Guard::Key => {
            auth::check_origin(&app.options, request.headers())?;
            auth::caller(&app.options, request.headers())
        }
    }
}
