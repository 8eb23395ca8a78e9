//! `octavo diff`: measures how far two computations differ, and where they diverge.

mod executions;
mod html;
mod images;
mod print;
mod recorded;
mod routing;
pub(super) mod suite;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use octavo_analysis::diff::{LlamaCpp, ReferenceValues};
use octavo_kernels::IsaChoice;
use octavo_text::tokenizer::EncodeOptions;

use super::args::{AdapterArgs, ComputeArgs, Device, KeyArgs};
use super::failure::{Exit, Failure};
use super::output::{Inputs, Kind, Output, all_different};
use super::prompt::TextArgs;
use super::shards::ShardArgs;
use super::signal;
use super::values;
use super::vision::ImageTokenArgs;

/// Compare with llama.cpp, or find the first tensor in which two computations differ
///
/// With --reference or --llama-cpp, compares a model with a recording of another program. Otherwise
/// compares two model files, two instruction sets, or the engine and its f64 oracle: every named
/// tensor, in the order of the computation, against a bound that follows from the measured errors
/// of its inputs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo diff model.gguf --reference results.gguf          what llama-results -o wrote
  octavo diff model.gguf --llama-cpp ~/llama.cpp/build/bin -p \"Hello\"
  octavo diff model.gguf changed.gguf -p \"Hello\"           two files
  octavo diff f16.gguf q4_k_m.gguf -f text.txt             what a quantization does, layer by layer
  octavo diff model.gguf -p \"Hello\" --a-isa scalar --b-isa avx512
  octavo diff model.gguf -p \"Hello\" --b-device cuda        CPU against GPU
  octavo diff model.gguf -p \"Hello\" --a-exec oracle        engine against the f64 oracle
  octavo diff moe.gguf moe-q4.gguf -p \"Hello\" --same-routing
                                                           B with the experts that A chose
  octavo diff moe.gguf -p \"Hello\" --same-routing --reference eval-callback.txt
  octavo diff mmproj.gguf --image photo.png --b-exec oracle  a vision tower
  octavo diff mmproj.gguf --image photo.png --reference graph.txt
                                                           what MTMD_DEBUG_GRAPH=1 llama-mtmd-cli \
printed
  octavo diff --suite suite.toml --shard 3/8 --out 3.shard    one of eight jobs
  octavo diff model.gguf --mmproj mmproj.gguf --image photo.png -p \"What is this?\" --b-exec oracle
  octavo diff --suite reference/suite.toml                 models x prompts x instruction sets \
against goldens

