//! Quantizing with importance matrices.

use super::*;

/// Writes an importance matrix with these weights for one tensor.
fn imatrix(folder: &Path, tensor: &str, weights: &[f32]) -> Importance {
    let mut writer = Writer::new();
    writer.set("imatrix.datasets", vec!["text".to_owned()]);
    writer
        .set("imatrix.chunk_count", 3u32)
        .set("imatrix.chunk_size", 512u32);
    let sums: Vec<u8> = weights
        .iter()
        .flat_map(|w| (w * 4.0).to_le_bytes())
        .collect();
    writer.tensor(
        &format!("{tensor}.in_sum2"),
        &[weights.len() as u64],
        TensorType::F32,
        sums,
    );
    writer.tensor(
        &format!("{tensor}.counts"),
        &[1],
        TensorType::F32,
        4f32.to_le_bytes().to_vec(),
    );
    let path = folder.join("imatrix.gguf");
    writer.write_file(&path).unwrap();
    Importance::open(&path).unwrap()
}

#[test]
fn importance_is_used_noted_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let model = source(|i| ((i * 7919) % 1009) as f32 - 504.0, "a");
    let weights: Vec<f32> = (0..256).map(|i| if i < 8 { 100.0 } else { 0.01 }).collect();
    let importance = imatrix(folder.path(), "blk.0.ffn_up.weight", &weights);
    assert_eq!(
        importance.weights("blk.0.ffn_up.weight"),
        Some(&weights[..])
    );
    let (_a, plain) = quantize(&model, None, &options(Target::Q4_0)).unwrap();
    let (_b, weighted) = quantize(&model, Some(&importance), &options(Target::Q4_0)).unwrap();
    let error = |g: &Gguf| {
        let mut y = vec![0.0; 1024];
        octavo_quant::dequantize(
            TensorType::Q4_0,
            g.data(g.tensor("blk.0.ffn_up.weight").unwrap()),
            &mut y,
        )
        .unwrap();
        let x = (0..1024).map(|i| ((i * 7919) % 1009) as f32 - 504.0);
        y.iter()
            .zip(x)
            .enumerate()
            .filter(|(i, _)| i % 256 < 8)
            .map(|(_, (y, x))| (y - x).powi(2))
            .sum::<f32>()
    };
    assert!(
        error(&weighted) < error(&plain),
        "{} and {}",
        error(&weighted),
        error(&plain)
    );
    let last: Vec<_> = weighted.keys().map(|(key, _)| key.to_owned()).collect();
    let noted = ["file", "dataset", "entries_count", "chunks_count"]
        .map(|k| format!("quantize.imatrix.{k}"));
    assert!(last.ends_with(&noted), "{last:?}");
    assert_eq!(
        weighted.get("quantize.imatrix.chunks_count"),
        Some(Value::U32(3))
    );

    let wrong = imatrix(folder.path(), "blk.0.ffn_up.weight", &weights[..128]);
    let error = Plan::new(&model, Some(&wrong), &options(Target::Q4_0))
        .unwrap()
        .check()
        .unwrap_err()
        .to_string();
    assert!(error.ends_with(
        "imatrix.gguf: entry blk.0.ffn_up.weight: expected 256 weights for this model, got 128"
    ));
}

#[test]
fn broken_importance_matrices_are_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken");
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let error = Importance::open(&path).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        error
    };
    assert!(refused(b"").contains("truncated: the number of entries needs 4 bytes"));
    assert!(refused(b"GGUF").contains("truncated"));
    assert!(refused(&[0; 8]).contains("the number of entries is 0"));
    let mut writer = Writer::new();
    writer.set("general.type", "model");
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).unwrap();
    assert!(refused(&bytes).contains("key imatrix.datasets: expected it to be there"));
    assert!(
        Importance::open(&folder.path().join("absent"))
            .unwrap_err()
            .to_string()
            .contains("cannot read it")
    );
}

/// A stack of matrices: each has its own importance weights.
#[test]
fn each_matrix_of_a_stack_has_its_own_weights() {
    let fill: Vec<f32> = (0..2048)
        .map(|i| ((i * 7919) % 1009) as f32 - 504.0)
        .collect();
    let bytes = |x: &[f32]| x.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let model = |dims: &[u64], x: &[f32]| {
        let mut writer = Writer::new();
        writer
            .set("general.architecture", "llama")
            .set("llama.block_count", 1u32);
        writer.tensor("blk.0.attn_q.weight", dims, TensorType::F32, bytes(x));
        let mut file = Vec::new();
        writer.write_to(&mut file).unwrap();
        Gguf::from_bytes(file, "stack", &OpenOptions::default()).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let weights: Vec<f32> = (0..512).map(|i| ((i * 31) % 97) as f32 + 0.5).collect();
    let both = imatrix(folder.path(), "blk.0.attn_q.weight", &weights);
    let (_a, stack) = quantize(
        &model(&[256, 4, 2], &fill),
        Some(&both),
        &options(Target::Q4_K_S),
    )
    .unwrap();
    let mut single = Vec::new();
    for (x, w) in fill.chunks(1024).zip(weights.chunks(256)) {
        let one = imatrix(folder.path(), "blk.0.attn_q.weight", w);
        let (_b, part) =
            quantize(&model(&[256, 4], x), Some(&one), &options(Target::Q4_K_S)).unwrap();
        single.extend_from_slice(part.data(&part.tensors()[0]));
    }
    assert_eq!(stack.data(&stack.tensors()[0]), single);
}
