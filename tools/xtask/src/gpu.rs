//! `cargo xtask gpu`: everything that only a machine with a GPU can show, in one command.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use serde_json::Value;

/// Test, check and measure the CUDA backend on this machine's GPU
///
/// The tests are those that otherwise run on the CPU. NVIDIA's compute-sanitizer runs over the kernels' tests where it is
/// installed; captured and uncaptured generation must choose the same thousand tokens; then octavo bench measures.
#[derive(Debug, Args)]
pub(crate) struct GpuArgs {
    /// Append what octavo bench prints to this file
    #[arg(long, value_name = "FILE", default_value = "target/gpu/bench.csv")]
    csv: PathBuf,
    /// Where models with random weights are kept
    #[arg(long, value_name = "DIR", default_value = "target/gpu")]
    dir: PathBuf,
    /// Sizes to measure, as cargo xtask model has them
    #[arg(long, value_name = "PRESETS", value_delimiter = ',', default_value = "0.6b,8b")]
    presets: Vec<String>,
    /// Types to measure
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "Q4_K_M,Q8_0")]
    types: Vec<String>,
    /// Neither tests nor the sanitizer
    #[arg(long)]
    only_bench: bool,
}

/// The tests that run on a device: package, name.
const TESTS: [(&str, &str); 2] = [("octavo-kernels", "cuda_shim"), ("octavo-llm", "cuda")];
/// Tokens of the comparison between captured and uncaptured generation.
const REPLAYS: &str = "1000";

pub(crate) fn run(args: &GpuArgs) -> Result<(), String> {
    crate::must(crate::cargo().args(["build", "--release", "--quiet"]))?;
    let name = device()?;
    println!("== {name}");
    if !args.only_bench {
        tests()?;
        sanitize()?;
    }
    std::fs::create_dir_all(&args.dir).map_err(|error| format!("{}: {error}", args.dir.display()))?;
    let mut compared = args.only_bench;
    for preset in &args.presets {
        for ty in &args.types {
            let model = model(&args.dir, preset, ty)?;
            if !std::mem::replace(&mut compared, true) {
                replays(&model)?;
            }
            measure(&model, &args.csv)?;
        }
    }
    println!("measured: {}", args.csv.display());
    Ok(())
}

/// Octavo on the GPU, or what of it is asked for.
fn octavo() -> Command {
    let mut command = crate::cargo();
    command.args(["run", "--release", "--quiet", "--bin", "octavo", "--"]);
    command
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stderr(std::process::Stdio::inherit()).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8(output.stdout).map_err(|error| error.to_string())?;
    if output.status.success() { Ok(text) } else { Err(format!("octavo: {}", output.status)) }
}

/// The first GPU's name.
fn device() -> Result<String, String> {
    let text = output(octavo().args(["inspect", "--devices", "--json"]))?;
    usable(&serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?)
}

/// The name of the first GPU in what `inspect --devices` says, if it works.
fn usable(devices: &Value) -> Result<String, String> {
    let Some(gpu) = devices["gpus"].get(0) else {
        return Err(format!("no GPU: {}", devices["cuda"]["why"].as_str().unwrap_or("none is listed")));
    };
    match gpu["why"].as_str() {
        None => Ok(gpu["name"].as_str().unwrap_or("a GPU").to_owned()),
        Some(why) => Err(format!("no GPU: {why}")),
    }
}

fn tests() -> Result<(), String> {
    for (package, test) in TESTS {
        println!("== tests: {test}");
        let arguments = ["test", "--release", "--package", package, "--test", test];
        crate::must(crate::cargo().args(arguments).env("OCTAVO_TEST_DEVICE", "gpu"))?;
    }
    Ok(())
}

