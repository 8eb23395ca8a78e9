//! `octavo rerank`: scores documents by how well they answer a query.

use clap::Args;
use octavo_engine::{Batch, BatchOptions, Embed, Engine, Event, Request};
use octavo_text::pair::PairFormat;
use serde_json::{Value, json};

use super::answer;
use super::args::{AdapterArgs, ComputeArgs, ModelArgs};
use super::embed::{TOGETHER, options};
use super::failure::{Exit, Failure};
use super::feed::{Fed, Feed};
use super::prompt::TextArgs;
use super::{load, signal, terminal};

/// Rank documents by how well they answer a query
///
/// Needs a reranker (cross-encoder), such as bge-reranker or Qwen3-Reranker. The score of a BERT is
/// its raw value, that of a Qwen 3 the probability of "yes".
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo rerank bge-reranker.gguf -q \"What is a panda?\" \"A bear of China.\" \"A city.\"
  octavo rerank qwen3-reranker.gguf -q \"How do I boil rice?\" -f notes.txt --lines --top-n 3
  octavo rerank bge-reranker.gguf -q \"What is a panda?\" \"A bear of China.\" --json

Documents are printed best first: score, index (from 0, or the number of the line), text.
--json prints {version, query, results: [{index, relevance_score, document}]}.")]
pub(super) struct RerankArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Documents
    #[arg(value_name = "DOC", conflicts_with_all = ["lines", "file", "prompt"])]
    documents: Vec<String>,
    /// Query
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    query: String,
    #[command(flatten)]
    text: TextArgs,
    /// Treat every line of the text as a document, without empty ones
    #[arg(long)]
    lines: bool,
    /// Print the N best documents only
    #[arg(long, value_name = "N")]
    top_n: Option<usize>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// A document and its score.
struct Ranked {
    index: usize,
    text: String,
    score: f32,
}

/// Runs the command.
pub(super) fn run(args: &RerankArgs) -> Result<Exit, Failure> {
    let documents = args.documents()?;
    signal::install()?;
    let engine = load::any_engine(
        &args.model,
        options(&args.model, (&args.compute, &args.adapters), true)?,
    )?;
    let mut ranked = rank(&engine, &args.query, documents)?;
    // equal scores stay in the order of the documents
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
    ranked.truncate(args.top_n.unwrap_or(usize::MAX));
    let printed = match args.json {
        true => format!("{}\n", to_json(&args.query, &ranked)),
        false => ranked.iter().map(to_text).collect(),
    };
    terminal::print(printed.as_bytes())?;
    Ok(Exit::Done)
}

impl RerankArgs {
    /// Returns the documents with their numbers.
    fn documents(&self) -> Result<Vec<(usize, String)>, Failure> {
        if !self.documents.is_empty() {
            return Ok(self.documents.iter().cloned().enumerate().collect());
        }
        let mut feed = match self.lines {
            true => Feed::lines(&self.text, false)?,
            false => Feed::of(self.text.require_or("documents behind the model")?),
        };
        let mut all = Vec::new();
        while let Fed::Text((line, text)) = feed.next(true, || false)? {
            let text = String::from_utf8(text)
                .map_err(|_| Failure::Input(format!("document {line}: expected UTF-8")))?;
            all.push((line, text));
        }
        Ok(all)
    }
}

/// Scores all documents, many at a time.
fn rank(
    engine: &Engine,
    query: &str,
    documents: Vec<(usize, String)>,
) -> Result<Vec<Ranked>, Failure> {
    let format = PairFormat::from_gguf(engine.gguf(), engine.tokenizer())?;
    let batch = BatchOptions {
        queue: 2 * TOGETHER,
        // a query is computed once, if it comes before the document
        prefixes: engine.hparams().is_causal(),
        ..BatchOptions::default()
    };
    let mut batch = Batch::new(engine, batch);
    let mut ranked: Vec<Ranked> = Vec::with_capacity(documents.len());
    let mut waiting = documents.into_iter();
    let mut running = std::collections::BTreeMap::new();
    loop {
        let free = (2 * TOGETHER).saturating_sub(running.len());
        for (index, text) in waiting.by_ref().take(free) {
            let tokens = format.encode(engine.tokenizer(), query, &text)?;
            let id = batch.add(Request::embedding(tokens, Embed::RANK));
            let of = |error| Failure::from(error).of(&format!("document {index}"));
            running.insert(id.map_err(of)?, (index, text));
        }
        if batch.is_empty() {
            return Ok(ranked);
        }
        let mut failed = None;
        batch.step(&mut |id, event| match event {
            Event::Embedded { vector, .. } => {
                if let (Some((index, text)), Some(&score)) = (running.remove(&id), vector.first()) {
                    ranked.push(Ranked { index, text, score });
                }
            }
            Event::Failed(error) => failed = Some(error),
            _ => {}
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
    }
}

fn to_text(one: &Ranked) -> String {
    // a document has one line
    let text = one.text.replace(['\n', '\r', '\t'], " ");
    format!("{}\t{}\t{text}\n", one.score, one.index)
}

fn to_json(query: &str, ranked: &[Ranked]) -> Value {
    let results = ranked.iter().map(|one| {
        json!({
            "index": one.index,
            "relevance_score": one.score,
            "document": one.text,
        })
    });
    json!({
        "version": answer::VERSION,
        "query": query,
        "results": results.collect::<Vec<_>>(),
    })
}
