//! An opened model that is on no device yet, and the sizes of its steps and of its KV cache.

use std::sync::{Arc, Mutex, OnceLock};

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_kernels::PAGE_POSITIONS;
use octavo_model::{ControlVector, HiddenRows, Hparams, Model};
use octavo_text::tokenizer::Tokenizer;

use super::identity::identity;
use super::{DEFAULT_CONTEXT, Engine, Loaded, MemoryReport, kv_bytes};
use crate::adapters::{Adapters, LoraFile};
use crate::backend::Backend;
use crate::backend::cuda::Limits;
use crate::device::threads;
use crate::error::Error;
use crate::image_registry::ImageRegistry;
use crate::kv::{CHECKPOINTS, DRAFT_WRITES, Digest, DiskCache, PageSizes, WRITES};
use crate::model_runner::ModelRunner;
use crate::options::EngineOptions;
use crate::sample::SamplerDefaults;
use crate::source::ModelSource;

/// Maximum number of tokens of an image whose tokens attend to each other: it is computed in one
/// step. Gemma 4's images have at most 1120 of them, and long and narrow ones a quarter more.
const MAX_WHOLE_IMAGE: usize = 2048;

/// Upper bound on the bytes of logits that one step holds at once.
const MAX_LOGIT_BYTES: usize = 64 << 20;

/// A model that was opened and checked.
pub(super) struct Opened {
    pub(super) gguf: Arc<Gguf>,
    pub(super) model: Model,
    pub(super) adapters: Adapters,
    tokenizer: Tokenizer,
    sampling: SamplerDefaults,
    warnings: Vec<String>,
}

/// Sizes of a model's steps and of its KV cache.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    /// Context of a sequence in tokens.
    pub(crate) n_ctx: usize,
    /// Tokens of a text to compute in a step; only an image may make it longer.
    chunk: usize,
    pub(crate) limits: Limits,
    /// Number of pages of the KV cache.
    capacity: u32,
    /// Warning about the context, if there is one.
    warning: Option<String>,
}

impl Sizes {
    /// Computes the sizes of a model under these options.
    ///
    /// # Errors
    /// If the context is longer than the model's table of positions, or than a cache can be.
    pub(crate) fn of(model: &Model, options: &EngineOptions) -> Result<Sizes, Error> {
        let (n_ctx, warning) = context(model, options.ctx)?;
        let sessions = options.sessions.max(1);
        let n_pages = match options.kv_positions {
            // its steps run on the pages of another model
            _ if model.is_assistant() => 1,
            Some(positions) => positions.div_ceil(PAGE_POSITIONS).max(1),
            None => n_ctx.div_ceil(PAGE_POSITIONS).saturating_mul(sessions),
        };
        let capacity = u32::try_from(n_pages).map_err(|_| Error::TooLong(n_ctx))?;
        // no step is longer than the context
        let longest = n_ctx.max(sessions);
        let chunk = options.batch().clamp(1, longest);
        let rows = match model.hparams.sees_whole_images() {
            true => chunk.max(MAX_WHOLE_IMAGE.min(longest)),
            false => chunk,
        };
        let outputs = rows.min((MAX_LOGIT_BYTES / 4 / model.graph.output_width()).max(1));
        let limits = Limits {
            rows,
            outputs,
            sequences: sessions,
            positions: n_ctx,
            n_pages,
            states: states(model, sessions, options.keep_hidden),
        };
        Ok(Sizes {
            n_ctx,
            chunk,
            limits,
            capacity,
            warning,
        })
    }
}

