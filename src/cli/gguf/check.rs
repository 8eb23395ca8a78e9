//! `octavo gguf check`: looks for faults of a file.

use std::fmt::Write;

use clap::Args;
use gguf_rs_lite::Gguf;
use octavo_analysis::facts::Facts;
use octavo_analysis::files::{self, Finding, Findings};
use octavo_engine::EngineOptions;
use octavo_kernels::IsaChoice;
use serde_json::json;

use super::{FileArg, open};
use crate::failure::{Exit, Failure};
use crate::terminal;
use crate::threads::ThreadsArgs;
use crate::wording::one_line;

/// Look for faults of a file: of its keys, its vocabulary and every weight
///
/// Errors: whatever octavo refuses to load, and weights that are NaN or infinite. Warnings: scales
/// of blocks that underflow f16, tokens of the same text, assumptions about missing keys. Exit
/// code: 0 without errors, else 1.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo gguf check model.gguf
  octavo gguf check hf:USER/REPO:Q4_K_M --json")]
pub(super) struct CheckArgs {
    #[command(flatten)]
    file: FileArg,
    #[command(flatten)]
    threads: ThreadsArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &CheckArgs) -> Result<Exit, Failure> {
    let gguf = open(&args.file.path()?)?;
    let bar = terminal::Progress::bytes("checking");
    let total = gguf.tensors().iter().map(|t| t.bytes).sum();
    let mut done = 0;
    let found = files::check(&gguf, args.threads.count(), &mut |bytes| {
        done += bytes;
        bar.at(done, total);
    });
    bar.clear();
    let mut found = found?;
    if is_model(&gguf)? {
        add_refusals(&gguf, &args.threads, &mut found)?;
    }
    let out = match args.json {
        true => {
            let name = gguf.name();
            let object = json!({"file": name, "errors": found.errors, "warnings": found.warnings});
            format!("{object}\n")
        }
        false => as_text(&gguf, &found),
    };
    terminal::print(out.as_bytes())?;
    Ok(match found.errors.is_empty() {
        true => Exit::Done,
        false => Exit::Outside,
    })
}

/// Returns whether the file should load as a model or an image encoder: it is not marked as
/// something else, such as an importance matrix.
fn is_model(gguf: &Gguf) -> Result<bool, Failure> {
    let kind = gguf.str("general.type")?;
    Ok(kind.is_none_or(|kind| ["model", "mmproj"].contains(&kind)))
}

/// Adds the reasons why the file would not load, and the assumptions that loading it makes.
fn add_refusals(gguf: &Gguf, threads: &ThreadsArgs, found: &mut Findings) -> Result<(), Failure> {
    let isa = IsaChoice::Auto.resolve()?;
    let facts = Facts::new(gguf, &EngineOptions::default(), isa, threads.decide());
    found.errors.extend(facts.refusals.iter().map(|r| Finding {
        of: r.what.to_owned(),
        what: r.why.clone(),
    }));
    found
        .warnings
        .extend(facts.warnings.iter().map(|why| Finding {
            of: "loading".to_owned(),
            what: why.clone(),
        }));
    Ok(())
}

fn as_text(gguf: &Gguf, found: &Findings) -> String {
    let mut out = String::new();
    let kinds = [("error", &found.errors), ("warning", &found.warnings)];
    for (kind, findings) in kinds {
        for finding in findings {
            let (of, what) = (one_line(&finding.of), one_line(&finding.what));
            // writing to a String cannot fail
            let _ = writeln!(out, "{kind}: {of}: {what}");
        }
    }
    let count = |n: usize, what: &str| match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    let (errors, warnings) = (found.errors.len(), found.warnings.len());
    let _ = writeln!(
        out,
        "{}: {}, {}",
        one_line(gguf.name()),
        count(errors, "error"),
        count(warnings, "warning")
    );
    out
}
