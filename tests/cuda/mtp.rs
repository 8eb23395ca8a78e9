//! MTP layers on a device: hidden states come from one program's memory and go to
//! another's, and texts stay what they are.

use octavo_engine::backend::cuda::{Cuda, Options};
use octavo_engine::{Engine, EngineOptions, Generation, GenerationParams, Lookup, ModelSource};
use octavo_fixtures::shared;
use octavo_kernels::KvType;

use super::device;
use super::engine::Nobody;

fn load(source: &ModelSource, keep_hidden: bool) -> Option<Engine> {
    let device = device()?;
    let options = EngineOptions {
        ctx: Some(96),
        keep_hidden,
        ..EngineOptions::default()
    };
    let engine = Engine::load_on(source, &options, |gguf, model, limits| {
        let options = Options {
            kv_type: KvType::F16.both(),
            limits: *limits,
            graphs: true,
            check_pages: true,
            threads: 2,
        };
        let cuda = Cuda::prepare(device, gguf, model, &options, &mut |_| {})?;
        Ok(Box::new(cuda))
    });
    Some(engine.expect("it loads"))
}

fn text(engine: &Engine, draft_max: Option<usize>) -> Generation {
    let options = GenerationParams {
        max_tokens: Some(32),
        ignore_eos: true,
        lookup: Lookup::Off,
        draft_max,
        ..GenerationParams::default()
    };
    let prompt: Vec<u32> = (0..21).map(|i| 3 + (i * i) % 250).collect();
    let mut session = engine.session();
    let out = session.generate(&prompt, &options, None, &mut Nobody);
    out.expect("it runs")
}

#[test]
fn drafts_of_an_mtp_layer_change_nothing() {
    // attention with keys shared by its heads, recurrent layers, and experts
    for name in ["qwen35-mtp-F32", "glm4moe-mtp-F32"] {
        let path = shared(&format!("feat/mtp/models/{name}.gguf"));
        let Some(source) = path.map(ModelSource::Path) else {
            return;
        };
        let Some(plain) = load(&source, false) else {
            return;
        };
        let expected = text(&plain, None);
        for n in [1, 3, 8] {
            let engine = load(&source, true).expect("as before");
            let layer = ModelSource::MtpLayer(Box::new(source.clone()));
            let layer = load(&layer, false).expect("as before");
            engine.set_draft_model(layer).expect("its own layer");
            let got = text(&engine, Some(n));
            assert_eq!(got.tokens, expected.tokens, "{name}, {n} draft tokens");
            let drafts = got.timing.drafts;
            println!("{name}, {n}: {drafts:?}");
            let some = 0 < drafts.accepted && drafts.accepted < drafts.drafted;
            assert!(some, "{name}, {n}: {drafts:?}");
        }
    }
}

/// An assistant reads the pages of its target, which a device has in memory of its own.
#[test]
fn an_assistant_is_refused() {
    let path = |name: &str| shared(&format!("feat/mtp/models/{name}.gguf")).map(ModelSource::Path);
    let pair = path("gemma4-target-F32").zip(path("gemma4-assistant-F32"));
    let Some((target, assistant)) = pair else {
        return;
    };
    let assistant = ModelSource::Assistant {
        assistant: Box::new(assistant),
        target: Box::new(target.clone()),
    };
    let engines = load(&target, true).zip(load(&assistant, false));
    let Some((target, assistant)) = engines else {
        return;
    };
    let refused = target.set_draft_model(assistant);
    let line = refused.expect_err("it is on a device").to_string();
    assert!(line.contains("expected both on the CPU"), "{line}");
}
