//! Files, functions and lines of Rust stay small enough to be read: no file over 500 lines, no
//! function over 80, no line over 100 columns. Code is as rustfmt leaves it, so that a function
//! ends at the brace that stands below its beginning.

use std::fs;

use super::docs::Tree;

const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 80;
const COLUMNS: usize = 100;

/// Files and folders with lines that may be longer, and why.
const LONG_LINES: [(&str, &str); 2] = [
    ("quant/src/grids.rs", "tables, five words in a line"),
    (
        "reference/src/formats/eval_callback.rs",
        "another program's lines, as it prints them",
    ),
];

/// The name of the function that a line begins, if it does.
fn function(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if let Some(visible) = rest.strip_prefix("pub(") {
        rest = visible.split_once(')')?.1.trim_start();
    }
    let words = ["pub ", "const ", "async ", "unsafe ", "extern \"C\" "];
    while let Some(less) = words.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = less;
    }
    let name = rest.strip_prefix("fn ")?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// How many lines an item has that the first of these begins.
fn lines_of_item(lines: &[&str]) -> usize {
    let level = indentation(lines[0]);
    let is_end = |line: &&str| {
        let is_body = indentation(line) == level && line.trim_start().starts_with('}');
        // what only says that there is a function has no body
        is_body || indentation(line) == level && line.ends_with(';')
    };
    if lines[0].ends_with(['}', ';']) {
        return 1;
    }
    let rest = lines[1..].iter().position(is_end);
    rest.map_or(lines.len(), |at| at + 2)
}

/// What is too long in a file, a line for each.
fn offenders(file: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut wrong = Vec::new();
    if lines.len() > FILE_LINES {
        wrong.push(format!("{file}: {} lines", lines.len()));
    }
    for (at, line) in lines.iter().enumerate() {
        let width = line.chars().count();
        // a table's rows cannot be cut
        let is_row = ["//! |", "/// |"]
            .iter()
            .any(|row| line.trim_start().starts_with(row));
        if width > COLUMNS && !is_row {
            wrong.push(format!("{file}:{}: {width} columns", at + 1));
        }
        let Some(name) = function(line) else { continue };
        let length = lines_of_item(&lines[at..]);
        if length > FUNCTION_LINES {
            wrong.push(format!("{file}:{}: `{name}`: {length} lines", at + 1));
        }
    }
    wrong
}

#[test]
fn files_functions_and_lines_are_short() {
    let root = octavo_fixtures::workspace_root();
    let tree = Tree::read(&root);
    let mut wrong = Vec::new();
    let mut excused = [false; LONG_LINES.len()];
    for path in tree.files.iter().filter(|path| path.ends_with(".rs")) {
        let text = fs::read_to_string(root.join(path)).expect("source is UTF-8");
        let mut found = offenders(path, &text);
        let listed = LONG_LINES.iter().position(|(of, _)| path.starts_with(of));
        if let Some(listed) = listed {
            let before = found.len();
            found.retain(|offence| !offence.ends_with("columns"));
            excused[listed] |= found.len() < before;
        }
        wrong.extend(found);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for ((of, why), excused) in LONG_LINES.iter().zip(excused) {
        assert!(excused, "{of} has no long lines any more: {why}");
    }
}

/// A function of so many lines, at a level of indentation.
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
        assert_eq!(offenders("a.rs", &fits.repeat(3)), [""; 0], "{head}");
        let longer = fits + &of_lines(head, level, FUNCTION_LINES + 1);
        assert_eq!(offenders("a.rs", &longer), ["a.rs:81: `f`: 81 lines"]);
    }
    // where parameters take lines of their own, and behind a function without a body
    let declared = "    fn g(\n        x: u8,\n    ) -> u8;\n\n    fn h(x: u8);\n";
    assert_eq!(offenders("a.rs", declared), [""; 0]);
    let split = "    fn f(\n        x: u8,\n    ) -> u8\n    where\n        u8: Copy,\n    {\n";
    let body = "        g();\n".repeat(FUNCTION_LINES);
    let text = format!("{declared}{split}{body}    }}\n");
    assert_eq!(offenders("a.rs", &text), ["a.rs:6: `f`: 87 lines"]);

    let file = "x();\n".repeat(FILE_LINES);
    assert_eq!(offenders("a.rs", &file), [""; 0]);
    assert_eq!(offenders("a.rs", &(file + "x();\n")), ["a.rs: 501 lines"]);

    let line = "é".repeat(COLUMNS);
    assert_eq!(offenders("a.rs", &line), [""; 0]);
    assert_eq!(
        offenders("a.rs", &format!("{line}é")),
        ["a.rs:1: 101 columns"]
    );
    assert_eq!(offenders("a.rs", &format!("//! | {line}")), [""; 0]);
    assert_eq!(
        offenders("a.rs", &format!("/// {line}")),
        ["a.rs:1: 104 columns"]
    );
}
