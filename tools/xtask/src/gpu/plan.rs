//! Plans: what to do on a GPU that is there for minutes. A plan has legs with limits of their own,
//! those first whose outcome is least certain, and keeps every figure as it comes.

use std::time::{Duration, Instant};

use clap::ValueEnum;

use super::figures::{Figures, Speed, Table};
use super::legs::Legs;

/// Purpose of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Plan {
    /// Whether kernels that no GPU has run are right: tests, other tokens, tensors beside the CPU's
    Check,
    /// How long kernels take: every kernel of a token where Nsight Compute is installed, and each
    /// weight type and number of sequences
    Tune,
    /// Speeds of two sizes, for the table of predictions
    Speed,
}

/// A leg that has less time left is left out.
const LEAST: Duration = Duration::from_secs(8);

/// A part of a plan.
pub(super) struct PlanLeg {
    pub(super) name: &'static str,
    /// Most seconds that it may take, models included.
    pub(super) limit: u64,
    pub(super) work: Work,
}

/// Work of a leg.
pub(super) enum Work {
    /// Tests of the kernels whose names begin so.
    KernelTests(&'static [&'static str]),
    /// Tests of the backend whose names begin so.
    ModelTests(&'static [&'static str]),
    /// The same tokens with CUDA graphs and without, of a size and type.
    Replays(&'static str, &'static str),
    /// Every tensor beside the CPU's, of a size and type.
    Diff(&'static str, &'static str),
    /// octavo bench of a size and type, with these options.
    Bench(&'static str, &'static str, &'static [&'static str]),
    /// Nsight Compute over one token of a size and type.
    Profile(&'static str, &'static str),
    /// compute-sanitizer over the kernels that share memory.
    Sanitize,
}

const fn leg(name: &'static str, limit: u64, work: Work) -> PlanLeg {
    PlanLeg { name, limit, work }
}

/// Options of benchmarks of generation alone, and of many sequences.
const GENERATE: &[&str] = &["-p", "0", "-n", "64", "-r", "2"];
const SEQUENCES: &[&str] = &[
    "-p",
    "0",
    "-n",
    "64",
    "-r",
    "2",
    "--sequences",
    "1,2,4,8,16,64",
];
const PROMPTS: &[&str] = &["-p", "512,2048", "-n", "0", "-r", "3"];

/// Code that no GPU has run comes first.
const CHECK: &[PlanLeg] = &[
    leg(
        "attention",
        60,
        Work::KernelTests(&["cuda_shim::attention::"]),
    ),
    leg(
        "batches",
        60,
        Work::KernelTests(&["cuda_shim::batches::", "cuda_shim::experts::"]),
    ),
    leg("candidates", 40, Work::ModelTests(&["cuda::candidates::"])),
    leg(
        "products",
        90,
        Work::KernelTests(&["cuda_shim::products::", "cuda_shim::rows::"]),
    ),
    leg(
        "steps",
        90,
        Work::ModelTests(&["cuda::steps::", "cuda::goldens::"]),
    ),
    leg(
        "cache",
        20,
        Work::Bench(
            "0.6b",
            "Q4_K_M",
            &[
                "-p", "600", "-n", "32", "-r", "1", "-ctk", "q8_0", "-ctv", "q8_0",
            ],
        ),
    ),
    leg("replays", 40, Work::Replays("0.6b", "Q4_K_M")),
    leg("diff", 60, Work::Diff("0.6b", "Q4_K_M")),
    leg("sequences", 30, Work::Bench("0.6b", "Q8_0", SEQUENCES)),
    leg("sanitizer", 150, Work::Sanitize),
];

/// Kernels alone, then the types that were never timed.
const TUNE: &[PlanLeg] = &[
    leg("profile", 60, Work::Profile("0.6b", "Q4_K_M")),
    leg("batches", 60, Work::Bench("8b", "Q4_K_M", SEQUENCES)),
    leg("iq2", 30, Work::Bench("0.6b", "IQ2_XXS", GENERATE)),
    leg("iq3", 30, Work::Bench("0.6b", "IQ3_S", GENERATE)),
    leg("iq1", 30, Work::Bench("0.6b", "IQ1_M", GENERATE)),
    leg("mxfp4", 30, Work::Bench("0.6b", "MXFP4", GENERATE)),
    leg("tq2", 30, Work::Bench("0.6b", "TQ2_0", GENERATE)),
    leg("q1", 30, Work::Bench("0.6b", "Q1_0", GENERATE)),
    leg("iq2-prompts", 30, Work::Bench("0.6b", "IQ2_XXS", PROMPTS)),
    leg("iq3-prompts", 30, Work::Bench("0.6b", "IQ3_S", PROMPTS)),
];

