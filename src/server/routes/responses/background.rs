//! Responses that are computed without their client, who fetches them later.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use octavo_engine::{Event, Request};

use super::writer::ResponseWriter;
use crate::app::App;
use crate::error::ApiError;
use crate::http::json_response;
use crate::routes::converted::AnswerWriter;
use crate::work::{Update, Work};

/// Begins the work on a response, and answers with the response so far.
pub(super) fn begin(
    app: &Arc<App>,
    request: Request,
    mut writer: ResponseWriter,
) -> Result<Response<Body>, ApiError> {
    let mut work = Work::begin(app, vec![request])?;
    let (id, response) = writer.begin_in_background();
    let task = tokio::spawn({
        let (app, id) = (Arc::clone(app), id.clone());
        async move {
            while let Some(Update { event, .. }) = work.next().await {
                let has_failed = matches!(event, Event::Failed(_));
                writer.take(event);
                writer.drain();
                if has_failed {
                    break;
                }
            }
            app.server.responses.finish(&id, &writer.whole());
        }
    });
    app.server.responses.runs(&id, task.abort_handle());
    Ok(json_response(&response))
}
