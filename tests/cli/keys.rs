//! Options that override keys of the model's metadata.

use super::{bad, folder, good, json, variant};

/// Returns the printed logits of a text.
fn logits(args: &[&str]) -> String {
    good(&[&["logits", "-p", "1+1=2 and", "--json"], args].concat())
}

/// A file with these keys gives the same logits as the options for them, and the unchanged file
/// gives others.
#[test]
fn options_say_what_a_file_with_these_keys_says() {
    let dir = folder();
    let plain = variant(&dir, "plain.gguf", true, |_| {});
    let plain = plain.to_str().expect("UTF-8");
    let as_it_is = logits(&[plain]);
    type Change = fn(&mut gguf_rs_lite::Writer<'_>);
    let cases: [(&str, Change, &[&str]); 4] = [
        (
            "base",
            |writer| {
                writer.set("qwen3.rope.freq_base", 5000f32);
            },
            &[
                "--rope-freq-base 5000",
                "--override-kv qwen3.rope.freq_base=float:5000",
            ],
        ),
        (
            "linear",
            |writer| {
                writer.set("qwen3.rope.scaling.factor", 4f32);
            },
            &[
                "--rope-freq-scale 0.25",
                "--rope-scale 4",
                "--rope-scaling linear --rope-scale 4",
            ],
        ),
        (
            "yarn",
            |writer| {
                writer.set("qwen3.rope.scaling.type", "yarn");
                writer.set("qwen3.rope.scaling.factor", 4f32);
                writer.set("qwen3.rope.scaling.original_context_length", 64u32);
                writer.set("qwen3.rope.scaling.attn_factor", 1.5f32);
            },
            &[
                "--rope-scaling yarn --rope-freq-scale 0.25 --yarn-orig-ctx 64 \
                 --yarn-attn-factor 1.5",
                "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 64 --yarn-attn-factor 1.5 \
                 --yarn-ext-factor -1 --yarn-beta-fast 32 --yarn-beta-slow 1",
            ],
        ),
        (
            "slow",
            |writer| {
                writer.set("qwen3.rope.scaling.type", "yarn");
                writer.set("qwen3.rope.scaling.factor", 2f32);
                writer.set("qwen3.rope.scaling.yarn_beta_fast", 8f32);
                writer.set("qwen3.rope.scaling.yarn_beta_slow", 2f32);
            },
            &["--rope-scaling yarn --rope-scale 2 --yarn-beta-fast 8 --yarn-beta-slow 2"],
        ),
    ];
    for (name, change, lines) in cases {
        let file = variant(&dir, &format!("{name}.gguf"), true, change);
        let expected = logits(&[file.to_str().expect("UTF-8")]);
        assert_ne!(expected, as_it_is, "{name}");
        for line in lines {
            let options: Vec<&str> = line.split(' ').collect();
            assert_eq!(
                logits(&[&[plain], &options[..]].concat()),
                expected,
                "{line}"
            );
        }
    }
    // overrides that equal the file change nothing
    assert_eq!(
        logits(&[plain, "--override-kv", "general.name=str:x"]),
        as_it_is
    );
}

#[test]
fn every_command_that_loads_a_model_takes_them() {
    let dir = folder();
    let file = variant(&dir, "model.gguf", true, |_| {});
    let file = file.to_str().expect("UTF-8");
    let text = dir.path().join("text.txt");
    std::fs::write(&text, "1+1=2 and 2+2=4. ".repeat(200)).expect("written");
    let text = text.to_str().expect("UTF-8");
    let out = dir.path().join("out");
    let out = out.to_str().expect("UTF-8");
    let bad_base = ["--override-kv", "qwen3.rope.freq_base=int:7"];
    for command in [
        &["run", file, "-p", "x"][..],
        &["chat", file, "--no-history"],
        &["serve", file, "--port", "0"],
        &["inspect", file],
        &["tokenize", file, "-p", "x"],
        &["logits", file, "-p", "x"],
        &["embed", file, "-p", "x"],
        &["perplexity", file, "-f", text, "-c", "64"],
        &["bench", file, "--no-limits", "-p", "4", "-n", "1"],
        &["imatrix", file, "-f", text, "-o", out],
        &["quantize", file, out, "Q8_0", "--allow-requantize"],
    ] {
        let error = bad(&[command, &bad_base[..]].concat(), 1);
        let types = "is of type f32: cannot be given a u32";
        assert!(error.contains(types), "{command:?}: {error}");
    }
    let error = bad(
        &[
            &["diff", file, "-p", "x", "--a-exec", "oracle"],
            &bad_base[..],
        ]
        .concat(),
        2,
    );
    assert!(error.contains("is of type f32"), "{error}");
    let shown = good(&["inspect", file, "--override-kv", "general.name=str:another"]);
    assert!(shown.contains("another"), "{shown}");
}

#[test]
fn what_cannot_be_overridden_is_refused_in_a_line() {
    for (line, code, says) in [
        ("--override-kv a", 2, "expected KEY=TYPE:VALUE"),
        ("--override-kv a=u8:1", 2, "int, float, bool or str"),
        (
            "--override-kv a=int:x",
            2,
            "expected an integer as the value of a",
        ),
        ("--rope-scaling twice", 2, "--rope-scaling"),
        ("--rope-scale 0", 2, "--rope-scale"),
        (
            "--rope-scale 2 --rope-freq-scale 0.5",
            2,
            "--rope-freq-scale",
        ),
        ("--yarn-ext-factor 0.5", 1, "yarn_ext_factor"),
        (
            "--override-kv tokenizer.ggml.tokens=str:x",
            1,
            "is of type an array of string",
        ),
        (
            "--override-kv qwen3.block_count=int:-1",
            1,
            "value -1 does not fit u32",
        ),
        (
            "--override-kv qwen3.block_count=int:7000",
            1,
            "qwen3.block_count",
        ),
        ("--override-kv general.architecture=str:none", 1, "none"),
    ] {
        let options: Vec<&str> = line.split(' ').collect();
        let error = bad(&[&["run", "-p", "x"], &options[..]].concat(), code);
        assert!(error.contains(says), "{line}: {error}");
    }
}

/// The settings of a folder can be overridden, too.
#[test]
fn folders_have_keys() {
    let dir = folder();
    let file = variant(&dir, "model.gguf", true, |_| {});
    let folder = dir.path().join("folder");
    let (file, made) = (
        file.to_str().expect("UTF-8"),
        folder.to_str().expect("UTF-8"),
    );
    good(&["quantize", file, made, "awq", "--no-search"]);
    let plain = json(&["logits", made, "-p", "1+1=", "--json"]);
    let other = json(&[
        "logits",
        made,
        "-p",
        "1+1=",
        "--json",
        "--rope-freq-base",
        "5000",
    ]);
    assert_ne!(plain, other);
}
