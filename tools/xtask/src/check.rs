//! `cargo xtask check` runs the fast part of CI, `cargo xtask quick` what takes minutes of it.

/// One step: its name, Cargo's arguments, extra environment.
type Step = (
    &'static str,
    &'static [&'static str],
    &'static [(&'static str, &'static str)],
);

const FORMATTING: Step = ("formatting", &["fmt", "--all", "--check"], &[]);

const LINTS: Step = (
    "lints",
    &[
        "clippy",
        "--workspace",
        "--all-targets",
        "--release",
        "--",
        "-D",
        "warnings",
    ],
    &[],
);

const CHECK: [Step; 4] = [
    FORMATTING,
    LINTS,
    ("tests", &["test", "--release", "--workspace"], &[]),
    (
        "documentation",
        &["doc", "--workspace", "--no-deps", "--release"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    ),
];

/// Programs as in [`CHECK`], so that both share one build; the engine's tests without those that
/// go through grids of models, threads and ranks.
const QUICK: [Step; 4] = [
    FORMATTING,
    LINTS,
    (
        "unit tests",
        &["test", "--release", "--workspace", "--lib", "--bins"],
        &[],
    ),
    (
        "engine tests",
        &[
            "test",
            "--release",
            "--workspace",
            "--test",
            "engine",
            "--",
            "--skip",
            "ranks::",
            "--skip",
            "determinism::threads_and_batches",
            "--skip",
            "goldens::a_cache_of_two_types",
        ],
        &[],
    ),
];

/// Runs every step of the fast part of CI and stops at the first failure.
pub(crate) fn check() -> Result<(), String> {
    run(&CHECK)
}

/// Runs formatting, lints, unit tests and most of the engine's tests.
pub(crate) fn quick() -> Result<(), String> {
    run(&QUICK)
}

fn run(steps: &[Step]) -> Result<(), String> {
    for (name, args, env) in steps {
        println!("== {name}");
        crate::must(crate::cargo().args(*args).envs(env.iter().copied()))
            .map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}
