//! Other uses of folders: they are quantized and measured like their files.

use super::*;
use crate::cli::{bad, good, json};

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary path is text")
}

/// A mixture, models with windows, and one with both.
#[test]
fn folders_are_quantized_and_weighed_as_their_files() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    let prose = octavo_fixtures::committed_goldens().join("formats/text.txt");
    for (model_type, refusal) in [
        ("qwen3_moe", "expert_count: expected no experts, got 6"),
        ("gemma3_text", "one of llama, qwen2, qwen3"),
        ("cohere2", "one of llama, qwen2, qwen3"),
        ("gpt_oss", "expert_count: expected no experts, got 6"),
    ] {
        let case = case(model_type);
        let dir = TempDir::new().expect("a folder");
        let file = dir.path().join("expected.gguf");
        let model = case.model(&models);
        expected(case, &model, &file);
        let both = [folder(case, &model, &dir), file];
        let quantized = [&both[0], &both[1]].map(|from| {
            let to = from.with_extension("q8_0.gguf");
            good(&["quantize", text(from), text(&to), "Q8_0"]);
            to
        });
        let [ours, theirs] = [&quantized[0], &quantized[1]].map(|path| open(path));
        let of_blocks = |t: &&TensorInfo| t.ty == TensorType::Q8_0;
        assert!(ours.tensors().iter().filter(of_blocks).count() > 8);
        same_tensors(&ours, &theirs, model_type);
        let tokens: Vec<u32> = (0..40).map(|i| 3 + i * 7 % 250).collect();
        let isa = Isa::available().into_iter().last().expect("one");
        let [a, b] = [&quantized[0], &quantized[1]]
            .map(|path| logits(&load(path, isa, true), &tokens, Phase::Prefill));
        let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        assert_eq!(bits(&a), bits(&b), "{model_type}");

        let [ours, theirs] = [&both[0], &both[1]].map(|model| {
            let args = ["quant-report", text(model), "-f", text(&prose), "-c", "16"];
            let mut report = json(&[&args[..], &["--types", "Q8_0", "--json"]].concat());
            let q8_0 = report["types"][0].as_object_mut().expect("figures");
            // rates depend on the clock
            q8_0.retain(|key, _| !key.ends_with("_rate"));
            json!(q8_0)
        });
        assert!(ours["mean_kl"][0].as_f64().is_some_and(|kl| kl > 0.0));
        assert_eq!(figures(&ours), figures(&theirs), "{model_type}");

        let awq = dir.path().join("awq");
        let args = ["quantize", text(&both[0]), text(&awq), "awq", "--no-search"];
        let error = bad(&args, 1);
        assert!(error.contains(refusal), "{error}");
        assert!(!awq.exists());
    }
}

/// Returns the figures that do not depend on how files are laid out.
fn figures(of: &Value) -> [&Value; 4] {
    ["ppl", "mean_kl", "max_kl", "same_top"].map(|key| &of[key])
}

/// AWQ groups made of a folder are those made of the file that it converts to.
#[test]
fn folders_become_awq_as_their_files() {
    let dir = TempDir::new().expect("a folder");
    let plain = dir.path().join("plain");
    let f16 = with_matrices(&open(&super::super::models()[2]), &dir, TensorType::F16);
    hf::write(&f16, &plain).expect("written");
    let file = dir.path().join("file.gguf");
    good(&["convert", text(&plain), text(&file), "--type", "f16"]);
    let weights = [&plain, &file].map(|from| {
        let to = from.with_extension("awq");
        let args = ["quantize", text(from), text(&to), "awq", "--no-search"];
        good(&[&args[..], &["--group", "32"]].concat());
        std::fs::read(to.join("model.safetensors")).expect("there")
    });
    assert!(weights[0] == weights[1]);
}
