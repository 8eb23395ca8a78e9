//! Files, functions and lines of code stay small enough to be read: no file over 500 lines, no
//! function over 80, no line over 100 columns. Rust is formatted by rustfmt, and C++, shell and
//! JavaScript are indented likewise: a function ends at the brace below its beginning.

use std::fs;

use super::docs::Tree;

const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 80;
const COLUMNS: usize = 100;

/// File names and functions of a language.
struct Language {
    endings: &'static [&'static str],
    /// Returns the name of the function that a line begins, if it does.
    function: fn(&str) -> Option<&str>,
    /// Whether a function ends by indentation, and not with a brace.
    by_indentation: bool,
}

const LANGUAGES: [Language; 5] = [
    Language {
        endings: &[".rs"],
        function: rust_function,
        by_indentation: false,
    },
    Language {
        endings: &[".cu", ".cuh", ".h", ".cpp"],
        function: cpp_function,
        by_indentation: false,
    },
    Language {
        endings: &[".py"],
        function: python_function,
        by_indentation: true,
    },
    Language {
        endings: &[".sh", ".ci/run"],
        function: shell_function,
        by_indentation: false,
    },
    Language {
        endings: &[".js", ".cjs", ".html"],
        function: script_function,
        by_indentation: false,
    },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    Columns,
    Function,
    File,
}

/// An exception for a file or folder, with its reason.
struct Excuse {
    of: &'static str,
    measure: Measure,
    why: &'static str,
}

const EXCUSES: [Excuse; 4] = [
    Excuse {
        of: "quant/src/grids.rs",
        measure: Measure::Columns,
        why: "tables, five words in a line",
    },
    Excuse {
        of: "reference/src/formats/eval_callback.rs",
        measure: Measure::Columns,
        why: "another program's lines, as it prints them",
    },
    Excuse {
        of: "src/server/page/vendor/",
        measure: Measure::File,
        why: "libraries, as npm has them",
    },
    Excuse {
        of: "src/server/page/vendor/",
        measure: Measure::Columns,
        why: "libraries, as npm has them",
    },
];

/// A file, function or line that is too long.
#[derive(Debug)]
struct Offence {
    measure: Measure,
    text: String,
}

/// Returns the rest of a line after all of these words that it begins with.
fn behind<'a>(line: &'a str, words: &[&str]) -> &'a str {
    let mut rest = line.trim_start();
    while let Some(less) = words.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = less;
    }
    rest
}

/// Returns the name at the beginning of a text, if there is one.
fn name(text: &str) -> Option<&str> {
    let name = text
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next();
    name.filter(|name| !name.is_empty())
}

fn rust_function(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if let Some(visible) = rest.strip_prefix("pub(") {
        rest = visible.split_once(')')?.1;
    }
    let words = ["pub ", "const ", "async ", "unsafe ", "extern \"C\" "];
    name(behind(rest, &words).strip_prefix("fn ")?)
}

/// Finds a type and a name, or a macro that makes a kernel, before the parameters.
fn cpp_function(line: &str) -> Option<&str> {
    let (before, parameters) = line.split_once('(')?;
    if ["KERNEL", "KERNEL_OF"].contains(&before) {
        return name(parameters);
    }
    let (kind, called) = before.trim_start().rsplit_once([' ', '*', '&'])?;
    let first = kind.split(' ').next()?;
    let is_other = ["if", "return", "typedef", "//", "#define", "}"].contains(&first);
    let is_value = before.contains(['=', '.', ',']) || before.contains("->");
    name(called).filter(|name| *name == called && !is_other && !is_value)
}

fn python_function(line: &str) -> Option<&str> {
    name(behind(line, &["async "]).strip_prefix("def ")?)
}

fn shell_function(line: &str) -> Option<&str> {
    let called = name(line.trim_start())?;
    line.trim_start()[called.len()..]
        .starts_with("() ")
        .then_some(called)
}

