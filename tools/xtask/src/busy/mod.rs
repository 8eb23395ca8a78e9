//! `cargo xtask busy`: speed under competing load, compared with llama.cpp's.
//!
//! Threads that meet at barriers lose more than their share of the CPUs when one of them is
//! descheduled. Each scenario therefore states the fair share, and the fraction of its own quiet
//! speed that each program got. Programs alternate, round after round; each test is a separate run
//! with a time limit, because a program that waits badly may take fifty times as long.

mod quota;
mod scenario;
mod spin;
mod table;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use octavo_engine::threads::Machine;
use serde_json::Value;

use crate::gpu::process;
use crate::side;
use scenario::{LaunchMode, Scenario, Surroundings};
use table::{Cell, Row};

pub(crate) use spin::spin;

/// Measure Octavo and llama.cpp beside busy processes, niced, with a quota of CPU time and with too
/// many threads
///
/// Prompt and generation are measured on the quiet machine first; then in each scenario, with the
/// programs alternating. The table has each speed, its share of the program's own quiet speed, and
/// the fair share.
#[derive(Debug, Args)]
#[command(after_help = "\
Scenarios:
  quiet   nothing else; always measured, as the others are shares of it
  busy1   beside 1 busy process of equal priority; busy2 and busy6 likewise
  nice    niced by 10 beside one busy process for each CPU
  quota   in a control group with a quota of 1.5 CPUs, where one can be made
  twice   twice the threads
  two     two runs at once, their speeds added up

Examples:
  cargo xtask busy --llama-cpp ~/llama.cpp/build model.gguf
  cargo xtask busy --llama-cpp ~/llama.cpp/build model.gguf --scenarios busy2,nice --rounds 5
  cargo xtask busy --llama-cpp ~/llama.cpp/build model.gguf --baseline older/octavo \
--csv tools/bench/busy.csv

Nothing else should run. A speed with < in front is a bound: the run took longer than --limit.")]
pub(crate) struct BusyArgs {
    /// GGUF file
    model: PathBuf,
    /// Folder with llama-bench, or the build folder above its bin
    #[arg(long, value_name = "DIR")]
    llama_cpp: PathBuf,
    /// The program to measure [default: built first, in release mode]
    #[arg(long, value_name = "FILE")]
    octavo: Option<PathBuf>,
    /// Another octavo binary to measure as well, such as an older one
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Number of threads [default: octavo's own]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    threads: Option<u16>,
    /// Number of prompt tokens
    #[arg(
        short = 'p',
        long,
        value_name = "N",
        default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    n_prompt: u32,
    /// Number of tokens to generate
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = 48,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    n_gen: u32,
    /// Bits that octavo and the baseline round prompt activations to, as for octavo bench
    /// [default: 16]
    #[arg(long, value_name = "BITS", value_parser = ["8", "13", "16"])]
    prompt_bits: Option<String>,
    /// Repetitions in a run, after one warm-up
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1000),
    )]
    repetitions: u32,
    /// Rounds; the table has the medians
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    rounds: u32,
    /// Run only these scenarios
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        value_enum,
        default_values_t = Scenario::ALL,
    )]
    scenarios: Vec<Scenario>,
    /// Stop a run that takes longer, and report a bound
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 25,
        value_parser = clap::value_parser!(u64).range(1..),
    )]
    limit: u64,
    /// Append the table to this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

impl BusyArgs {
    /// Returns the repetitions per run. Two programs at once must run long enough to overlap; a
    /// quota is applied in periods of a tenth of a second, of which a run must cover many.
    fn repetitions_at(&self, place: &LaunchMode) -> u32 {
        match place {
            LaunchMode::Plain | LaunchMode::Niced => self.repetitions,
            LaunchMode::Both => 4 * self.repetitions,
            LaunchMode::Within(_) => 8 * self.repetitions,
        }
    }
}

/// Kind of test, with its number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Test {
    Prompt(u32),
    Generation(u32),
}

impl Test {
    /// Returns llama-bench's name of the test.
    fn name(self) -> String {
        match self {
            Test::Prompt(n) => format!("pp{n}"),
            Test::Generation(n) => format!("tg{n}"),
        }
    }

    fn tokens(self) -> u32 {
        let (Test::Prompt(n) | Test::Generation(n)) = self;
        n
    }
}

