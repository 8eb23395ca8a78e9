//! Checks that names in the documentation exist: every path in backticks and every link to a file,
//! in the Markdown files and in the comments of Rust files, and every identifier such as
//! `Type::method` in the Markdown files. Only the changelog may name things that no longer exist.

mod placed;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use octavo_model::Arch;

/// Endings that make a name a file of this repository, with or without a folder before it.
const ENDINGS: [&str; 6] = [".rs", ".md", ".toml", ".cu", ".cuh", ".sh"];

/// Folders outside the repository: builds, and large fixtures.
const SKIPPED: [&str; 2] = ["target", "shared"];

/// Parts of a path that stand for any name, or for the folder of large fixtures, which may be
/// absent.
const PLACEHOLDERS: [&str; 5] = ["NAME", "NAME.rs", "DIR", "MODEL", "shared"];

/// Files and folders of the repository, by their paths from its root, and the words in them.
#[derive(Default)]
pub(super) struct Tree {
    pub(super) files: BTreeSet<String>,
    folders: BTreeSet<String>,
    /// Every word of Rust code, without comments.
    words: BTreeSet<String>,
}

impl Tree {
    pub(super) fn read(root: &Path) -> Tree {
        let mut tree = Tree::default();
        tree.add_folder(root, "");
        let code = tree.files.iter().filter(|path| path.ends_with(".rs"));
        // this file has names that do not exist, on purpose
        for path in code.filter(|path| *path != "tests/docs.rs") {
            let text = fs::read_to_string(root.join(path)).expect("source is UTF-8");
            let lines = text
                .lines()
                .map(|line| line.split("//").next().unwrap_or(""));
            let words = lines.flat_map(|line| line.split(|c: char| !is_word(c)));
            tree.words.extend(words.map(str::to_owned));
        }
        tree
    }

    fn add_folder(&mut self, root: &Path, folder: &str) {
        for entry in fs::read_dir(root.join(folder)).expect("a readable folder") {
            let entry = entry.expect("a readable folder");
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = join(folder, &name);
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.files.insert(path);
            } else if !SKIPPED.contains(&name.as_str()) && (!name.starts_with('.') || name == ".ci")
            {
                self.add_folder(root, &path);
                self.folders.insert(path);
            }
        }
    }

    fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.files.contains(path) || self.folders.contains(path)
    }

    /// Returns the folder of the crate that a file belongs to.
    fn crate_of<'a>(&self, file: &'a str) -> &'a str {
        let mut folders = ancestors(file);
        folders
            .find(|folder| self.files.contains(&join(folder, "Cargo.toml")))
            .unwrap_or("")
    }

    /// Returns whether `named` exists, seen from `file`: from the root, from its folder or one
    /// above it in its crate, or from the crate's sources. A name without a folder may be anywhere
    /// in the crate; a text that belongs to no crate but the root's may name any file.
    fn finds(&self, named: &str, file: &str) -> bool {
        let own = self.crate_of(file);
        let sources = join(own, "src");
        let within = ancestors(file).take_while(|folder| folder.len() >= own.len());
        let mut bases = within.chain(["", sources.as_str()]);
        if bases.any(|base| normal(&join(base, named)).is_some_and(|path| self.has(&path))) {
            return true;
        }
        let is_text = file.ends_with(".md");
        let named_so = |path: &&String| path.rsplit('/').next() == Some(named);
        let mut others = self.files.iter().filter(named_so);
        others.any(|path| (is_text && own.is_empty()) || self.crate_of(path) == own)
    }
}

/// Returns the folders that a file is in, the nearest first, the root last.
fn ancestors(file: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(parent(file), |folder| parent(folder))
}

/// Returns the parent folder; none for the root, which is "".
fn parent(path: &str) -> Option<&str> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    (!path.is_empty()).then_some(folder)
}

fn join(folder: &str, name: &str) -> String {
    match folder {
        "" => name.to_owned(),
        _ => format!("{folder}/{name}"),
    }
}

/// Returns a path without `.` and `..`; `None` if it leads out of the repository.
fn normal(path: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the texts in backticks and the targets of links, each with its line; code blocks are
/// skipped.
fn spans(text: &str) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    let mut fenced = false;
    // a span that is open at the end of a line continues in the next one
    let mut open: Option<(usize, String)> = None;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("```") {
            fenced = !fenced;
        }
        if fenced || line.starts_with("```") || line.is_empty() {
            open = None;
            continue;
        }
        let mut parts = line.split('`');
        let first = parts.next().unwrap_or("");
        add_links(at + 1, first, &mut all);
        if let Some((_, span)) = &mut open {
            span.push(' ');
            span.push_str(first);
        }
        for part in parts {
            match open.take() {
                Some(span) => {
                    all.push(span);
                    add_links(at + 1, part, &mut all);
                }
                None => open = Some((at + 1, part.to_owned())),
            }
        }
    }
    all
}

