//! Storage in the cache: values come back exactly as ggml's quantizers round them.

use super::exact::SCALE;
use super::{Case, identity, run};
use crate::common::{Rng, e4m3};
use half::{bf16, f16};
use octavo_kernels::{Isa, KvType, Scores};
use octavo_quant::{TensorType, dequantize, iq4_nl_at_once, quantize};

/// Rounds values as a cache type does.
fn left_of(ty: KvType, x: &[f32]) -> Vec<f32> {
    let decode = |ty: TensorType, bytes: &[u8]| {
        let mut left = vec![0.0; x.len()];
        dequantize(ty, bytes, &mut left).expect("whole blocks");
        left
    };
    let through = |ty: TensorType| {
        let mut bytes = Vec::new();
        quantize(ty, x, x.len(), None, &mut bytes).expect("whole blocks");
        decode(ty, &bytes)
    };
    match ty {
        KvType::F32 => x.to_vec(),
        KvType::F16 => x.iter().map(|v| f16::from_f32(*v).to_f32()).collect(),
        KvType::Bf16 => x.iter().map(|v| bf16::from_f32(*v).to_f32()).collect(),
        KvType::F8E4M3 => {
            let mut left = x.to_vec();
            e4m3::round(&mut left);
            left
        }
        KvType::Q8_0 => through(TensorType::Q8_0),
        KvType::Q4_0 => through(TensorType::Q4_0),
        KvType::Q5_0 => through(TensorType::Q5_0),
        KvType::Q5_1 => through(TensorType::Q5_1),
        KvType::Iq4Nl => {
            let blocks = x.as_chunks().0.iter().flat_map(iq4_nl_at_once);
            decode(TensorType::IQ4_NL, &blocks.collect::<Vec<u8>>())
        }
    }
}

/// A token that attends only to itself gets its stored value, bit for bit.
#[test]
fn a_value_alone_comes_back_as_it_is_stored() {
    let mut rng = Rng(11);
    for isa in Isa::available() {
        for ty in KvType::ALL {
            let scores = Scores {
                window: Some(1),
                ..Scores::plain(SCALE)
            };
            let c = Case {
                isa,
                heads: 2,
                heads_kv: 2,
                head_dim: 96,
                types: ty.both(),
                threads: 1,
                scores,
                sinks: false,
                before: None,
            };
            // more than a page, so that every offset in a page is used
            let n = 20;
            let mut make = || rng.floats(n * c.heads * c.head_dim);
            let data = (make(), make(), make());
            let got = run(c, &data, n, 0, 512, &identity(n));
            let expected = left_of(ty, &data.2);
            let pairs = got.iter().zip(&expected).enumerate();
            for (i, (got, expected)) in pairs {
                assert!(
                    (got - expected).abs() <= f32::EPSILON * expected.abs(),
                    "{isa} {ty}, value {i}: expected {expected}, got {got}"
                );
            }
        }
    }
}
