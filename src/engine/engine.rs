//! A loaded model: the boundary the command line sees. No tensor is visible outside it.

mod builder;

pub use builder::EngineBuilder;

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use gguf_rs_lite::Gguf;
use octavo_kernels::{KvTypes, PAGE_POSITIONS, SharedPool};

use crate::backend::cuda::Limits;
use crate::backend::{Backend, LoadingSink};
use crate::device::{Placement, threads};
use crate::error::Error;
use crate::image_registry::{EncodedImage, ImageHandle, ImageRegistry};
use crate::kv::{CHECKPOINTS, DRAFT_WRITES, WRITES};
use crate::model_runner::ModelRunner;
use crate::options::EngineOptions;
use crate::sample::SamplerDefaults;
use crate::source::ModelSource;
use octavo_model::{Classifier, HiddenRows, Hparams, Model, Pooling};
use octavo_text::chat::ChatTemplate;
use octavo_text::tokenizer::Tokenizer;

/// Default context length in tokens; a model trained with a shorter context uses its own.
pub const DEFAULT_CONTEXT: usize = 4096;

/// Maximum number of tokens of an image whose tokens attend to each other: it is computed in one
/// step. Gemma 4's images have at most 1120 of them, and long and narrow ones a quarter more.
const MAX_WHOLE_IMAGE: usize = 2048;

/// Upper bound on the bytes of logits that one step holds at once.
const MAX_LOGIT_BYTES: usize = 64 << 20;

/// Memory that a model takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryReport {
    /// Model file, mapped or read.
    pub file: u64,
    /// Weights in the kernels' layout.
    pub packed: u64,
    /// KV cache of all positions; with several ranks, one rank's share of it.
    pub kv: u64,
}

/// A loaded model. Clones share the same model on the same device.
#[derive(Clone)]
pub struct Engine(Arc<Loaded>);

struct Loaded {
    gguf: Arc<Gguf>,
    model: Model,
    tokenizer: Tokenizer,
    runner: Mutex<ModelRunner>,
    images: Arc<ImageRegistry>,
    n_ctx: usize,
    /// Tokens of a text to compute in a step; only an image may make it longer.
    chunk: usize,
    limits: Limits,
    memory: MemoryReport,
    description: String,
    threads: NonZeroUsize,
    pool: Option<SharedPool>,
    warnings: Vec<String>,
    draft: OnceLock<Engine>,
    sampling: SamplerDefaults,
}

impl Engine {
    /// Opens, checks and prepares a model on the device that the options name.
    ///
    /// # Errors
    /// [`enum@Error`], naming file, key or tensor.
    pub fn load(
        source: &ModelSource,
        options: &EngineOptions,
        sink: &mut LoadingSink<'_>,
    ) -> Result<Engine, Error> {
        // refuse this before anything that takes time
        options.isa.resolve()?;
        Engine::load_on(source, options, |gguf, model, limits| {
            let placement = Placement::new(options, limits)?;
            match &options.tp_group {
                None => placement.prepare_model(gguf, model, sink),
                Some(tp_group) => {
                    placement.prepare_shares(tp_group, (source, options), (gguf, model), sink)
                }
            }
        })
    }

    /// As [`Engine::load`], but `prepare` builds the backend from the model and the limits of its
    /// steps and KV cache.
    ///
    /// # Errors
    /// As [`Engine::load`], and those of `prepare`.
    pub fn load_on(
        source: &ModelSource,
        options: &EngineOptions,
        prepare: impl FnOnce(&Arc<Gguf>, &Model, &Limits) -> Result<Box<dyn Backend>, Error>,
    ) -> Result<Engine, Error> {
        let gguf = Arc::new(source.open(options.mmap)?);
        let rows = match options.keep_hidden {
            true => HiddenRows::All,
            false => HiddenRows::Outputs,
        };
        let mut model = Model::load_with(&gguf, rows)?;
        let tokenizer = Tokenizer::from_gguf(&gguf)?;
        let mut warnings = model.warnings().to_vec();
        warnings.extend(tokenizer.warnings().iter().cloned());
        let (sampling, passed_over) = SamplerDefaults::from_gguf(&gguf);
        warnings.extend(passed_over);
        let n_ctx = context(&model, options.ctx, &mut warnings)?;
        model.fit_to_context(n_ctx);
        let sessions = options.sessions.max(1);
        let n_pages = match options.kv_positions {
            Some(positions) => positions.div_ceil(PAGE_POSITIONS).max(1),
            None => n_ctx.div_ceil(PAGE_POSITIONS).saturating_mul(sessions),
        };
        let capacity = u32::try_from(n_pages).map_err(|_| Error::TooLong(n_ctx))?;
        // no step is longer than the context
        let longest = n_ctx.max(sessions);
        let mut chunk = options.batch().clamp(1, longest);
        let rows = match model.hparams.sees_whole_images() {
            true => chunk.max(MAX_WHOLE_IMAGE.min(longest)),
            false => chunk,
        };
        let outputs = rows.min((MAX_LOGIT_BYTES / 4 / model.graph.output_width()).max(1));
        let mut limits = Limits {
            rows,
            outputs,
            sequences: sessions,
            positions: n_ctx,
            n_pages,
            states: states(&model, sessions, options.keep_hidden),
        };
        let executable = prepare(&gguf, &model, &limits)?;
        if options.batch.is_none() {
            // the CPU may have taken over from the GPU that this batch size was for
            chunk = chunk.min(executable.batch());
            if !model.hparams.sees_whole_images() {
                limits.rows = chunk;
            }
            limits.outputs = limits.outputs.min(limits.rows);
        }
        let memory = memory(&gguf, &model, options, (&*executable, n_pages));
        let description = executable.describe();
        let pool = executable.pool();
        let groups = model.hparams.caches.iter();
        let windows: Vec<Option<usize>> = groups.map(|group| group.window).collect();
        let images = Arc::new(ImageRegistry::new(&model.hparams));
        let runner = ModelRunner::new(executable, capacity, &windows, &model.graph, images.clone());
        Ok(Engine(Arc::new(Loaded {
            gguf,
            model,
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
            sampling,
        })))
    }

