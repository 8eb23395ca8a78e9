//! `octavo quantize` with a size or a loss in place of a type: chooses the type of each tensor.

use std::path::{Path, PathBuf};

use clap::Args;
use gguf_rs_lite::{Gguf, Temporary, TensorType};
use octavo_analysis::bit_allocation::{
    Allocation, Allocator, By, Error, Goal, Point, Record, Scored, Sensitivities, Types, read,
};
use octavo_analysis::eval;
use octavo_analysis::imatrix::Importance;
use octavo_analysis::quant_report::{self, Base, Setup};
use octavo_analysis::quantize::Plan;
use octavo_analysis::report::{Axes, Page, line_chart};
use octavo_analysis::shards::{Key, ShardIndex};
use octavo_engine::{EngineOptions, ModelSource};
use octavo_text::tokenizer::Tokenizer;

use super::super::failure::{Exit, Failure};
use super::super::output::{Inputs, Kind, Output};
use super::super::quant_report::Bars;
use super::super::shards::{add_computation, add_model};
use super::super::terminal::{Progress, note};
use super::super::{prompt, signal, values};
use super::{QuantizeArgs, element_types, mib};

/// Tokens per chunk.
const CHUNK: usize = 512;

/// Largest number of points of the page's curve.
const POINTS: usize = 60;

/// Title of the page.
pub(in super::super) const TITLE: &str = "octavo quantize: types by measurement";

/// Options of choosing types by measurement.
#[derive(Debug, Args)]
#[command(next_help_heading = "Types by measurement, in place of TYPE")]
pub(super) struct ChoiceArgs {
    /// Choose the types that lose least in a file of at most this size, such as 4.5GiB
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    #[arg(conflicts_with_all = ["target_bpw", "target_kl"])]
    target_size: Option<u64>,
    /// Choose the types that lose least in so many bits per weight
    #[arg(long, value_name = "BITS", value_parser = positive, conflicts_with = "target_kl")]
    target_bpw: Option<f64>,
    /// Choose the types of the smallest file with this mean KL divergence at most, in nats
    #[arg(long, value_name = "NATS", value_parser = positive)]
    target_kl: Option<f64>,
    /// Types to choose from, separated by commas
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    #[arg(value_parser = element_types(), hide_possible_values = true)]
    #[arg(default_values_t = Types::default().choice)]
    types: Vec<TensorType>,
    /// Types to measure each tensor in, separated by commas; with all of --types, nothing is
    /// estimated
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    #[arg(value_parser = element_types(), hide_possible_values = true)]
    #[arg(default_values_t = Types::default().probes)]
    probes: Vec<TensorType>,
    /// Tensors to quantize at a time to measure: each by itself, which is exact; or each layer and
    /// each role, such as ffn_down in all layers, which takes a fraction of the time
    #[arg(long, value_name = "BY", default_value = "tensor", value_parser = by())]
    measure_by: By,
    /// Number of chunks of 512 tokens to measure on; -1 is all. Groups are measured on a quarter of
    /// them, at least two
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = values::chunks)]
    chunks: i64,
    /// Keep the measurements in FILE, and continue from those in it; with several files, all are
    /// read and the first is written
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    sensitivities: Vec<PathBuf>,
    /// Only measure shard I of N (the first is 1) into --sensitivities
    #[arg(long, value_name = "I/N", requires = "sensitivities")]
    shard: Option<ShardIndex>,
    /// Also write the choice for llama-quantize's --tensor-type-file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    recipe: Option<PathBuf>,
    /// Also write a page: loss against size, and what each tensor got
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    html: Option<PathBuf>,
}

/// Parses the tensors to quantize at a time.
fn by() -> values::Named<By> {
    values::Named::new(
        || vec!["tensor", "group"],
        |text| match text {
            "tensor" => Ok(By::Tensor),
            "group" => Ok(By::Group),
            _ => Err("expected tensor or group".to_owned()),
        },
    )
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|n: &f64| *n > 0.0 && n.is_finite());
    number.ok_or_else(|| "expected a number above 0".to_owned())
}

