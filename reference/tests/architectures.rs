//! Compares the oracle on small models of every architecture it implements with stock llama.cpp:
//! logits of the exact dequantization, and the names of the graph's nodes in order.

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_fixtures as fixtures;
use octavo_reference::golden::{Embedded, Full};
use octavo_reference::{Oracle, metrics};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Context length the goldens were made with: it selects phi3's factors.
const N_CTX: usize = 2048;

/// Tolerance for llama.cpp's exact dequantization in f32: above it, the model differs.
const F32_ROUNDING: f64 = 1e-9;

/// Tolerance with GELU, which llama.cpp reads from a table of f16, unlike the oracle.
const F16_GELU: f64 = 1e-6;

/// Names of models, and the tolerance of each.
const MODELS: &[(&str, f64)] = &[
    ("smollm3", F32_ROUNDING),
    ("granite", F32_ROUNDING),
    ("olmo2", F32_ROUNDING),
    ("glm4", F32_ROUNDING),
    ("phi3", F32_ROUNDING),
    ("phi4", F32_ROUNDING),
    ("gemma", F16_GELU),
    ("seed_oss", F32_ROUNDING),
    ("ernie4_5", F32_ROUNDING),
    ("mistral3", F32_ROUNDING),
    ("minicpm", F32_ROUNDING),
    ("hunyuan-dense", F32_ROUNDING),
    ("starcoder2", F16_GELU),
    ("nemotron", F32_ROUNDING),
    ("falcon", F16_GELU),
    ("phi2", F16_GELU),
    ("command-r", F32_ROUNDING),
    ("gemma2", F16_GELU),
    ("gemma3", F16_GELU),
    ("gemma4", F16_GELU),
    ("cohere2", F32_ROUNDING),
    ("exaone4", F32_ROUNDING),
    ("mixtral", F32_ROUNDING),
    ("qwen3moe", F32_ROUNDING),
    ("qwen2moe", F32_ROUNDING),
    ("lfm2", F32_ROUNDING),
    ("lfm2moe", F32_ROUNDING),
    ("mamba2", F32_ROUNDING),
    ("falcon-h1", F32_ROUNDING),
    ("granitehybrid", F32_ROUNDING),
    ("qwen35", F32_ROUNDING),
    ("qwen35moe", F32_ROUNDING),
    ("qwen3next", F32_ROUNDING),
    ("granitemoe", F32_ROUNDING),
    ("glm4moe", F32_ROUNDING),
    ("deepseek2", F32_ROUNDING),
    ("deepseek2-lite", F32_ROUNDING),
    ("ernie4_5-moe", F32_ROUNDING),
    ("gpt-oss", F32_ROUNDING),
];

/// The same of the second wave, whose folder has one file of some models.
const SECOND_MODELS: &[(&str, f64)] = &[
    ("nemotron_h", F32_ROUNDING),
    ("nemotron_h_moe", F32_ROUNDING),
    ("minimax-m2", F32_ROUNDING),
    ("olmoe", F32_ROUNDING),
    ("mistral4", F32_ROUNDING),
    ("deepseek32", F32_ROUNDING),
    ("glm-dsa", F32_ROUNDING),
    ("bailingmoe2", F32_ROUNDING),
    ("hunyuan-moe", F32_ROUNDING),
    ("dots1", F32_ROUNDING),
    ("exaone-moe", F32_ROUNDING),
    ("deepseek", F32_ROUNDING),
    ("internlm2", F32_ROUNDING),
    ("exaone", F32_ROUNDING),
    ("arcee", F32_ROUNDING),
    ("chatglm", F32_ROUNDING),
    ("afmoe", F32_ROUNDING),
    ("kimi-linear", F32_ROUNDING),
    ("granite_swa", F32_ROUNDING),
    ("phimoe", F32_ROUNDING),
    ("gptneox", F16_GELU),
    ("stablelm", F32_ROUNDING),
    ("gpt2", F16_GELU),
    ("olmo", F32_ROUNDING),
    ("baichuan", F32_ROUNDING),
    ("mimo2", F32_ROUNDING),
    ("step35", F32_ROUNDING),
    ("llama4", F32_ROUNDING),
    ("smallthinker", F32_ROUNDING),
    ("apertus", F32_ROUNDING),
    ("bitnet", F32_ROUNDING),
    ("bloom", F16_GELU),
    ("mpt", F16_GELU),
    ("mamba", F32_ROUNDING),
    ("jamba", F32_ROUNDING),
    ("plamo2", F32_ROUNDING),
    ("rwkv7", F32_ROUNDING),
];

