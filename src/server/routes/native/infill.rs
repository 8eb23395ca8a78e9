//! `/infill`: fill-in-the-middle, used by editors.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use octavo_text::tokenizer::EncodeOptions;
use serde_json::Value;

use super::{answer, prepare};
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::prompt::{Prompt, check_bytes};

/// Most extra texts in a request.
const MAX_EXTRA: usize = 1024;

/// Most tokens before and after the gap, for contexts at least twice as long.
const MAX_NEAR: usize = 2048;

/// Separator of the extra texts if the vocabulary has no token for it.
const SEPARATOR: &str = "\n\n--- snippet ---\n\n";

/// `/infill`: generates the text between `input_prefix` followed by `prompt`, and `input_suffix`.
/// The texts of `input_extra` come first, in the repository format of models trained with one.
pub(crate) async fn infill_route(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let prepared = app.work(move |app| {
        let fields = Fields::of(&body)?;
        let encode = |name: &str, parse_special: bool| -> Result<Vec<u32>, ApiError> {
            let text = fields.str(name)?.unwrap_or_default();
            tokens(app, text, parse_special)
        };
        let mut prefix = encode("input_prefix", false)?;
        let mut suffix = encode("input_suffix", false)?;
        let more = encode("prompt", true)?;
        let mut extra = extra(app, &fields)?;
        // three quarters of these tokens go to the prefix and one to the suffix, as in llama-server
        let near = MAX_NEAR.min(app.n_ctx() / 2);
        prefix.drain(..prefix.len().saturating_sub(3 * (near / 4)));
        suffix.truncate((near / 4).saturating_sub(2 + more.len()));
        prefix.extend(more);
        extra.drain(
            ..extra
                .len()
                .saturating_sub(app.n_ctx().saturating_sub(2 * near)),
        );
        let prompt = around(app, extra, &prefix, &suffix)?;
        prepare(app, &caller, &fields, vec![Prompt::of_text(prompt)])
    });
    answer(&app, prepared.await?).await
}

fn tokens(app: &App, text: &str, parse_special: bool) -> Result<Vec<u32>, ApiError> {
    check_bytes(app, text)?;
    let options = EncodeOptions {
        add_special: false,
        parse_special,
    };
    Ok(app.tokenizer().encode(text.as_bytes(), options)?)
}

/// Tokenizes `input_extra`, with file names between the texts if the vocabulary has tokens for
/// them.
fn extra(app: &App, fields: &Fields<'_>) -> Result<Vec<u32>, ApiError> {
    let special = app.tokenizer().special();
    let mut all: Vec<u32> = Vec::new();
    if let Some(repository) = special.fim_rep {
        all.push(repository);
        all.extend(tokens(app, "myproject\n", false)?);
    }
    let texts = fields.list("input_extra", MAX_EXTRA)?.unwrap_or_default();
    for (i, value) in texts.iter().enumerate() {
        let path = format!("input_extra[{i}].");
        let one = Fields::at(value, &path)?;
        let text = one.need("text", one.str("text")?)?;
        let name = one.str("filename")?.unwrap_or("tmp");
        match special.fim_sep {
            Some(separator) => {
                all.push(separator);
                all.extend(tokens(app, &format!("{name}\n"), false)?);
            }
            None => all.extend(tokens(app, SEPARATOR, false)?),
        }
        all.extend(tokens(app, text, false)?);
        let most = app.n_ctx().saturating_mul(4);
        // drop the text farthest from the gap
        all.drain(..all.len().saturating_sub(most));
    }
    if let Some(separator) = special.fim_sep {
        all.push(separator);
        all.extend(tokens(app, "filename\n", false)?);
    }
    Ok(all)
}

/// Builds a prompt that asks for the text between a prefix and a suffix.
pub(crate) fn infill(app: &App, prefix: &[u32], suffix: &str) -> Result<Vec<u32>, ApiError> {
    let suffix = app
        .tokenizer()
        .encode(suffix.as_bytes(), EncodeOptions::PIECE)?;
    let bos = app.tokenizer().bos().filter(|_| app.tokenizer().add_bos());
    let prefix = match (bos, prefix.first()) {
        (Some(bos), Some(first)) if *first == bos => &prefix[1..],
        _ => prefix,
    };
    around(app, Vec::new(), prefix, &suffix)
}

/// Builds the prompt: extra texts, text before the gap, text after it.
fn around(
    app: &App,
    mut prompt: Vec<u32>,
    prefix: &[u32],
    suffix: &[u32],
) -> Result<Vec<u32>, ApiError> {
    let special = app.tokenizer().special();
    let (Some(pre), Some(suf), Some(mid)) = (special.fim_pre, special.fim_suf, special.fim_mid)
    else {
        let message = "this model's vocabulary has no tokens to fill in the middle of a text";
        return Err(ApiError::bad_field("suffix", message));
    };
    prompt.extend(app.tokenizer().bos().filter(|_| app.tokenizer().add_bos()));
    prompt.push(pre);
    prompt.extend_from_slice(prefix);
    prompt.push(suf);
    prompt.extend_from_slice(suffix);
    prompt.push(mid);
    Ok(prompt)
}
