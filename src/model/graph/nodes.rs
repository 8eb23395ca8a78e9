//! Builds a graph, node by node.

use octavo_kernels::{Function, RowSet, ValueShape};

use super::{Node, Op, ValueId};
use crate::taps::{self, Numbering};
use crate::weights::{NormWeights, Tensors, VecId, WeightId};

/// Name of a value.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The name.
    pub name: &'static str,
    /// The layer, for values that every layer has.
    pub layer: Option<usize>,
}

/// Returns this name in a layer.
pub fn at(name: &'static str, layer: usize) -> Option<Named> {
    Some(Named {
        name,
        layer: Some(layer),
    })
}

/// Returns this name without a layer.
pub fn once(name: &'static str) -> Option<Named> {
    Some(Named { name, layer: None })
}

/// A kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// RMS norm: divides by the root of the mean of the squares.
    Rms,
    /// RMS norm with a bias.
    BiasedRms,
    /// Layer norm: subtracts the mean first, and there may be a bias.
    Layer,
}

/// The nodes of a graph under construction. Every function appends the op it is named after and
/// returns its result.
#[derive(Debug)]
pub struct Nodes<'a> {
    /// Weights of products, biases and norms.
    pub tensors: &'a Tensors,
    /// Nodes in order of execution.
    pub nodes: Vec<Node>,
    /// Shapes of their results.
    pub values: Vec<ValueShape>,
    /// Values in each part of a sequence's state.
    pub states: Vec<usize>,
    taps: Numbering<&'static str>,
}

