//! `cargo xtask compare-llama`: Octavo and llama.cpp side by side.
//!
//! Both programs measure the same tests in alternation, for several rounds, so that changes of the
//! machine's speed affect both. llama.cpp runs with every setting that may be its best, and the
//! best one counts. Speeds are medians over the rounds; the spread is that of the per-round ratios.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::model;
use crate::side::{self, median, text};

/// Measure Octavo and llama.cpp side by side
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cargo xtask compare-llama --llama-cpp ~/llama.cpp/build model.gguf
  cargo xtask compare-llama --llama-cpp ~/llama.cpp/build model.gguf -d 0,4096 \
--csv tools/bench/my-machine.csv
  cargo xtask compare-llama --llama-cpp ~/llama.cpp/build-cuda model.gguf --device cuda -p 512,2048
  cargo xtask compare-llama --llama-cpp ~/llama.cpp/build --types IQ3_S,TQ2_0,NVFP4

No other work should run: with more threads than free CPUs both programs wait at barriers, and \
ratios mean nothing. The
spread shows it; cargo xtask busy measures beside other work. Of more threads than \
CPUs Octavo takes as many as CPUs.")]
pub(crate) struct CompareArgs {
    /// GGUF file
    #[arg(required_unless_present = "types")]
    model: Option<PathBuf>,
    /// Weight types to measure, one after the other, in place of a file: six layers of a 0.6B model
    /// with random weights, all of the type
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        conflicts_with = "model"
    )]
    types: Vec<String>,
    /// Folder with llama-bench, or the build folder above its bin
    #[arg(long, value_name = "DIR")]
    llama_cpp: PathBuf,
    /// Threads; lists as for octavo bench
    #[arg(short, long, value_name = "N", default_value = "2")]
    threads: String,
    /// Prompt lengths
    #[arg(short = 'p', long, value_name = "N", default_value = "512")]
    n_prompt: String,
    /// Numbers of tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value = "64")]
    n_gen: String,
    /// Numbers of tokens already in the KV cache
    #[arg(short = 'd', long, value_name = "N", default_value = "0")]
    n_depth: String,
    /// Repetitions of each test in a round
    #[arg(short, long, value_name = "N", default_value = "3")]
    repetitions: String,
    /// Device to compute on, for both programs
    #[arg(long, value_enum, default_value_t = Processor::Cpu)]
    device: Processor,
    /// Octavo's instruction set; llama.cpp's is the one it was built for
    #[arg(long, value_name = "ISA", default_value = "auto")]
    isa: String,
    /// Bits that Octavo rounds prompt activations to, 8 or 16, as for octavo bench [default: 16]
    #[arg(long, value_name = "BITS", value_parser = ["8", "16"])]
    prompt_bits: Option<String>,
    /// Number of rounds
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    rounds: u32,
    /// Append the results to this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// The program to measure [default: built first, in release mode]
    #[arg(long, value_name = "FILE")]
    octavo: Option<PathBuf>,
}

/// Device that both programs use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Processor {
    /// The CPU
    Cpu,
    /// An NVIDIA GPU
    Cuda,
}

impl Processor {
    fn llama_settings(self) -> &'static [&'static str] {
        match self {
            Processor::Cpu => &side::LLAMA_SETTINGS,
            Processor::Cuda => &side::LLAMA_GPU_SETTINGS,
        }
    }

    fn setting_name(self, record: &Value) -> String {
        match self {
            Processor::Cpu => side::setting_name(side::llama_setting(record)),
            Processor::Cuda => side::gpu_setting_name(record),
        }
    }

    /// Returns the field of Octavo's records with the device name.
    fn field(self) -> &'static str {
        match self {
            Processor::Cpu => "cpu_info",
            Processor::Cuda => "gpu_info",
        }
    }
}

/// Result of one program in one round.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    round: u32,
    test: String,
    /// llama.cpp's setting; empty for Octavo.
    setting: String,
    rate: f64,
}

/// Result of one test.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    test: String,
    ours: f64,
    theirs: f64,
    ratio: f64,
    least: f64,
    most: f64,
    setting: String,
}

