//! Templates get arguments, absent content, parts and reasoning in the shape that they expect.

use octavo_text::chat::{Content, Conversation, Error, Message, ToolCall};
use serde_json::{Value, json};

use super::template;

fn called(arguments: Value, content: Content) -> Vec<Message> {
    vec![
        Message::new("user", "?"),
        Message {
            role: "assistant".to_owned(),
            content,
            reasoning_content: Some("hm".to_owned()),
            tool_calls: vec![ToolCall {
                id: String::new(),
                name: "f".to_owned(),
                arguments,
            }],
            ..Message::default()
        },
    ]
}

fn render(source: &str, messages: Vec<Message>) -> Result<String, Error> {
    template(source)?.render_conversation(&Conversation {
        messages,
        ..Conversation::default()
    })
}

/// Renders calls, with arguments written by `form`.
fn calls(form: &str, arguments: Value) -> String {
    let source = format!(
        "{{% for m in messages %}}{{% for c in m.tool_calls %}}{{% set a = c.function.arguments %}}\
         {form}{{% endfor %}}{{% endfor %}}"
    );
    render(&source, called(arguments, Content::None)).unwrap_or_else(|e| panic!("{form}: {e}"))
}

#[test]
fn arguments_are_objects_or_text() {
    let arguments = json!({"a": "é\"\n", "b": [1, 2.5, null, 1e20]});
    let text = r#"{"a": "é\"\n", "b": [1, 2.5, null, 1e+20]}"#;
    // As an object.
    for form in [
        "{{ a|tojson }}",
        "{% if a is string %}{{ a }}{% else %}{{ a|tojson }}{% endif %}",
        "{% if a is mapping %}{{ a|tojson }}{% endif %}",
    ] {
        assert_eq!(calls(form, arguments.clone()), text, "{form}");
    }
    let keys = "{% for k, v in a.items() %}{{ k }}:{{ v }};{% endfor %}";
    assert_eq!(
        calls(keys, arguments.clone()),
        "a:é\"\n;b:[1, 2.5, None, 1e+20];"
    );
    // As text.
    for form in [
        "{{ a }}",
        "{{ '<' + a }}",
        "{{ '<' ~ a }}",
        "{{ a.strip() }}",
    ] {
        let expected = text.to_owned();
        let got = calls(form, arguments.clone());
        assert_eq!(got.trim_start_matches('<'), expected, "{form}");
    }
    // Arguments that were not JSON are unchanged.
    assert_eq!(calls("{{ a }}", json!("{oh")), "{oh");
}

#[test]
fn absent_content_is_none_or_empty() {
    let cases = [
        ("{{ m.content is none }}", "FalseTrue"),
        ("[{{ m.content or '' }}]", "[?][]"),
        ("[{{ m.content }}]", "[?][]"),
        ("{{ '[' + m.content + ']' }}", "[?][]"),
        ("[{{ m.content|trim }}]", "[?][]"),
        ("[{{ m['content'].split('x')[0] }}]", "[?][]"),
        (
            "{% if m.content is string %}[{{ m.content }}]{% else %}{{ m.content|tojson }}\
             {% endif %}",
            "[?][]",
        ),
    ];
    for (form, expected) in cases {
        // the template supports calls, but not these
        let calls = "{% if messages|length == 3 %}{{ messages[1].tool_calls }}{% endif %}";
        let source = format!("{{% for m in messages %}}{form}{{% endfor %}}{calls}");
        let got = render(&source, called(json!({}), Content::None));
        assert_eq!(
            got.unwrap_or_else(|e| panic!("{form}: {e}")),
            expected,
            "{form}"
        );
    }
}

fn parts(role: &str, parts: &[&str]) -> Message {
    let part = |text: &&str| json!({"type": "text", "text": text});
    Message {
        role: role.to_owned(),
        content: Content::Parts(parts.iter().map(part).collect()),
        ..Message::default()
    }
}

