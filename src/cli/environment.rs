//! Options that the environment sets: `OCTAVO_` and the option's long name in capitals, with `_`
//! for `-`, so that `OCTAVO_PORT=8000` is `--port 8000` for every command that has it. They become
//! arguments before clap sees them, unless the command line has the option or one that excludes it.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

const PREFIX: &str = "OCTAVO_";

/// Arguments with those of the environment.
pub(super) struct Completed {
    pub(super) args: Vec<OsString>,
    /// Variables that were used.
    pub(super) variables: Vec<String>,
}

/// Returns the variable that sets an option, by its long name.
pub(super) fn variable(long: &str) -> String {
    format!("{PREFIX}{}", long.to_uppercase().replace('-', "_"))
}

/// Returns the value of an option's variable; an empty one is none.
pub(super) fn value_of(long: &str) -> Option<OsString> {
    std::env::var_os(variable(long)).filter(|value| !value.is_empty())
}

/// Returns whether a variable sets a switch.
pub(super) fn is_on(long: &str) -> bool {
    value_of(long).is_some_and(|value| switch(&value) == Some(true))
}

/// Adds the options that `value_of` knows by their long names; `command` is built.
///
/// # Errors
/// If a switch has a value that is neither yes nor no: says which variable.
pub(super) fn complete(
    command: &Command,
    args: Vec<OsString>,
    value_of: impl Fn(&str) -> Option<OsString>,
) -> Result<Completed, String> {
    let (own, at) = subcommand(command, &args);
    let named = own
        .get_arguments()
        .filter_map(|arg| Some((arg, arg.get_long()?, value_of(arg.get_long()?)?)));
    let named: Vec<_> = named.filter(|(arg, ..)| is_setting(arg)).collect();
    let none = Vec::new();
    if named.is_empty() {
        let variables = none;
        return Ok(Completed { args, variables });
    }
    let Some(given) = given(&args) else {
        // help, which no variable changes
        let variables = none;
        return Ok(Completed { args, variables });
    };
    let (mut added, mut variables) = (Vec::new(), Vec::new());
    for (arg, long, value) in named {
        let id = arg.get_id().as_str();
        if given.contains(id) || given.iter().any(|other| excludes(own, arg, other)) {
            continue;
        }
        let mut text = OsString::from(format!("--{long}"));
        if arg.get_action().takes_values() {
            text.push("=");
            text.push(value);
        } else {
            match switch(&value) {
                Some(true) => {}
                Some(false) => continue,
                None => {
                    return Err(format!(
                        "{}: expected 1 or 0, found {}",
                        variable(long),
                        value.to_string_lossy()
                    ));
                }
            }
        }
        added.push(text);
        variables.push(variable(long));
    }
    let mut args = args;
    args.splice(at..at, added);
    Ok(Completed { args, variables })
}

/// Returns the command that the arguments name, and the index of the first argument after its name.
fn subcommand<'a>(command: &'a Command, args: &[OsString]) -> (&'a Command, usize) {
    let (mut own, mut at) = (command, 1.min(args.len()));
    let mut i = at;
    while let Some(text) = args.get(i).and_then(|arg| arg.to_str()) {
        i += 1;
        if text == "--" {
            break;
        }
        if let Some(found) = own.find_subcommand(text) {
            (own, at) = (found, i);
        } else if text.starts_with('-') && !text.contains('=') {
            let option = crate::argv::argument(own, text);
            let least = option.and_then(Arg::get_num_args).map(|n| n.min_values());
            i += least.unwrap_or(0);
        }
    }
    (own, at)
}

/// Returns whether an option sets something, rather than shows something and ends.
fn is_setting(arg: &Arg) -> bool {
    !matches!(
        arg.get_action(),
        ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
    )
}

/// Returns the ids of what is on the command line, as far as it can be parsed without the
/// environment; none if it asks for help.
fn given(args: &[OsString]) -> Option<HashSet<String>> {
    let lenient = crate::command().ignore_errors(true);
    let matches = match lenient.try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) if error.use_stderr() => return Some(HashSet::new()),
        Err(_) => return None,
    };
    let mut given = HashSet::new();
    let mut level: Option<&ArgMatches> = Some(&matches);
    while let Some(matches) = level {
        let ids = matches.ids().map(clap::Id::as_str);
        let is_given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
        given.extend(ids.filter(is_given).map(str::to_owned));
        level = matches.subcommand().map(|(_, inner)| inner);
    }
    Some(given)
}

/// Returns whether an option cannot be used with another one, by its id.
fn excludes(command: &Command, arg: &Arg, other: &str) -> bool {
    let all = command.get_arguments();
    let Some(other) = all.into_iter().find(|own| own.get_id() == other) else {
        return false;
    };
    let names = |a: &Arg, b: &Arg| {
        let conflicts = command.get_arg_conflicts_with(a);
        conflicts.iter().any(|own| own.get_id() == b.get_id())
    };
    let mut groups = command.get_groups().filter(|group| {
        let mut members = group.get_args();
        let has = |arg: &Arg| group.get_args().any(|id| id == arg.get_id());
        members.next().is_some() && has(arg) && has(other)
    });
    let is_one_of = groups.any(|group| !group.clone().is_multiple());
    is_one_of || names(arg, other) || names(other, arg)
}

