//! Injects faults into the oracle itself: each must change the numbers, otherwise the comparison
//! with llama.cpp proves nothing. Also tests the refusal of models.

use super::architecture::{Gating, QkNorm};
use super::*;
use crate::golden::{Embedded, Full};
use crate::metrics::nmse;
use gguf_rs_lite::OpenOptions;
use rope::RopePairs;

fn open(path: &str) -> Gguf {
    let path = octavo_fixtures::workspace_root()
        .join("reference")
        .join(path);
    Gguf::open(&path, &OpenOptions::default()).unwrap()
}

fn golden(path: &str) -> Full {
    Full::read(&octavo_fixtures::committed_goldens().join(path)).unwrap()
}

/// Returns the NMSE against llama.cpp's exact logits, with the fault that `plant` injects.
fn error_with(model: &str, golden_path: &str, plant: impl FnOnce(&mut Hparams)) -> f64 {
    let gguf = open(model);
    let mut oracle = Oracle::open(&gguf).unwrap();
    plant(&mut oracle.hparams);
    let golden = golden(golden_path);
    nmse(&oracle.forward(&golden.tokens).unwrap(), &golden.exact).unwrap()
}

const QWEN3: (&str, &str) = (
    "../src/engine/demo/tiny-qwen3-Q4_K_M.gguf",
    "tiny-qwen3-Q4_K_M/capital.safetensors",
);
const LLAMA: (&str, &str) = (
    "models/rnd-llama-Q4_K_M.gguf",
    "rnd-llama-Q4_K_M/capital.safetensors",
);

#[test]
fn a_wrong_rope_base_shows() {
    let error = error_with(QWEN3.0, QWEN3.1, |hp| hp.rope.base = 10_000.0);
    assert!(error > 1e-3, "NMSE {error:e}");
}

#[test]
fn the_wrong_rope_pairs_show() {
    let error = error_with(QWEN3.0, QWEN3.1, |hp| hp.rope.pairs = RopePairs::Adjacent);
    assert!(error > 1e-3, "NMSE {error:e}");
    let error = error_with(LLAMA.0, LLAMA.1, |hp| hp.rope.pairs = RopePairs::Halves);
    assert!(error > 1e-3, "NMSE {error:e}");
}

#[test]
fn a_skipped_query_and_key_norm_shows() {
    let error = error_with(QWEN3.0, QWEN3.1, |hp| hp.qk_norm = QkNorm::None);
    assert!(error > 1e-3, "NMSE {error:e}");
}

#[test]
fn skipped_rope_divisors_show() {
    // Only low frequencies are divided, and the prompt is short: a small error, but far above a
    // correct pass.
    let error = error_with(LLAMA.0, LLAMA.1, |hp| hp.rope.divisors.fill(1.0));
    assert!(error > 1e-7, "NMSE {error:e}");
}

type Fault = fn(&mut Hparams);

fn without_windows(hp: &mut Hparams) {
    hp.layers.iter_mut().for_each(|layer| layer.window = None);
}

fn rotated_everywhere(hp: &mut Hparams) {
    hp.layers.iter_mut().for_each(|layer| layer.rotates = true);
}

