//! Logits against stock llama.cpp's, for every recorded model, on every instruction set, for
//! prefill and decode kernels.
//!
//! F32 models are compared with llama.cpp itself. All others are compared with the exact logits
//! (llama.cpp on the file dequantized to F32), and our error with llama.cpp's own.

use std::path::{Path, PathBuf};

use crate::logits::{load, load_in, logits};
use octavo_engine::backend::Phase;
use octavo_fixtures::{
    Lacks, committed_goldens, is_full, shared_dir, skip, some_of, workspace_root,
};
use octavo_kernels::{Isa, KvType, KvTypes, PromptBits, kernel_name};
use octavo_reference::golden::{Full, Golden, read_summary};
use octavo_reference::metrics::{kl, nmse, top_order};

/// Upper bound of llama.cpp's own error on F32 models against an f64 forward pass.
const F32_NMSE: f64 = 1e-10;
/// Errors below these are rounding noise of the recorded f32 logits themselves.
const NMSE_FLOOR: f64 = 1e-9;
const KL_FLOOR: f64 = 1e-7;

/// Error of prefill in 13 bits, as a ratio to llama.cpp's.
const THIRTEEN_BITS: f64 = 0.02;

/// Error of prefill in 8 bits, as a ratio to llama.cpp's.
const EIGHT_BITS: f64 = 0.5;

/// A model file and the folder of its goldens.
struct Recorded {
    model: PathBuf,
    goldens: PathBuf,
}

fn recorded() -> Vec<Recorded> {
    let mut all = Vec::new();
    let demo = workspace_root().join("src/engine/demo");
    for models in [demo, workspace_root().join("reference/models")] {
        add(&mut all, &models, &committed_goldens());
    }
    assert_eq!(all.len(), 3, "the committed goldens");
    if let Some(shared) = shared_dir() {
        let before = all.len();
        add(&mut all, &shared.join("models"), &shared.join("goldens"));
        assert!(all.len() - before >= 30, "goldens in the shared folder");
    }
    all
}

fn add(all: &mut Vec<Recorded>, models: &Path, goldens: &Path) {
    let mut files: Vec<PathBuf> = std::fs::read_dir(models)
        .expect("a folder of models")
        .map(|e| e.expect("an entry").path())
        .collect();
    files.sort();
    for model in files {
        let name = model.file_stem().expect("a name").to_owned();
        let goldens = goldens.join(name);
        if model.extension().is_some_and(|e| e == "gguf") && goldens.is_dir() {
            all.push(Recorded { model, goldens });
        }
    }
}

#[derive(Default)]
struct Ratios {
    nmse: Vec<f64>,
    kl: Vec<f64>,
}

pub(crate) fn geometric_mean(x: &[f64]) -> f64 {
    (x.iter().map(|r| r.ln()).sum::<f64>() / x.len().max(1) as f64).exp()
}

/// Options for computing logits.
#[derive(Clone, Copy)]
struct Way {
    isa: Isa,
    phase: Phase,
    /// Whether weights are packed.
    repack: bool,
    bits: PromptBits,
    kv_type: KvTypes,
}

impl Way {
    /// The most exact options.
    fn of(isa: Isa, phase: Phase) -> Way {
        Way {
            isa,
            phase,
            repack: true,
            bits: PromptBits::Sixteen,
            kv_type: KvType::F32.both(),
        }
    }
}

