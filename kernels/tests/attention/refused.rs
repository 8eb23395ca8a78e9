//! Tests that invalid attention is refused before it runs.

use super::exact::SCALE;
use super::{Case, data, identity, run};
use crate::common::{KV, embed, program};
use octavo_kernels::{
    CacheLayer, Executor, Isa, KvShape, KvStore, KvType, KvTypes, Op, Pool, Scores,
};
use std::sync::Arc;

#[test]
#[should_panic(expected = "a part of a sequence whose tokens see later ones")]
fn a_part_of_what_is_seen_is_refused() {
    let scores = Scores {
        causal: false,
        ..Scores::plain(SCALE)
    };
    let c = Case {
        isa: Isa::Scalar,
        heads: 1,
        heads_kv: 1,
        head_dim: 16,
        types: KvType::F32.both(),
        threads: 1,
        scores,
        sinks: false,
        before: None,
    };
    run(c, &data(c, 20), 20, 20, 10, &identity(20));
}

#[test]
#[should_panic(expected = "f16/q8_0 keys and values of heads of 20")]
fn heads_of_no_whole_groups_are_refused_for_either_half() {
    let shape = KvShape {
        n_layer: 1,
        n_head_kv: 1,
        head_dim: 20,
        types: KvTypes {
            k: KvType::F16,
            v: KvType::Q8_0,
        },
    };
    let _ = KvStore::new(&[shape], 1);
}

/// Creates a program with one attention of four heads.
fn attending(scores: Scores, sinks: Option<Arc<[f32]>>) {
    let x = [0.0; 8];
    let ops = vec![
        embed(1, 8, &x, 0),
        embed(1, 2, &x, 1),
        Op::KvWrite {
            k: 1,
            v: 1,
            cache: CacheLayer { group: 0, layer: 0 },
        }
        .without_result(),
        Op::Attention {
            q: 0,
            seen: None,
            cache: CacheLayer { group: 0, layer: 0 },
            scores,
            sinks,
        }
        .to(2),
    ];
    let pool = Pool::new(1).expect("threads");
    Executor::new(Isa::Scalar, program(ops, &[8, 2, 8], KV), Vec::new(), pool);
}

#[test]
#[should_panic(expected = "operation 3: sinks: expected 4, got 3")]
fn every_head_has_a_sink() {
    attending(Scores::plain(1.0), Some(vec![0.0; 3].into()));
}

#[test]
#[should_panic(expected = "operation 3: a window of no positions")]
fn a_window_has_positions() {
    let scores = Scores {
        window: Some(0),
        ..Scores::plain(1.0)
    };
    attending(scores, Some(vec![0.0; 4].into()));
}