const SPEED: &[PlanLeg] = &[
    leg("batches", 90, Work::Bench("8b", "Q4_K_M", SEQUENCES)),
    leg(
        "deep-batches",
        120,
        Work::Bench(
            "8b",
            "Q4_K_M",
            &[
                "-p",
                "0",
                "-n",
                "64",
                "-r",
                "2",
                "-d",
                "4096",
                "--sequences",
                "1,2,4,8,16,64",
            ],
        ),
    ),
    leg("prompts", 60, Work::Bench("8b", "Q4_K_M", PROMPTS)),
    leg("small-batches", 60, Work::Bench("0.6b", "Q8_0", SEQUENCES)),
    leg("small-prompts", 40, Work::Bench("0.6b", "Q8_0", PROMPTS)),
];

impl Plan {
    pub(super) fn legs(self) -> &'static [PlanLeg] {
        match self {
            Plan::Check => CHECK,
            Plan::Tune => TUNE,
            Plan::Speed => SPEED,
        }
    }

    fn name(self) -> String {
        let value = self.to_possible_value().expect("none is skipped");
        value.get_name().to_owned()
    }
}

/// Returns how long a leg may take of what is left; `None` if that is too little.
fn time_of(leg: &PlanLeg, left: Duration) -> Option<Duration> {
    let limit = left.min(Duration::from_secs(leg.limit));
    (limit >= LEAST).then_some(limit)
}

/// Runs the legs of a plan within a budget.
///
/// # Errors
/// One line for each leg that failed, or had no time.
pub(super) fn run(
    legs: &mut Legs<'_>,
    plan: Plan,
    budget: Duration,
    mut figures: Figures,
) -> Result<(), String> {
    let end = Instant::now() + budget;
    for leg in plan.legs() {
        let left = end.saturating_duration_since(Instant::now());
        let Some(limit) = time_of(leg, left) else {
            legs.failures
                .push(format!("{}: no time was left", leg.name));
            figures.note(leg.name, ("", "left out"), "", "")?;
            continue;
        };
        println!(
            "== {}: at most {} s of {}",
            leg.name,
            limit.as_secs(),
            left.as_secs()
        );
        let (started, failed) = (Instant::now(), legs.failures.len());
        legs.limit = limit;
        legs.part_of_plan(leg, &mut figures);
        let how = match legs.failures.len() - failed {
            0 => "passed",
            _ => "failed",
        };
        let seconds = format!("{:.1}", started.elapsed().as_secs_f64());
        figures.note(leg.name, ("", how), &seconds, "s")?;
    }
    match legs.failures.len() {
        0 => Ok(()),
        n => Err(format!("{n} failed:\n  {}", legs.failures.join("\n  "))),
    }
}

/// Opens the table of a plan.
pub(super) fn figures(plan: Plan, path: &std::path::Path, gpu: &str) -> Result<Figures, String> {
    Figures::open(path, gpu, &plan.name())
}

impl Legs<'_> {
    fn part_of_plan(&mut self, leg: &PlanLeg, figures: &mut Figures) {
        match leg.work {
            Work::KernelTests(names) => self.some_tests(0, names),
            Work::ModelTests(names) => self.some_tests(1, names),
            Work::Sanitize => self.sanitize(),
            Work::Replays(preset, ty) => self.of_model(preset, ty, Legs::replays),
            Work::Diff(preset, ty) => self.of_model(preset, ty, Legs::diff),
            Work::Profile(preset, ty) => {
                self.of_model(preset, ty, |legs, model| {
                    legs.profile(model, leg.name, figures)
                });
            }
            Work::Bench(preset, ty, options) => self.of_model(preset, ty, |legs, model| {
                let mut table = Table::with("avg_ts");
                let mut error = None;
                let options = [&["--device", "cuda", "-o", "csv"], options].concat();
                let ran = legs.octavo_lines("bench", model, &options, &mut |line| {
                    if let Some(speed) = table.read(line).and_then(|row| Speed::of(&row)) {
                        let test = (&*speed.model, &*speed.test);
                        let written = figures
                            .note(leg.name, test, &speed.tokens_per_second, "t/s")
                            .and_then(|()| figures.note(leg.name, test, &speed.hash, "hash"));
                        error = error.take().or(written.err());
                    }
                });
                ran.result.and(error.map_or(Ok(()), Err))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legs_get_their_limit_or_what_is_left() {
        let of = |left| time_of(&CHECK[0], Duration::from_secs(left)).map(|t| t.as_secs());
        assert_eq!(
            [of(540), of(60), of(31), of(8), of(7), of(0)],
            [Some(60), Some(60), Some(31), Some(8), None, None]
        );
    }

    /// A machine is lent for fifteen minutes: the legs of a plan are over before.
    #[test]
    fn plans_fit_their_budget_and_name_each_leg_once() {
        for plan in [Plan::Check, Plan::Tune, Plan::Speed] {
            let legs = plan.legs();
            let seconds: u64 = legs.iter().map(|leg| leg.limit).sum();
            assert!(seconds <= 660, "{plan:?}: {seconds} s");
            let names: std::collections::BTreeSet<_> = legs.iter().map(|leg| leg.name).collect();
            assert_eq!(names.len(), legs.len(), "{plan:?}");
        }
        // what takes long and finds little comes last
        assert!(matches!(CHECK[CHECK.len() - 1].work, Work::Sanitize));
    }
}
