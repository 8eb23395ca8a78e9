//! Finds groups of operations that one kernel can do together, because nothing outside the group
//! reads the values between them. Found once for a program; each executor takes those groups that
//! it has kernels for, and does the operations of the others one by one. Results do not change.

use crate::op::{CacheLayer, Op};
use crate::program::{Attend, Program, Slot};
use octavo_simd::function::Activation;

/// Some operations that follow each other.
pub(crate) struct Group {
    pub(crate) kind: Kind,
    /// The last of them.
    pub(crate) last: usize,
}

/// Fused operation of a group. `x` is a product's input, `w` its matrix.
pub(crate) enum Kind {
    /// `out = W x + to`.
    AddInto {
        x: Slot,
        w: usize,
        to: Slot,
        out: Slot,
    },
    /// As `AddInto`, for the rows with outputs of the product and of `to`: where all rows have
    /// outputs, selecting them changes nothing.
    AddSelected {
        x: Slot,
        w: usize,
        to: Slot,
        out: Slot,
    },
    /// `out = act(G x) * (U x)`.
    Gated {
        x: Slot,
        gate: usize,
        up: usize,
        act: Activation,
        out: Slot,
        /// Matrices of the only readers of `out`, see [`only_products`].
        readers: Option<Vec<usize>>,
    },
    /// A norm of whole rows whose only readers are products.
    NormInto {
        x: Slot,
        eps: f32,
        out: Slot,
        /// Their matrices.
        readers: Vec<usize>,
    },
    /// Attention whose only readers are products.
    AttentionInto {
        attend: Attend,
        /// Their matrices.
        readers: Vec<usize>,
    },
    /// Everything from the products of attention's queries, keys and values to the cache.
    Heads(Box<Heads>),
}

/// Queries, keys and values of one input.
pub(crate) struct Heads {
    pub(crate) x: Slot,
    pub(crate) q: Chain,
    pub(crate) k: Chain,
    pub(crate) v: Chain,
    pub(crate) cache: CacheLayer,
    /// Number of the angle table that rotates queries and keys.
    pub(crate) rope: usize,
}

/// Operations between a product and a head's queries, keys or values.
#[derive(Clone, Copy)]
pub(crate) struct Chain {
    x: Slot,
    /// The product's matrix.
    pub(crate) w: usize,
    /// The operation that adds a bias.
    pub(crate) bias: Option<usize>,
    pub(crate) norm: Option<HeadNorm>,
    turn: Option<HeadTurn>,
    pub(crate) out: Slot,
    /// Number of the operation after it.
    end: usize,
}

/// A norm of each head.
#[derive(Clone, Copy)]
pub(crate) struct HeadNorm {
    /// The operation.
    pub(crate) at: usize,
    pub(crate) eps: f32,
    head_dim: usize,
}

/// A rotation of each head.
#[derive(Clone, Copy, PartialEq, Eq)]
struct HeadTurn {
    rope: usize,
    head_dim: usize,
}

/// The group that begins with each operation, if there is one.
pub(crate) fn groups(program: &Program) -> Vec<Option<Group>> {
    let at = |at| group(program, at);
    (0..program.ops.len()).map(at).collect()
}

fn group(program: &Program, at: usize) -> Option<Group> {
    let ops = &program.ops[at..];
    let group = match ops[0].op {
        Op::MatMul { .. } => add_into(program, at)
            .or_else(|| gated(program, at))
            .or_else(|| add_selected(program, at))
            .or_else(|| heads(program, at))?,
        Op::RmsNorm { x, ref weight, eps } if weight.len() == program.slots[x].width => {
            let out = ops[0].out?;
            let readers = only_products(program, out, at + 1)?;
            let kind = Kind::NormInto {
                x,
                eps,
                out,
                readers,
            };
            Group { kind, last: at }
        }
        Op::Attention {
            q,
            seen,
            cache,
            scores,
            ..
        } => {
            let out = ops[0].out?;
            let readers = only_products(program, out, at + 1)?;
            let attend = Attend {
                q,
                seen,
                cache,
                scores,
                out,
            };
            let kind = Kind::AttentionInto { attend, readers };
            Group { kind, last: at }
        }
        _ => return None,
    };
    Some(group)
}

