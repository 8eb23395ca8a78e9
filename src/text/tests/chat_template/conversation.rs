//! Conversations with tools, calls, reasoning and parts.

use std::time::{Duration, Instant};

use octavo_text::chat::{Content, Conversation, Error, Message, ToolCall};
use serde_json::{Map, Value, json};

use super::template;

fn weather() -> Conversation {
    let arguments = json!({"city": "Bern", "days": 2});
    Conversation {
        messages: vec![
            Message::new("user", "Weather?"),
            Message {
                role: "assistant".to_owned(),
                reasoning_content: Some("I should look.".to_owned()),
                tool_calls: vec![ToolCall {
                    id: "call_1".to_owned(),
                    name: "weather".to_owned(),
                    arguments,
                }],
                ..Message::default()
            },
            Message {
                role: "tool".to_owned(),
                content: Content::Text("Snow.".to_owned()),
                name: Some("weather".to_owned()),
                tool_call_id: Some("call_1".to_owned()),
                ..Message::default()
            },
        ],
        tools: vec![json!({"type": "function", "function": {"name": "weather"}})],
        add_generation_prompt: true,
        kwargs: Map::new(),
    }
}

fn render(source: &str, conversation: &Conversation) -> Result<String, Error> {
    template(source)?.render_conversation(conversation)
}

#[test]
fn a_template_sees_all_of_a_conversation() {
    let source = "{% for t in tools %}{{ t.function.name }};{% endfor %}\
        {% for m in messages %}{{ m.role }}:\
        {% if m.content is string %}{{ m.content }}{% endif %}\
        {% if m.reasoning_content is defined %}<{{ m.reasoning_content }}>{% endif %}\
        {% for c in m.tool_calls %}{{ c.id }} {{ c.type }} {{ c.function.name }}\
        {{ c.function.arguments|tojson }}{% endfor %}\
        {% if m.tool_call_id is defined %}[{{ m.name }} {{ m.tool_call_id }}]{% endif %};\
        {% endfor %}{{ add_generation_prompt }}";
    let text = render(source, &weather()).unwrap_or_else(|e| panic!("{e}"));
    let expected = "weather;user:Weather?;assistant:<I should look.>call_1 function weather\
        {\"city\": \"Bern\", \"days\": 2};tool:Snow.[weather call_1];True";
    assert_eq!(text, expected);
}

#[test]
fn variables_are_set_and_some_are_not() {
    let source = "{{ enable_thinking }} {{ effort }} {{ tools is none }} {{ bos_token }}";
    let with = |name: &str, value: Value| Conversation {
        kwargs: Map::from_iter([
            ("enable_thinking".to_owned(), json!(false)),
            (name.to_owned(), value),
        ]),
        ..Conversation::default()
    };
    let text = render(source, &with("effort", json!("low")));
    assert_eq!(text.unwrap_or_else(|e| panic!("{e}")), "False low True <s>");
    let text = render(source, &with("bos_token", json!("<b>")));
    assert_eq!(text.unwrap_or_else(|e| panic!("{e}")), "False  True <b>");
    for name in ["messages", "tools", "add_generation_prompt", "__guard_deep"] {
        let error = render(source, &with(name, json!(1))).expect_err("it is taken");
        assert!(matches!(&error, Error::Reserved { name: n, .. } if n == name));
    }
}

/// FireFunction reads its tools from a text. llama.cpp gives it none, so that its model does not
/// learn of them.
#[test]
fn tools_are_a_text_for_templates_that_append_it() {
    let source = "{%- set system = 'Functions:' + functions -%}{{ system }}\
        {%- for m in messages %}|{{ m.role }}:{{ m.content }}{% endfor -%}";
    let mut conversation = Conversation {
        messages: vec![Message::new("user", "Weather?")],
        ..weather()
    };
    let text = render(source, &conversation).unwrap_or_else(|e| panic!("{e}"));
    let functions = "[\n    {\n        \"name\": \"weather\"\n    }\n]";
    assert_eq!(text, format!("Functions:{functions}|user:Weather?"));
    let own = json!("mine");
    conversation.kwargs.insert("functions".to_owned(), own);
    let text = render(source, &conversation).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(text, "Functions:mine|user:Weather?");
    let question = Conversation {
        messages: conversation.messages,
        ..Conversation::default()
    };
    let text = render(source, &question).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(text, "Functions:|user:Weather?");
}

#[test]
fn deep_json_is_refused() {
    let deep = (0..120).fold(json!(1), |inner, _| json!([inner]));
    let mut conversation = weather();
    conversation.tools.push(deep);
    let error = render("{{ tools }}", &conversation).expect_err("too deep");
    assert!(matches!(error, Error::Limit { .. }), "{error}");
}

/// Any conversation must quickly give a text or an error.
#[test]
fn hostile_conversations_end_soon() {
    let source = "{{ tools|tojson }}{{ tools }}{% for m in messages %}\
        {{ m.content ~ m.tool_calls }}{% for c in m.tool_calls %}{{ c.function.arguments|tojson }}\
        {% for k, v in c.function.arguments.items() %}{{ k ~ v }}{% endfor %}{% endfor %}\
        {% endfor %}";
    let wide = json!(vec![json!({}); 200_000]);
    let keys: Map<String, Value> = (0..50_000).map(|i| (i.to_string(), json!(i))).collect();
    let deep = (0..79).fold(json!("x"), |inner, _| json!({"a": inner}));
    let nested: Map<String, Value> = (0..2000).map(|i| (i.to_string(), deep.clone())).collect();
    for (name, value) in [
        ("wide", wide),
        ("keys", Value::Object(keys)),
        ("nested", Value::Object(nested)),
        ("long", json!("\u{1}'\"".repeat(1 << 20))),
        ("format", json!("%s{}{0:>999}".repeat(1 << 16))),
    ] {
        let mut conversation = weather();
        conversation.tools = vec![json!({"type": "function", "function": value.clone()})];
        conversation.messages[1].tool_calls[0].arguments = value;
        let start = Instant::now();
        let result = render(source, &conversation);
        let took = start.elapsed();
        println!("{name}: {took:?}, {:?}", result.map(|text| text.len()));
        assert!(took < Duration::from_secs(60), "{name}: took {took:?}");
    }
    for depth in [100_usize, 1000] {
        let mut conversation = weather();
        let deep = (0..depth).fold(json!(1), |inner, _| json!([inner]));
        conversation.messages[1].tool_calls[0].arguments = deep.clone();
        assert!(matches!(
            render("", &conversation),
            Err(Error::Limit { .. })
        ));
        let part = Message {
            content: Content::Parts(vec![deep]),
            ..Message::new("user", "")
        };
        conversation.messages = vec![part];
        assert!(matches!(
            render("", &conversation),
            Err(Error::Limit { .. })
        ));
    }
}
