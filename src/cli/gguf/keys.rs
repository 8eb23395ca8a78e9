//! `octavo gguf set`, `rm` and `rename`: change keys, in place where no byte moves.

use std::path::{Path, PathBuf};

use clap::Args;
use gguf_rs_lite::{KeyEdit, OwnedValue};

use super::{FileArg, NewFileArgs, open, value};
use crate::args::KeyValue;
use crate::failure::{Exit, Failure};
use crate::output::Inputs;
use crate::terminal::note;
use crate::wording::size;
use crate::{hub, prompt, signal};

/// Set keys
///
/// A key that the file has keeps its type: integers and floats are converted to it, other values
/// are refused. A new key gets the type that is given, after the others; int is u32 where the value
/// fits, else i64, and float is f32.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo gguf set model.gguf llama.rope.freq_base=float:1000000
  octavo gguf set model.gguf general.name=str:Mine general.tags='[str]:[\"a\",\"b\"]' -o mine.gguf
  octavo gguf set model.gguf --from-file tokenizer.chat_template=chat.jinja -o mine.gguf

A value that takes as many bytes as the old one is written over it, in FILE itself. Everything else
moves what follows, and needs -o OUT.")]
pub(super) struct SetArgs {
    #[command(flatten)]
    file: FileArg,
    /// Keys and values; TYPE is int, float, bool or str, a type of GGUF (u8, i8, u16, i16, u32,
    /// i32, u64, i64, f32, f64), or one of these in brackets with a JSON array as VALUE
    #[arg(value_name = "KEY=TYPE:VALUE", value_parser = value::assignment)]
    #[arg(required_unless_present = "from_file")]
    values: Vec<KeyValue>,
    /// Set KEY to the text in FILE; may be given several times
    #[arg(long, value_name = "KEY=FILE", value_parser = key_and_file)]
    from_file: Vec<(String, PathBuf)>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Remove keys
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  octavo gguf rm model.gguf tokenizer.chat_template -o plain.gguf")]
pub(super) struct RmArgs {
    #[command(flatten)]
    file: FileArg,
    /// Keys
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<String>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Rename keys
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo gguf rename model.gguf general.name=general.note            as long: in place
  octavo gguf rename model.gguf general.name=general.basename -o renamed.gguf")]
pub(super) struct RenameArgs {
    #[command(flatten)]
    file: FileArg,
    /// Old and new names
    #[arg(value_name = "OLD=NEW", required = true, value_parser = old_and_new)]
    names: Vec<(String, String)>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
struct OutputArgs {
    /// Write a new file, and leave FILE as it is
    #[arg(short, long, value_name = "OUT", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
    #[command(flatten)]
    new: NewFileArgs,
}

fn key_and_file(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((key, file)) if !key.is_empty() && !file.is_empty() => {
            Ok((key.to_owned(), PathBuf::from(file)))
        }
        _ => Err("expected KEY=FILE".to_owned()),
    }
}

fn old_and_new(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((old, new)) if !old.is_empty() && !new.is_empty() => {
            Ok((old.to_owned(), new.to_owned()))
        }
        _ => Err("expected OLD=NEW".to_owned()),
    }
}

/// Runs `octavo gguf set`.
pub(super) fn set(args: &SetArgs) -> Result<Exit, Failure> {
    let mut edits: Vec<KeyEdit> = args
        .values
        .iter()
        .map(|(key, value)| KeyEdit::Set(key.clone(), value.clone()))
        .collect();
    for (key, file) in &args.from_file {
        let text = OwnedValue::Str(prompt::read(file)?);
        edits.push(KeyEdit::Set(key.clone(), text));
    }
    let files = args.from_file.iter().map(|(_, file)| file);
    edit(
        &args.file,
        &edits,
        &args.output,
        Inputs::default().files(files),
    )
}

/// Runs `octavo gguf rm`.
pub(super) fn rm(args: &RmArgs) -> Result<Exit, Failure> {
    let edits: Vec<KeyEdit> = args.keys.iter().cloned().map(KeyEdit::Remove).collect();
    edit(&args.file, &edits, &args.output, Inputs::default())
}

/// Runs `octavo gguf rename`.
pub(super) fn rename(args: &RenameArgs) -> Result<Exit, Failure> {
    let names = args.names.iter().cloned();
    let edits: Vec<KeyEdit> = names
        .map(|(from, to)| KeyEdit::Rename { from, to })
        .collect();
    edit(&args.file, &edits, &args.output, Inputs::default())
}

/// Applies edits, to a new file or in place.
fn edit(
    file: &FileArg,
    edits: &[KeyEdit],
    output: &OutputArgs,
    inputs: Inputs,
) -> Result<Exit, Failure> {
    let path = file.path()?;
    let gguf = open(&path)?;
    let edited = gguf.edit(edits)?;
    if let Some(out) = &output.output {
        let inputs = inputs.model(Some(&path));
        output.new.output(out, &inputs).check()?;
        signal::install()?;
        let bytes = edited.write_file(out)?;
        note(&format!(
            "octavo: wrote {} ({})",
            out.display(),
            size(bytes)
        ));
        return Ok(Exit::Done);
    }
    if output.new.force {
        return Err(Failure::Usage(
            "--force: expected -o OUT with it".to_owned(),
        ));
    }
    if hub::is_remote(&file.file) {
        let expected = "expected -o OUT: a model of the cache stays as it was downloaded";
        return Err(Failure::Usage(format!(
            "{}: {expected}",
            file.file.display()
        )));
    }
    let moves = edited.moves().map(str::to_owned);
    let Some(in_place) = edited.in_place() else {
        let key = moves.unwrap_or_default();
        return Err(Failure::Usage(format!(
            "{}: key {key}: the change moves what follows it: expected -o OUT for a new file",
            path.display()
        )));
    };
    let bytes = in_place.bytes();
    // a file is not changed while it is mapped
    drop(gguf);
    in_place.write(&path)?;
    report_in_place(&path, bytes);
    Ok(Exit::Done)
}

fn report_in_place(path: &Path, bytes: u64) {
    let what = match bytes {
        0 => "nothing to change".to_owned(),
        1 => "1 byte changed in place".to_owned(),
        n => format!("{n} bytes changed in place"),
    };
    note(&format!("octavo: {}: {what}", path.display()));
}
