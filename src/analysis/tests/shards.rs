//! Shards: merging, and errors of one line.

use octavo_analysis::eval::{Options, Perplexity, Text, encode, perplexity};
use octavo_analysis::imatrix::{Collector, Options as ImatrixOptions};
use octavo_analysis::shards::{
    About, Content, Error, Key, MAGIC, Named, Shard, ShardIndex, merge, sha256,
};
use octavo_engine::{Engine, EngineOptions, ModelSource};
use octavo_kernels::{Isa, IsaChoice};

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

fn index(text: &str) -> ShardIndex {
    text.parse().expect("an index")
}

fn key() -> Key {
    let mut key = Key::new("perplexity");
    key.bytes("text", TEXT).set("tokens of a chunk", 8);
    key
}

/// Returns a shard with its chunks, under a file name.
fn shard(whole: &Perplexity, index: ShardIndex) -> Named {
    let units = whole.chunks();
    let shard = Shard {
        key: key(),
        index,
        units,
        about: About {
            n_ctx: 8,
            isa: "scalar".to_owned(),
            ..About::default()
        },
        content: Content::Perplexity(whole.by_chunk()[index.range(units)].to_vec()),
    };
    (format!("{}.shard", index.number()), shard)
}

fn shards(whole: &Perplexity, of: u32) -> Vec<Named> {
    (1..=of)
        .map(|i| shard(whole, index(&format!("{i}/{of}"))))
        .collect()
}

fn whole() -> Perplexity {
    let engine = engine();
    let tokens = encode(engine.tokenizer(), TEXT).expect("encodes");
    let text = Text::new(tokens, engine.tokenizer().n_vocab(), 8, None).expect("long enough");
    perplexity(&engine, &text, &Options::default(), &mut ()).expect("scores")
}

/// Returns the error of a merge, which must be one line.
fn refused(shards: Vec<Named>) -> String {
    let error = merge(shards).expect_err("refused").to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn any_number_of_shards_in_any_order_is_the_whole() {
    let whole = whole();
    let n = whole.chunks() as u32;
    for of in [1, 3, 8, n, n + 5] {
        let mut shards = shards(&whole, of);
        shards.reverse();
        shards.rotate_left(of as usize / 2);
        let merged = merge(shards).expect("they belong together");
        let all = Content::Perplexity(whole.by_chunk().to_vec());
        assert_eq!(
            (merged.content, merged.isas),
            (all, vec!["scalar".to_owned()]),
            "{of}"
        );
    }
}

#[test]
fn holes_and_repeated_shards_are_refused() {
    let whole = whole();
    let mut some = shards(&whole, 8);
    some.remove(6);
    some.remove(5);
    some.remove(2);
    assert_eq!(
        refused(some),
        "shards missing: 3,6-7 of 8: expected every shard, got 5"
    );
    let mut twice = shards(&whole, 3);
    let (_, again) = twice[1].clone();
    twice.push(("again".to_owned(), again));
    assert_eq!(
        refused(twice),
        "again: shard 2/3 is there twice: expected it once, 2.shard has it too"
    );
    assert!(matches!(merge(Vec::new()), Err(Error::Nothing)));
}

#[test]
fn shards_of_other_measurements_are_refused() {
    let whole = whole();
    let changed = |change: &dyn Fn(&mut Shard)| {
        let mut shards = shards(&whole, 3);
        change(&mut shards[1].1);
        refused(shards)
    };
    let other = "2.shard: shard of another measurement: ";
    assert_eq!(
        changed(&|shard| {
            shard.key.set("tokens of a chunk", 16);
        }),
        format!("{other}tokens of a chunk: expected 8 as in 1.shard, got 16")
    );
    assert_eq!(
        changed(&|shard| {
            shard.key.set("chunks", 9);
        }),
        format!("{other}chunks: expected none as in 1.shard, got 9")
    );
    // another version explains all differences that follow from it
    assert_eq!(
        changed(&|shard| {
            shard.key.set("version", "0.0.1").set("KV cache", "f32");
        }),
        format!(
            "{other}version: expected {} as in 1.shard, got 0.0.1",
            env!("CARGO_PKG_VERSION")
        )
    );
    assert!(changed(&|shard| shard.index = index("2/4")).contains("shards: expected 3 "));
    assert!(changed(&|shard| shard.units += 1).contains("units: expected "));
    assert!(changed(&|shard| shard.content = Content::Suite(Vec::new())).starts_with("2.shard: "));
}

/// Every truncated file, and every file with a flipped bit, is refused in one line.
#[test]
fn damaged_shards_are_refused() {
    let (name, shard) = shard(&whole(), index("2/8"));
    let bytes = shard.to_bytes(&name).expect("encodes");
    assert_eq!(Shard::from_bytes(&bytes, &name).expect("sound"), shard);
    let is_refused = |bytes: &[u8], what: usize| {
        let error = Shard::from_bytes(bytes, &name)
            .expect_err("refused")
            .to_string();
        let is_line = error.starts_with("2.shard: ") && !error.contains('\n');
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
fn forged_shards_are_refused() {
    let (name, sound) = shard(&whole(), index("2/8"));
    let forged = |body: &[u8]| {
        let mut bytes = [MAGIC.as_bytes(), body].concat();
        bytes.extend(sha256(&bytes));
        let error = Shard::from_bytes(&bytes, &name)
            .expect_err("refused")
            .to_string();
        assert!(
            error.starts_with("2.shard: ") && !error.contains('\n'),
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
    let unsound = |change: &dyn Fn(&mut Shard)| {
        let mut shard = sound.clone();
        change(&mut shard);
        let bytes = shard.to_bytes(&name).expect("encodes");
        let error = Shard::from_bytes(&bytes, &name)
            .expect_err("refused")
            .to_string();
        assert!(error.contains("expected the units of its index"), "{error}");
    };
    unsound(&|shard| shard.units = usize::MAX);
    unsound(&|shard| shard.units += 8);
    unsound(&|shard| shard.about.n_ctx = 1);
    unsound(&|shard| shard.about.n_ctx = usize::MAX);
    unsound(&|shard| shard.content = Content::Suite(Vec::new()));
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
    let sums = |shard: ShardIndex| {
        let mut collector = Collector::new(&engine, options).expect("a collector");
        let own = shard.range(units);
        for chunk in tokens[own.start * 8..own.end * 8].chunks(8) {
            collector.add(chunk).expect("adds");
        }
        collector.into_sums()
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = |of: u32| {
        let named = |i: u32| {
            let index = index(&format!("{i}/{of}"));
            let shard = Shard {
                key: key(),
                index,
                units,
                about: About::default(),
                content: Content::Imatrix(sums(index)),
            };
            let bytes = shard.to_bytes("shard").expect("encodes");
            (
                "shard".to_owned(),
                Shard::from_bytes(&bytes, "shard").expect("sound"),
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
    sums(index("1/1")).write(&path, "text").expect("written");
    let whole = std::fs::read(path).expect("there");
    for of in [1, 3, 8] {
        assert!(file(of) == whole, "{of} shards");
    }
}
