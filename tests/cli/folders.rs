//! Hugging Face folders: created, run, inspected, converted, and refused.

use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, OpenOptions};

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
    std::fs::write(
        &text,
        "Once there was a red fox. The fox lived under the tree.\n3+4=7\n".repeat(30),
    )
    .expect("written");

    let error = bad(&["quantize", m, a, "awq"], 2);
    assert!(
        error.contains("-f FILE") && error.contains("--no-search"),
        "{error}"
    );
    assert!(
        bad(&["quantize", m, a, "awq", "--no-search", "--imatrix", m], 2)
            .contains("--imatrix has no effect")
    );
    assert!(bad(&["quantize", m, a, "Q4_0", "--group", "64"], 2).contains("expected the type awq"));
    assert!(
        bad(
            &["quantize", m, a, "awq", "--no-search", "--group", "48"],
            1
        )
        .contains("32, 64 or 128")
    );
    assert!(!awq.exists(), "nothing is left behind");
    let output = octavo(&["quantize", m, a, "AWQ", "-f", path(&text), "--group", "64"])
        .output()
        .expect("runs");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        stderr(&output)
            .lines()
            .filter(|line| line.contains("without scales"))
            .count(),
        12,
        "{}",
        stderr(&output)
    );
    assert!(bad(&["quantize", m, a, "awq", "--no-search"], 1).contains("is there already"));

    assert_eq!(good(&["run", a, "-p", "1+1=", "-n", "1"]), "2");
    has_templates_in_files_of_their_own(&awq);
    let shown = good(&["inspect", a]);
    assert!(
        shown.contains("Hugging Face folder, 1 files of weights") && shown.contains("AWQ_G64"),
        "{shown}"
    );
    let output = octavo(&["convert", a, f]).output().expect("runs");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("AWQ_G64  -> Q4_1    zero points within 0.00"),
        "{}",
        stderr(&output)
    );
    assert_eq!(good(&["run", f, "-p", "1+1=", "-n", "1"]), "2");
    assert!(good(&["diff", a, f, "-p", "3+4="]).contains("within the bounds of every tensor"));
    assert!(bad(&["convert", a, f], 1).contains("--force replaces it"));
    assert!(
        bad(&["convert", m, f, "--force"], 1)
            .contains("octavo quantize changes the type of a GGUF file")
    );
    assert!(
        bad(&["convert", a, f, "--type", "q4_0"], 2).contains("expected q4_1, f16, bf16 or f32")
    );
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).expect("a folder");
    assert!(
        bad(&["run", path(&empty), "-p", "x"], 1)
            .contains("or give a GGUF file instead of a folder")
    );
}

fn has_templates_in_files_of_their_own(folder: &Path) {
    let more = folder.join("additional_chat_templates");
    std::fs::create_dir(&more).expect("made");
    std::fs::write(more.join("brief.jinja"), "1+{{ messages[0].content }}=").expect("written");
    let chat = [
        "run",
        path(folder),
        "--chat",
        "-p",
        "1",
        "-n",
        "1",
        "--chat-template",
    ];
    assert_eq!(good(&[&chat[..], &["brief"]].concat()), "2");
}

/// Writes a model with a SentencePiece vocabulary: bytes, a few tokens, and rows without a token.
fn sentencepiece(dir: &tempfile::TempDir) -> PathBuf {
    variant(dir, "spm.gguf", true, |writer| {
        let demo = Gguf::from_bytes(octavo_engine::demo_model(), "demo", &OpenOptions::default())
            .expect("sound");
        let n = demo
            .array("tokenizer.ggml.tokens")
            .expect("an array")
            .expect("tokens")
            .len();
        let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
        tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        tokens.extend(["▁a", "ab", "▁ab", "▁", "a", "b"].map(str::to_owned));
        let known = tokens.len();
        tokens.extend((known..n).map(|id| format!("[PAD{id}]")));
        let ty = |id: usize| match id {
            0 => 2,
            1 | 2 => 3,
            3..259 => 6,
            id if id < known => 1,
            _ => 5,
        };
        let scores: Vec<f32> = (0..n)
            .map(|id| if id < 259 { 0.0 } else { 258.0 - id as f32 })
            .collect();
        for key in [
            "merges",
            "eot_token_id",
            "eom_token_id",
            "padding_token_id",
            "add_bos_token",
            "add_eos_token",
        ] {
            writer.remove(&format!("tokenizer.ggml.{key}"));
        }
        writer
            .set("tokenizer.ggml.model", "llama")
            .set("tokenizer.ggml.pre", "default");
        writer
            .set("tokenizer.ggml.tokens", tokens)
            .set("tokenizer.ggml.scores", scores);
        writer.set(
            "tokenizer.ggml.token_type",
            (0..n).map(ty).collect::<Vec<i32>>(),
        );
        writer
            .set("tokenizer.ggml.bos_token_id", 1_u32)
            .set("tokenizer.ggml.eos_token_id", 2_u32);
    })
}

#[test]
fn sentencepiece_goes_into_folders_and_back() {
    let dir = folder();
    let (model, made, file) = (
        sentencepiece(&dir),
        dir.path().join("made"),
        dir.path().join("back.gguf"),
    );
    let (m, a, f) = (path(&model), path(&made), path(&file));
    good(&["quantize", m, a, "awq", "--no-search", "--group", "64"]);
    let ids = |model: &str| good(&["tokenize", model, "-p", "ab  aé</s>a", "--ids"]);
    assert_eq!(ids(m), "[1, 261, 262, 259, 198, 172, 2, 259]\n");
    let text = good(&["run", a, "-p", "ab", "-n", "4"]);
    for without in ["", "tokenizer.model", "tokenizer.json"] {
        let (hidden, from) = (dir.path().join("hidden"), made.join(without));
        if !without.is_empty() {
            std::fs::rename(&from, &hidden).expect("there");
        }
        assert_eq!(ids(a), ids(m), "without {without:?}");
        good(&["convert", a, f, "--force", "-t", "2"]);
        assert_eq!(ids(f), ids(m), "without {without:?}");
        assert_eq!(
            good(&["run", a, "-p", "ab", "-n", "4"]),
            text,
            "without {without:?}"
        );
        if !without.is_empty() {
            std::fs::rename(&hidden, &from).expect("there");
        }
    }
    assert!(good(&["inspect", f]).contains("llama / default"));
}
