//! Logits of a model as goldens were recorded: an f32 cache, two threads.

use std::path::Path;

use octavo_engine::backend::Phase;
use octavo_engine::{Engine, EngineOptions, LogitsFor, ModelSource};
use octavo_kernels::{Isa, IsaChoice, KvType, KvTypes, PromptBits};

pub(crate) fn load(model: &Path, isa: Isa, repack: bool) -> Engine {
    load_in(
        (PromptBits::default(), KvType::F32.both()),
        model,
        isa,
        repack,
    )
}

/// Loads the same with prefill in these bits, and keys and values of these types.
pub(crate) fn load_in(
    (prompt_bits, kv_type): (PromptBits, KvTypes),
    model: &Path,
    isa: Isa,
    repack: bool,
) -> Engine {
    let options = EngineOptions {
        isa: IsaChoice::Only(isa),
        kv_type,
        threads: Some(2),
        repack,
        prompt_bits,
        ..EngineOptions::default()
    };
    Engine::load(&ModelSource::Path(model.to_owned()), &options, &mut |_| {})
        .expect("the model loads")
}

/// Returns all logits of a prompt; decode kernels run token by token, as in a generation.
pub(crate) fn logits(engine: &Engine, tokens: &[u32], phase: Phase) -> Vec<f32> {
    let mut session = engine.session();
    match phase {
        Phase::Prefill => {
            session
                .eval(tokens, phase, LogitsFor::All)
                .expect("logits")
                .data
        }
        Phase::Decode => tokens
            .iter()
            .flat_map(|t| {
                session
                    .eval(&[*t], phase, LogitsFor::Last)
                    .expect("logits")
                    .data
            })
            .collect(),
    }
}

/// Upper bound of llama.cpp's error on F32 models where it takes GELU from a table of halves.
pub(crate) const GELU_NMSE: f64 = 1e-6;