impl<'a> Nodes<'a> {
    /// Creates an empty graph.
    pub fn new(tensors: &'a Tensors) -> Nodes<'a> {
        Nodes {
            tensors,
            nodes: Vec::new(),
            values: Vec::new(),
            states: Vec::new(),
            taps: Numbering::default(),
        }
    }

    /// Appends an operation whose result has this shape.
    pub fn push(&mut self, op: Op, info: ValueShape, tap: Option<Named>) -> ValueId {
        let out = ValueId(self.values.len() as u32);
        self.values.push(info);
        let tap = tap.map(|tap| self.taps.next(tap.name, tap.layer));
        self.nodes.push(Node { op, out, tap });
        out
    }

    /// Makes every input of a product observable: unnamed ones get a tap name that llama.cpp lacks.
    pub fn show_inputs(&mut self) {
        for at in 0..self.nodes.len() {
            let read = match self.nodes[at].op {
                Op::MatMul { x, .. } => [Some(x), None],
                Op::ExpertMatMul { x, ids, .. } => [Some(x), Some(ids)],
                _ => continue,
            };
            for value in read.into_iter().flatten() {
                let source = self.source(value);
                let node = &mut self.nodes[source];
                if node.tap.is_none() && !matches!(node.op, Op::Constant { .. }) {
                    node.tap = Some(self.taps.next(taps::UNNAMED, None));
                }
            }
        }
    }

    /// Returns the node that computes a value's rows, looking through row selections.
    fn source(&self, value: ValueId) -> usize {
        // every node has one value, so values and nodes have the same indices
        let mut at = value.index();
        while let (Op::SelectRows { x }, None) = (self.nodes[at].op, self.nodes[at].tap) {
            at = x.index();
        }
        at
    }

    /// Returns the shape of a value.
    pub fn info(&self, v: ValueId) -> ValueShape {
        self.values[v.index()]
    }

    /// Appends a norm over groups as wide as its weight: the row, or each head. If there is a bias,
    /// the biased result has the norm's name, and the value before it another.
    pub fn norm(
        &mut self,
        x: ValueId,
        kind: Norm,
        norm: NormWeights,
        eps: f32,
        layer: Option<usize>,
    ) -> ValueId {
        let weight = norm.ones.unwrap_or(norm.weight);
        let named = |name, layer| Named { name, layer };
        let numbered = layer.filter(|_| norm.numbered);
        let result = norm.tap.map(|name| named(name, numbered));
        let (op, name) = match (kind, norm.bias) {
            (Norm::Rms, _) | (Norm::BiasedRms, None) => (Op::RmsNorm { x, weight, eps }, result),
            (Norm::BiasedRms, Some(_)) => {
                let unbiased = named(taps::NORM_W, layer);
                (Op::RmsNorm { x, weight, eps }, Some(unbiased))
            }
            (Norm::Layer, None) => (Op::LayerNorm { x, weight, eps }, result),
            (Norm::Layer, Some(_)) => {
                let unbiased = named(taps::NORM_W, layer);
                (Op::LayerNorm { x, weight, eps }, Some(unbiased))
            }
        };
        let y = match norm.ones {
            Some(_) => {
                let y = self.push(op, self.info(x), None);
                self.mul_vector(y, norm.weight, name)
            }
            None => self.push(op, self.info(x), name),
        };
        self.bias(y, norm.bias, result)
    }

    /// Appends `x W^T`, times the matrix's factor.
    pub fn matmul(&mut self, x: ValueId, w: WeightId, tap: Option<Named>) -> ValueId {
        let matrix = self.tensors.matrix(w);
        let (width, factor) = (matrix.rows as usize, matrix.scale);
        let info = ValueShape {
            width,
            ..self.info(x)
        };
        let y = self.push(Op::MatMul { x, w }, info, tap.filter(|_| factor == 1.0));
        self.scale(y, factor, tap)
    }

    /// Adds a bias, if there is one.
    pub fn bias(&mut self, x: ValueId, bias: Option<VecId>, tap: Option<Named>) -> ValueId {
        match bias {
            Some(bias) => self.push(Op::AddBias { x, bias }, self.info(x), tap),
            None => x,
        }
    }

    /// Appends product and bias, where only the sum has a name.
    pub fn affine(
        &mut self,
        x: ValueId,
        w: WeightId,
        bias: Option<VecId>,
        tap: Option<Named>,
    ) -> ValueId {
        let y = self.matmul(x, w, if bias.is_some() { None } else { tap });
        self.bias(y, bias, tap)
    }

    /// Appends `a + b`.
    pub fn add(&mut self, a: ValueId, b: ValueId, tap: Option<Named>) -> ValueId {
        self.push(Op::Add { a, b }, self.info(a), tap)
    }

    /// Appends `f(x)`.
    pub fn unary(&mut self, x: ValueId, f: Function, tap: Option<Named>) -> ValueId {
        self.push(Op::Unary { x, f }, self.info(x), tap)
    }

    /// Multiplies with a factor, unless it is 1.
    pub fn scale(&mut self, x: ValueId, factor: f32, tap: Option<Named>) -> ValueId {
        if factor == 1.0 {
            return x;
        }
        self.unary(x, Function::Scale(factor), tap)
    }

    /// Multiplies every row with the vector `by`, element by element.
    pub fn mul_vector(&mut self, x: ValueId, by: VecId, tap: Option<Named>) -> ValueId {
        self.push(Op::MulVector { x, by }, self.info(x), tap)
    }

    /// Appends `a * b`, element by element.
    pub fn mul(&mut self, a: ValueId, b: ValueId, tap: Option<Named>) -> ValueId {
        self.push(Op::Mul { a, b }, self.info(a), tap)
    }

    /// Takes values `from..from + width` of every row.
    pub fn part(&mut self, x: ValueId, from: usize, width: usize) -> ValueId {
        self.slice(x, self.info(x).width, from, width)
    }

    /// Takes them from every group of `each` values.
    pub fn slice(&mut self, x: ValueId, each: usize, from: usize, width: usize) -> ValueId {
        self.named_slice(x, each, from, width, None)
    }

    /// Does the same, with a name.
    pub fn named_slice(
        &mut self,
        x: ValueId,
        each: usize,
        from: usize,
        width: usize,
        tap: Option<Named>,
    ) -> ValueId {
        let of_row = self.info(x);
        let info = ValueShape {
            width: of_row.width / each * width,
            ..of_row
        };
        let op = Op::Slice {
            x,
            each,
            from,
            width,
        };
        self.push(op, info, tap)
    }

    /// Interleaves `a` and `b` along each row: `each[0]` values of `a`, then `each[1]` of `b`, and
    /// so on.
    pub fn concat(
        &mut self,
        a: ValueId,
        b: ValueId,
        each: [usize; 2],
        tap: Option<Named>,
    ) -> ValueId {
        let of_row = self.info(a);
        let info = ValueShape {
            width: of_row.width / each[0] * (each[0] + each[1]),
            ..of_row
        };
        self.push(Op::Concat { a, b, each }, info, tap)
    }

    /// Joins as many neighbouring rows into one.
    pub fn merge(&mut self, x: ValueId, rows: usize, tap: Option<Named>) -> ValueId {
        let info = ValueShape {
            width: rows * self.info(x).width,
            rows: RowSet::Merged(rows),
        };
        self.push(Op::Merge { x, rows }, info, tap)
    }
}
