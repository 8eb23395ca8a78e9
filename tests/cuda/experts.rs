//! Mixtures whose experts stay on the CPU, in layers that otherwise run on a device.

use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_analysis::diff::{BackendExecution, Verdict, compare};
use octavo_engine::backend::cuda::Error;
use octavo_engine::backend::split::{self, Options};
use octavo_engine::backend::{Backend, CpuExperts, Loading, Phase, TapView, TensorPattern};
use octavo_fixtures::{shared, shared_dir};
use octavo_kernels::KvType;
use octavo_kernels::cuda::Device;
use octavo_model::{Model, Op};

use super::goldens::every_prompt_on;
use super::steps::no_neighbour_and_no_cut;
use super::watched::Watched;
use super::{Sequences, both, device, limits, open, shim, text};

/// Mixtures of several kinds: with biases, with shared experts, with scales, with dense layers.
const MODELS: [&str; 4] = [
    "qwen3moe-Q4_K_M",
    "gpt-oss-MXFP4_MOE",
    "glm4moe-Q8_0",
    "gemma4-Q4_0",
];

fn mixture(name: &str) -> Option<(Arc<Gguf>, Model)> {
    shared(&format!("arch/models/{name}.gguf")).map(|path| open(&path))
}

/// Options with the experts of the first layers on the CPU.
fn first(n: usize, options: Options) -> Options {
    let experts = CpuExperts {
        first: n,
        ..CpuExperts::default()
    };
    Options { experts, ..options }
}

fn on<D: Device + 'static>(
    device: D,
    (gguf, model): &(Arc<Gguf>, Model),
    options: &Options,
) -> Box<dyn Backend> {
    split::prepare(device, gguf, model, options, &mut |_| {}).expect("it is prepared")
}

#[test]
fn the_goldens_hold_with_experts_on_the_cpu() {
    let Some(shared) = shared_dir() else { return };
    for (name, prompts) in MODELS
        .iter()
        .zip([&["sum"][..], &["sum", "fox"], &["sum"], &["sum"]])
    {
        let path = shared.join(format!("arch/models/{name}.gguf"));
        for n in [1, usize::MAX] {
            every_prompt_on(&path, &shared.join("arch/goldens"), prompts, &|options| {
                first(n, options)
            });
        }
        // the last layers on the device, without their experts
        if open(&path).1.is_divisible() {
            every_prompt_on(
                &path,
                &shared.join("arch/goldens"),
                &prompts[..1],
                &|options| {
                    first(
                        usize::MAX,
                        Options {
                            gpu_layers: 1,
                            ..options
                        },
                    )
                },
            );
        }
    }
}

/// Every tensor, those of the experts too, is shown once, and is within its bound of the CPU's.
#[test]
fn every_tensor_is_within_its_bound() {
    for name in MODELS {
        for n in [1, usize::MAX] {
            let (Some((gguf, model)), Some(device)) = (mixture(name), device()) else {
                return;
            };
            let (same, n_taps) = (model.clone(), model.graph.taps().count());
            let options = first(n, both(usize::MAX, KvType::F32, limits(7, 1, 7), true));
            let mut a = BackendExecution::cpu(gguf.clone(), same, &options.cpu, &mut |_, _| {})
                .expect("it is prepared");
            let mut b = BackendExecution::cuda(device, gguf, model, &options, &mut |_| {})
                .expect("it is prepared");
            let tokens = [11, 102, 33, 4, 205, 66, 7];
            let compared = compare(&mut a, &mut b, (&tokens[..]).into(), &mut |_, _| {});
            let comparison = compared.expect("both run");
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
            assert_eq!(comparison.taps.len(), n_taps, "{name}");
        }
    }
}

#[test]
fn logits_depend_on_no_neighbour_and_no_cut() {
    for name in MODELS {
        let (Some(model), Some(device)) = (mixture(name), device()) else {
            return;
        };
        let options = first(
            usize::MAX,
            both(usize::MAX, KvType::F16, limits(64, 3, 48), true),
        );
        let mut backend = on(device, &model, &options);
        no_neighbour_and_no_cut(&mut *backend, name);
    }
}

