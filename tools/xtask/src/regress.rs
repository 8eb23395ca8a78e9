//! `cargo xtask regress`: finds what became slower than at another commit.
//!
//! Both programs run the same list of tests in alternation. The shortest repetition of all rounds
//! counts: it is the one that other work on the machine disturbed least. (Sums of CPU seconds are
//! not: work on the other thread of a core makes them longer too, and loading and packing, which
//! take longer than a prompt here, are part of them.) What seems slower is measured again before it
//! is reported.

mod cases;
mod programs;

use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use serde_json::Value;

use crate::model;
use crate::side;
use cases::Case;
use programs::Program;

/// Speed, as a fraction of the other commit's, below which a test fails.
const LEAST_SPEED: f64 = 0.95;

/// Find what became slower than at another commit
///
/// Builds both programs and measures the same tests with each in alternation: every weight type,
/// several sequences, long contexts, experts. A test whose speed is below 0.95 of the other
/// commit's is measured again; if it stays below, it is named, and the exit code is 1. All tests
/// take about half an hour on an idle machine.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cargo xtask regress --against HEAD~1
  cargo xtask regress --against v0.1.0 --only Q4_K,Q6_K --csv tools/bench/regress.csv
  cargo xtask regress --against d9b7269~1 --commit d9b7269 --only F16

--only takes parts of the names that --list prints.")]
pub(crate) struct RegressArgs {
    /// Commit to compare with
    #[arg(long, value_name = "COMMIT", required_unless_present = "list")]
    against: Option<String>,
    /// Commit to measure in place of the working tree
    #[arg(long, value_name = "COMMIT")]
    commit: Option<String>,
    /// Run only tests whose names contain one of these
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// List the tests, without running them
    #[arg(long)]
    list: bool,
    /// Number of threads
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    threads: u32,
    /// Instruction set of the kernels
    #[arg(long, value_name = "ISA", default_value = "auto")]
    isa: String,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Append the results to this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// Seconds of the shortest repetition of a test, at the other commit and now.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    before: f64,
    now: f64,
}

impl Times {
    /// Speed as a fraction of the other commit's.
    fn speed(self) -> f64 {
        self.before / self.now
    }
}

pub(crate) fn run(args: &RegressArgs) -> Result<(), String> {
    let cases = cases::chosen(&args.only)?;
    if args.list {
        cases.iter().for_each(|case| println!("{}", case.name));
        return Ok(());
    }
    let against = args.against.as_deref().unwrap_or_default();
    let mut bench = Bench {
        args,
        programs: [
            Program::at(against)?,
            match &args.commit {
                Some(commit) => Program::at(commit)?,
                None => Program::of_working_tree()?,
            },
        ],
        model: None,
    };
    let [before, now] = bench.programs.each_ref().map(|program| &program.name);
    println!("seconds of the shortest repetition, at {before} and at {now}");
    println!("{:<28} {:>10} {:>10}  speed", "test", "before", "now");
    let mut slower = Vec::new();
    for case in &cases {
        if bench.run(case)? {
            slower.push(case.name.as_str());
        }
    }
    match slower.is_empty() {
        true => Ok(()),
        false => Err(format!("slower than at {against}: {}", slower.join(", "))),
    }
}

/// The programs, and the model that tests use.
struct Bench<'a> {
    args: &'a RegressArgs,
    /// The other commit's, and the one of now.
    programs: [Program; 2],
    /// Name and file.
    model: Option<(&'static str, tempfile::NamedTempFile)>,
}

