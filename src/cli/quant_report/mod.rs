//! `octavo quant-report`: measures the accuracy that each quantization of a model costs.

mod report;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::Args;
use gguf_rs_lite::{Gguf, Temporary, TensorType};
use octavo_analysis::bit_allocation::{Sensitivities, Types, best_of_size};
use octavo_analysis::eval;
use octavo_analysis::imatrix::Importance;
use octavo_analysis::quant_report::{
    Candidate, Error, Failed, Scores, Setup, Watch, against, base, check, compared, sensitivity,
};
use octavo_analysis::quantize::Target;
use octavo_analysis::shards::{About, Content, Key, ShardIndex};
use octavo_engine::{EngineOptions, ModelSource};
use octavo_text::tokenizer::Tokenizer;

use super::args::ComputeArgs;
use super::failure::{Exit, Failure};
use super::load;
use super::output::{Inputs, Kind, Output};
use super::prompt;
use super::quantize::{self, choice};
use super::shards::{Job, Measured, ShardArgs, add_computation, add_model};
use super::signal;
use super::terminal::{self, Progress};
use super::values;
use super::wording::one_line;

pub(super) use report::Report;

/// Measure what each quantization of a model costs: size, perplexity, KL divergence, speed
///
/// Each type is quantized as by `octavo quantize`, in a temporary folder, and scored on the text
/// against the original model, as by `octavo perplexity --kl-divergence`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo quant-report model-f16.gguf -f text.txt
  octavo quant-report model-f16.gguf -f text.txt --types Q8_0,Q4_K_M,IQ4_XS \
--chunks 20 --html report.html
  octavo quant-report model-f16.gguf -f text.txt --types Q4_K_M --sensitivity Q2_K \
--html report.html
  octavo quant-report model-f16.gguf -f text.txt --types Q4_K_M,Q3_K_M --front calibration.txt
  octavo quant-report model-f16.gguf -f text.txt --types Q4_0,Q4_1 --also model-awq
  octavo quant-report model-f16.gguf -f text.txt --shard 3/8 --out 3.shard
  octavo merge *.shard --html report.html                                  when all are done

--sensitivity TYPE quantizes one tensor at a time and ranks them by the KL divergence \
that each causes alone; with
--by-role all layers of a tensor together.
--json prints {model, base: {ppl, ...}, types: [{name, bytes, bits_per_weight, ppl, \
mean_kl, kl_99, ...}],
sensitivity?: [{name, layer, role, mean_kl, ...}], failed?: [{name, error}]}.
A type that cannot be made or scored is named on stderr and left out; the rest is printed, with \
exit code 1.")]
pub(super) struct QuantReportArgs {
    /// GGUF file or Hugging Face folder in F16, BF16 or F32
    #[arg(value_name = "MODEL", value_hint = clap::ValueHint::FilePath)]
    pub(super) model: PathBuf,
    /// Text to score (- is stdin)
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    /// Types to measure, separated by commas
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    #[arg(default_value = "Q8_0,Q6_K,Q5_K_M,Q4_K_M,Q4_0,Q3_K_M,Q2_K")]
    #[arg(value_parser = values::target(), hide_possible_values = true)]
    types: Vec<Target>,
    /// Also score this file or folder with the same vocabulary; may be given several times
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::AnyPath)]
    also: Vec<PathBuf>,
    /// Maximum number of chunks to score; -1 is all
    #[arg(long, value_name = "N", default_value_t = -1, value_parser = values::chunks)]
    chunks: i64,
    /// Also choose by measurement, on the text in this file, the types that lose least in the size
    /// of each of TYPES, as octavo quantize --target-size does
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    #[arg(conflicts_with = "shard")]
    front: Option<PathBuf>,
    /// Importance matrix for the quantizers
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    imatrix: Option<PathBuf>,
    /// Also quantize one tensor at a time to this type, and rank them
    #[arg(long, value_name = "TYPE", value_parser = values::target(), hide_possible_values = true)]
    sensitivity: Option<Target>,
    /// With --sensitivity: quantize a tensor in all layers together
    #[arg(long, requires = "sensitivity")]
    by_role: bool,
    /// Allow a model that is quantized already: the figures are then relative to it
    #[arg(long)]
    allow_requantize: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Also write the report as one self-contained HTML page
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    html: Option<PathBuf>,
    /// Replace any file at --html or --out, unless it is an input
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    shard: ShardArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Number of chunks on which the types of mixes are chosen.
const CALIBRATION_CHUNKS: usize = 8;

/// Title of the page.
pub(super) const TITLE: &str = "octavo quant-report";

/// Progress bar of each part of the work.
pub(super) struct Bars(Progress);

impl Bars {
    pub(super) fn new() -> Bars {
        Bars(Progress::chunks("scoring"))
    }

    /// Removes the bar.
    pub(super) fn clear(&self) {
        self.0.clear();
    }

