//! `octavo quantize`: writes a model file with fewer bits per weight.

mod awq;
pub(super) mod choice;
mod more;

use std::path::{Path, PathBuf};

use clap::Args;
use gguf_rs_lite::TensorType;
use octavo_analysis::imatrix::Importance;
use octavo_analysis::quantize::{self, Change, Options, Plan, Progress, Target};
use octavo_engine::ModelSource;
use octavo_hf as hf;
use regex::{Regex, RegexBuilder};

use super::failure::{Exit, Failure};
use super::output::{Inputs, Kind, Output};
use super::signal;
use super::terminal::{self, note};
use super::threads::{self, ThreadsArgs};
use super::values::{self, Named};

/// Write a model file with fewer bits per weight
///
/// Takes llama-quantize's types (by name or number), mixes and options; the tensors equal its own,
/// byte for byte.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo quantize model-f16.gguf model-q4.gguf Q4_K_M
  octavo quantize model-f16.gguf model-iq2.gguf IQ2_M --imatrix imatrix.gguf
  octavo quantize model-f16.gguf --dry-run Q3_K_M
  octavo quantize model-f16.gguf mine.gguf Q4_K_M --tensor-type 'ffn_down=Q6_K' \
--output-tensor-type Q8_0
  octavo quantize mmproj-f16.gguf mmproj-q8.gguf Q8_0
  octavo quantize model-f16.gguf model-awq awq -f calibration.txt --group 64
  octavo quantize model-f16.gguf best.gguf --target-size 4.5GiB -f calibration.txt --html best.html

TYPE is one of F32 F16 BF16 Q8_0 Q6_K Q5_K_M Q5_K_S Q5_1 Q5_0 Q4_K_M Q4_K_S Q4_1 Q4_0 IQ4_NL IQ4_XS
Q3_K_L Q3_K_M Q3_K_S IQ3_M IQ3_S IQ3_XS IQ3_XXS Q2_K Q2_K_S IQ2_M IQ2_S IQ2_XS IQ2_XXS IQ1_M IQ1_S
Q2_0 Q1_0 TQ2_0 TQ1_0 MXFP4_MOE, or COPY; or awq, which writes a Hugging Face folder. \
Q2_K_S, IQ1_*, IQ2_* and IQ3_XXS need --imatrix.")]
pub(super) struct QuantizeArgs {
    /// Model: a GGUF file (of a split model, its first part; or of an image encoder) or a Hugging
    /// Face folder
    #[arg(value_name = "IN", value_hint = clap::ValueHint::FilePath)]
    pub(super) input: PathBuf,
    /// Output file; left out with --dry-run
    #[arg(value_name = "OUT", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Type of the output, listed below
    #[arg(value_name = "TYPE", value_parser = values::target_or_awq(), hide_possible_values = true)]
    target: Option<String>,
    /// Number of threads, where llama-quantize takes it; the same as -t
    #[arg(value_name = "NTHREADS", conflicts_with = "threads")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    n_threads: Option<u16>,
    #[command(flatten)]
    threads: ThreadsArgs,
    /// Calibration text, for awq and for types by measurement (- is stdin)
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Importance matrix (octavo imatrix and llama-imatrix make it)
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    imatrix: Option<PathBuf>,
    /// Use the same type for every matrix instead of TYPE's mix
    #[arg(long)]
    pure: bool,
    /// Use another type for tensors whose name matches this regular expression; may be given
    /// several times
    #[arg(long, value_name = "NAME=TYPE", value_parser = tensor_type)]
    tensor_type: Vec<(Regex, TensorType)>,
    /// Type of output.weight
    #[arg(long, value_name = "TYPE", value_parser = element_types(), hide_possible_values = true)]
    output_tensor_type: Option<TensorType>,
    /// Type of the token embeddings
    #[arg(long, value_name = "TYPE", value_parser = element_types(), hide_possible_values = true)]
    token_embedding_type: Option<TensorType>,
    /// Keep output.weight as it is
    #[arg(long)]
    leave_output_tensor: bool,
    /// Requantize tensors that are quantized already; this loses more than quantizing the original
    #[arg(long)]
    allow_requantize: bool,
    /// Replace OUT if it exists, unless it is an input
    #[arg(long)]
    force: bool,
    /// Show what would be written, without writing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    more: more::MoreArgs,
    #[command(flatten)]
    choice: choice::ChoiceArgs,
    #[command(flatten)]
    awq: awq::AwqArgs,
}

fn element_type(text: &str) -> Result<TensorType, String> {
    TensorType::from_name(&text.to_uppercase()).ok_or_else(|| {
        let names: Vec<&str> = TensorType::all().map(TensorType::name).collect();
        format!("expected one of {}", names.join(" "))
    })
}