#[test]
fn parts_are_a_list_or_text() {
    let messages = || {
        vec![
            parts("user", &["one", "two"]),
            Message::new("user", "three"),
        ]
    };
    let each = "{% for p in m.content %}{% if p.type == 'text' %}<{{ p.text }}>{% endif %}\
                {% endfor %}";
    let either =
        format!("{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}{each}{{% endif %}}");
    for (form, expected) in [
        (either.as_str(), "<one><two>three"),
        (each, "<one><two><three>"),
        ("{{ m.content }};", "one\ntwo;three;"),
        ("{{ m.content + ';' }}", "one\ntwo;three;"),
        ("{{ m.content|trim }};", "one\ntwo;three;"),
        ("{{ m.content|tojson }};", "\"one\\ntwo\";\"three\";"),
    ] {
        let source = format!("{{% for m in messages %}}{form}{{% endfor %}}");
        let got = render(&source, messages()).unwrap_or_else(|e| panic!("{form}: {e}"));
        assert_eq!(got, expected, "{form}");
    }
    let image = Message {
        content: Content::Parts(vec![json!({"type": "image_url", "image_url": {}})]),
        ..Message::new("user", "")
    };
    let error = render(
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        vec![image],
    );
    assert!(matches!(error, Err(Error::Part { kind, .. }) if kind == "image_url"));
}

#[test]
fn a_role_may_take_what_another_does_not() {
    let source = "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '|' }}\
        {% else %}{% for p in m.content %}{{ p['type'] + p['text'] }}{% endfor %}{% endif %}\
        {% endfor %}";
    let messages = vec![
        parts("system", &["a", "b"]),
        parts("user", &["c"]),
        Message::new("user", "d"),
    ];
    let got = render(source, messages).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(got, "a\nb|textctextd");
}

#[test]
fn thoughts_have_the_name_that_the_template_knows() {
    for name in ["reasoning_content", "reasoning", "thinking"] {
        let source = format!("{{% for m in messages %}}{{{{ m.{name} }}}}{{% endfor %}}");
        let got = render(&source, called(json!({}), Content::None));
        assert_eq!(got.unwrap_or_else(|e| panic!("{e}")), "hm", "{name}");
    }
}

#[test]
fn a_list_of_texts_is_text_where_the_template_takes_no_list() {
    // the call's argument is in the prompt too: it is not the tool's result
    let source = "{% for m in messages %}{% for c in m.tool_calls %}\
        {{ c.function.arguments|tojson }}{% endfor %}\
        <{{ m.content if m.content is string else '' }}>{% endfor %}";
    let mut messages = called(json!({"a": 1}), Content::None);
    messages.push(parts("tool", &["warm", "dry"]));
    let got = render(source, messages).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(got, "<?>{\"a\": 1}<><warm\ndry>");
}

#[test]
fn thoughts_are_parts_where_the_template_reads_parts() {
    let source = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
        {% for b in m.content %}{% if b['type'] == 'thinking' %}[{{ b['thinking'] }}]{% else %}\
        {{ b['text'] }}{% endif %}{% endfor %}{% endif %}{% for c in m.tool_calls %}\
        !{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}";
    let got = render(source, called(json!({}), Content::None));
    assert_eq!(got.unwrap_or_else(|e| panic!("{e}")), "?[hm]!{}");
    let got = render(source, called(json!({}), Content::Text("so".to_owned())));
    assert_eq!(got.unwrap_or_else(|e| panic!("{e}")), "?[hm]so!{}");
}

#[test]
fn thoughts_are_left_out_where_the_template_would_print_their_parts() {
    // the template uses the word for something else
    let source = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}\
        !{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}\
        {% if thinking %}<thinking>{% endif %}";
    let got = render(source, called(json!({}), Content::Text("so".to_owned())));
    assert_eq!(got.unwrap_or_else(|e| panic!("{e}")), "?so!{}");
}

#[test]
fn null_content_is_nothing() {
    let source = "{% for m in messages %}{{ m.role }}:{{ m.content|tojson }};{% endfor %}";
    let null = |role: &str| Message {
        role: role.to_owned(),
        ..Message::default()
    };
    let messages = vec![null("system"), null("user"), null("assistant")];
    let got = render(source, messages).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(got, "system:\"\";user:\"\";assistant:\"\";");
}
