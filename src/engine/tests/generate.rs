//! Generation over a model of a few lines: stopping, streaming, limits, reuse of the cache,
//! cancelling.

mod shown;
mod suppressed;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;

use approx::assert_abs_diff_eq;
use octavo_engine::generate::{
    Error, FinishReason, Generation, GenerationParams, Lm, Next, Observer, Vocabulary, generate,
};
use octavo_engine::sample::SamplerConfig;
use octavo_engine::sequence::SequenceError;
use octavo_kernels::Phase;
use proptest::prelude::*;

#[derive(Debug, thiserror::Error)]
#[error("the step was told to fail")]
struct Broken;

/// A model with a fixed script: after `n` generated tokens comes `script[n]`, then always the last
/// one.
struct Script {
    script: Vec<u32>,
    n_vocab: usize,
    n_ctx: usize,
    tokens: Vec<u32>,
    prompt_len: usize,
    /// Every call: number of tokens, and their phase.
    calls: Vec<(usize, Phase)>,
    fail_at: Option<usize>,
}

impl Script {
    fn new(script: &[u32], n_vocab: usize) -> Script {
        let (n_ctx, tokens, calls) = (1000, Vec::new(), Vec::new());
        Script {
            script: script.to_vec(),
            n_vocab,
            n_ctx,
            tokens,
            prompt_len: 0,
            calls,
            fail_at: None,
        }
    }
}

impl Lm for Script {
    type Error = Broken;

    fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    fn truncate(&mut self, n: usize) {
        self.tokens.truncate(n);
    }

    fn eval(&mut self, tokens: &[u32], phase: Phase, next: Next<'_>) -> Result<(), Broken> {
        if self.fail_at == Some(self.calls.len()) {
            return Err(Broken);
        }
        self.calls.push((tokens.len(), phase));
        self.tokens.extend_from_slice(tokens);
        assert!(
            self.tokens.len() <= self.n_ctx,
            "written past the end of the context"
        );
        if phase == Phase::Prefill {
            self.prompt_len = self.tokens.len();
        }
        let end = self.tokens.len() - self.prompt_len;
        let says = |at: usize| self.script[at.min(self.script.len() - 1)];
        let last = |rows: usize| (end + 1 - rows..=end).map(says);
        match next {
            Next::Nothing => {}
            Next::Logits { rows, into } => {
                into.clear();
                for token in last(rows) {
                    let start = into.len();
                    into.resize(start + self.n_vocab, 0.0);
                    into[start + token as usize] = 5.0;
                }
            }
            Next::Argmax { rows, into } => *into = last(rows).collect(),
        }
        Ok(())
    }
}

/// Token 0 ends the text, token 1 is a control token; the others are the given pieces.
struct Pieces(BTreeMap<u32, Vec<u8>>);