Exit code: 0 within the bounds, 1 outside, 2 if it could not be compared.
--json prints for two executions {verdict: identical|within|diverged, first_divergence: {name, \
layer, position, channel, a, b, ...} or null, taps, absent, routing, logits, a, b, tokens}; for \
references {verdict: within|outside, model, tolerance, references: [{file, kind, tokens, verdict, \
first_divergence, and one of logits, tensors (with routing), generated, divergence}]}.
routing is null for a model without experts, or {same_routing, choices, unrecorded, differing, \
reordered, following, unexplained, layers: [{name, layer, tokens, unexplained, first}], first}; \
first is null or {name, layer, position, a: [ids], b: [ids], cause: \
near_tie|following|unexplained, tie: {apart, allowed, of_groups} or null}. Of references, a is \
ours and b theirs.
With a reference, -f drops one newline at the end of the file, as llama.cpp's -f does.")]
pub(super) struct DiffArgs {
    /// First model; the built-in demo model if not given
    #[arg(value_name = "A", value_hint = clap::ValueHint::FilePath)]
    a: Option<PathBuf>,
    /// Second model [default: the first]
    #[arg(value_name = "B", value_hint = clap::ValueHint::FilePath)]
    b: Option<PathBuf>,
    /// Compare the model with recordings, recognized by their content: files of llama-results,
    /// llama-debug, llama-eval-callback, llama-perplexity (bases), llama-completion (prompt
    /// caches), llama-imatrix, llama-server (probabilities), and goldens
    #[arg(
        long,
        value_name = "REF",
        num_args = 1..,
        conflicts_with = "b",
        value_hint = clap::ValueHint::FilePath,
    )]
    reference: Vec<PathBuf>,
    /// Run the llama.cpp whose programs are in DIR on the same text, and compare with its logits
    #[arg(long, value_name = "DIR", conflicts_with = "b", value_hint = clap::ValueHint::DirPath)]
    llama_cpp: Option<PathBuf>,
    /// Image encoder (vision tower) of the model; both computations get the same embeddings of the
    /// images from it
    #[arg(long, value_name = "FILE", requires = "image")]
    #[arg(conflicts_with_all = ["reference", "suite"])]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    mmproj: Option<PathBuf>,
    /// Image: a PNG, JPEG, WebP, BMP or GIF file; the input of an image encoder, or with --mmproj
    /// part of the text; may be given several times; images replace <__media__> in the text, or
    /// come before it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["suite", "tokens", "no_special"])]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: Vec<PathBuf>,
    #[command(flatten)]
    image_tokens: ImageTokenArgs,
    /// Run a suite: models, prompts and instruction sets against stored goldens; print what changed
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["a", "b", "reference"])]
    #[arg(conflicts_with_all = ["prompt", "file", "escape", "tokens", "no_special"])]
    #[arg(conflicts_with_all = ["a_isa", "b_isa", "a_device", "b_device", "a_exec", "b_exec"])]
    #[arg(conflicts_with_all = ["against", "tol_nmse", "tol_kl"])]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    suite: Option<PathBuf>,
    /// Write the suite's goldens anew, by this engine, or by llama.cpp with --llama-cpp
    #[arg(long)]
    bless: bool,
    /// Folder in which --llama-cpp keeps its command line, raw output and the report [default:
    /// octavo-diff]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    keep: Option<PathBuf>,
    /// Recording of a golden to compare with: llama.cpp's own logits, or those of the exact
    /// dequantization [default: logits]
    #[arg(long, value_name = "WHICH")]
    against: Option<Which>,
    /// Maximum NMSE against a reference [default: by the coarsest weights: F32 1e-9, F16 4.3e-6,
    /// BF16 2.8e-4, quantized 4.9e-3]
    #[arg(long, value_name = "X", value_parser = tolerance)]
    tol_nmse: Option<f64>,
    /// Maximum mean KL divergence against a reference, in nats [default: not judged; where there
    /// are probabilities only: as --tol-nmse, at least 1e-6]
    #[arg(long, value_name = "X", value_parser = tolerance)]
    tol_kl: Option<f64>,
    #[command(flatten)]
    text: TextArgs,
    /// Token ids instead of a text, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["prompt", "file"])]
    tokens: Option<Vec<u32>>,
    /// Neither add special tokens nor parse them in the text
    #[arg(long, conflicts_with = "tokens")]
    no_special: bool,
    /// Instruction set of A [default: that of --isa]
    #[arg(long, value_name = "ISA", value_parser = values::isa(), hide_possible_values = true)]
    a_isa: Option<IsaChoice>,
    /// Instruction set of B [default: that of --isa]
    #[arg(long, value_name = "ISA", value_parser = values::isa(), hide_possible_values = true)]
    b_isa: Option<IsaChoice>,
    /// Device of A: cpu or cuda [default: that of --device, where auto is the CPU]
    #[arg(long, value_name = "DEVICE")]
    a_device: Option<Device>,
    /// Device of B [default: that of --device, where auto is the CPU]
    #[arg(long, value_name = "DEVICE")]
    b_device: Option<Device>,
    /// Executor of A
    #[arg(long, value_name = "EXEC", default_value = "engine")]
    a_exec: Exec,
    /// Executor of B
    #[arg(long, value_name = "EXEC", default_value = "engine")]
    b_exec: Exec,
    /// For mixtures of experts: run B with the experts that A chose, so that a near tie of two
    /// experts does not hide later differences; B's own choices are still compared. With
    /// --reference: run the model with the experts that llama-eval-callback printed
    #[arg(long, conflicts_with_all = ["suite", "llama_cpp"])]
    same_routing: bool,
    /// Show every tensor and every position, not only the important ones
    #[arg(long)]
    all: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Also write the report as one self-contained HTML page
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    html: Option<PathBuf>,
    /// Replace any files at --html, --keep, --bless and --out, unless they are inputs
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    shard: ShardArgs,
    #[command(flatten)]
    keys: KeyArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Executors of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Exec {
    /// The kernels
    Engine,
    /// The plain f64 forward pass (slow)
    Oracle,
}