    /// Returns the maximum number of sequences running at once.
    pub fn sessions(&self) -> usize {
        self.0.limits.sequences
    }

    /// Returns the number of KV cache positions, for all sequences together.
    pub fn positions(&self) -> usize {
        self.0.limits.n_pages * PAGE_POSITIONS
    }

    /// Returns the CPU's thread pool, if the CPU computes: for the options of an engine that shares
    /// it with this one.
    pub fn pool(&self) -> Option<SharedPool> {
        self.0.pool.clone()
    }

    /// Returns the model that drafts tokens for this one, once it is set.
    pub(crate) fn draft(&self) -> &OnceLock<Engine> {
        &self.0.draft
    }

    /// Registers an image, so that its tokens can be part of prompts.
    ///
    /// # Errors
    /// If its embeddings are for another model, its tokens attend to each other and are more than a
    /// step has, or no ids are left.
    pub fn register(&self, image: EncodedImage) -> Result<ImageHandle, Error> {
        let (expected, tokens) = (self.hparams().image_embedding_width(), image.n_tokens());
        let got = image.rows.len();
        if expected == 0 || tokens == 0 || tokens.checked_mul(expected) != Some(got) {
            return Err(Error::ImageWidth {
                arch: self.hparams().arch.name(),
                tokens,
                expected,
                got,
            });
        }
        let most = self.0.limits.rows;
        if image.bidirectional && self.hparams().sees_whole_images() && tokens > most {
            return Err(Error::LongImage { tokens, most });
        }
        self.0.images.register(image).ok_or(Error::TooManyImages)
    }

    /// Returns the model file.
    pub fn gguf(&self) -> &Gguf {
        &self.0.gguf
    }

    /// Returns the model file, to share it.
    pub fn shared_gguf(&self) -> Arc<Gguf> {
        Arc::clone(&self.0.gguf)
    }

    /// Returns the hyperparameters, weights and graph.
    pub fn model(&self) -> &Model {
        &self.0.model
    }

    /// Returns the hyperparameters.
    pub fn hparams(&self) -> &Hparams {
        &self.0.model.hparams
    }

