//! The same bits, whatever the number of threads, the batches of the prompt, the pages in the
//! cache, and the history of a session.

mod drafts;
mod layers;

use octavo_engine::backend::Phase;
use octavo_engine::sample::top_logits;
use octavo_engine::{Engine, EngineOptions, LogitsFor, ModelSource, Session};
use octavo_fixtures::{is_full, shared, some_of, workspace_root};
use octavo_kernels::{Isa, IsaChoice, KvType, KvTypes, PAGE_POSITIONS as PAGE, PromptBits};

/// 37 positions: more than two pages, and no multiple of 7, 16 or a kernel's tile.
const PROMPT: usize = 37;
/// Enough to enter another page.
const GENERATED: usize = 14;

fn committed_models() -> Vec<ModelSource> {
    let path = |name| workspace_root().join(format!("reference/models/{name}.gguf"));
    let paths = ["rnd-llama-Q4_K_M", "rnd-qwen2-Q6_K"].map(path);
    std::iter::once(ModelSource::Demo)
        .chain(paths.into_iter().map(ModelSource::Path))
        .collect()
}

/// Returns one model of each architecture; if the large fixtures are there, also one whose weights
/// no packed kernel takes, and one with YaRN whose heads are wider than the model.
fn models() -> Vec<ModelSource> {
    let more = ["IQ4_XS", "Q8_0"].into_iter().zip(["tiny", "rnd"]);
    let more = more.filter_map(|(ty, kind)| shared(&format!("models/{kind}-qwen3-{ty}.gguf")));
    committed_models()
        .into_iter()
        .chain(more.map(ModelSource::Path))
        .collect()
}

fn load(source: &ModelSource, options: &EngineOptions) -> Engine {
    Engine::load(source, options, &mut |_| {}).expect("the model loads")
}

fn options(isa: Isa, threads: usize, batch: usize) -> EngineOptions {
    let ctx = Some(PROMPT + GENERATED);
    EngineOptions {
        isa: IsaChoice::Only(isa),
        threads: Some(threads),
        batch: Some(batch),
        ctx,
        ..EngineOptions::default()
    }
}

/// Returns a prompt that depends on the vocabulary alone.
fn prompt(engine: &Engine) -> Vec<u32> {
    let n = engine.hparams().n_vocab();
    (0..PROMPT)
        .map(|i| u32::try_from((i * i * 7919 + 11) % n).expect("an id"))
        .collect()
}

fn most_likely(logits: &[f32]) -> u32 {
    top_logits(logits, 1)[0].0
}

/// Returns all logits of a prompt and of a greedy generation after it, as bits.
fn kv(session: &mut Session, prompt: &[u32], generated: usize) -> (Vec<u32>, Vec<u32>) {
    let read = session
        .eval(prompt, Phase::Prefill, LogitsFor::All)
        .expect("logits");
    let mut tokens = vec![most_likely(read.last().expect("a row"))];
    let mut bits: Vec<u32> = read.data.iter().map(|x| x.to_bits()).collect();
    while tokens.len() < generated {
        let next = session
            .eval(&tokens[tokens.len() - 1..], Phase::Decode, LogitsFor::Last)
            .expect("logits");
        bits.extend(next.data.iter().map(|x| x.to_bits()));
        tokens.push(most_likely(&next.data));
    }
    (tokens, bits)
}

/// Threads and batch; the last has more threads than most test machines have CPUs.
const GRID: [(usize, usize); 11] = [
    (1, 1),
    (1, 7),
    (2, 1),
    (2, 7),
    (2, 512),
    (3, 1),
    (3, 7),
    (3, 512),
    (5, 7),
    (5, 512),
    (8, 16),
];

