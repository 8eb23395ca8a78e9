//! `octavo bench`: measures as llama-bench does, as fractions of what the machine can do.

use clap::{Args, ValueEnum};
use octavo_analysis::bench::{self, Build, Limits, Processor, Record, Setting, Test};
use octavo_engine::backend::cuda;
use octavo_engine::threads::Machine;
use octavo_engine::{DeviceChoice, Engine, EngineOptions, ModelSource, default_batch};
use octavo_kernels::{IsaChoice, PromptBits};
use serde_json::Value;

use super::answer::VERSION;
use super::args::{CacheArgs, DeviceArgs, ModelArgs};
use super::failure::{Exit, Failure};
use super::ranks::NumaArgs;
use super::terminal::{self, Progress};
use super::threads::DEFAULT;
use super::{load, ranks, signal, threads, values};

/// Measure a model's speed, as llama-bench does, as a fraction of the machine's limits
///
/// Every test runs once to warm up, then -r times. GB/s counts what decoding a token has to read
/// (weights, keys, values and states), GFLOP/s the matrix products of prefill; the limits of the
/// machine are measured first.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo bench
  octavo bench model.gguf
  octavo bench model.gguf -p 128,512 -n 64 -d 0,4096 -t 1,2 -r 3
  octavo bench model.gguf -n 0 --isa avx2 -o json
  octavo bench model.gguf --device cuda -d 0,4096

-p, -n, -d, -t and --sequences take lists, separated by commas; a length of 0 leaves its test out.
-o json prints an array of objects with llama-bench's field names, then ours: version, \
n_sequences, threads_reason, isa, kernels, read_gb_s,
read_gb_s_best, read_percent, gflops, gflops_peak, flops_percent, token_hash. -o csv prints the \
same fields.
More than 100 % of the best means that the model fits into the caches, or that other work ran \
while the limits were
measured.
The hash is of the tokens chosen (greedily): it does not depend on threads, batches or \
repetitions.")]
pub(super) struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Prompt lengths, in tokens
    #[arg(
        short = 'p',
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "512"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    n_prompt: Vec<u32>,
    /// Numbers of tokens to generate
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "128"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    n_gen: Vec<u32>,
    /// Numbers of tokens already in the KV cache
    #[arg(
        short = 'd',
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "0"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1 << 24))]
    n_depth: Vec<u32>,
    /// Numbers of sequences to decode together; t/s counts the tokens of all
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    sequences: Vec<u32>,
    /// Number of repetitions
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1000),
    )]
    repetitions: u32,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    pub(super) numa: NumaArgs,
    #[arg(short, long, value_name = "N", value_delimiter = ',')]
    #[arg(help = format!(
        "Numbers of threads, each at most the count of CPUs that this process may use \
         {DEFAULT}"
    ))]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// Prompt tokens per prefill step [default: 512; 2048 on a GPU]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch_size: Option<u32>,
    #[arg(help = values::isa_help())]
    #[arg(long, value_name = "ISA", default_value = "auto")]
    #[arg(value_parser = values::isa(), hide_possible_values = true)]
    isa: IsaChoice,
    #[command(flatten)]
    cache: CacheArgs,
    #[arg(help = values::prompt_bits_help())]
    #[arg(long, value_name = "BITS")]
    #[arg(value_parser = values::prompt_bits(), hide_possible_values = true)]
    prompt_bits: Option<PromptBits>,
    /// Read the file into memory instead of mapping it
    #[arg(long)]
    no_mmap: bool,
    /// Compute from the file's own weight layout instead of repacking weights for the kernels
    #[arg(long)]
    no_repack: bool,
    /// Lock the CPU's copies of weights in memory, so that none is swapped out
    #[arg(long, conflicts_with = "no_repack")]
    mlock: bool,
    /// Skip measuring the machine's limits; the columns of percentages stay empty
    #[arg(long)]
    no_limits: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "md")]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Markdown table
    Md,
    /// JSON array of objects
    Json,
    /// CSV: a line of names, then a line for each test
    Csv,
}