/// Returns the logits of a generation, and the device.
fn generated(
    model: &(Arc<Gguf>, Model),
    options: &Options,
    tokens: &[u32],
    sequences: usize,
) -> Option<(Vec<Vec<f32>>, &'static Counts)> {
    let counts: &'static Counts = Box::leak(Box::default());
    let mut backend = on(counted(counts)?, model, options);
    let mut all = Sequences::new(sequences, 64);
    let step = |token: &u32| {
        let tokens = vec![std::slice::from_ref(token); sequences];
        all.run(&mut *backend, Phase::Decode, &tokens)
    };
    Some((tokens.iter().flat_map(step).collect(), counts))
}

/// Launches between two blocks of experts are captured, once for each number of sequences, and
/// replayed from then on; the logits are those of uncaptured launches.
#[test]
fn launches_between_experts_are_captured() {
    for (n, sequences) in [(1, 1), (usize::MAX, 1), (usize::MAX, 9)] {
        let Some(model) = mixture("qwen3moe-Q4_K_M") else {
            return;
        };
        let tokens = text(12);
        let options = |graphs| first(n, both(usize::MAX, KvType::F16, limits(16, 16, 64), graphs));
        let Some((plain, counts)) = generated(&model, &options(false), &tokens, sequences) else {
            return;
        };
        assert_eq!(counts.get(), [0, 0]);
        let captured = generated(&model, &options(true), &tokens, sequences);
        let (captured, counts) = captured.expect("there was a device");
        assert!(captured == plain, "{n} layers, {sequences} sequences");
        let pieces = n.min(model.1.hparams.n_layer()) + 1;
        assert_eq!(counts.get(), [pieces, pieces * (tokens.len() - 1)]);
        let alone = generated(&model, &options(true), &tokens, 1);
        let (alone, _) = alone.expect("there was a device");
        let same = plain.chunks(sequences).zip(alone);
        for (token, (all, alone)) in same.enumerate() {
            assert!(all.iter().all(|one| *one == alone), "token {token}");
        }
    }
}

/// Results of experts that do not arrive on the device change the logits: no test above passes by
/// chance.
#[test]
fn lost_results_of_experts_show() {
    let Some(model) = mixture("qwen3moe-Q4_K_M") else {
        return;
    };
    let options = first(
        usize::MAX,
        both(usize::MAX, KvType::F16, limits(1, 1, 64), true),
    );
    let run = |lost: Option<usize>| {
        let mut watched = Watched::new(device()?);
        watched.lost = lost;
        let mut backend = on(watched, &model, &options);
        let mut sequence = Sequences::new(1, 64);
        let step = |token: &u32| sequence.run(&mut *backend, Phase::Decode, &[&[*token]]);
        Some(text(6).iter().flat_map(step).collect::<Vec<_>>())
    };
    let Some(right) = run(None) else { return };
    assert!(
        run(Some(3)).expect("there was a device") == right,
        "nothing has three bytes"
    );
    let wrong = run(Some(4 * model.1.hparams.n_embd.value)).expect("there was a device");
    assert!(wrong[0] != right[0]);
}

#[test]
fn taps_come_in_the_order_of_the_graph() {
    for name in MODELS {
        let (Some(model), Some(device)) = (mixture(name), device()) else {
            return;
        };
        let options = first(
            usize::MAX,
            both(usize::MAX, KvType::F16, limits(5, 1, 16), true),
        );
        let mut backend = on(device, &model, &options);
        let tokens = text(5);
        let mut seen = Vec::new();
        let mut tap = |view: &TapView<'_>| seen.push(view.tap.to_string());
        let groups = vec![&[0][..]; backend.cache_groups()];
        let seqs = [octavo_engine::backend::StepSequence {
            tokens: &tokens,
            tables: &groups,
            outputs: 3..5,
            ..Default::default()
        }];
        let step = octavo_engine::backend::Step {
            phase: Phase::Prefill,
            seqs: &seqs,
            input: &[],
        };
        let tapped = backend
            .step(&step, Some(&mut tap))
            .expect("it runs")
            .to_vec();
        seen.retain(|name| name != "(input of a product)");
        let names = model.1.graph.taps().map(|(tap, _)| tap.to_string());
        assert_eq!(seen, names.collect::<Vec<_>>(), "{name}");
        assert!(
            backend.step(&step, None).expect("it runs") == tapped,
            "{name}"
        );
    }
}

