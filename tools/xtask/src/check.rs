//! `cargo xtask check`: runs the fast part of CI.

/// One step: its name, Cargo's arguments, extra environment.
type Step = (
    &'static str,
    &'static [&'static str],
    &'static [(&'static str, &'static str)],
);

const CHECK: [Step; 4] = [
    ("formatting", &["fmt", "--all", "--check"], &[]),
    (
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
    ),
    ("tests", &["test", "--release", "--workspace"], &[]),
    (
        "documentation",
        &["doc", "--workspace", "--no-deps", "--release"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    ),
];

/// Runs every step and stops at the first failure.
pub(crate) fn run() -> Result<(), String> {
    for (name, args, env) in CHECK {
        println!("== {name}");
        crate::must(crate::cargo().args(args).envs(env.iter().copied()))
            .map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}
