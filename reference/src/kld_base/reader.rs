//! Reads base files.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use super::row::{self, CUT, WIDE_CUT, row_header};
use super::{Error, HEADER, MAGIC, Shape};

/// Tolerance between a row's span and its cut, for rounding.
const SPAN_SLACK: f32 = 0.5;
/// Tolerance above 0 for log-probabilities, for rounding to 16 bits.
const LN_P_SLACK: f32 = 0.01;

/// Reads a base file on demand, a few rows at a time.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    file: String,
    shape: Shape,
    /// Cut of the first chunk.
    first_cut: f32,
    /// Cut of all rows read so far.
    cut: f32,
}

impl Reader<File> {
    /// Opens a file.
    ///
    /// # Errors
    /// As [`Reader::new`].
    pub fn open(path: &Path) -> Result<Reader<File>, Error> {
        let name = path.display().to_string();
        let failed = |source| Error::Io {
            file: name.clone(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        // a pipe cannot be read twice, and its length is unknown
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(Error::Magic { file: name });
        }
        Reader::new(file, &name)
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Reads and checks the header, the length and the tokens; messages call it `file`.
    ///
    /// # Errors
    /// Any fault of the file; nothing is allocated by sizes that were not compared with the file's
    /// length.
    pub fn new(mut from: R, file: &str) -> Result<Reader<R>, Error> {
        let failed = |source| Error::Io {
            file: file.to_owned(),
            source,
        };
        let length = from.seek(SeekFrom::End(0)).map_err(failed)?;
        from.seek(SeekFrom::Start(0)).map_err(failed)?;
        let mut header = [0; HEADER as usize];
        let n = usize::try_from(length).map_or(header.len(), |n| n.min(header.len()));
        from.read_exact(&mut header[..n]).map_err(failed)?;
        if header[..8] != MAGIC {
            return Err(Error::Magic {
                file: file.to_owned(),
            });
        }
        if n < header.len() {
            let got = length;
            return Err(Error::Length {
                file: file.to_owned(),
                what: "header",
                expected: HEADER,
                got,
            });
        }
        let shape = shape(file, &header[8..])?;
        let end = shape.rows_at(shape.n_chunks as u64);
        if end != Some(length) {
            let complete = shape.rows_at(0).map_or(0, |start| {
                length.saturating_sub(start) / shape.chunk_bytes()
            });
            return Err(Error::Size {
                file: file.to_owned(),
                expected: end.unwrap_or(u64::MAX),
                got: length,
                n_chunks: shape.n_chunks,
                n_ctx: shape.n_ctx,
                complete: complete.min(shape.n_chunks as u64),
            });
        }
        let mut reader = Reader {
            from,
            file: file.to_owned(),
            shape,
            first_cut: CUT,
            cut: CUT,
        };
        reader.check_tokens()?;
        reader.first_cut = reader.cut_of(0)?;
        Ok(reader)
    }

    /// Returns the name in messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the sizes of the file.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the depth of its rows below the most likely token, in nats: 16, or 24 if a row that
    /// needs it was read. The first chunk is checked when the file is opened, the others as they
    /// are read.
    pub fn cut(&self) -> f32 {
        self.cut
    }

    /// Returns the cut of a chunk: the one its own rows need, or that of the first chunk. It is
    /// independent of other chunks read before.
    ///
    /// # Errors
    /// As [`Reader::rows`].
    ///
    /// # Panics
    /// If there is no such chunk.
    pub fn cut_of(&mut self, chunk: usize) -> Result<f32, Error> {
        let shape = self.shape;
        assert!(
            chunk < shape.n_chunks,
            "chunk {chunk} of {}",
            shape.n_chunks
        );
        let mut cut = self.first_cut;
        for row in 0..shape.rows() {
            if cut == WIDE_CUT {
                break;
            }
            let mut header = [0; row::HEADER];
            self.read_at(self.row_at(chunk, row), &mut header)?;
            cut = self.check_row(chunk, row, &header)?;
        }
        self.cut = self.cut.max(cut);
        Ok(cut)
    }

    /// Returns the tokens of a chunk.
    ///
    /// # Errors
    /// If they cannot be read.
    ///
    /// # Panics
    /// If there is no such chunk.
    pub fn tokens(&mut self, chunk: usize) -> Result<Vec<u32>, Error> {
        assert!(
            chunk < self.shape.n_chunks,
            "chunk {chunk} of {}",
            self.shape.n_chunks
        );
        let mut bytes = vec![0; 4 * self.shape.n_ctx];
        let start = HEADER + 4 * chunk as u64 * self.shape.n_ctx as u64;
        self.read_at(start, &mut bytes)?;
        // ids were checked to be in the vocabulary
        Ok(bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word))
            .collect())
    }

