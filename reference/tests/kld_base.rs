//! Base files equal llama-perplexity's byte for byte, and broken ones are refused.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use octavo_reference::kld_base::{
    CUT, Error, MAGIC, Norm, Reader, Row, Shape, WIDE_CUT, Writer, encode, write_file,
};

fn data(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kld_base");
    std::fs::read(folder.join(name)).expect("the recorded bytes")
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}

fn encoded(logits: &[f32], n_vocab: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for row in logits.chunks_exact(n_vocab) {
        let mut bytes = vec![0xff; 8 + 2 * n_vocab.next_multiple_of(2)];
        encode(row, &Norm::of(row), &mut bytes);
        out.extend(bytes);
    }
    out
}

const SMALL: Shape = Shape {
    n_ctx: 5,
    n_vocab: 3,
    n_chunks: 2,
};
const SMALL_TOKENS: [u32; 10] = [0, 1, 2, 0, 1, 2, 2, 2, 1, 0];

/// Returns logits of two rows for each of two chunks.
fn small_logits() -> Vec<f32> {
    vec![
        0.0, 1.0, 2.0, 3.0, 3.0, -9.0, 5.0, -50.0, 5.5, 0.25, 0.0, 0.0,
    ]
}

fn small() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "small", SMALL, &SMALL_TOKENS).expect("a header");
    for chunk in encoded(&small_logits(), 3).chunks(2 * SMALL.row_bytes()) {
        writer.rows(chunk).expect("rows");
    }
    writer.finish().expect("complete")
}

fn refused(bytes: Vec<u8>) -> Error {
    Reader::new(Cursor::new(bytes), "f").expect_err("refused")
}

#[test]
fn rows_are_coded_as_llama_perplexity_codes_them() {
    let logits = floats(&data("edges.logits"));
    let (ours, theirs) = (encoded(&logits, 5), data("edges.rows"));
    for (i, (ours, theirs)) in ours.chunks(20).zip(theirs.chunks(20)).enumerate() {
        assert_eq!(ours, theirs, "row {i}: {:?}", &logits[5 * i..5 * i + 5]);
    }
    assert_eq!(ours.len(), theirs.len());
}

#[test]
fn a_file_of_the_same_logits_is_the_same_file() {
    let theirs = data("tiny-qwen3-F32.kld");
    let mut reader = Reader::new(Cursor::new(theirs.clone()), "theirs").expect("sound");
    let shape = reader.shape();
    assert_eq!(
        shape,
        Shape {
            n_ctx: 16,
            n_vocab: 1024,
            n_chunks: 2
        }
    );
    assert_eq!(
        (shape.first(), shape.rows(), shape.row_bytes(), reader.cut()),
        (8, 7, 2056, CUT)
    );
    let tokens: Vec<u32> = (0..2)
        .flat_map(|chunk| reader.tokens(chunk).expect("tokens"))
        .collect();
    let mut writer = Writer::new(Vec::new(), "ours", shape, &tokens).expect("a header");
    writer
        .rows(&encoded(&floats(&data("tiny-qwen3-F32.logits")), 1024))
        .expect("rows");
    assert!(writer.finish().expect("complete") == theirs, "another file");
}

#[test]
fn rows_read_back_within_half_a_quantum() {
    let logits = floats(&data("tiny-qwen3-F32.logits"));
    let mut reader = Reader::new(Cursor::new(data("tiny-qwen3-F32.kld")), "f").expect("sound");
    let mut bytes = Vec::new();
    for (at, row) in logits.chunks_exact(1024).enumerate() {
        reader
            .rows(at / 7, at % 7..at % 7 + 1, &mut bytes)
            .expect("a row");
        let stored = Row::new(&bytes, 1024);
        let max = row.iter().fold(f64::MIN, |max, &x| max.max(f64::from(x)));
        let lse = max
            + row
                .iter()
                .map(|&x| (f64::from(x) - max).exp())
                .sum::<f64>()
                .ln();
        for (id, (&x, ln_p)) in row.iter().zip(stored.iter()).enumerate() {
            let exact = (f64::from(x) - lse).max(max - 16.0 - lse);
            // half of 16 / 65535, plus f32 rounding at 32
            assert!(
                (exact - f64::from(ln_p)).abs() < 1.23e-4 + 4e-6,
                "row {at}, id {id}: {exact} {ln_p}"
            );
            assert_eq!(ln_p, stored.ln_p(id));
        }
    }
}

