//! Images of requests: from data URLs and fetched files to image tokens of prompts.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE};
use octavo_engine::ImageHandle;
use serde_json::Value;

use crate::app::App;
use crate::error::ApiError;
use crate::fetch::{self, Fetched, ImageUrl};
use crate::fields::Fields;
use crate::prompt::check_bytes;
use crate::routes::conversation::{self, Asked, Image};

/// Most images in one request.
pub(crate) const MAX_IMAGES: usize = 64;

/// Encodes the images of a conversation, if there are any and the model has vision.
pub(crate) async fn see(app: &Arc<App>, body: &Arc<Value>) -> Result<Vec<ImageHandle>, ApiError> {
    if app.options.encoder_cache.is_none() || !has_images(body) {
        return Ok(Vec::new());
    }
    let fetched = fetch(app, body).await?;
    let body = Arc::clone(body);
    app.look(move |app| register(app, &body, fetched.as_ref()))
        .await
}

/// Does the same as [`see`] on this thread, and fetches nothing.
pub(crate) fn see_here(app: &App, body: &Value) -> Result<Vec<ImageHandle>, ApiError> {
    match app.options.encoder_cache.is_some() && has_images(body) {
        true => register(app, body, None),
        false => Ok(Vec::new()),
    }
}

/// Place of an image in the text of llama-server's `{"prompt_string": text, "multimodal_data":
/// [base64, …]}`.
pub(crate) const MEDIA_MARKER: &str = "<__media__>";

/// Encodes the images of such a prompt, if it is one and images are accepted.
pub(crate) async fn see_prompt(
    app: &Arc<App>,
    body: &Arc<Value>,
) -> Result<Vec<ImageHandle>, ApiError> {
    let data = body["prompt"]["multimodal_data"].as_array();
    if app.options.encoder_cache.is_none() || data.is_none_or(Vec::is_empty) {
        return Ok(Vec::new());
    }
    let body = Arc::clone(body);
    app.look(move |app| {
        let object = Fields::at(&body["prompt"], "prompt.")?;
        let data = object
            .strings("multimodal_data", MAX_IMAGES)?
            .unwrap_or_default();
        let image = |(i, url): (usize, &String)| {
            let field = format!("prompt.multimodal_data[{i}]");
            register_one(app, &Image { field, url }, None)
        };
        data.iter().enumerate().map(image).collect()
    })
    .await
}

/// Tokenizes such a prompt.
pub(crate) fn prompt(
    app: &App,
    body: &Value,
    images: &[ImageHandle],
) -> Result<Vec<u32>, ApiError> {
    let object = Fields::at(&body["prompt"], "prompt.")?;
    let text = object.need("prompt_string", object.str("prompt_string")?)?;
    check_bytes(app, text)?;
    let marker = app.marker().unwrap_or(MEDIA_MARKER);
    let text = text.replace(MEDIA_MARKER, marker);
    let tokens = octavo_vision::prompt::tokens(app.tokenizer(), text.as_bytes(), marker, images);
    tokens.map_err(|error| ApiError::bad_field("prompt.multimodal_data", error.to_string()))
}

/// Encodes the images of a conversation, in order.
fn register(
    app: &App,
    body: &Value,
    fetched: Option<&Fetched>,
) -> Result<Vec<ImageHandle>, ApiError> {
    let asked = read(app, body)?;
    let images = asked.images.iter();
    images
        .map(|image| register_one(app, image, fetched))
        .collect()
}

/// Fetches the conversation's remote images, if that is enabled.
async fn fetch(app: &Arc<App>, body: &Arc<Value>) -> Result<Option<Fetched>, ApiError> {
    let Some(fetcher) = &app.fetcher else {
        return Ok(None);
    };
    let body = Arc::clone(body);
    let urls = app.work(move |app| {
        let images = read(app, &body)?.images.into_iter();
        let remote = images.filter(|image| fetch::is_remote(image.url));
        let urls = remote.map(|image| ImageUrl {
            field: image.field,
            url: image.url.to_owned(),
        });
        Ok(urls.collect::<Vec<_>>())
    });
    let urls = urls.await?;
    match urls[..] {
        [] => Ok(None),
        _ => fetcher.all(&urls).await.map(Some),
    }
}

/// Reads a conversation; refuses too many images.
fn read<'a>(app: &App, body: &'a Value) -> Result<Asked<'a>, ApiError> {
    let asked = conversation::read(app, &Fields::of(body)?)?;
    if asked.images.len() > MAX_IMAGES {
        let message = format!("expected at most {MAX_IMAGES} images");
        return Err(ApiError::bad_field("messages", message));
    }
    Ok(asked)
}

/// Returns whether messages may have images; a cheap check without false negatives.
fn has_images(body: &Value) -> bool {
    let messages = body["messages"].as_array();
    let parts = messages.into_iter().flatten();
    let mut parts = parts
        .filter_map(|message| message["content"].as_array())
        .flatten();
    parts.any(|part| part["type"] != "text")
}

fn register_one(
    app: &App,
    image: &Image<'_>,
    fetched: Option<&Fetched>,
) -> Result<ImageHandle, ApiError> {
    let wrong = |why: String| ApiError::bad_field(image.field.clone(), why);
    let bytes = match fetched.and_then(|fetched| fetched.file(image.url)) {
        Some(file) => Cow::Borrowed(file),
        None => Cow::Owned(bytes(image.url).map_err(|why| wrong(why.to_owned()))?),
    };
    let encoder_cache = app
        .options
        .encoder_cache
        .as_ref()
        .expect("images are taken");
    encoder_cache
        .register(&bytes)
        .map_err(|error| wrong(error.to_string()))
}

/// Decodes a data URL, or bare base64.
fn bytes(url: &str) -> Result<Vec<u8>, &'static str> {
    const EXPECTED: &str = "expected a data URL with the image in base64; others are fetched \
                            only by servers that were started with hosts to fetch images from";
    let data = match url.split_once(',') {
        Some((head, data)) if head.starts_with("data:") => {
            if !head.ends_with(";base64") {
                return Err(EXPECTED);
            }
            data
        }
        _ if url.contains(':') => return Err(EXPECTED),
        _ => url,
    };
    let data = data.trim();
    let decoded = STANDARD
        .decode(data)
        .or_else(|_| STANDARD_NO_PAD.decode(data))
        .or_else(|_| URL_SAFE.decode(data));
    decoded.map_err(|_| "expected base64")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_bytes() {
        for url in ["data:image/png;base64,AQID", "AQID", "data:;base64,AQID"] {
            assert_eq!(bytes(url), Ok(vec![1, 2, 3]), "{url}");
        }
        assert_eq!(bytes("data:image/png;base64,AQ"), Ok(vec![1]));
        for url in [
            "https://example.org/a.png",
            "file:///etc/passwd",
            "data:image/png,abc",
            "data:image/png;base64,%",
            "no base64!",
        ] {
            assert!(bytes(url).is_err(), "{url}");
        }
    }
}