/// One model of each feature that other architectures have: sliding windows and logit caps, sinks
/// and experts, parallel blocks, position-dependent query scales, fused tensors, norms after
/// blocks, layer norms, three kinds of recurrent states.
#[test]
fn threads_and_batches_change_nothing_in_other_architectures() {
    let names = [
        "gemma2-Q8_0",
        "gpt-oss-MXFP4_MOE",
        "gemma4-F32",
        "gemma4-Q4_0",
        "qwen2moe-Q8_0",
        "glm4moe-Q8_0",
        "cohere2-Q8_0",
        "mistral3-Q6_K",
        "phi3-Q4_K_M",
        "olmo2-Q5_0",
        "nemotron-Q5_0",
        "qwen35-Q4_K_M",
        "qwen3next-Q8_0",
        "falcon-h1-Q4_K_M",
        "mamba2-Q8_0",
        "lfm2moe-Q8_0",
        "deepseek2-Q4_K_M",
    ];
    let paths = names.map(|name| shared(&format!("arch/models/{name}.gguf")));
    let more = [
        "jamba-Q8_0",
        "mpt-F32",
        "plamo2-Q8_0",
        "rwkv7-Q8_0",
        "deepseek32-Q8_0",
        "glm-dsa-Q8_0",
    ];
    let more = more.map(|name| shared(&format!("arch2/models/{name}.gguf")));
    let paths = paths.into_iter().chain(more);
    let mut turn = 0;
    let sources = paths.flatten().map(ModelSource::Path);
    for (model, source) in sources.enumerate() {
        let bits = |isa: Isa| {
            let all = PromptBits::ALL.into_iter();
            let has = move |bits: &PromptBits| match bits {
                PromptBits::Eight => isa.has_byte_prompts(),
                PromptBits::Thirteen => isa.has_thirteen_bits(),
                PromptBits::Sixteen => true,
            };
            all.filter(has).map(move |bits| (isa, bits))
        };
        // the scalar kernels are slow, and run with the models above
        let is_left_out = |isa: &Isa| *isa == Isa::Scalar && !is_full();
        let isas = Isa::available().into_iter().filter(|isa| !is_left_out(isa));
        // the best one with each model, the others by turns
        let (best, others): (Vec<Isa>, Vec<Isa>) = isas.partition(|isa| *isa == Isa::best());
        let isas = best.into_iter().chain(some_of(others, model, 3));
        for (isa, prompt_bits) in isas.flat_map(bits) {
            let run = |threads, batch| {
                let options = EngineOptions {
                    prompt_bits,
                    ..options(isa, threads, batch)
                };
                let engine = load(&source, &options);
                let prompt = prompt(&engine);
                kv(&mut engine.session(), &prompt, GENERATED)
            };
            let expected = run(1, 512);
            turn += 1;
            for (threads, batch) in some_of(GRID, turn, 8) {
                assert!(
                    run(threads, batch) == expected,
                    "{source:?} {isa}, {prompt_bits} bits: {threads} threads, batch {batch}"
                );
            }
        }
    }
}

/// Keys and values of different sizes, of which values are rotated.
const MIXED: KvTypes = KvTypes {
    k: KvType::Q8_0,
    v: KvType::Q4_0,
};

#[test]
fn threads_and_batches_change_nothing() {
    let mut turn = 0;
    for source in models() {
        for isa in Isa::available() {
            for (kv_type, repack, prompt_bits) in [
                (KvType::F16.both(), true, PromptBits::Sixteen),
                (KvType::F16.both(), true, PromptBits::Eight),
                (KvType::F16.both(), true, PromptBits::Thirteen),
                (KvType::F32.both(), true, PromptBits::Sixteen),
                (KvType::F16.both(), false, PromptBits::Sixteen),
                (MIXED, true, PromptBits::Sixteen),
            ] {
                let run = |threads, batch| {
                    let engine = load(
                        &source,
                        &EngineOptions {
                            kv_type,
                            repack,
                            prompt_bits,
                            ..options(isa, threads, batch)
                        },
                    );
                    let prompt = prompt(&engine);
                    kv(&mut engine.session(), &prompt, GENERATED)
                };
                let expected = run(1, 512);
                // more of the grid for the default options and fast kernels
                let is_default = kv_type == KvType::F16.both() && repack;
                let step = if is_default && isa != Isa::Scalar {
                    6
                } else {
                    12
                };
                turn += 1;
                for (threads, batch) in some_of(GRID, turn, step) {
                    let what = || {
                        format!(
                            "{source:?} {isa} {kv_type} repack {repack}, {prompt_bits} bits: \
                             {threads} threads, batch {batch}"
                        )
                    };
                    let (tokens, bits) = run(threads, batch);
                    assert_eq!(tokens, expected.0, "{}", what());
                    assert!(bits == expected.1, "{}: equal tokens, other bits", what());
                }
            }
        }
    }
}

/// The length of a conversation: the pages of one sequence lie among those of others, in the order
/// in which they were freed.
#[test]
fn a_long_sequence_on_a_fragmented_pool_equals_one_on_a_fresh_pool() {
    const LONG: usize = 260;
    for source in committed_models() {
        for kv_type in [KvType::F16.both(), KvType::F32.both(), MIXED] {
            let options = |sessions, threads, batch| EngineOptions {
                ctx: Some(PROMPT + LONG),
                kv_type,
                sessions,
                ..options(Isa::best(), threads, batch)
            };
            let engine = load(&source, &options(1, 2, 512));
            let prompt = prompt(&engine);
            let expected = kv(&mut engine.session(), &prompt, LONG);
            let engine = load(&source, &options(4, 3, 7));
            // three sessions take pages alternately; two of them free theirs, and the third keeps
            // every third page in use
            let mut others = [engine.session(), engine.session(), engine.session()];
            for page in prompt.chunks(16).cycle().take(12) {
                for session in &mut others {
                    session
                        .eval(page, Phase::Prefill, LogitsFor::None)
                        .expect("it fits");
                }
            }
            let [first, kept, last] = others;
            drop(last);
            let mut session = engine.session();
            session
                .eval(&prompt[..20], Phase::Prefill, LogitsFor::None)
                .expect("it fits");
            drop(first);
            session.truncate(0);
            let got = kv(&mut session, &prompt, LONG);
            assert_eq!(got.0, expected.0, "{source:?} {kv_type}");
            assert!(
                got.1 == expected.1,
                "{source:?} {kv_type}: equal tokens, other bits"
            );
            assert!(
                kept.tokens().len() > 100,
                "a neighbour was there all the time"
            );
        }
    }
}

