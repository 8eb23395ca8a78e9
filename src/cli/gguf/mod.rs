//! `octavo gguf`: looks at GGUF files and changes them, whether or not a model runs from them.

mod arrays;
mod check;
mod diff;
mod keys;
mod parts;
mod show;
mod value;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use gguf_rs_lite::{Gguf, OpenOptions};
use regex::Regex;

use super::failure::{Exit, Failure};
use super::hub;
use super::output::{Inputs, Kind, Output};

/// Look at GGUF files and change them: keys, tensors, parts
///
/// Works on any GGUF file, whether or not a model can be loaded from it; octavo inspect says what a
/// file means to octavo.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo gguf show model.gguf rope
  octavo gguf set model.gguf general.name=str:Mine -o mine.gguf
  octavo gguf split model.gguf model --split-max-size 2G
  octavo gguf merge model-00001-of-00003.gguf model.gguf
  octavo gguf diff a.gguf b.gguf
  octavo gguf check model.gguf

Each command has examples of its own: octavo gguf set --help.")]
pub(super) struct GgufArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Show(show::ShowArgs),
    Set(keys::SetArgs),
    Rm(keys::RmArgs),
    Rename(keys::RenameArgs),
    Split(parts::SplitArgs),
    Merge(parts::MergeArgs),
    Diff(diff::DiffArgs),
    Check(check::CheckArgs),
    Extract(arrays::ExtractArgs),
    Insert(arrays::InsertArgs),
}

impl GgufArgs {
    /// Returns whether the command prints to stdout.
    pub(super) fn prints(&self) -> bool {
        match &self.command {
            Command::Show(_) | Command::Diff(_) | Command::Check(_) => true,
            Command::Split(args) => args.prints(),
            _ => false,
        }
    }
}

/// Runs the command.
pub(super) fn run(args: &GgufArgs) -> Result<Exit, Failure> {
    match &args.command {
        Command::Show(args) => show::run(args),
        Command::Set(args) => keys::set(args),
        Command::Rm(args) => keys::rm(args),
        Command::Rename(args) => keys::rename(args),
        Command::Split(args) => parts::split(args),
        Command::Merge(args) => parts::merge(args),
        Command::Diff(args) => diff::run(args),
        Command::Check(args) => check::run(args),
        Command::Extract(args) => arrays::extract(args),
        Command::Insert(args) => arrays::insert(args),
    }
}

/// Input file of a command.
#[derive(Debug, Args)]
struct FileArg {
    /// GGUF file (of a split model, its first part), or a model of the hub
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
}

impl FileArg {
    /// Returns the path; a model of the hub is downloaded first.
    fn path(&self) -> Result<PathBuf, Failure> {
        hub::model(&self.file)
    }
}

/// Opens a file.
fn open(path: &Path) -> Result<Gguf, Failure> {
    Ok(Gguf::open(path, &OpenOptions::default())?)
}

/// Options of a new file.
#[derive(Debug, Args)]
struct NewFileArgs {
    /// Replace the output if it exists, unless it is an input
    #[arg(long)]
    force: bool,
}

impl NewFileArgs {
    /// Returns an output that is never an input.
    fn output<'a>(&self, path: &'a Path, inputs: &'a Inputs) -> Output<'a> {
        Output {
            path,
            kind: Kind::Model,
            force: self.force,
            inputs,
        }
    }
}

/// Names to choose.
#[derive(Debug, Args)]
struct PatternArgs {
    /// Only names in which one of these regular expressions is found
    #[arg(value_name = "PATTERN", value_parser = pattern)]
    patterns: Vec<Regex>,
}

impl PatternArgs {
    /// Returns whether a name is chosen: every one without patterns.
    fn has(&self, name: &str) -> bool {
        self.patterns.is_empty() || self.patterns.iter().any(|p| p.is_match(name))
    }
}

fn pattern(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| error.to_string().replace('\n', " "))
}
