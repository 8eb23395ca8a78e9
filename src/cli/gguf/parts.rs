//! `octavo gguf split` and `merge`: one file into several and back.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use gguf_rs_lite::{PartLimit, SplitPlan, merged};

use super::{FileArg, NewFileArgs, open};
use crate::failure::{Exit, Failure};
use crate::output::Inputs;
use crate::signal;
use crate::terminal::{self, note};
use crate::wording::size;

/// Split a model into several files
///
/// Writes llama-gguf-split's files, byte for byte: PREFIX-00001-of-00003.gguf has the keys and the
/// first tensors, the others have the rest.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo gguf split model.gguf model --split-max-size 2G
  octavo gguf split model.gguf model --split-max-tensors 64 --no-tensor-first-split
  octavo gguf split model.gguf model --split-max-size 500M --dry-run")]
pub(super) struct SplitArgs {
    #[command(flatten)]
    file: FileArg,
    /// Path of the new files, up to -00001-of-00003.gguf
    #[arg(value_name = "PREFIX", value_hint = clap::ValueHint::FilePath)]
    prefix: PathBuf,
    /// Maximum number of tensors in a file
    #[arg(long, value_name = "N", default_value_t = 128)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    split_max_tensors: u32,
    /// Maximum size of a file's tensors instead: M is 1000^2 bytes, G 1000^3; a larger tensor gets
    /// a file of its own
    #[arg(long, value_name = "N(M|G)", value_parser = decimal_size)]
    #[arg(conflicts_with = "split_max_tensors")]
    split_max_size: Option<u64>,
    /// Write the keys to a first file without tensors
    #[arg(long)]
    no_tensor_first_split: bool,
    /// Print what would be written, without writing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    new: NewFileArgs,
}

/// Join the files of a split model
///
/// Writes llama-gguf-split's file, byte for byte: with the keys split.no, split.tensors.count, and
/// split.count, which is 0.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  octavo gguf merge model-00001-of-00003.gguf model.gguf")]
pub(super) struct MergeArgs {
    #[command(flatten)]
    file: FileArg,
    /// Output file
    #[arg(value_name = "OUT", value_hint = clap::ValueHint::FilePath)]
    output: PathBuf,
    #[command(flatten)]
    new: NewFileArgs,
}

impl SplitArgs {
    /// Returns whether the command prints to stdout.
    pub(super) fn prints(&self) -> bool {
        self.dry_run
    }
}

/// Parses a size as llama-gguf-split takes it.
fn decimal_size(text: &str) -> Result<u64, String> {
    let expected = || "expected a number with M or G, such as 500M or 2G".to_owned();
    let (number, unit) = match text.strip_suffix('M') {
        Some(number) => (number, 1_000_000),
        None => (text.strip_suffix('G').ok_or_else(expected)?, 1_000_000_000),
    };
    let number: u64 = number.parse().map_err(|_| expected())?;
    let bytes = number.checked_mul(unit).filter(|&bytes| bytes > 0);
    bytes.ok_or_else(expected)
}

/// Runs `octavo gguf split`.
pub(super) fn split(args: &SplitArgs) -> Result<Exit, Failure> {
    let path = args.file.path()?;
    let gguf = open(&path)?;
    let limit = match args.split_max_size {
        Some(bytes) => PartLimit::Bytes(bytes),
        None => PartLimit::Tensors(args.split_max_tensors as usize),
    };
    let plan = SplitPlan::new(&gguf, &args.prefix, limit, args.no_tensor_first_split)?;
    let n = plan.parts().len();
    if args.dry_run {
        let mut out = String::new();
        for part in plan.parts() {
            let (path, tensors) = (part.path.display(), part.tensors.len());
            // writing to a String cannot fail
            let _ = writeln!(
                out,
                "{path}  {tensors:>5} tensors  {:>11}",
                size(part.bytes)
            );
        }
        terminal::print(out.as_bytes())?;
        return Ok(Exit::Done);
    }
    let inputs = Inputs::default().model(Some(&path));
    for part in plan.parts() {
        args.new.output(&part.path, &inputs).check()?;
    }
    signal::install()?;
    let bar = terminal::Progress::bytes("splitting");
    let total = plan.parts().iter().map(|part| part.bytes).sum();
    let mut done = 0;
    let result = plan.write(&mut |part| {
        done += part.bytes;
        bar.at(done, total);
    });
    bar.clear();
    result?;
    for part in plan.parts() {
        let (path, tensors) = (part.path.display(), part.tensors.len());
        let bytes = size(part.bytes);
        note(&format!(
            "octavo: wrote {path} ({tensors} tensors, {bytes})"
        ));
    }
    note(&format!(
        "octavo: {n} files with {} tensors in all",
        gguf.tensors().len()
    ));
    Ok(Exit::Done)
}

/// Runs `octavo gguf merge`.
pub(super) fn merge(args: &MergeArgs) -> Result<Exit, Failure> {
    let path = args.file.path()?;
    let gguf = open(&path)?;
    if gguf.u32("split.count")?.unwrap_or(0) == 0 {
        return Err(Failure::Input(format!(
            "{}: expected the first file of a split model (key split.count), got a whole model",
            path.display()
        )));
    }
    let inputs = Inputs::default().model(Some(&path));
    let output = args.new.output(&args.output, &inputs);
    output.check()?;
    signal::install()?;
    let bytes = merged(&gguf).write_file(&args.output)?;
    note(&format!(
        "octavo: wrote {} ({} files, {} tensors, {})",
        args.output.display(),
        gguf.part_names().count(),
        gguf.tensors().len(),
        size(bytes)
    ));
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_llama_gguf_split() {
        assert_eq!(decimal_size("2G"), Ok(2_000_000_000));
        assert_eq!(decimal_size("500M"), Ok(500_000_000));
        for text in ["", "2", "0M", "-1G", "1.5G", "2K", "99999999999999G"] {
            assert!(decimal_size(text).is_err(), "{text}");
        }
    }
}