/// Runs every golden of one model; returns our errors as ratios to llama.cpp's (none for F32
/// models).
fn check(recorded: &Recorded, way: Way) -> Ratios {
    let Way {
        isa,
        phase,
        repack,
        bits,
        kv_type,
    } = way;
    let engine = load_in((bits, kv_type), &recorded.model, isa, repack);
    let mut matrices = engine.model().weights.tensors.matrices.iter();
    let in_bytes = |ty| kernel_name(isa, ty, repack, bits).contains("int8 panels");
    if bits == PromptBits::Eight && !matrices.any(|matrix| in_bytes(matrix.ty)) {
        return Ratios::default(); // it would count as exact
    }
    let name = recorded
        .model
        .file_stem()
        .expect("a name")
        .to_string_lossy();
    let is_f32 = name.ends_with("-F32");
    if is_f32 && kv_type != KvType::F32.both() {
        return Ratios::default(); // what a cache rounds is all that such a model's logits are off
    }
    let mut ratios = Ratios::default();
    for (prompt, theirs) in read_summary(&recorded.goldens.join("summary.json")).expect("a summary")
    {
        let path = recorded.goldens.join(format!("{prompt}.safetensors"));
        if !path.is_file() {
            continue; // of the committed goldens only the small ones are kept
        }
        let golden = Full::read(&path).expect("a golden");
        let what = format!("{name} {prompt} {isa} {phase:?} in {bits} bits, cache {kv_type}");
        let own = engine
            .tokenizer()
            .encode(theirs.text.as_bytes(), Default::default())
            .expect("text");
        assert_eq!(own, golden.tokens, "{what}: tokens");
        let ours = logits(&engine, &golden.tokens, phase);
        if is_f32 {
            let error = nmse(&ours, &golden.logits).expect("same length");
            assert!(error <= F32_NMSE, "{what}: NMSE {error:e} > {F32_NMSE:e}");
            let order =
                top_order(&ours, &golden.logits, golden.n_vocab, 5, 1e-4).expect("same length");
            assert!(
                order.judged > 0 && order.judged == order.equal,
                "{what}: {order:?}"
            );
            continue;
        }
        let error = nmse(&ours, &golden.exact).expect("same length");
        let divergence = kl(&ours, &golden.exact, golden.n_vocab)
            .expect("same length")
            .mean;
        // a row of tools/bench/prompt-bits-goldens.csv
        println!(
            "{name},{prompt},{isa},{phase:?},{bits},{kv_type},{error:.3e},{:.3e},{divergence:.3e},\
             {:.3e}",
            theirs.nmse, theirs.mean_kl
        );
        let nmse_ratio = error.max(NMSE_FLOOR) / theirs.nmse.max(NMSE_FLOOR);
        let kl_ratio = divergence.max(KL_FLOOR) / theirs.mean_kl.max(KL_FLOOR);
        assert!(
            nmse_ratio <= 2.0,
            "{what}: NMSE {error:e}, llama.cpp's {:e}",
            theirs.nmse
        );
        assert!(
            kl_ratio <= 2.0,
            "{what}: KL {divergence:e}, llama.cpp's {:e}",
            theirs.mean_kl
        );
        ratios.nmse.push(nmse_ratio);
        // of two that are too small to tell, the ratio says nothing
        if divergence.max(theirs.mean_kl) > KL_FLOOR {
            ratios.kl.push(kl_ratio);
        }
    }
    ratios
}

/// Returns the error that kernels are designed for, as a ratio to llama.cpp's. The required ratio
/// is 1.
pub(crate) fn designed_for(isa: Isa, phase: Phase) -> f64 {
    // bf16 rounds inputs to about 1e-3 of themselves, integers of 15 bits to about 1e-4
    if phase == Phase::Prefill && isa.prompt_rounding().products > 5e-4 {
        0.25
    } else {
        0.1
    }
}

/// Returns the step between the models that an instruction set runs: the best one runs all, each of
/// the others another third, since kernels have tests of their own for every type.
pub(crate) fn models_step(isa: Isa) -> usize {
    if isa == Isa::best() { 1 } else { 3 }
}

