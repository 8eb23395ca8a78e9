//! `octavo imatrix`: measures which inputs of each matrix matter, for `octavo quantize --imatrix`.

use std::path::PathBuf;

use clap::Args;
use octavo_analysis::imatrix::{Collector, ENOUGH_TOKENS, ExpertTokens, Options, Sums};
use octavo_analysis::shards::{Content, Key, ShardIndex};
use octavo_engine::EngineOptions;

use super::args::{ComputeArgs, ModelArgs};
use super::failure::{Exit, Failure};
use super::output::{Inputs, Kind, Output};
use super::prompt::TextArgs;
use super::shards::{Job, Measured, ShardArgs, about, add_computation, add_keys, add_model};
use super::{load, signal, terminal, values};

/// Make an importance matrix from a text
///
/// Writes llama-imatrix's GGUF format: for every matrix the sums of its squared inputs over the
/// text; for the matrix of an expert, over the tokens that are routed to it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo imatrix model-f16.gguf -f text.txt -o imatrix.gguf
  octavo imatrix model-f16.gguf -f text.txt -o imatrix.gguf --chunks 100 -c 512
  octavo imatrix model-f16.gguf -f text.txt --shard 3/8 --out 3.shard    one of eight jobs
  octavo merge *.shard -o imatrix.gguf

The text is cut into chunks of -c tokens [default: 512]; a rest is left out.")]
pub(super) struct ImatrixArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Output file
    #[arg(short, long, value_name = "OUT.gguf", value_hint = clap::ValueHint::FilePath)]
    #[arg(required_unless_present = "shard", conflicts_with = "shard")]
    output: Option<PathBuf>,
    /// Replace any file at OUT or SHARD, unless it is an input
    #[arg(long)]
    force: bool,
    /// Maximum number of chunks; -1 is all
    #[arg(long, value_name = "N", default_value_t = -1, value_parser = values::chunks)]
    chunks: i64,
    /// Also measure the inputs of output.weight
    #[arg(long)]
    process_output: bool,
    #[command(flatten)]
    shard: ShardArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Runs the command.
pub(super) fn run(args: &ImatrixArgs) -> Result<Exit, Failure> {
    args.shard.ended(make(args))
}

fn make(args: &ImatrixArgs) -> Result<Exit, Failure> {
    let inputs = Inputs::default()
        .model(args.model.path()?)
        .file(args.text.file.as_deref());
    let output = args.output.as_deref().map(|path| Output {
        path,
        kind: Kind::Imatrix,
        force: args.force,
        inputs: &inputs,
    });
    let job = args.shard.job(args.force, &inputs);
    output.as_ref().map_or(Ok(()), Output::check)?;
    job.as_ref().map_or(Ok(()), Job::check)?;
    signal::install()?;
    let mut text = args.text.require()?;
    // as llama.cpp's -f does
    if args.text.file.is_some() && text.last() == Some(&b'\n') {
        text.pop();
    }
    let options = EngineOptions {
        ctx: Some(args.chunk()),
        ..args.compute.options()?
    };
    if let Some(job) = job {
        let key = args.key(&text, &options)?;
        return job.run(key, |shard| {
            args.collect(&text, options, Some(shard)).map(Some)
        });
    }
    let Measured { about, content, .. } = args.collect(&text, options, None)?;
    let (Some(output), Content::Imatrix(sums)) = (output, content) else {
        unreachable!("an output is demanded where no part is, and what is collected are sums")
    };
    write(&sums, &about.source, &output)
}

impl ImatrixArgs {
    fn chunk(&self) -> usize {
        self.compute.context().unwrap_or(Options::default().chunk)
    }

    /// Returns the key of everything that the sums depend on.
    fn key(&self, text: &[u8], options: &EngineOptions) -> Result<Key, Failure> {
        let mut key = Key::new("imatrix");
        add_model(&mut key, "model", self.model.path()?)?;
        add_keys(&mut key, &self.model);
        key.bytes("text", text)
            .set("tokens of a chunk", self.chunk())
            .set("chunks", self.chunks)
            .set("output.weight", self.process_output);
        add_computation(&mut key, options)?;
        Ok(key)
    }

    /// Sums over the chunks of a part, or over all of them.
    fn collect(
        &self,
        text: &[u8],
        options: EngineOptions,
        shard: Option<ShardIndex>,
    ) -> Result<Measured, Failure> {
        let engine = load::engine_with(&self.model, options.clone())?;
        let chunk = self.chunk();
        let mut collector = Collector::new(
            &engine,
            Options {
                chunk,
                max_chunks: usize::try_from(self.chunks).ok(),
                output: self.process_output,
            },
        )?;
        let tokens = collector.tokens(text)?;
        let units = tokens.len() / chunk;
        let own = shard.map_or(0..units, |shard| shard.range(units));
        let tokens = &tokens[own.start * chunk..own.end * chunk];
        let bar = terminal::Progress::tokens("imatrix");
        for (i, part) in tokens.chunks(chunk).enumerate() {
            bar.at((i * chunk) as u64, tokens.len() as u64);
            collector.add(part)?;
        }
        bar.clear();
        let dataset = self.text.file.as_ref();
        let dataset = dataset.map_or_else(String::new, |path| path.to_string_lossy().into_owned());
        Ok(Measured {
            units,
            about: about(&engine, &options, dataset, chunk)?,
            content: Content::Imatrix(collector.into_sums()),
        })
    }
}

/// Writes a matrix and reports its content.
pub(super) fn write(sums: &Sums, dataset: &str, output: &Output<'_>) -> Result<Exit, Failure> {
    output.check()?;
    let bytes = sums.write(output.path, dataset)?;
    terminal::note(&format!(
        "octavo: wrote {} ({bytes} bytes): {} matrices, {} chunks of {} tokens",
        output.path.display(),
        sums.matrices(),
        sums.chunks(),
        sums.chunk()
    ));
    if let Some(warning) = few_tokens(&sums.experts()) {
        terminal::note(&format!("octavo: warning: {warning}"));
    }
    Ok(Exit::Done)
}

/// Returns a warning about experts, the fewest tokens first, that saw too few of them.
fn few_tokens(experts: &[ExpertTokens]) -> Option<String> {
    const SHOWN: usize = 4;
    let few = experts.partition_point(|expert| expert.tokens < ENOUGH_TOKENS);
    let none = experts.partition_point(|expert| expert.tokens == 0);
    if few == 0 {
        return None;
    }
    let name = |e: &ExpertTokens| format!("{} expert {}: {}", e.layer, e.expert, e.tokens);
    let names: Vec<String> = experts[..few].iter().take(SHOWN).map(name).collect();
    let more = if few > SHOWN { ", ..." } else { "" };
    Some(format!(
        "{few} of {} experts saw fewer than {ENOUGH_TOKENS} tokens of this text, {none} of them \
         none ({}{more}): the importance of their inputs is uncertain by a tenth or more, and all \
         inputs count alike without tokens; a longer text helps",
        experts.len(),
        names.join(", "),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_with_few_tokens_are_named() {
        let expert = |expert, tokens| ExpertTokens {
            layer: "blk.3".to_owned(),
            expert,
            tokens,
        };
        assert_eq!(few_tokens(&[expert(0, ENOUGH_TOKENS)]), None);
        let experts = [expert(2, 0), expert(1, 17), expert(0, 900)];
        let warning = few_tokens(&experts).expect("two of them");
        let expected = "2 of 3 experts saw fewer than 200 tokens of this text, 1 of them none \
                        (blk.3 expert 2: 0, blk.3 expert 1: 17): ";
        assert!(warning.starts_with(expected), "{warning}");
    }
}
