//! Shared by the tasks that run Octavo and llama.cpp side by side. octavo bench and llama-bench
//! print the same records.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// All llama.cpp settings that may be its best on a CPU.
pub(crate) const LLAMA_SETTINGS: [&str; 4] = ["-fa", "0,1", "--repack", "0,1"];

/// All llama.cpp settings that may be its best on a GPU.
pub(crate) const LLAMA_GPU_SETTINGS: [&str; 8] =
    ["-ngl", "999", "-fa", "0,1", "-b", "2048", "-ub", "512,2048"];

/// Finds a program of llama.cpp in a folder, a build folder or a source folder.
pub(crate) fn find(dir: &Path, program: &str) -> Result<PathBuf, String> {
    let places = ["", "bin", "build/bin"].map(|folder| dir.join(folder).join(program));
    let found = places.into_iter().find(|place| place.is_file());
    found.ok_or_else(|| {
        format!(
            "{}: expected {program} here, in bin or in build/bin",
            dir.display()
        )
    })
}

/// Builds the octavo program, beside this one.
pub(crate) fn build() -> Result<PathBuf, String> {
    crate::must(crate::cargo().args([
        "build",
        "--release",
        "--quiet",
        "-p",
        "octavo-llm",
        "--bin",
        "octavo",
    ]))?;
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(this.with_file_name(format!("octavo{}", std::env::consts::EXE_SUFFIX)))
}

/// Runs `octavo diff MODEL` with these arguments; returns its JSON. Its exit code is not treated as
/// a failure.
pub(crate) fn diff(octavo: &Path, model: &Path, args: &[&OsStr]) -> Result<Value, String> {
    let output = Command::new(octavo)
        .arg("diff")
        .arg(model)
        .args(args)
        .arg("--json")
        .output()
        .map_err(|error| format!("{}: {error}", octavo.display()))?;
    let said = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let value: Value = serde_json::from_slice(&output.stdout).map_err(|_| said())?;
    if (value["verdict"] == "within") != output.status.success() {
        return Err(format!(
            "{}: {} and the verdict contradict each other: {value}",
            model.display(),
            output.status
        ));
    }
    Ok(value)
}

/// Parses the array of records that a program printed.
pub(crate) fn records(name: &str, text: &[u8]) -> Result<Vec<Value>, String> {
    let records: Vec<Value> =
        serde_json::from_slice(text).map_err(|error| format!("{name}: {error}"))?;
    if records.is_empty() {
        Err(format!("{name}: nothing was measured"))
    } else {
        Ok(records)
    }
}

/// Returns tokens per second.
pub(crate) fn rate(r: &Value) -> Result<f64, String> {
    let rate = r["avg_ts"].as_f64().filter(|rate| *rate > 0.0);
    rate.ok_or_else(|| format!("expected a rate in avg_ts, got {}", r["avg_ts"]))
}

/// Returns the setting in [`LLAMA_SETTINGS`] of a record: flash attention and repacking.
pub(crate) fn llama_setting(r: &Value) -> (bool, bool) {
    let on = |name: &str| r[name] == true || r[name] == 1;
    (on("flash_attn"), on("repack"))
}

/// Returns a record's text field.
pub(crate) fn text(about: &Value, name: &str) -> String {
    about[name].as_str().unwrap_or("?").to_owned()
}

/// Returns the model of an Octavo record, with its prompt bits if unusual.
pub(crate) fn model(about: &Value) -> String {
    let model = text(about, "model_type");
    match about["prompt_bits"].as_u64() {
        None | Some(16) => model,
        Some(bits) => format!("{model}, prompts in {bits} bits"),
    }
}

/// Returns the CPU seconds, in user mode, of all processes that this one has started and waited
/// for, as Linux counts them, in hundredths.
pub(crate) fn children_seconds() -> Result<f64, String> {
    let file = "/proc/self/stat";
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    // the name of the program, in parentheses, may have spaces; `cutime` is field 16 of all
    let ticks = text
        .rsplit_once(')')
        .and_then(|(_, fields)| fields.split_whitespace().nth(13));
    let ticks: Option<f64> = ticks.and_then(|ticks| ticks.parse().ok());
    let seconds = ticks.map(|ticks| ticks / 100.0);
    seconds.ok_or_else(|| format!("{file}: expected a number in field 16, got {text:?}"))
}

/// Returns the median.
pub(crate) fn median(x: &[f64]) -> f64 {
    let mut x = x.to_vec();
    x.sort_by(f64::total_cmp);
    match x.len() {
        0 => 0.0,
        n => (x[(n - 1) / 2] + x[n / 2]) / 2.0,
    }
}

/// Appends lines to a file with these column names, which a new file gets first.
pub(crate) fn append(path: &Path, names: &str, lines: &[String]) -> Result<(), String> {
    let write = || -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.append(true).read(true).create(true).open(path)?;
        let mut first = String::new();
        BufReader::new(&file).read_line(&mut first)?;
        match first.trim_end() {
            "" => writeln!(file, "{names}")?,
            there if there == names => {}
            there => {
                let message = format!("expected the columns {names}, found {there}");
                return Err(std::io::Error::other(message));
            }
        }
        lines.iter().try_for_each(|line| writeln!(file, "{line}"))
    };
    write().map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bits_of_prompts_are_said_if_they_are_not_usual() {
        let of = |bits: Value| model(&json!({"model_type": "m", "prompt_bits": bits}));
        assert_eq!(of(json!(8)), "m, prompts in 8 bits");
        // an older program's record has none
        assert_eq!([of(json!(16)), of(Value::Null)], ["m", "m"]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_work_of_children_is_counted() {
        let before = children_seconds().expect("counted");
        let loop_of_shell = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let status = Command::new("sh").args(["-c", loop_of_shell]).status();
        assert!(status.expect("a shell").success());
        assert!(children_seconds().expect("counted") > before);
    }
}