impl ChoiceArgs {
    /// Returns the goal, if there is one.
    pub(super) fn goal(&self) -> Option<Goal> {
        let size = self.target_size.map(Goal::Bytes);
        let bits = self.target_bpw.map(Goal::BitsPerWeight);
        size.or(bits).or(self.target_kl.map(Goal::MeanKl))
    }

    /// Returns the options that have no effect without a goal, and whether they are set.
    pub(super) fn options(&self) -> [(&'static str, bool); 4] {
        [
            ("--sensitivities", !self.sensitivities.is_empty()),
            ("--shard", self.shard.is_some()),
            ("--recipe", self.recipe.is_some()),
            ("--html", self.html.is_some()),
        ]
    }
}

/// Refuses options that a choice by measurement ignores.
fn check(args: &QuantizeArgs) -> Result<(), Failure> {
    let more = args.more.options();
    let ignored = [
        ("TYPE", args.target.is_some()),
        ("--pure", args.pure),
        ("--output-tensor-type", args.output_tensor_type.is_some()),
        (
            "--token-embedding-type",
            args.token_embedding_type.is_some(),
        ),
        ("--leave-output-tensor", args.leave_output_tensor),
        ("--allow-requantize", args.allow_requantize),
    ];
    let ignored = ignored.iter().chain(&more);
    let mut set = ignored.filter(|(name, is_set)| *is_set && *name != "--tensor-type-file");
    match set.next() {
        Some((name, _)) => Err(Failure::Usage(format!(
            "{name} has no effect where types are chosen by measurement"
        ))),
        None => Ok(()),
    }
}

/// Files to write.
struct Outputs<'a> {
    model: Option<Output<'a>>,
    recipe: Option<Output<'a>>,
    page: Option<Output<'a>>,
}

impl<'a> Outputs<'a> {
    /// Checks the files before any work is done.
    fn of(args: &'a QuantizeArgs, inputs: &'a Inputs) -> Result<Outputs<'a>, Failure> {
        let output = |path: Option<&'a Path>, kind| {
            path.map(|path| Output {
                path,
                kind,
                force: args.force,
                inputs,
            })
        };
        let choice = &args.choice;
        let only_measures = choice.shard.is_some();
        if args.output.is_none() && !args.dry_run && !only_measures {
            return Err(Failure::Usage(
                "no OUT: expected IN OUT (see --help)".to_owned(),
            ));
        }
        let path = args.output.as_deref();
        let outputs = Outputs {
            model: output(
                path.filter(|_| !args.dry_run && !only_measures),
                Kind::Model,
            ),
            recipe: output(choice.recipe.as_deref(), Kind::Recipe),
            page: output(choice.html.as_deref(), Kind::Page(TITLE)),
        };
        let all = [&outputs.model, &outputs.recipe, &outputs.page];
        all.into_iter().flatten().try_for_each(Output::check)?;
        Ok(outputs)
    }

    /// Writes the files of a choice; without a model to write, prints its tensors.
    fn write(&self, allocator: &Allocator<'_>, scored: &Scored) -> Result<(), Failure> {
        let plan = allocator.plan(&scored.allocation.choices)?;
        if let Some(recipe) = &self.recipe {
            let (text, target) = allocator.recipe(&scored.allocation.choices);
            recipe.write(text.as_bytes())?;
            note(&format!(
                "octavo: {}: for llama-quantize --tensor-type-file, with the type {target}",
                recipe.path.display()
            ));
        }
        if let Some(page) = &self.page {
            page.write(html(allocator, scored, &plan)?.as_bytes())?;
        }
        match &self.model {
            Some(model) => super::write(&plan, model)?,
            None => super::dry_run(&plan)?,
        };
        note(&summary(scored, allocator));
        Ok(())
    }
}