fn every_model(way: Way) {
    let Way {
        isa,
        phase,
        bits,
        kv_type,
        ..
    } = way;
    if !isa.is_available() {
        skip(Lacks::InstructionSet, isa);
        return;
    }
    let mut all = Ratios::default();
    // in 8 bits the mean is near its limit, which only all models together have
    let step = match bits {
        PromptBits::Sixteen | PromptBits::Thirteen => models_step(isa),
        PromptBits::Eight => 1,
    };
    let turn = Isa::ALL.into_iter().position(|other| other == isa);
    for model in some_of(recorded(), turn.unwrap_or(0), step) {
        let ratios = check(&model, way);
        all.nmse.extend(ratios.nmse);
        all.kl.extend(ratios.kl);
    }
    let (nmse, kl) = (geometric_mean(&all.nmse), geometric_mean(&all.kl));
    let worst = |x: &[f64]| x.iter().copied().fold(0.0, f64::max);
    println!(
        "{isa} {phase:?} in {bits} bits, cache {kv_type}: {} goldens; error as a ratio to \
         llama.cpp's: NMSE mean {nmse:.4} worst {:.4}, KL mean {kl:.4} worst {:.4}",
        all.nmse.len(),
        worst(&all.nmse),
        worst(&all.kl)
    );
    let limit = match bits {
        PromptBits::Eight => EIGHT_BITS,
        PromptBits::Thirteen => THIRTEEN_BITS,
        PromptBits::Sixteen => designed_for(isa, phase),
    };
    assert!(
        nmse <= limit && kl <= limit,
        "{isa} {phase:?}: NMSE {nmse}, KL {kl}"
    );
}

#[test]
fn prompts_on_every_instruction_set() {
    for isa in Isa::ALL {
        every_model(Way::of(isa, Phase::Prefill));
    }
}

/// Prefill attention rounds its inputs if the cache does.
#[test]
fn prompts_with_a_cache_of_halves() {
    for isa in Isa::ALL {
        every_model(Way {
            kv_type: KvType::F16.both(),
            ..Way::of(isa, Phase::Prefill)
        });
    }
}

/// Logits with keys and values in different types are near those with both in f32: relative to
/// their squares, their error is at most that of keys and values together, because attention sums
/// up many of these, with independent errors, and is only a part of what a layer adds. A cache that
/// is read as another type than it was written as gives very different logits.
#[test]
fn a_cache_of_two_types_costs_what_these_round() {
    let mut held = 0;
    for (i, recorded) in recorded().into_iter().enumerate() {
        let load = |isa, types| load_in((PromptBits::default(), types), &recorded.model, isa, true);
        let exact = load(Isa::Scalar, KvType::F32.both());
        let heads = exact.hparams().caches.iter().map(|cache| cache.head_dim);
        let takes = |types: &KvTypes| heads.clone().all(|dim| types.takes(dim));
        let tokens: Vec<u32> = (0..70).map(|i| (i * i + 3 * i + 7) % 200).collect();
        for isa in [Isa::Scalar, Isa::best()] {
            // attention has tests of its own for every pair of types in scalar kernels
            if isa == Isa::Scalar && held > 0 && !is_full() {
                continue;
            }
            let exact = load(isa, KvType::F32.both());
            for types in some_of(PAIRS.into_iter().filter(takes), i, 9) {
                let engine = load(isa, types);
                for phase in [Phase::Prefill, Phase::Decode] {
                    let exact = logits(&exact, &tokens, phase);
                    let error = nmse(&logits(&engine, &tokens, phase), &exact).expect("as long");
                    let [k, v] = [types.k, types.v].map(|ty| ty.rounding().powi(2));
                    let model = recorded.model.display();
                    println!(
                        "{model} {isa} {phase:?} {types}: {:.4} of the bound",
                        error / (k + v)
                    );
                    assert!(
                        error <= k + v,
                        "{model} {isa} {phase:?} {types}: NMSE {error:e}"
                    );
                    assert!(
                        error > 0.0,
                        "{model} {isa} {phase:?} {types}: nothing is rounded"
                    );
                    held += 1;
                }
            }
        }
    }
    assert!(held >= PAIRS.len(), "{held} are too few");
}

