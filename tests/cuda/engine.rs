//! The engine and `diff` on top of the backend.

use octavo_analysis::diff::{
    BackendExecution, Fault, Options as DiffOptions, OracleExecution, Verdict, compare,
    compare_with,
};
use octavo_engine::backend::{cpu, cuda};
use octavo_engine::{Engine, EngineOptions, ModelSource};
use octavo_engine::{GenerationParams, Observer};
use octavo_fixtures::{shared, workspace_root};
use octavo_kernels::{Isa, KvType};

use super::{both, device, limits, open, small};

pub(crate) struct Nobody;

impl Observer for Nobody {
    fn text(&mut self, _: &str) -> std::io::Result<()> {
        Ok(())
    }
}

/// The built-in model generates, through sessions, pages and sampling.
#[test]
fn the_demo_model_generates() {
    let Some(device) = device() else { return };
    let options = EngineOptions {
        ctx: Some(64),
        ..EngineOptions::default()
    };
    let engine = Engine::load_on(&ModelSource::Demo, &options, |gguf, model, limits| {
        let options = cuda::Options {
            kv_type: KvType::F16.both(),
            limits: *limits,
            graphs: true,
            check_pages: true,
            threads: 2,
        };
        Ok(Box::new(cuda::Cuda::prepare(
            device,
            gguf,
            model,
            &options,
            &mut |_| {},
        )?))
    });
    let engine = engine.expect("it loads");
    assert!(
        engine.describe().starts_with("cuda, "),
        "{}",
        engine.describe()
    );
    let prompt = engine
        .tokenizer()
        .encode(b"1+1=", Default::default())
        .expect("a text");
    let options = GenerationParams {
        max_tokens: Some(4),
        ..GenerationParams::default()
    };
    let mut session = engine.session();
    let out = session
        .generate(&prompt, &options, None, &mut Nobody)
        .expect("it runs");
    assert!(out.text.starts_with('2'), "{}", out.text);
}

/// Every tensor is compared, within the bounds that follow from the rounding to halves.
#[test]
fn every_tensor_is_within_its_bound_of_the_cpus() {
    let of_file = |name: &str| {
        (
            name.to_owned(),
            open(&workspace_root().join(format!("reference/{name}.gguf"))),
        )
    };
    let mut models = [
        "../src/engine/demo/tiny-qwen3-Q4_K_M",
        "models/rnd-llama-Q4_K_M",
        "models/rnd-qwen2-Q6_K",
    ]
    .map(of_file)
    .to_vec();
    // most of their weights are floats
    models.extend(["llama", "qwen2", "qwen3"].map(|arch| (arch.to_owned(), small(arch))));
    for (name, (gguf, model)) in models {
        let Some(device) = device() else { return };
        let tokens = [11, 102, 33, 4, 205, 66, 7];
        let same = model.clone();
        let options = cpu::Options {
            isa: Isa::best(),
            threads: 2,
            pool: None,
            kv_type: KvType::F32.both(),
            n_pages: 1,
            n_states: 1,
            prompt_bits: octavo_kernels::PromptBits::default(),
            repack: true,
            lock: false,
            weights: None,
            adapters: Vec::new(),
        };
        let mut a = BackendExecution::cpu(gguf.clone(), same, &options, &mut |_, _| {})
            .expect("it is prepared");
        let options = both(usize::MAX, KvType::F32, limits(7, 1, 7), true);
        let mut b = BackendExecution::cuda(device, gguf, model, &options, &mut |_| {})
            .expect("it is prepared");
        let comparison =
            compare(&mut a, &mut b, (&tokens[..]).into(), &mut |_, _| {}).expect("both run");
        let worst = comparison
            .taps
            .iter()
            .filter_map(|tap| tap.of_bound)
            .fold(0.0, f64::max);
        println!(
            "{name}: {} tensors, the worst at {worst:.3} of its bound",
            comparison.taps.len()
        );
        assert_eq!(
            comparison.verdict,
            Verdict::Within,
            "{name}: {:?}",
            comparison.first_divergence
        );
        assert!(
            comparison.absent.is_empty(),
            "{name}: {:?}",
            comparison.absent
        );
    }
}

/// The device continues with the experts of the oracle, which chose them in reverse: the choice
/// differs, and nothing that follows from it, on a device alone and where it has only the last
/// layers.
#[test]
fn a_mixture_goes_on_with_the_experts_that_another_chose() {
    let Some(path) = shared("arch/models/qwen3moe-F32.gguf") else {
        return;
    };
    let tokens = [11, 102, 33, 4, 205, 66, 7];
    for (gpu_layers, layer) in [(usize::MAX, 1), (1, 0)] {
        let Some(device) = device() else { return };
        let (gguf, model) = open(&path);
        let turned: Box<Fault> = Box::new(move |tap, width, ids| {
            if tap.name == "ffn_moe_topk" && tap.layer == Some(layer) {
                ids.chunks_exact_mut(width).for_each(|ids| ids.reverse());
            }
        });
        let mut a = OracleExecution::with_fault(gguf.clone(), turned).expect("a model");
        let options = both(gpu_layers, KvType::F32, limits(7, 1, 7), true);
        let mut b = BackendExecution::cuda(device, gguf, model, &options, &mut |_| {})
            .expect("it is prepared");
        let with = DiffOptions { same_routing: true };
        let c = compare_with(&mut a, &mut b, (&tokens[..]).into(), with, &mut |_, _| {})
            .expect("both run");
        let outside = c.taps.iter().filter(|tap| tap.outside);
        let outside: Vec<&str> = outside.map(|tap| tap.name.as_str()).collect();
        assert_eq!(
            outside,
            [format!("ffn_moe_topk-{layer}")],
            "{gpu_layers} layers"
        );
        let routing = c.routing.expect("a mixture");
        assert_eq!(routing.reordered, tokens.len(), "{gpu_layers} layers");
    }
}