/// Runs the command.
pub(super) fn run(args: &QuantizeArgs, goal: Goal) -> Result<Exit, Failure> {
    check(args)?;
    let text = choice_text(args)?;
    let inputs = Inputs::default()
        .model(Some(&args.input))
        .file(args.more.tensor_type_file.as_deref())
        .file(args.file.as_deref())
        .file(args.imatrix.as_deref());
    let outputs = Outputs::of(args, &inputs)?;
    signal::install()?;
    let gguf = ModelSource::Path(args.input.clone()).open(true)?;
    let importance = args.imatrix.as_deref().map(Importance::open).transpose()?;
    let folder = Temporary::folder(&std::env::temp_dir())?;
    let setup = Setup {
        model: &args.input,
        n_ctx: CHUNK,
        tokens: eval::encode(&Tokenizer::from_gguf(&gguf)?, &text)?,
        chunks: usize::try_from(args.choice.chunks).ok(),
        shard: None,
        importance: importance.as_ref(),
        allow_requantize: false,
        folder: folder.path(),
        engine: EngineOptions {
            ctx: Some(CHUNK),
            threads: Some(args.n_threads()),
            ..EngineOptions::default()
        },
    };
    // before minutes of measuring
    quant_report::check(&setup, &[], None, &[])?;
    let mut allocator = allocator(args, &gguf, &setup)?;
    bytes_of(goal, &allocator).map_or(Ok(()), |bytes| allocator.check(bytes))?;
    let (known, mut record) = known(args, &setup, &text)?;
    let mut bars = Bars::new();
    let base = quant_report::base(&setup, &mut bars)?;
    bars.clear();
    measure(&mut allocator, &base, known, record.as_mut())?;
    if args.choice.shard.is_some() {
        return Ok(Exit::Done);
    }
    let scored = chosen(&allocator, &base, goal, &setup, &mut bars)?;
    bars.clear();
    outputs.write(&allocator, &scored)?;
    Ok(Exit::Done)
}

/// Returns the calibration text.
fn choice_text(args: &QuantizeArgs) -> Result<Vec<u8>, Failure> {
    let Some(path) = args.file.as_deref() else {
        return Err(Failure::Usage(
            "expected -f FILE, a text to measure on".to_owned(),
        ));
    };
    prompt::read_scored(path)
}

/// Finds the candidates of each tensor that the options leave to choose.
fn allocator<'a>(
    args: &QuantizeArgs,
    gguf: &'a Gguf,
    setup: &'a Setup<'a>,
) -> Result<Allocator<'a>, Failure> {
    let mut fixed = args.tensor_type.clone();
    fixed.extend(args.more.tensor_types()?);
    let types = Types {
        choice: args.choice.types.clone(),
        probes: args.choice.probes.clone(),
        by: args.choice.measure_by,
        fixed,
        shard: args.choice.shard,
    };
    candidates(gguf, setup, &types)
}

/// Finds the candidates of each tensor, with a bar of progress.
pub(in super::super) fn candidates<'a>(
    gguf: &'a Gguf,
    setup: &'a Setup<'a>,
    types: &Types,
) -> Result<Allocator<'a>, Failure> {
    let bar = Progress::tensors("rounding");
    let allocator = Allocator::new(gguf, setup, types, &mut |done, total| {
        bar.at(done as u64, total as u64);
    });
    bar.clear();
    allocator.map_err(|error| match error {
        Error::Quantize(error) => super::refused(error),
        error => error.into(),
    })
}

/// Reads the files of sensitivities; returns their contents, and the one to write to.
fn known(
    args: &QuantizeArgs,
    setup: &Setup<'_>,
    text: &[u8],
) -> Result<(Sensitivities, Option<Record>), Failure> {
    let mut known = Sensitivities::default();
    let mut record = None;
    if let Some((first, others)) = args.choice.sensitivities.split_first() {
        let mut key = Key::new("sensitivities");
        add_model(&mut key, "model", Some(&args.input))?;
        key.bytes("text", text)
            .set("tokens of a chunk", CHUNK)
            .set("chunks", args.choice.chunks)
            .set(
                "chunks measured",
                args.choice.measure_by.chunks(setup.units()),
            );
        if let Some(path) = &args.imatrix {
            key.files("importance matrix", std::slice::from_ref(path))?;
        }
        add_computation(&mut key, &setup.engine)?;
        for other in others {
            read(other, &key, &mut known)?;
        }
        record = Some(Record::open(first, &key, &mut known)?);
        if !known.is_empty() {
            note(&format!("octavo: {} sensitivities are known", known.len()));
        }
    }
    Ok((known, record))
}

