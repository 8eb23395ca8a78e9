//! Templates that ship with llama.cpp (some seventy), if its sources are found.
//!
//! `folder.txt` has a digest of each template's output for the conversations in
//! `conversations.json`, recorded when all of them equalled jinja2's output for the same
//! conversation, in the shape that the template expects. Adapted conversations, for features that a
//! template does not support, were compared with llama-server's `/apply-template`, but not those
//! whose tools a template fails to describe.

use std::collections::BTreeMap;
use std::fmt::Write;

use octavo_fixtures::llama_cpp_sources;
use octavo_text::chat::answer::{AnswerParser, Piece, Wants};
use octavo_text::chat::{ChatTemplate, Content, Conversation, Message, ToolCall};
use serde_json::{Map, Value, json};

#[derive(serde::Deserialize)]
struct Cases {
    tools: Vec<Value>,
    cases: Vec<Value>,
}

fn message(from: &Value) -> Message {
    let text = |name: &str| from[name].as_str().map(str::to_owned);
    let call = |call: &Value| ToolCall {
        id: call["id"].as_str().unwrap_or_default().to_owned(),
        name: call["function"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        arguments: call["function"]["arguments"].clone(),
    };
    Message {
        role: text("role").unwrap_or_default(),
        content: match &from["content"] {
            Value::String(text) => Content::Text(text.clone()),
            Value::Array(parts) => Content::Parts(parts.clone()),
            _ => Content::None,
        },
        name: text("name"),
        reasoning_content: text("reasoning_content"),
        tool_calls: from["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .map(call)
            .collect(),
        tool_call_id: text("tool_call_id"),
    }
}

fn conversations() -> Vec<(String, Conversation)> {
    let cases: Cases = serde_json::from_str(include_str!("conversations.json")).expect("JSON");
    let conversation = |case: &Value| {
        let with_tools = case["tools"] == Value::Bool(true);
        let conversation = Conversation {
            messages: case["messages"]
                .as_array()
                .into_iter()
                .flatten()
                .map(message)
                .collect(),
            tools: if with_tools {
                cases.tools.clone()
            } else {
                Vec::new()
            },
            add_generation_prompt: case["add_generation_prompt"] != Value::Bool(false),
            kwargs: case["kwargs"].as_object().cloned().unwrap_or_else(Map::new),
        };
        (
            case["name"].as_str().unwrap_or_default().to_owned(),
            conversation,
        )
    };
    cases.cases.iter().map(conversation).collect()
}

/// Returns template names and sources.
fn templates() -> Option<BTreeMap<String, String>> {
    let folder = llama_cpp_sources("models/templates")?;
    let files = std::fs::read_dir(&folder).expect("the folder of templates");
    let paths = files.map(|file| file.expect("a file").path());
    let templates = paths.filter(|path| path.extension().is_some_and(|e| e == "jinja"));
    let read = |path: std::path::PathBuf| {
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        (name, std::fs::read_to_string(&path).expect("a template"))
    };
    Some(templates.map(read).collect())
}

fn compiled(name: &str, source: &str) -> ChatTemplate {
    ChatTemplate::new(name, source, "<s>".to_owned(), "</s>".to_owned())
        .unwrap_or_else(|e| panic!("{e}"))
}

/// Returns the FNV-1a hash.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[test]
fn real_templates_render_as_recorded() {
    let Some(templates) = templates() else {
        return;
    };
    let conversations = conversations();
    let mut found = String::new();
    for (name, source) in &templates {
        let template = compiled(name, source);
        let (mut all, mut rendered) = (String::new(), 0);
        for (case, conversation) in &conversations {
            let text = template.render_conversation(conversation);
            rendered += usize::from(text.is_ok());
            // Dates in a template's output change.
            let kept = text.unwrap_or_else(|_| "refused".to_owned());
            let dated = ["strftime_now", "date_string", "datetime"]
                .iter()
                .any(|name| source.contains(name));
            let kept = if dated { "today".to_owned() } else { kept };
            all.push_str(&format!("{case}\0{kept}\0"));
        }
        writeln!(found, "{name} {rendered} {:016x}", digest(&all)).expect("a String");
    }
    let recorded = include_str!("folder.txt");
    let changed: Vec<&str> = found
        .lines()
        .filter(|line| !recorded.lines().any(|known| known == *line))
        .collect();
    assert!(
        changed.is_empty(),
        "not as recorded:\n{}",
        changed.join("\n")
    );
}

/// Returns whether the pieces have exactly these calls.
fn read_back(pieces: &[Piece], calls: &[ToolCall]) -> bool {
    let mut found: Vec<(&str, String)> = Vec::new();
    for piece in pieces {
        match piece {
            Piece::CallBegins { name, .. } => found.push((name, String::new())),
            Piece::CallArguments { index, text } => found[*index].1.push_str(text),
            _ => {}
        }
    }
    let same = |((name, text), call): (&(&str, String), &ToolCall)| {
        let arguments: Option<Value> = serde_json::from_str(text).ok();
        *name == call.name && arguments.as_ref() == Some(&call.arguments)
    };
    found.len() == calls.len() && found.iter().zip(calls).all(same)
}

#[test]
fn real_templates_write_calls_that_are_read_back() {
    let Some(templates) = templates() else {
        return;
    };
    let question = Message::new("user", "Q?");
    let call = |id: &str, name: &str, arguments: Value| ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments,
    };
    let arguments = json!({"city": "Bern", "days": 2});
    let calls = [
        call("call00001", "get_weather", arguments.clone()),
        call("call00002", "now", json!({})),
    ];
    let tools: Cases = serde_json::from_str(include_str!("conversations.json")).expect("JSON");
    let mut unread = Vec::new();
    for (name, source) in &templates {
        let template = compiled(name, source);
        // Some write one call at a time; some prompts have more than the start of the answer.
        let tries = [
            (&calls[..], true),
            (&calls[..1], true),
            (&calls[..], false),
            (&calls[..1], false),
        ];
        let read = tries.into_iter().any(|(calls, generate)| {
            let answer = Message {
                role: "assistant".to_owned(),
                tool_calls: calls.to_vec(),
                ..Message::default()
            };
            let conversation = |messages: &[&Message], add_generation_prompt| Conversation {
                messages: messages.iter().map(|m| (*m).clone()).collect(),
                tools: tools.tools.clone(),
                add_generation_prompt,
                ..Conversation::default()
            };
            let prompt = template.render_conversation(&conversation(&[&question], generate));
            let whole = template.render_conversation(&conversation(&[&question, &answer], false));
            let (Ok(prompt), Ok(whole)) = (prompt, whole) else {
                return false;
            };
            let same = prompt
                .bytes()
                .zip(whole.bytes())
                .take_while(|(a, b)| a == b)
                .count();
            let same = (0..=same)
                .rev()
                .find(|at| whole.is_char_boundary(*at))
                .unwrap_or(0);
            let wants = Wants {
                tools: true,
                reasoning: true,
            };
            let mut parser = AnswerParser::new(source, "", wants).with_tools(&tools.tools);
            let mut pieces = parser.push(&whole[same..]);
            pieces.extend(parser.finish());
            read_back(&pieces, calls)
        });
        if !read {
            unread.push(name.as_str());
        }
    }
    assert_eq!(unread, [""; 0]);
}
