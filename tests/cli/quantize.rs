//! `octavo quantize` and `octavo imatrix`: files, output and refusals.

use std::path::{Path, PathBuf};
use std::process::Output;

use octavo_fixtures::{shared, workspace_root};
use sha2::{Digest, Sha256};

use super::{bad, good, stderr, stdout};

fn octavo(args: &[&str]) -> Output {
    super::octavo(args).output().expect("the program runs")
}

/// Runs a command that must fail; returns its message.
fn refused(args: &[&str], code: i32) -> String {
    bad(args, code)["octavo: error: ".len()..].to_owned()
}

fn copy_of(model: &Path, folder: &Path) -> PathBuf {
    let path = folder.join("in.gguf");
    std::fs::copy(model, &path).unwrap();
    path
}

fn path(p: &Path) -> &str {
    p.to_str().unwrap()
}

/// Asserts refusals of a valid input, and of an older output of type Q8_0.
fn refuses_what_must_not_be(folder: &Path, i: &str, o: &str) {
    assert!(
        refused(&["quantize", i, i, "Q8_0", "--force"], 1)
            .ends_with("is the input itself: expected another file")
    );
    let dotted = folder.join(".").join("in.gguf");
    assert!(
        refused(&["quantize", i, path(&dotted), "Q8_0", "--force"], 1)
            .contains("is the input itself")
    );
    let none = folder.join("none.gguf");
    let error = refused(&["quantize", i, path(&none), "IQ2_XXS"], 1);
    assert!(
        error.starts_with("tensor blk.0.attn_k.weight: IQ2_XXS needs an importance matrix"),
        "{error}"
    );
    let error = refused(&["quantize", o, path(&none), "Q4_0"], 1);
    assert!(
        error.ends_with("is Q8_0 already: quantizing it again needs --allow-requantize"),
        "{error}"
    );
    assert!(!none.exists());
    assert!(
        refused(&["quantize", i, path(&none), "Q9"], 2)
            .starts_with("type \"Q9\": expected one of F32, F16")
    );
    assert!(refused(&["quantize", i, path(&none)], 2).starts_with("no TYPE: expected IN OUT TYPE"));
    assert!(
        refused(&["quantize", i, o, "Q4_0", "--tensor-type", "ffn"], 2)
            .contains("expected NAME=TYPE")
    );
    assert!(
        refused(&["quantize", i, o, "Q4_0", "--tensor-type", "(=Q4_0"], 2)
            .contains("unclosed group")
    );
    assert!(
        refused(&["quantize", i, o, "Q4_0", "--output-tensor-type", "x"], 2)
            .contains("expected one of F32")
    );
    assert!(
        refused(&["quantize", "/nonexistent.gguf", o, "Q4_0"], 1).contains("/nonexistent.gguf")
    );
}

#[test]
fn a_model_is_quantized_and_refused_where_it_must_be() {
    let Some(models) = shared("models") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let input = copy_of(&models.join("tiny-qwen3-f16.gguf"), folder.path());
    let out = folder.path().join("out.gguf");
    let (i, o) = (path(&input), path(&out));

    let output = octavo(&["quantize", i, o, "q4_k_m", "-t", "2"]);
    let stderr = stderr(&output);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{stderr}"
    );
    assert_eq!(
        std::fs::read(&out).unwrap(),
        std::fs::read(models.join("tiny-qwen3-Q4_K_M.gguf")).unwrap()
    );
    let tensors = stderr.lines().filter(|line| line.starts_with('[')).count();
    assert_eq!(tensors, 46, "{stderr}");
    assert!(stderr.contains("token_embd.weight"), "{stderr}");
    assert!(
        stderr.contains("5.01 MiB, 16.02 bits per weight -> 1.56 MiB, 4.99 bits per weight"),
        "{stderr}"
    );

    assert!(
        refused(&["quantize", i, o, "Q4_K_M"], 1)
            .ends_with("out.gguf: is there already: --force replaces it")
    );
    assert!(
        octavo(&["quantize", i, o, "Q8_0", "--force"])
            .status
            .success()
    );
    assert_eq!(
        std::fs::read(&out).unwrap(),
        std::fs::read(models.join("tiny-qwen3-Q8_0.gguf")).unwrap()
    );
    refuses_what_must_not_be(folder.path(), i, o);
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        2,
        "nothing else is left behind"
    );
}

#[test]
fn a_dry_run_prints_a_table_and_writes_nothing() {
    let Some(models) = shared("models") else {
        return;
    };
    let model = models.join("tiny-qwen3-f16.gguf");
    let output = octavo(&["quantize", path(&model), "IQ2_M", "--dry-run"]);
    let (stdout, stderr) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stdout.lines().count(), 47, "{stdout}");
    assert!(
        stdout
            .lines()
            .next()
            .unwrap()
            .starts_with("output_norm.weight "),
        "{stdout}"
    );
    assert!(
        stdout
            .lines()
            .last()
            .unwrap()
            .contains("bits per weight -> "),
        "{stdout}"
    );
    assert!(stderr.contains("needs an importance matrix"), "{stderr}");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    assert!(
        octavo(&["quantize", path(&model), path(&out), "Q4_0", "--dry-run"])
            .status
            .success()
    );
    assert!(!out.exists());
}

