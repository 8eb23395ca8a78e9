//! Conversations adapted to templates that lack support for parts of them.

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_text::chat::{ChatTemplate, Content, Conversation, Message, ToolCall, thinking};
use octavo_text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use super::template;

/// Like Gemma 2's: no system message, and strictly alternating roles.
const STRICT: &str = "{% for m in messages %}\
    {% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no ' + m.role) }}{% endif %}\
    {% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}\
    <{{ m.role }}>{{ m.content }}{% endfor %}";

fn text(source: &str, messages: Vec<Message>, tools: Vec<Value>) -> String {
    let conversation = Conversation {
        messages,
        tools,
        ..Conversation::default()
    };
    template(source)
        .and_then(|template| template.render_conversation(&conversation))
        .unwrap_or_else(|error| panic!("{source}: {error}"))
}

fn weather() -> Value {
    json!({ "type": "function", "function": { "name": "weather", "parameters": {} } })
}

fn called() -> Vec<Message> {
    let call = |city: &str| ToolCall {
        id: String::new(),
        name: "weather".to_owned(),
        arguments: json!({ "city": city }),
    };
    vec![
        Message::new("user", "?"),
        Message {
            tool_calls: vec![call("Bern"), call("Rome")],
            ..Message::new("assistant", "I look.")
        },
        Message::new("tool", "cold"),
        Message::new("tool", "warm"),
        Message::new("user", "So?"),
    ]
}

#[test]
fn a_system_message_goes_before_what_the_user_says_first() {
    let system = Message::new("system", "Be brief.");
    let user = Message::new("user", "hi");
    let got = text(STRICT, vec![system.clone(), user.clone()], Vec::new());
    assert_eq!(got, "<user>Be brief.\nhi");
    let parts = json!([{ "type": "text", "text": "hi" }, { "type": "text", "text": "you" }]);
    let user_parts = Message {
        content: Content::Parts(parts.as_array().expect("a list").clone()),
        ..user.clone()
    };
    let got = text(STRICT, vec![system.clone(), user_parts], Vec::new());
    assert_eq!(got, "<user>Be brief.\nhi\nyou");
    assert_eq!(
        text(STRICT, vec![system.clone()], Vec::new()),
        "<user>Be brief."
    );
    // a template that silently drops it is treated alike
    let silent = "{% for m in messages if m.role != 'system' %}{{ m.content }};{% endfor %}";
    let got = text(silent, vec![system.clone(), user.clone()], Vec::new());
    assert_eq!(got, "Be brief.\nhi;");
    let plain = "{% for m in messages %}{{ m.content }};{% endfor %}";
    assert_eq!(text(plain, vec![system, user], Vec::new()), "Be brief.;hi;");
}

#[test]
fn a_later_system_message_goes_into_what_the_user_says() {
    let messages = [
        "system S",
        "user a",
        "system b",
        "assistant c",
        "system d",
        "user e",
    ];
    let messages = messages.map(|message| {
        let (role, content) = message.split_once(' ').expect("a role");
        Message::new(role, content)
    });
    let plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let first = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
        {{ raise_exception('must be first') }}{% endif %}{% endfor %}";
    assert_eq!(
        text(&format!("{first}{plain}"), messages.to_vec(), Vec::new()),
        "<system>S<user>a\n\nb<assistant>c<user>d\n\ne"
    );
    assert_eq!(
        text(plain, messages.to_vec(), Vec::new()),
        "<system>S<user>a<system>b<assistant>c<system>d<user>e"
    );
    assert_eq!(
        text(STRICT, messages.to_vec(), Vec::new()),
        "<user>S\na\n\nb<assistant>c<user>d\n\ne"
    );
    let two = ["R", "S"].map(|text| Message::new("system", text)).to_vec();
    let two = [two, vec![Message::new("user", "a")]].concat();
    let got = text(&format!("{first}{plain}"), two, Vec::new());
    assert_eq!(got, "<system>R\nS<user>a");
}

#[test]
fn tools_are_in_the_system_message_in_a_generic_form() {
    let plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let messages = vec![
        Message::new("system", "Be brief."),
        Message::new("user", "hi"),
    ];
    let got = text(plain, messages.clone(), vec![weather()]);
    assert!(
        got.starts_with("<system>Be brief.\n\nYou may call functions"),
        "{got}"
    );
    for part in [
        "{\"name\": \"weather\", \"parameters\": {}}\n",
        "{\"name\": \"NAME\", \"arguments\": ARGUMENTS}<user>hi",
    ] {
        assert!(got.contains(part), "{part}: {got}");
    }
    let got = text(STRICT, messages, vec![weather()]);
    assert!(got.starts_with("<user>Be brief.\n\nYou may call"), "{got}");
    assert!(got.ends_with("ARGUMENTS}\nhi"), "{got}");
    // in the template's own format, if it shows one
    let hermes = format!("{plain}{{# <tool_call> #}}");
    let got = text(&hermes, vec![Message::new("user", "hi")], vec![weather()]);
    let form = "<tool_call>\n{\"name\": \"NAME\", \"arguments\": ARGUMENTS}\n</tool_call>";
    assert!(got.contains(form), "{got}");
    // a template that supports tools gets no extra text
    let own = format!("{{{{ tools|tojson if tools }}}}{plain}");
    let got = text(&own, vec![Message::new("user", "hi")], vec![weather()]);
    assert!(
        got.ends_with("]<user>hi") && !got.contains("You may"),
        "{got}"
    );
}

