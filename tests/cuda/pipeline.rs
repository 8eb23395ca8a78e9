//! Models whose layers are on several devices, one behind the other: the bits of a single one.

use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_engine::Error;
use octavo_engine::backend::pipeline::Pipeline;
use octavo_engine::backend::{Backend, Loading, Phase, Step, StepSequence, TapView, cuda};
use octavo_fixtures::{shared, workspace_root};
use octavo_kernels::KvType;
use octavo_kernels::cuda::Device;
use octavo_model::Model;

use super::steps::no_neighbour_and_no_cut;
use super::{Limits, Sequences, device, limits, open, prepare, shim, small, text};

/// Prepares a model on as many devices as there are proportions.
fn divided(
    (gguf, model): &(Arc<Gguf>, Model),
    proportions: &[f64],
    limits: Limits,
) -> Option<Pipeline<Box<dyn Device>>> {
    let devices: Option<Vec<_>> = proportions.iter().map(|_| device()).collect();
    let how = options(limits);
    let pipeline = Pipeline::prepare(devices?, (gguf, model), proportions, &how, &mut |_| {});
    Some(pipeline.expect("it is prepared"))
}

fn options(limits: Limits) -> cuda::Options {
    cuda::Options {
        kv_type: KvType::F16.both(),
        limits,
        graphs: true,
        check_pages: true,
        threads: 2,
    }
}

/// Prompts and generated tokens, of several sequences, wherever the layers are cut.
#[test]
fn logits_have_the_bits_of_one_device() {
    let file = |name: &str| open(&workspace_root().join(format!("reference/{name}.gguf")));
    let models = [
        ("demo", file("../src/engine/demo/tiny-qwen3-Q4_K_M"), 4),
        ("llama", file("models/rnd-llama-Q4_K_M"), 3),
        ("qwen2", file("models/rnd-qwen2-Q6_K"), 3),
        ("floats", small("llama"), 2),
    ];
    let cuts: [&[f64]; 4] = [&[1.0, 1.0], &[1.0, 3.0], &[2.0, 0.0, 1.0], &[1.0, 1.0, 1.0]];
    for (name, model, n_layer) in models {
        assert_eq!(model.1.hparams.n_layer(), n_layer, "{name}");
        let run = |backend: &mut dyn Backend| {
            let mut sequences = Sequences::new(3, 48);
            let prompts = [text(21), text(33)[5..].to_vec(), text(9)[2..].to_vec()];
            let prompts = [&prompts[0][..], &prompts[1], &prompts[2]];
            let mut all = sequences.run(backend, Phase::Prefill, &prompts);
            for token in 5..9 {
                all.extend(sequences.run(backend, Phase::Decode, &[&[token][..]; 3]));
            }
            all
        };
        let Some(device) = device() else { return };
        let limits = limits(64, 3, 48);
        let expected = run(&mut prepare(device, &model, KvType::F16, limits, true));
        for cut in cuts {
            let mut pipeline = divided(&model, cut, limits).expect("there was a device");
            assert!(run(&mut pipeline) == expected, "{name}, {cut:?}");
        }
    }
}

