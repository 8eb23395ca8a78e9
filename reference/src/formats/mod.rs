//! What stock llama.cpp programs write about a computation, read back: one file for each format.

pub mod debug;
pub mod eval_callback;
pub mod server;
pub mod session;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::Error;
use gguf_rs_lite::{Gguf, OpenOptions};

/// The kinds of reference files, told apart by their content.
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

/// The largest reference that is read as a whole; those that are streamed may be larger.
pub(crate) const MAX_WHOLE: u64 = 1 << 30;

/// How much of a file is looked at to tell what it is.
const HEAD: u64 = 4096;

/// Says what kind of reference a file is.
///
/// # Errors
/// The file cannot be read, or is none of them; the message says what it seems to be.
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
        // a header's length, then the header, which is JSON
        () if head.len() > 8 && head[4..8] == [0; 4] && head[8] == b'{' => Kind::Golden,
        () if text.contains(eval_callback::MARK) => Kind::EvalCallback,
        () if text.trim_start().starts_with('{') => Kind::Server,
        () if debug::seems(path, &head) => Kind::Debug,
        () if head.is_empty() => return Err(unknown("an empty file")),
        () => return Err(unknown("none of these")),
    })
}

/// The bytes of a file that is read as a whole.
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

/// A field that is not as it should be.
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