/// Parses the value of a switch.
fn switch(value: &OsStr) -> Option<bool> {
    match value.to_str()?.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn built() -> Command {
        let mut command = crate::command();
        command.build();
        command
    }

    fn completed(line: &str, set: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let args = line.split(' ').map(OsString::from).collect();
        let value_of = |long: &str| {
            let found = set.iter().find(|(name, _)| *name == variable(long));
            found.map(|(_, value)| OsString::from(value))
        };
        let completed = complete(&built(), args, value_of)?;
        let words = completed.args.iter();
        Ok(words
            .map(|word| word.to_string_lossy().into_owned())
            .collect())
    }

    /// Calls `see` with each command, and the words that lead to it.
    fn walk(command: &Command, words: &[String], see: &mut dyn FnMut(&Command, &[String])) {
        see(command, words);
        for inner in command.get_subcommands() {
            let words = [words, &[inner.get_name().to_owned()]].concat();
            walk(inner, &words, see);
        }
    }

    /// Every option of every command can be set, alone, by a variable of its own.
    #[test]
    fn every_option_has_a_variable() {
        let (mut n, command) = (0, built());
        walk(&command, &["octavo".to_owned()], &mut |own, words| {
            let mut names = BTreeMap::new();
            for arg in own.get_arguments().filter(|arg| is_setting(arg)) {
                let Some(long) = arg.get_long() else {
                    continue;
                };
                let name = variable(long);
                let is_plain = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
                assert!(name.chars().all(is_plain), "{name}");
                assert_eq!(
                    names.insert(name.clone(), long),
                    None,
                    "{name} of {words:?}"
                );
                let args = words.iter().map(OsString::from).collect();
                let value = |own: &str| (own == long).then(|| OsString::from("1"));
                let completed = complete(&command, args, value).expect("a fitting value");
                let expected = match arg.get_action().takes_values() {
                    true => format!("--{long}=1"),
                    false => format!("--{long}"),
                };
                let last = completed.args.last().expect("arguments");
                assert_eq!(last.to_string_lossy(), expected, "{words:?}");
                assert_eq!(completed.variables, [name]);
                n += 1;
            }
        });
        assert!(n > 500, "{n} options");
    }

    /// Returns the variables that Rust code or a script reads, or has a constant for.
    fn read_variables(text: &str) -> impl Iterator<Item = String> {
        let places = text.match_indices(PREFIX).filter(|(i, _)| {
            let before = ["var(\"", "var_os(\"", "env!(\"", ": &str = \"", "${"];
            before.iter().any(|end| text[..*i].ends_with(end))
        });
        places.map(|(i, _)| {
            let is_name = |c: char| c.is_ascii_uppercase() || "_0123456789".contains(c);
            let rest = &text[i..];
            rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())].to_owned()
        })
    }

    /// Variables of tests and of building must not set options.
    #[test]
    fn no_option_has_a_variable_of_another_meaning() {
        let mut names = HashSet::new();
        walk(&built(), &[], &mut |own, _| {
            names.extend(own.get_arguments().filter_map(Arg::get_long).map(variable));
        });
        let root = octavo_fixtures::workspace_root();
        let (mut folders, mut n) = (vec![root.to_path_buf()], 0);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
                let (path, name) = (entry.path(), entry.file_name());
                if path.is_dir() {
                    let is_built = ["target", ".git", "node_modules"]
                        .iter()
                        .any(|own| name == *own);
                    folders.extend((!is_built).then_some(path));
                } else if path
                    .extension()
                    .is_some_and(|ending| ending == "rs" || ending == "sh")
                {
                    let text = std::fs::read_to_string(&path).expect("text");
                    for name in read_variables(&text) {
                        assert!(!names.contains(&name), "{name} in {}", path.display());
                        n += 1;
                    }
                }
            }
        }
        assert!(n > 15, "{n} variables");
    }

    #[test]
    fn the_command_line_comes_first() {
        let set = [
            ("OCTAVO_PORT", "8000"),
            ("OCTAVO_MODEL", "other.gguf"),
            ("OCTAVO_QUIET", "1"),
            ("OCTAVO_STRICT_MODEL", "no"),
        ];
        let own = |line: &str| completed(line, &set).expect("fitting values").join(" ");
        assert_eq!(
            own("octavo serve"),
            "octavo serve --model=other.gguf --port=8000 --quiet"
        );
        assert_eq!(
            own("octavo serve m.gguf --port 1"),
            "octavo serve --quiet m.gguf --port 1"
        );
        assert_eq!(
            own("octavo --log-file serve -v serve m.gguf"),
            "octavo --log-file serve -v serve --port=8000 m.gguf"
        );
        // a command without the option, one within another, help
        assert_eq!(own("octavo gguf show a"), "octavo gguf show --quiet a");
        assert_eq!(own("octavo serve --help"), "octavo serve --help");
        assert_eq!(own("octavo"), "octavo --quiet");
        let wrong = completed("octavo serve", &[("OCTAVO_STRICT_MODEL", "maybe")]);
        let says = "OCTAVO_STRICT_MODEL: expected 1 or 0, found maybe";
        assert_eq!(wrong, Err(says.to_owned()));
    }
}
