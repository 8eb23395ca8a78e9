//! Images of requests: from data URLs and fetched files to image tokens of prompts.

mod folder;

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE};
use octavo_engine::ImageHandle;
use octavo_text::tokenizer::EncodeOptions;
use serde_json::Value;

use crate::app::App;
use crate::error::ApiError;
use crate::fetch::{self, Fetched, ImageUrl};
use crate::fields::Fields;
use crate::prompt::{self, Prompt, check_bytes};
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

/// Encodes the images of such prompts in a field, which has one or a list of them: a list of images
/// for each prompt, and no list at all if there are no images or none are accepted.
pub(crate) async fn see_prompts(
    app: &Arc<App>,
    body: &Arc<Value>,
    name: &'static str,
) -> Result<Vec<Vec<ImageHandle>>, ApiError> {
    let has_images = |prompt: &Value| {
        let data = prompt["multimodal_data"].as_array();
        data.is_some_and(|data| !data.is_empty())
    };
    if app.options.encoder_cache.is_none() || !each(&body[name]).iter().any(has_images) {
        return Ok(Vec::new());
    }
    let body = Arc::clone(body);
    app.look(move |app| {
        let mut left = MAX_IMAGES;
        let see = |(at, prompt): (usize, &Value)| {
            let images = if has_images(prompt) {
                register_prompt(app, prompt, &path_of(&body[name], name, at), left)?
            } else {
                Vec::new()
            };
            left -= images.len();
            Ok(images)
        };
        each(&body[name]).iter().enumerate().map(see).collect()
    })
    .await
}

/// Returns the prompts of a field: the elements of a list, or the one that it is.
fn each(value: &Value) -> &[Value] {
    match value {
        Value::Array(prompts) => prompts,
        prompt => std::slice::from_ref(prompt),
    }
}

/// Returns the path of the fields of a prompt, such as `input[1].`.
fn path_of(value: &Value, name: &str, at: usize) -> String {
    match value {
        Value::Array(_) => format!("{name}[{at}]."),
        _ => format!("{name}."),
    }
}

/// Encodes the images of one prompt.
fn register_prompt(
    app: &App,
    prompt: &Value,
    path: &str,
    most: usize,
) -> Result<Vec<ImageHandle>, ApiError> {
    let data = Fields::at(prompt, path)?.strings("multimodal_data", most)?;
    let image = |(i, url): (usize, &String)| {
        let field = format!("{path}multimodal_data[{i}]");
        register_one(app, &Image { field, url }, None)
    };
    data.iter().flatten().enumerate().map(image).collect()
}

/// Tokenizes prompts of which some have the images that [`see_prompts`] encoded.
pub(crate) fn prompts(
    app: &App,
    fields: &Fields<'_>,
    name: &str,
    most: usize,
    images: Vec<Vec<ImageHandle>>,
) -> Result<Vec<Prompt>, ApiError> {
    if images.is_empty() {
        let prompts = prompt::prompts(app, fields, name, most, EncodeOptions::PROMPT)?;
        return Ok(prompts.into_iter().map(Prompt::of_text).collect());
    }
    let all = fields.need(name, fields.get(name))?;
    if images.len() > most {
        return Err(fields.wrong(name, &format!("at most {most} prompts")));
    }
    let read = |(at, (value, images)): (usize, (&Value, Vec<ImageHandle>))| {
        let tokens = if images.is_empty() {
            prompt::one(app, fields, name, value, EncodeOptions::PROMPT)?
        } else {
            with_images(app, value, &path_of(all, name, at), &images)?
        };
        Ok(Prompt { tokens, images })
    };
    each(all).iter().zip(images).enumerate().map(read).collect()
}

/// Tokenizes a prompt with its images.
fn with_images(
    app: &App,
    prompt: &Value,
    path: &str,
    images: &[ImageHandle],
) -> Result<Vec<u32>, ApiError> {
    let object = Fields::at(prompt, path)?;
    let text = object.need("prompt_string", object.str("prompt_string")?)?;
    check_bytes(app, text)?;
    let marker = app.marker().unwrap_or(MEDIA_MARKER);
    let text = text.replace(MEDIA_MARKER, marker);
    let tokens = octavo_vision::prompt::tokens(app.tokenizer(), text.as_bytes(), marker, images);
    tokens.map_err(|error| ApiError::bad_field(format!("{path}multimodal_data"), error.to_string()))
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
    let encoder_cache = app
        .options
        .encoder_cache
        .as_ref()
        .expect("images are taken");
    let folder = app.server.options.media_folder.as_deref();
    let bytes = match (fetched.and_then(|all| all.file(image.url)), folder) {
        (Some(file), _) => Cow::Borrowed(file),
        (None, Some(folder)) if image.url.starts_with(folder::SCHEME) => {
            let file = folder::file(folder, image.url, encoder_cache.most_bytes());
            Cow::Owned(file.map_err(wrong)?)
        }
        (None, _) => Cow::Owned(bytes(image.url).map_err(|why| wrong(why.to_owned()))?),
    };
    encoder_cache
        .register(&bytes)
        .map_err(|error| wrong(error.to_string()))
}

/// Decodes a data URL, or bare base64.
fn bytes(url: &str) -> Result<Vec<u8>, &'static str> {
    const EXPECTED: &str = "expected a data URL with the image in base64; others are fetched \
                            only by servers that were started with hosts to fetch images from, \
                            and files read only with a folder for them";
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