/// Recordings of a golden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    /// llama.cpp on the file itself
    Logits,
    /// llama.cpp on the file dequantized to F32
    Exact,
}

impl From<Which> for ReferenceValues {
    fn from(which: Which) -> ReferenceValues {
        match which {
            Which::Logits => ReferenceValues::Logits,
            Which::Exact => ReferenceValues::Exact,
        }
    }
}

fn tolerance(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|x: &f64| x.is_finite() && *x >= 0.0);
    number.ok_or_else(|| "expected a finite number of at least 0".to_owned())
}

/// Title of the page.
pub(super) const TITLE: &str = "octavo diff";

const NO_TEXT: &str = "no text: expected -p TEXT, -f FILE (- is stdin) or --tokens IDS";

impl DiffArgs {
    /// Returns the recording of a golden to compare with.
    fn reference_values(&self) -> ReferenceValues {
        self.against.unwrap_or(Which::Logits).into()
    }

    fn isa(&self, own: Option<IsaChoice>) -> IsaChoice {
        own.unwrap_or(self.compute.isa)
    }

    /// Returns the device of A or B: the CPU, unless a GPU is asked for.
    fn device(&self, own: Option<Device>) -> Device {
        match own.unwrap_or(self.compute.device.device()) {
            Device::Auto => Device::Cpu,
            device => device,
        }
    }

    /// Returns all inputs, except those that a suite names.
    fn inputs(&self) -> Inputs {
        let programs = |folder: &PathBuf| {
            ["", "bin", "build/bin"].map(|place| folder.join(place).join("llama-results"))
        };
        // raw logits have their tokens in a file beside them
        let beside = |path: &PathBuf| {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            path.with_file_name(format!("{stem}-tokens.bin"))
        };
        Inputs::default()
            .model(self.a.as_deref())
            .model(self.b.as_deref())
            .file(self.text.file.as_deref())
            .file(self.mmproj.as_deref())
            .files(&self.image)
            .file(self.suite.as_deref())
            .files(&self.reference)
            .files(&self.reference.iter().map(beside).collect::<Vec<_>>())
            .files(
                self.llama_cpp
                    .as_ref()
                    .map(programs)
                    .as_ref()
                    .into_iter()
                    .flatten(),
            )
    }

    /// Creates an output of this run.
    fn output<'a>(&self, path: &'a Path, kind: Kind, inputs: &'a Inputs) -> Output<'a> {
        Output {
            path,
            kind,
            force: self.force,
            inputs,
        }
    }

    /// Returns the page of --html, if one is given.
    fn page<'a>(&'a self, inputs: &'a Inputs) -> Option<Output<'a>> {
        let page = self.html.as_deref();
        page.map(|path| self.output(path, Kind::Page(TITLE), inputs))
    }

    /// Returns the folder of --keep.
    fn keep(&self) -> &Path {
        self.keep.as_deref().unwrap_or(Path::new("octavo-diff"))
    }

