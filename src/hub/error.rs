//! Errors of the hub: one line each, with what can be done about it.

use std::io;
use std::path::PathBuf;

/// Errors of the hub and of its cache.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name that is none.
    #[error("{name}: expected hf:USER/REPO, hf:USER/REPO:QUANT or hf:USER/REPO/FILE")]
    Name {
        /// The name as given.
        name: String,
    },
    /// No folder for the cache.
    #[error("no folder for downloads: expected HF_HOME or HOME to name one")]
    NoCache,
    /// A repository that does not exist, or that only some may see.
    #[error(
        "{repo}: the hub has no such repository, or it is private: expected USER/REPO as in its \
         address, and for a private one HF_TOKEN"
    )]
    NoRepository {
        /// The repository.
        repo: String,
    },
    /// A repository whose licence has to be accepted first.
    #[error("{repo}: gated: accept its licence at {page}, then set HF_TOKEN")]
    Gated {
        /// The repository.
        repo: String,
        /// Address of its page.
        page: String,
    },
    /// A token that is not accepted.
    #[error("{repo}: the hub refuses the token: expected a valid HF_TOKEN, or none")]
    Token {
        /// The repository.
        repo: String,
    },
    /// A branch, tag or commit that does not exist.
    #[error("{repo}: no revision {revision}: expected a branch, a tag or a commit")]
    NoRevision {
        /// The repository.
        repo: String,
        /// The revision as given.
        revision: String,
    },
    /// A repository without the file or quantization that was asked for.
    #[error("{repo}: no {requested}; {there}")]
    NoFile {
        /// The repository.
        repo: String,
        /// Name of the file or quantization that was asked for.
        requested: String,
        /// Names of the files that it has.
        there: String,
    },
    /// A file that the server does not have.
    #[error("{url}: not found")]
    NotFound {
        /// Its address.
        url: String,
    },
    /// A model that is not cached, without a connection.
    #[error("{repo}: not in the cache ({}), and the hub is not asked", cache.display())]
    NotCached {
        /// The repository or the address.
        repo: String,
        /// The cache's folder.
        cache: PathBuf,
    },
    /// Too many requests for longer than it is worth waiting.
    #[error("{url}: too many requests (429): expected fewer; try again in {seconds} s")]
    TooMany {
        /// Address of the request.
        url: String,
        /// Seconds that the server asks to wait.
        seconds: u64,
    },
    /// Another answer than success.
    #[error("{url}: the server answers {status}{}", said(message))]
    Status {
        /// Address of the request.
        url: String,
        /// Status code.
        status: u16,
        /// The server's own words.
        message: String,
    },
    /// A server that does not answer, or a connection that ended.
    #[error("{url}: {reason} (after {attempts} attempts)")]
    Connection {
        /// Address of the request.
        url: String,
        /// The reason.
        reason: String,
        /// Number of attempts.
        attempts: u32,
    },
    /// An answer that is not what the hub's interface says.
    #[error("{url}: expected {expected}")]
    Answer {
        /// Address of the request.
        url: String,
        /// Expected content.
        expected: &'static str,
    },
    /// A file of another size or content than announced.
    #[error("{file}: {what} {got}, expected {expected}: what was downloaded is dropped")]
    Content {
        /// Name of the file.
        file: String,
        /// `size` or `sha256`.
        what: &'static str,
        /// Announced value.
        expected: String,
        /// Value of what came.
        got: String,
    },
    /// A file of the cache that cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The reason.
        #[source]
        error: io::Error,
    },
}

fn said(message: &str) -> String {
    match message {
        "" => String::new(),
        message => format!(": {message}"),
    }
}
