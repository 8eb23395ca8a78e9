//! Hostile templates end quickly with a clean error.

use std::time::{Duration, Instant};

use octavo_text::chat::MAX_TEMPLATE_BYTES;

use super::{conversation, template};

/// Names of attacks, and templates.
type Hostile = [(&'static str, &'static str)];

/// Excessive repetition.
const REPEATS: &Hostile = &[
    (
        "recursive macro",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    ),
    (
        "nested range",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}\
         {% endfor %}{% endfor %}{% endfor %}",
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
];

/// Values that double or nest.
const GROWTH: &Hostile = &[
    (
        "doubling by +",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}\
         {% endfor %}{{ ns.x }}",
    ),
    (
        "doubling by ~",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}\
         {% endfor %}",
    ),
    (
        "doubling by replace",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}\
         {% set ns.x = ns.x|replace('a', 'aa')|replace('b', 'bb') %}{% endfor %}",
    ),
    (
        "doubling by method",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}\
         {% set ns.x = ns.x.replace('a', 'aaa') %}{% endfor %}",
    ),
    (
        "doubling by join",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}\
         {% set ns.x = [ns.x, ns.x]|join %}{% endfor %}",
    ),
    (
        "doubling by capture",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set y %}{{ ns.x }}\
         {{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    ),
    (
        "doubling by macro",
        "{% macro d(x, n) %}{% if n %}{{ d(x ~ x, n - 1) }}{% else %}{{ x }}{% endif %}\
         {% endmacro %}{{ d('ab', 60) }}",
    ),
    (
        "doubling of lists",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}\
         {% endfor %}{{ ns.x|length }}",
    ),
    (
        "doubling by nesting",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
         {% endfor %}{{ ns.x|tojson }}",
    ),
    (
        "deep nesting",
        "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}\
         {% endfor %}{{ ns.x }}",
    ),
    (
        "deep nesting by dict",
        "{% set ns = namespace(x=1) %}{% set d = dict %}{% for i in range(99999) %}\
         {% set ns.x = d(a=ns.x) %}{% endfor %}{{ ns.x }}",
    ),
    (
        "deep nesting by namespace",
        "{% set ns = namespace(x=1) %}{% for i in range(99999) %}\
         {% set ns.x = namespace(a=ns.x) %}{% endfor %}{{ ns.x }}",
    ),
    (
        "a value inside itself",
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}{{ ns|tojson }}",
    ),
];

/// Long texts, made and read.
const LENGTH: &Hostile = &[
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
    (
        "split into characters",
        "{{ ('a' * 30000000)|list|length }}",
    ),
    ("split", "{{ ('a ' * 30000000).split()|length }}"),
    (
        "comparison",
        "{% set x = 'a' * 20000000 %}{% set y = 'a' * 20000000 %}{% for i in range(99999) %}\
         {% if x == y %}{% endif %}{% endfor %}",
    ),
    (
        "search",
        "{% set x = 'a' * 20000000 %}{% for i in range(99999) %}{% if 'b' in x %}{% endif %}\
         {% endfor %}",
    ),
    (
        "indexing",
        "{% set x = 'a' * 20000000 %}{% for i in range(99999) %}{% set y = x[19999999] %}\
         {% endfor %}",
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
];

/// Unsupported or forbidden features.
const FORBIDDEN: &Hostile = &[
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
];

/// Numbers out of the range of their types.
const NUMBERS: &Hostile = &[
    (
        "range overflow",
        "{{ range(-9223372036854775807, 9223372036854775807, 1) }}",
    ),
    (
        "slice overflow",
        "{{ 'abc'[-9223372036854775807:9223372036854775807:9223372036854775807] }}\
         {{ 'abc'[::0] }}",
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
];

/// Abuse of Python's formats, filters and methods.
const FORMATS: &Hostile = &[
    ("wide field", "{{ '%1000000000d' % 1 }}"),
    ("wide precision", "{{ '%.1000000000f' % 1 }}"),
    (
        "many wide fields",
        "{{ ('%999s' * 100000) % ((1,) * 100000) }}",
    ),
    ("wide field of a filter", "{{ '%99999999s'|format('a') }}"),
    ("wide brace field", "{{ '{:1000000000}'.format(1) }}"),
    ("field in a field", "{{ '{:{}}'.format(1, 1000000000) }}"),
    ("wide padding", "{{ 'a'.ljust(1000000000000) }}"),
    (
        "much padding",
        "{% for i in range(99999) %}{% set x = 'a'.center(1000000) %}{% endfor %}",
    ),
    ("zeros", "{{ '1'.zfill(9223372036854775807) }}"),
    (
        "indent by text",
        "{{ ('a\n' * 100000)|indent('x' * 100000) }}",
    ),
    (
        "escapes that grow",
        "{% set ns = namespace(x='&&') %}{% for i in range(60) %}\
         {% set ns.x = ns.x|safe|string|replace('a', 'aa')|forceescape|string ~ '&&' %}\
         {% endfor %}",
    ),
    (
        "escapes that nest",
        "{% set ns = namespace(x='\\'') %}{% for i in range(60) %}{% set ns.x = [ns.x]|string %}\
         {% endfor %}{{ ns.x }}",
    ),
    ("power", "{{ 10 ** 100000 }}"),
    (
        "printing of long lists",
        "{% set x = [1] * 100000 %}{% for i in range(99999) %}{% set y = x ~ '' %}{% endfor %}",
    ),
    ("mutation", "{{ messages.append(1) }}"),
    (
        "a list that contains itself",
        "{% set x = [1] %}{% for i in range(99999) %}{% set _ = x.append([x]) %}{% endfor %}\
         {{ x }}",
    ),
    (
        "lists in lists that grow",
        "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set y = [] %}\
         {% set _ = ns.x.append(y) %}{% set _ = y.append(ns.x) %}{% set ns.x = [y] %}{% endfor %}",
    ),
    (
        "a namespace in a list",
        "{% set ns = namespace(x=[]) %}{% set _ = ns.x.append({'a': ns}) %}{{ ns }}",
    ),
    ("mutation of a dictionary", "{{ messages[0].update({}) }}"),
];

/// Checks that the template ends quickly with one line of error text, wherever it fails. It runs on
/// a separate thread, so the measured time is wall-clock time: most take a tenth of a second at
/// most.
fn refused(name: &str, source: &str) -> String {
    let start = Instant::now();
    let result = template(source).and_then(|t| t.render(&conversation(), true));
    let took = start.elapsed();
    let error = match result {
        Ok(text) => panic!("{name}: rendered {} bytes", text.len()),
        Err(error) => error.to_string(),
    };
    println!("{name}: {took:?}: {error}");
    assert!(took < Duration::from_secs(20), "{name}: took {took:?}");
    assert!(
        !error.contains('\n') && error.len() < 600 && error.starts_with("test.gguf"),
        "{name}: {error}"
    );
    error
}

#[test]
fn hostile_templates_end_in_a_clean_error() {
    for cases in [REPEATS, GROWTH, LENGTH, FORBIDDEN, NUMBERS, FORMATS] {
        for (name, source) in cases {
            refused(name, source);
        }
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
fn long_templates_end_in_a_clean_error() {
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
    for (name, source) in [
        ("20000 parentheses", &parentheses),
        ("captured raw text", &raw),
        ("sum of 60000", &sum),
        ("60000 signs", &minus),
        ("60000 attributes", &dots),
        ("30000 filters", &filters),
        ("15000 elifs", &elifs),
        ("10000 ifs", &ifs),
        ("too long", &long),
    ] {
        refused(name, source);
    }
}
