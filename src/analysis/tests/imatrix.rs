//! Importance matrices equal llama-imatrix's: same keys, names and counts, sums as close as its
//! arithmetic allows.

use std::path::Path;
use std::process::Command;

use gguf_rs_lite::{Gguf, OpenOptions, Writer};
use octavo_analysis::imatrix::{Collector, Error, Importance, Options};
use octavo_engine::{Engine, EngineOptions, ModelSource};
use octavo_fixtures::tiny::File;
use octavo_fixtures::{llama_cpp, shared};

fn engine(source: &ModelSource, ctx: usize) -> Engine {
    let options = EngineOptions {
        ctx: Some(ctx),
        threads: Some(2),
        ..EngineOptions::default()
    };
    Engine::load(source, &options, &mut |_| {}).unwrap()
}

fn floats(gguf: &Gguf, name: &str) -> Vec<f32> {
    let data = gguf.data(gguf.tensor(name).unwrap_or_else(|| panic!("{name}")));
    data.as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}

/// Returns the largest relative difference between two files with the same names and shapes.
fn largest_difference(ours: &Gguf, theirs: &Gguf) -> (f64, String) {
    let shape = |g: &Gguf| {
        g.tensors()
            .iter()
            .map(|t| (t.name.clone(), t.dims.clone(), t.ty))
            .collect::<Vec<_>>()
    };
    assert_eq!(shape(ours), shape(theirs), "{}", ours.name());
    let mut worst = (0.0, String::new());
    for t in ours.tensors() {
        for (i, (a, b)) in floats(ours, &t.name)
            .iter()
            .zip(floats(theirs, &t.name))
            .enumerate()
        {
            let relative = f64::from((a - b).abs()) / f64::from(b.abs()).max(1e-30);
            if relative > worst.0 {
                worst = (relative, format!("{} [{i}]: {a} and {b}", t.name));
            }
        }
    }
    worst
}

/// Returns two thousand characters without a final newline, which `-f` would drop.
fn prose() -> Vec<u8> {
    let words = [
        "bread", "the", " is", " cut", " into", " thin", " slices", "; ", "ask 7",
    ];
    let mut text = Vec::new();
    for i in 0usize.. {
        text.extend(words[(i * i + i / 7) % words.len()].as_bytes());
        if text.len() >= 2000 {
            break;
        }
    }
    text
}

/// Options to collect the inputs of the layers' matrices on eight chunks of 64 tokens.
const LAYERS_ONLY: Options = Options {
    chunk: 64,
    max_chunks: Some(8),
    output: false,
};

/// Runs the text through the model in chunks of 64 and writes the importance matrix.
fn collected(model: &Path, text: &[u8], out: &Path) {
    let output = true;
    collected_with(
        model,
        text,
        out,
        Options {
            output,
            ..LAYERS_ONLY
        },
    );
}

/// Does the same without `output.weight`.
fn collected_without_output(model: &Path, text: &[u8], out: &Path) {
    collected_with(model, text, out, LAYERS_ONLY);
}

fn collected_with(model: &Path, text: &[u8], out: &Path, options: Options) {
    let engine = engine(&ModelSource::Path(model.to_owned()), 64);
    let mut collector = Collector::new(&engine, options).unwrap();
    for chunk in collector.tokens(text).unwrap().chunks(64) {
        collector.add(chunk).unwrap();
    }
    collector.write(out, "text.txt").unwrap();
}