fn open(path: &Path) -> Gguf {
    Gguf::open(path, &OpenOptions::default()).unwrap()
}

/// Returns the files in a folder with this extension, in order.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    files
}

/// Returns the files of a model, without their extension: one of F32, one quantized.
fn variants(arch: &Path, name: &str) -> Vec<String> {
    let stems = files(&arch.join("models"), "gguf").into_iter();
    let stems = stems.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    stems
        .filter(|stem| stem.rsplit_once('-').is_some_and(|(of, _)| of == name))
        .collect()
}

#[test]
fn logits_agree_with_llama_cpp() {
    for (folder, models, files) in [("arch", MODELS, 2..=2), ("arch2", SECOND_MODELS, 1..=2)] {
        let Some(folder) = fixtures::shared(folder) else {
            return;
        };
        for (name, bound) in models {
            let variants = variants(&folder, name);
            assert!(files.contains(&variants.len()), "{name}: {variants:?}");
            for variant in variants {
                agrees(&folder, &variant, *bound);
            }
        }
    }
}

fn agrees(folder: &Path, variant: &str, bound: f64) {
    let gguf = open(&folder.join("models").join(format!("{variant}.gguf")));
    let oracle = Oracle::open_for(&gguf, Some(N_CTX)).unwrap();
    let goldens = files(&folder.join("goldens").join(variant), "safetensors");
    assert!(goldens.len() >= 2, "{variant}: {goldens:?}");
    let mut worst = 0.0;
    for path in goldens {
        let golden = Full::read(&path).unwrap();
        let logits = oracle.forward(&golden.tokens).unwrap();
        let error = metrics::nmse(&logits, &golden.exact).unwrap();
        assert!(error <= bound, "{}: NMSE {error:e}", path.display());
        worst = error.max(worst);
    }
    println!("{variant}: NMSE {worst:.1e}");
}

/// Names of embedding models, and the tolerance of each.
const EMBEDDING_MODELS: &[(&str, f64)] = &[
    ("bert", F16_GELU),
    ("nomic-bert", F32_ROUNDING),
    ("gemma-embedding", F16_GELU),
    ("qwen3-embedding", F32_ROUNDING),
];

/// More embedding models, of one type or two.
const MORE_EMBEDDING_MODELS: &[(&str, f64)] = &[
    ("bge-m3", F16_GELU),
    ("e5", F16_GELU),
    ("roberta", F16_GELU),
    ("jina-bert-v3", F16_GELU),
    ("modern-bert", F16_GELU),
    ("eurobert", F32_ROUNDING),
    ("neo-bert", F32_ROUNDING),
];

/// Names of the last vectors.
const RESULTS: [&str; 4] = [
    "result_norm",
    "result_embd",
    "result_embd_pooled",
    "final_norm_out",
];

/// Returns the rows of a model's last vectors.
fn vectors(oracle: &Oracle<'_>, tokens: &[u32]) -> Vec<f64> {
    let mut rows = Vec::new();
    oracle
        .forward_tapped(tokens, &mut |name, _, _, x| {
            if RESULTS.contains(&name) {
                rows = x.to_vec();
            }
        })
        .unwrap();
    rows
}

/// Pools the rows as the file says.
fn pooled(gguf: &Gguf, rows: &[f64], width: usize) -> Vec<f64> {
    let architecture = gguf.str("general.architecture").unwrap().unwrap();
    match gguf.u32(&format!("{architecture}.pooling_type")).unwrap() {
        Some(1) => {
            let n = (rows.len() / width) as f64;
            let column = |i: usize| rows[i..].iter().step_by(width).sum::<f64>() / n;
            (0..width).map(column).collect()
        }
        Some(2) => rows[..width].to_vec(),
        Some(3) => rows[rows.len() - width..].to_vec(),
        other => panic!("pooling {other:?}"),
    }
}

#[test]
fn vectors_agree_with_llama_cpp() {
    if let Some(arch) = fixtures::shared("arch") {
        vectors_agree(&arch, EMBEDDING_MODELS, N_CTX);
    }
    if let Some(more) = fixtures::shared("feat/embed") {
        vectors_agree(&more, MORE_EMBEDDING_MODELS, 64);
    }
}