#[test]
fn tools_that_a_template_cannot_describe_are_in_a_generic_form() {
    // like the macros of Hermes 2 Pro and Command R+, which know no parameter of several types
    let source = "{% for t in tools %}{{ t.function.name }}\
        {% if t.function.of %}{{ t.function.of.one.kind }}{% endif %};{% endfor %}\
        {% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{# <tool_call> #}";
    let user = || vec![Message::new("user", "hi")];
    let tool = |of: Value| {
        let function = json!({ "name": "f", "of": of });
        json!({ "type": "function", "function": function })
    };
    let known = tool(json!({ "one": { "kind": 1 } }));
    let got = text(source, user(), vec![known.clone()]);
    assert_eq!(got, "f1;<user>hi");
    let got = text(source, user(), vec![known, tool(json!({ "two": [] }))]);
    assert!(got.starts_with("<system>You may call functions"), "{got}");
    assert!(
        got.contains("{\"name\": \"f\", \"of\": {\"two\": []}}"),
        "{got}"
    );
    assert!(got.ends_with("</tool_call><user>hi"), "{got}");
}

#[test]
fn calls_and_results_are_text_where_there_is_no_place_for_them() {
    let got = text(STRICT, called(), Vec::new());
    let expected = "<user>?<assistant>I look.\n\
        {\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n\
        {\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\
        <user><tool_response>\ncold\n</tool_response>\n<tool_response>\nwarm\n</tool_response>\n\
        So?";
    assert_eq!(got, expected);
    // a template that supports one of the two still uses it
    let results = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let got = text(results, called(), Vec::new());
    assert!(
        got.ends_with("\"Rome\"}}<tool>cold<tool>warm<user>So?"),
        "{got}"
    );
}

#[test]
fn conversations_with_tools_have_a_template_of_their_own() {
    let source =
        |text: &str| format!("{text}{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}");
    let usual = template(&source("usual:")).unwrap_or_else(|e| panic!("{e}"));
    let tools = template(&source("{{ tools|tojson }}:")).unwrap_or_else(|e| panic!("{e}"));
    let both = usual.with_tool_use(tools);
    let conversation = |tools: Vec<Value>| Conversation {
        messages: vec![Message::new("user", "hi")],
        tools,
        ..Conversation::default()
    };
    let render = |tools| both.render_conversation(&conversation(tools));
    assert_eq!(
        render(Vec::new()).unwrap_or_else(|e| panic!("{e}")),
        "usual:hi"
    );
    let got = render(vec![weather()]).unwrap_or_else(|e| panic!("{e}"));
    assert!(got.starts_with("[{") && got.ends_with("]:hi"), "{got}");
    assert!(both.variant(true).source() != both.variant(false).source());
}

#[test]
fn variables_hold_where_a_conversation_sets_none() {
    let source = "{{ enable_thinking }} {{ messages[0].content }}";
    let set =
        |variables: Map<String, Value>| template(source).and_then(|t| t.with_variables(variables));
    let template = set(Map::from_iter(thinking(false))).unwrap_or_else(|e| panic!("{e}"));
    let render = |kwargs: Map<String, Value>| {
        let conversation = Conversation {
            messages: vec![Message::new("user", "hi")],
            kwargs,
            ..Conversation::default()
        };
        template
            .render_conversation(&conversation)
            .unwrap_or_else(|e| panic!("{e}"))
    };
    assert_eq!(render(Map::new()), "False hi");
    assert_eq!(render(Map::from_iter(thinking(true))), "True hi");
    assert!(set(Map::from_iter([("messages".to_owned(), json!(1))])).is_err());
}

#[test]
fn well_known_templates_have_names() {
    let bytes = octavo_fixtures::tiny::File::running("qwen3").bytes();
    let gguf = Gguf::from_bytes(bytes, "test.gguf", &OpenOptions::default()).expect("it opens");
    let tokenizer = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
    let find = |name: &str| ChatTemplate::named(&gguf, &tokenizer, name);
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", "hi"),
        Message::new("assistant", "ho"),
        Message::new("user", "and?"),
    ];
    for name in ChatTemplate::known_names() {
        let template = find(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let template = template.expect("it is known");
        let got = template
            .render(&messages, true)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let places: Vec<_> = ["Be brief.", "hi", "ho", "and?"]
            .map(|said| got.find(said))
            .into();
        assert!(places.is_sorted() && places[0].is_some(), "{name}: {got}");
    }
    let render = |name: &str| {
        let template = find(name)
            .unwrap_or_else(|e| panic!("{e}"))
            .expect("it is known");
        template
            .render(&messages, true)
            .unwrap_or_else(|e| panic!("{e}"))
    };
    assert_eq!(
        render("chatml"),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n\
         <|im_start|>assistant\nho<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n\
         <|im_start|>assistant\n"
    );
    assert_eq!(
        render("llama2"),
        "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nhi [/INST] ho </s><s>[INST] and? [/INST]"
    );
    assert!(render("gemma").starts_with("<start_of_turn>user\nBe brief.\nhi<end_of_turn>\n"));
    let rwkv = "System: Be brief.\n\nUser: hi\n\nAssistant: ho\n\nUser: and?\n\nAssistant:";
    assert_eq!(render("rwkv-world"), rwkv);
    // converters write the name of this one into files
    let named = ChatTemplate::of(&gguf, &tokenizer, "rwkv-world").expect("a template");
    assert_eq!(named.render(&messages, true).expect("a text"), rwkv);
    assert!(find("nobody's").unwrap_or_else(|e| panic!("{e}")).is_none());
}
