//! Models of the hub by name, against a stand-in on this machine.

use octavo_engine::demo_model;
use octavo_fixtures::{Lacks, skip};
use tempfile::TempDir;

use super::*;
use crate::standin::{Access, COMMIT, Fault, Standin};

/// A stand-in with the built-in model in the repository u/r, and an empty cache.
struct Place {
    standin: Standin,
    home: TempDir,
}

impl Place {
    fn new() -> Place {
        let standin = Standin::start();
        standin.add("u/r", "tiny-Q4_K_M.gguf", demo_model());
        standin.add("u/r", "README.md", b"read me");
        Place {
            standin,
            home: TempDir::new().expect("a folder"),
        }
    }

    fn octavo(&self, args: &[&str]) -> Output {
        let mut command = octavo(args);
        for variable in [
            "HF_TOKEN",
            "HF_HUB_CACHE",
            "HF_TOKEN_PATH",
            "HF_HUB_OFFLINE",
        ] {
            command.env_remove(variable);
        }
        command
            .env("HF_ENDPOINT", &self.standin.url)
            .env("HF_HOME", self.home.path())
            .output()
            .expect("it runs")
    }

    /// Returns what a command prints.
    fn said(&self, args: &[&str]) -> String {
        let output = self.octavo(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        stdout(&output)
    }

    /// Returns the line with which a command is refused.
    fn refused(&self, args: &[&str], code: i32) -> String {
        let output = self.octavo(args);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        let lines: Vec<&str> = said.lines().filter(|l| l.contains("error: ")).collect();
        assert_eq!(lines.len(), 1, "{said}");
        lines[0].to_owned()
    }
}

#[test]
fn a_model_is_named_fetched_listed_and_removed() {
    let place = Place::new();
    let text = place.said(&["run", "hf:u/r", "-p", "1+1=", "-n", "4"]);
    let own = octavo(&["run", "-p", "1+1=", "-n", "4"])
        .output()
        .expect("it runs");
    assert_eq!(text, stdout(&own), "the built-in model, by another way");
    assert_eq!(place.standin.sent(), demo_model().len());
    // llama.cpp's options, and every command that takes a model
    for args in [
        &["run", "-hf", "u/r:q4_k_m", "-p", "1+1=", "-n", "4"][..],
        &[
            "run",
            "-hf",
            "u/r",
            "-hff",
            "tiny-Q4_K_M.gguf",
            "-p",
            "1+1=",
            "-n",
            "4",
        ],
        &[
            "run",
            "--offline",
            "-m",
            "hf:u/r@main",
            "-p",
            "1+1=",
            "-n",
            "4",
        ],
        &[
            "run", "hf:u/r", "--draft", "hf:u/r", "-p", "1+1=", "-n", "4",
        ],
    ] {
        assert_eq!(place.said(args), text, "{args:?}");
    }
    let about = place.said(&["inspect", "hf:u/r"]);
    assert!(about.contains("qwen3"), "{about}");
    let same = place.said(&["diff", "hf:u/r", "hf:u/r", "-p", "1+1="]);
    assert!(same.contains("identical"), "{same}");
    assert_eq!(place.standin.sent(), 0, "it is cached");
    let path = place.said(&["pull", "hf:u/r"]);
    let expected = format!("snapshots/{COMMIT}/tiny-Q4_K_M.gguf\n");
    assert!(path.ends_with(&expected), "{path}");
    let list = place.said(&["list"]);
    let words: Vec<&str> = list.split_whitespace().collect();
    assert_eq!(words[0], "hf:u/r/tiny-Q4_K_M.gguf");
    assert_eq!(words.last(), Some(&"qwen3"), "{list}");
    let object = place.said(&["list", "--json"]);
    assert!(object.contains("\"quantization\":\"Q4_K_M\""), "{object}");
    place.said(&["rm", "hf:u/r:Q4_K_M"]);
    assert_eq!(place.said(&["list"]), "");
    let gone = place.refused(&["run", "--offline", "hf:u/r", "-p", "1"], 1);
    assert!(gone.contains("u/r"), "{gone}");
    let gone = place.refused(&["rm", "hf:u/r:Q4_K_M"], 1);
    assert!(gone.contains("not in the cache"), "{gone}");
}

#[test]
fn the_image_encoder_beside_a_model_is_taken_unasked() {
    let place = Place::new();
    place.standin.add("u/v", "tiny-Q4_K_M.gguf", demo_model());
    place
        .standin
        .add("u/v", "mmproj-tiny-Q8_0.gguf", b"no GGUF file");
    let line = place.refused(&["run", "hf:u/v", "-p", "1", "--image", "Cargo.toml"], 1);
    assert!(line.contains("mmproj-tiny-Q8_0.gguf"), "{line}");
    let line = place.refused(&["run", "hf:u/r", "-p", "1", "--image", "Cargo.toml"], 1);
    assert!(line.contains("beside the model"), "{line}");
    // one that was not asked for may be of no use
    let output = place.octavo(&["chat", "hf:u/v", "-n", "1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(
        said.contains("warning: ") && said.contains("mmproj-tiny-Q8_0.gguf"),
        "{said}"
    );
    let output = place.octavo(&["chat", "hf:u/v", "-n", "1", "--no-mmproj"]);
    assert!(output.status.success() && !stderr(&output).contains("mmproj"));
    let both = place.said(&["pull", "hf:u/v", "--mmproj"]);
    assert_eq!(both.lines().count(), 2, "{both}");
    let objects = place.said(&["list", "--json"]);
    let fitting = |line: &&str| line.contains("\"fits\":true");
    assert!(objects.lines().filter(fitting).count() >= 2, "{objects}");
}

/// Mounts a small file system as the cache, which takes a right that not every machine gives.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_one_line_and_the_download_goes_on_later() {
    let place = Place::new();
    let script = "mount -t tmpfs -o size=64k tmpfs \"$HF_HOME\" || exit 99
        \"$0\" pull hf:u/r
        echo \"exit $?\"
        mount -o remount,size=64m \"$HF_HOME\" && \"$0\" pull hf:u/r";
    let output = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_octavo")])
        .env("HF_ENDPOINT", &place.standin.url)
        .env("HF_HOME", place.home.path())
        .env_remove("HF_HUB_CACHE")
        .output();
    let output = match output {
        Ok(output) if !matches!(output.status.code(), Some(1 | 99)) => output,
        other => return skip(Lacks::System, format!("mounting: {other:?}")),
    };
    let (said, answer) = (stderr(&output), stdout(&output));
    assert!(output.status.success(), "{said}");
    let lines: Vec<&str> = said.lines().filter(|l| l.contains("error: ")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    let words = lines[0].contains("No space left") && lines[0].contains(".incomplete");
    assert!(words, "{said}");
    let answer: Vec<&str> = answer.lines().collect();
    assert_eq!(answer[0], "exit 1");
    assert!(answer[1].ends_with("tiny-Q4_K_M.gguf"), "{answer:?}");
    // what fitted is not sent again
    assert!(place.standin.sent() < 2 * demo_model().len());
}

#[test]
fn refusals_are_one_line_that_says_what_to_do() {
    let place = Place::new();
    let line = place.refused(&["run", "hf:u/none", "-p", "1"], 1);
    assert!(line.contains("no such repository"), "{line}");
    let line = place.refused(&["run", "hf:u/r:Q8_0", "-p", "1"], 1);
    assert!(line.contains("it has tiny-Q4_K_M.gguf"), "{line}");
    let line = place.refused(&["run", "hf:u", "-p", "1"], 2);
    assert!(line.contains("expected hf:USER/REPO"), "{line}");
    place.standin.restrict("u/r", Access::Gated("hf_right"));
    let line = place.refused(&["run", "hf:u/r", "-p", "1"], 1);
    assert!(
        line.contains("accept its licence at http://127.0.0.1"),
        "{line}"
    );
    place.said(&[
        "run", "-hft", "hf_right", "-hf", "u/r", "-p", "1", "-n", "1",
    ]);
    place.said(&["rm", "hf:u/r"]);
    place.standin.restrict("u/r", Access::Open);
    place.standin.state().faults = vec![Fault::OtherBytes];
    let line = place.refused(&["pull", "hf:u/r"], 1);
    assert!(line.contains("sha256"), "{line}");
    // cut once, and continued by the same command
    place.standin.sent();
    place.standin.state().faults = vec![Fault::Cut(100_000)];
    place.said(&["pull", "hf:u/r"]);
    assert_eq!(place.standin.sent(), demo_model().len());
    // a file of the name comes first, and a path is never asked for
    let line = place.refused(&["run", "missing.gguf", "-p", "1"], 1);
    assert!(line.contains("missing.gguf"), "{line}");
    let line = place.refused(&["pull", "missing.gguf"], 2);
    assert!(
        line.contains("expected hf:USER/REPO or an address"),
        "{line}"
    );
}
