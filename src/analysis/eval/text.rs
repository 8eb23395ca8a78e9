//! Splits a text into chunks of tokens.

use std::io::{Read, Seek};
use std::ops::Range;

use super::Error;
use super::base::{Reader, Shape};
use octavo_text::tokenizer::{EncodeOptions, Tokenizer};

/// Returns the token ids of a text to be scored: special tokens are added (a BOS, if the vocabulary
/// asks for it) but not parsed. llama-perplexity's `-f` drops one line feed at the end of a file
/// before that, and so must the caller.
///
/// # Errors
/// As [`Tokenizer::encode`].
pub fn encode(tokenizer: &Tokenizer, text: &[u8]) -> Result<Vec<u32>, Error> {
    Ok(tokenizer.encode(text, EncodeOptions::default())?)
}

/// A text cut into whole chunks.
#[derive(Clone, Debug)]
pub struct Text {
    tokens: Vec<u32>,
    shape: Shape,
}

impl Text {
    /// Cuts the tokens, of a vocabulary of `n_vocab`, into chunks, at most `chunks` of them.
    ///
    /// # Errors
    /// [`Error::TooShort`] for less than two chunks of text, [`Error::Chunk`] for chunks too short
    /// to score, [`Error::NoChunks`], an id outside the vocabulary.
    pub fn new(
        mut tokens: Vec<u32>,
        n_vocab: usize,
        n_ctx: usize,
        chunks: Option<usize>,
    ) -> Result<Text, Error> {
        if n_ctx < 3 {
            return Err(Error::Chunk(n_ctx));
        }
        let expected = n_ctx.saturating_mul(2);
        if tokens.len() < expected {
            return Err(Error::TooShort {
                expected,
                n_ctx,
                got: tokens.len(),
            });
        }
        let all = tokens.len() / n_ctx;
        let n_chunks = chunks.map_or(all, |n| n.min(all));
        if n_chunks == 0 {
            return Err(Error::NoChunks);
        }
        tokens.truncate(n_chunks * n_ctx);
        if let Some(&id) = tokens.iter().find(|id| **id as usize >= n_vocab) {
            return Err(octavo_engine::Error::Token { id, n_vocab }.into());
        }
        Ok(Text {
            tokens,
            shape: Shape {
                n_ctx,
                n_vocab,
                n_chunks,
            },
        })
    }

    /// Returns the tokens of the whole chunks.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns a range of its chunks; each is scored as in the whole text.
    ///
    /// # Panics
    /// If it has fewer chunks.
    pub fn only(&self, chunks: Range<usize>) -> Text {
        let n_ctx = self.shape.n_ctx;
        Text {
            tokens: self.tokens[chunks.start * n_ctx..chunks.end * n_ctx].to_vec(),
            shape: Shape {
                n_chunks: chunks.len(),
                ..self.shape
            },
        }
    }

    /// Returns the number of tokens and chunks, as in a base.
    pub fn shape(&self) -> Shape {
        self.shape
    }
}

/// Refuses a base that was made from another text.
///
/// # Errors
/// [`Error::OtherText`] or [`Error::LongerText`]; those of the reader.
pub fn check_text<R: Read + Seek>(base: &mut Reader<R>, tokens: &[u32]) -> Result<(), Error> {
    let Shape {
        n_ctx, n_chunks, ..
    } = base.shape();
    for chunk in 0..n_chunks {
        let theirs = base.tokens(chunk)?;
        let start = chunk * n_ctx;
        let ours = tokens.get(start..).unwrap_or_default();
        if let Some(at) = theirs.iter().zip(ours).position(|(a, b)| a != b) {
            let (expected, got) = (ours[at], theirs[at]);
            return Err(Error::OtherText {
                file: base.file().to_owned(),
                index: start + at,
                expected,
                got,
            });
        }
        if ours.len() < n_ctx {
            let file = base.file().to_owned();
            return Err(Error::LongerText {
                file,
                expected: tokens.len(),
                got: n_chunks * n_ctx,
            });
        }
    }
    Ok(())
}
