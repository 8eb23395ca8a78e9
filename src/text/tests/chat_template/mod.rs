//! Chat templates: output of honest ones; hostile ones end quickly with a clean error.

mod adapted;
mod continued;
mod conversation;
mod folder;
mod hostile;
mod language;
mod python;
mod shapes;

use octavo_text::chat::{ChatTemplate, Error, Message};

fn template(source: &str) -> Result<ChatTemplate, Error> {
    ChatTemplate::new("test.gguf", source, "<s>".to_owned(), "</s>".to_owned())
}

fn conversation() -> Vec<Message> {
    vec![
        Message::new("system", "Be kind."),
        Message::new("user", "Hi \"there\" <b>"),
        Message::new("assistant", " Hello! "),
        Message::new("user", "Who?"),
    ]
}

/// Prints the probe conversations by which `ChatTemplate` detects the features that a template
/// supports: without it, a snippet would seem to lack features, and get adapted conversations.
const TAKES_ALL: &str = "{% if messages|length != 4 %}{{ messages }}{% endif %}";

fn render(source: &str) -> String {
    template(&format!("{TAKES_ALL}{source}"))
        .and_then(|t| t.render(&conversation(), true))
        .unwrap_or_else(|e| panic!("{source}: {e}"))
}

#[test]
fn chatml() {
    let source = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + \
                  message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}\n\
                  {% if add_generation_prompt %}\n{{ '<|im_start|>assistant\\n' }}\n\
                  {% endif %}\n";
    // As rendered by jinja2 with trim_blocks and lstrip_blocks; the template's final line break is
    // dropped.
    let expected = "<|im_start|>system\nBe kind.<|im_end|>\n\
                    <|im_start|>user\nHi \"there\" <b><|im_end|>\n\
                    <|im_start|>assistant\n Hello! <|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n\
                    <|im_start|>assistant\n\n";
    assert_eq!(render(source), expected);
    let without = template(source)
        .and_then(|t| t.render(&conversation()[..1], false))
        .expect("it renders");
    assert_eq!(without, "<|im_start|>system\nBe kind.<|im_end|>\n");
}

#[test]
fn llama_2_style_with_slices_and_exceptions() {
    let source = "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
        {% set system = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}\
        {% set system = false %}{% endif %}\
        {% for message in loop_messages %}\
        {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
        {{ raise_exception('Roles must alternate') }}{% endif %}\
        {% if loop.index0 == 0 and system != false %}\
        {% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}\
        {% else %}{% set content = message['content'] %}{% endif %}\
        {% if message['role'] == 'user' %}\
        {{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
        {% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}";
    let expected = "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi \"there\" <b> [/INST] Hello! \
                    </s><s>[INST] Who? [/INST]";
    assert_eq!(render(source), expected);
    let twice = [Message::new("user", "a"), Message::new("user", "b")];
    let error = template(source)
        .and_then(|t| t.render(&twice, true))
        .expect_err("roles do not alternate");
    assert!(
        matches!(&error, Error::Refused { message, .. } if message == "Roles must alternate"),
        "{error}"
    );
}

#[test]
fn the_date_is_written() {
    let today = render("{{ strftime_now('%Y') }}");
    assert!(today.len() == 4 && today.as_str() >= "2024", "{today}");
}

#[test]
fn a_long_conversation_is_not_mistaken_for_an_attack() {
    let source = "{% set ns = namespace(last=-1, all=[]) %}{% for m in messages %}\
        {% if m.role == 'user' and not \
        (m.content.startswith('<tool') and m.content.endswith('>')) %}\
        {% set ns.last = loop.index0 %}{% endif %}\
        {% set ns.all = ns.all + [m] %}{% endfor %}{% for m in ns.all %}\
        {% set content = m.content %}\
        {% if '</think>' in content %}\
        {% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}\
        {{ m.role + ': ' + content|trim + '\\n' }}\
        {% if loop.index0 == ns.last or messages[loop.index0 - 1].role == 'x' %}*{% endif %}\
        {% endfor %}";
    let messages: Vec<Message> = (0..1000)
        .map(|i| {
            Message::new(
                if i % 2 == 0 { "user" } else { "assistant" },
                "word </think> ".repeat(40),
            )
        })
        .collect();
    let text = template(source)
        .and_then(|t| t.render(&messages, true))
        .unwrap_or_else(|e| panic!("{e}"));
    assert!(text.starts_with("user: ") && text.contains('*'));
    let one = [Message::new("user", "a".repeat(8 << 20))];
    let text = template(source)
        .and_then(|t| t.render(&one, true))
        .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(text.len(), (8 << 20) + 8);
}
