//! Default context size of a model: its trained context, reduced until its KV cache fits into a
//! part of the free memory.

use gguf_rs_lite::Gguf;
use octavo_model::Hparams;

use crate::engine::{DEFAULT_CONTEXT, kv_bytes};
use crate::error::Error;
use crate::options::{DeviceChoice, EngineOptions};

/// Default limit of the KV cache: the free memory divided by this.
const MEMORY_PART: u64 = 4;

/// Free memory in bytes to assume if the system does not tell it.
const MEMORY_UNKNOWN: u64 = 8 << 30;

/// Reduced contexts are multiples of this number of tokens.
const ROUND: usize = 256;

/// Context size of a sequence, and of the KV cache of all sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Context size of a sequence.
    pub positions: usize,
    /// Trained context of the model.
    pub trained: usize,
    /// Number of positions whose keys and values fit into the cache's part of the memory.
    fitting: usize,
    /// Whether an option sets the context.
    pub is_set: bool,
}

impl Context {
    /// Returns the context of a model with these options; 0 is its trained context.
    ///
    /// # Errors
    /// If the file has no valid hyperparameters.
    pub fn of(gguf: &Gguf, options: &EngineOptions) -> Result<Context, Error> {
        let hparams = Hparams::from_gguf(gguf)?;
        let weights: u64 = gguf.tensors().iter().map(|tensor| tensor.bytes).sum();
        let bytes = budget(options, weights);
        Ok(Context::within(bytes, &hparams, options))
    }

    /// Returns the context with `bytes` of memory for keys and values.
    pub fn within(bytes: u64, hparams: &Hparams, options: &EngineOptions) -> Context {
        let position = kv_bytes(hparams, options.kv_type, 1).max(1);
        let trained = hparams.n_ctx_train();
        let fitting = usize::try_from(bytes / position).unwrap_or(usize::MAX);
        Context {
            positions: match options.ctx {
                Some(0) => trained,
                Some(n) => n,
                None => trained.min((fitting / ROUND * ROUND).max(DEFAULT_CONTEXT)),
            },
            trained,
            fitting,
            is_set: options.ctx.is_some(),
        }
    }

    /// Returns the number of positions of a KV cache for `sequences` sequences: one context for
    /// each, as far as they fit, but at least one.
    pub fn of_all(&self, sequences: usize) -> usize {
        let all = self.positions.saturating_mul(sequences.max(1));
        all.min(self.fitting).max(self.positions)
    }

    /// Sets it in the options, and the number of cache positions if that is not set.
    pub fn apply(&self, options: &mut EngineOptions) {
        options.ctx = Some(self.positions);
        if let Some(fit) = &mut options.fit {
            fit.ctx_is_default |= !self.is_set;
            fit.kv_is_default |= options.kv_positions.is_none();
        }
        if !self.is_set && options.kv_positions.is_none() {
            options.kv_positions = Some(self.of_all(options.sessions));
        }
    }
}

/// Returns the number of bytes for keys and values beside the weights of a model. What is fitted to
/// a GPU's memory has that as its limit, once that is known.
fn budget(options: &EngineOptions, weights: u64) -> u64 {
    let host = free_memory().unwrap_or(MEMORY_UNKNOWN) / MEMORY_PART;
    let ordinal = match options.device {
        _ if options.fit.is_some() => return host,
        DeviceChoice::Cpu => return host,
        DeviceChoice::Auto { gpu, .. } | DeviceChoice::Cuda(gpu) => gpu,
    };
    let gpus = octavo_kernels::cuda::gpus().unwrap_or_default();
    match gpus.iter().find(|gpu| gpu.ordinal == ordinal) {
        // scratch buffers of steps need room as well
        Some(gpu) => host.min((gpu.memory / 4 * 3).saturating_sub(weights)),
        None => host,
    }
}

/// Returns whether the free memory has room for a model of `bytes` and for the keys and values of
/// the smallest default context; `None` if the system does not tell it, or the model cannot be run.
pub fn fits(gguf: &Gguf, bytes: u64) -> Option<bool> {
    let hparams = Hparams::from_gguf(gguf).ok()?;
    let kv_type = EngineOptions::default().kv_type;
    let positions = DEFAULT_CONTEXT.min(hparams.n_ctx_train());
    let cache = kv_bytes(&hparams, kv_type, positions);
    Some(bytes.saturating_add(cache) <= free_memory()?)
}

/// Returns the available memory in bytes; `None` if the system does not tell it.
pub fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    // inside a container, its own limit counts
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|text| text.trim().parse::<u64>().ok());
    Some((kib << 10).min(limit.unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_fixtures::tiny::File;

    /// Returns the context of a small model with a long trained context, in `bytes` of memory.
    fn within(bytes: u64, asked: Option<usize>) -> Context {
        let mut file = File::running("qwen3");
        file.set("context_length", 131_072u32);
        let gguf = Gguf::from_bytes(file.bytes(), "a test", &Default::default()).expect("sound");
        let hparams = Hparams::from_gguf(&gguf).expect("whole");
        let options = EngineOptions {
            ctx: asked,
            ..EngineOptions::default()
        };
        let position = kv_bytes(&hparams, options.kv_type, 1);
        Context::within(bytes.saturating_mul(position), &hparams, &options)
    }

    #[test]
    fn the_context_is_the_models_own_as_far_as_memory_allows() {
        assert_eq!(within(u64::MAX, None).positions, 131_072);
        assert_eq!(within(1_000_000, None).positions, 131_072);
        assert_eq!(within(20_000, None).positions, 19_968);
        // the default is never below this, because less is of no use
        assert_eq!(within(10, None).positions, DEFAULT_CONTEXT);
        assert_eq!(within(10, Some(0)).positions, 131_072);
        assert_eq!(within(10, Some(77)).positions, 77);
    }

    #[test]
    fn the_cache_of_several_has_a_context_for_each_that_fits() {
        let context = within(1_000_000, None);
        assert_eq!(context.of_all(1), 131_072);
        assert_eq!(context.of_all(4), 4 * 131_072);
        assert_eq!(context.of_all(16), 1_000_000);
        assert_eq!(within(20_000, None).of_all(16), 20_000);
        assert_eq!(within(10, None).of_all(16), DEFAULT_CONTEXT);
    }
}
