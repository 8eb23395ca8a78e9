//! Results of a step do not depend on pages, neighbours, the batches of a prompt, or whether
//! launches are captured.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_engine::backend::cuda::{Cuda, Error, Options};
use octavo_engine::backend::{Backend, Loading, Phase, Step, StepSequence};
use octavo_engine::sample::argmax;
use octavo_fixtures::workspace_root;
use octavo_kernels::{KvType, KvTypes, PAGE_POSITIONS};
use octavo_model::{Model, WeightId};

use super::watched::Watched;
use super::{Sequences, device, limits, open, prepare, same_in_two_groups, shim, small, text};

#[test]
fn logits_depend_on_no_page_order() {
    let (prompt, generated) = (text(37), text(12));
    for kv in octavo_kernels::cuda::launch::KV_TYPES {
        let Some(device) = device() else { return };
        let mut cuda = prepare(device, &small("qwen3"), kv, limits(37, 1, 64), true);
        let mut run = |table: [u32; 4]| {
            let mut sequence = Sequences::on(vec![0], vec![table.to_vec()]);
            let mut all = sequence.run(&mut cuda, Phase::Prefill, &[&prompt]);
            all.extend(
                generated
                    .iter()
                    .flat_map(|t| sequence.run(&mut cuda, Phase::Decode, &[&[*t]])),
            );
            all
        };
        let contiguous = run([0, 1, 2, 3]);
        assert_eq!(run([4, 1, 3, 0]), contiguous);
        assert_eq!(run([2, 0, 4, 1]), contiguous);
    }
}

/// Runs three prompts and a token for each, together, one by one, and in two parts.
pub(crate) fn no_neighbour_and_no_cut(executable: &mut dyn Backend, what: impl Display) {
    let prompts = [text(21), text(33)[5..].to_vec(), text(9)[2..].to_vec()];
    let mut together = Sequences::new(3, 48);
    let all = together.run(
        executable,
        Phase::Prefill,
        &[&prompts[0], &prompts[1], &prompts[2]],
    );
    let next = together.run(executable, Phase::Decode, &[&[5], &[6], &[7]]);
    for (i, prompt) in prompts.iter().enumerate() {
        let mut alone = Sequences::new(1, 48);
        let (first, second) = prompt.split_at(prompt.len() / 2);
        let mut logits = alone.run(executable, Phase::Prefill, &[first]).remove(0);
        logits.extend(alone.run(executable, Phase::Prefill, &[second]).remove(0));
        assert!(logits == all[i], "{what}: prompt {i} alone, in two parts");
        let token = 5 + i as u32;
        assert!(
            alone.run(executable, Phase::Decode, &[&[token]])[0] == next[i],
            "{what}: token {i} alone"
        );
    }
}

#[test]
fn logits_depend_on_no_neighbour_and_no_cut() {
    let Some(device) = device() else { return };
    for kv in [KvType::F16, KvType::Bf16] {
        let another = super::device().expect("there was one");
        let mut cuda = prepare(another, &small("llama"), kv, limits(64, 3, 48), false);
        no_neighbour_and_no_cut(&mut cuda, kv);
    }
    drop(device);
}

/// A generation over ten page boundaries: captured for one sequence and, with another length, for
/// two in one of four places; and never captured.
#[test]
fn captured_generation_crosses_page_boundaries_like_any_other() {
    let Some(device) = device() else { return };
    let model = small("llama");
    let n = 170;
    let tokens = text(n);
    let mut plain = prepare(device, &model, KvType::F16, limits(4, 4, 192), false);
    let mut sequence = Sequences::new(1, 192);
    let expected: Vec<Vec<f32>> = tokens
        .iter()
        .flat_map(|t| sequence.run(&mut plain, Phase::Decode, &[&[*t]]))
        .collect();

    let watched = Watched::new(super::device().expect("there was one"));
    let mut captured = prepare(watched, &model, KvType::F16, limits(4, 4, 192), true);
    assert_eq!(captured.device().allocations, 1, "one arena");
    let loaded = captured.device().uploads;
    let mut sequence = Sequences::new(1, 192);
    for (i, (t, expected)) in tokens.iter().zip(&expected).enumerate() {
        let got = sequence.run(&mut captured, Phase::Decode, &[&[*t]]);
        assert!(got[0] == *expected, "token {i}");
    }
    let device = captured.device();
    assert_eq!(
        (device.allocations, device.uploads - loaded),
        (1, n),
        "one step record for each step, and nothing else"
    );
    assert_eq!(
        (device.recordings, device.replays),
        (1, n - 1),
        "all but the first step are replayed"
    );
    assert_eq!(
        (device.downloads, device.host_buffers),
        (n, 2),
        "one wait for each step, places for outputs and words"
    );

    let mut several = Sequences::new(3, 192);
    for (i, t) in tokens.iter().take(40).enumerate() {
        let got = several.run(&mut captured, Phase::Decode, &[&[*t], &[*t], &[*t]]);
        assert!(
            got.iter().all(|got| *got == expected[i]),
            "token {i} of three sequences"
        );
    }
}

