//! Names the option that needs another one: clap only names the missing one.

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Explains an error about a missing argument: names the option without which nothing would be
/// missing. `None` for other errors, and if no single option needs it.
pub(crate) fn explain(command: &Command, args: &[OsString], error: &clap::Error) -> Option<String> {
    let missing = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(missing))) => missing,
        _ => return None,
    };
    let name = (1..args.len()).find_map(|i| {
        let name = args.get(i)?.to_str()?.split('=').next()?;
        // removed alone, or with a value after it
        let is_right_without = |n: usize| {
            let rest = args.iter().enumerate();
            let rest = rest.filter(|(j, _)| !(i..i + n).contains(j));
            let rest = rest.map(|(_, arg)| arg);
            command.clone().try_get_matches_from(rest).is_ok()
        };
        (name.starts_with('-') && (1..3).any(is_right_without)).then_some(name)
    })?;
    Some(format!(
        "{name}: expected {} with it (see --help)",
        missing.join(" and ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_that_needs_another_one_is_named() {
        let mut command = crate::command();
        command.build();
        for (line, says) in [
            ("run -p x --system y", None),
            ("run --json --logprobs=2", None),
            (
                "run -p x --logprobs 2",
                Some("--logprobs: expected --json with it"),
            ),
            (
                "run --reasoning on -p x",
                Some("--reasoning: expected --chat with it"),
            ),
            (
                "run --length-penalty=1",
                Some("--length-penalty: expected --beams <W> with it"),
            ),
            ("chat -e", Some("-e: expected --stop <STRING> with it")),
            (
                "logits --force -p x",
                Some("--force: expected --dump <OUT.gguf> with it"),
            ),
            ("diff --image x --nothing", None),
            // removing one option is not enough
            ("run -p x --logprobs 2 --reasoning on", None),
        ] {
            let line = format!("octavo {line}");
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = command.clone().try_get_matches_from(&args).err();
            let said = error.and_then(|error| explain(&command, &args, &error));
            let begins = |says: &str| said.as_deref().is_some_and(|said| said.starts_with(says));
            assert!(says.map_or(said.is_none(), begins), "{line}: {said:?}");
        }
    }
}
