//! Places for low-rank adapters in a network's graph: after each product with a matrix that some
//! adapter changes, and after the token embeddings.
//!
//! A step in which no sequence uses an adapter runs the graph without these places, so that it
//! costs nothing; both give rows without adapters the same bits.

use std::collections::HashMap;
use std::sync::Arc;

use octavo_kernels::{Isa, LoraInput, LoraPart, LoraSite, Matrix, Pool, Rope, RowTable};
use octavo_model::{
    Adapter, AdapterPair, CacheGroup, Graph, Network, Node, Op, Tensors, ValueId, WeightId,
    WeightRef,
};

use super::cpu::Error;

/// A network with places for adapters.
pub(super) struct Adapted<'a> {
    network: &'a dyn Network,
    graph: Graph,
    adapters: &'a [Arc<Adapter>],
    /// The matrix of each place.
    places: Vec<WeightId>,
}

impl<'a> Adapted<'a> {
    /// Adds places for these adapters.
    pub(super) fn of(network: &'a dyn Network, adapters: &'a [Arc<Adapter>]) -> Adapted<'a> {
        let mut insert = Insert {
            network,
            adapters,
            graph: Graph {
                nodes: Vec::new(),
                ..network.graph().clone()
            },
            places: Vec::new(),
            done: vec![false; network.graph().nodes.len()],
        };
        insert.all();
        let Insert { graph, places, .. } = insert;
        let sound = graph.validate(network.tensors(), network.ropes(), network.caches());
        sound.expect("a sound graph with places for adapters is sound");
        Adapted {
            network,
            graph,
            adapters,
            places,
        }
    }

    /// Packs the adapters' matrices for each place, with the threads of `pool`.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub(super) fn sites(&self, isa: Isa, pool: &mut Pool) -> Result<Vec<LoraSite>, Error> {
        let mut packing = Packing {
            isa,
            pool,
            known: HashMap::new(),
        };
        let tensors = self.network.tensors();
        let site = |w: &WeightId| {
            let matrix = tensors.matrix(*w);
            let (mut parts, mut first) = (Vec::new(), 0);
            for (adapter, pair) in pairs(self.adapters, matrix.tensor) {
                let rank = pair.rank;
                parts.push(packing.part(adapter, &self.adapters[adapter], pair, matrix, first)?);
                first += rank;
            }
            Ok(LoraSite { parts })
        };
        self.places.iter().map(site).collect()
    }
}

impl Network for Adapted<'_> {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn tensors(&self) -> &Tensors {
        self.network.tensors()
    }

    fn ropes(&self) -> &[Rope] {
        self.network.ropes()
    }

    fn caches(&self) -> &[CacheGroup] {
        self.network.caches()
    }
}

/// Returns the adapters that change a tensor, with their numbers.
fn pairs(adapters: &[Arc<Adapter>], tensor: usize) -> impl Iterator<Item = (usize, &AdapterPair)> {
    adapters.iter().enumerate().filter_map(move |(i, adapter)| {
        let at = adapter.pairs.binary_search_by_key(&tensor, |p| p.tensor);
        Some((i, &adapter.pairs[at.ok()?]))
    })
}

/// A graph that gets places.
struct Insert<'a> {
    network: &'a dyn Network,
    adapters: &'a [Arc<Adapter>],
    graph: Graph,
    places: Vec<WeightId>,
    /// Nodes that were moved to the first product of the same input.
    done: Vec<bool>,
}

/// Input of a product, and the experts that it is multiplied with.
type ProductInput = (ValueId, Option<ValueId>);

