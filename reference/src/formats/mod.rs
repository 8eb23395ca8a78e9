//! Readers of the outputs of stock llama.cpp programs: one file for each format.

pub mod debug;
pub mod eval_callback;
pub mod server;
pub mod session;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::Error;
use gguf_rs_lite::{Gguf, OpenOptions};

/// Kinds of reference files, recognized by their content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `llama-results -o`: a GGUF with tokens and logits of all positions ([`crate::results`]).
    Results,
    /// `llama-imatrix -o`: a GGUF with sums of squared inputs of every matrix.
    Imatrix,
    /// A golden in safetensors ([`crate::golden`]).
    Golden,
    /// `llama-perplexity --kl-divergence-base`.
    KldBase,
    /// `llama-completion --prompt-cache` ([`session`]).
    Session,
    /// The text of `llama-eval-callback` ([`eval_callback`]).
    EvalCallback,
    /// A completion of llama-server with probabilities ([`server`]).
    Server,
    /// Raw floats of `llama-debug --save-logits` ([`debug`]).
    Debug,
}

/// Maximum bytes of a reference that is read as a whole; streamed ones may be larger.
pub(crate) const MAX_WHOLE: u64 = 1 << 30;

/// Bytes inspected to recognize a file.
const HEAD: u64 = 4096;

/// Returns the kind of a reference file.
///
/// # Errors
/// The file cannot be read, or has none of the formats; the message describes its apparent content.
pub fn recognize(path: &Path) -> Result<Kind, Error> {
    let file = File::open(path).map_err(|source| Error::Io {
        path: path.into(),
        source,
    })?;
    let mut head = Vec::new();
    file.take(HEAD)
        .read_to_end(&mut head)
        .map_err(|source| Error::Io {
            path: path.into(),
            source,
        })?;
    let unknown = |got: &str| Error::NoReference {
        file: path.display().to_string(),
        got: got.to_owned(),
    };
    if head.starts_with(b"GGUF") {
        let gguf = Gguf::open(
            path,
            &OpenOptions {
                mmap: true,
                ..OpenOptions::default()
            },
        )?;
        return match (
            gguf.str("general.type").ok().flatten(),
            gguf.tensor("logits"),
        ) {
            (Some("imatrix"), _) => Ok(Kind::Imatrix),
            (_, Some(_)) => Ok(Kind::Results),
            _ if gguf.get("general.architecture").is_some() => Err(unknown("a GGUF model")),
            _ => Err(unknown("a GGUF file without tokens and logits")),
        };
    }
    let text = String::from_utf8_lossy(&head);
    Ok(match () {
        () if head.starts_with(b"_logits_") => Kind::KldBase,
        () if head.starts_with(session::MAGIC) => Kind::Session,
        // the header's length, then the header, which is JSON
        () if head.len() > 8 && head[4..8] == [0; 4] && head[8] == b'{' => Kind::Golden,
        () if text.contains(eval_callback::MARK) => Kind::EvalCallback,
        () if text.trim_start().starts_with('{') => Kind::Server,
        () if debug::seems(path, &head) => Kind::Debug,
        () if head.is_empty() => return Err(unknown("an empty file")),
        () => return Err(unknown("none of these")),
    })
}

/// Reads a whole file.
pub(crate) fn whole(path: &Path) -> Result<Vec<u8>, Error> {
    let io = |source| Error::Io {
        path: path.into(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    file.take(MAX_WHOLE + 1)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    if bytes.len() as u64 > MAX_WHOLE {
        return Err(bad(
            path,
            "size",
            format!("at most {MAX_WHOLE} bytes"),
            "more".to_owned(),
        ));
    }
    Ok(bytes)
}

/// Builds the error for an invalid field.
pub(crate) fn bad(
    path: &Path,
    field: &str,
    expected: impl Into<String>,
    got: impl Into<String>,
) -> Error {
    Error::Field {
        file: path.display().to_string(),
        field: field.into(),
        expected: expected.into(),
        got: got.into(),
    }
}
