//! Tests of `octavo inspect`, `tokenize`, `completions` and help texts.

use octavo_text::tokenizer::{EncodeOptions, Tokenizer};

use super::{bad, folder, good, json, octavo, stderr, stdout, variant};

#[test]
fn inspect_shows_the_numbers_of_the_demo_model() {
    let text = good(&["inspect"]);
    for fact in [
        "freq_base 1000000",
        "eps 1e-6",
        "heads 4/2",
        "head_dim 64",
        "q/k norm present",
        "Q4_K",
        "KV cache",
    ] {
        assert!(text.contains(fact), "{fact} is not in\n{text}");
    }
    assert!(text.contains("This file loads and runs on "), "{text}");
    assert!(!text.contains("token_embd.weight"));
    let list = good(&["inspect", "--tensors", "--isa", "scalar"]);
    let norm = list
        .lines()
        .find(|l| l.contains("blk.0.attn_norm.weight"))
        .expect("listed");
    assert!(norm.contains("F32") && norm.contains("[256]"), "{norm}");
    let matrix = list
        .lines()
        .find(|l| l.contains("blk.0.attn_q.weight"))
        .expect("listed");
    assert!(
        matrix.contains("[256, 256]") && matrix.contains("scalar"),
        "the kernel is named: {matrix}"
    );
}

/// The precision of activations in prefill follows --prompt-bits where there are kernels for it.
#[test]
fn kernels_follow_the_bits_of_prompts() {
    for (bits, panels) in [
        ("8", "int8 panels"),
        ("13", "int13 panels"),
        ("16", "int16 panels"),
    ] {
        let ask = ["--isa", "scalar", "--prompt-bits", bits];
        let facts = json(&[&["inspect", "--json"], &ask[..]].concat());
        let kernels = facts.to_string();
        assert!(kernels.contains(panels), "{kernels}");
        let ask = [&ask[..], &["-p", "16", "-n", "0", "-r", "1", "--no-limits"]].concat();
        let records = good(&[&["bench", "-o", "json"], &ask[..]].concat());
        let records: serde_json::Value = serde_json::from_str(&records).expect("JSON");
        let kernels = records[0]["kernels"].to_string();
        assert!(kernels.contains(panels), "{kernels}");
        assert_eq!(records[0]["prompt_bits"].to_string(), bits);
    }
}

#[test]
fn inspect_json_maps_keys_to_values_and_sources() {
    let object = json(&[
        "inspect",
        "--json",
        "--tensors",
        "--kv-type",
        "f32",
        "-c",
        "100",
    ]);
    let expect = |key: &str, value: serde_json::Value, source: &str| {
        assert_eq!(
            object[key],
            serde_json::json!({"value": value, "source": source}),
            "{key}"
        );
    };
    expect("general.architecture", "qwen3".into(), "file");
    expect("qwen3.rope.freq_base", 1_000_000.0.into(), "file");
    expect(
        "qwen3.attention.layer_norm_rms_epsilon",
        1e-6.into(),
        "file",
    );
    expect("qwen3.attention.head_count_kv", 2.into(), "file");
    expect("qwen3.rope.dimension_count", 64.into(), "default");
    expect("qwen3.rope.scaling.type", "none".into(), "default");
    expect(
        "tokenizer.ggml.tokens",
        serde_json::json!({"array": "string", "len": 1024}),
        "file",
    );
    let rest = &object["octavo"];
    assert_eq!(rest["structure"]["gqa_ratio"], 2);
    assert_eq!(rest["structure"]["qk_norm"], true);
    // keys and values of 4 layers, 2 heads of 64, 4 bytes, 100 positions
    assert_eq!(rest["memory"]["kv_cache"], 2 * 4 * 2 * 64 * 4 * 100);
    assert_eq!(rest["refusals"], serde_json::json!([]));
    let n = rest["file"]["tensors"].as_u64().expect("a count");
    assert_eq!(rest["tensors"].as_array().map(|t| t.len() as u64), Some(n));
    let types = rest["types"].as_array().expect("an array");
    assert_eq!(
        types
            .iter()
            .filter_map(|t| t["tensors"].as_u64())
            .sum::<u64>(),
        n
    );
    assert!(
        types
            .iter()
            .any(|t| t["type"] == "Q4_K" && t["bits_per_weight"] == 4.5)
    );
}

