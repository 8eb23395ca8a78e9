//! Batch work: separate processes compute shards, one of them is killed and repeated, and merging
//! prints the same bytes as one run.

mod clusters;
mod refused;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command as Plain, Stdio};

use octavo_fixtures::{committed_goldens, workspace_root};
use tempfile::TempDir;

use super::{bad, folder, good, octavo, stderr, stdout};

/// Folder with a model, a coarser one and a text.
struct Desk(TempDir);

impl Desk {
    fn new() -> Desk {
        let desk = Desk(folder());
        let demo = workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
        std::fs::copy(demo, desk.at("model.gguf")).expect("copied");
        let text = "Once there was a red fox. The fox lived under the tree.\n3+4=7\n".repeat(20);
        std::fs::write(desk.at("text.txt"), text).expect("written");
        desk
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.at(name).to_str().expect("UTF-8").to_owned()
    }

    /// Splits a command line into words; a word that begins with `@` is a file here.
    fn words(&self, line: &str) -> Vec<String> {
        let word = |word: &str| match word.strip_prefix('@') {
            Some(name) => self.name(name),
            None => word.to_owned(),
        };
        line.split_whitespace().map(word).collect()
    }

    fn good(&self, line: &str) -> String {
        let words = self.words(line);
        good(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn bad(&self, line: &str, code: i32) -> String {
        let words = self.words(line);
        bad(&words.iter().map(String::as_str).collect::<Vec<_>>(), code)
    }

    /// Computes all shards of a command, the last one first; returns the shards as arguments.
    fn shards(&self, command: &str, of: u32) -> String {
        let shard = |i: u32| format!("@{of}-{i}.shard");
        for i in (1..=of).rev() {
            let line = format!("{command} --shard {i}/{of} --out {}", shard(i));
            assert_eq!(self.good(&line), "", "a shard prints nothing");
        }
        (1..=of).map(shard).collect::<Vec<_>>().join(" ")
    }
}

/// Asserts that merging 1, 3 and 8 shards prints the same as one run.
fn is_the_same_in_shards(desk: &Desk, command: &str, variants: &[&str]) {
    let whole: Vec<String> = variants
        .iter()
        .map(|more| desk.good(&format!("{command} {more}")))
        .collect();
    for of in [1, 3, 8] {
        let shards = desk.shards(command, of);
        for (more, whole) in variants.iter().zip(&whole) {
            let merged = desk.good(&format!("merge {more} {shards}"));
            assert_eq!(merged, *whole, "{of} shards: {command} {more}");
        }
    }
}

#[test]
fn perplexity_is_the_same_in_shards() {
    let command = "perplexity @model.gguf -f @text.txt -c 32 -t 2";
    is_the_same_in_shards(&Desk::new(), command, &["", "--json"]);
}

#[test]
fn a_divergence_is_the_same_in_shards() {
    let desk = Desk::new();
    desk.good("perplexity @model.gguf -f @text.txt -c 32 --kl-divergence-base @base.kld");
    desk.good("quantize @model.gguf @coarse.gguf Q2_K --allow-requantize");
    let command = "perplexity @coarse.gguf -t 2 --kl-divergence --kl-divergence-base @base.kld";
    is_the_same_in_shards(&desk, command, &["", "--json"]);
    // fewer chunks than shards: some have none
    is_the_same_in_shards(&desk, &format!("{command} --chunks 5"), &[""]);
}

#[test]
fn a_small_base_is_the_same_in_shards() {
    let desk = Desk::new();
    let command = "perplexity @model.gguf -f @text.txt -c 32 -t 2 --base-top 20 --base-bits 9";
    let base = |name: &str| std::fs::read(desk.at(name)).expect("written");
    let whole = desk.good(&format!("{command} --kl-divergence-base @whole.kld"));
    for of in [1, 3, 8] {
        let shards = desk.shards(command, of);
        let merged = desk.good(&format!("merge {shards} -o @merged.kld"));
        assert_eq!(merged, whole, "{of} shards");
        assert!(base("merged.kld") == base("whole.kld"), "{of} shards");
    }
    // fewer chunks than shards: some have none
    let few = format!("{command} --chunks 2");
    desk.good(&format!("{few} --kl-divergence-base @few.kld"));
    let shards = desk.shards(&few, 8);
    desk.good(&format!("merge {shards} -o @merged.kld"));
    assert!(base("merged.kld") == base("few.kld"));
    let said = desk.bad(&format!("merge {shards}"), 2);
    assert!(
        said.contains("shards of a small base: expected -o OUT.kld"),
        "{said}"
    );
    desk.good("quantize @model.gguf @coarse.gguf Q2_K --allow-requantize");
    let command = "perplexity @coarse.gguf -t 2 --kl-divergence --kl-divergence-base @whole.kld";
    is_the_same_in_shards(&desk, command, &["", "--json"]);
    is_the_same_in_shards(&desk, &format!("{command} --chunks 5"), &[""]);
}

#[test]
fn an_importance_matrix_is_the_same_in_shards() {
    let desk = Desk::new();
    let command = "imatrix @model.gguf -f @text.txt -c 32 --process-output";
    desk.good(&format!("{command} -o @whole.gguf"));
    let whole = std::fs::read(desk.at("whole.gguf")).expect("there");
    for of in [1, 3, 8] {
        let shards = desk.shards(command, of);
        assert_eq!(desk.good(&format!("merge {shards} -o @merged.gguf")), "");
        let merged = std::fs::read(desk.at("merged.gguf")).expect("there");
        assert!(merged == whole, "{of} shards");
    }
}

#[test]
fn a_suite_is_the_same_in_shards() {
    let desk = Desk::new();
    let root = workspace_root();
    let at = |path: &str| root.join(path).to_str().expect("UTF-8").to_owned();
    let suite = |tolerance: &str| {
        let text = format!(
            "models = [{:?}, {:?}]\nisa = [\"scalar\", \"auto\"]\ngoldens = {:?}\n\
             against = \"exact\"\ntol_nmse = {tolerance}\n[prompts]\nsum = \"1+1=\"\n\
             capital = \"What is the capital of France? The capital of France is\"\n",
            at("src/engine/demo/tiny-qwen3-Q4_K_M.gguf"),
            at("reference/models/rnd-llama-Q4_K_M.gguf"),
            committed_goldens().to_str().expect("UTF-8"),
        );
        std::fs::write(desk.at("suite.toml"), text).expect("written");
    };
    let command = "diff --suite @suite.toml -t 2";
    suite("1e-2");
    is_the_same_in_shards(&desk, command, &["", "--all", "--json"]);
    desk.good(&format!("{command} --html @whole.html"));
    let shards = desk.shards(command, 3);
    desk.good(&format!("merge {shards} --html @merged.html"));
    let page = |name: &str| std::fs::read(desk.at(name)).expect("there");
    assert!(page("merged.html") == page("whole.html"), "other pages");
    // results outside the tolerance are no failure of a shard, but of the whole
    suite("1e-30");
    let run = |line: String| {
        let words = desk.words(&line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        octavo(&words).output().expect("it runs")
    };
    let whole = run(command.to_owned());
    let merged = run(format!("merge {}", desk.shards(command, 3)));
    assert_eq!(stdout(&merged), stdout(&whole));
    assert_eq!(
        (whole.status.code(), merged.status.code()),
        (Some(1), Some(1))
    );
}

/// Compares everything except the speeds, which differ from run to run.
#[test]
fn a_report_is_the_same_in_shards() {
    let desk = Desk::new();
    desk.good("quantize @model.gguf @f16.gguf F16 --allow-requantize");
    let command = "quant-report @f16.gguf -f @text.txt -c 32 --types Q8_0,Q2_K --also @model.gguf \
                   --sensitivity Q2_K --by-role --chunks 9";
    let figures = |line: &str| -> serde_json::Value {
        let mut report: serde_json::Value =
            serde_json::from_str(&desk.good(line)).expect("one object");
        let mut speeds = 0;
        let types = report["types"].as_array().map_or(0, Vec::len);
        let models = (0..types).map(|i| format!("/types/{i}"));
        for model in models.chain(["/base".to_owned()]) {
            for speed in ["prompt_rate", "generation_rate"] {
                let at = report.pointer_mut(&format!("{model}/{speed}"));
                let at = at.unwrap_or_else(|| panic!("{model}/{speed}"));
                assert!(at.take().as_f64().is_some_and(|rate| rate > 0.0));
                speeds += 1;
            }
        }
        assert_eq!(speeds, 2 * (1 + 3));
        report
    };
    let whole = figures(&format!("{command} --json"));
    assert!(
        whole["sensitivity"]
            .as_array()
            .is_some_and(|all| all.len() == 8)
    );
    for of in [1, 3, 8] {
        let shards = desk.shards(command, of);
        let merged = figures(&format!("merge --json {shards} --html @page.html"));
        assert_eq!(merged, whole, "{of} shards");
    }
    let page = std::fs::read_to_string(desk.at("page.html")).expect("the page");
    assert!(page.contains("<svg") && page.contains("class=heat"));
    // two chunks in eight shards: some have none
    let few = command.replace("--chunks 9", "--chunks 2");
    let merged = figures(&format!("merge --json {}", desk.shards(&few, 8)));
    assert_eq!(merged, figures(&format!("{few} --json")));
}

/// A shard whose process is killed leaves no file and is computed when it is
/// repeated; a shard that exists is not computed again.
#[test]
fn a_part_that_was_killed_is_repeated() {
    let desk = Desk::new();
    let text = std::fs::read(desk.at("text.txt")).expect("there");
    std::fs::write(desk.at("text.txt"), text.repeat(20)).expect("written");
    let command = "perplexity @model.gguf -f @text.txt -c 32 -t 1 --chunks 400";
    let line = format!("{command} --shard 2/3 --out @3-2.shard");
    let mut child = Plain::new(env!("CARGO_BIN_EXE_octavo"))
        .args(desk.words(&line))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    // after the first chunk it prints the expected time
    let notes = BufReader::new(child.stderr.take().expect("piped"));
    let begun = notes.lines().map_while(Result::ok);
    assert!(
        begun
            .into_iter()
            .any(|line| line.contains("seconds per pass"))
    );
    child.kill().expect("killed");
    child.wait().expect("ended");
    assert!(
        !desk.at("3-2.shard").exists(),
        "it was done before it was killed"
    );

    let one = desk.shards(&format!("{command} --kv-type f32"), 1);
    let shards = desk.shards(command, 3);
    assert_eq!(desk.good(&format!("merge {shards}")), desk.good(command));
    assert_ne!(
        desk.good(&format!("merge {one}")),
        desk.good(command),
        "f32 is another run"
    );
    // all three shards exist, and no other new file
    let left = std::fs::read_dir(desk.0.path()).expect("lists").count();
    assert_eq!(left, 2 + 3 + 1);

    let before = std::fs::metadata(desk.at("3-2.shard")).expect("there");
    let words = desk.words(&line);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = octavo(&words).output().expect("it runs");
    let notes = stderr(&output);
    assert!(
        output.status.success() && notes.contains("shard 2/3 is complete already"),
        "{notes}"
    );
    assert!(!notes.contains("seconds per pass"), "{notes}");
    let after = std::fs::metadata(desk.at("3-2.shard")).expect("there");
    assert_eq!(
        before.modified().expect("a time"),
        after.modified().expect("a time")
    );

    // shards of other work and damaged shards are computed anew
    let mut bytes = std::fs::read(desk.at("3-2.shard")).expect("there");
    let whole = bytes.clone();
    bytes.truncate(bytes.len() / 2);
    std::fs::write(desk.at("3-2.shard"), &bytes).expect("written");
    desk.good(&line);
    assert!(std::fs::read(desk.at("3-2.shard")).expect("there") == whole);
    desk.good(&line.replace("--chunks 400", "--chunks 40"));
    assert!(std::fs::read(desk.at("3-2.shard")).expect("there") != whole);
}
