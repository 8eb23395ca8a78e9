//! Stop strings: for every split of a text into pieces, streaming shows exactly the result of a
//! search in the whole text.

use cpu_time::ThreadTime;
use octavo_text::stop::StopMatcher;
use proptest::prelude::*;

/// Applies the rule by search: the shortest prefix of the text that ends with a stop string,
/// without the longest such string.
fn buffered(text: &str, stops: &[&str]) -> String {
    for end in text.char_indices().map(|(i, c)| i + c.len_utf8()) {
        let hit = stops
            .iter()
            .filter(|s| text[..end].ends_with(**s))
            .map(|s| s.len())
            .max();
        if let Some(len) = hit {
            return text[..end - len].to_owned();
        }
    }
    text.to_owned()
}

fn streamed<'a>(pieces: impl Iterator<Item = &'a str>, stops: &[&str]) -> String {
    let mut m = StopMatcher::new(stops).expect("no empty stop");
    let mut text = String::new();
    let mut seen = String::new();
    for piece in pieces {
        seen += piece;
        let out = m.push(piece);
        text += &out.text;
        if let Some(index) = out.stop {
            assert!(
                seen.contains(stops[index]),
                "{:?} is not in {seen:?}",
                stops[index]
            );
            assert_eq!(m.push("more").text, "", "nothing after a stop");
            assert_eq!(m.finish(), "");
            return text;
        }
    }
    text + &m.finish()
}

#[test]
fn every_cut_of_a_text_gives_the_same() {
    let stops_of: [&[&str]; 8] = [
        &[],
        &["zz"],
        &["abab"],
        &["ab", "abab"],
        &["babc", "ab\u{e9}"],
        &["\u{e9}"],
        &["\u{1f600}c", "\u{1f600}\u{1f601}"],
        &["aab", "b", "baab"],
    ];
    for text in [
        "",
        "a",
        "aababcabab",
        "ab\u{e9}ababab\u{e9}c",
        "aaaaab",
        "x\u{1f600}\u{1f600}cy",
        "zzz",
        "z",
    ] {
        for stops in stops_of {
            let expected = buffered(text, stops);
            let inner: Vec<usize> = text.char_indices().map(|(i, _)| i).skip(1).collect();
            for mask in 0u32..1 << inner.len() {
                let mut pieces = Vec::new();
                let mut from = 0;
                for (bit, &at) in inner.iter().enumerate() {
                    if mask >> bit & 1 == 1 {
                        pieces.push(&text[from..at]);
                        from = at;
                    }
                }
                pieces.push(&text[from..]);
                assert_eq!(
                    streamed(pieces.iter().copied(), stops),
                    expected,
                    "{pieces:?} with {stops:?}"
                );
            }
        }
    }
}

#[test]
fn only_what_may_be_a_stop_is_held_back() {
    let mut m = StopMatcher::new(&["</s>", "\n\n"]).expect("no empty stop");
    assert_eq!(m.push("Hello <").text, "Hello ");
    assert_eq!(m.push("/").text, "");
    assert_eq!(m.push("p>\n").text, "</p>");
    assert_eq!(m.push("x").text, "\nx");
    assert_eq!(m.finish(), "");
    let mut plain = StopMatcher::new::<&str>(&[]).expect("none");
    assert_eq!(plain.push("all").text, "all");
}

#[test]
fn the_longest_stop_that_ends_first_is_cut() {
    let mut m = StopMatcher::new(&["b", "aab", "bc"]).expect("no empty stop");
    let out = m.push("xaabc");
    assert_eq!((out.text.as_str(), out.stop), ("x", Some(1)));
}

#[test]
fn an_empty_stop_string_is_refused() {
    let error = StopMatcher::new(&["a", ""]).expect_err("empty").to_string();
    assert_eq!(
        error,
        "stop string 1: expected at least one character, got an empty string"
    );
}

#[test]
fn a_repetitive_stop_takes_linear_time() {
    let n = 400_000;
    let stop = "a".repeat(n) + "b";
    let mut m = StopMatcher::new(&[stop.as_str()]).expect("not empty");
    let start = ThreadTime::now();
    for _ in 0..8 {
        m.push(&"a".repeat(n));
    }
    assert_eq!(m.push("b").stop, Some(0));
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn streamed_equals_buffered(
        pieces in prop::collection::vec("[ab\u{e9}\u{1f600}]{0,4}", 0..12),
        stops in prop::collection::vec("[ab\u{e9}\u{1f600}]{1,4}", 0..4),
    ) {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let text = pieces.concat();
        let streamed = streamed(pieces.iter().map(String::as_str), &stops);
        prop_assert_eq!(streamed, buffered(&text, &stops));
    }
}
