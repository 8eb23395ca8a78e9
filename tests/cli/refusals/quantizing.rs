//! Refusals of quantizing: matrices of other models, patterns, types.

use super::*;

/// Writes the demo model in F16, with changed layers and numbers.
fn f16(dir: &tempfile::TempDir) -> PathBuf {
    let demo = octavo_fixtures::workspace_root()
        .join("reference")
        .join(QWEN3);
    let path_of = dir.path().join("f16.gguf");
    good(&[
        "quantize",
        path(&demo),
        path(&path_of),
        "F16",
        "--allow-requantize",
    ]);
    path_of
}

/// Writes an importance matrix for rows of these lengths.
fn imatrix(dir: &tempfile::TempDir, name: &str, entries: &[(String, u64)]) -> PathBuf {
    let mut writer = Writer::new();
    writer.set("imatrix.datasets", vec!["text".to_owned()]);
    writer
        .set("imatrix.chunk_count", 3u32)
        .set("imatrix.chunk_size", 512u32);
    for (tensor, n) in entries {
        let sums: Vec<u8> = (0..*n).flat_map(|_| 1f32.to_le_bytes()).collect();
        writer.tensor(&format!("{tensor}.in_sum2"), &[*n], TensorType::F32, sums);
        writer.tensor(
            &format!("{tensor}.counts"),
            &[1],
            TensorType::F32,
            1f32.to_le_bytes().to_vec(),
        );
    }
    let path = dir.path().join(name);
    writer.write_file(&path).expect("written");
    path
}

/// Returns the names and widths of the demo model's matrices, as llama-imatrix names them, for
/// `layers` layers of this width.
fn entries(layers: usize, width: u64) -> Vec<(String, u64)> {
    let names = [
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ];
    let row = |name: &str| if name == "ffn_down" { 512 } else { width };
    (0..layers)
        .flat_map(|l| names.map(|name| (format!("blk.{l}.{name}.weight"), row(name))))
        .collect()
}

fn text() -> PathBuf {
    octavo_fixtures::committed_goldens().join("formats/text.txt")
}

#[test]
fn a_matrix_of_another_model_is_refused_by_names_and_shapes() {
    let dir = folder();
    let (model, out, text) = (f16(&dir), dir.path().join("out.gguf"), text());
    let own = imatrix(&dir, "own", &entries(4, 256));
    let partial = imatrix(&dir, "partial", &entries(4, 256)[1..]);
    for sound in [&own, &partial] {
        good(&[
            "quantize",
            path(&model),
            path(&out),
            "IQ4_XS",
            "--imatrix",
            path(sound),
            "--force",
        ]);
    }
    std::fs::remove_file(&out).expect("there");
    let more = imatrix(&dir, "more", &entries(6, 256));
    let fewer = imatrix(&dir, "fewer", &entries(3, 256));
    let wider = imatrix(&dir, "wider", &entries(4, 320));
    for (file, says) in [
        (
            &more,
            "more: entry blk.4.attn_k.weight: expected names of tensors of ",
        ),
        (&fewer, "got none for layer 3 (such as blk.3.attn_k.weight)"),
        (
            &wider,
            "wider: entry blk.0.attn_k.weight: expected 256 weights for this model, got 320",
        ),
    ] {
        let quantize = [
            "quantize",
            path(&model),
            path(&out),
            "Q4_0",
            "--imatrix",
            path(file),
        ];
        let dry = [
            "quantize",
            path(&model),
            "Q4_0",
            "--dry-run",
            "--imatrix",
            path(file),
        ];
        let report = [
            "quant-report",
            path(&model),
            "-f",
            path(&text),
            "-c",
            "16",
            "--imatrix",
            path(file),
        ];
        for args in [&quantize[..], &dry, &report] {
            let line = bad(args, 1);
            assert!(
                line.contains(says) && line.contains(path(file)),
                "{args:?}: {line}"
            );
        }
        assert!(!out.exists(), "nothing is written");
    }
}

#[test]
fn a_pattern_that_finds_nothing_is_named() {
    let dir = folder();
    let (model, out) = (f16(&dir), dir.path().join("out.gguf"));
    for pattern in ["ffn_dwon=Q6_K", "attn_norm=Q6_K"] {
        let (name, _) = pattern.split_once('=').expect("two parts");
        for args in [
            &["quantize", path(&model), path(&out), "Q4_K_M"][..],
            &["quantize", path(&model), "Q4_K_M", "--dry-run"],
        ] {
            let line = bad(
                &[
                    args,
                    &["--tensor-type", "ffn_up=Q5_K", "--tensor-type", pattern],
                ]
                .concat(),
                1,
            );
            let says = format!(
                "f16.gguf: {name:?} finds no tensor that can be quantized: expected a part of a \
                 name"
            );
            assert!(line.contains(&says), "{line}");
        }
        assert!(!out.exists(), "nothing is written");
    }
}

