//! Models with their options in a file, TOML or llama.cpp's `.ini`: a table for each, whose keys
//! are options of `octavo serve`, by the names that they have on the command line.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, ValueHint};
use toml::{Table, Value};

use super::ini::{self, Section};
use super::models::ServedModel;
use super::served::{ServedArgs, Shared};
use crate::argv::{self, Spelling};
use crate::failure::Failure;
use crate::hub;

/// Table of options for all models of a file.
const ALL: &str = "*";

/// Options of the command line, by their ids: they hold for every model.
#[derive(Clone, Debug, Default)]
pub(super) struct Given(BTreeMap<String, Vec<OsString>>);

impl Args for Given {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Given, clap::Error> {
        let is_given = |id: &str| {
            // ids of groups have no values
            let source = matches
                .try_contains_id(id)
                .ok()
                .map(|_| matches.value_source(id));
            source.flatten() == Some(ValueSource::CommandLine)
        };
        let ids = matches.ids().map(clap::Id::as_str);
        let values = ids.filter(|id| is_given(id)).map(|id| {
            let raw = matches.try_get_raw(id).ok().flatten();
            (
                id.to_owned(),
                raw.into_iter().flatten().map(OsString::from).collect(),
            )
        });
        Ok(Given(values.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Given::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns a command whose options are those of one model.
fn command() -> Command {
    let command = Command::new("serve").disable_help_flag(true);
    let mut command = crate::numbers_below_0(ServedArgs::augment_args(command));
    command.build();
    command
}

/// Parses the options of a model: `own` by the ids of their arguments, unless they are `given`.
///
/// # Errors
/// In one line, what is wrong with which option.
pub(super) fn parse(
    own: &BTreeMap<String, Vec<OsString>>,
    given: &Given,
) -> Result<ServedArgs, String> {
    let command = command();
    let mut args = vec![OsString::from("serve")];
    let mut positional = Vec::new();
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        let Some(values) = given.0.get(id).or(own.get(id)) else {
            continue;
        };
        let Some(long) = arg.get_long() else {
            positional.extend(values.iter().cloned());
            continue;
        };
        if !arg.get_action().takes_values() || values.is_empty() {
            args.push(format!("--{long}").into());
            continue;
        }
        args.extend(values.iter().map(|value| {
            let mut text = OsString::from(format!("--{long}="));
            text.push(value);
            text
        }));
    }
    args.push("--".into());
    args.extend(positional);
    let parsed = command.try_get_matches_from(args);
    let parsed = parsed.and_then(|found| ServedArgs::from_arg_matches(&found));
    parsed.map_err(|error| {
        let text = error.to_string();
        let line = text.lines().find(|line| !line.trim().is_empty());
        let line = line.unwrap_or_default();
        line.strip_prefix("error: ").unwrap_or(line).to_owned()
    })
}

/// Reads the models of a file.
pub(super) fn models(
    path: &Path,
    given: &Given,
    shared: &Arc<Shared>,
) -> Result<Vec<ServedModel>, Failure> {
    let of_file = |what: String| Failure::Input(format!("{}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| of_file(error.to_string()))?;
    let folder = path.parent().map(Path::to_owned).unwrap_or_default();
    let reader = Reader {
        command: command(),
        folder,
    };
    let is_ini = path.extension().is_some_and(|ending| ending == "ini");
    let tables = match is_ini {
        true => reader.ini(&text),
        false => reader.toml(&text),
    };
    let mut shared_keys = Options::default();
    let mut named = Vec::new();
    for (name, options) in tables.map_err(of_file)? {
        match name.as_str() {
            ALL => shared_keys = options,
            "" => {
                return Err(of_file(
                    "expected a model's name, found an empty one".to_owned(),
                ));
            }
            _ => named.push((name, options)),
        }
    }
    let model = |(name, own): (String, Options)| {
        let mut args = shared_keys.args.clone();
        args.extend(own.args);
        let has_model = ["flag", "hf_repo"].iter().any(|id| args.contains_key(*id));
        // as there, the name of a section may be the model's at the hub
        if is_ini && name.contains('/') && !has_model {
            args.insert("flag".to_owned(), vec![format!("hf:{name}").into()]);
        }
        let of_model = |what: String| of_file(format!("[{name}] {what}"));
        let args = parse(&args, given).map_err(of_model)?;
        if args.model.name().is_none() {
            return Err(of_model(
                "path: expected the model's file or name".to_owned(),
            ));
        }
        let mut names = vec![name.clone()];
        names.extend(args.alias.iter().filter(|alias| **alias != name).cloned());
        Ok(ServedModel {
            names,
            args,
            at_start: own.at_start.or(shared_keys.at_start).unwrap_or(false),
            shared: Arc::clone(shared),
        })
    };
    named.into_iter().map(model).collect()
}

/// Options of a table.
#[derive(Default)]
struct Options {
    /// Values by the ids of their arguments.
    args: BTreeMap<String, Vec<OsString>>,
    at_start: Option<bool>,
}

struct Reader {
    command: Command,
    /// Folder of the file, from which relative paths start.
    folder: PathBuf,
}

impl Reader {
    /// Reads a TOML file: tables by their names.
    fn toml(&self, text: &str) -> Result<Vec<(String, Options)>, String> {
        let tables: Table = toml::from_str(text).map_err(|error| {
            let line = error
                .span()
                .map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            format!("line {line}: {}", error.message().replace('\n', ", "))
        })?;
        let mut all = Vec::new();
        for (name, value) in tables {
            let table = match value {
                Value::Table(table) => table,
                Value::Integer(1) if name == "version" => continue,
                other => {
                    let found = other.type_str();
                    return Err(format!(
                        "{name}: expected a table with a model's options, found {found}"
                    ));
                }
            };
            let options = self.options(table);
            let options = options.map_err(|what| format!("[{name}] {what}"))?;
            all.push((name, options));
        }
        Ok(all)
    }

    /// Reads an `.ini` file: sections by their names.
    fn ini(&self, text: &str) -> Result<Vec<(String, Options)>, String> {
        let mut all = Vec::new();
        for Section { name, entries } in ini::parse(text)? {
            let mut options = Options::default();
            for (line, key, value) in entries {
                let set = self.set_by_ini(&mut options, &ini::option_of(&key), &value);
                set.map_err(|what| format!("line {line}: [{name}] {what}"))?;
            }
            all.push((name, options));
        }
        Ok(all)
    }

    /// Sets an option by a key of an `.ini` file, all of whose values are texts.
    fn set_by_ini(&self, options: &mut Options, key: &str, value: &str) -> Result<(), String> {
        match key {
            "load-on-startup" => {
                options.at_start = Some(!ini::is_off(value));
                return Ok(());
            }
            // of models in the hub's cache, which are there only if asked for
            "dedup-cache-models" => return Ok(()),
            _ => {}
        }
        let found = self.argument(key);
        if let Ok(Some(arg)) = &found
            && arg.get_action().takes_values()
        {
            let id = arg.get_id().to_string();
            options.args.insert(id, vec![value.into()]);
            return Ok(());
        }
        // a switch that is off is the opposite one, if there is one
        let arg = match ini::is_off(value) {
            true => argv::argument(&self.command, &format!("--no-{key}")),
            false => found?,
        };
        if let Some(arg) = arg {
            options.args.insert(arg.get_id().to_string(), Vec::new());
        }
        Ok(())
    }

    fn options(&self, table: Table) -> Result<Options, String> {
        let mut options = Options::default();
        for (key, value) in table {
            if key == "load-on-startup" {
                let at_start = value
                    .as_bool()
                    .ok_or_else(|| expected(&key, "true or false", &value));
                options.at_start = Some(at_start?);
                continue;
            }
            let Some(arg) = self.argument(&key)? else {
                continue;
            };
            let values = self.values(&key, arg, value)?;
            if let Some(values) = values
                && options
                    .args
                    .insert(arg.get_id().to_string(), values)
                    .is_some()
            {
                return Err(format!("{key}: expected the option once, found it twice"));
            }
        }
        Ok(options)
    }

    /// Returns the argument that a key names; `None` if it asks for what is so anyway.
    fn argument(&self, key: &str) -> Result<Option<&Arg>, String> {
        let own = match key {
            "path" => "model",
            "aliases" => "alias",
            key => key,
        };
        for dashes in ["--", "-"] {
            let name = format!("{dashes}{own}");
            let spelled = argv::spelled(&self.command, &name);
            let spelled = spelled.map_err(|failure| format!("{key}: {}", failure.message()))?;
            let found = match spelled {
                Spelling::LeftOut { .. } => return Ok(None),
                Spelling::Ours(name) => argv::argument(&self.command, &name),
                Spelling::Unknown => None,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Err(
            match argv::argument(&crate::serve_command(), &format!("--{own}")) {
                Some(_) => format!("{key}: expected a model's option, found one of the server"),
                None => format!("{key}: expected an option of octavo serve, found another key"),
            },
        )
    }

    /// Returns the values of an argument; `None` for a switch that is off.
    fn values(&self, key: &str, arg: &Arg, value: Value) -> Result<Option<Vec<OsString>>, String> {
        let least = arg.get_num_args().map_or(1, |n| n.min_values());
        match value {
            Value::Boolean(is_on) if !arg.get_action().takes_values() || least == 0 => {
                Ok(is_on.then(Vec::new))
            }
            other if !arg.get_action().takes_values() => {
                Err(expected(key, "true or false", &other))
            }
            Value::Array(list) => {
                let one = |value| self.value(key, arg, value);
                list.into_iter()
                    .map(one)
                    .collect::<Result<_, _>>()
                    .map(Some)
            }
            other => Ok(Some(vec![self.value(key, arg, other)?])),
        }
    }

    fn value(&self, key: &str, arg: &Arg, value: Value) -> Result<OsString, String> {
        let is_path = matches!(
            arg.get_value_hint(),
            ValueHint::FilePath | ValueHint::DirPath
        );
        match value {
            Value::String(text) if is_path && !hub::is_remote(Path::new(&text)) => {
                Ok(self.folder.join(text).into_os_string())
            }
            Value::String(text) => Ok(text.into()),
            Value::Integer(n) => Ok(n.to_string().into()),
            Value::Float(x) => Ok(x.to_string().into()),
            Value::Boolean(x) => Ok(x.to_string().into()),
            // options whose values are JSON
            Value::Table(table) => serde_json::to_string(&table)
                .map(OsString::from)
                .map_err(|error| format!("{key}: {error}")),
            other => Err(expected(key, "a text, a number or a list of them", &other)),
        }
    }
}

fn expected(key: &str, what: &str, found: &Value) -> String {
    format!("{key}: expected {what}, found {}", found.type_str())
}
