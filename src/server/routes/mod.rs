//! Routes: one file for each group.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod conversation;
pub(crate) mod converted;
mod cors;
pub(crate) mod embeddings;
pub(crate) mod lora;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod native;
pub(crate) mod ollama;
pub(crate) mod rerank;
pub(crate) mod responses;
mod slots;
mod status;

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
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
use crate::registry::Hold;
use crate::server::Server;

/// Access rule of a route.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// Requires a key, if there are keys.
    Key,
    /// Open to all.
    Open,
}

/// Returns the router of the routes with several paths that take a request of the model.
fn questions(server: &Arc<Server>) -> Router {
    let mut router = Router::new();
    for path in [
        "/v1/chat/completions",
        "/chat/completions",
        "/api/v1/chat/completions",
    ] {
        router = router.route(path, asks(server, chat::handle));
    }
    for path in ["/completion", "/completions"] {
        router = router.route(path, asks(server, native::completion));
    }
    for path in ["/embedding", "/embeddings"] {
        router = router.route(path, asks(server, embeddings::native));
    }
    for path in ["/v1/rerank", "/v1/reranking", "/rerank", "/reranking"] {
        router = router.route(path, asks(server, rerank::handle));
    }
    for path in ["/v1/responses", "/responses"] {
        router = router.route(path, asks(server, responses::handle));
    }
    for path in [
        "/v1/chat/completions/input_tokens",
        "/chat/completions/input_tokens",
    ] {
        router = router.route(path, asks(server, chat::input_tokens));
    }
    for path in ["/v1/responses/input_tokens", "/responses/input_tokens"] {
        router = router.route(path, asks(server, responses::input_tokens));
    }
    router
        .route("/v1/messages", asks_as_anthropic(server, messages::handle))
        .route(
            "/v1/messages/count_tokens",
            asks_as_anthropic(server, messages::count_tokens),
        )
}

/// Adds the routes of Ollama's interface.
fn as_ollama(server: &Arc<Server>, router: Router) -> Router {
    let mut router = router
        .route("/api/chat", asks_as_ollama(server, ollama::chat))
        .route("/api/generate", asks_as_ollama(server, ollama::generate))
        .route("/api/embed", asks_as_ollama(server, ollama::embed))
        .route(
            "/api/embeddings",
            asks_as_ollama(server, ollama::embeddings),
        )
        .route("/api/show", asks_as_ollama(server, ollama::show))
        .route("/api/tags", shows(server, Guard::Key, ollama::tags))
        .route("/api/ps", shows(server, Guard::Key, ollama::loaded))
        .route("/api/version", shows(server, Guard::Open, ollama::version));
    for path in ["/api/pull", "/api/push", "/api/create", "/api/copy"] {
        let route = orders_with(server, ApiError::into_ollama, ollama::unchanging)
            .fallback(|| async { ApiError::method().into_ollama() });
        router = router.route(path, route);
    }
    router
}

/// Returns the router of all routes.
pub(crate) fn router(server: &Arc<Server>) -> Router {
    let mut router = questions(server);
    for path in ["/v1/models", "/models"] {
        let lists = get(queried(server, Guard::Key, models::list));
        let deletes = lists.delete(queried(server, Guard::Key, models::delete));
        router = router.route(path, deletes.merge(orders(server, models::download)));
    }
    for path in ["/health", "/v1/health"] {
        router = router.route(path, shows(server, Guard::Open, status::health));
    }
    let router = as_ollama(server, router)
        .route("/v1/models/{*name}", get(named(server, models::get)))
        .route(
            "/v1/responses/{id}",
            get(named(server, responses::get)).delete(named(server, responses::delete)),
        )
        .route(
            "/v1/responses/{id}/input_items",
            get(named(server, responses::input_items)),
        )
        .route(
            "/v1/responses/{id}/cancel",
            post(named(server, responses::cancel)),
        )
        .route("/v1/completions", asks(server, completions::handle))
        .route("/v1/embeddings", asks(server, embeddings::handle))
        .route("/infill", asks(server, native::infill_route))
        .route("/tokenize", asks(server, native::tokenize))
        .route("/detokenize", asks(server, native::detokenize))
        .route("/apply-template", asks(server, chat::apply_template))
        .route(
            "/tokenizer_info",
            shows_model(server, native::tokenizer_info),
        )
        .route("/props", get(queried(server, Guard::Key, native::props)))
        .route("/slots", shows_model(server, native::slots))
        .route("/slots/{id}", slots::acts_on_slot(server))
        .route("/cache", shows_model(server, native::cache))
        .route("/lora-adapters", lora::adapters(server))
        .route("/models/sse", shows(server, Guard::Key, models::changes))
        .route("/models/load", orders(server, models::load))
        .route("/models/unload", orders(server, models::unload))
        .route("/ready", shows(server, Guard::Open, status::ready))
        .route("/live", shows(server, Guard::Open, status::live))
        .route("/metrics", metrics(server))
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
            let server = Arc::clone(server);
            move |request, next| cors::share(Arc::clone(&server), request, next)
        }))
        .layer(from_fn({
            let server = Arc::clone(server);
            move |request, next| part(Arc::clone(&server), request, next)
        }))
        .layer(from_fn(read_out));
    let router = match server.options.prefix.as_str() {
        "" => router,
        prefix => behind(prefix, router),
    };
    router.layer(from_fn({
        let server = Arc::clone(server);
        move |request, next| record(Arc::clone(&server), request, next)
    }))
}

