//! Prompts with images: text with a marker in place of each.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use octavo_engine::{ImageHandle, ImagePart};
use octavo_text::tokenizer::{EncodeOptions, Tokenizer};

use crate::Error;

/// Marker for an image in a text, as in llama.cpp.
pub const MARKER: &str = "<__media__>";

/// Returns a random marker that no text can contain by chance; it differs on every call.
pub fn private_marker() -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("<__media_{random:016x}__>")
}

/// Counts the markers in a text.
pub fn places(text: &[u8], marker: &str) -> usize {
    pieces(text, marker).count() - 1
}

/// Tokenizes a text and replaces its markers with images, in order, with the texts around and in
/// each. Each piece of text between them is tokenized separately, with control tokens recognized,
/// so no token spans an image; the model's BOS token is added where the model asks for one and
/// there is none.
///
/// # Errors
/// If the numbers of images and markers differ, or the text cannot be tokenized.
pub fn tokens(
    tokenizer: &Tokenizer,
    text: &[u8],
    marker: &str,
    images: &[ImageHandle],
) -> Result<Vec<u32>, Error> {
    let markers = places(text, marker);
    if markers != images.len() {
        return Err(Error::Markers {
            markers,
            images: images.len(),
        });
    }
    let options = EncodeOptions {
        add_special: false,
        parse_special: true,
    };
    let encode = |text: &[u8]| {
        let ids = tokenizer.encode(text, options);
        ids.map_err(|error| Error::Engine(error.into()))
    };
    let mut ids = Vec::new();
    let mut images = images.iter();
    for piece in pieces(text, marker) {
        ids.extend(encode(piece)?);
        if let Some(image) = images.next() {
            let mut tokens = image.tokens();
            for part in &image.image().parts {
                match part {
                    ImagePart::Text(text) => ids.extend(encode(text.as_bytes())?),
                    ImagePart::Tokens(n) => ids.extend(tokens.by_ref().take(*n)),
                }
            }
            ids.extend(tokens);
        }
    }
    let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
    if let Some(bos) = bos.filter(|bos| ids.first() != Some(bos)) {
        ids.insert(0, bos);
    }
    Ok(ids)
}

/// Splits a text at its markers: one piece more than there are markers.
fn pieces<'a>(text: &'a [u8], marker: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let marker = marker.as_bytes();
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let at = text.windows(marker.len()).position(|part| part == marker);
        rest = at.map(|at| &text[at + marker.len()..]);
        Some(&text[..at.unwrap_or(text.len())])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fall_apart_at_markers() {
        let cut = |text: &'static str| -> Vec<&[u8]> { pieces(text.as_bytes(), "<m>").collect() };
        assert_eq!(cut("a"), [b"a"]);
        assert_eq!(cut(""), [b""]);
        assert_eq!(cut("a<m>b<m>"), [&b"a"[..], b"b", b""]);
        assert_eq!(cut("<m><m"), [&b""[..], b"<m"]);
        assert_eq!(places(b"x<m>y<m><m>", "<m>"), 3);
    }
}