impl Bench<'_> {
    /// Runs a test, prints its line and returns whether it became slower.
    fn run(&mut self, case: &Case) -> Result<bool, String> {
        self.write_model(case.model)?;
        if let Err(message) = self.shortest(0, case) {
            // what neither can run is wrong, and not new
            self.shortest(1, case)?;
            println!("{:<28} not there before: {message}", case.name);
            return Ok(false);
        }
        let times = compare(self.args.rounds, |which| self.shortest(which, case))?;
        let Times { before, now } = times;
        let is_slower = times.speed() < LEAST_SPEED;
        let verdict = if is_slower { "  slower" } else { "" };
        let (name, speed) = (&case.name, times.speed());
        println!("{name:<28} {before:>10.4} {now:>10.4}  {speed:.3}{verdict}");
        if let Some(path) = &self.args.csv {
            let names = "before,now,test,isa,threads,before_s,now_s,speed";
            side::append(path, names, &[self.csv_line(case, times)])?;
        }
        Ok(is_slower)
    }

    /// Writes a test's model, in place of the one before, unless it is there.
    fn write_model(&mut self, name: &'static str) -> Result<(), String> {
        if self.model.as_ref().is_some_and(|(is, _)| *is == name) {
            return Ok(());
        }
        self.model = None;
        let file = tempfile::Builder::new().suffix(".gguf").tempfile();
        let file = file.map_err(|error| format!("a temporary file: {error}"))?;
        model::write_named(name, file.path())?;
        self.model = Some((name, file));
        Ok(())
    }

    /// Runs a test with a program and returns the seconds of its shortest repetition.
    fn shortest(&self, which: usize, case: &Case) -> Result<f64, String> {
        let (program, args) = (&self.programs[which], self.args);
        let mut command = Command::new(&program.path);
        command.args(["bench", "--no-limits", "--device", "cpu", "-o", "json"]);
        command.args(["--isa", &args.isa, "-t", &args.threads.to_string()]);
        command
            .args(["-r", &case.repetitions.to_string()])
            .args(case.args);
        command.args(self.model.iter().map(|(_, file)| file.path()));
        let output = command.output();
        let output = output.map_err(|error| format!("{}: {error}", program.path.display()))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            let (program, message) = (&program.name, message.trim_end());
            return Err(format!("{program}, {}: {message}", case.name));
        }
        shortest_of(&output.stdout)
            .ok_or_else(|| format!("{}, {}: expected times, got none", program.name, case.name))
    }

    fn csv_line(&self, case: &Case, times: Times) -> String {
        let [before, now] = self
            .programs
            .each_ref()
            .map(|program| program.name.as_str());
        let (isa, threads) = (&self.args.isa, self.args.threads);
        let (s, t, speed) = (times.before, times.now, times.speed());
        format!(
            "{before},{now},\"{}\",{isa},{threads},{s:.5},{t:.5},{speed:.3}",
            case.name
        )
    }
}

/// Returns the seconds of the shortest repetition in the records that `octavo bench` prints.
fn shortest_of(records: &[u8]) -> Option<f64> {
    let records: Vec<Value> = serde_json::from_slice(records).ok()?;
    let samples = records.first()?["samples_ns"].as_array()?;
    let shortest = samples.iter().filter_map(Value::as_f64).reduce(f64::min)?;
    Some(shortest / 1e9)
}

/// Compares both programs at a test: `measure` runs program 0 (before) or 1 (now), and returns the
/// seconds of its shortest repetition.
fn compare(
    rounds: u32,
    mut measure: impl FnMut(usize) -> Result<f64, String>,
) -> Result<Times, String> {
    let mut shortest = [f64::INFINITY; 2];
    let mut times = Times {
        before: f64::NAN,
        now: f64::NAN,
    };
    // the second time only for what seems slower
    for _ in 0..2 {
        for round in 0..rounds {
            // each program goes first equally often
            for turn in [round % 2, 1 - round % 2] {
                let which = turn as usize;
                shortest[which] = shortest[which].min(measure(which)?);
            }
        }
        let [before, now] = shortest;
        times = Times { before, now };
        if times.speed() >= LEAST_SPEED {
            break;
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_repetition_counts() {
        let records = br#"[{ "samples_ns": [1677243, 1569498, 2000000] }]"#;
        assert_eq!(shortest_of(records), Some(0.001_569_498));
        assert_eq!(shortest_of(br#"[{ "samples_ns": [] }]"#), None);
        assert_eq!(shortest_of(b"no records"), None);

        let mut noise = [0.3, 0.0, 0.2].into_iter().cycle();
        let times = compare(4, |which| {
            Ok([0.5, 0.25][which] + noise.next().expect("endless"))
        });
        let times = times.expect("measured");
        assert!(
            (times.before - 0.5).abs() < 0.05 && times.speed() > 1.5,
            "{times:?}"
        );
    }

    #[test]
    fn what_seems_slower_is_measured_again() {
        let mut calls = 0;
        // the second program is disturbed in the first rounds
        let times = compare(2, |which| {
            calls += 1;
            let disturbed = which == 1 && calls <= 4;
            Ok(1.0 + if disturbed { 9.0 } else { 0.0 })
        });
        assert_eq!((calls, times.expect("measured").speed()), (8, 1.0));
        // and stays slower if it is
        let slow = compare(2, |which| Ok([1.0, 1.1][which]));
        assert!(slow.expect("measured").speed() < LEAST_SPEED);
    }
}
