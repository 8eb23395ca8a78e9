//! Small bases: of each row the most likely tokens with their log-probabilities in 8 to 16 bits,
//! the sum of the others, and a sample of these. They take a hundredth of what llama-perplexity's
//! bases take, and say how far the divergence that is computed from them can be off.
//!
//! Layout, little-endian: the magic; u32 bits, tokens of a chunk, of the vocabulary, chunks; the
//! tokens as u32; then the rows, of which `row` has the layout.

mod chunks;
mod row;
mod score;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use std::ops::Range;

use octavo_engine::Engine;

pub use chunks::{SmallChunks, small_base_chunks};
pub use row::RowSize;
use row::SmallRow;
pub use score::Slack;

use super::base::{self, Shape};
use super::divergence::{ChunkDivergence, Divergence, Token};
use super::pass::{ChunkRows, Pass, for_each};
use super::perplexity::score_with;
use super::{Error, Observer, Options, Perplexity, Text};

/// First bytes of every small base.
pub const SMALL_MAGIC: [u8; 8] = *b"_octkl1_";

/// Bits of a log-probability that a file may have.
const BITS: std::ops::RangeInclusive<u32> = 8..=16;

/// Reason why a small base was refused.
#[derive(Debug, thiserror::Error)]
pub enum SmallError {
    /// It cannot be read or written.
    #[error("{file}: {source}")]
    Io {
        /// Path of the file.
        file: String,
        /// Error of the system.
        source: io::Error,
    },
    /// It begins with something else.
    #[error("{file}: expected a small base, which begins with _octkl1_, got something else")]
    Magic {
        /// Path of the file.
        file: String,
    },
    /// A number that cannot be.
    #[error("{file}: chunk {chunk}: expected {expected}, got {got}")]
    Content {
        /// Path of the file.
        file: String,
        /// Chunk with the number, from 0; in the header, 0.
        chunk: usize,
        /// Expected content.
        expected: &'static str,
        /// Number found.
        got: String,
    },
    /// It ends too early.
    #[error("{file}: cut off: expected {expected} chunks, got {complete}")]
    Cut {
        /// Path of the file.
        file: String,
        /// Chunks in the header.
        expected: usize,
        /// Complete chunks.
        complete: usize,
    },
}

/// Returns whether a file begins as a small base does; false if it cannot be read.
pub fn is_small(path: &Path) -> bool {
    let mut magic = [0; 8];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == SMALL_MAGIC
}

/// Scores a text and writes a small base of it, under a temporary name until it is complete.
///
/// # Errors
/// As [`perplexity`](super::perplexity()), and a failed write.
pub fn perplexity_with_small_base(
    engine: &Engine,
    text: &Text,
    size: RowSize,
    options: &Options,
    observer: &mut dyn Observer<Perplexity>,
    path: &Path,
) -> Result<Perplexity, Error> {
    let shape = text.shape();
    write(path, &head(shape, size.bits, text.tokens()), |out| {
        let mut sink = |part: &ChunkRows<'_>| {
            for row in encoded(part, shape.n_vocab, size, options.threads) {
                out(&row)?;
            }
            Ok(())
        };
        score_with(engine, text, options, observer, &mut sink)
    })
}

/// Returns all that precedes the rows.
fn head(shape: Shape, bits: u32, tokens: &[u32]) -> Vec<u8> {
    let mut head = SMALL_MAGIC.to_vec();
    let counts = [shape.n_ctx, shape.n_vocab, shape.n_chunks].map(|n| n as u32);
    let numbers = [&[bits], &counts[..], tokens].concat();
    head.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    head
}

/// Writes a small base whose rows come from `rows`, which gets a function that writes bytes.
fn write<T>(
    path: &Path,
    head: &[u8],
    rows: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<T, Error>,
) -> Result<T, Error> {
    /// Passes an error through the function that replaces the file.
    struct Either(Error);
    impl From<gguf_rs_lite::Error> for Either {
        fn from(error: gguf_rs_lite::Error) -> Either {
            Either(base::Error::Replace(error).into())
        }
    }
    let failed = |source| SmallError::Io {
        file: path.display().to_string(),
        source,
    };
    let written = gguf_rs_lite::replace_file(path, |file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let mut write = |bytes: &[u8]| Ok(out.write_all(bytes).map_err(failed)?);
        write(head).map_err(Either)?;
        let made = rows(&mut write).map_err(Either)?;
        let flushed = out.flush().map_err(failed);
        flushed.map_err(|error| Either(error.into()))?;
        Ok(made)
    });
    written.map_err(|Either(error)| error)
}

/// Encodes the rows of a part, on several threads.
fn encoded(part: &ChunkRows<'_>, n_vocab: usize, size: RowSize, threads: usize) -> Vec<Vec<u8>> {
    let mut rows = vec![Vec::new(); part.targets.len()];
    for_each(threads, &mut rows, |i, row| {
        let logits = &part.logits[i * n_vocab..(i + 1) * n_vocab];
        *row = row::encode(logits, part.targets[i] as usize, size);
    });
    rows
}

/// Reads a small base, chunk by chunk.
#[derive(Debug)]
pub struct SmallReader<R> {
    from: R,
    file: String,
    shape: Shape,
    bits: u32,
    tokens: Vec<u32>,
    /// Number of complete chunks that were read.
    chunk: usize,
}

impl SmallReader<BufReader<File>> {
    /// Opens a file.
    ///
    /// # Errors
    /// As [`SmallReader::new`].
    pub fn open(path: &Path) -> Result<Self, SmallError> {
        let file = path.display().to_string();
        let opened = File::open(path);
        let opened = opened.map_err(|source| SmallError::Io {
            file: file.clone(),
            source,
        })?;
        SmallReader::new(BufReader::with_capacity(1 << 20, opened), &file)
    }
}

