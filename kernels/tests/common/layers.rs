//! Decoder layers with random weights, for tests of whole steps: all operations except biases and
//! embedding inputs. Scores have caps and sinks, and every other layer a window.

use std::sync::Arc;

use octavo_kernels::{
    Activation, CacheLayer, Executor, Function, Instruction, Isa, KvShape, Matrix, Op, Pairing,
    Program, PromptBits, Rope, RowSet, Scores, SharedPool, ValueShape,
};
use octavo_quant::TensorType;

use super::{Rng, embed, random_blocks};

/// Window of every other layer: small enough to begin after the first page, and after the first
/// piece of a long context.
const WINDOW: usize = 20;

/// Sizes and weight types of a small model.
#[derive(Clone)]
pub(crate) struct Layers {
    /// Width of the residual stream, and of all query heads together.
    pub(crate) d: usize,
    /// Width of the FFN.
    pub(crate) ff: usize,
    pub(crate) kv: KvShape,
    /// Outputs of the LM head.
    pub(crate) out: usize,
    /// Rows of the embedding table.
    pub(crate) tokens: usize,
    /// Weight types by layer: Q, K, V, attention output, gate, up and down.
    pub(crate) types: Vec<[TensorType; 7]>,
    pub(crate) out_type: TensorType,
}

impl Layers {
    /// Returns the operations. Slots: 0 residual, 1 normed, 2 q, 3 k, 4 v, 5 and 6 q and k normed,
    /// 7 and 8 those rotated, 9 attention, 10 its sum, 11 normed, 12 gate, 13 up, 14 gated, 15
    /// selected, 16 normed, 17 the product, 18 that soft-capped: the output.
    fn ops(&self, rng: &mut Rng) -> Vec<Instruction> {
        let mut norm = |x, n: usize, out| {
            Op::RmsNorm {
                x,
                weight: rng.floats(n).iter().map(|x| x * 0.2 + 1.0).collect(),
                eps: 1e-5,
            }
            .to(out)
        };
        let mut ops = Vec::new();
        for layer in 0..self.types.len() {
            ops.extend(self.layer(layer, &mut norm));
        }
        ops.extend([
            Op::SelectRows { x: 0 }.to(15),
            norm(15, self.d, 16),
            Op::MatMul {
                x: 16,
                w: self.types.len() * 7,
            }
            .to(17),
            Op::Unary {
                x: 17,
                f: Function::SoftCap(30.0),
            }
            .to(18),
        ]);
        ops
    }

    /// Appends one layer, from slot 0 to slot 0; `norm` creates a norm of a given width.
    fn layer(
        &self,
        layer: usize,
        norm: &mut dyn FnMut(usize, usize, usize) -> Instruction,
    ) -> Vec<Instruction> {
        let w = layer * 7;
        let head_dim = self.kv.head_dim;
        vec![
            norm(0, self.d, 1),
            Op::MatMul { x: 1, w }.to(2),
            Op::MatMul { x: 1, w: w + 1 }.to(3),
            Op::MatMul { x: 1, w: w + 2 }.to(4),
            norm(2, head_dim, 5),
            norm(3, head_dim, 6),
            Op::Rope {
                x: 5,
                head_dim,
                rope: 0,
            }
            .to(7),
            Op::Rope {
                x: 6,
                head_dim,
                rope: 0,
            }
            .to(8),
            Op::KvWrite {
                k: 8,
                v: 4,
                cache: CacheLayer { group: 0, layer },
            }
            .without_result(),
            Op::Attention {
                q: 7,
                seen: None,
                cache: CacheLayer { group: 0, layer },
                scores: Scores {
                    scale: 0.125,
                    cap: Some(20.0),
                    window: (layer % 2 == 1).then_some(WINDOW),
                    chunked: false,
                    causal: true,
                    blocks: false,
                    images: false,
                    alibi: None,
                },
                sinks: Some((0..self.d / head_dim).map(|h| 0.5 - h as f32).collect()),
            }
            .to(9),
            Op::MatMul { x: 9, w: w + 3 }.to(2),
            Op::Add { a: 0, b: 2 }.to(10),
            norm(10, self.d, 11),
            Op::MatMul { x: 11, w: w + 4 }.to(12),
            Op::MatMul { x: 11, w: w + 5 }.to(13),
            Op::Gate {
                gate: 12,
                up: 13,
                act: Activation::Silu,
            }
            .to(14),
            Op::MatMul { x: 14, w: w + 6 }.to(2),
            Op::Add { a: 10, b: 2 }.to(0),
        ]
    }

    /// Returns the rows and columns of a layer's matrices.
    fn shapes(&self) -> [(usize, usize); 7] {
        let (d, d_kv) = (self.d, self.kv.n_head_kv * self.kv.head_dim);
        [
            (d, d),
            (d_kv, d),
            (d_kv, d),
            (d, d),
            (self.ff, d),
            (self.ff, d),
            (d, self.ff),
        ]
    }

    /// Creates the model, always with the same numbers.
    pub(crate) fn executor(&self, isa: Isa, repack: bool, pool: impl Into<SharedPool>) -> Executor {
        let pool = pool.into();
        let mut rng = Rng(11);
        let mut ops = vec![embed(
            self.tokens,
            self.d,
            &rng.floats(self.tokens * self.d),
            0,
        )];
        ops.extend(self.ops(&mut rng));
        let of_layers = self
            .types
            .iter()
            .flat_map(|types| types.iter().copied().zip(self.shapes()));
        let matrices = of_layers
            .chain([(self.out_type, (self.out, self.d))])
            .enumerate()
            .map(|(at, (ty, (rows, cols)))| {
                let raw = Arc::new(random_blocks(&mut rng, ty, rows * cols));
                // some in each form; gate and up share one
                let bits = match at % 7 {
                    0 | 1 => PromptBits::Eight,
                    2 | 3 => PromptBits::Sixteen,
                    _ => PromptBits::Thirteen,
                };
                Matrix::new(isa, (ty, rows, cols), raw, repack, &mut pool.lock())
                    .expect("a matrix")
                    .with_prompt_bits(bits)
            })
            .collect();

        let (d, d_kv, ff) = (self.d, self.kv.n_head_kv * self.kv.head_dim, self.ff);
        let widths = [
            d, d, d, d_kv, d_kv, d, d_kv, d, d_kv, d, d, d, ff, ff, ff, d, d, self.out, self.out,
        ];
        let slots = widths
            .iter()
            .enumerate()
            .map(|(i, width)| ValueShape {
                width: *width,
                rows: if i < 15 { RowSet::All } else { RowSet::Outputs },
            })
            .collect();
        let pairs = self.kv.head_dim / 2;
        let frequencies = (0..pairs)
            .map(|i| 10_000f64.powf(-(i as f64) / pairs as f64))
            .collect();
        let rope = Rope {
            frequencies,
            magnitude: 1.0,
            pairing: Pairing::Neox,
            axes: Vec::new(),
        };
        Executor::new(
            isa,
            Program {
                ops,
                slots,
                ropes: vec![rope],
                caches: vec![self.kv],
                states: vec![],
                output: 18,
                kept: None,
                embedding_input_width: 0,
                on_host: vec![],
            },
            matrices,
            pool,
        )
    }
}
