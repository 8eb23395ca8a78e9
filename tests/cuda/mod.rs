//! Models on the CUDA backend, whose kernels run on the CPU here (or on a GPU, see
//! `kernels/tests/common/device.rs`): logits against the goldens, pages, neighbours, captured
//! decode.

#[path = "../../kernels/tests/common/device.rs"]
mod machine;

#[path = "../../kernels/tests/common/standin.rs"]
mod on_standin;

mod candidates;
mod engine;
mod experts;
mod goldens;
mod images;
mod mtp;
mod pipeline;
mod ranks;
mod standin;
mod steps;
mod two_devices;
mod watched;

use std::path::Path;
use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_engine::backend::cuda::{Cuda, Limits, Options};
use octavo_engine::backend::{Backend, CpuExperts, Phase, Step, StepSequence, cpu, cuda, split};
use octavo_kernels::cuda::Device;
use octavo_kernels::cuda::shim::{Shim, Sources};
use octavo_kernels::{Isa, KvType, PAGE_POSITIONS};
use octavo_kernels::{StateUse, StateWrite};
use octavo_model::Model;

use octavo_fixtures::tiny::File;

/// Returns the device that tests run on, if there is one.
fn device() -> Option<Box<dyn Device>> {
    machine::machine(env!("CARGO_TARGET_TMPDIR")).map(machine::Machine::boxed)
}

/// Returns the CPU as a GPU, if there is a C++ compiler.
fn shim() -> Option<Shim> {
    machine::shim(env!("CARGO_TARGET_TMPDIR"), Sources::default())
}

fn open(model: &Path) -> (Arc<Gguf>, Model) {
    let gguf = Arc::new(Gguf::open(model, &OpenOptions::default()).expect("a model"));
    let model = Model::load(&gguf).expect("a model");
    (gguf, model)
}

/// Returns the limits for steps of this many rows of this many sequences.
fn limits(rows: usize, sequences: usize, positions: usize) -> Limits {
    let n_pages = sequences * positions.div_ceil(PAGE_POSITIONS) + 1;
    Limits {
        rows,
        outputs: rows,
        sequences,
        positions,
        n_pages,
        states: 2 * sequences,
    }
}

/// Returns the CPU's instruction set in models on two devices: the best of those that are as exact
/// as a device.
fn isa() -> Isa {
    let exact = |isa: &Isa| isa.prompt_rounding().products < cuda::prompt_rounding().products;
    Isa::available()
        .into_iter()
        .filter(exact)
        .max()
        .expect("the portable kernels are")
}

/// Returns the options for both parts of a model whose last `gpu_layers` run on a device.
fn both(gpu_layers: usize, kv_type: KvType, limits: Limits, graphs: bool) -> split::Options {
    let cpu = cpu::Options {
        isa: isa(),
        threads: 2,
        pool: None,
        kv_type: kv_type.both(),
        n_pages: limits.n_pages,
        n_states: limits.states,
        prompt_bits: octavo_kernels::PromptBits::default(),
        repack: true,
        lock: false,
        weights: None,
        adapters: Vec::new(),
    };
    split::Options {
        gpu_layers,
        experts: CpuExperts::default(),
        cpu,
        cuda: Options {
            kv_type: kv_type.both(),
            limits,
            graphs,
            check_pages: true,
            threads: 2,
        },
    }
}

/// Prepares a model on a device.
fn prepare<D: Device>(
    device: D,
    (gguf, model): &(Arc<Gguf>, Model),
    kv_type: KvType,
    limits: Limits,
    graphs: bool,
) -> Cuda<D> {
    let options = Options {
        kv_type: kv_type.both(),
        limits,
        graphs,
        check_pages: true,
        threads: 2,
    };
    Cuda::prepare(device, gguf, model, &options, &mut |_| {}).expect("it is prepared")
}

