//! Models whose first layers run on the CPU and whose last layers run on a device.

use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_analysis::diff::{BackendExecution, Verdict, compare};
use octavo_engine::backend::cuda::{Error, Limits};
use octavo_engine::backend::split::{self, Split};
use octavo_engine::backend::{Backend, Loading, Phase, Step, StepSequence, TapView, cpu};
use octavo_engine::{DeviceChoice, Engine, EngineOptions, ModelSource};
use octavo_fixtures::workspace_root;
use octavo_kernels::KvType;
use octavo_kernels::cuda::Device;
use octavo_model::Model;
use octavo_reference::metrics::nmse;

use super::goldens::{NMSE_FLOOR, of_halves};
use super::steps::no_neighbour_and_no_cut;
use super::watched::Watched;
use super::{Sequences, both, device, limits, open, shim, small, text};

/// Prepares a model with one of its two layers on the device.
fn halved<D: Device>(
    device: D,
    (gguf, model): &(Arc<Gguf>, Model),
    limits: Limits,
    graphs: bool,
) -> Split<D> {
    let options = both(1, KvType::F16, limits, graphs);
    Split::prepare(device, gguf, model, &options, &mut |_| {}).expect("it is prepared")
}

/// Every tensor is compared with the CPU's, as for a device alone.
#[test]
fn every_tensor_is_within_its_bound_wherever_a_model_is_cut() {
    let models = [
        ("../src/engine/demo/tiny-qwen3-Q4_K_M", 4),
        ("models/rnd-llama-Q4_K_M", 3),
        ("models/rnd-qwen2-Q6_K", 3),
    ];
    for (name, n_layer) in models {
        for gpu_layers in 1..n_layer {
            let Some(device) = device() else { return };
            let model = || open(&workspace_root().join(format!("reference/{name}.gguf")));
            let ((gguf, first), (_, second)) = (model(), model());
            let n_taps = first.graph.taps().count();
            let options = both(gpu_layers, KvType::F32, limits(7, 1, 7), true);
            let mut a = BackendExecution::cpu(gguf.clone(), first, &options.cpu, &mut |_, _| {})
                .expect("it is prepared");
            let mut b = BackendExecution::cuda(device, gguf, second, &options, &mut |_| {})
                .expect("it is prepared");
            let tokens = [11, 502, 33, 4, 905, 66, 7];
            let comparison =
                compare(&mut a, &mut b, (&tokens[..]).into(), &mut |_, _| {}).expect("both run");
            let what = format!("{name}, {gpu_layers} layers");
            assert_eq!(
                comparison.verdict,
                Verdict::Within,
                "{what}: {:?}",
                comparison.first_divergence
            );
            assert!(
                comparison.absent.is_empty(),
                "{what}: {:?}",
                comparison.absent
            );
            assert_eq!(comparison.taps.len(), n_taps, "{what}");
        }
    }
}

/// Prefill and decode, on weights that are floats for the most part.
#[test]
fn logits_are_the_cpus() {
    for arch in ["llama", "qwen2", "qwen3"] {
        let Some(device) = device() else { return };
        let model = small(arch);
        let limits = limits(21, 1, 48);
        let mut split = halved(device, &model, limits, true);
        let options = both(1, KvType::F16, limits, true);
        let mut cpu = cpu::Cpu::prepare(&model.0, &model.1, &options.cpu, &mut |_, _| {})
            .expect("it is prepared");
        let mut error = |phase, parts: &[&[u32]]| {
            let (mut ours, mut theirs) = (Sequences::new(1, 48), Sequences::new(1, 48));
            let run = |part: &&[u32]| {
                let (a, b) = (
                    ours.run(&mut split, phase, &[part]),
                    theirs.run(&mut cpu, phase, &[part]),
                );
                nmse(&a[0], &b[0]).expect("same length")
            };
            parts.iter().map(run).fold(0.0, f64::max)
        };
        let tokens = text(21);
        let (prompt, limit) = (error(Phase::Prefill, &[&tokens]), of_halves(&model.1));
        assert!(prompt <= limit, "{arch}: {prompt:e} > {limit:e}");
        let generated = error(Phase::Decode, &tokens.chunks(1).collect::<Vec<_>>());
        assert!(generated <= NMSE_FLOOR, "{arch}: {generated:e}");
    }
}