    /// Returns the measurement, or reports the error at once and returns it.
    fn retain<T, E: Display>(&self, name: &str, measured: Result<T, E>) -> Result<T, Failed> {
        measured.map_err(|error| self.report(name, &error))
    }

    /// Reports an error that does not stop the rest.
    fn report(&self, name: &str, error: &impl Display) -> Failed {
        self.0.clear();
        let failed = Failed {
            name: name.to_owned(),
            error: one_line(&error.to_string()),
        };
        terminal::note(&format!("octavo: error: {name}: {}", failed.error));
        failed
    }
}

impl Watch for Bars {
    fn begin(&mut self, what: &str) {
        self.0.clear();
        terminal::note(&format!("octavo: scoring {what}"));
        self.0 = Progress::chunks("scoring");
    }
    fn at(&mut self, done: usize, total: usize) {
        self.0.at(done as u64, total as u64);
    }
    fn failed(&mut self, name: &str, error: &Error) -> Failed {
        self.report(name, error)
    }
    fn cancelled(&self) -> bool {
        // no results are shown before the end, so Ctrl-C ends the program at once
        false
    }
}

/// Runs the command.
pub(super) fn run(args: &QuantReportArgs) -> Result<Exit, Failure> {
    args.shard.ended(report(args))
}

fn report(args: &QuantReportArgs) -> Result<Exit, Failure> {
    let inputs = Inputs::default()
        .model(Some(&args.model))
        .file(Some(&args.file))
        .file(args.front.as_deref())
        .file(args.imatrix.as_deref());
    let inputs = args
        .also
        .iter()
        .fold(inputs, |inputs, path| inputs.model(Some(path)));
    let page = args.html.as_deref();
    let page = page.map(|path| page_at(path, args.force, &inputs));
    let job = args.shard.job(args.force, &inputs);
    page.as_ref().map_or(Ok(()), Output::check)?;
    job.as_ref().map_or(Ok(()), Job::check)?;
    args.check()?;
    signal::install()?;
    let text = prompt::read_scored(&args.file)?;
    let mut engine = args.compute.options()?;
    let n_ctx = engine.ctx.filter(|n| *n > 0).unwrap_or(512);
    engine.ctx = Some(n_ctx);
    match job {
        None => {
            let (_, scores) = args.scores(&text, engine, None)?;
            let model = args.model.display().to_string();
            match scores {
                Some(scores) => Report::of(model, &scores).finish(args.json, page.as_ref()),
                None => Ok(Exit::Done),
            }
        }
        Some(job) => {
            let key = args.key(&text, &engine, n_ctx)?;
            let about = About {
                model: args.model.display().to_string(),
                isa: engine.isa.resolve()?.name().to_owned(),
                n_ctx,
                ..About::default()
            };
            job.run(key, |shard| {
                let (units, scores) = args.scores(&text, engine, Some(shard))?;
                let content = Content::QuantReport(scores);
                Ok(Some(Measured {
                    units,
                    about,
                    content,
                }))
            })
        }
    }
}

/// Returns the page of the report.
fn page_at<'a>(path: &'a Path, force: bool, inputs: &'a Inputs) -> Output<'a> {
    Output {
        path,
        kind: Kind::Page(TITLE),
        force,
        inputs,
    }
}

impl QuantReportArgs {
    /// Refuses options that would have no effect.
    fn check(&self) -> Result<(), Failure> {
        let is_sharded = self.shard.index().is_some();
        let useless = [
            ("--json", self.json && is_sharded, "it of octavo merge"),
            (
                "--html",
                self.html.is_some() && is_sharded,
                "it of octavo merge",
            ),
            (
                "--force",
                self.force && !is_sharded && self.html.is_none(),
                "--html or --out, which are written",
            ),
        ];
        if let Some((option, _, expected)) = useless.into_iter().find(|(_, is_set, _)| *is_set) {
            return Err(Failure::Usage(format!(
                "{option} has no effect: expected {expected}"
            )));
        }
        let others = [("--imatrix", &self.imatrix), ("--front", &self.front)];
        let others = others
            .into_iter()
            .filter_map(|(name, path)| Some((name, path.as_ref()?)));
        let mut read = self.also.iter().map(|path| ("--also", path)).chain(others);
        read.try_for_each(|(option, path)| load::check_there(option, path))
    }

    /// Returns the key of everything that the figures depend on.
    fn key(&self, text: &[u8], options: &EngineOptions, n_ctx: usize) -> Result<Key, Failure> {
        let mut key = Key::new("quant-report");
        add_model(&mut key, "model", Some(&self.model))?;
        let types: Vec<&str> = self.types.iter().map(|target| target.name()).collect();
        key.bytes("text", text)
            .set("tokens of a chunk", n_ctx)
            .set("chunks", self.chunks)
            .set("types", types.join(","))
            .set("requantize", self.allow_requantize);
        for (i, path) in self.also.iter().enumerate() {
            add_model(&mut key, &format!("other model {}", i + 1), Some(path))?;
            key.set(&format!("name of other model {}", i + 1), path.display());
        }
        if let Some(path) = &self.imatrix {
            key.files("importance matrix", std::slice::from_ref(path))?;
        }
        if let Some(target) = self.sensitivity {
            key.set("sensitivity", target.name())
                .set("by role", self.by_role);
        }
        add_computation(&mut key, options)?;
        Ok(key)
    }

