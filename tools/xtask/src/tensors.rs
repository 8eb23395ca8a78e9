//! `cargo xtask tensors`: checks that every tensor printed by llama-eval-callback is within the
//! bounds of `octavo diff`.
//!
//! The program prints at most six values of each row, with four digits, and the sum of them all:
//! enough to see that a tensor is the same one, but not how close it is. The goldens show how close
//! the logits are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use serde_json::Value;

use crate::side::{build, diff, find};

/// Compare every tensor that llama-eval-callback prints with Octavo's
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cargo xtask tensors --llama-cpp ~/llama.cpp/build/bin ../shared/arch/models/*-F32.gguf")]
pub(crate) struct TensorsArgs {
    /// GGUF model files; with quantized weights results differ, because llama.cpp rounds
    /// activations to eight bits
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// Folder with llama-eval-callback, or the build folder above its bin
    #[arg(long, value_name = "DIR")]
    llama_cpp: PathBuf,
    /// Text of the prompt
    #[arg(
        short,
        long,
        value_name = "TEXT",
        default_value = "The fox lived under a tree; 3+4=7."
    )]
    prompt: String,
    /// The program to test [default: built first, in release mode]
    #[arg(long, value_name = "FILE")]
    octavo: Option<PathBuf>,
    /// Folder for the printed tensors
    #[arg(long, value_name = "DIR", default_value = "target/tensors")]
    work: PathBuf,
}

/// Most runs of llama-eval-callback: its last output is lost if it ends before its logging thread.
const TRIES: usize = 8;

/// Runs the task.
pub(crate) fn run(args: &TensorsArgs) -> Result<(), String> {
    let octavo = args.octavo.clone().map_or_else(build, Ok)?;
    let callback = find(&args.llama_cpp, "llama-eval-callback")?;
    fs::create_dir_all(&args.work).map_err(|error| format!("{}: {error}", args.work.display()))?;
    println!("{:<32} {:>7} {:>7}  verdict", "model", "tensors", "values");
    let mut outside = 0;
    for model in &args.models {
        let name = model.file_stem().unwrap_or_default().to_string_lossy();
        let text = args.work.join(format!("{name}.txt"));
        let result = print(args, &callback, model, &text)
            .and_then(|()| compare(args, &octavo, model, &text));
        let (tensors, values, verdict) = match result {
            Ok(found) => (
                found.tensors.to_string(),
                found.values.to_string(),
                found.verdict,
            ),
            Err(message) => ("-".to_owned(), "-".to_owned(), message),
        };
        println!("{name:<32} {tensors:>7} {values:>7}  {verdict}");
        outside += usize::from(verdict != "within");
    }
    match outside {
        0 => Ok(()),
        n => Err(format!(
            "{n} of {} models are not within",
            args.models.len()
        )),
    }
}

/// Writes llama-eval-callback's complete output for a model to a file.
fn print(args: &TensorsArgs, callback: &Path, model: &Path, to: &Path) -> Result<(), String> {
    for _ in 0..TRIES {
        let output = Command::new(callback)
            .arg("-m")
            .arg(model)
            .args(["-p", &args.prompt, "-t", "1", "-c", "2048"])
            // as in all comparisons: an f32 KV cache, no repacking, attention in separate
            // operations
            .args(["-ctk", "f32", "-ctv", "f32", "-fa", "off", "--no-repack"])
            .stderr(Stdio::null())
            .output()
            .map_err(|error| format!("{}: {error}", callback.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if is_whole(&text) {
            return fs::write(to, &*text).map_err(|error| format!("{}: {error}", to.display()));
        }
    }
    Err(format!(
        "llama-eval-callback printed no whole text in {TRIES} runs"
    ))
}

/// Returns whether a text ends with the last tensor of a graph and its sum.
fn is_whole(text: &str) -> bool {
    let mut from_end = text.trim_end().lines().rev();
    let is_sum = from_end
        .next()
        .is_some_and(|line| line.trim().starts_with("sum ="));
    let node = from_end.find_map(|line| line.split_once("common_debug_cb_eval:"));
    is_sum && node.is_some_and(|(_, node)| node.trim_start().starts_with("result_"))
}

/// Result of `octavo diff` for a model and its printed tensors.
struct Compared {
    tensors: usize,
    values: u64,
    verdict: String,
}

fn compare(
    args: &TensorsArgs,
    octavo: &Path,
    model: &Path,
    printed: &Path,
) -> Result<Compared, String> {
    let (reference, prompt) = (printed.as_os_str(), args.prompt.as_ref());
    let options = ["--reference".as_ref(), reference, "-p".as_ref(), prompt];
    let value = diff(octavo, model, &options)?;
    summary(&value).ok_or_else(|| format!("expected one reference with its tensors in {value}"))
}

/// Returns the number of tensors and values compared, and the verdict with the first tensor
/// outside.
fn summary(value: &Value) -> Option<Compared> {
    let reference = value.pointer("/references/0")?;
    let tensors = reference["tensors"].as_array()?;
    let verdict = value["verdict"].as_str()?;
    let first = &reference["first_divergence"]["name"];
    Some(Compared {
        tensors: tensors.len(),
        values: tensors
            .iter()
            .filter_map(|tensor| tensor["values"].as_u64())
            .sum(),
        verdict: first.as_str().map_or_else(
            || verdict.to_owned(),
            |name| format!("{verdict}, first {name}"),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "\
common_debug_cb_eval:          l_out-1 = (f32)  ADD(a{4, 1, 1, 1}, b{4, 1, 1, 1}}) = {4, 1, 1, 1}
    sum = -17.707371
common_debug_cb_eval:    result_output = (f32)  MUL_MAT(c{4, 9, 1, 1}, d{4, 1, 1, 1}}) = {9, 1}
    sum = 16.384514

";

    #[test]
    fn a_text_is_whole_where_it_ends_with_the_sum_of_the_result() {
        assert!(is_whole(WHOLE));
        let lines: Vec<&str> = WHOLE.trim_end().lines().collect();
        for cut in 0..lines.len() {
            assert!(!is_whole(&lines[..cut].join("\n")), "{cut} lines");
        }
    }

    #[test]
    fn a_verdict_names_the_first_tensor_outside() {
        let mut value = serde_json::json!({
            "verdict": "outside",
            "references": [{
                "first_divergence": { "name": "ffn_out-1" },
                "tensors": [{ "values": 36 }, { "values": 18 }],
            }],
        });
        let compared = summary(&value).expect("a summary");
        assert_eq!((compared.tensors, compared.values), (2, 54));
        assert_eq!(compared.verdict, "outside, first ffn_out-1");
        value["references"] = serde_json::json!([]);
        assert!(summary(&value).is_none());
    }
}