#[test]
fn taps_of_both_parts_come_in_the_order_of_the_graph() {
    for arch in ["llama", "qwen2", "qwen3"] {
        let Some(device) = device() else { return };
        let model = small(arch);
        let mut split = halved(device, &model, limits(5, 1, 5), true);
        let (tokens, mut seen) = (text(5), Vec::new());
        let seqs = [StepSequence {
            tokens: &tokens,
            start: 0,
            tables: &[&[0]],
            outputs: 3..5,
            ..StepSequence::default()
        }];
        let mut tap = |view: &TapView<'_>| {
            assert_eq!(view.data.len(), view.rows * view.width, "{}", view.tap);
            let earlier = seen
                .iter()
                .filter(|name| **name == view.tap.to_string())
                .count();
            assert_eq!(earlier, view.tap.nth, "{}", view.tap);
            seen.push(view.tap.to_string());
        };
        let step = Step {
            phase: Phase::Prefill,
            seqs: &seqs,
            input: &[],
        };
        let logits = split.step(&step, Some(&mut tap)).expect("it runs").to_vec();
        assert_eq!(
            seen,
            model
                .1
                .graph
                .taps()
                .map(|(tap, _)| tap.to_string())
                .collect::<Vec<_>>(),
            "{arch}"
        );
        assert_eq!(
            split.step(&step, None).expect("it runs"),
            logits,
            "{arch}: taps change nothing"
        );
    }
}

/// A generation over ten page boundaries: captured, alone and in buckets with surplus rows; and
/// never captured.
#[test]
fn captured_generation_goes_on_from_new_rows_each_time() {
    let Some(device) = device() else { return };
    let model = small("llama");
    let n = 170;
    let tokens = text(n);
    let limits = limits(16, 16, 192);
    let mut plain = halved(device, &model, limits, false);
    let mut sequence = Sequences::new(1, 192);
    let expected: Vec<Vec<f32>> = tokens
        .iter()
        .flat_map(|t| sequence.run(&mut plain, Phase::Decode, &[&[*t]]))
        .collect();

    let watched = Watched::new(super::device().expect("there was one"));
    let mut captured = halved(watched, &model, limits, true);
    let loaded = captured.device().uploads;
    let mut sequence = Sequences::new(1, 192);
    for (i, (t, expected)) in tokens.iter().zip(&expected).enumerate() {
        assert!(
            sequence.run(&mut captured, Phase::Decode, &[&[*t]])[0] == *expected,
            "token {i}"
        );
    }
    let device = captured.device();
    assert_eq!(
        (device.recordings, device.replays),
        (1, n - 1),
        "all but the first step are replayed"
    );
    assert_eq!(
        device.uploads - loaded,
        2 * n,
        "a record and rows for each step"
    );

    // nine in a bucket of sixteen
    let mut several = Sequences::new(9, 192);
    for (i, t) in tokens.iter().take(40).enumerate() {
        let got = several.run(&mut captured, Phase::Decode, &[&[*t][..]; 9]);
        assert!(
            got.iter().all(|got| *got == expected[i]),
            "token {i} of nine sequences"
        );
    }
    let device = captured.device();
    assert_eq!(device.recordings, 2);
    let (rows, behind) = device.last.split_at(9 * 64 * 4);
    assert!(
        rows.chunks(64 * 4)
            .all(|row| row == &rows[..64 * 4] && row.iter().any(|b| *b != 0))
    );
    assert!(
        behind.len() == 7 * 64 * 4 && behind.iter().all(|b| *b == 0),
        "rows too many are numbers"
    );
}

#[test]
fn logits_depend_on_no_neighbour_and_no_cut() {
    let Some(device) = device() else { return };
    let mut split = halved(device, &small("qwen3"), limits(64, 3, 48), true);
    no_neighbour_and_no_cut(&mut split, "on two devices");
}

/// A part of a prompt without outputs still fills both caches.
#[test]
fn rows_without_outputs_are_cached() {
    let Some(device) = device() else { return };
    let mut split = halved(device, &small("qwen2"), limits(20, 1, 48), true);
    let tokens = text(20);
    let mut run = |first: usize, tokens: &[u32], outputs: std::ops::Range<usize>| {
        let seqs = [StepSequence {
            tokens,
            start: first,
            tables: &[&[0, 1]],
            outputs,
            ..StepSequence::default()
        }];
        split
            .step(
                &Step {
                    phase: Phase::Prefill,
                    seqs: &seqs,
                    input: &[],
                },
                None,
            )
            .expect("it runs")
            .to_vec()
    };
    let whole = run(0, &tokens, 19..20);
    assert!(run(0, &tokens[..11], 0..0).is_empty());
    assert_eq!(run(11, &tokens[11..], 8..9), whole);
}

#[test]
fn a_page_is_copied_in_both_parts() {
    let Some(device) = device() else { return };
    let mut split = halved(device, &small("qwen2"), limits(20, 1, 48), true);
    let tokens = text(20);
    let mut sequence = Sequences::on(vec![0], vec![vec![0, 1]]);
    sequence.run(&mut split, Phase::Prefill, &[&tokens]);
    let expected = sequence.run(&mut split, Phase::Decode, &[&[9]]);
    split.copy_page(0, 0, 3).expect("it copies");
    // the old contents are overwritten
    Sequences::on(vec![0], vec![vec![0]]).run(&mut split, Phase::Prefill, &[&text(16)[..9]]);
    let mut other = Sequences::on(vec![20], vec![vec![3, 1]]);
    assert_eq!(other.run(&mut split, Phase::Decode, &[&[9]]), expected);
}

