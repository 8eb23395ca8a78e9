//! Making AWQ folders: searched scales have less error than plain rounding.

use super::*;
use gguf_rs_lite::Writer;
use octavo_analysis::awq::{Activations, Error, Options, quantized};
use octavo_reference::metrics::kl;

/// Returns text of the kind that the demo model was trained on, without repetition.
fn text(seed: u32, sentences: usize) -> String {
    let animals = ["fox", "dog", "cat", "bird", "frog", "horse"];
    let colours = ["red", "blue", "small", "old", "white"];
    let things = [
        "some honey",
        "a carrot",
        "the tree",
        "a red ball",
        "the river",
    ];
    let mut state = seed;
    let mut pick = |n: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize % n
    };
    let mut all = String::new();
    for _ in 0..sentences {
        let (animal, colour, thing) = (animals[pick(6)], colours[pick(5)], things[pick(5)]);
        let (a, b) = (pick(10), pick(10));
        all += &format!(
            "Once there was a {colour} {animal}. One day the {animal} found {thing}.\n{a}+{b}={}\n",
            a + b
        );
    }
    all
}

fn base(dir: &TempDir) -> (PathBuf, Engine) {
    let path = dir.path().join("f16");
    hf::write(
        &with_matrices(&open(&models()[0]), dir, TensorType::F16),
        &path,
    )
    .expect("written");
    let engine = load(&path, Isa::Scalar, true);
    (path, engine)
}

#[test]
fn searched_scales_cost_less_than_rounding() {
    let dir = TempDir::new().expect("a folder");
    let (_, base) = base(&dir);
    let activations =
        Activations::of_text(&base, text(1, 30).as_bytes(), 600, &mut |_, _| {}).expect("inputs");
    let tokens = base
        .tokenizer()
        .encode(text(2, 12).as_bytes(), EncodeOptions::PIECE)
        .expect("tokens");
    let exact = logits(&base, &tokens, Phase::Prefill);
    let n_vocab = base.hparams().n_vocab();
    let cost = |name: &str, activations: Option<&Activations>, threads: usize| {
        let mut improved = 0;
        let options = Options {
            group: 128,
            threads,
        };
        let view = quantized(&base, activations, options, &mut |scaled| {
            assert!(scaled.error <= scaled.unscaled, "{scaled:?}");
            improved += usize::from(scaled.error < scaled.unscaled);
        });
        let path = dir.path().join(name);
        hf::write(&view.expect("quantized"), &path).expect("written");
        let ours = logits(&load(&path, Isa::Scalar, true), &tokens, Phase::Prefill);
        let bytes = std::fs::read(path.join("model.safetensors")).expect("there");
        (
            kl(&ours, &exact, n_vocab).expect("as many logits").mean,
            improved,
            bytes,
        )
    };
    let (rounded, searched) = (
        cost("rounded", None, 2),
        cost("searched", Some(&activations), 2),
    );
    println!(
        "mean KL {:.5} rounded, {:.5} searched, {} groups improved",
        rounded.0, searched.0, searched.1
    );
    assert!(
        searched.0 < 0.9 * rounded.0,
        "KL {} searched, {} rounded",
        searched.0,
        rounded.0
    );
    assert!(rounded.1 == 0 && searched.1 >= 8, "of 12 groups");
    assert!(
        searched.2 == cost("again", Some(&activations), 1).2,
        "threads leave no trace"
    );
}

