//! Keys, their types and their values.

use super::*;

/// Adds files with every bad value in every field of its kind.
pub(super) fn fields(c: &mut Corpus) {
    let base = base();
    let mut put = |field: Field, at: usize, new: &[u8], want| {
        c.add(
            format!("{field:?} at {at} is {new:?}"),
            patched(&base.bytes, at, new),
            want,
        );
    };
    for &(field, at) in &base.marks {
        match field {
            Field::KeyLength => {
                HUGE.iter()
                    .for_each(|n| put(field, at, &n.to_le_bytes(), "KeyLength"));
                put(field, at, &0u64.to_le_bytes(), "EmptyKey");
                put(field, at, &65_535u64.to_le_bytes(), "Truncated");
            }
            Field::ValueType | Field::ElementType => {
                for ty in [13u32, 14, 255, 0x8000_0000, u32::MAX] {
                    put(field, at, &ty.to_le_bytes(), "ValueTypeId");
                }
                if field == Field::ElementType {
                    put(field, at, &9u32.to_le_bytes(), "NestedArray");
                }
            }
            Field::StringLength | Field::ElementCount => {
                HUGE.iter()
                    .for_each(|n| put(field, at, &n.to_le_bytes(), "Truncated"));
                put(field, at, &100_000u64.to_le_bytes(), "Truncated");
            }
            Field::NameLength => {
                HUGE.iter()
                    .for_each(|n| put(field, at, &n.to_le_bytes(), "TensorNameLength"));
                put(field, at, &64u64.to_le_bytes(), "TensorNameLength");
            }
            Field::DimCount => {
                [5u32, 6, 255, 1 << 31, u32::MAX]
                    .iter()
                    .for_each(|n| put(field, at, &n.to_le_bytes(), "TensorDims"));
            }
            Field::Dim => HUGE.iter().for_each(|n| {
                put(
                    field,
                    at,
                    &n.to_le_bytes(),
                    "TensorSize|TensorPastEnd|TensorRow",
                );
            }),
            Field::TensorType => {
                for ty in [4u32, 5, 31, 32, 33, 36, 37, 38] {
                    put(field, at, &ty.to_le_bytes(), "TensorTypeRemoved");
                }
                for ty in [43u32, 133, 202, 255, 1 << 31, u32::MAX] {
                    put(field, at, &ty.to_le_bytes(), "TensorTypeId");
                }
            }
            Field::Offset => {
                let good =
                    u64::from_le_bytes(base.bytes[at..at + 8].try_into().expect("eight bytes"));
                let bad = [
                    good + 1,
                    good + 32,
                    good.wrapping_sub(32),
                    1 << 40,
                    u64::MAX,
                    u64::MAX - 31,
                    1 << 63,
                ];
                bad.iter()
                    .for_each(|n| put(field, at, &n.to_le_bytes(), "TensorOffset"));
            }
        }
    }
}

pub(super) fn keys(c: &mut Corpus) {
    for elem in (0..13).filter(|&t| t != 9) {
        for n in [1 << 60, 1 << 61, u64::MAX, 1 << 31] {
            c.key(
                format!("an empty array that claims {n} of type {elem}"),
                "Truncated",
                9,
                |r| {
                    r.array(elem, n);
                },
            );
        }
        c.key(format!("an empty array of type {elem}"), "ok", 9, |r| {
            r.array(elem, 0);
        });
    }
    c.key(
        "an array of an unknown type with 2^60 elements",
        "ValueTypeId",
        9,
        |r| {
            r.array(99, 1 << 60);
        },
    );
    c.key("arrays nested a thousand times", "NestedArray", 9, |r| {
        (0..1000).for_each(|_| {
            r.array(9, 1);
        });
    });
    c.key(
        "a string array whose last string is cut",
        "Truncated",
        9,
        |r| {
            r.array(8, 2).string(b"whole").u64(6).bytes(b"hal");
        },
    );
    c.key(
        "a string array whose second length wraps",
        "Truncated",
        9,
        |r| {
            r.array(8, 2).string(b"a").u64(u64::MAX - 8).bytes(b"rest");
        },
    );
    c.key("a string that is not UTF-8", "ok", 8, |r| {
        r.string(b"\xff\xfe");
    });
    let one = |key: &[u8]| {
        let mut raw = Raw::new(3, 0, 1);
        raw.key(key, 0).bytes(&[1]);
        raw.bytes
    };
    c.add("a key of 65535 bytes", one(&[b'k'; 65_535]), "ok");
    c.add("a key of 65536 bytes", one(&[b'k'; 65_536]), "KeyLength");
    c.add("a key that is not UTF-8", one(b"k\xff"), "NotUtf8");
    c.add("a key of control characters", one(b"a\nb\x1b[31m\0"), "ok");
    for (n, gap) in [(2u32, 1), (100, 50), (1000, 999)] {
        let mut raw = Raw::new(3, 0, n.into());
        (0..n).for_each(|i| {
            raw.key(format!("k{}", i % gap).as_bytes(), 0).bytes(&[1]);
        });
        c.add(
            format!("duplicate keys, {gap} apart"),
            raw.bytes,
            "DuplicateKey",
        );
    }
    let mut raw = Raw::new(3, 0, 65_536);
    (0..65_536u32).for_each(|i| {
        raw.key(format!("{i:x}").as_bytes(), 0).bytes(&[1]);
    });
    c.add("65536 keys", raw.bytes, "ok");
    let mut raw = Raw::new(3, 0, 1);
    raw.key(b"k", 9).array(8, 1 << 20);
    (0..1 << 20).for_each(|_| {
        raw.u64(0);
    });
    c.add("a million empty strings", raw.bytes, "ok");
}
