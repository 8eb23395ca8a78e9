//! Goldens are read, and other files refused.

use octavo_fixtures as fixtures;
use octavo_reference::Error;
use octavo_reference::golden::{Embedded, Full, Golden, read_summary};
use octavo_reference::metrics::{kl, log_sum_exp};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};

/// Builds a golden in memory from `(name, type, shape, elements as little-endian words)`.
fn file(tensors: &[(&str, Dtype, &[usize], &[u32])]) -> Vec<u8> {
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|t| t.3.iter().flat_map(|word| word.to_le_bytes()).collect())
        .collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|(t, bytes)| (t.0, TensorView::new(t.1, t.2.to_vec(), bytes).unwrap()));
    serialize(views, None).unwrap()
}

fn message(bytes: &[u8]) -> String {
    Golden::from_bytes(bytes, "g").unwrap_err().to_string()
}

#[test]
fn a_full_golden_reads_back() {
    let one = 1f32.to_bits();
    let bytes = file(&[
        ("tokens", Dtype::I32, &[2], &[2, 0]),
        ("logits", Dtype::F32, &[2, 3], &[0, one, 0, one, 0, 0]),
        ("exact", Dtype::F32, &[2, 3], &[one; 6]),
    ]);
    let Golden::Full(golden) = Golden::from_bytes(&bytes, "g").unwrap() else {
        panic!("expected the full form")
    };
    assert_eq!((golden.tokens, golden.n_vocab), (vec![2, 0], 3));
    assert_eq!(
        (golden.logits, golden.exact),
        (vec![0., 1., 0., 1., 0., 0.], vec![1.; 6])
    );
}