/// Runs the task.
pub(crate) fn run(args: &CompareArgs) -> Result<(), String> {
    if args.device == Processor::Cuda && (args.isa != "auto" || args.prompt_bits.is_some()) {
        return Err("--isa and --prompt-bits have no effect with --device cuda".to_owned());
    }
    let llama = side::find(&args.llama_cpp, "llama-bench")?;
    let octavo = args.octavo.clone().map_or_else(side::build, Ok)?;
    let programs = (octavo.as_path(), llama.as_path());
    if let Some(model) = &args.model {
        return compare_model(args, programs, model);
    }
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    for ty in &args.types {
        let path = dir.path().join(format!("{ty}.gguf"));
        model::write_named(ty, &path)?;
        compare_model(args, programs, &path)?;
        fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Measures a model with both programs, ours and llama-bench, and prints the table.
fn compare_model(
    args: &CompareArgs,
    (octavo, llama): (&Path, &Path),
    model: &Path,
) -> Result<(), String> {
    let (mut ours, mut theirs, mut about) = (Vec::new(), Vec::new(), Value::Null);
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        // each program goes first equally often
        for turn in [round % 2 == 1, round.is_multiple_of(2)] {
            let mut command = Command::new(if turn { octavo } else { llama });
            if turn {
                ours_alone(&mut command, args);
            } else {
                command.args(args.device.llama_settings());
            }
            let records = measure(common(&mut command, args, model))?;
            if turn {
                about = records[0].clone();
                samples(&records, round, |_| String::new(), &mut ours)?;
            } else {
                let setting = |r: &Value| args.device.setting_name(r);
                samples(&records, round, setting, &mut theirs)?;
            }
        }
    }
    let lines = compare(&ours, &theirs)?;
    // with a GPU, the column `cpu_info` has the name of the GPU
    about["cpu_info"] = about[args.device.field()].clone();
    print!("{}", table(&lines, &about, args.rounds));
    match &args.csv {
        Some(path) => append(path, &lines, &about),
        None => Ok(()),
    }
}

/// Adds the arguments that only Octavo takes.
fn ours_alone(command: &mut Command, args: &CompareArgs) {
    match args.device {
        Processor::Cpu => command.args(["bench", "--device", "cpu", "--isa", &args.isa]),
        Processor::Cuda => command.args(["bench", "--device", "cuda"]),
    };
    if let Some(bits) = &args.prompt_bits {
        command.args(["--prompt-bits", bits]);
    }
}

/// Adds the arguments that both programs share.
fn common<'c>(command: &'c mut Command, args: &CompareArgs, model: &Path) -> &'c mut Command {
    command.arg("-m").arg(model).args([
        "-t",
        &args.threads,
        "-p",
        &args.n_prompt,
        "-n",
        &args.n_gen,
    ]);
    command.args(["-d", &args.n_depth, "-r", &args.repetitions, "-o", "json"])
}

/// Runs a program that prints an array of records.
fn measure(command: &mut Command) -> Result<Vec<Value>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("cannot start {name}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{name}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        ));
    }
    side::records(&name, &output.stdout)
}

/// Appends the rates of a round.
fn samples(
    records: &[Value],
    round: u32,
    setting: impl Fn(&Value) -> String,
    to: &mut Vec<Sample>,
) -> Result<(), String> {
    for r in records {
        to.push(Sample {
            round,
            test: test(r),
            setting: setting(r),
            rate: side::rate(r)?,
        });
    }
    Ok(())
}

/// Returns the test's name, with the number of threads if several are measured.
fn test(r: &Value) -> String {
    let number = |name: &str| r[name].as_u64().unwrap_or(0);
    let (kind, n) = if number("n_prompt") > 0 {
        ("pp", number("n_prompt"))
    } else {
        ("tg", number("n_gen"))
    };
    let depth = if number("n_depth") > 0 {
        format!(" @ d{}", number("n_depth"))
    } else {
        String::new()
    };
    format!("{kind}{n}{depth}, {} threads", number("n_threads"))
}

fn compare(ours: &[Sample], theirs: &[Sample]) -> Result<Vec<Line>, String> {
    let mut lines: Vec<Line> = Vec::new();
    for first in ours.iter().filter(|s| s.round == 1) {
        let of = |all: &[Sample], setting: &str| -> Vec<f64> {
            all.iter()
                .filter(|s| s.test == first.test && s.setting == setting)
                .map(|s| s.rate)
                .collect()
        };
        let mine = of(ours, "");
        let mut settings: Vec<&str> = theirs
            .iter()
            .filter(|s| s.test == first.test)
            .map(|s| s.setting.as_str())
            .collect();
        settings.sort_unstable();
        settings.dedup();
        let best = settings
            .iter()
            .max_by(|a, b| median(&of(theirs, a)).total_cmp(&median(&of(theirs, b))));
        let setting = (*best
            .ok_or_else(|| format!("llama-bench did not measure {}", first.test))?)
        .to_owned();
        let yours = of(theirs, &setting);
        let ratios: Vec<f64> = mine.iter().zip(&yours).map(|(a, b)| a / b).collect();
        lines.push(Line {
            test: first.test.clone(),
            ours: median(&mine),
            theirs: median(&yours),
            ratio: median(&mine) / median(&yours),
            least: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            most: ratios.iter().copied().fold(0.0, f64::max),
            setting,
        });
    }
    Ok(lines)
}

fn table(lines: &[Line], about: &Value, rounds: u32) -> String {
    let mut out = format!(
        "{}, {}, {}; tokens per second, medians of {rounds} rounds\n",
        side::model(about),
        text(about, "isa"),
        text(about, "cpu_info")
    );
    out += &format!(
        "{:<28} {:>9} {:>9}  ratio (min - max)    llama.cpp's best\n",
        "test", "octavo", "llama.cpp"
    );
    for l in lines {
        let spread = format!("{:.2} ({:.2} - {:.2})", l.ratio, l.least, l.most);
        // writing to a string cannot fail
        let _ = writeln!(
            out,
            "{:<28} {:>9.1} {:>9.1}  {spread:<19}  {}",
            l.test, l.ours, l.theirs, l.setting
        );
    }
    out
}