    /// Scores all chunks or a part of them; returns the number of units of all parts, and the
    /// scores, `None` if the part has no units.
    fn scores(
        &self,
        text: &[u8],
        engine: EngineOptions,
        shard: Option<ShardIndex>,
    ) -> Result<(usize, Option<Box<Scores>>), Failure> {
        let gguf = ModelSource::Path(self.model.clone()).open(true)?;
        let tokens = eval::encode(&Tokenizer::from_gguf(&gguf)?, text)?;
        drop(gguf);
        let importance = self.imatrix.as_deref().map(Importance::open).transpose()?;
        let folder = Temporary::folder(&std::env::temp_dir())?;
        let setup = Setup {
            model: &self.model,
            n_ctx: engine.ctx.unwrap_or_default(),
            engine,
            tokens,
            chunks: usize::try_from(self.chunks).ok(),
            shard,
            importance: importance.as_ref(),
            allow_requantize: self.allow_requantize,
            folder: folder.path(),
        };
        let ranking = self
            .sensitivity
            .map(|target| (target.default_type(), self.by_role));
        check(&setup, &self.types, ranking, &self.also).map_err(refused)?;
        let units = setup.units();
        if shard.is_some_and(|shard| shard.range(units).is_empty()) {
            return Ok((units, None));
        }
        let mut bars = Bars::new();
        let scores = measure(self, &setup, ranking, &mut bars);
        bars.clear();
        Ok((units, Some(Box::new(scores?))))
    }
}

/// Converts an error found before the report begins, naming the option that helps.
fn refused(error: Error) -> Failure {
    match error {
        Error::Target { target, source } => quantize::refused(source).of(&target.to_string()),
        Error::Quantize(source) => quantize::refused(source).of("--sensitivity"),
        error => error.into(),
    }
}

/// Measures the model itself and all others; errors of these do not stop the rest.
fn measure(
    args: &QuantReportArgs,
    setup: &Setup<'_>,
    ranking: Option<(TensorType, bool)>,
    bars: &mut Bars,
) -> Result<Scores, Failure> {
    let gguf = ModelSource::Path(setup.model.to_owned()).open(true)?;
    let mut candidates = Vec::new();
    for &target in &args.types {
        let planned = Candidate::quantized(&gguf, setup, target);
        candidates.push(bars.retain(target.name(), planned));
    }
    candidates.extend(args.also.iter().map(|path| Ok(Candidate::existing(path))));
    let stock = candidates.len();
    if let Some(text) = &args.front {
        candidates.extend(mixes(args, (&gguf, setup), text, bars)?);
    }
    let (base, mut models, ranking) = match ranking {
        None => {
            let (base, models) = compared(setup, &candidates, bars)?;
            (base, models, None)
        }
        Some((to, by_role)) => {
            let base = base(setup, bars)?;
            let models = against(setup, &base, &candidates, bars);
            let scores = sensitivity(setup, &base, (to, by_role), bars);
            let scores = bars.retain(&format!("one tensor at a time in {to}"), scores);
            (base.scores, models, Some((to.to_string(), scores)))
        }
    };
    let mixes = models.split_off(stock);
    Ok(Scores {
        base,
        models,
        mixes,
        ranking,
    })
}

/// Chooses types by measurement on another text, for the size of each type.
fn mixes<'a>(
    args: &QuantReportArgs,
    (gguf, setup): (&'a Gguf, &'a Setup<'_>),
    text: &Path,
    bars: &mut Bars,
) -> Result<Vec<Result<Candidate<'a>, Failed>>, Failure> {
    let folder = Temporary::folder(setup.folder)?;
    let calibration = Setup {
        tokens: eval::encode(&Tokenizer::from_gguf(gguf)?, &prompt::read_scored(text)?)?,
        chunks: Some(CALIBRATION_CHUNKS),
        engine: setup.engine.clone(),
        folder: folder.path(),
        ..*setup
    };
    let mut allocator = choice::candidates(gguf, &calibration, &Types::default())?;
    let calibration_base = base(&calibration, bars)?;
    choice::measure(
        &mut allocator,
        &calibration_base,
        Sensitivities::default(),
        None,
    )?;
    let each = args.types.iter().map(|&target| {
        let mix = best_of_size(&allocator, (gguf, setup), target);
        bars.retain(&format!("best in {target}'s size"), mix)
    });
    Ok(each.collect())
}
