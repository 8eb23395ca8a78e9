//! `/tokenize`, `/detokenize` and `/tokenizer_info`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use octavo_text::tokenizer::EncodeOptions;
use serde_json::{Value, json};

use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::json_response;
use crate::routes::Query;
use crate::wire;

/// `/tokenize`: accepts llama-server's and vLLM's fields, and answers with both.
pub(crate) async fn tokenize(
    app: Arc<App>,
    _caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let answer = app.work(move |app| {
        let fields = Fields::of(&body)?;
        let (text, is_vllm) = match fields.str("content")? {
            Some(text) => (text.to_owned(), false),
            None if fields.get("messages").is_some() => {
                let asked = crate::routes::conversation::read(app, &fields)?;
                (
                    crate::routes::chat::rendered::render(app, &asked)?.prompt,
                    true,
                )
            }
            None => (
                fields.need("content", fields.str("prompt")?)?.to_owned(),
                true,
            ),
        };
        let add_special = match fields.bool("add_special")? {
            Some(add) => Some(add),
            None => fields.bool("add_special_tokens")?,
        };
        let from_template = fields.get("messages").is_some();
        let options = EncodeOptions {
            add_special: add_special.unwrap_or(is_vllm && !from_template),
            parse_special: fields.bool("parse_special")?.unwrap_or(true),
        };
        let ids = app.tokenizer().encode(text.as_bytes(), options)?;
        let with_pieces = fields.bool("with_pieces")?.unwrap_or(false);
        let tokens: Value = match with_pieces {
            false => json!(ids),
            true => ids.iter().map(|&id| piece(app, id)).collect(),
        };
        Ok(json!({
            "tokens": tokens,
            "count": ids.len(),
            "max_model_len": app.n_ctx(),
        }))
    });
    Ok(json_response(&answer.await?))
}

fn piece(app: &App, id: u32) -> Value {
    let bytes = wire::bytes(app.tokenizer(), id);
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({ "id": id, "piece": text }),
        Err(_) => json!({ "id": id, "piece": bytes }),
    }
}

/// `/detokenize`: returns the text of token ids.
pub(crate) async fn detokenize(
    app: Arc<App>,
    _caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let answer = app.work(move |app| {
        let fields = Fields::of(&body)?;
        let ids = fields.ids("tokens", 1 << 22, app.n_vocab())?;
        let ids = fields.need("tokens", ids)?;
        let text = app.tokenizer().decode(&ids, true);
        let text = String::from_utf8_lossy(&text);
        Ok(json!({ "content": text, "prompt": text }))
    });
    Ok(json_response(&answer.await?))
}

/// `/tokenizer_info`: returns the facts that evaluation harnesses need of a remote tokenizer.
pub(crate) async fn tokenizer_info(app: Arc<App>, _: Query) -> Result<Response<Body>, ApiError> {
    let name = |id: Option<u32>| id.map(|id| wire::text(app.tokenizer(), id));
    let tokenizer = app.tokenizer();
    Ok(json_response(&json!({
        "bos_token": name(tokenizer.bos()),
        "eos_token": name(tokenizer.eos()),
        "pad_token": name(tokenizer.pad()),
        "unk_token": name(tokenizer.unk()),
        "chat_template": app.template.as_ref().map(|template| template.source()),
        "vocab_size": app.n_vocab(),
        "tokenizer_class": tokenizer.model_name(),
    })))
}