/// A product, and where its result goes.
struct Product {
    x: Slot,
    w: usize,
    out: Slot,
}

fn product(program: &Program, at: usize) -> Option<Product> {
    let instruction = program.ops.get(at)?;
    match instruction.op {
        Op::MatMul { x, w } => Some(Product {
            x,
            w,
            out: instruction.out?,
        }),
        _ => None,
    }
}

fn add_into(program: &Program, at: usize) -> Option<Group> {
    let (product, last) = (product(program, at)?, at + 1);
    let instruction = program.ops.get(last)?;
    let (Op::Add { a, b }, out) = (&instruction.op, instruction.out?) else {
        return None;
    };
    let (is_a, is_b) = (*a == product.out, *b == product.out);
    (is_a != is_b && is_gone(program, product.out, out, last)).then_some(Group {
        kind: Kind::AddInto {
            x: product.x,
            w: product.w,
            to: if is_a { *b } else { *a },
            out,
        },
        last,
    })
}

fn add_selected(program: &Program, at: usize) -> Option<Group> {
    let (product, last) = (product(program, at)?, at + 3);
    let [_, mine, others, add, ..] = &program.ops[at..] else {
        return None;
    };
    let (Op::SelectRows { x: selected }, Op::SelectRows { x: to }, Op::Add { a, b }) =
        (&mine.op, &others.op, &add.op)
    else {
        return None;
    };
    let (c, d, out) = (mine.out?, others.out?, add.out?);
    let fits = *selected == product.out
        && (c, d) == (*a, *b)
        && c != d
        && [product.out, c, d]
            .iter()
            .all(|slot| is_gone(program, *slot, out, last));
    fits.then_some(Group {
        kind: Kind::AddSelected {
            x: product.x,
            w: product.w,
            to: *to,
            out,
        },
        last,
    })
}

fn gated(program: &Program, at: usize) -> Option<Group> {
    let (gate, up) = (product(program, at)?, product(program, at + 1)?);
    let last = at + 2;
    let instruction = program.ops.get(last)?;
    let Op::Gate {
        gate: a,
        up: b,
        act,
    } = instruction.op
    else {
        return None;
    };
    let out = instruction.out?;
    let fits = gate.x == up.x
        && (gate.out, up.out) == (a, b)
        && a != b
        && [a, b].iter().all(|slot| is_gone(program, *slot, out, last));
    fits.then(|| Group {
        kind: Kind::Gated {
            x: gate.x,
            gate: gate.w,
            up: up.w,
            act,
            out,
            readers: only_products(program, out, last + 1),
        },
        last,
    })
}

fn heads(program: &Program, at: usize) -> Option<Group> {
    let a = chain(program, at)?;
    let b = chain(program, a.end)?;
    let c = chain(program, b.end)?;
    let last = c.end;
    let Op::KvWrite { k, v, cache } = program.ops.get(last)?.op else {
        return None;
    };
    let chains = [a, b, c];
    let of = |slot: Slot| chains.into_iter().find(|chain| chain.out == slot);
    let (k, v) = (of(k)?, of(v)?);
    let q = chains
        .into_iter()
        .find(|chain| chain.out != k.out && chain.out != v.out)?;
    let mut written = program.ops[at..last].iter().filter_map(|op| op.out);
    let turn = k.turn?;
    let head_dim = program.cache(cache).head_dim;
    let norms_heads = |chain: &Chain| chain.norm.is_none_or(|norm| norm.head_dim == head_dim);
    let fits = chains
        .iter()
        .all(|chain| chain.x == a.x && norms_heads(chain))
        && (q.turn == k.turn && turn.head_dim == head_dim)
        && (v.turn.is_none() && k.out != v.out)
        && written.all(|slot| is_gone(program, slot, q.out, last));
    let kind = Kind::Heads(Box::new(Heads {
        x: a.x,
        q,
        k,
        v,
        cache,
        rope: turn.rope,
    }));
    fits.then_some(Group { kind, last })
}

