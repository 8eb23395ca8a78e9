//! A measurement with everything it depends on, under llama-bench's field names.

use std::time::Duration;

use gguf_rs_lite::TensorType;
use octavo_kernels::{KvTypes, PromptBits};
use serde::Serialize;

use super::{Limits, Processor, Samples, Test, Work};
use crate::quantize::Target;
use octavo_engine::Engine;
use octavo_engine::backend::Phase;
use octavo_engine::threads::Threads;
use octavo_text::time;

/// Build of the program that measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// Abbreviated hash of the commit.
    pub commit: &'static str,
    /// Number of commits up to and including it.
    pub number: u32,
}

/// Everything a measurement depends on besides the model.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Build of the program.
    pub build: Build,
    /// Model path as given.
    pub model: String,
    /// Processor that runs the model.
    pub processor: Processor,
    /// Number of last layers on a GPU, if not all.
    pub gpu_layers: Option<usize>,
    /// Number of threads, and the reason for that number.
    pub threads: Threads,
    /// Prompt tokens per step.
    pub batch: usize,
    /// Element types of the KV cache.
    pub kv_type: KvTypes,
    /// Precision that CPU kernels round prompt activations to.
    pub prompt_bits: PromptBits,
    /// Whether weights are repacked into the kernels' layout.
    pub repack: bool,
    /// Peaks measured with the same kernels and threads, if any.
    pub limits: Option<Limits>,
}

/// One test's result: llama-bench's fields first, then ours. Times in nanoseconds, rates in tokens
/// per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)] // llama-bench's names
pub struct Record {
    pub build_commit: &'static str,
    pub build_number: u32,
    pub cpu_info: String,
    pub gpu_info: String,
    pub backends: &'static str,
    pub model_filename: String,
    pub model_type: String,
    pub model_size: u64,
    pub model_n_params: u64,
    pub n_batch: usize,
    pub n_threads: usize,
    pub type_k: String,
    pub type_v: String,
    pub n_gpu_layers: usize,
    pub n_prompt: usize,
    pub n_gen: usize,
    pub n_depth: usize,
    pub test_time: String,
    pub avg_ns: u64,
    pub stddev_ns: u64,
    pub avg_ts: f64,
    pub stddev_ts: f64,
    pub samples_ns: Vec<u64>,
    pub samples_ts: Vec<f64>,
    /// Version of the program.
    pub version: &'static str,
    /// Sequences that generate together; the tokens of all of them count.
    pub n_sequences: usize,
    /// Reason for the number of threads.
    pub threads_reason: String,
    /// Instruction set, or GPU architecture.
    pub isa: String,
    /// Kernels that run, by weight type.
    pub kernels: String,
    /// Whether weights are repacked into the kernels' layout.
    pub repack: bool,
    /// Bits of prompt activations in products with quantized weights, where kernels offer a choice.
    pub prompt_bits: u8,
    /// GB/s that a generation reads (weights, keys, values), from the average rate.
    pub read_gb_s: Option<f64>,
    /// Measured peak read bandwidth of the threads, in GB/s.
    pub read_gb_s_best: Option<f64>,
    /// `read_gb_s` in percent of `read_gb_s_best`, if the whole model runs on the measured
    /// processor.
    pub read_percent: Option<f64>,
    /// GFLOP/s of a prompt's matrix products, from the average rate.
    pub gflops: Option<f64>,
    /// Arithmetic that `gflops_peak` counts.
    pub arithmetic: &'static str,
    /// Measured peak of the threads in GFLOP/s, in f32 or on the matrix unit.
    pub gflops_peak: Option<f64>,
    /// `gflops` in percent of `gflops_peak`, under the same condition.
    pub flops_percent: Option<f64>,
    /// FNV-1a of the chosen tokens.
    pub token_hash: String,
}

