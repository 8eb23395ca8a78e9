//! The mix rules equal llama-quantize's, for models of many shapes: layers, heads, experts, fused
//! and odd tensors.
//!
//! `quantize_mix.txt` has one line for each model and target: the number of tensors of each type,
//! and a digest of all types. It records the output of `llama-quantize --dry-run` (llama.cpp of
//! October 2026) for these models. To regenerate it:
//! `OCTAVO_TEST_LLAMA_CPP=FOLDER OCTAVO_TEST_BLESS=1 cargo test --release --workspace
//! --test analysis quantize_mix`,
//! where FOLDER has llama-quantize. Where the reference llama.cpp is built, its output is compared
//! with the file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use gguf_rs_lite::{Gguf, OpenOptions, TensorType, Writer};
use octavo_analysis::imatrix::Importance;
use octavo_analysis::quantize::{Options, Plan, Target};
use octavo_fixtures::llama_cpp;

/// A dummy model with the keys that llama.cpp requires.
struct Case {
    name: &'static str,
    architecture: &'static str,
    n_layer: u32,
    heads: (u32, u32),
    n_expert: u32,
    width: u64,
    tied: bool,
    fused: bool,
}

const fn case(
    name: &'static str,
    architecture: &'static str,
    n_layer: u32,
    heads: (u32, u32),
) -> Case {
    Case {
        name,
        architecture,
        n_layer,
        heads,
        n_expert: 0,
        width: 256,
        tied: false,
        fused: false,
    }
}

const CASES: [Case; 9] = [
    case("llama-12", "llama", 12, (8, 8)),
    case("llama-32-grouped", "llama", 32, (8, 2)),
    case("llama-80", "llama", 80, (8, 1)),
    Case {
        tied: true,
        ..case("qwen3-28-tied", "qwen3", 28, (8, 4))
    },
    case("qwen2-80", "qwen2", 80, (8, 8)),
    Case {
        n_expert: 8,
        ..case("llama-16-experts-8", "llama", 16, (8, 4))
    },
    Case {
        n_expert: 16,
        ..case("qwen3moe-20-experts-16", "qwen3moe", 20, (8, 2))
    },
    Case {
        fused: true,
        ..case("falcon-18", "falcon", 18, (8, 8))
    },
    Case {
        width: 96,
        ..case("llama-9-odd-rows", "llama", 9, (4, 4))
    },
];

impl Case {
    fn write(&self, path: &Path) {
        let mut writer = Writer::new();
        let mut set = |key: &str, value: u32| {
            writer.set(&format!("{}.{key}", self.architecture), value);
        };
        set("block_count", self.n_layer);
        set("context_length", 128);
        set("embedding_length", self.width as u32);
        set("feed_forward_length", 256);
        set("attention.head_count", self.heads.0);
        set("attention.head_count_kv", self.heads.1);
        if self.n_expert > 0 {
            set("expert_count", self.n_expert);
            set("expert_used_count", 2);
            set("expert_feed_forward_length", 256);
        }
        for eps in ["layer_norm_rms_epsilon", "layer_norm_epsilon"] {
            writer.set(&format!("{}.attention.{eps}", self.architecture), 1e-5f32);
        }
        writer.set("general.architecture", self.architecture);
        for (name, dims) in self.tensors() {
            let bytes = vec![0; dims.iter().product::<u64>() as usize * 2];
            writer.tensor(&name, &dims, TensorType::F16, bytes);
        }
        writer.write_file(path).unwrap();
    }

    fn tensors(&self) -> Vec<(String, Vec<u64>)> {
        let w = self.width;
        let mut tensors = vec![
            ("token_embd.weight".to_owned(), vec![w, 2]),
            ("output_norm.weight".to_owned(), vec![w]),
        ];
        if !self.tied {
            tensors.push(("output.weight".to_owned(), vec![w, 2]));
        }
        for layer in 0..self.n_layer {
            let mut add = |name: &str, dims: Vec<u64>| {
                tensors.push((format!("blk.{layer}.{name}.weight"), dims))
            };
            add("attn_norm", vec![w]);
            match self.fused {
                true => add("attn_qkv", vec![w, 2]),
                false => ["attn_q", "attn_k", "attn_v"]
                    .iter()
                    .for_each(|name| add(name, vec![w, 2])),
            }
            add("attn_output", vec![w, 2]);
            if self.n_expert > 0 {
                add("ffn_gate_inp", vec![w, u64::from(self.n_expert)]);
                let stack = |w| vec![w, 2, u64::from(self.n_expert)];
                add("ffn_gate_exps", stack(w));
                add("ffn_up_exps", stack(w));
                add("ffn_down_exps", stack(256));
            } else {
                add("ffn_gate", vec![w, 2]);
                add("ffn_up", vec![w, 2]);
                // the one odd model has rows of 80 here, which only fit F16
                add("ffn_down", vec![if w == 96 { 80 } else { 256 }, 2]);
            }
        }
        tensors
    }
}

