//! Logits against the exact ones (llama.cpp on the file dequantized to F32), and our error next to
//! llama.cpp's own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_engine::backend::cuda::prompt_rounding;
use octavo_engine::backend::{Phase, split};
use octavo_fixtures::{committed_goldens, shared_dir, workspace_root};
use octavo_kernels::KvType;
use octavo_kernels::cuda::Device;
use octavo_model::{Model, Op};
use octavo_reference::golden::{Embedded, Full, Summary, read_summary};
use octavo_reference::metrics::{kl, nmse};

use crate::logits::GELU_NMSE;

use super::{Sequences, both, device, limits, open, shim};

/// Maximum errors, the same as for the CPU's kernels, which compute with the same integers: a tenth
/// of llama.cpp's error, or the error of the recorded f32 logits themselves.
const OF_THEIRS: f64 = 0.1;
pub(crate) const NMSE_FLOOR: f64 = 1e-9;
const KL_FLOOR: f64 = 1e-7;
/// Upper bound of llama.cpp's own error on F32 models against an f64 forward pass.
const F32_NMSE: f64 = 1e-10;

/// Returns the error that halves (f16) may add to the logits of a prefill: every product's output
/// has the rounding error of its inputs, independently of the others, and the residual stream sums
/// all of these. Attention's queries and weights are rounded like one more product. Values that
/// linear attention writes and reads are products of four values or more, each with as large an
/// error.
pub(crate) fn of_halves(model: &Model) -> f64 {
    let rounded = |op: &Op| match op {
        Op::MatMul { .. } | Op::ExpertMatMul { .. } | Op::Attention { .. } => 1,
        Op::LinearAttention { .. } | Op::SelectiveScan { .. } | Op::Wkv7 { .. } => 4,
        _ => 0,
    };
    let nodes = model.graph.nodes.iter();
    let products: u32 = nodes.map(|node| rounded(&node.op)).sum();
    f64::from(products) * prompt_rounding().products.powi(2)
}

/// Changes the options of a model on a device.
type How<'a> = dyn Fn(split::Options) -> split::Options + 'a;