#[test]
fn a_session_that_went_back_equals_a_fresh_one() {
    for source in models() {
        let engine = load(
            &source,
            &EngineOptions {
                sessions: 2,
                ..options(Isa::best(), 2, 7)
            },
        );
        let prompt = prompt(&engine);
        let expected = kv(&mut engine.session(), &prompt, GENERATED);
        let mut session = engine.session();
        // other tokens first, at the same positions
        let other: Vec<u32> = prompt.iter().rev().copied().collect();
        session
            .eval(&other, Phase::Prefill, LogitsFor::None)
            .expect("it fits");
        for kept in [0, 1, 15, 16, 17, 36] {
            session.truncate(0);
            session
                .eval(&prompt[..kept], Phase::Prefill, LogitsFor::None)
                .expect("it fits");
            session
                .eval(&other[kept..], Phase::Prefill, LogitsFor::None)
                .expect("it fits");
            session.truncate(kept);
            let rest = session
                .eval(&prompt[kept..], Phase::Prefill, LogitsFor::All)
                .expect("logits");
            let bits: Vec<u32> = rest.data.iter().map(|x| x.to_bits()).collect();
            let n_vocab = rest.n_vocab;
            assert!(
                bits == expected.1[kept * n_vocab..PROMPT * n_vocab],
                "{source:?}: back to {kept}"
            );
        }
    }
}

#[test]
fn where_pages_lie_and_who_else_is_there_changes_nothing() {
    for source in models() {
        let engine = load(
            &source,
            &EngineOptions {
                sessions: 4,
                ..options(Isa::best(), 2, 16)
            },
        );
        let prompt = prompt(&engine);
        let expected = kv(&mut engine.session(), &prompt, GENERATED);
        // two neighbours take and free pages alternately, so that this one's pages are scattered
        let (mut left, mut right, mut middle) =
            (engine.session(), engine.session(), engine.session());
        let mut bits = Vec::new();
        for part in prompt.chunks(5) {
            left.eval(part, Phase::Prefill, LogitsFor::None)
                .expect("it fits");
            let logits = middle
                .eval(part, Phase::Prefill, LogitsFor::All)
                .expect("logits");
            bits.extend(logits.data.iter().map(|x| x.to_bits()));
            right
                .eval(part, Phase::Prefill, LogitsFor::None)
                .expect("it fits");
            if left.tokens().len() > 20 {
                left.truncate(3);
            }
        }
        assert!(
            bits == expected.1[..bits.len()],
            "{source:?}: scattered pages"
        );
        let mut last = most_likely(
            &bits[bits.len() - engine.hparams().n_vocab()..]
                .iter()
                .map(|b| f32::from_bits(*b))
                .collect::<Vec<_>>(),
        );
        for token in &expected.0[1..] {
            left.truncate(2);
            left.eval(&[last], Phase::Decode, LogitsFor::None)
                .expect("it fits");
            let logits = middle
                .eval(&[last], Phase::Decode, LogitsFor::Last)
                .expect("logits");
            last = most_likely(&logits.data);
            assert_eq!(last, *token, "{source:?}: generation on scattered pages");
        }
    }
}

#[test]
fn looking_at_tensors_changes_nothing() {
    for source in models() {
        let engine = load(&source, &options(Isa::best(), 2, 7));
        let prompt = prompt(&engine);
        let expected = engine
            .session()
            .eval(&prompt, Phase::Prefill, LogitsFor::All)
            .expect("logits")
            .data;
        let (mut seen, mut got) = (0, Vec::new());
        let mut look = |_: &octavo_engine::backend::TapView<'_>| seen += 1;
        let mut session = engine.session();
        let mut sink = |_: usize, row: &[f32]| got.extend_from_slice(row);
        session
            .eval_with(
                &prompt,
                Phase::Prefill,
                LogitsFor::All,
                Some(&mut look),
                &mut sink,
            )
            .expect("logits");
        assert!(
            seen > 0 && got == expected,
            "{source:?}: {seen} tensors seen"
        );
    }
}

/// The mapped file and the file in memory are the same bytes.
#[test]
fn reading_instead_of_mapping_changes_nothing() {
    let path = workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
    let run = |mmap| {
        let source = ModelSource::Path(path.clone());
        let engine = load(
            &source,
            &EngineOptions {
                mmap,
                ..options(Isa::best(), 2, 512)
            },
        );
        kv(&mut engine.session(), &prompt(&engine), GENERATED)
    };
    assert!(run(true) == run(false));
}
