//! Model speed, as a fraction of what the hardware can do: llama-bench's two tests (pp and tg), on
//! a [`Session`].
//!
//! A prompt test prefills `n` tokens, a generation test decodes one greedy token after the other,
//! both after a given number of untimed tokens (the depth). Each runs once to warm up and then as
//! often as asked. Tests of several sequences that generate together are our addition. A hash of
//! the tokens computed is part of the result: the speed of other tokens is not comparable.

mod record;
mod together;
mod work;

use std::time::{Duration, Instant};

use octavo_kernels::cuda::{self, GpuInfo, launch};
use octavo_kernels::{Isa, Pool, PromptBits, kernel_name, probe};
use octavo_quant::TensorType;

use octavo_engine::Error as EngineError;
use octavo_engine::backend::{Phase, cpu};
use octavo_engine::{BatchError, Engine, LogitsFor, Session};

pub use record::{Build, Record, Setting};
pub use work::Work;

/// Processor that runs the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Processor {
    /// The CPU, with the kernels of this instruction set.
    Cpu(Isa),
    /// A GPU.
    Gpu(GpuInfo),
}

impl Processor {
    /// Returns llama-bench's name of the backend.
    pub fn backend(&self) -> &'static str {
        match self {
            Processor::Cpu(_) => "CPU",
            Processor::Gpu(_) => "CUDA",
        }
    }

    /// Returns the instruction set or GPU architecture: `avx512`, `sm_90`.
    pub fn name(&self) -> String {
        match self {
            Processor::Cpu(isa) => isa.to_string(),
            Processor::Gpu(gpu) => gpu.arch(),
        }
    }

    /// Returns the arithmetic that the measured peak counts.
    pub fn arithmetic(&self) -> &'static str {
        match self {
            Processor::Cpu(isa) => isa.arithmetic(),
            Processor::Gpu(_) => "f16 mma",
        }
    }

    /// Names the kernels that multiply weights of type `ty`, repacked into their own layout if
    /// `repack`, with prompt activations rounded to `bits`.
    pub fn kernel(&self, ty: TensorType, repack: bool, bits: PromptBits) -> String {
        match self {
            Processor::Cpu(isa) => kernel_name(*isa, ty, repack, bits),
            Processor::Gpu(_) => launch::kernel_names(ty),
        }
    }
}

/// Measured peaks of a processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Memory bandwidth in GB/s (1e9 bytes): reads on a CPU, reads plus writes of a copy on a GPU.
    pub read: f64,
    /// Peak GFLOP/s in f32, or of the matrix unit or the tensor cores.
    pub flops: f64,
}

impl Limits {
    /// Measures the peaks, for about a second. No other work should run meanwhile.
    ///
    /// # Errors
    /// If the system refuses threads or memory, or the GPU fails.
    pub fn measure(processor: &Processor, threads: usize) -> Result<Limits, EngineError> {
        match processor {
            Processor::Cpu(isa) => {
                let refused = |source| cpu::Error::Threads { threads, source };
                let mut pool = Pool::new(threads).map_err(refused)?;
                Ok(Limits {
                    flops: probe::flops_peak(*isa, &mut pool),
                    read: probe::read_bandwidth(*isa, &mut pool).map_err(cpu::Error::Measuring)?,
                })
            }
            Processor::Gpu(gpu) => {
                // free the GPU memory again before a model is loaded
                let mut gpu = octavo_engine::backend::cuda::open(gpu.ordinal)?;
                let read = cuda::probe::copy_bandwidth(&mut gpu, 1 << 28)?;
                Ok(Limits {
                    flops: cuda::probe::flops_peak(&mut gpu, 4096)?,
                    read,
                })
            }
        }
    }
}

/// One test: a prompt (prefill) or a generation (decode).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Kind of test.
    pub phase: Phase,
    /// Tokens prefilled or generated.
    pub n: usize,
    /// Tokens in the KV cache before the test.
    pub depth: usize,
    /// Sequences that run together.
    pub sequences: usize,
}

impl Test {
    /// Returns every prompt and every generation length at every depth, in llama-bench's order,
    /// generations for every number of sequences; lengths of 0 are left out.
    pub fn all(
        prompts: &[usize],
        generations: &[usize],
        depths: &[usize],
        sequences: &[usize],
    ) -> Vec<Test> {
        let mut tests = Vec::new();
        for &depth in depths {
            let prompts = prompts.iter().map(|&n| Test {
                phase: Phase::Prefill,
                n,
                depth,
                sequences: 1,
            });
            let each = |&n: &usize| sequences.iter().map(move |&sequences| (n, sequences));
            let generations = generations
                .iter()
                .flat_map(each)
                .map(|(n, sequences)| Test {
                    phase: Phase::Decode,
                    n,
                    depth,
                    sequences,
                });
            tests.extend(prompts.chain(generations).filter(|test| test.n > 0));
        }
        tests
    }

