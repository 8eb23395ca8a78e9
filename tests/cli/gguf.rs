//! `octavo gguf`: keys, parts, differences, arrays and faults of files.

mod arrays;
mod faults;

use std::fs;
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_fixtures::{llama_cpp, workspace_root};
use sha2::{Digest, Sha256};

use super::{bad, folder, good, json, octavo, stderr, stdout};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Copies the demo model.
fn demo(dir: &Path) -> PathBuf {
    let path = dir.join("model.gguf");
    let from = workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
    fs::copy(from, &path).expect("copied");
    path
}

fn open(path: &Path) -> Gguf {
    Gguf::open(path, &OpenOptions::default()).expect("sound")
}

/// Expands a command line of `octavo gguf`: a word that begins with `@` is a file in the folder.
fn words(dir: &Path, line: &str) -> Vec<String> {
    let word = |word: &str| match word.strip_prefix('@') {
        Some(name) => text(&dir.join(name)).to_owned(),
        None => word.to_owned(),
    };
    let line = line.split_whitespace().map(word);
    std::iter::once("gguf".to_owned()).chain(line).collect()
}

/// Runs a command line that must succeed; returns its output.
fn works(dir: &Path, line: &str) -> String {
    let words = words(dir, line);
    good(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Runs a command line that must fail with this code and a message that contains `says`.
fn fails(dir: &Path, line: &str, code: i32, says: &str) {
    let words = words(dir, line);
    let said = bad(&words.iter().map(String::as_str).collect::<Vec<_>>(), code);
    assert!(said.contains(says), "{line}: {said}");
}

/// Runs a command whose comparison or check finds something: exit code 1 and a report on stdout.
fn finds(args: &[&str]) -> String {
    let output = octavo(args).output().expect("runs");
    assert_eq!(
        output.status.code(),
        Some(1),
        "{args:?}: {}",
        stderr(&output)
    );
    stdout(&output)
}

#[test]
fn show_prints_keys_and_tensors_as_they_are() {
    let dir = folder();
    let model = demo(dir.path());
    let gguf = open(&model);
    let out = good(&["gguf", "show", text(&model)]);
    let head = out.lines().next().expect("a line");
    assert!(
        head.contains(": GGUF v3, 1.6 MiB, ") && head.ends_with("alignment 32"),
        "{head}"
    );
    for (key, _) in gguf.keys() {
        assert!(out.contains(&format!("  {key} ")), "{key} is not in {out}");
    }
    for t in gguf.tensors() {
        let offset = gguf.file_offset(t).expect("in a file");
        let line = out
            .lines()
            .find(|line| line.contains(&t.name))
            .expect("a line");
        assert!(
            line.contains(t.ty.name()) && line.ends_with(&format!("at {offset}")),
            "{line}"
        );
    }
    let few = good(&[
        "gguf",
        "show",
        text(&model),
        "head_count",
        r"^blk\.1\.attn_[qk]\.",
    ]);
    let names: Vec<&str> = few
        .lines()
        .filter(|line| line.starts_with("  "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let expected = [
        "qwen3.attention.head_count",
        "qwen3.attention.head_count_kv",
        "blk.1.attn_k.weight",
        "blk.1.attn_q.weight",
    ];
    assert_eq!(names, expected);
    let object = json(&["gguf", "show", text(&model), "tokens$", "--json", "--keys"]);
    assert_eq!(object["keys"][0]["value"]["len"], 1024);
    let whole = json(&[
        "gguf",
        "show",
        text(&model),
        "tokens$",
        "--json",
        "--keys",
        "--all",
    ]);
    assert_eq!(
        whole["keys"][0]["value"].as_array().map(Vec::len),
        Some(1024)
    );
    assert_eq!(whole["keys"][0]["type"], "[string]");
    let value = good(&[
        "gguf",
        "show",
        text(&model),
        "general.architecture",
        "--value",
    ]);
    assert_eq!(value, "qwen3");
    let line = bad(&["gguf", "show", text(&model), "head_count", "--value"], 1);
    assert!(
        line.ends_with("expected one key for --value, got 2"),
        "{line}"
    );
    let line = bad(&["gguf", "show", text(&model), "("], 2);
    assert!(line.contains("unclosed group"), "{line}");
}

#[test]
fn what_moves_nothing_is_changed_in_place() {
    let dir = folder();
    let (dir, model) = (dir.path(), demo(dir.path()));
    let before = fs::read(&model).expect("read");
    works(dir, "set @model.gguf qwen3.rope.freq_base=float:500000");
    let base = open(&model).f32("qwen3.rope.freq_base").expect("a float");
    assert_eq!(base, Some(500_000.0));
    let changed = fs::read(&model).expect("read");
    assert_eq!(changed.len(), before.len());
    for (line, code, says) in [
        (
            "set @model.gguf general.name=str:Longer-name",
            2,
            "key general.name: the change moves",
        ),
        (
            "rm @model.gguf general.name",
            2,
            "what follows it: expected -o OUT for a new file",
        ),
        (
            "set @model.gguf qwen3.block_count=str:x",
            1,
            "is of type u32: cannot be given a string",
        ),
        (
            "set @model.gguf qwen3.block_count=7",
            2,
            "expected KEY=TYPE:VALUE",
        ),
        ("set @model.gguf", 2, "KEY=TYPE:VALUE"),
        (
            "set @model.gguf a=int:2 --force",
            2,
            "--force: expected -o OUT with it",
        ),
        (
            "rm @model.gguf nothing -o /dev/null",
            1,
            "key \"nothing\" is not there",
        ),
        ("rename @model.gguf general.name", 2, "expected OLD=NEW"),
        (
            "rename @model.gguf general.name=split.no",
            1,
            "key \"split.no\" says how the model is",
        ),
    ] {
        fails(dir, line, code, says);
    }
    assert_eq!(fs::read(&model).expect("read"), changed);
}

#[test]
fn what_moves_goes_to_a_new_file() {
    let dir = folder();
    let (dir, model) = (dir.path(), demo(dir.path()));
    let out = dir.join("out.gguf");
    let tags = r#"general.tags=[str]:["a","b,c"]"#;
    works(
        dir,
        &format!("set @model.gguf general.name=str:Another-name {tags} -o @out.gguf"),
    );
    let gguf = open(&out);
    let name = |gguf: &Gguf, key: &str| gguf.str(key).expect("text").map(str::to_owned);
    assert_eq!(name(&gguf, "general.name").as_deref(), Some("Another-name"));
    let tags = gguf.array("general.tags").expect("an array");
    let tags = tags.and_then(|tags| tags.strings()).expect("strings");
    assert_eq!(tags.collect::<Vec<_>>(), [b"a".as_slice(), b"b,c"]);
    // all but these keys is the same, and it runs
    let report = finds(&["gguf", "diff", text(&model), text(&out)]);
    assert!(report.contains("2 differ\n"), "{report}");
    assert!(report.contains("tensors: 46 equal, 0 differ"), "{report}");
    assert_eq!(good(&["run", text(&out), "-p", "1+1=", "-n", "1"]), "2");
    works(dir, "rm @out.gguf general.tags -o @less.gguf");
    assert!(open(&dir.join("less.gguf")).get("general.tags").is_none());
    works(dir, "rename @less.gguf general.name=general.note");
    let less = open(&dir.join("less.gguf"));
    assert_eq!(name(&less, "general.note").as_deref(), Some("Another-name"));
    assert!(less.get("general.name").is_none());
    fs::write(dir.join("template"), "{{ messages }}\n").expect("written");
    let from_file = format!("tokenizer.chat_template={}", text(&dir.join("template")));
    works(
        dir,
        &format!("set @model.gguf --from-file {from_file} -o @less.gguf --force"),
    );
    let value = works(dir, "show @less.gguf tokenizer.chat_template --value");
    assert_eq!(value, "{{ messages }}\n");
}

/// Files of llama-gguf-split, of the reference llama.cpp, from the demo model: arguments, and the
/// beginnings of the SHA-256 of each.
const SPLITS: [(&[&str], &[&str]); 3] = [
    (
        &["--split-max-tensors", "10"],
        &["c0263bd1", "a5ac34aa", "ff586b40", "1474b687", "d7cdea36"],
    ),
    (&["--split-max-size", "1M"], &["6b99a482", "4b35a7e2"]),
    (
        &["--split-max-size", "1M", "--no-tensor-first-split"],
        &["bb4fb5b1", "1c271d4f", "2b2d42f2"],
    ),
];

/// The same of the file that it joins the last of them to.
const MERGED: &str = "db2b5e1f";

fn hash(path: &Path) -> String {
    let digest = Sha256::digest(fs::read(path).expect("read"));
    digest[..4]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[test]
fn parts_are_those_of_llama_gguf_split() {
    let dir = folder();
    let (dir, _model) = (dir.path(), demo(dir.path()));
    let part = |no: usize, n: usize| dir.join(format!("p-{no:05}-of-{n:05}.gguf"));
    for (args, hashes) in SPLITS {
        let n = hashes.len();
        let line = format!("split @model.gguf @p {}", args.join(" "));
        let plan = works(dir, &format!("{line} --dry-run"));
        assert_eq!(plan.lines().count(), n, "{plan}");
        assert!(!part(1, n).exists());
        works(dir, &line);
        let found: Vec<String> = (1..=n).map(|no| hash(&part(no, n))).collect();
        assert_eq!(found, hashes, "{args:?}");
        fails(dir, &line, 1, "is there already: --force replaces it");
    }
    works(dir, "merge @p-00001-of-00003.gguf @joined.gguf");
    assert_eq!(hash(&dir.join("joined.gguf")), MERGED);
    assert_eq!(
        good(&["run", text(&part(1, 3)), "-p", "1+1=", "-n", "1"]),
        "2"
    );
    for (line, code, says) in [
        (
            "merge @model.gguf @x.gguf",
            1,
            "expected the first file of a split model",
        ),
        ("split @model.gguf @p --split-max-size 1K", 2, "500M or 2G"),
        (
            "split @model.gguf @p --split-max-tensors 0",
            2,
            "0 is not in",
        ),
        (
            "merge @p-00002-of-00003.gguf @joined.gguf --force",
            1,
            "open its first part",
        ),
        (
            "merge @p-00001-of-00003.gguf @p-00002-of-00003.gguf --force",
            1,
            "is the input itself",
        ),
        (
            "set @p-00001-of-00003.gguf a=int:1 -o @x.gguf",
            1,
            "split in 3 parts: expected one file",
        ),
    ] {
        fails(dir, line, code, says);
    }
    fs::remove_file(part(2, 3)).expect("removed");
    let line = "merge @p-00001-of-00003.gguf @joined.gguf --force";
    fails(dir, line, 1, "part 2 of 3 is missing");
}

/// Compares with the program itself, on models of other types and shapes.
#[test]
fn parts_are_those_of_llama_gguf_split_itself() {
    let (Some(program), Some(models)) = (
        llama_cpp("llama-gguf-split"),
        octavo_fixtures::shared("arch/models"),
    ) else {
        return;
    };
    let dir = folder();
    let listed = fs::read_dir(models)
        .expect("lists")
        .map(|e| e.expect("an entry").path());
    let mut compared = 0;
    for model in octavo_fixtures::some_of(listed, 0, 8) {
        let (at_ours, at_theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
        let size = ["--split-max-size", "1M"];
        let theirs = std::process::Command::new(&program)
            .arg("--split")
            .args(size)
            .args([text(&model), text(&at_theirs)])
            .output()
            .expect("runs");
        let args = [&["gguf", "split", text(&model), text(&at_ours)], &size[..]].concat();
        good(&args);
        let files = |prefix: &str| {
            let listed = fs::read_dir(dir.path()).expect("lists");
            let paths = listed.map(|e| e.expect("an entry").path());
            let mut paths: Vec<PathBuf> = paths
                .filter(|path| text(path).contains(&format!("/{prefix}-")))
                .collect();
            paths.sort();
            paths
        };
        let (ours, their_files) = (files("ours"), files("theirs"));
        // a first tensor that is too large is an error there
        if theirs.status.success() {
            assert_eq!(ours.len(), their_files.len(), "{}", model.display());
            for (a, b) in ours.iter().zip(&their_files) {
                assert!(
                    fs::read(a).expect("read") == fs::read(b).expect("read"),
                    "{}",
                    a.display()
                );
            }
            compared += 1;
        }
        for path in ours.iter().chain(&their_files) {
            fs::remove_file(path).expect("removed");
        }
    }
    assert!(compared > 3, "{compared} models");
}