/// Runs the command.
pub(super) fn run(args: &BenchArgs) -> Result<Exit, Failure> {
    let lengths = |list: &[u32]| list.iter().map(|n| *n as usize).collect::<Vec<_>>();
    let tests = Test::all(
        &lengths(&args.n_prompt),
        &lengths(&args.n_gen),
        &lengths(&args.n_depth),
        &lengths(&args.sequences),
    );
    if tests.is_empty() {
        return Err(Failure::Usage(
            "-p 0 with -n 0: expected something to measure".to_owned(),
        ));
    }
    signal::install()?;
    let processor = processor(args)?;
    let numbers = match args.threads[..] {
        [] => vec![Machine::here().threads()],
        ref asked => asked.iter().map(|n| threads::requested(*n)).collect(),
    };
    let source = load::source(&args.model)?;
    // refuse a file that cannot be run before any long work
    octavo_model::Model::load(&source.open(!args.no_mmap)?)?;
    let mut printer = Printer::new(args.output);
    for threads in numbers {
        let measure_limits = || Limits::measure(&processor, threads.count);
        let limits = (!args.no_limits).then(measure_limits).transpose()?;
        let setting = Setting {
            build: build(),
            model: args
                .model
                .name()
                .map_or_else(|| "built-in".to_owned(), |p| p.display().to_string()),
            processor: processor.clone(),
            gpu_layers: args.device.gpu_layers(),
            threads,
            batch: args
                .batch_size
                .map_or_else(|| default_batch(choice(&processor)), |n| n as usize),
            kv_type: args.cache.types(),
            prompt_bits: args.prompt_bits.unwrap_or_default(),
            repack: !args.no_repack,
            limits,
        };
        measure(args, &source, &setting, &tests, &mut printer)?;
    }
    printer.finish()?;
    Ok(Exit::Done)
}

/// Returns the processor that the arguments choose: a GPU that works if none is named.
fn processor(args: &BenchArgs) -> Result<Processor, Failure> {
    let open = |gpu: usize| cuda::open(gpu).map(|gpu| Processor::Gpu(gpu.info().clone()));
    let cpu = || Ok(Processor::Cpu(args.isa.resolve()?));
    match args.device.choice(args.isa)? {
        DeviceChoice::Cpu => cpu(),
        DeviceChoice::Cuda(gpu) => Ok(open(gpu).map_err(octavo_engine::Error::from)?),
        DeviceChoice::Auto { gpu, asked } => open(gpu).or_else(|error| {
            if asked || !matches!(error, cuda::Error::NoDriver) {
                terminal::note(&format!("octavo: on the CPU: {error}"));
            }
            cpu()
        }),
    }
}

fn choice(processor: &Processor) -> DeviceChoice {
    match processor {
        Processor::Cpu(_) => DeviceChoice::Cpu,
        Processor::Gpu(gpu) => DeviceChoice::Cuda(gpu.ordinal),
    }
}

fn measure(
    args: &BenchArgs,
    source: &ModelSource,
    setting: &Setting,
    tests: &[Test],
    printer: &mut Printer,
) -> Result<(), Failure> {
    let positions = tests.iter().map(|test| test.positions(setting.batch));
    let positions = positions.max().unwrap_or(1);
    let sessions = tests.iter().map(|test| test.sequences);
    let sessions = sessions.max().unwrap_or(1);
    let options = EngineOptions {
        device: choice(&setting.processor),
        gpu_layers: setting.gpu_layers,
        layer_split: args.device.layer_split(),
        cpu_experts: args.device.cpu_experts(),
        fit: args.device.fit.fit(),
        graphs: args.device.graphs(),
        check_pages: args.device.check_pages(),
        threads: Some(setting.threads.count),
        pool: None,
        tp_group: ranks::tp_group(),
        isa: args.isa,
        kv_type: setting.kv_type,
        prompt_bits: setting.prompt_bits,
        ctx: Some(positions),
        // each test needs all of its context
        kv_positions: Some(positions.saturating_mul(sessions)),
        prompt_cache: None,
        slot_dir: None,
        keep_hidden: false,
        adapters: Vec::new(),
        control: Vec::new(),
        control_layers: None,
        sessions,
        batch: Some(setting.batch),
        mmap: !args.no_mmap,
        repack: setting.repack,
        lock: args.mlock,
        weights: None,
    };
    let engine = load::shown(|sink| Engine::load(source, &options, sink))?;
    terminal::warn(engine.warnings());
    let mut session = engine.session();
    for &test in tests {
        let bar = Progress::runs("measuring");
        let samples = bench::run(
            &mut session,
            test,
            args.repetitions as usize,
            &mut |d, t| bar.at(d as u64, t as u64),
        );
        bar.clear();
        printer.row(
            setting,
            test,
            Record::new(&engine, setting, test, &samples?),
        )?;
    }
    Ok(())
}

/// Column names and widths of the table; a negative width is flush left.
const COLUMNS: [(&str, i32); 12] = [
    ("model", -24),
    ("size", 10),
    ("params", 10),
    ("backend", -11),
    ("threads", 7),
    ("test", 15),
    ("t/s", 20),
    ("GB/s", 6),
    ("% of best", 9),
    ("GFLOP/s", 7),
    ("% of peak", 9),
    ("token hash", 16),
];