/// Finds a function that is declared, or assigned to a constant.
fn script_function(line: &str) -> Option<&str> {
    let rest = behind(line, &["export ", "async "]);
    if let Some(declared) = rest.strip_prefix("function ") {
        return name(declared);
    }
    let constant = rest.strip_prefix("const ")?;
    name(constant).filter(|_| constant.ends_with("=> {"))
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Counts the lines of a function that ends before the next code at its own indentation.
fn lines_indented(lines: &[&str]) -> usize {
    let level = indentation(lines[0]);
    let is_outside = |line: &&str| {
        // parameters on lines of their own end at the function's indentation
        let is_empty = line.trim().is_empty() || line.trim_start().starts_with(')');
        !is_empty && indentation(line) <= level
    };
    let after = lines[1..].iter().position(is_outside);
    let inside = &lines[..after.map_or(lines.len(), |at| at + 1)];
    let last = inside.iter().rposition(|line| !line.trim().is_empty());
    last.map_or(1, |at| at + 1)
}

/// Counts the lines of an item that the first of these begins.
fn lines_of_item(lines: &[&str]) -> usize {
    let level = indentation(lines[0]);
    let is_end = |line: &&str| {
        let is_body = indentation(line) == level && line.trim_start().starts_with('}');
        // a mere declaration has no body
        is_body || indentation(line) == level && line.ends_with(';')
    };
    if lines[0].ends_with(['}', ';']) {
        return 1;
    }
    let rest = lines[1..].iter().position(is_end);
    rest.map_or(lines.len(), |at| at + 2)
}

/// Returns everything that is too long in a file.
fn offenders(language: &Language, file: &str, text: &str) -> Vec<Offence> {
    let lines: Vec<&str> = text.lines().collect();
    let mut wrong = Vec::new();
    let mut add = |measure, text| wrong.push(Offence { measure, text });
    if lines.len() > FILE_LINES {
        add(Measure::File, format!("{file}: {} lines", lines.len()));
    }
    for (at, line) in lines.iter().enumerate() {
        let (place, width) = (format!("{file}:{}", at + 1), line.chars().count());
        // rows of a table cannot be wrapped
        let is_row = ["//! |", "/// |"]
            .iter()
            .any(|row| line.trim_start().starts_with(row));
        if width > COLUMNS && !is_row {
            add(Measure::Columns, format!("{place}: {width} columns"));
        }
        let Some(name) = (language.function)(line) else {
            continue;
        };
        let length = match language.by_indentation {
            true => lines_indented(&lines[at..]),
            false => lines_of_item(&lines[at..]),
        };
        if length > FUNCTION_LINES {
            add(
                Measure::Function,
                format!("{place}: `{name}`: {length} lines"),
            );
        }
    }
    wrong
}

fn language(file: &str) -> Option<&'static Language> {
    let is_of = |language: &&Language| language.endings.iter().any(|end| file.ends_with(end));
    LANGUAGES.iter().find(is_of)
}

