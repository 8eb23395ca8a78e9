//! `octavo diff`: verdicts, exit codes and what is printed.

use super::{bad, folder, json, octavo, stderr, stdout, variant};
use octavo_fixtures::{committed_goldens, workspace_root};

fn path(relative: &str) -> String {
    workspace_root()
        .join(relative)
        .to_str()
        .expect("UTF-8")
        .to_owned()
}

const DEMO: &str = "src/engine/demo/tiny-qwen3-Q4_K_M.gguf";

/// Runs a comparison that must come to a result; gives stdout.
fn compared(args: &[&str], code: i32) -> String {
    let output = octavo(args).output().expect("the program runs");
    assert_eq!(
        output.status.code(),
        Some(code),
        "{args:?}: {}{}",
        stdout(&output),
        stderr(&output)
    );
    stdout(&output)
}

/// What each type of cache rounds is in the bounds, and no more than that.
#[test]
fn every_type_of_cache_keeps_to_its_bounds() {
    let nmse = |ty: &str| {
        let args = [
            "diff",
            &path(DEMO),
            "-p",
            "The capital of France",
            "--isa",
            "scalar",
            "--b-exec",
            "oracle",
        ];
        let out = compared(&[&args[..], &["--kv-type", ty, "--json"]].concat(), 0);
        let out: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        out["logits"]["nmse"]
            .as_f64()
            .unwrap_or_else(|| panic!("{out}"))
    };
    let [f32, f16, bf16, q8_0] = ["f32", "f16", "bf16", "q8_0"].map(nmse);
    assert!(
        f32 < f16 && f16 < bf16 && bf16 < q8_0 && q8_0 < 1e-4,
        "{f32:e} {f16:e} {bf16:e} {q8_0:e}"
    );
}

#[test]
fn committed_goldens_are_within_tolerance_and_exact_is_closer() {
    for model in [
        DEMO,
        "reference/models/rnd-llama-Q4_K_M.gguf",
        "reference/models/rnd-qwen2-Q6_K.gguf",
    ] {
        let model = path(model);
        let name = std::path::Path::new(&model)
            .file_stem()
            .expect("a name")
            .to_str()
            .expect("UTF-8");
        for prompt in ["sum", "capital"] {
            let golden = committed_goldens().join(format!("{name}/{prompt}.safetensors"));
            let golden = golden.to_str().expect("UTF-8");
            let out = compared(&["diff", &model, "--reference", golden], 0);
            assert!(out.contains("allowed 4.9e-3 (the default for Q"), "{out}");
            // every vector instruction set is this exact; a matrix unit rounds prompts to bf16
            let isa = ["--isa", "scalar", "--tol-nmse", "1e-7", "--tol-kl", "1e-6"];
            let exact = [&["diff", &model, "--against", "exact"][..], &isa].concat();
            compared(&[&exact[..], &["--reference", golden]].concat(), 0);
            // llama.cpp's own rounding is larger than that
            let strict = [
                "diff",
                &model,
                "--tol-nmse",
                "1e-9",
                "--reference",
                golden,
                "--json",
            ];
            let out: serde_json::Value = serde_json::from_str(&compared(&strict, 1)).expect("JSON");
            assert_eq!(out["verdict"], "outside");
            assert_eq!(
                out["references"][0]["first_divergence"]["name"],
                "result_output"
            );
        }
    }
}

#[test]
fn a_wrong_model_text_or_file_is_said_plainly() {
    let golden = committed_goldens().join("tiny-qwen3-Q4_K_M/sum.safetensors");
    let golden = golden.to_str().expect("UTF-8");
    let dir = folder();
    let out = compared(
        &[
            "diff",
            &path("reference/models/rnd-llama-Q4_K_M.gguf"),
            "--reference",
            golden,
        ],
        1,
    );
    assert!(out.contains("verdict: outside tolerance"), "{out}");
    assert!(
        compared(
            &["diff", &path(DEMO), "--reference", golden, "-p", "1+1="],
            0
        )
        .contains("within")
    );
    let line = bad(
        &["diff", &path(DEMO), "--reference", golden, "-p", "1+2="],
        2,
    );
    assert!(
        line.contains("other tokens than the text: expected id 20 at position 2, got id 19"),
        "{line}"
    );
    let line = bad(&["diff", &path(DEMO), "--reference", &path(DEMO)], 2);
    assert!(line.contains("not a reference but a GGUF model"), "{line}");
    let line = bad(&["diff", &path(DEMO), "--reference", &path("README.md")], 2);
    assert!(
        line.contains("README.md: not a reference but none of these"),
        "{line}"
    );
    assert!(bad(&["diff", &path(DEMO), "--reference", "/nonexistent"], 2).contains("/nonexistent"));
    assert!(bad(&["diff", "/nonexistent", "--reference", golden], 2).contains("/nonexistent"));
    assert!(bad(&["diff", &path(DEMO), "-p", "x"], 2).contains("nothing to compare with"));
    assert!(bad(&["diff", &path(DEMO), "--a-exec", "oracle"], 2).contains("no text"));
    let programs = [
        "diff",
        &path(DEMO),
        "--llama-cpp",
        dir.path().to_str().expect("UTF-8"),
        "-p",
        "x",
    ];
    assert!(bad(&programs, 2).contains("llama-results: not found"));
}

