//! `POST /slots/{id}`: saves and restores the pages of a slot, as llama-server does.
//!
//! Requests share one cache, so a slot is the last text of the requests that named it by `id_slot`,
//! or of those that had the lowest free number. Full pages are saved, of 16 tokens each.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::Response;
use octavo_engine::{Batch, SlotError, SlotPages};
use serde_json::{Value, json};

use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::json_response;
use crate::prompt::salt;

/// Longest name of a file in bytes.
const MAX_NAME: usize = 255;

/// Does what the query's `action` says with a slot.
pub(crate) async fn act(
    app: Arc<App>,
    caller: Caller,
    (id, action): (String, Option<String>),
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let Some(folder) = app.server.options.slot_folder.clone() else {
        let message = "this server was started without a folder for slots";
        return Err(ApiError::not_supported(message));
    };
    let slots = app.engine.sequences();
    let slot = id.parse().ok().filter(|slot| *slot < slots);
    let slot: usize = slot.ok_or_else(|| {
        ApiError::bad_request(format!("slot {id}: expected a number below {slots}"))
    })?;
    let answer = app.work(move |app| {
        let fields = Fields::of(&body)?;
        let salt = salt(&fields, caller.salt())?;
        match action.as_deref() {
            Some("save") => save(app, slot, salt, &fields, folder),
            Some("restore") => restore(app, slot, salt, &fields, folder),
            Some("erase") => {
                let erase = move |batch: &mut Batch| batch.erase_slot(slot, salt.as_deref());
                let erased = app.handle.run(erase)?;
                Ok(json!({ "id_slot": slot, "n_erased": erased }))
            }
            _ => Err(ApiError::bad_request(
                "action: expected save, restore or erase in the query",
            )),
        }
    });
    Ok(json_response(&answer.await?))
}

fn save(
    app: &App,
    slot: usize,
    salt: Option<String>,
    fields: &Fields<'_>,
    folder: PathBuf,
) -> Result<Value, ApiError> {
    let start = Instant::now();
    let name = file_name(fields)?;
    let pages = move |batch: &mut Batch| batch.slot_pages(slot, salt.as_deref());
    let pages = app
        .handle
        .run(pages)?
        .map_err(|error| refused(&name, &error))?;
    let written = pages.write(&folder.join(&name));
    Ok(json!({
        "id_slot": slot,
        "filename": name,
        "n_saved": pages.n_tokens(),
        "n_written": written.map_err(|error| refused(&name, &error))?,
        "timings": { "save_ms": milliseconds(start) },
    }))
}

fn restore(
    app: &App,
    slot: usize,
    salt: Option<String>,
    fields: &Fields<'_>,
    folder: PathBuf,
) -> Result<Value, ApiError> {
    let start = Instant::now();
    let name = file_name(fields)?;
    let read = app.engine.read_slot(&folder.join(&name));
    let (pages, bytes): (SlotPages, u64) = read.map_err(|error| refused(&name, &error))?;
    let put = move |batch: &mut Batch| batch.put_slot(slot, salt.as_deref(), &pages);
    let restored = app.handle.run(put)?;
    Ok(json!({
        "id_slot": slot,
        "filename": name,
        "n_restored": restored.map_err(|error| refused(&name, &error))?,
        "n_read": bytes,
        "timings": { "restore_ms": milliseconds(start) },
    }))
}

fn milliseconds(start: Instant) -> f64 {
    (start.elapsed().as_secs_f64() * 1e6).round() / 1e3
}

fn refused(name: &str, error: &SlotError) -> ApiError {
    match error {
        SlotError::Unsupported => ApiError::not_supported(error.to_string()),
        SlotError::Empty => ApiError::bad_request(error.to_string()),
        SlotError::Io(source) if source.kind() != std::io::ErrorKind::NotFound => {
            ApiError::server(format!("{name}: {error}"))
        }
        _ => ApiError::bad_field("filename", format!("{name}: {error}")),
    }
}

/// Reads the name of a file: one name, without any path, that all systems can have.
fn file_name(fields: &Fields<'_>) -> Result<String, ApiError> {
    let name = fields.need("filename", fields.str("filename")?)?;
    let is_bad = |c: char| c.is_control() || "/\\:*?\"<>|\u{fffd}".contains(c);
    let ends = |c: char| name.starts_with(c) || name.ends_with(c);
    let is_plain = !name.is_empty()
        && name.len() <= MAX_NAME
        && !name.contains(is_bad)
        && !ends(' ')
        && !ends('.');
    match is_plain {
        true => Ok(name.to_owned()),
        false => Err(ApiError::bad_field(
            "filename",
            "expected the name of a file, without a path",
        )),
    }
}
