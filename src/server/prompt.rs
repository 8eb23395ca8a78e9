//! Prompts: texts or token ids, and fields that apply to each.

use octavo_engine::ImageHandle;
use octavo_text::tokenizer::EncodeOptions;
use serde_json::Value;

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, token_id};

/// Most prompts in one request.
pub(crate) const MAX_PROMPTS: usize = 64;

/// Most ids in a prompt: no context is longer.
const MAX_IDS: usize = 1 << 22;

/// Reads a field that is a string, a list of ids, a list of ids and strings (one prompt, as in
/// llama-server), an object with a text, or a list of at most `most` of these, as tokens.
pub(crate) fn prompts(
    app: &App,
    fields: &Fields<'_>,
    name: &str,
    most: usize,
    options: EncodeOptions,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let value = fields.need(name, fields.get(name))?;
    let expected = "a string, a list of token ids, or a list of strings or such lists";
    let list = match value {
        Value::String(_) | Value::Object(_) => {
            return Ok(vec![one(app, fields, name, value, options)?]);
        }
        Value::Array(list) => list,
        _ => return Err(fields.wrong(name, expected)),
    };
    if list.is_empty() {
        return Err(fields.wrong(name, "at least one prompt"));
    }
    if list.iter().any(Value::is_number) {
        return Ok(vec![one(app, fields, name, value, options)?]);
    }
    if list.len() > most {
        return Err(fields.wrong(name, &format!("at most {most} prompts")));
    }
    list.iter()
        .map(|value| one(app, fields, name, value, options))
        .collect()
}

/// A prompt and the images in it.
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    pub(crate) images: Vec<ImageHandle>,
}

impl Prompt {
    /// Returns a prompt without images.
    pub(crate) fn of_text(tokens: Vec<u32>) -> Prompt {
        Prompt {
            tokens,
            images: Vec::new(),
        }
    }
}

/// Reads one prompt of the field `name`.
pub(crate) fn one(
    app: &App,
    fields: &Fields<'_>,
    name: &str,
    value: &Value,
    options: EncodeOptions,
) -> Result<Vec<u32>, ApiError> {
    let n_vocab = app.n_vocab();
    let tokens = match value {
        Value::String(text) => {
            check_bytes(app, text)?;
            app.tokenizer().encode(text.as_bytes(), options)?
        }
        Value::Array(pieces) if pieces.len() <= MAX_IDS => {
            let mut ids = Vec::with_capacity(pieces.len());
            for (i, piece) in pieces.iter().enumerate() {
                match (piece, token_id(piece, n_vocab)) {
                    (_, Some(id)) => ids.push(id),
                    (Value::String(text), None) => {
                        check_bytes(app, text)?;
                        let options = EncodeOptions {
                            add_special: options.add_special && i == 0,
                            ..options
                        };
                        ids.extend(app.tokenizer().encode(text.as_bytes(), options)?);
                    }
                    _ => return Err(fields.wrong(name, &format!("token ids below {n_vocab}"))),
                }
                if ids.len() > MAX_IDS {
                    return Err(ApiError::too_long(ids.len(), app.n_ctx()));
                }
            }
            ids
        }
        Value::Object(_) => {
            let text = text_of(value, &format!("{name}."))?;
            check_bytes(app, &text)?;
            app.tokenizer().encode(text.as_bytes(), options)?
        }
        _ => return Err(fields.wrong(name, "a string or a list of token ids")),
    };
    if tokens.is_empty() {
        return Err(fields.wrong(name, "a prompt with at least one token"));
    }
    Ok(tokens)
}

/// Reads llama-server's objects in place of a text: `{"prompt_string": text}`, or `{"content":
/// parts}` with parts of text as in a message.
fn text_of(value: &Value, path: &str) -> Result<String, ApiError> {
    const MAX_PARTS: usize = 1024;
    let object = Fields::at(value, path)?;
    if object
        .list("multimodal_data", MAX_PARTS)?
        .is_some_and(|data| !data.is_empty())
    {
        return Err(object.wrong("multimodal_data", "no images: this model takes none"));
    }
    if let Some(text) = object.str("prompt_string")? {
        return Ok(text.to_owned());
    }
    let parts = object.need("content", object.list("content", MAX_PARTS)?)?;
    let mut whole = String::new();
    for (i, part) in parts.iter().enumerate() {
        let path = format!("{path}content[{i}].");
        let part = Fields::at(part, &path)?;
        match part.str("type")? {
            Some("text") => whole.push_str(part.need("text", part.str("text")?)?),
            _ => return Err(part.wrong("type", "text")),
        }
    }
    Ok(whole)
}

/// Refuses a text that exceeds the context under any tokenization, without tokenizing it: that
/// would take long and delay others.
pub(crate) fn check_bytes(app: &App, text: &str) -> Result<(), ApiError> {
    match app.most_bytes() {
        Some(most) if text.len() > most => {
            Err(ApiError::too_many_bytes(text.len(), most, app.n_ctx()))
        }
        _ => Ok(()),
    }
}

/// Refuses a prompt that leaves no room for a generated token.
pub(crate) fn check_length(app: &App, tokens: &[u32]) -> Result<(), ApiError> {
    let n_ctx = app.n_ctx();
    if tokens.len() >= n_ctx {
        return Err(ApiError::too_long(tokens.len(), n_ctx));
    }
    Ok(())
}

/// Returns the slot that a request names, whose pages can be saved.
pub(crate) fn slot(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    Ok(fields.limit("id_slot", 0)?.flatten())
}

/// Returns the salt that separates this request's cached prompts from others': its own salt, and
/// its API key if there are several.
pub(crate) fn salt(fields: &Fields<'_>, key: Option<&str>) -> Result<Option<String>, ApiError> {
    const MAX_BYTES: usize = 256;
    let own = fields.str("cache_salt")?;
    if own.is_some_and(|salt| salt.len() > MAX_BYTES) {
        return Err(fields.wrong("cache_salt", &format!("at most {MAX_BYTES} bytes")));
    }
    // not a plain concatenation, which two different pairs could share
    Ok(match (key, own) {
        (None, None) => None,
        (key, own) => Some(format!("{key:?} {own:?}")),
    })
}
