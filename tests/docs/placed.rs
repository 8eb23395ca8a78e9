//! Checks names that Markdown files place in a file, by a path, a dash and the names.

use std::fs;

use super::{Tree, as_path, is_word};

/// Returns the names that a text places in files, as in "`src/lib.rs` — `Engine`, `Model::load`":
/// the line where the paragraph begins, the path, and the name. The path may be a link's text.
fn placed_names(text: &str) -> Vec<(usize, String, String)> {
    let mut all = Vec::new();
    let mut fenced = false;
    let mut paragraph = (0, String::new());
    for (at, line) in text.lines().chain([""]).enumerate() {
        let line = line.trim();
        let is_fence = line.starts_with("```");
        fenced ^= is_fence;
        if fenced || is_fence || line.is_empty() {
            let (start, text) = std::mem::take(&mut paragraph);
            placed_in(start, &text, &mut all);
        } else if paragraph.1.is_empty() {
            paragraph = (at + 1, line.to_owned());
        } else {
            paragraph.1 += &format!(" {line}");
        }
    }
    all
}

fn placed_in(line: usize, text: &str, all: &mut Vec<(usize, String, String)>) {
    // spans in backticks are at odd places, what is between them at even ones
    let parts: Vec<&str> = text.split('`').collect();
    let mut path: Option<&str> = None;
    for at in (1..parts.len().saturating_sub(1)).step_by(2) {
        let before = parts[at - 1].trim();
        path = match path {
            Some(path) if before.ends_with('—') || matches!(before, "," | "and" | ", and") => {
                all.push((line, path.to_owned(), parts[at].to_owned()));
                Some(path)
            }
            _ => None,
        };
        let dash = parts[at + 1].trim();
        let is_before_dash = dash == "—" || dash.starts_with("](") && dash.ends_with(") —");
        if is_before_dash && let Some(found) = as_path(parts[at]) {
            path = Some(found);
        }
    }
}

/// Returns a line for each name that is not in the code of the file where a text places it.
fn misplaced(file: &str, text: &str, code: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (line, path, name) in placed_names(text) {
        let item = name.trim_end_matches(['(', ')', '!']);
        let item = item.rsplit("::").next().unwrap_or("");
        let is_there = code(&path).is_some_and(|code| {
            let lines = code.lines().filter(|line| !line.trim().starts_with("//"));
            let mut words = lines.flat_map(|line| line.split(|c: char| !is_word(c)));
            words.any(|word| word == item)
        });
        if !is_there {
            wrong.push(format!("{file}:{line}: `{path}` has no `{name}`"));
        }
    }
    wrong
}

#[test]
fn names_are_in_the_files_where_the_documentation_places_them() {
    let root = octavo_fixtures::workspace_root();
    let tree = Tree::read(&root);
    let code = |path: &str| fs::read_to_string(root.join(path)).ok();
    let (mut wrong, mut placed) = (Vec::new(), 0);
    for path in tree.files.iter().filter(|path| path.ends_with(".md")) {
        let text = fs::read_to_string(root.join(path)).expect("UTF-8");
        placed += placed_names(&text).len();
        wrong.extend(misplaced(path, &text, code));
    }
    assert!(placed > 30, "only {placed} names were looked for");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_name_in_another_file_is_told() {
    let code = |path: &str| match path {
        "src/a.rs" => Some("// Gone\npub struct Engine;\nfn load() {}".to_owned()),
        _ => None,
    };
    let said = |text: &str| misplaced("page.md", text, code);
    for text in [
        "`src/a.rs` — `Engine::load`",
        "1. [`src/a.rs`](../src/a.rs) —\n   `Engine`, `load()` and more: `Gone`",
        "`src/a.rs` and `Gone`",
        "```console\n`src/a.rs` — `Gone`\n```",
    ] {
        assert_eq!(said(text), [""; 0], "{text}");
    }
    for (text, name) in [
        ("a\n\n`src/a.rs` — `Gone`", "`src/a.rs` has no `Gone`"),
        (
            "a\n\n[`src/a.rs`](x) — `Engine`,\n`load` and `Engine::run()`",
            "`src/a.rs` has no `Engine::run()`",
        ),
        ("\n\n`src/b.rs` — `Engine`", "`src/b.rs` has no `Engine`"),
    ] {
        assert_eq!(said(text), [format!("page.md:3: {name}")], "{text}");
    }
}