impl Opened {
    /// Opens and checks a model.
    ///
    /// # Errors
    /// [`enum@Error`], naming file, key or tensor.
    pub(super) fn new(source: &ModelSource, options: &EngineOptions) -> Result<Opened, Error> {
        let gguf = Arc::new(source.open(options.mmap)?);
        let rows = match options.keep_hidden {
            true => HiddenRows::All,
            false => HiddenRows::Outputs,
        };
        let mut model = match source {
            ModelSource::Assistant { target, .. } => {
                let target = Hparams::from_gguf(&target.open(options.mmap)?)?;
                Model::load_assistant(&gguf, &target)?
            }
            _ => Model::load_with(&gguf, rows)?,
        };
        let tokenizer = Tokenizer::from_gguf(&gguf)?;
        let mut warnings = model.warnings().to_vec();
        warnings.extend(tokenizer.warnings().iter().cloned());
        let (sampling, passed_over) = SamplerDefaults::from_gguf(&gguf);
        warnings.extend(passed_over);
        let adapters = adapters(&gguf, &model, options)?;
        steer(&mut model, options)?;
        Ok(Opened {
            gguf,
            model,
            adapters,
            tokenizer,
            sampling,
            warnings,
        })
    }

    /// Makes an engine of it, on the backend that was prepared for these sizes.
    ///
    /// # Errors
    /// If the prefix cache on disk cannot be used.
    pub(super) fn on(
        self,
        options: &EngineOptions,
        sizes: Sizes,
        mut backend: Box<dyn Backend>,
    ) -> Result<Engine, Error> {
        let Opened {
            gguf,
            model,
            adapters,
            tokenizer,
            sampling,
            mut warnings,
        } = self;
        let Sizes {
            n_ctx,
            mut chunk,
            mut limits,
            capacity,
            warning,
        } = sizes;
        warnings.extend(warning);
        if options.batch.is_none() {
            // the CPU may have taken over from the GPU that this batch size was for
            chunk = chunk.min(backend.batch());
            if !model.hparams.sees_whole_images() {
                limits.rows = chunk;
            }
            limits.outputs = limits.outputs.min(limits.rows);
        }
        let memory = memory(&gguf, &model, options, (&*backend, limits.n_pages));
        let description = backend.describe();
        let pool = backend.pool();
        let groups = model.hparams.caches.iter();
        let windows: Vec<Option<usize>> = groups.map(|group| group.window).collect();
        let images = Arc::new(ImageRegistry::new(&model.hparams));
        let (identity, disk) = page_files(&gguf, &model, options, &mut *backend)?;
        let graph = &model.graph;
        let mut runner = ModelRunner::new(backend, capacity, &windows, graph, images.clone());
        if let Some(disk) = disk {
            runner.set_disk(disk);
        }
        Ok(Engine(Arc::new(Loaded {
            gguf,
            model,
            adapters,
            tokenizer,
            runner: Mutex::new(runner),
            images,
            n_ctx,
            chunk,
            limits,
            memory,
            description,
            threads: threads(options),
            pool,
            warnings,
            draft: OnceLock::new(),
            identity,
            sampling,
        })))
    }
}

/// Reads the adapters that the options name, for a model.
///
/// # Errors
/// If a file is no adapter for it, or the options want another device than the CPU.
fn adapters(gguf: &Gguf, model: &Model, options: &EngineOptions) -> Result<Adapters, Error> {
    if options.adapters.is_empty() {
        return Ok(Adapters::default());
    }
    if options.tp_group.is_some() {
        return Err(Error::AdapterDevice("other ranks"));
    }
    let load = |file: &LoraFile| {
        let adapter = file.open(gguf, model, options.mmap)?;
        Ok::<_, Error>((file.clone(), Arc::new(adapter)))
    };
    let list = options.adapters.iter().map(load);
    Ok(Adapters::new(list.collect::<Result<_, _>>()?))
}

/// Adds the control vectors that the options name to a model.
///
/// # Errors
/// If a file is no control vector for it, or ranks compute the model.
fn steer(model: &mut Model, options: &EngineOptions) -> Result<(), Error> {
    if options.control.is_empty() {
        return Ok(());
    }
    if options.tp_group.is_some() {
        return Err(Error::ControlRanks);
    }
    let open = OpenOptions {
        mmap: options.mmap,
        ..OpenOptions::default()
    };
    let mut control = ControlVector::default();
    for file in &options.control {
        control.add(&Gguf::open(&file.path, &open)?, model, file.strength)?;
    }
    let all = [1, model.hparams.n_layer()];
    model.steer(&control, options.control_layers.unwrap_or(all));
    Ok(())
}