/// Types that are rotated and types that are not, as keys and as values.
const PAIRS: [KvTypes; 9] = {
    use KvType::{Bf16, F8E4M3, F16, F32, Iq4Nl, Q4_0, Q5_0, Q5_1, Q8_0};
    const fn pair(k: KvType, v: KvType) -> KvTypes {
        KvTypes { k, v }
    }
    [
        pair(Q8_0, Q4_0),
        pair(Q4_0, Q8_0),
        pair(F32, Q8_0),
        pair(Bf16, F16),
        pair(Q5_0, Q5_1),
        pair(Q5_1, Iq4Nl),
        pair(Iq4Nl, Q5_0),
        pair(F8E4M3, Q5_1),
        pair(F16, Q5_0),
    ]
};

/// The error is as large as llama.cpp's, whose scales serve eight times as many values.
#[test]
fn prompts_in_eight_bits() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.has_byte_prompts()) {
        every_model(Way {
            bits: PromptBits::Eight,
            ..Way::of(isa, Phase::Prefill)
        });
    }
}

#[test]
fn prompts_in_thirteen_bits() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.has_thirteen_bits()) {
        every_model(Way {
            bits: PromptBits::Thirteen,
            ..Way::of(isa, Phase::Prefill)
        });
    }
}

#[test]
fn generation_on_every_instruction_set() {
    for isa in Isa::ALL {
        every_model(Way::of(isa, Phase::Decode));
    }
}

#[test]
fn rows_as_in_the_file() {
    every_model(Way {
        repack: false,
        ..Way::of(Isa::best(), Phase::Prefill)
    });
}

/// The same comparison must fail for a model that differs slightly from the recorded one.
#[test]
fn a_wrong_token_is_seen() {
    let model = workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
    let golden = Full::read(&committed_goldens().join("tiny-qwen3-Q4_K_M/capital.safetensors"))
        .expect("a golden");
    let engine = load(&model, Isa::best(), true);
    let mut tokens = golden.tokens.clone();
    tokens[3] ^= 1;
    let error =
        nmse(&logits(&engine, &tokens, Phase::Prefill), &golden.exact).expect("same length");
    assert!(error > 1e-3, "NMSE {error:e}");
}

/// A real model, if `OCTAVO_SMOLLM2` names its file (README says how to get it).
#[test]
fn smollm2() {
    let Some(shared) = shared_dir() else { return };
    let Some(model) = std::env::var_os("OCTAVO_SMOLLM2").map(PathBuf::from) else {
        skip(
            Lacks::Model,
            "OCTAVO_SMOLLM2 does not name the SmolLM2 file",
        );
        return;
    };
    for isa in Isa::available().into_iter().rev() {
        let [exact, halves] = [KvType::F32, KvType::F16]
            .map(|ty| load_in((PromptBits::default(), ty.both()), &model, isa, true));
        // slower kernels are held to goldens of every architecture elsewhere
        let prompts = match isa == Isa::best() || is_full() {
            true => &["capital", "code", "story", "unicode", "licence"][..],
            false => &["capital"],
        };
        for prompt in prompts {
            let path = shared.join(format!("goldens/smollm2/{prompt}.safetensors"));
            let Golden::Top(golden) = Golden::read(&path).expect("a golden") else {
                panic!("the top-k form")
            };
            for (engine, phase) in [
                (&exact, Phase::Prefill),
                (&halves, Phase::Prefill),
                (&exact, Phase::Decode),
            ] {
                let ours = golden
                    .kl(&logits(engine, &golden.tokens, phase))
                    .expect("same length")
                    .mean;
                let theirs = golden.llama_cpp_kl().expect("a golden").mean;
                println!(
                    "smollm2 {prompt} {isa} {phase:?}: mean KL {ours:.3e}, llama.cpp's {theirs:.3e}"
                );
                let limit = designed_for(isa, phase) * theirs;
                assert!(
                    ours <= limit,
                    "smollm2 {prompt} {isa} {phase:?}: {ours:e} > {limit:e}, llama.cpp's {theirs:e}"
                );
            }
        }
    }
}