impl Record {
    /// Builds a record from a test's result, stamped with the current time.
    pub fn new(engine: &Engine, setting: &Setting, test: Test, samples: &Samples) -> Record {
        let gguf = engine.gguf();
        let (read_best, flops_best) = (
            setting.limits.map(|l| l.read),
            setting.limits.map(|l| l.flops),
        );
        let seconds: Vec<f64> = samples
            .times
            .iter()
            .map(|t| t.as_secs_f64().max(1e-9))
            .collect();
        let samples_ts: Vec<f64> = seconds.iter().map(|s| samples.tokens as f64 / s).collect();
        let nanoseconds: Vec<f64> = seconds.iter().map(|s| s * 1e9).collect();
        let ((avg_ns, stddev_ns), (avg_ts, stddev_ts)) =
            (spread(&nanoseconds), spread(&samples_ts));
        let work = Work::of(engine.model(), setting.kv_type, test);
        let rate = |work: u64| work as f64 * avg_ts / test.n as f64 / 1e9;
        let prompt = test.phase == Phase::Prefill;
        let n_layer = engine.hparams().n_layer();
        let n_gpu_layers = match setting.processor {
            Processor::Cpu(_) => 0,
            Processor::Gpu(_) => setting.gpu_layers.unwrap_or(n_layer).min(n_layer),
        };
        // the peak of one processor says nothing about a model split over two
        let comparable = [0, n_layer].contains(&n_gpu_layers);
        let percent = |rate: Option<f64>, best: Option<f64>| {
            Some(100.0 * rate? / best?).filter(|_| comparable)
        };
        // sequences decoded together share one read of the weights, so only a single one is rated
        let alone = test.sequences == 1;
        let read = (!prompt && alone).then(|| rate(work.read_bytes));
        let gflops = prompt.then(|| rate(work.flops));
        Record {
            build_commit: setting.build.commit,
            build_number: setting.build.number,
            cpu_info: cpu(),
            gpu_info: match &setting.processor {
                Processor::Cpu(_) => String::new(),
                Processor::Gpu(gpu) => gpu.name.clone(),
            },
            backends: setting.processor.backend(),
            model_filename: setting.model.clone(),
            model_type: model_type(engine),
            model_size: gguf.tensors().iter().map(|t| t.bytes).sum(),
            model_n_params: gguf.tensors().iter().map(|t| t.n_elements()).sum(),
            n_batch: setting.batch,
            n_threads: setting.threads.count,
            type_k: setting.kv_type.k.to_string(),
            type_v: setting.kv_type.v.to_string(),
            n_gpu_layers,
            n_prompt: if prompt { test.n } else { 0 },
            n_gen: if prompt { 0 } else { test.n },
            n_depth: test.depth,
            test_time: time::strftime("%Y-%m-%dT%H:%M:%SZ", time::now()),
            avg_ns: avg_ns as u64,
            stddev_ns: stddev_ns as u64,
            avg_ts,
            stddev_ts,
            samples_ns: samples.times.iter().map(whole_nanoseconds).collect(),
            samples_ts,
            version: env!("CARGO_PKG_VERSION"),
            n_sequences: test.sequences,
            threads_reason: setting.threads.reason.to_string(),
            isa: setting.processor.name(),
            kernels: kernels(engine, setting),
            repack: setting.repack,
            prompt_bits: setting.prompt_bits.count(),
            read_gb_s: read,
            read_gb_s_best: read_best,
            read_percent: percent(read, read_best),
            gflops,
            arithmetic: setting.processor.arithmetic(),
            gflops_peak: flops_best,
            flops_percent: percent(gflops, flops_best),
            token_hash: samples.token_hash.clone(),
        }
    }
}

fn whole_nanoseconds(time: &Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns mean and standard deviation of a sample.
fn spread(x: &[f64]) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let squares = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    (
        mean,
        if x.len() > 1 {
            (squares / (n - 1.0)).sqrt()
        } else {
            0.0
        },
    )
}

/// Returns the CPU's model name from `/proc/cpuinfo`, else the architecture.
fn cpu() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(
        || std::env::consts::ARCH.to_owned(),
        |(_, name)| name.trim().to_owned(),
    )
}

/// Returns `qwen3 0.6B Q4_K_M`: architecture, size, file type.
fn model_type(engine: &Engine) -> String {
    let parameters: u64 = engine.gguf().tensors().iter().map(|t| t.n_elements()).sum();
    let size = match parameters as f64 {
        n if n >= 1e8 => format!("{:.1}B", n / 1e9),
        n => format!("{:.1}M", n / 1e6),
    };
    let number = engine.gguf().u32("general.file_type").ok().flatten();
    let target = Target::all().find(|t| *t != Target::COPY && Some(t.file_type()) == number);
    let awq = || {
        engine
            .gguf()
            .tensors()
            .iter()
            .any(|t| TensorType::AWQ.contains(&t.ty))
            .then_some("AWQ")
    };
    let name = target.map(Target::name).or_else(awq).unwrap_or("mixed");
    format!("{} {size} {name}", engine.hparams().arch.name())
}

/// Names the kernels of every type that matrices have, most frequent type first.
fn kernels(engine: &Engine, setting: &Setting) -> String {
    let mut types: Vec<(octavo_quant::TensorType, usize)> = Vec::new();
    for matrix in &engine.model().weights.tensors.matrices {
        match types.iter_mut().find(|(ty, _)| *ty == matrix.ty) {
            Some((_, n)) => *n += 1,
            None => types.push((matrix.ty, 1)),
        }
    }
    types.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let Setting {
        processor,
        repack,
        prompt_bits,
        ..
    } = setting;
    let name = |&(ty, _): &(_, usize)| processor.kernel(ty, *repack, *prompt_bits);
    types.iter().map(name).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_that_of_a_sample() {
        assert_eq!(spread(&[5.0]), (5.0, 0.0));
        assert_eq!(spread(&[1.0, 3.0]), (2.0, 2f64.sqrt()));
    }
}
