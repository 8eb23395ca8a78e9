//! `octavo diff`: verdicts, exit codes and output.

use super::{bad, folder, json, octavo, stderr, stdout, variant};
use gguf_rs_lite::{Gguf, OpenOptions, Writer};
use octavo_fixtures::{committed_goldens, shared, workspace_root};

fn path(relative: &str) -> String {
    workspace_root()
        .join(relative)
        .to_str()
        .expect("UTF-8")
        .to_owned()
}

const DEMO: &str = "src/engine/demo/tiny-qwen3-Q4_K_M.gguf";

/// Runs a comparison that must give this exit code; returns stdout.
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

/// The error of each KV cache type is within its bounds, and no larger than expected.
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
    let all = ["f32", "f16", "bf16", "q8_0", "f8_e4m3"].map(nmse);
    assert!(
        all.is_sorted_by(|a, b| a < b) && all[3] < 1e-4 && all[4] < 3e-3,
        "{all:?}"
    );
}

/// The text of a pipe, which can be read only once, is the same for both sides.
#[test]
fn a_text_from_a_pipe_is_the_same_text() {
    let args = ["diff", &path(DEMO), "--b-exec", "oracle"];
    let expected = compared(&[&args[..], &["-p", "The capital of France"]].concat(), 0);
    let mut command = octavo(&[&args[..], &["-f", "-"]].concat());
    let output = command.write_stdin("The capital of France").output();
    let output = output.expect("the program runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), expected);
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
            // every vector instruction set is this exact; a matrix unit rounds prefill to bf16
            let isa = ["--isa", "scalar", "--tol-nmse", "1e-7", "--tol-kl", "1e-6"];
            let exact = [&["diff", &model, "--against", "exact"][..], &isa].concat();
            compared(&[&exact[..], &["--reference", golden]].concat(), 0);
            // llama.cpp's own rounding error is larger than that
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
    let page = dir.path().join("page.html");
    let to_page = [&args[..], &["--html", page.to_str().expect("UTF-8")]].concat();
    let html = |code: i32| {
        let printed = compared(&to_page, code);
        (printed, std::fs::read_to_string(&page).expect("the page"))
    };
    let (out, good) = html(0);
    assert_eq!(out, "4 comparisons, 0 changed\n");
    assert!(good.contains("<p class=good>4 comparisons, 0 changed</p>"));
    assert_eq!(good.matches(">within</td>").count(), 4, "{good}");
    // an instruction set given with --isa replaces the suite's own
    let out = compared(&[&args[..], &["--isa", "scalar", "--all"]].concat(), 0);
    assert_eq!(out.matches(" / scalar: ").count(), 2, "{out}");
    assert!(out.ends_with("2 comparisons, 0 changed\n"), "{out}");
    let changed = variant(&dir, "changed.gguf", true, |w| {
        w.set("qwen3.rope.freq_base", 10_000.0f32);
    });
    std::fs::rename(changed, &model).expect("renamed");
    let (out, outside) = html(1);
    assert!(outside.contains("<p class=bad>4 comparisons, 4 changed</p>"));
    assert_eq!(outside.matches("<tr class=bad>").count(), 4, "{outside}");
    assert!(
        out.starts_with("CHANGED model / fox / ") && out.ends_with("4 comparisons, 4 changed\n"),
        "{out}"
    );
    std::fs::write(&suite, "models = 3").expect("written");
    assert!(bad(&args, 2).contains("suite.toml: TOML parse error"));
    assert!(bad(&["diff", "--bless", "-p", "x"], 2).contains("--suite"));
}

#[test]
fn options_without_effect_on_a_suite_are_refused() {
    let suite = path("reference/suite.toml");
    for more in [
        "-p x",
        "-f x",
        "--tokens 1",
        "--no-special",
        "--a-isa scalar",
        "--b-device cpu",
        "--b-exec oracle",
        "--against exact",
        "--tol-nmse 1",
        "--tol-kl 1",
        "--llama-cpp .",
        "--keep x",
        "--html x --bless",
        "--json --bless",
        "--all --bless",
        "--html x --shard 1/2 --out y",
        "--json --shard 1/2 --out y",
    ] {
        let more: Vec<&str> = more.split(' ').collect();
        let line = bad(&[&["diff", "--suite", &suite], &more[..]].concat(), 2);
        assert!(line.contains(more[0]), "{line}");
    }
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

/// Returns the path of one of the shared mixtures of experts; `None` without it.
fn mixture(name: &str) -> Option<String> {
    let path = shared(&format!("arch/models/{name}.gguf"))?;
    Some(path.to_str().expect("UTF-8").to_owned())
}

/// Writes a copy of a mixture in which the router of layer 1 has expert 0 in the place of expert 1,
/// so that tokens are routed to wrong experts.
fn misrouted(dir: &tempfile::TempDir, model: &str) -> String {
    let gguf = Gguf::open(model.as_ref(), &OpenOptions::default()).expect("a model");
    let path = dir.path().join("misrouted.gguf");
    let mut writer = Writer::new();
    for (key, value) in gguf.keys() {
        writer.set(key, value);
    }
    for t in gguf.tensors() {
        let mut bytes = gguf.data(t).to_vec();
        if t.name == "blk.1.ffn_gate_inp.weight" {
            let row = bytes.len() / t.dims[1] as usize;
            let (first, second) = bytes.split_at_mut(row);
            first.swap_with_slice(&mut second[..row]);
        }
        writer.tensor(&t.name, &t.dims, t.ty, bytes);
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("it is written");
    std::fs::write(&path, bytes).expect("it is written");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn choices_of_experts_are_compared_and_can_be_the_first_models() {
    let Some(model) = mixture("qwen3moe-F32") else {
        return;
    };
    let dir = folder();
    let other = misrouted(&dir, &model);
    let page = dir.path().join("page.html");
    let page = page.to_str().expect("UTF-8");
    let args = ["diff", &model, &other, "--tokens", "5,17,33,2,61"];

    let text = compared(&args, 1);
    for part in [
        "routing: ",
        "first other choice: ffn_moe_topk-1, position ",
        "other experts follow from what differs before; --same-routing gives A's experts to B",
        "first divergence: ffn_moe_logits-1",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let place = |part: &str| text.find(part).expect("it is there");
    assert!(place("routing: ") < place("first divergence: "), "{text}");

    let same = [&args[..], &["--same-routing", "--html", page, "--json"]].concat();
    let out: serde_json::Value = serde_json::from_str(&compared(&same, 1)).expect("JSON");
    let routing = &out["routing"];
    assert_eq!(routing["same_routing"], true);
    let differing = routing["differing"].as_u64().expect("a number");
    assert!(
        differing > 0 && routing["choices"].as_u64() > Some(differing),
        "{routing}"
    );
    assert_eq!(
        (&routing["layers"][0]["name"], &routing["layers"][1]),
        (&"ffn_moe_topk-1".into(), &serde_json::Value::Null),
        "no other layer goes astray: {routing}"
    );
    assert_eq!(routing["layers"][0]["tokens"], differing);
    assert_eq!(routing["first"]["name"], "ffn_moe_topk-1");
    assert!(routing["first"]["a"] != routing["first"]["b"], "{routing}");
    let html = std::fs::read_to_string(page).expect("a page");
    assert!(html.contains("Routing") && html.contains("B went on with the experts that A chose"));

    let two = ["diff", &model, "--tokens", "5,17", "--b-exec", "oracle"];
    let text = compared(&[&two[..], &["--same-routing"]].concat(), 0);
    assert!(text.contains("choices of experts are the same\n"), "{text}");
    assert!(
        text.ends_with("verdict: within the bounds of every tensor\n"),
        "{text}"
    );
}

#[test]
fn the_same_routing_is_refused_where_there_is_none() {
    let two = [
        "diff",
        &path(DEMO),
        &path(DEMO),
        "-p",
        "x",
        "--same-routing",
    ];
    let line = bad(&two, 2);
    assert!(line.contains("chooses no experts"), "{line}");
    let golden = committed_goldens().join("tiny-qwen3-Q4_K_M/sum.safetensors");
    let golden = golden.to_str().expect("UTF-8");
    let recorded = ["diff", &path(DEMO), "--same-routing", "--reference", golden];
    let line = bad(&recorded, 2);
    assert!(line.contains("has no choices of experts"), "{line}");
    for other in [["--llama-cpp", "/"], ["--suite", "reference/suite.toml"]] {
        let line = bad(&[&["diff", "--same-routing"], &other[..]].concat(), 2);
        assert!(line.contains("--same-routing"), "{line}");
    }
}

/// Writes a choice of experts of the last layer as llama-eval-callback prints it.
fn printed_choice(dir: &tempfile::TempDir, experts: &[u64]) -> String {
    let path = dir.path().join("printed.txt");
    let ids: Vec<String> = experts.iter().map(|id| format!("{id}.0000")).collect();
    let text = format!(
        "common_debug_cb_eval: ffn_moe_topk-1 = (i32) VIEW(ffn_moe_argsort-1{{6, 1, 1, 1}}, }}) = \
         {{2, 1, 1, 1}}\n    [\n        [\n            [ {} ],\n        ],\n    ]\n    sum = 1.0\n",
        ids.join(", ")
    );
    std::fs::write(&path, text).expect("it is written");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn choices_that_a_recording_has_are_compared_and_gone_on_with() {
    let Some(model) = mixture("qwen3moe-F32") else {
        return;
    };
    let dir = folder();
    let diff = |recording: &str, more: &[&str], exit: i32| {
        let args = ["diff", &model, "-p", "3+4", "--reference", recording];
        compared(&[&args[..], more].concat(), exit)
    };
    // one expert is chosen twice
    let out = diff(&printed_choice(&dir, &[4, 4]), &["--json"], 1);
    let out: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let reference = &out["references"][0];
    assert_eq!(reference["first_divergence"]["name"], "ffn_moe_topk-1");
    let first = &reference["routing"]["first"];
    assert_eq!(
        (&first["cause"], &first["tie"]),
        (&"unexplained".into(), &().into())
    );
    let ours: Vec<u64> = serde_json::from_value(first["a"].clone()).expect("ids");

    let text = diff(&printed_choice(&dir, &ours), &["--same-routing"], 0);
    let same = "routing: the only choice of experts is the same\nverdict: within tolerance";
    assert!(text.contains(same), "{text}");

    let page = dir.path().join("page.html");
    let page = page.to_str().expect("UTF-8");
    let turned = printed_choice(&dir, &[ours[1], ours[0]]);
    let text = diff(&turned, &["--same-routing", "--html", page], 1);
    for part in [
        "routing: 1 of 1 choices of experts differ (1 only in order): 1 token in ffn_moe_topk-1; \
         1 unexplained\n",
        &format!("theirs [{}, {}]; unexplained: scores ", ours[1], ours[0]),
        "the model went on with the experts of the recording: 0 tensors behind",
        "verdict: outside tolerance: first at ffn_moe_topk-1",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let html = std::fs::read_to_string(page).expect("a page");
    assert!(html.contains("Routing") && html.contains("went on with the experts of the recording"));
}
