//! `octavo logits`: shows the logits that the model computes.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use octavo_engine::backend::{Phase, TapView};
use octavo_engine::sample::top_logits;
use octavo_engine::{Engine, ImageHandle, LogitsFor, is_image_token};
use octavo_model::Tap;
use octavo_model::taps::numbered;
use octavo_reference::results::Results;
use octavo_text::tokenizer::EncodeOptions;
use regex::Regex;
use serde::Serialize;
use serde_json::{Value, json};

use super::answer::{VERSION, piece, shown_id, shown_ids};
use super::args::{AdapterArgs, ComputeArgs, ModelArgs};
use super::failure::{Exit, Failure};
use super::output::{Inputs, Kind, Output};
use super::prompt::TextArgs;
use super::ranks::NumaArgs;
use super::vision::{self, ImageArgs};
use super::{load, signal, terminal};

/// Show the logits after a text, raw and in full precision
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo logits -p \"1+1=\"
  octavo logits model.gguf -f text.txt --all --top 3 --json
  octavo logits model.gguf --tokens 1,2,3 --kv-type f32 --dump out.gguf
  octavo logits model.gguf -p \"Hello\" --taps '^(attn_norm|l_out)-0$'
  octavo logits model.gguf --mmproj mmproj.gguf --image photo.png -p \"In <__media__> is\" --all

--json prints {tokens, positions: [{pos, top: [{id, piece, logit}]}], taps?}.
--dump writes the file of llama.cpp's llama-results: `tokens` and `logits` of all positions.
An image token is shown as -1.
--taps prints, for named tensors of the computation (llama.cpp's names; #2 is the second of a name),
[rows, width], the minimum, maximum, mean and Euclidean norm, and how many values are NaN.")]
pub(super) struct LogitsArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Token ids instead of a text, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["prompt", "file", "image"])]
    tokens: Option<Vec<u32>>,
    /// Neither add special tokens nor parse them in the text
    #[arg(long, conflicts_with_all = ["tokens", "image"])]
    no_special: bool,
    /// Number of highest logits to show
    #[arg(long, value_name = "K", default_value_t = 5)]
    top: u32,
    /// Show every position instead of the last
    #[arg(long)]
    all: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the tokens and the logits of all positions to a GGUF file, as llama-results does
    #[arg(long, value_name = "OUT.gguf", value_hint = clap::ValueHint::FilePath)]
    dump: Option<PathBuf>,
    /// Replace any file at --dump, unless it is an input
    #[arg(long, requires = "dump")]
    force: bool,
    /// Show statistics of the tensors whose name matches this regular expression
    #[arg(long, value_name = "REGEX")]
    taps: Option<Regex>,
    #[command(flatten)]
    images: ImageArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    pub(super) numa: NumaArgs,
}

/// A position and its highest logits.
type Top = (usize, Vec<(u32, f32)>);

/// Runs the command.
pub(super) fn run(args: &LogitsArgs) -> Result<Exit, Failure> {
    let inputs = Inputs::default()
        .model(args.model.path()?)
        .file(args.text.file.as_deref());
    let dump = args.dump.as_deref();
    let dump = dump.map(|path| Output {
        path,
        kind: Kind::Logits,
        force: args.force,
        inputs: &inputs,
    });
    if let Some(dump) = &dump {
        dump.check()?;
        signal::install()?;
    }
    let text = match &args.tokens {
        Some(_) => None,
        None => Some(args.text.require_or("--tokens IDS")?),
    };
    let encoded = args.images.encode(&args.model, &args.compute)?;
    let mut options = args.compute.options()?;
    args.adapters.apply(&mut options)?;
    let engine = load::engine_with(&args.model, options)?;
    let images = encoded.register(&engine)?;
    let tokens = match (&args.tokens, text) {
        (Some(ids), _) => ids.clone(),
        (None, text) => {
            let special = !args.no_special;
            let options = EncodeOptions {
                add_special: special,
                parse_special: special,
            };
            let text = args.images.place(text.unwrap_or_default());
            vision::tokens(engine.tokenizer(), &text, options, &images)?
        }
    };
    if tokens.is_empty() {
        return Err(Failure::Input(
            "the text has no tokens: expected at least one".to_owned(),
        ));
    }
    if tokens.len() > engine.n_ctx() {
        let (got, n_ctx) = (tokens.len(), engine.n_ctx());
        let message = format!(
            "the text has {got} tokens: expected at most the context of {n_ctx} (-c N sets it)"
        );
        return Err(Failure::Input(message));
    }
    let taps = args
        .taps
        .as_ref()
        .map(|pattern| Taps::new(pattern, &engine))
        .transpose()?;
    compute(args, &engine, (tokens, images), (taps, dump))
}

