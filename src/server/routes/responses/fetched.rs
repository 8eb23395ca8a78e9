//! `/v1/responses/ID`: stored responses, fetched, cancelled and deleted.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json};

use crate::auth::Caller;
use crate::error::ApiError;
use crate::http::json_response;
use crate::routes::Named;
use crate::server::Server;
use crate::sse;
use crate::stored::Stored;

/// Returns a stored response of this caller.
fn stored(server: &Server, caller: &Caller, id: &str) -> Result<Stored, ApiError> {
    let found = server.responses.get(id, caller.salt());
    found.ok_or_else(|| ApiError::not_found("there is no such response: it may be forgotten"))
}

/// Returns the response, or the events of one that was streamed from the background: those after
/// `starting_after`, and the others as they come.
pub(crate) async fn get(
    server: Arc<Server>,
    caller: Caller,
    named: Named,
) -> Result<Response<Body>, ApiError> {
    let stored = stored(&server, &caller, &named.name)?;
    let is_streamed = match named.query.field("stream").as_deref() {
        None | Some("" | "false" | "0") => false,
        Some("true" | "1") => true,
        Some(_) => return Err(ApiError::bad_field("stream", "expected true or false")),
    };
    let after = named
        .query
        .field("starting_after")
        .map(|n| n.parse::<usize>());
    let after = after.transpose().map_err(|_| {
        let message = "expected the sequence_number of an event";
        ApiError::bad_field("starting_after", message)
    })?;
    if !is_streamed {
        return match after {
            Some(_) => Err(ApiError::bad_field(
                "starting_after",
                "expected stream=true beside it",
            )),
            None => Ok(json_response(&stored.response())),
        };
    }
    let events = stored.events.ok_or_else(|| {
        let message = "expected a response in the background that was streamed from the beginning, \
                       by this server since its start";
        ApiError::bad_field("stream", message)
    })?;
    Ok(sse::response(
        events.from(after.map_or(0, |n| n.saturating_add(1))),
    ))
}

/// Lists the items before the answer, the last one first.
pub(crate) async fn input_items(
    server: Arc<Server>,
    caller: Caller,
    Named { name: id, .. }: Named,
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
    Named { name: id, .. }: Named,
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
    Named { name: id, .. }: Named,
) -> Result<Response<Body>, ApiError> {
    if !server.responses.remove(&id, caller.salt()) {
        return Err(ApiError::not_found("there is no such response"));
    }
    Ok(json_response(
        &json!({ "id": id, "object": "response", "deleted": true }),
    ))
}