/// Prints rows of a table or lines of CSV as they come, a JSON array at the end.
struct Printer {
    format: Format,
    records: Vec<Value>,
    limits: Vec<String>,
}

impl Printer {
    fn new(format: Format) -> Printer {
        Printer {
            format,
            records: Vec::new(),
            limits: Vec::new(),
        }
    }

    fn row(&mut self, setting: &Setting, test: Test, record: Record) -> Result<(), Failure> {
        let first = self.records.is_empty();
        let mut value = serde_json::to_value(&record)?;
        if self.format == Format::Json {
            value["version"] = VERSION.into();
        }
        let lines = match self.format {
            Format::Json => String::new(),
            Format::Csv => csv(&value, first),
            Format::Md => {
                let threads = setting.threads.in_brackets();
                let limits = match setting.limits {
                    Some(Limits { read, flops }) => {
                        format!(
                            "{threads}: {read:.1} GB/s read, {flops:.1} GFLOP/s in {}",
                            record.arithmetic
                        )
                    }
                    None => format!("{threads}: not measured"),
                };
                let bits = match setting.prompt_bits {
                    PromptBits::Sixteen => String::new(),
                    bits => format!(", prompts in {bits} bits where kernels have them"),
                };
                let limits = format!("{}{bits}, {limits}", record.isa);
                if !self.limits.contains(&limits) {
                    self.limits.push(limits);
                }
                let head = if first { table_head() } else { String::new() };
                head + &table_row(test, &record)
            }
        };
        self.records.push(value);
        Ok(terminal::print(lines.as_bytes())?)
    }

    fn finish(self) -> Result<(), Failure> {
        let text = match self.format {
            Format::Json => serde_json::to_string_pretty(&self.records)? + "\n",
            Format::Csv => String::new(),
            Format::Md => format!("\nMeasured limits: {}\n", self.limits.join("; ")),
        };
        Ok(terminal::print(text.as_bytes())?)
    }
}

fn table_line(cells: impl Iterator<Item = String>) -> String {
    let cell = |((_, width), text): (&(&str, i32), String)| {
        let to = width.unsigned_abs() as usize;
        if *width < 0 {
            format!(" {text:<to$} |")
        } else {
            format!(" {text:>to$} |")
        }
    };
    "|".to_owned() + &COLUMNS.iter().zip(cells).map(cell).collect::<String>() + "\n"
}

fn table_head() -> String {
    let rule = |(_, width): &(&str, i32)| {
        let dashes = "-".repeat(width.unsigned_abs() as usize - usize::from(*width > 0));
        if *width < 0 { dashes } else { dashes + ":" }
    };
    table_line(COLUMNS.iter().map(|c| c.0.to_owned())) + &table_line(COLUMNS.iter().map(rule))
}

/// Returns the sources that the program was built from, as records name them.
fn build() -> Build {
    let crate::Build { commit, number } = crate::build();
    Build {
        commit: commit.unwrap_or("unknown"),
        number: number.and_then(|number| number.parse().ok()).unwrap_or(0),
    }
}

fn table_row(test: Test, r: &Record) -> String {
    let size = |bytes: u64| match bytes as f64 {
        b if b >= f64::from(1 << 30) => format!("{:.2} GiB", b / f64::from(1 << 30)),
        b => format!("{:.2} MiB", b / f64::from(1 << 20)),
    };
    let count = |n: u64| match n as f64 {
        n if n >= 1e9 => format!("{:.2} B", n / 1e9),
        n => format!("{:.2} M", n / 1e6),
    };
    let or_dash = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.1}"));
    let cells = [
        r.model_type.clone(),
        size(r.model_size),
        count(r.model_n_params),
        format!("{} {}", r.backends, r.isa),
        r.n_threads.to_string(),
        test.to_string(),
        format!("{:.2} ± {:.2}", r.avg_ts, r.stddev_ts),
        or_dash(r.read_gb_s),
        or_dash(r.read_percent),
        or_dash(r.gflops),
        or_dash(r.flops_percent),
        r.token_hash.clone(),
    ];
    table_line(cells.into_iter())
}

/// Formats a record as a line, every field quoted as llama-bench does; the field names come before
/// the first one.
fn csv(record: &Value, first: bool) -> String {
    let Value::Object(fields) = record else {
        return String::new();
    };
    let line = |cells: &mut dyn Iterator<Item = String>| cells.collect::<Vec<_>>().join(",") + "\n";
    let cell = |value: &Value| {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            // lists keep their commas inside the quotes
            other => other.to_string(),
        };
        format!("\"{}\"", text.replace('"', "\"\""))
    };
    let names = if first {
        line(&mut fields.keys().cloned())
    } else {
        String::new()
    };
    names + &line(&mut fields.values().map(cell))
}