/// Identity and page sizes by which an engine keeps pages in files.
type PageFiles = (Option<(Digest, PageSizes)>, Option<Arc<DiskCache>>);

/// Prepares the files of pages that the options ask for: the identity of the model's pages, and the
/// prefix cache on disk.
fn page_files(
    gguf: &Gguf,
    model: &Model,
    options: &EngineOptions,
    backend: &mut dyn Backend,
) -> Result<PageFiles, Error> {
    let cache = options.prompt_cache.as_ref();
    let Some(dir) = cache.map(|cache| &cache.dir).or(options.slot_dir.as_ref()) else {
        return Ok((None, None));
    };
    let device = backend.describe();
    let Some(store) = backend.kv_store().filter(|_| options.tp_group.is_none()) else {
        let dir = dir.clone();
        return Err(Error::PromptCacheDevice { dir, device });
    };
    let sizes = PageSizes {
        groups: (0..store.groups())
            .map(|group| store.page_bytes(group))
            .collect(),
        state: store.state_bytes(),
    };
    let isa = options.isa.resolve()?;
    let open = || {
        std::fs::create_dir_all(dir)?;
        let identity = identity(gguf, model, (options, isa), dir)?;
        let open = |cache| DiskCache::open(cache, identity, sizes.clone());
        let disk = cache.map(open).transpose()?;
        Ok((Some((identity, sizes.clone())), disk.map(Arc::new)))
    };
    open().map_err(|source| Error::PromptCache {
        dir: dir.clone(),
        source,
    })
}

/// Returns the memory that a model takes on a device with `n_pages` KV cache pages.
fn memory(
    gguf: &Gguf,
    model: &Model,
    options: &EngineOptions,
    (backend, n_pages): (&dyn Backend, usize),
) -> MemoryReport {
    let tp_group = options.tp_group.as_ref();
    let ranks = tp_group.map_or(1, |tp_group| tp_group.ranks() as u64);
    let positions = n_pages * PAGE_POSITIONS;
    MemoryReport {
        file: gguf.file_bytes(),
        packed: backend.weight_bytes(),
        kv: kv_bytes(&model.hparams, options.kv_type, positions) / ranks,
    }
}

/// Returns the length of contexts: the one asked for, or what the model was trained with within a
/// limit; with a warning if the model was trained with less.
///
/// # Errors
/// If a table of positions is shorter.
fn context(model: &Model, asked: Option<usize>) -> Result<(usize, Option<String>), Error> {
    let trained = model.hparams.n_ctx_train();
    let n_ctx = asked.unwrap_or_else(|| trained.min(DEFAULT_CONTEXT)).max(1);
    let warning = (n_ctx > trained).then(|| {
        format!("context {n_ctx} is longer than the {trained} that the model was trained with")
    });
    if let Some(table) = model.weights.positions {
        let rows = model.weights.matrix(table).rows as usize;
        if n_ctx > rows {
            return Err(Error::Positions { n_ctx, rows });
        }
    }
    Ok((n_ctx, warning))
}

/// Returns how many recurrent states this many sequences need, 0 for models without recurrent
/// layers: each sequence reads one while it writes others, and keeps checkpoints to go back to.
/// With several sequences, as many again serve prompts with a common prefix. Where an MTP layer
/// drafts tokens, there are some for the states between them.
fn states(model: &Model, sequences: usize, has_drafts: bool) -> usize {
    if model.graph.states.is_empty() {
        return 0;
    }
    let own = sequences.saturating_mul(1 + WRITES + CHECKPOINTS);
    let between = if has_drafts { DRAFT_WRITES } else { 0 };
    own + sequences.saturating_mul(between) + if sequences > 1 { own } else { 1 }
}