/// Faults in features of some architectures.
const FAULTS: &[(&str, Fault)] = &[
    ("smollm3", rotated_everywhere),
    ("cohere2", rotated_everywhere),
    ("cohere2", without_windows),
    ("exaone4", rotated_everywhere),
    ("gpt-oss", without_windows),
    ("gemma2", without_windows),
    ("gemma2", |hp| hp.score_cap = None),
    ("gemma2", |hp| hp.logit_cap = None),
    ("gemma3", |hp| hp.window_rope.base = hp.rope.base),
    ("gemma4", |hp| hp.score_scale = 0.25),
    ("gemma4", |hp| hp.window_rope.base = hp.rope.base),
    ("gemma4", |hp| hp.rope.divisors.fill(1.0)),
    ("gemma4", |hp| hp.layers[4].kv_from = Some(0)),
    ("deepseek2", |hp| hp.score_scale = 24f64.powf(-0.5)),
    ("deepseek2", |hp| hp.rope.magnitude = 1.14),
    ("deepseek2", |hp| routing(hp).groups = None),
    ("deepseek2-lite", |hp| hp.rope.pairs = RopePairs::Halves),
    ("qwen35", |hp| hp.norm_eps = 1e-2),
    ("qwen35", |hp| hp.rope.divisors.fill(f64::INFINITY)),
    ("qwen35moe", |hp| routing(hp).normed = false),
    ("lfm2", |hp| hp.norm_eps = 1e-1),
    ("lfm2moe", |hp| routing(hp).gating = Gating::Softmax),
    ("falcon-h1", |hp| hp.rope.base = 10_000.0),
    ("granitehybrid", rotated_everywhere),
    ("granitehybrid", |hp| hp.factors.residual = 1.0),
    ("gemma", |hp| hp.factors.embedding = 1.0),
    ("granite", |hp| hp.factors.residual = 1.0),
    ("granite", |hp| hp.score_scale = 0.25),
    ("command-r", |hp| hp.factors.logits = 1.0),
    ("minicpm", |hp| hp.factors.residual = 0.5),
    ("mistral3", |hp| hp.temperature = None),
    ("mistral3", |hp| hp.rope.magnitude *= 1.1),
    ("hunyuan-dense", |hp| hp.qk_norm = QkNorm::Head),
    ("phi3", |hp| hp.rope.divisors.fill(1.0)),
    ("qwen2moe", |hp| routing(hp).normed = true),
    ("qwen3moe", |hp| routing(hp).normed = false),
    ("mixtral", |hp| routing(hp).gating = Gating::Sigmoid),
    ("glm4moe", |hp| routing(hp).scale = 1.0),
];

fn routing(hp: &mut Hparams) -> &mut hparams::Routing {
    hp.routing.as_mut().unwrap()
}

#[test]
fn wrong_facts_show() {
    let Some(arch) = octavo_fixtures::shared("arch") else {
        return;
    };
    for (index, (model, plant)) in FAULTS.iter().enumerate() {
        let path = arch.join(format!("models/{model}-F32.gguf"));
        let gguf = Gguf::open(&path, &OpenOptions::default()).unwrap();
        let mut oracle = Oracle::open(&gguf).unwrap();
        plant(&mut oracle.hparams);
        let golden = arch.join(format!("goldens/{model}-F32/fox.safetensors"));
        let golden = Full::read(&golden).unwrap();
        let logits = oracle.forward(&golden.tokens).unwrap();
        let error = nmse(&logits, &golden.exact).unwrap();
        assert!(error > 1e-4, "fault {index}, {model}: NMSE {error:e}");
    }
}

/// Faults in embedding models.
const ROW_FAULTS: &[(&str, Fault)] = &[
    ("bert-F32", rotated_everywhere),
    ("bert-F32", |hp| hp.norm_eps = 1e-1),
    ("nomic-bert-F32", |hp| hp.rope.base = 500.0),
    ("gemma-embedding-F32", without_windows),
    ("gemma-embedding-F32", |hp| {
        hp.layers
            .iter_mut()
            .for_each(|layer| layer.window = layer.window.map(|window| window + 2));
    }),
    ("gemma-embedding-Q8_0", |hp| rows(hp).dense = None),
];

fn rows(hp: &mut Hparams) -> &mut Rows {
    hp.rows.as_mut().unwrap()
}

#[test]
fn wrong_facts_show_in_rows() {
    let Some(arch) = octavo_fixtures::shared("arch") else {
        return;
    };
    for (index, (model, plant)) in ROW_FAULTS.iter().enumerate() {
        let path = arch.join(format!("models/{model}.gguf"));
        let gguf = Gguf::open(&path, &OpenOptions::default()).unwrap();
        let mut oracle = Oracle::open(&gguf).unwrap();
        plant(&mut oracle.hparams);
        let golden = arch.join(format!("goldens/{model}/fox.safetensors"));
        let golden = Embedded::read(&golden).unwrap();
        let rows = oracle.forward(&golden.tokens).unwrap();
        let error = nmse(&rows, &golden.exact_rows).unwrap();
        assert!(error > 1e-4, "fault {index}, {model}: NMSE {error:e}");
    }
}

