//! Rewrites llama.cpp's options before clap sees them: those of the same meaning become ours, those
//! that ask for what is so anyway are left out, others are refused with a reason. clap knows no
//! option of one dash and several letters, and would take `-fa` for `-f a`, `-hf` for `-h -f`.

mod llama;
pub(super) mod needed;

use std::ffi::OsString;

use clap::Command;

use super::failure::Failure;
use llama::{Here, OPTIONS};

/// Our spelling of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Ours, of an option that may be llama.cpp's.
    Ours(String),
    /// None, since llama.cpp's option asks for what is so anyway.
    LeftOut {
        /// Whether the next argument may be its value.
        may_have_value: bool,
    },
    /// None, since neither program has such an option.
    Unknown,
}

/// Replaces llama.cpp's spellings where an option can stand; `command` has ours.
pub(super) fn expand(
    command: &Command,
    args: impl Iterator<Item = OsString>,
) -> Result<Vec<OsString>, Failure> {
    let mut own = command;
    let mut expanded = Vec::new();
    // where --batch-size was given, and whether --ubatch-size was
    let (mut logical, mut has_physical) = (Vec::new(), false);
    let mut args = args.enumerate().peekable();
    while let Some((i, arg)) = args.next() {
        let Some(text) = arg.to_str().filter(|text| i > 0 && !text.is_empty()) else {
            expanded.push(arg);
            continue;
        };
        if text == "--" {
            expanded.push(arg);
            expanded.extend(args.by_ref().map(|(_, arg)| arg));
            break;
        }
        if !text.starts_with('-') {
            if let Some(found) = own.find_subcommand(text) {
                own = found;
            }
            expanded.push(arg);
            continue;
        }
        let arg = match replaced(own, text)? {
            Spelling::Ours(ours) => ours,
            Spelling::Unknown => text.to_owned(),
            Spelling::LeftOut { may_have_value } => {
                args.next_if(|(_, next)| may_have_value && is_switch_or_number(next));
                continue;
            }
        };
        let takes_next = takes_next(own, &arg);
        match split(text) {
            ("-b" | "--batch-size", value) => {
                let n = if value.is_some() { 1 } else { 2 };
                logical.push(expanded.len()..expanded.len() + n);
            }
            ("-ub" | "--ubatch-size", _) => has_physical = true,
            _ => {}
        }
        expanded.push(arg.into());
        if takes_next {
            expanded.extend(args.next().map(|(_, value)| value));
        }
    }
    // the size of a step is the physical one, where llama.cpp is told both
    if has_physical {
        for range in logical.into_iter().rev() {
            expanded.drain(range.start..range.end.min(expanded.len()));
        }
    }
    Ok(expanded)
}

/// Splits an option into its name and the value behind `=`.
fn split(text: &str) -> (&str, Option<&str>) {
    match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    }
}

/// Returns whether an argument is what an option that is left out may be given.
fn is_switch_or_number(arg: &OsString) -> bool {
    arg.to_str().is_some_and(|arg| {
        matches!(arg, "on" | "off" | "auto" | "true" | "false") || arg.parse::<f64>().is_ok()
    })
}

/// Returns our spelling of a llama.cpp option; it is unknown if it is not one, or if the command
/// has an option of that name.
fn replaced(command: &Command, text: &str) -> Result<Spelling, Failure> {
    let (name, value) = split(text);
    if has(command, name) {
        return Ok(Spelling::Unknown);
    }
    let Some((_, here)) = OPTIONS.iter().find(|(names, _)| names.contains(&name)) else {
        return Ok(Spelling::Unknown);
    };
    match here {
        Here::Is(ours) if has(command, ours) => Ok(Spelling::Ours(match value {
            Some(value) => format!("{ours}={value}"),
            None => (*ours).to_owned(),
        })),
        Here::Always | Here::AlwaysOf => Ok(Spelling::LeftOut {
            may_have_value: *here == Here::AlwaysOf && value.is_none(),
        }),
        Here::Is(_) if command.get_name() == "octavo" => Err(Failure::Usage(format!(
            "octavo has no {name} before its command (see --help)"
        ))),
        Here::Is(_) => Err(Failure::Usage(format!(
            "octavo {} has no {name} (see --help)",
            command.get_name()
        ))),
        Here::No(why) => Err(Failure::Usage(format!("octavo has no {name}: {why}"))),
    }
}

/// Returns our spelling of an option, which may be llama.cpp's.
///
/// # Errors
/// The reason why an option of llama.cpp has no counterpart.
pub(super) fn spelled(command: &Command, name: &str) -> Result<Spelling, Failure> {
    match has(command, name) {
        true => Ok(Spelling::Ours(name.to_owned())),
        false => replaced(command, name),
    }
}

/// Returns the argument of an option of the command.
pub(super) fn argument<'a>(command: &'a Command, name: &str) -> Option<&'a clap::Arg> {
    let mut arguments = command.get_arguments();
    match name.strip_prefix("--") {
        Some(long) => arguments.find(|arg| longs(arg).any(|own| own == long)),
        None => arguments.find(|arg| arg.get_short() == name.chars().nth(1)),
    }
}