/// Appends a CSV line for each test.
fn append(path: &Path, lines: &[Line], about: &Value) -> Result<(), String> {
    let [date, cpu, isa] = ["test_time", "cpu_info", "isa"].map(|name| text(about, name));
    let model = side::model(about);
    let line = |l: &Line| {
        let rates = format!(
            "{:.2},{:.2},{:.3},{:.3},{:.3}",
            l.ours, l.theirs, l.ratio, l.least, l.most
        );
        format!(
            "{date},\"{cpu}\",\"{model}\",\"{}\",{isa},{rates},\"{}\"",
            l.test, l.setting
        )
    };
    let lines: Vec<String> = lines.iter().map(line).collect();
    side::append(
        path,
        "date,cpu,model,test,isa,ours,theirs,ratio,min,max,llama_cpp",
        &lines,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn their_best_setting_counts_and_ratios_are_of_one_round() {
        let sample = |round, setting: &str, rate| Sample {
            round,
            test: "tg".into(),
            setting: setting.into(),
            rate,
        };
        let ours = [
            sample(1, "", 30.0),
            sample(2, "", 20.0),
            sample(3, "", 40.0),
        ];
        let theirs = [(1, 10.0, 11.0), (2, 10.0, 5.0), (3, 10.0, 20.0)];
        let theirs: Vec<Sample> = theirs
            .iter()
            .flat_map(|&(r, a, b)| [sample(r, "fa 0", a), sample(r, "fa 1", b)])
            .collect();
        let lines = compare(&ours, &theirs).expect("measured");
        let line = &lines[0];
        assert_eq!((lines.len(), line.setting.as_str()), (1, "fa 1"));
        assert_eq!(
            (line.ours, line.theirs, line.least, line.most),
            (30.0, 11.0, 2.0, 4.0)
        );
        assert_eq!(line.ratio, 30.0 / 11.0);
        assert!(compare(&ours, &[]).is_err());
    }

    #[test]
    fn settings_are_those_of_what_computes() {
        let record = json!({"flash_attn": true, "repack": 0, "n_ubatch": 2048});
        assert_eq!(Processor::Cpu.setting_name(&record), "fa 1, repack 0");
        assert_eq!(Processor::Cuda.setting_name(&record), "fa 1, ubatch 2048");
        assert!(Processor::Cuda.llama_settings().contains(&"-ngl"));
    }

    #[test]
    fn records_become_samples() {
        let r = json!({"n_prompt": 0, "n_gen": 64, "n_depth": 9, "n_threads": 2, "avg_ts": 1.5});
        let mut all = Vec::new();
        samples(&[r], 1, |_| String::new(), &mut all).expect("a rate");
        assert_eq!(
            all[0],
            Sample {
                round: 1,
                test: "tg64 @ d9, 2 threads".into(),
                setting: String::new(),
                rate: 1.5
            }
        );
        assert!(samples(&[json!({})], 1, |_| String::new(), &mut all).is_err());
    }

    #[test]
    fn bits_of_prompts_are_for_octavo() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            compare: CompareArgs,
        }
        let said = |more: &[&str]| {
            let words = [&["xtask", "m.gguf", "--llama-cpp", "."], more].concat();
            let line = <Line as clap::Parser>::try_parse_from(words).expect("parses");
            let mut command = Command::new("octavo");
            ours_alone(&mut command, &line.compare);
            let words = command.get_args().map(|word| word.to_string_lossy());
            words.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(said(&[]), "bench --device cpu --isa auto");
        let eight = said(&["--prompt-bits", "8"]);
        assert_eq!(eight, "bench --device cpu --isa auto --prompt-bits 8");
        assert_eq!(said(&["--device", "cuda"]), "bench --device cuda");
    }

    #[test]
    fn files_get_one_head() {
        let path = std::env::temp_dir().join(format!("octavo-compare-{}.csv", std::process::id()));
        let line = Line {
            test: "tg64, 2 threads".into(),
            ours: 30.0,
            theirs: 20.0,
            ratio: 1.5,
            least: 1.4,
            most: 1.6,
            setting: "fa 1, repack 1".into(),
        };
        let about = json!({
            "test_time": "2026-01-01T00:00:00Z",
            "cpu_info": "c",
            "model_type": "m",
            "prompt_bits": 8,
            "isa": "avx2"
        });
        for _ in 0..2 {
            append(&path, std::slice::from_ref(&line), &about).expect("written");
        }
        let text = std::fs::read_to_string(&path).expect("there");
        std::fs::remove_file(&path).expect("removed");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[1]), (3, lines[2]));
        assert_eq!(
            lines[1],
            "2026-01-01T00:00:00Z,\"c\",\"m, prompts in 8 bits\",\"tg64, 2 threads\",avx2,\
             30.00,20.00,1.500,1.400,1.600,\"fa 1, repack 1\""
        );
    }
}