/// The device's weights are fewer by the experts', which the CPU has; both are described.
#[test]
fn memory_progress_and_description_are_those_of_the_parts() {
    let Some(model) = mixture("qwen3moe-Q4_K_M") else {
        return;
    };
    let n_layer = model.1.hparams.n_layer();
    let load = |n: usize, gpu_layers: usize| {
        let (mut lines, mut progress) = (Vec::new(), Vec::new());
        let mut sink = |event: Loading<'_>| match event {
            Loading::Note(line) => lines.push(line.to_owned()),
            Loading::Weights { done, total } => progress.push((done, total)),
        };
        let options = first(n, both(gpu_layers, KvType::F16, limits(4, 1, 64), true));
        let backend = split::prepare(device()?, &model.0, &model.1, &options, &mut sink);
        let backend = backend.expect("it is prepared");
        let total = progress[0].1;
        assert!(
            progress.iter().all(|(_, all)| *all == total),
            "{progress:?}"
        );
        assert!(progress.is_sorted(), "{progress:?}");
        assert_eq!(progress.last().map(|p| p.0), Some(total));
        Some((lines, total, backend.describe(), backend.pool().is_some()))
    };
    let Some((lines, total, description, has_pool)) = load(0, usize::MAX) else {
        return;
    };
    assert!(
        lines.len() == 1 && !description.contains("experts") && !has_pool,
        "{lines:?}"
    );
    for (n, gpu_layers) in [(1, usize::MAX), (usize::MAX, usize::MAX), (usize::MAX, 1)] {
        let (lines, all, description, has_pool) = load(n, gpu_layers).expect("there was a device");
        let layers = n.min(gpu_layers).min(n_layer);
        let start = format!("the experts of {layers} of {n_layer} layers stay on the CPU: ");
        assert!(
            lines.len() == 2 && lines[0].starts_with(&start),
            "{lines:?}"
        );
        // embeddings on the CPU are not packed
        let same = all == total || gpu_layers == 1;
        assert!(same, "the same weights in all: {all}, {total}");
        let s = if layers == 1 { "" } else { "s" };
        let experts = format!("; experts of {layers} layer{s}: cpu, ");
        assert!(description.contains(&experts), "{description}");
        assert!(has_pool || gpu_layers == 1);
    }
    // a model without any
    let (gguf, dense) = super::small("qwen3");
    let options = first(3, both(usize::MAX, KvType::F16, limits(4, 1, 64), true));
    let mut lines = Vec::new();
    let mut sink = |event: Loading<'_>| {
        if let Loading::Note(line) = event {
            lines.push(line.to_owned());
        }
    };
    let device = device().expect("there was one");
    let backend = split::prepare(device, &gguf, &dense, &options, &mut sink).expect("it loads");
    assert!(lines[0].ends_with("no layer on the GPU has experts that could stay on the CPU"));
    assert!(!backend.describe().contains("experts"));
}

/// A model that does not fit is refused with the number of layers whose experts would have to go.
#[test]
fn what_does_not_fit_says_whose_experts_could_go() {
    let (Some(model), Some(_)) = (mixture("qwen3moe-Q4_K_M"), shim()) else {
        return;
    };
    let refused = |n: usize, capacity: u64| {
        let mut shim = shim().expect("there was one");
        shim.capacity = capacity;
        let options = first(n, both(usize::MAX, KvType::F16, limits(4, 1, 64), true));
        match split::prepare(shim, &model.0, &model.1, &options, &mut |_| {}).err()? {
            octavo_engine::Error::Cuda(error) => {
                let line = error.to_string();
                let Error::TooLarge { needs, fitting, .. } = error else {
                    panic!("{line}")
                };
                Some((needs, fitting.experts, line))
            }
            other => panic!("{other}"),
        }
    };
    let n_layer = model.1.hparams.n_layer();
    let needs: Vec<_> = (0..=n_layer)
        .map(|n| refused(n, 0).expect("nothing fits").0)
        .collect();
    let experts: Vec<u64> = needs
        .windows(2)
        .map(|w| w[0].weights - w[1].weights)
        .collect();
    assert!(experts.iter().all(|bytes| *bytes > 0), "{needs:?}");
    assert!(needs.iter().all(|n| n.kv == needs[0].kv));
    for (n, needs) in needs.iter().enumerate().skip(1) {
        let (_, fitting, line) = refused(0, needs.total()).expect("one layer's too many");
        assert_eq!(fitting, Some(n), "{line}");
        assert!(
            line.contains("all without the experts of the first "),
            "{line}"
        );
        assert!(
            refused(n, needs.total()).is_none(),
            "{n} layers fit as promised"
        );
    }
    let (_, fitting, line) = refused(n_layer, needs[n_layer].total() - 1).expect("too large");
    assert!(fitting.is_none() && !line.contains("experts"), "{line}");
}

