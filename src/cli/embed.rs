//! `octavo embed`: turns texts into vectors.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use octavo_engine::{
    Batch, BatchOptions, Context, Embed, Engine, EngineOptions, Event, ImageHandle, Pooling,
    Request, RequestId,
};
use octavo_model::Hparams;
use octavo_text::tokenizer::EncodeOptions;
use serde_json::{Value, json};

use super::answer::{self, shown_ids};
use super::args::{AdapterArgs, ComputeArgs, ModelArgs};
use super::arrays::{self, Array};
use super::failure::{Exit, Failure};
use super::feed::{Fed, Feed};
use super::output::{EMBEDDINGS_PRODUCER, Inputs, Kind, Output};
use super::prompt::TextArgs;
use super::vision::{self, ImageArgs};
use super::{load, signal, terminal};

/// Turn texts into vectors (embeddings)
///
/// Works with embedding models and with generative ones, whose last hidden states it takes (the
/// rows that would become logits).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo embed bge-small.gguf -p \"The capital of France\"
  octavo embed bge-small.gguf -f questions.txt --lines --json
  octavo embed qwen3-embedding.gguf -p \"Hello\" --pooling mean --no-normalize
  octavo embed nomic.gguf -p \"Hello\" --dump out.safetensors
  octavo embed model.gguf --mmproj mmproj.gguf --image photo.png --pooling last

A vector is one line of numbers; with --pooling none there is one for each token.
--json prints an object for each text, as lines come: {version, line, pooling, normalized, tokens, \
vectors: [[number]]}.
--dump writes `tokens` [n], `embd` [n, width], one vector for each token, and `pooled` [width].
An image token is shown as -1.")]
pub(super) struct EmbedArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Treat every line of the text as a text of its own, without empty ones; answered as lines
    /// come
    #[arg(long, conflicts_with = "image")]
    lines: bool,
    /// Pooling of a text's token vectors: none, mean, cls (the first), last, or rank, the scores
    /// of a classifier [default: what the file says, or else mean]
    #[arg(long, value_name = "HOW", hide_possible_values = true)]
    pooling: Option<PoolingName>,
    /// Do not normalize vectors to a length of 1
    #[arg(long)]
    no_normalize: bool,
    /// Neither add special tokens nor parse them in the text
    #[arg(long, conflicts_with = "image")]
    no_special: bool,
    /// Print a JSON object for each text
    #[arg(long)]
    json: bool,
    /// Write the tokens and vectors to a safetensors file instead of printing them
    #[arg(long, value_name = "OUT.safetensors", value_hint = clap::ValueHint::FilePath)]
    #[arg(conflicts_with_all = ["lines", "json"])]
    dump: Option<PathBuf>,
    /// Replace any file at --dump, unless it is an input
    #[arg(long, requires = "dump")]
    force: bool,
    #[command(flatten)]
    images: ImageArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Command-line names of [`Pooling`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PoolingName {
    None,
    Mean,
    Cls,
    Last,
    Rank,
}

impl PoolingName {
    pub(super) fn pooling(self) -> Pooling {
        match self {
            PoolingName::None => Pooling::None,
            PoolingName::Mean => Pooling::Mean,
            PoolingName::Cls => Pooling::First,
            PoolingName::Last => Pooling::Last,
            PoolingName::Rank => Pooling::Rank,
        }
    }
}

/// Maximum number of texts in a batch.
pub(super) const TOGETHER: usize = 32;

/// Runs the command.
pub(super) fn run(args: &EmbedArgs) -> Result<Exit, Failure> {
    let inputs = Inputs::default()
        .model(args.model.path()?)
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
    let mut feed = args.feed()?;
    signal::install()?;
    let encoded = args.images.encode(&args.model, &args.compute)?;
    let engine = load::any_engine(
        &args.model,
        options(&args.model, (&args.compute, &args.adapters), args.lines)?,
    )?;
    let images = encoded.register(&engine)?;
    let embed = Embed {
        pooling: args.pooling.map_or(engine.pooling(), PoolingName::pooling),
        normalize: !args.no_normalize,
    };
    let prepare = |text: &[u8]| tokens_of(args, &engine, text, &images);
    if let Some(dump) = &dump {
        let Fed::Text((_, text)) = feed.next(true, || false)? else {
            unreachable!("--dump takes one text, and one there is")
        };
        let tokens = prepare(&text)?;
        return write(dump, &engine, &Read { tokens, images }, embed);
    }
    let mut work = Work {
        batch: Batch::new(&engine, batch_options()),
        images: &images,
        embed,
        waiting: BTreeMap::new(),
        printer: Printer {
            args,
            embed,
            width: engine.embedding_width(embed.pooling),
            ready: BTreeMap::new(),
            next: 0,
            failed: false,
        },
    };
    work.run(&mut feed, &prepare)
}

impl EmbedArgs {
    /// Returns the texts, in order.
    fn feed(&self) -> Result<Feed, Failure> {
        Ok(match &self.images.image[..] {
            _ if self.lines => Feed::lines(&self.text, false)?,
            [] => Feed::of(self.text.require()?),
            // the text may be empty beside an image
            _ => Feed::of(self.text.read()?.unwrap_or_default()),
        })
    }
}

/// Texts in work, given to the engine as they come.
struct Work<'a> {
    batch: Batch,
    /// Images of every text.
    images: &'a [ImageHandle],
    embed: Embed,
    waiting: BTreeMap<RequestId, Waiting>,
    printer: Printer<'a>,
}

