//! Why a rule makes no constraint.

/// Why a rule makes no constraint.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The rule is wrong, too large, or cannot be met.
    #[error("{0}")]
    Rule(String),
    /// No rule can be compiled for the vocabulary.
    #[error("this vocabulary takes no grammars: {0}")]
    Vocabulary(String),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

pub(crate) const TOO_COMPLEX: &str = "the rule is too complex, or cannot be met";

/// An error in one line, not longer than people read.
pub(crate) fn shorten(error: &str) -> String {
    const LONGEST: usize = 300;
    // the compiler's own words about itself
    if error.contains("panic") || error.contains("NoExtensionBias") {
        return TOO_COMPLEX.to_owned();
    }
    // a regular expression, a mark below its fault, and what is wrong there
    if let Some((_, rest)) = error.split_once("regex parse error:") {
        let mut lines = rest.lines().map(str::trim).filter(|line| !line.is_empty());
        let pattern = lines.next().unwrap_or_default();
        let fault = lines.find_map(|line| line.strip_prefix("error: "));
        if let Some(fault) = fault {
            let line = format!("the regular expression {pattern} is not valid: {fault}");
            return line.chars().take(LONGEST).collect();
        }
    }
    let line = error
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("it is not valid");
    line.chars().take(LONGEST).collect()
}
