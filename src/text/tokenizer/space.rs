//! The space that SPM puts where a text has none.

use gguf_rs_lite::Gguf;

/// Where SPM puts a space that is not in the text.
///
/// GGUF's `tokenizer.ggml.add_space_prefix` knows the first two. Newer Hugging Face tokenizers have
/// the others, which [`SpacePrefix::KEY`] keeps beside it; llama.cpp takes them for
/// [`SpacePrefix::Every`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpacePrefix {
    /// Nowhere.
    Never,
    /// Before the text and after special tokens.
    Every,
    /// There, but not before a space.
    Always,
    /// Before a text that begins neither with a space nor with a special token.
    First,
}

impl SpacePrefix {
    /// `always` or `first`, as Hugging Face's `prepend_scheme` has it.
    pub const KEY: &str = "tokenizer.octavo.prepend_scheme";

    /// What a file says; `default` is for one that does not.
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

    /// The `prepend_scheme` that says so, where `add_space_prefix` does not.
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
