//! Written files read back the same: random keys, arrays, tensors and alignments.

use crate::raw::open;
use gguf_rs_lite::{OwnedArray, OwnedValue, TensorType, Writer};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn array() -> impl Strategy<Value = OwnedArray> {
    macro_rules! of {
        ($t:ty, $variant:ident) => {
            prop::collection::vec(any::<$t>(), 0..20)
                .prop_map(OwnedArray::$variant)
                .boxed()
        };
    }
    prop_oneof![
        of!(u8, U8),
        of!(i8, I8),
        of!(u16, U16),
        of!(i16, I16),
        of!(u32, U32),
        of!(i32, I32),
        prop::collection::vec(
            prop::num::f32::ANY.prop_filter("equal to itself", |v| !v.is_nan()),
            0..20
        )
        .prop_map(OwnedArray::F32),
        of!(bool, Bool),
        of!(Vec<u8>, Str),
        of!(u64, U64),
        of!(i64, I64),
        prop::collection::vec(
            prop::num::f64::ANY.prop_filter("equal to itself", |v| !v.is_nan()),
            0..20
        )
        .prop_map(OwnedArray::F64),
    ]
}

fn value() -> impl Strategy<Value = OwnedValue> {
    prop_oneof![
        any::<u8>().prop_map(OwnedValue::U8),
        any::<i8>().prop_map(OwnedValue::I8),
        any::<u16>().prop_map(OwnedValue::U16),
        any::<i16>().prop_map(OwnedValue::I16),
        any::<u32>().prop_map(OwnedValue::U32),
        any::<i32>().prop_map(OwnedValue::I32),
        (-1e30f32..1e30).prop_map(OwnedValue::F32),
        any::<bool>().prop_map(OwnedValue::Bool),
        any::<Vec<u8>>().prop_map(OwnedValue::Str),
        array().prop_map(OwnedValue::Array),
        any::<u64>().prop_map(OwnedValue::U64),
        any::<i64>().prop_map(OwnedValue::I64),
        (-1e300f64..1e300).prop_map(OwnedValue::F64),
    ]
}

/// Generates type, dims and a seed of the bytes.
fn tensor() -> impl Strategy<Value = (TensorType, Vec<u64>, u8)> {
    let types: Vec<_> = TensorType::all().collect();
    let dims = prop::collection::vec(0u64..4, 0..4);
    (prop::sample::select(types), 0u64..4, dims, any::<u8>()).prop_map(
        |(ty, blocks, mut dims, seed)| {
            dims.truncate(3);
            dims.insert(0, blocks * ty.block_len() as u64);
            (ty, dims, seed)
        },
    )
}

fn tensor_bytes(ty: TensorType, dims: &[u64], seed: u8) -> Vec<u8> {
    let n = dims.iter().product::<u64>() / ty.block_len() as u64 * ty.block_bytes() as u64;
    (0..n)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(
        keys in prop::collection::btree_map("\\PC{1,20}", value(), 0..30),
        tensors in prop::collection::btree_map("\\PC{0,15}", tensor(), 0..10),
        alignment in prop::option::of(0u32..21),
        last_missing in any::<bool>(),
    ) {
        let keys = keys.into_iter().filter(|(k, _)| !k.starts_with("split."));
        let keys: BTreeMap<_, _> = keys.collect();
        let data = tensors.values().map(|(ty, dims, seed)| tensor_bytes(*ty, dims, *seed));
        let data: Vec<_> = data.collect();
        let mut w = Writer::new();
        for (key, value) in &keys {
            w.set(key, value.clone());
        }
        if let Some(shift) = alignment {
            w.alignment(1 << shift);
        }
        for ((name, (ty, dims, _)), bytes) in tensors.iter().zip(&data) {
            w.tensor(name, dims, *ty, bytes.as_slice());
        }
        let mut out = Vec::new();
        prop_assert_eq!(w.write_to(&mut out).unwrap(), out.len() as u64);

        let file = open(&out, true).unwrap();
        prop_assert_eq!(file.alignment(), alignment.map_or(32, |s| 1 << s));
        prop_assert_eq!(file.keys().len(), keys.len() + usize::from(alignment.is_some()));
        for ((key, got), (want_key, want)) in file.keys().zip(&keys) {
            prop_assert_eq!(key, want_key);
            prop_assert_eq!(got.value_type(), want.value_type());
            prop_assert_eq!(&OwnedValue::from(got), want);
        }
        prop_assert_eq!(file.tensors().len(), tensors.len());
        let pairs = file.tensors().iter().zip(&tensors).zip(&data);
        for ((got, (name, (ty, dims, _))), bytes) in pairs {
            prop_assert_eq!((&got.name, got.ty, &got.dims), (name, *ty, dims));
            prop_assert_eq!(got.n_elements(), dims.iter().product::<u64>());
            prop_assert_eq!(file.data(got), bytes.as_slice());
            prop_assert_eq!(got.offset % u64::from(file.alignment()), 0);
            prop_assert_eq!(file.tensor(name), Some(got));
        }
        // strict mode refuses a file without its last byte, if there is data, padding or a key to
        // lose
        if last_missing {
            prop_assert!(open(&out[..out.len() - 1], true).is_err());
        }
    }
}