/// Compares the vectors of the models in a folder, for a context of `n_ctx`.
fn vectors_agree(folder: &Path, models: &[(&str, f64)], n_ctx: usize) {
    for (name, bound) in models {
        let variants = variants(folder, name);
        assert!((1..=2).contains(&variants.len()), "{name}: {variants:?}");
        for variant in variants {
            let gguf = open(&folder.join("models").join(format!("{variant}.gguf")));
            let oracle = Oracle::open_for(&gguf, Some(n_ctx)).unwrap();
            let goldens = files(&folder.join("goldens").join(&variant), "safetensors");
            assert!(goldens.len() >= 2, "{variant}: {goldens:?}");
            let mut worst: f64 = 0.0;
            for path in goldens {
                let golden = Embedded::read(&path).unwrap();
                let rows = vectors(&oracle, &golden.tokens);
                let pooled = pooled(&gguf, &rows, golden.width);
                for (ours, exact) in [(&rows, &golden.exact_rows), (&pooled, &golden.exact_pooled)]
                {
                    let error = metrics::nmse(ours, exact).unwrap();
                    assert!(error <= *bound, "{}: NMSE {error:e}", path.display());
                    worst = error.max(worst);
                }
            }
            println!("{variant}: NMSE {worst:.1e}");
        }
    }
}

/// A named value: name, layer, number of values.
type Node = (String, Option<usize>, usize);

/// llama.cpp's names inside its operations, where the oracle shows only the operation's result.
const INSIDE: &[&str] = &[
    "norm",
    "norm_w",
    "kq",
    "kq_scaled_1",
    "kq_tanh",
    "kq_scaled_2",
    "kq_soft_max",
    "kqv",
    "v_cont",
    // choices of keys in another order, and their scores
    "indexer_score",
    "top_k",
    "conv_states",
    "conv_input",
    // falcon-h1 applies a norm twice with the same weights
    "ssm_in",
    "ffn_moe_weights_sum",
    "ffn_moe_weights_sum_clamped",
    // gpt2 adds these to the embeddings of tokens
    "pos_embd",
    // copies of plamo2, and what includes its states
    "mamba_in_proj_out",
    "mamba_conv1d_input",
    "mamba_ssm_scan",
    // all rows, of which `result_norm` is the last
    "h_nextn",
];

/// Names llama.cpp has but the list lacks: the first because of its parentheses, the second and
/// third because they are reshaped views of unnamed nodes; and a name that llama.cpp lacks.
const UNLISTED: &[&str] = &[
    "ffn_sqr(relu)",
    "ffn_moe_weights_softmax",
    "ffn_moe_probs_masked",
    "selected_keys",
];

/// Tap of the chosen experts, whose number is not in the list.
const TOPK: &str = "ffn_moe_topk";

fn len(dims: &str) -> usize {
    dims.split('x')
        .map(|dim| dim.parse::<usize>().unwrap())
        .product()
}

/// Parses a line such as `Qcur-0 MUL_MAT 64x4` of the list, and translates it to the oracle's
/// names.
fn listed(model: &str, line: &str) -> Option<Node> {
    let mut words = line.split(' ');
    let (name, op, dims) = (words.next()?, words.next()?, words.next()?);
    let (name, layer) = match name.rsplit_once('-') {
        Some((name, layer)) => (name, Some(layer.parse().unwrap())),
        None => (name, None),
    };
    if (name, op) == ("inp_per_layer", "CONT") {
        return None; // the same in another order
    }
    let is_transform = op == "MUL_MAT" && dims.split('x').count() == 3;
    if matches!(name, "indexer_q" | "indexer_k") && is_transform {
        return None; // Hadamard transforms, which change no product
    }
    let name = match (name, op) {
        // the first line of some versions
        ("embd", _) | ("attn_norm_in", "GET_ROWS") => {
            return Some(("inp_embd".into(), None, len(dims)));
        }
        // step35 gives a layer's output the name of the next one's input
        ("attn_norm_in", _) => return Some(("l_out".into(), layer.map(|l| l - 1), len(dims))),
        ("h_nextn", "ADD") | ("ffn_residual", _) => "l_out",
        // selected rows of what jamba names, unlike other results, with its layers' recurrence
        ("ffn_inp", "GET_ROWS") if model == "jamba" => return None,
        // llama4 gives attention's result, or its selected rows, a norm's name
        ("ffn_norm", "MUL_MAT") => "attn_out",
        ("ffn_norm", "GET_ROWS") => return None,
        // all experts in order; the chosen ones are a view of it
        ("ffn_moe_argsort", _) => return Some((TOPK.into(), layer, 0)),
        (name, _) => name,
    };
    (!INSIDE.contains(&name)).then(|| (name.into(), layer, len(dims)))
}