#[test]
fn all_layers_need_one_device_and_none_the_other() {
    let Some(device) = device() else { return };
    let (gguf, model) = small("llama");
    let on = |device, gpu_layers| {
        let options = both(gpu_layers, KvType::F16, limits(4, 1, 16), true);
        split::prepare(device, &gguf, &model, &options, &mut |_| {}).expect("it is prepared")
    };
    let device_name = device.describe();
    for gpu_layers in [2, 3, usize::MAX] {
        let executable = on(super::device().expect("there was one"), gpu_layers);
        assert_eq!(executable.describe(), format!("cuda, {device_name}"));
    }
    let split = on(device, 1);
    let description = split.describe();
    assert!(
        description.starts_with("1 of 2 layers: cpu, "),
        "{description}"
    );
    assert!(
        description.ends_with(&format!("; 1: cuda, {device_name}")),
        "{description}"
    );
    assert!(split.n_pages() == 2 && split.weight_bytes() > 0);

    // with no layers for a GPU, none is opened
    let options = EngineOptions {
        device: DeviceChoice::Cuda(1 << 20),
        gpu_layers: Some(0),
        ctx: Some(64),
        ..EngineOptions::default()
    };
    let engine = Engine::load(&ModelSource::Demo, &options, &mut |_| {}).expect("it loads");
    assert!(
        engine.describe().starts_with("cpu, "),
        "{}",
        engine.describe()
    );
}

/// Progress is reported for both parts as one, and the device's memory is its own.
#[test]
fn progress_and_memory_are_those_of_the_parts() {
    let Some(device) = device() else { return };
    let (gguf, model) = small("qwen3");
    let options = both(1, KvType::F16, limits(4, 1, 64), true);
    let (mut lines, mut progress) = (Vec::new(), Vec::new());
    let mut sink = |event: Loading<'_>| match event {
        Loading::Note(line) => lines.push(line.to_owned()),
        Loading::Weights { done, total } => progress.push((done, total)),
    };
    Split::prepare(device, &gguf, &model, &options, &mut sink).expect("it is prepared");
    let total = progress[0].1;
    assert!(
        progress.iter().all(|(_, all)| *all == total) && progress.is_sorted(),
        "{progress:?}"
    );
    assert_eq!(
        (progress[0].0, progress.last().map(|p| p.0)),
        (0, Some(total)),
        "{progress:?}"
    );
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].contains("the last layer and the output take 1 MiB (weights 1, KV cache 1,"),
        "{lines:?}"
    );
}

#[test]
fn what_does_not_fit_says_what_would() {
    let Some(_) = shim() else { return };
    let (gguf, model) = open(&workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf"));
    let n_layer = model.hparams.n_layer();
    let refused = |gpu_layers: usize, capacity: u64| {
        let mut shim = shim().expect("there was one");
        shim.capacity = capacity;
        let options = both(gpu_layers, KvType::F16, limits(64, 1, 512), true);
        let error = split::prepare(shim, &gguf, &model, &options, &mut |_| {}).err()?;
        match error {
            octavo_engine::Error::Cuda(Error::TooLarge {
                needs, ref fitting, ..
            }) => Some((needs.total(), fitting.layers, error.to_string())),
            other => panic!("{other}"),
        }
    };
    let needs: Vec<u64> = (1..=n_layer)
        .map(|n| refused(n, 0).expect("nothing fits").0)
        .collect();
    assert!(needs.is_sorted_by(|a, b| a < b), "{needs:?}");
    for n in 1..n_layer {
        let (all, fitting, line) = refused(n_layer, needs[n - 1]).expect("one layer too many");
        assert_eq!((all, fitting), (needs[n_layer - 1], Some(n)));
        assert!(
            line.contains("the model takes ") && line.contains(", enough for the last "),
            "{line}"
        );
        let (_, fitting, _) = refused(n_layer, needs[n - 1] - 1).expect("one byte too few");
        assert_eq!(fitting, (n - 1 > 0).then_some(n - 1));
        assert!(
            refused(n, needs[n - 1]).is_none(),
            "{n} layers fit as promised"
        );
    }
    let (_, fitting, line) = refused(3, needs[1]).expect("one layer too many");
    assert_eq!(fitting, Some(2));
    assert!(
        line.contains("the last 3 layers and the output take "),
        "{line}"
    );
    let (_, _, line) = refused(n_layer, 0).expect("nothing fits");
    assert!(line.ends_with(" and 0 MiB are free"), "{line}");
}
