//! Logits of small models of every architecture against stock llama.cpp's, on every instruction
//! set, for prefill and decode kernels.
//!
//! As in `goldens.rs`: F32 models are compared with llama.cpp itself, the others with the exact
//! logits, next to llama.cpp's own error. In a mixture of experts a rounding can send a token to
//! another expert, so mixtures are judged by their median position.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::goldens::{designed_for, geometric_mean, models_step};
use crate::logits::{GELU_NMSE, logits};
use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_engine::backend::Phase;
use octavo_engine::{Engine, EngineOptions, ModelSource};
use octavo_fixtures::{Lacks, shared_dir, skip, some_of};
use octavo_kernels::{Isa, IsaChoice, KvType};
use octavo_model::{Arch, Op};
use octavo_reference::golden::Full;
use octavo_reference::metrics::{nmse, top_order};

/// llama.cpp's own error on F32 models, with room for kernels that sum in another order.
const F32_NMSE: f64 = 1e-9;
/// Errors below these are rounding noise of the recorded f32 logits themselves.
const NMSE_FLOOR: f64 = 1e-9;

/// A model file and the folder of its goldens.
struct Recorded {
    name: String,
    model: PathBuf,
    goldens: PathBuf,
    /// Context length of the recording, if it is another than the model's.
    context: Option<usize>,
}

impl Recorded {
    fn load(&self, isa: Isa) -> Engine {
        let options = EngineOptions {
            isa: IsaChoice::Only(isa),
            kv_type: KvType::F32.both(),
            threads: Some(2),
            ctx: self.context,
            ..EngineOptions::default()
        };
        let source = ModelSource::Path(self.model.clone());
        Engine::load(&source, &options, &mut |_| {}).expect("the model loads")
    }
}

/// Models with optional keys and tensors of known architectures, and the context lengths of their
/// recordings.
const VARIANTS: [(&str, Option<usize>); 6] = [
    ("olmo3-attn-factor", None),
    ("glm4-sections", None),
    ("glm4moe-sections", None),
    // longer than before the extension
    ("llama-longrope", Some(2048)),
    ("granite-longrope", None),
    ("qwen3moe-scales", None),
];

fn variant(shared: &Path, (name, context): (&str, Option<usize>)) -> Recorded {
    let (name, folder) = (format!("{name}-F32"), shared.join("arch2/variants"));
    Recorded {
        model: folder.join(format!("models/{name}.gguf")),
        goldens: folder.join("goldens").join(&name),
        name,
        context,
    }
}

