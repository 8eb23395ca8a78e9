//! Parsing of answers.

mod cases;
mod forced;
mod formats;
mod ids;
mod literals;
mod properties;
mod thoughts;
mod values;

use octavo_text::chat::answer::{AnswerParser, CallFormat, Piece, Wants};
use serde_json::{Value, json};

const ALL: Wants = Wants {
    tools: true,
    reasoning: true,
};

const FORMATS: [CallFormat; 35] = [
    CallFormat::Hermes,
    CallFormat::Llama3,
    CallFormat::Pythonic,
    CallFormat::Lfm2,
    CallFormat::Mistral,
    CallFormat::MistralArgs,
    CallFormat::FunctionTag,
    CallFormat::SeedTag,
    CallFormat::FunctionJson,
    CallFormat::ArgKey,
    CallFormat::Hunyuan,
    CallFormat::Invoke,
    CallFormat::MiniMaxM3,
    CallFormat::Dsml,
    CallFormat::DsmlV4,
    CallFormat::Muse,
    CallFormat::ParamTag,
    CallFormat::DeepSeek,
    CallFormat::DeepSeekR1,
    CallFormat::Kimi,
    CallFormat::KimiK3,
    CallFormat::Solar,
    CallFormat::ToolCalls,
    CallFormat::Nemotron,
    CallFormat::Granite,
    CallFormat::Functools,
    CallFormat::Cohere,
    CallFormat::CommandR,
    CallFormat::Apertus,
    CallFormat::FunctionCall,
    CallFormat::GigaChat3,
    CallFormat::Gemma,
    CallFormat::Harmony,
    CallFormat::Functionary,
    CallFormat::Json,
];

/// A parsed answer.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Answer {
    content: String,
    reasoning: String,
    /// Names and the JSON text of arguments.
    calls: Vec<(String, String)>,
    /// Call ids written by the model.
    ids: Vec<Option<String>>,
}

fn take(answer: &mut Answer, pieces: Vec<Piece>) {
    for piece in pieces {
        match piece {
            Piece::Content(text) => answer.content.push_str(&text),
            Piece::Reasoning(text) => answer.reasoning.push_str(&text),
            Piece::CallBegins { index, name, id } => {
                assert_eq!(index, answer.calls.len());
                answer.calls.push((name, String::new()));
                answer.ids.push(id);
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

/// Returns a template that shows a format and nothing else.
fn template(format: CallFormat) -> &'static str {
    match format {
        CallFormat::Hermes => "<tool_call>",
        CallFormat::Llama3 => "<|python_tag|>",
        CallFormat::Pythonic => "[func_name1(",
        CallFormat::Lfm2 => "<|tool_call_start|>",
        CallFormat::Mistral => "[TOOL_CALLS]",
        CallFormat::MistralArgs => "[TOOL_CALLS][ARGS]",
        CallFormat::FunctionTag => "<tool_call><function=<parameter=",
        CallFormat::SeedTag => "<seed:tool_call><function=<parameter=",
        CallFormat::FunctionJson => "<function=",
        CallFormat::ArgKey => "<tool_call><arg_key>",
        CallFormat::Hunyuan => "<tool_call:opensource><arg_key:opensource>",
        CallFormat::Invoke => "<minimax:tool_call>",
        CallFormat::MiniMaxM3 => "]<]minimax[>[ <invoke name=",
        CallFormat::Dsml => "<｜DSML｜invoke function_calls",
        CallFormat::DsmlV4 => "<｜DSML｜invoke tool_calls",
        CallFormat::Muse => "<|start|><|message|><|eom|><atem:function_calls>",
        CallFormat::DeepSeek => "<｜tool▁sep｜>",
        CallFormat::DeepSeekR1 => "<｜tool▁sep｜>```json",
        CallFormat::Kimi => "<|tool_call_argument_begin|>",
        CallFormat::KimiK3 => "<|open|>call tool=",
        CallFormat::Solar => "<|tool_call:begin|><|tool_call:args|>",
        CallFormat::ToolCalls => "<tool_calls>",
        CallFormat::Nemotron => "<TOOLCALL>",
        CallFormat::Granite => "<|tool_call|>",
        CallFormat::Functools => "functools[",
        CallFormat::Cohere => "<|START_ACTION|>",
        CallFormat::CommandR => "<|CHATBOT_TOKEN|> Action: ```json",
        CallFormat::Apertus => "<|tools_prefix|>",
        CallFormat::ParamTag => "<function name=<param name=",
        CallFormat::FunctionCall => "<|function_call|>",
        CallFormat::GigaChat3 => "<|role_sep|><|message_sep|>",
        CallFormat::Gemma => "<|tool_call>call:",
        CallFormat::Harmony => "<|channel|>commentary <|channel|>analysis<|message|> <|end|>",
        CallFormat::Functionary => "<|start_header_id|> >>>all",
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

/// Parses the answer in one piece; parsing it character by character must give the same.
fn answer(format: CallFormat, text: &str) -> Answer {
    let whole = read(parser(format), [text]);
    let parts: Vec<String> = text.chars().map(String::from).collect();
    let by_character = read(parser(format), parts.iter().map(String::as_str));
    assert_eq!(whole, by_character, "{text}");
    whole
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
        id: None,
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