/// Runs the kernels' tests under compute-sanitizer. Tests that plant faults run on the CPU in any case.
fn sanitize() -> Result<(), String> {
    let Some(sanitizer) = sanitizer() else {
        println!("skipped: compute-sanitizer (part of CUDA) was not found");
        return Ok(());
    };
    let (package, test) = TESTS[0];
    let arguments = ["test", "--release", "--package", package, "--test", test, "--no-run", "--message-format=json"];
    let program = executable(&output(crate::cargo().args(arguments))?)
        .ok_or_else(|| format!("cargo did not say where the tests of {test} are"))?;
    for tool in ["memcheck", "racecheck", "synccheck"] {
        println!("== {tool}");
        let mut command = Command::new(&sanitizer);
        command.args(["--tool", tool, "--error-exitcode", "1"]).arg(&program).args(["--test-threads", "1"]);
        crate::must(command.args(["--skip", "faults"]).env("OCTAVO_TEST_DEVICE", "gpu"))?;
    }
    Ok(())
}

fn sanitizer() -> Option<PathBuf> {
    let roots = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let mut dirs: Vec<PathBuf> = roots.chain(["/usr/local/cuda".into()]).map(|root| root.join("bin")).collect();
    dirs.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths).collect::<Vec<_>>());
    dirs.into_iter().map(|dir| dir.join("compute-sanitizer")).find(|path| path.is_file())
}

/// The test program in cargo's messages.
fn executable(messages: &str) -> Option<PathBuf> {
    let mut all = messages.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    all.find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

fn model(dir: &Path, preset: &str, ty: &str) -> Result<PathBuf, String> {
    let path = dir.join(format!("qwen3-{preset}-{ty}.gguf"));
    if !path.is_file() {
        let part = path.with_extension("part");
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        let arguments = ["model", "--arch", "qwen3", "--preset", preset, "--type", ty, "--out"];
        crate::must(Command::new(this).args(arguments).arg(&part))?;
        std::fs::rename(&part, &path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(path)
}

/// Generation must not depend on whether its launches are captured.
fn replays(model: &Path) -> Result<(), String> {
    println!("== {REPLAYS} tokens, captured and not");
    let hash = |options: &[&str]| -> Result<String, String> {
        let mut command = octavo();
        command.arg("bench").arg(model).args(["--device", "cuda", "-p", "0", "-n", REPLAYS, "-r", "1", "-o", "json"]);
        let text = output(command.args(options))?;
        let records: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        records[0]["token_hash"].as_str().map(str::to_owned).ok_or_else(|| format!("no hash of tokens: {text}"))
    };
    let (captured, plain) = (hash(&[])?, hash(&["--no-cuda-graph"])?);
    if captured != plain {
        return Err(format!("captured generation chose other tokens: {captured}, expected {plain}"));
    }
    Ok(())
}

fn measure(model: &Path, csv: &Path) -> Result<(), String> {
    println!("== bench: {}", model.display());
    let mut command = octavo();
    command.arg("bench").arg(model).args(["--device", "cuda", "-p", "512", "-n", "128", "-d", "0,4096", "-o", "csv"]);
    let text = output(&mut command)?;
    let wrong = |error: std::io::Error| format!("{}: {error}", csv.display());
    if let Some(dir) = csv.parent() {
        std::fs::create_dir_all(dir).map_err(wrong)?;
    }
    let has_header = std::fs::metadata(csv).is_ok_and(|m| m.len() > 0);
    let mut file = OpenOptions::new().create(true).append(true).open(csv).map_err(wrong)?;
    let lines: String = text.lines().skip(usize::from(has_header)).map(|line| format!("{line}\n")).collect();
    file.write_all(lines.as_bytes()).map_err(wrong)?;
    print!("{lines}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_gpu_that_works_will_do() {
        let gpu = |why: Value| json!({"gpus": [{"name": "H200", "why": why}]});
        assert_eq!(usable(&gpu(Value::Null)), Ok("H200".to_owned()));
        assert_eq!(usable(&gpu(json!("too old"))), Err("no GPU: too old".to_owned()));
        let none = json!({"gpus": [], "cuda": {"why": "no driver"}});
        assert_eq!(usable(&none), Err("no GPU: no driver".to_owned()));
    }

    #[test]
    fn the_test_program_is_the_last_one_that_was_built() {
        let messages = "{\"executable\":null}\nnot json\n{\"executable\":\"/a\"}\n{\"reason\":\"build-finished\"}\n";
        assert_eq!(executable(messages), Some("/a".into()));
        assert_eq!(executable(""), None);
    }
}
