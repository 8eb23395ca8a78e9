//! Multi-head latent attention (MLA): from a layer's normed input to the block's result.

use octavo_kernels::ValueShape;

use super::super::graph::{Op, ValueId};
use super::super::hparams::LatentHparams;
use super::super::taps;
use super::super::weights::{
    LatentAttention, LatentHeads, LatentQuery, NormWeights, VecId, WeightId,
};
use super::{Builder, Named, at};

/// The latent row that all heads share: the part without RoPE, and the rotated part.
struct LowRank {
    plain: ValueId,
    rotated: ValueId,
}

impl Builder<'_> {
    pub(super) fn latent_attention(
        &mut self,
        x: ValueId,
        w: &LatentAttention,
        l: usize,
    ) -> ValueId {
        let sizes = self.h.latent.expect("checked where the weights were bound");
        if let Some(indexer) = &w.indexer {
            self.index_keys(x, indexer, l);
        }
        let (q, low_rank) = self.latent_queries(x, &w.query, l);
        let plain = self.slice(q, sizes.query(), 0, sizes.plain);
        let rotary = self.slice(q, sizes.query(), sizes.plain, sizes.rotated);
        let out = match w.heads {
            LatentHeads::Absorbed { keys, values, all } => {
                let all = self.numbers_of_heads(all, x);
                let plain = self.by_head(plain, keys, all, at(taps::Q_NOPE_ABSORBED, l));
                let rotary = self.rotated_part(rotary, &sizes, self.inner_name(taps::Q_PE, l));
                let q = self.concat(
                    plain,
                    rotary,
                    [sizes.rank, sizes.rotated],
                    at(taps::Q_CUR, l),
                );
                let LowRank { plain, rotated } = self.low_rank_row(x, w, &sizes, l);
                let each = [sizes.rank, sizes.rotated];
                let k = self.concat(plain, rotated, each, at(taps::K_CUR, l));
                // values are the first `rank` dimensions of the keys; the rest of the result is
                // dropped
                let seen = self.choice(x, low_rank, w.indexer.as_ref(), l);
                let read = self.attend(q, [k, k], seen, None, l);
                let read = self.slice(read, sizes.key(), 0, sizes.rank);
                self.by_head(read, values, all, at(taps::KQV_OUT, l))
            }
            LatentHeads::Materialised(both) => {
                let rotary = self.rotated_part(rotary, &sizes, None);
                let each = [sizes.plain, sizes.rotated];
                let q = self.concat(plain, rotary, each, at(taps::Q_CUR, l));
                self.materialised(x, q, both, w, l)
            }
        };
        let named = self.spec.attn_out.and_then(|name| at(name, l));
        self.matmul(out, w.wo, named)
    }

    /// Returns the name of a part of queries or keys, if llama.cpp names these.
    fn inner_name(&self, name: &'static str, l: usize) -> Option<Named> {
        at(name, l).filter(|_| self.spec.names_latent)
    }

    /// Appends attention with keys and values expanded from the latent row for each head.
    fn materialised(
        &mut self,
        x: ValueId,
        q: ValueId,
        both: WeightId,
        w: &LatentAttention,
        l: usize,
    ) -> ValueId {
        let sizes = self.h.latent.expect("checked where the weights were bound");
        let row = self.low_rank_row(x, w, &sizes, l);
        let both = self.matmul(row.plain, both, at(taps::KV, l));
        let (head, key) = (sizes.plain + sizes.value, sizes.key());
        let mut v = self.named_slice(
            both,
            head,
            sizes.plain,
            sizes.value,
            at(taps::V_CUR_CONT, l),
        );
        let plain = self.slice(both, head, 0, sizes.plain);
        let each = [sizes.plain, sizes.rotated];
        let k = self.concat(plain, row.rotated, each, at(taps::K_CUR, l));
        if sizes.value == key {
            return self.attend(q, [k, v], None, at(taps::KQV_OUT, l), l);
        }
        // the cache has rows as long as keys: values are padded, and the padding is dropped below
        let rest = self.slice(both, head, 0, key - sizes.value);
        v = self.concat(v, rest, [sizes.value, key - sizes.value], None);
        let read = self.attend(q, [k, v], None, None, l);
        self.named_slice(read, key, 0, sizes.value, at(taps::KQV_OUT, l))
    }

    /// Appends queries; returns them and the low-rank row, if they have one.
    fn latent_queries(
        &mut self,
        x: ValueId,
        w: &LatentQuery,
        l: usize,
    ) -> (ValueId, Option<ValueId>) {
        let named = self.inner_name(taps::Q, l);
        match *w {
            LatentQuery::Whole(w) => (self.matmul(x, w, named), None),
            LatentQuery::LowRank { down, norm, up } => {
                let low_rank = self.inner_name(self.h.low_rank_query_tap(), l);
                let low_rank = self.matmul(x, down, low_rank);
                let low_rank = self.norm(low_rank, norm, Some(l));
                (self.matmul(low_rank, up, named), Some(low_rank))
            }
        }
    }

    fn low_rank_row(
        &mut self,
        x: ValueId,
        w: &LatentAttention,
        sizes: &LatentHparams,
        l: usize,
    ) -> LowRank {
        let named = self.inner_name(taps::KV_CMPR_PE, l);
        let both = self.matmul(x, w.low_rank, named);
        let plain = self.part(both, 0, sizes.rank);
        let norm = match self.spec.names_latent {
            true => w.norm,
            false => NormWeights {
                tap: None,
                ..w.norm
            },
        };
        let plain = self.norm(plain, norm, Some(l));
        let rotated = self.part(both, sizes.rank, sizes.rotated);
        let rotated = self.rotated_part(rotated, sizes, self.inner_name(taps::K_PE, l));
        LowRank { plain, rotated }
    }

    fn rotated_part(&mut self, x: ValueId, sizes: &LatentHparams, tap: Option<Named>) -> ValueId {
        if !self.spec.rotates {
            return x;
        }
        let op = Op::Rope {
            x,
            head_dim: sizes.rotated,
            rope: 0,
        };
        self.push(op, self.info(x), tap)
    }

    /// Writes keys and values into the cache and attends to those that are `seen`, or to all.
    fn attend(
        &mut self,
        q: ValueId,
        [k, v]: [ValueId; 2],
        seen: Option<ValueId>,
        tap: Option<Named>,
        l: usize,
    ) -> ValueId {
        let q = self.scaled_by_position(q, l);
        let layer = self.h.layers[l];
        let nothing = ValueShape {
            width: 0,
            ..self.info(k)
        };
        let cache = layer.cache;
        self.push(Op::KvWrite { k, v, cache }, nothing, None);
        let attention = Op::Attention {
            q,
            seen,
            cache,
            scores: layer.scores,
            sinks: None,
        };
        self.push(attention, self.info(q), tap)
    }

    /// Appends the indices of all heads, for every token.
    fn numbers_of_heads(&mut self, all: VecId, x: ValueId) -> ValueId {
        let info = ValueShape {
            width: self.w.vector(all).len(),
            ..self.info(x)
        };
        self.push(Op::Constant { values: all }, info, None)
    }

    /// Multiplies each head's part with that head's matrix: an expert product in which every token
    /// uses all experts.
    fn by_head(&mut self, x: ValueId, w: WeightId, all: ValueId, tap: Option<Named>) -> ValueId {
        let info = ValueShape {
            width: self.w.matrix(w).rows as usize,
            ..self.info(x)
        };
        let experts = self.info(all).width;
        let op = Op::ExpertMatMul {
            x,
            w,
            ids: all,
            experts,
        };
        self.push(op, info, tap)
    }
}
