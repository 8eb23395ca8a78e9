//! `/v1/responses/ID`: stored responses, fetched, cancelled and deleted.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json};

use crate::auth::Caller;
use crate::error::ApiError;
use crate::http::json_response;
use crate::server::Server;
use crate::stored::Stored;

/// Returns a stored response of this caller.
fn stored(server: &Server, caller: &Caller, id: &str) -> Result<Stored, ApiError> {
    let found = server.responses.get(id, caller.salt());
    found.ok_or_else(|| ApiError::not_found("there is no such response: it may be forgotten"))
}

/// Returns the response.
pub(crate) async fn get(
    server: Arc<Server>,
    caller: Caller,
    id: String,
) -> Result<Response<Body>, ApiError> {
    Ok(json_response(&stored(&server, &caller, &id)?.response()))
}

/// Lists the items before the answer, the last one first.
pub(crate) async fn input_items(
    server: Arc<Server>,
    caller: Caller,
    id: String,
) -> Result<Response<Body>, ApiError> {
    let items = stored(&server, &caller, &id)?
        .input()
        .into_iter()
        .enumerate();
    let identified = items.rev().map(|(i, mut item)| {
        if item["id"].is_null() && item.is_object() {
            item["id"] = json!(format!("item_{i}"));
        }
        item
    });
    let data: Vec<Value> = identified.collect();
    let id_of = |item: Option<&Value>| item.map(|item| item["id"].clone());
    Ok(json_response(&json!({
        "object": "list",
        "first_id": id_of(data.first()),
        "last_id": id_of(data.last()),
        "has_more": false,
        "data": data,
    })))
}

/// Stops the work on a response that runs in the background.
pub(crate) async fn cancel(
    server: Arc<Server>,
    caller: Caller,
    id: String,
) -> Result<Response<Body>, ApiError> {
    let stored = stored(&server, &caller, &id)?;
    let mut response = stored.response();
    if let Some(work) = stored.work {
        work.abort();
        response["status"] = json!("cancelled");
        // the work may have ended just before
        if let Some(stored) = server.responses.finish(&id, &response) {
            response = stored;
        }
    } else if response["background"] != true {
        let message = "only a response in the background can be cancelled";
        return Err(ApiError::bad_request(message));
    }
    Ok(json_response(&response))
}

/// Forgets a response.
pub(crate) async fn delete(
    server: Arc<Server>,
    caller: Caller,
    id: String,
) -> Result<Response<Body>, ApiError> {
    if !server.responses.remove(&id, caller.salt()) {
        return Err(ApiError::not_found("there is no such response"));
    }
    Ok(json_response(
        &json!({ "id": id, "object": "response", "deleted": true }),
    ))
}
