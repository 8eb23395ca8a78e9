//! Errors of compiling a rule.

/// Reason why a rule cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The rule is invalid, too large, or cannot be met.
    #[error("{0}")]
    Rule(String),
    /// The vocabulary supports no rules.
    #[error("this vocabulary takes no grammars: {0}")]
    Vocabulary(String),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

pub(crate) const TOO_COMPLEX: &str = "the rule is too complex, or cannot be met";

/// Shortens an error to one readable line.
pub(crate) fn shorten(error: &str) -> String {
    const LONGEST: usize = 300;
    // internal messages of the compiler
    if error.contains("panic") || error.contains("NoExtensionBias") {
        return TOO_COMPLEX.to_owned();
    }
    // the regular expression, a mark below the fault, and its description
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
