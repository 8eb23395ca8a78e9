//! Comparison of two executions: no divergence where there is no fault, and the right tensor where
//! a fault was injected.

use std::collections::HashMap;
use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions, Writer};
use octavo_analysis::diff::{
    BackendExecution, Comparison, EngineExecution, Error, Execution, Fault, OracleExecution,
    RecordedExecution, RecordedTensor, Verdict, compare,
};
use octavo_engine::backend::cpu;
use octavo_engine::{Engine, EngineOptions, ModelSource};
use octavo_fixtures::{shared, workspace_root};
use octavo_kernels::{Isa, KvType, KvTypes};
use octavo_model::{Model, OwnedTap, Pairing};

const TOKENS: [u32; 21] = [
    5, 300, 17, 900, 33, 2, 610, 77, 8, 8, 451, 1000, 64, 12, 3, 290, 555, 40, 9, 700, 31,
];

const DEMO: &str = "tiny-qwen3-Q4_K_M";

fn open(model: &str) -> Arc<Gguf> {
    let path = match model {
        DEMO => workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf"),
        _ => workspace_root().join(format!("reference/models/{model}.gguf")),
    };
    Arc::new(Gguf::open(&path, &OpenOptions::default()).expect("a committed model"))
}

fn backend(gguf: &Arc<Gguf>, isa: Isa, kv_type: impl Into<KvTypes>) -> BackendExecution {
    let options = cpu::Options {
        isa,
        threads: 2,
        pool: None,
        kv_type: kv_type.into(),
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

fn run(a: &mut dyn Execution, b: &mut dyn Execution) -> Comparison {
    compare(a, b, (&TOKENS[..]).into(), &mut |_, _| {}).expect("both run")
}

fn worst(comparison: &Comparison) -> (f64, String) {
    let parts = comparison
        .taps
        .iter()
        .map(|tap| (tap.of_bound.unwrap_or(0.0), tap.name.clone()));
    parts.fold((0.0, String::new()), |a, b| if b.0 > a.0 { b } else { a })
}

#[test]
fn the_engine_is_within_its_bounds_of_the_oracle() {
    let mut models: Vec<Arc<Gguf>> = [DEMO, "rnd-llama-Q4_K_M", "rnd-qwen2-Q6_K"]
        .map(open)
        .into();
    for name in [
        "rnd-llama-F32",
        "rnd-qwen2-F32",
        "rnd-qwen3-F32",
        "rnd-qwen3-Q8_0",
        "tiny-qwen3-F32",
        "tiny-qwen3-IQ2_S",
    ] {
        let path = shared(&format!("models/{name}.gguf"));
        models.extend(
            path.map(|path| Arc::new(Gguf::open(&path, &OpenOptions::default()).expect("a model"))),
        );
    }
    for gguf in models {
        for isa in Isa::available() {
            let mixed = KvTypes {
                k: KvType::Q8_0,
                v: KvType::Bf16,
            };
            for kv_type in [KvType::F32.both(), KvType::F16.both(), mixed] {
                let mut oracle = OracleExecution::new(gguf.clone()).expect("a model");
                let c = run(&mut oracle, &mut backend(&gguf, isa, kv_type));
                let (part, name) = worst(&c);
                println!(
                    "{} {isa} {kv_type}: worst {part:.3} of the bound at {name}",
                    gguf.name()
                );
                assert_eq!(
                    c.verdict,
                    Verdict::Within,
                    "{}: {:?}",
                    gguf.name(),
                    c.first_divergence
                );
                // llama.cpp, and so the oracle, has no name for this product in qwen models
                assert!(
                    c.absent.iter().all(|tap| tap.name.starts_with("attn_out-")),
                    "{:?}",
                    c.absent
                );
                assert_eq!(c.logits.expect("logits").positions, TOKENS.len());
            }
        }
    }
}

/// Copies the demo model with keys and tensors changed.
fn changed(change: impl Fn(&str, &mut Vec<u8>), keys: &[(&str, f32)]) -> Arc<Gguf> {
    let demo = open(DEMO);
    let mut writer = Writer::new();
    for (key, value) in demo.keys() {
        writer.set(key, value);
    }
    for (key, value) in keys {
        writer.set(key, *value);
    }
    for t in demo.tensors() {
        let mut bytes = demo.data(t).to_vec();
        change(&t.name, &mut bytes);
        writer.tensor(&t.name, &t.dims, t.ty, bytes);
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("it is written");
    Arc::new(Gguf::from_bytes(bytes, "changed.gguf", &OpenOptions::default()).expect("it opens"))
}

/// Returns name, layer and occurrence of the first tensor that differs between the engine on the
/// demo model and `other`.
fn address(other: &mut dyn Execution) -> (String, usize) {
    let c = run(&mut backend(&open(DEMO), Isa::best(), KvType::F32), other);
    assert_eq!(c.verdict, Verdict::Diverged);
    let first = c.first_divergence.expect("a tensor");
    println!(
        "{} #{}: {:?} times its bound",
        first.name, first.occurrence, first.of_bound
    );
    let suffix = first
        .layer
        .map_or(String::new(), |layer| format!("-{layer}"));
    assert!(first.name.ends_with(&suffix));
    (first.name, first.occurrence)
}

fn faulty(fault: Box<Fault>) -> OracleExecution {
    OracleExecution::with_fault(open(DEMO), fault).expect("a model")
}

/// Replaces the values of one tensor by another's.
fn instead(of: &'static str, layer: Option<usize>, from: &'static str) -> OracleExecution {
    let mut kept: Vec<f64> = Vec::new();
    faulty(Box::new(move |key: &OwnedTap, _: usize, x: &mut [f64]| {
        if key.name == from && key.nth == 0 {
            kept = x.to_vec();
        }
        if key.name == of && key.layer == layer {
            x.copy_from_slice(&kept);
        }
    }))
}

#[test]
fn a_flipped_scale_is_found_at_its_product() {
    // flip the sign of one block's scale: row 7 of ffn_up in layer 1, row 3 of attn_v in layer 2
    for (tensor, row, tap) in [
        ("blk.1.ffn_up.weight", 7, "ffn_up-1"),
        ("blk.2.attn_v.weight", 3, "Vcur-2"),
    ] {
        let info = open(DEMO).tensor(tensor).expect("a tensor").clone();
        let bytes = info.ty.row_bytes(256).expect("whole blocks") as usize;
        let scale = if info.ty.name() == "Q6_K" {
            bytes - 1
        } else {
            1
        };
        let flip = |name: &str, data: &mut Vec<u8>| {
            if name == tensor {
                data[row * bytes + scale] ^= 0x80;
            }
        };
        let gguf = changed(flip, &[]);
        let c = run(
            &mut backend(&open(DEMO), Isa::best(), KvType::F16),
            &mut backend(&gguf, Isa::best(), KvType::F16),
        );
        let first = c.first_divergence.expect("a tensor");
        assert_eq!((first.name.as_str(), first.channel), (tap, row));
        assert!(
            c.taps
                .iter()
                .take_while(|t| t.name != tap)
                .all(|t| t.max_abs == 0.0),
            "equal up to there"
        );
    }
}

#[test]
fn a_dropped_head_norm_is_found() {
    assert_eq!(
        address(&mut instead("Qcur_normed", Some(2), "Qcur")),
        ("Qcur_normed-2".to_owned(), 0)
    );
    assert_eq!(
        address(&mut instead("Kcur_normed", Some(0), "Kcur")),
        ("Kcur_normed-0".to_owned(), 0)
    );
}

#[test]
fn a_forgotten_final_norm_is_found() {
    let mut last = Vec::new();
    let mut other = faulty(Box::new(
        move |key: &OwnedTap, _: usize, x: &mut [f64]| match key.name.as_str() {
            "l_out" => last = x.to_vec(),
            "result_norm" => x.copy_from_slice(&last),
            _ => {}
        },
    ));
    assert_eq!(address(&mut other), ("result_norm".to_owned(), 0));
}

#[test]
fn a_wrong_rope_base_is_found_at_the_first_rotation() {
    let gguf = changed(|_, _| {}, &[("qwen3.rope.freq_base", 10_000.0)]);
    assert_eq!(
        address(&mut backend(&gguf, Isa::best(), KvType::F32)),
        ("Qcur-0".to_owned(), 1)
    );
}

#[test]
fn a_wrong_epsilon_is_found_at_the_first_norm() {
    let gguf = changed(
        |_, _| {},
        &[("qwen3.attention.layer_norm_rms_epsilon", 1e-5)],
    );
    assert_eq!(
        address(&mut backend(&gguf, Isa::best(), KvType::F32)),
        ("attn_norm-0".to_owned(), 0)
    );
}

#[test]
fn a_wrong_rope_pairing_is_found_at_the_first_rotation() {
    let gguf = open(DEMO);
    let mut model = Model::load(&gguf).expect("a model");
    assert_eq!(model.ropes[0].pairing, Pairing::Neox);
    model.ropes[0].pairing = Pairing::Norm;
    let options = cpu::Options {
        isa: Isa::best(),
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
    let mut other =
        BackendExecution::cpu(gguf, model, &options, &mut |_, _| {}).expect("it is prepared");
    assert_eq!(address(&mut other), ("Qcur-0".to_owned(), 1));
}

#[test]
fn key_heads_given_to_the_wrong_queries_are_found_at_the_attention() {
    let (heads, heads_kv, d) = (4, 2, 64);
    let mut kept: HashMap<String, Vec<f64>> = HashMap::new();
    let mut other = faulty(Box::new(move |key: &OwnedTap, _: usize, x: &mut [f64]| {
        if key.layer != Some(1) {
            return;
        }
        if key.name != "kqv_out" {
            // the last tensor of a name is the rotated one
            kept.insert(key.name.clone(), x.to_vec());
            return;
        }
        let (q, k, v) = (&kept["Qcur"], &kept["Kcur"], &kept["Vcur"]);
        for (t, out) in x.chunks_exact_mut(heads * d).enumerate() {
            for h in 0..heads {
                // the right index is h / group
                let kv = h % heads_kv;
                let part =
                    |x: &[f64], t: usize, n: usize, h: usize| x[(t * n + h) * d..][..d].to_vec();
                let q = part(q, t, heads, h);
                let dot = |s: usize| {
                    part(k, s, heads_kv, kv)
                        .iter()
                        .zip(&q)
                        .map(|(a, b)| a * b)
                        .sum::<f64>()
                        / 8.0
                };
                let weights: Vec<f64> = (0..=t).map(|s| dot(s).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for (i, out) in out[h * d..(h + 1) * d].iter_mut().enumerate() {
                    *out = weights
                        .iter()
                        .enumerate()
                        .map(|(s, w)| w * part(v, s, heads_kv, kv)[i])
                        .sum::<f64>()
                        / sum;
                }
            }
        }
    }));
    assert_eq!(address(&mut other), ("kqv_out-1".to_owned(), 0));
}

#[test]
fn the_same_execution_twice_is_identical() {
    let gguf = open(DEMO);
    let mut all: Vec<BackendExecution> = [KvType::F16, KvType::F16]
        .map(|kv| backend(&gguf, Isa::best(), kv))
        .into();
    let (a, b) = all.split_at_mut(1);
    let c = run(&mut a[0], &mut b[0]);
    assert_eq!(c.verdict, Verdict::Identical);
    let logits = c.logits.expect("logits");
    assert_eq!((logits.nmse, logits.top1, logits.top5), (0.0, 1.0, 1.0));
}

#[test]
fn another_quantization_is_within_the_step_of_its_codes() {
    let Some(models) = shared("models") else {
        return;
    };
    let open = |name: &str| {
        Arc::new(
            Gguf::open(
                &models.join(format!("tiny-qwen3-{name}.gguf")),
                &OpenOptions::default(),
            )
            .expect("a model"),
        )
    };
    for name in [
        "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "Q3_K_M", "Q2_K", "IQ4_XS", "IQ2_XS",
    ] {
        let (exact, coarse) = (open("F32"), open(name));
        let c = run(
            &mut backend(&exact, Isa::best(), KvType::F32),
            &mut backend(&coarse, Isa::best(), KvType::F32),
        );
        let (part, tap) = worst(&c);
        let logits = c.logits.as_ref().expect("logits");
        println!(
            "{name}: worst {part:.3} of the bound at {tap}; NMSE {:.2e}, KL {:.2e}",
            logits.nmse, logits.mean_kl
        );
        assert_eq!(
            c.verdict,
            Verdict::Within,
            "{name}: {:?}",
            c.first_divergence
        );
    }
}

#[test]
fn models_of_another_shape_are_refused() {
    let (a, b) = (open(DEMO), open("rnd-llama-Q4_K_M"));
    let (mut a, mut b) = (
        backend(&a, Isa::best(), KvType::F32),
        backend(&b, Isa::best(), KvType::F32),
    );
    let error = compare(&mut a, &mut b, (&TOKENS[..]).into(), &mut |_, _| {})
        .expect_err("they differ")
        .to_string();
    assert_eq!(
        error,
        "architecture: qwen3 in the first, llama in the second: expected the same"
    );
}

/// Returns the tensors of a loaded model's pass as arrays of another program.
fn recorded(engine: &Engine) -> Vec<RecordedTensor> {
    let mut all: Vec<RecordedTensor> = Vec::new();
    let mut take = |view: &octavo_engine::backend::TapView<'_>| {
        if !view.tap.is_named() {
            return;
        }
        let name = octavo_model::taps::numbered(view.tap, view.tap.nth);
        match all.iter_mut().find(|array| array.name == name) {
            Some(array) => array.data.extend_from_slice(view.data),
            None => all.push(RecordedTensor {
                name,
                width: view.width,
                data: view.data.to_vec(),
            }),
        }
    };
    engine.run_with_taps(&TOKENS, &mut take).expect("it runs");
    all
}

#[test]
fn arrays_of_another_program_are_compared_with_a_loaded_model() {
    let options = EngineOptions {
        threads: Some(2),
        // several steps for the text
        batch: Some(8),
        ..EngineOptions::default()
    };
    let engine = Engine::load(&ModelSource::Demo, &options, &mut |_| {}).expect("it loads");
    let mut own = EngineExecution::new(&engine, &options).expect("its instruction set is there");
    let mut arrays = recorded(&engine);
    let theirs = |arrays: &[RecordedTensor]| {
        RecordedExecution::new("arrays", &engine, arrays.to_vec()).expect("its tensors are known")
    };
    let whole = run(&mut own, &mut theirs(&arrays));
    assert_eq!(whole.verdict, Verdict::Identical);
    assert_eq!((whole.taps.len(), whole.absent.len()), (arrays.len(), 0));
    let some = run(&mut own, &mut theirs(&arrays[3..5]));
    assert_eq!((some.verdict, some.taps.len()), (Verdict::Identical, 2));
    assert_eq!(some.absent.len(), arrays.len() - 2);
    let at = arrays
        .iter()
        .position(|array| array.name == "ffn_out-1")
        .expect("it is there");
    let width = arrays[at].width;
    arrays[at].data[4 * width + 7] += 1.0;
    let wrong = run(&mut own, &mut theirs(&arrays));
    let first = wrong.first_divergence.expect("it diverges");
    assert_eq!(
        (&*first.name, first.position, first.channel),
        ("ffn_out-1", 4, 7)
    );
    arrays[0].name = "nothing-0".to_owned();
    let unknown = RecordedExecution::new("arrays", &engine, arrays);
    assert!(matches!(unknown, Err(Error::NoTap { name, .. }) if name == "nothing-0"));
    let none = RecordedExecution::new("arrays", &engine, Vec::new());
    assert!(matches!(none, Err(Error::NoTensors { .. })));
}
