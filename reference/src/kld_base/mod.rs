//! The file of llama-perplexity's `--kl-divergence-base`: the tokens of a text, and for every
//! scored position, the log-probabilities of the whole vocabulary in 16 bits each. Read and written
//! as a stream, a few rows at a time.
//!
//! llama.cpp uses host byte order, this crate little-endian. There is no version and no model name:
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | 8 bytes | `_logits_` |
//! | 8, 12, 16 | i32 | tokens of a chunk, tokens of the vocabulary, chunks |
//! | 20 | i32 each | the tokens, as the tokenizer gave them |
//! | then | rows | for each chunk, `n_ctx - 1 - n_ctx / 2` of them |
//!
//! A row: scale and lowest log-probability as f32, then one u16 `q` for each token, padded to an
//! even number: `ln p = scale * q + lowest`. Values more than 16 nats below the most likely token
//! are stored as 16 below it. ik_llama.cpp writes the same file with 24 nats ([PR
//! 325](https://github.com/ikawrakow/ik_llama.cpp/pull/325)) without marking it: only the largest
//! distance that a row can express, `65535 * scale`, reveals it.
//!
//! Equal logits give llama.cpp's bytes: the arithmetic is the same (f32, an f64 sum in order, the C
//! library's `expf`). A C library whose `expf` rounds differently can move a row's lowest value by
//! one ulp.

mod error;
mod reader;
mod row;
mod writer;

pub use error::Error;
pub use reader::Reader;
pub use row::{CUT, Norm, Row, WIDE_CUT, encode};
pub use writer::{Writer, write_file};

/// First bytes of every base file.
pub const MAGIC: [u8; 8] = *b"_logits_";
/// Bytes before the tokens.
const HEADER: u64 = 20;

/// Sizes that determine the file's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Tokens per chunk, at least 3.
    pub n_ctx: usize,
    /// Vocabulary size.
    pub n_vocab: usize,
    /// Number of chunks.
    pub n_chunks: usize,
}

impl Shape {
    /// Returns the first scored position of a chunk: earlier ones are context only.
    pub fn first(&self) -> usize {
        self.n_ctx / 2
    }

    /// Returns the rows of a chunk. Row r is the prediction at position `first() + r`, for the
    /// token after it.
    pub fn rows(&self) -> usize {
        (self.n_ctx - 1).saturating_sub(self.first())
    }

    /// Returns the bytes of a row.
    pub fn row_bytes(&self) -> usize {
        row::HEADER + 2 * self.n_vocab.next_multiple_of(2)
    }

    fn n_tokens(&self) -> u64 {
        self.n_chunks as u64 * self.n_ctx as u64
    }

    /// Returns the bytes of a chunk's rows. No overflow: both factors come from an i32.
    fn chunk_bytes(&self) -> u64 {
        self.rows() as u64 * self.row_bytes() as u64
    }

    /// Returns the offset of a chunk's rows; `None` on overflow.
    fn rows_at(&self, chunk: u64) -> Option<u64> {
        let tokens = self.n_tokens().checked_mul(4)?;
        self.chunk_bytes()
            .checked_mul(chunk)?
            .checked_add(tokens)?
            .checked_add(HEADER)
    }

    fn checked(self, file: &str) -> Result<Shape, Error> {
        let header = |field, expected, got: usize| Error::Header {
            file: file.to_owned(),
            field,
            expected,
            got: i64::try_from(got).unwrap_or(i64::MAX),
        };
        let fits = |n: usize| i32::try_from(n).is_ok();
        if !(self.n_ctx >= 3 && fits(self.n_ctx)) {
            return Err(header("tokens of a chunk", "3 to 2^31 - 1", self.n_ctx));
        }
        if !(self.n_vocab >= 1 && fits(self.n_vocab)) {
            return Err(header(
                "tokens of the vocabulary",
                "1 to 2^31 - 1",
                self.n_vocab,
            ));
        }
        if !(self.n_chunks >= 1 && fits(self.n_chunks)) {
            return Err(header("chunks", "1 to 2^31 - 1", self.n_chunks));
        }
        Ok(self)
    }
}