fn compute(
    args: &LogitsArgs,
    engine: &Engine,
    (tokens, images): (Vec<u32>, Vec<ImageHandle>),
    (mut taps, dump): (Option<Taps>, Option<Output<'_>>),
) -> Result<Exit, Failure> {
    let logits_for = if args.all || dump.is_some() {
        LogitsFor::All
    } else {
        LogitsFor::Last
    };
    let last = tokens.len() - 1;
    let mut tops: Vec<Top> = Vec::new();
    let mut dumped: Vec<f32> = Vec::new();
    let mut sink = |pos: usize, row: &[f32]| {
        if args.all || pos == last {
            tops.push((pos, top_logits(row, args.top as usize)));
        }
        if dump.is_some() {
            dumped.extend_from_slice(row);
        }
    };
    let mut session = engine.session();
    images.iter().for_each(|image| session.hold(image));
    match &mut taps {
        Some(taps) => {
            let mut look = |view: &TapView<'_>| taps.add(view);
            session.eval_with(
                &tokens,
                Phase::Prefill,
                logits_for,
                Some(&mut look),
                &mut sink,
            )?;
        }
        None => session.eval_with(&tokens, Phase::Prefill, logits_for, None, &mut sink)?,
    }
    if let Some(dump) = &dump {
        let path_model = args.model.path()?;
        let path_model = path_model.map_or("built-in demo model".into(), |p| p.to_string_lossy());
        let n_vocab = engine.hparams().n_vocab();
        let results = Results {
            path_model: path_model.into_owned(),
            // image tokens are -1
            tokens: tokens.iter().map(|id| shown_id(*id) as u32).collect(),
            n_vocab,
            logits: dumped,
        };
        dump.check()?;
        results.write(dump.path)?;
    }
    let taps = taps.map(|taps| taps.rows);
    let out = match args.json {
        true => format!("{}\n", to_json(engine, &tokens, &tops, taps)?),
        false => to_text(engine, &tokens, &tops, &taps.unwrap_or_default()),
    };
    terminal::print(out.as_bytes())?;
    Ok(Exit::Done)
}

fn to_json(
    engine: &Engine,
    tokens: &[u32],
    tops: &[Top],
    taps: Option<Vec<TapStats>>,
) -> Result<Value, serde_json::Error> {
    let top = |(id, logit): &(u32, f32)| {
        let piece = piece(engine.tokenizer(), *id);
        json!({"id": id, "piece": piece, "logit": logit})
    };
    let positions: Vec<Value> = tops
        .iter()
        .map(|(pos, t)| json!({"pos": pos, "top": t.iter().map(top).collect::<Vec<_>>()}))
        .collect();
    let ids = shown_ids(tokens);
    let mut object = json!({"version": VERSION, "tokens": ids, "positions": positions});
    if let Some(taps) = taps {
        object["taps"] = serde_json::to_value(taps)?;
    }
    Ok(object)
}

fn to_text(engine: &Engine, tokens: &[u32], tops: &[Top], taps: &[TapStats]) -> String {
    let mut out = String::new();
    let quoted = |id: u32| format!("{:?}", piece(engine.tokenizer(), id));
    for tap in taps {
        let _ = writeln!(out, "{tap}");
    }
    for (pos, top) in tops {
        // each position is one of the text's
        let of = match tokens.get(*pos) {
            Some(&id) if is_image_token(id) => "an image token".to_owned(),
            id => id.map_or(String::new(), |&id| format!("token {id} {}", quoted(id))),
        };
        let _ = writeln!(out, "position {pos}, after {of}:");
        for (id, logit) in top {
            let _ = writeln!(out, "  {id:>8} {:<20} {logit:?}", quoted(*id));
        }
    }
    out
}

/// Statistics of one named tensor over all rows of the text, independent of batches.
#[derive(Clone, Debug, Serialize)]
struct TapStats {
    name: String,
    occurrence: usize,
    /// Rows (tokens) and width.
    shape: [usize; 2],
    min: Option<f32>,
    max: Option<f32>,
    mean: Option<f64>,
    norm: f64,
    nan: usize,
    #[serde(skip)]
    numbers: usize,
    #[serde(skip)]
    sum: f64,
    #[serde(skip)]
    squares: f64,
}

impl TapStats {
    fn new(view: &TapView<'_>) -> TapStats {
        TapStats {
            name: view.tap.to_string(),
            occurrence: view.tap.nth,
            shape: [0, view.width],
            min: None,
            max: None,
            mean: None,
            norm: 0.0,
            nan: 0,
            numbers: 0,
            sum: 0.0,
            squares: 0.0,
        }
    }

    fn add(&mut self, rows: usize, data: &[f32]) {
        self.shape[0] += rows;
        for &x in data {
            if x.is_nan() {
                self.nan += 1;
                continue;
            }
            self.numbers += 1;
            self.min = Some(self.min.map_or(x, |m| m.min(x)));
            self.max = Some(self.max.map_or(x, |m| m.max(x)));
            self.sum += f64::from(x);
            self.squares += f64::from(x) * f64::from(x);
        }
        self.mean = (self.numbers > 0).then(|| self.sum / self.numbers as f64);
        self.norm = self.squares.sqrt();
    }
}

impl std::fmt::Display for TapStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = numbered(&self.name, self.occurrence);
        let [rows, width] = self.shape;
        write!(f, "{name:<22} [{rows}, {width}]")?;
        if let (Some(min), Some(max), Some(mean)) = (self.min, self.max, self.mean) {
            write!(
                f,
                "  min {min:e}  max {max:e}  mean {mean:.6e}  norm {:.6e}",
                self.norm
            )?;
        }
        write!(f, "  nan {}", self.nan)
    }
}