impl Pieces {
    fn new(pieces: &[&[u8]]) -> Pieces {
        let named = [(0, b"<eos>".to_vec()), (1, b"<ctl>".to_vec())];
        Pieces(
            named
                .into_iter()
                .chain((2..).zip(pieces.iter().map(|p| p.to_vec())))
                .collect(),
        )
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Vocabulary for Pieces {
    fn piece(&self, id: u32) -> &[u8] {
        self.0.get(&id).map_or(&[], Vec::as_slice)
    }

    fn is_special(&self, id: u32) -> bool {
        id < 2
    }

    fn eog_ids(&self) -> &[u32] {
        &[0]
    }
}

#[derive(Default)]
struct Seen {
    pieces: Vec<String>,
    progress: Vec<(usize, usize)>,
    /// Number of polls after which it answers "cancelled".
    cancel_after: Option<usize>,
    asked: Cell<usize>,
    pipe_closed: bool,
}

impl Observer for Seen {
    fn prompt(&mut self, done: usize, total: usize) {
        self.progress.push((done, total));
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        if self.pipe_closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.pieces.push(text.to_owned());
        Ok(())
    }

    fn cancelled(&self) -> bool {
        self.asked.set(self.asked.get() + 1);
        self.cancel_after.is_some_and(|n| self.asked.get() > n)
    }
}

fn limited(n: usize) -> GenerationParams {
    GenerationParams {
        max_tokens: Some(n),
        ..GenerationParams::default()
    }
}

fn run(script: &[u32], vocabulary: &Pieces, options: &GenerationParams) -> (Generation, Seen) {
    let mut seen = Seen::default();
    let mut lm = Script::new(script, vocabulary.len());
    let out = generate(&mut lm, vocabulary, &[2], options, &mut seen).expect("a generation");
    assert_eq!(
        seen.pieces.concat(),
        out.text,
        "what was streamed is what is returned"
    );
    assert!(seen.pieces.iter().all(|p| !p.is_empty()));
    (out, seen)
}

#[test]
fn ends_at_the_end_of_generation_token_and_counts_it() {
    let v = Pieces::new(&[b"a", b"b"]);
    let (out, seen) = run(&[2, 3, 0, 2], &v, &GenerationParams::default());
    assert_eq!((out.text.as_str(), out.finish), ("ab", FinishReason::Stop));
    assert_eq!(out.tokens, [2, 3, 0]);
    assert_eq!(seen.pieces, ["a", "b"], "text is shown as it comes");
    assert_eq!(out.stats.generated_tokens, 3);
}

#[test]
fn ends_at_the_most_tokens_asked_for() {
    let v = Pieces::new(&[b"a"]);
    for n in [0, 1, 5] {
        let (out, _) = run(&[2], &v, &limited(n));
        assert_eq!((out.tokens.len(), out.finish), (n, FinishReason::Length));
        assert_eq!(out.text, "a".repeat(n));
    }
}

#[test]
fn ends_at_the_end_of_the_context() {
    let v = Pieces::new(&[b"a"]);
    let mut lm = Script {
        n_ctx: 6,
        ..Script::new(&[2], v.len())
    };
    let out = generate(
        &mut lm,
        &v,
        &[2, 2, 2],
        &GenerationParams::default(),
        &mut Seen::default(),
    )
    .expect("fits");
    assert_eq!(
        (out.tokens.len(), out.finish),
        (4, FinishReason::ContextFull),
        "the last token needs no position"
    );
    let error = generate(
        &mut lm,
        &v,
        &[2; 7],
        &GenerationParams::default(),
        &mut Seen::default(),
    )
    .expect_err("too long");
    assert_eq!(
        error.to_string(),
        "the prompt has 7 tokens: expected at most the context of 6"
    );
}

#[test]
fn an_empty_prompt_and_unknown_ids_are_refused() {
    let v = Pieces::new(&[b"a"]);
    let mut lm = Script::new(&[2], v.len());
    let refused = |lm: &mut Script, prompt: &[u32], options: &GenerationParams| {
        generate(lm, &v, prompt, options, &mut Seen::default()).expect_err("refused")
    };
    assert!(matches!(
        refused(&mut lm, &[], &GenerationParams::default()),
        Error::Sequence(SequenceError::EmptyPrompt)
    ));
    let unknown = refused(&mut lm, &[2, 99], &GenerationParams::default());
    assert!(
        matches!(
            unknown,
            Error::Sequence(SequenceError::UnknownToken { id: 99, n_vocab: 3 })
        ),
        "{unknown}"
    );
    let stop_ids = GenerationParams {
        stop_ids: vec![3],
        ..GenerationParams::default()
    };
    assert!(matches!(
        refused(&mut lm, &[2], &stop_ids),
        Error::Sequence(SequenceError::UnknownToken { id: 3, .. })
    ));
    let empty_stop = GenerationParams {
        stop: vec![String::new()],
        ..GenerationParams::default()
    };
    assert!(matches!(
        refused(&mut lm, &[2], &empty_stop),
        Error::Sequence(SequenceError::Stop(_))
    ));
    let sampler = SamplerConfig {
        top_p: 2.0,
        ..SamplerConfig::default()
    };
    assert!(matches!(
        refused(
            &mut lm,
            &[2],
            &GenerationParams {
                sampler,
                ..GenerationParams::default()
            }
        ),
        Error::Sequence(SequenceError::Config(_))
    ));
    assert!(lm.calls.is_empty(), "refused before any work");
}

#[test]
fn what_the_cache_holds_is_not_read_again() {
    let v = Pieces::new(&[b"a", b"b", b"c"]);
    let mut lm = Script::new(&[3, 0], v.len());
    let mut turn = |prompt: &[u32]| {
        lm.calls.clear();
        let out = generate(
            &mut lm,
            &v,
            prompt,
            &GenerationParams::default(),
            &mut Seen::default(),
        )
        .expect("fits");
        (out.stats.cached_tokens, lm.calls[0].0, lm.tokens.clone())
    };
    assert_eq!(turn(&[2, 2, 2]), (0, 3, vec![2, 2, 2, 3]));
    assert_eq!(
        turn(&[2, 2, 2, 3, 4, 4]),
        (4, 2, vec![2, 2, 2, 3, 4, 4, 3]),
        "the answer is cached, too"
    );
    assert_eq!(
        turn(&[2, 2, 4]),
        (2, 1, vec![2, 2, 4, 3]),
        "a cache that goes on otherwise is cut"
    );
    assert_eq!(
        turn(&[2, 2, 4]),
        (2, 1, vec![2, 2, 4, 3]),
        "the last token is always read, for its logits"
    );
}

#[test]
fn a_prompt_is_read_in_chunks_with_progress() {
    let v = Pieces::new(&[b"a"]);
    let mut lm = Script::new(&[0], v.len());
    let mut seen = Seen::default();
    let options = GenerationParams {
        chunk: 4,
        ..GenerationParams::default()
    };
    generate(&mut lm, &v, &[2; 10], &options, &mut seen).expect("fits");
    assert_eq!(
        lm.calls,
        [
            (4, Phase::Prefill),
            (4, Phase::Prefill),
            (2, Phase::Prefill)
        ]
    );
    assert_eq!(seen.progress, [(0, 10), (4, 10), (8, 10), (10, 10)]);
}

#[test]
fn cancelling_keeps_what_there_is() {
    let v = Pieces::new(&[b"a", b"<"]);
    for (after, chunks, text) in [
        (0, 0, ""),
        (1, 1, ""),
        (2, 2, ""),
        (3, 2, "a"),
        (4, 2, "a<"),
    ] {
        let mut lm = Script::new(&[2, 3, 2], v.len());
        let mut seen = Seen {
            cancel_after: Some(after),
            ..Seen::default()
        };
        let options = GenerationParams {
            chunk: 2,
            stop: vec!["<x".to_owned()],
            ..GenerationParams::default()
        };
        let out =
            generate(&mut lm, &v, &[2; 4], &options, &mut seen).expect("cancelling is no error");
        assert_eq!(
            (out.finish, out.text.as_str()),
            (FinishReason::Cancelled, text),
            "after {after}"
        );
        assert_eq!(seen.pieces.concat(), text);
        assert_eq!(
            lm.calls.iter().filter(|c| c.1 == Phase::Prefill).count(),
            chunks
        );
    }
}

#[test]
fn errors_of_the_model_and_of_the_output_are_passed_on() {
    let v = Pieces::new(&[b"a"]);
    let mut lm = Script {
        fail_at: Some(1),
        ..Script::new(&[2], v.len())
    };
    let error = generate(
        &mut lm,
        &v,
        &[2],
        &GenerationParams::default(),
        &mut Seen::default(),
    )
    .expect_err("told to fail");
    assert_eq!(error.to_string(), "the step was told to fail");
    let mut lm = Script::new(&[2], v.len());
    let mut closed = Seen {
        pipe_closed: true,
        ..Seen::default()
    };
    let error = generate(&mut lm, &v, &[2], &GenerationParams::default(), &mut closed)
        .expect_err("nobody reads");
    assert!(matches!(error, Error::Output(_)), "{error}");
}

#[test]
fn logprobs_are_those_of_the_raw_logits() {
    let v = Pieces::new(&[b"a", b"b"]);
    let bias = SamplerConfig {
        logit_bias: vec![(2, -100.0)],
        ..SamplerConfig::default()
    };
    let options = GenerationParams {
        logprobs: Some(2),
        sampler: bias,
        ..limited(2)
    };
    let (out, _) = run(&[2, 3], &v, &options);
    assert_eq!(
        out.tokens,
        [0],
        "token 2 is biased away; 0 is the first of the rest, and ends the text"
    );
    // logits: 5 for token 2 and 0 for the three others
    let lse = (5f64.exp() + 3.0).ln();
    assert_eq!((out.logprobs.len(), out.logprobs[0].id), (1, 0));
    assert_abs_diff_eq!(out.logprobs[0].logprob, -lse, epsilon = 1e-12);
    assert_eq!(out.logprobs[0].top[0].0, 2);
    assert_abs_diff_eq!(out.logprobs[0].top[0].1, 5.0 - lse, epsilon = 1e-12);
}
