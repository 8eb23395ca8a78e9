//! Route of actions on a slot.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, post};
use serde_json::{Map, Value};

use super::{Guard, Query, check, held, named_in, native};
use crate::http::read_json;
use crate::registry::Hold;
use crate::server::Server;

/// Routes actions on a slot of the model that the query or the body names.
pub(super) fn acts_on_slot(server: &Arc<Server>) -> MethodRouter {
    let server = Arc::clone(server);
    post(
        move |id: Result<Path<String>, PathRejection>, request: Request| async move {
            let answer = async {
                // bytes that are not UTF-8 are no number either
                let id = id.map_or_else(|_| String::new(), |Path(id)| id);
                let caller = check(&server, Guard::Key, &request)?;
                let query = Query::of(&request);
                let (action, name) = (query.field("action"), query.field("model"));
                let body = match action.as_deref() {
                    // it takes none
                    Some("erase") => Value::Object(Map::new()),
                    _ => read_json(request, server.options.max_body).await?,
                };
                let name = name.as_deref().or_else(|| named_in(&body));
                let hold = Hold {
                    loads: server.registry.limits.autoload,
                    uses: true,
                };
                let i = server.registry.find(name, |name| name)?;
                let app = held(&server, i, hold).await?;
                native::act_on_slot(app, caller, (id, action), body).await
            };
            answer.await.into_response()
        },
    )
}
