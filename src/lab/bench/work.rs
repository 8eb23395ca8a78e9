//! What a test has to read and to multiply at least, from the model's graph.

use octavo_kernels::{KvType, RowSet};

use super::Test;
use gguf_rs_lite::Gguf;
use octavo_engine::backend::Role;
use octavo_engine::kv_bytes;
use octavo_model::{Model, Op};

/// Bytes and operations of one run of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Weights, of experts those that one token is given to, and keys and values of the positions
    /// before, read once for each step of a generation.
    pub read_bytes: u64,
    /// Two for each multiply-add of a matrix product.
    pub flops: u64,
}

impl Work {
    /// Of one run of `test`. The last layer's end and the output head count only for the rows that
    /// are wanted, of which both tests have one a step.
    pub fn of(model: &Model, gguf: &Gguf, kv_type: KvType, test: Test) -> Work {
        let (mut every, mut wanted, mut bytes) = (0u64, 0u64, 0u64);
        for node in &model.graph.nodes {
            match node.op {
                Op::MatMul { w, .. } => {
                    let matrix = model.weights.matrix(w);
                    bytes += matrix.bytes(gguf).len() as u64;
                    match model.graph.values[node.out.index()].rows {
                        RowSet::All => every += matrix.rows * matrix.cols,
                        RowSet::Wanted => wanted += matrix.rows * matrix.cols,
                    }
                }
                Op::ExpertMatMul {
                    w, ids, experts, ..
                } => {
                    let (matrix, experts) = (model.weights.matrix(w), experts as u64);
                    let used = model.graph.values[ids.index()].width as u64;
                    bytes += matrix.bytes(gguf).len() as u64 / experts * used;
                    let products = matrix.rows / experts * used * matrix.cols;
                    match model.graph.values[node.out.index()].rows {
                        RowSet::All => every += products,
                        RowSet::Wanted => wanted += products,
                    }
                }
                Op::ExpertBias { x, .. } => {
                    bytes += 4 * model.graph.values[x.index()].width as u64;
                }
                Op::Embed { table } => bytes += model.weights.matrix(table).row_bytes() as u64,
                _ => {}
            }
            if let Some(vector) = node.op.vector() {
                bytes += 4 * model.weights.vector(*vector).len() as u64;
            }
        }
        let (n, depth) = (test.n as u64, test.depth as u64);
        let steps = match test.role {
            Role::Prompt => 1,
            Role::Generated => n,
        };
        // step i attends to depth + i + 1 positions
        let positions = steps * depth + steps * (steps + 1) / 2;
        let kv = kv_bytes(&model.hparams, kv_type, 1) * positions;
        Work {
            read_bytes: steps * bytes + kv,
            flops: 2 * (n * every + steps * wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_engine::ModelSource;

    #[test]
    fn the_demo_models_work_adds_up() {
        let gguf = ModelSource::Demo.open(true).expect("sound");
        let model = Model::load(&gguf).expect("sound");
        let of = |role, n, depth| {
            Work::of(
                &model,
                &gguf,
                KvType::F16,
                Test {
                    role,
                    n,
                    depth,
                    sequences: 1,
                },
            )
        };
        let one = of(Role::Generated, 1, 0);
        // tied: the matrices are every tensor of two dimensions, the embedding serving as the
        // output
        let matrices = || gguf.tensors().iter().filter(|t| t.dims.len() == 2);
        assert_eq!(
            one.flops,
            2 * matrices().map(|t| t.n_elements()).sum::<u64>()
        );
        let weights: u64 = gguf.tensors().iter().map(|t| t.bytes).sum();
        let kv = kv_bytes(&model.hparams, KvType::F16, 1);
        let embedding = gguf.tensor("token_embd.weight").expect("there is one");
        assert_eq!(
            one.read_bytes,
            weights + kv + embedding.bytes / embedding.dims[1]
        );
        assert_eq!(
            of(Role::Generated, 3, 10).read_bytes,
            3 * (one.read_bytes - kv) + kv * (11 + 12 + 13)
        );
        // a prompt multiplies the head for one token
        assert!(of(Role::Prompt, 8, 0).flops < 8 * one.flops);
        assert_eq!(of(Role::Prompt, 1, 0).flops, one.flops);
    }
}
