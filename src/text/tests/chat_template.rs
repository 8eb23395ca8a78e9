//! Chat templates: what honest ones render, and that hostile ones end in a clean error, soon.

use std::time::Duration;

use cpu_time::ThreadTime;
use octavo_text::chat::{ChatTemplate, Error, MAX_TEMPLATE_BYTES, Message};

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

fn render(source: &str) -> String {
    template(source)
        .and_then(|t| t.render(&conversation(), true))
        .unwrap_or_else(|e| panic!("{source}: {e}"))
}

#[test]
fn chatml() {
    let source = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + \
                  '<|im_end|>' + '\\n'}}{% endfor %}\n{% if add_generation_prompt %}\n{{ '<|im_start|>assistant\\n' }}\n\
                  {% endif %}\n";
    // As jinja2 renders it with trim_blocks and lstrip_blocks; the template's own last line break
    // goes.
    let expected = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi \"there\" <b><|im_end|>\n\
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
        {% set system = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system = false %}{% endif %}\
        {% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
        {{ raise_exception('Roles must alternate') }}{% endif %}\
        {% if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}\
        {% else %}{% set content = message['content'] %}{% endif %}\
        {% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
        {% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}";
    let expected = "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi \"there\" <b> [/INST] Hello! </s><s>[INST] Who? [/INST]";
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
fn the_language_survives_the_rewriting() {
    // Each right side is what jinja2 3.1 prints.
    for (source, expected) in [
        ("{{ 1 + 2 * 3 - 4 // 3 }}", "6"),
        (
            "{{ (1 + 2) * 3 }} {{ 2 ** 3 ** 1 }} {{ 7 % 4 }} {{ -2 }} {{ 1.5 * 2 }}",
            "9 8 3 -2 3.0",
        ),
        ("{{ 'a' ~ 1 ~ none ~ 'b' }}", "a1Noneb"),
        ("{{ 'ab' * 3 }}|{{ ([1, 2] * 2)|length }}", "ababab|4"),
        ("{{ 'x' if false }}{{ 'y' if true else 'z' }}", "y"),
        (
            "{{ 'a' in 'cab' }} {{ 2 not in [1, 2] }} {{ 1 < 2 < 3 }} {{ not true }}",
            "True False True False",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "4",
        ),
        (
            "{% for a, b in {'k': 1, 'l': 2}.items() %}{{ a }}{{ b }}{{ ',' if not loop.last }}{% endfor %}",
            "k1,l2",
        ),
        (
            "{% macro f(a, b='!') %}<{{ a }}{{ b }}>{% endmacro %}{{ f(1) }}{{ f(2, b='?') }}",
            "<1!><2?>",
        ),
        (
            "{% macro w() %}[{{ caller() }}]{% endmacro %}{% call w() %}x{% endcall %}",
            "[x]",
        ),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x|upper }}", "A1"),
        (
            "{% filter upper|replace('B', 'c') %}ab{% endfilter %}",
            "Ac",
        ),
        (
            "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content[:2] }}{% endfor %}",
            "1Hi2Wh",
        ),
        (
            "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        ("{% for i in [] %}x{% else %}none{% endfor %}", "none"),
        (
            "{{ messages|map(attribute='role')|join(', ') }}",
            "system, user, assistant, user",
        ),
        (
            "{{ (messages|selectattr('role', 'equalto', 'user')|list|last).content }}",
            "Who?",
        ),
        (
            "{{ 'a-b-c'.split('-')[-1] }}{{ 'a b'.split()|length }}{{ 'a,b,c'.split(',', 1)[1] }}",
            "c2b,c",
        ),
        (
            "{{ ' x '.strip() }}{{ 'xay'.replace('a', '-') }}{{ 'ab'.startswith('a') }}{{ 'aa'.count('a') }}",
            "xx-yTrue2",
        ),
        (
            "{{ messages[1:3]|length }}{{ messages[-1]['content'] }}{{ messages[::-1][0].role }}",
            "2Who?user",
        ),
        (
            "{{ tools is none }} {{ nope is defined }} {{ messages is string }} {{ 3 is divisibleby 3 }}",
            "True False False True",
        ),
        ("{{ 'a\\nb\\n\\nc'|indent(2) }}", "a\n  b\n\n  c"),
        (
            "{{ {'b': [1, 2.0, true, none], 'a': 'é\"<\\n'}|tojson }}",
            r#"{"b": [1, 2.0, true, null], "a": "é\"<\n"}"#,
        ),
        (
            "{{ {'b': [1], 'a': {}}|tojson(indent=2) }}",
            "{\n  \"b\": [\n    1\n  ],\n  \"a\": {}\n}",
        ),
        (
            "{{ messages[0]|tojson }}",
            r#"{"role": "system", "content": "Be kind."}"#,
        ),
        ("a\n  {% if true %}\n  b\n  {%- endif %}\n c", "a\n  b c"),
        ("  {#- note -#}  x {{- 'y' -}}  z", "xyz"),
        (
            "{% generation %}g{% endgeneration %}{%- generation -%} h {%- endgeneration -%}",
            "gh",
        ),
        ("{% raw %}{{ x }}{% endraw %}", "{{ x }}"),
        ("{{ \"quotes ' \\\" \\\\ \\u00e9\" }}", "quotes ' \" \\ é"),
        (
            "{% for x in [[1,[2,[3]]]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}",
            "123",
        ),
        ("{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}", "3"),
        (
            "{{ [3, 1, 2]|sort|first }}{{ [1, 2]|sum }}{{ 'abc'|list|join('.') }}{{ 'Ab'|lower }}",
            "13a.b.cab",
        ),
        (
            "{{ undefined_thing }}{{ bos_token }}{{ eos_token }}",
            "<s></s>",
        ),
        (
            "{% if 1 == 2 %}a{% elif 2 == 2 %}b{% else %}c{% endif %}",
            "b",
        ),
        (
            "{{ '{} {}'.format('a', 1) }}{{ '{0}{x}'.format('b', x=2) }}",
            "a 1b2",
        ),
        (
            "{{ none is iterable }} {{ [] is iterable }} {{ nope is iterable }} {{ 3 is iterable }}",
            "False True True False",
        ),
        (
            "{{ ''[::-1] }}{{ [][::-1] }}{{ 'abcde'[::-2] }}{{ 'abcde'[-2:] }}{{ 'abcde'[10:] }}{{ 'abcde'[3:0:-1] }}",
            "[]ecadedcb",
        ),
        (
            "{{ range(5, 0, -2)|list }}{{ range(3)[1:]|list }}{{ range(0)|length }}",
            "[5, 3, 1][1, 2]0",
        ),
        ("{{ 5.to_nothing is defined }}", "False"),
    ] {
        assert_eq!(render(source), expected, "{source}");
    }
}

#[test]
fn the_date_is_written() {
    let today = render("{{ strftime_now('%Y') }}");
    assert!(today.len() == 4 && today.as_str() >= "2024", "{today}");
}

/// The template must end in one line of error text within a second of work, however it is built.
fn refused(name: &str, source: &str) -> String {
    let start = ThreadTime::now();
    let result = template(source).and_then(|t| t.render(&conversation(), true));
    let took = start.elapsed();
    let error = match result {
        Ok(text) => panic!("{name}: rendered {} bytes", text.len()),
        Err(error) => error.to_string(),
    };
    println!("{name}: {took:?}: {error}");
    assert!(took < Duration::from_secs(1), "{name}: took {took:?}");
    assert!(
        !error.contains('\n') && error.len() < 600 && error.starts_with("test.gguf"),
        "{name}: {error}"
    );
    error
}

#[test]
fn hostile_templates_end_in_a_clean_error() {
    let parentheses = format!("{{{{ {}1{} }}}}", "(".repeat(20_000), ")".repeat(20_000));
    let sum = format!("{{{{ 1{} }}}}", "+1".repeat(60_000));
    let minus = format!("{{{{ {}1 }}}}", "-".repeat(60_000));
    let dots = format!("{{{{ messages{} }}}}", ".a".repeat(60_000));
    let filters = format!("{{{{ 'a'{} }}}}", "|upper".repeat(30_000));
    let elifs = format!(
        "{{% if false %}}{}{{% endif %}}",
        "{% elif false %}".repeat(15_000)
    );
    let ifs = "{% if true %}".repeat(10_000);
    let long = "x".repeat(MAX_TEMPLATE_BYTES + 1);
    let raw = format!(
        "{{% set x %}}{{% for i in range(100000) %}}{}{{% endfor %}}{{% endset %}}",
        "r".repeat(10_000)
    );
    let cases: &[(&str, &str)] = &[
        (
            "recursive macro",
            "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        ),
        ("20000 parentheses", &parentheses),
        (
            "nested range",
            "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
        ),
        ("string repeat", "{{ '-' * 1000000000000 }}"),
        (
            "string repeat below any limit, often",
            "{% for i in range(99999) %}{% set x = '-' * 90000000 %}{% endfor %}",
        ),
        (
            "constant repeat",
            "{% set x = 'a' * 99999999 %}{% set y = x ~ x ~ x ~ x %}{{ y|length }}",
        ),
        (
            "list repeat",
            "{{ ([0] * 1000000000)|length }}{{ ([0] * 1000000000)|list }}",
        ),
        (
            "doubling by +",
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
        ),
        (
            "doubling by ~",
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        ),
        (
            "doubling by replace",
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x|replace('a', 'aa')|replace('b', 'bb') %}{% endfor %}",
        ),
        (
            "doubling by method",
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('a', 'aaa') %}{% endfor %}",
        ),
        (
            "doubling by join",
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x]|join %}{% endfor %}",
        ),
        (
            "doubling by capture",
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
        ),
        (
            "doubling by macro",
            "{% macro d(x, n) %}{% if n %}{{ d(x ~ x, n - 1) }}{% else %}{{ x }}{% endif %}{% endmacro %}{{ d('ab', 60) }}",
        ),
        (
            "doubling of lists",
            "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|length }}",
        ),
        (
            "doubling by nesting",
            "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
        ),
        (
            "deep nesting",
            "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        ),
        (
            "deep nesting by dict",
            "{% set ns = namespace(x=1) %}{% set d = dict %}{% for i in range(99999) %}{% set ns.x = d(a=ns.x) %}{% endfor %}{{ ns.x }}",
        ),
        (
            "deep nesting by namespace",
            "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = namespace(a=ns.x) %}{% endfor %}{{ ns.x }}",
        ),
        (
            "a value inside itself",
            "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}{{ ns|tojson }}",
        ),
        ("indent", "{{ 'a\\nb'|indent(1000000000000) }}"),
        (
            "indent of many lines",
            "{{ ('a\\n' * 1000000)|indent(100000) }}",
        ),
        (
            "tojson indent",
            "{{ [[[[[1]]]]]|tojson(indent=100000000) }}",
        ),
        (
            "long output",
            "{% for i in range(99999) %}0123456789012345678901234567890123456789{% endfor %}",
        ),
        ("captured raw text", &raw),
        (
            "split into characters",
            "{{ ('a' * 30000000)|list|length }}",
        ),
        ("split", "{{ ('a ' * 30000000).split()|length }}"),
        (
            "comparison",
            "{% set x = 'a' * 20000000 %}{% set y = 'a' * 20000000 %}{% for i in range(99999) %}{% if x == y %}{% endif %}{% endfor %}",
        ),
        (
            "search",
            "{% set x = 'a' * 20000000 %}{% for i in range(99999) %}{% if 'b' in x %}{% endif %}{% endfor %}",
        ),
        (
            "indexing",
            "{% set x = 'a' * 20000000 %}{% for i in range(99999) %}{% set y = x[19999999] %}{% endfor %}",
        ),
        ("strip", "{{ ('a' * 1000000).strip('b' * 1000000) }}"),
        (
            "count of nothing, then too much",
            "{{ 'abc'.count('') }}{{ '-' * 1000000000000 }}",
        ),
        (
            "sum of strings",
            "{{ (['a' * 10000] * 5000)|sum(start='') }}",
        ),
        ("syntax error", "{% for x in %}"),
        ("unclosed tag", "{{ 'a"),
        ("include", "{% include '/etc/passwd' %}"),
        ("import", "{% from 'os' import system %}"),
        ("extends", "{% extends 'base' %}"),
        ("block", "{% block a %}{% endblock %}"),
        ("raise", "{{ raise_exception('no\nway') }}"),
        ("ssti", "{{ ''.__class__.__mro__[1].__subclasses__() }}"),
        (
            "ssti by cycler",
            "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        ),
        (
            "reserved names",
            "{% set __guard_deep = 1 %}{{ 'a' ~ 'b' }}",
        ),
        ("unknown function", "{{ nope() }}"),
        ("unknown filter", "{{ 1|nope }}"),
        (
            "range overflow",
            "{{ range(-9223372036854775807, 9223372036854775807, 1) }}",
        ),
        (
            "slice overflow",
            "{{ 'abc'[-9223372036854775807:9223372036854775807:9223372036854775807] }}{{ 'abc'[::0] }}",
        ),
        ("format", "{{ '{:>1000000000}'.format('a') }}"),
        (
            "format of fields",
            "{{ ('{0}' * 100000).format('a' * 100000) }}",
        ),
        (
            "no arguments",
            "{% for i in [1] %}{{ loop.cycle() }}{% endfor %}{{ nope() }}",
        ),
        (
            "integer overflow",
            "{{ 170141183460469231731687303715884105727 * 2 }}",
        ),
        ("division by zero", "{{ 1 // 0 }}"),
        ("sum of 60000", &sum),
        ("60000 signs", &minus),
        ("60000 attributes", &dots),
        ("30000 filters", &filters),
        ("15000 elifs", &elifs),
        ("10000 ifs", &ifs),
        ("too long", &long),
    ];
    for (name, source) in cases {
        refused(name, source);
    }
    assert!(refused("line", "a\n\n{{ 1 }}\n{% for x in %}").contains("(line 4)"));
    assert!(
        refused(
            "line at run time",
            "a\n\n{% if true %}\nb{{ nope() }}{% endif %}"
        )
        .contains("(line 4)")
    );
}

#[test]
fn a_long_conversation_is_not_mistaken_for_an_attack() {
    let source = "{% set ns = namespace(last=-1, all=[]) %}{% for m in messages %}{% if m.role == 'user' and not \
        (m.content.startswith('<tool') and m.content.endswith('>')) %}{% set ns.last = loop.index0 %}{% endif %}\
        {% set ns.all = ns.all + [m] %}{% endfor %}{% for m in ns.all %}{% set content = m.content %}\
        {% if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}\
        {{ m.role + ': ' + content|trim + '\\n' }}{% if loop.index0 == ns.last or messages[loop.index0 - 1].role == 'x' %}*{% endif %}{% endfor %}";
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
