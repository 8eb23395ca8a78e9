//! Tokens that the model file suppresses.

use octavo_engine::sample::{SamplerConfig, top_logits};
use octavo_engine::{Engine, EngineOptions, GenerationParams, LogitsFor, ModelSource};
use octavo_fixtures::tiny::{File, Val};
use octavo_kernels::Phase;

/// Loads a model of the file, and returns it with its first generated token, greedy, with this
/// logit bias.
fn first(file: &File, bias: Vec<(u32, f32)>) -> (Engine, u32) {
    let folder = tempfile::TempDir::new().expect("a folder");
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, file.bytes()).expect("written");
    let options = EngineOptions {
        ctx: Some(96),
        ..EngineOptions::default()
    };
    let engine = Engine::load(&ModelSource::Path(path), &options, &mut |_| {}).expect("it loads");
    let sampler = SamplerConfig {
        logit_bias: bias,
        ..SamplerConfig::default()
    };
    let params = GenerationParams {
        max_tokens: Some(1),
        sampler,
        ..GenerationParams::default()
    };
    let mut session = engine.session();
    let text = session.generate(&[2, 3], &params, None, &mut |_: &str| {});
    let id = text.expect("a token").tokens[0];
    (engine, id)
}

#[test]
fn suppressed_tokens_are_never_chosen() {
    let mut file = File::running("llama");
    let (engine, largest) = first(&file, Vec::new());
    let logits = engine
        .session()
        .eval(&[2, 3], Phase::Prefill, LogitsFor::Last);
    let top = top_logits(&logits.expect("logits").data, 3);
    let [best, second, third] = [0, 1, 2].map(|i| top[i].0);
    assert_eq!(largest, best, "nothing is suppressed yet");

    let key = "tokenizer.ggml.suppress_tokens";
    // ids outside the vocabulary are ignored
    let of = |id: u32| Val::from(vec![-1, i32::MAX, id as i32]);
    file.set(key, of(third));
    assert_eq!(
        first(&file, Vec::new()).1,
        best,
        "another one is suppressed"
    );
    file.set(key, of(best));
    let (engine, chosen) = first(&file, Vec::new());
    assert_eq!(engine.tokenizer().suppressed_ids(), [best]);
    assert_eq!(chosen, second);
    let bias = vec![(best, 1000.0), (third, 1000.0)];
    assert_eq!(first(&file, bias).1, third, "bias does not bring it back");
}