#[test]
fn a_changed_file_is_found_out_with_its_address() {
    let dir = folder();
    let other = variant(&dir, "other.gguf", true, |w| {
        w.set("qwen3.rope.freq_base", 10_000.0f32);
    });
    let other = other.to_str().expect("UTF-8");
    let args = [
        "diff",
        &path(DEMO),
        other,
        "-p",
        "The capital of France",
        "--json",
    ];
    let out: serde_json::Value = serde_json::from_str(&compared(&args, 1)).expect("JSON");
    assert_eq!(
        (&out["verdict"], &out["first_divergence"]["name"]),
        (&"diverged".into(), &"Qcur-0".into())
    );
    assert_eq!(
        (
            &out["first_divergence"]["layer"],
            &out["first_divergence"]["occurrence"]
        ),
        (&0.into(), &1.into())
    );
    let text = compared(&args[..5], 1);
    assert!(
        text.contains("first divergence: Qcur-0 #2, position "),
        "{text}"
    );
    assert!(text.ends_with("verdict: diverged\n"), "{text}");
}

#[test]
fn instruction_sets_and_the_oracle_agree_within_bounds() {
    let args = [
        "diff",
        &path(DEMO),
        "-p",
        "1+1=",
        "--a-isa",
        "scalar",
        "--b-exec",
        "oracle",
    ];
    assert!(compared(&args, 0).ends_with("verdict: within the bounds of every tensor\n"));
    let args = ["diff", &path(DEMO), &path(DEMO), "-p", "1+1=", "--json"];
    let out = json(&args);
    assert_eq!(
        (&out["verdict"], &out["first_divergence"]),
        (&"identical".into(), &serde_json::Value::Null)
    );
}

#[test]
fn a_suite_is_blessed_holds_and_says_what_changed() {
    compared(&["diff", "--suite", &path("reference/suite.toml")], 0);
    let dir = folder();
    let model = dir.path().join("model.gguf");
    std::fs::copy(path(DEMO), &model).expect("copied");
    let suite = dir.path().join("suite.toml");
    let text = "models = [\"model.gguf\"]\ngoldens = \"goldens\"\nisa = \
                [\"auto\", \"scalar\"]\ntol_nmse = 1e-4\n\
                [prompts]\nsum = \"1+1=\"\nfox = \"the red fox\"\n";
    std::fs::write(&suite, text).expect("written");
    let args = ["diff", "--suite", suite.to_str().expect("UTF-8")];
    let line = bad(&args, 2);
    assert!(line.contains("model/fox.safetensors: no golden"), "{line}");
    let blessed = compared(&[&args[..], &["--bless"]].concat(), 0);
    assert_eq!(blessed.lines().count(), 2, "{blessed}");
    let made_by =
        std::fs::read_to_string(dir.path().join("goldens/model/sum.cmd.txt")).expect("it is there");
    assert!(
        made_by.starts_with(concat!("octavo ", env!("CARGO_PKG_VERSION"))),
        "{made_by}"
    );
    assert_eq!(compared(&args, 0), "4 comparisons, 0 changed\n");
    let changed = variant(&dir, "changed.gguf", true, |w| {
        w.set("qwen3.rope.freq_base", 10_000.0f32);
    });
    std::fs::rename(changed, &model).expect("renamed");
    let out = compared(&args, 1);
    assert!(
        out.starts_with("CHANGED model / fox / ") && out.ends_with("4 comparisons, 4 changed\n"),
        "{out}"
    );
    std::fs::write(&suite, "models = 3").expect("written");
    assert!(bad(&args, 2).contains("suite.toml: TOML parse error"));
    assert!(bad(&["diff", "--bless", "-p", "x"], 2).contains("--suite"));
}

#[test]
fn the_page_is_complete_and_loads_nothing() {
    let dir = folder();
    let page = dir.path().join("page.html");
    let page = page.to_str().expect("UTF-8");
    let golden = committed_goldens().join("tiny-qwen3-Q4_K_M/sum.safetensors");
    for args in [
        &[
            "diff",
            &path(DEMO),
            "--reference",
            golden.to_str().expect("UTF-8"),
            "--html",
            page,
        ][..],
        &[
            "diff",
            &path(DEMO),
            &path(DEMO),
            "-p",
            "<b>1+1=",
            "--html",
            page,
        ],
    ] {
        compared(args, 0);
        let html = std::fs::read_to_string(page).expect("it is there");
        assert!(
            html.starts_with("<!doctype html>")
                && html.contains("<svg")
                && html.ends_with("</html>\n")
        );
        assert!(
            !html.contains("<script") && !html.contains("src=") && !html.contains("<b>"),
            "{html}"
        );
    }
}