#[test]
fn norms_by_hand() {
    let norm = Norm::of(&[1.0, 3.0, 3.0, -2.0]);
    assert_eq!(
        (norm.max, norm.min, norm.argmax),
        (3.0, -2.0, 1),
        "the first of two equal ones"
    );
    let sum = 2.0 + (-2f64).exp() + (-5f64).exp();
    assert!((norm.ln_sum - sum.ln()).abs() < 1e-7);
    assert!((norm.ln_p(3.0) + sum.ln()).abs() < 1e-7);
    // longer than the vector lanes, with extremes in the remainder
    let long: Vec<f32> = (0..19)
        .map(|i| if i == 17 { -4.0 } else { i as f32 })
        .collect();
    let norm = Norm::of(&long);
    assert_eq!((norm.max, norm.min, norm.argmax), (18.0, -4.0, 18));
}

#[test]
fn parts_of_a_chunk_are_read_where_they_lie() {
    let mut reader = Reader::new(Cursor::new(small()), "small").expect("sound");
    assert_eq!((SMALL.first(), SMALL.rows()), (2, 2));
    assert_eq!(
        (reader.tokens(0).unwrap(), reader.tokens(1).unwrap()),
        (vec![0, 1, 2, 0, 1], vec![2, 2, 2, 1, 0])
    );
    let all = encoded(&small_logits(), 3);
    let mut bytes = Vec::new();
    reader.rows(1, 0..2, &mut bytes).unwrap();
    assert_eq!(bytes, all[2 * 16..]);
    reader.rows(0, 1..2, &mut bytes).unwrap();
    assert_eq!(bytes, all[16..32]);
    reader.rows(0, 1..1, &mut bytes).unwrap();
    assert!(bytes.is_empty());
}

#[test]
fn every_cut_and_every_appendix_is_refused() {
    let whole = small();
    for n in 0..whole.len() {
        let error = refused(whole[..n].to_vec());
        let expected = match n {
            0..8 => matches!(error, Error::Magic { .. }),
            8..20 => matches!(error, Error::Length { expected: 20, .. }),
            _ => matches!(error, Error::Size { expected: 124, .. }),
        };
        assert!(expected, "{n} bytes: {error}");
        assert_eq!(error.to_string().lines().count(), 1);
    }
    let error = refused([&whole[..], &[0]].concat()).to_string();
    assert_eq!(
        error,
        "f: expected 124 bytes for 2 chunks of 5 tokens, got 125: too long (2 chunks are complete)"
    );
    let error = refused(whole[..123].to_vec()).to_string();
    assert!(
        error.ends_with("got 123: cut off (1 chunks are complete)"),
        "{error}"
    );
}

#[test]
fn headers_that_promise_too_much_are_refused() {
    let header = |numbers: [i32; 3]| {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
        bytes
    };
    let max = i32::MAX;
    for numbers in [
        [max, max, max],
        [3, max, max],
        [max, 1, 1],
        [512, 150_000, 1_000_000],
    ] {
        assert!(
            matches!(refused(header(numbers)), Error::Size { got: 20, .. }),
            "{numbers:?}"
        );
    }
    for numbers in [
        [-1, 3, 2],
        [5, -3, 2],
        [5, 3, -2],
        [0, 3, 2],
        [2, 3, 2],
        [5, 0, 2],
        [5, 3, 0],
        [i32::MIN; 3],
    ] {
        assert!(
            matches!(refused(header(numbers)), Error::Header { .. }),
            "{numbers:?}"
        );
    }
    assert!(matches!(
        refused(b"GGUF\x03\0\0\0and more than a header".to_vec()),
        Error::Magic { .. }
    ));
}

