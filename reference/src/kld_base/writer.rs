//! Writes base files.

use std::io::{BufWriter, Write};
use std::path::Path;

use super::{Error, MAGIC, Shape};

/// Writes a base file.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
    file: String,
    shape: Shape,
    /// Bytes of rows not yet written.
    left: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the header and the tokens of all chunks; messages call it `file`.
    ///
    /// # Errors
    /// An invalid shape, a number of tokens that differs from it, or a failed write.
    pub fn new(mut to: W, file: &str, shape: Shape, tokens: &[u32]) -> Result<Writer<W>, Error> {
        let failed = |source| Error::Io {
            file: file.to_owned(),
            source,
        };
        let shape = shape.checked(file)?;
        let (expected, got) = (shape.n_tokens().saturating_mul(4), 4 * tokens.len() as u64);
        if expected != got {
            return Err(Error::Length {
                file: file.to_owned(),
                what: "tokens",
                expected,
                got,
            });
        }
        let numbers = [shape.n_ctx, shape.n_vocab, shape.n_chunks].map(|n| n as u32);
        to.write_all(&MAGIC).map_err(failed)?;
        for word in numbers.iter().chain(tokens) {
            to.write_all(&word.to_le_bytes()).map_err(failed)?;
        }
        let left = shape.chunk_bytes().saturating_mul(shape.n_chunks as u64);
        Ok(Writer {
            to,
            file: file.to_owned(),
            shape,
            left,
        })
    }

    /// Returns the sizes of the file.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Writes rows that [`super::encode`] made, in order.
    ///
    /// # Errors
    /// More rows than the file has, or a failed write.
    pub fn rows(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let got = bytes.len() as u64;
        self.left = self
            .left
            .checked_sub(got)
            .ok_or_else(|| self.wrong_length(self.left, got))?;
        self.to.write_all(bytes).map_err(|source| Error::Io {
            file: self.file.clone(),
            source,
        })
    }

    /// Finishes the file and returns the underlying writer.
    ///
    /// # Errors
    /// Missing rows, or a failed write.
    pub fn finish(mut self) -> Result<W, Error> {
        if self.left > 0 {
            return Err(self.wrong_length(self.left, 0));
        }
        self.to.flush().map_err(|source| Error::Io {
            file: self.file.clone(),
            source,
        })?;
        Ok(self.to)
    }

    fn wrong_length(&self, expected: u64, got: u64) -> Error {
        Error::Length {
            file: self.file.clone(),
            what: "rows still to come",
            expected,
            got,
        }
    }
}

/// Writes a base file under a temporary name; `rows` must write all of its rows, then it is
/// renamed. If `rows` fails nothing is left behind.
///
/// # Errors
/// Those of `rows`, those of [`Writer`], and a file that cannot be replaced.
pub fn write_file<T, E: From<Error>>(
    path: &Path,
    shape: Shape,
    tokens: &[u32],
    rows: impl FnOnce(&mut Writer<BufWriter<&mut dyn Write>>) -> Result<T, E>,
) -> Result<T, E> {
    /// Passes the caller's error through the function that replaces the file.
    struct Either<E>(E);
    impl<E: From<Error>> From<gguf_rs_lite::Error> for Either<E> {
        fn from(error: gguf_rs_lite::Error) -> Self {
            Either(Error::Replace(error).into())
        }
    }
    let name = path.display().to_string();
    let written = gguf_rs_lite::replace_file(path, |file| {
        let to = BufWriter::with_capacity(1 << 20, file);
        let mut writer = Writer::new(to, &name, shape, tokens).map_err(|e| Either(e.into()))?;
        let result = rows(&mut writer).map_err(Either)?;
        writer.finish().map_err(|e| Either(e.into()))?;
        Ok(result)
    });
    written.map_err(|Either(error)| error)
}
