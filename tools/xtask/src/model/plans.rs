//! The plans of `--fit` for models of published sizes on cards of usual sizes: the table of
//! docs/gpu.md. Each model is a file of its true size, with a hole in place of the weights.

use std::fs::File;
use std::io;
use std::sync::Arc;

use octavo_engine::backend::cuda::Error;
use octavo_engine::fit::{Plan, plan_for};
use octavo_engine::{DeviceChoice, EngineOptions, Fit};
use octavo_fixtures::workspace_root;
use octavo_kernels::cuda::RESERVED;
use octavo_model::Model;

use super::shape::Experts;
use super::*;

/// Sizes of cards in GiB.
const CARDS: [u64; 5] = [8, 12, 16, 24, 80];

/// Context of the models in tokens, as the presets have it.
const CONTEXT: usize = 40_960;

/// Names, dimensions and types of tensors.
type Tensors = Vec<(String, Vec<u64>, TensorType)>;

/// Opens a model of these keys and tensors.
fn open(writer: Writer<'_>, tensors: &Tensors, path: &Path) -> Arc<Gguf> {
    let mut writer = writer;
    for (name, dims, ty) in tensors {
        // the directory is written before the first tensor
        let stop = TensorData::stream(|_| Err(io::Error::other("a hole")));
        writer.tensor(name, dims, *ty, stop);
    }
    let bytes = writer.file_bytes().expect("sound keys and shapes");
    let file = File::create(path).expect("a file");
    let stopped = writer.write_to(&file).expect_err("it stops at the weights");
    assert!(stopped.to_string().contains("a hole"), "{stopped}");
    file.set_len(bytes).expect("a file with a hole");
    Arc::new(Gguf::open(path, &OpenOptions::default()).expect("a model"))
}

/// Assigns the types of a target of octavo quantize.
fn typed(shape: &Shape, arch: &str, ty: &str, tensors: Vec<(String, Vec<u64>)>) -> Tensors {
    let facts = Facts {
        architecture: arch.to_owned(),
        n_layer: shape.n_layer,
        n_head: shape.n_head,
        n_head_kv: shape.n_head_kv,
        n_expert: shape.experts.map_or(0, |experts| experts.count),
    };
    let target: Target = ty.parse().expect("a target");
    let choices = Choices {
        has_importance: true,
        ..Choices::default()
    };
    let names = tensors.iter().map(|(name, _)| name.as_str());
    let mut mix = Mix::new(&facts, target, &choices, names);
    let one = |(name, dims): (String, Vec<u64>)| {
        let ty = mix.next_type(&name, &dims).expect("a type");
        let ty = mix::fallback(ty.unwrap_or(TensorType::F32), dims[0]);
        (name, dims, ty.expect("whole blocks"))
    };
    tensors.into_iter().map(one).collect()
}

fn preset(arch: Arch, preset: Preset) -> Shape {
    Shape::of(arch, preset).expect("a preset")
}

fn of_shape(shape: &Shape, ty: &str, path: &Path) -> Arc<Gguf> {
    let mut writer = Writer::new();
    shape.set_keys(&mut writer, None);
    let tensors = typed(shape, shape.arch.name(), ty, shape.tensors());
    open(writer, &tensors, path)
}

/// DeepSeek V2 Lite in the form of older files: latent attention, and two shared experts beside 64
/// in all layers but the first.
fn deepseek(path: &Path) -> Arc<Gguf> {
    let experts = Some(Experts {
        count: 64,
        used: 6,
        n_ff: 1408,
    });
    let shape = Shape {
        n_layer: 27,
        n_head: 16,
        n_head_kv: 16,
        experts,
        ..preset(Arch::Llama, Preset::B8)
    };
    let (width, vocab, n_ff, latent) = (2048u64, 102_400, 1408, 512);
    let mut all = vec![
        ("token_embd.weight".to_owned(), vec![width, vocab]),
        ("output_norm.weight".to_owned(), vec![width]),
        ("output.weight".to_owned(), vec![width, vocab]),
    ];
    for i in 0..shape.n_layer {
        let mut layer = vec![
            ("attn_norm", vec![width]),
            ("ffn_norm", vec![width]),
            ("attn_q", vec![width, 16 * 192]),
            ("attn_kv_a_mqa", vec![width, latent + 64]),
            ("attn_kv_a_norm", vec![latent]),
            ("attn_kv_b", vec![latent, 16 * 256]),
            ("attn_output", vec![16 * 128, width]),
        ];
        match i {
            0 => layer.extend([
                ("ffn_gate", vec![width, 10_944]),
                ("ffn_up", vec![width, 10_944]),
                ("ffn_down", vec![10_944, width]),
            ]),
            _ => layer.extend([
                ("ffn_gate_inp", vec![width, 64]),
                ("ffn_gate_exps", vec![width, n_ff, 64]),
                ("ffn_up_exps", vec![width, n_ff, 64]),
                ("ffn_down_exps", vec![n_ff, width, 64]),
                ("ffn_gate_shexp", vec![width, 2 * n_ff]),
                ("ffn_up_shexp", vec![width, 2 * n_ff]),
                ("ffn_down_shexp", vec![2 * n_ff, width]),
            ]),
        }
        let named = |(name, dims)| (format!("blk.{i}.{name}.weight"), dims);
        all.extend(layer.into_iter().map(named));
    }
    let tensors = typed(&shape, "deepseek2", "Q4_K_M", all);
    let mut writer = Writer::new();
    writer.set("general.architecture", "deepseek2");
    let mut put = |name: &str, n: u32| {
        writer.set(&format!("deepseek2.{name}"), n);
    };
    put("context_length", 40_960);
    put("embedding_length", 2048);
    put("feed_forward_length", 10_944);
    put("block_count", 27);
    put("attention.head_count", 16);
    put("attention.head_count_kv", 16);
    put("attention.key_length", 192);
    put("attention.value_length", 128);
    put("attention.kv_lora_rank", 512);
    put("rope.dimension_count", 64);
    put("leading_dense_block_count", 1);
    put("expert_count", 64);
    put("expert_used_count", 6);
    put("expert_shared_count", 2);
    put("expert_feed_forward_length", 1408);
    writer.set("deepseek2.attention.layer_norm_rms_epsilon", 1e-6f32);
    writer.set("deepseek2.rope.freq_base", 1e4f32);
    open(writer, &tensors, path)
}