/// Every mixture's experts are one block of each layer that the host can execute.
#[test]
fn experts_of_all_architectures_are_blocks() {
    let Some(shared) = shared_dir() else { return };
    let mut mixtures = Vec::new();
    for folder in ["arch/models", "arch2/models"] {
        for entry in std::fs::read_dir(shared.join(folder)).expect("a folder") {
            let path = entry.expect("a file").path();
            let gguf = Gguf::open(&path, &OpenOptions::default()).map(Arc::new);
            let Some(Ok((gguf, model))) = gguf.ok().map(|g| Model::load(&g).map(|m| (g, m))) else {
                continue;
            };
            let graph = &model.graph;
            let blocks: Vec<_> = (0..graph.n_layer)
                .filter_map(|l| graph.expert_nodes(l))
                .collect();
            let sums = graph
                .nodes
                .iter()
                .filter(|n| matches!(n.op, Op::ExpertSum { .. }))
                .count();
            assert_eq!(blocks.len(), sums, "{}", path.display());
            if sums > 0 {
                let options = first(
                    usize::MAX,
                    both(usize::MAX, KvType::F16, limits(4, 1, 16), true),
                );
                let mut shim = shim().expect("a compiler");
                shim.capacity = 0;
                let error = split::prepare(shim, &gguf, &model, &options, &mut |_| {}).err();
                let line = error.expect("nothing fits").to_string();
                assert!(!line.contains("experts of the first"), "{line}");
                mixtures.push(model.hparams.arch.name());
            }
        }
    }
    mixtures.dedup();
    assert!(mixtures.len() >= 15, "{mixtures:?}");
}

/// Patterns name the experts of whole layers, and nothing else.
#[test]
fn patterns_name_experts_of_whole_layers() {
    let Some(model) = mixture("gpt-oss-MXFP4_MOE") else {
        return;
    };
    let load = |matches: fn(&str) -> bool| {
        let experts = CpuExperts {
            first: 0,
            tensors: vec![TensorPattern::new("this pattern", matches)],
        };
        let options = both(usize::MAX, KvType::F16, limits(4, 1, 64), true);
        let options = Options { experts, ..options };
        Some(
            match split::prepare(device()?, &model.0, &model.1, &options, &mut |_| {}) {
                Ok(backend) => backend.describe(),
                Err(error) => error.to_string(),
            },
        )
    };
    let Some(all) = load(|name| name.contains("exps")) else {
        return;
    };
    let n_layer = model.1.hparams.n_layer();
    assert!(
        all.contains(&format!("; experts of {n_layer} layers: cpu")),
        "{all}"
    );
    let one = load(|name| name.starts_with("blk.1.ffn") && name.ends_with("_exps.weight"));
    let one = one.expect("there was a device");
    assert!(one.contains("; experts of 1 layer: cpu"), "{one}");
    for (matches, got) in [
        (
            (|_| false) as fn(&str) -> bool,
            "this pattern names no tensor: expected the experts of whole",
        ),
        (
            |name| name.contains("attn_q"),
            "this pattern names blk.0.attn_q",
        ),
        (
            |name| name.contains("ffn_gate_inp"),
            "this pattern names blk.0.ffn_gate_inp",
        ),
        (
            |name| name.contains("ffn_up_exps"),
            "this pattern names blk.0.ffn_up_exps.weight but not blk.0.ffn_gate_exps.weight",
        ),
    ] {
        let line = load(matches).expect("there was a device");
        assert!(line.contains(got), "{line}");
    }
}

/// Recordings and replays of a device.
#[derive(Default)]
struct Counts([std::sync::atomic::AtomicUsize; 2]);

impl Counts {
    fn get(&self) -> [usize; 2] {
        self.0
            .each_ref()
            .map(|n| n.load(std::sync::atomic::Ordering::Relaxed))
    }
}

/// Returns a device that counts for a test that cannot reach it.
fn counted(counts: &'static Counts) -> Option<Watched> {
    let mut watched = Watched::new(device()?);
    watched.all_recordings = Some(&counts.0[0]);
    watched.all_replays = Some(&counts.0[1]);
    Some(watched)
}
