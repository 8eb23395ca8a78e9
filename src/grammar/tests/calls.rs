//! Tool calls, required or optional.

use octavo_grammar::{Calls, Demand, Reasoning, Rule};
use octavo_text::chat::answer::{AnswerParser, CallFormat, Piece, Wants};
use serde_json::{Value, json};

use crate::support::{Pen, engine, meets, warning};

fn tool(name: &str, properties: Value, required: &[&str]) -> Value {
    json!({ "type": "function", "function": { "name": name, "parameters": {
        "type": "object", "properties": properties, "required": required,
    } } })
}

fn tools() -> Vec<Value> {
    vec![
        tool("get_time", json!({}), &[]),
        tool(
            "weather",
            json!({ "days": { "type": "integer" } }),
            &["days"],
        ),
    ]
}

fn calls(format: CallFormat, tools: Vec<Value>, required: bool, several: bool) -> Demand {
    Demand {
        calls: Some(Calls {
            format,
            tools,
            several,
            required,
        }),
        ..Demand::default()
    }
}

const WEATHER: &str =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"days\": 3}}\n</tool_call>";

#[test]
fn a_call_is_held_once_it_has_begun_and_not_before() {
    let demand = calls(CallFormat::Hermes, tools(), false, true);
    let mut pen = Pen::new(&demand);
    assert!(pen.0.allows_all());
    assert_eq!(
        pen.write("I look it up, {\"name\": \"x\"} <tool> <tool_cal> "),
        ""
    );
    assert!(pen.may_end() && pen.0.allows_all());
    assert_eq!(pen.write("<tool_call>\n{\"name\": \"wheather"), "heather");
    assert!(!pen.may_end());
    assert_eq!(pen.write("eather\", \"arguments\": {\"days\": \"3"), "\"3");
    assert_eq!(pen.write("3}}\n</tool_call>"), "");
    // text or another call may follow; the latter is enforced as well
    assert!(pen.may_end());
    assert_eq!(
        pen.write("\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}"),
        ""
    );
    assert_eq!(
        pen.write("\n</tool_call> and so on <tool_call>\n[1]"),
        "[1]"
    );
}

#[test]
fn one_call_is_one_where_there_may_not_be_several() {
    let mut pen = Pen::new(&calls(CallFormat::Hermes, tools(), false, false));
    assert_eq!(pen.write("Well. "), "");
    assert_eq!(pen.write(WEATHER), "");
    assert!(pen.may_end() && !pen.may_go_on());
    let two = format!("{WEATHER}\n{WEATHER}");
    assert!(!meets(
        &calls(CallFormat::Hermes, tools(), true, false),
        &two
    ));
    assert!(meets(&calls(CallFormat::Hermes, tools(), true, true), &two));
    assert!(meets(
        &calls(CallFormat::Hermes, tools(), true, true),
        WEATHER
    ));
    assert!(!meets(
        &calls(CallFormat::Hermes, tools(), true, true),
        "Well."
    ));
}

#[test]
fn an_answer_is_a_call_or_what_its_format_says() {
    let demand = Demand {
        text: Some(Rule::Schema(json!({ "type": "integer" }))),
        reasoning: Reasoning::of("<think></think><tool_call>", "<think>"),
        ..calls(CallFormat::Hermes, tools(), false, true)
    };
    assert!(meets(&demand, "hm</think>\n12"));
    assert!(meets(&demand, &format!("hm</think>\n{WEATHER}")));
    assert!(!meets(&demand, "hm</think>\nhello"));
}

/// Formats, each as a template that uses it.
const FORMATS: [&str; 20] = [
    "<tool_call>",
    "\"parameters\": ",
    "",
    "[TOOL_CALLS]",
    "[TOOL_CALLS][ARGS]",
    "<parameter=",
    "<seed:tool_call><parameter=",
    "<function=",
    "<arg_key>",
    "<minimax:tool_call>",
    "｜DSML｜ function_calls",
    "<param name=",
    "<｜tool▁sep｜>",
    "<｜tool▁sep｜>```json",
    "<|tool_call_argument_begin|>",
    "<TOOLCALL>",
    "<|START_ACTION|>",
    "<|tools_prefix|>",
    "<|tool_call>call:",
    "<|tool_call_start|>",
];

/// Writes the forced text byte by byte, printable bytes first, until it may end.
fn forced(demand: &Demand) -> String {
    let tokenizer = engine().tokenizer();
    let n_vocab = u32::try_from(engine().hparams().n_vocab()).expect("32 bits");
    let byte = |id: u32| match tokenizer.piece(id) {
        Some([byte]) if !tokenizer.is_special(id) => Some((!byte.is_ascii_graphic(), *byte, id)),
        _ => None,
    };
    let mut bytes: Vec<(bool, u8, u32)> = (0..n_vocab).filter_map(byte).collect();
    bytes.sort_unstable();
    let ids: Vec<u32> = bytes.iter().map(|(_, _, id)| *id).collect();
    let mut pen = Pen::new(demand);
    let mut text = Vec::new();
    while text.is_empty() || !pen.may_end() {
        assert!(text.len() < 2000, "{}", String::from_utf8_lossy(&text));
        let id = pen.write_first(&ids).expect("something may come");
        text.extend_from_slice(tokenizer.piece(id).expect("a token"));
    }
    String::from_utf8(text).expect("UTF-8")
}