#[test]
fn vectors_read_back_and_others_are_refused_by_name() {
    let one = 1f32.to_bits();
    let (two_rows, ones) = ([0, one, 0, one, 0, 0], [one; 3]);
    let rows = |name| (name, Dtype::F32, &[2usize, 3][..], &two_rows[..]);
    let vector = |name| (name, Dtype::F32, &[3usize][..], &ones[..]);
    let tokens = ("tokens", Dtype::I32, &[2usize][..], &[2u32, 0][..]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("g.safetensors");
    let read = |tensors: &[(&str, Dtype, &[usize], &[u32])]| {
        std::fs::write(&path, file(tensors)).unwrap();
        Embedded::read(&path).map_err(|error| error.to_string())
    };
    let pooled = [vector("pooled"), vector("exact_pooled")];
    let golden = read(&[
        tokens,
        rows("embd"),
        rows("exact_embd"),
        pooled[0],
        pooled[1],
    ])
    .unwrap();
    assert_eq!((golden.tokens, golden.width), (vec![2, 0], 3));
    assert_eq!(golden.rows, [0., 1., 0., 1., 0., 0.]);
    assert_eq!(golden.exact_pooled, [1.; 3]);
    // goldens of F32 files may have one form only
    let golden = read(&[tokens, rows("embd"), pooled[0]]).unwrap();
    assert_eq!(golden.exact_rows, golden.rows);
    assert_eq!(golden.exact_pooled, golden.pooled);
    let error = read(&[tokens, rows("exact_embd"), pooled[0]]).unwrap_err();
    assert!(error.ends_with(r#"tensor "embd": expected dims [2, width], got no such tensor"#));
    let error = read(&[tokens, rows("embd"), rows("pooled"), rows("exact_embd")]).unwrap_err();
    assert!(error.ends_with(r#"tensor "pooled": expected dims [3], got [2, 3]"#));
}

#[test]
fn what_is_not_a_golden_is_refused_by_name() {
    let tokens = ("tokens", Dtype::I32, &[2usize][..], &[2u32, 0][..]);
    let logits = ("logits", Dtype::F32, &[2usize, 3][..], &[0u32; 6][..]);
    assert!(message(b"").starts_with("g: expected a safetensors file:"));
    assert_eq!(
        message(&file(&[tokens])),
        r#"g: tensor "logits": expected dims [2, n_vocab], got no such tensor"#
    );
    let short = ("logits", Dtype::F32, &[1usize, 3][..], &[0u32; 3][..]);
    assert_eq!(
        message(&file(&[tokens, short])),
        r#"g: tensor "logits": expected dims [2, n_vocab], got [1, 3]"#
    );
    let narrow = ("exact", Dtype::F32, &[2usize, 2][..], &[0u32; 4][..]);
    assert_eq!(
        message(&file(&[tokens, logits, narrow])),
        r#"g: tensor "exact": expected dims [2, 3], got [2, 2]"#
    );
    let integers = ("exact", Dtype::U32, &[2usize, 3][..], &[0u32; 6][..]);
    assert_eq!(
        message(&file(&[tokens, logits, integers])),
        r#"g: tensor "exact": expected type F32, got U32"#
    );
    for bad in [3, -1i32 as u32] {
        let tokens = ("tokens", Dtype::I32, &[2usize][..], &[0, bad][..]);
        let got = message(&file(&[tokens, logits]));
        assert_eq!(
            got,
            format!(
                r#"g: tensor "tokens", element 1: expected an id below 3, got {}"#,
                bad as i32
            )
        );
    }
}

#[test]
fn an_absent_file_is_named() {
    let error = Full::read("/nonexistent/x.safetensors".as_ref()).unwrap_err();
    assert!(
        matches!(error, Error::Io { .. })
            && error
                .to_string()
                .starts_with("/nonexistent/x.safetensors: ")
    );
}

/// Compares the estimate over 32 tokens with the divergence over the whole vocabulary, which numpy
/// computed when the golden was made: it must be below, but not by much.
#[test]
fn the_top_form_estimates_the_kl_of_llama_cpp() {
    let Some(shared) = fixtures::shared_dir() else {
        return;
    };
    let folder = shared.join("goldens/smollm2");
    for (prompt, summary) in read_summary(&folder.join("summary.json")).unwrap() {
        let Golden::Top(golden) =
            Golden::read(&folder.join(format!("{prompt}.safetensors"))).unwrap()
        else {
            panic!("{prompt}: expected the top form")
        };
        assert_eq!(
            (golden.tokens.len(), golden.k, golden.n_vocab),
            (summary.n_tokens, 32, 49152)
        );
        let estimate = golden.llama_cpp_kl().unwrap().mean;
        println!(
            "{prompt}: estimate {estimate:.3e}, whole vocabulary {:.3e}",
            summary.mean_kl
        );
        assert!(
            estimate < summary.mean_kl * 1.001 && estimate > summary.mean_kl * 0.5,
            "{prompt}: {estimate:e}"
        );
        let top5: Vec<u32> = summary.top5.iter().map(|&(id, _)| id).collect();
        let last = golden.llama_cpp.ids.chunks(golden.k).next_back().unwrap();
        assert_eq!(last[..5], top5[..]);
        assert_eq!(
            octavo_reference::metrics::top_k(&golden.llama_cpp.last, golden.k),
            last,
            "ties: lowest id first"
        );
        assert!(golden.kl(&[]).is_err());
    }
}

#[test]
fn the_top_form_measures_ours_as_it_measures_llama_cpp() {
    // Two positions, vocabulary of 4, k = 2: rows of llama.cpp and of exact.
    let llama_cpp = [[3.0f32, 1.0, 2.5, 0.0], [0.0, 0.5, 4.0, 0.25]];
    let exact = [[3.5f32, 1.0, 2.0, 0.0], [0.25, 0.0, 4.0, 0.5]];
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
    let lse = |rows: &[[f32; 4]; 2]| bits(&rows.map(|row| log_sum_exp(&row) as f32));
    let (lse_llama_cpp, lse_exact) = (lse(&llama_cpp), lse(&exact));
    let pick = |rows: &[[f32; 4]; 2], ids: [u32; 4]| {
        bits(&[0, 1, 2, 3].map(|i| rows[i / 2][ids[i] as usize]))
    };
    let (ids, exact_ids) = ([0, 2, 2, 1], [0, 2, 2, 3]);
    let two = [2usize, 2];
    let bytes = file(&[
        ("tokens", Dtype::I32, &[2], &[1, 3]),
        ("top_ids", Dtype::I32, &two, &ids),
        ("top_logits", Dtype::F32, &two, &pick(&llama_cpp, ids)),
        ("lse", Dtype::F32, &[2], &lse_llama_cpp),
        ("last", Dtype::F32, &[4], &bits(&llama_cpp[1])),
        ("exact_top_ids", Dtype::I32, &two, &exact_ids),
        (
            "exact_top_logits",
            Dtype::F32,
            &two,
            &pick(&exact, exact_ids),
        ),
        ("exact_lse", Dtype::F32, &[2], &lse_exact),
        ("exact_last", Dtype::F32, &[4], &bits(&exact[1])),
        (
            "at_exact_top",
            Dtype::F32,
            &two,
            &pick(&llama_cpp, exact_ids),
        ),
    ]);
    let Golden::Top(golden) = Golden::from_bytes(&bytes, "g").unwrap() else {
        panic!("expected the top form")
    };
    let theirs = golden.llama_cpp_kl().unwrap();
    let ours = golden.kl(llama_cpp.as_flattened()).unwrap();
    assert!(
        (theirs.mean - ours.mean).abs() < 1e-6 && theirs.max_row == ours.max_row,
        "{theirs:?} {ours:?}"
    );
    let whole = kl(llama_cpp.as_flattened(), exact.as_flattened(), 4).unwrap();
    assert!(
        ours.mean > 0.5 * whole.mean && ours.mean < whole.mean,
        "{ours:?} {whole:?}"
    );
    assert!(golden.kl(exact.as_flattened()).unwrap().max.abs() < 1e-6);
}