fn add_links(line: usize, text: &str, all: &mut Vec<(usize, String)>) {
    for link in text.split("](").skip(1) {
        let target = link.split([')', '#']).next().unwrap_or("");
        all.push((line, target.to_owned()));
    }
}

/// Returns the path that a span names, if it looks like one of this repository.
fn as_path(span: &str) -> Option<&str> {
    let span = span.split('#').next().unwrap_or("");
    let plain = |c: char| is_word(c) || matches!(c, '.' | '/' | '-' | '+');
    let is_path = span.contains('/') || ENDINGS.iter().any(|end| span.ends_with(end));
    let outside = ["/", "~", "-"];
    let is_ours = is_path
        && span.chars().all(plain)
        && !outside.iter().any(|start| span.starts_with(start))
        && !span.split('/').any(|part| PLACEHOLDERS.contains(&part));
    // an ending alone is not a file
    (is_ours && !ENDINGS.contains(&span)).then_some(span)
}

/// Returns the last name of `path::to::item`, if a span is one.
fn as_item(span: &str) -> Option<&str> {
    let names = span.trim_end_matches(['(', ')', '!']);
    let (_, last) = names.rsplit_once("::")?;
    let is_name = |name: &str| !name.is_empty() && name.chars().all(is_word);
    names.split("::").all(is_name).then_some(last)
}

/// Returns the text of a Rust line if it is a comment, and a line break.
fn comment(line: &str) -> String {
    let comment = line.trim().strip_prefix("//").unwrap_or("");
    format!("{}\n", comment.trim_start_matches(['/', '!']))
}

/// Returns a line for each name in a file that does not exist.
fn offenders(file: &str, text: &str, tree: &Tree) -> Vec<String> {
    let is_text = file.ends_with(".md");
    let comments: String;
    let documented = if is_text {
        text
    } else {
        comments = text.lines().map(comment).collect();
        &comments
    };
    let mut wrong = Vec::new();
    for (line, span) in spans(documented) {
        if as_path(&span).is_some_and(|path| !tree.finds(path, file)) {
            wrong.push(format!("{file}:{line}: `{span}`: no such file"));
        }
        if is_text && as_item(&span).is_some_and(|item| !tree.words.contains(item)) {
            wrong.push(format!("{file}:{line}: `{span}`: no such item"));
        }
    }
    wrong
}

#[test]
fn what_the_documentation_names_exists() {
    let root = octavo_fixtures::workspace_root();
    let tree = Tree::read(&root);
    let documented =
        |path: &&String| path.ends_with(".rs") || path.ends_with(".md") && *path != "CHANGELOG.md";
    let mut wrong = Vec::new();
    let mut named = 0;
    for path in tree.files.iter().filter(documented) {
        let text = fs::read_to_string(root.join(path)).expect("UTF-8");
        wrong.extend(offenders(path, &text, &tree));
        let looked_at = spans(&text)
            .into_iter()
            .filter(|span| as_path(&span.1).is_some());
        named += if path.ends_with(".md") {
            looked_at.count()
        } else {
            0
        };
    }
    assert!(named > 100, "only {named} paths in Markdown were looked at");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Beginnings of comments that lack a subject.
const FRAGMENT_STARTS: [&str; 3] = ["What", "Of which", "Whose"];

/// Words for a subject or number that a comment should name, in lower case.
const VAGUE_WORDS: [&str; 4] = ["so many", "whoever", "nobody", "somebody"];

/// Fragments per 1,000 comment lines of a crate that are accepted.
const MAX_FRAGMENTS: usize = 3;

/// Returns the text of a line that is a comment.
fn comment_text(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim())
}

/// Returns whether a comment begins without a subject, or leaves it vague.
fn is_fragment(comment: &str) -> bool {
    let has = |text: &str, word: &str| {
        let around = |at: usize| {
            let before = text[..at].chars().next_back();
            let after = text[at + word.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        };
        text.match_indices(word).any(|(at, _)| around(at))
    };
    let starts = |start: &str| comment.starts_with(start) && has(comment, start);
    let lower = comment.to_lowercase();
    FRAGMENT_STARTS.iter().any(|start| starts(start)) || VAGUE_WORDS.iter().any(|w| has(&lower, w))
}

#[test]
fn comments_name_their_subjects() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tree = Tree::read(root);
    let mut crates: BTreeMap<&str, (usize, Vec<String>)> = BTreeMap::new();
    for path in tree.files.iter().filter(|path| path.ends_with(".rs")) {
        let text = fs::read_to_string(root.join(path)).expect("UTF-8");
        let (lines, found) = crates.entry(tree.crate_of(path)).or_default();
        for (i, line) in text.lines().enumerate() {
            let Some(comment) = comment_text(line) else {
                continue;
            };
            *lines += 1;
            if is_fragment(comment) {
                found.push(format!("{path}:{}: {comment}", i + 1));
            }
        }
    }
    for (name, (lines, found)) in crates {
        assert!(
            found.len() * 1000 <= lines * MAX_FRAGMENTS,
            "{name}: {} of {lines} comment lines:\n{}",
            found.len(),
            found.join("\n")
        );
    }
}