/// Makes a model of two layers.
fn small(arch: &'static str) -> (Arc<Gguf>, Model) {
    let gguf = Arc::new(File::running(arch).gguf());
    let model = Model::load(&gguf).expect("a model");
    (gguf, model)
}

/// Makes the same model twice, once with each KV head of a layer duplicated: two groups of layers.
fn same_in_two_groups(arch: &'static str) -> [(Arc<Gguf>, Model); 2] {
    let one = File::running(arch);
    let mut two = one.clone();
    two.repeat_key_heads(1, 2);
    [one, two].map(|file| {
        let gguf = Arc::new(file.gguf());
        let model = Model::load(&gguf).expect("a model");
        (gguf, model)
    })
}

/// Returns token ids that do not repeat soon.
fn text(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * i + 3 * i + 7) % 251).collect()
}

/// Sequences on one executable: their lengths and pages.
struct Sequences {
    lengths: Vec<usize>,
    tables: Vec<Vec<u32>>,
    /// Slot of each one's recurrent state: a step reads one of two slots and writes the other.
    states: Vec<u32>,
}

impl Sequences {
    /// Creates `n` sequences of up to `positions`, with consecutive pages.
    fn new(n: usize, positions: usize) -> Sequences {
        let pages = positions.div_ceil(PAGE_POSITIONS);
        let table = |s: usize| (s * pages..(s + 1) * pages).map(|p| p as u32).collect();
        Sequences::on(vec![0; n], (0..n).map(table).collect())
    }

    /// Creates sequences of these lengths, on these pages.
    fn on(lengths: Vec<usize>, tables: Vec<Vec<u32>>) -> Sequences {
        let states = (0..lengths.len() as u32).map(|s| 2 * s).collect();
        Sequences {
            lengths,
            tables,
            states,
        }
    }

    /// Runs new tokens of every sequence in one step; returns all logits of each of them.
    fn run(
        &mut self,
        executable: &mut dyn Backend,
        phase: Phase,
        tokens: &[&[u32]],
    ) -> Vec<Vec<f32>> {
        let one = |((tokens, start), table): ((&&[u32], &usize), &Vec<u32>)| {
            (
                tokens.to_vec(),
                *start,
                table[..(start + tokens.len()).div_ceil(PAGE_POSITIONS)].to_vec(),
            )
        };
        let owned: Vec<_> = tokens
            .iter()
            .zip(&self.lengths)
            .zip(&self.tables)
            .map(one)
            .collect();
        let write = |(tokens, slot): (&&[u32], &u32)| {
            [StateWrite {
                after: tokens.len(),
                slot: slot ^ 1,
            }]
        };
        let to: Vec<_> = tokens.iter().zip(&self.states).map(write).collect();
        let groups = executable.cache_groups();
        let tables: Vec<Vec<&[u32]>> = owned
            .iter()
            .map(|(_, _, table)| vec![&table[..]; groups])
            .collect();
        let seqs: Vec<StepSequence<'_>> = owned
            .iter()
            .zip(&tables)
            .enumerate()
            .map(|(s, ((tokens, start, _), tables))| StepSequence {
                tokens,
                start: *start,
                tables,
                outputs: 0..tokens.len(),
                states: StateUse {
                    from: (*start > 0).then_some(self.states[s]),
                    to: &to[s],
                },
                ..StepSequence::default()
            })
            .collect();
        let logits = executable
            .step(
                &Step {
                    phase,
                    seqs: &seqs,
                    input: &[],
                },
                None,
            )
            .expect("it runs");
        self.states.iter_mut().for_each(|slot| *slot ^= 1);
        let n: usize = tokens.iter().map(|t| t.len()).sum();
        let n_vocab = logits.len() / n;
        let mut at = 0;
        let mut all = Vec::new();
        for (tokens, length) in tokens.iter().zip(&mut self.lengths) {
            all.push(logits[at..at + tokens.len() * n_vocab].to_vec());
            at += tokens.len() * n_vocab;
            *length += tokens.len();
        }
        all
    }
}