/// Logits, taps, rows of a prompt without outputs, and pages are those of a single GPU.
#[test]
fn steps_of_every_kind_go_through_all_devices() {
    let model = small("qwen3");
    let limits = limits(64, 3, 48);
    let Some(mut pipeline) = divided(&model, &[1.0, 1.0], limits) else {
        return;
    };
    no_neighbour_and_no_cut(&mut pipeline, "on two devices");
    let device = device().expect("there was one");
    let mut one = prepare(device, &model, KvType::F16, limits, true);
    let tokens = text(6);
    let seqs = [StepSequence {
        tokens: &tokens,
        tables: &[&[0]],
        outputs: 4..6,
        ..StepSequence::default()
    }];
    let step = Step {
        phase: Phase::Prefill,
        seqs: &seqs,
        input: &[],
    };
    let best = pipeline.argmax(&step).expect("it runs");
    assert_eq!(best, one.argmax(&step).expect("it runs"));
    let most = pipeline.max_candidates(2);
    assert!(most > 0 && most == one.max_candidates(2));
    let candidates = pipeline.candidates(&step, &[1]).expect("it runs");
    assert!(candidates == one.candidates(&step, &[1]).expect("it runs"));
    let taps = |backend: &mut dyn Backend| {
        let mut all = Vec::new();
        let mut see = |view: &TapView<'_>| all.push((view.tap.to_string(), view.data.to_vec()));
        backend.step(&step, Some(&mut see)).expect("it runs");
        all
    };
    assert!(taps(&mut pipeline) == taps(&mut one));
    assert_eq!(pipeline.n_pages(), one.n_pages());
    // keys and values of all layers
    let mut sequence = Sequences::on(vec![0], vec![vec![0, 1]]);
    sequence.run(&mut pipeline, Phase::Prefill, &[&text(20)]);
    let expected = sequence.run(&mut pipeline, Phase::Decode, &[&[9]]);
    pipeline.copy_page(0, 0, 3).expect("it copies");
    Sequences::on(vec![0], vec![vec![0]]).run(&mut pipeline, Phase::Prefill, &[&text(9)]);
    let mut other = Sequences::on(vec![20], vec![vec![3, 1]]);
    assert_eq!(other.run(&mut pipeline, Phase::Decode, &[&[9]]), expected);
}

/// Progress is that of one model, each device says what it takes, and one that lacks room says
/// which layers it has none for.
#[test]
fn memory_and_progress_are_those_of_the_parts() {
    let (Some(first), Some(second)) = (shim(), shim()) else {
        return;
    };
    let (gguf, model) = small("qwen3");
    let how = options(limits(4, 1, 64));
    let (mut lines, mut progress) = (Vec::new(), Vec::new());
    let mut sink = |event: Loading<'_>| match event {
        Loading::Note(line) => lines.push(line.to_owned()),
        Loading::Weights { done, total } => progress.push((done, total)),
    };
    let of = (&gguf, &model);
    let pipeline = Pipeline::prepare(vec![first, second], of, &[1.0, 2.0], &how, &mut sink);
    let description = pipeline.expect("it is prepared").describe();
    assert_eq!(
        description.matches("1 layers: cuda, ").count(),
        2,
        "{description}"
    );
    assert!(progress.is_sorted(), "{progress:?}");
    let (done, total) = progress[progress.len() - 1];
    assert!(done == total && total > 0);
    assert!(lines[0].contains(": layer 0 takes "), "{lines:?}");
    assert!(
        lines[1].contains(": the last layer and the output take "),
        "{lines:?}"
    );

    let (mut first, second) = (shim().expect("it was there"), shim().expect("it was there"));
    first.capacity = 1000;
    let refused = Pipeline::prepare(vec![first, second], of, &[1.0, 2.0], &how, &mut |_| {});
    let error = refused.err().expect("no room").to_string();
    assert!(error.contains(": layer 0 takes "), "{error}");
}

/// Layers that read more than the output of the one before are on one device.
#[test]
fn layers_that_share_values_are_not_divided() {
    let Some(path) = shared("arch/models/gemma4-F32.gguf") else {
        return;
    };
    let (gguf, model) = open(&path);
    assert!(!model.is_divisible());
    let (Some(first), Some(second)) = (shim(), shim()) else {
        return;
    };
    let how = options(limits(4, 1, 64));
    let of = (&gguf, &model);
    let refused = Pipeline::prepare(vec![first, second], of, &[1.0, 2.0], &how, &mut |_| {});
    let error = refused.err().expect("it is refused");
    assert!(
        matches!(error, Error::IndivisibleLayers { gpus: 2, .. }),
        "{error}"
    );
}