#[test]
fn an_importance_matrix_is_made_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let (text_file, out) = (folder.path().join("text"), folder.path().join("im.gguf"));
    std::fs::write(
        &text_file,
        "It was the best of times, it was the worst of times.\n".repeat(60),
    )
    .unwrap();
    let output = octavo(&[
        "imatrix",
        "-f",
        path(&text_file),
        "-o",
        path(&out),
        "-c",
        "64",
        "--chunks",
        "2",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("2 chunks of 64 tokens"));
    let short = refused(&["imatrix", "-p", "short", "-o", path(&out)], 1);
    assert!(
        short.contains("expected at least 1024 (two chunks of 512)"),
        "{short}"
    );
    let Some(models) = shared("models") else {
        return;
    };
    let (model, small) = (
        models.join("tiny-qwen3-f16.gguf"),
        folder.path().join("small.gguf"),
    );
    let output = octavo(&[
        "quantize",
        path(&model),
        path(&small),
        "IQ2_XS",
        "--imatrix",
        path(&out),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
}

/// llama-quantize's numbers of types, and its other options.
#[test]
fn numbers_and_files_say_what_names_say() {
    let demo = octavo_fixtures::workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
    let common = ["quantize", path(&demo), "--dry-run", "--allow-requantize"];
    let dry = |more: &[&str]| {
        let output = octavo(&[&common[..], more].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let named = dry(&["Q8_0"]);
    assert_eq!(dry(&["7"]), named);
    let folder = tempfile::tempdir().unwrap();
    let types = folder.path().join("types");
    std::fs::write(&types, "ffn_down=Q6_K\n attn_v=F16\n").unwrap();
    let from_file = dry(&["Q8_0", "--tensor-type-file", path(&types)]);
    let options = [
        "--tensor-type",
        "ffn_down=Q6_K",
        "--tensor-type",
        "attn_v=F16",
    ];
    assert_eq!(from_file, dry(&[&["Q8_0"], &options[..]].concat()));
    assert_ne!(from_file, named);
    std::fs::write(&types, "ffn_down").unwrap();
    let error = refused(
        &[&common[..], &["7", "--tensor-type-file", path(&types)]].concat(),
        1,
    );
    assert!(error.contains("expected NAME=TYPE"), "{error}");
    let error = refused(
        &[&common[..], &["7", "--include-weights", "ffn"]].concat(),
        2,
    );
    assert!(
        error.contains("--include-weights has no effect: expected --imatrix"),
        "{error}"
    );
}

#[test]
fn threads_may_be_named_where_llama_quantize_takes_them() {
    let demo = octavo_fixtures::workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str, threads: &[&str]| {
        let out = folder.path().join(name);
        let all = [
            "quantize",
            "--allow-requantize",
            path(&demo),
            path(&out),
            "7",
        ];
        let output = octavo(&[&all[..], threads].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        std::fs::read(&out).unwrap()
    };
    assert!(written("a.gguf", &["2"]) == written("b.gguf", &["-t", "1"]));
    let both = ["quantize", path(&demo), "c.gguf", "7", "2", "-t", "2"];
    let error = refused(&both, 2);
    assert!(error.contains("cannot be used with"), "{error}");
}

/// Files of llama-quantize --keep-split, of the reference llama.cpp, in Q4_K_M from the demo model
/// in F32, split by 12 tensors: the beginnings of their SHA-256.
const KEPT: [&str; 4] = ["3e9b780f", "6ee40916", "a96dba7a", "fdaf86d3"];

#[test]
fn parts_are_kept_as_llama_quantize_keeps_them() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let model = workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
    let f32 = at("f32.gguf");
    good(&[
        "quantize",
        path(&model),
        path(&f32),
        "F32",
        "--allow-requantize",
    ]);
    good(&[
        "gguf",
        "split",
        path(&f32),
        path(&at("p")),
        "--split-max-tensors",
        "12",
    ]);
    let (first, out) = (at("p-00001-of-00004.gguf"), at("out.gguf"));
    let args = [
        "quantize",
        path(&first),
        path(&out),
        "Q4_K_M",
        "--keep-split",
    ];
    good(&args);
    let hash = |no: usize| {
        let bytes = std::fs::read(at(&format!("out-{no:05}-of-00004.gguf"))).unwrap();
        let digest = Sha256::digest(bytes);
        let hex = digest[..4].iter().map(|byte| format!("{byte:02x}"));
        hex.collect::<String>()
    };
    assert_eq!([1, 2, 3, 4].map(hash), KEPT);
    assert!(!out.exists());
    assert!(refused(&args, 1).contains("out-00001-of-00004.gguf: is there already: --force"));
}
