//! Language supported in honest templates: each right side is the output of jinja2 3.1.

use super::render;

/// Templates and their output.
type Rendered = [(&'static str, &'static str)];

/// Operators and their precedence.
const OPERATORS: &Rendered = &[
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
];

/// Loops, macros, block filters.
const STATEMENTS: &Rendered = &[
    (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}\
         {% endfor %}{{ ns.n }}",
        "4",
    ),
    (
        "{% for a, b in {'k': 1, 'l': 2}.items() %}{{ a }}{{ b }}{{ ',' if not loop.last }}\
         {% endfor %}",
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
        "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content[:2] }}\
         {% endfor %}",
        "1Hi2Wh",
    ),
    (
        "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}\
         {% break %}{% endif %}{{ i }}{% endfor %}",
        "02",
    ),
    ("{% for i in [] %}x{% else %}none{% endfor %}", "none"),
    // lists that change, which llama.cpp allows, and jinja2 outside of transformers' sandbox
    (
        "{% set ns = namespace(ids=[]) %}{% for i in range(3) %}{% set _ = ns.ids.append(i) %}\
         {% endfor %}{{ ns.ids.pop(0) }}{{ ns.ids.pop() }}{{ ns.ids }}{{ ns.ids|length }}",
        "02[1]1",
    ),
    (
        "{% set x = ['a'] %}{% set y = x %}{% for m in messages %}{% do x.append(m.role) %}\
         {% endfor %}{{ y|join(',') }} {{ y|tojson }} {{ y == x }} {{ [] and 1 }}",
        "a,system,user,assistant,user [\"a\", \"system\", \"user\", \"assistant\", \"user\"] \
         True []",
    ),
    (
        "{% set x = [] %}{% set y = [1] %}{% set _ = x.append({'y': y}) %}{{ x }}{{ x + y }}\
         {{ x[0].y[-1:] }}{{ 1 in y }}{{ y is sequence }}{{ 'x' if x.pop() }}{{ 'x' if x }}",
        "[{'y': [1]}][{'y': [1]}, 1][1]TrueTruex",
    ),
];

/// Strings, lists and their printed form.
const VALUES: &Rendered = &[
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
        "{{ ' x '.strip() }}{{ 'xay'.replace('a', '-') }}{{ 'ab'.startswith('a') }}\
         {{ 'aa'.count('a') }}",
        "xx-yTrue2",
    ),
    (
        "{{ messages[1:3]|length }}{{ messages[-1]['content'] }}{{ messages[::-1][0].role }}",
        "2Who?user",
    ),
    (
        "{{ tools is none }} {{ nope is defined }} {{ messages is string }} \
         {{ 3 is divisibleby 3 }}",
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
];

/// White space trimming, raw blocks, and scopes.
const WHITESPACE_AND_SCOPES: &Rendered = &[
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
];

/// Functions, methods and tests.
const FUNCTIONS: &Rendered = &[
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
        "{{ none is iterable }} {{ [] is iterable }} {{ nope is iterable }} \
         {{ 3 is iterable }}",
        "False True True False",
    ),
    (
        "{{ ''[::-1] }}{{ [][::-1] }}{{ 'abcde'[::-2] }}{{ 'abcde'[-2:] }}{{ 'abcde'[10:] }}\
         {{ 'abcde'[3:0:-1] }}",
        "[]ecadedcb",
    ),
    (
        "{{ range(5, 0, -2)|list }}{{ range(3)[1:]|list }}{{ range(0)|length }}",
        "[5, 3, 1][1, 2]0",
    ),
    ("{{ 5.to_nothing is defined }}", "False"),
];

/// Filters that sort, and that look up attributes by a path.
const ORDERS: &Rendered = &[
    (
        "{{ [3, 1, 2]|sort(true) }}{{ [3, 1, 2]|sort(reverse=true)|first }}",
        "[3, 2, 1]3",
    ),
    ("{{ ['b', 'A', 'a']|sort }}", "['A', 'a', 'b']"),
    (
        "{{ ['b', 'A', 'a']|sort(case_sensitive=true) }}",
        "['A', 'a', 'b']",
    ),
    (
        "{{ ['b', 'A', 'B', 'a']|sort(true) }}",
        "['b', 'B', 'A', 'a']",
    ),
    (
        "{{ [[3, 'z'], [1, 'x'], [2, 'y']]|sort(attribute=0)|join(attribute=1) }}",
        "xyz",
    ),
    (
        "{{ [[1, 'z'], [2, 'x'], [3, 'y']]|sort(attribute='01')|join(attribute=1) }}",
        "xyz",
    ),
    ("{{ [[1], [2], [3]]|join(', ', attribute=-1) }}", "1, 2, 3"),
    (
        "{{ [{'a': {'b': 2}}, {'a': {'b': 1}}]|sort(attribute='a.b')|tojson }}",
        r#"[{"a": {"b": 1}}, {"a": {"b": 2}}]"#,
    ),
    (
        "{{ [{'x': 2, 'y': 1}, {'x': 1, 'y': 3}]|min(attribute='x')|tojson }}",
        r#"{"x": 1, "y": 3}"#,
    ),
    (
        "{{ [{'x': 2, 'y': 1}, {'x': 1, 'y': 3}]|sort(attribute='y,x')|map(attribute='x')|list }}",
        "[2, 1]",
    ),
    (
        "{{ ['b', 'C', 'a']|max }}{{ ['b', 'C', 'a']|min }}[{{ []|max }}]",
        "Ca[]",
    ),
];

/// Filters that count words and shorten texts.
const WORDS: &Rendered = &[
    (
        "{{ 'one two_2, three'|wordcount }}{{ nope|wordcount }}",
        "30",
    ),
    ("{{ 'foo bar baz qux'|truncate(9) }}", "foo..."),
    ("{{ 'foo bar baz qux'|truncate(9, true) }}", "foo ba..."),
    ("{{ 'foo bar baz qux'|truncate(11) }}", "foo bar baz qux"),
    (
        "{{ 'foo bar baz qux'|truncate(11, false, '...', 0) }}",
        "foo bar...",
    ),
    (
        "{{ 'ééééééééé'|truncate(length=3, end='!', leeway=0) }}",
        "éé!",
    ),
    ("{{ true|float }} {{ false|float }}", "1.0 0.0"),
];

#[test]
fn the_language_survives_the_rewriting() {
    for cases in [
        OPERATORS,
        STATEMENTS,
        VALUES,
        WHITESPACE_AND_SCOPES,
        FUNCTIONS,
        ORDERS,
        WORDS,
    ] {
        for (source, expected) in cases {
            assert_eq!(render(source), *expected, "{source}");
        }
    }
}