/// Makes the measurements that are missing.
pub(in super::super) fn measure(
    allocator: &mut Allocator<'_>,
    base: &Base,
    known: Sensitivities,
    record: Option<&mut Record>,
) -> Result<(), Failure> {
    let bar = Progress::runs("measuring sensitivities");
    let measured = allocator.measure(base, known, record, &mut |done, total| {
        bar.at(done as u64, total as u64);
    });
    bar.clear();
    Ok(measured?)
}

/// Returns the size of the file that is asked for; `None` if its loss is.
fn bytes_of(goal: Goal, allocator: &Allocator<'_>) -> Option<u64> {
    match goal {
        Goal::Bytes(bytes) => Some(bytes),
        Goal::BitsPerWeight(bits) => Some(allocator.bytes_at(bits)),
        Goal::MeanKl(_) => None,
    }
}

/// Chooses the types and scores the model that has them.
fn chosen(
    allocator: &Allocator<'_>,
    base: &Base,
    goal: Goal,
    setup: &Setup<'_>,
    bars: &mut Bars,
) -> Result<Scored, Failure> {
    let path = setup.folder.join("mix.gguf");
    if let Goal::MeanKl(kl) = goal {
        return Ok(allocator.at_most(base, kl, &path, bars)?);
    }
    let bytes = bytes_of(goal, allocator).unwrap_or(u64::MAX);
    let allocation = allocator.within(bytes)?;
    Ok(allocator.score(base, allocation, &path, bars)?)
}

fn summary(scored: &Scored, allocator: &Allocator<'_>) -> String {
    let Allocation {
        loss, bound, bytes, ..
    } = scored.allocation;
    let kl = scored.divergence.kld();
    format!(
        "octavo: mean KL {:.6} ± {:.6} over {} chunks ({loss:.6} expected, {bound:.6} at least in \
         {:.2} MiB), 99 % KL {:.5}, same top {:.2} %",
        kl.value,
        kl.uncertainty,
        scored.divergence.chunks(),
        mib(bytes + allocator.other_bytes()),
        scored.divergence.klds().percentile(0.99),
        100.0 * scored.divergence.same_top().value,
    )
}

/// Formats the page: loss against size, and what each tensor got.
fn html(allocator: &Allocator<'_>, scored: &Scored, plan: &Plan<'_>) -> Result<String, Failure> {
    let mut page = Page::new(TITLE);
    page.paragraph(&summary(scored, allocator)["octavo: ".len()..], None);
    page.heading("Loss against size");
    let others = allocator.other_bytes();
    let point = |p: &Point| (mib(p.bytes + others), p.loss);
    let curve = allocator.front()?.curve();
    let every = curve.len().div_ceil(POINTS).max(1);
    let curve: Vec<(f64, f64)> = curve.iter().step_by(every).map(point).collect();
    let measured = vec![(
        mib(scored.allocation.bytes + others),
        scored.divergence.kld().value,
    )];
    let axes = Axes {
        title: "Mean KL divergence from the model itself",
        x: "MiB",
        y: "mean KL (nats)",
    };
    page.chart(&line_chart(
        axes,
        &[("expected of the best mix", curve), ("this file", measured)],
    )?);
    page.heading("Tensors");
    let losses = allocator.losses()?;
    let each = allocator.candidates().iter().zip(&losses);
    let rows = each
        .zip(&scored.allocation.choices)
        .map(|((of, losses), &choice)| {
            let candidates = of.types.iter().zip(losses);
            let all: Vec<String> = candidates
                .filter(|(c, _)| c.ty != of.tensor.ty)
                .map(|(c, loss)| format!("{} {loss:.0e}", c.ty))
                .collect();
            let cells = vec![
                of.tensor.name.clone(),
                of.tensor.n_elements().to_string(),
                of.types[choice].ty.to_string(),
                format!("{:.2}", mib(of.types[choice].bytes)),
                format!("{:.2e}", losses[choice]),
                all.join(", "),
            ];
            (false, cells)
        });
    page.table(
        &[
            "tensor",
            "weights",
            "type",
            "MiB",
            "mean KL",
            "mean KL in each type",
        ],
        rows,
    );
    let totals = plan.totals();
    let (before, after) = totals.bits_per_weight();
    page.paragraph(
        &format!("{before:.2} bits per weight before, {after:.2} after, over all tensors."),
        None,
    );
    Ok(page.finish())
}
