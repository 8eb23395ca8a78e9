//! A loaded model: the boundary the command line sees. No tensor is visible outside it.

mod builder;
mod identity;
mod opened;

pub use builder::EngineBuilder;
pub(crate) use opened::Sizes;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use gguf_rs_lite::Gguf;
use octavo_kernels::{KvTypes, PAGE_POSITIONS, SharedPool};

use crate::adapters::Adapters;
use crate::backend::cuda::Limits;
use crate::backend::{Backend, LoadingSink};
use crate::device::{Placement, place};
use crate::error::Error;
use crate::image_registry::{EncodedImage, ImageHandle, ImageRegistry};
use crate::kv::{Digest, PageSizes, SlotError, SlotPages};
use crate::model_runner::ModelRunner;
use crate::options::EngineOptions;
use crate::sample::SamplerDefaults;
use crate::source::ModelSource;
use octavo_model::{Classifier, Hparams, Model, Pooling};
use octavo_text::chat::ChatTemplate;
use octavo_text::tokenizer::Tokenizer;
use opened::Opened;

/// Default context length in tokens; a model trained with a shorter context uses its own.
pub const DEFAULT_CONTEXT: usize = 4096;

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

impl MemoryReport {
    /// Returns the bytes that stay in use while the model runs: its weights, once, and the KV
    /// cache. The pages of a file whose weights were copied count as free.
    pub fn resident(&self) -> u64 {
        self.file.max(self.packed) + self.kv
    }
}

/// A loaded model. Clones share the same model on the same device.
#[derive(Clone)]
pub struct Engine(Arc<Loaded>);

struct Loaded {
    gguf: Arc<Gguf>,
    model: Model,
    adapters: Adapters,
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
    /// Identity of its pages and their sizes, if they are kept in files.
    identity: Option<(Digest, PageSizes)>,
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
        let mut opened = Opened::new(source, options)?;
        let (sizes, backend) = match &options.tp_group {
            None => {
                let adapters = opened.adapters.for_backend();
                place((&opened.gguf, &mut opened.model), adapters, options, sink)?
            }
            Some(tp_group) => {
                let sizes = Sizes::of(&opened.model, options)?;
                opened.model.fit_to_context(sizes.n_ctx);
                let placement = Placement::new(options, &sizes.limits)?;
                let (gguf, model) = (&opened.gguf, &opened.model);
                let of = (source, options);
                let backend = placement.prepare_shares(tp_group, of, (gguf, model), sink)?;
                (sizes, backend)
            }
        };
        opened.on(options, sizes, backend)
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
        let mut opened = Opened::new(source, options)?;
        if !options.adapters.is_empty() {
            return Err(Error::AdapterDevice("other backend"));
        }
        let sizes = Sizes::of(&opened.model, options)?;
        opened.model.fit_to_context(sizes.n_ctx);
        let backend = prepare(&opened.gguf, &opened.model, &sizes.limits)?;
        opened.on(options, sizes, backend)
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

    /// Returns the low-rank adapters.
    pub(crate) fn loaded_adapters(&self) -> &Adapters {
        &self.0.adapters
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

    /// Returns the bytes that stay in use while the model and its draft model run.
    pub fn resident_bytes(&self) -> u64 {
        let draft = self.0.draft.get().map_or(0, Engine::resident_bytes);
        self.memory().resident() + draft
    }

    /// Describes device, instruction set and threads, for people.
    pub fn describe(&self) -> &str {
        &self.0.description
    }

    /// Returns the number of threads that work at once.
    pub(crate) fn threads(&self) -> NonZeroUsize {
        self.0.threads
    }

    /// Returns the identity of its pages and their sizes, if they are kept in files.
    pub(crate) fn identity(&self) -> Option<(Digest, PageSizes)> {
        self.0.identity.clone()
    }

    /// Reads a file of a slot; returns its bytes too.
    ///
    /// # Errors
    /// If it cannot be read, is damaged, or its pages are not this model's.
    pub fn read_slot(&self, path: &Path) -> Result<(SlotPages, u64), SlotError> {
        let (identity, sizes) = self.identity().ok_or(SlotError::Unsupported)?;
        SlotPages::read(path, identity, sizes)
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

/// Returns the bytes of a KV cache of this many positions: half of its values are keys.
pub fn kv_bytes(h: &Hparams, types: KvTypes, positions: usize) -> u64 {
    let position = types.bytes(h.kv_elements_per_position() / 2);
    (position.unwrap_or(usize::MAX) as u64).saturating_mul(positions as u64)
}
