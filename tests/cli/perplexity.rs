//! `octavo perplexity`: llama-perplexity's lines, its base files in both directions, and refusals.

mod bases;
mod beside;
mod small;
mod tasks;

use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command as Plain, Stdio};

use assert_cmd::Command;
use octavo_fixtures::{llama_cpp, shared, workspace_root};
use octavo_reference::kld_base::{Shape, Writer};
use regex::Regex;
use serde_json::Value;
use tempfile::TempDir;

use super::{fails_unread, stderr, stdout};

fn octavo(args: &[&str]) -> Command {
    super::octavo(&[&["perplexity"], args].concat())
}

fn good(args: &[&str]) -> String {
    super::good(&[&["perplexity"], args].concat())
}

fn json(args: &[&str]) -> Value {
    super::json(&[&["perplexity"], args, &["--json"]].concat())
}

fn bad(args: &[&str], code: i32) -> String {
    super::bad(&[&["perplexity"], args].concat(), code)
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(TempDir::new().expect("a temporary folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    fn write(&self, name: &str, content: &[u8]) -> String {
        std::fs::write(self.path(name), content).expect("written");
        self.name(name)
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).expect("lists");
        let mut names: Vec<String> = entries
            .map(|e| {
                e.expect("an entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort();
        names
    }
}

fn licence() -> String {
    workspace_root()
        .join("LICENSE-APACHE")
        .to_str()
        .expect("UTF-8")
        .to_owned()
}

fn demo() -> String {
    workspace_root()
        .join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf")
        .to_str()
        .expect("UTF-8")
        .to_owned()
}

#[test]
fn the_figures_are_printed_as_llama_perplexity_prints_them() {
    let licence = licence();
    let output = octavo(&["-f", &licence, "-c", "64", "--chunks", "3"])
        .output()
        .expect("runs");
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    let chunks =
        Regex::new(r"^\[1\](\d+\.\d{4}),\[2\](\d+\.\d{4}),\[3\](\d+\.\d{4}),$").expect("a pattern");
    let chunks = chunks
        .captures(lines[0])
        .unwrap_or_else(|| panic!("{text}"));
    let last =
        Regex::new(r"^Final estimate: PPL = (\d+\.\d{4}) \+/- (\d+\.\d{5})$").expect("a pattern");
    let last = last.captures(lines[1]).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(chunks[3], last[1]);
    let notes = stderr(&output);
    let eta = Regex::new(r"octavo: 3 chunks, \d+\.\d\d seconds per pass - ETA \d+\.\d\d minutes\n")
        .expect("a pattern");
    assert!(eta.is_match(&notes), "{notes}");

    let object = json(&["-m", &demo(), "-f", &licence, "-c", "64", "--chunks", "3"]);
    let of = |key: &str, part: &str| {
        object[key][part]
            .as_f64()
            .unwrap_or_else(|| panic!("{key} in {object}"))
    };
    let number = |key: &str| of(key, "value");
    assert_eq!(
        [
            format!("{:.4}", number("ppl")),
            format!("{:.5}", of("ppl", "uncertainty"))
        ],
        [&last[1], &last[2]]
    );
    assert!((number("mean_nll").exp() / number("ppl") - 1.0).abs() < 1e-12);
    let running: Vec<String> = object["chunk_ppl"]
        .as_array()
        .expect("an array")
        .iter()
        .map(|x| format!("{:.4}", x.as_f64().expect("a number")))
        .collect();
    assert_eq!(running, [&chunks[1], &chunks[2], &chunks[3]]);
    assert_eq!(
        [&object["n_ctx"], &object["chunks"], &object["scored"]],
        [64, 3, 93]
    );
    assert_eq!(
        good(&[
            &demo(),
            "-f",
            &licence,
            "-c",
            "64",
            "--chunks",
            "3",
            "-t",
            "1",
            "-b",
            "9"
        ]),
        text
    );
}

#[test]
fn one_line_feed_at_the_end_is_no_part_of_the_text() {
    let folder = Folder::new();
    let base = b"1+1=2. The capital of France is Paris, and the cat sat on the mat once more.";
    // with chunks of three tokens, the last ones count
    let ppl = |content: &[u8]| good(&["-f", &folder.write("t", content), "-c", "3"]);
    let plain = ppl(base);
    assert_eq!(ppl(&[base, &b"\n"[..]].concat()), plain);
    assert_ne!(ppl(&[base, &b"\n\n\n\n\n"[..]].concat()), plain);
    let output = octavo(&["-f", "-", "-c", "3"])
        .write_stdin([base, &b"\n"[..]].concat())
        .output()
        .expect("runs");
    assert_eq!(stdout(&output), plain, "{}", stderr(&output));
}

#[test]
fn mistakes_are_one_line() {
    let (folder, licence) = (Folder::new(), licence());
    let short = folder.write("short", &b"word ".repeat(300));
    let line = bad(&["-f", &short], 1);
    let expected = Regex::new(
        r"text too short: expected at least 1024 tokens \(two chunks of 512\), got \d+$",
    );
    assert!(expected.expect("a pattern").is_match(&line), "{line}");
    assert!(bad(&["-f", &folder.write("empty", b"")], 1).contains("got 0"));
    bad(&[], 2);
    bad(&["--kl-divergence"], 2);
    bad(&["-f", &licence, "--kl-divergence"], 2);
    for chunks in ["0", "-2", "x"] {
        assert!(
            bad(&["-f", &licence, "--chunks", chunks], 2).contains("at least 1, or -1 for all")
        );
    }
    assert!(
        bad(&["-f", &licence, "-c", "2"], 1).contains("chunks of 2 tokens: expected at least 3")
    );
    bad(&["-f", &folder.name("none")], 1);
    bad(&[&folder.name("none.gguf"), "-f", &licence], 1);
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_it_and_leaves_no_half_base() {
    let folder = Folder::new();
    let long = folder.write(
        "long",
        &std::fs::read(licence()).expect("the licence").repeat(30),
    );
    let mut child = Plain::new(env!("CARGO_BIN_EXE_octavo"))
        .args([
            "perplexity",
            "-f",
            &long,
            "-c",
            "64",
            "-t",
            "1",
            "--kl-divergence-base",
            &folder.name("base.kld"),
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut first = [0; 4];
    out.read_exact(&mut first).expect("a chunk");
    let killed = Plain::new("sh")
        .args(["-c", &format!("kill -INT {}", child.id())])
        .status()
        .expect("sh runs");
    assert!(killed.success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("the rest");
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(rest.ends_with(",\n") && !rest.contains("Final"), "{rest}");
    assert_eq!(folder.files(), ["long"]);
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_is_an_error_after_a_base_is_written() {
    let (folder, licence) = (Folder::new(), licence());
    let run =
        |more: &[&str]| fails_unread(&[&["perplexity", "-f", &licence, "-c", "32"], more].concat());
    run(&[]);
    run(&["--kl-divergence-base", &folder.name("base.kld")]);
    assert_eq!(folder.files(), ["base.kld"]);
    good(&[
        "--kl-divergence",
        "--kl-divergence-base",
        &folder.name("base.kld"),
        "--chunks",
        "1",
    ]);
}

/// Splits a line into its numbers and the text between them.
fn numbers(line: &str) -> (Vec<f64>, String) {
    let number = Regex::new(r"-?\d+\.\d+").expect("a pattern");
    let values = number
        .find_iter(line)
        .map(|m| m.as_str().parse().expect("a number"))
        .collect();
    (
        values,
        number
            .replace_all(line, "#")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" "),
    )
}

/// Asserts that the texts have the same words line by line, and numbers that differ by at most
/// `relative`, or by a few of the last digits printed. Our intervals come last and are left out.
fn same_lines(ours: &str, theirs: &str, relative: f64) {
    let ours = ours.split("\n====== 95 % intervals").next().unwrap_or(ours);
    let lines = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|l| !l.trim().is_empty() && !l.ends_with("minutes"))
            .map(str::to_owned)
            .collect()
    };
    let (ours, theirs) = (lines(ours), lines(theirs));
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        let ((a, words), (b, expected)) = (numbers(ours), numbers(theirs));
        // only words count: the number of trailing spaces may differ
        assert_eq!(
            words.replace(['.', '%'], ""),
            expected.replace(['.', '%'], ""),
            "{ours} / {theirs}"
        );
        for (a, b) in a.iter().zip(&b) {
            assert!(
                (a - b).abs() <= relative * b.abs() + 0.0021,
                "{ours} / {theirs}"
            );
        }
    }
}

#[test]
fn a_coarser_model_is_as_far_from_its_base_as_llama_perplexity_says() {
    let (Some(fine), Some(coarse), Some(text)) = (
        shared("models/tiny-qwen3-F32.gguf"),
        shared("models/tiny-qwen3-Q2_K.gguf"),
        shared("text/calibration.txt"),
    ) else {
        return;
    };
    let utf8 = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let (fine, coarse, text) = (utf8(&fine), utf8(&coarse), utf8(&text));
    let folder = Folder::new();
    let base = folder.name("base.kld");
    // for the same numbers on any machine: a matrix unit rounds prefill to bf16
    let exact = [
        "--kv-type",
        "f32",
        "--isa",
        "scalar",
        "--kl-divergence-base",
        &base,
    ];
    good(
        &[
            &[&fine[..], "-f", &text, "-c", "64", "--chunks", "20"][..],
            &exact,
        ]
        .concat(),
    );
    let ours = good(&[&[&coarse[..], "--kl-divergence"][..], &exact].concat());
    let recorded = workspace_root().join("src/analysis/tests/tiny-qwen3-Q2_K.txt");
    let theirs = std::fs::read_to_string(recorded).expect("the recorded figures");
    // our activations are rounded to 15 bits, those of the recorded run not at all
    same_lines(&ours, &theirs, 1e-3);
}

#[test]
fn llama_perplexity_reads_our_bases_and_we_read_its() {
    let (Some(program), Some(model), Some(text)) = (
        llama_cpp("llama-perplexity"),
        shared("models/tiny-qwen3-F32.gguf"),
        shared("text/calibration.txt"),
    ) else {
        return;
    };
    let utf8 = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let (model, text) = (utf8(&model), utf8(&text));
    let folder = Folder::new();
    let (ours, theirs) = (folder.name("ours.kld"), folder.name("theirs.kld"));
    let llama = |args: &[&str]| {
        let output = Plain::new(&program)
            .args([
                "-m", &model, "-t", "2", "-fa", "off", "-ctk", "f32", "-ctv", "f32", "-c", "64",
            ])
            .args(args)
            .output()
            .expect("llama-perplexity runs");
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let exact = [&model[..], "--kv-type", "f32"];
    let write = ["-f", &text, "--chunks", "5", "--kl-divergence-base"];
    let printed = good(&[&exact, &write[..], &[&ours[..], "-c", "64"]].concat());
    let first = printed.lines().next().expect("chunks");
    same_lines(first, &llama(&[&write[..], &[&theirs]].concat()), 1e-5);
    let (a, b) = (
        std::fs::read(&ours).expect("ours"),
        std::fs::read(&theirs).expect("theirs"),
    );
    assert_eq!(a.len(), b.len());
    assert!(
        a[..20 + 5 * 64 * 4] == b[..20 + 5 * 64 * 4],
        "header and tokens"
    );
    for base in [&ours, &theirs] {
        let compare = ["--kl-divergence-base", base, "--kl-divergence"];
        same_lines(
            &good(&[&exact[..], &compare].concat()),
            &llama(&compare),
            1e-4,
        );
    }
}
