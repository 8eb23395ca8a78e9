//! Pieces: merging, and errors of one line.

use octavo_engine::{Engine, EngineOptions, ModelSource};
use octavo_kernels::{Isa, IsaChoice};
use octavo_lab::eval::{Options, Perplexity, Text, encode, perplexity};
use octavo_lab::imatrix::{Collector, Options as ImatrixOptions};
use octavo_lab::pieces::{About, Content, Error, Key, MAGIC, Named, Part, Piece, merge, sha256};

const TEXT: &[u8] =
    b"The capital of France is Paris. 1+1=2, 2+2=4, and the cat sat on the mat. Once upon a time \
      there was a small model that knew a few sentences by heart and had never heard of any other.";

fn engine() -> Engine {
    let options = EngineOptions {
        isa: IsaChoice::Only(Isa::Scalar),
        ctx: Some(8),
        threads: Some(2),
        ..EngineOptions::default()
    };
    Engine::load(&ModelSource::Demo, &options, &mut |_| {}).expect("loads")
}

fn part(text: &str) -> Part {
    text.parse().expect("a part")
}

fn key() -> Key {
    let mut key = Key::new("perplexity");
    key.bytes("text", TEXT).set("tokens of a chunk", 8);
    key
}

/// Returns a piece with the chunks of a part, under a file name.
fn piece(whole: &Perplexity, part: Part) -> Named {
    let units = whole.chunks();
    let piece = Piece {
        key: key(),
        part,
        units,
        about: About {
            n_ctx: 8,
            isa: "scalar".to_owned(),
            ..About::default()
        },
        content: Content::Perplexity(whole.by_chunk()[part.range(units)].to_vec()),
    };
    (format!("{}.piece", part.number()), piece)
}

fn pieces(whole: &Perplexity, of: u32) -> Vec<Named> {
    (1..=of)
        .map(|i| piece(whole, part(&format!("{i}/{of}"))))
        .collect()
}

fn whole() -> Perplexity {
    let engine = engine();
    let tokens = encode(engine.tokenizer(), TEXT).expect("encodes");
    let text = Text::new(tokens, engine.tokenizer().n_vocab(), 8, None).expect("long enough");
    perplexity(&engine, &text, &Options::default(), &mut ()).expect("scores")
}

