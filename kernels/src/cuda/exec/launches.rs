//! From a program's operations to launches: a list that follows from a step's shape alone.

use super::plan::{ATTEND_ROWS, Plan, SPLITS};
use super::record::{Addresses, Shape};
use crate::cuda::launch::Form;
use crate::cuda::pack::UNIT;
use crate::cuda::params::{
    Argmax, Arrange, Attention, Embed, Gemm, Gemv, GemvPart, HeadGroup, Heads, KvWrite, Matrix,
    Norm, Pair, Rope, Select, Turn,
};
use crate::cuda::{Launch, Ptr, launch};
use crate::program::{Op, Program, Slot};
use octavo_quant::TensorType;

/// Matrices of a launch of `gemv`, at most.
const GEMV_PARTS: usize = 3;

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

/// One operation's launches.
pub(super) struct Part {
    /// The operation, or the last of those that were done together.
    pub(super) op: usize,
    pub(super) launches: Vec<Launch>,
}

/// An input of products that is there in their form.
#[derive(Clone, Copy)]
struct Ready {
    slot: Slot,
    form: Form,
    at: Ptr,
    /// Made together with the slot's value, by the operations that are being looked at.
    new: bool,
}

/// The launches of some operations, while they are put together.
struct List {
    launches: Vec<Launch>,
    ready: Option<Ready>,
}

/// A product: with which weight, what is added, and where it goes.
#[derive(Clone, Copy)]
struct Product {
    w: usize,
    add: Ptr,
    out: Ptr,
}

/// What becomes of a product before it is a head's queries, keys or values.
struct Chain {
    x: Slot,
    w: usize,
    /// The operations with the bias and the norm's weight.
    bias: Option<usize>,
    norm: Option<usize>,
    turned: bool,
    out: Slot,
    /// The operation behind it.
    end: usize,
}