/// The typical fault of captured decode: block tables stay what they were at the capture. Kernels
/// detect it; without their checks, the text is wrong.
#[test]
fn a_stale_block_table_is_seen_at_the_first_new_page() {
    let model = small("llama");
    let tokens = text(36);
    let generate = |stale: Option<usize>, check_pages: bool| {
        let mut watched = Watched::new(device()?);
        watched.stale = stale;
        let limits = limits(1, 1, 48);
        let options = Options {
            kv_type: KvType::F16.both(),
            limits,
            graphs: true,
            check_pages,
            threads: 1,
        };
        let mut cuda = Cuda::prepare(watched, &model.0, &model.1, &options, &mut |_| {})
            .expect("it is prepared");
        let mut all = Vec::new();
        for (i, token) in tokens.iter().enumerate() {
            let table = &[0, 2, 1][..=i / PAGE_POSITIONS];
            let seqs = [StepSequence {
                tokens: &[*token],
                start: i,
                tables: &[table],
                outputs: 0..1,
                ..StepSequence::default()
            }];
            match cuda.step(
                &Step {
                    phase: Phase::Decode,
                    seqs: &seqs,
                    input: &[],
                },
                None,
            ) {
                Ok(logits) => all.push(logits.to_vec()),
                Err(error) => return Some((all, error.to_string())),
            }
        }
        Some((all, String::new()))
    };
    let stale = Some(4 * 3);
    let Some((right, _)) = generate(None, true) else {
        return;
    };
    let (seen, error) = generate(stale, true).expect("there was a device");
    assert_eq!(
        error,
        "CUDA: sequence 0, position 16: the block table on the GPU lacks one of its pages"
    );
    assert!(seen == right[..16]);
    let (wrong, error) = generate(stale, false).expect("there was a device");
    assert_eq!(error, "");
    let first = right.iter().zip(&wrong).position(|(a, b)| a != b);
    assert_eq!(first, Some(16));
}

/// A step with taps runs every operation separately; others fuse several. No value may differ.
#[test]
fn what_is_done_together_changes_no_number() {
    for (i, arch) in ["qwen3", "llama", "qwen2", "qwen3"].into_iter().enumerate() {
        let kv = [KvType::F16, KvType::F32, KvType::Bf16, KvType::F32][i];
        let Some(device) = device() else { return };
        let mut cuda = prepare(device, &small(arch), kv, limits(20, 10, 40), false);
        let tokens = text(20);
        for (phase, n) in [
            (Phase::Prefill, 1),
            (Phase::Prefill, 3),
            (Phase::Decode, 1),
            (Phase::Decode, 10),
        ] {
            let pages: Vec<[u32; 1]> = (0..n as u32).map(|s| [s]).collect();
            let tables: Vec<[&[u32]; 1]> = pages.iter().map(|page| [&page[..]]).collect();
            let length = if phase == Phase::Prefill { 5 } else { 1 };
            let one = |s: usize| StepSequence {
                tokens: &tokens[s..s + length],
                start: 0,
                tables: &tables[s],
                outputs: 0..1,
                ..StepSequence::default()
            };
            let seqs: Vec<StepSequence<'_>> = (0..n).map(one).collect();
            let step = Step {
                phase,
                seqs: &seqs,
                input: &[],
            };
            let together = cuda.step(&step, None).expect("it runs").to_vec();
            let mut taps = 0;
            let apart = cuda.step(&step, Some(&mut |_| taps += 1)).expect("it runs");
            assert!(
                taps > 20 && *apart == together,
                "{arch}, {kv}, {phase:?}, {n} sequences"
            );
        }
    }
}