#[test]
fn planted_fragments_are_found() {
    for line in [
        "/// What it holds.",
        "    // Of which some are given.",
        "//! Whose kernels.",
        "/// Bytes of so many values.",
        "// Nobody else has it; whoever asks waits.",
    ] {
        assert!(comment_text(line).is_some_and(is_fragment), "{line}");
    }
    for line in [
        "/// Whatever the batch, bits stay.",
        "/// Which of the new tokens to return logits for.",
        "/// Returns what a request asks for.",
    ] {
        assert!(
            comment_text(line).is_some_and(|text| !is_fragment(text)),
            "{line}"
        );
    }
    assert_eq!(comment_text("let x = 1; // What"), None);
}

/// Counts the lines of code, without comments and blank ones.
fn code_lines(text: &str) -> usize {
    let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//");
    text.lines().map(str::trim).filter(is_code).count()
}

#[test]
fn every_architecture_is_listed_with_its_lines() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/architectures.md")).expect("the page");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let said: BTreeSet<String> = rows
        .map(|row| row.split(" | ").take(2).collect::<Vec<_>>().join(": "))
        .collect();
    for arch in Arch::all() {
        let file = format!("src/model/arch/{}.rs", arch.name().replace('-', "_"));
        let code = fs::read_to_string(root.join(&file)).expect("a file for each architecture");
        let lines = code_lines(&code);
        assert!(
            lines <= 120,
            "{file} has {lines} lines: blocks can be shared"
        );
        let row = format!("{}: {lines}", arch.name());
        assert!(said.contains(&row), "docs/architectures.md: expected {row}");
    }
    // plus a line for the names of columns, and one for the sum
    assert_eq!(said.len(), Arch::all().len() + 2, "{said:?}");
}

/// Returns a repository of two crates.
fn small() -> Tree {
    let set = |all: &[&str]| all.iter().map(|path| (*path).to_owned()).collect();
    Tree {
        files: set(&[
            "Cargo.toml",
            "README.md",
            "docs/page.md",
            "src/main.rs",
            "kernels/Cargo.toml",
            "kernels/src/exec/plan.rs",
            "kernels/src/pool.rs",
        ]),
        folders: set(&["docs", "src", "kernels", "kernels/src", "kernels/src/exec"]),
        words: set(&["Executor", "step"]),
    }
}

#[test]
fn what_exists_is_found() {
    let texts = [
        (
            "README.md",
            "`kernels/src/exec/plan.rs`, `src/`, `plan.rs`, [a page](docs/page.md#top)",
        ),
        (
            "docs/page.md",
            "[up](../README.md) and `README.md`, `../src/main.rs`",
        ),
        (
            "kernels/src/pool.rs",
            "//! `exec/plan.rs`, `plan.rs`, `README.md`",
        ),
        ("README.md", "`Executor::step`, `exec::Executor::step()`"),
        // not paths of this repository
        (
            "README.md",
            "`~/x/y.rs` `/proc/self` `https://a.b/c.rs` `a / b` `src/NAME.rs` `.rs`",
        ),
        ("README.md", "```console\n$ `nowhere.rs`\n```\n"),
        ("kernels/src/pool.rs", "let x = \"`nowhere.rs`\";"),
    ];
    for (file, text) in texts {
        assert_eq!(offenders(file, text, &small()), [""; 0], "{text}");
    }
}

#[test]
fn what_does_not_exist_is_told_with_its_line() {
    let texts = [
        (
            "README.md",
            "a\nb `kernels/src/exec.rs`",
            "README.md:2: `kernels/src/exec.rs`: no such file",
        ),
        (
            "README.md",
            "`exec/plan.rs`",
            "README.md:1: `exec/plan.rs`: no such file",
        ),
        (
            "README.md",
            "`team.rs`",
            "README.md:1: `team.rs`: no such file",
        ),
        (
            "README.md",
            "[x](docs/other.md)",
            "README.md:1: `docs/other.md`: no such file",
        ),
        (
            "docs/page.md",
            "`Executor::run`",
            "docs/page.md:1: `Executor::run`: no such item",
        ),
        // of another crate
        (
            "src/main.rs",
            "\n//! `plan.rs`",
            "src/main.rs:2: `plan.rs`: no such file",
        ),
        (
            "kernels/src/pool.rs",
            "//! `main.rs`",
            "kernels/src/pool.rs:1: `main.rs`: no such file",
        ),
    ];
    for (file, text, expected) in texts {
        assert_eq!(offenders(file, text, &small()), [expected], "{text}");
    }
}
