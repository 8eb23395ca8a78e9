//! Every architecture under `diff`: the engine is within its bounds of the oracle, and common
//! faults are located at the right tensor.

mod second_wave;

use std::path::PathBuf;
use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions, OwnedValue, TensorType, Writer};
use octavo_analysis::diff::{
    Absent, BackendExecution, Comparison, Execution, OracleExecution, Verdict, compare,
};
use octavo_engine::backend::cpu;
use octavo_fixtures::shared;
use octavo_kernels::{Isa, KvType};
use octavo_model::{Arch, Model, OwnedTap};
use octavo_reference::golden::{Embedded, Full};

/// A shared test model, and the tokens of a text long enough for every sliding window.
struct Case {
    name: String,
    gguf: Arc<Gguf>,
    tokens: Vec<u32>,
}

fn case(path: PathBuf) -> Case {
    let name = path
        .file_stem()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let gguf = Gguf::open(&path, &OpenOptions::default()).expect("a model");
    let goldens = path.ancestors().nth(2).expect("two folders");
    let golden = goldens.join("goldens").join(&name).join("fox.safetensors");
    let tokens = match pools(&gguf) {
        true => Embedded::read(&golden).expect("a golden").tokens,
        false => Full::read(&golden).expect("a golden").tokens,
    };
    Case {
        name,
        gguf: Arc::new(gguf),
        tokens,
    }
}

/// Returns whether the model is an embedding model.
fn pools(gguf: &Gguf) -> bool {
    let arch = Arch::of_file(gguf).expect("a known architecture");
    gguf.get(&format!("{}.pooling_type", arch.name())).is_some()
}

fn named(name: &str) -> Option<Case> {
    shared(&format!("arch/models/{name}.gguf")).map(case)
}

fn backend(gguf: &Arc<Gguf>, isa: Isa) -> BackendExecution {
    let options = cpu::Options {
        isa,
        threads: 2,
        pool: None,
        kv_type: KvType::F32.both(),
        n_pages: 8,
        n_states: 1,
        prompt_bits: octavo_kernels::PromptBits::default(),
        repack: true,
        lock: false,
        weights: None,
        adapters: Vec::new(),
    };
    let model = Model::load(gguf).expect("a model");
    BackendExecution::cpu(gguf.clone(), model, &options, &mut |_, _| {}).expect("it is prepared")
}

#[test]
fn every_architecture_is_within_its_bounds_of_the_oracle() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    let mut n = 0;
    for entry in std::fs::read_dir(models).expect("a folder") {
        let path = entry.expect("an entry").path();
        let gguf = Gguf::open(&path, &OpenOptions::default()).expect("a model");
        if Arch::of_file(&gguf).is_err() {
            continue;
        }
        let Case { name, gguf, tokens } = case(path);
        for isa in Isa::available() {
            let mut oracle = OracleExecution::new(gguf.clone()).expect("a model");
            let mut engine = backend(&gguf, isa);
            let c = compare(
                &mut oracle,
                &mut engine,
                (&tokens[..]).into(),
                &mut |_, _| {},
            );
            let c = c.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(
                c.verdict,
                Verdict::Within,
                "{name} {isa}: {:?}",
                c.first_divergence
            );
            let has_logits = engine.target().network().graph().has_logits();
            assert_eq!(c.logits.is_some(), has_logits, "{name}");
            if !has_logits {
                // llama.cpp has no names for these tensors: both sides must agree otherwise; the
                // oracle does not report the value of a norm before its bias
                let inner =
                    |tap: &Absent| tap.name.starts_with("norm_w-") || tap.name.starts_with("wqkv-");
                assert!(c.absent.iter().all(inner), "{name}: {:?}", c.absent);
            }
        }
        n += 1;
    }
    assert!(n >= 66, "only {n} models");
}

/// Returns the name of the first tensor that differs.
fn first(c: &Comparison) -> &str {
    assert_eq!(c.verdict, Verdict::Diverged);
    &c.first_divergence.as_ref().expect("a tensor").name
}