    /// Reads some rows of a chunk into `out`, in the form of [`super::Row::new`],
    /// `Shape::row_bytes` each.
    ///
    /// # Errors
    /// If they cannot be read or do not hold log-probabilities.
    ///
    /// # Panics
    /// If there are no such rows.
    pub fn rows(
        &mut self,
        chunk: usize,
        rows: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let shape = self.shape;
        assert!(
            chunk < shape.n_chunks && rows.start <= rows.end && rows.end <= shape.rows(),
            "rows of the file"
        );
        out.resize(rows.len() * shape.row_bytes(), 0);
        self.read_at(self.row_at(chunk, rows.start), out)?;
        for (row, bytes) in rows.zip(out.chunks_exact(shape.row_bytes())) {
            self.cut = self.cut.max(self.check_row(chunk, row, bytes)?);
        }
        Ok(())
    }

    /// Returns the offset of a row; the file's length was checked, so this does not overflow.
    fn row_at(&self, chunk: usize, row: usize) -> u64 {
        let start = self.shape.rows_at(chunk as u64).unwrap_or(u64::MAX);
        start.saturating_add(row as u64 * self.shape.row_bytes() as u64)
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let read = self
            .from
            .seek(SeekFrom::Start(offset))
            .and_then(|_| self.from.read_exact(out));
        read.map_err(|source| Error::Io {
            file: self.file.clone(),
            source,
        })
    }

    /// Checks a row, and returns the cut it needs.
    fn check_row(&self, chunk: usize, row: usize, bytes: &[u8]) -> Result<f32, Error> {
        let (scale, lowest) = row_header(bytes);
        let span = 65535.0 * scale;
        let sound = scale >= 0.0
            && span <= WIDE_CUT + SPAN_SLACK
            && lowest.is_finite()
            && span + lowest <= LN_P_SLACK;
        if !sound {
            return Err(Error::Row {
                file: self.file.clone(),
                chunk,
                row,
                scale,
                lowest,
            });
        }
        Ok(if span > CUT + SPAN_SLACK {
            WIDE_CUT
        } else {
            CUT
        })
    }

    fn check_tokens(&mut self) -> Result<(), Error> {
        let n_vocab = self.shape.n_vocab;
        let mut index = 0;
        let mut block = [0; 1 << 14];
        while index < self.shape.n_tokens() {
            let left = 4 * (self.shape.n_tokens() - index);
            let n = usize::try_from(left).map_or(block.len(), |left| left.min(block.len()));
            self.read_at(HEADER + 4 * index, &mut block[..n])?;
            for word in block[..n].as_chunks::<4>().0 {
                let got = i32::from_le_bytes(*word);
                if !usize::try_from(got).is_ok_and(|id| id < n_vocab) {
                    return Err(Error::Token {
                        file: self.file.clone(),
                        index,
                        n_vocab,
                        got,
                    });
                }
                index += 1;
            }
        }
        Ok(())
    }
}

fn shape(file: &str, header: &[u8]) -> Result<Shape, Error> {
    let number = |field, at: usize| {
        let got = i32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        usize::try_from(got).map_err(|_| Error::Header {
            file: file.to_owned(),
            field,
            expected: "a number above 0",
            got: got.into(),
        })
    };
    let n_ctx = number("tokens of a chunk", 0)?;
    let n_vocab = number("tokens of the vocabulary", 4)?;
    let n_chunks = number("chunks", 8)?;
    Shape {
        n_ctx,
        n_vocab,
        n_chunks,
    }
    .checked(file)
}