/// Tokens per second, or an upper bound of them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rate {
    Measured(f64),
    Below(f64),
}

/// One of the programs compared.
struct Program {
    name: &'static str,
    path: PathBuf,
    /// Arguments that only this program takes.
    first: Vec<String>,
    /// llama.cpp's best setting for each test (flash attention, repacking).
    settings: HashMap<Test, (bool, bool)>,
}

impl Program {
    fn octavo(
        name: &'static str,
        path: PathBuf,
        prompt_bits: Option<&str>,
    ) -> Result<Program, String> {
        let help = Command::new(&path).args(["bench", "--help"]).output();
        let help = help.map_err(|error| format!("cannot start {}: {error}", path.display()))?;
        let mut first = vec!["bench", "--device", "cpu"];
        // older versions always measure the machine's peaks
        if String::from_utf8_lossy(&help.stdout).contains("--no-limits") {
            first.push("--no-limits");
        }
        if let Some(bits) = prompt_bits {
            first.extend(["--prompt-bits", bits]);
        }
        Ok(Program {
            name,
            path,
            first: first.into_iter().map(str::to_owned).collect(),
            settings: HashMap::new(),
        })
    }

    /// Returns the command of one test, in its surroundings.
    fn command(&self, args: &BusyArgs, place: &LaunchMode, test: Test, threads: usize) -> Command {
        let mut command = place.command(&self.path);
        command.args(&self.first);
        if let Some((flash_attention, repack)) = self.settings.get(&test) {
            let number = |on: &bool| if *on { "1" } else { "0" };
            command.args(["-fa", number(flash_attention), "--repack", number(repack)]);
        }
        let (p, n) = match test {
            Test::Prompt(n) => (n, 0),
            Test::Generation(n) => (0, n),
        };
        command.arg("-m").arg(&args.model).args(["-o", "json"]);
        let repetitions = args.repetitions_at(place);
        for (flag, n) in [
            ("-t", threads as u64),
            ("-p", p.into()),
            ("-n", n.into()),
            ("-r", repetitions.into()),
        ] {
            command.arg(flag).arg(n.to_string());
        }
        command
    }

    /// Runs one test; returns its speed and its record, or a bound if it was stopped.
    fn once(
        &self,
        args: &BusyArgs,
        place: &LaunchMode,
        test: Test,
        threads: usize,
    ) -> Result<(Rate, Value), String> {
        let ran = process::run(
            &mut self.command(args, place, test, threads),
            Duration::from_secs(args.limit),
            false,
        );
        if ran.stopped {
            // includes the warm-up repetition
            let tokens = f64::from(test.tokens()) * f64::from(args.repetitions_at(place) + 1);
            return Ok((Rate::Below(tokens / args.limit as f64), Value::Null));
        }
        let records = side::records(self.name, ran.text()?.as_bytes())?;
        Ok((Rate::Measured(side::rate(&records[0])?), records[0].clone()))
    }

    /// Measures one test in the scenario: for two concurrent runs, the sum.
    fn measure(
        &self,
        args: &BusyArgs,
        place: &LaunchMode,
        test: Test,
        threads: usize,
    ) -> Result<Rate, String> {
        let once = || self.once(args, place, test, threads).map(|(rate, _)| rate);
        if *place != LaunchMode::Both {
            return once();
        }
        let (a, b) = std::thread::scope(|scope| {
            let other = scope.spawn(once);
            (once(), other.join().expect("measuring does not panic"))
        });
        Ok(match (a?, b?) {
            (Rate::Measured(a), Rate::Measured(b)) => Rate::Measured(a + b),
            (Rate::Measured(a) | Rate::Below(a), Rate::Measured(b) | Rate::Below(b)) => {
                Rate::Below(a + b)
            }
        })
    }
}

