//! Small bases: written with `--base-top`, recognized when they are read.

use std::path::Path;

use clap::Args;
use octavo_analysis::eval::base::Shape;
use octavo_analysis::eval::{self, Divergence, RowSize, Slack, SmallReader};
use octavo_analysis::shards::About;
use octavo_engine::EngineOptions;

use super::{PerplexityArgs, Watch, fit, print, scoring};
use crate::failure::{Exit, Failure};
use crate::shards::about;
use crate::signal::Generating;
use crate::wording::size;
use crate::{load, terminal};

/// Options of small bases.
#[derive(Debug, Args)]
#[command(next_help_heading = "Small bases")]
pub(super) struct SmallArgs {
    /// Write a small base: of each row the N most likely tokens, the sum of the others and a sample
    /// of these. --kl-divergence then prints how far its figures can be off
    #[arg(long, value_name = "N", conflicts_with = "kl_divergence")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    base_top: Option<u32>,
    /// Bits of a log-probability in a small base, 8 to 16
    #[arg(long, value_name = "BITS", default_value_t = 16, requires = "base_top")]
    #[arg(value_parser = clap::value_parser!(u32).range(8..=16))]
    base_bits: u32,
}

impl SmallArgs {
    /// Returns the size of the rows to write, if a small base is asked for.
    pub(super) fn size(&self) -> Option<RowSize> {
        self.base_top.map(|top| RowSize {
            top: top as usize,
            bits: self.base_bits,
        })
    }
}

/// Reports how much a small base saves.
pub(crate) fn report(path: &Path, shape: Shape) -> Result<(), Failure> {
    let bytes = path.metadata()?.len();
    let rows = (shape.rows() * shape.n_chunks) as u64;
    let whole = rows * shape.row_bytes() as u64;
    terminal::note(&format!(
        "octavo: {}: {}, {} bytes for each scored token: 1/{:.0} of a whole base",
        path.display(),
        size(bytes),
        bytes / rows.max(1),
        whole as f64 / bytes as f64
    ));
    Ok(())
}

/// Compares a model with a small base.
pub(super) fn compare(
    args: &PerplexityArgs,
    mut options: EngineOptions,
    path: &Path,
    text: Option<Vec<u8>>,
) -> Result<Exit, Failure> {
    let mut base = SmallReader::open(path)?;
    let n_ctx = base.shape().n_ctx;
    fit(base.file(), n_ctx, &mut options)?;
    let engine = load::engine_with(&args.model, options.clone())?;
    if let Some(text) = text {
        let tokens = eval::encode(engine.tokenizer(), &text)?;
        check_text(&base, &tokens)?;
    }
    let (scoring, generating) = (scoring(&options), Generating::begin());
    let mut watch = Watch::new(args, &generating, "comparing");
    let units = units(args, base.shape());
    let result = eval::divergence_from_small(&engine, &mut base, 0..units, &scoring, &mut watch);
    let Some((divergence, slacks)) = watch.end(result)? else {
        return Ok(Exit::Interrupted);
    };
    let slack = Slack::of_mean(&slacks, divergence.scored());
    let about = about(&engine, &options, base.file().to_owned(), n_ctx)?;
    let out = figures(&divergence, slack, args.json.then_some(&about))?;
    terminal::print(out.as_bytes())?;
    Ok(Exit::Done)
}

/// Returns the number of chunks of a small base to compare.
pub(super) fn units(args: &PerplexityArgs, shape: Shape) -> usize {
    args.chunks()
        .map_or(shape.n_chunks, |n| n.min(shape.n_chunks))
}

/// Formats the statistics of all chunks, and how far they can be off; as JSON with what it is
/// about.
pub(super) fn figures(
    divergence: &Divergence,
    slack: Slack,
    json: Option<&About>,
) -> Result<String, serde_json::Error> {
    let Some(about) = json else {
        return Ok(print::divergence(divergence) + &bound(slack));
    };
    let text = print::divergence_json(divergence, None, about)?;
    let mut object: serde_json::Value = serde_json::from_str(&text)?;
    object["kld"]["off_by_at_most"] = serde_json::json!([-slack.below, slack.above]);
    object["kld"]["drawn_within_95"] = (1.96 * slack.variance.sqrt()).into();
    Ok(format!("{object}\n"))
}

fn bound(slack: Slack) -> String {
    format!(
        "\nSmall base: Mean KLD is within {:.6} of that with all log-probabilities in 95 % of \
         draws,\nand in any case at most {:.6} above and {:.6} below\n",
        1.96 * slack.variance.sqrt(),
        slack.below,
        slack.above
    )
}

/// Refuses a base of another text.
pub(super) fn check_text<R: std::io::Read>(
    base: &SmallReader<R>,
    tokens: &[u32],
) -> Result<(), Failure> {
    let differs = |(a, b): (&u32, &u32)| a != b;
    let theirs = base.tokens();
    let at = theirs.iter().zip(tokens).position(differs);
    let error = match at {
        Some(index) => eval::Error::OtherText {
            file: base.file().to_owned(),
            index,
            expected: tokens[index],
            got: theirs[index],
        },
        None if tokens.len() < theirs.len() => eval::Error::LongerText {
            file: base.file().to_owned(),
            expected: tokens.len(),
            got: theirs.len(),
        },
        None => return Ok(()),
    };
    Err(error.into())
}
