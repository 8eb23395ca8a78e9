//! A loaded model and the timelines that run on it: the boundary that the command line sees. Nobody
//! outside sees a tensor.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use gguf_rs_lite::Gguf;
use octavo_kernels::{IsaChoice, KvTypes, PAGE_POSITIONS, PromptBits, SharedPool};

use crate::Error;
use crate::backend::cuda::Limits;
use crate::backend::ranks::World;
use crate::backend::{Executable, LoadingSink, TapSink};
use crate::device::{DeviceChoice, Placement, default_batch, threads};
use crate::kv::{CHECKPOINTS, WRITES};
use crate::pictures::{Picture, Pictures, Shown};
use crate::runtime::Runtime;
use crate::sample::SamplerDefaults;
use crate::session::Session;
use crate::source::ModelSource;
use crate::speculate::Draft;
use octavo_model::{Hparams, Model, Pooling};
use octavo_text::chat::ChatTemplate;
use octavo_text::tokenizer::Tokenizer;

/// Context used unless asked for otherwise; a file's own may be shorter.
pub const DEFAULT_CONTEXT: usize = 4096;

/// Logits of a step are held at once: at most this many bytes of them.
const MAX_LOGIT_BYTES: usize = 64 << 20;

/// How to run a model.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// What computes.
    pub device: DeviceChoice,
    /// On a GPU, how many of the last layers run there, the output with them; all that there are
    /// unless given.
    pub gpu_layers: Option<usize>,
    /// Threads; [`crate::default_threads`] unless given. More than the CPUs run as well, but are
    /// slower.
    pub threads: Option<usize>,
    /// The threads of another engine ([`Engine::pool`]), which the two then use in turn, in place
    /// of new ones.
    pub pool: Option<SharedPool>,
    /// The ranks that compute it together, if there are more than this; each has such threads.
    pub world: Option<World>,
    /// Whose kernels.
    pub isa: IsaChoice,
    /// Element types of the KV cache.
    pub kv_type: KvTypes,
    /// To what CPUs round prompts where they multiply them with quantized weights.
    pub prompt_bits: PromptBits,
    /// Positions of a session; the smaller of the file's own and 4096 unless given.
    pub ctx: Option<usize>,
    /// Prompt tokens taken at a time; as many as keep the device busy unless given.
    pub batch: Option<usize>,
    /// Map the file instead of reading it.
    pub mmap: bool,
    /// Copy weights into the kernels' layout.
    pub repack: bool,
    /// Have the system keep these copies in memory, and never in a swap file.
    pub lock: bool,
    /// Sequences that run at a time.
    pub sessions: usize,
    /// Positions that the cache has pages for; enough for as many sessions of full length unless
    /// given.
    pub kv_positions: Option<usize>,
    /// On a GPU, capture the launches of generated tokens and replay them.
    pub graphs: bool,
    /// On a GPU, let kernels check every page number of the KV cache that they use.
    pub check_pages: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            device: DeviceChoice::default(),
            gpu_layers: None,
            threads: None,
            pool: None,
            world: None,
            isa: IsaChoice::Auto,
            kv_type: KvTypes::default(),
            prompt_bits: PromptBits::default(),
            ctx: None,
            batch: None,
            mmap: true,
            repack: true,
            lock: false,
            sessions: 1,
            kv_positions: None,
            graphs: true,
            check_pages: true,
        }
    }
}

impl EngineOptions {
    /// Prompt tokens taken at a time, as far as that is known before a model is loaded.
    pub fn batch(&self) -> usize {
        self.batch.unwrap_or_else(|| default_batch(self.device))
    }
}

/// What a model takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryReport {
    /// The file, mapped or read.
    pub file: u64,
    /// Weights in the kernels' layout.
    pub packed: u64,
    /// KV cache at full context.
    pub kv: u64,
}

/// A loaded model. Clones are the same model on the same device.
#[derive(Clone)]
pub struct Engine(Arc<Loaded>);

struct Loaded {
    gguf: Arc<Gguf>,
    model: Model,
    tokenizer: Tokenizer,
    runtime: Mutex<Runtime>,
    pictures: Arc<Pictures>,
    n_ctx: usize,
    limits: Limits,
    memory: MemoryReport,
    description: String,
    threads: NonZeroUsize,
    pool: Option<SharedPool>,
    warnings: Vec<String>,
    draft: OnceLock<Draft>,
    sampling: SamplerDefaults,
}

impl Engine {
    /// Opens, checks and prepares a model on the device of the options.
    ///
    /// # Errors
    /// [`enum@Error`], naming file, key or tensor.
    pub fn load(
        source: &ModelSource,
        options: &EngineOptions,
        sink: &mut LoadingSink<'_>,
    ) -> Result<Engine, Error> {
        // before anything takes time
        options.isa.resolve()?;
        Engine::load_on(source, options, |gguf, model, limits| {
            let placement = Placement::new(options, limits)?;
            match &options.world {
                None => placement.prepare_model(gguf, model, sink),
                Some(world) => {
                    placement.prepare_shares(world, (source, options), (gguf, model), sink)
                }
            }
        })
    }

