//! Leading space that SPM adds to a text.

use gguf_rs_lite::Gguf;

/// Positions where SPM adds a space that is not in the text.
///
/// GGUF's `tokenizer.ggml.add_space_prefix` covers the first two. Newer Hugging Face tokenizers use
/// the others, which [`SpacePrefix::KEY`] stores beside it; llama.cpp treats them as
/// [`SpacePrefix::Every`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpacePrefix {
    /// Nowhere.
    Never,
    /// Before the text and after special tokens.
    Every,
    /// Before the text and after special tokens, except before a space.
    Always,
    /// Before a text that begins neither with a space nor with a special token.
    First,
}

impl SpacePrefix {
    /// Metadata key with value `always` or `first`, as in Hugging Face's `prepend_scheme`.
    pub const KEY: &str = "tokenizer.octavo.prepend_scheme";

    /// Reads the setting of a file; `default` applies if it has none.
    pub(crate) fn read(gguf: &Gguf, default: bool) -> Result<SpacePrefix, gguf_rs_lite::Error> {
        let add = gguf
            .bool("tokenizer.ggml.add_space_prefix")?
            .unwrap_or(default);
        Ok(match gguf.str(SpacePrefix::KEY)? {
            _ if !add => SpacePrefix::Never,
            Some("always") => SpacePrefix::Always,
            Some("first") => SpacePrefix::First,
            _ => SpacePrefix::Every,
        })
    }

    /// Returns the `prepend_scheme` to store, for settings that `add_space_prefix` cannot express.
    pub fn scheme(self) -> Option<&'static str> {
        match self {
            SpacePrefix::Never | SpacePrefix::Every => None,
            SpacePrefix::Always => Some("always"),
            SpacePrefix::First => Some("first"),
        }
    }

    pub(super) fn comes_before(self, part: &[u8], first: bool, after_special: bool) -> bool {
        let space = part.starts_with(b" ") || part.starts_with("\u{2581}".as_bytes());
        match self {
            SpacePrefix::Never => false,
            SpacePrefix::Every => after_special,
            SpacePrefix::Always => after_special && !space,
            SpacePrefix::First => first && !space,
        }
    }
}
