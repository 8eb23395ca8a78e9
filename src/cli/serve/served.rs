//! Options of one served model, and loading it by them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use octavo_engine::{
    BatchOptions, Context, EngineOptions, ModelSource, PromptCacheOptions, kv_bytes,
};
use octavo_kernels::{PAGE_POSITIONS, SharedPool};
use octavo_model::Hparams;
use octavo_server::{LoadedModel, ModelOptions};

use crate::args::{
    AdapterArgs, ComputeArgs, ContextShiftArgs, ModelArgs, SampleArgs, SpeculativeArgs,
    TemplateArgs,
};
use crate::embed::PoolingName;
use crate::failure::Failure;
use crate::vision::MmprojArgs;
use crate::{load, values};

/// Name of the built-in model.
const DEMO_NAME: &str = "tiny-qwen3";

/// Options of one served model.
#[derive(Debug, Args)]
pub(super) struct ServedArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Other names of the model in requests and answers, besides the file's stem
    #[arg(
        short,
        long,
        value_name = "NAME",
        value_delimiter = ',',
        help_heading = "HTTP server"
    )]
    pub(super) alias: Vec<String>,
    #[command(flatten)]
    scheduling: SchedulingArgs,
    #[command(flatten)]
    template: TemplateArgs,
    /// Start a new answer after a final assistant message instead of continuing it
    #[arg(long, help_heading = "Chat template")]
    no_prefill_assistant: bool,
    /// Continue a final assistant message (the default)
    #[arg(long, hide = true, conflicts_with = "no_prefill_assistant")]
    prefill_assistant: bool,
    #[command(flatten)]
    pub(super) mmproj: MmprojArgs,
    #[command(flatten)]
    sample: SampleArgs,
    /// Maximum number of tokens for requests that give none; -1, or not given: as the interface
    /// has it
    #[arg(short = 'n', long, visible_alias = "predict", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=1 << 31), help_heading = "Generation")]
    n_predict: Option<i64>,
    #[command(flatten)]
    context_shift: ContextShiftArgs,
    /// How embeddings are pooled for requests that do not say: a vector for each token, which only
    /// /embeddings and /embedding have, the mean, the first token's or the last one's [default: as
    /// the model has it, or else mean]
    #[arg(long, value_name = "HOW", value_enum, help_heading = "Embeddings")]
    pooling: Option<PoolingName>,
    #[command(flatten)]
    speculative: SpeculativeArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    pub(super) compute: ComputeArgs,
}

/// Options of scheduling and of the KV cache.
#[derive(Debug, Args)]
#[command(next_help_heading = "Scheduling and KV cache")]
struct SchedulingArgs {
    /// Maximum number of requests that run at a time; others wait (also: -np N)
    #[arg(long, value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    parallel: u16,
    /// Size of the KV cache of all requests, such as 2G [default: one context for each running
    /// request, but at most a quarter of the free memory]
    #[arg(long, value_name = "SIZE", value_parser = values::size, conflicts_with = "kv_pages")]
    kv_memory: Option<u64>,
    /// Size of the KV cache in pages of 16 tokens
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    kv_pages: Option<u32>,
    /// Target time in milliseconds of a prefill step while other requests generate (chunked
    /// prefill)
    #[arg(long, alias = "stall", value_name = "MS", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=60_000))]
    prefill_budget_ms: u32,
    /// Disable prefix caching: prefill every prompt from its beginning
    #[arg(long)]
    no_cache_prompt: bool,
    /// Folder that keeps the KV cache of prompts on disk, beyond restarts and beyond memory;
    /// several servers may share it [default: none]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    #[arg(conflicts_with = "no_cache_prompt")]
    prompt_cache: Option<PathBuf>,
    /// Maximum size of that folder; the least recently used files are deleted
    #[arg(long, value_name = "SIZE", value_parser = values::size, default_value = "8G")]
    #[arg(requires = "prompt_cache")]
    prompt_cache_size: u64,
    /// Reuse the KV cache of generated tokens in later prompts, without prefilling them again:
    /// faster in chats, but texts then depend on earlier requests
    #[arg(long)]
    reuse_generated: bool,
}

/// Settings and resources that all models of a server share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Threads of the first model on the CPU, and their number: the steps of several models take
    /// turns on them, so that there are never more threads than cores.
    pool: Mutex<Option<(SharedPool, usize)>>,
    /// Largest KV cache in bytes of a model whose options do not set it.
    max_kv: Option<u64>,
    /// Folder for files of slots, if there is one.
    slot_dir: Option<PathBuf>,
}

impl Shared {
    /// Creates it, with this limit of KV caches and this folder for files of slots.
    pub(super) fn new(max_kv: Option<u64>, slot_dir: Option<PathBuf>) -> Shared {
        Shared {
            max_kv,
            slot_dir,
            ..Shared::default()
        }
    }
}