#[test]
fn a_report_knows_what_stands_against_it_before_it_scores() {
    let dir = folder();
    let (model, text) = (f16(&dir), text());
    let (m, t) = (path(&model), path(&text));
    // only one line, without a message that scoring began
    let refused = |args: &[&str]| {
        bad(
            &[
                &["quant-report"],
                args,
                &["-f", t, "-c", "16", "--chunks", "2"],
            ]
            .concat(),
            1,
        )
    };
    let line = refused(&[m, "--types", "Q8_0,IQ2_XXS"]);
    assert!(
        line.ends_with(
            "IQ2_XXS: tensor blk.0.attn_k.weight: IQ2_XXS needs an importance matrix (--imatrix)"
        ),
        "{line}"
    );
    let line = refused(&[m, "--types", "Q8_0", "--sensitivity", "IQ2_XXS"]);
    assert!(
        line.contains("--sensitivity: tensor ")
            && line.contains("needs an importance matrix (--imatrix)"),
        "{line}"
    );
    let q8 = dir.path().join("q8.gguf");
    good(&["quantize", m, path(&q8), "Q8_0"]);
    let line = refused(&[path(&q8), "--types", "Q4_0"]);
    assert!(
        line.contains("Q4_0: tensor ")
            && line.contains("is Q8_0 already: quantizing it again needs --allow-requantize"),
        "{line}"
    );
    let line = refused(&[
        path(&q8),
        "--types",
        "Q4_0",
        "--allow-requantize",
        "--sensitivity",
        "Q4_0",
    ]);
    assert!(
        line.contains("q8.gguf: no tensor can be quantized to Q4_0"),
        "{line}"
    );
    let text = good(&[
        "quant-report",
        path(&q8),
        "-f",
        t,
        "-c",
        "16",
        "--chunks",
        "2",
        "--types",
        "Q4_0",
        "--allow-requantize",
    ]);
    assert!(
        text.lines().count() == 3 && text.contains("\nQ4_0 "),
        "{text}"
    );

    let changed = with_other_tokens(&dir, "changed.gguf");
    let line = refused(&[m, "--types", "Q8_0", "--also", path(&changed)]);
    assert!(line.contains("changed.gguf: token 20: expected "), "{line}");
    let line = refused(&[m, "--types", "Q8_0", "--also", "/nonexistent"]);
    assert!(line.contains("/nonexistent"), "{line}");
}

/// Uses a value that Q8_0's scale can represent and Q4_0's cannot.
#[test]
fn a_type_that_fails_does_not_take_the_others_with_it() {
    let dir = folder();
    let f32 = dir.path().join("f32.gguf");
    let demo = octavo_engine::demo_model();
    let demo = Gguf::from_bytes(demo, "demo", &OpenOptions::default()).expect("sound");
    let mut writer = Writer::new();
    for (key, value) in demo.keys() {
        writer.set(key, value);
    }
    for t in demo.tensors() {
        let mut values = vec![0.0; t.n_elements() as usize];
        octavo_quant::dequantize(t.ty, demo.data(t), &mut values).expect("whole blocks");
        if t.name == "blk.1.ffn_down.weight" {
            values[5] = 1e6;
        }
        writer.tensor(
            &t.name,
            &t.dims,
            TensorType::F32,
            values
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect::<Vec<u8>>(),
        );
    }
    writer.write_file(&f32).expect("written");
    let (text, page) = (text(), dir.path().join("page.html"));
    let args = [
        "quant-report",
        path(&f32),
        "-f",
        path(&text),
        "-c",
        "16",
        "--chunks",
        "2",
        "--types",
        "Q8_0,Q4_0,Q4_1",
    ];
    let output = octavo(&[&args[..], &["--html", path(&page)]].concat())
        .output()
        .expect("it runs");
    let (table, errors) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        table.contains("\nQ8_0 ") && !table.contains("Q4_0"),
        "{table}"
    );
    let failed: Vec<&str> = errors
        .lines()
        .filter(|line| line.starts_with("octavo: error: "))
        .collect();
    assert!(
        failed[0]
            .starts_with("octavo: error: Q4_0: tensor blk.1.ffn_down.weight: Q4_0 cannot hold"),
        "{errors}"
    );
    let page = std::fs::read_to_string(&page).expect("written");
    assert!(
        page.contains("<svg") && page.contains("Q4_0 is missing: tensor blk.1.ffn_down.weight")
    );
    let output = octavo(&[&args[..], &["--json"]].concat())
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let object: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(object["types"][0]["name"], "Q8_0", "{object}");
    assert_eq!(object["failed"][0]["name"], "Q4_0", "{object}");
}
