//! Least memory traffic and arithmetic of a test, from the model's graph.

use octavo_kernels::{KvTypes, RowSet};

use super::Test;
use octavo_engine::backend::Phase;
use octavo_model::{Model, Op};

/// Bytes and operations in one run of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Bytes read once per step of a generation: weights (of experts, those that one token is
    /// routed to), keys and values of earlier positions, and recurrent states.
    pub read_bytes: u64,
    /// Matrix product operations, two per multiply-add.
    pub flops: u64,
}

impl Work {
    /// Counts one run of `test`. The end of the last layer and the output head count only for the
    /// rows with logits, of which both tests have one per step.
    pub fn of(model: &Model, kv_type: KvTypes, test: Test) -> Work {
        let (mut every, mut with_outputs) = (0u64, 0u64);
        for node in &model.graph.nodes {
            let products = match node.op {
                Op::MatMul { w, .. } => {
                    let matrix = model.weights.matrix(w);
                    matrix.rows * matrix.cols
                }
                Op::ExpertMatMul {
                    w, ids, experts, ..
                } => {
                    let matrix = model.weights.matrix(w);
                    let used = model.graph.values[ids.index()].width as u64;
                    matrix.rows / experts as u64 * used * matrix.cols
                }
                _ => continue,
            };
            match model.graph.values[node.out.index()].rows {
                RowSet::All => every += products,
                RowSet::Outputs => with_outputs += products,
                RowSet::Merged(rows) => every += products / rows as u64,
            }
        }
        let (n, depth) = (test.n as u64, test.depth as u64);
        let steps = match test.phase {
            Phase::Prefill => 1,
            Phase::Decode => n,
        };
        let kv: u64 = model
            .hparams
            .layers
            .iter()
            .map(|layer| {
                let position = kv_type.bytes(layer.cache_width()).unwrap_or(usize::MAX) as u64;
                position.saturating_mul(positions(depth, steps, layer.scores.window))
            })
            .sum();
        Work {
            read_bytes: steps * (model.active().bytes + model.hparams.state_bytes()) + kv,
            flops: 2 * (n * every + steps * with_outputs),
        }
    }
}

/// Sums the positions that `steps` steps attend to: step `i` attends to `depth + i + 1` of them, or
/// to those in a sliding window.
fn positions(depth: u64, steps: u64, window: Option<usize>) -> u64 {
    let window = window.map_or(u64::MAX, |window| window as u64);
    // steps before the window is full
    let growing = window.saturating_sub(depth).min(steps);
    let full = (steps - growing).saturating_mul(window);
    growing * depth + growing * (growing + 1) / 2 + full
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_rs_lite::TensorInfo;
    use octavo_engine::{ModelSource, kv_bytes};
    use octavo_fixtures::tiny::File;
    use octavo_kernels::KvType;

    #[test]
    fn the_demo_models_work_adds_up() {
        let gguf = ModelSource::Demo.open(true).expect("sound");
        let model = Model::load(&gguf).expect("sound");
        let of = |phase, n, depth| {
            Work::of(
                &model,
                KvType::F16.both(),
                Test {
                    phase,
                    n,
                    depth,
                    sequences: 1,
                },
            )
        };
        let one = of(Phase::Decode, 1, 0);
        // tied embeddings: all two-dimensional tensors are multiplied, the embedding as the output
        // head
        let matrices = || gguf.tensors().iter().filter(|t| t.dims.len() == 2);
        assert_eq!(
            one.flops,
            2 * matrices().map(|t| t.n_elements()).sum::<u64>()
        );
        let weights: u64 = gguf.tensors().iter().map(|t| t.bytes).sum();
        let kv = kv_bytes(&model.hparams, KvType::F16.both(), 1);
        let embedding = gguf.tensor("token_embd.weight").expect("there is one");
        assert_eq!(
            one.read_bytes,
            weights + kv + embedding.bytes / embedding.dims[1]
        );
        assert_eq!(
            of(Phase::Decode, 3, 10).read_bytes,
            3 * (one.read_bytes - kv) + kv * (11 + 12 + 13)
        );
        // a prompt computes the output head for one token only
        assert!(of(Phase::Prefill, 8, 0).flops < 8 * one.flops);
        assert_eq!(of(Phase::Prefill, 1, 0).flops, one.flops);
    }

    #[test]
    fn windows_end_what_is_read_of_the_cache() {
        assert_eq!(positions(10, 3, None), 11 + 12 + 13);
        assert_eq!(positions(10, 3, Some(100)), 11 + 12 + 13);
        assert_eq!(positions(10, 3, Some(12)), 11 + 12 + 12);
        assert_eq!(positions(10, 3, Some(4)), 4 + 4 + 4);
        assert_eq!(positions(0, 5, Some(2)), 1 + 2 + 2 + 2 + 2);
    }

    /// Counts two of four experts, and all weights that every token uses.
    #[test]
    fn a_mixtures_token_reads_its_experts_alone() {
        let gguf = File::mixture().gguf();
        let model = Model::load(&gguf).expect("sound");
        let test = Test {
            phase: Phase::Decode,
            n: 1,
            depth: 0,
            sequences: 1,
        };
        let work = Work::of(&model, KvType::F16.both(), test);
        let is_expert = |t: &&TensorInfo| t.name.contains("_exps.");
        let tensors = || gguf.tensors().iter();
        let experts: u64 = tensors().filter(is_expert).map(|t| t.bytes).sum();
        let shared = || tensors().filter(|t| !is_expert(t) && t.name != "token_embd.weight");
        let kv = kv_bytes(&model.hparams, KvType::F16.both(), 1);
        let row = 4 * model.hparams.n_embd() as u64;
        let bytes: u64 = shared().map(|t| t.bytes).sum();
        assert_eq!(work.read_bytes, experts / 2 + bytes + row + kv);
        let matrices = shared().filter(|t| t.dims.len() == 2);
        let products: u64 = matrices.map(TensorInfo::n_elements).sum();
        assert_eq!(work.flops, 2 * (experts / 4 / 2 + products));
        let structure = model.structure();
        assert_eq!(structure.active_bytes + kv, work.read_bytes);
        assert!(structure.active_parameters < structure.parameters);
    }
}