/// A text that the engine is working on.
struct Waiting {
    line: usize,
    /// Number among the texts that are not empty.
    place: usize,
    tokens: Vec<u32>,
}

/// Function that tokenizes a text.
type Prepare<'a> = dyn Fn(&[u8]) -> Result<Vec<u32>, Failure> + 'a;

impl Work<'_> {
    /// Prints the vectors of every text, each as soon as it and those before it are done.
    fn run(&mut self, feed: &mut Feed, prepare: &Prepare<'_>) -> Result<Exit, Failure> {
        let mut place = 0;
        let mut is_open = true;
        while is_open || !self.batch.is_empty() {
            while is_open && self.waiting.len() < 2 * TOGETHER {
                let (line, text) = match feed.next(self.batch.is_empty(), || false)? {
                    Fed::Text(text) => text,
                    Fed::NotYet => break,
                    Fed::End => {
                        is_open = false;
                        break;
                    }
                };
                let added = prepare(&text).and_then(|tokens| {
                    let id = self.batch.add(request(&tokens, self.images, self.embed))?;
                    Ok((id, tokens))
                });
                match added {
                    Ok((id, tokens)) => {
                        let own = Waiting {
                            line,
                            place,
                            tokens,
                        };
                        self.waiting.insert(id, own);
                    }
                    Err(failure) => self.printer.take(place, line, Err(failure))?,
                }
                place += 1;
            }
            let mut done = Vec::new();
            self.batch.step(&mut |id, event| match event {
                Event::Embedded { vector, .. } => done.push((id, Ok(vector))),
                Event::Failed(error) => done.push((id, Err(error))),
                _ => {}
            })?;
            for (id, vector) in done {
                if let Some(own) = self.waiting.remove(&id) {
                    let vector = vector.map_err(Failure::from);
                    let vector = vector.map(|vector| (own.tokens, vector));
                    self.printer.take(own.place, own.line, vector)?;
                }
            }
        }
        Ok(match self.printer.failed {
            true => Exit::Partly,
            false => Exit::Done,
        })
    }
}

/// Prints finished vectors, in the order of the texts.
struct Printer<'a> {
    args: &'a EmbedArgs,
    embed: Embed,
    width: usize,
    ready: BTreeMap<usize, Result<String, Failure>>,
    next: usize,
    failed: bool,
}

impl Printer<'_> {
    /// Takes the tokens and vectors of a text, or the reason that there are none, and prints all
    /// that is ready.
    fn take(
        &mut self,
        place: usize,
        line: usize,
        read: Result<(Vec<u32>, Vec<f32>), Failure>,
    ) -> Result<(), Failure> {
        let printed = match read {
            Ok((tokens, vectors)) if self.args.json => {
                let object = to_json(line, &tokens, &vectors, self.width, self.embed);
                Ok(format!("{object}\n"))
            }
            Ok((_, vectors)) => Ok(to_text(&vectors, self.width)),
            Err(failure) if self.args.json && self.args.lines => {
                self.failed = true;
                Ok(format!("{}\n", answer::error(line, &failure.message())))
            }
            Err(failure) if self.args.lines => Err(failure.of(&format!("line {}", line + 1))),
            Err(failure) => Err(failure),
        };
        self.ready.insert(place, printed);
        while let Some(text) = self.ready.remove(&self.next) {
            self.next += 1;
            terminal::print(text?.as_bytes())?;
        }
        Ok(())
    }
}