impl ServedArgs {
    /// Checks what can be checked before a model is loaded.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.model_options()?;
        self.speculative.check()?;
        self.template.check()?;
        self.mmproj.check()
    }

    /// Returns the model's names: the aliases, then the file's stem.
    pub(super) fn names(&self) -> Vec<String> {
        let stem = match self.model.name() {
            Some(path) => path
                .file_stem()
                .map(|stem| stem.to_string_lossy().into_owned()),
            None => Some(DEMO_NAME.to_owned()),
        };
        let aliases = self.alias.iter().filter(|name| !name.is_empty());
        aliases.cloned().chain(stem).collect()
    }

    fn model_options(&self) -> Result<ModelOptions, Failure> {
        let scheduling = &self.scheduling;
        Ok(ModelOptions {
            prefill_assistant: !self.no_prefill_assistant,
            pooling: self.pooling.map(PoolingName::pooling),
            batch: BatchOptions {
                prefill_budget: std::time::Duration::from_millis(
                    scheduling.prefill_budget_ms.into(),
                ),
                prefixes: !scheduling.no_cache_prompt,
                reuse_generated: scheduling.reuse_generated,
                ..ModelOptions::default().batch
            },
            lookup: self.speculative.lookup(),
            draft_max: self.speculative.draft_max(),
            n_predict: self.n_predict.and_then(|n| usize::try_from(n).ok()),
            context_shift: self.context_shift.shift(),
            reasoning_budget: self.template.reasoning_budget(),
            sampling: self.sample.settings()?,
            ..ModelOptions::default()
        })
    }

    /// Returns the bytes that the model takes by these options: its files, and the KV cache.
    pub(super) fn plan(&self, shared: &Shared) -> Result<u64, Failure> {
        let (options, _) = self.engine_options(shared)?;
        let gguf = load::source_quietly(&self.model)?.open(true)?;
        let hparams = Hparams::from_gguf(&gguf)?;
        let positions = options.kv_positions.unwrap_or(0);
        let cache = kv_bytes(&hparams, options.kv_type, positions);
        let draft = match self.speculative.source(&self.model)? {
            Some(ModelSource::Path(path)) => bytes_of(&path),
            Some(other) => other.open(true)?.file_bytes(),
            None => 0,
        };
        let tower = self.mmproj.path(&self.model)?;
        let tower = tower.as_deref().map_or(0, bytes_of);
        Ok(gguf.file_bytes() + cache + draft + tower)
    }

    /// Loads the model.
    pub(super) fn load(&self, shared: &Shared) -> Result<(LoadedModel, Context), Failure> {
        let mut options = self.model_options()?;
        let tower = self.mmproj.path(&self.model)?;
        let (mut engine_options, context) = self.engine_options(shared)?;
        let threads = engine_options.threads.unwrap_or(0);
        let pool = || shared.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let own = pool().clone().filter(|(_, n)| *n == threads);
        engine_options.pool = own.map(|(pool, _)| pool);
        let speculative = &self.speculative;
        let engine = load::any_engine_with_draft(
            &self.model,
            engine_options,
            speculative,
            tower.as_deref(),
        )?;
        if let Some(new) = engine.pool() {
            pool().get_or_insert((new, threads));
        }
        let encoder_cache = self.mmproj.load(&self.model, &engine, &self.compute)?;
        let tower = tower.as_deref().filter(|_| encoder_cache.is_some());
        options.encoder_cache = encoder_cache.map(Arc::new);
        if self.template.is_set() {
            options.template = self.template.load(&engine)?;
        }
        let loaded = LoadedModel {
            bytes: engine.resident_bytes() + tower.map_or(0, bytes_of),
            engine,
            options,
        };
        Ok((loaded, context))
    }

    /// Returns the engine's options, with the number of sequences and of KV cache positions, and
    /// the context with the reason for its size.
    fn engine_options(&self, shared: &Shared) -> Result<(EngineOptions, Context), Failure> {
        let scheduling = &self.scheduling;
        let mut options = self.compute.options()?;
        self.adapters.apply(&mut options)?;
        options.sessions = scheduling.parallel.into();
        options.prompt_cache = scheduling
            .prompt_cache
            .clone()
            .map(|dir| PromptCacheOptions {
                dir,
                max_bytes: scheduling.prompt_cache_size,
            });
        options.slot_dir = shared.slot_dir.clone();
        let gguf = load::source_quietly(&self.model)?.open(true)?;
        let hparams = Hparams::from_gguf(&gguf)?;
        let context = Context::of(&gguf, &options)?;
        if !hparams.is_causal() && !self.compute.has_batch() {
            // a model without causal attention reads a text in one step
            options.batch = Some(options.batch().max(context.positions));
        }
        let position = kv_bytes(&hparams, options.kv_type, 1).max(1);
        let fitting = |bytes: u64| usize::try_from(bytes / position).unwrap_or(usize::MAX);
        options.kv_positions = match (scheduling.kv_pages, scheduling.kv_memory) {
            (Some(pages), _) => Some(pages as usize * PAGE_POSITIONS),
            (None, Some(bytes)) => Some(fitting(bytes).max(PAGE_POSITIONS)),
            (None, None) => None,
        };
        context.apply(&mut options);
        let all = context.of_all(scheduling.parallel.into());
        let most = shared
            .max_kv
            .map_or(usize::MAX, fitting)
            .max(PAGE_POSITIONS);
        options.kv_positions = options.kv_positions.or(Some(all.min(most)));
        Ok((options, context))
    }
}

/// Returns the size of a model's file, or of the files of its folder.
fn bytes_of(path: &Path) -> u64 {
    let files = std::fs::read_dir(path).into_iter().flatten().flatten();
    let of_folder = files.map(|file| file.metadata().map_or(0, |file| file.len()));
    match path.metadata() {
        Ok(found) if found.is_file() => found.len(),
        _ => of_folder.sum(),
    }
}
