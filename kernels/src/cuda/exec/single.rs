//! Launches of single operations.

use super::launches::{LaunchContext, List, kernels_of, small};
use super::plan::{ATTEND_ROWS, SPLITS};
use super::products::Product;
use super::record::NO_EMBEDDING;
use crate::cuda::launch::Form;
use crate::cuda::params::{
    Attention, Concat, Constant, Embed, EmbeddingInputs, Hadamard, KvWrite, MulVector, Norm, Pair,
    Rope, ScaleByPosition, Select, Slice,
};
use crate::cuda::{Launch, Ptr, launch};
use crate::op::{CacheLayer, Op, Scores};
use crate::program::{Attend, Recurrent, Scan, Slot, Wkv7};
use octavo_simd::function::Function;

/// Number of later positions that a row attends to if unlimited; kernels add it to a position.
const MAX_POSITIONS_AFTER: usize = i32::MAX as usize;

impl LaunchContext<'_> {
    /// Adds the launches of operation `at`.
    pub(super) fn single(&self, at: usize, list: &mut List) {
        let instruction = &self.program.ops[at];
        if instruction.out.is_some_and(|out| self.rows(out) == 0) {
            return;
        }
        let result = || instruction.result();
        let launch = match instruction.op {
            Op::MatMul { x, w } => {
                return self.products(x, &[Product::alone(w, self.slot(result()))], list);
            }
            Op::Attention { .. } => return self.attention_alone(at, list),
            Op::SelectKeys { .. } => unreachable!("refused with the program"),
            // uploaded before the launches
            Op::Input => return,
            Op::Embed { placeholder, .. } => {
                return self.embeddings(at, placeholder, result(), list);
            }
            Op::AddEmbeddings { x, from } => self.embedding_inputs(self.slot(x), from, result()),
            Op::EmbedPositions { .. } => self.embed(at, self.record.positions(), None, result()),
            Op::Constant { ref values } => self.constant(at, values.len(), result()),
            Op::Concat { a, b, each } => self.concat(a, b, each, result()),
            Op::RmsNorm { x, ref weight, eps } => {
                let (norm, groups) = self.norm(at, x, weight.len(), eps, result());
                launch::rms_norm(&norm, groups)
            }
            Op::LayerNorm { x, ref weight, eps } => {
                let (norm, groups) = self.norm(at, x, weight.len(), eps, result());
                launch::layer_norm(&norm, groups)
            }
            Op::AddBias { x, .. } => self.add_bias(at, x, result()),
            Op::Rope { x, head_dim, rope } => self.rope(x, head_dim, rope, result()),
            Op::Hadamard { x, order } => self.hadamard(x, order, result()),
            Op::KvWrite { k, v, cache } => self.kv_write(k, v, cache),
            Op::Gate { gate, up, act } => launch::gate(act, &self.both(gate, up, result())),
            Op::Unary { x, f } => self.unary(f, x, result()),
            Op::ScaleByPosition { x, .. } => self.scale_by_position(at, x, result()),
            Op::Add { a, b } => launch::add(&self.both(a, b, result())),
            Op::SelectRows { x } => self.select(x, result()),
            // a copy: a slice of the whole row
            Op::Merge { x, .. } => self.slice(x, self.width(x), 0, self.width(x), result()),
            Op::Mul { a, b } => launch::mul(&self.both(a, b, result())),
            Op::MulVector { x, ref by } => self.mul_vector(at, x, by.len(), result()),
            Op::Slice {
                x,
                each,
                from,
                width,
            } => self.slice(x, each, from, width, result()),
            Op::CausalConv {
                x,
                ref weight,
                state,
            } => self.causal_conv(at, x, weight.len(), state, result()),
            Op::LinearAttention { .. } => {
                self.linear_attention(&Recurrent::of(&instruction.op, result()))
            }
            Op::SelectiveScan { .. } => {
                self.selective_scan(at, &Scan::of(&instruction.op, result()))
            }
            Op::Wkv7 { .. } => self.wkv7(&Wkv7::of(&instruction.op, result())),
            Op::ExpertMatMul { x, w, ids, .. } => {
                return self.expert_product(x, w, ids, result(), list);
            }
            Op::Softmax { x } => self.softmax(x, result()),
            Op::TopK { x, groups, .. } => self.top_k(x, groups, result()),
            Op::Gather { x, ids } => self.gather(x, ids, result()),
            Op::Normalize { x, least } => self.normalize(x, least, result()),
            // a weighted sum of one part
            Op::ScaleRows { x, by } => self.scale_rows(x, by, result()),
            Op::ExpertSum { x, weights } => self.weighted_sum(x, weights, result()),
            Op::AllGather { x, cut } => return self.all_gather(x, cut, result(), list),
            Op::LoraDown { .. } | Op::LoraUp { .. } => unreachable!("never added for a GPU"),
            Op::ExpertBias { x, ref bias, ids } => {
                self.expert_bias(at, x, bias.len(), ids, result())
            }
        };
        list.launches.push(launch);
    }

    fn attention_alone(&self, at: usize, list: &mut List) {
        let Op::Attention {
            q, cache, scores, ..
        } = self.program.ops[at].op
        else {
            unreachable!("the caller has seen which operation it is");
        };
        let attend = Attend {
            q,
            seen: None,
            cache,
            scores,
            out: self.program.ops[at].result(),
        };
        list.launches.extend(self.attention(at, &attend, None));
    }

    /// Looks up token embeddings, then replaces those with embedding inputs, where a step may have
    /// any and there is no placeholder for them.
    fn embeddings(&self, at: usize, placeholder: Option<u32>, out: Slot, list: &mut List) {
        let embed = self.embed(at, self.record.tokens, placeholder, out);
        list.launches.push(embed);
        let takes_inputs = self.program.embedding_input_width > 0 && placeholder.is_none();
        if takes_inputs && !self.shape.generated {
            list.launches.push(self.embedding_inputs(Ptr::NULL, 0, out));
        }
    }

    pub(super) fn elements(&self, slot: Slot) -> usize {
        self.rows(slot) * self.width(slot)
    }

    /// Returns two operands; the second repeats after `period` values.
    fn pair(&self, a: Ptr, b: Ptr, period: usize, out: Slot) -> Pair {
        Pair {
            a,
            b,
            out: self.slot(out),
            n: self.elements(out) as u64,
            period: period as u64,
        }
    }

    /// Returns two operands of equal size.
    fn both(&self, a: Slot, b: Slot, out: Slot) -> Pair {
        self.pair(self.slot(a), self.slot(b), self.elements(out), out)
    }

    fn add_bias(&self, at: usize, x: Slot, out: Slot) -> Launch {
        let bias = self.at(self.plan.vectors[&at]);
        launch::add(&self.pair(self.slot(x), bias, self.width(x), out))
    }

    fn unary(&self, f: Function, x: Slot, out: Slot) -> Launch {
        let n = self.elements(out) as u64;
        launch::unary(f, self.slot(x), self.slot(out), n)
    }

    fn constant(&self, at: usize, width: usize, out: Slot) -> Launch {
        launch::constant(&Constant {
            values: self.at(self.plan.vectors[&at]),
            out: self.slot(out),
            n: self.elements(out) as u64,
            width: small(width),
            unused: 0,
        })
    }

    fn concat(&self, a: Slot, b: Slot, each: [usize; 2], out: Slot) -> Launch {
        launch::concat(&Concat {
            a: self.slot(a),
            b: self.slot(b),
            out: self.slot(out),
            n: self.elements(out) as u64,
            first: small(each[0]),
            second: small(each[1]),
            pieces: small(self.width(a) / each[0]),
            each: u32::from(self.width(b) > each[1]),
        })
    }

    /// Keeps `part` of every `each` values, starting at `from`.
    fn slice(&self, x: Slot, each: usize, from: usize, part: usize, out: Slot) -> Launch {
        launch::slice(&Slice {
            x: self.slot(x),
            out: self.slot(out),
            n: self.elements(out) as u64,
            each: small(each),
            from: small(from),
            part: small(part),
            unused: 0,
        })
    }

    fn hadamard(&self, x: Slot, order: usize, out: Slot) -> Launch {
        launch::hadamard(&Hadamard {
            x: self.slot(x),
            out: self.slot(out),
            n: self.elements(out) as u64,
            order: small(order),
            factor: crate::hadamard::factor(order),
        })
    }

    fn scale_by_position(&self, at: usize, x: Slot, out: Slot) -> Launch {
        launch::scale_by_position(&ScaleByPosition {
            x: self.slot(x),
            factors: self.at(self.plan.vectors[&at]),
            positions: self.record.positions(),
            out: self.slot(out),
            rows: small(self.shape.rows),
            width: small(self.width(x)),
        })
    }

    /// Multiplies by a vector of `n` values.
    fn mul_vector(&self, at: usize, x: Slot, n: usize, out: Slot) -> Launch {
        launch::mul_vector(&MulVector {
            a: self.slot(x),
            b: self.at(self.plan.vectors[&at]),
            out: self.slot(out),
            n: self.elements(out) as u64,
            neighbours: small(self.width(x) / n),
            period: small(n),
        })
    }

    fn embed(&self, at: usize, tokens: Ptr, placeholder: Option<u32>, out: Slot) -> Launch {
        let (ty, table) = self.matrix(self.plan.tables[&at]);
        let p = Embed {
            table,
            tokens,
            out: self.slot(out),
            columns: small(self.shape.rows),
            placeholder: placeholder.unwrap_or(NO_EMBEDDING),
        };
        launch::embed(ty, &p)
    }

    /// Writes the values from `from` on of the embedding inputs to the rows that have one. If `x`
    /// is not null, it is added there, and copied to the other rows.
    fn embedding_inputs(&self, x: Ptr, from: usize, out: Slot) -> Launch {
        launch::embedding_inputs(&EmbeddingInputs {
            x,
            inputs: self.at(self.plan.embedding_inputs),
            indices: self.record.embedding_inputs,
            out: self.slot(out),
            rows: small(self.rows(out)),
            width: small(self.width(out)),
            stride: small(self.program.embedding_input_width),
            from: small(from),
        })
    }

    /// Returns a norm over groups of `group` values, and the number of groups.
    fn norm(&self, at: usize, x: Slot, group: usize, eps: f32, out: Slot) -> (Norm, u32) {
        let p = Norm {
            x: self.slot(x),
            weight: self.at(self.plan.vectors[&at]),
            out: self.slot(out),
            eps,
            n: small(group),
        };
        (p, small(self.elements(x) / group))
    }

    fn rope(&self, x: Slot, head_dim: usize, rope: usize, out: Slot) -> Launch {
        launch::rope(&Rope {
            x: self.slot(x),
            out: self.slot(out),
            rotation: self.rotation(rope),
            rows: small(self.shape.rows),
            heads: small(self.width(x) / head_dim),
            head_dim: small(head_dim),
            unused: 0,
        })
    }

    fn kv_write(&self, k: Slot, v: Slot, cache: CacheLayer) -> Launch {
        let kv = self.program.cache(cache);
        let (pages_k, pages_v) = self.pages(cache);
        let p = KvWrite {
            k: self.slot(k),
            v: self.slot(v),
            pages_k,
            pages_v,
            paging: self.record.paging(cache.group),
            heads: small(kv.n_head_kv),
            head_dim: small(kv.head_dim),
        };
        launch::kv_write(kernels_of(kv), &p)
    }

    fn select(&self, x: Slot, out: Slot) -> Launch {
        launch::select_rows(&Select {
            x: self.slot(x),
            indices: self.record.output_rows,
            out: self.slot(out),
            rows: small(self.rows(out)),
            width: small(self.width(x)),
        })
    }

    /// Returns the launches of attention, operation `at`; writes to a slot, or in integer form to
    /// `integers`.
    pub(super) fn attention(
        &self,
        at: usize,
        attend: &Attend,
        integers: Option<Ptr>,
    ) -> Vec<Launch> {
        let &Attend {
            q,
            cache,
            scores,
            out,
            ..
        } = attend;
        let kv = self.program.cache(cache);
        let heads = self.width(q) / kv.head_dim;
        let (pages_k, pages_v) = self.pages(cache);
        let [sinks, slopes] = self.vectors_of_heads(at, scores, heads);
        let all = Attention {
            q: self.slot(q),
            pages_k,
            pages_v,
            sums: self.at(self.plan.sums),
            states: self.at(self.plan.states),
            out: self.slot(out),
            integers: integers.unwrap_or(Ptr::NULL),
            tiles: self.record.tiles,
            sinks,
            slopes,
            firsts: match scores.blocks {
                true => self.record.blocks,
                false => Ptr::NULL,
            },
            ends: match (scores.blocks, scores.images) {
                (true, _) => self.record.block_ends,
                (false, true) => self.record.image_ends,
                (false, false) => self.record.ends,
            },
            paging: self.record.paging(cache.group),
            heads: small(heads),
            heads_kv: small(kv.n_head_kv),
            splits: small(SPLITS),
            scale: scores.scale,
            cap: scores.cap.unwrap_or(0.0),
            // 0 means no limit, also for a window too large for 32 bits
            window: scores
                .before()
                .and_then(|before| u32::try_from(before + 1).ok())
                .unwrap_or(0),
            after: scores
                .after()
                .filter(|_| !scores.images)
                .unwrap_or(MAX_POSITIONS_AFTER)
                .min(MAX_POSITIONS_AFTER) as u32,
            chunked: scores.chunked.into(),
        };
        let ty = kernels_of(kv);
        let takes_prompt = launch::takes_prompt(ty, kv.head_dim, heads / kv.n_head_kv);
        if !self.shape.generated && takes_prompt && scores.alibi.is_none() {
            return vec![launch::attend_prompt(
                ty,
                kv.head_dim,
                &all,
                small(self.shape.tiles),
            )];
        }
        let parts = (0..self.shape.rows).step_by(ATTEND_ROWS);
        let splits = small(self.shape.splits);
        parts
            .flat_map(|first| {
                launch::attend(ty, kv.head_dim, &self.some_rows(&all, first, q), splits)
            })
            .collect()
    }

    /// Returns the sinks and the slopes of attention's heads, operation `at`: null where there are
    /// none.
    fn vectors_of_heads(&self, at: usize, scores: Scores, heads: usize) -> [Ptr; 2] {
        let vector = self.plan.vectors.get(&at).map(|vector| self.at(*vector));
        let has_sinks =
            matches!(self.program.ops[at].op, Op::Attention { ref sinks, .. } if sinks.is_some());
        let before = if has_sinks { 4 * heads as u64 } else { 0 };
        let slopes = vector.filter(|_| scores.alibi.is_some());
        let sinks = vector.filter(|_| has_sinks);
        [
            sinks.unwrap_or(Ptr::NULL),
            slopes.map_or(Ptr::NULL, |all| all.offset(before)),
        ]
    }

    /// Restricts attention to up to [`ATTEND_ROWS`] rows from `first` on.
    fn some_rows(&self, all: &Attention, first: usize, q: Slot) -> Attention {
        let (words, values) = (4 * first as u64, 4 * (first * self.width(q)) as u64);
        let mut p = *all;
        p.q = p.q.offset(values);
        p.out = p.out.offset(values);
        p.integers =
            p.integers
                .or_offset(launch::activation_bytes(Form::Integers, first, self.width(q)) as u64);
        p.paging.positions = p.paging.positions.offset(words);
        p.paging.sequences = p.paging.sequences.offset(words);
        p.firsts = p.firsts.or_offset(words);
        p.ends = p.ends.offset(words);
        p.paging.first_row = small(first);
        p.paging.rows = small(ATTEND_ROWS.min(self.shape.rows - first));
        p
    }
}
