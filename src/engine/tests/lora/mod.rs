//! Low-rank adapters and control vectors: logits against llama.cpp's, and texts of sequences with
//! different adapters in one step.

mod batch;
mod files;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use octavo_engine::backend::Phase;
use octavo_engine::{
    ControlFile, Engine, EngineOptions, Logits, LogitsFor, LoraFile, LoraScale, ModelSource,
};
use octavo_fixtures::{Lacks, shared_dir, skip};
use octavo_kernels::{Isa, IsaChoice, KvType};
use octavo_reference::metrics::nmse;
use safetensors::SafeTensors;
use serde_json::Value;

/// Error of an F32 model with F32 adapters.
const F32: f64 = 1e-8;
/// The same where llama.cpp rounds a product's input to an adapter's 16 bits.
const HALVES: f64 = 2e-6;
/// Error of a Q8_0 model, whose activations llama.cpp rounds.
const Q8_0: f64 = 1e-3;

/// The shared folder of adapters, their models' files and goldens.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn open() -> Option<Folder> {
        let shared = shared_dir();
        let Some(shared) = shared.filter(|dir| dir.join("feat/lora").is_dir()) else {
            skip(Lacks::Fixtures, "LoRA goldens");
            return None;
        };
        Some(Folder(shared))
    }

    pub(crate) fn adapter(&self, name: &str) -> PathBuf {
        self.0.join("feat/lora/models").join(name)
    }

    pub(crate) fn base(&self, name: &str) -> PathBuf {
        let places = ["models", "arch/models"].map(|place| self.0.join(place).join(name));
        let there = places.into_iter().find(|path| path.is_file());
        there.unwrap_or_else(|| panic!("{name} is in neither folder"))
    }

    fn golden(&self, name: &str) -> PathBuf {
        self.0.join("feat/lora/goldens").join(name)
    }

    fn summary(&self) -> BTreeMap<String, Value> {
        let text = std::fs::read(self.golden("summary.json")).expect("a summary");
        serde_json::from_slice(&text).expect("a summary")
    }
}

pub(crate) fn options(isa: Isa, adapters: &[LoraFile]) -> EngineOptions {
    EngineOptions {
        isa: IsaChoice::Only(isa),
        kv_type: KvType::F32.both(),
        threads: Some(2),
        ctx: Some(2048),
        adapters: adapters.to_vec(),
        ..EngineOptions::default()
    }
}

pub(crate) fn load(model: &Path, options: &EngineOptions) -> Engine {
    let source = ModelSource::Path(model.to_owned());
    Engine::load(&source, options, &mut |_| {}).expect("the model loads")
}

fn logits(engine: &Engine, tokens: &[u32], phase: Phase) -> Logits {
    let mut session = engine.session();
    if phase == Phase::Prefill {
        return session.eval(tokens, phase, LogitsFor::All).expect("logits");
    }
    let mut all = Logits {
        n_vocab: engine.hparams().n_vocab(),
        data: Vec::new(),
    };
    for token in tokens {
        let row = session.eval(&[*token], phase, LogitsFor::Last);
        all.data.extend(row.expect("logits").data);
    }
    all
}

/// Returns the named rows of a golden.
fn recorded(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).expect("a case of the summary");
    let floats = tensor.data().chunks_exact(4);
    floats
        .map(|raw| f32::from_le_bytes(raw.try_into().expect("four bytes")))
        .collect()
}

fn pairs(list: &Value) -> Vec<(String, f32)> {
    let list = list.as_array().expect("a list of files");
    let pair = |pair: &Value| {
        let name = pair[0].as_str().expect("a file").to_owned();
        (name, pair[1].as_f64().expect("a number") as f32)
    };
    list.iter().map(pair).collect()
}

fn bound(name: &str, adapters: &[(String, f32)]) -> f64 {
    let halves = |(file, scale): &(String, f32)| {
        *scale != 0.0 && (file.ends_with("-F16.gguf") || file.ends_with("-BF16.gguf"))
    };
    match name.contains("Q8_0") {
        true => Q8_0,
        false if adapters.iter().any(halves) => HALVES,
        false => F32,
    }
}

fn check(engine: &Engine, tokens: &[u32], golden: &[f32], bound: f64, what: &str) {
    for phase in [Phase::Prefill, Phase::Decode] {
        let ours = logits(engine, tokens, phase);
        let ours = &ours.data[ours.data.len() - golden.len()..];
        let error = nmse(ours, golden).expect("equal lengths");
        println!("{what} {phase:?}: {error:.1e}");
        assert!(error <= bound, "{what} {phase:?}: NMSE {error:e}");
    }
}

