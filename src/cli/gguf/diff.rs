//! `octavo gguf diff`: compares the keys and tensors of two files.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use octavo_analysis::files::{self, FileDiff, KeyFacts, TensorDiff, TensorFacts};
use serde_json::Value;

use super::{PatternArgs, open};
use crate::failure::{Exit, Failure};
use crate::hub;
use crate::terminal;
use crate::threads::ThreadsArgs;
use crate::wording::one_line;

/// Compare two GGUF files: keys, and tensors by shape, type, bytes and values
///
/// octavo diff compares what two files compute; this compares what they contain. Exit code: 0 if
/// nothing differs, else 1.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo gguf diff a.gguf b.gguf
  octavo gguf diff f16.gguf q4_k_m.gguf attn_v
  octavo gguf diff a.gguf b.gguf --json

NMSE is the mean square of the difference, as a fraction of the mean square of A's values.")]
pub(super) struct DiffArgs {
    /// GGUF file (of a split model, its first part), or a model of the hub
    #[arg(value_name = "A", value_hint = clap::ValueHint::FilePath)]
    a: PathBuf,
    /// Another
    #[arg(value_name = "B", value_hint = clap::ValueHint::FilePath)]
    b: PathBuf,
    #[command(flatten)]
    patterns: PatternArgs,
    #[command(flatten)]
    threads: ThreadsArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &DiffArgs) -> Result<Exit, Failure> {
    let (a, b) = (open(&hub::model(&args.a)?)?, open(&hub::model(&args.b)?)?);
    let bar = terminal::Progress::bytes("comparing");
    let total = a.tensors().iter().map(|t| t.bytes).sum();
    let mut done = 0;
    let found = files::diff(
        &a,
        &b,
        &|name| args.patterns.has(name),
        args.threads.count(),
        &mut |bytes| {
            done += bytes;
            bar.at(done, total);
        },
    );
    bar.clear();
    let found = found?;
    let out = match args.json {
        true => format!("{}\n", serde_json::to_string(&found)?),
        false => as_text(&found),
    };
    terminal::print(out.as_bytes())?;
    Ok(match found.is_equal() {
        true => Exit::Done,
        false => Exit::Outside,
    })
}

fn as_text(found: &FileDiff) -> String {
    let mut out = String::new();
    // writing to a String cannot fail
    let _ = sections(&mut out, found);
    out
}

fn sections(out: &mut String, found: &FileDiff) -> std::fmt::Result {
    let FileDiff {
        keys,
        equal_keys,
        tensors,
        equal_tensors,
    } = found;
    writeln!(out, "keys: {equal_keys} equal, {} differ", keys.len())?;
    for difference in keys {
        let key = one_line(&difference.key);
        for (sign, value) in [('-', &difference.a), ('+', &difference.b)] {
            if let Some(value) = value {
                writeln!(
                    out,
                    "  {sign} {key:<44} {}",
                    of_key(value, difference.first)
                )?;
            }
        }
    }
    writeln!(
        out,
        "tensors: {equal_tensors} equal, {} differ",
        tensors.len()
    )?;
    for difference in tensors {
        writeln!(out, "  {}", of_tensor(difference))?;
    }
    Ok(())
}

/// Formats a value; of a long array, the first element that differs.
fn of_key(key: &KeyFacts, first: Option<usize>) -> String {
    let value = match &key.value {
        Value::String(text) => one_line(text),
        Value::Object(array) => format!("{} values", array["len"]),
        other => other.to_string(),
    };
    let cut: String = value.chars().take(60).collect();
    let value = match cut.len() == value.len() {
        true => value,
        false => format!("{cut}... ({} characters)", value.chars().count()),
    };
    match (first, key.value.is_array()) {
        (Some(i), false) => format!("{:<8} element {i}: {value}", key.ty),
        _ => format!("{:<8} {value}", key.ty),
    }
}

fn of_tensor(difference: &TensorDiff) -> String {
    let name = one_line(&difference.name);
    let whole = |t: &TensorFacts| format!("{} {:?}", t.ty, t.shape);
    match (&difference.a, &difference.b) {
        (Some(a), Some(b)) => {
            let what = match (a.ty == b.ty, a.shape == b.shape) {
                (true, true) => whole(a),
                (false, true) => format!("{} -> {} {:?}", a.ty, b.ty, a.shape),
                _ => format!("{} -> {}", whole(a), whole(b)),
            };
            let error = match &difference.error {
                None => String::new(),
                Some(error) if error.differing == 0 => "  equal values".to_owned(),
                Some(e) => format!(
                    "  NMSE {:.3e}, max |Δ| {:.3e} at {} ({:e} and {:e}), {} of {} values differ",
                    e.nmse, e.max_abs, e.at, e.a, e.b, e.differing, e.values
                ),
            };
            format!("~ {name:<32} {what}{error}")
        }
        (Some(a), None) => format!("- {name:<32} {}", whole(a)),
        (None, b) => format!(
            "+ {name:<32} {}",
            b.as_ref().map_or_else(String::new, whole)
        ),
    }
}