fn check(
    path: &Path,
    folder: &Path,
    prompt: &str,
    theirs: &Summary,
    device: Box<dyn Device>,
    (phase, how): (Phase, &How<'_>),
) {
    let golden = Full::read(&folder.join(format!("{prompt}.safetensors"))).expect("a golden");
    let (n, model) = (golden.tokens.len(), open(path));
    let options = how(both(usize::MAX, KvType::F32, limits(n, 1, n), true));
    let mut model_on =
        split::prepare(device, &model.0, &model.1, &options, &mut |_| {}).expect("it is prepared");
    let ours = match phase {
        Phase::Prefill => Sequences::new(1, n)
            .run(&mut *model_on, phase, &[&golden.tokens])
            .remove(0),
        Phase::Decode => {
            let mut sequence = Sequences::new(1, n);
            golden
                .tokens
                .iter()
                .flat_map(|t| sequence.run(&mut *model_on, phase, &[&[*t]]).remove(0))
                .collect()
        }
    };
    let what = format!(
        "{} {prompt} {phase:?}, {}",
        path.display(),
        model_on.describe()
    );
    let is_f32 = path.to_string_lossy().ends_with("-F32.gguf");
    let exact = if is_f32 {
        &golden.logits
    } else {
        &golden.exact
    };
    let error = nmse(&ours, exact).expect("same length");
    let divergence = kl(&ours, exact, golden.n_vocab).expect("same length").mean;
    println!(
        "{what}: NMSE {error:.2e}, llama.cpp's {:.2e}; KL {divergence:.2e}, llama.cpp's {:.2e}",
        theirs.nmse, theirs.mean_kl
    );
    let exact_limit = if is_f32 && model.1.graph.uses_gelu() {
        GELU_NMSE
    } else if is_f32 {
        F32_NMSE
    } else {
        (OF_THEIRS * theirs.nmse).max(NMSE_FLOOR)
    };
    let limit = if phase == Phase::Prefill {
        of_halves(&model.1) + if is_f32 { exact_limit } else { 0.0 }
    } else {
        exact_limit
    };
    assert!(error <= limit, "{what}: NMSE {error:e} > {limit:e}");
    if !is_f32 {
        let limit = (OF_THEIRS * theirs.mean_kl).max(KL_FLOOR);
        assert!(
            divergence <= limit,
            "{what}: KL {divergence:e} > {limit:e}, llama.cpp's {:e}",
            theirs.mean_kl
        );
    }
}

/// Checks both phases on the short prompts of a model, with its last `gpu_layers` on the device.
fn every_prompt(model: &Path, goldens: &Path, prompts: &[&str], gpu_layers: usize) {
    every_prompt_on(model, goldens, prompts, &|options| split::Options {
        gpu_layers,
        ..options
    });
}

/// As [`every_prompt`], with options that `how` makes of those for a device alone.
pub(crate) fn every_prompt_on(model: &Path, goldens: &Path, prompts: &[&str], how: &How<'_>) {
    let folder = goldens.join(model.file_stem().expect("a name"));
    let summary = read_summary(&folder.join("summary.json")).expect("a summary");
    for prompt in prompts {
        let theirs = summary.get(*prompt).expect("a prompt of the summary");
        for phase in [Phase::Prefill, Phase::Decode] {
            let Some(device) = device() else { return };
            check(model, &folder, prompt, theirs, device, (phase, how));
        }
    }
}

#[test]
fn the_committed_goldens_hold() {
    for model in [
        "../src/engine/demo/tiny-qwen3-Q4_K_M",
        "models/rnd-llama-Q4_K_M",
        "models/rnd-qwen2-Q6_K",
    ] {
        let path: PathBuf = workspace_root().join(format!("reference/{model}.gguf"));
        every_prompt(&path, &committed_goldens(), &["sum", "capital"], usize::MAX);
    }
}

/// Prefill by the warp-group (WGMMA) kernels, which only some GPUs have.
#[test]
fn the_goldens_hold_where_warps_multiply_in_groups() {
    for model in [
        "../src/engine/demo/tiny-qwen3-Q4_K_M",
        "models/rnd-qwen2-Q6_K",
    ] {
        let Some(mut device) = shim() else { return };
        device.wide = true;
        let path: PathBuf = workspace_root().join(format!("reference/{model}.gguf"));
        let folder = committed_goldens().join(path.file_stem().expect("a name"));
        let summary = read_summary(&folder.join("summary.json")).expect("a summary");
        let theirs = summary.get("sum").expect("a prompt of the summary");
        let alone = |options| options;
        let how: (_, &How<'_>) = (Phase::Prefill, &alone);
        check(&path, &folder, "sum", theirs, Box::new(device), how);
    }
}

/// On two devices, split at every layer where a model can be.
#[test]
fn the_goldens_hold_for_every_split() {
    for (model, n_layer) in [
        ("../src/engine/demo/tiny-qwen3-Q4_K_M", 4),
        ("models/rnd-llama-Q4_K_M", 3),
    ] {
        let path: PathBuf = workspace_root().join(format!("reference/{model}.gguf"));
        assert_eq!(open(&path).1.hparams.n_layer(), n_layer);
        for gpu_layers in 1..n_layer {
            every_prompt(&path, &committed_goldens(), &["sum"], gpu_layers);
        }
    }
}

/// Floats, types of every plane, and types without kernels of their own.
#[test]
fn the_shared_goldens_hold() {
    let Some(shared) = shared_dir() else { return };
    for model in ["rnd-llama-F32", "rnd-qwen3-Q8_0", "tiny-qwen3-IQ2_S"] {
        every_prompt(
            &shared.join(format!("models/{model}.gguf")),
            &shared.join("goldens"),
            &["sum"],
            usize::MAX,
        );
    }
}

/// Every kind of block that other architectures have, within windows and beyond them.
#[test]
fn other_architectures_hold() {
    let Some(shared) = shared_dir() else { return };
    let (short, long) = (&["sum"][..], &["sum", "fox"][..]);
    for (model, prompts) in [
        ("gemma2-Q8_0", long),
        ("gpt-oss-MXFP4_MOE", long),
        ("gemma4-Q4_0", long),
        ("gemma4-F32", short),
        ("qwen2moe-Q8_0", short),
        ("glm4moe-Q8_0", short),
        ("cohere2-Q8_0", long),
        ("mistral3-Q6_K", long),
        ("phi3-Q4_K_M", short),
        ("olmo2-Q5_0", short),
        ("nemotron-Q5_0", short),
        ("starcoder2-Q5_1", short),
        ("qwen35-Q4_K_M", long),
        ("qwen3next-Q8_0", short),
        ("mamba2-Q8_0", long),
        ("falcon-h1-Q4_K_M", short),
        ("granitehybrid-Q8_0", short),
        ("lfm2moe-Q8_0", long),
        ("deepseek2-lite-Q8_0", short),
    ] {
        every_prompt(
            &shared.join(format!("arch/models/{model}.gguf")),
            &shared.join("arch/goldens"),
            prompts,
            usize::MAX,
        );
    }
    for model in [
        "minimax-m2-Q8_0",
        "exaone-moe-Q8_0",
        "bailingmoe2-Q8_0",
        "nemotron_h_moe-Q8_0",
        "afmoe-Q8_0",
        "mimo2-Q8_0",
        "step35-Q8_0",
        "llama4-Q8_0",
        "kimi-linear-Q8_0",
        "granite_swa-Q8_0",
        "apertus-Q8_0",
        "bitnet-Q8_0",
        "bloom-F32",
        "mpt-F32",
        "mamba-Q8_0",
        "jamba-Q8_0",
        "plamo2-Q8_0",
        "rwkv7-Q8_0",
    ] {
        every_prompt(
            &shared.join(format!("arch2/models/{model}.gguf")),
            &shared.join("arch2/goldens"),
            short,
            usize::MAX,
        );
    }
}

/// Vectors of models that are not causal, with all layers on the device and with some.
#[test]
fn embedding_models_hold() {
    let Some(shared) = shared_dir() else { return };
    for name in ["bert", "nomic-bert", "gemma-embedding"] {
        for ty in ["F32", "Q8_0"] {
            let name = format!("{name}-{ty}");
            let model = open(&shared.join(format!("arch/models/{name}.gguf")));
            for (prompt, kv_type) in [
                ("sum", KvType::F32),
                ("fox", KvType::F32),
                ("fox", KvType::F16),
            ] {
                let golden = format!("arch/goldens/{name}/{prompt}.safetensors");
                let golden = Embedded::read(&shared.join(golden)).expect("a golden");
                for gpu_layers in [usize::MAX, 1] {
                    hold_rows(&name, &model, &golden, (kv_type, gpu_layers));
                }
            }
        }
    }
}

/// Compares the vectors of a golden: within the error that halves may add to exact ones.
fn hold_rows(
    name: &str,
    model: &(Arc<Gguf>, Model),
    golden: &Embedded,
    (kv_type, gpu_layers): (KvType, usize),
) {
    let Some(device) = device() else { return };
    let n = golden.tokens.len();
    let options = both(gpu_layers, kv_type, limits(3 * n, 3, n), true);
    let mut model_on =
        split::prepare(device, &model.0, &model.1, &options, &mut |_| {}).expect("it is prepared");
    let mut run = |texts: &[&[u32]]| {
        Sequences::new(texts.len(), n).run(&mut *model_on, Phase::Prefill, texts)
    };
    let ours = run(&[&golden.tokens]).remove(0);
    let beside = run(&[&golden.tokens[1..], &golden.tokens, &golden.tokens[..1]]).remove(1);
    assert!(beside == ours, "{name}, {n} tokens: neighbours in a step");
    let error = nmse(&ours, &golden.exact_rows).expect("same length");
    let limit = of_halves(&model.1) + GELU_NMSE;
    println!("{name}, {n} tokens, {kv_type}: NMSE {error:.2e}, allowed {limit:.2e}");
    assert!(
        error <= limit,
        "{name}, {n} tokens: NMSE {error:e} > {limit:e}"
    );
}

/// Layers that share keys and values must be on one device.
#[test]
fn layers_that_share_are_not_divided() {
    let Some(path) = octavo_fixtures::shared("arch/models/gemma4-F32.gguf") else {
        return;
    };
    let Some(device) = device() else { return };
    let model = open(&path);
    let options = both(2, KvType::F32, limits(8, 1, 8), true);
    let error = split::prepare(device, &model.0, &model.1, &options, &mut |_| {})
        .err()
        .expect("a refusal")
        .to_string();
    assert!(
        error.contains("2 of 5 layers") && error.contains("all or none"),
        "{error}"
    );
}
