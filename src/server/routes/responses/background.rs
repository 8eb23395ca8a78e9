//! Responses that are computed without their client, who fetches them later, or streams them now
//! and perhaps again.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use octavo_engine::{Event, Request};

use super::writer::ResponseWriter;
use crate::app::App;
use crate::error::ApiError;
use crate::http::json_response;
use crate::routes::converted::AnswerWriter;
use crate::sse;
use crate::stored::EventLog;
use crate::work::{Update, Work};

/// Begins the work on a response, and answers with the response so far, or with its events.
pub(super) fn begin(
    app: &Arc<App>,
    request: Request,
    stream: bool,
    mut writer: ResponseWriter,
) -> Result<Response<Body>, ApiError> {
    let mut work = Work::begin(app, vec![request])?;
    let events = stream.then(|| Arc::new(EventLog::new()));
    let (id, response) = writer.begin_in_background(events.clone());
    let answer = match &events {
        Some(events) => {
            events.push(&writer.drain());
            sse::response(events.from(0))
        }
        None => json_response(&response),
    };
    let task = tokio::spawn({
        let (app, id) = (Arc::clone(app), id.clone());
        async move {
            while let Some(Update { event, .. }) = work.next().await {
                let has_failed = matches!(event, Event::Failed(_));
                writer.take(event);
                let messages = writer.drain();
                if let Some(events) = &events {
                    events.push(&messages);
                }
                if has_failed {
                    break;
                }
            }
            app.server.responses.finish(&id, &writer.whole());
        }
    });
    app.server.responses.runs(&id, task.abort_handle());
    Ok(answer)
}