/// MoE models, and models with parallel blocks or fused tensors: the same entries, the same counts
/// for every expert. llama.cpp's GELU rounds its inputs and outputs to f16, 2^-11 each, which the
/// squares double.
#[test]
fn matrices_of_many_architectures_are_those_of_llama_imatrix() {
    let (Some(program), Some(models)) = (llama_cpp("llama-imatrix"), shared("arch/models")) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("text.txt"), prose()).unwrap();
    let mixtures = [
        "qwen3moe",
        "gpt-oss",
        "glm4moe",
        "qwen2moe",
        "mixtral",
        "ernie4_5-moe",
    ];
    for name in mixtures
        .into_iter()
        .chain(["falcon", "command-r", "phi3", "gemma2"])
        // models with inputs that have no name in llama.cpp, or a matrix for each head
        .chain([
            "mamba2",
            "falcon-h1",
            "lfm2",
            "qwen35",
            "qwen3next",
            "gemma4",
            "deepseek2",
        ])
    {
        let model = models.join(format!("{name}-F32.gguf"));
        let (mine, reference) = (file("ours.gguf"), file("theirs.gguf"));
        let output = Command::new(&program)
            .current_dir(folder.path())
            .args(["-f", "text.txt", "-c", "64", "--chunks", "8", "-t", "2"])
            .args(["--no-ppl", "--process-output", "-o", "theirs.gguf", "-m"])
            .arg(&model)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        collected(&model, &prose(), &mine);
        let open = |path| Gguf::open(path, &OpenOptions::default()).unwrap();
        let (ours, theirs) = (open(&mine), open(&reference));
        assert!(ours.keys().eq(theirs.keys()), "{name}");
        for t in ours
            .tensors()
            .iter()
            .filter(|t| t.name.ends_with(".counts"))
        {
            assert_eq!(
                floats(&ours, &t.name),
                floats(&theirs, &t.name),
                "{name} {}",
                t.name
            );
        }
        let worst = largest_difference(&ours, &theirs);
        println!(
            "{name}: largest relative difference {:e}: {}",
            worst.0, worst.1
        );
        assert!(
            worst.0 < 4.0 * 2f64.powi(-11),
            "{name} {}: {:e}",
            worst.1,
            worst.0
        );
    }
}

/// Every weight of a layer that multiplies a token's row has an entry: llama-imatrix's set. It
/// follows from the files: every two-dimensional tensor that is neither a norm of groups, nor a
/// convolution kernel, nor one number for each head. K and V projections of layers that share
/// another layer's KV are not multiplied.
#[test]
fn every_matrix_of_every_architecture_has_an_entry() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("i.gguf");
    let (mut seen, mut heads) = (0, 0);
    for entry in std::fs::read_dir(models).unwrap() {
        let model = entry.unwrap().path();
        let name = model.file_stem().unwrap().to_string_lossy().into_owned();
        let gguf = Gguf::open(&model, &OpenOptions::default()).unwrap();
        if !name.ends_with("-F32") || octavo_model::Arch::of_file(&gguf).is_err() {
            continue;
        }
        let hparams = octavo_model::Model::load(&gguf).unwrap().hparams;
        let shares = |tensor: &str| {
            let layer = tensor
                .split('.')
                .nth(1)
                .and_then(|l| l.parse::<usize>().ok());
            let layer = layer.filter(|l| *l < hparams.layers.len());
            let reads = layer.is_some_and(|l| hparams.layers[l].kv_layer != l);
            layer.is_none() || reads && ["attn_k.", "attn_v."].iter().any(|n| tensor.contains(n))
        };
        let no_matrix = ["norm", "conv1d", "shortconv.conv."];
        let of_heads = [".ssm_a", ".ssm_d", ".bias"];
        let mut expected: Vec<String> = gguf
            .tensors()
            .iter()
            .filter(|t| t.name.starts_with("blk.") && t.dims.len() > 1)
            .filter(|t| !no_matrix.iter().any(|part| t.name.contains(part)))
            .filter(|t| !of_heads.iter().any(|end| t.name.ends_with(end)) && !shares(&t.name))
            .map(|t| t.name.clone())
            .collect();
        // a gate is a vector by its dims, but used as a matrix of one row
        let gates = gguf.tensors().iter().map(|t| &t.name);
        let gates = gates.filter(|name| name.contains("ffn_gate_inp_shexp.weight"));
        expected.extend(gates.cloned());
        expected.sort();
        expected.dedup();
        collected_without_output(&model, &prose(), &out);
        let found = Importance::open(&out).unwrap();
        let mut names: Vec<&str> = found.names().collect();
        names.sort_unstable();
        assert_eq!(names, expected, "{name}");
        for tensor in &expected {
            // one number for each input of each matrix, including all matrices of a stack
            let dims = &gguf.tensor(tensor).unwrap().dims;
            let inputs = dims[0] * dims.get(2).copied().unwrap_or(1);
            let weights = found.weights(tensor).unwrap();
            assert_eq!(weights.len() as u64, inputs, "{name} {tensor}");
            assert!(weights.iter().any(|w| *w > 0.0), "{name} {tensor}");
            heads += usize::from(tensor.contains("attn_k_b") || tensor.contains("attn_v_b"));
        }
        seen += 1;
    }
    assert!(
        seen >= 42 && heads > 0,
        "{seen} models, {heads} matrices of heads"
    );
}

