//! From a program's operations to launches: a list that follows from a step's shape alone.

use super::plan::{ATTEND_ROWS, Plan, SPLITS};
use super::record::{Addresses, Shape};
use crate::cuda::pack::has_codes;
use crate::cuda::params::{Arrange, Attention, Embed, Gemm, Gemv, KvWrite, Matrix, Norm, Pair, Rope, Select};
use crate::cuda::{Launch, Ptr, launch};
use crate::program::{Op, Program, Slot};
use octavo_quant::TensorType;

/// Everything that a list depends on.
pub(super) struct Scene<'a> {
    pub(super) program: &'a Program,
    pub(super) plan: &'a Plan,
    /// The arena.
    pub(super) base: Ptr,
    pub(super) n_pages: usize,
    pub(super) multiprocessors: u32,
    pub(super) shape: Shape,
    pub(super) record: Addresses,
}

/// The form that an input of products is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Integers,
    Floats,
    Halves,
}

/// One operation's launches.
pub(super) struct Part {
    /// The operation, or the last of those that were done together.
    pub(super) op: usize,
    pub(super) launches: Vec<Launch>,
}

impl Scene<'_> {
    /// All launches. With `absorb`, additions to products are done by the products.
    pub(super) fn all(&self, absorb: bool) -> Vec<Part> {
        let mut parts = Vec::with_capacity(self.program.ops.len());
        let mut ready = None;
        let mut at = 0;
        while at < self.program.ops.len() {
            let added = if absorb { self.addition(at) } else { None };
            let (part, out) = match (&self.program.ops[at], added) {
                (&Op::MatMul { x, w, .. }, Some((add, out))) => {
                    (Part { op: at + 1, launches: self.product(x, w, Some(add), out, &mut ready) }, Some(out))
                }
                (&Op::MatMul { x, w, out }, None) => {
                    (Part { op: at, launches: self.product(x, w, None, out, &mut ready) }, Some(out))
                }
                (op, _) => (Part { op: at, launches: self.other(at, op) }, op.out()),
            };
            if ready.is_some_and(|(slot, _)| Some(slot) == out) {
                ready = None;
            }
            at = part.op + 1;
            parts.push(part);
        }
        parts
    }

    /// What the addition after the product at `at` adds to it, and where to, if nobody else needs the product.
    fn addition(&self, at: usize) -> Option<(Slot, Slot)> {
        match self.program.ops[at..] {
            [Op::MatMul { out: y, .. }, Op::Add { a, b, out }, ..]
                if (a == y) != (b == y) && (y == out || self.program.unread(y, at + 2)) =>
            {
                Some((if a == y { b } else { a }, out))
            }
            _ => None,
        }
    }

    fn at(&self, offset: u64) -> Ptr {
        self.base.offset(offset)
    }

    fn slot(&self, slot: Slot) -> Ptr {
        self.at(self.plan.slots[slot])
    }

    fn width(&self, slot: Slot) -> usize {
        self.program.slots[slot].width
    }

    fn rows(&self, slot: Slot) -> usize {
        if self.program.slots[slot].selected { self.shape.wanted } else { self.shape.rows }
    }

    fn matrix(&self, placed: usize) -> (TensorType, Matrix) {
        let placed = &self.plan.placed[placed];
        (placed.source.stored(), placed.layout.matrix(self.at(placed.at)))
    }

    /// `W x (+ add)`, and its input's form where that is not there already.
    fn product(
        &self,
        x: Slot,
        w: usize,
        add: Option<Slot>,
        out: Slot,
        ready: &mut Option<(Slot, Form)>,
    ) -> Vec<Launch> {
        let rows = self.rows(x);
        if rows == 0 {
            return Vec::new();
        }
        let (ty, w) = self.matrix(self.plan.weights[w]);
        let form = match self.shape.generated {
            true if has_codes(ty) => Form::Integers,
            true => Form::Floats,
            false => Form::Halves,
        };
        let (activations, scales) = (self.at(self.plan.activations), self.at(self.plan.scales));
        let mut list = Vec::new();
        if *ready != Some((x, form)) {
            let arrange = Arrange {
                x: self.slot(x),
                out: activations,
                scales,
                rows: small(rows),
                cols: w.cols,
                units: w.units,
                unused: 0,
            };
            list.push(match form {
                Form::Halves => launch::gemm_activations(&arrange),
                _ => launch::gemv_activations(ty, &arrange),
            });
            *ready = Some((x, form));
        }
        let (add, out) = (add.map_or(Ptr::NULL, |add| self.slot(add)), self.slot(out));
        if form == Form::Halves {
            let p = Gemm { w, x: activations, scales, add, out, tokens: small(rows), unused: 0 };
            list.push(launch::gemm(ty, &p));
            return list;
        }
        for first in (0..rows).step_by(launch::GEMV_COLUMNS) {
            let columns = launch::GEMV_COLUMNS.min(rows - first);
            let results = |at: Ptr| if at == Ptr::NULL { at } else { at.offset(4 * u64::from(w.rows) * first as u64) };
            let x = activations.offset(launch::gemv_activation_bytes(ty, first, w.cols as usize) as u64);
            let p = Gemv { w, x, add: results(add), out: results(out), columns: small(columns), unused: 0 };
            list.push(launch::gemv(ty, &p, self.multiprocessors));
        }
        list
    }

    /// Every operation but products.
    fn other(&self, at: usize, op: &Op) -> Vec<Launch> {
        let elements = |slot: Slot| (self.rows(slot) * self.width(slot)) as u64;
        if op.out().is_some_and(|out| self.rows(out) == 0) {
            return Vec::new();
        }
        let one = match *op {
            // written before the launches
            Op::Input { .. } => return Vec::new(),
            Op::Embed { out, .. } => {
                let (ty, table) = self.matrix(self.plan.tables[&at]);
                let (tokens, columns) = (self.record.tokens, small(self.shape.rows));
                launch::embed(ty, &Embed { table, tokens, out: self.slot(out), columns, unused: 0 })
            }
            Op::RmsNorm { x, ref weight, eps, out } => {
                let groups = elements(x) as usize / weight.len();
                let (n, weight) = (small(weight.len()), self.at(self.plan.vectors[&at]));
                launch::rms_norm(&Norm { x: self.slot(x), weight, out: self.slot(out), eps, n }, small(groups))
            }
            Op::AddBias { x, out, .. } => {
                let (b, period) = (self.at(self.plan.vectors[&at]), self.width(x) as u64);
                launch::add(&Pair { a: self.slot(x), b, out: self.slot(out), n: elements(x), period })
            }
            Op::Rope { x, head_dim, out } => launch::rope(&Rope {
                x: self.slot(x),
                out: self.slot(out),
                cosines: self.at(self.plan.cosines),
                sines: self.at(self.plan.sines),
                positions: self.record.paging.positions,
                rows: small(self.shape.rows),
                heads: small(self.width(x) / head_dim),
                head_dim: small(head_dim),
                pairs: small(self.program.rope.frequencies.len()),
                neox: self.program.rope.neox.into(),
                unused: 0,
            }),
            Op::KvWrite { k, v, layer } => {
                let (pages_k, pages_v) = self.pages(layer);
                let (k, v, paging, kv) = (self.slot(k), self.slot(v), self.record.paging, self.program.kv);
                let (heads, head_dim) = (small(kv.n_head_kv), small(kv.head_dim));
                launch::kv_write(kv.ty, &KvWrite { k, v, pages_k, pages_v, paging, heads, head_dim })
            }
            Op::Attention { q, layer, scale, out } => return self.attention(q, layer, scale, out),
            Op::SwiGlu { gate: a, up: b, out } | Op::Add { a, b, out } => {
                let n = elements(out);
                let p = Pair { a: self.slot(a), b: self.slot(b), out: self.slot(out), n, period: n };
                if matches!(op, Op::SwiGlu { .. }) { launch::swiglu(&p) } else { launch::add(&p) }
            }
            Op::SelectRows { x, out } => {
                let (wanted, rows, width) = (self.record.wanted, small(self.rows(out)), small(self.width(x)));
                launch::select_rows(&Select { x: self.slot(x), wanted, out: self.slot(out), rows, width })
            }
            Op::MatMul { .. } => unreachable!("products are apart"),
        };
        vec![one]
    }

    /// Keys and values of a layer.
    fn pages(&self, layer: usize) -> (Ptr, Ptr) {
        let at = |half: usize| self.at(self.plan.pages + half_of_layer(self.program, self.n_pages, 2 * layer + half));
        (at(0), at(1))
    }

    fn attention(&self, q: Slot, layer: usize, scale: f32, out: Slot) -> Vec<Launch> {
        let kv = self.program.kv;
        let heads = self.width(q) / kv.head_dim;
        let (pages_k, pages_v) = self.pages(layer);
        let all = Attention {
            q: self.slot(q),
            pages_k,
            pages_v,
            sums: self.at(self.plan.sums),
            states: self.at(self.plan.states),
            out: self.slot(out),
            tiles: self.record.tiles,
            paging: self.record.paging,
            heads: small(heads),
            heads_kv: small(kv.n_head_kv),
            splits: small(SPLITS),
            scale,
        };
        if !self.shape.generated && launch::takes_prompt(kv.ty, kv.head_dim, heads / kv.n_head_kv) {
            return vec![launch::attend_prompt(kv.head_dim, &all, small(self.shape.tiles))];
        }
        let parts = (0..self.shape.rows).step_by(ATTEND_ROWS);
        parts.flat_map(|first| launch::attend(kv.ty, kv.head_dim, &self.some_rows(&all, first, q))).collect()
    }

    /// Attention of rows `first` and up to [`ATTEND_ROWS`] more.
    fn some_rows(&self, all: &Attention, first: usize, q: Slot) -> Attention {
        let (words, values) = (4 * first as u64, 4 * (first * self.width(q)) as u64);
        let mut p = *all;
        p.q = p.q.offset(values);
        p.out = p.out.offset(values);
        p.paging.positions = p.paging.positions.offset(words);
        p.paging.sequences = p.paging.sequences.offset(words);
        p.paging.rows = small(ATTEND_ROWS.min(self.shape.rows - first));
        p
    }
}

/// Bytes of the cache before half `half`: keys of layer 0, its values, keys of layer 1 and so on.
pub(super) fn half_of_layer(program: &Program, n_pages: usize, half: usize) -> u64 {
    let page = program.kv.page_bytes().expect("it was allocated") / (2 * program.kv.n_layer);
    (page * n_pages * half) as u64
}

fn small(n: usize) -> u32 {
    u32::try_from(n).expect("far below the largest grid")
}