/// The argmax found on the device is that of all logits, captured or not, and logits stay the same.
#[test]
fn the_largest_logit_is_found_where_it_is() {
    for graphs in [false, true] {
        let Some(device) = device() else { return };
        let mut cuda = prepare(
            device,
            &small("qwen3"),
            KvType::F16,
            limits(20, 4, 40),
            graphs,
        );
        let tokens = text(20);
        let pages: Vec<[u32; 1]> = (0..4).map(|s| [s]).collect();
        let tables: Vec<[&[u32]; 1]> = pages.iter().map(|page| [&page[..]]).collect();
        for (phase, n) in [(Phase::Prefill, 2), (Phase::Decode, 1), (Phase::Decode, 3)] {
            for at in 0..4 {
                let length = if phase == Phase::Prefill { 5 } else { 1 };
                let outputs = length - 1..length;
                let one = |s: usize| StepSequence {
                    tokens: &tokens[s + at..s + at + length],
                    start: at,
                    tables: &tables[s],
                    outputs: outputs.clone(),
                    ..StepSequence::default()
                };
                let seqs: Vec<StepSequence<'_>> = (0..n).map(one).collect();
                let step = Step {
                    phase,
                    seqs: &seqs,
                    input: &[],
                };
                let best = cuda.argmax(&step).expect("it runs");
                let logits = cuda.step(&step, None).expect("it runs");
                let expected: Vec<_> = logits.chunks_exact(logits.len() / n).map(argmax).collect();
                assert_eq!(
                    best, expected,
                    "{phase:?}, {n} sequences, position {at}, graphs {graphs}"
                );
            }
        }
    }
}

/// Tokens without outputs leave the same keys and values as any others, in both phases and for both
/// kinds of outputs.
#[test]
fn tokens_without_outputs_are_remembered_like_any_others() {
    let last = |phase, all_outputs: bool, best: bool| {
        let model = small("qwen3");
        let mut cuda = prepare(device()?, &model, KvType::F16, limits(5, 1, 16), true);
        let tokens = text(9);
        let mut logits = Vec::new();
        for (phase, range) in [
            (Phase::Prefill, 0..4),
            (phase, 4..5),
            (phase, 5..8),
            (Phase::Decode, 8..9),
        ] {
            let n = range.len();
            let is_last = range.end == tokens.len();
            let seqs = [StepSequence {
                tokens: &tokens[range.clone()],
                start: range.start,
                tables: &[&[0]],
                outputs: if all_outputs || is_last { 0..n } else { 0..0 },
                ..StepSequence::default()
            }];
            let step = Step {
                phase,
                seqs: &seqs,
                input: &[],
            };
            if best && !is_last {
                let n = if all_outputs { n } else { 0 };
                assert_eq!(cuda.argmax(&step).expect("it runs").len(), n);
            } else {
                logits = cuda.step(&step, None).expect("it runs").to_vec();
                assert_eq!(logits.is_empty(), !all_outputs && !is_last);
            }
        }
        Some(logits)
    };
    for phase in [Phase::Prefill, Phase::Decode] {
        let Some(expected) = last(phase, true, false) else {
            return;
        };
        assert!(!expected.is_empty());
        for (all_outputs, best) in [(true, true), (false, false), (false, true)] {
            let got = last(phase, all_outputs, best).expect("there was one");
            assert!(
                got == expected,
                "{phase:?}, all_outputs {all_outputs}, best {best}"
            );
        }
    }
}

/// Launches that a layer takes per decode step: gaps between them cost as much as reading weights.
#[test]
fn layers_take_few_launches() {
    for name in [
        "../src/engine/demo/tiny-qwen3-Q4_K_M",
        "models/rnd-llama-Q4_K_M",
        "models/rnd-qwen2-Q6_K",
    ] {
        let Some(device) = device() else { return };
        let (gguf, model) = open(&workspace_root().join(format!("reference/{name}.gguf")));
        let layers = &model.weights.layers;
        let ty = |id| model.weights.matrix(id).ty;
        // products of one input are one launch if their weights are of one type
        let types = |ids: &[WeightId]| ids.iter().map(|id| ty(*id)).collect::<HashSet<_>>().len();
        let most: usize = layers
            .iter()
            .map(|layer| {
                let a = layer.attention.expect("it attends");
                8 + types(&[a.wq, a.wk.expect("keys"), a.wv.expect("values")])
            })
            .sum();
        let mut cuda = prepare(
            Watched::new(device),
            &(gguf, model),
            KvType::F16,
            limits(1, 1, 16),
            true,
        );
        let mut sequence = Sequences::new(1, 16);
        for token in [1, 2, 3] {
            sequence.run(&mut cuda, Phase::Decode, &[&[token]]);
        }
        let recorded = &cuda.device().recorded;
        // embeddings, the last norm, the last product
        let around = 3;
        println!(
            "{name}: {} launches, expected at most {}",
            recorded.len(),
            around + most
        );
        assert!(recorded.len() <= around + most, "{name}: {recorded:#?}");
    }
}