/// llama.cpp has no name for the input of `ssm_out`. The oracle's pass reveals it if the matrix is
/// all zeros except for a single 1: the first output is then a column of the input.
#[test]
fn inputs_without_a_name_have_the_sums_of_the_oracle() {
    const MATRIX: &str = "blk.0.ssm_out.weight";
    let Some(model) = shared("arch/models/mamba2-F32.gguf") else {
        return;
    };
    let gguf = Gguf::open(&model, &OpenOptions::default()).unwrap();
    let inner = gguf.tensor(MATRIX).unwrap().dims[0] as usize;
    let engine = engine(&ModelSource::Path(model), 64);
    let mut collector = Collector::new(&engine, LAYERS_ONLY).unwrap();
    let mut tokens = collector.tokens(&prose()).unwrap();
    tokens.truncate(64);
    collector.add(&tokens).unwrap();
    if let (true, Some(bos)) = (engine.tokenizer().add_bos(), engine.tokenizer().bos()) {
        tokens[0] = bos;
    }
    let mut means = collector.means();
    let means = means.find(|(name, _)| *name == MATRIX).unwrap().1;
    assert_eq!(means.len(), inner);
    for column in [0, 1, inner / 2, inner - 1] {
        let mut writer = Writer::new();
        gguf.keys().for_each(|(key, value)| {
            writer.set(key, value);
        });
        for t in gguf.tensors() {
            let mut data = gguf.data(t).to_vec();
            if t.name == MATRIX {
                data.fill(0);
                data[4 * column..4 * column + 4].copy_from_slice(&1f32.to_le_bytes());
            }
            writer.tensor(&t.name, &t.dims, t.ty, data);
        }
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes).unwrap();
        let changed = Gguf::from_bytes(bytes, "changed", &OpenOptions::default()).unwrap();
        let oracle = octavo_reference::Oracle::open(&changed).unwrap();
        let mut mean = None;
        let mut tap = |name: &str, layer: Option<usize>, width: usize, data: &mut [f64]| {
            if name == "mamba_out" && layer == Some(0) {
                let squares = data.chunks(width).map(|row| row[0] * row[0]);
                mean = Some(squares.sum::<f64>() / 64.0);
            }
        };
        oracle.forward_tapped(&tokens, &mut tap).unwrap();
        let (ours, exact) = (means[column], mean.expect("it has a result"));
        assert!(
            (ours - exact).abs() <= 1e-5 * exact,
            "{column}: {ours}, {exact}"
        );
    }
}

/// Every token is routed to two of four experts: counts and squares of all experts together are
/// twice those of the router, which has the same input and sees every token once.
#[test]
fn each_expert_has_sums_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (folder.path().join("m.gguf"), folder.path().join("i.gguf"));
    std::fs::write(&model, File::mixture().bytes()).unwrap();
    collected(&model, &prose(), &out);
    let found = Gguf::open(&out, &OpenOptions::default()).unwrap();
    for layer in 0..2 {
        let values = |part: &str| floats(&found, &format!("blk.{layer}.{part}"));
        let router = values("ffn_gate_inp.weight.in_sum2");
        assert_eq!(values("ffn_gate_inp.weight.counts"), [512.0]);
        for part in ["gate", "up", "down"] {
            let counts = values(&format!("ffn_{part}_exps.weight.counts"));
            assert_eq!(counts.len(), 4);
            assert_eq!(counts.iter().sum::<f32>(), 1024.0, "{counts:?}");
            assert!(counts.iter().any(|n| *n != 256.0), "{counts:?}");
        }
        for part in ["gate", "up"] {
            let sums = values(&format!("ffn_{part}_exps.weight.in_sum2"));
            for (column, of_router) in router.iter().enumerate() {
                let all: f32 = sums.iter().skip(column).step_by(router.len()).sum();
                assert!(
                    (all - 2.0 * of_router).abs() < 1e-5 * all,
                    "{part} {column}"
                );
            }
        }
    }
    let down = found.tensor("blk.1.ffn_down_exps.weight.in_sum2").unwrap();
    assert_eq!(down.dims, [96, 4]);
    let importance = Importance::open(&out).unwrap();
    assert_eq!(
        importance
            .weights("blk.1.ffn_down_exps.weight")
            .unwrap()
            .len(),
        4 * 96
    );
}

