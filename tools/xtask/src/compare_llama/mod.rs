//! `cargo xtask compare-llama`: Octavo, llama.cpp and ik_llama.cpp side by side.
//!
//! The programs measure the same tests in alternation, for several rounds, so that changes of the
//! machine's speed affect all of them. In the first round the others run with every setting that
//! may be their best, afterwards with the fastest. Speeds are medians over the rounds; the spread
//! is that of the per-round ratios. A run with more repetitions than another takes more CPU seconds
//! by theirs alone.

mod programs;
mod table;
mod test;

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::{model, side};
use programs::Program;
use table::{Line, Peer, Series};
use test::Test;

/// Measure Octavo, llama.cpp and ik_llama.cpp side by side
///
/// For each test: tokens per second, CPU seconds of a repetition (in user mode), and Octavo's speed
/// as a multiple of each other program's, by wall and by CPU time.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cargo xtask compare-llama --llama-cpp ~/llama.cpp/build model.gguf
  cargo xtask compare-llama --llama-cpp ~/llama.cpp/build model.gguf -d 0,4096 \
--csv tools/bench/my-machine.csv
  cargo xtask compare-llama --llama-cpp ~/llama.cpp/build-cuda model.gguf --device cuda -p 512,2048
  cargo xtask compare-llama --llama-cpp ~/llama.cpp/build --ik ~/ik_llama.cpp/build -t 1,2 \
--types all

No other work should run: with more threads than free CPUs programs wait at barriers, and ratios \
mean nothing. The spread shows it; cargo xtask busy measures beside other work. Of more threads \
than CPUs Octavo takes as many as CPUs.")]
pub(crate) struct CompareArgs {
    /// GGUF file
    #[arg(required_unless_present = "types")]
    model: Option<PathBuf>,
    /// Weight types to measure, one after the other, in place of a file, or all: six layers of a
    /// 0.6B model with random weights, all of the type
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
    /// Folder with ik_llama.cpp's llama-bench, or the build folder above its bin
    #[arg(long, value_name = "DIR")]
    ik: Option<PathBuf>,
    /// Numbers of threads
    #[arg(
        short,
        long,
        value_name = "N",
        default_value = "2",
        value_delimiter = ','
    )]
    threads: Vec<u32>,
    /// Prompt lengths
    #[arg(
        short = 'p',
        long,
        value_name = "N",
        default_value = "512",
        value_delimiter = ','
    )]
    n_prompt: Vec<u32>,
    /// Numbers of tokens to generate
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value = "64",
        value_delimiter = ','
    )]
    n_gen: Vec<u32>,
    /// Numbers of tokens already in the KV cache
    #[arg(
        short = 'd',
        long,
        value_name = "N",
        default_value = "0",
        value_delimiter = ','
    )]
    n_depth: Vec<u32>,
    /// Repetitions of each test in a round
    #[arg(short, long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Device to compute on, for all programs
    #[arg(long, value_enum, default_value_t = Processor::Cpu)]
    device: Processor,
    /// Octavo's instruction set; llama.cpp's is the one it was built for
    #[arg(long, value_name = "ISA", default_value = "auto")]
    isa: String,
    /// Bits that Octavo rounds prompt activations to, as for octavo bench [default: 16]
    #[arg(long, value_name = "BITS", value_parser = ["8", "13", "16"])]
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
    /// Returns the field of Octavo's records with the device name.
    fn field(self) -> &'static str {
        match self {
            Processor::Cpu => "cpu_info",
            Processor::Cuda => "gpu_info",
        }
    }
}

/// Runs the task.
pub(crate) fn run(args: &CompareArgs) -> Result<(), String> {
    let on_gpu = args.device == Processor::Cuda;
    if on_gpu && (args.isa != "auto" || args.prompt_bits.is_some() || args.ik.is_some()) {
        return Err("--isa, --prompt-bits and --ik have no effect with --device cuda".to_owned());
    }
    let mut peers = vec![Program::llama_cpp(&args.llama_cpp, on_gpu)?];
    if let Some(dir) = &args.ik {
        peers.push(Program::ik_llama_cpp(dir)?);
    }
    let octavo = args.octavo.clone().map_or_else(side::build, Ok)?;
    let octavo = Program::octavo(octavo, ours_alone(args));
    if let Some(model) = &args.model {
        return compare_model(args, &octavo, &peers, model, None).map(|_| ());
    }
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut models = Vec::new();
    for ty in types(&args.types) {
        let path = dir.path().join(format!("{ty}.gguf"));
        model::write_named(&ty, &path)?;
        // a file's type is that of a mix, which some of these are none of
        let name = format!("qwen3 0.6B shape, 6 layers, {ty}");
        let lines = compare_model(args, &octavo, &peers, &path, Some(name))?;
        fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        models.push((ty, lines));
    }
    print!("{}", table::summary(&models));
    Ok(())
}

