//! `octavo gguf show`: prints keys and tensors as they are in the file.

use std::fmt::Write;

use clap::Args;
use gguf_rs_lite::{Gguf, TensorInfo, Value};
use octavo_analysis::facts::value_json;
use serde_json::json;

use super::{FileArg, PatternArgs, open, value};
use crate::failure::{Exit, Failure};
use crate::terminal;
use crate::wording::{one_line, size};

/// Longest array in JSON, unless all is shown.
const MAX_ARRAY: usize = 32;

/// Print keys and tensors as they are in the file
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo gguf show model.gguf
  octavo gguf show model.gguf rope attention --keys
  octavo gguf show model.gguf '^blk\\.0\\.' --tensors
  octavo gguf show model.gguf tokenizer.chat_template --value > template.jinja
  octavo gguf show model.gguf --json --all | jq '.keys[].key'")]
pub(super) struct ShowArgs {
    #[command(flatten)]
    file: FileArg,
    #[command(flatten)]
    patterns: PatternArgs,
    /// Print keys, and no tensors
    #[arg(long, conflicts_with = "tensors")]
    keys: bool,
    /// Print tensors, and no keys
    #[arg(long)]
    tensors: bool,
    /// Print whole strings and arrays, however long
    #[arg(long)]
    all: bool,
    /// Print the value of one key, named by PATTERN, and nothing else: a string as it is
    #[arg(long, conflicts_with_all = ["keys", "tensors", "all", "json"])]
    value: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &ShowArgs) -> Result<Exit, Failure> {
    let gguf = open(&args.file.path()?)?;
    let out = match (args.value, args.json) {
        (true, _) => only_value(args, &gguf)?,
        (false, true) => format!("{}\n", as_json(args, &gguf)).into_bytes(),
        (false, false) => as_text(args, &gguf).into_bytes(),
    };
    terminal::print(&out)?;
    Ok(Exit::Done)
}

impl ShowArgs {
    fn chosen_keys<'g>(&self, gguf: &'g Gguf) -> Vec<(&'g str, Value<'g>)> {
        let keys = gguf.keys().filter(|(key, _)| self.patterns.has(key));
        keys.filter(|_| !self.tensors).collect()
    }

    fn chosen_tensors<'g>(&self, gguf: &'g Gguf) -> Vec<&'g TensorInfo> {
        let tensors = gguf.tensors().iter().filter(|t| self.patterns.has(&t.name));
        tensors.filter(|_| !self.keys).collect()
    }
}

/// Returns the value of the key that is named in full, or else of the only one that matches.
fn only_value(args: &ShowArgs, gguf: &Gguf) -> Result<Vec<u8>, Failure> {
    let patterns = &args.patterns.patterns;
    let named = match &patterns[..] {
        [only] => gguf.get(only.as_str()),
        _ => None,
    };
    let keys = args.chosen_keys(gguf);
    let value = match (named, &keys[..]) {
        (Some(value), _) => value,
        (None, [(_, value)]) => *value,
        (None, others) => {
            return Err(Failure::Input(format!(
                "{}: expected one key for --value, got {}",
                gguf.name(),
                others.len()
            )));
        }
    };
    Ok(match value {
        Value::Str(bytes) => bytes.to_vec(),
        Value::Array(_) => format!("{}\n", value_json(&value, usize::MAX)).into_bytes(),
        other => format!("{}\n", value::text(&other, true)).into_bytes(),
    })
}

fn as_json(args: &ShowArgs, gguf: &Gguf) -> serde_json::Value {
    let longest = match args.all {
        true => usize::MAX,
        false => MAX_ARRAY,
    };
    let keys = args.chosen_keys(gguf);
    let keys = keys.iter().map(|(key, value)| {
        json!({
            "key": key,
            "type": value::type_name(value),
            "value": value_json(value, longest),
        })
    });
    let tensors = args.chosen_tensors(gguf);
    let tensors = tensors.iter().map(|t| {
        json!({
            "name": t.name,
            "type": t.ty.name(),
            "shape": t.dims,
            "bytes": t.bytes,
            "part": t.part,
            "offset": gguf.file_offset(t),
        })
    });
    json!({
        "file": gguf.name(),
        "parts": gguf.part_names().collect::<Vec<_>>(),
        "version": gguf.version(),
        "alignment": gguf.alignment(),
        "bytes": gguf.file_bytes(),
        "keys": keys.collect::<Vec<_>>(),
        "tensors": tensors.collect::<Vec<_>>(),
    })
}

fn as_text(args: &ShowArgs, gguf: &Gguf) -> String {
    let mut out = String::new();
    // writing to a String cannot fail
    let _ = sections(&mut out, args, gguf);
    out
}

fn sections(out: &mut String, args: &ShowArgs, gguf: &Gguf) -> std::fmt::Result {
    let parts = match gguf.part_names().count() {
        1 => String::new(),
        n => format!(", {n} parts"),
    };
    writeln!(
        out,
        "{}: GGUF v{}{parts}, {}, {} keys, {} tensors, alignment {}",
        one_line(gguf.name()),
        gguf.version(),
        size(gguf.file_bytes()),
        gguf.keys().len(),
        gguf.tensors().len(),
        gguf.alignment()
    )?;
    let keys = args.chosen_keys(gguf);
    if !keys.is_empty() {
        writeln!(out, "\nKeys")?;
    }
    for (key, value) in keys {
        let ty = value::type_name(&value);
        writeln!(
            out,
            "  {:<44} {ty:<8} {}",
            one_line(key),
            value::text(&value, args.all)
        )?;
    }
    let tensors = args.chosen_tensors(gguf);
    if !tensors.is_empty() {
        writeln!(out, "\nTensors (shape: innermost dimension first)")?;
    }
    for t in tensors {
        let shape = format!("{:?}", t.dims);
        let place = match gguf.file_offset(t) {
            Some(offset) if parts.is_empty() => format!("at {offset}"),
            Some(offset) => format!("at {offset} of part {}", t.part + 1),
            None => String::new(),
        };
        writeln!(
            out,
            "  {:<32} {:<8} {shape:<18} {:>11}  {place}",
            one_line(&t.name),
            t.ty.name(),
            size(t.bytes)
        )?;
    }
    Ok(())
}