/// A text as the model reads it.
struct Read {
    tokens: Vec<u32>,
    /// Images among the tokens.
    images: Vec<ImageHandle>,
}

fn tokens_of(
    args: &EmbedArgs,
    engine: &Engine,
    text: &[u8],
    images: &[ImageHandle],
) -> Result<Vec<u32>, Failure> {
    let text = args.images.place(text.to_vec());
    let special = !args.no_special;
    let options = EncodeOptions {
        add_special: special,
        parse_special: special,
    };
    vision::tokens(engine.tokenizer(), &text, options, images)
}

/// Returns the engine's options. The KV cache is f32 unless a type is given, because it holds a
/// text only while that is computed; for many texts it has the size of two of the longest.
pub(super) fn options(
    model: &ModelArgs,
    (compute, adapters): (&ComputeArgs, &AdapterArgs),
    many: bool,
) -> Result<EngineOptions, Failure> {
    let (sessions, longest) = match many {
        true => (TOGETHER, 2),
        false => (1, 1),
    };
    let mut options = EngineOptions {
        kv_type: compute.kv_type_or_f32(),
        sessions,
        ..compute.options()?
    };
    adapters.apply(&mut options)?;
    let gguf = load::source_quietly(model)?.open(true)?;
    let hparams = Hparams::from_gguf(&gguf)?;
    let context = Context::of(&gguf, &options)?.positions;
    options.kv_positions = Some(context.saturating_mul(longest));
    if let Some(fit) = &mut options.fit {
        fit.kv_is_default = true;
    }
    if !hparams.is_causal() && !compute.has_batch() {
        // a model without causal attention reads a text in one step
        options.batch = Some(options.batch().max(context));
    }
    Ok(options)
}

fn batch_options() -> BatchOptions {
    BatchOptions {
        queue: 2 * TOGETHER,
        prefixes: false,
        ..BatchOptions::default()
    }
}

fn request(tokens: &[u32], images: &[ImageHandle], embed: Embed) -> Request {
    Request {
        images: images.to_vec(),
        ..Request::embedding(tokens.to_vec(), embed)
    }
}

/// Computes the vectors of one text.
fn embed_one(engine: &Engine, read: &Read, embed: Embed) -> Result<Vec<f32>, Failure> {
    let mut batch = Batch::new(engine, batch_options());
    batch.add(request(&read.tokens, &read.images, embed))?;
    let mut result = Ok(Vec::new());
    while !batch.is_empty() && result.is_ok() {
        batch.step(&mut |_, event| match event {
            Event::Embedded { vector, .. } => result = Ok(vector),
            Event::Failed(error) => result = Err(error),
            _ => {}
        })?;
    }
    Ok(result?)
}

fn to_text(vectors: &[f32], width: usize) -> String {
    let mut out = String::new();
    for vector in vectors.chunks(width) {
        let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
        out.push_str(&numbers.join(" "));
        out.push('\n');
    }
    out
}

fn to_json(line: usize, tokens: &[u32], vectors: &[f32], width: usize, embed: Embed) -> Value {
    let vectors: Vec<&[f32]> = vectors.chunks(width).collect();
    json!({
        "version": answer::VERSION,
        "line": line,
        "pooling": embed.pooling.name(),
        "normalized": embed.normalize,
        "tokens": shown_ids(tokens),
        "vectors": vectors,
    })
}

/// Writes the vectors of one text: of all tokens, and pooled.
fn write(dump: &Output<'_>, engine: &Engine, read: &Read, embed: Embed) -> Result<Exit, Failure> {
    let tokens = &read.tokens;
    let of = |pooling| embed_one(engine, read, Embed { pooling, ..embed });
    let rows = of(Pooling::None)?;
    let width = rows.len() / tokens.len();
    let pooled_width = engine.embedding_width(embed.pooling);
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
            .map(|row| Array::floats("pooled", &[pooled_width], row)),
    );
    dump.write_with(|out| arrays::write(EMBEDDINGS_PRODUCER, &arrays, out))?;
    Ok(Exit::Done)
}
