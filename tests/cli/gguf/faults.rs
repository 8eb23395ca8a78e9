//! Faults that `octavo gguf check` finds, and files that no command may stumble over.

use std::fs;
use std::path::Path;
use std::time::Duration;

use gguf_rs_lite::{TensorType, Writer};
use octavo_fixtures::breaking::{Rng, damage};
use octavo_fixtures::workspace_root;

use super::{demo, finds, folder, good, json, octavo, open, stderr, stdout, text};
use crate::cli::variant;

#[test]
fn a_sound_file_has_no_faults() {
    let dir = folder();
    let model = demo(dir.path());
    let report = good(&["gguf", "check", text(&model)]);
    assert!(
        report.ends_with("model.gguf: 0 errors, 0 warnings\n"),
        "{report}"
    );
    let object = json(&["gguf", "check", text(&model), "--json"]);
    assert_eq!(object["errors"].as_array().map(Vec::len), Some(0));
}

/// Writes the demo model with damaged bytes in two tensors.
fn faulty(dir: &tempfile::TempDir) -> std::path::PathBuf {
    let demo = demo(dir.path());
    let gguf = open(&demo);
    let path = dir.path().join("faulty.gguf");
    let mut writer = Writer::new();
    for (key, value) in gguf.keys() {
        writer.set(key, value);
    }
    for t in gguf.tensors() {
        let mut data = gguf.data(t).to_vec();
        match t.name.as_str() {
            "blk.1.attn_norm.weight" => {
                data[12..16].copy_from_slice(&f32::NAN.to_le_bytes());
                data[20..24].copy_from_slice(&f32::INFINITY.to_le_bytes());
            }
            "blk.0.attn_k.weight" => {
                assert_eq!(t.ty, TensorType::Q4_K);
                // the scale of the third block
                data[2 * 144..][..2].copy_from_slice(&[0, 0]);
            }
            "blk.0.attn_q.weight" => {
                assert_eq!(t.ty, TensorType::Q4_K);
                data[5 * 144..][..2].copy_from_slice(&0x7c00u16.to_le_bytes());
            }
            _ => {}
        }
        writer.tensor(&t.name, &t.dims, t.ty, data);
    }
    let tokens = gguf
        .array("tokenizer.ggml.tokens")
        .expect("an array")
        .expect("there");
    let mut tokens: Vec<Vec<u8>> = tokens
        .strings()
        .expect("strings")
        .map(<[u8]>::to_vec)
        .collect();
    tokens[41] = tokens[40].clone();
    writer.set("tokenizer.ggml.tokens", tokens);
    writer.write_file(&path).expect("written");
    path
}

#[test]
fn planted_faults_are_found_and_named() {
    let dir = folder();
    let path = faulty(&dir);
    let report = finds(&["gguf", "check", text(&path)]);
    let not_finite = "are not finite: NaN or infinity";
    for line in [
        format!("error: tensor blk.1.attn_norm.weight: 2 values, the first 3, {not_finite}"),
        "error: tensor blk.0.attn_q.weight: block 5 is not finite: NaN or infinity".to_owned(),
        "warning: tensor blk.0.attn_k.weight: block 2 is nearly without bits: the f16 scale \
         underflows"
            .to_owned(),
    ] {
        assert!(
            report.lines().any(|found| found == line),
            "{line} is not in {report}"
        );
    }
    let twice = "warning: key tokenizer.ggml.tokens: 1 token has the text of another: ";
    assert!(
        report.contains(twice) && report.contains("has the ids 40 and 41"),
        "{report}"
    );
    // what inspect refuses is an error, too
    let lacks = variant(&dir, "lacks.gguf", true, |writer| {
        writer.remove("qwen3.embedding_length");
    });
    let report = finds(&["gguf", "check", text(&lacks)]);
    assert!(
        report.contains("error: hyperparameters: ") && report.contains("embedding_length"),
        "{report}"
    );
}

/// Runs a command on a damaged file: it ends with an exit code and one line of error at most.
/// Returns whether it refused the file.
fn survives(dir: &Path, file: &str, sound: &str, case: usize, rng: &mut Rng) -> bool {
    let at = |name: &str| dir.join(name).to_str().expect("UTF-8").to_owned();
    let (out, prefix, arrays) = (at("out.gguf"), at("p"), at("out.safetensors"));
    let commands: [&[&str]; 10] = [
        &["show", file, "--all"],
        &["show", file, "--json"],
        &[
            "set",
            file,
            "general.name=str:another",
            "-o",
            &out,
            "--force",
        ],
        &["set", file, "qwen3.block_count=int:3"],
        &[
            "split",
            file,
            &prefix,
            "--split-max-tensors",
            "9",
            "--force",
        ],
        &["diff", sound, file],
        &["check", file],
        &["extract", file, &arrays, "--force"],
        &["extract", file, &arrays, "--raw", "--force"],
        &[
            "insert",
            file,
            &at("sound.safetensors"),
            "-o",
            &out,
            "--force",
        ],
    ];
    let args = commands[rng.below(commands.len())];
    let output = octavo(&[&["gguf"], args].concat())
        .timeout(Duration::from_secs(60))
        .output()
        .expect("it runs and ends");
    let said = stderr(&output);
    let errors: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("octavo: error: "))
        .collect();
    let what = || format!("case {case}: {args:?}: {:?}: {said}", output.status);
    match output.status.code() {
        Some(0) => assert!(errors.is_empty(), "{}", what()),
        // a difference or a fault, or a refusal
        Some(1) if errors.is_empty() => assert!(!stdout(&output).is_empty(), "{}", what()),
        Some(1 | 2) => {
            assert!(
                errors.len() == 1 && errors[0].chars().count() < 1000,
                "{}",
                what()
            );
            return true;
        }
        _ => panic!("{}", what()),
    }
    false
}

#[test]
fn damaged_files_give_one_line_and_no_crash() {
    let dir = folder();
    let sound = demo(dir.path());
    let arrays = dir.path().join("sound.safetensors");
    good(&["gguf", "extract", text(&sound), text(&arrays), "attn_v"]);
    let bytes =
        fs::read(workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf")).expect("read");
    let path = dir.path().join("broken.gguf");
    let mut rng = Rng(49);
    let mut refused = 0;
    for case in 0..150 {
        let mut broken = bytes.clone();
        match rng.below(8) {
            0 => broken.truncate(rng.below(bytes.len())),
            n => {
                let reach = if n < 5 { 1500 } else { bytes.len() - 8 };
                for _ in 0..[1, 2, 8][rng.below(3)] {
                    let at = rng.below(reach);
                    damage(&mut rng, &mut broken, at);
                }
            }
        }
        fs::write(&path, broken).expect("written");
        refused += usize::from(survives(
            dir.path(),
            text(&path),
            text(&sound),
            case,
            &mut rng,
        ));
    }
    println!("{refused} of 150 refused");
    assert!(
        (30..150).contains(&refused),
        "{refused} refused: the damage is too mild or too wild"
    );
}
