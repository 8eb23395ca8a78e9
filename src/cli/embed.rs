//! `octavo embed`: texts as vectors.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use octavo_engine::{
    Batch, BatchOptions, Embed, Engine, EngineOptions, Event, Goal, Pooling, Request, Shown,
};
use octavo_model::Hparams;
use octavo_text::tokenizer::EncodeOptions;
use serde_json::{Value, json};

use super::args::{ComputeArgs, ModelArgs};
use super::arrays::{self, Array};
use super::context::Context;
use super::failure::{Exit, Failure};
use super::output::{Inputs, Kind, Output};
use super::prompt::TextArgs;
use super::run::shown_ids;
use super::vision::{self, PictureArgs};
use super::{load, signal, terminal};

/// Turn texts into vectors (embeddings)
///
/// Works with embedding models and with any other: of those that generate, it takes the rows that
/// would become logits.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo embed bge-small.gguf -p \"The capital of France\"
  octavo embed bge-small.gguf -f questions.txt --lines --json
  octavo embed qwen3-embedding.gguf -p \"Hello\" --pooling mean --no-normalize
  octavo embed nomic.gguf -p \"Hello\" --dump out.safetensors
  octavo embed model.gguf --mmproj mmproj.gguf --image photo.png --pooling last

A vector is one line of numbers; with --pooling none there is one for each token.
--json prints {pooling, normalized, embeddings: [{tokens, vectors: [[number]]}]}.
--dump writes `tokens` [n], `embd` [n, width], one vector for each token, and `pooled` [width].
A cell of a picture is token -1.")]
pub(super) struct EmbedArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Every line of the text is a text of its own; empty ones are left out
    #[arg(long, conflicts_with = "image")]
    lines: bool,
    /// How the vectors of a text's tokens become one: none, mean, cls (the first) or last [default:
    /// what the file says, or else mean]
    #[arg(long, value_name = "HOW", hide_possible_values = true)]
    pooling: Option<How>,
    /// Do not divide vectors by their lengths
    #[arg(long)]
    no_normalize: bool,
    /// Neither add special tokens nor recognize them in the text
    #[arg(long, conflicts_with = "image")]
    no_special: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the tokens and vectors to a safetensors file, in place of printing them
    #[arg(long, value_name = "OUT.safetensors", value_hint = clap::ValueHint::FilePath)]
    #[arg(conflicts_with_all = ["lines", "json"])]
    dump: Option<PathBuf>,
    /// Replace --dump's file whatever it is, unless it is an input
    #[arg(long, requires = "dump")]
    force: bool,
    #[command(flatten)]
    pictures: PictureArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// What [`Pooling`] is called here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum How {
    None,
    Mean,
    Cls,
    Last,
}

impl How {
    fn pooling(self) -> Pooling {
        match self {
            How::None => Pooling::None,
            How::Mean => Pooling::Mean,
            How::Cls => Pooling::First,
            How::Last => Pooling::Last,
        }
    }
}

/// Texts that are worked on at a time, at most.
const TOGETHER: usize = 32;

/// Runs the command.
pub(super) fn run(args: &EmbedArgs) -> Result<Exit, Failure> {
    let inputs = Inputs::default()
        .model(args.model.path())
        .file(args.text.file.as_deref());
    let dump = args.dump.as_deref().map(|path| Output {
        path,
        kind: Kind::Embeddings,
        force: args.force,
        inputs: &inputs,
    });
    if let Some(dump) = &dump {
        dump.check()?;
    }
    signal::install()?;
    let text = match args.pictures.image[..] {
        [] => args.text.require()?,
        // one may want nothing but the picture
        _ => args.text.read()?.unwrap_or_default(),
    };
    let texts: Vec<&[u8]> = match args.lines {
        true => lines(&text),
        false => vec![&text],
    };
    let seen = args.pictures.look(&args.model, &args.compute)?;
    let engine = load::any_engine(&args.model, options(args, texts.len())?)?;
    let pictures = seen.show(&engine)?;
    let tokens = texts
        .iter()
        .map(|text| tokens_of(args, &engine, text, &pictures));
    let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
    let read = Read { tokens, pictures };
    let embed = Embed {
        pooling: args.pooling.map_or(engine.pooling(), How::pooling),
        normalize: !args.no_normalize,
    };
    if let Some(dump) = &dump {
        return write(dump, &engine, &read, embed);
    }
    let vectors = embed_all(&engine, &read, embed, args.lines)?;
    let width = engine.model().graph.values[engine.model().graph.hidden.index()].width;
    let out = match args.json {
        true => format!("{}\n", to_json(&read.tokens, &vectors, width, embed)),
        false => to_text(&vectors, width),
    };
    terminal::print(out.as_bytes())?;
    Ok(Exit::Done)
}

/// Texts as the model reads them.
struct Read {
    /// Of each text.
    tokens: Vec<Vec<u32>>,
    /// The pictures among them.
    pictures: Vec<Shown>,
}

