//! Prompts that end inside the assistant's last message.

use octavo_text::chat::{Content, Continued, ContinuedPart, Conversation, Message, ToolCall};
use serde_json::json;

use super::template;

/// Like Qwen3's: reasoning is written before the content in the last message only.
const THINKING: &str = "{% for m in messages %}<{{ m.role }}>\
    {% if m.reasoning_content and loop.last %}\
    <think>\n{{ m.reasoning_content.strip() }}\n</think>\n\n{% endif %}\
    {{ m.content.strip() }}<end>{% endfor %}\
    {% if add_generation_prompt %}<assistant>{% endif %}";

fn continued(
    source: &str,
    thought: Option<&str>,
    content: Content,
    part: ContinuedPart,
) -> Option<Continued> {
    let conversation = Conversation {
        messages: vec![
            Message::new("user", "?"),
            Message {
                content,
                reasoning_content: thought.map(str::to_owned),
                ..Message::new("assistant", "")
            },
        ],
        add_generation_prompt: true,
        ..Conversation::default()
    };
    template(source)
        .and_then(|template| template.render_continued(&conversation, part))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn prompt(source: &str, thought: Option<&str>, content: Content) -> (String, bool) {
    let continued = continued(source, thought, content, ContinuedPart::Last);
    let continued = continued.expect("it can be continued");
    (continued.prompt, continued.in_thought)
}

#[test]
fn a_text_is_continued_where_it_ends() {
    let text = Content::Text(" 2 and ".to_owned());
    let expected = ("<user>?<end><assistant> 2 and ".to_owned(), false);
    assert_eq!(prompt(THINKING, None, text), expected);
    let parts = ["2", "and"].map(|text| json!({ "type": "text", "text": text }));
    let expected = ("<user>?<end><assistant>2\nand".to_owned(), false);
    assert_eq!(
        prompt(THINKING, None, Content::Parts(parts.into())),
        expected
    );
    // no text so far: the answer begins
    let expected = ("<user>?<end><assistant>".to_owned(), false);
    assert_eq!(prompt(THINKING, None, Content::None), expected);
}

#[test]
fn a_request_says_which_part_is_continued() {
    // the second drops thoughts
    let dropping = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}\
        {% if add_generation_prompt %}<assistant>{% endif %}{# <think></think> #}";
    for source in [THINKING, dropping] {
        let part = |text: &str, part: ContinuedPart| {
            let content = Content::Text(text.to_owned());
            let continued = continued(source, Some("I see"), content, part);
            let continued = continued.expect("it can be continued");
            (continued.prompt, continued.in_thought)
        };
        let thought = "<user>?<end><assistant><think>\nI see";
        let ended = format!("{thought}\n</think>\n\n");
        let text = format!("{ended}2 and");
        assert_eq!(part("", ContinuedPart::Content), (ended, false), "{source}");
        assert_eq!(
            part("2 and", ContinuedPart::Content),
            (text, false),
            "{source}"
        );
        for content in ["", "2 and"] {
            let got = part(content, ContinuedPart::Reasoning);
            assert_eq!(got, (thought.to_owned(), true), "{source}");
        }
    }
}

#[test]
fn a_thought_is_continued_and_one_before_a_text_is_kept() {
    let expected = "<user>?<end><assistant><think>\nI see ";
    let got = prompt(THINKING, Some("I see "), Content::None);
    assert_eq!(got, (expected.to_owned(), true));
    let text = Content::Text("2 and".to_owned());
    let expected = "<user>?<end><assistant><think>\nI see\n</think>\n\n2 and";
    let got = prompt(THINKING, Some("I see"), text.clone());
    assert_eq!(got, (expected.to_owned(), false));
    // also if the template does not show it
    let plain = "{# <think> </think> #}\
        {% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
        {% if add_generation_prompt %}<assistant>{% endif %}";
    let expected = "<user>?<assistant><think>\nI see\n</think>\n\n2 and";
    let got = prompt(plain, Some("I see"), text);
    assert_eq!(got, (expected.to_owned(), false));
    let expected = "<user>?<assistant><think>\nI see";
    let got = prompt(plain, Some("I see"), Content::None);
    assert_eq!(got, (expected.to_owned(), true));
    // but not for a model without reasoning
    let got = prompt(&plain.replace("think", "x"), Some("I see"), Content::None);
    assert_eq!(got, ("<user>?<assistant>".to_owned(), false));
}

#[test]
fn what_is_no_text_of_the_assistant_is_not_continued() {
    let image = json!({ "type": "image_url", "image_url": {} });
    let content = Content::Parts(vec![image]);
    let got = continued(THINKING, None, content, ContinuedPart::Last);
    assert_eq!(got, None);
    let call = ToolCall {
        id: String::new(),
        name: "f".to_owned(),
        arguments: json!({}),
    };
    for message in [
        Message::new("user", "?"),
        Message {
            tool_calls: vec![call],
            ..Message::new("assistant", "a")
        },
    ] {
        let conversation = Conversation {
            messages: vec![Message::new("user", "?"), message],
            ..Conversation::default()
        };
        let got =
            template(THINKING).and_then(|t| t.render_continued(&conversation, ContinuedPart::Last));
        assert_eq!(got.unwrap_or_else(|e| panic!("{e}")), None);
    }
}
