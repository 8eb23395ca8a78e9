//! Indexers: the choice of the keys that attention sees.

use octavo_kernels::{Function, ValueShape};

use super::super::graph::{Norm, Op, ValueId};
use super::super::hparams::{IndexerHparams, KeyChoice};
use super::super::taps;
use super::super::weights::Indexer;
use super::{Builder, at};

impl Builder<'_> {
    /// Writes an indexer's keys of the normed input `x` into their cache.
    pub(super) fn index_keys(&mut self, x: ValueId, w: &Indexer, l: usize) {
        let sizes = self.indexer();
        let k = self.matmul(x, w.keys, at(taps::INDEXER_K, l));
        let k = self.nodes.norm(k, Norm::Layer, w.norm, sizes.eps, Some(l));
        let k = self.index_rotation(k, &sizes, taps::INDEXER_K, l);
        let nothing = ValueShape {
            width: 0,
            ..self.info(k)
        };
        // values that nothing reads
        let write = Op::KvWrite {
            k,
            v: k,
            cache: self.h.layers[l].index_cache,
        };
        self.push(write, nothing, None);
    }

    /// Appends the choice of a layer's keys, by queries from their low-rank row; returns that of an
    /// earlier layer where it has none, and `None` where all keys are seen.
    pub(super) fn choice(
        &mut self,
        x: ValueId,
        low_rank: Option<ValueId>,
        w: Option<&Indexer>,
        l: usize,
    ) -> Option<ValueId> {
        if self.h.layers[l].choice == KeyChoice::All {
            return None;
        }
        let (Some(w), Some(low_rank)) = (w, low_rank) else {
            return self.seen;
        };
        let sizes = self.indexer();
        let q = self.matmul(low_rank, w.queries, at(taps::INDEXER_Q, l));
        let q = self.index_rotation(q, &sizes, taps::INDEXER_Q, l);
        let weights = self.matmul(x, w.weights, at(taps::INDEXER_WEIGHTS, l));
        let scale = Function::Scale(1.0 / ((sizes.key_dim * sizes.n_head) as f32).sqrt());
        let weights = self.unary(weights, scale, at(taps::INDEXER_WEIGHTS, l));
        let select = Op::SelectKeys {
            q,
            weights,
            cache: self.h.layers[l].index_cache,
            n: sizes.n_keys,
        };
        let info = ValueShape {
            width: sizes.n_keys,
            ..self.info(q)
        };
        self.seen = Some(self.push(select, info, at(taps::SELECTED_KEYS, l)));
        self.seen
    }

    fn indexer(&self) -> IndexerHparams {
        self.h
            .indexer
            .expect("checked where the weights were bound")
    }

    fn index_rotation(
        &mut self,
        x: ValueId,
        sizes: &IndexerHparams,
        tap: &'static str,
        l: usize,
    ) -> ValueId {
        let op = Op::Rope {
            x,
            head_dim: sizes.key_dim,
            rope: sizes.rope,
        };
        self.push(op, self.info(x), at(tap, l))
    }
}