/// Groups nodes by layer; those before the layers under `None`, those after under the number of
/// layers. A name without a layer belongs to the layer around it. Between layers that a list leaves
/// out, such nodes are dropped.
fn by_layer(nodes: Vec<Node>, n_layer: usize) -> BTreeMap<Option<usize>, Vec<Node>> {
    let mut layers: BTreeMap<Option<usize>, Vec<Node>> = BTreeMap::new();
    let mut current = Some(None);
    for node in nodes {
        if node.1.is_some() {
            current = Some(node.1);
        } else if node.0.starts_with("result_") {
            current = Some(Some(n_layer));
        }
        let ends = node.0 == "l_out";
        if let Some(layer) = current {
            layers.entry(layer).or_default().push(node);
        }
        if ends {
            current = None;
        }
    }
    layers
}

fn names(nodes: &[Node]) -> Vec<&str> {
    nodes.iter().map(|node| node.0.as_str()).collect()
}

#[test]
fn taps_have_llama_cpp_s_names_and_order() {
    for (folder, list, models) in [
        ("arch", "taps.json", MODELS),
        ("arch2", "taps2.json", SECOND_MODELS),
    ] {
        let Some(folder) = fixtures::shared(folder) else {
            return;
        };
        taps_agree(&folder, list, models);
    }
}

fn taps_agree(arch: &Path, list: &str, models: &[(&str, f64)]) {
    let lists = std::fs::read(arch.join(list)).unwrap();
    let lists: BTreeMap<String, Vec<String>> = serde_json::from_slice(&lists).unwrap();
    for (model, _) in models {
        let gguf = open(&arch.join("models").join(format!("{model}-F32.gguf")));
        let oracle = Oracle::open_for(&gguf, Some(N_CTX)).unwrap();
        let golden = arch
            .join("goldens")
            .join(format!("{model}-F32/sum.safetensors"));
        let tokens = Full::read(&golden).unwrap().tokens;
        let mut ours: Vec<Node> = Vec::new();
        oracle
            .forward_tapped(&tokens, &mut |name, layer, width, x| {
                assert_eq!(x.len(), tokens.len() * width, "{model}: {name}");
                if !UNLISTED.contains(&name) {
                    let len = if name == TOPK { 0 } else { x.len() };
                    ours.push((name.into(), layer, len));
                }
            })
            .unwrap();
        let layered: Vec<usize> = ours.iter().filter_map(|node| node.1).collect();
        assert!(layered.is_sorted(), "{model}: layers out of order");
        let n_layer = layered.last().unwrap() + 1;
        let theirs: Vec<Node> = lists[*model]
            .iter()
            .filter_map(|line| listed(model, line))
            .collect();
        let mut theirs = theirs;
        // gptneox names the result twice: the second time with the stream added
        theirs.dedup_by(|b, a| a == b && a.0 == "ffn_out");
        // products before and after the factor of their matrix
        let scaled: Vec<bool> = theirs
            .windows(2)
            .map(|two| two[1].0 == format!("{}_s", two[0].0))
            .collect();
        let mut scaled = scaled.into_iter();
        theirs.retain(|_| !scaled.next().unwrap_or(false));
        let (ours, theirs) = (by_layer(ours, n_layer), by_layer(theirs, n_layer));
        let last = *theirs.last_key_value().unwrap().0;
        for (layer, theirs) in &theirs {
            let mut ours = ours[layer].clone();
            if *layer == last {
                // lists end where llama.cpp's output was truncated
                ours.truncate(theirs.len());
            }
            assert_eq!(names(&ours), names(theirs), "{model}, layer {layer:?}");
            // in the last layer llama.cpp continues with the last position only
            if layer.is_none_or(|layer| layer + 1 < n_layer) {
                assert_eq!(&ours, theirs, "{model}, layer {layer:?}: sizes");
            }
        }
    }
}