impl Scene<'_> {
    /// All launches. With `fuse`, operations that follow each other are done together where there
    /// is a kernel for that; no number changes.
    pub(super) fn all(&self, fuse: bool) -> Vec<Part> {
        let mut parts = Vec::with_capacity(self.program.ops.len());
        let mut ready = None;
        let mut at = 0;
        while at < self.program.ops.len() {
            let mut list = List {
                launches: Vec::new(),
                ready,
            };
            let fused = if fuse {
                self.fused(at, &mut list)
            } else {
                None
            };
            let last = fused.unwrap_or_else(|| {
                self.single(at, &mut list);
                at
            });
            let written = |slot: Slot| {
                self.program.ops[at..=last]
                    .iter()
                    .any(|op| op.out() == Some(slot))
            };
            ready = list
                .ready
                .filter(|r| r.new || !written(r.slot))
                .map(|r| Ready { new: false, ..r });
            parts.push(Part {
                op: last,
                launches: list.launches,
            });
            at = last + 1;
        }
        parts
    }

    /// Where each row's largest output is.
    pub(super) fn best(&self) -> Vec<Launch> {
        let (slot, rows) = (self.program.output, self.shape.wanted);
        if rows == 0 {
            return Vec::new();
        }
        let (parts, out, n) = (
            self.at(self.plan.parts),
            self.record.best,
            small(self.width(slot)),
        );
        let p = Argmax {
            x: self.slot(slot),
            parts,
            out,
            n,
            parts_n: launch::ARGMAX_PARTS,
        };
        launch::argmax(&p, small(rows)).into()
    }

    /// One operation.
    fn single(&self, at: usize, list: &mut List) {
        match self.program.ops[at] {
            Op::MatMul { x, w, out } => {
                self.products(
                    x,
                    &[Product {
                        w,
                        add: Ptr::NULL,
                        out: self.slot(out),
                    }],
                    list,
                );
            }
            ref op => list.launches.extend(self.other(at, op)),
        }
    }

    /// The operations from `at` on that can be done together; the last of them.
    fn fused(&self, at: usize, list: &mut List) -> Option<usize> {
        let unread =
            |slot: Slot, out: Slot, last: usize| slot == out || self.program.unread(slot, last + 1);
        match self.program.ops[at..] {
            [Op::MatMul { x, w, out: y }, Op::Add { a, b, out }, ..]
                if (a == y) != (b == y) && unread(y, out, at + 1) =>
            {
                let add = self.slot(if a == y { b } else { a });
                self.products(
                    x,
                    &[Product {
                        w,
                        add,
                        out: self.slot(out),
                    }],
                    list,
                );
                Some(at + 1)
            }
            [
                Op::MatMul { x, w: gate, out: g },
                Op::MatMul {
                    x: same,
                    w: up,
                    out: u,
                },
                Op::SwiGlu {
                    gate: a,
                    up: b,
                    out,
                },
                ..,
            ] if self.shape.generated
                && (x, g, u) == (same, a, b)
                && g != u
                && self.stored(gate) == self.stored(up)
                && [g, u].iter().all(|slot| unread(*slot, out, at + 2)) =>
            {
                self.gated(x, [gate, up], out, self.only_form(out, at + 3), list);
                Some(at + 2)
            }
            // rows keep their order: as many as there are, are they themselves
            [
                Op::MatMul { x, w, out: y },
                Op::SelectRows { x: z, out: c },
                Op::SelectRows { x: other, out: d },
                Op::Add { a, b, out },
                ..,
            ] if self.shape.rows == self.shape.wanted
                && (y, c, d) == (z, a, b)
                && c != d
                && [y, c, d].iter().all(|slot| unread(*slot, out, at + 3)) =>
            {
                self.products(
                    x,
                    &[Product {
                        w,
                        add: self.slot(other),
                        out: self.slot(out),
                    }],
                    list,
                );
                Some(at + 3)
            }
            [Op::MatMul { .. }, ..] => self.heads(at, list),
            [
                Op::RmsNorm {
                    x,
                    ref weight,
                    eps,
                    out,
                },
                ..,
            ] if weight.len() == self.width(x) => {
                let form = self.only_form(out, at + 1)?;
                let weight = self.at(self.plan.vectors[&at]);
                self.arrange(x, form, Some((weight, eps)), list);
                list.ready = Some(Ready {
                    slot: out,
                    form,
                    at: self.at(self.plan.activations),
                    new: true,
                });
                Some(at)
            }
            [
                Op::Attention {
                    q,
                    layer,
                    scale,
                    out,
                },
                ..,
            ] if self.shape.generated && self.program.kv.head_dim.is_multiple_of(32) => {
                let form = self
                    .only_form(out, at + 1)
                    .filter(|form| *form == Form::Integers)?;
                let integers = self.at(self.plan.activations);
                list.launches
                    .extend(self.attention(q, layer, scale, out, Some(integers)));
                list.ready = Some(Ready {
                    slot: out,
                    form,
                    at: integers,
                    new: true,
                });
                Some(at)
            }
            _ => None,
        }
    }

    /// The form in which all readers of a slot want its value of operation `from` on, if they are
    /// products that follow each other. Then nobody needs the value itself.
    fn only_form(&self, slot: Slot, from: usize) -> Option<Form> {
        let mut form = None;
        let mut others = false;
        for op in &self.program.ops[from..] {
            match *op {
                Op::MatMul { x, w, .. } if x == slot => {
                    let this = self.form(self.stored(w));
                    if others || form.is_some_and(|form| form != this) {
                        return None;
                    }
                    form = Some(this);
                }
                ref op if op.reads(slot) => return None,
                // what may put another input where this one is
                Op::MatMul { .. } | Op::Attention { .. } | Op::SwiGlu { .. } => others = true,
                Op::RmsNorm { x, ref weight, .. } if weight.len() == self.width(x) => others = true,
                _ => {}
            }
            if op.out() == Some(slot) {
                return form;
            }
        }
        form.filter(|_| slot != self.program.output)
    }

    fn form(&self, ty: TensorType) -> Form {
        if self.shape.generated {
            Form::of_gemv(ty)
        } else {
            Form::Halves
        }
    }

    /// The chain that begins with the product at `at`.
    fn chain(&self, at: usize) -> Option<Chain> {
        let ops = &self.program.ops;
        let head_dim = self.program.kv.head_dim;
        let Some(&Op::MatMul { x, w, out }) = ops.get(at) else {
            return None;
        };
        let mut chain = Chain {
            x,
            w,
            bias: None,
            norm: None,
            turned: false,
            out,
            end: at + 1,
        };
        if let Some(&Op::AddBias { out, .. }) = ops.get(chain.end).filter(|op| op.reads(chain.out))
        {
            (chain.bias, chain.out, chain.end) = (Some(chain.end), out, chain.end + 1);
        }
        if let Some(Op::RmsNorm { weight, out, .. }) =
            ops.get(chain.end).filter(|op| op.reads(chain.out))
            && weight.len() == head_dim
        {
            (chain.norm, chain.out, chain.end) = (Some(chain.end), *out, chain.end + 1);
        }
        if let Some(&Op::Rope {
            head_dim: turned,
            out,
            ..
        }) = ops.get(chain.end).filter(|op| op.reads(chain.out))
            && turned == head_dim
        {
            (chain.turned, chain.out, chain.end) = (true, out, chain.end + 1);
        }
        Some(chain)
    }

    /// Everything from the products of attention's queries, keys and values to the cache.
    fn heads(&self, at: usize, list: &mut List) -> Option<usize> {
        let a = self.chain(at)?;
        let b = self.chain(a.end)?;
        let c = self.chain(b.end)?;
        let last = c.end;
        let &Op::KvWrite { k, v, layer } = self.program.ops.get(last)? else {
            return None;
        };
        let chains = [&a, &b, &c];
        let of = |slot: Slot| chains.iter().find(|chain| chain.out == slot);
        let (k, v) = (*of(k)?, *of(v)?);
        let q = *chains
            .iter()
            .find(|chain| chain.out != k.out && chain.out != v.out)?;
        let mut written = self.program.ops[at..last].iter().filter_map(Op::out);
        let kv = self.program.kv;
        let wide = kv.n_head_kv * kv.head_dim;
        let fits = chains.iter().all(|chain| chain.x == a.x)
            && (q.turned && k.turned && !v.turned && k.out != v.out)
            && (self.width(k.out) == wide && self.width(v.out) == wide)
            && written.all(|slot| slot == q.out || self.program.unread(slot, last + 1));
        if !fits {
            return None;
        }
        // products have a place of their own: the slots of one chain may be another's
        let rows = self.rows(a.x);
        let mut room = self.at(self.plan.heads);
        let mut group = |chain: &Chain| {
            let width = self.width(chain.out);
            let x = room;
            room = room.offset((4 * rows * width) as u64);
            let vector =
                |op: Option<usize>| op.map_or(Ptr::NULL, |op| self.at(self.plan.vectors[&op]));
            let eps = match chain.norm.map(|op| &self.program.ops[op]) {
                Some(Op::RmsNorm { eps, .. }) => *eps,
                _ => 0.0,
            };
            HeadGroup {
                x,
                bias: vector(chain.bias),
                norm: vector(chain.norm),
                n: small(width / kv.head_dim),
                eps,
            }
        };
        let (q_heads, k_heads, v_heads) = (group(q), group(k), group(v));
        let product = |chain: &Chain, heads: &HeadGroup| Product {
            w: chain.w,
            add: Ptr::NULL,
            out: heads.x,
        };
        self.products(
            a.x,
            &[
                product(q, &q_heads),
                product(k, &k_heads),
                product(v, &v_heads),
            ],
            list,
        );
        if rows > 0 {
            let (pages_k, pages_v) = self.pages(layer);
            let p = Heads {
                q: q_heads,
                k: k_heads,
                v: v_heads,
                out: self.slot(q.out),
                pages_k,
                pages_v,
                turn: self.turn(),
                paging: self.record.paging,
                head_dim: small(kv.head_dim),
                unused: 0,
            };
            list.launches.push(launch::heads(kv.ty, &p));
        }
        Some(last)
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
        self.program
            .rows_of(slot, self.shape.rows, self.shape.wanted)
    }

    fn matrix(&self, placed: usize) -> (TensorType, Matrix) {
        let placed = &self.plan.placed[placed];
        (
            placed.source.stored(),
            placed.layout.matrix(self.at(placed.at)),
        )
    }

    /// The type in which a product's weight is multiplied.
    fn stored(&self, w: usize) -> TensorType {
        self.plan.placed[self.plan.weights[w]].source.stored()
    }

    /// Brings rows, normed with a weight and an epsilon first where those are given, into a form of
    /// products' inputs.
    fn arrange(&self, x: Slot, form: Form, norm: Option<(Ptr, f32)>, list: &mut List) {
        let (rows, cols) = (self.rows(x), self.width(x));
        if rows == 0 {
            return;
        }
        let (weight, eps) = norm.unwrap_or((Ptr::NULL, 0.0));
        let p = Arrange {
            x: self.slot(x),
            weight,
            out: self.at(self.plan.activations),
            scales: self.at(self.plan.scales),
            rows: small(rows),
            cols: small(cols),
            units: small(cols.div_ceil(UNIT)),
            eps,
        };
        list.launches.push(if norm.is_some() {
            launch::normed_activations(form, &p)
        } else {
            launch::activations(form, &p)
        });
    }

    /// Where an input of products is in a form of theirs, after it was brought there if it was not.
    fn input(&self, x: Slot, form: Form, list: &mut List) -> Ptr {
        if let Some(ready) = list.ready.filter(|r| (r.slot, r.form) == (x, form)) {
            return ready.at;
        }
        self.arrange(x, form, None, list);
        let at = self.at(self.plan.activations);
        list.ready = Some(Ready {
            slot: x,
            form,
            at,
            new: false,
        });
        at
    }

    /// Products of one input: those of the same type together, where that is one reading of weights
    /// after the other.
    fn products(&self, x: Slot, products: &[Product], list: &mut List) {
        if self.rows(x) == 0 {
            return;
        }
        if !self.shape.generated {
            return products
                .iter()
                .for_each(|product| self.gemm(x, product, list));
        }
        let mut left = products.to_vec();
        while let Some(first) = left.first() {
            let ty = self.stored(first.w);
            let (together, others): (Vec<_>, Vec<_>) =
                left.into_iter().partition(|p| self.stored(p.w) == ty);
            left = others;
            for together in together.chunks(GEMV_PARTS) {
                self.gemv(x, together, None, list);
            }
        }
    }

    fn gemm(&self, x: Slot, &Product { w, add, out }: &Product, list: &mut List) {
        let (ty, w) = self.matrix(self.plan.weights[w]);
        let (input, scales) = (
            self.input(x, self.form(ty), list),
            self.at(self.plan.scales),
        );
        let p = Gemm {
            w,
            x: input,
            scales,
            add,
            out,
            tokens: small(self.rows(x)),
            unused: 0,
        };
        list.launches
            .push(launch::gemm(ty, &p, self.multiprocessors));
    }

    /// SwiGLU of two products of one input, in the form that is wanted of it.
    fn gated(
        &self,
        x: Slot,
        [gate, up]: [usize; 2],
        out: Slot,
        wanted: Option<Form>,
        list: &mut List,
    ) {
        if self.rows(x) == 0 {
            return;
        }
        let to = self.slot(out);
        let pair = [gate, up].map(|w| Product {
            w,
            add: Ptr::NULL,
            out: to,
        });
        // the other buffer: while some blocks write it, others still read their input
        let integers = self.at(self.plan.gated);
        let wanted = wanted.filter(|wanted| *wanted == Form::Integers);
        self.gemv(x, &pair, Some(wanted.map_or(Ptr::NULL, |_| integers)), list);
        if let Some(form) = wanted {
            list.ready = Some(Ready {
                slot: out,
                form,
                at: integers,
                new: true,
            });
        }
    }

    /// Launches of `gemv` for any number of rows, of products with weights of one type. `gated`:
    /// the two products are a gate and what it gates, and integers go there, if anywhere.
    fn gemv(&self, x: Slot, products: &[Product], gated: Option<Ptr>, list: &mut List) {
        let (rows, ty) = (self.rows(x), self.stored(products[0].w));
        let form = self.form(ty);
        let input = self.input(x, form, list);
        let matrices: Vec<Matrix> = products
            .iter()
            .map(|p| self.matrix(self.plan.weights[p.w]).1)
            .collect();
        let all = matrices.iter().map(|w| w.strips).sum();
        for first in (0..rows).step_by(launch::GEMV_COLUMNS) {
            let columns = launch::GEMV_COLUMNS.min(rows - first);
            let mut parts = [GemvPart::default(); GEMV_PARTS];
            for ((part, w), p) in parts.iter_mut().zip(&matrices).zip(products) {
                let further = |at: Ptr| at.or_offset(4 * u64::from(w.rows) * first as u64);
                *part = GemvPart {
                    w: *w,
                    add: further(p.add),
                    out: further(p.out),
                };
            }
            let before =
                |form: Form, cols: u32| launch::activation_bytes(form, first, cols as usize) as u64;
            let integers = gated
                .unwrap_or(Ptr::NULL)
                .or_offset(before(Form::Integers, matrices[0].rows));
            let p = Gemv {
                parts,
                x: input.offset(before(form, matrices[0].cols)),
                integers,
                strips: if gated.is_some() {
                    matrices[0].strips
                } else {
                    all
                },
                columns: small(columns),
                gated: gated.is_some().into(),
                unused: 0,
            };
            list.launches
                .push(launch::gemv(ty, &p, self.multiprocessors));
        }
    }

    fn turn(&self) -> Turn {
        Turn {
            cosines: self.at(self.plan.cosines),
            sines: self.at(self.plan.sines),
            pairs: small(self.program.rope.frequencies.len()),
            neox: self.program.rope.neox.into(),
        }
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
                launch::embed(
                    ty,
                    &Embed {
                        table,
                        tokens,
                        out: self.slot(out),
                        columns,
                        unused: 0,
                    },
                )
            }
            Op::RmsNorm {
                x,
                ref weight,
                eps,
                out,
            } => {
                let groups = elements(x) as usize / weight.len();
                let (n, weight) = (small(weight.len()), self.at(self.plan.vectors[&at]));
                launch::rms_norm(
                    &Norm {
                        x: self.slot(x),
                        weight,
                        out: self.slot(out),
                        eps,
                        n,
                    },
                    small(groups),
                )
            }
            Op::AddBias { x, out, .. } => {
                let (b, period) = (self.at(self.plan.vectors[&at]), self.width(x) as u64);
                launch::add(&Pair {
                    a: self.slot(x),
                    b,
                    out: self.slot(out),
                    n: elements(x),
                    period,
                })
            }
            Op::Rope { x, head_dim, out } => launch::rope(&Rope {
                x: self.slot(x),
                out: self.slot(out),
                positions: self.record.paging.positions,
                turn: self.turn(),
                rows: small(self.shape.rows),
                heads: small(self.width(x) / head_dim),
                head_dim: small(head_dim),
                unused: 0,
            }),
            Op::KvWrite { k, v, layer } => {
                let (pages_k, pages_v) = self.pages(layer);
                let (k, v, paging, kv) = (
                    self.slot(k),
                    self.slot(v),
                    self.record.paging,
                    self.program.kv,
                );
                let (heads, head_dim) = (small(kv.n_head_kv), small(kv.head_dim));
                launch::kv_write(
                    kv.ty,
                    &KvWrite {
                        k,
                        v,
                        pages_k,
                        pages_v,
                        paging,
                        heads,
                        head_dim,
                    },
                )
            }
            Op::Attention {
                q,
                layer,
                scale,
                out,
            } => return self.attention(q, layer, scale, out, None),
            Op::SwiGlu {
                gate: a,
                up: b,
                out,
            }
            | Op::Add { a, b, out } => {
                let n = elements(out);
                let p = Pair {
                    a: self.slot(a),
                    b: self.slot(b),
                    out: self.slot(out),
                    n,
                    period: n,
                };
                if matches!(op, Op::SwiGlu { .. }) {
                    launch::swiglu(&p)
                } else {
                    launch::add(&p)
                }
            }
            Op::SelectRows { x, out } => {
                let (wanted, rows, width) = (
                    self.record.wanted,
                    small(self.rows(out)),
                    small(self.width(x)),
                );
                launch::select_rows(&Select {
                    x: self.slot(x),
                    wanted,
                    out: self.slot(out),
                    rows,
                    width,
                })
            }
            Op::MatMul { .. } => unreachable!("products are apart"),
        };
        vec![one]
    }

    /// Keys and values of a layer.
    fn pages(&self, layer: usize) -> (Ptr, Ptr) {
        let at = |half: usize| {
            self.at(self.plan.pages + half_of_layer(self.program, self.n_pages, 2 * layer + half))
        };
        (at(0), at(1))
    }

    /// Attention, into a slot or, as integers, there.
    fn attention(
        &self,
        q: Slot,
        layer: usize,
        scale: f32,
        out: Slot,
        integers: Option<Ptr>,
    ) -> Vec<Launch> {
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
            integers: integers.unwrap_or(Ptr::NULL),
            tiles: self.record.tiles,
            paging: self.record.paging,
            heads: small(heads),
            heads_kv: small(kv.n_head_kv),
            splits: small(SPLITS),
            scale,
        };
        if !self.shape.generated && launch::takes_prompt(kv.ty, kv.head_dim, heads / kv.n_head_kv) {
            return vec![launch::attend_prompt(
                kv.head_dim,
                &all,
                small(self.shape.tiles),
            )];
        }
        let parts = (0..self.shape.rows).step_by(ATTEND_ROWS);
        parts
            .flat_map(|first| launch::attend(kv.ty, kv.head_dim, &self.some_rows(&all, first, q)))
            .collect()
    }

    /// Attention of rows `first` and up to [`ATTEND_ROWS`] more.
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
        p.paging.first_row = small(first);
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
