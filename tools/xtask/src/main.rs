//! Developer tasks: `cargo xtask check` is what CI runs, the second architecture apart.

use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask check    formatting, lints, tests and documentation";

/// One step: what it is called, Cargo's arguments, extra environment.
type Step = (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);

const CHECK: [Step; 4] = [
    ("formatting", &["fmt", "--all", "--check"], &[]),
    ("lints", &["clippy", "--workspace", "--all-targets", "--release", "--", "-D", "warnings"], &[]),
    ("tests", &["test", "--release", "--workspace"], &[]),
    ("documentation", &["doc", "--workspace", "--no-deps", "--release"], &[("RUSTDOCFLAGS", "-D warnings")]),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check"] => check(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs every step and stops at the first that fails.
fn check() -> ExitCode {
    // set by Cargo for `cargo run`
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for (name, args, env) in CHECK {
        println!("== {name}");
        match Command::new(&cargo).args(args).envs(env.iter().copied()).status() {
            Ok(status) if status.success() => {}
            Ok(_) => return ExitCode::FAILURE,
            Err(error) => {
                eprintln!("cannot start {}: {error}", cargo.display());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