#[test]
fn tokens_and_rows_that_make_no_sense_are_refused() {
    for id in [3, -1, i32::MAX] {
        let mut bytes = small();
        bytes[20 + 4 * 7..][..4].copy_from_slice(&id.to_le_bytes());
        let error = refused(bytes);
        assert!(
            matches!(error, Error::Token { index: 7, n_vocab: 3, got, .. } if got == id),
            "{error}"
        );
    }
    let with = |at: usize, x: f32| {
        let mut bytes = small();
        bytes[at..at + 4].copy_from_slice(&x.to_le_bytes());
        bytes
    };
    let (first, last) = (60, 60 + 3 * 16);
    for (offset, x) in [
        (0, f32::NAN),
        (0, -1e-3),
        (0, f32::INFINITY),
        (0, 1.0),
        (4, f32::NAN),
        (4, 1.0),
    ] {
        let error = refused(with(first + offset, x));
        assert!(
            matches!(
                error,
                Error::Row {
                    chunk: 0,
                    row: 0,
                    ..
                }
            ),
            "{x}: {error}"
        );
        // beyond the first chunk a row is checked when it is read
        let mut reader =
            Reader::new(Cursor::new(with(last + offset, x)), "f").expect("not seen yet");
        let mut out = Vec::new();
        reader.rows(1, 0..1, &mut out).expect("sound");
        let error = reader.rows(1, 0..2, &mut out).expect_err("refused");
        assert!(
            matches!(
                error,
                Error::Row {
                    chunk: 1,
                    row: 1,
                    ..
                }
            ),
            "{x}: {error}"
        );
    }
}

#[test]
fn the_wide_cut_shows_in_the_scale() {
    let with_span = |row: usize, span: f32| {
        let mut bytes = small();
        let at = 60 + 16 * row;
        bytes[at..at + 4].copy_from_slice(&(span / 65535.0).to_le_bytes());
        bytes[at + 4..at + 8].copy_from_slice(&(-span - 1.0).to_le_bytes());
        bytes
    };
    let open = |bytes| Reader::new(Cursor::new(bytes), "f").expect("sound");
    assert_eq!(open(small()).cut(), CUT);
    assert_eq!(open(with_span(1, 24.0)).cut(), WIDE_CUT);
    assert_eq!(open(with_span(1, 17.0)).cut(), WIDE_CUT);
    assert_eq!(open(with_span(1, 16.001)).cut(), CUT);
    let mut late = open(with_span(3, 24.0));
    assert_eq!(late.cut(), CUT);
    late.rows(1, 0..2, &mut Vec::new()).expect("sound");
    assert_eq!(late.cut(), WIDE_CUT);
}

#[test]
fn a_writer_takes_exactly_what_it_announced() {
    let row = vec![0; SMALL.row_bytes()];
    let writer = || Writer::new(Vec::new(), "f", SMALL, &SMALL_TOKENS).expect("a header");
    assert!(matches!(
        writer().finish(),
        Err(Error::Length {
            expected: 64,
            got: 0,
            ..
        })
    ));
    let mut over = writer();
    over.rows(&row.repeat(3)).expect("fits");
    assert!(matches!(
        over.rows(&row.repeat(2)),
        Err(Error::Length {
            expected: 16,
            got: 32,
            ..
        })
    ));
    assert!(matches!(
        Writer::new(Vec::new(), "f", SMALL, &[0; 9]),
        Err(Error::Length { .. })
    ));
    for shape in [
        Shape { n_ctx: 2, ..SMALL },
        Shape {
            n_vocab: 1 << 31,
            ..SMALL
        },
        Shape {
            n_chunks: 0,
            ..SMALL
        },
    ] {
        assert!(
            matches!(
                Writer::new(Vec::new(), "f", shape, &[]),
                Err(Error::Header { .. })
            ),
            "{shape:?}"
        );
    }
}

#[test]
fn files_are_replaced_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| -> PathBuf { folder.path().join(name) };
    let rows = encoded(&small_logits(), 3);
    let write = |path: &Path, rows: &[u8]| {
        write_file::<(), Error>(path, SMALL, &SMALL_TOKENS, |writer| writer.rows(rows))
    };
    write(&file("a.kld"), &rows).expect("written");
    assert_eq!(std::fs::read(file("a.kld")).unwrap(), small());
    assert_eq!(Reader::open(&file("a.kld")).expect("sound").shape(), SMALL);
    // too few rows: the older file is unchanged
    assert!(matches!(
        write(&file("a.kld"), &rows[..16]),
        Err(Error::Length { .. })
    ));
    assert_eq!(std::fs::read(file("a.kld")).unwrap(), small());
    std::fs::write(file("empty"), "").unwrap();
    write(&file("empty"), &rows).expect("an empty file may be taken");
    assert!(matches!(
        write(&file("none/a.kld"), &rows),
        Err(Error::Replace(_))
    ));
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        2,
        "no temporary file is left"
    );
    assert!(matches!(
        Reader::open(folder.path()),
        Err(Error::Magic { .. })
    ));
    assert!(matches!(Reader::open(&file("none")), Err(Error::Io { .. })));
}