/// Returns the error of a merge, which must be one line.
fn refused(pieces: Vec<Named>) -> String {
    let error = merge(pieces).expect_err("refused").to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn any_number_of_parts_in_any_order_is_the_whole() {
    let whole = whole();
    let n = whole.chunks() as u32;
    for of in [1, 3, 8, n, n + 5] {
        let mut pieces = pieces(&whole, of);
        pieces.reverse();
        pieces.rotate_left(of as usize / 2);
        let merged = merge(pieces).expect("they belong together");
        let all = Content::Perplexity(whole.by_chunk().to_vec());
        assert_eq!(
            (merged.content, merged.isas),
            (all, vec!["scalar".to_owned()]),
            "{of}"
        );
    }
}

#[test]
fn holes_and_repeated_parts_are_refused() {
    let whole = whole();
    let mut some = pieces(&whole, 8);
    some.remove(6);
    some.remove(5);
    some.remove(2);
    assert_eq!(
        refused(some),
        "parts missing: 3,6-7 of 8: expected a piece of every part, got 5"
    );
    let mut twice = pieces(&whole, 3);
    let (_, again) = twice[1].clone();
    twice.push(("again".to_owned(), again));
    assert_eq!(
        refused(twice),
        "again: part 2/3 is there twice: expected it once, 2.piece has it too"
    );
    assert!(matches!(merge(Vec::new()), Err(Error::Nothing)));
}

#[test]
fn pieces_of_other_measurements_are_refused() {
    let whole = whole();
    let changed = |change: &dyn Fn(&mut Piece)| {
        let mut pieces = pieces(&whole, 3);
        change(&mut pieces[1].1);
        refused(pieces)
    };
    let other = "2.piece: piece of another measurement: ";
    assert_eq!(
        changed(&|piece| {
            piece.key.set("tokens of a chunk", 16);
        }),
        format!("{other}tokens of a chunk: expected 8 as in 1.piece, got 16")
    );
    assert_eq!(
        changed(&|piece| {
            piece.key.set("chunks", 9);
        }),
        format!("{other}chunks: expected none as in 1.piece, got 9")
    );
    // another version explains all differences that follow from it
    assert_eq!(
        changed(&|piece| {
            piece.key.set("version", "0.0.1").set("KV cache", "f32");
        }),
        format!(
            "{other}version: expected {} as in 1.piece, got 0.0.1",
            env!("CARGO_PKG_VERSION")
        )
    );
    assert!(changed(&|piece| piece.part = part("2/4")).contains("parts: expected 3 "));
    assert!(changed(&|piece| piece.units += 1).contains("units: expected "));
    assert!(changed(&|piece| piece.content = Content::Suite(Vec::new())).starts_with("2.piece: "));
}

/// Every truncated file, and every file with a flipped bit, is refused in one line.
#[test]
fn damaged_pieces_are_refused() {
    let (name, piece) = piece(&whole(), part("2/8"));
    let bytes = piece.to_bytes(&name).expect("encodes");
    assert_eq!(Piece::from_bytes(&bytes, &name).expect("sound"), piece);
    let is_refused = |bytes: &[u8], what: usize| {
        let error = Piece::from_bytes(bytes, &name)
            .expect_err("refused")
            .to_string();
        let is_line = error.starts_with("2.piece: ") && !error.contains('\n');
        assert!(is_line && error.contains("expected"), "{what}: {error}");
    };
    for n in 0..bytes.len() {
        is_refused(&bytes[..n], n);
        let mut changed = bytes.clone();
        changed[n] ^= 1 << (n % 8);
        is_refused(&changed, n);
    }
    is_refused(&[&bytes[..], b"more"].concat(), 0);
}

/// With a valid digest, the contents are still checked.
#[test]
fn forged_pieces_are_refused() {
    let (name, sound) = piece(&whole(), part("2/8"));
    let forged = |body: &[u8]| {
        let mut bytes = [MAGIC.as_bytes(), body].concat();
        bytes.extend(sha256(&bytes));
        let error = Piece::from_bytes(&bytes, &name)
            .expect_err("refused")
            .to_string();
        assert!(
            error.starts_with("2.piece: ") && !error.contains('\n'),
            "{error}"
        );
    };
    let body = sound.to_bytes(&name).expect("encodes");
    let body = &body[MAGIC.len()..body.len() - 32];
    for n in 0..body.len() {
        forged(&body[..n]);
    }
    forged(&[body, b"\0"].concat());
    // a list of 2^62 chunks, and deeply nested lists
    forged(&[&body[..body.len() - 1], &[0x9b, 0x40, 0, 0, 0, 0, 0, 0, 0]].concat());
    forged(&[0x81; 100_000]);
    let unsound = |change: &dyn Fn(&mut Piece)| {
        let mut piece = sound.clone();
        change(&mut piece);
        let bytes = piece.to_bytes(&name).expect("encodes");
        let error = Piece::from_bytes(&bytes, &name)
            .expect_err("refused")
            .to_string();
        assert!(error.contains("expected the units of its part"), "{error}");
    };
    unsound(&|piece| piece.units = usize::MAX);
    unsound(&|piece| piece.units += 8);
    unsound(&|piece| piece.about.n_ctx = 1);
    unsound(&|piece| piece.about.n_ctx = usize::MAX);
    unsound(&|piece| piece.content = Content::Suite(Vec::new()));
}

#[test]
fn importance_is_the_same_file_however_it_is_cut() {
    let engine = engine();
    let options = ImatrixOptions {
        chunk: 8,
        max_chunks: None,
        output: true,
    };
    let tokens = Collector::new(&engine, options)
        .and_then(|collector| collector.tokens(TEXT))
        .expect("tokens");
    let units = tokens.len() / 8;
    let sums = |part: Part| {
        let mut collector = Collector::new(&engine, options).expect("a collector");
        let own = part.range(units);
        for chunk in tokens[own.start * 8..own.end * 8].chunks(8) {
            collector.add(chunk).expect("adds");
        }
        collector.into_sums()
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = |of: u32| {
        let named = |i: u32| {
            let part = part(&format!("{i}/{of}"));
            let piece = Piece {
                key: key(),
                part,
                units,
                about: About::default(),
                content: Content::Imatrix(sums(part)),
            };
            let bytes = piece.to_bytes("piece").expect("encodes");
            (
                "piece".to_owned(),
                Piece::from_bytes(&bytes, "piece").expect("sound"),
            )
        };
        let merged = merge((1..=of).map(named).collect()).expect("they belong together");
        let Content::Imatrix(sums) = merged.content else {
            panic!("another kind");
        };
        let path = folder.path().join("merged.gguf");
        sums.write(&path, "text").expect("written");
        std::fs::read(path).expect("there")
    };
    let path = folder.path().join("whole.gguf");
    sums(part("1/1")).write(&path, "text").expect("written");
    let whole = std::fs::read(path).expect("there");
    for of in [1, 3, 8] {
        assert!(file(of) == whole, "{of} parts");
    }
}
