//! A corpus of hostile files, each with its expected verdict.

mod keys;

use crate::raw::{Field, Random, Raw, patched};
use gguf_rs_lite::TensorType;

/// One file: its name states the fault; its bytes, and the verdicts allowed.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// Variants of `Error`, or `ok`, separated by `|` where the exact fault depends on the place.
    pub(crate) want: &'static str,
}

const HUGE: [u64; 9] = [
    u64::MAX,
    u64::MAX - 7,
    1 << 63,
    (1 << 63) - 1,
    1 << 62,
    1 << 61,
    1 << 60,
    1 << 32,
    u32::MAX as u64,
];

/// Builds a whole file with a key of every type, an array of every type and tensors of four dims
/// and types.
pub(crate) fn base() -> Raw {
    let mut raw = Raw::new(3, 4, 12 + 12);
    let sizes = [1usize, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
    for ty in (0..13u32).filter(|&t| t != 9) {
        raw.key(format!("scalar.{ty}").as_bytes(), ty);
        if ty == 8 {
            raw.string(b"text")
        } else {
            raw.fill(sizes[ty as usize])
        };
    }
    for ty in (0..13u32).filter(|&t| t != 9) {
        raw.key(format!("array.{ty}").as_bytes(), 9).array(ty, 3);
        if ty == 8 {
            raw.string(b"a").string(b"").string(b"ccc")
        } else {
            raw.fill(3 * sizes[ty as usize])
        };
    }
    raw.tensor(b"f32", &[3, 5], 0, 0);
    raw.tensor(b"q4_k", &[256, 2], 12, 64);
    raw.tensor(b"f16", &[2, 2, 2, 2], 1, 352);
    raw.tensor(b"q8_0", &[32], 8, 384);
    raw.pad(32).fill(418);
    raw
}

fn bytes_of(build: impl FnOnce(&mut Raw)) -> Vec<u8> {
    let mut raw = Raw::default();
    build(&mut raw);
    raw.bytes
}

struct Corpus(Vec<Case>);

impl Corpus {
    fn add(&mut self, name: impl Into<String>, bytes: Vec<u8>, want: &'static str) {
        self.0.push(Case {
            name: name.into(),
            bytes,
            want,
        });
    }

    /// Adds a file of one key; `value` writes its type and value.
    fn key(
        &mut self,
        name: impl Into<String>,
        want: &'static str,
        ty: u32,
        value: impl FnOnce(&mut Raw),
    ) {
        let mut raw = Raw::new(3, 0, 1);
        raw.key(b"k", ty);
        value(&mut raw);
        self.add(name, raw.bytes, want);
    }

    /// Adds a file of one tensor with `n` bytes of data.
    fn tensor(&mut self, want: &'static str, dims: &[u64], ty: u32, n: usize) {
        let mut raw = Raw::new(3, 1, 0);
        raw.tensor(b"t", dims, ty, 0).pad(32).fill(n);
        self.add(
            format!("tensor {dims:?} of type {ty} with {n} bytes"),
            raw.bytes,
            want,
        );
    }
}

pub(crate) fn corpus() -> Vec<Case> {
    let mut c = Corpus(Vec::new());
    headers(&mut c);
    counts(&mut c);
    truncations(&mut c);
    keys::fields(&mut c);
    keys::keys(&mut c);
    alignments(&mut c);
    tensors(&mut c);
    noise(&mut c);
    c.0
}

fn headers(c: &mut Corpus) {
    let base = base().bytes;
    for magic in [
        b"GGML",
        b"FUGG",
        b"gguf",
        b"GGUf",
        b"FUGF",
        b"\0\0\0\0",
        b"PK\x03\x04",
        b"\x7fELF",
    ] {
        c.add(
            format!("magic {}", magic.escape_ascii()),
            patched(&base, 0, magic),
            "Magic",
        );
    }
    for version in [0, 1, 4, 5, 255, 1000, 0x7fff_ffff, u32::MAX] {
        c.add(
            format!("version {version}"),
            patched(&base, 4, &version.to_le_bytes()),
            "Version",
        );
    }
    c.add("version 2", patched(&base, 4, &2u32.to_le_bytes()), "ok");
    for version in 1u32..4 {
        let header = [
            b"GGUF".as_slice(),
            &version.to_be_bytes(),
            &0u64.to_be_bytes(),
            &0u64.to_be_bytes(),
        ]
        .concat();
        c.add(format!("big-endian version {version}"), header, "BigEndian");
    }
}

/// Adds files with wrong numbers of tensors and keys.
fn counts(c: &mut Corpus) {
    let base = base().bytes;
    for n in HUGE.into_iter().chain([131_073]) {
        c.add(
            format!("{n} tensors"),
            patched(&base, 8, &n.to_le_bytes()),
            "Count",
        );
        c.add(
            format!("{n} keys"),
            patched(&base, 16, &n.to_le_bytes()),
            "Count",
        );
    }
    c.add(
        "65537 keys",
        patched(&base, 16, &65_537u64.to_le_bytes()),
        "Count",
    );
    for (at, n, what) in [
        (8, 131_072u64, "tensors"),
        (8, 1000, "tensors"),
        (16, 65_536, "keys"),
        (16, 1000, "keys"),
    ] {
        c.add(
            format!("{n} {what} in a small file"),
            patched(&base, at, &n.to_le_bytes()),
            "Truncated",
        );
    }
    c.add(
        "one tensor too many",
        patched(&base, 8, &5u64.to_le_bytes()),
        "TensorPastEnd",
    );
    // the first tensor reads as a key "f32" of type u16, which leaves its other dimension in place
    // of a name
    c.add(
        "one key too many",
        patched(&base, 16, &25u64.to_le_bytes()),
        "TensorNameLength",
    );
    c.add(
        "no tensor but data",
        patched(&base, 8, &0u64.to_le_bytes()),
        "ok",
    );
    c.add(
        "trailing bytes",
        [base.as_slice(), &[7; 1000]].concat(),
        "ok",
    );
}

fn truncations(c: &mut Corpus) {
    let base = base().bytes;
    for len in (0..base.len()).step_by(7).chain([base.len() - 1]) {
        let want = match len {
            0..4 => "Truncated",
            _ => "Truncated|TensorPastEnd",
        };
        c.add(format!("cut to {len} bytes"), base[..len].to_vec(), want);
    }
}

fn alignments(c: &mut Corpus) {
    let with = |build: &dyn Fn(&mut Raw)| {
        let mut raw = Raw::new(3, 1, 1);
        build(&mut raw);
        raw.tensor(b"t", &[4], 0, 0).pad(1 << 20).fill(16);
        raw.bytes
    };
    for a in [0u32, 3, 13, 31, 33, 1 << 21, 1 << 30, 1 << 31, u32::MAX] {
        c.add(
            format!("alignment {a}"),
            with(&|r| {
                r.key(b"general.alignment", 4).u32(a);
            }),
            "Alignment",
        );
    }
    c.add(
        "alignment 1 MiB",
        with(&|r| {
            r.key(b"general.alignment", 4).u32(1 << 20);
        }),
        "ok",
    );
    for (ty, n) in [
        (0u32, 1),
        (1, 1),
        (2, 2),
        (3, 2),
        (5, 4),
        (6, 4),
        (7, 1),
        (10, 8),
        (11, 8),
        (12, 8),
    ] {
        let value = |r: &mut Raw| {
            r.key(b"general.alignment", ty)
                .bytes(&[32, 0, 0, 0, 0, 0, 0, 0][..n]);
        };
        c.add(format!("alignment of type {ty}"), with(&value), "KeyType");
    }
    c.add(
        "alignment as text",
        with(&|r| {
            r.key(b"general.alignment", 8).string(b"32");
        }),
        "KeyType",
    );
    let array = |r: &mut Raw| {
        r.key(b"general.alignment", 9).array(4, 1).u32(32);
    };
    c.add("alignment as an array", with(&array), "KeyType");
    let mut raw = Raw::new(3, 1, 0);
    raw.tensor(b"t", &[4, 0], 0, 0);
    c.add(
        "no padding before an empty data section",
        raw.bytes,
        "Truncated",
    );
}

fn tensors(c: &mut Corpus) {
    c.tensor("ok", &[], 0, 4);
    c.tensor("TensorPastEnd", &[], 0, 3);
    c.tensor("TensorRow", &[], 12, 144);
    c.tensor("ok", &[0], 12, 0);
    c.tensor("ok", &[0, u64::MAX >> 1], 0, 0);
    c.tensor("TensorSize", &[0, u64::MAX], 0, 0);
    c.tensor("TensorSize", &[1 << 32, 1 << 32], 0, 0);
    c.tensor("TensorSize", &[1 << 32, 1 << 32, 0], 0, 0);
    c.tensor("TensorSize", &[1 << 16, 1 << 16, 1 << 16, 1 << 16], 24, 64);
    c.tensor("TensorSize", &[1 << 62], 27, 0);
    c.tensor("TensorSize", &[4, (1 << 30) - 1, (1 << 30) + 1], 0, 64);
    c.tensor("TensorPastEnd", &[(1 << 63) - 64], 24, 64);
    c.tensor("TensorPastEnd", &[1 << 20, 1 << 20], 2, 1000);
    for ty in TensorType::all() {
        let (block, bytes) = (ty.block_len() as u64, ty.block_bytes());
        c.tensor("ok", &[block * 2], ty.id(), 2 * bytes);
        c.tensor("TensorPastEnd", &[block * 2], ty.id(), 2 * bytes - 1);
        if block > 1 {
            c.tensor("TensorRow", &[block + 1], ty.id(), 2 * bytes);
            c.tensor("TensorRow", &[1, block], ty.id(), bytes);
        }
    }
    let pair = |a: &[u8], b: &[u8], second: u64| {
        let mut raw = Raw::new(3, 2, 0);
        raw.tensor(a, &[8], 0, 0)
            .tensor(b, &[8], 0, second)
            .pad(32)
            .fill(96);
        raw.bytes
    };
    c.add("two tensors", pair(b"a", b"b", 32), "ok");
    c.add(
        "a tensor name twice",
        pair(b"a", b"a", 32),
        "DuplicateTensor",
    );
    c.add(
        "no tensor name twice",
        pair(b"", b"", 32),
        "DuplicateTensor",
    );
    c.add("no tensor name", pair(b"", b"b", 32), "ok");
    c.add(
        "a tensor name that is not UTF-8",
        pair(b"\xc3", b"b", 32),
        "NotUtf8",
    );
    c.add(
        "a tensor name of 63 bytes",
        pair(&[b'x'; 63], b"b", 32),
        "ok",
    );
    c.add(
        "a tensor name of 64 bytes",
        pair(&[b'x'; 64], b"b", 32),
        "TensorNameLength",
    );
    c.add("tensors that overlap", pair(b"a", b"b", 0), "TensorOffset");
    c.add(
        "a gap between tensors",
        pair(b"a", b"b", 64),
        "TensorOffset",
    );
    let mut raw = Raw::new(3, 2, 0);
    raw.tensor(b"a", &[8], 0, 32)
        .tensor(b"b", &[8], 0, 0)
        .pad(32)
        .fill(96);
    c.add("tensors out of order", raw.bytes, "TensorOffset");
    let mut raw = Raw::new(3, 131_072, 0);
    (0..131_072u32).for_each(|i| {
        raw.tensor(format!("{i:x}").as_bytes(), &[0], 0, 0);
    });
    raw.pad(32);
    c.add("131072 tensors", raw.bytes, "ok");
}

fn noise(c: &mut Corpus) {
    c.add("nothing", Vec::new(), "Truncated");
    c.add("the magic alone", b"GGUF".to_vec(), "Truncated");
    for (name, byte) in [("zeros", 0u8), ("ones", 255), ("text", b'G')] {
        c.add(name, vec![byte; 100_000], "Magic");
    }
    c.add(
        "the magic again and again",
        b"GGUF".repeat(10_000),
        "Version",
    );
    let mut rng = Random(1);
    for i in 0..20 {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        let (tensors, keys) = (rng.below(20), rng.below(20) + 1);
        bytes.extend(bytes_of(|r| {
            r.u64(tensors).u64(keys);
        }));
        bytes.extend(rng.bytes(5000));
        c.add(format!("noise {i} after the header"), bytes, "KeyLength");
    }
}