/// Returns a parser of the tensor types that can be written.
fn element_types() -> Named<TensorType> {
    let names = || {
        TensorType::all()
            .filter(|ty| octavo_quant::can_quantize(*ty))
            .map(TensorType::name)
            .collect()
    };
    Named::new(names, element_type)
}

/// Converts an error of the quantizer, naming the option that helps.
pub(super) fn refused(error: quantize::Error) -> Failure {
    match error {
        quantize::Error::Requantize { tensor, ty } => Failure::Input(format!(
            "tensor {tensor} is {ty} already: quantizing it again needs --allow-requantize"
        )),
        quantize::Error::NeedsImportance { .. } => Failure::Input(format!("{error} (--imatrix)")),
        error => error.into(),
    }
}

pub(super) fn tensor_type(text: &str) -> Result<(Regex, TensorType), String> {
    let (name, ty) = text
        .rsplit_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or("expected NAME=TYPE")?;
    let pattern = RegexBuilder::new(name).case_insensitive(true).build();
    Ok((
        pattern.map_err(|e| e.to_string().replace('\n', " "))?,
        element_type(ty)?,
    ))
}

impl QuantizeArgs {
    /// Returns OUT and TYPE: a single argument after IN is the type, which is enough for a dry run.
    fn output_and_target(&self) -> Result<(Option<&Path>, Target), Failure> {
        let usage =
            |error: octavo_analysis::quantize::UnknownTarget| Failure::Usage(error.to_string());
        match &self.target {
            Some(target) => Ok((self.output.as_deref(), target.parse().map_err(usage)?)),
            None if self.dry_run => {
                let name = self.output.as_deref().unwrap_or(Path::new(""));
                Ok((None, name.to_string_lossy().parse().map_err(usage)?))
            }
            None => Err(Failure::Usage(
                "no TYPE: expected IN OUT TYPE (see --help)".to_owned(),
            )),
        }
    }

    /// Refuses options that have no effect where TYPE says the types.
    fn without_goal(&self) -> Result<(), Failure> {
        let mut options = self.choice.options().into_iter();
        if let Some((name, _)) = options.find(|(_, is_set)| *is_set) {
            return Err(Failure::Usage(format!(
                "{name} has no effect: expected --target-size, --target-bpw or --target-kl with it"
            )));
        }
        match self.file {
            Some(_) => Err(Failure::Usage(
                "--file has no effect: expected the type awq, --target-size, --target-bpw or \
                 --target-kl with it"
                    .to_owned(),
            )),
            None => Ok(()),
        }
    }

    /// Refuses options that awq ignores.
    fn only_awq(&self) -> Result<(), Failure> {
        let options = [
            (
                "--target-size, --target-bpw or --target-kl",
                self.choice.goal().is_some(),
            ),
            ("--imatrix", self.imatrix.is_some()),
            ("--pure", self.pure),
            ("--tensor-type", !self.tensor_type.is_empty()),
            ("--output-tensor-type", self.output_tensor_type.is_some()),
            (
                "--token-embedding-type",
                self.token_embedding_type.is_some(),
            ),
            ("--leave-output-tensor", self.leave_output_tensor),
            ("--allow-requantize", self.allow_requantize),
            ("--force", self.force),
            ("--dry-run", self.dry_run),
        ];
        match options
            .iter()
            .chain(&self.choice.options())
            .chain(&self.more.options())
            .find(|option| option.1)
        {
            Some((name, _)) => Err(Failure::Usage(format!("{name} has no effect with awq"))),
            None => Ok(()),
        }
    }

    /// Returns whether the command prints to stdout.
    pub(super) fn prints(&self) -> bool {
        self.dry_run
    }

    /// Returns the number of threads, by whichever argument it was given.
    fn n_threads(&self) -> usize {
        let threads = self.n_threads.map(threads::requested);
        threads.unwrap_or_else(|| self.threads.decide()).count
    }

    fn options(&self, target: Target) -> Result<Options, Failure> {
        let mut options = Options::new(target);
        options.threads = self.n_threads();
        options.allow_requantize = self.allow_requantize;
        options.keep_split = self.more.keep_split;
        options.choices.pure = self.pure;
        options.choices.output = self.output_tensor_type;
        options.choices.embedding = self.token_embedding_type;
        options.choices.keep_output = self.leave_output_tensor;
        options.choices.overrides.clone_from(&self.tensor_type);
        options.choices.overrides.extend(self.more.tensor_types()?);
        Ok(options)
    }
}

