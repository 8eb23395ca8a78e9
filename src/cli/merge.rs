//! `octavo merge`: joins the shards of a measurement.

use std::path::PathBuf;

use clap::Args;
use octavo_analysis::quant_report::Failed;
use octavo_analysis::shards::{self, Content, Merged, Named, Shard};

use super::diff;
use super::failure::{Exit, Failure};
use super::imatrix;
use super::output::{Inputs, Kind, Output};
use super::perplexity;
use super::quant_report::{self, Report};
use super::shards::codes;
use super::signal;
use super::terminal;

/// Join the shards that --shard wrote, and print what one run would have printed
///
/// Every figure has the same digits as in a single run, however the work was divided. All shards of
/// one measurement must be given, each part once.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo perplexity model.gguf -f text.txt --shard 3/8 --out 3.shard    one of eight jobs
  octavo merge *.shard                                                 when all are done
  octavo merge --json *.shard
  octavo merge *.shard -o imatrix.gguf                                 shards of octavo imatrix
  octavo merge *.shard -o small.kld                                    shards with --base-top

Exit code: what one run would have given (1 for a suite that is outside its tolerances), 2 if the
shards do not belong together or are not complete, 75 if another try may help.
docs/clusters.md shows Slurm, GNU parallel, Kubernetes and Ray.")]
pub(super) struct MergeArgs {
    /// The shards, in any order
    #[arg(value_name = "SHARD", required = true, value_hint = clap::ValueHint::FilePath)]
    shards: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// For a suite: show every comparison, not only what changed
    #[arg(long)]
    all: bool,
    /// Output file: the importance matrix, for shards of octavo imatrix, or the small base, for
    /// those of octavo perplexity --base-top
    #[arg(short, long, value_name = "OUT", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Write the report as one HTML page, for shards of octavo quant-report and diff --suite
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    html: Option<PathBuf>,
    /// Replace any file at the output, unless it is an input
    #[arg(long)]
    force: bool,
}

/// Runs the command.
pub(super) fn run(args: &MergeArgs) -> Result<Exit, Failure> {
    merge(args).map_err(codes)
}

fn merge(args: &MergeArgs) -> Result<Exit, Failure> {
    let inputs = Inputs::default().files(&args.shards);
    signal::install()?;
    let named = |path: &PathBuf| Ok((path.display().to_string(), Shard::open(path)?));
    let shards: Result<Vec<Named>, Failure> = args.shards.iter().map(named).collect();
    let Merged {
        about,
        isas,
        content,
    } = shards::merge(shards?)?;
    args.check(&content)?;
    let output = args.output.as_deref().map(|path| Output {
        path,
        kind: match content {
            Content::SmallBase(_) => Kind::Base,
            _ => Kind::Imatrix,
        },
        force: args.force,
        inputs: &inputs,
    });
    output.as_ref().map_or(Ok(()), Output::check)?;
    let page = args.html.as_deref().map(|path| Output {
        path,
        kind: Kind::Page(match content {
            Content::Suite(_) => diff::TITLE,
            _ => quant_report::TITLE,
        }),
        force: args.force,
        inputs: &inputs,
    });
    page.as_ref().map_or(Ok(()), Output::check)?;
    if isas.len() > 1 {
        terminal::note(&format!(
            "octavo: note: computed with {}: figures are equal up to the order of sums",
            isas.join(" and ")
        ));
    }
    let out = match (content, &output) {
        (Content::Imatrix(sums), Some(output)) => {
            return imatrix::write(&sums, &about.source, output);
        }
        (Content::Imatrix(_), None) => return Err(Failure::Usage(NO_OUTPUT.to_owned())),
        (Content::QuantReport(None), _) => return Ok(Exit::Done),
        (Content::QuantReport(Some(scores)), _) => {
            let report = Report::of(about.model, &scores);
            for Failed { name, error } in report.failed() {
                terminal::note(&format!("octavo: error: {name}: {error}"));
            }
            return report.finish(args.json, page.as_ref());
        }
        (Content::Suite(cells), _) => {
            return diff::suite::print(&cells, args.json, args.all, page.as_ref());
        }
        (Content::Perplexity(chunks), _) => {
            perplexity::perplexity(chunks, None, &about, args.json)?
        }
        (Content::SmallBase(chunks), Some(output)) => {
            output.check()?;
            chunks.write(output.path)?;
            perplexity::report_small_base(output.path, chunks.shape())?;
            let likelihoods = chunks.likelihoods().to_vec();
            perplexity::perplexity(likelihoods, Some(output.path), &about, args.json)?
        }
        (Content::SmallBase(_), None) => {
            return Err(Failure::Usage(NO_OUTPUT_OF_BASE.to_owned()));
        }
        (Content::FromSmallBase { chunks, slacks }, _) => {
            perplexity::divergence_from_small(chunks, &slacks, &about, args.json)?
        }
        (Content::Divergence { cut, chunks }, _) => {
            perplexity::divergence(chunks, cut, &about, args.json)?
        }
    };
    terminal::print(out.as_bytes())?;
    Ok(Exit::Done)
}

const NO_OUTPUT_OF_BASE: &str = "shards of a small base: expected -o OUT.kld with them";
const NO_OUTPUT: &str = "shards of octavo imatrix: expected -o OUT.gguf with them";

impl MergeArgs {
    /// Refuses options that would have no effect on shards of this kind.
    fn check(&self, content: &Content) -> Result<(), Failure> {
        let is_imatrix = matches!(content, Content::Imatrix(_));
        let has_output = is_imatrix || matches!(content, Content::SmallBase(_));
        let has_page = matches!(content, Content::QuantReport(_) | Content::Suite(_));
        let useless = [
            ("--json", self.json && is_imatrix),
            ("--all", self.all && !matches!(content, Content::Suite(_))),
            ("-o OUT", self.output.is_some() && !has_output),
            ("--html", self.html.is_some() && !has_page),
            (
                "--force",
                self.force && self.output.is_none() && self.html.is_none(),
            ),
        ];
        match useless.into_iter().find(|(_, is_set)| *is_set) {
            Some((option, _)) => Err(Failure::Usage(format!(
                "{option} has no effect: expected shards of another measurement with it"
            ))),
            None => Ok(()),
        }
    }
}
