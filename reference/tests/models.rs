//! Compares the oracle with stock llama.cpp for every model that has a golden: those of the
//! repository always, the large set if available.

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_fixtures as fixtures;
use octavo_reference::golden::{Full, read_summary};
use octavo_reference::{Oracle, metrics};
use std::path::{Path, PathBuf};

/// llama.cpp computes the exact dequantization in f32, with f32 angles and sums of up to 512 terms:
/// its NMSE against f64 is a small multiple of 2^-48. Anything above is a difference in the model,
/// not in rounding.
const F32_ROUNDING: f64 = 1e-11;

/// Compares one model with every golden in `goldens`; returns how many there were.
fn compare(model: &Path, goldens: &Path) -> usize {
    let gguf = Gguf::open(model, &OpenOptions::default()).unwrap();
    let oracle = Oracle::open(&gguf).unwrap();
    let summary = read_summary(&goldens.join("summary.json")).unwrap();
    for (prompt, llama_cpp) in &summary {
        let golden = Full::read(&goldens.join(format!("{prompt}.safetensors"))).unwrap();
        assert_eq!(golden.tokens.len(), llama_cpp.n_tokens);
        let logits = oracle.forward(&golden.tokens).unwrap();
        let error = metrics::nmse(&logits, &golden.exact).unwrap();
        println!(
            "{} {prompt}: NMSE {error:.2e} (llama.cpp on the file: {:.2e})",
            model.display(),
            llama_cpp.nmse
        );
        assert!(
            error < F32_ROUNDING,
            "{} {prompt}: NMSE {error:e}",
            model.display()
        );
        let order = metrics::top_order(&logits, &golden.exact, golden.n_vocab, 5, 1e-3).unwrap();
        assert_eq!(order.first_difference, None, "{} {prompt}", model.display());
        assert!(order.judged > 0);
        // The metrics must agree with numpy's results from when the golden was made.
        let close = |ours: f64, numpy: f64| (ours - numpy).abs() <= 1e-4 * numpy + 1e-12;
        let nmse = metrics::nmse(&golden.logits, &golden.exact).unwrap();
        assert!(
            close(nmse, llama_cpp.nmse),
            "{prompt}: NMSE {nmse:e}, numpy {:e}",
            llama_cpp.nmse
        );
        let kl = metrics::kl(&golden.logits, &golden.exact, golden.n_vocab)
            .unwrap()
            .mean;
        assert!(
            close(kl, llama_cpp.mean_kl),
            "{prompt}: KL {kl:e}, numpy {:e}",
            llama_cpp.mean_kl
        );
        let agreement =
            metrics::top1_agreement(&golden.logits, &golden.exact, golden.n_vocab).unwrap();
        assert!(close(agreement, llama_cpp.top1_equal));
        let last = &golden.logits[golden.logits.len() - golden.n_vocab..];
        let top5: Vec<u32> = llama_cpp.top5.iter().map(|&(id, _)| id).collect();
        assert_eq!(metrics::top_k(last, 5), top5, "{prompt}");
    }
    summary.len()
}

#[test]
fn committed_models() {
    let reference = fixtures::workspace_root().join("reference");
    let goldens = fixtures::committed_goldens();
    let compared = [
        ("../src/engine/demo/tiny-qwen3-Q4_K_M.gguf", 3),
        ("models/rnd-llama-Q4_K_M.gguf", 2),
        ("models/rnd-qwen2-Q6_K.gguf", 2),
    ];
    for (model, n_goldens) in compared {
        let model = reference.join(model);
        let name = model.file_stem().unwrap();
        assert_eq!(compare(&model, &goldens.join(name)), n_goldens);
    }
}

#[test]
fn shared_models() {
    let Some(shared) = fixtures::shared_dir() else {
        return;
    };
    let mut folders: Vec<PathBuf> = std::fs::read_dir(shared.join("goldens"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    folders.sort();
    let mut compared = 0;
    for goldens in folders {
        let model = shared
            .join("models")
            .join(goldens.file_name().unwrap())
            .with_added_extension("gguf");
        if model.is_file() {
            compared += compare(&model, &goldens);
        }
    }
    assert!(compared >= 83, "only {compared} goldens were compared");
}
