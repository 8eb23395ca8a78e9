//! One text of a session, on a scripted device: reuse of its pages, progress, limits, cancelling,
//! errors.

use std::cell::Cell;
use std::io;

use octavo_engine::backend::Phase;
use octavo_engine::sample::SamplerConfig;
use octavo_engine::{
    BatchError, Engine, EngineOptions, FinishReason, GenerateError, Generation, GenerationError,
    GenerationParams, Observer, Session,
};

use crate::scripted::{self, Behaviour, Calls};

/// Tokens of the built-in vocabulary.
const A: u32 = 10;
const B: u32 = 11;
const C: u32 = 12;

/// Loads a device that says `B` and then the end.
fn says_b(ctx: usize, batch: usize, fail_at: Option<usize>) -> (Engine, Calls) {
    says(ctx, batch, fail_at, |text, end| match text.last() {
        Some(&B) => end,
        _ => B,
    })
}

/// Loads a device that says `next` after a text; the end-of-text token is passed to it.
fn says(
    ctx: usize,
    batch: usize,
    fail_at: Option<usize>,
    next: impl Fn(&[u32], u32) -> u32 + Send + 'static,
) -> (Engine, Calls) {
    let options = EngineOptions {
        ctx: Some(ctx),
        batch: Some(batch),
        threads: Some(1),
        ..EngineOptions::default()
    };
    let demo = Engine::builder().threads(1);
    let demo = demo.open_source(&octavo_engine::ModelSource::Demo);
    let demo = demo.expect("it loads");
    let (n_vocab, end) = (demo.hparams().n_vocab(), demo.tokenizer().eog_ids()[0]);
    let behaviour = Behaviour {
        fail_at,
        ..Behaviour::default()
    };
    scripted::engine(&options, behaviour, move |text| {
        let mut logits = vec![0.0; n_vocab];
        logits[next(text, end) as usize] = 5.0;
        logits
    })
}

#[derive(Default)]
struct Seen {
    text: String,
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
        assert!(!text.is_empty());
        self.text.push_str(text);
        Ok(())
    }

    fn cancelled(&self) -> bool {
        self.asked.set(self.asked.get() + 1);
        self.cancel_after.is_some_and(|n| self.asked.get() > n)
    }
}

fn generate(
    session: &mut Session,
    prompt: &[u32],
    params: &GenerationParams,
) -> Result<Generation, GenerateError> {
    let mut seen = Seen::default();
    let out = session.generate(prompt, params, None, &mut seen)?;
    assert_eq!(seen.text, out.text, "what was streamed is what is returned");
    Ok(out)
}

#[test]
fn ends_at_the_end_of_the_context() {
    let (engine, _) = says(6, 512, None, |_, _| A);
    let params = GenerationParams::default();
    let out = generate(&mut engine.session(), &[A; 3], &params).expect("it fits");
    assert_eq!(
        (out.tokens.len(), out.finish),
        (4, FinishReason::ContextFull),
        "the last token needs no position"
    );
    let error = generate(&mut engine.session(), &[A; 7], &params).expect_err("too long");
    assert_eq!(
        error.to_string(),
        "the prompt has 7 tokens: expected at most the context of 6"
    );
}

#[test]
fn an_empty_prompt_and_unknown_ids_are_refused() {
    let (engine, calls) = says_b(96, 512, None);
    let mut session = engine.session();
    generate(&mut session, &[A, B], &GenerationParams::default()).expect("it fits");
    let (held, steps) = (
        session.tokens().to_vec(),
        calls.lock().expect("no panic").len(),
    );
    let mut refused =
        |prompt: &[u32], params: &GenerationParams| match generate(&mut session, prompt, params)
            .expect_err("refused")
        {
            GenerateError::Batch(BatchError::Sequence(error)) => error,
            other => panic!("{other}"),
        };
    let usual = GenerationParams::default();
    assert!(matches!(refused(&[], &usual), GenerationError::EmptyPrompt));
    let unknown = refused(&[A, 99_999], &usual);
    assert!(
        matches!(unknown, GenerationError::UnknownToken { id: 99_999, .. }),
        "{unknown}"
    );
    let stop_ids = GenerationParams {
        stop_ids: vec![99_999],
        ..usual.clone()
    };
    assert!(matches!(
        refused(&[A], &stop_ids),
        GenerationError::UnknownToken { .. }
    ));
    let empty_stop = GenerationParams {
        stop: vec![String::new()],
        ..usual.clone()
    };
    assert!(matches!(
        refused(&[A], &empty_stop),
        GenerationError::Stop(_)
    ));
    let sampler = SamplerConfig {
        top_p: 2.0,
        ..SamplerConfig::default()
    };
    let top_p = GenerationParams { sampler, ..usual };
    assert!(matches!(refused(&[A], &top_p), GenerationError::Config(_)));
    assert_eq!(
        calls.lock().expect("no panic").len(),
        steps,
        "before any work"
    );
    assert_eq!(session.tokens(), held, "the session is as it was");
}

