//! Text that is handed out: no part of a stop string, whole characters, no control tokens.

use super::*;

#[test]
fn stop_ids_end_the_text_before_them() {
    let v = Pieces::new(&[b"a", b"b"]);
    let options = GenerationParams {
        stop_ids: vec![3],
        ..GenerationParams::default()
    };
    let (out, _) = run(&[2, 2, 3, 2], &v, &options);
    assert_eq!(
        (out.text.as_str(), out.finish, out.tokens.as_slice()),
        ("aa", FinishReason::Stop, &[2, 2, 3][..])
    );
}

#[test]
fn a_stop_string_across_tokens_is_never_shown() {
    let v = Pieces::new(&[b"hello <", b"/", b"s> more"]);
    let options = GenerationParams {
        stop: vec!["</s>".to_owned()],
        ..limited(9)
    };
    let (out, pieces) = run(&[2, 3, 4, 2], &v, &options);
    assert_eq!(
        (out.text.as_str(), out.finish),
        ("hello ", FinishReason::Stop)
    );
    assert_eq!(
        (out.tokens.len(), pieces.as_slice()),
        (3, &["hello ".to_owned()][..])
    );
    // text that was held back is handed out if the stop string never completes
    let (out, _) = run(&[2, 3, 0], &v, &options);
    assert_eq!(
        (out.text.as_str(), out.finish),
        ("hello </", FinishReason::Stop)
    );
    let (out, _) = run(
        &[2, 3],
        &v,
        &GenerationParams {
            max_tokens: Some(2),
            ..options
        },
    );
    assert_eq!(
        (out.text.as_str(), out.finish),
        ("hello </", FinishReason::Length)
    );
}

#[test]
fn characters_are_shown_whole_and_what_is_no_text_once() {
    let v = Pieces::new(&[b"\xf0\x9f", b"\x98\x80", b"\xff", b"z"]);
    let (out, pieces) = run(&[2, 3, 5, 0], &v, &GenerationParams::default());
    assert_eq!((out.text.as_str(), pieces.len()), ("\u{1f600}z", 2));
    let (out, _) = run(&[4, 5, 2, 0], &v, &GenerationParams::default());
    assert_eq!(
        out.text, "\u{fffd}z\u{fffd}",
        "an unfinished character at the end"
    );
}

#[test]
fn a_text_that_is_cut_inside_a_character_ends_before_it() {
    let v = Pieces::new(&[b"a", b"\xc3", b"\xa9"]);
    let cut = |most: usize| {
        let options = GenerationParams {
            max_tokens: Some(most),
            ..GenerationParams::default()
        };
        let (out, pieces) = run(&[2, 3, 4], &v, &options);
        assert_eq!(
            (out.finish, pieces.concat()),
            (FinishReason::Length, out.text.clone())
        );
        out.text
    };
    assert_eq!([cut(2), cut(3)], ["a", "a\u{e9}"]);
}

#[test]
fn control_tokens_are_no_text_unless_asked_for() {
    let v = Pieces::new(&[b"a"]);
    assert_eq!(
        run(&[2, 1, 2, 0], &v, &GenerationParams::default()).0.text,
        "aa"
    );
    assert_eq!(
        run(
            &[2, 1, 2, 0],
            &v,
            &GenerationParams {
                show_special: true,
                ..GenerationParams::default()
            }
        )
        .0
        .text,
        "a<ctl>a"
    );
}

#[test]
fn ignore_eos_never_chooses_it() {
    let v = Pieces::new(&[b"a"]);
    let (out, _) = run(
        &[2, 0, 2],
        &v,
        &GenerationParams {
            ignore_eos: true,
            ..limited(3)
        },
    );
    assert_eq!((out.tokens.len(), out.finish), (3, FinishReason::Length));
    assert!(!out.tokens.contains(&0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// However bytes are cut into tokens, the text is the lossy decoding of all of them, cut before
    /// the first stop.
    #[test]
    fn streamed_text_equals_the_text_decoded_at_once(
        bytes in prop::collection::vec(
            prop_oneof![Just(b'a'), Just(b'b'), Just(0xc3), Just(0xa9), Just(0xff)],
            1..24,
        ),
        cuts in prop::collection::vec(any::<bool>(), 24),
        stops in prop::collection::vec("[ab\u{e9}]{1,3}", 0..3),
    ) {
        let mut pieces: Vec<Vec<u8>> = vec![Vec::new()];
        for (byte, cut) in bytes.iter().zip(cuts) {
            if cut {
                pieces.push(Vec::new());
            }
            pieces.last_mut().expect("one at least").push(*byte);
        }
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let v = Pieces::new(&pieces);
        let script: Vec<u32> = (2..2 + pieces.len() as u32).chain([0]).collect();
        let params = GenerationParams { stop: stops.clone(), ..GenerationParams::default() };
        let (out, _) = run(&script, &v, &params);
        let whole = String::from_utf8_lossy(&bytes).into_owned();
        let ends = whole.char_indices().map(|(i, c)| i + c.len_utf8());
        let cut = ends.filter_map(|end| {
            let ending = stops.iter().filter(|s| whole[..end].ends_with(s.as_str()));
            let longest = ending.map(String::len).max();
            longest.map(|len| end - len)
        }).next();
        prop_assert_eq!(out.text, &whole[..cut.unwrap_or(whole.len())]);
        prop_assert_eq!(out.finish, FinishReason::Stop);
    }
}