/// Returns every model of a supported architecture, except embedding models, which have no logits.
fn recorded(shared: &Path) -> Vec<Recorded> {
    let mut all: Vec<Recorded> = VARIANTS.map(|of| variant(shared, of)).into();
    let models = |wave: &str| {
        let folder = shared.join(wave).join("models");
        std::fs::read_dir(folder).expect("a folder of models")
    };
    for entry in models("arch").chain(models("arch2")) {
        let model = entry.expect("an entry").path();
        let gguf = Gguf::open(&model, &OpenOptions::default()).expect("a model");
        let Ok(arch) = Arch::of_file(&gguf) else {
            continue;
        };
        if gguf.get(&format!("{}.pooling_type", arch.name())).is_some() {
            continue;
        }
        let name = model
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let wave = model.ancestors().nth(2).expect("a folder");
        let goldens = wave.join("goldens").join(&name);
        all.push(Recorded {
            name,
            model,
            goldens,
            context: None,
        });
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Traits that decide the tolerance of a model's errors.
struct Traits {
    gelu: bool,
    experts: bool,
}

impl Traits {
    fn of(engine: &Engine) -> Traits {
        let has = |f: fn(&Op) -> bool| engine.model().graph.nodes.iter().any(|node| f(&node.op));
        Traits {
            gelu: engine.model().graph.uses_gelu(),
            experts: has(|op| matches!(op, Op::ExpertMatMul { .. })),
        }
    }
}

fn median(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    x[x.len() / 2]
}

/// Returns the NMSE over all positions, or of the median one for mixtures.
fn error(ours: &[f32], exact: &[f32], n_vocab: usize, traits: &Traits) -> f64 {
    if !traits.experts {
        return nmse(ours, exact).expect("same length");
    }
    let rows = ours.chunks(n_vocab).zip(exact.chunks(n_vocab));
    median(
        rows.map(|(a, b)| nmse(a, b).expect("same length"))
            .collect(),
    )
}

/// Runs every golden of one model; returns the failures, and adds its errors as ratios to
/// llama.cpp's.
fn check(recorded: &Recorded, isa: Isa, phase: Phase, ratios: &mut Vec<f64>) -> Vec<String> {
    let engine = recorded.load(isa);
    let traits = Traits::of(&engine);
    let mut faults = Vec::new();
    let mut n = 0;
    for entry in std::fs::read_dir(&recorded.goldens).expect("goldens") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|e| e != "safetensors") {
            continue;
        }
        n += 1;
        let golden = Full::read(&path).expect("a golden");
        let prompt = path.file_stem().expect("a name").to_string_lossy();
        let what = format!("{} {prompt} {isa} {phase:?}", recorded.name);
        let ours = logits(&engine, &golden.tokens, phase);
        let error = |x: &[f32], y: &[f32]| self::error(x, y, golden.n_vocab, &traits);
        if recorded.name.ends_with("-F32") {
            let limit = if traits.gelu { GELU_NMSE } else { F32_NMSE };
            let got = error(&ours, &golden.logits);
            if got.is_nan() || got > limit {
                faults.push(format!("{what}: NMSE {got:.2e}, allowed {limit:.0e}"));
            }
            // logits closer than the allowed error may be in any order
            let gap = if traits.gelu { 5e-3 } else { 1e-4 };
            let order = top_order(&ours, &golden.logits, golden.n_vocab, 5, gap);
            let order = order.expect("same length");
            if order.judged == 0 || order.judged != order.equal {
                faults.push(format!("{what}: {order:?}"));
            }
            continue;
        }
        let got = error(&ours, &golden.exact);
        let theirs = error(&golden.logits, &golden.exact);
        let ratio = got.max(NMSE_FLOOR) / theirs.max(NMSE_FLOOR);
        if ratio.is_nan() || ratio > 1.0 {
            faults.push(format!("{what}: NMSE {got:.2e}, llama.cpp's {theirs:.2e}"));
        }
        ratios.push(ratio);
    }
    assert!(n >= 2, "{}: only {n} goldens", recorded.name);
    faults
}

fn every_architecture(phase: Phase) {
    let Some(shared) = shared_dir() else {
        return;
    };
    let recorded = recorded(&shared);
    let mut faults = Vec::new();
    for (turn, isa) in Isa::ALL.into_iter().enumerate() {
        if !isa.is_available() {
            skip(Lacks::InstructionSet, isa);
            continue;
        }
        let mut ratios = Vec::new();
        for model in some_of(&recorded, turn, models_step(isa)) {
            faults.extend(check(model, isa, phase, &mut ratios));
        }
        let mean = geometric_mean(&ratios);
        println!(
            "{isa} {phase:?}: {} quantized goldens; error as a ratio to llama.cpp's: NMSE mean \
             {mean:.4}",
            ratios.len()
        );
        let limit = designed_for(isa, phase);
        if mean > limit {
            faults.push(format!("{isa} {phase:?}: mean ratio {mean:.3} > {limit}"));
        }
    }
    let mut by_model: BTreeMap<&str, usize> = BTreeMap::new();
    for fault in &faults {
        *by_model
            .entry(fault.split(' ').next().unwrap_or(""))
            .or_default() += 1;
    }
    assert!(faults.is_empty(), "{}\n{by_model:?}", faults.join("\n"));
}

#[test]
fn prompts_of_every_architecture() {
    every_architecture(Phase::Prefill);
}

#[test]
fn generation_of_every_architecture() {
    every_architecture(Phase::Decode);
}