#[test]
fn demanded_calls_are_read_as_what_they_are_in_every_format() {
    let city = json!({ "city": { "enum": ["Oslo", "a < b"] }, "n": { "enum": [3] } });
    let tools = vec![tool("weather", city, &["city", "n"])];
    for template in FORMATS {
        let format = CallFormat::of(template);
        let demand = calls(format, tools.clone(), true, false);
        let text = forced(&demand);
        let wants = Wants {
            tools: true,
            reasoning: true,
        };
        let mut parser = AnswerParser::new(template, "", wants)
            .with_tools(&tools)
            .strict();
        let mut pieces = parser.push(&text);
        pieces.extend(parser.finish());
        let mut arguments = String::new();
        let mut names = Vec::new();
        for piece in pieces {
            match piece {
                Piece::CallBegins { name, .. } => names.push(name),
                Piece::CallArguments { text, .. } => arguments.push_str(&text),
                Piece::Content(said) => assert_eq!(said.trim(), "", "{format:?}: {text}"),
                Piece::Reasoning(said) => panic!("{format:?}: {said}"),
            }
        }
        assert_eq!(names, ["weather"], "{format:?}: {text}");
        let arguments: Value = serde_json::from_str(&arguments).expect("JSON");
        assert!(["Oslo", "a < b"].contains(&arguments["city"].as_str().unwrap_or_default()));
        assert_eq!(arguments["n"], 3, "{format:?}: {text}");
    }
}

#[test]
fn texts_between_tags_may_hold_anything_but_what_ends_them() {
    let tools = vec![tool(
        "write",
        json!({
            "text": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
            "n": { "type": "integer" },
        }),
        &["text"],
    )];
    let demand = calls(CallFormat::FunctionTag, tools, true, false);
    let code = "if a < b && c > d: return '<p>'\n{\"x\": 1}";
    let call =
        |rest: &str| format!("<tool_call>\n<function=write>\n<parameter=text>\n{code}\n{rest}");
    let end = "</function>\n</tool_call>";
    assert!(meets(&demand, &call(&format!("</parameter>\n{end}"))));
    let with_number = format!("</parameter>\n<parameter=n>\n12\n</parameter>\n{end}");
    assert!(meets(&demand, &call(&with_number)));
    let wrong = format!("</parameter>\n<parameter=n>\nten\n</parameter>\n{end}");
    assert!(!meets(&demand, &call(&wrong)));
}

#[test]
fn gemma_and_python_have_notations_of_their_own() {
    let tools = || {
        vec![tool(
            "find",
            json!({
                "what": { "type": "string" },
                "is_new": { "type": "boolean" },
                "in": { "type": "object", "properties": {
                    "places": { "type": "array", "items": { "type": "string" } },
                    "at": { "anyOf": [{ "type": "integer" }, { "type": "null" }] },
                } },
            }),
            &["what"],
        )]
    };
    let gemma = calls(CallFormat::Gemma, tools(), true, false);
    let call = "<|tool_call>call:find{what:<|\"|>a {b}<|\"|>,is_new:true,\
                in:{places:[<|\"|>x<|\"|>,<|\"|>y<|\"|>],at:null}}<tool_call|>";
    assert!(meets(&gemma, call));
    assert!(meets(
        &gemma,
        "<|tool_call>call:find{what:<|\"|><|\"|>,is_new:false}<tool_call|>"
    ));
    assert!(!meets(
        &gemma,
        "<|tool_call>call:find{is_new:true}<tool_call|>"
    ));
    let python = calls(CallFormat::Lfm2, tools(), true, false);
    let call = "<|tool_call_start|>[find(what=\"a (b)\", is_new=True, \
                in={\"places\": [\"x\"], \"at\": None})]<|tool_call_end|>";
    assert!(meets(&python, call));
    assert!(!meets(&python, &call.replace("True", "true")));
}

#[test]
fn hundreds_of_tools_are_held() {
    let tools: Vec<Value> = (0..600)
        .map(|i| {
            tool(
                &format!("t{i}"),
                json!({ "x": { "type": "string" } }),
                &["x"],
            )
        })
        .collect();
    let demand = calls(CallFormat::Hermes, tools, false, true);
    assert_eq!(warning(&demand), None);
    let mut pen = Pen::new(&demand);
    let call = "<tool_call>\n{\"name\": \"t599\", \"arguments\": {\"x\": \"a\"}}\n</tool_call>";
    assert_eq!(pen.write(call), "");
    assert_eq!(pen.write("<tool_call>\n{\"name\": \"t600"), "0");
}

#[test]
fn a_tool_that_cannot_be_held_is_no_reason_to_refuse_a_conversation() {
    let bad = vec![tool("a", json!({ "x": { "type": "colour" } }), &[])];
    let demand = calls(CallFormat::Hermes, bad, false, true);
    let warning = warning(&demand).unwrap_or_default();
    assert!(warning.contains("colour"), "{warning}");
}
