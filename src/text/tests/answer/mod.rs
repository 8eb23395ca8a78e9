//! Answers taken apart.

mod formats;
mod properties;

use octavo_text::chat::answer::{AnswerParser, CallFormat, Piece, Wants};
use serde_json::{Value, json};

const ALL: Wants = Wants {
    tools: true,
    reasoning: true,
};

const FORMATS: [CallFormat; 21] = [
    CallFormat::Hermes,
    CallFormat::Llama3,
    CallFormat::Mistral,
    CallFormat::MistralArgs,
    CallFormat::FunctionTag,
    CallFormat::FunctionJson,
    CallFormat::ArgKey,
    CallFormat::Invoke,
    CallFormat::Dsml,
    CallFormat::ParamTag,
    CallFormat::DeepSeek,
    CallFormat::DeepSeekR1,
    CallFormat::Kimi,
    CallFormat::ToolCalls,
    CallFormat::Nemotron,
    CallFormat::Cohere,
    CallFormat::Apertus,
    CallFormat::FunctionCall,
    CallFormat::Gemma,
    CallFormat::Harmony,
    CallFormat::Json,
];

/// A whole answer.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Answer {
    content: String,
    reasoning: String,
    /// Names and the JSON text of arguments.
    calls: Vec<(String, String)>,
}

fn take(answer: &mut Answer, pieces: Vec<Piece>) {
    for piece in pieces {
        match piece {
            Piece::Content(text) => answer.content.push_str(&text),
            Piece::Reasoning(text) => answer.reasoning.push_str(&text),
            Piece::CallBegins { index, name } => {
                assert_eq!(index, answer.calls.len());
                answer.calls.push((name, String::new()));
            }
            Piece::CallArguments { index, text } => answer.calls[index].1.push_str(&text),
        }
    }
}

fn read<'t>(mut parser: AnswerParser, parts: impl IntoIterator<Item = &'t str>) -> Answer {
    let mut answer = Answer::default();
    for part in parts {
        take(&mut answer, parser.push(part));
    }
    take(&mut answer, parser.finish());
    answer
}

/// A template that shows a format and no more.
fn template(format: CallFormat) -> &'static str {
    match format {
        CallFormat::Hermes => "<tool_call>",
        CallFormat::Llama3 => "<|python_tag|>",
        CallFormat::Mistral => "[TOOL_CALLS]",
        CallFormat::MistralArgs => "[TOOL_CALLS][ARGS]",
        CallFormat::FunctionTag => "<tool_call><function=<parameter=",
        CallFormat::FunctionJson => "<function=",
        CallFormat::ArgKey => "<tool_call><arg_key>",
        CallFormat::Invoke => "<minimax:tool_call>",
        CallFormat::Dsml => "<｜DSML｜invoke",
        CallFormat::DeepSeek => "<｜tool▁sep｜>",
        CallFormat::DeepSeekR1 => "<｜tool▁sep｜>```json",
        CallFormat::Kimi => "<|tool_call_argument_begin|>",
        CallFormat::ToolCalls => "<tool_calls>",
        CallFormat::Nemotron => "<TOOLCALL>",
        CallFormat::Cohere => "<|START_ACTION|>",
        CallFormat::Apertus => "<|tools_prefix|>",
        CallFormat::ParamTag => "<function name=<param name=",
        CallFormat::FunctionCall => "<|function_call|>",
        CallFormat::Gemma => "<|tool_call>call:",
        CallFormat::Harmony => "<|channel|>commentary <|channel|>analysis<|message|> <|end|>",
        _ => "",
    }
}

fn tools() -> Vec<Value> {
    let properties = json!({
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
    });
    let parameters = json!({"type": "object", "properties": properties});
    vec![
        json!({"type": "function", "function": {"name": "f", "parameters": parameters}}),
        json!({"type": "function", "function": {"name": "now"}}),
    ]
}

fn parser(format: CallFormat) -> AnswerParser {
    let parser = AnswerParser::new(template(format), "", ALL).with_tools(&tools());
    assert_eq!(parser.format(), format);
    parser
}

/// The answer in one piece, which must be the same character by character.
fn answer(format: CallFormat, text: &str) -> Answer {
    let whole = read(parser(format), [text]);
    let parts: Vec<String> = text.chars().map(String::from).collect();
    let by_character = read(parser(format), parts.iter().map(String::as_str));
    assert_eq!(whole, by_character, "{text}");
    whole
}

#[test]
fn thoughts_are_told_from_what_is_said() {
    let split = |prompt: &str, wants: Wants, parts: &[&str]| {
        let answer = read(
            AnswerParser::new("<think>", prompt, wants),
            parts.iter().copied(),
        );
        (answer.content, answer.reasoning)
    };
    let pair = |content: &str, reasoning: &str| (content.to_owned(), reasoning.to_owned());
    let parts = ["<thi", "nk>\na < b", "\n</", "think>\n\nc</t"];
    assert_eq!(split("user: ", ALL, &parts), pair("c</t", "a < b"));
    let parts = ["a < b</think>", "c</t "];
    assert_eq!(split("<think>\n", ALL, &parts), pair("c</t ", "a < b"));
    assert_eq!(split("<think>", ALL, &["a", " </th"]), pair("", "a </th"));
    // Nobody asked.
    let parts = ["<think>\na\n</think>\n b"];
    let joined = parts.concat();
    assert_eq!(split("", Wants::default(), &parts), pair(&joined, ""));
    let tools = Wants {
        tools: true,
        reasoning: false,
    };
    assert_eq!(split("<think>", tools, &parts), pair(&joined, ""));
}

#[test]
fn other_tags_are_known_too() {
    for (template, text) in [
        ("[THINK] [/THINK]", "[THINK]a[/THINK]b"),
        ("<seed:think></seed:think>", "<seed:think>a</seed:think>b"),
        (
            "<|START_THINKING|><|END_THINKING|><|START_ACTION|>",
            "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>",
        ),
        (
            template(CallFormat::Harmony),
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant\
             <|channel|>final<|message|>b<|return|>",
        ),
    ] {
        let answer = read(AnswerParser::new(template, "", ALL), [text]);
        assert_eq!(
            (answer.content.as_str(), answer.reasoning.as_str()),
            ("b", "a")
        );
    }
}

#[test]
fn pieces_come_as_soon_as_they_are_decided() {
    let mut parser = parser(CallFormat::Hermes);
    let content = |text: &str| vec![Piece::Content(text.to_owned())];
    assert_eq!(parser.push("Hi <"), content("Hi"));
    assert_eq!(parser.push("b"), content(" <b"));
    assert_eq!(parser.push("> \n"), content(">"));
    assert_eq!(parser.push("<tool_call>\n{\"na"), []);
    assert_eq!(parser.push("me\": \"f\", \"arguments\""), []);
    let begins = Piece::CallBegins {
        index: 0,
        name: "f".to_owned(),
    };
    let more = |text: &str| Piece::CallArguments {
        index: 0,
        text: text.to_owned(),
    };
    assert_eq!(parser.push(": {\"a"), [begins, more("{\"a")]);
    assert_eq!(parser.push("\": \"</tool"), [more("\": \"</tool")]);
    assert_eq!(parser.push("\"}"), [more("\"}")]);
    assert_eq!(parser.push("}\n</tool_call>"), []);
    assert_eq!(parser.finish(), []);
}
