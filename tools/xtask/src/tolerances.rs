//! `cargo xtask tolerances`: checks that the default tolerances of `octavo diff` accept all correct
//! models and no wrong one.
//!
//! For each type, random models of random shapes are computed by llama.cpp and by Octavo. Each must
//! be within the default for its weights. Then Octavo computes the same weights with another base
//! of the rotary embedding, a typical misreading of a file, and must be outside.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use crate::model::{Arch, Shape, write_shape};
use crate::random::Random;
use crate::side::{build, diff};

/// Check the default tolerances of `octavo diff` against llama.cpp, on random models
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cargo xtask tolerances --llama-cpp ~/llama.cpp/build/bin")]
pub(crate) struct TolerancesArgs {
    /// Folder with llama-results, or the build folder above its bin
    #[arg(long, value_name = "DIR")]
    llama_cpp: PathBuf,
    /// Number of models of each type
    #[arg(
        long,
        value_name = "N",
        default_value_t = 50,
        value_parser = clap::value_parser!(u64).range(1..),
    )]
    models: u64,
    /// Types, as for cargo xtask model
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    #[arg(default_value = "F32,F16,BF16,Q8_0,Q4_0,Q4_1,Q6_K,Q4_K_M,Q2_K,IQ4_XS")]
    types: Vec<String>,
    /// The program to test [default: built first, in release mode]
    #[arg(long, value_name = "FILE")]
    octavo: Option<PathBuf>,
    /// Folder for models and results, one at a time
    #[arg(long, value_name = "DIR", default_value = "target/tolerances")]
    work: PathBuf,
}

/// Some fifty tokens: enough for positions to matter.
const TEXT: &str = "The quick brown fox jumps over 13 lazy dogs; 2+2=4, and so on until \
                    the end of this line of text.";

/// Returns a random shape that fits the blocks of every type.
fn shape(seed: u64) -> Shape {
    let mut random = Random::new(seed, "shape");
    let mut one = |of: &[u32]| of[random.below(of.len())];
    let arch = [Arch::Llama, Arch::Qwen2, Arch::Qwen3][seed as usize % 3];
    let n_embd = one(&[256, 512, 768]);
    let head_dim = one(&[32, 64, 128]);
    let n_head = n_embd / head_dim;
    let n_head_kv = if n_head.is_multiple_of(2) {
        n_head / one(&[1, 2])
    } else {
        n_head
    };
    let (n_ff, n_layer) = (
        one(&[256, 512, 768, 1024, 1536]),
        one(&[1, 2, 3, 4, 6, 8, 12]),
    );
    Shape {
        n_deepstack: 0,
        arch,
        n_embd,
        n_ff,
        n_layer,
        n_head,
        n_head_kv,
        head_dim,
        n_vocab: 1024,
        tied: one(&[0, 1]) == 1,
        experts: None,
        delta_net: None,
        window: None,
    }
}

/// Result of one comparison.
struct Measured {
    nmse: f64,
    allowed: f64,
}

impl Measured {
    fn part(&self) -> f64 {
        self.nmse / self.allowed
    }
}

/// Runs `octavo diff MODEL` with these arguments.
fn measure(octavo: &Path, model: &Path, args: &[&OsStr]) -> Result<Measured, String> {
    let two_threads: [&OsStr; 2] = ["-t".as_ref(), "2".as_ref()];
    let value = diff(octavo, model, &[args, &two_threads].concat())?;
    let number = |at: &str| {
        value
            .pointer(at)
            .and_then(Value::as_f64)
            .ok_or_else(|| format!("no {at} in {value}"))
    };
    let found = Measured {
        nmse: number("/references/0/logits/nmse")?,
        allowed: number("/tolerance/nmse")?,
    };
    let within = value["verdict"] == "within";
    if within != (found.nmse <= found.allowed) {
        return Err(format!(
            "{}: NMSE and verdict contradict each other: {value}",
            model.display()
        ));
    }
    Ok(found)
}

/// Runs the task.
pub(crate) fn run(args: &TolerancesArgs) -> Result<(), String> {
    let octavo = args.octavo.clone().map_or_else(build, Ok)?;
    std::fs::create_dir_all(&args.work)
        .map_err(|error| format!("{}: {error}", args.work.display()))?;
    println!(
        "{:<8} {:>6} {:>10} {:>10} {:>10} {:>12}",
        "type", "models", "mean NMSE", "max NMSE", "of allowed", "least fault"
    );
    let mut wrong = Vec::new();
    for ty in &args.types {
        let (mut sum, mut most, mut part, mut fault) = (0.0, 0f64, 0f64, f64::INFINITY);
        for seed in 0..args.models {
            let [right, faulty] = one(args, &octavo, ty, seed)?;
            sum += right.nmse;
            most = most.max(right.nmse);
            part = part.max(right.part());
            fault = fault.min(faulty.part());
            if right.part() > 1.0 {
                wrong.push(format!(
                    "{ty}, seed {seed}: NMSE {:.2e}, allowed {:.2e}",
                    right.nmse, right.allowed
                ));
            }
            if faulty.part() <= 1.0 {
                wrong.push(format!(
                    "{ty}, seed {seed}: a wrong base of the rotary embedding is within"
                ));
            }
        }
        let (n, mean) = (args.models, sum / args.models as f64);
        println!("{ty:<8} {n:>6} {mean:>10.2e} {most:>10.2e} {part:>10.3} {fault:>12.1}");
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("\n")),
    }
}

/// Measures a model as it is, and with a fault.
fn one(args: &TolerancesArgs, octavo: &Path, ty: &str, seed: u64) -> Result<[Measured; 2], String> {
    let (model, faulty, keep) = (
        args.work.join("model.gguf"),
        args.work.join("faulty.gguf"),
        args.work.join("keep"),
    );
    let shape = shape(seed);
    write_shape(&shape, ty, (&model, seed), |_| {})?;
    let base = format!("{}.rope.freq_base", shape.arch.name());
    write_shape(&shape, ty, (&faulty, seed), |keys| {
        keys.set(&base, 1e4f32);
    })?;
    let llama_cpp = args.llama_cpp.as_os_str();
    let of_llama = [
        "--llama-cpp".as_ref(),
        llama_cpp,
        "-p".as_ref(),
        TEXT.as_ref(),
        "--keep".as_ref(),
        keep.as_ref(),
    ];
    let right = measure(octavo, &model, &of_llama)?;
    // give the text: its tokens must equal llama.cpp's
    let results = keep.join("llama-results.gguf");
    let of_results = [
        "--reference".as_ref(),
        results.as_os_str(),
        "-p".as_ref(),
        TEXT.as_ref(),
    ];
    Ok([right, measure(octavo, &faulty, &of_results)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_differ_and_have_whole_blocks() {
        let shapes: Vec<Shape> = (0..50).map(shape).collect();
        for s in &shapes {
            assert!(
                [s.n_embd, s.n_ff, s.n_head * s.head_dim]
                    .iter()
                    .all(|n| n.is_multiple_of(256)),
                "{s:?}"
            );
            assert!(s.n_head.is_multiple_of(s.n_head_kv), "{s:?}");
        }
        let layers: std::collections::BTreeSet<u32> = shapes.iter().map(|s| s.n_layer).collect();
        assert_eq!(layers.len(), 7);
    }
}