/// Logs a request once its answer has ended.
async fn record(server: Arc<Server>, request: Request, next: Next) -> Response<Body> {
    let (sink, prefix) = (&server.options.log, &server.options.prefix);
    logging::record(sink, prefix, || server.new_id("req-"), request, next).await
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

/// Closes the connection after an answer during shutdown. A client that reused the connection for
/// its next request might send it just when it is closed, and would get no answer.
async fn part(server: Arc<Server>, request: Request, next: Next) -> Response<Body> {
    let mut response = next.run(request).await;
    if server.registry.is_closing() {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

/// Routes POST requests with a JSON object to the model that they name.
fn asks<F, R>(server: &Arc<Server>, handler: F) -> MethodRouter
where
    F: Fn(Arc<App>, Caller, Value) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, ApiError>> + Send,
{
    asks_with(server, handler, ApiError::into_response, |name| name)
}

/// Does the same as [`asks`]; errors have Anthropic's format.
fn asks_as_anthropic<F, R>(server: &Arc<Server>, handler: F) -> MethodRouter
where
    F: Fn(Arc<App>, Caller, Value) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, ApiError>> + Send,
{
    asks_with(server, handler, ApiError::into_anthropic, |name| name)
        .fallback(|| async { ApiError::method().into_anthropic() })
        .layer(map_response(logging::with_anthropic_id))
}

/// Does the same as [`asks`]; names and errors have Ollama's format.
fn asks_as_ollama<F, R>(server: &Arc<Server>, handler: F) -> MethodRouter
where
    F: Fn(Arc<App>, Caller, Value) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, ApiError>> + Send,
{
    asks_with(server, handler, ApiError::into_ollama, ollama::short)
        .fallback(|| async { ApiError::method().into_ollama() })
}

/// Routes POST requests with a JSON object to the model that they name; `refuse` writes errors, and
/// `short` returns the other form of a name that is not served.
fn asks_with<F, R>(
    server: &Arc<Server>,
    handler: F,
    refuse: fn(ApiError) -> Response<Body>,
    short: fn(&str) -> &str,
) -> MethodRouter
where
    F: Fn(Arc<App>, Caller, Value) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, ApiError>> + Send,
{
    orders_with(server, refuse, move |server: Arc<Server>, order: Order| {
        let handler = handler.clone();
        async move {
            let i = server.registry.find(named_in(&order.body), short)?;
            let hold = Hold {
                loads: order.loads.unwrap_or(server.registry.limits.autoload),
                uses: true,
            };
            let app = held(&server, i, hold).await?;
            handler(app, order.caller, order.body).await
        }
    })
}

/// Holds a model for a request.
async fn held(server: &Arc<Server>, i: usize, hold: Hold) -> Result<Arc<App>, ApiError> {
    let app = server.hold(i, hold).await?;
    native::keep_props(&app, i)?;
    Ok(app)
}

/// Looks at the models that are loaded at start, so that their properties are known.
pub(crate) async fn look_at_models(server: Arc<Server>) {
    let hold = Hold {
        loads: false,
        uses: false,
    };
    for state in server.registry.status(|_| ()) {
        // one that is not loaded is looked at when it is used
        let _ = held(&server, state.i, hold).await;
    }
}

/// Returns the name of the model in a request; Ollama had another field for it.
fn named_in(body: &Value) -> Option<&str> {
    body["model"].as_str().or_else(|| body["name"].as_str())
}

/// A POST request with a JSON object.
pub(crate) struct Order {
    caller: Caller,
    body: Value,
    /// Whether a model is to be loaded for it, if it says so.
    loads: Option<bool>,
}

/// Routes POST requests with a JSON object to the server.
fn orders<F, R>(server: &Arc<Server>, handler: F) -> MethodRouter
where
    F: Fn(Arc<Server>, Value) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, ApiError>> + Send,
{
    orders_with(server, ApiError::into_response, move |server, order| {
        handler(server, order.body)
    })
}

fn orders_with<F, R>(
    server: &Arc<Server>,
    refuse: fn(ApiError) -> Response<Body>,
    handler: F,
) -> MethodRouter
where
    F: Fn(Arc<Server>, Order) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, ApiError>> + Send,
{
    let server = Arc::clone(server);
    post(move |request: Request| async move {
        let answer = async {
            let caller = check(&server, Guard::Key, &request)?;
            let loads = Query::of(&request).autoload();
            let body = read_json(request, server.options.max_body).await?;
            let order = Order {
                caller,
                body,
                loads,
            };
            handler(server, order).await
        };
        answer.await.unwrap_or_else(refuse)
    })
}

/// The query of a request.
pub(crate) struct Query(Option<String>);

impl Query {
    fn of(request: &Request) -> Query {
        Query(request.uri().query().map(str::to_owned))
    }

    /// Returns whether the request wants its model to be loaded, if it says so.
    pub(crate) fn autoload(&self) -> Option<bool> {
        let asked = self.field("autoload");
        asked.map(|value| value != "false" && value != "0")
    }

    /// Returns a field.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let mut fields = url::form_urlencoded::parse(self.0.as_deref()?.as_bytes());
        let found = fields.find(|(own, _)| own == name);
        found.map(|(_, value)| value.into_owned())
    }
}

/// Routes GET requests about the server.
fn shows<F, R>(server: &Arc<Server>, guard: Guard, handler: F) -> MethodRouter
where
    F: Fn(Arc<Server>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, ApiError>> + Send,
{
    get(queried(server, guard, move |server, _| handler(server)))
}

/// Routes requests for the metrics, in a format that the client accepts.
fn metrics(server: &Arc<Server>) -> MethodRouter {
    let server = Arc::clone(server);
    get(move |request: Request| async move {
        check(&server, Guard::Key, &request)
            .and_then(|_| status::metrics(&server, request.headers()))
            .into_response()
    })
}

/// Handles requests about the server that have a query.
fn queried<F, R>(
    server: &Arc<Server>,
    guard: Guard,
    handler: F,
) -> impl Fn(Request) -> Answer + Clone + Send + Sync + 'static
where
    F: Fn(Arc<Server>, Query) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, ApiError>> + Send,
{
    let server = Arc::clone(server);
    move |request| {
        let (server, handler) = (Arc::clone(&server), handler.clone());
        Box::pin(async move {
            let answer = match check(&server, guard, &request) {
                Ok(_) => handler(server, Query::of(&request)).await,
                Err(error) => Err(error),
            };
            answer.into_response()
        })
    }
}

/// Routes GET requests about the model that the query names. They do not count as use of it.
fn shows_model<F, R>(server: &Arc<Server>, handler: F) -> MethodRouter
where
    F: Fn(Arc<App>, Query) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, ApiError>> + Send,
{
    let server = Arc::clone(server);
    get(move |request: Request| async move {
        let answer = async move {
            check(&server, Guard::Key, &request)?;
            let query = Query::of(&request);
            let name = query.field("model");
            let i = server.registry.find(name.as_deref(), |name| name)?;
            let hold = Hold {
                loads: query.autoload().unwrap_or(server.registry.limits.autoload),
                uses: false,
            };
            handler(held(&server, i, hold).await?, query).await
        };
        answer.await.into_response()
    })
}

/// The end of a request's path, which names something, and its query.
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) query: Query,
}

/// Handles requests about what the path names.
fn named<F, R>(
    server: &Arc<Server>,
    handler: F,
) -> impl Fn(Result<Path<String>, PathRejection>, Request) -> Answer + Clone + Send + Sync + 'static
where
    F: Fn(Arc<Server>, Caller, Named) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, ApiError>> + Send,
{
    let server = Arc::clone(server);
    move |name, request| {
        let (server, handler) = (Arc::clone(&server), handler.clone());
        Box::pin(async move {
            // bytes that are not UTF-8 name nothing, which the handler reports as of any name
            let name = name.map_or_else(
                |_| char::REPLACEMENT_CHARACTER.to_string(),
                |Path(name)| name,
            );
            let query = Query::of(&request);
            let named = Named { name, query };
            let answer = match check(&server, Guard::Key, &request) {
                Ok(caller) => handler(server, caller, named).await,
                Err(error) => Err(error),
            };
            answer.into_response()
        })
    }
}

/// The answer to a request, once it is there.
type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

fn check(server: &Server, guard: Guard, request: &Request) -> Result<Caller, ApiError> {
    match guard {
        // health checks may use any host name: they see nothing worth protecting
        Guard::Open => Ok(Caller::default()),
        Guard::Key => {
            auth::check_origin(&server.options, request.headers())?;
            auth::caller(&server.options, request.headers())
        }
    }
}