/// Without rounding, scales change nothing but the last digits: the divisors cancel the factors.
#[test]
fn scales_cancel() {
    let dir = TempDir::new().expect("a folder");
    let (_, base) = base(&dir);
    let activations =
        Activations::of_text(&base, text(1, 20).as_bytes(), 400, &mut |_, _| {}).expect("inputs");
    let options = Options {
        group: 32,
        threads: 2,
    };
    let [plain, scaled] = [None, Some(&activations)]
        .map(|a| quantized(&base, a, options, &mut |_| {}).expect("quantized"));
    let mut moved = 0;
    for l in 0..base.hparams().n_layer() {
        for (norm, matrix) in [("attn_norm", "attn_k"), ("ffn_norm", "ffn_gate")] {
            let values = |gguf: &Gguf, name: &str| {
                let t = gguf
                    .tensor(&format!("blk.{l}.{name}.weight"))
                    .expect("there");
                let mut values = vec![0.0; t.n_elements() as usize];
                octavo_quant::dequantize(t.ty, gguf.data(t), &mut values).expect("whole blocks");
                values
            };
            let [a, b] = [&plain, &scaled].map(|gguf| (values(gguf, norm), values(gguf, matrix)));
            moved += usize::from(a.0 != b.0);
            // a column times its norm is the same, but for rounding to sixteen steps of a group
            let width = a.0.len();
            let product = |(norm, w): &(Vec<f32>, Vec<f32>)| -> Vec<f32> {
                w.chunks_exact(width)
                    .flat_map(|row| row.iter().zip(norm).map(|(w, n)| w * n))
                    .collect()
            };
            let error = nmse(&product(&b), &product(&a)).expect("as many");
            assert!(error < 0.02, "layer {l} {matrix}: NMSE {error}");
        }
    }
    assert!(moved > 0, "some scales are not 1");
}

/// Makes the model with the rows of Q, K and V in one tensor.
fn fused(model: &Gguf, path: &Path) {
    let mut writer = Writer::new();
    for (key, value) in model.keys() {
        writer.set(key, value);
    }
    for t in model.tensors() {
        let three = |part: &str| {
            let of = |name: &str| {
                model
                    .tensor(&t.name.replace(part, name))
                    .expect("all three")
            };
            ["attn_q.", "attn_k.", "attn_v."].map(of)
        };
        if t.name.contains("attn_q.") {
            let parts = three("attn_q.");
            let mut dims = t.dims.clone();
            *dims.last_mut().expect("a dimension") =
                parts.iter().filter_map(|p| p.dims.last()).sum();
            let data: Vec<u8> = parts.iter().flat_map(|p| model.data(p).to_vec()).collect();
            writer.tensor(&t.name.replace("attn_q.", "attn_qkv."), &dims, t.ty, data);
        } else if !t.name.contains("attn_k.") && !t.name.contains("attn_v.") {
            writer.tensor(&t.name, &t.dims, t.ty, model.data(t).to_vec());
        }
    }
    writer.write_file(path).expect("written");
}

#[test]
fn fused_queries_keys_and_values_come_apart() {
    for model in &models()[1..] {
        let dir = TempDir::new().expect("a folder");
        let plain = with_matrices(&open(model), &dir, TensorType::F16);
        let (apart, together) = (dir.path().join("apart"), dir.path().join("together.gguf"));
        hf::write(&plain, &apart).expect("written");
        fused(&plain, &together);
        let made = [(&apart, "a"), (&together, "b")].map(|(path, name)| {
            let engine = load(path, Isa::Scalar, true);
            let activations =
                Activations::of_text(&engine, text(1, 20).as_bytes(), 300, &mut |_, _| {})
                    .expect("inputs");
            let options = Options {
                group: 32,
                threads: 2,
            };
            let mut scaled = 0;
            let view = quantized(&engine, Some(&activations), options, &mut |_| scaled += 1)
                .expect("quantized");
            let folder = dir.path().join(name);
            hf::write(&view, &folder).expect("written");
            (
                scaled,
                std::fs::read(folder.join("model.safetensors")).expect("there"),
            )
        });
        assert!(
            made[0] == made[1],
            "{}: {} and {} groups",
            model.display(),
            made[0].0,
            made[1].0
        );
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let dir = TempDir::new().expect("a folder");
    let (path, base) = base(&dir);
    let make =
        |group: usize| quantized(&base, None, Options { group, threads: 1 }, &mut |_| {}).map(drop);
    assert!(matches!(make(48), Err(Error::Group { got: 48 })));
    make(64).expect("fits");
    let short = Activations::of_text(&base, b"too short", 1000, &mut |_, _| {}).map(drop);
    assert!(matches!(short, Err(Error::TooShort { .. })));
    let view = quantized(
        &base,
        None,
        Options {
            group: 128,
            threads: 1,
        },
        &mut |_| {},
    )
    .expect("fits");
    let error = hf::write(&view, &path)
        .expect_err("it is there")
        .to_string();
    assert!(error.contains("is there already"), "{error}");
}
