//! Hugging Face folders from outside: made, run, looked at, converted, and refused.

use std::path::Path;

use super::{bad, folder, good, octavo, stderr, variant};

fn path(p: &Path) -> &str {
    p.to_str().expect("a temporary path is text")
}

#[test]
fn a_folder_is_made_run_and_converted() {
    let dir = folder();
    let model = variant(&dir, "model.gguf", true, |_| {});
    let (awq, file) = (dir.path().join("awq"), dir.path().join("q4_1.gguf"));
    let (m, a, f) = (path(&model), path(&awq), path(&file));
    let text = dir.path().join("text.txt");
    std::fs::write(&text, "Once there was a red fox. The fox lived under the tree.\n3+4=7\n".repeat(30))
        .expect("written");

    let error = bad(&["quantize", m, a, "awq"], 2);
    assert!(error.contains("-f FILE") && error.contains("--no-search"), "{error}");
    assert!(bad(&["quantize", m, a, "awq", "--no-search", "--imatrix", m], 2).contains("--imatrix has no effect"));
    assert!(bad(&["quantize", m, a, "Q4_0", "--group", "64"], 2).contains("expected the type awq"));
    assert!(bad(&["quantize", m, a, "awq", "--no-search", "--group", "48"], 1).contains("32, 64 or 128"));
    assert!(!awq.exists(), "nothing is left behind");
    let output = octavo(&["quantize", m, a, "AWQ", "-f", path(&text), "--group", "64"]).output().expect("runs");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        stderr(&output).lines().filter(|line| line.contains("without scales")).count(),
        12,
        "{}",
        stderr(&output)
    );
    assert!(bad(&["quantize", m, a, "awq", "--no-search"], 1).contains("is there already"));

    assert_eq!(good(&["run", a, "-p", "1+1=", "-n", "1"]), "2");
    let shown = good(&["inspect", a]);
    assert!(shown.contains("Hugging Face folder, 1 files of weights") && shown.contains("AWQ_G64"), "{shown}");
    let output = octavo(&["convert", a, f]).output().expect("runs");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("AWQ_G64  -> Q4_1    zero points within 0.00"), "{}", stderr(&output));
    assert_eq!(good(&["run", f, "-p", "1+1=", "-n", "1"]), "2");
    assert!(good(&["diff", a, f, "-p", "3+4="]).contains("within the bounds of every tensor"));
    assert!(bad(&["convert", a, f], 1).contains("--force replaces it"));
    assert!(bad(&["convert", m, f, "--force"], 1).contains("octavo quantize changes the type of a GGUF file"));
    assert!(bad(&["convert", a, f, "--type", "q4_0"], 2).contains("expected q4_1, f16, bf16 or f32"));
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).expect("a folder");
    assert!(bad(&["run", path(&empty), "-p", "x"], 1).contains("or give a GGUF file instead of a folder"));
}