impl Insert<'_> {
    fn all(&mut self) {
        for at in 0..self.network.graph().nodes.len() {
            let node = self.network.graph().nodes[at];
            if at == self.network.graph().first_layer {
                self.graph.first_layer = self.graph.nodes.len();
            }
            if self.done[at] {
                continue;
            }
            match (self.product(&node), node.op) {
                (Some((input, _)), _) => self.products(at, input),
                (None, Op::Embed { table, .. }) if self.is_adapted(table) => {
                    let y = self.twin(node.out);
                    self.push(Node {
                        out: y,
                        tap: None,
                        ..node
                    });
                    let h = self.down(None, node.out, table);
                    self.up((y, h), None, &node, table);
                }
                _ => self.push(node),
            }
        }
    }

    /// Moves all products of an input to the first of them, at `at`, each with a place after it:
    /// threads then wait once for all of them, not for each.
    fn products(&mut self, at: usize, input: ProductInput) {
        let nodes = &self.network.graph().nodes;
        let mut list: Vec<(Node, WeightId, ValueId)> = Vec::new();
        for (i, node) in nodes.iter().enumerate().skip(at) {
            match self.product(node) {
                Some((other, w)) if other == input && !self.done[i] => {
                    self.done[i] = true;
                    let y = self.twin(node.out);
                    list.push((*node, w, y));
                }
                _ => {}
            }
        }
        for (node, _, y) in &list {
            self.push(Node {
                out: *y,
                tap: None,
                ..*node
            });
        }
        let (x, ids) = input;
        // parts of one tensor have the adapters' first matrices in common
        let mut known: HashMap<usize, ValueId> = HashMap::new();
        let mut downs = Vec::new();
        for (node, w, _) in &list {
            let tensor = self.network.tensors().matrix(*w).tensor;
            let h = match known.get(&tensor) {
                Some(h) => *h,
                None => self.down(Some((x, ids)), node.out, *w),
            };
            known.insert(tensor, h);
            downs.push(h);
        }
        for ((node, w, y), h) in list.iter().zip(downs) {
            self.up((*y, h), ids, node, *w);
        }
    }

    /// Returns the input and the matrix of a product that an adapter changes.
    fn product(&self, node: &Node) -> Option<(ProductInput, WeightId)> {
        let (input, w) = match node.op {
            Op::MatMul { x, w } => ((x, None), w),
            Op::ExpertMatMul { x, w, ids, .. } => ((x, Some(ids)), w),
            _ => return None,
        };
        self.is_adapted(w).then_some((input, w))
    }

    fn is_adapted(&self, w: WeightId) -> bool {
        let tensor = self.network.tensors().matrix(w).tensor;
        pairs(self.adapters, tensor).next().is_some()
    }

    /// Appends the adapters' first products; the next place that [`Insert::up`] makes is theirs.
    fn down(&mut self, input: Option<ProductInput>, like: ValueId, w: WeightId) -> ValueId {
        let tensor = self.network.tensors().matrix(w).tensor;
        let ranks = pairs(self.adapters, tensor).map(|(_, pair)| pair.rank);
        let ids = input.and_then(|(_, ids)| ids);
        let used = ids.map_or(1, |ids| self.graph.values[ids.index()].width);
        let width = used * ranks.sum::<usize>();
        let out = self.twin(like);
        self.graph.values[out.index()].width = width;
        let op = Op::LoraDown {
            x: input.map(|(x, _)| x),
            ids,
            site: self.site(w),
            width,
        };
        self.push(Node { op, out, tap: None });
        out
    }

    /// Appends the sum of a product and the adapters' second products, as the node's result.
    fn up(&mut self, (y, h): (ValueId, ValueId), ids: Option<ValueId>, node: &Node, w: WeightId) {
        let site = self.site(w);
        let op = Op::LoraUp { y, h, ids, site };
        self.push(Node { op, ..*node });
    }

    /// Returns the place of a matrix.
    fn site(&mut self, w: WeightId) -> usize {
        match self.places.iter().position(|place| *place == w) {
            Some(site) => site,
            None => {
                self.places.push(w);
                self.places.len() - 1
            }
        }
    }

    fn push(&mut self, node: Node) {
        self.graph.nodes.push(node);
    }

    /// Adds a value of the shape of another.
    fn twin(&mut self, value: ValueId) -> ValueId {
        let values = &mut self.graph.values;
        values.push(values[value.index()]);
        ValueId(values.len() as u32 - 1)
    }
}

/// Packs adapters' matrices; those of one tensor in several places are packed once.
struct Packing<'a> {
    isa: Isa,
    pool: &'a mut Pool,
    /// By adapter and tensor of its file.
    known: HashMap<(usize, usize), LoraInput>,
}

impl Packing<'_> {
    fn part(
        &mut self,
        number: usize,
        adapter: &Adapter,
        pair: &AdapterPair,
        matrix: &WeightRef,
        first: usize,
    ) -> Result<LoraPart, Error> {
        let [a, b] = pair.halves;
        let input = match self.known.get(&(number, a)) {
            Some(input) => input.clone(),
            None => {
                let input = self.input(adapter, pair, matrix)?;
                self.known.insert((number, a), input.clone());
                input
            }
        };
        let (ty, mut bytes) = adapter.floats(b);
        let mut rows = matrix.rows as usize;
        if pair.is_table {
            rows = matrix.cols as usize;
        } else if bytes.len() != rows * row_bytes(ty, pair.rank) {
            let each = row_bytes(ty, pair.rank);
            let row = |i: usize| &bytes[matrix.tensor_row(i) * each..][..each];
            bytes = (0..rows).flat_map(|i| row(i).to_vec()).collect();
        }
        let shape = (ty, rows, pair.rank);
        Ok(LoraPart {
            adapter: number,
            a: input,
            b: self.matrix(adapter, b, shape, pair.experts, bytes)?,
            first,
            // a factor of the product comes after the place
            scale: pair.scale / matrix.scale,
        })
    }

    fn input(
        &mut self,
        adapter: &Adapter,
        pair: &AdapterPair,
        matrix: &WeightRef,
    ) -> Result<LoraInput, Error> {
        let [a, _] = pair.halves;
        let (ty, bytes) = adapter.floats(a);
        let (cols, dims) = (matrix.cols, &adapter.gguf().tensors()[a].dims);
        if pair.is_table {
            return Ok(LoraInput::Rows(RowTable {
                ty,
                rows: dims.get(1).map_or(1, |n| *n as usize),
                cols: pair.rank,
                source: Arc::new(bytes),
            }));
        }
        let shape = (ty, pair.experts * pair.rank, cols as usize);
        let packed = self.matrix(adapter, a, shape, pair.experts, bytes)?;
        Ok(LoraInput::Matrix(Box::new(packed)))
    }

    fn matrix(
        &mut self,
        adapter: &Adapter,
        tensor: usize,
        shape: (gguf_rs_lite::TensorType, usize, usize),
        experts: usize,
        bytes: Vec<u8>,
    ) -> Result<Matrix, Error> {
        let packed = Matrix::of_experts(
            self.isa,
            shape,
            experts,
            Arc::new(bytes),
            true,
            &mut *self.pool,
        );
        packed.map_err(|source| Error::Matrix {
            name: adapter.gguf().tensors()[tensor].name.clone(),
            source,
        })
    }
}

/// Returns the bytes of a row of floats.
fn row_bytes(ty: gguf_rs_lite::TensorType, n: usize) -> usize {
    n * ty.block_bytes()
}
