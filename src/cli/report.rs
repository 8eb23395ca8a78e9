//! Reports why a command failed: a line on stderr, and the exit code.

use super::failure::Failure;
use super::terminal;

/// EX_TEMPFAIL, after which schedulers try again if they are configured to.
const AGAIN: u8 = 75;

impl Failure {
    /// Prints the line and returns the exit code.
    pub(super) fn report(self) -> u8 {
        let (message, code) = match self {
            Failure::Usage(message) => (message, 2),
            Failure::Input(message) | Failure::Machine(message) => (message, 1),
            Failure::Again(message) => (message, AGAIN),
        };
        terminal::tell(&format!("octavo: error: {message}"));
        code
    }
}

/// Reports clap's errors: help and version as they are, a mistake as one line, with the `variables`
/// that have set options.
pub(super) fn usage(error: &clap::Error, variables: &[String]) -> u8 {
    use clap::error::ErrorKind as Kind;
    let text = error.render();
    match error.kind() {
        Kind::DisplayHelp | Kind::DisplayVersion => {
            let printed = terminal::check_stdout().and_then(|()| Ok(error.print()?));
            return printed.map_or_else(Failure::report, |()| 0);
        }
        Kind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return 2;
        }
        _ => {}
    }
    let text = text.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let facts = text
        .lines()
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    // clap's tip to pass a value after `--` does not help where an option was meant
    let facts: Vec<&str> = facts
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("tip: to pass "))
        .collect();
    let of_environment = match variables.is_empty() {
        true => String::new(),
        false => format!("; the environment sets {}", variables.join(", ")),
    };
    Failure::Usage(format!("{} (see --help{of_environment})", facts.join(" "))).report()
}