/// The shared matrix was made with
/// `llama-imatrix -m tiny-qwen3-f16.gguf -f calibration.txt -c 256 --chunks 20`.
///
/// llama.cpp rounds activations to f16 before multiplying them with f16 weights, an error of 2^-11
/// each; sums over thousands of squares computed from those may differ by twice that.
#[test]
fn the_shared_matrix_is_made_again() {
    let (Some(models), Some(text)) = (shared("models"), shared("text")) else {
        return;
    };
    let theirs = Gguf::open(
        &models.join("tiny-qwen3.imatrix.gguf"),
        &OpenOptions::default(),
    )
    .unwrap();
    let engine = engine(&ModelSource::Path(models.join("tiny-qwen3-f16.gguf")), 256);
    let options = Options {
        chunk: 256,
        max_chunks: Some(20),
        output: true,
    };
    let mut collector = Collector::new(&engine, options).unwrap();
    let text = std::fs::read(text.join("calibration.txt")).unwrap();
    for chunk in collector
        .tokens(text.strip_suffix(b"\n").unwrap_or(&text))
        .unwrap()
        .chunks(256)
    {
        collector.add(chunk).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ours.gguf");
    collector.write(&path, "calibration.txt").unwrap();
    let ours = Gguf::open(&path, &OpenOptions::default()).unwrap();

    assert!(ours.keys().eq(theirs.keys()));
    let worst = largest_difference(&ours, &theirs);
    println!("largest relative difference {:e}: {}", worst.0, worst.1);
    assert!(worst.0 < 2.0 * 2f64.powi(-11), "{}: {:e}", worst.1, worst.0);
    let importance = Importance::open(&path).unwrap();
    assert_eq!((importance.len(), importance.chunks()), (28, 20));
}

#[test]
fn chunks_add_up_whatever_the_batches() {
    let text: Vec<u8> = (0..4000u32)
        .map(|i| b"the quick brown fox. 0123456789\n"[(i * i % 32) as usize])
        .collect();
    let collect = |batch: usize, from: usize| {
        let options = EngineOptions {
            ctx: Some(64),
            threads: Some(2),
            batch: Some(batch),
            ..EngineOptions::default()
        };
        let engine = Engine::load(&ModelSource::Demo, &options, &mut |_| {}).unwrap();
        let mut collector = Collector::new(
            &engine,
            Options {
                chunk: 64,
                max_chunks: Some(3),
                output: false,
            },
        )
        .unwrap();
        let tokens = collector.tokens(&text).unwrap();
        assert_eq!(tokens.len(), 3 * 64);
        // in another order
        tokens
            .chunks(64)
            .cycle()
            .skip(from)
            .take(3)
            .for_each(|chunk| collector.add(chunk).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        collector.write(&path, "text").unwrap();
        Importance::open(&path).unwrap()
    };
    let (a, b) = (collect(512, 0), collect(17, 1));
    assert!(a.len() > 4, "{}", a.len());
    for layer in 0..4 {
        for matrix in ["attn_q", "attn_output", "ffn_up", "ffn_down"] {
            let name = format!("blk.{layer}.{matrix}.weight");
            let (x, y) = (a.weights(&name).unwrap(), b.weights(&name).unwrap());
            assert!(
                x.iter()
                    .zip(y)
                    .all(|(x, y)| (x - y).abs() <= 1e-6 * x.abs()),
                "{name}"
            );
        }
    }
}

#[test]
fn a_text_or_chunk_that_does_not_fit_is_refused() {
    let engine = engine(&ModelSource::Demo, 64);
    let with = |chunk| {
        Collector::new(
            &engine,
            Options {
                chunk,
                ..Options::default()
            },
        )
    };
    for chunk in [0, 1, 65] {
        assert!(
            matches!(with(chunk), Err(Error::Chunk { n_ctx: 64, .. })),
            "{chunk}"
        );
    }
    let error = with(64).unwrap().tokens(b"short").unwrap_err().to_string();
    assert!(
        error.ends_with("expected at least 128 (two chunks of 64)"),
        "{error}"
    );
    let collector = with(64).unwrap();
    assert_eq!((collector.chunks(), collector.matrices()), (0, 0));
    let folder = tempfile::tempdir().unwrap();
    assert!(
        collector
            .write(&folder.path().join("none").join("x.gguf"), "")
            .is_err()
    );
}