/// Returns the weight types that were named; `all` is every one.
fn types(named: &[String]) -> Vec<String> {
    let all = model::ALL_TYPES.iter().map(|ty| (*ty).to_owned());
    match named {
        [name] if name.eq_ignore_ascii_case("all") => all.collect(),
        _ => named.to_vec(),
    }
}

/// Returns the arguments that only Octavo takes.
fn ours_alone(args: &CompareArgs) -> Vec<String> {
    let mut first = match args.device {
        Processor::Cpu => vec![
            "bench",
            "--no-limits",
            "--device",
            "cpu",
            "--isa",
            &args.isa,
        ],
        Processor::Cuda => vec!["bench", "--device", "cuda"],
    };
    if let Some(bits) = &args.prompt_bits {
        first.extend(["--prompt-bits", bits]);
    }
    first.into_iter().map(str::to_owned).collect()
}

/// Measures a model with all programs, prints the table and returns its lines; `name` replaces the
/// name that Octavo gives it.
fn compare_model(
    args: &CompareArgs,
    octavo: &Program,
    peers: &[Program],
    model: &Path,
    name: Option<String>,
) -> Result<Vec<Line>, String> {
    let tests = Test::all(&args.threads, &args.n_depth, &args.n_prompt, &args.n_gen);
    let (mut lines, mut about) = (Vec::new(), Value::Null);
    for test in tests {
        eprintln!("{test}");
        let mut measure = |program: &Program, setting: &[&'static str]| {
            let one = program.run(setting, model, test, 1)?;
            let more = program.run(setting, model, test, 1 + args.repetitions)?;
            if program.name == octavo.name {
                about = more.record;
            }
            let cpu = (more.cpu - one.cpu) / f64::from(args.repetitions);
            Ok((more.rate, cpu))
        };
        lines.push(compare(test, octavo, peers, args.rounds, &mut measure)?);
    }
    // with a GPU, the column `cpu_info` has the name of the GPU
    about["cpu_info"] = about[args.device.field()].clone();
    if let Some(name) = name {
        about["model_type"] = name.into();
    }
    print!("{}", table::table(&lines, &about, args.rounds));
    if let Some(path) = &args.csv {
        table::append(path, &lines, &about)?;
    }
    Ok(lines)
}

/// Measures one program with one setting: tokens per second, and CPU seconds of a repetition.
type Measure<'m> = dyn FnMut(&Program, &[&'static str]) -> Result<(f64, f64), String> + 'm;

/// Compares the programs at a test. A failure of another program is its result.
fn compare(
    test: Test,
    octavo: &Program,
    peers: &[Program],
    rounds: u32,
    measure: &mut Measure<'_>,
) -> Result<Line, String> {
    let mut ours = Series::default();
    let mut all: Vec<Contest<'_>> = peers.iter().map(Contest::new).collect();
    for round in 0..rounds {
        // ours goes first as often as the others
        for turn in [round % 2 == 0, round % 2 == 1] {
            if turn {
                ours.add(measure(octavo, &[])?);
            } else {
                all.iter_mut().for_each(|contest| contest.round(measure));
            }
        }
    }
    Ok(Line {
        test,
        ours,
        peers: all.into_iter().map(Contest::finish).collect(),
    })
}

impl Series {
    fn add(&mut self, (rate, cpu): (f64, f64)) {
        self.rates.push(rate);
        self.cpu.push(cpu);
    }
}

/// Another program's settings that are still measured, and their measurements.
struct Contest<'p> {
    program: &'p Program,
    settings: Result<Vec<(&'p [&'static str], Series)>, String>,
}

