//! Converts blocks of text and images to parts of chat messages.

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;

/// Content of a chat message as it is put together.
#[derive(Default)]
pub(super) struct Parts {
    parts: Vec<Value>,
    /// Names of the blocks that the parts come from.
    pub(super) names: Vec<String>,
}

impl Parts {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Adds a block if it is a text or an image, and returns whether it is one.
    pub(super) fn take(&mut self, block: &Fields<'_>, name: &str) -> Result<bool, ApiError> {
        let part = match block.need("type", block.str("type")?)? {
            "text" => text(block.need("text", block.str("text")?)?),
            "image" => {
                let source = block.need("source", block.get("source"))?;
                json!({ "type": "image_url", "image_url": image_url(source, name)? })
            }
            _ => return Ok(false),
        };
        self.push(part, name);
        Ok(true)
    }

    /// Adds a text.
    pub(super) fn push_text(&mut self, content: &str, name: &str) {
        self.push(text(content), name);
    }

    fn push(&mut self, part: Value, name: &str) {
        self.parts.push(part);
        self.names.push(name.to_owned());
    }

    /// Puts a text before everything else.
    pub(super) fn begin_with(&mut self, head: &str, name: &str) {
        match self.parts.first_mut() {
            Some(first) if first["type"] == "text" => {
                let rest = first["text"].as_str().unwrap_or_default();
                *first = text(&format!("{head}{rest}"));
            }
            _ => {
                self.parts.insert(0, text(head.trim_end()));
                self.names.insert(0, name.to_owned());
            }
        }
    }

    /// Returns the content. A single text is a string: clients send the same message as a string in
    /// one turn and as a block in the next, and both must be the same prompt.
    pub(super) fn into_content(self) -> Value {
        match &self.parts[..] {
            [] => json!(""),
            [only] if only["type"] == "text" => only["text"].clone(),
            _ => Value::Array(self.parts),
        }
    }
}

fn text(content: &str) -> Value {
    json!({ "type": "text", "text": content })
}

/// Returns the URL of an image: the one that is given, or one with its data.
fn image_url(source: &Value, block: &str) -> Result<String, ApiError> {
    let path = format!("{block}.source.");
    let source = Fields::at(source, &path)?;
    match source.need("type", source.str("type")?)? {
        "base64" => {
            let media_type = source.need("media_type", source.str("media_type")?)?;
            let data = source.need("data", source.str("data")?)?;
            Ok(format!("data:{media_type};base64,{data}"))
        }
        "url" => Ok(source.need("url", source.str("url")?)?.to_owned()),
        _ => Err(source.wrong("type", "base64 or url")),
    }
}