/// Returns the FNV-1a hash.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Formats one line: the number of tensors of each type, and a digest of `name=type` in order.
fn line(case: &Case, target: Target, weighted: bool, types: &[(String, String)]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut all = String::new();
    for (name, ty) in types {
        *counts.entry(ty).or_default() += 1;
        let _ = write!(all, "{name}={ty};");
    }
    let counts: Vec<String> = counts.iter().map(|(ty, n)| format!("{ty} {n}")).collect();
    let weighted = if weighted { "+imatrix" } else { "" };
    format!(
        "{} {target}{weighted}: {} {:016x}\n",
        case.name,
        counts.join(", "),
        digest(&all)
    )
}

fn ours(model: &Gguf, importance: Option<&Importance>, target: Target) -> Vec<(String, String)> {
    let plan = Plan::new(model, importance, &Options::new(target)).unwrap();
    plan.changes()
        .iter()
        .map(|c| (c.tensor.name.clone(), c.to.name().to_owned()))
        .collect()
}

/// Parses the dry run's lines
/// `[   1/  45]  name - [ 256, 2, 1, 1], type =  f16, size = 0.001 MiB -> 0.001 MiB (q4_K)`; an
/// unchanged tensor has no type at the end.
fn theirs(
    program: &Path,
    model: &Path,
    imatrix: Option<&Path>,
    target: Target,
) -> Vec<(String, String)> {
    let mut command = std::process::Command::new(program);
    if let Some(imatrix) = imatrix {
        command.arg("--imatrix").arg(imatrix);
    }
    let output = command
        .arg("--dry-run")
        .arg(model)
        .arg(target.name())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    let parse = |line: &str| {
        let rest = line.strip_prefix('[')?.split_once(']')?.1.trim_start();
        let (name, rest) = rest.split_once(char::is_whitespace)?;
        let from = rest.split_once("type =")?.1.split_once(',')?.0.trim();
        let to = rest
            .rsplit_once('(')
            .map_or(from, |(_, to)| to.trim_end_matches(')').trim());
        Some((name.to_owned(), to.to_uppercase()))
    };
    text.lines().filter_map(parse).collect()
}

/// Writes an importance matrix without entries for these models' tensors: a dry run depends only on
/// its existence.
fn importance(folder: &Path) -> std::path::PathBuf {
    let mut writer = Writer::new();
    writer.set("imatrix.datasets", vec!["none".to_owned()]);
    writer
        .set("imatrix.chunk_count", 1u32)
        .set("imatrix.chunk_size", 512u32);
    writer.tensor(
        "x.in_sum2",
        &[1],
        TensorType::F32,
        1f32.to_le_bytes().to_vec(),
    );
    writer.tensor(
        "x.counts",
        &[1],
        TensorType::F32,
        1f32.to_le_bytes().to_vec(),
    );
    let path = folder.join("imatrix.gguf");
    writer.write_file(&path).unwrap();
    path
}

#[test]
fn mixes_are_those_of_llama_quantize() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quantize_mix.txt");
    let program = llama_cpp("llama-quantize");
    let folder = tempfile::tempdir().unwrap();
    let imatrix = importance(folder.path());
    let open = Importance::open(&imatrix).unwrap();
    let (mut mine, mut reference) = (String::new(), String::new());
    for case in &CASES {
        let path = folder.path().join(case.name);
        case.write(&path);
        let model = Gguf::open(&path, &OpenOptions::default()).unwrap();
        for target in Target::all().filter(|t| !matches!(t, Target::COPY | Target::Q1_0)) {
            for weighted in [false, true] {
                mine += &line(
                    case,
                    target,
                    weighted,
                    &ours(&model, weighted.then_some(&open), target),
                );
                if let Some(program) = &program {
                    let types = theirs(program, &path, weighted.then_some(&imatrix), target);
                    reference += &line(case, target, weighted, &types);
                }
            }
        }
    }
    if program.is_some() && std::env::var_os("OCTAVO_TEST_BLESS").is_some() {
        std::fs::write(&golden, &reference).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap();
    assert!(
        program.is_none() || reference == expected,
        "llama-quantize has changed its mixes"
    );
    for (mine, expected) in mine.lines().zip(expected.lines()) {
        assert_eq!(mine, expected);
    }
    assert_eq!(mine.lines().count(), expected.lines().count());
}