    /// As [`Engine::load`], on whatever `prepare` makes of the model for steps and a cache of these
    /// limits.
    ///
    /// # Errors
    /// As [`Engine::load`], and what `prepare` says.
    pub fn load_on(
        source: &ModelSource,
        options: &EngineOptions,
        prepare: impl FnOnce(&Arc<Gguf>, &Model, &Limits) -> Result<Box<dyn Executable>, Error>,
    ) -> Result<Engine, Error> {
        let gguf = Arc::new(source.open(options.mmap)?);
        let mut model = Model::load(&gguf)?;
        let tokenizer = Tokenizer::from_gguf(&gguf)?;
        let mut warnings = model.warnings().to_vec();
        warnings.extend(tokenizer.warnings().iter().cloned());
        let (sampling, passed_over) = SamplerDefaults::from_gguf(&gguf);
        warnings.extend(passed_over);
        let trained = model.hparams.n_ctx_train();
        let n_ctx = options
            .ctx
            .unwrap_or_else(|| trained.min(DEFAULT_CONTEXT))
            .max(1);
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
        model.fit_to_context(n_ctx);
        let sessions = options.sessions.max(1);
        let n_pages = match options.kv_positions {
            Some(positions) => positions.div_ceil(PAGE_POSITIONS).max(1),
            None => n_ctx.div_ceil(PAGE_POSITIONS).saturating_mul(sessions),
        };
        let capacity = u32::try_from(n_pages).map_err(|_| Error::TooLong(n_ctx))?;
        // no step is longer than a context
        let rows = options.batch().clamp(1, n_ctx.max(sessions));
        let wanted = rows.min((MAX_LOGIT_BYTES / 4 / model.graph.output_width()).max(1));
        let mut limits = Limits {
            rows,
            wanted,
            sequences: sessions,
            positions: n_ctx,
            n_pages,
            states: states(&model, sessions),
        };
        let executable = prepare(&gguf, &model, &limits)?;
        if options.batch.is_none() {
            // a CPU may compute instead of the GPU that this was for
            limits.rows = limits.rows.min(executable.batch());
            limits.wanted = limits.wanted.min(limits.rows);
        }
        let memory = memory(&gguf, &model, options, (&*executable, n_pages));
        let description = executable.describe();
        let pool = executable.pool();
        let groups = model.hparams.caches.iter();
        let windows: Vec<Option<usize>> = groups.map(|group| group.window).collect();
        let width = model.graph.output_width();
        let pictures = Arc::new(Pictures::default());
        let runtime = Runtime::new(executable, capacity, &windows, width, pictures.clone());
        Ok(Engine(Arc::new(Loaded {
            gguf,
            model,
            tokenizer,
            runtime: Mutex::new(runtime),
            pictures,
            n_ctx,
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

    /// Has a smaller model of the same vocabulary guess how texts go on, for all that generate from
    /// now on. That changes no token. The first that is given stays.
    ///
    /// # Errors
    /// As [`Draft::new`].
    pub fn guess_with(&self, draft: Engine) -> Result<(), Error> {
        let draft = Draft::new(draft, self)?;
        self.0.draft.get_or_init(|| draft);
        Ok(())
    }

    /// Timelines that it has room for.
    pub fn sessions(&self) -> usize {
        self.0.limits.sequences
    }

    /// Positions of the KV cache, for all timelines together.
    pub fn positions(&self) -> usize {
        self.0.limits.n_pages * PAGE_POSITIONS
    }

    /// The CPU's threads, if it computes: for the options of an engine that takes turns with this
    /// one.
    pub fn pool(&self) -> Option<SharedPool> {
        self.0.pool.clone()
    }

    /// The model that guesses for this one, if there is one.
    pub fn draft(&self) -> Option<&Draft> {
        self.0.draft.get()
    }

    /// Starts a timeline.
    pub fn session(&self) -> Session {
        Session::new(self)
    }

    /// Makes a picture known, so that its cells can be tokens of prompts.
    ///
    /// # Errors
    /// If its rows are for another model, or no ids are left.
    pub fn show(&self, picture: Picture) -> Result<Shown, Error> {
        let (expected, cells) = (self.hparams().picture_width(), picture.cells());
        let got = picture.rows.len();
        if expected == 0 || cells == 0 || cells.checked_mul(expected) != Some(got) {
            return Err(Error::PictureWidth {
                arch: self.hparams().arch.name(),
                cells,
                expected,
                got,
            });
        }
        self.0.pictures.show(picture).ok_or(Error::TooManyPictures)
    }

    /// The file.
    pub fn gguf(&self) -> &Gguf {
        &self.0.gguf
    }

    /// Hyperparameters, weights and graph.
    pub fn model(&self) -> &Model {
        &self.0.model
    }

    /// The hyperparameters.
    pub fn hparams(&self) -> &Hparams {
        &self.0.model.hparams
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.0.tokenizer
    }

    /// How the file recommends to choose tokens.
    pub fn sampling(&self) -> &SamplerDefaults {
        &self.0.sampling
    }

    /// The file's chat template, if it has one. Read when asked for: a broken one hinders nothing
    /// else.
    ///
    /// # Errors
    /// If it is not a template.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, Error> {
        Ok(ChatTemplate::from_gguf(&self.0.gguf, &self.0.tokenizer)?)
    }

    /// The chat template that the file has under this name, or the well-known one of this name;
    /// `None` where there is neither.
    ///
    /// # Errors
    /// If it is not a template.
    pub fn named_chat_template(&self, name: &str) -> Result<Option<ChatTemplate>, Error> {
        Ok(ChatTemplate::named(&self.0.gguf, &self.0.tokenizer, name)?)
    }

    /// A chat template for this model from its text; an error if it is none.
    pub fn chat_template_of(&self, source: &str) -> Result<ChatTemplate, Error> {
        Ok(ChatTemplate::of(&self.0.gguf, &self.0.tokenizer, source)?)
    }

    /// Positions of a session.
    pub fn n_ctx(&self) -> usize {
        self.0.n_ctx
    }

    /// Prompt tokens taken at a time.
    pub fn batch(&self) -> usize {
        self.0.limits.rows
    }

    /// Sequences that run at a time.
    pub fn sequences(&self) -> usize {
        self.0.limits.sequences
    }

    /// How the file says that the vectors of a text's tokens become one; their mean where it says
    /// nothing.
    pub fn pooling(&self) -> Pooling {
        self.hparams().pooling.unwrap_or(Pooling::Mean)
    }

    /// An error if the model gives rows and no logits, so that nothing can be generated.
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

    /// Computes a text for what `tap` sees of it: every named value of every position. Any model
    /// can be looked at, those without logits too.
    ///
    /// # Errors
    /// As [`Session::eval`], and [`Error::Whole`].
    pub fn look(&self, tokens: &[u32], tap: &mut TapSink<'_>) -> Result<(), Error> {
        self.check_whole(tokens.len())?;
        self.session().look(tokens, tap)
    }

    /// An error unless so many tokens can be read: of a text whose tokens see later ones, all at
    /// once.
    pub(crate) fn check_whole(&self, tokens: usize) -> Result<(), Error> {
        let limits = self.limits();
        let most = limits.rows.min(limits.wanted);
        if self.hparams().is_causal() || tokens <= most {
            return Ok(());
        }
        let arch = self.hparams().arch.name();
        Err(Error::Whole { arch, tokens, most })
    }

    /// What was assumed, one line each.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// What it takes.
    pub fn memory(&self) -> MemoryReport {
        self.0.memory
    }

    /// Device, instruction set and threads, for people.
    pub fn describe(&self) -> &str {
        &self.0.description
    }

    /// Threads that work at a time.
    pub(crate) fn threads(&self) -> NonZeroUsize {
        self.0.threads
    }

    /// What a step may be.
    pub(crate) fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// The device, as soon as nobody else uses it.
    pub(crate) fn runtime(&self) -> MutexGuard<'_, Runtime> {
        // a panic inside a step leaves pages and pool in order: they are changed only between steps
        self.0
            .runtime
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a model takes on a device that has so many pages.
fn memory(
    gguf: &Gguf,
    model: &Model,
    options: &EngineOptions,
    (executable, n_pages): (&dyn Executable, usize),
) -> MemoryReport {
    let world = options.world.as_ref();
    let ranks = world.map_or(1, |world| world.ranks() as u64);
    let positions = n_pages * PAGE_POSITIONS;
    MemoryReport {
        file: gguf.file_bytes(),
        packed: executable.weight_bytes(),
        kv: kv_bytes(&model.hparams, options.kv_type, positions) / ranks,
    }
}

/// States of recurrent layers that so many timelines need, if the model has such layers: each reads
/// one while it writes others, and keeps some to go back to; where there are several, as many again
/// for texts that begin alike.
fn states(model: &Model, timelines: usize) -> usize {
    if model.graph.states.is_empty() {
        return 0;
    }
    let own = timelines.saturating_mul(1 + WRITES + CHECKPOINTS);
    own + if timelines > 1 { own } else { 1 }
}

/// Bytes of a KV cache of this many positions: half of its values are keys.
pub fn kv_bytes(h: &Hparams, types: KvTypes, positions: usize) -> u64 {
    let position = types.bytes(h.kv_elements_per_position() / 2);
    (position.unwrap_or(usize::MAX) as u64).saturating_mul(positions as u64)
}