fn thousands(n: usize) -> String {
    match n {
        0..1000 => n.to_string(),
        _ => format!("{},{:03}", n / 1000, n % 1000),
    }
}

/// Describes a plan for a model of this many layers.
fn cell(plan: &Plan, n_layer: usize) -> String {
    let on_cpu = n_layer - plan.gpu_layers;
    let ctx = thousands(plan.ctx);
    match (plan.cpu_experts, on_cpu) {
        (0, 0) if plan.ctx == CONTEXT => "all".to_owned(),
        (0, 0) => ctx,
        (0, n) => format!("{ctx}; {n} layers"),
        (n, 0) => format!("{ctx}; experts of {n}"),
        (_, n) => format!("{ctx}; all experts, {n} layers"),
    }
}

/// Returns a row of the table: a model's plan for each card.
fn row(name: &str, gguf: &Arc<Gguf>) -> String {
    let model = Model::load(gguf).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(model.hparams.n_ctx_train(), CONTEXT, "{name}");
    let options = EngineOptions {
        device: DeviceChoice::Cuda(0),
        ctx: Some(CONTEXT),
        fit: Some(Fit {
            ctx_is_default: true,
            kv_is_default: true,
            ..Fit::default()
        }),
        ..EngineOptions::default()
    };
    let mut row = format!("| {name} | {:.1} |", gguf.file_bytes() as f64 / 1e9);
    for gib in CARDS {
        let planned = plan_for(gguf, &model, &options, (gib << 30) - RESERVED);
        row += &match planned {
            Ok(plan) => format!(" {} |", cell(&plan, model.hparams.n_layer())),
            Err(octavo_engine::Error::Cuda(Error::TooLarge { .. })) => " nothing |".to_owned(),
            Err(error) => panic!("{name}: {error}"),
        };
    }
    row
}

#[test]
fn the_table_of_the_documentation_is_what_is_chosen() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("model.gguf");
    let large = Shape {
        n_embd: 8192,
        n_ff: 28_672,
        n_layer: 80,
        n_head: 64,
        n_vocab: 128_256,
        ..preset(Arch::Llama, Preset::B8)
    };
    let shapes = [
        ("Qwen3 0.6B Q8_0", preset(Arch::Qwen3, Preset::B0_6), "Q8_0"),
        ("Qwen3 8B Q4_K_M", preset(Arch::Qwen3, Preset::B8), "Q4_K_M"),
        (
            "gpt-oss 20B MXFP4",
            preset(Arch::GptOss, Preset::B20),
            "MXFP4_MOE",
        ),
        (
            "Qwen3 30B-A3B Q4_K_M",
            preset(Arch::Qwen3moe, Preset::B30A3),
            "Q4_K_M",
        ),
        ("Llama 70B Q4_K_M", large, "Q4_K_M"),
    ];
    let mut rows: Vec<String> = shapes
        .iter()
        .map(|(name, shape, ty)| row(name, &of_shape(shape, ty, &path)))
        .collect();
    rows.insert(2, row("DeepSeek V2 Lite Q4_K_M", &deepseek(&path)));
    let heads = CARDS.map(|gib| format!(" {gib} GiB |")).concat();
    let line = "---|".repeat(CARDS.len());
    let table = format!("| | GB |{heads}\n|---|---:|{line}\n{}\n", rows.join("\n"));
    let docs = workspace_root().join("docs/gpu.md");
    let docs = std::fs::read_to_string(docs).expect("a page");
    assert!(
        docs.contains(&table),
        "docs/gpu.md: expected this table:\n{table}"
    );
}