/// Runs the task.
pub(crate) fn run(args: &BusyArgs) -> Result<(), String> {
    let llama = side::find(&args.llama_cpp, "llama-bench")?;
    let octavo = args.octavo.clone().map_or_else(side::build, Ok)?;
    let bits = args.prompt_bits.as_deref();
    let mut programs = vec![Program::octavo("octavo", octavo, bits)?];
    if let Some(path) = &args.baseline {
        programs.push(Program::octavo("baseline", path.clone(), bits)?);
    }
    let tests = [Test::Prompt(args.n_prompt), Test::Generation(args.n_gen)];
    let machine = Machine::here();
    let threads = args
        .threads
        .map_or_else(|| machine.threads().count, usize::from);
    let (_, about) = programs[0].once(args, &LaunchMode::Plain, tests[1], threads)?;
    programs.push(Program {
        name: "llama.cpp",
        path: llama,
        first: Vec::new(),
        settings: HashMap::new(),
    });
    for test in tests {
        let best = best_setting(
            args,
            programs.last().expect("llama.cpp is there"),
            test,
            threads,
        )?;
        programs
            .last_mut()
            .expect("llama.cpp is there")
            .settings
            .insert(test, best);
    }
    let mut quiet: HashMap<(&str, Test), Rate> = HashMap::new();
    let mut rows = Vec::new();
    let scenarios = Scenario::ALL
        .into_iter()
        .filter(|s| *s == Scenario::Quiet || args.scenarios.contains(s));
    for scenario in scenarios {
        let fair = scenario.fair(machine.cpus(), threads);
        let new: Vec<Row> = match scenario.surroundings(machine.cpus()) {
            Err(why) => vec![Row::skipped(scenario, why)],
            Ok(around) => {
                let rates = rounds(
                    args,
                    scenario,
                    &around,
                    &programs,
                    &tests,
                    scenario.threads(threads),
                )?;
                if scenario == Scenario::Quiet {
                    quiet.clone_from(&rates);
                }
                let cells = |test| {
                    let cell = |p: &Program| Cell {
                        rate: rates[&(p.name, test)],
                        quiet: quiet[&(p.name, test)],
                    };
                    programs.iter().map(cell).collect()
                };
                tests
                    .iter()
                    .map(|&test| Row::measured(scenario, test, fair, cells(test)))
                    .collect()
            }
        };
        if let Some(path) = &args.csv {
            table::append(path, &new, &about)?;
        }
        rows.extend(new);
    }
    let names: Vec<&str> = programs.iter().map(|program| program.name).collect();
    print!(
        "{}",
        table::render(&rows, &names, &about, (threads, args.rounds))
    );
    Ok(())
}

/// Finds llama.cpp's best setting on the quiet machine, which is then used in every scenario.
fn best_setting(
    args: &BusyArgs,
    llama: &Program,
    test: Test,
    threads: usize,
) -> Result<(bool, bool), String> {
    let mut command = llama.command(args, &LaunchMode::Plain, test, threads);
    // four settings, each of which loads the model: exempt from the limit of one run
    let ran = process::run(
        command.args(side::LLAMA_SETTINGS),
        Duration::from_secs(4 * args.limit),
        false,
    );
    let mut best = (0.0, (true, true));
    for record in side::records(llama.name, ran.text()?.as_bytes())? {
        let rate = side::rate(&record)?;
        if rate > best.0 {
            best = (rate, side::llama_setting(&record));
        }
    }
    Ok(best.1)
}

/// Measures every program and test in a scenario: medians over the rounds. A test that exceeded its
/// limit once is not tried again.
fn rounds<'p>(
    args: &BusyArgs,
    scenario: Scenario,
    around: &Surroundings,
    programs: &'p [Program],
    tests: &[Test],
    threads: usize,
) -> Result<HashMap<(&'p str, Test), Rate>, String> {
    let mut measured: HashMap<(&str, Test), Vec<f64>> = HashMap::new();
    let mut rates: HashMap<(&str, Test), Rate> = HashMap::new();
    for round in 0..args.rounds as usize {
        eprintln!("{scenario}: round {} of {}", round + 1, args.rounds);
        for &test in tests {
            // each program goes first equally often
            for i in 0..programs.len() {
                let program = &programs[(i + round) % programs.len()];
                let key = (program.name, test);
                if matches!(rates.get(&key), Some(Rate::Below(_))) {
                    continue;
                }
                let rate = match program.measure(args, &around.place, test, threads)? {
                    Rate::Measured(rate) => {
                        let all = measured.entry(key).or_default();
                        all.push(rate);
                        Rate::Measured(side::median(all))
                    }
                    bound => bound,
                };
                rates.insert(key, rate);
            }
        }
    }
    Ok(rates)
}