#[test]
fn a_position_without_an_embedding_is_named() {
    let Some(path) = octavo_fixtures::shared("arch/models/bert-F32.gguf") else {
        return;
    };
    let gguf = Gguf::open(&path, &OpenOptions::default()).unwrap();
    let oracle = Oracle::open(&gguf).unwrap();
    assert_eq!(oracle.forward(&[7; 512]).unwrap().len(), 512 * 64);
    let message = oracle.forward(&[7; 513]).unwrap_err().to_string();
    assert!(message.contains("at most 512 tokens"), "{message}");
}

#[test]
fn no_tokens_give_no_logits_and_a_wrong_token_is_named() {
    let gguf = open(QWEN3.0);
    let oracle = Oracle::open(&gguf).unwrap();
    assert!(oracle.forward(&[]).unwrap().is_empty());
    let message = oracle.forward(&[5, 1024]).unwrap_err().to_string();
    assert_eq!(message, "token 1: expected an id below 1024, got 1024");
}

/// The order is llama.cpp's: that of `llama-eval-callback -p 1+1= -fa off` for a layer of a qwen3
/// model, without views, reshapes, cache writes, the norms before their weight (`norm-L`) and the
/// steps inside attention. (Its first line is `embd` in some versions and `inp_embd` in others.)
#[test]
fn taps_come_in_the_order_of_the_graph() {
    let gguf = open(QWEN3.0);
    let oracle = Oracle::open(&gguf).unwrap();
    let mut seen = Vec::new();
    let logits = oracle.forward_tapped(&[5, 6], &mut |name, layer, width, x| {
        assert_eq!(x.len(), 2 * width, "{name}");
        seen.push((name.to_string(), layer, width));
    });
    assert_eq!(logits.unwrap().len(), 2 * 1024);
    let layer = [
        ("attn_norm", 256),
        ("Qcur", 256),
        ("Qcur_normed", 256),
        ("Qcur", 256),
        ("Vcur", 128),
        ("Kcur", 128),
        ("Kcur_normed", 128),
        ("Kcur", 128),
        ("kqv_out", 256),
        ("ffn_inp", 256),
        ("ffn_norm", 256),
        ("ffn_gate", 512),
        ("ffn_up", 512),
        ("ffn_swiglu", 512),
        ("ffn_out", 256),
        ("l_out", 256),
    ];
    let mut expected = vec![("inp_embd".to_string(), None, 256)];
    for il in 0..4 {
        expected.extend(layer.map(|(name, width)| (name.to_string(), Some(il), width)));
    }
    expected.push(("result_norm".into(), None, 256));
    expected.push(("result_output".into(), None, 1024));
    assert_eq!(seen, expected);
}

/// The `sum =` lines of `llama-eval-callback -p 1+1= -fa off -ctk f32 -ctv f32 --no-repack -t 1` on
/// the F32 models equal the sums of these taps: a name means the same tensor as in llama.cpp.
/// (After attention in the last layer, 2, llama.cpp keeps only the last position, so nothing is
/// compared there.)
#[test]
fn taps_hold_what_llama_cpp_calls_by_that_name() {
    let Some(shared) = octavo_fixtures::shared_dir() else {
        return;
    };
    for (model, sums) in EVAL_CALLBACK_SUMS {
        let gguf = Gguf::open(&shared.join("models").join(model), &OpenOptions::default()).unwrap();
        let oracle = Oracle::open(&gguf).unwrap();
        // all these models share a tokenizer
        let tokens = golden("tiny-qwen3-Q4_K_M/sum.safetensors").tokens;
        let mut taps = Vec::new();
        oracle
            .forward_tapped(&tokens, &mut |name, layer, _, x| {
                let scale = x.iter().map(|x| x.abs()).sum::<f64>();
                taps.push((name.to_string(), layer, x.iter().sum::<f64>(), scale));
            })
            .unwrap();
        for (name, layer, nth, expected) in *sums {
            let mut same = taps
                .iter()
                .filter(|tap| tap.0 == *name && tap.1 == Some(*layer));
            let (_, _, sum, scale) = same.nth(*nth).unwrap();
            // llama.cpp sums in f32, one value after another, and prints six decimals.
            let bound = 1e-5 * scale + 1e-6;
            assert!(
                (sum - expected).abs() < bound,
                "{model} {name}-{layer} #{nth}: expected {expected}, got {sum}"
            );
        }
    }
}