    /// Creates the folder of --keep and refuses it if it holds other files under the names that are
    /// kept there.
    fn check_kept(&self, report: Option<&str>, inputs: &Inputs) -> Result<(), Failure> {
        let failed = |error| Failure::Input(format!("{}: {error}", self.keep().display()));
        std::fs::create_dir_all(self.keep()).map_err(failed)?;
        let paths: Vec<PathBuf> = LlamaCpp::KEPT
            .iter()
            .copied()
            .chain(report)
            .map(|name| self.keep().join(name))
            .collect();
        paths
            .iter()
            .try_for_each(|path| self.output(path, Kind::Kept, inputs).check())?;
        let all: Vec<&Path> = paths
            .iter()
            .map(PathBuf::as_path)
            .chain(self.html.as_deref())
            .collect();
        all_different(&all)
    }

    /// Returns whether A and B are the same: one model with equal executors, instruction sets and
    /// devices.
    fn same_twice(&self) -> bool {
        self.b.is_none()
            && self.a_exec == self.b_exec
            && self.isa(self.a_isa) == self.isa(self.b_isa)
            && self.device(self.a_device) == self.device(self.b_device)
    }
}

fn encoding(args: &DiffArgs) -> EncodeOptions {
    EncodeOptions {
        add_special: !args.no_special,
        parse_special: !args.no_special,
    }
}

/// Runs the command. Every error before a comparison is exit code 2.
pub(super) fn run(args: &DiffArgs) -> Result<Exit, Failure> {
    super::guard_maps(2);
    if args.keep.is_some() && args.llama_cpp.is_none() {
        let what = "--keep has no effect: expected --llama-cpp with it";
        return Err(Failure::Usage(what.to_owned()));
    }
    if let Some(option) = args.compute.device.fit.option() {
        let what = format!("{option} has no effect: a comparison runs as its options say");
        return Err(Failure::Usage(what));
    }
    if !args.keys.changes().is_empty() && (args.suite.is_some() || args.llama_cpp.is_some()) {
        let what = "--override-kv, --rope-* and --yarn-*: not with --suite or --llama-cpp, whose \
                    models are read as they are";
        return Err(Failure::Usage(what.to_owned()));
    }
    if args.adapters.are_given() && args.reference.is_empty() {
        let what = "--lora, --control-vector and their kin: expected --reference with them";
        return Err(Failure::Usage(what.to_owned()));
    }
    let result = match &args.suite {
        Some(suite) => suite::diff(args, suite),
        None => one(args),
    };
    args.shard.ended(result).map_err(|failure| match failure {
        Failure::Input(message) | Failure::Machine(message) => Failure::Usage(message),
        other => other,
    })
}

fn one(args: &DiffArgs) -> Result<Exit, Failure> {
    let of_suites = [
        ("--shard", args.shard.index().is_some()),
        ("--bless", args.bless),
    ];
    if let Some((option, _)) = of_suites.into_iter().find(|(_, is_set)| *is_set) {
        return Err(Failure::Usage(format!(
            "{option} has no effect: expected --suite with it"
        )));
    }
    let recorded = !args.reference.is_empty() || args.llama_cpp.is_some();
    if !recorded && args.same_twice() {
        return Err(Failure::Usage(
            "nothing to compare with: expected --reference, --llama-cpp, a second model, or \
             different --a-isa and --b-isa, --a-device and --b-device, --a-exec and --b-exec"
                .to_owned(),
        ));
    }
    let of_references = [
        ("--against", args.against.is_some()),
        ("--tol-nmse", args.tol_nmse.is_some()),
        ("--tol-kl", args.tol_kl.is_some()),
    ];
    let useless = of_references
        .into_iter()
        .find(|(_, is_set)| *is_set && !recorded);
    if let Some((option, _)) = useless {
        return Err(Failure::Usage(format!(
            "{option} has no effect: expected --reference or --llama-cpp with it"
        )));
    }
    let inputs = args.inputs();
    let page = args.page(&inputs);
    if let Some(page) = &page {
        page.check()?;
    }
    signal::install()?;
    if recorded {
        recorded::diff(args, page.as_ref(), &inputs)
    } else {
        executions::diff(args, page.as_ref())
    }
}