/// Runs the command.
pub(super) fn run(args: &QuantizeArgs) -> Result<Exit, Failure> {
    if args
        .target
        .as_deref()
        .is_some_and(|name| name.eq_ignore_ascii_case("awq"))
    {
        args.only_awq()?;
        let (file, threads) = (args.file.as_deref(), args.n_threads());
        // TYPE comes after OUT
        let output = args.output.as_deref().unwrap_or(Path::new(""));
        return awq::run(&args.awq, file, &args.input, output, threads);
    }
    if args.awq.is_set() {
        return Err(Failure::Usage(
            "--group, --tokens and --no-search: expected the type awq with them".to_owned(),
        ));
    }
    if let Some(goal) = args.choice.goal() {
        return choice::run(args, goal);
    }
    args.without_goal()?;
    let (output, target) = args.output_and_target()?;
    args.more.check(args.imatrix.is_some())?;
    let options = args.options(target)?;
    let importance = args.imatrix.as_deref().map(Importance::open).transpose()?;
    let gguf = args
        .more
        .change(ModelSource::Path(args.input.clone()).open(true)?)?;
    let inputs = Inputs::default()
        .model(Some(&args.input))
        .file(args.more.tensor_type_file.as_deref())
        .file(args.imatrix.as_deref());
    let output = output.filter(|_| !args.dry_run);
    let output = output.map(|path| Output {
        path,
        kind: Kind::Model,
        force: args.force,
        inputs: &inputs,
    });
    if let Some(output) = &output {
        // the names of parts are known once the plan is
        if !args.more.keep_split {
            output.check()?;
        }
        signal::install()?;
    }
    if args.input.is_dir() {
        hf::check(&gguf)?;
    }
    let importance = importance.map(|all| args.more.weights(all));
    let plan = Plan::new(&gguf, importance.as_ref(), &options)?;
    match output {
        Some(output) => write(&plan, &output),
        None => dry_run(&plan),
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Formats a row: name, shape, old type, new type, size.
fn row(change: &Change) -> String {
    let t = &change.tensor;
    let shape: Vec<String> = t.dims.iter().map(u64::to_string).collect();
    let to = match (change.converts(), change.instead_of) {
        (false, _) => "as it is".to_owned(),
        (true, None) => format!("-> {}", change.to),
        (true, Some(requested)) => format!("-> {} (rows do not fit {requested})", change.to),
    };
    format!(
        "{:<32} {:<16} {:<5} {to:<10} {:>9.2} MiB",
        t.name,
        shape.join(" x "),
        t.ty.name(),
        mib(change.bytes)
    )
}

fn summary(plan: &Plan<'_>) -> String {
    let totals = plan.totals();
    let (before, after) = totals.bits_per_weight();
    format!(
        "{:.2} MiB, {before:.2} bits per weight -> {:.2} MiB, {after:.2} bits per weight",
        mib(totals.before),
        mib(totals.after)
    )
}

fn warn_of_fallbacks(plan: &Plan<'_>) {
    let n = plan.totals().fallbacks;
    if n > 0 {
        let of = plan.changes().len();
        terminal::warn([format!(
            "{n} of {of} tensors have rows that do not fit their type and get another one"
        )]);
    }
}

fn dry_run(plan: &Plan<'_>) -> Result<Exit, Failure> {
    plan.check_importance()?;
    let mut out: String = plan
        .changes()
        .iter()
        .map(|change| row(change) + "\n")
        .collect();
    out += &summary(plan);
    out.push('\n');
    terminal::print(out.as_bytes())?;
    warn_of_fallbacks(plan);
    if let Some(change) = plan.lacks_importance() {
        let line = format!(
            "tensor {}: {} needs an importance matrix (--imatrix)",
            change.tensor.name, change.to
        );
        terminal::warn([line]);
    }
    Ok(Exit::Done)
}

fn write(plan: &Plan<'_>, output: &Output<'_>) -> Result<Exit, Failure> {
    let start = std::time::Instant::now();
    warn_of_fallbacks(plan);
    let (n, total) = (plan.changes().len(), plan.totals().before);
    let bar = terminal::Progress::bytes("quantizing");
    let mut done = 0;
    let paths = plan.paths(output.path);
    for path in &paths {
        Output { path, ..*output }.check()?;
    }
    let result = plan.write(output.path, &mut |progress| match progress {
        Progress::Tensor {
            index,
            change,
            unweighted,
        } => {
            bar.line(&format!("[{:>4}/{n}] {}", index + 1, row(change)));
            if unweighted && change.tensor.dims.len() > 1 {
                bar.line(&format!(
                    "octavo: warning: {}: the importance matrix has no weights",
                    change.tensor.name
                ));
            }
        }
        Progress::Bytes(bytes) => {
            done += bytes;
            bar.at(done, total);
        }
        Progress::Done { .. } => {}
    });
    bar.clear();
    let bytes = result.map_err(refused)?;
    note(&format!("octavo: {}", summary(plan)));
    let names: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    note(&format!(
        "octavo: wrote {} ({:.2} MiB) in {:.1} s",
        names.join(", "),
        mib(bytes),
        start.elapsed().as_secs_f64()
    ));
    Ok(Exit::Done)
}