impl<'p> Contest<'p> {
    fn new(program: &'p Program) -> Self {
        let settings = program.settings.iter();
        let settings = settings.map(|setting| (setting.as_slice(), Series::default()));
        Contest {
            program,
            settings: Ok(settings.collect()),
        }
    }

    /// Measures every setting that is left, and leaves the fastest. What cannot be run is no
    /// setting; if none is left, the last message stays.
    fn round(&mut self, measure: &mut Measure<'_>) {
        let Ok(settings) = &mut self.settings else {
            return;
        };
        let mut failure = None;
        settings.retain_mut(|(setting, series)| match measure(self.program, setting) {
            Ok(measured) => {
                series.add(measured);
                true
            }
            Err(message) => {
                failure = Some(message);
                false
            }
        });
        let last = |series: &Series| series.rates.last().copied().unwrap_or(0.0);
        settings.sort_by(|(_, a), (_, b)| last(b).total_cmp(&last(a)));
        settings.truncate(1);
        if settings.is_empty() {
            let message = failure.unwrap_or_default();
            // llama-bench says at the end what it could not do
            let line = message.lines().last().unwrap_or_default();
            self.settings = Err(line.to_owned());
        }
    }

    fn finish(self) -> Peer {
        let best = self.settings.map(|mut settings| {
            let (setting, series) = settings.swap_remove(0);
            (programs::setting_name(setting), series)
        });
        Peer {
            name: self.program.name,
            result: best,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Words {
        #[command(flatten)]
        compare: CompareArgs,
    }

    fn args(more: &[&str]) -> CompareArgs {
        let words = [&["xtask", "m.gguf", "--llama-cpp", "."], more].concat();
        let words = <Words as clap::Parser>::try_parse_from(words);
        words.expect("parses").compare
    }

    #[test]
    fn settings_are_tried_in_the_first_round_and_the_fastest_afterwards() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("llama-bench"), "").expect("written");
        let peers = [
            Program::llama_cpp(dir.path(), false).expect("there"),
            Program::ik_llama_cpp(dir.path()).expect("there"),
        ];
        let octavo = Program::octavo(PathBuf::from("octavo"), Vec::new());
        let test = Test::all(&[1], &[0], &[512], &[])[0];
        let mut calls = Vec::new();
        let mut measure = |program: &Program, setting: &[&'static str]| {
            let setting = programs::setting_name(setting);
            calls.push(format!("{} {setting}", program.name));
            match program.name {
                "ik_llama.cpp" => Err("first\nno such type".to_owned()),
                "octavo" => Ok((30.0, 1.0)),
                _ if setting == "-fa 1 --repack 0" => Ok((20.0, 2.0)),
                _ => Ok((10.0, 2.0)),
            }
        };
        let line = compare(test, &octavo, &peers, 2, &mut measure).expect("ours can");
        assert_eq!(calls.len(), 1 + 4 + 2 + 1 + 1, "{calls:?}");
        let (setting, series) = line.peers[0].result.as_ref().expect("measured");
        assert_eq!(
            (&**setting, &series.rates),
            ("-fa 1 --repack 0", &vec![20.0, 20.0])
        );
        assert_eq!(line.peers[1].result, Err("no such type".to_owned()));
        // ours must run
        let failing: &mut Measure<'_> = &mut |_, _| Err("no".to_owned());
        assert!(compare(test, &octavo, &peers, 1, failing).is_err());
    }

    #[test]
    fn bits_of_prompts_and_instruction_sets_are_for_octavo() {
        let said = |more: &[&str]| ours_alone(&args(more)).join(" ");
        assert_eq!(said(&[]), "bench --no-limits --device cpu --isa auto");
        let eight = said(&["--prompt-bits", "8"]);
        assert_eq!(
            eight,
            "bench --no-limits --device cpu --isa auto --prompt-bits 8"
        );
        assert_eq!(said(&["--device", "cuda"]), "bench --device cuda");
        assert!(run(&args(&["--device", "cuda", "--isa", "avx2"])).is_err());
    }

    #[test]
    fn all_types_have_a_name() {
        assert_eq!(types(&["Q4_K".to_owned()]), ["Q4_K"]);
        assert_eq!(types(&["all".to_owned()]).len(), model::ALL_TYPES.len());
    }
}
