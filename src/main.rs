//! The `octavo` program: everything it does is in `src/cli`, the crate `octavo-cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // found by src/build.rs
    let build = octavo_cli::Build {
        commit: option_env!("OCTAVO_BUILD_COMMIT"),
        number: option_env!("OCTAVO_BUILD_NUMBER"),
    };
    octavo_cli::main(std::env::args_os(), build)
}