/// Statistics of the selected tensors, in the order of the computation.
struct Taps {
    pattern: Regex,
    rows: Vec<TapStats>,
    index: HashMap<Tap, usize>,
}

impl Taps {
    /// Compiles the selection; refuses an expression that matches nothing, naming the tensors there
    /// are.
    fn new(pattern: &Regex, engine: &Engine) -> Result<Taps, Failure> {
        let names: Vec<String> = engine
            .model()
            .graph
            .taps()
            .map(|(tap, _)| tap.to_string())
            .collect();
        if !names.iter().any(|name| pattern.is_match(name)) {
            // layers repeat the same names, so those of the first are enough
            let mut some: Vec<&str> = names
                .iter()
                .map(String::as_str)
                .filter(|n| !of_later_layer(n))
                .collect();
            some.dedup();
            return Err(Failure::Input(format!(
                "--taps {pattern}: expected one of {}, ...",
                some.join(", ")
            )));
        }
        Ok(Taps {
            pattern: pattern.clone(),
            rows: Vec::new(),
            index: HashMap::new(),
        })
    }

    fn add(&mut self, view: &TapView<'_>) {
        if !view.tap.is_named() || !self.pattern.is_match(&view.tap.to_string()) {
            return;
        }
        let rows = &mut self.rows;
        let at = *self.index.entry(view.tap).or_insert_with(|| {
            rows.push(TapStats::new(view));
            rows.len() - 1
        });
        rows[at].add(view.rows, view.data);
    }
}

fn of_later_layer(name: &str) -> bool {
    name.rsplit_once('-')
        .is_some_and(|(_, layer)| layer.parse::<usize>().is_ok_and(|layer| layer > 0))
}
