//! Answers taken apart.

use octavo_text::chat::answer::{AnswerParser, Piece, Wants};

/// All that an answer is, with the pieces of one kind joined.
fn parse(template: &str, prompt: &str, wants: Wants, parts: &[&str]) -> (String, String) {
    let mut parser = AnswerParser::new(template, prompt, wants);
    let mut pieces: Vec<Piece> = parts.iter().flat_map(|part| parser.push(part)).collect();
    pieces.extend(parser.finish());
    let mut joined = (String::new(), String::new());
    for piece in pieces {
        match piece {
            Piece::Content(text) => joined.0.push_str(&text),
            Piece::Reasoning(text) => joined.1.push_str(&text),
            other => panic!("{other:?}"),
        }
    }
    joined
}

#[test]
fn thoughts_are_told_from_what_is_said() {
    let wants = Wants {
        tools: false,
        reasoning: true,
    };
    let parts = ["<thi", "nk>a < b", "</", "think>c</t"];
    let expected = ("c</t".to_owned(), "a < b".to_owned());
    assert_eq!(parse("<think>", "user: ", wants, &parts), expected);
    let parts = ["a < b</think>", "c</t"];
    assert_eq!(parse("<think>", "<think>\n", wants, &parts), expected);
}
