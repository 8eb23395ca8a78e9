//! Texts and bases that do not fit the model or each other.

use super::*;

#[test]
fn texts_are_cut_into_whole_chunks_or_refused() {
    let tokens = |n: usize| vec![1; n];
    let cut = |n, n_ctx, chunks| {
        Text::new(tokens(n), 1024, n_ctx, chunks).map(|text| text.shape().n_chunks)
    };
    assert!(matches!(
        cut(31, 16, None),
        Err(Error::TooShort {
            expected: 32,
            n_ctx: 16,
            got: 31
        })
    ));
    assert!(matches!(
        cut(usize::from(u16::MAX), usize::MAX, None),
        Err(Error::TooShort { .. })
    ));
    assert!(matches!(
        (cut(32, 16, None), cut(47, 16, None), cut(48, 16, Some(9))),
        (Ok(2), Ok(2), Ok(3))
    ));
    assert!(matches!(
        (cut(48, 16, Some(1)), cut(48, 16, Some(0))),
        (Ok(1), Err(Error::NoChunks))
    ));
    assert!(matches!(
        (cut(48, 2, None), cut(48, 0, None)),
        (Err(Error::Chunk(2)), Err(Error::Chunk(0)))
    ));
}

#[test]
fn texts_that_do_not_fit_the_model_are_refused() {
    let engine = engine(&ModelSource::Demo, 16);
    let tokens = |n: usize| vec![1; n];
    let outside = Text::new(vec![1024; 32], 1024, 16, None);
    assert!(matches!(
        outside,
        Err(Error::Engine(octavo_engine::Error::Token {
            id: 1024,
            n_vocab: 1024
        }))
    ));
    let long = Text::new(tokens(64), 1024, 17, None).expect("cut");
    let error = perplexity(&engine, &long, &Options::default(), &mut ()).expect_err("no room");
    assert!(matches!(
        error,
        Error::Context {
            n_ctx: 17,
            limit: 16
        }
    ));
    let foreign = Text::new(tokens(64), 1000, 16, None).expect("cut");
    let error = perplexity(&engine, &foreign, &Options::default(), &mut ())
        .expect_err("another vocabulary");
    assert!(matches!(
        error,
        Error::Vocabulary {
            expected: 1024,
            got: 1000,
            ..
        }
    ));
}

#[test]
fn bases_that_do_not_fit_are_refused() {
    let engine = engine(&ModelSource::Demo, 16);
    let shape = Shape {
        n_ctx: 4,
        n_vocab: 6,
        n_chunks: 2,
    };
    let mut writer =
        Writer::new(Vec::new(), "f", shape, &[0, 1, 2, 3, 4, 5, 0, 1]).expect("a header");
    writer.rows(&vec![0; 2 * shape.row_bytes()]).expect("rows");
    let mut reader =
        Reader::new(Cursor::new(writer.finish().expect("complete")), "f").expect("sound");
    let error = divergence(&engine, &mut reader, None, &Options::default(), &mut ())
        .expect_err("refused")
        .to_string();
    assert_eq!(
        error,
        "f: made with another vocabulary: expected 1024 tokens as the model has, got 6"
    );
    check_text(&mut reader, &[0, 1, 2, 3, 4, 5, 0, 1, 9, 9]).expect("the same text");
    let error = check_text(&mut reader, &[0, 1, 2, 3, 4, 5, 1, 1])
        .expect_err("refused")
        .to_string();
    assert_eq!(
        error,
        "f: made from another text: token 6: expected 1 as in the text given, got 0"
    );
    let error = check_text(&mut reader, &[0, 1, 2, 3, 4, 5, 0])
        .expect_err("refused")
        .to_string();
    assert_eq!(
        error,
        "f: made from another text: it has 8 tokens, the text given only 7"
    );
    assert!(matches!(
        check_text(&mut reader, &[]),
        Err(Error::LongerText {
            expected: 0,
            got: 8,
            ..
        })
    ));
}

/// A model that cannot be compared does not stop the one after it, whose digits are those of a
/// comparison with a base.
#[test]
fn a_model_beside_that_fails_is_left_out() {
    let (whole, short) = (
        engine(&ModelSource::Demo, 16),
        engine(&ModelSource::Demo, 8),
    );
    let (text, options) = (text(&whole, 16, None), Options::default());
    let models = [short, engine(&ModelSource::Demo, 16)];
    let (ppl, compared) = rounded_divergence_beside(&whole, &models, &text, &options, &mut ())
        .expect("the reference is scored");
    let [failed, sound] = &compared[..] else {
        panic!("{compared:?}");
    };
    assert!(matches!(
        failed.divergence,
        Err(Error::Context {
            n_ctx: 16,
            limit: 8
        })
    ));
    let alone = perplexity(&whole, &text, &options, &mut ()).expect("scored");
    assert_eq!(ppl.by_chunk(), alone.by_chunk());
    let bytes = in_memory(&whole, &text, &options);
    let mut reader = Reader::new(Cursor::new(bytes), "base").expect("a base");
    let from_base = divergence(&whole, &mut reader, None, &options, &mut ()).expect("scored");
    let beside = sound.divergence.as_ref().expect("compared");
    assert_eq!(beside.by_chunk(), from_base.by_chunk());
}
