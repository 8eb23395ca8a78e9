//! The program for Linux finds NVIDIA's driver when it runs: it is linked to no part of CUDA. The
//! driver is the stand-in of the kernels' tests, which runs them on the CPU.

use std::process::Command;

use octavo_fixtures::workspace_root;
use octavo_kernels::cuda::standin::StandIn;

use super::super::system::System;
use super::transcript::Transcript;
use super::{Check, expect};

pub(super) fn prove(check: &Check, transcript: &mut Transcript) -> Result<(), String> {
    let files = check.unpack(System::Linux, "cuda")?;
    let program = files.join("bin/octavo");
    transcript.shorten(&files.display().to_string(), "octavo-x86_64");
    let arguments = ["run", "-p", "1+1=", "-n", "8", "--device", "cuda"];

    // without a driver it says so
    let without = transcript.run(Command::new(&program).args(arguments))?;
    if without.code == Some(0) {
        return Err("expected an error without a driver".to_owned());
    }

    let nvrtc = workspace_root().join("target/nvrtc");
    let mut fetch = Command::new(workspace_root().join("tools/get_nvrtc.sh"));
    crate::must(fetch.arg(&nvrtc))?;
    let standin = StandIn::build(&check.work.join("standin")).map_err(|error| error.to_string())?;
    transcript.say("$ export LD_LIBRARY_PATH=STAND-IN");
    let mut command = Command::new(&program);
    command.args(arguments).envs(standin.environment());
    command.env("CUDA_HOME", nvrtc.join("13.0/nvidia/cu13"));
    command.env("XDG_CACHE_HOME", check.work.join("cubins"));
    let printed = transcript.run(&mut command)?;
    if printed.code != Some(0) || !printed.out.starts_with('2') {
        return Err("expected an answer that begins with 2 from the GPU".to_owned());
    }
    expect(&printed.err, "GPU 0")
}