#[test]
fn inspect_tells_of_experts_and_of_what_a_token_uses() {
    let dir = folder();
    let path = dir.path().join("mixture.gguf");
    std::fs::write(&path, octavo_fixtures::tiny::File::mixture().bytes()).expect("written");
    let name = path.to_str().expect("UTF-8");
    let text = good(&["inspect", name]);
    let experts = "4 of width 96 (gated by SiLU), 2 for a token, gating softmax, weights \
                   normalized, in all 2 layers";
    assert!(text.contains(experts), "{text}");
    assert!(!text.contains("feed-forward"), "{text}");
    let structure = &json(&["inspect", name, "--json"])["octavo"]["structure"];
    assert_eq!(structure["experts"]["count"], 4);
    assert_eq!(structure["experts"]["layers"], serde_json::json!([0, 1]));
    let number = |key: &str| structure[key].as_u64().expect("a number");
    // not active: half of the experts, and all rows of the embedding but one
    let unused = 2 * 2 * 3 * 64 * 96 + 64 * (number_of_tokens(name) - 1);
    assert_eq!(number("active_parameters") + unused, number("parameters"));
}

fn number_of_tokens(model: &str) -> u64 {
    let object = json(&["inspect", model, "--json"]);
    object["octavo"]["tokenizer"]["tokens"]
        .as_u64()
        .expect("a count")
}

#[test]
fn inspect_tells_of_windows_caps_sinks_and_layers_that_do_not_turn() {
    let Some(models) = octavo_fixtures::shared("arch/models") else {
        return;
    };
    for (model, facts) in [
        (
            "gpt-oss",
            &["a sink for each head", "24 positions in every other layer"][..],
        ),
        (
            "gemma2",
            &[
                "soft cap 2.5 on scores",
                "soft cap 4 on logits",
                "embeddings x 8",
            ],
        ),
        (
            "gemma3",
            &["all layers but every 6th from 5, freq_base 10000, scaling none"],
        ),
        (
            "cohere2",
            &[
                "not in every 4th layer from 3",
                "beside attention",
                "layer, eps",
            ],
        ),
        (
            "olmo2",
            &["q/k norm present (of whole rows)", "after blocks"],
        ),
        ("phi3", &["SiLU, fused", "Q, K and V fused"]),
        (
            "glm4moe",
            &["(gated by SiLU) in layer 0", "weights x 1.7, in layer 1"],
        ),
    ] {
        let path = models.join(format!("{model}-F32.gguf"));
        let text = good(&["inspect", path.to_str().expect("UTF-8")]);
        for fact in facts {
            assert!(text.contains(fact), "{fact} is not in\n{text}");
        }
    }
}

#[test]
fn inspect_explains_files_that_would_not_run() {
    let dir = folder();
    let vocabulary = variant(&dir, "vocabulary.gguf", false, |_| {});
    let name = vocabulary.to_str().expect("UTF-8");
    let text = good(&["inspect", name]);
    assert!(
        text.contains("Would refuse to load") && text.contains("qwen3.rope.freq_base"),
        "{text}"
    );
    let missing = variant(&dir, "missing.gguf", true, |w| {
        w.remove("qwen3.attention.layer_norm_rms_epsilon");
    });
    let object = json(&["inspect", missing.to_str().expect("UTF-8"), "--json"]);
    let refusal = &object["octavo"]["refusals"][0];
    assert_eq!(refusal["what"], "hyperparameters");
    assert!(
        refusal["why"]
            .as_str()
            .is_some_and(|w| w.contains("qwen3.attention.layer_norm_rms_epsilon")),
        "{refusal}"
    );
    assert_eq!(
        object["qwen3.block_count"],
        serde_json::json!({"value": 4, "source": "file"})
    );
    let foreign = variant(&dir, "foreign.gguf", true, |w| {
        w.set("general.architecture", "mamba");
    });
    let text = good(&["inspect", foreign.to_str().expect("UTF-8"), "--tensors"]);
    assert!(
        text.contains("mamba") && text.contains("blk.0.attn_q.weight"),
        "{text}"
    );
}