    /// Returns the KV cache positions that a sequence needs, if `batch` prompt tokens run per step.
    pub fn positions(&self, batch: usize) -> usize {
        let before = match self.sequences {
            1 => 0,
            // sequences prefilled first already generate while the others are prefilled
            _ => 1 + self.sequences * (self.depth + 1).div_ceil(batch.max(1)).max(1),
        };
        self.n.saturating_add(self.depth).saturating_add(before)
    }
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.phase {
            Phase::Prefill => "pp",
            Phase::Decode => "tg",
        };
        let depth = if self.depth > 0 {
            format!(" @ d{}", self.depth)
        } else {
            String::new()
        };
        let sequences = if self.sequences > 1 {
            format!(" x{}", self.sequences)
        } else {
            String::new()
        };
        f.pad(&format!("{kind}{}{sequences}{depth}", self.n))
    }
}

/// Reasons there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A step failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A sequence cannot begin.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A repetition computed other tokens than the one before it.
    #[error(
        "{test}: repetition {repetition} computed other tokens (hash {got}) than the one before \
         (hash {expected})"
    )]
    Drift {
        /// Name of the test.
        test: String,
        /// Number of the repetition, counted from 1.
        repetition: usize,
        /// Token hash of the warm-up.
        expected: String,
        /// Token hash of this repetition.
        got: String,
    },
}

/// Measurements of one test.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// Duration of each repetition.
    pub times: Vec<Duration>,
    /// Tokens prefilled or generated in each repetition.
    pub tokens: usize,
    /// FNV-1a of the chosen tokens: those generated, or the one that follows the prompt.
    pub token_hash: String,
}

/// Runs a test: once to warm up, then `repetitions` times. `progress` receives (runs done, runs in
/// all).
///
/// # Errors
/// [`enum@Error`].
pub fn run(
    session: &mut Session,
    test: Test,
    repetitions: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Samples, Error> {
    let tokens = prompt_tokens(session.engine(), test.depth + test.n);
    let (before, after) = tokens.split_at(test.depth);
    if session.tokens() != before || test.sequences > 1 {
        session.truncate(0);
    }
    let mut n = test.n;
    let mut times = Vec::with_capacity(repetitions);
    let mut expected = String::new();
    for repetition in 0..=repetitions {
        progress(repetition, repetitions + 1);
        if test.sequences == 1 {
            let left = session.truncate(test.depth);
            session.eval(&before[left..], Phase::Prefill, LogitsFor::None)?;
        }
        let start = Instant::now();
        let (time, chosen);
        if test.sequences > 1 {
            (time, n, chosen) = together::once(session.engine(), test)?;
        } else {
            chosen = once(session, test.phase, after)?;
            time = start.elapsed();
        }
        let got = hash(&chosen);
        if repetition == 0 {
            expected = got;
        } else if got == expected {
            times.push(time);
        } else {
            return Err(Error::Drift {
                test: test.to_string(),
                repetition,
                expected,
                got,
            });
        }
    }
    progress(repetitions + 1, repetitions + 1);
    session.truncate(test.depth);
    Ok(Samples {
        times,
        tokens: n,
        token_hash: expected,
    })
}

/// Runs the timed part and returns the tokens chosen. A generation starts with the first of
/// `tokens` and continues with its own.
fn once(session: &mut Session, phase: Phase, tokens: &[u32]) -> Result<Vec<u32>, EngineError> {
    let mut chosen = Vec::with_capacity(tokens.len());
    let mut step = |tokens: &[u32]| -> Result<u32, EngineError> {
        let next = session.eval_argmax(tokens, phase)?;
        chosen.push(next);
        Ok(next)
    };
    match phase {
        Phase::Prefill => {
            step(tokens)?;
        }
        Phase::Decode => {
            let mut token = tokens.first().copied().unwrap_or(0);
            for _ in tokens {
                token = step(&[token])?;
            }
        }
    }
    Ok(chosen)
}

/// Returns pseudo-random token ids (splitmix64), the same on every run.
fn prompt_tokens(engine: &Engine, n: usize) -> Vec<u32> {
    let n_vocab = engine.hparams().n_vocab() as u64;
    let one = |i: u64| {
        let mut z = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // below the vocabulary's size, which is a u32
        ((z ^ (z >> 31)) % n_vocab) as u32
    };
    (1..=n as u64).map(one).collect()
}

/// Returns the FNV-1a hash of the ids' bytes: 64 bits in hexadecimal.
fn hash(tokens: &[u32]) -> String {
    let mix = |h: u64, byte: u8| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = tokens
        .iter()
        .flat_map(|t| t.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, mix);
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_order_are_llama_benchs() {
        let names: Vec<String> = Test::all(&[512, 0], &[128], &[0, 4096], &[1, 8])
            .iter()
            .map(Test::to_string)
            .collect();
        assert_eq!(
            names,
            [
                "pp512",
                "tg128",
                "tg128 x8",
                "pp512 @ d4096",
                "tg128 @ d4096",
                "tg128 x8 @ d4096"
            ]
        );
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(hash(&[]), "cbf29ce484222325");
        // "foob", one of the test vectors of FNV's authors
        assert_eq!(hash(&[u32::from_le_bytes(*b"foob")]), "dd120e790c2512af");
    }
}