fn tokens_of(
    args: &EmbedArgs,
    engine: &Engine,
    text: &[u8],
    pictures: &[Shown],
) -> Result<Vec<u32>, Failure> {
    let text = args.pictures.place(text.to_vec());
    let special = !args.no_special;
    let options = EncodeOptions {
        add_special: special,
        parse_special: special,
    };
    vision::tokens(engine.tokenizer(), &text, options, pictures)
}

/// The lines of a text, without their ends, but for empty ones.
fn lines(text: &[u8]) -> Vec<&[u8]> {
    let lines = text.split(|byte| *byte == b'\n');
    let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.filter(|line| !line.is_empty()).collect()
}

/// The engine's options: keys and values are kept as they are unless told otherwise, for they do
/// not live longer than a text, and so are the pages of two of the longest.
fn options(args: &EmbedArgs, texts: usize) -> Result<EngineOptions, Failure> {
    let mut options = EngineOptions {
        kv_type: args.compute.kv_type_or_f32()?,
        sessions: texts.clamp(1, TOGETHER),
        ..args.compute.options()?
    };
    let gguf = load::source_at_quietly(args.model.path()).open(true)?;
    let hparams = Hparams::from_gguf(&gguf)?;
    let context = Context::of(&gguf, &options)?.positions;
    options.kv_positions = Some(context.saturating_mul(texts.clamp(1, 2)));
    if !hparams.is_causal() && !args.compute.has_batch() {
        // a text is read whole
        options.batch = Some(options.batch().max(context));
    }
    Ok(options)
}

/// The vectors of every text; `numbered` says that errors name its number.
fn embed_all(
    engine: &Engine,
    read: &Read,
    embed: Embed,
    numbered: bool,
) -> Result<Vec<Vec<f32>>, Failure> {
    let texts = &read.tokens;
    let options = BatchOptions {
        queue: texts.len(),
        prefixes: false,
        ..BatchOptions::default()
    };
    let mut batch = Batch::new(engine, options);
    let mut places = std::collections::HashMap::new();
    for (i, tokens) in texts.iter().enumerate() {
        let request = Request {
            goal: Goal::Embedding(embed),
            prompt: tokens.clone(),
            pictures: read.pictures.clone(),
            n: 1,
            ..Request::default()
        };
        let id = batch.add(request).map_err(|error| match numbered {
            true => Failure::from(error).of(&format!("text {}", i + 1)),
            false => error.into(),
        })?;
        places.insert(id, i);
    }
    let mut vectors = vec![Vec::new(); texts.len()];
    let mut failed = None;
    while !batch.is_empty() && failed.is_none() {
        batch.step(&mut |id, event| match event {
            Event::Embedded { vector, .. } => vectors[places[&id]] = vector,
            Event::Failed(error) => failed = Some(error),
            _ => {}
        })?;
    }
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(vectors),
    }
}

fn to_text(texts: &[Vec<f32>], width: usize) -> String {
    let mut out = String::new();
    for vector in texts.iter().flat_map(|vectors| vectors.chunks(width)) {
        let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
        out.push_str(&numbers.join(" "));
        out.push('\n');
    }
    out
}

fn to_json(tokens: &[Vec<u32>], texts: &[Vec<f32>], width: usize, embed: Embed) -> Value {
    let one = |(tokens, vectors): (&Vec<u32>, &Vec<f32>)| {
        let vectors: Vec<&[f32]> = vectors.chunks(width).collect();
        json!({ "tokens": shown_ids(tokens), "vectors": vectors })
    };
    json!({
        "pooling": embed.pooling.name(),
        "normalized": embed.normalize,
        "embeddings": tokens.iter().zip(texts).map(one).collect::<Vec<_>>(),
    })
}

/// Writes the vectors of one text: of all tokens, and what they become.
fn write(dump: &Output<'_>, engine: &Engine, read: &Read, embed: Embed) -> Result<Exit, Failure> {
    let tokens = &read.tokens[0];
    let of = |pooling| {
        let embed = Embed { pooling, ..embed };
        let mut all = embed_all(engine, read, embed, false)?;
        Ok::<_, Failure>(all.swap_remove(0))
    };
    let rows = of(Pooling::None)?;
    let width = rows.len() / tokens.len();
    let ids = shown_ids(tokens);
    let pooled = match embed.pooling {
        Pooling::None => None,
        pooling => Some(of(pooling)?),
    };
    let mut arrays = vec![
        Array::ids("tokens", &ids),
        Array::floats("embd", &[tokens.len(), width], &rows),
    ];
    arrays.extend(
        pooled
            .iter()
            .map(|row| Array::floats("pooled", &[width], row)),
    );
    dump.write_with(|out| arrays::write(PRODUCER, &arrays, out))?;
    Ok(Exit::Done)
}

/// What tells these files from others: see [`Kind::Embeddings`].
pub(super) const PRODUCER: &str = "octavo embed";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_without_text_are_left_out() {
        assert_eq!(lines(b"a\n\nb c\r\n\r\n"), [&b"a"[..], b"b c"]);
        assert!(lines(b"").is_empty());
    }
}