#[test]
fn logits_equal_llama_cpps() {
    let Some(folder) = Folder::open() else { return };
    let mut cases = 0;
    for (name, case) in folder.summary() {
        let Some(list) = case["cases"].as_object() else {
            continue;
        };
        let bytes = std::fs::read(folder.golden(&format!("{name}.safetensors")));
        let bytes = bytes.expect("a golden");
        let golden = SafeTensors::deserialize(&bytes).expect("a golden");
        let tokens: Vec<u32> = serde_json::from_value(case["tokens"].clone()).expect("tokens");
        let base = folder.base(case["base"].as_str().expect("a file"));
        for isa in Isa::available() {
            for (label, case) in list {
                let adapters = pairs(&case["adapters"]);
                let files: Vec<LoraFile> = adapters
                    .iter()
                    .map(|(file, scale)| LoraFile {
                        path: folder.adapter(file),
                        scale: *scale,
                    })
                    .collect();
                let mut options = options(isa, &files);
                let control = &case["control_vector"];
                if control.is_object() {
                    let file = |(name, strength): (String, f32)| ControlFile {
                        path: folder.adapter(&name),
                        strength,
                    };
                    options.control = pairs(&control["files"]).into_iter().map(file).collect();
                    let end = |key: &str| control[key].as_u64().map(|n| n as usize);
                    options.control_layers = end("start").zip(end("end")).map(|(a, b)| [a, b]);
                }
                let engine = load(&base, &options);
                let golden = recorded(&golden, label);
                let what = format!("{isa} {name} {label}");
                check(&engine, &tokens, &golden, bound(&name, &adapters), &what);
                cases += 1;
            }
        }
    }
    assert!(cases >= 30, "{cases} cases");
}

#[test]
fn an_adapter_begins_at_its_invocation_as_in_llama_cpp() {
    let Some(folder) = Folder::open() else { return };
    let name = "tiny-qwen3-F32-alora";
    let case = &folder.summary()[name];
    let bytes = std::fs::read(folder.golden(&format!("{name}.safetensors"))).expect("a golden");
    let golden = SafeTensors::deserialize(&bytes).expect("a golden");
    let tokens: Vec<u32> = serde_json::from_value(case["tokens"].clone()).expect("tokens");
    let file = LoraFile {
        path: folder.adapter(case["adapter"].as_str().expect("a file")),
        scale: 1.0,
    };
    let base = folder.base(case["base"].as_str().expect("a file"));
    for isa in Isa::available() {
        let engine = load(&base, &options(isa, std::slice::from_ref(&file)));
        let ours = logits(&engine, &tokens, Phase::Prefill);
        let error = |name: &str| {
            let rows = recorded(&golden, name);
            nmse(&ours.data, &rows).expect("equal lengths")
        };
        let (error, other) = (error("from_start_minus_1"), error("from_start"));
        assert!(error <= F32, "{isa}: NMSE {error:e}");
        assert!(other > 1e-4, "{isa}: both goldens fit");
        // without the tokens it does nothing
        let (without, bare) = (&tokens[..5], load(&base, &options(isa, &[])));
        let [with, bare] = [&engine, &bare].map(|e| logits(e, without, Phase::Prefill).data);
        assert_eq!(with, bare, "{isa}");
    }
}

#[test]
fn scales_can_be_set() {
    let Some(folder) = Folder::open() else { return };
    let (base, isa) = (folder.base("tiny-qwen3-F32.gguf"), Isa::best());
    let file = |scale| LoraFile {
        path: folder.adapter("tiny-qwen3-all.gguf"),
        scale,
    };
    let tokens = [289, 387, 371, 304];
    let of = |engine: &Engine| logits(engine, &tokens, Phase::Prefill).data;
    let half = of(&load(&base, &options(isa, &[file(0.5)])));
    let none = of(&load(&base, &options(isa, &[])));
    let engine = load(&base, &options(isa, &[file(1.0)]));
    assert_ne!(of(&engine), half);
    let set = |id, scale| engine.set_adapter_scales(&[LoraScale { id, scale }]);
    set(0, 0.5);
    assert_eq!(of(&engine), half);
    assert_eq!(engine.adapters()[0].scale, 0.5);
    set(0, 0.0);
    assert_eq!(of(&engine), none);
    set(0, 0.5);
    // of no adapter: all others have none
    set(7, 1.0);
    assert_eq!(of(&engine), none);
}