impl<R: Read> SmallReader<R> {
    /// Reads and checks the header and the tokens; messages call the source `file`.
    ///
    /// # Errors
    /// Any fault of the file.
    pub fn new(mut from: R, file: &str) -> Result<SmallReader<R>, SmallError> {
        let mut magic = [0; 8];
        let read = from.read_exact(&mut magic);
        if read.is_err() || magic != SMALL_MAGIC {
            let file = file.to_owned();
            return Err(SmallError::Magic { file });
        }
        let shape = Shape {
            n_ctx: 0,
            n_vocab: 0,
            n_chunks: 0,
        };
        let mut reader = SmallReader {
            from,
            file: file.to_owned(),
            shape,
            bits: 0,
            tokens: Vec::new(),
            chunk: 0,
        };
        let mut numbers = [0u32; 4];
        for number in &mut numbers {
            *number = reader.number()?;
        }
        let [bits, n_ctx, n_vocab, n_chunks] = numbers;
        let sizes = [n_ctx, n_vocab, n_chunks].map(|n| i32::try_from(n).unwrap_or(0));
        if !BITS.contains(&bits) || n_ctx < 3 || sizes.contains(&0) {
            let got = format!("{bits} bits, {n_ctx}, {n_vocab} and {n_chunks}");
            let expected = "8 to 16 bits, and sizes of chunks, vocabulary and text";
            return Err(row::Bytes::wrong(&reader, expected, got));
        }
        (reader.bits, reader.shape) = (
            bits,
            Shape {
                n_ctx: n_ctx as usize,
                n_vocab: n_vocab as usize,
                n_chunks: n_chunks as usize,
            },
        );
        // memory grows with what the file has, not with what it says
        for _ in 0..u64::from(n_chunks) * u64::from(n_ctx) {
            let id = reader.number()?;
            if id >= n_vocab {
                let expected = "tokens of the vocabulary";
                return Err(row::Bytes::wrong(&reader, expected, id.to_string()));
            }
            reader.tokens.push(id);
        }
        Ok(reader)
    }

    fn number(&mut self) -> Result<u32, SmallError> {
        let mut bytes = [0; 4];
        let read = self.from.read_exact(&mut bytes);
        read.map_err(|source| self.failed(source))?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn failed(&self, source: io::Error) -> SmallError {
        let file = self.file.clone();
        match source.kind() {
            io::ErrorKind::UnexpectedEof => SmallError::Cut {
                file,
                expected: self.shape.n_chunks,
                complete: self.chunk,
            },
            _ => SmallError::Io { file, source },
        }
    }

    /// Returns the path, for messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the sizes of the text.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns all tokens of the text.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Reads the next rows.
    fn rows(&mut self, n: usize) -> Result<Vec<SmallRow>, SmallError> {
        let (n_vocab, bits) = (self.shape.n_vocab, self.bits);
        (0..n)
            .map(|_| SmallRow::read(self, n_vocab, bits))
            .collect()
    }

    /// Reads on to a chunk.
    fn skip_to(&mut self, chunk: usize) -> Result<(), SmallError> {
        while self.chunk < chunk {
            self.rows(self.shape.rows())?;
            self.chunk += 1;
        }
        Ok(())
    }
}

impl<R: Read> row::Bytes for SmallReader<R> {
    type Error = SmallError;

    fn byte(&mut self) -> Result<u8, SmallError> {
        let mut byte = [0];
        let read = self.from.read_exact(&mut byte);
        read.map_err(|source| self.failed(source))?;
        Ok(byte[0])
    }

    fn wrong(&self, expected: &'static str, got: String) -> SmallError {
        SmallError::Content {
            file: self.file.clone(),
            chunk: self.chunk,
            expected,
            got,
        }
    }
}

/// Scores some chunks of the text of a small base, and the model's predictions against the base's;
/// chunks before them are read only. Returns the divergence, and how far the sum over each chunk
/// can be off ([`Slack::of_mean`]).
///
/// # Errors
/// As [`divergence`](super::divergence()).
///
/// # Panics
/// If the base has fewer chunks.
pub fn divergence_from_small<R: Read>(
    engine: &Engine,
    base: &mut SmallReader<R>,
    chunks: Range<usize>,
    options: &Options,
    observer: &mut dyn Observer<Divergence>,
) -> Result<(Divergence, Vec<Slack>), Error> {
    let (shape, n_chunks) = (base.shape, chunks.len());
    let mut pass = Pass::new(engine, shape, &base.file, options)?;
    let (mut so_far, mut slacks) = (Divergence::default(), Vec::new());
    base.skip_to(chunks.start)?;
    for number in chunks {
        let tokens = base.tokens[number * shape.n_ctx..(number + 1) * shape.n_ctx].to_vec();
        let (mut chunk, mut slack) = (ChunkDivergence::default(), Slack::default());
        let cancelled = &|| observer.cancelled();
        pass.chunk(&tokens, cancelled, &mut |part| {
            let rows = base.rows(part.targets.len())?;
            let mut compared = vec![(Token::default(), Slack::default()); rows.len()];
            for_each(options.threads, &mut compared, |i, compared| {
                let logits = &part.logits[i * shape.n_vocab..(i + 1) * shape.n_vocab];
                *compared = score::compare(logits, &rows[i], part.targets[i] as usize);
            });
            for (token, more) in &compared {
                chunk.add(token);
                slack.add(more);
            }
            Ok(())
        })?;
        base.chunk += 1;
        so_far.push(chunk);
        slacks.push(slack);
        observer.chunk(&so_far, n_chunks);
    }
    Ok((so_far, slacks))
}