#[test]
fn files_functions_and_lines_are_short() {
    let root = octavo_fixtures::workspace_root();
    let tree = Tree::read(&root);
    let mut wrong = Vec::new();
    let mut excused = [false; EXCUSES.len()];
    for path in &tree.files {
        let Some(language) = language(path) else {
            continue;
        };
        let text = fs::read_to_string(root.join(path)).expect("source is UTF-8");
        for offence in offenders(language, path, &text) {
            let excuses =
                |excuse: &Excuse| path.starts_with(excuse.of) && offence.measure == excuse.measure;
            match EXCUSES.iter().position(excuses) {
                Some(excuse) => excused[excuse] = true,
                None => wrong.push(offence.text),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (Excuse { of, measure, why }, excused) in EXCUSES.iter().zip(excused) {
        assert!(
            excused,
            "{of} needs no excuse any more ({measure:?}): {why}"
        );
    }
}

/// Returns the messages about a file.
fn said(file: &str, text: &str) -> Vec<String> {
    let language = language(file).expect("an ending that is listed");
    let offences = offenders(language, file, text);
    offences.into_iter().map(|offence| offence.text).collect()
}

/// Returns a function of this many lines, at a level of indentation.
fn of_lines(head: &str, level: usize, lines: usize) -> String {
    let indent = "    ".repeat(level);
    let body = format!("{indent}    let x = {{ 1 }};\n").repeat(lines - 2);
    format!("{indent}{head} {{\n{body}{indent}}}\n")
}

#[test]
fn planted_lengths_are_seen() {
    let heads = [
        "fn f()",
        "pub const fn f()",
        "pub(in crate::exec) unsafe extern \"C\" fn f()",
        "async fn f<T>(x: T) -> T",
    ];
    for (level, head) in heads.iter().enumerate() {
        let fits = of_lines(head, level, FUNCTION_LINES);
        assert_eq!(said("a.rs", &fits.repeat(3)), [""; 0], "{head}");
        let longer = fits + &of_lines(head, level, FUNCTION_LINES + 1);
        assert_eq!(said("a.rs", &longer), ["a.rs:81: `f`: 81 lines"]);
    }
    // parameters on lines of their own, and after a function without a body
    let declared = "    fn g(\n        x: u8,\n    ) -> u8;\n\n    fn h(x: u8);\n";
    assert_eq!(said("a.rs", declared), [""; 0]);
    let split = "    fn f(\n        x: u8,\n    ) -> u8\n    where\n        u8: Copy,\n    {\n";
    let body = "        g();\n".repeat(FUNCTION_LINES);
    let text = format!("{declared}{split}{body}    }}\n");
    assert_eq!(said("a.rs", &text), ["a.rs:6: `f`: 87 lines"]);

    let file = "x();\n".repeat(FILE_LINES);
    assert_eq!(said("a.rs", &file), [""; 0]);
    assert_eq!(said("a.rs", &(file + "x();\n")), ["a.rs: 501 lines"]);

    let line = "é".repeat(COLUMNS);
    assert_eq!(said("a.rs", &line), [""; 0]);
    assert_eq!(said("a.rs", &format!("{line}é")), ["a.rs:1: 101 columns"]);
    assert_eq!(said("a.rs", &format!("//! | {line}")), [""; 0]);
    assert_eq!(
        said("a.rs", &format!("/// {line}")),
        ["a.rs:1: 104 columns"]
    );
}

/// A file's name, a function's first and last line in its language, and a line that looks like a
/// first line and is none.
const OTHERS: [(&str, &str, &str, &str); 9] = [
    (
        "a.cuh",
        "DEVICE void f(const P& p) {",
        "}",
        "    if constexpr (X) {",
    ),
    (
        "a.cuh",
        "    DEVICE static u32 f(u32 x) {",
        "    }",
        "    // what f (all,",
    ),
    (
        "a.cu",
        "KERNEL(f, Params, 128) {",
        "}",
        "SHARED(float, f, [2]);",
    ),
    (
        "a.cpp",
        "static const char* f(int a,",
        "}",
        "    return call(a, [&](int b) {",
    ),
    (
        "a.h",
        "inline T f(int a) {",
        "}",
        "    const auto f = [&](int a) {",
    ),
    ("a.py", "    async def f(a):", "        return", "    f(a)"),
    ("a.sh", "f() { # VERSION", "}", "f (a)"),
    (".ci/run", "f() {", "}", "for f in a b; do"),
    (
        "a.html",
        "  async function f(a) {",
        "  }",
        "  const f = g(() => a);",
    ),
];

#[test]
fn planted_lengths_are_seen_in_every_language() {
    for (file, head, end, other) in OTHERS {
        let indent = " ".repeat(indentation(head) + 4);
        let planted = |head: &str, lines: usize| {
            let body = format!("{indent}x = y\n\n").repeat(lines / 2 - 1);
            format!("{head}\n{body}{end}\n")
        };
        assert_eq!(
            said(file, &planted(head, FUNCTION_LINES).repeat(2)),
            [""; 0]
        );
        let longer = [format!("{file}:1: `f`: {} lines", FUNCTION_LINES + 2)];
        assert_eq!(said(file, &planted(head, FUNCTION_LINES + 2)), longer);
        assert_eq!(said(file, &planted(other, FUNCTION_LINES + 2)), [""; 0]);
        let line = [format!("{file}:1: {} columns", COLUMNS + 1)];
        assert_eq!(said(file, &"x".repeat(COLUMNS + 1)), line);
    }
    // parameters on lines of their own, and code after a function that is not part of it
    let body = "    x = y\n".repeat(FUNCTION_LINES - 3);
    let fits = format!("def f(\n    a,\n):\n{body}\n\nx = y\n");
    assert_eq!(said("a.py", &fits), [""; 0]);
    let longer = fits.replace("):\n", "):\n    x = y\n");
    assert_eq!(said("a.py", &longer), ["a.py:1: `f`: 81 lines"]);
}