/// Copies the model with keys and tensors changed.
fn changed(gguf: &Gguf, keys: &[(&str, u32)], change: impl Fn(&str, &mut [f32])) -> Arc<Gguf> {
    let mut writer = Writer::new();
    for (key, value) in gguf.keys() {
        writer.set(key, value);
    }
    for (key, value) in keys {
        writer.set(key, *value);
    }
    for t in gguf.tensors() {
        let mut bytes = gguf.data(t).to_vec();
        if t.ty == TensorType::F32 {
            let floats = bytes.chunks_exact(4);
            let mut values: Vec<f32> = floats
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            change(&t.name, &mut values);
            bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        }
        writer.tensor(&t.name, &t.dims, t.ty, bytes);
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("it is written");
    Arc::new(Gguf::from_bytes(bytes, "changed.gguf", &OpenOptions::default()).expect("it opens"))
}

/// Returns the first tensor that differs between the engine on the model and on a changed copy.
fn parts(case: &Case, keys: &[(&str, u32)], change: impl Fn(&str, &mut [f32])) -> String {
    let other = changed(&case.gguf, keys, change);
    let (mut a, mut b) = (
        backend(&case.gguf, Isa::best()),
        backend(&other, Isa::best()),
    );
    let c = compare(&mut a, &mut b, (&case.tokens[..]).into(), &mut |_, _| {}).expect("both run");
    first(&c).to_owned()
}

/// Returns the first tensor that differs between the engine and the oracle with `fault`.
fn parts_from_oracle(
    case: &Case,
    fault: impl FnMut(&OwnedTap, usize, &mut [f64]) + Send + 'static,
) -> String {
    let mut oracle =
        OracleExecution::with_fault(case.gguf.clone(), Box::new(fault)).expect("a model");
    let mut engine = backend(&case.gguf, Isa::best());
    let c = compare(
        &mut engine,
        &mut oracle,
        (&case.tokens[..]).into(),
        &mut |_, _| {},
    )
    .expect("both run");
    first(&c).to_owned()
}

#[test]
fn a_window_that_is_off_by_one_is_found() {
    let Some(case) = named("gemma2-F32") else {
        return;
    };
    let key = "gemma2.attention.sliding_window";
    let window = case.gguf.u32(key).expect("a number").expect("a window");
    for other in [window - 1, window + 1] {
        let at = parts(&case, &[(key, other)], |_, _| {});
        assert_eq!(at, "kqv_out-0", "{other} instead of {window}");
    }
}

#[test]
fn a_window_on_both_sides_that_is_off_by_one_is_found() {
    let Some(case) = named("gemma-embedding-F32") else {
        return;
    };
    let key = "gemma-embedding.attention.sliding_window";
    let window = case.gguf.u32(key).expect("a number").expect("a window");
    for other in [window - 2, window + 2] {
        let at = parts(&case, &[(key, other)], |_, _| {});
        assert_eq!(at, "kqv_out-0", "{other} instead of {window}");
    }
}

#[test]
fn a_position_that_is_off_by_one_is_found() {
    let Some(case) = named("bert-F32") else {
        return;
    };
    let at = parts(&case, &[], |name, values| {
        if name == "position_embd.weight" {
            values.rotate_left(64);
        }
    });
    assert_eq!(at, "inp_embd");
}

#[test]
fn a_missing_sink_is_found() {
    let Some(case) = named("gpt-oss-F32") else {
        return;
    };
    let at = parts(&case, &[], |name, values| {
        if name == "blk.1.attn_sinks.weight" {
            values.fill(-1e30);
        }
    });
    assert_eq!(at, "kqv_out-1");
}

#[test]
fn a_forgotten_one_in_a_norm_is_found() {
    let Some(case) = named("gemma-F32") else {
        return;
    };
    let at = parts(&case, &[], |name, values| {
        if name == "blk.1.ffn_norm.weight" {
            values.iter_mut().for_each(|w| *w -= 1.0);
        }
    });
    assert_eq!(at, "ffn_norm-1");
}

#[test]
fn experts_in_another_order_are_found() {
    let Some(case) = named("qwen3moe-F32") else {
        return;
    };
    let at = parts_from_oracle(&case, |tap, width, ids| {
        if tap.name == "ffn_moe_topk" && tap.layer == Some(1) {
            ids.chunks_exact_mut(width).for_each(|ids| ids.swap(0, 1));
        }
    });
    assert_eq!(at, "ffn_moe_topk-1");
}

#[test]
fn a_bias_of_the_choice_in_the_weights_is_found() {
    let Some(case) = named("glm4moe-F32") else {
        return;
    };
    let mut biased: Vec<f64> = Vec::new();
    let mut chosen: Vec<f64> = Vec::new();
    let at = parts_from_oracle(&case, move |tap, width, x| match tap.name.as_str() {
        "ffn_moe_probs_biased" => biased = x.to_vec(),
        "ffn_moe_topk" => chosen = x.to_vec(),
        "ffn_moe_weights" => {
            let n_expert = biased.len() / (x.len() / width);
            for (i, weight) in x.iter_mut().enumerate() {
                *weight = biased[i / width * n_expert + chosen[i] as usize];
            }
        }
        _ => {}
    });
    assert_eq!(at, "ffn_moe_weights-1");
}

#[test]
fn a_rotation_where_none_is_asked_for_is_found() {
    let Some(case) = named("smollm3-F32") else {
        return;
    };
    let head_dim = Model::load(&case.gguf).expect("a model").hparams.layers[3].head_dim;
    let at = parts_from_oracle(&case, move |tap, width, x| {
        if tap.name == "Kcur" && tap.layer == Some(3) {
            for (position, row) in x.chunks_exact_mut(width).enumerate() {
                for head in row.chunks_exact_mut(head_dim) {
                    let (sin, cos) = (position as f64).sin_cos();
                    (head[0], head[1]) =
                        (head[0] * cos - head[1] * sin, head[0] * sin + head[1] * cos);
                }
            }
        }
    });
    assert_eq!(at, "Kcur-3");
}

/// Injects convolutions that see the end of another text before the first tokens.
#[test]
fn a_convolution_that_was_not_reset_is_found() {
    let Some(case) = named("qwen35-F32") else {
        return;
    };
    let at = parts_from_oracle(&case, |tap, width, values| {
        if tap.name == "conv_output_raw" && tap.layer == Some(1) {
            let before = values[5 * width..8 * width].to_vec();
            let first = values[..3 * width].iter_mut();
            first.zip(before).for_each(|(x, other)| *x += 0.1 * other);
        }
    });
    assert_eq!(at, "conv_output_raw-1");
}

/// Injects the state left by another text, which decays.
#[test]
fn a_state_that_was_not_reset_is_found() {
    for (name, tap) in [
        ("mamba2-F32", "mamba2_y_add_d"),
        ("qwen35-F32", "linear_attn_out"),
    ] {
        let Some(case) = named(name) else {
            return;
        };
        let at = parts_from_oracle(&case, move |at, width, values| {
            if at.name == tap && at.layer == Some(1) {
                let mut left = 0.01;
                for row in values.chunks_exact_mut(width) {
                    row.iter_mut().for_each(|x| *x += left);
                    left *= 0.7;
                }
            }
        });
        assert_eq!(at, format!("{tap}-1"), "{name}");
    }
}

/// A tensor as stored in a file.
struct Tensor {
    name: String,
    dims: Vec<u64>,
    ty: TensorType,
    bytes: Vec<u8>,
}

/// Tensors of a file, to be rewritten.
struct Tensors(Vec<Tensor>);

impl Tensors {
    fn take(&mut self, name: &str) -> Tensor {
        let at = self.0.iter().position(|t| t.name == name);
        self.0.remove(at.unwrap_or_else(|| panic!("no {name}")))
    }

    /// Concatenates the rows of several tensors into one.
    fn join(&mut self, names: &[String], to: &str) {
        let parts: Vec<Tensor> = names.iter().map(|name| self.take(name)).collect();
        let mut dims = parts[0].dims.clone();
        dims[1] = parts.iter().map(|part| part.dims[1]).sum();
        self.0.push(Tensor {
            name: to.to_owned(),
            dims,
            ty: parts[0].ty,
            bytes: parts.into_iter().flat_map(|part| part.bytes).collect(),
        });
    }

    /// Adds a vector of numbers near 1.
    fn add_factors(&mut self, name: &str, n: usize) {
        let factors = (0..n).map(|i| 0.7 + 0.2 * i as f32);
        self.0.push(Tensor {
            name: name.to_owned(),
            dims: vec![n as u64],
            ty: TensorType::F32,
            bytes: factors.flat_map(f32::to_le_bytes).collect(),
        });
    }
}

/// Rewrites the file with other keys and tensors.
fn rewritten(gguf: &Gguf, keys: &[(&str, OwnedValue)], change: fn(&mut Tensors)) -> Arc<Gguf> {
    let mut writer = Writer::new();
    for (key, value) in gguf.keys() {
        writer.set(key, value);
    }
    for (key, value) in keys {
        writer.set(key, value.clone());
    }
    let tensor = |t: &gguf_rs_lite::TensorInfo| Tensor {
        name: t.name.clone(),
        dims: t.dims.clone(),
        ty: t.ty,
        bytes: gguf.data(t).to_vec(),
    };
    let mut tensors = Tensors(gguf.tensors().iter().map(tensor).collect());
    change(&mut tensors);
    for t in tensors.0 {
        writer.tensor(&t.name, &t.dims, t.ty, t.bytes);
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("it is written");
    Arc::new(Gguf::from_bytes(bytes, "rewritten.gguf", &OpenOptions::default()).expect("it opens"))
}

/// Model name, changed keys, and the change of its tensors.
type Form = (
    &'static str,
    Vec<(&'static str, OwnedValue)>,
    fn(&mut Tensors),
);

/// Returns tensor layouts and key values that no golden has.
fn forms() -> [Form; 9] {
    [
        ("qwen3moe-F32", vec![], |t| {
            for (l, part) in [(0, "gate"), (0, "up"), (1, "down"), (1, "gate")] {
                t.add_factors(&format!("blk.{l}.ffn_{part}_exps.scale"), 6);
            }
        }),
        ("smollm3-F32", vec![], |t| {
            for part in ["attn_q", "attn_output", "ffn_down"] {
                t.add_factors(&format!("blk.1.{part}.scale"), 1);
            }
        }),
        ("gemma4-Q4_0", vec![], |t| {
            (0..4).for_each(|l| t.add_factors(&format!("blk.{l}.ffn_down_exps.scale"), 4));
        }),
        ("gemma4-Q4_0", vec![], |t| {
            for l in 0..4 {
                let parts = ["gate", "up"].map(|part| format!("blk.{l}.ffn_{part}_exps.weight"));
                t.join(&parts, &format!("blk.{l}.ffn_gate_up_exps.weight"));
            }
        }),
        ("qwen3next-F32", vec![], |t| {
            for l in 0..3 {
                let parts = ["qkv", "gate"].map(|part| format!("blk.{l}.attn_{part}.weight"));
                t.join(&parts, &format!("blk.{l}.ssm_in.weight"));
            }
        }),
        (
            "mamba2-F32",
            vec![
                ("mamba2.ssm.group_count", 2u32.into()),
                ("mamba2.ssm.state_size", 8u32.into()),
            ],
            |t| {
                for l in 0..2 {
                    let mut norm = t.take(&format!("blk.{l}.ssm_norm.weight"));
                    norm.dims = vec![64, 2];
                    t.0.push(norm);
                }
            },
        ),
        (
            "qwen35-F32",
            vec![("qwen35.rope.dimension_sections", vec![2i32, 1, 0, 0].into())],
            |_| {},
        ),
        (
            "qwen35moe-F32",
            vec![(
                "qwen35moe.attention.recurrent_layers",
                vec![true, true, true, false].into(),
            )],
            |_| {},
        ),
        (
            "deepseek2-F32",
            vec![
                ("deepseek2.attention.temperature_scale", 0.5f32.into()),
                ("deepseek2.attention.temperature_length", 4u32.into()),
            ],
            |_| {},
        ),
    ]
}

/// The engine agrees with the oracle.
#[test]
fn other_forms_are_within_their_bounds_of_the_oracle() {
    for (name, keys, change) in forms() {
        let Some(case) = named(name) else {
            return;
        };
        let gguf = rewritten(&case.gguf, &keys, change);
        for isa in Isa::available() {
            let mut oracle = OracleExecution::new(gguf.clone()).expect("a model");
            let mut engine = backend(&gguf, isa);
            let c = compare(
                &mut oracle,
                &mut engine,
                (&case.tokens[..]).into(),
                &mut |_, _| {},
            );
            let c = c.unwrap_or_else(|e| panic!("{name}: {e}"));
            let first = &c.first_divergence;
            assert_eq!(c.verdict, Verdict::Within, "{name} {isa}: {first:?}");
        }
    }
}