#[test]
fn tokenize_works_on_a_vocabulary_alone() {
    let dir = folder();
    let file = variant(&dir, "vocabulary.gguf", false, |_| {});
    let name = file.to_str().expect("UTF-8");
    assert_eq!(
        good(&["tokenize", name, "-p", "1+1="]),
        "    19 -> '1'\n    13 -> '+'\n    19 -> '1'\n    31 -> '='\n"
    );
    assert_eq!(
        good(&["tokenize", name, "-p", "1+1=", "--ids"]),
        "[19, 13, 19, 31]\n"
    );
    assert_eq!(good(&["tokenize", name, "-p", "1+1=", "--count"]), "4\n");
    assert_eq!(
        good(&["tokenize", name, "-p", "1+1=", "--count", "--ids"]),
        "[19, 13, 19, 31]\n4\n"
    );
    assert_eq!(good(&["tokenize", name, "-p", "", "--ids"]), "[]\n");
    bad(&["run", name, "-p", "x"], 1);
}

#[test]
fn special_tokens_are_recognized_unless_told_not_to() {
    let with = good(&["tokenize", "-p", "<|im_end|>", "--ids"]);
    assert_eq!(with, "[2]\n");
    let without = good(&["tokenize", "-p", "<|im_end|>", "--no-special", "--count"]);
    assert!(
        without.trim().parse::<usize>().expect("a number") > 1,
        "{without}"
    );
}

#[test]
fn prompts_are_literal_unless_escapes_are_asked_for() {
    let newline = good(&["tokenize", "-p", "a\nb", "--ids"]);
    assert_eq!(good(&["tokenize", "-p", r"a\nb", "-e", "--ids"]), newline);
    assert_ne!(good(&["tokenize", "-p", r"a\nb", "--ids"]), newline);
    assert_eq!(
        good(&["tokenize", "-p", "-e", "--count"]),
        good(&["tokenize", "--prompt=-e", "--count"])
    );
}

#[test]
fn files_and_stdin_are_read_byte_for_byte() {
    let dir = folder();
    let path = dir.path().join("text");
    let demo = variant(&dir, "demo.gguf", false, |_| {});
    let gguf = gguf_rs_lite::Gguf::open(&demo, &Default::default()).expect("sound");
    let tokenizer = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
    for bytes in [
        &b"end\n"[..],
        b"",
        b"\r\n\n",
        b"\xff\xfe half \xc3",
        b"nul\0inside",
        b"\\n",
    ] {
        std::fs::write(&path, bytes).expect("written");
        let options = EncodeOptions::PROMPT;
        let expected = format!("{:?}\n", tokenizer.encode(bytes, options).expect("encodes"));
        assert_eq!(
            good(&["tokenize", "-f", path.to_str().expect("UTF-8"), "--ids"]),
            expected,
            "{bytes:?}"
        );
        let output = octavo(&["tokenize", "-f", "-", "--ids"])
            .write_stdin(bytes)
            .output()
            .expect("runs");
        assert_eq!(
            stdout(&output),
            expected,
            "{bytes:?} on stdin: {}",
            stderr(&output)
        );
    }
}

#[cfg(unix)]
#[test]
fn a_prompt_that_is_not_utf8_is_taken_as_it_is() {
    use std::os::unix::ffi::OsStrExt;
    let raw = std::ffi::OsStr::from_bytes(b"\xff\xc3");
    let by_argument = octavo(&["tokenize", "--ids", "-p"])
        .arg(raw)
        .output()
        .expect("runs");
    let by_stdin = octavo(&["tokenize", "--ids", "-f", "-"])
        .write_stdin(&b"\xff\xc3"[..])
        .output()
        .expect("runs");
    assert_eq!(stdout(&by_argument), stdout(&by_stdin));
    assert!(by_argument.status.success());
}

#[test]
fn completions_and_help_can_be_read() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(
            good(&["completions", shell]).contains("tokenize"),
            "{shell}"
        );
    }
    let help = good(&["--help"]);
    for command in [
        "run",
        "chat",
        "inspect",
        "tokenize",
        "logits",
        "completions",
        "Examples:",
    ] {
        assert!(help.contains(command), "{command} is not in {help}");
    }
    let run = good(&["run", "--help"]);
    let flowing = run.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flowing.contains("min_p;xtc;temperature, after the logit bias"),
        "{run}"
    );
    for shared in [
        "--threads",
        "--isa",
        "--kv-type",
        "--ctx-size",
        "--no-mmap",
        "--no-repack",
        "--mlock",
        "-ctk",
        "-ctv",
    ] {
        for command in ["run", "chat", "logits"] {
            assert!(
                good(&[command, "--help"]).contains(shared),
                "{command} --help lacks {shared}"
            );
        }
    }
    assert!(good(&["--version"]).starts_with("octavo "));
}