/// The chain that begins with the product at `at`.
fn chain(program: &Program, at: usize) -> Option<Chain> {
    let Product { x, w, out } = product(program, at)?;
    let mut chain = Chain {
        x,
        w,
        bias: None,
        norm: None,
        turn: None,
        out,
        end: at + 1,
    };
    // the operation that reads the latest value, if it comes next
    let next = |chain: &Chain| {
        let reads = |op: &&crate::Instruction| op.reads_slot(chain.out);
        program.ops.get(chain.end).filter(reads)
    };
    let go_on = |chain: &mut Chain, out: Slot| (chain.out, chain.end) = (out, chain.end + 1);
    if let Some(i) = next(&chain)
        && let (Op::AddBias { .. }, Some(out)) = (&i.op, i.out)
    {
        chain.bias = Some(chain.end);
        go_on(&mut chain, out);
    }
    if let Some(i) = next(&chain)
        && let (Op::RmsNorm { weight, eps, .. }, Some(out)) = (&i.op, i.out)
    {
        chain.norm = Some(HeadNorm {
            at: chain.end,
            eps: *eps,
            head_dim: weight.len(),
        });
        go_on(&mut chain, out);
    }
    if let Some(i) = next(&chain)
        && let (&Op::Rope { head_dim, rope, .. }, Some(out)) = (&i.op, i.out)
    {
        chain.turn = Some(HeadTurn { rope, head_dim });
        go_on(&mut chain, out);
    }
    Some(chain)
}

/// Whether nothing reads a slot's value after operation `last`, which writes `out`.
fn is_gone(program: &Program, slot: Slot, out: Slot, last: usize) -> bool {
    slot == out || is_unread(program, slot, last + 1)
}

/// Whether no operation from `from` on reads the slot's earlier value.
fn is_unread(program: &Program, slot: Slot, from: usize) -> bool {
    for instruction in &program.ops[from..] {
        if instruction.reads_slot(slot) {
            return false;
        }
        if instruction.out == Some(slot) {
            return true;
        }
    }
    !program.is_result(slot)
}

/// The matrices of the products that read a slot's value from operation `from` on, if nothing else
/// does, and if no operation between them needs a product input of its own: one prepared input is
/// enough then, and the value itself is not needed.
fn only_products(program: &Program, slot: Slot, from: usize) -> Option<Vec<usize>> {
    let mut readers = Vec::new();
    let mut others = false;
    for instruction in &program.ops[from..] {
        match instruction.op {
            Op::MatMul { x, w } if x == slot && !others => readers.push(w),
            _ if instruction.reads_slot(slot) => return None,
            // operations that may need the place of this input for another one
            Op::MatMul { .. }
            | Op::Attention { .. }
            | Op::SelectKeys { .. }
            | Op::Gate { .. }
            | Op::ExpertMatMul { .. } => others = true,
            Op::RmsNorm { x, ref weight, .. } if weight.len() == program.slots[x].width => {
                others = true;
            }
            Op::Embed { .. }
            | Op::Constant { .. }
            | Op::EmbedPositions { .. }
            | Op::Input
            | Op::RmsNorm { .. }
            | Op::LayerNorm { .. }
            | Op::AddBias { .. }
            | Op::AddEmbeddings { .. }
            | Op::Rope { .. }
            | Op::Hadamard { .. }
            | Op::KvWrite { .. }
            | Op::Unary { .. }
            | Op::ScaleByPosition { .. }
            | Op::MulVector { .. }
            | Op::Slice { .. }
            | Op::Concat { .. }
            | Op::CausalConv { .. }
            | Op::LinearAttention { .. }
            | Op::SelectiveScan { .. }
            | Op::Wkv7 { .. }
            | Op::Add { .. }
            | Op::Mul { .. }
            | Op::SelectRows { .. }
            | Op::Merge { .. }
            | Op::Softmax { .. }
            | Op::TopK { .. }
            | Op::Gather { .. }
            | Op::Normalize { .. }
            | Op::ScaleRows { .. }
            | Op::ExpertBias { .. }
            | Op::ExpertSum { .. }
            | Op::AllGather { .. }
            | Op::LoraDown { .. }
            | Op::LoraUp { .. } => {}
        }
        if instruction.out == Some(slot) {
            return Some(readers).filter(|readers| !readers.is_empty());
        }
    }
    Some(readers).filter(|readers| !readers.is_empty() && !program.is_result(slot))
}