/// Returns whether the command has an option of this name.
fn has(command: &Command, name: &str) -> bool {
    if let Some(long) = name.strip_prefix("--") {
        return matches!(long, "help" | "version")
            || command
                .get_arguments()
                .any(|arg| longs(arg).any(|own| own == long));
    }
    let mut letters = name.chars().skip(1);
    let is_short = |arg: &clap::Arg| arg.get_short() == name.chars().nth(1);
    letters.next().is_some() && letters.next().is_none() && command.get_arguments().any(is_short)
}

fn longs(arg: &clap::Arg) -> impl Iterator<Item = &str> {
    let aliases = arg.get_all_aliases().unwrap_or_default();
    arg.get_long().into_iter().chain(aliases)
}

/// Returns whether the next argument is this option's value, whatever it looks like.
fn takes_next(command: &Command, text: &str) -> bool {
    if let Some(long) = text.strip_prefix("--") {
        return command
            .get_arguments()
            .any(|arg| arg.is_allow_hyphen_values_set() && longs(arg).any(|own| own == long));
    }
    // of several letters after one dash, the first that takes a value takes the rest
    let mut letters = text[1..].chars();
    while let Some(letter) = letters.next() {
        let Some(arg) = command
            .get_arguments()
            .find(|arg| arg.get_short() == Some(letter))
        else {
            return false;
        };
        if arg.get_action().takes_values() {
            return letters.as_str().is_empty() && arg.is_allow_hyphen_values_set();
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds the whole command line, with its global options in every command.
    fn command() -> Command {
        let mut command = super::super::command();
        command.build();
        command
    }

    fn expanded(line: &str) -> String {
        let words = line.split(' ').map(OsString::from);
        match expand(&command(), words) {
            Ok(words) => words
                .iter()
                .map(|w| w.to_string_lossy())
                .collect::<Vec<_>>()
                .join(" "),
            Err(failure) => failure.message(),
        }
    }

    #[test]
    fn spellings_are_replaced_only_where_options_stand() {
        for (line, ours) in [
            (
                "octavo run -ctk f16 -ctv f16",
                "octavo run --cache-type-k f16 --cache-type-v f16",
            ),
            (
                "octavo run -p -ctk -ctk f32",
                "octavo run -p -ctk --cache-type-k f32",
            ),
            ("octavo run -ep -fa", "octavo run -ep -fa"),
            ("octavo run -- -ctk", "octavo run -- -ctk"),
            ("octavo run -sys -ctk", "octavo run --system -ctk"),
            ("octavo run -ngl 20", "octavo run --gpu-layers 20"),
            ("octavo run -ub=64", "octavo run --batch-size=64"),
            (
                "octavo run -b 2048 -ub 64 -c 9",
                "octavo run --batch-size 64 -c 9",
            ),
            (
                "octavo run -ub 64 --batch-size=2048 -c 9",
                "octavo run --batch-size 64 -c 9",
            ),
            ("octavo run -b 2048", "octavo run -b 2048"),
            ("octavo run -fa", "octavo run"),
            ("octavo run -fa on -p x", "octavo run -p x"),
            ("octavo run -fa -p on", "octavo run -p on"),
            ("octavo run --flash-attn=off -cram -1", "octavo run"),
            (
                "octavo serve m.gguf --jinja --metrics -cb 1",
                "octavo serve m.gguf 1",
            ),
            ("octavo run -r x", "octavo run --stop x"),
            (
                "octavo run -hf u/r -hff x",
                "octavo run --hf-repo u/r --hf-file x",
            ),
            ("octavo bench -r 3", "octavo bench -r 3"),
            ("octavo run -n64 -c 512", "octavo run -n64 -c 512"),
            ("octavo tokenize --ids", "octavo tokenize --ids"),
        ] {
            assert_eq!(expanded(line), ours);
        }
    }

    #[test]
    fn what_llama_cpp_has_and_octavo_has_not_is_refused_by_its_name() {
        for (line, says) in [
            ("octavo run -nkvo", "octavo has no -nkvo: --gpu-layers"),
            ("octavo run --no-jinja=on", "octavo has no --no-jinja: "),
            (
                "octavo -hf org/model",
                "octavo has no -hf before its command",
            ),
            (
                "octavo serve -dr ai/model",
                "octavo has no -dr: hf:USER/REPO",
            ),
            ("octavo run m.gguf -no-cnv", "octavo has no -no-cnv: "),
            ("octavo run m.gguf -tb 4", "octavo has no -tb: -t N"),
            ("octavo serve --no-jinja", "octavo has no --no-jinja: "),
            ("octavo -ngl 3", "octavo has no -ngl before its command"),
            ("octavo tokenize -ngl 3", "octavo tokenize has no -ngl"),
        ] {
            let error = expanded(line);
            assert!(error.starts_with(says), "{line}: {error}");
        }
    }

    #[test]
    fn no_name_is_listed_twice_and_every_alias_is_an_option() {
        let mut seen = std::collections::HashSet::new();
        for name in OPTIONS.iter().flat_map(|(names, _)| *names) {
            assert!(seen.insert(name), "{name}");
        }
        let command = command();
        let ours = OPTIONS.iter().filter_map(|(_, here)| match here {
            Here::Is(ours) => Some(*ours),
            Here::Always | Here::AlwaysOf | Here::No(_) => None,
        });
        for ours in ours {
            let known = command.get_subcommands().any(|sub| has(sub, ours));
            assert!(known, "{ours}");
        }
    }
}
