//! Embedding inputs, and tokens with RoPE positions other than their KV cache positions, on every
//! device against the formulas.

use octavo_kernels::cuda::{Executor as Gpu, Limits, Setup};
use octavo_kernels::{
    EmbeddingRows, Executor, Isa, KvShape, KvStore, Op, Pairing, Phase, Pool, Program, Rope,
    RopePosition, Step, StepSequence,
};

use crate::common::{KV, Rng, embed, program};
use crate::cuda_shim::{Bench, device};

/// Tokens in the embedding table.
const TABLE: usize = 7;
const WIDTH: usize = 32;
/// Width of an embedding input: the embedding, and two more rows to add.
const INPUT_WIDTH: usize = 3 * WIDTH;
const HEAD: usize = 16;

/// Tokens of one sequence with an image of four tokens, and of one without.
const TOKENS: [&[u32]; 2] = [&[3, u32::MAX, 4_000_000_000, 9, 1, 6], &[0, 5, 2]];
const ROPE_POSITIONS: [RopePosition; 6] = [
    [5, 5, 5],
    [6, 6, 6],
    [6, 6, 7],
    [6, 7, 6],
    [6, 7, 7],
    [8, 8, 8],
];
/// First positions of the sequences.
const STARTS: [usize; 2] = [9, 2];
const TABLES: [&[&[u32]]; 2] = [&[&[0]], &[&[1]]];

/// Inputs and parameters of the computation.
struct Case {
    table: Vec<f32>,
    /// Embedding inputs of the image tokens.
    inputs: Vec<f32>,
    rope: Rope,
    kv: KvShape,
}

impl Case {
    fn new() -> Case {
        let mut rng = Rng(77);
        Case {
            table: rng.floats(TABLE * WIDTH),
            inputs: rng.floats(4 * INPUT_WIDTH),
            rope: Rope {
                pairing: Pairing::Neox,
                frequencies: vec![1.0, 0.5, 0.25, 0.125, 0.0625],
                magnitude: 1.5,
                axes: vec![0, 1, 2, 1, 0],
            },
            kv: KvShape {
                head_dim: HEAD,
                ..KV
            },
        }
    }

    fn program(&self) -> Program {
        let ops = vec![
            embed(TABLE, WIDTH, &self.table, 0),
            Op::AddEmbeddings { x: 0, from: WIDTH }.to(1),
            Op::AddEmbeddings {
                x: 1,
                from: 2 * WIDTH,
            }
            .to(2),
            Op::Rope {
                x: 2,
                head_dim: HEAD,
                rope: 0,
            }
            .to(3),
        ];
        Program {
            ropes: vec![self.rope.clone()],
            embedding_input_width: INPUT_WIDTH,
            on_host: vec![],
            ..program(ops, &[WIDTH; 4], self.kv)
        }
    }

    /// Runs both sequences in one step, with the image in two parts.
    fn run(&self, step: impl FnOnce(&Step<'_>) -> Vec<f32>) -> Vec<f32> {
        let (first, rest) = self.inputs.split_at(INPUT_WIDTH);
        let inputs = [
            EmbeddingRows {
                first: 1,
                rows: first,
            },
            EmbeddingRows {
                first: 2,
                rows: rest,
            },
        ];
        let sequence = |i: usize| StepSequence {
            tokens: TOKENS[i],
            start: STARTS[i],
            tables: TABLES[i],
            outputs: 0..TOKENS[i].len(),
            ..StepSequence::default()
        };
        let seqs = [
            StepSequence {
                rope_positions: &ROPE_POSITIONS,
                embedding_inputs: &inputs,
                ..sequence(0)
            },
            sequence(1),
        ];
        step(&Step {
            phase: Phase::Prefill,
            seqs: &seqs,
            input: &[],
        })
    }

    /// Computes the result by the formulas.
    fn expected(&self) -> Vec<f32> {
        let mut all = Vec::new();
        for (i, tokens) in TOKENS.iter().enumerate() {
            for (j, token) in tokens.iter().enumerate() {
                let mut row = vec![0.0; WIDTH];
                if i == 0 && (1..5).contains(&j) {
                    let input = &self.inputs[(j - 1) * INPUT_WIDTH..j * INPUT_WIDTH];
                    for (k, x) in row.iter_mut().enumerate() {
                        *x = input[k] + input[WIDTH + k] + input[2 * WIDTH + k];
                    }
                } else {
                    let at = *token as usize * WIDTH;
                    row.copy_from_slice(&self.table[at..at + WIDTH]);
                }
                let rope_positions = match i {
                    0 => ROPE_POSITIONS[j],
                    _ => [(STARTS[i] + j) as u32; 3],
                };
                for head in row.chunks_mut(HEAD) {
                    for pair in 0..self.rope.frequencies.len() {
                        let turn = f64::from(rope_positions[self.rope.axes[pair]]);
                        let (sin, cos) = (turn * self.rope.frequencies[pair]).sin_cos();
                        let m = self.rope.magnitude;
                        let (c, s) = ((m * cos) as f32, (m * sin) as f32);
                        let (a, b) = (head[pair], head[pair + 5]);
                        (head[pair], head[pair + 5]) = (a * c - b * s, a * s + b * c);
                    }
                }
                all.extend(row);
            }
        }
        all
    }
}

fn assert_close(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(
            (got - expected).abs() <= 1e-5,
            "{what}: value {at}: {got}, expected {expected}"
        );
    }
}

#[test]
fn images_stand_in_the_place_of_tokens_on_cpus() {
    let case = Case::new();
    let expected = case.expected();
    for isa in Isa::available() {
        for threads in [1, 3] {
            let pool = Pool::new(threads).expect("threads");
            let mut executor = Executor::new(isa, case.program(), vec![], pool);
            let mut kv = KvStore::new(&[case.kv], 2).expect("memory");
            let got = case.run(|step| executor.step(step, &mut kv, None).to_vec());
            assert_close(&got, &expected, &format!("{isa}, {threads} threads"));
        }
    }
}

#[test]
fn images_stand_in_the_place_of_tokens_on_gpus() {
    let Some(Bench(machine)) = device() else {
        return;
    };
    let case = Case::new();
    let setup = Setup {
        limits: Limits {
            rows: 9,
            outputs: 9,
            sequences: 2,
            positions: 16,
            n_pages: 2,
            states: 0,
        },
        capture: false,
        check_pages: true,
        threads: 1,
    };
    let mut executor = Gpu::new(
        machine.boxed(),
        case.program(),
        &[],
        setup,
        &mut |_, _, _| {},
    )
    .expect("a program that fits");
    let got = case.run(|step| executor.step(step, None).expect("it runs").to_vec());
    assert_close(&got, &case.expected(), "the GPU's kernels");
}