type Sums = &'static [(&'static str, usize, usize, f64)];
const EVAL_CALLBACK_SUMS: &[(&str, Sums)] = &[
    (
        "rnd-llama-F32.gguf",
        &[
            ("Qcur", 0, 0, -21.351168), // product
            ("Qcur", 0, 1, -4.759863),  // rotation
            ("Vcur", 0, 0, 5.706016),
            ("Kcur", 0, 1, 15.147392),
            ("kqv_out", 0, 0, -32.731915),
            ("attn_out", 0, 0, 11.920181),
            ("ffn_inp", 0, 0, 21.591736),
            ("ffn_swiglu", 0, 0, -62.278267),
            ("l_out", 0, 0, 45.770889),
            ("l_out", 1, 0, -43.341267),
            ("kqv_out", 2, 0, -123.149513),
        ],
    ),
    (
        "rnd-qwen2-F32.gguf",
        &[
            ("Qcur", 0, 0, -75.395737),  // product
            ("Qcur", 0, 1, -100.911835), // bias
            ("Qcur", 0, 2, -97.382614),  // rotation
            ("Vcur", 0, 1, -20.497721),
            ("Kcur", 0, 2, -7.126744),
            ("kqv_out", 0, 0, -100.064415),
            ("ffn_inp", 0, 0, 64.140076),
            ("l_out", 1, 0, 26.497728),
        ],
    ),
    (
        "rnd-qwen3-F32.gguf",
        &[
            ("Qcur", 0, 0, 137.441010), // product
            ("Qcur_normed", 0, 0, 74.101028),
            ("Qcur", 0, 1, 122.005989), // rotation
            ("l_out", 1, 0, 128.470520),
            ("Kcur", 2, 1, -2.204028),
            ("kqv_out", 2, 0, -173.402740),
        ],
    ),
];

#[test]
fn a_tensor_that_would_be_ignored_is_refused() {
    let gguf = open(QWEN3.0);
    let mut oracle = Oracle::open(&gguf).unwrap();
    oracle.hparams.qk_norm = QkNorm::None;
    let message = oracle.check_tensors().unwrap_err().to_string();
    assert!(
        message.contains("attn_k_norm.weight") || message.contains("attn_q_norm.weight"),
        "{message}"
    );
    oracle.hparams.qk_norm = QkNorm::Head;
    oracle.hparams.layers.pop();
    assert!(matches!(
        oracle.check_tensors(),
        Err(Error::UnusedTensor { .. })
    ));
    oracle.hparams.layers[0].n_ff = 513;
    let message = oracle.check_tensors().unwrap_err().to_string();
    assert!(
        message.contains("expected dims [256, 513], got [256, 512]"),
        "{message}"
    );
}

#[test]
fn the_demo_model_continues_one_plus_one_with_two() {
    let gguf = open(QWEN3.0);
    let oracle = Oracle::open(&gguf).unwrap();
    let piece = |text: &[u8]| {
        let pieces = gguf.array("tokenizer.ggml.tokens").unwrap().unwrap();
        pieces.strings().unwrap().position(|p| p == text).unwrap() as u32
    };
    let logits = oracle
        .forward(&[piece(b"1"), piece(b"+"), piece(b"1"), piece(b"=")])
        .unwrap();
    let last = &logits[3 * oracle.n_vocab()..];
    assert_eq!(crate::metrics::top_k(last, 1), [piece(b"2")]);
}
