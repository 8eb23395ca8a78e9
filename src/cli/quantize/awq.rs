//! `octavo quantize … awq`: writes a folder with 4-bit groups.

use std::path::Path;
use std::time::Instant;

use clap::Args;
use octavo_analysis::awq::{Activations, Options, Scaled, check, quantized};
use octavo_engine::{Engine, EngineOptions, ModelSource};
use octavo_hf as hf;

use super::super::failure::{Exit, Failure};
use super::super::output::check_new_folder;
use super::super::terminal::{Progress, note};
use super::super::{load, prompt, signal};

/// Options of the type awq.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of the type awq")]
pub(super) struct AwqArgs {
    /// Number of weights that share a scale and a zero point: 32, 64 or 128 [default: 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32))]
    group: Option<u32>,
    /// Maximum number of tokens of the text [default: 8192]
    #[arg(
        long,
        value_name = "N",
        requires = "file",
        value_parser = clap::value_parser!(u32).range(256..),
    )]
    tokens: Option<u32>,
    /// Round weights without searching scales on a text
    #[arg(long, conflicts_with = "file")]
    no_search: bool,
}

impl AwqArgs {
    /// Returns whether any of them is set.
    pub(super) fn is_set(&self) -> bool {
        self.group.is_some() || self.tokens.is_some() || self.no_search
    }
}

/// Runs the command.
pub(super) fn run(
    args: &AwqArgs,
    file: Option<&Path>,
    input: &Path,
    output: &Path,
    threads: usize,
) -> Result<Exit, Failure> {
    if file.is_none() && !args.no_search {
        return Err(Failure::Usage(
            "awq: expected -f FILE, a text to search scales on, or --no-search".to_owned(),
        ));
    }
    check_new_folder(output)?;
    signal::install()?;
    let text = file.map(prompt::read).transpose()?;
    let start = Instant::now();
    let source = ModelSource::Path(input.to_owned());
    let running = EngineOptions {
        ctx: Some(512),
        threads: Some(threads),
        ..EngineOptions::default()
    };
    let engine = load::shown(|sink| Engine::load(&source, &running, sink))?;
    let options = Options {
        group: args.group.map_or(128, |n| n as usize),
        threads,
    };
    // checked before minutes of calibration
    check(&engine, options)?;
    let activations = match &text {
        Some(text) => {
            let bar = Progress::tokens("calibrating");
            let most = args.tokens.unwrap_or(8192) as usize;
            let activations =
                Activations::of_text(&engine, text, most, &mut |done, total| bar.at(done, total));
            bar.clear();
            Some(activations?)
        }
        None => None,
    };
    let view = quantized(&engine, activations.as_ref(), options, &mut |scaled| {
        note(&row(scaled))
    })?;
    hf::write(&view, output)?;
    note(&format!(
        "octavo: wrote {} in {:.1} s",
        output.display(),
        start.elapsed().as_secs_f64()
    ));
    Ok(Exit::Done)
}

/// Formats a row: matrices, ratio, errors.
fn row(scaled: &Scaled) -> String {
    let (first, rest) = scaled
        .tensors
        .split_first()
        .map_or(("", 0), |(first, rest)| (first.as_str(), rest.len()));
    let more = if rest == 0 {
        String::new()
    } else {
        format!(" and {rest} more")
    };
    let what = format!("{first}{more}");
    let (error, unscaled) = (scaled.error, scaled.unscaled);
    format!(
        "{what:<36} ratio {:.2}  error {error:.2e}, without scales {unscaled:.2e}",
        scaled.ratio
    )
}