#[test]
fn a_copied_page_is_the_page() {
    let Some(device) = device() else { return };
    let mut cuda = prepare(
        device,
        &small("qwen2"),
        KvType::F32,
        limits(20, 1, 48),
        true,
    );
    let tokens = text(20);
    let mut sequence = Sequences::on(vec![0], vec![vec![0, 1]]);
    sequence.run(&mut cuda, Phase::Prefill, &[&tokens]);
    let expected = sequence.run(&mut cuda, Phase::Decode, &[&[9]]);
    cuda.copy_page(0, 0, 3).expect("it copies");
    let mut other = Sequences::on(vec![20], vec![vec![3, 1]]);
    assert_eq!(other.run(&mut cuda, Phase::Decode, &[&[9]]), expected);
    cuda.copy_page(0, 2, 0).expect("it copies");
    let mut sequence = Sequences::on(vec![20], vec![vec![0, 1]]);
    assert_ne!(
        sequence.run(&mut cuda, Phase::Decode, &[&[9]]),
        expected,
        "what was there is gone"
    );
}

#[test]
fn what_does_not_fit_is_refused_with_numbers() {
    let Some(mut shim) = shim() else { return };
    let (gguf, model) = small("llama");
    shim.capacity = 1 << 20;
    let options = |kv_type: KvTypes| Options {
        kv_type,
        limits: limits(512, 1, 4096),
        graphs: true,
        check_pages: true,
        threads: 1,
    };
    let refused = |shim, kv_type| {
        let mut announced = String::new();
        let mut sink = |event: Loading<'_>| match event {
            Loading::Note(line) => announced += line,
            Loading::Weights { .. } => panic!("nothing is loaded"),
        };
        let error = Cuda::prepare(shim, &gguf, &model, &options(kv_type), &mut sink)
            .err()
            .expect("it is refused");
        (error, announced)
    };
    let (error, announced) = refused(shim, KvType::F16.both());
    let Error::TooLarge { needs, free, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*free, 1 << 20);
    assert!(
        announced.ends_with(&format!("the model takes {needs}")),
        "{announced}"
    );
    // two layers, 2 KV heads of 16 values, keys and values in halves, for 256 pages and one
    assert_eq!(needs.kv, 2 * 2 * 2 * 16 * 2 * 16 * 257);
    assert!(
        error
            .to_string()
            .contains(&format!("the model takes {needs}, and 1 MiB are free")),
        "{error}"
    );

    let (k, v) = (KvType::F16, KvType::Q8_0);
    for (types, expected) in [
        (
            v.both(),
            "KV cache of q8_0: expected heads of a multiple of 32 values, got 16".to_owned(),
        ),
        (
            KvTypes { k, v },
            "KV cache of f16/q8_0 on a GPU: expected the same type for keys and values, of f16, \
             f32, bf16, q8_0, f8_e4m3 or q4_0"
                .to_owned(),
        ),
    ] {
        let (error, announced) = refused(super::shim().expect("there was one"), types);
        assert_eq!(error.to_string(), expected);
        assert_eq!(announced, "");
    }
}

#[test]
fn layers_with_other_key_heads_have_caches_of_their_own() {
    for (arch, kv) in [("qwen3", KvType::F16), ("llama", KvType::F32)] {
        let run = |model: &(Arc<Gguf>, Model)| {
            let mut cuda = prepare(device()?, model, kv, limits(24, 2, 64), true);
            assert_eq!(cuda.cache_groups(), model.1.hparams.caches.len());
            let mut sequences = Sequences::new(2, 64);
            let tokens = text(48);
            let prompts = [&tokens[..24 - 7], &tokens[24..24 + 7]];
            let mut all = sequences.run(&mut cuda, Phase::Prefill, &prompts);
            for i in 0..3 {
                let next = [&tokens[40 + i..=40 + i], &tokens[20 + i..=20 + i]];
                all.extend(sequences.run(&mut cuda, Phase::Decode, &next));
            }
            Some(all)
        };
        let [one, two] = same_in_two_groups(arch);
        assert_eq!(two.1.hparams.caches.len(), 2);
        let (Some(expected), Some(got)) = (run(&one), run(&two)) else {
            return;
        };
        assert!(expected == got, "{arch}: other bits");
    }
}