    /// Returns the tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.0.tokenizer
    }

    /// Returns the sampling settings that the file recommends.
    pub fn sampling(&self) -> &SamplerDefaults {
        &self.0.sampling
    }

    /// Returns the file's chat template, if it has one. It is parsed only here, so that a broken
    /// template hinders nothing else.
    ///
    /// # Errors
    /// If it is not a valid template.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, Error> {
        Ok(ChatTemplate::from_gguf(&self.0.gguf, &self.0.tokenizer)?)
    }

    /// Returns the file's chat template of this name, or the well-known one of this name; `None` if
    /// there is neither.
    ///
    /// # Errors
    /// If it is not a valid template.
    pub fn named_chat_template(&self, name: &str) -> Result<Option<ChatTemplate>, Error> {
        Ok(ChatTemplate::named(&self.0.gguf, &self.0.tokenizer, name)?)
    }

    /// Parses a chat template for this model; an error if it is not a valid one.
    pub fn chat_template_of(&self, source: &str) -> Result<ChatTemplate, Error> {
        Ok(ChatTemplate::of(&self.0.gguf, &self.0.tokenizer, source)?)
    }

    /// Returns the context length of a session in tokens.
    pub fn n_ctx(&self) -> usize {
        self.0.n_ctx
    }

    /// Returns the prefill batch size in tokens.
    pub fn batch(&self) -> usize {
        self.0.chunk
    }

    /// Returns the maximum number of sequences running at once.
    pub fn sequences(&self) -> usize {
        self.0.limits.sequences
    }

    /// Returns the classifier of a reranker, if the model is one.
    pub fn classifier(&self) -> Option<&Arc<Classifier>> {
        self.model().weights.classifier.as_ref()
    }

    /// Returns the number of values of an embedding's rows.
    pub fn embedding_width(&self, pooling: Pooling) -> usize {
        let graph = &self.model().graph;
        match (pooling, self.classifier()) {
            (Pooling::Rank, Some(classifier)) => classifier.n_scores(),
            _ => graph.values[graph.hidden.index()].width,
        }
    }

    /// Returns how the file pools token vectors into one; mean pooling if the file does not say.
    pub fn pooling(&self) -> Pooling {
        self.hparams().pooling.unwrap_or(Pooling::Mean)
    }

    /// Checks that the model has logits, so that text can be generated.
    ///
    /// # Errors
    /// [`Error::NoLogits`].
    pub fn check_logits(&self) -> Result<(), Error> {
        match self.model().graph.has_logits() {
            true => Ok(()),
            false => Err(Error::NoLogits {
                file: self.gguf().name().to_owned(),
                arch: self.hparams().arch.name(),
            }),
        }
    }

    /// Returns the maximum number of tokens of a step that has an output for each.
    pub fn output_rows(&self) -> usize {
        let limits = self.limits();
        limits.rows.min(limits.outputs)
    }

    /// Checks that this many tokens can be computed: all in one step if the model is not causal,
    /// because tokens then attend to later ones.
    pub(crate) fn check_whole(&self, tokens: usize) -> Result<(), Error> {
        let most = self.output_rows();
        if self.hparams().is_causal() || tokens <= most {
            return Ok(());
        }
        let arch = self.hparams().arch.name();
        Err(Error::Whole { arch, tokens, most })
    }

    /// Returns the warnings from loading, one line for each assumption made.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// Returns the memory that the model takes.
    pub fn memory(&self) -> MemoryReport {
        self.0.memory
    }

    /// Describes device, instruction set and threads, for people.
    pub fn describe(&self) -> &str {
        &self.0.description
    }

    /// Returns the number of threads that work at once.
    pub(crate) fn threads(&self) -> NonZeroUsize {
        self.0.threads
    }

    /// Returns the limits of a step.
    pub(crate) fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Locks the device; waits while another thread uses it.
    pub(crate) fn runner(&self) -> MutexGuard<'_, ModelRunner> {
        // a panic inside a step leaves pages and pool consistent: they change only between steps
        self.0.runner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the memory that a model takes on a device with `n_pages` KV cache pages.
fn memory(
    gguf: &Gguf,
    model: &Model,
    options: &EngineOptions,
    (executable, n_pages): (&dyn Backend, usize),
) -> MemoryReport {
    let tp_group = options.tp_group.as_ref();
    let ranks = tp_group.map_or(1, |tp_group| tp_group.ranks() as u64);
    let positions = n_pages * PAGE_POSITIONS;
    MemoryReport {
        file: gguf.file_bytes(),
        packed: executable.weight_bytes(),
        kv: kv_bytes(&model.hparams, options.kv_type, positions) / ranks,
    }
}

/// Returns the length of contexts: the one asked for, or what the model was trained with within a
/// limit.
///
/// # Errors
/// If a table of positions is shorter.
fn context(
    model: &Model,
    asked: Option<usize>,
    warnings: &mut Vec<String>,
) -> Result<usize, Error> {
    let trained = model.hparams.n_ctx_train();
    let n_ctx = asked.unwrap_or_else(|| trained.min(DEFAULT_CONTEXT)).max(1);
    if n_ctx > trained {
        warnings.push(format!(
            "context {n_ctx} is longer than the {trained} that the model was trained with"
        ));
    }
    if let Some(table) = model.weights.positions {
        let rows = model.weights.matrix(table).rows as usize;
        if n_ctx > rows {
            return Err(Error::Positions { n_ctx, rows });
        }
    }
    Ok(n_ctx)
}

/// Returns how many recurrent states this many sequences need, 0 for models without recurrent
/// layers: each sequence reads one while it writes others, and keeps checkpoints to go back to.
/// With several sequences, as many again serve prompts with a common prefix. Where an MTP
/// layer drafts tokens, there are some for the states between them.
fn states(model: &Model, sequences: usize, has_drafts: bool) -> usize {
    if model.graph.states.is_empty() {
        return 0;
    }
    let own = sequences.saturating_mul(1 + WRITES + CHECKPOINTS);
    let between = if has_drafts { DRAFT_WRITES } else { 0 };
    own + sequences.saturating_mul(between) + if sequences > 1 { own } else { 1 }
}

/// Returns the bytes of a KV cache of this many positions: half of its values are keys.
pub fn kv_bytes(h: &Hparams, types: KvTypes, positions: usize) -> u64 {
    let position = types.bytes(h.kv_elements_per_position() / 2);
    (position.unwrap_or(usize::MAX) as u64).saturating_mul(positions as u64)
}
