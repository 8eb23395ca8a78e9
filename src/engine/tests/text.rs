//! Calls that take a text and return one, its logits or its embedding.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use octavo_engine::backend::{Loading, Phase};
use octavo_engine::{
    Batch, BatchError, BatchOptions, Engine, EngineHandle, EngineOptions, Error, Event,
    FinishReason, GenerationParams, LogitsFor, ModelSource, Request, demo_model,
};
use octavo_text::chat::Message;
use octavo_text::tokenizer::EncodeOptions;

fn demo() -> Engine {
    let engine = Engine::builder().threads(1).open_source(&ModelSource::Demo);
    engine.expect("the built-in model opens")
}

fn params(n: usize) -> GenerationParams {
    GenerationParams {
        max_tokens: Some(n),
        ..GenerationParams::default()
    }
}

#[test]
fn a_file_is_opened_with_its_options_and_reports_progress() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("demo.gguf");
    std::fs::write(&path, demo_model()).expect("the file is written");
    let mut bytes = 0;
    let engine = Engine::builder()
        .threads(1)
        .context(100)
        .sessions(2)
        .progress(|event| {
            if let Loading::Weights { done, .. } = event {
                bytes = done;
            }
        })
        .open(&path)
        .expect("it opens");
    assert_eq!((engine.n_ctx(), engine.sessions()), (100, 2));
    assert!(bytes > 0, "progress was reported");
    assert!(Engine::open(&path).is_ok());
    let missing = Engine::open(dir.path().join("missing.gguf"));
    assert!(matches!(missing, Err(Error::Gguf(_))));
}

#[test]
fn a_text_is_the_one_of_a_session_and_its_pieces_make_it() {
    let engine = demo();
    let mut pieces = String::new();
    let streamed = engine
        .generate_stream("1+1=", &params(12), |piece| pieces.push_str(piece))
        .expect("it generates");
    let whole = engine.generate("1+1=", &params(12)).expect("it generates");
    let prompt = engine
        .tokenizer()
        .encode(b"1+1=", EncodeOptions::PROMPT)
        .expect("it is encoded");
    let mut session = engine.session();
    let by_session = session.generate(&prompt, &params(12), None, &mut |_: &str| {});
    let by_session = by_session.expect("it generates");
    assert!(pieces.starts_with('2'), "{pieces}");
    for other in [&whole, &by_session] {
        assert_eq!(
            (&other.text, &other.tokens, other.finish),
            (&streamed.text, &streamed.tokens, streamed.finish)
        );
    }
    assert_eq!(pieces, streamed.text);
    assert_eq!(streamed.timing.generated_tokens, streamed.tokens.len());
    let one = engine.generate("1+1=", &params(1)).expect("it generates");
    assert_eq!((one.text.as_str(), one.finish), ("2", FinishReason::Length));
}

#[test]
fn a_conversation_is_rendered_by_the_files_template() {
    let engine = demo();
    let messages = [Message::new("user", "1+1=")];
    let answer = engine.chat(&messages, &params(4), |_| {});
    match engine.chat_template().expect("a valid template, or none") {
        None => assert!(matches!(
            answer,
            Err(BatchError::Engine(Error::NoChatTemplate { .. }))
        )),
        Some(template) => {
            let rendered = template.render(&messages, true).expect("it renders");
            let direct = engine
                .generate(&rendered, &params(4))
                .expect("it generates");
            assert_eq!(answer.expect("it answers").tokens, direct.tokens);
        }
    }
}

#[test]
fn logits_and_the_embedding_are_those_of_a_session() {
    let engine = demo();
    let logits = engine.logits("1+1=").expect("it computes");
    let tokens = engine
        .tokenizer()
        .encode(b"1+1=", EncodeOptions::PROMPT)
        .expect("it is encoded");
    let expected = engine
        .session()
        .eval(&tokens, Phase::Prefill, LogitsFor::All)
        .expect("it computes");
    for row in 0..tokens.len() {
        assert_eq!(logits.row(row), expected.row(row), "after token {row}");
    }
    let embedding = engine.embed("1+1=").expect("it computes");
    assert_eq!(embedding.len(), engine.hparams().n_embd());
    let length: f32 = embedding.iter().map(|x| x * x).sum();
    assert!((length - 1.0).abs() < 1e-5, "length {length}");
}

#[test]
fn a_session_stops_between_two_steps_and_goes_on_later() {
    let engine = Engine::builder().options(EngineOptions {
        threads: Some(1),
        batch: Some(4),
        ..EngineOptions::default()
    });
    let engine = engine.open_source(&ModelSource::Demo).expect("it opens");
    let mut session = engine.session();
    let stop = Arc::new(AtomicBool::new(false));
    session.stop_when(Arc::clone(&stop));
    let tokens = [5, 300, 17, 900, 33, 2, 610, 77];
    let mut rows = 0;
    let stopped = session.eval_with(
        &tokens,
        Phase::Prefill,
        LogitsFor::All,
        None,
        &mut |_, _| {
            rows += 1;
            stop.store(true, Ordering::Relaxed);
        },
    );
    assert!(matches!(stopped, Err(Error::Stopped)));
    assert_eq!(
        (rows, session.tokens()),
        (4, &[][..]),
        "one step of two was taken"
    );
    stop.store(false, Ordering::Relaxed);
    let mut taps = 0;
    let tapped = session.run_with_taps(&tokens, &mut |_| taps += 1);
    tapped.expect("it runs");
    assert!(taps > 0 && session.tokens() == tokens);
}

#[test]
fn a_wait_for_an_event_ends_after_its_time() {
    let engine = demo();
    let handle = EngineHandle::spawn(Batch::new(&engine, BatchOptions::default()));
    let handle = handle.expect("a thread");
    let request = Request::new(&[5, 300, 17], &params(2));
    let mut stream = handle.submit(request).expect("it is taken").patient();
    let mut has_ended = false;
    for _ in 0..10_000 {
        match stream.wait_next_for(Duration::from_millis(1)) {
            Poll::Ready(Some(event)) => has_ended |= matches!(event, Event::Finished { .. }),
            Poll::Ready(None) => break,
            Poll::Pending => {}
        }
    }
    assert!(has_ended);
    assert!(stream.wait_next().is_none());
    assert!(matches!(
        stream.wait_next_for(Duration::ZERO),
        Poll::Ready(None)
    ));
}