#[test]
fn what_a_session_holds_is_not_computed_again() {
    let (engine, calls) = says_b(96, 512, None);
    let mut session = engine.session();
    let mut turn = |prompt: &[u32]| {
        calls.lock().expect("no panic").clear();
        let out = generate(&mut session, prompt, &GenerationParams::default()).expect("it fits");
        let first = calls.lock().expect("no panic")[0];
        assert_eq!(first.1, Phase::Prefill);
        (out.timing.cached, first.0, session.tokens().to_vec())
    };
    assert_eq!(turn(&[A, A, A]), (0, 3, vec![A, A, A, B]));
    assert_eq!(
        turn(&[A, A, A, B, C, C]),
        (4, 2, vec![A, A, A, B, C, C, B]),
        "the answer is cached, too"
    );
    assert_eq!(
        turn(&[A, A, C]),
        (2, 1, vec![A, A, C, B]),
        "a cache that goes on otherwise is cut"
    );
    assert_eq!(
        turn(&[A, A, C]),
        (2, 1, vec![A, A, C, B]),
        "the last token is always computed, for its logits"
    );
    let long = vec![A; 60];
    assert_eq!(turn(&long).0, 2, "several pages");
    assert_eq!(turn(&[&long[..], &[B, C]].concat()).0, 61);
    let pages = session.pages();
    assert_eq!(pages, [4]);
    drop(session);
    let (mut one, mut other) = (engine.session(), engine.session());
    generate(&mut one, &[A; 90], &GenerationParams::default()).expect("its pages are free again");
    let error = generate(&mut other, &[C; 90], &GenerationParams::default());
    let error = error
        .expect_err("the other one holds all pages")
        .to_string();
    assert!(error.contains("pages"), "{error}");
}

#[test]
fn a_prompt_is_computed_in_chunks_with_progress() {
    let (engine, calls) = says(96, 4, None, |_, end| end);
    let mut seen = Seen::default();
    let mut session = engine.session();
    session
        .generate(&[A; 10], &GenerationParams::default(), None, &mut seen)
        .expect("it fits");
    let expected = [4, 4, 2].map(|n| (n, Phase::Prefill));
    assert_eq!(*calls.lock().expect("no panic"), expected);
    assert_eq!(seen.progress, [(0, 10), (4, 10), (8, 10), (10, 10)]);
}

#[test]
fn cancelling_keeps_what_there_is() {
    let (engine, calls) = says(96, 2, None, |_, _| B);
    let piece = engine.tokenizer().piece(B).expect("a token");
    let piece = std::str::from_utf8(piece).expect("text");
    for (after, chunks, tokens) in [(0, 0, 0), (1, 1, 0), (2, 2, 1), (3, 2, 2), (4, 2, 3)] {
        calls.lock().expect("no panic").clear();
        let mut seen = Seen {
            cancel_after: Some(after),
            ..Seen::default()
        };
        let mut session = engine.session();
        let params = GenerationParams::default();
        let out = session
            .generate(&[A; 4], &params, None, &mut seen)
            .expect("cancelling is no error");
        assert_eq!(out.finish, FinishReason::Cancelled);
        assert_eq!(out.text, piece.repeat(tokens), "after {after}");
        assert_eq!(seen.text, out.text);
        let calls = calls.lock().expect("no panic");
        let prefills = calls.iter().filter(|call| call.1 == Phase::Prefill);
        assert_eq!(prefills.count(), chunks);
        let text = [vec![A; 4], vec![B; tokens]].concat();
        assert!(text.starts_with(session.tokens()), "it can be continued");
    }
}

#[test]
fn errors_of_the_device_and_of_the_output_are_passed_on() {
    let (engine, _) = says(96, 512, Some(1), |_, _| B);
    let mut session = engine.session();
    let error = generate(&mut session, &[A, A], &GenerationParams::default());
    let error = error.expect_err("told to fail").to_string();
    assert!(error.starts_with("context 0: "), "{error}");
    assert_eq!(session.tokens(), [A, A], "what was computed stays");
    let (engine, calls) = says_b(96, 512, None);
    let mut closed = Seen {
        pipe_closed: true,
        ..Seen::default()
    };
    let mut session = engine.session();
    let error = session.generate(&[A], &GenerationParams::default(), None, &mut closed);
    let error = error.expect_err("nobody reads");
    assert!(matches!(error, GenerateError::Output(_)), "{error}");
    assert_eq!(
        calls.lock().expect("no panic").len(),
        1,
        "it goes on no more"
    );
    assert_eq!(session.tokens(), [A]);
}
