//! `octavo tokenize`: shows a text as tokens. Needs a vocabulary, not a model.

use std::io::Write;

use clap::Args;
use octavo_text::tokenizer::{EncodeOptions, Tokenizer};

use super::args::ModelArgs;
use super::failure::{Exit, Failure};
use super::prompt::TextArgs;
use super::{load, terminal};

/// Show how a text is cut into tokens
///
/// Works on files that have only a vocabulary, too. The output is llama-tokenize's.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo tokenize model.gguf -p \"Hello world\"
  octavo tokenize model.gguf -f text.txt --count
  echo -n \"Hello\" | octavo tokenize model.gguf -f - --ids")]
pub(super) struct TokenizeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Print the ids on one line: [1, 2, 3]
    #[arg(long)]
    ids: bool,
    /// Print the number of tokens (with --ids: after the ids)
    #[arg(long)]
    count: bool,
    /// Neither add special tokens nor parse them in the text
    #[arg(long)]
    no_special: bool,
    /// Read the file into memory instead of mapping it
    #[arg(long)]
    no_mmap: bool,
}

/// Runs the command.
pub(super) fn run(args: &TokenizeArgs) -> Result<Exit, Failure> {
    let text = args.text.require()?;
    let gguf = load::source(&args.model)?.open(!args.no_mmap)?;
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    terminal::warn(tokenizer.warnings());
    let special = !args.no_special;
    let ids = tokenizer.encode(
        &text,
        EncodeOptions {
            add_special: special,
            parse_special: special,
        },
    )?;
    let mut out = Vec::new();
    if args.ids {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        writeln!(out, "[{}]", ids.join(", "))?;
    }
    if args.count {
        writeln!(out, "{}", ids.len())?;
    }
    if !args.ids && !args.count {
        for &id in &ids {
            write!(out, "{id:6} -> '")?;
            out.extend_from_slice(tokenizer.piece(id).unwrap_or_default());
            out.extend_from_slice(b"'\n");
        }
    }
    terminal::print(&out)?;
    Ok(Exit::Done)
}
